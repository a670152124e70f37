/* runtime/element_sum.h - a checksum of a tensor's elements that may be made in any pieces, in any
 * order, by any ranks: the sum modulo 2^64 of a mixed number an element, of its index and its bits.
 */
#ifndef ZINF_RUNTIME_ELEMENT_SUM_H
#define ZINF_RUNTIME_ELEMENT_SUM_H

#include <stdint.h>
#include <string.h>

/* Of elements [first, first + n). */
static inline uint64_t zinf_element_sum(uint64_t first, uint64_t n, const float *values)
{
    uint64_t sum = 0;

    for (uint64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof bits);
        /* one round of the finaliser of SplitMix64 (Steele, Lea, Flood 2014) over odd multiples */
        uint64_t x = (first + i + 1) * 0x9e3779b97f4a7c15 + bits * 0xd6e8feb86659fd93;
        x = (x ^ x >> 32) * 0xbf58476d1ce4e5b9;
        sum += x ^ x >> 29;
    }
    return sum;
}

#endif
