/* planner/graph.c - see graph.h. */
#include "planner/graph.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

uint64_t zinf_linear_rows(const zinf_model *model, zinf_linear linear)
{
    switch (linear) {
    case ZINF_LINEAR_QKV:
        return (model->heads + 2 * model->kv_heads) * model->head_dim;
    case ZINF_LINEAR_FC:
        return model->ffn;
    case ZINF_LINEAR_VOCAB:
        return model->vocab;
    default:
        return model->hidden;
    }
}

uint64_t zinf_linear_cols(const zinf_model *model, zinf_linear linear)
{
    switch (linear) {
    case ZINF_LINEAR_OUT:
        return model->heads * model->head_dim;
    case ZINF_LINEAR_PROJ:
        return model->ffn;
    default:
        return model->hidden;
    }
}

static uint32_t units_per_layer(const zinf_decisions *d)
{
    return 1 + d->tiles[ZINF_LINEAR_QKV] + d->tiles[ZINF_LINEAR_OUT] + d->tiles[ZINF_LINEAR_FC] +
           d->tiles[ZINF_LINEAR_PROJ];
}

uint32_t zinf_unit_of_position(const zinf_decisions *d)
{
    return d->tiles[ZINF_LINEAR_VOCAB];
}

uint32_t zinf_unit_of_small(const zinf_decisions *d, uint64_t layer)
{
    return zinf_unit_of_position(d) + 1 + (uint32_t)layer * units_per_layer(d);
}

uint32_t zinf_unit_of_tile(const zinf_decisions *d, uint64_t layer, zinf_linear linear,
                           uint32_t tile)
{
    if (linear == ZINF_LINEAR_VOCAB)
        return tile;
    uint32_t unit = zinf_unit_of_small(d, layer) + 1 + tile;
    for (int l = 0; l < (int)linear; l++)
        unit += d->tiles[l];
    return unit;
}

uint32_t zinf_unit_of_final_norm(const zinf_decisions *d, uint64_t layers)
{
    return zinf_unit_of_small(d, layers);
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
    *unit = (zinf_unit){.layer = layer, .first_part = plan->n_parts};
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

static void add_tiles(zinf_builder *b, uint32_t tensor, int32_t layer, uint32_t tiles)
{
    uint64_t rows = b->plan->tensors[tensor].rows;

    for (uint32_t t = 0; t < tiles && b->err->status == ZINF_OK; t++) {
        uint64_t row = zinf_tile_row(rows, tiles, t);
        zinf_unit *unit = tiles == 1
                              ? add_unit(b, layer, "%s", b->plan->tensors[tensor].name)
                              : add_unit(b, layer, "%s[%u/%u]", b->plan->tensors[tensor].name, t,
                                         tiles);
        add_part(b, unit, tensor, row, zinf_tile_row(rows, tiles, t + 1) - row);
    }
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

void zinf_graph_build(zinf_builder *b, const zinf_model *model, const zinf_decisions *d)
{
    static const char *const linear_names[] = {"attn.c_attn", "attn.c_proj", "mlp.c_fc",
                                               "mlp.c_proj"};
    static const char *const norm_names[] = {"ln_1.weight", "ln_1.bias", "ln_2.weight",
                                             "ln_2.bias"};
    const double std = 0.02; /* GPT-2 */
    const uint64_t hidden = model->hidden;

    zinf_build_string(b, "%s", ""); /* offset 0 is the empty name */
    uint32_t wte = add_tensor(b, 2, model->vocab, hidden, ZINF_INIT_NORMAL, std,
                              "transformer.wte.weight");
    uint32_t wpe = add_tensor(b, 2, model->context, hidden, ZINF_INIT_NORMAL, std,
                              "transformer.wpe.weight");
    add_tiles(b, wte, -1, d->tiles[ZINF_LINEAR_VOCAB]);
    add_tiles(b, wpe, -1, 1);
    for (uint64_t layer = 0; layer < model->layers && b->err->status == ZINF_OK; layer++) {
        uint32_t norms[4], weights[4], biases[4];
        for (int i = 0; i < 4; i++)
            norms[i] = add_tensor(b, 1, hidden, 1, i & 1 ? ZINF_INIT_ZERO : ZINF_INIT_ONE, 0,
                                  "transformer.h.%d.%s", (int)layer, norm_names[i]);
        for (int i = 0; i < 4; i++) {
            /* GPT-2: projections into the residual stream start smaller. */
            bool residual = i == ZINF_LINEAR_OUT || i == ZINF_LINEAR_PROJ;
            uint64_t rows = zinf_linear_rows(model, i);
            weights[i] = add_tensor(b, 2, rows, zinf_linear_cols(model, i), ZINF_INIT_NORMAL,
                                    residual ? std / sqrt(2.0 * (double)model->layers) : std,
                                    "transformer.h.%d.%s.weight", (int)layer, linear_names[i]);
            biases[i] = add_tensor(b, 1, rows, 1, ZINF_INIT_ZERO, 0, "transformer.h.%d.%s.bias",
                                   (int)layer, linear_names[i]);
        }
        zinf_unit *small = add_unit(b, (int32_t)layer, "transformer.h.%d.small", (int)layer);
        for (int i = 0; i < 4; i++)
            add_part(b, small, norms[i], 0, hidden);
        for (int i = 0; i < 4; i++)
            add_part(b, small, biases[i], 0, zinf_linear_rows(model, i));
        for (int i = 0; i < 4; i++)
            add_tiles(b, weights[i], (int32_t)layer, d->tiles[i]);
    }
    uint32_t lnf_w = add_tensor(b, 1, hidden, 1, ZINF_INIT_ONE, 0, "transformer.ln_f.weight");
    uint32_t lnf_b = add_tensor(b, 1, hidden, 1, ZINF_INIT_ZERO, 0, "transformer.ln_f.bias");
    zinf_unit *norm = add_unit(b, -1, "transformer.ln_f");
    add_part(b, norm, lnf_w, 0, hidden);
    add_part(b, norm, lnf_b, 0, hidden);

    for (uint32_t u = 0; u < b->plan->n_units && b->err->status == ZINF_OK; u++) {
        zinf_unit *unit = &b->plan->units[u];
        unit->array_stride = array_stride(unit->n_elems);
        unit->param = add_region(b, d->tier[ZINF_CLASS_PARAM],
                                 unit->n_elems * zinf_dtype_bytes(model->precision),
                                 ZINF_BILL_PARAM, unit->name, "param");
        unit->grad = add_region(b, d->tier[ZINF_CLASS_GRAD], 4 * unit->n_elems, ZINF_BILL_GRAD,
                                unit->name, "grad");
        unit->optimizer = add_region(b, d->tier[ZINF_CLASS_OPTIMIZER],
                                     2 * unit->array_stride + 4 * unit->n_elems,
                                     ZINF_BILL_OPTIMIZER, unit->name, "optimizer");
    }
}
