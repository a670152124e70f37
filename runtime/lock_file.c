/* runtime/lock_file.c - see lock_file.h. */
#include "runtime/lock_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static zinf_status refuse(const char *path, const char *area, const char *what, int fd,
                          zinf_error *err)
{
    char text[32] = "";
    const ssize_t n = pread(fd, text, sizeof text - 1, 0);
    const long pid = n > 0 ? strtol(text, NULL, 10) : 0;

    if (pid > 0)
        return zinf_fail(err, ZINF_MACHINE, "%s: \"%s\" is in use by process %ld (lock \"%s\"); "
                         "wait for it, or use another directory", area, what, pid, path);
    return zinf_fail(err, ZINF_MACHINE, "%s: \"%s\" is in use by another process (lock \"%s\"); "
                     "wait for it, or use another directory", area, what, path);
}

static bool is_named(int dir_fd, const char *path, int fd)
{
    struct stat ours, named;

    return !fstat(fd, &ours) && !fstatat(dir_fd, path, &named, AT_SYMLINK_NOFOLLOW) &&
           ours.st_ino == named.st_ino && ours.st_dev == named.st_dev;
}

zinf_status zinf_lock_file_take(int dir_fd, const char *path, const char *area, const char *what,
                                int *ret_fd, zinf_error *err)
{
    int fd;

    for (;;) {
        fd = openat(dir_fd, path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd < 0)
            return zinf_fail(err, ZINF_MACHINE, "%s: lock file \"%s\" of \"%.300s\": %s", area,
                             path, what, strerror(errno));
        if (flock(fd, LOCK_EX | LOCK_NB)) {
            const int error = errno;
            if (error == EWOULDBLOCK)
                refuse(path, area, what, fd, err);
            else if (error != EINTR)
                zinf_fail(err, ZINF_MACHINE, "%s: locking \"%s\" of \"%.300s\": %s", area, path,
                          what, strerror(error));
            close(fd);
            if (error == EINTR)
                continue;
            return err->status;
        }
        /* The holder removes the file, so a lock won on one that has no name any more is worth
         * nothing: try again on the new file. */
        if (is_named(dir_fd, path, fd))
            break;
        close(fd);
    }
    char text[32];
    const int n = snprintf(text, sizeof text, "%ld\n", (long)getpid());
    /* Only for the other's message: a disk too full for it is somebody else's report. */
    const bool told = !ftruncate(fd, 0) && pwrite(fd, text, (size_t)n, 0) == n;
    (void)told;
    *ret_fd = fd;
    return ZINF_OK;
}

void zinf_lock_file_release(int dir_fd, const char *path, int fd)
{
    if (fd < 0)
        return;
    if (is_named(dir_fd, path, fd))
        unlinkat(dir_fd, path, 0); /* while it is held; see take */
    close(fd);
}
