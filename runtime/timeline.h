/* runtime/timeline.h - the simulator: discrete events over a plan's queues and waits, with the
 * costs that the planner wrote into the instructions. Part of the contract: the planner predicts
 * with it, zinf-run draws the predicted track of a trace with it.
 */
#ifndef ZINF_RUNTIME_TIMELINE_H
#define ZINF_RUNTIME_TIMELINE_H

#include "runtime/plan.h"

/* Start and end of one instance, ns since the program began. */
typedef struct zinf_event {
    uint32_t instr;
    uint64_t iteration;
    double start_ns, end_ns;
} zinf_event;

typedef struct zinf_timeline {
    double total_ns;
    double alone_ns[ZINF_N_QUEUES]; /* sum of costs, all iterations: as if each ran alone */
    double busy_ns[ZINF_N_QUEUES];  /* time with an instruction running: more where it is slowed */
    zinf_event *events;            /* iterations beyond the third of a loop are left out */
    uint32_t n_events;
} zinf_timeline;

/* Runs one program. Instances on queues that share a resource slow each other down: compute,
 * update, upload and download where machine.shared_cores, read and write unless
 * machine.overlap_read_write. Cores are shared by threads: as many as there are cores (that is
 * decisions.n_threads) for compute, update and collectives, one that copies for upload and
 * download; what machine.storage_core says is taken from them by a read or a write, whose threads
 * sleep most of the time and are let in first. A read and a write have half of the device each. So
 * total is at least every queue's time alone and at most their sum. A loop of more than three
 * iterations is extrapolated from the third. Errors: out of memory; a wait that is never satisfied
 * (a deadlock). */
zinf_status zinf_timeline_run(const zinf_plan *plan, zinf_program_kind program,
                              zinf_timeline *ret_timeline, zinf_error *err);
void zinf_timeline_free(zinf_timeline *timeline); /* accepts a zeroed one */

#endif
