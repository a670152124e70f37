/* tests/checker/mutate.c - see mutate.h. */
#include "tests/checker/mutate.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/opcodes.h"

/* ---- editing ---- */

/* Instruction i moves to where[i] (or is gone: ZINF_NONE, and its waiters wait for fallback). */
static void renumber(zinf_plan *plan, const uint32_t *where, const uint32_t *fallback, uint32_t n)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < n; i++) {
        zinf_instr *instr = &plan->instrs[i];
        uint32_t first = kept;
        for (uint32_t w = instr->wait0; w < instr->wait0 + instr->n_waits; w++) {
            zinf_wait wait = plan->waits[w];
            uint32_t to = where[wait.instr] == ZINF_NONE ? fallback[wait.instr]
                                                         : where[wait.instr];
            if (to == ZINF_NONE || plan->instrs[i].n_waits == 0)
                continue;
            plan->waits[kept++] = (zinf_wait){to, wait.distance};
        }
        instr->n_waits = kept - first;
        instr->wait0 = first;
    }
    plan->n_waits = kept;
}

/* Twice as many numbers as instructions, valid until the next call. */
static uint32_t *numbers(const zinf_plan *plan)
{
    static uint32_t *all;

    all = realloc(all, (2 * (size_t)plan->n_instrs + 1) * sizeof *all);
    return all;
}

static zinf_segment *segment_of(zinf_plan *plan, uint32_t i)
{
    for (uint32_t s = 0; s < plan->n_segments; s++)
        if (i >= plan->segments[s].first_instr &&
            i < plan->segments[s].first_instr + plan->segments[s].n_instrs)
            return &plan->segments[s];
    return NULL;
}

bool mutate_drop(zinf_plan *plan, uint32_t at)
{
    zinf_segment *s = segment_of(plan, at);
    uint32_t *where = numbers(plan), *fallback = where + plan->n_instrs;

    if (s->n_instrs == 1)
        return false;
    for (uint32_t i = 0; i < plan->n_instrs; i++) {
        where[i] = i < at ? i : i == at ? ZINF_NONE : i - 1;
        fallback[i] = ZINF_NONE;
    }
    /* who waited for it waits for what ran before it in its queue: all else stays ordered */
    for (uint32_t i = s->first_instr; i < at; i++)
        if (plan->instrs[i].queue == plan->instrs[at].queue)
            fallback[at] = i;
    renumber(plan, where, fallback, plan->n_instrs);
    memmove(&plan->instrs[at], &plan->instrs[at + 1],
            (plan->n_instrs - at - 1) * sizeof *plan->instrs);
    plan->n_instrs--;
    s->n_instrs--;
    for (s++; s < plan->segments + plan->n_segments; s++)
        s->first_instr--;
    return true;
}

bool mutate_duplicate(zinf_plan *plan, uint32_t at)
{
    zinf_segment *s = segment_of(plan, at);
    uint32_t *where = numbers(plan);

    for (uint32_t i = 0; i < plan->n_instrs; i++)
        where[i] = i < at ? i : i + 1; /* who waited for it waits for the second */
    renumber(plan, where, where, plan->n_instrs);
    memmove(&plan->instrs[at + 1], &plan->instrs[at],
            (plan->n_instrs - at) * sizeof *plan->instrs);
    zinf_instr *copy = &plan->instrs[at + 1]; /* instructions share no waits */
    memcpy(&plan->waits[plan->n_waits], &plan->waits[copy->wait0],
           copy->n_waits * sizeof *plan->waits);
    copy->wait0 = plan->n_waits;
    plan->n_waits += copy->n_waits;
    plan->n_instrs++;
    s->n_instrs++;
    for (s++; s < plan->segments + plan->n_segments; s++)
        s->first_instr++;
    return true;
}

static bool duplicate_instr(zinf_plan *plan, uint32_t at)
{
    return mutate_duplicate(plan, at);
}

static bool drop_instr(zinf_plan *plan, uint32_t at)
{
    return mutate_drop(plan, at);
}

static bool swap_with_next(zinf_plan *plan, uint32_t at)
{
    zinf_segment *s = segment_of(plan, at);
    uint32_t *where = numbers(plan);

    if (at + 1 == s->first_instr + s->n_instrs)
        return false;
    for (uint32_t i = 0; i < plan->n_instrs; i++)
        where[i] = i == at ? at + 1 : i == at + 1 ? at : i;
    renumber(plan, where, where, plan->n_instrs);
    zinf_instr first = plan->instrs[at];
    plan->instrs[at] = plan->instrs[at + 1];
    plan->instrs[at + 1] = first;
    return true;
}

