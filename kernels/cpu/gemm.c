/* kernels/cpu/gemm.c - GEMM by oneDNN: splits what needs too much scratch, adds residuals, and
 * computes bf16 in fp32 blocks where oneDNN has no bf16 for this CPU.
 *
 * A residual is copied (converted to the type of C, which is exact) into C before the product is
 * accumulated there: C is then rounded once, as with a binary post-op, for one more pass over C.
 * Where C must be kept as well (accumulate and residual) and is bf16, that would round twice:
 * the blocks do it. No sum depends on m, n or the scratch: k is never split by oneDNN's
 * primitives, and always at multiples of BLOCK_K by the blocks.
 */
#include <stdlib.h>
#include <string.h>

#include "kernels/bf16.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/matmul.h"

enum { BLOCK_K = 512 };

struct zinf_gemm {
    zinf_gemm_desc desc;
    int n_threads;
    int64_t step_m, step_n, step_k; /* of one piece; the last may be smaller */
    bool blocks;                    /* through fp32 blocks in the scratch */
    zinf_matmul *piece[2][2][2];    /* [m is last][n is last][k is last] */
    zinf_gemm *reference;           /* neither works: the reference does it */
    zinf_kernels reference_table;
};

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static void *at(void *array, zinf_dtype dtype, int64_t i)
{
    return array ? (char *)array + i * (int64_t)zinf_dtype_bytes(dtype) : NULL;
}

static const void *at_const(const void *array, zinf_dtype dtype, int64_t i)
{
    return array ? (const char *)array + i * (int64_t)zinf_dtype_bytes(dtype) : NULL;
}

static float load(zinf_dtype dtype, const void *array, int64_t i)
{
    if (dtype == ZINF_BF16)
        return zinf_bf16_to_f32(((const uint16_t *)array)[i]);
    return ((const float *)array)[i];
}

static void release_pieces(zinf_gemm *gemm)
{
    for (int i = 0; i < 8; i++) {
        zinf_matmul_destroy(gemm->piece[i >> 2][i >> 1 & 1][i & 1]);
        gemm->piece[i >> 2][i >> 1 & 1][i & 1] = NULL;
    }
}

/* Creates a primitive for every size of piece that the steps lead to. Blocks are dense. */
static bool create_pieces(zinf_gemm *gemm, size_t *ret_scratch_bytes)
{
    const zinf_gemm_desc *d = &gemm->desc;

    *ret_scratch_bytes = 0;
    for (int i = 0; i < 8; i++) {
        const bool last_m = i >> 2, last_n = i >> 1 & 1, last_k = i & 1;
        zinf_gemm_desc piece = *d;
        size_t bytes = 0;

        piece.m = last_m ? d->m % gemm->step_m : gemm->step_m;
        piece.n = last_n ? d->n % gemm->step_n : gemm->step_n;
        piece.k = last_k ? d->k % gemm->step_k : gemm->step_k;
        if (!piece.m || !piece.n || !piece.k)
            continue;
        piece.accumulate |= d->has_residual;
        if (gemm->blocks) {
            piece.ab_dtype = piece.c_dtype = ZINF_F32;
            piece.lda = d->trans_a ? piece.m : piece.k;
            piece.ldb = d->trans_b ? piece.k : piece.n;
            piece.ldc = piece.n;
            piece.accumulate = true;
            piece.has_bias = false;
        }
        zinf_matmul *matmul = zinf_matmul_create(&piece, gemm->n_threads, &bytes);
        if (!matmul) {
            release_pieces(gemm);
            return false;
        }
        gemm->piece[last_m][last_n][last_k] = matmul;
        *ret_scratch_bytes = bytes > *ret_scratch_bytes ? bytes : *ret_scratch_bytes;
    }
    return true;
}

static size_t block_bytes(const zinf_gemm *gemm)
{
    return gemm->blocks ? zinf_align64(4 * (uint64_t)(gemm->step_m * gemm->step_k)) +
                              zinf_align64(4 * (uint64_t)(gemm->step_k * gemm->step_n)) +
                              zinf_align64(4 * (uint64_t)(gemm->step_m * gemm->step_n)) : 0;
}

