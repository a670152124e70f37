/* tests/runtime/plan_io.c - plan files: same bytes out, hostile bytes refused. */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "tests/check.h"
#include "tests/runtime/builder.h"

static char directory[256], path[300];

static size_t slurp(const char *name, unsigned char **ret_bytes)
{
    FILE *in = fopen(name, "rb");

    CHECK(in);
    fseek(in, 0, SEEK_END);
    const size_t n = (size_t)ftell(in);
    rewind(in);
    *ret_bytes = malloc(n);
    CHECK(fread(*ret_bytes, 1, n, in) == n);
    fclose(in);
    return n;
}

/* A file in memory, changed a byte at a time: thousands of reads must not wait for a disk. */
static int memory_file(const unsigned char *bytes, size_t n, char ret_name[64])
{
    const int fd = memfd_create("plan", MFD_CLOEXEC);

    CHECK(fd >= 0 && pwrite(fd, bytes, n, 0) == (ssize_t)n);
    snprintf(ret_name, 64, "/proc/self/fd/%d", fd);
    return fd;
}

static void a_plan_written_and_read_is_the_same_bytes(void)
{
    zinf_plan plan = builder_pipe(), again = {0};
    zinf_error err = {0};
    unsigned char *first, *second;

    CHECK_MESSAGE(zinf_plan_write(&plan, path, &err) == ZINF_OK, "%s", err.text);
    const size_t n = slurp(path, &first);
    CHECK_MESSAGE(zinf_plan_read(path, &again, &err) == ZINF_OK, "%s", err.text);
    CHECK(again.hash == plan.hash && again.hash != 0);
    CHECK(zinf_plan_write(&again, path, &err) == ZINF_OK);
    CHECK(slurp(path, &second) == n && memcmp(first, second, n) == 0);
    free(first);
    free(second);
    zinf_plan_free(&plan);
    zinf_plan_free(&again);
}

static void every_flipped_byte_is_refused(void)
{
    zinf_plan plan = builder_pipe();
    zinf_error err = {0};
    unsigned char *bytes;
    char name[64];

    CHECK(zinf_plan_write(&plan, path, &err) == ZINF_OK);
    const size_t n = slurp(path, &bytes);
    const int fd = memory_file(bytes, n, name);
    for (size_t i = 0; i < n; i++) {
        zinf_plan read = {0};
        const unsigned char flipped = bytes[i] ^ 0x41;
        CHECK(pwrite(fd, &flipped, 1, (off_t)i) == 1);
        memset(&err, 0, sizeof err);
        CHECK_MESSAGE(zinf_plan_read(name, &read, &err) != ZINF_OK, "byte %zu", i);
        CHECK(read.instrs == NULL);
        CHECK(pwrite(fd, &bytes[i], 1, (off_t)i) == 1);
    }
    for (size_t i = n; i-- > 0;) {
        zinf_plan read = {0};
        CHECK(ftruncate(fd, (off_t)i) == 0);
        memset(&err, 0, sizeof err);
        CHECK(zinf_plan_read(name, &read, &err) != ZINF_OK);
    }
    close(fd);
    free(bytes);
    zinf_plan_free(&plan);
}

