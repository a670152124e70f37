/* runtime/safetensors.h - the format of safetensors files, read and written: headers only. Bytes of
 * tensors are the callers' (checkpoints and Hugging Face directories).
 *
 * A file is the length N of its header (8 bytes, little endian), N bytes of JSON (name -> dtype,
 * shape, data_offsets; "__metadata__" -> texts), and the data, which the tensors fill without hole
 * or overlap.
 */
#ifndef ZINF_RUNTIME_SAFETENSORS_H
#define ZINF_RUNTIME_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/dtype.h"
#include "runtime/error.h"

enum { ZINF_SAFETENSORS_DIMS = 8 };
#define ZINF_SAFETENSORS_HEADER 100000000u /* most bytes of a header, by the specification */

typedef struct zinf_safetensor {
    char *name;
    uint64_t shape[ZINF_SAFETENSORS_DIMS];
    uint64_t n_elems, bytes;
    uint64_t offset; /* in the file */
    uint32_t n_dims;
    uint32_t dtype;  /* zinf_dtype, or ZINF_N_DTYPES for one that is known only by its size */
} zinf_safetensor;

typedef struct zinf_safetensors {
    zinf_safetensor *tensors; /* [n] by name */
    uint32_t n;
} zinf_safetensors;

/* Length and JSON of the header, with a NUL behind: *ret_bytes has *ret_n + 1 bytes; free it. A
 * header of more than most_bytes is refused unread: parsing takes some 20 times its length. */
zinf_status zinf_safetensors_load(int fd, const char *path, uint64_t file_bytes,
                                  uint64_t most_bytes, char **ret_bytes, uint64_t *ret_n,
                                  zinf_error *err);

/* What zinf_safetensors_load gave. ret_file is set only on success. */
zinf_status zinf_safetensors_parse(const char *path, const char *bytes, uint64_t n,
                                   uint64_t file_bytes, zinf_safetensors *ret_file,
                                   zinf_error *err);
void zinf_safetensors_free(zinf_safetensors *file); /* accepts a zeroed one */

const zinf_safetensor *zinf_safetensors_find(const zinf_safetensors *file, const char *name);

/* [3, 4], for messages. */
typedef struct zinf_shape_text {
    char text[120];
} zinf_shape_text;
zinf_shape_text zinf_shape_show(const uint64_t *shape, uint32_t n_dims);

/* One tensor to be written, in the order of the data. */
typedef struct zinf_safetensor_row {
    const char *name;
    uint64_t shape[2];
    uint32_t n_dims, dtype;
} zinf_safetensor_row;

/* The length, the JSON and spaces up to a multiple of 4096 bytes, so that the data is aligned:
 * malloc'ed. metadata: n_metadata pairs key, text. */
zinf_status zinf_safetensors_header(const zinf_safetensor_row *rows, uint32_t n,
                                    const char *const (*metadata)[2], unsigned n_metadata,
                                    char **ret_bytes, uint64_t *ret_n, zinf_error *err);

#endif
