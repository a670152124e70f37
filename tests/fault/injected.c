/* tests/fault/injected.c - faults injected below the storage tier of real plans: a run is bitwise
 * what it would have been, or it ends with the machine's exit code and says what failed where.
 * Each run is a child under a clock, so that a hang is a failure.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/bitwise/trainer.h"
#include "tests/check.h"
#include "tests/fault/fault.h"
#include "tests/runtime/builder.h"

enum { STEPS = 3, SECONDS = 30 };

static char directory[64];
static zinf_plan plan;

typedef struct report {
    trainer_outcome outcome;
    uint64_t n_blocks[2], n_hits;
} report;
static report *shared;

static void plan_once(void)
{
    zinf_error err = {0};

    if (plan.n_instrs)
        return;
    CHECK_MESSAGE(trainer_plan(&trainer_tiny, false, "tier.param=nvme tier.grad=nvme "
                               "tier.optimizer=nvme tier.checkpoint=nvme prefetch.read=2 "
                               "prefetch.upload=1 order=horizontal micro_batch=2 tiles=1 "
                               "checkpoint_interval=1 io.block=8192 io.depth=4 threads=1",
                               &plan, &err) == ZINF_OK,
                  "%s", err.text);
}

static const report *expected(void);

/* Trains in a child; ends the test if that hangs or crashes. */
static const report *train(fault_spec spec, const zinf_storage_ops *engine, bool serial)
{
    int status;

    if (spec.kind == FAULT_NONE)
        plan_once();
    else
        expected();
    memset(shared, 0, sizeof *shared);
    fflush(stdout);
    const pid_t child = fork();
    if (!child) {
        const trainer_options options = {.directory = directory, .ops = &fault_ops,
                                         .steps = STEPS, .serial = serial};
        alarm(SECONDS * CHECK_SLOWER);
        fault_set(&spec, engine);
        trainer_run(&plan, &options, &shared->outcome);
        shared->n_blocks[0] = fault_n_blocks(false);
        shared->n_blocks[1] = fault_n_blocks(true);
        shared->n_hits = fault_n_hits();
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child);
    CHECK_MESSAGE(status == 0, "fault %d of %s %" PRIu64 ": %s", spec.kind,
                  spec.write ? "write" : "read", spec.first,
                  WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM ? "it hangs" : "it crashed");
    return shared;
}

static const report *expected(void)
{
    static report once;

    if (!once.outcome.n_steps)
        once = *train((fault_spec){.kind = FAULT_NONE}, NULL, false);
    CHECK_MESSAGE(once.outcome.err.status == ZINF_OK, "%s", once.outcome.err.text);
    CHECK(once.n_blocks[0] > 100 && once.n_blocks[1] > 100 && once.n_hits == 0);
    return &once;
}

static void check_right(const report *r)
{
    CHECK_MESSAGE(trainer_same(&r->outcome, &expected()->outcome), "%s",
                  r->outcome.err.status ? r->outcome.err.text : "other bits");
}

/* File, offset, length, what the system said, tensor, program and step. */
static void check_names_everything(const report *r, const char *said)
{
    const char *text = r->outcome.err.text, *const parts[] = {
        directory, "zinf-rank0.nvme", "offset ", "length ", said, "(program ", ", step "};

    CHECK_MESSAGE(r->outcome.err.status == ZINF_MACHINE, "status %d: %s", r->outcome.err.status,
                  text);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        CHECK_MESSAGE(strstr(text, parts[i]), "no \"%s\" in: %s", parts[i], text);
    bool named = strstr(text, "\"checkpoint ") != NULL;
    for (uint32_t u = 0; u < plan.n_units && !named; u++) {
        char name[128];
        snprintf(name, sizeof name, "\"%s ", plan.units[u].name);
        named = strstr(text, name);
    }
    CHECK_MESSAGE(named, "no tensor in: %s", text);
}

/* ---- the runs ---- */

