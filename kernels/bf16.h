/* kernels/bf16.h - bf16 <-> fp32 of one value, in integer arithmetic: what every kernel means by
 * rounding. Nearest even; NaN stays NaN (quiet); denormals are kept.
 */
#ifndef ZINF_KERNELS_BF16_H
#define ZINF_KERNELS_BF16_H

#include <stdint.h>
#include <string.h>

static inline uint32_t zinf_f32_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float zinf_f32_from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline float zinf_bf16_to_f32(uint16_t value)
{
    return zinf_f32_from_bits((uint32_t)value << 16);
}

static inline uint16_t zinf_bf16_from_f32(float value)
{
    const uint32_t bits = zinf_f32_bits(value);

    if ((bits & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

#endif
