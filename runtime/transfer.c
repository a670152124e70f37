/* runtime/transfer.c - the read and write queues: several transfers in flight, completions
 * published in order, and a checksum of every region of the nvme file this run has written, so
 * that a stale, torn or foreign read ends the run instead of training on.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <xxhash.h>
#ifdef ZINF_HAVE_XXH_DISPATCH
#include <xxh_x86dispatch.h>
#endif

#include "runtime/executor_internal.h"

/* ---- checksums ---- */

/* The file is cut at the ends of everything the plan moves, so that each transfer covers whole
 * stretches, whatever other transfers overlap it: no read is unchecked. */

enum {
    MOST_SUMS = 1 << 22, /* 96 MiB */
    PIECE = 1 << 20,     /* hashed between two looks at the device */
};

static int compare_offsets(const void *a, const void *b)
{
    const zinf_sum *x = a, *y = b;

    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* The instructions that touch the nvme file, with their nvme operand. */
static const zinf_operand *nvme_operand(const zinf_plan *plan, const zinf_instr *instr)
{
    const zinf_operand *operands = &plan->operands[instr->operand0];

    if (instr->opcode == ZINF_OP_READ)
        return &operands[0];
    return instr->opcode == ZINF_OP_WRITE ? &operands[1] : NULL;
}

/* Appends both ends of every nvme operand to ret_sums unless that is NULL; how many there are. */
static uint64_t collect_ends(const zinf_plan *plan, zinf_sum *ret_sums)
{
    uint64_t n = 0;

    for (uint32_t s = 0; s < plan->n_segments; s++) {
        const zinf_segment *segment = &plan->segments[s];
        for (uint32_t k = 0; k < segment->n_instrs; k++) {
            const zinf_operand *operand =
                nvme_operand(plan, &plan->instrs[segment->first_instr + k]);
            if (!operand)
                continue;
            const uint64_t count = operand->stride ? segment->count : 1;
            if (!ret_sums) {
                if (count > MOST_SUMS || n > MOST_SUMS)
                    return UINT64_MAX;
                n += 2 * count;
                continue;
            }
            for (uint64_t i = 0; i < count; i++) {
                const uint64_t offset = operand->offset + i * operand->stride;
                ret_sums[n++].offset = offset;
                ret_sums[n++].offset = offset + operand->bytes;
            }
        }
    }
    return n;
}

static zinf_status build_sums(zinf_executor *executor, zinf_error *err)
{
    const uint64_t n = collect_ends(executor->plan, NULL);
    uint64_t kept = 0;

    if (n == 0)
        return ZINF_OK;
    if (n > MOST_SUMS)
        return zinf_fail(err, ZINF_DOES_NOT_FIT, "the plan moves more than %d different pieces to "
                         "and from storage, too many to keep a checksum of each; plan with fewer "
                         "tiles", MOST_SUMS / 2);
    executor->sums = calloc(n, sizeof *executor->sums);
    if (!executor->sums)
        return zinf_fail(err, ZINF_MACHINE, "out of memory for %" PRIu64 " checksums", n);
    collect_ends(executor->plan, executor->sums);
    qsort(executor->sums, n, sizeof *executor->sums, compare_offsets);
    for (uint64_t i = 0; i < n; i++)
        if (!kept || executor->sums[i].offset != executor->sums[kept - 1].offset)
            executor->sums[kept++].offset = executor->sums[i].offset;
    executor->n_sums = kept - 1;
    return ZINF_OK;
}

static zinf_sum *find_sum(const zinf_executor *executor, uint64_t offset)
{
    const zinf_sum key = {.offset = offset};

    return bsearch(&key, executor->sums, executor->n_sums + 1, sizeof key, compare_offsets);
}

/* Of a stretch that no transfer writes meanwhile. The device is kept busy with what else is in
 * flight: hashing 32 MiB takes as long as moving 10. */
static uint64_t hash_stretch(zinf_channel *channel, const char *from, uint64_t bytes)
{
    uint64_t hash = 0;

    for (uint64_t at = 0; at < bytes; at += PIECE) {
        hash = XXH3_64bits_withSeed(from + at, bytes - at < PIECE ? bytes - at : PIECE, hash);
        zinf_channel_advance(channel, false);
    }
    return hash;
}

/* Remembers what the transfer writes. */
static void note_written(zinf_lane *lane, const zinf_io *io)
{
    const uint64_t end = io->offset + io->bytes;
    const char *from = io->buffer;

    for (zinf_sum *sum = find_sum(lane->executor, io->offset); sum->offset < end; sum++) {
        const uint64_t bytes = sum[1].offset - sum->offset;
        sum->hash = hash_stretch(lane->channel, from, bytes);
        sum->written = true;
        from += bytes;
    }
}

static zinf_status check_read(zinf_lane *lane, const zinf_io *io, zinf_error *err)
{
    const zinf_executor *executor = lane->executor;
    const uint64_t end = io->offset + io->bytes;
    const char *from = io->buffer;

    for (const zinf_sum *sum = find_sum(executor, io->offset); sum->offset < end; sum++) {
        const uint64_t bytes = sum[1].offset - sum->offset;
        if (!sum->written)
            return zinf_fail(err, ZINF_WRONG_RESULT, "\"%s\": \"%s\" is read at offset %" PRIu64
                             ", length %" PRIu64 " bytes, where this run has written nothing",
                             zinf_storage_path(executor->storage), io->what, sum->offset, bytes);
        const uint64_t found = hash_stretch(lane->channel, from, bytes);
        if (found != sum->hash)
            return zinf_fail(err, ZINF_MACHINE, "\"%s\": what was read at offset %" PRIu64
                             ", length %" PRIu64 " bytes, for \"%s\" is not what this run wrote "
                             "there last (checksum %016" PRIx64 ", written %016" PRIx64 "): the "
                             "file was changed, or the device lost or mixed up a write; check the "
                             "device and start again from the last checkpoint",
                             zinf_storage_path(executor->storage), sum->offset, bytes, io->what,
                             found, sum->hash);
        from += bytes;
    }
    return ZINF_OK;
}

/* ---- one transfer ---- */

static void prepare_flight(zinf_executor *executor, const zinf_op *op, uint64_t iteration,
                           zinf_flight *ret_flight)
{
    const bool write = op->instr->opcode == ZINF_OP_WRITE;
    const int nvme = write ? 1 : 0, memory = write ? 0 : 1;

    if (op->elsewhere) { /* of no bytes: it only takes its turn */
        *ret_flight = (zinf_flight){.op = op, .iteration = iteration};
        return;
    }
    *ret_flight = (zinf_flight){
        .io = {.write = write,
               .offset = op->operands[nvme].offset + iteration * op->operands[nvme].stride,
               .bytes = op->operands[nvme].bytes,
               .buffer = op->base[memory] + iteration * op->operands[memory].stride,
               .what = &executor->plan->strings[op->instr->name]},
        .op = op, .iteration = iteration};
}

static zinf_status start_flight(zinf_lane *lane, zinf_flight *flight, zinf_error *err)
{
    flight->start_ns = zinf_now_ns();
    if (flight->op->elsewhere)
        return ZINF_OK;
    if (zinf_channel_submit(lane->channel, &flight->io, err))
        return err->status;
    if (flight->io.write) /* while the device reads the same bytes */
        note_written(lane, &flight->io);
    return ZINF_OK;
}

static bool flight_is_over(zinf_lane *lane, zinf_flight *flight)
{
    return flight->op->elsewhere || zinf_channel_done(lane->channel, &flight->io);
}

static zinf_status finish_flight(zinf_lane *lane, zinf_flight *flight, zinf_error *err)
{
    if (flight->op->elsewhere)
        return ZINF_OK;
    if (zinf_channel_wait(lane->channel, &flight->io, err))
        return err->status;
    return flight->io.write ? ZINF_OK : check_read(lane, &flight->io, err);
}

zinf_status zinf_transfer_now(zinf_executor *executor, const zinf_op *op, uint64_t iteration,
                              zinf_error *err)
{
    zinf_lane *lane = &executor->lanes[op->instr->queue];

    prepare_flight(executor, op, iteration, &lane->flights[0]);
    if (start_flight(lane, &lane->flights[0], err)) {
        zinf_error ignored = {0};
        (void)zinf_channel_wait(lane->channel, &lane->flights[0].io, &ignored);
        return err->status;
    }
    return finish_flight(lane, &lane->flights[0], err);
}

/* ---- the queue ---- */

static bool ranges_meet(uint64_t a, uint64_t a_bytes, uint64_t b, uint64_t b_bytes)
{
    return a < b + b_bytes && b < a + a_bytes;
}

/* Queue order matters between transfers that share memory or file. */
static bool flights_meet(const zinf_flight *a, const zinf_flight *b)
{
    return ranges_meet(a->io.offset, a->io.bytes, b->io.offset, b->io.bytes) ||
           ranges_meet((uintptr_t)a->io.buffer, a->io.bytes, (uintptr_t)b->io.buffer,
                       b->io.bytes);
}

/* Where in the program the queue is: the next instruction to start. */
typedef struct cursor {
    uint32_t segment, end_segment, at; /* at: among the queue's instructions of the segment */
    uint64_t iteration;
} cursor;

static const zinf_op *cursor_op(const zinf_executor *executor, unsigned queue, cursor *c)
{
    while (c->segment < c->end_segment) {
        const uint32_t *start = zinf_starts(executor, c->segment);
        const uint32_t n = start[queue + 1] - start[queue];
        if (n && c->at < n)
            return &executor->ops[executor->order[start[queue] + c->at]];
        c->at = 0;
        c->iteration++;
        if (n == 0 || c->iteration == executor->plan->segments[c->segment].count) {
            c->iteration = 0;
            c->segment++;
        }
    }
    return NULL;
}

static uint64_t thread_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void move_all(zinf_lane *lane)
{
    zinf_executor *executor = lane->executor;
    const zinf_program *program = &executor->plan->programs[executor->program];
    cursor next = {program->first_segment, program->first_segment + program->n_segments, 0, 0};
    uint64_t started = 0, done = 0, busy_since = 0;
    zinf_error err = {0};

    while (!atomic_load(&executor->failed)) {
        const zinf_op *op = cursor_op(executor, lane->queue, &next);
        if (!op && started == done)
            return;
        if (op && started - done < ZINF_FLIGHTS) {
            zinf_flight *flight = &lane->flights[started % ZINF_FLIGHTS];
            bool free = true;
            if (started == done) {
                if (!zinf_needs_wait(executor, op, next.iteration))
                    break;
            } else {
                free = zinf_needs_met(executor, op, next.iteration);
            }
            if (free) {
                prepare_flight(executor, op, next.iteration, flight);
                for (uint64_t i = done; free && i < started; i++)
                    free = !flights_meet(flight, &lane->flights[i % ZINF_FLIGHTS]);
            }
            if (free) {
                zinf_lane_pause(lane);
                if (started == done)
                    busy_since = zinf_now_ns();
                started++;
                next.at++;
                if (start_flight(lane, flight, &err)) {
                    zinf_executor_fail(executor, op, &err);
                    break;
                }
                continue;
            }
        }
        zinf_flight *flight = &lane->flights[done % ZINF_FLIGHTS];
        if (!flight_is_over(lane, flight)) { /* then see whether the next one may start */
            zinf_channel_advance(lane->channel, true);
            continue;
        }
        if (finish_flight(lane, flight, &err)) {
            done++;
            zinf_executor_fail(executor, flight->op, &err);
            break;
        }
        const uint64_t now = zinf_now_ns();
        zinf_lane_record(lane, flight->op, flight->iteration, flight->start_ns, now);
        done++;
        if (started == done)
            lane->busy_ns += now - busy_since;
        zinf_lane_publish(lane, done);
    }
    /* a failed run: memory stays ours until the device is done with it */
    for (; done < started; done++) {
        zinf_error ignored = {0};
        (void)finish_flight(lane, &lane->flights[done % ZINF_FLIGHTS], &ignored);
    }
}

void zinf_transfer_lane(zinf_lane *lane)
{
    const uint64_t begin = thread_ns();

    move_all(lane);
    lane->cpu_ns = thread_ns() - begin;
}

zinf_status zinf_transfer_open(zinf_executor *executor, zinf_error *err)
{
    for (unsigned q = ZINF_QUEUE_READ; q <= ZINF_QUEUE_WRITE; q++) {
        zinf_lane *lane = &executor->lanes[q];
        if (!lane->used)
            continue;
        if (!executor->storage)
            return zinf_fail(err, ZINF_BAD_INPUT, "the plan keeps states in the nvme tier, but "
                             "no storage was given; pass --nvme DIR");
        lane->flights = calloc(ZINF_FLIGHTS, sizeof *lane->flights);
        if (!lane->flights)
            return zinf_fail(err, ZINF_MACHINE, "out of memory for transfers in flight");
        if (zinf_channel_open(executor->storage, &lane->channel, err))
            return err->status;
    }
    return build_sums(executor, err);
}

void zinf_transfer_close(zinf_executor *executor)
{
    for (unsigned q = ZINF_QUEUE_READ; q <= ZINF_QUEUE_WRITE; q++) {
        zinf_channel_close(executor->lanes[q].channel);
        free(executor->lanes[q].flights);
    }
    free(executor->sums);
}
