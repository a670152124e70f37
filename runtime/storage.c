/* runtime/storage.c - the storage tier's file and its transfers; see storage.h. Owns the lock,
 * the reservation, the split into blocks and every retry; the engines (storage_engine.h) only
 * move blocks.
 */
#include "runtime/storage_engine.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include "runtime/lock_file.h"

enum {
    ALIGN = 4096,
    MAX_DEPTH = 1024,
    REAP = 32,        /* completions taken at once */
    MAX_STALLS = 16,  /* attempts in a row that end short of one more page */
    AGAIN_MS = 5000,  /* how long EAGAIN in a row is borne, 1 ms apart */
    PAST_END = -1,    /* io->error: the file ended before the read did */
};
static const uint64_t max_block_bytes = 1u << 30;

struct zinf_storage {
    char path[PATH_MAX], lock_path[PATH_MAX];
    int fd, lock_fd;
    bool created; /* the file is ours to remove */
    uint64_t bytes;
    zinf_storage_options options;
    const zinf_storage_ops *ops;
};

/* The first failure of a channel, for its message. */
typedef struct failure {
    const zinf_io *io;
    uint64_t offset, bytes;
} failure;

struct zinf_channel {
    zinf_storage *storage;
    const zinf_storage_ops *ops;
    void *queue;
    zinf_block *blocks, *free; /* [depth] */
    zinf_io *first, *last;     /* not all of whose blocks were started, in order */
    uint32_t n_in_flight;
    int broken; /* errno of a queue that works no more */
    failure failed;
};

/* ---- opening ---- */

static zinf_status check_options(uint64_t bytes, const zinf_storage_options *options,
                                 zinf_error *err)
{
    if (!options->block_bytes || options->block_bytes % ALIGN ||
        options->block_bytes > max_block_bytes)
        return zinf_fail(err, ZINF_BAD_INPUT,
                         "storage: block size %" PRIu64 " bytes is not a multiple of 4096 from "
                         "4096 to %" PRIu64, options->block_bytes, max_block_bytes);
    if (options->depth < 1 || options->depth > MAX_DEPTH)
        return zinf_fail(err, ZINF_BAD_INPUT, "storage: queue depth %" PRIu32 " is not in 1 .. %d",
                         options->depth, MAX_DEPTH);
    if (!bytes || bytes % ALIGN || bytes > INT64_MAX)
        return zinf_fail(err, ZINF_BAD_INPUT,
                         "storage: file size %" PRIu64 " bytes is not a positive multiple of 4096",
                         bytes);
    return ZINF_OK;
}

static zinf_status check_directory(const char *directory, zinf_error *err)
{
    struct stat st;

    if (stat(directory, &st)) {
        if (errno == ENOENT)
            return zinf_fail(err, ZINF_BAD_INPUT, "storage: directory \"%s\" does not exist; "
                             "create it, or name another one", directory);
        return zinf_fail(err, ZINF_BAD_INPUT, "storage: directory \"%s\": %s", directory,
                         strerror(errno));
    }
    if (!S_ISDIR(st.st_mode))
        return zinf_fail(err, ZINF_BAD_INPUT, "storage: \"%s\" is not a directory", directory);
    if (access(directory, W_OK | X_OK))
        return zinf_fail(err, ZINF_BAD_INPUT, "storage: directory \"%s\" is not writable: %s",
                         directory, strerror(errno));
    return ZINF_OK;
}

/* A run takes the lock before it creates the file and removes the file before the lock, so that one
 * that was killed has left both: a file alone is not ours. */
static zinf_status check_foreign(const zinf_storage *s, zinf_error *err)
{
    struct stat st;

    if (lstat(s->path, &st) || !lstat(s->lock_path, &st) || lstat(s->path, &st))
        return ZINF_OK; /* the last: unless a run was just ending */
    return zinf_fail(err, ZINF_BAD_INPUT, "storage: \"%s\" is there, and no run has left it (there "
                     "would be its lock \"%s\"); move it away if you want to keep it, remove it, "
                     "or use another directory", s->path, s->lock_path);
}

