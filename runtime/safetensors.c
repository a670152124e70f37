/* runtime/safetensors.c - see safetensors.h. */
#include "runtime/safetensors.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/checkpoint_format.h"
#include "runtime/json.h"

enum { HEADER_ALIGN = 4096, DEPTH = 4 };

__attribute__((format(printf, 3, 4)))
static zinf_status refuse(const char *path, zinf_error *err, const char *format, ...)
{
    char text[500];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return zinf_fail(err, ZINF_BAD_INPUT, "\"%.400s\": %s", path, text);
}

zinf_shape_text zinf_shape_show(const uint64_t *shape, uint32_t n_dims)
{
    zinf_shape_text shown;
    size_t n = (size_t)snprintf(shown.text, sizeof shown.text, "[");

    for (uint32_t i = 0; i < n_dims && n + 24 < sizeof shown.text; i++)
        n += (size_t)snprintf(shown.text + n, sizeof shown.text - n, "%s%" PRIu64, i ? ", " : "",
                              shape[i]);
    snprintf(shown.text + n, sizeof shown.text - n, "]");
    return shown;
}

/* ---- reading ---- */

zinf_status zinf_safetensors_load(int fd, const char *path, uint64_t file_bytes,
                                  uint64_t most_bytes, char **ret_bytes, uint64_t *ret_n,
                                  zinf_error *err)
{
    uint64_t length, done = 0;

    if (file_bytes < sizeof length)
        return refuse(path, err, "%" PRIu64 " bytes are no safetensors file: it is truncated",
                      file_bytes);
    if (pread(fd, &length, sizeof length, 0) != sizeof length)
        return zinf_fail(err, ZINF_MACHINE, "reading \"%.400s\": %s", path, strerror(errno));
    if (length > file_bytes - 8)
        return refuse(path, err, "it has %" PRIu64 " bytes and says that its header has %" PRIu64
                      ": it is truncated, or no safetensors file", file_bytes, length);
    most_bytes = most_bytes < ZINF_SAFETENSORS_HEADER ? most_bytes : ZINF_SAFETENSORS_HEADER;
    if (length > most_bytes)
        return refuse(path, err, "its header has %" PRIu64 " bytes, at most %" PRIu64
                      " are read for a model of this size", length, most_bytes);
    char *bytes = malloc(8 + length + 1);
    if (!bytes)
        return zinf_fail(err, ZINF_MACHINE, "out of memory for the header of \"%.400s\"", path);
    while (done < 8 + length) {
        const ssize_t got = pread(fd, bytes + done, 8 + length - done, (off_t)done);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0) {
            free(bytes);
            return zinf_fail(err, ZINF_MACHINE, "reading \"%.400s\" at offset %" PRIu64 ": %s",
                             path, done, got ? strerror(errno) : "it shrank meanwhile");
        }
        done += (uint64_t)got;
    }
    bytes[8 + length] = 0;
    *ret_bytes = bytes;
    *ret_n = 8 + length;
    return ZINF_OK;
}

/* Bytes of an element; 0: no such dtype. */
static uint64_t find_dtype(const char *name, uint32_t *ret_dtype)
{
    static const struct {
        const char *name;
        uint8_t bytes;
    } others[] = {{"BOOL", 1}, {"I8", 1}, {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"I16", 2}, {"U16", 2},
                  {"U32", 4}, {"I64", 8}, {"U64", 8}};

    for (uint32_t i = 0; i < ZINF_N_DTYPES; i++)
        if (!strcmp(name, zinf_dtype_name(i))) {
            *ret_dtype = i;
            return zinf_dtype_bytes(i);
        }
    *ret_dtype = ZINF_N_DTYPES;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (!strcmp(name, others[i].name))
            return others[i].bytes;
    return 0;
}

/* A whole number below 2^63. */
static bool get_size(json_object *value, uint64_t *ret_size)
{
    if (!json_object_is_type(value, json_type_int) || json_object_get_int64(value) < 0 ||
        json_object_get_uint64(value) >= INT64_MAX)
        return false;
    *ret_size = json_object_get_uint64(value);
    return true;
}

