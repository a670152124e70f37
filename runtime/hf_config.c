/* runtime/hf_config.c - see hf_config.h. Fields and their defaults are those of transformers'
 * GPT2Config, LlamaConfig, MistralConfig and Qwen2Config; null is as good as absent, except where
 * it means something else there or nothing. What its versions take differently is refused, but for
 * rope_parameters, which are of version 5 and mean what they mean there.
 */
#include "runtime/hf_config.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/json.h"

enum { MOST_BYTES = 1 << 20, DEPTH = 16 };

typedef enum family { GPT2, LLAMA, MISTRAL, QWEN2, N_FAMILIES } family;
static const char *const family_names[N_FAMILIES] = {"gpt2", "llama", "mistral", "qwen2"};

typedef struct reader {
    const char *name;
    json_object *config;
    family family;
    zinf_hf_config *out;
    zinf_error *err;
} reader;

__attribute__((format(printf, 2, 3)))
static zinf_status refuse(const reader *r, const char *format, ...)
{
    char text[600];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return zinf_fail(r->err, ZINF_BAD_INPUT, "\"%.300s\": %s", r->name, text);
}

__attribute__((format(printf, 2, 3)))
static void note(const reader *r, const char *format, ...)
{
    char *notes = r->out->notes;
    const size_t n = strlen(notes), room = sizeof r->out->notes - n;
    va_list args;

    if (room < 8)
        return;
    snprintf(notes + n, room, "%s", n ? "; " : "");
    va_start(args, format);
    vsnprintf(notes + n + (n ? 2 : 0), room - (n ? 2 : 0), format, args);
    va_end(args);
}

/* ---- values ---- */

static json_object *get(json_object *object, const char *key)
{
    json_object *value = NULL;

    json_object_object_get_ex(object, key, &value);
    return value; /* NULL: absent or null */
}

static bool is_number(json_object *value)
{
    return json_object_is_type(value, json_type_int) ||
           json_object_is_type(value, json_type_double);
}

/* fallback 0: the field is required. */
static zinf_status get_count(const reader *r, json_object *from, const char *key, uint64_t fallback,
                             uint64_t min, uint64_t max, uint64_t *ret_value)
{
    json_object *value = get(from, key);

    if (!value && !fallback)
        return refuse(r, "\"%s\" is missing", key);
    *ret_value = fallback;
    if (!value)
        return ZINF_OK;
    /* json-c holds what exceeds 64 bits as the largest number: out of range here */
    if (!json_object_is_type(value, json_type_int) || json_object_get_int64(value) < 0 ||
        json_object_get_uint64(value) < min || json_object_get_uint64(value) > max)
        return refuse(r, "\"%s\" is %s; expected a whole number from %" PRIu64 " to %" PRIu64, key,
                      zinf_json_show(value).text, min, max);
    *ret_value = json_object_get_uint64(value);
    return ZINF_OK;
}

/* fallback 0: the field is required. */
static zinf_status get_real(const reader *r, json_object *from, const char *key, double fallback,
                            double min, double max, double *ret_value)
{
    json_object *value = get(from, key);

    if (!value && !(fallback > 0))
        return refuse(r, "\"%s\" is missing", key);
    *ret_value = fallback;
    if (!value)
        return ZINF_OK;
    const double real = is_number(value) ? json_object_get_double(value) : 0;
    if (!is_number(value) || !(real >= min && real <= max))
        return refuse(r, "\"%s\" is %s; expected a number from %g to %g", key,
                      zinf_json_show(value).text, min, max);
    *ret_value = real;
    return ZINF_OK;
}

/* For a number without which nothing is computed: transformers has a default for what is absent
 * and not for null. */
static zinf_status refuse_null(const reader *r, const char *key)
{
    json_object *value = NULL;

    if (json_object_object_get_ex(r->config, key, &value) && !value)
        return refuse(r, "\"%s\" is null; expected a number, or leave it out", key);
    return ZINF_OK;
}

