/* tests/checker/replay.c - see replay.h. */
#include "tests/checker/replay.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "kernels/bf16.h"
#include "runtime/executor.h"
#include "runtime/rate.h"
#include "runtime/storage_engine.h"

enum { GARBAGE = 0xa5 };

/* ---- a machine whose memory is dirty ---- */

static zinf_status arena_alloc(zinf_tier tier, uint64_t bytes, void **ret_memory, zinf_error *err)
{
    (void)tier;
    *ret_memory = bytes ? aligned_alloc(4096, (bytes + 4095) / 4096 * 4096) : NULL;
    if (bytes && !*ret_memory)
        return zinf_fail(err, ZINF_MACHINE, "no memory");
    if (bytes)
        memset(*ret_memory, GARBAGE, bytes);
    return ZINF_OK;
}

static void arena_free(zinf_tier tier, void *memory, uint64_t bytes)
{
    (void)tier;
    (void)bytes;
    free(memory);
}

static void copy(void *dst, const void *src, uint64_t bytes)
{
    memmove(dst, src, bytes);
}

static void zero(void *dst, uint64_t bytes)
{
    memset(dst, 0, bytes);
}

static const zinf_backend reference = {"cpu", arena_alloc, arena_free, copy, zero,
                                       zinf_kernels_ref};

/* Storage in memory: a block is moved as it starts. */
static unsigned char *disk;

typedef struct memory_queue {
    uint32_t n, depth;
    zinf_block *done[];
} memory_queue;

static int memory_open(uint32_t depth, void **ret_queue)
{
    memory_queue *queue = calloc(1, sizeof *queue + depth * sizeof *queue->done);

    *ret_queue = queue;
    return queue ? 0 : -12;
}

static void memory_start(void *context, zinf_block *block)
{
    memory_queue *queue = context;

    if (block->write)
        memcpy(disk + block->offset, block->buffer, block->bytes);
    else
        memcpy(block->buffer, disk + block->offset, block->bytes);
    block->result = (int32_t)block->bytes;
    queue->done[queue->n++] = block;
}

static int memory_reap(void *context, bool wait, uint32_t max, zinf_block **ret_blocks)
{
    memory_queue *queue = context;
    uint32_t n = 0;

    (void)wait;
    while (n < max && queue->n)
        ret_blocks[n++] = queue->done[--queue->n];
    return (int)n;
}

static const zinf_storage_ops memory_engine = {"memory", memory_open, free, memory_start,
                                               memory_reap};

/* ---- other ranks, made of this one: what they send depends on what this one sends ---- */

static zinf_status gather(const zinf_collective *self, const void *send, void *recv,
                          uint64_t count, zinf_dtype dtype, zinf_error *err)
{
    const uint64_t bytes = count * zinf_dtype_bytes(dtype);

    (void)err;
    for (uint64_t r = 0; r < self->n_ranks; r++) /* from another place on */
        for (uint64_t i = 0; i < count; i++)
            memcpy((char *)recv + r * bytes + i * zinf_dtype_bytes(dtype),
                   (const char *)send + (i + 5 * r) % count * zinf_dtype_bytes(dtype),
                   zinf_dtype_bytes(dtype));
    return ZINF_OK;
}

static zinf_status scatter(const zinf_collective *self, const void *send, void *recv,
                           uint64_t count, zinf_dtype dtype, zinf_error *err)
{
    const float *from = send;
    float *to = recv;

    (void)dtype, (void)err;
    for (uint64_t i = 0; i < count; i++) {
        to[i] = from[i];
        for (uint64_t r = 1; r < self->n_ranks; r++)
            to[i] += from[r * count + (i + r) % count];
    }
    return ZINF_OK;
}

/* What another root sends: something, whoever it is. */
static zinf_status broadcast(const zinf_collective *self, const void *send, void *recv,
                             uint64_t count, zinf_dtype dtype, uint32_t root, zinf_error *err)
{
    (void)err;
    if (root == self->rank)
        memmove(recv, send, count * zinf_dtype_bytes(dtype));
    for (uint64_t i = 0; root != self->rank && i < count; i++) {
        const float value = 0.01f * (float)((i + root) % 17) - 0.08f;
        if (dtype == ZINF_F32)
            ((float *)recv)[i] = value;
        else
            ((uint16_t *)recv)[i] = zinf_bf16_from_f32(value);
    }
    return ZINF_OK;
}

