/* tools/bench_vector.c - items adam and elementwise: operators that move more than they compute,
 * to streams over as many bytes in the same rounds. Arrays are far larger than the second-level
 * cache and staggered by 4 KiB + 64 B where they are met together.
 */
#include "tools/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct stream {
    int n_threads;
    int64_t n;
    float *a, *b, *c, *d;
    uint16_t *half;
} stream;

static void run_triad(void *arg)
{
    const stream *s = arg;

    bench_triad(s->n_threads, s->n, s->b, s->c, s->a);
}

/* Adam's traffic and hardly any of its arithmetic: reads four arrays, writes three of them and the
 * upper half of one. */
static void run_in_place(void *arg)
{
    const stream *s = arg;
    float *a = s->a, *b = s->b, *c = s->c, *d = s->d;
    uint16_t *half = s->half;

#pragma omp parallel for num_threads(s->n_threads) schedule(static)
    for (int64_t block = 0; block < s->n; block += 1024)
#pragma omp simd
        for (int64_t i = block; i < block + 1024; i++) {
            uint32_t bits;

            b[i] += d[i];
            c[i] += d[i];
            a[i] += b[i] + c[i];
            memcpy(&bits, &a[i], sizeof bits);
            half[i] = (uint16_t)(bits >> 16);
        }
}

typedef struct adam_call {
    zinf_kernels table;
    const stream *s;
} adam_call;

static void run_adam(void *arg)
{
    static const zinf_adam_args args = {1e-4f, .9f, .95f, 1e-8f, .1f, .1f, .05f, 1};
    const adam_call *it = arg;

    it->table.adam(&it->table, &args, it->s->d, it->s->n, it->s->a, it->s->b, it->s->c,
                   it->s->half);
}

void bench_adam(const bench_options *options)
{
    enum { N = 1 << 24, APART = N + 1024 + 16 };
    static bench_cases all;
    stream s = {.n_threads = options->n_threads, .n = N};
    adam_call call = {.s = &s};

    zinf_kernels_cpu(&call.table, ZINF_BF16, options->n_threads, ZINF_N_CPU_LEVELS - 1);
    s.a = bench_memory(ZINF_F32, 4 * (int64_t)APART);
    s.b = s.a + APART, s.c = s.b + APART, s.d = s.c + APART;
    s.half = bench_memory(ZINF_BF16, N);
    for (int64_t i = 0; i < APART; i++)
        s.c[i] = s.c[i] * s.c[i];
    all.n = 0;
    bench_add(&all, run_adam, &call, 30.0 * N, "adam");
    bench_add(&all, run_in_place, &s, 30.0 * N, "stream");
    bench_rounds(options, &all);
    bench_report(options, "adam", bench_ratio(options, &all, 0, 1), "ratio",
                 "%.1f GB/s in place over the same bytes; kernel %s",
                 1e-9 * bench_rate(options, &all, 1).value, call.table.name);
    free(s.a), free(s.half);
}

enum { TOKENS = 4096, CHANNELS = 768, FFN = 3072, VOCAB = 50257, ROWS = 208, BATCH = 8 };

typedef struct data {
    zinf_kernels table;
    void *x, *y, *z, *w, *scratch;
    float *f, *g, *stats;
    int32_t *tokens;
} data;

#define RUN(name) static void name(void *arg)
#define D ((const data *)arg)
#define T (&D->table)

RUN(layernorm_forward)
{
    T->layernorm_forward(T, D->x, D->w, D->w, TOKENS, CHANNELS, D->y, D->stats);
}

RUN(layernorm_backward)
{
    T->layernorm_backward(T, D->z, false, D->x, D->w, D->stats, D->y, TOKENS, CHANNELS, true,
                          D->y, D->g, D->g + CHANNELS, D->scratch);
}

RUN(gelu_forward) { T->gelu_forward(T, D->x, (int64_t)TOKENS * FFN, D->y); }
RUN(gelu_backward) { T->gelu_backward(T, D->x, D->z, false, (int64_t)TOKENS * FFN, D->y); }
RUN(column_sum) { T->column_sum(T, D->x, FFN, TOKENS, FFN, true, D->g, D->scratch); }

RUN(softmax_stats)
{
    T->softmax_stats(T, D->f, VOCAB, D->tokens, 0, VOCAB, ROWS, true, D->stats);
}

RUN(softmax_backward)
{
    T->softmax_backward(T, D->f, VOCAB, D->tokens, D->stats, 0, VOCAB, ROWS, 1, D->y, VOCAB);
}

RUN(embedding_forward)
{
    T->embedding_forward(T, D->tokens, TOKENS / BATCH, D->x, D->x, 0, VOCAB / 4, BATCH,
                         TOKENS / BATCH, CHANNELS, true, D->y);
}

RUN(embedding_backward)
{
    T->embedding_backward(T, D->tokens, TOKENS / BATCH, D->x, 0, VOCAB / 4, BATCH, TOKENS / BATCH,
                          CHANNELS, true, D->f);
}

RUN(position_backward)
{
    T->position_backward(T, D->x, BATCH, TOKENS / BATCH, CHANNELS, true, D->g);
}

