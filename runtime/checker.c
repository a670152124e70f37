/* runtime/checker.c - the rules C1 to C8, proved by running each program once, symbolically.
 *
 * zinf_plan_validate runs first and proves, one instruction at a time, C1, C2, C5 and the shapes of
 * C4 and C6. Here instructions are visited in program order, one order the machine may take. Of
 * every byte it is known what value it holds, who wrote it and who has read it since; clocks over
 * the queues say what surely finished before the instruction visited, so that a conflict no wait
 * orders is found whatever the order of execution would have been.
 *
 * Loops. A segment with count n is visited min(n, 3) times. Two accesses are ordered by queue
 * order and waits alone, both the same in every iteration, and every path of waits leads forward;
 * so the order between iterations i and j depends on j - i only. Without strides an iteration
 * touches what every other touches: the first meets the state before the loop, the second the state
 * an iteration leaves (the third leaves the same), and what is ordered between neighbours is
 * ordered at any distance by queue order. An operand with a stride that is only read counts, in
 * every iteration, as reading what all iterations read; a segment that writes with a stride is
 * visited in full, and refused where that is too long.
 *
 * Contents. Every read finds the value meant, whole, at its place and of the latest production.
 * Tiles of an operator come in order of rows of its weight, and every use of a weight applies it to
 * the same (what was made of the same tensor), with the same bias and residual: so a program that
 * differs from the others anywhere is found. Gradients count their contributions. What is only this
 * rank's part (a shard, a sum not yet over ranks) is no operand of an operator before a collective
 * made it whole; ranks run one program, so their collectives have one order.
 */
#include "runtime/checker.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/intervals.h"
#include "runtime/opcodes.h"

/* A program may unroll MOST_VISITS instructions beyond UNROLL of each, and look at EACH_WORK pieces
 * of memory for every visit, LEAST_WORK more in all. What needs more is refused, not waited for. */
enum { UNROLL = 3, MOST_VISITS = 1 << 19, LEAST_WORK = 1 << 22, EACH_WORK = 64 };
#define NO_ORIGIN UINT64_MAX
#define GRADIENT (ZINF_NONE - 1) /* made of no one tensor: on its way back */

typedef enum state { NOTHING, PARAM, GRAD, OPTIMIZER } state;

/* What is known of a piece of memory. */
typedef struct cell {
    uint64_t origin;   /* address of the first byte of the value, or NO_ORIGIN */
    uint64_t rows, of; /* by tiles: rows of the weight that are in it, of so many */
    uint64_t age;      /* the iteration that produced it, 0: on entry */
    uint32_t value;    /* ZINF_NONE: nothing that may be read */
    uint32_t writer;   /* last write, as a visit; 0: on entry */
    uint32_t readers[ZINF_N_QUEUES]; /* last read since then, as a visit; 0: none */
    uint32_t made_of;  /* the tensor applied last, ZINF_NONE or GRADIENT */
    uint32_t sums[2];  /* gradient, loss: contributions by operators, by the embedding */
    uint8_t dtype;
    bool part;         /* this rank's part only */
} cell;

typedef struct visit {
    uint32_t instr, done[ZINF_N_QUEUES]; /* visits, per queue, that surely finished; 0: none */
} visit;

typedef struct content {
    uint64_t age; /* of the latest production of this value */
    uint32_t unit;
    state role;
    bool on_entry, batch; /* some program reads it as found; micro-batch i is its i-th part */
} content;

typedef struct tally {
    uint32_t normed[2], updates; /* sums of the gradient whose norm was taken; ADAM, INIT, .. */
    bool clipped;
    uint8_t uses; /* 1: its parameters are read by operators, 2: by the embedding */
} tally;

typedef struct applied {
    uint32_t x, bias, residual; /* made_of, tensor, made_of; x 0 and bias GRADIENT: not known yet */
} applied;

typedef struct zinf_checker {
    const zinf_plan *plan;
    zinf_error *err;
    zinf_intervals maps[ZINF_N_TIERS]; /* of cells */
    content *contents;                 /* [n_values] */
    tally *tallies;                    /* [n_units] */
    applied *uses;                     /* [2][n_tensors]: by operators, by the embedding */
    uint32_t *stack;                   /* [n_tensors] the first of the stack it is in */
    uint64_t *stack_rows;              /* [n_tensors] of the stack that begins here */
    bool *branches;                    /* [n_tensors] what was made of it is also a residual */
    visit *visits;                     /* from 1; 0 stands for "none" */
    uint32_t *latest;                  /* [n_instrs] visit */
    cell *pieces;                      /* what is copied */
    uint32_t last[ZINF_N_QUEUES];      /* visit */
    uint64_t work, most_work, age, count, iteration, due, n_losses, n_batches;
    uint32_t kind, index, now, losses, cap_pieces;
    bool exact, sharded;
    /* the instruction visited */
    const zinf_instr *instr;
    const zinf_operand *o;
    const char *links;
    cell seen[ZINF_MAX_OPERANDS]; /* first piece of each operand read */
    uint32_t tensor, made_of;     /* stack of its weight */
    uint64_t row, n_rows;         /* its tile */
} zinf_checker;

/* Per slot: W weight or its gradient (A: attr0 is its first row), X what it is applied to, B bias along its rows, P another
 * parameter, N made of the weight. R and C have columns along its rows (R a residual), M is written
 * so; S sums over tiles. */
static const char *const links_of[ZINF_N_OPCODES] = {
    [ZINF_OP_EMBEDDING_FORWARD] = ".APS", [ZINF_OP_EMBEDDING_BACKWARD] = "..A",
    [ZINF_OP_POSITION_BACKWARD] = ".W",
    [ZINF_OP_LAYERNORM_FORWARD] = "XWP..", [ZINF_OP_LAYERNORM_BACKWARD] = ".XWNR....",
    [ZINF_OP_RMSNORM_FORWARD] = "XW..", [ZINF_OP_RMSNORM_BACKWARD] = ".XWNR...",
    [ZINF_OP_LINEAR_FORWARD] = "XWBRM.", [ZINF_OP_LINEAR_BACKWARD_INPUT] = "CWS.",
    [ZINF_OP_LINEAR_BACKWARD_WEIGHT] = "CXWB.", [ZINF_OP_LOGITS] = "XWM.",
    [ZINF_OP_CLASSIFIER_FORWARD] = "XA.S..", [ZINF_OP_CLASSIFIER_BACKWARD] = "XA..S....",
    [ZINF_OP_CLASSIFIER] = "XA.SS...."};

