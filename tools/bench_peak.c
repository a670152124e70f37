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

/* In assembler: a compiler may keep an array of sums on the stack, which halved the rate on Zen 5.
 * Two units of 4 to 6 cycles need 12 sums. */
enum { SUMS = 12 };
#define EACH(DO) DO("0") DO("1") DO("2") DO("3") DO("4") DO("5") DO("6") DO("7") DO("8") DO("9") \
    DO("10") DO("11")
#define ZERO(I) "vxorps %%xmm" I ", %%xmm" I ", %%xmm" I "\n\t"
#define DOT(I) "vdpbf16ps %%zmm15, %%zmm15, %%zmm" I "\n\t"
#define WIDE_FMA(I) "vfmadd231ps %%zmm15, %%zmm15, %%zmm" I "\n\t"
#define FMA(I) "vfmadd231ps %%ymm15, %%ymm15, %%ymm" I "\n\t"
/* one: in fp32 about one, as two bf16 exactly */
#define LOOP(NAME, REGISTER, INSTRUCTION)                                                        \
    static void NAME(void)                                                                       \
    {                                                                                            \
        const uint32_t one = 0x3f803f80;                                                         \
        int rounds = 16 * STEPS;                                                                 \
                                                                                                 \
        __asm__ volatile(EACH(ZERO) "vbroadcastss %1, %%" REGISTER "15\n\t"                      \
                         "1:\n\t" EACH(INSTRUCTION) "decl %0\n\t"                               \
                         "jnz 1b\n\tvzeroupper"                                                  \
                         : "+r"(rounds) : "m"(one)                                               \
                         : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", \
                           "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14",          \
                           "xmm15");                                                             \
    }

LOOP(dot_loop, "zmm", DOT)
LOOP(wide_loop, "zmm", WIDE_FMA)
LOOP(fma_loop, "ymm", FMA)

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
    {"AVX2 fp32 FMA", fma_loop, 16.0 * STEPS * SUMS * 8 * 2},
    {"scalar", scalar_loop, 2.0 * STEPS},
};

static const unit *best_unit(zinf_dtype dtype)
{
    zinf_kernels table;
    zinf_cpu_level level = ZINF_CPU_REF;

    zinf_kernels_cpu(&table, dtype, 1, ZINF_N_CPU_LEVELS - 1);
    zinf_cpu_level_parse(table.name, &level);
    if (dtype == ZINF_BF16 && level >= ZINF_CPU_AMX)
        return &units[0];
    if (dtype == ZINF_BF16 && level >= ZINF_CPU_AVX512_BF16)
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
