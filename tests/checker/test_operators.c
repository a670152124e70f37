/* tests/checker/test_operators.c - one fault for each thing that an operator's operands must be, in
 * plans of the planner: the rule, the instruction and what is wrong are in the message.
 */
#include <stdlib.h>

#include "kernels/kernels.h"
#include "mini.h"
#include "tests/checker/faults.h"
#include "tests/checker/restate.h"

#define STEP(op, n) find(&p, ZINF_PROGRAM_STEP, ZINF_OP_##op, n)

static const trainer_model gpt2 = {1, 16, 2, 24, 8, 1, "bf16", NULL};
static const trainer_model of_two_ranks = {1, 16, 2, 24, 8, 2, "bf16", NULL};

static void a_forward_value_for_a_gradient_is_refused(void)
{
    zinf_plan p = plan_of(1);
    const uint32_t i = STEP(ATTENTION_BACKWARD, 0); /* out for dout: one shape, one operator */
    *operand(&p, i, 2) = *operand(&p, i, 1);
    check_refused(&p, "C4", i, "holds the result (of 3), it should hold the result's gradient");
}

static void the_gradient_of_another_operator_is_refused(void)
{
    zinf_plan p = plan_of(1);
    const uint32_t i = STEP(POSITION_BACKWARD, 0);
    *operand(&p, i, 0) = *operand(&p, STEP(LAYERNORM_BACKWARD, 1), 5); /* of the second norm */
    check_refused(&p, "C4", i, "is not what the model applies this operator to");
}

static void a_norm_without_the_residuals_gradient_is_refused(void)
{
    zinf_plan p = plan_of(1);
    const uint32_t i = STEP(LAYERNORM_BACKWARD, 1);
    *operand(&p, i, 4) = (zinf_operand){.value = ZINF_NONE};
    check_refused(&p, "C4", i, "is missing, unlike in the model");
}

static void the_gradients_of_weight_and_bias_exchanged_are_refused(void)
{
    zinf_plan p = plan_of(2); /* they are written beside the region */
    const uint32_t i = STEP(LAYERNORM_BACKWARD, 1), scatter = STEP(REDUCE_SCATTER, 0);
    const zinf_operand w = *operand(&p, i, 6);
    *operand(&p, i, 6) = *operand(&p, i, 7);
    *operand(&p, i, 7) = w;
    uint32_t at = scatter;
    while (p.instrs[at].opcode != ZINF_OP_REDUCE_SCATTER ||
           p.instrs[at].unit != p.instrs[i].unit)
        at++;
    check_refused(&p, "C7", at, "at its place");
}

static void the_same_in_their_region_are_refused(void)
{
    zinf_plan p = plan_of(1);
    const uint32_t i = STEP(LAYERNORM_BACKWARD, 1);
    const zinf_operand w = *operand(&p, i, 6);
    *operand(&p, i, 6) = *operand(&p, i, 7);
    *operand(&p, i, 7) = w;
    check_refused(&p, "C7", i, "at its place"); /* found by who reads it after this one */
}

static void half_of_a_matrix_is_refused(void)
{
    zinf_plan p = plan_of(1);
    const uint32_t i = STEP(GELU_FORWARD, 0); /* of the second half of the rows */
    for (uint32_t k = 0; k < 2; k++) {
        zinf_operand *o = operand(&p, i, k);
        o->bytes /= 2;
        o->rows /= 2;
        o->offset += k ? 0 : o->bytes;
    }
    check_refused(&p, "C7", i, "is not of every token of a micro-batch");
}

static void a_matrix_with_a_missing_tile_is_refused(void)
{
    zinf_plan p = plan_of(1);
    const uint32_t i = find(&p, ZINF_PROGRAM_EVAL, ZINF_OP_LINEAR_FORWARD, 1); /* of qkv */
    drop(&p, i);
    check_refused(&p, "C4", find(&p, ZINF_PROGRAM_EVAL, ZINF_OP_ATTENTION_FORWARD, 0),
                  "with all tiles so far");
}

/* The last operand: of a GEMM of m x n, as deep as the model is wide. */
static void set_gemm_scratch(zinf_plan *p, uint32_t i, uint64_t m, uint64_t n)
{
    zinf_operand *o = operand(p, i, p->instrs[i].n_operands - 1);

    o->bytes = o->cols = o->ld = zinf_gemm_scratch_bytes(m, n, 16, 1);
}

/* Other bits, if what is summed over tiles has more of them. */
static void half_of_a_units_tile_is_refused(void)
{
    zinf_plan p = plan_of(1);
    const uint32_t i = STEP(LINEAR_FORWARD, 0);
    for (uint32_t k = 1; k < 5; k++) { /* the rest would be another instruction */
        zinf_operand *o = operand(&p, i, k);
        *(k == 1 ? &o->rows : &o->cols) /= 2;
        o->ld = k == 2 ? o->cols : o->ld;
        o->bytes = o->bytes ? ((o->rows - 1) * o->ld + o->cols) * 2 : 0;
    }
    set_gemm_scratch(&p, i, operand(&p, i, 0)->rows, operand(&p, i, 1)->rows);
    check_refused(&p, "C4", i, "is not the rows of the tensor that belong here");
}

static void a_bias_of_another_tile_is_refused(void)
{
    zinf_plan p = plan_of(1);
    const uint32_t i = STEP(LINEAR_FORWARD, 0);
    *operand(&p, i, 2) = *operand(&p, STEP(LINEAR_FORWARD, 1), 2);
    check_refused(&p, "C4", i, "at its place");
}

