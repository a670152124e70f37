/* planner/compile.h - decisions to a finished plan: the passes in order. */
#ifndef ZINF_PLANNER_COMPILE_H
#define ZINF_PLANNER_COMPILE_H

#include "planner/spec.h"

/* Bytes of one tier that a plan may use: memory less reserve. */
uint64_t zinf_capacity(const zinf_cluster *cluster, zinf_tier tier);

/* Stated use of a tier outside the arenas: code, libraries, thread stacks; of a plan without
 * instructions. */
uint64_t zinf_overhead(const zinf_cluster *cluster, zinf_tier tier);

/* graph, lower, place, and if everything fits schedule, cost, simulate; unless it is to be the
 * least memory, also with more where that is faster (lower.h: ahead; place.h: more).
 * ret_short[t]: bytes by which tier t is too small, 0 if it fits. On success ret_plan is the
 * caller's to free; without schedule if short. */
zinf_status zinf_compile(const zinf_model *model, const zinf_cluster *cluster,
                         const zinf_decisions *decisions, bool least, zinf_plan *ret_plan,
                         uint64_t ret_short[ZINF_N_TIERS], zinf_error *err);

/* The memory alone, at a third of the cost. */
zinf_status zinf_compile_memory(const zinf_model *model, const zinf_cluster *cluster,
                                const zinf_decisions *decisions,
                                uint64_t ret_short[ZINF_N_TIERS], zinf_error *err);

/* What zinf_compile would find before it spreads what is placed (place.h), which takes no memory
 * and saves time: exact for a model of a few blocks; of a deeper one, memory and time on the line
 * through two shallow ones, since both grow by equal steps with every group of blocks between
 * checkpoints. Costs as much as those few blocks, whatever the depth. */
typedef struct zinf_probe {
    bool fits;
    double step_s;      /* 0 unless it fits, or with memory_only */
    double shortness;   /* sum over tiers of what is missing / capacity; 0 if it fits */
    double load;        /* sum over tiers of what is needed / capacity */
    uint64_t arena_bytes[ZINF_N_TIERS], short_bytes[ZINF_N_TIERS];
    uint64_t n_instrs, work; /* of the whole plan; compiled here, scheduling counted twice */
} zinf_probe;
zinf_status zinf_probe_decisions(const zinf_model *model, const zinf_cluster *cluster,
                                 const zinf_decisions *decisions, bool memory_only,
                                 zinf_probe *ret_probe, zinf_error *err);

#endif
