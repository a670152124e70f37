/* tests/bitwise/late.c - the promise that updating each unit inside the next forward, just before
 * it is used, gives the bits of updating after backward, clipped or not; and that the checker
 * proves of such a plan what it needs.
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
static const trainer_model llama = {3, 32, 2, 100, 8, 4, "bf16",
                                    OF_LLAMA ", tied_embeddings: false"};
static const struct {
    const trainer_model *model;
    const char *arithmetic;
} models[] = {
    {&gpt2, "micro_batch=4 tiles=1 checkpoint_interval=1 order=horizontal"},
    {&gpt2, "micro_batch=2 tiles=2 checkpoint_interval=2 order=horizontal clip=0"},
    {&gpt2_32, "micro_batch=1 tiles=3 checkpoint_interval=1 order=horizontal"},
    {&gpt2_32, "micro_batch=2 tiles=1 checkpoint_interval=2 order=vertical"},
    {&llama, "micro_batch=1 tiles=2 tiles.vocab=1 checkpoint_interval=1 order=vertical"},
    {&llama, "micro_batch=4 tiles=1 tiles.vocab=3 checkpoint_interval=1 order=horizontal"},
};
enum { N_MODELS = sizeof models / sizeof *models };

static const char *const tiers[] = {"device", "host", "nvme"};
static char directory[64];

/* i: a choice of tiers, and of how far transfers run ahead. */
static void make(int which, unsigned i, bool unified, const char *time, zinf_plan *ret_plan)
{
    zinf_error err = {0};
    char sets[400];

    snprintf(sets, sizeof sets,
             "%s tier.param=%s tier.grad=%s tier.optimizer=%s tier.checkpoint=%s "
             "prefetch.read=%u prefetch.upload=%u threads=2 io.block=8192 io.depth=4 "
             "optimizer_time=%s",
             models[which].arithmetic, tiers[i / 9 % 3], tiers[i / 3 % 3], tiers[i % 3],
             tiers[i % 3], i % 5, i % 3, time);
    CHECK_MESSAGE(trainer_plan(models[which].model, unified, sets, ret_plan, &err) == ZINF_OK,
                  "%s: %s", sets, err.text);
}

static void train(int which, unsigned i, bool unified, const char *time, trainer_options options,
                  trainer_outcome *ret_outcome)
{
    zinf_plan plan = {0};

    options.directory = directory;
    options.steps = STEPS;
    make(which, i, unified, time, &plan);
    trainer_train(&plan, &options, ret_outcome);
    CHECK_MESSAGE(ret_outcome->err.status == ZINF_OK, "%s", ret_outcome->err.text);
}

static void check_all(trainer_options options, unsigned stride)
{
    for (int which = 0; which < N_MODELS; which++) {
        trainer_outcome after, late;
        train(which, 0, false, "after", (trainer_options){0}, &after);
        CHECK(after.loss[STEPS - 1] < after.loss[0]);
        for (unsigned i = (unsigned)which % stride; i < 27; i += stride) {
            train(which, i, false, "forward", options, &late);
            CHECK_MESSAGE(trainer_same(&after, &late), "model %d, tiers %u", which, i);
        }
        for (unsigned i = 0; i < 27; i += 26) { /* all on the device, all on nvme */
            train(which, i, true, "forward", options, &late);
            CHECK_MESSAGE(trainer_same(&after, &late), "model %d, one memory, tiers %u", which, i);
        }
    }
}

static void updates_inside_the_next_forward_give_the_bits_of_updates_after_backward(void)
{
    check_all((trainer_options){0}, 4);
}

static void so_they_do_with_random_delays_in_every_queue_and_with_the_other_engine(void)
{
    check_all((trainer_options){.delay_seed = 1}, 10);
    check_all((trainer_options){.engine = ZINF_ENGINE_THREADS}, 13);
}

/* From instruction `from` on the first of the opcode, of the unit if there is one. */
static uint32_t find(const zinf_plan *plan, uint32_t from, unsigned opcode, uint32_t unit)
{
    while (from < plan->n_instrs && (plan->instrs[from].opcode != opcode ||
                                     (unit != ZINF_NONE && plan->instrs[from].unit != unit)))
        from++;
    CHECK(from < plan->n_instrs);
    return from;
}

