/* tests/runtime/executor.c - order by waits alone, errors, checksums, initial values. */
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "runtime/executor.h"
#include "runtime/initial.h"
#include "runtime/storage.h"
#include "tests/check.h"
#include "tests/runtime/builder.h"

static char directory[256];
static bool without_trace;
static atomic_int n_clock_readings;

int clock_gettime(clockid_t clock, struct timespec *ret_time)
{
    atomic_fetch_add(&n_clock_readings, 1);
    return (int)syscall(SYS_clock_gettime, clock, ret_time);
}

static zinf_status fill_tokens(void *context, uint64_t n, uint64_t cols, int32_t *ret_tokens,
                               zinf_error *err)
{
    if (context)
        return zinf_fail(err, ZINF_BAD_INPUT, "the data ran out");
    for (uint64_t i = 0; i < n * cols; i++)
        ret_tokens[i] = (int32_t)(i * 7 % 11);
    return ZINF_OK;
}

typedef struct machine {
    zinf_plan plan;
    zinf_storage *storage;
    zinf_executor *executor;
    zinf_env env;
    zinf_error err;
} machine;

static void start(machine *m, zinf_plan plan, bool serial, uint64_t delay_seed)
{
    char warning[256];

    memset(m, 0, sizeof *m);
    m->plan = plan;
    CHECK_MESSAGE(zinf_plan_validate(&m->plan, &m->err) == ZINF_OK, "%s", m->err.text);
    const zinf_storage_options io = {ZINF_ENGINE_AUTO, 4096, 8};
    CHECK_MESSAGE(zinf_storage_open(directory, 0, plan.machine.arena_bytes[ZINF_TIER_NVME], &io,
                                    &m->storage, warning, &m->err) == ZINF_OK, "%s",
                  m->err.text);
    const zinf_executor_options options = {.storage = m->storage, .serial = serial,
                                           .delay_seed = delay_seed, .trace = !without_trace};
    CHECK_MESSAGE(zinf_executor_open(&m->plan, &options, &m->executor, &m->err) == ZINF_OK,
                  "%s", m->err.text);
    m->env.batch = fill_tokens;
}

static void run(machine *m, zinf_program_kind program)
{
    CHECK_MESSAGE(zinf_executor_run(m->executor, program, &m->env, &m->err) == ZINF_OK, "%s",
                  m->err.text);
}

static void stop(machine *m)
{
    zinf_executor_close(m->executor);
    zinf_storage_close(m->storage);
    zinf_plan_free(&m->plan);
}

/* Everything the three steps left in memory. */
static void remember(machine *m, char **ret_bytes)
{
    char *bytes = malloc(2 << 20);

    memcpy(bytes, zinf_executor_arena(m->executor, ZINF_TIER_DEVICE), 1 << 20);
    memcpy(bytes + (1 << 20), zinf_executor_arena(m->executor, ZINF_TIER_HOST), 1 << 20);
    *ret_bytes = bytes;
}

static void random_delays_change_nothing(void)
{
    char *expected, *found;
    machine m;
    double norm;

    start(&m, builder_pipe(), true, 0);
    run(&m, ZINF_PROGRAM_INIT);
    for (int i = 0; i < 3; i++)
        run(&m, ZINF_PROGRAM_STEP);
    norm = m.env.norm;
    CHECK(norm > 0);
    remember(&m, &expected);
    stop(&m);
    for (uint64_t seed = 0; seed < 12; seed++) {
        start(&m, builder_pipe(), false, seed);
        run(&m, ZINF_PROGRAM_INIT);
        for (int i = 0; i < 3; i++)
            run(&m, ZINF_PROGRAM_STEP);
        CHECK(m.env.norm == norm && m.env.factor < 1 && !m.env.skip);
        remember(&m, &found);
        CHECK_MESSAGE(memcmp(expected, found, 2 << 20) == 0, "seed %d", (int)seed);
        free(found);
        stop(&m);
    }
    free(expected);
}