static zinf_status get_flag(const reader *r, const char *key, bool fallback, bool *ret_value)
{
    json_object *value = get(r->config, key);

    *ret_value = fallback;
    if (!value)
        return ZINF_OK;
    if (!json_object_is_type(value, json_type_boolean))
        return refuse(r, "\"%s\" is %s; expected true or false", key, zinf_json_show(value).text);
    *ret_value = json_object_get_boolean(value);
    return ZINF_OK;
}

/* ---- what is not built ---- */

/* Fields that a model may have at this value only. */
typedef struct fixed {
    unsigned families; /* a bit each */
    const char *key, *allowed; /* JSON texts, '|' between */
    const char *why;
} fixed;

#define ALL (1u << GPT2 | 1u << LLAMA | 1u << MISTRAL | 1u << QWEN2)
#define ROTARY (ALL & ~(1u << GPT2))
#define UNBIASED (1u << LLAMA | 1u << MISTRAL)
#define BIASES "; biases of q, k and v alone are qwen2's"
#define DTYPES "\"float32\"|\"float16\"|\"bfloat16\"|null"
#define HEAD_SCALE ": attention is scaled by 1 / sqrt(head_dim)"
#define FULL ": attention is causal and full, but for \"sliding_window\""
static const fixed fixed_fields[] = {
    {1u << GPT2, "activation_function", "\"gelu_new\"|\"gelu_pytorch_tanh\"", ""},
    {1u << GPT2, "layer_norm_epsilon", "1e-05", ""},
    {1u << GPT2, "scale_attn_weights", "true", ""},
    {1u << GPT2, "scale_attn_by_inverse_layer_idx", "false", ""},
    {1u << GPT2, "reorder_and_upcast_attn", "false", ""},
    {1u << GPT2, "tie_word_embeddings", "true", " for gpt2"},
    {ROTARY, "hidden_act", "\"silu\"|\"swish\"", ""},
    {ROTARY, "attention_bias", "false", BIASES},
    {ROTARY, "mlp_bias", "false", ""},
    {ROTARY, "rope_interleaved", "false", ""},
    {ROTARY, "partial_rotary_factor", "1", ""},
    {ALL, "is_causal", "true", FULL},
    {ALL, "add_cross_attention", "false", ""},
    {ALL, "is_encoder_decoder", "false", ""},
    {ALL, "pruned_heads", "{}", ""},
    {ALL, "torchscript", "false", ": it unties the head"},
    {ALL, "per_layer_config", "{}", ": all layers are alike"},
    {ALL, "text_config", "{}", ": a model of several parts"},
    {ALL, "decoder", "{}", ": a model of several parts"},
    {ALL, "generator", "{}", ": a model of several parts"},
    {ALL, "loss_type", "\"ForCausalLM\"|\"ForCausalLMLoss\"|null", ""},
    {ALL, "dtype", DTYPES, ""},
    {ALL, "torch_dtype", DTYPES, ""},
    {ALL, "quantization_config", "", ": the weights must be F32, F16 or BF16"},
    {ALL, "compression_config", "", ": the weights must be F32, F16 or BF16"},
    {ALL, "num_local_experts", "0", ": mixtures of experts"},
    {ALL, "num_experts", "0", ": mixtures of experts"},
    {ALL, "n_routed_experts", "0", ": mixtures of experts"},
    {ALL, "num_experts_per_tok", "0", ": mixtures of experts"},
    /* Of models that descend from these four, and of other readers of their files. transformers
     * passes over them in these families; whoever set one means another model. */
    {ALL, "use_bidirectional_attention", "false", FULL},
    {ALL, "attention_chunk_size", "", FULL},
    {ALL, "attn_temperature_tuning", "false", ""},
    {ALL, "use_logn_attn", "false", ""},
    {ALL, "alibi", "false", ""},
    {ALL, "use_parallel_residual", "false", ""},
    {ALL, "parallel_attn", "false", ""},
    {ALL, "attn_logit_softcapping", "", ""},
    {ALL, "final_logit_softcapping", "", ""},
    {ALL, "clip_qkv", "", ""},
    {ALL, "query_pre_attn_scalar", "", HEAD_SCALE},
    {ALL, "attention_multiplier", "", HEAD_SCALE},
    {ALL, "embedding_multiplier", "1|null", ""},
    {ALL, "residual_multiplier", "1|null", ""},
    {ALL, "lm_head_multiplier", "1|null", ""},
    {ALL, "logits_scaling", "1|null", ""},
    {ALL, "logit_scale", "1|null", ""},
    {ALL, "qk_norm", "false", ""},
    {ALL, "use_qk_norm", "false", ""},
    {ALL, "qk_layernorm", "false", ""},
    {ALL, "num_nextn_predict_layers", "0", ": one token is predicted"},
    {ALL, "num_mtp_layers", "0", ": one token is predicted"},
    {UNBIASED, "qkv_bias", "false", BIASES},
    {UNBIASED, "use_qkv_bias", "false", BIASES},
    {UNBIASED, "bias", "false", BIASES},
    {ROTARY, "use_bias", "false", BIASES},
    {ROTARY, "hidden_activation", "\"silu\"|\"swish\"|null", ""},
    {ROTARY, "rotary_pct", "1|null", ""},
    {ROTARY, "rope_pct", "1|null", ""},
    {ROTARY, "use_mrope", "false", ""},
    {ROTARY, "use_dynamic_ntk", "false", ""},
    {ROTARY, "no_rope_layers", "[]", ": all layers are alike"},
    {ROTARY, "no_rope_layer_interval", "", ": all layers are alike"},
};

