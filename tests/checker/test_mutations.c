/* tests/checker/test_mutations.c - every single fault of good plans is refused, naming rule and
 * instruction, or changes no bit of any result: the mutant is run on the reference kernels, and
 * where its order is another the oracle looks at all pairs of its accesses.
 *
 * Faults are drawn at random, the same ones every time; ZINF_MUTANTS=N draws N of each kind in each
 * plan, 0 makes all of them. Verbose with an argument: prints each mutant that passes.
 */
#include <stdlib.h>
#include <string.h>

#include "mini.h"
#include "runtime/checker.h"
#include "tests/bitwise/trainer.h"
#include "tests/check.h"
#include "tests/checker/mutate.h"
#include "tests/checker/replay.h"
#include "tests/checker/restate.h"

enum { EACH = 20 }; /* faults of a kind in a plan */

typedef struct tallies {
    uint32_t refused[9], harmless; /* refused by rule C1 .. C8 */
} tallies;

static bool verbose;
static tallies all[128]; /* by mutation */
static uint32_t escaped;

static uint32_t next_random(uint32_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    return *state;
}

static void tell(const zinf_plan *plan, const char *label, uint32_t m, uint32_t i, const char *what)
{
    const uint32_t k = mutate_instr(plan, mutations[m].target, i);

    printf("# %s, %s at %u: %s", label, mutations[m].name, i, what);
    if (k != ZINF_NONE)
        printf(", instruction %u %s \"%s\"", k, zinf_opcode_get(plan->instrs[k].opcode)->name,
               &plan->strings[plan->instrs[k].name]);
    if (mutations[m].target == MUTATE_OPERAND)
        printf(", operand %u", i - plan->instrs[k].operand0);
    printf("\n");
}

/* Rule and instruction are in the text: or what has no instruction, unit, bytes or program. */
static bool names_both(const char *text)
{
    return text[0] == 'C' && strchr("12345678", text[1]) && text[2] == ':' &&
           (strstr(text, "instruction") || strstr(text, "unit") || strstr(text, "bytes [") ||
            strstr(text, "tensor") || strstr(text, "loss"));
}

/* One fault; same says whether a plan leaves the same behind. False: there is no such fault. */
static bool judge(const zinf_plan *good, const char *label, uint32_t m, uint32_t i,
                  bool (*same)(const zinf_plan *good, const zinf_plan *mutant))
{
    zinf_plan mutant = mutate_copy(good);
    zinf_error err = {0};

    const bool made = mutations[m].apply(&mutant, i);
    if (made)
        restate(&mutant); /* what it takes is not asked here */
    if (!made) {
        /* no fault of this kind here */
    } else if (zinf_plan_check(&mutant, &err)) {
        if (!names_both(err.text) || err.status != ZINF_DOES_NOT_FIT) {
            escaped++;
            tell(good, label, m, i, err.text);
        } else {
            all[m].refused[err.text[1] - '0']++;
        }
    } else if (!mini_is_ordered(&mutant)) {
        escaped++;
        tell(good, label, m, i, "RACE");
    } else if (!same(good, &mutant)) {
        escaped++;
        tell(good, label, m, i, "ANOTHER RESULT");
    } else {
        all[m].harmless++;
        if (verbose)
            tell(good, label, m, i, "harmless");
    }
    zinf_plan_free(&mutant);
    return made;
}

static void mutate(const zinf_plan *good, const char *label, uint32_t each,
                   bool (*same)(const zinf_plan *good, const zinf_plan *mutant))
{
    const char *wish = getenv("ZINF_MUTANTS");
    uint32_t seed = 88172645;

    each = wish ? (uint32_t)atol(wish) : each;
    for (uint32_t m = 0; m < n_mutations; m++) {
        const uint32_t n = mutate_count(good, mutations[m].target);
        uint32_t made = 0;
        for (uint32_t tries = 0; n && (each ? made < each && tries < 20 * each : tries < n);
             tries++)
            made += judge(good, label, m, each ? next_random(&seed) % n : tries, same);
    }
}

