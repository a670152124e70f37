/* kernels/cpu/attention.c - causal attention, compiled once per level. Blocks of 64 query rows
 * meet all their keys at once: scores are [64][seq], never [seq][seq]. All sums in fp32, in an
 * order fixed by seq and head_dim; see kernels/ref/attention.c for the equations.
 */
#include <math.h>
#include <omp.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/tile.h"

static void product(int64_t m, int64_t n, int64_t k, const float *a, int64_t a_row, int64_t a_col,
                    const float *b, int64_t ldb, float *c, int64_t ldc, bool accumulate)
{
    for (int64_t j = 0; j < n; j += 2 * VL)
        for (int64_t i = 0; i < m; i += TILE_ROWS) {
            const int64_t left = n - j;
            const float *from = a + i * a_row;
            float *to = c + i * ldc + j;

            if (m - i >= TILE_ROWS && left >= 2 * VL)
                tile(TILE_ROWS, true, left, k, from, a_row, a_col, b + j, ldb, to, ldc,
                     accumulate);
            else if (m - i >= TILE_ROWS)
                tile(TILE_ROWS, false, left < 2 * VL ? left : 2 * VL, k, from, a_row, a_col,
                     b + j, ldb, to, ldc, accumulate);
            else if (left >= 2 * VL && m - i >= 4)
                for (int64_t r = 0; r < m - i; r += m - i - r >= 4 ? 4 : 1) {
                    if (m - i - r >= 4)
                        tile(4, true, left, k, from + r * a_row, a_row, a_col, b + j, ldb,
                             to + r * ldc, ldc, accumulate);
                    else
                        tile(1, true, left, k, from + r * a_row, a_row, a_col, b + j, ldb,
                             to + r * ldc, ldc, accumulate);
                }
            else
                for (int64_t r = 0; r < m - i; r++)
                    tile(1, false, left < 2 * VL ? left : 2 * VL, k, from + r * a_row, a_row,
                         a_col, b + j, ldb, to + r * ldc, ldc, accumulate);
        }
}

typedef struct shape {
    bool bf16;
    int64_t seq, heads, kv_heads, head_dim, row; /* row: elements of a token in qkv */
    float scale;
} shape;

static shape shape_of(const zinf_kernels *self, int64_t seq, int64_t heads, int64_t kv_heads,
                      int64_t head_dim)
{
    return (shape){self->act == ZINF_BF16, seq, heads, kv_heads, head_dim,
                   (heads + 2 * kv_heads) * head_dim, (float)(1 / sqrt((double)head_dim))};
}

/* [n][D] fp32, dense, from rows `ld` elements apart, the first at `at`. */
static void load_rows(const shape *s, const void *from, int64_t at, int64_t ld, int64_t n,
                      float *to)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t d = 0; d < s->head_dim; d += VL)
            vf_store_n(to + i * s->head_dim + d, s->head_dim - d,
                       act_load(s->bf16, from, at + i * ld + d, s->head_dim - d));
}

static void store_rows(const shape *s, const float *from, int64_t n, void *to, int64_t at,
                       int64_t ld)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t d = 0; d < s->head_dim; d += VL)
            act_store(s->bf16, to, at + i * ld + d, s->head_dim - d,
                      vf_load_n(from + i * s->head_dim + d, s->head_dim - d));
}

/* [D][n] from [n][D], 16 columns of the result at a time: a cache line of each row. */
static void transpose(const float *from, int64_t n, int64_t head_dim, float *to)
{
    for (int64_t i = 0; i < n; i += 16)
        for (int64_t d = 0; d < head_dim; d++)
            for (int64_t j = i; j < n && j < i + 16; j++)
                to[d * n + j] = from[j * head_dim + d];
}

static float *scratch_of_thread(void *scratch, const shape *s)
{
    const uint64_t bytes = zinf_attention_scratch_bytes((uint64_t)s->seq, (uint64_t)s->head_dim,
                                                        1);

    return (float *)((char *)scratch + bytes * (uint64_t)omp_get_thread_num());
}

static int64_t block_rows(const shape *s, int64_t i0)
{
    return s->seq - i0 < ZINF_ATTENTION_BLOCK ? s->seq - i0 : ZINF_ATTENTION_BLOCK;
}

/* Scores of row i (of which the first i + 1 count) become exp(scale (s - max)), the rest up to n
 * zero. Returns the sum; *ret_lse the log-sum-exp. */