static bool is_any(unsigned opcode, unsigned a, unsigned b, unsigned c)
{
    return opcode == a || opcode == b || opcode == c;
}

static bool moves(unsigned opcode)
{
    return opcode >= ZINF_OP_UPLOAD && opcode <= ZINF_OP_BROADCAST;
}

/* ---- refusals: each returns false, as every check does that fails ---- */

static bool refuse(zinf_checker *c, const char *rule, uint32_t other, const zinf_operand *o,
                   const char *wrong)
{
    char names[2][160] = {"", ""}, bytes[200] = "";
    const uint32_t which[2] = {c->index, c->visits ? c->visits[other].instr : ZINF_NONE};

    for (int i = 0; i < 2; i++)
        if (which[i] != ZINF_NONE)
            snprintf(names[i], sizeof names[i], ", instruction %" PRIu32 " (%s \"%.80s\")",
                     which[i], zinf_opcode_get(c->plan->instrs[which[i]].opcode)->name,
                     &c->plan->strings[c->plan->instrs[which[i]].name]);
    if (o)
        snprintf(bytes, sizeof bytes, ", %s bytes [%" PRIu64 ", %" PRIu64 ") \"%.80s\"",
                 zinf_tier_name(o->tier), o->offset, o->offset + o->bytes, o->value == ZINF_NONE
                     ? "scratch" : &c->plan->strings[c->plan->values[o->value]]);
    zinf_fail(c->err, ZINF_DOES_NOT_FIT, "%s: program %s%s%s%s%s: %s", rule,
              zinf_program_name(c->kind), names[0], *names[1] ? " after" : "", *names[1] ? names[1] + 1 : "", bytes,
              wrong);
    return false;
}

static bool refuse_unit(zinf_checker *c, const char *rule, uint32_t unit, const char *wrong)
{
    char text[300];

    snprintf(text, sizeof text, "unit \"%.60s\" %s", c->plan->units[unit].name, wrong);
    return refuse(c, rule, 0, NULL, text);
}

static bool no_memory(zinf_checker *c)
{
    zinf_fail(c->err, ZINF_MACHINE, "out of memory while checking the plan");
    return false;
}

/* ---- where things are ---- */

static cell *cell_of(zinf_checker *c, const zinf_operand *o, uint32_t piece)
{
    c->work++;
    return zinf_intervals_payload(&c->maps[o->tier], piece);
}

static const zinf_region *region_of(const zinf_checker *c, uint32_t unit, state role)
{
    const zinf_unit *u = &c->plan->units[unit];

    return role == PARAM ? &u->param : role == GRAD ? &u->grad : &u->optimizer;
}

static state role_of(const zinf_checker *c, const zinf_operand *o)
{
    return o->bytes == 0 || o->value == ZINF_NONE ? NOTHING : c->contents[o->value].role;
}

static uint64_t here(const zinf_checker *c, const zinf_operand *o)
{
    return o->offset + o->stride * c->iteration;
}

static uint64_t shard_of(const zinf_checker *c, uint32_t unit)
{
    return zinf_unit_shard_elems(c->plan, &c->plan->units[unit]);
}

/* The part of the unit that holds its element `at`, and its row in the stack; NULL: padding. */
static const zinf_part *part_at(const zinf_checker *c, const zinf_unit *u, uint64_t at,
                                uint64_t *ret_row)
{
    uint32_t first = u->first_part, last = first + u->n_parts; /* ascending */

    while (first + 1 < last) {
        const uint32_t middle = first + (last - first) / 2;
        if (c->plan->parts[middle].at <= at)
            first = middle;
        else
            last = middle;
    }
    const zinf_part *part = &c->plan->parts[first];
    if (first == last || at < part->at)
        return NULL;
    const zinf_tensor *tensor = &c->plan->tensors[part->tensor];
    const uint64_t row = (at - part->at) / tensor->cols;
    *ret_row = tensor->stack_row + part->first_row + row;
    return row < part->n_rows ? part : NULL;
}

/* Which whole rows of which stack of tensors the operand in a slot is: false if of none; true and
 * ZINF_NONE if it is a gradient of which it is not known where its unit begins. */
static bool place(const zinf_checker *c, uint32_t slot, uint32_t *ret_stack, uint64_t *ret_row,
                  uint64_t *ret_rows)
{
    const zinf_operand *o = &c->o[slot];
    const state role = role_of(c, o);
    const uint64_t lo = here(c, o), n = o->rows * o->cols;
    uint64_t origin = c->seen[slot].origin, end;

    *ret_stack = ZINF_NONE;
    if (role != PARAM && role != GRAD)
        return false;
    const zinf_unit *u = &c->plan->units[c->contents[o->value].unit];
    const zinf_region *home = region_of(c, c->contents[o->value].unit, role);
    if (role == GRAD)
        origin = n == u->n_elems ? lo : home->tier == o->tier && lo >= home->offset &&
                                        lo - home->offset < home->bytes ? home->offset : NO_ORIGIN;
    if (origin == NO_ORIGIN)
        return role == GRAD;
    const uint64_t element = zinf_dtype_bytes(o->dtype), at = (lo - origin) / element;
    const zinf_part *first = part_at(c, u, at, ret_row), *last = part_at(c, u, at + n - 1, &end);
    if (!first || !last || lo < origin || o->bytes != n * element)
        return false;
    const uint64_t cols = c->plan->tensors[first->tensor].cols;
    *ret_stack = c->stack[first->tensor];
    *ret_rows = n / cols;
    return *ret_stack == c->stack[last->tensor] && n % cols == 0 &&
           (at - first->at) % cols == 0 && end - *ret_row + 1 == *ret_rows;
}

