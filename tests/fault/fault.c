/* tests/fault/fault.c - see fault.h. A faulty block is done at once in `start`, by pread and
 * pwrite, and handed out by the next `reap`.
 */
#include "tests/fault/fault.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, HISTORY = 64 << 20 };

static struct {
    fault_spec spec;
    const zinf_storage_ops *engine;
    atomic_ullong n_blocks[2], n_hits;
    char *history; /* of every byte of the file, what was there before the last write */
} state;

typedef struct queue {
    void *inner;
    zinf_block **done; /* [depth] */
    uint32_t n_done;
} queue;

void fault_set(const fault_spec *spec, const zinf_storage_ops *engine)
{
    void *probe = NULL;

    state.spec = *spec;
    state.engine = engine ? engine : &zinf_storage_uring;
    if (!engine && zinf_storage_uring.open(1, &probe))
        state.engine = &zinf_storage_threads;
    else if (!engine)
        zinf_storage_uring.close(probe);
    state.n_blocks[0] = state.n_blocks[1] = state.n_hits = 0;
    if (spec->kind == FAULT_STALE && !state.history)
        state.history = calloc(1, HISTORY);
}

uint64_t fault_n_blocks(bool write)
{
    return state.n_blocks[write];
}

uint64_t fault_n_hits(void)
{
    return state.n_hits;
}

static int fault_open(uint32_t depth, void **ret_queue)
{
    queue *q = calloc(1, sizeof *q);
    int rc = -ENOMEM;

    if (q)
        q->done = calloc(depth, sizeof *q->done);
    if (q && q->done)
        rc = state.engine->open(depth, &q->inner);
    if (rc) {
        if (q)
            free(q->done);
        free(q);
        return rc;
    }
    *ret_queue = q;
    return 0;
}

static void fault_close(void *queue_)
{
    queue *q = queue_;

    state.engine->close(q->inner);
    free(q->done);
    free(q);
}

static bool is_hit(const zinf_block *block, uint64_t n)
{
    const fault_spec *s = &state.spec;

    if (s->kind == FAULT_NONE || block->write != s->write || n < s->first ||
        (s->count && n - s->first >= s->count))
        return false;
    if (s->to && (block->offset >= s->to || block->offset + block->bytes <= s->from))
        return false;
    if (s->seed) {
        uint64_t x = (n + 1) * 0x9e3779b97f4a7c15 ^ s->seed * 0xbf58476d1ce4e5b9;
        x = (x ^ x >> 30) * 0x94d049bb133111eb;
        return (x >> 33) % (s->period ? s->period : 2) == 0;
    }
    return s->period < 2 || (n - s->first) % s->period == 0;
}

static char *aligned(uint64_t bytes)
{
    void *p = NULL;

    if (posix_memalign(&p, PAGE, bytes))
        abort();
    return p;
}

/* Moves what the fault leaves of a block; the result as the system would give it. */
static int32_t move(const zinf_block *b, uint64_t offset, uint32_t bytes, bool flip)
{
    const fault_spec *s = &state.spec;
    char *copy = aligned(b->bytes);
    ssize_t n;

    if (b->write) {
        /* a device writes sectors, O_DIRECT pages: keep the rest of the last page */
        n = pread(b->fd, copy, b->bytes, (off_t)offset);
        memcpy(copy, b->buffer, bytes);
        if (flip)
            copy[s->bytes % b->bytes] ^= 16;
        n = pwrite(b->fd, copy, b->bytes, (off_t)offset);
    } else {
        n = pread(b->fd, copy, b->bytes, (off_t)offset);
        if (flip)
            copy[s->bytes % b->bytes] ^= 16;
        memcpy(b->buffer, copy, bytes);
    }
    free(copy);
    return n < 0 ? -errno : (int32_t)b->bytes;
}

static int32_t fail(const zinf_block *b)
{
    const fault_spec *s = &state.spec;
    const uint32_t part = s->bytes < b->bytes ? s->bytes : b->bytes - 512;

    switch (s->kind) {
    case FAULT_ERRNO:
        if (!b->write) /* what was not moved must not be there */
            memset(b->buffer, 0xee, b->bytes);
        return -s->error;
    case FAULT_ZERO:
        return 0;
    case FAULT_SHORT:
        if (!b->write)
            memset(b->buffer, 0xee, b->bytes);
        move(b, b->offset, part, false);
        return (int32_t)part;
    case FAULT_TORN:
        return move(b, b->offset, part, false);
    case FAULT_LOST:
        return (int32_t)b->bytes;
    case FAULT_STALE:
        memcpy(b->buffer, state.history + b->offset, b->bytes);
        return (int32_t)b->bytes;
    case FAULT_MISPLACED: /* the first block's neighbour is before it, so as to stay inside */
        return move(b, b->offset >= b->bytes ? b->offset - b->bytes : b->offset + b->bytes,
                    b->bytes, false);
    default:
        return move(b, b->offset, b->bytes, true);
    }
}

static void fault_start(void *queue_, zinf_block *b)
{
    queue *q = queue_;
    const bool hit = is_hit(b, atomic_fetch_add(&state.n_blocks[b->write], 1));

    if (b->write && state.spec.kind == FAULT_STALE && b->offset + b->bytes <= HISTORY) {
        char *before = aligned(b->bytes);
        if (pread(b->fd, before, b->bytes, (off_t)b->offset) == (ssize_t)b->bytes)
            memcpy(state.history + b->offset, before, b->bytes);
        free(before);
    }
    if (hit)
        atomic_fetch_add(&state.n_hits, 1);
    if (hit && state.spec.kind == FAULT_DELAY) {
        const struct timespec pause = {.tv_nsec = (long)state.spec.bytes * 1000};
        nanosleep(&pause, NULL);
    }
    if (!hit || state.spec.kind == FAULT_DELAY) {
        state.engine->start(q->inner, b);
        return;
    }
    b->result = fail(b);
    q->done[q->n_done++] = b;
}

static int fault_reap(void *queue_, bool wait, uint32_t max, zinf_block **ret_blocks)
{
    queue *q = queue_;
    uint32_t n = 0;

    while (n < max && q->n_done)
        ret_blocks[n++] = q->done[--q->n_done];
    const int more = state.engine->reap(q->inner, wait && !n, max - n, ret_blocks + n);
    if (more < 0)
        return n ? (int)n : more;
    return (int)n + more;
}

const zinf_storage_ops fault_ops = {"faulty", fault_open, fault_close, fault_start, fault_reap};
