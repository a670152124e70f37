/* tests/checker/test_edits.c - edits of several places of a plan that agree with each other. Names,
 * waits, memory and traffic are made true again, all values have one name: only what they are tells
 * an edit from a good plan. It is refused and computes other bits, or is another way to the same.
 */
#include <stdlib.h>

#include "mini.h"
#include "tests/checker/faults.h"
#include "tests/checker/replay.h"
#include "tests/checker/restate.h"

static const trainer_model deep = {2, 16, 2, 24, 4, 4, "bf16", NULL};
static const trainer_model shorter = {2, 16, 2, 24, 4, 2, "bf16", NULL};
static const trainer_model longer = {2, 16, 2, 24, 4, 6, "bf16", NULL};
static const trainer_model longest = {2, 16, 2, 24, 4, 7, "bf16", NULL};
static const trainer_model of_nine = {2, 16, 2, 24, 4, 9, "bf16", NULL};
static const trainer_model llama = {2, 16, 2, 24, 4, 2, "bf16",
                                    ", kv_heads: 2, ffn: 16, tied_embeddings: true"};
#define TIERS(p, g, o, c) " threads=1 micro_batch=1 tiles=1 checkpoint_interval=1 "               \
                          "tier.param=" #p " tier.grad=" #g " tier.optimizer=" #o                 \
                          " tier.checkpoint=" #c
#define LOOP "optimizer_time=after order=horizontal" TIERS(device, device, device, device)
#define AWAY "optimizer_time=after order=horizontal" TIERS(host, host, host, host)
#define LATE "optimizer_time=forward order=horizontal" TIERS(device, device, device, device)
#define TILES "optimizer_time=after order=horizontal threads=1 micro_batch=1 tiles=2 "             \
              "checkpoint_interval=1 tier.param=device tier.grad=device tier.optimizer=device "   \
              "tier.checkpoint=device"
#define TWO " partitioning=bandwidth"
#define OWNERS "optimizer_time=after order=horizontal" TIERS(host, host, device, host)             \
               " partitioning=owner"

/* ---- where things are ---- */

/* The n-th from instruction `from` on. */
static uint32_t next(const zinf_plan *p, uint32_t from, unsigned opcode, unsigned n)
{
    for (uint32_t i = from; i < p->n_instrs; i++)
        if (p->instrs[i].opcode == opcode && n-- == 0)
            return i;
    CHECK_MESSAGE(false, "no such instruction");
    return 0;
}

static zinf_segment *segment(zinf_plan *p, zinf_program_kind program, uint32_t n)
{
    return &p->segments[p->programs[program].first_segment + n];
}

#define STEP(op, n) next(p, segment(p, ZINF_PROGRAM_STEP, 0)->first_instr, ZINF_OP_##op, n)

/* The first that serves this unit, from a segment of STEP on: first micro-batch, loop, update. */
static uint32_t of_unit(zinf_plan *p, uint32_t n, const char *unit, unsigned opcode)
{
    uint32_t i = next(p, segment(p, ZINF_PROGRAM_STEP, n)->first_instr, opcode, 0);

    while (p->instrs[i].unit == ZINF_NONE || !strstr(p->units[p->instrs[i].unit].name, unit))
        i = next(p, i + 1, opcode, 0);
    return i;
}
#define OF(n, unit, op) of_unit(p, n, unit, ZINF_OP_##op)

/* ---- edits ---- */

static void exchange_operands(zinf_operand *a, zinf_operand *b)
{
    const zinf_operand first = *a;

    *a = *b;
    *b = first;
}

/* What is in the one place is in the other, in all instructions from first to the last of `n`. */
static void exchange_places(zinf_plan *p, uint32_t first, uint32_t n, zinf_operand a,
                            zinf_operand b)
{
    for (uint32_t i = first; i < first + n; i++)
        for (uint32_t k = 0; k < p->instrs[i].n_operands; k++) {
            zinf_operand *o = operand(p, i, k);
            const bool in_a = o->tier == a.tier && o->offset - a.offset < a.bytes;
            if (in_a || (o->tier == b.tier && o->offset - b.offset < b.bytes))
                o->offset += in_a ? b.offset - a.offset : a.offset - b.offset;
        }
}

static void move_to(zinf_plan *p, uint32_t from, uint32_t to)
{
    const zinf_instr moved = p->instrs[from];
    const int way = from < to ? 1 : -1;

    for (; from != to; from += (uint32_t)way)
        p->instrs[from] = p->instrs[from + (uint32_t)way];
    p->instrs[to] = moved;
}

