/* kernels/cpu/gemm.c - GEMM in vectors of fp32, compiled once per level: fp32 of every level, and
 * bf16 where there are no dot products of it.
 *
 * C is cut into blocks, each owned by one thread; its piece of scratch holds fp32 panels of A and
 * B, zero padded, and the block's sums. Every element is one chain of fused multiply-adds in the
 * order of k, which begins with C where C is accumulated; then (bias, residual) are added and the
 * result rounded: its bits depend on neither shape, threads nor scratch, and where C is fp32 not
 * on how k is cut into calls.
 */
#include <omp.h>
#include <stdlib.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/tile.h"

enum { TILE_COLS = 2 * VL, BLOCK_ROWS = 240, BLOCK_COLS = 256, BLOCK_K = 256 };

struct zinf_gemm {
    zinf_gemm_desc desc;
    int n_threads;
    int64_t rows, cols, depth; /* of a block: multiples of TILE_ROWS, of TILE_COLS, any */
    size_t bytes;              /* scratch of one thread */
};

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t padded(int64_t n, int64_t multiple)
{
    return (n + multiple - 1) / multiple * multiple;
}

static size_t block_bytes(const zinf_gemm *gemm)
{
    return zinf_align64(4 * (uint64_t)(gemm->rows * gemm->depth + gemm->depth * gemm->cols +
                                       gemm->rows * gemm->cols));
}

static zinf_gemm *gemm_create(const zinf_kernels *self, const zinf_gemm_desc *desc,
                              size_t scratch_bytes)
{
    const size_t usable = scratch_bytes > 63 ? scratch_bytes - 63 : 0; /* aligned by run */
    zinf_gemm *gemm = malloc(sizeof *gemm);

    if (!gemm)
        return NULL;
    *gemm = (zinf_gemm){.desc = *desc, .n_threads = self->n_threads};
    gemm->rows = padded(least(desc->m > 1 ? desc->m : 1, BLOCK_ROWS), TILE_ROWS);
    gemm->cols = padded(least(desc->n > 1 ? desc->n : 1, BLOCK_COLS), TILE_COLS);
    gemm->depth = least(desc->k > 1 ? desc->k : 1, BLOCK_K);
    /* smaller blocks, until each thread has its own; then fewer threads */
    while ((gemm->bytes = block_bytes(gemm)) * (size_t)gemm->n_threads > usable) {
        if (gemm->rows > 4 * TILE_ROWS)
            gemm->rows = padded(gemm->rows / 2, TILE_ROWS);
        else if (gemm->cols > 2 * TILE_COLS)
            gemm->cols = padded(gemm->cols / 2, TILE_COLS);
        else if (gemm->depth > 64)
            gemm->depth /= 2;
        else if (gemm->n_threads > 1)
            gemm->n_threads--;
        else if (gemm->depth > 1)
            gemm->depth /= 2;
        else if (gemm->rows > TILE_ROWS || gemm->cols > TILE_COLS) {
            gemm->rows = TILE_ROWS;
            gemm->cols = TILE_COLS;
        } else {
            gemm->bytes = 0; /* less than a tile: on the stack */
            break;
        }
    }
    return gemm;
}

/* Panels of `width` rows of op(A) or columns of op(B): [panel][depth][width], zero padded. Element
 * (i, p) of the source is at i * step_i + p * step_p, one of which is 1. */
INLINE void pack(bool bf16, const void *from, int64_t at, int64_t step_i, int64_t step_p,
                 int64_t n, int64_t depth, int64_t width, float *to)
{
    for (int64_t i0 = 0; i0 < n; i0 += width, to += width * depth) {
        const int64_t count = least(width, n - i0);
        const int64_t base = at + i0 * step_i;

        if (step_i == 1) {
            for (int64_t p = 0; p < depth; p++)
                for (int64_t i = 0; i < width; i += VL)
                    vf_store_n(to + p * width + i, width - i,
                               act_load(bf16, from, base + p * step_p + i, count - i));
            continue;
        }
        for (int64_t p = 0; p < depth; p += VL)
            for (int64_t i = 0; i < width; i += VL) {
                vf r[VL];
                for (int64_t q = 0; q < VL; q++)
                    r[q] = i + q < count ? act_load(bf16, from, base + (i + q) * step_i + p,
                                                    depth - p) : vf_set(0);
                vf_transpose(r);
                for (int64_t q = 0; q < VL && p + q < depth; q++)
                    vf_store_n(to + (p + q) * width + i, width - i, r[q]);
            }
    }
}

/* The sums begin with C's block at (i0, j0), zero padded. */
INLINE void load_block(bool c_bf16, const zinf_gemm *gemm, const void *c, int64_t i0, int64_t j0,
                       float *sums)
{
    const zinf_gemm_desc *d = &gemm->desc;
    const int64_t m = least(gemm->rows, d->m - i0), n = least(gemm->cols, d->n - j0);

    for (int64_t i = 0; i < padded(m, TILE_ROWS); i++)
        for (int64_t j = 0; j < padded(n, TILE_COLS); j += VL)
            vf_store(sums + i * gemm->cols + j,
                     act_load(c_bf16, c, (i0 + i) * d->ldc + j0 + j, i < m ? n - j : 0));
}

