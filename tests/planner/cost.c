/* tests/planner/cost.c - what the cluster file says of a step is what instructions are said to
 * take: each rate is that of its operators, and of no others. And a layout that rates depend on.
 * Nothing is timed.
 */
#include "planner/cost.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "planner/compile.h"
#include "runtime/opcodes.h"
#include "tests/check.h"

static const char gpt2[] =
    "model: {family: gpt2, layers: 2, hidden: 96, heads: 3, vocab: 300, context: 32}\n"
    "training: {global_batch: 4, precision: fp32}\n";
static const char llama[] =
    "model: {family: llama, layers: 2, hidden: 96, heads: 3, ffn: 200, vocab: 300, context: 32}\n"
    "training: {global_batch: 4, precision: bf16}\n";
static const char machine[] =
    "cluster:\n"
    "  device: {kind: cpu, peak: {bf16: 2 TFLOP/s, fp32: 300 GFLOP/s}}\n"
    "  host: {memory: 16 GiB, cores: 2, bandwidth: 25 GB/s}\n";

static zinf_plan compile(const zinf_cluster *cluster, const char *text, uint32_t tiles)
{
    zinf_decisions d = {.ranks = 1, .prefetch_gather = 1, .io_block_bytes = 1 << 20,
                        .io_depth = 8, .n_threads = 2, .micro_batch = 4, .accumulation = 1};
    uint64_t short_bytes[ZINF_N_TIERS];
    zinf_model model;
    zinf_plan plan = {0};
    zinf_error err = {0};

    for (int l = 0; l < ZINF_N_LINEARS; l++)
        d.tiles[l] = l == ZINF_LINEAR_VOCAB ? 1 : tiles;
    CHECK_MESSAGE(!zinf_model_parse("model", text, strlen(text), NULL, &model, &err) &&
                      !zinf_compile(&model, cluster, &d, true, &plan, short_bytes, &err),
                  "%s", err.text);
    return plan;
}

static zinf_cluster read_machine(void)
{
    zinf_cluster cluster = {0};
    zinf_error err = {0};

    CHECK_MESSAGE(!zinf_cluster_parse("machine", machine, strlen(machine), &cluster, &err), "%s",
                  err.text);
    return cluster;
}

/* Which rate an instruction has, by name; NULL: none of a step's. Seconds at a rate of 1. */
static const char *rate_name(const zinf_plan *plan, const zinf_instr *instr, double *ret_work)
{
    const bool fourth = plan->operands[instr->operand0 + 3].bytes != 0;

    *ret_work = zinf_instr_flops(plan, instr);
    switch (instr->opcode) {
    case ZINF_OP_LINEAR_FORWARD:
        return fourth ? "forward_residual" : "forward";
    case ZINF_OP_LINEAR_BACKWARD_INPUT:
        return "input_gradient";
    case ZINF_OP_LINEAR_BACKWARD_WEIGHT:
        return fourth ? "weight_gradient_bias" : "weight_gradient";
    case ZINF_OP_CLASSIFIER:
    case ZINF_OP_CLASSIFIER_FORWARD:
        return "classifier";
    case ZINF_OP_ATTENTION_FORWARD:
    case ZINF_OP_ATTENTION_BACKWARD:
        return "attention";
    case ZINF_OP_LAYERNORM_FORWARD:
    case ZINF_OP_LAYERNORM_BACKWARD:
    case ZINF_OP_RMSNORM_FORWARD:
    case ZINF_OP_RMSNORM_BACKWARD:
    case ZINF_OP_ROPE:
    case ZINF_OP_GELU_FORWARD:
    case ZINF_OP_GELU_BACKWARD:
    case ZINF_OP_SWIGLU_FORWARD:
    case ZINF_OP_SWIGLU_BACKWARD:
        *ret_work = zinf_instr_bytes(plan, instr);
        return zinf_opcode_get(instr->opcode)->name;
    default:
        return NULL;
    }
}