/* ---- C3: ordered with the last writer and, for a write, with the readers since ---- */

static bool ordered(zinf_checker *c, const zinf_operand *o, const cell *x, bool writes)
{
    const uint32_t *done = c->visits[c->now].done;

    if (x->writer && done[c->plan->instrs[c->visits[x->writer].instr].queue] < x->writer)
        return refuse(c, "C3", x->writer, o,
                      writes ? "two writes that no wait orders; wait for the first"
                             : "a read that does not wait for the write of its bytes");
    for (int q = 0; writes && q < ZINF_N_QUEUES; q++)
        if (done[q] < x->readers[q])
            return refuse(c, "C3", x->readers[q], o,
                          "a write that does not wait for the read of its bytes");
    return true;
}

/* ---- C4: what is read is the value meant ---- */

static bool right(zinf_checker *c, uint32_t slot, const cell *x, bool first, bool writes)
{
    const zinf_operand *o = &c->o[slot];
    const bool copies = moves(c->instr->opcode), scalar = o->tier == ZINF_TIER_SCALAR;
    const bool fills = c->kind == ZINF_PROGRAM_INIT || c->kind == ZINF_PROGRAM_LOAD;
    content *v = &c->contents[o->value];
    char wrong[160];

    if (copies && !first)
        return true; /* it takes over what there is, padding too */
    snprintf(wrong, sizeof wrong, "reads bytes that hold %.80s", x->value == ZINF_NONE
             ? "nothing of it" : &c->plan->strings[c->plan->values[x->value]]);
    if (x->value != o->value)
        return refuse(c, v->role == GRAD ? "C7" : "C4", x->writer, o, wrong);
    if (x->writer == 0 && (v->role == GRAD || fills))
        return refuse(c, v->role == GRAD ? "C7" : "C4", 0, o, "reads what was not begun yet");
    v->on_entry |= x->writer == 0;
    if (v->role != GRAD && !scalar && x->age != v->age)
        return refuse(c, "C4", x->writer, o, "reads an old copy, it was produced anew since");
    if (copies)
        return true;
    if (x->dtype != o->dtype)
        return refuse(c, "C4", x->writer, o, "reads as another element type than was written");
    if (x->origin != c->seen[slot].origin)
        return refuse(c, "C4", x->writer, o, "reads pieces that lie at other distances");
    if (memcmp(x->sums, c->seen[slot].sums, sizeof x->sums))
        return refuse(c, "C7", x->writer, o, "parts of it were added to more often than others");
    if (x->rows != x->of && !writes)
        return refuse(c, "C4", x->writer, o, "reads what not every tile is in yet");
    if (x->part && (c->links || c->instr->opcode == ZINF_OP_CLIP))
        return refuse(c, v->role == GRAD || scalar ? "C7" : "C4", x->writer, o,
                      "reads one rank's part where the whole is due");
    return true;
}

static bool read_operand(zinf_checker *c, uint32_t slot, bool writes)
{
    const zinf_operand *o = &c->o[slot];
    zinf_intervals *map = &c->maps[o->tier];
    uint64_t lo = here(c, o), hi = lo + o->bytes;

    if (o->value == ZINF_NONE)
        return refuse(c, "C4", 0, o, "reads scratch");
    if (!c->exact && !writes) {
        lo = o->offset;
        hi = lo + o->bytes + o->stride * (c->count - 1);
    }
    uint32_t i = zinf_intervals_cut(map, lo, hi);
    if (i != ZINF_NO_INTERVAL)
        c->seen[slot] = *cell_of(c, o, i);
    for (bool first = true; i != ZINF_NO_INTERVAL; first = false) {
        cell *x = cell_of(c, o, i);
        if (!ordered(c, o, x, false) || !right(c, slot, x, first, writes))
            return false;
        x->readers[c->instr->queue] = c->now;
        i = zinf_intervals_next(map, i, hi);
    }
    return !map->failed || no_memory(c);
}

/* Where in its value the operand reads; a tile's columns begin where its rows of the weight do. */
static bool right_place(zinf_checker *c, uint32_t slot)
{
    const zinf_operand *o = &c->o[slot];
    const uint64_t at = here(c, o) - c->seen[slot].origin;
    const unsigned opcode = c->instr->opcode;
    const bool columns = c->links && strchr("CR", c->links[slot]);

    if (role_of(c, o) != NOTHING || o->tier == ZINF_TIER_SCALAR)
        return true;
    if (c->contents[o->value].batch) {
        const uint64_t number = c->losses - is_any(opcode, ZINF_OP_EMBEDDING_BACKWARD,
                                                   ZINF_OP_CLASSIFIER_BACKWARD, ZINF_N_OPCODES);
        return at == number * o->bytes ||
               refuse(c, "C4", 0, o, "is not the tokens of this micro-batch");
    }
    if (columns && o->rows > 1 && o->ld != c->stack_rows[c->tensor])
        return refuse(c, "C4", 0, o, "is not as wide as all tiles of its operator");
    return at == (columns ? c->row * zinf_dtype_bytes(o->dtype) : 0) ||
           refuse(c, "C4", 0, o, "is not at its place in the matrix");
}