static void the_loop_sums_its_tensor(void)
{
    static float w[PIPE_ITERATIONS * PIPE_FLOATS];
    machine m;

    start(&m, builder_pipe(), false, 0);
    run(&m, ZINF_PROGRAM_INIT);
    run(&m, ZINF_PROGRAM_STEP);
    zinf_initial_values(&m.plan.tensors[0], 0, m.plan.job.seed, 0,
                        PIPE_ITERATIONS * PIPE_FLOATS, 1, w);
    const float *back = (float *)((char *)zinf_executor_arena(m.executor, ZINF_TIER_HOST) +
                                  PIPE_BACK);
    for (int k = 0; k < PIPE_FLOATS; k++) {
        float sum = 0;
        for (int i = 0; i < PIPE_ITERATIONS; i++) {
            sum += w[i * PIPE_FLOATS + k];
            CHECK(back[i * PIPE_FLOATS + k] == sum);
        }
    }
    stop(&m);
}

static void every_instance_is_traced_in_order(void)
{
    machine m;
    uint64_t n;

    start(&m, builder_pipe(), false, 3);
    run(&m, ZINF_PROGRAM_INIT);
    run(&m, ZINF_PROGRAM_STEP);
    const zinf_trace_entry *trace = zinf_executor_trace(m.executor, ZINF_QUEUE_READ, &n);
    CHECK(n == PIPE_ITERATIONS);
    for (uint64_t i = 0; i < n; i++) {
        CHECK(trace[i].iteration == i && trace[i].end_ns >= trace[i].start_ns);
        CHECK(trace[i].end_ns <= zinf_executor_wall_ns(m.executor));
    }
    CHECK(zinf_executor_trace(m.executor, ZINF_QUEUE_COMPUTE, &n) && n == 19);
    CHECK(zinf_executor_busy_ns(m.executor, ZINF_QUEUE_READ) > 0);
    stop(&m);
}

/* The clock is read for the times of queues anyway. With --trace an instruction writes an entry of
 * 24 bytes more, one after the other into a table made at load: a cache miss (0.1 us) every third.
 * The quickstart's instructions take 460 us on the average, of which 2 % are 9 us. That nothing is
 * allocated then tests/memory/allocations.c shows, which traces. */
static void tracing_writes_one_entry_an_instruction_and_reads_no_clock(void)
{
    int readings[2];
    uint64_t n_entries[2] = {0}, n, n_instrs = 0;

    for (int traced = 0; traced < 2; traced++) {
        machine m;
        without_trace = !traced;
        start(&m, builder_pipe(), true, 0);
        without_trace = false;
        run(&m, ZINF_PROGRAM_INIT);
        const int before = atomic_load(&n_clock_readings);
        run(&m, ZINF_PROGRAM_STEP);
        readings[traced] = atomic_load(&n_clock_readings) - before;
        for (unsigned q = 0; q < ZINF_N_QUEUES; q++)
            n_entries[traced] += zinf_executor_trace(m.executor, (zinf_queue)q, &n) ? n : 0;
        const zinf_program *step = &m.plan.programs[ZINF_PROGRAM_STEP];
        n_instrs = 0;
        for (uint32_t i = 0; i < step->n_segments; i++) {
            const zinf_segment *segment = &m.plan.segments[step->first_segment + i];
            n_instrs += segment->count * segment->n_instrs;
        }
        stop(&m);
    }
    CHECK_MESSAGE(readings[0] == readings[1], "%d readings without, %d with", readings[0],
                  readings[1]);
    CHECK(readings[1] > 0 && n_entries[0] == 0 && n_entries[1] == n_instrs);
    CHECK(sizeof(zinf_trace_entry) <= 32);
}

static void an_error_in_one_queue_stops_all(void)
{
    for (int serial = 0; serial < 2; serial++) {
        machine m;
        start(&m, builder_pipe(), serial, 0);
        run(&m, ZINF_PROGRAM_INIT);
        m.env.batch_context = &m;
        m.env.step = 41;
        CHECK(zinf_executor_run(m.executor, ZINF_PROGRAM_STEP, &m.env, &m.err) ==
              ZINF_BAD_INPUT);
        CHECK_MESSAGE(strstr(m.err.text, "the data ran out") && strstr(m.err.text, "step 42") &&
                      strstr(m.err.text, "\"tokens\""), "%s", m.err.text);
        m.err.status = ZINF_OK; /* and it stays stopped */
        m.env.batch_context = NULL;
        CHECK(zinf_executor_run(m.executor, ZINF_PROGRAM_STEP, &m.env, &m.err) ==
              ZINF_BAD_INPUT);
        stop(&m);
    }
}

