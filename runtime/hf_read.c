/* runtime/hf_read.c - the reader of Hugging Face directories; see hf.h. Headers are read once, one
 * after the other; of the files one is open at a time.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/f16.h"
#include "runtime/checkpoint_format.h"
#include "runtime/hf_config.h"
#include "runtime/hf_internal.h"
#include "runtime/json.h"
#include "runtime/safetensors.h"

/* Where a tensor lies; file ZINF_NONE: it was not found. */
typedef struct place {
    uint64_t offset;
    uint32_t file, dtype;
} place;

typedef struct shard {
    char *name; /* in the directory */
    uint64_t bytes;
    bool seen;
    struct stat first; /* as it was seen first */
} shard;

struct zinf_hf_reader {
    const zinf_plan *plan;
    char *directory;
    shard *shards;
    uint32_t n_shards;
    uint32_t *order; /* [n_tensors] the plan's tensors by name */
    place *places;   /* [n_tensors] */
    place head;      /* lm_head.weight of tied embeddings */
    uint32_t open_shard; /* the one that fd is of */
    int fd;
    char *chunk; /* [ZINF_HF_CHUNK] */
};

__attribute__((format(printf, 3, 4)))
static zinf_status refuse(const zinf_hf_reader *r, zinf_error *err, const char *format, ...)
{
    char text[600];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return zinf_fail(err, ZINF_BAD_INPUT, "\"%.300s\": %s", r->directory, text);
}

/* As checkpoint_read.c: JSON in memory is some 20 times its text. */
static uint64_t most_json_bytes(const zinf_plan *plan)
{
    return ((uint64_t)1 << 16) + (uint64_t)plan->n_tensors * 1024;
}

/* ---- files ---- */

static zinf_status path_of(const zinf_hf_reader *r, const char *name, char **ret_path,
                           zinf_error *err)
{
    if (asprintf(ret_path, "%s/%s", r->directory, name) >= 0)
        return ZINF_OK;
    *ret_path = NULL;
    return zinf_fail(err, ZINF_MACHINE, "out of memory for \"%.300s\"", r->directory);
}

static zinf_status open_file(const char *path, int *ret_fd, uint64_t *ret_bytes, zinf_error *err)
{
    struct stat st;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

    if (fd < 0 || fstat(fd, &st) || !S_ISREG(st.st_mode)) {
        zinf_fail(err, ZINF_BAD_INPUT, "\"%.400s\" cannot be opened: %s", path,
                  fd < 0 ? strerror(errno) : "not a regular file");
        if (fd >= 0)
            close(fd);
        return err->status;
    }
    *ret_fd = fd;
    *ret_bytes = (uint64_t)st.st_size;
    return ZINF_OK;
}

/* Another file, or one that was written to, would make a mixture of two models. */
static zinf_status check_same(const zinf_hf_reader *r, zinf_error *err)
{
    const shard *s = &r->shards[r->open_shard];
    struct stat now;

    if (fstat(r->fd, &now) == 0 && now.st_dev == s->first.st_dev &&
        now.st_ino == s->first.st_ino && now.st_size == s->first.st_size &&
        now.st_mtim.tv_sec == s->first.st_mtim.tv_sec &&
        now.st_mtim.tv_nsec == s->first.st_mtim.tv_nsec)
        return ZINF_OK;
    return refuse(r, err, "\"%.200s\" changed while in use (another file, or written to); "
                  "leave it alone until the run has begun", s->name);
}

