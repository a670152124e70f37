/* runtime/rope.c - see rope.h. */
#include "runtime/rope.h"

#include <math.h>

static double scaled(const zinf_model_info *model, double frequency)
{
    const double low = model->rope_low_freq_factor, high = model->rope_high_freq_factor;
    const double turns = (double)model->rope_original_context * frequency / 6.283185307179586477;

    if (turns > high)
        return frequency;
    if (turns < low)
        return frequency / model->rope_factor;
    const double smooth = (turns - low) / (high - low);
    return (1 - smooth) * frequency / model->rope_factor + smooth * frequency;
}

void zinf_rope_frequencies(const zinf_model_info *model, double *ret_frequencies)
{
    for (uint64_t i = 0; i < model->head_dim / 2; i++) {
        const double exponent = -2 * (double)i / (double)model->head_dim;
        const double frequency = pow(model->rope_theta, exponent);
        ret_frequencies[i] = model->rope_factor > 0 ? scaled(model, frequency) : frequency;
    }
}
