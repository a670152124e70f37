/* runtime/clocks.h - in which order the instructions of a program run, as far as that is certain:
 * vector clocks over the queues. Knows nothing of what instructions do.
 *
 * They are visited in program order, one order the machine may take, and each visit knows which
 * earlier ones surely finished before it: those before it in its queue, what it waits for, and
 * what those know. A segment with count n is visited min(n, 3) times. Waits and queue order are the
 * same in every iteration, and every path of waits leads forward; so the order between iterations
 * i and j depends on j - i only. Where an iteration touches what every other touches, the first one
 * meets the state before the loop, the second the state an iteration leaves (the third leaves the
 * same), and what is ordered between neighbours is ordered at any distance by queue order.
 */
#ifndef ZINF_RUNTIME_CLOCKS_H
#define ZINF_RUNTIME_CLOCKS_H

#include "runtime/plan.h"

typedef struct zinf_visit {
    uint32_t instr, done[ZINF_N_QUEUES]; /* visits, per queue, that surely finished; 0: none */
} zinf_visit;

typedef struct zinf_clocks {
    const zinf_plan *plan;
    zinf_visit *visits;           /* from 1; 0 stands for none, its instr is ZINF_NONE */
    uint32_t *latest;             /* [n_instrs] visit */
    uint32_t last[ZINF_N_QUEUES]; /* visit */
    uint32_t now;                 /* visit */
} zinf_clocks;

/* Iterations of a loop that are visited. */
static inline uint64_t zinf_clocks_iterations(const zinf_segment *segment)
{
    return segment->count < 3 ? segment->count : 3;
}

/* Before the first instruction of a program; ret_n_visits of all. False: memory is short. */
bool zinf_clocks_begin(zinf_clocks *clocks, const zinf_plan *plan, const zinf_program *program,
                       uint64_t *ret_n_visits);
/* The next instruction, which becomes visit `now`. */
void zinf_clocks_visit(zinf_clocks *clocks, const zinf_segment *segment, uint64_t iteration,
                       uint32_t instr);
/* This visit, of this queue, surely finished before `now`, or is it. */
static inline bool zinf_clocks_before(const zinf_clocks *clocks, unsigned queue, uint32_t visit)
{
    return clocks->visits[clocks->now].done[queue] >= visit;
}
void zinf_clocks_free(zinf_clocks *clocks); /* accepts zeroed ones */

#endif
