/* tools/probe_measure.c - clock, samples and the report line of zinf-probe. */
#include "tools/probe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

double probe_now(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

probe_rate probe_summarise(double *samples, int n)
{
    probe_rate rate = {.n = n};

    qsort(samples, (size_t)n, sizeof *samples, compare);
    rate.median = n % 2 ? samples[n / 2] : 0.5 * (samples[n / 2 - 1] + samples[n / 2]);
    rate.best = samples[n - 1];
    rate.spread = (samples[3 * (n - 1) / 4] - samples[(n - 1) / 4]) / rate.median;
    return rate;
}

/* A sample, at least 2 ms long so that the clock and a tick do not show. */
static void take(probe_case *it, double seconds)
{
    double begin = probe_now(), start, elapsed;
    long rounds = 0;

    it->body(it->arg);
    start = probe_now();
    do {
        it->body(it->arg);
        rounds++;
        elapsed = probe_now() - start;
    } while (elapsed < 2e-3 || elapsed < seconds);
    it->samples[it->n++] = it->work * (double)rounds / elapsed;
    it->spent_s += probe_now() - begin;
}

void probe_measure(probe_case *cases, int n, double seconds, bool quick)
{
    const int turns = quick ? 3 : PROBE_TURNS;

    for (int turn = 0; turn < turns; turn++)
        for (int i = 0; i < n; i++)
            if (cases[i].n < 3 || cases[i].spent_s < 2 * seconds * (double)(turn + 1))
                take(&cases[i], seconds);
}

probe_rate probe_result(probe_case *it)
{
    const probe_rate rate = probe_summarise(it->samples, it->n);

    probe_report(it->name, rate, it->scale, it->unit);
    return rate;
}

void probe_report(const char *name, probe_rate rate, double scale, const char *unit)
{
    fprintf(stderr, "  %-34s %9.2f %-10s best %9.2f  spread %4.1f %%  (%d samples)\n", name,
            rate.median / scale, unit, rate.best / scale, 100 * rate.spread, rate.n);
}

void *probe_reserve(size_t bytes)
{
    const size_t page = (size_t)2 << 20;
    void *memory = bytes < SIZE_MAX - page ? aligned_alloc(page, (bytes + page - 1) / page * page)
                                           : NULL;

    if (!memory)
        return NULL;
    (void)madvise(memory, bytes, MADV_HUGEPAGE);
    memset(memory, 0, bytes);
    return memory;
}
