/* tools/bench.h - what the items of tools/bench share: cases that are run in turns, and lines.
 *
 * The machine may be shared and its clock may move, so nothing is compared over time: a round
 * runs every case once, ratios are taken inside a round, and the median over rounds is reported
 * with its spread (the middle half of the rounds, as a fraction of the median).
 */
#ifndef ZINF_TOOLS_BENCH_H
#define ZINF_TOOLS_BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/kernels.h"

enum { BENCH_MAX_CASES = 64, BENCH_MAX_ROUNDS = 64 };

typedef struct bench_options {
    int n_threads, rounds;
    bool json;
} bench_options;

typedef struct bench_case {
    char name[64];
    void (*run)(void *arg);
    void *arg;
    double work; /* FLOP or bytes of one run */
} bench_case;

typedef struct bench_cases {
    bench_case cases[BENCH_MAX_CASES];
    int n;
    double seconds[BENCH_MAX_CASES][BENCH_MAX_ROUNDS]; /* of one run; filled by bench_rounds */
} bench_cases;

typedef struct bench_figure {
    double value, spread;
} bench_figure;

/* NULL-safe growth is not needed: more than BENCH_MAX_CASES is our own bug. */
void bench_add(bench_cases *all, void (*run)(void *), void *arg, double work, const char *name,
               ...) __attribute__((format(printf, 5, 6)));

/* Runs every case once unmeasured, then options->rounds times in turns. */
void bench_rounds(const bench_options *options, bench_cases *all);

/* Median work per second of a case; rate of a case to that of case `bound`; rate of the sum of
 * cases [first, end), each counted `times` (NULL: once), to that of `bound`. */
bench_figure bench_rate(const bench_options *options, const bench_cases *all, int i);
bench_figure bench_ratio(const bench_options *options, const bench_cases *all, int i, int bound);
bench_figure bench_sum_ratio(const bench_options *options, const bench_cases *all, int first,
                             int end, const double *times, int bound);

/* One figure: a line for people on stdout, or a JSON object. `of` says what the bound is. */
void bench_report(const bench_options *options, const char *name, bench_figure figure,
                  const char *unit, const char *of, ...) __attribute__((format(printf, 5, 6)));

/* Memory of its own pages filled with values in [-1, 1) of the type; aligned to 2 MiB. Ends the
 * program (exit 4) if there is none. Freed at exit. */
void *bench_memory(zinf_dtype dtype, int64_t n);

/* Multiply-adds of registers alone, of the unit that the kernels use for dtype here (AMX,
 * AVX512_BF16, FMA), on all threads. Returns FLOP of one run; *ret_name names the unit. */
double bench_peak_flop(zinf_dtype dtype, const char **ret_name);
void bench_peak_run(zinf_dtype dtype, int n_threads);

/* a[i] = b[i] + s * c[i] over three arrays, bytes read and written counted (12 n). */
void bench_triad(int n_threads, int64_t n, const float *b, const float *c, float *a);

/* The items. */
void bench_peak(const bench_options *options);
void bench_gemm(const bench_options *options);
void bench_attention(const bench_options *options);
void bench_adam(const bench_options *options);
void bench_elementwise(const bench_options *options);

#endif