/* The others have what this one has, from another place of the shard on. */
static zinf_status reduce(const zinf_collective *self, const void *send, void *recv,
                          uint64_t count, zinf_dtype dtype, uint32_t root, zinf_error *err)
{
    const float *from = send;

    (void)dtype, (void)err;
    for (uint64_t i = 0; root == self->rank && i < count; i++) {
        float all = from[i];
        for (uint64_t r = 1; r < self->n_ranks; r++)
            all += from[(i + r) % count];
        ((float *)recv)[i] = all;
    }
    return ZINF_OK;
}

static zinf_status sum(const zinf_collective *self, const void *send, void *recv,
                       uint64_t count, zinf_dtype dtype, zinf_error *err)
{
    (void)dtype, (void)err;
    for (uint64_t i = 0; i < count; i++)
        ((double *)recv)[i] = ((const double *)send)[i] * (1 + 0.25 * (self->n_ranks - 1));
    return ZINF_OK;
}

static uint64_t sent_bytes(const zinf_collective *self)
{
    (void)self;
    return 0;
}

static void cancel(const zinf_collective *self, const char *why)
{
    (void)self, (void)why;
}

static void leave(const zinf_collective *self, int code)
{
    (void)self, (void)code;
}

/* Garbage wherever no state of a unit lies; the runtime keeps nothing there between programs. */
static void dirty(const zinf_plan *plan, uint32_t rank, zinf_executor *executor)
{
    for (unsigned tier = ZINF_TIER_DEVICE; tier <= ZINF_TIER_HOST; tier++) {
        const uint64_t bytes = plan->machine.arena_bytes[tier];
        unsigned char *arena = zinf_executor_arena(executor, (zinf_tier)tier);
        unsigned char *kept = bytes ? malloc(bytes) : NULL;
        if (!kept)
            continue;
        memcpy(kept, arena, bytes);
        memset(arena, GARBAGE, bytes);
        for (uint32_t u = 0; u < plan->n_units; u++) {
            const zinf_region *r[3] = {&plan->units[u].param, &plan->units[u].optimizer,
                                       &plan->units[u].grad};
            for (int i = 0; i < (plan->units[u].late ? 3 : 2); i++)
                if (r[i]->tier == tier && r[i]->bytes &&
                    (plan->units[u].owner == ZINF_NONE || plan->units[u].owner == rank))
                    memcpy(arena + r[i]->offset, kept + r[i]->offset, r[i]->bytes);
        }
        free(kept);
    }
}

/* ---- what goes in and comes out ---- */

typedef struct world {
    const zinf_plan *plan;
    uint32_t rank;
    uint64_t position, hash;
    float *states; /* [3][elements] */
    uint64_t n_elems, *first; /* of each tensor */
    float *logits;
} world;

static zinf_status batch(void *context, uint64_t n, uint64_t cols, int32_t *ret_tokens,
                         zinf_error *err)
{
    world *w = context;

    (void)err;
    for (uint64_t i = 0; i < n * cols; i++) {
        const uint64_t at = w->position++;
        ret_tokens[i] = (int32_t)((at * at + 7 * at) % 251 % w->plan->model.vocab);
    }
    return ZINF_OK;
}

static zinf_status put(void *context, uint32_t tensor, zinf_state_array array, uint64_t first,
                       uint64_t n, const float *values, zinf_error *err)
{
    world *w = context;

    (void)err;
    memcpy(&w->states[array * w->n_elems + w->first[tensor] + first], values, n * sizeof *values);
    return ZINF_OK;
}

static zinf_status get(void *context, uint32_t tensor, zinf_state_array array, uint64_t first,
                       uint64_t n, float *ret_values, zinf_error *err)
{
    world *w = context;

    (void)err;
    memcpy(ret_values, &w->states[array * w->n_elems + w->first[tensor] + first],
           n * sizeof *ret_values);
    return ZINF_OK;
}

static void mix(world *w, const void *bytes, size_t n)
{
    w->hash = XXH3_64bits_withSeed(bytes, n, w->hash + 1);
}

