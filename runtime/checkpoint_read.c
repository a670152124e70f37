/* runtime/checkpoint_read.c - the reader of checkpoints; see checkpoint.h and
 * checkpoint_format.h. Opening reads the manifest and the headers, getting each byte of the states
 * once: what is checked is what was handed out.
 */
#include "runtime/checkpoint_format.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <xxhash.h>

#include "runtime/element_sum.h"
#include "runtime/json.h"
#include "runtime/safetensors.h"

/* JSON in memory is some 20 times its text: a text may be as long as this model can need. */
static uint64_t max_json_bytes(const zinf_plan *plan)
{
    return ((uint64_t)1 << 16) + (uint64_t)plan->n_tensors * 1024;
}

/* An element that no training state may have. */
typedef struct state_fault {
    bool found;
    uint32_t tensor;
    zinf_state_array array;
    uint64_t element;
} state_fault;

struct zinf_checkpoint_reader {
    const zinf_plan *plan;
    char *directory; /* the checkpoint's own */
    int dir_fd, fds[ZINF_N_STATES];
    uint64_t *at[ZINF_N_STATES];   /* [n_tensors]: byte offset in its file */
    uint64_t *sums[ZINF_N_STATES]; /* [n_tensors]: as the manifest has them */
    uint64_t *taken;               /* [N_STATES][n_tensors]: of what was got */
    state_fault fault;             /* the first that was got */
    uint64_t identity;             /* hash of the manifest, which has every checksum */
};

