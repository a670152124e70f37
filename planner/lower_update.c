/* planner/lower_update.c - the updates of a step, wherever in it they are; and what fills, flushes
 * and saves the states that they work on. The rest of lowering is lower.c's.
 */
#include "planner/lower_internal.h"

/* The queue that works on a class of states: compute if they live on the device, else update, so
 * that compute does not wait for what is brought from another tier. */
zinf_queue zinf_work_queue(const zinf_lowering *l, zinf_class state_class)
{
    return l->d->tier[state_class] == ZINF_TIER_DEVICE ? ZINF_QUEUE_COMPUTE : ZINF_QUEUE_UPDATE;
}

/* Values of the loss and of the sums of squares once they are those of all ranks. */
static uint32_t sum_of_ranks(const zinf_lowering *l, uint64_t slot)
{
    return l->scalar_value + (slot == ZINF_SCALAR_LOSS ? 3 : 4);
}

/* n scalars from `slot` become their sums over ranks, in place. */
void zinf_sum_scalars(zinf_lowering *l, uint64_t slot, uint64_t n, const char *name)
{
    zinf_view mine = zinf_scalars(l, slot, n), all = mine;

    if (l->d->ranks == 1)
        return;
    all.value = sum_of_ranks(l, slot);
    zinf_build_instr(l->b, ZINF_OP_ALLREDUCE, ZINF_QUEUE_COLLECTIVE, 0, -1, ZINF_NONE,
                     zinf_build_string(l->b, "%s", name), NULL, (zinf_view[]){mine, all}, 2);
}

/* master, m and v as operands; chunk is a whole optimizer region or a copy of one. */
static void split_chunk(const zinf_lowering *l, uint32_t unit, zinf_view chunk, zinf_view *ret)
{
    const zinf_unit *u = &l->b->plan->units[unit];

    for (int i = 0; i < 3; i++)
        ret[i] = zinf_slice(chunk, (uint64_t)i * u->array_stride / 4, 1, u->shard_elems,
                            u->shard_elems);
}

/* Where updates work: with the states if they live on the device, else on the host. */
static zinf_tier update_tier(const zinf_lowering *l)
{
    return l->d->tier[ZINF_CLASS_OPTIMIZER] == ZINF_TIER_DEVICE ? ZINF_TIER_DEVICE : l->host;
}

static zinf_view update_scalars(const zinf_lowering *l)
{
    return zinf_scalars(l, ZINF_SCALAR_NORM, ZINF_N_UPDATE_SCALARS);
}

/* Norm and clip factor of units [first, first + n), whose sums of squares are those of all ranks;
 * for updates that follow in the same queue. */
static zinf_view norm_of_units(zinf_lowering *l, uint32_t first, uint32_t n)
{
    zinf_view clip[2] = {zinf_scalars(l, ZINF_SCALAR_PARTIALS + first, n),
                         update_scalars(l)};

    if (l->d->ranks > 1)
        clip[0].value = sum_of_ranks(l, ZINF_SCALAR_PARTIALS);
    zinf_build_instr(l->b, ZINF_OP_CLIP, zinf_work_queue(l, ZINF_CLASS_OPTIMIZER), 0, -1, ZINF_NONE,
                     zinf_build_string(l->b, n == 1 ? "norm" : "global norm"), NULL, clip, 2);
    return clip[1];
}

/* Brings a unit's states to where it is updated. */
void zinf_bring_states(zinf_lowering *l, uint32_t unit)
{
    char text[128];

    snprintf(text, sizeof text, "%s optimizer", l->b->plan->units[unit].name);
    l->update[unit].chunk = zinf_move_view(l, unit, l->b->plan->units[unit].layer, text,
                                           zinf_optimizer_region(l, unit), update_tier(l),
                                           zinf_absent);
}

/* And its gradient. */
void zinf_begin_update(zinf_lowering *l, uint32_t unit, zinf_view grad)
{
    char text[128];

    snprintf(text, sizeof text, "%s grad", l->b->plan->units[unit].name);
    l->update[unit].grad = zinf_move_view(l, unit, l->b->plan->units[unit].layer, text, grad,
                                          update_tier(l), zinf_absent);
    if (l->update[unit].chunk.buffer == ZINF_NONE)
        zinf_bring_states(l, unit);
    l->update[unit].begun = true;
    l->begun[l->n_begun++] = unit;
}