static void a_bias_of_another_linear_is_refused(void)
{
    zinf_plan p = plan_of(1);
    const uint32_t i = find(&p, ZINF_PROGRAM_EVAL, ZINF_OP_LINEAR_FORWARD, 2);
    *operand(&p, i, 2) = *operand(&p, find(&p, ZINF_PROGRAM_EVAL, ZINF_OP_LINEAR_FORWARD, 6), 2);
    check_refused(&p, "C4", i, "at its place");
}

static void a_weight_its_statistics_were_not_made_with_is_refused(void)
{
    zinf_plan p = plan_of(1);
    const uint32_t i = STEP(LAYERNORM_BACKWARD, 2);
    *operand(&p, i, 2) = *operand(&p, STEP(LAYERNORM_BACKWARD, 1), 2);
    check_refused(&p, "C4", i, "at its place");
}

/* The second tile of logits is the first once more; which instruction that is. */
static uint32_t first_tile_twice(zinf_plan *p)
{
    const uint32_t first = find(p, ZINF_PROGRAM_SAMPLE, ZINF_OP_LOGITS, 0);
    const uint32_t i = find(p, ZINF_PROGRAM_SAMPLE, ZINF_OP_LOGITS, 1);

    for (uint32_t k = 1; k < 3; k++)
        *operand(p, i, k) = *operand(p, first, k);
    return i;
}

static void logits_of_one_tile_twice_are_refused(void)
{
    zinf_plan p = plan_of(1);
    const uint32_t i = first_tile_twice(&p);
    check_refused(&p, "C4", i, "it should hold the parameters (of 1)");
}

static void logits_of_one_tile_in_two_places_are_refused(void)
{
    zinf_plan p = plan_of(1);
    const uint32_t i = first_tile_twice(&p);
    operand(&p, i, 2)->offset = more_arena(&p, operand(&p, i, 2)->bytes);
    p.instrs[i].unit = p.instrs[find(&p, ZINF_PROGRAM_SAMPLE, ZINF_OP_LOGITS, 0)].unit;
    check_refused(&p, "C4", i, "is not the tile that comes next");
}

static void logits_without_the_last_tile_are_refused(void)
{
    zinf_plan p = plan_of(1);

    drop(&p, find(&p, ZINF_PROGRAM_SAMPLE, ZINF_OP_LOGITS, 1));
    check_refused_whole(&p, "program sample: it has 12 losses (sample: logits), 24 are due");
}

static void a_gradient_rounded_where_the_model_does_not_is_refused(void)
{
    zinf_plan p = plan_of(1);
    const uint32_t i = STEP(GELU_BACKWARD, 0);
    zinf_operand dy = *operand(&p, i, 1), rounded = dy;

    CHECK(dy.dtype == ZINF_F32); /* summed over two tiles */
    CHECK(mutate_duplicate(&p, i));
    rounded.dtype = ZINF_BF16;
    rounded.bytes /= 2;
    rounded.offset = more_arena(&p, rounded.bytes);
    p.operands = realloc(p.operands, (p.n_operands + (size_t)2) * sizeof *p.operands);
    CHECK(p.operands);
    p.instrs[i].opcode = ZINF_OP_CONVERT;
    p.instrs[i].unit = ZINF_NONE;
    p.instrs[i].operand0 = p.n_operands;
    p.instrs[i].n_operands = 2;
    p.operands[p.n_operands++] = dy;
    p.operands[p.n_operands++] = rounded;
    check_refused(&p, "C4", i, "is not converted in this model");
}

static void a_gradient_that_is_not_rounded_where_the_model_does_is_refused(void)
{
    zinf_plan p = plan_with(1, "threads=1 micro_batch=1 tiles=1 checkpoint_interval=none "
                               "tier.param=device tier.grad=device tier.optimizer=device");
    const uint32_t reader = STEP(GELU_BACKWARD, 0);
    const uint32_t i = STEP(LINEAR_BACKWARD_INPUT, 0); /* the last linear comes first */
    zinf_operand *dx = operand(&p, i, 2);

    CHECK(i < reader && dx->dtype == ZINF_BF16 && operand(&p, reader, 1)->value == dx->value);
    dx->dtype = ZINF_F32;
    dx->bytes *= 2;
    dx->offset = more_arena(&p, dx->bytes);
    *operand(&p, reader, 1) = *dx;
    check_refused(&p, "C4", i, "is F32 if it is summed over tiles, and only then");
}

static uint32_t copy_behind(zinf_plan *p, uint32_t at, zinf_operand from, uint64_t to)
{
    const zinf_operand both[2] = {from, from};
    const uint32_t i = insert(p, at, ZINF_OP_COPY, 2, both);

    operand(p, i, 1)->offset = to;
    operand(p, i, 1)->stride = 0;
    return i;
}

/* One that is changed in the fourth iteration, say, could not be seen. */
static void a_parameter_kept_from_an_iteration_before_is_refused(void)
{
    zinf_plan p = plan_of_five();
    const uint32_t before = STEP(LINEAR_FORWARD, 0);
    const zinf_operand weight = *operand(&p, before, 1);
    const uint64_t kept = more_arena(&p, weight.bytes);

    copy_behind(&p, before, weight, kept);
    const uint32_t i = from(&p, loop_of(&p), ZINF_OP_LINEAR_FORWARD);
    operand(&p, i, 1)->offset = kept;
    copy_behind(&p, i, weight, kept);
    check_refused(&p, "C8", i, "of an iteration before is read");
}

