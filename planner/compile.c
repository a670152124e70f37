/* planner/compile.c - see compile.h. */
#include "planner/compile.h"

#include <stdio.h>
#include <string.h>

#include "planner/cost.h"
#include "planner/graph.h"
#include "planner/lower.h"
#include "planner/place.h"
#include "planner/schedule.h"
#include "runtime/timeline.h"

/* Resident outside the arenas in zinf-run on the cpu backend: see `tools/bench memory`. */
static const uint64_t CPU_OVERHEAD_BYTES = (uint64_t)256 << 20;
static const uint64_t CUDA_HOST_OVERHEAD_BYTES = (uint64_t)1 << 30;

uint64_t zinf_capacity(const zinf_cluster *cluster, zinf_tier tier)
{
    uint64_t memory, reserve;

    switch (tier) {
    case ZINF_TIER_DEVICE:
        memory = cluster->device.memory_bytes;
        reserve = cluster->unified ? cluster->host.reserve_bytes + cluster->device.reserve_bytes
                                   : cluster->device.reserve_bytes;
        break;
    case ZINF_TIER_HOST:
        memory = cluster->unified ? 0 : cluster->host.memory_bytes;
        reserve = cluster->host.reserve_bytes;
        break;
    case ZINF_TIER_NVME:
        memory = cluster->nvme.present ? cluster->nvme.capacity_bytes : 0;
        reserve = 0;
        break;
    default:
        return UINT64_MAX;
    }
    return memory > reserve ? memory - reserve : 0;
}

uint64_t zinf_overhead(const zinf_cluster *cluster, zinf_tier tier)
{
    if (tier != (cluster->unified ? ZINF_TIER_DEVICE : ZINF_TIER_HOST))
        return 0;
    return strcmp(cluster->device.kind, "cpu") ? CUDA_HOST_OVERHEAD_BYTES : CPU_OVERHEAD_BYTES;
}

static void copy_name(char *to, size_t n, const char *from)
{
    snprintf(to, n, "%s", from);
}

static void describe(zinf_plan *plan, const zinf_model *m, const zinf_cluster *c,
                     const zinf_decisions *d)
{
    copy_name(plan->model.name, sizeof plan->model.name, m->name);
    copy_name(plan->model.family, sizeof plan->model.family, m->family);
    plan->model.layers = m->layers;
    plan->model.hidden = m->hidden;
    plan->model.heads = m->heads;
    plan->model.kv_heads = m->kv_heads;
    plan->model.head_dim = m->head_dim;
    plan->model.ffn = m->ffn;
    plan->model.vocab = m->vocab;
    plan->model.context = m->context;
    plan->model.tied_embeddings = m->tied_embeddings;
    plan->model.norm_eps = m->norm_eps;
    plan->model.rope_theta = m->rope_theta;
    plan->model.rope_factor = m->rope_scaling.factor;
    plan->model.rope_low_freq_factor = m->rope_scaling.low_freq_factor;
    plan->model.rope_high_freq_factor = m->rope_scaling.high_freq_factor;
    plan->model.rope_original_context = m->rope_scaling.original_context;
    plan->model.qkv_bias = m->qkv_bias;
    plan->job = (zinf_job_info){
        .sequence = m->sequence, .global_batch = m->global_batch, .seed = m->seed,
        .warmup = m->warmup, .steps = m->steps, .precision = m->precision,
        .schedule = !strcmp(m->schedule, "cosine"), .lr = m->lr, .min_lr = m->min_lr,
        .beta1 = m->beta1, .beta2 = m->beta2, .eps = m->eps, .weight_decay = m->weight_decay,
        .clip = m->clip};
    copy_name(plan->machine.cluster, sizeof plan->machine.cluster, c->name);
    copy_name(plan->machine.backend, sizeof plan->machine.backend, c->device.kind);
    plan->machine.unified = c->unified;
    plan->machine.shared_cores = !strcmp(c->device.kind, "cpu");
    plan->machine.overlap_read_write = c->nvme.overlap;
    plan->decisions = *d;
    for (unsigned t = 0; t < ZINF_TIER_SCALAR; t++) {
        plan->machine.capacity_bytes[t] = zinf_capacity(c, t);
        plan->machine.overhead_bytes[t] = zinf_overhead(c, t);
    }
}

/* The class whose state an operand's value is; -1 for none of them. */
static int class_of(const zinf_plan *plan, const zinf_instr *instr, uint32_t value)
{
    if (instr->unit != ZINF_NONE) {
        const zinf_unit *unit = &plan->units[instr->unit];
        if (value == unit->param.value)
            return ZINF_CLASS_PARAM;
        if (value == unit->grad.value)
            return ZINF_CLASS_GRAD;
        if (value == unit->optimizer.value)
            return ZINF_CLASS_OPTIMIZER;
        return -1;
    }
    return instr->layer >= 0 ? ZINF_CLASS_CHECKPOINT : -1;
}

