/* runtime/rope.h - the frequencies of rotary positions, from what the plan says of the model. */
#ifndef ZINF_RUNTIME_ROPE_H
#define ZINF_RUNTIME_ROPE_H

#include "runtime/plan.h"

/* ret_frequencies[head_dim / 2] in radians per position: theta^(-2 i / head_dim), and where
 * rope_factor is not 0 scaled as Llama 3.1 does it: wavelengths above original_context /
 * low_freq_factor grow by the factor, those below original_context / high_freq_factor stay, and
 * between the two the frequency goes from one to the other linearly in original_context /
 * wavelength. */
void zinf_rope_frequencies(const zinf_model_info *model, double *ret_frequencies);

#endif
