/* kernels/ref/vector.c - conversions and plain sums, by definition. */
#include "kernels/ref/ref.h"

static void column_sum(const zinf_kernels *self, const void *dy, int64_t ldy, int64_t m,
                       int64_t n, bool accumulate, float *db, void *scratch)
{
    (void)scratch;
    for (int64_t j = 0; j < n; j++) {
        double sum = accumulate ? db[j] : 0;
        for (int64_t i = 0; i < m; i++)
            sum += get(self->act, dy, i * ldy + j);
        db[j] = (float)sum;
    }
}

static void convert_from_f32(const zinf_kernels *self, const float *src, int64_t n, void *dst)
{
    if (self->act == ZINF_F32) {
        memmove(dst, src, (size_t)n * sizeof *src);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        ((uint16_t *)dst)[i] = zinf_bf16_from_f32(src[i]);
}

static void convert_to_f32(const zinf_kernels *self, const void *src, int64_t n, float *dst)
{
    if (self->act == ZINF_F32) {
        memmove(dst, src, (size_t)n * sizeof *dst);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        dst[i] = zinf_bf16_to_f32(((const uint16_t *)src)[i]);
}

static void accumulate_f32(const zinf_kernels *self, const float *src, int64_t n, float *acc)
{
    (void)self;
    for (int64_t i = 0; i < n; i++)
        acc[i] += src[i];
}

static double sum_of_squares(const zinf_kernels *self, const float *x, int64_t n)
{
    double sum = 0;

    (void)self;
    for (int64_t block = 0; block < n; block += 65536) {
        double part = 0;
        for (int64_t i = block; i < n && i < block + 65536; i++)
            part += (double)x[i] * x[i];
        sum += part;
    }
    return sum;
}

void zinf_ref_vector(zinf_kernels *table)
{
    table->column_sum = column_sum;
    table->convert_from_f32 = convert_from_f32;
    table->convert_to_f32 = convert_to_f32;
    table->accumulate_f32 = accumulate_f32;
    table->sum_of_squares = sum_of_squares;
}