static const struct field {
    const char *name;
    size_t offset;
} fields[] = {
#define X(name, help) {#name, offsetof(zinf_step_rates, name)},
    ZINF_STEP_RATES(X, X, X)
#undef X
};
enum { N_FIELDS = sizeof fields / sizeof *fields };

/* Seconds that the change of a field takes from an instruction. */
static double expected_gain(const zinf_plan *plan, const zinf_instr *instr, const char *field,
                            double before, double after)
{
    double work;
    const char *name = rate_name(plan, instr, &work);
    const bool product = name && (strstr(name, "forward") == name || strstr(name, "gradient"));

    if (!strcmp(field, "attention_half")) /* flops / (rate s / (s + half)), rate 7e9 */
        return name && !strcmp(name, "attention")
                   ? work / 7e9 * (before - after) / (double)instr->attr[3] : 0;
    if (!strcmp(field, "product_memory"))
        return product ? zinf_product_excess(plan, instr) * (1 / before - 1 / after) : 0;
    return name && !strcmp(name, field) ? work * (1 / before - 1 / after) : 0;
}

/* All rates but attention_half, of both precisions. */
static void set_all(zinf_cluster *cluster, double rate)
{
    for (int i = 0; i < N_FIELDS; i++)
        if (strcmp(fields[i].name, "attention_half")) {
            *(double *)(void *)((char *)&cluster->device.step_bf16 + fields[i].offset) = rate;
            *(double *)(void *)((char *)&cluster->device.step_f32 + fields[i].offset) = rate;
        }
}

/* Raises a field of the precision and looks at every instruction; how many changed. */
static int compare(const char *text, uint32_t tiles, bool f32, const struct field *field,
                   bool of_the_other)
{
    zinf_cluster cluster = read_machine();
    const bool half = !strcmp(field->name, "attention_half");
    const double before = half ? 0 : 7e9, after = half ? 40 : 9e9;
    int changed = 0;

    set_all(&cluster, 7e9);
    zinf_plan old = compile(&cluster, text, tiles);
    zinf_step_rates *rates = f32 != of_the_other ? &cluster.device.step_f32
                                                 : &cluster.device.step_bf16;
    *(double *)(void *)((char *)rates + field->offset) = after;
    zinf_plan new = compile(&cluster, text, tiles);
    CHECK(old.n_instrs == new.n_instrs);
    for (uint32_t i = 0; i < old.n_instrs; i++) {
        const double gain = 1e-9 * (old.instrs[i].cost_ns - new.instrs[i].cost_ns);
        const double want = of_the_other ? 0 : expected_gain(&old, &old.instrs[i], field->name,
                                                             before, after);
        CHECK_MESSAGE(fabs(gain - want) <= 1e-6 * fabs(want) + 1e-15,
                      "%s, instruction %s: %g s less, not %g", field->name,
                      zinf_opcode_get(old.instrs[i].opcode)->name, gain, want);
        changed += want != 0;
    }
    zinf_plan_free(&old);
    zinf_plan_free(&new);
    return changed;
}

static void every_rate_is_that_of_its_operators(void)
{
    for (int i = 0; i < N_FIELDS; i++)
        CHECK_MESSAGE(compare(gpt2, 1, true, &fields[i], false) +
                          compare(llama, 1, false, &fields[i], false) > 0,
                      "no instruction depends on %s", fields[i].name);
}

static void the_other_precision_does_not_count(void)
{
    for (int i = 0; i < N_FIELDS; i++) {
        compare(gpt2, 1, true, &fields[i], true);
        compare(llama, 1, false, &fields[i], true);
    }
}

static void sums_over_tiles_are_paid_for(void)
{
    zinf_cluster cluster = read_machine();
    double excess[2] = {0};

    for (int t = 0; t < 2; t++) {
        zinf_plan plan = compile(&cluster, gpt2, t ? 3 : 1);
        for (uint32_t i = 0; i < plan.n_instrs; i++)
            if (plan.instrs[i].opcode == ZINF_OP_LINEAR_BACKWARD_INPUT)
                excess[t] += zinf_product_excess(&plan, &plan.instrs[i]);
        zinf_plan_free(&plan);
    }
    CHECK(excess[1] > 2 * excess[0]);
}

