/* runtime/plan_io.c - a plan as a file: a header, the fixed structures, then one array a section.
 *
 * Everything is little-endian and laid out as in memory (the assertions below pin it), so that
 * the same plan is always the same bytes. What the numbers may be is plan_validate.c's.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <assert.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "runtime/files.h"
#include "runtime/plan.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "plan files are little-endian"
#endif

/* Far above a plan of ten million instructions; a sparse file of terabytes is not read. */
#define MOST_FILE_BYTES ((uint64_t)1 << 33)

const char zinf_plan_magic[8] = {'Z', 'I', 'N', 'F', 'P', 'L', 'A', 'N'};

/* The arrays of a plan, in file order. */
#define SECTIONS(X)                                                                              \
    X(segments, 16) X(instrs, 72) X(operands, 56) X(waits, 8) X(tensors, 104) X(units, 192)       \
    X(parts, 32) X(items, 80) X(values, 4) X(strings, 1)

enum {
#define X(field, bytes) SECTION_##field,
    SECTIONS(X)
#undef X
    N_SECTIONS
};

#define X(field, bytes)                                                                          \
    static_assert(sizeof *((zinf_plan *)0)->field == (bytes), "layout of " #field " changed");
SECTIONS(X)
#undef X

static const struct {
    const char *name;
    size_t pointer, count; /* offsets in zinf_plan */
    uint64_t element_bytes;
} sections[N_SECTIONS] = {
#define X(field, bytes)                                                                          \
    {#field, offsetof(zinf_plan, field), offsetof(zinf_plan, n_##field), bytes},
    SECTIONS(X)
#undef X
};

typedef struct file_header {
    char magic[8];
    uint32_t version, n_sections;
    uint64_t hash; /* xxh64 of everything after the header */
    uint64_t file_bytes;
    uint32_t counts[N_SECTIONS + (N_SECTIONS & 1)];
} file_header;

/* The structures without arrays. */
typedef struct file_fixed {
    uint64_t counts_hash; /* xxh64 of the header's counts, so that the hash covers them */
    zinf_model_info model;
    zinf_job_info job;
    zinf_machine_info machine;
    zinf_decisions decisions;
    zinf_predicted predicted;
    zinf_program programs[ZINF_N_PROGRAMS];
} file_fixed;

static void **section_pointer(zinf_plan *plan, int i)
{
    return (void **)((char *)plan + sections[i].pointer);
}

static uint32_t *section_count(zinf_plan *plan, int i)
{
    return (uint32_t *)((char *)plan + sections[i].count);
}

static uint64_t padded(uint64_t bytes)
{
    return (bytes + 7) & ~(uint64_t)7;
}

/* Cannot overflow: 2^32 elements of at most 192 bytes, ten times. */
static uint64_t file_bytes(const file_header *header)
{
    uint64_t total = sizeof(file_header) + sizeof(file_fixed);

    for (int i = 0; i < N_SECTIONS; i++)
        total += padded(header->counts[i] * sections[i].element_bytes);
    return total;
}

static void fill_fixed(const zinf_plan *plan, const file_header *header, file_fixed *ret_fixed)
{
    memset(ret_fixed, 0, sizeof *ret_fixed);
    ret_fixed->counts_hash = XXH64(header->counts, sizeof header->counts, ZINF_PLAN_VERSION);
    ret_fixed->model = plan->model;
    ret_fixed->job = plan->job;
    ret_fixed->machine = plan->machine;
    memcpy(&ret_fixed->decisions, &plan->decisions, sizeof plan->decisions);
    /* The compiler's hole before io_block_bytes: the same plan must be the same bytes. */
    size_t hole = offsetof(zinf_decisions, ranks) + sizeof plan->decisions.ranks;
    memset((char *)&ret_fixed->decisions + hole, 0,
           offsetof(zinf_decisions, io_block_bytes) - hole);
    ret_fixed->predicted = plan->predicted;
    memcpy(ret_fixed->programs, plan->programs, sizeof plan->programs);
}

static zinf_status write_all(int fd, const void *data, uint64_t n, const char *path,
                             zinf_error *err)
{
    const char *at = data;

    while (n > 0) {
        ssize_t done = write(fd, at, n > (1u << 30) ? 1u << 30 : n);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return zinf_fail(err, ZINF_MACHINE, "\"%s\": cannot write: %s", path,
                             strerror(done < 0 ? errno : ENOSPC));
        at += done;
        n -= (uint64_t)done;
    }
    return ZINF_OK;
}

/* Where a plan comes from: an open file, or bytes in memory. */
typedef struct source {
    const char *path; /* for messages */
    int fd;           /* -1: bytes */
    const char *bytes;
    uint64_t size, at;
} source;

static zinf_status read_all(source *from, void *data, uint64_t n, zinf_error *err)
{
    char *to = data;

    if (from->fd < 0 && n <= from->size - from->at) {
        memcpy(to, from->bytes + from->at, n);
        from->at += n;
        return ZINF_OK;
    }
    while (n > 0) {
        ssize_t done = from->fd < 0 ? 0 : read(from->fd, to, n > (1u << 30) ? 1u << 30 : n);
        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0)
            return zinf_fail(err, ZINF_MACHINE, "\"%s\": cannot read: %s", from->path,
                             strerror(errno));
        if (done == 0)
            return zinf_fail(err, ZINF_BAD_INPUT, "\"%s\" ended while it was read; write the "
                             "plan again", from->path);
        to += done;
        n -= (uint64_t)done;
    }
    return ZINF_OK;
}

static void sync_directory_of(const char *path)
{
    char directory[PATH_MAX];
    const char *slash = strrchr(path, '/');

    snprintf(directory, sizeof directory, "%.*s", slash ? (int)(slash - path) + 1 : 1,
             slash ? path : ".");
    int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        (void)fsync(fd);
        close(fd);
    }
}

