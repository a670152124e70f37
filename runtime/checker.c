/* runtime/checker.c - the rules C1 to C8, proved by running each program once, symbolically.
 *
 * Instructions are visited in program order, which is one order the machine may take. For every
 * byte the map knows the last writer and the readers since; vector clocks over the queues say
 * what surely finished before the instruction visited. So a conflict that no wait orders is found
 * whatever the order of execution would have been.
 *
 * Loops. A segment with count n is visited min(n, 3) times. Two accesses are ordered by queue
 * order and waits alone, both the same in every iteration, and every path of waits leads
 * forward; so the order between iterations i and j depends on j - i only. Without strides an
 * iteration touches what every other touches: iteration 0 meets the state before the loop,
 * iteration 1 the state an iteration leaves (iteration 2 leaves the same), and what is ordered
 * between neighbours is ordered at any distance by queue order. Waits of distance 3 and more are
 * not counted on. An operand with a stride that is only read counts, in every iteration, as
 * reading what all iterations read; a segment that writes with a stride is visited in full, and
 * refused where that is too long.
 *
 * Contents. Bytes know the value last written and its generation: a number that grows with each
 * iteration (and at ADAM), so that what an earlier micro-batch left does not pass for this one's.
 * Copies carry contents along, padding included; what is not a value's bytes stays unreadable.
 * Gradients also count their contributions, per byte.
 */
#include "runtime/checker.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/checker_map.h"
#include "runtime/opcodes.h"

enum { UNROLL = 3, GENERATION = 4, MOST_VISITS = 1 << 22 };
typedef enum zinf_role { ROLE_NONE, ROLE_PARAM, ROLE_GRAD, ROLE_OPTIMIZER } zinf_role;

/* What is known of a value. */
typedef struct zinf_content {
    uint64_t generation; /* of the latest production */
    uint32_t unit, role; /* unit ZINF_NONE: belongs to no region */
    bool on_entry;       /* some program reads it as its predecessor left it */
    bool batch;          /* tokens: micro-batch i is the i-th part */
} zinf_content;

typedef struct zinf_tally {
    uint32_t norm_sums[2]; /* contributions in the gradient whose norm was taken last */
    uint32_t updates;      /* ADAM, or INIT, IMPORT, EXPORT */
    uint32_t inputs, weights; /* LINEAR_BACKWARD_INPUT, _WEIGHT that served it */
    uint8_t uses;      /* bit 0: parameter read by the embedding, bit 1: by others */
    uint8_t step_uses; /* the same, in STEP */
} zinf_tally;

typedef struct zinf_checker {
    const zinf_plan *plan;
    zinf_error *err;
    zinf_map maps[ZINF_N_TIERS];
    zinf_content *contents;              /* [n_values] */
    zinf_tally *tallies;                 /* [n_units] */
    zinf_cell *pieces;                   /* of a copy; lo, hi: addresses at the source */
    uint32_t (*clocks)[ZINF_N_QUEUES];   /* per visit: what surely finished, itself included */
    uint32_t *first_visit, *visits;      /* per segment of the program */
    const uint32_t *before[ZINF_N_QUEUES]; /* clock of the latest visit in each queue, or NULL */
    uint32_t now[ZINF_N_QUEUES];         /* clock of the instruction visited */
    uint32_t next_clock[ZINF_N_QUEUES];
    uint64_t generation, count, iteration; /* count, iteration: of the segment visited */
    uint64_t n_losses;                     /* weighted by the counts of segments */
    int64_t origin;                        /* of the first byte of the operand being read */
    uint32_t cap_pieces, kind, index, visits_losses, losses_before, clips, batches;
} zinf_checker;

static const zinf_instr *instr_of(const zinf_checker *c, uint32_t i)
{
    return &c->plan->instrs[i];
}

static void name_instr(const zinf_checker *c, uint32_t i, char text[160])
{
    snprintf(text, 160, "instruction %" PRIu32 " (%s \"%.80s\")", i,
             zinf_opcode_get(instr_of(c, i)->opcode)->name,
             &c->plan->strings[instr_of(c, i)->name]);
}

/* Rule, program, instruction(s), bytes, and what is wrong. other, o: or ZINF_NONE, NULL. */
static bool refuse(zinf_checker *c, const char *rule, uint32_t index, uint32_t other,
                   const zinf_operand *o, uint64_t lo, uint64_t hi, const char *wrong)
{
    char one[160] = "", two[160] = "", bytes[120] = "", value[100] = "";

    if (index != ZINF_NONE)
        name_instr(c, index, one);
    if (other != ZINF_NONE)
        name_instr(c, other, two);
    if (o)
        snprintf(bytes, sizeof bytes, ", %s bytes [%" PRIu64 ", %" PRIu64 ")",
                 zinf_tier_name(o->tier), lo, hi);
    if (o && o->value != ZINF_NONE)
        snprintf(value, sizeof value, ", \"%.80s\"", &c->plan->strings[c->plan->values[o->value]]);
    zinf_fail(c->err, ZINF_DOES_NOT_FIT, "%s: program %s, %s%s%s%s%s: %s", rule,
              zinf_program_name(c->kind), one, *two ? " after " : "", two, bytes, value, wrong);
    return false;
}

static bool refuse_operand(zinf_checker *c, const char *rule, const zinf_operand *o,
                           const char *wrong)
{
    return refuse(c, rule, c->index, ZINF_NONE, o, o->offset, o->offset + o->bytes, wrong);
}

static bool is_copy(unsigned opcode)
{
    return opcode >= ZINF_OP_UPLOAD && opcode <= ZINF_OP_COPY;
}

/* As opcodes.h says, with what the flag means to the classifier's two gradients. */
static zinf_access access_of(const zinf_instr *instr, unsigned slot)
{
    zinf_access access = zinf_operand_access(instr, slot);

    if ((instr->opcode == ZINF_OP_CLASSIFIER || instr->opcode == ZINF_OP_CLASSIFIER_BACKWARD) &&
        (slot == 4 || slot == 5))
        access.reads = instr->attr[3] >> (slot - 4) & 1;
    return access;
}

static const zinf_region *region_of(const zinf_checker *c, uint32_t value)
{
    if (value == ZINF_NONE || c->contents[value].role == ROLE_NONE)
        return NULL;
    const zinf_unit *u = &c->plan->units[c->contents[value].unit];
    const unsigned role = c->contents[value].role;
    return role == ROLE_PARAM ? &u->param : role == ROLE_GRAD ? &u->grad : &u->optimizer;
}

/* The region's first byte, if the operand lies in its own value's region. */
static int64_t home_of(const zinf_checker *c, const zinf_operand *o)
{
    const zinf_region *r = region_of(c, o->value);

    if (!r || r->tier != o->tier || o->offset < r->offset || o->offset >= r->offset + r->bytes)
        return ZINF_NO_ORIGIN;
    return (int64_t)r->offset;
}