static zinf_status create_file(zinf_storage *s, const char *directory, char ret_warning[256],
                               zinf_error *err)
{
    const int flags = O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW;
    struct statfs fs;

    /* We hold the lock: what is there is left from a run that was killed. */
    if (unlink(s->path) && errno != ENOENT)
        return zinf_fail(err, ZINF_MACHINE, "storage: cannot replace \"%s\": %s", s->path,
                         strerror(errno));
    s->fd = open(s->path, flags | O_DIRECT, 0600);
    if (s->fd < 0 && errno == EINVAL) {
        unlink(s->path); /* some filesystems create it before they refuse */
        s->fd = open(s->path, flags, 0600);
        if (s->fd >= 0)
            snprintf(ret_warning, 256, "storage: the filesystem of \"%.120s\" has no direct I/O; "
                     "going through the page cache", directory);
    }
    if (s->fd < 0)
        return zinf_fail(err, ZINF_MACHINE, "storage: creating \"%s\": %s", s->path,
                         strerror(errno));
    s->created = true;
    if (!*ret_warning && !fstatfs(s->fd, &fs) &&
        (fs.f_type == TMPFS_MAGIC || fs.f_type == RAMFS_MAGIC))
        snprintf(ret_warning, 256, "storage: \"%.120s\" is a filesystem in memory: what the plan "
                 "counts as storage takes RAM", directory);
    return ZINF_OK;
}

static zinf_status refuse_full(const zinf_storage *s, uint64_t free_bytes, zinf_error *err)
{
    return zinf_fail(err, ZINF_MACHINE, "storage: \"%s\" needs %" PRIu64 " bytes, but its "
                     "filesystem has %" PRIu64 " bytes free; free some, or use another directory",
                     s->path, s->bytes, free_bytes);
}

static zinf_status reserve(const zinf_storage *s, char ret_warning[256], zinf_error *err)
{
    struct statvfs fs;
    struct rlimit limit;
    int rc;

    if (fstatvfs(s->fd, &fs))
        return zinf_fail(err, ZINF_MACHINE, "storage: free space of \"%s\": %s", s->path,
                         strerror(errno));
    uint64_t free_bytes;
    if (__builtin_mul_overflow((uint64_t)fs.f_bavail, (uint64_t)fs.f_frsize, &free_bytes))
        free_bytes = UINT64_MAX;
    if (free_bytes < s->bytes)
        return refuse_full(s, free_bytes, err);
    /* Asked first because crossing it is a signal, not an error. */
    if (!getrlimit(RLIMIT_FSIZE, &limit) && limit.rlim_cur < s->bytes)
        return zinf_fail(err, ZINF_MACHINE, "storage: \"%s\" needs %" PRIu64 " bytes, but files "
                         "of this process are limited to %" PRIu64 " bytes; raise it (ulimit -f)",
                         s->path, s->bytes, (uint64_t)limit.rlim_cur);
    do
        rc = fallocate(s->fd, 0, 0, (off_t)s->bytes);
    while (rc && errno == EINTR);
    if (rc && errno == EOPNOTSUPP) {
        if (ftruncate(s->fd, (off_t)s->bytes))
            return zinf_fail(err, ZINF_MACHINE, "storage: sizing \"%s\" to %" PRIu64 " bytes: %s",
                             s->path, s->bytes, strerror(errno));
        if (!*ret_warning)
            snprintf(ret_warning, 256, "storage: the filesystem of \"%.100s\" cannot reserve "
                     "space: the run ends if others fill it", s->path);
        return ZINF_OK;
    }
    if (rc && (errno == ENOSPC || errno == EDQUOT))
        return refuse_full(s, free_bytes, err);
    if (rc)
        return zinf_fail(err, ZINF_MACHINE, "storage: reserving %" PRIu64 " bytes for \"%s\": %s",
                         s->bytes, s->path, strerror(errno));
    return ZINF_OK;
}

/* Tries the engine once, so that a run learns at load what it will use. */
static zinf_status choose_engine(zinf_storage *s, zinf_error *err)
{
    void *queue = NULL;

    if (s->options.engine == ZINF_ENGINE_THREADS) {
        s->ops = &zinf_storage_threads;
        return ZINF_OK;
    }
    int rc = zinf_storage_uring.open(s->options.depth, &queue);
    if (!rc) {
        zinf_storage_uring.close(queue);
        s->ops = &zinf_storage_uring;
        return ZINF_OK;
    }
    s->ops = &zinf_storage_threads;
    if (s->options.engine == ZINF_ENGINE_AUTO)
        return ZINF_OK;
    return zinf_fail(err, ZINF_MACHINE, "storage: io_uring was asked for, but this machine "
                     "refuses it: %s; use the threads engine, or auto", strerror(-rc));
}