/* An operator and its weight: see links_of. */
static bool check_operator(zinf_checker *c)
{
    const unsigned opcode = c->instr->opcode;
    const bool back = is_any(opcode, ZINF_OP_LAYERNORM_BACKWARD, ZINF_OP_RMSNORM_BACKWARD,
                             ZINF_OP_LINEAR_BACKWARD_WEIGHT);
    const bool norm = back && opcode != ZINF_OP_LINEAR_BACKWARD_WEIGHT;
    const uint32_t embeds = opcode == ZINF_OP_EMBEDDING_FORWARD;
    const uint32_t w = (uint32_t)strcspn(c->links, "WA");
    applied use = {ZINF_NONE, ZINF_NONE, ZINF_NONE};
    uint64_t row, rows;

    if (!place(c, w, &c->tensor, &c->row, &c->n_rows) || c->tensor == ZINF_NONE)
        return refuse(c, "C4", 0, &c->o[w], "is not whole rows of one stack of tensors");
    if (c->links[w] == 'A' && c->row != c->instr->attr[0])
        return refuse(c, "C4", 0, &c->o[w], "does not begin at the row that attr0 says");
    if (role_of(c, &c->o[w]) == PARAM)
        c->tallies[c->contents[c->o[w].value].unit].uses |= embeds ? 2 : 1;
    for (uint32_t k = 0; k < c->instr->n_operands; k++) {
        const char link = c->o[k].bytes ? c->links[k] : '.';
        if (strchr("BP", link)) {
            if (!place(c, k, &use.bias, &row, &rows) ||
                (use.bias != ZINF_NONE && row != (link == 'B' ? c->row : 0)))
                return refuse(c, "C4", 0, &c->o[k], "is not the rows that belong to the weight's");
            if (role_of(c, &c->o[k]) == PARAM)
                c->tallies[c->contents[c->o[k].value].unit].uses |= 1;
        } else if (link == 'X') {
            use.x = c->seen[k].made_of;
        } else if (link == 'R') {
            use.residual = c->seen[k].made_of;
        } else if (link == 'N' && c->seen[k].made_of != c->tensor) {
            return refuse(c, "C4", 0, &c->o[w], "is not the weight its statistics were made with");
        }
    }
    if (opcode == ZINF_OP_LINEAR_FORWARD && use.residual < c->plan->n_tensors)
        c->branches[use.residual] = true;
    applied *known = &c->uses[c->tensor + embeds * c->plan->n_tensors];
    if (known->bias == GRADIENT && !back)
        *known = use;
    if (!embeds && !strchr(c->links, 'X'))
        return true;
    if (known->x != use.x || (!back && (known->bias != use.bias ||
                                        known->residual != use.residual)))
        return refuse(c, "C4", 0, &c->o[w], "is applied to another input, or with another bias or "
                      "residual, than elsewhere");
    if (norm && (use.residual != ZINF_NONE) != (use.x < c->plan->n_tensors && c->branches[use.x]))
        return refuse(c, "C7", 0, &c->o[w], "what it normalised is a residual too, or is not: its "
                      "gradient has a part too few or too many");
    return true;
}

/* ---- C7: the state of a unit ---- */

/* The operand is a whole array of the unit, at byte `at` of its region. */
static bool is_array(zinf_checker *c, uint32_t slot, uint32_t unit, state role, uint64_t at)
{
    const zinf_operand *o = &c->o[slot];
    const cell *x = &c->seen[slot];

    if (role_of(c, o) != role || c->contents[o->value].unit != unit ||
        o->rows * o->cols != shard_of(c, unit) || c->instr->unit != unit)
        return refuse(c, "C7", 0, o, "is not the array of its unit, whole");
    if (x->value == o->value && x->origin != NO_ORIGIN && x->origin + at != here(c, o))
        return refuse(c, "C7", 0, o, "is not at its place in the unit's state");
    if (x->value == o->value && x->part != c->sharded)
        return refuse(c, "C7", 0, o, "is not this rank's shard of it, summed over ranks");
    return true;
}

static bool is_state(zinf_checker *c, uint32_t slot, uint32_t unit)
{
    const uint64_t stride = c->plan->units[unit].array_stride;

    for (uint32_t i = 0; i < 3; i++) {
        if (!is_array(c, slot + i, unit, OPTIMIZER, i * stride))
            return false;
        if (c->o[slot + i].tier != c->o[slot].tier ||
            c->o[slot + i].offset != c->o[slot].offset + i * stride)
            return refuse(c, "C7", 0, &c->o[slot + i], "is not at its distance from the master");
    }
    return true;
}

static bool complete(zinf_checker *c, uint32_t unit, const uint32_t sums[2], const char *what)
{
    char wrong[200];

    for (int i = 0; i < 2; i++) {
        const uint64_t due = c->tallies[unit].uses >> i & 1 ? c->due : 0;
        snprintf(wrong, sizeof wrong, "has a %s of %" PRIu32 " contributions of the %s where %"
                 PRIu64 " are due (loops visited %d times at most)", what, sums[i],
                 i ? "embedding" : "operators", due, UNROLL);
        if (sums[i] != due)
            return refuse_unit(c, "C7", unit, wrong);
    }
    return true;
}

