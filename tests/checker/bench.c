/* tests/checker/bench.c - instructions checked per second: bench [INSTRUCTIONS] (default 10^6), a
 * forward of many layers whose tiled parameters are uploaded ahead through a ring of buffers.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/kernels.h"
#include "runtime/checker.h"
#include "runtime/opcodes.h"

enum { PAIR = 2, RING = 64, TILES = 4, N = 128, M = 64, K = 256, FIRST = 2 * TILES + 1 };
enum { TILE = M * K * 2, MATRIX = N * K * 2, STATE = M * K * 12 };
enum { X, Y, PARAM, OPTIMIZER = PARAM + TILES }; /* values */

static zinf_operand matrix(zinf_tier tier, uint64_t offset, uint32_t value, zinf_dtype dtype,
                           uint64_t rows, uint64_t cols)
{
    return (zinf_operand){.tier = (uint8_t)tier, .offset = offset, .value = value,
                          .dtype = (uint8_t)dtype, .rows = rows, .cols = cols, .ld = cols,
                          .bytes = rows * cols * zinf_dtype_bytes(dtype)};
}

static void add(zinf_plan *p, unsigned opcode, zinf_queue queue, uint32_t unit, uint32_t wait,
                const zinf_operand *o)
{
    zinf_instr *instr = &p->instrs[p->n_instrs++];

    *instr = (zinf_instr){.opcode = (uint16_t)opcode, .queue = (uint8_t)queue, .unit = unit,
                          .n_operands = (uint32_t)strlen(zinf_opcode_get(opcode)->access),
                          .operand0 = p->n_operands, .wait0 = p->n_waits};
    memcpy(&p->operands[p->n_operands], o, instr->n_operands * sizeof *o);
    p->n_operands += instr->n_operands;
    instr->n_waits = wait != ZINF_NONE;
    p->waits[p->n_waits] = (zinf_wait){wait, 0};
    p->n_waits += instr->n_waits;
}

