/* runtime/preflight.c - see preflight.h. */
#include "runtime/preflight.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "runtime/backend.h"
#include "runtime/overhead.h"

/* The number after `key` in a file of "key: number kB" lines; UINT64_MAX if it is not there. */
static uint64_t kilobytes(const char *path, const char *key)
{
    char line[256];
    uint64_t value = UINT64_MAX;
    FILE *in = fopen(path, "r");

    while (in && fgets(line, sizeof line, in))
        if (strncmp(line, key, strlen(key)) == 0)
            value = strtoull(line + strlen(key), NULL, 10) * 1024;
    if (in)
        fclose(in);
    return value;
}

static uint64_t number_in(const char *directory, const char *file)
{
    char path[512];
    uint64_t value = UINT64_MAX;

    snprintf(path, sizeof path, "%s/%s", directory, file);
    FILE *in = fopen(path, "r");
    if (in && fscanf(in, "%" SCNu64, &value) != 1)
        value = UINT64_MAX;
    if (in)
        fclose(in);
    return value;
}

/* What a control group may still take: its limit less its use, but the page cache is given up, and
 * what this process has already is part of what it needs. */
static uint64_t left_in(const char *directory, bool second)
{
    const uint64_t most = number_in(directory, second ? "memory.max" : "memory.limit_in_bytes");
    uint64_t used = number_in(directory, second ? "memory.current" : "memory.usage_in_bytes");
    char path[512];

    if (most == UINT64_MAX || used == UINT64_MAX)
        return UINT64_MAX;
    snprintf(path, sizeof path, "%s/memory.stat", directory);
    static const char *const caches[] = {"active_file ", "inactive_file "};
    for (int i = 0; i < 2; i++) {
        const uint64_t cache = kilobytes(path, caches[i]);
        if (cache != UINT64_MAX)
            used = used > cache / 1024 ? used - cache / 1024 : 0;
    }
    const uint64_t ours = kilobytes("/proc/self/status", "RssAnon:");
    if (ours != UINT64_MAX)
        used = used > ours ? used - ours : 0;
    return most > used ? most - used : 0;
}

/* Of the group this process is in and all that it is part of, up to the root that it sees, version
 * 1 or 2; UINT64_MAX if there is no limit. */
static uint64_t group_left(void)
{
    char line[400], directory[480];
    uint64_t least = left_in("/sys/fs/cgroup", true);
    const uint64_t root = left_in("/sys/fs/cgroup/memory", false);
    FILE *in = fopen("/proc/self/cgroup", "r");

    least = root < least ? root : least;
    while (in && fgets(line, sizeof line, in)) {
        const bool second = strncmp(line, "0::", 3) == 0;
        const char *path = strrchr(line, ':');
        line[strcspn(line, "\n")] = 0;
        if (!path || (!second && !strstr(line, ":memory:")))
            continue;
        const int root_bytes = snprintf(directory, sizeof directory, "/sys/fs/cgroup%s%s",
                                        second ? "" : "/memory", path + 1) - (int)strlen(path + 1);
        for (char *end = directory + strlen(directory); end > directory + root_bytes;
             end = strrchr(directory, '/')) {
            *end = 0;
            const uint64_t left = left_in(directory, second);
            least = left < least ? left : least;
        }
    }
    if (in)
        fclose(in);
    return least;
}

uint64_t zinf_peak_rss_bytes(void)
{
    const uint64_t bytes = kilobytes("/proc/self/status", "VmHWM:");

    return bytes == UINT64_MAX ? 0 : bytes;
}

static zinf_status check_limit(int resource, const char *what, uint64_t need, zinf_error *err)
{
    struct rlimit limit;

    if (getrlimit((__rlimit_resource_t)resource, &limit) || limit.rlim_cur == RLIM_INFINITY ||
        need <= limit.rlim_cur)
        return ZINF_OK;
    return zinf_fail(err, ZINF_DOES_NOT_FIT, "the plan needs %" PRIu64 " bytes of memory, but %s "
                     "to %" PRIu64 "; raise that, or plan for a device and host of less memory",
                     need, what, (uint64_t)limit.rlim_cur);
}

