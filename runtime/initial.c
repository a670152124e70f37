/* runtime/initial.c - a counter-based generator: SplitMix64's mixer over (key, counter), and
 * Box-Muller over two of its outputs; elements 2i and 2i + 1 are the two normals of pair i.
 */
#include "runtime/initial.h"

#include <math.h>
#include <string.h>

#include "runtime/mix.h"

static uint64_t draw(uint64_t key, uint64_t counter)
{
    return zinf_mix(key + (counter + 1) * 0x9e3779b97f4a7c15);
}

static void normal_pair(uint64_t key, uint64_t pair, double std, float ret_pair[2])
{
    /* u in (0, 1], v in [0, 1): 53 bits each */
    const double u = (double)((draw(key, 2 * pair) >> 11) + 1) * 0x1p-53;
    const double v = (double)(draw(key, 2 * pair + 1) >> 11) * 0x1p-53;
    const double radius = std * sqrt(-2 * log(u)), angle = 6.283185307179586 * v;

    ret_pair[0] = (float)(radius * cos(angle));
    ret_pair[1] = (float)(radius * sin(angle));
}

void zinf_initial_values(const zinf_tensor *tensor, uint32_t index, uint64_t seed,
                         uint64_t first, uint64_t n, int n_threads, float *ret_values)
{
    const uint64_t key = zinf_mix(zinf_mix(seed + 0x9e3779b97f4a7c15) + index);
    const double std = tensor->init_std;

    if (tensor->init == ZINF_INIT_ZERO) {
        memset(ret_values, 0, n * sizeof *ret_values);
        return;
    }
    if (tensor->init == ZINF_INIT_ONE) {
        for (uint64_t i = 0; i < n; i++)
            ret_values[i] = 1;
        return;
    }
    if (n == 0)
        return;
    const int64_t last = (int64_t)((first + n - 1) / 2);
#pragma omp parallel for num_threads(n_threads) schedule(static) if (n > 65536)
    for (int64_t pair = (int64_t)(first / 2); pair <= last; pair++) {
        float values[2];
        normal_pair(key, (uint64_t)pair, std, values);
        for (uint64_t k = 0; k < 2; k++) {
            const uint64_t element = 2 * (uint64_t)pair + k;
            if (element >= first && element < first + n)
                ret_values[element - first] = values[k];
        }
    }
}
