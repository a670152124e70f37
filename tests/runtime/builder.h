/* tests/runtime/builder.h - tiny plans written by hand. */
#ifndef ZINF_TESTS_BUILDER_H
#define ZINF_TESTS_BUILDER_H

#include <stdlib.h>
#include <string.h>

#include "runtime/opcodes.h"
#include "runtime/plan.h"

enum { BUILDER_ROOM = 512 };

static inline zinf_plan builder_new(void)
{
    zinf_plan plan = {0};

    strcpy(plan.model.name, "tiny");
    strcpy(plan.model.family, "gpt2");
    strcpy(plan.machine.backend, "cpu");
    plan.model.vocab = 256;
    plan.job.sequence = 4;
    plan.job.global_batch = 1;
    plan.job.seed = 7;
    plan.job.clip = 1;
    plan.job.beta1 = 0.9;
    plan.job.beta2 = 0.95;
    plan.job.eps = 1e-8;
    plan.decisions.micro_batch = plan.decisions.accumulation = plan.decisions.ranks = 1;
    plan.decisions.n_threads = 2;
    plan.decisions.io_depth = 8;
    plan.decisions.io_block_bytes = 4096;
    plan.machine.arena_bytes[ZINF_TIER_DEVICE] = 1 << 20;
    plan.machine.arena_bytes[ZINF_TIER_HOST] = 1 << 20;
    plan.machine.arena_bytes[ZINF_TIER_NVME] = 1 << 20;
    for (int t = 0; t <= ZINF_TIER_NVME; t++)
        plan.machine.capacity_bytes[t] = plan.machine.arena_bytes[t];
    plan.segments = calloc(BUILDER_ROOM, sizeof *plan.segments);
    plan.instrs = calloc(BUILDER_ROOM, sizeof *plan.instrs);
    plan.operands = calloc(BUILDER_ROOM, sizeof *plan.operands);
    plan.waits = calloc(BUILDER_ROOM, sizeof *plan.waits);
    plan.tensors = calloc(BUILDER_ROOM, sizeof *plan.tensors);
    plan.units = calloc(BUILDER_ROOM, sizeof *plan.units);
    plan.parts = calloc(BUILDER_ROOM, sizeof *plan.parts);
    plan.items = calloc(BUILDER_ROOM, sizeof *plan.items);
    plan.values = calloc(BUILDER_ROOM, sizeof *plan.values);
    plan.strings = calloc(BUILDER_ROOM, 32);
    plan.n_strings = 1;
    return plan;
}

static inline uint32_t builder_tensor(zinf_plan *plan, const char *name, uint64_t rows,
                                      uint64_t cols, zinf_init_kind init, double std)
{
    zinf_tensor *tensor = &plan->tensors[plan->n_tensors];

    strcpy(tensor->name, name);
    tensor->rows = rows;
    tensor->cols = cols;
    tensor->init = init;
    tensor->init_std = std;
    tensor->n_dims = cols > 1 ? 2 : 1;
    return plan->n_tensors++;
}

/* One part a unit is enough here. */
static inline uint32_t builder_unit(zinf_plan *plan, const char *name, uint32_t tensor,
                                    uint64_t first_row, uint64_t n_rows)
{
    zinf_unit *unit = &plan->units[plan->n_units];

    strcpy(unit->name, name);
    unit->n_elems = n_rows * plan->tensors[tensor].cols;
    unit->shard_elems = unit->n_elems;
    unit->array_stride = unit->n_elems * 4;
    unit->first_part = plan->n_parts;
    unit->n_parts = 1;
    unit->owner = ZINF_NONE;
    unit->decays = plan->tensors[tensor].n_dims == 2;
    unit->param.value = unit->grad.value = unit->optimizer.value = ZINF_NONE;
    unit->whole_param = unit->whole_grad = ZINF_NONE;
    plan->parts[plan->n_parts++] =
        (zinf_part){.tensor = tensor, .first_row = first_row, .n_rows = n_rows};
    return plan->n_units++;
}

static inline void builder_program(zinf_plan *plan, zinf_program_kind kind)
{
    plan->programs[kind].first_segment = plan->n_segments;
}

static inline void builder_segment(zinf_plan *plan, zinf_program_kind kind, uint64_t count)
{
    plan->segments[plan->n_segments++] = (zinf_segment){plan->n_instrs, 0, count};
    plan->programs[kind].n_segments++;
}

