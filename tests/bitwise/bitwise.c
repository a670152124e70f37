/* tests/bitwise/bitwise.c - the promise that bits depend on the decisions of arithmetic only: not
 * on where the states live, what reads them, how far ahead, in which order queues get on, or how
 * many processors there are.
 */
#include <omp.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/bitwise/trainer.h"
#include "tests/check.h"

enum { STEPS = 3 };

/* Decisions that may change bits are the same in every plan. */
#define ARITHMETIC "micro_batch=2 tiles=1 checkpoint_interval=1 io.block=8192 io.depth=4 "

static char directory[64];
static const char *program;

static void train(bool unified, const char *sets, trainer_options options,
                  trainer_outcome *ret_outcome)
{
    char all[512];
    zinf_plan plan = {0};
    zinf_error err = {0};

    snprintf(all, sizeof all, ARITHMETIC "%s", sets);
    CHECK_MESSAGE(trainer_plan(&trainer_tiny, unified, all, &plan, &err) == ZINF_OK, "%s: %s",
                  all, err.text);
    options.directory = directory;
    options.steps = STEPS;
    trainer_train(&plan, &options, ret_outcome);
    CHECK_MESSAGE(ret_outcome->err.status == ZINF_OK, "%s: %s", all, ret_outcome->err.text);
}

/* What every other run is compared with: everything on the device, one after another. */
static const trainer_outcome *expected(void)
{
    static trainer_outcome outcome;

    if (!outcome.n_steps)
        train(false, "tier.param=device tier.grad=device tier.optimizer=device "
              "tier.checkpoint=device prefetch.read=0 prefetch.upload=0 threads=2",
              (trainer_options){.serial = true}, &outcome);
    return &outcome;
}

static void check(bool unified, const char *sets, trainer_options options)
{
    trainer_outcome found;

    train(unified, sets, options, &found);
    CHECK_MESSAGE(trainer_same(&found, expected()), "%s: losses %.17g %.17g %.17g, weights "
                  "%016llx; expected %.17g %.17g %.17g, %016llx", sets, found.loss[0],
                  found.loss[1], found.loss[2], (unsigned long long)found.params_hash,
                  expected()->loss[0], expected()->loss[1], expected()->loss[2],
                  (unsigned long long)expected()->params_hash);
}

static const char *const tiers[] = {"device", "host", "nvme"};

static void choose_tiers(unsigned param, unsigned grad, unsigned optimizer, unsigned checkpoint,
                         const char *more, char ret_sets[256])
{
    snprintf(ret_sets, 256, "tier.param=%s tier.grad=%s tier.optimizer=%s tier.checkpoint=%s %s",
             tiers[param], tiers[grad], tiers[optimizer], tiers[checkpoint], more);
}

#define ON_NVME "tier.param=nvme tier.grad=nvme tier.optimizer=nvme tier.checkpoint=nvme "

/* ---- the promises ---- */

static void the_model_learns(void)
{
    const trainer_outcome *e = expected();

    CHECK(e->loss[0] > 4 && e->loss[0] < 5 && e->loss[2] < e->loss[0] && e->norm[0] > 0);
    CHECK(e->params_hash && e->state_hash);
}

static void the_same_plan_twice_gives_the_same_bits(void)
{
    check(false, ON_NVME "prefetch.read=2 prefetch.upload=1 threads=2", (trainer_options){0});
    check(false, ON_NVME "prefetch.read=2 prefetch.upload=1 threads=2", (trainer_options){0});
}

static void all_81_combinations_of_tiers_give_the_same_bits(void)
{
    char sets[256];

    for (unsigned i = 0; i < 81; i++) {
        choose_tiers(i / 27, i / 9 % 3, i / 3 % 3, i % 3,
                     "prefetch.read=1 prefetch.upload=1 threads=2", sets);
        check(false, sets, (trainer_options){0});
    }
}

static void all_16_combinations_of_one_memory_give_the_same_bits(void)
{
    char sets[256];

    for (unsigned i = 0; i < 16; i++) {
        choose_tiers(i >> 3 & 1 ? 2 : 0, i >> 2 & 1 ? 2 : 0, i >> 1 & 1 ? 2 : 0, i & 1 ? 2 : 0,
                     "prefetch.read=1 prefetch.upload=1 threads=2", sets);
        check(true, sets, (trainer_options){0});
    }
}

