/* kernels/ref/adam.c - AdamW, by definition: double arithmetic, each state rounded once. */
#include <math.h>

#include "kernels/ref/ref.h"

static void adam(const zinf_kernels *self, const zinf_adam_args *args, const float *grad,
                 int64_t n, float *master, float *m, float *v, void *param)
{
    const double beta1 = args->beta1, beta2 = args->beta2, lr = args->lr;

    for (int64_t i = 0; i < n; i++) {
        const double g = (double)grad[i] * args->grad_scale;
        const double new_m = beta1 * m[i] + (1 - beta1) * g;
        const double new_v = beta2 * v[i] + (1 - beta2) * g * g;
        const double decayed = master[i] - lr * args->weight_decay * master[i];

        master[i] = (float)(decayed - lr * (new_m / args->bias1) /
                                          (sqrt(new_v / args->bias2) + args->eps));
        m[i] = (float)new_m;
        v[i] = (float)new_v;
        if (param)
            put(self->act, param, i, master[i]);
    }
}

void zinf_ref_adam(zinf_kernels *table)
{
    table->adam = adam;
}
