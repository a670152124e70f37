/* runtime/operations.c - what each opcode does: operands to kernel calls, one function each.
 *
 * Sizes were checked by plan_shapes.c; shapes are read from the operands. Kernels come from the
 * backend's table, ranks' traffic from the collective table, everything else from the env.
 */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "runtime/executor_internal.h"
#include "runtime/initial.h"
#include "runtime/nonfinite.h"

#define ROWS(slot) ((int64_t)op->operands[slot].rows)
#define COLS(slot) ((int64_t)op->operands[slot].cols)
#define LD(slot) ((int64_t)op->operands[slot].ld)
#define ELEMS(slot) (ROWS(slot) * COLS(slot))
#define IS_F32(slot) (op->operands[slot].dtype == ZINF_F32)
#define ACCUMULATES (op->instr->flags & ZINF_FLAG_ACCUMULATE)
#define ATTR(i) ((int64_t)op->instr->attr[i])
#define KERNELS (&executor->kernels)
#define RUN(name)                                                                                \
    static zinf_status run_##name(zinf_executor *executor, const zinf_op *op,                    \
                                  char *const p[ZINF_MAX_OPERANDS], zinf_error *err)
#define UNUSED (void)executor, (void)op, (void)p, (void)err

/* ---- embedding, norm, activations ---- */

RUN(embedding_forward)
{
    UNUSED;
    KERNELS->embedding_forward(KERNELS, (const int32_t *)p[0], LD(0), p[1], p[2], ATTR(0),
                               ROWS(1), ROWS(0), COLS(0) - 1, COLS(1), !ACCUMULATES, p[3]);
    return ZINF_OK;
}

RUN(embedding_backward)
{
    UNUSED;
    KERNELS->embedding_backward(KERNELS, (const int32_t *)p[0], LD(0), p[1], ATTR(0), ROWS(2),
                                ROWS(0), COLS(0) - 1, COLS(1), ACCUMULATES, (float *)p[2]);
    return ZINF_OK;
}

RUN(position_backward)
{
    UNUSED;
    float *dwpe = (float *)p[1];
    const uint64_t used = ATTR(1) * COLS(0);

    KERNELS->position_backward(KERNELS, p[0], ATTR(0), ATTR(1), COLS(0), ACCUMULATES, dwpe);
    if (!ACCUMULATES)
        memset(dwpe + used, 0, (ROWS(1) * COLS(0) - used) * sizeof *dwpe);
    return ZINF_OK;
}

RUN(layernorm_forward)
{
    UNUSED;
    KERNELS->layernorm_forward(KERNELS, p[0], p[1], p[2], ROWS(0), COLS(0), p[3],
                               (float *)p[4]);
    return ZINF_OK;
}

RUN(layernorm_backward)
{
    UNUSED;
    KERNELS->layernorm_backward(KERNELS, p[0], IS_F32(0), p[1], p[2], (const float *)p[3], p[4],
                                ROWS(0), COLS(0), ACCUMULATES, p[5], (float *)p[6],
                                (float *)p[7], p[8]);
    return ZINF_OK;
}

RUN(rmsnorm_forward)
{
    UNUSED;
    KERNELS->rmsnorm_forward(KERNELS, p[0], p[1], executor->plan->model.norm_eps, ROWS(0),
                             COLS(0), p[2], (float *)p[3]);
    return ZINF_OK;
}

RUN(rmsnorm_backward)
{
    UNUSED;
    KERNELS->rmsnorm_backward(KERNELS, p[0], IS_F32(0), p[1], p[2], (const float *)p[3], p[4],
                              ROWS(0), COLS(0), ACCUMULATES, p[5], (float *)p[6], p[7]);
    return ZINF_OK;
}

RUN(rope)
{
    UNUSED;
    KERNELS->rope(KERNELS, executor->frequencies, ROWS(0) / ATTR(3), ATTR(3), ATTR(0), ATTR(2),
                  LD(0), ATTR(1), p[1]);
    return ZINF_OK;
}