static zinf_status live(zinf_executor *executor, world *w, zinf_error *err)
{
    static const struct {
        zinf_program_kind program;
        uint64_t step;
    } life[] = {{ZINF_PROGRAM_INIT, 0}, {ZINF_PROGRAM_STEP, 0}, {ZINF_PROGRAM_FLUSH, 1},
                {ZINF_PROGRAM_EVAL, 1}, {ZINF_PROGRAM_STEP, 1}, {ZINF_PROGRAM_FLUSH, 2},
                {ZINF_PROGRAM_SAMPLE, 2}, {ZINF_PROGRAM_SAVE, 2}, {ZINF_PROGRAM_LOAD, 2},
                {ZINF_PROGRAM_STEP, 2}, {ZINF_PROGRAM_STEP, 3}, {ZINF_PROGRAM_FLUSH, 4},
                {ZINF_PROGRAM_EVAL, 4}, {ZINF_PROGRAM_SAVE, 4}};

    for (size_t i = 0; i < sizeof life / sizeof *life; i++) {
        zinf_env env = {.step = life[i].step, .lr = zinf_learning_rate(&w->plan->job, life[i].step),
                        .batch = batch, .batch_context = w, .get = get, .put = put,
                        .state_context = w, .logits = w->logits};
        if (w->plan->programs[life[i].program].n_segments == 0)
            continue;
        memset(w->logits, GARBAGE, w->plan->model.vocab * sizeof *w->logits);
        if (life[i].program == ZINF_PROGRAM_SAVE)
            memset(w->states, GARBAGE, 3 * w->n_elems * sizeof *w->states);
        if (zinf_executor_run(executor, life[i].program, &env, err))
            return err->status;
        if (life[i].program == ZINF_PROGRAM_STEP || life[i].program == ZINF_PROGRAM_EVAL)
            mix(w, &env.loss, sizeof env.loss);
        if (life[i].program == ZINF_PROGRAM_STEP)
            mix(w, &env.norm, sizeof env.norm);
        if (life[i].program == ZINF_PROGRAM_SAMPLE)
            mix(w, w->logits, w->plan->model.vocab * sizeof *w->logits);
        if (life[i].program == ZINF_PROGRAM_SAVE)
            mix(w, w->states, 3 * w->n_elems * sizeof *w->states);
        mix(w, &w->position, sizeof w->position);
        dirty(w->plan, w->rank, executor);
    }
    return ZINF_OK;
}

static zinf_status replay_as(const zinf_plan *plan, uint32_t rank, uint64_t *hash,
                             zinf_error *err)
{
    const zinf_storage_options io = {ZINF_ENGINE_AUTO, plan->decisions.io_block_bytes,
                                     plan->decisions.io_depth};
    const uint64_t bytes = plan->machine.arena_bytes[ZINF_TIER_NVME];
    const zinf_collective ranks = {.name = "echo", .rank = rank, .n_ranks = plan->decisions.ranks,
                                   .allgather = gather, .reduce_scatter = scatter,
                                   .reduce = reduce, .allreduce = sum,
                                   .broadcast = broadcast, .sent_bytes = sent_bytes,
                                   .cancel = cancel, .close = leave};
    zinf_executor_options options = {.serial = true, .backend = &reference,
                                     .collective = &ranks};
    world w = {.plan = plan, .rank = rank, .hash = *hash,
               .logits = calloc(plan->model.vocab, sizeof *w.logits),
               .first = calloc(plan->n_tensors + (size_t)1, sizeof *w.first)};
    zinf_executor *executor = NULL;
    char warning[256], directory[] = "/tmp/zinf-replay-XXXXXX";

    for (uint32_t t = 0; t < plan->n_tensors; t++) {
        w.first[t] = w.n_elems;
        w.n_elems += plan->tensors[t].rows * plan->tensors[t].cols;
    }
    w.states = calloc(3 * w.n_elems + 1, sizeof *w.states);
    if (bytes) {
        disk = malloc(bytes);
        memset(disk, GARBAGE, bytes);
        if (!mkdtemp(directory))
            zinf_fail(err, ZINF_MACHINE, "no directory");
        else
            zinf_storage_open_with(directory, 0, bytes, &io, &memory_engine, &options.storage,
                                   warning, err);
    }
    if (err->status == ZINF_OK &&
        zinf_executor_open(plan, &options, &executor, err) == ZINF_OK)
        live(executor, &w, err);
    zinf_executor_close(executor);
    zinf_storage_close(options.storage);
    if (bytes) {
        rmdir(directory);
        free(disk);
    }
    free(w.states);
    free(w.first);
    free(w.logits);
    *hash = w.hash;
    return err->status;
}

zinf_status replay(const zinf_plan *plan, uint64_t *ret_hash, zinf_error *err)
{
    const bool owned = plan->decisions.partitioning == ZINF_OWNER; /* ranks do different things */
    const uint32_t n = owned ? plan->decisions.ranks : 1;

    *ret_hash = 0;
    for (uint32_t rank = 0; rank < n && err->status == ZINF_OK; rank++)
        replay_as(plan, rank, ret_hash, err);
    return err->status;
}
