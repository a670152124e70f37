/* tests/runtime/hf_config.c - config.json of the four families: what is read, what is refused by
 * name, what is passed over; and the strict parse below it.
 */
#include "runtime/hf_config.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/json.h"
#include "tests/check.h"

typedef struct pair {
    const char *key, *value;
} pair;
enum { MOST_PAIRS = 40 };

static const pair gpt2[] = {
    {"model_type", "\"gpt2\""}, {"n_layer", "2"}, {"n_embd", "48"}, {"n_head", "4"},
    {"vocab_size", "300"}, {"n_positions", "64"}, {"n_inner", "null"},
    {"activation_function", "\"gelu_new\""}, {"layer_norm_epsilon", "1e-05"},
    {"scale_attn_by_inverse_layer_idx", "false"}, {"resid_pdrop", "0.0"}};
static const pair llama[] = {
    {"model_type", "\"llama\""}, {"num_hidden_layers", "3"}, {"hidden_size", "48"},
    {"num_attention_heads", "6"}, {"num_key_value_heads", "2"}, {"intermediate_size", "96"},
    {"vocab_size", "300"}, {"max_position_embeddings", "64"}, {"rms_norm_eps", "1e-05"},
    {"head_dim", "16"}, {"rope_theta", "10000.0"}, {"rope_scaling", "null"},
    {"attention_bias", "false"}, {"tie_word_embeddings", "false"}, {"attention_dropout", "0.0"}};

#define LLAMA3(type) "{\"" type "\": \"llama3\", \"factor\": 8.0, \"low_freq_factor\": 1.0, " \
    "\"high_freq_factor\": 4.0, \"original_max_position_embeddings\": 8192}"

static zinf_hf_config config;
static zinf_error err;

static zinf_status parse(const char *text)
{
    memset(&err, 0, sizeof err);
    memset(&config, 0xff, sizeof config);
    return zinf_hf_config_parse("/models/small one/config.json", text, strlen(text), &config, &err);
}

/* The base with the changes: "key", "value" by turns; a NULL value takes the key away. */
static zinf_status with(const pair *base, size_t n, const pair *changes, size_t n_changes)
{
    char text[4000] = "{";
    size_t at = 1;

    for (size_t pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < (pass ? n_changes : n); i++) {
            const pair *p = pass ? &changes[i] : &base[i];
            bool skip = !p->value;
            for (size_t k = 0; !pass && k < n_changes; k++)
                skip |= !strcmp(changes[k].key, p->key);
            if (!skip)
                at += (size_t)snprintf(text + at, sizeof text - at, "%s\"%s\": %s",
                                       at > 1 ? ", " : "", p->key, p->value);
        }
    snprintf(text + at, sizeof text - at, "}");
    return parse(text);
}
#define GPT2(...) with(gpt2, sizeof gpt2 / sizeof *gpt2, (const pair[]){__VA_ARGS__}, \
                       sizeof (const pair[]){__VA_ARGS__} / sizeof(pair))
#define LLAMA(...) with(llama, sizeof llama / sizeof *llama, (const pair[]){__VA_ARGS__}, \
                        sizeof (const pair[]){__VA_ARGS__} / sizeof(pair))

static bool says(const char *text)
{
    if (strstr(err.text, text))
        return true;
    printf("# message: %s\n", err.text);
    return false;
}

/* ---- what is read ---- */

static void gpt2_is_read(void)
{
    CHECK_MESSAGE(!GPT2({"n_ctx", "64"}), "%s", err.text);
    const zinf_model_info *m = &config.model;
    CHECK(!strcmp(m->family, "gpt2") && !strcmp(m->name, "small_one") && !*config.notes);
    CHECK(m->layers == 2 && m->hidden == 48 && m->heads == 4 && m->kv_heads == 4);
    CHECK(m->head_dim == 12 && m->ffn == 192 && m->vocab == 300 && m->context == 64);
    CHECK(m->tied_embeddings == 1 && m->norm_eps == 0 && m->rope_theta == 0 && !m->qkv_bias);
    CHECK(!GPT2({"n_inner", "50"}, {"activation_function", "\"gelu_pytorch_tanh\""}));
    CHECK(config.model.ffn == 50);
}

static void llama_is_read(void)
{
    CHECK_MESSAGE(!LLAMA({"torch_dtype", "\"bfloat16\""}), "%s", err.text);
    const zinf_model_info *m = &config.model;
    CHECK(!strcmp(m->family, "llama") && !*config.notes);
    CHECK(m->layers == 3 && m->hidden == 48 && m->heads == 6 && m->kv_heads == 2);
    CHECK(m->head_dim == 16 && m->ffn == 96 && m->vocab == 300 && m->context == 64);
    CHECK(m->tied_embeddings == 0 && m->norm_eps == 1e-5 && m->rope_theta == 1e4);
    CHECK(m->rope_factor == 0 && m->qkv_bias == 0);
    CHECK(!LLAMA({"head_dim", NULL}, {"num_key_value_heads", "null"},
                 {"tie_word_embeddings", "true"}, {"rope_theta", "500000"}));
    CHECK(m->head_dim == 8 && m->kv_heads == 6 && m->tied_embeddings == 1 && m->rope_theta == 5e5);
    /* transformers' defaults */
    CHECK(!LLAMA({"rms_norm_eps", NULL}, {"rope_theta", NULL}, {"tie_word_embeddings", NULL}));
    CHECK(m->norm_eps == 1e-6 && m->rope_theta == 1e4 && m->tied_embeddings == 0);
}

