/* tests/bitwise/early.c - the promise that updating each unit inside backward, as soon as its
 * gradient is complete, gives the bits of updating after it; and that it is what the plan does.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/checker.h"
#include "runtime/opcodes.h"
#include "tests/bitwise/trainer.h"
#include "tests/check.h"

enum { STEPS = 4 };

#define OF_LLAMA ", kv_heads: 1, ffn: 48"
static const trainer_model gpt2 = {2, 32, 2, 100, 8, 4, "bf16", NULL};
static const trainer_model gpt2_32 = {3, 32, 2, 100, 8, 8, "fp32", NULL};
static const trainer_model llama_tied = {2, 32, 2, 100, 8, 4, "fp32",
                                         OF_LLAMA ", tied_embeddings: true"};
static const trainer_model llama_untied = {3, 32, 2, 100, 8, 4, "bf16",
                                           OF_LLAMA ", tied_embeddings: false"};
static const struct {
    const trainer_model *model;
    const char *arithmetic;
} models[] = {
    {&gpt2, "micro_batch=4 tiles=1 checkpoint_interval=1"},       /* accumulation 1 */
    {&gpt2, "micro_batch=2 tiles=1 checkpoint_interval=2"},       /* 2: no loop */
    {&gpt2_32, "micro_batch=1 tiles=3 checkpoint_interval=2"},    /* 8 */
    {&llama_tied, "micro_batch=2 tiles=2 checkpoint_interval=1"},
    {&llama_untied, "micro_batch=1 tiles=2 tiles.vocab=1 checkpoint_interval=none"},
    {&llama_untied, "micro_batch=4 tiles=1 tiles.vocab=3 checkpoint_interval=1"},
};
enum { N_MODELS = sizeof models / sizeof *models };

static const char *const tiers[] = {"device", "host", "nvme"};
static char directory[64];

/* i: a choice of tiers; which: also how far is read ahead. */
static void make(int which, unsigned i, bool unified, const char *time, zinf_plan *ret_plan)
{
    zinf_error err = {0};
    char sets[400];

    snprintf(sets, sizeof sets,
             "clip=0 %s tier.param=%s tier.grad=%s tier.optimizer=%s tier.checkpoint=%s "
             "prefetch.read=%u prefetch.upload=%u threads=2 io.block=8192 io.depth=4 "
             "optimizer_time=%s",
             models[which].arithmetic, tiers[i / 9 % 3], tiers[i / 3 % 3], tiers[i % 3],
             tiers[strstr(models[which].arithmetic, "none") ? 0 : i % 3], i % 4, i % 3 % 2, time);
    CHECK_MESSAGE(trainer_plan(models[which].model, unified, sets, ret_plan, &err) == ZINF_OK,
                  "%s: %s", sets, err.text);
}

static void train(int which, unsigned i, bool unified, const char *time, uint64_t delays,
                  trainer_outcome *ret_outcome)
{
    const trainer_options options = {.directory = directory, .steps = STEPS,
                                     .delay_seed = delays};
    zinf_plan plan = {0};

    make(which, i, unified, time, &plan);
    trainer_train(&plan, &options, ret_outcome);
    CHECK_MESSAGE(ret_outcome->err.status == ZINF_OK, "%s", ret_outcome->err.text);
}

static void check_all(uint64_t delays, unsigned stride)
{
    for (int which = 0; which < N_MODELS; which++) {
        trainer_outcome after, early;
        train(which, 0, false, "after", 0, &after);
        CHECK(after.loss[STEPS - 1] < after.loss[0]);
        for (unsigned i = (unsigned)which % stride; i < 27; i += stride) {
            train(which, i, false, "backward", delays, &early);
            CHECK_MESSAGE(trainer_same(&after, &early), "model %d, tiers %u", which, i);
        }
        for (unsigned i = 0; i < 27; i += 26) { /* all on the device, all on nvme */
            train(which, i, true, "backward", delays, &early);
            CHECK_MESSAGE(trainer_same(&after, &early), "model %d, one memory, tiers %u", which, i);
        }
    }
}

static void updates_inside_backward_give_the_bits_of_updates_after_it(void)
{
    check_all(0, 4);
}