static void a_parameter_moved_on_between_iterations_is_refused(void)
{
    zinf_plan p = plan_of_five();
    const uint32_t before = STEP(LINEAR_FORWARD, 0);
    const zinf_operand weight = *operand(&p, before, 1);
    const uint64_t kept = more_arena(&p, 2 * weight.bytes);
    zinf_operand next = weight;

    copy_behind(&p, before, weight, kept);
    copy_behind(&p, before, weight, kept + weight.bytes);
    const uint32_t i = from(&p, loop_of(&p), ZINF_OP_LINEAR_FORWARD);
    operand(&p, i, 1)->offset = kept;
    next.offset = kept + weight.bytes;
    copy_behind(&p, i, weight, next.offset); /* in another order it is what was kept before */
    const uint32_t move = copy_behind(&p, i, next, kept);
    check_refused(&p, "C8", move, "of an iteration before is read");
}

/* Which the first three iterations find in their places, and no other. */
static void a_parameter_with_a_stride_is_refused(void)
{
    zinf_plan p = plan_of_five();
    const uint32_t before = STEP(LAYERNORM_FORWARD, 0);
    zinf_operand weight = *operand(&p, before, 1);
    const uint32_t reader = from(&p, loop_of(&p), ZINF_OP_EMBEDDING_FORWARD);
    const uint64_t stride = operand(&p, reader, 0)->stride;
    const uint64_t kept = more_arena(&p, 5 * stride + weight.bytes);

    CHECK(stride > weight.bytes);
    for (uint64_t n = 0; n < 3; n++)
        copy_behind(&p, before, weight, kept + n * stride);
    weight.offset = kept;
    weight.stride = stride;
    const uint32_t i = copy_behind(&p, loop_of(&p), weight, more_arena(&p, weight.bytes));
    operand(&p, from(&p, i, ZINF_OP_LAYERNORM_FORWARD), 1)->offset = operand(&p, i, 1)->offset;
    check_refused(&p, "C4", i, "it should hold tokens");
}

/* An embedding of another micro-batch behind that of instruction `at`. */
static uint32_t embed(zinf_plan *p, uint32_t at, uint64_t micro)
{
    const zinf_operand *o = operand(p, at, 0);
    const zinf_operand *first = operand(p, find(p, ZINF_PROGRAM_STEP, ZINF_OP_EMBEDDING_FORWARD, 0),
                                        0);
    zinf_operand all[4] = {*first, o[1], o[2], o[3]};

    all[0].offset += micro * all[0].bytes;
    all[3].offset = more_arena(p, all[3].bytes);
    const uint32_t i = insert(p, at, ZINF_OP_EMBEDDING_FORWARD, 4, all);
    p->instrs[i].unit = p->instrs[at].unit;
    return i;
}

/* The last micro-batch that was looked at is another one than the last there is. */
static void work_on_a_micro_batch_of_a_loop_before_it_is_refused(void)
{
    zinf_plan p = plan_of_five();

    embed(&p, STEP(EMBEDDING_FORWARD, 0), 3);
    check_refused(&p, "C7", loop_of(&p), "an iteration finds its micro-batch begun");
}

static void work_on_a_micro_batch_that_is_done_is_refused(void)
{
    zinf_plan p = plan_of_five();
    const uint32_t i = embed(&p, from(&p, loop_of(&p), ZINF_OP_EMBEDDING_FORWARD), 0);

    check_refused(&p, "C7", i, "is of a micro-batch that is done");
}

/* Each row would count as a loss. */
static void logits_in_a_step_and_a_loss_in_a_sample_are_refused(void)
{
    zinf_plan p = plan_of(1);
    const uint32_t classifier = STEP(CLASSIFIER_FORWARD, 0);
    const uint32_t logits = find(&p, ZINF_PROGRAM_SAMPLE, ZINF_OP_LOGITS, 0);
    zinf_operand o[4];

    memcpy(o, operand(&p, logits, 0), sizeof o);
    o[0] = *operand(&p, classifier, 0);
    o[1] = *operand(&p, classifier, 1);
    const uint32_t i = insert(&p, classifier, ZINF_OP_LOGITS, 4, o);
    p.instrs[i].unit = p.instrs[classifier].unit;
    check_refused(&p, "C7", i, "is not what program step does");

    p = plan_of(1);
    memcpy(o, operand(&p, STEP(LOSS, 0), 0), 2 * sizeof *o);
    const uint32_t loss = insert(&p, logits, ZINF_OP_LOSS, 2, o);
    p.instrs[loss].attr[0] = 8;
    check_refused(&p, "C7", loss, "is not what program sample does");
}

static void statistics_of_one_tile_are_refused(void)
{
    zinf_plan p = plan_of(1);
    const uint32_t i = STEP(CLASSIFIER_BACKWARD, 0);

    p.instrs[i].opcode = ZINF_OP_CLASSIFIER;
    check_refused(&p, "C4", i, "it makes statistics of one tile of several");
}

static zinf_plan plan_on_nvme(unsigned ranks, const char *sets)
{
    char all[400];

    snprintf(all, sizeof all, "threads=1 micro_batch=1 tiles=1 checkpoint_interval=1 "
             "tier.checkpoint=nvme tier.optimizer=nvme tier.grad=host %s", sets);
    return faults_plan(ranks > 1 ? &of_two_ranks : &gpt2, false, ranks, all);
}

static void sized_bytes(zinf_operand *o, uint64_t bytes)
{
    o->bytes = bytes;
    o->cols = o->ld = bytes / zinf_dtype_bytes(o->dtype);
}

