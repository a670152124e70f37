/* runtime/checker_operators.c - what the operands of an instruction must be, for the checker.
 *
 * An operator applies whole rows of a weight, the same in forward and backward, and in every
 * program; tiles come in order of rows. An update serves one unit, whole, from the complete sum of
 * its gradient. opcodes.h says it per opcode.
 */
#include <stdlib.h>

#include "runtime/checker_state.h"
#include "runtime/overhead.h"

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
    if (u->n_parts == 0 || at < part->at)
        return NULL;
    const zinf_tensor *tensor = &c->plan->tensors[part->tensor];
    const uint64_t row = (at - part->at) / tensor->cols;
    *ret_row = tensor->stack_row + part->first_row + row;
    return row < part->n_rows ? part : NULL;
}

/* Which whole rows of which stack of tensors the operand in a slot is, parameters if it is read and
 * their gradient if it is written: false if of none; true and stack ZINF_NONE if it is a gradient,
 * of which it is not known where its unit begins. */
static bool place(zinf_checker *c, uint32_t slot, uint32_t *ret_stack, uint64_t *ret_row,
                  uint64_t *ret_rows)
{
    const zinf_operand *o = &c->o[slot];
    const state role = role_of(c, o);
    const uint64_t element = zinf_dtype_bytes(o->dtype), lo = here(c, o), n = o->rows * o->cols;

    *ret_stack = ZINF_NONE;
    if (role != (zinf_operand_access(c->instr, slot).writes ? GRAD : PARAM))
        return false;
    const uint64_t origin = role == GRAD ? grad_origin(c, o) : c->seen[slot].origin;
    if (origin == NO_ORIGIN)
        return role == GRAD;
    const zinf_unit *u = &c->plan->units[unit_of(c, o)];
    const uint64_t at = (lo - origin) / element;
    uint64_t end;
    const zinf_part *first = part_at(c, u, at, ret_row), *last = part_at(c, u, at + n - 1, &end);
    if (!first || !last || lo < origin || o->bytes != n * element)
        return false;
    const uint64_t cols = c->plan->tensors[first->tensor].cols;
    c->at[slot] = at;
    *ret_stack = c->stack[first->tensor];
    *ret_rows = n / cols;
    return *ret_stack == c->stack[last->tensor] && n % cols == 0 &&
           (at - first->at) % cols == 0 && end - *ret_row + 1 == *ret_rows;
}

/* An operator reads a unit's parameters: in one step always the same ones. kind: 1, 2 as uses. */
static bool use_params(zinf_checker *c, const zinf_operand *o, uint8_t kind)
{
    if (role_of(c, o) != PARAM)
        return true;
    c->tallies[unit_of(c, o)].uses |= kind;
    return !c->tallies[unit_of(c, o)].done ||
           refuse(c, "C7", 0, o, "is used again after the update of its unit");
}

