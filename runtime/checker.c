/* runtime/checker.c - the rules C1 to C8: each program is run once, symbolically, and what an
 * instruction reads must be the very value that the model's training step has in that place.
 *
 * plan_validate.c, plan_shapes.c, plan_content.c, written.c and stated.c prove what tables and
 * single instructions say (C1, C2, C5, shapes, what a program must have); plan_model.h says which
 * operators the model has, on which tensors, opcodes.h which value of it each operand is. So
 * every value has an exact name: the result of operator 7, its gradient, the parameters of unit 3;
 * of which micro-batch, or after how many updates; as the sum of which contributions (cell.h).
 * Memory maps bytes to names: a read compares, a write sets; the end compares the units' regions.
 *
 * C3. Of every byte it is known who wrote it and who has read it since; clocks.h says what surely
 * finished before, and why three iterations of a loop are enough. Nothing is written with a stride;
 * an operand that has one counts, in every iteration, as reading what all iterations read.
 *
 * Loops. What three iterations do all do, with other micro-batches: each reads what the loop found,
 * its own micro-batches, what it has made itself, and of those before it nothing but whole sums.
 *
 * Ranks. What one rank has is another value than the whole, which collectives make of it; no rank
 * skips one. What one does alone (zinf_instr_owner) makes what it has and nothing else: one visit
 * stands for all ranks, where what they own lies one after the other (zinf_operand_at).
 */
#include "runtime/checker.h"

#include <string.h>

#include "runtime/cell.h"
#include "runtime/clocks.h"
#include "runtime/intervals.h"
#include "runtime/plan_content.h"
#include "runtime/plan_model.h"
#include "runtime/refusal.h"
#include "runtime/stated.h"
#include "runtime/written.h"

/* Pieces of memory looked at, for a visit (tiles take 15) and in all; that there are, in less than
 * the stated memory of the executor's tables: 136 bytes each, 32 a visit, 188 an instruction. */
enum { EACH_WORK = 96, LEAST_WORK = 1 << 19, LEAST_PIECES = 1 << 13 };

typedef struct checker {
    const zinf_plan *plan;
    zinf_error *err;
    zinf_plan_model model;
    zinf_intervals maps[ZINF_N_TIERS]; /* of cells */
    zinf_clocks clocks;
    uint64_t work, most_work, most_pieces, count, iteration, logits; /* logits: rows so far */
    uint64_t unvisited; /* losses of earlier loops, in iterations that were not looked at */
    uint32_t program, index, losses, clips; /* losses and CLIPs as visited */
    uint32_t before_loop, before_iteration, begun; /* visits; losses before this iteration */
    uint64_t ahead; /* micro-batches of which tokens were looked at */
    bool fills;     /* INIT, LOAD */
    /* the instruction visited */
    const zinf_instr *instr;
    const zinf_operand *o;
    const char *letters;          /* of its slots, opcodes.h */
    zinf_cell seen[ZINF_MAX_OPERANDS]; /* first piece of each operand, as it was */
    uint64_t op, micro, row, n_rows; /* operator of the model, micro-batch, tile */
} checker;

/* ---- refusals: return false, as every check does that fails ---- */

/* other: a second instruction, as a visit, or 0; o: or NULL. */
static bool refuse(checker *c, const char *rule, uint32_t other, const zinf_operand *o,
                   const char *wrong)
{
    return !zinf_refuse(c->plan, rule, c->program, c->index, c->clocks.visits[other].instr, o,
                        wrong, c->err);
}

static bool no_memory(checker *c)
{
    return !zinf_fail(c->err, ZINF_MACHINE, "out of memory while checking the plan");
}

/* ---- memory ---- */

static uint64_t here(const checker *c, const zinf_operand *o)
{
    return zinf_operand_at(c->plan, c->instr, o) + o->stride * c->iteration;
}