/* The checksum is no protection from malice: with it right again, validation stands alone. */
static void a_hostile_plan_never_breaks_the_reader(void)
{
    enum { HEADER = 72, HASH_AT = 16 };
    static const unsigned char masks[] = {0x01, 0x80, 0xff};
    zinf_plan plan = builder_pipe();
    zinf_error err = {0};
    unsigned char *bytes;
    char name[64];
    size_t refused = 0;

    CHECK(zinf_plan_write(&plan, path, &err) == ZINF_OK);
    const size_t n = slurp(path, &bytes);
    CHECK(XXH64(bytes + HEADER, n - HEADER, ZINF_PLAN_VERSION) == plan.hash);
    const int fd = memory_file(bytes, n, name);
    for (size_t i = HEADER; i < n; i++)
        for (size_t k = 0; k < sizeof masks; k++) {
            zinf_plan read = {0};
            bytes[i] ^= masks[k];
            const uint64_t hash = XXH64(bytes + HEADER, n - HEADER, ZINF_PLAN_VERSION);
            CHECK(pwrite(fd, &hash, sizeof hash, HASH_AT) == sizeof hash);
            CHECK(pwrite(fd, &bytes[i], 1, (off_t)i) == 1);
            bytes[i] ^= masks[k];
            memset(&err, 0, sizeof err);
            if (zinf_plan_read(name, &read, &err) != ZINF_OK) {
                CHECK(err.text[0] && read.instrs == NULL);
                refused++;
            }
            zinf_plan_free(&read);
            CHECK(pwrite(fd, &bytes[i], 1, (off_t)i) == 1);
        }
    close(fd);
    CHECK(refused > n / 4);
    free(bytes);
    zinf_plan_free(&plan);
}

/* ---- one rule each: a change to a good plan, and a word of the refusal ---- */

static void out_of_arena(zinf_plan *p) { p->operands[4].offset = (1 << 20) - 8 * 4096 + 4096; }
static void huge_stride(zinf_plan *p) { p->operands[4].stride = UINT64_MAX / 4 - 4095; }
static void wrong_bytes(zinf_plan *p) { p->operands[3].bytes += 4096; }
static void unaligned(zinf_plan *p) { p->operands[4].offset = 512; }
static void wrong_tier(zinf_plan *p) { p->operands[4].tier = ZINF_TIER_DEVICE; }
static void wrong_dtype(zinf_plan *p) { p->operands[0].dtype = ZINF_I32; }
static void odd_shape(zinf_plan *p)
{
    p->operands[1].cols = p->operands[1].ld = 100;
    p->operands[1].bytes = 400;
}
static void wrong_queue(zinf_plan *p) { p->instrs[0].queue = ZINF_QUEUE_COMPUTE; }
static void no_opcode(zinf_plan *p) { p->instrs[0].opcode = ZINF_N_OPCODES; }
static void missing_operand(zinf_plan *p) { p->instrs[0].n_operands = 2; }
static void absent_operand(zinf_plan *p) { p->operands[0].bytes = 0; }
static void no_unit(zinf_plan *p) { p->instrs[0].unit = ZINF_NONE; }
static void later_wait(zinf_plan *p) { p->waits[3].instr = 6; }
static void own_queue(zinf_plan *p) { p->waits[3].instr = p->waits[2].instr; }
static void far_wait(zinf_plan *p) { p->waits[0].distance = 1; }
static void other_program(zinf_plan *p) { p->waits[1].instr = 0; }
static void endless_loop(zinf_plan *p) { p->segments[1].count = 2000000000; }
static void gap(zinf_plan *p) { p->segments[1].first_instr = 2; }
static void shared(zinf_plan *p) { p->programs[ZINF_PROGRAM_EVAL] = p->programs[0]; }
static void uncovered(zinf_plan *p) { p->parts[0].first_row = 1; p->parts[0].n_rows = 7; }
static void beyond_tensor(zinf_plan *p) { p->parts[0].n_rows = UINT64_MAX; }
static void open_string(zinf_plan *p) { p->strings[p->n_strings - 1] = 'x'; }
static void open_name(zinf_plan *p) { memset(p->units[0].name, 'x', ZINF_NAME_BYTES); }
static void open_tensor(zinf_plan *p) { memset(p->tensors[0].name, 'x', ZINF_NAME_BYTES); }
static void open_cluster(zinf_plan *p)
{
    memset(p->machine.cluster, 'x', sizeof p->machine.cluster);
}
static void colored_backend(zinf_plan *p) { strcpy(p->machine.backend, "\033[31m"); }
static void colored_model(zinf_plan *p) { strcpy(p->model.name, "\033[31m"); }
static void colored_by_c1(zinf_plan *p) { strcpy(p->model.name, "a\xc2\x9b" "31m"); }
static void colored_by_byte(zinf_plan *p) { strcpy(p->tensors[0].name, "a\x9b"); }
static void colored_tensor(zinf_plan *p) { strcpy(p->tensors[0].name, "a\x7f"); }
static void colored_unit(zinf_plan *p) { strcpy(p->units[0].name, "a\nb"); }
static void colored_string(zinf_plan *p) { p->strings[p->n_strings - 2] = '\033'; }
static void early_with_clip(zinf_plan *p) { p->decisions.optimizer_time = ZINF_IN_BACKWARD; }
static void nan_cost(zinf_plan *p) { p->instrs[0].cost_ns = 0.0 / 0.0; }
static void huge_lr(zinf_plan *p) { p->job.lr = 1e308; }
static void beta_of_1(zinf_plan *p) { p->job.beta2 = 1; }
static void no_ranks(zinf_plan *p) { p->decisions.ranks = 0; }
static void region_outside(zinf_plan *p)
{
    p->units[0].param = (zinf_region){(uint64_t)-4096, 1 << 16, ZINF_TIER_HOST, ZINF_NONE};
}

