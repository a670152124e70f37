/* kernels/cpu/gemm_dnnl.c - GEMM by oneDNN on AVX-512 and above: splits what needs too much
 * scratch, adds residuals. What oneDNN lacks is left to gemm.c.
 *
 * A residual is copied (converted to the type of C, which is exact) into C before the product is
 * accumulated there: C is rounded once, as with a binary post-op, for one more pass over C. Where
 * C is bf16 and kept as well, that would round twice: gemm.c does it.
 *
 * Bits and shapes: oneDNN 2.6 has one implementation for dense matrices (brgemm) and another for
 * rows that lie apart, and both cut a long k into blocks of a size taken from m, n and the
 * threads. In fp32 neither cuts k <= 384 (15 shapes, 1, 2, 3 and 8 threads): there bits depend on
 * neither tiles nor threads; beyond, only the bound holds. Cutting k here at multiples of 384
 * (512 with AMX) gave equal bits everywhere in fp32, but cost a factor of 2 in fp32 and 4 in bf16
 * (pieces of a long k lie apart), so it is not done.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/bf16.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/matmul.h"

struct zinf_gemm {
    zinf_gemm_desc desc;
    int n_threads;
    int64_t step_m, step_n;   /* of one piece; the last may be smaller */
    zinf_matmul *piece[2][2]; /* [m is last][n is last] */
    size_t a_bytes, b_bytes, c_bytes; /* of the copies of a piece's matrices, 0: used in place */
    zinf_kernels vectors;     /* the table that has made: */
    zinf_gemm *fallback;      /* does everything if not NULL */
};

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
    for (int i = 0; i < 4; i++) {
        zinf_matmul_destroy(gemm->piece[i >> 1][i & 1]);
        gemm->piece[i >> 1][i & 1] = NULL;
    }
}

/* A stored matrix; the elements of its rows follow each other, its rows are ld apart. */
static bool lies_apart(int64_t rows, int64_t cols, int64_t ld)
{
    return rows > 1 && ld != cols;
}

static size_t copy_bytes(int64_t rows, int64_t cols, zinf_dtype dtype)
{
    return zinf_align64((uint64_t)(rows * cols) * zinf_dtype_bytes(dtype));
}

/* What is computed for one size of piece: of matrices that lie apart, dense copies are used. */
static zinf_gemm_desc describe_piece(zinf_gemm *gemm, bool last_m, bool last_n)
{
    const zinf_gemm_desc *d = &gemm->desc;
    zinf_gemm_desc p = *d;

    p.m = last_m ? d->m % gemm->step_m : gemm->step_m;
    p.n = last_n ? d->n % gemm->step_n : gemm->step_n;
    p.accumulate = d->accumulate || d->has_residual;
    const int64_t a_rows = p.trans_a ? p.k : p.m, a_cols = p.trans_a ? p.m : p.k;
    const int64_t b_rows = p.trans_b ? p.n : p.k, b_cols = p.trans_b ? p.k : p.n;
    if (!last_m && !last_n) { /* the largest */
        gemm->a_bytes = lies_apart(a_rows, a_cols, d->lda)
                            ? copy_bytes(a_rows, a_cols, d->ab_dtype) : 0;
        gemm->b_bytes = lies_apart(b_rows, b_cols, d->ldb)
                            ? copy_bytes(b_rows, b_cols, d->ab_dtype) : 0;
        gemm->c_bytes = lies_apart(p.m, p.n, d->ldc) ? copy_bytes(p.m, p.n, d->c_dtype) : 0;
    }
    p.lda = gemm->a_bytes ? a_cols : d->lda;
    p.ldb = gemm->b_bytes ? b_cols : d->ldb;
    p.ldc = gemm->c_bytes ? p.n : d->ldc;
    return p;
}

/* oneDNN's older kernels, which it has for a vector, or on an older CPU, in place of its brgemm,
 * are slower than gemm.c, their bits depend on the shape even for a short k, and a vector's take
 * megabytes that no scratch pad shows: ENOTSUP. */
static int create_brgemm(const zinf_gemm_desc *desc, int n_threads, zinf_matmul **ret_matmul,
                         size_t *ret_scratch_bytes)
{
    const int code = zinf_matmul_create(desc, n_threads, ret_matmul, ret_scratch_bytes);

    if (code || !strncmp(zinf_matmul_describe(*ret_matmul), "brg", 3))
        return code;
    zinf_matmul_destroy(*ret_matmul);
    *ret_matmul = NULL;
    return ENOTSUP;
}

/* Creates a primitive for every size of piece that the steps lead to: 0, ENOMEM or ENOTSUP. */
static int create_pieces(zinf_gemm *gemm, size_t *ret_scratch_bytes)
{
    const zinf_gemm_desc *d = &gemm->desc;

    *ret_scratch_bytes = 0;
    for (int i = 0; i < 4; i++) {
        const zinf_gemm_desc piece = describe_piece(gemm, i >> 1, i & 1);
        size_t bytes = 0;

        if (!piece.m || !piece.n || piece.m > d->m || piece.n > d->n)
            continue;
        const int code = create_brgemm(&piece, gemm->n_threads, &gemm->piece[i >> 1][i & 1],
                                       &bytes);
        if (code) {
            release_pieces(gemm);
            return code;
        }
        *ret_scratch_bytes = bytes > *ret_scratch_bytes ? bytes : *ret_scratch_bytes;
    }
    *ret_scratch_bytes += gemm->a_bytes + gemm->b_bytes + gemm->c_bytes;
    return 0;
}

/* Whether oneDNN has its brgemm for these types on this CPU (or below ONEDNN_MAX_CPU_ISA): 0,
 * ENOMEM or ENOTSUP. */