/* A program's segment ends with instruction `last`; the rest of it is one of its own, done once. */
static void split(zinf_plan *p, zinf_program_kind program, uint32_t n, uint32_t last)
{
    zinf_segment *s = segment(p, program, n);
    const uint32_t at = (uint32_t)(s - p->segments), n_first = last + 1 - s->first_instr;

    memmove(s + 1, s, (p->n_segments++ - at) * sizeof *s);
    s[0].n_instrs = n_first;
    s[1].first_instr += n_first;
    s[1].n_instrs -= n_first;
    s[1].count = 1;
    p->programs[program].n_segments++;
    for (unsigned k = 0; k < ZINF_N_PROGRAMS; k++)
        p->programs[k].first_segment += p->programs[k].first_segment > at;
}

static void moments_in_each_others_place(zinf_plan *p)
{
    for (uint32_t i = 0; i < p->n_instrs; i++)
        if (p->instrs[i].opcode == ZINF_OP_ADAM)
            exchange_operands(operand(p, i, 2), operand(p, i, 3));
}

/* Where they are made, added and squared; where they are used, too, it is a way to the same. */
static void gradients_exchanged_until_the_norm(zinf_plan *p)
{
    const uint32_t first = segment(p, ZINF_PROGRAM_STEP, 0)->first_instr;

    exchange_places(p, first, STEP(CLIP, 0) - first, *operand(p, OF(2, "0.mlp.c_fc", ADAM), 0),
                    *operand(p, OF(2, "1.mlp.c_fc", ADAM), 0));
}

static void gradients_exchanged_everywhere(zinf_plan *p)
{
    zinf_unit *a = &p->units[p->instrs[OF(0, "0.mlp.c_fc", ADAM)].unit];
    zinf_unit *b = &p->units[p->instrs[OF(0, "1.mlp.c_fc", ADAM)].unit];
    const zinf_operand x = {.tier = ZINF_TIER_DEVICE, .offset = a->grad.offset,
                            .bytes = a->grad.bytes};
    const zinf_operand y = {.tier = ZINF_TIER_DEVICE, .offset = b->grad.offset,
                            .bytes = b->grad.bytes};
    exchange_places(p, 0, p->n_instrs, x, y);
    a->grad.offset = y.offset;
    b->grad.offset = x.offset;
}

/* Each block begins its recomputation with the other's input. */
static void checkpoints_in_each_others_place(zinf_plan *p)
{
    for (uint32_t s = 0; s < 2; s++) {
        const uint32_t first = segment(p, ZINF_PROGRAM_STEP, s)->first_instr;
        exchange_places(p, first, next(p, first, ZINF_OP_LOSS, 0) - first,
                        *operand(p, next(p, first, ZINF_OP_LAYERNORM_FORWARD, 0), 0),
                        *operand(p, next(p, first, ZINF_OP_LAYERNORM_FORWARD, 2), 0));
    }
}

static void downloads_to_each_others_place(zinf_plan *p)
{
    uint32_t at[2] = {0}, n = 0;

    for (uint32_t i = STEP(DOWNLOAD, 0); n < 2; i = next(p, i + 1, ZINF_OP_DOWNLOAD, 0))
        if (p->instrs[i].unit == ZINF_NONE)
            at[n++] = i;
    exchange_operands(operand(p, at[0], 1), operand(p, at[1], 1));
}

static void micro_batches_of_the_same_tokens(zinf_plan *p)
{
    const zinf_segment *loop = segment(p, ZINF_PROGRAM_STEP, 1);

    for (uint32_t i = loop->first_instr; i < loop->first_instr + loop->n_instrs; i++)
        for (uint32_t k = 0; k < p->instrs[i].n_operands; k++)
            if (operand(p, i, k)->stride) {
                operand(p, i, k)->stride = 0;
                operand(p, i, k)->offset -= operand(p, i, k)->bytes;
            }
}

/* The second. */
static void a_micro_batch_left_out(zinf_plan *p)
{
    zinf_segment *loop = segment(p, ZINF_PROGRAM_STEP, 1);

    loop->count--;
    for (uint32_t i = loop->first_instr; i < loop->first_instr + loop->n_instrs; i++)
        for (uint32_t k = 0; k < p->instrs[i].n_operands; k++)
            operand(p, i, k)->offset += operand(p, i, k)->stride;
    zinf_operand *all = operand(p, STEP(BATCH, 0), 0);
    all->bytes -= all->bytes / all->rows;
    all->rows--;
    p->decisions.accumulation--;
}

