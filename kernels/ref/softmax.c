/* kernels/ref/softmax.c - online softmax and cross-entropy over vocabulary tiles. */
#include <math.h>

#include "kernels/ref/ref.h"

static void softmax_stats(const zinf_kernels *self, const float *logits, int64_t ldl,
                          const int32_t *targets, int64_t row0, int64_t rows, int64_t m,
                          bool first, float *stats)
{
    (void)self;
    for (int64_t i = 0; i < m; i++) {
        const float *row = logits + i * ldl;
        const double old = first ? -INFINITY : stats[3 * i];
        double most = old, sum = 0;

        for (int64_t v = 0; v < rows; v++)
            most = row[v] > most || isnan(row[v]) ? row[v] : most;
        if (!first)
            sum = stats[3 * i + 1] * exp(old - most);
        for (int64_t v = 0; v < rows; v++)
            sum += exp(row[v] - most);
        stats[3 * i] = (float)most;
        stats[3 * i + 1] = (float)sum;
        if (targets[i] >= row0 && targets[i] < row0 + rows)
            stats[3 * i + 2] = row[targets[i] - row0];
        else if (first)
            stats[3 * i + 2] = 0;
    }
}

static void softmax_backward(const zinf_kernels *self, const float *logits, int64_t ldl,
                             const int32_t *targets, const float *stats, int64_t row0,
                             int64_t rows, int64_t m, float scale, void *dlogits, int64_t ldd)
{
    for (int64_t i = 0; i < m; i++)
        for (int64_t v = 0; v < rows; v++) {
            const double p = exp((double)logits[i * ldl + v] - stats[3 * i]) / stats[3 * i + 1];
            put(self->act, dlogits, i * ldd + v, (p - (row0 + v == targets[i])) * scale);
        }
}

static double softmax_loss(const zinf_kernels *self, const float *stats, int64_t m)
{
    double sum = 0;

    (void)self;
    for (int64_t i = 0; i < m; i++)
        sum += log(stats[3 * i + 1]) + stats[3 * i] - stats[3 * i + 2];
    return sum;
}

void zinf_ref_softmax(zinf_kernels *table)
{
    table->softmax_stats = softmax_stats;
    table->softmax_backward = softmax_backward;
    table->softmax_loss = softmax_loss;
}
