/* planner/lower.c - see lower.h. The model as a list of stages (one operator, or one tile of
 * it), each stage's parameters fetched ahead, its instructions emitted, its gradients stored.
 * model_stages.c says which stages there are; here is how any of them moves data.
 */
#include "planner/lower.h"

#include <stdlib.h>

#include "kernels/kernels.h"
#include "planner/cost.h"
#include "planner/lower_internal.h"

const zinf_view zinf_absent = {.buffer = ZINF_NONE, .value = ZINF_NONE};

zinf_view zinf_slice(zinf_view view, uint64_t element, uint64_t rows, uint64_t cols, uint64_t ld)
{
    view.at += element * zinf_dtype_bytes(view.dtype);
    view.rows = rows;
    view.cols = cols;
    view.ld = ld;
    return view;
}

zinf_view zinf_new_view(zinf_lowering *l, zinf_tier tier, zinf_bill item, zinf_dtype dtype,
                        uint64_t rows, uint64_t cols, const char *name)
{
    uint32_t value = name ? zinf_build_value(l->b, zinf_build_string(l->b, "%s", name))
                          : ZINF_NONE;
    uint32_t buffer = zinf_build_buffer(l->b, tier, rows * cols * zinf_dtype_bytes(dtype), item,
                                        false);

    return (zinf_view){.buffer = buffer, .value = value, .rows = rows, .cols = cols, .ld = cols,
                       .dtype = dtype};
}

zinf_view zinf_scratch(zinf_lowering *l, uint64_t bytes)
{
    return zinf_new_view(l, ZINF_TIER_DEVICE, ZINF_BILL_WORKING, ZINF_U8, 1, bytes, NULL);
}

/* Three values live in the scalar table: the loss, what CLIP writes, the partial sums. With
 * several ranks there are two more: loss and partial sums once they are those of all ranks. */
zinf_view zinf_scalars(const zinf_lowering *l, uint64_t slot, uint64_t n)
{
    uint32_t value = slot == ZINF_SCALAR_LOSS ? 0 : slot < ZINF_SCALAR_PARTIALS ? 1 : 2;

    return (zinf_view){.buffer = l->scalar_buffer, .value = l->scalar_value + value,
                       .at = 8 * slot, .rows = 1, .cols = n, .ld = n, .dtype = ZINF_F64};
}

/* A whole region of a unit as [1][n] elements of dtype. */
static zinf_view region_view(const zinf_lowering *l, uint32_t unit, int region, zinf_dtype dtype,
                             uint64_t n)
{
    const zinf_unit *u = &l->b->plan->units[unit];
    const zinf_region *r = region == 0 ? &u->param : region == 1 ? &u->grad : &u->optimizer;

    return (zinf_view){.buffer = 3 * unit + (uint32_t)region, .value = r->value, .rows = 1,
                       .cols = n, .ld = n, .dtype = (uint8_t)dtype};
}

zinf_view zinf_param_region(const zinf_lowering *l, uint32_t unit)
{
    return region_view(l, unit, 0, l->act, l->b->plan->units[unit].shard_elems);
}

zinf_view zinf_grad_region(const zinf_lowering *l, uint32_t unit)
{
    return region_view(l, unit, 1, ZINF_F32, l->b->plan->units[unit].shard_elems);
}

zinf_view zinf_optimizer_region(const zinf_lowering *l, uint32_t unit)
{
    const zinf_unit *u = &l->b->plan->units[unit];

    return region_view(l, unit, 2, ZINF_F32, u->array_stride / 2 + u->shard_elems);
}

zinf_tier zinf_view_tier(const zinf_lowering *l, zinf_view view)
{
    return view.buffer == ZINF_NONE ? ZINF_TIER_DEVICE : l->b->buffers[view.buffer].tier;
}

/* Storage moves whole pages: the view of everything the padded buffer holds, as bytes. */
static zinf_view pages(const zinf_lowering *l, zinf_view view)
{
    uint64_t bytes = view.buffer == ZINF_NONE ? 0 : l->b->buffers[view.buffer].bytes;

    return (zinf_view){.buffer = view.buffer, .value = view.value, .rows = 1, .cols = bytes,
                       .ld = bytes, .dtype = ZINF_U8};
}

