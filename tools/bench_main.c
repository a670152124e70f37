/* tools/bench_main.c - zinf-bench: items by name, rounds, ratios and lines. */
#include "tools/bench.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static const struct {
    const char *name;
    void (*run)(const bench_options *options);
    const char *help;
} items[] = {
    {"peak", bench_peak, "bf16 multiply-adds of registers alone, the bound of the next two"},
    {"gemm", bench_gemm, "GEMM calls of GPT-2 124M in bf16, to register-only multiply-adds"},
    {"attention", bench_attention, "attention forward + backward in bf16, to the same"},
    {"adam", bench_adam, "Adam on host memory, to a stream in place over the same bytes"},
    {"elementwise", bench_elementwise, "every other operator, to a triad over as many bytes"},
};
enum { N_ITEMS = sizeof items / sizeof *items };

/* With one thread the time of its own work: what others take of a shared core does not count. */
static double now(const bench_options *options)
{
    struct timespec t;

    clock_gettime(options->n_threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void bench_add(bench_cases *all, void (*run)(void *), void *arg, double work, const char *name,
               ...)
{
    va_list values;

    if (all->n == BENCH_MAX_CASES)
        abort();
    bench_case *it = &all->cases[all->n++];
    *it = (bench_case){.run = run, .arg = arg, .work = work};
    va_start(values, name);
    vsnprintf(it->name, sizeof it->name, name, values);
    va_end(values);
}

void bench_rounds(const bench_options *options, bench_cases *all)
{
    for (int i = 0; i < all->n; i++)
        all->cases[i].run(all->cases[i].arg);
    for (int round = 0; round < options->rounds; round++)
        for (int i = 0; i < all->n; i++) {
            const double begin = now(options);
            double elapsed;
            int n = 0;

            do { /* at least 2 ms, so that the clock does not show */
                all->cases[i].run(all->cases[i].arg);
                n++;
                elapsed = now(options) - begin;
            } while (elapsed < 2e-3);
            all->seconds[i][round] = elapsed / n;
        }
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static bench_figure summarise(double *samples, int n)
{
    qsort(samples, (size_t)n, sizeof *samples, compare);
    const double median = 0.5 * (samples[n / 2] + samples[(n - 1) / 2]);
    return (bench_figure){median, (samples[n - 1 - n / 4] - samples[n / 4]) / median};
}

bench_figure bench_sum_ratio(const bench_options *options, const bench_cases *all, int first,
                             int end, const double *times, int bound)
{
    double samples[BENCH_MAX_ROUNDS];

    for (int round = 0; round < options->rounds; round++) {
        double work = 0, seconds = 0;
        for (int i = first; i < end; i++) {
            const double n = times ? times[i - first] : 1;
            work += n * all->cases[i].work;
            seconds += n * all->seconds[i][round];
        }
        samples[round] = work / seconds * all->seconds[bound][round] / all->cases[bound].work;
    }
    return summarise(samples, options->rounds);
}

bench_figure bench_ratio(const bench_options *options, const bench_cases *all, int i, int bound)
{
    return bench_sum_ratio(options, all, i, i + 1, NULL, bound);
}

bench_figure bench_rate(const bench_options *options, const bench_cases *all, int i)
{
    double samples[BENCH_MAX_ROUNDS];

    for (int round = 0; round < options->rounds; round++)
        samples[round] = all->cases[i].work / all->seconds[i][round];
    return summarise(samples, options->rounds);
}

void bench_report(const bench_options *options, const char *name, bench_figure figure,
                  const char *unit, const char *of, ...)
{
    char bound[200];
    va_list values;

    va_start(values, of);
    vsnprintf(bound, sizeof bound, of, values);
    va_end(values);
    if (options->json)
        printf("{\"name\": \"%s\", \"value\": %.4g, \"unit\": \"%s\", \"of\": \"%s\", "
               "\"spread\": %.3g}\n", name, figure.value, unit, bound, figure.spread);
    else
        printf("%-48s %6.3f %-7s +-%4.0f %%  of %s\n", name, figure.value, unit,
               50 * figure.spread, bound);
    fflush(stdout);
}

void *bench_memory(zinf_dtype dtype, int64_t n)
{
    const size_t size = zinf_dtype_bytes(dtype);
    const size_t page = 2 << 20, bytes = ((size_t)n * size + page - 1) / page * page;
    void *memory = aligned_alloc(page, bytes);
    uint32_t state = 12345;

    if (!memory) {
        fprintf(stderr, "tools/bench: no memory for %lld elements: free some\n", (long long)n);
        exit(4);
    }
    (void)madvise(memory, bytes, MADV_HUGEPAGE); /* as the arenas of zinf-run */
    for (int64_t i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        const float value = (float)(int32_t)state * 0x1p-31f;
        uint32_t bits;

        memcpy(&bits, &value, sizeof bits);
        if (dtype == ZINF_BF16)
            ((uint16_t *)memory)[i] = (uint16_t)(bits >> 16);
        else
            ((float *)memory)[i] = value;
    }
    return memory;
}

static void usage(FILE *to)
{
    fputs("usage: tools/bench [NAME..] [--json] [--threads N] [--rounds N]\n\n", to);
    for (int i = 0; i < N_ITEMS; i++)
        fprintf(to, "  %-12s %s\n", items[i].name, items[i].help);
    fputs("\nAll of them if none is named. --json: one object {name, value, unit, of, spread} per "
          "line.\n--threads: cores used (default: all online); 1 counts processor time, which a "
          "shared\nmachine disturbs least. --rounds: measurements of each case, in turns (default "
          "11).\n Exit codes: 0 done, 2 wrong usage, 4 no memory.\n", to);
}

static int positive(const char *text, int most)
{
    char *end;
    const long value = text ? strtol(text, &end, 10) : 0;

    return text && !*end && value >= 1 && value <= most ? (int)value : 0;
}

int main(int argc, char **argv)
{
    bench_options options = {.n_threads = (int)sysconf(_SC_NPROCESSORS_ONLN), .rounds = 11};
    bool wanted[N_ITEMS] = {false}, any = false;

    for (int a = 1; a < argc; a++) {
        int i = 0;

        while (i < N_ITEMS && strcmp(argv[a], items[i].name))
            i++;
        if (i < N_ITEMS) {
            wanted[i] = any = true;
        } else if (!strcmp(argv[a], "--json")) {
            options.json = true;
        } else if (!strcmp(argv[a], "--help") || !strcmp(argv[a], "-h")) {
            usage(stdout);
            return 0;
        } else if (!strcmp(argv[a], "--threads") && positive(argv[a + 1], 1024)) {
            options.n_threads = positive(argv[++a], 1024);
        } else if (!strcmp(argv[a], "--rounds") && positive(argv[a + 1], BENCH_MAX_ROUNDS)) {
            options.rounds = positive(argv[++a], BENCH_MAX_ROUNDS);
        } else {
            fprintf(stderr, "tools/bench: \"%s\" is no item or option, or lacks its number\n",
                    argv[a]);
            usage(stderr);
            return 2;
        }
    }
    for (int i = 0; i < N_ITEMS; i++)
        if (wanted[i] || !any)
            items[i].run(&options);
    return 0;
}
