/* planner/model_stages.c - a Transformer as stages: their order in a micro-batch, and the
 * instructions of each. What a family lacks or has instead, its entry in family.c says.
 * Shapes as in runtime/opcodes.h; N tokens, C hidden, F ffn.
 */
#include "kernels/kernels.h"
#include "planner/lower_internal.h"

/* ---- order ---- */

static void stage(zinf_lowering *l, zinf_stage_kind kind, uint64_t layer)
{
    zinf_add_stage(l, (zinf_stage){.kind = kind, .layer = (uint32_t)layer});
}

/* The token embedding's tiles, or those of the classifier. */
static void vocab_stages(zinf_lowering *l, zinf_stage_kind kind)
{
    for (uint32_t t = 0; t < l->d->tiles[ZINF_LINEAR_VOCAB] && l->b->err->status == ZINF_OK; t++) {
        zinf_need_unit(l, kind == ZINF_STAGE_EMBED ? t : zinf_unit_of_head(l->model, l->d, t));
        zinf_add_stage(l, (zinf_stage){.kind = kind, .tile = t, .linear = ZINF_LINEAR_VOCAB});
    }
}

static void linear_stages(zinf_lowering *l, zinf_stage_kind kind, uint64_t layer,
                          zinf_linear linear)
{
    for (uint32_t t = 0; t < l->d->tiles[linear] && l->b->err->status == ZINF_OK; t++) {
        zinf_need_unit(l, zinf_unit_of_tile(l->model, l->d, layer, linear, t));
        zinf_add_stage(l, (zinf_stage){.kind = kind, .layer = (uint32_t)layer, .tile = t,
                                       .linear = linear});
    }
}

/* A block's forward; without its last linear where only the activations before it are wanted. */
static void block_forward(zinf_lowering *l, uint64_t layer, bool whole)
{
    zinf_need_unit(l, zinf_unit_of_small(l->model, l->d, layer));
    stage(l, ZINF_STAGE_LN1, layer);
    linear_stages(l, ZINF_STAGE_LINEAR, layer, ZINF_LINEAR_QKV);
    if (!zinf_family_of(l->model)->learned_positions)
        stage(l, ZINF_STAGE_ROPE, layer);
    stage(l, ZINF_STAGE_ATTENTION, layer);
    linear_stages(l, ZINF_STAGE_LINEAR, layer, ZINF_LINEAR_OUT);
    stage(l, ZINF_STAGE_LN2, layer);
    linear_stages(l, ZINF_STAGE_LINEAR, layer, ZINF_LINEAR_FC);
    stage(l, ZINF_STAGE_ACTIVATION, layer);
    if (whole)
        linear_stages(l, ZINF_STAGE_LINEAR, layer, ZINF_LINEAR_PROJ);
}

static void block_backward(zinf_lowering *l, uint64_t layer)
{
    linear_stages(l, ZINF_STAGE_LINEAR_BACKWARD, layer, ZINF_LINEAR_PROJ);
    stage(l, ZINF_STAGE_ACTIVATION_BACKWARD, layer);
    linear_stages(l, ZINF_STAGE_LINEAR_BACKWARD, layer, ZINF_LINEAR_FC);
    stage(l, ZINF_STAGE_LN2_BACKWARD, layer);
    linear_stages(l, ZINF_STAGE_LINEAR_BACKWARD, layer, ZINF_LINEAR_OUT);
    stage(l, ZINF_STAGE_ATTENTION_BACKWARD, layer);
    if (!zinf_family_of(l->model)->learned_positions)
        stage(l, ZINF_STAGE_ROPE_BACKWARD, layer);
    linear_stages(l, ZINF_STAGE_LINEAR_BACKWARD, layer, ZINF_LINEAR_QKV);
    stage(l, ZINF_STAGE_LN1_BACKWARD, layer);
}

/* The input of a block, or its gradient, to where it is kept or back. */
static void boundary_stage(zinf_lowering *l, zinf_stage_kind kind, uint64_t layer, bool gradient)
{
    if (kind == ZINF_STAGE_RESTORE)
        zinf_need_boundary(l, (uint32_t)layer, gradient);
    zinf_add_stage(l, (zinf_stage){.kind = kind, .layer = (uint32_t)layer,
                                   .gradient = gradient});
}

static void embed(zinf_lowering *l)
{
    if (zinf_family_of(l->model)->learned_positions)
        zinf_need_unit(l, zinf_unit_of_position(l->d));
    vocab_stages(l, ZINF_STAGE_EMBED);
}

