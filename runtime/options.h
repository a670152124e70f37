/* runtime/options.h - the command line of zinf-run: one table, from which --help is made too. */
#ifndef ZINF_RUNTIME_OPTIONS_H
#define ZINF_RUNTIME_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "runtime/error.h"
#include "runtime/storage.h"

/* What to do about a step whose loss or gradient norm is not finite. */
typedef enum zinf_on_nonfinite { ZINF_ON_NONFINITE_STOP, ZINF_ON_NONFINITE_SKIP }
    zinf_on_nonfinite;

typedef enum zinf_queues { ZINF_QUEUES_CONCURRENT, ZINF_QUEUES_SERIAL } zinf_queues;

typedef enum zinf_export_dtype {
    ZINF_EXPORT_F32,
    ZINF_EXPORT_BF16,
    ZINF_EXPORT_F16,
    ZINF_EXPORT_SOURCE /* each tensor's in --init */
} zinf_export_dtype;

typedef struct zinf_run_options {
    bool help;
    const char *plan, *data, *val, *save, *resume, *log, *trace, *nvme, *prompt, *init,
        *export, *eval; /* init: NULL is "random" */
    uint64_t steps, val_every, val_batches, save_every, sample, export_shard_bytes;
    zinf_export_dtype export_dtype;
    bool steps_given;
    double temperature;
    zinf_engine engine;
    zinf_on_nonfinite on_nonfinite;
    zinf_queues queues;
} zinf_run_options;

/* Fills ret_options with defaults and what argv says; strings stay argv's. */
zinf_status zinf_run_options_parse(int argc, char **argv, zinf_run_options *ret_options,
                                   zinf_error *err);
void zinf_run_options_help(FILE *out);

#endif
