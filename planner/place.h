/* planner/place.h - static offsets: persistent regions one after another, and on top of them the
 * buffers of each program by interval allocation (programs share that space).
 */
#ifndef ZINF_PLANNER_PLACE_H
#define ZINF_PLANNER_PLACE_H

#include "planner/build.h"

/* One interval allocation problem: buffer i lives in [first, last], inclusive. */
typedef struct zinf_interval {
    uint64_t bytes, offset;
    uint32_t first, last;
    uint32_t last_aside; /* zinf_spread_intervals: the last use by a queue that is not compute, */
    bool begins_aside;   /* or 0; the first use is by such a queue */
} zinf_interval;

/* Sets every offset (multiples of what the sizes are multiples of) so that no two buffers alive
 * at once overlap; returns the high-water mark. Largest first, each at the lowest free offset.
 * UINT64_MAX if memory is short. */
uint64_t zinf_place_intervals(zinf_interval *intervals, uint32_t n);

/* Moves what is placed, below `limit`: as far as there is room none takes a place less than `slack`
 * instructions after another queue left it, for which it would wait. False if memory is short. */
bool zinf_spread_intervals(zinf_interval *intervals, uint32_t n, uint32_t slack, uint64_t limit);

/* Places everything, turns operands and regions into arena offsets, sets machine.arena_bytes and
 * the memory bill. spread: those of STEP that memory has room for so that fewer wait for what a
 * transfer still uses; memory is what it is without, the device's up to `more` of that more. */
void zinf_place(zinf_builder *b, const uint32_t program_buffers[ZINF_N_PROGRAMS + 1], bool spread,
                double more);

#endif
