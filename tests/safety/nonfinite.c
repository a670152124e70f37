/* tests/safety/nonfinite.c - inf and NaN put into the output of every kernel of a training step,
 * on every tier: the update is left out, all states stay as they are to the bit, and training
 * goes on as if the step had not been. Real plans, real executor; a backend whose kernels are
 * wrapped.
 *
 * argv: zinf-plan. With ZINF_TEST_LONG set every value is put into every place, else one in turn
 * where the states are not on the device.
 */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/bf16.h"
#include "runtime/checker.h"
#include "runtime/executor.h"
#include "runtime/nonfinite.h"
#include "runtime/opcodes.h"
#include "tests/check.h"

/* ---- kernels that poison one element ---- */

#define SITES(X)                                                                                 \
    X(GEMM, 0) X(EMBEDDING, 0) X(NORM, 0) X(NORM_STATS, 1) X(ATTENTION, 0)                       \
    X(ATTENTION_LSE, 1) X(GELU, 0) X(NORM_BACKWARD, 0) X(NORM_WEIGHT, 0)                         \
    X(ATTENTION_BACKWARD, 0) X(GELU_BACKWARD, 0) X(COLUMN_SUM, 0) X(SOFTMAX_STATS, 0)            \
    X(SOFTMAX_BACKWARD, 0) X(LOSS, 0) X(ACCUMULATE, 0) X(EMBEDDING_BACKWARD, 0)                  \
    X(POSITION_BACKWARD, 0)
/* 1: statistics that a kernel keeps for its backward. An inf there cannot come from finite inputs,
 * and exp(x - inf) = 0 hides it; only NaN is injected, and only where nothing is recomputed. */
typedef enum site {
#define X(name, kept) name,
    SITES(X)
#undef X
    N_SITES
} site;
static const char *const site_names[] = {
#define X(name, kept) #name,
    SITES(X)
#undef X
};
static const bool site_kept[] = {
#define X(name, kept) kept,
    SITES(X)
#undef X
};

enum { VOCAB = 37 }; /* no linear has as many outputs, whole or in two tiles */
static zinf_kernels real;
static struct {
    long calls[N_SITES]; /* since they were last zeroed */
    site at;
    long nth, hits; /* nth < 0: not armed */
    float value;
    uint64_t element; /* modulo what there is */
} poison = {.nth = -1};

static struct {
    const zinf_gemm *gemm;
    zinf_gemm_desc desc;
} gemms[4096];
static int n_gemms;

static bool armed(site at)
{
    const bool now = poison.nth >= 0 && poison.at == at && poison.calls[at] == poison.nth;

    poison.calls[at]++;
    poison.hits += now;
    return now;
}

static void put(zinf_dtype dtype, void *array, uint64_t i)
{
    if (dtype == ZINF_F32)
        ((float *)array)[i] = poison.value;
    else
        ((uint16_t *)array)[i] = zinf_bf16_from_f32(poison.value);
}

static void spoil(const zinf_kernels *self, site at, void *array, int64_t n)
{
    if (armed(at))
        put(self->act, array, poison.element % (uint64_t)n);
}

static void spoil_f32(site at, float *array, int64_t n)
{
    if (armed(at))
        put(ZINF_F32, array, poison.element % (uint64_t)n);
}

static zinf_gemm *gemm_create(const zinf_kernels *self, const zinf_gemm_desc *desc,
                              size_t scratch_bytes)
{
    zinf_gemm *gemm = real.gemm_create(self, desc, scratch_bytes);

    gemms[n_gemms].gemm = gemm;
    gemms[n_gemms++].desc = *desc;
    return gemm;
}

static void gemm_run(zinf_gemm *gemm, const void *a, const void *b, const void *bias,
                     const void *residual, void *c, void *scratch)
{
    real.gemm_run(gemm, a, b, bias, residual, c, scratch);
    if (!armed(GEMM))
        return;
    int i = n_gemms - 1; /* the last made: an address may have been used before */
    while (i > 0 && gemms[i].gemm != gemm)
        i--;
    const zinf_gemm_desc *d = &gemms[i].desc;
    const uint64_t at = poison.element % (uint64_t)(d->m * d->n);
    /* A logit of -inf is a probability of 0: right, if far-fetched. */
    if (d->trans_b && (d->n == VOCAB || d->n == VOCAB / 2 || d->n == VOCAB - VOCAB / 2))
        poison.value = fabsf(poison.value);
    put(d->c_dtype, c, at / (uint64_t)d->n * (uint64_t)d->ldc + at % (uint64_t)d->n);
}

