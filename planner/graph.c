/* planner/graph.c - see graph.h. */
#include "planner/graph.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint32_t units_per_layer(const zinf_decisions *d)
{
    return 1 + d->tiles[ZINF_LINEAR_QKV] + d->tiles[ZINF_LINEAR_OUT] + d->tiles[ZINF_LINEAR_FC] +
           d->tiles[ZINF_LINEAR_PROJ];
}

uint32_t zinf_unit_of_position(const zinf_decisions *d)
{
    return d->tiles[ZINF_LINEAR_VOCAB];
}

uint32_t zinf_unit_of_small(const zinf_model *model, const zinf_decisions *d, uint64_t layer)
{
    return d->tiles[ZINF_LINEAR_VOCAB] + zinf_family_of(model)->learned_positions +
           (uint32_t)layer * units_per_layer(d);
}

uint32_t zinf_unit_of_tile(const zinf_model *model, const zinf_decisions *d, uint64_t layer,
                           zinf_linear linear, uint32_t tile)
{
    uint32_t unit = zinf_unit_of_small(model, d, layer) + 1 + tile;

    for (int l = 0; l < (int)linear; l++)
        unit += d->tiles[l];
    return unit;
}

uint32_t zinf_unit_of_final_norm(const zinf_model *model, const zinf_decisions *d)
{
    return zinf_unit_of_small(model, d, model->layers);
}

uint32_t zinf_unit_of_head(const zinf_model *model, const zinf_decisions *d, uint32_t tile)
{
    return model->tied_embeddings ? tile : zinf_unit_of_final_norm(model, d) + 1 + tile;
}

__attribute__((format(printf, 7, 8)))
static uint32_t add_tensor(zinf_builder *b, uint32_t n_dims, uint64_t rows, uint64_t cols,
                           zinf_init_kind init, double std, const char *format, ...)
{
    zinf_plan *plan = b->plan;
    va_list args;

    if (!zinf_grow(b, &plan->tensors, plan->n_tensors, &b->cap_tensors, sizeof *plan->tensors))
        return 0;
    zinf_tensor *tensor = &plan->tensors[plan->n_tensors];
    *tensor = (zinf_tensor){.rows = rows, .cols = cols, .init = init, .init_std = std,
                            .n_dims = n_dims};
    va_start(args, format);
    vsnprintf(tensor->name, sizeof tensor->name, format, args);
    va_end(args);
    return plan->n_tensors++;
}

__attribute__((format(printf, 3, 4)))
static zinf_unit *add_unit(zinf_builder *b, int32_t layer, const char *format, ...)
{
    static zinf_unit unused;
    zinf_plan *plan = b->plan;
    va_list args;

    if (!zinf_grow(b, &plan->units, plan->n_units, &b->cap_units, sizeof *plan->units))
        return &unused;
    zinf_unit *unit = &plan->units[plan->n_units++];
    *unit = (zinf_unit){.layer = layer, .first_part = plan->n_parts, .owner = ZINF_NONE};
    va_start(args, format);
    vsnprintf(unit->name, sizeof unit->name, format, args);
    va_end(args);
    return unit;
}

static void add_part(zinf_builder *b, zinf_unit *unit, uint32_t tensor, uint64_t first_row,
                     uint64_t n_rows)
{
    zinf_plan *plan = b->plan;

    if (!zinf_grow(b, &plan->parts, plan->n_parts, &b->cap_parts, sizeof *plan->parts))
        return;
    plan->parts[plan->n_parts++] = (zinf_part){
        .tensor = tensor, .first_row = first_row, .n_rows = n_rows, .at = unit->n_elems};
    unit->n_elems += n_rows * plan->tensors[tensor].cols;
    unit->n_parts++;
    unit->decays = plan->tensors[tensor].n_dims == 2;
}

