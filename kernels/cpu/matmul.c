/* kernels/cpu/matmul.c - see matmul.h. oneDNN parallelises with OpenMP and takes the calling
 * thread's team size when a primitive is created and when it runs: both are bracketed.
 */
#include "kernels/cpu/matmul.h"

#include <dnnl.h>
#include <errno.h>
#include <inttypes.h>
#include <omp.h>
#include <pthread.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

enum { SRC, WEIGHTS, BIAS, DST, SCRATCHPAD, N_ARGS };
static const int arg_names[N_ARGS] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_BIAS, DNNL_ARG_DST,
                                      DNNL_ARG_SCRATCHPAD};

struct zinf_matmul {
    dnnl_primitive_t primitive;
    dnnl_stream_t stream;
    dnnl_memory_t memory[N_ARGS]; /* NULL if absent */
    const char *description; /* static text of oneDNN */
    int n_threads;
};

static dnnl_engine_t engine; /* lives as long as the process; NULL if that lacked memory */
static pthread_once_t engine_once = PTHREAD_ONCE_INIT;

static void create_engine(void)
{
    if (dnnl_engine_create(&engine, dnnl_cpu, 0) != dnnl_success)
        engine = NULL;
}

#if DNNL_VERSION_MAJOR >= 3
typedef dnnl_memory_desc_t owned_md;

static bool describe_matrix(owned_md *md, int64_t rows, int64_t cols, zinf_dtype dtype, bool trans,
                            int64_t ld)
{
    const dnnl_dims_t dims = {rows, cols}, strides = {trans ? 1 : ld, trans ? ld : 1};

    return dnnl_memory_desc_create_with_strides(
               md, 2, dims, dtype == ZINF_BF16 ? dnnl_bf16 : dnnl_f32, strides) == dnnl_success;
}

static void release_matrix(owned_md *md)
{
    if (*md)
        dnnl_memory_desc_destroy(*md);
}

static bool describe_primitive(dnnl_primitive_desc_t *pd, owned_md *md, bool has_bias,
                               dnnl_primitive_attr_t attr)
{
    return dnnl_matmul_primitive_desc_create(pd, engine, md[SRC], md[WEIGHTS],
                                             has_bias ? md[BIAS] : NULL, md[DST],
                                             attr) == dnnl_success;
}

static size_t matrix_bytes(const_dnnl_memory_desc_t md)
{
    return md ? dnnl_memory_desc_get_size(md) : 0;
}

static const_dnnl_memory_desc_t view(owned_md *md)
{
    return *md;
}
#else
typedef dnnl_memory_desc_t owned_md;

static bool describe_matrix(owned_md *md, int64_t rows, int64_t cols, zinf_dtype dtype, bool trans,
                            int64_t ld)
{
    const dnnl_dims_t dims = {rows, cols}, strides = {trans ? 1 : ld, trans ? ld : 1};

    return dnnl_memory_desc_init_by_strides(
               md, 2, dims, dtype == ZINF_BF16 ? dnnl_bf16 : dnnl_f32, strides) == dnnl_success;
}

static void release_matrix(owned_md *md)
{
    (void)md;
}

static bool describe_primitive(dnnl_primitive_desc_t *pd, owned_md *md, bool has_bias,
                               dnnl_primitive_attr_t attr)
{
    dnnl_matmul_desc_t desc;

    return dnnl_matmul_desc_init(&desc, &md[SRC], &md[WEIGHTS], has_bias ? &md[BIAS] : NULL,
                                 &md[DST]) == dnnl_success &&
           dnnl_primitive_desc_create(pd, &desc, attr, engine, NULL) == dnnl_success;
}

static size_t matrix_bytes(const dnnl_memory_desc_t *md)
{
    return md ? dnnl_memory_desc_get_size(md) : 0;
}

static const dnnl_memory_desc_t *view(owned_md *md)
{
    return md;
}
#endif

/* Scratchpad from the caller; sum into C if the product is accumulated. */
static bool create_attributes(dnnl_primitive_attr_t *attr, bool accumulate)
{
    dnnl_post_ops_t post_ops = NULL;
    bool ok = dnnl_primitive_attr_create(attr) == dnnl_success &&
              dnnl_primitive_attr_set_scratchpad_mode(*attr, dnnl_scratchpad_mode_user) ==
                  dnnl_success;

    if (ok && accumulate)
        ok = dnnl_post_ops_create(&post_ops) == dnnl_success &&
             dnnl_post_ops_append_sum(post_ops, 1.0f
#if DNNL_VERSION_MAJOR >= 3
                                      , 0, dnnl_data_type_undef
#endif
                                      ) == dnnl_success &&
             dnnl_primitive_attr_set_post_ops(*attr, post_ops) == dnnl_success;
    if (post_ops)
        dnnl_post_ops_destroy(post_ops);
    return ok;
}

/* Implementations named "ref:..." are slower than our own reference. */
static bool is_optimised(dnnl_primitive_desc_t pd, const char **ret_description)
{
    *ret_description = "?";
    return dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0,
                                     (void *)ret_description) == dnnl_success &&
           strncmp(*ret_description, "ref", 3) != 0;
}

