/* runtime/plan_model.c - see plan_model.h; the families, written down a second time so that the
 * planner's own description of them is not taken on trust.
 */
#include "runtime/plan_model.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A tensor. op: it begins this operator (+: a linear with a residual), or is a bias (b; q where the
 * model has those), or is stacked on the tensor before (s). rows, cols: see extent(). Operators
 * without weight have no name, and so has a head if the embedding is used again. */
typedef struct model_row {
    char op, rows, cols;
    const char *name;
} model_row;

#define GPT2 "transformer.h.%" PRIu64 "."
#define LLAMA "model.layers.%" PRIu64 "."
#define END {0, 0, 0, NULL} /* of what comes before the blocks, of a block, of what comes after */

static const model_row gpt2[] = {
    {'E', 'V', 'H', "transformer.wte.weight"}, {'b', 'P', 'H', "transformer.wpe.weight"}, END,
    {'L', 'H', '1', GPT2 "ln_1.weight"}, {'b', 'H', '1', GPT2 "ln_1.bias"},
    {'M', 'A', 'H', GPT2 "attn.c_attn.weight"}, {'b', 'A', '1', GPT2 "attn.c_attn.bias"},
    {'A', 0, 0, NULL},
    {'+', 'H', 'Q', GPT2 "attn.c_proj.weight"}, {'b', 'H', '1', GPT2 "attn.c_proj.bias"},
    {'L', 'H', '1', GPT2 "ln_2.weight"}, {'b', 'H', '1', GPT2 "ln_2.bias"},
    {'M', 'F', 'H', GPT2 "mlp.c_fc.weight"}, {'b', 'F', '1', GPT2 "mlp.c_fc.bias"},
    {'G', 0, 0, NULL},
    {'+', 'H', 'F', GPT2 "mlp.c_proj.weight"}, {'b', 'H', '1', GPT2 "mlp.c_proj.bias"}, END,
    {'L', 'H', '1', "transformer.ln_f.weight"}, {'b', 'H', '1', "transformer.ln_f.bias"},
    {'C', 'V', 'H', "lm_head.weight"}, END};

static const model_row llama[] = {
    {'E', 'V', 'H', "model.embed_tokens.weight"}, END,
    {'R', 'H', '1', LLAMA "input_layernorm.weight"},
    {'M', 'Q', 'H', LLAMA "self_attn.q_proj.weight"},
    {'s', 'K', 'H', LLAMA "self_attn.k_proj.weight"},
    {'s', 'K', 'H', LLAMA "self_attn.v_proj.weight"},
    {'q', 'Q', '1', LLAMA "self_attn.q_proj.bias"}, {'q', 'K', '1', LLAMA "self_attn.k_proj.bias"},
    {'q', 'K', '1', LLAMA "self_attn.v_proj.bias"}, {'O', 0, 0, NULL}, {'A', 0, 0, NULL},
    {'+', 'H', 'Q', LLAMA "self_attn.o_proj.weight"},
    {'R', 'H', '1', LLAMA "post_attention_layernorm.weight"},
    {'M', 'F', 'H', LLAMA "mlp.gate_proj.weight"}, {'s', 'F', 'H', LLAMA "mlp.up_proj.weight"},
    {'S', 0, 0, NULL}, {'+', 'H', 'F', LLAMA "mlp.down_proj.weight"}, END,
    {'R', 'H', '1', "model.norm.weight"}, {'C', 'V', 'H', "lm_head.weight"}, END};

static uint64_t extent(const zinf_model_info *m, char letter)
{
    const struct {
        char letter;
        uint64_t n; /* no factor has more than 32 bits, and head_dim has 17 */
    } extents[] = {{'V', m->vocab}, {'P', m->context}, {'H', m->hidden}, {'F', m->ffn},
                   {'Q', m->heads * m->head_dim}, {'K', m->kv_heads * m->head_dim},
                   {'A', (m->heads + 2 * m->kv_heads) * m->head_dim}, {'1', 1}};
    size_t i = 0;

    while (extents[i].letter != letter)
        i++;
    return extents[i].n;
}

