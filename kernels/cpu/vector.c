/* kernels/cpu/vector.c - conversions, plain sums and embeddings, compiled once per level. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vec.h"

enum { SQUARES_BLOCK = 65536, SQUARES_BLOCKS = 64 };

INLINE void sum_columns(bool bf16, const void *dy, int64_t ldy, int64_t m, int64_t n,
                        bool accumulate, float *db, float *partial /* [chunks][n] */)
{
#pragma omp for schedule(static)
    for (int64_t chunk = 0; chunk < ZINF_REDUCE_CHUNKS; chunk++) {
        float *sum = partial + chunk * n;

        memset(sum, 0, (size_t)n * sizeof *sum);
        for (int64_t row = m * chunk / ZINF_REDUCE_CHUNKS;
             row < m * (chunk + 1) / ZINF_REDUCE_CHUNKS; row++)
            FOR_VECTORS(j, left, 0, n,
                        vf_store_n(sum + j, left, vf_load_n(sum + j, left) +
                                   act_load(bf16, dy, row * ldy + j, left)));
    }
#pragma omp for schedule(static)
    for (int64_t j = 0; j < n; j += VL) {
        vf sum = accumulate ? vf_load_n(db + j, n - j) : vf_set(0);

        for (int64_t chunk = 0; chunk < ZINF_REDUCE_CHUNKS; chunk++)
            sum += vf_load_n(partial + chunk * n + j, n - j);
        vf_store_n(db + j, n - j, sum);
    }
}

static void column_sum(const zinf_kernels *self, const void *dy, int64_t ldy, int64_t m,
                       int64_t n, bool accumulate, float *db, void *scratch)
{
    if (self->act == ZINF_BF16)
        TEAM(self->n_threads, m * n > PARALLEL_FROM,
             sum_columns(true, dy, ldy, m, n, accumulate, db, scratch));
    else
        TEAM(self->n_threads, m * n > PARALLEL_FROM,
             sum_columns(false, dy, ldy, m, n, accumulate, db, scratch));
}

INLINE void convert(bool from_bf16, bool to_bf16, const void *src, int64_t n, void *dst)
{
#pragma omp for schedule(static)
    for (int64_t block = 0; block < n; block += PARALLEL_BLOCK)
        FOR_VECTORS(i, left, block, n < block + PARALLEL_BLOCK ? n : block + PARALLEL_BLOCK,
                    act_store(to_bf16, dst, i, left, act_load(from_bf16, src, i, left)));
}

static void convert_from_f32(const zinf_kernels *self, const float *src, int64_t n, void *dst)
{
    if (self->act == ZINF_BF16)
        TEAM(self->n_threads, n > PARALLEL_FROM, convert(false, true, src, n, dst));
    else
        TEAM(self->n_threads, n > PARALLEL_FROM, convert(false, false, src, n, dst));
}

static void convert_to_f32(const zinf_kernels *self, const void *src, int64_t n, float *dst)
{
    if (self->act == ZINF_BF16)
        TEAM(self->n_threads, n > PARALLEL_FROM, convert(true, false, src, n, dst));
    else
        TEAM(self->n_threads, n > PARALLEL_FROM, convert(false, false, src, n, dst));
}

static void add(const float *src, int64_t n, float *acc)
{
#pragma omp for schedule(static)
    for (int64_t block = 0; block < n; block += PARALLEL_BLOCK)
        for (int64_t i = block; i < n && i < block + PARALLEL_BLOCK; i += VL)
            vf_store_n(acc + i, n - i, vf_load_n(acc + i, n - i) + vf_load_n(src + i, n - i));
}

static void accumulate_f32(const zinf_kernels *self, const float *src, int64_t n, float *acc)
{
    TEAM(self->n_threads, n > PARALLEL_FROM, add(src, n, acc));
}

/* Squares of fp32 are exact in fp64; 16 running sums, then those in order. */
static double block_of_squares(const float *x, int64_t n)
{
    typedef double vd __attribute__((vector_size(64)));
    typedef float vs __attribute__((vector_size(32)));
    vd sums[2] = {{0}, {0}};
    double sum = 0;
    int64_t i = 0;

    for (; i + 16 <= n; i += 16)
        for (int half = 0; half < 2; half++) {
            vs narrow;
            memcpy(&narrow, x + i + 8 * half, sizeof narrow);
            const vd wide = __builtin_convertvector(narrow, vd);
            sums[half] += wide * wide;
        }
    for (int lane = 0; lane < 16; lane++)
        sum += sums[lane / 8][lane % 8];
    for (; i < n; i++)
        sum += (double)x[i] * x[i];
    return sum;
}

static void blocks_of_squares(const float *x, int64_t n, int64_t first, int64_t count,
                              double *parts)
{
#pragma omp for schedule(static)
    for (int64_t i = 0; i < count; i++) {
        const int64_t at = (first + i) * SQUARES_BLOCK;
        parts[i] = block_of_squares(x + at, n - at < SQUARES_BLOCK ? n - at : SQUARES_BLOCK);
    }
}

