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
#include <sys/random.h>
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

enum { FILE_NAME = 64 };

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
    uint64_t mark;     /* see zinf_hf_mark */
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

    return zinf_hf_is_text(name) || !strcmp(name, ZINF_HF_SINGLE) ||
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

/* Why an empty directory cannot give way to the one that is built beside it; NULL if it can. */
static const char *irreplaceable(const char *directory, const char *parent)
{
    struct stat itself, above, current;
    struct statx more;

    if (stat(directory, &itself) || stat(parent, &above))
        return NULL;
    if (!stat(".", &current) && current.st_dev == itself.st_dev && current.st_ino == itself.st_ino)
        return "it is the one in which this runs";
    if (itself.st_dev != above.st_dev ||
        (!statx(AT_FDCWD, directory, 0, 0, &more) && more.stx_attributes & STATX_ATTR_MOUNT_ROOT))
        return "a filesystem is mounted there";
    if (above.st_mode & S_ISVTX && geteuid() && itself.st_uid != geteuid() &&
        above.st_uid != geteuid())
        return "it is another user's";
    return NULL;
}

/* New, or an empty directory. */
static zinf_status check_target(const zinf_hf_writer *w, zinf_error *err)
{
    DIR *d = opendir(w->directory);
    bool full = false;
    struct stat link;

    if (!d && errno == ENOENT && !lstat(w->directory, &link))
        return zinf_fail(err, ZINF_BAD_INPUT, "--export \"%.300s\": it is a link to what is not "
                         "there; name the directory itself", w->directory);
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
    const char *why = irreplaceable(w->directory, w->parent);
    if (why)
        return zinf_fail(err, ZINF_BAD_INPUT, "--export \"%.300s\": the directory is empty but "
                         "cannot be replaced: %s; name a new one, such as \"%.300s/model\"",
                         w->directory, why, w->directory);
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

/* ---- texts ---- */

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
    const zinf_hf_place to = {w->dir_fd, w->temporary};
    zinf_hf_write_text(&to, ZINF_HF_INDEX, index, err);
    json_object_put(index);
    return err->status;
}

/* All that is not weights: config.json, the tokenizer's, the index of several files. */
static zinf_status write_texts(const zinf_hf_writer *w, zinf_error *err)
{
    const zinf_hf_place to = {w->dir_fd, w->temporary};
    const char *from = w->options.from;

    if (zinf_hf_write_config(&to, w->plan, from, w->own_dtypes ? ZINF_N_DTYPES : w->options.dtype,
                             err) ||
        (w->n_shards > 1 && write_index(w, err)) ||
        (from && zinf_hf_copy_texts(&to, from, w->chunk, err)))
        return err->status;
    return ZINF_OK;
}

/* ---- opening ---- */

/* Where the first tensor will be. */
static zinf_status leave_mark(zinf_hf_writer *w, zinf_error *err)
{
    const uint64_t room = w->plan->n_tensors ? tensor_bytes(w, 0) : 0;
    const uint64_t n = room < sizeof w->mark ? room : sizeof w->mark;
    const char *name = w->shards[0].name;

    if (!n || use_shard(w, 0, 0, err))
        return err->status;
    if (w->joined)
        return zinf_read_all(w->fd, &w->mark, n, w->offsets[0], w->temporary, name, err);
    if (getrandom(&w->mark, n, 0) != (ssize_t)n)
        return fail_on(w, "a mark for", name, err);
    if (!zinf_write_all(w->fd, &w->mark, n, w->offsets[0], w->temporary, name, err) &&
        fsync(w->fd))
        return fail_on(w, "syncing", name, err);
    return err->status;
}

uint64_t zinf_hf_mark(const zinf_hf_writer *w)
{
    return w->mark;
}

/* "a/b///" is "a/b", in "a"; "b" is in "."; what is there is where its links lead. */
static bool set_paths(zinf_hf_writer *w, const char *directory)
{
    size_t n = strlen(directory);

    while (n > 1 && directory[n - 1] == '/')
        n--;
    w->directory = realpath(directory, NULL);
    if (!w->directory)
        w->directory = strndup(directory, n);
    if (!w->directory || asprintf(&w->temporary, "%s" ZINF_HF_WRITING, w->directory) < 0) {
        w->temporary = NULL;
        return false;
    }
    const char *slash = strrchr(w->directory, '/');
    w->parent = !slash ? strdup(".")
                       : strndup(w->directory, (size_t)(slash - w->directory) + 1);
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
    if (options->from && !joined && !err->status)
        zinf_hf_check_directory(options->from, err);
    if (!err->status && !zinf_checkpoint_layout(plan, checked, err) && !cut_shards(w, err) &&
             (joined ? !join_temporary(w, err) : !open_temporary(w, err) && !check_space(w, err)) &&
        !open_shards(w, err) && !leave_mark(w, err) && !joined)
        write_texts(w, err);
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
    if (!check_complete(w, err))
        publish(w, err);
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