/* An operator and its weight: see opcodes.h. Sets what its results are made of. */
static bool check_operator(zinf_checker *c)
{
    const unsigned opcode = c->instr->opcode;
    const uint32_t w = (uint32_t)strcspn(c->links, "WA"), n_tensors = c->plan->n_tensors;
    const bool weight = c->links[w], norm = strchr(c->links, 'N') && strchr(c->links, 'R');
    const bool back = strpbrk(c->links, "CD"), embeds = opcode == ZINF_OP_EMBEDDING_FORWARD;
    applied use = {OF_NOTHING, OF_NOTHING, OF_NOTHING, NO_ORIGIN};
    uint32_t stack;
    uint64_t row, rows;

    if (weight && (!place(c, w, &c->tensor, &c->row, &c->n_rows) || c->tensor == ZINF_NONE ||
                   (c->links[w] == 'A' && c->row != c->instr->attr[0])))
        return refuse(c, "C4", 0, &c->o[w], "is not whole rows of one stack of tensors");
    if (weight && !use_params(c, &c->o[w], embeds ? 2 : 1))
        return false;
    c->made_of = weight ? 256 * (uint64_t)c->tensor : c->seen[0].made_of + 1;
    for (uint32_t k = 0; k < c->instr->n_operands; k++) {
        const zinf_operand *o = &c->o[k];
        const cell *x = &c->seen[k];
        const char link = o->bytes ? c->links[k] : '.';
        if (x->value != ZINF_NONE && role_of(c, o) == NOTHING && link != 'S' &&
            x->back != (strchr("CD", link) || (norm && link == 'R')))
            return refuse(c, "C4", 0, o, "is a gradient, or should be one");
        if (strchr("NGCD", link) && x->made_of != c->made_of &&
            opcode != ZINF_OP_POSITION_BACKWARD)
            return refuse(c, "C4", 0, o, "comes of another operator than this one");
        if ((link == 'C' || (link == 'R' && !norm)) &&
            (here(c, o) - x->origin != c->row * zinf_dtype_bytes(o->dtype) ||
             (o->rows > 1 && o->ld != c->stack_rows[c->tensor])))
            return refuse(c, "C4", 0, o, "is not the columns that belong to the weight's rows");
        if (strchr("BP", link)) {
            if (!place(c, k, &stack, &row, &rows) ||
                (stack != ZINF_NONE && row != (link == 'B' ? c->row : 0)))
                return refuse(c, "C4", 0, o, "is not the rows that belong to the weight's");
            if (!use_params(c, o, 1))
                return false;
            use.bias = stack;
            use.bias_at = c->at[k] - (link == 'B' ? c->row : 0);
        }
        use.x = link == 'X' ? x->made_of : use.x;
        use.residual = link == 'R' ? x->made_of : use.residual;
    }
    applied *known = &c->uses[c->tensor + embeds * n_tensors];
    if (opcode == ZINF_OP_POSITION_BACKWARD) /* added to the embedding of tokens */
        return c->uses[c->seen[0].made_of / 256 % n_tensors + n_tensors].bias == c->tensor ||
               refuse(c, "C4", 0, c->o, "comes of another operator than this one");
    if (weight && !back && known->x == UNKNOWN) {
        /* Tensors are used in their order, but for the embedding as a head: none are exchanged. */
        const bool tied = !embeds && c->uses[c->tensor + n_tensors].x != UNKNOWN;
        const bool scales =
            opcode == ZINF_OP_LAYERNORM_FORWARD || opcode == ZINF_OP_RMSNORM_FORWARD;
        const zinf_tensor *tensors = c->plan->tensors;
        if (!tied && (c->tensor < c->unused || use.bias <= c->tensor))
            return refuse(c, "C4", 0, &c->o[w], "is used first after a tensor that comes later");
        if (tensors[c->tensor].n_dims != (scales ? 1 : 2) ||
            (use.bias != OF_NOTHING && tensors[use.bias].n_dims != (embeds ? 2 : 1)))
            return refuse(c, "C4", 0, &c->o[w],
                          "has a vector where a matrix belongs, or it is one");
        if (!tied)
            c->unused = 1 + (use.bias == OF_NOTHING ? c->tensor : use.bias);
        *known = use;
        if (use.residual / 256 < n_tensors)
            c->branches[use.residual / 256] = c->made_of;
    }
    if (weight && ((strchr(c->links, 'X') && known->x != use.x) ||
                   (!back && memcmp(known, &use, sizeof use))))
        return refuse(c, "C4", 0, &c->o[w], "is applied to another input, or with another bias or "
                      "residual, than elsewhere");
    if (norm && use.residual != (use.x / 256 < n_tensors ? c->branches[use.x / 256] : OF_NOTHING))
        return refuse(c, "C4", 0, &c->o[w], "what it normalised is a residual, too, or is not: its "
                      "gradient has a part too few, too many or another one");
    c->back = back;
    if (back)
        c->made_of = weight ? known->x : c->seen[0].made_of;
    for (uint32_t k = 0; back && k < c->instr->n_operands; k++)
        if (strchr("wbB", c->links[k])) /* gradients of what the forward has used */
            c->at[k] = c->links[k] == 'w' ? c->at[w] : known->bias_at + (norm ? 0 : c->row);
    return true;
}

