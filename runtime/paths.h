/* runtime/paths.h - may the files and directories of a run be the same, or lie in each other? Asked
 * when the options are read: nothing is touched.
 *
 * All right: inputs anywhere but in --export; --log, --trace and --export in a directory of
 * checkpoints or in that of --nvme, beside what is ours there; --save where --resume is, and with
 * --nvme. Refused: whatever would be overwritten, removed or in the way, and anything written into
 * --init or over a file of --init, --resume or --save, by any spelling or link, or of any other
 * checkpoint.
 */
#ifndef ZINF_RUNTIME_PATHS_H
#define ZINF_RUNTIME_PATHS_H

#include "runtime/error.h"
#include "runtime/options.h"

zinf_status zinf_paths_check(const zinf_run_options *options, zinf_error *err);

#endif
