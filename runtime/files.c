/* runtime/files.c - see files.h. */
#include "runtime/files.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/checkpoint_format.h"

static bool one_file(const struct stat *x, const struct stat *y)
{
    return S_ISREG(x->st_mode) && x->st_dev == y->st_dev && x->st_ino == y->st_ino;
}

/* The directory that a path is in, as far as its spelling tells; the name there. */
static const char *split(const char *path, char ret_directory[PATH_MAX])
{
    const char *slash = strrchr(path, '/');
    const size_t n = slash ? (size_t)(slash - path) + 1 : 0;

    snprintf(ret_directory, PATH_MAX, "%.*s", n < PATH_MAX ? (int)n : 0, path);
    if (!*ret_directory)
        strcpy(ret_directory, ".");
    return path + n;
}

static bool same(const char *a, const char *b)
{
    char in_a[PATH_MAX], in_b[PATH_MAX];
    struct stat x, y;
    const bool has_a = !stat(a, &x), has_b = !stat(b, &y);

    if (has_a && has_b)
        return one_file(&x, &y);
    return has_a == has_b && !strcmp(split(a, in_a), split(b, in_b)) && !stat(in_a, &x) &&
           !stat(in_b, &y) && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/* Is the path the file that a standard stream goes to? Two writers would overwrite each other. */
static bool is_stream(const char *path, int fd)
{
    struct stat x, y;

    return !stat(path, &x) && !fstat(fd, &y) && one_file(&x, &y);
}

zinf_status zinf_files_distinct(const zinf_named_file *files, size_t n, zinf_error *err)
{
    for (size_t i = 0; i < n; i++) {
        if (!files[i].path || !files[i].written)
            continue;
        if (!strcmp(files[i].path, "-"))
            return zinf_fail(err, ZINF_BAD_INPUT, "%s \"-\": standard output is /dev/stdout, a "
                             "file of that name ./-", files[i].option);
        if (is_stream(files[i].path, 1) || is_stream(files[i].path, 2))
            return zinf_fail(err, ZINF_BAD_INPUT, "%s \"%.300s\" is the file that standard output "
                             "or error goes to: it would be overwritten; give another name",
                             files[i].option, files[i].path);
    }
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < n; k++)
            if (i != k && files[i].path && files[k].path && files[i].written &&
                same(files[i].path, files[k].path))
                return zinf_fail(err, ZINF_BAD_INPUT,
                                 "%s \"%.300s\" is the same file as %s: it would be overwritten; "
                                 "give another name", files[i].option, files[i].path,
                                 files[k].option);
    return ZINF_OK;
}

zinf_status zinf_files_spare_checkpoints(const zinf_named_file *files, size_t n, zinf_error *err)
{
    for (size_t i = 0; i < n; i++)
        if (files[i].path && files[i].written && zinf_checkpoint_owns(files[i].path))
            return zinf_fail(err, ZINF_BAD_INPUT, "%s \"%.300s\" is in a checkpoint, or beside "
                             "some by a name that is theirs; give another name", files[i].option,
                             files[i].path);
    return ZINF_OK;
}

void zinf_files_guard_standard(void)
{
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDONLY) < 0)
            return; /* no /dev: nothing better can be done */
}

zinf_status zinf_files_blame(int error)
{
    switch (error) {
    case ENOENT:
    case ENOTDIR:
    case EISDIR:
    case ENAMETOOLONG:
    case ELOOP:
    case EACCES:
    case EPERM:
    case EROFS:
        return ZINF_BAD_INPUT;
    default:
        return ZINF_MACHINE;
    }
}

zinf_status zinf_files_output(const char *path, int flags, const char *what, FILE **ret_file,
                              zinf_error *err)
{
    const int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK | flags, 0666);
    FILE *file = NULL;

    if (fd >= 0 && fcntl(fd, F_SETFL, flags & O_APPEND) == 0) /* from now on it waits */
        file = fdopen(fd, flags & O_APPEND ? "a" : "w");
    if (!file) {
        const int error = errno;
        if (fd >= 0)
            close(fd);
        return zinf_fail(err, zinf_files_blame(error), "cannot create %s \"%s\": %s", what, path,
                         error == ENXIO ? "it is a pipe that nobody reads" : strerror(error));
    }
    *ret_file = file;
    return ZINF_OK;
}
