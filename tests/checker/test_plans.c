/* tests/checker/test_plans.c - good plans pass, and one hand-made fault for each rule is refused
 * with that rule, the program and the instruction in the message.
 */
#include <stdlib.h>
#include <string.h>

#include "mini.h"
#include "runtime/checker.h"
#include "runtime/plan_model.h"
#include "tests/check.h"

static const mini_options choices[] = {
    {ZINF_TIER_DEVICE, ZINF_TIER_DEVICE, ZINF_TIER_DEVICE, true, 4},
    {ZINF_TIER_NVME, ZINF_TIER_NVME, ZINF_TIER_NVME, true, 4},
    {ZINF_TIER_HOST, ZINF_TIER_HOST, ZINF_TIER_HOST, false, 4},
    {ZINF_TIER_NVME, ZINF_TIER_HOST, ZINF_TIER_NVME, false, 4},
    {ZINF_TIER_NVME, ZINF_TIER_NVME, ZINF_TIER_NVME, false, 5},
    {ZINF_TIER_DEVICE, ZINF_TIER_DEVICE, ZINF_TIER_HOST, false, 2},
    {ZINF_TIER_HOST, ZINF_TIER_DEVICE, ZINF_TIER_NVME, false, 1},
};

static void good_plans_of_every_placement_pass(void)
{
    for (size_t i = 0; i < sizeof choices / sizeof *choices; i++) {
        zinf_plan plan = mini_plan(&choices[i]);
        zinf_error err = {0};
        zinf_status status = zinf_plan_check(&plan, &err);
        CHECK_MESSAGE(mini_is_ordered(&plan), "placement %zu has a race", i);
        CHECK_MESSAGE(status == ZINF_OK && err.status == ZINF_OK, "placement %zu: %s", i,
                      err.text);
        mini_free(&plan);
    }
}

/* ---- one fault a rule; each in a fresh plan of everything on nvme, accumulation 4 ---- */

enum { NVME_PLAN = 3 };

static zinf_operand *operand(zinf_plan *plan, uint32_t instr, uint32_t slot)
{
    return &plan->operands[plan->instrs[instr].operand0 + slot];
}

/* The first instruction of this opcode (and unit) in the program. */
static uint32_t in_program(const zinf_plan *plan, zinf_program_kind kind, unsigned opcode,
                           uint32_t unit)
{
    return mini_find(plan, plan->segments[plan->programs[kind].first_segment].first_instr, opcode,
                     unit);
}

/* Refused with this rule, naming the program and this instruction (unless ZINF_NONE). */
static void check_refused(zinf_plan *plan, const char *rule, const char *program, uint32_t instr)
{
    zinf_error err = {0};
    char name[64] = "";
    zinf_status status = zinf_plan_check(plan, &err);

    if (instr != ZINF_NONE)
        snprintf(name, sizeof name, "instruction %u (%s", instr,
                 zinf_opcode_get(plan->instrs[instr].opcode)->name);
    mini_free(plan);
    CHECK_MESSAGE(status == ZINF_DOES_NOT_FIT && err.status == status, "accepted");
    CHECK_MESSAGE(!strncmp(err.text, rule, strlen(rule)) && strstr(err.text, name) &&
                  strstr(err.text, program), "expected %s, %s, %s: %s", rule, program, name,
                  err.text);
}

#define STEP(op, unit) in_program(&p, ZINF_PROGRAM_STEP, ZINF_OP_##op, unit)
#define FRESH zinf_plan p = mini_plan(&choices[NVME_PLAN])

static void arena_larger_than_the_tier_is_refused(void)
{
    FRESH;
    p.machine.overhead_bytes[ZINF_TIER_HOST] = 1; /* one byte too many */
    check_refused(&p, "C1", "", ZINF_NONE);
}

static void overflowing_capacity_is_refused(void)
{
    FRESH;
    p.machine.overhead_bytes[ZINF_TIER_HOST] = UINT64_MAX;
    check_refused(&p, "C1", "", ZINF_NONE);
}

static void operand_beyond_its_arena_is_refused(void)
{
    FRESH;
    uint32_t i = STEP(BATCH, ZINF_NONE);
    operand(&p, i, 0)->offset = p.machine.arena_bytes[ZINF_TIER_HOST] - 64;
    check_refused(&p, "C1", "", i);
}

