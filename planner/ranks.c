/* planner/ranks.c - see ranks.h. */
#include "planner/ranks.h"

#include <inttypes.h>
#include <string.h>

zinf_cluster zinf_cluster_share(const zinf_cluster *cluster)
{
    const uint64_t n = cluster->devices_per_node;
    zinf_cluster c = *cluster;

    if (n == 1)
        return c;
    c.host.memory_bytes /= n;
    c.host.reserve_bytes /= n;
    c.host.cores = c.host.cores > n ? c.host.cores / n : 1;
    c.host.bandwidth /= (double)n;
    c.host.adam /= (double)n;
    if (c.unified && c.device.memory_bytes > c.host.memory_bytes)
        c.device.memory_bytes = c.host.memory_bytes;
    c.nvme.capacity_bytes /= n;
    c.nvme.read /= (double)n;
    c.nvme.write /= (double)n;
    c.links.host_device_per_node /= (double)n;
    return c;
}

zinf_status zinf_ranks_check(const zinf_model *model, const zinf_cluster *cluster,
                             const zinf_settings *settings, zinf_error *err)
{
    const uint64_t ranks = zinf_n_ranks(cluster), batch = model->global_batch;
    const uint64_t micro = settings->micro_batch == ZINF_FREE ? 1
                                                              : (uint64_t)settings->micro_batch;
    const uint64_t step = ranks * micro, below = batch / step * step;
    char shape[140] = "", other[40] = "";

    if (batch % step == 0)
        return ZINF_OK;
    if (ranks > 1)
        snprintf(shape, sizeof shape, " times %" PRIu64 " ranks (%" PRIu64 " node%s of %" PRIu64
                 " device%s), %" PRIu64, ranks, cluster->nodes, cluster->nodes > 1 ? "s" : "",
                 cluster->devices_per_node, cluster->devices_per_node > 1 ? "s" : "", step);
    if (below)
        snprintf(other, sizeof other, "%" PRIu64 " or ", below);
    return zinf_fail(err, ZINF_BAD_INPUT, "training.global_batch %" PRIu64 " is no multiple of "
                     "micro-batch %" PRIu64 "%s; set it to %s%" PRIu64 ", or %s", batch, micro,
                     shape, other, below + step,
                     micro > 1 ? "choose another --set micro_batch" : "use fewer devices");
}

/* The ring leaves each node once: its slowest link sets the pace. */
static double ring_rate(const zinf_cluster *cluster)
{
    const double inter = cluster->links.inter_node_per_node;
    const double intra = cluster->links.intra_node_per_device;

    return cluster->devices_per_node == 1 || (cluster->nodes > 1 && inter < intra) ? inter : intra;
}

static double ring_latency(const zinf_cluster *cluster)
{
    return (double)(cluster->devices_per_node - 1) * cluster->links.intra_node_latency +
           (double)(cluster->nodes - 1) * cluster->links.inter_node_latency;
}

double zinf_collective_s(const zinf_cluster *cluster, double bytes)
{
    const double ranks = zinf_n_ranks(cluster);

    return ranks == 1 ? 0 : (ranks - 1) / ranks * bytes / ring_rate(cluster) +
                                ring_latency(cluster);
}

double zinf_root_s(const zinf_cluster *cluster, double bytes)
{
    const double here = (double)cluster->devices_per_node - 1;
    const double there = (double)zinf_n_ranks(cluster) - 1 - here;
    double s = ring_latency(cluster);

    if (here + there == 0)
        return 0;
    if (strcmp(cluster->device.kind, "cpu"))
        return s + bytes / ring_rate(cluster);
    s += here ? here * bytes / cluster->links.intra_node_per_device : 0;
    return s + (there ? there * bytes / cluster->links.inter_node_per_node : 0);
}
