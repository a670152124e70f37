/* planner/cost.c - see cost.h. */
#include "planner/cost.h"

#include <math.h>
#include <string.h>

#include "planner/ranks.h"

/* Cost of starting an instruction on a queue, ns: a futex wake and an OpenMP fork, about 5 us
 * each on a 2-core machine; a CUDA launch takes about the same. */
static const double START_NS = 8000;
/* Box-Muller on a counter-based generator, ns per element and core. */
static const double INIT_NS = 25;

static double known(double rate, double otherwise)
{
    return rate > 0 ? rate : otherwise;
}

double zinf_device_peak(const zinf_cluster *cluster, zinf_dtype precision)
{
    const double f32 = cluster->device.peak_f32, f16 = cluster->device.peak_f16;
    const double bf16 = cluster->device.peak_bf16;

    if (precision == ZINF_F32)
        return f32 > 0 ? f32 : bf16 > 0 ? bf16 : f16;
    return bf16 > 0 ? bf16 : f16 > 0 ? f16 : f32;
}

static const zinf_step_rates *step_rates(const zinf_cluster *cluster, zinf_dtype precision)
{
    return precision == ZINF_F32 ? &cluster->device.step_f32 : &cluster->device.step_bf16;
}

double zinf_linear_rate(const zinf_cluster *cluster, zinf_dtype precision)
{
    const zinf_step_rates *step = step_rates(cluster, precision);
    const double peak = zinf_device_peak(cluster, precision);

    return 3 / (1 / known(step->forward, peak) + 1 / known(step->input_gradient, peak) +
                1 / known(step->weight_gradient, peak));
}

double zinf_classifier_rate(const zinf_cluster *cluster, zinf_dtype precision)
{
    return known(step_rates(cluster, precision)->classifier,
                 zinf_device_peak(cluster, precision));
}

double zinf_attention_rate(const zinf_cluster *cluster, zinf_dtype precision, double sequence)
{
    const zinf_step_rates *step = step_rates(cluster, precision);

    return known(step->attention, zinf_device_peak(cluster, precision) / 2) /
           (1 + step->attention_half / sequence);
}