static void qwen2_has_biases_without_a_key(void)
{
    CHECK_MESSAGE(!LLAMA({"model_type", "\"qwen2\""}, {"use_sliding_window", "false"},
                         {"sliding_window", "32"}, {"attention_bias", NULL}), "%s", err.text);
    CHECK(config.model.qkv_bias == 1 && !strcmp(config.model.family, "llama"));
    CHECK(config.window == 0 && !*config.notes);
}

/* Attention to a window is full attention for sequences that fit it: those are the only ones. */
static void a_window_bounds_the_sequences(void)
{
    CHECK(!LLAMA({"model_type", "\"mistral\""}, {"sliding_window", "null"}));
    CHECK(config.model.qkv_bias == 0 && !strcmp(config.model.family, "llama") && !config.window);
    CHECK(!LLAMA({"model_type", "\"mistral\""}, {"sliding_window", "64"}));
    CHECK(config.window == 64 && !*config.notes && config.model.context == 64);
    CHECK(!LLAMA({"model_type", "\"mistral\""}, {"sliding_window", "63"}) && config.window == 63);
    CHECK(strstr(config.notes, "\"sliding_window\" of 63") && config.model.context == 64);
    /* its default is a window of 4096, and qwen2's where it has one */
    CHECK(!LLAMA({"model_type", "\"mistral\""}) && config.window == 4096 && !*config.notes);
    CHECK(!LLAMA({"model_type", "\"qwen2\""}, {"use_sliding_window", "true"}));
    CHECK(config.window == 4096);
    CHECK(!LLAMA({"model_type", "\"qwen2\""}, {"use_sliding_window", "true"},
                 {"sliding_window", "9"}) && config.window == 9);
    CHECK(!LLAMA({"model_type", "\"qwen2\""}, {"use_sliding_window", "false"},
                 {"sliding_window", "9"}) && config.window == 0);
    /* a mistral's counts whatever this says */
    CHECK(!LLAMA({"model_type", "\"mistral\""}, {"use_sliding_window", "false"},
                 {"sliding_window", "9"}) && config.window == 9);
    CHECK(!LLAMA({"sliding_window", "9"}) && config.window == 9); /* a llama has none */
    CHECK(!LLAMA({"layer_types", "[\"full_attention\", \"full_attention\", \"full_attention\"]"}));
    CHECK(config.window == 0);
    static const char mixed[] =
        "[\"full_attention\", \"sliding_attention\", \"full_attention\"]";
    CHECK(!LLAMA({"model_type", "\"qwen2\""}, {"layer_types", mixed}, {"sliding_window", "9"}));
    CHECK(config.window == 9);
    CHECK(LLAMA({"layer_types", mixed}) && says("layer_types") && says("sliding_window"));
    CHECK(LLAMA({"layer_types", mixed}, {"sliding_window", "null"}) && says("is null"));
    CHECK(LLAMA({"layer_types", "[\"full_attention\"]"}) && says("1 entries for 3 layers"));
    CHECK(LLAMA({"layer_types", "7"}) && says("layer_types") && says("a list"));
    CHECK(LLAMA({"model_type", "\"mistral\""}, {"sliding_window", "0"}) && says("sliding_window"));
    CHECK(LLAMA({"use_sliding_window", "1"}) && says("use_sliding_window"));
    CHECK(LLAMA({"model_type", "\"mistral\""}, {"num_key_value_heads", NULL}) != ZINF_OK);
    CHECK(says("num_key_value_heads") && says("missing"));
}