static zinf_status use_shard(zinf_hf_reader *r, uint32_t index, zinf_error *err)
{
    char *path = NULL;
    uint64_t bytes = 0;

    if (r->fd >= 0 && r->open_shard == index)
        return ZINF_OK;
    if (r->fd >= 0)
        close(r->fd);
    r->fd = -1;
    if (path_of(r, r->shards[index].name, &path, err) || open_file(path, &r->fd, &bytes, err))
        goto out;
    r->open_shard = index;
    if (!r->shards[index].seen) {
        r->shards[index].seen = true;
        r->shards[index].bytes = bytes;
        if (fstat(r->fd, &r->shards[index].first))
            refuse(r, err, "\"%.200s\": %s", r->shards[index].name, strerror(errno));
    }
    if (!err->status)
        check_same(r, err);
out:
    free(path);
    return err->status;
}

static zinf_status read_at(zinf_hf_reader *r, void *ret_bytes, uint64_t n, uint64_t offset,
                           zinf_error *err)
{
    if (zinf_read_all(r->fd, ret_bytes, n, offset, r->directory, r->shards[r->open_shard].name,
                      err))
        return err->status;
    return check_same(r, err);
}

/* ---- names ---- */

static const char *prefix_of(const zinf_plan *plan)
{
    return plan->model.family[0] == 'g' ? "transformer." : "model.";
}

static int by_name(const void *a, const void *b, void *tensors)
{
    const zinf_tensor *t = tensors;

    return strcmp(t[*(const uint32_t *)a].name, t[*(const uint32_t *)b].name);
}

/* The plan's tensor of a stored name; ZINF_NONE if there is none. */
static uint32_t find_tensor(const zinf_hf_reader *r, const char *name)
{
    uint32_t low = 0, high = r->plan->n_tensors;

    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        const int order = strcmp(name, r->plan->tensors[r->order[middle]].name);
        if (!order)
            return r->order[middle];
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return ZINF_NONE;
}

static bool ends_with(const char *text, const char *end)
{
    const size_t n = strlen(text), n_end = strlen(end);

    return n >= n_end && !strcmp(text + n - n_end, end);
}

/* Constants that older versions stored beside the parameters. */
static bool is_constant(const zinf_plan *plan, const char *name)
{
    return plan->model.family[0] == 'g'
               ? ends_with(name, ".attn.bias") || ends_with(name, ".attn.masked_bias")
               : ends_with(name, ".rotary_emb.inv_freq");
}

/* A name joins a list in a sentence, as long as there is room. */
static void list(char *text, size_t room, const char *name)
{
    const size_t n = strlen(text);

    if (n + 70 < room)
        snprintf(text + n, room - n, "%s\"%s\"", n ? ", " : "", zinf_show(name).text);
    else if (!ends_with(text, "..."))
        snprintf(text + n, room - n, ", ...");
}

static zinf_status check_stored(const zinf_hf_reader *r, const char *file,
                                const zinf_safetensor *stored, const uint64_t *shape,
                                uint32_t n_dims, zinf_error *err)
{
    if (stored->dtype != ZINF_F32 && stored->dtype != ZINF_F16 && stored->dtype != ZINF_BF16)
        return refuse(r, err, "tensor \"%s\" in \"%s\" is neither F32 nor F16 nor BF16",
                      zinf_show(stored->name).text, file);
    if (stored->n_dims != n_dims || memcmp(stored->shape, shape, n_dims * sizeof *shape))
        return refuse(r, err, "tensor \"%s\" in \"%s\" has the shape %s, the plan's model has %s",
                      zinf_show(stored->name).text, file,
                      zinf_shape_show(stored->shape, stored->n_dims).text,
                      zinf_shape_show(shape, n_dims).text);
    return ZINF_OK;
}