/* Copies src to dst, which is in the neighbouring tier. */
void zinf_copy_view(zinf_lowering *l, uint32_t unit, int32_t layer, const char *name, zinf_view src,
                    zinf_view dst)
{
    zinf_tier from = zinf_view_tier(l, src), to = zinf_view_tier(l, dst);
    zinf_opcode op = from == ZINF_TIER_NVME ? ZINF_OP_READ
                     : to == ZINF_TIER_NVME ? ZINF_OP_WRITE
                     : to == ZINF_TIER_DEVICE ? ZINF_OP_UPLOAD
                                              : ZINF_OP_DOWNLOAD;
    zinf_queue queue = op == ZINF_OP_READ    ? ZINF_QUEUE_READ
                       : op == ZINF_OP_WRITE ? ZINF_QUEUE_WRITE
                       : op == ZINF_OP_UPLOAD ? ZINF_QUEUE_UPLOAD
                                              : ZINF_QUEUE_DOWNLOAD;

    if (op == ZINF_OP_READ || op == ZINF_OP_WRITE) {
        src = pages(l, src);
        dst = pages(l, dst);
    }
    zinf_build_instr(l->b, op, queue, 0, layer, unit, zinf_build_string(l->b, "%s", name), NULL,
                     (zinf_view[]){src, dst}, 2);
}

zinf_view zinf_view_like(zinf_lowering *l, zinf_tier tier, zinf_view src)
{
    uint64_t bytes = src.buffer == ZINF_NONE ? 0 : l->b->buffers[src.buffer].bytes;

    src.buffer = zinf_build_buffer(l->b, tier, bytes, ZINF_BILL_WORKING, false);
    src.at = 0;
    return src;
}

/* Moves a whole buffer's contents to `to`, by way of host where device and nvme do not meet. If
 * dst is absent a new buffer is made. Returns the view at the destination; src itself if it is
 * there already and no dst was given. */
zinf_view zinf_move_view(zinf_lowering *l, uint32_t unit, int32_t layer, const char *name,
                         zinf_view src, zinf_tier to, zinf_view dst)
{
    zinf_tier from = zinf_view_tier(l, src);

    if (from == to && dst.buffer == ZINF_NONE)
        return src;
    bool far = (from == ZINF_TIER_DEVICE && to == ZINF_TIER_NVME) ||
               (from == ZINF_TIER_NVME && to == ZINF_TIER_DEVICE);
    if (far && l->host == ZINF_TIER_HOST) {
        zinf_view staging = zinf_view_like(l, ZINF_TIER_HOST, src);
        zinf_copy_view(l, unit, layer, name, src, staging);
        src = staging;
    }
    if (dst.buffer == ZINF_NONE)
        dst = zinf_view_like(l, to, src);
    zinf_copy_view(l, unit, layer, name, src, dst);
    return dst;
}

/* ---- fetching ahead ---- */

static void add_fetch(zinf_lowering *l, uint32_t unit, uint32_t boundary)
{
    if (!zinf_grow(l->b, &l->fetches, l->n_fetches, &l->cap_fetches, sizeof *l->fetches))
        return;
    l->fetches[l->n_fetches++] = (zinf_fetch){
        .unit = unit, .boundary = boundary, .stage = l->n_stages, .staged = zinf_absent,
        .shard = zinf_absent, .ready = zinf_absent};
}

/* Parameters that are not whole on the device all the time. */
static bool params_away(const zinf_lowering *l)
{
    return l->d->tier[ZINF_CLASS_PARAM] != ZINF_TIER_DEVICE || l->d->ranks > 1;
}

/* The next stage to be added, and those after it, use this unit's parameters; all micro-batches of
 * a phase use what its first has fetched. */
void zinf_need_unit(zinf_lowering *l, uint32_t unit)
{
    if (l->pending && l->b->plan->units[unit].late && !l->update[unit].due &&
        zinf_grow(l->b, &l->dues, l->n_dues, &l->cap_dues, sizeof *l->dues)) {
        l->update[unit].due = true;
        l->dues[l->n_dues++] = (zinf_due){unit, l->n_stages};
    }
    if (!params_away(l) || (l->phase && l->fetched_in[unit] == l->phase))
        return;
    l->fetched_in[unit] = l->phase;
    add_fetch(l, unit, ZINF_NONE);
}

static uint32_t boundary_index(const zinf_lowering *l, uint32_t layer, bool gradient)
{
    const uint32_t micro = l->vertical ? l->micro : 0;

    return micro * l->n_boundaries + gradient * (uint32_t)(l->model->layers + 1) + layer;
}

/* Vertical order, a tied embedding: the head's gradient of tile `unit`. */
static uint32_t head_grad_index(const zinf_lowering *l, uint32_t unit)
{
    return boundary_index(l, (uint32_t)l->model->layers + 1 + unit, true);
}

void zinf_need_boundary(zinf_lowering *l, uint32_t layer, bool gradient)
{
    if (l->d->tier[ZINF_CLASS_CHECKPOINT] != ZINF_TIER_DEVICE)
        add_fetch(l, ZINF_NONE, boundary_index(l, layer, gradient));
}

