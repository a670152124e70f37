/* tests/ranks/watch.c - the watch over the ranks with clocks of the test's own, which stand still
 * unless it moves them: silence, a process that was stopped itself, and a rank that is told and
 * does not go. Two processes, no MPI.
 */
#include "runtime/watch.h"

#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/check.h"

/* What the processes share; one of each a rank. */
static struct shared {
    atomic_llong now_ns[2];  /* on its clock */
    atomic_uint n_turns[2];  /* of its watch, each of which begins with a poll */
    atomic_bool joined[2], cancelled[2], leave[2];
    atomic_int fails[2]; /* with this status, which the rank tells before it leaves */
    char why[2][600];
} *shared;
static unsigned mine; /* the rank of this process */
static int link_of[2]; /* a pipe: rank 0 writes what it broadcasts */
static pid_t pids[2];

int clock_gettime(clockid_t clock, struct timespec *ret_time)
{
    if (!shared || clock != CLOCK_MONOTONIC)
        return (int)syscall(SYS_clock_gettime, clock, ret_time);
    const long long ns = atomic_load(&shared->now_ns[mine]);
    *ret_time = (struct timespec){.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
    return 0;
}

int poll(struct pollfd *fds, nfds_t n, int ms)
{
    const struct timespec limit = {.tv_nsec = (ms < 10 ? ms : 10) * 1000000};

    if (shared)
        atomic_fetch_add(&shared->n_turns[mine], 1);
    return (int)syscall(SYS_ppoll, fds, n, &limit, NULL, 0);
}

static zinf_status broadcast(const zinf_collective *self, const void *send, void *recv,
                             uint64_t count, zinf_dtype dtype, uint32_t root, zinf_error *err)
{
    const bool done = self->rank == root ? write(link_of[1], send, count) == (ssize_t)count
                                         : read(link_of[0], recv, count) == (ssize_t)count;

    (void)dtype;
    return done ? ZINF_OK : zinf_fail(err, ZINF_MACHINE, "the pipe broke");
}

static void cancel(const zinf_collective *self, const char *why)
{
    snprintf(shared->why[self->rank], sizeof shared->why[0], "%s", why);
    atomic_store(&shared->cancelled[self->rank], true);
}

static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
}

/* A rank: joins, waits until it is told to leave (and longer, if that is what is tested). */
static int be_rank(unsigned rank)
{
    const zinf_collective collective = {.rank = rank, .n_ranks = 2, .broadcast = broadcast,
                                        .cancel = cancel};
    zinf_watch *watch = NULL;
    zinf_error err = {0};

    mine = rank;
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* of a test that has failed */
    alarm(180 * CHECK_SLOWER);
    if (zinf_watch_open(&collective, &watch, &err)) {
        fprintf(stderr, "# %s\n", err.text);
        return 9;
    }
    atomic_store(&shared->joined[rank], true);
    while (!atomic_load(&shared->leave[rank]))
        nap();
    const zinf_error own = {.status = (zinf_status)atomic_load(&shared->fails[rank]),
                            .text = "mine"};
    if (own.status)
        zinf_watch_tell(watch, &own);
    const bool failed = zinf_watch_failed(watch, &err);
    zinf_watch_leave(watch);
    zinf_watch_close(watch);
    return own.status ? 10 : failed ? 20 + (int)err.status : 0;
}

/* When a wait that begins now is given up: the machine's own time. */
static time_t deadline(void)
{
    return time(NULL) + 60 * CHECK_SLOWER;
}

static bool comes(atomic_bool *what)
{
    for (const time_t end = deadline(); time(NULL) < end && !atomic_load(what);)
        nap();
    return atomic_load(what);
}

/* So much later on its clock: until its watch has seen it, and said and heard what there was. */
static void pass(unsigned rank, long long seconds)
{
    atomic_fetch_add(&shared->now_ns[rank], seconds * 1000000000);
    const unsigned before = atomic_load(&shared->n_turns[rank]);
    for (const time_t end = deadline(); time(NULL) < end; nap())
        if (atomic_load(&shared->n_turns[rank]) - before > 2)
            return;
    CHECK_MESSAGE(false, "the watch of rank %u does not go on", rank);
}

static void set_out(void)
{
    memset(shared, 0, sizeof *shared);
    CHECK(pipe(link_of) == 0);
    fflush(stdout);
    for (unsigned r = 0; r < 2; r++)
        if (!(pids[r] = fork()))
            _exit(be_rank(r));
    CHECK_MESSAGE(comes(&shared->joined[0]) && comes(&shared->joined[1]),
                  "the ranks did not join");
    for (unsigned r = 0; r < 2; r++)
        pass(r, 0); /* their threads have begun */
}

/* Its exit code if it ends; else -1. */
static int end_of(unsigned rank)
{
    int status;

    for (const time_t end = deadline(); time(NULL) < end; nap())
        if (waitpid(pids[rank], &status, WNOHANG) == pids[rank])
            return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    kill(pids[rank], SIGKILL);
    waitpid(pids[rank], &status, 0);
    return -1;
}