static double sum_of_squares(const zinf_kernels *self, const float *x, int64_t n)
{
    double sum = 0, parts[SQUARES_BLOCKS];
    const int64_t n_blocks = (n + SQUARES_BLOCK - 1) / SQUARES_BLOCK;

    for (int64_t first = 0; first < n_blocks; first += SQUARES_BLOCKS) {
        const int64_t count = n_blocks - first < SQUARES_BLOCKS ? n_blocks - first :
                                                                  SQUARES_BLOCKS;
        TEAM(self->n_threads, count > 1, blocks_of_squares(x, n, first, count, parts));
        for (int64_t i = 0; i < count; i++)
            sum += parts[i];
    }
    return sum;
}

INLINE void embed(bool bf16, const int32_t *tokens, int64_t token_ld, const void *wte,
                  const void *wpe, int64_t row0, int64_t rows, int64_t batch, int64_t seq,
                  int64_t channels, bool first, void *out)
{
#pragma omp for schedule(static)
    for (int64_t n = 0; n < batch * seq; n++) {
        const int64_t b = n / seq, t = n % seq, row = tokens[b * token_ld + t] - row0;
        const bool mine = row >= 0 && row < rows;

        if (mine && wpe)
            FOR_VECTORS(c, left, 0, channels,
                        act_store(bf16, out, n * channels + c, left,
                                  act_load(bf16, wte, row * channels + c, left) +
                                  act_load(bf16, wpe, t * channels + c, left)));
        else if (mine)
            FOR_VECTORS(c, left, 0, channels,
                        act_store(bf16, out, n * channels + c, left,
                                  act_load(bf16, wte, row * channels + c, left)));
        else if (first)
            FOR_VECTORS(c, left, 0, channels,
                        act_store(bf16, out, n * channels + c, left, vf_set(0)));
    }
}

static void embedding_forward(const zinf_kernels *self, const int32_t *tokens, int64_t token_ld,
                              const void *wte, const void *wpe, int64_t row0, int64_t rows,
                              int64_t batch, int64_t seq, int64_t channels, bool first,
                              void *out)
{
    const bool much = batch * seq * channels > PARALLEL_FROM;

    if (self->act == ZINF_BF16)
        TEAM(self->n_threads, much, embed(true, tokens, token_ld, wte, wpe, row0, rows, batch,
                                          seq, channels, first, out));
    else
        TEAM(self->n_threads, much, embed(false, tokens, token_ld, wte, wpe, row0, rows, batch,
                                          seq, channels, first, out));
}

/* Each thread owns columns and meets the tokens in order. (Owning rows would be uneven: a few
 * tokens are most of the text.) */
static void scatter(bool bf16, const int32_t *tokens, int64_t token_ld, const void *dx,
                    int64_t row0, int64_t rows, int64_t batch, int64_t seq, int64_t channels,
                    bool accumulate, float *dwte)
{
    const int64_t columns = 4 * VL;

    if (!accumulate) {
#pragma omp for schedule(static)
        for (int64_t row = 0; row < rows; row++)
            memset(dwte + row * channels, 0, (size_t)channels * sizeof *dwte);
    }
#pragma omp for schedule(static)
    for (int64_t part = 0; part < (channels + columns - 1) / columns; part++)
        for (int64_t n = 0; n < batch * seq; n++) {
            const int64_t row = tokens[n / seq * token_ld + n % seq] - row0;
            const int64_t end = (part + 1) * columns < channels ? (part + 1) * columns : channels;

            for (int64_t c = part * columns; c < end && row >= 0 && row < rows; c += VL) {
                float *to = dwte + row * channels + c;
                vf_store_n(to, end - c, vf_load_n(to, end - c) +
                           act_load(bf16, dx, n * channels + c, end - c));
            }
        }
}

static void embedding_backward(const zinf_kernels *self, const int32_t *tokens, int64_t token_ld,
                               const void *dx, int64_t row0, int64_t rows, int64_t batch,
                               int64_t seq, int64_t channels, bool accumulate, float *dwte)
{
    TEAM(self->n_threads, true, scatter(self->act == ZINF_BF16, tokens, token_ld, dx, row0, rows,
                                        batch, seq, channels, accumulate, dwte));
}

static void sum_positions(bool bf16, const void *dx, int64_t batch, int64_t seq, int64_t channels,
                          bool accumulate, float *dwpe)
{
#pragma omp for schedule(static)
    for (int64_t t = 0; t < seq; t++)
        for (int64_t c = 0; c < channels; c += VL) {
            const int64_t left = channels - c, at = t * channels + c;
            vf sum = accumulate ? vf_load_n(dwpe + at, left) : vf_set(0);

            for (int64_t b = 0; b < batch; b++)
                sum += act_load(bf16, dx, b * seq * channels + at, left);
            vf_store_n(dwpe + at, left, sum);
        }
}

static void position_backward(const zinf_kernels *self, const void *dx, int64_t batch,
                              int64_t seq, int64_t channels, bool accumulate, float *dwpe)
{
    TEAM(self->n_threads, true, sum_positions(self->act == ZINF_BF16, dx, batch, seq, channels,
                                              accumulate, dwpe));
}

void LEVEL(zinf_cpu_vector)(zinf_kernels *table)
{
    table->column_sum = column_sum;
    table->convert_from_f32 = convert_from_f32;
    table->convert_to_f32 = convert_to_f32;
    table->accumulate_f32 = accumulate_f32;
    table->sum_of_squares = sum_of_squares;
    table->embedding_forward = embedding_forward;
    table->embedding_backward = embedding_backward;
    table->position_backward = position_backward;
}
