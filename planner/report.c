/* planner/report.c - a plan as text: summary, explanation, listing, simulation. JSON is in
 * report_json.c.
 */
#include "planner/report.h"

#include <inttypes.h>
#include <string.h>

#include "planner/cost.h"
#include "planner/equations.h"
#include "runtime/opcodes.h"
#include "runtime/overhead.h"
#include "runtime/timeline.h"

const char *zinf_text_bytes(uint64_t bytes, char text[32])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    double value = (double)bytes;
    int unit = 0;

    while (value >= 1024 && unit < 5) {
        value /= 1024;
        unit++;
    }
    snprintf(text, 32, unit ? "%.2f %s" : "%.0f %s", value, units[unit]);
    return text;
}

const char *zinf_text_seconds(double seconds, char text[32])
{
    if (seconds < 1e-3)
        snprintf(text, 32, "%.1f us", seconds * 1e6);
    else if (seconds < 1)
        snprintf(text, 32, "%.2f ms", seconds * 1e3);
    else
        snprintf(text, 32, "%.3f s", seconds);
    return text;
}

static void print_decisions(FILE *out, const zinf_plan *plan)
{
    const zinf_decisions *d = &plan->decisions;
    char ranks[32] = "", gather[32] = "", bytes[32];

    fprintf(out, "tiers        ");
    for (unsigned c = 0; c < ZINF_N_CLASSES; c++)
        fprintf(out, "%s%s %s", c ? ", " : "", zinf_class_name(c),
                c == ZINF_CLASS_CHECKPOINT && !d->checkpoint_interval ? "none"
                                                                      : zinf_tier_name(d->tier[c]));
    if (d->ranks > 1)
        snprintf(ranks, sizeof ranks, " x %" PRIu32 " ranks", d->ranks);
    fprintf(out, "\nbatch        %" PRIu64 " sequences of %" PRIu64 " tokens = micro-batch %u x "
                 "%u accumulated%s\n",
            plan->job.global_batch, plan->job.sequence, d->micro_batch, d->accumulation, ranks);
    if (d->order == ZINF_VERTICAL && d->accumulation > 1)
        fprintf(out, "order        vertical: all micro-batches of %u block%s before the next\n",
                d->checkpoint_interval, d->checkpoint_interval > 1 ? "s" : "");
    if (d->ranks > 1)
        fprintf(out, "ranks        %" PRIu32 " (mpirun -n %" PRIu32 " zinf-run PLAN ..): %" PRIu32
                     " collectives a step, in which each sends %s%s\n", d->ranks, d->ranks,
                plan->predicted.n_collectives,
                zinf_text_bytes(plan->predicted.moved_bytes[ZINF_QUEUE_COLLECTIVE], bytes),
                d->partitioning == ZINF_OWNER ? " on average" : "");
    fprintf(out, "tiles        ");
    for (unsigned l = 0; l < ZINF_N_LINEARS; l++)
        fprintf(out, "%s%s %u", l ? ", " : "", zinf_linear_name(l), d->tiles[l]);
    if (d->checkpoint_interval)
        fprintf(out, "\ncheckpoints  every %u block%s\n", d->checkpoint_interval,
                d->checkpoint_interval > 1 ? "s" : "");
    else
        fprintf(out, "\ncheckpoints  none: all activations are kept\n");
    if (d->ranks > 1)
        snprintf(gather, sizeof gather, ", gather %" PRIu32, d->prefetch_gather);
    fprintf(out, "prefetch     read %u, upload %u%s operators ahead\n", d->prefetch_read,
            d->prefetch_upload, gather);
    if (d->partitioning == ZINF_OWNER)
        fprintf(out, "partitioning owner: each unit is one rank's, which broadcasts it\n");
    if (d->collectives == ZINF_SYNCHRONOUS)
        fprintf(out, "collectives  synchronous: compute waits for each\n");
    if (d->optimizer_time == ZINF_IN_BACKWARD)
        fprintf(out, "optimizer    in backward, each unit when its gradient is complete\n");
    if (d->optimizer_time == ZINF_IN_FORWARD)
        fprintf(out, "optimizer    in the next forward, each unit before it is used; embedding's "
                "after backward\n");
}

