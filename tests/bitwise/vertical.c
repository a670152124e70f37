/* tests/bitwise/vertical.c - the promise that taking all micro-batches through a group of blocks
 * before the next group gives the bits of taking them one by one; that the bits do not depend on
 * tiers; and that what it is for is what the plan does.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/checker.h"
#include "runtime/opcodes.h"
#include "tests/bitwise/trainer.h"
#include "tests/check.h"

enum { STEPS = 6 };

#define UNTIED ", kv_heads: 1, ffn: 48, tied_embeddings: false"
static const trainer_model llama = {3, 32, 2, 100, 8, 4, "bf16", UNTIED};
static const trainer_model llama_32 = {2, 32, 2, 100, 8, 6, "fp32", UNTIED ", qkv_bias: true"};
static const trainer_model gpt2 = {3, 32, 2, 100, 8, 4, "bf16", NULL};
static const trainer_model gpt2_32 = {2, 32, 2, 100, 8, 8, "fp32", NULL};
static const struct {
    const trainer_model *model;
    const char *arithmetic;
} models[] = {
    {&llama, "micro_batch=2 tiles=1 checkpoint_interval=1"},
    {&llama, "micro_batch=1 tiles=2 tiles.vocab=3 checkpoint_interval=2"}, /* a group of 1 last */
    {&llama_32, "micro_batch=2 tiles=3 tiles.vocab=1 checkpoint_interval=1"},
    {&llama_32, "micro_batch=1 tiles=1 checkpoint_interval=2"}, /* one group */
    {&gpt2, "micro_batch=2 tiles=1 checkpoint_interval=1"},
    {&gpt2_32, "micro_batch=1 tiles=2 checkpoint_interval=1"},
};
enum { N_MODELS = sizeof models / sizeof *models };

static const char *const tiers[] = {"device", "host", "nvme"};
static char directory[64];

/* i: a choice of tiers, and of how far transfers run ahead. */
static void make(int which, unsigned i, bool unified, const char *more, zinf_plan *ret_plan)
{
    zinf_error err = {0};
    char sets[400];

    snprintf(sets, sizeof sets,
             "%s tier.param=%s tier.grad=%s tier.optimizer=%s tier.checkpoint=%s "
             "prefetch.read=%u prefetch.upload=%u threads=2 io.block=8192 io.depth=4 %s",
             models[which].arithmetic, tiers[i / 27 % 3], tiers[i / 9 % 3], tiers[i / 3 % 3],
             tiers[i % 3], i % 5 * 3, i % 4, more);
    CHECK_MESSAGE(trainer_plan(models[which].model, unified, sets, ret_plan, &err) == ZINF_OK,
                  "%s: %s", sets, err.text);
}

static void train(int which, unsigned i, bool unified, const char *more, trainer_options options,
                  trainer_outcome *ret_outcome)
{
    zinf_plan plan = {0};

    options.directory = directory;
    options.steps = STEPS;
    make(which, i, unified, more, &plan);
    trainer_train(&plan, &options, ret_outcome);
    CHECK_MESSAGE(ret_outcome->err.status == ZINF_OK, "%s", ret_outcome->err.text);
}

static void check_all(trainer_options options, unsigned stride, const char *more)
{
    char sets[80];

    for (int which = 0; which < N_MODELS; which++) {
        trainer_outcome wanted, found;
        snprintf(sets, sizeof sets, "order=horizontal %s", more);
        train(which, 0, false, sets, (trainer_options){0}, &wanted);
        CHECK(wanted.loss[0] > 4 && wanted.loss[STEPS - 1] < wanted.loss[0]);
        snprintf(sets, sizeof sets, "order=vertical %s", more);
        for (unsigned i = (unsigned)which % stride; i < 81; i += stride) {
            train(which, i, false, sets, options, &found);
            CHECK_MESSAGE(trainer_same(&wanted, &found), "model %d, tiers %u", which, i);
        }
        for (unsigned i = 0; i < 81; i += 40) { /* one memory */
            train(which, i, true, sets, options, &found);
            CHECK_MESSAGE(trainer_same(&wanted, &found), "model %d, one memory, tiers %u", which,
                          i);
        }
    }
}

static void vertical_order_gives_the_bits_of_horizontal_order_on_every_tier(void)
{
    check_all((trainer_options){0}, 8, "");
}

static void so_it_does_with_random_delays_in_every_queue(void)
{
    check_all((trainer_options){.delay_seed = 1}, 20, "");
}

static void so_it_does_one_queue_after_another_and_with_the_other_engine(void)
{
    check_all((trainer_options){.serial = true}, 27, "");
    check_all((trainer_options){.engine = ZINF_ENGINE_THREADS}, 27, "");
}

