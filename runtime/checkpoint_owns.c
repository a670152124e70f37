/* runtime/checkpoint_owns.c - which paths are those of saved checkpoints, wherever they lie: no
 * output is written over them; see checkpoint_format.h. Reads names and the first bytes of a
 * manifest.
 */
#include "runtime/checkpoint_format.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool zinf_checkpoint_own_name(const char *rest)
{
    return !strncmp(rest, "step-", 5) || !strncmp(rest, ".zinf-", 6) ||
           !strcmp(rest, ZINF_LATEST_NAME) || !strncmp(rest, ZINF_LATEST_NAME "/", 7) ||
           !strcmp(rest, ZINF_MANIFEST_NAME);
}

bool zinf_checkpoint_is_one(int dir_fd, const char *name)
{
    char path[PATH_MAX], text[64] = "";

    if (snprintf(path, sizeof path, "%s/%s", name, ZINF_MANIFEST_NAME) >= PATH_MAX)
        return false;
    const int fd = openat(dir_fd, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    const ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0)
        close(fd);
    return n > 0 && strstr(text, "\"" ZINF_CHECKPOINT_FORMAT "\"");
}

/* Itself one, or with one in it, or held by a run that saves there? */
static bool holds_checkpoints(const char *directory, bool *ret_is_one)
{
    DIR *d = opendir(directory);
    bool holds = false;

    *ret_is_one = d && zinf_checkpoint_is_one(dirfd(d), ".");
    if (d)
        holds = !faccessat(dirfd(d), ZINF_LOCK_NAME, F_OK, AT_SYMLINK_NOFOLLOW);
    for (struct dirent *e; d && !holds && (e = readdir(d));)
        holds = !strncmp(e->d_name, "step-", 5) &&
                zinf_checkpoint_is_one(dirfd(d), e->d_name);
    if (d)
        closedir(d);
    return holds;
}

/* Where the path leads, or would: the directory without links, and the name in it. */
static bool resolve(const char *path, char ret_whole[PATH_MAX])
{
    enum { MOST_LINKS = 40 }; /* as the kernel follows */
    char at[PATH_MAX], next[PATH_MAX], target[PATH_MAX];

    if (snprintf(at, sizeof at, "%s", path) >= PATH_MAX)
        return false;
    for (int links = 0; links <= MOST_LINKS; links++) {
        if (realpath(at, ret_whole))
            return true;
        for (size_t n = strlen(at); n > 1 && at[n - 1] == '/'; n--)
            at[n - 1] = 0;
        const char *slash = strrchr(at, '/');
        const int above = slash ? (int)(slash - at) + 1 : 0;
        const ssize_t length = readlink(at, target, sizeof target - 1);
        if (length < 0) {
            if (snprintf(next, sizeof next, "%.*s.", above, at) >= PATH_MAX ||
                !realpath(next, ret_whole))
                return false;
            const size_t used = strlen(ret_whole), left = PATH_MAX - used;
            return snprintf(ret_whole + used, left, "/%s", at + above) < (int)left;
        }
        target[length] = 0; /* a link to what is not there */
        if (snprintf(next, sizeof next, "%.*s%s", *target == '/' ? 0 : above, at, target) >=
            PATH_MAX)
            return false;
        memcpy(at, next, sizeof at);
    }
    return false;
}

bool zinf_checkpoint_owns(const char *path)
{
    char whole[PATH_MAX];
    bool is_one;

    if (!resolve(path, whole))
        return false;
    for (int level = 0; level < 2; level++) { /* in a directory of them; in one of them */
        char *slash = strrchr(whole, '/');
        if (!slash || slash == whole)
            return false;
        *slash = 0;
        if (holds_checkpoints(whole, &is_one) && zinf_checkpoint_own_name(slash + 1))
            return true;
        if (is_one && !level)
            return true;
    }
    return false;
}
