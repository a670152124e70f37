/* kernels/cpu/cpu.h - inside the CPU backend: the functions that fill the table, level by level.
 */
#ifndef ZINF_KERNELS_CPU_CPU_H
#define ZINF_KERNELS_CPU_CPU_H

#include "kernels/kernels.h"

/* Runs a call whose loops are marked "omp for", by a team if it is worth it. A team of one is
 * never formed: libgomp would allocate and free it each time; without a team the marked loops
 * just run. */
#define TEAM_TEXT(text) #text
#define TEAM_PRAGMA(text) _Pragma(TEAM_TEXT(text))
#define TEAM(threads, worth_it, call)                                                            \
    do {                                                                                         \
        if ((threads) > 1 && (worth_it)) {                                                       \
            TEAM_PRAGMA(omp parallel num_threads(threads))                                       \
            call;                                                                                \
        } else {                                                                                 \
            call;                                                                                \
        }                                                                                        \
    } while (0)

#define DECLARE(level)                                                                           \
    void zinf_cpu_gemm_##level(zinf_kernels *table);                                             \
    void zinf_cpu_attention_##level(zinf_kernels *table);                                        \
    void zinf_cpu_layernorm_##level(zinf_kernels *table);                                        \
    void zinf_cpu_rmsnorm_##level(zinf_kernels *table);                                          \
    void zinf_cpu_rope_##level(zinf_kernels *table);                                             \
    void zinf_cpu_gelu_##level(zinf_kernels *table);                                             \
    void zinf_cpu_swiglu_##level(zinf_kernels *table);                                           \
    void zinf_cpu_softmax_##level(zinf_kernels *table);                                          \
    void zinf_cpu_vector_##level(zinf_kernels *table);                                           \
    void zinf_cpu_adam_##level(zinf_kernels *table);
DECLARE(avx2)
DECLARE(avx512)
#undef DECLARE

/* For tables of bf16; the rest of both levels is avx512. */
void zinf_cpu_attention_avx512_bf16(zinf_kernels *table);
void zinf_cpu_gemm_avx512_bf16(zinf_kernels *table);
void zinf_cpu_attention_amx(zinf_kernels *table);
void zinf_cpu_gemm_amx(zinf_kernels *table);

/* What they leave to level avx512. */
void zinf_cpu_gemm_below_tiles(zinf_kernels *table);

#endif
