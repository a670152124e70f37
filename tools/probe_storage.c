/* tools/probe_storage.c - zinf-probe's measurements of one storage directory, made through the
 * engine that zinf-run uses.
 *
 * A training step rewrites a file whose blocks exist, so every measured write goes over bytes
 * written before. Each number is bounded in bytes and in seconds: a slow disk is measured on
 * less, not for longer.
 */
#include "tools/probe.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

#include "runtime/storage.h"

enum { SLICE_BYTES = 16 << 20, N_SLICES = 2 };

static const uint64_t blocks[] = {256 << 10, 1 << 20, 4 << 20};
static const uint32_t depths[] = {4, 8, 32};

/* One direction through one channel: `bytes` of the file, two slices in flight, until `seconds`
 * have passed. */
typedef struct stream {
    zinf_channel *channel;
    bool write;
    uint64_t bytes;  /* of the file, a multiple of SLICE_BYTES; the stream wraps around */
    uint64_t offset; /* where it starts */
    double seconds;
    uint64_t at_most; /* bytes to move at most */
    char *buffer;     /* [N_SLICES][SLICE_BYTES] */
    /* results */
    uint64_t moved_bytes;
    double elapsed_s;
    zinf_error err;
} stream;

static void *run_stream(void *arg)
{
    stream *it = arg;
    zinf_io io[N_SLICES] = {0};
    bool pending[N_SLICES] = {false};
    uint64_t submitted = 0, offset = it->offset;
    double start = probe_now();

    it->moved_bytes = 0;
    for (int i = 0; !it->err.status; i = (i + 1) % N_SLICES) {
        if (pending[i]) {
            pending[i] = false;
            if (zinf_channel_wait(it->channel, &io[i], &it->err))
                break;
            it->moved_bytes += SLICE_BYTES;
        }
        bool more = submitted < it->at_most && probe_now() - start < it->seconds;
        if (!more) {
            bool any = false;

            for (int j = 0; j < N_SLICES; j++)
                any |= pending[j];
            if (!any)
                break;
            continue;
        }
        io[i] = (zinf_io){.write = it->write, .offset = offset, .bytes = SLICE_BYTES,
                          .buffer = it->buffer + (size_t)i * SLICE_BYTES, .what = "probe"};
        if (zinf_channel_submit(it->channel, &io[i], &it->err))
            break;
        pending[i] = true;
        submitted += SLICE_BYTES;
        offset = (offset + SLICE_BYTES) % it->bytes;
    }
    for (int i = 0; i < N_SLICES; i++)
        if (pending[i]) {
            zinf_error ignored = {0};
            zinf_channel_wait(it->channel, &io[i], &ignored);
        }
    it->elapsed_s = probe_now() - start;
    return NULL;
}

static double rate_of(const stream *it)
{
    return (double)it->moved_bytes / it->elapsed_s;
}

/* A storage with a channel for each direction and their buffers. */
typedef struct bench {
    zinf_storage *storage;
    zinf_channel *reader, *writer;
    char *memory; /* [2][N_SLICES][SLICE_BYTES] */
    uint64_t bytes;
} bench;

static const size_t memory_bytes = (size_t)2 * N_SLICES * SLICE_BYTES;

static void bench_close(bench *it)
{
    zinf_channel_close(it->reader);
    zinf_channel_close(it->writer);
    zinf_storage_close(it->storage);
    it->reader = it->writer = NULL;
    it->storage = NULL;
}

static zinf_status bench_open(bench *it, const char *directory, uint64_t block_bytes,
                              uint32_t depth, bool *warned, zinf_error *err)
{
    zinf_storage_options options = {ZINF_ENGINE_AUTO, block_bytes, depth};
    char warning[256] = "";

    if (zinf_storage_open(directory, 0, it->bytes, &options, &it->storage, warning, err) ||
        zinf_channel_open(it->storage, &it->reader, err) ||
        zinf_channel_open(it->storage, &it->writer, err)) {
        bench_close(it);
        return err->status;
    }
    if (warning[0] && !*warned) {
        fprintf(stderr, "zinf-probe: %s\n", warning);
        *warned = true;
    }
    return ZINF_OK;
}

