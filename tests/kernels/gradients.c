/* tests/kernels/gradients.c - the backward operators of the fp32 reference against central
 * differences of its forward operators.
 *
 * With loss = sum of r * y (r random, summed in double), (loss(x + h) - loss(x - h)) / 2h differs
 * from the gradient by h^2 |f'''| / 6 and by EPS * sum|r y| / h, since y is rounded to fp32. At
 * h = 2^-7 and terms of size 1 both stay below 2e-4 and 2e-5 * n_out.
 */
#include "tests/kernels/guard.h"

static const float h = 0x1p-7f;

static double weighted(const float *r, const float *y, int64_t n)
{
    double sum = 0;

    for (int64_t i = 0; i < n; i++)
        sum += (double)r[i] * y[i];
    return sum;
}

static double slope(double (*loss)(void), float *x)
{
    const float kept = *x;

    *x = kept + h;
    const double above = loss(), width = *x;
    *x = kept - h;
    const double below = loss(), span = width - *x;
    *x = kept;
    return (above - below) / span;
}

enum { N = 5, C = 13 };
static float x[N * C], w[C], b[C], y[N * C], r[N * C], stats[2 * N];

static double layernorm_loss(void)
{
    ref.layernorm_forward(&ref, x, w, b, N, C, y, stats);
    return weighted(r, y, N * C);
}

static void layernorm_backward_is_the_slope_of_forward(void)
{
    float dx[N * C], dw[C], db[C], kept_stats[2 * N];
    float scratch[2 * ZINF_REDUCE_CHUNKS * C];

    set(UNIT, ZINF_F32, x, N * C), set(UNIT, ZINF_F32, w, C), set(UNIT, ZINF_F32, b, C);
    set(UNIT, ZINF_F32, r, N * C);
    layernorm_loss();
    memcpy(kept_stats, stats, sizeof stats);
    ref.layernorm_backward(&ref, r, true, x, w, kept_stats, NULL, N, C, false, dx, dw, db,
                           scratch);
    for (int i = 0; i < N * C; i++)
        CHECK(fabs(slope(layernorm_loss, &x[i]) - dx[i]) <= 2e-3);
    for (int i = 0; i < C; i++) {
        CHECK(fabs(slope(layernorm_loss, &w[i]) - dw[i]) <= 1e-3);
        CHECK(fabs(slope(layernorm_loss, &b[i]) - db[i]) <= 1e-3);
    }
}

static double gelu_loss(void)
{
    ref.gelu_forward(&ref, x, N * C, y);
    return weighted(r, y, N * C);
}

static void gelu_backward_is_the_slope_of_forward(void)
{
    float dx[N * C];

    set(UNIT, ZINF_F32, r, N * C);
    for (int i = 0; i < N * C; i++)
        x[i] = (float)(4 * draw_unit());
    ref.gelu_backward(&ref, x, r, false, N * C, dx);
    for (int i = 0; i < N * C; i++)
        CHECK(fabs(slope(gelu_loss, &x[i]) - dx[i]) <= 1e-3);
}

static double rmsnorm_loss(void)
{
    ref.rmsnorm_forward(&ref, x, w, 0.01, N, C, y, stats);
    return weighted(r, y, N * C);
}

static void rmsnorm_backward_is_the_slope_of_forward(void)
{
    float dx[N * C], dw[C], residual[N * C], kept_stats[N], scratch[ZINF_REDUCE_CHUNKS * C];

    set(UNIT, ZINF_F32, x, N * C), set(UNIT, ZINF_F32, w, C), set(UNIT, ZINF_F32, r, N * C);
    set(UNIT, ZINF_F32, residual, N * C);
    rmsnorm_loss();
    memcpy(kept_stats, stats, sizeof kept_stats);
    ref.rmsnorm_backward(&ref, r, true, x, w, kept_stats, residual, N, C, false, dx, dw, scratch);
    for (int i = 0; i < N * C; i++)
        CHECK(fabs(slope(rmsnorm_loss, &x[i]) + residual[i] - dx[i]) <= 1e-3);
    for (int i = 0; i < C; i++)
        CHECK(fabs(slope(rmsnorm_loss, &w[i]) - dw[i]) <= 1e-3);
}

enum { F = 7 };
static float gated[N * 2 * F];

static double swiglu_loss(void)
{
    ref.swiglu_forward(&ref, gated, N, F, y);
    return weighted(r, y, N * F);
}

static void swiglu_backward_is_the_slope_of_forward(void)
{
    float dx[N * 2 * F];

    set(UNIT, ZINF_F32, r, N * F);
    for (int i = 0; i < N * 2 * F; i++)
        gated[i] = (float)(4 * draw_unit());
    ref.swiglu_backward(&ref, gated, r, true, N, F, dx);
    for (int i = 0; i < N * 2 * F; i++)
        CHECK(fabs(slope(swiglu_loss, &gated[i]) - dx[i]) <= 2e-3);
}