/* C3: ordered with the last writer and, for a write, with the readers since. */
static bool ordered(checker *c, const zinf_operand *o, const zinf_cell *x, bool writes)
{
    const zinf_visit *writer = &c->clocks.visits[x->writer];

    if (x->writer &&
        !zinf_clocks_before(&c->clocks, c->plan->instrs[writer->instr].queue, x->writer))
        return refuse(c, "C3", x->writer, o, writes ? "two writes that no wait orders"
                                                    : "a read that waits not for the write");
    for (unsigned q = 0; writes && q < ZINF_N_QUEUES; q++)
        if (!zinf_clocks_before(&c->clocks, q, x->readers[q]))
            return refuse(c, "C3", x->readers[q], o, "a write that waits not for the read");
    return true;
}

/* C8 of a loop: what an iteration finds of the one before it is a sum over all micro-batches so
 * far, and nothing else. So all iterations from the second on do the same, looked at or not. */
static bool repeats(checker *c, const zinf_operand *o, const zinf_cell *x)
{
    return !x->what || x->writer <= c->before_loop || x->writer > c->before_iteration ||
           zinf_sums_complete(&x->sums, c->begun) ||
           refuse(c, "C8", x->writer, o, "of an iteration before is read, and is no whole sum");
}

/* All of [lo, hi) is what is wanted (NULL: anything), and ordered before the instruction, if one
 * reads it. Behind the elements of a gradient there may be zeros. */
static bool holds(checker *c, const char *rule, const zinf_operand *o, uint64_t lo, uint64_t hi,
                  const zinf_cell *want)
{
    zinf_intervals *map = &c->maps[o->tier];
    char text[300];

    for (uint32_t i = zinf_intervals_cut(map, lo, hi); i != ZINF_NO_INTERVAL;
         i = zinf_intervals_next(map, i, hi)) {
        zinf_cell *x = zinf_intervals_payload(map, i);
        const bool padding = want && want->what == ZINF_VALUE_GRAD && x->what == ZINF_VALUE_ZEROS &&
                             zinf_intervals_lo(map, i) - want->origin >=
                                 4 * c->plan->units[want->of].n_elems;
        if (c->index != ZINF_NONE && (!ordered(c, o, x, false) || (want && !repeats(c, o, x))))
            return false;
        if (want && !padding && zinf_cell_differs(x, want, text))
            return refuse(c, rule, x->writer, o, text);
        if (c->index != ZINF_NONE)
            x->readers[c->instr->queue] = c->clocks.now;
        c->work++;
    }
    zinf_intervals_join(map, lo, hi); /* or T tiles read in T pieces each */
    return !map->failed || no_memory(c);
}

/* [lo, hi) becomes one cell, after everything that was there; from there to end, where nothing is
 * touched yet, columns of tiles to come are named. C6: what one rank does alone makes what that
 * rank has of the unit, and nothing else but a sum over ranks does. */
static bool claim(checker *c, const zinf_operand *o, uint64_t lo, uint64_t hi, uint64_t end,
                  zinf_cell made)
{
    const bool alone = c->index != ZINF_NONE && o->tier != ZINF_TIER_SCALAR &&
                       zinf_instr_owner(c->plan, c->instr) != ZINF_NONE;
    const bool mine = made.what == ZINF_VALUE_OPTIMIZER || made.what == ZINF_VALUE_PARAM_PART ||
                      made.what == ZINF_VALUE_GRAD_PART;
    const bool owned = c->index != ZINF_NONE && mine && c->plan->units[made.of].owner != ZINF_NONE;
    zinf_intervals *map = &c->maps[o->tier];
    uint32_t i;

    if (alone && made.what && !(mine && made.of == c->instr->unit))
        return refuse(c, "C6", made.writer, o, "is not the unit's for which one rank does this");
    if (owned && !alone && c->instr->opcode != ZINF_OP_REDUCE)
        return refuse(c, "C6", made.writer, o, "is one rank's, but all ranks do this");
    for (i = zinf_intervals_cut(map, lo, hi); i != ZINF_NO_INTERVAL;
         i = zinf_intervals_next(map, i, hi), c->work += 2)
        if (!ordered(c, o, zinf_intervals_payload(map, i), true))
            return false;
    i = zinf_intervals_merge(map, lo, hi);
    if (i == ZINF_NO_INTERVAL)
        return no_memory(c);
    made.value = o->value;
    made.writer = c->clocks.now;
    memset(made.readers, 0, sizeof made.readers);
    *(zinf_cell *)zinf_intervals_payload(map, i) = made;
    for (i = hi < end ? zinf_intervals_cut(map, hi, end) : ZINF_NO_INTERVAL;
         i != ZINF_NO_INTERVAL; i = zinf_intervals_next(map, i, end), c->work++) {
        zinf_cell *x = zinf_intervals_payload(map, i);
        made.writer = x->writer;
        memcpy(made.readers, x->readers, sizeof made.readers);
        *x = made;
    }
    return !map->failed || no_memory(c);
}

