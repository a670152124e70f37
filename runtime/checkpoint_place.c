/* runtime/checkpoint_place.c - the directory of --save: that it is one run's only, that it holds
 * no other training's checkpoints, and that there will be space; see checkpoint.h.
 */
#include "runtime/checkpoint_format.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <xxhash.h>

#include "runtime/files.h"
#include "runtime/lock_file.h"

enum { KEPT = 2 }; /* checkpoints that stay after a save; while one is written there is one more */

struct zinf_checkpoint_place {
    char *directory;
    int dir_fd, lock_fd;
    bool created; /* here, and to be removed again if nothing comes of it */
};

static bool is_unpublished(int dir_fd, const char *name)
{
    char path[64];

    snprintf(path, sizeof path, "%.40s/%s", name, ZINF_LATEST_NAME);
    return !faccessat(dir_fd, path, F_OK, AT_SYMLINK_NOFOLLOW);
}

zinf_status zinf_checkpoint_look(int dir_fd, const char *directory, zinf_checkpoint_list *ret_list,
                                 zinf_error *err)
{
    const int fd = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    zinf_checkpoint_list list = {UINT64_MAX, UINT64_MAX, UINT64_MAX, 0};
    uint64_t step;

    errno = d ? 0 : errno;
    for (struct dirent *entry; d && !errno && (entry = readdir(d));) {
        if (zinf_checkpoint_is_step(dir_fd, entry->d_name, &step)) {
            list.last = !list.n || step > list.last ? step : list.last;
            if (is_unpublished(dir_fd, entry->d_name) &&
                (list.unpublished == UINT64_MAX || step > list.unpublished))
                list.unpublished = step;
            list.n++;
        } else if (zinf_checkpoint_step_name(entry->d_name, &step) &&
                   (list.foreign == UINT64_MAX || step > list.foreign)) {
            list.foreign = step;
        }
        if (zinf_files_blame(errno) == ZINF_BAD_INPUT)
            errno = 0; /* of looking into what is not ours */
    }
    if (errno)
        zinf_fail(err, ZINF_MACHINE, "checkpoint: reading directory \"%s\": %s", directory,
                  strerror(errno));
    if (d)
        closedir(d);
    else if (fd >= 0)
        close(fd);
    *ret_list = list;
    return err->status;
}