static zinf_status check_memory(const zinf_plan *plan, uint64_t more_bytes, uint32_t n_local,
                                zinf_error *err)
{
    const zinf_machine_info *machine = &plan->machine;
    uint64_t need = more_bytes;
    const uint64_t free_bytes = kilobytes("/proc/meminfo", "MemAvailable:");
    const uint64_t group = group_left();
    const uint64_t left = group < free_bytes ? group : free_bytes;

    for (unsigned tier = ZINF_TIER_DEVICE; tier <= ZINF_TIER_HOST; tier++)
        if (__builtin_add_overflow(need, machine->arena_bytes[tier], &need) ||
            __builtin_add_overflow(need, machine->overhead_bytes[tier], &need))
            need = UINT64_MAX;
    if (need > left / n_local) {
        char shared[60] = "";
        if (n_local > 1)
            snprintf(shared, sizeof shared, " for each of %" PRIu32 " ranks on this machine",
                     n_local);
        return zinf_fail(err, ZINF_DOES_NOT_FIT, "the plan needs %" PRIu64 " bytes of memory%s, %"
                         PRIu64 " are available; plan for a device and host of less memory, or "
                         "free some", need, shared, left);
    }
    need = need < UINT64_MAX / 2 ? need + zinf_overhead_stack_bytes(plan) : need;
    if (check_limit(RLIMIT_AS, "the address space (ulimit -v) is limited", need, err) ||
        check_limit(RLIMIT_DATA, "data (ulimit -d) is limited", need, err))
        return err->status;
    return ZINF_OK;
}

static zinf_status check_level(zinf_error *err)
{
    const char *level = getenv("ZINF_CPU_LEVEL");
    zinf_cpu_level named;

    if (level && !zinf_cpu_level_parse(level, &named))
        return zinf_fail(err, ZINF_BAD_INPUT, "ZINF_CPU_LEVEL=\"%s\" is none of ref, avx2, avx512, "
                         "avx512_bf16, amx; it limits the instructions that are used", level);
    return ZINF_OK;
}

/* Before the file is made: what a killed run left there is going to be replaced. */
static zinf_status check_disk(const zinf_plan *plan, const char *nvme,
                              const zinf_sharing *sharing, zinf_error *err)
{
    const uint64_t bytes = plan->machine.arena_bytes[ZINF_TIER_NVME], n = sharing->n_drive;
    const uint64_t need = bytes > UINT64_MAX / n ? UINT64_MAX : bytes * n;
    char path[PATH_MAX];
    struct statvfs fs;
    struct stat old;
    uint64_t left;

    if (statvfs(nvme, &fs))
        return zinf_fail(err, ZINF_MACHINE, "free space of --nvme \"%s\": %s", nvme,
                         strerror(errno));
    if (__builtin_mul_overflow((uint64_t)fs.f_bavail, (uint64_t)fs.f_frsize, &left))
        left = UINT64_MAX;
    const int length = snprintf(path, sizeof path, "%s/zinf-rank%" PRIu32 ".nvme", nvme,
                                sharing->rank);
    if (length < (int)sizeof path &&
        lstat(path, &old) == 0 && S_ISREG(old.st_mode) &&
        __builtin_add_overflow(left, (uint64_t)old.st_blocks * 512 * n, &left))
        left = UINT64_MAX;
    if (need > left)
        return zinf_fail(err, ZINF_MACHINE, "the plan needs %" PRIu64 " bytes in --nvme \"%s\"%s, "
                         "its filesystem has %" PRIu64 " bytes free; free some, or name another "
                         "directory", need, nvme, n > 1 ? " for all ranks there" : "", left);
    return ZINF_OK;
}

