/* runtime/params_hash.h - one number for all weights, equal wherever they live.
 *
 * xxh64 (seed 0) over one element_sum.h a tensor, in logical order; a tensor's is over its fp32
 * master values, row major. They come in any pieces and order, on any rank.
 */
#ifndef ZINF_RUNTIME_PARAMS_HASH_H
#define ZINF_RUNTIME_PARAMS_HASH_H

#include <stdint.h>

#include "runtime/error.h"
#include "runtime/plan.h"

typedef struct zinf_params_hash zinf_params_hash;

zinf_status zinf_params_hash_open(const zinf_plan *plan, zinf_params_hash **ret_hash,
                                  zinf_error *err);
void zinf_params_hash_close(zinf_params_hash *hash); /* accepts NULL */
void zinf_params_hash_reset(zinf_params_hash *hash);
void zinf_params_hash_put(zinf_params_hash *hash, uint32_t tensor, uint64_t first, uint64_t n,
                          const float *values);
/* What is to be added up over ranks before the digest. */
uint64_t *zinf_params_hash_totals(zinf_params_hash *hash, uint32_t *ret_n);
/* Fails unless every element was put, once. */
zinf_status zinf_params_hash_digest(const zinf_params_hash *hash, uint64_t *ret_digest,
                                    zinf_error *err);

#endif
