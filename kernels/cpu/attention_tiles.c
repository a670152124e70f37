/* kernels/cpu/attention_tiles.c - causal attention of bf16 on tiles (tiles.h), for the levels above
 * avx512; see kernels/ref/attention.c for the equations. All products take bf16 and sum in fp32;
 * scores and softmax are fp32; p and ds are rounded to bf16 (2^-8 of each) for the products that
 * follow. Any seq and head_dim: packed copies are padded with zeros to 64 rows and 32 columns.
 *
 * Forward meets the keys in chunks of 128 with a running maximum (as FlashAttention); 32 query
 * rows of a chunk's scores stay in the first-level cache. Backward makes blocks of 64 keys x 64
 * queries of S^T and (dO V^T)^T, which serve as operands without being transposed. The order of
 * every sum is fixed by seq and head_dim.
 *
 * Bound: 256 elements cost 16 cycles of AMX's tile unit for each 32 of depth, and about as many
 * 512-bit operations as soften and backward_rows have lines: at D = 64 the vectors take longer
 * than the tiles.
 */
#include <math.h>
#include <omp.h>

#include "kernels/cpu/tiles.h"
#include "kernels/cpu/cpu.h"

enum { KEYS = 128, ROWS = 32, BLOCK = 64 };
#define LOG2_E 1.4426950408889634

typedef struct shape {
    int64_t seq, heads, kv_heads, dim, row; /* row: elements of a token in qkv */
    int64_t rows_padded, dim_padded;        /* multiples of 64 and 32 */
    double scale;
} shape;

static shape shape_of(int64_t seq, int64_t heads, int64_t kv_heads, int64_t head_dim)
{
    return (shape){seq, heads, kv_heads, head_dim, (heads + 2 * kv_heads) * head_dim,
                   (seq + BLOCK - 1) / BLOCK * BLOCK, (head_dim + 31) / 32 * 32,
                   1 / sqrt((double)head_dim)};
}

static char *scratch_of_thread(void *scratch, const shape *s)
{
    return (char *)scratch + zinf_attention_scratch_bytes((uint64_t)s->seq, (uint64_t)s->dim, 1) *
                             (uint64_t)omp_get_thread_num();
}

/* What a block of query rows carries from chunk to chunk. */
typedef struct running {
    float most[BLOCK];                 /* of the raw scores */
    _Alignas(64) float sum[BLOCK][16]; /* of p, by lanes */
} running;

/* One row of scores, of which the first `valid` count, becomes p as bf16 in its own place; what
 * was summed so far is brought to the new maximum. n: vectors, 8 if `full`. */
INLINE void soften(bool full, int64_t n, int64_t valid, float scale2, bool first, float *row,
                   float *ret_most, float *sum, float *out, int64_t dim)
{
    vf s[KEYS / 16], most = vf_set(-INFINITY);

    for (int k = 0; k < KEYS / 16; k++) {
        s[k] = vf_set(-INFINITY);
        if (full)
            s[k] = vf_load(row + 16 * k);
        else if (k < n)
            s[k] = _mm512_mask_loadu_ps(s[k], VF_MASK(valid - 16 * k), row + 16 * k);
    }
    for (int k = 0; k < KEYS / 16; k++)
        most = vf_max(s[k], most);
    const float old = *ret_most, found = _mm512_reduce_max_ps(most);
    const float top = !first && found <= old ? old : found;
    vf total = vf_set(0);

    if (first) {
        *ret_most = top;
    } else {
        total = vf_load(sum);
        if (!(top <= old)) {
            const vf factor = vf_exp2_short(vf_set((old - top) * scale2));
            total *= factor;
            for (int64_t d = 0; d < dim; d += 16)
                vf_store(out + d, vf_load(out + d) * factor);
            *ret_most = top;
        }
    }
    const vf from = vf_set(top);
    for (int k = 0; k < KEYS / 16; k += 2) {
        if (!full && k >= n)
            break;
        for (int i = k; i < k + 2; i++) {
            s[i] = vf_exp2_short((s[i] - from) * vf_set(scale2));
            total += s[i];
        }
        _mm512_storeu_si512((char *)row + 32 * k, two_narrow(s[k], s[k + 1]));
    }
    vf_store(sum, total);
}