/* ---- the mutations ---- */

static zinf_operand *operand(zinf_plan *plan, uint32_t i)
{
    return plan->operands[i].bytes ? &plan->operands[i] : NULL;
}

#define ON_OPERAND(name, body)                                                                   \
    static bool name(zinf_plan *plan, uint32_t i)                                                \
    {                                                                                            \
        zinf_operand *o = operand(plan, i);                                                      \
        if (!o)                                                                                  \
            return false;                                                                        \
        body;                                                                                    \
        return true;                                                                             \
    }
ON_OPERAND(shift_64, o->offset += 64)
ON_OPERAND(shift_back_64, if (o->offset < 64) return false; o->offset -= 64)
ON_OPERAND(shift_4096, o->offset += 4096)
ON_OPERAND(shift_back_4096, if (o->offset < 4096) return false; o->offset -= 4096)
ON_OPERAND(shift_2, o->offset += 2)
ON_OPERAND(next_tier, o->tier = (uint8_t)((o->tier + 1) % ZINF_N_TIERS))
ON_OPERAND(previous_tier, o->tier = (uint8_t)((o->tier + 3) % ZINF_N_TIERS))
ON_OPERAND(next_value, if (o->value == ZINF_NONE) return false;
           o->value = (o->value + 1) % plan->n_values)
ON_OPERAND(no_value, if (o->value == ZINF_NONE) return false; o->value = ZINF_NONE)
ON_OPERAND(wrong_dtype, o->dtype = o->dtype == ZINF_F32 ? ZINF_I32 : ZINF_F32;
           o->bytes = ((o->rows - 1) * o->ld + o->cols) * 4)
ON_OPERAND(half_the_bytes, o->bytes /= 2)
ON_OPERAND(one_element_less, if (o->rows > 1) o->rows--; else if (o->cols > 1) o->cols--;
           else return false;
           o->bytes = ((o->rows - 1) * o->ld + o->cols) * zinf_dtype_bytes(o->dtype))
ON_OPERAND(a_page_less, if (o->bytes <= 4096 || o->rows > 1) return false;
           o->bytes -= 4096; o->cols = o->ld = o->bytes / zinf_dtype_bytes(o->dtype))
ON_OPERAND(more_ld, if (o->rows == 1) return false;
           o->ld++; o->bytes = ((o->rows - 1) * o->ld + o->cols) * zinf_dtype_bytes(o->dtype))
ON_OPERAND(double_ld, if (o->rows == 1) return false;
           o->ld *= 2; o->bytes = ((o->rows - 1) * o->ld + o->cols) * zinf_dtype_bytes(o->dtype))
ON_OPERAND(half_the_rows, if (o->rows % 2 || o->ld > o->cols) return false;
           o->rows /= 2; o->cols *= 2; o->ld = o->cols)
ON_OPERAND(twice_the_rows, if (o->cols % 2 || o->ld > o->cols) return false;
           o->rows *= 2; o->cols /= 2; o->ld = o->cols)
/* All sequences of a micro-batch as one. */
ON_OPERAND(one_sequence, if (o->dtype != ZINF_I32 || o->rows == 1) return false;
           o->cols = o->ld = (o->cols - 1) * o->rows + 1; o->rows = 1;
           o->bytes = 4 * o->cols)
ON_OPERAND(other_stride, if (!o->stride) return false; o->stride *= 2)
ON_OPERAND(no_stride, if (!o->stride) return false; o->stride = 0)

static bool drop_wait(zinf_plan *plan, uint32_t i)
{
    for (uint32_t k = 0; k < plan->n_instrs; k++) {
        zinf_instr *instr = &plan->instrs[k];
        if (i >= instr->wait0 && i < instr->wait0 + instr->n_waits) {
            plan->waits[i] = plan->waits[instr->wait0 + --instr->n_waits];
            return true;
        }
    }
    return false;
}

static bool wait_for_earlier(zinf_plan *plan, uint32_t i)
{
    return plan->waits[i].instr-- > 0;
}