/* Where one is kept: in the order of micro-batches the embedding's is to be added to each. */
void zinf_need_head_grad(zinf_lowering *l, uint32_t unit)
{
    if (l->vertical && l->d->tier[ZINF_CLASS_GRAD] != ZINF_TIER_DEVICE)
        add_fetch(l, ZINF_NONE, head_grad_index(l, unit));
}

zinf_view zinf_boundary_view(const zinf_lowering *l, uint32_t layer, bool gradient)
{
    return l->boundaries[boundary_index(l, layer, gradient)].here;
}

zinf_view zinf_unit_view(const zinf_lowering *l, uint32_t unit)
{
    if (!params_away(l))
        return zinf_param_region(l, unit);
    return l->unit_fetch[unit] == ZINF_NONE ? zinf_absent
                                            : l->fetches[l->unit_fetch[unit]].ready;
}

static void boundary_name(const zinf_lowering *l, uint32_t index, char text[128])
{
    const uint32_t interval = l->d->checkpoint_interval, of = index % l->n_boundaries;
    const uint32_t unit = l->boundaries[index].unit;
    const uint32_t group = ((uint32_t)l->boundaries[index].layer + interval - 1) / interval;

    if (unit != ZINF_NONE)
        snprintf(text, 128, "%s grad of micro-batch %u", l->b->plan->units[unit].name,
                 index / l->n_boundaries);
    else if (l->vertical)
        snprintf(text, 128, "%s %u of micro-batch %u",
                 of > l->model->layers ? "gradient" : "checkpoint", group, index / l->n_boundaries);
    else
        snprintf(text, 128, "checkpoint %u", group);
}

static const char *fetch_name(zinf_lowering *l, const zinf_fetch *f, char text[128])
{
    if (f->unit == ZINF_NONE)
        boundary_name(l, f->boundary, text);
    else
        snprintf(text, 128, "%s param", l->b->plan->units[f->unit].name);
    return text;
}

/* Whose parameters, or the head's gradient of which unit; ZINF_NONE. */
static uint32_t fetch_unit(const zinf_lowering *l, const zinf_fetch *f)
{
    return f->unit == ZINF_NONE ? l->boundaries[f->boundary].unit : f->unit;
}

static int32_t fetch_layer(const zinf_lowering *l, const zinf_fetch *f)
{
    return f->unit == ZINF_NONE ? l->boundaries[f->boundary].layer
                                : l->b->plan->units[f->unit].layer;
}

static zinf_view fetch_source(zinf_lowering *l, const zinf_fetch *f)
{
    return f->unit == ZINF_NONE ? l->boundaries[f->boundary].kept : zinf_param_region(l, f->unit);
}

/* nvme -> host (or device where the path is direct). */
static void fetch_read(zinf_lowering *l, zinf_fetch *f)
{
    char text[128];
    zinf_view src = fetch_source(l, f);

    if (f->unit != ZINF_NONE && l->update[f->unit].fresh.buffer != ZINF_NONE) {
        f->staged = l->update[f->unit].fresh;
        l->update[f->unit].fresh = zinf_absent;
        return;
    }
    f->staged = zinf_view_tier(l, src) == ZINF_TIER_NVME
                    ? zinf_move_view(l, fetch_unit(l, f), fetch_layer(l, f), fetch_name(l, f, text),
                                     src, l->host, zinf_absent)
                    : src;
}

/* host -> device */
static void fetch_upload(zinf_lowering *l, zinf_fetch *f)
{
    char text[128];

    f->shard = zinf_move_view(l, fetch_unit(l, f), fetch_layer(l, f), fetch_name(l, f, text),
                              f->staged, ZINF_TIER_DEVICE, zinf_absent);
}

/* Elements of a unit and the padding behind them. */
static uint64_t padded_elems(const zinf_lowering *l, uint32_t unit)
{
    const zinf_unit *u = &l->b->plan->units[unit];

    return u->shard_elems * (u->owner == ZINF_NONE ? l->d->ranks : 1);
}

/* A whole unit on the device, to be gathered from all shards or to be scattered to them. */
static zinf_view whole_unit(zinf_lowering *l, uint32_t unit, zinf_dtype dtype, uint32_t value)
{
    zinf_view view = zinf_new_view(l, ZINF_TIER_DEVICE, ZINF_BILL_WORKING, dtype, 1,
                                   padded_elems(l, unit), NULL);

    view.value = value;
    return view;
}