RUN(swiglu_forward)
{
    UNUSED;
    KERNELS->swiglu_forward(KERNELS, p[0], ROWS(1), COLS(1), p[1]);
    return ZINF_OK;
}

RUN(swiglu_backward)
{
    UNUSED;
    KERNELS->swiglu_backward(KERNELS, p[0], p[1], IS_F32(1), ROWS(1), COLS(1), p[2]);
    return ZINF_OK;
}

RUN(gelu_forward)
{
    UNUSED;
    KERNELS->gelu_forward(KERNELS, p[0], ELEMS(0), p[1]);
    return ZINF_OK;
}

RUN(gelu_backward)
{
    UNUSED;
    KERNELS->gelu_backward(KERNELS, p[0], p[1], IS_F32(1), ELEMS(0), p[2]);
    return ZINF_OK;
}

RUN(attention_forward)
{
    UNUSED;
    KERNELS->attention_forward(KERNELS, p[0], ROWS(0) / ATTR(3), ATTR(3), ATTR(0), ATTR(1),
                               ATTR(2), p[1], (float *)p[2], p[3]);
    return ZINF_OK;
}

RUN(attention_backward)
{
    UNUSED;
    KERNELS->attention_backward(KERNELS, p[0], p[1], p[2], (const float *)p[3],
                                ROWS(0) / ATTR(3), ATTR(3), ATTR(0), ATTR(1), ATTR(2), p[4],
                                p[5]);
    return ZINF_OK;
}

/* ---- linear ---- */

RUN(linear_forward)
{
    UNUSED;
    KERNELS->gemm_run(op->gemm[0], p[0], p[1], p[2], p[3], p[4], p[5]);
    return ZINF_OK;
}

RUN(linear_backward_input)
{
    UNUSED;
    KERNELS->gemm_run(op->gemm[0], p[0], p[1], NULL, NULL, p[2], p[3]);
    return ZINF_OK;
}

RUN(linear_backward_weight)
{
    UNUSED;
    KERNELS->gemm_run(op->gemm[0], p[0], p[1], NULL, NULL, p[2], p[4]);
    if (p[3])
        KERNELS->column_sum(KERNELS, p[0], LD(0), ROWS(0), COLS(0), ACCUMULATES, (float *)p[3],
                            p[4]);
    return ZINF_OK;
}

/* ---- classifier: logits of a few tokens at a time ---- */

enum { GEMM_LOGITS, GEMM_LOGITS_TAIL, GEMM_DH, GEMM_DH_TAIL, GEMM_DW, GEMM_DW_MORE,
       GEMM_DW_TAIL };

/* What each position of [B][T+1] is followed by, without gaps. */
static const int32_t *gather_targets(zinf_executor *executor, const zinf_op *op,
                                     const char *tokens)
{
    const int64_t batch = ROWS(2), sequence = COLS(2) - 1;

    for (int64_t b = 0; b < batch; b++)
        memcpy(executor->targets + b * sequence, (const int32_t *)(const void *)tokens +
               b * LD(2) + 1, (size_t)sequence * sizeof(int32_t));
    return executor->targets;
}

RUN(classifier_forward)
{
    UNUSED;
    const int32_t *targets = gather_targets(executor, op, p[2]);
    const uint64_t h_row = (uint64_t)LD(0) * zinf_dtype_bytes(op->operands[0].dtype);
    const int64_t n = ROWS(0), chunk = ROWS(4);

    for (int64_t at = 0; at < n; at += chunk) {
        const int64_t m = n - at < chunk ? n - at : chunk;
        KERNELS->gemm_run(op->gemm[m == chunk ? GEMM_LOGITS : GEMM_LOGITS_TAIL],
                          p[0] + (uint64_t)at * h_row, p[1], NULL, NULL, p[4], p[5]);
        KERNELS->softmax_stats(KERNELS, (const float *)p[4], LD(4), targets + at, ATTR(0),
                               ROWS(1), m, !ACCUMULATES, (float *)p[3] + 3 * at);
    }
    return ZINF_OK;
}