enum { TURNED = 3, WIDE = 10, LD = 41 }; /* heads, head dim, elements between tokens */
static const double frequencies[WIDE / 2] = {1, 0.3, 0.09, 0.027, 0.0081};
static float tokens_of[6 * LD], turned[6 * LD], rope_weight[6 * LD];

static double rope_loss(void)
{
    memcpy(turned, tokens_of, sizeof turned);
    ref.rope(&ref, frequencies, 2, 3, TURNED, WIDE, LD, false, turned);
    return weighted(rope_weight, turned, 6 * LD);
}

static void inverse_rope_is_the_slope_of_forward(void)
{
    float d[6 * LD];

    set(UNIT, ZINF_F32, tokens_of, 6 * LD), set(UNIT, ZINF_F32, rope_weight, 6 * LD);
    memcpy(d, rope_weight, sizeof d);
    ref.rope(&ref, frequencies, 2, 3, TURNED, WIDE, LD, true, d);
    for (int i = 0; i < 6 * LD; i++)
        CHECK(fabs(slope(rope_loss, &tokens_of[i]) - d[i]) <= 1e-3);
}

enum { BATCH = 2, SEQ = 6, HEADS = 4, D = 3, TOKENS = BATCH * SEQ, OUT = TOKENS * HEADS * D,
       QKV = TOKENS * 3 * HEADS * D };
static float qkv[QKV], out[OUT], out_weight[OUT], lse[BATCH * HEADS * SEQ];
static double attention_scratch[32768];
static int64_t kv_heads;

static double attention_loss(void)
{
    ref.attention_forward(&ref, qkv, BATCH, SEQ, HEADS, kv_heads, D, out, lse,
                          attention_scratch);
    return weighted(out_weight, out, OUT);
}

static void attention_backward_is_the_slope_of_forward(void)
{
    static const int64_t kv[] = {4, 2, 1};
    float dqkv[QKV], kept_out[OUT], kept_lse[BATCH * HEADS * SEQ];

    CHECK(zinf_attention_scratch_bytes(SEQ, D, 2) <= sizeof attention_scratch);
    for (int k = 0; k < 3; k++) {
        const int64_t n = TOKENS * (HEADS + 2 * kv[k]) * D;

        kv_heads = kv[k];
        set(UNIT, ZINF_F32, qkv, n), set(UNIT, ZINF_F32, out_weight, OUT);
        attention_loss();
        memcpy(kept_out, out, sizeof out);
        memcpy(kept_lse, lse, sizeof lse);
        ref.attention_backward(&ref, qkv, kept_out, out_weight, kept_lse, BATCH, SEQ, HEADS,
                               kv_heads, D, dqkv, attention_scratch);
        for (int64_t i = 0; i < n; i++)
            CHECK_MESSAGE(fabs(slope(attention_loss, &qkv[i]) - dqkv[i]) <= 2e-3,
                          "kv heads %d: dqkv[%d] = %g, slope %g", (int)kv[k], (int)i, dqkv[i],
                          slope(attention_loss, &qkv[i]));
    }
}

enum { M = 4, V = 11, CUT = 5 };
static float logits[M * V];
static const int32_t targets[M] = {0, 10, 4, 5};

static double cross_entropy(void)
{
    float tile_stats[3 * M];

    ref.softmax_stats(&ref, logits, V, targets, 0, CUT, M, true, tile_stats);
    ref.softmax_stats(&ref, logits + CUT, V, targets, CUT, V - CUT, M, false, tile_stats);
    return ref.softmax_loss(&ref, tile_stats, M);
}

static void softmax_backward_is_the_slope_of_the_loss_over_tiles(void)
{
    float whole[3 * M], d[M * V];

    set(UNIT, ZINF_F32, logits, M * V);
    ref.softmax_stats(&ref, logits, V, targets, 0, V, M, true, whole);
    ref.softmax_backward(&ref, logits, V, targets, whole, 0, CUT, M, 1, d, V);
    ref.softmax_backward(&ref, logits + CUT, V, targets, whole, CUT, V - CUT, M, 1, d + CUT, V);
    for (int i = 0; i < M * V; i++)
        CHECK(fabs(slope(cross_entropy, &logits[i]) - d[i]) <= 1e-3);
}

int main(void)
{
    zinf_kernels_ref(&ref, ZINF_F32, 2);
    RUN(layernorm_backward_is_the_slope_of_forward);
    RUN(rmsnorm_backward_is_the_slope_of_forward);
    RUN(swiglu_backward_is_the_slope_of_forward);
    RUN(inverse_rope_is_the_slope_of_forward);
    RUN(gelu_backward_is_the_slope_of_forward);
    RUN(attention_backward_is_the_slope_of_forward);
    RUN(softmax_backward_is_the_slope_of_the_loss_over_tiles);
    return check_finish();
}