static void rotary_positions_are_read_as_both_versions_write_them(void)
{
    const zinf_model_info *m = &config.model;

    CHECK_MESSAGE(!LLAMA({"rope_scaling", LLAMA3("rope_type")}), "%s", err.text);
    CHECK(m->rope_factor == 8 && m->rope_low_freq_factor == 1 && m->rope_high_freq_factor == 4);
    CHECK(m->rope_original_context == 8192 && m->rope_theta == 1e4);
    CHECK(!LLAMA({"rope_scaling", LLAMA3("type")}) && m->rope_factor == 8);
    CHECK(!LLAMA({"rope_theta", NULL}, {"rope_scaling", NULL},
                 {"rope_parameters", "{\"rope_type\": \"default\", \"rope_theta\": 3e5}"}));
    CHECK(m->rope_factor == 0 && m->rope_theta == 3e5);
    CHECK(LLAMA({"rope_parameters", "{\"rope_type\": \"default\", \"rope_theta\": 3e5}"}));
    CHECK(says("rope_theta") && says("10000") && says("300000"));
    CHECK(LLAMA({"rope_scaling", "{\"type\": \"linear\", \"factor\": 2}"}) == ZINF_BAD_INPUT);
    CHECK(says("rope_scaling") && says("linear") && says("llama3"));
    CHECK(LLAMA({"rope_scaling", "{\"rope_type\": \"llama3\", \"factor\": 2}"}));
    CHECK(says("low_freq_factor") && says("missing"));
    CHECK(LLAMA({"rope_scaling", "{\"rope_type\": \"default\", \"mrope_section\": [1]}"}));
    CHECK(says("mrope_section"));
    CHECK(LLAMA({"rope_parameters", "{\"full_attention\": {\"rope_theta\": 1}}"}));
    CHECK(says("full_attention"));
    CHECK(LLAMA({"rope_scaling", "7"}) && says("rope_scaling") && says("an object"));
    CHECK(!LLAMA({"rope_parameters", "{\"partial_rotary_factor\": 1.0}"}));
    CHECK(LLAMA({"rope_parameters", "{\"partial_rotary_factor\": 0.5}"}));
    CHECK(says("partial_rotary_factor") && says("0.5"));
    /* a factor without a type that uses it */
    CHECK(LLAMA({"rope_scaling", "{\"factor\": 8.0}"}) && says("factor") && says("is missing"));
    CHECK(LLAMA({"rope_scaling", "{\"rope_type\": \"default\", \"low_freq_factor\": 1}"}));
    CHECK(says("low_freq_factor") && says("\"default\""));
    CHECK(!LLAMA({"rope_scaling", LLAMA3("type")}, {"original_max_position_embeddings", "8192"}));
    CHECK(LLAMA({"rope_scaling", LLAMA3("type")}, {"original_max_position_embeddings", "4096"}));
    CHECK(says("original_max_position_embeddings") && says("4096") && says("8192"));
    CHECK(LLAMA({"rope_scaling", LLAMA3("type")}, {"rope_parameters", LLAMA3("rope_type")}));
    CHECK(says("differ"));
    /* two spellings of the type: version 4 takes the older one, version 5 the other */
    CHECK(!LLAMA({"rope_scaling", LLAMA3("type\": \"llama3\", \"rope_type")}));
    CHECK(m->rope_factor == 8);
    CHECK(!LLAMA({"rope_scaling", LLAMA3("type\": null, \"rope_type")}) && m->rope_factor == 8);
    CHECK(LLAMA({"rope_scaling", LLAMA3("type\": \"default\", \"rope_type")}));
    CHECK(says("rope_scaling") && says("the rope_type \"llama3\"") && says("type \"default\""));
    CHECK(LLAMA({"rope_parameters", LLAMA3("rope_type\": \"default\", \"type")}));
    CHECK(says("rope_parameters") && says("the rope_type \"default\""));
    /* version 4 does not see a base in rope_scaling, nor some of it a mistral's rope_scaling */
    static const char base[] = "{\"rope_type\": \"default\", \"rope_theta\": 3e5}";
    CHECK(LLAMA({"rope_theta", NULL}, {"rope_scaling", base}) && says("300000"));
    CHECK(says("\"rope_theta\"") && says("missing beside it"));
    CHECK(!LLAMA({"rope_theta", "3e5"}, {"rope_scaling", base}) && m->rope_theta == 3e5);
    CHECK(!LLAMA({"model_type", "\"mistral\""}, {"rope_scaling", "{\"type\": \"default\"}"}));
    CHECK(LLAMA({"model_type", "\"mistral\""}, {"rope_scaling", LLAMA3("type")}));
    CHECK(says("\"rope_scaling\" of a mistral"));
    CHECK(!LLAMA({"model_type", "\"mistral\""}, {"rope_parameters", LLAMA3("rope_type")}));
    static const char *const types[] = {"linear", "dynamic", "yarn", "longrope", "su", "mrope",
                                        "proportional"};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        char text[80];
        snprintf(text, sizeof text, "{\"rope_type\": \"%s\", \"factor\": 2.0}", types[i]);
        CHECK(LLAMA({"rope_scaling", text}) == ZINF_BAD_INPUT && says(types[i]));
        CHECK(LLAMA({"rope_parameters", text}) == ZINF_BAD_INPUT && says(types[i]));
    }
}