static void tier_of_class(zinf_plan *p) { p->decisions.tier[ZINF_CLASS_GRAD] = 3; }
static void endless_time(zinf_plan *p) { p->predicted.queue_busy_s[4] = 1e308 * 10; }
static void huge_arena(zinf_plan *p) { p->machine.arena_bytes[3] = (uint64_t)1 << 57; }
static void owned_by_none(zinf_plan *p) { p->machine.owned_bytes[1] = 4096; }
static void no_depth(zinf_plan *p) { p->decisions.io_depth = 0; }
static void odd_block(zinf_plan *p) { p->decisions.io_block_bytes = 4097; }
static void parts_overlap(zinf_plan *p) { p->parts[0].at = 1; }
static void odd_arrays(zinf_plan *p) { p->units[0].array_stride = 2; }
static void owner_of_one(zinf_plan *p) { p->units[0].owner = 0; }
static void half_a_shard(zinf_plan *p) { p->units[0].shard_elems /= 2; }
static void no_rows(zinf_plan *p) { p->tensors[0].rows = 0; }
static void odd_stack(zinf_plan *p) { p->tensors[0].stack_row = 1; }
static void spare_part(zinf_plan *p) { p->units[0].n_parts = 0; }
static void no_such_value(zinf_plan *p) { p->operands[0].value = p->n_values; }
static void no_such_tier(zinf_plan *p) { p->operands[0].tier = ZINF_N_TIERS; }
static void scalar_of_floats(zinf_plan *p) { p->operands[0].tier = 3; }
static void no_such_flag(zinf_plan *p) { p->instrs[0].flags = 2; }
static void no_such_name(zinf_plan *p) { p->instrs[0].name = p->n_strings; }
static void spare_instr(zinf_plan *p) { p->n_segments--; }
static void waits_nowhere(zinf_plan *p) { p->instrs[1].wait0 = p->n_waits + 1; }
static void next_tensor(zinf_plan *p) { p->parts[0].tensor = p->n_tensors; }

