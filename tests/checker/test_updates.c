/* tests/checker/test_updates.c - one fault for each thing that an update needs: contributions to a
 * gradient and their sum, the loss, norms, and what is updated; in plans of the planner.
 */
#include <stdlib.h>

#include "mini.h"
#include "tests/checker/faults.h"

#define STEP(op, n) find(&p, ZINF_PROGRAM_STEP, ZINF_OP_##op, n)

static void a_norm_of_one_unit_at_the_end_is_refused(void)
{
    zinf_plan p = plan_with(1, ON_DEVICE " clip=0");
    const uint32_t i = STEP(CLIP, 0);

    CHECK(mutate_duplicate(&p, i));
    p.operands = realloc(p.operands, (p.n_operands + (size_t)2) * sizeof *p.operands);
    CHECK(p.operands);
    for (uint32_t k = 0; k < 2; k++)
        p.operands[p.n_operands + k] = *operand(&p, i, k);
    p.instrs[i + 1].operand0 = p.n_operands;
    p.operands[p.n_operands].cols = p.operands[p.n_operands].ld = 1;
    p.operands[p.n_operands].bytes = 8;
    p.n_operands += 2;
    check_refused(&p, "C7", i + 1, "is not the norm of all units");
}

/* acc += head + embedding, for acc += head, acc += embedding. */
static void a_sum_added_to_a_sum_is_refused(void)
{
    zinf_plan p = plan_of_five();
    const uint32_t head = STEP(CLASSIFIER, 1), tokens = STEP(EMBEDDING_BACKWARD, 1);
    const zinf_operand dw = *operand(&p, head, 5); /* whose place others use between */
    zinf_operand sum[2] = {*operand(&p, tokens, 2), dw};
    uint32_t first = head, second = tokens;

    while (p.instrs[first].opcode != ZINF_OP_ACCUMULATE)
        first++;
    while (p.instrs[second].opcode != ZINF_OP_ACCUMULATE ||
           p.instrs[second].unit != p.instrs[first].unit)
        second++;
    CHECK(first < tokens && operand(&p, first, 0)->offset == dw.offset);
    operand(&p, head, 5)->offset = more_arena(&p, dw.bytes);
    sum[1].offset = operand(&p, head, 5)->offset;
    operand(&p, second, 0)->offset = operand(&p, head, 5)->offset;
    operand(&p, second, 0)->value = dw.value;
    p.instrs[first].opcode = ZINF_OP_ZERO;
    p.instrs[first].n_operands = 1;
    operand(&p, first, 0)->offset = more_arena(&p, dw.bytes);
    insert(&p, tokens, ZINF_OP_ACCUMULATE, 2, sum);
    check_refused(&p, "C7", second + 1, "a sum is added to a sum");
}

static zinf_plan plan_of_two_micro_batches(unsigned ranks)
{
    static const trainer_model two = {1, 16, 2, 24, 8, 2, "bf16", NULL};
    static const trainer_model four = {1, 16, 2, 24, 8, 4, "bf16", /* no biases */
                                       ", kv_heads: 1, ffn: 24, tied_embeddings: false"};
    const zinf_plan plan =
        faults_plan(ranks > 1 ? &four : &two, true, ranks,
                    "threads=1 tiles=1 micro_batch=1 checkpoint_interval=none order=horizontal "
                    "tier.param=device tier.grad=device tier.optimizer=device "
                    "optimizer_time=after");

    CHECK(plan.decisions.accumulation == 2);
    return plan;
}

/* The gradients of the first micro-batch make the update, the second has a loss and no more. */
static void a_loss_behind_an_update_is_refused(void)
{
    zinf_plan p = plan_of_two_micro_batches(1);
    const zinf_segment *s = &p.segments[p.programs[ZINF_PROGRAM_STEP].first_segment];
    const uint32_t classifier = from(&p, s[1].first_instr, ZINF_OP_CLASSIFIER);
    const uint32_t loss = from(&p, classifier, ZINF_OP_LOSS);
    const zinf_instr was = p.instrs[loss];
    const zinf_operand o[2] = {*operand(&p, loss, 0), *operand(&p, loss, 1)};

    while (s[1].first_instr + s[1].n_instrs > classifier + 1)
        drop(&p, classifier + 1);
    const uint32_t clip = STEP(CLIP, 0), last = s[2].first_instr + s[2].n_instrs - 1;
    const uint32_t i = insert(&p, last, ZINF_OP_LOSS, 2, o);
    p.instrs[i].queue = ZINF_QUEUE_COMPUTE;
    p.instrs[i].flags = was.flags;
    memcpy(p.instrs[i].attr, was.attr, sizeof was.attr);
    p.instrs[i].n_waits = p.instrs[clip].queue != ZINF_QUEUE_COMPUTE;
    p.instrs[i].wait0 = p.n_waits;
    p.waits[p.n_waits++] = (zinf_wait){clip, 0};
    check_refused(&p, "C7", i, "before all norms");
}

