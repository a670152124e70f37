/* runtime/storage_uring.c - storage engine on io_uring: one ring per channel, buffers not
 * registered. Opens with an error where the kernel, a container or the build has no io_uring.
 */
#include "runtime/storage_engine.h"

#include <errno.h>
#include <stdlib.h>

#ifdef ZINF_HAVE_URING
#include <liburing.h>

/* Read and write exist since Linux 5.6; before that only the vectored ones do. */
static bool can_read_and_write(struct io_uring *ring)
{
    struct io_uring_probe *probe = io_uring_get_probe_ring(ring);
    bool can = probe && io_uring_opcode_supported(probe, IORING_OP_READ) &&
               io_uring_opcode_supported(probe, IORING_OP_WRITE);

    io_uring_free_probe(probe);
    return can;
}

/* One request that does nothing, there and back: some sandboxes allow the ring to be made, but not
 * to be entered. */
static int try_ring(struct io_uring *ring)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(ring);
    struct io_uring_cqe *cqe;
    int rc;

    io_uring_prep_nop(sqe);
    rc = io_uring_submit(ring);
    if (rc < 0)
        return rc;
    do
        rc = io_uring_wait_cqe(ring, &cqe);
    while (rc == -EINTR);
    if (rc)
        return rc;
    rc = cqe->res;
    io_uring_cqe_seen(ring, cqe);
    return rc;
}

static int uring_open(uint32_t depth, void **ret_queue)
{
    struct io_uring *ring = calloc(1, sizeof *ring);

    if (!ring)
        return -ENOMEM;
    int rc = io_uring_queue_init(depth, ring, 0);
    if (!rc && !can_read_and_write(ring)) {
        io_uring_queue_exit(ring);
        rc = -EOPNOTSUPP;
    } else if (!rc && (rc = try_ring(ring)) < 0) {
        io_uring_queue_exit(ring);
    }
    if (rc < 0) {
        free(ring);
        return rc;
    }
    *ret_queue = ring;
    return 0;
}

static void uring_close(void *queue)
{
    if (queue)
        io_uring_queue_exit(queue);
    free(queue);
}

/* The ring has room: it is as deep as the channel, and a block is in it once. */
static void uring_start(void *queue, zinf_block *block)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(queue);

    if (block->write)
        io_uring_prep_write(sqe, block->fd, block->buffer, block->bytes, block->offset);
    else
        io_uring_prep_read(sqe, block->fd, block->buffer, block->bytes, block->offset);
    io_uring_sqe_set_data(sqe, block);
}

static int uring_reap(void *queue, bool wait, uint32_t max, zinf_block **ret_blocks)
{
    struct io_uring *ring = queue;
    struct io_uring_cqe *cqe;
    unsigned head, n = 0;

    /* What is there already needs no system call, unless something waits to be submitted. */
    bool blocks = wait && !io_uring_cq_ready(ring);
    if (io_uring_sq_ready(ring) || blocks) {
        int rc = blocks ? io_uring_submit_and_wait(ring, 1) : io_uring_submit(ring);
        /* EBUSY and EAGAIN: the kernel wants completions taken, or has no memory just now. */
        if (rc < 0 && !io_uring_cq_ready(ring))
            return rc == -EAGAIN || rc == -EBUSY ? -EINTR : rc;
    }
    io_uring_for_each_cqe(ring, head, cqe) {
        if (n == max)
            break;
        zinf_block *block = io_uring_cqe_get_data(cqe);
        block->result = cqe->res;
        ret_blocks[n++] = block;
    }
    io_uring_cq_advance(ring, n);
    return (int)n;
}

#else

static int uring_open(uint32_t depth, void **ret_queue)
{
    (void)depth, (void)ret_queue;
    return -ENOSYS;
}

static void uring_close(void *queue)
{
    (void)queue;
}

static void uring_start(void *queue, zinf_block *block)
{
    (void)queue, (void)block;
}

static int uring_reap(void *queue, bool wait, uint32_t max, zinf_block **ret_blocks)
{
    (void)queue, (void)wait, (void)max, (void)ret_blocks;
    return -ENOSYS;
}

#endif

const zinf_storage_ops zinf_storage_uring = {
    "io_uring", uring_open, uring_close, uring_start, uring_reap,
};