static zinf_span span_of(const zinf_checker *c, const zinf_operand *o, bool writes)
{
    const uint64_t element = zinf_dtype_bytes(o->dtype), strides = o->stride * (c->count - 1);
    zinf_span s = {o->offset, o->offset + o->bytes, 0, 0};

    if (writes || o->stride == 0) {
        s.lo += o->stride * c->iteration;
        s.hi += o->stride * c->iteration;
    } else if (o->stride > o->bytes && o->ld == o->cols) {
        return (zinf_span){s.lo, s.hi + strides, c->count > 1 ? o->stride : 0, o->bytes};
    } else {
        s.hi += strides;
        return s;
    }
    if (o->rows > 1 && o->ld > o->cols) {
        s.pitch = o->ld * element;
        s.cols = o->cols * element;
    }
    return s;
}

static uint64_t n_visits(const zinf_checker *c, const zinf_segment *s)
{
    bool strides = false;

    for (uint32_t i = s->first_instr; i < s->first_instr + s->n_instrs; i++)
        for (uint32_t k = 0; k < instr_of(c, i)->n_operands; k++)
            strides |= c->plan->operands[instr_of(c, i)->operand0 + k].stride &&
                       access_of(instr_of(c, i), k).writes;
    return strides || s->count < UNROLL ? s->count : UNROLL;
}

/* The instruction that was visit number `clock` of this queue; for messages. */
static uint32_t instr_at(const zinf_checker *c, unsigned queue, uint32_t clock)
{
    const zinf_program *program = &c->plan->programs[c->kind];

    for (uint32_t k = 0; k < program->n_segments; k++) {
        const zinf_segment *s = &c->plan->segments[program->first_segment + k];
        for (uint32_t it = 0; it < c->visits[k]; it++)
            for (uint32_t i = s->first_instr; i < s->first_instr + s->n_instrs; i++)
                if (instr_of(c, i)->queue == queue && --clock == 0)
                    return i;
    }
    return ZINF_NONE;
}

/* ---- C3: ordered with the last writer and, for a write, with the readers since ---- */

static bool ordered(zinf_checker *c, const zinf_operand *o, const zinf_hit *hit, bool writes)
{
    const zinf_cell *cell = &c->maps[o->tier].cells[hit->cell];
    const unsigned mine = instr_of(c, c->index)->queue;

    if (cell->writer != ZINF_NONE && cell->writer_queue != mine &&
        c->now[cell->writer_queue] < cell->writer_clock)
        return refuse(c, "C3", c->index, cell->writer, o, hit->lo, hit->hi,
                      writes ? "two writes that no wait orders; wait for the first"
                             : "a read that does not wait for the write of its bytes");
    for (unsigned q = 0; writes && q < ZINF_N_QUEUES; q++) {
        if (q != mine && cell->reader_clock[q] > c->now[q])
            return refuse(c, "C3", c->index, instr_at(c, q, cell->reader_clock[q]), o, hit->lo,
                          hit->hi, "a write that does not wait for the read of its bytes");
    }
    return true;
}

/* ---- C4: what is read is the value meant, whole and of this iteration ---- */

/* A parameter's operand, or its gradient's, is whole rows of one tensor as the unit's parts say:
 * the first of them in ret_row. */
static bool inside_part(const zinf_checker *c, const zinf_operand *o, int64_t origin,
                        uint64_t *ret_row)
{
    const zinf_unit *u = &c->plan->units[c->contents[o->value].unit];
    const uint64_t element = zinf_dtype_bytes(o->dtype);
    const uint64_t at = (o->offset - (uint64_t)origin) / element, n = o->bytes / element;

    for (uint32_t p = u->first_part; p < u->first_part + u->n_parts; p++) {
        const zinf_part *part = &c->plan->parts[p];
        const uint64_t cols = c->plan->tensors[part->tensor].cols;
        if (at < part->at || at + n > part->at + part->n_rows * cols)
            continue;
        *ret_row = part->first_row + (at - part->at) / cols;
        return (at - part->at) % cols == 0 && n % cols == 0;
    }
    *ret_row = 0;
    return at == 0 && n == u->n_elems;
}

/* First row in its tensor of a tile of a linear's weight, or of the gradient of it. */
static bool row_of(zinf_checker *c, const zinf_operand *o, uint64_t *ret_row)
{
    const zinf_content *content = o->value == ZINF_NONE ? NULL : &c->contents[o->value];
    int64_t origin = home_of(c, o);

    if (!content || (content->role != ROLE_PARAM && content->role != ROLE_GRAD))
        return false;
    if (content->role == ROLE_PARAM && origin == ZINF_NO_ORIGIN) {
        zinf_map *map = &c->maps[o->tier];
        zinf_map_touch(map, (zinf_span){o->offset, o->offset + o->bytes, 0, 0});
        origin = map->cells[map->hits[0].cell].origin;
    }
    if (origin == ZINF_NO_ORIGIN && o->bytes == c->plan->units[content->unit].n_elems *
                                                    zinf_dtype_bytes(o->dtype))
        origin = (int64_t)o->offset;
    return origin != ZINF_NO_ORIGIN && inside_part(c, o, origin, ret_row);
}

/* Where in its matrix a tile reads: a tile of a linear's output has the columns of its rows. */
static bool right_place(zinf_checker *c, const zinf_operand *o, int64_t origin)
{
    const zinf_instr *instr = instr_of(c, c->index);
    const zinf_operand *operands = &c->plan->operands[instr->operand0];
    const int64_t at = (int64_t)(o->offset + o->stride * c->iteration) - origin;
    const long slot = o - operands;
    uint64_t row = 0;

    if (c->contents[o->value].batch) {
        const int64_t number = at / (int64_t)o->bytes;
        return at == number * (int64_t)o->bytes && number >= c->losses_before &&
               number <= (int64_t)c->visits_losses - (instr->opcode == ZINF_OP_EMBEDDING_BACKWARD);
    }
    if ((instr->opcode == ZINF_OP_LINEAR_FORWARD && slot == 3) ||
        (instr->opcode == ZINF_OP_LINEAR_BACKWARD_INPUT && slot == 0)) {
        if (!row_of(c, &operands[1], &row))
            return true;
    } else if (instr->opcode == ZINF_OP_LINEAR_BACKWARD_WEIGHT && slot == 0) {
        if (!row_of(c, &operands[2], &row))
            return true;
    } else if (is_copy(instr->opcode) || (o->rows > 1 && o->ld > o->cols)) {
        return true;
    }
    return at == (int64_t)(row * zinf_dtype_bytes(o->dtype));
}

