/* runtime/stated.h - does a plan take what it says it takes? */
#ifndef ZINF_RUNTIME_STATED_H
#define ZINF_RUNTIME_STATED_H

#include "runtime/plan.h"

/* After zinf_plan_validate. C1: each arena, and what a rank owns of it, ends with the page in which
 * the last thing in it does; the bill of a tier adds up to its arena; the memory beside the arenas
 * is what zinf-run takes with one set of kernels or the other; classes of states are in the tiers,
 * and a step moves the bytes, that are stated. Linear in the plan. */
zinf_status zinf_plan_check_stated(const zinf_plan *plan, zinf_error *err);

#endif