/* K as B of a transposed matrix [n / 16][D / 32], V as B [n / 32][D / 16] */
static void pack_keys(const shape *s, const uint16_t *qkv, int64_t b, int64_t g, char *k, char *v)
{
    const int64_t at = b * s->seq * s->row + (s->heads + g) * s->dim;
    const tiles_rows keys = {qkv + at, s->row, s->seq, s->dim};
    const tiles_rows values = {qkv + at + s->kv_heads * s->dim, s->row, s->seq, s->dim};

    tiles_pack_b_of_transposed(&keys, s->rows_padded, s->dim_padded, k);
    tiles_pack_b(&values, s->rows_padded, s->dim_padded, v);
}

/* 32 query rows against keys [j0, j0 + n), n a multiple of 32; row0: their first row in the
 * block, which begins at i0. */
static void meet_keys(const shape *s, int64_t i0, int64_t row0, int64_t j0, int64_t n, char *q,
                      char *k, char *v, running *run, float *scores, float *out)
{
    const int64_t depth = s->dim_padded / TILE_K, columns = s->dim_padded / TILE_C;
    const float scale2 = (float)(s->scale * LOG2_E);

    tiles_product(1, n / 32, depth,
                  (tiles_view){q + row0 / 16 * depth * TILE_BYTES, depth * TILE_BYTES, TILE_BYTES,
                               64},
                  (tiles_view){k + j0 / 16 * depth * TILE_BYTES, depth * TILE_BYTES, TILE_BYTES,
                               64},
                  (tiles_view){(char *)scores, 16 * KEYS * 4, 64, KEYS * 4}, false);
    for (int64_t i = 0; i < ROWS; i++) {
        const int64_t valid = i0 + row0 + i + 1 - j0, at = row0 + i;

        if (valid >= KEYS && n == KEYS)
            soften(true, KEYS / 16, KEYS, scale2, !j0, scores + i * KEYS, &run->most[at],
                   run->sum[at], out + at * s->dim_padded, s->dim_padded);
        else
            soften(false, n / 16, valid, scale2, !j0, scores + i * KEYS, &run->most[at],
                   run->sum[at], out + at * s->dim_padded, s->dim_padded);
    }
    tiles_product(1, columns / 2, n / 32, (tiles_view){(char *)scores, 16 * KEYS * 4, 64, KEYS * 4},
                  (tiles_view){v + j0 / 32 * columns * TILE_BYTES, TILE_BYTES, columns * TILE_BYTES,
                               64},
                  (tiles_view){(char *)(out + row0 * s->dim_padded), 16 * s->dim_padded * 4, 64,
                               s->dim_padded * 4}, j0 > 0);
}

static void forward_head(const shape *s, const uint16_t *qkv, int64_t b, int64_t h, char *scratch,
                         uint16_t *out, float *lse)
{
    const int64_t matrix = s->rows_padded * s->dim_padded * 2, width = s->heads * s->dim;
    char *k = scratch, *v = k + matrix, *q = v + matrix; /* [seq][D], [seq][D], [64][D] bf16 */
    float *o = (float *)(q + BLOCK * s->dim_padded * 2); /* [64][D] */
    float *scores = o + BLOCK * s->dim_padded;           /* [32][128] */
    running run;

    for (int64_t i0 = 0; i0 < s->seq; i0 += BLOCK) {
        const int64_t token = b * s->seq + i0, rows = s->seq - i0 < BLOCK ? s->seq - i0 : BLOCK;
        const tiles_rows queries = {qkv + token * s->row + h * s->dim, s->row, rows, s->dim};

        tiles_pack_a(&queries, BLOCK, s->dim_padded, q);
        for (int64_t j0 = 0; j0 < i0 + BLOCK; j0 += KEYS)
            for (int64_t row0 = 0; row0 < BLOCK; row0 += ROWS) {
                const int64_t n = i0 + row0 + ROWS - j0;
                meet_keys(s, i0, row0, j0, n < KEYS ? n : KEYS, q, k, v, &run, scores, o);
            }
        for (int64_t i = 0; i < rows; i++) {
            const float total = vf_sum(vf_load(run.sum[i]));
            const vf factor = vf_set(1 / total);

            for (int64_t d = 0; d < s->dim; d += 16)
                bf_store_n(out + (token + i) * width + h * s->dim + d, s->dim - d,
                           vf_load(o + i * s->dim_padded + d) * factor);
            lse[i0 + i] = (float)(run.most[i] * s->scale + log((double)total));
        }
    }
}