/* CLASSIFIER and CLASSIFIER_BACKWARD; the first also fills the statistics. */
RUN(classifier)
{
    UNUSED;
    const int32_t *targets = gather_targets(executor, op, p[2]);
    const uint64_t h_row = (uint64_t)LD(0) * zinf_dtype_bytes(op->operands[0].dtype);
    const uint64_t dh_row = (uint64_t)LD(4) * zinf_dtype_bytes(op->operands[4].dtype);
    const int64_t n = ROWS(0), chunk = ROWS(6);
    const float scale = (float)(1.0 / (double)op->instr->attr[2]);
    float *stats = (float *)p[3];

    for (int64_t at = 0; at < n; at += chunk) {
        const int64_t m = n - at < chunk ? n - at : chunk;
        const bool whole = m == chunk;
        const char *h = p[0] + (uint64_t)at * h_row;
        KERNELS->gemm_run(op->gemm[whole ? GEMM_LOGITS : GEMM_LOGITS_TAIL], h, p[1], NULL, NULL,
                          p[6], p[8]);
        if (op->instr->opcode == ZINF_OP_CLASSIFIER)
            KERNELS->softmax_stats(KERNELS, (const float *)p[6], LD(6), targets + at, ATTR(0),
                                   ROWS(1), m, true, stats + 3 * at);
        KERNELS->softmax_backward(KERNELS, (const float *)p[6], LD(6), targets + at,
                                  stats + 3 * at, ATTR(0), ROWS(1), m, scale, p[7], LD(7));
        KERNELS->gemm_run(op->gemm[whole ? GEMM_DH : GEMM_DH_TAIL], p[7], p[1], NULL, NULL,
                          p[4] + (uint64_t)at * dh_row, p[8]);
        KERNELS->gemm_run(op->gemm[at == 0 ? GEMM_DW : whole ? GEMM_DW_MORE : GEMM_DW_TAIL],
                          p[7], h, NULL, NULL, p[5], p[8]);
    }
    return ZINF_OK;
}

/* By sequences, of which only some tokens count. */
static void row_losses(const zinf_executor *executor, const zinf_env *env, const float *stats,
                       uint64_t n_tokens, double *ret_total)
{
    const uint64_t sequence = executor->plan->job.sequence;

    *ret_total = 0;
    for (uint64_t i = 0; i < n_tokens / sequence; i++) {
        const uint64_t n = env->counts[i], first = (i + 1) * sequence - n;
        env->row_losses[i] = n ? KERNELS->softmax_loss(KERNELS, stats + 3 * first, (int64_t)n) : 0;
        *ret_total += env->row_losses[i];
    }
}

RUN(loss)
{
    double *total = (double *)(void *)p[1];

    (void)err;
    if (executor->env->row_losses) {
        row_losses(executor, executor->env, (const float *)p[0], (uint64_t)ROWS(0), total);
        return ZINF_OK;
    }
    const double loss = KERNELS->softmax_loss(KERNELS, (const float *)p[0], ROWS(0)) /
                        (double)op->instr->attr[0];

    *total = ACCUMULATES ? *total + loss : loss;
    return ZINF_OK;
}

RUN(logits)
{
    zinf_env *env = executor->env;
    const uint64_t h_row = (uint64_t)LD(0) * zinf_dtype_bytes(op->operands[0].dtype);

    if (env->row >= op->operands[0].rows)
        return zinf_fail(err, ZINF_WRONG_RESULT, "logits of row %" PRIu64 " of %" PRIu64,
                         env->row, op->operands[0].rows);
    KERNELS->gemm_run(op->gemm[0], p[0] + env->row * h_row, p[1], NULL, NULL, p[2], p[3]);
    if (env->logits)
        memcpy(env->logits + op->first, p[2], (size_t)COLS(2) * sizeof(float));
    return ZINF_OK;
}

/* ---- vectors, optimizer ---- */

RUN(convert)
{
    UNUSED;
    if (IS_F32(0))
        KERNELS->convert_from_f32(KERNELS, (const float *)p[0], ELEMS(0), p[1]);
    else
        KERNELS->convert_to_f32(KERNELS, p[0], ELEMS(0), (float *)p[1]);
    return ZINF_OK;
}