/* null is as good as what is false (and as null, where nothing is allowed), not as a number or a
 * word, with which transformers would have to compute. */
static bool is_among(json_object *value, const char *allowed)
{
    if (!value && !*allowed)
        return true;
    while (*allowed) {
        const size_t n = strcspn(allowed, "|");
        char text[64];
        snprintf(text, sizeof text, "%.*s", (int)n, allowed);
        json_object *other = json_tokener_parse(text);
        const bool equal = !value ? !json_object_get_boolean(other)
                           : is_number(value) && is_number(other)
                               ? json_object_get_double(value) == json_object_get_double(other)
                               : json_object_equal(value, other);
        json_object_put(other);
        if (equal)
            return true;
        allowed += n + (allowed[n] == '|');
    }
    return false;
}

static zinf_status check_fixed(const reader *r)
{
    for (size_t i = 0; i < sizeof fixed_fields / sizeof *fixed_fields; i++) {
        const fixed *f = &fixed_fields[i];
        json_object *value = NULL;
        if (!(f->families >> r->family & 1) ||
            !json_object_object_get_ex(r->config, f->key, &value) || is_among(value, f->allowed))
            continue;
        char allowed[64];
        snprintf(allowed, sizeof allowed, "%s", *f->allowed ? f->allowed : "null");
        for (char *bar = strchr(allowed, '|'); bar; bar = strchr(bar, '|'))
            *bar = ' ';
        return refuse(r, "\"%s\" is %s, which is not supported%s; allowed: %s", f->key,
                      zinf_json_show(value).text, f->why, allowed);
    }
    return ZINF_OK;
}

/* Whether some layer attends to a window. */
static zinf_status read_layer_types(const reader *r, bool *ret_some)
{
    json_object *layers = get(r->config, "layer_types");
    const size_t n = layers && json_object_is_type(layers, json_type_array)
                         ? json_object_array_length(layers) : 0;

    *ret_some = false;
    if (layers && !json_object_is_type(layers, json_type_array))
        return refuse(r, "\"layer_types\" is %s; expected a list", zinf_json_show(layers).text);
    for (size_t i = 0; i < n; i++) {
        json_object *type = json_object_array_get_idx(layers, i);
        const char *word = json_object_is_type(type, json_type_string)
                               ? json_object_get_string(type) : "";
        if (strcmp(word, "full_attention") && strcmp(word, "sliding_attention"))
            return refuse(r, "\"layer_types\" has %s for layer %zu, which is not supported; "
                          "allowed: \"full_attention\", and \"sliding_attention\" with a "
                          "\"sliding_window\"", zinf_json_show(type).text, i);
        *ret_some |= !strcmp(word, "sliding_attention");
    }
    if (layers && n != r->out->model.layers)
        return refuse(r, "\"layer_types\" has %zu entries for %" PRIu64 " layers", n,
                      r->out->model.layers);
    return ZINF_OK;
}

