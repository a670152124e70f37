/* runtime/checker_step.c - C7 and C8: what a program as a whole must have done. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "runtime/checker_internal.h"

/* ---- C7, C8: what the step as a whole must have done ---- */

/* The operand belongs to the unit in that role and has this size, at the value's byte `at`. What
 * is to be overwritten (reads false) says nothing of where the value begins. */
static bool is_array(zinf_checker *c, const zinf_operand *o, bool reads, uint32_t unit,
                     zinf_role role, uint64_t bytes, uint64_t at)
{
    zinf_map *map = &c->maps[o->tier];
    const zinf_content *content = o->value == ZINF_NONE ? NULL : &c->contents[o->value];

    if (!content || content->role != role || content->unit != unit || o->bytes != bytes ||
        o->dtype != (role == ROLE_PARAM || role == ROLE_PARAM_SHARD ? c->plan->job.precision
                                                                    : ZINF_F32))
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
        if (!is_array(c, &o[i], reads, unit, ROLE_OPTIMIZER, 4 * u->shard_elems,
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

/* Every scalar read was, or was not, summed over ranks. */
static bool summed(zinf_checker *c, const zinf_operand *o, bool want)
{
    zinf_map *map = &c->maps[o->tier];

    zinf_map_touch(map, span_of(c, o, false));
    for (uint32_t h = 0; h < map->n_hits; h++) {
        const uint32_t writer = map->cells[map->hits[h].cell].writer;
        if (writer == ZINF_NONE || (instr_of(c, writer)->opcode == ZINF_OP_ALLREDUCE) != want)
            return refuse(c, "C7", c->index, writer, o, map->hits[h].lo, map->hits[h].hi,
                          want ? "is of this rank alone" : "is summed over ranks twice");
    }
    return true;
}

/* All shards of a unit's parameters, into the value that stands for the whole. */
static bool gathers(zinf_checker *c, uint32_t unit)
{
    const zinf_operand *o = &c->plan->operands[instr_of(c, c->index)->operand0];
    const zinf_unit *u = &c->plan->units[unit];

    if (o[1].value != u->whole_param || c->plan->decisions.ranks == 1)
        return refuse_operand(c, "C6", &o[1], "is not the unit's whole");
    return is_array(c, o, true, unit, ROLE_PARAM_SHARD,
                    u->shard_elems * zinf_dtype_bytes(c->plan->job.precision), 0);
}

/* A unit's gradient, padded; what is in its elements counts, its padding must have been zeroed. */
static bool scatters(zinf_checker *c, uint32_t unit)
{
    const zinf_operand *o = &c->plan->operands[instr_of(c, c->index)->operand0];
    const zinf_unit *u = &c->plan->units[unit];
    const uint64_t end = 4 * u->n_elems;
    zinf_operand elements = o[0], padding = o[0];

    if (o[0].value != u->whole_grad || o[1].value != u->grad.value ||
        o[1].bytes != 4 * u->shard_elems)
        return refuse_operand(c, "C6", o, "is not the unit's gradient, from whole to shard");
    elements.bytes = end;
    if (!sums_of(c, &elements, c->scattered))
        return false;
    padding.offset += end;
    padding.bytes -= end;
    zinf_map *map = &c->maps[o->tier];
    if (padding.bytes)
        zinf_map_touch(map, span_of(c, &padding, true));
    for (uint32_t h = 0; padding.bytes && h < map->n_hits; h++) {
        const uint32_t writer = map->cells[map->hits[h].cell].writer;
        if (writer == ZINF_NONE || instr_of(c, writer)->opcode != ZINF_OP_ZERO)
            return refuse_operand(c, "C7", o, "has padding that is not zero");
    }
    return true;
}

bool check_role(zinf_checker *c)
{
    const zinf_plan *plan = c->plan;
    const zinf_instr *instr = instr_of(c, c->index);
    const zinf_operand *o = &plan->operands[instr->operand0];
    const bool step = c->kind == ZINF_PROGRAM_STEP;
    const uint32_t unit = instr->unit;
    uint32_t sums[2];
    uint64_t row, bias;
    uint32_t writer;

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
        if (by_tiles(instr->opcode)) {
            zinf_map_touch(&c->maps[o[3].tier], span_of(c, &o[3], true));
            row = !(instr->flags & ZINF_FLAG_ACCUMULATE) ? 0
                  : c->maps[o[3].tier].cells[c->maps[o[3].tier].hits[0].cell].sums[1];
        }
        if (by_tiles(instr->opcode) && row != instr->attr[0])
            return refuse_operand(c, "C4", &o[1], "is not the tile that comes next");
        if (instr->opcode == ZINF_OP_CLASSIFIER && o[1].rows != plan->model.vocab)
            return refuse_operand(c, "C4", &o[1], "is not the whole vocabulary");
        break;
    case ZINF_OP_EMBEDDING_BACKWARD:
        if (row_of(c, &o[2], &row) && row != instr->attr[0])
            return refuse_operand(c, "C4", &o[2], "does not begin at the row that attr0 says");
        break;
    case ZINF_OP_LINEAR_FORWARD:
        if (o[2].bytes && row_of(c, &o[1], &row) && row_of(c, &o[2], &bias) && row != bias)
            return refuse_operand(c, "C4", &o[2], "is not the bias of these rows");
        break;
    case ZINF_OP_ROPE:
        /* an output of the projection turns forward, its gradient back */
        zinf_map_touch(&c->maps[o->tier], span_of(c, o, true));
        writer = c->maps[o->tier].cells[c->maps[o->tier].hits[0].cell].writer;
        if (writer == ZINF_NONE ||
            instr_of(c, writer)->opcode != (instr->attr[1] ? ZINF_OP_ATTENTION_BACKWARD
                                                           : ZINF_OP_LINEAR_FORWARD))
            return refuse_operand(c, "C4", o, "is turned the wrong way, or twice");
        if (o[0].value == o[1].value || o[1].value == ZINF_NONE)
            return refuse_operand(c, "C4", &o[1], "is no value of its own once it is turned");
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
        return is_array(c, o, true, unit, stored_role(plan, 1), 4 * plan->units[unit].shard_elems,
                        0) && sums_of(c, o, c->tallies[unit].norm_sums);
    case ZINF_OP_CLIP:
        if (c->count != 1 || c->clips++)
            return refuse_operand(c, "C7", o, "the global norm is taken more than once");
        if (o[0].offset != 8 * ZINF_SCALAR_PARTIALS || o[0].bytes != 8 * (uint64_t)plan->n_units)
            return refuse_operand(c, "C7", o, "is not every unit's partial norm");
        for (uint32_t u = 0; u < plan->n_units; u++)
            if (!complete(c, u, c->tallies[u].norm_sums, "the norm"))
                return false;
        if (plan->decisions.ranks == 1)
            break;
        if (c->loss_sums == 0)
            return refuse_operand(c, "C7", o, "the loss is not yet that of all ranks");
        return summed(c, o, true);
    case ZINF_OP_ALLGATHER:
        return unit < plan->n_units ? gathers(c, unit)
                                    : refuse_operand(c, "C6", o, "gathers no unit");
    case ZINF_OP_REDUCE_SCATTER:
        return unit < plan->n_units ? scatters(c, unit)
                                    : refuse_operand(c, "C6", o, "scatters no unit");
    case ZINF_OP_ALLREDUCE:
        if (o[0].offset == 8 * ZINF_SCALAR_LOSS && o[0].bytes == 8)
            c->loss_sums++;
        if (c->count != 1 || o[0].offset != o[1].offset || o[0].value == o[1].value)
            return refuse_operand(c, "C7", o, "sums of all ranks are values of their own, made "
                                  "once, in place");
        return summed(c, o, false);
    case ZINF_OP_ADAM:
        if (!step || unit >= plan->n_units || c->count != 1 || c->tallies[unit].updates++)
            return refuse_operand(c, "C7", o, "a unit is updated once per step, in no loop");
        if (c->tallies[unit].inputs != c->tallies[unit].weights)
            return refuse_operand(c, "C7", o, "its linear gives input and weight gradients not "
                                  "equally often");
        if (instr->attr[0] != plan->units[unit].decays || c->clips == 0 ||
            o[5].offset != 8 * ZINF_SCALAR_NORM)
            return refuse_operand(c, "C7", o, "wrong weight decay or clip factor");
        return is_array(c, o, true, unit, stored_role(plan, 1), 4 * plan->units[unit].shard_elems,
                        0) && is_state(c, &o[1], true, unit) &&
               is_array(c, &o[4], false, unit, stored_role(plan, 0),
                        plan->units[unit].shard_elems * zinf_dtype_bytes(plan->job.precision),
                        0) &&
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

static bool refuse_unit(zinf_checker *c, const char *rule, const zinf_unit *unit, const char *what)
{
    char wrong[200];

    snprintf(wrong, sizeof wrong, "unit \"%.60s\" %s", unit->name, what);
    return refuse(c, rule, ZINF_NONE, ZINF_NONE, NULL, 0, 0, wrong);
}

bool check_exit(zinf_checker *c)
{
    const zinf_plan *plan = c->plan;
    const bool fills = c->kind == ZINF_PROGRAM_INIT || c->kind == ZINF_PROGRAM_LOAD;
    const bool empty = plan->programs[c->kind].n_segments == 0;
    const bool forward = !empty && (c->kind == ZINF_PROGRAM_EVAL ||
                                    c->kind == ZINF_PROGRAM_SAMPLE);
    const uint64_t act = zinf_dtype_bytes(plan->job.precision);

    for (uint32_t u = 0; u < plan->n_units; u++) {
        const zinf_unit *unit = &plan->units[u];
        bool ok = true;
        if (!empty && c->tallies[u].updates != 1 &&
            (fills || c->kind == ZINF_PROGRAM_STEP || c->kind == ZINF_PROGRAM_SAVE))
            return refuse_unit(c, "C7", unit, "is not updated or moved exactly once");
        if (unit->param.bytes && (!fills || c->contents[unit->param.value].on_entry))
            ok = region_holds(c, u, &unit->param, 0, act * unit->shard_elems, plan->job.precision);
        for (uint64_t i = 0; ok && i < 3 && unit->optimizer.bytes; i++)
            if (!fills || c->contents[unit->optimizer.value].on_entry)
                ok = region_holds(c, u, &unit->optimizer, i * unit->array_stride,
                                  4 * unit->shard_elems, ZINF_F32);
        if (!ok)
            return false;
        if (c->kind == ZINF_PROGRAM_STEP)
            c->tallies[u].step_uses = c->tallies[u].uses;
        if (forward && c->tallies[u].uses != c->tallies[u].step_uses)
            return refuse_unit(c, "C4", unit, "is not used as in a step");
    }
    if (plan->decisions.ranks > 1 && !empty && c->loss_sums != 1 &&
        (c->kind == ZINF_PROGRAM_STEP || c->kind == ZINF_PROGRAM_EVAL))
        return refuse(c, "C7", ZINF_NONE, ZINF_NONE, NULL, 0, 0,
                      "the loss is summed over ranks once");
    if (c->kind == ZINF_PROGRAM_EVAL && !empty && c->n_losses != 1)
        return refuse(c, "C7", ZINF_NONE, ZINF_NONE, NULL, 0, 0, "there must be one loss");
    if (c->kind == ZINF_PROGRAM_STEP && !empty &&
        (c->n_losses != plan->decisions.accumulation || c->clips != 1 || c->batches != 1))
        return refuse(c, "C7", ZINF_NONE, ZINF_NONE, NULL, 0, 0,
                      "a step is one batch, one loss per micro-batch and one global norm");
    return true;
}
