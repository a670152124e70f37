/* runtime/plan_model.h - what the model of a plan computes: its operators in order, the tensors
 * they apply, and which of its values an operand is. Made from the family's description, to which
 * the plan's tensors must agree. Knows no order, no micro-batch and no address.
 */
#ifndef ZINF_RUNTIME_PLAN_MODEL_H
#define ZINF_RUNTIME_PLAN_MODEL_H

#include "runtime/opcodes.h"
#include "runtime/plan.h"

/* Each operator is applied to the result of the one before it. */
typedef struct zinf_model_op {
    char kind;             /* as in opcodes.h */
    uint32_t weight, bias; /* first tensors of stacks, or ZINF_NONE */
    uint32_t residual;     /* operator whose result is added to its own, or ZINF_NONE */
    uint32_t other;        /* of a norm: operator that adds what is normalised, or ZINF_NONE */
    uint64_t rows;         /* of the weight; 0: it has none */
} zinf_model_op;

typedef struct zinf_plan_model {
    const zinf_plan *plan;
    zinf_model_op *ops;
    uint32_t *home; /* [n_tensors] a unit that has rows of it */
    uint32_t n_ops, n_tensors;
    uint64_t n_params;
} zinf_plan_model;

/* What a value is: from RESULT on of an operator, from OPTIMIZER on of a unit. _PART: a rank's. */
#define ZINF_VALUES(X)                                                                           \
    X(NOTHING, "nothing") X(ZEROS, "zeros") X(TOKENS, "tokens") X(LOSS, "the loss")              \
    X(LOSS_PART, "the loss of one rank") X(RESULT, "the result") X(SECOND, "statistics")         \
    X(GRADIENT, "the result's gradient") X(OPTIMIZER, "master, m, v") X(PARAM, "the parameters") \
    X(PARAM_PART, "a shard of the parameters") X(GRAD, "the gradient")                           \
    X(GRAD_PART, "a shard of the gradient") X(SQUARES, "the sum of squares")                     \
    X(SQUARES_PART, "the sum of squares of one rank") X(SCALARS, "what an update needs to know")
typedef enum zinf_value_kind {
#define X(name, text) ZINF_VALUE_##name,
    ZINF_VALUES(X)
#undef X
} zinf_value_kind;
const char *zinf_value_name(zinf_value_kind kind);

typedef struct zinf_model_value {
    zinf_value_kind what;
    uint32_t of;    /* operator or unit, 0 where there is but one */
    uint64_t place; /* byte of the value with which the operand begins */
    uint64_t rows;  /* of tensors: how many of it the operand is */
} zinf_model_value;

/* The plan is well formed. Refused with C4 if its tensors differ in number, order, name, shape,
 * stack or kind of initial values, or its parameters in number. */
zinf_status zinf_plan_model_make(const zinf_plan *plan, zinf_plan_model *ret_model,
                                 zinf_error *err);
void zinf_plan_model_free(zinf_plan_model *model); /* accepts a zeroed one */

/* Which value the operand in a slot is that has this letter (of opcodes.h, but not = or #), where
 * the instruction is of operator `op` and its tile begins at `row`. Returns what is wrong with the
 * operand, which may be absent, or NULL. Linear in the parts of a unit. */
const char *zinf_model_value_of(const zinf_plan_model *model, const zinf_instr *instr,
                                unsigned slot, char letter, uint64_t op, uint64_t row,
                                zinf_model_value *ret_value);

/* Operators (or the embedding of tokens) add to the gradient of the unit, once in a micro-batch. */
bool zinf_model_adds(const zinf_plan *plan, uint32_t unit, bool embedding);

/* The five arrays of a unit that outlive a program: parameters, master, m, v, gradient; where
 * zinf_operand_at says. */
enum { ZINF_N_ARRAYS = 5 };
zinf_operand zinf_model_array(const zinf_plan *plan, uint32_t unit, unsigned which,
                              zinf_model_value *ret_value);

#endif
