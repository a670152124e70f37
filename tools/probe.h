/* tools/probe.h - what zinf-probe measures, and how it is asked to.
 *
 * Everything is measured in turns, one short sample of each number after the other, so that a
 * moment in which the machine is slow falls on all of them and counts little. The median is what
 * the cluster file gets, the spread (of the middle half, to the median) is printed beside it.
 */
#ifndef ZINF_TOOLS_PROBE_H
#define ZINF_TOOLS_PROBE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "planner/spec.h"
#include "runtime/error.h"

enum { PROBE_TURNS = 12 };

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

/* One number to measure: `body(arg)` does `work` (FLOP, bytes, parameters). */
typedef struct probe_case {
    char name[64];
    const char *unit; /* of work / scale per second, for people */
    double work, scale;
    void (*body)(void *);
    void *arg;
    double samples[PROBE_TURNS], spent_s;
    int n;
} probe_case;

typedef struct probe_compute {
    double peak_f32, peak_bf16; /* FLOP/s, best shape's median */
    double bandwidth;           /* bytes/s read and written, triad, all threads */
    double copy;                /* bytes/s copied between two arenas by one thread */
    double hand_over_s;         /* from one thread to another */
} probe_compute;

typedef struct probe_step {
    zinf_step_rates bf16, f32;
    double adam;                       /* params/s */
    double sum_of_squares, accumulate; /* bytes/s */
} probe_step;

typedef struct probe_nvme {
    uint64_t capacity_bytes, block_bytes;
    uint32_t depth;
    double read, write, latency_s; /* bytes/s */
    double core; /* bytes/s that a core moves; 0: not measured */
    bool overlap;
    const char *directory;
} probe_nvme;

/* Seconds, monotonic. */
double probe_now(void);

/* Median, best and spread of samples[n] (n >= 1); sorts samples. */
probe_rate probe_summarise(double *samples, int n);

/* Takes a sample of each of n cases, in PROBE_TURNS turns (three if quick): body once unmeasured,
 * then until `seconds` have passed. Code so slow that one run takes longer is run less often. */
void probe_measure(probe_case *cases, int n, double seconds, bool quick);

/* Of what was measured; prints its line. */
probe_rate probe_result(probe_case *it);

/* One line on stderr: name, median, best, spread. `scale` divides, `unit` names the result. */
void probe_report(const char *name, probe_rate rate, double scale, const char *unit);

/* Huge pages where the kernel has them, as the arenas of zinf-run, touched; NULL if memory is
 * short. Freed by free(). */
void *probe_reserve(size_t bytes);

zinf_status probe_measure_compute(const probe_options *options, uint64_t available_bytes,
                                  probe_compute *ret_compute, zinf_error *err);
zinf_status probe_measure_step(const probe_options *options, uint64_t available_bytes,
                               const probe_compute *compute, probe_step *ret_step,
                               zinf_error *err);
/* Storage as a step uses it: reads and writes at once, each with its checksum, beside the update
 * itself. Lowers (or raises) nvme's rates to what the update of a small model reaches. */
zinf_status probe_measure_update(const probe_options *options, uint64_t available_bytes,
                                 const probe_compute *compute, probe_nvme *nvme,
                                 zinf_error *err);
zinf_status probe_measure_nvme(const probe_options *options, const char *directory,
                               probe_nvme *ret_nvme, zinf_error *err);

#endif
