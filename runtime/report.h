/* runtime/report.h - what a run tells: the progress line, the JSON log, the last table. Formats
 * between steps only, never inside one.
 */
#ifndef ZINF_RUNTIME_REPORT_H
#define ZINF_RUNTIME_REPORT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "runtime/error.h"
#include "runtime/evaluate.h"
#include "runtime/executor.h"
#include "runtime/plan.h"

typedef struct zinf_step_report {
    uint64_t step, steps;  /* done, to be done */
    double loss, lr, norm, clipped_norm;
    uint64_t tokens;       /* since training began, all ranks */
    double step_s, tokens_per_s, mfu;
    bool skipped, validated;
    double val_loss;
} zinf_step_report;

typedef struct zinf_rank_report {
    uint64_t measured_bytes[ZINF_N_TIERS];
    uint64_t sent_bytes; /* to other ranks, a step */
} zinf_rank_report;

typedef struct zinf_run_report {
    uint64_t planned_bytes[ZINF_N_TIERS], measured_bytes[ZINF_N_TIERS], peak_rss_bytes;
    double predicted_step_s, measured_step_s; /* measured: mean, without the first of several */
    double queue_s[ZINF_N_QUEUES];            /* measured busy time of a step, mean */
    double begin_s, save_s; /* making or loading all states; the last checkpoint, 0: none */
    uint64_t params_hash, n_steps;
    uint64_t sent_bytes;           /* in all steps */
    const zinf_rank_report *ranks; /* [n_ranks] */
    uint32_t n_ranks;
    const char *kernels, *engine;
} zinf_run_report;

typedef struct zinf_progress_line {
    bool terminal, open; /* open: a line without its newline is on the terminal */
    bool silent;         /* another rank tells */
    uint64_t shown_ns;
    double mean_step_s;
} zinf_progress_line;

uint64_t zinf_report_now_ns(void); /* a clock for the times of a report */

void zinf_progress_begin(zinf_progress_line *line, bool tells);
/* On a terminal one line, rewritten; else a line a second at most. last: always shown. */
void zinf_progress_step(zinf_progress_line *line, const zinf_step_report *step, bool last);
/* A line of text of its own on standard error. */
__attribute__((format(printf, 2, 3)))
void zinf_progress_say(zinf_progress_line *line, const char *format, ...);

/* A new log, in the place of what was there. */
zinf_status zinf_log_open(const char *path, FILE **ret_log, zinf_error *err);
/* The log of a training that goes on after `step`: what it had after that step's row is dropped
 * (those steps are done again, a summary is written at the end), so that it becomes the log of the
 * uninterrupted training. Missing are rows between its first one and that step's: somebody took
 * them out, or the machine died before they were on its disk. BAD_INPUT if the file is no log, or
 * its rows are not in order. */
typedef struct zinf_log_found {
    uint64_t n_dropped, n_missing, first_missing;
} zinf_log_found;
zinf_status zinf_log_continue(const char *path, uint64_t step, FILE **ret_log,
                              zinf_log_found *ret_found, zinf_error *err);
/* Numbers are printed so that they read back to the same bits; what is nan or inf is null. A step
 * whose update was left out for that has "skipped": true. path: named if it cannot be written. */
zinf_status zinf_log_step(FILE *log, const char *path, const zinf_step_report *step,
                          zinf_error *err);
zinf_status zinf_log_eval(FILE *log, const char *path, const zinf_evaluation *evaluation,
                          zinf_error *err);
zinf_status zinf_log_summary(FILE *log, const char *path, const zinf_plan *plan,
                             const zinf_run_report *run, zinf_error *err);

void zinf_report_table(FILE *out, const zinf_plan *plan, const zinf_run_report *run);

/* Chrome trace events: the predicted time line of a step, and the measured one of the
 * executor's last run. */
zinf_status zinf_trace_write(const char *path, const zinf_plan *plan,
                             const zinf_executor *executor, zinf_error *err);

#endif