static void so_it_does_with_updates_inside_backward(void)
{
    check_all((trainer_options){0}, 26, "clip=0 optimizer_time=backward");
}

static uint64_t n_of(const zinf_plan *plan, unsigned opcode, uint32_t unit)
{
    const zinf_program *step = &plan->programs[ZINF_PROGRAM_STEP];
    uint64_t n = 0;

    for (uint32_t s = step->first_segment; s < step->first_segment + step->n_segments; s++)
        for (uint32_t k = 0; k < plan->segments[s].n_instrs; k++) {
            const zinf_instr *instr = &plan->instrs[plan->segments[s].first_instr + k];
            if (instr->opcode == opcode && instr->unit == unit)
                n += plan->segments[s].count;
        }
    return n;
}

/* The first instruction of STEP with this opcode, and with an operand that is a region (NULL: any);
 * ZINF_NONE: there is none. */
static uint32_t first_of(const zinf_plan *plan, unsigned opcode, const zinf_region *region)
{
    const zinf_program *step = &plan->programs[ZINF_PROGRAM_STEP];
    const zinf_segment *last = &plan->segments[step->first_segment + step->n_segments - 1];

    for (uint32_t i = plan->segments[step->first_segment].first_instr;
         i < last->first_instr + last->n_instrs; i++)
        for (uint32_t k = 0; k < plan->instrs[i].n_operands; k++) {
            const zinf_operand *o = &plan->operands[plan->instrs[i].operand0 + k];
            if (plan->instrs[i].opcode == opcode &&
                (!region || (o->tier == region->tier && o->value == region->value &&
                             o->offset == region->offset)))
                return i;
        }
    return ZINF_NONE;
}

/* It is the last to have its gradient, and the largest: it is updated from where it was summed, by
 * states that were read before, as soon as the norm is known. */
static void the_embeddings_states_come_while_backward_goes_on(void)
{
    static const trainer_model wide = {2, 32, 2, 4000, 8, 8, "bf16", NULL};
    static const char *const times[] = {"after", "forward"};
    static const char shape[] = "micro_batch=2 tiles=1 checkpoint_interval=1 threads=2";
    const trainer_options options = {.directory = directory, .steps = STEPS};
    trainer_outcome wanted, found;
    zinf_error err = {0};
    char sets[400];

    for (int k = 0; k < 3; k++) {
        const char *tier = k ? "nvme" : "device";
        zinf_plan plan = {0};
        snprintf(sets, sizeof sets, "%s order=%s optimizer_time=%s tier.param=%s tier.grad=%s "
                 "tier.optimizer=%s tier.checkpoint=%s prefetch.read=4", shape,
                 k ? "vertical" : "horizontal", times[k / 2], tier, tier, tier, tier);
        CHECK_MESSAGE(!trainer_plan(&wide, true, sets, &plan, &err), "%s", err.text);
        const zinf_unit *embedding = &plan.units[0];
        const uint32_t read = first_of(&plan, ZINF_OP_READ, &embedding->optimizer);
        if (k) {
            CHECK(read < first_of(&plan, ZINF_OP_EMBEDDING_BACKWARD, NULL));
            CHECK(first_of(&plan, ZINF_OP_WRITE, &embedding->optimizer) >
                  first_of(&plan, ZINF_OP_CLIP, NULL));
            CHECK(first_of(&plan, ZINF_OP_WRITE, &embedding->grad) == ZINF_NONE);
            CHECK(plan.units[2].late == (k == 2) && !embedding->late && !plan.units[1].late);
        }
        trainer_train(&plan, &options, k ? &found : &wanted);
        CHECK(k == 0 || trainer_same(&wanted, &found));
    }
}

/* Forward and backward fetch them, whatever the number of micro-batches; a gradient is complete
 * when it leaves the device. */
