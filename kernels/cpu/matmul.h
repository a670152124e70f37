/* kernels/cpu/matmul.h - one oneDNN matmul primitive of fixed shape. Hides the differences of
 * oneDNN 2 and 3; knows nothing of splitting, residuals or conversions (gemm_dnnl.c does).
 */
#ifndef ZINF_KERNELS_CPU_MATMUL_H
#define ZINF_KERNELS_CPU_MATMUL_H

#include "kernels/kernels.h"

typedef struct zinf_matmul zinf_matmul;

/* 0; ENOTSUP if oneDNN has no optimised primitive for it on this CPU; ENOMEM if any allocation
 * failed on the way, also where oneDNN passed over it: then it may have taken another
 * implementation, of other bits. residual is not part of it. ret_scratch_bytes: what run must be
 * given, aligned to 64. */
int zinf_matmul_create(const zinf_gemm_desc *desc, int n_threads, zinf_matmul **ret_matmul,
                       size_t *ret_scratch_bytes);
void zinf_matmul_run(zinf_matmul *matmul, const void *a, const void *b, const void *bias, void *c,
                     void *scratch);
void zinf_matmul_destroy(zinf_matmul *matmul); /* accepts NULL */

/* oneDNN's own name of the implementation chosen; for people. */
const char *zinf_matmul_describe(const zinf_matmul *matmul);

#endif
