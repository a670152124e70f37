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

static bool is_checkpoint(int dir_fd, const char *name)
{
    char path[NAME_MAX + sizeof "/" ZINF_MANIFEST_NAME], text[64] = "";

    snprintf(path, sizeof path, "%.*s/%s", NAME_MAX, name, ZINF_MANIFEST_NAME);
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

    *ret_is_one = d && is_checkpoint(dirfd(d), ".");
    if (d)
        holds = !faccessat(dirfd(d), ZINF_LOCK_NAME, F_OK, AT_SYMLINK_NOFOLLOW);
    for (struct dirent *e; d && !holds && (e = readdir(d));)
        holds = !strncmp(e->d_name, "step-", 5) && is_checkpoint(dirfd(d), e->d_name);
    if (d)
        closedir(d);
    return holds;
}

/* Where the path leads, or would: the directory without links, and the name in it. */
static bool resolve(const char *path, char ret_whole[PATH_MAX])
{
    char above[PATH_MAX];
    const char *slash = strrchr(path, '/');
    const size_t n = slash ? (size_t)(slash - path) + 1 : 0;

    if (realpath(path, ret_whole))
        return true;
    if (n >= PATH_MAX)
        return false;
    snprintf(above, sizeof above, "%.*s.", (int)n, path);
    if (!realpath(above, ret_whole))
        return false;
    const size_t used = strlen(ret_whole), left = PATH_MAX - used;
    return snprintf(ret_whole + used, left, "/%s", path + n) < (int)left;
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
