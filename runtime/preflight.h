/* runtime/preflight.h - does this machine have what the plan needs? Asked before anything large
 * is allocated. Also reads what the process has used.
 */
#ifndef ZINF_RUNTIME_PREFLIGHT_H
#define ZINF_RUNTIME_PREFLIGHT_H

#include <stdint.h>

#include "runtime/error.h"
#include "runtime/options.h"
#include "runtime/plan.h"

/* A rank, and how many, with it, share its machine and the filesystem of its nvme directory. */
typedef struct zinf_sharing {
    uint32_t rank, n_machine, n_drive;
} zinf_sharing;

/* Memory (the machine's, the control group's, the limits of the process), disk, backend.
 * nvme may be NULL. more_bytes: of memory, besides the plan's total. Touches nothing. */
zinf_status zinf_preflight(const zinf_plan *plan, const char *nvme, uint64_t more_bytes,
                           const zinf_sharing *sharing, zinf_error *err);

/* Can all files be opened that this run will have open at a time? Asked when the ranks are joined;
 * what their MPI library opens later is not known. */
zinf_status zinf_preflight_files(const zinf_plan *plan, const zinf_run_options *options,
                                 zinf_error *err);

/* Largest resident size of this process so far, bytes; 0 if the system does not tell. */
uint64_t zinf_peak_rss_bytes(void);

#endif
