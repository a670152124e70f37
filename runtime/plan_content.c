/* runtime/plan_content.c - see plan_content.h. */
#include "runtime/plan_content.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/opcodes.h"

#define RULE(rule, ...) zinf_fail(err, ZINF_DOES_NOT_FIT, rule ": " __VA_ARGS__)
#define HERE "instruction %" PRIu32 " (%s \"%s\"): "
#define HERE_ARGS index, zinf_opcode_get(instr->opcode)->name, &plan->strings[instr->name]
#define IN(program) (1u << ZINF_PROGRAM_##program)

/* What is written is the same in every iteration, and overlaps no other operand: but for what
 * works in place. What is read moves on by the micro-batches of one iteration. Gradients of
 * parameters are made, and added by ACCUMULATE: a kernel that adds to them rounds otherwise. */
static zinf_status check_overlap(const zinf_plan *plan, uint32_t index, uint64_t count,
                                 uint64_t n_losses, zinf_error *err)
{
    const zinf_instr *instr = &plan->instrs[index];
    const zinf_operand *o = &plan->operands[instr->operand0];
    const bool in_place = instr->opcode == ZINF_OP_ROPE || instr->opcode == ZINF_OP_ALLREDUCE;

    for (unsigned a = 0; a < instr->n_operands; a++) {
        const bool writes = o[a].bytes && zinf_operand_access(instr, a).writes;
        if (writes && o[a].stride)
            return RULE("C3", HERE "operand %u, which is written, has a stride", HERE_ARGS, a);
        if (o[a].stride && o[a].stride != n_losses * plan->decisions.micro_batch *
                                              (plan->job.sequence + 1) * sizeof(int32_t))
            return RULE("C4", HERE "operand %u moves on by other tokens than its loop has losses "
                        "of", HERE_ARGS, a);
        if (!writes)
            continue;
        if (strchr("wbp", zinf_instr_links(instr)[a + 1]) && zinf_operand_access(instr, a).reads)
            return RULE("C7", HERE "operand %u, a gradient, is added to by what makes it, not by "
                        "accumulate", HERE_ARGS, a);
        for (unsigned b = 0; b < instr->n_operands && !in_place; b++)
            if (a != b && o[b].bytes && o[a].tier == o[b].tier &&
                o[b].offset < o[a].offset + o[a].bytes &&
                o[a].offset < o[b].offset + o[b].bytes + o[b].stride * (count - 1))
                return RULE("C3", HERE "operand %u, which is written, overlaps operand %u",
                            HERE_ARGS, a, b);
    }
    if (in_place && (o[0].tier != o[1].tier || o[0].offset != o[1].offset || o[0].stride))
        return RULE("C6", HERE "it works in place, its two operands are two places", HERE_ARGS);
    return ZINF_OK;
}

/* What ranks own is touched by what the owner does alone, and on its side by a collective of which
 * it is the root; no operand is partly there. */
static zinf_status check_owned(const zinf_plan *plan, uint32_t index, uint64_t count,
                               zinf_error *err)
{
    const zinf_instr *instr = &plan->instrs[index];
    const bool rooted = instr->opcode == ZINF_OP_BROADCAST || instr->opcode == ZINF_OP_REDUCE;
    const unsigned side = !rooted ? ZINF_MAX_OPERANDS : instr->opcode == ZINF_OP_REDUCE;

    if ((rooted || instr->opcode == ZINF_OP_ALLGATHER || instr->opcode == ZINF_OP_REDUCE_SCATTER) &&
        (instr->unit >= plan->n_units ||
         plan->units[instr->unit].owner != (rooted ? instr->attr[0] : ZINF_NONE)))
        return RULE("C6", HERE "its unit is not that of its root, or of all ranks", HERE_ARGS);
    for (unsigned slot = 0; slot < instr->n_operands; slot++) {
        const zinf_operand *o = &plan->operands[instr->operand0 + slot];
        const uint64_t owned = o->bytes ? plan->machine.owned_bytes[o->tier] : 0;
        if (o->offset < owned &&
            (o->offset + o->bytes + o->stride * (count - 1) > owned ||
             (slot != side && zinf_instr_owner(plan, instr) == ZINF_NONE)))
            return RULE("C6", HERE "operand %u is in what one rank owns, which does not do this "
                        "alone, or ends beyond it", HERE_ARGS, slot);
    }
    return ZINF_OK;
}

