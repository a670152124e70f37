/* kernels/ref/table.c - fills the reference table. */
#include "kernels/ref/ref.h"

void zinf_kernels_ref(zinf_kernels *ret_table, zinf_dtype act, int n_threads)
{
    *ret_table = (zinf_kernels){.name = "ref", .act = act, .n_threads = n_threads};
    zinf_ref_gemm(ret_table);
    zinf_ref_embedding(ret_table);
    zinf_ref_layernorm(ret_table);
    zinf_ref_rmsnorm(ret_table);
    zinf_ref_rope(ret_table);
    zinf_ref_attention(ret_table);
    zinf_ref_gelu(ret_table);
    zinf_ref_swiglu(ret_table);
    zinf_ref_softmax(ret_table);
    zinf_ref_vector(ret_table);
    zinf_ref_adam(ret_table);
}