/* Attention to a window is full attention where no sequence is longer. Of qwen2 it counts where
 * use_sliding_window says so, of a mistral whatever that says; of a llama it should not be there,
 * and bounds as well if it is. */
static zinf_status read_window(const reader *r)
{
    const bool given = json_object_object_get_ex(r->config, "sliding_window", NULL);
    bool counts, some;

    if (get_flag(r, "use_sliding_window", r->family != QWEN2, &counts) ||
        read_layer_types(r, &some))
        return r->err->status;
    counts |= r->family == MISTRAL;
    if (!counts && !some)
        return ZINF_OK;
    if (!get(r->config, "sliding_window") && (given || r->family == LLAMA)) {
        if (!some)
            return ZINF_OK; /* null: none */
        return refuse(r, "\"layer_types\" has \"sliding_attention\", and \"sliding_window\" is %s",
                      given ? "null" : "missing");
    }
    if (get_count(r, r->config, "sliding_window", 4096, 1, INT64_MAX, &r->out->window))
        return r->err->status;
    if (r->out->window < r->out->model.context)
        note(r, "attention is full, which it is within a \"sliding_window\" of %" PRIu64
             ": sequences may not be longer", r->out->window);
    return ZINF_OK;
}

/* ---- rotary positions ---- */

static zinf_status get_scaling(const reader *r, json_object *rope, const char *where)
{
    static const char *const known[] = {
        "rope_type", "type", "rope_theta", "partial_rotary_factor", "factor", "low_freq_factor",
        "high_freq_factor", "original_max_position_embeddings"};
    enum { FIRST_OF_LLAMA3 = 4, N_KNOWN = sizeof known / sizeof *known };
    zinf_model_info *m = &r->out->model;
    json_object *named = get(rope, "rope_type"), *older = get(rope, "type");
    json_object *type = named ? named : older;
    json_object *original = get(r->config, "original_max_position_embeddings");
    double partial;
    const char *word = type ? json_object_get_string(type) : "default";

    json_object_object_foreach(rope, key, value) {
        bool found = !value;
        for (size_t i = 0; i < N_KNOWN; i++)
            found |= !strcmp(key, known[i]);
        if (!found)
            return refuse(r, "\"%s\" has the field \"%s\", which is not supported", where,
                          zinf_show(key).text);
    }
    if (named && older && !json_object_equal(named, older))
        return refuse(r, "\"%s\" has the rope_type %s and the type %s, of which a version of "
                      "transformers takes the one or the other; leave one out", where,
                      zinf_json_show(named).text, zinf_json_show(older).text);
    if (type && (!json_object_is_type(type, json_type_string) ||
                 (strcmp(word, "default") && strcmp(word, "llama3"))))
        return refuse(r, "\"%s\" has the type %s, which is not supported; allowed: \"default\", "
                      "\"llama3\"", where, zinf_json_show(type).text);
    if (get_real(r, rope, "partial_rotary_factor", 1, 1, 1, &partial))
        return r->err->status;
    for (size_t i = FIRST_OF_LLAMA3; !strcmp(word, "default") && i < N_KNOWN; i++)
        if (get(rope, known[i]))
            return refuse(r, "\"%s\" has \"%s\" and the type %s, which has no use for it; write "
                          "\"rope_type\": \"llama3\" if that was meant", where, known[i],
                          type ? "\"default\"" : "is missing");
    if (!strcmp(word, "default"))
        return ZINF_OK;
    if (get_real(r, rope, "factor", 0, 1, 1e6, &m->rope_factor) ||
        get_real(r, rope, "low_freq_factor", 0, 1e-6, 1e6, &m->rope_low_freq_factor) ||
        get_real(r, rope, "high_freq_factor", 0, 1e-6, 1e6, &m->rope_high_freq_factor) ||
        get_count(r, rope, "original_max_position_embeddings", 0, 1, 1 << 24,
                  &m->rope_original_context))
        return r->err->status;
    /* of the two transformers 5 takes the outer one */
    if (original && !json_object_equal(original, get(rope, "original_max_position_embeddings")))
        return refuse(r, "\"original_max_position_embeddings\" is %s, and %" PRIu64 " in \"%s\"",
                      zinf_json_show(original).text, m->rope_original_context, where);
    if (!(m->rope_high_freq_factor > m->rope_low_freq_factor))
        return refuse(r, "\"%s\" has a high_freq_factor (%g) that does not exceed its "
                      "low_freq_factor (%g)", where, m->rope_high_freq_factor,
                      m->rope_low_freq_factor);
    return ZINF_OK;
}