/* every rank's shard, or the owner's whole -> device */
static void fetch_gather(zinf_lowering *l, zinf_fetch *f)
{
    char text[128];

    f->ready = f->shard;
    if (f->unit == ZINF_NONE || l->d->ranks == 1)
        return;
    const zinf_unit *unit = &l->b->plan->units[f->unit];
    const uint64_t n = unit->n_elems;
    const bool owned = unit->owner != ZINF_NONE;
    zinf_view whole = whole_unit(l, f->unit, l->act, unit->whole_param);
    zinf_build_instr(l->b, owned ? ZINF_OP_BROADCAST : ZINF_OP_ALLGATHER, ZINF_QUEUE_COLLECTIVE, 0,
                     fetch_layer(l, f), f->unit,
                     zinf_build_string(l->b, "%s", fetch_name(l, f, text)),
                     (uint64_t[4]){owned ? unit->owner : 0}, (zinf_view[]){f->shard, whole}, 2);
    f->ready = zinf_slice(whole, 0, 1, n, n);
}

/* A boundary cannot be fetched before the stage that stores it. */
static bool available(const zinf_lowering *l, const zinf_fetch *f)
{
    return f->unit != ZINF_NONE || l->boundaries[f->boundary].kept.buffer != ZINF_NONE;
}

/* Where it is used already; else a copy on `tier`. unit: whose gradient, or ZINF_NONE. */
static void keep(zinf_lowering *l, uint32_t index, zinf_tier tier, uint32_t unit, int32_t layer,
                 zinf_view x)
{
    zinf_boundary *kept = &l->boundaries[index];
    char text[128];

    *kept = (zinf_boundary){.kept = x, .here = x, .layer = layer, .unit = unit};
    if (tier == ZINF_TIER_DEVICE)
        return;
    kept->kept = zinf_view_like(l, tier, x);
    boundary_name(l, index, text);
    zinf_move_view(l, unit, layer, text, x, tier, kept->kept);
}

/* The bill counts inputs: all alive at the turn from forward to backward, gradients never are. */
void zinf_keep_boundary(zinf_lowering *l, uint32_t layer, bool gradient, zinf_view x)
{
    const uint32_t index = boundary_index(l, layer, gradient);

    keep(l, index, l->d->tier[ZINF_CLASS_CHECKPOINT], ZINF_NONE, (int32_t)layer, x);
    const uint32_t buffer = l->boundaries[index].kept.buffer;
    if (buffer != ZINF_NONE && !gradient)
        l->b->buffers[buffer].item = ZINF_BILL_CHECKPOINT;
}

/* ---- gradients ---- */

static bool is_last(const zinf_lowering *l) /* micro-batch of the step */
{
    return l->micro + 1 == l->d->accumulation;
}

/* Of a micro-batch. After the last one's a gradient may be used as soon as it is complete: not
 * before, since the guard against what is not finite (CLIP) looks at the loss too, and all that
 * is computed from here on comes after it. */
void zinf_loss_was_added(zinf_lowering *l)
{
    if (!is_last(l) || l->d->optimizer_time != ZINF_IN_BACKWARD)
        return;
    zinf_sum_scalars(l, ZINF_SCALAR_LOSS, 1, "loss");
    l->updating = true;
}

/* Where backward writes a unit's gradient: straight into its region the first time if compute
 * can reach that, else into a temporary on the device. A later gradient is never summed by the
 * GEMM that makes it but added by ACCUMULATE, so that the sum is the same wherever the region
 * lives. */
zinf_view zinf_grad_target(zinf_lowering *l, uint32_t unit, bool second_use)
{
    const uint64_t n = l->b->plan->units[unit].n_elems;
    zinf_view view;

    if (l->d->ranks > 1) {
        view = zinf_slice(whole_unit(l, unit, ZINF_F32, l->b->plan->units[unit].whole_grad), 0, 1,
                          n, n);
    } else if (l->d->tier[ZINF_CLASS_GRAD] == ZINF_TIER_DEVICE && l->micro == 0 && !second_use) {
        view = zinf_grad_region(l, unit);
    } else {
        view = zinf_new_view(l, ZINF_TIER_DEVICE, ZINF_BILL_WORKING, ZINF_F32, 1, n, NULL);
        view.value = l->b->plan->units[unit].grad.value;
    }
    if (l->micro == 0)
        l->sums[unit] = view;
    return view;
}

static void add_gradient(zinf_lowering *l, uint32_t unit, zinf_queue queue, const char *text,
                         zinf_view grad, zinf_view sum)
{
    zinf_build_instr(l->b, ZINF_OP_ACCUMULATE, queue, 0, l->b->plan->units[unit].layer, unit,
                     zinf_build_string(l->b, "%s", text), NULL, (zinf_view[]){grad, sum}, 2);
}