zinf_status zinf_storage_open_with(const char *directory, uint32_t rank, uint64_t bytes,
                                   const zinf_storage_options *options,
                                   const zinf_storage_ops *ops, zinf_storage **ret_storage,
                                   char ret_warning[256], zinf_error *err)
{
    *ret_warning = 0;
    if (check_options(bytes, options, err) || check_directory(directory, err))
        return err->status;
    zinf_storage *s = calloc(1, sizeof *s);
    if (!s)
        return zinf_fail(err, ZINF_MACHINE, "storage: out of memory");
    s->fd = s->lock_fd = -1;
    s->bytes = bytes;
    s->options = *options;
    s->ops = ops;
    int n = snprintf(s->path, sizeof s->path, "%s/zinf-rank%" PRIu32 ".nvme", directory, rank);
    if (n < 0 || (size_t)n >= sizeof s->path) {
        zinf_fail(err, ZINF_BAD_INPUT, "storage: directory name of %zu characters is too long",
                  strlen(directory));
        goto out;
    }
    memcpy(s->lock_path, s->path, (size_t)n - 4);
    memcpy(s->lock_path + n - 4, "lock", 5);
    if ((!s->ops && choose_engine(s, err)) || check_foreign(s, err) ||
        zinf_lock_file_take(AT_FDCWD, s->lock_path, "storage", s->path, &s->lock_fd, err) ||
        create_file(s, directory, ret_warning, err) || reserve(s, ret_warning, err))
        goto out;
    *ret_storage = s;
    return ZINF_OK;
out:
    zinf_storage_close(s);
    return err->status;
}

zinf_status zinf_storage_open(const char *directory, uint32_t rank, uint64_t bytes,
                              const zinf_storage_options *options, zinf_storage **ret_storage,
                              char ret_warning[256], zinf_error *err)
{
    return zinf_storage_open_with(directory, rank, bytes, options, NULL, ret_storage, ret_warning,
                                  err);
}

void zinf_storage_close(zinf_storage *s)
{
    if (!s)
        return;
    if (s->created)
        unlink(s->path);
    if (s->fd >= 0)
        close(s->fd);
    zinf_lock_file_release(AT_FDCWD, s->lock_path, s->lock_fd);
    free(s);
}

const char *zinf_storage_engine_name(const zinf_storage *s)
{
    return s->ops->name;
}

const char *zinf_storage_path(const zinf_storage *s)
{
    return s->path;
}

/* ---- transfers ---- */

zinf_status zinf_channel_open(zinf_storage *s, zinf_channel **ret_channel, zinf_error *err)
{
    const uint32_t depth = s->options.depth;
    zinf_channel *c = calloc(1, sizeof *c);
    int rc = -ENOMEM;

    if (c)
        c->blocks = calloc(depth, sizeof *c->blocks);
    if (c && c->blocks) {
        rc = s->ops->open(depth, &c->queue);
        /* A limit on locked memory may allow one ring and refuse the next. */
        if (rc && s->ops == &zinf_storage_uring && s->options.engine == ZINF_ENGINE_AUTO) {
            s->ops = &zinf_storage_threads;
            rc = s->ops->open(depth, &c->queue);
        }
    }
    if (rc) {
        if (c)
            free(c->blocks);
        free(c);
        return zinf_fail(err, ZINF_MACHINE, "storage: opening a %s queue of depth %" PRIu32
                         " for \"%s\": %s", s->ops->name, depth, s->path, strerror(-rc));
    }
    c->storage = s;
    c->ops = s->ops;
    for (uint32_t i = 0; i < depth; i++) {
        c->blocks[i].next_free = c->free;
        c->free = &c->blocks[i];
    }
    *ret_channel = c;
    return ZINF_OK;
}

/* A transfer is over when every block handed out has ended, and either all were or one failed.
 * A failed block is taken back out of submitted_bytes, so done_bytes counts what was moved. */
static bool is_over(const zinf_io *io)
{
    return io->done_bytes == io->submitted_bytes && (io->error || io->done_bytes == io->bytes);
}

static void release(zinf_channel *c, zinf_block *block)
{
    block->next_free = c->free;
    c->free = block;
    c->n_in_flight--;
}