/* Scalars are where the runtime and other instructions look for them. */
static zinf_status check_slots(const zinf_plan *plan, uint32_t index, zinf_error *err)
{
    const zinf_instr *instr = &plan->instrs[index];
    const zinf_operand *o = &plan->operands[instr->operand0];
    const uint64_t partials = 8 * (uint64_t)ZINF_SCALAR_PARTIALS, norm = 8 * ZINF_SCALAR_NORM;
    const uint64_t n = plan->n_units;
    bool right = true;

    switch (instr->opcode) {
    case ZINF_OP_LOSS:
        right = o[1].offset == 8 * ZINF_SCALAR_LOSS;
        break;
    case ZINF_OP_SUM_OF_SQUARES:
        right = instr->unit < n && o[1].offset == partials + 8 * (uint64_t)instr->unit;
        break;
    case ZINF_OP_CLIP:
        if (o->rows != 1 || (o->cols != n && (plan->job.clip > 0 ||
                                              plan->decisions.optimizer_time != ZINF_IN_BACKWARD)))
            return RULE("C7", HERE "is not the norm of all units", HERE_ARGS);
        right = o->offset >= partials && o->offset + o->bytes <= partials + 8 * n &&
                o[1].offset == norm;
        break;
    case ZINF_OP_ADAM:
        right = o[5].offset == norm;
        break;
    default:
        break;
    }
    return right ? ZINF_OK : RULE("C7", HERE "a scalar is not in its slot", HERE_ARGS);
}

/* Each unit is made, loaded, saved and updated by one instruction of the program that does this,
 * each batch drawn by one; no other program does, or takes a norm. In n_seen are those so far, by
 * unit, and behind them batches, losses or logits, and the tokens of a classifier's chunk. */
static zinf_status check_program(const zinf_plan *plan, zinf_program_kind program, uint32_t index,
                                 uint64_t count, uint64_t *n_seen, zinf_error *err)
{
    const zinf_decisions *d = &plan->decisions;
    const bool late = d->optimizer_time == ZINF_IN_FORWARD, steps = program == ZINF_PROGRAM_STEP;
    const zinf_instr *instr = &plan->instrs[index];
    const zinf_operand *o = &plan->operands[instr->operand0];
    const char *links = zinf_instr_links(instr);
    const uint64_t batch = program == ZINF_PROGRAM_SAMPLE ? 1 : d->micro_batch;
    const bool logits = instr->opcode == ZINF_OP_LOGITS;
    unsigned programs;

    if (*links != '-' && o->rows != batch * (links[1] == 'T' ? 1 : plan->job.sequence))
        return RULE("C7", HERE "is not of every token of a micro-batch", HERE_ARGS);
    switch (instr->opcode) {
    case ZINF_OP_INIT:
        programs = IN(INIT);
        break;
    case ZINF_OP_IMPORT:
        programs = IN(LOAD);
        break;
    case ZINF_OP_EXPORT:
        programs = IN(SAVE);
        break;
    case ZINF_OP_ADAM:
        programs = plan->units[instr->unit].late ? IN(STEP) | IN(FLUSH) : IN(STEP);
        break;
    case ZINF_OP_BATCH:
        programs = IN(STEP) | IN(EVAL) | IN(SAMPLE);
        if (o->rows != batch * (steps ? d->accumulation : 1))
            return RULE("C7", HERE "is not every micro-batch of program %s", HERE_ARGS,
                        zinf_program_name(program));
        break;
    case ZINF_OP_LOGITS:
    case ZINF_OP_LOSS:
        n_seen[plan->n_units + 1] += logits ? o[1].rows * count : count;
        if (logits != (program == ZINF_PROGRAM_SAMPLE))
            return RULE("C7", HERE "is not what program %s does", HERE_ARGS,
                        zinf_program_name(program));
        if (!logits && instr->attr[0] != plan->job.sequence * (steps ? plan->job.global_batch
                                                          : (uint64_t)d->micro_batch * d->ranks))
            return RULE("C7", HERE "is not a part of all tokens", HERE_ARGS);
        return ZINF_OK;
    case ZINF_OP_CLASSIFIER:
    case ZINF_OP_CLASSIFIER_FORWARD:
    case ZINF_OP_CLASSIFIER_BACKWARD: /* or a loss or gradient depends on the micro-batch */
        if (n_seen[plan->n_units + 2] == 0)
            n_seen[plan->n_units + 2] = instr->attr[1];
        return n_seen[plan->n_units + 2] == instr->attr[1]
                   ? ZINF_OK : RULE("C4", HERE "takes other chunks of tokens than the one before",
                                    HERE_ARGS);
    case ZINF_OP_CLIP:
        return steps ? ZINF_OK
                     : RULE("C7", HERE "is the norm of a step in another program", HERE_ARGS);
    case ZINF_OP_ZERO:
        return o->tier != ZINF_TIER_SCALAR || (late && !steps)
                   ? ZINF_OK : RULE("C7", HERE "zeroes scalars of a step", HERE_ARGS);
    default:
        return ZINF_OK;
    }
    if (!(programs >> program & 1))
        return RULE("C7", HERE "is not what program %s does", HERE_ARGS,
                    zinf_program_name(program));
    uint64_t *n = &n_seen[instr->opcode == ZINF_OP_BATCH ? plan->n_units : instr->unit];
    if (count > 1 || ++*n > 1)
        return RULE("C7", HERE "does for a second time what program %s does once", HERE_ARGS,
                    zinf_program_name(program));
    return ZINF_OK;
}

