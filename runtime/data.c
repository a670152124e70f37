/* runtime/data.c - token files; see data.h. Reads by pread straight into the caller's rows, so a
 * file that shrinks is an error at any moment, and its pages do not count as this process's.
 */
#include "runtime/data.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/mix.h"
#include "runtime/plan.h"

enum {
    LLMC_HEADER_BYTES = 1024, /* 256 int32 */
    LLMC_GPT2_MAGIC = 20240520, LLMC_GPT2_VERSION = 1,
    LLMC_LLAMA3_MAGIC = 20240801, LLMC_LLAMA3_VERSION = 7,
    SCAN_BYTES = 1 << 20,
    ROUNDS = 8
};

#define MOST_TOKENS ((uint64_t)1 << 50)

struct zinf_data {
    char *path;
    const char *format;
    int fd;
    bool shuffle;
    uint32_t width; /* bytes of a token in the file: 1, 2, 4 */
    uint64_t header_bytes, file_bytes;
    uint64_t vocab, sequence, seed;
    uint64_t n_tokens, n_sequences;
    uint32_t half_bits; /* of the permutation's domain, 4^half_bits >= n_sequences */
};

/* ---- the order of an epoch ---- */

/* A balanced Feistel network on 2 * half_bits bits, keyed by (seed, epoch, round), is a
 * permutation of 0 .. 4^half_bits - 1. Walking its cycle until the value is < n makes it one of
 * 0 .. n - 1 (Black and Rogaway 2002); the domain is < 4 n, so 4 steps are the mean at most. */
static uint64_t permute(const zinf_data *d, uint64_t epoch, uint64_t index)
{
    const uint64_t mask = (1ull << d->half_bits) - 1;
    const uint64_t key = zinf_mix(zinf_mix(d->seed + 0x9e3779b97f4a7c15u) ^ (epoch + 1));

    if (d->n_sequences == 1)
        return 0;
    do {
        uint64_t left = index >> d->half_bits, right = index & mask;
        for (uint64_t round = 0; round < ROUNDS; round++) {
            const uint64_t next =
                left ^ (zinf_mix(key + zinf_mix(right + (round << 56) + 1)) & mask);
            left = right;
            right = next;
        }
        index = left << d->half_bits | right;
    } while (index >= d->n_sequences);
    return index;
}

/* ---- reading ---- */

