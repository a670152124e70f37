/* runtime/sample.h - text from the model: the SAMPLE program, token after token. */
#ifndef ZINF_RUNTIME_SAMPLE_H
#define ZINF_RUNTIME_SAMPLE_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "runtime/error.h"
#include "runtime/executor.h"
#include "runtime/ranks.h"

typedef struct zinf_sample_options {
    const char *prompt; /* text if bytes, else token ids between spaces; NULL: one token */
    uint64_t n_tokens, seed;
    double temperature; /* 0: the likeliest token */
    bool bytes;         /* tokens are bytes */
} zinf_sample_options;

/* Can it be written? Asked before a training, not after it. */
zinf_status zinf_sample_check(const zinf_plan *plan, const zinf_sample_options *options,
                              zinf_error *err);

/* Writes prompt and sample to out, unless that is NULL; checked before. Every rank makes the same
 * call; once one of them is told to stop all do. ret_done: tokens written. */
zinf_status zinf_sample(const zinf_plan *plan, zinf_executor *executor,
                        const zinf_sample_options *options, zinf_ranks *ranks,
                        const volatile sig_atomic_t *stop, FILE *out, uint64_t *ret_done,
                        zinf_error *err);

#endif
