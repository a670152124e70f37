/* runtime/checkpoint.h - saved training state: fp32 master, m and v of every logical tensor as
 * safetensors files, and a manifest. Independent of tiles, tiers and ranks.
 *
 * DIR/step-<n>/{master,m,v}.safetensors and manifest.json; DIR/latest names the last one. Written
 * under a temporary name, fsynced, renamed, directory fsynced: what is there by its name is whole.
 * `latest` is in it then, and is renamed out of it last: a kill at any instant leaves the previous
 * checkpoint or the new one. After commit older checkpoints beyond the last two are removed.
 *
 * Several ranks write one checkpoint together, each the elements it has, into files that rank 0
 * made: DIR is on a filesystem that all of them see.
 */
#ifndef ZINF_RUNTIME_CHECKPOINT_H
#define ZINF_RUNTIME_CHECKPOINT_H

#include <stdbool.h>
#include <stdint.h>

#include "runtime/error.h"
#include "runtime/plan.h"

/* What a resumed run needs beside the tensors. */
typedef struct zinf_progress {
    uint64_t step;          /* optimizer steps done */
    uint64_t data_position; /* sequences taken by all ranks together */
    uint64_t seed;
    double loss_scale;      /* 1 unless fp16 */
    uint64_t plan_hash;     /* of the plan that wrote it; informative */
    uint64_t n_skipped;     /* steps in a row, the last one among them, whose update was left out */
} zinf_progress;

typedef enum zinf_state_array { ZINF_STATE_MASTER, ZINF_STATE_M, ZINF_STATE_V, ZINF_N_STATES }
    zinf_state_array;

extern const char *const zinf_state_names[ZINF_N_STATES]; /* "master", "m", "v" */

/* Of n values: the index of the first that no training state may have (master and m finite, v
 * finite and not negative); n if all are fine. */
uint64_t zinf_state_fault(zinf_state_array array, const float *values, uint64_t n);

typedef struct zinf_checkpoint_writer zinf_checkpoint_writer;
typedef struct zinf_checkpoint_reader zinf_checkpoint_reader;

/* Creates the temporary directory and files of full size (free space is checked first). DIR is
 * created if its parent exists, and locked until commit. The plan must outlive the writer. */
zinf_status zinf_checkpoint_create(const char *directory, const zinf_plan *plan,
                                   const zinf_progress *progress,
                                   zinf_checkpoint_writer **ret_writer, zinf_error *err);
/* Another rank's, between rank 0's create and commit: the same arguments, the same files. */
zinf_status zinf_checkpoint_join(const char *directory, const zinf_plan *plan,
                                 const zinf_progress *progress,
                                 zinf_checkpoint_writer **ret_writer, zinf_error *err);
/* Elements [first, first + n) of the tensor, row major. Any order; each element once. */
zinf_status zinf_checkpoint_put(zinf_checkpoint_writer *writer, uint32_t tensor,
                                zinf_state_array array, uint64_t first, uint64_t n,
                                const float *values, zinf_error *err);
/* What was put is on the disk. Each rank calls it before rank 0 commits. */
zinf_status zinf_checkpoint_sync(const zinf_checkpoint_writer *writer, zinf_error *err);
/* Checksums and counts of what was put; rank 0 commits with the sums of all ranks' in it. */
uint64_t *zinf_checkpoint_totals(zinf_checkpoint_writer *writer, uint32_t *ret_n);
/* Checks that every element was put, syncs, renames. The writer is freed, also on failure.
 * ret_placed: the checkpoint is there, whole, and the next to be opened; also where it could not be
 * named in `latest` any more, which is a failure. */
zinf_status zinf_checkpoint_commit(zinf_checkpoint_writer *writer, bool *ret_placed,
                                   zinf_error *err);
/* Removes the temporary, unless this writer has joined; NULL ok. */
void zinf_checkpoint_abandon(zinf_checkpoint_writer *writer);

/* A run's claim on the directory it saves in, from before its first step to its end. */
typedef struct zinf_checkpoint_place zinf_checkpoint_place;

/* Creates DIR if its parent exists and locks it: another run's is refused, naming its process. DIR
 * is no checkpoint itself, and what has a name of ours there is what a save leaves by it. If it
 * holds some, `resumed` (NULL: none) must be DIR or one of them: a training does not go on
 * another's. */
zinf_status zinf_checkpoint_claim(const char *directory, const char *resumed,
                                  zinf_checkpoint_place **ret_place, zinf_error *err);
/* What a rank sees of the claim on DIR: another number where it is not the same directory, an error
 * where it is not claimed. */
zinf_status zinf_checkpoint_mark(const char *directory, uint64_t *ret_mark, zinf_error *err);
/* Keeps the space of the next checkpoint of that plan, so that no other process can take it, and
 * checks that the disk has room for all that will be there at once if n_saves (1 or more) are
 * still to come. MACHINE with needed and free bytes. */
zinf_status zinf_checkpoint_reserve(zinf_checkpoint_place *place, const zinf_plan *plan,
                                    const zinf_progress *progress, uint64_t n_saves,
                                    zinf_error *err);
void zinf_checkpoint_release(zinf_checkpoint_place *place); /* accepts NULL */

/* Opens the last checkpoint in DIR (or DIR itself if it holds a manifest): the one that `latest`
 * names, or a newer one whose save was killed just before that. Checks the manifest, each file's
 * size and header, and that tensors and model equal the plan's (which must outlive the reader). */
zinf_status zinf_checkpoint_open(const char *directory, const zinf_plan *plan,
                                 zinf_checkpoint_reader **ret_reader,
                                 zinf_progress *ret_progress, zinf_error *err);
zinf_status zinf_checkpoint_get(zinf_checkpoint_reader *reader, uint32_t tensor,
                                zinf_state_array array, uint64_t first, uint64_t n,
                                float *ret_values, zinf_error *err);
/* Checksums of what this rank has got; to be added up over ranks before the check. */
uint64_t *zinf_checkpoint_taken(zinf_checkpoint_reader *reader, uint32_t *ret_n);
/* Nothing that was got may be used before this: all elements, each got once by one of the ranks,
 * are those that were saved, and such as a training may have. (What none of them got of its own
 * copy is not looked at.) */
zinf_status zinf_checkpoint_check(const zinf_checkpoint_reader *reader, uint32_t n_ranks,
                                  zinf_error *err);
/* Equal for equal states at the same step: what ranks compare. */
uint64_t zinf_checkpoint_identity(const zinf_checkpoint_reader *reader);
void zinf_checkpoint_close(zinf_checkpoint_reader *reader); /* accepts NULL */

#endif