static void embedding_forward(const zinf_kernels *self, const int32_t *tokens, int64_t token_ld,
                              const void *wte, const void *wpe, int64_t row0, int64_t rows,
                              int64_t batch, int64_t seq, int64_t channels, bool first, void *out)
{
    real.embedding_forward(self, tokens, token_ld, wte, wpe, row0, rows, batch, seq, channels,
                           first, out);
    spoil(self, EMBEDDING, out, batch * seq * channels);
}

static void embedding_backward(const zinf_kernels *self, const int32_t *tokens, int64_t token_ld,
                               const void *dx, int64_t row0, int64_t rows, int64_t batch,
                               int64_t seq, int64_t channels, bool accumulate, float *dwte)
{
    real.embedding_backward(self, tokens, token_ld, dx, row0, rows, batch, seq, channels,
                            accumulate, dwte);
    spoil_f32(EMBEDDING_BACKWARD, dwte, rows * channels);
}

static void position_backward(const zinf_kernels *self, const void *dx, int64_t batch,
                              int64_t seq, int64_t channels, bool accumulate, float *dwpe)
{
    real.position_backward(self, dx, batch, seq, channels, accumulate, dwpe);
    spoil_f32(POSITION_BACKWARD, dwpe, seq * channels);
}

static void layernorm_forward(const zinf_kernels *self, const void *x, const void *w,
                              const void *b, int64_t n, int64_t channels, void *y, float *stats)
{
    real.layernorm_forward(self, x, w, b, n, channels, y, stats);
    spoil(self, NORM, y, n * channels);
    spoil_f32(NORM_STATS, stats, 2 * n);
}

static void layernorm_backward(const zinf_kernels *self, const void *dy, bool dy_f32,
                               const void *x, const void *w, const float *stats,
                               const void *residual, int64_t n, int64_t channels,
                               bool accumulate, void *dx, float *dw, float *db, void *scratch)
{
    real.layernorm_backward(self, dy, dy_f32, x, w, stats, residual, n, channels, accumulate, dx,
                            dw, db, scratch);
    spoil(self, NORM_BACKWARD, dx, n * channels);
    spoil_f32(NORM_WEIGHT, poison.element & 1 ? dw : db, channels);
}

static void attention_forward(const zinf_kernels *self, const void *qkv, int64_t batch,
                              int64_t seq, int64_t heads, int64_t kv_heads, int64_t head_dim,
                              void *out, float *lse, void *scratch)
{
    real.attention_forward(self, qkv, batch, seq, heads, kv_heads, head_dim, out, lse, scratch);
    spoil(self, ATTENTION, out, batch * seq * heads * head_dim);
    spoil_f32(ATTENTION_LSE, lse, batch * heads * seq);
}

static void attention_backward(const zinf_kernels *self, const void *qkv, const void *out,
                               const void *dout, const float *lse, int64_t batch, int64_t seq,
                               int64_t heads, int64_t kv_heads, int64_t head_dim, void *dqkv,
                               void *scratch)
{
    real.attention_backward(self, qkv, out, dout, lse, batch, seq, heads, kv_heads, head_dim,
                            dqkv, scratch);
    spoil(self, ATTENTION_BACKWARD, dqkv, batch * seq * (heads + 2 * kv_heads) * head_dim);
}

static void gelu_forward(const zinf_kernels *self, const void *x, int64_t n, void *y)
{
    real.gelu_forward(self, x, n, y);
    spoil(self, GELU, y, n);
}

static void gelu_backward(const zinf_kernels *self, const void *x, const void *dy, bool dy_f32,
                          int64_t n, void *dx)
{
    real.gelu_backward(self, x, dy, dy_f32, n, dx);
    spoil(self, GELU_BACKWARD, dx, n);
}

static void column_sum(const zinf_kernels *self, const void *dy, int64_t ldy, int64_t m,
                       int64_t n, bool accumulate, float *db, void *scratch)
{
    real.column_sum(self, dy, ldy, m, n, accumulate, db, scratch);
    spoil_f32(COLUMN_SUM, db, n);
}