/* The destination takes over what the source holds, piece by piece: of the value at its beginning,
 * or zeros; what else is there is of no use. ALLREDUCE makes a sum over ranks of one's part. */
static bool copy(checker *c)
{
    const zinf_operand *from = &c->o[0], *to = &c->o[1];
    const bool sums = c->instr->opcode == ZINF_OP_ALLREDUCE;
    const uint64_t lo = here(c, from), end = lo + from->bytes, shift = here(c, to) - lo;
    zinf_intervals *map = &c->maps[from->tier];

    if (!sums && from->value != to->value)
        return refuse(c, "C4", 0, to, "a copy does not change the value");
    for (uint32_t i = zinf_intervals_cut(map, lo, end); i != ZINF_NO_INTERVAL;
         i = zinf_intervals_next(map, i, end)) {
        const uint64_t at = zinf_intervals_lo(map, i), hi = zinf_intervals_hi(map, i);
        zinf_cell x = *(zinf_cell *)zinf_intervals_payload(map, i);
        c->work++;
        const bool known = x.what && x.value == from->value && x.rows == 0 &&
                           (sums || x.what == ZINF_VALUE_ZEROS || x.origin == c->seen[0].origin);
        if (sums ? !known || (x.what != ZINF_VALUE_LOSS_PART && x.what != ZINF_VALUE_SQUARES_PART)
                 : at == lo && !known)
            return refuse(c, sums ? "C7" : "C4", x.writer, from, "holds nothing that this moves");
        if (known && !repeats(c, from, &x))
            return false;
        x.what = known ? x.what - sums : ZINF_VALUE_NOTHING; /* _PART no more */
        x.origin += shift;
        if (!claim(c, to, at + shift, hi + shift, 0, x))
            return false;
    }
    return !map->failed || no_memory(c);
}

/* ---- what an operand must be ---- */

/* Which of the model's operators the instruction is of, which micro-batch and tile: as its first
 * operand, its result so far and the columns of a gradient say; expect finds what is wrong. */
static bool find_operator(checker *c, char kind)
{
    const char first = *c->letters, *result = strpbrk(c->letters, "YyEn");
    const zinf_cell *x = c->seen, *made = result ? &x[result - c->letters] : NULL;
    const uint64_t at = here(c, c->o) - x->origin;

    c->op = first == 'T' ? 0 : first == 'N' ? c->model.n_ops - 1 : x->of + (first == 'X');
    c->micro = first == 'T' ? at / c->o->bytes - c->unvisited : x->nth;
    if (x->what == ZINF_VALUE_TOKENS) {
        if (c->micro - c->begun >= c->plan->decisions.accumulation)
            return refuse(c, "C7", 0, c->o, "is of a micro-batch that is done, or of none");
        c->ahead = c->micro < c->ahead ? c->ahead : c->micro + 1;
    }
    if (c->op >= c->model.n_ops || c->model.ops[c->op].kind != kind)
        return refuse(c, "C4", x->writer, c->o, "is not what the model applies this operator to");
    c->row = first == 'T' ? c->instr->attr[0] : at / zinf_dtype_bytes(c->o->dtype);
    if (made)
        c->row = made->nth == c->micro && made->of == c->op - (*result == 'E') ? made->rows : 0;
    return true;
}

