/* planner/report.h - a plan for people and for programs: summary, --explain, --json, --show,
 * --simulate, --trace.
 */
#ifndef ZINF_PLANNER_REPORT_H
#define ZINF_PLANNER_REPORT_H

#include <stdio.h>

#include "planner/search.h"

/* Eq. 1-11 for a plan; index 0 parameters + gradients, 1 optimizer states, 2 checkpoints. */
typedef struct zinf_equation_values {
    double params, model_state_bytes, checkpoint_bytes, mswm_bytes, awm_bytes;
    double ait[3], efficiency[3], bandwidth[3]; /* bytes/s of the tier chosen */
    double flops_per_step, flops_per_step_8;    /* Eq. 7 and Eq. 8, all micro-batches */
} zinf_equation_values;
zinf_equation_values zinf_report_equations(const zinf_plan *plan, const zinf_model *model,
                                           const zinf_cluster *cluster);

/* "1.25 GiB", "0.80 s": into text, which is returned. */
const char *zinf_text_bytes(uint64_t bytes, char text[32]);
const char *zinf_text_seconds(double seconds, char text[32]);

/* Decisions, memory per tier, predicted time and what bounds it: what every planning prints. */
void zinf_report_summary(FILE *out, const zinf_plan *plan);
/* The summary, Eq. 1-11 with their values, itemised memory, traffic, time per queue. */
void zinf_report_explain(FILE *out, const zinf_plan *plan, const zinf_model *model,
                         const zinf_cluster *cluster);
void zinf_report_top(FILE *out, const zinf_search_result *result);
/* One JSON object, fields as the design names them; also of a result that does not fit. */
zinf_status zinf_report_json(FILE *out, const zinf_search_result *result,
                             const zinf_model *model, const zinf_cluster *cluster, double seconds,
                             zinf_error *err);
/* Every instruction as one line of text. */
void zinf_report_show(FILE *out, const zinf_plan *plan);
/* Each program simulated again from the plan alone. */
zinf_status zinf_report_simulate(FILE *out, const zinf_plan *plan, zinf_error *err);
/* Chrome trace events of the predicted step. */
zinf_status zinf_report_trace(const char *path, const zinf_plan *plan, zinf_error *err);

#endif
