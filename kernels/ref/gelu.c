/* kernels/ref/gelu.c - gelu in its tanh form, by definition.
 *
 * With 2u = 2 sqrt(2/pi) (x + 0.044715 x^3) and s = 1 / (1 + exp(-2u)) = (1 + tanh u) / 2:
 * gelu = x s, gelu' = s + x s (1 - s) (2u)'. Written with s because 1 + tanh u cancels.
 */
#include <math.h>

#include "kernels/ref/ref.h"

static const double two_root = 1.5957691216057307117597842397375; /* 2 sqrt(2/pi) */

static double gelu(double x)
{
    return x / (1 + exp(-two_root * (x + 0.044715 * x * x * x)));
}

static double gelu_slope(double x)
{
    const double e = exp(-two_root * fabs(x + 0.044715 * x * x * x)); /* of -|2u|: no overflow */
    const double s = (x < 0 ? e : 1) / (1 + e);
    const double product = e / (1 + e) / (1 + e); /* s (1 - s) */

    if (product == 0)
        return s;
    return s + x * product * two_root * (1 + 3 * 0.044715 * x * x);
}

static void gelu_forward(const zinf_kernels *self, const void *x, int64_t n, void *y)
{
    for (int64_t i = 0; i < n; i++)
        put(self->act, y, i, gelu(get(self->act, x, i)));
}

static void gelu_backward(const zinf_kernels *self, const void *x, const void *dy, bool dy_f32,
                          int64_t n, void *dx)
{
    for (int64_t i = 0; i < n; i++)
        put(self->act, dx, i,
            dy_get(self->act, dy_f32, dy, i) * gelu_slope(get(self->act, x, i)));
}

void zinf_ref_gelu(zinf_kernels *table)
{
    table->gelu_forward = gelu_forward;
    table->gelu_backward = gelu_backward;
}
