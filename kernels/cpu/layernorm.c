/* kernels/cpu/layernorm.c - layer normalisation, compiled once per level. dw and db are summed
 * per chunk of tokens (always ZINF_REDUCE_CHUNKS of them), then over the chunks in order.
 */
#include <float.h>
#include <math.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vec.h"

INLINE void forward(bool bf16, const void *x, const void *w, const void *b, int64_t n,
                    int64_t channels, void *y, float *stats)
{
#pragma omp for schedule(static)
    for (int64_t row = 0; row < n; row++) {
        const int64_t at = row * channels;
        vf sum[4], square[4];

        for (int i = 0; i < 4; i++)
            sum[i] = square[i] = vf_set(0);
        /* four sums at a time, then one */
        int64_t c = 0;
        for (; c + 4 * VL <= channels; c += 4 * VL)
            for (int i = 0; i < 4; i++)
                sum[i] += act_load(bf16, x, at + c + i * VL, VL);
        FOR_VECTORS(j, left, c, channels, sum[0] += act_load(bf16, x, at + j, left));
        const float mean = vf_sum((sum[0] + sum[1]) + (sum[2] + sum[3])) / (float)channels;
        const vf means = vf_set(mean);
        for (c = 0; c + 4 * VL <= channels; c += 4 * VL)
            for (int i = 0; i < 4; i++) {
                const vf d = act_load(bf16, x, at + c + i * VL, VL) - means;
                square[i] = vf_fma(d, d, square[i]);
            }
        FOR_VECTORS(j, left, c, channels, {
            const vf d = vf_keep(act_load(bf16, x, at + j, left) - means, left, 0);
            square[0] = vf_fma(d, d, square[0]);
        });
        const float variance = vf_sum((square[0] + square[1]) + (square[2] + square[3])) /
                               (float)channels;
        /* An overflow must not look like a row of zeros, which 1 / inf would make of it. */
        const float rstd = variance <= FLT_MAX ? 1 / sqrtf(variance + 1e-5f) : NAN;
        const vf rstds = vf_set(rstd);
        FOR_VECTORS(j, left, 0, channels, {
            const vf z = (act_load(bf16, x, at + j, left) - means) * rstds;
            act_store(bf16, y, at + j, left,
                      vf_fma(z, act_load(bf16, w, j, left), act_load(bf16, b, j, left)));
        });
        stats[2 * row] = mean;
        stats[2 * row + 1] = rstd;
    }
}

static void layernorm_forward(const zinf_kernels *self, const void *x, const void *w,
                              const void *b, int64_t n, int64_t channels, void *y, float *stats)
{
    if (self->act == ZINF_BF16)
        TEAM(self->n_threads, n * channels > PARALLEL_FROM,
             forward(true, x, w, b, n, channels, y, stats));
    else
        TEAM(self->n_threads, n * channels > PARALLEL_FROM,
             forward(false, x, w, b, n, channels, y, stats));
}

/* One token: adds to this chunk's sums and writes dx. */
INLINE void backward_row(bool bf16, bool dy_bf16, const void *dy, const void *x, const void *w,
                         const float *stats, const void *residual, int64_t row, int64_t channels,
                         void *dx, float *sum_w, float *sum_b)
{
    const int64_t at = row * channels;
    const vf mean = vf_set(stats[2 * row]), rstd = vf_set(stats[2 * row + 1]);
    vf sum_g = vf_set(0), sum_gz = vf_set(0);

    for (int64_t c = 0; c < channels; c += VL) {
        const int64_t left = channels - c;
        const vf d = act_load(dy_bf16, dy, at + c, left); /* zero beyond the row */
        const vf z = (act_load(bf16, x, at + c, left) - mean) * rstd;
        const vf g = d * act_load(bf16, w, c, left);
        sum_g += g;
        sum_gz = vf_fma(g, z, sum_gz);
        vf_store_n(sum_w + c, left, vf_fma(d, z, vf_load_n(sum_w + c, left)));
        vf_store_n(sum_b + c, left, vf_load_n(sum_b + c, left) + d);
    }
    const vf mean_g = vf_set(vf_sum(sum_g) / (float)channels);
    const vf mean_gz = vf_set(vf_sum(sum_gz) / (float)channels);
    for (int64_t c = 0; c < channels; c += VL) {
        const int64_t left = channels - c;
        const vf d = act_load(dy_bf16, dy, at + c, left);
        const vf z = (act_load(bf16, x, at + c, left) - mean) * rstd;
        const vf inner = vf_fma(-z, mean_gz, vf_fma(d, act_load(bf16, w, c, left), -mean_g));
        const vf r = residual ? act_load(bf16, residual, at + c, left) : vf_set(0);
        act_store(bf16, dx, at + c, left, vf_fma(rstd, inner, r));
    }
}

INLINE void backward(bool bf16, bool dy_bf16, const void *dy, const void *x, const void *w,
                     const float *stats, const void *residual, int64_t n, int64_t channels,
                     bool accumulate, void *dx, float *dw, float *db,
                     float *partial /* [chunks][2][C] */)
{
#pragma omp for schedule(static)
    for (int64_t chunk = 0; chunk < ZINF_REDUCE_CHUNKS; chunk++) {
        float *sum_w = partial + 2 * chunk * channels, *sum_b = sum_w + channels;

        memset(sum_w, 0, (size_t)(2 * channels) * sizeof *sum_w);
        for (int64_t row = n * chunk / ZINF_REDUCE_CHUNKS;
             row < n * (chunk + 1) / ZINF_REDUCE_CHUNKS; row++)
            backward_row(bf16, dy_bf16, dy, x, w, stats, residual, row, channels, dx, sum_w,
                         sum_b);
    }
#pragma omp for schedule(static)
    for (int64_t c = 0; c < channels; c += VL) {
        const int64_t left = channels - c;
        vf sum_w = accumulate ? vf_load_n(dw + c, left) : vf_set(0);
        vf sum_b = accumulate ? vf_load_n(db + c, left) : vf_set(0);

        for (int64_t chunk = 0; chunk < ZINF_REDUCE_CHUNKS; chunk++) {
            sum_w += vf_load_n(partial + 2 * chunk * channels + c, left);
            sum_b += vf_load_n(partial + (2 * chunk + 1) * channels + c, left);
        }
        vf_store_n(dw + c, left, sum_w);
        vf_store_n(db + c, left, sum_b);
    }
}

static void layernorm_backward(const zinf_kernels *self, const void *dy, bool dy_f32,
                               const void *x, const void *w, const float *stats,
                               const void *residual, int64_t n, int64_t channels,
                               bool accumulate, void *dx, float *dw, float *db, void *scratch)
{
    const bool much = n * channels > PARALLEL_FROM;

    if (self->act != ZINF_BF16)
        TEAM(self->n_threads, much, backward(false, false, dy, x, w, stats, residual, n, channels,
                                             accumulate, dx, dw, db, scratch));
    else if (dy_f32)
        TEAM(self->n_threads, much, backward(true, false, dy, x, w, stats, residual, n, channels,
                                             accumulate, dx, dw, db, scratch));
    else
        TEAM(self->n_threads, much, backward(true, true, dy, x, w, stats, residual, n, channels,
                                             accumulate, dx, dw, db, scratch));
}

void LEVEL(zinf_cpu_layernorm)(zinf_kernels *table)
{
    table->layernorm_forward = layernorm_forward;
    table->layernorm_backward = layernorm_backward;
}