static void both_storage_engines_give_the_same_bits(void)
{
    const trainer_options threads = {.engine = ZINF_ENGINE_THREADS};
    const trainer_options uring = {.engine = ZINF_ENGINE_URING};
    void *queue = NULL;

    check(false, ON_NVME "prefetch.read=2 prefetch.upload=1 threads=2", threads);
    if (zinf_storage_uring.open(4, &queue))
        SKIP("this machine has no io_uring");
    zinf_storage_uring.close(queue);
    check(false, ON_NVME "prefetch.read=2 prefetch.upload=1 threads=2", uring);
}

static void every_prefetch_distance_gives_the_same_bits(void)
{
    char sets[256];

    for (unsigned read = 0; read <= 3; read++)
        for (unsigned upload = 0; upload <= 3; upload++) {
            snprintf(sets, sizeof sets, ON_NVME "prefetch.read=%u prefetch.upload=%u threads=2",
                     read, upload);
            check(false, sets, (trainer_options){0});
        }
}

static void blocks_and_depths_of_storage_give_the_same_bits(void)
{
    static const char *const shapes[] = {"io.block=4096 io.depth=1", "io.block=4096 io.depth=64",
                                         "io.block=1048576 io.depth=2"};
    char sets[256];

    for (unsigned i = 0; i < 3; i++) {
        snprintf(sets, sizeof sets, ON_NVME "prefetch.read=2 prefetch.upload=1 threads=2 %s",
                 shapes[i]);
        check(false, sets, (trainer_options){0});
    }
}

static void random_delays_in_every_queue_give_the_same_bits(void)
{
    char sets[256];

    for (unsigned seed = 1; seed <= 6; seed++) {
        snprintf(sets, sizeof sets, ON_NVME "prefetch.read=%u prefetch.upload=%u threads=2",
                 seed % 4, seed / 2 % 4);
        check(false, sets, (trainer_options){.delay_seed = seed});
        choose_tiers(seed % 3, (seed + 1) % 3, (seed + 2) % 3, 1 + seed % 2,
                     "prefetch.read=3 prefetch.upload=2 threads=2", sets);
        check(false, sets, (trainer_options){.delay_seed = 100 + seed});
    }
}

static void one_queue_after_another_gives_the_same_bits(void)
{
    char sets[256];

    for (unsigned i = 0; i < 81; i += 10) {
        choose_tiers(i / 27, i / 9 % 3, i / 3 % 3, i % 3,
                     "prefetch.read=2 prefetch.upload=1 threads=2", sets);
        check(false, sets, (trainer_options){.serial = true});
    }
}

static void a_step_counts_accumulated_micro_batches_the_same_on_every_tier(void)
{
    trainer_outcome device, nvme;

    train(false, "micro_batch=1 tiles=3 tier.param=device tier.grad=device tier.optimizer=device "
          "tier.checkpoint=device threads=1", (trainer_options){0}, &device);
    train(false, "micro_batch=1 tiles=3 " ON_NVME "prefetch.read=3 prefetch.upload=3 threads=1",
          (trainer_options){0}, &nvme);
    CHECK(trainer_same(&device, &nvme));
}

static void odd_sizes_are_equal_to_the_last_byte_on_nvme_and_host(void)
{
    static const trainer_model odd = {1, 37, 1, 50257, 8, 2, "bf16", NULL};
    const trainer_options options = {.directory = directory, .steps = 2};
    trainer_outcome found[2];

    for (int i = 0; i < 2; i++) {
        zinf_plan plan = {0};
        zinf_error err = {0};
        CHECK_MESSAGE(trainer_plan(&odd, false, i ? "micro_batch=1 checkpoint_interval=1 tiles=1 "
                                   "threads=2 prefetch.read=2 prefetch.upload=1 " ON_NVME
                                   : "micro_batch=1 checkpoint_interval=1 tiles=1 threads=2 "
                                   "prefetch.read=2 prefetch.upload=1 tier.param=host "
                                   "tier.grad=host tier.optimizer=host tier.checkpoint=host",
                                   &plan, &err) == ZINF_OK, "%s", err.text);
        alarm(120);
        trainer_run(&plan, &options, &found[i]);
        alarm(0);
        zinf_plan_free(&plan);
        CHECK_MESSAGE(found[i].err.status == ZINF_OK, "%s", found[i].err.text);
    }
    CHECK(trainer_same(&found[0], &found[1]));
}

/* ---- the llama family: q, k, v and gate, up are stacks whose tiles hold several tensors ---- */

static const trainer_model llama = {
    2, 38, 6, 101, 17, 4, "bf16",
    ", kv_heads: 3, head_dim: 10, ffn: 50, tied_embeddings: false, qkv_bias: true"};