static void forward_heads(const shape *s, const void *qkv, int64_t batch, void *out, float *lse,
                          void *scratch)
{
    const int64_t group = s->heads / s->kv_heads;
    char *own = scratch_of_thread(scratch, s);
    int64_t packed = -1;

    tiles_begin();
#pragma omp for schedule(static)
    for (int64_t bh = 0; bh < batch * s->heads; bh++) {
        if (bh / group != packed) {
            packed = bh / group;
            pack_keys(s, qkv, packed / s->kv_heads, packed % s->kv_heads, own,
                      own + s->rows_padded * s->dim_padded * 2);
        }
        forward_head(s, qkv, bh / s->heads, bh % s->heads, own, out, lse + bh * s->seq);
    }
    tiles_end();
}

static void attention_forward(const zinf_kernels *self, const void *qkv, int64_t batch,
                              int64_t seq, int64_t heads, int64_t kv_heads, int64_t head_dim,
                              void *out, float *lse, void *scratch)
{
    const shape s = shape_of(seq, heads, kv_heads, head_dim);

    TEAM(self->n_threads, true, forward_heads(&s, qkv, batch, out, lse, scratch));
}

/* One thread's scratch, backward; R = rows_padded, D = dim_padded. */
typedef struct pieces {
    char *k, *v, *k_t;              /* A: [R/16][D/32], [R/16][D/32], [D/16][R/32] tiles */
    char *q_t, *dout_t, *q, *dout;  /* B: [R/16][D/32] twice, [R/32][D/16] twice */
    float *dk, *dv, *dq_t;          /* [R][D], [R][D], [R/64][D][64] */
    float *lse2, *delta;            /* [R]: lse log2(e), row sums of dout * out */
    float *s_t, *dp_t;              /* [64 keys][64 queries] */
} pieces;

static void *carve(char **at, int64_t bytes)
{
    void *piece = *at;

    *at += bytes;
    return piece;
}

static pieces carve_pieces(const shape *s, char *at)
{
    const int64_t n = s->rows_padded * s->dim_padded;
    pieces p;

    p.s_t = carve(&at, BLOCK * BLOCK * 4);
    p.dp_t = carve(&at, BLOCK * BLOCK * 4);
    p.k = carve(&at, 2 * n);
    p.v = carve(&at, 2 * n);
    p.k_t = carve(&at, 2 * n);
    p.q_t = carve(&at, 2 * n);
    p.dout_t = carve(&at, 2 * n);
    p.q = carve(&at, 2 * n);
    p.dout = carve(&at, 2 * n);
    p.dk = carve(&at, 4 * n);
    p.dv = carve(&at, 4 * n);
    p.dq_t = carve(&at, 4 * n);
    p.lse2 = carve(&at, 4 * s->rows_padded);
    p.delta = carve(&at, 4 * s->rows_padded);
    return p;
}

/* Two key rows, 2 r and the next, of 64 queries: scores become p and ds = p (dp - delta), each a
 * row of operand A: of S^T's row of 256 bytes, 32 queries of p, 32 of ds, and so again; ds also a
 * row of operand B, in the first of the two rows of dP^T. Queries before `first` see none. */
INLINE void backward_rows(bool masked, float scale2, const float *lse2, const float *delta,
                          int64_t first, float *s_t, float *dp_t)
{
    const vi zip = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8,
                                    23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);

    for (int half = 0; half < 2; half++) {
        vf p[2][2], ds[2][2]; /* [row][16 queries] */

        for (int r = 0; r < 2; r++)
            for (int c = 0; c < 2; c++) {
                const int i = 32 * half + 16 * c;
                const vf x = vf_fma(vf_load(s_t + 64 * r + i), vf_set(scale2),
                                    vf_set(0) - vf_load(lse2 + i));
                p[r][c] = vf_exp2_short(x);
                ds[r][c] = p[r][c] * (vf_load(dp_t + 64 * r + i) - vf_load(delta + i));
                if (masked) {
                    const __mmask16 seen = (__mmask16)~VF_MASK(first + r - i);
                    p[r][c] = _mm512_maskz_mov_ps(seen, p[r][c]);
                    ds[r][c] = _mm512_maskz_mov_ps(seen, ds[r][c]);
                }
            }
        for (int r = 0; r < 2; r++) {
            char *to = (char *)(s_t + 64 * r + 32 * half);
            _mm512_storeu_si512(to, two_narrow(p[r][0], p[r][1]));
            _mm512_storeu_si512(to + 64, two_narrow(ds[r][0], ds[r][1]));
        }
        for (int c = 0; c < 2; c++)
            _mm512_storeu_si512(dp_t + 32 * half + 16 * c, _mm512_permutexvar_epi16(
                zip, two_narrow(ds[0][c], ds[1][c])));
    }
}