static void softmax_stats(const zinf_kernels *self, const float *logits, int64_t ldl,
                          const int32_t *targets, int64_t row0, int64_t rows, int64_t m,
                          bool first, float *stats)
{
    real.softmax_stats(self, logits, ldl, targets, row0, rows, m, first, stats);
    spoil_f32(SOFTMAX_STATS, stats, 3 * m);
}

static void softmax_backward(const zinf_kernels *self, const float *logits, int64_t ldl,
                             const int32_t *targets, const float *stats, int64_t row0,
                             int64_t rows, int64_t m, float scale, void *dlogits, int64_t ldd)
{
    real.softmax_backward(self, logits, ldl, targets, stats, row0, rows, m, scale, dlogits, ldd);
    if (armed(SOFTMAX_BACKWARD))
        put(self->act, dlogits, poison.element % (uint64_t)m * (uint64_t)ldd +
                                    poison.element % (uint64_t)rows);
}

static double softmax_loss(const zinf_kernels *self, const float *stats, int64_t m)
{
    const double loss = real.softmax_loss(self, stats, m);

    return armed(LOSS) ? (double)poison.value : loss;
}

static void accumulate_f32(const zinf_kernels *self, const float *src, int64_t n, float *acc)
{
    real.accumulate_f32(self, src, n, acc);
    spoil_f32(ACCUMULATE, acc, n);
}

static void poisoned_kernels(zinf_kernels *ret_table, zinf_dtype act, int n_threads)
{
    zinf_kernels_cpu(&real, act, n_threads, ZINF_N_CPU_LEVELS - 1);
    *ret_table = real;
    ret_table->gemm_create = gemm_create;
    ret_table->gemm_run = gemm_run;
    ret_table->embedding_forward = embedding_forward;
    ret_table->embedding_backward = embedding_backward;
    ret_table->position_backward = position_backward;
    ret_table->layernorm_forward = layernorm_forward;
    ret_table->layernorm_backward = layernorm_backward;
    ret_table->attention_forward = attention_forward;
    ret_table->attention_backward = attention_backward;
    ret_table->gelu_forward = gelu_forward;
    ret_table->gelu_backward = gelu_backward;
    ret_table->column_sum = column_sum;
    ret_table->softmax_stats = softmax_stats;
    ret_table->softmax_backward = softmax_backward;
    ret_table->softmax_loss = softmax_loss;
    ret_table->accumulate_f32 = accumulate_f32;
}

/* ---- a model that trains ---- */

static char folder[200];
static const char *planner;
static bool long_run;

/* clip 0 in half of them: the guard must not depend on it. */
static const struct {
    const char *name, *precision, *clip, *settings;
} plans[] = {
    {"device", "fp32", "1.0", "device device device device none"},
    {"host", "bf16", "0", "host host host host 1"},
    {"nvme", "bf16", "1.0", "nvme nvme nvme nvme 1"},
    {"mixed", "fp32", "0", "nvme device host nvme 2"},
};
enum { N_PLANS = sizeof plans / sizeof *plans };

typedef struct machine {
    zinf_plan plan;
    zinf_storage *storage;
    zinf_executor *executor;
    zinf_env env;
    uint64_t drawn;    /* of the tokens */
    float *state;      /* master, m and v, in logical order, as of the last snapshot */
    uint64_t n_state;
    const float *from; /* what LOAD gives; as state */
} machine;

