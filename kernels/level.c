/* kernels/level.c - the names of instruction-set levels. */
#include <string.h>

#include "kernels/kernels.h"

const char *const zinf_cpu_level_names[ZINF_N_CPU_LEVELS] = {
    "ref", "avx2", "avx512", "avx512_bf16", "amx"};

bool zinf_cpu_level_parse(const char *text, zinf_cpu_level *ret_level)
{
    for (int i = 0; i < ZINF_N_CPU_LEVELS; i++)
        if (!strcmp(text, zinf_cpu_level_names[i])) {
            *ret_level = (zinf_cpu_level)i;
            return true;
        }
    return false;
}