/* The value that the operand is: before the instruction, or after it. */
static bool expect(checker *c, uint32_t k, bool after, zinf_cell *ret_want)
{
    const zinf_operand *o = &c->o[k];
    const bool updates = c->instr->opcode == ZINF_OP_ADAM;
    const char letter = c->letters[k];
    zinf_model_value v = {c->seen[0].what, c->seen[0].of, 0, 0};
    const char *wrong =
        letter != '=' ? zinf_model_value_of(&c->model, c->instr, k, letter, c->op, c->row, &v)
        : v.what == (c->instr->opcode == ZINF_OP_CONVERT ? ZINF_VALUE_GRADIENT : ZINF_VALUE_GRAD) ||
                  (v.what == ZINF_VALUE_GRAD_PART && c->instr->opcode == ZINF_OP_ACCUMULATE)
            ? NULL : "is no gradient that is converted, or added to";

    if (wrong)
        return refuse(c, strchr("wbp12345", letter) ? "C7" : "C4", c->seen[k].writer, o, wrong);
    c->n_rows = letter == 'W' ? v.rows : c->n_rows;
    if (letter == 'T' && !after)
        v.place = (c->micro + c->unvisited) * o->bytes;
    *ret_want = (zinf_cell){.what = v.what, .of = v.of, .value = o->value, .dtype = o->dtype,
                       .origin = here(c, o) - v.place};
    if (letter == '=')
        ret_want->nth = c->seen[0].nth;
    else if (v.what >= ZINF_VALUE_GRAD) /* begun by this program? */
        ret_want->nth = !updates || !zinf_is_late(c->plan, c->instr->unit);
    else if (v.what >= ZINF_VALUE_OPTIMIZER) /* made or updated by it? */
        ret_want->nth = c->fills || (updates ? after : c->program == ZINF_PROGRAM_STEP &&
                                                       zinf_is_late(c->plan, v.of));
    else if (v.what >= ZINF_VALUE_RESULT)
        ret_want->nth = c->micro;
    if (strchr("YyEn", letter) && zinf_operand_access(c->instr, k).writes)
        ret_want->rows = after && c->row + c->n_rows == c->model.ops[c->op].rows
                             ? 0 : c->row + (after ? c->n_rows : 0);
    if (letter == 'S') {
        ret_want->of = after ? c->o[0].offset / 8 - ZINF_SCALAR_PARTIALS : c->seen[k].of;
        ret_want->rows = after ? c->o[0].cols : c->seen[k].rows;
    }
    ret_want->sums = letter == '5' && updates && !zinf_is_late(c->plan, v.of)
                         ? zinf_sums_due(c->plan, v.of, c->losses) : c->seen[k].sums;
    c->work += o->bytes && strchr("WBPwbp", letter) ? c->plan->units[v.of].n_parts : 0;
    return true;
}

/* The 8 bytes at `at` are the loss, or the sum of squares of a unit's gradient, complete. */
static bool scalar(checker *c, uint64_t at, uint32_t value, zinf_value_kind what)
{
    const zinf_operand o = {.tier = ZINF_TIER_SCALAR, .offset = at, .bytes = 8, .value = value};
    zinf_cell want = {.what = what, .origin = at, .dtype = ZINF_F64, .value = value,
                 .sums = {{{0, c->losses}}}};

    if (what == ZINF_VALUE_SQUARES) {
        want.of = (uint32_t)(at / 8 - ZINF_SCALAR_PARTIALS);
        want.nth = 1;
        want.sums = zinf_sums_due(c->plan, want.of, c->losses);
    }
    return holds(c, "C7", &o, at, at + 8, &want);
}