RUN(convert_from_f32) { T->convert_from_f32(T, D->f, (int64_t)TOKENS * FFN, D->y); }
RUN(convert_to_f32) { T->convert_to_f32(T, D->x, (int64_t)TOKENS * FFN, D->f); }
RUN(accumulate_f32) { T->accumulate_f32(T, D->f, (int64_t)TOKENS * FFN, D->g); }

RUN(sum_of_squares)
{
    D->stats[0] = (float)T->sum_of_squares(T, D->f, (int64_t)TOKENS * FFN);
}
#undef D
#undef T

/* Elements of the activation type and of fp32 that are read or written. */
static const struct {
    const char *name;
    void (*run)(void *);
    double act, f32;
} operators[] = {
    {"layernorm_forward", layernorm_forward, 2. * TOKENS * CHANNELS, 0},
    {"layernorm_backward", layernorm_backward, 4. * TOKENS * CHANNELS, 0},
    {"gelu_forward", gelu_forward, 2. * TOKENS * FFN, 0},
    {"gelu_backward", gelu_backward, 3. * TOKENS * FFN, 0},
    {"column_sum", column_sum, 1. * TOKENS * FFN, 0},
    {"softmax_stats", softmax_stats, 0, 1. * ROWS * VOCAB},
    {"softmax_backward", softmax_backward, 1. * ROWS * VOCAB, 1. * ROWS * VOCAB},
    {"embedding_forward", embedding_forward, 3. * TOKENS * CHANNELS, 0},
    {"embedding_backward", embedding_backward, 1. * TOKENS * CHANNELS, 2. * TOKENS * CHANNELS},
    {"position_backward", position_backward, 1. * TOKENS * CHANNELS,
     2. * TOKENS / BATCH * CHANNELS},
    {"convert_from_f32", convert_from_f32, 1. * TOKENS * FFN, 1. * TOKENS * FFN},
    {"convert_to_f32", convert_to_f32, 1. * TOKENS * FFN, 1. * TOKENS * FFN},
    {"accumulate_f32", accumulate_f32, 0, 3. * TOKENS * FFN},
    {"sum_of_squares", sum_of_squares, 0, 1. * TOKENS * FFN},
};
enum { N_OPERATORS = sizeof operators / sizeof *operators };

void bench_elementwise(const bench_options *options)
{
    enum { N = TOKENS * FFN };
    static bench_cases all;
    stream s = {.n_threads = options->n_threads, .n = N};
    uint32_t state = 7;
    char name[100];

    s.a = bench_memory(ZINF_F32, 3 * (int64_t)(N + 1040));
    s.b = s.a + N + 1040, s.c = s.b + N + 1040;
    for (int type = 0; type < 2; type++) {
        const zinf_dtype act = type ? ZINF_F32 : ZINF_BF16;
        data d = {.x = bench_memory(act, N), .y = bench_memory(act, N + 1040),
                  .z = bench_memory(act, N + 2080), .w = bench_memory(act, FFN),
                  .f = bench_memory(ZINF_F32, N + 1040), .g = bench_memory(ZINF_F32, N + 2080),
                  .stats = bench_memory(ZINF_F32, 3 * TOKENS),
                  .tokens = bench_memory(ZINF_F32, TOKENS + BATCH),
                  .scratch = bench_memory(ZINF_F32, 2 * ZINF_REDUCE_CHUNKS * FFN)};

        zinf_kernels_cpu(&d.table, act, options->n_threads, ZINF_N_CPU_LEVELS - 1);
        for (int i = 0; i < TOKENS + BATCH; i++) {
            state = state * 1664525u + 1013904223u;
            d.tokens[i] = (int32_t)((state >> 8) % (VOCAB / 4));
        }
        all.n = 0;
        bench_add(&all, run_triad, &s, 12.0 * N, "triad");
        for (int i = 0; i < N_OPERATORS; i++)
            bench_add(&all, operators[i].run, &d, operators[i].act *
                      (double)zinf_dtype_bytes(act) + 4 * operators[i].f32, "%s",
                      operators[i].name);
        bench_rounds(options, &all);
        bench_figure worst = {1e9, 0};
        const double rate = 1e-9 * bench_rate(options, &all, 0).value;
        for (int i = 1; i < all.n; i++) {
            const bench_figure figure = bench_ratio(options, &all, i, 0);

            snprintf(name, sizeof name, "elementwise/%s/%s", type ? "f32" : "bf16",
                     all.cases[i].name);
            bench_report(options, name, figure, "ratio", "%.1f GB/s, triad of 150 MB; kernel %s",
                         rate, d.table.name);
            worst = figure.value < worst.value ? figure : worst;
        }
        snprintf(name, sizeof name, "elementwise/%s", type ? "f32" : "bf16");
        bench_report(options, name, worst, "ratio", "%.1f GB/s, triad; the worst of them", rate);
        free(d.x), free(d.y), free(d.z), free(d.w), free(d.f), free(d.g), free(d.stats);
        free(d.tokens), free(d.scratch);
    }
    free(s.a);
}
