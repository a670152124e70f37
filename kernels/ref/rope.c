/* kernels/ref/rope.c - rotary positions, by definition. */
#include <math.h>

#include "kernels/ref/ref.h"

static void rope(const zinf_kernels *self, const double *frequencies, int64_t batch, int64_t seq,
                 int64_t heads, int64_t head_dim, int64_t ldx, bool inverse, void *x)
{
    const zinf_dtype act = self->act;
    const int64_t half = head_dim / 2;

    for (int64_t n = 0; n < batch * seq; n++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t i = 0; i < half; i++) {
                const double angle = (double)(n % seq) * frequencies[i];
                const double c = cos(angle), s = inverse ? -sin(angle) : sin(angle);
                const int64_t low = n * ldx + h * head_dim + i, high = low + half;
                const double a = get(act, x, low), b = get(act, x, high);

                put(act, x, low, a * c - b * s);
                put(act, x, high, b * c + a * s);
            }
}

void zinf_ref_rope(zinf_kernels *table)
{
    table->rope = rope;
}
