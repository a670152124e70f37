/* runtime/hf_texts.c - the files of a Hugging Face directory that are not weights: config.json made
 * from the plan, or it and the tokenizer's files taken from another directory; see hf_internal.h.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/checkpoint_format.h"
#include "runtime/hf_config.h"
#include "runtime/hf_internal.h"
#include "runtime/json.h"

/* Copied from the directory that training began with, if they are there. */
static const char *const copied[] = {
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.json",
    "merges.txt", "tokenizer.model", "added_tokens.json", "generation_config.json",
    "chat_template.jinja", "chat_template.json"};
enum { N_COPIED = sizeof copied / sizeof *copied };

static zinf_status fail_on(const zinf_hf_place *to, const char *what, const char *name,
                           zinf_error *err)
{
    return zinf_fail(err, ZINF_MACHINE, "export: %s \"%s\" in \"%.300s\": %s", what, name,
                     to->directory, strerror(errno));
}

bool zinf_hf_is_text(const char *name)
{
    for (int i = 0; i < N_COPIED; i++)
        if (!strcmp(name, copied[i]))
            return true;
    return !strcmp(name, "config.json");
}

zinf_status zinf_hf_write_text(const zinf_hf_place *to, const char *name, json_object *object,
                               zinf_error *err)
{
    const char *text = json_object_to_json_string_ext(
        object, JSON_C_TO_STRING_PRETTY | JSON_C_TO_STRING_SPACED | JSON_C_TO_STRING_NOSLASHESCAPE);
    const bool fine = text && errno != ENOMEM; /* 0 when the object was begun */
    const int fd = openat(to->dir_fd, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);

    if (fd < 0)
        return fail_on(to, "creating", name, err);
    if (!fine)
        zinf_fail(err, ZINF_MACHINE, "export: out of memory");
    else if (!zinf_write_all(fd, text, strlen(text), 0, to->directory, name, err) &&
             !zinf_write_all(fd, "\n", 1, strlen(text), to->directory, name, err) && fsync(fd))
        fail_on(to, "syncing", name, err);
    if (close(fd))
        fail_on(to, "closing", name, err);
    return err->status;
}

static void add_text(json_object *o, const char *key, const char *text)
{
    zinf_json_add(o, key, json_object_new_string(text));
}

static void add_count(json_object *o, const char *key, uint64_t value)
{
    zinf_json_add(o, key, json_object_new_uint64(value));
}

