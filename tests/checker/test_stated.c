/* tests/checker/test_stated.c - what a plan states beside its instructions: every bound of a number
 * in its head, memory and bytes moved, initial values; and waits of two instructions.
 */
#include <float.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>

#include "runtime/overhead.h"
#include "tests/checker/faults.h"

static const trainer_model llama = {1, 16, 2, 24, 8, 4, "bf16", ", kv_heads: 1, ffn: 24"};
static const trainer_model gpt2 = {2, 16, 2, 24, 8, 4, "bf16", NULL};
#define SETS "threads=1 micro_batch=1 tiles=2 checkpoint_interval=1 tier.param=host "             \
             "tier.grad=host tier.optimizer=nvme tier.checkpoint=host"

/* ---- bounds ---- */

#define AT(group, field) #group "." #field " is", offsetof(zinf_plan, group.field),                \
                         sizeof((zinf_plan *)0)->group.field
#define BEYOND UINT32_MAX + (uint64_t)1

/* The first number that is too large, and whether 0 is too small. */
static const struct {
    const char *word;
    size_t at, size;
    uint64_t above; /* 0: none */
    bool not_0;
} numbers[] = {
    {AT(model, layers), BEYOND, false}, {AT(model, hidden), BEYOND, false},
    {AT(model, heads), BEYOND, false}, {AT(model, kv_heads), BEYOND, false},
    {AT(model, head_dim), 65537, false}, {AT(model, ffn), BEYOND, false},
    {AT(model, vocab), (uint64_t)INT32_MAX + 1, true}, {AT(model, context), BEYOND, false},
    {AT(model, tied_embeddings), 2, false},
    {AT(model, rope_original_context), BEYOND, false}, {AT(model, qkv_bias), 2, false},
    {AT(job, sequence), INT32_MAX, true}, {AT(job, global_batch), BEYOND, true},
    {AT(job, precision), ZINF_F16, false}, {AT(job, schedule), 2, false},
    {AT(decisions, micro_batch), 0, true}, {AT(decisions, accumulation), 1000000001, true},
    {AT(decisions, order), ZINF_VERTICAL + 1, false},
    {AT(decisions, partitioning), ZINF_OWNER, false}, /* of one rank */
    {AT(decisions, collectives), ZINF_SYNCHRONOUS + 1, false},
    {AT(decisions, optimizer_time), ZINF_IN_FORWARD + 1, false},
    {AT(decisions, ranks), 0, true}, {AT(decisions, n_threads), 4097, true},
    {AT(machine, unified), 2, false}, {AT(machine, shared_cores), 2, false},
    {AT(machine, overlap_read_write), 2, false},
    {AT(predicted, bound_by), ZINF_N_QUEUES, false},
};

static void check_number(const char *word, size_t at, size_t size, uint64_t value)
{
    zinf_plan plan = faults_plan(&llama, false, 1, SETS);

    memcpy((char *)&plan + at, &value, size); /* little-endian, as plan files are */
    zinf_error err = {0};
    const zinf_status status = zinf_plan_validate(&plan, &err);
    zinf_plan_free(&plan);
    CHECK_MESSAGE(status == ZINF_DOES_NOT_FIT && !strncmp(err.text, "plan refused: ", 14) &&
                  !strncmp(err.text + 14, word, strlen(word)), "%s %llu: %s", word,
                  (unsigned long long)value, err.text);
}

static void every_bound_of_a_whole_number_is_kept(void)
{
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        if (numbers[i].above)
            check_number(numbers[i].word, numbers[i].at, numbers[i].size, numbers[i].above);
        if (numbers[i].not_0)
            check_number(numbers[i].word, numbers[i].at, numbers[i].size, 0);
    }
}

