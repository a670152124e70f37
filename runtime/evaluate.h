/* runtime/evaluate.h - the loss of a model over a file of tokens or its beginning, forward only. */
#ifndef ZINF_RUNTIME_EVALUATE_H
#define ZINF_RUNTIME_EVALUATE_H

#include <signal.h>
#include <stdint.h>

#include "runtime/data.h"
#include "runtime/error.h"
#include "runtime/executor.h"
#include "runtime/plan.h"
#include "runtime/ranks.h"

typedef struct zinf_evaluation {
    double loss, perplexity; /* mean over the tokens, and e to its power */
    uint64_t n_tokens;       /* predicted: all of the file's but the first */
    uint64_t n_sequences, n_done;
} zinf_evaluation;

/* Every token of the file but the first is predicted once, in windows of the plan's sequence: in
 * file order, and where the last one would be shorter it begins earlier and its first tokens do
 * not count. Ranks take turns at the windows, as many each, and each knows the losses of all. Sums
 * are in file order, so that the result depends neither on the micro-batch nor on tiers nor on the
 * number of ranks. At most `most` windows, the first ones. *stop != 0 on any rank ends it early:
 * n_done < n_sequences then, and the mean is over those. A loss may be nan or inf, on all ranks. */
zinf_status zinf_evaluate(const zinf_plan *plan, zinf_executor *executor, const zinf_data *data,
                          uint64_t most, zinf_ranks *ranks, const volatile sig_atomic_t *stop,
                          zinf_evaluation *ret_evaluation, zinf_error *err);

#endif