/* What the opcode demands; after the reads, before the writes. */
static bool check_role(zinf_checker *c)
{
    const zinf_plan *plan = c->plan;
    const zinf_operand *o = c->o;
    const uint32_t unit = c->instr->unit;
    const uint64_t tokens = (uint64_t)plan->decisions.micro_batch * plan->job.sequence;
    uint64_t first;

    switch (c->instr->opcode) {
    case ZINF_OP_BATCH:
        if (c->kind == ZINF_PROGRAM_STEP && o->rows != (uint64_t)plan->decisions.accumulation *
                                                          plan->decisions.micro_batch)
            return refuse(c, "C7", 0, o, "is not every micro-batch of the step");
        break;
    case ZINF_OP_ROPE:
        if ((c->seen[0].made_of == GRADIENT) != c->instr->attr[1] || o[0].value == o[1].value)
            return refuse(c, "C4", 0, o, "is turned the wrong way, or no value of its own then");
        break;
    case ZINF_OP_LOGITS:
        c->losses += c->row + c->n_rows == c->stack_rows[c->tensor];
        break;
    case ZINF_OP_LOSS:
        c->losses++;
        if (o[0].rows != tokens || o[1].offset != 8 * ZINF_SCALAR_LOSS)
            return refuse(c, "C7", 0, o, "is not every token of the micro-batch, or not the loss");
        break;
    case ZINF_OP_CONVERT:
        if (role_of(c, &o[1]) == PARAM)
            return is_array(c, 1, unit, PARAM, 0) && is_array(c, 0, unit, OPTIMIZER, 0);
        break;
    case ZINF_OP_ACCUMULATE:
        if (role_of(c, &o[1]) != GRAD || o[0].value != o[1].value ||
            c->seen[0].part != c->seen[1].part || c->seen[0].age != c->age)
            return refuse(c, "C7", 0, o, "is not a contribution of this iteration to the gradient");
        break;
    case ZINF_OP_SUM_OF_SQUARES:
        if (unit >= plan->n_units ||
            o[1].offset != 8 * ((uint64_t)ZINF_SCALAR_PARTIALS + unit))
            return refuse(c, "C7", 0, &o[1], "is not the slot of the unit it serves");
        memcpy(c->tallies[unit].normed, c->seen[0].sums, sizeof c->seen[0].sums);
        return is_array(c, 0, unit, GRAD, 0);
    case ZINF_OP_CLIP:
        first = o[0].offset / 8 - ZINF_SCALAR_PARTIALS;
        if (o[1].offset != 8 * ZINF_SCALAR_NORM || first >= plan->n_units || c->count != 1 ||
            o[0].cols > plan->n_units - first || o[0].rows != 1 ||
            (plan->job.clip > 0 && o[0].cols != plan->n_units))
            return refuse(c, "C7", 0, o, "is not the norm of all units, taken once");
        for (uint64_t u = first; u < first + o[0].cols; u++) {
            if (!complete(c, (uint32_t)u, c->tallies[u].normed, "norm"))
                return false;
            c->tallies[u].clipped = true;
        }
        break;
    case ZINF_OP_ADAM:
        if (c->kind != ZINF_PROGRAM_STEP || c->tallies[unit].updates++ ||
            !c->tallies[unit].clipped || o[5].offset != 8 * ZINF_SCALAR_NORM)
            return refuse(c, "C7", 0, o, "is not the one update of its unit, after the norm");
        return is_array(c, 0, unit, GRAD, 0) && is_state(c, 1, unit) &&
               is_array(c, 4, unit, PARAM, 0) && complete(c, unit, c->seen[0].sums, "gradient");
    case ZINF_OP_INIT:
    case ZINF_OP_IMPORT:
    case ZINF_OP_EXPORT:
        c->tallies[unit].updates++;
        return is_state(c, 0, unit);
    case ZINF_OP_ALLGATHER:
    case ZINF_OP_ALLREDUCE:
    case ZINF_OP_REDUCE_SCATTER:
        if (c->seen[0].part != (c->sharded && c->instr->opcode != ZINF_OP_REDUCE_SCATTER))
            return refuse(c, "C6", 0, o, "is whole already, or only one rank's part");
        break;
    default:
        break;
    }
    return true;
}

/* ---- writes ---- */

/* [lo, hi) becomes one cell, after everything that was there. */
static bool claim(zinf_checker *c, const zinf_operand *o, uint64_t lo, uint64_t hi,
                  const cell *made)
{
    zinf_intervals *map = &c->maps[o->tier];

    for (uint32_t i = zinf_intervals_cut(map, lo, hi); i != ZINF_NO_INTERVAL;
         i = zinf_intervals_next(map, i, hi))
        if (!ordered(c, o, cell_of(c, o, i), true))
            return false;
    const uint32_t i = zinf_intervals_merge(map, lo, hi);
    if (i == ZINF_NO_INTERVAL)
        return no_memory(c);
    *cell_of(c, o, i) = *made;
    return true;
}

/* Tiles in order of rows: the one before this has left the matrix [lo, hi) as it should be. */
static bool continues(zinf_checker *c, uint32_t slot, uint64_t lo, uint64_t hi, bool adds)
{
    const zinf_operand *o = &c->o[slot];
    zinf_intervals *map = &c->maps[o->tier];

    if (c->links[slot] == 'S' && adds != (c->row > 0))
        return refuse(c, "C4", 0, o, "must be begun by the first tile, and added to by the others");
    for (uint32_t i = zinf_intervals_cut(map, lo, hi); c->row && i != ZINF_NO_INTERVAL;
         i = zinf_intervals_next(map, i, hi)) {
        const cell *x = cell_of(c, o, i);
        if (x->value != o->value || x->rows != c->row || x->age != c->age ||
            x->made_of != c->made_of)
            return refuse(c, "C4", x->writer, o, "is not of the tile that comes next");
    }
    return true;
}

static bool write_operand(zinf_checker *c, uint32_t slot, bool adds)
{
    const zinf_operand *o = &c->o[slot];
    const unsigned opcode = c->instr->opcode;
    const char link = c->links ? c->links[slot] : '.';
    const uint64_t element = zinf_dtype_bytes(o->dtype), n = o->rows * o->cols;
    const state role = role_of(c, o);
    const cell *old = &c->seen[slot];
    uint64_t lo = here(c, o), hi = lo + o->bytes;
    cell made = {.value = o->value, .writer = c->now, .age = c->age, .dtype = o->dtype,
                 .made_of = c->made_of};

    if (link == 'M') { /* all columns of the matrix count as written */
        if (lo < c->row * element || (o->rows > 1 && o->ld != c->stack_rows[c->tensor]))
            return refuse(c, "C4", 0, o, "is not a tile's columns of all the rows of its operator");
        lo -= c->row * element;
        hi = lo + ((o->rows - 1) * o->ld + c->stack_rows[c->tensor]) * element;
    }
    if (link == 'M' || link == 'S') {
        made.rows = c->row + c->n_rows;
        made.of = c->stack_rows[c->tensor];
        if (!continues(c, slot, lo, hi, adds))
            return false;
    }
    if (is_any(opcode, ZINF_OP_CLASSIFIER, ZINF_OP_CLASSIFIER_BACKWARD, ZINF_N_OPCODES) && slot >= 4)
        made.made_of = GRADIENT;
    made.origin = o->tier == ZINF_TIER_SCALAR ? 0 : adds ? old->origin : lo;
    made.part = c->sharded && (role == PARAM || role == OPTIMIZER || opcode == ZINF_OP_LOSS ||
                               opcode == ZINF_OP_SUM_OF_SQUARES);
    if (role == OPTIMIZER && !adds)
        made.origin -= slot * c->plan->units[c->contents[o->value].unit].array_stride;
    if (role == GRAD) {
        const uint32_t unit = c->contents[o->value].unit;
        const zinf_region *r = region_of(c, unit, GRAD);
        if (!adds && n != c->plan->units[unit].n_elems)
            made.origin = o->tier == r->tier && lo >= r->offset && lo - r->offset < r->bytes
                              ? r->offset : NO_ORIGIN;
        made.part = adds && old->part;
        if (opcode == ZINF_OP_ACCUMULATE)
            memcpy(made.sums, c->seen[0].sums, sizeof made.sums);
        else if (opcode != ZINF_OP_ZERO)
            made.sums[opcode == ZINF_OP_EMBEDDING_BACKWARD]++;
    }
    made.sums[0] += opcode == ZINF_OP_LOSS;
    for (int i = 0; i < 2; i++)
        made.sums[i] += adds ? old->sums[i] : 0;
    if (role == GRAD && adds && c->tallies[c->contents[o->value].unit].uses == 3 &&
        made.sums[1] > made.sums[0])
        return refuse(c, "C7", old->writer, o, "adds the embedding's part before the operators'");
    if (o->value != ZINF_NONE) {
        c->contents[o->value].age = c->age;
        c->contents[o->value].batch |= opcode == ZINF_OP_BATCH;
    }
    return claim(c, o, lo, hi, &made);
}