static void last_iteration_beyond_the_arena_is_refused(void)
{
    FRESH;
    uint32_t i = mini_find(&p, STEP(LOSS, ZINF_NONE), ZINF_OP_UPLOAD, ZINF_NONE);
    while (!operand(&p, i, 0)->stride)
        i = mini_find(&p, i + 1, ZINF_OP_UPLOAD, ZINF_NONE);
    operand(&p, i, 0)->stride = p.machine.arena_bytes[ZINF_TIER_HOST] / 2;
    check_refused(&p, "C1", "", i);
}

static void direct_io_off_a_page_is_refused(void)
{
    FRESH;
    uint32_t i = STEP(READ, ZINF_NONE);
    operand(&p, i, 1)->offset += 512;
    check_refused(&p, "C2", "", i);
}

static void region_off_a_page_is_refused(void)
{
    FRESH;
    p.units[1].grad.offset += 64;
    check_refused(&p, "C2", "", ZINF_NONE);
}

static void read_that_does_not_wait_is_refused(void)
{
    FRESH;
    uint32_t i = STEP(EMBEDDING_FORWARD, ZINF_NONE);
    p.instrs[i].n_waits = 0;
    check_refused(&p, "C3", "step", i);
}

static void write_under_a_read_is_refused(void)
{
    FRESH;
    uint32_t i = mini_find(&p, STEP(EMBEDDING_FORWARD, ZINF_NONE), ZINF_OP_UPLOAD, MINI_WTE + 1);
    p.instrs[i].n_waits = 0;
    check_refused(&p, "C3", "step", i);
}

static void race_between_neighbouring_iterations_is_refused(void)
{
    FRESH;
    for (uint32_t w = 0; w < p.n_waits; w++)
        if (p.waits[w].distance == 1) {
            p.waits[w].distance = 1000; /* of 3 iterations: never */
            break;
        }
    check_refused(&p, "C3", "step", ZINF_NONE);
}

static void overlapping_regions_are_refused(void)
{
    FRESH;
    p.units[2].param.offset = p.units[1].param.offset;
    check_refused(&p, "C8", "init", ZINF_NONE);
}

static void read_of_another_tensor_is_refused(void)
{
    FRESH;
    uint32_t i = STEP(CLASSIFIER_FORWARD, MINI_WTE);
    operand(&p, i, 1)->value = p.units[MINI_WTE + 1].param.value;
    check_refused(&p, "C4", "step", i);
}

static void read_of_scratch_is_refused(void)
{
    FRESH;
    uint32_t i = STEP(LAYERNORM_FORWARD, ZINF_NONE);
    uint32_t next = STEP(CLASSIFIER_FORWARD, MINI_WTE);
    operand(&p, i, 0)->value = ZINF_NONE;
    operand(&p, i, 0)->offset = operand(&p, next, 5)->offset; /* where nothing was written yet */
    check_refused(&p, "C4", "step", i);
}

static void sum_with_a_missing_tile_is_refused(void)
{
    FRESH;
    uint32_t first = STEP(EMBEDDING_FORWARD, MINI_WTE), i = STEP(EMBEDDING_FORWARD, MINI_WTE + 1);
    *operand(&p, i, 1) = *operand(&p, first, 1); /* the first tile twice */
    p.instrs[i].attr[0] = 0;
    check_refused(&p, "C4", "step", i);
}

static void tokens_of_another_micro_batch_are_refused(void)
{
    FRESH;
    uint32_t i = STEP(UPLOAD, ZINF_NONE);
    operand(&p, i, 0)->offset += operand(&p, i, 0)->bytes;
    check_refused(&p, "C7", "step", STEP(LOSS, ZINF_NONE)); /* not the next: all of it is */
}

static void stale_checkpoint_is_refused(void)
{
    FRESH;
    uint32_t i = mini_find(&p, p.segments[2].first_instr, ZINF_OP_DOWNLOAD, ZINF_NONE);
    uint32_t first = mini_find(&p, STEP(BATCH, ZINF_NONE), ZINF_OP_DOWNLOAD, ZINF_NONE);
    uint32_t up = mini_find(&p, i, ZINF_OP_UPLOAD, ZINF_NONE);
    while (p.instrs[up].unit != ZINF_NONE) /* a parameter */
        up = mini_find(&p, up + 1, ZINF_OP_UPLOAD, ZINF_NONE);
    *operand(&p, up, 0) = *operand(&p, first, 1); /* where micro-batch 0 kept its own */
    check_refused(&p, "C4", "step", up);
}