static void report(void)
{
    tallies sum = {0};

    for (uint32_t m = 0; m <= n_mutations; m++) {
        const tallies *t = m < n_mutations ? &all[m] : &sum;
        uint32_t refused = 0;
        for (int r = 1; r <= 8; r++) {
            refused += t->refused[r];
            sum.refused[r] += m < n_mutations ? t->refused[r] : 0;
        }
        sum.harmless += m < n_mutations ? t->harmless : 0;
        printf("# %-20s refused %5u (C1..C8:", m < n_mutations ? mutations[m].name : "in all",
               refused);
        for (int r = 1; r <= 8; r++)
            printf(" %u", t->refused[r]);
        printf("), harmless %u\n", t->harmless);
    }
    memset(all, 0, sizeof all);
}

/* ---- plans of the planner ---- */

static uint64_t good_hash;

static bool same_by_run(const zinf_plan *good, const zinf_plan *mutant)
{
    zinf_error err = {0};
    uint64_t hash = 0;

    (void)good;
    if (replay(mutant, &hash, &err) != ZINF_OK)
        printf("# %s\n", err.text);
    return err.status == ZINF_OK && hash == good_hash;
}

static const trainer_model gpt2_16 = {1, 16, 2, 24, 8, 1, "bf16", NULL};
static const trainer_model gpt2_32 = {1, 16, 2, 24, 8, 2, "fp32", NULL};
static const trainer_model gpt2_deep = {2, 16, 2, 24, 4, 3, "bf16", NULL};
static const trainer_model gpt2_untied = {1, 16, 2, 24, 8, 2, "bf16", ", tied_embeddings: false"};
#define LLAMA(more) ", kv_heads: 1, ffn: 24" more
static const trainer_model llama_16 = {1, 16, 2, 24, 8, 1, "bf16",
                                       LLAMA(", tied_embeddings: false")};
static const trainer_model llama_bias = {1, 16, 2, 24, 8, 2, "bf16",
                                         LLAMA(", qkv_bias: true, tied_embeddings: true")};
static const trainer_model llama_32 = {2, 16, 2, 24, 4, 3, "fp32",
                                       LLAMA(", tied_embeddings: true")};

static const trainer_model gpt2_two = {1, 16, 2, 24, 8, 4, "bf16", NULL};
static const trainer_model gpt2_ranks = {1, 16, 2, 24, 8, 8, "fp32", NULL};
static const trainer_model llama_ranks = {1, 16, 2, 24, 8, 3, "bf16",
                                          LLAMA(", tied_embeddings: false")};

#define TIERS(p, g, o, c) " tier.param=" #p " tier.grad=" #g " tier.optimizer=" #o                \
                          " tier.checkpoint=" #c " "