/* Notes where a tensor is. What the plan's model has not is counted and listed. */
static zinf_status take(zinf_hf_reader *r, uint32_t file, const zinf_safetensor *stored,
                        char extra[300], uint32_t *n_extra, zinf_error *err)
{
    const zinf_plan *plan = r->plan;
    const place here = {stored->offset, file, stored->dtype};
    const char *name = r->shards[file].name;
    uint32_t index = find_tensor(r, stored->name);
    uint64_t shape[2];
    char *whole = NULL;

    if (index == ZINF_NONE) { /* of the base model alone */
        if (asprintf(&whole, "%s%s", prefix_of(plan), stored->name) < 0)
            return zinf_fail(err, ZINF_MACHINE, "out of memory for \"%.300s\"", r->directory);
        index = find_tensor(r, whole);
        free(whole);
    }
    if (index != ZINF_NONE) {
        const uint32_t n_dims = zinf_hf_shape(plan, &plan->tensors[index], shape);
        if (r->places[index].file != ZINF_NONE)
            return refuse(r, err, "\"%s\" is there twice, again as \"%s\" in \"%s\"",
                          plan->tensors[index].name, zinf_show(stored->name).text, name);
        if (check_stored(r, name, stored, shape, n_dims, err))
            return err->status;
        r->places[index] = here;
    } else if (plan->model.tied_embeddings && !strcmp(stored->name, "lm_head.weight")) {
        shape[0] = plan->model.vocab;
        shape[1] = plan->model.hidden;
        if (r->head.file != ZINF_NONE)
            return refuse(r, err, "\"lm_head.weight\" is there twice, again in \"%s\"", name);
        if (check_stored(r, name, stored, shape, 2, err))
            return err->status;
        r->head = here;
    } else if (!is_constant(plan, stored->name)) {
        list(extra, 300, stored->name);
        ++*n_extra;
    }
    return ZINF_OK;
}

/* ---- the index ---- */

/* File names in order of appearance; the map is kept by the caller. */
static zinf_status read_index(zinf_hf_reader *r, json_object **ret_index, json_object **ret_map,
                              zinf_error *err)
{
    char *path = NULL, *text = NULL, what[420];
    uint64_t bytes = 0;
    int fd = -1;

    if (path_of(r, ZINF_HF_INDEX, &path, err) || open_file(path, &fd, &bytes, err))
        goto out;
    snprintf(what, sizeof what, "\"%.400s\"", path);
    if (bytes > most_json_bytes(r->plan)) {
        refuse(r, err, "\"%s\" has %" PRIu64 " bytes, at most %" PRIu64 " are read for a model of "
               "this size", ZINF_HF_INDEX, bytes, most_json_bytes(r->plan));
        goto out;
    }
    text = malloc(bytes + 1);
    if (!text) {
        zinf_fail(err, ZINF_MACHINE, "out of memory for %s", what);
        goto out;
    }
    if (zinf_read_all(fd, text, bytes, 0, r->directory, ZINF_HF_INDEX, err))
        goto out;
    text[bytes] = 0;
    if (zinf_json_parse(what, text, bytes, 8, ret_index, err))
        goto out;
    if (!json_object_object_get_ex(*ret_index, "weight_map", ret_map) ||
        !json_object_is_type(*ret_map, json_type_object))
        refuse(r, err, "\"%s\" has no object \"weight_map\"", ZINF_HF_INDEX);
out:
    if (fd >= 0)
        close(fd);
    free(text);
    free(path);
    return err->status;
}

static zinf_status add_shard(zinf_hf_reader *r, const char *name, zinf_error *err)
{
    for (uint32_t i = r->n_shards; i-- > 0;) /* the last one is likely */
        if (!strcmp(r->shards[i].name, name))
            return ZINF_OK;
    shard *more = realloc(r->shards, (r->n_shards + (size_t)1) * sizeof *more);
    char *copy = strdup(name);
    if (more)
        r->shards = more;
    if (!more || !copy) {
        free(copy);
        return zinf_fail(err, ZINF_MACHINE, "out of memory for \"%.300s\"", r->directory);
    }
    r->shards[r->n_shards++] = (shard){.name = copy};
    return ZINF_OK;
}