/* This rank's shard of the sum of all ranks' gradients, or the owner's whole: straight into its
 * region if it may. */
static zinf_view scatter_grad(zinf_lowering *l, uint32_t unit, zinf_view grad, bool to_region,
                              const char *text)
{
    const zinf_unit *u = &l->b->plan->units[unit];
    const bool owned = u->owner != ZINF_NONE;
    const uint64_t n = u->n_elems, shard = u->shard_elems, padded = padded_elems(l, unit);
    const int32_t layer = u->layer;
    const uint32_t value = u->grad.value;
    zinf_view sum = to_region ? zinf_grad_region(l, unit)
                              : zinf_new_view(l, ZINF_TIER_DEVICE, ZINF_BILL_WORKING, ZINF_F32, 1,
                                              shard, NULL);

    sum.value = value;
    if (padded > n)
        zinf_build_instr(l->b, ZINF_OP_ZERO, ZINF_QUEUE_COMPUTE, 0, layer, unit,
                         zinf_build_string(l->b, "%s padding", text), NULL,
                         (zinf_view[]){zinf_slice(grad, n, 1, padded - n, padded - n)}, 1);
    zinf_build_instr(l->b, owned ? ZINF_OP_REDUCE : ZINF_OP_REDUCE_SCATTER, ZINF_QUEUE_COLLECTIVE,
                     0, layer, unit, zinf_build_string(l->b, "%s", text),
                     (uint64_t[4]){owned ? u->owner : 0},
                     (zinf_view[]){zinf_slice(grad, 0, 1, padded, padded), sum}, 2);
    return sum;
}

/* Vertical order: adds a gradient to the sum of the micro-batches so far; true if that is whole. Of
 * a unit that is head and embedding what the head adds is kept until the embedding has its own, so
 * that the sum has the order that it has in horizontal order. */
static bool add_in_turn(zinf_lowering *l, uint32_t unit, const char *text, zinf_view grad,
                        bool second_use, bool last_use)
{
    if (!last_use) {
        keep(l, head_grad_index(l, unit), l->d->tier[ZINF_CLASS_GRAD], unit, -1, grad);
        return false;
    }
    if (second_use) {
        const zinf_view head = l->boundaries[head_grad_index(l, unit)].here;
        if (l->micro == 0)
            l->sums[unit] = head;
        else
            add_gradient(l, unit, ZINF_QUEUE_COMPUTE, text, head, l->sums[unit]);
    }
    if (second_use || l->micro > 0)
        add_gradient(l, unit, ZINF_QUEUE_COMPUTE, text, grad, l->sums[unit]);
    return is_last(l);
}

/* Adds a finished gradient to the accumulator on its tier; in vertical order, to the sum on the
 * device, which goes there after the last micro-batch. last_use: no other operator adds to this
 * unit in this micro-batch, so its norm can be taken (of the sum so far: the last micro-batch's
 * value is the one that counts). */
void zinf_store_grad(zinf_lowering *l, uint32_t unit, zinf_view grad, bool second_use,
                     bool last_use)
{
    const zinf_tier tier = l->d->tier[ZINF_CLASS_GRAD];
    const zinf_tier at = tier == ZINF_TIER_DEVICE ? ZINF_TIER_DEVICE : l->host; /* summed here */
    const int32_t layer = l->b->plan->units[unit].layer;
    const bool first = l->vertical || (l->micro == 0 && !second_use); /* the region is empty */
    zinf_view region = zinf_grad_region(l, unit), sum;
    char text[128];

    snprintf(text, sizeof text, "%s grad", l->b->plan->units[unit].name);
    if (l->vertical) {
        if (!add_in_turn(l, unit, text, grad, second_use, last_use))
            return;
        grad = l->sums[unit];
    }
    if (l->d->ranks > 1)
        grad = scatter_grad(l, unit, grad, first && tier == ZINF_TIER_DEVICE, text);
    grad = zinf_slice(grad, 0, 1, region.cols, region.cols);
    if (first) {
        sum = grad.buffer == region.buffer
                  ? region
                  : zinf_move_view(l, unit, layer, text, grad, at,
                                   tier == at ? region : zinf_absent);
    } else {
        grad = zinf_move_view(l, unit, layer, text, grad, at, zinf_absent);
        sum = zinf_move_view(l, unit, layer, text, region, at, zinf_absent);
        add_gradient(l, unit, zinf_work_queue(l, ZINF_CLASS_GRAD), text, grad, sum);
    }
    if (last_use)
        zinf_build_instr(l->b, ZINF_OP_SUM_OF_SQUARES, zinf_work_queue(l, ZINF_CLASS_GRAD), 0,
                         layer, unit,
                         zinf_build_string(l->b, "%s norm", l->b->plan->units[unit].name), NULL,
                         (zinf_view[]){sum, zinf_scalars(l, ZINF_SCALAR_PARTIALS + unit, 1)}, 2);
    const bool brought = l->update[unit].chunk.buffer != ZINF_NONE; /* while backward goes on */
    if (last_use && (l->updating || (brought && is_last(l)))) {
        zinf_begin_update(l, unit, sum); /* the region is not needed any more */
        if (l->updating)
            zinf_finish_updates(l, l->d->prefetch_read, zinf_absent);
    } else if (tier != at) {
        zinf_copy_view(l, unit, layer, text, sum, region);
    }
}

