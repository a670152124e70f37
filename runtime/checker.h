/* runtime/checker.h - the independent proof that a plan is safe, run on every plan and every load.
 *
 * Knows plan.h and opcodes.h and nothing of the planner. Owns nothing; the plan is only read.
 */
#ifndef ZINF_RUNTIME_CHECKER_H
#define ZINF_RUNTIME_CHECKER_H

#include "runtime/plan.h"

/* Proves the rules of the design for every program of a plan, zinf_plan_validate first:
 * C1 capacity, C2 alignment, C3 conflicting accesses ordered, C4 reads see the right value,
 * C5 waits point backwards, C6 collectives agree, C7 each unit updated once from its complete
 * gradient, C8 what a step reads on entry it leaves on exit. A refusal (ZINF_DOES_NOT_FIT) starts
 * with the rule, or "plan refused" if it is not well formed, and names the instruction. Time and
 * memory are near linear in instructions. */
zinf_status zinf_plan_check(const zinf_plan *plan, zinf_error *err);

#endif
