/* tests/fuzz/checkpoint.h - a checkpoint as one fuzz input: a byte of flags, five lengths, five
 * files. Flag bit 0: sums in the manifest are made to agree with the files, so that what lies
 * behind them is reached.
 */
#ifndef ZINF_TESTS_FUZZ_CHECKPOINT_H
#define ZINF_TESTS_FUZZ_CHECKPOINT_H

#include "runtime/plan.h"
#include "tests/fuzz/fuzz.h"

enum { PACK_FILES = 5, PACK_HEADER = 1 + 4 * PACK_FILES };
static const char *const pack_names[PACK_FILES] = {
    "latest", "step-3/manifest.json", "step-3/master.safetensors", "step-3/m.safetensors",
    "step-3/v.safetensors"};

/* The model that the checkpoints are of: two small tensors. */
static inline zinf_plan pack_plan(zinf_tensor tensors[2])
{
    zinf_plan plan = {.tensors = tensors, .n_tensors = 2};

    memset(tensors, 0, 2 * sizeof *tensors);
    strcpy(plan.model.name, "fuzzed");
    strcpy(plan.model.family, "gpt2");
    plan.model.layers = 1;
    plan.model.vocab = 3;
    plan.model.n_params = 17;
    strcpy(tensors[0].name, "wte.weight");
    tensors[0].rows = 3;
    tensors[0].cols = 4;
    tensors[0].n_dims = 2;
    strcpy(tensors[1].name, "ln_f.bias");
    tensors[1].rows = 5;
    tensors[1].cols = 1;
    tensors[1].n_dims = 1;
    return plan;
}

/* Where the files lie in the input; lengths are cut to what is there. */
static inline void pack_split(const uint8_t *data, size_t n, size_t at[PACK_FILES],
                              size_t bytes[PACK_FILES])
{
    size_t next = n < PACK_HEADER ? n : PACK_HEADER;

    for (int i = 0; i < PACK_FILES; i++) {
        uint32_t stated = 0;
        if (n >= PACK_HEADER)
            memcpy(&stated, data + 1 + 4 * i, 4);
        at[i] = next;
        bytes[i] = stated < n - next ? stated : n - next;
        next += bytes[i];
    }
}

#endif
