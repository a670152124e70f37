/* tests/checker/bench.c - instructions checked per second: bench [INSTRUCTIONS] (default 10^6), a
 * forward of many layers whose tiled parameters are uploaded ahead through a ring of buffers.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "runtime/checker.h"
#include "runtime/opcodes.h"

enum { PAIR = 2, RING = 64, TILES = 4, ROWS = 128, COLS = 64 };

/* EVAL's uses must equal STEP's, so the program is FLUSH, of which nothing is asked but order. */
static zinf_plan make(uint32_t n_pairs)
{
    zinf_plan p = {.job = {.precision = ZINF_BF16},
                   .decisions = {.ranks = 1, .accumulation = 1, .micro_batch = 1}};
    const uint64_t tile = ROWS * COLS * 2, matrix = (uint64_t)ROWS * COLS * TILES * 2;
    const uint32_t n = PAIR * n_pairs + PAIR; /* and two that fill what is read first */
    zinf_operand *last;

    p.instrs = calloc(n, sizeof *p.instrs);
    p.operands = calloc(8 * (size_t)n_pairs + 2, sizeof *p.operands);
    p.waits = calloc(2 * (size_t)n_pairs + 1, sizeof *p.waits);
    p.segments = calloc(1, sizeof *p.segments);
    p.values = calloc(8, sizeof *p.values);
    p.strings = calloc(1, 8);
    p.n_values = 8;
    p.machine.arena_bytes[ZINF_TIER_HOST] = tile;
    p.machine.arena_bytes[ZINF_TIER_DEVICE] = RING * tile + 3 * matrix + 4096;
    for (int t = 0; t < ZINF_N_TIERS; t++)
        p.machine.capacity_bytes[t] = p.machine.arena_bytes[t];
    for (uint32_t i = 0; i < n_pairs; i++) {
        const uint32_t layer = i / TILES, column = i % TILES;
        const zinf_operand w = {.offset = i % RING * tile, .bytes = tile, .rows = COLS,
                                .cols = ROWS, .ld = ROWS, .value = 7, .dtype = ZINF_BF16};
        zinf_operand host = w, x = w, y = w;
        host.tier = ZINF_TIER_HOST;
        host.offset = 0;
        x.offset = RING * tile + layer % 2 * matrix;
        x.value = layer % 2;
        x.rows = ROWS;
        x.cols = x.ld = COLS * TILES;
        x.bytes = matrix;
        y = x;
        y.offset = RING * tile + (layer + 1) % 2 * matrix + column * COLS * 2;
        y.cols = COLS;
        y.bytes = ((ROWS - 1) * y.ld + COLS) * 2;
        y.value = (layer + 1) % 2;
        zinf_operand *o = &p.operands[8 * (size_t)i];
        o[0] = host;
        o[1] = w;
        o[2] = x;
        o[3] = w;
        o[4] = o[5] = (zinf_operand){.value = ZINF_NONE};
        o[6] = y;
        o[7] = (zinf_operand){.offset = RING * tile + 3 * matrix, .bytes = 64, .rows = 1,
                              .cols = 64, .ld = 64, .dtype = ZINF_U8, .value = ZINF_NONE};
        p.waits[2 * i] = (zinf_wait){i < RING ? 0 : PAIR * (i - RING) + 3, 0};
        p.waits[2 * i + 1] = (zinf_wait){PAIR * i + 2, 0};
        p.instrs[PAIR * i + 2] = (zinf_instr){
            .opcode = ZINF_OP_UPLOAD, .queue = ZINF_QUEUE_UPLOAD, .operand0 = 8 * i,
            .n_operands = 2, .wait0 = 2 * i, .n_waits = 1, .unit = ZINF_NONE};
        p.instrs[PAIR * i + 3] = (zinf_instr){
            .opcode = ZINF_OP_LINEAR_FORWARD, .queue = ZINF_QUEUE_COMPUTE, .operand0 = 8 * i + 2,
            .n_operands = 6, .wait0 = 2 * i + 1, .n_waits = 1, .unit = ZINF_NONE};
    }
    last = &p.operands[8 * (size_t)n_pairs];
    last[0] = p.operands[0];
    last[1] = p.operands[2];
    for (uint32_t i = 0; i < PAIR; i++)
        p.instrs[i] = (zinf_instr){.opcode = ZINF_OP_ZERO, .unit = ZINF_NONE, .n_operands = 1,
                                   .queue = i ? ZINF_QUEUE_COMPUTE : ZINF_QUEUE_UPDATE,
                                   .operand0 = 8 * n_pairs + i};
    p.n_instrs = n;
    p.segments[0] = (zinf_segment){.n_instrs = n, .count = 1};
    p.n_segments = 1;
    p.programs[ZINF_PROGRAM_FLUSH].n_segments = 1;
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
    if (status) {
        fprintf(stderr, "%s\n", err.text);
        return status;
    }
    double s = (double)(to.tv_sec - from.tv_sec) + 1e-9 * (double)(to.tv_nsec - from.tv_nsec);
    printf("{\"name\": \"checker\", \"value\": %.0f, \"unit\": \"instructions/s\", \"of\": "
           "\"%u instructions, %d buffers, tiled\"}\n", plan.n_instrs / s, plan.n_instrs, RING);
    free(plan.instrs);
    free(plan.operands);
    free(plan.waits);
    free(plan.segments);
    free(plan.values);
    free(plan.strings);
    return 0;
}