/* ---- C7: the state of a unit ---- */

/* The operand is what this rank has of an array of the unit that the instruction serves, all of
 * it, at byte `at` of the region. */
static bool is_array(zinf_checker *c, uint32_t slot, state role, uint64_t at)
{
    const zinf_operand *o = &c->o[slot];
    const cell *x = &c->seen[slot]; /* of no value if it is not read */

    if (c->instr->unit >= c->plan->n_units || role_of(c, o) != stored(c, role) ||
        unit_of(c, o) != c->instr->unit ||
        o->rows * o->cols != c->plan->units[c->instr->unit].shard_elems ||
        (x->value == o->value && x->origin != NO_ORIGIN && x->origin + at != here(c, o)))
        return refuse(c, "C7", 0, o, "is not the unit's own array, whole and in its place");
    return true;
}

static bool is_state(zinf_checker *c, uint32_t slot)
{
    const uint64_t stride = c->plan->units[c->instr->unit].array_stride;
    const zinf_operand *o = &c->o[slot];

    for (uint32_t i = 0; i < 3; i++)
        if (o[i].tier != o->tier || o[i].offset != o->offset + i * stride)
            return refuse(c, "C7", 0, &o[i], "is not at its distance from the master copy");
        else if (!is_array(c, slot + i, OPTIMIZER, i * stride))
            return false;
    return true;
}

bool zinf_checker_add(const sum *first, const sum *second, sum *ret_sum)
{
    const bool continues = !first->n || !second->n ||
                           (second->first == first->first + first->n && second->n == 1);

    *ret_sum = first->n ? (sum){first->first, first->n + second->n} : *second;
    return continues;
}

bool zinf_checker_complete(zinf_checker *c, uint32_t unit, const sum sums[2])
{
    const zinf_operand grad = region(c, unit, GRAD);
    char wrong[200];

    for (int i = 0; i < 2; i++) {
        const uint32_t due = c->tallies[unit].uses >> i & 1 ? c->losses : 0;
        snprintf(wrong, sizeof wrong, "has %" PRIu32 " contributions to its unit of the %s where %"
                 PRIu32 " are due (loops visited %d times at most)", sums[i].n,
                 i ? "embedding" : "operators", due, ZINF_UNROLL);
        if (sums[i].n != due || sums[i].first)
            return refuse(c, "C7", 0, &grad, wrong);
    }
    return true;
}

/* The loss, which CLIP (that waits for it, too) and the runtime read, is the sum over all
 * micro-batches and ranks. */
bool zinf_checker_loss_is_whole(zinf_checker *c, bool waits)
{
    const zinf_operand o = {.tier = ZINF_TIER_SCALAR, .bytes = 8, .value = ZINF_NONE};
    const uint32_t i = zinf_intervals_cut(&c->maps[o.tier], 8 * ZINF_SCALAR_LOSS,
                                          8 * ZINF_SCALAR_LOSS + 8);
    const cell *x = i == ZINF_NO_INTERVAL ? NULL : cell_of(c, o.tier, i);

    return x && x->sums[0].n == c->losses && !x->part &&
           (!waits || zinf_checker_ordered(c, &o, x, false));
}

/* A collective of which one rank is the root. */
static bool of_root(const zinf_checker *c)
{
    return c->instr->opcode == ZINF_OP_BROADCAST || c->instr->opcode == ZINF_OP_REDUCE;
}

/* C6: what one rank owns is touched by what it does alone, which touches nothing else but scalars,
 * and, on its side, by the collective of which it is the root. */