static void a_changed_file_is_noticed(void)
{
    machine m;
    static const char junk[512] = "junk";

    start(&m, builder_pipe(), false, 0);
    run(&m, ZINF_PROGRAM_INIT);
    const int fd = open(zinf_storage_path(m.storage), O_WRONLY);
    CHECK(fd >= 0 && pwrite(fd, junk, sizeof junk, 3 * 4096) == sizeof junk);
    fsync(fd);
    close(fd);
    CHECK(zinf_executor_run(m.executor, ZINF_PROGRAM_STEP, &m.env, &m.err) == ZINF_MACHINE);
    CHECK_MESSAGE(strstr(m.err.text, "offset 12288") && strstr(m.err.text, "u read"), "%s",
                  m.err.text);
    stop(&m);
}

static void a_truncated_file_ends_the_run(void)
{
    machine m;

    start(&m, builder_pipe(), false, 0);
    run(&m, ZINF_PROGRAM_INIT);
    CHECK(truncate(zinf_storage_path(m.storage), 2 * 4096) == 0);
    CHECK(zinf_executor_run(m.executor, ZINF_PROGRAM_STEP, &m.env, &m.err) == ZINF_MACHINE);
    stop(&m);
}

static void initial_values_do_not_depend_on_tiles(void)
{
    static float whole[5 * 333], tiled[5 * 333];
    zinf_tensor tensor = {.rows = 5, .cols = 333, .init = ZINF_INIT_NORMAL, .init_std = 0.02};
    double sum = 0, squares = 0;

    zinf_initial_values(&tensor, 3, 99, 0, 5 * 333, 2, whole);
    for (uint64_t first = 0, n = 1; first < 5 * 333; first += n, n = n % 37 + 1)
        zinf_initial_values(&tensor, 3, 99, first, first + n > 5 * 333 ? 5 * 333 - first : n, 1,
                            tiled + first);
    CHECK(memcmp(whole, tiled, sizeof whole) == 0);
    for (int i = 0; i < 5 * 333; i++) {
        sum += whole[i];
        squares += (double)whole[i] * whole[i];
    }
    /* mean and variance of 1665 normals: 5 standard errors */
    CHECK(sum / 1665 < 5 * 0.02 / 40.8 && sum / 1665 > -5 * 0.02 / 40.8);
    CHECK(squares / 1665 / 4e-4 < 1.18 && squares / 1665 / 4e-4 > 0.82);
    zinf_initial_values(&tensor, 4, 99, 0, 5 * 333, 2, tiled);
    CHECK(memcmp(whole, tiled, sizeof whole) != 0);
}

/* h [6][8] and a vocabulary of 12 in one or two tiles, in chunks of `chunk` tokens. */
enum { CN = 6, CC = 8, CV = 12 };
static const uint64_t c_h = 0, c_w = 4096, c_tokens = 8192, c_stats = 12288, c_dh = 16384,
                      c_dw = 20480, c_logits = 24576, c_dlogits = 28672, c_scratch = 65536;

static void classifier_slots(zinf_plan *plan, uint64_t first, uint64_t rows, uint64_t chunk,
                             bool forward)
{
    builder_matrix(plan, ZINF_TIER_DEVICE, c_h, CN, CC, ZINF_F32, 0);
    builder_matrix(plan, ZINF_TIER_DEVICE, c_w + first * CC * 4, rows, CC, ZINF_F32, 0);
    builder_matrix(plan, ZINF_TIER_DEVICE, c_tokens, 2, 4, ZINF_I32, 0);
    builder_matrix(plan, ZINF_TIER_DEVICE, c_stats, CN, 3, ZINF_F32, 0);
    if (!forward) {
        builder_matrix(plan, ZINF_TIER_DEVICE, c_dh, CN, CC, ZINF_F32, 0);
        builder_matrix(plan, ZINF_TIER_DEVICE, c_dw + first * CC * 4, rows, CC, ZINF_F32, 0);
    }
    builder_matrix(plan, ZINF_TIER_DEVICE, c_logits, chunk, rows, ZINF_F32, 0);
    if (!forward)
        builder_matrix(plan, ZINF_TIER_DEVICE, c_dlogits, chunk, rows, ZINF_F32, 0);
    builder_floats(plan, ZINF_TIER_DEVICE, c_scratch,
                   zinf_gemm_scratch_bytes(chunk, rows, CC, plan->decisions.n_threads) / 4, 0);
    zinf_instr *instr = &plan->instrs[plan->n_instrs - 1];
    instr->attr[0] = first;
    instr->attr[1] = chunk;
    instr->attr[2] = CN;
}

