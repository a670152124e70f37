/* kernels/cpu/tile.h - the inner product of every level: TILE_ROWS x 2 vectors of sums held in
 * registers. Each element is one chain of fused multiply-adds in the order of k, whatever the
 * position and size of the tile, and may be continued by a later call.
 */
#ifndef ZINF_KERNELS_CPU_TILE_H
#define ZINF_KERNELS_CPU_TILE_H

#include "kernels/cpu/vec.h"

#ifdef __AVX512F__
enum { TILE_ROWS = 12 }; /* x 2 vectors: 24 sums of 32 registers */
#else
enum { TILE_ROWS = 6 }; /* 12 of 16 */
#endif

/* C[rows][n <= 2 VL] = (accumulate ? C : 0) + A B, with A's element (i, p) at a[i * a_row + p *
 * a_col]; `rows` and `full` (n == 2 VL) are constants where it is inlined. */
INLINE void tile(int rows, bool full, int64_t n, int64_t k, const float *a, int64_t a_row,
                 int64_t a_col, const float *b, int64_t ldb, float *c, int64_t ldc,
                 bool accumulate)
{
    const int64_t n0 = full ? VL : n, n1 = full ? VL : n - VL;
    vf sum[TILE_ROWS][2];

    for (int i = 0; i < rows; i++) {
        sum[i][0] = accumulate ? vf_load_n(c + i * ldc, n0) : vf_set(0);
        sum[i][1] = accumulate && n1 > 0 ? vf_load_n(c + i * ldc + VL, n1) : vf_set(0);
    }
    for (int64_t p = 0; p < k; p++) {
        const vf b0 = full ? vf_load(b + p * ldb) : vf_load_n(b + p * ldb, n0);
        const vf b1 = full ? vf_load(b + p * ldb + VL) :
                      n1 > 0 ? vf_load_n(b + p * ldb + VL, n1) : vf_set(0);
        for (int i = 0; i < rows; i++) {
            const vf x = vf_set(a[i * a_row + p * a_col]);
            sum[i][0] = vf_fma(x, b0, sum[i][0]);
            sum[i][1] = vf_fma(x, b1, sum[i][1]);
        }
    }
    for (int i = 0; i < rows; i++) {
        vf_store_n(c + i * ldc, n0, sum[i][0]);
        if (n1 > 0)
            vf_store_n(c + i * ldc + VL, n1, sum[i][1]);
    }
}

#endif
