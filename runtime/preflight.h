/* runtime/preflight.h - does this machine have what the plan needs? Asked before anything large
 * is allocated. Also reads what the process has used.
 */
#ifndef ZINF_RUNTIME_PREFLIGHT_H
#define ZINF_RUNTIME_PREFLIGHT_H

#include <stdint.h>

#include "runtime/error.h"
#include "runtime/plan.h"

/* Memory (the machine's, the control group's, the limits of the process), disk, ranks, backend.
 * nvme may be NULL. more_bytes: of memory, besides the plan's total. Touches nothing. */
zinf_status zinf_preflight(const zinf_plan *plan, const char *nvme, uint64_t more_bytes,
                           zinf_error *err);

/* Largest resident size of this process so far, bytes; 0 if the system does not tell. */
uint64_t zinf_peak_rss_bytes(void);

#endif
