/* tests/checker/faults.h - what tests share that make faults by hand in plans of the planner: plans
 * to make them in, where things are, what is added or left out, and the refusal that is expected.
 * A part of each test's own program: CHECK ends the test that runs.
 */
#ifndef ZINF_TESTS_CHECKER_FAULTS_H
#define ZINF_TESTS_CHECKER_FAULTS_H

#include <string.h>

#include "runtime/checker.h"
#include "runtime/opcodes.h"
#include "tests/bitwise/trainer.h"
#include "tests/check.h"
#include "tests/checker/mutate.h"

/* ---- plans, with room for what is added; free with zinf_plan_free ---- */

static inline zinf_plan faults_plan(const trainer_model *model, bool unified, unsigned ranks,
                                    const char *sets)
{
    zinf_plan plan = {0};
    zinf_error err = {0};

    CHECK_MESSAGE(!trainer_plan_ranks(model, unified, ranks, sets, &plan, &err), "%s", err.text);
    const zinf_plan copy = mutate_copy(&plan);
    zinf_plan_free(&plan);
    return copy;
}

#define ON_DEVICE "threads=1 micro_batch=1 tiles=2 checkpoint_interval=none tier.param=device "    \
                  "tier.grad=device tier.optimizer=device tier.checkpoint=device"

/* Of a gpt2 of one block, one micro-batch a rank. */
static inline zinf_plan plan_with(unsigned ranks, const char *sets)
{
    const trainer_model gpt2 = {1, 16, 2, 24, 8, ranks, "bf16", NULL};

    return faults_plan(&gpt2, true, ranks, sets);
}

static inline zinf_plan plan_of(unsigned ranks)
{
    return plan_with(ranks, ON_DEVICE);
}

/* Of five micro-batches, so that not every iteration of the loop is looked at. */
static inline zinf_plan plan_of_five(void)
{
    const trainer_model of_five = {1, 16, 2, 24, 8, 5, "bf16", NULL};

    return faults_plan(&of_five, true, 1, "threads=1 micro_batch=1 tiles=1 order=horizontal "
                       "checkpoint_interval=none tier.param=device tier.grad=device "
                       "tier.optimizer=device");
}

/* ---- where things are ---- */

/* The n-th instruction with this opcode in a program. */
static inline uint32_t find(const zinf_plan *plan, zinf_program_kind kind, unsigned opcode,
                            unsigned n)
{
    uint32_t i = plan->segments[plan->programs[kind].first_segment].first_instr;

    for (; i < plan->n_instrs; i++)
        if (plan->instrs[i].opcode == opcode && n-- == 0)
            return i;
    CHECK_MESSAGE(false, "no such instruction");
    return 0;
}

/* The first at i or behind it. */
static inline uint32_t from(const zinf_plan *plan, uint32_t i, unsigned opcode)
{
    for (; i < plan->n_instrs; i++)
        if (plan->instrs[i].opcode == opcode)
            return i;
    CHECK_MESSAGE(false, "no such instruction");
    return 0;
}

/* The first instruction of the loop in a plan of five micro-batches. */
static inline uint32_t loop_of(const zinf_plan *p)
{
    const uint32_t segment = p->programs[ZINF_PROGRAM_STEP].first_segment + 1;

    CHECK(p->segments[segment].count == 4);
    return p->segments[segment].first_instr;
}

static inline zinf_operand *operand(zinf_plan *plan, uint32_t instr, uint32_t slot)
{
    return &plan->operands[plan->instrs[instr].operand0 + slot];
}

/* ---- what is added or left out ---- */

/* Where nothing was: so many bytes at the end of an arena, which grows. */
static inline uint64_t more_in(zinf_plan *plan, zinf_tier tier, uint64_t bytes)
{
    const uint64_t at = (plan->machine.arena_bytes[tier] + 4095) / 4096 * 4096;

    plan->machine.arena_bytes[tier] = at + (bytes + 4095) / 4096 * 4096;
    plan->machine.capacity_bytes[tier] += plan->machine.arena_bytes[tier] - at + ZINF_PAGE;
    return at;
}

static inline uint64_t more_arena(zinf_plan *plan, uint64_t bytes)
{
    return more_in(plan, ZINF_TIER_DEVICE, bytes);
}

/* Another instruction behind this one, in its queue and with its waits. */
static inline uint32_t insert(zinf_plan *p, uint32_t at, zinf_opcode opcode, uint32_t n_operands,
                              const zinf_operand *operands)
{
    zinf_instr *instr = &p->instrs[at + 1];

    CHECK(mutate_duplicate(p, at));
    instr->opcode = (uint16_t)opcode;
    instr->flags = 0;
    instr->unit = ZINF_NONE;
    memset(instr->attr, 0, sizeof instr->attr);
    instr->operand0 = p->n_operands;
    instr->n_operands = n_operands;
    memcpy(&p->operands[p->n_operands], operands, n_operands * sizeof *operands);
    p->n_operands += n_operands;
    return at + 1;
}

static inline void drop(zinf_plan *p, uint32_t i)
{
    CHECK(mutate_drop(p, i));
}

/* ---- the refusal; frees the plan ---- */

/* Of a whole plan, so no instruction is named. */
static inline void check_refused_whole(zinf_plan *plan, const char *text)
{
    zinf_error err = {0};
    const zinf_status status = zinf_plan_check(plan, &err);

    zinf_plan_free(plan);
    CHECK_MESSAGE(status == ZINF_DOES_NOT_FIT && strstr(err.text, text), "expected \"%s\": %s",
                  text, err.text);
}

static inline void check_refused(zinf_plan *plan, const char *rule, uint32_t instr,
                                 const char *text)
{
    zinf_error err = {0};
    char name[64];

    snprintf(name, sizeof name, "instruction %u (", instr);
    const zinf_status status = zinf_plan_check(plan, &err);
    zinf_plan_free(plan);
    CHECK_MESSAGE(status == ZINF_DOES_NOT_FIT, "accepted");
    CHECK_MESSAGE(!strncmp(err.text, rule, strlen(rule)) && strstr(err.text, name) &&
                  strstr(err.text, text),
                  "expected %s, %s, \"%s\": %s", rule, name, text, err.text);
}

#endif