static void embed_backward(zinf_lowering *l)
{
    for (uint32_t t = 0; t < l->d->tiles[ZINF_LINEAR_VOCAB]; t++) {
        if (l->model->tied_embeddings)
            zinf_need_head_grad(l, t);
        zinf_add_stage(l, (zinf_stage){.kind = ZINF_STAGE_EMBED_BACKWARD, .tile = t,
                                       .linear = ZINF_LINEAR_VOCAB});
    }
    if (zinf_family_of(l->model)->learned_positions)
        stage(l, ZINF_STAGE_POSITION_BACKWARD, 0);
}

static void final_norm_stage(zinf_lowering *l)
{
    zinf_need_unit(l, zinf_unit_of_final_norm(l->model, l->d));
    stage(l, ZINF_STAGE_FINAL_NORM, 0);
}

static void forward(zinf_lowering *l, bool keep)
{
    const uint64_t interval = l->d->checkpoint_interval;

    embed(l);
    for (uint64_t layer = 0; layer < l->model->layers && l->b->err->status == ZINF_OK; layer++) {
        if (keep && interval && layer % interval == 0)
            boundary_stage(l, ZINF_STAGE_KEEP, layer, false);
        block_forward(l, layer, true);
    }
    final_norm_stage(l);
}

void zinf_stages_forward(zinf_lowering *l, bool sample)
{
    forward(l, false);
    vocab_stages(l, sample ? ZINF_STAGE_LOGITS : ZINF_STAGE_CLASSIFIER);
    if (!sample)
        stage(l, ZINF_STAGE_LOSS, 0);
}

/* From the last norm's output to the gradient of its input. */
static void head(zinf_lowering *l)
{
    if (l->d->tiles[ZINF_LINEAR_VOCAB] == 1) {
        zinf_need_unit(l, zinf_unit_of_head(l->model, l->d, 0));
        zinf_add_stage(l, (zinf_stage){.kind = ZINF_STAGE_CLASSIFIER_BACKWARD, .fused = true,
                                       .linear = ZINF_LINEAR_VOCAB});
        stage(l, ZINF_STAGE_LOSS, 0);
    } else {
        vocab_stages(l, ZINF_STAGE_CLASSIFIER);
        stage(l, ZINF_STAGE_LOSS, 0);
        vocab_stages(l, ZINF_STAGE_CLASSIFIER_BACKWARD);
    }
    zinf_need_unit(l, zinf_unit_of_final_norm(l->model, l->d));
    stage(l, ZINF_STAGE_FINAL_NORM_BACKWARD, 0);
}

/* The blocks from `first`, whose input was kept, to `last`, up to where backward can begin. */
static void recompute(zinf_lowering *l, uint64_t first, uint64_t last)
{
    boundary_stage(l, ZINF_STAGE_RESTORE, first, false);
    for (uint64_t layer = first; layer <= last; layer++)
        block_forward(l, layer, layer < last);
}

void zinf_stages_train(zinf_lowering *l)
{
    const uint64_t layers = l->model->layers;
    const uint64_t interval = l->d->checkpoint_interval;

    forward(l, true);
    head(l);
    for (uint64_t layer = layers; layer-- > 0 && l->b->err->status == ZINF_OK;) {
        if (interval && (layer + 1 == layers || (layer + 1) % interval == 0))
            recompute(l, layer / interval * interval, layer);
        if (!interval)
            zinf_need_unit(l, zinf_unit_of_small(l->model, l->d, layer));
        block_backward(l, layer);
    }
    if (l->ahead && l->d->accumulation == 1)
        l->bring = l->n_stages;
    embed_backward(l);
}

/* Each pass of all micro-batches through a group begins and ends at boundaries. */
static void vertical_forward(zinf_lowering *l, uint64_t first, uint64_t end)
{
    if (first == 0) {
        embed(l);
        boundary_stage(l, ZINF_STAGE_KEEP, 0, false);
    } else {
        boundary_stage(l, ZINF_STAGE_RESTORE, first, false);
    }
    for (uint64_t layer = first; layer < end; layer++)
        block_forward(l, layer, true);
    boundary_stage(l, ZINF_STAGE_KEEP, end, false);
}

static void vertical_head(zinf_lowering *l)
{
    boundary_stage(l, ZINF_STAGE_RESTORE, l->model->layers, false);
    final_norm_stage(l);
    head(l);
    boundary_stage(l, ZINF_STAGE_KEEP, l->model->layers, true);
}

static void vertical_backward(zinf_lowering *l, uint64_t first, uint64_t end)
{
    recompute(l, first, end - 1);
    boundary_stage(l, ZINF_STAGE_RESTORE, end, true);
    for (uint64_t layer = end; layer-- > first;)
        block_backward(l, layer);
    if (first)
        boundary_stage(l, ZINF_STAGE_KEEP, first, true);
    else
        embed_backward(l);
}

