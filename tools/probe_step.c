/* tools/probe_step.c - what operators reach in the middle of a training step: plans of two small
 * models, one of each family, are made and run as zinf-plan and zinf-run would, in both precisions,
 * and their instructions timed. Measured alone, operators are faster: their operands have been
 * used just before, or come in the order in which the processor expects them. */
#include "tools/probe.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "planner/cost.h"
#include "planner/search.h"
#include "runtime/executor.h"
#include "runtime/opcodes.h"

/* Behind the rates of a step those of the host. */
enum { RATE_adam = ZINF_N_STEP_RATES, RATE_sum_of_squares, RATE_accumulate, N_RATES };

static const struct rate_row {
    const char *name, *unit;
    double scale;
} rows[N_RATES] = {
#define AS_FLOPS(name, help) [ZINF_RATE_##name] = {#name, "GFLOP/s", 1e9},
#define AS_TOKENS(name, help) [ZINF_RATE_##name] = {#name, "tokens", 1},
#define AS_BYTES(name, help) [ZINF_RATE_##name] = {#name, "GB/s", 1e9},
    ZINF_STEP_RATES(AS_FLOPS, AS_TOKENS, AS_BYTES)
    [RATE_adam] = {"adam", "Gparam/s", 1e9},
    [RATE_sum_of_squares] = {"sum_of_squares", "GB/s", 1e9},
    [RATE_accumulate] = {"accumulate", "GB/s", 1e9},
};

/* Two sequences, since the rate of attention depends on them. The rest is the same: 2048 tokens
 * and matrices of 768 x 768 and more. TILED is for its products alone, which move many
 * bytes, STORED for its update, which reads and writes all states. */
static const struct small_model {
    const char *family;
    int sequence, batch, micro_batch, ffn, tiles;
    bool stored;
} models[] = {{"gpt2", 256, 8, 8, 3072, 1, false}, {"llama", 1024, 2, 2, 2048, 1, false},
              {"gpt2", 256, 8, 2, 3072, 2, false}, {"gpt2", 256, 8, 8, 3072, 1, true}};
enum { N_MODELS = 2, TILED = N_MODELS, STORED, HIDDEN = 768, HEADS = 12, MOST_STEPS = 8,
       LEAST_STEPS = 2, MOST_LIKE = 256 };

/* So large that states do not stay in the caches, smaller where that takes long or memory is
 * short. */
static const struct size {
    int layers, vocab;
} sizes[] = {{6, 16384}, {2, 8192}, {1, 8192}};
enum { N_SIZES = sizeof sizes / sizeof *sizes };
static const double ENOUGH_S = 2; /* of a model's steps */

/* Seconds of each instruction of the program, step by step. */
typedef struct samples {
    double (*seconds)[MOST_STEPS]; /* [n_instrs] */
    double update[MOST_STEPS];     /* time that its transfers take alone, to its time */
    double core[MOST_STEPS];       /* bytes that a second of a core transfers */
    int n;                         /* steps */
} samples;

static int rate_of(const zinf_plan *plan, const zinf_instr *instr)
{
    switch (instr->opcode) {
    case ZINF_OP_ADAM:
        return RATE_adam;
    case ZINF_OP_SUM_OF_SQUARES:
        return RATE_sum_of_squares;
    case ZINF_OP_ACCUMULATE:
        return RATE_accumulate;
    default:
        return zinf_step_rate_of(plan, instr);
    }
}

static double work_of(const zinf_plan *plan, const zinf_instr *instr, int rate)
{
    if (rate == RATE_adam)
        return (double)plan->operands[instr->operand0].cols;
    return rate <= ZINF_RATE_attention ? zinf_instr_flops(plan, instr)
                                       : zinf_instr_bytes(plan, instr);
}

/* Any tokens do. */
static zinf_status random_tokens(void *context, uint64_t n, uint64_t cols, int32_t *ret_tokens,
                                 zinf_error *err)
{
    const zinf_plan *plan = context;
    uint32_t state = 1;

    (void)err;
    for (uint64_t i = 0; i < n * cols; i++) {
        state = state * 1664525u + 1013904223u;
        ret_tokens[i] = (int32_t)((state >> 8) % plan->model.vocab);
    }
    return ZINF_OK;
}

