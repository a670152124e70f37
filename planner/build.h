/* planner/build.h - the structure that the passes work on: a plan whose operands still name
 * virtual buffers. lower.c fills it, place.c gives buffers their offsets, schedule.c the waits.
 */
#ifndef ZINF_PLANNER_BUILD_H
#define ZINF_PLANNER_BUILD_H

#include "planner/spec.h"
#include "runtime/opcodes.h"
#include "runtime/plan.h"

/* A piece of an arena that lives from its first to its last use in one program, or, if
 * persistent, for the whole run. */
typedef struct zinf_buffer {
    uint64_t bytes;
    uint64_t offset;     /* set by place.c */
    uint32_t first, last; /* instructions that use it, in program order */
    uint32_t last_aside;  /* the last in another queue than compute, or 0 */
    uint8_t tier, persistent, item; /* item: line of the memory bill, zinf_bill */
    bool begins_aside;
} zinf_buffer;

/* Lines of the memory bill. */
#define ZINF_BILL(X)                                                                             \
    X(PARAM, "parameters") X(GRAD, "gradients") X(OPTIMIZER, "optimizer states")                 \
    X(CHECKPOINT, "activation checkpoints") X(WORKING, "working buffers")
typedef enum zinf_bill {
#define X(name, text) ZINF_BILL_##name,
    ZINF_BILL(X)
#undef X
    ZINF_N_BILL
} zinf_bill;

/* A matrix inside a buffer; becomes a zinf_operand. buffer ZINF_NONE: absent. */
typedef struct zinf_view {
    uint32_t buffer, value;
    uint64_t at, stride; /* bytes inside the buffer; per iteration */
    uint64_t rows, cols, ld;
    uint8_t dtype;
} zinf_view;

typedef struct zinf_builder {
    zinf_plan *plan; /* arrays grown here */
    zinf_buffer *buffers;
    uint32_t *operand_buffers; /* [n_operands] */
    uint32_t n_buffers;
    uint32_t cap_buffers, cap_operand_buffers, cap_segments, cap_instrs, cap_operands, cap_waits,
        cap_tensors, cap_units, cap_parts, cap_items, cap_values, cap_strings;
    zinf_error *err; /* set once memory is short; everything after is a no-op */
} zinf_builder;

/* Some 1 GB while planning. GPT-2 XL in 32 tiles has 227,047; in horizontal order a plan does not
 * grow with the batch. */
enum { ZINF_MOST_INSTRS = 1 << 21 };

/* Refuses a plan that has more. */
void zinf_build_too_long(zinf_builder *b);

/* Grows *array (elements of `size` bytes) to hold one more than n; false and err set when memory
 * is short. */
bool zinf_grow(zinf_builder *b, void *array, uint32_t n, uint32_t *cap, size_t size);

__attribute__((format(printf, 2, 3)))
uint32_t zinf_build_string(zinf_builder *b, const char *format, ...);
uint32_t zinf_build_value(zinf_builder *b, uint32_t name);
uint32_t zinf_build_buffer(zinf_builder *b, zinf_tier tier, uint64_t bytes, zinf_bill item,
                           bool persistent);
/* Appends an instruction with n operands; returns its index. */
uint32_t zinf_build_instr(zinf_builder *b, zinf_opcode opcode, zinf_queue queue, unsigned flags,
                          int32_t layer, uint32_t unit, uint32_t name, const uint64_t attr[4],
                          const zinf_view *views, uint32_t n);
void zinf_build_segment(zinf_builder *b, uint32_t first_instr, uint64_t count);
void zinf_build_free(zinf_builder *b); /* not the plan */

static inline uint64_t zinf_round_up(uint64_t bytes, uint64_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

static inline uint64_t zinf_larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

#endif