/* Each file once; a name stays inside the directory. */
static zinf_status list_shards(zinf_hf_reader *r, json_object *map, zinf_error *err)
{
    enum { MOST_SHARDS = 4096 };

    json_object_object_foreach(map, key, value) {
        const char *name = json_object_is_type(value, json_type_string)
                               ? json_object_get_string(value) : "";
        if (!ends_with(name, ".safetensors") || strchr(name, '/') || strlen(name) > 200 ||
            zinf_has_control(name, strlen(name)))
            return refuse(r, err, "\"%s\" places \"%s\" in %s, which is no name of a .safetensors "
                          "file in this directory", ZINF_HF_INDEX, zinf_show(key).text,
                          zinf_json_show(value).text);
        if (add_shard(r, name, err))
            return err->status;
        if (r->n_shards > MOST_SHARDS)
            return refuse(r, err, "\"%s\" names more than %d files", ZINF_HF_INDEX, MOST_SHARDS);
    }
    return ZINF_OK;
}

/* The index and the file agree on what is in it. */
static zinf_status check_map(const zinf_hf_reader *r, json_object *map, const char *name,
                             const zinf_safetensors *file, zinf_error *err)
{
    uint32_t n = 0;

    json_object_object_foreach(map, key, value) {
        if (strcmp(json_object_get_string(value), name))
            continue;
        n++;
        if (!zinf_safetensors_find(file, key))
            return refuse(r, err, "\"%s\" places \"%s\" in \"%s\", which has no such tensor",
                          ZINF_HF_INDEX, zinf_show(key).text, name);
    }
    for (uint32_t i = 0; n < file->n && i < file->n; i++) {
        json_object *where = NULL;
        if (!json_object_object_get_ex(map, file->tensors[i].name, &where) ||
            strcmp(json_object_get_string(where), name))
            return refuse(r, err, "\"%s\" holds \"%s\", which \"%s\" does not place there", name,
                          zinf_show(file->tensors[i].name).text, ZINF_HF_INDEX);
    }
    return ZINF_OK;
}

/* ---- opening ---- */

/* map: NULL for a single file. */
static zinf_status read_shard(zinf_hf_reader *r, uint32_t index, json_object *map, char extra[300],
                              uint32_t *n_extra, zinf_error *err)
{
    zinf_safetensors file = {0};
    char *path = NULL, *header = NULL;
    uint64_t n = 0;

    if (path_of(r, r->shards[index].name, &path, err) || use_shard(r, index, err) ||
        zinf_safetensors_load(r->fd, path, r->shards[index].bytes, most_json_bytes(r->plan),
                              &header, &n, err) ||
        zinf_safetensors_parse(path, header, n, r->shards[index].bytes, &file, err) ||
        (map && check_map(r, map, r->shards[index].name, &file, err)))
        goto out;
    for (uint32_t i = 0; i < file.n; i++)
        if (take(r, index, &file.tensors[i], extra, n_extra, err))
            goto out;
out:
    zinf_safetensors_free(&file);
    free(header);
    free(path);
    return err->status;
}

