/* runtime/inputs.c - see inputs.h. The hash of a copy is a sum over its blocks, so that several
 * ranks can make it.
 */
#include "runtime/inputs.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

enum { BLOCK_BYTES = 1 << 18 };

/* ---- what is compared ---- */

static zinf_status data_file(void *context, uint32_t index, zinf_input_file *ret, zinf_error *err)
{
    (void)index;
    (void)err;
    ret->what = zinf_data_format(context);
    ret->fd = zinf_data_file(context, &ret->bytes);
    return ZINF_OK;
}

static zinf_status model_file(void *context, uint32_t index, zinf_input_file *ret, zinf_error *err)
{
    return zinf_hf_file(context, index, &ret->what, &ret->fd, &ret->bytes, err);
}

zinf_input zinf_input_data(const char *option, zinf_data *data)
{
    return (zinf_input){option, 1, data_file, data};
}

zinf_input zinf_input_model(zinf_hf_reader *reader)
{
    return (zinf_input){"--init", zinf_hf_n_files(reader), model_file, reader};
}

/* ---- who has the same ---- */

/* Numbers of each rank: where its files are, and what they are by size and name. */
typedef struct places {
    uint64_t *where, *shape; /* [n_ranks] */
} places;

/* This machine since it was started, or 0. Its name tells copies of a virtual machine apart. */
static uint64_t machine(void)
{
    char text[320] = "";
    const int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    const ssize_t n = fd < 0 ? -1 : read(fd, text, 64);

    if (fd >= 0)
        close(fd);
    if (n < 32 || gethostname(text + n, 255))
        return 0;
    return XXH64(text, (size_t)n + strlen(text + n), 0);
}

static zinf_status find_places(const zinf_ranks *ranks, const zinf_input *input, places *p,
                               zinf_error *err)
{
    const zinf_collective *c = ranks->collective;
    const uint64_t here = machine();
    uint64_t where = here ? here : XXH64(&c->rank, sizeof c->rank, 1), shape = input->n_files;

    for (uint32_t i = 0; i < input->n_files; i++) {
        zinf_input_file file;
        struct stat info;
        if (input->file(input->context, i, &file, err))
            return err->status;
        if (fstat(file.fd, &info))
            return zinf_fail(err, ZINF_MACHINE, "%s: a file's identity: %s", input->option,
                             strerror(errno));
        const uint64_t one[] = {where, info.st_dev, info.st_ino};
        const uint64_t looks[] = {shape, file.bytes, XXH64(file.what, strlen(file.what), 0)};
        where = XXH64(one, sizeof one, 0);
        shape = XXH64(looks, sizeof looks, 0);
    }
    p->where[c->rank] = where;
    p->shape[c->rank] = shape;
    return ZINF_OK;
}

static void free_places(places *p)
{
    free(p->where);
    free(p->shape);
}

/* To be freed, also after a failure. */
static zinf_status gather(zinf_ranks *ranks, const zinf_input *input, places *p, zinf_error *err)
{
    const zinf_collective *c = ranks->collective;

    p->where = calloc(c->n_ranks, sizeof *p->where);
    p->shape = calloc(c->n_ranks, sizeof *p->shape);
    if (!p->where || !p->shape)
        zinf_fail(err, ZINF_MACHINE, "out of memory to compare %" PRIu32 " ranks", c->n_ranks);
    else
        find_places(ranks, input, p, err);
    if (zinf_ranks_together(ranks, err) ||
        c->allgather(c, &p->where[c->rank], p->where, 1, ZINF_F64, err) ||
        c->allgather(c, &p->shape[c->rank], p->shape, 1, ZINF_F64, err))
        return err->status;
    return ZINF_OK;
}

/* Of the ranks that have the very same files as this one: its place among them, and how many. */
typedef struct share {
    uint32_t index, n;
} share;

static share share_of(const zinf_ranks *ranks, const places *p)
{
    const uint32_t rank = ranks->collective->rank;
    share mine = {0};

    for (uint32_t r = 0; r < ranks->collective->n_ranks; r++) {
        mine.index += r < rank && p->where[r] == p->where[rank];
        mine.n += p->where[r] == p->where[rank];
    }
    return mine;
}

/* ---- bytes ---- */

