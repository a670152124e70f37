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
 * Tiles of an operator come in order of rows, and every use of a weight applies it to the same
 * (what was made of the same tensor), with the same bias and residual: a program that differs from
 * the others is found. Gradients count their contributions. What is only this rank's part (a shard,
 * a sum not yet over ranks) is no operand of an operator before a collective made it whole. All
 * ranks run one program in which no collective is skipped, so their collectives have one order.
 *
 * Owned units. What one rank does alone (zinf_instr_owner) touches what that rank has of the unit
 * and nothing else, and nobody else touches that: so one visit stands for all ranks, in an address
 * space in which what they own lies one after the other (zinf_operand_at).
 */
#include <stdlib.h>

#include "runtime/checker_state.h"

/* A program may unroll MOST_VISITS instructions beyond ZINF_UNROLL of each, and look at EACH_WORK
 * pieces of memory for every visit, LEAST_WORK more in all; models in up to 128 tiles take 30. What
 * needs more is refused, not waited for. */
enum { MOST_VISITS = 1 << 19, LEAST_WORK = 1 << 22, EACH_WORK = 256 };

/* ---- C3: ordered with the last writer and, for a write, with the readers since ---- */

bool zinf_checker_ordered(zinf_checker *c, const zinf_operand *o, const cell *x, bool writes)
{
    const uint32_t *done = c->visits[c->now].done;
    bool own = x->writer == c->now;

    if (x->writer && done[c->plan->instrs[c->visits[x->writer].instr].queue] < x->writer)
        return refuse(c, "C3", x->writer, o, writes ? "two writes that no wait orders"
                                                    : "a read that waits not for the write");
    for (int q = 0; writes && q < ZINF_N_QUEUES; q++)
        if (done[q] < x->readers[q])
            return refuse(c, "C3", x->readers[q], o, "a write that waits not for the read");
        else
            own |= writes && x->readers[q] == c->now && x->value != o->value;
    return !own || c->now == 0 || c->instr->opcode == ZINF_OP_ROPE ||
           c->instr->opcode == ZINF_OP_ALLREDUCE ||
           refuse(c, "C3", 0, o, "an operand that is written overlaps another one");
}

/* ---- C4: what is read is the value meant ---- */

static bool right(zinf_checker *c, uint32_t slot, const cell *x, bool first, bool writes)
{
    const zinf_operand *o = &c->o[slot];
    const unsigned opcode = c->instr->opcode;
    const bool scalar = o->tier == ZINF_TIER_SCALAR, grad = is_grad(role_of(c, o));
    const bool fills = c->kind == ZINF_PROGRAM_INIT || c->kind == ZINF_PROGRAM_LOAD;
    const char *rule = grad ? "C7" : "C4";
    content *v = &c->contents[o->value];

    if (copies(opcode) && !first)
        return true; /* it takes over what there is, padding too */
    if (x->value != o->value)
        return refuse(c, rule, x->writer, o, "reads bytes that hold something else, or nothing");
    const bool updates = c->late && opcode == ZINF_OP_ADAM;
    if ((x->writer == 0 && fills) ||
        (grad && x->age == 0 && !updates && !(c->late && copies(opcode))))
        return refuse(c, rule, 0, o, "reads what this program has not begun");
    if (updates && ((grad && x->age) || (scalar && x->writer)))
        return refuse(c, "C7", x->writer, o, "is no longer what the step before left");
    v->on_entry |= x->writer == 0;
    if (!grad && !scalar && x->age != v->age)
        return refuse(c, rule, x->writer, o, "reads an old copy, it was produced anew since");
    if (copies(opcode))
        return true;
    if (x->dtype != o->dtype || x->origin != c->seen[slot].origin)
        return refuse(c, rule, x->writer, o, "reads another element type, or pieces of the value "
                      "that lie at other distances, than was written");
    if (memcmp(x->sums, c->seen[slot].sums, sizeof x->sums) || x->micro != c->seen[slot].micro)
        return refuse(c, rule, x->writer, o, "parts of it are of other micro-batches");
    if (x->rows != x->of && !writes)
        return refuse(c, rule, x->writer, o, "reads what not every tile is in yet");
    if (!writes && scalar && x->part != (c->sharded && opcode == ZINF_OP_ALLREDUCE) && x->writer &&
        opcode != ZINF_OP_ADAM)
        return refuse(c, "C7", x->writer, o, "is not summed over ranks, or is already");
    if (first && v->batch && (here(c, o) - x->origin) % o->bytes)
        return refuse(c, rule, 0, o, "is not the tokens of a micro-batch");
    if (first && v->role == NOTHING && !v->batch && !scalar && here(c, o) != x->origin &&
        !(*c->links && strchr("CR", c->links[slot])))
        return refuse(c, rule, 0, o, "is not at its place in the matrix");
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
        lo -= o->stride * c->iteration;
        hi = lo + o->bytes + o->stride * (c->count - 1);
    }
    const bool sums = c->instr->opcode == ZINF_OP_REDUCE_SCATTER ||
                      c->instr->opcode == ZINF_OP_REDUCE;
    const uint64_t padding = sums && role_of(c, o) == GRAD
                                 ? lo + 4 * c->plan->units[unit_of(c, o)].n_elems : UINT64_MAX;
    uint32_t i = zinf_intervals_cut(map, lo, hi);
    if (i != ZINF_NO_INTERVAL)
        c->seen[slot] = *cell_of(c, o->tier, i);
    for (bool first = true; i != ZINF_NO_INTERVAL; first = false) {
        cell *x = cell_of(c, o->tier, i);
        if (!zinf_checker_ordered(c, o, x, false))
            return false;
        if (zinf_intervals_lo(map, i) >= padding && x->value == o->value && x->writer &&
            c->plan->instrs[c->visits[x->writer].instr].opcode == ZINF_OP_ZERO) {
            /* may lie at any distance */
        } else if (!right(c, slot, x, first, writes)) {
            return false;
        }
        x->readers[c->instr->queue] = c->now;
        i = zinf_intervals_next(map, i, hi);
    }
    return !map->failed || no_memory(c);
}