/* Both micro-batches' first, then over ranks: another rounding than the order that is stated. */
static void check_sum_over_ranks(zinf_opcode makes)
{
    zinf_plan p = plan_of_two_micro_batches(2);
    const uint32_t first = p.programs[ZINF_PROGRAM_STEP].first_segment;
    const uint32_t one = find(&p, ZINF_PROGRAM_STEP, makes, 0), unit = p.instrs[one].unit;
    const uint64_t sum = more_arena(&p, p.units[unit].shard_elems * 2 * 4 + 4096);
    uint32_t n_dropped = 0, two, scatter;
    zinf_operand both[2];

    for (uint32_t i = p.segments[first].first_instr; i < p.segments[first + 1].first_instr; i++)
        if (i > one && p.instrs[i].unit == unit &&
            (p.instrs[i].opcode == ZINF_OP_REDUCE_SCATTER ||
             p.instrs[i].opcode == ZINF_OP_SUM_OF_SQUARES)) {
            drop(&p, i--);
            n_dropped++;
        }
    CHECK(n_dropped >= 1);
    two = from(&p, p.segments[first + 1].first_instr, makes);
    scatter = from(&p, two, ZINF_OP_REDUCE_SCATTER);
    CHECK(p.instrs[two].unit == unit && p.instrs[scatter].unit == unit);
    both[0] = both[1] = *operand(&p, two, 2);
    both[1].offset = operand(&p, one, 2)->offset = operand(&p, scatter, 0)->offset = sum;
    insert(&p, two, ZINF_OP_ACCUMULATE, 2, both);
    check_refused(&p, "C7", scatter + 1, "is not what ranks sum in the stated order");
}

static void a_sum_over_ranks_of_a_sum_is_refused(void)
{
    check_sum_over_ranks(ZINF_OP_LINEAR_BACKWARD_WEIGHT);
    check_sum_over_ranks(ZINF_OP_EMBEDDING_BACKWARD);
}

/* In vertical order a rank adds up all micro-batches before ranks do. */
static void a_sum_over_ranks_of_each_micro_batch_in_vertical_order_is_refused(void)
{
    zinf_plan p = plan_of_two_micro_batches(2);

    p.decisions.order = ZINF_VERTICAL;
    check_refused(&p, "C7", STEP(REDUCE_SCATTER, 0), "is not what ranks sum in the stated order");
}

/* Units are updated one by one, each with the norm of its own gradient: here another's. */
static void an_update_with_the_norm_of_another_unit_is_refused(void)
{
    zinf_plan p = plan_with(1, ON_DEVICE " clip=0 optimizer_time=backward");
    const uint32_t other = STEP(CLIP, 0), i = STEP(CLIP, 1);

    CHECK(operand(&p, i, 0)->cols == 1 && operand(&p, other, 0)->cols == 1);
    *operand(&p, i, 0) = *operand(&p, other, 0);
    check_refused(&p, "C7", from(&p, i, ZINF_OP_ADAM), "is not updated after its norm");
}

/* Where the runtime, or another instruction, looks for another. */
static void scalars_in_another_slot_are_refused(void)
{
    static const struct {
        zinf_opcode opcode;
        uint32_t slot;
        uint64_t to;
    } rows[] = {{ZINF_OP_LOSS, 1, 8 * ZINF_SCALAR_NORM},
                {ZINF_OP_SUM_OF_SQUARES, 1, 8 * ZINF_SCALAR_PARTIALS},
                {ZINF_OP_CLIP, 1, 8 * ZINF_SCALAR_LOSS}, {ZINF_OP_ADAM, 5, 8 * ZINF_SCALAR_LOSS}};

    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        zinf_plan p = plan_of(1);
        const uint32_t i = find(&p, ZINF_PROGRAM_STEP, rows[k].opcode, 0);
        CHECK(operand(&p, i, rows[k].slot)->offset != rows[k].to);
        operand(&p, i, rows[k].slot)->offset = rows[k].to;
        check_refused(&p, "C7", i, "a scalar is not in its slot");
    }
}