static const struct {
    const char *word;
    size_t at, size;
    double above, below;
} reals[] = {
    {AT(job, lr), 10.1, -DBL_MIN}, {AT(job, min_lr), 10.1, -DBL_MIN},
    {AT(job, beta1), 0.99999999, -DBL_MIN}, {AT(job, beta2), 0.9999901, -DBL_MIN},
    {AT(job, eps), 1.1, 5e-309}, {AT(job, eps), INFINITY, 0.9e-30},
    {AT(job, clip), 1.1e9, -DBL_MIN}, {AT(job, weight_decay), 10.1, -DBL_MIN},
    {AT(predicted, step_s), INFINITY, -DBL_MIN},
    {AT(predicted, flops_per_step), INFINITY, -DBL_MIN},
    {AT(predicted, hardware_flops_per_step), INFINITY, -DBL_MIN},
    {AT(predicted, peak_flops), INFINITY, -DBL_MIN},
    {AT(machine, storage_core), INFINITY, -DBL_MIN}, {AT(model, norm_eps), 1.1, 1e-300},
    {AT(model, rope_theta), 1.1e12, -DBL_MIN}, {AT(model, rope_factor), 1.1e6, -DBL_MIN},
    {AT(model, rope_low_freq_factor), 1.1e6, -DBL_MIN},
    {AT(model, rope_high_freq_factor), 1.1e6, -DBL_MIN},
};

static void every_bound_of_a_real_number_is_kept(void)
{
    for (size_t i = 0; i < sizeof reals / sizeof *reals; i++) {
        const double values[] = {reals[i].above, reals[i].below, NAN};
        for (int k = 0; k < 3; k++) {
            uint64_t bits;
            memcpy(&bits, &values[k], sizeof bits);
            check_number(reals[i].word, reals[i].at, reals[i].size, bits);
        }
    }
    check_number("job.eps is 0", offsetof(zinf_plan, job.eps), sizeof(double), 0);
}

/* What a llama divides by, or turns by: the first number that is no more defined, and one that is,
 * with which positions are stretched from a context on or are not. */
static void norms_and_positions_of_a_llama_are_defined(void)
{
    static const struct {
        double eps, theta, factor, low, high;
        uint64_t context;
        bool is_defined;
    } rows[] = {
        {1e-5, 1, 0, 0, 0, 0, true}, {0, 1, 0, 0, 0, 0, false},
        {1e-5, 1 - DBL_EPSILON, 0, 0, 0, 0, false}, {1e-5, 1e4, 1, 1, 4, 1, true},
        {1e-5, 1e4, 1 - DBL_EPSILON, 1, 4, 1, false}, {1e-5, 1e4, DBL_MIN, 1, 4, 1, false},
        {1e-5, 1e4, 1, 1, 4, 0, false}, {1e-5, 1e4, 1, 4, 4, 1, false},
        {1e-5, 1e4, 1, 4, 1, 1, false}, {1e-5, 1e4, 1, 4, 4 + 4 * DBL_EPSILON, 1, true},
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        zinf_plan plan = faults_plan(&llama, false, 1, SETS);
        zinf_model_info *m = &plan.model;
        char text[200];
        snprintf(text, sizeof text, "not defined: norm_eps %g, rope_theta %g, factor %g, from %g "
                 "to %g", rows[i].eps, rows[i].theta, rows[i].factor, rows[i].low, rows[i].high);
        m->norm_eps = rows[i].eps;
        m->rope_theta = rows[i].theta;
        m->rope_factor = rows[i].factor;
        m->rope_low_freq_factor = rows[i].low;
        m->rope_high_freq_factor = rows[i].high;
        m->rope_original_context = rows[i].context;
        zinf_error err = {0};
        const zinf_status status = zinf_plan_check(&plan, &err);
        zinf_plan_free(&plan);
        CHECK_MESSAGE(rows[i].is_defined ? !status
                                         : status == ZINF_DOES_NOT_FIT && strstr(err.text, text),
                      "row %zu: %s", i, err.text);
    }
}

/* ---- one change each, and a word of the refusal ---- */