static zinf_plan classifier_plan(unsigned n_tiles, uint64_t chunk)
{
    zinf_plan plan = builder_new();
    const uint64_t rows = CV / n_tiles;

    plan.model.vocab = CV;
    plan.model.hidden = CC;
    plan.job.sequence = 3;
    plan.job.global_batch = 2;
    plan.machine.unified = 1;
    builder_program(&plan, ZINF_PROGRAM_STEP);
    builder_segment(&plan, ZINF_PROGRAM_STEP, 1);
    const uint32_t batch = builder_instr(&plan, ZINF_OP_BATCH, ZINF_QUEUE_UPDATE, "tokens");
    builder_matrix(&plan, ZINF_TIER_DEVICE, c_tokens, 2, 4, ZINF_I32, 0);
    if (n_tiles == 1) {
        builder_instr(&plan, ZINF_OP_CLASSIFIER, ZINF_QUEUE_COMPUTE, "classifier");
        classifier_slots(&plan, 0, CV, chunk, false);
        builder_wait(&plan, batch, 0);
    }
    for (unsigned t = 0; n_tiles > 1 && t < n_tiles; t++) {
        builder_instr(&plan, ZINF_OP_CLASSIFIER_FORWARD, ZINF_QUEUE_COMPUTE, "forward");
        classifier_slots(&plan, t * rows, rows, chunk, true);
        plan.instrs[plan.n_instrs - 1].flags = t > 0;
        builder_wait(&plan, batch, 0);
    }
    for (unsigned t = 0; n_tiles > 1 && t < n_tiles; t++) {
        builder_instr(&plan, ZINF_OP_CLASSIFIER_BACKWARD, ZINF_QUEUE_COMPUTE, "backward");
        classifier_slots(&plan, t * rows, rows, chunk, false);
        plan.instrs[plan.n_instrs - 1].attr[3] = t > 0;
        plan.instrs[plan.n_instrs - 1].flags = t > 0;
    }
    builder_instr(&plan, ZINF_OP_LOSS, ZINF_QUEUE_COMPUTE, "loss");
    builder_matrix(&plan, ZINF_TIER_DEVICE, c_stats, CN, 3, ZINF_F32, 0);
    builder_scalars(&plan, ZINF_SCALAR_LOSS, 1);
    plan.instrs[plan.n_instrs - 1].attr[0] = 10;
    return plan;
}

static double classify(unsigned n_tiles, uint64_t chunk, float ret_dh[CN * CC],
                       float ret_dw[CV * CC])
{
    machine m;

    start(&m, classifier_plan(n_tiles, chunk), false, 0);
    char *device = zinf_executor_arena(m.executor, ZINF_TIER_DEVICE);
    memset(device, 0xff, 65536); /* NaN where nothing was written */
    for (int i = 0; i < CN * CC; i++)
        ((float *)(device + c_h))[i] = (float)((i * 37 % 19) - 9) / 8;
    for (int i = 0; i < CV * CC; i++)
        ((float *)(device + c_w))[i] = (float)((i * 53 % 23) - 11) / 8;
    run(&m, ZINF_PROGRAM_STEP);
    memcpy(ret_dh, device + c_dh, CN * CC * 4);
    memcpy(ret_dw, device + c_dw, CV * CC * 4);
    const double loss = m.env.loss;
    stop(&m);
    return loss;
}