void zinf_stages_vertical(zinf_lowering *l)
{
    const uint64_t layers = l->model->layers, interval = l->d->checkpoint_interval;
    const uint64_t n_groups = (layers + interval - 1) / interval;
    const uint32_t n_micro = l->d->accumulation;

    for (uint64_t pass = 0; pass < 2 * n_groups + 1; pass++) {
        const bool back = pass > n_groups;
        const uint64_t first = (back ? 2 * n_groups - pass : pass) * interval;
        const uint64_t end = first + interval < layers ? first + interval : layers;
        l->phase++;
        for (l->micro = 0; l->micro < n_micro && l->b->err->status == ZINF_OK; l->micro++) {
            if (l->ahead && pass == 2 * n_groups - 1 && l->micro == 1)
                l->bring = l->n_stages;
            if (back)
                vertical_backward(l, first, end);
            else if (pass < n_groups)
                vertical_forward(l, first, end);
            else
                vertical_head(l);
        }
    }
}

/* ---- instructions ---- */

static void emit(zinf_lowering *l, zinf_opcode opcode, unsigned flags, int32_t layer,
                 uint32_t unit, const uint64_t attr[4], const char *name, const zinf_view *views,
                 uint32_t n)
{
    uint32_t text = layer < 0 ? zinf_build_string(l->b, "%s", name)
                              : zinf_build_string(l->b, "h.%d.%s", (int)layer, name);

    zinf_build_instr(l->b, opcode, ZINF_QUEUE_COMPUTE, flags, layer, unit, text, attr, views, n);
}

#define EMIT(l, opcode, flags, layer, unit, attr, name, ...)                                     \
    emit(l, opcode, flags, layer, unit, attr, name, (const zinf_view[]){__VA_ARGS__},            \
         sizeof((const zinf_view[]){__VA_ARGS__}) / sizeof(zinf_view))

static zinf_view act(zinf_lowering *l, uint64_t cols, const char *name)
{
    return zinf_new_view(l, ZINF_TIER_DEVICE, ZINF_BILL_WORKING, l->act, l->n_tokens, cols, name);
}

static zinf_view act_f32(zinf_lowering *l, uint64_t rows, uint64_t cols, const char *name)
{
    return zinf_new_view(l, ZINF_TIER_DEVICE, ZINF_BILL_WORKING, ZINF_F32, rows, cols, name);
}

/* Scores of a chunk of tokens. Rows begin at whole cache lines, so that a product writes each line
 * at once: with the vocabulary of GPT-2, 50257, it takes half as long as with rows one after the
 * other. */
static zinf_view scores(zinf_lowering *l, zinf_dtype dtype, uint64_t rows, uint64_t cols)
{
    const uint64_t ld = zinf_scores_ld(cols);

    return zinf_slice(zinf_new_view(l, ZINF_TIER_DEVICE, ZINF_BILL_WORKING, dtype, rows, ld, NULL),
                      0, rows, cols, ld);
}

static zinf_view gemm_scratch(zinf_lowering *l, uint64_t m, uint64_t n, uint64_t k)
{
    return zinf_scratch(l, zinf_gemm_scratch_bytes(m, n, k, l->d->n_threads));
}

/* Rows of a vector inside a block's unit of small tensors (parameters or gradients); absent if the
 * family has none. */
static zinf_view small(const zinf_lowering *l, zinf_view unit, int which, uint64_t row,
                       uint64_t rows)
{
    uint64_t at = row;

    if (!zinf_small_rows(l->model, which))
        return zinf_absent;
    for (int i = 0; i < which; i++)
        at += zinf_small_rows(l->model, i);
    return zinf_slice(unit, at, 1, rows, rows);
}

/* A linear's tile [rows][cols] out of the view of its whole unit. */
static zinf_view tile_matrix(const zinf_lowering *l, zinf_view unit, zinf_linear linear)
{
    uint64_t cols = zinf_linear_cols(l->model, linear);

    return zinf_slice(unit, 0, unit.cols / cols, cols, cols);
}

static void emit_embed(zinf_lowering *l, const zinf_stage *s)
{
    const uint64_t hidden = l->model->hidden;
    const uint64_t attr[4] = {zinf_tile_row(l->model->vocab, l->d->tiles[ZINF_LINEAR_VOCAB],
                                            s->tile)};
    zinf_view wte = tile_matrix(l, zinf_unit_view(l, s->tile), ZINF_LINEAR_VOCAB);
    zinf_view wpe = zinf_absent;

    if (zinf_family_of(l->model)->learned_positions)
        wpe = zinf_slice(zinf_unit_view(l, zinf_unit_of_position(l->d)), 0, l->seq, hidden,
                         hidden);
    if (s->tile == 0)
        l->acts[0].x = act(l, hidden, "embedding");
    EMIT(l, ZINF_OP_EMBEDDING_FORWARD, s->tile ? ZINF_FLAG_ACCUMULATE : 0, -1, s->tile, attr,
         "embedding", l->tokens, wte, wpe, l->acts[0].x);
}