static void print_memory(FILE *out, const zinf_plan *plan, bool itemised)
{
    char a[32], b[32];

    for (unsigned t = 0; t < ZINF_TIER_SCALAR; t++) {
        const uint64_t arena = plan->machine.arena_bytes[t];
        const uint64_t overhead = plan->machine.overhead_bytes[t];
        if (!arena && !overhead)
            continue;
        fprintf(out, "%-12s %s of %s\n", zinf_tier_name(t), zinf_text_bytes(arena + overhead, a),
                zinf_text_bytes(plan->machine.capacity_bytes[t], b));
        for (uint32_t i = 0; i < plan->n_items && itemised; i++)
            if (plan->items[i].tier == t)
                fprintf(out, "  %14" PRIu64 "  %s\n", plan->items[i].bytes, plan->items[i].name);
        const bool ours = t == (plan->machine.unified ? ZINF_TIER_DEVICE : ZINF_TIER_HOST);
        const uint64_t untouched = ours ? zinf_overhead_untouched_bytes(plan) : 0;
        if (itemised && overhead)
            fprintf(out, "  %14" PRIu64 "  outside the arenas (code, libraries, stacks)\n",
                    overhead);
        if (itemised && untouched)
            fprintf(out, "  %14s  of which up to %s may stay untouched\n", "",
                    zinf_text_bytes(untouched, a));
    }
}

static double tokens_per_step(const zinf_plan *plan)
{
    return (double)plan->job.global_batch * (double)plan->job.sequence;
}

static void print_time(FILE *out, const zinf_plan *plan)
{
    const zinf_predicted *p = &plan->predicted;
    char a[32];

    fprintf(out, "step         %s, %.0f tokens/s, %.2f TFLOP/s (model, 6x), MFU %.1f %% of %.2f "
                 "TFLOP/s, bound by %s\n",
            zinf_text_seconds(p->step_s, a), tokens_per_step(plan) / p->step_s,
            p->flops_per_step / p->step_s * 1e-12,
            100 * p->flops_per_step / p->step_s / p->peak_flops, p->peak_flops * 1e-12,
            zinf_queue_name(p->bound_by));
}

void zinf_report_summary(FILE *out, const zinf_plan *plan)
{
    fprintf(out, "plan         %s (%" PRIu64 " parameters) on %s\n", plan->model.name,
            plan->model.n_params, plan->machine.cluster);
    print_decisions(out, plan);
    print_memory(out, plan, false);
    print_time(out, plan);
}

/* bytes/s of the slowest link on the way from a tier to compute. */
static double tier_rate(const zinf_cluster *cluster, unsigned tier)
{
    if (tier == ZINF_TIER_NVME)
        return cluster->nvme.read < cluster->nvme.write ? cluster->nvme.read
                                                        : cluster->nvme.write;
    return tier == ZINF_TIER_HOST ? zinf_link_rate(cluster, false) : cluster->device.bandwidth;
}

zinf_equation_values zinf_report_equations(const zinf_plan *plan, const zinf_model *m,
                                           const zinf_cluster *c)
{
    const zinf_decisions *d = &plan->decisions;
    const double nl = (double)m->layers, hd = (double)m->hidden, seq = (double)m->sequence;
    const double bsz = d->micro_batch, ci = d->checkpoint_interval ? d->checkpoint_interval : 1;
    const double peak = plan->predicted.peak_flops;
    zinf_equation_values v = {
        .params = zinf_eq1_params(nl, hd),
        .model_state_bytes = zinf_eq2_model_state_bytes(nl, hd),
        .checkpoint_bytes = d->checkpoint_interval
                                ? zinf_eq3_checkpoint_bytes(bsz, seq, hd, nl, ci) : 0,
        .mswm_bytes = zinf_eq4_mswm_bytes(hd),
        .awm_bytes = zinf_eq5_awm_bytes(bsz, seq, ci, hd, (double)m->heads),
        .ait = {zinf_eq9_ait_param_grad(seq, bsz),
                zinf_eq10_ait_optimizer(seq, bsz) * d->accumulation,
                zinf_eq11_ait_checkpoint(hd, ci)},
        .flops_per_step = zinf_eq7_flops((double)m->global_batch, seq, zinf_eq1_params(nl, hd)),
        .flops_per_step_8 = zinf_eq8_flops((double)m->global_batch, seq, nl, hd)};
    static const zinf_class classes[3] = {ZINF_CLASS_PARAM, ZINF_CLASS_OPTIMIZER,
                                          ZINF_CLASS_CHECKPOINT};

    for (int i = 0; i < 3; i++) {
        v.bandwidth[i] = tier_rate(c, d->tier[classes[i]]);
        v.efficiency[i] = zinf_eq6_efficiency(v.ait[i], v.bandwidth[i], peak);
    }
    return v;
}