/* Is `resumed` the directory itself, or one in it? */
static bool is_here(const zinf_checkpoint_place *p, const char *resumed)
{
    const int fd = open(resumed, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct stat ours, itself, above;
    bool here = false;

    if (fd >= 0 && !fstat(p->dir_fd, &ours) && !fstat(fd, &itself) &&
        !fstatat(fd, "..", &above, 0))
        here = (itself.st_dev == ours.st_dev && itself.st_ino == ours.st_ino) ||
               (above.st_dev == ours.st_dev && above.st_ino == ours.st_ino);
    if (fd >= 0)
        close(fd);
    return here;
}

/* Of a checkpoint itself nothing in it would ever be resumed. */
static zinf_status check_kind(const zinf_checkpoint_place *p, zinf_error *err)
{
    if (faccessat(p->dir_fd, ZINF_MANIFEST_NAME, F_OK, AT_SYMLINK_NOFOLLOW))
        return ZINF_OK;
    return zinf_fail(err, ZINF_BAD_INPUT, "checkpoint: --save \"%s\" is a checkpoint itself; name "
                     "the directory that it is in, or another one", p->directory);
}

/* What has a name of ours and is not what a save leaves there would stop a later one. `latest` may
 * be a link to a file. */
static zinf_status check_name(const zinf_checkpoint_place *p, const char *name, bool is_directory,
                              zinf_error *err)
{
    const int flags = strcmp(name, ZINF_LATEST_NAME) ? AT_SYMLINK_NOFOLLOW : 0;
    struct stat info;

    errno = 0;
    if (fstatat(p->dir_fd, name, &info, AT_SYMLINK_NOFOLLOW) && errno == ENOENT)
        return ZINF_OK;
    if (is_directory ? zinf_checkpoint_is_only_ours(p->dir_fd, name)
                     : !fstatat(p->dir_fd, name, &info, flags) && S_ISREG(info.st_mode))
        return ZINF_OK;
    if (errno && errno != ENOENT && errno != ENOTDIR && errno != ELOOP) /* not looked into */
        return zinf_fail(err, zinf_files_blame(errno), "checkpoint: looking at \"%s\" in \"%s\": "
                         "%s", name, p->directory, strerror(errno));
    return zinf_fail(err, ZINF_BAD_INPUT, "checkpoint: \"%s\" in \"%s\" exists and is not %s of "
                     "ours; move it away", name, p->directory,
                     is_directory ? "only a checkpoint" : "a file");
}

static zinf_status check_names(const zinf_checkpoint_place *p, zinf_error *err)
{
    return check_name(p, ZINF_LATEST_NAME, false, err) ||
           check_name(p, ZINF_WRITING_NAME, true, err) ||
           check_name(p, ZINF_REMOVING_NAME, true, err) ||
           check_name(p, ZINF_RESERVED_NAME, true, err) ? err->status : ZINF_OK;
}

/* Where no checkpoint is, a `latest` that names none is somebody's, not a damaged one. */
static zinf_status check_latest(const zinf_checkpoint_place *p, const zinf_checkpoint_list *found,
                                zinf_error *err)
{
    char last[ZINF_STEP_NAME];
    zinf_error unread = {0};

    if (found->n || faccessat(p->dir_fd, ZINF_LATEST_NAME, F_OK, AT_SYMLINK_NOFOLLOW) ||
        !zinf_checkpoint_last(p->dir_fd, p->directory, last, &unread))
        return ZINF_OK;
    return zinf_fail(err, ZINF_BAD_INPUT, "checkpoint: \"%s\" in \"%s\" exists and is not a file "
                     "of ours; move it away", ZINF_LATEST_NAME, p->directory);
}

static zinf_status refuse_others(const zinf_checkpoint_place *p, const zinf_checkpoint_list *found,
                                 zinf_error *err)
{
    char last[ZINF_STEP_NAME];
    zinf_error damaged = {0}; /* what names the last one */

    if (zinf_checkpoint_last(p->dir_fd, p->directory, last, &damaged))
        snprintf(last, sizeof last, "step-%" PRIu64, found->last);
    return zinf_fail(err, ZINF_BAD_INPUT, "checkpoint: \"%s\" holds checkpoints of another "
                     "training; go on from its last one by --resume \"%s/%s\", or give this "
                     "training a directory of its own", p->directory, p->directory, last);
}

zinf_status zinf_checkpoint_claim(const char *directory, const char *resumed,
                                  zinf_checkpoint_place **ret_place, zinf_error *err)
{
    zinf_checkpoint_place *p = calloc(1, sizeof *p);
    zinf_checkpoint_list found;

    if (!p)
        return zinf_fail(err, ZINF_MACHINE, "checkpoint: out of memory");
    p->dir_fd = p->lock_fd = -1;
    if (!(p->directory = strdup(directory)))
        zinf_fail(err, ZINF_MACHINE, "checkpoint: out of memory");
    else if (!zinf_checkpoint_directory(directory, &p->created, &p->dir_fd, err) &&
             !check_kind(p, err) && !check_name(p, ZINF_LOCK_NAME, false, err) &&
             !zinf_lock_file_take(p->dir_fd, ZINF_LOCK_NAME, "checkpoint", directory, &p->lock_fd,
                                  err) &&
             !check_names(p, err) &&
             !zinf_checkpoint_look(p->dir_fd, directory, &found, err) &&
             !check_latest(p, &found, err) && found.n &&
             !(resumed && is_here(p, resumed)))
        refuse_others(p, &found, err);
    if (err->status) {
        zinf_checkpoint_release(p);
        return err->status;
    }
    *ret_place = p;
    return ZINF_OK;
}

zinf_status zinf_checkpoint_mark(const char *directory, uint64_t *ret_mark, zinf_error *err)
{
    const int dir_fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const int flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK;
    const int fd = dir_fd < 0 ? -1 : openat(dir_fd, ZINF_LOCK_NAME, flags);
    char holder[32] = "";
    struct stat info;

    if (fd < 0 || fstat(fd, &info) || read(fd, holder, sizeof holder) < 0)
        zinf_fail(err, ZINF_BAD_INPUT, "checkpoint: \"%s\" in \"%.300s\", which rank 0 has made, "
                  "cannot be opened here: %s; --save DIR must be on a filesystem that every rank "
                  "sees", ZINF_LOCK_NAME, directory, strerror(errno));
    else
        *ret_mark = XXH64(holder, sizeof holder, info.st_ino);
    if (fd >= 0)
        close(fd);
    if (dir_fd >= 0)
        close(dir_fd);
    return err->status;
}

/* What is reserved, and so what every checkpoint of that plan takes. */
static uint64_t reserved_bytes(const zinf_checkpoint_place *p)
{
    const int flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW;
    const int fd = openat(p->dir_fd, ZINF_RESERVED_NAME, flags);
    uint64_t bytes = 0;
    struct stat info;

    for (unsigned a = 0; fd >= 0 && a < ZINF_N_STATES; a++)
        if (!fstatat(fd, zinf_state_files[a], &info, AT_SYMLINK_NOFOLLOW))
            bytes += (uint64_t)info.st_size;
    if (fd >= 0 && !fstatat(fd, ZINF_MANIFEST_NAME, &info, AT_SYMLINK_NOFOLLOW))
        bytes += (uint64_t)info.st_size;
    if (fd >= 0)
        close(fd);
    return bytes;
}

zinf_status zinf_checkpoint_reserve(zinf_checkpoint_place *p, const zinf_plan *plan,
                                    const zinf_progress *progress, uint64_t n_saves,
                                    zinf_error *err)
{
    zinf_checkpoint_list found;
    uint64_t left;
    struct statvfs fs;

    if (zinf_checkpoint_look(p->dir_fd, p->directory, &found, err))
        return err->status;
    if (found.foreign != UINT64_MAX && found.foreign >= progress->step)
        return zinf_fail(err, ZINF_BAD_INPUT, "checkpoint: \"step-%" PRIu64 "\" in \"%s\" exists "
                         "and is not only a checkpoint of ours; move it away", found.foreign,
                         p->directory);
    const uint64_t there = found.n < KEPT ? found.n : KEPT;
    const uint64_t most = n_saves < KEPT + 1 - there ? n_saves : KEPT + 1 - there;
    if (zinf_checkpoint_keep_space(p->directory, plan, progress, err))
        return err->status;
    const uint64_t needed = (most - 1) * reserved_bytes(p);
    if (fstatvfs(p->dir_fd, &fs))
        return zinf_fail(err, ZINF_MACHINE, "checkpoint: free space of \"%s\": %s", p->directory,
                         strerror(errno));
    if (__builtin_mul_overflow((uint64_t)fs.f_bavail, (uint64_t)fs.f_frsize, &left))
        left = UINT64_MAX;
    if (needed > left)
        return zinf_fail(err, ZINF_MACHINE, "checkpoint: \"%s\" needs %" PRIu64 " bytes more, for "
                         "%" PRIu64 " checkpoints at a time (the last two are kept while one is "
                         "written), but its filesystem has %" PRIu64 " bytes free; free some, "
                         "use another directory, or leave out --save-every", p->directory,
                         needed, most, left);
    return ZINF_OK;
}

void zinf_checkpoint_release(zinf_checkpoint_place *p)
{
    if (!p)
        return;
    if (p->lock_fd >= 0)
        zinf_checkpoint_remove(p->dir_fd, ZINF_RESERVED_NAME);
    zinf_lock_file_release(p->dir_fd, ZINF_LOCK_NAME, p->lock_fd);
    if (p->dir_fd >= 0)
        close(p->dir_fd);
    if (p->created)
        rmdir(p->directory); /* unless something is in it */
    free(p->directory);
    free(p);
}
