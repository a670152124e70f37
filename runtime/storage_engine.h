/* runtime/storage_engine.h - the seam below storage.c: what an engine is. Internal to storage.
 *
 * An engine moves single blocks and reports raw results; it retries nothing and knows nothing of
 * transfers. Splitting, continuing, retrying and reporting are storage.c's. Whoever wants to
 * inject faults wraps an engine: a table whose `start` cuts blocks short, or whose `reap`
 * alters results, handed to zinf_storage_open_with.
 */
#ifndef ZINF_RUNTIME_STORAGE_ENGINE_H
#define ZINF_RUNTIME_STORAGE_ENGINE_H

#include "runtime/storage.h"

/* One request; `result` as the system call's: bytes moved, or -errno. */
typedef struct zinf_block {
    zinf_io *io;
    int fd;
    bool write;
    uint64_t offset; /* of what is left; multiples of 4096 */
    uint32_t bytes;  /* of what is left */
    void *buffer;
    int32_t result;
    /* storage.c's */
    uint32_t size;             /* bytes at first */
    uint32_t n_stalls, n_again; /* attempts in a row that moved no page; that were put off */
    uint64_t again_since_ms;    /* when the first of those was */
    struct zinf_block *next_free;
} zinf_block;

typedef struct zinf_storage_ops {
    const char *name;
    /* A queue for at most depth blocks; 0 or -errno. All memory is allocated here. */
    int (*open)(uint32_t depth, void **ret_queue);
    void (*close)(void *queue); /* nothing is in flight, or the queue is broken */
    /* Takes one block; may hold it until the next reap. */
    void (*start)(void *queue, zinf_block *block);
    /* Sets everything started going, then returns up to max finished blocks, at least one if
     * wait (and one is in flight). Number of blocks, or -errno (-EINTR: call again). */
    int (*reap)(void *queue, bool wait, uint32_t max, zinf_block **ret_blocks);
} zinf_storage_ops;

extern const zinf_storage_ops zinf_storage_threads;
extern const zinf_storage_ops zinf_storage_uring; /* opens with -ENOSYS if built without */

/* zinf_storage_open with the engine given instead of options->engine. */
zinf_status zinf_storage_open_with(const char *directory, uint32_t rank, uint64_t bytes,
                                   const zinf_storage_options *options,
                                   const zinf_storage_ops *ops, zinf_storage **ret_storage,
                                   char ret_warning[256], zinf_error *err);

#endif