/* ---- walking ---- */

void zinf_add_stage(zinf_lowering *l, zinf_stage stage)
{
    stage.micro = l->micro;
    if (zinf_grow(l->b, &l->stages, l->n_stages, &l->cap_stages, sizeof *l->stages))
        l->stages[l->n_stages++] = stage;
}

static void enter_micro_batch(zinf_lowering *l, uint32_t micro)
{
    l->micro = micro;
    l->tokens = zinf_slice(l->step_tokens, micro * l->batch * (l->seq + 1), l->batch, l->seq + 1,
                           l->seq + 1);
}

/* Emits all stages; transfers of stage k + distance come before the instructions of stage k. */
static void emit_stages(zinf_lowering *l)
{
    const uint32_t gather = l->d->ranks > 1 ? l->d->prefetch_gather : 0;
    const uint32_t upload = l->d->prefetch_upload > gather ? l->d->prefetch_upload : gather;
    const uint32_t read = l->d->prefetch_read > upload ? l->d->prefetch_read : upload;
    uint32_t next_read = 0, next_upload = 0, next_gather = 0, next_active = 0;

    for (uint32_t k = 0; k < l->n_stages && l->b->err->status == ZINF_OK; k++) {
        if (l->pending)
            zinf_update_ahead(l, k + read);
        for (uint32_t u = 0; k == l->bring && u < zinf_unit_of_small(l->model, l->d, 0); u++)
            zinf_bring_states(l, u);
        while (next_read < l->n_fetches && l->fetches[next_read].stage <= k + read &&
               available(l, &l->fetches[next_read]))
            fetch_read(l, &l->fetches[next_read++]);
        while (next_upload < next_read && l->fetches[next_upload].stage <= k + upload)
            fetch_upload(l, &l->fetches[next_upload++]);
        while (next_gather < next_upload && l->fetches[next_gather].stage <= k + gather)
            fetch_gather(l, &l->fetches[next_gather++]);
        for (; next_active < next_gather && l->fetches[next_active].stage <= k; next_active++) {
            const zinf_fetch *f = &l->fetches[next_active];
            if (f->unit == ZINF_NONE)
                l->boundaries[f->boundary].here = f->ready;
            else
                l->unit_fetch[f->unit] = next_active;
        }
        if (l->vertical)
            enter_micro_batch(l, l->stages[k].micro);
        zinf_emit_stage(l, &l->stages[k]);
    }
    l->n_stages = l->n_fetches = 0;
    l->bring = ZINF_NONE;
}

static void begin_micro_batch(zinf_lowering *l, bool training, uint64_t batch, uint32_t micro)
{
    const uint64_t n_micro = l->vertical ? l->d->accumulation : 1;

    l->training = training;
    l->batch = batch;
    l->n_tokens = batch * l->seq;
    l->micro = micro;
    for (uint64_t i = 0; i < n_micro * l->n_boundaries; i++)
        l->boundaries[i].kept = zinf_absent;
    for (uint32_t u = 0; u < l->b->plan->n_units; u++)
        l->unit_fetch[u] = ZINF_NONE;
}

/* Tokens of `sequences` sequences, brought to the host once. */
static zinf_view emit_batch(zinf_lowering *l, uint64_t sequences)
{
    zinf_view tokens = zinf_new_view(l, l->host, ZINF_BILL_WORKING, ZINF_I32, sequences,
                                     l->seq + 1, "tokens");

    zinf_build_instr(l->b, ZINF_OP_BATCH, ZINF_QUEUE_UPDATE, 0, -1, ZINF_NONE,
                     zinf_build_string(l->b, "tokens"), NULL, &tokens, 1);
    return tokens;
}