RUN(accumulate)
{
    UNUSED;
    KERNELS->accumulate_f32(KERNELS, (const float *)p[0], ELEMS(0), (float *)p[1]);
    return ZINF_OK;
}

RUN(sum_of_squares)
{
    UNUSED;
    const zinf_plan *plan = executor->plan;
    const uint32_t unit = op->instr->unit;
    const bool owned = unit < plan->n_units && plan->units[unit].owner != ZINF_NONE;
    const int64_t shard = ELEMS(0) / (owned ? plan->decisions.ranks : 1);
    const float *x = (const float *)p[0];
    double sum = KERNELS->sum_of_squares(KERNELS, x, shard);

    for (int64_t at = shard; at < ELEMS(0); at += shard) /* as ALLREDUCE adds those of ranks */
        sum += KERNELS->sum_of_squares(KERNELS, x + at, shard);
    *(double *)(void *)p[1] = sum;
    if (!isfinite(sum))
        zinf_nonfinite_note(executor, op, x, (uint64_t)ELEMS(0));
    return ZINF_OK;
}

/* The factor is torch.nn.utils.clip_grad_norm_'s: clip / (norm + 1e-6), at most 1. The guard is
 * here, before any update: true if the loss or any gradient is not finite (NaN fails every
 * comparison), or if a gradient's square would not fit its second moment. */
RUN(clip)
{
    UNUSED;
    const double *partials = (const double *)(void *)p[0], clip = executor->plan->job.clip;
    double *out = (double *)(void *)p[1], sum = 0;

    for (int64_t i = 0; i < ELEMS(0); i++)
        sum += partials[i];
    const double norm = sqrt(sum), most = clip / (norm + 1e-6);
    const double factor = clip > 0 && most < 1 ? most : 1;
    const bool fine = norm * factor <= ZINF_LARGEST_NORM && isfinite(norm) &&
                      isfinite(executor->scalars[ZINF_SCALAR_LOSS]);
    out[0] = norm;
    out[1] = factor;
    out[2] = !fine;
    out[3] = (double)(executor->env->step + 1);
    out[4] = executor->env->lr;
    return ZINF_OK;
}

RUN(adam)
{
    UNUSED;
    const zinf_job_info *job = &executor->plan->job;
    const double *clip = (const double *)(void *)p[5]; /* norm, factor, skip, step, rate */
    const double steps = clip[3];

    if (clip[2] != 0 || steps == 0) { /* the weights stay; their rounded copy is still due */
        KERNELS->convert_from_f32(KERNELS, (const float *)p[1], ELEMS(0), p[4]);
        return ZINF_OK;
    }
    const zinf_adam_args args = {
        .lr = (float)clip[4], .beta1 = (float)job->beta1, .beta2 = (float)job->beta2,
        .eps = (float)job->eps,
        .weight_decay = op->instr->attr[0] ? (float)job->weight_decay : 0,
        .bias1 = (float)(1 - pow(job->beta1, steps)),
        .bias2 = (float)(1 - pow(job->beta2, steps)), .grad_scale = (float)clip[1]};
    KERNELS->adam(KERNELS, &args, (const float *)p[0], ELEMS(0), (float *)p[1], (float *)p[2],
                  (float *)p[3], p[4]);
    return ZINF_OK;
}

/* ---- moving, filling ---- */

RUN(copy)
{
    UNUSED;
    executor->backend->copy(p[1], p[0], op->operands[0].bytes);
    return ZINF_OK;
}

RUN(zero)
{
    UNUSED;
    executor->backend->zero(p[0], op->operands[0].bytes);
    return ZINF_OK;
}

/* What another rank does; its part of a sum over ranks is nothing here. */
RUN(elsewhere)
{
    UNUSED;
    if (op->instr->opcode == ZINF_OP_SUM_OF_SQUARES)
        *(double *)(void *)p[1] = 0;
    return ZINF_OK;
}

/* read and write are transfer.c's; this is what its thread never calls */
RUN(transfer)
{
    UNUSED;
    return zinf_fail(err, ZINF_WRONG_RESULT, "a transfer reached the kernels");
}