/* A run would end there: transfer.c knows what it has written. */
static void a_page_that_was_never_written_is_refused(void)
{
    zinf_plan p = plan_on_nvme(1, "tier.param=host");
    const zinf_segment *save = &p.segments[p.programs[ZINF_PROGRAM_SAVE].first_segment];
    uint32_t i = from(&p, save->first_instr, ZINF_OP_READ);

    for (uint32_t k = i; k < save->first_instr + save->n_instrs; k++) /* the last in storage */
        if (p.instrs[k].opcode == ZINF_OP_READ && operand(&p, k, 0)->offset >
                                                      operand(&p, i, 0)->offset)
            i = k;
    zinf_operand both[2] = {*operand(&p, i, 0), *operand(&p, i, 1)};
    for (int k = 0; k < 2; k++)
        sized_bytes(&both[k], both[k].bytes + ZINF_PAGE);
    more_in(&p, ZINF_TIER_NVME, ZINF_PAGE);
    both[1].offset = more_in(&p, ZINF_TIER_HOST, both[1].bytes);
    const uint32_t again = insert(&p, i, ZINF_OP_READ, 2, both);
    check_refused(&p, "C4", again, "storage is read where nothing was written");
}

/* Behind the elements of its unit, which are there: the one of INIT and LOAD writes it, the other
 * does not. */
static void a_regions_page_that_was_never_written_is_refused(void)
{
    static const zinf_program_kind fill[] = {ZINF_PROGRAM_INIT, ZINF_PROGRAM_LOAD};

    for (int left_out = 0; left_out < 2; left_out++) {
        zinf_plan p = plan_on_nvme(1, "tier.param=host");
        zinf_region *last = &p.units[0].optimizer;
        for (uint32_t u = 0; u < p.n_units; u++)
            if (p.units[u].optimizer.offset > last->offset)
                last = &p.units[u].optimizer;
        more_in(&p, ZINF_TIER_NVME, ZINF_PAGE);
        last->bytes += ZINF_PAGE;
        const uint32_t first = p.segments[p.programs[fill[!left_out]].first_segment].first_instr;
        uint32_t i = from(&p, first, ZINF_OP_WRITE);
        while (operand(&p, i, 1)->offset != last->offset)
            i = from(&p, i + 1, ZINF_OP_WRITE);
        const zinf_operand was = *operand(&p, i, 0);
        const uint64_t more = more_in(&p, ZINF_TIER_HOST, last->bytes) - was.offset;
        for (uint32_t k = first; k <= i; k++) /* made elsewhere, where there is room */
            for (uint32_t slot = 0; slot < p.instrs[k].n_operands; slot++)
                if (p.instrs[k].unit == p.instrs[i].unit &&
                    operand(&p, k, slot)->tier == was.tier &&
                    operand(&p, k, slot)->offset - was.offset < was.bytes)
                    operand(&p, k, slot)->offset += more;
        sized_bytes(operand(&p, i, 0), last->bytes);
        sized_bytes(operand(&p, i, 1), last->bytes);
        check_refused_whole(&p, left_out ? "C4: program load, nvme bytes"
                                         : "C4: program init, nvme bytes");
    }
}

/* The others would read what they have never written. */
static void what_one_rank_has_moved_by_all_is_refused(void)
{
    zinf_plan p = plan_on_nvme(2, "partitioning=owner tier.param=host");
    const uint32_t i = from(&p, find(&p, ZINF_PROGRAM_EVAL, ZINF_OP_UPLOAD, 1),
                            ZINF_OP_UPLOAD);
    const zinf_operand up[2] = {*operand(&p, i, 0), *operand(&p, i, 1)};
    const uint32_t unit = p.instrs[i].unit;

    CHECK(unit != ZINF_NONE && p.units[unit].owner != ZINF_NONE);
    zinf_operand both[2] = {up[1], up[1]};
    both[1].offset = more_arena(&p, up[1].bytes);
    const uint32_t copy = insert(&p, i, ZINF_OP_COPY, 2, both);
    p.instrs[copy].queue = ZINF_QUEUE_COMPUTE;
    p.instrs[copy].n_waits = 1;
    p.instrs[copy].wait0 = p.n_waits;
    p.waits[p.n_waits++] = (zinf_wait){i, 0};
    check_refused(&p, "C6", copy, "is one rank's, but all ranks do this");
}

/* A checkpoint is every rank's own: the others would keep none. */
static void what_all_ranks_have_moved_by_one_is_refused(void)
{
    zinf_plan p = plan_with(2, "threads=1 micro_batch=1 checkpoint_interval=1 partitioning=owner "
                               "tier.param=device tier.grad=device tier.optimizer=device "
                               "tier.checkpoint=nvme");
    const uint32_t i = STEP(WRITE, 0);

    CHECK(p.instrs[i].unit == ZINF_NONE);
    p.instrs[i].unit = 0;
    check_refused(&p, "C6", i, "is not the unit's for which one rank does this");
}

/* The gradient's bits depend on how many tokens a product is over. */
static void other_chunks_of_tokens_are_refused(void)
{
    for (int backward = 0; backward < 2; backward++) {
        zinf_plan p = plan_of(1);
        const uint32_t i = backward ? STEP(CLASSIFIER_BACKWARD, 1) : STEP(CLASSIFIER_FORWARD, 1);

        CHECK(p.instrs[i].attr[1] > 1);
        p.instrs[i].attr[1]--;
        for (uint32_t slot = backward ? 6 : 4; slot <= (backward ? 7 : 4); slot++) {
            zinf_operand *o = operand(&p, i, slot);
            o->rows--;
            o->bytes = ((o->rows - 1) * o->ld + o->cols) * zinf_dtype_bytes(o->dtype);
        }
        set_gemm_scratch(&p, i, p.instrs[i].attr[1], operand(&p, i, 1)->rows);
        check_refused(&p, "C4", i, "takes other chunks of tokens than the one before");
    }
}