static void make_plan(int which, char *ret_path, size_t n)
{
    char path[300], command[2000], tier[4][16], interval[16];

    snprintf(path, sizeof path, "%s/%s.yaml", folder, plans[which].name);
    snprintf(ret_path, n, "%s/%s.plan", folder, plans[which].name);
    if (access(ret_path, F_OK) == 0)
        return;
    FILE *f = fopen(path, "w");
    CHECK(f);
    fprintf(f, "model: {name: n, family: gpt2, layers: 3, hidden: 8, heads: 2, vocab: %d,\n"
            "        context: 6, tied_embeddings: true}\n"
            "training:\n  sequence: 6\n  global_batch: 3\n  precision: %s\n"
            "  optimizer: {type: adamw, lr: 3e-3, betas: [0.9, 0.95], eps: 1e-8, "
            "weight_decay: 0.1}\n"
            "  schedule: {type: cosine, warmup: 2, steps: 9, min_lr: 1e-4}\n  clip: %s\n"
            "  seed: 11\n", VOCAB, plans[which].precision, plans[which].clip);
    fclose(f);
    snprintf(path, sizeof path, "%s/cluster.yaml", folder);
    f = fopen(path, "w");
    CHECK(f);
    fputs("cluster:\n  name: c\n"
          "  device: {kind: cpu, memory: 64 MiB, peak: {bf16: 350 GFLOP/s, fp32: 180 GFLOP/s},\n"
          "           bandwidth: 25 GB/s}\n"
          "  host: {memory: 1 GiB, cores: 2, bandwidth: 25 GB/s, adam: 5e8 params/s}\n"
          "  nvme: {paths: [/tmp], capacity: 4 GiB, read: 1 GB/s, write: 1 GB/s, "
          "latency: 100 us}\n"
          "  links: {host_device: {per_device: 8 GB/s, latency: 5 us}}\n  unified: false\n", f);
    fclose(f);
    CHECK(sscanf(plans[which].settings, "%15s %15s %15s %15s %15s", tier[0], tier[1], tier[2],
                 tier[3], interval) == 5);
    snprintf(command, sizeof command, "'%s' '%s/%s.yaml' '%s/cluster.yaml' -o '%s' "
             "--set tier.param=%s --set tier.grad=%s --set tier.optimizer=%s "
             "--set tier.checkpoint=%s --set checkpoint_interval=%s --set micro_batch=1 "
             "--set order=horizontal --set tiles=2 --set threads=1 >'%s/out' 2>&1 || "
             "{ cat '%s/out'; false; }", planner,
             folder, plans[which].name, folder, ret_path, tier[0], tier[1], tier[2],
             tier[3], interval, folder, folder);
    CHECK(system(command) == 0);
}

static zinf_status draw(void *context, uint64_t n, uint64_t cols, int32_t *ret_tokens,
                        zinf_error *err)
{
    machine *m = context;

    (void)err;
    for (uint64_t i = 0; i < n * cols; i++)
        ret_tokens[i] = (int32_t)((m->drawn * 7919 + i * i * 31 + i) % VOCAB);
    m->drawn++;
    return ZINF_OK;
}

/* Where an array of a tensor begins in machine.state. */
static uint64_t state_at(const zinf_plan *plan, uint32_t tensor, unsigned array)
{
    uint64_t at = 0, all = 0;

    for (uint32_t t = 0; t < plan->n_tensors; t++) {
        const uint64_t n = plan->tensors[t].rows * plan->tensors[t].cols;
        at += t < tensor ? n : 0;
        all += n;
    }
    return at + array * all;
}

static zinf_status put_state(void *context, uint32_t tensor, zinf_state_array array,
                             uint64_t first, uint64_t n, const float *values, zinf_error *err)
{
    machine *m = context;

    (void)err;
    memcpy(m->state + state_at(&m->plan, tensor, array) + first, values, n * sizeof *values);
    return ZINF_OK;
}

static zinf_status get_state(void *context, uint32_t tensor, zinf_state_array array,
                             uint64_t first, uint64_t n, float *ret_values, zinf_error *err)
{
    const machine *m = context;

    (void)err;
    memcpy(ret_values, m->from + state_at(&m->plan, tensor, array) + first,
           n * sizeof *ret_values);
    return ZINF_OK;
}

static void run(machine *m, zinf_program_kind program)
{
    zinf_error err = {0};

    m->env = (zinf_env){.step = m->env.step, .lr = 1e-2, .batch = draw, .batch_context = m,
                        .get = get_state, .put = put_state, .state_context = m};
    CHECK_MESSAGE(zinf_executor_run(m->executor, program, &m->env, &err) == ZINF_OK, "%s",
                  err.text);
}