static void parameters_and_gradients_move_once_for_all_micro_batches(void)
{
    zinf_plan across = {0}, down = {0};

    make(1, 80, false, "order=horizontal", &across);
    make(1, 80, false, "order=vertical", &down);
    CHECK(down.decisions.order == ZINF_VERTICAL && across.decisions.order == ZINF_HORIZONTAL);
    for (uint32_t u = 0; u < down.n_units; u++) {
        const bool ends = down.units[u].layer < 0; /* embedding, final norm, head */
        CHECK(n_of(&down, ZINF_OP_UPLOAD, u) == (ends ? 1 : 2));
        CHECK(n_of(&across, ZINF_OP_UPLOAD, u) >= (ends ? 4 : 8));
        CHECK(n_of(&down, ZINF_OP_DOWNLOAD, u) == 1);
        CHECK(n_of(&across, ZINF_OP_DOWNLOAD, u) == 4);
        CHECK(n_of(&down, ZINF_OP_SUM_OF_SQUARES, u) == 1);
    }
    const zinf_traffic *grad = down.predicted.traffic + ZINF_CLASS_GRAD;
    const zinf_traffic *before = across.predicted.traffic + ZINF_CLASS_GRAD;
    uint64_t stayed = 0; /* of the embedding, updated from where they were summed */
    for (uint32_t u = 0; u < 3; u++)
        stayed += down.units[u].grad.bytes;
    CHECK(4 * (grad->write_bytes + stayed) == before->write_bytes);
    /* by the update; horizontal: thrice more */
    CHECK(4 * (grad->read_bytes + stayed) == before->read_bytes);
    const zinf_traffic *param = down.predicted.traffic + ZINF_CLASS_PARAM;
    CHECK(4 * param->read_bytes <= across.predicted.traffic->read_bytes);
    CHECK(param->write_bytes == across.predicted.traffic->write_bytes);
    zinf_plan_free(&across);
    zinf_plan_free(&down);
}

/* Inputs of 3 groups and of the final norm, and gradients of the last 3 of them, of 2 micro-batches
 * of 16 tokens; read again by forward and backward. */
static void boundaries_are_kept_for_each_micro_batch(void)
{
    const uint64_t each = ZINF_PAGE; /* 2 * 8 * 32 elements, in whole pages */
    zinf_plan plan = {0};

    make(0, 80, false, "order=vertical", &plan);
    const zinf_traffic *t = plan.predicted.traffic + ZINF_CLASS_CHECKPOINT;
    CHECK(t->write_bytes == 2 * (4 + 3) * each);
    CHECK(t->read_bytes == 2 * (2 + 3 + 1 + 3) * each);
    for (uint32_t i = 0; i < plan.n_items; i++)
        if (!strcmp(plan.items[i].name, "activation checkpoints"))
            CHECK(plan.items[i].bytes == 2 * 4 * each);
    zinf_plan_free(&plan);
}

static void what_cannot_be_is_refused_with_a_sentence(void)
{
    static const trainer_model many = {64, 32, 2, 100, 8, 65536, "bf16", NULL};
    zinf_plan plan = {0};
    zinf_error err = {0};

    CHECK(trainer_plan(&gpt2, false, "order=vertical checkpoint_interval=none", &plan, &err) ==
          ZINF_BAD_INPUT);
    CHECK_MESSAGE(strstr(err.text, "checkpoint_interval"), "%s", err.text);
    err = (zinf_error){0};
    CHECK(trainer_plan(&many, false, "order=vertical micro_batch=1 checkpoint_interval=1", &plan,
                       &err) == ZINF_DOES_NOT_FIT);
    CHECK_MESSAGE(strstr(err.text, "order=horizontal"), "%s", err.text);
    err = (zinf_error){0};
    CHECK(trainer_plan(&gpt2, false, "order=diagonal", &plan, &err) == ZINF_BAD_INPUT);
    CHECK_MESSAGE(strstr(err.text, "horizontal, vertical"), "%s", err.text);
}

/* Each k-th instruction of the opcode in the step, of one layer. */
static uint32_t find(const zinf_plan *plan, unsigned opcode, int32_t layer, uint32_t k)
{
    uint32_t i = plan->segments[plan->programs[ZINF_PROGRAM_STEP].first_segment].first_instr;

    for (; i < plan->n_instrs; i++)
        if (plan->instrs[i].opcode == opcode && plan->instrs[i].layer == layer && k-- == 0)
            break;
    CHECK(i < plan->n_instrs);
    return i;
}

/* An operand of the second micro-batch becomes that of the first, whole and in its place. */
static void a_block_that_takes_another_micro_batch_is_refused(void)
{
    const struct {
        unsigned opcode, slot;
    } faults[] = {{ZINF_OP_RMSNORM_FORWARD, 0}, {ZINF_OP_LINEAR_BACKWARD_WEIGHT, 0},
                  {ZINF_OP_LINEAR_BACKWARD_WEIGHT, 1}, {ZINF_OP_ATTENTION_BACKWARD, 2}};

    for (size_t f = 0; f < sizeof faults / sizeof *faults; f++) {
        zinf_plan plan = {0};
        zinf_error err = {0};
        make(0, 0, true, "order=vertical", &plan);
        const uint32_t n = faults[f].opcode == ZINF_OP_RMSNORM_FORWARD        ? 2
                           : faults[f].opcode == ZINF_OP_LINEAR_BACKWARD_WEIGHT ? 4 : 1;
        const uint32_t first = find(&plan, faults[f].opcode, 1, 0);
        const uint32_t second = find(&plan, faults[f].opcode, 1, n);
        zinf_operand *o = plan.operands;
        o[plan.instrs[second].operand0 + faults[f].slot] =
            o[plan.instrs[first].operand0 + faults[f].slot];
        CHECK(zinf_plan_check(&plan, &err) == ZINF_DOES_NOT_FIT && err.text[0] == 'C');
        printf("# %s\n", err.text);
        zinf_plan_free(&plan);
    }
}