/* Bytes moved per step: per queue, and per class over the link next to the class's own tier. */
static void count_traffic(zinf_plan *plan)
{
    const zinf_program *step = &plan->programs[ZINF_PROGRAM_STEP];
    zinf_predicted *p = &plan->predicted;

    for (uint32_t g = 0; g < step->n_segments; g++) {
        const zinf_segment *segment = &plan->segments[step->first_segment + g];
        for (uint32_t i = 0; i < segment->n_instrs; i++) {
            const zinf_instr *instr = &plan->instrs[segment->first_instr + i];
            const zinf_operand *o = &plan->operands[instr->operand0];
            if (instr->queue < ZINF_QUEUE_UPLOAD || instr->queue > ZINF_QUEUE_WRITE)
                continue;
            p->moved_bytes[instr->queue] += o->bytes * segment->count;
            int c = class_of(plan, instr, o->value);
            if (c < 0)
                continue;
            bool nvme = plan->decisions.tier[c] == ZINF_TIER_NVME;
            if (instr->queue == (nvme ? ZINF_QUEUE_READ : ZINF_QUEUE_UPLOAD))
                p->traffic[c].read_bytes += o->bytes * segment->count;
            if (instr->queue == (nvme ? ZINF_QUEUE_WRITE : ZINF_QUEUE_DOWNLOAD))
                p->traffic[c].write_bytes += o->bytes * segment->count;
        }
    }
}

/* Model FLOP per step: 6 per token and weight of a linear (the classifier among them), and
 * attention's 12 * layers * heads * head_dim * seq per token, as PaLM (2204.02311, appendix B)
 * counts them: recomputation and the causal half are not subtracted or added. */
static double model_flops(const zinf_model *m)
{
    double weights = (double)m->vocab * (double)m->hidden;

    for (int l = 0; l < ZINF_LINEAR_VOCAB; l++)
        weights += (double)m->layers * (double)zinf_linear_rows(m, l) *
                   (double)zinf_linear_cols(m, l);
    return (double)m->global_batch * (double)m->sequence *
           (6 * weights + 12.0 * (double)m->layers * (double)(m->heads * m->head_dim) *
                              (double)m->sequence);
}

static void predict(zinf_plan *plan, const zinf_model *m, const zinf_cluster *c, zinf_error *err)
{
    const zinf_program *step = &plan->programs[ZINF_PROGRAM_STEP];
    zinf_predicted *p = &plan->predicted;
    zinf_timeline timeline;

    if (zinf_timeline_run(plan, ZINF_PROGRAM_STEP, &timeline, err) != ZINF_OK)
        return;
    p->step_s = timeline.total_ns * 1e-9;
    for (unsigned q = 0; q < ZINF_N_QUEUES; q++) {
        p->queue_busy_s[q] = timeline.busy_ns[q] * 1e-9;
        if (p->queue_busy_s[q] > p->queue_busy_s[p->bound_by])
            p->bound_by = q;
    }
    zinf_timeline_free(&timeline);
    p->flops_per_step = model_flops(m);
    p->peak_flops = zinf_device_peak(c, m->precision);
    for (uint32_t g = 0; g < step->n_segments; g++) {
        const zinf_segment *segment = &plan->segments[step->first_segment + g];
        for (uint32_t i = 0; i < segment->n_instrs; i++)
            p->hardware_flops_per_step +=
                (double)segment->count *
                zinf_instr_flops(plan, &plan->instrs[segment->first_instr + i]);
    }
    count_traffic(plan);
}

zinf_status zinf_compile(const zinf_model *model, const zinf_cluster *cluster,
                         const zinf_decisions *decisions, bool even_if_short, zinf_plan *ret_plan,
                         uint64_t ret_short[ZINF_N_TIERS], zinf_error *err)
{
    zinf_plan plan = {0};
    zinf_builder b = {.plan = &plan, .err = err};
    uint32_t program_buffers[ZINF_N_PROGRAMS + 1];
    bool fits = true;

    describe(&plan, model, cluster, decisions);
    zinf_graph_build(&b, model, decisions);
    for (uint32_t t = 0; t < plan.n_tensors; t++)
        plan.model.n_params += plan.tensors[t].rows * plan.tensors[t].cols;
    if (err->status == ZINF_OK)
        zinf_lower(&b, model, cluster, decisions, program_buffers);
    if (err->status == ZINF_OK)
        zinf_place(&b, program_buffers);
    for (unsigned t = 0; t < ZINF_N_TIERS; t++) {
        uint64_t need = plan.machine.arena_bytes[t] + plan.machine.overhead_bytes[t];
        uint64_t have = t < ZINF_TIER_SCALAR ? plan.machine.capacity_bytes[t] : UINT64_MAX;
        ret_short[t] = plan.machine.arena_bytes[t] && need > have ? need - have : 0;
        fits = fits && !ret_short[t];
    }
    if (err->status == ZINF_OK && (fits || even_if_short)) {
        zinf_schedule(&b);
        if (err->status == ZINF_OK) {
            zinf_cost(&plan, cluster);
            predict(&plan, model, cluster, err);
        }
    }
    zinf_build_free(&b);
    if (err->status != ZINF_OK) {
        zinf_plan_free(&plan);
        return err->status;
    }
    *ret_plan = plan;
    return ZINF_OK;
}