static void parameter_from_before_the_update_is_refused(void)
{
    FRESH;
    uint32_t i = mini_find(&p, STEP(ADAM, 3), ZINF_OP_WRITE, 3);
    while (operand(&p, i, 0)->value != p.units[3].param.value)
        i = mini_find(&p, i + 1, ZINF_OP_WRITE, 3);
    uint32_t read = mini_find(&p, p.segments[2].first_instr, ZINF_OP_READ, 3);
    while (operand(&p, read, 0)->value != p.units[3].param.value)
        read = mini_find(&p, read + 1, ZINF_OP_READ, 3);
    for (uint32_t again = read; again < STEP(ADAM, 0); again = mini_find(&p, again + 1,
                                                                        ZINF_OP_READ, 3))
        if (operand(&p, again, 0)->value == p.units[3].param.value)
            read = again;
    operand(&p, i, 0)->offset = operand(&p, read, 1)->offset; /* what the forward read */
    check_refused(&p, "C8", "step", i);
}

static void copy_into_another_value_is_refused(void)
{
    FRESH;
    uint32_t i = STEP(UPLOAD, ZINF_NONE);
    operand(&p, i, 1)->value = p.units[0].param.value;
    check_refused(&p, "C4", "a copy does not change the value", i);
}

static void two_regions_of_one_value_are_refused(void)
{
    FRESH;
    p.units[2].param.value = p.units[2].whole_param = p.units[1].param.value;
    check_refused(&p, "C8", "under its name", ZINF_NONE);
}

static void wait_that_points_forward_is_refused(void)
{
    FRESH;
    uint32_t i = STEP(EMBEDDING_FORWARD, ZINF_NONE);
    p.waits[p.instrs[i].wait0] = (zinf_wait){mini_find(&p, i, ZINF_OP_DOWNLOAD, ZINF_NONE), 0};
    check_refused(&p, "C5", "", i);
}

static void wait_on_the_own_queue_is_refused(void)
{
    FRESH;
    uint32_t i = STEP(LAYERNORM_FORWARD, MINI_NORM);
    p.waits[p.instrs[i].wait0].instr = STEP(EMBEDDING_FORWARD, ZINF_NONE);
    check_refused(&p, "C5", "", i);
}

/* An upload becomes a collective; ranks 1, so both sides are equal when it is right. */
static uint32_t make_collective(zinf_plan *p, unsigned opcode)
{
    uint32_t i = in_program(p, ZINF_PROGRAM_STEP, ZINF_OP_UPLOAD, MINI_WTE);

    p->instrs[i].opcode = (uint16_t)opcode;
    p->instrs[i].queue = ZINF_QUEUE_COLLECTIVE;
    return i;
}

static void collective_of_two_types_is_refused(void)
{
    FRESH;
    uint32_t i = make_collective(&p, ZINF_OP_ALLGATHER);
    operand(&p, i, 0)->dtype = ZINF_F16;
    check_refused(&p, "C6", "", i);
}

static void collective_of_the_wrong_count_is_refused(void)
{
    FRESH;
    uint32_t i = make_collective(&p, ZINF_OP_REDUCE_SCATTER);
    operand(&p, i, 1)->bytes /= 2;
    operand(&p, i, 1)->cols = operand(&p, i, 1)->ld /= 2;
    check_refused(&p, "C6", "", i);
}

static void collective_on_another_queue_is_refused(void)
{
    FRESH;
    uint32_t i = make_collective(&p, ZINF_OP_BROADCAST);
    p.instrs[i].queue = ZINF_QUEUE_UPLOAD;
    check_refused(&p, "C6", "", i);
}

static void root_beyond_the_ranks_is_refused(void)
{
    FRESH;
    uint32_t i = make_collective(&p, ZINF_OP_BROADCAST);
    p.instrs[i].attr[0] = 1;
    check_refused(&p, "C6", "", i);
}

static void second_update_is_refused(void)
{
    FRESH;
    uint32_t i = STEP(ADAM, 1);
    const zinf_instr own = p.instrs[i];
    p.instrs[i] = p.instrs[STEP(ADAM, 0)];
    p.instrs[i].wait0 = own.wait0;
    p.instrs[i].n_waits = own.n_waits;
    check_refused(&p, "C7", "step", i);
}

