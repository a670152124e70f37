/* kernels/cpu/vec.h - one vector of fp32 (8 lanes for avx2, 16 for avx512) and what the level
 * sources do with it. They are compiled once per level with ZINF_LEVEL defined, without
 * contraction: the only fused operations are those written vf_fma, so an element's bits do not
 * depend on whether it is computed in the body or in the tail of an array. Addresses need the
 * alignment of an element only. Arithmetic operators are GCC's.
 */
#ifndef ZINF_KERNELS_CPU_VEC_H
#define ZINF_KERNELS_CPU_VEC_H

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "kernels/kernels.h"

#define LEVEL_PASTE(name, level) name##_##level
#define LEVEL_EXPAND(name, level) LEVEL_PASTE(name, level)
#define LEVEL(name) LEVEL_EXPAND(name, ZINF_LEVEL)
#define INLINE static inline __attribute__((always_inline))

#ifdef __AVX512F__
enum { VL = 16 };
typedef __m512 vf;
typedef __m512i vi;
#define VF_MASK(n) ((n) >= VL ? (__mmask16)0xffff : (__mmask16)((1u << ((n) > 0 ? (n) : 0)) - 1))

INLINE vf vf_set(float x) { return _mm512_set1_ps(x); }
INLINE vf vf_load(const float *p) { return _mm512_loadu_ps(p); }
INLINE void vf_store(float *p, vf x) { _mm512_storeu_ps(p, x); }
INLINE vf vf_load_n(const float *p, int64_t n) { return _mm512_maskz_loadu_ps(VF_MASK(n), p); }
INLINE void vf_store_n(float *p, int64_t n, vf x) { _mm512_mask_storeu_ps(p, VF_MASK(n), x); }
INLINE vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
INLINE vf vf_sqrt(vf x) { return _mm512_sqrt_ps(x); }
INLINE vf vf_round(vf x) { return _mm512_roundscale_ps(x, 8); }
INLINE vf vf_scale2(vf x, vf n) { return _mm512_scalef_ps(x, n); }
INLINE vf vf_floor_rest(vf x) { return _mm512_reduce_ps(x, 9); } /* x - floor(x) */
INLINE vf vf_scale2_floor(vf p, vf x, vf rest) { (void)rest; return _mm512_scalef_ps(p, x); }
/* 1 / x within 2^-14; 0 of infinity */
INLINE vf vf_reciprocal_short(vf x) { return _mm512_rcp14_ps(x); }
/* The second argument if either is NaN. */
INLINE vf vf_max(vf a, vf b) { return _mm512_max_ps(a, b); }
INLINE vf vf_min(vf a, vf b) { return _mm512_min_ps(a, b); }
/* a < b ? yes : no */
INLINE vf vf_less(vf a, vf b, vf yes, vf no)
{
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), no, yes);
}

INLINE vf bf_widen(__m256i x)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}

/* Not vcvtneps2bf16: that flushes denormals. */
INLINE __m256i bf_narrow(vf x)
{
    const vi bits = _mm512_castps_si512(x);
    const vi odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const vi sum = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    const vi quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    const vi all = _mm512_mask_blend_epi32(_mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), sum, quiet);
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(all, 16));
}

INLINE vf bf_load_n(const uint16_t *p, int64_t n)
{
    return bf_widen(n >= VL ? _mm256_loadu_si256((const __m256i *)p) :
                              _mm256_maskz_loadu_epi16(VF_MASK(n), p));
}

INLINE void bf_store_n(uint16_t *p, int64_t n, vf x)
{
    if (n >= VL)
        _mm256_storeu_si256((__m256i *)p, bf_narrow(x));
    else
        _mm256_mask_storeu_epi16(p, VF_MASK(n), bf_narrow(x));
}

/* Of each four lanes: the first or last two of a and b in turns; pairs of a, then of b. */
INLINE vf vf_zip_low(vf a, vf b) { return _mm512_unpacklo_ps(a, b); }
INLINE vf vf_zip_high(vf a, vf b) { return _mm512_unpackhi_ps(a, b); }
INLINE vf vf_pairs_low(vf a, vf b) { return _mm512_shuffle_ps(a, b, 0x44); }
INLINE vf vf_pairs_high(vf a, vf b) { return _mm512_shuffle_ps(a, b, 0xee); }

/* What is left of a transpose where each four lanes are one. */
INLINE void vf_transpose_quarters(vf r[VL])
{
    vf t[VL];

    for (int i = 0; i < 4; i++)
        for (int half = 0; half < 2; half++) {
            const vf a = r[8 * half + i], b = r[8 * half + 4 + i];
            t[8 * half + i] = _mm512_shuffle_f32x4(a, b, 0x88);
            t[8 * half + 4 + i] = _mm512_shuffle_f32x4(a, b, 0xdd);
        }
    for (int i = 0; i < 8; i++) {
        r[i] = _mm512_shuffle_f32x4(t[i], t[8 + i], 0x88);
        r[8 + i] = _mm512_shuffle_f32x4(t[i], t[8 + i], 0xdd);
    }
}
#else
enum { VL = 8 };
typedef __m256 vf;
typedef __m256i vi;

