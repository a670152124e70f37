/* runtime/collective.h - what the ranks do together: one table an implementation.
 *
 * `self` is one rank alone (collective_self.c); MPI and NCCL fill the same slots. Calls are made
 * by one thread, in the same order on every rank. send and recv may be in place as NCCL defines
 * it (FACTS 9). Counts are elements of one rank's share.
 */
#ifndef ZINF_RUNTIME_COLLECTIVE_H
#define ZINF_RUNTIME_COLLECTIVE_H

#include <stdint.h>

#include "kernels/dtype.h"
#include "runtime/error.h"

typedef struct zinf_collective {
    const char *name;
    uint32_t rank, n_ranks;
    void *context;

    zinf_status (*allgather)(const struct zinf_collective *self, const void *send, void *recv,
                             uint64_t count, zinf_dtype dtype, zinf_error *err);
    zinf_status (*reduce_scatter)(const struct zinf_collective *self, const void *send,
                                  void *recv, uint64_t count, zinf_dtype dtype, zinf_error *err);
    zinf_status (*allreduce)(const struct zinf_collective *self, const void *send, void *recv,
                             uint64_t count, zinf_dtype dtype, zinf_error *err);
    zinf_status (*broadcast)(const struct zinf_collective *self, const void *send, void *recv,
                             uint64_t count, zinf_dtype dtype, uint32_t root, zinf_error *err);
} zinf_collective;

extern const zinf_collective zinf_collective_self;

#endif