static uint32_t first_of(const zinf_plan *plan, zinf_program_kind program)
{
    return plan->segments[plan->programs[program].first_segment].first_instr;
}

/* What was updated on the host is used from there: parameters on nvme are read once less. */
static void a_unit_is_used_from_where_it_was_updated(void)
{
    zinf_plan late = {0}, after = {0};
    uint64_t params = 0;

    make(5, 26, false, "forward", &late);
    make(5, 26, false, "after", &after);
    for (uint32_t u = 0; u < late.n_units; u++)
        params += late.units[u].late * late.units[u].param.bytes;
    CHECK(late.decisions.optimizer_time == ZINF_IN_FORWARD);
    const zinf_traffic *l = late.predicted.traffic, *a = after.predicted.traffic;
    CHECK(l[ZINF_CLASS_PARAM].read_bytes + params == a[ZINF_CLASS_PARAM].read_bytes);
    CHECK(l[ZINF_CLASS_PARAM].write_bytes == a[ZINF_CLASS_PARAM].write_bytes);
    CHECK(!memcmp(&l[ZINF_CLASS_OPTIMIZER], &a[ZINF_CLASS_OPTIMIZER], sizeof *l));
    CHECK(late.programs[ZINF_PROGRAM_FLUSH].n_segments == 1);
    CHECK(after.programs[ZINF_PROGRAM_FLUSH].n_segments == 0);
    for (uint32_t u = 0; u < late.n_units; u++) { /* in order of use, ahead of it */
        const uint32_t step = first_of(&late, ZINF_PROGRAM_STEP);
        const uint32_t adam = find(&late, step, ZINF_OP_ADAM, u);
        const bool embeds = u < 3; /* its tiles, with which forward begins */
        CHECK(late.units[u].late == !embeds && !after.units[u].late);
        CHECK((adam < find(&late, step, ZINF_OP_CLIP, ZINF_NONE)) == !embeds);
        CHECK((adam < find(&late, step, ZINF_OP_SUM_OF_SQUARES, u)) == !embeds);
    }
    zinf_plan_free(&late);
    zinf_plan_free(&after);
}

/* ---- the checker ---- */

static void check_refused(zinf_plan *plan, const char *rule, const char *why)
{
    zinf_error err = {0};

    CHECK_MESSAGE(zinf_plan_check(plan, &err) == ZINF_DOES_NOT_FIT, "not refused: %s", why);
    CHECK_MESSAGE(!strncmp(err.text, rule, 2) && strstr(err.text, why), "expected %s, %s: %s", rule,
                  why, err.text);
    zinf_plan_free(plan);
}

static void move_behind(zinf_plan *plan, uint32_t instr, uint32_t other)
{
    const zinf_instr moved = plan->instrs[instr];

    memmove(&plan->instrs[instr], &plan->instrs[instr + 1], (other - instr) * sizeof moved);
    plan->instrs[other] = moved;
}

/* On one queue, where the next instruction is what runs next. */
static void an_update_behind_its_units_use_is_refused(void)
{
    zinf_plan plan = {0};

    make(0, 0, true, "forward", &plan);
    const uint32_t step = first_of(&plan, ZINF_PROGRAM_STEP);
    const uint32_t use = find(&plan, step, ZINF_OP_LINEAR_FORWARD, ZINF_NONE);
    move_behind(&plan, find(&plan, step, ZINF_OP_ADAM, plan.instrs[use].unit), use);
    check_refused(&plan, "C4", "before or after an update");
}

/* The one gradient that this step's own may not replace yet. */
static void an_update_from_this_steps_gradient_is_refused(void)
{
    zinf_plan plan = {0};

    make(5, 0, true, "forward", &plan);
    const uint32_t step = first_of(&plan, ZINF_PROGRAM_STEP);
    const uint32_t sum = find(&plan, step, ZINF_OP_SUM_OF_SQUARES, ZINF_NONE);
    const uint32_t adam = find(&plan, step, ZINF_OP_ADAM, plan.instrs[sum].unit);
    move_behind(&plan, adam, sum);
    check_refused(&plan, "C4", "before or after an update");
}