static void what_one_rank_owns_used_by_all_is_refused(void)
{
    zinf_plan p = plan_on_nvme(2, "partitioning=owner tier.param=host");
    uint32_t i = find(&p, ZINF_PROGRAM_EVAL, ZINF_OP_UPLOAD, 0);

    while (operand(&p, i, 0)->offset >= p.machine.owned_bytes[ZINF_TIER_HOST])
        i = from(&p, i + 1, ZINF_OP_UPLOAD);
    p.instrs[i].unit = ZINF_NONE;
    check_refused(&p, "C6", i, "operand 0 is in what one rank owns");
}

static void what_one_rank_owns_gathered_from_or_scattered_to_all_is_refused(void)
{
    for (int scatters = 0; scatters < 2; scatters++) {
        zinf_plan p = plan_with(2, ON_DEVICE " partitioning=owner");
        const uint32_t i = scatters ? STEP(REDUCE, 0)
                                    : find(&p, ZINF_PROGRAM_EVAL, ZINF_OP_BROADCAST, 0);
        zinf_operand *to = operand(&p, i, 1);
        p.instrs[i].opcode = scatters ? ZINF_OP_REDUCE_SCATTER : ZINF_OP_ALLGATHER;
        to->bytes = scatters ? to->bytes / 2 : 2 * to->bytes;
        to->cols = to->ld = to->bytes / zinf_dtype_bytes(to->dtype);
        to->rows = 1;
        to->offset = more_arena(&p, to->bytes);
        check_refused(&p, "C6", i, "its unit is not that of its root, or of all ranks");
    }
}

static void a_sum_over_ranks_to_another_place_is_refused(void)
{
    zinf_plan p = plan_of(2);
    const uint32_t i = STEP(ALLREDUCE, 0);

    operand(&p, i, 1)->offset += 8;
    check_refused(&p, "C6", i, "it works in place, its two operands are two places");
}

static void tokens_that_move_on_by_other_steps_are_refused(void)
{
    zinf_plan p = plan_of_five();
    const uint32_t first = p.programs[ZINF_PROGRAM_STEP].first_segment;
    uint32_t i = p.segments[first + 1].first_instr;

    CHECK(p.segments[first + 1].count == 4);
    while (!operand(&p, i, 0)->stride)
        i++;
    operand(&p, i, 0)->stride -= 4;
    check_refused(&p, "C4", i, "moves on by other tokens than its loop has losses of");
}

static void a_loop_of_more_than_the_micro_batches_is_refused(void)
{
    zinf_plan p = plan_of(1);
    zinf_segment *s = &p.segments[p.programs[ZINF_PROGRAM_EVAL].first_segment];

    s->count = 1000000000;
    check_refused(&p, "C7", s->first_instr, "begins a loop of 1000000000");
}

/* Of the last row, what is behind the first tile's columns: no write of that tile touches it. */
static zinf_operand columns_to_come(zinf_plan *p, uint32_t tile)
{
    zinf_operand o = *operand(p, tile, 4);

    CHECK(o.ld == 2 * o.cols);
    o.offset += o.bytes;
    o.bytes /= 2 * o.rows - 1; /* each row but the last has two tiles */
    o.rows = 1;
    o.ld = o.cols;
    o.value = 0;
    return o;
}

/* By another queue, which no wait orders with the second tile: the first one did not wait, either.
 * Returns the second tile. */
static uint32_t use_columns_to_come(zinf_plan *p, bool writes)
{
    const uint32_t tile = find(p, ZINF_PROGRAM_EVAL, ZINF_OP_LINEAR_FORWARD, 0);
    const zinf_operand columns = columns_to_come(p, tile);
    zinf_operand host = columns;

    host.tier = ZINF_TIER_HOST;
    host.offset = more_in(p, ZINF_TIER_HOST, host.bytes);
    const zinf_operand both[2] = {writes ? host : columns, writes ? columns : host};
    const uint32_t zero = insert(p, tile - 1, ZINF_OP_ZERO, 1, both);
    const uint32_t move = insert(p, zero, writes ? ZINF_OP_UPLOAD : ZINF_OP_DOWNLOAD, 2, both);
    p->instrs[zero].queue = writes ? ZINF_QUEUE_UPDATE : ZINF_QUEUE_COMPUTE;
    p->instrs[move].queue = writes ? ZINF_QUEUE_UPLOAD : ZINF_QUEUE_DOWNLOAD;
    p->instrs[move].n_waits = 1 + writes;
    p->instrs[move].wait0 = p->n_waits;
    p->waits[p->n_waits++] = (zinf_wait){zero, 0};
    p->waits[p->n_waits++] = (zinf_wait){tile - 1, 0};
    restate(p);
    CHECK(!mini_is_ordered(p));
    return tile + 3;
}

static void columns_of_a_tile_to_come_in_a_race_are_refused(void)
{
    for (int writes = 0; writes < 2; writes++) {
        zinf_plan p = faults_plan(&gpt2, false, 1, ON_DEVICE);
        const uint32_t i = use_columns_to_come(&p, writes);
        check_refused(&p, "C3", i, writes ? "two writes that no wait orders"
                                          : "a write that waits not for the read");
    }
}

