/* runtime/files.h - what both commands do about the files they are given, before they touch one.
 */
#ifndef ZINF_RUNTIME_FILES_H
#define ZINF_RUNTIME_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "runtime/error.h"

typedef struct zinf_named_file {
    const char *option; /* as the user knows it: "--log", "MODEL" */
    const char *path;   /* NULL: not given */
    bool written;
} zinf_named_file;

/* BAD_INPUT if a file that will be written is also another of them, or the one that standard output
 * or error goes to, by whatever name: an input would be lost, or one output with the other. Devices
 * and pipes may be named twice. "-" is refused: it would be a file of that name. */
zinf_status zinf_files_distinct(const zinf_named_file *files, size_t n, zinf_error *err);

/* BAD_INPUT if a file that will be written is in a checkpoint, or beside some by a name that is
 * theirs. */
zinf_status zinf_files_spare_checkpoints(const zinf_named_file *files, size_t n, zinf_error *err);

/* Whose fault is it that a file could not be created? BAD_INPUT if another name would do: of a
 * directory that is not there, or may not be written in. Else MACHINE. */
zinf_status zinf_files_blame(int error);

/* Creates or opens an output. flags: O_TRUNC or O_APPEND; what: "log", for the error. A pipe that
 * nobody reads is an error (MACHINE), where an ordinary open would wait for a reader. */
zinf_status zinf_files_output(const char *path, int flags, const char *what, FILE **ret_file,
                              zinf_error *err);

/* A standard descriptor that is closed would be given to the next file opened, and the product
 * written into it. Opens /dev/null for reading in its place: writing there still fails. */
void zinf_files_guard_standard(void);

#endif