static bool check_owned(zinf_checker *c)
{
    const bool alone = zinf_instr_owner(c->plan, c->instr) != ZINF_NONE;
    const uint32_t mine = of_root(c) ? c->instr->opcode == ZINF_OP_REDUCE : ZINF_MAX_OPERANDS;

    for (uint32_t k = 0; k < c->instr->n_operands; k++) {
        const zinf_operand *o = &c->o[k];
        const uint64_t owned = c->plan->machine.owned_bytes[o->tier];
        const state role = role_of(c, o);
        const bool one = role == PARAM_SHARD || role == GRAD_SHARD || role == OPTIMIZER;
        if (o->bytes == 0 || o->tier == ZINF_TIER_SCALAR)
            continue;
        const bool fine = alone || k == mine ? one && unit_of(c, o) == c->instr->unit
                                             : !one && o->offset >= owned;
        if (!fine)
            return refuse(c, "C6", 0, o, "is one rank's, which does not do this alone, or is not "
                          "the unit's for which one rank does this alone");
        if (o->offset < owned && o->offset + o->bytes + o->stride * (c->count - 1) > owned)
            return refuse(c, "C6", 0, o, "ends beyond what one rank owns");
    }
    return true;
}

/* An update that the step before has left: of what was found (checker.c), before its use. */
static bool is_pending(const zinf_checker *c, uint32_t unit)
{
    return (c->kind == ZINF_PROGRAM_STEP || c->kind == ZINF_PROGRAM_FLUSH) &&
           c->tallies[unit].uses == 0;
}

bool zinf_checker_pends(zinf_checker *c, uint64_t units)
{
    zinf_intervals *map = &c->maps[ZINF_TIER_SCALAR];
    const uint64_t hi = 8 * ZINF_SCALAR_PARTIALS;

    for (uint32_t i = zinf_intervals_cut(map, 8 * ZINF_SCALAR_NORM, hi); i != ZINF_NO_INTERVAL;
         i = zinf_intervals_next(map, i, hi)) {
        const cell *x = cell_of(c, ZINF_TIER_SCALAR, i);
        if (x->value != c->scalars || x->made_of != units || x->part)
            return false;
    }
    return !map->failed;
}

/* What was computed from tokens, and those, are of one micro-batch. */
static bool check_micro(zinf_checker *c)
{
    c->micro = NO_MICRO;
    for (uint32_t k = 0; k < c->instr->n_operands; k++) {
        const zinf_operand *o = &c->o[k];
        const cell *x = &c->seen[k];
        if (x->value == ZINF_NONE || o->tier == ZINF_TIER_SCALAR || role_of(c, o) != NOTHING)
            continue;
        const uint64_t micro = c->contents[o->value].batch
                                   ? (here(c, o) - x->origin) / o->bytes - c->unvisited : x->micro;
        if (micro >= NO_MICRO || (c->micro != NO_MICRO && c->micro != micro))
            return refuse(c, "C4", x->writer, o, "is not of the micro-batch that the others are");
        c->micro = (uint32_t)micro;
    }
    return true;
}

