/* planner/cost.c - see cost.h. */
#include "planner/cost.h"

#include <math.h>

#include "planner/ranks.h"

/* Cost of starting an instruction on a queue, ns: a futex wake and an OpenMP fork, about 5 us
 * each on a 2-core machine; a CUDA launch takes about the same. */
static const double START_NS = 8000;
/* Box-Muller on a counter-based generator, ns per element and core. */
static const double INIT_NS = 25;

double zinf_device_peak(const zinf_cluster *cluster, zinf_dtype precision)
{
    const double f32 = cluster->device.peak_f32, f16 = cluster->device.peak_f16;
    const double bf16 = cluster->device.peak_bf16;

    if (precision == ZINF_F32)
        return f32 > 0 ? f32 : bf16 > 0 ? bf16 : f16;
    return bf16 > 0 ? bf16 : f16 > 0 ? f16 : f32;
}

double zinf_attention_rate(const zinf_cluster *cluster, zinf_dtype precision)
{
    const double rate = precision == ZINF_F32 ? cluster->device.attention_f32
                                              : cluster->device.attention;

    return rate > 0 ? rate : zinf_device_peak(cluster, precision) / 2;
}

double zinf_link_rate(const zinf_cluster *cluster)
{
    double rate = cluster->links.host_device_per_device;
    double node = cluster->links.host_device_per_node;

    return node > 0 && node < rate ? node : rate;
}

double zinf_instr_flops(const zinf_plan *plan, const zinf_instr *instr)
{
    const zinf_operand *o = &plan->operands[instr->operand0];
    double gemm;

    switch (instr->opcode) {
    case ZINF_OP_LINEAR_FORWARD:
    case ZINF_OP_LINEAR_BACKWARD_INPUT:
        return 2.0 * (double)o[0].rows * (double)o[1].rows * (double)o[1].cols;
    case ZINF_OP_LINEAR_BACKWARD_WEIGHT:
        return 2.0 * (double)o[0].rows * (double)o[0].cols * (double)o[1].cols;
    case ZINF_OP_CLASSIFIER_FORWARD:
    case ZINF_OP_CLASSIFIER_BACKWARD:
    case ZINF_OP_CLASSIFIER:
        gemm = 2.0 * (double)o[0].rows * (double)o[1].rows * (double)o[1].cols;
        return instr->opcode == ZINF_OP_CLASSIFIER_FORWARD ? gemm : 3 * gemm;
    case ZINF_OP_LOGITS:
        return 2.0 * (double)o[1].rows * (double)o[1].cols;
    case ZINF_OP_ATTENTION_FORWARD:
    case ZINF_OP_ATTENTION_BACKWARD: {
        /* two GEMMs forward, five backward, over half of each head's square */
        double gemms = instr->opcode == ZINF_OP_ATTENTION_FORWARD ? 2 : 5;
        return gemms * (double)o[0].rows * (double)instr->attr[3] * (double)instr->attr[0] *
               (double)instr->attr[2];
    }
    default:
        return 0;
    }
}

/* Bytes moved through memory: every operand once, scratch once. */
static double touched_bytes(const zinf_plan *plan, const zinf_instr *instr)
{
    double bytes = 0;

    for (uint32_t i = 0; i < instr->n_operands; i++) {
        const zinf_operand *o = &plan->operands[instr->operand0 + i];
        zinf_access access = zinf_operand_access(instr, i);
        if (o->bytes && o->dtype != ZINF_U8)
            bytes += (double)(access.reads + access.writes) * (double)o->rows * (double)o->cols *
                     (double)zinf_dtype_bytes(o->dtype);
    }
    return bytes;
}

static double max2(double a, double b)
{
    return a > b ? a : b;
}

/* A GEMM that moves more bytes for its FLOP than those whose rate the peak is, in proportion:
 * zinf-probe's are 2048 x 3072 x 768, each matrix touched once. */