/* The next operator. */
static void begin(zinf_plan_model *m, char kind)
{
    zinf_model_op *op = &m->ops[m->n_ops];
    uint32_t norm = m->n_ops;

    *op = (zinf_model_op){.kind = kind == '+' ? 'M' : kind, .weight = ZINF_NONE,
                          .bias = ZINF_NONE, .residual = ZINF_NONE, .other = ZINF_NONE};
    if (kind == '+') { /* adds what the norm before it was applied to */
        while (m->ops[norm].kind != 'L' && m->ops[norm].kind != 'R')
            norm--;
        op->residual = norm - 1;
        m->ops[norm].other = m->n_ops;
    }
    m->n_ops++;
}

/* The next tensor, of the operator begun last. */
static zinf_status add(zinf_plan_model *m, const model_row *row, uint64_t layer, zinf_error *err)
{
    const zinf_plan *plan = m->plan;
    const zinf_tensor *t = &plan->tensors[m->n_tensors];
    zinf_model_op *op = &m->ops[m->n_ops - 1];
    const uint64_t rows = extent(&plan->model, row->rows), cols = extent(&plan->model, row->cols);
    const bool bias = row->op == 'b' || row->op == 'q', vector = row->cols == '1';
    const bool stacked = row->op == 's' || (row->op == 'q' && op->bias != ZINF_NONE);
    const zinf_init_kind init = !vector ? ZINF_INIT_NORMAL : bias ? ZINF_INIT_ZERO : ZINF_INIT_ONE;
    /* GPT-2's: what adds to the residual stream begins smaller, the more blocks there are */
    const double narrow = row->op == '+' && plan->model.family[0] == 'g'
                              ? sqrt(2 * (double)plan->model.layers) : 1;
    char name[ZINF_NAME_BYTES];

    snprintf(name, sizeof name, row->name, layer);
    if (m->n_tensors == plan->n_tensors || strcmp(t->name, name) || t->rows != rows ||
        t->cols != cols || t->n_dims != (vector ? 1 : 2) || t->init != init ||
        t->init_std != (vector ? 0 : 0.02 / narrow) ||
        t->stack_row != (stacked ? t[-1].stack_row + t[-1].rows : 0))
        return zinf_fail(err, ZINF_DOES_NOT_FIT, "C4: tensor %" PRIu32 " of this %s is \"%s\", [%"
                         PRIu64 "][%" PRIu64 "], not what the plan states, or begins with other "
                         "values", m->n_tensors, plan->model.family, name, rows, cols);
    op->rows += bias ? 0 : rows;
    if (!stacked)
        *(bias ? &op->bias : &op->weight) = m->n_tensors;
    m->n_params += rows * cols; /* each below 2^50 */
    m->n_tensors++;
    return ZINF_OK;
}

/* No 0 is divided by, no angle is infinite, and none stays where it was. */
static bool are_defined(const zinf_model_info *m)
{
    return m->norm_eps > 0 && m->rope_theta >= 1 &&
           (m->rope_factor == 0 || (m->rope_factor >= 1 && m->rope_original_context > 0 &&
                                    m->rope_high_freq_factor > m->rope_low_freq_factor));
}