/* offset is relative to the data here. */
static zinf_status read_entry(const char *path, const char *name, json_object *entry,
                              zinf_safetensor *ret, zinf_error *err)
{
    const zinf_shown shown = zinf_show(name);
    json_object *dtype = NULL, *shape = NULL, *range = NULL;
    uint64_t end, expected;

    if (!json_object_is_type(entry, json_type_object))
        return refuse(path, err, "tensor \"%s\" is %s, no object", shown.text,
                      zinf_json_show(entry).text);
    json_object_object_get_ex(entry, "dtype", &dtype);
    json_object_object_get_ex(entry, "shape", &shape);
    json_object_object_get_ex(entry, "data_offsets", &range);
    if (!json_object_is_type(dtype, json_type_string) ||
        !(expected = find_dtype(json_object_get_string(dtype), &ret->dtype)))
        return refuse(path, err, "tensor \"%s\" has the dtype %s, which is not known", shown.text,
                      zinf_json_show(dtype).text);
    if (!json_object_is_type(shape, json_type_array) ||
        json_object_array_length(shape) > ZINF_SAFETENSORS_DIMS)
        return refuse(path, err, "tensor \"%s\" has the shape %s; expected a list of at most %d "
                      "sizes", shown.text, zinf_json_show(shape).text, ZINF_SAFETENSORS_DIMS);
    ret->n_dims = (uint32_t)json_object_array_length(shape);
    ret->n_elems = 1;
    for (uint32_t i = 0; i < ret->n_dims; i++)
        if (!get_size(json_object_array_get_idx(shape, i), &ret->shape[i]) ||
            __builtin_mul_overflow(ret->n_elems, ret->shape[i], &ret->n_elems))
            return refuse(path, err, "tensor \"%s\" has the shape %s, which is no list of sizes "
                          "within 63 bits", shown.text, zinf_json_show(shape).text);
    if (__builtin_mul_overflow(expected, ret->n_elems, &expected) || expected > INT64_MAX)
        return refuse(path, err, "tensor \"%s\" has the shape %s, more than 63 bits of bytes",
                      shown.text, zinf_json_show(shape).text);
    if (!json_object_is_type(range, json_type_array) || json_object_array_length(range) != 2 ||
        !get_size(json_object_array_get_idx(range, 0), &ret->offset) ||
        !get_size(json_object_array_get_idx(range, 1), &end) || end < ret->offset)
        return refuse(path, err, "tensor \"%s\" has the data_offsets %s; expected its first byte "
                      "and the one behind its last", shown.text, zinf_json_show(range).text);
    ret->bytes = end - ret->offset;
    if (ret->bytes != expected)
        return refuse(path, err, "tensor \"%s\" of shape %s and dtype %s takes %" PRIu64
                      " bytes, but its data_offsets span %" PRIu64, shown.text,
                      zinf_json_show(shape).text, json_object_get_string(dtype), expected,
                      ret->bytes);
    if (json_object_object_length(entry) != 3)
        return refuse(path, err, "tensor \"%s\" has more than dtype, shape and data_offsets",
                      shown.text);
    ret->name = strdup(name);
    return ret->name ? ZINF_OK : zinf_fail(err, ZINF_MACHINE, "out of memory for \"%.400s\"", path);
}

static zinf_status check_metadata(const char *path, json_object *metadata, zinf_error *err)
{
    if (!json_object_is_type(metadata, json_type_object))
        return refuse(path, err, "\"__metadata__\" is %s, no object",
                      zinf_json_show(metadata).text);
    json_object_object_foreach(metadata, key, value) {
        if (!json_object_is_type(value, json_type_string))
            return refuse(path, err, "\"%s\" of \"__metadata__\" is %s, no text",
                          zinf_show(key).text, zinf_json_show(value).text);
    }
    return ZINF_OK;
}

static int by_offset(const void *a, const void *b)
{
    const zinf_safetensor *x = a, *y = b;

    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes; /* the empty ones first */
}

static int by_name(const void *a, const void *b)
{
    const zinf_safetensor *x = a, *y = b;

    return strcmp(x->name, y->name);
}

/* Sorted by offset, the tensors fill the data. Offsets become those of the file. */
static zinf_status check_cover(const char *path, const zinf_safetensors *file, uint64_t data_at,
                               uint64_t file_bytes, zinf_error *err)
{
    uint64_t at = 0;

    for (uint32_t i = 0; i < file->n; i++) {
        zinf_safetensor *t = &file->tensors[i];
        if (t->offset != at)
            return refuse(path, err, "tensor \"%s\" begins at byte %" PRIu64 " of the data, %s "
                          "tensor \"%s\", which ends at %" PRIu64, zinf_show(t->name).text,
                          t->offset, t->offset < at ? "inside" : "with a hole behind",
                          i ? zinf_show(file->tensors[i - 1].name).text : "", at);
        at += t->bytes;
        t->offset += data_at;
    }
    if (at != file_bytes - data_at)
        return refuse(path, err, "its tensors take %" PRIu64 " bytes, but %" PRIu64
                      " follow the header: it is %s", at, file_bytes - data_at,
                      at > file_bytes - data_at ? "truncated" : "damaged");
    return ZINF_OK;
}