static void notes_name_dropout_and_what_is_not_known(void)
{
    CHECK(!GPT2({"attn_pdrop", "0.1"}, {"embd_pdrop", "0"}, {"flux", "1"}, {"nothing", "null"}));
    CHECK(strstr(config.notes, "without dropout") && strstr(config.notes, "attn_pdrop 0.1"));
    CHECK(!strstr(config.notes, "embd_pdrop") && !strstr(config.notes, "nothing"));
    CHECK(strstr(config.notes, "not used: flux"));
    CHECK(GPT2({"attn_pdrop", "2"}) == ZINF_BAD_INPUT && says("attn_pdrop"));
}

/* ---- what is refused ---- */

static void what_would_change_the_result_is_refused_by_name(void)
{
    static const struct {
        bool llama;
        pair change;
        const char *allowed;
    } cases[] = {
        {false, {"activation_function", "\"relu\""}, "gelu_new"},
        {false, {"activation_function", "\"gelu\""}, "gelu_new"},
        {false, {"layer_norm_epsilon", "1e-6"}, "1e-05"},
        {false, {"scale_attn_weights", "false"}, "true"},
        {false, {"scale_attn_by_inverse_layer_idx", "true"}, "false"},
        {false, {"reorder_and_upcast_attn", "true"}, "false"},
        {false, {"tie_word_embeddings", "false"}, "true"},
        {false, {"add_cross_attention", "true"}, "false"},
        {true, {"hidden_act", "\"gelu\""}, "silu"},
        {true, {"attention_bias", "true"}, "false"},
        {true, {"mlp_bias", "true"}, "false"},
        {true, {"partial_rotary_factor", "0.5"}, "1"},
        {true, {"layer_types", "[\"full_attention\", \"chunked_attention\"]"}, "full_attention"},
        {true, {"quantization_config", "{\"bits\": 4}"}, "null"},
        {true, {"num_local_experts", "8"}, "0"},
        {true, {"rope_interleaved", "true"}, "false"},
        {true, {"model_type", "\"gemma\""}, "mistral"},
        {true, {"hidden_act", "\"relu\""}, "silu"},
        {true, {"compression_config", "{\"format\": \"dense\"}"}, "null"},
        {true, {"per_layer_config", "{\"1\": {\"hidden_act\": \"gelu\"}}"}, "{}"},
        {true, {"torchscript", "true"}, "false"},
        {true, {"is_encoder_decoder", "true"}, "false"},
        {true, {"num_experts", "4"}, "0"},
        {true, {"is_causal", "false"}, "true"},
        {false, {"is_causal", "0"}, "true"},
        {false, {"dtype", "\"float8_e4m3fn\""}, "bfloat16"},
        {true, {"torch_dtype", "5"}, "bfloat16"},
        {true, {"loss_type", "\"ForMaskedLM\""}, "ForCausalLM"},
        {true, {"text_config", "{\"hidden_size\": 64}"}, "{}"},
        {true, {"use_bidirectional_attention", "true"}, "false"},
        {true, {"attention_chunk_size", "4"}, "null"},
        {true, {"final_logit_softcapping", "30.0"}, "null"},
        {true, {"query_pre_attn_scalar", "100"}, "null"},
        {true, {"logits_scaling", "8"}, "1"},
        {true, {"qkv_bias", "true"}, "false"},
        {true, {"no_rope_layers", "[0, 1, 1]"}, "[]"},
    };
    /* a value that is what they have anyway */
    static const pair neutral[] = {
        {"is_causal", "true"}, {"dtype", "\"bfloat16\""}, {"torch_dtype", "null"},
        {"loss_type", "\"ForCausalLM\""}, {"text_config", "{}"}, {"qk_norm", "false"},
        {"use_bidirectional_attention", "false"}, {"attention_chunk_size", "null"},
        {"embedding_multiplier", "1.0"}, {"residual_multiplier", "1"}, {"logit_scale", "null"},
        {"num_nextn_predict_layers", "0"}, {"final_logit_softcapping", "null"},
        {"quantization_config", "null"}, {"alibi", "false"}};
    static const pair neutral_of_llama[] = {
        {"qkv_bias", "false"}, {"hidden_activation", "\"silu\""}, {"rope_pct", "1.0"},
        {"no_rope_layers", "[]"}, {"partial_rotary_factor", "1.0"}, {"hidden_act", "\"swish\""}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const pair p = cases[i].change;
        CHECK((cases[i].llama ? LLAMA(p) : GPT2(p)) == ZINF_BAD_INPUT);
        CHECK(says(p.key) && says(cases[i].allowed) && says("small one/config.json"));
        if (!strcmp(p.key, "model_type"))
            continue;
        /* null is as good as false, which unties the head, and as none; as a number or a word it
         * is none that transformers computes with */
        static const char *const falsy[] = {"false", "0", "{}", "[]", "null", "full_attention",
                                            "bfloat16", "ForCausalLM"};
        bool is_fine = !strcmp(p.key, "logits_scaling");
        for (size_t k = 0; k < sizeof falsy / sizeof *falsy; k++)
            is_fine |= !strcmp(cases[i].allowed, falsy[k]);
        CHECK_MESSAGE(!(cases[i].llama ? LLAMA({p.key, "null"}) : GPT2({p.key, "null"})) ==
                      is_fine, "%s", p.key);
        CHECK(is_fine || (says(p.key) && says("is null")));
        CHECK(!GPT2({p.key, NULL}) || !strcmp(p.key, "model_type"));
    }
    for (size_t i = 0; i < sizeof neutral / sizeof *neutral; i++) {
        CHECK_MESSAGE(!GPT2(neutral[i]) && !*config.notes, "%s %s", err.text, neutral[i].key);
        CHECK_MESSAGE(!LLAMA(neutral[i]) && !*config.notes, "%s %s", err.text, neutral[i].key);
    }
    for (size_t i = 0; i < sizeof neutral_of_llama / sizeof *neutral_of_llama; i++)
        CHECK_MESSAGE(!LLAMA(neutral_of_llama[i]) && !*config.notes, "%s %s", err.text,
                      neutral_of_llama[i].key);
    CHECK(LLAMA({"rms_norm_eps", "null"}) && says("\"rms_norm_eps\" is null"));
    CHECK(LLAMA({"rope_theta", "null"}) && says("\"rope_theta\" is null"));
    CHECK(!LLAMA({"rope_theta", "null"}, {"rope_parameters", "{\"rope_theta\": 3e5}"}));
    CHECK(config.model.rope_theta == 3e5);
    CHECK(!LLAMA({"model_type", "\"qwen2\""}, {"qkv_bias", "true"}) && config.model.qkv_bias == 1);
}