static void both_leave(int first, int second)
{
    atomic_store(&shared->leave[0], true);
    atomic_store(&shared->leave[1], true);
    const int code[] = {end_of(0), end_of(1)};
    CHECK_MESSAGE(code[0] == first && code[1] == second, "rank 0 ends with %d (%s), rank 1 with %d "
                  "(%s)", code[0], shared->why[0], code[1], shared->why[1]);
}

static void ranks_that_live_hear_of_no_failure(void)
{
    set_out();
    for (int i = 0; i < 3 * ZINF_SILENCE_S; i++)
        pass(i % 2, 4); /* a beat, and what the other has said meanwhile */
    both_leave(0, 0);
    CHECK(!shared->cancelled[0] && !shared->cancelled[1]);
}

static void a_rank_that_was_stopped_itself_blames_nobody(void)
{
    for (unsigned r = 0; r < 2; r++) {
        set_out();
        pass(r, ZINF_SILENCE_S + 5); /* it has heard nothing, but it did not listen */
        pass(r, 100 * ZINF_SILENCE_S);
        both_leave(0, 0);
        CHECK(!shared->cancelled[0] && !shared->cancelled[1]);
    }
}

static void a_silent_rank_is_named_when_its_time_is_over_and_not_before(void)
{
    for (unsigned r = 0; r < 2; r++) {
        char words[80];
        siginfo_t info;
        set_out();
        kill(pids[!r], SIGSTOP);
        CHECK(waitid(P_PID, (id_t)pids[!r], &info, WSTOPPED) == 0);
        pass(r, 0); /* what was on its way */
        for (int i = 0; i < 2; i++)
            pass(r, ZINF_SILENCE_S / 2 - 1); /* less than makes it doubt itself */
        CHECK_MESSAGE(!shared->cancelled[r], "%s", shared->why[r]);
        pass(r, ZINF_SILENCE_S / 2 - 1);
        snprintf(words, sizeof words, "rank %u has been silent for %d s", !r, ZINF_SILENCE_S);
        CHECK_MESSAGE(shared->cancelled[r] && strstr(shared->why[r], words), "\"%s\"",
                      shared->why[r]);
        atomic_store(&shared->leave[r], true);
        CHECK(end_of(r) == 20 + ZINF_MACHINE);
        kill(pids[!r], SIGKILL);
        end_of(!r);
    }
}

static void a_rank_that_does_not_go_is_ended_after_its_grace(void)
{
    for (unsigned r = 0; r < 2; r++) {
        set_out();
        kill(pids[!r], SIGKILL);
        end_of(!r);
        CHECK_MESSAGE(comes(&shared->cancelled[r]) &&
                          strstr(shared->why[r], "has ended without a word"), "\"%s\"",
                      shared->why[r]);
        pass(r, ZINF_GRACE_S - 1);
        CHECK(waitpid(pids[r], NULL, WNOHANG) == 0); /* still has time */
        atomic_fetch_add(&shared->now_ns[r], 2000000000);
        CHECK(end_of(r) == ZINF_MACHINE);
    }
}

static void a_failing_ranks_status_is_the_others_too(void)
{
    for (unsigned r = 0; r < 2; r++)
        for (int status = ZINF_WRONG_RESULT; status <= ZINF_MACHINE; status++) {
            set_out();
            atomic_store(&shared->fails[r], status);
            atomic_store(&shared->leave[r], true);
            CHECK_MESSAGE(comes(&shared->cancelled[!r]) &&
                              strstr(shared->why[!r], "failed: mine"), "\"%s\"",
                          shared->why[!r]);
            atomic_store(&shared->leave[!r], true);
            CHECK(end_of(r) == 10);
            CHECK(end_of(!r) == 20 + status);
        }
}

/* One that hangs is ended by its watch, with the same status. */
static void a_rank_that_hangs_ends_with_the_status_it_was_told(void)
{
    set_out();
    atomic_store(&shared->fails[1], ZINF_BAD_INPUT);
    atomic_store(&shared->leave[1], true);
    CHECK(comes(&shared->cancelled[0]));
    CHECK(end_of(1) == 10);
    atomic_fetch_add(&shared->now_ns[0], (ZINF_GRACE_S + 2) * 1000000000ll);
    CHECK(end_of(0) == ZINF_BAD_INPUT);
}

int main(void)
{
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return 1;
    RUN(ranks_that_live_hear_of_no_failure);
    RUN(a_rank_that_was_stopped_itself_blames_nobody);
    RUN(a_silent_rank_is_named_when_its_time_is_over_and_not_before);
    RUN(a_rank_that_does_not_go_is_ended_after_its_grace);
    RUN(a_failing_ranks_status_is_the_others_too);
    RUN(a_rank_that_hangs_ends_with_the_status_it_was_told);
    return check_finish();
}
