/* runtime/main.c - zinf-run: options, signals, the exit code. */
#include <inttypes.h>
#include <limits.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/files.h"
#include "runtime/options.h"
#include "runtime/overhead.h"
#include "runtime/run.h"

static volatile sig_atomic_t stop;

static void on_signal(int number)
{
    stop = 1;
    signal(number, SIG_DFL); /* the second one ends at once */
}

/* So that memory outside the arenas is what the plan states: one heap, what is freed goes back
 * to the system, and no thread reserves more stack than it may use (libgomp's included). */
static void keep_memory_small(void)
{
    pthread_attr_t attributes;

    mallopt(M_ARENA_MAX, 1);
    mallopt(M_MMAP_THRESHOLD, 128 << 10);
    mallopt(M_TRIM_THRESHOLD, 128 << 10);
#if !defined __SANITIZE_ADDRESS__ && !defined __SANITIZE_THREAD__
    if (pthread_attr_init(&attributes) == 0) {
        pthread_attr_setstacksize(&attributes, ZINF_STACK_BYTES);
        pthread_setattr_default_np(&attributes);
        pthread_attr_destroy(&attributes);
    }
#else
    (void)attributes;
#endif
}

/* libgomp's threads spin for milliseconds before they sleep, which on shared processors takes them
 * from the very thread that is waited for: a step of 2 ms was measured at 60. A thousand turns are
 * as good as more on an idle machine (where none at all costs a tiny model a factor of 4, and a
 * mid-size one nothing) and the best on a busy one. libgomp has read its environment before main,
 * so this starts again with it; what the user has set stays. */
static void wait_briefly(char **argv)
{
    char path[PATH_MAX]; /* its name, which /proc/self/exe would hide from ps */
    ssize_t n;

    if (getenv("GOMP_SPINCOUNT") || getenv("OMP_WAIT_POLICY") ||
        (n = readlink("/proc/self/exe", path, sizeof path - 1)) < 0 ||
        setenv("GOMP_SPINCOUNT", "1000", 1))
        return;
    path[n] = 0;
    execv(path, argv); /* if that fails, the run is only slower */
}

/* A rank that is not connected to the others. What ails all of them rank 0 says, and most launchers
 * then end the rest; what ails another rank alone, that one says three seconds later. */
static void speak(const zinf_launch *launch, const zinf_error *err)
{
    if (launch->rank == 0)
        fprintf(stderr, "zinf-run: %s\n", err->text);
    else if (sleep(3) == 0 && !stop)
        fprintf(stderr, "zinf-run: rank %" PRIu32 ": %s\n", launch->rank, err->text);
}

/* A rank that only prints its options would leave the others waiting for it; what another than
 * rank 0 is to write would not be written. */
static zinf_status same_purpose(const zinf_run_options *options, zinf_ranks *ranks,
                                zinf_error *err)
{
    const zinf_ranks_fact facts[] = {{"--help", options->help},
                                     {"--log", options->log != NULL},
                                     {"--trace", options->trace != NULL}};

    return zinf_ranks_compare(ranks, facts, sizeof facts / sizeof *facts, err);
}

int main(int argc, char **argv)
{
    const zinf_launch launch = zinf_ranks_launch();
    const struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    zinf_run_options options = {0};
    zinf_ranks ranks = zinf_ranks_self();
    zinf_error err = {0}, apart = {0};

    wait_briefly(argv);
    zinf_files_guard_standard();
    keep_memory_small();
    zinf_run_options_parse(argc, argv, &options, &err);
    if (options.help && launch.rank == 0)
        zinf_run_options_help(stdout);
    if (options.help && launch.n_ranks == 1)
        return 0;
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a file too large is an error like others: EFBIG */
    if (launch.n_ranks > 1 && zinf_ranks_join(&launch, &ranks, &apart))
        zinf_fail(&err, apart.status, "%s", apart.text);
    else if (zinf_ranks_together(&ranks, &err) == ZINF_OK && /* wrong options of any end all */
             same_purpose(&options, &ranks, &err) == ZINF_OK && !options.help)
        zinf_run(&options, &ranks, &stop, &err);
    zinf_ranks_leave(&ranks, &err);
    if (err.status && (!ranks.collective || ranks.collective->n_ranks == 1)) {
        speak(&launch, &err);
        zinf_ranks_abandon(&launch, (int)err.status);
    }
    return (int)err.status;
}
