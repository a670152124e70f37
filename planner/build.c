/* planner/build.c - see build.h. */
#include "planner/build.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool zinf_grow(zinf_builder *b, void *array, uint32_t n, uint32_t *cap, size_t size)
{
    if (b->err->status != ZINF_OK)
        return false;
    if (n < *cap)
        return true;
    if (*cap > UINT32_MAX / 2 - 64) {
        zinf_fail(b->err, ZINF_DOES_NOT_FIT,
                  "the plan needs more than 2^31 entries in one table; use fewer tiles");
        return false;
    }
    uint32_t grown = *cap ? 2 * *cap : 64;
    void *p = realloc(*(void **)array, grown * size);
    if (!p) {
        zinf_fail(b->err, ZINF_MACHINE, "out of memory while planning (%u entries)", grown);
        return false;
    }
    *(void **)array = p;
    *cap = grown;
    return true;
}

uint32_t zinf_build_string(zinf_builder *b, const char *format, ...)
{
    char text[256];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    uint32_t at = b->plan->n_strings;
    for (size_t i = 0, n = strlen(text) + 1; i < n; i++) {
        if (!zinf_grow(b, &b->plan->strings, b->plan->n_strings, &b->cap_strings, 1))
            return 0;
        b->plan->strings[b->plan->n_strings++] = text[i];
    }
    return at;
}

uint32_t zinf_build_value(zinf_builder *b, uint32_t name)
{
    if (!zinf_grow(b, &b->plan->values, b->plan->n_values, &b->cap_values,
                   sizeof *b->plan->values))
        return ZINF_NONE;
    b->plan->values[b->plan->n_values] = name;
    return b->plan->n_values++;
}

uint32_t zinf_build_buffer(zinf_builder *b, zinf_tier tier, uint64_t bytes, zinf_bill item,
                           bool persistent)
{
    if (!zinf_grow(b, &b->buffers, b->n_buffers, &b->cap_buffers, sizeof *b->buffers))
        return ZINF_NONE;
    b->buffers[b->n_buffers] = (zinf_buffer){
        .bytes = zinf_round_up(bytes, ZINF_PAGE), .tier = (uint8_t)tier, .item = (uint8_t)item,
        .persistent = persistent, .first = ZINF_NONE, .last = 0};
    return b->n_buffers++;
}

void zinf_build_too_long(zinf_builder *b)
{
    const zinf_plan *plan = b->plan;
    const bool vertical = plan->decisions.order == ZINF_VERTICAL;
    char order[100] = "";

    if (b->err->status != ZINF_OK)
        return;
    if (vertical)
        snprintf(order, sizeof order, ", a larger micro-batch than %" PRIu32
                 " or order=horizontal", plan->decisions.micro_batch);
    zinf_fail(b->err, ZINF_DOES_NOT_FIT, "\"%s\" needs a plan of more than %d instructions "
              "(%" PRIu64 " layers, tiles %" PRIu32 " .. %" PRIu32 "%s); plan fewer layers, or "
              "pin fewer tiles%s with --set", plan->model.name, ZINF_MOST_INSTRS,
              plan->model.layers, plan->decisions.tiles[ZINF_LINEAR_QKV],
              plan->decisions.tiles[ZINF_LINEAR_VOCAB],
              vertical ? ", micro-batches written out one by one" : "", order);
}

uint32_t zinf_build_instr(zinf_builder *b, zinf_opcode opcode, zinf_queue queue, unsigned flags,
                          int32_t layer, uint32_t unit, uint32_t name, const uint64_t attr[4],
                          const zinf_view *views, uint32_t n)
{
    zinf_plan *plan = b->plan;
    uint32_t index = plan->n_instrs;

    if (index == ZINF_MOST_INSTRS)
        zinf_build_too_long(b);
    if (!zinf_grow(b, &plan->instrs, index, &b->cap_instrs, sizeof *plan->instrs))
        return ZINF_NONE;
    zinf_instr *instr = &plan->instrs[plan->n_instrs++];
    *instr = (zinf_instr){.opcode = (uint16_t)opcode, .queue = (uint8_t)queue,
                          .flags = (uint8_t)flags, .operand0 = plan->n_operands, .n_operands = n,
                          .name = name, .layer = layer, .unit = unit};
    if (attr)
        memcpy(instr->attr, attr, sizeof instr->attr);
    for (uint32_t i = 0; i < n; i++) {
        const zinf_view *v = &views[i];
        if (!zinf_grow(b, &plan->operands, plan->n_operands, &b->cap_operands,
                       sizeof *plan->operands) ||
            !zinf_grow(b, &b->operand_buffers, plan->n_operands, &b->cap_operand_buffers,
                       sizeof *b->operand_buffers))
            return ZINF_NONE;
        zinf_operand *operand = &plan->operands[plan->n_operands];
        b->operand_buffers[plan->n_operands++] = v->buffer;
        *operand = (zinf_operand){.value = ZINF_NONE};
        if (v->buffer == ZINF_NONE)
            continue;
        zinf_buffer *buffer = &b->buffers[v->buffer];
        *operand = (zinf_operand){
            .offset = v->at, .stride = v->stride, .rows = v->rows, .cols = v->cols, .ld = v->ld,
            .bytes = ((v->rows - 1) * v->ld + v->cols) * zinf_dtype_bytes(v->dtype),
            .value = v->value, .tier = buffer->tier, .dtype = v->dtype};
        if (buffer->first == ZINF_NONE) {
            buffer->first = index;
            buffer->begins_aside = queue != ZINF_QUEUE_COMPUTE;
        }
        buffer->last = index;
        if (queue != ZINF_QUEUE_COMPUTE)
            buffer->last_aside = index;
    }
    return index;
}

void zinf_build_segment(zinf_builder *b, uint32_t first_instr, uint64_t count)
{
    zinf_plan *plan = b->plan;

    if (!zinf_grow(b, &plan->segments, plan->n_segments, &b->cap_segments,
                   sizeof *plan->segments))
        return;
    plan->segments[plan->n_segments++] = (zinf_segment){
        .first_instr = first_instr, .n_instrs = plan->n_instrs - first_instr, .count = count};
}

void zinf_build_free(zinf_builder *b)
{
    free(b->buffers);
    free(b->operand_buffers);
    *b = (zinf_builder){0};
}