/* One norm: where it stands, and its weight and bias (or their gradients). */
typedef struct norm_site {
    int32_t layer; /* -1: the final one */
    uint32_t unit;
    const char *text;
    zinf_view w, b;
} norm_site;

static void norm_forward(zinf_lowering *l, const norm_site *at, zinf_view x, const char *name,
                         zinf_view *ret_y, zinf_view *ret_stats)
{
    const bool layernorm = zinf_family_of(l->model)->layernorm;
    zinf_view y = act(l, l->model->hidden, name);
    zinf_view stats = act_f32(l, l->n_tokens, layernorm ? 2 : 1, "norm stats");

    if (layernorm)
        EMIT(l, ZINF_OP_LAYERNORM_FORWARD, 0, at->layer, at->unit, NULL, at->text, x, at->w, at->b,
             y, stats);
    else
        EMIT(l, ZINF_OP_RMSNORM_FORWARD, 0, at->layer, at->unit, NULL, at->text, x, at->w, y,
             stats);
    *ret_y = y;
    *ret_stats = stats;
}

/* at->b is not read; grad holds the two gradients. */
static void norm_backward(zinf_lowering *l, const norm_site *at, const norm_site *grad,
                          zinf_view x, zinf_view stats, zinf_view residual, zinf_view dx)
{
    const uint64_t hidden = l->model->hidden;
    char text[32];

    snprintf(text, sizeof text, "%s backward", at->text);
    if (zinf_family_of(l->model)->layernorm)
        EMIT(l, ZINF_OP_LAYERNORM_BACKWARD, 0, at->layer, at->unit, NULL, text, l->dinput, x,
             at->w, stats, residual, dx, grad->w, grad->b,
             zinf_scratch(l, zinf_layernorm_scratch_bytes(hidden)));
    else
        EMIT(l, ZINF_OP_RMSNORM_BACKWARD, 0, at->layer, at->unit, NULL, text, l->dinput, x, at->w,
             stats, residual, dx, grad->w,
             zinf_scratch(l, zinf_rmsnorm_scratch_bytes(hidden)));
}

/* The first or second norm of a block; unit: the view of its small tensors or their gradients. */
static norm_site block_norm(const zinf_lowering *l, uint32_t layer, bool second, zinf_view unit)
{
    const int w = second ? ZINF_SMALL_LN2_W : ZINF_SMALL_LN1_W;

    return (norm_site){.layer = (int32_t)layer,
                       .unit = zinf_unit_of_small(l->model, l->d, layer),
                       .text = zinf_family_of(l->model)->norm_texts[second],
                       .w = small(l, unit, w, 0, l->model->hidden),
                       .b = small(l, unit, w + 1, 0, l->model->hidden)};
}

static norm_site final_norm(const zinf_lowering *l, zinf_view unit)
{
    const uint64_t hidden = l->model->hidden;
    const zinf_family *family = zinf_family_of(l->model);

    return (norm_site){.layer = -1, .unit = zinf_unit_of_final_norm(l->model, l->d),
                       .text = family->norm_texts[2], .w = zinf_slice(unit, 0, 1, hidden, hidden),
                       .b = family->layernorm ? zinf_slice(unit, hidden, 1, hidden, hidden)
                                              : zinf_absent};
}

static void emit_norm(zinf_lowering *l, const zinf_stage *s)
{
    zinf_block_acts *a = &l->acts[s->layer];
    const bool second = s->kind == ZINF_STAGE_LN2;
    const uint32_t unit = zinf_unit_of_small(l->model, l->d, s->layer);
    const norm_site at = block_norm(l, s->layer, second, zinf_unit_view(l, unit));

    if (second)
        norm_forward(l, &at, a->x2, "h2", &a->h2, &a->stats2);
    else
        norm_forward(l, &at, a->x, "h1", &a->h1, &a->stats1);
}

static const char *const linear_text[] = {"qkv", "out", "fc", "proj", "vocab"};