/* What is left to ask of the instruction visited: after the reads, before the writes. */
static bool check_rules(checker *c)
{
    const zinf_operand *o = c->o;
    bool whole;

    switch (c->instr->opcode) {
    case ZINF_OP_LOSS:
        return (c->micro == c->losses++ && !c->clips) ||
               refuse(c, "C7", 0, o, "is not of the micro-batch that comes next, before all norms");
    case ZINF_OP_LOGITS:
        c->logits += c->n_rows;
        return c->row + c->n_rows == c->logits ||
               refuse(c, "C4", 0, &o[1], "is not the tile that comes next");
    case ZINF_OP_REDUCE_SCATTER:
    case ZINF_OP_REDUCE:
        return zinf_sums_of_one_rank(c->plan, &c->seen[0].sums) ||
               refuse(c, "C7", c->seen[0].writer, o, "is not what ranks sum in the stated order");
    case ZINF_OP_CONVERT: /* of gradients: what tiles have summed, for attention */
        return c->seen[0].what != ZINF_VALUE_GRADIENT ||
               c->model.ops[c->seen[0].of].kind == 'A' ||
               refuse(c, "C4", c->seen[0].writer, o, "is not converted in this model");
    case ZINF_OP_CLIP: /* which looks at the loss, too */
        c->clips++;
        whole = scalar(c, 8 * ZINF_SCALAR_LOSS, ZINF_NO_NAME, ZINF_VALUE_LOSS);
        for (uint64_t at = o->offset; whole && at < o->offset + o->bytes; at += 8)
            whole = scalar(c, at, o->value, ZINF_VALUE_SQUARES);
        return whole;
    case ZINF_OP_ADAM:
        return c->instr->unit - c->seen[5].of < c->seen[5].rows ||
               refuse(c, "C7", 0, o, "is not updated after its norm");
    default:
        return true;
    }
}

static bool write_operand(checker *c, uint32_t k)
{
    const bool adds = zinf_operand_access(c->instr, k).reads;
    const zinf_operand *o = &c->o[k];
    const char letter = c->letters[k];
    uint64_t lo = here(c, o), hi = lo + o->bytes, end = hi;
    zinf_sums more = {0};
    const char *wrong;
    zinf_cell made;

    if (!expect(c, k, true, &made))
        return false;
    if (letter == 'y') { /* columns, behind those of the tiles before */
        const uint64_t element = zinf_dtype_bytes(o->dtype);
        zinf_cell before = made;
        before.rows = c->row, lo = made.origin;
        end = lo + ((o->rows - 1) * o->ld + c->model.ops[c->op].rows) * element;
        if (c->row && !holds(c, "C4", o, lo, hi - c->n_rows * element, &before))
            return false;
    } else if (strchr("YEn", letter) && adds != (c->row > 0)) {
        return refuse(c, "C4", 0, o, "must be begun by the first tile, and added to by the others");
    }
    if (letter == 'E' && *zinf_opcode_get(c->instr->opcode)->links != 'A' && c->n_rows &&
        o->dtype != (c->n_rows < c->model.ops[c->op].rows ? ZINF_F32 : c->plan->job.precision))
        return refuse(c, "C4", 0, o, "is F32 if it is summed over tiles, and only then");
    const bool of_unit = made.what == ZINF_VALUE_GRAD || made.what == ZINF_VALUE_GRAD_PART;
    if (strchr("wbpL", letter))
        more.by[c->instr->opcode == ZINF_OP_EMBEDDING_BACKWARD] =
            (zinf_addends){(uint32_t)c->micro, 1};
    else if (strchr("=5Q", letter))
        more = c->seen[0].sums;
    wrong = zinf_sums_add(c->plan, of_unit ? made.of : ZINF_NONE, &more, !adds, &made.sums);
    if (wrong)
        return refuse(c, "C7", c->seen[k].writer, o, wrong);
    return claim(c, o, lo, hi, end, made);
}

/* ---- running a program ---- */