static void finish_update(zinf_lowering *l, uint32_t unit, zinf_view clip)
{
    const zinf_unit *u = &l->b->plan->units[unit];
    const int32_t layer = u->layer;
    const zinf_tier at = update_tier(l);
    zinf_view region = zinf_param_region(l, unit), home = zinf_optimizer_region(l, unit);
    zinf_view param = zinf_view_tier(l, region) == at ? region : zinf_view_like(l, at, region);
    zinf_view views[6] = {l->update[unit].grad, zinf_absent, zinf_absent, zinf_absent, param,
                          clip};
    char text[128];

    split_chunk(l, unit, l->update[unit].chunk, &views[1]);
    zinf_build_instr(l->b, ZINF_OP_ADAM, zinf_work_queue(l, ZINF_CLASS_OPTIMIZER), 0, layer, unit,
                     zinf_build_string(l->b, "%s adam", u->name), (uint64_t[4]){u->decays}, views,
                     6);
    snprintf(text, sizeof text, "%s optimizer", u->name);
    if (zinf_view_tier(l, home) != at)
        zinf_copy_view(l, unit, layer, text, l->update[unit].chunk, home);
    snprintf(text, sizeof text, "%s param", u->name);
    if (param.buffer != region.buffer)
        zinf_move_view(l, unit, layer, text, param, zinf_view_tier(l, region), region);
    l->update[unit].chunk = zinf_absent;
    if (l->update[unit].due)
        l->update[unit].fresh = param;
}

/* Finishes updates, oldest first, until `most` are under way. clip: of all units; or absent, and
 * each goes by its own norm. */
void zinf_finish_updates(zinf_lowering *l, uint32_t most, zinf_view clip)
{
    for (; l->n_begun - l->n_updated > most && l->b->err->status == ZINF_OK; l->n_updated++) {
        const uint32_t unit = l->begun[l->n_updated];
        zinf_view own = clip;
        if (clip.buffer == ZINF_NONE) {
            zinf_sum_scalars(l, ZINF_SCALAR_PARTIALS + unit, 1, "sum of squares");
            own = norm_of_units(l, unit, 1);
        }
        finish_update(l, unit, own);
    }
}

/* Updates of the step before: those of units that `stage` is the first to use are finished, those
 * of the stages behind it begun. */
void zinf_update_ahead(zinf_lowering *l, uint32_t stage)
{
    uint32_t n = l->n_updated;

    while (l->n_begun < l->n_dues && l->b->err->status == ZINF_OK &&
           l->dues[l->n_begun].stage <= stage + l->d->prefetch_read) {
        const uint32_t unit = l->dues[l->n_begun].unit;
        zinf_begin_update(l, unit, zinf_grad_region(l, unit));
    }
    while (n < l->n_begun && n < l->n_dues && l->dues[n].stage <= stage)
        n++;
    zinf_finish_updates(l, l->n_begun - n, update_scalars(l));
}

/* All that are not under way, or done, yet. A step that begins with updates has done these. */
static void update_units(zinf_lowering *l, zinf_view clip)
{
    for (uint32_t u = 0; u < l->b->plan->n_units && l->b->err->status == ZINF_OK; u++)
        if (!l->update[u].begun) {
            zinf_begin_update(l, u, zinf_grad_region(l, u));
            zinf_finish_updates(l, l->d->prefetch_read, clip);
        }
    zinf_finish_updates(l, 0, clip);
}

void zinf_forget_updates(zinf_lowering *l)
{
    for (uint32_t u = 0; u < l->b->plan->n_units; u++)
        l->update[u] = (zinf_update_unit){.chunk = zinf_absent, .fresh = zinf_absent};
    l->n_begun = l->n_updated = l->n_dues = 0;
}

/* What was updated neither inside backward nor in the forward before: of the former what is under
 * way and what had its gradient before the loss was known. The norm is that of all units in any
 * case. */
void zinf_lower_update(zinf_lowering *l)
{
    const uint32_t n = l->b->plan->n_units;

    if (l->updating) {
        zinf_finish_updates(l, 0, zinf_absent);
        for (uint32_t u = 0; u < n; u++)
            if (!l->update[u].begun)
                zinf_sum_scalars(l, ZINF_SCALAR_PARTIALS + u, 1, "sum of squares");
    } else {
        /* CLIP looks at the loss too: the sums of squares come after it in their queue */
        zinf_sum_scalars(l, ZINF_SCALAR_LOSS, 1, "loss");
        zinf_sum_scalars(l, ZINF_SCALAR_PARTIALS, n, "sums of squares");
    }
    zinf_view clip = norm_of_units(l, 0, n);
    update_units(l, clip);
}

/* ---- programs of states ---- */

/* From here on there is nothing to update from. */
static void end_updates(zinf_lowering *l, zinf_queue queue)
{
    const zinf_view scalars = update_scalars(l);

    zinf_build_instr(l->b, ZINF_OP_ZERO, queue, 0, -1, ZINF_NONE,
                     zinf_build_string(l->b, "nothing to update from"), NULL, &scalars, 1);
}