/* Halves the pieces, first rows, then columns, until primitive and blocks fit the scratch. */
static bool fit(zinf_gemm *gemm, size_t scratch_bytes)
{
    const zinf_gemm_desc *d = &gemm->desc;
    size_t needed;

    gemm->step_m = gemm->blocks ? least(d->m, 512) : d->m;
    gemm->step_n = gemm->blocks ? least(d->n, 512) : d->n;
    gemm->step_k = gemm->blocks ? least(d->k, BLOCK_K) : d->k;
    for (;;) {
        if (block_bytes(gemm) <= scratch_bytes) {
            if (!create_pieces(gemm, &needed))
                return false;
            if (needed + block_bytes(gemm) <= scratch_bytes)
                return true;
            release_pieces(gemm);
        }
        if (gemm->step_m > 64 || (gemm->step_n <= 64 && gemm->step_m > 1))
            gemm->step_m = (gemm->step_m + 1) / 2;
        else if (gemm->step_n > 1)
            gemm->step_n = (gemm->step_n + 1) / 2;
        else
            return false;
    }
}

static void gemm_destroy(zinf_gemm *gemm)
{
    if (!gemm)
        return;
    release_pieces(gemm);
    if (gemm->reference)
        gemm->reference_table.gemm_destroy(gemm->reference);
    free(gemm);
}

static zinf_gemm *gemm_create(const zinf_kernels *self, const zinf_gemm_desc *desc,
                              size_t scratch_bytes)
{
    zinf_gemm *gemm = calloc(1, sizeof *gemm);
    const size_t usable = scratch_bytes > 63 ? scratch_bytes - 63 : 0; /* aligned by run */
    const bool twice = desc->accumulate && desc->has_residual && desc->c_dtype != ZINF_F32;

    if (!gemm)
        return NULL;
    gemm->desc = *desc;
    gemm->n_threads = self->n_threads;
    if (desc->m < 1 || desc->n < 1)
        return gemm;
    if (desc->k > 0) {
        if (!twice && fit(gemm, usable))
            return gemm;
        gemm->blocks = true;
        if (fit(gemm, usable))
            return gemm;
    }
    zinf_kernels_ref(&gemm->reference_table, self->act, self->n_threads);
    gemm->reference = gemm->reference_table.gemm_create(&gemm->reference_table, desc,
                                                        scratch_bytes);
    if (!gemm->reference) {
        gemm_destroy(gemm);
        return NULL;
    }
    return gemm;
}

/* C = (accumulate ? C : 0) + residual, in the type of C. */
static void add_residual(const zinf_gemm *gemm, const void *residual, void *c)
{
    const zinf_gemm_desc *d = &gemm->desc;

    if (residual == c && !d->accumulate && d->ldr == d->ldc && d->ab_dtype == d->c_dtype)
        return;
#pragma omp parallel for num_threads(gemm->n_threads) schedule(static)
    for (int64_t i = 0; i < d->m; i++) {
        const void *from = at_const(residual, d->ab_dtype, i * d->ldr);
        float *to = at(c, d->c_dtype, i * d->ldc);

        if (d->c_dtype == d->ab_dtype && !d->accumulate)
            memmove(to, from, (size_t)d->n * zinf_dtype_bytes(d->c_dtype));
        else
            for (int64_t j = 0; j < d->n; j++)
                to[j] = (d->accumulate ? to[j] : 0) + load(d->ab_dtype, from, j);
    }
}

/* Copies [rows][cols] into a dense fp32 block. */
static void copy_block(const zinf_gemm *gemm, zinf_dtype dtype, const void *from, int64_t ld,
                       int64_t rows, int64_t cols, float *block)
{
#pragma omp parallel for num_threads(gemm->n_threads) schedule(static)
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++)
            block[i * cols + j] = load(dtype, from, i * ld + j);
}

/* The fp32 block of C starts as what is added to the product. */
static void start_block(const zinf_gemm *gemm, const void *c, const void *bias,
                        const void *residual, int64_t m, int64_t n, float *block)
{
    const zinf_gemm_desc *d = &gemm->desc;

#pragma omp parallel for num_threads(gemm->n_threads) schedule(static)
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            float sum = d->accumulate ? load(d->c_dtype, c, i * d->ldc + j) : 0;
            if (d->has_bias)
                sum += load(d->ab_dtype, bias, j);
            if (d->has_residual)
                sum += load(d->ab_dtype, residual, i * d->ldr + j);
            block[i * n + j] = sum;
        }
}