static void gradients_not_added_but_written_over(zinf_plan *p)
{
    const zinf_segment *loop = segment(p, ZINF_PROGRAM_STEP, 1);

    for (uint32_t i = loop->first_instr; i < loop->first_instr + loop->n_instrs; i++)
        if (p->instrs[i].opcode == ZINF_OP_ACCUMULATE)
            p->instrs[i].opcode = ZINF_OP_COPY;
}

static void a_norm_of_another_unit_twice(zinf_plan *p)
{
    *operand(p, OF(1, "0.mlp.c_fc", SUM_OF_SQUARES), 0) =
        *operand(p, OF(1, "1.mlp.c_fc", SUM_OF_SQUARES), 0);
}

static void an_update_before_the_norm(zinf_plan *p)
{
    move_to(p, STEP(ADAM, 0), STEP(CLIP, 0));
}

static void updates_in_another_order(zinf_plan *p)
{
    move_to(p, STEP(ADAM, 0), STEP(ADAM, 3));
    move_to(p, STEP(ADAM, 7), STEP(ADAM, 1));
}

static void an_update_behind_its_first_use(zinf_plan *p)
{
    move_to(p, OF(0, "0.mlp.c_fc", ADAM), OF(0, "0.mlp.c_fc", LINEAR_FORWARD));
}

/* So that scores are of queries and values. */
static void keys_and_values_exchanged(zinf_plan *p)
{
    for (uint32_t i = 0; i < p->n_parts; i++) {
        const char *name = p->tensors[p->parts[i].tensor].name;
        p->parts[i].tensor += strstr(name, "k_proj") ? 1 : strstr(name, "v_proj") ? UINT32_MAX : 0;
    }
}

static void parameters_written_to_each_others_region(zinf_plan *p)
{
    exchange_operands(operand(p, OF(0, "0.mlp.c_fc", ADAM), 4),
                      operand(p, OF(0, "1.mlp.c_fc", ADAM), 4));
}

static void shards_summed_into_each_others_place(zinf_plan *p)
{
    exchange_operands(operand(p, OF(0, "0.mlp.c_fc", REDUCE_SCATTER), 1),
                      operand(p, OF(0, "1.mlp.c_fc", REDUCE_SCATTER), 1));
}

/* Of a device's operand the elements from n on are zeros before instruction `at`. */
static void zero_before(zinf_plan *p, uint32_t at, zinf_operand o, uint64_t n)
{
    const uint64_t element = zinf_dtype_bytes(o.dtype);

    o.cols = o.ld = o.rows * o.cols - n;
    o.rows = 1;
    o.bytes = o.cols * element;
    o.offset += n * element;
    o.stride = 0;
    move_to(p, insert(p, at, ZINF_OP_ZERO, 1, &o), at);
    p->instrs[at].queue = ZINF_QUEUE_COMPUTE;
}

static void a_gradient_of_zeros(zinf_plan *p)
{
    const uint32_t update = OF(2, "0.mlp.c_fc", ADAM);

    zero_before(p, update, *operand(p, update, 0), 0);
}

static void a_gradients_last_element_zero(zinf_plan *p)
{
    const uint32_t update = OF(2, "0.mlp.c_fc", ADAM);

    zero_before(p, update, *operand(p, update, 0), operand(p, update, 0)->cols - 1);
}

static void second_moments_of_zeros(zinf_plan *p)
{
    const uint32_t update = OF(2, "0.mlp.c_fc", ADAM);

    zero_before(p, update, *operand(p, update, 3), 0);
}

/* Of the first micro-batch alone; the norm is of all. */
static void an_update_with_the_first_gradient(zinf_plan *p)
{
    const zinf_segment *first = segment(p, ZINF_PROGRAM_STEP, 0);
    const uint32_t end = first->first_instr + first->n_instrs - 1;
    zinf_operand both[2] = {*operand(p, OF(2, "0.mlp.c_fc", ADAM), 0)};

    both[1] = both[0];
    both[1].offset = more_arena(p, both[0].bytes);
    p->instrs[insert(p, end, ZINF_OP_COPY, 2, both)].queue = ZINF_QUEUE_COMPUTE;
    *operand(p, OF(2, "0.mlp.c_fc", ADAM), 0) = both[1];
}

/* Of the last micro-batch, when the first one's are read: which no iteration looked at does. */
static void tokens_zeroed_behind_the_first(zinf_plan *p)
{
    zinf_operand tokens = *operand(p, STEP(BATCH, 0), 0);

    zero_before(p, STEP(LOSS, 0), tokens, (tokens.rows - 1) * tokens.cols);
}

