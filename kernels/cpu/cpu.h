/* kernels/cpu/cpu.h - inside the CPU backend: the functions that fill the table, level by level.
 */
#ifndef ZINF_KERNELS_CPU_CPU_H
#define ZINF_KERNELS_CPU_CPU_H

#include "kernels/kernels.h"

/* GEMM by oneDNN; gemm.c. What oneDNN lacks goes to the table's former gemm. */
void zinf_cpu_gemm(zinf_kernels *table);

#endif