static void update_in_a_loop_is_refused(void)
{
    zinf_plan p = mini_plan(&choices[5]); /* on the device, but for the states */
    p.segments[p.programs[ZINF_PROGRAM_STEP].first_segment + 2].count = 2;
    check_refused(&p, "C", "step", ZINF_NONE);
}

static void first_micro_batch_that_adds_is_refused(void)
{
    zinf_plan p = mini_plan(&choices[5]); /* gradients on the device */
    uint32_t i = STEP(ACCUMULATE, MINI_WTE);
    operand(&p, i, 1)->offset = p.units[MINI_WPE].grad.offset; /* to what no one has begun */
    check_refused(&p, "C7", "step", i);
}

static void later_micro_batch_that_overwrites_is_refused(void)
{
    zinf_plan p = mini_plan(&choices[5]); /* gradients on the device */
    p.instrs[STEP(ACCUMULATE, MINI_NORM)].opcode = ZINF_OP_COPY;
    check_refused(&p, "C7", "step", STEP(CLIP, ZINF_NONE));
}

static void tables_that_point_nowhere_are_refused(void)
{
    static const char *const words[] = {
        "value 0 is named by string", "its optimizer is in tier 3", "its optimizer is value",
        "its optimizer has 4096 bytes, its elements need", "master, m and v overlap",
        "gathered it is value", "gathered it is value", "item 0 has no ending name or no tier"};

    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        FRESH;
        zinf_unit *u = &p.units[MINI_WTE];
        zinf_error err = {0};
        p.values[0] = i == 0 ? p.n_strings : p.values[0];
        u->optimizer.tier = i == 1 ? ZINF_TIER_SCALAR : u->optimizer.tier;
        if (i == 2 || i == 5 || i == 6)
            *(i == 2 ? &u->optimizer.value : i == 5 ? &u->whole_param : &u->whole_grad) =
                p.n_values;
        if (i == 3) {
            u->array_stride = 4096;
            u->optimizer.bytes = 4096;
        }
        u->array_stride = i == 4 ? 4 : u->array_stride;
        p.items[0].tier = i == 7 ? ZINF_N_TIERS : p.items[0].tier;
        const zinf_status status = zinf_plan_validate(&p, &err);
        mini_free(&p);
        CHECK_MESSAGE(status == ZINF_DOES_NOT_FIT && strstr(err.text, words[i]), "%s: %s", words[i],
                      err.text);
    }
}

/* It rounds otherwise than ACCUMULATE. */
static void gradient_that_its_kernel_adds_to_is_refused(void)
{
    zinf_plan p = mini_plan(&choices[5]); /* gradients on the device */
    uint32_t i = mini_find(&p, STEP(POSITION_BACKWARD, MINI_WPE) + 1, ZINF_OP_POSITION_BACKWARD,
                           MINI_WPE);
    const uint32_t add = mini_find(&p, i, ZINF_OP_ACCUMULATE, MINI_WPE);
    p.instrs[i].flags |= ZINF_FLAG_ACCUMULATE;
    operand(&p, i, 1)->offset = operand(&p, add, 1)->offset;
    p.instrs[add].opcode = ZINF_OP_ZERO; /* of what is no longer used */
    p.instrs[add].n_operands = 1;
    check_refused(&p, "C7", "added to by what makes it", i);
}

static void rows_of_another_tile_are_refused(void)
{
    FRESH;
    uint32_t i = STEP(EMBEDDING_FORWARD, MINI_TILES - 1);
    p.instrs[i].attr[0]--; /* of the token that is the first of the tile */
    check_refused(&p, "C4", "is not the tile that comes next", i);
}

/* Or its rows' gradient would be complete without that of tokens. */
static void embedding_in_a_unit_with_another_tensor_is_refused(void)
{
    zinf_plan p = mini_plan(&choices[5]);
    zinf_unit *u = &p.units[MINI_WPE - 1]; /* the last tile, and in front of it the positions */
    zinf_part *parts = &p.parts[u->first_part];
    zinf_plan_model model = {0};
    zinf_error err = {0};
    const zinf_part tile = parts[0];

    CHECK(zinf_plan_model_make(&p, &model, &err) == ZINF_OK);
    zinf_plan_model_free(&model);
    CHECK(tile.tensor == 0 && parts[1].tensor == 1);
    parts[0] = parts[1];
    parts[1] = tile;
    parts[1].at = u[1].n_elems;
    u->n_parts = 2;
    u[1].first_part++;
    u[1].n_parts = 0;
    CHECK(zinf_plan_model_make(&p, &model, &err) == ZINF_DOES_NOT_FIT);
    CHECK_MESSAGE(!strncmp(err.text, "C7: unit \"", 10), "%s", err.text);
    zinf_plan_model_free(&model);
    mini_free(&p);
}