static void an_output_over_an_input_is_refused(void)
{
    zinf_plan p = plan_of(1);
    const uint32_t i = find(&p, ZINF_PROGRAM_EVAL, ZINF_OP_LAYERNORM_FORWARD, 2); /* the last */
    operand(&p, i, 4)->offset = operand(&p, i, 0)->offset;
    check_refused(&p, "C3", i, "overlaps operand 0");
}

static void a_batch_of_more_than_the_step_is_refused(void)
{
    zinf_plan p = plan_of(1);
    const uint32_t i = STEP(BATCH, 0);
    operand(&p, i, 0)->rows++;
    operand(&p, i, 0)->bytes = operand(&p, i, 0)->rows * operand(&p, i, 0)->ld * 4;
    check_refused(&p, "C7", i, "is not every micro-batch of program step");
}

static void rows_further_apart_than_written_are_refused(void)
{
    zinf_plan p = plan_of(1);
    const uint32_t i = find(&p, ZINF_PROGRAM_EVAL, ZINF_OP_LINEAR_FORWARD, 0);
    zinf_operand *o = operand(&p, i, 4);
    o->ld--;
    o->bytes = ((o->rows - 1) * o->ld + o->cols) * 2;
    check_refused(&p, "C4", i, "is not columns of a matrix of that width");
}

static void states_loaded_made_or_saved_by_another_program_are_refused(void)
{
    static const struct {
        zinf_program_kind program;
        zinf_opcode opcode, instead;
    } cases[] = {{ZINF_PROGRAM_INIT, ZINF_OP_INIT, ZINF_OP_IMPORT},
                 {ZINF_PROGRAM_LOAD, ZINF_OP_IMPORT, ZINF_OP_INIT}};

    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        zinf_plan p = plan_of(1);
        const uint32_t i = find(&p, cases[k].program, cases[k].opcode, 0);
        p.instrs[i].opcode = (uint16_t)cases[k].instead;
        check_refused(&p, "C7", i, "is not what program");
    }
}

/* ---- several ranks ---- */

static void a_gradient_scattered_to_another_unit_is_refused(void)
{
    zinf_plan p = plan_of(2);
    const uint32_t i = STEP(REDUCE_SCATTER, 0);
    uint32_t n = 1, other = STEP(REDUCE_SCATTER, 1);
    while (operand(&p, other, 0)->bytes != operand(&p, i, 0)->bytes)
        other = STEP(REDUCE_SCATTER, ++n);
    operand(&p, i, 1)->value = operand(&p, other, 1)->value;
    check_refused(&p, "C7", i, "under its name"); /* found by who reads it after this one */
}

/* Only where the other unit's is still there: buffers are used again soon. */
static void another_units_gradient_scattered_is_refused(void)
{
    unsigned n_refused = 0;

    for (unsigned n = 1; n < 8; n++) {
        zinf_plan p = plan_of(2);
        zinf_error err = {0};
        const uint32_t before = STEP(REDUCE_SCATTER, n - 1), i = STEP(REDUCE_SCATTER, n);
        zinf_operand other = *operand(&p, before, 0);
        other.bytes = operand(&p, i, 0)->bytes;
        other.cols = other.ld = operand(&p, i, 0)->cols;
        *operand(&p, i, 0) = other;
        CHECK(zinf_plan_check(&p, &err) == ZINF_DOES_NOT_FIT);
        n_refused += strstr(err.text, "it should hold the gradient (of") != NULL;
        zinf_plan_free(&p);
    }
    CHECK(n_refused > 0);
}

static void a_sum_over_ranks_of_no_value_of_its_own_is_refused(void)
{
    zinf_plan p = plan_of(2);
    const uint32_t i = STEP(ALLREDUCE, 1);
    operand(&p, i, 1)->value = operand(&p, i, 0)->value;
    check_refused(&p, "C7", i, "under its name"); /* found by the norm after this one */
}

static void a_shard_that_was_not_gathered_is_refused(void)
{
    zinf_plan p = plan_of(2);
    const uint32_t i = STEP(EMBEDDING_FORWARD, 0), gather = STEP(ALLGATHER, 0);
    operand(&p, gather, 1)->value = operand(&p, gather, 0)->value;
    (void)i;
    check_refused(&p, "C4", gather, "under its name"); /* found by who reads it after this one */
}

static void padding_that_is_not_zero_is_refused(void)
{
    zinf_plan p = plan_of(2);
    const uint32_t i = STEP(REDUCE_SCATTER, 0);
    uint32_t zero = p.segments[p.programs[ZINF_PROGRAM_STEP].first_segment].first_instr;
    while (zero < p.n_instrs && p.instrs[zero].opcode != ZINF_OP_ZERO)
        zero++;
    if (zero == p.n_instrs)
        SKIP("no unit of these shapes has padding");
    (void)i;
    drop(&p, zero);
    zinf_error err = {0};
    CHECK(zinf_plan_check(&p, &err) == ZINF_DOES_NOT_FIT);
    CHECK_MESSAGE(strstr(err.text, "C7") && strstr(err.text, "reduce_scatter"), "%s", err.text);
    zinf_plan_free(&p);
}

