/* runtime/sums.h - of which contributions a gradient or the loss is the sum, in which order: in
 * another order, or as a sum of sums, it has other bits. Knows no memory and no instruction.
 *
 * A micro-batch contributes once by operators and, to the embedding, once by its tokens. Those of
 * either kind are added one micro-batch after the other; where there are both, a micro-batch's two
 * before the next one's, in horizontal and in vertical order.
 */
#ifndef ZINF_RUNTIME_SUMS_H
#define ZINF_RUNTIME_SUMS_H

#include "runtime/plan.h"

typedef struct zinf_addends {
    uint32_t first, n; /* of contributions of n micro-batches, one after the other */
} zinf_addends;

typedef struct zinf_sums {
    zinf_addends by[2]; /* operators, tokens */
} zinf_sums;

/* What a unit's gradient must be the sum of after n micro-batches. */
zinf_sums zinf_sums_due(const zinf_plan *plan, uint32_t unit, uint32_t n);
bool zinf_sums_equal(const zinf_sums *a, const zinf_sums *b);
/* Nothing that was begun lacks one of the first n micro-batches. */
bool zinf_sums_complete(const zinf_sums *sums, uint32_t n);
/* It is what is summed over ranks: in horizontal order single contributions, in vertical all. */
bool zinf_sums_of_one_rank(const zinf_plan *plan, const zinf_sums *sums);
/* `more` is added to sums, of this unit (ZINF_NONE: of the loss), or sums begins with it. Returns
 * what is wrong with that, or NULL. */
const char *zinf_sums_add(const zinf_plan *plan, uint32_t unit, const zinf_sums *more, bool begins,
                          zinf_sums *sums);

#endif