static int compare_starts(const void *a, const void *b)
{
    const zinf_trace_entry *x = a, *y = b;

    return x->start_ns < y->start_ns ? -1 : x->start_ns > y->start_ns;
}

/* Seconds in which anything was read or written after `begin_ns`; ret_bytes: by queue. */
static double transfers_s(const zinf_plan *plan, const zinf_executor *executor, uint64_t begin_ns,
                          double ret_bytes[ZINF_N_QUEUES])
{
    uint64_t n_reads, n_writes, n = 0, end_ns = begin_ns, busy_ns = 0;
    const zinf_trace_entry *reads = zinf_executor_trace(executor, ZINF_QUEUE_READ, &n_reads);
    const zinf_trace_entry *writes = zinf_executor_trace(executor, ZINF_QUEUE_WRITE, &n_writes);
    zinf_trace_entry *all = calloc(n_reads + n_writes + 1, sizeof *all);

    if (!all)
        return 0;
    for (uint64_t i = 0; i < n_reads + n_writes; i++) {
        const zinf_trace_entry *e = i < n_reads ? &reads[i] : &writes[i - n_reads];
        const zinf_instr *instr = &plan->instrs[e->instr];
        if (e->end_ns <= begin_ns)
            continue;
        const uint64_t from = e->start_ns > begin_ns ? e->start_ns : begin_ns;
        ret_bytes[instr->queue] += (double)plan->operands[instr->operand0].bytes *
                                   (double)(e->end_ns - from) /
                                   (double)(e->end_ns - e->start_ns + 1);
        all[n++] = *e;
    }
    qsort(all, n, sizeof *all, compare_starts);
    for (uint64_t i = 0; i < n; i++) {
        const uint64_t from = all[i].start_ns > end_ns ? all[i].start_ns : end_ns;
        busy_ns += all[i].end_ns > from ? all[i].end_ns - from : 0;
        end_ns = all[i].end_ns > end_ns ? all[i].end_ns : end_ns;
    }
    free(all);
    return 1e-9 * (double)busy_ns;
}

/* Of what was read and written after the gradients' norm was known: the time that it takes
 * alone, to the time with any of it in flight. */
static double update_share(const zinf_plan *plan, const zinf_executor *executor,
                           const probe_nvme *nvme)
{
    double bytes[ZINF_N_QUEUES] = {0};
    uint64_t begin_ns = 0, n;

    for (unsigned q = 0; q < ZINF_N_QUEUES; q++) {
        const zinf_trace_entry *entries = zinf_executor_trace(executor, (zinf_queue)q, &n);
        for (uint64_t i = 0; i < n; i++)
            if (plan->instrs[entries[i].instr].opcode == ZINF_OP_CLIP)
                begin_ns = entries[i].end_ns;
    }
    const double busy_s = transfers_s(plan, executor, begin_ns, bytes);
    const double read_s = bytes[ZINF_QUEUE_READ] / nvme->read;
    const double write_s = bytes[ZINF_QUEUE_WRITE] / nvme->write;
    const double most_s = read_s > write_s ? read_s : write_s;
    return busy_s > 0 ? (nvme->overlap ? most_s : read_s + write_s) / busy_s : 0;
}

/* Bytes that a second of a core moved in the whole step. */
static double core_rate(const zinf_plan *plan, const zinf_executor *executor)
{
    double bytes[ZINF_N_QUEUES] = {0};
    const uint64_t cpu_ns = zinf_executor_cpu_ns(executor, ZINF_QUEUE_READ) +
                            zinf_executor_cpu_ns(executor, ZINF_QUEUE_WRITE);

    transfers_s(plan, executor, 0, bytes);
    return cpu_ns ? 1e9 * (bytes[ZINF_QUEUE_READ] + bytes[ZINF_QUEUE_WRITE]) / (double)cpu_ns : 0;
}

static void add_step(const zinf_executor *executor, samples *found)
{
    for (unsigned q = 0; q < ZINF_N_QUEUES; q++) {
        uint64_t n;
        const zinf_trace_entry *entries = zinf_executor_trace(executor, (zinf_queue)q, &n);
        for (uint64_t i = 0; i < n; i++)
            found->seconds[entries[i].instr][found->n] =
                1e-9 * (double)(entries[i].end_ns - entries[i].start_ns);
    }
    found->n++;
}