static void each_broken_rule_is_named(void)
{
    static const struct {
        const char *name;
        void (*change)(zinf_plan *plan);
        const char *word;
    } cases[] = {
        {"out_of_arena", out_of_arena, "ends beyond the nvme arena"},
        {"huge_stride", huge_stride, "ends beyond"},
        {"wrong_bytes", wrong_bytes, "are not"},
        {"unaligned", unaligned, "multiples of 4096"},
        {"wrong_tier", wrong_tier, "does not reach"},
        {"wrong_dtype", wrong_dtype, "element type"},
        {"odd_shape", odd_shape, "does not agree"},
        {"wrong_queue", wrong_queue, "may not run on queue"},
        {"no_opcode", no_opcode, "opcode"},
        {"missing_operand", missing_operand, "it takes 3"},
        {"absent_operand", absent_operand, "absent"},
        {"no_unit", no_unit, "serves no unit"},
        {"later_wait", later_wait, "not earlier"},
        {"own_queue", own_queue, "own queue"},
        {"far_wait", far_wait, "distance"},
        {"other_program", other_program, "not an earlier one of its program"},
        {"endless_loop", endless_loop, "segment"},
        {"gap", gap, "follow its predecessor"},
        {"shared", shared, "share a segment"},
        {"uncovered", uncovered, "row 0 of tensor"},
        {"beyond_tensor", beyond_tensor, "rows beyond tensor"},
        {"open_string", open_string, "NUL"},
        {"open_name", open_name, "does not end"},
        {"open_tensor", open_tensor, "the name of tensor 0 does not end"},
        {"open_cluster", open_cluster, "a name does not end"},
        {"colored_backend", colored_backend, "a name does not end or has control characters"},
        {"colored_model", colored_model, "a name does not end or has control characters"},
        {"colored_by_c1", colored_by_c1, "a name does not end or has control characters"},
        {"colored_by_byte", colored_by_byte, "the name of tensor 0 does not end or has control"},
        {"colored_tensor", colored_tensor, "the name of tensor 0 does not end or has control"},
        {"colored_unit", colored_unit, "the name of unit 0 does not end or has control"},
        {"colored_string", colored_string, "the strings have control characters"},
        {"early_with_clip", early_with_clip, "no unit may be updated before the norm"},
        {"nan_cost", nan_cost, "costs"},
        {"huge_lr", huge_lr, "job.lr is 1e+308, it must be a number from 0 to 10"},
        {"beta_of_1", beta_of_1, "job.beta2 is 1"},
        {"no_ranks", no_ranks, "ranks"},
        {"region_outside", region_outside, "ends beyond the host arena"},
        {"tier_of_class", tier_of_class, "the tier of class grad is 3"},
        {"endless_time", endless_time, "predicted time of queue read"},
        {"huge_arena", huge_arena, "the scalar arena has"},
        {"owned_by_none", owned_by_none, "are said to be what each of 1 ranks owns"},
        {"no_depth", no_depth, "io_depth 0"},
        {"odd_block", odd_block, "io_block_bytes 4097"},
        {"parts_overlap", parts_overlap, "overlaps its neighbour or the end"},
        {"odd_arrays", odd_arrays, "arrays 2 bytes apart"},
        {"owner_of_one", owner_of_one, "it belongs to rank 0"},
        {"half_a_shard", half_a_shard, "shards of"},
        {"no_rows", no_rows, "is [0]["},
        {"odd_stack", odd_stack, "is said to begin at row 1 of a stack"},
        {"spare_part", spare_part, "belong to no unit"},
        {"no_such_value", no_such_value, "operand 0 is value"},
        {"no_such_tier", no_such_tier, "operand 0 has tier 4"},
        {"scalar_of_floats", scalar_of_floats, "scalars are F64"},
        {"no_such_flag", no_such_flag, "has flags 2"},
        {"no_such_name", no_such_name, "is named by string"},
        {"spare_instr", spare_instr, "belong to no segment"},
        {"waits_nowhere", waits_nowhere, "has waits"},
        {"next_tensor", next_tensor, "tensor 1 of 1"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        zinf_plan plan = builder_pipe();
        zinf_error err = {0};
        CHECK_MESSAGE(zinf_plan_validate(&plan, &err) == ZINF_OK, "%s", err.text);
        cases[i].change(&plan);
        CHECK_MESSAGE(zinf_plan_validate(&plan, &err) == ZINF_DOES_NOT_FIT, "%s accepted",
                      cases[i].name);
        CHECK_MESSAGE(strstr(err.text, cases[i].word), "%s: %s", cases[i].name, err.text);
        zinf_plan_free(&plan);
    }
}

static void a_pipe_is_written_to_and_never_replaced(void)
{
    char pipe_path[300];
    static char bytes[1 << 20];
    struct stat info;
    zinf_plan plan = builder_pipe();
    zinf_error err = {0};

    snprintf(pipe_path, sizeof pipe_path, "%s/pipe", directory);
    CHECK(mkfifo(pipe_path, 0600) == 0);
    const int reader = open(pipe_path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
    CHECK(reader >= 0 && fcntl(reader, F_SETPIPE_SZ, sizeof bytes) > 0);
    const zinf_status status = zinf_plan_write(&plan, pipe_path, &err);
    const ssize_t n = read(reader, bytes, sizeof bytes);
    const bool is_pipe = !lstat(pipe_path, &info) && S_ISFIFO(info.st_mode);
    close(reader);
    CHECK_MESSAGE(status == ZINF_OK && is_pipe, "%s", err.text);
    alarm(60); /* one that nobody reads is not waited for */
    CHECK(zinf_plan_write(&plan, pipe_path, &err) == ZINF_MACHINE);
    CHECK_MESSAGE(strstr(err.text, "nobody reads"), "%s", err.text);
    alarm(0);
    unlink(pipe_path);
    zinf_plan_free(&plan);
    CHECK(n > 8 && !memcmp(bytes, "ZINFPLAN", 8));
}

static void a_link_stays_and_its_file_is_replaced(void)
{
    char link_path[300], file_path[300];
    struct stat info;
    zinf_plan plan = builder_pipe(), again = {0};
    zinf_error err = {0};

    snprintf(link_path, sizeof link_path, "%s/link", directory);
    snprintf(file_path, sizeof file_path, "%s/target", directory);
    FILE *file = fopen(file_path, "w");
    CHECK(file && !fclose(file) && !symlink("target", link_path));
    CHECK_MESSAGE(!zinf_plan_write(&plan, link_path, &err), "%s", err.text);
    CHECK(!lstat(link_path, &info) && S_ISLNK(info.st_mode));
    CHECK_MESSAGE(!zinf_plan_read(file_path, &again, &err), "%s", err.text);
    unlink(link_path);
    unlink(file_path);
    zinf_plan_free(&plan);
    zinf_plan_free(&again);
}

static void a_file_under_the_temporary_name_is_left_alone(void)
{
    char foreign[400];
    unsigned char *bytes;
    zinf_plan plan = builder_pipe(), again = {0};
    zinf_error err = {0};

    snprintf(foreign, sizeof foreign, "%s.%ld-0.tmp", path, (long)getpid());
    FILE *file = fopen(foreign, "w");
    CHECK(file && fputs("mine", file) >= 0 && !fclose(file));
    CHECK_MESSAGE(!zinf_plan_write(&plan, path, &err), "%s", err.text);
    CHECK_MESSAGE(!zinf_plan_read(path, &again, &err), "%s", err.text);
    CHECK(slurp(foreign, &bytes) == 4 && !memcmp(bytes, "mine", 4));
    free(bytes);
    CHECK(!unlink(foreign));
    snprintf(foreign, sizeof foreign, "%s.%ld-1.tmp", path, (long)getpid());
    CHECK(access(foreign, F_OK));
    zinf_plan_free(&plan);
    zinf_plan_free(&again);
}

int main(void)
{
    const char *base = getenv("TMPDIR");

    snprintf(directory, sizeof directory, "%s/zinf-plan-XXXXXX", base ? base : "/tmp");
    if (!mkdtemp(directory))
        return 1;
    snprintf(path, sizeof path, "%s/plan", directory);
    RUN(a_plan_written_and_read_is_the_same_bytes);
    RUN(every_flipped_byte_is_refused);
    RUN(a_hostile_plan_never_breaks_the_reader);
    RUN(each_broken_rule_is_named);
    RUN(a_pipe_is_written_to_and_never_replaced);
    RUN(a_link_stays_and_its_file_is_replaced);
    RUN(a_file_under_the_temporary_name_is_left_alone);
    unlink(path);
    rmdir(directory);
    return check_finish();
}
