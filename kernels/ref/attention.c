/* kernels/ref/attention.c - causal attention with grouped key and value heads, by definition.
 *
 * With s = scale * q k^T, p = exp(s - lse) for j <= i, o = p v:
 * dv = p^T do, dp = do v^T, ds = p * (dp - mean of dp with the weights p), dq = scale * ds k,
 * dk = scale * ds^T q. The mean is rowsum(do * o), but for the roundings of o.
 */
#include <math.h>
#include <omp.h>

#include "kernels/ref/ref.h"

/* First element of head `head`'s row of token n; heads are numbered q, then k, then v. */
static int64_t at_head(int64_t n, int64_t head, int64_t heads, int64_t kv_heads,
                       int64_t head_dim)
{
    return (n * (heads + 2 * kv_heads) + head) * head_dim;
}

static double dot(zinf_dtype act, const void *a, int64_t at_a, const void *b, int64_t at_b,
                  int64_t n)
{
    double sum = 0;

    for (int64_t i = 0; i < n; i++)
        sum += get(act, a, at_a + i) * get(act, b, at_b + i);
    return sum;
}

static double *scratch_of_thread(void *scratch, int64_t seq, int64_t head_dim)
{
    const uint64_t bytes = zinf_attention_scratch_bytes((uint64_t)seq, (uint64_t)head_dim, 1);

    return (double *)((char *)scratch + bytes * (uint64_t)omp_get_thread_num());
}

static void attention_forward(const zinf_kernels *self, const void *qkv, int64_t batch,
                              int64_t seq, int64_t heads, int64_t kv_heads, int64_t head_dim,
                              void *out, float *lse, void *scratch)
{
    const zinf_dtype act = self->act;
    const double scale = 1 / sqrt((double)head_dim);

#pragma omp parallel for num_threads(self->n_threads) schedule(static)
    for (int64_t bh = 0; bh < batch * heads; bh++) {
        const int64_t b = bh / heads, h = bh % heads, g = h / (heads / kv_heads);
        double *p = scratch_of_thread(scratch, seq, head_dim); /* [seq] */

        for (int64_t i = 0; i < seq; i++) {
            const int64_t q = at_head(b * seq + i, h, heads, kv_heads, head_dim);
            double most = -INFINITY, sum = 0;

            for (int64_t j = 0; j <= i; j++) {
                const int64_t k = at_head(b * seq + j, heads + g, heads, kv_heads, head_dim);
                p[j] = scale * dot(act, qkv, q, qkv, k, head_dim);
                most = p[j] > most || isnan(p[j]) ? p[j] : most;
            }
            for (int64_t j = 0; j <= i; j++) {
                p[j] = exp(p[j] - most);
                sum += p[j];
            }
            for (int64_t d = 0; d < head_dim; d++) {
                double o = 0;
                for (int64_t j = 0; j <= i; j++)
                    o += p[j] * get(act, qkv, d + at_head(b * seq + j, heads + kv_heads + g,
                                                          heads, kv_heads, head_dim));
                put(act, out, ((b * seq + i) * heads + h) * head_dim + d, o / sum);
            }
            lse[bh * seq + i] = (float)(most + log(sum));
        }
    }
}

static void attention_backward(const zinf_kernels *self, const void *qkv, const void *out,
                               const void *dout, const float *lse, int64_t batch, int64_t seq,
                               int64_t heads, int64_t kv_heads, int64_t head_dim, void *dqkv,
                               void *scratch)
{
    (void)out;
    const zinf_dtype act = self->act;
    const double scale = 1 / sqrt((double)head_dim);
    const int64_t group = heads / kv_heads;

#pragma omp parallel for num_threads(self->n_threads) schedule(static)
    for (int64_t bg = 0; bg < batch * kv_heads; bg++) {
        const int64_t b = bg / kv_heads, g = bg % kv_heads;
        double *ds = scratch_of_thread(scratch, seq, head_dim), *p = ds + seq; /* [seq] each */
        double *dk = p + seq, *dv = dk + seq * head_dim;                       /* [seq][D] each */

        for (int64_t i = 0; i < seq * head_dim; i++)
            dk[i] = dv[i] = 0;
        for (int64_t h = g * group; h < (g + 1) * group; h++)
            for (int64_t i = 0; i < seq; i++) {
                const int64_t q = at_head(b * seq + i, h, heads, kv_heads, head_dim);
                const int64_t o = ((b * seq + i) * heads + h) * head_dim;
                double sum = 0, mean = 0;

                for (int64_t j = 0; j <= i; j++) {
                    const int64_t k = at_head(b * seq + j, heads + g, heads, kv_heads, head_dim);
                    p[j] = exp(scale * dot(act, qkv, q, qkv, k, head_dim) -
                               lse[(b * heads + h) * seq + i]);
                    ds[j] = dot(act, dout, o, qkv, k + kv_heads * head_dim, head_dim);
                    sum += p[j];
                    mean += p[j] * ds[j];
                }
                for (int64_t j = 0; j <= i; j++) {
                    ds[j] = scale * p[j] * (ds[j] - mean / sum);
                    for (int64_t d = 0; d < head_dim; d++) {
                        dk[j * head_dim + d] += ds[j] * get(act, qkv, q + d);
                        dv[j * head_dim + d] += p[j] * get(act, dout, o + d);
                    }
                }
                for (int64_t d = 0; d < head_dim; d++) {
                    double dq = 0;
                    for (int64_t j = 0; j <= i; j++)
                        dq += ds[j] * get(act, qkv, d + at_head(b * seq + j, heads + g, heads,
                                                                kv_heads, head_dim));
                    put(act, dqkv, q + d, dq);
                }
            }
        for (int64_t j = 0; j < seq; j++)
            for (int64_t d = 0; d < head_dim; d++) {
                const int64_t k = at_head(b * seq + j, heads + g, heads, kv_heads, head_dim);
                put(act, dqkv, k + d, dk[j * head_dim + d]);
                put(act, dqkv, k + kv_heads * head_dim + d, dv[j * head_dim + d]);
            }
    }
}

void zinf_ref_attention(zinf_kernels *table)
{
    table->attention_forward = attention_forward;
    table->attention_backward = attention_backward;
}
