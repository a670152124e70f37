/* runtime/checkpoint.c - the writer of checkpoints; see checkpoint.h for the promise and
 * checkpoint_format.h for the format.
 *
 * One writer a directory (flock on the directory itself), which other ranks may join. It builds
 * DIR/.zinf-writing and renames that; a checkpoint to be removed is renamed to DIR/.zinf-removing
 * first. What a killed run left under these two names is cleaned by the next writer.
 * DIR/.zinf-reserved, if it is there, becomes what is written: its space is ours already. Only
 * directories that hold nothing but our files are ever removed.
 */
#include "runtime/checkpoint_format.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <xxhash.h>

#include "runtime/element_sum.h"
#include "runtime/files.h"
#include "runtime/safetensors.h"

enum { STEP_NAME = 32 };

typedef struct extent {
    uint64_t first, end; /* elements */
} extent;

/* What was put of one array of one tensor. */
typedef struct track {
    extent *extents; /* sorted, apart from each other */
    uint32_t n, room;
} track;

struct zinf_checkpoint_writer {
    const zinf_plan *plan;
    zinf_progress progress;
    char *directory;
    char step_name[STEP_NAME];
    const char *temp_name; /* ZINF_WRITING_NAME; of a reservation ZINF_RESERVED_NAME */
    int dir_fd, temp_fd, fds[ZINF_N_STATES];
    uint64_t data_at[ZINF_N_STATES], header_sums[ZINF_N_STATES];
    uint64_t *offsets; /* [n_tensors + 1] */
    track *tracks;     /* [n_tensors][ZINF_N_STATES] */
    uint64_t *totals;  /* [n_tensors][ZINF_N_STATES] checksums, then as many counts of elements */
    bool joined;
};

static const char *const our_files[] = {
    ZINF_MANIFEST_NAME, "master.safetensors", "m.safetensors", "v.safetensors",
    ZINF_LATEST_NAME}; /* the last until it is published */
enum { N_OUR_FILES = 5 };

static zinf_status fail_on(const zinf_checkpoint_writer *w, const char *what, const char *name,
                           zinf_error *err)
{
    return zinf_fail(err, ZINF_MACHINE, "checkpoint: %s \"%s\" in \"%s\": %s", what, name,
                     w->directory, strerror(errno));
}

/* ---- removing ---- */

/* errno is 0 if it holds others', else why that is not known. */
static bool holds_only_ours(int fd)
{
    int copy = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = copy < 0 ? NULL : fdopendir(copy);
    bool only = d != NULL;

    if (!d && copy >= 0)
        close(copy);
    errno = d ? 0 : errno;
    for (struct dirent *entry; only && (entry = readdir(d));) {
        bool ours = !strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..");
        for (int i = 0; i < N_OUR_FILES; i++)
            ours |= !strcmp(entry->d_name, our_files[i]);
        only = ours;
    }
    only = only && !errno;
    if (d)
        closedir(d);
    return only;
}

/* Leaves alone what is not there, is no directory, or holds anything of somebody else's. */
void zinf_checkpoint_remove(int dir_fd, const char *name)
{
    int fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);

    if (fd < 0)
        return;
    if (holds_only_ours(fd)) {
        for (int i = 0; i < N_OUR_FILES; i++)
            unlinkat(fd, our_files[i], 0);
        unlinkat(dir_fd, name, AT_REMOVEDIR);
    }
    close(fd);
}

bool zinf_checkpoint_step_name(const char *name, uint64_t *ret_step)
{
    char again[STEP_NAME];

    if (strncmp(name, "step-", 5))
        return false;
    *ret_step = strtoull(name + 5, NULL, 10);
    snprintf(again, sizeof again, "step-%" PRIu64, *ret_step);
    return !strcmp(again, name);
}

static bool is_ours(int dir_fd, const char *name)
{
    int fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    bool ours = fd >= 0 && !faccessat(fd, ZINF_MANIFEST_NAME, F_OK, 0) && holds_only_ours(fd);

    if (fd >= 0)
        close(fd);
    return ours;
}

