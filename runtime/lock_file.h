/* runtime/lock_file.h - a file whose lock one process holds and whose text is that process: who
 * comes second is told which one it is. A process that dies gives it up.
 */
#ifndef ZINF_RUNTIME_LOCK_FILE_H
#define ZINF_RUNTIME_LOCK_FILE_H

#include "runtime/error.h"

/* Takes the lock at `path`, in dir_fd (AT_FDCWD: as it is); `area` ("storage") and `what` (the path
 * that is kept for us) are for the error: MACHINE if another process has it. */
zinf_status zinf_lock_file_take(int dir_fd, const char *path, const char *area, const char *what,
                                int *ret_fd, zinf_error *err);
/* Removes the file and gives the lock up; fd < 0: nothing. */
void zinf_lock_file_release(int dir_fd, const char *path, int fd);

#endif
