/* runtime/clocks.c - see clocks.h. */
#include "runtime/clocks.h"

#include <stdlib.h>
#include <string.h>

bool zinf_clocks_begin(zinf_clocks *clocks, const zinf_plan *plan, const zinf_program *program,
                       uint64_t *ret_n_visits)
{
    const zinf_segment *segments = &plan->segments[program->first_segment];
    uint64_t total = 0;

    for (uint32_t s = 0; s < program->n_segments; s++)
        total += zinf_clocks_iterations(&segments[s]) * segments[s].n_instrs; /* below 2^34 */
    if (!clocks->latest)
        clocks->latest = calloc(plan->n_instrs + (size_t)1, sizeof *clocks->latest);
    zinf_visit *visits = total < UINT32_MAX
                             ? realloc(clocks->visits, (total + 1) * sizeof *visits) : NULL;
    if (visits)
        clocks->visits = visits;
    if (!visits || !clocks->latest)
        return false;
    visits[0] = (zinf_visit){.instr = ZINF_NONE};
    memset(clocks->last, 0, sizeof clocks->last);
    clocks->plan = plan;
    clocks->now = 0;
    *ret_n_visits = total;
    return true;
}

void zinf_clocks_visit(zinf_clocks *clocks, const zinf_segment *segment, uint64_t iteration,
                       uint32_t instr)
{
    const zinf_instr *i = &clocks->plan->instrs[instr];
    zinf_visit *visits = clocks->visits, *v = &visits[++clocks->now];

    *v = visits[clocks->last[i->queue]];
    v->instr = instr;
    v->done[i->queue] = clocks->now;
    for (uint32_t w = i->wait0; w < i->wait0 + i->n_waits; w++) {
        const zinf_wait *wait = &clocks->plan->waits[w];
        uint32_t on = clocks->latest[wait->instr]; /* of an earlier segment the last instance */
        if (wait->instr >= segment->first_instr)
            on = wait->distance > iteration
                     ? 0 : clocks->now - wait->distance * segment->n_instrs -
                               (instr - wait->instr);
        for (int q = 0; q < ZINF_N_QUEUES; q++)
            v->done[q] = visits[on].done[q] > v->done[q] ? visits[on].done[q] : v->done[q];
    }
    clocks->last[i->queue] = clocks->latest[instr] = clocks->now;
}

void zinf_clocks_free(zinf_clocks *clocks)
{
    free(clocks->visits);
    free(clocks->latest);
}
