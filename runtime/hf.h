/* runtime/hf.h - the weights of a Hugging Face directory, in and out: config.json beside
 * model.safetensors, or its shards and model.safetensors.index.json.
 *
 * Any range of elements of any tensor of the plan can be asked for or given: GPT-2's linears,
 * which are stored [in][out], are turned on the way, through a buffer of ZINF_HF_CHUNK bytes. Only
 * where each tensor lies is kept in memory.
 */
#ifndef ZINF_RUNTIME_HF_H
#define ZINF_RUNTIME_HF_H

#include <stdint.h>

#include "runtime/error.h"
#include "runtime/plan.h"

enum { ZINF_HF_CHUNK = 1 << 18 };
#define ZINF_HF_WRITING ".zinf-writing" /* behind the name of a directory that is being written */

typedef struct zinf_hf_reader zinf_hf_reader;
typedef struct zinf_hf_writer zinf_hf_writer;

/* Checks that config.json is the plan's model, all headers, names and shapes (the base model's
 * prefix may be missing), and that a stored head of tied embeddings equals them. The plan must
 * outlive the reader. */
zinf_status zinf_hf_open(const char *directory, const zinf_plan *plan,
                         zinf_hf_reader **ret_reader, zinf_error *err);
/* Elements [first, first + n) of the tensor, row major as in the plan, from F32, F16 or BF16. */
zinf_status zinf_hf_get(zinf_hf_reader *reader, uint32_t tensor, uint64_t first, uint64_t n,
                        float *ret_values, zinf_error *err);
uint32_t zinf_hf_dtype(const zinf_hf_reader *reader, uint32_t tensor); /* as it is stored */
/* The files of weights, for whoever compares them: the descriptor is valid until the next call. */
uint32_t zinf_hf_n_files(const zinf_hf_reader *reader);
zinf_status zinf_hf_file(zinf_hf_reader *reader, uint32_t index, const char **ret_name,
                         int *ret_fd, uint64_t *ret_bytes, zinf_error *err);
void zinf_hf_close(zinf_hf_reader *reader); /* accepts NULL */

typedef struct zinf_hf_options {
    const char *from;     /* directory whose config.json and tokenizer are taken over, or NULL */
    uint32_t dtype;       /* ZINF_F32, ZINF_BF16 or ZINF_F16 */
    const uint32_t *dtypes; /* [n_tensors] each tensor's own, config.json stays as it is; or NULL */
    uint64_t shard_bytes; /* most bytes of tensors in a file that has several */
} zinf_hf_options;

/* The directory must be new, or empty and such that it can be replaced (no mount point). It is
 * built under a temporary name beside it, with all but the weights and files of full size (free
 * space is checked first): from then on it can fail only where the disk or the weights do. The plan
 * must outlive the writer. */
zinf_status zinf_hf_create(const char *directory, const zinf_plan *plan,
                           const zinf_hf_options *options, zinf_hf_writer **ret_writer,
                           zinf_error *err);
/* A writer that another rank has created, of the same plan and options: it puts its elements there
 * and leaves making and removing the directory to that rank. */
zinf_status zinf_hf_join(const char *directory, const zinf_plan *plan,
                         const zinf_hf_options *options, zinf_hf_writer **ret_writer,
                         zinf_error *err);
/* A number that the creator has drawn and put where elements will be; what another rank finds there
 * is the same if it has joined that one. */
uint64_t zinf_hf_mark(const zinf_hf_writer *writer);
/* Elements [first, first + n) of the tensor, row major as in the plan. Each element once. What is
 * not finite, or would not be in the tensor's dtype, is refused. */
zinf_status zinf_hf_put(zinf_hf_writer *writer, uint32_t tensor, uint64_t first, uint64_t n,
                        const float *values, zinf_error *err);
/* What was put reaches the disk; and what is known of it, numbers to be added modulo 2^64: before a
 * commit, the ranks sync and the creator's totals become the sums over all. */
zinf_status zinf_hf_sync(zinf_hf_writer *writer, zinf_error *err);
uint64_t *zinf_hf_totals(zinf_hf_writer *writer, uint32_t *ret_n);
/* Checks that every byte of every tensor was written once, syncs, renames. The writer is freed,
 * also on failure. */
zinf_status zinf_hf_commit(zinf_hf_writer *writer, zinf_error *err);
void zinf_hf_abandon(zinf_hf_writer *writer); /* its creator's removes the temporary; NULL ok */

#endif