static void print_equations(FILE *out, const zinf_plan *plan, const zinf_model *m,
                            const zinf_cluster *c)
{
    static const char *const names[3] = {"parameters + gradients", "optimizer states",
                                         "activation checkpoints"};
    static const int numbers[3] = {9, 10, 11};
    const zinf_equation_values v = zinf_report_equations(plan, m, c);
    char a[32];

    fprintf(out, "\nequations (paper 2104.07857; nl %" PRIu64 ", hd %" PRIu64 ", bsz %u, seq %"
                 PRIu64 ", ci %u, attn_heads %" PRIu64 ")\n",
            m->layers, m->hidden, plan->decisions.micro_batch, m->sequence,
            plan->decisions.checkpoint_interval ? plan->decisions.checkpoint_interval : 1,
            m->heads);
    fprintf(out, "  Eq. 1   params (blocks)              %.0f (exact, with embeddings: %" PRIu64
                 ")\n", v.params, plan->model.n_params);
    fprintf(out, "  Eq. 2   model states                 %.0f B (%s)\n", v.model_state_bytes,
            zinf_text_bytes((uint64_t)v.model_state_bytes, a));
    fprintf(out, "  Eq. 3   activation checkpoints       %.0f B (%s)%s\n", v.checkpoint_bytes,
            zinf_text_bytes((uint64_t)v.checkpoint_bytes, a),
            plan->decisions.checkpoint_interval ? "" : ", none are made");
    fprintf(out, "  Eq. 4   MSWM                         %.0f B (%s)\n", v.mswm_bytes,
            zinf_text_bytes((uint64_t)v.mswm_bytes, a));
    fprintf(out, "  Eq. 5   AWM                          %.0f B (%s)\n", v.awm_bytes,
            zinf_text_bytes((uint64_t)v.awm_bytes, a));
    fprintf(out, "  Eq. 7   FLOP per step (8x)           %.4g\n", v.flops_per_step);
    fprintf(out, "  Eq. 8   the same from nl and hd      %.4g\n", v.flops_per_step_8);
    for (int i = 0; i < 3; i++) {
        fprintf(out, "  Eq. %-3d ait %-23s %8.0f FLOP/B", numbers[i], names[i], v.ait[i]);
        fprintf(out, "   Eq. 6 efficiency %.1f %% at %.2f GB/s\n", 100 * v.efficiency[i],
                v.bandwidth[i] * 1e-9);
    }
    fprintf(out, "  (Eq. 6 assumes no overlap; Eq. 10 is over %u accumulated micro-batches)\n",
            plan->decisions.accumulation);
}

void zinf_report_explain(FILE *out, const zinf_plan *plan, const zinf_model *model,
                         const zinf_cluster *cluster)
{
    const zinf_predicted *p = &plan->predicted;
    char a[32], b[32];

    fprintf(out, "plan         %s (%" PRIu64 " parameters) on %s\n", plan->model.name,
            plan->model.n_params, plan->machine.cluster);
    print_decisions(out, plan);
    print_equations(out, plan, model, cluster);
    fprintf(out, "\nmemory per tier, bytes\n");
    print_memory(out, plan, true);
    fprintf(out, "\ntraffic per step              read         write  (between the class's tier "
                 "and the next)\n");
    for (unsigned c = 0; c < ZINF_N_CLASSES; c++)
        fprintf(out, "  %-18s %13s %13s\n", zinf_class_name(c),
                zinf_text_bytes(p->traffic[c].read_bytes, a),
                zinf_text_bytes(p->traffic[c].write_bytes, b));
    fprintf(out, "\npredicted time per queue, of a step\n");
    for (unsigned q = 0; q < ZINF_N_QUEUES; q++)
        if (p->queue_busy_s[q] > 0)
            fprintf(out, "  %-10s %12s  %5.1f %%  %s\n", zinf_queue_name(q),
                    zinf_text_seconds(p->queue_busy_s[q], a),
                    100 * p->queue_busy_s[q] / p->step_s,
                    p->moved_bytes[q] ? zinf_text_bytes(p->moved_bytes[q], b) : "");
    fprintf(out, "  FLOP: model (6x, whole attention) %.4g, executed (recomputation, causal "
                 "attention) %.4g\n", p->flops_per_step, p->hardware_flops_per_step);
    print_time(out, plan);
}