bool zinf_checkpoint_is_only_ours(int dir_fd, const char *name)
{
    int fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    bool only = fd >= 0 && holds_only_ours(fd);

    if (fd >= 0)
        close(fd);
    return only;
}

bool zinf_checkpoint_is_step(int dir_fd, const char *name, uint64_t *ret_step)
{
    return zinf_checkpoint_step_name(name, ret_step) && is_ours(dir_fd, name);
}

/* Of the steps before this one, the latest stays. A failure to remove fails nothing. */
static void remove_older(const zinf_checkpoint_writer *w)
{
    uint64_t kept = 0, step;
    int fd = openat(w->dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);

    if (!d) {
        if (fd >= 0)
            close(fd);
        return;
    }
    for (int pass = 0; pass < 2; pass++) {
        rewinddir(d);
        for (struct dirent *entry; (entry = readdir(d));) {
            if (!zinf_checkpoint_is_step(w->dir_fd, entry->d_name, &step) ||
                step >= w->progress.step)
                continue;
            if (!pass)
                kept = step > kept ? step : kept;
            else if (step < kept &&
                     !renameat(w->dir_fd, entry->d_name, w->dir_fd, ZINF_REMOVING_NAME))
                zinf_checkpoint_remove(w->dir_fd, ZINF_REMOVING_NAME);
        }
    }
    closedir(d);
}

/* ---- the manifest and `latest` ---- */

static void add_sum(json_object *object, const char *name, uint64_t sum)
{
    char text[ZINF_SUM_DIGITS + 1];

    zinf_sum_text(sum, text);
    zinf_json_add(object, name, json_object_new_string(text));
}

static json_object *make_model(const zinf_model_info *model)
{
    json_object *object = json_object_new_object();

    zinf_json_add(object, "name", json_object_new_string(model->name));
    zinf_json_add(object, "family", json_object_new_string(model->family));
    for (unsigned i = 0; i < zinf_n_model_fields; i++)
        zinf_json_add(object, zinf_model_fields[i].name,
                               json_object_new_uint64(zinf_model_field_value(model, i)));
    for (unsigned i = 0; i < zinf_n_model_reals; i++) {
        char text[64];
        snprintf(text, sizeof text, "%a", zinf_model_real_value(model, i));
        zinf_json_add(object, zinf_model_reals[i].name, json_object_new_string(text));
    }
    return object;
}

static json_object *make_manifest(const zinf_checkpoint_writer *w)
{
    const uint64_t data_bytes = w->offsets[w->plan->n_tensors];
    json_object *m = json_object_new_object(), *files = json_object_new_object();
    json_object *tensors = json_object_new_array();
    char scale[64];

    zinf_json_add(m, "format", json_object_new_string(ZINF_CHECKPOINT_FORMAT));
    zinf_json_add(m, "version", json_object_new_int(ZINF_CHECKPOINT_VERSION));
    zinf_json_add(m, "step", json_object_new_uint64(w->progress.step));
    zinf_json_add(m, "data_position", json_object_new_uint64(w->progress.data_position));
    zinf_json_add(m, "seed", json_object_new_uint64(w->progress.seed));
    snprintf(scale, sizeof scale, "%a", w->progress.loss_scale); /* to the bit */
    zinf_json_add(m, "loss_scale", json_object_new_string(scale));
    add_sum(m, "plan_hash", w->progress.plan_hash);
    zinf_json_add(m, "n_skipped", json_object_new_uint64(w->progress.n_skipped));
    zinf_json_add(m, "model", make_model(&w->plan->model));
    for (unsigned a = 0; a < ZINF_N_STATES; a++) {
        json_object *file = json_object_new_object();
        zinf_json_add(file, "bytes", json_object_new_uint64(w->data_at[a] + data_bytes));
        add_sum(file, "header", w->header_sums[a]);
        zinf_json_add(files, zinf_state_files[a], file);
    }
    zinf_json_add(m, "files", files);
    for (uint32_t i = 0; i < w->plan->n_tensors; i++) {
        json_object *tensor = json_object_new_object();
        const char *name = w->plan->tensors[i].name;
        zinf_json_add(tensor, "name", json_object_new_string(name));
        zinf_json_add(tensor, "shape", zinf_tensor_shape(&w->plan->tensors[i]));
        for (unsigned a = 0; a < ZINF_N_STATES; a++)
            add_sum(tensor, zinf_state_names[a], w->totals[(size_t)i * ZINF_N_STATES + a]);
        zinf_json_append(tensors, tensor);
    }
    zinf_json_add(m, "tensors", tensors);
    add_sum(m, "checksum", 0);
    return m;
}

