/* runtime/checker_access.c - C3 and C4: what one instruction reads and writes, byte by byte. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/checker_internal.h"

/* As opcodes.h says, with what the flag means to the classifier's two gradients. */
zinf_access access_of(const zinf_instr *instr, unsigned slot)
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
    if (role == ROLE_OPTIMIZER)
        return &u->optimizer;
    return role == stored_role(c->plan, 0)   ? &u->param
           : role == stored_role(c->plan, 1) ? &u->grad
                                             : NULL;
}

/* The region's first byte, if the operand lies in its own value's region. */
int64_t home_of(const zinf_checker *c, const zinf_operand *o)
{
    const zinf_region *r = region_of(c, o->value);

    if (!r || r->tier != o->tier || o->offset < r->offset || o->offset >= r->offset + r->bytes)
        return ZINF_NO_ORIGIN;
    return (int64_t)r->offset;
}

zinf_span span_of(const zinf_checker *c, const zinf_operand *o, bool writes)
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

/* A gradient, whole or a shard. */
static bool is_grad(const zinf_content *content)
{
    return content->role == ROLE_GRAD || content->role == ROLE_GRAD_SHARD;
}

/* ---- C4: what is read is the value meant, whole and of this iteration ---- */

/* Part p + 1 holds the rows that follow those of part p in their stack of tensors. */
static bool continues(const zinf_plan *plan, uint32_t p)
{
    const zinf_part *part = &plan->parts[p], *next = part + 1;
    const zinf_tensor *tensor = &plan->tensors[part->tensor], *other = tensor + 1;

    return next->tensor == part->tensor + 1 && next->first_row == 0 &&
           part->first_row + part->n_rows == tensor->rows && tensor->cols == other->cols &&
           next->at == part->at + part->n_rows * tensor->cols &&
           other->stack_row == tensor->stack_row + tensor->rows;
}

/* A parameter's operand, or its gradient's, is whole rows of one tensor, or of tensors stacked, as
 * the unit's parts say: the first of them, counted from the top of the stack, in ret_row. Or, where
 * `unit` allows it, all of the unit. */
static bool inside_part(const zinf_checker *c, const zinf_operand *o, int64_t origin, bool unit,
                        uint64_t *ret_row)
{
    const zinf_unit *u = &c->plan->units[c->contents[o->value].unit];
    const uint64_t element = zinf_dtype_bytes(o->dtype);
    const uint64_t at = (o->offset - (uint64_t)origin) / element, n = o->bytes / element;

    uint32_t first = 0, last = u->n_parts; /* parts ascend: the last one that begins at or before */

    while (first + 1 < last) {
        const uint32_t middle = first + (last - first) / 2;
        if (c->plan->parts[u->first_part + middle].at <= at)
            first = middle;
        else
            last = middle;
    }
    if (u->n_parts) {
        const zinf_part *part = &c->plan->parts[u->first_part + first];
        const uint64_t cols = c->plan->tensors[part->tensor].cols;
        uint32_t p = u->first_part + first;
        uint64_t end = part->at + part->n_rows * cols;
        if (at >= part->at && at < end) {
            *ret_row = c->plan->tensors[part->tensor].stack_row + part->first_row +
                       (at - part->at) / cols;
            for (; at + n > end && p + 1 < u->first_part + u->n_parts && continues(c->plan, p);
                 p++)
                end += c->plan->parts[p + 1].n_rows * cols;
            if (at + n <= end)
                return (at - part->at) % cols == 0 && n % cols == 0;
        }
    }
    *ret_row = 0;
    return unit && at == 0 && n == u->n_elems;
}