/* The tokens of micro-batch `first` + i of iteration i, on the device. */
static void select_tokens(zinf_lowering *l, zinf_view tokens, uint64_t first, bool loop)
{
    uint64_t bytes = l->batch * (l->seq + 1) * 4;
    zinf_view mine = zinf_slice(tokens, first * l->batch * (l->seq + 1), l->batch, l->seq + 1,
                                l->seq + 1);

    mine.stride = loop ? bytes : 0;
    if (l->host == ZINF_TIER_HOST) {
        zinf_view dst = zinf_new_view(l, ZINF_TIER_DEVICE, ZINF_BILL_WORKING, ZINF_I32, l->batch,
                                      l->seq + 1, NULL);
        dst.value = tokens.value;
        zinf_copy_view(l, ZINF_NONE, -1, "tokens", mine, dst);
        mine = dst;
    }
    l->tokens = mine;
}

/* ---- programs ---- */

/* `count` micro-batches that are alike, the first of them number `number` of the step. */
static void lower_micro_batches(zinf_lowering *l, uint32_t number, uint64_t count)
{
    const uint32_t first = l->b->plan->n_instrs;

    begin_micro_batch(l, true, l->d->micro_batch, number);
    if (number == 0)
        l->step_tokens = emit_batch(l, l->d->accumulation * l->batch);
    select_tokens(l, l->step_tokens, number, count > 1);
    l->pending = number == 0 && l->d->optimizer_time == ZINF_IN_FORWARD;
    zinf_stages_train(l);
    emit_stages(l);
    l->pending = false;
    zinf_build_segment(l->b, first, count);
}

static void lower_vertical(zinf_lowering *l)
{
    const uint32_t first = l->b->plan->n_instrs;

    l->vertical = true;
    begin_micro_batch(l, true, l->d->micro_batch, 0);
    l->step_tokens = zinf_move_view(l, ZINF_NONE, -1, "tokens",
                                    emit_batch(l, l->d->accumulation * l->batch), ZINF_TIER_DEVICE,
                                    zinf_absent);
    l->pending = l->d->optimizer_time == ZINF_IN_FORWARD;
    zinf_stages_vertical(l);
    emit_stages(l);
    l->pending = false;
    l->phase = 0;
    l->vertical = false;
    zinf_build_segment(l->b, first, 1);
}

static void lower_horizontal(zinf_lowering *l)
{
    const uint32_t later = l->d->accumulation - 1;
    const bool peeled = later > 0 && l->d->optimizer_time == ZINF_IN_BACKWARD;

    lower_micro_batches(l, 0, 1);
    if (later > peeled)
        lower_micro_batches(l, 1, later - peeled);
    if (peeled) /* the last one updates */
        lower_micro_batches(l, later, 1);
}

static void lower_step(zinf_lowering *l)
{
    if (l->d->order == ZINF_VERTICAL && l->d->accumulation > 1) /* else they are the same */
        lower_vertical(l);
    else
        lower_horizontal(l);
    uint32_t first = l->b->plan->n_instrs;
    zinf_lower_update(l);
    zinf_build_segment(l->b, first, 1);
    l->updating = false;
}

static void lower_forward(zinf_lowering *l, bool sample)
{
    uint32_t first = l->b->plan->n_instrs;

    begin_micro_batch(l, false, sample ? 1 : l->d->micro_batch, 0);
    select_tokens(l, emit_batch(l, l->batch), 0, false);
    zinf_stages_forward(l, sample);
    emit_stages(l);
    if (!sample)
        zinf_sum_scalars(l, ZINF_SCALAR_LOSS, 1, "loss");
    zinf_build_segment(l->b, first, 1);
}

uint64_t zinf_classifier_chunk(const zinf_model *model, const zinf_cluster *cluster,
                               const zinf_decisions *d, uint64_t tokens)
{
    /* Logits in fp32 and their gradient may take a sixteenth of the device. A chunk reads the
     * weight twice and its fp32 gradient once, and writes that: 12 bytes (16 in fp32) for
     * 6 * chunk FLOP. Chunks in which that takes a sixteenth of the time are long enough. The
     * weight's gradient goes on from chunk to chunk, with the bits of one call where they are cut
     * at multiples of 32 (kernels/kernels.h), at every level but ref: so no bit depends on the
     * machine's rates or memory here. */
    enum { STEP = 32 };
    const uint64_t act = zinf_dtype_bytes(model->precision);
    const uint64_t most = cluster->device.memory_bytes / 16;
    const uint64_t rows = (model->vocab + d->tiles[ZINF_LINEAR_VOCAB] - 1) /
                          d->tiles[ZINF_LINEAR_VOCAB];
    const double enough = 16 * (double)(8 + 2 * act) / 6 *
                          zinf_device_peak(cluster, model->precision) / cluster->device.bandwidth;
    uint64_t chunk = most / (zinf_scores_ld(rows) * (4 + act)) / STEP * STEP;

    if ((double)chunk > enough)
        chunk = ((uint64_t)enough + STEP - 1) / STEP * STEP;
    if (chunk < STEP)
        chunk = STEP;
    if (chunk >= tokens)
        return tokens;
    const uint64_t n = (tokens + chunk - 1) / chunk; /* of equal size */
    return ((tokens + n - 1) / n + STEP - 1) / STEP * STEP;
}

