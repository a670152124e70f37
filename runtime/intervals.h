/* runtime/intervals.h - an ordered map from every address to a payload: the address space cut into
 * intervals, each with one payload of fixed size. A skip list: every operation is O(log n) and
 * amortised constant per interval that it makes, passes or removes. Knows nothing of plans.
 */
#ifndef ZINF_RUNTIME_INTERVALS_H
#define ZINF_RUNTIME_INTERVALS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ZINF_NO_INTERVAL UINT32_MAX

/* An interval is named by an index, valid until it is removed; pointers to payloads only until
 * the next cut. Not to be copied. */
typedef struct zinf_intervals {
    struct zinf_interval *nodes;
    unsigned char *payloads;
    size_t payload_bytes;
    uint32_t n, cap, free, random;
    bool failed; /* out of memory: cut finds nothing any more */
} zinf_intervals;

/* One interval, all addresses below UINT64_MAX, with this payload (copied). A map that was in use
 * gives up what it had. False: memory is short. */
bool zinf_intervals_init(zinf_intervals *map, size_t payload_bytes, const void *payload);
void zinf_intervals_free(zinf_intervals *map); /* accepts a zeroed map */

/* Makes intervals begin at lo and at hi (> lo), cutting what spans them in two with equal
 * payloads. Returns the one that begins at lo, or ZINF_NO_INTERVAL if memory is short. */
uint32_t zinf_intervals_cut(zinf_intervals *map, uint64_t lo, uint64_t hi);
/* The one after i if it begins below hi, or ZINF_NO_INTERVAL. */
uint32_t zinf_intervals_next(const zinf_intervals *map, uint32_t i, uint64_t hi);
/* cut, then all of [lo, hi) becomes one interval with the first one's payload. */
uint32_t zinf_intervals_merge(zinf_intervals *map, uint64_t lo, uint64_t hi);
/* Of [lo, hi), neighbours whose payloads are the same bytes become one. */
void zinf_intervals_join(zinf_intervals *map, uint64_t lo, uint64_t hi);

/* Of the interval that holds addr. */
void *zinf_intervals_at(const zinf_intervals *map, uint64_t addr);
void *zinf_intervals_payload(const zinf_intervals *map, uint32_t i);
uint64_t zinf_intervals_lo(const zinf_intervals *map, uint32_t i);
uint64_t zinf_intervals_hi(const zinf_intervals *map, uint32_t i);

#endif