/* One weight in four tiles, made by INIT and used by every layer: all in program INIT. */
static zinf_plan make(uint32_t n_pairs)
{
    static const zinf_operand absent = {.value = ZINF_NONE};
    const uint64_t scratch = zinf_gemm_scratch_bytes(N, M, K, 1), values = OPTIMIZER + TILES;
    const uint32_t n = FIRST + PAIR * n_pairs;
    zinf_plan p = {.model = {.vocab = 1, .n_params = M * TILES * K},
                   .job = {.precision = ZINF_BF16, .sequence = 1, .global_batch = 1},
                   .decisions = {.ranks = 1, .accumulation = 1, .micro_batch = 1, .n_threads = 1}};

    p.instrs = calloc(n, sizeof *p.instrs);
    p.operands = calloc(6 * (size_t)n, sizeof *p.operands);
    p.waits = calloc(n, sizeof *p.waits);
    p.segments = calloc(1, sizeof *p.segments);
    p.values = calloc(values, sizeof *p.values);
    p.strings = calloc(1, 8);
    p.units = calloc(TILES, sizeof *p.units);
    p.parts = calloc(TILES, sizeof *p.parts);
    p.tensors = calloc(1, sizeof *p.tensors);
    p.n_values = (uint32_t)values;
    p.n_strings = 1;
    p.n_units = p.n_parts = TILES;
    p.n_tensors = 1;
    p.tensors[0] = (zinf_tensor){.rows = M * TILES, .cols = K, .n_dims = 2};
    p.machine.arena_bytes[ZINF_TIER_HOST] = TILES * (TILE + STATE);
    p.machine.arena_bytes[ZINF_TIER_DEVICE] = RING * TILE + 2 * MATRIX + scratch;
    for (int t = 0; t < ZINF_N_TIERS; t++)
        p.machine.capacity_bytes[t] = p.machine.arena_bytes[t];
    for (uint32_t t = 0; t < TILES; t++) {
        const uint64_t at = TILES * TILE + t * (uint64_t)STATE;
        zinf_operand state[3], params[2];
        p.parts[t] = (zinf_part){.first_row = M * (uint64_t)t, .n_rows = M};
        p.units[t] = (zinf_unit){.n_elems = M * K, .shard_elems = M * K,
                                 .whole_param = PARAM + t, .whole_grad = ZINF_NONE,
                                 .array_stride = M * K * 4, .first_part = t,
                                 .n_parts = 1, .decays = 1,
                                 .param = {t * TILE, TILE, ZINF_TIER_HOST, PARAM + t},
                                 .optimizer = {at, STATE, ZINF_TIER_HOST, OPTIMIZER + t}};
        for (uint64_t i = 0; i < 3; i++)
            state[i] = matrix(ZINF_TIER_HOST, at + i * M * K * 4, OPTIMIZER + t, ZINF_F32, 1,
                              M * K);
        params[0] = state[0];
        params[1] = matrix(ZINF_TIER_HOST, t * TILE, PARAM + t, ZINF_BF16, 1, M * K);
        add(&p, ZINF_OP_INIT, ZINF_QUEUE_UPDATE, t, ZINF_NONE, state);
        add(&p, ZINF_OP_CONVERT, ZINF_QUEUE_UPDATE, t, ZINF_NONE, params);
    }
    const zinf_operand x = matrix(ZINF_TIER_DEVICE, RING * TILE, X, ZINF_BF16, N, K);
    const zinf_operand work = matrix(ZINF_TIER_DEVICE, RING * TILE + 2 * MATRIX, ZINF_NONE, ZINF_U8,
                                     1, scratch);
    add(&p, ZINF_OP_ZERO, ZINF_QUEUE_COMPUTE, ZINF_NONE, ZINF_NONE, &x);
    for (uint32_t i = 0; i < n_pairs; i++) {
        const uint32_t t = i % TILES;
        const zinf_operand host = matrix(ZINF_TIER_HOST, t * TILE, PARAM + t, ZINF_BF16, M, K);
        zinf_operand w = host, y = x;
        w.tier = ZINF_TIER_DEVICE;
        w.offset = i % RING * (uint64_t)TILE;
        y.offset += MATRIX + t * M * 2;
        y.value = Y;
        y.cols = M;
        y.bytes = ((N - 1) * y.ld + M) * 2;
        add(&p, ZINF_OP_UPLOAD, ZINF_QUEUE_UPLOAD, t,
            i < RING ? 2 * t + 1 : FIRST + PAIR * (i - RING) + 1, (zinf_operand[]){host, w});
        add(&p, ZINF_OP_LINEAR_FORWARD, ZINF_QUEUE_COMPUTE, t, p.n_instrs - 1,
            (zinf_operand[]){x, w, absent, absent, y, work});
    }
    p.segments[0] = (zinf_segment){.n_instrs = n, .count = 1};
    p.n_segments = 1;
    p.programs[ZINF_PROGRAM_INIT].n_segments = 1;
    return p;
}

int main(int argc, char **argv)
{
    const uint32_t n = argc > 1 ? (uint32_t)atol(argv[1]) : 1000000;
    zinf_plan plan = make((n < 1024 ? 1024 : n) / PAIR);
    zinf_error err = {0};
    struct timespec from, to;

    clock_gettime(CLOCK_MONOTONIC, &from);
    zinf_status status = zinf_plan_check(&plan, &err);
    clock_gettime(CLOCK_MONOTONIC, &to);
    /* the last thing asked, and all that is missing here */
    if (!status || !strstr(err.text, "one of these programs is empty")) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    double s = (double)(to.tv_sec - from.tv_sec) + 1e-9 * (double)(to.tv_nsec - from.tv_nsec);
    printf("{\"name\": \"checker\", \"value\": %.0f, \"unit\": \"instructions/s\", \"of\": "
           "\"%u instructions, %d buffers, tiled\"}\n", plan.n_instrs / s, plan.n_instrs, RING);
    zinf_plan_free(&plan);
    return 0;
}
