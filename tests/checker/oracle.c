/* tests/checker/oracle.c - see mini.h: what a plan does, by brute force, sharing nothing with the
 * checker. Loops run in full; order is tested on all pairs.
 */
#include <stdlib.h>
#include <string.h>

#include "mini.h"

typedef struct visit {
    uint32_t instr, segment;
    uint64_t iteration;
    uint32_t clock[ZINF_N_QUEUES]; /* visits of each queue that surely ended before, or self */
} visit;

/* All instructions of a program in program order. */
static visit *visits_of(const zinf_plan *plan, uint32_t kind, uint32_t *ret_n)
{
    const zinf_program *program = &plan->programs[kind];
    uint32_t n = 0;

    for (uint32_t s = 0; s < program->n_segments; s++)
        n += plan->segments[program->first_segment + s].n_instrs *
             (uint32_t)plan->segments[program->first_segment + s].count;
    visit *all = calloc(n + 1, sizeof *all);
    *ret_n = 0;
    for (uint32_t s = 0; s < program->n_segments; s++) {
        const zinf_segment *segment = &plan->segments[program->first_segment + s];
        for (uint64_t it = 0; it < segment->count; it++)
            for (uint32_t i = 0; i < segment->n_instrs; i++)
                all[(*ret_n)++] = (visit){.instr = segment->first_instr + i,
                                          .segment = program->first_segment + s,
                                          .iteration = it};
    }
    return all;
}

/* Index of the visit that this wait of visit v means, or n: none. */
static uint32_t target(const zinf_plan *plan, const visit *all, uint32_t n, uint32_t v,
                       const zinf_wait *wait)
{
    const bool same = wait->instr >= plan->segments[all[v].segment].first_instr;

    if (same && wait->distance > all[v].iteration)
        return n;
    for (uint32_t k = v; k-- > 0;)
        if (all[k].instr == wait->instr &&
            (!same || all[k].iteration == all[v].iteration - wait->distance))
            return k;
    return n;
}

static void advance(const zinf_plan *plan, visit *all, uint32_t n, uint32_t v)
{
    const zinf_instr *instr = &plan->instrs[all[v].instr];

    memset(all[v].clock, 0, sizeof all[v].clock);
    for (uint32_t k = v; k-- > 0;) {
        if (plan->instrs[all[k].instr].queue == instr->queue) {
            memcpy(all[v].clock, all[k].clock, sizeof all[v].clock);
            break;
        }
    }
    for (uint32_t w = 0; w < instr->n_waits; w++) {
        uint32_t k = target(plan, all, n, v, &plan->waits[instr->wait0 + w]);
        for (int q = 0; k < n && q < ZINF_N_QUEUES; q++)
            if (all[k].clock[q] > all[v].clock[q])
                all[v].clock[q] = all[k].clock[q];
    }
    all[v].clock[instr->queue] = v + 1;
}

static bool overlap(const zinf_operand *a, uint64_t i, const zinf_operand *b, uint64_t j)
{
    const uint64_t ea = zinf_dtype_bytes(a->dtype), eb = zinf_dtype_bytes(b->dtype);
    const uint64_t at = a->offset + i * a->stride, bt = b->offset + j * b->stride;

    if (a->tier != b->tier || !a->bytes || !b->bytes || at >= bt + b->bytes ||
        bt >= at + a->bytes)
        return false;
    for (uint64_t r = 0; r < a->rows; r++)
        for (uint64_t s = 0; s < b->rows; s++)
            if (at + r * a->ld * ea < bt + (s * b->ld + b->cols) * eb &&
                bt + s * b->ld * eb < at + (r * a->ld + a->cols) * ea)
                return true;
    return false;
}

static bool is_owned(const zinf_plan *plan, const zinf_operand *o)
{
    return o->offset < plan->machine.owned_bytes[o->tier];
}

static bool conflict(const zinf_plan *plan, const visit *x, const visit *y)
{
    const zinf_instr *a = &plan->instrs[x->instr], *b = &plan->instrs[y->instr];

    if (a->queue == b->queue)
        return false;
    /* what two ranks own meets nowhere */
    const bool apart = a->unit != ZINF_NONE && b->unit != ZINF_NONE &&
                       plan->units[a->unit].owner != plan->units[b->unit].owner;
    for (uint32_t i = 0; i < a->n_operands; i++)
        for (uint32_t k = 0; k < b->n_operands; k++)
            if (apart && is_owned(plan, &plan->operands[a->operand0 + i]) &&
                is_owned(plan, &plan->operands[b->operand0 + k]))
                continue;
            else if ((zinf_operand_access(a, i).writes || zinf_operand_access(b, k).writes) &&
                overlap(&plan->operands[a->operand0 + i], x->iteration,
                        &plan->operands[b->operand0 + k], y->iteration))
                return true;
    return false;
}

bool mini_is_ordered(const zinf_plan *plan)
{
    bool ordered = true;

    for (uint32_t kind = 0; kind < ZINF_N_PROGRAMS; kind++) {
        uint32_t n;
        visit *all = visits_of(plan, kind, &n);
        for (uint32_t v = 0; v < n; v++) {
            advance(plan, all, n, v);
            for (uint32_t k = 0; ordered && k < v; k++)
                if (all[v].clock[plan->instrs[all[k].instr].queue] <= k &&
                    conflict(plan, &all[k], &all[v]))
                    ordered = false;
        }
        free(all);
    }
    return ordered;
}

void mini_add_waits(zinf_plan *plan)
{
    enum { MOST = 32 };
    zinf_wait(*waits)[MOST] = calloc(plan->n_instrs, sizeof *waits);

    plan->n_waits = 0;
    for (uint32_t i = 0; i < plan->n_instrs; i++)
        plan->instrs[i].n_waits = 0;
    for (uint32_t kind = 0; kind < ZINF_N_PROGRAMS; kind++) {
        uint32_t n;
        visit *all = visits_of(plan, kind, &n);
        for (uint32_t v = 0; v < n; v++) {
            zinf_instr *instr = &plan->instrs[all[v].instr];
            /* this instruction's waits last in the array while it is worked on */
            instr->wait0 = 2048;
            memcpy(&plan->waits[2048], waits[all[v].instr], sizeof waits[0]);
            advance(plan, all, n, v);
            for (uint32_t k = v; k-- > 0;) {
                if (all[v].clock[plan->instrs[all[k].instr].queue] > k ||
                    !conflict(plan, &all[k], &all[v]))
                    continue;
                const bool same = all[k].segment == all[v].segment;
                waits[all[v].instr][instr->n_waits++] = (zinf_wait){
                    all[k].instr, same ? (uint32_t)(all[v].iteration - all[k].iteration) : 0};
                memcpy(&plan->waits[2048], waits[all[v].instr], sizeof waits[0]);
                advance(plan, all, n, v);
            }
        }
        free(all);
    }
    for (uint32_t i = 0; i < plan->n_instrs; i++) {
        plan->instrs[i].wait0 = plan->n_waits;
        memcpy(&plan->waits[plan->n_waits], waits[i],
               plan->instrs[i].n_waits * sizeof waits[0][0]);
        plan->n_waits += plan->instrs[i].n_waits;
    }
    free(waits);
}