RUN(collective)
{
    const zinf_collective *ranks = executor->collective;
    const zinf_dtype dtype = op->operands[0].dtype;
    const uint64_t n_send = (uint64_t)ELEMS(0), n_recv = (uint64_t)ELEMS(1);

    switch (op->instr->opcode) {
    case ZINF_OP_ALLGATHER:
        return ranks->allgather(ranks, p[0], p[1], n_send, dtype, err);
    case ZINF_OP_REDUCE_SCATTER:
        return ranks->reduce_scatter(ranks, p[0], p[1], n_recv, dtype, err);
    case ZINF_OP_REDUCE:
        return ranks->reduce(ranks, p[0], p[1], n_send, dtype, (uint32_t)op->instr->attr[0], err);
    case ZINF_OP_ALLREDUCE:
        return ranks->allreduce(ranks, p[0], p[1], n_send, dtype, err);
    default:
        return ranks->broadcast(ranks, p[0], p[1], n_send, dtype, (uint32_t)op->instr->attr[0],
                                err);
    }
}

/* ---- from and to the outside ---- */

RUN(batch)
{
    zinf_env *env = executor->env;

    if (!env->batch)
        return zinf_fail(err, ZINF_WRONG_RESULT, "this program needs tokens, none were given");
    return env->batch(env->batch_context, op->operands[0].rows, op->operands[0].cols,
                      (int32_t *)(void *)p[0], err);
}

/* What of a part is in this rank's shard of its unit. */
typedef struct piece {
    uint64_t first, n; /* elements of the tensor */
    uint64_t at;       /* of the shard */
} piece;

static piece piece_of(const zinf_executor *executor, const zinf_unit *unit, const zinf_part *part)
{
    const uint64_t cols = executor->plan->tensors[part->tensor].cols;
    uint64_t from, end = part->at + part->n_rows * cols;
    const uint64_t n = zinf_unit_range(unit, executor->collective->rank, &from);
    const uint64_t first = part->at > from ? part->at : from;

    end = end < from + n ? end : from + n;
    if (first >= end)
        return (piece){0};
    return (piece){part->first_row * cols + (first - part->at), end - first, first - from};
}

RUN(init)
{
    UNUSED;
    const zinf_plan *plan = executor->plan;
    const zinf_unit *unit = &plan->units[op->instr->unit];

    for (int array = 0; array < ZINF_N_STATES; array++)
        memset(p[array], 0, op->operands[array].bytes);
    for (uint32_t i = 0; i < unit->n_parts; i++) {
        const zinf_part *part = &plan->parts[unit->first_part + i];
        const piece mine = piece_of(executor, unit, part);
        zinf_initial_values(&plan->tensors[part->tensor], part->tensor, plan->job.seed, mine.first,
                            mine.n, KERNELS->n_threads, (float *)(void *)p[0] + mine.at);
    }
    return ZINF_OK;
}

/* IMPORT and EXPORT: what this rank has of every part of the unit, master, m and v. */
RUN(state)
{
    const zinf_plan *plan = executor->plan;
    const zinf_unit *unit = &plan->units[op->instr->unit];
    zinf_env *env = executor->env;
    const bool import = op->instr->opcode == ZINF_OP_IMPORT;

    if (import ? !env->get : !env->put)
        return zinf_fail(err, ZINF_WRONG_RESULT, "this program needs a checkpoint, none given");
    for (int array = 0; array < ZINF_N_STATES; array++) {
        float *values = (float *)(void *)p[array];
        if (import)
            memset(values, 0, op->operands[array].bytes);
        for (uint32_t i = 0; i < unit->n_parts; i++) {
            const zinf_part *part = &plan->parts[unit->first_part + i];
            const piece mine = piece_of(executor, unit, part);
            if (mine.n == 0)
                continue;
            zinf_status status =
                import ? env->get(env->state_context, part->tensor, (zinf_state_array)array,
                                  mine.first, mine.n, values + mine.at, err)
                       : env->put(env->state_context, part->tensor, (zinf_state_array)array,
                                  mine.first, mine.n, values + mine.at, err);
            if (status)
                return status;
        }
    }
    return ZINF_OK;
}

