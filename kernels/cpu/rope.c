/* kernels/cpu/rope.c - rotary positions, compiled once per level. The cosines of a position are
 * computed once for all heads and sequences, PAIRS at a time: about 40 ns each, against H * D * C
 * multiplications of the projection before.
 */
#include <math.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vec.h"

enum { PAIRS = 128 };

INLINE void rotate(bool bf16, const float *cosine, const float *sine, int64_t at, int64_t half,
                   int64_t n, void *x)
{
    for (int64_t i = 0; i < n; i += VL) {
        const int64_t left = n - i;
        const vf a = act_load(bf16, x, at + i, left), b = act_load(bf16, x, at + half + i, left);
        const vf c = vf_load_n(cosine + i, left), s = vf_load_n(sine + i, left);
        act_store(bf16, x, at + i, left, vf_fma(a, c, -(b * s)));
        act_store(bf16, x, at + half + i, left, vf_fma(b, c, a * s));
    }
}

INLINE void turn(bool bf16, const double *frequencies, int64_t batch, int64_t seq,
                 int64_t heads, int64_t head_dim, int64_t ldx, bool inverse, void *x)
{
    const int64_t half = head_dim / 2;

#pragma omp for schedule(static)
    for (int64_t t = 0; t < seq; t++)
        for (int64_t first = 0; first < half; first += PAIRS) {
            const int64_t n = half - first < PAIRS ? half - first : PAIRS;
            float cosine[PAIRS], sine[PAIRS];

            for (int64_t i = 0; i < n; i++) {
                const double angle = (double)t * frequencies[first + i];
                cosine[i] = (float)cos(angle);
                sine[i] = (float)(inverse ? -sin(angle) : sin(angle));
            }
            for (int64_t b = 0; b < batch; b++)
                for (int64_t h = 0; h < heads; h++)
                    rotate(bf16, cosine, sine, (b * seq + t) * ldx + h * head_dim + first, half,
                           n, x);
        }
}

static void rope(const zinf_kernels *self, const double *frequencies, int64_t batch, int64_t seq,
                 int64_t heads, int64_t head_dim, int64_t ldx, bool inverse, void *x)
{
    if (self->act == ZINF_BF16)
        TEAM(self->n_threads, batch * seq * heads * head_dim > PARALLEL_FROM,
             turn(true, frequencies, batch, seq, heads, head_dim, ldx, inverse, x));
    else
        TEAM(self->n_threads, batch * seq * heads * head_dim > PARALLEL_FROM,
             turn(false, frequencies, batch, seq, heads, head_dim, ldx, inverse, x));
}

void LEVEL(zinf_cpu_rope)(zinf_kernels *table)
{
    table->rope = rope;
}