static void large_arena(zinf_plan *p) { p->machine.arena_bytes[ZINF_TIER_HOST] += ZINF_PAGE; }
static void large_table(zinf_plan *p) { p->machine.arena_bytes[ZINF_TIER_SCALAR] += 8; }
static void short_bill(zinf_plan *p) { p->items[0].bytes--; }
static void endless_bill(zinf_plan *p) { p->items[0].bytes = p->items[1].bytes = UINT64_MAX; }
static void more_beside(zinf_plan *p) { p->machine.overhead_bytes[ZINF_TIER_HOST]++; }
static void less_beside(zinf_plan *p) { p->machine.overhead_bytes[ZINF_TIER_HOST]--; }
static void beside_another(zinf_plan *p)
{
    p->machine.overhead_bytes[ZINF_TIER_DEVICE] = zinf_overhead_bytes(p);
}
static void fewer_reads(zinf_plan *p) { p->predicted.moved_bytes[ZINF_QUEUE_READ]--; }
static void fewer_sent(zinf_plan *p) { p->predicted.moved_bytes[ZINF_QUEUE_COLLECTIVE]--; }
static void less_read(zinf_plan *p) { p->predicted.traffic[ZINF_CLASS_OPTIMIZER].read_bytes--; }
static void less_written(zinf_plan *p)
{
    p->predicted.traffic[ZINF_CLASS_CHECKPOINT].write_bytes--;
}
static void fewer_collectives(zinf_plan *p) { p->predicted.n_collectives--; }
static void another_tier(zinf_plan *p) { p->decisions.tier[ZINF_CLASS_GRAD] = ZINF_TIER_NVME; }
static void wider(zinf_plan *p) { p->tensors[0].init_std = nextafter(0.02, 1); }
static void not_narrow(zinf_plan *p) /* of both families, but for what a gpt2 adds */
{
    for (uint32_t t = 0; t < p->n_tensors; t++)
        if (strstr(p->tensors[t].name, "attn.c_proj.weight"))
            p->tensors[t].init_std = 0.02;
}
static void narrow(zinf_plan *p)
{
    for (uint32_t t = 0; t < p->n_tensors; t++)
        if (strstr(p->tensors[t].name, "o_proj.weight"))
            p->tensors[t].init_std = 0.01;
}
static void scattered_ones(zinf_plan *p)
{
    for (uint32_t t = 0; t < p->n_tensors; t++)
        if (p->tensors[t].init == ZINF_INIT_ONE)
            p->tensors[t].init_std = 0.02;
}
static void ones_for_zeros(zinf_plan *p)
{
    for (uint32_t t = 0; t < p->n_tensors; t++)
        if (p->tensors[t].init == ZINF_INIT_ZERO)
            p->tensors[t].init = ZINF_INIT_ONE;
}
static void not_stacked(zinf_plan *p)
{
    for (uint32_t t = 0; t < p->n_tensors; t++)
        if (strstr(p->tensors[t].name, "up_proj.weight"))
            p->tensors[t].stack_row = 0;
}

/* The first two instructions that have waits, and then one wait. */
static void shared_wait(zinf_plan *p)
{
    zinf_instr *first = NULL;

    for (uint32_t i = 0; i < p->n_instrs; i++) {
        zinf_instr *instr = &p->instrs[i];
        if (instr->n_waits == 1 && first && instr->queue == first->queue) {
            instr->wait0 = first->wait0;
            return;
        }
        first = instr->n_waits == 1 && !first ? instr : first;
    }
}

static const struct {
    const trainer_model *model;
    unsigned ranks;
    void (*change)(zinf_plan *plan);
    const char *word;
} cases[] = {
    {&gpt2, 1, large_arena, "C1: the host arena is said to have"},
    {&gpt2, 1, large_table, "C1: the scalar arena is said to have"},
    {&gpt2, 1, short_bill, "C1: the memory bill of tier"},
    {&gpt2, 1, endless_bill, "more than 64 bits"},
    {&gpt2, 1, more_beside, "bytes are stated beside the host arena"},
    {&gpt2, 1, less_beside, "bytes are stated beside the host arena"},
    {&gpt2, 1, beside_another, "bytes are stated beside the device arena"},
    {&gpt2, 1, fewer_reads, "on queue read"},
    {&gpt2, 2, fewer_sent, "on queue collective"},
    {&gpt2, 1, less_read, "bytes of class optimizer"},
    {&gpt2, 1, less_written, "bytes of class checkpoint"},
    {&gpt2, 2, fewer_collectives, "collectives"},
    {&gpt2, 1, another_tier, "class grad is said to be in tier nvme"},
    {&gpt2, 1, wider, "or begins with other values"},
    {&gpt2, 1, not_narrow, "or begins with other values"},
    {&llama, 1, narrow, "or begins with other values"},
    {&llama, 1, scattered_ones, "or begins with other values"},
    {&gpt2, 1, ones_for_zeros, "or begins with other values"},
    {&llama, 1, not_stacked, "mlp.up_proj.weight\", [24][16], not what the plan states"},
    {&gpt2, 1, shared_wait, "C5: instruction"},
};