/* ---- preparation ---- */

/* The place of an equal GEMM in the table, or the free one where it would be. */
static zinf_shared_gemm **find_gemm(const zinf_executor *executor, const zinf_shared_gemm *wanted)
{
#define SAME(field) (x->desc.field == wanted->desc.field)
    for (uint64_t i = wanted->hash;; i++) {
        zinf_shared_gemm **at = &executor->gemms[i % executor->gemm_places], *x = *at;
        if (!x || (SAME(m) && SAME(n) && SAME(k) && SAME(lda) && SAME(ldb) && SAME(ldc) &&
                   SAME(ldr) && SAME(ab_dtype) && SAME(c_dtype) && SAME(trans_a) &&
                   SAME(trans_b) && SAME(accumulate) && SAME(has_bias) && SAME(has_residual) &&
                   x->scratch_bytes == wanted->scratch_bytes))
            return at;
    }
#undef SAME
}

/* At most half of the table is in use. */
static zinf_status grow_gemms(zinf_executor *executor, zinf_error *err)
{
    const uint64_t places = executor->gemm_places;
    zinf_shared_gemm **old = executor->gemms;

    if (2 * executor->n_gemms < places)
        return ZINF_OK;
    zinf_shared_gemm **more = calloc(places ? 2 * places : 64, sizeof *more);
    if (!more)
        return zinf_fail(err, ZINF_MACHINE, "out of memory for %" PRIu64 " GEMMs", places);
    executor->gemms = more;
    executor->gemm_places = places ? 2 * places : 64;
    for (uint64_t i = 0; i < places; i++)
        if (old[i])
            *find_gemm(executor, old[i]) = old[i];
    free(old);
    return ZINF_OK;
}

/* A GEMM with this descriptor, shared with every instruction that has an equal one. */
static zinf_status share_gemm(zinf_executor *executor, zinf_gemm_desc desc,
                              uint64_t scratch_bytes, zinf_gemm **ret_gemm, zinf_error *err)
{
    const int64_t sizes[] = {desc.m, desc.n, desc.k, desc.lda, desc.ldb, desc.ldc, desc.ldr};
    const zinf_shared_gemm wanted = {desc, scratch_bytes, XXH3_64bits(sizes, sizeof sizes), NULL};

    if (grow_gemms(executor, err))
        return err->status;
    zinf_shared_gemm **at = find_gemm(executor, &wanted);
    if (!*at) {
        zinf_shared_gemm *made = malloc(sizeof *made);
        if (made)
            *made = wanted;
        if (!made || !(made->gemm = executor->kernels.gemm_create(&executor->kernels, &desc,
                                                                  scratch_bytes))) {
            free(made);
            return zinf_fail(err, ZINF_MACHINE, "cannot prepare a GEMM of %" PRId64 " x %" PRId64
                             " x %" PRId64 ": out of memory", desc.m, desc.n, desc.k);
        }
        *at = made;
        executor->n_gemms++;
    }
    *ret_gemm = (*at)->gemm;
    return ZINF_OK;
}

static zinf_status prepare_linear_forward(zinf_executor *executor, zinf_op *op, zinf_error *err)
{
    const zinf_gemm_desc desc = {
        .m = ROWS(0), .n = ROWS(1), .k = COLS(0), .lda = LD(0), .ldb = LD(1), .ldc = LD(4),
        .ldr = op->base[3] ? LD(3) : 0, .ab_dtype = op->operands[0].dtype,
        .c_dtype = op->operands[4].dtype, .trans_b = true, .has_bias = op->base[2] != NULL,
        .has_residual = op->base[3] != NULL};
    return share_gemm(executor, desc, op->operands[5].bytes, &op->gemm[0], err);
}

static zinf_status prepare_linear_input(zinf_executor *executor, zinf_op *op, zinf_error *err)
{
    const zinf_gemm_desc desc = {
        .m = ROWS(0), .n = COLS(1), .k = COLS(0), .lda = LD(0), .ldb = LD(1), .ldc = LD(2),
        .ab_dtype = op->operands[0].dtype, .c_dtype = op->operands[2].dtype,
        .accumulate = ACCUMULATES};
    return share_gemm(executor, desc, op->operands[3].bytes, &op->gemm[0], err);
}

