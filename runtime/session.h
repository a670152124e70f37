/* runtime/session.h - what run.c and keep.c share: one run, from plan to summary. */
#ifndef ZINF_RUNTIME_SESSION_H
#define ZINF_RUNTIME_SESSION_H

#include <signal.h>
#include <stdbool.h>
#include <stdio.h>

#include "runtime/checkpoint.h"
#include "runtime/data.h"
#include "runtime/executor.h"
#include "runtime/hf.h"
#include "runtime/options.h"
#include "runtime/params_hash.h"
#include "runtime/plan.h"
#include "runtime/ranks.h"
#include "runtime/report.h"
#include "runtime/storage.h"

typedef struct zinf_session {
    const zinf_run_options *options;
    zinf_ranks *ranks;
    zinf_plan plan;
    const volatile sig_atomic_t *stop;
    zinf_data *data, *val, *eval;
    zinf_storage *storage;
    zinf_executor *executor;
    zinf_params_hash *hash;
    zinf_checkpoint_place *place; /* of --save; NULL: none */
    zinf_hf_writer *exporter;     /* of --export, until it is done; NULL: none */
    zinf_progress progress; /* where training stands */
    uint64_t steps;         /* where it is to end */
    uint64_t saved_step;    /* of the last checkpoint written here; UINT64_MAX: none */
    zinf_error late;        /* of --log or --trace: with it the run ends, but first it saves */
    bool pending;           /* the last step's updates may be left to FLUSH */
    FILE *log;
    zinf_progress_line line;
    zinf_run_report report;
    zinf_rank_report *rank_reports; /* [n_ranks] */
    uint32_t *export_dtypes;        /* [n_tensors] of --export-dtype source; else NULL */
} zinf_session;

/* The master weight of largest magnitude. */
typedef struct zinf_largest {
    double magnitude;
    uint64_t element; /* of the tensor */
    uint32_t tensor;
} zinf_largest;

/* ---- keep.c ---- */

/* At the beginning: a directory that cannot take the export is found out then, not after the work
 * that it is to keep, and nobody else can take its space. Nothing if none is asked for. */
zinf_status zinf_session_begin_export(zinf_session *s, zinf_error *err);
/* A place that cannot take all checkpoints is found out before the work they would keep, and
 * nobody else can take the space of the next one. */
zinf_status zinf_session_reserve(zinf_session *s, zinf_error *err);
/* The updates that the last step has left to the next, before anything else looks at the states. */
zinf_status zinf_session_flush(zinf_session *s, zinf_error *err);
/* Reads all states once: into a checkpoint in `save`, into the export and into the hash of the
 * weights. save: NULL for none. not_exported: NULL for no export, else what is wrong with it, which
 * takes nothing else with it. ret_largest, of this rank's weights, may be NULL. */
zinf_status zinf_session_keep(zinf_session *s, const char *save, zinf_error *not_exported,
                              zinf_largest *ret_largest, zinf_error *err);
/* An export has failed at the end. What was trained is in the last checkpoint, or is put into one
 * beside what would have been the export; the error says so. */
zinf_status zinf_session_rescue(zinf_session *s, const zinf_error *not_exported, zinf_error *err);

#endif
