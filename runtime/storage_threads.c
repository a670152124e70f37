/* runtime/storage_threads.c - storage engine of pread/pwrite worker threads, for machines that
 * block io_uring. One lock, two rings of block pointers: waiting and finished.
 */
#include "runtime/storage_engine.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "runtime/overhead.h"

typedef struct ring {
    zinf_block **blocks; /* [depth] */
    uint32_t first, n;
} ring;

typedef struct queue {
    pthread_mutex_t lock;
    pthread_cond_t has_work, has_result;
    ring waiting, finished;
    uint32_t depth, n_workers;
    bool ends;
    pthread_t workers[ZINF_STORAGE_THREADS];
} queue;

static void push(const queue *q, ring *r, zinf_block *block)
{
    r->blocks[(r->first + r->n++) % q->depth] = block;
}

static zinf_block *pop(const queue *q, ring *r)
{
    zinf_block *block = r->blocks[r->first];
    r->first = (r->first + 1) % q->depth;
    r->n--;
    return block;
}

static void *work(void *argument)
{
    queue *q = argument;

    pthread_mutex_lock(&q->lock);
    for (;;) {
        while (!q->waiting.n && !q->ends)
            pthread_cond_wait(&q->has_work, &q->lock);
        if (!q->waiting.n)
            break;
        zinf_block *block = pop(q, &q->waiting);
        pthread_mutex_unlock(&q->lock);
        ssize_t n = block->write
            ? pwrite(block->fd, block->buffer, block->bytes, (off_t)block->offset)
            : pread(block->fd, block->buffer, block->bytes, (off_t)block->offset);
        block->result = n < 0 ? -errno : (int32_t)n;
        pthread_mutex_lock(&q->lock);
        push(q, &q->finished, block);
        pthread_cond_signal(&q->has_result);
    }
    pthread_mutex_unlock(&q->lock);
    return NULL;
}

static void threads_close(void *queue_)
{
    queue *q = queue_;

    if (!q)
        return;
    pthread_mutex_lock(&q->lock);
    q->ends = true;
    pthread_cond_broadcast(&q->has_work);
    pthread_mutex_unlock(&q->lock);
    for (uint32_t i = 0; i < q->n_workers; i++)
        pthread_join(q->workers[i], NULL);
    pthread_cond_destroy(&q->has_result);
    pthread_cond_destroy(&q->has_work);
    pthread_mutex_destroy(&q->lock);
    free(q->waiting.blocks);
    free(q->finished.blocks);
    free(q);
}

static int threads_open(uint32_t depth, void **ret_queue)
{
    queue *q = calloc(1, sizeof *q);
    pthread_attr_t attributes;
    sigset_t all, before;
    int rc = 0;

    if (!q)
        return -ENOMEM;
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->has_work, NULL);
    pthread_cond_init(&q->has_result, NULL);
    q->depth = depth;
    q->waiting.blocks = calloc(depth, sizeof *q->waiting.blocks);
    q->finished.blocks = calloc(depth, sizeof *q->finished.blocks);
    if (!q->waiting.blocks || !q->finished.blocks) {
        threads_close(q);
        return -ENOMEM;
    }
    /* Signals belong to the program's own threads. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, ZINF_SMALL_STACK_BYTES);
    while (q->n_workers < depth && q->n_workers < ZINF_STORAGE_THREADS && !rc) {
        rc = pthread_create(&q->workers[q->n_workers], &attributes, work, q);
        q->n_workers += !rc;
    }
    pthread_attr_destroy(&attributes);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!q->n_workers) {
        threads_close(q);
        return -rc;
    }
    *ret_queue = q; /* fewer workers than wanted are slower, not wrong */
    return 0;
}

static void threads_start(void *queue_, zinf_block *block)
{
    queue *q = queue_;

    pthread_mutex_lock(&q->lock);
    push(q, &q->waiting, block);
    pthread_cond_signal(&q->has_work);
    pthread_mutex_unlock(&q->lock);
}

static int threads_reap(void *queue_, bool wait, uint32_t max, zinf_block **ret_blocks)
{
    queue *q = queue_;
    uint32_t n = 0;

    pthread_mutex_lock(&q->lock);
    while (wait && !q->finished.n)
        pthread_cond_wait(&q->has_result, &q->lock);
    while (q->finished.n && n < max)
        ret_blocks[n++] = pop(q, &q->finished);
    pthread_mutex_unlock(&q->lock);
    return (int)n;
}

const zinf_storage_ops zinf_storage_threads = {
    "threads", threads_open, threads_close, threads_start, threads_reap,
};