static zinf_status read_header(const char *path, json_object *header, uint64_t data_at,
                               uint64_t file_bytes, zinf_safetensors *file, zinf_error *err)
{
    const size_t most = (size_t)json_object_object_length(header);

    file->tensors = calloc(most + 1, sizeof *file->tensors);
    if (!file->tensors)
        return zinf_fail(err, ZINF_MACHINE, "out of memory for \"%.400s\"", path);
    json_object_object_foreach(header, name, entry) {
        if (!strcmp(name, "__metadata__")) {
            if (check_metadata(path, entry, err))
                return err->status;
        } else if (read_entry(path, name, entry, &file->tensors[file->n++], err)) {
            return err->status;
        }
    }
    qsort(file->tensors, file->n, sizeof *file->tensors, by_offset);
    if (check_cover(path, file, data_at, file_bytes, err))
        return err->status;
    qsort(file->tensors, file->n, sizeof *file->tensors, by_name);
    return ZINF_OK;
}

zinf_status zinf_safetensors_parse(const char *path, const char *bytes, uint64_t n,
                                   uint64_t file_bytes, zinf_safetensors *ret_file,
                                   zinf_error *err)
{
    zinf_safetensors file = {0};
    json_object *header = NULL;
    char what[460];

    snprintf(what, sizeof what, "the header of \"%.400s\"", path);
    if (zinf_json_parse(what, bytes + 8, n - 8, DEPTH, &header, err))
        return err->status;
    if (read_header(path, header, n, file_bytes, &file, err))
        zinf_safetensors_free(&file);
    else
        *ret_file = file;
    json_object_put(header);
    return err->status;
}

void zinf_safetensors_free(zinf_safetensors *file)
{
    for (uint32_t i = 0; i < file->n; i++)
        free(file->tensors[i].name);
    free(file->tensors);
    *file = (zinf_safetensors){0};
}

const zinf_safetensor *zinf_safetensors_find(const zinf_safetensors *file, const char *name)
{
    uint32_t low = 0, high = file->n;

    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        const int order = strcmp(name, file->tensors[middle].name);
        if (!order)
            return &file->tensors[middle];
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

/* ---- writing ---- */

zinf_status zinf_safetensors_header(const zinf_safetensor_row *rows, uint32_t n,
                                    const char *const (*metadata)[2], unsigned n_metadata,
                                    char **ret_bytes, uint64_t *ret_n, zinf_error *err)
{
    errno = 0;
    json_object *header = json_object_new_object(), *texts = json_object_new_object();
    uint64_t at = 0;

    for (unsigned i = 0; i < n_metadata; i++)
        zinf_json_add(texts, metadata[i][0], json_object_new_string(metadata[i][1]));
    zinf_json_add(header, "__metadata__", texts); /* last: without memory it is freed */
    for (uint32_t i = 0; i < n; i++) {
        json_object *entry = json_object_new_object(), *range = json_object_new_array();
        json_object *shape = json_object_new_array();
        uint64_t bytes = zinf_dtype_bytes(rows[i].dtype);
        for (uint32_t k = 0; k < rows[i].n_dims; k++) {
            zinf_json_append(shape, json_object_new_uint64(rows[i].shape[k]));
            bytes *= rows[i].shape[k];
        }
        zinf_json_append(range, json_object_new_uint64(at));
        zinf_json_append(range, json_object_new_uint64(at += bytes));
        zinf_json_add(entry, "dtype", json_object_new_string(zinf_dtype_name(rows[i].dtype)));
        zinf_json_add(entry, "shape", shape);
        zinf_json_add(entry, "data_offsets", range);
        if (header && json_object_object_get_ex(header, rows[i].name, NULL)) {
            json_object_put(entry);
            json_object_put(header);
            return zinf_fail(err, ZINF_BAD_INPUT, "the plan has two tensors \"%s\"",
                             rows[i].name);
        }
        zinf_json_add(header, rows[i].name, entry);
    }
    const char *text = json_object_to_json_string_ext(
        header, JSON_C_TO_STRING_PLAIN | JSON_C_TO_STRING_NOSLASHESCAPE);
    const bool fine = text && errno != ENOMEM;
    const uint64_t length = fine ? strlen(text) : 0;
    const uint64_t all = (8 + length + HEADER_ALIGN - 1) / HEADER_ALIGN * HEADER_ALIGN;
    char *bytes = fine && all <= ZINF_SAFETENSORS_HEADER ? malloc(all) : NULL;
    if (bytes) {
        const uint64_t stated = all - 8;
        memset(bytes, ' ', all);
        memcpy(bytes, &stated, 8);
        memcpy(bytes + 8, text, length);
        *ret_bytes = bytes;
        *ret_n = all;
    }
    json_object_put(header);
    return bytes ? ZINF_OK : zinf_fail(err, ZINF_MACHINE, "no memory for a header of %" PRIu64
                                       " bytes (limit %u)", all, ZINF_SAFETENSORS_HEADER);
}