static void what_can_be_tried_again_changes_nothing(void)
{
    static const struct {
        fault_kind kind;
        int error;
        uint32_t bytes, period;
        uint64_t seed;
    } cases[] = {
        {FAULT_ERRNO, EINTR, 0, 2, 0}, {FAULT_ERRNO, EINTR, 0, 3, 7},
        {FAULT_ERRNO, EAGAIN, 0, 2, 0}, {FAULT_ERRNO, EAGAIN, 0, 4, 8},
        /* by chance, so that no block meets the fault 16 times in a row */
        {FAULT_SHORT, 0, 4096, 3, 4}, {FAULT_SHORT, 0, 4608, 3, 5},
        {FAULT_SHORT, 0, 512, 3, 6}, {FAULT_SHORT, 0, 1, 3, 9},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int write = 0; write < 2; write++) {
            const fault_spec spec = {.kind = cases[i].kind, .write = write,
                                     .error = cases[i].error, .bytes = cases[i].bytes,
                                     .period = cases[i].period, .seed = cases[i].seed};
            const report *r = train(spec, i % 2 ? &zinf_storage_threads : NULL, false);
            check_right(r);
            CHECK_MESSAGE(r->n_hits > 10, "case %zu: %" PRIu64 " faults", i, r->n_hits);
        }
}

static void delays_change_nothing(void)
{
    for (int write = 0; write < 2; write++) {
        const fault_spec spec = {.kind = FAULT_DELAY, .write = write, .period = 4, .seed = 3,
                                 .bytes = 2000};
        const report *r = train(spec, NULL, false);
        check_right(r);
        CHECK(r->n_hits > 20);
    }
}

static void every_errno_ends_the_run_and_is_named(void)
{
    static const int errors[] = {EIO, ENOSPC, EINVAL, EFAULT, EFBIG, EROFS, ENOMEM, EDQUOT,
                                 EBADF, ENODEV, ETIMEDOUT, EPERM, ENXIO, EOPNOTSUPP};

    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        for (int write = 0; write < 2; write++) {
            const uint64_t n = expected()->n_blocks[write];
            const fault_spec spec = {.kind = FAULT_ERRNO, .write = write, .error = errors[i],
                                     .count = 1, .first = i % 3 == 0 ? 0 : i % 3 == 1 ? n / 2
                                                                                     : n - 1};
            const report *r = train(spec, i % 2 ? &zinf_storage_threads : NULL, i % 4 == 3);
            check_names_everything(r, strerror(errors[i]));
        }
}

static void an_error_at_any_operation_ends_the_run(void)
{
    for (int write = 0; write < 2; write++) {
        const uint64_t n = expected()->n_blocks[write];
        for (uint64_t i = 0; i < 12; i++) {
            const fault_spec spec = {.kind = FAULT_ERRNO, .write = write, .error = EIO,
                                     .first = (i * n + i) / 12, .count = 1};
            check_names_everything(train(spec, NULL, false), strerror(EIO));
        }
    }
}

/* Where the first transfer of the step lies whose name has that in it. */
static zinf_region first_of(const char *class, bool write)
{
    const zinf_program *step = &plan.programs[ZINF_PROGRAM_STEP];

    for (uint32_t s = 0; s < step->n_segments; s++) {
        const zinf_segment *segment = &plan.segments[step->first_segment + s];
        for (uint32_t i = 0; i < segment->n_instrs; i++) {
            const zinf_instr *instr = &plan.instrs[segment->first_instr + i];
            if (instr->opcode != (write ? ZINF_OP_WRITE : ZINF_OP_READ) ||
                !strstr(plan.strings + instr->name, class))
                continue;
            const zinf_operand *o = &plan.operands[instr->operand0 + write];
            CHECK(o->tier == ZINF_TIER_NVME);
            return (zinf_region){.offset = o->offset, .bytes = o->bytes};
        }
    }
    return (zinf_region){0};
}

