/* tests/checker/test_edits.c - edits of several places of a plan that agree with each other. Names,
 * waits, memory and traffic are made true again, all values have one name: only what they are tells
 * an edit from a good plan. It is refused, or is another way to the same bits.
 */
#include <stdlib.h>
#include <string.h>

#include "mini.h"
#include "runtime/checker.h"
#include "tests/bitwise/trainer.h"
#include "tests/check.h"
#include "tests/checker/mutate.h"
#include "tests/checker/replay.h"
#include "tests/checker/restate.h"

static const trainer_model deep = {2, 16, 2, 24, 4, 4, "bf16", NULL};
static const trainer_model llama = {2, 16, 2, 24, 4, 2, "bf16",
                                    ", kv_heads: 2, ffn: 16, tied_embeddings: true"};
#define TIERS(p, g, o, c) " threads=1 micro_batch=1 tiles=1 checkpoint_interval=1 "               \
                          "tier.param=" #p " tier.grad=" #g " tier.optimizer=" #o                 \
                          " tier.checkpoint=" #c
#define LOOP "optimizer_time=after order=horizontal" TIERS(device, device, device, device)
#define AWAY "optimizer_time=after order=horizontal" TIERS(host, host, host, host)
#define LATE "optimizer_time=forward order=horizontal" TIERS(device, device, device, device)
#define TWO " partitioning=bandwidth"

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

static zinf_operand *operand(zinf_plan *p, uint32_t instr, uint32_t slot)
{
    return &p->operands[p->instrs[instr].operand0 + slot];
}

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
    const char *sets, *rule; /* NULL: accepted */
    unsigned ranks;
} edits[] = {
    {nothing, &deep, LOOP, NULL, 1}, {nothing, &deep, AWAY, NULL, 1},
    {nothing, &llama, LOOP, NULL, 1}, {nothing, &deep, LATE, NULL, 1},
    {nothing, &deep, LOOP TWO, NULL, 2},
    {moments_in_each_others_place, &deep, LOOP, "C4", 1},
    {gradients_exchanged_until_the_norm, &deep, LOOP, "C7", 1},
    {gradients_exchanged_everywhere, &deep, LOOP, NULL, 1},
    {checkpoints_in_each_others_place, &deep, LOOP, "C4", 1},
    {downloads_to_each_others_place, &deep, AWAY, "C4", 1},
    {micro_batches_of_the_same_tokens, &deep, LOOP, "C7", 1},
    {a_micro_batch_left_out, &deep, LOOP, "C7", 1},
    {gradients_not_added_but_written_over, &deep, LOOP, "C7", 1},
    {a_norm_of_another_unit_twice, &deep, LOOP, "C7", 1},
    {an_update_before_the_norm, &deep, LOOP, "C7", 1},
    {updates_in_another_order, &deep, LOOP, NULL, 1},
    {an_update_behind_its_first_use, &deep, LATE, "C4", 1},
    {keys_and_values_exchanged, &llama, LOOP, "C4", 1},
    {parameters_written_to_each_others_region, &deep, LOOP, "C8", 1},
    {shards_summed_into_each_others_place, &deep, LOOP TWO, "C7", 2},
    {loads_what_it_made, &deep, LOOP, "C7", 1},
};

static zinf_plan editable(const zinf_plan *plan)
{
    zinf_plan copy = mutate_copy(plan);

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

static void edits_that_agree_are_refused_or_change_no_bit(void)
{
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        zinf_error err = {0};
        uint64_t want = 0, found = 0;
        zinf_plan good;
        CHECK_MESSAGE(!trainer_plan_ranks(edits[i].model, strstr(edits[i].sets, "host") == NULL,
                                          edits[i].ranks, edits[i].sets, &good, &err), "%s",
                      err.text);
        zinf_plan edited = editable(&good);
        edits[i].edit(&edited);
        mini_add_waits(&edited);
        restate(&edited);
        zinf_plan_check(&edited, &err);
        CHECK_MESSAGE(edits[i].rule ? err.status == ZINF_DOES_NOT_FIT &&
                                          !strncmp(err.text, edits[i].rule, 2)
                                    : !err.status,
                      "edit %zu, %s expected: %s", i, edits[i].rule ? edits[i].rule : "no rule",
                      err.text);
        if (!edits[i].rule)
            CHECK_MESSAGE(!replay(&good, &want, &err) && !replay(&edited, &found, &err) &&
                          found == want, "edit %zu: other bits: %s", i, err.text);
        zinf_plan_free(&good);
        zinf_plan_free(&edited);
    }
}

int main(void)
{
    RUN(edits_that_agree_are_refused_or_change_no_bit);
    return check_finish();
}