static stream stream_of(const bench *it, bool write, uint64_t bytes, uint64_t at_most,
                        double seconds)
{
    return (stream){.channel = write ? it->writer : it->reader, .write = write, .bytes = bytes,
                    .at_most = at_most, .seconds = seconds,
                    .buffer = it->memory + (write ? memory_bytes / 2 : 0)};
}

/* Moves at most `at_most` bytes; the rate, or 0 and err. */
static double transfer(const bench *it, bool write, uint64_t bytes, uint64_t at_most,
                       double seconds, uint64_t *ret_moved, zinf_error *err)
{
    stream one = stream_of(it, write, bytes, at_most, seconds);

    run_stream(&one);
    if (one.err.status) {
        zinf_fail(err, one.err.status, "%s", one.err.text);
        return 0;
    }
    if (ret_moved)
        *ret_moved = one.moved_bytes;
    return rate_of(&one);
}

/* Fills the start of the file; how much of it may be read and rewritten. */
static uint64_t prepare(const bench *it, double seconds, zinf_error *err)
{
    uint64_t filled = 0;

    transfer(it, true, it->bytes, it->bytes, seconds, &filled, err);
    return filled;
}

/* Both directions at once, each with the work that takes it `seconds` alone: 1 if neither slows
 * the other down, 2 if they take turns. */
static double measure_duplex(const bench *it, uint64_t filled, double read, double write,
                             double seconds, zinf_error *err)
{
    stream reading = stream_of(it, false, filled, 0, 1e9);
    stream writing = stream_of(it, true, filled, 0, 1e9);
    pthread_t thread;

    reading.at_most = (uint64_t)(read * seconds) / SLICE_BYTES * SLICE_BYTES + SLICE_BYTES;
    writing.at_most = (uint64_t)(write * seconds) / SLICE_BYTES * SLICE_BYTES + SLICE_BYTES;
    writing.offset = filled / 2 / SLICE_BYTES * SLICE_BYTES;
    double alone_s = 0.5 * ((double)reading.at_most / read + (double)writing.at_most / write);
    double start = probe_now();
    if (pthread_create(&thread, NULL, run_stream, &writing) != 0) {
        zinf_fail(err, ZINF_MACHINE, "cannot start a thread: raise `ulimit -u`");
        return 0;
    }
    run_stream(&reading);
    pthread_join(thread, NULL);
    double elapsed_s = probe_now() - start;
    if (reading.err.status || writing.err.status) {
        const zinf_error *first = reading.err.status ? &reading.err : &writing.err;
        zinf_fail(err, first->status, "%s", first->text);
        return 0;
    }
    return elapsed_s / alone_s;
}

/* Median time of one 4 KiB read with nothing else in flight. */
static double measure_latency(const bench *it, uint64_t filled, zinf_error *err)
{
    enum { MOST = 512 };
    double samples[MOST];
    uint32_t state = 1;
    double end = probe_now() + 0.5;
    int n = 0;

    while (n < MOST && (n < 16 || probe_now() < end)) {
        state = state * 1664525u + 1013904223u;
        zinf_io io = {.offset = (uint64_t)(state >> 8) * 4096 % filled, .bytes = 4096,
                      .buffer = it->memory, .what = "probe"};
        double start = probe_now();

        if (zinf_channel_submit(it->reader, &io, err) ||
            zinf_channel_wait(it->reader, &io, err))
            return 0;
        samples[n++] = probe_now() - start;
    }
    return probe_summarise(samples, n).median;
}

/* The smallest block and depth within 3 % of the best sum of read and write time. */
static zinf_status choose_block(const probe_options *options, bench *it, const char *directory,
                                probe_nvme *nvme, zinf_error *err)
{
    double seconds = options->quick ? 0.03 : 0.3;
    double scores[3][3] = {{0}}, best = 0;
    bool warned = false;

    for (int b = 0; b < 3; b++)
        for (int d = 0; d < 3; d++) {
            if (bench_open(it, directory, blocks[b], depths[d], &warned, err))
                return err->status;
            if (b == 0 && d == 0)
                fprintf(stderr, "storage \"%s\", engine %s, file of %llu MiB\n", directory,
                        zinf_storage_engine_name(it->storage),
                        (unsigned long long)(it->bytes >> 20));
            uint64_t filled = prepare(it, seconds, err);
            double write = 0, read = 0;
            if (!err->status)
                write = transfer(it, true, filled, filled, seconds, NULL, err);
            if (!err->status)
                read = transfer(it, false, filled, filled, seconds, NULL, err);
            bench_close(it);
            if (err->status)
                return err->status;
            scores[b][d] = 2 / (1 / read + 1 / write);
            fprintf(stderr, "  block %4llu KiB depth %2u   read %8.2f GB/s   write %8.2f GB/s\n",
                    (unsigned long long)(blocks[b] >> 10), depths[d], read / 1e9, write / 1e9);
            if (scores[b][d] > best)
                best = scores[b][d];
        }
    for (int b = 0; b < 3; b++)
        for (int d = 0; d < 3; d++)
            if (scores[b][d] >= 0.97 * best) {
                nvme->block_bytes = blocks[b];
                nvme->depth = depths[d];
                return ZINF_OK;
            }
    return ZINF_OK;
}

