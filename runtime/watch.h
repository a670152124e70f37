/* runtime/watch.h - does every rank still live? Heartbeats over TCP, beside the collectives.
 *
 * Rank 0 hears of all others, all others hear of rank 0, each from a thread of its own, so that a
 * rank that is slow (a long save, a large Adam) is not taken for a dead one, and one that is
 * killed, stopped or gone is known within ZINF_SILENCE_S: then the collectives are cancelled with
 * a text that names it, on every rank.
 */
#ifndef ZINF_RUNTIME_WATCH_H
#define ZINF_RUNTIME_WATCH_H

#include <stdbool.h>

#include "runtime/collective.h"

enum {
    ZINF_SILENCE_S = 15, /* without a beat (one a second): stopped, or its machine hangs */
    ZINF_GRACE_S = 10    /* from then on: a rank that has not left by itself is ended */
};

typedef struct zinf_watch zinf_watch;

/* On every rank at once. The collective must outlive the watch. */
zinf_status zinf_watch_open(const zinf_collective *collective, zinf_watch **ret_watch,
                            zinf_error *err);
/* Tells the others why this rank fails; once. */
void zinf_watch_tell(zinf_watch *watch, const zinf_error *failure);
/* This rank has nothing left to put away: from here on another's failure ends it at once. */
void zinf_watch_finish(zinf_watch *watch);
/* This rank is done: its silence means nothing from here on. */
void zinf_watch_leave(zinf_watch *watch);
/* True if another rank failed: err says which and why, with its status; MACHINE if it was found
 * dead or silent. */
bool zinf_watch_failed(zinf_watch *watch, zinf_error *err);
/* On every rank, after finish: returns when all have come here. Rank 0 leaves last: until then it
 * hears of every other, and every other of it. */
void zinf_watch_part(zinf_watch *watch);
/* Until every rank that lives has left or `seconds` are over. */
void zinf_watch_wait(zinf_watch *watch, double seconds);
void zinf_watch_close(zinf_watch *watch); /* accepts NULL */

#endif
