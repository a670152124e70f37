/* tests/fault/fault.h - storage that fails as told: an engine around another one, for
 * zinf_storage_open_with. One fault at a time, of one process; counted per direction, so that the
 * n-th read is the same one in every run.
 */
#ifndef ZINF_TESTS_FAULT_H
#define ZINF_TESTS_FAULT_H

#include "runtime/storage_engine.h"

typedef enum fault_kind {
    FAULT_NONE,
    FAULT_ERRNO,     /* ends with -error, nothing moved */
    FAULT_SHORT,     /* only `bytes` are moved, and counted */
    FAULT_ZERO,      /* nothing is moved, 0 counted */
    FAULT_DELAY,     /* moved after `bytes` microseconds */
    FAULT_TORN,      /* only the first `bytes` are moved, all counted */
    FAULT_LOST,      /* a write that never happens, counted: later reads are stale */
    FAULT_STALE,     /* a read that returns what was there before the last write */
    FAULT_MISPLACED, /* moved to or from one block further on */
    FAULT_FLIPPED,   /* one bit is changed on the way */
} fault_kind;

typedef struct fault_spec {
    fault_kind kind;
    bool write;      /* or read */
    uint64_t first;  /* the n-th of its direction, from 0 */
    uint64_t count;  /* how many from there on; 0: all */
    uint32_t period; /* of those every period-th only; with seed: each with chance 1 / period */
    uint64_t seed;
    uint64_t from, to; /* only blocks that meet these bytes of the file; to 0: all */
    int error;
    uint32_t bytes;
} fault_spec;

/* What happens from now on. engine NULL: io_uring if there is any, else threads. */
void fault_set(const fault_spec *spec, const zinf_storage_ops *engine);
uint64_t fault_n_blocks(bool write); /* so far */
uint64_t fault_n_hits(void);

extern const zinf_storage_ops fault_ops;

#endif
