/* planner/spec.h - the two YAML inputs as structures: model with its training job, and cluster. A
 * Hugging Face config.json is accepted as the model.
 *
 * Every key is one row of a table in spec.c (path, type, unit, range, default, help); unknown,
 * missing, mistyped and out-of-range keys are one error with file:line:column, the allowed range
 * and the nearest known key. Owns no policy: nothing is decided here.
 */
#ifndef ZINF_PLANNER_SPEC_H
#define ZINF_PLANNER_SPEC_H

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "runtime/error.h"
#include "runtime/plan.h"

enum { ZINF_MAX_PATHS = 8, ZINF_PATH_BYTES = 256, ZINF_NOTES_BYTES = 1000 };

/* What operators reach in the middle of a training step, where operands come from memory and other
 * operators run before and after; of one precision. A product's are FLOP/s, masked pairs of
 * attention not counted; the others' are bytes/s of their operands, each read and written once. */
#define ZINF_STEP_RATES(FLOPS, TOKENS, BYTES)                                                    \
    FLOPS(forward, "linear forward")                                                             \
    FLOPS(forward_residual, "linear forward, a residual added")                                  \
    FLOPS(input_gradient, "linear backward, input's gradient")                                   \
    FLOPS(weight_gradient, "linear backward, weight's gradient")                                 \
    FLOPS(weight_gradient_bias, "linear backward, weight's and bias's gradient")                 \
    FLOPS(classifier, "logits, loss and both gradients")                                         \
    FLOPS(attention, "attention over sequences without end")                                     \
    TOKENS(attention_half, "tokens of the sequence at which attention reaches half of that")     \
    BYTES(product_memory, "what a product moves beyond its usual bytes a FLOP")                  \
    BYTES(layernorm_forward, "LayerNorm forward")                                                \
    BYTES(layernorm_backward, "LayerNorm backward")                                              \
    BYTES(rmsnorm_forward, "RMSNorm forward")                                                    \
    BYTES(rmsnorm_backward, "RMSNorm backward")                                                  \
    BYTES(rope, "rotary positions")                                                              \
    BYTES(gelu_forward, "GELU forward")                                                          \
    BYTES(gelu_backward, "GELU backward")                                                        \
    BYTES(swiglu_forward, "SwiGLU forward")                                                      \
    BYTES(swiglu_backward, "SwiGLU backward")

typedef struct zinf_step_rates { /* 0: not known, see cost.c */
#define X(name, help) double name;
    ZINF_STEP_RATES(X, X, X)
#undef X
} zinf_step_rates;

typedef enum zinf_step_rate { /* the fields, in their order */
#define X(name, help) ZINF_RATE_##name,
    ZINF_STEP_RATES(X, X, X)
#undef X
    ZINF_N_STEP_RATES
} zinf_step_rate;
static_assert(sizeof(zinf_step_rates) == ZINF_N_STEP_RATES * sizeof(double), "nothing but rates");

/* All sizes in bytes, rates in bytes/s or FLOP/s or params/s, latencies in seconds. */
typedef struct zinf_cluster {
    char name[ZINF_NAME_BYTES];
    uint64_t nodes, devices_per_node;
    struct {
        char kind[16]; /* cpu | cuda */
        char name[ZINF_NAME_BYTES];
        uint64_t memory_bytes, reserve_bytes; /* kind cpu and unified: memory defaults to host's */
        double peak_f32, peak_bf16, peak_f16; /* FLOP/s when nothing waits for data; 0: absent */
        zinf_step_rates step_bf16, step_f32; /* the first of any narrow type */
        double bandwidth; /* bytes/s of its own memory */
    } device;
    struct {
        uint64_t memory_bytes, reserve_bytes, cores;
        double bandwidth; /* bytes/s */
        double adam;      /* parameters/s, in place */
        double sum_of_squares, accumulate; /* bytes/s; 0: not known */
    } host;
    struct {
        bool present; /* a machine without storage leaves `nvme` out */
        char paths[ZINF_MAX_PATHS][ZINF_PATH_BYTES];
        uint32_t n_paths, depth; /* depth: requests in flight */
        uint64_t capacity_bytes, block_bytes;
        double read, write, latency;
        double core;  /* bytes/s that a core moves which computes, too; 0: not known */
        bool overlap; /* reads and writes do not slow each other down (default true) */
    } nvme;
    struct {
        double host_device_per_device, host_device_per_node, host_device_latency;
        double intra_node_per_device, intra_node_latency; /* 0 if one device per node */
        double inter_node_per_node, inter_node_latency;   /* 0 if one node */
    } links;
    bool unified;
} zinf_cluster;

typedef struct zinf_model {
    char name[ZINF_NAME_BYTES];
    char family[16];
    uint64_t layers, hidden, heads, kv_heads, head_dim, ffn, vocab, context;
    bool tied_embeddings;
    /* llama */
    bool qkv_bias;
    double norm_eps, rope_theta;
    struct {
        char type[16]; /* llama3 */
        double factor, low_freq_factor, high_freq_factor; /* factor 0: not scaled */
        uint64_t original_context;
    } rope_scaling;
    /* training */
    uint64_t sequence, global_batch, seed;
    zinf_dtype precision;
    char optimizer[16]; /* adamw */
    double lr, beta1, beta2, eps, weight_decay;
    char schedule[16]; /* constant | cosine */
    uint64_t warmup, steps;
    double min_lr, clip;
} zinf_model;

/* What --set says of the model file's keys: "training.lr=1e-4"-like texts, the last one of a key
 * counts. */
typedef struct zinf_overrides {
    const char *const *assignments;
    size_t n;
} zinf_overrides;

/* Is the assignment of such a key? Only model.name and what is below training can be set. */
bool zinf_override_is(const char *assignment);

/* All fill ret_* only on success. path is named in errors. overrides and ret_notes may be NULL.
 * A directory or a *.json is a Hugging Face model (runtime/hf_config.h): its training settings are
 * the table's defaults, and ret_notes says what was passed over (else ""). */
zinf_status zinf_model_read(const char *path, const zinf_overrides *overrides,
                            zinf_model *ret_model, char ret_notes[ZINF_NOTES_BYTES],
                            zinf_error *err);
zinf_status zinf_cluster_read(const char *path, zinf_cluster *ret_cluster, zinf_error *err);

/* The same from text already in memory; name stands for the path in errors. */
zinf_status zinf_model_parse(const char *name, const char *text, size_t n,
                             const zinf_overrides *overrides, zinf_model *ret_model,
                             zinf_error *err);
zinf_status zinf_cluster_parse(const char *name, const char *text, size_t n,
                               zinf_cluster *ret_cluster, zinf_error *err);

/* Prints the table of keys (path, unit, range, default, help), for --help and the man page. */
void zinf_spec_print_keys(FILE *out);

#endif