static zinf_status read_shards(zinf_hf_reader *r, zinf_error *err)
{
    json_object *index = NULL, *map = NULL;
    char *single = NULL, *several = NULL, extra[300] = "", missing[300] = "";
    struct stat st; /* of a link, which may lead nowhere */
    uint32_t n_extra = 0, n_missing = 0;

    if (path_of(r, ZINF_HF_SINGLE, &single, err) || path_of(r, ZINF_HF_INDEX, &several, err))
        goto out;
    const bool is_single = !lstat(single, &st);
    if (!is_single && lstat(several, &st)) {
        refuse(r, err, "it has neither \"%s\" nor \"%s\"; weights of another kind, such as "
               "pytorch_model.bin, are written as these by transformers' save_pretrained",
               ZINF_HF_SINGLE, ZINF_HF_INDEX);
        goto out;
    }
    if (is_single ? add_shard(r, ZINF_HF_SINGLE, err)
                  : read_index(r, &index, &map, err) || list_shards(r, map, err))
        goto out;
    for (uint32_t i = 0; i < r->n_shards; i++)
        if (read_shard(r, i, map, extra, &n_extra, err))
            goto out;
    if (n_extra) {
        refuse(r, err, "%" PRIu32 " tensors are not the plan's model's: %s", n_extra, extra);
        goto out;
    }
    /* the embedding, which is the plan's first tensor, may be stored as the head alone */
    if (r->places[0].file == ZINF_NONE && r->head.file != ZINF_NONE) {
        r->places[0] = r->head;
        r->head.file = ZINF_NONE;
    }
    for (uint32_t i = 0; i < r->plan->n_tensors; i++)
        if (r->places[i].file == ZINF_NONE) {
            list(missing, sizeof missing, r->plan->tensors[i].name);
            n_missing++;
        }
    if (n_missing)
        refuse(r, err, "%" PRIu32 " tensors of the plan's model are missing: %s%s", n_missing,
               missing, strstr(missing, "\"lm_head.weight\"") ? "; if the embeddings are the head, "
               "write \"tie_word_embeddings\": true in config.json and plan again" : "");
out:
    free(single);
    free(several);
    json_object_put(index);
    return err->status;
}

/* With it, transformers takes the base model that it names and adds the adapter. */
static zinf_status check_adapter(const zinf_hf_reader *r, zinf_error *err)
{
    static const char name[] = "adapter_config.json";
    struct stat st; /* of a link, which may lead nowhere */
    char *path = NULL;

    if (!path_of(r, name, &path, err) && !lstat(path, &st))
        refuse(r, err, "it has an \"%s\": adapters are not supported; merge it into the weights "
               "first (peft's merge_and_unload), or move it away", name);
    free(path);
    return err->status;
}

zinf_status zinf_hf_check_directory(const char *directory, zinf_error *err)
{
    struct stat st;

    if (stat(directory, &st))
        return zinf_fail(err, ZINF_BAD_INPUT, "\"%.300s\" cannot be opened: %s", directory,
                         strerror(errno));
    if (!S_ISDIR(st.st_mode))
        return zinf_fail(err, ZINF_BAD_INPUT, "\"%.300s\": it is a file; name the directory in "
                         "which config.json and model.safetensors are", directory);
    return ZINF_OK;
}

static zinf_status check_model(const zinf_hf_reader *r, zinf_error *err)
{
    const zinf_model_info *plan = &r->plan->model;
    zinf_hf_config found;

    if (zinf_hf_check_directory(r->directory, err) ||
        zinf_hf_config_read(r->directory, &found, err) || check_adapter(r, err))
        return err->status;
    if (strcmp(found.model.family, plan->family))
        return refuse(r, err, "config.json is of the family %s, the plan's model \"%s\" is %s",
                      found.model.family, plan->name, plan->family);
    if (found.window && r->plan->job.sequence > found.window)
        return refuse(r, err, "its \"sliding_window\" is %" PRIu64 " and the plan's sequences have "
                      "%" PRIu64 " tokens: attention to a window is not supported; plan with "
                      "training.sequence=%" PRIu64 " or less, for which it is full attention",
                      found.window, r->plan->job.sequence, found.window);
    for (unsigned i = 0; i < zinf_n_model_fields; i++) {
        const char *name = zinf_model_fields[i].name;
        const uint64_t a = zinf_model_field_value(&found.model, i);
        const uint64_t b = zinf_model_field_value(plan, i);
        /* a llama's context only bounds the sequence, below */
        const bool counts = strcmp(name, "n_params") && (strcmp(name, "context") ||
                                                         plan->family[0] == 'g');
        if (counts && a != b)
            return refuse(r, err, "config.json is a model of %s %" PRIu64 ", the plan's model "
                          "\"%s\" has %" PRIu64 "; plan with this directory as the model", name,
                          a, plan->name, b);
    }
    for (unsigned i = 0; i < zinf_n_model_reals; i++) {
        const double a = zinf_model_real_value(&found.model, i);
        const double b = zinf_model_real_value(plan, i);
        if (a != b)
            return refuse(r, err, "config.json is a model of %s %g, the plan's model \"%s\" has "
                          "%g; plan with this directory as the model", zinf_model_reals[i].name,
                          a, plan->name, b);
    }
    if (r->plan->job.sequence > found.model.context)
        return refuse(r, err, "its \"max_position_embeddings\" is %" PRIu64 " and the plan's "
                      "sequences have %" PRIu64 " tokens; plan with training.sequence=%" PRIu64
                      " or less", found.model.context, r->plan->job.sequence, found.model.context);
    return ZINF_OK;
}