static void train_llama(const char *precision, bool unified, const char *sets,
                        trainer_outcome *ret_outcome)
{
    char all[512];
    zinf_plan plan = {0};
    zinf_error err = {0};
    trainer_model model = llama;

    model.precision = precision;
    snprintf(all, sizeof all, "io.block=8192 io.depth=4 %s", sets);
    CHECK_MESSAGE(trainer_plan(&model, unified, all, &plan, &err) == ZINF_OK, "%s: %s", all,
                  err.text);
    const trainer_options options = {.directory = directory, .steps = STEPS};
    trainer_train(&plan, &options, ret_outcome);
    CHECK_MESSAGE(ret_outcome->err.status == ZINF_OK, "%s: %s", all, ret_outcome->err.text);
}

static void a_llama_has_the_same_bits_on_every_tier(void)
{
    static const char *const arithmetic[] = {"tiles=1 micro_batch=2", "tiles=3 micro_batch=1",
                                             "tiles=7 micro_batch=4"};
    char sets[256], more[128];
    trainer_outcome wanted, found;

    for (unsigned a = 0; a < 3; a++) {
        snprintf(more, sizeof more, "%s checkpoint_interval=none threads=2", arithmetic[a]);
        choose_tiers(0, 0, 0, 0, more, sets);
        train_llama("bf16", false, sets, &wanted);
        CHECK(wanted.loss[0] > 4 && wanted.loss[2] < wanted.loss[0]);
        for (unsigned i = 0; i < 81; i += 8) {
            snprintf(more, sizeof more, "%s checkpoint_interval=%u threads=2 prefetch.read=%u "
                     "prefetch.upload=%u", arithmetic[a], 1 + i % 2, i % 4, i / 4 % 3);
            choose_tiers(i / 27, i / 9 % 3, i / 3 % 3, i % 3, more, sets);
            train_llama("bf16", false, sets, &found);
            CHECK_MESSAGE(trainer_same(&found, &wanted), "%s", sets);
        }
        choose_tiers(2, 2, 2, 2, more, sets);
        train_llama("bf16", true, sets, &found);
        CHECK_MESSAGE(trainer_same(&found, &wanted), "unified, %s", sets);
    }
}

/* Each output feature is summed as before, whatever tile it is in; the classifier is one tile. */
static void tiles_of_a_llamas_linears_give_the_same_first_loss(void)
{
    static const char *const precisions[] = {"fp32", "bf16"};
    static const char *const linears[] = {"qkv", "out", "fc", "proj"};
    trainer_outcome whole, tiled;
    char sets[128];

    for (unsigned p = 0; p < 2; p++) {
        train_llama(precisions[p], false, "tiles=1 micro_batch=4 threads=2", &whole);
        for (unsigned l = 0; l < 4; l++)
            for (unsigned n = 2; n <= 7; n += n == 3 ? 4 : 1) {
                snprintf(sets, sizeof sets, "tiles=1 tiles.%s=%u micro_batch=4 threads=2",
                         linears[l], n);
                train_llama(precisions[p], false, sets, &tiled);
                CHECK_MESSAGE(tiled.loss[0] == whole.loss[0], "%s, %s: %.17g, not %.17g",
                              precisions[p], sets, tiled.loss[0], whole.loss[0]);
            }
    }
}

/* ---- other environments: this program, started again ---- */

/* Long sums over many tokens and a long k: cut by the number of threads they would differ. */
static const trainer_model long_sums = {1, 64, 2, 256, 512, 4, "bf16", NULL};

static int run_alone(const char *threads)
{
    char sets[256];
    zinf_plan plan = {0};
    zinf_error err = {0};
    trainer_outcome found;

    snprintf(sets, sizeof sets, ARITHMETIC "tier.param=host tier.grad=host tier.optimizer=host "
             "tier.checkpoint=host prefetch.read=1 prefetch.upload=1 threads=%s", threads);
    alarm(120);
    if (trainer_plan(&long_sums, false, sets, &plan, &err)) {
        printf("%s\n", err.text);
        return (int)err.status;
    }
    const trainer_options options = {.steps = 2};
    trainer_run(&plan, &options, &found);
    zinf_plan_free(&plan);
    if (found.err.status)
        printf("%s\n", found.err.text);
    else
        printf("%a %a %a %016llx %016llx\n", found.loss[0], found.loss[1], found.norm[1],
               (unsigned long long)found.params_hash, (unsigned long long)found.state_hash);
    return (int)found.err.status;
}

