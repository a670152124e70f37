/* runtime/written.h - is storage read only where the run has written? transfer.c ends a run that
 * does otherwise: it has no checksum to compare with.
 */
#ifndef ZINF_RUNTIME_WRITTEN_H
#define ZINF_RUNTIME_WRITTEN_H

#include "runtime/plan.h"

/* After zinf_plan_validate. Every byte of the nvme tier that a program reads was written by it
 * before, or is in a region of a unit that INIT and LOAD write to the last byte (C4). Waits are not
 * looked at: that a read is not too early is C3. n log n in the plan. */
zinf_status zinf_plan_check_written(const zinf_plan *plan, zinf_error *err);

#endif
