/* runtime/params_hash.c - see params_hash.h. */
#include "runtime/params_hash.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "runtime/element_sum.h"

struct zinf_params_hash {
    const zinf_plan *plan;
    uint64_t *totals; /* [n_tensors] sums, [n_tensors] elements put */
};

zinf_status zinf_params_hash_open(const zinf_plan *plan, zinf_params_hash **ret_hash,
                                  zinf_error *err)
{
    zinf_params_hash *hash = calloc(1, sizeof *hash);

    if (hash) {
        hash->plan = plan;
        hash->totals = calloc(2 * (size_t)plan->n_tensors + 1, sizeof *hash->totals);
    }
    if (hash && hash->totals) {
        *ret_hash = hash;
        return ZINF_OK;
    }
    zinf_params_hash_close(hash);
    return zinf_fail(err, ZINF_MACHINE, "out of memory for the hash of %" PRIu32 " tensors",
                     plan->n_tensors);
}

void zinf_params_hash_close(zinf_params_hash *hash)
{
    if (!hash)
        return;
    free(hash->totals);
    free(hash);
}

void zinf_params_hash_reset(zinf_params_hash *hash)
{
    memset(hash->totals, 0, 2 * (size_t)hash->plan->n_tensors * sizeof *hash->totals);
}

void zinf_params_hash_put(zinf_params_hash *hash, uint32_t tensor, uint64_t first, uint64_t n,
                          const float *values)
{
    hash->totals[tensor] += zinf_element_sum(first, n, values);
    hash->totals[hash->plan->n_tensors + tensor] += n;
}

uint64_t *zinf_params_hash_totals(zinf_params_hash *hash, uint32_t *ret_n)
{
    *ret_n = 2 * hash->plan->n_tensors;
    return hash->totals;
}

zinf_status zinf_params_hash_digest(const zinf_params_hash *hash, uint64_t *ret_digest,
                                    zinf_error *err)
{
    const uint32_t n = hash->plan->n_tensors;

    for (uint32_t i = 0; i < n; i++) {
        const zinf_tensor *tensor = &hash->plan->tensors[i];
        if (hash->totals[n + i] != tensor->rows * tensor->cols)
            return zinf_fail(err, ZINF_WRONG_RESULT, "of tensor \"%s\" %" PRIu64 " elements of %"
                             PRIu64 " were saved", tensor->name, hash->totals[n + i],
                             tensor->rows * tensor->cols);
    }
    *ret_digest = XXH64(hash->totals, n * sizeof *hash->totals, 0);
    return ZINF_OK;
}
