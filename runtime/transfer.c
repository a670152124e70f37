/* runtime/transfer.c - the read and write queues: several transfers in flight, completions
 * published in order, and a checksum of every region of the nvme file this run has written, so
 * that a stale, torn or foreign read ends the run instead of training on.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "runtime/executor_internal.h"

/* ---- checksums ---- */

enum { MOST_SUMS = 1 << 20 }; /* 40 MiB; a loop beyond that is not checked */

static int compare_sums(const void *a, const void *b)
{
    const zinf_sum *x = a, *y = b;

    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

/* The instructions that touch the nvme file, with their nvme operand. */
static const zinf_operand *nvme_operand(const zinf_plan *plan, const zinf_instr *instr)
{
    const zinf_operand *operands = &plan->operands[instr->operand0];

    if (instr->opcode == ZINF_OP_READ)
        return &operands[0];
    return instr->opcode == ZINF_OP_WRITE ? &operands[1] : NULL;
}

static uint64_t n_sums_of(const zinf_operand *operand, const zinf_segment *segment)
{
    return operand->stride ? segment->count : 1;
}

static zinf_status build_sums(zinf_executor *executor, zinf_error *err)
{
    const zinf_plan *plan = executor->plan;
    uint64_t n = 0;

    for (int pass = 0; pass < 2; pass++) {
        uint64_t at = 0;
        for (uint32_t s = 0; s < plan->n_segments; s++) {
            const zinf_segment *segment = &plan->segments[s];
            for (uint32_t k = 0; k < segment->n_instrs; k++) {
                const zinf_operand *operand =
                    nvme_operand(plan, &plan->instrs[segment->first_instr + k]);
                if (!operand)
                    continue;
                const uint64_t count = n_sums_of(operand, segment);
                if (count > MOST_SUMS || at + count > MOST_SUMS)
                    return ZINF_OK; /* too many to keep: none is checked */
                for (uint64_t i = 0; pass && i < count; i++)
                    executor->sums[at + i] = (zinf_sum){
                        .offset = operand->offset + i * operand->stride,
                        .bytes = operand->bytes, .checked = true};
                at += count;
            }
        }
        if (pass == 0) {
            n = at;
            if (n == 0)
                return ZINF_OK;
            executor->sums = calloc(n, sizeof *executor->sums);
            if (!executor->sums)
                return zinf_fail(err, ZINF_MACHINE, "out of memory for %" PRIu64 " checksums",
                                 n);
        }
    }
    qsort(executor->sums, n, sizeof *executor->sums, compare_sums);
    uint64_t kept = 0, end = 0;
    for (uint64_t i = 0; i < n; i++) {
        zinf_sum *sum = &executor->sums[i];
        if (kept && compare_sums(sum, &executor->sums[kept - 1]) == 0)
            continue;
        /* an overlapping write would silently change what the other region contains */
        if (kept && sum->offset < end) {
            sum->checked = false;
            for (uint64_t k = kept; k > 0; k--) {
                zinf_sum *before = &executor->sums[k - 1];
                if (before->offset + before->bytes > sum->offset)
                    before->checked = false;
                else if (before->checked)
                    break;
            }
        }
        if (sum->offset + sum->bytes > end)
            end = sum->offset + sum->bytes;
        executor->sums[kept++] = *sum;
    }
    executor->n_sums = kept;
    return ZINF_OK;
}

static zinf_sum *find_sum(const zinf_executor *executor, uint64_t offset, uint64_t bytes)
{
    const zinf_sum key = {.offset = offset, .bytes = bytes};

    if (executor->n_sums == 0)
        return NULL;
    zinf_sum *sum = bsearch(&key, executor->sums, executor->n_sums, sizeof key, compare_sums);
    return sum && sum->checked ? sum : NULL;
}

/* ---- one transfer ---- */

static void prepare_flight(zinf_executor *executor, const zinf_op *op, uint64_t iteration,
                           zinf_flight *ret_flight)
{
    const bool write = op->instr->opcode == ZINF_OP_WRITE;
    const int nvme = write ? 1 : 0, memory = write ? 0 : 1;

    *ret_flight = (zinf_flight){
        .io = {.write = write,
               .offset = op->operands[nvme].offset + iteration * op->operands[nvme].stride,
               .bytes = op->operands[nvme].bytes,
               .buffer = op->base[memory] + iteration * op->operands[memory].stride,
               .what = &executor->plan->strings[op->instr->name]},
        .op = op, .iteration = iteration};
    ret_flight->sum = find_sum(executor, ret_flight->io.offset, ret_flight->io.bytes);
}

static zinf_status start_flight(zinf_lane *lane, zinf_flight *flight, zinf_error *err)
{
    flight->start_ns = zinf_now_ns();
    if (flight->io.write && flight->sum) {
        flight->sum->hash = XXH3_64bits(flight->io.buffer, flight->io.bytes);
        flight->sum->written = true;
    }
    return zinf_channel_submit(lane->channel, &flight->io, err);
}

static zinf_status finish_flight(zinf_lane *lane, zinf_flight *flight, zinf_error *err)
{
    if (zinf_channel_wait(lane->channel, &flight->io, err))
        return err->status;
    if (flight->io.write || !flight->sum || !flight->sum->written)
        return ZINF_OK;
    const uint64_t found = XXH3_64bits(flight->io.buffer, flight->io.bytes);
    if (found != flight->sum->hash)
        return zinf_fail(err, ZINF_MACHINE, "\"%s\": what was read at offset %" PRIu64 ", %"
                         PRIu64 " bytes, is not what this run wrote there (checksum %016" PRIx64
                         ", written %016" PRIx64 "), for \"%s\": the file was changed or the "
                         "device lost a write; check the device and start again",
                         zinf_storage_path(lane->executor->storage), flight->io.offset,
                         flight->io.bytes, found, flight->sum->hash, flight->io.what);
    return ZINF_OK;
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

void zinf_transfer_lane(zinf_lane *lane)
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
        (void)zinf_channel_wait(lane->channel, &lane->flights[done % ZINF_FLIGHTS].io, &ignored);
    }
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