static void emit_linear(zinf_lowering *l, const zinf_stage *s)
{
    zinf_block_acts *a = &l->acts[s->layer];
    const uint64_t features = zinf_linear_rows(l->model, s->linear);
    const uint64_t row = zinf_tile_row(features, l->d->tiles[s->linear], s->tile);
    const uint32_t unit = zinf_unit_of_tile(l->model, l->d, s->layer, s->linear, s->tile);
    zinf_view w = tile_matrix(l, zinf_unit_view(l, unit), s->linear);
    zinf_view params = zinf_unit_view(l, zinf_unit_of_small(l->model, l->d, s->layer));
    zinf_view *x, *y, residual = zinf_absent;

    switch (s->linear) {
    case ZINF_LINEAR_QKV:
        x = &a->h1, y = &a->qkv;
        break;
    case ZINF_LINEAR_OUT:
        x = &a->att, y = &a->x2, residual = a->x;
        break;
    case ZINF_LINEAR_FC:
        x = &a->h2, y = &a->fc;
        break;
    default:
        x = &a->g, y = &l->acts[s->layer + 1].x, residual = a->x2;
        break;
    }
    if (s->tile == 0)
        *y = act(l, features, linear_text[s->linear]);
    if (residual.buffer != ZINF_NONE)
        residual = zinf_slice(residual, row, l->n_tokens, w.rows, features);
    EMIT(l, ZINF_OP_LINEAR_FORWARD, 0, (int32_t)s->layer, unit, NULL, linear_text[s->linear], *x,
         w, small(l, params, ZINF_SMALL_BIAS + (int)s->linear, row, w.rows), residual,
         zinf_slice(*y, row, l->n_tokens, w.rows, features),
         gemm_scratch(l, l->n_tokens, w.rows, w.cols));
}

static void attention_attr(const zinf_lowering *l, uint64_t attr[4])
{
    attr[0] = l->model->heads;
    attr[1] = l->model->kv_heads;
    attr[2] = l->model->head_dim;
    attr[3] = l->seq;
}

static zinf_view attention_scratch(zinf_lowering *l)
{
    return zinf_scratch(l, zinf_attention_scratch_bytes(l->seq, l->model->head_dim,
                                                        l->d->n_threads));
}

static void emit_attention(zinf_lowering *l, const zinf_stage *s)
{
    zinf_block_acts *a = &l->acts[s->layer];
    uint64_t attr[4];

    attention_attr(l, attr);
    a->att = act(l, zinf_linear_cols(l->model, ZINF_LINEAR_OUT), "att");
    a->lse = act_f32(l, l->batch, l->model->heads * l->seq, "lse");
    EMIT(l, ZINF_OP_ATTENTION_FORWARD, 0, (int32_t)s->layer, ZINF_NONE, attr, "attention", a->qkv,
         a->att, a->lse, attention_scratch(l));
}

/* Queries and keys turned in place: the same buffer, from here on another value. */
static zinf_view turn(zinf_lowering *l, uint32_t layer, zinf_view qkv, bool back)
{
    const zinf_model *m = l->model;
    const uint64_t attr[4] = {m->heads + m->kv_heads, back, m->head_dim, l->seq};
    const char *name = back ? "rope backward" : "rope";
    zinf_view turned = qkv;

    turned.value = zinf_build_value(l->b, zinf_build_string(l->b, back ? "dqkv turned back"
                                                                       : "qkv turned"));
    EMIT(l, ZINF_OP_ROPE, 0, (int32_t)layer, ZINF_NONE, attr, name, qkv, turned);
    return turned;
}

static void emit_activation(zinf_lowering *l, const zinf_stage *s)
{
    zinf_block_acts *a = &l->acts[s->layer];
    const bool gated = zinf_family_of(l->model)->gated;
    const char *text = gated ? "swiglu" : "gelu";

    a->g = act(l, l->model->ffn, text);
    EMIT(l, gated ? ZINF_OP_SWIGLU_FORWARD : ZINF_OP_GELU_FORWARD, 0, (int32_t)s->layer,
         ZINF_NONE, NULL, text, a->fc, a->g);
}

static void emit_final_norm(zinf_lowering *l)
{
    const uint32_t unit = zinf_unit_of_final_norm(l->model, l->d);
    const norm_site at = final_norm(l, zinf_unit_view(l, unit));

    norm_forward(l, &at, l->acts[l->model->layers].x, "final h", &l->final_h, &l->final_stats);
}