/* Without the zeros the first step would update from nothing. */
static void a_start_that_leaves_something_to_update_from_is_refused(void)
{
    static const zinf_program_kind programs[] = {ZINF_PROGRAM_INIT, ZINF_PROGRAM_LOAD,
                                                 ZINF_PROGRAM_FLUSH};

    for (int p = 0; p < 3; p++) {
        zinf_plan plan = {0};
        make(0, 0, true, "forward", &plan);
        uint32_t i = find(&plan, first_of(&plan, programs[p]), ZINF_OP_ZERO, ZINF_NONE);
        while (plan.operands[plan.instrs[i].operand0].tier != ZINF_TIER_SCALAR)
            i = find(&plan, i + 1, ZINF_OP_ZERO, ZINF_NONE);
        plan.operands[plan.instrs[i].operand0].offset -= 8;
        check_refused(&plan, "C8", "should hold zeros");
    }
}

/* A gradient that is normed and then not left where the next step looks for it. */
static void a_step_that_leaves_another_gradient_is_refused(void)
{
    zinf_plan plan = {0};

    make(5, 26, false, "forward", &plan);
    const uint32_t step = first_of(&plan, ZINF_PROGRAM_STEP);
    uint32_t i = find(&plan, step, ZINF_OP_SUM_OF_SQUARES, ZINF_NONE);
    const uint32_t unit = plan.instrs[i].unit;
    i = find(&plan, i, ZINF_OP_WRITE, unit);
    plan.operands[plan.instrs[i].operand0 + 1].offset += 1 << 20;
    plan.machine.arena_bytes[ZINF_TIER_NVME] += 1 << 21;
    plan.operands[plan.instrs[i].operand0 + 1].offset =
        plan.machine.arena_bytes[ZINF_TIER_NVME] - (1 << 20);
    check_refused(&plan, "C8", "it should hold");
}

static void a_unit_that_is_late_and_one_that_is_not_are_told_apart(void)
{
    for (uint32_t u = 0; u < 2; u++) {
        static const uint32_t units[] = {0, 4}; /* the embedding, a matrix of the first block */
        zinf_plan plan = {0};
        make(0, 0, true, "forward", &plan);
        const bool was = plan.units[units[u]].late;
        CHECK(was == (u == 1));
        plan.units[units[u]].late = !was;
        check_refused(&plan, "C7", was ? "is not what program flush does" : "is not updated");
        make(0, 0, true, u ? "after" : "forward", &plan);
        plan.units[units[u]].late = u ? 1 : 2;
        check_refused(&plan, "pl", "late is");
    }
}

static void a_plan_without_a_flush_is_refused(void)
{
    zinf_plan plan = {0};

    make(0, 0, true, "forward", &plan);
    plan.programs[ZINF_PROGRAM_FLUSH].n_segments = 0;
    check_refused(&plan, "C7", "not updated");
}

int main(void)
{
    const char *base = getenv("TMPDIR");

    snprintf(directory, sizeof directory, "%.40s/zinf-late-XXXXXX", base ? base : "/tmp");
    if (!mkdtemp(directory))
        return 1;
    RUN(updates_inside_the_next_forward_give_the_bits_of_updates_after_backward);
    RUN(so_they_do_with_random_delays_in_every_queue_and_with_the_other_engine);
    RUN(a_unit_is_used_from_where_it_was_updated);
    RUN(an_update_behind_its_units_use_is_refused);
    RUN(an_update_from_this_steps_gradient_is_refused);
    RUN(a_start_that_leaves_something_to_update_from_is_refused);
    RUN(a_step_that_leaves_another_gradient_is_refused);
    RUN(a_plan_without_a_flush_is_refused);
    RUN(a_unit_that_is_late_and_one_that_is_not_are_told_apart);
    rmdir(directory);
    return check_finish();
}