/* Every field that transformers 4.45 and 5.24 write for the four families (to_dict of their
 * configurations), at a value that is not its default: where it is used, where it is refused, where
 * a note tells of it, where it changes nothing. */
static void every_field_of_transformers_has_a_verdict(void)
{
    enum { G = 1, L = 2, M = 4, Q = 8, R = L | M | Q, ALL = G | R };
    typedef enum verdict { USED, REFUSED, NOTED, NOTHING, UNKNOWN } verdict;
    static const char *const names[] = {"used", "refused", "noted", "nothing", "unknown"};
    static const char *const types[] = {"\"gpt2\"", "\"llama\"", "\"mistral\"", "\"qwen2\""};
    static const struct {
        int families;
        const char *key, *value;
        verdict expected;
    } cases[] = {
        {ALL, "vocab_size", "301", USED}, {ALL, "model_type", "\"opt\"", REFUSED},
        {G, "n_positions", "65", USED}, {G, "n_embd", "96", USED}, {G, "n_layer", "5", USED},
        {G, "n_head", "2", USED}, {G, "n_inner", "7", USED},
        {G, "activation_function", "\"relu\"", REFUSED},
        {G, "resid_pdrop", "0.2", NOTED}, {G, "embd_pdrop", "0.2", NOTED},
        {G, "attn_pdrop", "0.2", NOTED}, {G, "layer_norm_epsilon", "1e-6", REFUSED},
        {G, "summary_type", "\"mean\"", NOTHING}, {G, "summary_use_proj", "false", NOTHING},
        {G, "summary_activation", "\"tanh\"", NOTHING},
        {G, "summary_proj_to_labels", "false", NOTHING},
        {G, "summary_first_dropout", "0.2", NOTHING}, {G, "scale_attn_weights", "false", REFUSED},
        {G, "scale_attn_by_inverse_layer_idx", "true", REFUSED},
        {G, "reorder_and_upcast_attn", "true", REFUSED},
        {ALL, "add_cross_attention", "true", REFUSED},
        {G, "tie_word_embeddings", "false", REFUSED}, {R, "tie_word_embeddings", "true", USED},
        /* to transformers other names of n_embd, n_layer, n_head and n_positions */
        {G, "hidden_size", "96", REFUSED}, {G, "num_hidden_layers", "5", REFUSED},
        {G, "num_attention_heads", "2", REFUSED}, {G, "max_position_embeddings", "65", REFUSED},
        {G, "hidden_size", "48", NOTHING},
        {R, "hidden_size", "96", USED}, {R, "intermediate_size", "97", USED},
        {R, "num_hidden_layers", "5", USED}, {R, "num_attention_heads", "12", USED},
        {R, "num_key_value_heads", "3", USED}, {R, "head_dim", "18", USED},
        {R, "max_position_embeddings", "63", USED}, {R, "rms_norm_eps", "1e-3", USED},
        {R, "hidden_act", "\"gelu\"", REFUSED}, {R, "attention_bias", "true", REFUSED},
        {R, "mlp_bias", "true", REFUSED}, {R, "attention_dropout", "0.5", NOTED},
        {R, "rope_theta", "5e5", USED}, {L | Q, "rope_scaling", LLAMA3("rope_type"), USED},
        {M, "rope_scaling", LLAMA3("rope_type"), REFUSED},
        {R, "rope_parameters", LLAMA3("rope_type"), USED},
        {R, "rope_scaling", "{\"rope_type\": \"yarn\", \"factor\": 4.0}", REFUSED},
        {R, "partial_rotary_factor", "0.5", REFUSED},
        {R, "original_max_position_embeddings", "32", NOTHING}, /* of llama3's scaling only */
        {R, "sliding_window", "32", USED}, {R, "use_sliding_window", "true", USED},
        {R, "layer_types", "[\"full_attention\", \"conv\", \"full_attention\"]", REFUSED},
        {R, "max_window_layers", "1", NOTHING}, {L, "pretraining_tp", "2", NOTHING},
        {ALL, "initializer_range", "0.5", NOTED}, {R, "pad_token_id", "7", NOTED},
        {G, "pad_token_id", "7", NOTHING}, {ALL, "bos_token_id", "7", NOTHING},
        {ALL, "eos_token_id", "[7, 8]", NOTHING}, {ALL, "use_cache", "false", NOTHING},
        {ALL, "torch_dtype", "\"float16\"", NOTHING}, {ALL, "dtype", "\"float16\"", NOTHING},
        {ALL, "quantization_config", "{\"bits\": 8}", REFUSED},
        {ALL, "compression_config", "{}", REFUSED},
        {ALL, "per_layer_config", "{\"0\": {}}", REFUSED},
        {ALL, "pruned_heads", "{\"1\": [0]}", REFUSED}, {ALL, "torchscript", "true", REFUSED},
        {ALL, "is_encoder_decoder", "true", REFUSED}, {ALL, "auto_map", "{\"A\": \"b\"}", NOTED},
        {ALL, "architectures", "[\"X\"]", NOTHING}, {ALL, "transformers_version", "\"9\"", NOTHING},
        {ALL, "_name_or_path", "\"a\"", NOTHING}, {ALL, "output_hidden_states", "true", NOTHING},
        {ALL, "output_attentions", "true", NOTHING}, {ALL, "return_dict", "false", NOTHING},
        {ALL, "chunk_size_feed_forward", "4", NOTHING}, {ALL, "is_decoder", "true", NOTHING},
        {ALL, "cross_attention_hidden_size", "4", NOTHING},
        {ALL, "tie_encoder_decoder", "true", NOTHING}, {ALL, "use_bfloat16", "true", NOTHING},
        {ALL, "tf_legacy_loss", "true", NOTHING}, {ALL, "finetuning_task", "\"a\"", NOTHING},
        {ALL, "id2label", "{\"0\": \"a\"}", NOTHING}, {ALL, "label2id", "{\"a\": 0}", NOTHING},
        {ALL, "problem_type", "\"regression\"", NOTHING}, {ALL, "num_labels", "3", NOTHING},
        {ALL, "tokenizer_class", "\"A\"", NOTHING}, {ALL, "prefix", "\"a\"", NOTHING},
        {ALL, "sep_token_id", "1", NOTHING}, {ALL, "decoder_start_token_id", "1", NOTHING},
        {ALL, "task_specific_params", "{}", NOTHING}, {ALL, "max_length", "9", NOTHING},
        {ALL, "temperature", "0.5", NOTHING}, {ALL, "tie_last_hidden_states", "true", NOTHING},
        {ALL, "experts_implementation", "\"eager\"", NOTHING},
        /* other families' */
        {G, "rope_theta", "5e5", UNKNOWN}, {G, "head_dim", "13", UNKNOWN},
        {G, "rms_norm_eps", "1e-3", UNKNOWN}, {G, "num_key_value_heads", "1", UNKNOWN},
        {R, "n_embd", "96", UNKNOWN}, {R, "activation_function", "\"relu\"", UNKNOWN},
        {ALL, "flux", "12", UNKNOWN},
        {ALL, "is_causal", "false", REFUSED}, {ALL, "is_causal", "null", REFUSED},
        {ALL, "text_config", "{\"a\": 1}", REFUSED}, {ALL, "decoder", "{\"a\": 1}", REFUSED},
        {ALL, "generator", "{\"a\": 1}", REFUSED}, {ALL, "loss_type", "\"ForMaskedLM\"", REFUSED},
        {ALL, "dtype", "\"float64\"", REFUSED}, {ALL, "torch_dtype", "\"auto\"", REFUSED},
        {ALL, "use_bidirectional_attention", "true", REFUSED},
        {ALL, "attention_chunk_size", "4", REFUSED},
        {ALL, "attn_temperature_tuning", "true", REFUSED}, {ALL, "use_logn_attn", "true", REFUSED},
        {ALL, "alibi", "true", REFUSED}, {ALL, "use_parallel_residual", "true", REFUSED},
        {ALL, "parallel_attn", "true", REFUSED}, {ALL, "attn_logit_softcapping", "50.0", REFUSED},
        {ALL, "final_logit_softcapping", "30.0", REFUSED}, {ALL, "clip_qkv", "8", REFUSED},
        {ALL, "query_pre_attn_scalar", "100", REFUSED},
        {ALL, "attention_multiplier", "0.1", REFUSED},
        {ALL, "embedding_multiplier", "12", REFUSED}, {ALL, "residual_multiplier", "0.2", REFUSED},
        {ALL, "lm_head_multiplier", "0.5", REFUSED}, {ALL, "logits_scaling", "8", REFUSED},
        {ALL, "logit_scale", "0.5", REFUSED}, {ALL, "qk_norm", "true", REFUSED},
        {ALL, "use_qk_norm", "true", REFUSED}, {ALL, "qk_layernorm", "true", REFUSED},
        {ALL, "num_nextn_predict_layers", "1", REFUSED}, {ALL, "num_mtp_layers", "1", REFUSED},
        {R, "use_bias", "true", REFUSED}, {R, "hidden_activation", "\"gelu\"", REFUSED},
        {R, "rotary_pct", "0.5", REFUSED}, {R, "rope_pct", "0.25", REFUSED},
        {R, "use_mrope", "true", REFUSED}, {R, "use_dynamic_ntk", "true", REFUSED},
        {R, "no_rope_layers", "[1, 1, 0]", REFUSED}, {R, "no_rope_layer_interval", "4", REFUSED},
        {L | M, "qkv_bias", "true", REFUSED}, {L | M, "use_qkv_bias", "true", REFUSED},
        {L | M, "bias", "true", REFUSED},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int f = 0; f < 4; f++) {
            if (!(cases[i].families >> f & 1))
                continue;
            const pair change = {cases[i].key, cases[i].value};
            const bool type = !strcmp(change.key, "model_type");
            CHECK_MESSAGE(!(f ? LLAMA({"model_type", types[f]}) : GPT2({"n_ctx", "64"})), "%s",
                          err.text);
            const zinf_hf_config before = config;
            CHECK(!*before.notes);
            const zinf_status status = f == 0 ? GPT2(change) : type ? LLAMA(change)
                                              : LLAMA({"model_type", types[f]}, change);
            const bool named = strstr(status ? err.text : config.notes, change.key);
            const bool changed = !status && (memcmp(&before.model, &config.model,
                                                    sizeof config.model) ||
                                             before.window != config.window);
            const verdict found = status                                      ? REFUSED
                                  : strstr(config.notes, "not known")         ? UNKNOWN
                                  : changed                                   ? USED
                                  : *config.notes                             ? NOTED
                                                                              : NOTHING;
            /* a window counts where the family has one */
            const bool idle = (f == 3 && !strcmp(change.key, "sliding_window")) ||
                              (f != 3 && !strcmp(change.key, "use_sliding_window"));
            CHECK_MESSAGE(found == (idle ? NOTHING : cases[i].expected), "%s of %s: %s, %s",
                          change.key, types[f], names[found], err.text);
            CHECK_MESSAGE(found == USED || found == NOTHING || named, "%s: %s%s", change.key,
                          err.text, config.notes);
        }
}