/* All of it, or an error; a file that ends early has shrunk since open. */
static zinf_status read_at(const zinf_data *d, void *buffer, uint64_t bytes, uint64_t offset,
                           zinf_error *err)
{
    uint64_t done = 0;

    while (done < bytes) {
        ssize_t n = pread(d->fd, (char *)buffer + done, bytes - done, (off_t)(offset + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return zinf_fail(err, ZINF_MACHINE, "data: reading \"%s\" at offset %" PRIu64
                             ", length %" PRIu64 " bytes: %s", d->path, offset, bytes,
                             strerror(errno));
        if (!n)
            return zinf_fail(err, ZINF_MACHINE, "data: \"%s\" ends at %" PRIu64 " bytes, expected "
                             "%" PRIu64 ": it shrank while in use", d->path, offset + done,
                             d->file_bytes);
        done += (uint64_t)n;
    }
    return ZINF_OK;
}

static uint32_t token_at(const zinf_data *d, const unsigned char *raw, uint64_t i)
{
    if (d->width == 1)
        return raw[i];
    const unsigned char *p = raw + i * d->width; /* little endian */
    uint32_t token = p[0] | (uint32_t)p[1] << 8;
    return d->width == 2 ? token : token | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* Widens in place: the raw tokens are read into the end of their own row, and token i is written
 * at 4 i before the raw token i + 1, at (4 - width) n + width (i + 1) >= 4 (i + 1), is lost. */
static zinf_status read_row(const zinf_data *d, uint64_t first, uint64_t n, int32_t *ret_row,
                            zinf_error *err)
{
    unsigned char *raw = (unsigned char *)ret_row + (4 - d->width) * n;

    if (read_at(d, raw, n * d->width, d->header_bytes + first * d->width, err))
        return err->status;
    for (uint64_t i = 0; i < n; i++) {
        const uint32_t token = token_at(d, raw, i);
        if (token >= d->vocab)
            return zinf_fail(err, ZINF_BAD_INPUT, "data: token %" PRIu64 " of \"%s\" became %"
                             PRIu32 ", the vocabulary has %" PRIu64 ": the file changed while in "
                             "use", first + i, d->path, token, d->vocab);
        memcpy((unsigned char *)ret_row + 4 * i, &token, 4);
    }
    return ZINF_OK;
}

static zinf_status check_size(const zinf_data *d, zinf_error *err)
{
    struct stat st;

    if (fstat(d->fd, &st))
        return zinf_fail(err, ZINF_MACHINE, "data: size of \"%s\": %s", d->path, strerror(errno));
    if ((uint64_t)st.st_size < d->file_bytes)
        return zinf_fail(err, ZINF_MACHINE, "data: \"%s\" has %" PRIu64 " bytes, expected %" PRIu64
                         ": it shrank while in use", d->path, (uint64_t)st.st_size,
                         d->file_bytes);
    return ZINF_OK;
}

zinf_status zinf_data_window(const zinf_data *d, uint64_t first, int32_t *ret_tokens,
                             zinf_error *err)
{
    if (first >= d->n_tokens || d->sequence >= d->n_tokens - first)
        return zinf_fail(err, ZINF_WRONG_RESULT, "data: no window at token %" PRIu64 " of %" PRIu64,
                         first, d->n_tokens);
    if (check_size(d, err))
        return err->status;
    return read_row(d, first, d->sequence + 1, ret_tokens, err);
}

zinf_status zinf_data_batch(zinf_data *d, uint64_t position, uint64_t n, uint32_t rank,
                            uint32_t ranks, int32_t *ret_tokens, zinf_error *err)
{
    uint64_t last;

    if (rank >= ranks)
        return zinf_fail(err, ZINF_WRONG_RESULT, "data: rank %" PRIu32 " of %" PRIu32, rank, ranks);
    if (__builtin_mul_overflow(n, ranks, &last) || __builtin_add_overflow(position, last, &last))
        return zinf_fail(err, ZINF_BAD_INPUT, "data: position %" PRIu64 " and a batch of %"
                         PRIu32 " ranks exceed 64 bits", position, ranks);
    if (check_size(d, err))
        return err->status;
    for (uint64_t i = 0; i < n; i++) {
        const uint64_t global = position + i * ranks + rank;
        const uint64_t epoch = global / d->n_sequences, index = global % d->n_sequences;
        const uint64_t s = d->shuffle ? permute(d, epoch, index) : index;
        if (read_row(d, s * d->sequence, d->sequence + 1, ret_tokens + i * (d->sequence + 1), err))
            return err->status;
    }
    return ZINF_OK;
}

/* ---- opening ---- */

static zinf_status read_llmc_header(zinf_data *d, uint32_t magic, zinf_error *err)
{
    const uint32_t version = magic == LLMC_GPT2_MAGIC ? LLMC_GPT2_VERSION : LLMC_LLAMA3_VERSION;
    uint32_t header[3];

    d->format = "llm.c";
    d->width = magic == LLMC_GPT2_MAGIC ? 2 : 4;
    d->header_bytes = LLMC_HEADER_BYTES;
    if (d->file_bytes < LLMC_HEADER_BYTES)
        return zinf_fail(err, ZINF_BAD_INPUT, "data: \"%s\" has the magic of llm.c but %" PRIu64
                         " bytes; its header alone has %d: the file is truncated", d->path,
                         d->file_bytes, LLMC_HEADER_BYTES);
    if (read_at(d, header, sizeof header, 0, err))
        return err->status;
    if (header[1] != version)
        return zinf_fail(err, ZINF_BAD_INPUT, "data: \"%s\" has llm.c version %" PRIu32 "; magic %"
                         PRIu32 " is known in version %" PRIu32, d->path, header[1], magic,
                         version);
    const uint64_t expected = LLMC_HEADER_BYTES + (uint64_t)header[2] * d->width;
    if (header[2] > INT32_MAX || expected != d->file_bytes)
        return zinf_fail(err, ZINF_BAD_INPUT, "data: \"%s\" says %" PRIu32 " tokens, which take %"
                         PRIu64 " bytes, but has %" PRIu64 ": the file is truncated or damaged",
                         d->path, header[2], expected, d->file_bytes);
    return ZINF_OK;
}

static zinf_status find_format(zinf_data *d, zinf_error *err)
{
    const size_t n = strlen(d->path);
    char first[sizeof zinf_plan_magic] = "";
    uint32_t magic = 0;

    if (read_at(d, first, d->file_bytes < sizeof first ? d->file_bytes : sizeof first, 0, err))
        return err->status;
    if (!memcmp(first, zinf_plan_magic, sizeof first))
        return zinf_fail(err, ZINF_BAD_INPUT, "data: \"%s\" is a plan of zinf-plan, not tokens or "
                         "text", d->path);
    if (d->file_bytes >= sizeof magic)
        memcpy(&magic, first, sizeof magic);
    if (magic == LLMC_GPT2_MAGIC || magic == LLMC_LLAMA3_MAGIC)
        return read_llmc_header(d, magic, err);
    if (n >= 4 && !strcmp(d->path + n - 4, ".bin")) {
        d->format = "nanoGPT";
        d->width = 2;
        if (d->file_bytes % 2)
            return zinf_fail(err, ZINF_BAD_INPUT, "data: \"%s\" is read as nanoGPT uint16 tokens "
                             "(.bin without the magic of llm.c) but has an odd size of %" PRIu64
                             " bytes: truncated, or not a token file", d->path, d->file_bytes);
        return ZINF_OK;
    }
    d->format = "bytes";
    d->width = 1;
    if (d->vocab < 256)
        return zinf_fail(err, ZINF_BAD_INPUT, "data: \"%s\" is read as raw text, one token a byte, "
                         "which needs a vocabulary of 256; the model has %" PRIu64, d->path,
                         d->vocab);
    return ZINF_OK;
}

static zinf_status scan(const zinf_data *d, zinf_error *err)
{
    if (d->width == 1)
        return ZINF_OK; /* no byte is out of range */
    unsigned char *raw = malloc(SCAN_BYTES);
    if (!raw)
        return zinf_fail(err, ZINF_MACHINE, "data: out of memory");
    for (uint64_t at = 0; at < d->n_tokens;) {
        uint64_t n = d->n_tokens - at;
        if (n > SCAN_BYTES / d->width)
            n = SCAN_BYTES / d->width;
        if (read_at(d, raw, n * d->width, d->header_bytes + at * d->width, err))
            break;
        for (uint64_t i = 0; i < n; i++) {
            const uint32_t token = token_at(d, raw, i);
            if (token < d->vocab)
                continue;
            zinf_fail(err, ZINF_BAD_INPUT, "data: token %" PRIu64 " of \"%s\" (%s) is %" PRIu32
                      "; the model's vocabulary has %" PRIu64 ", ids 0 .. %" PRIu64
                      ": another tokenizer, or another format", at + i, d->path, d->format,
                      token, d->vocab, d->vocab - 1);
            goto out;
        }
        at += n;
    }
out:
    free(raw);
    return err->status;
}

static zinf_status open_file(zinf_data *d, zinf_error *err)
{
    struct stat st;

    d->fd = open(d->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (d->fd < 0 || fstat(d->fd, &st))
        return zinf_fail(err, ZINF_BAD_INPUT, "data: cannot open \"%s\": %s", d->path,
                         strerror(errno));
    if (!S_ISREG(st.st_mode))
        return zinf_fail(err, ZINF_BAD_INPUT, "data: \"%s\" is %s, not a file of tokens", d->path,
                         S_ISDIR(st.st_mode) ? "a directory" : "no regular file");
    d->file_bytes = (uint64_t)st.st_size;
    return find_format(d, err);
}

zinf_status zinf_data_open(const char *path, uint64_t vocab, uint64_t sequence, uint64_t seed,
                           bool shuffle, zinf_data **ret_data, zinf_error *err)
{
    if (!vocab || vocab > INT32_MAX || !sequence || sequence > INT32_MAX)
        return zinf_fail(err, ZINF_BAD_INPUT, "data: vocabulary %" PRIu64 " and sequence %" PRIu64
                         " must be in 1 .. 2147483647", vocab, sequence);
    zinf_data *d = calloc(1, sizeof *d);
    if (!d || !(d->path = strdup(path))) {
        free(d);
        return zinf_fail(err, ZINF_MACHINE, "data: out of memory");
    }
    d->fd = -1;
    d->vocab = vocab;
    d->sequence = sequence;
    d->seed = seed;
    d->shuffle = shuffle;
    if (open_file(d, err))
        goto out;
    d->n_tokens = (d->file_bytes - d->header_bytes) / d->width;
    d->n_sequences = d->n_tokens ? (d->n_tokens - 1) / sequence : 0;
    if (d->n_tokens > MOST_TOKENS) {
        zinf_fail(err, ZINF_BAD_INPUT, "data: \"%s\" (%s) has %" PRIu64 " tokens; at most %" PRIu64
                  " are read: no file of tokens is that long", path, d->format, d->n_tokens,
                  MOST_TOKENS);
        goto out;
    }
    if (!d->n_sequences) {
        zinf_fail(err, ZINF_BAD_INPUT, "data: \"%s\" (%s) has %" PRIu64 " tokens; one sequence of %"
                  PRIu64 " needs %" PRIu64, path, d->format, d->n_tokens, sequence, sequence + 1);
        goto out;
    }
    while (1ull << 2 * d->half_bits < d->n_sequences)
        d->half_bits++;
    if (scan(d, err))
        goto out;
    *ret_data = d;
    return ZINF_OK;
out:
    zinf_data_close(d);
    return err->status;
}

void zinf_data_close(zinf_data *d)
{
    if (!d)
        return;
    if (d->fd >= 0)
        close(d->fd);
    free(d->path);
    free(d);
}

int zinf_data_file(const zinf_data *d, uint64_t *ret_bytes)
{
    *ret_bytes = d->file_bytes;
    return d->fd;
}

uint64_t zinf_data_n_sequences(const zinf_data *d)
{
    return d->n_sequences;
}

uint64_t zinf_data_n_tokens(const zinf_data *d)
{
    return d->n_tokens;
}

const char *zinf_data_format(const zinf_data *d)
{
    return d->format;
}
