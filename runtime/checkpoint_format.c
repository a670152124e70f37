/* runtime/checkpoint_format.c - see checkpoint_format.h. */
#include "runtime/checkpoint_format.h"

#include <errno.h>
#include <float.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

const char *const zinf_state_names[ZINF_N_STATES] = {"master", "m", "v"};
const char *const zinf_state_files[ZINF_N_STATES] = {
    "master.safetensors", "m.safetensors", "v.safetensors"};

#define FIELD(name) {#name, offsetof(zinf_model_info, name)}
const zinf_model_field zinf_model_fields[] = {
    FIELD(layers), FIELD(hidden), FIELD(heads), FIELD(kv_heads), FIELD(head_dim), FIELD(ffn),
    FIELD(vocab), FIELD(context), FIELD(tied_embeddings), FIELD(n_params), FIELD(qkv_bias),
    FIELD(rope_original_context)};
const unsigned zinf_n_model_fields = sizeof zinf_model_fields / sizeof *zinf_model_fields;
const zinf_model_field zinf_model_reals[] = {
    FIELD(norm_eps), FIELD(rope_theta), FIELD(rope_factor), FIELD(rope_low_freq_factor),
    FIELD(rope_high_freq_factor)};
const unsigned zinf_n_model_reals = sizeof zinf_model_reals / sizeof *zinf_model_reals;

uint64_t zinf_model_field_value(const zinf_model_info *model, unsigned field)
{
    uint64_t value;
    memcpy(&value, (const char *)model + zinf_model_fields[field].offset, sizeof value);
    return value;
}

double zinf_model_real_value(const zinf_model_info *model, unsigned field)
{
    double value;
    memcpy(&value, (const char *)model + zinf_model_reals[field].offset, sizeof value);
    return value;
}

uint64_t zinf_tensor_elems(const zinf_tensor *tensor)
{
    return tensor->n_dims == 1 ? tensor->rows : tensor->rows * tensor->cols;
}

zinf_status zinf_checkpoint_layout(const zinf_plan *plan, uint64_t *ret_offsets, zinf_error *err)
{
    uint64_t at = 0;

    for (uint32_t i = 0; i < plan->n_tensors; i++) {
        const zinf_tensor *t = &plan->tensors[i];
        uint64_t bytes;
        ret_offsets[i] = at;
        if (__builtin_mul_overflow(t->rows, t->n_dims == 1 ? 1 : t->cols, &bytes) ||
            __builtin_mul_overflow(bytes, sizeof(float), &bytes) ||
            __builtin_add_overflow(at, bytes, &at) || at > INT64_MAX / 4)
            return zinf_fail(err, ZINF_BAD_INPUT, "checkpoint: tensor \"%s\" of %" PRIu64 " x %"
                             PRIu64 " elements exceeds the size of a file", t->name, t->rows,
                             t->cols);
    }
    ret_offsets[plan->n_tensors] = at;
    return ZINF_OK;
}

void zinf_json_add(json_object *object, const char *key, json_object *value)
{
    if (!object || json_object_object_add(object, key, value))
        json_object_put(value);
}

void zinf_json_append(json_object *array, json_object *value)
{
    if (!array || json_object_array_add(array, value))
        json_object_put(value);
}

json_object *zinf_tensor_shape(const zinf_tensor *tensor)
{
    json_object *shape = json_object_new_array();

    zinf_json_append(shape, json_object_new_uint64(tensor->rows));
    if (tensor->n_dims != 1)
        zinf_json_append(shape, json_object_new_uint64(tensor->cols));
    size_t n = shape ? json_object_array_length(shape) : 0;
    for (size_t i = 0; i < n; i++)
        if (!json_object_array_get_idx(shape, i))
            n = 0;
    if (n == tensor->n_dims)
        return shape;
    json_object_put(shape);
    return NULL;
}

uint64_t zinf_state_fault(zinf_state_array array, const float *values, uint64_t n)
{
    const float least = array == ZINF_STATE_V ? 0 : -FLT_MAX;

    for (uint64_t i = 0; i < n; i++)
        if (!(values[i] >= least && values[i] <= FLT_MAX))
            return i;
    return n;
}

void zinf_sum_text(uint64_t sum, char ret_text[ZINF_SUM_DIGITS + 1])
{
    snprintf(ret_text, ZINF_SUM_DIGITS + 1, "%016" PRIx64, sum);
}

zinf_status zinf_write_all(int fd, const void *bytes, uint64_t n, uint64_t offset,
                           const char *directory, const char *name, zinf_error *err)
{
    uint64_t done = 0;

    while (done < n) {
        ssize_t moved = pwrite(fd, (const char *)bytes + done, n - done, (off_t)(offset + done));
        if (moved < 0 && errno == EINTR)
            continue;
        if (moved <= 0)
            return zinf_fail(err, ZINF_MACHINE, "writing \"%s\" in \"%s\" at offset %"
                             PRIu64 ", length %" PRIu64 " bytes: %s", name, directory,
                             offset + done, n - done,
                             moved ? strerror(errno) : "nothing was written");
        done += (uint64_t)moved;
    }
    return ZINF_OK;
}

zinf_status zinf_read_all(int fd, void *ret_bytes, uint64_t n, uint64_t offset,
                          const char *directory, const char *name, zinf_error *err)
{
    uint64_t done = 0;

    while (done < n) {
        ssize_t moved = pread(fd, (char *)ret_bytes + done, n - done, (off_t)(offset + done));
        if (moved < 0 && errno == EINTR)
            continue;
        if (moved <= 0)
            return zinf_fail(err, moved ? ZINF_MACHINE : ZINF_BAD_INPUT, "reading "
                             "\"%s\" in \"%s\" at offset %" PRIu64 ", length %" PRIu64
                             " bytes: %s", name, directory, offset + done, n - done,
                             moved ? strerror(errno) : "the file ends there, it is truncated");
        done += (uint64_t)moved;
    }
    return ZINF_OK;
}
