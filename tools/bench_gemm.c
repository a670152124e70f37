/* tools/bench_gemm.c - items gemm and attention: FLOP rates of what a training step of GPT-2 124M
 * calls, to multiply-adds of registers alone in the same rounds.
 */
#include "tools/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "planner/lower.h"

enum { HIDDEN = 768, FFN = 3072, VOCAB = 50257, LAYERS = 12, HEADS = 12, HEAD_DIM = 64 };

typedef struct peak {
    int n_threads;
} peak;

static void run_peak(void *arg)
{
    bench_peak_run(ZINF_BF16, ((peak *)arg)->n_threads);
}

/* Case 0 of an item is the bound. */
static void add_peak(bench_cases *all, peak *it, const bench_options *options,
                     const char **ret_name)
{
    it->n_threads = options->n_threads;
    const double flop = bench_peak_flop(ZINF_BF16, ret_name);
    bench_add(all, run_peak, it, flop * options->n_threads, "peak");
}

void bench_peak(const bench_options *options)
{
    static bench_cases all;
    const char *unit;
    peak bound;

    all.n = 0;
    add_peak(&all, &bound, options, &unit);
    bench_rounds(options, &all);
    bench_figure rate = bench_rate(options, &all, 0);
    rate.value *= 1e-9;
    bench_report(options, "peak", rate, "GFLOP/s", "%s registers on %d threads", unit,
                 options->n_threads);
}

typedef struct call {
    const zinf_kernels *table;
    zinf_gemm *gemm;
    const void *a, *b, *bias, *residual;
    void *c, *scratch;
} call;

static void run_call(void *arg)
{
    const call *it = arg;

    it->table->gemm_run(it->gemm, it->a, it->b, it->bias, it->residual, it->c, it->scratch);
}

typedef struct linear {
    const char *name;
    int64_t out, in, tokens; /* tokens of one call, 0: all */
    bool has_bias, has_residual;
    double times; /* of the layer in the model */
} linear;

enum { CHUNK = 1024 }; /* tokens, as the planner cuts 4 x 512 on a machine of 50 FLOP a byte */
static const linear linears[] = {
    {"qkv", 3 * HIDDEN, HIDDEN, 0, true, false, LAYERS},
    {"proj", HIDDEN, HIDDEN, 0, true, true, LAYERS},
    {"up", FFN, HIDDEN, 0, true, false, LAYERS},
    {"down", HIDDEN, FFN, 0, true, true, LAYERS},
    {"classifier", VOCAB, HIDDEN, CHUNK, false, false, 1},
};
enum { N_LINEARS = sizeof linears / sizeof *linears, N_KINDS = 3 };
static const char *const kinds[N_KINDS] = {"forward", "input grad", "weight grad"};

/* As runtime/operations.c describes them. */
static zinf_gemm_desc describe(const linear *l, int kind, int64_t tokens)
{
    const bool logits = l->out == VOCAB;
    const int64_t ld = logits ? (int64_t)zinf_scores_ld(VOCAB) : l->out;
    zinf_gemm_desc d = {.ab_dtype = ZINF_BF16, .c_dtype = ZINF_BF16};

    if (kind == 0) {
        d.m = tokens, d.n = l->out, d.k = l->in, d.trans_b = true;
        d.lda = d.ldb = l->in, d.ldc = d.ldr = ld;
        d.has_bias = l->has_bias, d.has_residual = l->has_residual;
        d.c_dtype = logits ? ZINF_F32 : ZINF_BF16;
    } else if (kind == 1) {
        d.m = tokens, d.n = l->in, d.k = l->out;
        d.lda = ld, d.ldb = d.ldc = l->in;
    } else {
        d.m = l->out, d.n = l->in, d.k = tokens, d.trans_a = true;
        d.lda = ld, d.ldb = d.ldc = l->in;
        d.c_dtype = ZINF_F32;
        d.accumulate = logits; /* chunks after the first */
    }
    return d;
}

