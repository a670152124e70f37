/* planner/compile.c - see compile.h. */
#include "planner/compile.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "planner/cost.h"
#include "planner/graph.h"
#include "planner/lower.h"
#include "planner/place.h"
#include "planner/ranks.h"
#include "planner/schedule.h"
#include "runtime/moved.h"
#include "runtime/overhead.h"
#include "runtime/timeline.h"

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
    return strcmp(cluster->device.kind, "cpu") ? CUDA_HOST_OVERHEAD_BYTES
                                               : zinf_overhead_base_bytes(zinf_n_ranks(cluster));
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
    plan->machine.storage_core = c->nvme.core;
    plan->decisions = *d;
    for (unsigned t = 0; t < ZINF_TIER_SCALAR; t++) {
        plan->machine.capacity_bytes[t] = zinf_capacity(c, t);
        plan->machine.overhead_bytes[t] = zinf_overhead(c, t);
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
        if (timeline.alone_ns[q] > timeline.alone_ns[p->bound_by])
            p->bound_by = q;
    }
    zinf_timeline_free(&timeline);
    p->flops_per_step = model_flops(m) / plan->decisions.ranks;
    p->peak_flops = zinf_device_peak(c, m->precision);
    for (uint32_t g = 0; g < step->n_segments; g++) {
        const zinf_segment *segment = &plan->segments[step->first_segment + g];
        for (uint32_t i = 0; i < segment->n_instrs; i++)
            p->hardware_flops_per_step +=
                (double)segment->count *
                zinf_instr_flops(plan, &plan->instrs[segment->first_instr + i]);
    }
    zinf_count_moved(plan, p);
}

/* What is done for a plan that is decided, not for probes, which it would make take twice as long
 * and their time not grow by equal steps: place.h; lower.h; a quarter more of the device. */
typedef struct care {
    bool spread, ahead, roomy;
} care;

/* A plan under way: the first half (graph, lower, place) knows the memory, the second the time. */
typedef struct compilation {
    zinf_plan plan;
    zinf_builder b;
    uint64_t short_bytes[ZINF_N_TIERS];
    bool fits;
} compilation;

/* What the tiers hold against what they can; before waits are known they are not counted. */
static void weigh(compilation *c, const zinf_cluster *cluster)
{
    zinf_machine_info *machine = &c->plan.machine;
    const zinf_tier host = cluster->unified ? ZINF_TIER_DEVICE : ZINF_TIER_HOST;

    if (!strcmp(cluster->device.kind, "cpu"))
        machine->overhead_bytes[host] = zinf_overhead_bytes(&c->plan);
    c->fits = true;
    for (unsigned t = 0; t < ZINF_TIER_SCALAR; t++) {
        const uint64_t need = machine->arena_bytes[t] + machine->overhead_bytes[t];
        const uint64_t have = machine->capacity_bytes[t];
        c->short_bytes[t] = need > have ? need - have : 0;
        c->fits = c->fits && !c->short_bytes[t];
    }
}

static void begin(compilation *c, const zinf_model *model, const zinf_cluster *cluster,
                  const zinf_decisions *decisions, care with, zinf_error *err)
{
    uint32_t program_buffers[ZINF_N_PROGRAMS + 1];

    memset(c, 0, sizeof *c);
    c->b.plan = &c->plan;
    c->b.err = err;
    c->fits = true;
    describe(&c->plan, model, cluster, decisions);
    zinf_graph_build(&c->b, model, decisions);
    for (uint32_t t = 0; t < c->plan.n_tensors; t++)
        c->plan.model.n_params += c->plan.tensors[t].rows * c->plan.tensors[t].cols;
    if (err->status == ZINF_OK)
        zinf_lower(&c->b, model, cluster, decisions, with.ahead, program_buffers);
    if (err->status == ZINF_OK)
        zinf_place(&c->b, program_buffers, with.spread, with.roomy ? 0.25 : 0);
    if (err->status == ZINF_OK)
        weigh(c, cluster);
}

/* whole: the model of which this may be a few blocks. */
static void finish(compilation *c, const zinf_model *model, const zinf_model *whole,
                   const zinf_cluster *cluster)
{
    if (c->b.err->status == ZINF_OK)
        zinf_schedule(&c->b);
    if (c->b.err->status == ZINF_OK) {
        zinf_cost(&c->plan, cluster,
                  zinf_owner_share(&c->plan, (double)zinf_model_params(whole)));
        predict(&c->plan, model, cluster, c->b.err);
        weigh(c, cluster);
    }
}

static void discard(compilation *c)
{
    zinf_build_free(&c->b);
    zinf_plan_free(&c->plan);
}

/* Takes a plan that was made with more care instead, where it fits and is worth its memory: a
 * hundredth of the step. */
static bool try(compilation *c, const zinf_model *model, const zinf_cluster *cluster,
                const zinf_decisions *decisions, care with, zinf_error *err)
{
    compilation other;

    if (!c->fits || err->status != ZINF_OK)
        return false;
    begin(&other, model, cluster, decisions, with, err);
    if (other.fits)
        finish(&other, model, model, cluster);
    const bool better = other.fits && err->status == ZINF_OK &&
                        other.plan.predicted.step_s < 0.99 * c->plan.predicted.step_s;
    if (better) {
        const compilation slower = *c;
        *c = other;
        other = slower;
    }
    discard(&other);
    return better;
}