/* Tiles over n tensors stacked by rows; a tile may hold rows of several. */
static void add_tiles(zinf_builder *b, uint32_t tensor, unsigned n, const char *name,
                      int32_t layer, uint32_t tiles)
{
    const zinf_plan *plan = b->plan;
    uint64_t rows = 0;

    for (unsigned i = 0; i < n && b->err->status == ZINF_OK; i++)
        rows += plan->tensors[tensor + i].rows;
    for (uint32_t t = 0; t < tiles && b->err->status == ZINF_OK; t++) {
        const uint64_t first = zinf_tile_row(rows, tiles, t);
        const uint64_t end = zinf_tile_row(rows, tiles, t + 1);
        zinf_unit *unit = tiles == 1 ? add_unit(b, layer, "%s", name)
                                     : add_unit(b, layer, "%s[%u/%u]", name, t, tiles);
        for (unsigned i = 0; i < n; i++) {
            const uint64_t top = plan->tensors[tensor + i].stack_row;
            const uint64_t bottom = top + plan->tensors[tensor + i].rows;
            const uint64_t from = first > top ? first : top, to = end < bottom ? end : bottom;
            if (from < to)
                add_part(b, unit, tensor + i, from - top, to - from);
        }
    }
}

/* A linear's weights (or biases: cols 0), one after the other; the first in ret_tensor. */
static unsigned add_stack(zinf_builder *b, const zinf_model *model, uint64_t layer,
                          zinf_linear linear, double std, uint32_t *ret_tensor)
{
    const zinf_family *family = zinf_family_of(model);
    const bool bias = std == 0;
    uint64_t row = 0;
    unsigned n = 0;

    for (; n < ZINF_MAX_STACK && family->linears[linear].parts[n]; n++) {
        char block[ZINF_NAME_BYTES];
        const uint64_t rows = zinf_linear_part_rows(model, linear, n);
        snprintf(block, sizeof block, family->block, (int)layer);
        uint32_t tensor = add_tensor(b, bias ? 1 : 2, rows,
                                     bias ? 1 : zinf_linear_cols(model, linear),
                                     bias ? ZINF_INIT_ZERO : ZINF_INIT_NORMAL, std, "%s.%s.%s",
                                     block, family->linears[linear].parts[n],
                                     bias ? "bias" : "weight");
        if (n == 0)
            *ret_tensor = tensor;
        if (b->err->status == ZINF_OK)
            b->plan->tensors[tensor].stack_row = row;
        row += rows;
    }
    return n;
}

uint64_t zinf_shard_elems(uint64_t n_elems, uint32_t ranks)
{
    enum { LINE = 16 }; /* fp32 of a cache line, so that no two ranks' elements share one */

    return ranks == 1 ? n_elems : zinf_round_up(n_elems, (uint64_t)LINE * ranks) / ranks;
}

/* fp32 master, m, v stand 4 KiB + 64 B out of step so that equal indices of the three do not
 * share a cache set (2.8x on Adam, measured); short arrays are only kept apart by lines. */
static uint64_t array_stride(uint64_t n_elems)
{
    uint64_t bytes = zinf_round_up(4 * n_elems, 64);
    return bytes < 4 * ZINF_PAGE ? bytes : zinf_round_up(bytes, ZINF_PAGE) + ZINF_PAGE + 64;
}

static zinf_region add_region(zinf_builder *b, zinf_tier tier, uint64_t bytes, zinf_bill item,
                              const char *unit, const char *what)
{
    uint32_t name = zinf_build_string(b, "%s %s", unit, what);
    uint32_t buffer = zinf_build_buffer(b, tier, bytes, item, true);

    return (zinf_region){.bytes = buffer == ZINF_NONE ? 0 : b->buffers[buffer].bytes,
                         .tier = (uint32_t)tier, .value = zinf_build_value(b, name)};
}