static void so_they_do_with_random_delays_in_every_queue(void)
{
    check_all(1, 7);
}

/* Updates in segment k of STEP. */
static uint32_t n_updates(const zinf_plan *plan, uint32_t k)
{
    const zinf_program *step = &plan->programs[ZINF_PROGRAM_STEP];
    const zinf_segment *s = &plan->segments[step->first_segment + k];
    uint32_t n = 0;

    for (uint32_t i = s->first_instr; i < s->first_instr + s->n_instrs; i++)
        n += plan->instrs[i].opcode == ZINF_OP_ADAM;
    return n;
}

/* All that has its gradient after the loss, but for the few whose states are still to come. */
static void all_but_the_last_few_updates_are_inside_the_last_backward(void)
{
    for (int which = 0; which < N_MODELS; which++) {
        zinf_plan plan = {0};
        make(which, 26, false, "backward order=horizontal", &plan);
        const uint32_t n = plan.programs[ZINF_PROGRAM_STEP].n_segments;
        const bool late_head = which == 4; /* untied, and one pass makes loss and gradient */
        const uint32_t left = plan.decisions.prefetch_read + late_head;
        CHECK(plan.decisions.optimizer_time == ZINF_IN_BACKWARD);
        CHECK(n == (plan.decisions.accumulation > 2 ? 4 : plan.decisions.accumulation + 1));
        CHECK(n_updates(&plan, n - 2) == plan.n_units - left);
        CHECK(n_updates(&plan, n - 1) == left);
        for (uint32_t k = 0; k + 2 < n; k++)
            CHECK(n_updates(&plan, k) == 0);
        zinf_plan_free(&plan);
    }
}

/* A gradient that is whole goes to its update, not to its tier and back. */
static void gradients_of_a_single_micro_batch_do_not_go_to_nvme(void)
{
    zinf_plan early = {0}, after = {0};

    make(5, 26, false, "backward", &early);
    make(5, 26, false, "after", &after);
    CHECK(after.predicted.traffic[ZINF_CLASS_GRAD].write_bytes > 0);
    CHECK(early.predicted.traffic[ZINF_CLASS_GRAD].write_bytes == 0);
    CHECK(early.predicted.traffic[ZINF_CLASS_GRAD].read_bytes == 0);
    CHECK(early.predicted.traffic[ZINF_CLASS_OPTIMIZER].read_bytes ==
          after.predicted.traffic[ZINF_CLASS_OPTIMIZER].read_bytes);
    zinf_plan_free(&early);
    zinf_plan_free(&after);
}

static void clipping_excludes_them_and_the_search_never_chooses_them(void)
{
    zinf_plan plan = {0};
    zinf_error err = {0};

    CHECK(trainer_plan(&gpt2, false, "optimizer_time=backward", &plan, &err) ==
          ZINF_BAD_INPUT);
    CHECK_MESSAGE(strstr(err.text, "clip"), "%s", err.text);
    err = (zinf_error){0};
    CHECK(trainer_plan(&gpt2, false, "clip=0 tier.optimizer=nvme", &plan, &err) == ZINF_OK);
    CHECK(plan.decisions.optimizer_time != ZINF_IN_BACKWARD);
    zinf_plan_free(&plan);
    make(0, 26, false, "backward", &plan);
    plan.job.clip = 1; /* and whoever makes the plan */
    CHECK(zinf_plan_validate(&plan, &err) && strstr(err.text, "optimizer_time"));
    zinf_plan_free(&plan);
}

/* ---- the checker: plans of one queue, where the next instruction is what runs next ---- */

/* From instruction `from` on the first of the opcode, of the unit if there is one. */
static uint32_t find(const zinf_plan *plan, uint32_t from, unsigned opcode, uint32_t unit)
{
    while (from < plan->n_instrs && (plan->instrs[from].opcode != opcode ||
                                     (unit != ZINF_NONE && plan->instrs[from].unit != unit)))
        from++;
    CHECK(from < plan->n_instrs);
    return from;
}