static bool right_value(zinf_checker *c, const zinf_operand *o, const zinf_hit *hit, bool first,
                        bool writes)
{
    zinf_cell *cell = &c->maps[o->tier].cells[hit->cell];
    const zinf_instr *instr = instr_of(c, c->index);
    const bool copies = is_copy(instr->opcode), scalar = o->tier == ZINF_TIER_SCALAR;
    const zinf_content *content = &c->contents[o->value];
    uint64_t row;

    if (!first && (copies || scalar) && (copies || cell->value != ZINF_NONE))
        return true;
    if (cell->value != o->value) {
        const bool grad = writes && content->role == ROLE_GRAD && cell->value == ZINF_NONE;
        char wrong[160];
        snprintf(wrong, sizeof wrong, "reads bytes that hold %s%.80s%s",
                 cell->value == ZINF_NONE ? "nothing of it" : "\"",
                 cell->value == ZINF_NONE ? ""
                                          : &c->plan->strings[c->plan->values[cell->value]],
                 cell->value == ZINF_NONE ? "" : "\"");
        return refuse(c, grad ? "C7" : "C4", c->index, cell->writer, o, hit->lo, hit->hi,
                      grad ? "adds to a gradient that this step has not begun" : wrong);
    }
    const bool grad_copy = copies && content->role == ROLE_GRAD; /* sums will tell */
    const bool sum = grad_copy || (writes && (content->role == ROLE_GRAD || scalar));
    if (instr->opcode == ZINF_OP_ACCUMULATE && !sum && cell->generation < c->generation)
        return refuse(c, "C7", c->index, cell->writer, o, hit->lo, hit->hi,
                      "adds what an earlier iteration left, again");
    if (!sum && cell->generation < content->generation)
        return refuse(c, content->role == ROLE_GRAD ? "C7" : "C4", c->index, cell->writer, o, hit->lo, hit->hi,
                      "reads an old copy, the value was produced anew since");
    if (writes && !sum && content->role == ROLE_NONE && cell->generation < c->generation)
        return refuse(c, "C4", c->index, cell->writer, o, hit->lo, hit->hi,
                      "adds to what an earlier iteration left");
    if (!copies && cell->dtype != o->dtype)
        return refuse(c, "C4", c->index, cell->writer, o, hit->lo, hit->hi,
                      "reads as another element type than was written");
    if (first)
        c->origin = cell->origin;
    if (cell->origin != c->origin)
        return refuse(c, "C4", c->index, cell->writer, o, hit->lo, hit->hi,
                      "reads pieces of the value that lie at other distances than in it");
    if (!copies && first && cell->origin != ZINF_NO_ORIGIN && content->role == ROLE_PARAM &&
        !inside_part(c, o, cell->origin, &row))
        return refuse(c, "C4", c->index, cell->writer, o, hit->lo, hit->hi,
                      "is not whole rows of one tensor of the unit");
    if (cell->writer == ZINF_NONE)
        c->contents[o->value].on_entry = true;
    return true;
}

static bool read_operand(zinf_checker *c, const zinf_operand *o, bool writes)
{
    const bool placed = o->value != ZINF_NONE && c->contents[o->value].role == ROLE_NONE &&
                        o->tier != ZINF_TIER_SCALAR && !writes;
    zinf_map *map = &c->maps[o->tier];
    const unsigned queue = instr_of(c, c->index)->queue;

    if (o->value == ZINF_NONE)
        return refuse_operand(c, "C4", o, "reads scratch");
    zinf_map_touch(map, span_of(c, o, writes));
    for (uint32_t h = 0; h < map->n_hits && !map->failed; h++) {
        if (!ordered(c, o, &map->hits[h], false) ||
            !right_value(c, o, &map->hits[h], h == 0, writes))
            return false;
        map->cells[map->hits[h].cell].reader_clock[queue] = c->next_clock[queue];
    }
    if (placed && c->origin != ZINF_NO_ORIGIN && !map->failed && !right_place(c, o, c->origin))
        return refuse_operand(c, "C4", o, c->contents[o->value].batch
                                  ? "is not the tokens of this micro-batch"
                                  : "is not at its place in the matrix");
    return true;
}

/* ---- writes ---- */

static bool unread(const zinf_cell *cell)
{
    uint32_t readers = 0;

    for (int q = 0; q < ZINF_N_QUEUES; q++)
        readers |= cell->reader_clock[q];
    return readers == 0;
}

static bool write_operand(zinf_checker *c, const zinf_operand *o, unsigned slot, bool reads)
{
    const zinf_instr *instr = instr_of(c, c->index);
    const zinf_operand *operands = &c->plan->operands[instr->operand0];
    const zinf_span span = span_of(c, o, true);
    zinf_map *map = &c->maps[o->tier];
    const int64_t home = home_of(c, o);
    zinf_content *content = o->value == ZINF_NONE ? NULL : &c->contents[o->value];
    const bool grad = content && content->role == ROLE_GRAD;
    zinf_cell made = {.value = o->value, .writer = c->index, .writer_queue = instr->queue,
                      .writer_clock = c->next_clock[instr->queue], .dtype = o->dtype,
                      .origin = home};
    uint32_t sums[2] = {instr->opcode == ZINF_OP_EMBEDDING_BACKWARD,
                        instr->opcode != ZINF_OP_EMBEDDING_BACKWARD};

    const char letter = zinf_opcode_get(instr->opcode)->access[slot] | 0x20;
    uint64_t row = 0;

    if (instr->opcode == ZINF_OP_ZERO)
        sums[1] = 0;
    if (content && content->role == ROLE_NONE && o->tier != ZINF_TIER_SCALAR) {
        if (o->rows == 1 || o->ld == o->cols)
            made.origin = (int64_t)span.lo;
        else if (instr->opcode == ZINF_OP_LINEAR_FORWARD && row_of(c, &operands[1], &row))
            made.origin = (int64_t)(span.lo - row * zinf_dtype_bytes(o->dtype));
        content->batch |= instr->opcode == ZINF_OP_BATCH;
    }
    if (instr->opcode == ZINF_OP_ACCUMULATE) { /* all bytes of the source have one history */
        const zinf_map *from = &c->maps[operands[0].tier];
        zinf_map_touch(&c->maps[operands[0].tier], span_of(c, &operands[0], false));
        memcpy(sums, from->cells[from->hits[0].cell].sums, sizeof sums);
        for (uint32_t h = 1; grad && h < from->n_hits; h++)
            if (memcmp(sums, from->cells[from->hits[h].cell].sums, sizeof sums))
                return refuse_operand(c, "C7", &operands[0], "adds parts of unequal history");
    }
    if (content) {
        made.generation = c->generation + (instr->opcode == ZINF_OP_ADAM);
        if (made.generation < content->generation)
            made.generation = content->generation;
        if (!is_copy(instr->opcode))
            content->generation = made.generation;
        if (grad && !is_copy(instr->opcode) && c->tallies[content->unit].updates)
            return refuse_operand(c, "C7", o, "a gradient written after the unit's update");
        if (grad && home != ZINF_NO_ORIGIN && !is_copy(instr->opcode) &&
            !inside_part(c, o, home, &row))
            return refuse_operand(c, "C7", o, "is not whole rows of one tensor of the unit");
    }
    memcpy(made.sums, sums, sizeof sums);
    zinf_map_touch(map, span);
    for (uint32_t h = 0; h < map->n_hits && !map->failed; h++) {
        zinf_cell *cell = &map->cells[map->hits[h].cell];
        if (!ordered(c, o, &map->hits[h], true))
            return false;
        if (!reads && content && cell->value == o->value && cell->writer != ZINF_NONE &&
            letter == 'a' && (o->tier == ZINF_TIER_SCALAR ||
                              (grad && home != ZINF_NO_ORIGIN && o->tier != ZINF_TIER_NVME) ||
                              (cell->generation >= c->generation && unread(cell))))
            return refuse(c, "C7", c->index, cell->writer, o, map->hits[h].lo, map->hits[h].hi,
                          "overwrites a sum it should add to");
        if (!reads)
            continue;
        if (map->hits[h].foreign)
            return refuse_operand(c, "C4", o, "adds to a matrix of other row length");
        const zinf_cell old = *cell;
        *cell = made;
        cell->lo = old.lo;
        cell->hi = old.hi;
        cell->next = old.next;
        cell->origin = old.origin;
        for (int i = 0; i < 2; i++)
            cell->sums[i] += old.sums[i];
    }
    if (!reads)
        zinf_map_write(map, span, &made);
    return true;
}

