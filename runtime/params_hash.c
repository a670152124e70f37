/* runtime/params_hash.c - see params_hash.h. */
#include "runtime/params_hash.h"

#include <inttypes.h>
#include <stdlib.h>
#include <xxhash.h>

struct zinf_params_hash {
    const zinf_plan *plan;
    XXH64_state_t **states; /* [n_tensors] */
    uint64_t *next;         /* [n_tensors] elements hashed */
};

zinf_status zinf_params_hash_open(const zinf_plan *plan, zinf_params_hash **ret_hash,
                                  zinf_error *err)
{
    zinf_params_hash *hash = calloc(1, sizeof *hash);

    if (!hash)
        goto fail;
    hash->plan = plan;
    hash->states = calloc(plan->n_tensors + (size_t)1, sizeof(XXH64_state_t *));
    hash->next = calloc(plan->n_tensors + (size_t)1, sizeof *hash->next);
    if (!hash->states || !hash->next)
        goto fail;
    for (uint32_t i = 0; i < plan->n_tensors; i++)
        if (!(hash->states[i] = XXH64_createState()))
            goto fail;
    zinf_params_hash_reset(hash);
    *ret_hash = hash;
    return ZINF_OK;
fail:
    zinf_params_hash_close(hash);
    return zinf_fail(err, ZINF_MACHINE, "out of memory for the hash of %" PRIu32 " tensors",
                     plan->n_tensors);
}

void zinf_params_hash_close(zinf_params_hash *hash)
{
    if (!hash)
        return;
    for (uint32_t i = 0; hash->states && i < hash->plan->n_tensors; i++)
        XXH64_freeState(hash->states[i]);
    free(hash->states);
    free(hash->next);
    free(hash);
}

void zinf_params_hash_reset(zinf_params_hash *hash)
{
    for (uint32_t i = 0; i < hash->plan->n_tensors; i++) {
        XXH64_reset(hash->states[i], 0);
        hash->next[i] = 0;
    }
}

zinf_status zinf_params_hash_put(zinf_params_hash *hash, uint32_t tensor, uint64_t first,
                                 uint64_t n, const float *values, zinf_error *err)
{
    if (first != hash->next[tensor])
        return zinf_fail(err, ZINF_WRONG_RESULT, "tensor \"%s\" was saved out of order: element %"
                         PRIu64 " after %" PRIu64, hash->plan->tensors[tensor].name, first,
                         hash->next[tensor]);
    XXH64_update(hash->states[tensor], values, n * sizeof *values);
    hash->next[tensor] += n;
    return ZINF_OK;
}

zinf_status zinf_params_hash_digest(const zinf_params_hash *hash, uint64_t *ret_digest,
                                    zinf_error *err)
{
    XXH64_state_t *all = XXH64_createState();

    if (!all)
        return zinf_fail(err, ZINF_MACHINE, "out of memory for a hash");
    XXH64_reset(all, 0);
    for (uint32_t i = 0; i < hash->plan->n_tensors; i++) {
        const zinf_tensor *tensor = &hash->plan->tensors[i];
        if (hash->next[i] != tensor->rows * tensor->cols) {
            XXH64_freeState(all);
            return zinf_fail(err, ZINF_WRONG_RESULT, "tensor \"%s\" was saved to element %" PRIu64
                             " of %" PRIu64, tensor->name, hash->next[i],
                             tensor->rows * tensor->cols);
        }
        const uint64_t one = XXH64_digest(hash->states[i]);
        XXH64_update(all, &one, sizeof one);
    }
    *ret_digest = XXH64_digest(all);
    XXH64_freeState(all);
    return ZINF_OK;
}