zinf_status zinf_plan_write(zinf_plan *plan, const char *path, zinf_error *err)
{
    static const char zeros[8];
    file_header header = {.version = ZINF_PLAN_VERSION, .n_sections = N_SECTIONS};
    file_fixed fixed;
    char target[PATH_MAX], temporary[PATH_MAX], suffix[48] = "";
    XXH64_state_t *hash = XXH64_createState();
    bool in_place = false;
    struct stat info;
    int fd = -1;

    memcpy(header.magic, zinf_plan_magic, sizeof zinf_plan_magic);
    for (int i = 0; i < N_SECTIONS; i++)
        header.counts[i] = *section_count(plan, i);
    header.file_bytes = file_bytes(&header);
    fill_fixed(plan, &header, &fixed);
    if (!hash) {
        zinf_fail(err, ZINF_MACHINE, "out of memory for the hash of plan \"%s\"", path);
        goto done;
    }
    XXH64_reset(hash, ZINF_PLAN_VERSION);
    XXH64_update(hash, &fixed, sizeof fixed);
    for (int i = 0; i < N_SECTIONS; i++) {
        uint64_t bytes = header.counts[i] * sections[i].element_bytes;
        if (bytes)
            XXH64_update(hash, *section_pointer(plan, i), bytes);
        XXH64_update(hash, zeros, padded(bytes) - bytes);
    }
    header.hash = XXH64_digest(hash);

    /* A device or a pipe is written to, never replaced by a file; nor is a link, but what it is a
     * link to. */
    in_place = !stat(path, &info) && !S_ISREG(info.st_mode);
    if (!in_place && !lstat(path, &info) && S_ISLNK(info.st_mode) && realpath(path, target))
        path = target;
    /* a file that is there under the temporary name is someone else's */
    for (int i = 0; i == 0 || (fd < 0 && errno == EEXIST && i < 1000); i++) {
        if (!in_place)
            snprintf(suffix, sizeof suffix, ".%ld-%d.tmp", (long)getpid(), i);
        if (snprintf(temporary, sizeof temporary, "%s%s", path, suffix) >= (int)sizeof temporary) {
            zinf_fail(err, ZINF_BAD_INPUT, "the path \"%.200s...\" is longer than %d bytes", path,
                      PATH_MAX);
            goto done;
        }
        fd = open(temporary, O_WRONLY | O_CLOEXEC |
                                 (in_place ? O_NONBLOCK : O_CREAT | O_EXCL), 0644);
    }
    if (fd < 0 || (in_place && fcntl(fd, F_SETFL, 0))) { /* from now on it waits */
        zinf_fail(err, zinf_files_blame(errno), "cannot create \"%s\": %s", temporary,
                  errno == ENXIO ? "it is a pipe that nobody reads" : strerror(errno));
        goto done;
    }
    if (write_all(fd, &header, sizeof header, temporary, err) ||
        write_all(fd, &fixed, sizeof fixed, temporary, err))
        goto done;
    for (int i = 0; i < N_SECTIONS; i++) {
        uint64_t bytes = header.counts[i] * sections[i].element_bytes;
        if (write_all(fd, *section_pointer(plan, i), bytes, temporary, err) ||
            write_all(fd, zeros, padded(bytes) - bytes, temporary, err))
            goto done;
    }
    if (fsync(fd) && errno != EINVAL) {
        zinf_fail(err, ZINF_MACHINE, "\"%s\": cannot sync: %s", temporary, strerror(errno));
        goto done;
    }
    if (!in_place && rename(temporary, path)) {
        zinf_fail(err, ZINF_MACHINE, "cannot rename \"%s\" to \"%s\": %s", temporary, path,
                  strerror(errno));
        goto done;
    }
    if (!in_place)
        sync_directory_of(path);
    plan->hash = header.hash;
done:
    if (fd >= 0)
        close(fd);
    if (fd >= 0 && err->status && !in_place)
        unlink(temporary);
    XXH64_freeState(hash);
    return err->status;
}