static void start(machine *m, int which, const zinf_backend *backend)
{
    char path[300], disk[300], warning[256], command[800];
    zinf_error err = {0};
    static int n_disks;

    *m = (machine){0};
    make_plan(which, path, sizeof path);
    CHECK_MESSAGE(zinf_plan_read(path, &m->plan, &err) == ZINF_OK, "%s", err.text);
    CHECK_MESSAGE(zinf_plan_check(&m->plan, &err) == ZINF_OK, "%s", err.text);
    const uint64_t bytes = m->plan.machine.arena_bytes[ZINF_TIER_NVME];
    const zinf_storage_options io = {ZINF_ENGINE_AUTO, m->plan.decisions.io_block_bytes,
                                     m->plan.decisions.io_depth};
    snprintf(disk, sizeof disk, "%s/disk%d", folder, n_disks++);
    snprintf(command, sizeof command, "mkdir '%s'", disk);
    CHECK(system(command) == 0);
    if (bytes)
        CHECK_MESSAGE(zinf_storage_open(disk, 0, bytes, &io, &m->storage, warning, &err) ==
                      ZINF_OK, "%s", err.text);
    const zinf_executor_options options = {.backend = backend, .storage = m->storage};
    CHECK_MESSAGE(zinf_executor_open(&m->plan, &options, &m->executor, &err) == ZINF_OK, "%s",
                  err.text);
    m->n_state = state_at(&m->plan, 0, ZINF_N_STATES);
    m->state = calloc(m->n_state, sizeof *m->state);
    CHECK(m->state);
}

static void stop(machine *m)
{
    zinf_executor_close(m->executor);
    zinf_storage_close(m->storage);
    zinf_plan_free(&m->plan);
    free(m->state);
}

/* Master, m and v of all tensors; free it. */
static float *snapshot(machine *m)
{
    float *copy = malloc(m->n_state * sizeof *copy);

    memset(m->state, 0x55, m->n_state * sizeof *m->state);
    run(m, ZINF_PROGRAM_FLUSH);
    run(m, ZINF_PROGRAM_SAVE);
    CHECK(copy);
    memcpy(copy, m->state, m->n_state * sizeof *copy);
    return copy;
}

/* Loss over given tokens: what the parameters are, wherever they live. */
static double evaluate(machine *m)
{
    const uint64_t drawn = m->drawn;

    m->drawn = 1000;
    run(m, ZINF_PROGRAM_EVAL);
    m->drawn = drawn;
    return m->env.loss;
}

static void step(machine *m)
{
    run(m, ZINF_PROGRAM_STEP);
    m->env.step += !m->env.skip;
}

static void same_state(machine *m, const float *expected, const char *what)
{
    float *found = snapshot(m);
    const bool same = memcmp(found, expected, m->n_state * sizeof *found) == 0;

    free(found);
    CHECK_MESSAGE(same, "the state changed: %s", what);
}

static const float values[] = {NAN, INFINITY, -INFINITY};

static void arm(site at, long nth, float value, uint64_t element)
{
    memset(poison.calls, 0, sizeof poison.calls);
    poison.hits = 0;
    poison.at = at;
    poison.nth = nth;
    poison.value = value;
    poison.element = element;
}

static zinf_backend poisoned;

/* Two machines do the same; one of them also has steps that go wrong. */
static void poison_every_kernel(int which)
{
    machine m, clean;
    long calls[N_SITES], n = 0;
    char what[128];

    start(&m, which, &poisoned);
    start(&clean, which, &poisoned);
    run(&m, ZINF_PROGRAM_INIT);
    run(&clean, ZINF_PROGRAM_INIT);
    step(&clean);
    arm(GEMM, -1, 0, 0);
    step(&m);
    memcpy(calls, poison.calls, sizeof calls);
    for (int at = 0; at < N_SITES; at++)
        for (int v = 0; v < (!site_kept[at] ? 3 : which == 0 ? 1 : 0); v++)
            for (int third = 0; third < 3; third++) {
                long nth = calls[at] * third / 3 + (third ? calls[at] / 7 : 0);
                if (at == EMBEDDING || at == SOFTMAX_STATS)
                    nth |= 1; /* the second tile overwrites some of the first */
                if (nth >= calls[at] || (which && !long_run && (at + third) % 3 != v))
                    continue;
                float *before = snapshot(&m);
                const double loss = evaluate(&m);
                const uint64_t drawn = m.drawn;
                snprintf(what, sizeof what, "%s, %s call %ld of %ld, %g", plans[which].name,
                         site_names[at], nth, calls[at], (double)values[v]);
                arm((site)at, nth, values[v], 1000003 * (uint64_t)++n);
                step(&m);
                poison.nth = -1;
                CHECK_MESSAGE(poison.hits == 1, "%s: never reached", what);
                CHECK_MESSAGE(m.env.skip, "not noticed: %s, norm %g, loss %g", what, m.env.norm,
                              m.env.loss);
                CHECK_MESSAGE(!isfinite(m.env.norm) || !isfinite(m.env.loss), "%s", what);
                same_state(&m, before, what);
                free(before);
                CHECK_MESSAGE(evaluate(&m) == loss, "the parameters changed: %s", what);
                m.drawn = drawn; /* the same data once more, now all is well */
                step(&m);
                step(&clean);
                CHECK_MESSAGE(!m.env.skip && m.env.loss == clean.env.loss &&
                              m.env.norm == clean.env.norm, "the next step differs: %s", what);
            }
    float *expected = snapshot(&clean);
    same_state(&m, expected, "from the one that never went wrong");
    free(expected);
    printf("# %s: %ld injections in %ld kernel calls a step\n", plans[which].name, n,
           calls[GEMM]);
    CHECK(n > (which && !long_run ? 40 : 120));
    stop(&m);
    stop(&clean);
}

