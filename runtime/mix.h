/* runtime/mix.h - a number from a number: the finaliser of SplitMix64 (Steele, Lea, Flood 2014;
 * constants by Stafford), a permutation of 64-bit words in which every bit of the argument counts.
 */
#ifndef ZINF_RUNTIME_MIX_H
#define ZINF_RUNTIME_MIX_H

#include <stdint.h>

static inline uint64_t zinf_mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
}

#endif