zinf_status zinf_plan_model_make(const zinf_plan *plan, zinf_plan_model *ret_model,
                                 zinf_error *err)
{
    const bool is_llama = !strcmp(plan->model.family, "llama");
    const model_row *row = is_llama ? llama : gpt2;
    zinf_plan_model *m = ret_model;

    if (!is_llama && strcmp(plan->model.family, "gpt2"))
        return zinf_fail(err, ZINF_DOES_NOT_FIT, "C4: no family of models is called \"%s\"",
                         plan->model.family);
    if (is_llama && !are_defined(&plan->model))
        return zinf_fail(err, ZINF_DOES_NOT_FIT, "C4: norms or rotary positions of this llama are "
                         "not defined: norm_eps %g, rope_theta %g, factor %g, from %g to %g",
                         plan->model.norm_eps, plan->model.rope_theta, plan->model.rope_factor,
                         plan->model.rope_low_freq_factor, plan->model.rope_high_freq_factor);
    /* llama has three operators without a tensor of their own in a block, and stacks of three */
    *m = (zinf_plan_model){.plan = plan,
                           .ops = calloc(plan->n_tensors + (size_t)5, sizeof *m->ops),
                           .home = calloc(plan->n_tensors + (size_t)1, sizeof *m->home)};
    if (!m->ops || !m->home)
        return zinf_fail(err, ZINF_MACHINE, "out of memory for the model of a plan");
    for (int part = 0; part < 3; part++, row++) {
        const model_row *first = row;
        for (uint64_t layer = 0; layer < (part == 1 ? plan->model.layers : 1); layer++)
            for (row = first; row->op; row++) {
                const bool tied = row->op == 'C' && plan->model.tied_embeddings;
                if (row->op <= 'Z')
                    begin(m, row->op);
                if (tied) {
                    m->ops[m->n_ops - 1].weight = 0;
                    m->ops[m->n_ops - 1].rows = m->ops[0].rows;
                } else if (row->name && (row->op != 'q' || plan->model.qkv_bias) &&
                           add(m, row, layer, err)) {
                    return err->status;
                }
            }
        while (row->op)
            row++;
    }
    if (m->n_tensors != plan->n_tensors || m->n_params != plan->model.n_params)
        return zinf_fail(err, ZINF_DOES_NOT_FIT, "C4: the model has %" PRIu32 " tensors and %"
                         PRIu64 " parameters, which is not what the plan states", m->n_tensors,
                         m->n_params);
    for (uint32_t u = 0; u < plan->n_units; u++)
        for (uint32_t p = 0; p < plan->units[u].n_parts; p++) {
            const uint32_t tensor = plan->parts[plan->units[u].first_part + p].tensor;
            m->home[tensor] = u;
            if (tensor == 0 && plan->units[u].n_parts > 1) /* see zinf_model_adds */
                return zinf_fail(err, ZINF_DOES_NOT_FIT, "C7: unit \"%s\": tokens add to the "
                                 "embedding's gradient, so it is no unit with other tensors",
                                 plan->units[u].name);
        }
    return ZINF_OK;
}

void zinf_plan_model_free(zinf_plan_model *model)
{
    free(model->ops);
    free(model->home);
}

const char *zinf_value_name(zinf_value_kind kind)
{
    static const char *const names[] = {
#define X(name, text) text,
        ZINF_VALUES(X)
#undef X
    };
    return names[kind];
}

/* Rows [row, row + n) of a stack lie in one piece, at element ret_at of the unit; all: and are all
 * that it has of the stack, so that an operator is applied in the tiles there are. */
static bool rows_of(const zinf_plan *plan, uint32_t unit, uint32_t stack, uint64_t row, uint64_t n,
                    bool all, uint64_t *ret_at)
{
    const zinf_unit *u = &plan->units[unit];
    uint64_t left = n, has = 0, end = UINT64_MAX; /* end: of what was found */

    for (uint32_t p = u->first_part; p < u->first_part + u->n_parts; p++) {
        const zinf_part *part = &plan->parts[p];
        const zinf_tensor *t = &plan->tensors[part->tensor];
        const uint64_t first = t->stack_row + part->first_row, last = first + part->n_rows;
        uint32_t base = part->tensor;
        while (plan->tensors[base].stack_row)
            base--;
        has += base == stack ? part->n_rows : 0;
        if (base != stack || left == 0 || row < first || row >= last ||
            (end != UINT64_MAX && end != part->at))
            continue;
        if (end == UINT64_MAX)
            *ret_at = part->at + (row - first) * t->cols;
        end = part->at + part->n_rows * t->cols;
        left -= last - row < left ? last - row : left;
        row = last;
    }
    return left == 0 && end != UINT64_MAX && (!all || has == n);
}

