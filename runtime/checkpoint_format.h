/* runtime/checkpoint_format.h - what writer and reader of checkpoints share: names, the layout of
 * the safetensors files, and whole reads and writes. Internal to checkpoints.
 *
 * manifest.json, in this order: format, version, step, data_position, seed, loss_scale, plan_hash,
 * n_skipped (0 where it is missing), model {}, files {name: {bytes, header}}, tensors [{name,
 * shape, master, m, v}], checksum.
 * Every checksum is 16 hex digits: `master`, `m`, `v` are that array's element_sum.h, which ranks
 * can add up; the others are xxh64 with seed 0, `header` of a file's bytes before its data,
 * `checksum` of all of the manifest before its own digits. Together they cover every byte of the
 * four files.
 */
#ifndef ZINF_RUNTIME_CHECKPOINT_FORMAT_H
#define ZINF_RUNTIME_CHECKPOINT_FORMAT_H

#include <json-c/json.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "runtime/checkpoint.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "checkpoints are written in the machine's byte order, which must be little endian"
#endif

#define ZINF_CHECKPOINT_FORMAT "zinf checkpoint"
enum {
    ZINF_CHECKPOINT_VERSION = 3,
    ZINF_SUM_DIGITS = 16,
    ZINF_STEP_NAME = 64 /* bytes of a name "step-<n>", and room for a damaged one */
};
#define ZINF_MANIFEST_NAME "manifest.json"
#define ZINF_LATEST_NAME "latest"
#define ZINF_LOCK_NAME ".zinf-lock" /* held by a run that saves there */
/* Directories of a checkpoint's files: being written, being removed, for the next save. */
#define ZINF_WRITING_NAME ".zinf-writing"
#define ZINF_REMOVING_NAME ".zinf-removing"
#define ZINF_RESERVED_NAME ".zinf-reserved"
#define ZINF_MANIFEST_END "\"\n}\n" /* what follows the manifest's own checksum */

extern const char *const zinf_state_files[ZINF_N_STATES]; /* "master.safetensors", .. */

/* The members of "model" after name and family: whole numbers, and real ones, which the manifest
 * has as texts ("%a"), to the bit. */
typedef struct zinf_model_field {
    const char *name;
    size_t offset; /* in zinf_model_info */
} zinf_model_field;
extern const zinf_model_field zinf_model_fields[], zinf_model_reals[];
extern const unsigned zinf_n_model_fields, zinf_n_model_reals;
uint64_t zinf_model_field_value(const zinf_model_info *model, unsigned field);
double zinf_model_real_value(const zinf_model_info *model, unsigned field);

uint64_t zinf_tensor_elems(const zinf_tensor *tensor); /* checked by zinf_checkpoint_layout */

/* Byte offset of each tensor in the data, in the order of the plan: ret_offsets[n_tensors + 1],
 * the last one the bytes of all. Refuses sizes beyond 63 bits. */
zinf_status zinf_checkpoint_layout(const zinf_plan *plan, uint64_t *ret_offsets, zinf_error *err);

/* json-c ends the process when it is given what it could not allocate. These bear a NULL, so that
 * a text can be put together and `errno == ENOMEM` be asked once, at its end (0 before). */
void zinf_json_add(json_object *object, const char *key, json_object *value);
void zinf_json_append(json_object *array, json_object *value);

json_object *zinf_tensor_shape(const zinf_tensor *tensor); /* NULL: out of memory */

void zinf_sum_text(uint64_t sum, char ret_text[ZINF_SUM_DIGITS + 1]);

/* All bytes or an error that names the file (in `directory`), offset and length. */
zinf_status zinf_write_all(int fd, const void *bytes, uint64_t n, uint64_t offset,
                           const char *directory, const char *name, zinf_error *err);
zinf_status zinf_read_all(int fd, void *ret_bytes, uint64_t n, uint64_t offset,
                          const char *directory, const char *name, zinf_error *err);

/* Creates the directory unless it is there, and opens it. */
zinf_status zinf_checkpoint_directory(const char *directory, bool *ret_created, int *ret_fd,
                                      zinf_error *err);
/* Is `name` a directory that holds nothing but our files? */
bool zinf_checkpoint_is_only_ours(int dir_fd, const char *name);
/* The step of a name "step-<n>", without leading zeros; false for any other. */
bool zinf_checkpoint_step_name(const char *name, uint64_t *ret_step);
/* The step of a checkpoint of ours with that name; false for all else. */
bool zinf_checkpoint_is_step(int dir_fd, const char *name, uint64_t *ret_step);
/* The checkpoints in a directory. */
typedef struct zinf_checkpoint_list {
    uint64_t last;        /* the highest step; UINT64_MAX: none */
    uint64_t unpublished; /* of the one that still has `latest` in it; UINT64_MAX: none */
    uint64_t foreign;     /* the highest step whose name is another's; UINT64_MAX: none */
    uint32_t n;
} zinf_checkpoint_list;
zinf_status zinf_checkpoint_look(int dir_fd, const char *directory, zinf_checkpoint_list *ret_list,
                                 zinf_error *err);
/* The one to go on from: what a save was killed before it could name it, else what `latest` names,
 * else the highest step. */
zinf_status zinf_checkpoint_last(int dir_fd, const char *directory,
                                 char ret_name[ZINF_STEP_NAME], zinf_error *err);
/* Removes what `name` is if it is a directory that holds nothing but our files. */
void zinf_checkpoint_remove(int dir_fd, const char *name);
/* Is the directory a checkpoint, by the first bytes of its manifest? */
bool zinf_checkpoint_is_one(int dir_fd, const char *name);
/* Does a path in a directory of checkpoints begin with a name of ours? */
bool zinf_checkpoint_own_name(const char *rest);
/* Would writing to the path change a checkpoint, or what is beside some by a name of ours? Links
 * are followed; it need not exist. */
bool zinf_checkpoint_owns(const char *path);
/* Makes ZINF_RESERVED_NAME: the files of a checkpoint, with all their space; the next create takes
 * them. */
zinf_status zinf_checkpoint_keep_space(const char *directory, const zinf_plan *plan,
                                       const zinf_progress *progress, zinf_error *err);

#endif