static bool run(checker *c)
{
    const zinf_instr *instr = &c->plan->instrs[c->index];
    const char *links = zinf_instr_links(instr);
    uint64_t n_pieces = 0;

    c->instr = instr;
    c->o = &c->plan->operands[instr->operand0];
    c->letters = links + 1;
    c->op = c->micro = c->row = c->n_rows = 0;
    for (uint32_t k = 0; k < instr->n_operands; k++) {
        const zinf_operand *o = &c->o[k];
        const bool used = k == 0 || zinf_operand_access(instr, k).writes || links[k + 1] == 'S';
        c->seen[k] = (zinf_cell){0};
        if (o->bytes && links[k + 1] != '.' && used)
            c->seen[k] = *(zinf_cell *)zinf_intervals_at(&c->maps[o->tier], here(c, o));
    }
    if (*links != '-' && !find_operator(c, *links))
        return false;
    for (uint32_t k = 0; k < instr->n_operands; k++) {
        const zinf_operand *o = &c->o[k];
        const zinf_access access = zinf_operand_access(instr, k);
        const bool open = strchr("#Q", c->letters[k]); /* seen to by copy and check_rules */
        const uint64_t lo = here(c, o) - o->stride * c->iteration; /* of all iterations */
        zinf_cell want = {0};
        if (!access.reads || (!o->bytes && !access.optional))
            continue;
        if (open && o->stride) { /* tokens, all the way; to be moved, those that come next */
            want = (zinf_cell){.what = ZINF_VALUE_TOKENS, .value = o->value, .dtype = o->dtype,
                               .origin = here(c, o) - (c->losses + c->unvisited) * o->bytes};
        } else if (!open && !expect(c, k, false, &want)) {
            return false;
        }
        if (o->bytes && !holds(c, want.what < ZINF_VALUE_GRAD ? "C4" : "C7", o, lo,
                               lo + o->bytes + o->stride * (c->count - 1),
                               want.what ? &want : NULL))
            return false;
    }
    if (!check_rules(c) || (links[1] == '#' && !copy(c)))
        return false;
    for (uint32_t k = 0; k < instr->n_operands && links[1] != '#'; k++)
        if (c->o[k].bytes && zinf_operand_access(instr, k).writes && !write_operand(c, k))
            return false;
    for (int t = 0; t < ZINF_N_TIERS; t++)
        n_pieces += c->maps[t].n;
    return (c->work <= c->most_work && n_pieces <= c->most_pieces) ||
           refuse(c, "C3", 0, NULL, "accesses are in too many pieces to be proved");
}

/* C8: the units' regions, and what an update needs to know, as a program finds or leaves them. */
static bool states(checker *c, bool leaves)
{
    const bool steps = c->program == ZINF_PROGRAM_STEP, flushes = c->program == ZINF_PROGRAM_FLUSH;
    zinf_operand o = {.tier = ZINF_TIER_SCALAR, .offset = 8 * ZINF_SCALAR_NORM,
                      .bytes = 8 * ZINF_N_UPDATE_SCALARS, .value = ZINF_NO_NAME};
    const bool ends = leaves && (c->fills || flushes); /* there is nothing to update from */
    zinf_cell x = {.what = ends ? ZINF_VALUE_ZEROS : ZINF_VALUE_SCALARS, .nth = leaves && steps,
              .rows = ends ? 0 : c->plan->n_units, .origin = o.offset, .dtype = ZINF_F64,
              .value = ZINF_NO_NAME};

    for (uint64_t i = 0; i <= ZINF_N_ARRAYS * (uint64_t)c->plan->n_units; i++) {
        const bool source = i % ZINF_N_ARRAYS == 0; /* scalars, gradients: of late updates alone */
        const uint32_t unit = (uint32_t)((i - 1) / ZINF_N_ARRAYS);
        const bool late = i ? zinf_is_late(c->plan, unit)
                            : c->plan->decisions.optimizer_time == ZINF_IN_FORWARD;
        if (i > 0) {
            zinf_model_value v;
            o = zinf_model_array(c->plan, unit, (i - 1) % ZINF_N_ARRAYS, &v);
            x = (zinf_cell){.what = v.what, .of = v.of, .origin = o.offset - v.place,
                            .value = o.value, .dtype = o.dtype};
            x.nth = leaves && (steps || (!source && (c->fills || (late && flushes))));
            if (source && leaves && c->fills)
                x.what = ZINF_VALUE_ZEROS, x.of = 0;
            if (source && leaves && steps)
                x.sums = zinf_sums_due(c->plan, v.of, c->losses);
        }
        if (o.bytes && (late || !source) && (leaves || !c->fills) &&
            !(leaves ? holds(c, "C8", &o, o.offset, o.offset + o.bytes, &x)
                     : claim(c, &o, o.offset, o.offset + o.bytes, 0, x)))
            return false;
    }
    return true;
}