static void classifier_agrees_for_every_chunk_and_tile(void)
{
    static float dh[CN * CC], dw[CV * CC], other_dh[CN * CC], other_dw[CV * CC];
    static const uint64_t chunks[] = {1, 3, 4, 6, 9};
    const double loss = classify(1, CN, dh, dw);

    CHECK(loss > 0.1 && loss < 100);
    for (unsigned tiles = 1; tiles <= 3; tiles++)
        for (size_t c = 0; c < sizeof chunks / sizeof *chunks; c++) {
            const double again = classify(tiles, chunks[c], other_dh, other_dw);
            /* sums of at most 12 terms of size <= 2, fp32: 12 * 2 * 2^-23 < 3e-6 */
            CHECK(again - loss < 3e-6 && loss - again < 3e-6);
            for (int i = 0; i < CN * CC; i++)
                CHECK_MESSAGE(dh[i] - other_dh[i] < 3e-6 && other_dh[i] - dh[i] < 3e-6,
                              "dh[%d] %g %g, tiles %u, chunk %d", i, dh[i], other_dh[i], tiles,
                              (int)chunks[c]);
            for (int i = 0; i < CV * CC; i++)
                CHECK_MESSAGE(dw[i] - other_dw[i] < 3e-6 && other_dw[i] - dw[i] < 3e-6,
                              "dw[%d] %g %g, tiles %u, chunk %d", i, dw[i], other_dw[i], tiles,
                              (int)chunks[c]);
        }
}

/* grad, master, m, v of 8 elements at 0, 64, 128, 192; the bf16 parameters at 256. */
static double seconds_used(void)
{
    struct rusage used;

    getrusage(RUSAGE_SELF, &used);
    return (double)used.ru_utime.tv_sec + 1e-6 * (double)used.ru_utime.tv_usec;
}

/* Each instruction in a segment of its own, all wait for the first: an attack on who walks back. */
static void many_segments_are_loaded_in_time(void)
{
    enum { N = 60000 };
    zinf_plan plan = builder_new();
    machine m;

    plan.machine.unified = 1;
    plan.segments = realloc(plan.segments, N * sizeof *plan.segments);
    plan.instrs = realloc(plan.instrs, N * sizeof *plan.instrs);
    plan.operands = realloc(plan.operands, N * sizeof *plan.operands);
    plan.waits = realloc(plan.waits, N * sizeof *plan.waits);
    plan.strings = realloc(plan.strings, 64 + N * sizeof "zero");
    CHECK(plan.segments && plan.instrs && plan.operands && plan.waits && plan.strings);
    builder_program(&plan, ZINF_PROGRAM_STEP);
    for (uint32_t i = 0; i < N; i++) {
        builder_segment(&plan, ZINF_PROGRAM_STEP, 1);
        builder_instr(&plan, ZINF_OP_ZERO, i ? ZINF_QUEUE_UPDATE : ZINF_QUEUE_COMPUTE, "zero");
        builder_floats(&plan, ZINF_TIER_DEVICE, 64 * (i > 0), 16, 0);
        if (i > 0)
            builder_wait(&plan, 0, 0);
    }
    const double before = seconds_used();
    start(&m, plan, false, 0);
    const double loading = seconds_used() - before;
    run(&m, ZINF_PROGRAM_STEP);
    stop(&m);
    CHECK_MESSAGE(loading < 1, "%g s", loading);
}

static zinf_plan update_plan(void)
{
    zinf_plan plan = builder_new();

    plan.machine.unified = 1;
    plan.job.precision = ZINF_BF16;
    plan.job.weight_decay = 0.5;
    builder_tensor(&plan, "w", 2, 4, ZINF_INIT_ZERO, 0);
    builder_unit(&plan, "u", 0, 0, 2);
    builder_program(&plan, ZINF_PROGRAM_STEP);
    builder_segment(&plan, ZINF_PROGRAM_STEP, 1);
    builder_instr(&plan, ZINF_OP_SUM_OF_SQUARES, ZINF_QUEUE_UPDATE, "norm");
    builder_floats(&plan, ZINF_TIER_DEVICE, 0, 8, 0);
    builder_scalars(&plan, ZINF_SCALAR_PARTIALS, 1);
    builder_instr(&plan, ZINF_OP_CLIP, ZINF_QUEUE_UPDATE, "clip");
    builder_scalars(&plan, ZINF_SCALAR_PARTIALS, 1);
    builder_scalars(&plan, ZINF_SCALAR_NORM, ZINF_N_UPDATE_SCALARS);
    builder_instr(&plan, ZINF_OP_ADAM, ZINF_QUEUE_UPDATE, "adam");
    plan.instrs[plan.n_instrs - 1].unit = 0;
    plan.instrs[plan.n_instrs - 1].attr[0] = plan.units[0].decays = 1;
    for (uint64_t i = 0; i < 4; i++)
        builder_floats(&plan, ZINF_TIER_DEVICE, 64 * i, 8, 0);
    builder_matrix(&plan, ZINF_TIER_DEVICE, 256, 1, 8, ZINF_BF16, 0);
    builder_scalars(&plan, ZINF_SCALAR_NORM, ZINF_N_UPDATE_SCALARS);
    return plan;
}