/* Every kind of state, read and write, both engines, and every kind of fault at each of them. */
static void every_fault_of_every_state_is_found_or_harmless(void)
{
    static const char *const classes[] = {" param", " grad", " optimizer", "checkpoint "};
    static const zinf_storage_ops *const engines[] = {&zinf_storage_uring, &zinf_storage_threads};
    static const struct {
        fault_kind kind;
        const char *said; /* NULL: the run must be right */
        int on;           /* 0 reads, 1 writes, 2 both */
    } faults[] = {
        {FAULT_ERRNO, "Input/output error", 2}, {FAULT_ZERO, "", 2}, {FAULT_SHORT, "", 2},
        {FAULT_DELAY, NULL, 2}, {FAULT_TORN, "checksum ", 2}, {FAULT_FLIPPED, "checksum ", 2},
        {FAULT_LOST, "checksum ", 1}, {FAULT_STALE, "checksum ", 0}};
    unsigned n_runs = 0, n_right = 0, n_found = 0;
    void *probe = NULL;
    const bool uring = !zinf_storage_uring.open(1, &probe);

    if (uring)
        zinf_storage_uring.close(probe);
    expected();
    for (size_t c = 0; c < sizeof classes / sizeof *classes; c++)
        for (int write = 0; write < 2; write++) {
            const zinf_region where = first_of(classes[c], write);
            CHECK_MESSAGE(where.bytes, "nothing is called%s", classes[c]);
            for (size_t f = 0; f < sizeof faults / sizeof *faults; f++) {
                fault_spec spec = {.kind = faults[f].kind, .write = write, .error = EIO,
                                   .from = where.offset, .to = where.offset + where.bytes,
                                   .bytes = 700};
                if (faults[f].on != 2 && faults[f].on != write)
                    continue;
                const report *r = train(spec, engines[uring && (c + f) % 2 ? 0 : 1], f % 4 == 3);
                CHECK_MESSAGE(r->n_hits, "%s, fault %zu: never met", classes[c], f);
                n_runs++;
                if (r->outcome.err.status == ZINF_OK) {
                    check_right(r); /* what was lost was not read again, or is what was there */
                    CHECK_MESSAGE(!faults[f].said || spec.kind == FAULT_TORN ||
                                      spec.kind == FAULT_LOST || spec.kind == FAULT_STALE,
                                  "%s, %s, fault %zu: nobody noticed", classes[c],
                                  write ? "write" : "read", f);
                    n_right++;
                    continue;
                }
                CHECK_MESSAGE(faults[f].said, "%s", r->outcome.err.text);
                check_names_everything(r, faults[f].said);
                CHECK_MESSAGE(strstr(r->outcome.err.text, classes[c]), "no \"%s\" in: %s",
                              classes[c], r->outcome.err.text);
                n_found++;
            }
        }
    printf("# %u runs: %u ended with the fault's place, %u were right\n", n_runs, n_found,
           n_right);
}

static void a_bad_place_of_the_device_ends_the_run(void)
{
    for (uint32_t u = 0; u < 3; u++) {
        plan_once();
        const zinf_region region = plan.units[u * (plan.n_units - 1) / 2].optimizer;
        const fault_spec spec = {.kind = FAULT_ERRNO, .error = EIO, .from = region.offset,
                                 .to = region.offset + region.bytes};
        const report *r = train(spec, NULL, false);
        check_names_everything(r, strerror(EIO));
        CHECK_MESSAGE(strstr(r->outcome.err.text, " optimizer\""), "%s", r->outcome.err.text);
    }
}

static void what_never_moves_ends_the_run(void)
{
    const fault_spec zero_write = {.kind = FAULT_ZERO, .write = true, .first = 30};
    const fault_spec zero_read = {.kind = FAULT_ZERO, .first = 30};
    const fault_spec again = {.kind = FAULT_ERRNO, .error = EAGAIN, .first = 30};

    check_names_everything(train(zero_write, NULL, false), strerror(EIO));
    check_names_everything(train(zero_read, NULL, false), "ended early");
    check_names_everything(train(again, NULL, false), strerror(EAGAIN)); /* after five seconds */
}

/* Silent faults: what is read is checked, whatever the device says. */
static void check_silent(fault_kind kind, bool write, uint32_t bytes, unsigned n_runs)
{
    const uint64_t n = expected()->n_blocks[write];
    unsigned n_found = 0;

    for (unsigned i = 0; i < n_runs; i++) {
        fault_spec spec = {.kind = kind, .write = write, .first = (i * n + i) / n_runs,
                           .count = 1, .bytes = bytes};
        const report *r = train(spec, i % 2 ? &zinf_storage_threads : NULL, i % 8 == 7);
        CHECK(r->n_hits >= 1);
        if (r->outcome.err.status == ZINF_OK) {
            check_right(r); /* nobody read it, or it was the same */
            continue;
        }
        check_names_everything(r, "checksum ");
        n_found++;
    }
    /* All that is read is looked at, but it may be what was in memory anyway (torn), or have
     * been there before (stale); the last writes of gradients and checkpoints nobody reads. */
    CHECK_MESSAGE(2 * n_found >= n_runs, "%u of %u found", n_found, n_runs);
}

static void torn_blocks_are_found(void)
{
    check_silent(FAULT_TORN, true, 512, 16);
    check_silent(FAULT_TORN, true, 4096, 8);
    check_silent(FAULT_TORN, false, 512, 8);
}