INLINE vi vf_mask(int64_t n)
{
    static const int32_t ones[16] = {-1, -1, -1, -1, -1, -1, -1, -1};
    return _mm256_loadu_si256((const __m256i *)(ones + 8 - (n > VL ? VL : n > 0 ? n : 0)));
}

INLINE vf vf_set(float x) { return _mm256_set1_ps(x); }
INLINE vf vf_load(const float *p) { return _mm256_loadu_ps(p); }
INLINE void vf_store(float *p, vf x) { _mm256_storeu_ps(p, x); }
INLINE vf vf_load_n(const float *p, int64_t n)
{
    return n >= VL ? vf_load(p) : _mm256_maskload_ps(p, vf_mask(n));
}
INLINE void vf_store_n(float *p, int64_t n, vf x)
{
    if (n >= VL)
        vf_store(p, x);
    else
        _mm256_maskstore_ps(p, vf_mask(n), x);
}
INLINE vf vf_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
INLINE vf vf_sqrt(vf x) { return _mm256_sqrt_ps(x); }
INLINE vf vf_round(vf x) { return _mm256_round_ps(x, 8); }
/* x * 2^n in two steps, so that the product may be denormal; |n| <= 200. */
INLINE vf vf_scale2(vf x, vf n)
{
    const vi all = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(all, 1);
    const vi rest = _mm256_sub_epi32(all, half), bias = _mm256_set1_epi32(127);
    x *= _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23));
    return x * _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23));
}
INLINE vf vf_floor_rest(vf x) { return x - _mm256_floor_ps(x); }
/* p * 2^floor(x), where rest = x - floor(x); the power is held within 2^-126 .. 2^126. */
INLINE vf vf_scale2_floor(vf p, vf x, vf rest)
{
    const vf n = _mm256_max_ps(vf_set(-126.0f), _mm256_min_ps(vf_set(126.0f), x - rest));
    return p * _mm256_castsi256_ps(_mm256_slli_epi32(
        _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}
/* 1 / x within 2^-21: an approximation within 1.5 * 2^-12 and one Newton step. x below 2^126. */
INLINE vf vf_reciprocal_short(vf x)
{
    const vf y = _mm256_rcp_ps(x);
    return vf_fma(y, vf_fma(vf_set(0) - x, y, vf_set(1.0f)), y);
}
INLINE vf vf_max(vf a, vf b) { return _mm256_max_ps(a, b); }
INLINE vf vf_min(vf a, vf b) { return _mm256_min_ps(a, b); }
INLINE vf vf_less(vf a, vf b, vf yes, vf no)
{
    return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
}
INLINE vf bf_widen(__m128i x)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
}

INLINE __m128i bf_narrow(vf x)
{
    const vi bits = _mm256_castps_si256(x);
    const vi odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const vi sum = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    const vi quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const vi nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    const vi all = _mm256_srli_epi32(_mm256_blendv_epi8(sum, quiet, nan), 16);
    return _mm_packus_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
}

INLINE vf bf_load_n(const uint16_t *p, int64_t n)
{
    uint16_t some[VL] = {0};

    if (n >= VL)
        return bf_widen(_mm_loadu_si128((const __m128i *)p));
    memcpy(some, p, (size_t)(n > 0 ? n % VL : 0) * sizeof *p); /* n < VL, which gcc 12 loses */
    return bf_widen(_mm_loadu_si128((const __m128i *)some));
}

INLINE void bf_store_n(uint16_t *p, int64_t n, vf x)
{
    uint16_t some[VL];

    if (n >= VL) {
        _mm_storeu_si128((__m128i *)p, bf_narrow(x));
        return;
    }
    _mm_storeu_si128((__m128i *)some, bf_narrow(x));
    memcpy(p, some, (size_t)(n > 0 ? n : 0) * sizeof *p);
}

INLINE vf vf_zip_low(vf a, vf b) { return _mm256_unpacklo_ps(a, b); }
INLINE vf vf_zip_high(vf a, vf b) { return _mm256_unpackhi_ps(a, b); }
INLINE vf vf_pairs_low(vf a, vf b) { return _mm256_shuffle_ps(a, b, 0x44); }
INLINE vf vf_pairs_high(vf a, vf b) { return _mm256_shuffle_ps(a, b, 0xee); }

INLINE void vf_transpose_quarters(vf r[VL])
{
    for (int i = 0; i < 4; i++) {
        const vf a = r[i], b = r[4 + i];
        r[i] = _mm256_permute2f128_ps(a, b, 0x20);
        r[4 + i] = _mm256_permute2f128_ps(a, b, 0x31);
    }
}
#endif

/* Row and column exchanged in a VL x VL matrix. */
static inline void vf_transpose(vf r[VL])
{
    vf t[VL];

    for (int i = 0; i < VL; i += 2) {
        t[i] = vf_zip_low(r[i], r[i + 1]);
        t[i + 1] = vf_zip_high(r[i], r[i + 1]);
    }
    for (int i = 0; i < VL; i += 4)
        for (int j = 0; j < 2; j++) {
            r[i + 2 * j] = vf_pairs_low(t[i + j], t[i + 2 + j]);
            r[i + 2 * j + 1] = vf_pairs_high(t[i + j], t[i + 2 + j]);
        }
    vf_transpose_quarters(r);
}

/* Elements [i, i + min(n, VL)) of an array; lanes beyond are zero, and not stored. */
INLINE vf act_load(bool bf16, const void *array, int64_t i, int64_t n)
{
    return bf16 ? bf_load_n((const uint16_t *)array + i, n) :
                  vf_load_n((const float *)array + i, n);
}

INLINE void act_store(bool bf16, void *array, int64_t i, int64_t n, vf x)
{
    if (bf16)
        bf_store_n((uint16_t *)array + i, n, x);
    else
        vf_store_n((float *)array + i, n, x);
}

/* Lanes [n, VL) replaced by `other`. */
INLINE vf vf_keep(vf x, int64_t n, float other)
{
    float lanes[VL];

    if (n >= VL)
        return x;
    vf_store(lanes, x);
    for (int64_t i = n > 0 ? n : 0; i < VL; i++)
        lanes[i] = other;
    return vf_load(lanes);
}

/* Sum of the lanes, in halves. */
INLINE float vf_sum(vf x)
{
    float lanes[VL];

    vf_store(lanes, x);
    for (int half = VL / 2; half; half /= 2)
        for (int i = 0; i < half; i++)
            lanes[i] += lanes[i + half];
    return lanes[0];
}

/* NaN if any lane is. */
INLINE float vf_most(vf x)
{
    float lanes[VL];

    vf_store(lanes, x);
    for (int i = 1; i < VL; i++)
        lanes[0] = lanes[i] > lanes[0] || lanes[i] != lanes[i] ? lanes[i] : lanes[0];
    return lanes[0];
}

/* exp(r), |r| <= 0.35. Polynomial of Cephes' expf: relative error below 2^-23.8; its last two
 * operations round once each, so < 1.3 ulp together. */
INLINE vf vf_exp_small(vf r)
{
    vf p = vf_set(1.9875691500e-4f);

    p = vf_fma(p, r, vf_set(1.3981999507e-3f));
    p = vf_fma(p, r, vf_set(8.3334519073e-3f));
    p = vf_fma(p, r, vf_set(4.1665795894e-2f));
    p = vf_fma(p, r, vf_set(1.6666665459e-1f));
    p = vf_fma(p, r, vf_set(5.0000001201e-1f));
    return vf_fma(p, r * r, r) + vf_set(1.0f);
}

/* exp(x): x = n ln 2 + r with ln 2 in two parts (n * the first is exact), so r has an
 * error below 2^-25. NaN gives NaN, x below -104 gives 0. Below 2 ulp; denormals round again. */
INLINE vf vf_exp(vf x)
{
    x = vf_max(vf_set(-110.0f), vf_min(vf_set(130.0f), x));
    const vf n = vf_round(x * vf_set(1.44269504f));
    vf r = vf_fma(n, vf_set(-0.693359375f), x);
    r = vf_fma(n, vf_set(2.12194440e-4f), r);
    return vf_scale2(vf_exp_small(r), n);
}

/* 2^x for results that keep few bits: relative error below 2^-22 (a polynomial of degree 5: 1.3
 * * 2^-24; roundings) and that of x times ln 2. NaN gives NaN. */
INLINE vf vf_exp2_short(vf x)
{
    const vf r = vf_floor_rest(x);
    vf p = vf_set(0.001877576694f);

    p = vf_fma(p, r, vf_set(0.008989339694f));
    p = vf_fma(p, r, vf_set(0.055826317518f));
    p = vf_fma(p, r, vf_set(0.240153610706f));
    p = vf_fma(p, r, vf_set(0.693153083324f));
    p = vf_fma(p, r, vf_set(0.999999940395f));
    return vf_scale2_floor(p, x, r);
}

/* statement for i = first, first + VL, .. < end, where `left` is the number of elements from i: VL
 * as a constant but for the last, so that no vector asks whether it is whole. */
#define FOR_VECTORS(i, left, first, end, statement)                                              \
    do {                                                                                         \
        const int64_t end_ = (end);                                                              \
        int64_t i = (first);                                                                     \
        for (; i + VL <= end_; i += VL) {                                                        \
            const int64_t left = VL;                                                             \
            statement;                                                                           \
        }                                                                                        \
        if (i < end_) {                                                                          \
            const int64_t left = end_ - i;                                                       \
            statement;                                                                           \
        }                                                                                        \
    } while (0)

/* Threads pay above this many elements; results never depend on it. */
enum { PARALLEL_FROM = 32768, PARALLEL_BLOCK = 8192 };

#endif