static void a_gradient_is_clipped_and_applied_once(void)
{
    machine m;

    start(&m, update_plan(), false, 0);
    float *grad = zinf_executor_arena(m.executor, ZINF_TIER_DEVICE), *master = grad + 16;
    grad[0] = 3;
    grad[1] = -4; /* norm 5, clipped to 1: 0.6 and -0.8 */
    for (int i = 0; i < 8; i++)
        master[i] = 1;
    m.env.lr = 0.125;
    run(&m, ZINF_PROGRAM_STEP);
    CHECK(m.env.norm == 5 && m.env.factor == 1 / (5 + 1e-6) && !m.env.skip);
    /* first step: m / bias1 = g, v / bias2 = g^2, so lr * sign(g), after the decay of 1/16 */
    CHECK(master[0] - (0.9375 - 0.125) < 1e-6 && (0.9375 - 0.125) - master[0] < 1e-6);
    CHECK(master[1] - (0.9375 + 0.125) < 1e-6 && (0.9375 + 0.125) - master[1] < 1e-6);
    CHECK(master[2] == 0.9375f);
    CHECK(master[16] - 0.06f < 1e-7f && 0.06f - master[16] < 1e-7f); /* m = 0.1 * 0.6 */
    CHECK(((uint16_t *)(grad + 64))[2] == 0x3f70);                   /* bf16 of 0.9375 */
    stop(&m);
}

static void a_gradient_that_is_not_finite_changes_nothing(void)
{
    for (int k = 0; k < 2; k++) {
        machine m;
        float before[24];
        start(&m, update_plan(), false, 0);
        float *grad = zinf_executor_arena(m.executor, ZINF_TIER_DEVICE), *master = grad + 16;
        for (int i = 0; i < 48; i++)
            master[i] = (float)i;
        memcpy(before, master, sizeof before);
        memset(grad + 64, 0xff, 16);
        grad[5] = k ? 1.0f / 0.0f : 0.0f / 0.0f;
        m.env.lr = 0.1;
        run(&m, ZINF_PROGRAM_STEP);
        CHECK(m.env.skip && memcmp(before, master, sizeof before) == 0);
        CHECK(((uint16_t *)(grad + 64))[1] == 0x3f80); /* the parameters are written all the same */
        grad[5] = 0;
        run(&m, ZINF_PROGRAM_STEP);
        CHECK(!m.env.skip && memcmp(before, master, sizeof before) != 0);
        stop(&m);
    }
}

int main(void)
{
    const char *base = getenv("TMPDIR");

    snprintf(directory, sizeof directory, "%s/zinf-run-XXXXXX", base ? base : "/tmp");
    if (!mkdtemp(directory))
        return 1;
    RUN(the_loop_sums_its_tensor);
    RUN(random_delays_change_nothing);
    RUN(every_instance_is_traced_in_order);
    RUN(tracing_writes_one_entry_an_instruction_and_reads_no_clock);
    RUN(an_error_in_one_queue_stops_all);
    RUN(a_changed_file_is_noticed);
    RUN(a_truncated_file_ends_the_run);
    RUN(initial_values_do_not_depend_on_tiles);
    RUN(classifier_agrees_for_every_chunk_and_tile);
    RUN(many_segments_are_loaded_in_time);
    RUN(a_gradient_is_clipped_and_applied_once);
    RUN(a_gradient_that_is_not_finite_changes_nothing);
    char command[300];
    snprintf(command, sizeof command, "rm -rf '%s'", directory);
    return system(command) || check_finish();
}