static zinf_status get_rope(const reader *r)
{
    /* transformers 5 writes the second, and the base into it */
    static const char *const names[] = {"rope_scaling", "rope_parameters"};
    zinf_model_info *m = &r->out->model;
    json_object *newer = get(r->config, names[1]);
    double inner;

    if ((!json_object_is_type(newer, json_type_object) || !get(newer, "rope_theta")) &&
        refuse_null(r, "rope_theta"))
        return r->err->status;
    if (get_real(r, r->config, "rope_theta", 1e4, 1, 1e12, &m->rope_theta))
        return r->err->status;
    for (int i = 0; i < 2; i++) {
        json_object *rope = get(r->config, names[i]);
        if (!rope)
            continue;
        if (!json_object_is_type(rope, json_type_object))
            return refuse(r, "\"%s\" is %s; expected an object", names[i],
                          zinf_json_show(rope).text);
        if (get_scaling(r, rope, names[i]) ||
            get_real(r, rope, "rope_theta", m->rope_theta, 1, 1e12, &inner))
            return r->err->status;
        if (get(r->config, "rope_theta") && inner != m->rope_theta)
            return refuse(r, "\"rope_theta\" is %g, and %g in \"%s\"", m->rope_theta, inner,
                          names[i]);
        /* version 4 does not look there */
        if (i == 0 && !get(r->config, "rope_theta") && inner != m->rope_theta)
            return refuse(r, "\"rope_theta\" is %g in \"rope_scaling\" and missing beside it, "
                          "where some versions of transformers look for it; write it there",
                          inner);
        if (i == 0 && r->family == MISTRAL && m->rope_factor > 0)
            return refuse(r, "\"rope_scaling\" of a mistral is ignored by some versions of "
                          "transformers and not by others: it is not supported");
        m->rope_theta = inner;
    }
    if (get(r->config, names[0]) && get(r->config, names[1]) &&
        !json_object_equal(get(r->config, names[0]), get(r->config, names[1])))
        return refuse(r, "\"rope_scaling\" and \"rope_parameters\" differ; leave one out");
    return ZINF_OK;
}

/* ---- families ---- */

static zinf_status read_gpt2(const reader *r)
{
    static const char *const aliases[][2] = {
        {"num_hidden_layers", "n_layer"}, {"hidden_size", "n_embd"},
        {"num_attention_heads", "n_head"}, {"max_position_embeddings", "n_positions"}};
    zinf_model_info *m = &r->out->model;
    json_object *c = r->config;

    if (get_count(r, c, "n_layer", 0, 1, 100000, &m->layers) ||
        get_count(r, c, "n_embd", 0, 1, 1 << 22, &m->hidden) ||
        get_count(r, c, "n_head", 0, 1, 65536, &m->heads) ||
        get_count(r, c, "n_inner", 4 * m->hidden, 1, 1 << 24, &m->ffn) ||
        get_count(r, c, "vocab_size", 0, 2, INT32_MAX, &m->vocab) ||
        get_count(r, c, "n_positions", 0, 1, 1 << 24, &m->context))
        return r->err->status;
    for (size_t i = 0; i < sizeof aliases / sizeof *aliases; i++) {
        json_object *other = get(c, aliases[i][0]);
        if (other && !json_object_equal(other, get(c, aliases[i][1])))
            return refuse(r, "\"%s\" is %s and \"%s\" is %s: to transformers they are the same",
                          aliases[i][0], zinf_json_show(other).text, aliases[i][1],
                          zinf_json_show(get(c, aliases[i][1])).text);
    }
    if (m->hidden % m->heads)
        return refuse(r, "\"n_embd\" (%" PRIu64 ") is not a multiple of \"n_head\" (%" PRIu64 ")",
                      m->hidden, m->heads);
    m->kv_heads = m->heads;
    m->head_dim = m->hidden / m->heads;
    m->tied_embeddings = 1;
    return ZINF_OK;
}