/* Tokens of the two micro-batches exchanged everywhere: each is what it was, sums are not. */
static void micro_batches_in_another_order_are_refused(void)
{
    zinf_plan plan = {0};
    zinf_error err = {0};

    make(0, 0, true, "order=vertical", &plan);
    const uint32_t batch = find(&plan, ZINF_OP_BATCH, -1, 0);
    const zinf_operand all = plan.operands[plan.instrs[batch].operand0];
    for (uint32_t i = batch + 1; i < batch + plan.n_instrs - batch; i++)
        for (uint32_t k = 0; k < plan.instrs[i].n_operands; k++) {
            zinf_operand *o = &plan.operands[plan.instrs[i].operand0 + k];
            if (o->value == all.value && 2 * o->bytes == all.bytes)
                o->offset = 2 * all.offset + o->bytes - o->offset;
        }
    CHECK(zinf_plan_check(&plan, &err) == ZINF_DOES_NOT_FIT);
    CHECK_MESSAGE(!strncmp(err.text, "C7", 2) && strstr(err.text, "comes next"), "%s", err.text);
    zinf_plan_free(&plan);
}

/* Of a tied embedding: what the head adds and what the tokens add, of the second micro-batch. */
static void a_tied_embedding_is_added_to_in_turn(void)
{
    zinf_plan plan = {0};
    zinf_error err = {0};

    make(4, 0, true, "order=vertical", &plan);
    const uint32_t head = find(&plan, ZINF_OP_ACCUMULATE, -1, 2); /* after final norm, tokens */
    zinf_operand *o = plan.operands + plan.instrs[head].operand0;
    zinf_operand *tokens = plan.operands + plan.instrs[head + 1].operand0;
    CHECK(plan.instrs[head + 1].opcode == ZINF_OP_ACCUMULATE && o[1].offset == tokens[1].offset);
    const zinf_operand first = *o;
    CHECK(zinf_plan_check(&plan, &err) == ZINF_OK);
    *o = *tokens;
    *tokens = first;
    CHECK(zinf_plan_check(&plan, &err) == ZINF_DOES_NOT_FIT);
    CHECK_MESSAGE(!strncmp(err.text, "C7", 2) && strstr(err.text, "in another order"), "%s",
                  err.text);
    zinf_plan_free(&plan);
}

/* One micro-batch: both orders are the same plan. */
static void one_micro_batch_has_one_order(void)
{
    zinf_plan across = {0}, down = {0};

    make(4, 80, false, "micro_batch=4 order=horizontal", &across);
    make(4, 80, false, "micro_batch=4 order=vertical", &down);
    CHECK(across.n_instrs == down.n_instrs && across.n_waits == down.n_waits);
    CHECK(!memcmp(across.operands, down.operands, across.n_operands * sizeof *across.operands));
    zinf_plan_free(&across);
    zinf_plan_free(&down);
}

int main(void)
{
    const char *base = getenv("TMPDIR");

    snprintf(directory, sizeof directory, "%.40s/zinf-vertical-XXXXXX", base ? base : "/tmp");
    if (!mkdtemp(directory))
        return 1;
    RUN(vertical_order_gives_the_bits_of_horizontal_order_on_every_tier);
    RUN(so_it_does_with_random_delays_in_every_queue);
    RUN(so_it_does_one_queue_after_another_and_with_the_other_engine);
    RUN(so_it_does_with_updates_inside_backward);
    RUN(parameters_and_gradients_move_once_for_all_micro_batches);
    RUN(the_embeddings_states_come_while_backward_goes_on);
    RUN(boundaries_are_kept_for_each_micro_batch);
    RUN(what_cannot_be_is_refused_with_a_sentence);
    RUN(one_micro_batch_has_one_order);
    RUN(a_block_that_takes_another_micro_batch_is_refused);
    RUN(micro_batches_in_another_order_are_refused);
    RUN(a_tied_embedding_is_added_to_in_turn);
    rmdir(directory);
    return check_finish();
}