/* First row in its tensor of a tile of a linear's weight, or of the gradient of it. */
bool row_of(zinf_checker *c, const zinf_operand *o, uint64_t *ret_row)
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
    return origin != ZINF_NO_ORIGIN && inside_part(c, o, origin, true, ret_row);
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
        const bool grad = writes && is_grad(content) && cell->value == ZINF_NONE;
        char wrong[160];
        snprintf(wrong, sizeof wrong, "reads bytes that hold %s%.80s%s",
                 cell->value == ZINF_NONE ? "nothing of it" : "\"",
                 cell->value == ZINF_NONE ? ""
                                          : &c->plan->strings[c->plan->values[cell->value]],
                 cell->value == ZINF_NONE ? "" : "\"");
        return refuse(c, grad ? "C7" : "C4", c->index, cell->writer, o, hit->lo, hit->hi,
                      grad ? "adds to a gradient that this step has not begun" : wrong);
    }
    const bool grad_copy = copies && is_grad(content); /* sums will tell */
    const bool sum = grad_copy || (writes && (is_grad(content) || scalar));
    if (instr->opcode == ZINF_OP_ACCUMULATE && !sum && cell->generation < c->generation)
        return refuse(c, "C7", c->index, cell->writer, o, hit->lo, hit->hi,
                      "adds what an earlier iteration left, again");
    if (!sum && cell->generation < content->generation)
        return refuse(c, is_grad(content) ? "C7" : "C4", c->index, cell->writer, o,
                      hit->lo, hit->hi, "reads an old copy, the value was produced anew since");
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
        !inside_part(c, o, cell->origin, false, &row))
        return refuse(c, "C4", c->index, cell->writer, o, hit->lo, hit->hi,
                      "is not whole rows of one tensor, or one stack, of the unit");
    if (cell->writer == ZINF_NONE)
        c->contents[o->value].on_entry = true;
    else if (by_tiles(instr_of(c, cell->writer)->opcode) && cell->sums[1] != c->plan->model.vocab &&
             instr->opcode != instr_of(c, cell->writer)->opcode)
        return refuse(c, "C4", c->index, cell->writer, o, hit->lo, hit->hi,
                      "is not yet of every tile of the vocabulary");
    return true;
}

bool read_operand(zinf_checker *c, const zinf_operand *o, bool writes)
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

bool write_operand(zinf_checker *c, const zinf_operand *o, unsigned slot, bool reads)
{
    const zinf_instr *instr = instr_of(c, c->index);
    const zinf_operand *operands = &c->plan->operands[instr->operand0];
    const zinf_span span = span_of(c, o, true);
    zinf_map *map = &c->maps[o->tier];
    const int64_t home = home_of(c, o);
    zinf_content *content = o->value == ZINF_NONE ? NULL : &c->contents[o->value];
    const bool grad = content && is_grad(content);
    zinf_cell made = {.value = o->value, .writer = c->index, .writer_queue = instr->queue,
                      .writer_clock = c->next_clock[instr->queue], .dtype = o->dtype,
                      .origin = home};
    uint32_t sums[2] = {instr->opcode == ZINF_OP_EMBEDDING_BACKWARD,
                        instr->opcode != ZINF_OP_EMBEDDING_BACKWARD};

    const char letter = zinf_opcode_get(instr->opcode)->access[slot] | 0x20;
    uint64_t row = 0;

    if (instr->opcode == ZINF_OP_ZERO)
        sums[1] = 0;
    if (by_tiles(instr->opcode))
        sums[1] = (uint32_t)operands[1].rows;
    if (content && content->role == ROLE_NONE && o->tier != ZINF_TIER_SCALAR) {
        /* a tile's columns begin where its rows of the weight do, also in a matrix of one row */
        if (instr->opcode == ZINF_OP_LINEAR_FORWARD && row_of(c, &operands[1], &row))
            made.origin = (int64_t)(span.lo - row * zinf_dtype_bytes(o->dtype));
        else if (o->rows == 1 || o->ld == o->cols)
            made.origin = (int64_t)span.lo;
        content->batch |= instr->opcode == ZINF_OP_BATCH;
    }
    if (instr->opcode == ZINF_OP_ALLGATHER)
        made.origin = (int64_t)span.lo;
    if (instr->opcode == ZINF_OP_REDUCE_SCATTER)
        memcpy(sums, c->scattered, sizeof sums);
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
        if (content->role == ROLE_PARAM_SHARD && instr->opcode == ZINF_OP_ADAM)
            c->contents[c->plan->units[content->unit].whole_param].generation = made.generation;
        if (content->role == ROLE_GRAD && home != ZINF_NO_ORIGIN && !is_copy(instr->opcode) &&
            !inside_part(c, o, home, true, &row))
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
bool copy_contents(zinf_checker *c, const zinf_operand *from, const zinf_operand *to)
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
