/* tests/checker/mutate.h - single faults of a plan, and copies of plans to make them in. */
#ifndef ZINF_TESTS_CHECKER_MUTATE_H
#define ZINF_TESTS_CHECKER_MUTATE_H

#include "runtime/plan.h"

typedef enum mutate_target {
    MUTATE_INSTR, MUTATE_OPERAND, MUTATE_WAIT, MUTATE_SEGMENT, MUTATE_TENSOR
} mutate_target;

typedef struct mutation {
    const char *name;
    mutate_target target;
    bool (*apply)(zinf_plan *plan, uint32_t i); /* to a copy; false: no fault here */
} mutation;

extern const mutation mutations[];
extern const uint32_t n_mutations;

/* Its own arrays, with room for what a mutation adds; free with zinf_plan_free. */
zinf_plan mutate_copy(const zinf_plan *plan);
/* The instruction once more, behind itself; who waited for it waits for the second. */
bool mutate_duplicate(zinf_plan *plan, uint32_t instr);
/* Without it; who waited for it waits for the one before it in its queue. False: the last one. */
bool mutate_drop(zinf_plan *plan, uint32_t instr);
/* How many places the target has. */
uint32_t mutate_count(const zinf_plan *plan, mutate_target target);
/* The instruction that place i belongs to, or ZINF_NONE. */
uint32_t mutate_instr(const zinf_plan *plan, mutate_target target, uint32_t i);

#endif
