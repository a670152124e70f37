/* runtime/initial.h - initial values, keyed by (seed, tensor, element) alone. */
#ifndef ZINF_RUNTIME_INITIAL_H
#define ZINF_RUNTIME_INITIAL_H

#include <stdint.h>

#include "runtime/plan.h"

/* values[n] = elements [first, first + n) of a tensor's initial value, row major. The same
 * element has the same value whatever range it is asked in, on any number of threads. */
void zinf_initial_values(const zinf_tensor *tensor, uint32_t index, uint64_t seed,
                         uint64_t first, uint64_t n, int n_threads, float *ret_values);

#endif