/* The destination takes over what the source holds, byte for byte. */
static bool copy_contents(zinf_checker *c, const zinf_operand *from, const zinf_operand *to)
{
    zinf_map *source = &c->maps[from->tier], *map = &c->maps[to->tier];
    const zinf_span there = span_of(c, to, true);
    zinf_span here = span_of(c, from, true); /* this iteration's, for the distance */
    const int64_t shift = (int64_t)(there.lo - here.lo), home = home_of(c, to);
    uint32_t n = 0;

    zinf_map_touch(source, here);
    n = source->n_hits;
    if (n > c->cap_pieces) {
        zinf_cell *grown = realloc(c->pieces, 2 * n * sizeof *grown);
        if (!grown)
            return zinf_fail(c->err, ZINF_MACHINE, "out of memory while checking the plan"), false;
        c->pieces = grown;
        c->cap_pieces = 2 * n;
    }
    for (uint32_t h = 0; h < n; h++) {
        c->pieces[h] = source->cells[source->hits[h].cell];
        if (h && source->hits[h].lo == source->hits[h - 1].lo &&
            (c->pieces[h].value != c->pieces[h - 1].value ||
             c->pieces[h].generation != c->pieces[h - 1].generation))
            c->pieces[h].value = ZINF_NONE; /* columns that do not belong together */
        c->pieces[h].lo = source->hits[h].lo;
        c->pieces[h].hi = source->hits[h].hi;
    }
    if (!write_operand(c, to, 1, false))
        return false;
    for (uint32_t h = 0; h < n; h++) {
        zinf_cell piece = c->pieces[h];
        zinf_span span = {piece.lo + (uint64_t)shift, piece.hi + (uint64_t)shift, 0, 0};
        const zinf_instr *instr = instr_of(c, c->index);
        if (piece.value == to->value && piece.origin != ZINF_NO_ORIGIN)
            piece.origin += shift;
        else
            piece.origin = home;
        if (piece.value == to->value && home != ZINF_NO_ORIGIN && piece.origin != home)
            return refuse_operand(c, "C4", to, "lands elsewhere in its region than it came from");
        if (piece.value != to->value)
            piece.value = ZINF_NONE;
        piece.writer = c->index;
        piece.writer_queue = instr->queue;
        piece.writer_clock = c->next_clock[instr->queue];
        memset(piece.reader_clock, 0, sizeof piece.reader_clock);
        zinf_map_touch(map, span);
        zinf_map_write(map, span, &piece);
    }
    return true;
}

/* ---- C7, C8: what the step as a whole must have done ---- */

/* The operand belongs to the unit in that role and has this size, at the value's byte `at`. What
 * is to be overwritten (reads false) says nothing of where the value begins. */
static bool is_array(zinf_checker *c, const zinf_operand *o, bool reads, uint32_t unit,
                     zinf_role role, uint64_t bytes, uint64_t at)
{
    zinf_map *map = &c->maps[o->tier];
    const zinf_content *content = o->value == ZINF_NONE ? NULL : &c->contents[o->value];

    if (!content || content->role != role || content->unit != unit || o->bytes != bytes ||
        o->dtype != (role == ROLE_PARAM ? c->plan->job.precision : ZINF_F32))
        return refuse_operand(c, "C7", o, "is not the unit's own array, whole");
    zinf_map_touch(map, span_of(c, o, true));
    const zinf_cell *cell = &map->cells[map->hits[0].cell];
    int64_t origin = home_of(c, o);
    if (origin == ZINF_NO_ORIGIN && reads && cell->value == o->value)
        origin = cell->origin;
    if (origin != ZINF_NO_ORIGIN && origin + (int64_t)at != (int64_t)o->offset)
        return refuse_operand(c, "C7", o, "is not at its place in the unit's state");
    return true;
}

/* master, m and v of the unit in operands o[0 .. 2]. */
static bool is_state(zinf_checker *c, const zinf_operand *o, bool reads, uint32_t unit)
{
    const zinf_unit *u = &c->plan->units[unit];

    for (uint64_t i = 0; i < 3; i++) {
        if (!is_array(c, &o[i], reads, unit, ROLE_OPTIMIZER, 4 * u->n_elems,
                      i * u->array_stride))
            return false;
        if (o[i].tier != o[0].tier || o[i].offset != o[0].offset + i * u->array_stride)
            return refuse_operand(c, "C7", &o[i], "is not at its distance from the master copy");
    }
    return true;
}

/* Contributions in a gradient; every byte must have the same. */
static bool sums_of(zinf_checker *c, const zinf_operand *o, uint32_t ret[2])
{
    zinf_map *map = &c->maps[o->tier];

    zinf_map_touch(map, span_of(c, o, true));
    for (uint32_t h = 0; h < map->n_hits; h++) {
        const zinf_cell *cell = &map->cells[map->hits[h].cell];
        if (h == 0)
            memcpy(ret, cell->sums, sizeof cell->sums);
        else if (memcmp(ret, cell->sums, sizeof cell->sums))
            return refuse(c, "C7", c->index, cell->writer, o, map->hits[h].lo, map->hits[h].hi,
                          "parts of the gradient were added to more often than others");
    }
    return true;
}

