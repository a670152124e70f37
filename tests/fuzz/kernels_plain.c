/* tests/fuzz/kernels_plain.c - kernels/cpu/table.c's place where only the reference is built: the
 * fast versions are intrinsics, which a sanitizer sees nothing of or does not know.
 */
#include "kernels/kernels.h"

void zinf_kernels_cpu(zinf_kernels *ret_table, zinf_dtype act, int n_threads, zinf_cpu_level most)
{
    (void)most;
    zinf_kernels_ref(ret_table, act, n_threads);
}
