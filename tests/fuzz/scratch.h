/* tests/fuzz/scratch.h - a temporary directory for the targets whose input is files; removed when
 * the program exits.
 */
#ifndef ZINF_TESTS_FUZZ_SCRATCH_H
#define ZINF_TESTS_FUZZ_SCRATCH_H

#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/fuzz/fuzz.h"

static char scratch_directory[256];

static inline int scratch_remove_one(const char *path, const struct stat *info, int kind,
                                     struct FTW *at)
{
    (void)info;
    (void)kind;
    (void)at;
    return remove(path);
}

static inline void scratch_remove(void)
{
    nftw(scratch_directory, scratch_remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

/* Two results are valid at a time. */
static inline const char *scratch_path(const char *name)
{
    static char paths[2][PATH_MAX];
    static unsigned next;
    char *path = paths[next++ % 2];

    if (!*scratch_directory) {
        const char *tmp = getenv("TMPDIR");
        snprintf(scratch_directory, sizeof scratch_directory, "%.200s/zinf-fuzz-XXXXXX",
                 tmp && *tmp ? tmp : "/tmp");
        FUZZ_EXPECT(mkdtemp(scratch_directory));
        atexit(scratch_remove);
    }
    snprintf(path, PATH_MAX, "%s/%s", scratch_directory, name);
    return path;
}

static inline void scratch_write(const char *path, const void *bytes, size_t n)
{
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    FUZZ_EXPECT(fd >= 0);
    FUZZ_EXPECT(n == 0 || write(fd, bytes, n) == (ssize_t)n);
    close(fd);
}

#endif