/* Of its unit and of the next one, where those updated know of one alone. */
static void a_norm_in_two_rows_is_refused(void)
{
    zinf_plan p = plan_with(1, ON_DEVICE " clip=0 optimizer_time=backward");
    const uint32_t i = STEP(CLIP, 1);

    CHECK(operand(&p, i, 0)->cols == 1);
    operand(&p, i, 0)->rows = 2;
    operand(&p, i, 0)->bytes = 16;
    check_refused(&p, "C7", i, "is not the norm of all units");
}

static void move_behind(zinf_plan *p, uint32_t i, uint32_t last)
{
    const zinf_instr moved = p->instrs[i];

    memmove(&p->instrs[i], &p->instrs[i + 1], (last - i) * sizeof moved);
    p->instrs[last] = moved;
    p->waits = realloc(p->waits, (p->n_waits + (size_t)4096) * sizeof *p->waits);
    CHECK(p->waits);
    mini_add_waits(p);
}

/* The norm of the one before it is there no more; units are updated from the last one on. */
static void an_update_with_the_norm_of_the_unit_behind_it_is_refused(void)
{
    zinf_plan p = plan_with(1, ON_DEVICE " clip=0 optimizer_time=backward");
    const uint32_t first = STEP(ADAM, 0), clip = from(&p, first, ZINF_OP_CLIP);
    const uint32_t second = from(&p, first + 1, ZINF_OP_ADAM);

    CHECK(second > clip && p.instrs[first].unit > p.instrs[second].unit);
    move_behind(&p, first, clip);
    check_refused(&p, "C7", clip, "is not updated after its norm");
}

/* Of the embedding's units, which are updated in their order. */
static void an_update_with_the_norm_of_the_unit_before_it_is_refused(void)
{
    zinf_plan p = plan_with(1, ON_DEVICE " clip=0 optimizer_time=backward");
    uint32_t first = STEP(ADAM, 0), second = from(&p, first + 1, ZINF_OP_ADAM);

    while (p.instrs[first].unit + 1 != p.instrs[second].unit) {
        first = second;
        second = from(&p, first + 1, ZINF_OP_ADAM);
    }
    move_behind(&p, from(&p, first, ZINF_OP_CLIP), second);
    check_refused(&p, "C7", second - 1, "is not updated after its norm");
}

/* The embedding's gradient by tokens before that by the classifier: another rounding. */
static void contributions_in_another_order_are_refused(void)
{
    zinf_plan p = plan_of_five();
    const uint32_t head = from(&p, loop_of(&p), ZINF_OP_CLASSIFIER);
    const uint32_t first = from(&p, head, ZINF_OP_ACCUMULATE);
    uint32_t second = from(&p, head, ZINF_OP_EMBEDDING_BACKWARD);
    zinf_operand sum[2];

    while (p.instrs[second].opcode != ZINF_OP_ACCUMULATE ||
           p.instrs[second].unit != p.instrs[first].unit)
        second++;
    operand(&p, head, 5)->offset = more_arena(&p, operand(&p, head, 5)->bytes);
    operand(&p, first, 0)->offset = operand(&p, head, 5)->offset;
    memcpy(sum, operand(&p, first, 0), sizeof sum);
    p.instrs[first].opcode = ZINF_OP_ZERO;
    p.instrs[first].n_operands = 1;
    operand(&p, first, 0)->offset = more_arena(&p, sum[0].bytes);
    insert(&p, second, ZINF_OP_ACCUMULATE, 2, sum);
    check_refused(&p, "C7", second, "by tokens and by operators are in another order");
}

/* Those by tokens of the first micro-batch behind those by the classifier of the second. */
static void contributions_a_micro_batch_late_are_refused(void)
{
    zinf_plan p = plan_of_two_micro_batches(1);
    const uint32_t tokens = STEP(EMBEDDING_BACKWARD, 0), unit = p.instrs[tokens].unit;
    uint32_t first = from(&p, tokens, ZINF_OP_ACCUMULATE), second;
    zinf_operand sum[2];

    while (p.instrs[first].unit != unit)
        first = from(&p, first + 1, ZINF_OP_ACCUMULATE);
    second = from(&p, STEP(CLASSIFIER, 1), ZINF_OP_ACCUMULATE);
    CHECK(first < second && p.instrs[second].unit == unit);
    operand(&p, tokens, 2)->offset = more_arena(&p, operand(&p, tokens, 2)->bytes);
    operand(&p, first, 0)->offset = operand(&p, tokens, 2)->offset;
    memcpy(sum, operand(&p, first, 0), sizeof sum);
    p.instrs[first].opcode = ZINF_OP_ZERO;
    p.instrs[first].n_operands = 1;
    operand(&p, first, 0)->offset = more_arena(&p, sum[0].bytes);
    insert(&p, second, ZINF_OP_ACCUMULATE, 2, sum);
    check_refused(&p, "C7", second, "by tokens and by operators are in another order");
}