/* Over what is there, so that reserved space stays ours. */
static zinf_status write_small(const zinf_checkpoint_writer *w, const char *name,
                               const char *text, uint64_t n, uint64_t reserved_bytes,
                               bool sync, zinf_error *err)
{
    int fd = openat(w->temp_fd, name, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);

    if (fd < 0)
        return fail_on(w, "creating", name, err);
    if (reserved_bytes && fallocate(fd, 0, 0, (off_t)reserved_bytes) &&
        (errno == ENOSPC || errno == EDQUOT))
        fail_on(w, "reserving", name, err);
    else if (!zinf_write_all(fd, text, n, 0, w->directory, name, err) && !reserved_bytes &&
             ftruncate(fd, (off_t)n))
        fail_on(w, "sizing", name, err);
    else if (!err->status && sync && fsync(fd))
        fail_on(w, "syncing", name, err);
    if (close(fd))
        fail_on(w, "closing", name, err);
    return err->status;
}

/* With its checksum; if not `whole`, only its space is kept, of any step's. */
static zinf_status write_manifest(const zinf_checkpoint_writer *w, bool whole, zinf_error *err)
{
    enum { MORE = 64 }; /* digits of a later step, data position and number of skips */
    errno = 0;
    json_object *manifest = make_manifest(w);
    const char *text = json_object_to_json_string_ext(
        manifest, JSON_C_TO_STRING_PRETTY | JSON_C_TO_STRING_SPACED |
                      JSON_C_TO_STRING_NOSLASHESCAPE);
    const size_t n = text && errno != ENOMEM ? strlen(text) : 0;
    char *copy = n ? malloc(n + 2) : NULL;

    if (copy && whole) {
        memcpy(copy, text, n);
        memcpy(copy + n, "\n", 2);
        /* The text ends with the 16 digits and ZINF_MANIFEST_END. */
        const size_t at = n + 1 - strlen(ZINF_MANIFEST_END) - ZINF_SUM_DIGITS;
        char sum[ZINF_SUM_DIGITS + 1];
        zinf_sum_text(XXH64(copy, at, 0), sum);
        memcpy(copy + at, sum, ZINF_SUM_DIGITS);
        write_small(w, ZINF_MANIFEST_NAME, copy, n + 1, 0, true, err);
    } else if (copy) {
        write_small(w, ZINF_MANIFEST_NAME, "", 0, n + 1 + MORE, false, err);
    } else {
        zinf_fail(err, ZINF_MACHINE, "checkpoint: out of memory");
    }
    free(copy);
    json_object_put(manifest);
    return err->status;
}

static zinf_status write_latest(const zinf_checkpoint_writer *w, bool sync, zinf_error *err)
{
    char text[STEP_NAME + 1];
    const int n = snprintf(text, sizeof text, "%s\n", w->step_name);

    return write_small(w, ZINF_LATEST_NAME, text, (uint64_t)n, 0, sync, err);
}

/* ---- create ---- */

zinf_status zinf_checkpoint_directory(const char *directory, bool *ret_created, int *ret_fd,
                                      zinf_error *err)
{
    *ret_created = !mkdir(directory, 0777);
    if (!*ret_created && errno != EEXIST)
        return zinf_fail(err, zinf_files_blame(errno), "checkpoint: creating directory \"%s\": %s",
                         directory, strerror(errno));
    *ret_fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (*ret_fd < 0)
        return zinf_fail(err, zinf_files_blame(errno), "checkpoint: directory \"%s\": %s",
                         directory, strerror(errno));
    return ZINF_OK;
}

