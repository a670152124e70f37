/* kernels/ref/embedding.c - token and position embeddings, by definition. */
#include "kernels/ref/ref.h"

static void embedding_forward(const zinf_kernels *self, const int32_t *tokens, int64_t token_ld,
                              const void *wte, const void *wpe, int64_t row0, int64_t rows,
                              int64_t batch, int64_t seq, int64_t channels, bool first,
                              void *out)
{
    for (int64_t b = 0; b < batch; b++)
        for (int64_t t = 0; t < seq; t++) {
            const int64_t row = tokens[b * token_ld + t] - row0, n = b * seq + t;
            const bool mine = row >= 0 && row < rows;

            if (!mine && !first)
                continue;
            for (int64_t c = 0; c < channels; c++)
                put(self->act, out, n * channels + c,
                    mine ? get(self->act, wte, row * channels + c) +
                               (wpe ? get(self->act, wpe, t * channels + c) : 0) : 0);
        }
}

/* Added in fp32, token by token: this order is the definition, so every version gives its bits. */
static void embedding_backward(const zinf_kernels *self, const int32_t *tokens, int64_t token_ld,
                               const void *dx, int64_t row0, int64_t rows, int64_t batch,
                               int64_t seq, int64_t channels, bool accumulate, float *dwte)
{
    for (int64_t i = 0; i < rows * channels && !accumulate; i++)
        dwte[i] = 0;
    for (int64_t b = 0; b < batch; b++)
        for (int64_t t = 0; t < seq; t++) {
            const int64_t row = tokens[b * token_ld + t] - row0, n = b * seq + t;

            for (int64_t c = 0; c < channels && row >= 0 && row < rows; c++)
                dwte[row * channels + c] += (float)get(self->act, dx, n * channels + c);
        }
}

static void position_backward(const zinf_kernels *self, const void *dx, int64_t batch,
                              int64_t seq, int64_t channels, bool accumulate, float *dwpe)
{
    for (int64_t i = 0; i < seq * channels; i++) {
        double sum = accumulate ? dwpe[i] : 0;
        for (int64_t b = 0; b < batch; b++)
            sum += get(self->act, dx, b * seq * channels + i);
        dwpe[i] = (float)sum;
    }
}

void zinf_ref_embedding(zinf_kernels *table)
{
    table->embedding_forward = embedding_forward;
    table->embedding_backward = embedding_backward;
    table->position_backward = position_backward;
}