static void emit_classifier(zinf_lowering *l, const zinf_stage *s)
{
    const uint64_t chunk = zinf_classifier_chunk(l->model, l->cluster, l->d, l->n_tokens);
    const uint64_t attr[4] = {zinf_tile_row(l->model->vocab, l->d->tiles[ZINF_LINEAR_VOCAB],
                                            s->tile),
                              chunk};
    const uint32_t unit = zinf_unit_of_head(l->model, l->d, s->tile);
    zinf_view w = tile_matrix(l, zinf_unit_view(l, unit), ZINF_LINEAR_VOCAB);
    zinf_view logits = scores(l, ZINF_F32, chunk, w.rows);

    if (s->tile == 0)
        l->classifier_stats = act_f32(l, l->n_tokens, 3, "softmax stats");
    EMIT(l, ZINF_OP_CLASSIFIER_FORWARD, s->tile ? ZINF_FLAG_ACCUMULATE : 0, -1, unit, attr,
         "classifier", l->final_h, w, l->tokens, l->classifier_stats, logits,
         gemm_scratch(l, chunk, w.rows, w.cols));
}

static void emit_classifier_backward(zinf_lowering *l, const zinf_stage *s)
{
    const uint64_t hidden = l->model->hidden;
    const uint64_t chunk = zinf_classifier_chunk(l->model, l->cluster, l->d, l->n_tokens);
    const uint32_t tiles = l->d->tiles[ZINF_LINEAR_VOCAB];
    const uint32_t unit = zinf_unit_of_head(l->model, l->d, s->tile);
    zinf_view w = tile_matrix(l, zinf_unit_view(l, unit), ZINF_LINEAR_VOCAB);
    zinf_view grad = zinf_grad_target(l, unit, false);
    zinf_view logits = scores(l, ZINF_F32, chunk, w.rows);
    zinf_view dlogits = scores(l, l->act, chunk, w.rows);
    const uint64_t attr[4] = {zinf_tile_row(l->model->vocab, tiles, s->tile), chunk,
                              l->model->global_batch * l->seq,
                              s->tile > 0};

    if (s->tile == 0)
        l->dinput = tiles > 1 ? act_f32(l, l->n_tokens, hidden, "dh")
                              : act(l, hidden, "dh");
    if (s->fused)
        l->classifier_stats = act_f32(l, l->n_tokens, 3, "softmax stats");
    EMIT(l, s->fused ? ZINF_OP_CLASSIFIER : ZINF_OP_CLASSIFIER_BACKWARD,
         attr[3] ? ZINF_FLAG_ACCUMULATE : 0, -1, unit, attr, "classifier", l->final_h, w,
         l->tokens, l->classifier_stats, l->dinput, zinf_slice(grad, 0, w.rows, hidden, hidden),
         logits, dlogits,
         zinf_scratch(l, zinf_larger(zinf_larger(zinf_gemm_scratch_bytes(chunk, w.rows, hidden,
                                                                 l->d->n_threads),
                                         zinf_gemm_scratch_bytes(w.rows, hidden, chunk,
                                                                 l->d->n_threads)),
                                 zinf_gemm_scratch_bytes(chunk, hidden, w.rows,
                                                         l->d->n_threads))));
    zinf_store_grad(l, unit, grad, false, !l->model->tied_embeddings);
}

static void emit_loss(zinf_lowering *l, bool training)
{
    const uint64_t attr[4] = {training ? l->model->global_batch * l->seq
                                       : l->n_tokens * l->d->ranks};

    EMIT(l, ZINF_OP_LOSS, l->micro ? ZINF_FLAG_ACCUMULATE : 0, -1, ZINF_NONE, attr,
         "loss", l->classifier_stats, zinf_scalars(l, ZINF_SCALAR_LOSS, 1));
    if (training)
        zinf_loss_was_added(l);
}

static void emit_final_norm_backward(zinf_lowering *l)
{
    const uint32_t unit = zinf_unit_of_final_norm(l->model, l->d);
    zinf_view grad = zinf_grad_target(l, unit, false);
    const norm_site at = final_norm(l, zinf_unit_view(l, unit)), to = final_norm(l, grad);

    l->dx = act(l, l->model->hidden, "dx");
    norm_backward(l, &at, &to, l->acts[l->model->layers].x, l->final_stats, zinf_absent, l->dx);
    zinf_store_grad(l, unit, grad, false, true);
}