static void on_the_device_a_wrong_number_anywhere_changes_nothing(void)
{
    poison_every_kernel(0);
}

static void on_the_host_a_wrong_number_anywhere_changes_nothing(void)
{
    poison_every_kernel(1);
}

static void on_nvme_a_wrong_number_anywhere_changes_nothing(void)
{
    poison_every_kernel(2);
}

static void on_mixed_tiers_a_wrong_number_anywhere_changes_nothing(void)
{
    poison_every_kernel(3);
}

/* The instructions of an opcode in a segment of STEP (0: the first micro-batch, 1: the others). */
static long list(const zinf_plan *plan, uint32_t segment, zinf_opcode opcode,
                 const zinf_instr *ret_instrs[256])
{
    const zinf_segment *s =
        &plan->segments[plan->programs[ZINF_PROGRAM_STEP].first_segment + segment];
    long n = 0;

    for (uint32_t k = 0; k < s->n_instrs; k++)
        if (plan->instrs[s->first_instr + k].opcode == opcode)
            ret_instrs[n++] = &plan->instrs[s->first_instr + k];
    CHECK(n > 0 && n < 256);
    return n;
}

/* Which call of ACCUMULATE the k-th of the loop is, at an iteration. */
static long accumulate_call(const zinf_plan *plan, long iteration, long k)
{
    const zinf_instr *unused[256];

    return list(plan, 0, ZINF_OP_ACCUMULATE, unused) +
           iteration * list(plan, 1, ZINF_OP_ACCUMULATE, unused) + k;
}

/* Every gradient in turn: the unit, the tensor and the element that were spoiled. */
static void the_first_wrong_gradient_is_named(void)
{
    for (int which = 0; which < N_PLANS; which++) {
        machine m;
        zinf_nonfinite first;
        start(&m, which, &poisoned);
        run(&m, ZINF_PROGRAM_INIT);
        step(&m);
        CHECK(!zinf_executor_first_nonfinite(m.executor, &first));

        /* The units in the order in which their sums are taken. */
        const zinf_instr *sums[256], *adds[256];
        const long n_sums = list(&m.plan, 0, ZINF_OP_SUM_OF_SQUARES, sums);
        const long n = list(&m.plan, 1, ZINF_OP_ACCUMULATE, adds);
        CHECK(n_sums == m.plan.n_units);
        /* Backward: the final norm, the last block .. the first, the embeddings. */
        CHECK(sums[0]->layer == -1 && sums[1]->layer == 2);
        for (long i = 2; i < n_sums; i++)
            CHECK(sums[i]->layer <= sums[i - 1]->layer);
        for (long iteration = 0; iteration < 2; iteration++)
            for (long i = which % 3; i < n; i += which && !long_run ? 3 : 1) {
                const zinf_unit *unit = &m.plan.units[adds[i]->unit];
                const uint64_t element = (uint64_t)(i * 37 + iteration) % unit->n_elems;
                char text[600];
                arm(ACCUMULATE, accumulate_call(&m.plan, iteration, i), values[i % 3], element);
                step(&m);
                poison.nth = -1;
                CHECK(m.env.skip && zinf_executor_first_nonfinite(m.executor, &first));
                const zinf_part *part = &m.plan.parts[unit->first_part];
                while (element >= part->at + part->n_rows * m.plan.tensors[part->tensor].cols)
                    part++;
                const zinf_tensor *tensor = &m.plan.tensors[part->tensor];
                CHECK(first.unit == adds[i]->unit && first.tensor == part->tensor);
                CHECK((first.row - part->first_row) * tensor->cols + first.col ==
                      element - part->at);
                CHECK(isnan(first.value) ? i % 3 == 0 : first.value == values[i % 3]);
                zinf_nonfinite_explain(&m.plan, m.executor, &m.env, text, sizeof text);
                CHECK_MESSAGE(strstr(text, tensor->name) && !strstr(text, "-nan"), "%s", text);
                char layer[32];
                snprintf(layer, sizeof layer, "layer %d)", unit->layer);
                CHECK_MESSAGE(strstr(text, unit->layer < 0 ? "outside" : layer), "%s", text);
            }
        step(&m);
        CHECK(!m.env.skip && !zinf_executor_first_nonfinite(m.executor, &first));
        stop(&m);
    }
}

