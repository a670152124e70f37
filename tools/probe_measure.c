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
    rate.spread = (samples[n - 1] - samples[0]) / rate.median;
    return rate;
}

probe_rate probe_measure(void (*body)(void *), void *arg, double work, double seconds)
{
    double samples[PROBE_MAX_SAMPLES];
    double begin = probe_now();
    int n = 0;

    body(arg);
    double end = probe_now() + seconds;
    /* Code so slow that one run takes the whole budget is measured once more, not thrice. */
    int at_least = end - begin > 2 * seconds ? 1 : 3;
    do {
        double start = probe_now(), elapsed;
        long rounds = 0;

        /* A sample is at least 2 ms long, so that the clock and a tick do not show. */
        do {
            body(arg);
            rounds++;
            elapsed = probe_now() - start;
        } while (elapsed < 2e-3);
        samples[n++] = work * (double)rounds / elapsed;
    } while (n < PROBE_MAX_SAMPLES && (n < at_least || probe_now() < end));
    return probe_summarise(samples, n);
}

void probe_report(const char *name, probe_rate rate, double scale, const char *unit)
{
    fprintf(stderr, "  %-34s %9.2f %-10s best %9.2f  spread %4.1f %%  (%d samples)\n", name,
            rate.median / scale, unit, rate.best / scale, 100 * rate.spread, rate.n);
}

void *probe_reserve(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (memory == MAP_FAILED)
        return NULL;
    memset(memory, 0, bytes);
    return memory;
}

void probe_release(void *memory, size_t bytes)
{
    if (memory)
        munmap(memory, bytes);
}