static void add_real(json_object *o, const char *key, double value)
{
    char text[40];

    for (int digits = 1; digits <= 17; digits++) { /* the shortest that reads back the same */
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    if (!strpbrk(text, ".e"))
        strcat(text, ".0");
    zinf_json_add(o, key, json_object_new_double_s(value, text));
}

static void add_flag(json_object *o, const char *key, bool value)
{
    zinf_json_add(o, key, json_object_new_boolean(value));
}

/* What transformers needs to build the plan's model. */
static json_object *make_config(const zinf_model_info *m)
{
    const bool gpt2 = m->family[0] == 'g';
    const char *type = gpt2 ? "gpt2" : m->qkv_bias ? "qwen2" : "llama";
    errno = 0;
    json_object *c = json_object_new_object(), *names = json_object_new_array();

    zinf_json_append(names, json_object_new_string(gpt2 ? "GPT2LMHeadModel"
                                                        : m->qkv_bias ? "Qwen2ForCausalLM"
                                                                      : "LlamaForCausalLM"));
    zinf_json_add(c, "architectures", names);
    add_text(c, "model_type", type);
    add_count(c, "vocab_size", m->vocab);
    add_flag(c, "tie_word_embeddings", m->tied_embeddings);
    if (gpt2) {
        add_count(c, "n_positions", m->context);
        add_count(c, "n_embd", m->hidden);
        add_count(c, "n_layer", m->layers);
        add_count(c, "n_head", m->heads);
        add_count(c, "n_inner", m->ffn);
        add_text(c, "activation_function", "gelu_new");
        add_real(c, "layer_norm_epsilon", 1e-5);
        add_real(c, "resid_pdrop", 0);
        add_real(c, "embd_pdrop", 0);
        add_real(c, "attn_pdrop", 0);
        return c;
    }
    add_count(c, "max_position_embeddings", m->context);
    add_count(c, "hidden_size", m->hidden);
    add_count(c, "intermediate_size", m->ffn);
    add_count(c, "num_hidden_layers", m->layers);
    add_count(c, "num_attention_heads", m->heads);
    add_count(c, "num_key_value_heads", m->kv_heads);
    add_count(c, "head_dim", m->head_dim);
    add_text(c, "hidden_act", "silu");
    add_real(c, "rms_norm_eps", m->norm_eps);
    add_real(c, "rope_theta", m->rope_theta);
    if (m->rope_factor > 0) {
        json_object *scaling = json_object_new_object();
        add_text(scaling, "rope_type", "llama3");
        add_real(scaling, "factor", m->rope_factor);
        add_real(scaling, "low_freq_factor", m->rope_low_freq_factor);
        add_real(scaling, "high_freq_factor", m->rope_high_freq_factor);
        add_count(scaling, "original_max_position_embeddings", m->rope_original_context);
        zinf_json_add(c, "rope_scaling", scaling);
    }
    if (m->qkv_bias)
        add_flag(c, "use_sliding_window", false);
    else
        add_flag(c, "attention_bias", false);
    return c;
}

zinf_status zinf_hf_write_config(const zinf_hf_place *to, const zinf_plan *plan, const char *from,
                                 uint32_t dtype, zinf_error *err)
{
    json_object *config = NULL;
    char *path = NULL, *text = NULL, what[420];
    size_t n = 0;

    if (from) {
        if (asprintf(&path, "%s/config.json", from) < 0)
            return zinf_fail(err, ZINF_MACHINE, "export: out of memory");
        snprintf(what, sizeof what, "\"%.400s\"", path);
        if (!zinf_hf_config_load(path, &text, &n, err))
            zinf_json_parse(what, text, n, 16, &config, err);
        free(text);
        free(path);
        if (err->status)
            return err->status;
    } else {
        config = make_config(&plan->model);
    }
    /* by the names that the file has, else by the one that all versions read */
    const char *word = dtype == ZINF_F32 ? "float32" : dtype == ZINF_BF16 ? "bfloat16" : "float16";
    const bool newer = json_object_object_get_ex(config, "dtype", NULL);
    if (dtype != ZINF_N_DTYPES && newer)
        add_text(config, "dtype", word);
    if (dtype != ZINF_N_DTYPES &&
        (!newer || json_object_object_get_ex(config, "torch_dtype", NULL)))
        add_text(config, "torch_dtype", word);
    zinf_hf_write_text(to, "config.json", config, err);
    json_object_put(config);
    return err->status;
}

/* One of the directory that training began with; -1 if it is not there, or after an error. */
static int open_copied(const char *from, const char *name, uint64_t *ret_bytes, zinf_error *err)
{
    char *path = NULL;
    struct stat st;

    if (asprintf(&path, "%s/%s", from, name) < 0) {
        zinf_fail(err, ZINF_MACHINE, "export: out of memory");
        return -1;
    }
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    free(path);
    if (fd < 0 && errno == ENOENT)
        return -1;
    if (fd >= 0 && !fstat(fd, &st) && S_ISREG(st.st_mode)) {
        *ret_bytes = (uint64_t)st.st_size;
        return fd;
    }
    zinf_fail(err, ZINF_BAD_INPUT, "export: \"%s\" in \"%.300s\" cannot be copied: %s", name,
              from, fd < 0 ? strerror(errno) : "not a regular file");
    if (fd >= 0)
        close(fd);
    return -1;
}

static zinf_status copy_file(const zinf_hf_place *to, const char *from, const char *name,
                             char *chunk, zinf_error *err)
{
    uint64_t at = 0, bytes = 0;
    const int in = open_copied(from, name, &bytes, err);

    if (in < 0)
        return err->status;
    const int out = openat(to->dir_fd, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (out < 0)
        fail_on(to, "creating", name, err);
    while (!err->status && at < bytes) {
        const uint64_t left = bytes - at;
        const uint64_t some = left < ZINF_HF_CHUNK ? left : ZINF_HF_CHUNK;
        if (!zinf_read_all(in, chunk, some, at, from, name, err))
            zinf_write_all(out, chunk, some, at, to->directory, name, err);
        at += some;
    }
    if (!err->status && fsync(out))
        fail_on(to, "syncing", name, err);
    if (out >= 0)
        close(out);
    close(in);
    return err->status;
}

zinf_status zinf_hf_copy_texts(const zinf_hf_place *to, const char *from, char *chunk,
                               zinf_error *err)
{
    for (int i = 0; i < N_COPIED && !err->status; i++)
        copy_file(to, from, copied[i], chunk, err);
    return err->status;
}
