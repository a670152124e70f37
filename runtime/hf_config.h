/* runtime/hf_config.h - a Hugging Face config.json as a model: gpt2, llama, mistral, qwen2.
 *
 * Every field that would change what the model computes is used, or refused by name if it asks for
 * something that is not built; fields that change nothing are known by name and passed over; what
 * is in no list is named in a note, so that nothing is ignored in silence.
 */
#ifndef ZINF_RUNTIME_HF_CONFIG_H
#define ZINF_RUNTIME_HF_CONFIG_H

#include <stdbool.h>
#include <stddef.h>

#include "runtime/error.h"
#include "runtime/plan.h"

typedef struct zinf_hf_config {
    zinf_model_info model; /* but n_params; what the family has not is 0, as in a plan */
    uint64_t window;       /* sequences may not be longer; 0: by no window */
    char notes[1000];      /* sentences for the user, "; " between; "" if there are none */
} zinf_hf_config;

/* name stands for the path in errors, and the folder it is in for the model's name. text[n] must
 * be readable (and is not read as text). */
zinf_status zinf_hf_config_parse(const char *name, const char *text, size_t n,
                                 zinf_hf_config *ret_config, zinf_error *err);

/* path: the file, or the directory that holds a config.json. */
zinf_status zinf_hf_config_read(const char *path, zinf_hf_config *ret_config, zinf_error *err);

/* The whole text of the file (at most 1 MiB), with a NUL behind it; free it. */
zinf_status zinf_hf_config_load(const char *path, char **ret_text, size_t *ret_n,
                                zinf_error *err);

/* A directory, or a name that ends in .json. */
bool zinf_hf_config_is(const char *path);

#endif