/* What was reserved, or a new one. */
static zinf_status open_temporary(zinf_checkpoint_writer *w, zinf_error *err)
{
    const int flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW;
    const char *name = w->temp_name;
    const int fd = openat(w->dir_fd, ZINF_RESERVED_NAME, flags);
    bool reserved = fd >= 0 && holds_only_ours(fd);

    if (fd >= 0)
        close(fd);
    if (reserved && strcmp(name, ZINF_RESERVED_NAME))
        reserved = !renameat(w->dir_fd, ZINF_RESERVED_NAME, w->dir_fd, name);
    if (!reserved && mkdirat(w->dir_fd, name, 0777))
        return fail_on(w, "creating", name, err);
    w->temp_fd = openat(w->dir_fd, name, flags);
    return w->temp_fd < 0 ? fail_on(w, "opening", name, err) : ZINF_OK;
}

/* What a killed save could not do any more: of two that have `latest` in them none would be known
 * to be the newest. */
static zinf_status publish_older(const zinf_checkpoint_writer *w, zinf_error *err)
{
    zinf_checkpoint_list found;
    char path[2 * STEP_NAME];

    if (zinf_checkpoint_look(w->dir_fd, w->directory, &found, err) ||
        found.unpublished == UINT64_MAX)
        return err->status;
    snprintf(path, sizeof path, "step-%" PRIu64 "/%s", found.unpublished, ZINF_LATEST_NAME);
    if (renameat(w->dir_fd, path, w->dir_fd, ZINF_LATEST_NAME) || fsync(w->dir_fd))
        return fail_on(w, "moving up", path, err);
    return ZINF_OK;
}

