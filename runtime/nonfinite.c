/* runtime/nonfinite.c - see nonfinite.h. */
#include "runtime/nonfinite.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "runtime/executor_internal.h"

/* Called by SUM_OF_SQUARES where its result is not finite; x is the unit's gradient so far. */
void zinf_nonfinite_note(zinf_executor *executor, const zinf_op *op, const float *x, uint64_t n)
{
    if (op->instr->unit >= executor->plan->n_units)
        return;
    zinf_noted *noted = &executor->noted[op->instr->unit];
    uint64_t first;
    zinf_unit_range(&executor->plan->units[op->instr->unit], executor->collective->rank, &first);
    for (uint64_t i = 0; i < n && noted->place == 0; i++)
        if (!isfinite(x[i]))
            *noted = (zinf_noted){.place = first + i + 1, .value = x[i]};
    atomic_store(&executor->any_noted, true);
}

void zinf_nonfinite_forget(zinf_executor *executor)
{
    if (!atomic_load(&executor->any_noted))
        return;
    memset(executor->noted, 0, executor->plan->n_units * sizeof *executor->noted);
    atomic_store(&executor->any_noted, false);
}

/* Where an element of a unit is in its tensor. */
static void place(const zinf_plan *plan, uint32_t index, uint64_t element,
                  zinf_nonfinite *ret_first)
{
    const zinf_unit *unit = &plan->units[index];

    ret_first->unit = index;
    for (uint32_t i = 0; i < unit->n_parts; i++) {
        const zinf_part *part = &plan->parts[unit->first_part + i];
        const uint64_t cols = plan->tensors[part->tensor].cols;
        if (element < part->at || element - part->at >= part->n_rows * cols)
            continue;
        ret_first->tensor = part->tensor;
        ret_first->row = part->first_row + (element - part->at) / cols;
        ret_first->col = (element - part->at) % cols;
        return;
    }
    ret_first->tensor = ZINF_NONE; /* padding: no tensor's */
}

bool zinf_executor_first_nonfinite(const zinf_executor *executor, zinf_nonfinite *ret_first)
{
    const zinf_plan *plan = executor->plan;
    const zinf_program *step = &plan->programs[ZINF_PROGRAM_STEP];

    for (uint32_t s = step->first_segment; s < step->first_segment + step->n_segments; s++)
        for (uint32_t k = 0; k < plan->segments[s].n_instrs; k++) {
            const zinf_instr *instr = &plan->instrs[plan->segments[s].first_instr + k];
            if (instr->opcode != ZINF_OP_SUM_OF_SQUARES || instr->unit >= plan->n_units ||
                executor->noted[instr->unit].place == 0)
                continue;
            place(plan, instr->unit, executor->noted[instr->unit].place - 1, ret_first);
            ret_first->value = executor->noted[instr->unit].value;
            return true;
        }
    return false;
}

/* printf would write "-nan" for most of them. */
static const char *word(double value)
{
    return isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

static void where(const zinf_plan *plan, const zinf_nonfinite *first, char *ret_text, uint64_t n)
{
    const zinf_unit *unit = &plan->units[first->unit];
    char layer[32] = "outside the blocks";

    if (unit->layer >= 0)
        snprintf(layer, sizeof layer, "layer %" PRId32, unit->layer);
    if (first->tensor == ZINF_NONE)
        snprintf(ret_text, n, "\"%s\" (%s)", unit->name, layer);
    else
        snprintf(ret_text, n, "\"%s\" (%s) at row %" PRIu64 ", column %" PRIu64,
                 plan->tensors[first->tensor].name, layer, first->row, first->col);
}

void zinf_nonfinite_explain(const zinf_plan *plan, const zinf_executor *executor,
                            const zinf_env *env, char *ret_text, uint64_t n)
{
    zinf_nonfinite first;
    char loss[64] = "finite", place_text[256];

    if (!isfinite(env->loss))
        snprintf(loss, sizeof loss, "%s", word(env->loss));
    else
        snprintf(loss, sizeof loss, "%.6g", env->loss);
    if (zinf_executor_first_nonfinite(executor, &first)) {
        where(plan, &first, place_text, sizeof place_text);
        snprintf(ret_text, n, "the loss is %s, and the first gradient in backward order that is "
                 "not finite is %s: %s", loss, place_text, word(first.value));
    } else if (!isfinite(env->loss)) {
        snprintf(ret_text, n, "the loss is %s, all gradients are finite", loss);
    } else {
        snprintf(ret_text, n, "the loss is %s, but the gradient norm of %.6g (after clipping, "
                 "limit %.3g) is too large for the second moments", loss, env->norm,
                 ZINF_LARGEST_NORM);
    }
}
