/* planner/cost.h - how long an instruction takes when it runs alone, from the cluster file. */
#ifndef ZINF_PLANNER_COST_H
#define ZINF_PLANNER_COST_H

#include "planner/build.h"

/* FLOP/s of the device at a precision; a device without bf16 is taken at its fp16 rate, one
 * without either at fp32's. */
double zinf_device_peak(const zinf_cluster *cluster, zinf_dtype precision);

/* FLOP/s of what a step does, where that is known, else of the peak: a linear forward and backward,
 * the classifier, and attention (masked pairs not counted; half of the peak), whose rate grows
 * with the sequence s as s / (s + attention_half). */
double zinf_linear_rate(const zinf_cluster *cluster, zinf_dtype precision);
double zinf_classifier_rate(const zinf_cluster *cluster, zinf_dtype precision);
double zinf_attention_rate(const zinf_cluster *cluster, zinf_dtype precision, double sequence);

/* FLOP of one instruction, attention counted causally (half of seq * seq). */
double zinf_instr_flops(const zinf_plan *plan, const zinf_instr *instr);

/* Bytes moved through memory: every operand once, each way. */
double zinf_instr_bytes(const zinf_plan *plan, const zinf_instr *instr);

/* Which of the rates that a step reaches the instruction goes by: a zinf_step_rate, or -1. */
int zinf_step_rate_of(const zinf_plan *plan, const zinf_instr *instr);

/* Of a linear's product: bytes beyond those that usual ones move for so many FLOP. */
double zinf_product_excess(const zinf_plan *plan, const zinf_instr *instr);

/* Of a plan in which ranks own units: what the one that has most of `elems` has of them. */
double zinf_owner_share(const zinf_plan *plan, double elems);

/* Sets cost_ns of every instruction; share as above. */
void zinf_cost(zinf_plan *plan, const zinf_cluster *cluster, double share);

/* bytes/s between host and one device; alone: while no other device of its node uses its own. */
double zinf_link_rate(const zinf_cluster *cluster, bool alone);

#endif