/* Files that a run has open at a time, beside those that are open now. tests/safety counts them. */
static unsigned n_files(const zinf_plan *plan, const zinf_run_options *o)
{
    enum {
        TIER = 2,      /* the nvme tier's file, its lock */
        RINGS = 2,     /* of its two channels */
        PLACE = 2,     /* --save: the directory, its lock */
        RESERVING = 6, /* the directory, the checkpoint in it, its three arrays, its manifest */
        SAVING = 8,    /* the first five, and older ones looked through to remove them */
        READING = 4,   /* the checkpoint, its three arrays */
        EXPORTING = 2 /* the directory, a shard */
    };
    const bool nvme = plan->machine.arena_bytes[ZINF_TIER_NVME] > 0;
    const unsigned exporting = o->export ? EXPORTING : 0; /* from the beginning */
    const unsigned held = (nvme ? TIER + (o->engine == ZINF_ENGINE_THREADS ? 0 : RINGS) : 0) +
                          (o->save ? PLACE : 0) + exporting;
    const unsigned data = !!o->data + !!o->val + !!o->eval + !!o->log;
    /* an export that fails is saved instead */
    const unsigned ending = o->save ? SAVING : o->export ? PLACE + SAVING : 1;
    const unsigned beginning = o->resume ? READING + (o->save ? RESERVING : 1) : 0;

    return held + (beginning > data + ending ? beginning : data + ending);
}

/* The limit below which as many more can be opened. What was inherited may lie beyond the one of
 * now, and be in the way of a higher one. */
static unsigned limit_for(unsigned n_more)
{
    int fd = 0;

    for (; n_more; fd++)
        n_more -= fcntl(fd, F_GETFD) < 0;
    return (unsigned)fd;
}

zinf_status zinf_preflight_files(const zinf_plan *plan, const zinf_run_options *options,
                                 zinf_error *err)
{
    enum { MOST = 64 };
    const unsigned need = n_files(plan, options);
    int fds[MOST];
    unsigned n = 0;
    struct rlimit limit;

    while (n < need && n < MOST && (fds[n] = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0)) >= 0)
        n++;
    const int error = errno;
    for (unsigned i = 0; i < n; i++)
        close(fds[i]);
    if (n == need)
        return ZINF_OK;
    if (error != EMFILE || getrlimit(RLIMIT_NOFILE, &limit))
        return zinf_fail(err, ZINF_MACHINE, "the run has up to %u more files open at a time, %u "
                         "could be opened: %s", need, n, strerror(error));
    const unsigned least = limit_for(need);
    return zinf_fail(err, ZINF_MACHINE, "with these options the run has up to %u files open at a "
                     "time, but this process is limited to %" PRIu64 "; raise it (ulimit -n %u)",
                     least, (uint64_t)limit.rlim_cur, least);
}

zinf_status zinf_preflight(const zinf_plan *plan, const char *nvme, uint64_t more_bytes,
                           const zinf_sharing *sharing, zinf_error *err)
{
    const zinf_backend *backend = zinf_backend_find(plan->machine.backend);
    struct stat info;

    if (!backend)
        return zinf_fail(err, ZINF_MACHINE, "the plan is for a device of kind \"%s\", this "
                         "zinf-run has only cpu; plan for this machine", plan->machine.backend);
    if (plan->programs[ZINF_PROGRAM_STEP].n_segments == 0)
        return zinf_fail(err, ZINF_BAD_INPUT, "the plan has no step program: there is nothing "
                         "to run");
    if (plan->machine.arena_bytes[ZINF_TIER_NVME] > 0) {
        if (!nvme)
            return zinf_fail(err, ZINF_BAD_INPUT, "the plan keeps %" PRIu64 " bytes in the nvme "
                             "tier; pass --nvme DIR, a directory on that device",
                             plan->machine.arena_bytes[ZINF_TIER_NVME]);
        if (stat(nvme, &info))
            return zinf_fail(err, ZINF_BAD_INPUT, "--nvme \"%s\": %s", nvme, strerror(errno));
        if (!S_ISDIR(info.st_mode))
            return zinf_fail(err, ZINF_BAD_INPUT, "--nvme \"%s\" is no directory", nvme);
        if (check_disk(plan, nvme, sharing, err))
            return err->status;
    }
    if (check_level(err))
        return err->status;
    return check_memory(plan, more_bytes, sharing->n_machine, err);
}
