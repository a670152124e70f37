/* kernels/ref/swiglu.c - the gated MLP's activation (Shazeer, 2002.05202), by definition.
 *
 * With s = 1 / (1 + exp(-g)): silu = g s, silu' = s (1 + g (1 - s)).
 */
#include <math.h>

#include "kernels/ref/ref.h"

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static void swiglu_forward(const zinf_kernels *self, const void *x, int64_t n, int64_t width,
                           void *y)
{
    for (int64_t row = 0; row < n; row++)
        for (int64_t c = 0; c < width; c++) {
            const double gate = get(self->act, x, 2 * row * width + c);
            const double up = get(self->act, x, (2 * row + 1) * width + c);
            put(self->act, y, row * width + c, gate * sigmoid(gate) * up);
        }
}

static void swiglu_backward(const zinf_kernels *self, const void *x, const void *dy, bool dy_f32,
                            int64_t n, int64_t width, void *dx)
{
    for (int64_t row = 0; row < n; row++)
        for (int64_t c = 0; c < width; c++) {
            const int64_t g = 2 * row * width + c, u = g + width;
            const double gate = get(self->act, x, g), up = get(self->act, x, u);
            const double d = dy_get(self->act, dy_f32, dy, row * width + c);
            const double s = sigmoid(gate);
            put(self->act, dx, g, d * up * s * (1 + gate * (1 - s)));
            put(self->act, dx, u, d * gate * s);
        }
}

void zinf_ref_swiglu(zinf_kernels *table)
{
    table->swiglu_forward = swiglu_forward;
    table->swiglu_backward = swiglu_backward;
}
