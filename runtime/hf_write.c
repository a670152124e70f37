/* runtime/hf_write.c - the writer of Hugging Face directories; see hf.h. DIR is built as
 * DIR.zinf-writing, which other ranks may join, and renamed; what a killed run left there is
 * removed by the next one, if it holds nothing but our files.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "kernels/f16.h"
#include "runtime/checkpoint_format.h"
#include "runtime/hf_config.h"
#include "runtime/hf_internal.h"
#include "runtime/json.h"
#include "runtime/mix.h"
#include "runtime/safetensors.h"

/* Copied from the directory that training began with, if they are there. */
static const char *const copied[] = {
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.json",
    "merges.txt", "tokenizer.model", "added_tokens.json", "generation_config.json",
    "chat_template.jinja", "chat_template.json"};
enum { N_COPIED = sizeof copied / sizeof *copied, FILE_NAME = 64 };

typedef struct shard {
    char name[FILE_NAME];
    uint32_t first, end; /* of the plan's tensors */
    uint64_t bytes;      /* of the tensors */
} shard;

struct zinf_hf_writer {
    const zinf_plan *plan;
    zinf_hf_options options;
    char *directory, *temporary, *parent;
    int dir_fd; /* of the temporary; locked, unless joined */
    bool joined, own_dtypes; /* own: each tensor has its own, which options.dtype is not */
    shard *shards;
    uint32_t n_shards, open_shard;
    int fd;            /* of the open shard */
    uint64_t *offsets; /* [n_tensors] in its file */
    uint64_t *totals;  /* [n_tensors][2] elements put, and the ends of what was written */
    uint32_t *dtypes;  /* [n_tensors] */
    uint32_t *file_of; /* [n_tensors] shard */
    char *chunk;       /* [ZINF_HF_CHUNK] */
};

static zinf_status fail_on(const zinf_hf_writer *w, const char *what, const char *name,
                           zinf_error *err)
{
    return zinf_fail(err, ZINF_MACHINE, "export: %s \"%s\" in \"%.300s\": %s", what, name,
                     w->temporary, strerror(errno));
}

/* ---- the directory ---- */

static bool is_ours(const char *name)
{
    unsigned a, b;
    int end = 0;

    for (int i = 0; i < N_COPIED; i++)
        if (!strcmp(name, copied[i]))
            return true;
    return !strcmp(name, "config.json") || !strcmp(name, ZINF_HF_SINGLE) ||
           !strcmp(name, ZINF_HF_INDEX) ||
           (sscanf(name, "model-%5u-of-%5u.safetensors%n", &a, &b, &end) == 2 && end &&
            !name[end]);
}

/* All files of the temporary directory, or only whether there are others than ours. */
static zinf_status empty(const zinf_hf_writer *w, bool removing, zinf_error *err)
{
    const int copy = openat(w->dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = copy < 0 ? NULL : fdopendir(copy);

    if (!d) {
        if (copy >= 0)
            close(copy);
        return fail_on(w, "listing", ".", err);
    }
    for (struct dirent *entry; (entry = readdir(d));) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
            continue;
        if (removing && is_ours(entry->d_name))
            unlinkat(w->dir_fd, entry->d_name, 0);
        else if (!is_ours(entry->d_name))
            zinf_fail(err, ZINF_BAD_INPUT, "export: \"%.300s\" is in the way and holds \"%s\", "
                      "which is not ours; move it away", w->temporary,
                      zinf_show(entry->d_name).text);
    }
    closedir(d);
    return err->status;
}

/* New, or an empty directory. */
static zinf_status check_target(const zinf_hf_writer *w, zinf_error *err)
{
    DIR *d = opendir(w->directory);
    bool full = false;

    if (!d && errno == ENOENT)
        return ZINF_OK;
    if (!d)
        return zinf_fail(err, ZINF_BAD_INPUT, "--export \"%.300s\": %s", w->directory,
                         strerror(errno));
    for (struct dirent *entry; (entry = readdir(d));)
        full |= strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..");
    closedir(d);
    if (full)
        return zinf_fail(err, ZINF_BAD_INPUT, "--export \"%.300s\": the directory is not empty, "
                         "and nothing is overwritten; name a new one", w->directory);
    return ZINF_OK;
}