/* Followed by its operands and waits. */
static inline uint32_t builder_instr(zinf_plan *plan, zinf_opcode opcode, zinf_queue queue,
                                     const char *name)
{
    zinf_instr *instr = &plan->instrs[plan->n_instrs];

    *instr = (zinf_instr){.opcode = (uint16_t)opcode, .queue = (uint8_t)queue,
                          .operand0 = plan->n_operands, .wait0 = plan->n_waits,
                          .name = plan->n_strings, .layer = -1, .unit = ZINF_NONE,
                          .cost_ns = 1000};
    strcpy(plan->strings + plan->n_strings, name);
    plan->n_strings += (uint32_t)strlen(name) + 1;
    plan->segments[plan->n_segments - 1].n_instrs++;
    return plan->n_instrs++;
}

static inline void builder_matrix(zinf_plan *plan, zinf_tier tier, uint64_t offset,
                                  uint64_t rows, uint64_t cols, zinf_dtype dtype,
                                  uint64_t stride)
{
    plan->operands[plan->n_operands++] = (zinf_operand){
        .offset = offset, .bytes = rows * cols * zinf_dtype_bytes(dtype), .stride = stride,
        .rows = rows, .cols = cols, .ld = cols, .value = ZINF_NONE, .tier = (uint8_t)tier,
        .dtype = (uint8_t)dtype};
    plan->instrs[plan->n_instrs - 1].n_operands++;
}

static inline void builder_floats(zinf_plan *plan, zinf_tier tier, uint64_t offset, uint64_t n,
                                  uint64_t stride)
{
    builder_matrix(plan, tier, offset, 1, n, ZINF_F32, stride);
}

static inline void builder_scalars(zinf_plan *plan, uint64_t slot, uint64_t n)
{
    builder_matrix(plan, ZINF_TIER_SCALAR, slot * 8, 1, n, ZINF_F64, 0);
}

static inline void builder_absent(zinf_plan *plan)
{
    plan->operands[plan->n_operands++] = (zinf_operand){.value = ZINF_NONE};
    plan->instrs[plan->n_instrs - 1].n_operands++;
}

static inline void builder_wait(zinf_plan *plan, uint32_t instr, uint32_t distance)
{
    plan->waits[plan->n_waits++] = (zinf_wait){instr, distance};
    plan->instrs[plan->n_instrs - 1].n_waits++;
}

/* What every queue does at once: nvme -> host -> device, a running sum, and back, in a loop of 8
 * iterations over a tensor of 8 KiB of floats. Returns with INIT, STEP, SAVE. */
enum { PIPE_ITERATIONS = 8, PIPE_FLOATS = 1024, PIPE_BYTES = 4096 };
enum { PIPE_ACC = 0, PIPE_BUFFER = 4096, PIPE_OUT = 8192, PIPE_GATHERED = 65536 }; /* device */
enum { PIPE_STAGE = 0, PIPE_MASTER = 65536, PIPE_M = 131072, PIPE_V = 196608,
       PIPE_BACK = 262144, PIPE_TOKENS = 524288 }; /* host */