/* What the opcode demands; after the reads, before the writes. */
static bool check_role(zinf_checker *c)
{
    const zinf_plan *plan = c->plan;
    const zinf_operand *o = c->o;
    const uint32_t unit = c->instr->unit;
    const uint64_t batch = plan->decisions.micro_batch;
    const uint64_t first = o->offset / 8 - ZINF_SCALAR_PARTIALS; /* of CLIP: unit */
    const uint64_t root = of_root(c) ? c->instr->attr[0] : ZINF_NONE;
    const uint64_t due = plan->job.sequence *
                         (c->kind == ZINF_PROGRAM_STEP ? plan->job.global_batch
                                                       : batch * plan->decisions.ranks);

    switch (c->instr->opcode) {
    case ZINF_OP_BATCH:
        c->batches++;
        return c->kind != ZINF_PROGRAM_STEP || o->rows == batch * plan->decisions.accumulation ||
               refuse(c, "C7", 0, o, "is not every micro-batch of the step");
    case ZINF_OP_ROPE:
        c->made_of += c->back ? UINT64_MAX : 1;
        return (c->back == c->instr->attr[1] && o->value != o[1].value) ||
               refuse(c, "C4", 0, o, "is turned the wrong way, or no value of its own then");
    case ZINF_OP_LOGITS:
        c->logits += c->n_rows;
        return c->row + c->n_rows == c->logits ||
               refuse(c, "C4", 0, &o[1], "is not the tile that comes next");
    case ZINF_OP_LOSS:
        c->n_losses += c->iteration == 0 ? c->count : 0;
        return (o->rows == batch * plan->job.sequence && o[1].offset == 8 * ZINF_SCALAR_LOSS &&
                !c->clips && c->instr->attr[0] == due && c->micro == c->losses++) ||
               refuse(c, "C7", 0, o, "is not every token of the micro-batch that comes next into "
                      "the slot of the loss, before all norms, as a part of all tokens");
    case ZINF_OP_CONVERT:
        return role_of(c, &o[1]) != stored(c, PARAM) ||
               (is_array(c, 1, PARAM, 0) && is_array(c, 0, OPTIMIZER, 0));
    case ZINF_OP_ACCUMULATE:
        return (is_grad(role_of(c, &o[1])) && o->value == o[1].value) ||
               refuse(c, "C7", 0, o, "is no contribution to that gradient");
    case ZINF_OP_SUM_OF_SQUARES:
        if (unit >= plan->n_units || o[1].offset != 8 * ((uint64_t)ZINF_SCALAR_PARTIALS + unit))
            return refuse(c, "C7", 0, &o[1], "is not the slot of the unit it serves");
        memcpy(c->tallies[unit].normed, c->seen[0].sums, sizeof c->seen[0].sums);
        return is_array(c, 0, GRAD, 0);
    case ZINF_OP_CLIP:
        c->clips++;
        if (c->kind != ZINF_PROGRAM_STEP)
            return refuse(c, "C7", 0, o, "is the norm of a step in another program");
        if (!zinf_checker_loss_is_whole(c, true))
            return refuse(c, "C7", 0, o, "comes before the loss of all ranks");
        if (o[1].offset != 8 * ZINF_SCALAR_NORM || first >= plan->n_units || o->rows != 1 ||
            o->cols > plan->n_units - first || (plan->job.clip > 0 && o->cols != plan->n_units))
            return refuse(c, "C7", 0, o, "is not the norm of all units");
        for (uint64_t u = first; u < first + o->cols; u++) {
            if (!zinf_checker_complete(c, (uint32_t)u, c->tallies[u].normed))
                return false;
            c->tallies[u].clipped = true;
        }
        c->made_of = first << 32 | o->cols;
        return true;
    case ZINF_OP_ADAM:
        if (c->tallies[unit].updates++ || o[5].offset != 8 * ZINF_SCALAR_NORM ||
            !(c->late ? is_pending(c, unit)
                      : c->kind == ZINF_PROGRAM_STEP && c->tallies[unit].clipped &&
                            unit - (c->seen[5].made_of >> 32) < (uint32_t)c->seen[5].made_of))
            return refuse(c, "C7", 0, o, c->late ? "is not the one update of its unit, from what "
                          "the step before left, before its use" : "is not the one update of its "
                          "unit, after its norm");
        c->tallies[unit].done = c->tallies[unit].uses;
        return is_array(c, 0, GRAD, 0) && is_state(c, 1) && is_array(c, 4, PARAM, 0) &&
               (c->late || zinf_checker_complete(c, unit, c->seen[0].sums));
    case ZINF_OP_ZERO:
        if (o->tier != ZINF_TIER_SCALAR)
            return true;
        c->made_of = 0;
        return (c->late && o->offset == 8 * ZINF_SCALAR_NORM &&
                o->cols == ZINF_N_UPDATE_SCALARS && c->kind != ZINF_PROGRAM_STEP) ||
               refuse(c, "C7", 0, o, "is not the scalars of an update, of which nothing is left");
    case ZINF_OP_INIT:
    case ZINF_OP_IMPORT:
    case ZINF_OP_EXPORT:
        c->tallies[unit].updates++;
        return (c->kind == (c->instr->opcode == ZINF_OP_INIT     ? ZINF_PROGRAM_INIT
                            : c->instr->opcode == ZINF_OP_IMPORT ? ZINF_PROGRAM_LOAD
                                                                 : ZINF_PROGRAM_SAVE) ||
                refuse(c, "C7", 0, o, "is made, loaded or saved by another program")) &&
               is_state(c, 0);
    case ZINF_OP_ALLGATHER:
    case ZINF_OP_BROADCAST:
        return (is_array(c, 0, PARAM, 0) && o[1].value == plan->units[unit].whole_param &&
                plan->units[unit].owner == root) ||
               refuse(c, "C6", 0, o, "is not a unit's shard, or all of it from the rank that owns "
                      "it, into its whole");
    case ZINF_OP_REDUCE_SCATTER:
    case ZINF_OP_REDUCE:
        return (is_array(c, 1, GRAD, 0) && o->value == plan->units[unit].whole_grad &&
                plan->units[unit].owner == root &&
                (c->seen[0].origin == here(c, o) || c->seen[0].origin == NO_ORIGIN)) ||
               refuse(c, "C6", 0, o, "is not a unit's gradient, whole, into its shard, or to the "
                      "rank that owns it");
    case ZINF_OP_ALLREDUCE:
        return (o->offset == o[1].offset && o->value != o[1].value) ||
               refuse(c, "C6", 0, o, "is not summed in place, into a value of its own");
    default:
        return true;
    }
}