static void fail_block(zinf_channel *c, zinf_block *block, int error)
{
    zinf_io *io = block->io;

    if (!io->error)
        io->error = error;
    if (io == c->first) /* the rest of it is not started; those behind it were not begun */
        c->first = io->next;
    if (!c->failed.io)
        c->failed = (failure){io, block->offset, block->bytes};
    const uint32_t moved = block->size - block->bytes;
    io->done_bytes += moved;
    io->submitted_bytes -= block->bytes;
    release(c, block);
}

static uint64_t now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* One result of the engine: done, started again, or failed. */
static void take(zinf_channel *c, zinf_block *block)
{
    const int32_t result = block->result;

    if (result == -EINTR || result == -EAGAIN) {
        /* By the clock: others that are put off at the same time sleep here, too. */
        if (++block->n_again == 1)
            block->again_since_ms = now_ms();
        if (block->n_again > MAX_STALLS) {
            if (block->io->error || now_ms() - block->again_since_ms > AGAIN_MS) {
                fail_block(c, block, -result);
                return;
            }
            nanosleep(&(struct timespec){0, 1000000}, NULL);
        }
        c->ops->start(c->queue, block);
        return;
    }
    if (result < 0) {
        fail_block(c, block, -result);
        return;
    }
    if ((uint32_t)result >= block->bytes) {
        block->io->done_bytes += block->size;
        release(c, block);
        return;
    }
    if (result == 0 && !block->write) {
        fail_block(c, block, PAST_END);
        return;
    }
    /* Short. Direct I/O goes on at a page; what was moved of a torn page is moved again. */
    const uint32_t moved = (uint32_t)result / ALIGN * ALIGN;
    block->n_again = 0;
    block->n_stalls = moved ? 0 : block->n_stalls + 1;
    if (block->n_stalls > MAX_STALLS) {
        fail_block(c, block, block->write ? EIO : PAST_END);
        return;
    }
    block->offset += moved;
    block->bytes -= moved;
    block->buffer = (char *)block->buffer + moved;
    c->ops->start(c->queue, block);
}

/* Starts blocks of what waits, in order, while there is room. */
static void feed(zinf_channel *c)
{
    while (c->first && c->free) {
        zinf_io *io = c->first;
        const uint64_t at = io->submitted_bytes, left = io->bytes - at;
        const uint64_t block_bytes = c->storage->options.block_bytes;
        const uint64_t bytes = left < block_bytes ? left : block_bytes;
        zinf_block *block = c->free;
        c->free = block->next_free;
        c->n_in_flight++;
        *block = (zinf_block){
            .io = io, .fd = c->storage->fd, .write = io->write, .offset = io->offset + at,
            .bytes = (uint32_t)bytes, .size = (uint32_t)bytes, .buffer = (char *)io->buffer + at,
        };
        io->submitted_bytes += bytes;
        if (bytes == left) /* it may be gone as soon as it is over */
            c->first = io->next;
        c->ops->start(c->queue, block);
    }
}

/* Takes what has finished, and starts in its place what waits: once over, lest a device that is
 * done at once keep the caller until all is. With wait at least one block (which may have to go
 * on). */
void zinf_channel_advance(zinf_channel *c, bool wait)
{
    zinf_block *ended[REAP];

    for (int turn = 0; turn < 2 && !c->broken; turn++) {
        feed(c);
        const int n = c->ops->reap(c->queue, wait && c->n_in_flight, REAP, ended);
        if (n < 0 && n != -EINTR)
            c->broken = -n;
        for (int i = 0; i < n; i++)
            take(c, ended[i]);
        if (n <= 0)
            return;
        wait = false;
    }
}

static zinf_status refuse_broken(const zinf_channel *c, const zinf_io *io, zinf_error *err)
{
    return zinf_fail(err, ZINF_MACHINE, "storage: the %s queue of \"%s\" failed while \"%s\" was "
                     "transferred (offset %" PRIu64 ", length %" PRIu64 " bytes): %s",
                     c->ops->name, c->storage->path, io->what, io->offset, io->bytes,
                     strerror(c->broken));
}

