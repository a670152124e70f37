/* tests/bitwise/trainer.h - plans and trains tiny models in one process: decisions in, losses and
 * hashes out. What zinf-plan and zinf-run do, without files and commands.
 */
#ifndef ZINF_TESTS_TRAINER_H
#define ZINF_TESTS_TRAINER_H

#include "runtime/executor.h"
#include "runtime/storage_engine.h"

enum { TRAINER_STEPS = 8 };

typedef struct trainer_model {
    unsigned layers, hidden, heads, vocab, sequence, global_batch;
    const char *precision;
    const char *llama; /* further keys of a llama, each after a comma; NULL: a gpt2 */
} trainer_model;

/* Two layers, hidden 32: a step has everything a large model's has. */
extern const trainer_model trainer_tiny;

/* The model as a file for zinf-plan; ret_text holds at least 1024 bytes. */
void trainer_model_text(const trainer_model *model, char *ret_text);

/* sets: "key=value key=value ..", as for zinf-plan --set, and clip=0 for a model without clipping.
 * The plan has passed the checker. */
zinf_status trainer_plan(const trainer_model *model, bool unified, const char *sets,
                         zinf_plan *ret_plan, zinf_error *err);
/* The same for several ranks, the devices of one node. */
zinf_status trainer_plan_ranks(const trainer_model *model, bool unified, unsigned ranks,
                               const char *sets, zinf_plan *ret_plan, zinf_error *err);

typedef struct trainer_options {
    const char *directory;       /* of the nvme tier */
    const zinf_collective *collective; /* NULL: one rank */
    const zinf_storage_ops *ops; /* NULL: engine decides */
    zinf_engine engine;
    bool serial;
    uint64_t delay_seed;
    unsigned steps; /* at most TRAINER_STEPS are kept */
    void (*before_step)(unsigned step, const char *path); /* or NULL; path of the nvme file */
} trainer_options;

/* No pointers: it may lie in memory shared with a child. */
typedef struct trainer_outcome {
    zinf_error err;
    unsigned n_steps;
    double loss[TRAINER_STEPS], norm[TRAINER_STEPS];
    uint64_t params_hash; /* as zinf-run prints it; 0 of several ranks */
    uint64_t state_hash;  /* over master, m and v; of several ranks this one's part, to be added */
} trainer_outcome;

void trainer_run(const zinf_plan *plan, const trainer_options *options,
                 trainer_outcome *ret_outcome);
/* The same, and frees the plan. A run that hangs is killed, and the test with it. */
void trainer_train(zinf_plan *plan, const trainer_options *options, trainer_outcome *ret_outcome);
/* Ran to the end with the same bits. */
bool trainer_same(const trainer_outcome *a, const trainer_outcome *b);

#endif