static zinf_status read_llama(const reader *r)
{
    zinf_model_info *m = &r->out->model;
    json_object *c = r->config;
    bool tied;

    if (get_count(r, c, "num_hidden_layers", 0, 1, 100000, &m->layers) ||
        get_count(r, c, "hidden_size", 0, 1, 1 << 22, &m->hidden) ||
        get_count(r, c, "num_attention_heads", 0, 1, 65536, &m->heads) ||
        get_count(r, c, "num_key_value_heads", r->family == LLAMA ? m->heads : 0, 1, 65536,
                  &m->kv_heads) ||
        get_count(r, c, "intermediate_size", 0, 1, 1 << 24, &m->ffn) ||
        get_count(r, c, "vocab_size", 0, 2, INT32_MAX, &m->vocab) ||
        get_count(r, c, "max_position_embeddings", 0, 1, 1 << 24, &m->context) ||
        refuse_null(r, "rms_norm_eps") ||
        get_real(r, c, "rms_norm_eps", 1e-6, 1e-30, 1, &m->norm_eps) ||
        get_flag(r, "tie_word_embeddings", false, &tied))
        return r->err->status;
    if (!get(c, "head_dim") && m->hidden % m->heads)
        return refuse(r, "\"hidden_size\" (%" PRIu64 ") is not a multiple of "
                      "\"num_attention_heads\" (%" PRIu64 "), and there is no \"head_dim\"",
                      m->hidden, m->heads);
    if (m->heads % m->kv_heads)
        return refuse(r, "\"num_attention_heads\" (%" PRIu64 ") is not a multiple of "
                      "\"num_key_value_heads\" (%" PRIu64 ")", m->heads, m->kv_heads);
    if (get_count(r, c, "head_dim", get(c, "head_dim") ? 0 : m->hidden / m->heads, 1, 65536,
                  &m->head_dim))
        return r->err->status;
    if (m->head_dim % 2)
        return refuse(r, "rotary positions turn pairs: the width of a head (%" PRIu64 ") must be "
                      "even", m->head_dim);
    m->tied_embeddings = tied;
    m->qkv_bias = r->family == QWEN2;
    return get_rope(r) ? r->err->status : read_window(r);
}

/* ---- the rest of the fields ---- */

/* Used above, beside the fixed ones. */
static const char *const used_by_gpt2[] = {
    "model_type", "vocab_size", "n_layer", "n_embd", "n_head", "n_inner", "n_positions",
    "num_hidden_layers", "hidden_size", "num_attention_heads", "max_position_embeddings"};
static const char *const used_by_others[] = {
    "model_type", "vocab_size", "tie_word_embeddings", "num_hidden_layers", "hidden_size",
    "num_attention_heads", "num_key_value_heads", "intermediate_size", "max_position_embeddings",
    "rms_norm_eps", "head_dim", "rope_theta", "rope_scaling", "rope_parameters",
    "original_max_position_embeddings", "sliding_window", "use_sliding_window", "layer_types"};