/* The same of what ranks have summed. */
static void shards_added_in_another_order_are_refused(void)
{
    const trainer_model tied = {1, 16, 2, 24, 8, 4, "bf16", NULL};
    zinf_plan p = faults_plan(&tied, true, 2, "threads=1 tiles=1 micro_batch=1 order=horizontal "
                              "checkpoint_interval=none tier.param=device tier.grad=device "
                              "tier.optimizer=device optimizer_time=after");
    const uint32_t head = from(&p, STEP(CLASSIFIER, 1), ZINF_OP_REDUCE_SCATTER);
    const uint32_t first = from(&p, head, ZINF_OP_ACCUMULATE), unit = p.instrs[head].unit;
    uint32_t second = from(&p, first + 1, ZINF_OP_ACCUMULATE);

    while (p.instrs[second].unit != unit)
        second = from(&p, second + 1, ZINF_OP_ACCUMULATE);
    CHECK(unit == p.instrs[first].unit &&
          operand(&p, head, 1)->offset == operand(&p, first, 0)->offset);
    operand(&p, head, 1)->offset = more_arena(&p, operand(&p, head, 1)->bytes);
    operand(&p, first, 0)->offset = operand(&p, head, 1)->offset;
    move_behind(&p, first, second);
    check_refused(&p, "C7", second - 1, "by tokens and by operators are in another order");
}

static void a_loss_of_some_tokens_is_refused(void)
{
    zinf_plan p = plan_of(1);
    const uint32_t i = STEP(LOSS, 0);
    operand(&p, i, 0)->rows /= 2;
    operand(&p, i, 0)->bytes /= 2;
    check_refused(&p, "C7", i, "is not of every token of a micro-batch");
}

static void a_norm_of_some_units_is_refused(void)
{
    zinf_plan p = plan_of(1);
    const uint32_t i = STEP(CLIP, 0);
    operand(&p, i, 0)->bytes -= 8;
    operand(&p, i, 0)->cols = operand(&p, i, 0)->ld -= 1;
    check_refused(&p, "C7", i, "is not the norm of all units");
}

static void a_loss_after_a_norm_is_refused(void)
{
    zinf_plan p = plan_of(1);
    const uint32_t adam = STEP(ADAM, 0), i = adam + 1, loss = STEP(LOSS, 0);
    CHECK(mutate_duplicate(&p, adam)); /* a second one, which the loss replaces */
    p.instrs[i] = p.instrs[loss];
    p.instrs[i].n_waits = 0;
    drop(&p, loss);
    check_refused(&p, "C7", STEP(CLIP, 0), "it should hold the loss");
}

static void moments_of_an_update_that_are_elsewhere_are_refused(void)
{
    for (uint32_t k = 2; k <= 3; k++) {
        zinf_plan p = plan_of(1);
        const uint32_t i = STEP(ADAM, 0);
        operand(&p, i, k)->offset = operand(&p, i, 5 - k)->offset; /* the other's */
        check_refused(&p, "C3", i, "overlaps");
        p = plan_of(1);
        zinf_operand *o = operand(&p, i, 1); /* m, or v, where the master copy was: all moved on */
        for (uint32_t slot = k; slot <= 3; slot++)
            o[slot - 1].offset += 4096;
        check_refused(&p, "C", i, "");
    }
}

static void a_norm_of_one_rank_is_refused(void)
{
    zinf_plan p = plan_of(2);
    const uint32_t i = STEP(CLIP, 0), squares = STEP(ALLREDUCE, 1);
    operand(&p, i, 0)->value = operand(&p, squares, 0)->value; /* before the sum over ranks .. */
    drop(&p, squares);
    check_refused(&p, "C7", i - 1, "holds the sum of squares of one rank");
}

static void a_loss_of_one_rank_is_refused(void)
{
    zinf_plan p = plan_of(2);
    const uint32_t i = STEP(ALLREDUCE, 0), clip = STEP(CLIP, 0);
    drop(&p, i);
    check_refused(&p, "C7", clip - 1, "holds the loss of one rank");
    p = plan_of(2);
    drop(&p, find(&p, ZINF_PROGRAM_EVAL, ZINF_OP_ALLREDUCE, 0));
    check_refused_whole(&p, "program eval after instruction ");
}