/* The destination takes over what the source holds, byte for byte; of a unit that is gathered or
 * scattered, the whole of it. */
static bool move(zinf_checker *c)
{
    const zinf_operand *from = &c->o[0], *to = &c->o[1];
    const unsigned opcode = c->instr->opcode;
    const bool resized = from->bytes != to->bytes;
    const uint64_t start = here(c, from), lo = here(c, to);
    zinf_intervals *source = &c->maps[from->tier], *map = &c->maps[to->tier];
    uint64_t end = start + from->bytes;
    uint32_t n = 0;

    if (from->value != to->value)
        return refuse(c, "C4", 0, to, "a copy does not change the value");
    if (resized) {
        if (role_of(c, from) == NOTHING ||
            (c->seen[0].origin != start && c->seen[0].origin != NO_ORIGIN))
            return refuse(c, "C6", 0, from, "is not a unit, whole, or its shard");
        const uint32_t unit = c->contents[from->value].unit;
        end = start + zinf_dtype_bytes(c->seen[0].dtype) *
                          (opcode == ZINF_OP_ALLGATHER ? shard_of(c, unit)
                                                       : c->plan->units[unit].n_elems);
        if (end > start + from->bytes)
            return refuse(c, "C6", 0, from, "is not a unit, whole, or its shard");
    }
    for (uint32_t i = zinf_intervals_cut(source, start, end); i != ZINF_NO_INTERVAL;
         i = zinf_intervals_next(source, i, end)) {
        const cell *x = cell_of(c, from, i);
        if (n == c->cap_pieces) {
            cell *grown = realloc(c->pieces, (2 * (size_t)n + 64) * sizeof *grown);
            if (!grown)
                return no_memory(c);
            c->pieces = grown;
            c->cap_pieces = 2 * n + 64;
        }
        if (resized && (x->value != from->value || memcmp(x->sums, c->seen[0].sums, 8)))
            return refuse(c, "C7", x->writer, from, "is not one unit, or summed unequally");
        c->pieces[n] = *x;
        /* from here on rows is where the piece begins; by tiles or not, it is whole or worthless */
        if (x->rows != x->of || x->value != from->value)
            c->pieces[n].value = ZINF_NONE;
        c->pieces[n++].rows = zinf_intervals_lo(source, i) - start;
    }
    const zinf_region *home = role_of(c, to) == NOTHING
                                  ? NULL : region_of(c, c->contents[to->value].unit,
                                                     role_of(c, to));
    for (uint32_t k = 0; k < (resized ? 1 : n); k++) {
        cell made = c->pieces[k];
        const uint64_t at = lo + made.rows;
        memset(made.readers, 0, sizeof made.readers);
        made.rows = made.of = 0;
        made.writer = c->now;
        made.part = opcode == ZINF_OP_REDUCE_SCATTER
                        ? c->sharded
                        : made.part && !is_any(opcode, ZINF_OP_ALLGATHER, ZINF_OP_ALLREDUCE, ZINF_N_OPCODES);
        if (made.origin != NO_ORIGIN && to->tier != ZINF_TIER_SCALAR)
            made.origin = resized ? lo : made.origin + lo - start;
        else if (home && home->tier == to->tier && home->offset == lo)
            made.origin = lo;
        if (!claim(c, to, at, k + 1 < n && !resized ? lo + c->pieces[k + 1].rows
                                                    : lo + to->bytes, &made))
            return false;
    }
    return !source->failed && !map->failed ? true : no_memory(c);
}

/* ---- running a program ---- */

/* As opcodes.h says, with what attr3 says of the classifier's two gradients. */
static zinf_access access_of(const zinf_instr *instr, uint32_t slot)
{
    zinf_access access = zinf_operand_access(instr, slot);

    if (is_any(instr->opcode, ZINF_OP_CLASSIFIER, ZINF_OP_CLASSIFIER_BACKWARD, ZINF_N_OPCODES) &&
        (slot == 4 || slot == 5))
        access.reads = instr->attr[3] >> (slot - 4) & 1;
    return access;
}

