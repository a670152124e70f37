/* kernels/ref/rmsnorm.c - root mean square normalisation (Zhang and Sennrich, 1910.07467), by
 * definition.
 *
 * With z = x * rstd and g = dy * w, both [C]: dx = rstd * (g - z * mean(g * z)), dw = sum of
 * dy * z (over tokens).
 */
#include <math.h>

#include "kernels/ref/ref.h"

static void rmsnorm_forward(const zinf_kernels *self, const void *x, const void *w, double eps,
                            int64_t n, int64_t channels, void *y, float *stats)
{
    const zinf_dtype act = self->act;

    for (int64_t row = 0; row < n; row++) {
        const int64_t at = row * channels;
        double square = 0;

        for (int64_t c = 0; c < channels; c++)
            square += get(act, x, at + c) * get(act, x, at + c);
        const double rstd = 1 / sqrt(square / (double)channels + eps);
        for (int64_t c = 0; c < channels; c++)
            put(act, y, at + c, get(act, x, at + c) * rstd * get(act, w, c));
        stats[row] = (float)rstd;
    }
}

static void rmsnorm_backward(const zinf_kernels *self, const void *dy, bool dy_f32, const void *x,
                             const void *w, const float *stats, const void *residual, int64_t n,
                             int64_t channels, bool accumulate, void *dx, float *dw,
                             void *scratch)
{
    const zinf_dtype act = self->act;

    (void)scratch;
    for (int64_t c = 0; c < channels; c++) {
        double sum = accumulate ? dw[c] : 0;
        for (int64_t row = 0; row < n; row++)
            sum += dy_get(act, dy_f32, dy, row * channels + c) * get(act, x, row * channels + c) *
                   stats[row];
        dw[c] = (float)sum;
    }
    for (int64_t row = 0; row < n; row++) {
        const int64_t at = row * channels;
        const double rstd = stats[row];
        double mean = 0;

        for (int64_t c = 0; c < channels; c++)
            mean += dy_get(act, dy_f32, dy, at + c) * get(act, w, c) * get(act, x, at + c) * rstd;
        mean /= (double)channels;
        for (int64_t c = 0; c < channels; c++) {
            const double g = dy_get(act, dy_f32, dy, at + c) * get(act, w, c);
            put(act, dx, at + c, (residual ? get(act, residual, at + c) : 0) +
                                     rstd * (g - get(act, x, at + c) * rstd * mean));
        }
    }
}

void zinf_ref_rmsnorm(zinf_kernels *table)
{
    table->rmsnorm_forward = rmsnorm_forward;
    table->rmsnorm_backward = rmsnorm_backward;
}
