/* tests/kernels/bench.c - see bench.h. Ratios against the reference and rates; no test. */
#include <time.h>

#include "tests/kernels/bench.h"
#include "tests/kernels/guard.h"

enum { N = 1024, C = 768, F = 3072, H = 12, D = 64, V = 12565, P = 1 << 24 };

static void *x, *y, *z, *w, *u;
static float *f, *g, *s, *lse;
static int32_t *tokens;

static void layernorm(const zinf_kernels *t) { t->layernorm_forward(t, x, w, w, N, C, y, s); }
static void layernorm_back(const zinf_kernels *t)
{
    t->layernorm_backward(t, z, false, x, w, s, NULL, N, C, true, y, g, g + C, u);
}
static void attention(const zinf_kernels *t)
{
    t->attention_forward(t, x, 1, N, H, H, D, y, lse, u);
}
static void attention_back(const zinf_kernels *t)
{
    t->attention_backward(t, x, y, y, lse, 1, N, H, H, D, z, u);
}
static void gelu(const zinf_kernels *t) { t->gelu_forward(t, x, N * F, y); }
static void gelu_back(const zinf_kernels *t) { t->gelu_backward(t, x, z, false, N * F, y); }
static void columns(const zinf_kernels *t) { t->column_sum(t, x, F, N, F, true, g, u); }
static void softmax(const zinf_kernels *t)
{
    t->softmax_stats(t, f, V, tokens, 0, V, N, true, s);
}
static void softmax_back(const zinf_kernels *t)
{
    t->softmax_backward(t, f, V, tokens, s, 0, V, N, 1, y, V);
}
static void embedding(const zinf_kernels *t)
{
    t->embedding_forward(t, tokens, N, x, x, 0, V, 1, N, C, true, y);
}
static void embedding_back(const zinf_kernels *t)
{
    t->embedding_backward(t, tokens, N, x, 0, V, 1, N, C, true, f);
}
static void convert_from(const zinf_kernels *t) { t->convert_from_f32(t, f, P, y); }
static void convert_to(const zinf_kernels *t) { t->convert_to_f32(t, x, P, f); }
static void accumulate(const zinf_kernels *t) { t->accumulate_f32(t, f, P, g); }
static void squares(const zinf_kernels *t) { s[0] = (float)t->sum_of_squares(t, f, P); }
static void adam(const zinf_kernels *t)
{
    static const zinf_adam_args args = {1e-4f, .9f, .95f, 1e-8f, .1f, .1f, .05f, 1};

    t->adam(t, &args, f, P / 4, f + P / 4 + 1040, g, g + P / 4 + 1040, y);
}

static double seconds_of(void (*run)(const zinf_kernels *), const zinf_kernels *table)
{
    struct timespec a, b;
    double best = 1e9, total = 0;

    for (int i = 0; i < 20 && total < 0.4; i++) {
        clock_gettime(CLOCK_MONOTONIC, &a);
        run(table);
        clock_gettime(CLOCK_MONOTONIC, &b);
        const double t = (double)(b.tv_sec - a.tv_sec) + 1e-9 * (double)(b.tv_nsec - a.tv_nsec);
        best = t < best ? t : best;
        total += t;
    }
    return best;
}

int bench(void)
{
    static const struct {
        const char *name;
        void (*run)(const zinf_kernels *);
        double act_elements, f32_elements, flop; /* moved, computed */
    } rows[] = {
        {"layernorm_forward", layernorm, 2. * N * C, 0, 0},
        {"layernorm_backward", layernorm_back, 3. * N * C, 0, 0},
        {"attention_forward", attention, 4. * N * C, 0, 2. * N * N * C},
        {"attention_backward", attention_back, 8. * N * C, 0, 5. * N * N * C},
        {"gelu_forward", gelu, 2. * N * F, 0, 0},
        {"gelu_backward", gelu_back, 3. * N * F, 0, 0},
        {"column_sum", columns, 1. * N * F, 0, 0},
        {"softmax_stats", softmax, 0, 1. * N * V, 0},
        {"softmax_backward", softmax_back, 1. * N * V, 1. * N * V, 0},
        {"embedding_forward", embedding, 3. * N * C, 0, 0},
        {"embedding_backward", embedding_back, 1. * N * C, 2. * N * C, 0},
        {"convert_from_f32", convert_from, P, P, 0},
        {"convert_to_f32", convert_to, P, P, 0},
        {"accumulate_f32", accumulate, 0, 3. * P, 0},
        {"sum_of_squares", squares, 0, P, 0},
        {"adam", adam, P / 4., 7. * P / 4, 0},
    };
    const size_t bytes = 4 * (size_t)P + 65536;

    x = take_scratch(bytes), y = take_scratch(bytes), z = take_scratch(bytes);
    u = take_scratch(bytes), f = take_scratch(bytes), g = take_scratch(bytes);
    w = take_scratch(4 * F), s = take_scratch(4 * 3 * N), lse = take_scratch(4 * H * N);
    tokens = take_scratch(4 * N);
    for (int i = 0; i < N; i++)
        tokens[i] = (int32_t)draw_below(V);
    printf("%-20s %-5s %-7s %10s %8s %8s %9s\n", "operator", "type", "level", "ms", "x ref",
           "GB/s", "GFLOP/s");
    for (int type = 0; type < 2; type++)
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            double reference = 0;

            act = type ? ZINF_BF16 : ZINF_F32;
            set(UNIT, act, x, P), set(UNIT, act, y, P), set(UNIT, act, z, P);
            set(UNIT, act, w, F), set(UNIT, ZINF_F32, f, P), memset(g, 0, bytes);
            for (level = ZINF_CPU_REF; level < ZINF_N_CPU_LEVELS; level++) {
                if (!level_is_available())
                    continue;
                const double t = seconds_of(rows[i].run, &fast);
                const double moved = rows[i].act_elements * (double)zinf_dtype_bytes(act) +
                                     4 * rows[i].f32_elements;
                reference = level == ZINF_CPU_REF ? t : reference;
                printf("%-20s %-5s %-7s %10.3f %8.1f %8.2f %9.1f\n", rows[i].name,
                       type ? "bf16" : "f32", fast.name, 1e3 * t, reference / t, 1e-9 * moved / t,
                       1e-9 * rows[i].flop / t);
                fflush(stdout);
            }
        }
    release();
    return 0;
}
