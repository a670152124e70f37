/* kernels/ref/layernorm.c - layer normalisation, by definition.
 *
 * With z = (x - mean) * rstd and g = dy * w, both [C]:
 * dx = rstd * (g - mean(g) - z * mean(g * z)), dw = sum of dy * z, db = sum of dy (over tokens).
 */
#include <math.h>

#include "kernels/ref/ref.h"

static void layernorm_forward(const zinf_kernels *self, const void *x, const void *w,
                              const void *b, int64_t n, int64_t channels, void *y, float *stats)
{
    const zinf_dtype act = self->act;

    for (int64_t row = 0; row < n; row++) {
        const int64_t at = row * channels;
        double mean = 0, variance = 0;

        for (int64_t c = 0; c < channels; c++)
            mean += get(act, x, at + c);
        mean /= (double)channels;
        for (int64_t c = 0; c < channels; c++)
            variance += (get(act, x, at + c) - mean) * (get(act, x, at + c) - mean);
        variance /= (double)channels;
        const double rstd = 1 / sqrt(variance + 1e-5);
        for (int64_t c = 0; c < channels; c++)
            put(act, y, at + c, (get(act, x, at + c) - mean) * rstd * get(act, w, c) +
                                    get(act, b, c));
        stats[2 * row] = (float)mean;
        stats[2 * row + 1] = (float)rstd;
    }
}

static void layernorm_backward(const zinf_kernels *self, const void *dy, bool dy_f32,
                               const void *x, const void *w, const float *stats,
                               const void *residual, int64_t n, int64_t channels,
                               bool accumulate, void *dx, float *dw, float *db, void *scratch)
{
    const zinf_dtype act = self->act;

    (void)scratch;
    for (int64_t c = 0; c < channels; c++) {
        double sum_w = accumulate ? dw[c] : 0, sum_b = accumulate ? db[c] : 0;
        for (int64_t row = 0; row < n; row++) {
            const double d = dy_get(act, dy_f32, dy, row * channels + c);
            sum_w += d * (get(act, x, row * channels + c) - stats[2 * row]) * stats[2 * row + 1];
            sum_b += d;
        }
        dw[c] = (float)sum_w;
        db[c] = (float)sum_b;
    }
    for (int64_t row = 0; row < n; row++) {
        const int64_t at = row * channels;
        const double mean = stats[2 * row], rstd = stats[2 * row + 1];
        double mean_g = 0, mean_gz = 0;

        for (int64_t c = 0; c < channels; c++) {
            const double g = dy_get(act, dy_f32, dy, at + c) * get(act, w, c);
            mean_g += g;
            mean_gz += g * (get(act, x, at + c) - mean) * rstd;
        }
        mean_g /= (double)channels;
        mean_gz /= (double)channels;
        for (int64_t c = 0; c < channels; c++) {
            const double g = dy_get(act, dy_f32, dy, at + c) * get(act, w, c);
            const double z = (get(act, x, at + c) - mean) * rstd;
            put(act, dx, at + c, (residual ? get(act, residual, at + c) : 0) +
                                     rstd * (g - mean_g - z * mean_gz));
        }
    }
}

void zinf_ref_layernorm(zinf_kernels *table)
{
    table->layernorm_forward = layernorm_forward;
    table->layernorm_backward = layernorm_backward;
}