static zinf_status read_elems(zinf_hf_reader *r, const place *from, uint64_t first, uint64_t n,
                              float *ret_values, zinf_error *err);

/* A head stored beside the embeddings that it is tied to must be the same. */
static zinf_status check_head(zinf_hf_reader *r, zinf_error *err)
{
    const zinf_plan *plan = r->plan;
    const uint64_t n = plan->model.vocab * plan->model.hidden, most = 4096;
    float head[4096];

    for (uint64_t at = 0; r->head.file != ZINF_NONE && at < n; at += most) {
        const uint64_t some = n - at < most ? n - at : most;
        float *embedding = (float *)(void *)r->chunk;
        if (read_elems(r, &r->head, at, some, head, err) ||
            read_elems(r, &r->places[0], at, some, embedding, err))
            return err->status;
        if (memcmp(head, embedding, some * sizeof *head))
            return refuse(r, err, "\"lm_head.weight\" differs from \"%s\", but config.json ties "
                          "them; %s", plan->tensors[0].name, plan->model.family[0] == 'g'
                          ? "a gpt2 with a head of its own is not supported"
                          : "write \"tie_word_embeddings\": false if they are apart");
    }
    return ZINF_OK;
}

zinf_status zinf_hf_open(const char *directory, const zinf_plan *plan,
                         zinf_hf_reader **ret_reader, zinf_error *err)
{
    zinf_hf_reader *r = calloc(1, sizeof *r);
    const size_t n = (size_t)plan->n_tensors + 1;

    if (!r)
        return zinf_fail(err, ZINF_MACHINE, "out of memory for \"%.300s\"", directory);
    r->plan = plan;
    r->fd = -1;
    r->head.file = ZINF_NONE;
    r->directory = strdup(directory);
    r->order = calloc(n, sizeof *r->order);
    r->places = calloc(n, sizeof *r->places);
    r->chunk = malloc(ZINF_HF_CHUNK);
    if (!r->directory || !r->order || !r->places || !r->chunk) {
        zinf_fail(err, ZINF_MACHINE, "out of memory for \"%.300s\"", directory);
        goto out;
    }
    for (uint32_t i = 0; i < plan->n_tensors; i++) {
        r->order[i] = i;
        r->places[i].file = ZINF_NONE;
    }
    qsort_r(r->order, plan->n_tensors, sizeof *r->order, by_name, plan->tensors);
    if (check_model(r, err) || read_shards(r, err) || check_head(r, err))
        goto out;
    *ret_reader = r;
    return ZINF_OK;
out:
    zinf_hf_close(r);
    return err->status;
}

uint32_t zinf_hf_dtype(const zinf_hf_reader *r, uint32_t tensor)
{
    return r->places[tensor].dtype;
}

uint32_t zinf_hf_n_files(const zinf_hf_reader *r)
{
    return r->n_shards;
}

zinf_status zinf_hf_file(zinf_hf_reader *r, uint32_t index, const char **ret_name, int *ret_fd,
                         uint64_t *ret_bytes, zinf_error *err)
{
    if (use_shard(r, index, err))
        return err->status;
    *ret_name = r->shards[index].name;
    *ret_fd = r->fd;
    *ret_bytes = r->shards[index].bytes;
    return ZINF_OK;
}