/* Keys [j0, j0 + 64) and queries [i0, i0 + 64) */
static void backward_block(const shape *s, const pieces *p, int64_t i0, int64_t j0)
{
    const int64_t depth = s->dim_padded / TILE_K, columns = s->dim_padded / TILE_C;
    const int64_t keys = s->rows_padded / TILE_K, row = BLOCK * 4, dim_row = s->dim_padded * 4;
    const int64_t at_k = j0 / 16 * depth * TILE_BYTES, at_q = i0 / 16 * depth * TILE_BYTES;
    const tiles_view s_t = {(char *)p->s_t, 16 * row, 64, row};
    const tiles_view dp_t = {(char *)p->dp_t, 16 * row, 64, row};
    const float scale2 = (float)(s->scale * LOG2_E);

    tiles_product(2, 2, depth, (tiles_view){p->k + at_k, depth * TILE_BYTES, TILE_BYTES, 64},
                  (tiles_view){p->q_t + at_q, depth * TILE_BYTES, TILE_BYTES, 64}, s_t, false);
    tiles_product(2, 2, depth, (tiles_view){p->v + at_k, depth * TILE_BYTES, TILE_BYTES, 64},
                  (tiles_view){p->dout_t + at_q, depth * TILE_BYTES, TILE_BYTES, 64}, dp_t, false);
    for (int64_t r = 0; r < BLOCK; r += 2) {
        float *scores = p->s_t + r * BLOCK, *dp = p->dp_t + r * BLOCK;
        if (i0 == j0)
            backward_rows(true, scale2, p->lse2 + i0, p->delta + i0, r, scores, dp);
        else
            backward_rows(false, scale2, p->lse2 + i0, p->delta + i0, 0, scores, dp);
    }
    const int64_t at_b = i0 / 32 * columns * TILE_BYTES;
    tiles_product(2, columns / 2, 2, (tiles_view){(char *)p->s_t, 16 * row, 128, row},
                  (tiles_view){p->dout + at_b, TILE_BYTES, columns * TILE_BYTES, 64},
                  (tiles_view){(char *)(p->dv + j0 * s->dim_padded), 16 * dim_row, 64, dim_row},
                  true);
    tiles_product(2, columns / 2, 2, (tiles_view){(char *)p->s_t + 64, 16 * row, 128, row},
                  (tiles_view){p->q + at_b, TILE_BYTES, columns * TILE_BYTES, 64},
                  (tiles_view){(char *)(p->dk + j0 * s->dim_padded), 16 * dim_row, 64, dim_row},
                  true);
    tiles_product(columns / 2, 2, 2,
                  (tiles_view){p->k_t + j0 / 32 * TILE_BYTES, keys * TILE_BYTES, TILE_BYTES, 64},
                  (tiles_view){(char *)p->dp_t, 64, 32 * row, 2 * row},
                  (tiles_view){(char *)(p->dq_t + i0 * s->dim_padded), 16 * row, 64, row}, true);
}

typedef struct backward_args {
    const uint16_t *qkv, *out, *dout;
    const float *lse; /* [batch][H][seq] */
    uint16_t *dqkv;
} backward_args;

/* The query side of a head: its packed copies, lse2 and delta; padding has q = dout = 0. */
static void pack_queries(const shape *s, const backward_args *a, int64_t b, int64_t h, pieces *p)
{
    const int64_t token = b * s->seq, width = s->heads * s->dim, at = token * width + h * s->dim;
    const tiles_rows q = {a->qkv + token * s->row + h * s->dim, s->row, s->seq, s->dim};
    const tiles_rows dout = {a->dout + at, width, s->seq, s->dim};
    const float *lse = a->lse + (b * s->heads + h) * s->seq;

    tiles_pack_b_of_transposed(&q, s->rows_padded, s->dim_padded, p->q_t);
    tiles_pack_b_of_transposed(&dout, s->rows_padded, s->dim_padded, p->dout_t);
    tiles_pack_b(&q, s->rows_padded, s->dim_padded, p->q);
    tiles_pack_b(&dout, s->rows_padded, s->dim_padded, p->dout);
    memset(p->dq_t, 0, (size_t)(s->rows_padded * s->dim_padded) * sizeof *p->dq_t);
    for (int64_t i = 0; i < s->rows_padded; i++) {
        vf sum = vf_set(0);

        for (int64_t d = 0; i < s->seq && d < s->dim; d += 16)
            sum = vf_fma(bf_load_n(a->out + at + i * width + d, s->dim - d),
                         bf_load_n(a->dout + at + i * width + d, s->dim - d), sum);
        p->delta[i] = vf_sum(sum);
        p->lse2[i] = i < s->seq ? (float)(lse[i] * LOG2_E) : 0;
    }
}