/* A data sheet: products at the peak, passes at the bandwidth, attention at half the peak. */
static void without_rates_peak_and_bandwidth_tell(void)
{
    zinf_cluster cluster = read_machine();
    zinf_plan plan = compile(&cluster, gpt2, 1);
    int n = 0;

    for (uint32_t i = 0; i < plan.n_instrs; i++) {
        const zinf_instr *instr = &plan.instrs[i];
        double work, want = 8e-6;
        const char *name = rate_name(&plan, instr, &work);
        if (!name || !strcmp(name, "classifier"))
            continue;
        if (!strcmp(name, "attention"))
            want += work / 150e9;
        else if (work == zinf_instr_flops(&plan, instr))
            want += work / 300e9 + zinf_product_excess(&plan, instr) / 25e9;
        else
            want += work / 25e9;
        CHECK_MESSAGE(fabs(1e-9 * instr->cost_ns - want) < 1e-12, "%s: %g s, not %g", name,
                      1e-9 * instr->cost_ns, want);
        n++;
    }
    CHECK(n > 20);
    zinf_plan_free(&plan);
}

static void sums_and_updates_have_the_hosts_rates(void)
{
    zinf_cluster cluster = read_machine();
    int n = 0;

    cluster.host.adam = 1e9, cluster.host.sum_of_squares = 5e9, cluster.host.accumulate = 6e9;
    zinf_plan plan = compile(&cluster, gpt2, 1);
    for (uint32_t i = 0; i < plan.n_instrs; i++) {
        const zinf_instr *instr = &plan.instrs[i];
        const double bytes = zinf_instr_bytes(&plan, instr);
        double want = 8e-6;
        if (instr->opcode == ZINF_OP_ADAM)
            want += (double)plan.operands[instr->operand0].cols / 1e9;
        else if (instr->opcode == ZINF_OP_SUM_OF_SQUARES)
            want += bytes / 5e9;
        else if (instr->opcode == ZINF_OP_ACCUMULATE)
            want += bytes / 6e9;
        else
            continue;
        CHECK_MESSAGE(fabs(1e-9 * instr->cost_ns - want) < 1e-12, "%s: %g s, not %g",
                      zinf_opcode_get(instr->opcode)->name, 1e-9 * instr->cost_ns, want);
        n++;
    }
    CHECK(n > 20);
    zinf_plan_free(&plan);
}

/* Of the classifier's rate it is half, where the vocabulary is none of whole lines. */
static void rows_of_scores_are_whole_cache_lines(void)
{
    zinf_cluster cluster = read_machine();
    zinf_plan plan = compile(&cluster, llama, 1);
    int n = 0;

    for (uint32_t i = 0; i < plan.n_instrs; i++) {
        const zinf_operand *o = &plan.operands[plan.instrs[i].operand0];
        if (plan.instrs[i].opcode != ZINF_OP_CLASSIFIER)
            continue;
        for (int slot = 6; slot < 8; slot++)
            CHECK(o[slot].cols == 300 && o[slot].offset % 64 == 0 &&
                  o[slot].ld * zinf_dtype_bytes(o[slot].dtype) % 64 == 0);
        n++;
    }
    CHECK(n == 1);
    zinf_plan_free(&plan);
}

int main(void)
{
    RUN(every_rate_is_that_of_its_operators);
    RUN(the_other_precision_does_not_count);
    RUN(sums_over_tiles_are_paid_for);
    RUN(without_rates_peak_and_bandwidth_tell);
    RUN(sums_and_updates_have_the_hosts_rates);
    RUN(rows_of_scores_are_whole_cache_lines);
    return check_finish();
}