/* nvme: NULL for a plan that stores nothing. */
static zinf_status train(const probe_options *options, const zinf_plan *plan,
                         const probe_nvme *nvme, samples *found, zinf_error *err)
{
    zinf_executor_options how = {.trace = true};
    char warning[256];
    zinf_executor *executor = NULL;
    zinf_env env = {.batch = random_tokens, .batch_context = (void *)(uintptr_t)plan, .lr = 1e-4};
    const int most = options->quick ? LEAST_STEPS : MOST_STEPS;

    if (nvme) {
        const zinf_storage_options io = {ZINF_ENGINE_AUTO, nvme->block_bytes, nvme->depth};
        if (zinf_storage_open(nvme->directory, 0, plan->machine.arena_bytes[ZINF_TIER_NVME], &io,
                              &how.storage, warning, err))
            return err->status;
    }
    if (!zinf_executor_open(plan, &how, &executor, err))
        zinf_executor_run(executor, ZINF_PROGRAM_INIT, &env, err);
    for (double begin = 0; !err->status && found->n < most; env.step++) {
        if (zinf_executor_run(executor, ZINF_PROGRAM_STEP, &env, err))
            break;
        if (env.step == 0) /* everything is touched for the first time */
            begin = probe_now();
        else if (nvme) {
            found->core[found->n] = core_rate(plan, executor);
            found->update[found->n++] = update_share(plan, executor, nvme);
        }
        else
            add_step(executor, found);
        if (found->n >= (nvme ? 2 * LEAST_STEPS : LEAST_STEPS) && probe_now() - begin > ENOUGH_S)
            break;
    }
    zinf_executor_close(executor);
    zinf_storage_close(how.storage);
    return err->status;
}

static zinf_status plan_blocks(const probe_options *options, uint64_t available_bytes,
                               const probe_compute *compute, const probe_nvme *nvme,
                               const struct small_model *small, const struct size *size,
                               zinf_dtype precision, zinf_search_result *ret, zinf_error *err)
{
    /* after backward, so that an update is beside nothing, and behind the norm */
    static const char *const pins[2][5] = {
        {"tier.param=device", "tier.grad=device", "tier.optimizer=device",
         "checkpoint_interval=none", "optimizer_time=after"},
        {"tier.param=nvme", "tier.grad=nvme", "tier.optimizer=nvme", "checkpoint_interval=1",
         "optimizer_time=after"}};
    const int part = options->quick ? 4 : 1;
    char model_text[600], cluster_text[1200], threads[32], tiles[32],
         micro_batch[32];
    zinf_model model;
    zinf_cluster cluster;
    zinf_settings settings;

    snprintf(model_text, sizeof model_text,
             "model: {family: %s, layers: %d, hidden: %d, heads: %d, ffn: %d, vocab: %d,"
             " context: %d}\ntraining: {sequence: %d, global_batch: %d, precision: %s}\n",
             small->family, size->layers, HIDDEN / part, HEADS / part, small->ffn / part,
             size->vocab / part, small->sequence / part, small->sequence / part, small->batch,
             precision == ZINF_F32 ? "fp32" : "bf16");
    int n = snprintf(cluster_text, sizeof cluster_text,
                     "cluster:\n  device: {kind: cpu, peak: {bf16: %.0f FLOP/s, fp32: %.0f "
                     "FLOP/s}}\n  host: {memory: %" PRIu64 ", cores: %d, bandwidth: %.0f B/s}\n",
                     compute->peak_bf16, compute->peak_f32, available_bytes, options->n_threads,
                     compute->bandwidth);
    if (small->stored)
        snprintf(cluster_text + n, sizeof cluster_text - (size_t)n,
                 "  nvme: {paths: [\"%s\"], capacity: %" PRIu64 ", read: %.0f B/s, write: %.0f "
                 "B/s, block: %" PRIu64 ", depth: %" PRIu32 ", overlap: %s}\n", nvme->directory,
                 nvme->capacity_bytes, nvme->read, nvme->write, nvme->block_bytes, nvme->depth,
                 nvme->overlap ? "true" : "false");
    snprintf(threads, sizeof threads, "threads=%d", options->n_threads);
    snprintf(tiles, sizeof tiles, "tiles=%d", small->tiles);
    snprintf(micro_batch, sizeof micro_batch, "micro_batch=%d", small->micro_batch);
    zinf_settings_init(&settings);
    if (zinf_model_parse("the model to measure", model_text, strlen(model_text), NULL, &model,
                         err) ||
        zinf_cluster_parse("this machine", cluster_text, strlen(cluster_text), &cluster, err) ||
        zinf_settings_set(&settings, threads, err) || zinf_settings_set(&settings, tiles, err) ||
        zinf_settings_set(&settings, micro_batch, err))
        return err->status;
    for (int i = 0; i < 5; i++)
        if (zinf_settings_set(&settings, pins[small->stored][i], err))
            return err->status;
    return zinf_search(&model, &cluster, &settings, 1, ret, err);
}