/* They change neither losses nor gradients of the model (but for those of which a note tells). */
static const char *const passed[] = {
    "architectures", "transformers_version", "_name_or_path", "name",
    "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "decoder_start_token_id",
    "use_cache", "initializer_range", "auto_map", "n_ctx", "task_specific_params", "summary_type",
    "summary_use_proj", "summary_activation", "summary_first_dropout", "summary_proj_to_labels",
    "max_window_layers", "pretraining_tp", "is_decoder", "is_llama_config", "unk_token_id",
    "output_hidden_states", "output_attentions", "return_dict", "return_dict_in_generate",
    "id2label", "label2id", "problem_type", "finetuning_task", "use_bfloat16",
    "tokenizer_class", "prefix", "_commit_hash", "_attn_implementation", "attn_implementation",
    "_attn_implementation_autoset", "use_return_dict", "output_past", "chunk_size_feed_forward",
    "tf_legacy_loss", "gradient_checkpointing", "transformers.js_config",
    "num_labels", "classifier_dropout", "summary_last_dropout", "experts_implementation",
    "tie_last_hidden_states",
    /* of generation */
    "max_length", "min_length", "do_sample", "temperature", "top_k", "top_p", "typical_p",
    "num_beams", "num_beam_groups", "diversity_penalty", "repetition_penalty", "length_penalty",
    "early_stopping", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "bad_words_ids",
    "num_return_sequences", "output_scores", "forced_bos_token_id", "forced_eos_token_id",
    "remove_invalid_values", "exponential_decay_length_penalty", "suppress_tokens",
    "begin_suppress_tokens", "cross_attention_hidden_size", "tie_encoder_decoder",
    "max_new_tokens", "min_new_tokens", "max_time", "stop_strings", "cache_implementation",
    "cache_config", "min_p", "epsilon_cutoff", "eta_cutoff", "encoder_repetition_penalty",
    "renormalize_logits", "sequence_bias", "token_healing", "guidance_scale",
    "watermarking_config", "output_logits"};

/* Training is without dropout here. */
static const char *const dropouts[] = {"resid_pdrop", "embd_pdrop", "attn_pdrop",
                                       "attention_dropout", "hidden_dropout", "resid_dropout"};

static bool is_in(const char *key, const char *const *list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!strcmp(key, list[i]))
            return true;
    return false;
}
#define IS_IN(key, list) is_in(key, list, sizeof list / sizeof *list)

static zinf_status check_rest(const reader *r)
{
    char unknown[300] = "", dropped[200] = "";
    double rate, deviation;

    json_object_object_foreach(r->config, key, value) {
        bool known = !value || IS_IN(key, passed) ||
                     (r->family == GPT2 ? IS_IN(key, used_by_gpt2) : IS_IN(key, used_by_others));
        for (size_t i = 0; !known && i < sizeof fixed_fields / sizeof *fixed_fields; i++)
            known = fixed_fields[i].families >> r->family & 1 && !strcmp(key, fixed_fields[i].key);
        if (known)
            continue;
        if (IS_IN(key, dropouts)) {
            if (get_real(r, r->config, key, 1, 0, 1, &rate))
                return r->err->status;
            const size_t n = strlen(dropped);
            if (rate > 0)
                snprintf(dropped + n, sizeof dropped - n, "%s%s %g", n ? ", " : "", key, rate);
            continue;
        }
        const size_t n = strlen(unknown);
        if (n + 68 < sizeof unknown)
            snprintf(unknown + n, sizeof unknown - n, "%s%s", n ? ", " : "", zinf_show(key).text);
        else if (strcmp(unknown + n - 3, "..."))
            strcat(unknown, ", ...");
    }
    if (get_real(r, r->config, "initializer_range", 0.02, 0, 1e6, &deviation))
        return r->err->status;
    if (deviation != 0.02)
        note(r, "random initial weights deviate by 0.02 (the file has initializer_range %g)",
             deviation);
    if (get(r->config, "auto_map"))
        note(r, "the code that auto_map names is not used");
    if (r->family != GPT2 && get(r->config, "pad_token_id")) /* it is their padding_idx */
        note(r, "the embedding of pad_token_id %s is trained like any other, transformers leaves "
             "it as it is", zinf_json_show(get(r->config, "pad_token_id")).text);
    if (*dropped)
        note(r, "training is without dropout (the file has %s)", dropped);
    if (*unknown)
        note(r, "fields that are not known here and were not used: %s", unknown);
    return ZINF_OK;
}

/* The name of the folder that holds the file, of printable ASCII. */
static void name_model(const char *path, char ret_name[ZINF_NAME_BYTES])
{
    const char *end = strrchr(path, '/'), *start = end;
    size_t n = 0;

    while (start && start > path && start[-1] != '/')
        start--;
    for (; start && start < end && n + 1 < ZINF_NAME_BYTES; start++)
        ret_name[n++] = *start > ' ' && *start <= '~' ? *start : '_';
    ret_name[n] = 0;
    if (!n || !strcmp(ret_name, ".") || !strcmp(ret_name, ".."))
        strcpy(ret_name, "model");
}