static void lost_writes_are_found(void)
{
    check_silent(FAULT_LOST, true, 0, 24);
}

static void stale_reads_are_found(void)
{
    check_silent(FAULT_STALE, false, 0, 24);
}

static void misplaced_blocks_are_found(void)
{
    check_silent(FAULT_MISPLACED, true, 0, 12);
    check_silent(FAULT_MISPLACED, false, 0, 12);
}

static void one_flipped_bit_is_found(void)
{
    check_silent(FAULT_FLIPPED, true, 1234, 12);
    check_silent(FAULT_FLIPPED, false, 77, 12);
}

/* A read may cover several writes, and writes of other bounds may overlap in between. */
static zinf_plan overlapping_plan(void)
{
    zinf_plan p = builder_new();

    builder_program(&p, ZINF_PROGRAM_STEP);
    builder_segment(&p, ZINF_PROGRAM_STEP, 1);
    static const struct {
        bool write;
        uint64_t memory, offset, floats;
    } moves[] = {{true, 0, 0, 3072}, {true, 65536, 4096, 1024}, {true, 131072, 8192, 2048},
                 {false, 262144, 0, 4096}, {true, 69632, 0, 2048}, {false, 327680, 4096, 2048}};
    uint32_t last[2] = {ZINF_NONE, ZINF_NONE};
    for (size_t i = 0; i < sizeof moves / sizeof *moves; i++) {
        const bool write = moves[i].write;
        const uint32_t at = builder_instr(&p, write ? ZINF_OP_WRITE : ZINF_OP_READ,
                                          write ? ZINF_QUEUE_WRITE : ZINF_QUEUE_READ, "piece");
        builder_floats(&p, write ? ZINF_TIER_HOST : ZINF_TIER_NVME,
                       write ? moves[i].memory : moves[i].offset, moves[i].floats, 0);
        builder_floats(&p, write ? ZINF_TIER_NVME : ZINF_TIER_HOST,
                       write ? moves[i].offset : moves[i].memory, moves[i].floats, 0);
        if (last[!write] != ZINF_NONE)
            builder_wait(&p, last[!write], 0);
        last[write] = at;
    }
    return p;
}

/* The outcome of the plan above with the n-th write lost; UINT64_MAX: none. */
static zinf_status run_overlapping(uint64_t lost, zinf_error *err)
{
    const zinf_storage_options io = {ZINF_ENGINE_THREADS, 65536, 4};
    const fault_spec spec = {.kind = lost == UINT64_MAX ? FAULT_NONE : FAULT_LOST, .write = true,
                             .first = lost, .count = 1};
    zinf_plan p = overlapping_plan();
    zinf_executor *executor = NULL;
    zinf_storage *storage = NULL;
    zinf_env env = {0};
    char warning[256];

    fault_set(&spec, &zinf_storage_threads);
    zinf_storage_open_with(directory, 0, p.machine.arena_bytes[ZINF_TIER_NVME], &io, &fault_ops,
                           &storage, warning, err);
    const zinf_executor_options options = {.storage = storage};
    if (!err->status && zinf_executor_open(&p, &options, &executor, err) == ZINF_OK) {
        float *host = zinf_executor_arena(executor, ZINF_TIER_HOST);
        for (int i = 0; i < 65536; i++)
            host[i] = (float)i;
        if (zinf_executor_run(executor, ZINF_PROGRAM_STEP, &env, err) == ZINF_OK &&
            (memcmp(host + 65536, host, 4096) || memcmp(host + 66560, host + 16384, 4096) ||
             memcmp(host + 67584, host + 32768, 8192) ||
             memcmp(host + 81920, host + 18432, 4096) || memcmp(host + 82944, host + 32768, 4096)))
            zinf_fail(err, ZINF_WRONG_RESULT, "wrong bytes");
    }
    zinf_executor_close(executor);
    zinf_storage_close(storage);
    zinf_plan_free(&p);
    return err->status;
}

static void regions_that_overlap_are_checked_too(void)
{
    zinf_error err = {0};

    alarm(SECONDS * CHECK_SLOWER);
    CHECK_MESSAGE(run_overlapping(UINT64_MAX, &err) == ZINF_OK, "%s", err.text);
    for (uint64_t lost = 0; lost < 4; lost++) {
        memset(&err, 0, sizeof err);
        CHECK_MESSAGE(run_overlapping(lost, &err) == ZINF_MACHINE && strstr(err.text, "checksum"),
                      "write %" PRIu64 ": %s", lost, err.text);
    }
    alarm(0);
}