INLINE float soften(float *row, int64_t i, int64_t n, float scale, float *ret_lse)
{
    vf most = vf_set(-INFINITY), sum[2] = {vf_set(0), vf_set(0)};

    for (int64_t j = 0; j <= i; j += VL)
        most = vf_max(vf_keep(vf_load_n(row + j, i + 1 - j), i + 1 - j, -INFINITY), most);
    const float top = vf_most(most);
    for (int64_t j = 0; j < n; j += VL) {
        const vf e = j > i ? vf_set(0) :
            vf_keep(vf_exp((vf_load_n(row + j, n - j) - vf_set(top)) * vf_set(scale)), i + 1 - j,
                    0);
        sum[j / VL & 1] += e;
        vf_store_n(row + j, n - j, e);
    }
    const float total = vf_sum(sum[0] + sum[1]);
    *ret_lse = (float)((double)top * scale + log((double)total));
    return total;
}

static void forward_head(const shape *s, const void *qkv, int64_t b, int64_t h, void *out,
                         float *lse, float *scratch)
{
    const int64_t seq = s->seq, dim = s->head_dim, g = h / (s->heads / s->kv_heads);
    const int64_t token = b * seq, out_row = s->heads * dim;
    float *scores = scratch;                           /* [64][seq] */
    float *v = scores + ZINF_ATTENTION_BLOCK * seq;    /* [seq][D] */
    float *k_t = v + seq * dim;                        /* [D][seq] */
    float *q = k_t + seq * dim, *o = q + seq * dim;    /* [64][D], and at most [seq][D] */

    load_rows(s, qkv, token * s->row + (s->heads + g) * dim, s->row, seq, v);
    transpose(v, seq, dim, k_t);
    load_rows(s, qkv, token * s->row + (s->heads + s->kv_heads + g) * dim, s->row, seq, v);
    for (int64_t i0 = 0; i0 < seq; i0 += ZINF_ATTENTION_BLOCK) {
        const int64_t rows = block_rows(s, i0), n = i0 + rows;
        float sums[ZINF_ATTENTION_BLOCK];

        load_rows(s, qkv, (token + i0) * s->row + h * dim, s->row, rows, q);
        product(rows, n, dim, q, dim, 1, k_t, seq, scores, seq, false);
        for (int64_t i = 0; i < rows; i++)
            sums[i] = soften(scores + i * seq, i0 + i, n, s->scale, &lse[i0 + i]);
        product(rows, dim, n, scores, seq, 1, v, dim, o, dim, false);
        for (int64_t i = 0; i < rows; i++)
            for (int64_t d = 0; d < dim; d += VL)
                vf_store_n(o + i * dim + d, dim - d,
                           vf_load_n(o + i * dim + d, dim - d) / vf_set(sums[i]));
        store_rows(s, o, rows, out, (token + i0) * out_row + h * dim, out_row);
    }
}

static void forward_heads(const shape *s, const void *qkv, int64_t n, int64_t heads, int64_t seq,
                          void *out, float *lse, void *scratch)
{
#pragma omp for schedule(static)
    for (int64_t bh = 0; bh < n; bh++)
        forward_head(s, qkv, bh / heads, bh % heads, out, lse + bh * seq,
                     scratch_of_thread(scratch, s));
}

static void attention_forward(const zinf_kernels *self, const void *qkv, int64_t batch,
                              int64_t seq, int64_t heads, int64_t kv_heads, int64_t head_dim,
                              void *out, float *lse, void *scratch)
{
    const shape s = shape_of(self, seq, heads, kv_heads, head_dim);

    TEAM(self->n_threads, true,
         forward_heads(&s, qkv, batch * heads, heads, seq, out, lse, scratch));
}

/* One row: scores become p = exp(scale s - lse), dp becomes ds = scale p (dp - delta), where delta
 * is the mean of dp with the weights p. It is dout * out too, but with other roundings: where one p
 * is nearly 1, dp - delta cancels, and what those leave would be far more than is left of it. */
INLINE void backward_row(float *scores, float *dp, int64_t i, int64_t n, float scale, float lse)
{
    vf sum_p = vf_set(0), sum_dp = vf_set(0);

    for (int64_t j = 0; j <= i; j += VL) {
        const int64_t left = n - j;
        const vf p = vf_keep(vf_exp(vf_fma(vf_load_n(scores + j, left), vf_set(scale),
                                           vf_set(-lse))), i + 1 - j, 0);
        vf_store_n(scores + j, left, p);
        sum_p += p;
        sum_dp = vf_fma(p, vf_keep(vf_load_n(dp + j, left), i + 1 - j, 0), sum_dp);
    }
    const vf delta = vf_set(vf_sum(sum_dp) / vf_sum(sum_p));
    for (int64_t j = 0; j < n; j += VL) {
        const int64_t left = n - j;
        vf p = vf_set(0), ds = vf_set(0);

        if (j <= i) {
            p = vf_load_n(scores + j, left);
            ds = vf_keep(vf_set(scale) * p * (vf_load_n(dp + j, left) - delta), i + 1 - j, 0);
        }
        vf_store_n(scores + j, left, p);
        vf_store_n(dp + j, left, ds);
    }
}