static void store_rows(const shape *s, const float *from, float scale, int64_t n, uint16_t *to)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t d = 0; d < s->dim; d += 16)
            bf_store_n(to + i * s->row + d, s->dim - d,
                       vf_load(from + i * s->dim_padded + d) * vf_set(scale));
}

/* dq of a head, from [R / 64][D][64] */
static void store_transposed(const shape *s, const float *from, float scale, uint16_t *to)
{
    for (int64_t i = 0; i < s->seq; i += 16)
        for (int64_t d = 0; d < s->dim; d += 16) {
            const float *at = from + i / BLOCK * BLOCK * s->dim_padded + d * BLOCK + i % BLOCK;
            vi r[16];

            for (int q = 0; q < 16; q++)
                r[q] = _mm512_loadu_si512(at + q * BLOCK);
            tiles_transpose(r);
            for (int q = 0; q < 16 && i + q < s->seq; q++)
                bf_store_n(to + (i + q) * s->row + d, s->dim - d,
                           _mm512_castsi512_ps(r[q]) * vf_set(scale));
        }
}

static void backward_kv_head(const shape *s, const backward_args *a, int64_t b, int64_t g,
                             char *scratch)
{
    const int64_t group = s->heads / s->kv_heads, token = b * s->seq;
    const int64_t at_k = token * s->row + (s->heads + g) * s->dim;
    const int64_t at_v = at_k + s->kv_heads * s->dim;
    const tiles_rows k = {a->qkv + at_k, s->row, s->seq, s->dim};
    const tiles_rows v = {a->qkv + at_v, s->row, s->seq, s->dim};
    const float scale = (float)s->scale;
    pieces p = carve_pieces(s, scratch);

    tiles_pack_a(&k, s->rows_padded, s->dim_padded, p.k);
    tiles_pack_a(&v, s->rows_padded, s->dim_padded, p.v);
    tiles_pack_a_of_transposed(&k, s->rows_padded, s->dim_padded, p.k_t);
    memset(p.dk, 0, (size_t)(s->rows_padded * s->dim_padded) * sizeof *p.dk);
    memset(p.dv, 0, (size_t)(s->rows_padded * s->dim_padded) * sizeof *p.dv);
    for (int64_t h = g * group; h < (g + 1) * group; h++) {
        pack_queries(s, a, b, h, &p);
        for (int64_t j0 = 0; j0 < s->rows_padded; j0 += BLOCK)
            for (int64_t i0 = j0; i0 < s->rows_padded; i0 += BLOCK)
                backward_block(s, &p, i0, j0);
        store_transposed(s, p.dq_t, scale, a->dqkv + token * s->row + h * s->dim);
    }
    store_rows(s, p.dk, scale, s->seq, a->dqkv + at_k);
    store_rows(s, p.dv, 1, s->seq, a->dqkv + at_v);
}

static void backward_heads(const shape *s, const backward_args *args, int64_t batch,
                           void *scratch)
{
    tiles_begin();
#pragma omp for schedule(static)
    for (int64_t bg = 0; bg < batch * s->kv_heads; bg++)
        backward_kv_head(s, args, bg / s->kv_heads, bg % s->kv_heads,
                         scratch_of_thread(scratch, s));
    tiles_end();
}

static void attention_backward(const zinf_kernels *self, const void *qkv, const void *out,
                               const void *dout, const float *lse, int64_t batch, int64_t seq,
                               int64_t heads, int64_t kv_heads, int64_t head_dim, void *dqkv,
                               void *scratch)
{
    const shape s = shape_of(seq, heads, kv_heads, head_dim);
    const backward_args args = {qkv, out, dout, lse, dqkv};

    TEAM(self->n_threads, true, backward_heads(&s, &args, batch, scratch));
}

void LEVEL(zinf_cpu_attention)(zinf_kernels *table)
{
    table->attention_forward = attention_forward;
    table->attention_backward = attention_backward;
}