static bool wait_for_later(zinf_plan *plan, uint32_t i)
{
    return ++plan->waits[i].instr < plan->n_instrs;
}

static bool more_distance(zinf_plan *plan, uint32_t i)
{
    plan->waits[i].distance++;
    return true;
}

static bool less_distance(zinf_plan *plan, uint32_t i)
{
    return plan->waits[i].distance && plan->waits[i].distance--;
}

static bool flip_accumulate(zinf_plan *plan, uint32_t i)
{
    zinf_instr *instr = &plan->instrs[i];

    if (!strchr(zinf_opcode_get(instr->opcode)->access, 'a'))
        return false;
    instr->flags ^= ZINF_FLAG_ACCUMULATE;
    if (instr->opcode == ZINF_OP_CLASSIFIER)
        instr->attr[3] ^= 2;
    return true;
}

static bool other_queue(zinf_plan *plan, uint32_t i)
{
    plan->instrs[i].queue = (uint8_t)((plan->instrs[i].queue + 1) % ZINF_N_QUEUES);
    return true;
}

static bool other_unit(zinf_plan *plan, uint32_t i)
{
    zinf_instr *instr = &plan->instrs[i];

    if (instr->unit == ZINF_NONE)
        return false;
    instr->unit = (instr->unit + 1) % plan->n_units;
    return true;
}

/* Attributes, each by itself, in ways that keep it plausible. */
#define ON_ATTR(name, k, body)                                                                   \
    static bool name(zinf_plan *plan, uint32_t i)                                                \
    {                                                                                            \
        uint64_t *attr = &plan->instrs[i].attr[k];                                               \
        body;                                                                                    \
        return true;                                                                             \
    }
ON_ATTR(flip_attr_0, 0, *attr ^= 1)
ON_ATTR(flip_attr_1, 1, *attr ^= 1)
ON_ATTR(flip_attr_2, 2, *attr ^= 1)
ON_ATTR(flip_attr_3, 3, *attr ^= 1)
ON_ATTR(double_attr_0, 0, if (!*attr) return false; *attr *= 2)
ON_ATTR(double_attr_1, 1, if (!*attr) return false; *attr *= 2)
ON_ATTR(double_attr_2, 2, if (!*attr) return false; *attr *= 2)
ON_ATTR(double_attr_3, 3, if (!*attr) return false; *attr *= 2)
ON_ATTR(half_attr_0, 0, if (*attr < 2) return false; *attr /= 2)
ON_ATTR(half_attr_1, 1, if (*attr < 2) return false; *attr /= 2)
ON_ATTR(half_attr_2, 2, if (*attr < 2) return false; *attr /= 2)
ON_ATTR(half_attr_3, 3, if (*attr < 2) return false; *attr /= 2)

/* A head half as wide, and half the sequence or heads: other scores, the same bytes. */
static bool other_heads(zinf_plan *plan, uint32_t i)
{
    zinf_instr *instr = &plan->instrs[i];
    const bool forward = instr->opcode == ZINF_OP_ATTENTION_FORWARD;
    zinf_operand *lse = &plan->operands[instr->operand0 + (forward ? 2 : 3)];

    if ((!forward && instr->opcode != ZINF_OP_ATTENTION_BACKWARD) || instr->attr[2] % 2)
        return false;
    instr->attr[0] *= 2;
    instr->attr[1] *= 2;
    instr->attr[2] /= 2;
    lse->cols *= 2;
    lse->ld *= 2;
    lse->bytes *= 2;
    return true;
}

static bool other_root(zinf_plan *plan, uint32_t i)
{
    zinf_instr *instr = &plan->instrs[i];

    instr->attr[0] = (instr->attr[0] + 1) % plan->decisions.ranks;
    return instr->opcode == ZINF_OP_BROADCAST || instr->opcode == ZINF_OP_REDUCE;
}

static bool other_owner(zinf_plan *plan, uint32_t i)
{
    zinf_unit *unit = &plan->units[plan->instrs[i].unit % plan->n_units];

    unit->owner = (unit->owner + 1) % plan->decisions.ranks;
    return plan->decisions.partitioning == ZINF_OWNER && plan->instrs[i].unit != ZINF_NONE;
}