static zinf_status open_temporary(zinf_hf_writer *w, zinf_error *err)
{
    if (check_target(w, err))
        return err->status;
    if (mkdir(w->temporary, 0777) && errno != EEXIST)
        return zinf_fail(err, ZINF_BAD_INPUT, "--export \"%.300s\": creating \"%.300s\": %s",
                         w->directory, w->temporary, strerror(errno));
    w->dir_fd = open(w->temporary, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (w->dir_fd < 0)
        return zinf_fail(err, ZINF_BAD_INPUT, "--export \"%.300s\": opening \"%.300s\": %s",
                         w->directory, w->temporary, strerror(errno));
    if (flock(w->dir_fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK) {
        close(w->dir_fd);
        w->dir_fd = -1; /* not ours to remove */
        return zinf_fail(err, ZINF_MACHINE, "--export \"%.300s\": another run is writing it",
                         w->directory);
    }
    if (empty(w, false, err)) {
        close(w->dir_fd);
        w->dir_fd = -1;
        return err->status;
    }
    return empty(w, true, err);
}

/* ---- the files ---- */

static uint64_t tensor_bytes(const zinf_hf_writer *w, uint32_t i)
{
    return zinf_tensor_elems(&w->plan->tensors[i]) * zinf_dtype_bytes(w->dtypes[i]);
}

/* In order of the plan, a new file where one would exceed shard_bytes. */
static zinf_status cut_shards(zinf_hf_writer *w, zinf_error *err)
{
    const uint32_t n = w->plan->n_tensors;

    w->shards = calloc((size_t)n + 1, sizeof *w->shards);
    if (!w->shards)
        return zinf_fail(err, ZINF_MACHINE, "export: out of memory");
    for (uint32_t i = 0; i < n; i++) {
        const uint64_t bytes = tensor_bytes(w, i);
        shard *s = w->n_shards ? &w->shards[w->n_shards - 1] : NULL;
        if (!s || s->bytes + bytes > w->options.shard_bytes) {
            s = &w->shards[w->n_shards++];
            s->first = i;
        }
        s->end = i + 1;
        s->bytes += bytes;
        w->file_of[i] = w->n_shards - 1;
    }
    if (w->n_shards > 99999)
        return zinf_fail(err, ZINF_BAD_INPUT, "export: %" PRIu32 " files are too many; raise "
                         "--export-shard", w->n_shards);
    for (uint32_t i = 0; i < w->n_shards; i++)
        if (w->n_shards == 1)
            strcpy(w->shards[i].name, ZINF_HF_SINGLE);
        else
            snprintf(w->shards[i].name, FILE_NAME, "model-%05" PRIu32 "-of-%05" PRIu32
                     ".safetensors", i + 1, w->n_shards);
    return ZINF_OK;
}

static zinf_status refuse_full(const zinf_hf_writer *w, uint64_t needed, zinf_error *err)
{
    struct statvfs fs;
    const uint64_t free_bytes = fstatvfs(w->dir_fd, &fs) ? 0 : (uint64_t)fs.f_bavail * fs.f_frsize;

    return zinf_fail(err, ZINF_MACHINE, "export: \"%.300s\" needs %" PRIu64 " bytes, but its "
                     "filesystem has %" PRIu64 " bytes free", w->directory, needed, free_bytes);
}

static zinf_status check_space(const zinf_hf_writer *w, zinf_error *err)
{
    const uint64_t header = ZINF_SAFETENSORS_HEADER / 100;
    uint64_t needed = 0, largest = 0;
    struct statvfs fs;
    struct rlimit limit;

    for (uint32_t i = 0; i < w->n_shards; i++) {
        needed += w->shards[i].bytes + (i ? 4096 : header);
        largest = w->shards[i].bytes + header > largest ? w->shards[i].bytes + header : largest;
    }
    if (fstatvfs(w->dir_fd, &fs))
        return fail_on(w, "free space of", ".", err);
    if ((uint64_t)fs.f_bavail < needed / fs.f_frsize)
        return refuse_full(w, needed, err);
    /* Asked first because crossing it is a signal, not an error. */
    if (!getrlimit(RLIMIT_FSIZE, &limit) && limit.rlim_cur < largest)
        return zinf_fail(err, ZINF_MACHINE, "export: a file of \"%.300s\" needs %" PRIu64 " bytes, "
                         "but files of this process are limited to %" PRIu64 " bytes; raise it "
                         "(ulimit -f) or lower --export-shard", w->directory, largest,
                         (uint64_t)limit.rlim_cur);
    return ZINF_OK;
}

static zinf_status use_shard(zinf_hf_writer *w, uint32_t index, int flags, zinf_error *err)
{
    if (w->fd >= 0 && w->open_shard == index)
        return ZINF_OK;
    if (w->fd >= 0)
        close(w->fd);
    w->open_shard = index;
    w->fd = openat(w->dir_fd, w->shards[index].name, O_RDWR | O_CLOEXEC | flags, 0666);
    return w->fd < 0 ? fail_on(w, flags ? "creating" : "opening", w->shards[index].name, err)
                     : ZINF_OK;
}

/* A file's header, and behind it where its tensors lie. */
static zinf_status lay_out_shard(zinf_hf_writer *w, uint32_t index, zinf_safetensor_row *rows,
                                 char **ret_header, uint64_t *ret_n, zinf_error *err)
{
    static const char *const metadata[][2] = {{"format", "pt"}};
    const shard *s = &w->shards[index];

    for (uint32_t i = s->first; i < s->end; i++) {
        zinf_safetensor_row *row = &rows[i - s->first];
        *row = (zinf_safetensor_row){.name = w->plan->tensors[i].name, .dtype = w->dtypes[i]};
        row->n_dims = zinf_hf_shape(w->plan, &w->plan->tensors[i], row->shape);
    }
    if (zinf_safetensors_header(rows, s->end - s->first, metadata, 1, ret_header, ret_n, err))
        return err->status;
    for (uint64_t i = s->first, at = *ret_n; i < s->end; i++) {
        w->offsets[i] = at;
        at += tensor_bytes(w, (uint32_t)i);
    }
    return ZINF_OK;
}

static zinf_status create_shard(zinf_hf_writer *w, uint32_t index, const char *header, uint64_t n,
                                zinf_error *err)
{
    const shard *s = &w->shards[index];
    int rc;

    if (use_shard(w, index, O_CREAT | O_EXCL, err))
        return err->status;
    do
        rc = fallocate(w->fd, 0, 0, (off_t)(n + s->bytes));
    while (rc && errno == EINTR);
    if (rc && errno == EOPNOTSUPP)
        rc = ftruncate(w->fd, (off_t)(n + s->bytes));
    if (rc && (errno == ENOSPC || errno == EDQUOT))
        refuse_full(w, n + s->bytes, err);
    else if (rc)
        fail_on(w, "reserving", s->name, err);
    else
        zinf_write_all(w->fd, header, n, 0, w->temporary, s->name, err);
    return err->status;
}

/* Each is there for this rank too, and of the length that rank 0 has given it. */
static zinf_status join_shard(zinf_hf_writer *w, uint32_t index, uint64_t n, zinf_error *err)
{
    const shard *s = &w->shards[index];
    struct stat st;

    if (use_shard(w, index, 0, err))
        return err->status;
    if (fstat(w->fd, &st))
        return fail_on(w, "size of", s->name, err);
    if ((uint64_t)st.st_size != n + s->bytes)
        return zinf_fail(err, ZINF_MACHINE, "export: \"%s\" in \"%.300s\" has %" PRIu64 " bytes "
                         "here, rank 0 has made it with %" PRIu64, s->name, w->temporary,
                         (uint64_t)st.st_size, n + s->bytes);
    return ZINF_OK;
}

static zinf_status open_shards(zinf_hf_writer *w, zinf_error *err)
{
    zinf_safetensor_row *rows = calloc((size_t)w->plan->n_tensors + 1, sizeof *rows);

    if (!rows)
        return zinf_fail(err, ZINF_MACHINE, "export: out of memory");
    for (uint32_t i = 0; !err->status && i < w->n_shards; i++) {
        char *header = NULL;
        uint64_t n = 0;
        if (!lay_out_shard(w, i, rows, &header, &n, err))
            w->joined ? join_shard(w, i, n, err) : create_shard(w, i, header, n, err);
        free(header);
    }
    free(rows);
    return err->status;
}

/* "a/b///" is "a/b", in "a"; "b" is in ".". */
static bool set_paths(zinf_hf_writer *w, const char *directory)
{
    size_t n = strlen(directory);

    while (n > 1 && directory[n - 1] == '/')
        n--;
    w->directory = strndup(directory, n);
    if (!w->directory || asprintf(&w->temporary, "%s.zinf-writing", w->directory) < 0) {
        w->temporary = NULL;
        return false;
    }
    const char *slash = strrchr(w->directory, '/');
    w->parent = !slash ? strdup(".") : strndup(directory, (size_t)(slash - w->directory) + 1);
    return w->parent != NULL;
}

/* That of the rank that created it. */
static zinf_status join_temporary(zinf_hf_writer *w, zinf_error *err)
{
    w->dir_fd = open(w->temporary, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (w->dir_fd < 0)
        return zinf_fail(err, ZINF_BAD_INPUT, "export: \"%.300s\", which rank 0 has made, cannot "
                         "be opened here: %s; --export HF_DIR must be on a filesystem that every "
                         "rank sees", w->temporary, strerror(errno));
    return ZINF_OK;
}

static zinf_status open_writer(const char *directory, const zinf_plan *plan,
                               const zinf_hf_options *options, bool joined,
                               zinf_hf_writer **ret_writer, zinf_error *err)
{
    const size_t n = (size_t)plan->n_tensors + 1;
    zinf_hf_writer *w = calloc(1, sizeof *w);
    uint64_t *checked = calloc(n + 1, sizeof *checked);

    if (!w || !checked) {
        free(w);
        free(checked);
        return zinf_fail(err, ZINF_MACHINE, "export: out of memory");
    }
    w->plan = plan;
    w->options = *options;
    w->joined = joined;
    w->own_dtypes = options->dtypes != NULL;
    w->dir_fd = w->fd = -1;
    w->offsets = calloc(n, sizeof *w->offsets);
    w->totals = calloc(2 * n, sizeof *w->totals);
    w->dtypes = calloc(n, sizeof *w->dtypes);
    w->file_of = calloc(n, sizeof *w->file_of);
    w->chunk = malloc(ZINF_HF_CHUNK);
    if (!set_paths(w, directory) || !w->offsets || !w->totals || !w->dtypes ||
        !w->file_of || !w->chunk)
        zinf_fail(err, ZINF_MACHINE, "export: out of memory");
    for (uint32_t i = 0; !err->status && i < plan->n_tensors; i++)
        w->dtypes[i] = options->dtypes ? options->dtypes[i] : options->dtype;
    w->options.dtypes = NULL; /* the caller's */
    if (!err->status && !zinf_checkpoint_layout(plan, checked, err) && !cut_shards(w, err) &&
             (joined ? !join_temporary(w, err) : !open_temporary(w, err) && !check_space(w, err)))
        open_shards(w, err);
    free(checked);
    if (err->status)
        zinf_hf_abandon(w);
    else
        *ret_writer = w;
    return err->status;
}

zinf_status zinf_hf_create(const char *directory, const zinf_plan *plan,
                           const zinf_hf_options *options, zinf_hf_writer **ret_writer,
                           zinf_error *err)
{
    return open_writer(directory, plan, options, false, ret_writer, err);
}

zinf_status zinf_hf_join(const char *directory, const zinf_plan *plan,
                         const zinf_hf_options *options, zinf_hf_writer **ret_writer,
                         zinf_error *err)
{
    return open_writer(directory, plan, options, true, ret_writer, err);
}

/* ---- elements ---- */

static void store_elem(char *bytes, uint32_t dtype, uint64_t i, float value)
{
    if (dtype == ZINF_F32) {
        memcpy(bytes + 4 * i, &value, 4);
        return;
    }
    const uint16_t half = dtype == ZINF_BF16 ? zinf_bf16_from_f32(value) : zinf_f16_from_f32(value);
    memcpy(bytes + 2 * i, &half, 2);
}

/* A number for a place in a tensor. Over the pieces [begin, end) of
 * what was written, the sum of place(end) - place(begin) is that of the whole tensor where the ends
 * cancel as they do when each piece begins where another one ended, and no byte is written twice
 * or left out; another set of pieces has it with a chance of 2^-64. It may be made in any order, by
 * any ranks, and takes one number a tensor. */
static uint64_t place(uint64_t byte)
{
    return zinf_mix((byte + 1) * 0x9e3779b97f4a7c15);
}

/* At an offset in the tensor's bytes. */
static zinf_status write_at(zinf_hf_writer *w, uint32_t tensor, const void *bytes, uint64_t n,
                            uint64_t offset, zinf_error *err)
{
    w->totals[2 * tensor + 1] += place(offset + n) - place(offset);
    return zinf_write_all(w->fd, bytes, n, w->offsets[tensor] + offset, w->temporary,
                          w->shards[w->open_shard].name, err);
}

static zinf_status write_plain(zinf_hf_writer *w, uint32_t tensor, uint64_t first, uint64_t n,
                               const float *values, zinf_error *err)
{
    const uint32_t dtype = w->dtypes[tensor];
    const uint64_t size = zinf_dtype_bytes(dtype), most = ZINF_HF_CHUNK / size;

    if (dtype == ZINF_F32)
        return write_at(w, tensor, values, n * size, first * size, err);
    for (uint64_t at = 0; at < n; at += most) {
        const uint64_t some = n - at < most ? n - at : most;
        for (uint64_t i = 0; i < some; i++)
            store_elem(w->chunk, dtype, i, values[at + i]);
        if (write_at(w, tensor, w->chunk, some * size, (first + at) * size, err))
            return err->status;
    }
    return ZINF_OK;
}

static zinf_status write_turned(zinf_hf_writer *w, uint32_t tensor, uint64_t first, uint64_t n,
                                const float *values, zinf_error *err)
{
    const zinf_tensor *t = &w->plan->tensors[tensor];
    const uint32_t dtype = w->dtypes[tensor];
    const uint64_t size = zinf_dtype_bytes(dtype), rows = t->rows, cols = t->cols;
    const bool whole_rows = first % cols == 0 && n % cols == 0;
    zinf_hf_block b = {0};

    while (zinf_hf_next_block(t, first, n, size, &b)) {
        const uint64_t width = b.col_end - b.col;
        for (uint64_t row = b.col; row < b.col_end; row++)
            for (uint64_t c = b.row; c < b.row_end; c++) {
                const uint64_t element = row * cols + c;
                if (element >= first && element - first < n)
                    store_elem(w->chunk, dtype, (c - b.row) * width + row - b.col,
                               values[element - first]);
            }
        const uint64_t at_once = whole_rows && width == rows ? b.row_end - b.row : 1;
        for (uint64_t c = b.row; c < b.row_end; c += at_once) {
            /* of a stored row only what is in the range: its ends may be another call's */
            const uint64_t low = b.col + (b.col * cols + c < first);
            const uint64_t high = b.col_end - ((b.col_end - 1) * cols + c >= first + n);
            if (low < high &&
                write_at(w, tensor, w->chunk + ((c - b.row) * width + low - b.col) * size,
                         (at_once > 1 ? at_once * width : high - low) * size,
                         (c * rows + low) * size, err))
                return err->status;
        }
    }
    return ZINF_OK;
}

/* Half a unit beyond the largest number of the dtype what is rounded becomes infinite. */
static zinf_status check_range(uint32_t dtype, const char *name, uint64_t first, uint64_t n,
                               const float *values, zinf_error *err)
{
    const float limit = dtype == ZINF_BF16 ? 0x1.ffp127f : 65520;

    for (uint64_t i = 0; dtype != ZINF_F32 && i < n; i++)
        if (!(fabsf(values[i]) < limit))
            return zinf_fail(err, ZINF_BAD_INPUT, "export: element %" PRIu64 " of \"%s\" is %g, "
                             "beyond the largest number of %s (%g); export it with --export-dtype "
                             "%s", first + i, name, (double)values[i], zinf_dtype_name(dtype),
                             dtype == ZINF_BF16 ? 0x1.fep127 : 65504,
                             dtype == ZINF_BF16 ? "fp32" : "fp32 or bf16");
    return ZINF_OK;
}

zinf_status zinf_hf_put(zinf_hf_writer *w, uint32_t tensor, uint64_t first, uint64_t n,
                        const float *values, zinf_error *err)
{
    const zinf_tensor *t = &w->plan->tensors[tensor];
    const uint64_t fault = zinf_state_fault(ZINF_STATE_MASTER, values, n);

    if (fault < n)
        return zinf_fail(err, ZINF_WRONG_RESULT, "export: element %" PRIu64 " of \"%s\" is %g; no "
                         "such model is written", first + fault, t->name, (double)values[fault]);
    if (!n)
        return ZINF_OK;
    if (check_range(w->dtypes[tensor], t->name, first, n, values, err) ||
        use_shard(w, w->file_of[tensor], 0, err))
        return err->status;
    w->totals[2 * tensor] += n;
    return zinf_hf_turned(w->plan, t) ? write_turned(w, tensor, first, n, values, err)
                                      : write_plain(w, tensor, first, n, values, err);
}

/* ---- commit ---- */

static zinf_status write_text(const zinf_hf_writer *w, const char *name, json_object *object,
                              zinf_error *err)
{
    const char *text = json_object_to_json_string_ext(
        object, JSON_C_TO_STRING_PRETTY | JSON_C_TO_STRING_SPACED | JSON_C_TO_STRING_NOSLASHESCAPE);
    const bool fine = text && errno != ENOMEM; /* 0 when the object was begun */
    const int fd = openat(w->dir_fd, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);

    if (fd < 0)
        return fail_on(w, "creating", name, err);
    if (!fine)
        zinf_fail(err, ZINF_MACHINE, "export: out of memory");
    else if (!zinf_write_all(fd, text, strlen(text), 0, w->temporary, name, err) &&
             !zinf_write_all(fd, "\n", 1, strlen(text), w->temporary, name, err) && fsync(fd))
        fail_on(w, "syncing", name, err);
    if (close(fd))
        fail_on(w, "closing", name, err);
    return err->status;
}

static zinf_status write_index(const zinf_hf_writer *w, zinf_error *err)
{
    errno = 0;
    json_object *index = json_object_new_object(), *metadata = json_object_new_object();
    json_object *map = json_object_new_object();
    uint64_t total = 0;

    for (uint32_t i = 0; i < w->n_shards; i++)
        total += w->shards[i].bytes;
    zinf_json_add(metadata, "total_size", json_object_new_uint64(total));
    zinf_json_add(index, "metadata", metadata);
    for (uint32_t i = 0; i < w->plan->n_tensors; i++)
        zinf_json_add(map, w->plan->tensors[i].name,
                      json_object_new_string(w->shards[w->file_of[i]].name));
    zinf_json_add(index, "weight_map", map);
    write_text(w, ZINF_HF_INDEX, index, err);
    json_object_put(index);
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

/* That of the directory that training began with, or a new one. */
static zinf_status write_config(const zinf_hf_writer *w, zinf_error *err)
{
    const char *dtype = w->options.dtype == ZINF_F32    ? "float32"
                        : w->options.dtype == ZINF_BF16 ? "bfloat16"
                                                        : "float16";
    json_object *config = NULL;
    char *path = NULL, *text = NULL, what[420];
    size_t n = 0;

    if (w->options.from) {
        if (asprintf(&path, "%s/config.json", w->options.from) < 0)
            return zinf_fail(err, ZINF_MACHINE, "export: out of memory");
        snprintf(what, sizeof what, "\"%.400s\"", path);
        if (!zinf_hf_config_load(path, &text, &n, err))
            zinf_json_parse(what, text, n, 16, &config, err);
        free(text);
        free(path);
        if (err->status)
            return err->status;
    } else {
        config = make_config(&w->plan->model);
    }
    /* the newer name where the file has it, else the one that all versions read */
    if (!w->own_dtypes)
        add_text(config, json_object_object_get_ex(config, "dtype", NULL) ? "dtype"
                                                                            : "torch_dtype",
                 dtype);
    write_text(w, "config.json", config, err);
    json_object_put(config);
    return err->status;
}

static zinf_status copy_file(const zinf_hf_writer *w, const char *name, zinf_error *err)
{
    char *path = NULL;
    struct stat st;
    uint64_t at = 0;

    if (asprintf(&path, "%s/%s", w->options.from, name) < 0)
        return zinf_fail(err, ZINF_MACHINE, "export: out of memory");
    const int from = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    free(path);
    if (from < 0 && errno == ENOENT)
        return ZINF_OK;
    if (from < 0 || fstat(from, &st) || !S_ISREG(st.st_mode)) {
        zinf_fail(err, ZINF_BAD_INPUT, "export: \"%s\" in \"%.300s\" cannot be copied: %s", name,
                  w->options.from, from < 0 ? strerror(errno) : "not a regular file");
        if (from >= 0)
            close(from);
        return err->status;
    }
    const int to = openat(w->dir_fd, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (to < 0)
        fail_on(w, "creating", name, err);
    while (!err->status && at < (uint64_t)st.st_size) {
        const uint64_t left = (uint64_t)st.st_size - at;
        const uint64_t some = left < ZINF_HF_CHUNK ? left : ZINF_HF_CHUNK;
        if (!zinf_read_all(from, w->chunk, some, at, w->options.from, name, err))
            zinf_write_all(to, w->chunk, some, at, w->temporary, name, err);
        at += some;
    }
    if (!err->status && fsync(to))
        fail_on(w, "syncing", name, err);
    if (to >= 0)
        close(to);
    close(from);
    return err->status;
}

static zinf_status check_complete(const zinf_hf_writer *w, zinf_error *err)
{
    for (uint32_t i = 0; i < w->plan->n_tensors; i++) {
        const zinf_tensor *t = &w->plan->tensors[i];
        const uint64_t *totals = &w->totals[2 * i];
        if (totals[0] != zinf_tensor_elems(t))
            return zinf_fail(err, ZINF_WRONG_RESULT, "export: %" PRIu64 " elements of \"%s\" were "
                             "put, it has %" PRIu64, totals[0], t->name, zinf_tensor_elems(t));
        if (totals[1] != place(tensor_bytes(w, i)) - place(0))
            return zinf_fail(err, ZINF_WRONG_RESULT, "export: some bytes of \"%s\" were written "
                             "twice and others not at all", t->name);
    }
    return ZINF_OK;
}

zinf_status zinf_hf_sync(zinf_hf_writer *w, zinf_error *err)
{
    for (uint32_t i = 0; i < w->n_shards; i++)
        if (use_shard(w, i, 0, err))
            return err->status;
        else if (fsync(w->fd))
            return fail_on(w, "syncing", w->shards[i].name, err);
    return ZINF_OK;
}

uint64_t *zinf_hf_totals(zinf_hf_writer *w, uint32_t *ret_n)
{
    *ret_n = 2 * w->plan->n_tensors;
    return w->totals;
}

static zinf_status publish(zinf_hf_writer *w, zinf_error *err)
{
    if (zinf_hf_sync(w, err))
        return err->status;
    if (fsync(w->dir_fd))
        return fail_on(w, "syncing", ".", err);
    /* An empty directory gives way; a full one, which has come meanwhile, does not. */
    if (rename(w->temporary, w->directory))
        return zinf_fail(err, ZINF_MACHINE, "export: renaming \"%.300s\" to \"%.300s\": %s",
                         w->temporary, w->directory, strerror(errno));
    close(w->dir_fd);
    w->dir_fd = -1; /* nothing temporary is left */
    const int parent = open(w->parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (parent < 0 || fsync(parent))
        zinf_fail(err, ZINF_MACHINE, "export: syncing \"%.300s\": %s", w->parent, strerror(errno));
    if (parent >= 0)
        close(parent);
    return err->status;
}

zinf_status zinf_hf_commit(zinf_hf_writer *w, zinf_error *err)
{
    if (!check_complete(w, err) && !write_config(w, err) &&
        (w->n_shards == 1 || !write_index(w, err))) {
        for (int i = 0; w->options.from && !err->status && i < N_COPIED; i++)
            copy_file(w, copied[i], err);
        if (!err->status)
            publish(w, err);
    }
    zinf_hf_abandon(w);
    return err->status;
}

void zinf_hf_abandon(zinf_hf_writer *w)
{
    if (!w)
        return;
    if (w->fd >= 0)
        close(w->fd);
    if (w->dir_fd >= 0 && !w->joined) {
        zinf_error ignored = {0};
        empty(w, true, &ignored);
        rmdir(w->temporary);
    }
    if (w->dir_fd >= 0)
        close(w->dir_fd); /* and the lock with it */
    free(w->shards);
    free(w->offsets);
    free(w->totals);
    free(w->dtypes);
    free(w->file_of);
    free(w->chunk);
    free(w->directory);
    free(w->temporary);
    free(w->parent);
    free(w);
}