/* oneDNN reserves 256 KiB, writable and executable, for each kernel's code and fills a few pages.
 * Made read-only, what is reserved counts in no limit on data, and nothing can write code. */
static void seal_code(void)
{
    char line[256], mode[8];
    uintptr_t start, end;
    unsigned long inode;
    FILE *maps = fopen("/proc/self/maps", "r");

    while (maps && fgets(line, sizeof line, maps))
        if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %7s %*s %*s %lu", &start, &end, mode,
                   &inode) == 4 && strcmp(mode, "rwxp") == 0 && inode == 0)
            (void)mprotect((void *)start, end - start, PROT_READ | PROT_EXEC);
    if (maps)
        fclose(maps);
}

int zinf_matmul_create(const zinf_gemm_desc *desc, int n_threads, zinf_matmul **ret_matmul,
                       size_t *ret_scratch_bytes)
{
    const int team = omp_get_max_threads();
    owned_md md[SCRATCHPAD];
    dnnl_primitive_attr_t attr = NULL;
    dnnl_primitive_desc_t pd = NULL;
    zinf_matmul *matmul = calloc(1, sizeof *matmul);
    int code = ENOTSUP;

    *ret_matmul = NULL;
    if (!matmul)
        return ENOMEM;
    memset(md, 0, sizeof md);
    errno = 0;
    pthread_once(&engine_once, create_engine);
    if (!engine) {
        errno = ENOMEM;
        goto done;
    }
    omp_set_num_threads(n_threads);
    matmul->n_threads = n_threads;
    if (!describe_matrix(&md[SRC], desc->m, desc->k, desc->ab_dtype, desc->trans_a, desc->lda) ||
        !describe_matrix(&md[WEIGHTS], desc->k, desc->n, desc->ab_dtype, desc->trans_b,
                         desc->ldb) ||
        !describe_matrix(&md[BIAS], 1, desc->n, desc->ab_dtype, false, desc->n) ||
        !describe_matrix(&md[DST], desc->m, desc->n, desc->c_dtype, false, desc->ldc) ||
        !create_attributes(&attr, desc->accumulate) ||
        !describe_primitive(&pd, md, desc->has_bias, attr) ||
        !is_optimised(pd, &matmul->description) ||
        dnnl_primitive_create(&matmul->primitive, pd) != dnnl_success ||
        dnnl_stream_create(&matmul->stream, engine, dnnl_stream_default_flags) != dnnl_success)
        goto done;
    for (int i = 0; i < SCRATCHPAD; i++)
        if ((i != BIAS || desc->has_bias) &&
            dnnl_memory_create(&matmul->memory[i], view(&md[i]), engine, DNNL_MEMORY_NONE) !=
                dnnl_success)
            goto done;
    *ret_scratch_bytes = matrix_bytes(dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md,
                                                                   0));
    if (*ret_scratch_bytes &&
        dnnl_memory_create(&matmul->memory[SCRATCHPAD],
                           dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0), engine,
                           DNNL_MEMORY_NONE) != dnnl_success)
        goto done;
    code = 0;
done:
    code = errno == ENOMEM ? ENOMEM : code;
    omp_set_num_threads(team);
    for (int i = 0; i < SCRATCHPAD; i++)
        release_matrix(&md[i]);
    if (pd)
        dnnl_primitive_desc_destroy(pd);
    if (attr)
        dnnl_primitive_attr_destroy(attr);
    if (code) {
        zinf_matmul_destroy(matmul);
        return code;
    }
    seal_code();
    *ret_matmul = matmul;
    return 0;
}

void zinf_matmul_run(zinf_matmul *matmul, const void *a, const void *b, const void *bias, void *c,
                     void *scratch)
{
    const void *data[N_ARGS] = {a, b, bias, c, scratch};
    dnnl_exec_arg_t args[N_ARGS];
    const int team = omp_get_max_threads();
    int n_args = 0;

    for (int i = 0; i < N_ARGS; i++)
        if (matmul->memory[i]) {
            dnnl_memory_set_data_handle(matmul->memory[i], (void *)(uintptr_t)data[i]);
            args[n_args++] = (dnnl_exec_arg_t){arg_names[i], matmul->memory[i]};
        }
    omp_set_num_threads(matmul->n_threads);
    dnnl_primitive_execute(matmul->primitive, matmul->stream, n_args, args);
    dnnl_stream_wait(matmul->stream);
    omp_set_num_threads(team);
}

void zinf_matmul_destroy(zinf_matmul *matmul)
{
    if (!matmul)
        return;
    for (int i = 0; i < N_ARGS; i++)
        if (matmul->memory[i])
            dnnl_memory_destroy(matmul->memory[i]);
    if (matmul->stream)
        dnnl_stream_destroy(matmul->stream);
    if (matmul->primitive)
        dnnl_primitive_destroy(matmul->primitive);
    free(matmul);
}

const char *zinf_matmul_describe(const zinf_matmul *matmul)
{
    return matmul->description;
}