static zinf_status refuse(const zinf_checkpoint_reader *r, zinf_error *err, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Something is wrong with the files' contents. */
static zinf_status refuse(const zinf_checkpoint_reader *r, zinf_error *err, const char *format, ...)
{
    char text[700];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return zinf_fail(err, ZINF_BAD_INPUT, "checkpoint \"%s\": %s", r->directory, text);
}

/* ---- finding it ---- */

static zinf_status read_latest(int dir_fd, const char *directory,
                               char ret_name[ZINF_STEP_NAME], zinf_error *err)
{
    const int fd = openat(dir_fd, ZINF_LATEST_NAME, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    const ssize_t n = fd < 0 ? -1 : read(fd, ret_name, ZINF_STEP_NAME - 1);

    if (n < 0)
        zinf_fail(err, ZINF_BAD_INPUT, "checkpoint: reading \"%s\" in \"%s\": %s",
                  ZINF_LATEST_NAME, directory, strerror(errno));
    if (fd >= 0)
        close(fd);
    if (n < 0)
        return err->status;
    ret_name[n] = 0;
    const size_t digits = strncmp(ret_name, "step-", 5) ? 0 : strspn(ret_name + 5, "0123456789");
    if (!digits || strcmp(ret_name + 5 + digits, "\n"))
        return zinf_fail(err, ZINF_BAD_INPUT, "checkpoint: \"%s\" in \"%s\" does not name a step "
                         "(\"step-<n>\" and a line end): it is damaged; name the directory of a "
                         "step instead", ZINF_LATEST_NAME, directory);
    ret_name[5 + digits] = 0;
    return ZINF_OK;
}

zinf_status zinf_checkpoint_last(int dir_fd, const char *directory,
                                 char ret_name[ZINF_STEP_NAME], zinf_error *err)
{
    zinf_checkpoint_list found;

    if (zinf_checkpoint_look(dir_fd, directory, &found, err))
        return err->status;
    if (found.unpublished == UINT64_MAX &&
        (!faccessat(dir_fd, ZINF_LATEST_NAME, F_OK, AT_SYMLINK_NOFOLLOW) || errno != ENOENT))
        return read_latest(dir_fd, directory, ret_name, err);
    if (!found.n)
        return zinf_fail(err, ZINF_BAD_INPUT, "checkpoint: \"%s\" holds no checkpoint: neither "
                         "\"%s\" nor \"%s\" nor \"step-<n>\" is there", directory,
                         ZINF_LATEST_NAME, ZINF_MANIFEST_NAME);
    snprintf(ret_name, ZINF_STEP_NAME, "step-%" PRIu64,
             found.unpublished == UINT64_MAX ? found.last : found.unpublished);
    return ZINF_OK;
}

static zinf_status open_last(zinf_checkpoint_reader *r, zinf_error *err)
{
    char name[ZINF_STEP_NAME];

    if (zinf_checkpoint_last(r->dir_fd, r->directory, name, err))
        return err->status;
    const int fd = openat(r->dir_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return zinf_fail(err, ZINF_BAD_INPUT, "checkpoint: \"%s\" in \"%s\", which \"%s\" names, "
                         "cannot be opened: %s; name the directory of another step", name,
                         r->directory, ZINF_LATEST_NAME, strerror(errno));
    close(r->dir_fd);
    r->dir_fd = fd;
    char *joined;
    if (asprintf(&joined, "%s/%s", r->directory, name) < 0)
        return zinf_fail(err, ZINF_MACHINE, "checkpoint: out of memory");
    free(r->directory);
    r->directory = joined;
    return ZINF_OK;
}

static zinf_status find(zinf_checkpoint_reader *r, zinf_error *err)
{
    r->dir_fd = open(r->directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (r->dir_fd < 0 && errno == ENOENT)
        return zinf_fail(err, ZINF_BAD_INPUT, "checkpoint: directory \"%s\" does not exist",
                         r->directory);
    if (r->dir_fd < 0)
        return zinf_fail(err, ZINF_BAD_INPUT, "checkpoint: directory \"%s\": %s", r->directory,
                         strerror(errno));
    return faccessat(r->dir_fd, ZINF_MANIFEST_NAME, F_OK, 0) ? open_last(r, err) : ZINF_OK;
}

static zinf_status open_file(const zinf_checkpoint_reader *r, const char *name, int *ret_fd,
                             uint64_t *ret_bytes, zinf_error *err)
{
    struct stat st;
    int fd = openat(r->dir_fd, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

    if (fd < 0 || fstat(fd, &st) || !S_ISREG(st.st_mode)) {
        refuse(r, err, "\"%s\" cannot be opened: %s", name,
               fd < 0 ? strerror(errno) : "not a regular file");
        if (fd >= 0)
            close(fd);
        return err->status;
    }
    *ret_fd = fd;
    *ret_bytes = (uint64_t)st.st_size;
    return ZINF_OK;
}

/* ---- JSON ---- */

/* Free with json_object_put. */
static zinf_status parse(const zinf_checkpoint_reader *r, const char *name, const char *text,
                         uint64_t n, json_object **ret_object, zinf_error *err)
{
    char what[500];

    snprintf(what, sizeof what, "checkpoint \"%.400s\": \"%s\"", r->directory, name);
    return zinf_json_parse(what, text, n, 8, ret_object, err);
}

/* The member of that type, or an error. */
static json_object *member(const zinf_checkpoint_reader *r, json_object *object, const char *name,
                           json_type type, const char *where, zinf_error *err)
{
    json_object *value;

    if (json_object_object_get_ex(object, name, &value) && json_object_is_type(value, type))
        return value;
    refuse(r, err, "\"%s\" of %s is missing or no %s", name, where, json_type_to_name(type));
    return NULL;
}

static zinf_status get_uint(const zinf_checkpoint_reader *r, json_object *object, const char *name,
                            const char *where, uint64_t *ret_value, zinf_error *err)
{
    json_object *value = member(r, object, name, json_type_int, where, err);

    if (!value)
        return err->status;
    if (json_object_get_int64(value) < 0)
        return refuse(r, err, "\"%s\" of %s is negative", name, where);
    *ret_value = json_object_get_uint64(value);
    return ZINF_OK;
}

static zinf_status get_sum(const zinf_checkpoint_reader *r, json_object *object, const char *name,
                           const char *where, uint64_t *ret_sum, zinf_error *err)
{
    json_object *value = member(r, object, name, json_type_string, where, err);
    char again[ZINF_SUM_DIGITS + 1];

    if (!value)
        return err->status;
    const char *text = json_object_get_string(value);
    *ret_sum = strtoull(text, NULL, 16);
    zinf_sum_text(*ret_sum, again);
    if (strcmp(text, again))
        return refuse(r, err, "\"%s\" of %s is not 16 hex digits", name, where);
    return ZINF_OK;
}

/* ---- the manifest ---- */

static zinf_status check_text(const zinf_checkpoint_reader *r, json_object *object,
                              const char *name, const char *expected, const char *what,
                              const char *advice, zinf_error *err)
{
    json_object *value = member(r, object, name, json_type_string, what, err);

    if (!value)
        return err->status;
    if (strcmp(json_object_get_string(value), expected))
        return refuse(r, err, "%s has %s \"%.100s\", expected \"%s\"%s", what, name,
                      json_object_get_string(value), expected, advice);
    return ZINF_OK;
}

static zinf_status check_model(const zinf_checkpoint_reader *r, json_object *manifest,
                               zinf_error *err)
{
    const zinf_model_info *model = &r->plan->model;
    json_object *found = member(r, manifest, "model", json_type_object, "the manifest", err);

    if (!found ||
        check_text(r, found, "family", model->family, "its model", ": another model", err))
        return err->status;
    for (unsigned i = 0; i < zinf_n_model_fields; i++) {
        const char *name = zinf_model_fields[i].name;
        const uint64_t expected = zinf_model_field_value(model, i);
        uint64_t value;
        if (get_uint(r, found, name, "its model", &value, err))
            return err->status;
        if (value != expected)
            return refuse(r, err, "its model has %s %" PRIu64 ", the plan's model \"%s\" has %"
                          PRIu64 ": another model", name, value, model->name, expected);
    }
    for (unsigned i = 0; i < zinf_n_model_reals; i++) {
        const char *name = zinf_model_reals[i].name;
        json_object *value = member(r, found, name, json_type_string, "its model", err);
        char *end;
        if (!value)
            return err->status;
        const double real = strtod(json_object_get_string(value), &end);
        if (*end || end == json_object_get_string(value))
            return refuse(r, err, "\"%s\" of its model is \"%.40s\", no number", name,
                          json_object_get_string(value));
        if (real != zinf_model_real_value(model, i))
            return refuse(r, err, "its model has %s %g, the plan's model \"%s\" has %g: another "
                          "model", name, real, model->name, zinf_model_real_value(model, i));
    }
    return check_text(r, found, "name", model->name, "its model",
                      ": another model; if it was only renamed, set model.name back", err);
}

static zinf_status check_tensors(const zinf_checkpoint_reader *r, json_object *manifest,
                                 json_object **ret_tensors, zinf_error *err)
{
    json_object *tensors = member(r, manifest, "tensors", json_type_array, "the manifest", err);
    char where[ZINF_NAME_BYTES + 32];

    if (!tensors)
        return err->status;
    const size_t n = json_object_array_length(tensors);
    for (uint32_t i = 0; i < r->plan->n_tensors && i < n; i++) {
        const zinf_tensor *t = &r->plan->tensors[i];
        json_object *found = json_object_array_get_idx(tensors, i), *expected;
        snprintf(where, sizeof where, "tensor %" PRIu32, i);
        if (!json_object_is_type(found, json_type_object))
            return refuse(r, err, "%s is no object", where);
        if (check_text(r, found, "name", t->name, where, ": another model", err))
            return err->status;
        snprintf(where, sizeof where, "tensor \"%s\"", t->name);
        json_object *shape = member(r, found, "shape", json_type_array, where, err);
        if (!shape)
            return err->status;
        expected = zinf_tensor_shape(t);
        if (!expected)
            return zinf_fail(err, ZINF_MACHINE, "checkpoint: out of memory");
        if (!json_object_equal(shape, expected))
            refuse(r, err, "%s has shape %.100s, expected %s: another model", where,
                   json_object_to_json_string_ext(shape, JSON_C_TO_STRING_PLAIN),
                   json_object_to_json_string_ext(expected, JSON_C_TO_STRING_PLAIN));
        json_object_put(expected);
        if (err->status)
            return err->status;
    }
    if (n != r->plan->n_tensors)
        return refuse(r, err, "it has %zu tensors, the plan has %" PRIu32 ": another model", n,
                      r->plan->n_tensors);
    *ret_tensors = tensors;
    return ZINF_OK;
}

static zinf_status get_progress(const zinf_checkpoint_reader *r, json_object *manifest,
                                zinf_progress *ret_progress, zinf_error *err)
{
    const char *where = "the manifest";
    json_object *scale;
    char *end;

    if (get_uint(r, manifest, "step", where, &ret_progress->step, err) ||
        get_uint(r, manifest, "data_position", where, &ret_progress->data_position, err) ||
        get_uint(r, manifest, "seed", where, &ret_progress->seed, err) ||
        get_sum(r, manifest, "plan_hash", where, &ret_progress->plan_hash, err) ||
        (json_object_object_get_ex(manifest, "n_skipped", NULL) &&
         get_uint(r, manifest, "n_skipped", where, &ret_progress->n_skipped, err)) ||
        !(scale = member(r, manifest, "loss_scale", json_type_string, where, err)))
        return err->status;
    ret_progress->loss_scale = strtod(json_object_get_string(scale), &end);
    if (*end || !(ret_progress->loss_scale > 0) || !isfinite(ret_progress->loss_scale))
        return refuse(r, err, "\"loss_scale\" is \"%.40s\", not a positive number",
                      json_object_get_string(scale));
    return ZINF_OK;
}

/* Format and version come first: what follows is known only then. */
static zinf_status check_manifest_sum(const zinf_checkpoint_reader *r, json_object *manifest,
                                      const char *text, uint64_t n, zinf_error *err)
{
    const uint64_t tail = strlen(ZINF_MANIFEST_END) + ZINF_SUM_DIGITS;
    char sum[ZINF_SUM_DIGITS + 1];
    uint64_t version;

    if (check_text(r, manifest, "format", ZINF_CHECKPOINT_FORMAT, "the manifest", "", err) ||
        get_uint(r, manifest, "version", "the manifest", &version, err))
        return err->status;
    if (version != ZINF_CHECKPOINT_VERSION)
        return refuse(r, err, "it has version %" PRIu64 ", this program reads version %d", version,
                      ZINF_CHECKPOINT_VERSION);
    if (n >= tail)
        zinf_sum_text(XXH64(text, n - tail, 0), sum);
    if (n < tail || memcmp(text + n - tail, sum, ZINF_SUM_DIGITS) ||
        strcmp(text + n - strlen(ZINF_MANIFEST_END), ZINF_MANIFEST_END))
        return refuse(r, err, "\"%s\" does not match its own checksum: it is damaged or was "
                      "edited", ZINF_MANIFEST_NAME);
    return ZINF_OK;
}

static zinf_status read_manifest(zinf_checkpoint_reader *r, json_object **ret_manifest,
                                 zinf_error *err)
{
    uint64_t n = 0;
    int fd = -1;

    if (open_file(r, ZINF_MANIFEST_NAME, &fd, &n, err))
        return err->status;
    const bool small = n <= max_json_bytes(r->plan);
    char *text = small ? malloc(n + 1) : NULL;
    if (small && !text)
        zinf_fail(err, ZINF_MACHINE, "checkpoint: out of memory");
    else if (!small)
        refuse(r, err, "\"%s\" of %" PRIu64 " bytes is too large", ZINF_MANIFEST_NAME, n);
    else if (!zinf_read_all(fd, text, n, 0, r->directory, ZINF_MANIFEST_NAME, err)) {
        text[n] = 0;
        r->identity = XXH64(text, n, 0);
        if (!parse(r, ZINF_MANIFEST_NAME, text, n, ret_manifest, err))
            check_manifest_sum(r, *ret_manifest, text, n, err);
    }
    free(text);
    close(fd);
    return err->status;
}

/* ---- the safetensors files ---- */

/* dtype, shape and place of each tensor. */
static zinf_status check_header(zinf_checkpoint_reader *r, unsigned array,
                                const zinf_safetensors *found, uint64_t data_at, zinf_error *err)
{
    const char *file = zinf_state_files[array];
    uint64_t at = data_at;

    for (uint32_t i = 0; i < r->plan->n_tensors; i++) {
        const zinf_tensor *t = &r->plan->tensors[i];
        const uint64_t shape[2] = {t->rows, t->cols};
        const uint32_t n_dims = t->n_dims == 1 ? 1 : 2;
        const zinf_safetensor *s = zinf_safetensors_find(found, t->name);
        if (!s)
            return refuse(r, err, "\"%s\" lacks the tensor \"%s\"", file, t->name);
        if (s->dtype != ZINF_F32 || s->n_dims != n_dims ||
            memcmp(s->shape, shape, n_dims * sizeof *shape))
            return refuse(r, err, "tensor \"%s\" in \"%s\" has the dtype %s and shape %s, expected "
                          "F32 and %s as in the manifest", t->name, file,
                          zinf_dtype_name(s->dtype), zinf_shape_show(s->shape, s->n_dims).text,
                          zinf_shape_show(shape, n_dims).text);
        if (s->offset != at)
            return refuse(r, err, "tensor \"%s\" in \"%s\" lies at %" PRIu64 ", expected %" PRIu64,
                          t->name, file, s->offset, at);
        r->at[array][i] = at;
        at += s->bytes;
    }
    if (found->n != r->plan->n_tensors)
        return refuse(r, err, "\"%s\" has %" PRIu32 " tensors, expected %" PRIu32, file, found->n,
                      r->plan->n_tensors);
    return ZINF_OK;
}

static zinf_status read_header(zinf_checkpoint_reader *r, unsigned array, uint64_t sum,
                               uint64_t file_bytes, zinf_error *err)
{
    const char *file = zinf_state_files[array];
    zinf_safetensors found = {0};
    char path[500], *text = NULL;
    uint64_t n = 0;

    snprintf(path, sizeof path, "%.400s/%s", r->directory, file);
    if (zinf_safetensors_load(r->fds[array], path, file_bytes, max_json_bytes(r->plan), &text, &n,
                              err))
        return err->status;
    if (XXH64(text, n, 0) != sum)
        refuse(r, err, "the header of \"%s\" does not match its checksum in the manifest: it is "
               "damaged", file);
    else if (!zinf_safetensors_parse(path, text, n, file_bytes, &found, err))
        check_header(r, array, &found, n, err);
    zinf_safetensors_free(&found);
    free(text);
    return err->status;
}

static zinf_status check_file(zinf_checkpoint_reader *r, unsigned array, json_object *files,
                              json_object *tensors, zinf_error *err)
{
    const char *name = zinf_state_files[array];
    json_object *entry = member(r, files, name, json_type_object, "\"files\"", err);
    uint64_t expected, sum, bytes = 0;

    if (!entry || get_uint(r, entry, "bytes", name, &expected, err) ||
        get_sum(r, entry, "header", name, &sum, err) ||
        open_file(r, name, &r->fds[array], &bytes, err))
        return err->status;
    if (bytes != expected)
        return refuse(r, err, "\"%s\" has %" PRIu64 " bytes, expected %" PRIu64 ": it is %s", name,
                      bytes, expected, bytes < expected ? "truncated" : "damaged");
    if (read_header(r, array, sum, bytes, err))
        return err->status;
    for (uint32_t i = 0; i < r->plan->n_tensors; i++)
        if (get_sum(r, json_object_array_get_idx(tensors, i), zinf_state_names[array],
                    r->plan->tensors[i].name, &r->sums[array][i], err))
            return err->status;
    return ZINF_OK;
}

zinf_status zinf_checkpoint_open(const char *directory, const zinf_plan *plan,
                                 zinf_checkpoint_reader **ret_reader,
                                 zinf_progress *ret_progress, zinf_error *err)
{
    zinf_checkpoint_reader *r = calloc(1, sizeof *r);
    json_object *manifest = NULL, *tensors = NULL, *files;
    zinf_progress progress = {0};
    uint64_t *offsets = calloc((size_t)plan->n_tensors + 1, sizeof *offsets);

    if (!r)
        goto no_memory;
    r->plan = plan;
    r->dir_fd = -1;
    for (unsigned a = 0; a < ZINF_N_STATES; a++)
        r->fds[a] = -1;
    r->taken = calloc((size_t)ZINF_N_STATES * plan->n_tensors + 1, sizeof *r->taken);
    if (!offsets || !r->taken)
        goto no_memory;
    for (unsigned a = 0; a < ZINF_N_STATES; a++)
        if (!(r->at[a] = calloc((size_t)plan->n_tensors + 1, sizeof **r->at)) ||
            !(r->sums[a] = calloc((size_t)plan->n_tensors + 1, sizeof **r->sums)))
            goto no_memory;
    if (!(r->directory = strdup(directory)))
        goto no_memory;
    if (zinf_checkpoint_layout(plan, offsets, err) || find(r, err) ||
        read_manifest(r, &manifest, err) || check_model(r, manifest, err) ||
        check_tensors(r, manifest, &tensors, err) || get_progress(r, manifest, &progress, err) ||
        !(files = member(r, manifest, "files", json_type_object, "the manifest", err)))
        goto out;
    for (unsigned a = 0; a < ZINF_N_STATES; a++)
        if (check_file(r, a, files, tensors, err))
            goto out;
    *ret_reader = r;
    *ret_progress = progress;
    r = NULL;
    goto out;
no_memory:
    zinf_fail(err, ZINF_MACHINE, "checkpoint: out of memory");
out:
    json_object_put(manifest);
    zinf_checkpoint_close(r);
    free(offsets);
    return err->status;
}

zinf_status zinf_checkpoint_get(zinf_checkpoint_reader *r, uint32_t tensor,
                                zinf_state_array array, uint64_t first, uint64_t n,
                                float *ret_values, zinf_error *err)
{
    if (tensor >= r->plan->n_tensors || (unsigned)array >= ZINF_N_STATES)
        return zinf_fail(err, ZINF_WRONG_RESULT, "checkpoint: no tensor %" PRIu32 ", array %d",
                         tensor, (int)array);
    const zinf_tensor *t = &r->plan->tensors[tensor];
    const uint64_t n_elems = zinf_tensor_elems(t);
    if (first > n_elems || n > n_elems - first)
        return zinf_fail(err, ZINF_WRONG_RESULT, "checkpoint: %" PRIu64 " elements from %" PRIu64
                         " are not inside \"%s\" of %" PRIu64, n, first, t->name, n_elems);
    if (zinf_read_all(r->fds[array], ret_values, n * sizeof *ret_values,
                      r->at[array][tensor] + first * sizeof *ret_values, r->directory,
                      zinf_state_files[array], err))
        return err->status;
    r->taken[(uint64_t)array * r->plan->n_tensors + tensor] +=
        zinf_element_sum(first, n, ret_values);
    const uint64_t fault = zinf_state_fault(array, ret_values, n);
    if (fault < n && !r->fault.found)
        r->fault = (state_fault){true, tensor, array, first + fault};
    return ZINF_OK;
}

uint64_t *zinf_checkpoint_taken(zinf_checkpoint_reader *r, uint32_t *ret_n)
{
    *ret_n = ZINF_N_STATES * r->plan->n_tensors;
    return r->taken;
}

zinf_status zinf_checkpoint_check(const zinf_checkpoint_reader *r, uint32_t n_ranks,
                                  zinf_error *err)
{
    const char *copies = n_ranks == 1 ? "" : " (each rank has read a part of it: if they have "
                                             "copies, it may be any of these)";
    const state_fault *f = &r->fault;

    for (unsigned a = 0; a < ZINF_N_STATES; a++)
        for (uint32_t i = 0; i < r->plan->n_tensors; i++) {
            const zinf_tensor *t = &r->plan->tensors[i];
            if (r->taken[(uint64_t)a * r->plan->n_tensors + i] == r->sums[a][i])
                continue;
            return refuse(r, err, "tensor \"%s\" in \"%s\" (%" PRIu64 " bytes at offset %" PRIu64
                          ") does not match its checksum: it is damaged, or was changed while it "
                          "was read%s; resume from another checkpoint", t->name,
                          zinf_state_files[a], zinf_tensor_elems(t) * sizeof(float), r->at[a][i],
                          copies);
        }
    if (f->found)
        return refuse(r, err, "element %" PRIu64 " of tensor \"%s\" in \"%s\" is %s; resume from "
                      "another checkpoint", f->element, r->plan->tensors[f->tensor].name,
                      zinf_state_files[f->array],
                      f->array == ZINF_STATE_V ? "negative, inf or nan" : "inf or nan");
    return ZINF_OK;
}

uint64_t zinf_checkpoint_identity(const zinf_checkpoint_reader *reader)
{
    return reader->identity;
}

void zinf_checkpoint_close(zinf_checkpoint_reader *r)
{
    if (!r)
        return;
    for (unsigned a = 0; a < ZINF_N_STATES; a++) {
        if (r->fds[a] >= 0)
            close(r->fds[a]);
        free(r->at[a]);
        free(r->sums[a]);
    }
    if (r->dir_fd >= 0)
        close(r->dir_fd);
    free(r->taken);
    free(r->directory);
    free(r);
}