static uint32_t first_update(const zinf_plan *plan)
{
    const zinf_program *step = &plan->programs[ZINF_PROGRAM_STEP];

    return find(plan, plan->segments[step->first_segment].first_instr, ZINF_OP_ADAM, ZINF_NONE);
}

static void move_behind(zinf_plan *plan, uint32_t instr, uint32_t other)
{
    const zinf_instr moved = plan->instrs[instr];

    memmove(&plan->instrs[instr], &plan->instrs[instr + 1], (other - instr) * sizeof moved);
    plan->instrs[other] = moved;
}

static void check_refused(zinf_plan *plan, const char *rule, const char *why)
{
    zinf_error err = {0};

    CHECK(zinf_plan_check(plan, &err) == ZINF_DOES_NOT_FIT);
    CHECK_MESSAGE(!strncmp(err.text, rule, 2) && strstr(err.text, why), "expected %s, %s: %s", rule,
                  why, err.text);
    zinf_plan_free(plan);
}

static void an_operator_after_the_update_of_its_weight_is_refused(void)
{
    zinf_plan plan = {0};

    make(0, 0, true, "backward", &plan);
    const uint32_t use = find(&plan, first_update(&plan), ZINF_OP_LINEAR_BACKWARD_INPUT, ZINF_NONE);
    move_behind(&plan, use, find(&plan, use, ZINF_OP_ADAM, plan.instrs[use].unit));
    check_refused(&plan, "C4", "before or after an update");
}

static void an_update_by_another_units_norm_is_refused(void)
{
    zinf_plan plan = {0};

    make(0, 0, true, "backward", &plan);
    const uint32_t adam = first_update(&plan);
    move_behind(&plan, adam, find(&plan, adam, ZINF_OP_CLIP, ZINF_NONE));
    check_refused(&plan, "C7", "after its norm");
}

/* The head's norm is taken before the loss: nothing orders who waits for it with the loss. */
static void a_norm_that_does_not_wait_for_the_loss_is_refused(void)
{
    zinf_plan plan = {0};

    make(4, 0, true, "backward", &plan);
    const uint32_t i = find(&plan, first_update(&plan) - 1, ZINF_OP_CLIP, ZINF_NONE);
    const uint32_t head = plan.n_units - 1;
    uint32_t sum = find(&plan, 0, ZINF_OP_SUM_OF_SQUARES, head);
    for (uint32_t k = sum; k < i; k++) /* the last micro-batch's */
        if (plan.instrs[k].opcode == ZINF_OP_SUM_OF_SQUARES && plan.instrs[k].unit == head)
            sum = k;
    CHECK(plan.instrs[sum + 1].opcode == ZINF_OP_LOSS && plan.instrs[i].n_waits == 0);
    plan.waits = realloc(plan.waits, (plan.n_waits + 1) * sizeof *plan.waits);
    CHECK(plan.waits);
    plan.waits[plan.n_waits] = (zinf_wait){sum, 0};
    plan.instrs[i].queue = ZINF_QUEUE_UPDATE;
    plan.instrs[i].wait0 = plan.n_waits++;
    plan.instrs[i].n_waits = 1;
    plan.operands[plan.instrs[i].operand0].offset = 8 * ((uint64_t)ZINF_SCALAR_PARTIALS + head);
    check_refused(&plan, "C3", "(loss \"loss\")");
}

int main(void)
{
    const char *base = getenv("TMPDIR");

    snprintf(directory, sizeof directory, "%.40s/zinf-early-XXXXXX", base ? base : "/tmp");
    if (!mkdtemp(directory))
        return 1;
    RUN(updates_inside_backward_give_the_bits_of_updates_after_it);
    RUN(so_they_do_with_random_delays_in_every_queue);
    RUN(all_but_the_last_few_updates_are_inside_the_last_backward);
    RUN(gradients_of_a_single_micro_batch_do_not_go_to_nvme);
    RUN(clipping_excludes_them_and_the_search_never_chooses_them);
    RUN(an_operator_after_the_update_of_its_weight_is_refused);
    RUN(an_update_by_another_units_norm_is_refused);
    RUN(a_norm_that_does_not_wait_for_the_loss_is_refused);
    rmdir(directory);
    return check_finish();
}
