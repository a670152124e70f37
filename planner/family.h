/* planner/family.h - what tells one family of Transformers from another, as data: which operators
 * a block has, what its tensors are called, how large they are. A family whose operators exist
 * is one entry in family.c; nothing else asks for a family's name.
 */
#ifndef ZINF_PLANNER_FAMILY_H
#define ZINF_PLANNER_FAMILY_H

#include "planner/spec.h"

enum { ZINF_MAX_STACK = 3 }; /* tensors stacked by rows into one linear */

/* Vectors of a block's unit of small tensors, in order. */
enum {
    ZINF_SMALL_LN1_W, ZINF_SMALL_LN1_B, ZINF_SMALL_LN2_W, ZINF_SMALL_LN2_B,
    ZINF_SMALL_BIAS, /* + zinf_linear: QKV, OUT, FC, PROJ */
    ZINF_N_SMALL = ZINF_SMALL_BIAS + ZINF_LINEAR_VOCAB
};

typedef struct zinf_family_linear {
    const char *parts[ZINF_MAX_STACK]; /* tensors without ".weight"; NULL: no more */
    const char *unit;                  /* name of the stack, where there are several */
    bool narrows;                      /* writes to the residual stream */
} zinf_family_linear;

typedef struct zinf_family {
    const char *name;
    bool learned_positions; /* a table is added to the token embedding; else RoPE on q and k */
    bool layernorm;         /* mean and bias; else RMSNorm */
    bool gated;             /* FC is gate and up, and SwiGLU joins them; else GELU */
    bool biased;            /* every linear of a block; else QKV only, if the model says so */
    bool grouped;           /* kv_heads and head_dim are free, the head may be untied */
    bool narrow_init;       /* linears into the residual stream start smaller (GPT-2) */
    const char *tokens, *positions, *head; /* tensors */
    const char *block;                     /* before a block's tensors; %d is the layer */
    const char *norms[2], *final_norm;
    const char *norm_texts[3];             /* of the instructions, for people */
    zinf_family_linear linears[ZINF_LINEAR_VOCAB];
} zinf_family;

/* NULL for a name that is none. */
const zinf_family *zinf_family_find(const char *name);
/* The family of a model that was read. */
const zinf_family *zinf_family_of(const zinf_model *model);

/* Output features (rows) and input features (cols) of a linear's stored weight. */
uint64_t zinf_linear_rows(const zinf_model *model, zinf_linear linear);
uint64_t zinf_linear_cols(const zinf_model *model, zinf_linear linear);
/* Rows of one tensor of a linear's stack; 0 beyond the last. */
uint64_t zinf_linear_part_rows(const zinf_model *model, zinf_linear linear, unsigned part);
/* Elements of a vector of small tensors; 0 if the family has none. */
uint64_t zinf_small_rows(const zinf_model *model, int which);

/* Exact parameters: embeddings (tied ones once), blocks with norms and biases, the final norm.
 * UINT64_MAX if that overflows. */
uint64_t zinf_model_params(const zinf_model *model);

#endif
