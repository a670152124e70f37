/* runtime/executor.h - runs the programs of a plan: one thread a queue, order by waits alone.
 *
 * Everything is prepared by zinf_executor_open: arenas, one operation an instruction with its
 * pointers resolved, GEMM primitives, threads, storage channels, checksum table. Between begin
 * and end of zinf_executor_run nothing is allocated, formatted or decided.
 */
#ifndef ZINF_RUNTIME_EXECUTOR_H
#define ZINF_RUNTIME_EXECUTOR_H

#include <stdbool.h>
#include <stdint.h>

#include "runtime/backend.h"
#include "runtime/checkpoint.h"
#include "runtime/collective.h"
#include "runtime/error.h"
#include "runtime/plan.h"
#include "runtime/storage.h"

/* What a run of a program takes from outside and gives back. Unused callbacks may be NULL if the
 * program has no instruction for them; each is called from one queue's thread. */
typedef struct zinf_env {
    uint64_t step;      /* optimizer steps done so far; Adam counts this one as step + 1 */
    double lr;
    /* BATCH: n rows of cols tokens */
    zinf_status (*batch)(void *context, uint64_t n, uint64_t cols, int32_t *ret_tokens,
                         zinf_error *err);
    void *batch_context;
    /* IMPORT and EXPORT: elements [first, first + n) of a tensor */
    zinf_status (*get)(void *context, uint32_t tensor, zinf_state_array array, uint64_t first,
                       uint64_t n, float *ret_values, zinf_error *err);
    zinf_status (*put)(void *context, uint32_t tensor, zinf_state_array array, uint64_t first,
                       uint64_t n, const float *values, zinf_error *err);
    void *state_context;
    /* LOGITS: the row of h, and [vocab] where the tiles' logits are gathered */
    uint64_t row;
    float *logits;
    /* LOSS, where given: row_losses[i] becomes the sum over the last counts[i] tokens of sequence i
     * of the micro-batch, and loss the sum of those */
    const uint64_t *counts;
    double *row_losses;

    /* filled in by the run, from the scalar table */
    double loss, norm, factor;
    bool skip; /* the update was left out: loss or norm is not finite; see nonfinite.h */
} zinf_env;

typedef struct zinf_executor_options {
    const zinf_backend *backend;       /* NULL: cpu */
    const zinf_collective *collective; /* NULL: self */
    zinf_storage *storage;             /* NULL only if the plan's nvme arena is empty */
    bool serial;                       /* program order in the caller's thread; same results */
    bool trace;                        /* keep start and end of every instruction */
    uint64_t delay_seed;               /* != 0: random pauses before instructions (tests) */
} zinf_executor_options;

typedef struct zinf_executor zinf_executor;

/* The plan must be valid and outlive the executor, as must what options name. */
zinf_status zinf_executor_open(const zinf_plan *plan, const zinf_executor_options *options,
                               zinf_executor **ret_executor, zinf_error *err);
void zinf_executor_close(zinf_executor *executor); /* accepts NULL */

/* One program, start to end. After a failure the executor's state is undefined and every later
 * run fails with the same error. */
zinf_status zinf_executor_run(zinf_executor *executor, zinf_program_kind program, zinf_env *env,
                              zinf_error *err);

/* Time with at least one instruction running, of the last run. */
uint64_t zinf_executor_busy_ns(const zinf_executor *executor, zinf_queue queue);
/* Of a core, by the thread of a read or write queue, in the last run; 0 of other queues. */
uint64_t zinf_executor_cpu_ns(const zinf_executor *executor, zinf_queue queue);
/* Wall time of the last run. */
uint64_t zinf_executor_wall_ns(const zinf_executor *executor);

typedef struct zinf_trace_entry {
    uint32_t instr, iteration;
    uint64_t start_ns, end_ns; /* since the beginning of the run */
} zinf_trace_entry;

/* Entries of the last run in a queue (the first 2^18 of them); NULL without options.trace. */
const zinf_trace_entry *zinf_executor_trace(const zinf_executor *executor, zinf_queue queue,
                                            uint64_t *ret_n);

/* Start of an arena (device, host, scalar). */
void *zinf_executor_arena(const zinf_executor *executor, zinf_tier tier);
const char *zinf_executor_kernels_name(const zinf_executor *executor);

#endif