/* What the step reports. */
static void a_norm_zeroed_behind_the_updates(zinf_plan *p)
{
    const zinf_segment *last = segment(p, ZINF_PROGRAM_STEP, 2);
    const uint32_t end = last->first_instr + last->n_instrs - 1;

    zero_before(p, end, *operand(p, STEP(CLIP, 0), 1), 0);
    move_to(p, end, end + 1);
}

/* The first half of a sum over tiles, in F32, as if it were all of it, in BF16. */
static void a_sum_over_tiles_read_as_if_rounded(zinf_plan *p)
{
    zinf_operand *dy = operand(p, STEP(GELU_BACKWARD, 0), 1);

    CHECK(dy->dtype == ZINF_F32);
    dy->dtype = ZINF_BF16;
    dy->bytes /= 2;
}

/* Of the last row, before the second tile makes its own. */
static void a_tiles_columns_of_zeros(zinf_plan *p)
{
    const uint32_t first = OF(0, "0.mlp.c_fc", LINEAR_FORWARD);
    zinf_operand y = *operand(p, first, 4);

    CHECK(y.ld == 2 * y.cols && y.rows > 1);
    y.offset += (y.rows - 1) * y.ld * zinf_dtype_bytes(y.dtype);
    y.rows = 1;
    zero_before(p, next(p, first + 1, ZINF_OP_LINEAR_FORWARD, 0), y, 0);
}

/* Of a gradient summed over two tiles, that of the first. */
static uint32_t first_of_two_tiles(zinf_plan *p)
{
    uint32_t i = STEP(LINEAR_BACKWARD_INPUT, 0);
    const uint32_t second = next(p, i + 1, ZINF_OP_LINEAR_BACKWARD_INPUT, 0);

    CHECK(!p->instrs[i].flags && p->instrs[second].flags == ZINF_FLAG_ACCUMULATE &&
          operand(p, i, 2)->offset == operand(p, second, 2)->offset);
    return i;
}

static void a_second_tile_that_adds_nothing(zinf_plan *p)
{
    p->instrs[next(p, first_of_two_tiles(p) + 1, ZINF_OP_LINEAR_BACKWARD_INPUT, 0)].flags = 0;
}

static void two_tiles_added_twice(zinf_plan *p)
{
    const uint32_t first = first_of_two_tiles(p);
    const uint32_t second = next(p, first + 1, ZINF_OP_LINEAR_BACKWARD_INPUT, 0);

    CHECK(mutate_duplicate(p, second) && mutate_duplicate(p, second));
    p->instrs[second + 1] = p->instrs[first];
    p->instrs[second + 1].flags = ZINF_FLAG_ACCUMULATE;
}

/* Behind what was rounded already: to F32, where nothing else reads it, and back. */
static void a_gradient_that_is_widened_and_rounded(zinf_plan *p)
{
    const uint32_t reader = STEP(ATTENTION_BACKWARD, 0);
    zinf_operand rounded = *operand(p, reader, 2), o[2] = {rounded, rounded};

    CHECK(rounded.dtype == ZINF_BF16);
    o[1].dtype = ZINF_F32;
    o[1].bytes *= 2;
    o[1].offset = more_arena(p, o[1].bytes);
    move_to(p, insert(p, reader, ZINF_OP_CONVERT, 2, o), reader);
    o[0] = o[1];
    o[1] = rounded;
    insert(p, reader, ZINF_OP_CONVERT, 2, o);
}

/* Over what follows, which is of all ranks, on that one. */
static void an_owners_download_beyond_what_it_owns(zinf_plan *p)
{
    const uint64_t owned = p->machine.owned_bytes[ZINF_TIER_HOST];
    uint32_t last = ZINF_NONE;

    for (uint32_t i = STEP(DOWNLOAD, 0); i < p->n_instrs; i++)
        if (p->instrs[i].opcode == ZINF_OP_DOWNLOAD &&
            zinf_instr_owner(p, &p->instrs[i]) != ZINF_NONE &&
            operand(p, i, 1)->offset < owned &&
            (last == ZINF_NONE || operand(p, i, 1)->offset > operand(p, last, 1)->offset))
            last = i;
    CHECK(last != ZINF_NONE);
    zinf_operand o[2] = {*operand(p, last, 0), *operand(p, last, 0)};
    const uint64_t bytes = p->machine.arena_bytes[ZINF_TIER_HOST] - operand(p, last, 1)->offset;
    o[1].offset = more_arena(p, bytes);
    const uint32_t unit = p->instrs[last].unit;
    move_to(p, insert(p, last, ZINF_OP_COPY, 2, o), last);
    p->instrs[last].queue = ZINF_QUEUE_COMPUTE;
    p->instrs[last].unit = unit;
    *operand(p, last + 1, 0) = o[1];
    for (uint32_t k = 0; k < 2; k++) {
        zinf_operand *more = operand(p, last + 1, k);
        more->bytes = bytes;
        more->rows = 1;
        more->cols = more->ld = bytes / zinf_dtype_bytes(more->dtype);
    }
}

