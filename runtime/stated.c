/* runtime/stated.c - see stated.h. */
#include "runtime/stated.h"

#include <inttypes.h>
#include <string.h>

#include "runtime/moved.h"
#include "runtime/overhead.h"

#define RULE(...) zinf_fail(err, ZINF_DOES_NOT_FIT, "C1: " __VA_ARGS__)

static void reach(uint64_t *high, uint64_t end)
{
    end = (end + ZINF_PAGE - 1) / ZINF_PAGE * ZINF_PAGE; /* an arena ends below 2^56 */
    *high = end > *high ? end : *high;
}

/* The end of everything that is in an arena, and of what one rank owns there. */
static void measure(const zinf_plan *plan, uint64_t ret_high[ZINF_N_TIERS],
                    uint64_t ret_owned[ZINF_N_TIERS])
{
    memset(ret_high, 0, ZINF_N_TIERS * sizeof *ret_high);
    memset(ret_owned, 0, ZINF_N_TIERS * sizeof *ret_owned);
    for (uint32_t s = 0; s < plan->n_segments; s++) {
        const zinf_segment *segment = &plan->segments[s];
        for (uint32_t i = 0; i < segment->n_instrs; i++) {
            const zinf_instr *instr = &plan->instrs[segment->first_instr + i];
            const zinf_operand *o = &plan->operands[instr->operand0];
            for (uint32_t k = 0; k < instr->n_operands; k++)
                if (o[k].bytes)
                    reach(&ret_high[o[k].tier],
                          o[k].offset + o[k].bytes + o[k].stride * (segment->count - 1));
        }
    }
    for (uint32_t u = 0; u < plan->n_units; u++) {
        const zinf_unit *unit = &plan->units[u];
        const zinf_region *const regions[] = {&unit->param, &unit->grad, &unit->optimizer};
        for (int k = 0; k < 3; k++) {
            if (!regions[k]->bytes)
                continue;
            reach(&ret_high[regions[k]->tier], regions[k]->offset + regions[k]->bytes);
            if (unit->owner != ZINF_NONE)
                reach(&ret_owned[regions[k]->tier], regions[k]->offset + regions[k]->bytes);
        }
    }
}

/* Names, arenas, and the lines of the bill: they add up to the arena. */
static zinf_status check_arenas(const zinf_plan *plan, zinf_error *err)
{
    const zinf_machine_info *m = &plan->machine;
    uint64_t high[ZINF_N_TIERS], owned[ZINF_N_TIERS], bill[ZINF_N_TIERS] = {0};

    measure(plan, high, owned);
    for (uint32_t i = 0; i < plan->n_items; i++)
        if (__builtin_add_overflow(bill[plan->items[i].tier], plan->items[i].bytes,
                                   &bill[plan->items[i].tier]))
            return RULE("the memory bill of tier %s has more than 64 bits",
                        zinf_tier_name(plan->items[i].tier));
    for (unsigned t = 0; t < ZINF_N_TIERS; t++) {
        if (m->arena_bytes[t] != high[t] || m->owned_bytes[t] != owned[t])
            return RULE("the %s arena is said to have %" PRIu64 " bytes, a rank to own %" PRIu64
                        " of them; what is in it takes %" PRIu64 " and %" PRIu64,
                        zinf_tier_name(t), m->arena_bytes[t], m->owned_bytes[t], high[t], owned[t]);
        if (t != ZINF_TIER_SCALAR && bill[t] != m->arena_bytes[t])
            return RULE("the memory bill of tier %s adds up to %" PRIu64 " bytes, its arena has %"
                        PRIu64, zinf_tier_name(t), bill[t], m->arena_bytes[t]);
    }
    return ZINF_OK;
}

/* Code, libraries and tables, in the memory that the host program runs in. */
static zinf_status check_overhead(const zinf_plan *plan, zinf_error *err)
{
    const unsigned ours = plan->machine.unified ? ZINF_TIER_DEVICE : ZINF_TIER_HOST;

    for (unsigned t = 0; t < ZINF_N_TIERS && !strcmp(plan->machine.backend, "cpu"); t++) {
        const uint64_t stated = plan->machine.overhead_bytes[t];
        const uint64_t taken = t == ours ? zinf_overhead_bytes(plan) : 0;
        if (stated != taken)
            return RULE("%" PRIu64 " bytes are stated beside the %s arena, zinf-run takes %" PRIu64
                        " there", stated, zinf_tier_name(t), taken);
    }
    return ZINF_OK;
}

static zinf_status check_moved(const zinf_plan *plan, zinf_error *err)
{
    const zinf_predicted *p = &plan->predicted;
    zinf_predicted counted;

    zinf_count_moved(plan, &counted);
    for (unsigned q = 0; q < ZINF_N_QUEUES; q++)
        if (p->moved_bytes[q] != counted.moved_bytes[q])
            return RULE("a step is said to move %" PRIu64 " bytes on queue %s, its instructions "
                        "move %" PRIu64, p->moved_bytes[q], zinf_queue_name(q),
                        counted.moved_bytes[q]);
    for (unsigned c = 0; c < ZINF_N_CLASSES; c++)
        if (p->traffic[c].read_bytes != counted.traffic[c].read_bytes ||
            p->traffic[c].write_bytes != counted.traffic[c].write_bytes)
            return RULE("a step is said to read %" PRIu64 " and write %" PRIu64 " bytes of class "
                        "%s, its instructions do %" PRIu64 " and %" PRIu64,
                        p->traffic[c].read_bytes, p->traffic[c].write_bytes, zinf_class_name(c),
                        counted.traffic[c].read_bytes, counted.traffic[c].write_bytes);
    if (p->n_collectives != counted.n_collectives)
        return RULE("a step is said to have %" PRIu32 " collectives, it has %" PRIu32,
                    p->n_collectives, counted.n_collectives);
    return ZINF_OK;
}

static zinf_status check_tiers(const zinf_plan *plan, zinf_error *err)
{
    for (uint32_t u = 0; u < plan->n_units; u++) {
        const zinf_unit *unit = &plan->units[u];
        const zinf_region *const regions[] = {[ZINF_CLASS_PARAM] = &unit->param,
                                              [ZINF_CLASS_GRAD] = &unit->grad,
                                              [ZINF_CLASS_OPTIMIZER] = &unit->optimizer};
        for (unsigned c = 0; c < sizeof regions / sizeof *regions; c++)
            if (regions[c]->bytes && regions[c]->tier != plan->decisions.tier[c])
                return RULE("unit \"%s\": class %s is said to be in tier %s, here it is in %s",
                            unit->name, zinf_class_name(c),
                            zinf_tier_name(plan->decisions.tier[c]),
                            zinf_tier_name(regions[c]->tier));
    }
    return ZINF_OK;
}

zinf_status zinf_plan_check_stated(const zinf_plan *plan, zinf_error *err)
{
    if (check_arenas(plan, err) || check_overhead(plan, err) || check_tiers(plan, err))
        return err->status;
    return check_moved(plan, err);
}