static void numbers_are_typed_and_ranged(void)
{
    static const char *const bad[] = {"0", "-1", "1.5", "\"2\"", "1e30", "true", "[]", "{}",
                                      "99999999999999999999999999", "-99999999999999999999"};
    static const char *const counts[] = {"num_hidden_layers", "hidden_size", "intermediate_size",
                                         "num_attention_heads", "num_key_value_heads", "head_dim",
                                         "vocab_size", "max_position_embeddings"};
    static const char *const reals[] = {"rms_norm_eps", "rope_theta"};
    static const char *const bad_reals[] = {"0", "-1", "\"1e-5\"", "1e300",
                                            "true", "[]"};

    for (size_t k = 0; k < sizeof counts / sizeof *counts; k++)
        for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
            CHECK(LLAMA({counts[k], bad[i]}) == ZINF_BAD_INPUT);
            CHECK(says(counts[k]) && says("expected"));
        }
    for (size_t k = 0; k < sizeof reals / sizeof *reals; k++)
        for (size_t i = 0; i < sizeof bad_reals / sizeof *bad_reals; i++)
            CHECK(LLAMA({reals[k], bad_reals[i]}) == ZINF_BAD_INPUT && says(reals[k]));
    /* json-c holds it as the largest number */
    CHECK(LLAMA({"vocab_size", "99999999999999999999999999"}));
    CHECK(says("\"vocab_size\" is 18446744073709551615 or more;"));
    CHECK(LLAMA({"vocab_size", "-99999999999999999999"}));
    CHECK(says("is -9223372036854775808 or less"));
    CHECK(LLAMA({"tie_word_embeddings", "1"}) && says("tie_word_embeddings") && says("true"));
    for (size_t i = 0; i < 9; i++) {
        CHECK(LLAMA({llama[i].key, NULL}) != ZINF_OK || i == 4 || i == 8);
        CHECK(!err.status || (says(llama[i].key) && says("missing")));
    }
    CHECK(LLAMA({"head_dim", "15"}) && says("even"));
    CHECK(LLAMA({"head_dim", NULL}, {"num_attention_heads", "7"}) && says("not a multiple"));
    CHECK(LLAMA({"num_attention_heads", "7"}) && says("num_key_value_heads"));
    CHECK(GPT2({"n_head", "5"}) && says("n_embd") && says("not a multiple"));
}