/* The second time over ranks. */
static void a_norm_summed_behind_the_updates(zinf_plan *p)
{
    const zinf_segment *last = segment(p, ZINF_PROGRAM_STEP, 2);
    const zinf_operand norm = *operand(p, STEP(CLIP, 0), 1), both[2] = {norm, norm};
    const uint32_t end = last->first_instr + last->n_instrs - 1;

    p->instrs[insert(p, end, ZINF_OP_ALLREDUCE, 2, both)].queue = ZINF_QUEUE_COLLECTIVE;
}

/* To BF16 and back. */
static void a_gradient_rounded_before_its_update(zinf_plan *p)
{
    const uint32_t update = OF(2, "0.mlp.c_fc", ADAM);
    zinf_operand o[2] = {*operand(p, update, 0), *operand(p, update, 0)}, f32 = o[0];

    o[1].dtype = ZINF_BF16;
    o[1].bytes /= 2;
    o[1].offset = more_arena(p, o[1].bytes);
    move_to(p, insert(p, update, ZINF_OP_CONVERT, 2, o), update);
    p->instrs[update].queue = ZINF_QUEUE_COMPUTE;
    o[0] = o[1];
    o[1] = f32;
    insert(p, update, ZINF_OP_CONVERT, 2, o);
}

/* Of which the first is lost. */
static void a_batch_drawn_twice(zinf_plan *p)
{
    const zinf_segment *s = segment(p, ZINF_PROGRAM_EVAL, 0);

    move_to(p, next(p, s->first_instr, ZINF_OP_BATCH, 0), s->first_instr);
    split(p, ZINF_PROGRAM_EVAL, 0, s->first_instr);
    segment(p, ZINF_PROGRAM_EVAL, 0)->count = 2;
}

/* Which the next step does not see. */
static void a_batch_drawn_while_saving(zinf_plan *p)
{
    const uint32_t batch = next(p, segment(p, ZINF_PROGRAM_EVAL, 0)->first_instr, ZINF_OP_BATCH, 0);
    const uint32_t first = segment(p, ZINF_PROGRAM_SAVE, 0)->first_instr;
    zinf_operand tokens = *operand(p, batch, 0);

    tokens.offset = more_arena(p, tokens.bytes);
    p->instrs[insert(p, first, ZINF_OP_BATCH, 1, &tokens)].queue = ZINF_QUEUE_UPDATE;
}

/* The loop's last iterations behind it: of micro-batches that are so many before the last ones. */
static void add_iterations(zinf_plan *p, uint64_t n_last, uint64_t before)
{
    const zinf_segment loop = *segment(p, ZINF_PROGRAM_STEP, 1);
    const uint32_t n = loop.n_instrs, end = loop.first_instr + n;

    p->instrs = realloc(p->instrs, (p->n_instrs + n + (size_t)1) * sizeof *p->instrs);
    p->operands = realloc(p->operands, (p->n_operands + (size_t)n * ZINF_MAX_OPERANDS) *
                                           sizeof *p->operands);
    CHECK(p->instrs && p->operands);
    memmove(&p->instrs[end + n], &p->instrs[end], (p->n_instrs - end) * sizeof *p->instrs);
    memcpy(&p->instrs[end], &p->instrs[loop.first_instr], n * sizeof *p->instrs);
    p->n_instrs += n;
    for (uint32_t s = 0; s < p->n_segments; s++)
        p->segments[s].first_instr += p->segments[s].first_instr >= end ? n : 0;
    for (uint32_t i = end; i < end + n; i++) {
        zinf_operand *o = &p->operands[p->n_operands];
        memcpy(o, operand(p, i, 0), p->instrs[i].n_operands * sizeof *o);
        p->instrs[i].operand0 = p->n_operands;
        p->n_operands += p->instrs[i].n_operands;
        for (uint32_t k = 0; k < p->instrs[i].n_operands; k++) {
            o[k].offset += o[k].stride * (loop.count - n_last - before);
            o[k].stride *= n_last > 1;
        }
    }
    segment(p, ZINF_PROGRAM_STEP, 1)->n_instrs += n;
    split(p, ZINF_PROGRAM_STEP, 1, end - 1);
    segment(p, ZINF_PROGRAM_STEP, 1)->count -= n_last;
    segment(p, ZINF_PROGRAM_STEP, 2)->count = n_last;
}

