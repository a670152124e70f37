/* tests/checker/replay.h - what a plan computes: all its programs, on the reference kernels. */
#ifndef ZINF_TESTS_CHECKER_REPLAY_H
#define ZINF_TESTS_CHECKER_REPLAY_H

#include "runtime/error.h"
#include "runtime/plan.h"

/* INIT, two STEPs, EVAL, SAMPLE, SAVE, LOAD, a STEP, SAVE; in program order, in memory that holds
 * garbage wherever no unit's state lies, nvme tier included; as every rank, where units are owned.
 * The hash is over losses, norms, logits and the states saved: a model small enough takes a
 * millisecond or two. */
zinf_status replay(const zinf_plan *plan, uint64_t *ret_hash, zinf_error *err);

#endif