static void gemm_at(const bench_options *options, int64_t tokens)
{
    static bench_cases all;
    static call calls[N_LINEARS * N_KINDS];
    double times[N_LINEARS * N_KINDS];
    const int64_t logits = CHUNK * (int64_t)zinf_scores_ld(VOCAB); /* more than the others */
    zinf_kernels table;
    const char *unit;
    peak bound;
    char name[100];

    all.n = 0;
    add_peak(&all, &bound, options, &unit);
    zinf_kernels_cpu(&table, ZINF_BF16, options->n_threads, ZINF_N_CPU_LEVELS - 1);
    void *x = bench_memory(ZINF_BF16, logits);
    void *w = bench_memory(ZINF_BF16, (int64_t)VOCAB * HIDDEN);
    void *dy = bench_memory(ZINF_BF16, tokens * FFN * 2);
    void *y = bench_memory(ZINF_F32, logits), *bias = bench_memory(ZINF_BF16, FFN);
    void *scratch = bench_memory(ZINF_F32, (2 + options->n_threads) << 18);
    for (int l = 0; l < N_LINEARS; l++)
        for (int kind = 0; kind < N_KINDS; kind++) {
            const linear *it = &linears[l];
            const int64_t n = it->tokens && it->tokens < tokens ? it->tokens : tokens;
            const zinf_gemm_desc d = describe(it, kind, n);
            call *c = &calls[l * N_KINDS + kind];

            *c = (call){.table = &table, .a = x, .b = kind == 2 ? dy : w, .c = y,
                        .bias = d.has_bias ? bias : NULL, .residual = d.has_residual ? dy : NULL,
                        .scratch = scratch};
            c->gemm = table.gemm_create(&table, &d, zinf_gemm_scratch_bytes(
                (uint64_t)d.m, (uint64_t)d.n, (uint64_t)d.k, (uint64_t)options->n_threads));
            if (!c->gemm) {
                fprintf(stderr, "tools/bench: no memory to prepare a GEMM: free some\n");
                exit(4);
            }
            times[l * N_KINDS + kind] = it->times * (double)tokens / (double)n;
            bench_add(&all, run_call, c, 2.0 * (double)d.m * (double)d.n * (double)d.k,
                      "%s %s %ldx%ldx%ld", it->name, kinds[kind], (long)d.m, (long)d.n, (long)d.k);
        }
    bench_rounds(options, &all);
    const double peak_rate = 1e-9 * bench_rate(options, &all, 0).value;
    for (int i = 1; i < all.n; i++) {
        snprintf(name, sizeof name, "gemm/%ld/%s", (long)tokens, all.cases[i].name);
        bench_report(options, name, bench_ratio(options, &all, i, 0), "ratio",
                     "%.0f GFLOP/s, %s registers", peak_rate, unit);
        table.gemm_destroy(calls[i - 1].gemm);
    }
    snprintf(name, sizeof name, "gemm/%ld", (long)tokens);
    bench_report(options, name, bench_sum_ratio(options, &all, 1, all.n, times, 0), "ratio",
                 "%.0f GFLOP/s, %s registers; calls of a step", peak_rate, unit);
    free(x), free(w), free(dy), free(y), free(bias), free(scratch);
}

void bench_gemm(const bench_options *options)
{
    gemm_at(options, 2048);
    gemm_at(options, 4096);
}

typedef struct heads {
    zinf_kernels table;
    int64_t batch, seq;
    void *qkv, *out, *dout, *dqkv, *scratch;
    float *lse;
} heads;

static void run_forward(void *arg)
{
    const heads *a = arg;

    a->table.attention_forward(&a->table, a->qkv, a->batch, a->seq, HEADS, HEADS, HEAD_DIM, a->out,
                               a->lse, a->scratch);
}

static void run_backward(void *arg)
{
    const heads *a = arg;

    a->table.attention_backward(&a->table, a->qkv, a->out, a->dout, a->lse, a->batch, a->seq,
                                HEADS, HEADS, HEAD_DIM, a->dqkv, a->scratch);
}

/* Products of the unmasked half of the pairs: 2 forward, 5 backward (scores are made again). */
void bench_attention(const bench_options *options)
{
    static const int64_t sequences[] = {512, 1024};
    enum { N = sizeof sequences / sizeof *sequences, BATCH = 4 };
    static bench_cases all;
    static heads a[N];
    const char *unit;
    peak bound;
    char name[100];

    all.n = 0;
    add_peak(&all, &bound, options, &unit);
    for (int i = 0; i < N; i++) {
        const int64_t seq = sequences[i], n = BATCH * seq * HIDDEN;
        const double product = (double)seq * (double)seq * HIDDEN * BATCH;

        a[i] = (heads){.batch = BATCH, .seq = seq};
        zinf_kernels_cpu(&a[i].table, ZINF_BF16, options->n_threads, ZINF_N_CPU_LEVELS - 1);
        a[i].qkv = bench_memory(ZINF_BF16, 3 * n), a[i].out = bench_memory(ZINF_BF16, n);
        a[i].dout = bench_memory(ZINF_BF16, n), a[i].dqkv = bench_memory(ZINF_BF16, 3 * n);
        a[i].lse = bench_memory(ZINF_F32, BATCH * HEADS * seq);
        a[i].scratch = bench_memory(ZINF_F32, (int64_t)zinf_attention_scratch_bytes(
            (uint64_t)seq, HEAD_DIM, (uint64_t)options->n_threads) / 4);
        bench_add(&all, run_forward, &a[i], 2 * product, "forward 4x%ld", (long)seq);
        bench_add(&all, run_backward, &a[i], 5 * product, "backward 4x%ld", (long)seq);
    }
    bench_rounds(options, &all);
    const double peak_rate = 1e-9 * bench_rate(options, &all, 0).value;
    for (int i = 1; i < all.n; i++) {
        snprintf(name, sizeof name, "attention/%s", all.cases[i].name);
        bench_report(options, name, bench_ratio(options, &all, i, 0), "ratio",
                     "%.0f GFLOP/s, %s registers; kernel %s", peak_rate, unit, a[0].table.name);
    }
    for (int i = 0; i < N; i++) {
        snprintf(name, sizeof name, "attention/4x%ld", (long)sequences[i]);
        bench_report(options, name, bench_sum_ratio(options, &all, 1 + 2 * i, 3 + 2 * i, NULL, 0),
                     "ratio", "%.0f GFLOP/s, %s registers; forward + backward", peak_rate, unit);
        free(a[i].qkv), free(a[i].out), free(a[i].dout), free(a[i].dqkv), free(a[i].lse);
        free(a[i].scratch);
    }
}
