/* tests/kernels/guard.h - what the kernel tests share: guarded, misaligned buffers, seeded nasty
 * fills, the levels to test, and the comparison.
 *
 * A buffer comes from take() with 64 canary bytes on either side; guards_intact() looks at all of
 * them, release() frees all. ZINF_TEST_ALIGN elements of shift make addresses aligned to the
 * element only.
 */
#ifndef ZINF_TESTS_KERNELS_GUARD_H
#define ZINF_TESTS_KERNELS_GUARD_H

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/bf16.h"
#include "kernels/kernels.h"
#include "tests/check.h"

enum { GUARD = 64, GUARD_BYTE = 0xa5, MAX_BUFFERS = 256 };

static struct buffer {
    unsigned char *base, *data;
    size_t bytes;
} buffers[MAX_BUFFERS];
static int n_buffers;

static inline void *take_shifted(size_t bytes, size_t shift)
{
    struct buffer *buffer = &buffers[n_buffers];

    if (n_buffers == MAX_BUFFERS || !(buffer->base = malloc(bytes + shift + 2 * GUARD + 64)))
        abort();
    n_buffers++;
    buffer->data = (unsigned char *)(((uintptr_t)buffer->base + GUARD + 63) & ~(uintptr_t)63) +
                   shift;
    buffer->bytes = bytes;
    memset(buffer->data - GUARD, GUARD_BYTE, bytes + 2 * GUARD);
    return buffer->data;
}

static inline bool guards_intact(void)
{
    for (int i = 0; i < n_buffers; i++)
        for (int j = 0; j < GUARD; j++)
            if (buffers[i].data[-1 - j] != GUARD_BYTE ||
                buffers[i].data[buffers[i].bytes + (size_t)j] != GUARD_BYTE)
                return false;
    return true;
}

static inline void release(void)
{
    while (n_buffers)
        free(buffers[--n_buffers].base);
}

/* Scratch is aligned to 64; everything else to its element. */
static inline void *take_scratch(size_t bytes)
{
    return take_shifted(bytes, 0);
}

static inline float *take_f32(int64_t n)
{
    return take_shifted((size_t)n * 4, 4 * (1 + (size_t)n % 7));
}

static inline int32_t *take_i32(int64_t n)
{
    return take_shifted((size_t)n * 4, 4);
}

static inline void *take(zinf_dtype dtype, int64_t n)
{
    const size_t size = zinf_dtype_bytes(dtype);

    return take_shifted((size_t)n * size, size * (1 + (size_t)n % 7));
}

static uint64_t seed = 1;

static inline uint64_t draw(void) /* splitmix64 */
{
    uint64_t z = seed += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

static inline int64_t draw_below(int64_t n)
{
    return (int64_t)(draw() % (uint64_t)n);
}

/* In [-1, 1) */
static inline double draw_unit(void)
{
    return (double)(int64_t)draw() / 9223372036854775808.0;
}

typedef enum fill { UNIT, INTEGERS, ZEROS, DENORMALS, LARGE, MIXED, N_FILLS } fill;

static inline float draw_value(fill kind)
{
    switch (kind) {
    case UNIT:
        return (float)draw_unit();
    case INTEGERS:
        return (float)(draw_below(9) - 4);
    case ZEROS:
        return draw_below(2) ? 0.0f : -0.0f;
    case DENORMALS:
        return (float)(draw_unit() * FLT_MIN);
    case LARGE:
        return (float)(draw_unit() * 1e4);
    default:
        return draw_value((fill)draw_below(MIXED)) * (draw_below(8) ? 1 : 16);
    }
}

static inline double value(zinf_dtype dtype, const void *array, int64_t i)
{
    return dtype == ZINF_BF16 ? zinf_bf16_to_f32(((const uint16_t *)array)[i]) :
                                ((const float *)array)[i];
}

static inline void *set(fill kind, zinf_dtype dtype, void *array, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const float x = draw_value(kind);
        if (dtype == ZINF_BF16)
            ((uint16_t *)array)[i] = zinf_bf16_from_f32(x);
        else
            ((float *)array)[i] = x;
    }
    return array;
}

static inline void *take_set(fill kind, zinf_dtype dtype, int64_t n)
{
    return set(kind, dtype, take(dtype, n), n);
}

static inline void *take_copy(zinf_dtype dtype, const void *from, int64_t n)
{
    return memcpy(take(dtype, n), from, (size_t)n * zinf_dtype_bytes(dtype));
}

#define EPS 0x1p-24 /* half an ulp of fp32 at 1: the relative error of one rounding */

/* got and want, both rounded to dtype, were within `error` before: bf16 values that close round
 * to the same or to neighbouring values, 2^-7 of the larger apart; fp32 adds one rounding each.
 * Results below the smallest normal number may have been flushed. */
static inline bool near_value(zinf_dtype dtype, double got, double want, double error)
{
    const double rounding = dtype == ZINF_BF16 ? 0x1p-7 * fmax(fabs(got), fabs(want)) :
                                                 2 * EPS * fabs(want);
    if (got == want) /* infinities too */
        return true;
    return fabs(got - want) <= error + rounding + FLT_MIN;
}

/* The tables under test: every level this CPU (and ZINF_CPU_LEVEL) allows, both types. */
static zinf_cpu_level level, first_level = ZINF_CPU_REF, last_level = ZINF_CPU_AMX;
static zinf_dtype act;
static zinf_kernels ref, fast; /* 2 threads */

static inline bool level_is_available(void)
{
    zinf_kernels_ref(&ref, act, 2);
    zinf_kernels_cpu(&fast, act, 2, level);
    return !strcmp(fast.name, zinf_cpu_level_names[level]);
}

static inline void skip_level(void)
{
    SKIP("this CPU or ZINF_CPU_LEVEL has no %s", zinf_cpu_level_names[level]);
}

/* Runs a test for every level and type, under the name "<level> <type> <words>". */
static inline void run_everywhere(void (*test)(void), const char *words)
{
    char name[200];

    for (level = first_level; level <= last_level; level++)
        for (int type = 0; type < 2; type++) {
            act = type ? ZINF_BF16 : ZINF_F32;
            seed = 1;
            snprintf(name, sizeof name, "%s %s %s", zinf_cpu_level_names[level],
                     type ? "bf16" : "f32", words);
            check_run(level_is_available() ? test : skip_level, name);
            release();
        }
}
#define RUN_EVERYWHERE(test) run_everywhere(test, #test)

#endif