static void emit_linear_backward(zinf_lowering *l, const zinf_stage *s)
{
    static const char *const text[] = {"qkv backward", "out backward", "fc backward",
                                       "proj backward"};
    zinf_block_acts *a = &l->acts[s->layer];
    const uint64_t features = zinf_linear_rows(l->model, s->linear);
    const uint32_t tiles = l->d->tiles[s->linear];
    const uint64_t row = zinf_tile_row(features, tiles, s->tile);
    const uint32_t unit = zinf_unit_of_tile(l->model, l->d, s->layer, s->linear, s->tile);
    const uint32_t small_unit = zinf_unit_of_small(l->model, l->d, s->layer);
    zinf_view w = tile_matrix(l, zinf_unit_view(l, unit), s->linear), x;

    switch (s->linear) {
    case ZINF_LINEAR_QKV:
        x = a->h1;
        break;
    case ZINF_LINEAR_OUT:
        x = a->att;
        break;
    case ZINF_LINEAR_FC:
        x = a->h2;
        break;
    default:
        x = a->g;
        break;
    }
    if (s->tile == 0) {
        if (s->linear == ZINF_LINEAR_PROJ) {
            l->dy = l->dx;
            l->small_grad = zinf_grad_target(l, small_unit, false);
        }
        l->dinput = tiles > 1 ? act_f32(l, l->n_tokens, w.cols, "dinput")
                              : act(l, w.cols, "dinput");
    }
    zinf_view grad = zinf_grad_target(l, unit, false);
    zinf_view dy = zinf_slice(l->dy, row, l->n_tokens, w.rows, features);
    EMIT(l, ZINF_OP_LINEAR_BACKWARD_WEIGHT, 0,
         (int32_t)s->layer, unit, NULL, text[s->linear], dy, x,
         zinf_slice(grad, 0, w.rows, w.cols, w.cols),
         small(l, l->small_grad, ZINF_SMALL_BIAS + (int)s->linear, row, w.rows),
         zinf_scratch(l, zinf_larger(zinf_gemm_scratch_bytes(w.rows, w.cols, l->n_tokens,
                                                         l->d->n_threads),
                                 zinf_column_sum_scratch_bytes(w.rows))));
    EMIT(l, ZINF_OP_LINEAR_BACKWARD_INPUT, s->tile ? ZINF_FLAG_ACCUMULATE : 0, (int32_t)s->layer,
         unit, NULL, text[s->linear], dy, w, l->dinput,
         gemm_scratch(l, l->n_tokens, w.cols, w.rows));
    zinf_store_grad(l, unit, grad, false, true);
}

static void emit_activation_backward(zinf_lowering *l, const zinf_stage *s)
{
    const bool gated = zinf_family_of(l->model)->gated;

    l->dy = act(l, zinf_linear_rows(l->model, ZINF_LINEAR_FC), "dfc");
    EMIT(l, gated ? ZINF_OP_SWIGLU_BACKWARD : ZINF_OP_GELU_BACKWARD, 0, (int32_t)s->layer,
         ZINF_NONE, NULL, gated ? "swiglu backward" : "gelu backward", l->acts[s->layer].fc,
         l->dinput, l->dy);
}

static void emit_norm_backward(zinf_lowering *l, const zinf_stage *s)
{
    zinf_block_acts *a = &l->acts[s->layer];
    const bool second = s->kind == ZINF_STAGE_LN2_BACKWARD;
    const uint32_t unit = zinf_unit_of_small(l->model, l->d, s->layer);
    zinf_view out = act(l, l->model->hidden, second ? "dx2" : "dx");
    const norm_site at = block_norm(l, s->layer, second, zinf_unit_view(l, unit));
    const norm_site to = block_norm(l, s->layer, second, l->small_grad);

    norm_backward(l, &at, &to, second ? a->x2 : a->x, second ? a->stats2 : a->stats1,
                  second ? l->dx : l->dx2, out);
    if (second) {
        l->dx2 = l->dy = out;
    } else {
        l->dx = out;
        zinf_store_grad(l, unit, l->small_grad, false, true);
    }
}

static void emit_attention_backward(zinf_lowering *l, const zinf_stage *s)
{
    zinf_block_acts *a = &l->acts[s->layer];
    zinf_view datt = l->dinput;
    uint64_t attr[4];

    attention_attr(l, attr);
    if (datt.dtype != (uint8_t)l->act) {
        zinf_view rounded = act(l, datt.cols, "datt");
        EMIT(l, ZINF_OP_CONVERT, 0, (int32_t)s->layer, ZINF_NONE, NULL, "datt", datt, rounded);
        datt = rounded;
    }
    l->dy = act(l, zinf_linear_rows(l->model, ZINF_LINEAR_QKV), "dqkv");
    EMIT(l, ZINF_OP_ATTENTION_BACKWARD, 0, (int32_t)s->layer, ZINF_NONE, attr,
         "attention backward", a->qkv, a->att, datt, a->lse, l->dy, attention_scratch(l));
}

/* Where the token embedding is tied to the classifier this is its second gradient, the
 * classifier's own was stored before; the two are summed once. */