static const struct {
    const char *label;
    const trainer_model *model;
    bool unified;
    const char *sets;
    unsigned ranks; /* 0: one */
} plans[] = {
    {"gpt2 device", &gpt2_16, true,
     "micro_batch=1 tiles=1 checkpoint_interval=none prefetch.read=0"
     TIERS(device, device, device,
                                                                         device), 1},
    {"gpt2 device accumulated", &gpt2_deep, true,
     "micro_batch=1 tiles=2 checkpoint_interval=1" TIERS(device, device, device, device), 1},
    {"gpt2 host", &gpt2_16, false,
     "micro_batch=1 tiles=1 checkpoint_interval=1 prefetch.upload=0"
     TIERS(host, host, host, host), 1},
    {"gpt2 host fp32", &gpt2_32, false,
     "micro_batch=1 tiles=2 checkpoint_interval=none prefetch.upload=2"
     TIERS(host, host, host, host), 1},
    {"gpt2 nvme", &gpt2_16, false,
     "micro_batch=1 tiles=3 checkpoint_interval=1 prefetch.read=3 prefetch.upload=1"
     TIERS(nvme, nvme, nvme, nvme), 1},
    {"gpt2 nvme accumulated", &gpt2_deep, false,
     "micro_batch=1 tiles=1 checkpoint_interval=2 prefetch.read=2 prefetch.upload=2"
     TIERS(nvme, host, nvme, host), 1},
    {"gpt2 unified nvme", &gpt2_32, true,
     "micro_batch=1 tiles=2 checkpoint_interval=1 prefetch.read=1"
     TIERS(nvme, nvme, nvme, nvme), 1},
    {"gpt2 mixed", &gpt2_deep, false,
     "micro_batch=3 tiles=3 checkpoint_interval=2 prefetch.upload=3"
     TIERS(device, device, host,
                                                                           host), 1},
    {"llama device", &llama_16, true,
     "micro_batch=1 tiles=1 checkpoint_interval=none" TIERS(device, device, device, device), 1},
    {"llama nvme", &llama_16, false,
     "micro_batch=1 tiles=2 tiles.qkv=3 checkpoint_interval=1 prefetch.read=1 prefetch.upload=1"
     TIERS(nvme, host, nvme, host), 1},
    {"llama bias", &llama_bias, false,
     "micro_batch=1 tiles=1 tiles.qkv=2 tiles.vocab=3 checkpoint_interval=1 prefetch.read=2"
     TIERS(host, nvme, nvme, device), 1},
    {"llama fp32 accumulated", &llama_32, false,
     "micro_batch=1 tiles=3 checkpoint_interval=2 prefetch.read=3 prefetch.upload=3"
     TIERS(nvme, nvme, host, nvme), 1},
    {"llama unified", &llama_32, true,
     "micro_batch=3 tiles=2 checkpoint_interval=none prefetch.read=0"
     TIERS(nvme, device, nvme,
                                                                         device), 1},
    {"gpt2 untied", &gpt2_untied, true,
     "micro_batch=2 tiles=2 checkpoint_interval=1" TIERS(device, nvme, device, device), 1},
    {"gpt2 early", &gpt2_16, false,
     "clip=0 optimizer_time=backward micro_batch=1 tiles=2 checkpoint_interval=1 prefetch.read=1"
     TIERS(nvme, nvme, nvme, nvme), 1},
    {"gpt2 early accumulated", &gpt2_deep, true,
     "clip=0 optimizer_time=backward micro_batch=1 tiles=1 checkpoint_interval=1 prefetch.read=0"
     TIERS(device, device, nvme, device), 1},
    {"llama early", &llama_16, false,
     "clip=0 optimizer_time=backward micro_batch=1 tiles=1 checkpoint_interval=1 prefetch.read=2"
     TIERS(host, device, nvme, host), 1},
    {"gpt2 vertical", &gpt2_deep, true,
     "order=vertical micro_batch=1 tiles=1 checkpoint_interval=1"
     TIERS(device, device, device, device), 1},
    {"gpt2 vertical nvme", &gpt2_deep, false,
     "order=vertical micro_batch=1 tiles=2 checkpoint_interval=2 prefetch.read=5 prefetch.upload=2"
     TIERS(nvme, nvme, nvme, nvme), 1},
    {"llama vertical", &llama_32, false,
     "order=vertical micro_batch=1 tiles=1 tiles.vocab=3 checkpoint_interval=1 prefetch.read=9"
     TIERS(nvme, host, nvme, host), 1},
    {"2 ranks vertical", &gpt2_two, false,
     "order=vertical micro_batch=1 tiles=2 checkpoint_interval=1" TIERS(host, nvme, nvme, device),
     2},
    {"gpt2 late", &gpt2_16, false,
     "optimizer_time=forward micro_batch=1 tiles=2 checkpoint_interval=1 prefetch.read=1"
     TIERS(nvme, nvme, nvme, nvme), 1},
    {"gpt2 late accumulated", &gpt2_deep, true,
     "optimizer_time=forward order=horizontal micro_batch=1 tiles=1 checkpoint_interval=1"
     TIERS(device, device, nvme, device), 1},
    {"llama late", &llama_16, false,
     "optimizer_time=forward micro_batch=1 tiles=1 checkpoint_interval=none prefetch.read=2"
     TIERS(device, host, device, device), 1},
    {"llama late vertical", &llama_32, false,
     "optimizer_time=forward order=vertical micro_batch=1 tiles=1 checkpoint_interval=1"
     TIERS(host, device, host, host), 1},
    {"2 ranks late", &gpt2_two, false,
     "optimizer_time=forward micro_batch=1 tiles=2 checkpoint_interval=1"
     TIERS(nvme, host, nvme, host), 2},
    {"2 ranks early", &gpt2_two, false,
     "clip=0 optimizer_time=backward micro_batch=1 tiles=2 checkpoint_interval=1"
     TIERS(nvme, host, nvme, host), 2},
    {"2 ranks device", &gpt2_two, true,
     "micro_batch=1 tiles=1 checkpoint_interval=none" TIERS(device, device, device, device), 2},
    {"2 ranks nvme", &gpt2_two, false,
     "micro_batch=1 tiles=3 checkpoint_interval=1 prefetch.read=1 prefetch.upload=1"
     TIERS(nvme, host, nvme, host), 2},
    {"3 ranks llama", &llama_ranks, false,
     "micro_batch=1 tiles=2 checkpoint_interval=1 prefetch.gather=2"
     TIERS(host, nvme, host, device), 3},
    {"4 ranks", &gpt2_ranks, true,
     "micro_batch=1 tiles=2 checkpoint_interval=1 prefetch.gather=0"
     TIERS(nvme, device, nvme, device), 4},
    {"2 ranks that own", &gpt2_two, true,
     "partitioning=owner micro_batch=1 tiles=1 checkpoint_interval=none"
     TIERS(device, device, device, device), 2},
    {"2 ranks that own, nvme", &gpt2_two, false,
     "partitioning=owner micro_batch=1 tiles=3 checkpoint_interval=1 prefetch.read=1"
     TIERS(nvme, host, nvme, host), 2},
    {"2 ranks that own, early", &gpt2_two, false,
     "partitioning=owner clip=0 optimizer_time=backward micro_batch=1 tiles=2"
     " checkpoint_interval=1" TIERS(nvme, nvme, nvme, host), 2},
    {"3 ranks that own, llama", &llama_ranks, false,
     "partitioning=owner micro_batch=1 tiles=2 checkpoint_interval=1 prefetch.gather=2"
     TIERS(host, nvme, host, device), 3},
    {"2 ranks, synchronous", &gpt2_two, false,
     "collectives=synchronous micro_batch=1 tiles=2 checkpoint_interval=1"
     TIERS(host, host, nvme, device), 2},
};