/* ---- C7: the state of a unit ---- */

/* ---- writes ---- */

/* [lo, hi) becomes one cell, after everything that was there. If it is the sum of several tiles, or
 * their columns, the one before this has left it as it should be. */
static bool claim(zinf_checker *c, const zinf_operand *o, uint64_t lo, uint64_t hi,
                  const cell *made)
{
    zinf_intervals *map = &c->maps[o->tier];
    uint32_t i;

    for (i = zinf_intervals_cut(map, lo, hi); i != ZINF_NO_INTERVAL;
         i = zinf_intervals_next(map, i, hi)) {
        const cell *x = cell_of(c, o->tier, i);
        if (!zinf_checker_ordered(c, o, x, true))
            return false;
        if (made->of && c->row &&
            (x->value != o->value || x->rows != c->row || x->age != c->age ||
             x->micro != made->micro || x->made_of != made->made_of || x->back != made->back))
            return refuse(c, "C4", x->writer, o, "does not continue the tile before it");
    }
    i = zinf_intervals_merge(map, lo, hi);
    if (i == ZINF_NO_INTERVAL)
        return no_memory(c);
    *cell_of(c, o->tier, i) = *made;
    return true;
}

static bool write_operand(zinf_checker *c, uint32_t slot, bool adds)
{
    const zinf_operand *o = &c->o[slot];
    const unsigned opcode = c->instr->opcode;
    const char link = *c->links ? c->links[slot] : '.';
    const uint64_t element = zinf_dtype_bytes(o->dtype), width = c->stack_rows[c->tensor];
    const state role = role_of(c, o);
    const cell *old = &c->seen[slot], *from = &c->seen[0];
    uint64_t lo = here(c, o), hi = lo + o->bytes;
    cell made = {.value = o->value, .writer = c->now, .age = c->age, .dtype = o->dtype,
                 .made_of = c->made_of, .back = c->back,
                 .micro = role == NOTHING ? c->micro : NO_MICRO};

    if (link == 'S' && adds != (c->row > 0))
        return refuse(c, "C4", 0, o, "must be begun by the first tile, and added to by the others");
    if (link == 'M' && (lo < c->row * element || (o->rows > 1 && o->ld != width)))
        return refuse(c, "C4", 0, o, "is not the columns that belong to the weight's rows");
    if (link == 'M') { /* all columns of the matrix count as written */
        lo -= c->row * element;
        hi = lo + ((o->rows - 1) * o->ld + width) * element;
    }
    if (link == 'M' || link == 'S') {
        made.rows = c->row + c->n_rows;
        made.of = width;
    }
    if (slot >= 4 && (opcode == ZINF_OP_CLASSIFIER || opcode == ZINF_OP_CLASSIFIER_BACKWARD)) {
        made.made_of = from->made_of;
        made.back = true;
    }
    made.origin = o->tier == ZINF_TIER_SCALAR ? 0 : adds ? old->origin : lo;
    made.part = c->sharded && (opcode == ZINF_OP_LOSS || opcode == ZINF_OP_SUM_OF_SQUARES);
    if (role == OPTIMIZER && !adds) /* INIT, IMPORT: master, m, v */
        made.origin -= slot * c->plan->units[unit_of(c, o)].array_stride;
    if (role == GRAD && !adds)
        made.origin = grad_origin(c, o);
    if (strchr("wbB", link)) {
        if (made.origin != NO_ORIGIN && made.origin + 4 * c->at[slot] != lo)
            return refuse(c, "C7", 0, o, "is not where the gradient of that parameter belongs");
        made.origin = lo - 4 * c->at[slot];
    }
    if (opcode == ZINF_OP_ACCUMULATE ||
        (opcode >= ZINF_OP_REDUCE_SCATTER && opcode <= ZINF_OP_ALLREDUCE))
        memcpy(made.sums, from->sums, sizeof made.sums);
    else if ((role == GRAD && opcode != ZINF_OP_ZERO) || opcode == ZINF_OP_LOSS)
        made.sums[opcode == ZINF_OP_EMBEDDING_BACKWARD] = (sum){c->micro, 1};
    for (int i = 0; i < 2 && adds; i++)
        if (!zinf_checker_add(&old->sums[i], &made.sums[i], &made.sums[i]))
            return refuse(c, "C7", old->writer, o, "contributions are not of one micro-batch after "
                          "the other");
    if (opcode == ZINF_OP_ALLGATHER || opcode == ZINF_OP_BROADCAST) {
        made.age = from->age; /* no newer than the shard */
    } else if (o->value != ZINF_NONE) {
        c->contents[o->value].age = c->age;
        c->contents[o->value].batch |= opcode == ZINF_OP_BATCH;
    }
    if (role == PARAM_SHARD) /* what was gathered before is old now */
        c->contents[c->plan->units[unit_of(c, o)].whole_param].age = c->age;
    return claim(c, o, lo, hi, &made);
}