void zinf_hf_close(zinf_hf_reader *r)
{
    if (!r)
        return;
    if (r->fd >= 0)
        close(r->fd);
    for (uint32_t i = 0; i < r->n_shards; i++)
        free(r->shards[i].name);
    free(r->shards);
    free(r->order);
    free(r->places);
    free(r->chunk);
    free(r->directory);
    free(r);
}

/* ---- elements ---- */

static float load_elem(const char *bytes, uint32_t dtype, uint64_t i)
{
    uint16_t half;
    float value;

    if (dtype == ZINF_F32) {
        memcpy(&value, bytes + 4 * i, 4);
        return value;
    }
    memcpy(&half, bytes + 2 * i, 2);
    return dtype == ZINF_BF16 ? zinf_bf16_to_f32(half) : zinf_f16_to_f32(half);
}

/* As stored. Two bytes an element are read into the second half of where they go: element i is
 * written at 4 i, before 2 n + 2 (i + 1), where the next one is read. */
static zinf_status read_elems(zinf_hf_reader *r, const place *from, uint64_t first, uint64_t n,
                              float *ret_values, zinf_error *err)
{
    const uint64_t size = zinf_dtype_bytes(from->dtype);
    char *raw = (char *)ret_values + (4 - size) * n;

    if (use_shard(r, from->file, err) ||
        read_at(r, raw, n * size, from->offset + first * size, err))
        return err->status;
    for (uint64_t i = 0; size < 4 && i < n; i++) {
        const float value = load_elem(raw, from->dtype, i);
        memcpy(&ret_values[i], &value, 4);
    }
    return ZINF_OK;
}

static zinf_status read_turned(zinf_hf_reader *r, const zinf_tensor *t, const place *from,
                               uint64_t first, uint64_t n, float *ret_values, zinf_error *err)
{
    const uint64_t size = zinf_dtype_bytes(from->dtype), rows = t->rows, cols = t->cols;
    zinf_hf_block b = {0};

    if (use_shard(r, from->file, err))
        return err->status;
    while (zinf_hf_next_block(t, first, n, size, &b)) {
        const uint64_t width = b.col_end - b.col;
        const uint64_t at_once = width == rows ? b.row_end - b.row : 1; /* they touch */
        for (uint64_t c = b.row; c < b.row_end; c += at_once)
            if (read_at(r, r->chunk + (c - b.row) * width * size, at_once * width * size,
                        from->offset + (c * rows + b.col) * size, err))
                return err->status;
        for (uint64_t row = b.col; row < b.col_end; row++)
            for (uint64_t c = b.row; c < b.row_end; c++) {
                const uint64_t element = row * cols + c;
                if (element >= first && element - first < n)
                    ret_values[element - first] =
                        load_elem(r->chunk, from->dtype, (c - b.row) * width + row - b.col);
            }
    }
    return ZINF_OK;
}

zinf_status zinf_hf_get(zinf_hf_reader *r, uint32_t tensor, uint64_t first, uint64_t n,
                        float *ret_values, zinf_error *err)
{
    const zinf_tensor *t = &r->plan->tensors[tensor];

    if (!n)
        return ZINF_OK;
    const place *from = &r->places[tensor];
    if (zinf_hf_turned(r->plan, t) ? read_turned(r, t, from, first, n, ret_values, err)
                                   : read_elems(r, from, first, n, ret_values, err))
        return err->status;
    const uint64_t fault = zinf_state_fault(ZINF_STATE_MASTER, ret_values, n);
    if (fault < n)
        return refuse(r, err, "element %" PRIu64 " of \"%s\" in \"%s\" is %g: the model is damaged",
                      first + fault, t->name, r->shards[from->file].name,
                      (double)ret_values[fault]);
    return ZINF_OK;
}