/* FLUSH zeroes every second 64 bytes of new memory, and copies all of that elsewhere many times. */
static zinf_plan plan_of_pieces(uint32_t n_zeros, uint32_t n_copies)
{
    zinf_plan p = plan_of(1);
    const uint64_t bytes = 128 * (uint64_t)n_zeros, at = more_arena(&p, 2 * bytes);
    const uint32_t like = STEP(LOSS, 0), n = n_zeros + n_copies;
    const zinf_segment flush = {.first_instr = p.n_instrs, .n_instrs = n, .count = 1};

    CHECK(p.programs[ZINF_PROGRAM_FLUSH].n_segments == 0 && p.segments);
    p.instrs = realloc(p.instrs, (p.n_instrs + (size_t)n) * sizeof *p.instrs);
    p.operands = realloc(p.operands, (p.n_operands + 2 * (size_t)n) * sizeof *p.operands);
    CHECK(p.instrs && p.operands);
    for (uint32_t i = 0; i < n; i++) {
        const uint64_t size = i < n_zeros ? 64 : bytes;
        zinf_operand *o = &p.operands[p.n_operands];
        p.instrs[p.n_instrs] = p.instrs[like];
        zinf_instr *instr = &p.instrs[p.n_instrs++];
        instr->opcode = i < n_zeros ? ZINF_OP_ZERO : ZINF_OP_COPY;
        instr->queue = ZINF_QUEUE_COMPUTE;
        instr->unit = ZINF_NONE;
        instr->n_waits = 0;
        instr->operand0 = p.n_operands;
        instr->n_operands = i < n_zeros ? 1 : 2;
        o[0] = (zinf_operand){.tier = ZINF_TIER_DEVICE, .dtype = ZINF_U8, .bytes = size,
                              .rows = 1, .cols = size, .ld = size,
                              .offset = at + (i < n_zeros ? 128 * (uint64_t)i : 0)};
        o[1] = o[0];
        o[1].offset += bytes;
        p.n_operands += instr->n_operands;
    }
    p.programs[ZINF_PROGRAM_FLUSH] = (zinf_program){p.n_segments, 1};
    p.segments[p.n_segments++] = flush;
    restate(&p);
    return p;
}

/* Time and memory stay in proportion to the instructions. */
static void more_pieces_than_can_be_looked_at_are_refused(void)
{
    zinf_plan p = plan_of_pieces(2000, 20);
    zinf_error err = {0};

    CHECK_MESSAGE(!zinf_plan_check(&p, &err), "%s", err.text);
    zinf_plan_free(&p);
    p = plan_of_pieces(12000, 0);
    check_refused_whole(&p, "accesses are in too many pieces to be proved");
    p = plan_of_pieces(2000, 100);
    check_refused_whole(&p, "accesses are in too many pieces to be proved");
}

/* A tensor and the next of its shape: their names, what units have of them, or both; or one name is
 * another. Addresses and programs stay as they are, and so does every bit that is computed. */
static void tensors_exchanged_or_renamed_are_refused(void)
{
    const unsigned ranks[] = {1, 2};
    unsigned n = 0;

    for (size_t r = 0; r < sizeof ranks / sizeof *ranks; r++) {
        zinf_plan good = plan_of(ranks[r]);
        for (uint32_t m = 0; m < n_mutations; m++)
            for (uint32_t i = 0; mutations[m].target == MUTATE_TENSOR && i < good.n_tensors; i++) {
                zinf_plan p = mutate_copy(&good);
                zinf_error err = {0};
                if (mutations[m].apply(&p, i)) {
                    CHECK_MESSAGE(zinf_plan_check(&p, &err) == ZINF_DOES_NOT_FIT, "%s, \"%s\"",
                                  mutations[m].name, good.tensors[i].name);
                    n++;
                }
                zinf_plan_free(&p);
            }
        zinf_plan_free(&good);
    }
    CHECK_MESSAGE(n > 60, "only %u", n);
}

static void a_vector_that_is_said_to_be_a_matrix_is_refused(void)
{
    zinf_plan p = plan_of(1);

    for (uint32_t t = 0; t < p.n_tensors; t++)
        p.tensors[t].n_dims = 2;
    for (uint32_t u = 0; u < p.n_units; u++)
        p.units[u].decays = 1;
    for (uint32_t i = 0; i < p.n_instrs; i++)
        if (p.instrs[i].opcode == ZINF_OP_ADAM)
            p.instrs[i].attr[0] = 1;
    check_refused_whole(&p, "tensor 2 of this gpt2 is \"transformer.h.0.ln_1.weight\", [16][1]");
}

static void an_unknown_family_is_refused(void)
{
    zinf_plan p = plan_of(1);

    strcpy(p.model.family, "gpt5");
    check_refused_whole(&p, "no family of models is called \"gpt5\"");
}

static void half_a_table_of_positions_is_refused(void)
{
    zinf_plan p = plan_of(1);
    const uint32_t i = STEP(POSITION_BACKWARD, 0);

    p.model.context *= 2;
    check_refused(&p, "C4", i, "whole table of positions");
}

static void one_name_for_two_tensors_is_refused(void)
{
    zinf_plan p = plan_of(1);

    strcpy(p.tensors[p.n_tensors - 1].name, p.tensors[0].name);
    check_refused_whole(&p, "tensor 15 of this gpt2 is \"transformer.ln_f.bias\"");
}

static void another_number_of_parameters_is_refused(void)
{
    zinf_plan p = plan_of(1);

    p.model.n_params++;
    check_refused_whole(&p, "and 3824 parameters, which is not what the plan states");
}

static void another_global_batch_is_refused(void)
{
    zinf_plan p = plan_of(2);

    p.decisions.micro_batch++; /* the number alone: what works on it is refused, too */
    check_refused_whole(&p, "C7");
    p = plan_of(1);
    p.job.global_batch *= 2;
    for (uint32_t i = 0; i < p.n_instrs; i++) {
        if (p.instrs[i].opcode == ZINF_OP_CLASSIFIER ||
            p.instrs[i].opcode == ZINF_OP_CLASSIFIER_BACKWARD)
            p.instrs[i].attr[2] *= 2;
        if (p.instrs[i].opcode == ZINF_OP_LOSS &&
            i < find(&p, ZINF_PROGRAM_EVAL, ZINF_OP_BATCH, 0))
            p.instrs[i].attr[0] *= 2;
    }
    check_refused_whole(&p, "sequences is not every micro-batch");
}

