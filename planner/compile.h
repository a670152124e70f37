/* planner/compile.h - decisions to a finished plan: the passes in order. */
#ifndef ZINF_PLANNER_COMPILE_H
#define ZINF_PLANNER_COMPILE_H

#include "planner/spec.h"

/* Bytes of one tier that a plan may use: memory less reserve. */
uint64_t zinf_capacity(const zinf_cluster *cluster, zinf_tier tier);

/* Stated use of a tier outside the arenas: code, libraries, thread stacks, the plan itself. */
uint64_t zinf_overhead(const zinf_cluster *cluster, zinf_tier tier);

/* graph, lower, place, and if everything fits (or `even_if_short`) schedule, cost, simulate.
 * ret_short[t]: bytes by which tier t is too small, 0 if it fits. On success ret_plan is the
 * caller's to free; without schedule if short. */
zinf_status zinf_compile(const zinf_model *model, const zinf_cluster *cluster,
                         const zinf_decisions *decisions, bool even_if_short, zinf_plan *ret_plan,
                         uint64_t ret_short[ZINF_N_TIERS], zinf_error *err);

#endif