static zinf_status check_header(const file_header *header, uint64_t size, const char *path,
                                zinf_error *err)
{
    if (memcmp(header->magic, zinf_plan_magic, sizeof zinf_plan_magic))
        return zinf_fail(err, ZINF_BAD_INPUT, "\"%s\" is not a zinf plan (its first bytes are "
                         "not \"ZINFPLAN\"); make one with zinf-plan -o", path);
    if (header->version != ZINF_PLAN_VERSION)
        return zinf_fail(err, ZINF_BAD_INPUT, "\"%s\" is a plan of version %" PRIu32 ", this "
                         "program reads version %d; plan again with the zinf-plan beside it",
                         path, header->version, ZINF_PLAN_VERSION);
    if (header->n_sections != N_SECTIONS || header->file_bytes != size ||
        file_bytes(header) != size)
        return zinf_fail(err, ZINF_BAD_INPUT, "\"%s\" has %" PRIu64 " bytes, its header "
                         "describes %" PRIu64 ": it is truncated or damaged; write the plan "
                         "again", path, size, file_bytes(header));
    for (size_t i = N_SECTIONS; i < sizeof header->counts / sizeof *header->counts; i++)
        if (header->counts[i])
            return zinf_fail(err, ZINF_BAD_INPUT, "\"%s\" is damaged: its header is not as "
                             "written; write the plan again", path);
    return ZINF_OK;
}

static zinf_status load(source *from, zinf_plan *ret_plan, zinf_error *err)
{
    const char *path = from->path;
    zinf_plan plan = {0};
    file_header header;
    file_fixed fixed;
    XXH64_state_t *hash = XXH64_createState();

    if (!hash) {
        zinf_fail(err, ZINF_MACHINE, "out of memory for the hash of plan \"%s\"", path);
        goto done;
    }
    if (from->size < sizeof header + sizeof fixed || from->size > MOST_FILE_BYTES) {
        zinf_fail(err, ZINF_BAD_INPUT, "\"%s\" is not a zinf plan: %" PRIu64 " bytes, a plan "
                  "has from %zu to %" PRIu64, path, from->size, sizeof header + sizeof fixed,
                  MOST_FILE_BYTES);
        goto done;
    }
    if (read_all(from, &header, sizeof header, err) ||
        check_header(&header, from->size, path, err) ||
        read_all(from, &fixed, sizeof fixed, err))
        goto done;
    XXH64_reset(hash, ZINF_PLAN_VERSION);
    XXH64_update(hash, &fixed, sizeof fixed);
    for (int i = 0; i < N_SECTIONS; i++) {
        uint64_t bytes = padded(header.counts[i] * sections[i].element_bytes);
        if (!bytes)
            continue;
        void *data = malloc(bytes);
        if (!data) {
            zinf_fail(err, ZINF_MACHINE, "out of memory: %" PRIu64 " bytes for the %s of plan "
                      "\"%s\"", bytes, sections[i].name, path);
            goto done;
        }
        *section_pointer(&plan, i) = data;
        *section_count(&plan, i) = header.counts[i];
        if (read_all(from, data, bytes, err))
            goto done;
        XXH64_update(hash, data, bytes);
    }
    plan.hash = XXH64_digest(hash);
    if (plan.hash != header.hash ||
        fixed.counts_hash != XXH64(header.counts, sizeof header.counts, ZINF_PLAN_VERSION)) {
        zinf_fail(err, ZINF_BAD_INPUT, "\"%s\" is damaged: its checksum is %016" PRIx64
                  ", written was %016" PRIx64 "; write the plan again", path, plan.hash,
                  header.hash);
        goto done;
    }
    plan.model = fixed.model;
    plan.job = fixed.job;
    plan.machine = fixed.machine;
    memcpy(&plan.decisions, &fixed.decisions, sizeof plan.decisions);
    plan.predicted = fixed.predicted;
    memcpy(plan.programs, fixed.programs, sizeof plan.programs);
    if (zinf_plan_validate(&plan, err))
        goto done;
    *ret_plan = plan;
    memset(&plan, 0, sizeof plan);
done:
    XXH64_freeState(hash);
    zinf_plan_free(&plan);
    return err->status;
}

zinf_status zinf_plan_read(const char *path, zinf_plan *ret_plan, zinf_error *err)
{
    source from = {.path = path, .fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
    struct stat info;

    if (from.fd < 0 || fstat(from.fd, &info)) {
        zinf_fail(err, ZINF_BAD_INPUT, "cannot open plan \"%s\": %s", path, strerror(errno));
    } else if (!S_ISREG(info.st_mode)) {
        zinf_fail(err, ZINF_BAD_INPUT, "plan \"%s\" is not a regular file", path);
    } else {
        from.size = (uint64_t)info.st_size;
        load(&from, ret_plan, err);
    }
    if (from.fd >= 0)
        close(from.fd);
    return err->status;
}

zinf_status zinf_plan_parse(const char *name, const void *bytes, size_t n, zinf_plan *ret_plan,
                            zinf_error *err)
{
    source from = {.path = name, .fd = -1, .bytes = bytes, .size = n};

    return load(&from, ret_plan, err);
}

void zinf_plan_free(zinf_plan *plan)
{
    for (int i = 0; i < N_SECTIONS; i++) {
        free(*section_pointer(plan, i));
        *section_pointer(plan, i) = NULL;
        *section_count(plan, i) = 0;
    }
}
