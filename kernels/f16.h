/* kernels/f16.h - IEEE half precision <-> fp32 of one value, in integer arithmetic, for files; no
 * kernel computes in it. 1 sign, 5 exponent, 10 fraction bits. Nearest even, which from 65520 on is
 * infinity; NaN stays NaN (quiet); 2^-24 is the unit of the denormals, which are kept.
 */
#ifndef ZINF_KERNELS_F16_H
#define ZINF_KERNELS_F16_H

#include "kernels/bf16.h"

static inline float zinf_f16_to_f32(uint16_t half)
{
    const uint32_t sign = (uint32_t)(half & 0x8000) << 16, rest = half & 0x7fff;

    if (rest >= 0x7c00)
        return zinf_f32_from_bits(sign | 0x7f800000 | (rest & 0x3ff) << 13);
    if (rest >= 0x400)
        return zinf_f32_from_bits(sign | ((rest << 13) + ((127 - 15) << 23)));
    return (sign ? -1.0f : 1.0f) * (float)rest * 0x1p-24f;
}

static inline uint16_t zinf_f16_from_f32(float value)
{
    const uint32_t bits = zinf_f32_bits(value), rest = bits & 0x7fffffff;
    const uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);

    if (rest > 0x7f800000)
        return (uint16_t)(sign | 0x7e00 | (rest >> 13 & 0x3ff));
    if (rest >= 0x47800000) /* 2^16 */
        return (uint16_t)(sign | 0x7c00);
    if (rest >= 0x38800000) /* 2^-14: the fraction's carry goes into the exponent */
        return (uint16_t)(sign | (rest - ((127 - 15) << 23) + 0xfff + (rest >> 13 & 1)) >> 13);
    /* beside 0.5 the unit of fp32 is 2^-24 */
    return (uint16_t)(sign | (zinf_f32_bits(zinf_f32_from_bits(rest) + 0.5f) - 0x3f000000));
}

#endif