static void gradient_added_twice_is_refused(void)
{
    zinf_plan p = mini_plan(&choices[5]); /* gradients on the device */
    uint32_t i = STEP(POSITION_BACKWARD, ZINF_NONE);
    zinf_instr again = p.instrs[STEP(EMBEDDING_BACKWARD, ZINF_NONE)];
    again.wait0 = p.instrs[i].wait0;
    again.n_waits = p.instrs[i].n_waits;
    p.instrs[i] = again;
    check_refused(&p, "C7", "step", ZINF_NONE);
}

/* The embedding's contribution is added in the loop before it arrives, so that of the micro-batch
 * before is: all of it, or, if `half` of it arrives in time, the rest. */
static void check_late_contribution(bool half)
{
    zinf_plan p = mini_plan(&choices[3]); /* gradients on the host */
    const uint32_t first = STEP(ACCUMULATE, MINI_WTE);
    const uint32_t by_classifier = mini_find(&p, first + 1, ZINF_OP_ACCUMULATE, MINI_WTE);
    uint32_t add = mini_find(&p, by_classifier + 1, ZINF_OP_ACCUMULATE, MINI_WTE);
    const zinf_instr download = p.instrs[add - 1];

    CHECK(download.opcode == ZINF_OP_DOWNLOAD && p.instrs[first - 1].opcode == ZINF_OP_DOWNLOAD);
    operand(&p, first - 1, 1)->offset = operand(&p, first, 0)->offset = operand(&p, add, 0)->offset;
    if (half) {
        memmove(&p.instrs[add + 2], &p.instrs[add + 1],
                (p.n_instrs++ - add - 1) * sizeof *p.instrs);
        for (uint32_t s = 0; s < p.n_segments; s++)
            if (p.segments[s].first_instr > add)
                p.segments[s].first_instr++;
            else if (p.segments[s].first_instr + p.segments[s].n_instrs > add)
                p.segments[s].n_instrs++;
        p.instrs[add + 1] = download;
        p.instrs[add + 1].operand0 = p.n_operands;
        for (uint32_t k = 0; k < 2; k++) {
            zinf_operand *o = operand(&p, add - 1, k), *rest = &p.operands[p.n_operands++];
            o->bytes /= 2;
            o->cols = o->ld = o->cols / 2;
            *rest = *o;
            rest->offset += o->bytes;
        }
    } else {
        p.instrs[add - 1] = p.instrs[add];
        p.instrs[add--] = download;
    }
    mini_add_waits(&p);
    check_refused(&p, "C7", "step", add);
}

static void contribution_of_another_micro_batch_is_refused(void)
{
    check_late_contribution(false);
}

static void contribution_half_of_another_micro_batch_is_refused(void)
{
    check_late_contribution(true);
}

static void one_micro_batch_too_few_is_refused(void)
{
    FRESH;
    p.segments[p.programs[ZINF_PROGRAM_STEP].first_segment + 1].count--;
    check_refused(&p, "C7", "step", ZINF_NONE);
}

static void norm_of_a_part_of_the_gradient_is_refused(void)
{
    FRESH;
    uint32_t i = STEP(SUM_OF_SQUARES, MINI_WTE);
    operand(&p, i, 0)->bytes /= 2;
    operand(&p, i, 0)->cols = operand(&p, i, 0)->ld = operand(&p, i, 0)->cols / 2;
    check_refused(&p, "C7", "step", i);
}

static void state_of_another_unit_written_back_is_refused(void)
{
    FRESH;
    uint32_t adam = STEP(ADAM, 2), i = mini_find(&p, adam, ZINF_OP_WRITE, 2);
    p.instrs[i].operand0 = p.instrs[mini_find(&p, adam, ZINF_OP_WRITE, 3)].operand0;
    check_refused(&p, "C4", "step", i);
}

