/* kernels/cpu/rmsnorm.c - root mean square normalisation, compiled once per level. dw is summed
 * per chunk of tokens (always ZINF_REDUCE_CHUNKS of them), then over the chunks in order.
 */
#include <math.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vec.h"

INLINE void forward(bool bf16, const void *x, const void *w, float eps, int64_t n,
                    int64_t channels, void *y, float *stats)
{
#pragma omp for schedule(static)
    for (int64_t row = 0; row < n; row++) {
        const int64_t at = row * channels;
        vf square[2] = {vf_set(0), vf_set(0)};

        for (int64_t c = 0, i = 0; c < channels; c += VL, i ^= 1) {
            const vf v = act_load(bf16, x, at + c, channels - c); /* zero beyond the row */
            square[i] = vf_fma(v, v, square[i]);
        }
        const float mean = vf_sum(square[0] + square[1]) / (float)channels;
        const float rstd = 1 / sqrtf(mean + eps);
        for (int64_t c = 0; c < channels; c += VL) {
            const int64_t left = channels - c;
            const vf z = act_load(bf16, x, at + c, left) * vf_set(rstd);
            act_store(bf16, y, at + c, left, z * act_load(bf16, w, c, left));
        }
        stats[row] = rstd;
    }
}

static void rmsnorm_forward(const zinf_kernels *self, const void *x, const void *w, double eps,
                            int64_t n, int64_t channels, void *y, float *stats)
{
    if (self->act == ZINF_BF16)
        TEAM(self->n_threads, n * channels > PARALLEL_FROM,
             forward(true, x, w, (float)eps, n, channels, y, stats));
    else
        TEAM(self->n_threads, n * channels > PARALLEL_FROM,
             forward(false, x, w, (float)eps, n, channels, y, stats));
}

/* One token: adds to this chunk's sum and writes dx. */
INLINE void backward_row(bool bf16, bool dy_bf16, const void *dy, const void *x, const void *w,
                         const float *stats, const void *residual, int64_t row, int64_t channels,
                         void *dx, float *sum_w)
{
    const int64_t at = row * channels;
    const vf rstd = vf_set(stats[row]);
    vf sum = vf_set(0);

    for (int64_t c = 0; c < channels; c += VL) {
        const int64_t left = channels - c;
        const vf d = act_load(dy_bf16, dy, at + c, left);
        const vf z = act_load(bf16, x, at + c, left) * rstd;
        sum = vf_fma(d * act_load(bf16, w, c, left), z, sum);
        vf_store_n(sum_w + c, left, vf_fma(d, z, vf_load_n(sum_w + c, left)));
    }
    const vf mean = vf_set(vf_sum(sum) / (float)channels);
    for (int64_t c = 0; c < channels; c += VL) {
        const int64_t left = channels - c;
        const vf g = act_load(dy_bf16, dy, at + c, left) * act_load(bf16, w, c, left);
        const vf z = act_load(bf16, x, at + c, left) * rstd;
        const vf r = residual ? act_load(bf16, residual, at + c, left) : vf_set(0);
        act_store(bf16, dx, at + c, left, vf_fma(rstd, vf_fma(-z, mean, g), r));
    }
}

INLINE void backward(bool bf16, bool dy_bf16, const void *dy, const void *x,
                     const void *w, const float *stats, const void *residual, int64_t n,
                     int64_t channels, bool accumulate, void *dx, float *dw,
                     float *partial /* [chunks][C] */)
{
    {
#pragma omp for schedule(static)
        for (int64_t chunk = 0; chunk < ZINF_REDUCE_CHUNKS; chunk++) {
            float *sum_w = partial + chunk * channels;

            memset(sum_w, 0, (size_t)channels * sizeof *sum_w);
            for (int64_t row = n * chunk / ZINF_REDUCE_CHUNKS;
                 row < n * (chunk + 1) / ZINF_REDUCE_CHUNKS; row++)
                backward_row(bf16, dy_bf16, dy, x, w, stats, residual, row, channels, dx, sum_w);
        }
#pragma omp for schedule(static)
        for (int64_t c = 0; c < channels; c += VL) {
            const int64_t left = channels - c;
            vf sum = accumulate ? vf_load_n(dw + c, left) : vf_set(0);

            for (int64_t chunk = 0; chunk < ZINF_REDUCE_CHUNKS; chunk++)
                sum += vf_load_n(partial + chunk * channels + c, left);
            vf_store_n(dw + c, left, sum);
        }
    }
}

static void rmsnorm_backward(const zinf_kernels *self, const void *dy, bool dy_f32, const void *x,
                             const void *w, const float *stats, const void *residual, int64_t n,
                             int64_t channels, bool accumulate, void *dx, float *dw,
                             void *scratch)
{
    if (self->act != ZINF_BF16)
        TEAM(self->n_threads, n * channels > PARALLEL_FROM,
             backward(false, false, dy, x, w, stats, residual, n, channels,
                     accumulate, dx, dw, scratch));
    else if (dy_f32)
        TEAM(self->n_threads, n * channels > PARALLEL_FROM,
             backward(true, false, dy, x, w, stats, residual, n, channels,
                     accumulate, dx, dw, scratch));
    else
        TEAM(self->n_threads, n * channels > PARALLEL_FROM,
             backward(true, true, dy, x, w, stats, residual, n, channels, accumulate,
                     dx, dw, scratch));
}

void LEVEL(zinf_cpu_rmsnorm)(zinf_kernels *table)
{
    table->rmsnorm_forward = rmsnorm_forward;
    table->rmsnorm_backward = rmsnorm_backward;
}