/* Runs `threads` under an assignment to the environment; ret_line is what it printed. */
static int run_under(const char *threads, const char *environment, bool one_processor,
                     char ret_line[512])
{
    int out[2], status;

    CHECK(pipe(out) == 0);
    fflush(stdout);
    const pid_t child = fork();
    if (!child) {
        char copy[256], *rest = NULL;
        snprintf(copy, sizeof copy, "%s", environment);
        for (char *word = strtok_r(copy, " ", &rest); word; word = strtok_r(NULL, " ", &rest))
            putenv(word);
        if (one_processor) {
            cpu_set_t set, one;
            CPU_ZERO(&one);
            sched_getaffinity(0, sizeof set, &set);
            for (int i = 0; i < CPU_SETSIZE && !CPU_COUNT(&one); i++)
                if (CPU_ISSET(i, &set))
                    CPU_SET(i, &one);
            sched_setaffinity(0, sizeof one, &one);
        }
        dup2(out[1], 1);
        execl(program, program, "--alone", threads, (char *)NULL);
        _exit(99);
    }
    close(out[1]);
    size_t n = 0;
    for (ssize_t got; (got = read(out[0], ret_line + n, 511 - n)) > 0;)
        n += (size_t)got;
    ret_line[n] = 0;
    close(out[0]);
    CHECK(waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

static void a_plan_keeps_its_team_whatever_the_environment_says(void)
{
    static const char *const environments[] = {
        "OMP_NUM_THREADS=1", "OMP_NUM_THREADS=7", "OMP_DYNAMIC=true",
        "OMP_DYNAMIC=true OMP_NUM_THREADS=1", "OMP_MAX_ACTIVE_LEVELS=0",
        "OMP_SCHEDULE=dynamic,1", "OMP_PROC_BIND=true"};
    char line[512], wanted[512];

    for (char threads[] = "1"; threads[0] <= '3'; threads[0]++) {
        int status = run_under(threads, "OMP_WAIT_POLICY=passive", false, wanted);
        CHECK_MESSAGE(status == 0, "%s threads: %d, %s", threads, status, wanted);
        for (size_t i = 0; i <= sizeof environments / sizeof *environments; i++) {
            const bool last = i == sizeof environments / sizeof *environments;
            const char *name = last ? "" : environments[i];
            status = run_under(threads, name, last, line);
            CHECK_MESSAGE(status == 0 && !strcmp(line, wanted), "%s threads, \"%s\"%s: %d, %s",
                          threads, name, last ? "one processor" : "", status, line);
        }
    }
}

static void a_limit_below_the_plans_team_is_refused(void)
{
    char line[512];
    const int status = run_under("3", "OMP_THREAD_LIMIT=2", false, line);

    CHECK_MESSAGE(status == ZINF_MACHINE && strstr(line, "OMP_THREAD_LIMIT"), "%d: %s", status,
                  line);
    CHECK(run_under("2", "OMP_THREAD_LIMIT=2", false, line) == 0);
}

int main(int argc, char **argv)
{
    if (argc == 3 && !strcmp(argv[1], "--alone"))
        return run_alone(argv[2]);
    program = "/proc/self/exe";
    const char *base = getenv("TMPDIR");
    snprintf(directory, sizeof directory, "%.40s/zinf-bits-XXXXXX", base ? base : "/tmp");
    if (!mkdtemp(directory))
        return 1;
    RUN(the_model_learns);
    RUN(the_same_plan_twice_gives_the_same_bits);
    RUN(all_81_combinations_of_tiers_give_the_same_bits);
    RUN(all_16_combinations_of_one_memory_give_the_same_bits);
    RUN(both_storage_engines_give_the_same_bits);
    RUN(every_prefetch_distance_gives_the_same_bits);
    RUN(blocks_and_depths_of_storage_give_the_same_bits);
    RUN(random_delays_in_every_queue_give_the_same_bits);
    RUN(one_queue_after_another_gives_the_same_bits);
    RUN(a_step_counts_accumulated_micro_batches_the_same_on_every_tier);
    RUN(odd_sizes_are_equal_to_the_last_byte_on_nvme_and_host);
    RUN(a_llama_has_the_same_bits_on_every_tier);
    RUN(tiles_of_a_llamas_linears_give_the_same_first_loss);
    RUN(a_plan_keeps_its_team_whatever_the_environment_says);
    RUN(a_limit_below_the_plans_team_is_refused);
    rmdir(directory);
    return check_finish();
}