/* The destination takes over what the source holds, piece by piece. */
static bool copy(zinf_checker *c)
{
    const zinf_operand *from = &c->o[0], *to = &c->o[1];
    const uint64_t start = here(c, from), lo = here(c, to);
    zinf_intervals *map = &c->maps[from->tier];
    uint64_t at = lo;
    uint32_t n = 0;

    if (from->value != to->value)
        return refuse(c, "C4", 0, to, "a copy does not change the value");
    for (uint32_t i = zinf_intervals_cut(map, start, start + from->bytes); i != ZINF_NO_INTERVAL;
         i = zinf_intervals_next(map, i, start + from->bytes), n++) {
        if (n == c->cap_pieces) {
            c->cap_pieces = 2 * n + 64;
            piece *grown = realloc(c->pieces, c->cap_pieces * sizeof *grown);
            if (!grown)
                return no_memory(c);
            c->pieces = grown;
        }
        cell *known = &c->pieces[n].known;
        *known = *cell_of(c, from->tier, i);
        if (known->value != from->value || known->rows != known->of)
            known->value = ZINF_NONE;
        c->pieces[n].end = zinf_intervals_hi(map, i) - start;
    }
    for (uint32_t k = 0; k < n; k++) {
        cell made = c->pieces[k].known;
        const uint64_t hi = lo + c->pieces[k].end;
        memset(made.readers, 0, sizeof made.readers);
        made.rows = made.of = 0;
        made.writer = c->now;
        if (made.origin != NO_ORIGIN && to->tier != ZINF_TIER_SCALAR)
            made.origin += lo - start;
        else if (role_of(c, to) == GRAD)
            made.origin = grad_origin(c, to);
        if (!claim(c, to, at, hi, &made))
            return false;
        at = hi;
    }
    return !map->failed || no_memory(c);
}

/* ---- running a program ---- */