static void emit_embed_backward(zinf_lowering *l, const zinf_stage *s)
{
    const uint64_t hidden = l->model->hidden;
    const bool second_use = l->model->tied_embeddings;
    const uint64_t attr[4] = {zinf_tile_row(l->model->vocab, l->d->tiles[ZINF_LINEAR_VOCAB],
                                            s->tile)};
    zinf_view grad = zinf_grad_target(l, s->tile, second_use);

    EMIT(l, ZINF_OP_EMBEDDING_BACKWARD, 0, -1, s->tile, attr,
         "embedding backward", l->tokens, l->dx,
         zinf_slice(grad, 0, grad.cols / hidden, hidden, hidden));
    zinf_store_grad(l, s->tile, grad, second_use, true);
}

static void emit_position_backward(zinf_lowering *l)
{
    const uint64_t hidden = l->model->hidden;
    const uint32_t unit = zinf_unit_of_position(l->d);
    const uint64_t attr[4] = {l->batch, l->seq};
    zinf_view grad = zinf_grad_target(l, unit, false);

    EMIT(l, ZINF_OP_POSITION_BACKWARD, 0, -1, unit, attr, "position backward", l->dx,
         zinf_slice(grad, 0, l->model->context, hidden, hidden));
    zinf_store_grad(l, unit, grad, false, true);
}

static void emit_logits(zinf_lowering *l, const zinf_stage *s)
{
    const uint64_t vocab = l->model->vocab;
    const uint32_t unit = zinf_unit_of_head(l->model, l->d, s->tile);
    zinf_view w = tile_matrix(l, zinf_unit_view(l, unit), ZINF_LINEAR_VOCAB);

    if (s->tile == 0) /* the runtime reads the logits: they keep the classifier's stats' place */
        l->classifier_stats = act_f32(l, 1, vocab, "logits");
    EMIT(l, ZINF_OP_LOGITS, 0, -1, unit, NULL, "logits", l->final_h, w,
         zinf_slice(l->classifier_stats,
                    zinf_tile_row(vocab, l->d->tiles[ZINF_LINEAR_VOCAB], s->tile), 1, w.rows,
                    w.rows),
         gemm_scratch(l, 1, w.rows, w.cols));
}

void zinf_emit_stage(zinf_lowering *l, const zinf_stage *s)
{
    switch (s->kind) {
    case ZINF_STAGE_EMBED:
        emit_embed(l, s);
        break;
    case ZINF_STAGE_KEEP:
        zinf_keep_boundary(l, s->layer, s->gradient, s->gradient ? l->dx : l->acts[s->layer].x);
        break;
    case ZINF_STAGE_RESTORE:
        *(s->gradient ? &l->dx : &l->acts[s->layer].x) = zinf_boundary_view(l, s->layer,
                                                                            s->gradient);
        break;
    case ZINF_STAGE_LN1:
    case ZINF_STAGE_LN2:
        emit_norm(l, s);
        break;
    case ZINF_STAGE_LINEAR:
        emit_linear(l, s);
        break;
    case ZINF_STAGE_ATTENTION:
        emit_attention(l, s);
        break;
    case ZINF_STAGE_ROPE:
        l->acts[s->layer].qkv = turn(l, s->layer, l->acts[s->layer].qkv, false);
        break;
    case ZINF_STAGE_ROPE_BACKWARD:
        l->dy = turn(l, s->layer, l->dy, true);
        break;
    case ZINF_STAGE_ACTIVATION:
        emit_activation(l, s);
        break;
    case ZINF_STAGE_FINAL_NORM:
        emit_final_norm(l);
        break;
    case ZINF_STAGE_CLASSIFIER:
        emit_classifier(l, s);
        break;
    case ZINF_STAGE_LOSS:
        emit_loss(l, l->training);
        break;
    case ZINF_STAGE_CLASSIFIER_BACKWARD:
        emit_classifier_backward(l, s);
        break;
    case ZINF_STAGE_FINAL_NORM_BACKWARD:
        emit_final_norm_backward(l);
        break;
    case ZINF_STAGE_LINEAR_BACKWARD:
        emit_linear_backward(l, s);
        break;
    case ZINF_STAGE_ACTIVATION_BACKWARD:
        emit_activation_backward(l, s);
        break;
    case ZINF_STAGE_LN1_BACKWARD:
    case ZINF_STAGE_LN2_BACKWARD:
        emit_norm_backward(l, s);
        break;
    case ZINF_STAGE_ATTENTION_BACKWARD:
        emit_attention_backward(l, s);
        break;
    case ZINF_STAGE_EMBED_BACKWARD:
        emit_embed_backward(l, s);
        break;
    case ZINF_STAGE_POSITION_BACKWARD:
        emit_position_backward(l);
        break;
    case ZINF_STAGE_LOGITS:
        emit_logits(l, s);
        break;
    }
}
