/* tests/ranks/fail_export.c - preloaded: of the rank ZINF_FAIL_RANK, the ZINF_FAIL_AT-th write into
 * a file of an export finds no space on the disk, or with ZINF_FAIL_KILL kills the process. It
 * says "failed here" on standard error then. Rank 0 is slow after the end of MPI: what it has to
 * say it must have said before. ZINF_STOP_IN, "init", "finalize" or "finalized" (behind it), stops
 * the rank ZINF_FAIL_RANK there. ZINF_MEMINFO is a file that zinf-run is told is /proc/meminfo.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fnmatch.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *own_rank(void)
{
    const char *openmpi = getenv("OMPI_COMM_WORLD_RANK");

    return openmpi ? openmpi : getenv("PMI_RANK");
}

static int is_failing(void)
{
    const char *rank = own_rank(), *failing = getenv("ZINF_FAIL_RANK");

    return rank && failing && !strcmp(rank, failing);
}

static int is_to_fail(int fd)
{
    static int n;
    const char *at = getenv("ZINF_FAIL_AT");
    char link[64], path[PATH_MAX];

    if (!at || !is_failing())
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t length = readlink(link, path, sizeof path - 1);
    path[length > 0 ? length : 0] = 0;
    if (fnmatch("*.zinf-writing/model*.safetensors", path, 0) || n++ != atoi(at))
        return 0;
    fputs("failed here\n", stderr);
    if (getenv("ZINF_FAIL_KILL"))
        raise(SIGKILL);
    return 1;
}

/* Its name is pwrite64 here as in zinf-run: both are built with files of 64 bits. */
ssize_t pwrite(int fd, const void *bytes, size_t n, off_t offset)
{
    static ssize_t (*next)(int, const void *, size_t, off_t);

    if (is_to_fail(fd)) {
        errno = ENOSPC;
        return -1;
    }
    if (!next)
        *(void **)&next = dlsym(RTLD_NEXT, "pwrite64");
    return next(fd, bytes, n, offset);
}

static void stop_in(const char *where)
{
    const char *wanted = getenv("ZINF_STOP_IN");

    if (wanted && !strcmp(wanted, where) && is_failing())
        raise(SIGSTOP);
}

int MPI_Init_thread(int *argc, char ***argv, int required, int *provided)
{
    int (*next)(int *, char ***, int, int *);

    stop_in("init");
    *(void **)&next = dlsym(RTLD_DEFAULT, "PMPI_Init_thread");
    return next ? next(argc, argv, required, provided) : 1;
}

int MPI_Finalize(void)
{
    const char *rank = own_rank();
    int (*next)(void), rc;

    stop_in("finalize");

    *(void **)&next = dlsym(RTLD_DEFAULT, "PMPI_Finalize");
    rc = next ? next() : 0;
    stop_in("finalized");
    for (unsigned left = rank && strcmp(rank, "0") == 0 ? 3 : 0; left;) /* a signal wakes it */
        left = sleep(left);
    return rc;
}

/* zinf-run asks it how much memory is there; with ZINF_MEMINFO it is told what that file says. */
FILE *fopen(const char *path, const char *mode)
{
    static FILE *(*next)(const char *, const char *);
    const char *told = getenv("ZINF_MEMINFO");

    if (!next)
        *(void **)&next = dlsym(RTLD_NEXT, "fopen64");
    return next(told && !strcmp(path, "/proc/meminfo") ? told : path, mode);
}