/* What is missing in a program of which these were seen. */
static zinf_status check_whole(const zinf_plan *plan, unsigned program, const uint64_t *n_seen,
                               zinf_error *err)
{
    const bool there = plan->programs[program].n_segments > 0;
    const unsigned moving = IN(INIT) | IN(STEP) | IN(SAVE) | IN(LOAD);
    const unsigned drawing = IN(STEP) | IN(EVAL) | (there ? IN(SAMPLE) : 0);
    const uint64_t losses[ZINF_N_PROGRAMS] = {
        [ZINF_PROGRAM_STEP] = plan->decisions.accumulation, [ZINF_PROGRAM_EVAL] = 1,
        [ZINF_PROGRAM_SAMPLE] = there ? plan->model.vocab : 0};

    for (uint32_t u = 0; u < plan->n_units; u++)
        if (n_seen[u] == 0 && (moving | (plan->units[u].late ? IN(FLUSH) : 0)) >> program & 1)
            return RULE("C7", "program %s: unit \"%s\" is not updated or moved",
                        zinf_program_name(program), plan->units[u].name);
    if (n_seen[plan->n_units] == 0 && drawing >> program & 1)
        return RULE("C7", "program %s: there is no instruction that draws its batch",
                    zinf_program_name(program));
    if (n_seen[plan->n_units + 1] != losses[program])
        return RULE("C7", "program %s: it has %" PRIu64 " losses (sample: logits), %" PRIu64
                    " are due", zinf_program_name(program), n_seen[plan->n_units + 1],
                    losses[program]);
    return ZINF_OK;
}

zinf_status zinf_plan_check_content(const zinf_plan *plan, zinf_error *err)
{
    const zinf_decisions *d = &plan->decisions;
    uint64_t *n_seen = calloc(plan->n_units + (size_t)3, sizeof *n_seen), batch, last_norm = 0;

    if (!n_seen)
        return zinf_fail(err, ZINF_MACHINE, "out of memory checking %" PRIu32 " units",
                         plan->n_units);
    for (unsigned p = 0; p < ZINF_N_PROGRAMS && !err->status; p++) {
        const zinf_program *program = &plan->programs[p];
        memset(n_seen, 0, (plan->n_units + (size_t)3) * sizeof *n_seen);
        for (uint32_t k = 0; k < program->n_segments && !err->status; k++) {
            const zinf_segment *s = &plan->segments[program->first_segment + k];
            const uint64_t count = s->count;
            const uint32_t index = s->first_instr;
            const zinf_instr *instr = &plan->instrs[index];
            uint64_t n_losses = 0;
            for (uint32_t i = index; i < index + s->n_instrs; i++) {
                n_losses += instr[i - index].opcode == ZINF_OP_LOSS;
                if (instr[i - index].opcode == ZINF_OP_CLIP)
                    last_norm = plan->operands[instr[i - index].operand0].cols;
            }
            if (count > d->accumulation)
                RULE("C7", HERE "begins a loop of %" PRIu64 " in program %s, there are %" PRIu32
                     " micro-batches", HERE_ARGS, count, zinf_program_name(p), d->accumulation);
            for (uint32_t i = index; !err->status && i < index + s->n_instrs; i++)
                if (check_overlap(plan, i, count, n_losses, err) ||
                    check_owned(plan, i, count, err) || check_slots(plan, i, err) ||
                    check_program(plan, (zinf_program_kind)p, i, count, n_seen, err))
                    break;
        }
        if (!err->status)
            check_whole(plan, p, n_seen, err);
        if (p == ZINF_PROGRAM_STEP && last_norm != plan->n_units && !err->status)
            RULE("C7", "program step: the norm taken last is not that of all units");
    }
    free(n_seen);
    if (err->status)
        return err->status;
    if (__builtin_mul_overflow((uint64_t)d->micro_batch * d->accumulation, d->ranks, &batch) ||
        batch != plan->job.global_batch)
        return RULE("C7", "the global batch of %" PRIu64 " sequences is not every micro-batch of "
                    "every rank", plan->job.global_batch);
    return ZINF_OK;
}