/* ---- the file under the run ---- */

static void (*change)(unsigned step, const char *path);

static const report *train_while(void (*before_step)(unsigned, const char *))
{
    int status;

    expected();
    memset(shared, 0, sizeof *shared);
    fflush(stdout);
    change = before_step;
    const pid_t child = fork();
    if (!child) {
        const trainer_options options = {.directory = directory, .steps = STEPS,
                                         .before_step = change};
        alarm(SECONDS * CHECK_SLOWER);
        trainer_run(&plan, &options, &shared->outcome);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    return shared;
}

static void cut(unsigned step, const char *path)
{
    if (step == 1 && truncate(path, 40960))
        abort();
}

static void cut_and_grow(unsigned step, const char *path)
{
    if (step == 2 && (truncate(path, 0) ||
                      truncate(path, (off_t)plan.machine.arena_bytes[ZINF_TIER_NVME])))
        abort();
}

static void delete(unsigned step, const char *path)
{
    if (step == 1)
        unlink(path);
}

static void a_file_that_is_cut_ends_the_run(void)
{
    const report *r = train_while(cut);
    check_names_everything(r, "something truncated it");
    CHECK_MESSAGE(strstr(r->outcome.err.text, "has 40960 bytes, expected") &&
                      strstr(r->outcome.err.text, "step 2,"), "%s", r->outcome.err.text);
}

static void a_file_that_is_emptied_and_grown_again_ends_the_run(void)
{
    check_names_everything(train_while(cut_and_grow), "checksum ");
}

static void a_file_that_is_deleted_is_used_on(void)
{
    check_right(train_while(delete));
}

static void a_long_path_does_not_hide_the_step(void)
{
    const fault_spec spec = {.kind = FAULT_ERRNO, .write = true, .error = EIO, .first = 150};
    const size_t n = strlen(directory);
    char path[2048];

    strcpy(path, directory);
    for (int i = 0; i < 5; i++) {
        snprintf(path + strlen(path), sizeof path - strlen(path), "/%0200d", i);
        CHECK(mkdir(path, 0700) == 0);
    }
    memset(shared, 0, sizeof *shared);
    plan_once();
    fflush(stdout);
    const pid_t child = fork();
    if (!child) {
        const trainer_options options = {.directory = path, .ops = &fault_ops, .steps = STEPS};
        alarm(SECONDS * CHECK_SLOWER);
        fault_set(&spec, NULL);
        trainer_run(&plan, &options, &shared->outcome);
        _exit(0);
    }
    waitpid(child, NULL, 0);
    for (; strlen(path) > n; *strrchr(path, '/') = 0)
        rmdir(path);
    CHECK_MESSAGE(strstr(shared->outcome.err.text, ", step "), "%s", shared->outcome.err.text);
}

int main(void)
{
    const char *base = getenv("TMPDIR");

    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
                  0);
    snprintf(directory, sizeof directory, "%.40s/zinf-fault-XXXXXX", base ? base : "/tmp");
    if (shared == MAP_FAILED || !mkdtemp(directory))
        return 1;
    RUN(what_can_be_tried_again_changes_nothing);
    RUN(delays_change_nothing);
    RUN(every_errno_ends_the_run_and_is_named);
    RUN(an_error_at_any_operation_ends_the_run);
    RUN(every_fault_of_every_state_is_found_or_harmless);
    RUN(a_bad_place_of_the_device_ends_the_run);
    RUN(what_never_moves_ends_the_run);
    RUN(torn_blocks_are_found);
    RUN(lost_writes_are_found);
    RUN(stale_reads_are_found);
    RUN(misplaced_blocks_are_found);
    RUN(one_flipped_bit_is_found);
    RUN(a_file_that_is_cut_ends_the_run);
    RUN(a_file_that_is_emptied_and_grown_again_ends_the_run);
    RUN(a_file_that_is_deleted_is_used_on);
    RUN(a_long_path_does_not_hide_the_step);
    RUN(regions_that_overlap_are_checked_too); /* starts threads: after the last fork */
    zinf_plan_free(&plan);
    rmdir(directory);
    return check_finish();
}