/* The largest of the sizes that fits. */
static zinf_status make_plan(const probe_options *options, uint64_t available_bytes,
                             const probe_compute *compute, const probe_nvme *nvme,
                             const struct small_model *small, zinf_dtype precision,
                             zinf_search_result *ret, zinf_error *err)
{
    for (int i = options->quick ? N_SIZES - 1 : precision == ZINF_F32;; i++) {
        *err = (zinf_error){0};
        plan_blocks(options, available_bytes, compute, nvme, small, &sizes[i], precision, ret,
                    err);
        if (err->status != ZINF_DOES_NOT_FIT || i + 1 == N_SIZES)
            return err->status;
        zinf_search_free(ret);
        *ret = (zinf_search_result){0};
    }
}

/* Rates of a sequence s are r(s) = rate s / (s + half): from two of them. A longer one that is not
 * faster is noise, or no matter. */
static void fit_attention(double rate0, double rate1, int part, double joined[N_RATES])
{
    const double s0 = models[0].sequence / part, s1 = models[1].sequence / part;
    const double slope = (1 / rate0 - 1 / rate1) / (1 / s0 - 1 / s1); /* half / rate */
    const double rate = 1 / (1 / rate1 - slope / s1);

    if (slope > 0 && rate > 0) {
        joined[ZINF_RATE_attention] = rate;
        joined[ZINF_RATE_attention_half] = slope * rate;
    }
}

/* The mean time of the models that have it. */
static void join(double rates[N_MODELS][N_RATES], double ret_joined[N_RATES])
{
    for (int r = 0; r < N_RATES; r++) {
        double slowness = 0;
        int n = 0;
        for (int m = 0; m < N_MODELS; m++)
            if (rates[m][r] > 0) {
                slowness += 1 / rates[m][r];
                n++;
            }
        ret_joined[r] = n ? n / slowness : 0;
    }
}

/* Median over the steps and the instructions that do the same. */
static double median_s(const zinf_plan *plan, const samples *found, const zinf_instr *like)
{
    const int rate = rate_of(plan, like);
    double seconds[MOST_LIKE];
    int n = 0;

    for (uint32_t i = 0; i < plan->n_instrs; i++)
        for (int step = 0; step < found->n && n < MOST_LIKE; step++)
            if (found->seconds[i][step] > 0 && rate_of(plan, &plan->instrs[i]) == rate &&
                work_of(plan, &plan->instrs[i], rate) == work_of(plan, like, rate) &&
                zinf_instr_bytes(plan, &plan->instrs[i]) == zinf_instr_bytes(plan, like))
                seconds[n++] = found->seconds[i][step];
    return probe_summarise(seconds, n).median;
}

/* Rates of a model, 0: it has none. Work over time, each a median of several, so that a moment in
 * which the machine is slow counts little. Of TILED, where rates of usual products are known, what
 * its products move in the time that they take longer. */
static void sum_up(const zinf_plan *plan, const samples *found, const double *usual,
                   double ret_rates[N_RATES])
{
    double work[N_RATES] = {0}, seconds[N_RATES] = {0};

    for (uint32_t i = 0; i < plan->n_instrs; i++) {
        const zinf_instr *instr = &plan->instrs[i];
        const int rate = rate_of(plan, instr);
        if (rate < 0 || !(found->seconds[i][0] > 0)) /* of another program */
            continue;
        work[rate] += work_of(plan, instr, rate);
        seconds[rate] += median_s(plan, found, instr);
        if (usual && rate <= ZINF_RATE_weight_gradient_bias) {
            work[ZINF_RATE_product_memory] += zinf_product_excess(plan, instr);
            seconds[ZINF_RATE_product_memory] += median_s(plan, found, instr) -
                                            work_of(plan, instr, rate) / usual[rate];
        }
    }
    for (int r = 0; r < N_RATES; r++)
        ret_rates[r] = seconds[r] > 0 ? work[r] / seconds[r] : 0;
}