void zinf_report_top(FILE *out, const zinf_search_result *r)
{
    char a[32], b[32], c[32], d[32];

    fprintf(out, "rank  simulated   closed form  device      host        nvme        decisions\n");
    for (uint32_t i = 0; i < r->n_top; i++) {
        const zinf_search_entry *e = &r->top[i];
        fprintf(out, "%4u  %-10s  ", i + 1, zinf_text_seconds(e->simulated_s, a));
        fprintf(out, "%-11s  %-10s  %-10s  %-10s  ", zinf_text_seconds(e->estimated_s, a),
                zinf_text_bytes(e->arena_bytes[ZINF_TIER_DEVICE], b),
                zinf_text_bytes(e->arena_bytes[ZINF_TIER_HOST], c),
                zinf_text_bytes(e->arena_bytes[ZINF_TIER_NVME], d));
        for (unsigned k = 0; k < ZINF_N_CLASSES; k++)
            fprintf(out, "%s=%s ", zinf_class_name(k), zinf_tier_name(e->decisions.tier[k]));
        fprintf(out, "micro_batch=%u tiles=%u/%u interval=%u prefetch=%u\n",
                e->decisions.micro_batch, e->decisions.tiles[ZINF_LINEAR_FC],
                e->decisions.tiles[ZINF_LINEAR_VOCAB], e->decisions.checkpoint_interval,
                e->decisions.prefetch_read);
    }
}

static void show_operand(FILE *out, const zinf_plan *plan, const zinf_operand *o)
{
    if (!o->bytes) {
        fprintf(out, " -");
        return;
    }
    fprintf(out, " %s@%" PRIu64, zinf_tier_name(o->tier), o->offset);
    if (o->stride)
        fprintf(out, "+i*%" PRIu64, o->stride);
    fprintf(out, ":%s[%" PRIu64 "][%" PRIu64, zinf_dtype_name(o->dtype), o->rows, o->cols);
    if (o->ld != o->cols)
        fprintf(out, "/%" PRIu64, o->ld);
    fprintf(out, "]");
    if (o->value != ZINF_NONE)
        fprintf(out, "=%s", plan->strings + plan->values[o->value]);
}

void zinf_report_show(FILE *out, const zinf_plan *plan)
{
    zinf_report_summary(out, plan);
    for (unsigned p = 0; p < ZINF_N_PROGRAMS; p++) {
        const zinf_program *program = &plan->programs[p];
        fprintf(out, "\nprogram %s%s\n", zinf_program_name(p),
                program->n_segments ? "" : ": empty");
        for (uint32_t g = 0; g < program->n_segments; g++) {
            const zinf_segment *segment = &plan->segments[program->first_segment + g];
            fprintf(out, " segment x %" PRIu64 "\n", segment->count);
            for (uint32_t i = 0; i < segment->n_instrs; i++) {
                const zinf_instr *instr = &plan->instrs[segment->first_instr + i];
                fprintf(out, "  %u %s %s%s", segment->first_instr + i,
                        zinf_queue_name(instr->queue), zinf_opcode_get(instr->opcode)->name,
                        instr->flags & ZINF_FLAG_ACCUMULATE ? "+" : "");
                for (uint32_t k = 0; k < instr->n_operands; k++)
                    show_operand(out, plan, &plan->operands[instr->operand0 + k]);
                for (uint32_t w = 0; w < instr->n_waits; w++) {
                    const zinf_wait *wait = &plan->waits[instr->wait0 + w];
                    fprintf(out, "%s%u", w ? "," : " after ", wait->instr);
                    if (wait->distance)
                        fprintf(out, "(i-%u)", wait->distance);
                }
                fprintf(out, " %.1f us  %s\n", instr->cost_ns * 1e-3,
                        plan->strings + instr->name);
            }
        }
    }
}

zinf_status zinf_report_simulate(FILE *out, const zinf_plan *plan, zinf_error *err)
{
    char a[32];

    for (unsigned p = 0; p < ZINF_N_PROGRAMS; p++) {
        zinf_timeline t;
        if (!plan->programs[p].n_segments)
            continue;
        if (zinf_timeline_run(plan, p, &t, err) != ZINF_OK)
            return err->status;
        fprintf(out, "%-8s %12s ", zinf_program_name(p), zinf_text_seconds(t.total_ns * 1e-9, a));
        for (unsigned q = 0; q < ZINF_N_QUEUES; q++)
            if (t.alone_ns[q] > 0)
                fprintf(out, "  %s %s", zinf_queue_name(q),
                        zinf_text_seconds(t.alone_ns[q] * 1e-9, a));
        fprintf(out, "\n");
        zinf_timeline_free(&t);
    }
    return ZINF_OK;
}