/* C's block at (i0, j0) from its sums [rows][cols]: adds what is to be added, rounds. */
INLINE void store_block(bool ab_bf16, bool c_bf16, const zinf_gemm *gemm, const float *sums,
                        int64_t i0, int64_t j0, const void *bias, const void *residual, void *c)
{
    const zinf_gemm_desc *d = &gemm->desc;
    const int64_t m = least(gemm->rows, d->m - i0), n = least(gemm->cols, d->n - j0);

    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j += VL) {
            const int64_t at = (i0 + i) * d->ldc + j0 + j;
            vf x = vf_load(sums + i * gemm->cols + j);

            if (d->has_bias)
                x += act_load(ab_bf16, bias, j0 + j, n - j);
            if (d->has_residual)
                x += act_load(ab_bf16, residual, (i0 + i) * d->ldr + j0 + j, n - j);
            act_store(c_bf16, c, at, n - j, x);
        }
}

INLINE void run_block(bool ab_bf16, bool c_bf16, const zinf_gemm *gemm, int64_t i0, int64_t j0,
                      const void *a, const void *b, const void *bias, const void *residual,
                      void *c, float *scratch)
{
    const zinf_gemm_desc *d = &gemm->desc;
    const int64_t m = least(gemm->rows, d->m - i0), n = least(gemm->cols, d->n - j0);
    const int64_t a_i = d->trans_a ? 1 : d->lda, a_p = d->trans_a ? d->lda : 1;
    const int64_t b_p = d->trans_b ? 1 : d->ldb, b_j = d->trans_b ? d->ldb : 1;
    float *panels_a = scratch, *panels_b = panels_a + gemm->rows * gemm->depth;
    float *sums = panels_b + gemm->depth * gemm->cols;

    if (d->accumulate)
        load_block(c_bf16, gemm, c, i0, j0, sums);
    else if (d->k < 1)
        memset(sums, 0, (size_t)(gemm->rows * gemm->cols) * sizeof *sums);
    for (int64_t p = 0; p < d->k; p += gemm->depth) {
        const int64_t k = least(gemm->depth, d->k - p);

        pack(ab_bf16, a, i0 * a_i + p * a_p, a_i, a_p, m, k, TILE_ROWS, panels_a);
        pack(ab_bf16, b, j0 * b_j + p * b_p, b_j, b_p, n, k, TILE_COLS, panels_b);
        for (int64_t j = 0; j < n; j += TILE_COLS)
            for (int64_t i = 0; i < m; i += TILE_ROWS)
                tile(TILE_ROWS, true, TILE_COLS, k, panels_a + i * k, 1, TILE_ROWS,
                     panels_b + j * k, TILE_COLS, sums + i * gemm->cols + j, gemm->cols,
                     d->accumulate || p > 0);
    }
    store_block(ab_bf16, c_bf16, gemm, sums, i0, j0, bias, residual, c);
}

typedef struct arguments {
    const void *a, *b, *bias, *residual;
    void *c;
} arguments;

static void run_numbered(const zinf_gemm *gemm, const arguments *x, int64_t block, float *scratch)
{
    const int64_t blocks_n = (gemm->desc.n + gemm->cols - 1) / gemm->cols;
    const int64_t i = block / blocks_n * gemm->rows, j = block % blocks_n * gemm->cols;

    if (gemm->desc.ab_dtype != ZINF_BF16)
        run_block(false, false, gemm, i, j, x->a, x->b, x->bias, x->residual, x->c, scratch);
    else if (gemm->desc.c_dtype != ZINF_BF16)
        run_block(true, false, gemm, i, j, x->a, x->b, x->bias, x->residual, x->c, scratch);
    else
        run_block(true, true, gemm, i, j, x->a, x->b, x->bias, x->residual, x->c, scratch);
}

static void gemm_run(zinf_gemm *gemm, const void *a, const void *b, const void *bias,
                     const void *residual, void *c, void *scratch)
{
    const zinf_gemm_desc *d = &gemm->desc;
    const arguments x = {a, b, bias, residual, c};
    char *aligned = (char *)zinf_align64((uint64_t)(uintptr_t)scratch);
    float small[TILE_ROWS + TILE_COLS + TILE_ROWS * TILE_COLS];

    if (d->m < 1 || d->n < 1)
        return;
    const int64_t blocks = (d->m + gemm->rows - 1) / gemm->rows *
                           ((d->n + gemm->cols - 1) / gemm->cols);
    if (gemm->n_threads < 2 || blocks < 2 || !gemm->bytes) { /* no team of one: see cpu.h */
        for (int64_t block = 0; block < blocks; block++)
            run_numbered(gemm, &x, block, gemm->bytes ? (float *)aligned : small);
        return;
    }
#pragma omp parallel for num_threads(gemm->n_threads) schedule(dynamic)
    for (int64_t block = 0; block < blocks; block++)
        run_numbered(gemm, &x, block,
                     (float *)(aligned + gemm->bytes * (size_t)omp_get_thread_num()));
}

static void gemm_destroy(zinf_gemm *gemm)
{
    free(gemm);
}

void LEVEL(zinf_cpu_gemm)(zinf_kernels *table)
{
    table->gemm_create = gemm_create;
    table->gemm_run = gemm_run;
    table->gemm_destroy = gemm_destroy;
}