static bool complete(zinf_checker *c, uint32_t unit, const uint32_t sums[2], const char *what)
{
    char wrong[300];

    for (int i = 0; i < 2; i++) {
        uint32_t want = c->tallies[unit].uses >> i & 1 ? c->visits_losses : 0;
        if (sums[i] == want)
            continue;
        snprintf(wrong, sizeof wrong, "%s of unit \"%.60s\" is of %" PRIu32 " contributions of "
                 "the %s where %" PRIu32 " are due (loops visited %d times at most)", what,
                 c->plan->units[unit].name, sums[i], i ? "operators" : "embedding", want, UNROLL);
        return refuse(c, "C7", c->index, ZINF_NONE, NULL, 0, 0, wrong);
    }
    return true;
}

static bool check_role(zinf_checker *c)
{
    const zinf_plan *plan = c->plan;
    const zinf_instr *instr = instr_of(c, c->index);
    const zinf_operand *o = &plan->operands[instr->operand0];
    const bool step = c->kind == ZINF_PROGRAM_STEP;
    const uint32_t unit = instr->unit;
    uint32_t sums[2];
    uint64_t row, bias;

    switch (instr->opcode) {
    case ZINF_OP_BATCH:
        if (c->count != 1 || c->batches++)
            return refuse_operand(c, "C7", o, "the batch is drawn more than once");
        break;
    case ZINF_OP_EMBEDDING_FORWARD:
    case ZINF_OP_CLASSIFIER_FORWARD:
    case ZINF_OP_CLASSIFIER_BACKWARD:
    case ZINF_OP_CLASSIFIER:
        if (row_of(c, &o[1], &row) &&
            (row != instr->attr[0] ||
             (plan->units[c->contents[o[1].value].unit].n_parts == 1 &&
              o[1].rows * o[1].cols != plan->units[c->contents[o[1].value].unit].n_elems)))
            return refuse_operand(c, "C4", &o[1], "is not the whole tile, from the row of attr0");
        break;
    case ZINF_OP_EMBEDDING_BACKWARD:
        if (row_of(c, &o[2], &row) && row != instr->attr[0])
            return refuse_operand(c, "C4", &o[2], "does not begin at the row that attr0 says");
        break;
    case ZINF_OP_LINEAR_FORWARD:
        if (o[2].bytes && row_of(c, &o[1], &row) && row_of(c, &o[2], &bias) && row != bias)
            return refuse_operand(c, "C4", &o[2], "is not the bias of these rows");
        break;
    case ZINF_OP_LINEAR_BACKWARD_INPUT:
        if (c->contents[o[1].value].role == ROLE_PARAM)
            c->tallies[c->contents[o[1].value].unit].inputs++;
        break;
    case ZINF_OP_LINEAR_BACKWARD_WEIGHT:
        if (o[2].value != ZINF_NONE && c->contents[o[2].value].role == ROLE_GRAD)
            c->tallies[c->contents[o[2].value].unit].weights++;
        break;
    case ZINF_OP_LOSS:
        if (o[1].tier != ZINF_TIER_SCALAR || o[1].offset != 8 * ZINF_SCALAR_LOSS)
            return refuse_operand(c, "C7", &o[1], "is not the slot of the loss");
        if (o[0].rows != plan->decisions.micro_batch * plan->job.sequence)
            return refuse_operand(c, "C7", o, "is not every token of the micro-batch");
        c->n_losses += c->iteration == 0 ? c->count : 0;
        c->visits_losses++;
        if (c->clips)
            return refuse_operand(c, "C7", o, "a micro-batch after the global norm");
        break;
    case ZINF_OP_SUM_OF_SQUARES:
        if (unit >= plan->n_units ||
            o[1].offset != 8 * ((uint64_t)ZINF_SCALAR_PARTIALS + unit))
            return refuse_operand(c, "C7", &o[1], "is not the slot of the unit it serves");
        return is_array(c, o, true, unit, ROLE_GRAD, 4 * plan->units[unit].n_elems, 0) &&
               sums_of(c, o, c->tallies[unit].norm_sums);
    case ZINF_OP_CLIP:
        if (c->count != 1 || c->clips++)
            return refuse_operand(c, "C7", o, "the global norm is taken more than once");
        if (o[0].offset != 8 * ZINF_SCALAR_PARTIALS || o[0].bytes != 8 * (uint64_t)plan->n_units)
            return refuse_operand(c, "C7", o, "is not every unit's partial norm");
        for (uint32_t u = 0; u < plan->n_units; u++)
            if (!complete(c, u, c->tallies[u].norm_sums, "the norm"))
                return false;
        break;
    case ZINF_OP_ADAM:
        if (!step || unit >= plan->n_units || c->count != 1 || c->tallies[unit].updates++)
            return refuse_operand(c, "C7", o, "a unit is updated once per step, in no loop");
        if (c->tallies[unit].inputs != c->tallies[unit].weights)
            return refuse_operand(c, "C7", o, "its linear gives input and weight gradients not "
                                  "equally often");
        if (instr->attr[0] != plan->units[unit].decays || c->clips == 0 ||
            o[5].offset != 8 * ZINF_SCALAR_NORM)
            return refuse_operand(c, "C7", o, "wrong weight decay or clip factor");
        return is_array(c, o, true, unit, ROLE_GRAD, 4 * plan->units[unit].n_elems, 0) &&
               is_state(c, &o[1], true, unit) &&
               is_array(c, &o[4], false, unit, ROLE_PARAM, plan->units[unit].n_elems *
                        zinf_dtype_bytes(plan->job.precision), 0) &&
               sums_of(c, o, sums) && complete(c, unit, sums, "the gradient");
    case ZINF_OP_INIT:
    case ZINF_OP_IMPORT:
    case ZINF_OP_EXPORT:
        if (unit >= plan->n_units || c->count != 1 || c->tallies[unit].updates++)
            return refuse_operand(c, "C7", o, "a unit's state moves once, in no loop");
        return is_state(c, o, instr->opcode == ZINF_OP_EXPORT, unit);
    default:
        break;
    }
    return true;
}

