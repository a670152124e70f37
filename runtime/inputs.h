/* runtime/inputs.h - do all ranks read the same? Of what each rank opens by itself: a model, data.
 * (A checkpoint's own checksums tell it.)
 *
 * Ranks that have the very same files (of one running machine, by device and inode) need not look
 * into them. Else, as with a copy on each node's own disk, the ranks that share a copy read all of
 * it once, each its part, and hashes of all bytes are compared. So the bytes count, not the names;
 * a shared filesystem costs one reading for each machine, and one machine none.
 *
 * A file that is changed after that is not noticed (files of models and data have no checksums). Of
 * a model ranks cannot differ by it all the same: each weight is read once, by one of them.
 */
#ifndef ZINF_RUNTIME_INPUTS_H
#define ZINF_RUNTIME_INPUTS_H

#include "runtime/data.h"
#include "runtime/hf.h"
#include "runtime/ranks.h"

typedef struct zinf_input_file {
    const char *what; /* must be equal too: a name in a directory, a format */
    int fd;           /* valid until the next file is asked for */
    uint64_t bytes;
} zinf_input_file;

typedef struct zinf_input {
    const char *option; /* "--data", for the error */
    uint32_t n_files;
    zinf_status (*file)(void *context, uint32_t index, zinf_input_file *ret_file, zinf_error *err);
    void *context;
} zinf_input;

zinf_input zinf_input_data(const char *option, zinf_data *data);
zinf_input zinf_input_model(zinf_hf_reader *reader); /* "--init" */

/* BAD_INPUT on every rank, with the same text, if any has other bytes than rank 0. */
zinf_status zinf_inputs_compare(zinf_ranks *ranks, const zinf_input *input, zinf_error *err);

#endif