double zinf_link_rate(const zinf_cluster *cluster, bool alone)
{
    double rate = cluster->links.host_device_per_device; /* the node's: a rank's share of it */
    double node = cluster->links.host_device_per_node *
                  (alone ? (double)cluster->devices_per_node : 1);

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

double zinf_instr_bytes(const zinf_plan *plan, const zinf_instr *instr)
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

/* The usual: the mean over the four linears of a GPT-2 block, 768 wide and 2048 tokens, in which
 * zinf-probe measures (tools/probe_step.c); of m x n x k a product moves m k + k n + m n. */
double zinf_product_excess(const zinf_plan *plan, const zinf_instr *instr)
{
    const zinf_dtype dtype = plan->operands[instr->operand0].dtype;
    const double usual = zinf_instr_flops(plan, instr) / 2 * (double)zinf_dtype_bytes(dtype) *
                         (1.0 / 2048 + 16.0 / 12 / 768);

    return fmax(0, zinf_instr_bytes(plan, instr) - usual);
}

int zinf_step_rate_of(const zinf_plan *plan, const zinf_instr *instr)
{
    const zinf_operand *o = &plan->operands[instr->operand0];

    switch (instr->opcode) {
    case ZINF_OP_LINEAR_FORWARD:
        return o[3].bytes ? ZINF_RATE_forward_residual : ZINF_RATE_forward;
    case ZINF_OP_LINEAR_BACKWARD_INPUT:
        return ZINF_RATE_input_gradient;
    case ZINF_OP_LINEAR_BACKWARD_WEIGHT:
        return o[3].bytes ? ZINF_RATE_weight_gradient_bias : ZINF_RATE_weight_gradient;
    case ZINF_OP_CLASSIFIER:
        return ZINF_RATE_classifier;
    case ZINF_OP_ATTENTION_FORWARD:
    case ZINF_OP_ATTENTION_BACKWARD:
        return ZINF_RATE_attention;
    case ZINF_OP_LAYERNORM_FORWARD:
        return ZINF_RATE_layernorm_forward;
    case ZINF_OP_LAYERNORM_BACKWARD:
        return ZINF_RATE_layernorm_backward;
    case ZINF_OP_RMSNORM_FORWARD:
        return ZINF_RATE_rmsnorm_forward;
    case ZINF_OP_RMSNORM_BACKWARD:
        return ZINF_RATE_rmsnorm_backward;
    case ZINF_OP_ROPE:
        return ZINF_RATE_rope;
    case ZINF_OP_GELU_FORWARD:
        return ZINF_RATE_gelu_forward;
    case ZINF_OP_GELU_BACKWARD:
        return ZINF_RATE_gelu_backward;
    case ZINF_OP_SWIGLU_FORWARD:
        return ZINF_RATE_swiglu_forward;
    case ZINF_OP_SWIGLU_BACKWARD:
        return ZINF_RATE_swiglu_backward;
    default:
        return -1;
    }
}

/* What the step reaches in the instruction; `otherwise` if that is not known. A product that adds a
 * residual or a bias's gradient goes by the rate of one that does not. */
static double rate_in_step(const zinf_plan *plan, const zinf_cluster *cluster,
                           const zinf_instr *instr, double otherwise)
{
    const zinf_step_rates *step = step_rates(cluster, plan->job.precision);
    const int rate = zinf_step_rate_of(plan, instr);

    if (rate == ZINF_RATE_forward_residual)
        otherwise = known(step->forward, otherwise);
    if (rate == ZINF_RATE_weight_gradient_bias)
        otherwise = known(step->weight_gradient, otherwise);
    return rate < 0 ? otherwise : known(((const double *)step)[rate], otherwise);
}

/* An owner brings the parameters it is about to broadcast. */
static bool all_wait_for_it(const zinf_plan *plan, const zinf_instr *instr)
{
    const zinf_operand *o = &plan->operands[instr->operand0];

    return (instr->opcode == ZINF_OP_READ || instr->opcode == ZINF_OP_UPLOAD) &&
           zinf_instr_owner(plan, instr) != ZINF_NONE &&
           o[1].value == plan->units[instr->unit].param.value &&
           o[1].offset >= plan->machine.owned_bytes[o[1].tier];
}

/* An even part, or the largest unit: the owners' loads are no further apart than one unit, and
 * mostly much nearer (graph.c). */
double zinf_owner_share(const zinf_plan *plan, double elems)
{
    double largest = 0;

    for (uint32_t u = 0; u < plan->n_units; u++)
        largest = fmax(largest, (double)plan->units[u].n_elems);
    return fmax(1.0 / plan->decisions.ranks, elems > 0 ? largest / elems : 0);
}

static double work_s(const zinf_plan *plan, const zinf_cluster *cluster, const zinf_instr *instr)
{
    const zinf_operand *o = &plan->operands[instr->operand0];
    const bool one = all_wait_for_it(plan, instr), cpu = !strcmp(cluster->device.kind, "cpu");
    const bool device = instr->queue == ZINF_QUEUE_COMPUTE && !cluster->unified && !cpu;
    const double bandwidth = device ? cluster->device.bandwidth : cluster->host.bandwidth;
    const zinf_dtype precision = plan->job.precision;
    const zinf_step_rates *step = step_rates(cluster, precision);
    const double peak = zinf_device_peak(cluster, precision);
    double bytes = zinf_instr_bytes(plan, instr), flops = zinf_instr_flops(plan, instr);
    const double devices = (double)cluster->devices_per_node;

    switch (instr->opcode) {
    case ZINF_OP_ATTENTION_FORWARD:
    case ZINF_OP_ATTENTION_BACKWARD:
        return flops / zinf_attention_rate(cluster, precision, (double)instr->attr[3]);
    case ZINF_OP_LINEAR_FORWARD:
    case ZINF_OP_LINEAR_BACKWARD_INPUT:
    case ZINF_OP_LINEAR_BACKWARD_WEIGHT:
        return flops / rate_in_step(plan, cluster, instr, peak) +
               zinf_product_excess(plan, instr) / known(step->product_memory, bandwidth);
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
        if (step->classifier > 0)
            return flops / step->classifier;
        return flops / peak + (logits * (backward ? 22 : 8) +
                               chunks * weight * (backward ? 2 * act + 8 : act)) / bandwidth;
    }
    case ZINF_OP_EMBEDDING_FORWARD: /* reads the rows of its tokens only */
        return (bytes - (double)o[1].bytes + (double)o[3].bytes) / bandwidth;
    case ZINF_OP_READ:
        return cluster->nvme.latency + (double)o[0].bytes /
                                           (cluster->nvme.read * (one ? devices : 1));
    case ZINF_OP_WRITE:
        return cluster->nvme.latency + (double)o[0].bytes / cluster->nvme.write;
    case ZINF_OP_UPLOAD:
    case ZINF_OP_DOWNLOAD:
        return cluster->links.host_device_latency +
               (double)o[0].bytes / zinf_link_rate(cluster, one);
    case ZINF_OP_ALLGATHER:
        return zinf_collective_s(cluster, (double)o[1].bytes);
    case ZINF_OP_REDUCE_SCATTER: /* read and added once more than it is sent */
        return zinf_collective_s(cluster, (double)o[0].bytes) +
               3 * (double)o[0].bytes / cluster->device.bandwidth;
    case ZINF_OP_ALLREDUCE:
        return zinf_collective_s(cluster, (double)o[0].bytes);
    case ZINF_OP_BROADCAST:
        return zinf_root_s(cluster, (double)o[0].bytes);
    case ZINF_OP_REDUCE: /* the root adds what each other rank has */
        return zinf_root_s(cluster, (double)o[0].bytes) +
               3 * (double)o[0].bytes * (cpu ? zinf_n_ranks(cluster) - 1 : 1) /
                   cluster->device.bandwidth;
    case ZINF_OP_ADAM:
        return device ? bytes / bandwidth : (double)o[0].cols / cluster->host.adam;
    case ZINF_OP_SUM_OF_SQUARES:
        return bytes / (device ? bandwidth : known(cluster->host.sum_of_squares, bandwidth));
    case ZINF_OP_ACCUMULATE:
        return bytes / (device ? bandwidth : known(cluster->host.accumulate, bandwidth));
    case ZINF_OP_INIT:
        return (double)o[0].cols * INIT_NS * 1e-9 / (double)plan->decisions.n_threads;
    default:
        return fmax(flops / peak, bytes / rate_in_step(plan, cluster, instr, bandwidth));
    }
}

/* One rank stands for all. What owners do alone all of them do at once, each a share of the units;
 * but units are broadcast one after the other, each brought over one rank's link while the others'
 * wait (paper 6.1; that they may work ahead within the prefetch distance is not counted). */
void zinf_cost(zinf_plan *plan, const zinf_cluster *cluster, double share)
{
    for (uint32_t i = 0; i < plan->n_instrs; i++) {
        zinf_instr *instr = &plan->instrs[i];
        const bool shared = zinf_instr_owner(plan, instr) != ZINF_NONE &&
                            !all_wait_for_it(plan, instr);
        instr->cost_ns = START_NS + 1e9 * work_s(plan, cluster, instr) * (shared ? share : 1);
    }
}