/* ---- the parse ---- */

static void a_nul_hidden_in_an_escape_is_refused(void)
{
    /* json-c's names end there: "model_type\0x" would be "model_type" */
    CHECK(parse("{\"model_type\\u0000x\": \"gpt2\"}") == ZINF_BAD_INPUT && says("NUL"));
    CHECK(parse("{\"model_type\": \"gpt2\\u0000x\"}") == ZINF_BAD_INPUT && says("at byte 20"));
    CHECK(parse("{\"a\": [\"\\\\\\u0000\"]}") == ZINF_BAD_INPUT && says("NUL"));
    CHECK(parse("{\"a\": \"\\\\u0000 \\u0001\"}") && says("model_type")); /* no escape of it */
}

static void keys_that_come_twice_are_refused(void)
{
    CHECK(parse("{\"model_type\": \"gpt2\", \"a\": {\"b\": 1, \"c\": [{\"b\": 1}], \"b\": 2}}"));
    CHECK(err.status == ZINF_BAD_INPUT && says("the key \"b\" twice"));
    CHECK(parse("{\"x\": 1, \"\\u0078\": 2}") && says("twice"));
    CHECK(parse("{\"x\": 1, \"x\\u0000y\": 2}") == ZINF_BAD_INPUT);
    /* equal keys of different objects, and colons in texts, are no such thing */
    CHECK(parse("{\"a\": {\"b\": \"\\\"b\\\": {:\"}, \"b\": [\"a:\", {\"b\": {}}, {\"b\": 0}]}"));
    CHECK(says("model_type"));
}

