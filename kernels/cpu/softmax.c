/* kernels/cpu/softmax.c - online softmax over vocabulary tiles, compiled once per level. */
#include <math.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vec.h"

static void stats_of_rows(const float *logits, int64_t ldl, const int32_t *targets,
                          int64_t row0, int64_t rows, int64_t m, bool first, float *stats)
{
#pragma omp for schedule(static)
    for (int64_t i = 0; i < m; i++) {
        const float *row = logits + i * ldl;
        const float old = first ? -INFINITY : stats[3 * i];
        vf mosts = vf_set(old); /* NaN is passed over here, and makes the sum NaN */
        vf sums[4] = {vf_set(0), vf_set(0), vf_set(0), vf_set(0)};
        int64_t v = 0;

        FOR_VECTORS(j, left, 0, rows,
                    mosts = vf_max(vf_keep(vf_load_n(row + j, left), left, -INFINITY), mosts));
        const float most = vf_most(mosts);
        const vf from = vf_set(most);

        for (; v + 4 * VL <= rows; v += 4 * VL)
            for (int k = 0; k < 4; k++)
                sums[k] += vf_exp(vf_load(row + v + k * VL) - from);
        FOR_VECTORS(j, left, v, rows,
                    sums[0] += vf_keep(vf_exp(vf_load_n(row + j, left) - from), left, 0));
        float sum = vf_sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
        if (!first)
            sum = (float)(stats[3 * i + 1] * exp((double)old - most) + sum);
        stats[3 * i] = most;
        stats[3 * i + 1] = sum;
        if (targets[i] >= row0 && targets[i] < row0 + rows)
            stats[3 * i + 2] = row[targets[i] - row0];
        else if (first)
            stats[3 * i + 2] = 0;
    }
}

static void softmax_stats(const zinf_kernels *self, const float *logits, int64_t ldl,
                          const int32_t *targets, int64_t row0, int64_t rows, int64_t m,
                          bool first, float *stats)
{
    TEAM(self->n_threads, m * rows > PARALLEL_FROM,
         stats_of_rows(logits, ldl, targets, row0, rows, m, first, stats));
}

INLINE void backward(bool bf16, const float *logits, int64_t ldl, const int32_t *targets,
                     const float *stats, int64_t row0, int64_t rows, int64_t m, float scale,
                     void *dlogits, int64_t ldd)
{
#pragma omp for schedule(static)
    for (int64_t i = 0; i < m; i++) {
        const float *row = logits + i * ldl;
        const vf most = vf_set(stats[3 * i]), factor = vf_set(scale / stats[3 * i + 1]);
        const int64_t target = targets[i] - row0;

        FOR_VECTORS(v, left, 0, rows,
                    act_store(bf16, dlogits, i * ldd + v, left,
                              vf_exp(vf_load_n(row + v, left) - most) * factor));
        if (target >= 0 && target < rows)
            act_store(bf16, dlogits, i * ldd + target, 1,
                      vf_fma(vf_exp(vf_set(row[target]) - most), factor, vf_set(-scale)));
    }
}

static void softmax_backward(const zinf_kernels *self, const float *logits, int64_t ldl,
                             const int32_t *targets, const float *stats, int64_t row0,
                             int64_t rows, int64_t m, float scale, void *dlogits, int64_t ldd)
{
    const bool much = m * rows > PARALLEL_FROM;

    if (self->act == ZINF_BF16)
        TEAM(self->n_threads, much, backward(true, logits, ldl, targets, stats, row0, rows, m,
                                             scale, dlogits, ldd));
    else
        TEAM(self->n_threads, much, backward(false, logits, ldl, targets, stats, row0, rows, m,
                                             scale, dlogits, ldd));
}

void LEVEL(zinf_cpu_softmax)(zinf_kernels *table)
{
    table->softmax_stats = softmax_stats;
    table->softmax_backward = softmax_backward;
}