/* Checked per transfer, because a write behind a truncation would fill the file with holes. */
static zinf_status check_size(const zinf_storage *s, const zinf_io *io, zinf_error *err)
{
    struct stat st;

    if (fstat(s->fd, &st))
        return zinf_fail(err, ZINF_MACHINE, "storage: size of \"%s\": %s", s->path,
                         strerror(errno));
    if ((uint64_t)st.st_size >= s->bytes)
        return ZINF_OK;
    return zinf_fail(err, ZINF_MACHINE, "storage: %s \"%s\" at offset %" PRIu64 ", length %" PRIu64
                     " bytes: \"%s\" has %" PRIu64 " bytes, expected %" PRIu64
                     ": something truncated it during the run",
                     io->write ? "writing" : "reading", io->what, io->offset, io->bytes, s->path,
                     (uint64_t)st.st_size, s->bytes);
}

zinf_status zinf_channel_submit(zinf_channel *c, zinf_io *io, zinf_error *err)
{
    const zinf_storage *s = c->storage;

    io->submitted_bytes = io->done_bytes = 0;
    io->error = ECANCELED; /* until it is known to be possible */
    if (c->failed.io == io)
        c->failed.io = NULL;
    if (!io->what)
        io->what = "?";
    if (io->offset % ALIGN || io->bytes % ALIGN || (uintptr_t)io->buffer % ALIGN ||
        io->offset > s->bytes || io->bytes > s->bytes - io->offset)
        return zinf_fail(err, ZINF_WRONG_RESULT, "storage: transfer of \"%s\" at offset %" PRIu64
                         ", length %" PRIu64 " bytes, buffer %p is not in pages of 4096 bytes "
                         "inside the %" PRIu64 " bytes of \"%s\"", io->what, io->offset,
                         io->bytes, io->buffer, s->bytes, s->path);
    if (check_size(s, io, err))
        return err->status;
    if (c->broken)
        return refuse_broken(c, io, err);
    io->error = 0;
    if (!io->bytes)
        return ZINF_OK;
    io->next = NULL;
    if (c->first)
        c->last->next = io;
    else
        c->first = io;
    c->last = io;
    zinf_channel_advance(c, false);
    return ZINF_OK;
}

static zinf_status report(const zinf_channel *c, const zinf_io *io, zinf_error *err)
{
    const zinf_storage *s = c->storage;
    const bool known = c->failed.io == io;
    const uint64_t offset = known ? c->failed.offset : io->offset;
    const uint64_t bytes = known ? c->failed.bytes : io->bytes;
    const char *verb = io->write ? "writing" : "reading";
    struct stat st;

    if (io->error == PAST_END && !fstat(s->fd, &st) && (uint64_t)st.st_size < s->bytes)
        return zinf_fail(err, ZINF_MACHINE, "storage: %s \"%s\" at offset %" PRIu64 ", length %"
                         PRIu64 " bytes: \"%s\" ended early: it has %" PRIu64 " bytes, expected %"
                         PRIu64 ": something truncated it during the run (%" PRIu64 " of %" PRIu64
                         " bytes moved)", verb, io->what, offset, bytes, s->path,
                         (uint64_t)st.st_size, s->bytes, io->done_bytes, io->bytes);
    return zinf_fail(err, ZINF_MACHINE, "storage: %s \"%s\" at offset %" PRIu64 ", length %" PRIu64
                     " bytes of \"%s\": %s (%" PRIu64 " of %" PRIu64 " bytes moved)", verb,
                     io->what, offset, bytes, s->path,
                     io->error == PAST_END ? "ended early" : strerror(io->error), io->done_bytes,
                     io->bytes);
}

zinf_status zinf_channel_wait(zinf_channel *c, zinf_io *io, zinf_error *err)
{
    while (!is_over(io) && !c->broken && (c->first || c->n_in_flight))
        zinf_channel_advance(c, true);
    if (is_over(io) && !io->error)
        return ZINF_OK;
    return c->broken && !io->error ? refuse_broken(c, io, err) : report(c, io, err);
}

bool zinf_channel_done(zinf_channel *c, zinf_io *io)
{
    if (!is_over(io))
        zinf_channel_advance(c, false);
    return is_over(io) || c->broken || !(c->first || c->n_in_flight);
}

void zinf_channel_close(zinf_channel *c)
{
    if (!c)
        return;
    while ((c->first || c->n_in_flight) && !c->broken)
        zinf_channel_advance(c, true);
    c->ops->close(c->queue);
    free(c->blocks);
    free(c);
}