static zinf_status open_directory(zinf_checkpoint_writer *w, zinf_error *err)
{
    bool created;

    if (zinf_checkpoint_directory(w->directory, &created, &w->dir_fd, err))
        return err->status;
    if (flock(w->dir_fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK)
        return zinf_fail(err, ZINF_MACHINE, "checkpoint: another run is saving to \"%s\"; give "
                         "each run its own directory", w->directory);
    errno = 0;
    const bool foreign = !faccessat(w->dir_fd, w->step_name, F_OK, AT_SYMLINK_NOFOLLOW) &&
                         !is_ours(w->dir_fd, w->step_name);
    if (foreign && errno == ENOMEM)
        return fail_on(w, "looking into", w->step_name, err);
    if (foreign)
        return zinf_fail(err, ZINF_BAD_INPUT, "checkpoint: \"%s\" in \"%s\" exists and is not "
                         "only a checkpoint of ours; move it away", w->step_name, w->directory);
    zinf_checkpoint_remove(w->dir_fd, ZINF_WRITING_NAME);
    zinf_checkpoint_remove(w->dir_fd, ZINF_REMOVING_NAME);
    return publish_older(w, err) ? err->status : open_temporary(w, err);
}

static zinf_status make_header(const zinf_checkpoint_writer *w, unsigned array, char **ret_bytes,
                               uint64_t *ret_n, zinf_error *err)
{
    const char *const metadata[][2] = {{"format", ZINF_CHECKPOINT_FORMAT},
                                       {"array", zinf_state_names[array]}};
    zinf_safetensor_row *rows = calloc((size_t)w->plan->n_tensors + 1, sizeof *rows);

    if (!rows)
        return zinf_fail(err, ZINF_MACHINE, "checkpoint: out of memory");
    for (uint32_t i = 0; i < w->plan->n_tensors; i++) {
        const zinf_tensor *t = &w->plan->tensors[i];
        rows[i] = (zinf_safetensor_row){
            .name = t->name, .shape = {t->rows, t->cols}, .dtype = ZINF_F32,
            .n_dims = t->n_dims == 1 ? 1 : 2};
    }
    zinf_safetensors_header(rows, w->plan->n_tensors, metadata, 2, ret_bytes, ret_n, err);
    free(rows);
    return err->status;
}

static zinf_status refuse_full(const zinf_checkpoint_writer *w, uint64_t needed, zinf_error *err)
{
    struct statvfs fs;
    uint64_t free_bytes = fstatvfs(w->dir_fd, &fs) ? 0 : (uint64_t)fs.f_bavail * fs.f_frsize;

    return zinf_fail(err, ZINF_MACHINE, "checkpoint: \"%s\" needs %" PRIu64 " bytes, but its "
                     "filesystem has %" PRIu64 " bytes free", w->directory, needed, free_bytes);
}

static zinf_status check_space(const zinf_checkpoint_writer *w, zinf_error *err)
{
    const uint64_t file = w->offsets[w->plan->n_tensors] + ZINF_SAFETENSORS_HEADER / 100;
    uint64_t needed = ZINF_N_STATES * file, reserved = 0;
    struct statvfs fs;
    struct rlimit limit;
    struct stat info;

    if (fstatvfs(w->dir_fd, &fs))
        return fail_on(w, "free space of", ".", err);
    for (unsigned a = 0; a < ZINF_N_STATES; a++)
        if (!fstatat(w->temp_fd, zinf_state_files[a], &info, AT_SYMLINK_NOFOLLOW))
            reserved += (uint64_t)info.st_blocks * 512;
    needed = needed > reserved ? needed - reserved : 0;
    /* What is reserved lacks only the header's allowance, and has its header. */
    if (reserved < ZINF_N_STATES * w->offsets[w->plan->n_tensors] &&
        (uint64_t)fs.f_bavail < needed / fs.f_frsize)
        return refuse_full(w, needed, err);
    /* Asked first because crossing it is a signal, not an error. */
    if (!getrlimit(RLIMIT_FSIZE, &limit) && limit.rlim_cur < file)
        return zinf_fail(err, ZINF_MACHINE, "checkpoint: a file of \"%s\" needs %" PRIu64 " bytes, "
                         "but files of this process are limited to %" PRIu64
                         " bytes; raise it (ulimit -f)", w->directory, file,
                         (uint64_t)limit.rlim_cur);
    return ZINF_OK;
}

static zinf_status create_file(zinf_checkpoint_writer *w, unsigned array, zinf_error *err)
{
    const char *name = zinf_state_files[array];
    char *header = NULL;
    uint64_t n = 0;
    int rc;

    w->fds[array] = openat(w->temp_fd, name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW,
                           0666);
    if (w->fds[array] < 0)
        return fail_on(w, "creating", name, err);
    if (make_header(w, array, &header, &n, err))
        return err->status;
    w->data_at[array] = n;
    w->header_sums[array] = XXH64(header, n, 0);
    const uint64_t bytes = n + w->offsets[w->plan->n_tensors];
    do
        rc = fallocate(w->fds[array], 0, 0, (off_t)bytes);
    while (rc && errno == EINTR);
    /* Also what is reserved may be longer: a killed run's, of another model. */
    if (!rc || errno == EOPNOTSUPP)
        rc = ftruncate(w->fds[array], (off_t)bytes);
    if (rc && (errno == ENOSPC || errno == EDQUOT))
        refuse_full(w, bytes, err);
    else if (rc)
        fail_on(w, "reserving", name, err);
    else
        zinf_write_all(w->fds[array], header, n, 0, w->directory, name, err);
    free(header);
    return err->status;
}

static void free_writer(zinf_checkpoint_writer *w)
{
    for (unsigned a = 0; a < ZINF_N_STATES; a++)
        if (w->fds[a] >= 0)
            close(w->fds[a]);
    if (w->temp_fd >= 0)
        close(w->temp_fd);
    if (w->dir_fd >= 0)
        close(w->dir_fd); /* and the lock with it */
    for (uint64_t i = 0; w->tracks && i < (uint64_t)w->plan->n_tensors * ZINF_N_STATES; i++)
        free(w->tracks[i].extents);
    free(w->tracks);
    free(w->totals);
    free(w->offsets);
    free(w->directory);
    free(w);
}

void zinf_checkpoint_abandon(zinf_checkpoint_writer *w)
{
    if (!w)
        return;
    if (w->temp_fd >= 0 && !w->joined)
        zinf_checkpoint_remove(w->dir_fd, w->temp_name);
    free_writer(w);
}

/* Everything but the files. */
static zinf_status new_writer(const char *directory, const zinf_plan *plan,
                              const zinf_progress *progress, const char *temp_name,
                              zinf_checkpoint_writer **ret_writer, zinf_error *err)
{
    const uint64_t n_tracks = (uint64_t)plan->n_tensors * ZINF_N_STATES;
    zinf_checkpoint_writer *w = calloc(1, sizeof *w);

    if (!w)
        return zinf_fail(err, ZINF_MACHINE, "checkpoint: out of memory");
    w->plan = plan;
    w->progress = *progress;
    w->temp_name = temp_name;
    w->dir_fd = w->temp_fd = -1;
    for (unsigned a = 0; a < ZINF_N_STATES; a++)
        w->fds[a] = -1;
    snprintf(w->step_name, sizeof w->step_name, "step-%" PRIu64, progress->step);
    w->directory = strdup(directory);
    w->offsets = calloc((size_t)plan->n_tensors + 1, sizeof *w->offsets);
    w->tracks = calloc(n_tracks ? n_tracks : 1, sizeof *w->tracks);
    w->totals = calloc(2 * n_tracks + 1, sizeof *w->totals);
    if (!w->directory || !w->offsets || !w->tracks || !w->totals)
        zinf_fail(err, ZINF_MACHINE, "checkpoint: out of memory");
    else
        zinf_checkpoint_layout(plan, w->offsets, err);
    if (err->status)
        free_writer(w);
    else
        *ret_writer = w;
    return err->status;
}

static zinf_status make(const char *directory, const zinf_plan *plan,
                        const zinf_progress *progress, const char *temp_name,
                        zinf_checkpoint_writer **ret_writer, zinf_error *err)
{
    zinf_checkpoint_writer *w;

    if (new_writer(directory, plan, progress, temp_name, &w, err))
        return err->status;
    if (open_directory(w, err) || check_space(w, err))
        goto out;
    for (unsigned a = 0; a < ZINF_N_STATES; a++)
        if (create_file(w, a, err))
            goto out;
    if (write_manifest(w, false, err) || write_latest(w, false, err))
        goto out;
    *ret_writer = w;
    return ZINF_OK;
out:
    zinf_checkpoint_abandon(w);
    return err->status;
}

zinf_status zinf_checkpoint_join(const char *directory, const zinf_plan *plan,
                                 const zinf_progress *progress,
                                 zinf_checkpoint_writer **ret_writer, zinf_error *err)
{
    zinf_checkpoint_writer *w;

    if (new_writer(directory, plan, progress, ZINF_WRITING_NAME, &w, err))
        return err->status;
    w->joined = true;
    w->dir_fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    w->temp_fd = w->dir_fd < 0 ? -1 : openat(w->dir_fd, ZINF_WRITING_NAME,
                                             O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    for (unsigned a = 0; a < ZINF_N_STATES && !err->status; a++) {
        char *header = NULL;
        const char *name = zinf_state_files[a];
        if (make_header(w, a, &header, &w->data_at[a], err))
            break;
        free(header);
        w->fds[a] = w->temp_fd < 0 ? -1 : openat(w->temp_fd, name, O_RDWR | O_CLOEXEC);
        if (w->fds[a] < 0)
            zinf_fail(err, ZINF_BAD_INPUT, "checkpoint: \"%s\", which rank 0 has made in \"%s\", "
                      "cannot be opened here: %s; --save DIR must be on a filesystem that every "
                      "rank sees", name, directory, strerror(errno));
    }
    if (err->status)
        zinf_checkpoint_abandon(w);
    else
        *ret_writer = w;
    return err->status;
}

zinf_status zinf_checkpoint_create(const char *directory, const zinf_plan *plan,
                                   const zinf_progress *progress,
                                   zinf_checkpoint_writer **ret_writer, zinf_error *err)
{
    return make(directory, plan, progress, ZINF_WRITING_NAME, ret_writer, err);
}

zinf_status zinf_checkpoint_keep_space(const char *directory, const zinf_plan *plan,
                                       const zinf_progress *progress, zinf_error *err)
{
    zinf_checkpoint_writer *w = NULL;

    if (!make(directory, plan, progress, ZINF_RESERVED_NAME, &w, err))
        free_writer(w);
    return err->status;
}

/* ---- put ---- */

/* Adds [first, end) to the sorted extents, joined with its neighbours; refuses overlap. */
static zinf_status add_extent(track *t, uint64_t first, uint64_t end, const char *tensor,
                              const char *array, zinf_error *err)
{
    uint32_t i = t->n; /* the first extent behind the new one; puts are mostly in order */

    while (i > 0 && t->extents[i - 1].first >= end)
        i--;
    if (i > 0 && t->extents[i - 1].end > first)
        return zinf_fail(err, ZINF_WRONG_RESULT, "checkpoint: elements %" PRIu64 " .. %" PRIu64
                         " of \"%s\" (%s) overlap what was put before", first, end - 1, tensor,
                         array);
    const bool joins_before = i > 0 && t->extents[i - 1].end == first;
    const bool joins_behind = i < t->n && t->extents[i].first == end;
    if (joins_before && joins_behind) {
        t->extents[i - 1].end = t->extents[i].end;
        memmove(&t->extents[i], &t->extents[i + 1], (--t->n - i) * sizeof *t->extents);
    } else if (joins_before) {
        t->extents[i - 1].end = end;
    } else if (joins_behind) {
        t->extents[i].first = first;
    } else {
        if (t->n == t->room) {
            const uint32_t room = t->room ? 2 * t->room : 4;
            extent *more = realloc(t->extents, room * sizeof *more);
            if (!more)
                return zinf_fail(err, ZINF_MACHINE, "checkpoint: out of memory");
            t->extents = more;
            t->room = room;
        }
        memmove(&t->extents[i + 1], &t->extents[i], (t->n++ - i) * sizeof *t->extents);
        t->extents[i] = (extent){first, end};
    }
    return ZINF_OK;
}

zinf_status zinf_checkpoint_put(zinf_checkpoint_writer *w, uint32_t tensor,
                                zinf_state_array array, uint64_t first, uint64_t n,
                                const float *values, zinf_error *err)
{
    if (tensor >= w->plan->n_tensors || (unsigned)array >= ZINF_N_STATES)
        return zinf_fail(err, ZINF_WRONG_RESULT, "checkpoint: no tensor %" PRIu32 ", array %d",
                         tensor, (int)array);
    const zinf_tensor *t = &w->plan->tensors[tensor];
    const uint64_t n_elems = zinf_tensor_elems(t);
    if (first > n_elems || n > n_elems - first)
        return zinf_fail(err, ZINF_WRONG_RESULT, "checkpoint: %" PRIu64 " elements from %" PRIu64
                         " are not inside \"%s\" of %" PRIu64, n, first, t->name, n_elems);
    track *k = &w->tracks[(size_t)tensor * ZINF_N_STATES + array];
    if (!n)
        return ZINF_OK;
    const uint64_t fault = zinf_state_fault(array, values, n);
    if (fault < n)
        return zinf_fail(err, ZINF_WRONG_RESULT, "checkpoint: element %" PRIu64 " of \"%s\" (%s) "
                         "is %g; no such state is saved", first + fault, t->name,
                         zinf_state_names[array], (double)values[fault]);
    if (add_extent(k, first, first + n, t->name, zinf_state_names[array], err))
        return err->status;
    const size_t index = (size_t)tensor * ZINF_N_STATES + array;
    w->totals[index] += zinf_element_sum(first, n, values);
    w->totals[(size_t)w->plan->n_tensors * ZINF_N_STATES + index] += n;
    return zinf_write_all(w->fds[array], values, n * sizeof *values,
                          w->data_at[array] + w->offsets[tensor] + first * sizeof *values,
                          w->directory, zinf_state_files[array], err);
}

/* ---- commit ---- */

static zinf_status check_complete(const zinf_checkpoint_writer *w, zinf_error *err)
{
    const size_t n_tracks = (size_t)w->plan->n_tensors * ZINF_N_STATES;

    for (size_t i = 0; i < n_tracks; i++) {
        const zinf_tensor *tensor = &w->plan->tensors[i / ZINF_N_STATES];
        const uint64_t n = zinf_tensor_elems(tensor), put = w->totals[n_tracks + i];
        if (put != n)
            return zinf_fail(err, ZINF_WRONG_RESULT, "checkpoint: %" PRIu64 " of %" PRIu64
                             " elements of \"%s\" (%s) were put; nothing was saved in \"%s\"",
                             put, n, tensor->name, zinf_state_names[i % ZINF_N_STATES],
                             w->directory);
    }
    return ZINF_OK;
}

zinf_status zinf_checkpoint_sync(const zinf_checkpoint_writer *w, zinf_error *err)
{
    for (unsigned a = 0; a < ZINF_N_STATES; a++)
        if (fsync(w->fds[a]))
            return fail_on(w, "syncing", zinf_state_files[a], err);
    return ZINF_OK;
}

uint64_t *zinf_checkpoint_totals(zinf_checkpoint_writer *w, uint32_t *ret_n)
{
    *ret_n = 2 * w->plan->n_tensors * ZINF_N_STATES;
    return w->totals;
}

/* A checkpoint of the same step, from before a resume, changes places with the new one. */
static zinf_status publish(const zinf_checkpoint_writer *w, bool *ret_placed, zinf_error *err)
{
    if (zinf_checkpoint_sync(w, err))
        return err->status;
    if (fsync(w->temp_fd))
        return fail_on(w, "syncing", ZINF_WRITING_NAME, err);
    if (renameat2(w->dir_fd, ZINF_WRITING_NAME, w->dir_fd, w->step_name, RENAME_NOREPLACE)) {
        /* EINVAL: a filesystem without the flags; a plain rename replaces no full directory. */
        int rc = errno == EINVAL
            ? renameat(w->dir_fd, ZINF_WRITING_NAME, w->dir_fd, w->step_name)
            : errno == EEXIST
            ? renameat2(w->dir_fd, ZINF_WRITING_NAME, w->dir_fd, w->step_name, RENAME_EXCHANGE)
            : -1;
        if (rc)
            return fail_on(w, "renaming the new checkpoint to", w->step_name, err);
    }
    *ret_placed = true;
    if (fsync(w->dir_fd))
        return fail_on(w, "syncing", ".", err);
    if (renameat(w->temp_fd, ZINF_LATEST_NAME, w->dir_fd, ZINF_LATEST_NAME))
        return fail_on(w, "renaming to", ZINF_LATEST_NAME, err);
    if (fsync(w->dir_fd))
        return fail_on(w, "syncing", ".", err);
    return ZINF_OK;
}

zinf_status zinf_checkpoint_commit(zinf_checkpoint_writer *w, bool *ret_placed, zinf_error *err)
{
    zinf_status status = ZINF_OK;

    *ret_placed = false;
    if (check_complete(w, err) || write_manifest(w, true, err) ||
        write_latest(w, true, err) || publish(w, ret_placed, err))
        status = err->status;
    else
        remove_older(w);
    zinf_checkpoint_abandon(w); /* nothing to remove, or what an exchange left, or the failed */
    return status;
}