/* The region still holds its value, or holds the latest of it, at the end. */
static bool region_holds(zinf_checker *c, uint32_t unit, const zinf_region *r, uint64_t at,
                         uint64_t bytes, unsigned dtype)
{
    zinf_map *map = &c->maps[r->tier];
    const zinf_operand o = {.tier = (uint8_t)r->tier, .value = r->value};
    const uint64_t first = r->offset + at;
    char wrong[200];

    zinf_map_touch(map, (zinf_span){first, first + bytes, 0, 0});
    for (uint32_t h = 0; h < map->n_hits; h++) {
        const zinf_cell *cell = &map->cells[map->hits[h].cell];
        if (cell->value == r->value && cell->dtype == dtype &&
            cell->generation >= c->contents[r->value].generation)
            continue;
        snprintf(wrong, sizeof wrong, "at the end the region of unit \"%.60s\" %s",
                 c->plan->units[unit].name, cell->value == r->value
                     ? "holds the old state, not the one produced" : "does not hold its state");
        return refuse(c, "C8", cell->writer, ZINF_NONE, &o, map->hits[h].lo, map->hits[h].hi,
                      wrong);
    }
    return true;
}

static bool check_exit(zinf_checker *c)
{
    const zinf_plan *plan = c->plan;
    const bool fills = c->kind == ZINF_PROGRAM_INIT || c->kind == ZINF_PROGRAM_LOAD;
    const bool empty = plan->programs[c->kind].n_segments == 0;
    const bool forward = !empty && (c->kind == ZINF_PROGRAM_EVAL ||
                                    c->kind == ZINF_PROGRAM_SAMPLE);
    const uint64_t act = zinf_dtype_bytes(plan->job.precision);

    for (uint32_t u = 0; u < plan->n_units; u++) {
        const zinf_unit *unit = &plan->units[u];
        char wrong[200], unused[200];
        bool ok = true;
        snprintf(unused, sizeof unused, "unit \"%.60s\" is not used as in a step", unit->name);
        snprintf(wrong, sizeof wrong, "unit \"%.60s\" is updated or moved %" PRIu32
                 " times, not once", unit->name, c->tallies[u].updates);
        if (!empty && c->tallies[u].updates != 1 &&
            (fills || c->kind == ZINF_PROGRAM_STEP || c->kind == ZINF_PROGRAM_SAVE))
            return refuse(c, "C7", ZINF_NONE, ZINF_NONE, NULL, 0, 0, wrong);
        if (unit->param.bytes && (!fills || c->contents[unit->param.value].on_entry))
            ok = region_holds(c, u, &unit->param, 0, act * unit->n_elems, plan->job.precision);
        for (uint64_t i = 0; ok && i < 3 && unit->optimizer.bytes; i++)
            if (!fills || c->contents[unit->optimizer.value].on_entry)
                ok = region_holds(c, u, &unit->optimizer, i * unit->array_stride,
                                  4 * unit->n_elems, ZINF_F32);
        if (!ok)
            return false;
        if (c->kind == ZINF_PROGRAM_STEP)
            c->tallies[u].step_uses = c->tallies[u].uses;
        if (forward && c->tallies[u].uses != c->tallies[u].step_uses)
            return refuse(c, "C4", ZINF_NONE, ZINF_NONE, NULL, 0, 0, unused);
    }
    if (c->kind == ZINF_PROGRAM_EVAL && !empty && c->n_losses != 1)
        return refuse(c, "C7", ZINF_NONE, ZINF_NONE, NULL, 0, 0, "there must be one loss");
    if (c->kind == ZINF_PROGRAM_STEP && !empty &&
        (c->n_losses != plan->decisions.accumulation || c->clips != 1 || c->batches != 1))
        return refuse(c, "C7", ZINF_NONE, ZINF_NONE, NULL, 0, 0,
                      "a step is one batch, one loss per micro-batch and one global norm");
    return true;
}

/* ---- C1, C2, C5, C6: each by itself ---- */

static bool check_operand(zinf_checker *c, const zinf_operand *o, bool direct)
{
    const uint64_t element = zinf_dtype_bytes(o->dtype), unit = direct ? ZINF_PAGE : element;
    uint64_t arena = c->plan->machine.arena_bytes[o->tier], end, span;

    if (o->tier == ZINF_TIER_SCALAR)
        arena = 8 * ((uint64_t)ZINF_SCALAR_PARTIALS + c->plan->n_units);
    if (__builtin_mul_overflow(o->stride, c->count - 1, &end) ||
        __builtin_add_overflow(end, o->offset, &end) ||
        __builtin_add_overflow(end, o->bytes, &end) || end > arena)
        return refuse_operand(c, "C1", o, "ends beyond the arena");
    if (o->rows == 0 || o->ld < o->cols || __builtin_mul_overflow(o->rows - 1, o->ld, &span) ||
        __builtin_add_overflow(span, o->cols, &span) ||
        __builtin_mul_overflow(span, element, &span) || span != o->bytes)
        return refuse_operand(c, "C1", o, "has not the bytes of its rows and columns");
    if (o->offset % unit || o->stride % unit || (direct && o->bytes % unit))
        return refuse_operand(c, "C2", o, direct ? "direct I/O moves whole pages of 4096 bytes"
                                                 : "is not aligned to its elements");
    if ((o->tier == ZINF_TIER_SCALAR) != (o->dtype == ZINF_F64))
        return refuse_operand(c, "C2", o, "scalars are F64, and nothing else is");
    if (o->value == ZINF_NONE && o->offset % 64)
        return refuse_operand(c, "C2", o, "scratch is not aligned to 64 bytes");
    return true;
}