static inline zinf_plan builder_pipe(void)
{
    zinf_plan plan = builder_new();
    const uint32_t tensor = builder_tensor(&plan, "w", PIPE_ITERATIONS, PIPE_FLOATS,
                                           ZINF_INIT_NORMAL, 1);
    const uint32_t unit = builder_unit(&plan, "u", tensor, 0, PIPE_ITERATIONS);
    const uint64_t n = PIPE_ITERATIONS * PIPE_FLOATS;

    builder_program(&plan, ZINF_PROGRAM_INIT);
    builder_segment(&plan, ZINF_PROGRAM_INIT, 1);
    const uint32_t init = builder_instr(&plan, ZINF_OP_INIT, ZINF_QUEUE_UPDATE, "u init");
    plan.instrs[init].unit = unit;
    builder_floats(&plan, ZINF_TIER_HOST, PIPE_MASTER, n, 0);
    builder_floats(&plan, ZINF_TIER_HOST, PIPE_M, n, 0);
    builder_floats(&plan, ZINF_TIER_HOST, PIPE_V, n, 0);
    builder_segment(&plan, ZINF_PROGRAM_INIT, PIPE_ITERATIONS);
    builder_instr(&plan, ZINF_OP_WRITE, ZINF_QUEUE_WRITE, "u store");
    builder_floats(&plan, ZINF_TIER_HOST, PIPE_MASTER, PIPE_FLOATS, PIPE_BYTES);
    builder_floats(&plan, ZINF_TIER_NVME, 0, PIPE_FLOATS, PIPE_BYTES);
    builder_wait(&plan, init, 0);

    builder_program(&plan, ZINF_PROGRAM_STEP);
    builder_segment(&plan, ZINF_PROGRAM_STEP, 1);
    const uint32_t batch = builder_instr(&plan, ZINF_OP_BATCH, ZINF_QUEUE_UPDATE, "tokens");
    builder_matrix(&plan, ZINF_TIER_HOST, PIPE_TOKENS, 1, 5, ZINF_I32, 0);
    builder_instr(&plan, ZINF_OP_ZERO, ZINF_QUEUE_COMPUTE, "acc");
    builder_floats(&plan, ZINF_TIER_DEVICE, PIPE_ACC, PIPE_FLOATS, 0);
    builder_wait(&plan, batch, 0);
    builder_segment(&plan, ZINF_PROGRAM_STEP, PIPE_ITERATIONS);
    const uint32_t at = plan.n_instrs, read = at, upload = at + 1, add = at + 2, out = at + 3,
                   gather = at + 4, back = at + 5;
    builder_instr(&plan, ZINF_OP_READ, ZINF_QUEUE_READ, "u read");
    builder_floats(&plan, ZINF_TIER_NVME, 0, PIPE_FLOATS, PIPE_BYTES);
    builder_floats(&plan, ZINF_TIER_HOST, PIPE_STAGE, PIPE_FLOATS, 0);
    builder_wait(&plan, upload, 1);
    builder_instr(&plan, ZINF_OP_UPLOAD, ZINF_QUEUE_UPLOAD, "u upload");
    builder_floats(&plan, ZINF_TIER_HOST, PIPE_STAGE, PIPE_FLOATS, 0);
    builder_floats(&plan, ZINF_TIER_DEVICE, PIPE_BUFFER, PIPE_FLOATS, 0);
    builder_wait(&plan, read, 0);
    builder_wait(&plan, add, 1);
    builder_instr(&plan, ZINF_OP_ACCUMULATE, ZINF_QUEUE_COMPUTE, "u add");
    builder_floats(&plan, ZINF_TIER_DEVICE, PIPE_BUFFER, PIPE_FLOATS, 0);
    builder_floats(&plan, ZINF_TIER_DEVICE, PIPE_ACC, PIPE_FLOATS, 0);
    builder_wait(&plan, upload, 0);
    builder_instr(&plan, ZINF_OP_COPY, ZINF_QUEUE_COMPUTE, "u out");
    builder_floats(&plan, ZINF_TIER_DEVICE, PIPE_ACC, PIPE_FLOATS, 0);
    builder_floats(&plan, ZINF_TIER_DEVICE, PIPE_OUT, PIPE_FLOATS, 0);
    builder_wait(&plan, gather, 1);
    builder_instr(&plan, ZINF_OP_ALLGATHER, ZINF_QUEUE_COLLECTIVE, "u gather");
    builder_floats(&plan, ZINF_TIER_DEVICE, PIPE_OUT, PIPE_FLOATS, 0);
    builder_floats(&plan, ZINF_TIER_DEVICE, PIPE_GATHERED, PIPE_FLOATS, PIPE_BYTES);
    builder_wait(&plan, out, 0);
    builder_instr(&plan, ZINF_OP_DOWNLOAD, ZINF_QUEUE_DOWNLOAD, "u download");
    builder_floats(&plan, ZINF_TIER_DEVICE, PIPE_GATHERED, PIPE_FLOATS, PIPE_BYTES);
    builder_floats(&plan, ZINF_TIER_HOST, PIPE_BACK, PIPE_FLOATS, PIPE_BYTES);
    builder_wait(&plan, gather, 0);
    builder_instr(&plan, ZINF_OP_WRITE, ZINF_QUEUE_WRITE, "u write");
    builder_floats(&plan, ZINF_TIER_HOST, PIPE_BACK, PIPE_FLOATS, PIPE_BYTES);
    builder_floats(&plan, ZINF_TIER_NVME, 0, PIPE_FLOATS, PIPE_BYTES);
    builder_wait(&plan, back, 0);
    builder_segment(&plan, ZINF_PROGRAM_STEP, 1);
    builder_instr(&plan, ZINF_OP_SUM_OF_SQUARES, ZINF_QUEUE_COMPUTE, "u norm");
    builder_floats(&plan, ZINF_TIER_DEVICE, PIPE_ACC, PIPE_FLOATS, 0);
    builder_scalars(&plan, ZINF_SCALAR_PARTIALS, 1);
    builder_instr(&plan, ZINF_OP_CLIP, ZINF_QUEUE_COMPUTE, "clip");
    builder_scalars(&plan, ZINF_SCALAR_PARTIALS, 1);
    builder_scalars(&plan, ZINF_SCALAR_NORM, ZINF_N_UPDATE_SCALARS);
    return plan;
}

#endif