static zinf_status prepare_linear_weight(zinf_executor *executor, zinf_op *op, zinf_error *err)
{
    const zinf_gemm_desc desc = {
        .m = COLS(0), .n = COLS(1), .k = ROWS(0), .lda = LD(0), .ldb = LD(1), .ldc = LD(2),
        .ab_dtype = op->operands[0].dtype, .c_dtype = ZINF_F32, .trans_a = true,
        .accumulate = ACCUMULATES};
    return share_gemm(executor, desc, op->operands[4].bytes, &op->gemm[0], err);
}

/* logits[m][V] = h[m][C] w[V][C]^T; dh[m][C] (+)= dlogits[m][V] w; dw[V][C] (+)= dlogits^T h */
static zinf_status prepare_classifier(zinf_executor *executor, zinf_op *op, zinf_error *err)
{
    const bool backward = op->instr->opcode != ZINF_OP_CLASSIFIER_FORWARD;
    const int logits = backward ? 6 : 4, scratch = backward ? 8 : 5;
    const int64_t n = ROWS(0), chunk = ROWS(logits), channels = COLS(0), vocab = ROWS(1);
    const uint64_t bytes = op->operands[scratch].bytes;

    for (int tail = 0; tail < 2; tail++) {
        /* with one short chunk only, it is the "tail" that GEMM_DW belongs to, too */
        const int64_t m = tail ? n % chunk : chunk;
        if (m == 0 || m > n)
            continue;
        zinf_gemm_desc desc = {.m = m, .n = vocab, .k = channels, .lda = LD(0), .ldb = LD(1),
                               .ldc = LD(logits), .ab_dtype = op->operands[0].dtype,
                               .c_dtype = ZINF_F32, .trans_b = true};
        if (share_gemm(executor, desc, bytes, &op->gemm[GEMM_LOGITS + tail], err))
            return err->status;
        if (!backward)
            continue;
        desc = (zinf_gemm_desc){.m = m, .n = channels, .k = vocab, .lda = LD(7), .ldb = LD(1),
                                .ldc = LD(4), .ab_dtype = op->operands[0].dtype,
                                .c_dtype = op->operands[4].dtype,
                                .accumulate = ATTR(3) & 1};
        if (share_gemm(executor, desc, bytes, &op->gemm[GEMM_DH + tail], err))
            return err->status;
        desc = (zinf_gemm_desc){.m = vocab, .n = channels, .k = m, .lda = LD(7), .ldb = LD(0),
                                .ldc = LD(5), .ab_dtype = op->operands[0].dtype,
                                .c_dtype = ZINF_F32, .trans_a = true};
        if (!tail || m == n) {
            desc.accumulate = ATTR(3) >> 1 & 1;
            if (share_gemm(executor, desc, bytes, &op->gemm[GEMM_DW], err))
                return err->status;
        }
        desc.accumulate = true;
        if (share_gemm(executor, desc, bytes, &op->gemm[tail ? GEMM_DW_TAIL : GEMM_DW_MORE],
                       err))
            return err->status;
    }
    return ZINF_OK;
}

static zinf_status prepare_logits(zinf_executor *executor, zinf_op *op, zinf_error *err)
{
    const zinf_gemm_desc desc = {
        .m = 1, .n = ROWS(1), .k = COLS(0), .lda = LD(0), .ldb = LD(1), .ldc = LD(2),
        .ab_dtype = op->operands[0].dtype, .c_dtype = ZINF_F32, .trans_b = true};
    return share_gemm(executor, desc, op->operands[3].bytes, &op->gemm[0], err);
}