static void build_block(zinf_builder *b, const zinf_model *model, const zinf_decisions *d,
                        uint64_t layer)
{
    const zinf_family *family = zinf_family_of(model);
    const double std = 0.02; /* GPT-2, and the default of the Hugging Face llama */
    uint32_t norms[4], weights[4], biases[4] = {0}; /* first tensor of each */
    unsigned stacked[4];
    char block[ZINF_NAME_BYTES];

    snprintf(block, sizeof block, family->block, (int)layer);
    /* in the order of their use, which the checker relies on: norm, qkv, out; norm, fc, proj */
    for (int i = 0; i < ZINF_LINEAR_VOCAB; i++) {
        for (int k = i; k < i + 2 && i % 2 == 0; k++)
            if (zinf_small_rows(model, ZINF_SMALL_LN1_W + k))
                norms[k] = add_tensor(b, 1, model->hidden, 1,
                                      k & 1 ? ZINF_INIT_ZERO : ZINF_INIT_ONE, 0, "%s.%s.%s", block,
                                      family->norms[k / 2], k & 1 ? "bias" : "weight");
        const bool narrow = family->narrow_init && family->linears[i].narrows;
        stacked[i] = add_stack(b, model, layer, (zinf_linear)i,
                               narrow ? std / sqrt(2.0 * (double)model->layers) : std,
                               &weights[i]);
        if (zinf_small_rows(model, ZINF_SMALL_BIAS + i))
            add_stack(b, model, layer, (zinf_linear)i, 0, &biases[i]);
    }
    if (b->err->status != ZINF_OK)
        return;
    zinf_unit *small = add_unit(b, (int32_t)layer, "%s.small", block);
    for (int i = 0; i < 4; i++)
        if (zinf_small_rows(model, ZINF_SMALL_LN1_W + i))
            add_part(b, small, norms[i], 0, model->hidden);
    for (int i = 0; i < ZINF_LINEAR_VOCAB; i++)
        for (unsigned k = 0; k < stacked[i] && zinf_small_rows(model, ZINF_SMALL_BIAS + i); k++)
            add_part(b, small, biases[i] + k, 0,
                     zinf_linear_part_rows(model, (zinf_linear)i, k));
    for (int i = 0; i < ZINF_LINEAR_VOCAB; i++) {
        char name[2 * ZINF_NAME_BYTES];
        snprintf(name, sizeof name, "%s.%s", block, family->linears[i].unit);
        add_tiles(b, weights[i], stacked[i],
                  stacked[i] > 1 ? name : b->plan->tensors[weights[i]].name, (int32_t)layer,
                  d->tiles[i]);
    }
}

/* ---- who owns what ---- */

typedef struct load {
    uint64_t elems;
    uint32_t of; /* unit, or rank */
} load;

static int larger_first(const void *a, const void *b)
{
    const load *x = a, *y = b;

    if (x->elems != y->elems)
        return x->elems > y->elems ? -1 : 1;
    return x->of < y->of ? -1 : x->of > y->of;
}

static bool less_loaded(const load *a, const load *b)
{
    return a->elems != b->elems ? a->elems < b->elems : a->of < b->of;
}

/* Units, the largest first, each to the rank that has least: no rank then has more than another by
 * more than one unit. It depends on the units' sizes and the number of ranks alone. */
static void give_owners(zinf_builder *b, uint32_t ranks)
{
    zinf_plan *plan = b->plan;
    load *units = malloc((plan->n_units + (size_t)1) * sizeof *units);
    load *heap = malloc((ranks + (size_t)1) * sizeof *heap); /* the least loaded on top */

    if (!units || !heap)
        zinf_fail(b->err, ZINF_MACHINE, "out of memory while giving units to %u ranks", ranks);
    for (uint32_t u = 0; u < plan->n_units && b->err->status == ZINF_OK; u++)
        units[u] = (load){plan->units[u].n_elems, u};
    for (uint32_t r = 0; r < ranks && b->err->status == ZINF_OK; r++)
        heap[r] = (load){0, r};
    if (b->err->status == ZINF_OK)
        qsort(units, plan->n_units, sizeof *units, larger_first);
    for (uint32_t i = 0; i < plan->n_units && b->err->status == ZINF_OK; i++) {
        zinf_unit *unit = &plan->units[units[i].of];
        load top = heap[0];
        uint32_t at = 0;
        unit->owner = top.of;
        top.elems += unit->n_elems;
        for (uint32_t child; (child = 2 * at + 1) < ranks; at = child) {
            child += child + 1 < ranks && less_loaded(&heap[child + 1], &heap[child]);
            if (!less_loaded(&heap[child], &top))
                break;
            heap[at] = heap[child];
        }
        heap[at] = top;
    }
    free(units);
    free(heap);
}