static bool run(zinf_checker *c, const zinf_segment *s, uint32_t first_visit)
{
    const zinf_instr *instr = &c->plan->instrs[c->index];
    visit *v = &c->visits[++c->now];

    *v = c->visits[c->last[instr->queue]];
    v->instr = c->index;
    v->done[instr->queue] = c->now;
    for (uint32_t w = instr->wait0; w < instr->wait0 + instr->n_waits; w++) {
        const zinf_wait *wait = &c->plan->waits[w];
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
    c->o = &c->plan->operands[instr->operand0];
    c->links = zinf_opcode_get(instr->opcode)->links;
    c->tensor = 0;
    for (uint32_t k = 0; k < instr->n_operands; k++) {
        const zinf_access access = zinf_operand_access(instr, k);
        c->seen[k] = (cell){.value = ZINF_NONE, .made_of = OF_NOTHING};
        c->at[k] = NO_ORIGIN;
        if (c->o[k].bytes && access.reads && !read_operand(c, k, access.writes))
            return false;
    }
    c->made_of = c->seen[0].made_of;
    c->back = c->seen[0].back;
    if (!zinf_checker_operands(c) || (copies(instr->opcode) && !copy(c)))
        return false;
    for (uint32_t k = 0; k < instr->n_operands && !copies(instr->opcode); k++) {
        const zinf_access access = zinf_operand_access(instr, k);
        if (c->o[k].bytes && access.writes && !write_operand(c, k, access.reads))
            return false;
    }
    return c->work <= c->most_work ||
           refuse(c, "C3", 0, NULL, "accesses are in too many pieces to be proved");
}

/* Regions as every program finds them. */
static bool enter(zinf_checker *c)
{
    const cell nothing = {.value = ZINF_NONE, .made_of = OF_NOTHING, .micro = NO_MICRO};

    for (int t = 0; t < ZINF_N_TIERS; t++)
        if (!zinf_intervals_init(&c->maps[t], sizeof nothing, &nothing))
            return no_memory(c);
    for (uint32_t v = 0; v < c->plan->n_values; v++)
        c->contents[v].age = 0;
    if (c->late) {
        const zinf_operand o = {.tier = ZINF_TIER_SCALAR, .value = c->scalars};
        const cell found = {.value = c->scalars, .dtype = ZINF_F64, .micro = NO_MICRO,
                            .made_of = c->plan->n_units};
        if (!claim(c, &o, 8 * ZINF_SCALAR_NORM, 8 * ZINF_SCALAR_PARTIALS, &found))
            return false;
    }
    for (uint32_t u = 0; u < c->plan->n_units; u++) {
        for (state role = PARAM; role <= OPTIMIZER; role++) {
            const zinf_operand o = region(c, u, role);
            const zinf_unit *unit = &c->plan->units[u];
            const cell found = {.value = o.value, .origin = o.offset, .dtype = o.dtype,
                                .made_of = OF_NOTHING, .micro = NO_MICRO};
            const uint32_t values[2] = {o.value, role == PARAM  ? unit->whole_param
                                                 : role == GRAD ? unit->whole_grad : o.value};
            if (o.bytes == 0)
                continue;
            for (int i = 0; i < 2; i++) {
                content *v = values[i] == ZINF_NONE ? NULL : &c->contents[values[i]];
                const state what = i ? role : stored(c, role);
                if (!v || (v->role && (v->role != what || v->unit != u)))
                    return refuse(c, "C4", 0, &o, "a unit's region has no value of its own");
                v->role = what;
                v->unit = u;
            }
            if (!claim(c, &o, o.offset, o.offset + o.bytes, &found))
                return false;
        }
    }
    return true;
}

/* C8: the region holds `bytes` of the latest of its value, from byte `at`. */
static bool holds(zinf_checker *c, uint32_t unit, state role, uint64_t at, uint64_t bytes)
{
    const bool fills = c->kind == ZINF_PROGRAM_INIT || c->kind == ZINF_PROGRAM_LOAD;
    zinf_operand o = region(c, unit, role);
    const uint64_t origin = o.offset, hi = origin + at + bytes;
    zinf_intervals *map = &c->maps[o.tier];

    if (o.bytes == 0 || (fills && !c->contents[o.value].on_entry))
        return true;
    for (uint32_t i = zinf_intervals_cut(map, origin + at, hi); i != ZINF_NO_INTERVAL;
         i = zinf_intervals_next(map, i, hi)) {
        const cell *x = cell_of(c, o.tier, i);
        if (x->value != o.value || x->origin != origin || x->dtype != o.dtype ||
            x->age != c->contents[o.value].age || (fills && !x->writer)) {
            c->index = c->visits[x->writer].instr;
            return refuse(c, "C8", 0, &o, "at the end a unit's region does not hold its state, or "
                          "not the one produced last");
        }
        if (role == GRAD && c->kind == ZINF_PROGRAM_STEP &&
            !zinf_checker_complete(c, unit, x->sums))
            return false;
    }
    return !map->failed || no_memory(c);
}

static bool leave(zinf_checker *c, bool empty)
{
    const zinf_plan *plan = c->plan;
    const bool trains = c->kind == ZINF_PROGRAM_STEP, samples = c->kind == ZINF_PROGRAM_SAMPLE;
    const bool uses = samples || c->kind == ZINF_PROGRAM_EVAL;

    const bool flushes = c->kind == ZINF_PROGRAM_FLUSH;
    const bool moves = flushes ? c->late : !uses;

    c->index = ZINF_NONE;
    for (uint32_t u = 0; u < plan->n_units; u++) {
        const zinf_operand o = region(c, u, OPTIMIZER);
        const uint64_t n = plan->units[u].shard_elems, stride = plan->units[u].array_stride;
        if ((!empty || (flushes && c->late)) && c->tallies[u].updates != moves)
            return refuse(c, "C7", 0, &o, "a unit is not updated or moved exactly once");
        if (!empty && trains && c->late && !c->tallies[u].clipped)
            return refuse(c, "C7", 0, &o, "the norm is not taken of a unit's gradient, from which "
                          "the next step updates it");
        if (!holds(c, u, PARAM, 0, n * zinf_dtype_bytes(plan->job.precision)) ||
            !holds(c, u, OPTIMIZER, 0, 4 * n) || !holds(c, u, OPTIMIZER, stride, 4 * n) ||
            !holds(c, u, OPTIMIZER, 2 * stride, 4 * n) || (c->late && !holds(c, u, GRAD, 0, 4 * n)))
            return false;
    }
    if (c->late && !zinf_checker_pends(c, trains || uses || c->kind == ZINF_PROGRAM_SAVE
                                              ? plan->n_units : 0))
        return refuse(c, "C8", 0, NULL, "at the end the scalars of an update are not those of the "
                      "norm of all units, or after a flush and at the start not zero");
    if (!empty && (trains || uses) &&
        (c->batches != 1 || (samples ? c->logits != plan->model.vocab : uses && c->losses != 1) ||
         (trains && c->n_losses != plan->decisions.accumulation) ||
         (!samples && !zinf_checker_loss_is_whole(c, false))))
        return refuse(c, "C7", 0, NULL, "it must draw one batch and have one loss (or logits) of "
                      "each micro-batch, summed over all and over all ranks");
    return true;
}

/* Iterations to look at: see above. */
static uint64_t n_visits(const zinf_plan *plan, const zinf_segment *s)
{
    bool strides = false;

    for (uint32_t i = s->first_instr; i < s->first_instr + s->n_instrs; i++)
        for (uint32_t k = 0; k < plan->instrs[i].n_operands; k++)
            strides |= plan->operands[plan->instrs[i].operand0 + k].stride &&
                       zinf_operand_access(&plan->instrs[i], k).writes;
    return strides || s->count < ZINF_UNROLL ? s->count : ZINF_UNROLL;
}

static bool check_program(zinf_checker *c, uint32_t kind)
{
    const zinf_program *program = &c->plan->programs[kind];
    const zinf_segment *segments = &c->plan->segments[program->first_segment];
    uint64_t total = 1, unrolled = 0;

    c->kind = kind;
    c->work = c->age = c->n_losses = c->now = c->logits = c->losses = c->clips = c->batches = 0;
    memset(c->last, 0, sizeof c->last);
    memset(c->tallies, 0, c->plan->n_units * sizeof *c->tallies);
    for (uint32_t s = 0; s < program->n_segments; s++) {
        const uint64_t visits = n_visits(c->plan, &segments[s]);
        c->index = segments[s].first_instr;
        total += visits * segments[s].n_instrs; /* less than 2^62 */
        unrolled += visits > ZINF_UNROLL ? visits * segments[s].n_instrs : 0;
        if (unrolled > MOST_VISITS)
            return refuse(c, "C3", 0, NULL,
                          "its loop writes with a stride and is too long to be proved");
    }
    visit *visits = total < UINT32_MAX ? realloc(c->visits, total * sizeof *visits) : NULL;
    if (!visits)
        return no_memory(c);
    c->visits = visits;
    c->index = ZINF_NONE;
    c->most_work = LEAST_WORK + EACH_WORK * (total + c->plan->n_units);
    if (!enter(c))
        return false;
    for (uint32_t s = 0; s < program->n_segments; s++) {
        const uint64_t n = n_visits(c->plan, &segments[s]);
        const uint32_t first_visit = c->now + 1;
        c->count = segments[s].count;
        c->unvisited = c->n_losses - c->losses;
        c->exact = n == c->count;
        for (c->iteration = 0; c->iteration < n; c->iteration++) {
            c->age++;
            for (uint32_t i = 0; i < segments[s].n_instrs; i++) {
                c->index = segments[s].first_instr + i;
                if (!run(c, &segments[s], first_visit))
                    return false;
            }
        }
    }
    return leave(c, program->n_segments == 0);
}

zinf_status zinf_plan_check(const zinf_plan *plan, zinf_error *err)
{
    /* INIT and LOAD last: by then it is known what the others need on entry. */
    static const zinf_program_kind order[ZINF_N_PROGRAMS] = {
        ZINF_PROGRAM_STEP, ZINF_PROGRAM_FLUSH, ZINF_PROGRAM_EVAL, ZINF_PROGRAM_SAMPLE,
        ZINF_PROGRAM_SAVE, ZINF_PROGRAM_INIT, ZINF_PROGRAM_LOAD};
    zinf_checker c = {.plan = plan, .err = err, .sharded = plan->decisions.ranks > 1,
                      .late = plan->decisions.optimizer_time == ZINF_IN_FORWARD,
                      .scalars = ZINF_NONE};

    if (zinf_plan_validate(plan, err))
        return err->status;
    for (uint32_t i = 0; i < plan->n_instrs; i++)
        if (plan->instrs[i].opcode == ZINF_OP_CLIP)
            c.scalars = plan->operands[plan->instrs[i].operand0 + 1].value;
    const struct {
        void *array;
        size_t n, size;
    } arrays[] = {
#define ARRAY(field, n) {&c.field, (n) + (size_t)1, sizeof *c.field}
        ARRAY(contents, plan->n_values), ARRAY(tallies, plan->n_units),
        ARRAY(uses, 2 * (size_t)plan->n_tensors), ARRAY(stack, plan->n_tensors),
        ARRAY(stack_rows, plan->n_tensors), ARRAY(branches, plan->n_tensors),
        ARRAY(latest, plan->n_instrs), ARRAY(visits, 0), ARRAY(pieces, 0)};
    enum { N_ARRAYS = sizeof arrays / sizeof *arrays };
    bool ok = true;
    for (int i = 0; i < N_ARRAYS; i++)
        ok = (*(void **)arrays[i].array = calloc(arrays[i].n, arrays[i].size)) && ok;
    if (ok)
        c.visits[0].instr = ZINF_NONE;
    else
        no_memory(&c);
    for (uint32_t t = 0; ok && t < plan->n_tensors; t++) {
        c.stack[t] = plan->tensors[t].stack_row ? c.stack[t - 1] : t;
        c.stack_rows[c.stack[t]] = plan->tensors[t].stack_row + plan->tensors[t].rows;
        c.uses[t].x = c.uses[t + plan->n_tensors].x = UNKNOWN;
        c.branches[t] = OF_NOTHING;
    }
    for (int k = 0; ok && k < ZINF_N_PROGRAMS; k++)
        ok = check_program(&c, order[k]);
    ok = ok && zinf_checker_statements(&c);
    for (int t = 0; t < ZINF_N_TIERS; t++)
        zinf_intervals_free(&c.maps[t]);
    for (int i = 0; i < N_ARRAYS; i++)
        free(*(void **)arrays[i].array);
    return ok ? ZINF_OK : err->status;
}
