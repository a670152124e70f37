/* runtime/sample.h - text from the model: the SAMPLE program, token after token. */
#ifndef ZINF_RUNTIME_SAMPLE_H
#define ZINF_RUNTIME_SAMPLE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "runtime/error.h"
#include "runtime/executor.h"

typedef struct zinf_sample_options {
    const char *prompt; /* text if bytes, else token ids between spaces; NULL: one token */
    uint64_t n_tokens, seed;
    double temperature; /* 0: the likeliest token */
    bool bytes;         /* tokens are bytes */
} zinf_sample_options;

/* Writes prompt and sample to out, unless that is NULL. */
zinf_status zinf_sample(const zinf_plan *plan, zinf_executor *executor,
                        const zinf_sample_options *options, FILE *out, zinf_error *err);

#endif
