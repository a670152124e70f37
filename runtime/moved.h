/* runtime/moved.h - what a step of a plan moves, as its instructions say. */
#ifndef ZINF_RUNTIME_MOVED_H
#define ZINF_RUNTIME_MOVED_H

#include "runtime/plan.h"

/* Sets traffic, moved_bytes and n_collectives of ret_counts and leaves the rest of it alone: bytes
 * per step by a rank, on average over ranks; by queue, and by class over the link next to the
 * class's own tier. The plan is well formed. */
void zinf_count_moved(const zinf_plan *plan, zinf_predicted *ret_counts);

#endif