static const struct {
    zinf_status (*run)(zinf_executor *executor, const zinf_op *op,
                       char *const p[ZINF_MAX_OPERANDS], zinf_error *err);
    zinf_status (*prepare)(zinf_executor *executor, zinf_op *op, zinf_error *err);
} operations[ZINF_N_OPCODES] = {
    [ZINF_OP_EMBEDDING_FORWARD] = {run_embedding_forward, NULL},
    [ZINF_OP_EMBEDDING_BACKWARD] = {run_embedding_backward, NULL},
    [ZINF_OP_POSITION_BACKWARD] = {run_position_backward, NULL},
    [ZINF_OP_LAYERNORM_FORWARD] = {run_layernorm_forward, NULL},
    [ZINF_OP_LAYERNORM_BACKWARD] = {run_layernorm_backward, NULL},
    [ZINF_OP_RMSNORM_FORWARD] = {run_rmsnorm_forward, NULL},
    [ZINF_OP_RMSNORM_BACKWARD] = {run_rmsnorm_backward, NULL},
    [ZINF_OP_LINEAR_FORWARD] = {run_linear_forward, prepare_linear_forward},
    [ZINF_OP_LINEAR_BACKWARD_INPUT] = {run_linear_backward_input, prepare_linear_input},
    [ZINF_OP_LINEAR_BACKWARD_WEIGHT] = {run_linear_backward_weight, prepare_linear_weight},
    [ZINF_OP_ROPE] = {run_rope, NULL},
    [ZINF_OP_ATTENTION_FORWARD] = {run_attention_forward, NULL},
    [ZINF_OP_ATTENTION_BACKWARD] = {run_attention_backward, NULL},
    [ZINF_OP_GELU_FORWARD] = {run_gelu_forward, NULL},
    [ZINF_OP_GELU_BACKWARD] = {run_gelu_backward, NULL},
    [ZINF_OP_SWIGLU_FORWARD] = {run_swiglu_forward, NULL},
    [ZINF_OP_SWIGLU_BACKWARD] = {run_swiglu_backward, NULL},
    [ZINF_OP_CLASSIFIER_FORWARD] = {run_classifier_forward, prepare_classifier},
    [ZINF_OP_CLASSIFIER_BACKWARD] = {run_classifier, prepare_classifier},
    [ZINF_OP_CLASSIFIER] = {run_classifier, prepare_classifier},
    [ZINF_OP_LOSS] = {run_loss, NULL},
    [ZINF_OP_LOGITS] = {run_logits, prepare_logits},
    [ZINF_OP_CONVERT] = {run_convert, NULL},
    [ZINF_OP_ACCUMULATE] = {run_accumulate, NULL},
    [ZINF_OP_SUM_OF_SQUARES] = {run_sum_of_squares, NULL},
    [ZINF_OP_CLIP] = {run_clip, NULL},
    [ZINF_OP_ADAM] = {run_adam, NULL},
    [ZINF_OP_UPLOAD] = {run_copy, NULL},
    [ZINF_OP_DOWNLOAD] = {run_copy, NULL},
    [ZINF_OP_READ] = {run_transfer, NULL},
    [ZINF_OP_WRITE] = {run_transfer, NULL},
    [ZINF_OP_COPY] = {run_copy, NULL},
    [ZINF_OP_ALLGATHER] = {run_collective, NULL},
    [ZINF_OP_REDUCE_SCATTER] = {run_collective, NULL},
    [ZINF_OP_REDUCE] = {run_collective, NULL},
    [ZINF_OP_ALLREDUCE] = {run_collective, NULL},
    [ZINF_OP_BROADCAST] = {run_collective, NULL},
    [ZINF_OP_BATCH] = {run_batch, NULL},
    [ZINF_OP_INIT] = {run_init, NULL},
    [ZINF_OP_IMPORT] = {run_state, NULL},
    [ZINF_OP_EXPORT] = {run_state, NULL},
    [ZINF_OP_ZERO] = {run_zero, NULL},
};

zinf_status zinf_op_prepare(zinf_executor *executor, zinf_op *op, zinf_error *err)
{
    op->run = op->elsewhere ? run_elsewhere : operations[op->instr->opcode].run;
    if (operations[op->instr->opcode].prepare)
        return operations[op->instr->opcode].prepare(executor, op, err);
    return ZINF_OK;
}
