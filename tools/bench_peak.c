/* tools/bench_peak.c - the bounds of tools/bench: multiply-adds of registers alone, and a triad. */
#include "tools/bench.h"

#include <omp.h>

#if defined(__x86_64__)
#include <immintrin.h>

enum { STEPS = 40000 }; /* rounds of the loops below: 1 to 10 ms */

/* Four sums, as a GEMM has them; a tile instruction is 16 x 16 x 32 multiply-adds. */
__attribute__((target("amx-tile,amx-bf16"))) static void amx_loop(void)
{
    static const struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config = {1, 0, {0}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};

    _tile_loadconfig(&config);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_zero(4);
    _tile_zero(5);
    _tile_zero(6);
    _tile_zero(7);
    for (int i = 0; i < STEPS; i++) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_release();
}

#define SUMS 16

__attribute__((target("avx512f,avx512bf16"))) static void dot_loop(void)
{
    __m512 sum[SUMS], start = _mm512_set1_ps(0);
    __m512bh x = (__m512bh)_mm512_set1_epi32(0x3f803f80);

    for (int j = 0; j < SUMS; j++)
        sum[j] = start;
    for (int i = 0; i < 16 * STEPS; i++)
#pragma GCC unroll 16
        for (int j = 0; j < SUMS; j++) {
            sum[j] = _mm512_dpbf16_ps(sum[j], x, x);
            __asm__ volatile("" : "+v"(sum[j]));
        }
}

__attribute__((target("avx512f"))) static void wide_loop(void)
{
    __m512 sum[SUMS], x = _mm512_set1_ps(1);

    for (int j = 0; j < SUMS; j++)
        sum[j] = x;
    for (int i = 0; i < 16 * STEPS; i++)
#pragma GCC unroll 16
        for (int j = 0; j < SUMS; j++) {
            sum[j] = _mm512_fmadd_ps(x, x, sum[j]);
            __asm__ volatile("" : "+v"(sum[j]));
        }
}

__attribute__((target("avx2,fma"))) static void fma_loop(void)
{
    __m256 sum[12], x = _mm256_set1_ps(1);

    for (int j = 0; j < 12; j++)
        sum[j] = x;
    for (int i = 0; i < 16 * STEPS; i++)
#pragma GCC unroll 12
        for (int j = 0; j < 12; j++) {
            sum[j] = _mm256_fmadd_ps(x, x, sum[j]);
            __asm__ volatile("" : "+x"(sum[j]));
        }
}

static void scalar_loop(void)
{
    double sum = 1;

    for (int i = 0; i < STEPS; i++) {
        sum = sum * 1.0 + 1.0;
        __asm__ volatile("" : "+x"(sum));
    }
}

typedef struct unit {
    const char *name;
    void (*run)(void);
    double flop;
} unit;

static const unit units[] = {
    {"AMX bf16", amx_loop, 4.0 * STEPS * 16 * 16 * 32 * 2},
    {"AVX512_BF16", dot_loop, 16.0 * STEPS * SUMS * 16 * 2 * 2},
    {"AVX-512 fp32 FMA", wide_loop, 16.0 * STEPS * SUMS * 16 * 2},
    {"AVX2 fp32 FMA", fma_loop, 16.0 * STEPS * 12 * 8 * 2},
    {"scalar", scalar_loop, 2.0 * STEPS},
};

static const unit *best_unit(zinf_dtype dtype)
{
    zinf_kernels table;
    zinf_cpu_level level = ZINF_CPU_REF;

    zinf_kernels_cpu(&table, dtype, 1, ZINF_N_CPU_LEVELS - 1);
    zinf_cpu_level_parse(table.name, &level);
    __builtin_cpu_init();
    if (dtype == ZINF_BF16 && level >= ZINF_CPU_AMX)
        return &units[0];
    if (dtype == ZINF_BF16 && level >= ZINF_CPU_AVX512 && __builtin_cpu_supports("avx512bf16"))
        return &units[1];
    return level >= ZINF_CPU_AVX512 ? &units[2] : level >= ZINF_CPU_AVX2 ? &units[3] : &units[4];
}
#else
typedef struct unit {
    const char *name;
    void (*run)(void);
    double flop;
} unit;

static void scalar_loop(void)
{
    for (volatile int i = 0; i < 1000000; i = i + 1)
        ;
}

static const unit *best_unit(zinf_dtype dtype)
{
    static const unit none = {"a loop", scalar_loop, 1000000};

    (void)dtype;
    return &none;
}
#endif

double bench_peak_flop(zinf_dtype dtype, const char **ret_name)
{
    const unit *it = best_unit(dtype);

    *ret_name = it->name;
    return it->flop;
}

void bench_peak_run(zinf_dtype dtype, int n_threads)
{
    const unit *it = best_unit(dtype);

#pragma omp parallel num_threads(n_threads)
    it->run();
}

void bench_triad(int n_threads, int64_t n, const float *b, const float *c, float *a)
{
#pragma omp parallel for simd num_threads(n_threads) schedule(static)
    for (int64_t i = 0; i < n; i++)
        a[i] = b[i] + 3 * c[i];
}
