/* runtime/run.h - one run of zinf-run, from plan to summary. */
#ifndef ZINF_RUNTIME_RUN_H
#define ZINF_RUNTIME_RUN_H

#include <signal.h>

#include "runtime/error.h"
#include "runtime/options.h"
#include "runtime/ranks.h"

/* *stop != 0 on any rank ends the run after the current step. */
zinf_status zinf_run(const zinf_run_options *options, zinf_ranks *ranks,
                     const volatile sig_atomic_t *stop, zinf_error *err);

#endif