static bool no_owner(zinf_plan *plan, uint32_t i)
{
    zinf_unit *unit = &plan->units[plan->instrs[i].unit % plan->n_units];
    const bool owned = unit->owner != ZINF_NONE;

    unit->owner = owned ? ZINF_NONE : 0;
    return plan->instrs[i].unit != ZINF_NONE;
}

/* What an owner does is said to be of the unit of another one. */
static bool unit_of_another_owner(zinf_plan *plan, uint32_t i)
{
    zinf_instr *instr = &plan->instrs[i];
    const uint32_t before = instr->unit;

    if (zinf_instr_owner(plan, instr) == ZINF_NONE)
        return false;
    do
        instr->unit = (instr->unit + 1) % plan->n_units;
    while (instr->unit != before && plan->units[instr->unit].owner == plan->units[before].owner);
    return instr->unit != before;
}

/* An owner's instruction that all ranks carry out. */
static bool of_no_unit(zinf_plan *plan, uint32_t i)
{
    const bool owned = zinf_instr_owner(plan, &plan->instrs[i]) != ZINF_NONE;

    plan->instrs[i].unit = ZINF_NONE;
    return owned;
}

static bool other_sequence(zinf_plan *plan, uint32_t i)
{
    zinf_instr *instr = &plan->instrs[i];
    const bool forward = instr->opcode == ZINF_OP_ATTENTION_FORWARD;
    zinf_operand *lse = &plan->operands[instr->operand0 + (forward ? 2 : 3)];

    if ((!forward && instr->opcode != ZINF_OP_ATTENTION_BACKWARD) || instr->attr[3] % 2)
        return false;
    instr->attr[3] /= 2;
    lse->rows *= 2;
    lse->cols /= 2;
    lse->ld /= 2;
    return true;
}

static bool once_more(zinf_plan *plan, uint32_t i)
{
    plan->segments[i].count++;
    return true;
}

static bool once_less(zinf_plan *plan, uint32_t i)
{
    return --plan->segments[i].count > 0;
}

static bool is_twin(const zinf_operand *a, const zinf_operand *b)
{
    return a->bytes && b->bytes && a->tier == b->tier && a->dtype == b->dtype &&
           a->rows == b->rows && a->cols == b->cols && a->ld == b->ld;
}

/* The next operand of the same shape that lies elsewhere: a fault no shape reveals. */
static zinf_operand *twin(zinf_plan *plan, uint32_t i)
{
    for (uint32_t k = i + 1; k < plan->n_operands; k++)
        if (is_twin(&plan->operands[i], &plan->operands[k]) &&
            plan->operands[i].offset != plan->operands[k].offset)
            return &plan->operands[k];
    return NULL;
}

static bool where_another_is(zinf_plan *plan, uint32_t i)
{
    const zinf_operand *other = twin(plan, i);

    if (other)
        plan->operands[i].offset = other->offset;
    return other != NULL;
}

static bool another_of_its_shape(zinf_plan *plan, uint32_t i)
{
    const zinf_operand *other = twin(plan, i);

    if (other)
        plan->operands[i] = *other;
    return other != NULL;
}

/* One array further: master to m, the next vector of a unit, the next tile. */
static bool shift_by_itself(zinf_plan *plan, uint32_t i)
{
    plan->operands[i].offset += plan->operands[i].bytes;
    return plan->operands[i].bytes != 0;
}

static bool absent(zinf_plan *plan, uint32_t i)
{
    const bool there = plan->operands[i].bytes != 0;

    plan->operands[i] = (zinf_operand){.value = ZINF_NONE};
    return there;
}

static bool swap_operands(zinf_plan *plan, uint32_t i)
{
    const zinf_operand first = plan->operands[i];

    if (i + 1 >= plan->n_operands || !first.bytes || !plan->operands[i + 1].bytes)
        return false;
    plan->operands[i] = plan->operands[i + 1];
    plan->operands[i + 1] = first;
    return true;
}

/* With the next instruction of its queue, whatever lies between. */
static bool swap_in_queue(zinf_plan *plan, uint32_t at)
{
    const zinf_segment *s = segment_of(plan, at);

    for (uint32_t i = at + 1; i < s->first_instr + s->n_instrs; i++)
        if (plan->instrs[i].queue == plan->instrs[at].queue) {
            zinf_instr *a = &plan->instrs[at], *b = &plan->instrs[i];
            const zinf_instr first = *a;
            *a = *b; /* all but the waits, which stay where they were */
            a->wait0 = first.wait0;
            a->n_waits = first.n_waits;
            const uint32_t wait0 = b->wait0, n_waits = b->n_waits;
            *b = first;
            b->wait0 = wait0;
            b->n_waits = n_waits;
            return true;
        }
    return false;
}

