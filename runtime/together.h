/* runtime/together.h - what all ranks write as one: checkpoints and Hugging Face directories. Rank
 * 0 makes the files, the others open them, each puts what it has, and rank 0 gives them their name
 * once all is there. Every rank makes each call; it succeeds on all of them or on none.
 */
#ifndef ZINF_RUNTIME_TOGETHER_H
#define ZINF_RUNTIME_TOGETHER_H

#include "runtime/checkpoint.h"
#include "runtime/hf.h"
#include "runtime/ranks.h"

/* After a failure *ret_writer may still be there, to be abandoned. */
zinf_status zinf_together_create_checkpoint(zinf_ranks *ranks, const char *directory,
                                            const zinf_plan *plan, const zinf_progress *progress,
                                            zinf_checkpoint_writer **ret_writer, zinf_error *err);
/* The writer, if it is still there, is to be abandoned. ret_placed: as zinf_checkpoint_commit says,
 * on rank 0; elsewhere it stays as it is. */
zinf_status zinf_together_commit_checkpoint(zinf_ranks *ranks, zinf_checkpoint_writer **writer,
                                            bool *ret_placed, zinf_error *err);

/* A writer that is not given back is gone. */
zinf_status zinf_together_create_hf(zinf_ranks *ranks, const char *directory,
                                    const zinf_plan *plan, const zinf_hf_options *options,
                                    zinf_hf_writer **ret_writer, zinf_error *err);
/* The writer is freed, also on failure. */
zinf_status zinf_together_commit_hf(zinf_ranks *ranks, zinf_hf_writer *writer, zinf_error *err);

#endif