static int find_brgemm(const zinf_gemm *gemm)
{
    const zinf_gemm_desc probe = {.m = 64, .n = 64, .k = 64, .lda = 64, .ldb = 64, .ldc = 64,
                                  .ab_dtype = gemm->desc.ab_dtype, .c_dtype = gemm->desc.c_dtype};
    size_t bytes;
    zinf_matmul *matmul;
    const int code = create_brgemm(&probe, gemm->n_threads, &matmul, &bytes);

    zinf_matmul_destroy(matmul);
    return code;
}

/* Halves the pieces, first rows, then columns, until the primitives fit the scratch: 0, ENOMEM,
 * or ENOTSUP if they never do. */
static int fit(zinf_gemm *gemm, size_t scratch_bytes)
{
    size_t needed;

    gemm->step_m = gemm->desc.m;
    gemm->step_n = gemm->desc.n;
    for (;;) {
        const int code = create_pieces(gemm, &needed);
        if (code || needed <= scratch_bytes)
            return code;
        release_pieces(gemm);
        if (gemm->step_m > 64)
            gemm->step_m = (gemm->step_m + 1) / 2;
        else if (gemm->step_n > 64)
            gemm->step_n = (gemm->step_n + 1) / 2;
        else
            return ENOTSUP;
    }
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
    const bool twice = desc->accumulate && desc->has_residual && desc->c_dtype != ZINF_F32;

    if (!gemm)
        return NULL;
    gemm->desc = *desc;
    gemm->n_threads = self->n_threads;
    if (desc->m < 1 || desc->n < 1)
        return gemm;
    int code = desc->k > 0 && !twice ? find_brgemm(gemm) : ENOTSUP;
    if (!code)
        code = fit(gemm, usable);
    if (!code)
        return gemm;
    if (code == ENOMEM) { /* no reason for the other bits of gemm.c */
        gemm_destroy(gemm);
        return NULL;
    }
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
static void add_rows(const zinf_gemm_desc *d, const void *residual, void *c)
{
#pragma omp for schedule(static)
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

static void add_residual(const zinf_gemm *gemm, const void *residual, void *c)
{
    const zinf_gemm_desc *d = &gemm->desc;

    if (residual == c && !d->accumulate && d->ldr == d->ldc && d->ab_dtype == d->c_dtype)
        return;
    TEAM(gemm->n_threads, true, add_rows(d, residual, c));
}

static void copy_rows(const char *from, size_t from_ld, char *to, size_t to_ld, int64_t rows,
                      size_t row_bytes)
{
#pragma omp for schedule(static)
    for (int64_t i = 0; i < rows; i++)
        memcpy(to + (size_t)i * to_ld, from + (size_t)i * from_ld, row_bytes);
}

/* Rows between a matrix that lies apart and its dense copy. */
static void copy_matrix(const zinf_gemm *gemm, zinf_dtype dtype, const void *from,
                        int64_t from_ld, void *to, int64_t to_ld, int64_t rows, int64_t cols)
{
    const size_t bytes = zinf_dtype_bytes(dtype);

    TEAM(gemm->n_threads, rows > 1,
         copy_rows(from, (size_t)from_ld * bytes, to, (size_t)to_ld * bytes, rows,
                   (size_t)cols * bytes));
}

static void run_piece(const zinf_gemm *gemm, int64_t i, int64_t j, const void *a, const void *b,
                      const void *bias, void *c, char *scratch)
{
    const zinf_gemm_desc *d = &gemm->desc;
    const bool last_m = d->m - i < gemm->step_m, last_n = d->n - j < gemm->step_n;
    const int64_t m = last_m ? d->m - i : gemm->step_m, n = last_n ? d->n - j : gemm->step_n;
    char *copy_a = scratch, *copy_b = copy_a + gemm->a_bytes, *copy_c = copy_b + gemm->b_bytes;
    const void *from_a = at_const(a, d->ab_dtype, d->trans_a ? i : i * d->lda);
    const void *from_b = at_const(b, d->ab_dtype, d->trans_b ? j * d->ldb : j);
    void *to = at(c, d->c_dtype, i * d->ldc + j);

    if (gemm->a_bytes && j == 0)
        copy_matrix(gemm, d->ab_dtype, from_a, d->lda, copy_a, d->trans_a ? m : d->k,
                    d->trans_a ? d->k : m, d->trans_a ? m : d->k);
    if (gemm->b_bytes)
        copy_matrix(gemm, d->ab_dtype, from_b, d->ldb, copy_b, d->trans_b ? d->k : n,
                    d->trans_b ? n : d->k, d->trans_b ? d->k : n);
    if (gemm->c_bytes && (d->accumulate || d->has_residual))
        copy_matrix(gemm, d->c_dtype, to, d->ldc, copy_c, n, m, n);
    zinf_matmul_run(gemm->piece[last_m][last_n], gemm->a_bytes ? copy_a : from_a,
                    gemm->b_bytes ? copy_b : from_b, at_const(bias, d->ab_dtype, j),
                    gemm->c_bytes ? copy_c : to, copy_c + gemm->c_bytes);
    if (gemm->c_bytes)
        copy_matrix(gemm, d->c_dtype, copy_c, n, to, d->ldc, m, n);
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
    if (d->has_residual)
        add_residual(gemm, residual, c);
    for (int64_t i = 0; i < d->m; i += gemm->step_m)
        for (int64_t j = 0; j < d->n; j += gemm->step_n)
            run_piece(gemm, i, j, a, b, bias, c, aligned);
}

void zinf_cpu_gemm_dnnl(zinf_kernels *table)
{
    table->gemm_library = true;
    table->gemm_create = gemm_create;
    table->gemm_run = gemm_run;
    table->gemm_destroy = gemm_destroy;
}