/* The next instruction does this one's work a second time, instead of its own. */
static bool instead_of_the_next(zinf_plan *plan, uint32_t at)
{
    zinf_instr *next = &plan->instrs[at + 1];

    if (at + 1 >= plan->n_instrs || next->queue != next[-1].queue)
        return false;
    const uint32_t wait0 = next->wait0, n_waits = next->n_waits;
    *next = plan->instrs[at];
    next->wait0 = wait0;
    next->n_waits = n_waits;
    return true;
}

static bool of_kind(const zinf_plan *plan, uint32_t i, bool (*is)(unsigned opcode))
{
    return is(plan->instrs[i].opcode);
}

static bool is_update(unsigned opcode)
{
    return opcode == ZINF_OP_ADAM;
}

static bool is_collective(unsigned opcode)
{
    return opcode >= ZINF_OP_ALLGATHER && opcode <= ZINF_OP_BROADCAST;
}

static bool update_twice(zinf_plan *plan, uint32_t i)
{
    return of_kind(plan, i, is_update) && duplicate_instr(plan, i);
}

static bool update_omitted(zinf_plan *plan, uint32_t i)
{
    return of_kind(plan, i, is_update) && drop_instr(plan, i);
}

static bool collective_omitted(zinf_plan *plan, uint32_t i)
{
    return of_kind(plan, i, is_collective) && drop_instr(plan, i);
}

static bool collective_twice(zinf_plan *plan, uint32_t i)
{
    return of_kind(plan, i, is_collective) && duplicate_instr(plan, i);
}

static bool collective_reordered(zinf_plan *plan, uint32_t i)
{
    return of_kind(plan, i, is_collective) && swap_in_queue(plan, i);
}

static bool other_collective(zinf_plan *plan, uint32_t i)
{
    if (!of_kind(plan, i, is_collective))
        return false;
    plan->instrs[i].opcode = plan->instrs[i].opcode == ZINF_OP_BROADCAST
                                 ? ZINF_OP_ALLREDUCE : (uint16_t)(plan->instrs[i].opcode + 1);
    return true;
}

/* ---- what a plan states of its model ---- */

/* The next tensor of the same shape, or ZINF_NONE. */
static uint32_t like_tensor(const zinf_plan *plan, uint32_t i)
{
    for (uint32_t k = i + 1; k < plan->n_tensors; k++)
        if (plan->tensors[k].rows == plan->tensors[i].rows &&
            plan->tensors[k].cols == plan->tensors[i].cols)
            return k;
    return ZINF_NONE;
}

static bool names_exchanged(zinf_plan *plan, uint32_t i)
{
    const uint32_t k = like_tensor(plan, i);
    char name[ZINF_NAME_BYTES];

    if (k == ZINF_NONE)
        return false;
    memcpy(name, plan->tensors[i].name, sizeof name);
    memcpy(plan->tensors[i].name, plan->tensors[k].name, sizeof name);
    memcpy(plan->tensors[k].name, name, sizeof name);
    return true;
}

/* In all units: what is used, made and saved as the one is so as the other. */
static bool tensors_exchanged(zinf_plan *plan, uint32_t i)
{
    const uint32_t k = like_tensor(plan, i);

    for (uint32_t p = 0; p < plan->n_parts; p++) {
        uint32_t *of = &plan->parts[p].tensor;
        *of = *of == i ? k : *of == k ? i : *of;
    }
    return k != ZINF_NONE;
}

/* Both, and all else that is said of them, but where in a stack they are. */
static bool places_exchanged(zinf_plan *plan, uint32_t i)
{
    const uint32_t k = like_tensor(plan, i);

    if (!tensors_exchanged(plan, i))
        return false;
    zinf_tensor *a = &plan->tensors[i], *b = &plan->tensors[k], first = *a;
    const uint64_t rows[2] = {a->stack_row, b->stack_row};
    *a = *b;
    *b = first;
    a->stack_row = rows[0];
    b->stack_row = rows[1];
    return true;
}