static zinf_status measure_model(const probe_options *options, uint64_t available_bytes,
                                 const probe_compute *compute, const struct small_model *small,
                                 zinf_dtype precision, const double *usual,
                                 double ret_rates[N_RATES], zinf_error *err)
{
    zinf_search_result made = {0};
    samples found = {0};

    if (!make_plan(options, available_bytes, compute, NULL, small, precision, &made, err)) {
        found.seconds = calloc(made.plan.n_instrs, sizeof *found.seconds);
        if (!found.seconds)
            zinf_fail(err, ZINF_MACHINE, "no memory for the times of a step");
        else if (!train(options, &made.plan, NULL, &found, err))
            sum_up(&made.plan, &found, usual, ret_rates);
    }
    free(found.seconds);
    zinf_search_free(&made);
    return err->status;
}

zinf_status probe_measure_step(const probe_options *options, uint64_t available_bytes,
                               const probe_compute *compute, probe_step *ret_step,
                               zinf_error *err)
{
    probe_step step = {0};

    for (int p = 0; p < 2; p++) { /* the last one's adam counts */
        const zinf_dtype precision = p == 0 ? ZINF_F32 : ZINF_BF16;
        zinf_step_rates *rates = p == 0 ? &step.f32 : &step.bf16;
        double found[N_MODELS + 1][N_RATES], joined[N_RATES];
        for (int m = 0; m < N_MODELS; m++)
            if (measure_model(options, available_bytes, compute, &models[m], precision, NULL,
                              found[m], err))
                return err->status;
        join(found, joined);
        if (precision == ZINF_BF16) { /* in fp32 a product is too slow to wait for memory */
            if (measure_model(options, available_bytes, compute, &models[TILED], precision,
                              joined, found[TILED], err))
                return err->status;
            if (found[TILED][ZINF_RATE_product_memory] < compute->bandwidth) /* else it is noise */
                joined[ZINF_RATE_product_memory] = found[TILED][ZINF_RATE_product_memory];
        }
        fit_attention(found[0][ZINF_RATE_attention], found[1][ZINF_RATE_attention],
                      options->quick ? 4 : 1, joined);
#define X(name, help) rates->name = joined[ZINF_RATE_##name];
        ZINF_STEP_RATES(X, X, X)
#undef X
        step.adam = joined[RATE_adam];
        step.sum_of_squares = joined[RATE_sum_of_squares];
        step.accumulate = joined[RATE_accumulate];
        fprintf(stderr, "in steps of small models, %s:\n", p == 0 ? "fp32" : "bf16");
        for (int r = 0; r < N_RATES; r++)
            if (joined[r] > 0)
                fprintf(stderr, "  %-34s %9.2f %s\n", rows[r].name, joined[r] / rows[r].scale,
                        rows[r].unit);
    }
    *ret_step = step;
    return ZINF_OK;
}

zinf_status probe_measure_update(const probe_options *options, uint64_t available_bytes,
                                 const probe_compute *compute, probe_nvme *nvme, zinf_error *err)
{
    zinf_search_result made = {0};
    samples found = {0};

    if (!make_plan(options, available_bytes, compute, nvme, &models[STORED], ZINF_BF16, &made,
                   err) &&
        !train(options, &made.plan, nvme, &found, err)) {
        const probe_rate share = probe_summarise(found.update, found.n);
        fprintf(stderr, "an update of states in storage reaches %.2f of its rates, spread %.1f %%"
                " (%d samples)\n", share.median, 100 * share.spread, share.n);
        nvme->read *= share.median;
        nvme->write *= share.median;
        nvme->core = probe_summarise(found.core, found.n).median;
        fprintf(stderr, "  %-34s %9.2f GB/s\n", "storage, moved by one core", nvme->core / 1e9);
    }
    zinf_search_free(&made);
    if (err->status == ZINF_DOES_NOT_FIT) /* a small disk: what was measured alone must do */
        *err = (zinf_error){0};
    return err->status;
}
