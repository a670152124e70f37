/* tools/probe.h - what zinf-probe measures, and how it is asked to.
 *
 * One probe_rate per number: samples are taken until a time budget or a count is reached, the
 * median is what the cluster file gets, the spread ((largest - smallest) / median) is printed
 * beside it.
 */
#ifndef ZINF_TOOLS_PROBE_H
#define ZINF_TOOLS_PROBE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "planner/spec.h"
#include "runtime/error.h"

enum { PROBE_MAX_SAMPLES = 32 };

typedef struct probe_options {
    const char *output; /* NULL: stdout */
    char directories[ZINF_MAX_PATHS][ZINF_PATH_BYTES]; /* absolute where they exist */
    int n_directories;
    uint64_t device_memory_bytes; /* 0: unified */
    int n_threads;
    bool quick; /* fewer samples, smaller arrays */
} probe_options;

typedef struct probe_rate {
    double median, best, spread; /* work per second; spread is a fraction of the median */
    int n;
} probe_rate;

typedef struct probe_compute {
    double peak_f32, peak_bf16; /* FLOP/s, best shape's median */
    double attention, attention_f32; /* FLOP/s, masked pairs not counted; the first in bf16 */
    double bandwidth;           /* bytes/s read and written, triad, all threads */
    double adam;                /* params/s */
    double copy;                /* bytes/s copied between two arenas by one thread */
    double hand_over_s;         /* from one thread to another */
} probe_compute;

typedef struct probe_nvme {
    uint64_t capacity_bytes, block_bytes;
    uint32_t depth;
    double read, write, latency_s; /* bytes/s */
    bool overlap;
} probe_nvme;

/* Seconds, monotonic. */
double probe_now(void);

/* Median, best and spread of samples[n] (n >= 1); sorts samples. */
probe_rate probe_summarise(double *samples, int n);

/* Runs body(arg), which does `work` (FLOP, bytes, parameters): once unmeasured, then at least
 * three times (once, if it is slow) and until `seconds` have passed. */
probe_rate probe_measure(void (*body)(void *), void *arg, double work, double seconds);

/* One line on stderr: name, median, best, spread. `scale` divides, `unit` names the result. */
void probe_report(const char *name, probe_rate rate, double scale, const char *unit);

/* Pages of their own, touched; NULL if memory is short. Freed by probe_release. */
void *probe_reserve(size_t bytes);
void probe_release(void *memory, size_t bytes);

zinf_status probe_measure_compute(const probe_options *options, uint64_t available_bytes,
                                  probe_compute *ret_compute, zinf_error *err);
zinf_status probe_measure_nvme(const probe_options *options, const char *directory,
                               probe_nvme *ret_nvme, zinf_error *err);

#endif