static void a_loop_and_its_last_iteration(zinf_plan *p)
{
    add_iterations(p, 1, 0);
}

static void a_loop_in_two(zinf_plan *p)
{
    add_iterations(p, 4, 0);
    CHECK(segment(p, ZINF_PROGRAM_STEP, 1)->count == 4);
}

static void a_loop_and_its_last_but_one_iteration(zinf_plan *p)
{
    add_iterations(p, 1, 1);
}

/* The loop's last two iterations behind it: the first of them has the tokens that the loop has put
 * aside two micro-batches ahead, the last time its own. As of the third iteration, which is the
 * last one looked at, they would be those of the micro-batch due. */
static void tokens_put_aside_by_a_loop(zinf_plan *p)
{
    add_iterations(p, 1, 0);
    add_iterations(p, 1, 0);
    const zinf_segment loop = *segment(p, ZINF_PROGRAM_STEP, 1);
    const uint32_t last = loop.first_instr + loop.n_instrs - 1;
    zinf_operand o[2] = {{0}};

    CHECK(loop.count == 4);
    for (uint32_t i = loop.first_instr; i <= last; i++)
        for (uint32_t k = 0; k < p->instrs[i].n_operands; k++)
            o[0] = operand(p, i, k)->stride ? *operand(p, i, k) : o[0];
    o[0].offset += 2 * o[0].stride;
    o[1] = o[0];
    o[1].stride = 0;
    o[1].tier = ZINF_TIER_DEVICE;
    o[1].offset = more_arena(p, o[1].bytes);
    const bool far = o[0].tier == ZINF_TIER_HOST;
    const uint32_t at = insert(p, last, far ? ZINF_OP_UPLOAD : ZINF_OP_COPY, 2, o);
    p->instrs[at].queue = far ? ZINF_QUEUE_UPLOAD : ZINF_QUEUE_COMPUTE;
    const zinf_segment one = *segment(p, ZINF_PROGRAM_STEP, 2);
    for (uint32_t i = one.first_instr; i < one.first_instr + one.n_instrs; i++)
        for (uint32_t k = 0; k < p->instrs[i].n_operands; k++)
            if (operand(p, i, k)->dtype == ZINF_I32 && operand(p, i, k)->tier == ZINF_TIER_DEVICE &&
                p->instrs[i].opcode != ZINF_OP_UPLOAD)
                operand(p, i, k)->offset = o[1].offset;
}

/* The embedding's: head + (the second head + tokens), for head + tokens + the second head. */
static void a_sum_added_to_a_contribution(zinf_plan *p)
{
    const uint32_t tokens = STEP(EMBEDDING_BACKWARD, 0) + 1;
    const uint32_t head = next(p, tokens, ZINF_OP_CLASSIFIER, 0);
    zinf_operand o[2] = {*operand(p, head + 1, 0), *operand(p, head + 1, 0)};

    CHECK(p->instrs[tokens].opcode == ZINF_OP_ACCUMULATE &&
          p->instrs[head + 1].opcode == ZINF_OP_ACCUMULATE);
    o[0].offset = operand(p, tokens, 1)->offset = more_arena(p, o[0].bytes);
    p->instrs[tokens].opcode = ZINF_OP_COPY;
    p->instrs[insert(p, head, ZINF_OP_ACCUMULATE, 2, o)].queue = ZINF_QUEUE_COMPUTE;
}

/* The parameters used are moved on from place to place, those of another unit behind them: which
 * no iteration looked at uses. */
