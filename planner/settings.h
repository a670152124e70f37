/* planner/settings.h - decisions pinned by the user: --set KEY=VALUE. One table of keys. */
#ifndef ZINF_PLANNER_SETTINGS_H
#define ZINF_PLANNER_SETTINGS_H

#include <stdio.h>

#include "planner/spec.h"

enum { ZINF_FREE = -1 }; /* a decision left to the search */

/* The device's arena: what the other decisions take, or more where the step gets shorter. */
typedef enum zinf_arena { ZINF_LEAST, ZINF_FASTER } zinf_arena;

typedef struct zinf_settings {
    int64_t tier[ZINF_N_CLASSES], tiles[ZINF_N_LINEARS];
    int64_t micro_batch, checkpoint_interval, prefetch_read, prefetch_upload,
        prefetch_gather;
    int64_t order, optimizer_time, partitioning, collectives; /* zinf_order, .. */
    int64_t arena; /* zinf_arena */
    int64_t io_block_bytes, io_depth, n_threads;
} zinf_settings;

void zinf_settings_init(zinf_settings *settings); /* everything free */

/* Applies "key=value". Errors name the key, the nearest known one, and the allowed values. */
zinf_status zinf_settings_set(zinf_settings *settings, const char *assignment, zinf_error *err);

/* Checks the pins against the model and the cluster (a tier that is absent, a micro-batch that
 * does not divide the global batch, more tiles than rows), with advice. */
zinf_status zinf_settings_check(const zinf_settings *settings, const zinf_model *model,
                                const zinf_cluster *cluster, zinf_error *err);

void zinf_settings_print_keys(FILE *out); /* for --help */

#endif