static bool run(zinf_checker *c, const zinf_segment *s, uint32_t first_visit)
{
    const zinf_plan *plan = c->plan;
    const zinf_instr *instr = &plan->instrs[c->index];
    visit *v = &c->visits[++c->now];

    *v = c->visits[c->last[instr->queue]];
    v->instr = c->index;
    v->done[instr->queue] = c->now;
    for (uint32_t w = instr->wait0; w < instr->wait0 + instr->n_waits; w++) {
        const zinf_wait *wait = &plan->waits[w];
        uint32_t on = c->latest[wait->instr];
        if (wait->instr >= s->first_instr)
            on = wait->distance > c->iteration ? 0
                 : first_visit + (uint32_t)(c->iteration - wait->distance) * s->n_instrs +
                       (wait->instr - s->first_instr);
        for (int q = 0; q < ZINF_N_QUEUES; q++)
            v->done[q] = c->visits[on].done[q] > v->done[q] ? c->visits[on].done[q] : v->done[q];
    }
    c->last[instr->queue] = c->latest[c->index] = c->now;
    c->instr = instr;
    c->o = &plan->operands[instr->operand0];
    c->links = links_of[instr->opcode];
    c->made_of = c->tensor = ZINF_NONE;
    for (uint32_t k = 0; k < instr->n_operands; k++) {
        const zinf_access access = access_of(instr, k);
        c->seen[k] = (cell){.value = ZINF_NONE, .made_of = ZINF_NONE};
        if (c->o[k].bytes && access.reads && !read_operand(c, k, access.writes))
            return false;
    }
    if (c->links && !check_operator(c))
        return false;
    c->made_of = c->tensor != ZINF_NONE ? c->tensor : c->seen[0].made_of;
    for (uint32_t k = 0; k < instr->n_operands; k++) {
        const zinf_access access = access_of(instr, k);
        if (c->seen[k].made_of == GRADIENT)
            c->made_of = GRADIENT;
        if (c->o[k].bytes && access.reads && !access.writes && !moves(instr->opcode) &&
            !right_place(c, k))
            return false;
    }
    if (!check_role(c) || (moves(instr->opcode) && !move(c)))
        return false;
    for (uint32_t k = 0; k < instr->n_operands && !moves(instr->opcode); k++) {
        const zinf_access access = access_of(instr, k);
        if (c->o[k].bytes && access.writes && !write_operand(c, k, access.reads))
            return false;
    }
    return c->work <= c->most_work ||
           refuse(c, "C3", 0, NULL, "accesses are in too many pieces to be proved");
}

/* Regions as every program finds them; no two overlap. */
static bool enter(zinf_checker *c)
{
    const cell nothing = {.value = ZINF_NONE, .made_of = ZINF_NONE};

    for (int t = 0; t < ZINF_N_TIERS; t++)
        if (!zinf_intervals_init(&c->maps[t], sizeof nothing, &nothing))
            return no_memory(c);
    for (uint32_t v = 0; v < c->plan->n_values; v++)
        c->contents[v].age = 0;
    for (uint32_t k = 0; k < 3 * c->plan->n_units; k++) {
        const state role = (state)(k % 3 + 1);
        const zinf_region *r = region_of(c, k / 3, role);
        const zinf_operand o = {.tier = (uint8_t)r->tier, .value = r->value, .bytes = r->bytes,
                                .offset = r->offset};
        const cell found = {.value = r->value, .origin = r->offset, .part = c->sharded,
                            .dtype = (uint8_t)(role == PARAM ? c->plan->job.precision : ZINF_F32),
                            .made_of = ZINF_NONE};
        if (r->bytes == 0)
            continue;
        content *v = r->value == ZINF_NONE ? NULL : &c->contents[r->value];
        if (!v || (v->role != NOTHING && (v->role != role || v->unit != k / 3)))
            return refuse_unit(c, "C4", k / 3, "has a region with no value of its own");
        v->role = role;
        v->unit = k / 3;
        for (uint32_t i = zinf_intervals_cut(&c->maps[r->tier], r->offset, r->offset + r->bytes);
             i != ZINF_NO_INTERVAL;
             i = zinf_intervals_next(&c->maps[r->tier], i, r->offset + r->bytes))
            if (cell_of(c, &o, i)->value != ZINF_NONE)
                return refuse_unit(c, "C3", k / 3, "has a region that overlaps another's");
        if (!claim(c, &o, r->offset, r->offset + r->bytes, &found))
            return false;
    }
    return true;
}

/* C8: at the end the region holds the latest of its value. */
static bool region_holds(zinf_checker *c, uint32_t unit, state role, uint64_t at, uint64_t bytes)
{
    const bool fills = c->kind == ZINF_PROGRAM_INIT || c->kind == ZINF_PROGRAM_LOAD;
    const zinf_region *r = region_of(c, unit, role);
    const zinf_operand o = {.tier = (uint8_t)r->tier, .value = r->value, .bytes = bytes,
                            .offset = r->offset + at};
    zinf_intervals *map = &c->maps[r->tier];

    if (r->bytes == 0 || (fills && !c->contents[r->value].on_entry))
        return true;
    for (uint32_t i = zinf_intervals_cut(map, o.offset, o.offset + bytes); i != ZINF_NO_INTERVAL;
         i = zinf_intervals_next(map, i, o.offset + bytes)) {
        const cell *x = cell_of(c, &o, i);
        c->index = c->visits[x->writer].instr;
        if (x->value != r->value || x->origin != r->offset || x->part != c->sharded ||
            x->age != c->contents[r->value].age || (fills && x->writer == 0) ||
            x->dtype != (role == PARAM ? c->plan->job.precision : ZINF_F32))
            return refuse(c, "C8", 0, &o, "at the end a unit's region does not hold its state, or "
                          "not the one produced last");
    }
    return !map->failed || no_memory(c);
}

static bool check_exit(zinf_checker *c, bool empty)
{
    const zinf_plan *plan = c->plan;
    const uint32_t kind = c->kind;
    const zinf_operand loss = {.tier = ZINF_TIER_SCALAR, .bytes = 8, .value = ZINF_NONE};
    const bool trains = kind == ZINF_PROGRAM_STEP, evaluates = kind == ZINF_PROGRAM_EVAL;
    const bool forward = trains || evaluates || kind == ZINF_PROGRAM_SAMPLE;

    for (uint32_t u = 0; u < plan->n_units; u++) {
        const uint64_t n = shard_of(c, u);
        c->index = ZINF_NONE;
        if (!empty && c->tallies[u].updates != (forward && !trains ? 0 : 1) &&
            kind != ZINF_PROGRAM_FLUSH)
            return refuse_unit(c, "C7", u, "is not updated or moved exactly once");
        if (!region_holds(c, u, PARAM, 0, n * zinf_dtype_bytes(plan->job.precision)))
            return false;
        for (uint64_t i = 0; i < 3; i++)
            if (!region_holds(c, u, OPTIMIZER, i * plan->units[u].array_stride, 4 * n))
                return false;
    }
    c->index = ZINF_NONE;
    if (forward && !empty) {
        const uint32_t i = zinf_intervals_cut(&c->maps[ZINF_TIER_SCALAR], 0, 8);
        if (i == ZINF_NO_INTERVAL)
            return no_memory(c);
        const cell *x = cell_of(c, &loss, i);
        if (c->n_batches != 1 || c->losses == 0 || (trains && c->n_losses !=
                                                                  plan->decisions.accumulation) ||
            (!trains && c->losses != 1) ||
            ((trains || evaluates) && (x->sums[0] != c->due || x->part)))
            return refuse(c, "C7", 0, NULL, "it must draw one batch and have one loss (or logits) "
                          "of each micro-batch, summed over all and over ranks");
    }
    return true;
}

