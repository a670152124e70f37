/* tests/safety/flip_read.c - preloaded: of what is read from the states of a checkpoint, the
 * ZINF_FLIP_AT-th reading finds one bit that no other reading finds, as from a disk or memory that
 * fails. It says "flipped here" on standard error then.
 */
#include <dlfcn.h>
#include <fnmatch.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int is_state(int fd)
{
    char link[64], path[PATH_MAX];

    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t length = readlink(link, path, sizeof path - 1);
    path[length > 0 ? length : 0] = 0;
    return fnmatch("*/step-*/*.safetensors", path, 0) == 0;
}

/* Its name is pread64 here as in zinf-run: both are built with files of 64 bits. */
ssize_t pread(int fd, void *bytes, size_t n, off_t offset)
{
    static ssize_t (*next)(int, void *, size_t, off_t);
    static int n_read;
    const char *at = getenv("ZINF_FLIP_AT");

    if (!next)
        *(void **)&next = dlsym(RTLD_NEXT, "pread64");
    const ssize_t got = next(fd, bytes, n, offset);
    if (at && got > 0 && is_state(fd) && n_read++ == atoi(at)) {
        ((unsigned char *)bytes)[got / 2] ^= 4;
        fputs("flipped here\n", stderr);
    }
    return got;
}
