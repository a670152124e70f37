/* tests/checker/restate.h - what a changed plan says of memory and traffic, made true again. */
#ifndef ZINF_TESTS_CHECKER_RESTATE_H
#define ZINF_TESTS_CHECKER_RESTATE_H

#include "runtime/plan.h"

/* Arenas, bill, memory beside the arenas and bytes moved, as stated.h asks for them; capacities
 * grow where they must. plan->items is an array of malloc with room for a tier each. */
void restate(zinf_plan *plan);

#endif
