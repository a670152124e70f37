/* runtime/main.c - zinf-run: options, signals, the exit code. */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "runtime/options.h"
#include "runtime/run.h"

static volatile sig_atomic_t stop;

static void on_signal(int number)
{
    stop = 1;
    signal(number, SIG_DFL); /* the second one ends at once */
}

int main(int argc, char **argv)
{
    zinf_run_options options;
    zinf_error err = {0};

    if (zinf_run_options_parse(argc, argv, &options, &err) == ZINF_OK) {
        if (options.help) {
            zinf_run_options_help(stdout);
            return 0;
        }
        const struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
        sigaction(SIGINT, &action, NULL);
        sigaction(SIGTERM, &action, NULL);
        signal(SIGPIPE, SIG_IGN);
        signal(SIGXFSZ, SIG_IGN); /* a file too large is an error like others: EFBIG */
        zinf_run(&options, &stop, &err);
    }
    if (err.status)
        fprintf(stderr, "zinf-run: %s\n", err.text);
    return (int)err.status;
}