static int compare_names(const void *a, const void *b)
{
    return strcmp((*(const zinf_tensor *const *)a)->name, (*(const zinf_tensor *const *)b)->name);
}

bool zinf_checker_statements(zinf_checker *c)
{
    const zinf_plan *plan = c->plan;
    const zinf_decisions *d = &plan->decisions;
    const uint64_t due = zinf_overhead_bytes(plan, false);
    const zinf_tensor **sorted = malloc((plan->n_tensors + (size_t)1) * sizeof *sorted);
    uint64_t batch, n_params = 0, empty = 0;
    const char *twice = NULL;

    if (!sorted)
        return no_memory(c);
    for (uint32_t t = 0; t < plan->n_tensors; t++) {
        sorted[t] = &plan->tensors[t];
        n_params += plan->tensors[t].rows * plan->tensors[t].cols; /* each below 2^50 */
    }
    qsort(sorted, plan->n_tensors, sizeof *sorted, compare_names);
    for (uint32_t t = 1; t < plan->n_tensors && !twice; t++)
        if (!strcmp(sorted[t - 1]->name, sorted[t]->name))
            twice = sorted[t]->name;
    free(sorted);
    c->kind = ZINF_PROGRAM_STEP;
    c->index = ZINF_NONE;
    if (twice)
        return refuse(c, "C4", 0, NULL, "two tensors have one name: a checkpoint would hold one");
    if (n_params != plan->model.n_params)
        return refuse(c, "C4", 0, NULL, "the model's parameters are not those of its tensors");
    if (__builtin_mul_overflow((uint64_t)d->micro_batch * d->accumulation, d->ranks, &batch) ||
        batch != plan->job.global_batch)
        return refuse(c, "C7", 0, NULL, "the global batch is not every micro-batch of every rank");
    if (!strcmp(plan->machine.backend, "cpu") &&
        plan->machine.overhead_bytes[plan->machine.unified ? ZINF_TIER_DEVICE : ZINF_TIER_HOST] <
            due)
        return refuse(c, "C1", 0, NULL, "less memory is stated than zinf-run takes beside arenas");
    for (int k = 0; k < ZINF_N_PROGRAMS; k++)
        empty += k != ZINF_PROGRAM_FLUSH && k != ZINF_PROGRAM_SAMPLE &&
                 plan->programs[k].n_segments == 0;
    return empty == 0 || refuse(c, "C8", 0, NULL, "a plan makes, trains, saves and loads its "
                                "states, and evaluates: one of these programs is empty");
}

bool zinf_checker_operands(zinf_checker *c)
{
    return (copies(c->instr->opcode) || check_micro(c)) &&
           (*c->links == '\0' || check_operator(c)) &&
           (c->plan->decisions.partitioning != ZINF_OWNER || check_owned(c)) && check_role(c);
}
