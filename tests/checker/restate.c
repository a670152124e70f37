/* tests/checker/restate.c - see restate.h. */
#include "tests/checker/restate.h"

#include "runtime/moved.h"
#include "runtime/overhead.h"

static void raise(uint64_t *high, uint64_t end)
{
    *high = end > *high ? end : *high;
}

void restate(zinf_plan *plan)
{
    zinf_machine_info *m = &plan->machine;
    const unsigned ours = m->unified ? ZINF_TIER_DEVICE : ZINF_TIER_HOST;
    uint64_t high[ZINF_N_TIERS] = {0};
    zinf_error err = {0};

    for (uint32_t s = 0; s < plan->n_segments; s++)
        for (uint32_t i = 0; i < plan->segments[s].n_instrs; i++) {
            const zinf_instr *instr = &plan->instrs[plan->segments[s].first_instr + i];
            for (uint32_t k = 0; k < instr->n_operands; k++) {
                const zinf_operand *o = &plan->operands[instr->operand0 + k];
                if (o->bytes && o->tier < ZINF_N_TIERS)
                    raise(&high[o->tier], o->offset + o->bytes +
                                              o->stride * (plan->segments[s].count - 1));
            }
        }
    for (uint32_t u = 0; u < plan->n_units; u++) {
        const zinf_region *r[] = {&plan->units[u].param, &plan->units[u].grad,
                                  &plan->units[u].optimizer};
        for (int k = 0; k < 3; k++)
            if (r[k]->bytes)
                raise(&high[r[k]->tier], r[k]->offset + r[k]->bytes);
    }
    plan->n_items = 0;
    for (unsigned t = 0; t < ZINF_N_TIERS; t++) {
        m->arena_bytes[t] = (high[t] + ZINF_PAGE - 1) / ZINF_PAGE * ZINF_PAGE;
        m->overhead_bytes[t] = 0;
        if (t != ZINF_TIER_SCALAR)
            plan->items[plan->n_items++] = (zinf_item){"all", m->arena_bytes[t], t, 0};
    }
    m->overhead_bytes[ours] = zinf_overhead_bytes(plan);
    for (unsigned t = 0; t < ZINF_N_TIERS; t++)
        raise(&m->capacity_bytes[t], m->arena_bytes[t] + m->overhead_bytes[t]);
    if (zinf_plan_validate(plan, &err) == ZINF_OK)
        zinf_count_moved(plan, &plan->predicted);
}
