/* runtime/backend.h - what a device must provide: memory, copies, kernels. One table a backend.
 *
 * `cpu` is backend_cpu.c. A cuda table fills the same slots: device memory by cudaMalloc, host
 * memory pinned, copies on the queue's stream, kernels from kernels/cuda.
 */
#ifndef ZINF_RUNTIME_BACKEND_H
#define ZINF_RUNTIME_BACKEND_H

#include <stdint.h>

#include "kernels/kernels.h"
#include "runtime/error.h"
#include "runtime/plan.h"

typedef struct zinf_backend {
    const char *name; /* as in zinf_machine_info.backend */

    /* The arena of a tier (device or host): aligned to 2 MiB, every page touched, so that what
     * is measured is what was planned and no later access can fail. bytes 0: NULL. */
    zinf_status (*arena_alloc)(zinf_tier tier, uint64_t bytes, void **ret_memory,
                               zinf_error *err);
    void (*arena_free)(zinf_tier tier, void *memory, uint64_t bytes); /* accepts NULL */

    /* Between device and host memory or within one, complete on return. */
    void (*copy)(void *dst, const void *src, uint64_t bytes);
    void (*zero)(void *dst, uint64_t bytes);

    void (*kernels)(zinf_kernels *ret_table, zinf_dtype act, int n_threads);
} zinf_backend;

extern const zinf_backend zinf_backend_cpu;

/* NULL if this build has no backend of that name. */
const zinf_backend *zinf_backend_find(const char *name);

#endif