static void parameters_moved_on_between_iterations(zinf_plan *p)
{
    const zinf_segment *first = segment(p, ZINF_PROGRAM_STEP, 0);
    const uint32_t end = first->first_instr + first->n_instrs - 1;
    const uint32_t user = OF(1, "0.mlp.c_fc", LINEAR_FORWARD);
    const zinf_operand used = *operand(p, user, 1);
    const uint64_t kept = more_arena(p, 4 * used.bytes);
    zinf_operand o[2] = {used, used};
    uint32_t at = user;

    o[0] = *operand(p, OF(1, "1.mlp.c_fc", LINEAR_FORWARD), 1);
    for (uint32_t k = 3; k-- > 0;) { /* 2 from another unit, 1 from 2, 0 from 1; used is 3 */
        o[1].offset = kept + k * used.bytes;
        at = insert(p, at, ZINF_OP_COPY, 2, o);
        p->instrs[at].queue = ZINF_QUEUE_COMPUTE;
        move_to(p, at--, user);
        o[0] = o[1];
    }
    o[1].offset = kept + 3 * used.bytes;
    move_to(p, insert(p, at, ZINF_OP_COPY, 2, o), user);
    p->instrs[user].queue = ZINF_QUEUE_COMPUTE;
    *operand(p, user + 4, 1) = o[1];
    o[0] = used;
    for (uint32_t k = 0; k < 3; k++) {
        o[1].offset = kept + k * used.bytes;
        p->instrs[insert(p, end, ZINF_OP_COPY, 2, o)].queue = ZINF_QUEUE_COMPUTE;
    }
}

static void loads_what_it_made(zinf_plan *p)
{
    const zinf_program first = p->programs[ZINF_PROGRAM_INIT];

    p->programs[ZINF_PROGRAM_INIT] = p->programs[ZINF_PROGRAM_LOAD];
    p->programs[ZINF_PROGRAM_LOAD] = first;
}

static void nothing(zinf_plan *p)
{
    (void)p;
}

static const struct {
    void (*edit)(zinf_plan *plan);
    const trainer_model *model;
    const char *sets;
    unsigned ranks;
    const char *rule, *words; /* NULL: accepted */
} edits[] = {
    {nothing, &deep, LOOP, 1, NULL, NULL}, {nothing, &deep, AWAY, 1, NULL, NULL},
    {nothing, &llama, LOOP, 1, NULL, NULL}, {nothing, &deep, LATE, 1, NULL, NULL},
    {nothing, &longer, LOOP, 1, NULL, NULL}, {nothing, &deep, LOOP TWO, 2, NULL, NULL},
    {nothing, &deep, TILES, 1, NULL, NULL}, {nothing, &deep, OWNERS, 2, NULL, NULL},
    {gradients_exchanged_everywhere, &deep, LOOP, 1, NULL, NULL},
    {updates_in_another_order, &deep, LOOP, 1, NULL, NULL},
    {a_loop_and_its_last_iteration, &longer, LOOP, 1, NULL, NULL},
    {a_loop_in_two, &of_nine, LOOP, 1, NULL, NULL}, {a_loop_in_two, &of_nine, AWAY, 1, NULL, NULL},
    {a_gradient_that_is_widened_and_rounded, &deep, LOOP, 1, NULL, NULL},
    {moments_in_each_others_place, &deep, LOOP, 1, "C4", "at its place"},
    {gradients_exchanged_until_the_norm, &deep, LOOP, 1, "C7", "it should hold the gradient"},
    {checkpoints_in_each_others_place, &deep, LOOP, 1, "C4", "is not the rows of the tensor"},
    {downloads_to_each_others_place, &deep, AWAY, 1, "C4", "is not the rows of the tensor"},
    {micro_batches_of_the_same_tokens, &deep, LOOP, 1, "C7", "of a micro-batch that is done"},
    {a_micro_batch_left_out, &deep, LOOP, 1, "C7", "is not every micro-batch"},
    {gradients_not_added_but_written_over, &deep, LOOP, 1, "C7", "the whole sum of it"},
    {tokens_put_aside_by_a_loop, &longest, LOOP, 1, "C4", "hold tokens (of 0), at its place"},
    {tokens_put_aside_by_a_loop, &longest, AWAY, 1, "C4", "hold tokens (of 0), at its place"},
    {a_sum_added_to_a_contribution, &shorter, LOOP, 1, "C7", "a sum is added to a sum"},
    {a_norm_of_another_unit_twice, &deep, LOOP, 1, "C7", "it should hold the gradient"},
    {an_update_before_the_norm, &deep, LOOP, 1, "C7", "what an update needs to know"},
    {an_update_behind_its_first_use, &deep, LATE, 1, "C4", "from before or after an update"},
    {keys_and_values_exchanged, &llama, LOOP, 1, "C4", "is not the rows of the tensor"},
    {parameters_written_to_each_others_region, &deep, LOOP, 1, "C8", "it should hold the param"},
    {shards_summed_into_each_others_place, &deep, LOOP TWO, 2, "C7", "a shard of the gradient"},
    {loads_what_it_made, &deep, LOOP, 1, "C7", "is not what program init does"},
    {a_gradient_of_zeros, &deep, LOOP, 1, "C7", "holds zeros (of 0), it should hold the grad"},
    {a_gradients_last_element_zero, &deep, LOOP, 1, "C7", "it should hold the gradient"},
    {an_update_with_the_first_gradient, &deep, LOOP, 1, "C7", "the whole sum of it"},
    {tokens_zeroed_behind_the_first, &longer, LOOP, 1, "C4", "it should hold tokens"},
    {parameters_moved_on_between_iterations, &longer, LOOP, 1, "C8", "of an iteration before"},
    {a_loop_and_its_last_but_one_iteration, &longer, LOOP, 1, "C7", "a micro-batch that is done"},
    {a_batch_drawn_twice, &deep, LOOP, 1, "C7", "does for a second time what program eval does"},
    {a_batch_drawn_while_saving, &deep, LOOP, 1, "C7", "is not what program save does"},
    {second_moments_of_zeros, &deep, LOOP, 1, "C4", "it should hold master, m, v"},
    {a_gradient_rounded_before_its_update, &deep, LOOP, 1, "C4", "is no gradient that is conv"},
    {a_gradient_rounded_before_its_update, &deep, LOOP TWO, 2, "C4", "is no gradient that is conv"},
    {a_norm_summed_behind_the_updates, &deep, LOOP TWO, 2, "C7", "holds nothing that this moves"},
    {a_norm_zeroed_behind_the_updates, &deep, LOOP, 1, "C7", "zeroes scalars of a step"},
    {a_tiles_columns_of_zeros, &deep, TILES, 1, "C4", "it should hold the result"},
    {a_second_tile_that_adds_nothing, &deep, TILES, 1, "C4", "must be begun by the first tile"},
    {two_tiles_added_twice, &deep, TILES, 1, "C4", "must be begun by the first tile"},
    {a_sum_over_tiles_read_as_if_rounded, &deep, TILES, 1, "C4", "and of its element type"},
    {an_owners_download_beyond_what_it_owns, &deep, OWNERS, 2, "C6", "or ends beyond it"},
};