void zinf_lower(zinf_builder *b, const zinf_model *model, const zinf_cluster *cluster,
                const zinf_decisions *d, bool ahead,
                uint32_t ret_program_buffers[ZINF_N_PROGRAMS + 1])
{
    const uint32_t n_units = b->plan->n_units;
    zinf_lowering l = {.b = b, .ahead = ahead, .model = model, .cluster = cluster, .d = d,
                       .act = model->precision, .seq = model->sequence,
                       .host = cluster->unified ? ZINF_TIER_DEVICE : ZINF_TIER_HOST};
    const uint64_t n_micro = d->order == ZINF_VERTICAL ? d->accumulation : 1;
    const uint64_t n_heads = model->tied_embeddings ? d->tiles[ZINF_LINEAR_VOCAB] : 0;
    const uint64_t n_boundaries = n_micro * (2 * (model->layers + 1) + n_heads);

    /* each group has more instructions than its boundaries of a micro-batch */
    if (n_micro > 1 && n_boundaries / d->checkpoint_interval > ZINF_MOST_INSTRS) {
        zinf_build_too_long(b);
        return;
    }
    l.n_boundaries = (uint32_t)(n_boundaries / n_micro);
    l.acts = calloc(model->layers + 1, sizeof *l.acts);
    l.boundaries = calloc(n_boundaries, sizeof *l.boundaries);
    l.fetched_in = calloc(n_units + 1, sizeof *l.fetched_in);
    l.sums = calloc(n_units + 1, sizeof *l.sums);
    l.unit_fetch = calloc(n_units + 1, sizeof *l.unit_fetch);
    l.update = calloc(n_units + 1, sizeof *l.update);
    l.begun = calloc(n_units + 1, sizeof *l.begun);
    if (!l.acts || !l.boundaries || !l.fetched_in || !l.sums || !l.unit_fetch || !l.update ||
        !l.begun)
        zinf_fail(b->err, ZINF_MACHINE, "out of memory while lowering the plan");
    l.bring = ZINF_NONE;
    l.scalar_value = b->plan->n_values;
    zinf_build_value(b, zinf_build_string(b, "loss"));
    zinf_build_value(b, zinf_build_string(b, "norm, clip factor, skip"));
    zinf_build_value(b, zinf_build_string(b, "sums of squares"));
    if (d->ranks > 1) {
        zinf_build_value(b, zinf_build_string(b, "loss, all ranks"));
        zinf_build_value(b, zinf_build_string(b, "sums of squares, all ranks"));
    }
    l.scalar_buffer = zinf_build_buffer(b, ZINF_TIER_SCALAR,
                                        8 * ((uint64_t)ZINF_SCALAR_PARTIALS + n_units),
                                        ZINF_BILL_WORKING, true);
    for (uint32_t p = 0; p < ZINF_N_PROGRAMS && b->err->status == ZINF_OK; p++) {
        ret_program_buffers[p] = b->n_buffers;
        b->plan->programs[p].first_segment = b->plan->n_segments;
        zinf_forget_updates(&l);
        switch ((zinf_program_kind)p) {
        case ZINF_PROGRAM_INIT:
            zinf_lower_fill(&l, ZINF_OP_INIT);
            break;
        case ZINF_PROGRAM_LOAD:
            zinf_lower_fill(&l, ZINF_OP_IMPORT);
            break;
        case ZINF_PROGRAM_SAVE:
            zinf_lower_save(&l);
            break;
        case ZINF_PROGRAM_STEP:
            lower_step(&l);
            break;
        case ZINF_PROGRAM_EVAL:
            lower_forward(&l, false);
            break;
        case ZINF_PROGRAM_SAMPLE:
            lower_forward(&l, true);
            break;
        default: /* FLUSH */
            zinf_lower_flush(&l);
            break;
        }
        b->plan->programs[p].n_segments =
            b->plan->n_segments - b->plan->programs[p].first_segment;
    }
    ret_program_buffers[ZINF_N_PROGRAMS] = b->n_buffers;
    free(l.acts);
    free(l.boundaries);
    free(l.fetched_in);
    free(l.sums);
    free(l.unit_fetch);
    free(l.update);
    free(l.begun);
    free(l.dues);
    free(l.fetches);
    free(l.stages);
}
