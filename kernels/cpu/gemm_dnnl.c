/* kernels/cpu/gemm_dnnl.c - GEMM by oneDNN on AVX-512 and above: splits what needs too much scratch,
 * splits k so that bits do not depend on the shape, adds residuals.
 *
 * oneDNN cuts a long k into blocks whose size its heuristics take from m, n and the threads; sums
 * of blocks rounded at other places have other bits. Up to a length (most_k, measured with 2.6.3
 * over 15 shapes, 1 and 2 threads, both transpositions) it never cuts, so k is cut here at
 * multiples of that length, and the pieces are accumulated in fp32: in C, or, if C is bf16, in a
 * block of the scratch. Exception: m = 1 or n = 1, for which oneDNN has other kernels.
 *
 * A residual is copied (converted to the type of C, which is exact) into C before the product is
 * accumulated there: C is rounded once, as with a binary post-op, for one more pass over C.
 */
#include <stdlib.h>
#include <string.h>

#include "kernels/bf16.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/matmul.h"

enum { FIRST_K, MIDDLE_K, LAST_K, N_K };

struct zinf_gemm {
    zinf_gemm_desc desc;
    int n_threads;
    int64_t step_m, step_n, step_k; /* of one piece; the last may be smaller */
    bool through_block;             /* C is bf16, its sums in the scratch: [step_m][step_n] */
    zinf_matmul *piece[2][2][N_K];  /* [m is last][n is last][which k] */
    zinf_kernels vectors;           /* the table that has made: */
    zinf_gemm *fallback;            /* oneDNN has nothing good: it does everything */
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

/* The longest k that oneDNN never cuts; 0 for implementations that have not been measured. */
static int64_t most_k(const char *implementation, zinf_dtype c_dtype)
{
    if (strstr(implementation, "amx"))
        return c_dtype == ZINF_BF16 ? 1024 : 512;
    return strncmp(implementation, "brg:avx512", 10) ? 0 : 384;
}

static void release_pieces(zinf_gemm *gemm)
{
    for (int i = 0; i < 4 * N_K; i++) {
        zinf_matmul_destroy(gemm->piece[i / N_K >> 1][i / N_K & 1][i % N_K]);
        gemm->piece[i / N_K >> 1][i / N_K & 1][i % N_K] = NULL;
    }
}

static int64_t size_of_piece(int64_t whole, int64_t step, bool last)
{
    return last ? whole % step : step;
}

/* Creates a primitive for every size of piece that the steps lead to. False if oneDNN lacks one,
 * or chose an implementation that may cut k. */
static bool create_pieces(zinf_gemm *gemm, size_t *ret_scratch_bytes)
{
    const zinf_gemm_desc *d = &gemm->desc;

    *ret_scratch_bytes = 0;
    for (int i = 0; i < 4 * N_K; i++) {
        const int last_m = i / N_K >> 1, last_n = i / N_K & 1, which_k = i % N_K;
        zinf_gemm_desc piece = *d;
        size_t bytes = 0;

        piece.m = size_of_piece(d->m, gemm->step_m, last_m);
        piece.n = size_of_piece(d->n, gemm->step_n, last_n);
        piece.k = size_of_piece(d->k, gemm->step_k, which_k == LAST_K);
        if (!piece.m || !piece.n || !piece.k || (which_k == MIDDLE_K && d->k < 2 * gemm->step_k))
            continue;
        piece.accumulate = which_k != FIRST_K ||
                           (!gemm->through_block && (d->accumulate || d->has_residual));
        piece.has_bias = d->has_bias && which_k == FIRST_K;
        if (gemm->through_block) {
            piece.c_dtype = ZINF_F32;
            piece.ldc = piece.n;
        }
        zinf_matmul *matmul = zinf_matmul_create(&piece, gemm->n_threads, &bytes);
        gemm->piece[last_m][last_n][which_k] = matmul;
        if (!matmul || piece.k > most_k(zinf_matmul_describe(matmul), piece.c_dtype)) {
            release_pieces(gemm);
            return false;
        }
        *ret_scratch_bytes = bytes > *ret_scratch_bytes ? bytes : *ret_scratch_bytes;
    }
    return true;
}

static size_t block_bytes(const zinf_gemm *gemm)
{
    return gemm->through_block ? zinf_align64(4 * (uint64_t)(gemm->step_m * gemm->step_n)) : 0;
}

/* Halves the pieces, first rows, then columns, until primitive and block fit the scratch. */
static bool fit(zinf_gemm *gemm, size_t scratch_bytes)
{
    size_t needed;

    gemm->step_m = gemm->desc.m;
    gemm->step_n = gemm->desc.n;
    for (;;) {
        if (block_bytes(gemm) <= scratch_bytes) {
            if (!create_pieces(gemm, &needed))
                return false;
            if (needed + block_bytes(gemm) <= scratch_bytes)
                return true;
            release_pieces(gemm);
        }
        if (gemm->step_m > 64)
            gemm->step_m = (gemm->step_m + 1) / 2;
        else if (gemm->step_n > 64)
            gemm->step_n = (gemm->step_n + 1) / 2;
        else
            return false;
    }
}

/* Chooses the length of k's pieces by asking oneDNN what it would use for a short one. */
static bool prepare(zinf_gemm *gemm, size_t scratch_bytes)
{
    const zinf_gemm_desc *d = &gemm->desc;
    zinf_gemm_desc probe = *d;
    size_t bytes;

    probe.k = least(d->k, 256);
    zinf_matmul *matmul = zinf_matmul_create(&probe, gemm->n_threads, &bytes);
    if (!matmul)
        return false;
    const char *name = zinf_matmul_describe(matmul);
    gemm->step_k = most_k(name, d->c_dtype);
    gemm->through_block = d->c_dtype == ZINF_BF16 &&
                          (d->k > gemm->step_k || (d->accumulate && d->has_residual));
    if (gemm->through_block)
        gemm->step_k = most_k(name, ZINF_F32);
    gemm->step_k = least(gemm->step_k, d->k);
    zinf_matmul_destroy(matmul);
    return gemm->step_k > 0 && fit(gemm, scratch_bytes);
}

static void gemm_destroy(zinf_gemm *gemm)
{
    if (!gemm)
        return;
    release_pieces(gemm);
    if (gemm->fallback)
        gemm->vectors.gemm_destroy(gemm->fallback);
    free(gemm);
}

static zinf_gemm *gemm_create(const zinf_kernels *self, const zinf_gemm_desc *desc,
                              size_t scratch_bytes)
{
    zinf_gemm *gemm = calloc(1, sizeof *gemm);
    const size_t usable = scratch_bytes > 63 ? scratch_bytes - 63 : 0; /* aligned by run */

    if (!gemm)
        return NULL;
    gemm->desc = *desc;
    gemm->n_threads = self->n_threads;
    if (desc->m < 1 || desc->n < 1 || (desc->k > 0 && prepare(gemm, usable)))
        return gemm;
    gemm->vectors = *self;
    zinf_cpu_gemm_avx512(&gemm->vectors);
    gemm->fallback = gemm->vectors.gemm_create(&gemm->vectors, desc, scratch_bytes);
    if (!gemm->fallback) {
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

/* C (bf16) from its sums: adds what is to be added, rounds. */
static void store_block(const zinf_gemm *gemm, const float *sums, int64_t m, int64_t n,
                        const uint16_t *residual, uint16_t *c)
{
    const zinf_gemm_desc *d = &gemm->desc;

#pragma omp parallel for num_threads(gemm->n_threads) schedule(static)
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            float sum = sums[i * n + j];
            if (d->accumulate)
                sum += zinf_bf16_to_f32(c[i * d->ldc + j]);
            if (d->has_residual)
                sum += zinf_bf16_to_f32(residual[i * d->ldr + j]);
            c[i * d->ldc + j] = zinf_bf16_from_f32(sum);
        }
}

/* The piece [m][n] of C at (i, j), over all of k. */
static void run_piece(zinf_gemm *gemm, int64_t i, int64_t j, const void *a, const void *b,
                      const void *bias, const void *residual, void *c, char *scratch)
{
    const zinf_gemm_desc *d = &gemm->desc;
    const int64_t m = least(gemm->step_m, d->m - i), n = least(gemm->step_n, d->n - j);
    zinf_matmul *const *pieces = gemm->piece[m < gemm->step_m][n < gemm->step_n];
    const int64_t a_i = d->trans_a ? 1 : d->lda, a_p = d->trans_a ? d->lda : 1;
    const int64_t b_p = d->trans_b ? 1 : d->ldb, b_j = d->trans_b ? d->ldb : 1;
    void *to = at(c, d->c_dtype, i * d->ldc + j), *sums = gemm->through_block ? scratch : to;

    for (int64_t p = 0; p < d->k; p += gemm->step_k)
        zinf_matmul_run(pieces[!p ? FIRST_K : d->k - p < gemm->step_k ? LAST_K : MIDDLE_K],
                        at_const(a, d->ab_dtype, i * a_i + p * a_p),
                        at_const(b, d->ab_dtype, p * b_p + j * b_j),
                        at_const(bias, d->ab_dtype, j), sums, scratch + block_bytes(gemm));
    if (gemm->through_block)
        store_block(gemm, sums, m, n, at_const(residual, d->ab_dtype, i * d->ldr + j), to);
}

static void gemm_run(zinf_gemm *gemm, const void *a, const void *b, const void *bias,
                     const void *residual, void *c, void *scratch)
{
    const zinf_gemm_desc *d = &gemm->desc;
    char *aligned = (char *)zinf_align64((uint64_t)(uintptr_t)scratch);

    if (gemm->fallback) {
        gemm->vectors.gemm_run(gemm->fallback, a, b, bias, residual, c, scratch);
        return;
    }
    if (d->m < 1 || d->n < 1)
        return;
    if (d->has_residual && !gemm->through_block)
        add_residual(gemm, residual, c);
    for (int64_t i = 0; i < d->m; i += gemm->step_m)
        for (int64_t j = 0; j < d->n; j += gemm->step_n)
            run_piece(gemm, i, j, a, b, bias, residual, c, aligned);
}

void zinf_cpu_gemm_dnnl(zinf_kernels *table)
{
    table->gemm_create = gemm_create;
    table->gemm_run = gemm_run;
    table->gemm_destroy = gemm_destroy;
}
