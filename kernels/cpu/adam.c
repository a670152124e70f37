/* kernels/cpu/adam.c - AdamW, compiled once per level. Every element's bits depend on that
 * element alone: chunks of any size and alignment give the same states.
 */
#include <math.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vec.h"

/* Errors, in ulp of each term: m and v 1.5, the step below 5 (m, sqrt, its factor, eps, step,
 * quotient), the sum 1. */
INLINE void update(bool bf16, const zinf_adam_args *args, const float *grad, int64_t n,
                   float *master, float *m, float *v, void *param)
{
    const vf grad_scale = vf_set(args->grad_scale), eps = vf_set(args->eps);
    const vf beta1 = vf_set(args->beta1), rest1 = vf_set((float)(1 - (double)args->beta1));
    const vf beta2 = vf_set(args->beta2), rest2 = vf_set((float)(1 - (double)args->beta2));
    const vf keep = vf_set((float)(1 - (double)args->lr * args->weight_decay));
    const vf step = vf_set((float)((double)args->lr / args->bias1));
    const vf root = vf_set((float)(1 / sqrt((double)args->bias2)));

#pragma omp for schedule(static)
    for (int64_t block = 0; block < n; block += PARALLEL_BLOCK)
        FOR_VECTORS(i, left, block, n < block + PARALLEL_BLOCK ? n : block + PARALLEL_BLOCK, {
            const vf g = vf_load_n(grad + i, left) * grad_scale;
            const vf new_m = vf_fma(beta1, vf_load_n(m + i, left), rest1 * g);
            const vf new_v = vf_fma(beta2, vf_load_n(v + i, left), rest2 * g * g);
            const vf change = step * new_m / vf_fma(vf_sqrt(new_v), root, eps);
            const vf p = vf_fma(vf_load_n(master + i, left), keep, -change);

            vf_store_n(m + i, left, new_m);
            vf_store_n(v + i, left, new_v);
            vf_store_n(master + i, left, p);
            if (param)
                act_store(bf16, param, i, left, p);
        });
}

static void adam(const zinf_kernels *self, const zinf_adam_args *args, const float *grad,
                 int64_t n, float *master, float *m, float *v, void *param)
{
    if (self->act == ZINF_BF16)
        TEAM(self->n_threads, n > PARALLEL_FROM,
             update(true, args, grad, n, master, m, v, param));
    else
        TEAM(self->n_threads, n > PARALLEL_FROM,
             update(false, args, grad, n, master, m, v, param));
}

void LEVEL(zinf_cpu_adam)(zinf_kernels *table)
{
    table->adam = adam;
}
