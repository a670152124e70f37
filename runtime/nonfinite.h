/* runtime/nonfinite.h - when a step's numbers are not finite: where the first of them is, and
 * how a person is told.
 *
 * The guard itself is CLIP (operations.c): it runs before anything of the state is written, and
 * its flag leaves out every update. In a plan that updates inside backward each unit has a CLIP of
 * its own: what is wrong with the loss still leaves out every update, what is wrong with a gradient
 * that of its unit only. Nothing here costs a step anything as long as all is finite.
 */
#ifndef ZINF_RUNTIME_NONFINITE_H
#define ZINF_RUNTIME_NONFINITE_H

#include <stdbool.h>
#include <stdint.h>

#include "runtime/executor.h"

/* The largest norm an update may use, after clipping: its square must fit the second moments,
 * which are fp32. sqrt(FLT_MAX), rounded down. */
#define ZINF_LARGEST_NORM 1.8446743e19

/* The element of a gradient that was noted. */
typedef struct zinf_nonfinite {
    uint32_t unit, tensor;
    uint64_t row, col; /* in the tensor */
    float value;
} zinf_nonfinite;

/* Of the last run of STEP, whose update was skipped: the first gradient element that is not
 * finite, in the first unit in the order in which backward completes gradients. False if there
 * is none. */
bool zinf_executor_first_nonfinite(const zinf_executor *executor, zinf_nonfinite *ret_first);

/* "the loss is nan and ...": why env says the update was skipped, without full stop. */
void zinf_nonfinite_explain(const zinf_plan *plan, const zinf_executor *executor,
                            const zinf_env *env, char *ret_text, uint64_t n);

#endif