static zinf_status measure_rates(const probe_options *options, bench *it, const char *directory,
                                 probe_nvme *nvme, zinf_error *err)
{
    enum { ROUNDS = 5 };
    double seconds = options->quick ? 0.05 : 0.5;
    double read[ROUNDS], write[ROUNDS];
    bool warned = true;

    if (bench_open(it, directory, nvme->block_bytes, nvme->depth, &warned, err))
        return err->status;
    uint64_t filled = prepare(it, 4 * seconds, err);
    for (int i = 0; i < ROUNDS && !err->status; i++) {
        write[i] = transfer(it, true, filled, 2 * filled, seconds, NULL, err);
        if (!err->status)
            read[i] = transfer(it, false, filled, 2 * filled, seconds, NULL, err);
    }
    if (err->status)
        goto out;
    probe_rate reads = probe_summarise(read, ROUNDS), writes = probe_summarise(write, ROUNDS);
    probe_report("storage read", reads, 1e9, "GB/s");
    probe_report("storage write", writes, 1e9, "GB/s");
    nvme->read = reads.median;
    nvme->write = writes.median;
    double factor = measure_duplex(it, filled, nvme->read, nvme->write, 2 * seconds, err);
    if (err->status)
        goto out;
    /* The file knows only yes and no: the nearer one. */
    nvme->overlap = factor < 1.5;
    fprintf(stderr, "  read and write at once take %.2f times as long as one alone: %s\n", factor,
            nvme->overlap ? "they overlap" : "they share the device");
    nvme->latency_s = measure_latency(it, filled, err);
    if (!err->status)
        fprintf(stderr, "  %-34s %9.2f us\n", "read of 4 KiB, depth 1", 1e6 * nvme->latency_s);
out:
    bench_close(it);
    return err->status;
}

zinf_status probe_measure_nvme(const probe_options *options, const char *directory,
                               probe_nvme *ret_nvme, zinf_error *err)
{
    struct statvfs fs;
    probe_nvme nvme = {0};
    bench it = {0};

    if (statvfs(directory, &fs) != 0)
        return zinf_fail(err, ZINF_MACHINE, "\"%s\": %s: give --nvme a directory that exists and"
                         " can be written", directory, strerror(errno));
    uint64_t free_bytes = (uint64_t)fs.f_bavail * fs.f_frsize;
    it.bytes = (uint64_t)(options->quick ? 64 : 1024) << 20;
    if (it.bytes > free_bytes / 4)
        it.bytes = free_bytes / 4 / SLICE_BYTES * SLICE_BYTES;
    if (it.bytes < 2 * SLICE_BYTES)
        return zinf_fail(err, ZINF_MACHINE, "\"%s\": %llu MiB are free, at least %d are needed to"
                         " measure it", directory, (unsigned long long)(free_bytes >> 20),
                         8 * SLICE_BYTES >> 20);
    it.memory = probe_reserve(memory_bytes);
    if (!it.memory)
        return zinf_fail(err, ZINF_MACHINE, "no memory for buffers of %zu bytes", memory_bytes);
    /* A twentieth stays free: file systems slow down when they are full. */
    nvme.capacity_bytes = free_bytes / 20 * 19;
    nvme.directory = directory;
    if (!choose_block(options, &it, directory, &nvme, err) &&
        !measure_rates(options, &it, directory, &nvme, err))
        *ret_nvme = nvme;
    free(it.memory);
    return err->status;
}