static bool check_instr(zinf_checker *c, const zinf_segment *s)
{
    /* Bits of the tiers that the first operand and the others may be in. */
    enum { D = 1 << ZINF_TIER_DEVICE, H = 1 << ZINF_TIER_HOST, N = 1 << ZINF_TIER_NVME,
           S = 1 << ZINF_TIER_SCALAR };
    static const uint8_t reach[ZINF_N_QUEUES][2] = {
        [ZINF_QUEUE_COMPUTE] = {D | S, D | S}, [ZINF_QUEUE_COLLECTIVE] = {D | H, D | H},
        [ZINF_QUEUE_UPLOAD] = {H, D}, [ZINF_QUEUE_DOWNLOAD] = {D, H},
        [ZINF_QUEUE_READ] = {N, D | H}, [ZINF_QUEUE_WRITE] = {D | H, N},
        [ZINF_QUEUE_UPDATE] = {D | H | S, D | H | S}};
    const zinf_plan *plan = c->plan;
    const zinf_instr *instr = instr_of(c, c->index);
    const zinf_opcode_info *info = zinf_opcode_get(instr->opcode);
    const zinf_operand *o = &plan->operands[instr->operand0];
    const uint32_t first = plan->segments[plan->programs[c->kind].first_segment].first_instr;
    const bool direct = instr->queue == ZINF_QUEUE_READ || instr->queue == ZINF_QUEUE_WRITE;

    if (!strchr(info->queues, "CGUDRWP"[instr->queue]))
        return refuse(c, info->queues[0] == 'G' ? "C6" : "C5", c->index, ZINF_NONE, NULL, 0, 0,
                      "is on a queue that does not do this");
    for (uint32_t k = 0; k < instr->n_operands; k++) {
        if (o[k].bytes == 0 && !access_of(instr, k).optional)
            return refuse_operand(c, "C4", &o[k], "is absent");
        if (o[k].bytes && !check_operand(c, &o[k], direct))
            return false;
        if (o[k].bytes && !(reach[instr->queue][k > 0] >> o[k].tier & 1))
            return refuse_operand(c, "C1", &o[k], "its queue does not reach this tier");
    }
    if (is_copy(instr->opcode) && (o[0].bytes != o[1].bytes || o[0].value != o[1].value))
        return refuse_operand(c, "C4", &o[1], "a copy changes neither bytes nor value");
    for (uint32_t w = instr->wait0; w < instr->wait0 + instr->n_waits; w++) {
        const zinf_wait *wait = &plan->waits[w];
        const bool same = wait->instr >= s->first_instr;
        if (wait->instr < first || wait->instr >= s->first_instr + s->n_instrs ||
            (same && wait->distance == 0 && wait->instr >= c->index) ||
            (!same && wait->distance) || instr_of(c, wait->instr)->queue == instr->queue)
            return refuse(c, "C5", c->index, wait->instr, NULL, 0, 0,
                          "a wait must point backwards, to another queue");
    }
    if (info->queues[0] == 'G') {
        const uint64_t ranks = plan->decisions.ranks;
        const uint64_t send = instr->opcode == ZINF_OP_ALLGATHER ? o[0].bytes * ranks : o[0].bytes;
        const uint64_t recv = instr->opcode == ZINF_OP_REDUCE_SCATTER ? o[1].bytes * ranks
                                                                      : o[1].bytes;
        if (o[0].dtype != o[1].dtype || send != recv || instr->attr[0] >= ranks)
            return refuse_operand(c, "C6", &o[1], "type, count or root disagree between ranks");
    }
    return true;
}