/* Through LOAD, which the command never reaches with such a state: the reader refuses it. */
static void a_wrong_weight_is_noticed_before_the_first_update(void)
{
    for (int which = 0; which < N_PLANS; which++)
        for (int v = 0; v < 3; v++) {
            machine m;
            start(&m, which, &poisoned);
            run(&m, ZINF_PROGRAM_INIT);
            step(&m);
            float *state = snapshot(&m);
            for (uint32_t t = (uint32_t)v; t < m.plan.n_tensors; t += long_run ? 1 : 3) {
                const uint64_t n = m.plan.tensors[t].rows * m.plan.tensors[t].cols;
                float *element = state + state_at(&m.plan, t, ZINF_STATE_MASTER) + t * 5 % n;
                const float was = *element;
                *element = values[v];
                m.from = state;
                run(&m, ZINF_PROGRAM_LOAD);
                step(&m);
                CHECK_MESSAGE(m.env.skip, "%s: %g in %s", plans[which].name, (double)values[v],
                              m.plan.tensors[t].name);
                same_state(&m, state, m.plan.tensors[t].name);
                *element = was;
            }
            run(&m, ZINF_PROGRAM_LOAD);
            step(&m);
            CHECK(!m.env.skip);
            free(state);
            stop(&m);
        }
}

/* Finite, but its square is not in fp32: v would be inf, and that weight never move again. */
static void a_gradient_too_large_for_its_second_moment_changes_nothing(void)
{
    machine m;

    start(&m, 3, &poisoned); /* no clipping */
    run(&m, ZINF_PROGRAM_INIT);
    step(&m);
    float *before = snapshot(&m);
    arm(ACCUMULATE, accumulate_call(&m.plan, 1, 3), 2e19f, 5);
    step(&m);
    CHECK(m.env.skip && isfinite(m.env.norm) && m.env.norm >= 2e19 * (1 - 1e-7));
    same_state(&m, before, "2e19");
    arm(ACCUMULATE, accumulate_call(&m.plan, 1, 3), 1e18f, 5);
    step(&m);
    CHECK(!m.env.skip);
    free(before);
    before = snapshot(&m);
    for (uint64_t i = 0; i < m.n_state; i++)
        CHECK(isfinite(before[i]));
    free(before);
    stop(&m);

    start(&m, 0, &poisoned); /* with clipping it is only large */
    run(&m, ZINF_PROGRAM_INIT);
    step(&m);
    arm(ACCUMULATE, accumulate_call(&m.plan, 1, 3), 2e19f, 5);
    step(&m);
    poison.nth = -1;
    CHECK(!m.env.skip && m.env.norm * m.env.factor <= 1);
    stop(&m);
}

int main(int argc, char **argv)
{
    const char *base = getenv("TMPDIR");
    char command[300];

    if (argc != 2)
        return 1;
    planner = argv[1];
    long_run = getenv("ZINF_TEST_LONG") != NULL;
    poisoned = zinf_backend_cpu;
    poisoned.kernels = poisoned_kernels;
    snprintf(folder, sizeof folder, "%s/zinf-safety-XXXXXX", base ? base : "/tmp");
    if (!mkdtemp(folder))
        return 1;
    RUN(on_the_device_a_wrong_number_anywhere_changes_nothing);
    RUN(on_the_host_a_wrong_number_anywhere_changes_nothing);
    RUN(on_nvme_a_wrong_number_anywhere_changes_nothing);
    RUN(on_mixed_tiers_a_wrong_number_anywhere_changes_nothing);
    RUN(the_first_wrong_gradient_is_named);
    RUN(a_wrong_weight_is_noticed_before_the_first_update);
    RUN(a_gradient_too_large_for_its_second_moment_changes_nothing);
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command) || check_finish();
}
