/* kernels/cpu/table.c - fills the table with the fastest version this CPU can run. */
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/cpu.h"

static const char *const level_names[ZINF_N_CPU_LEVELS] = {"ref", "avx2", "avx512"};

bool zinf_cpu_level_parse(const char *text, zinf_cpu_level *ret_level)
{
    for (int i = 0; i < ZINF_N_CPU_LEVELS; i++)
        if (!strcmp(text, level_names[i])) {
            *ret_level = (zinf_cpu_level)i;
            return true;
        }
    return false;
}

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
        return ZINF_CPU_AVX512;
    return ZINF_CPU_AVX2;
#else
    return ZINF_CPU_REF;
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
    if (level == ZINF_CPU_AVX512)
        FILL(avx512);
    else
        FILL(avx2);
#undef FILL
    ret_table->name = level_names[level];
#endif
#ifdef ZINF_HAVE_DNNL
    if (level == ZINF_CPU_AVX512)
        zinf_cpu_gemm_dnnl(ret_table);
#endif
}