static zinf_status read_config(reader *r)
{
    json_object *type = get(r->config, "model_type");
    zinf_model_info *m = &r->out->model;
    int i = 0;

    if (!type)
        return refuse(r, "\"model_type\" is missing: no config.json of a Hugging Face model");
    while (i < N_FAMILIES && (!json_object_is_type(type, json_type_string) ||
                              strcmp(json_object_get_string(type), family_names[i])))
        i++;
    if (i == N_FAMILIES)
        return refuse(r, "\"model_type\" is %s, which is not supported; allowed: \"gpt2\", "
                      "\"llama\", \"mistral\", \"qwen2\"", zinf_json_show(type).text);
    r->family = (family)i;
    strcpy(m->family, r->family == GPT2 ? "gpt2" : "llama");
    if (check_fixed(r) || (r->family == GPT2 ? read_gpt2(r) : read_llama(r)))
        return r->err->status;
    return check_rest(r);
}

zinf_status zinf_hf_config_parse(const char *name, const char *text, size_t n,
                                 zinf_hf_config *ret_config, zinf_error *err)
{
    zinf_hf_config out = {0};
    reader r = {.name = name, .out = &out, .err = err};
    char what[330];

    snprintf(what, sizeof what, "\"%.300s\"", name);
    if (zinf_json_parse(what, text, n, DEPTH, &r.config, err))
        return err->status;
    name_model(name, out.model.name);
    if (!read_config(&r))
        *ret_config = out;
    json_object_put(r.config);
    return err->status;
}

/* ---- files ---- */

bool zinf_hf_config_is(const char *path)
{
    const size_t n = strlen(path);
    struct stat st;

    return (n >= 5 && !strcmp(path + n - 5, ".json")) || (!stat(path, &st) && S_ISDIR(st.st_mode));
}

zinf_status zinf_hf_config_load(const char *path, char **ret_text, size_t *ret_n,
                                zinf_error *err)
{
    struct stat st;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    size_t n = 0;

    if (fd < 0 || fstat(fd, &st) || !S_ISREG(st.st_mode)) {
        zinf_fail(err, ZINF_BAD_INPUT, "\"%.300s\" cannot be opened: %s", path,
                  fd < 0 ? strerror(errno) : "not a regular file");
        if (fd >= 0)
            close(fd);
        return err->status;
    }
    char *text = malloc(MOST_BYTES + 1);
    while (text && n <= MOST_BYTES) {
        const ssize_t got = read(fd, text + n, MOST_BYTES + 1 - n);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            zinf_fail(err, ZINF_MACHINE, "reading \"%.300s\": %s", path, strerror(errno));
        if (got <= 0)
            break;
        n += (size_t)got;
    }
    close(fd);
    if (!text)
        zinf_fail(err, ZINF_MACHINE, "out of memory for \"%.300s\"", path);
    else if (n > MOST_BYTES)
        zinf_fail(err, ZINF_BAD_INPUT, "\"%.300s\" has more than %d bytes: no config.json", path,
                  MOST_BYTES);
    if (err->status) {
        free(text);
        return err->status;
    }
    text[n] = 0;
    *ret_text = text;
    *ret_n = n;
    return ZINF_OK;
}

zinf_status zinf_hf_config_read(const char *path, zinf_hf_config *ret_config, zinf_error *err)
{
    char *file = NULL, *text = NULL;
    struct stat st;
    size_t n = 0;

    if (!stat(path, &st) && S_ISDIR(st.st_mode)) {
        if (asprintf(&file, "%s/config.json", path) < 0)
            file = NULL;
    } else {
        file = strdup(path);
    }
    if (!file)
        return zinf_fail(err, ZINF_MACHINE, "out of memory for \"%.300s\"", path);
    if (!zinf_hf_config_load(file, &text, &n, err) &&
        !zinf_hf_config_parse(file, text, n, ret_config, err)) {
        char *whole = realpath(file, NULL); /* "." and ".." have no name */
        if (whole)
            name_model(whole, ret_config->model.name);
        free(whole);
    }
    free(text);
    free(file);
    return err->status;
}