static zinf_plan editable(const zinf_plan *plan)
{
    zinf_plan copy = mutate_copy(plan);

    copy.segments = realloc(copy.segments, (2 + plan->n_segments) * sizeof *copy.segments);
    copy.waits = realloc(copy.waits, (4096 + plan->n_waits) * sizeof *copy.waits);
    for (uint32_t i = 0; i < copy.n_operands; i++)
        copy.operands[i].value = copy.operands[i].value == ZINF_NONE ? ZINF_NONE : 0;
    for (uint32_t u = 0; u < copy.n_units; u++) {
        zinf_unit *unit = &copy.units[u];
        unit->param.value = unit->grad.value = unit->optimizer.value = 0;
        unit->whole_param = unit->whole_grad = 0;
    }
    return copy;
}

static void edits_that_change_bits_and_no_others_are_refused(void)
{
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        const bool unified = strstr(edits[i].sets, "host") == NULL;
        zinf_error err = {0}, ran = {0};
        uint64_t want = 0, found = 0;
        zinf_plan good = faults_plan(edits[i].model, unified, edits[i].ranks, edits[i].sets);
        zinf_plan edited = editable(&good);
        edits[i].edit(&edited);
        mini_add_waits(&edited);
        restate(&edited);
        zinf_plan_check(&edited, &err);
        CHECK_MESSAGE(edits[i].rule ? err.status == ZINF_DOES_NOT_FIT &&
                                          !strncmp(err.text, edits[i].rule, 2) &&
                                          strstr(err.text, edits[i].words)
                                    : !err.status,
                      "edit %zu, %s expected: %s", i, edits[i].rule ? edits[i].rule : "no rule",
                      err.text);
        CHECK_MESSAGE(!zinf_plan_validate(&edited, &ran) && !replay(&good, &want, &ran) &&
                      !replay(&edited, &found, &ran), "edit %zu does not run: %s", i, ran.text);
        CHECK_MESSAGE((found == want) == !edits[i].rule, "edit %zu: %s bits", i,
                      found == want ? "the same" : "other");
        zinf_plan_free(&good);
        zinf_plan_free(&edited);
    }
}

int main(void)
{
    RUN(edits_that_change_bits_and_no_others_are_refused);
    return check_finish();
}