static void values_without_a_meaning_are_refused(void)
{
    zinf_plan p = plan_of(1);

    p.tensors[0].init_std = -1;
    check_refused_whole(&p, "std -1");
    p = plan_of(1);
    p.job.precision = ZINF_F16;
    for (uint32_t k = 0; k < p.n_operands; k++)
        if (p.operands[k].dtype == ZINF_BF16)
            p.operands[k].dtype = ZINF_F16;
    check_refused_whole(&p, "job.precision is 2");
}

static void an_empty_program_is_refused(void)
{
    static const struct {
        zinf_program_kind kind;
        const char *text;
    } rows[] = {
        {ZINF_PROGRAM_INIT, "is not updated or moved"}, {ZINF_PROGRAM_LOAD, "is not updated"},
        {ZINF_PROGRAM_STEP, "program step: unit \"transformer.wte.weight[0/2]\" is not updated"},
        {ZINF_PROGRAM_SAVE, "program save: unit \"transformer.wte.weight[0/2]\" is not updated"},
        {ZINF_PROGRAM_EVAL, "program eval: there is no instruction that draws its batch"},
    };

    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        zinf_plan p = plan_of(1);
        p.programs[rows[k].kind].n_segments = 0;
        check_refused_whole(&p, rows[k].text);
    }
}

static void owners_in_another_order_or_time_are_refused(void)
{
    for (int late = 0; late < 2; late++) {
        zinf_plan p = plan_with(2, ON_DEVICE " partitioning=owner");
        if (late)
            p.decisions.optimizer_time = ZINF_IN_FORWARD;
        else
            p.decisions.order = ZINF_VERTICAL;
        check_refused_whole(&p, "units that one rank owns are not supported together with");
    }
}

int main(void)
{
    RUN(a_forward_value_for_a_gradient_is_refused);
    RUN(the_gradient_of_another_operator_is_refused);
    RUN(a_norm_without_the_residuals_gradient_is_refused);
    RUN(the_gradients_of_weight_and_bias_exchanged_are_refused);
    RUN(the_same_in_their_region_are_refused);
    RUN(half_of_a_matrix_is_refused);
    RUN(a_matrix_with_a_missing_tile_is_refused);
    RUN(half_of_a_units_tile_is_refused);
    RUN(a_bias_of_another_tile_is_refused);
    RUN(a_bias_of_another_linear_is_refused);
    RUN(a_weight_its_statistics_were_not_made_with_is_refused);
    RUN(logits_of_one_tile_twice_are_refused);
    RUN(logits_of_one_tile_in_two_places_are_refused);
    RUN(logits_without_the_last_tile_are_refused);
    RUN(a_gradient_rounded_where_the_model_does_not_is_refused);
    RUN(a_gradient_that_is_not_rounded_where_the_model_does_is_refused);
    RUN(a_loop_of_more_than_the_micro_batches_is_refused);
    RUN(a_parameter_kept_from_an_iteration_before_is_refused);
    RUN(a_parameter_moved_on_between_iterations_is_refused);
    RUN(a_parameter_with_a_stride_is_refused);
    RUN(work_on_a_micro_batch_of_a_loop_before_it_is_refused);
    RUN(work_on_a_micro_batch_that_is_done_is_refused);
    RUN(logits_in_a_step_and_a_loss_in_a_sample_are_refused);
    RUN(statistics_of_one_tile_are_refused);
    RUN(a_page_that_was_never_written_is_refused);
    RUN(a_regions_page_that_was_never_written_is_refused);
    RUN(what_one_rank_has_moved_by_all_is_refused);
    RUN(what_all_ranks_have_moved_by_one_is_refused);
    RUN(other_chunks_of_tokens_are_refused);
    RUN(what_one_rank_owns_used_by_all_is_refused);
    RUN(what_one_rank_owns_gathered_from_or_scattered_to_all_is_refused);
    RUN(a_sum_over_ranks_to_another_place_is_refused);
    RUN(tokens_that_move_on_by_other_steps_are_refused);
    RUN(values_without_a_meaning_are_refused);
    RUN(columns_of_a_tile_to_come_in_a_race_are_refused);
    RUN(an_output_over_an_input_is_refused);
    RUN(a_batch_of_more_than_the_step_is_refused);
    RUN(rows_further_apart_than_written_are_refused);
    RUN(states_loaded_made_or_saved_by_another_program_are_refused);
    RUN(a_gradient_scattered_to_another_unit_is_refused);
    RUN(another_units_gradient_scattered_is_refused);
    RUN(a_sum_over_ranks_of_no_value_of_its_own_is_refused);
    RUN(a_shard_that_was_not_gathered_is_refused);
    RUN(padding_that_is_not_zero_is_refused);
    RUN(more_pieces_than_can_be_looked_at_are_refused);
    RUN(tensors_exchanged_or_renamed_are_refused);
    RUN(a_vector_that_is_said_to_be_a_matrix_is_refused);
    RUN(an_unknown_family_is_refused);
    RUN(half_a_table_of_positions_is_refused);
    RUN(one_name_for_two_tensors_is_refused);
    RUN(another_number_of_parameters_is_refused);
    RUN(another_global_batch_is_refused);
    RUN(an_empty_program_is_refused);
    RUN(owners_in_another_order_or_time_are_refused);
    return check_finish();
}
