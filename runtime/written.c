/* runtime/written.c - see written.h. */
#include "runtime/written.h"

#include "runtime/intervals.h"
#include "runtime/opcodes.h"
#include "runtime/refusal.h"

typedef struct written {
    const zinf_plan *plan;
    zinf_error *err;
    zinf_intervals map; /* of the nvme tier: bool, written */
    uint32_t program, instr;
} written;

/* All of [lo, hi) is written from now on, or must be so already. */
static bool visit(written *w, uint64_t lo, uint64_t hi, const zinf_operand *o, bool writes)
{
    for (uint32_t i = zinf_intervals_cut(&w->map, lo, hi); i != ZINF_NO_INTERVAL;
         i = zinf_intervals_next(&w->map, i, hi)) {
        bool *is_written = zinf_intervals_payload(&w->map, i);
        if (!writes && !*is_written)
            return !zinf_refuse(w->plan, "C4", w->program, w->instr, ZINF_NONE, o,
                                "storage is read where nothing was written", w->err);
        *is_written = true;
    }
    zinf_intervals_merge(&w->map, lo, hi);
    return !w->map.failed ||
           !zinf_fail(w->err, ZINF_MACHINE, "out of memory while checking the plan");
}

/* The regions that outlive a program, as it finds or leaves them. */
static bool visit_regions(written *w, bool finds)
{
    w->instr = ZINF_NONE;
    for (uint32_t u = 0; u < w->plan->n_units; u++) {
        const zinf_unit *unit = &w->plan->units[u];
        const zinf_region *regions[] = {&unit->param, &unit->optimizer, &unit->grad};
        for (int k = 0; k < (unit->late ? 3 : 2); k++) {
            const zinf_operand o = {.tier = ZINF_TIER_NVME, .offset = regions[k]->offset,
                                    .bytes = regions[k]->bytes, .value = regions[k]->value};
            const uint64_t lo = zinf_operand_at(w->plan, &(zinf_instr){.unit = u}, &o);
            if (o.bytes && regions[k]->tier == ZINF_TIER_NVME &&
                !visit(w, lo, lo + o.bytes, &o, finds))
                return false;
        }
    }
    return true;
}

/* The first iteration of a loop stands for all: what is written stays so. */
static bool visit_program(written *w, const zinf_program *program)
{
    const bool fills = w->program == ZINF_PROGRAM_INIT || w->program == ZINF_PROGRAM_LOAD;
    const zinf_segment *s = &w->plan->segments[program->first_segment];

    if (!fills && !visit_regions(w, true))
        return false;
    for (const zinf_segment *end = s + program->n_segments; s < end; s++)
        for (w->instr = s->first_instr; w->instr < s->first_instr + s->n_instrs; w->instr++) {
            const zinf_instr *instr = &w->plan->instrs[w->instr];
            const bool writes = instr->opcode == ZINF_OP_WRITE;
            const zinf_operand *o = &w->plan->operands[instr->operand0 + writes];
            if (!writes && instr->opcode != ZINF_OP_READ)
                continue;
            const uint64_t lo = zinf_operand_at(w->plan, instr, o);
            if (!visit(w, lo, lo + o->bytes + o->stride * (s->count - 1), o, writes))
                return false;
        }
    return !fills || visit_regions(w, false);
}

zinf_status zinf_plan_check_written(const zinf_plan *plan, zinf_error *err)
{
    written w = {.plan = plan, .err = err};
    bool ok = true;

    for (; ok && w.program < ZINF_N_PROGRAMS; w.program++) {
        ok = zinf_intervals_init(&w.map, sizeof(bool), &(bool){false});
        if (!ok)
            zinf_fail(err, ZINF_MACHINE, "out of memory while checking the plan");
        ok = ok && visit_program(&w, &plan->programs[w.program]);
    }
    zinf_intervals_free(&w.map);
    return err->status;
}