zinf_status zinf_compile(const zinf_model *model, const zinf_cluster *cluster,
                         const zinf_decisions *decisions, bool least, zinf_plan *ret_plan,
                         uint64_t ret_short[ZINF_N_TIERS], zinf_error *err)
{
    care with = {.spread = true};
    compilation c;

    begin(&c, model, cluster, decisions, with, err);
    if (c.fits)
        finish(&c, model, model, cluster);
    if (!least && zinf_may_bring_ahead(decisions))
        with.ahead = try(&c, model, cluster, decisions, (care){.spread = true, .ahead = true}, err);
    with.roomy = true;
    if (!least && c.plan.machine.arena_bytes[ZINF_TIER_NVME])
        try(&c, model, cluster, decisions, with, err);
    if (err->status != ZINF_OK) {
        discard(&c);
        return err->status;
    }
    memcpy(ret_short, c.short_bytes, sizeof c.short_bytes);
    zinf_build_free(&c.b);
    *ret_plan = c.plan;
    return ZINF_OK;
}

zinf_status zinf_compile_memory(const zinf_model *model, const zinf_cluster *cluster,
                                const zinf_decisions *decisions,
                                uint64_t ret_short[ZINF_N_TIERS], zinf_error *err)
{
    compilation c;

    begin(&c, model, cluster, decisions, (care){0}, err);
    memcpy(ret_short, c.short_bytes, sizeof c.short_bytes);
    discard(&c);
    return err->status;
}

/* A value at `layers`, on the line through those at two depths. */
static double extend(double shallow, double deep, double steps)
{
    return deep + (deep - shallow) * steps;
}

/* Of a tier: what all ranks own; of an arena what none does. Both are on that line, what the rank
 * with most owns is not. */
static double all_owned_bytes(const zinf_plan *plan, unsigned tier)
{
    double bytes = 0;

    if (plan->decisions.partitioning != ZINF_OWNER)
        return 0;
    for (uint32_t u = 0; u < plan->n_units; u++) {
        const zinf_region *regions[3] = {&plan->units[u].param, &plan->units[u].grad,
                                         &plan->units[u].optimizer};
        for (int i = 0; i < 3; i++)
            bytes += regions[i]->tier == tier ? (double)regions[i]->bytes : 0;
    }
    return bytes;
}

static double shared_bytes(const zinf_plan *plan, unsigned tier)
{
    return (double)plan->machine.arena_bytes[tier] - (double)plan->machine.owned_bytes[tier];
}

zinf_status zinf_probe_decisions(const zinf_model *model, const zinf_cluster *cluster,
                                 const zinf_decisions *decisions, bool memory_only,
                                 zinf_probe *ret_probe, zinf_error *err)
{
    const uint64_t group = decisions->checkpoint_interval ? decisions->checkpoint_interval : 1;
    zinf_model models[2] = {*model, *model};
    zinf_probe probe = {.fits = true};
    compilation c[2];
    double steps = 0;
    int n = 1;

    models[0].layers = model->layers % group + group;
    while (models[0].layers < 3)
        models[0].layers += group;
    models[1].layers = models[0].layers + group;
    if (models[1].layers < model->layers) {
        n = 2;
        steps = (double)((model->layers - models[1].layers) / group);
    } else {
        models[0].layers = model->layers;
    }
    for (int i = 0; i < n; i++)
        begin(&c[i], &models[i], cluster, decisions, (care){0}, err);
    for (unsigned t = 0; t < ZINF_TIER_SCALAR; t++) {
        const zinf_machine_info *last = &c[n - 1].plan.machine;
        double arena = extend(shared_bytes(&c[0].plan, t), shared_bytes(&c[n - 1].plan, t), steps) +
                       fmax((double)last->owned_bytes[t],
                            extend(all_owned_bytes(&c[0].plan, t),
                                   all_owned_bytes(&c[n - 1].plan, t), steps) / decisions->ranks);
        double overhead = extend((double)c[0].plan.machine.overhead_bytes[t],
                                 (double)last->overhead_bytes[t], steps);
        double need = arena + overhead;
        probe.arena_bytes[t] = arena > 0 ? (uint64_t)arena : 0;
        double capacity = (double)last->capacity_bytes[t];
        double room = capacity - overhead;
        if (room < 1)
            room = 1;
        if (arena > 0)
            probe.load += arena / room;
        if (need > capacity) {
            probe.short_bytes[t] = (uint64_t)(need - capacity);
            probe.shortness += (need - capacity) / room;
        }
    }
    probe.fits = probe.shortness <= 0;
    probe.n_instrs = (uint64_t)extend(c[0].plan.n_instrs, c[n - 1].plan.n_instrs, steps);
    for (int i = 0; i < n; i++) {
        probe.work += c[i].plan.n_instrs;
        if (probe.fits && !memory_only) {
            finish(&c[i], &models[i], model, cluster);
            probe.work += 2 * c[i].plan.n_instrs;
        }
    }
    probe.step_s = fmax(c[n - 1].plan.predicted.step_s, /* more blocks take no less */
                        extend(c[0].plan.predicted.step_s, c[n - 1].plan.predicted.step_s, steps));
    for (int i = 0; i < n; i++)
        discard(&c[i]);
    if (err->status == ZINF_OK)
        *ret_probe = probe;
    return err->status;
}