static void what_a_plan_states_wrongly_is_refused(void)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        zinf_plan plan = faults_plan(cases[i].model, false, cases[i].ranks, SETS);
        cases[i].change(&plan);
        check_refused_whole(&plan, cases[i].word);
    }
}

/* What a rank is said to own, where a rank owns units. */
static void more_than_a_rank_owns_is_refused(void)
{
    zinf_plan plan = faults_plan(&gpt2, false, 2, SETS " partitioning=owner");

    plan.machine.owned_bytes[ZINF_TIER_NVME] -= ZINF_PAGE;
    check_refused_whole(&plan, "C1: unit");
    plan = faults_plan(&gpt2, false, 2, SETS " partitioning=owner");
    CHECK(plan.machine.owned_bytes[ZINF_TIER_HOST] + ZINF_PAGE <=
          plan.machine.arena_bytes[ZINF_TIER_HOST]);
    plan.machine.owned_bytes[ZINF_TIER_HOST] += ZINF_PAGE;
    zinf_error err = {0};
    CHECK(zinf_plan_check(&plan, &err) == ZINF_DOES_NOT_FIT);
    zinf_plan_free(&plan);
}

/* Good plans that were refused, by reasons that others do not have. */
static void good_plans_are_accepted(void)
{
    static const struct {
        trainer_model model;
        const char *sets;
    } good[] = {
        /* a first tile ends before bytes of its last row that storage is still written from */
        {{3, 48, 4, 101, 5, 24, "fp32", ", kv_heads: 2, head_dim: 10, ffn: 70"},
         "clip=0 optimizer_time=backward micro_batch=3 checkpoint_interval=1 prefetch.read=3 "
         "tiles.out=3 tiles.fc=2 tiles.proj=3 tier.param=nvme tier.grad=nvme "
         "tier.optimizer=device tier.checkpoint=nvme"},
        /* one token: tiles lie one behind the other, where other sums have been */
        {{3, 48, 4, 101, 1, 24, "fp32", NULL},
         "micro_batch=1 checkpoint_interval=3 prefetch.read=1 tiles.qkv=2 tier.param=device "
         "tier.grad=device tier.optimizer=nvme tier.checkpoint=device"},
        /* behind a gradient's last element is what was in its place in another buffer */
        {{3, 48, 4, 101, 17, 24, "bf16",
          ", kv_heads: 2, head_dim: 10, ffn: 70, tied_embeddings: false, qkv_bias: true"},
         "optimizer_time=forward micro_batch=2 checkpoint_interval=none prefetch.read=9 "
         "tier.param=device tier.grad=nvme tier.optimizer=device tier.checkpoint=nvme"},
        /* many tiles: more pieces than half of the instructions, read in as many as there are */
        {{1, 1000, 4, 101, 4, 1, "bf16", NULL},
         "micro_batch=1 checkpoint_interval=none tiles.qkv=1000 tiles.out=1000 tiles.fc=1000 "
         "tiles.proj=1000 tier.param=device tier.grad=device tier.optimizer=device "
         "tier.checkpoint=device"},
    };

    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        zinf_plan plan;
        zinf_error err = {0};
        char sets[300];
        snprintf(sets, sizeof sets, "threads=1 %s", good[i].sets);
        CHECK_MESSAGE(!trainer_plan(&good[i].model, true, sets, &plan, &err), "%zu: %s", i,
                      err.text);
        zinf_plan_free(&plan);
    }
}

int main(void)
{
    RUN(every_bound_of_a_whole_number_is_kept);
    RUN(every_bound_of_a_real_number_is_kept);
    RUN(norms_and_positions_of_a_llama_are_defined);
    RUN(what_a_plan_states_wrongly_is_refused);
    RUN(more_than_a_rank_owns_is_refused);
    RUN(good_plans_are_accepted);
    return check_finish();
}
