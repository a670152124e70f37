/* runtime/collective.h - what the ranks do together: one table an implementation.
 *
 * `self` is one rank alone (collective_self.c); MPI and NCCL fill the same slots. Calls are made
 * by one thread at a time, in the same order on every rank. An allgather or a reduce-scatter may
 * be in place as NCCL defines it (FACTS 9), an allreduce with send = recv. Counts are elements of
 * one rank's share. Sums have a fixed order: the same ranks give the same bits.
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
    /* F32 */
    zinf_status (*reduce_scatter)(const struct zinf_collective *self, const void *send,
                                  void *recv, uint64_t count, zinf_dtype dtype, zinf_error *err);
    /* F32; count is a multiple of n_ranks; recv counts on the root only, and is not send */
    zinf_status (*reduce)(const struct zinf_collective *self, const void *send, void *recv,
                          uint64_t count, zinf_dtype dtype, uint32_t root, zinf_error *err);
    /* F64 */
    zinf_status (*allreduce)(const struct zinf_collective *self, const void *send, void *recv,
                             uint64_t count, zinf_dtype dtype, zinf_error *err);
    /* send counts on the root only */
    zinf_status (*broadcast)(const struct zinf_collective *self, const void *send, void *recv,
                             uint64_t count, zinf_dtype dtype, uint32_t root, zinf_error *err);

    /* What this rank has sent to others so far. */
    uint64_t (*sent_bytes)(const struct zinf_collective *self);
    /* From any thread: the call under way and all later ones fail, saying why. */
    void (*cancel)(const struct zinf_collective *self, const char *why);
    /* After the last call on every rank; or, with code != 0, at once, ending every rank. */
    void (*close)(const struct zinf_collective *self, int code);
} zinf_collective;

extern const zinf_collective zinf_collective_self;

#endif