void zinf_lower_flush(zinf_lowering *l)
{
    const uint32_t first = l->b->plan->n_instrs;

    if (l->d->optimizer_time != ZINF_IN_FORWARD)
        return;
    for (uint32_t u = 0; u < l->b->plan->n_units; u++)
        l->update[u].begun = !l->b->plan->units[u].late;
    update_units(l, update_scalars(l));
    end_updates(l, zinf_work_queue(l, ZINF_CLASS_OPTIMIZER));
    zinf_build_segment(l->b, first, 1);
}

/* The region itself if it is there, else a buffer like it. */
static zinf_view on_host(zinf_lowering *l, zinf_view region)
{
    return zinf_view_tier(l, region) == l->host ? region : zinf_view_like(l, l->host, region);
}

/* STEP begins with reading it, whatever it is then worth. */
static void fill_gradient(zinf_lowering *l, uint32_t unit)
{
    const zinf_view region = zinf_grad_region(l, unit);
    const bool device = zinf_view_tier(l, region) == ZINF_TIER_DEVICE;
    const zinf_view zeros = device ? region : on_host(l, region);
    char text[128];

    snprintf(text, sizeof text, "%s grad", l->b->plan->units[unit].name);
    zinf_build_instr(l->b, ZINF_OP_ZERO, device ? ZINF_QUEUE_COMPUTE : ZINF_QUEUE_UPDATE, 0,
                     l->b->plan->units[unit].layer, unit, zinf_build_string(l->b, "%s", text),
                     NULL, &zeros, 1);
    if (zeros.buffer != region.buffer)
        zinf_copy_view(l, unit, l->b->plan->units[unit].layer, text, zeros, region);
}

/* INIT and LOAD: each unit's state is made on the host and goes straight to its tier. */
void zinf_lower_fill(zinf_lowering *l, zinf_opcode opcode)
{
    uint32_t first = l->b->plan->n_instrs;

    for (uint32_t u = 0; u < l->b->plan->n_units && l->b->err->status == ZINF_OK; u++) {
        const int32_t layer = l->b->plan->units[u].layer;
        char text[128];
        zinf_view home = zinf_optimizer_region(l, u), region = zinf_param_region(l, u);
        zinf_view chunk = on_host(l, home), param = on_host(l, region);
        zinf_view arrays[3];
        split_chunk(l, u, chunk, arrays);
        zinf_build_instr(l->b, opcode, ZINF_QUEUE_UPDATE, 0, layer, u,
                         zinf_build_string(l->b, "%s", l->b->plan->units[u].name), NULL, arrays,
                         3);
        zinf_build_instr(l->b, ZINF_OP_CONVERT, ZINF_QUEUE_UPDATE, 0, layer, u,
                         zinf_build_string(l->b, "%s param", l->b->plan->units[u].name), NULL,
                         (zinf_view[]){arrays[0], param}, 2);
        snprintf(text, sizeof text, "%s optimizer", l->b->plan->units[u].name);
        if (chunk.buffer != home.buffer)
            zinf_move_view(l, u, layer, text, chunk, zinf_view_tier(l, home), home);
        snprintf(text, sizeof text, "%s param", l->b->plan->units[u].name);
        if (param.buffer != region.buffer)
            zinf_move_view(l, u, layer, text, param, zinf_view_tier(l, region), region);
        if (l->b->plan->units[u].late)
            fill_gradient(l, u);
    }
    if (l->d->optimizer_time == ZINF_IN_FORWARD)
        end_updates(l, ZINF_QUEUE_UPDATE);
    zinf_build_segment(l->b, first, 1);
}

void zinf_lower_save(zinf_lowering *l)
{
    uint32_t first = l->b->plan->n_instrs, next = 0;

    for (uint32_t u = 0; u < l->b->plan->n_units && l->b->err->status == ZINF_OK; u++) {
        char text[128];
        zinf_view arrays[3];
        for (; next < l->b->plan->n_units && next <= u + 1; next++) {
            snprintf(text, sizeof text, "%s optimizer", l->b->plan->units[next].name);
            l->update[next].chunk = zinf_move_view(l, next, l->b->plan->units[next].layer, text,
                                                   zinf_optimizer_region(l, next), l->host,
                                                   zinf_absent);
        }
        split_chunk(l, u, l->update[u].chunk, arrays);
        zinf_build_instr(l->b, ZINF_OP_EXPORT, ZINF_QUEUE_UPDATE, 0, l->b->plan->units[u].layer,
                         u, zinf_build_string(l->b, "%s", l->b->plan->units[u].name), NULL,
                         arrays, 3);
    }
    zinf_build_segment(l->b, first, 1);
}
