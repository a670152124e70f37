/* planner/ranks.h - a cluster of several devices: how many ranks, what each has of its node, and
 * what the ranks' traffic costs. One rank a device.
 */
#ifndef ZINF_PLANNER_RANKS_H
#define ZINF_PLANNER_RANKS_H

#include "planner/settings.h"
#include "planner/spec.h"

static inline uint32_t zinf_n_ranks(const zinf_cluster *cluster)
{
    return (uint32_t)(cluster->nodes * cluster->devices_per_node);
}

/* The cluster as one rank sees it: host, storage and the node's link to its devices divided by
 * the devices of the node. Everything after the spec plans for one rank. */
zinf_cluster zinf_cluster_share(const zinf_cluster *cluster);

/* BAD_INPUT if the global batch is no multiple of micro-batch and ranks: says what would be. */
zinf_status zinf_ranks_check(const zinf_model *model, const zinf_cluster *cluster,
                             const zinf_settings *settings, zinf_error *err);

/* Seconds of an allgather to, or a reduce-scatter of, `bytes` on every rank, by one ring. */
double zinf_collective_s(const zinf_cluster *cluster, double bytes);

/* Seconds of a broadcast of `bytes` from one rank, or of a sum to one: by NCCL's ring on cuda; on a
 * cpu (collective_mpi.c) the root's link carries them once for every other rank. */
double zinf_root_s(const zinf_cluster *cluster, double bytes);

#endif