static void parameter_not_written_back_is_refused(void)
{
    FRESH;
    uint32_t i = mini_find(&p, STEP(ADAM, 3), ZINF_OP_WRITE, 3);
    while (operand(&p, i, 0)->value != p.units[3].param.value)
        i = mini_find(&p, i + 1, ZINF_OP_WRITE, 3);
    operand(&p, i, 1)->offset = p.machine.arena_bytes[ZINF_TIER_NVME]; /* elsewhere */
    p.machine.arena_bytes[ZINF_TIER_NVME] += ZINF_PAGE;
    p.machine.capacity_bytes[ZINF_TIER_NVME] += ZINF_PAGE;
    check_refused(&p, "C8", "step", ZINF_NONE);
}

static void state_that_init_does_not_make_is_refused(void)
{
    FRESH;
    p.programs[ZINF_PROGRAM_INIT].n_segments = 0;
    check_refused(&p, "C7", "init", ZINF_NONE);
}

static void state_that_load_does_not_make_is_refused(void)
{
    FRESH;
    p.programs[ZINF_PROGRAM_LOAD].n_segments = 0;
    check_refused(&p, "C7", "load", ZINF_NONE);
}

static void evaluation_that_touches_the_state_is_refused(void)
{
    zinf_plan p = mini_plan(&choices[5]); /* parameters on the device */
    uint32_t i = in_program(&p, ZINF_PROGRAM_EVAL, ZINF_OP_CLASSIFIER_FORWARD, ZINF_NONE);
    operand(&p, i, 4)->offset = p.units[MINI_WPE].param.offset; /* not read any more */
    check_refused(&p, "C8", "eval", i);
}

static void copy_against_its_queue_is_refused(void)
{
    FRESH;
    uint32_t i = STEP(READ, ZINF_NONE);
    p.instrs[i].opcode = ZINF_OP_WRITE;
    p.instrs[i].queue = ZINF_QUEUE_WRITE;
    check_refused(&p, "C1", "", i);
}

int main(void)
{
    RUN(good_plans_of_every_placement_pass);
    RUN(arena_larger_than_the_tier_is_refused);
    RUN(overflowing_capacity_is_refused);
    RUN(operand_beyond_its_arena_is_refused);
    RUN(last_iteration_beyond_the_arena_is_refused);
    RUN(direct_io_off_a_page_is_refused);
    RUN(region_off_a_page_is_refused);
    RUN(read_that_does_not_wait_is_refused);
    RUN(write_under_a_read_is_refused);
    RUN(race_between_neighbouring_iterations_is_refused);
    RUN(overlapping_regions_are_refused);
    RUN(read_of_another_tensor_is_refused);
    RUN(read_of_scratch_is_refused);
    RUN(sum_with_a_missing_tile_is_refused);
    RUN(tokens_of_another_micro_batch_are_refused);
    RUN(stale_checkpoint_is_refused);
    RUN(parameter_from_before_the_update_is_refused);
    RUN(copy_into_another_value_is_refused);
    RUN(two_regions_of_one_value_are_refused);
    RUN(wait_that_points_forward_is_refused);
    RUN(wait_on_the_own_queue_is_refused);
    RUN(collective_of_two_types_is_refused);
    RUN(collective_of_the_wrong_count_is_refused);
    RUN(collective_on_another_queue_is_refused);
    RUN(root_beyond_the_ranks_is_refused);
    RUN(second_update_is_refused);
    RUN(update_in_a_loop_is_refused);
    RUN(first_micro_batch_that_adds_is_refused);
    RUN(later_micro_batch_that_overwrites_is_refused);
    RUN(tables_that_point_nowhere_are_refused);
    RUN(gradient_that_its_kernel_adds_to_is_refused);
    RUN(rows_of_another_tile_are_refused);
    RUN(embedding_in_a_unit_with_another_tensor_is_refused);
    RUN(gradient_added_twice_is_refused);
    RUN(contribution_of_another_micro_batch_is_refused);
    RUN(contribution_half_of_another_micro_batch_is_refused);
    RUN(one_micro_batch_too_few_is_refused);
    RUN(norm_of_a_part_of_the_gradient_is_refused);
    RUN(state_of_another_unit_written_back_is_refused);
    RUN(parameter_not_written_back_is_refused);
    RUN(state_that_init_does_not_make_is_refused);
    RUN(state_that_load_does_not_make_is_refused);
    RUN(evaluation_that_touches_the_state_is_refused);
    RUN(copy_against_its_queue_is_refused);
    return check_finish();
}