static bool check_program(checker *c, uint32_t program)
{
    const zinf_program *p = &c->plan->programs[program];
    uint64_t n_visits;

    c->program = program;
    c->fills = program == ZINF_PROGRAM_INIT || program == ZINF_PROGRAM_LOAD;
    c->index = ZINF_NONE;
    c->work = c->unvisited = c->logits = c->ahead = c->losses = c->clips = 0;
    if (!zinf_clocks_begin(&c->clocks, c->plan, p, &n_visits))
        return no_memory(c);
    c->most_work = LEAST_WORK + EACH_WORK * (n_visits + c->plan->n_units);
    c->most_pieces = LEAST_PIECES + 4 * (uint64_t)c->plan->n_instrs / 3 - n_visits / 4;
    for (int t = 0; t < ZINF_N_TIERS; t++)
        if (!zinf_intervals_init(&c->maps[t], sizeof(zinf_cell), &(zinf_cell){0}))
            return no_memory(c);
    if (!states(c, false))
        return false;
    for (uint32_t i = 0; i < p->n_segments; i++) {
        const zinf_segment *s = &c->plan->segments[p->first_segment + i];
        const uint64_t n = zinf_clocks_iterations(s);
        const uint32_t losses = c->losses;
        c->count = s->count;
        c->before_loop = c->clocks.now;
        for (c->iteration = 0; c->iteration < n; c->iteration++) {
            c->before_iteration = c->clocks.now;
            c->begun = c->losses;
            c->index = s->first_instr;
            if (n < s->count && c->ahead > c->losses)
                return refuse(c, "C7", 0, NULL, "an iteration finds its micro-batch begun");
            for (c->index = s->first_instr; c->index < s->first_instr + s->n_instrs; c->index++) {
                zinf_clocks_visit(&c->clocks, s, c->iteration, c->index);
                if (!run(c))
                    return false;
            }
        }
        c->unvisited += (c->losses - losses) / n * (c->count - n);
    }
    c->index = ZINF_NONE;
    return states(c, true) && ((program != ZINF_PROGRAM_STEP && program != ZINF_PROGRAM_EVAL) ||
                               scalar(c, 8 * ZINF_SCALAR_LOSS, ZINF_NO_NAME, ZINF_VALUE_LOSS));
}

zinf_status zinf_plan_check(const zinf_plan *plan, zinf_error *err)
{
    checker c = {.plan = plan, .err = err};
    bool ok = !zinf_plan_validate(plan, err) && !zinf_plan_check_content(plan, err) &&
              !zinf_plan_model_make(plan, &c.model, err);

    for (uint32_t p = 0; ok && p < ZINF_N_PROGRAMS; p++)
        ok = check_program(&c, p);
    ok = ok && !zinf_plan_check_written(plan, err) && !zinf_plan_check_stated(plan, err);
    for (int t = 0; t < ZINF_N_TIERS; t++)
        zinf_intervals_free(&c.maps[t]);
    zinf_plan_model_free(&c.model);
    zinf_clocks_free(&c.clocks);
    return ok ? ZINF_OK : err->status;
}