static double gemm_s(double flops, double bytes, double element_bytes, double peak,
                     double bandwidth)
{
    const double usual = flops / 2 * element_bytes * (1.0 / 2048 + 1.0 / 3072 + 1.0 / 768);

    return flops / peak + max2(0, bytes - usual) / bandwidth;
}

static double work_s(const zinf_plan *plan, const zinf_cluster *cluster, const zinf_instr *instr)
{
    const zinf_operand *o = &plan->operands[instr->operand0];
    const bool device = instr->queue == ZINF_QUEUE_COMPUTE;
    const double bandwidth = device ? cluster->device.bandwidth : cluster->host.bandwidth;
    const double peak = zinf_device_peak(cluster, plan->job.precision);
    double bytes = touched_bytes(plan, instr), flops = zinf_instr_flops(plan, instr);

    switch (instr->opcode) {
    case ZINF_OP_ATTENTION_FORWARD:
    case ZINF_OP_ATTENTION_BACKWARD:
        return flops / zinf_attention_rate(cluster, plan->job.precision);
    case ZINF_OP_LINEAR_FORWARD:
    case ZINF_OP_LINEAR_BACKWARD_INPUT:
    case ZINF_OP_LINEAR_BACKWARD_WEIGHT:
        return gemm_s(flops, bytes, (double)zinf_dtype_bytes(o[0].dtype), peak, bandwidth);
    case ZINF_OP_CLASSIFIER:
    case ZINF_OP_CLASSIFIER_BACKWARD:
    case ZINF_OP_CLASSIFIER_FORWARD: {
        /* logits are written and read again, forward and backward; every chunk of tokens reads
         * the weight, for both of its uses, and backward adds to the gradient */
        const bool backward = instr->opcode != ZINF_OP_CLASSIFIER_FORWARD;
        const double logits = (double)o[0].rows * (double)o[1].rows;
        const double chunks = ceil((double)o[0].rows / (double)o[backward ? 6 : 4].rows);
        const double weight = (double)o[1].rows * (double)o[1].cols;
        const double act = (double)zinf_dtype_bytes(o[1].dtype);
        return flops / peak + (logits * (backward ? 22 : 8) +
                               chunks * weight * (backward ? 2 * act + 8 : act)) / bandwidth;
    }
    case ZINF_OP_EMBEDDING_FORWARD: /* reads the rows of its tokens only */
        return (bytes - (double)o[1].bytes + (double)o[3].bytes) / bandwidth;
    case ZINF_OP_READ:
        return cluster->nvme.latency + (double)o[0].bytes / cluster->nvme.read;
    case ZINF_OP_WRITE:
        return cluster->nvme.latency + (double)o[0].bytes / cluster->nvme.write;
    case ZINF_OP_UPLOAD:
    case ZINF_OP_DOWNLOAD:
        return cluster->links.host_device_latency + (double)o[0].bytes / zinf_link_rate(cluster);
    case ZINF_OP_ALLGATHER:
        return zinf_collective_s(cluster, (double)o[1].bytes);
    case ZINF_OP_REDUCE_SCATTER: /* read and added once more than it is sent */
        return zinf_collective_s(cluster, (double)o[0].bytes) +
               3 * (double)o[0].bytes / cluster->device.bandwidth;
    case ZINF_OP_ALLREDUCE:
    case ZINF_OP_BROADCAST:
        return zinf_collective_s(cluster, (double)o[0].bytes);
    case ZINF_OP_ADAM:
        return device && !cluster->unified ? bytes / bandwidth :
                                             (double)o[0].cols / cluster->host.adam;
    case ZINF_OP_INIT:
        return (double)o[0].cols * INIT_NS * 1e-9 / (double)plan->decisions.n_threads;
    default:
        return max2(flops / peak, bytes / bandwidth);
    }
}

void zinf_cost(zinf_plan *plan, const zinf_cluster *cluster)
{
    for (uint32_t i = 0; i < plan->n_instrs; i++)
        plan->instrs[i].cost_ns = START_NS + 1e9 * work_s(plan, cluster, &plan->instrs[i]);
}