static bool check_program(zinf_checker *c, uint32_t kind)
{
    const zinf_plan *plan = c->plan;
    const zinf_program *program = &plan->programs[kind];
    const zinf_segment *segments = &plan->segments[program->first_segment];
    uint64_t *n_visits = calloc((size_t)program->n_segments + 1, sizeof *n_visits);
    uint64_t total = 1, unrolled = 0;
    bool ok = n_visits != NULL || no_memory(c);

    c->kind = kind;
    c->index = ZINF_NONE;
    c->due = c->n_losses = c->n_batches = c->work = c->age = c->now = c->losses = 0;
    memset(c->last, 0, sizeof c->last);
    memset(c->tallies, 0, plan->n_units * sizeof *c->tallies);
    for (uint32_t s = 0; ok && s < program->n_segments; s++) {
        const zinf_segment *segment = &segments[s];
        bool strides = false;
        for (uint32_t i = segment->first_instr; i < segment->first_instr + segment->n_instrs; i++) {
            const zinf_instr *instr = &plan->instrs[i];
            for (uint32_t k = 0; k < instr->n_operands; k++)
                strides |= plan->operands[instr->operand0 + k].stride && access_of(instr, k).writes;
            c->n_losses += instr->opcode == ZINF_OP_LOSS ? segment->count : 0;
            c->n_batches += instr->opcode == ZINF_OP_BATCH ? segment->count : 0;
        }
        n_visits[s] = strides || segment->count < UNROLL ? segment->count : UNROLL;
        unrolled += n_visits[s] > UNROLL ? n_visits[s] * segment->n_instrs : 0; /* < 2^62 each */
        c->index = segment->first_instr;
        if (unrolled > MOST_VISITS)
            ok = refuse(c, "C3", 0, NULL, "its loop writes with a stride and is too long to prove");
        total += n_visits[s] * segment->n_instrs;
        for (uint32_t i = segment->first_instr; i < segment->first_instr + segment->n_instrs; i++)
            c->due += plan->instrs[i].opcode == ZINF_OP_LOSS ? n_visits[s] : 0;
    }
    free(c->visits);
    c->most_work = LEAST_WORK + EACH_WORK * (total + plan->n_units);
    c->visits = ok && total < UINT32_MAX ? calloc(total, sizeof *c->visits) : NULL;
    ok = ok && (c->visits || no_memory(c));
    if (ok)
        c->visits[0].instr = ZINF_NONE;
    ok = ok && enter(c);
    for (uint32_t s = 0; ok && s < program->n_segments; s++) {
        c->count = segments[s].count;
        c->exact = n_visits[s] == c->count;
        const uint32_t first_visit = c->now + 1;
        for (c->iteration = 0; ok && c->iteration < n_visits[s]; c->iteration++) {
            c->age++;
            for (uint32_t i = 0; ok && i < segments[s].n_instrs; i++) {
                c->index = segments[s].first_instr + i;
                ok = run(c, &segments[s], first_visit);
            }
        }
    }
    free(n_visits);
    return ok && check_exit(c, program->n_segments == 0);
}

zinf_status zinf_plan_check(const zinf_plan *plan, zinf_error *err)
{
    /* INIT and LOAD last: by then it is known what the others need on entry. */
    static const zinf_program_kind order[ZINF_N_PROGRAMS] = {
        ZINF_PROGRAM_STEP, ZINF_PROGRAM_FLUSH, ZINF_PROGRAM_EVAL, ZINF_PROGRAM_SAMPLE,
        ZINF_PROGRAM_SAVE, ZINF_PROGRAM_INIT, ZINF_PROGRAM_LOAD};
    zinf_checker c = {.plan = plan, .err = err, .count = 1, .sharded = plan->decisions.ranks > 1};
    const size_t tensors = (size_t)plan->n_tensors + 1;

    if (zinf_plan_validate(plan, err))
        return err->status;
    c.contents = calloc((size_t)plan->n_values + 1, sizeof *c.contents);
    c.tallies = calloc((size_t)plan->n_units + 1, sizeof *c.tallies);
    c.uses = calloc(2 * tensors, sizeof *c.uses);
    c.stack = calloc(tensors, sizeof *c.stack);
    c.stack_rows = calloc(tensors, sizeof *c.stack_rows);
    c.branches = calloc(tensors, sizeof *c.branches);
    c.latest = calloc((size_t)plan->n_instrs + 1, sizeof *c.latest);
    bool ok = (c.contents && c.tallies && c.uses && c.stack && c.stack_rows && c.branches &&
               c.latest) || no_memory(&c);
    for (uint32_t t = 0; ok && t < plan->n_tensors; t++) {
        c.stack[t] = plan->tensors[t].stack_row ? c.stack[t - 1] : t;
        c.stack_rows[c.stack[t]] = plan->tensors[t].stack_row + plan->tensors[t].rows;
        c.uses[t].bias = c.uses[t + plan->n_tensors].bias = GRADIENT;
    }
    for (int k = 0; ok && k < ZINF_N_PROGRAMS; k++)
        ok = check_program(&c, order[k]);
    for (int t = 0; t < ZINF_N_TIERS; t++)
        zinf_intervals_free(&c.maps[t]);
    free(c.contents);
    free(c.tallies);
    free(c.uses);
    free(c.stack);
    free(c.stack_rows);
    free(c.branches);
    free(c.visits);
    free(c.latest);
    free(c.pieces);
    return ok ? ZINF_OK : err->status;
}