const char *zinf_model_value_of(const zinf_plan_model *model, const zinf_instr *instr,
                                unsigned slot, char letter, uint64_t op, uint64_t row,
                                zinf_model_value *ret_value)
{
    static const struct {
        char letter;
        uint8_t what, part; /* part: several ranks have one each */
    } kinds[] = {
#define V(letter, what, part) {letter, ZINF_VALUE_##what, part},
        V('T', TOKENS, 0) V('X', RESULT, 0) V('R', RESULT, 0) V('r', RESULT, 0) V('Y', RESULT, 0)
        V('y', RESULT, 0) V('N', SECOND, 0) V('n', SECOND, 0) V('D', GRADIENT, 0)
        V('d', GRADIENT, 0) V('G', GRADIENT, 0) V('E', GRADIENT, 0) V('W', PARAM, 0)
        V('B', PARAM, 0) V('P', PARAM, 0) V('w', GRAD, 0) V('b', GRAD, 0) V('p', GRAD, 0)
        V('1', OPTIMIZER, 0) V('2', OPTIMIZER, 0) V('3', OPTIMIZER, 0) V('4', PARAM, 1)
        V('5', GRAD, 1) V('6', PARAM, 0) V('7', GRAD, 0) V('L', LOSS, 1) V('Q', SQUARES, 1)
        V('S', SCALARS, 0) V('0', ZEROS, 0) V('.', NOTHING, 0)
#undef V
    };
    const zinf_plan *plan = model->plan;
    const zinf_operand *o = &plan->operands[instr->operand0 + slot];
    const zinf_model_op *with = &model->ops[op];
    const uint64_t element = zinf_dtype_bytes(o->dtype), n = o->rows * o->cols;
    const char upper = letter & ~0x20;
    size_t k = 0;

    while (kinds[k].letter != letter)
        k++;
    zinf_model_value v = {(zinf_value_kind)kinds[k].what, (uint32_t)op, 0, 0};
    if (kinds[k].part && plan->decisions.ranks > 1)
        v.what++; /* _PART */
    if (strchr("RrGBPbp", letter) &&
        (o->bytes != 0) != ((upper == 'R'   ? with->residual
                             : upper == 'G' ? with->other : with->bias) != ZINF_NONE))
        return "is there, or is missing, unlike in the model";
    if (strchr("yrd", letter)) {
        v.place = row * element; /* columns: those of the weight's rows */
        if (o->bytes && o->rows > 1 && o->ld != with->rows)
            return "is not columns of a matrix of that width";
    }
    if (letter == 'X' || letter == 'E') {
        v.of--;
    } else if (upper == 'R' || letter == 'G') {
        v.of = upper == 'R' ? with->residual : with->other;
    } else if (strchr("WBP", upper) && o->bytes) {
        const uint32_t stack = upper == 'W' ? with->weight : with->bias;
        const uint64_t cols = plan->tensors[stack].cols;
        v.of = upper == 'W' ? instr->unit : model->home[stack];
        v.rows = n / cols;
        if (v.of >= plan->n_units || n % cols || (cols > 1 && o->cols != cols) ||
            !rows_of(plan, v.of, stack, upper == 'P' ? 0 : row, v.rows, upper == 'W',
                     &v.place))
            return "is not the rows of the tensor that belong here";
        if (letter == 'W' && strchr("EC", with->kind) && instr->opcode != ZINF_OP_LOGITS &&
            instr->attr[0] != row)
            return "is not the tile that comes next";
        v.place *= element;
    } else if (strchr("1234567Q", letter)) {
        v.of = instr->unit;
        if (v.of >= plan->n_units || (letter < '6' && n != plan->units[v.of].shard_elems))
            return "is not the unit's own array, whole";
        v.place = letter < '4' ? (uint64_t)(letter - '1') * plan->units[v.of].array_stride : 0;
    } else if (strchr("TLS0.", letter)) {
        v.of = 0;
    }
    *ret_value = v;
    return NULL;
}

bool zinf_model_adds(const zinf_plan *plan, uint32_t unit, bool embedding)
{
    const zinf_unit *u = &plan->units[unit];
    const bool of_tokens = u->n_parts && plan->parts[u->first_part].tensor == 0;

    return embedding ? of_tokens : !of_tokens || plan->model.tied_embeddings;
}

zinf_operand zinf_model_array(const zinf_plan *plan, uint32_t unit, unsigned which,
                              zinf_model_value *ret_value)
{
    const zinf_unit *u = &plan->units[unit];
    const bool param = which == 0, grad = which + 1 == ZINF_N_ARRAYS;
    const zinf_region *r = param ? &u->param : grad ? &u->grad : &u->optimizer;
    const unsigned part = plan->decisions.ranks > 1; /* see above */
    zinf_operand o = {.tier = (uint8_t)r->tier, .offset = r->offset, .value = r->value,
                      .dtype = (uint8_t)(param ? plan->job.precision : ZINF_F32)};

    *ret_value = (zinf_model_value){
        param ? ZINF_VALUE_PARAM + part : grad ? ZINF_VALUE_GRAD + part : ZINF_VALUE_OPTIMIZER,
        unit, param || grad ? 0 : (which - 1) * u->array_stride, 0};
    o.offset = zinf_operand_at(plan, &(zinf_instr){.unit = unit}, &o) + ret_value->place;
    o.bytes = r->bytes ? u->shard_elems * zinf_dtype_bytes(o.dtype) : 0;
    return o;
}
