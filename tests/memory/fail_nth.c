/* tests/memory/fail_nth.c - preloaded into a command: its n-th allocation from the beginning of
 * main fails, whoever asks for it. failures.py drives it.
 *
 * ZINF_FAIL_SITES=FILE  nothing fails; at exit one line a call: a hash of the callers
 * ZINF_FAIL_AT=N        the N-th call fails (from 0), "+N": all from there on
 * ZINF_FAIL_REPORT=FILE gets the libraries and the program that called, the nearest first
 */
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MOST_CALLS = 1 << 20, DEPTH = 12, NEAR = 7 };

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t n, size_t bytes);
void *__libc_realloc(void *memory, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);

static atomic_bool counting;
static atomic_long n_calls;
static long fail_at = -1;
static bool from_there_on;
static uint32_t *sites; /* [MOST_CALLS]; NULL: they are not asked for */
static _Thread_local bool inside;

/* The callers' libraries and program, the nearest first. */
static void report(void *const *frames, int n)
{
    const char *path = getenv("ZINF_FAIL_REPORT"), *last = "";
    const int fd = path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;
    Dl_info ours, info;
    bool told = fd >= 0 && dladdr((void *)(uintptr_t)report, &ours);

    for (int i = 0; told && i < n; i++) {
        if (!dladdr(frames[i], &info) || !strcmp(info.dli_fname, ours.dli_fname) ||
            !strcmp(info.dli_fname, last))
            continue;
        last = info.dli_fname;
        told = write(fd, last, strlen(last)) > 0 && write(fd, "\n", 1) == 1;
    }
    if (fd >= 0)
        close(fd);
}

static bool fails(void)
{
    void *frames[DEPTH];

    if (!atomic_load_explicit(&counting, memory_order_relaxed) || inside)
        return false;
    const long n = atomic_fetch_add(&n_calls, 1);
    const bool hit = fail_at >= 0 && (from_there_on ? n >= fail_at : n == fail_at);
    if (!hit && !sites)
        return false;
    inside = true;
    const int depth = backtrace(frames, DEPTH);
    uint64_t hash = 0;
    for (int i = 0; i < depth && i < NEAR; i++)
        hash = (hash ^ (uintptr_t)frames[i]) * 0x9e3779b97f4a7c15;
    if (sites && n < MOST_CALLS)
        sites[n] = (uint32_t)(hash >> 32);
    if (hit && n == fail_at)
        report(frames, depth);
    inside = false;
    if (hit)
        errno = ENOMEM;
    return hit;
}

void *malloc(size_t bytes)
{
    return fails() ? NULL : __libc_malloc(bytes);
}

void *calloc(size_t n, size_t bytes)
{
    return fails() ? NULL : __libc_calloc(n, bytes);
}

void *realloc(void *memory, size_t bytes)
{
    return fails() ? NULL : __libc_realloc(memory, bytes);
}

void *memalign(size_t alignment, size_t bytes)
{
    return fails() ? NULL : __libc_memalign(alignment, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
    return fails() ? NULL : __libc_memalign(alignment, bytes);
}

int posix_memalign(void **ret_memory, size_t alignment, size_t bytes)
{
    void *memory = fails() ? NULL : __libc_memalign(alignment, bytes);

    if (!memory)
        return ENOMEM;
    *ret_memory = memory;
    return 0;
}

void *mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    if (fails())
        return MAP_FAILED;
    return (void *)syscall(SYS_mmap, address, bytes, protection, flags, fd, offset);
}

static void write_sites(void)
{
    const long n = atomic_load(&n_calls);

    atomic_store(&counting, false);
    FILE *out = fopen(getenv("ZINF_FAIL_SITES"), "w");
    for (long i = 0; out && i < n && i < MOST_CALLS; i++)
        fprintf(out, "%08x\n", sites[i]);
    if (out)
        fclose(out);
}

static int (*true_main)(int, char **, char **);

static int counted_main(int argc, char **argv, char **env)
{
    const char *at = getenv("ZINF_FAIL_AT");
    void *first[1];

    (void)backtrace(first, 1); /* its own first call allocates */
    if (at) {
        from_there_on = *at == '+';
        fail_at = atol(at + from_there_on);
    } else {
        sites = __libc_calloc(MOST_CALLS, sizeof *sites);
        atexit(write_sites);
    }
    atomic_store(&counting, true);
    const int code = true_main(argc, argv, env);
    atomic_store(&counting, false); /* what libraries do at exit is not ours to survive */
    return code;
}

int __libc_start_main(int (*main_)(int, char **, char **), int argc, char **argv,
                      void (*init)(void), void (*fini)(void), void (*rtld_fini)(void),
                      void *stack_end);
int __libc_start_main(int (*main_)(int, char **, char **), int argc, char **argv,
                      void (*init)(void), void (*fini)(void), void (*rtld_fini)(void),
                      void *stack_end)
{
    __typeof__(&__libc_start_main) next;

    *(void **)&next = dlsym(RTLD_NEXT, "__libc_start_main");
    true_main = main_;
    return next(counted_main, argc, argv, init, fini, rtld_fini, stack_end);
}