static void every_fault_of_a_planners_plan_is_refused_or_changes_no_bit(void)
{
    escaped = 0;
    for (size_t p = 0; p < sizeof plans / sizeof *plans; p++) {
        zinf_plan good;
        zinf_error err = {0};
        char sets[400];

        snprintf(sets, sizeof sets, "threads=1 %s", plans[p].sets);
        CHECK_MESSAGE(!trainer_plan_ranks(plans[p].model, plans[p].unified, plans[p].ranks,
                                          sets, &good, &err), "%s: %s",
                      plans[p].label, err.text);
        CHECK_MESSAGE(!replay(&good, &good_hash, &err), "%s: %s", plans[p].label, err.text);
        CHECK_MESSAGE(mini_is_ordered(&good), "%s has a race", plans[p].label);
        CHECK_MESSAGE(same_by_run(&good, &good), "%s: two runs differ", plans[p].label);
        mutate(&good, plans[p].label, EACH, same_by_run);
        zinf_plan_free(&good);
    }
    printf("# %zu plans\n", sizeof plans / sizeof *plans);
    report();
    CHECK_MESSAGE(escaped == 0, "%u mutants escaped", escaped);
}

int main(int argc, char **argv)
{
    (void)argv;
    verbose = argc > 1;
    RUN(every_fault_of_a_planners_plan_is_refused_or_changes_no_bit);
    return check_finish();
}
