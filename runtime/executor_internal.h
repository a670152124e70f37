/* runtime/executor_internal.h - what executor.c, operations.c and transfer.c share. */
#ifndef ZINF_RUNTIME_EXECUTOR_INTERNAL_H
#define ZINF_RUNTIME_EXECUTOR_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "runtime/executor.h"
#include "runtime/opcodes.h"

enum { ZINF_OP_GEMMS = 7, ZINF_FLIGHTS = 32, ZINF_TRACE_CAPACITY = 1 << 18 };

/* A wait resolved to a queue's count of completed instances. */
typedef struct zinf_need {
    uint64_t base;     /* completed instances needed at iteration 0 */
    uint64_t per_iter; /* more at each further iteration; 0 for an earlier segment */
    uint64_t distance;
    uint32_t queue;
} zinf_need;

/* One instruction, prepared. */
typedef struct zinf_op {
    const zinf_instr *instr;
    const zinf_operand *operands;
    zinf_status (*run)(zinf_executor *executor, const struct zinf_op *op,
                       char *const operand[ZINF_MAX_OPERANDS], zinf_error *err);
    char *base[ZINF_MAX_OPERANDS]; /* NULL: absent, or in the nvme tier */
    zinf_gemm *gemm[ZINF_OP_GEMMS]; /* the executor's, shared by equal descriptors */
    uint64_t last;   /* instances of its queue that are complete when its last one is */
    uint64_t first;  /* LOGITS: row of the vocabulary of the tile's first logit */
    uint32_t position; /* among the instructions of its queue in its segment */
    bool elsewhere;    /* another rank carries it out, see zinf_instr_owner */
} zinf_op;

typedef struct zinf_shared_gemm {
    zinf_gemm_desc desc;
    uint64_t scratch_bytes, hash;
    zinf_gemm *gemm;
} zinf_shared_gemm;

/* A stretch of the nvme file that is always moved as a whole, and what it should contain. */
typedef struct zinf_sum {
    uint64_t offset, hash; /* it ends where the next begins */
    bool written;
} zinf_sum;

typedef struct zinf_flight {
    zinf_io io;
    const zinf_op *op;
    uint64_t iteration, start_ns;
} zinf_flight;

typedef struct zinf_lane {
    zinf_executor *executor;
    unsigned queue;
    bool used, started; /* has instructions; its thread runs */
    pthread_t thread;

    /* completed instances of this run, and those who sleep until it grows */
    _Atomic uint64_t done;
    atomic_int sleepers;
    pthread_mutex_t mutex;
    pthread_cond_t grown;

    uint64_t busy_ns, cpu_ns, random;
    zinf_trace_entry *trace;
    uint64_t n_trace, trace_capacity;

    zinf_channel *channel; /* read and write */
    zinf_flight *flights;  /* [ZINF_FLIGHTS] */
} zinf_lane;

/* The first element of a unit's gradient that is not finite; place 0: none was seen. */
typedef struct zinf_noted {
    uint64_t place; /* index + 1 */
    float value;
} zinf_noted;

struct zinf_executor {
    const zinf_plan *plan;
    const zinf_backend *backend;
    const zinf_collective *collective;
    zinf_storage *storage;
    bool serial, trace;
    uint64_t delay_seed;

    void *arena[ZINF_N_TIERS];
    double *scalars;
    zinf_kernels kernels;
    zinf_op *ops;         /* [n_instrs] */
    zinf_need *needs;     /* [n_waits] */
    uint32_t *order;      /* [n_instrs] instructions by segment, then queue, in program order */
    uint32_t *start;      /* [n_segments][N_QUEUES + 1] into order */
    zinf_shared_gemm **gemms; /* [gemm_places], at their hash or behind it; NULL: free */
    uint64_t n_gemms, gemm_places;
    double *frequencies;  /* [head_dim / 2] of the rotary positions, rope.h */
    int32_t *targets;     /* of the classifier: as many as the largest batch has tokens */
    zinf_sum *sums;       /* [n_sums + 1] in order of offset; the last only ends the one before */
    uint64_t n_sums;
    zinf_noted *noted;    /* [n_units]; see nonfinite.h */
    atomic_bool any_noted;

    /* a run */
    pthread_mutex_t mutex; /* epoch, running, error */
    pthread_cond_t begin, end;
    uint64_t epoch;
    int running;
    bool stopping;
    zinf_program_kind program;
    zinf_env *env;
    uint64_t begin_ns, wall_ns;
    atomic_bool failed;
    zinf_error error;

    zinf_lane lanes[ZINF_N_QUEUES];
};

static inline const uint32_t *zinf_starts(const zinf_executor *executor, uint32_t segment)
{
    return executor->start + (size_t)segment * (ZINF_N_QUEUES + 1);
}

static inline void zinf_op_operands(const zinf_op *op, uint64_t iteration,
                                    char *ret_operand[ZINF_MAX_OPERANDS])
{
    for (uint32_t i = 0; i < op->instr->n_operands; i++)
        ret_operand[i] = op->base[i] ? op->base[i] + iteration * op->operands[i].stride : NULL;
}

uint64_t zinf_now_ns(void);

/* executor.c: waiting for and telling other queues. */
bool zinf_needs_met(zinf_executor *executor, const zinf_op *op, uint64_t iteration);
/* False if the run failed meanwhile. */
bool zinf_needs_wait(zinf_executor *executor, const zinf_op *op, uint64_t iteration);
void zinf_lane_publish(zinf_lane *lane, uint64_t done);
void zinf_lane_pause(zinf_lane *lane); /* the random delay, if any */
void zinf_lane_record(zinf_lane *lane, const zinf_op *op, uint64_t iteration, uint64_t start_ns,
                      uint64_t end_ns);
void zinf_executor_fail(zinf_executor *executor, const zinf_op *op, const zinf_error *cause);

/* operations.c: fills run and gemm of an operation whose pointers are resolved. */
zinf_status zinf_op_prepare(zinf_executor *executor, zinf_op *op, zinf_error *err);

/* nonfinite.c */
void zinf_nonfinite_note(zinf_executor *executor, const zinf_op *op, const float *x, uint64_t n);
void zinf_nonfinite_forget(zinf_executor *executor); /* before a step */

/* transfer.c: the read and write queues. */
zinf_status zinf_transfer_open(zinf_executor *executor, zinf_error *err);
void zinf_transfer_close(zinf_executor *executor);
void zinf_transfer_lane(zinf_lane *lane); /* a run of the program in that queue's thread */
zinf_status zinf_transfer_now(zinf_executor *executor, const zinf_op *op, uint64_t iteration,
                              zinf_error *err); /* one transfer, complete on return */

#endif