static void what_is_no_json_object_is_refused(void)
{
    static const char *const texts[] = {
        " ", "{", "[]", "7", "null", "{\"a\": 1,}", "{\"a\": 1} x", "{'a': 1}", "{\"a\": 01}",
        "{\"a\" 1}", "{\"a\": \"\xff\"}", "{\"a\": \"\n\"}", "{} {}",
        "{\"a\": nan}", "{\"a\": NaN}", "{\"a\": -Infinity}", "{'a\"': 1}", "{\"a\": \"b", "\"\\",
        "{\"a\": 1 /* b */}", "{\"a\": .5}",
        "{\"a\":[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]}"};

    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        CHECK_MESSAGE(parse(texts[i]) == ZINF_BAD_INPUT, "%s", texts[i]);
        CHECK(says("not well-formed JSON") && says("small one/config.json"));
    }
    CHECK(parse("\xef\xbb\xbf{}") == ZINF_BAD_INPUT);
    CHECK(says("begins with a byte order mark") && says("small one/config.json"));
    memset(&err, 0, sizeof err);
    CHECK(zinf_hf_config_parse("c", "{}\0{}", 5, &config, &err) == ZINF_BAD_INPUT);
    CHECK(parse("") == ZINF_BAD_INPUT);
}

static void files_that_cannot_be_read_are_named(void)
{
    memset(&err, 0, sizeof err);
    CHECK(zinf_hf_config_read("/nonexistent/config.json", &config, &err) == ZINF_BAD_INPUT);
    CHECK(says("/nonexistent/config.json") && says("cannot be opened"));
    memset(&err, 0, sizeof err);
    CHECK(zinf_hf_config_read("/", &config, &err) == ZINF_BAD_INPUT && says("//config.json"));
    memset(&err, 0, sizeof err);
    CHECK(zinf_hf_config_read("/dev/zero", &config, &err) == ZINF_BAD_INPUT && says("regular"));
    CHECK(zinf_hf_config_is("/") && zinf_hf_config_is("x.json") && !zinf_hf_config_is("x.yaml"));
}

int main(void)
{
    RUN(gpt2_is_read);
    RUN(llama_is_read);
    RUN(qwen2_has_biases_without_a_key);
    RUN(a_window_bounds_the_sequences);
    RUN(rotary_positions_are_read_as_both_versions_write_them);
    RUN(notes_name_dropout_and_what_is_not_known);
    RUN(what_would_change_the_result_is_refused_by_name);
    RUN(every_field_of_transformers_has_a_verdict);
    RUN(numbers_are_typed_and_ranged);
    RUN(a_nul_hidden_in_an_escape_is_refused);
    RUN(keys_that_come_twice_are_refused);
    RUN(what_is_no_json_object_is_refused);
    RUN(files_that_cannot_be_read_are_named);
    return check_finish();
}