static void store_block(const zinf_gemm *gemm, const float *block, int64_t m, int64_t n, void *c)
{
    const zinf_gemm_desc *d = &gemm->desc;

#pragma omp parallel for num_threads(gemm->n_threads) schedule(static)
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            if (d->c_dtype == ZINF_BF16)
                ((uint16_t *)c)[i * d->ldc + j] = zinf_bf16_from_f32(block[i * n + j]);
            else
                ((float *)c)[i * d->ldc + j] = block[i * n + j];
        }
}

/* One piece [m][n] of C through blocks: A, B, C, then oneDNN's scratch. */
static void run_blocks(zinf_gemm *gemm, const void *a, const void *b, const void *bias,
                       const void *residual, void *c, int64_t m, int64_t n, char *scratch)
{
    const zinf_gemm_desc *d = &gemm->desc;
    float *block_a = (float *)scratch;
    scratch += zinf_align64(4 * (uint64_t)(gemm->step_m * gemm->step_k));
    float *block_b = (float *)scratch;
    scratch += zinf_align64(4 * (uint64_t)(gemm->step_k * gemm->step_n));
    float *block_c = (float *)scratch;
    scratch += zinf_align64(4 * (uint64_t)(gemm->step_m * gemm->step_n));

    start_block(gemm, c, bias, residual, m, n, block_c);
    for (int64_t p = 0; p < d->k; p += gemm->step_k) {
        const int64_t k = least(gemm->step_k, d->k - p);

        copy_block(gemm, d->ab_dtype, at_const(a, d->ab_dtype, d->trans_a ? p * d->lda : p),
                   d->lda, d->trans_a ? k : m, d->trans_a ? m : k, block_a);
        copy_block(gemm, d->ab_dtype, at_const(b, d->ab_dtype, d->trans_b ? p : p * d->ldb),
                   d->ldb, d->trans_b ? n : k, d->trans_b ? k : n, block_b);
        zinf_matmul_run(gemm->piece[m < gemm->step_m][n < gemm->step_n][k < gemm->step_k],
                        block_a, block_b, NULL, block_c, scratch);
    }
    store_block(gemm, block_c, m, n, c);
}

static void gemm_run(zinf_gemm *gemm, const void *a, const void *b, const void *bias,
                     const void *residual, void *c, void *scratch)
{
    const zinf_gemm_desc *d = &gemm->desc;
    char *aligned = (char *)zinf_align64((uint64_t)(uintptr_t)scratch);

    if (gemm->reference) {
        gemm->reference_table.gemm_run(gemm->reference, a, b, bias, residual, c, scratch);
        return;
    }
    if (d->m < 1 || d->n < 1)
        return;
    if (d->has_residual && !gemm->blocks)
        add_residual(gemm, residual, c);
    for (int64_t i = 0; i < d->m; i += gemm->step_m)
        for (int64_t j = 0; j < d->n; j += gemm->step_n) {
            const int64_t m = least(gemm->step_m, d->m - i), n = least(gemm->step_n, d->n - j);
            const void *piece_a = at_const(a, d->ab_dtype, d->trans_a ? i : i * d->lda);
            const void *piece_b = at_const(b, d->ab_dtype, d->trans_b ? j * d->ldb : j);
            const void *piece_bias = at_const(bias, d->ab_dtype, j);
            void *piece_c = at(c, d->c_dtype, i * d->ldc + j);

            if (gemm->blocks)
                run_blocks(gemm, piece_a, piece_b, piece_bias,
                           at_const(residual, d->ab_dtype, i * d->ldr + j), piece_c, m, n,
                           aligned);
            else
                zinf_matmul_run(gemm->piece[m < gemm->step_m][n < gemm->step_n][0], piece_a,
                                piece_b, piece_bias, piece_c, aligned);
        }
}

void zinf_cpu_gemm(zinf_kernels *table)
{
    table->gemm_create = gemm_create;
    table->gemm_run = gemm_run;
    table->gemm_destroy = gemm_destroy;
}
