/* runtime/backend_cpu.c - the backend whose device is the processor: mmap, memcpy, CPU kernels. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>

#include "runtime/backend.h"

#define HUGE_PAGE ((uint64_t)2 << 20)

static zinf_status arena_alloc(zinf_tier tier, uint64_t bytes, void **ret_memory,
                               zinf_error *err)
{
    *ret_memory = NULL;
    if (bytes == 0)
        return ZINF_OK;
    const uint64_t pages = (bytes + ZINF_PAGE - 1) / ZINF_PAGE * ZINF_PAGE;
    const uint64_t asked = pages + HUGE_PAGE;
    /* what is reserved for alignment counts in no limit but that of the address space */
    char *start = mmap(NULL, asked, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (start != MAP_FAILED) {
        const uint64_t before = (HUGE_PAGE - (uintptr_t)start % HUGE_PAGE) % HUGE_PAGE;
        if (before)
            munmap(start, before);
        munmap(start + before + pages, HUGE_PAGE - before);
        start += before;
        if (mprotect(start, pages, PROT_READ | PROT_WRITE)) {
            const int error = errno;
            munmap(start, pages);
            errno = error;
            start = MAP_FAILED;
        }
    }
    if (start == MAP_FAILED)
        return zinf_fail(err, ZINF_MACHINE, "cannot allocate the %s arena of %" PRIu64
                         " bytes: %s; plan for a machine with less memory",
                         zinf_tier_name(tier), bytes, strerror(errno));
    (void)madvise(start, pages, MADV_HUGEPAGE); /* faster where the kernel allows it */
#ifdef MADV_POPULATE_WRITE
    if (madvise(start, pages, MADV_POPULATE_WRITE) == 0) {
        *ret_memory = start;
        return ZINF_OK;
    }
    if (errno != EINVAL) {
        zinf_fail(err, ZINF_MACHINE, "cannot fill the %s arena of %" PRIu64 " bytes: %s; plan "
                  "for a machine with less memory", zinf_tier_name(tier), bytes,
                  strerror(errno));
        munmap(start, pages);
        return err->status;
    }
#endif
    for (uint64_t at = 0; at < pages; at += ZINF_PAGE)
        ((volatile char *)start)[at] = 0;
    *ret_memory = start;
    return ZINF_OK;
}

static void arena_free(zinf_tier tier, void *memory, uint64_t bytes)
{
    (void)tier;
    if (memory)
        munmap(memory, (bytes + ZINF_PAGE - 1) / ZINF_PAGE * ZINF_PAGE);
}

static void copy(void *dst, const void *src, uint64_t bytes)
{
    memmove(dst, src, bytes);
}

static void zero(void *dst, uint64_t bytes)
{
    memset(dst, 0, bytes);
}

static void kernels(zinf_kernels *ret_table, zinf_dtype act, int n_threads)
{
    zinf_kernels_cpu(ret_table, act, n_threads, ZINF_N_CPU_LEVELS - 1);
}

const zinf_backend zinf_backend_cpu = {"cpu", arena_alloc, arena_free, copy, zero, kernels};

const zinf_backend *zinf_backend_find(const char *name)
{
    return strcmp(name, zinf_backend_cpu.name) == 0 ? &zinf_backend_cpu : NULL;
}
