/* runtime/overhead.h - what zinf-run keeps in memory outside the arenas, as a plan states it.
 *
 * An upper bound that holds in every phase (load, init, steps, validation, sampling, evaluation,
 * saving, resuming, Hugging Face models in and out) on the cpu backend: a constant for code,
 * libraries and their data, and terms for what grows with the plan: the plan itself, one prepared
 * operation an instruction, prepared GEMMs, threads, scalars, checksums of storage, tables of a
 * checkpoint or a model's directory. tests/memory compares it with the process's peak. What
 * --trace keeps is not in it: zinf_overhead_trace_bytes.
 */
#ifndef ZINF_RUNTIME_OVERHEAD_H
#define ZINF_RUNTIME_OVERHEAD_H

#include <stdbool.h>
#include <stdint.h>

#include "runtime/plan.h"

/* Threads of zinf-run have stacks of this size (reserved; a few pages are used), those that do
 * nothing but read and write the smaller one. */
enum { ZINF_STACK_BYTES = 256 << 10, ZINF_SMALL_STACK_BYTES = 64 << 10 };
enum { ZINF_STORAGE_THREADS = 8 }; /* of a channel, at most */

uint64_t zinf_overhead_base_bytes(uint32_t ranks); /* of a plan without instructions */
uint64_t zinf_overhead_bytes(const zinf_plan *plan); /* at most UINT64_MAX / 2 */
/* So much of it, at most, a run may leave untouched: how many pages of a library the kernel maps
 * around those that are used is not in our hands, and some is for saving, or another engine, only.
 * A plan of twenty times as much measures at least 95 % of what it states. 0: not known. */
uint64_t zinf_overhead_untouched_bytes(const zinf_plan *plan);
/* A limit of the process's data (ulimit -d) counts stacks whole, and of programs and libraries next
 * to nothing: by so much it must be larger than what the plan states; 0 of a plan of up to 5
 * threads without nvme. */
uint64_t zinf_overhead_stack_bytes(const zinf_plan *plan);
uint64_t zinf_overhead_trace_bytes(const zinf_plan *plan); /* more with --trace */

#endif
