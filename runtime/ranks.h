/* runtime/ranks.h - the ranks of a run: found, joined, compared, left. One rank alone is a run of
 * one. Between join and leave every rank makes the same calls in the same order.
 */
#ifndef ZINF_RUNTIME_RANKS_H
#define ZINF_RUNTIME_RANKS_H

#include <stdbool.h>

#include "runtime/collective.h"
#include "runtime/watch.h"

/* As the launcher's environment tells it (mpirun of Open MPI and MPICH, srun). */
typedef struct zinf_launch {
    const char *launcher; /* for people; NULL: started by itself */
    const char *module;   /* which zinf-mpi-*.so */
    uint32_t rank, n_ranks;
} zinf_launch;
zinf_launch zinf_ranks_launch(void);

typedef struct zinf_ranks {
    const zinf_collective *collective;
    zinf_watch *watch; /* NULL: one rank */
    bool agreed;       /* the failure at hand is known to all, who end by themselves */
    uint32_t n_local;  /* ranks on this machine */
    zinf_collective table;
} zinf_ranks;

/* Of a rank that could not join: ends the others, who wait for it, where the launcher does not. */
void zinf_ranks_abandon(const zinf_launch *launch, int code);

/* One rank alone. */
zinf_ranks zinf_ranks_self(void);
zinf_status zinf_ranks_join(const zinf_launch *launch, zinf_ranks *ret_ranks, zinf_error *err);

/* Something that must be the same on every rank. */
typedef struct zinf_ranks_fact {
    const char *name;
    uint64_t value;
} zinf_ranks_fact;

/* BAD_INPUT on every rank, with the same text, if any has another value than rank 0. */
zinf_status zinf_ranks_compare(zinf_ranks *ranks, const zinf_ranks_fact *facts, uint32_t n,
                               zinf_error *err);

/* Every rank has come this far. If any of them fails, all do, with the text of the first of those,
 * and in order. */
zinf_status zinf_ranks_together(zinf_ranks *ranks, zinf_error *err);

/* How many ranks of this machine have this value, this one included. */
zinf_status zinf_ranks_alike(const zinf_ranks *ranks, uint64_t value, uint32_t *ret_n,
                             zinf_error *err);

/* Sums over ranks, on every rank; of integers modulo 2^64. */
zinf_status zinf_ranks_sum(zinf_ranks *ranks, double *values, uint32_t n, zinf_error *err);
zinf_status zinf_ranks_add(zinf_ranks *ranks, uint64_t *values, uint32_t n, zinf_error *err);

/* Bytes of one rank, on every rank: of the first that has something to say, or of rank 0. */
zinf_status zinf_ranks_share(zinf_ranks *ranks, bool mine, void *bytes, uint64_t n,
                             zinf_error *err);

/* err: what this rank ends with, if it does; where another rank failed, that is put there.
 * Does not return if the others cannot be left in order. */
void zinf_ranks_leave(zinf_ranks *ranks, zinf_error *err);

#endif