typedef struct backward_args {
    const void *qkv, *dout;
    const float *lse; /* [batch][H][seq] */
    void *dqkv;
} backward_args;

static void backward_kv_head(const shape *s, const backward_args *a, int64_t b, int64_t g,
                             float *scratch)
{
    const int64_t seq = s->seq, dim = s->head_dim, group = s->heads / s->kv_heads;
    const int64_t token = b * seq, out_row = s->heads * dim;
    const int64_t at_k = token * s->row + (s->heads + g) * dim, at_v = at_k + s->kv_heads * dim;
    float *scores = scratch, *dp = scores + ZINF_ATTENTION_BLOCK * seq;    /* [64][seq] */
    float *k = dp + ZINF_ATTENTION_BLOCK * seq;                            /* [seq][D] */
    float *k_t = k + seq * dim, *v_t = k_t + seq * dim;                    /* [D][seq] */
    float *dk = v_t + seq * dim, *dv = dk + seq * dim;                     /* [seq][D] */
    float *q = dv + seq * dim, *dout = q + seq * dim, *dq = dout + seq * dim; /* [64][D] */

    load_rows(s, a->qkv, at_v, s->row, seq, k);
    transpose(k, seq, dim, v_t);
    load_rows(s, a->qkv, at_k, s->row, seq, k);
    transpose(k, seq, dim, k_t);
    memset(dk, 0, (size_t)(2 * seq * dim) * sizeof *dk);
    for (int64_t h = g * group; h < (g + 1) * group; h++)
        for (int64_t i0 = 0; i0 < seq; i0 += ZINF_ATTENTION_BLOCK) {
            const int64_t rows = block_rows(s, i0), n = i0 + rows;
            const int64_t at_q = (token + i0) * s->row + h * dim;
            const int64_t at_o = (token + i0) * out_row + h * dim;
            const float *lse = a->lse + (b * s->heads + h) * seq + i0;

            load_rows(s, a->qkv, at_q, s->row, rows, q);
            load_rows(s, a->dout, at_o, out_row, rows, dout);
            product(rows, n, dim, q, dim, 1, k_t, seq, scores, seq, false);
            product(rows, n, dim, dout, dim, 1, v_t, seq, dp, seq, false);
            for (int64_t i = 0; i < rows; i++)
                backward_row(scores + i * seq, dp + i * seq, i0 + i, n, s->scale, lse[i]);
            product(n, dim, rows, scores, 1, seq, dout, dim, dv, dim, true);
            product(n, dim, rows, dp, 1, seq, q, dim, dk, dim, true);
            product(rows, dim, n, dp, seq, 1, k, dim, dq, dim, false);
            store_rows(s, dq, rows, a->dqkv, at_q, s->row);
        }
    store_rows(s, dk, seq, a->dqkv, at_k, s->row);
    store_rows(s, dv, seq, a->dqkv, at_v, s->row);
}

static void backward_heads(const shape *s, const backward_args *args, int64_t n, int64_t kv_heads,
                           void *scratch)
{
#pragma omp for schedule(static)
    for (int64_t bg = 0; bg < n; bg++)
        backward_kv_head(s, args, bg / kv_heads, bg % kv_heads, scratch_of_thread(scratch, s));
}

static void attention_backward(const zinf_kernels *self, const void *qkv, const void *out,
                               const void *dout, const float *lse, int64_t batch, int64_t seq,
                               int64_t heads, int64_t kv_heads, int64_t head_dim, void *dqkv,
                               void *scratch)
{
    const shape s = shape_of(self, seq, heads, kv_heads, head_dim);
    const backward_args args = {qkv, dout, lse, dqkv};

    (void)out; /* level amx has its rows' sums from it */

    TEAM(self->n_threads, true, backward_heads(&s, &args, batch * kv_heads, kv_heads, scratch));
}

void LEVEL(zinf_cpu_attention)(zinf_kernels *table)
{
    table->attention_forward = attention_forward;
    table->attention_backward = attention_backward;
}
