/* planner/family.c - see family.h. */
#include "planner/family.h"

#include <string.h>

static const zinf_family families[] = {
    {.name = "gpt2",
     .learned_positions = true, .layernorm = true, .biased = true, .narrow_init = true,
     .tokens = "transformer.wte.weight", .positions = "transformer.wpe.weight",
     .block = "transformer.h.%d", .norms = {"ln_1", "ln_2"}, .final_norm = "transformer.ln_f",
     .norm_texts = {"ln_1", "ln_2", "ln_f"},
     .linears = {[ZINF_LINEAR_QKV] = {.parts = {"attn.c_attn"}},
                 [ZINF_LINEAR_OUT] = {.parts = {"attn.c_proj"}, .narrows = true},
                 [ZINF_LINEAR_FC] = {.parts = {"mlp.c_fc"}},
                 [ZINF_LINEAR_PROJ] = {.parts = {"mlp.c_proj"}, .narrows = true}}},
    {.name = "llama",
     .gated = true, .grouped = true,
     .tokens = "model.embed_tokens.weight", .head = "lm_head.weight",
     .block = "model.layers.%d", .norms = {"input_layernorm", "post_attention_layernorm"},
     .final_norm = "model.norm", .norm_texts = {"norm_1", "norm_2", "norm_f"},
     .linears = {[ZINF_LINEAR_QKV] = {.parts = {"self_attn.q_proj", "self_attn.k_proj",
                                                "self_attn.v_proj"},
                                      .unit = "self_attn.qkv"},
                 [ZINF_LINEAR_OUT] = {.parts = {"self_attn.o_proj"}, .narrows = true},
                 [ZINF_LINEAR_FC] = {.parts = {"mlp.gate_proj", "mlp.up_proj"},
                                     .unit = "mlp.gate_up"},
                 [ZINF_LINEAR_PROJ] = {.parts = {"mlp.down_proj"}, .narrows = true}}},
};

const zinf_family *zinf_family_find(const char *name)
{
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (!strcmp(families[i].name, name))
            return &families[i];
    return NULL;
}

const zinf_family *zinf_family_of(const zinf_model *model)
{
    const zinf_family *family = zinf_family_find(model->family);

    return family ? family : &families[0];
}

uint64_t zinf_linear_rows(const zinf_model *model, zinf_linear linear)
{
    switch (linear) {
    case ZINF_LINEAR_QKV:
        return (model->heads + 2 * model->kv_heads) * model->head_dim;
    case ZINF_LINEAR_FC:
        return zinf_family_of(model)->gated ? 2 * model->ffn : model->ffn;
    case ZINF_LINEAR_VOCAB:
        return model->vocab;
    default:
        return model->hidden;
    }
}

uint64_t zinf_linear_cols(const zinf_model *model, zinf_linear linear)
{
    switch (linear) {
    case ZINF_LINEAR_OUT:
        return model->heads * model->head_dim;
    case ZINF_LINEAR_PROJ:
        return model->ffn;
    default:
        return model->hidden;
    }
}

uint64_t zinf_linear_part_rows(const zinf_model *model, zinf_linear linear, unsigned part)
{
    const zinf_family_linear *l = &zinf_family_of(model)->linears[linear];

    if (part >= ZINF_MAX_STACK || !l->parts[part])
        return 0;
    if (!l->parts[1])
        return zinf_linear_rows(model, linear);
    if (linear == ZINF_LINEAR_QKV)
        return (part == 0 ? model->heads : model->kv_heads) * model->head_dim;
    return model->ffn; /* gate, up */
}

uint64_t zinf_small_rows(const zinf_model *model, int which)
{
    const zinf_family *family = zinf_family_of(model);

    if (which == ZINF_SMALL_LN1_W || which == ZINF_SMALL_LN2_W)
        return model->hidden;
    if (which < ZINF_SMALL_BIAS)
        return family->layernorm ? model->hidden : 0;
    if (family->biased || (which == ZINF_SMALL_BIAS + ZINF_LINEAR_QKV && model->qkv_bias))
        return zinf_linear_rows(model, (zinf_linear)(which - ZINF_SMALL_BIAS));
    return 0;
}

/* sum += a * b * c */
static void add(uint64_t *sum, uint64_t a, uint64_t b, uint64_t c)
{
    if (__builtin_mul_overflow(a, b, &a) || __builtin_mul_overflow(a, c, &a) ||
        __builtin_add_overflow(*sum, a, sum))
        *sum = UINT64_MAX; /* and stays there: what is added is not 0 in sum */
}

uint64_t zinf_model_params(const zinf_model *m)
{
    const zinf_family *family = zinf_family_of(m);
    uint64_t sum = 0, block = 0;

    for (int l = 0; l < ZINF_LINEAR_VOCAB; l++)
        add(&block, zinf_linear_rows(m, (zinf_linear)l), zinf_linear_cols(m, (zinf_linear)l), 1);
    for (int s = 0; s < ZINF_N_SMALL; s++)
        add(&block, zinf_small_rows(m, s), 1, 1);
    if (block == UINT64_MAX)
        return UINT64_MAX;
    add(&sum, m->layers, block, 1);
    add(&sum, m->tied_embeddings ? 1 : 2, m->vocab, m->hidden);
    if (family->learned_positions)
        add(&sum, m->context, m->hidden, 1);
    add(&sum, family->layernorm ? 2 : 1, m->hidden, 1);
    return sum;
}
