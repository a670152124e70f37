/* runtime/moved.c - see moved.h. */
#include "runtime/moved.h"

#include <string.h>

#include "runtime/opcodes.h"

/* The class whose state an operand's value is; -1 for none of them. */
static int class_of(const zinf_plan *plan, const zinf_instr *instr, uint32_t value)
{
    if (instr->unit != ZINF_NONE) {
        const zinf_unit *unit = &plan->units[instr->unit];
        if (value == unit->param.value)
            return ZINF_CLASS_PARAM;
        if (value == unit->grad.value || value == unit->whole_grad)
            return ZINF_CLASS_GRAD;
        if (value == unit->optimizer.value)
            return ZINF_CLASS_OPTIMIZER;
        return -1;
    }
    return instr->layer >= 0 ? ZINF_CLASS_CHECKPOINT : -1;
}

/* What a rank sends to the others: its shard to each, each other shard's part of a sum; or a root
 * its unit to each, each its gradient to a root: of these `among` ranks share the bytes. */
static uint64_t sent_bytes(const zinf_plan *plan, const zinf_instr *instr, uint64_t *ret_among)
{
    const zinf_operand *o = &plan->operands[instr->operand0];
    const uint64_t part = instr->opcode == ZINF_OP_REDUCE_SCATTER ? o[1].bytes : o[0].bytes;
    const bool rooted = instr->opcode == ZINF_OP_BROADCAST || instr->opcode == ZINF_OP_REDUCE;

    *ret_among = rooted ? plan->decisions.ranks : 1;
    return part * (plan->decisions.ranks - 1);
}

/* What is not divided yet waits in *rest. */
static void add_share(uint64_t bytes, uint64_t among, uint64_t *sum, uint64_t *rest)
{
    *rest += bytes % among;
    *sum += bytes / among + *rest / among;
    *rest %= among;
}

void zinf_count_moved(const zinf_plan *plan, zinf_predicted *ret_counts)
{
    const zinf_program *step = &plan->programs[ZINF_PROGRAM_STEP];
    zinf_predicted *p = ret_counts;
    uint64_t moved[ZINF_N_QUEUES] = {0}, read[ZINF_N_CLASSES] = {0}, written[ZINF_N_CLASSES] = {0};
    uint64_t among;

    memset(p->traffic, 0, sizeof p->traffic);
    memset(p->moved_bytes, 0, sizeof p->moved_bytes);
    p->n_collectives = 0;
    for (uint32_t g = 0; g < step->n_segments; g++) {
        const zinf_segment *segment = &plan->segments[step->first_segment + g];
        for (uint32_t i = 0; i < segment->n_instrs; i++) {
            const zinf_instr *instr = &plan->instrs[segment->first_instr + i];
            const zinf_operand *o = &plan->operands[instr->operand0];
            if (instr->queue == ZINF_QUEUE_COLLECTIVE) {
                p->n_collectives += (uint32_t)segment->count;
                const uint64_t sent = sent_bytes(plan, instr, &among) * segment->count;
                add_share(sent, among, &p->moved_bytes[instr->queue], &moved[instr->queue]);
            }
            if (instr->queue < ZINF_QUEUE_UPLOAD || instr->queue > ZINF_QUEUE_WRITE)
                continue;
            const uint64_t bytes = o->bytes * segment->count;
            among = zinf_instr_owner(plan, instr) == ZINF_NONE ? 1 : plan->decisions.ranks;
            add_share(bytes, among, &p->moved_bytes[instr->queue], &moved[instr->queue]);
            int c = class_of(plan, instr, o->value);
            if (c < 0)
                continue;
            bool nvme = plan->decisions.tier[c] == ZINF_TIER_NVME;
            if (instr->queue == (nvme ? ZINF_QUEUE_READ : ZINF_QUEUE_UPLOAD))
                add_share(bytes, among, &p->traffic[c].read_bytes, &read[c]);
            if (instr->queue == (nvme ? ZINF_QUEUE_WRITE : ZINF_QUEUE_DOWNLOAD))
                add_share(bytes, among, &p->traffic[c].write_bytes, &written[c]);
        }
    }
}