static zinf_status hash_block(const zinf_input *input, const zinf_input_file *file, uint32_t index,
                              uint64_t block, char *buffer, uint64_t *sum, zinf_error *err)
{
    const uint64_t at = block * BLOCK_BYTES, left = file->bytes - at;
    const uint64_t n = left < BLOCK_BYTES ? left : BLOCK_BYTES;
    uint64_t done = 0;

    while (done < n) {
        const ssize_t some = pread(file->fd, buffer + done, n - done, (off_t)(at + done));
        if (some < 0 && errno == EINTR)
            continue;
        if (some <= 0)
            return zinf_fail(err, ZINF_MACHINE, "%s: reading \"%.200s\" at offset %" PRIu64 ": %s",
                             input->option, file->what, at + done,
                             some ? strerror(errno) : "it shrank while in use");
        done += (uint64_t)some;
    }
    const uint64_t place[] = {index, block};
    *sum += XXH64(buffer, n, XXH64(place, sizeof place, 0));
    return ZINF_OK;
}

/* This rank's part of the copy that it has. */
static zinf_status hash_part(const zinf_input *input, share mine, uint64_t *ret_sum,
                             zinf_error *err)
{
    char *buffer = malloc(BLOCK_BYTES);
    uint64_t sum = 0;

    if (!buffer)
        return zinf_fail(err, ZINF_MACHINE, "out of memory to compare %s", input->option);
    for (uint32_t i = 0; i < input->n_files && !err->status; i++) {
        zinf_input_file file;
        if (input->file(input->context, i, &file, err))
            break;
        const uint64_t n = (file.bytes + BLOCK_BYTES - 1) / BLOCK_BYTES;
        const uint64_t some = n / mine.n, more = n % mine.n;
        const uint64_t first = mine.index * some + (mine.index < more ? mine.index : more);
        const uint64_t end = first + some + (mine.index < more);
        for (uint64_t block = first; block < end && !err->status; block++)
            hash_block(input, &file, i, block, buffer, &sum, err);
    }
    free(buffer);
    *ret_sum = sum;
    return err->status;
}

static zinf_status differ(zinf_ranks *ranks, const zinf_input *input, uint32_t rank,
                          const char *how, zinf_error *err)
{
    ranks->agreed = true;
    return zinf_fail(err, ZINF_BAD_INPUT, "rank %" PRIu32 " has another %s than rank 0: %s; give "
                     "every rank the same files, or copies of them", rank, input->option, how);
}

static uint64_t total_of(const zinf_ranks *ranks, const places *p, const uint64_t *sums,
                         uint32_t rank)
{
    uint64_t total = 0;

    for (uint32_t r = 0; r < ranks->collective->n_ranks; r++)
        total += p->where[r] == p->where[rank] ? sums[r] : 0;
    return total;
}

static zinf_status compare_bytes(zinf_ranks *ranks, const zinf_input *input, const places *p,
                                 zinf_error *err)
{
    const zinf_collective *c = ranks->collective;
    uint64_t *sums = calloc(c->n_ranks, sizeof *sums);

    if (sums)
        hash_part(input, share_of(ranks, p), &sums[c->rank], err);
    else
        zinf_fail(err, ZINF_MACHINE, "out of memory to compare %" PRIu32 " ranks", c->n_ranks);
    if (zinf_ranks_together(ranks, err) == ZINF_OK)
        c->allgather(c, &sums[c->rank], sums, 1, ZINF_F64, err);
    for (uint32_t r = 1; r < c->n_ranks && !err->status; r++)
        if (total_of(ranks, p, sums, r) != total_of(ranks, p, sums, 0))
            differ(ranks, input, r, "the bytes differ", err);
    free(sums);
    return err->status;
}

zinf_status zinf_inputs_compare(zinf_ranks *ranks, const zinf_input *input, zinf_error *err)
{
    const uint32_t n = ranks->collective->n_ranks;
    bool same = true;
    places p = {0};

    if (n > 1 && gather(ranks, input, &p, err) == ZINF_OK) {
        for (uint32_t r = 1; r < n && !err->status; r++) {
            same = same && p.where[r] == p.where[0];
            if (p.shape[r] != p.shape[0])
                differ(ranks, input, r, "names, sizes or formats of the files differ", err);
        }
        if (!same && !err->status)
            compare_bytes(ranks, input, &p, err);
    }
    free_places(&p);
    return err->status;
}
