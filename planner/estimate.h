/* planner/estimate.h - closed forms: memory and time of one set of decisions, in about a
 * microsecond, without lowering. They only rank candidates: what is promised comes from the
 * compiled plan.
 */
#ifndef ZINF_PLANNER_ESTIMATE_H
#define ZINF_PLANNER_ESTIMATE_H

#include "planner/spec.h"

typedef struct zinf_estimate {
    double step_s;
    double bytes[ZINF_N_TIERS]; /* arenas */
} zinf_estimate;

zinf_estimate zinf_estimate_step(const zinf_model *model, const zinf_cluster *cluster,
                                 const zinf_decisions *decisions);

#endif
