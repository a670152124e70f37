/* tests/runtime/preflight.c - what a machine lacks, asked of zinf_preflight directly: memory that
 * ranks share, sums that overflow, limits of the process, a level that is none.
 */
#include "runtime/preflight.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/overhead.h"
#include "tests/check.h"

static zinf_error err;

enum { ENOUGH = 1 }; /* the overhead that a plan states */

static zinf_status ask(uint64_t device, uint64_t overhead, uint64_t more, uint32_t n_local)
{
    zinf_plan plan = {0};

    strcpy(plan.machine.backend, "cpu");
    plan.job.precision = ZINF_F32;
    plan.decisions.ranks = plan.decisions.n_threads = 1;
    if (overhead == ENOUGH)
        overhead = zinf_overhead_bytes(&plan);
    plan.programs[ZINF_PROGRAM_STEP].n_segments = 1;
    plan.machine.arena_bytes[ZINF_TIER_DEVICE] = device;
    plan.machine.overhead_bytes[ZINF_TIER_HOST] = overhead;
    memset(&err, 0, sizeof err);
    const zinf_sharing sharing = {0, n_local, n_local};

    return zinf_preflight(&plan, NULL, more, &sharing, &err);
}

static bool said(const char *text)
{
    if (strstr(err.text, text))
        return true;
    printf("# message: %s\n", err.text);
    return false;
}

/* What is there, by the refusal of far too much. */
static uint64_t available(void)
{
    const char *at;

    CHECK(ask(UINT64_MAX / 4, ENOUGH, 0, 1) == ZINF_DOES_NOT_FIT);
    at = strstr(err.text, "bytes of memory, ");
    CHECK_MESSAGE(at, "%s", err.text);
    return strtoull(at + strlen("bytes of memory, "), NULL, 10);
}

static void ranks_of_one_machine_share_its_memory(void)
{
    const uint64_t half = available() / 2; /* others may take or give back a quarter meanwhile */

    CHECK_MESSAGE(ask(half, ENOUGH, 0, 1) == ZINF_OK, "%s", err.text);
    CHECK(ask(half, ENOUGH, 0, 4) == ZINF_DOES_NOT_FIT && said(" for each of 4 ranks"));
    CHECK_MESSAGE(ask(half / 4, ENOUGH, 0, 4) == ZINF_OK, "%s", err.text);
}

static void a_sum_beyond_64_bits_is_too_much_not_little(void)
{
    CHECK(ask(UINT64_MAX - 5, ENOUGH, 0, 1) == ZINF_DOES_NOT_FIT && said("18446744073709551615"));
    CHECK(ask(UINT64_MAX - 5, ENOUGH, 100, 1) == ZINF_DOES_NOT_FIT);
    CHECK(ask(4096, UINT64_MAX - 5, 0, 1) == ZINF_DOES_NOT_FIT);
}

static uint64_t overhead(void)
{
    zinf_plan plan = {0};

    plan.decisions.ranks = plan.decisions.n_threads = 1;
    return zinf_overhead_bytes(&plan);
}

static void a_level_of_instructions_that_is_none_is_refused(void)
{
    setenv("ZINF_CPU_LEVEL", "avx-512", 1);
    CHECK(ask(4096, ENOUGH, 0, 1) == ZINF_BAD_INPUT && said("\"avx-512\" is none of"));
    setenv("ZINF_CPU_LEVEL", "ref", 1);
    CHECK_MESSAGE(ask(4096, ENOUGH, 0, 1) == ZINF_OK, "%s", err.text);
    unsetenv("ZINF_CPU_LEVEL");
}

static int limited(int resource, const char *name)
{
    const struct rlimit value = {1 << 30, 1 << 30};

    const uint64_t device = (1 << 30) - overhead();

    if (setrlimit((__rlimit_resource_t)resource, &value) || ask(device, ENOUGH, 0, 1))
        return 1;
    return ask(device, ENOUGH, 1, 1) != ZINF_DOES_NOT_FIT || !said(name) || !said("1073741825");
}

static void limits_of_the_process_count(void)
{
    static const struct {
        int resource;
        const char *name;
    } limits[] = {{RLIMIT_AS, "ulimit -v"}, {RLIMIT_DATA, "ulimit -d"}};

    if (available() < 2ull << 30)
        SKIP("less than 2 GiB are free");
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        int status;
        fflush(stdout);
        const pid_t child = fork();
        if (!child)
            _exit(limited(limits[i].resource, limits[i].name));
        CHECK(waitpid(child, &status, 0) == child);
#if !defined __SANITIZE_ADDRESS__ && !defined __SANITIZE_THREAD__ /* which need terabytes of both */
        CHECK_MESSAGE(status == 0, "%s", limits[i].name);
#endif
    }
}

int main(void)
{
    RUN(ranks_of_one_machine_share_its_memory);
    RUN(a_sum_beyond_64_bits_is_too_much_not_little);
    RUN(a_level_of_instructions_that_is_none_is_refused);
    RUN(limits_of_the_process_count);
    return check_finish();
}
