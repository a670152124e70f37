/* kernels/ref/ref.h - inside the reference: reading and writing an element of either type, and
 * the functions that fill their part of the table.
 */
#ifndef ZINF_KERNELS_REF_REF_H
#define ZINF_KERNELS_REF_REF_H

#include "kernels/bf16.h"
#include "kernels/kernels.h"

static inline double get(zinf_dtype type, const void *array, int64_t i)
{
    if (type == ZINF_BF16)
        return zinf_bf16_to_f32(((const uint16_t *)array)[i]);
    return ((const float *)array)[i];
}

/* Rounds once: to bf16 by way of fp32 rounded to odd (truncated, last bit set if inexact), which
 * cannot turn a value that is no tie into one (Boldo and Melquiond, 2008). */
static inline void put(zinf_dtype type, void *array, int64_t i, double value)
{
    float rounded = (float)value;

    if (type != ZINF_BF16) {
        ((float *)array)[i] = rounded;
        return;
    }
    if (rounded == rounded && (double)rounded != value) {
        uint32_t bits = zinf_f32_bits(rounded);
        if ((rounded < 0 ? -(double)rounded : (double)rounded) > (value < 0 ? -value : value))
            bits--;
        rounded = zinf_f32_from_bits(bits | 1);
    }
    ((uint16_t *)array)[i] = zinf_bf16_from_f32(rounded);
}

static inline double dy_get(zinf_dtype act, bool dy_f32, const void *dy, int64_t i)
{
    return get(dy_f32 ? ZINF_F32 : act, dy, i);
}

void zinf_ref_gemm(zinf_kernels *table);
void zinf_ref_embedding(zinf_kernels *table);
void zinf_ref_layernorm(zinf_kernels *table);
void zinf_ref_rmsnorm(zinf_kernels *table);
void zinf_ref_rope(zinf_kernels *table);
void zinf_ref_attention(zinf_kernels *table);
void zinf_ref_gelu(zinf_kernels *table);
void zinf_ref_swiglu(zinf_kernels *table);
void zinf_ref_softmax(zinf_kernels *table);
void zinf_ref_vector(zinf_kernels *table);
void zinf_ref_adam(zinf_kernels *table);

#endif
