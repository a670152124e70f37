/* tests/fuzz/fuzz.h - what a fuzz target is: one program each, driven by libFuzzer (tools/fuzz)
 * or by replay.c (tools/test), which names the same entry points. Every target holds the code to
 * the same contract: a status is recorded with one clear sentence, or the result is whole.
 */
#ifndef ZINF_TESTS_FUZZ_H
#define ZINF_TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/error.h"

/* libFuzzer's names. A target defines the first, and the second if it knows the structure. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t n, size_t most, unsigned seed);
size_t LLVMFuzzerMutate(uint8_t *data, size_t n, size_t most);

#define FUZZ_EXPECT(condition)                                                                   \
    do {                                                                                         \
        if (!(condition)) {                                                                      \
            fprintf(stderr, "%s:%d: broken promise: %s\n", __FILE__, __LINE__, #condition);      \
            abort();                                                                             \
        }                                                                                        \
    } while (0)

/* A status and its record agree, and the record is one sentence, without a line end. */
static inline void fuzz_check_error(zinf_status status, const zinf_error *err)
{
    const size_t n = strnlen(err->text, sizeof err->text);

    FUZZ_EXPECT(status == err->status && n < sizeof err->text);
    FUZZ_EXPECT(status == ZINF_OK ? n == 0 : n >= 20 && err->text[n - 1] != '\n');
    FUZZ_EXPECT(status != ZINF_WRONG_RESULT); /* "our own fault" */
}

/* Has this input been accepted? replay.c asks it of the seeds named good-*. */
__attribute__((weak)) int fuzz_accepted;

/* splitmix64: the same numbers everywhere. */
static inline uint64_t fuzz_random(uint64_t *state)
{
    uint64_t x = *state += 0x9e3779b97f4a7c15u;

    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* Numbers at the edges of types and of sums. */
static inline uint64_t fuzz_edge(uint64_t *state)
{
    const uint64_t bit = 1ull << (fuzz_random(state) & 63);

    switch (fuzz_random(state) % 8) {
    case 0:
        return bit;
    case 1:
        return bit - 1;
    case 2:
        return 0 - bit;
    case 3:
        return fuzz_random(state) % 17;
    case 4:
        return 4096 * (fuzz_random(state) % 17);
    case 5:
        return fuzz_random(state);
    case 6:
        return 1000000000000000000u;
    default:
        return UINT64_MAX - fuzz_random(state) % 17;
    }
}

#endif
