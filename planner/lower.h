/* planner/lower.h - operators and decisions to instructions on virtual buffers, in program
 * order: a sequential order that is correct, in which every transfer already stands as far ahead
 * of its use as the prefetch distances say.
 */
#ifndef ZINF_PLANNER_LOWER_H
#define ZINF_PLANNER_LOWER_H

#include "planner/build.h"
#include "planner/graph.h"

/* Elements between rows of scores over part of the vocabulary: whole cache lines in any type. */
static inline uint64_t zinf_scores_ld(uint64_t cols)
{
    return (cols + 31) / 32 * 32;
}

/* Tokens of one chunk of the classifier: bounds the fp32 logits that exist at once. */
uint64_t zinf_classifier_chunk(const zinf_model *model, const zinf_cluster *cluster,
                               const zinf_decisions *d, uint64_t tokens);

/* Whether the embedding's states can be brought to where it is updated while backward goes on, so
 * that its update, which is the last to have its gradient and has nothing to wait for but the norm,
 * need not wait for them: not in a loop over micro-batches. */
static inline bool zinf_may_bring_ahead(const zinf_decisions *d)
{
    return d->tier[ZINF_CLASS_OPTIMIZER] != ZINF_TIER_DEVICE &&
           (d->accumulation == 1 || d->order == ZINF_VERTICAL);
}

/* Appends every program of the plan; zinf_graph_build came before. decisions are complete and in
 * range. ahead: brings those states so, which takes their memory for longer. Buffers of program p
 * are [program_buffers[p], program_buffers[p + 1]). Errors in b->err. */
void zinf_lower(zinf_builder *b, const zinf_model *model, const zinf_cluster *cluster,
                const zinf_decisions *d, bool ahead,
                uint32_t ret_program_buffers[ZINF_N_PROGRAMS + 1]);

#endif