void zinf_graph_build(zinf_builder *b, const zinf_model *model, const zinf_decisions *d)
{
    const zinf_family *family = zinf_family_of(model);
    const uint64_t hidden = model->hidden;
    const double std = 0.02;
    /* the embedding's units are not late: forward begins with them, and would wait */
    const uint32_t first_late = d->optimizer_time == ZINF_IN_FORWARD
                                    ? zinf_unit_of_small(model, d, 0) : UINT32_MAX;

    zinf_build_string(b, "%s", ""); /* offset 0 is the empty name */
    uint32_t wte = add_tensor(b, 2, model->vocab, hidden, ZINF_INIT_NORMAL, std, "%s",
                              family->tokens);
    uint32_t wpe = !family->learned_positions
                       ? ZINF_NONE
                       : add_tensor(b, 2, model->context, hidden, ZINF_INIT_NORMAL, std, "%s",
                                    family->positions);
    add_tiles(b, wte, 1, family->tokens, -1, d->tiles[ZINF_LINEAR_VOCAB]);
    if (wpe != ZINF_NONE)
        add_tiles(b, wpe, 1, family->positions, -1, 1);
    for (uint64_t layer = 0; layer < model->layers && b->err->status == ZINF_OK; layer++)
        build_block(b, model, d, layer);
    uint32_t final_w = add_tensor(b, 1, hidden, 1, ZINF_INIT_ONE, 0, "%s.weight",
                                  family->final_norm), final_b = ZINF_NONE;
    if (family->layernorm)
        final_b = add_tensor(b, 1, hidden, 1, ZINF_INIT_ZERO, 0, "%s.bias", family->final_norm);
    zinf_unit *norm = add_unit(b, -1, "%s", family->final_norm);
    add_part(b, norm, final_w, 0, hidden);
    if (final_b != ZINF_NONE)
        add_part(b, norm, final_b, 0, hidden);
    if (!model->tied_embeddings) {
        uint32_t head = add_tensor(b, 2, model->vocab, hidden, ZINF_INIT_NORMAL, std, "%s",
                                   family->head);
        add_tiles(b, head, 1, family->head, -1, d->tiles[ZINF_LINEAR_VOCAB]);
    }

    if (d->partitioning == ZINF_OWNER)
        give_owners(b, d->ranks);
    for (uint32_t u = 0; u < b->plan->n_units && b->err->status == ZINF_OK; u++) {
        zinf_unit *unit = &b->plan->units[u];
        unit->shard_elems = zinf_shard_elems(unit->n_elems, d->ranks);
        if (unit->owner != ZINF_NONE) /* padded alike: the same sums in the same order */
            unit->shard_elems *= d->ranks;
        unit->array_stride = array_stride(unit->shard_elems);
        unit->late = u >= first_late;
        unit->param = add_region(b, d->tier[ZINF_CLASS_PARAM],
                                 unit->shard_elems * zinf_dtype_bytes(model->precision),
                                 ZINF_BILL_PARAM, unit->name, "param");
        unit->grad = add_region(b, d->tier[ZINF_CLASS_GRAD], 4 * unit->shard_elems,
                                ZINF_BILL_GRAD, unit->name, "grad");
        unit->optimizer = add_region(b, d->tier[ZINF_CLASS_OPTIMIZER],
                                     2 * unit->array_stride + 4 * unit->shard_elems,
                                     ZINF_BILL_OPTIMIZER, unit->name, "optimizer");
        unit->whole_param = unit->param.value;
        unit->whole_grad = unit->grad.value;
        if (d->ranks == 1)
            continue;
        unit->whole_param = zinf_build_value(b, zinf_build_string(b, "%s param, whole",
                                                                  unit->name));
        unit->whole_grad = zinf_build_value(b, zinf_build_string(b, "%s grad, whole",
                                                                 unit->name));
    }
}