static void decay_of_a_vector_is_refused(void)
{
    zinf_plan p = plan_of(1);
    const uint32_t i = STEP(ADAM, 0);
    zinf_unit *unit = &p.units[p.instrs[i].unit];
    const bool decays = unit->decays;

    unit->decays = !decays;
    p.instrs[i].attr[0] = !decays;
    check_refused_whole(&p, "weight decay applies to matrices");
}

static void a_step_that_leaves_no_norm_is_refused(void)
{
    zinf_plan p = plan_with(1, ON_DEVICE " optimizer_time=forward");

    p.instrs[STEP(CLIP, 0)] = p.instrs[STEP(SUM_OF_SQUARES, 0)];
    check_refused_whole(&p, "the norm taken last is not that of all units");
}

/* SAVE, and behind it for each unit a gradient of zeros and its norm: a second update would follow
 * the save. */
static void a_norm_in_another_program_is_refused(void)
{
    zinf_plan p = plan_with(1, ON_DEVICE " optimizer_time=forward");
    zinf_program *save = &p.programs[ZINF_PROGRAM_SAVE];
    const zinf_segment from = p.segments[save->first_segment];
    const size_t room = p.n_instrs + (size_t)from.n_instrs + 2 * p.n_units + 1;
    uint32_t clip = STEP(CLIP, 0), first = p.n_instrs, zero = 0;

    p.instrs = realloc(p.instrs, room * sizeof *p.instrs);
    p.segments = realloc(p.segments, (p.n_segments + (size_t)1) * sizeof *p.segments);
    p.operands = realloc(p.operands, (p.n_operands + (size_t)p.n_units) * sizeof *p.operands);
    CHECK(p.instrs && p.segments && p.operands && save->n_segments == 1);
    for (uint32_t i = 0; i < from.n_instrs; i++) {
        CHECK(p.instrs[from.first_instr + i].n_waits == 0); /* one queue */
        p.instrs[p.n_instrs++] = p.instrs[from.first_instr + i];
    }
    while (p.instrs[zero].opcode != ZINF_OP_ZERO || p.instrs[zero].unit == ZINF_NONE)
        zero++;
    for (uint32_t u = 0, sum_of = 0; u < p.n_units; u++, sum_of++) {
        while (p.instrs[sum_of].opcode != ZINF_OP_SUM_OF_SQUARES || p.instrs[sum_of].unit != u)
            sum_of = (sum_of + 1) % first;
        zinf_instr zeros = p.instrs[zero];
        zeros.unit = u, zeros.layer = p.units[u].layer, zeros.operand0 = p.n_operands;
        p.operands[p.n_operands++] = p.operands[p.instrs[sum_of].operand0];
        p.instrs[p.n_instrs++] = zeros;
        p.instrs[p.n_instrs++] = p.instrs[sum_of];
    }
    p.instrs[p.n_instrs++] = p.instrs[clip];
    for (uint32_t i = first; i < p.n_instrs; i++)
        p.instrs[i].n_waits = 0;
    save->first_segment = p.n_segments;
    p.segments[p.n_segments++] =
        (zinf_segment){.first_instr = first, .n_instrs = p.n_instrs - first, .count = 1};
    check_refused(&p, "C7", p.n_instrs - 1, "is the norm of a step in another program");
}

int main(void)
{
    RUN(a_norm_of_one_unit_at_the_end_is_refused);
    RUN(a_sum_added_to_a_sum_is_refused);
    RUN(a_loss_behind_an_update_is_refused);
    RUN(a_sum_over_ranks_of_a_sum_is_refused);
    RUN(a_sum_over_ranks_of_each_micro_batch_in_vertical_order_is_refused);
    RUN(an_update_with_the_norm_of_another_unit_is_refused);
    RUN(scalars_in_another_slot_are_refused);
    RUN(a_norm_in_two_rows_is_refused);
    RUN(an_update_with_the_norm_of_the_unit_behind_it_is_refused);
    RUN(an_update_with_the_norm_of_the_unit_before_it_is_refused);
    RUN(contributions_in_another_order_are_refused);
    RUN(contributions_a_micro_batch_late_are_refused);
    RUN(shards_added_in_another_order_are_refused);
    RUN(a_loss_of_some_tokens_is_refused);
    RUN(a_norm_of_some_units_is_refused);
    RUN(a_loss_after_a_norm_is_refused);
    RUN(moments_of_an_update_that_are_elsewhere_are_refused);
    RUN(a_norm_of_one_rank_is_refused);
    RUN(a_loss_of_one_rank_is_refused);
    RUN(decay_of_a_vector_is_refused);
    RUN(a_step_that_leaves_no_norm_is_refused);
    RUN(a_norm_in_another_program_is_refused);
    return check_finish();
}
