/* kernels/ref/gemm.c - matrix product, by definition: one double sum per element. */
#include <stdlib.h>

#include "kernels/ref/ref.h"

struct zinf_gemm {
    zinf_gemm_desc desc;
    int n_threads;
};

static zinf_gemm *gemm_create(const zinf_kernels *self, const zinf_gemm_desc *desc,
                              size_t scratch_bytes)
{
    zinf_gemm *gemm = malloc(sizeof *gemm);

    (void)scratch_bytes;
    if (gemm)
        *gemm = (zinf_gemm){*desc, self->n_threads};
    return gemm;
}

static void gemm_run(zinf_gemm *gemm, const void *a, const void *b, const void *bias,
                     const void *residual, void *c, void *scratch)
{
    const zinf_gemm_desc *d = &gemm->desc;
    const int64_t a_row = d->trans_a ? 1 : d->lda, a_col = d->trans_a ? d->lda : 1;
    const int64_t b_row = d->trans_b ? 1 : d->ldb, b_col = d->trans_b ? d->ldb : 1;

    (void)scratch;
#pragma omp parallel for num_threads(gemm->n_threads)
    for (int64_t i = 0; i < d->m; i++)
        for (int64_t j = 0; j < d->n; j++) {
            double sum = d->accumulate ? get(d->c_dtype, c, i * d->ldc + j) : 0;
            for (int64_t p = 0; p < d->k; p++)
                sum += get(d->ab_dtype, a, i * a_row + p * a_col) *
                       get(d->ab_dtype, b, p * b_row + j * b_col);
            if (d->has_bias)
                sum += get(d->ab_dtype, bias, j);
            if (d->has_residual)
                sum += get(d->ab_dtype, residual, i * d->ldr + j);
            put(d->c_dtype, c, i * d->ldc + j, sum);
        }
}

static void gemm_destroy(zinf_gemm *gemm)
{
    free(gemm);
}

void zinf_ref_gemm(zinf_kernels *table)
{
    table->gemm_create = gemm_create;
    table->gemm_run = gemm_run;
    table->gemm_destroy = gemm_destroy;
}
