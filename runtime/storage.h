/* runtime/storage.h - the nvme tier: one preallocated file, read and written directly.
 *
 * Two engines behind one interface: io_uring, and a pool of pread/pwrite threads for machines
 * that block io_uring. Owns the file, its lock, and every retry rule: short transfers are
 * continued, EINTR and EAGAIN retried, everything else is an error that names file, offset,
 * length, errno and what was moved. Nothing is allocated after zinf_storage_channel_open.
 */
#ifndef ZINF_RUNTIME_STORAGE_H
#define ZINF_RUNTIME_STORAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "runtime/error.h"

typedef enum zinf_engine { ZINF_ENGINE_AUTO, ZINF_ENGINE_URING, ZINF_ENGINE_THREADS } zinf_engine;

typedef struct zinf_storage_options {
    zinf_engine engine;   /* AUTO: io_uring if the kernel allows it, else threads */
    uint64_t block_bytes; /* size of one request; a multiple of 4096 */
    uint32_t depth;       /* requests in flight per channel, 1 .. 1024 */
} zinf_storage_options;

typedef struct zinf_storage zinf_storage;
typedef struct zinf_channel zinf_channel;

/* Opens directory/zinf-rank<rank>.nvme, of `bytes`: takes the lock (a second run on the same
 * directory is refused), checks free space by statvfs, reserves it by fallocate, opens it
 * O_DIRECT (a filesystem without direct I/O is used through the page cache with one warning in
 * ret_warning, "" if none; 256 bytes). The file is removed by close. */
zinf_status zinf_storage_open(const char *directory, uint32_t rank, uint64_t bytes,
                              const zinf_storage_options *options, zinf_storage **ret_storage,
                              char ret_warning[256], zinf_error *err);
void zinf_storage_close(zinf_storage *storage); /* accepts NULL; channels must be closed */
const char *zinf_storage_engine_name(const zinf_storage *storage); /* "io_uring" | "threads" */
const char *zinf_storage_path(const zinf_storage *storage);

/* A channel is used by one thread; it has its own ring, or its own threads. */
zinf_status zinf_channel_open(zinf_storage *storage, zinf_channel **ret_channel,
                              zinf_error *err);
void zinf_channel_close(zinf_channel *channel); /* accepts NULL; waits for what was submitted */

/* One transfer; the caller keeps it and its buffer alive until zinf_channel_wait returned. */
typedef struct zinf_io {
    bool write;
    uint64_t offset, bytes; /* multiples of 4096 */
    void *buffer;           /* aligned to 4096 */
    const char *what;       /* named in errors, e.g. "h.3.mlp.c_fc.weight optimizer" */
    /* the channel's */
    uint64_t submitted_bytes, done_bytes;
    int error;
    struct zinf_io *next;
} zinf_io;

/* Puts a transfer behind those that were submitted before it. It is split into blocks, and as many
 * are started as the queue has room for: the others whenever the channel is called again, so a
 * transfer goes on only while its thread waits or advances. */
zinf_status zinf_channel_submit(zinf_channel *channel, zinf_io *io, zinf_error *err);
/* Until this transfer is complete, in whatever order the others finish. */
zinf_status zinf_channel_wait(zinf_channel *channel, zinf_io *io, zinf_error *err);
/* True if zinf_channel_wait would return at once; drives completions without blocking. */
bool zinf_channel_done(zinf_channel *channel, zinf_io *io);
/* Takes what has finished and starts what there is room for; with wait, if anything is in flight,
 * not before a block of any transfer has finished. */
void zinf_channel_advance(zinf_channel *channel, bool wait);

#endif
