/* runtime/preflight.c - see preflight.h. */
#include "runtime/preflight.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "runtime/backend.h"

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

/* A control group's limit less what it uses; UINT64_MAX if there is none. */
static uint64_t group_left(void)
{
    uint64_t most = UINT64_MAX, used = 0;
    FILE *in = fopen("/sys/fs/cgroup/memory.max", "r");

    if (in && fscanf(in, "%" SCNu64, &most) != 1)
        most = UINT64_MAX;
    if (in)
        fclose(in);
    in = fopen("/sys/fs/cgroup/memory.current", "r");
    if (in && fscanf(in, "%" SCNu64, &used) != 1)
        used = 0;
    if (in)
        fclose(in);
    return most == UINT64_MAX ? most : most > used ? most - used : 0;
}

uint64_t zinf_peak_rss_bytes(void)
{
    const uint64_t bytes = kilobytes("/proc/self/status", "VmHWM:");

    return bytes == UINT64_MAX ? 0 : bytes;
}

static zinf_status check_memory(const zinf_plan *plan, zinf_error *err)
{
    const zinf_machine_info *machine = &plan->machine;
    uint64_t need = 0;
    const uint64_t free_bytes = kilobytes("/proc/meminfo", "MemAvailable:");
    const uint64_t group = group_left();
    const uint64_t left = group < free_bytes ? group : free_bytes;
    struct rlimit limit;

    for (unsigned tier = ZINF_TIER_DEVICE; tier <= ZINF_TIER_HOST; tier++)
        if (__builtin_add_overflow(need, machine->arena_bytes[tier], &need) ||
            __builtin_add_overflow(need, machine->overhead_bytes[tier], &need))
            need = UINT64_MAX;
    if (left != UINT64_MAX && need > left)
        return zinf_fail(err, ZINF_DOES_NOT_FIT, "the plan needs %" PRIu64 " bytes of memory, %"
                         PRIu64 " are available; plan for a device and host of less memory, or "
                         "free some", need, left);
    if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
        need > limit.rlim_cur)
        return zinf_fail(err, ZINF_DOES_NOT_FIT, "the plan needs %" PRIu64 " bytes of memory, "
                         "the address space is limited to %" PRIu64 " (ulimit -v)", need,
                         (uint64_t)limit.rlim_cur);
    return ZINF_OK;
}

zinf_status zinf_preflight(const zinf_plan *plan, const char *nvme, zinf_error *err)
{
    struct stat info;

    if (!zinf_backend_find(plan->machine.backend))
        return zinf_fail(err, ZINF_MACHINE, "the plan is for a device of kind \"%s\", this "
                         "zinf-run has only cpu; plan for this machine", plan->machine.backend);
    if (plan->decisions.ranks != 1)
        return zinf_fail(err, ZINF_MACHINE, "the plan is for %" PRIu32 " ranks, this zinf-run "
                         "has no MPI and is one; plan for one node with one device",
                         plan->decisions.ranks);
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
    }
    return check_memory(plan, err);
}