static bool another_name(zinf_plan *plan, uint32_t i)
{
    plan->tensors[i].name[0]++;
    return true;
}

const mutation mutations[] = {
#define M(name, target) {#name, MUTATE_##target, name}
    M(drop_wait, WAIT), M(wait_for_earlier, WAIT), M(wait_for_later, WAIT),
    M(more_distance, WAIT), M(less_distance, WAIT),
    M(shift_64, OPERAND), M(shift_back_64, OPERAND), M(shift_4096, OPERAND),
    M(shift_back_4096, OPERAND), M(shift_2, OPERAND), M(shift_by_itself, OPERAND),
    M(where_another_is, OPERAND), M(half_the_bytes, OPERAND), M(one_element_less, OPERAND),
    M(a_page_less, OPERAND), M(absent, OPERAND), M(other_stride, OPERAND), M(no_stride, OPERAND),
    M(next_tier, OPERAND), M(previous_tier, OPERAND), M(next_value, OPERAND),
    M(no_value, OPERAND), M(another_of_its_shape, OPERAND), M(swap_operands, OPERAND),
    M(wrong_dtype, OPERAND), M(drop_instr, INSTR), M(duplicate_instr, INSTR),
    M(instead_of_the_next, INSTR), M(swap_with_next, INSTR), M(swap_in_queue, INSTR),
    M(update_twice, INSTR), M(update_omitted, INSTR), M(collective_reordered, INSTR),
    M(collective_omitted, INSTR), M(collective_twice, INSTR), M(other_root, INSTR),
    M(other_owner, INSTR), M(no_owner, INSTR), M(unit_of_another_owner, INSTR),
    M(of_no_unit, INSTR),
    M(other_collective, INSTR), M(flip_accumulate, INSTR), M(other_queue, INSTR),
    M(other_unit, INSTR), M(flip_attr_0, INSTR), M(flip_attr_1, INSTR), M(flip_attr_2, INSTR),
    M(flip_attr_3, INSTR), M(double_attr_0, INSTR), M(double_attr_1, INSTR),
    M(double_attr_2, INSTR), M(double_attr_3, INSTR), M(half_attr_0, INSTR), M(half_attr_1, INSTR),
    M(half_attr_2, INSTR), M(half_attr_3, INSTR), M(other_heads, INSTR), M(other_sequence, INSTR),
    M(more_ld, OPERAND), M(double_ld, OPERAND), M(half_the_rows, OPERAND),
    M(twice_the_rows, OPERAND), M(one_sequence, OPERAND), M(once_more, SEGMENT),
    M(once_less, SEGMENT), M(names_exchanged, TENSOR), M(tensors_exchanged, TENSOR),
    M(places_exchanged, TENSOR), M(another_name, TENSOR),
};
const uint32_t n_mutations = sizeof mutations / sizeof *mutations;

zinf_plan mutate_copy(const zinf_plan *plan)
{
    enum { MORE = 8 };
    zinf_plan made = *plan;

#define X(field, room)                                                                           \
    made.field = calloc(plan->n_##field + (size_t)room, sizeof *made.field);                     \
    if (plan->n_##field)                                                                         \
        memcpy(made.field, plan->field, plan->n_##field * sizeof *made.field);
    X(segments, 1) X(instrs, MORE) X(operands, MORE * ZINF_MAX_OPERANDS)
    X(waits, MORE * (plan->n_instrs + 1)) X(tensors, 1)
    X(units, 1) X(parts, 1) X(items, ZINF_N_TIERS) X(values, 1) X(strings, 1)
#undef X
    return made;
}

uint32_t mutate_count(const zinf_plan *plan, mutate_target target)
{
    const uint32_t counts[] = {plan->n_instrs, plan->n_operands, plan->n_waits, plan->n_segments,
                               plan->n_tensors};

    return counts[target];
}

uint32_t mutate_instr(const zinf_plan *plan, mutate_target target, uint32_t i)
{
    for (uint32_t k = 0; k < plan->n_instrs; k++) {
        const zinf_instr *instr = &plan->instrs[k];
        if ((target == MUTATE_INSTR && k == i) ||
            (target == MUTATE_WAIT && i - instr->wait0 < instr->n_waits) ||
            (target == MUTATE_OPERAND && i - instr->operand0 < instr->n_operands))
            return k;
    }
    return ZINF_NONE;
}
