/* kernels/cpu/swiglu.c - the gated MLP's activation, compiled once per level.
 *
 * e = exp(-g) has < 2 ulp (vf_exp), 1 + e and the quotient half an ulp each: silu < 4 ulp with the
 * product by g. In the slope e is held below e^87, so that e s = 1 - s stays a number: below
 * g = -87 the slope is off by less than (1 + |g|) e^-87.
 */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vec.h"

INLINE vf sigmoid(vf e)
{
    return vf_set(1.0f) / (vf_set(1.0f) + e);
}

INLINE void forward(bool bf16, const void *x, int64_t n, int64_t width, void *y)
{
#pragma omp for schedule(static)
    for (int64_t row = 0; row < n; row++)
        for (int64_t c = 0; c < width; c += VL) {
            const int64_t left = width - c, at = 2 * row * width + c;
            const vf gate = act_load(bf16, x, at, left);
            const vf up = act_load(bf16, x, at + width, left);
            act_store(bf16, y, row * width + c, left, gate * sigmoid(vf_exp(-gate)) * up);
        }
}

static void swiglu_forward(const zinf_kernels *self, const void *x, int64_t n, int64_t width,
                           void *y)
{
    if (self->act == ZINF_BF16)
        TEAM(self->n_threads, n * width > PARALLEL_FROM,
             forward(true, x, n, width, y));
    else
        TEAM(self->n_threads, n * width > PARALLEL_FROM,
             forward(false, x, n, width, y));
}

INLINE void backward(bool bf16, bool dy_bf16, const void *x, const void *dy,
                     int64_t n, int64_t width, void *dx)
{
    const vf one = vf_set(1.0f);

#pragma omp for schedule(static)
    for (int64_t row = 0; row < n; row++)
        for (int64_t c = 0; c < width; c += VL) {
            const int64_t left = width - c, at = 2 * row * width + c;
            const vf gate = act_load(bf16, x, at, left);
            const vf up = act_load(bf16, x, at + width, left);
            const vf d = act_load(dy_bf16, dy, row * width + c, left);
            const vf e = vf_exp(vf_min(vf_set(87.0f), -gate)), s = sigmoid(e);
            act_store(bf16, dx, at, left, d * up * (s * vf_fma(gate, e * s, one)));
            act_store(bf16, dx, at + width, left, d * (gate * s));
        }
}

static void swiglu_backward(const zinf_kernels *self, const void *x, const void *dy, bool dy_f32,
                            int64_t n, int64_t width, void *dx)
{
    if (self->act != ZINF_BF16)
        TEAM(self->n_threads, n * width > PARALLEL_FROM,
             backward(false, false, x, dy, n, width, dx));
    else if (dy_f32)
        TEAM(self->n_threads, n * width > PARALLEL_FROM,
             backward(true, false, x, dy, n, width, dx));
    else
        TEAM(self->n_threads, n * width > PARALLEL_FROM,
             backward(true, true, x, dy, n, width, dx));
}

void LEVEL(zinf_cpu_swiglu)(zinf_kernels *table)
{
    table->swiglu_forward = swiglu_forward;
    table->swiglu_backward = swiglu_backward;
}
