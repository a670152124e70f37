/* kernels/cpu/table.c - fills the table with the fastest version this CPU can run. */
#include <stdlib.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "kernels/cpu/cpu.h"

#if defined(__x86_64__)
static bool has_dot_products(void) /* of bf16 pairs: AVX512_BF16 */
{
    unsigned a, b, c, d;

    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 5 & 1);
}

/* AMX tiles of bf16: the CPU has them, the system saves them (XCR0 bits 17 and 18) and lets this
 * process use them. Asked once per process by whoever comes first; asking twice does no harm. */
static bool amx_is_granted(void)
{
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, TILE_DATA = 18 };
    unsigned a, b, c, d, low, high;

    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d >> 22 & 1) || !(d >> 24 & 1) ||
        !__get_cpuid(1, &a, &b, &c, &d) || !(c >> 27 & 1))
        return false;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low >> 17 & 3) == 3 && !syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA);
}
#endif

/* What CPU and operating system both support: GCC's run time asks XGETBV too. */
static zinf_cpu_level supported(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") ||
        !__builtin_cpu_supports("bmi2"))
        return ZINF_CPU_REF;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        return !has_dot_products() ? ZINF_CPU_AVX512 :
               amx_is_granted() ? ZINF_CPU_AMX : ZINF_CPU_AVX512_BF16;
    return ZINF_CPU_AVX2;
#else
    return ZINF_CPU_REF;
#endif
}

void zinf_cpu_gemm_below_tiles(zinf_kernels *table)
{
#if defined(__x86_64__)
    zinf_cpu_gemm_avx512(table);
#else
    (void)table;
#endif
}

void zinf_kernels_cpu(zinf_kernels *ret_table, zinf_dtype act, int n_threads, zinf_cpu_level most)
{
    const char *text = getenv("ZINF_CPU_LEVEL");
    zinf_cpu_level level = supported(), named;

    level = most < level ? most : level;
    if (text && zinf_cpu_level_parse(text, &named) && named < level)
        level = named;
    zinf_kernels_ref(ret_table, act, n_threads);
    if (level == ZINF_CPU_REF)
        return;
#if defined(__x86_64__)
#define FILL(level)                                                                              \
    do {                                                                                         \
        zinf_cpu_gemm_##level(ret_table);                                                        \
        zinf_cpu_attention_##level(ret_table);                                                   \
        zinf_cpu_layernorm_##level(ret_table);                                                   \
        zinf_cpu_rmsnorm_##level(ret_table);                                                     \
        zinf_cpu_rope_##level(ret_table);                                                        \
        zinf_cpu_gelu_##level(ret_table);                                                        \
        zinf_cpu_swiglu_##level(ret_table);                                                      \
        zinf_cpu_softmax_##level(ret_table);                                                     \
        zinf_cpu_vector_##level(ret_table);                                                      \
        zinf_cpu_adam_##level(ret_table);                                                        \
    } while (0)
    if (level >= ZINF_CPU_AVX512)
        FILL(avx512);
    else
        FILL(avx2);
#undef FILL
    ret_table->name = zinf_cpu_level_names[level];
    if (level == ZINF_CPU_AVX512_BF16 && act == ZINF_BF16) {
        zinf_cpu_attention_avx512_bf16(ret_table);
        zinf_cpu_gemm_avx512_bf16(ret_table);
    } else if (level == ZINF_CPU_AMX && act == ZINF_BF16) {
        zinf_cpu_attention_amx(ret_table);
        zinf_cpu_gemm_amx(ret_table);
    }
#endif
}