static int by_place(const void *a, const void *b)
{
    const zinf_region *x = a, *y = b;

    if (x->tier != y->tier)
        return x->tier < y->tier ? -1 : 1;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

static bool check_regions(zinf_checker *c)
{
    const zinf_plan *plan = c->plan;
    const uint64_t act = zinf_dtype_bytes(plan->job.precision);
    zinf_region *all = calloc(3 * (size_t)plan->n_units + 1, sizeof *all);
    uint32_t n = 0;
    bool ok = all != NULL;

    for (uint32_t u = 0; ok && u < plan->n_units; u++) {
        const zinf_unit *unit = &plan->units[u];
        const zinf_region *regions[3] = {&unit->param, &unit->grad, &unit->optimizer};
        const uint64_t need[3] = {act * unit->n_elems, 4 * unit->n_elems,
                                  2 * unit->array_stride + 4 * unit->n_elems};
        for (int i = 0; ok && i < 3; i++) {
            const zinf_region *r = regions[i];
            const zinf_operand o = {.tier = (uint8_t)r->tier, .value = r->value};
            const char *rule = NULL, *wrong = NULL;
            if (r->bytes == 0)
                continue;
            if (r->bytes < need[i] || r->bytes > plan->machine.arena_bytes[r->tier] ||
                r->offset > plan->machine.arena_bytes[r->tier] - r->bytes)
                rule = "C1", wrong = "a unit's region is too small or ends beyond the arena";
            else if (r->offset % ZINF_PAGE || r->bytes % ZINF_PAGE ||
                     unit->array_stride < 4 * unit->n_elems || unit->array_stride % 4)
                rule = "C2", wrong = "a unit's region is not aligned to pages";
            else if (r->value == ZINF_NONE || c->contents[r->value].role != ROLE_NONE)
                rule = "C4", wrong = "a unit's region has no value of its own";
            else
                c->contents[r->value] = (zinf_content){.unit = u, .role = (uint32_t)i + 1};
            all[n++] = *r;
            if (rule)
                ok = refuse(c, rule, ZINF_NONE, ZINF_NONE, &o, r->offset, r->offset + r->bytes,
                            wrong);
        }
    }
    if (ok)
        qsort(all, n, sizeof *all, by_place);
    for (uint32_t i = 1; ok && i < n; i++) {
        const zinf_operand o = {.tier = (uint8_t)all[i].tier, .value = all[i].value};
        if (all[i].tier == all[i - 1].tier && all[i].offset - all[i - 1].offset < all[i - 1].bytes)
            ok = refuse(c, "C3", ZINF_NONE, ZINF_NONE, &o, all[i].offset,
                        all[i - 1].offset + all[i - 1].bytes, "two units' regions overlap");
    }
    for (int t = ZINF_TIER_DEVICE; ok && t <= ZINF_TIER_NVME; t++) {
        const zinf_operand o = {.tier = (uint8_t)t, .value = ZINF_NONE};
        uint64_t need;
        if (__builtin_add_overflow(plan->machine.arena_bytes[t], plan->machine.overhead_bytes[t],
                                   &need) || need > plan->machine.capacity_bytes[t])
            ok = refuse(c, "C1", ZINF_NONE, ZINF_NONE, &o, 0, plan->machine.arena_bytes[t],
                        "arena and overhead exceed the tier's capacity");
    }
    free(all);
    return ok;
}

/* ---- running a program ---- */

static bool visit(zinf_checker *c, uint32_t segment, uint32_t number)
{
    const zinf_plan *plan = c->plan;
    const zinf_segment *segments = &plan->segments[plan->programs[c->kind].first_segment];
    const zinf_instr *instr = instr_of(c, c->index);
    const zinf_operand *o = &plan->operands[instr->operand0];
    const unsigned queue = instr->queue;

    memset(c->now, 0, sizeof c->now);
    if (c->before[queue])
        memcpy(c->now, c->before[queue], sizeof c->now);
    for (uint32_t w = instr->wait0; w < instr->wait0 + instr->n_waits; w++) {
        const zinf_wait *wait = &plan->waits[w];
        uint32_t s = segment;
        uint64_t iteration = c->iteration;
        while (wait->instr < segments[s].first_instr)
            iteration = c->visits[--s] - 1;
        if (s == segment && wait->distance > iteration)
            continue;
        iteration -= s == segment ? wait->distance : 0;
        const uint32_t *clock = c->clocks[c->first_visit[s] + iteration * segments[s].n_instrs +
                                          (wait->instr - segments[s].first_instr)];
        for (int q = 0; q < ZINF_N_QUEUES; q++)
            c->now[q] = clock[q] > c->now[q] ? clock[q] : c->now[q];
    }
    for (uint32_t k = 0; k < instr->n_operands; k++) {
        const zinf_access access = access_of(instr, k);
        if (o[k].bytes && access.reads && !read_operand(c, &o[k], access.writes))
            return false;
        if (o[k].bytes && access.reads &&
            (instr->opcode < ZINF_OP_LOSS || instr->opcode == ZINF_OP_LOGITS) &&
            c->contents[o[k].value].role == ROLE_PARAM)
            c->tallies[c->contents[o[k].value].unit].uses |=
                instr->opcode == ZINF_OP_EMBEDDING_FORWARD && k == 1 ? 1 : 2;
    }
    if (!check_role(c))
        return false;
    for (uint32_t k = 0; k < instr->n_operands; k++) {
        const zinf_access access = access_of(instr, k);
        if (!o[k].bytes || !access.writes)
            continue;
        if (is_copy(instr->opcode) ? !copy_contents(c, &o[0], &o[k])
                                   : !write_operand(c, &o[k], k, access.reads))
            return false;
    }
    memcpy(c->clocks[number], c->now, sizeof c->now);
    c->clocks[number][queue] = c->next_clock[queue]++;
    c->before[queue] = c->clocks[number];
    for (int t = 0; t < ZINF_N_TIERS; t++)
        if (c->maps[t].failed)
            return zinf_fail(c->err, ZINF_MACHINE, "out of memory while checking the plan"), false;
    return true;
}

/* Regions as the program finds them. */
static bool enter(zinf_checker *c)
{
    const zinf_plan *plan = c->plan;

    for (uint32_t u = 0; u < plan->n_units; u++)
        c->tallies[u] = (zinf_tally){.step_uses = c->tallies[u].step_uses};
    memset(c->before, 0, sizeof c->before);
    c->n_losses = c->visits_losses = c->clips = c->batches = 0;
    c->generation = 0;
    for (int q = 0; q < ZINF_N_QUEUES; q++)
        c->next_clock[q] = 1;
    for (uint32_t v = 0; v < plan->n_values; v++)
        c->contents[v].generation = c->contents[v].batch = 0;
    for (int t = 0; t < ZINF_N_TIERS; t++)
        if (!zinf_map_init(&c->maps[t]))
            return zinf_fail(c->err, ZINF_MACHINE, "out of memory while checking the plan"), false;
    if (c->kind == ZINF_PROGRAM_INIT || c->kind == ZINF_PROGRAM_LOAD)
        return true;
    for (uint32_t u = 0; u < plan->n_units; u++) {
        const zinf_region *regions[2] = {&plan->units[u].param, &plan->units[u].optimizer};
        for (int i = 0; i < 2; i++) {
            const zinf_region *r = regions[i];
            const zinf_span span = {r->offset, r->offset + r->bytes, 0, 0};
            const zinf_cell cell = {.value = r->value, .writer = ZINF_NONE,
                                    .origin = (int64_t)r->offset,
                                    .dtype = (uint8_t)(i ? ZINF_F32 : plan->job.precision)};
            if (r->bytes == 0)
                continue;
            zinf_map_touch(&c->maps[r->tier], span);
            zinf_map_write(&c->maps[r->tier], span, &cell);
        }
    }
    return true;
}

static bool check_program(zinf_checker *c, uint32_t kind)
{
    const zinf_program *program = &c->plan->programs[kind];
    const zinf_segment *segments = &c->plan->segments[program->first_segment];
    uint64_t total = 0;
    uint32_t number = 0;

    c->kind = kind;
    free(c->clocks);
    free(c->first_visit);
    c->clocks = NULL;
    c->first_visit = calloc(2 * (size_t)program->n_segments + 1, sizeof *c->first_visit);
    c->visits = c->first_visit + program->n_segments;
    if (!c->first_visit || !enter(c))
        return zinf_fail(c->err, ZINF_MACHINE, "out of memory while checking the plan"), false;
    for (uint32_t s = 0; s < program->n_segments; s++) {
        c->first_visit[s] = (uint32_t)total;
        uint64_t visits = n_visits(c, &segments[s]);
        if (visits > UNROLL && visits > MOST_VISITS / segments[s].n_instrs)
            return refuse(c, "C3", segments[s].first_instr, ZINF_NONE, NULL, 0, 0,
                          "its loop writes with a stride and is too long to be proved");
        c->visits[s] = (uint32_t)visits;
        total += visits * segments[s].n_instrs;
    }
    c->clocks = total > UINT32_MAX - 1 ? NULL : malloc((total + 1) * sizeof *c->clocks);
    if (!c->clocks)
        return zinf_fail(c->err, ZINF_MACHINE, "out of memory while checking the plan"), false;
    for (uint32_t s = 0; s < program->n_segments; s++) {
        c->count = segments[s].count;
        for (c->iteration = 0; c->iteration < c->visits[s]; c->iteration++) {
            c->generation += GENERATION;
            c->losses_before = c->visits_losses;
            for (uint32_t i = 0; i < segments[s].n_instrs; i++) {
                c->index = segments[s].first_instr + i;
                if ((c->iteration == 0 && !check_instr(c, &segments[s])) ||
                    !visit(c, s, number++))
                    return false;
            }
        }
    }
    c->iteration = 0;
    c->count = 1;
    return check_exit(c);
}

zinf_status zinf_plan_check(const zinf_plan *plan, zinf_error *err)
{
    /* INIT and LOAD last: by then it is known what the others need on entry. */
    static const zinf_program_kind order[ZINF_N_PROGRAMS] = {
        ZINF_PROGRAM_STEP, ZINF_PROGRAM_FLUSH, ZINF_PROGRAM_EVAL, ZINF_PROGRAM_SAMPLE,
        ZINF_PROGRAM_SAVE, ZINF_PROGRAM_INIT, ZINF_PROGRAM_LOAD};
    zinf_checker c = {.plan = plan, .err = err, .count = 1};

    c.contents = calloc((size_t)plan->n_values + 1, sizeof *c.contents);
    c.tallies = calloc((size_t)plan->n_units + 1, sizeof *c.tallies);
    bool ok = c.contents && c.tallies;
    if (!ok)
        zinf_fail(err, ZINF_MACHINE, "out of memory while checking the plan");
    ok = ok && check_regions(&c);
    for (int k = 0; ok && k < ZINF_N_PROGRAMS; k++)
        ok = check_program(&c, order[k]);
    for (int t = 0; t < ZINF_N_TIERS; t++)
        zinf_map_free(&c.maps[t]);
    free(c.contents);
    free(c.tallies);
    free(c.pieces);
    free(c.clocks);
    free(c.first_visit);
    return ok ? ZINF_OK : err->status;
}
