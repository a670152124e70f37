/* tests/fuzz/hostile.c - plan files made to attack: each is refused, or accepted if it is only
 * large, within a second of processor time and 512 MiB of address space, in a process of its own.
 * Not sanitized: a sanitizer's address space has no limit. Also one hostile token file.
 */
#include <errno.h>
#include <malloc.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/checker.h"
#include "runtime/data.h"
#include "runtime/timeline.h"
#include "tests/check.h"
#include "tests/checker/mini.h"
#include "tests/checker/restate.h"
#include "tests/fuzz/plan_file.h"
#include "tests/fuzz/scratch.h"

#define MOST_MEMORY ((rlim_t)512 << 20)
enum { MOST_SECONDS = 1, WALL_SECONDS = 60 };

/* ---- a process with limits ---- */

static zinf_status open_plan(const char *path, zinf_error *err)
{
    zinf_plan plan;

    if (zinf_plan_read(path, &plan, err) || zinf_plan_check(&plan, err))
        return err->status;
    for (unsigned p = 0; p < ZINF_N_PROGRAMS; p++) {
        zinf_timeline timeline;
        if (zinf_timeline_run(&plan, (zinf_program_kind)p, &timeline, err))
            return err->status;
        zinf_timeline_free(&timeline);
    }
    zinf_plan_free(&plan);
    return ZINF_OK;
}

static zinf_status open_data(const char *path, zinf_error *err)
{
    zinf_data *data = NULL;
    int32_t tokens[2];

    if (zinf_data_open(path, 256, 1, 7, true, &data, err) == ZINF_OK)
        zinf_data_batch(data, 5, 1, 0, 1, tokens, err);
    zinf_data_close(data);
    return err->status;
}

/* Runs it and sees what it says: a status as exit code, and that much of the text. Returns the
 * memory it took, in bytes. */
static uint64_t judge(zinf_status (*open_file)(const char *, zinf_error *), const char *path,
                  zinf_status expected, const char *text)
{
    struct rusage used;
    char found[1000] = "";
    int status, ends[2];

    CHECK(pipe(ends) == 0);
    fflush(stdout);
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        const struct rlimit memory = {MOST_MEMORY, MOST_MEMORY}, none = {0, 0};
        zinf_error err = {0};
        setrlimit(RLIMIT_AS, &memory);
        setrlimit(RLIMIT_CORE, &none);
        mallopt(M_MMAP_THRESHOLD, 128 << 10); /* as zinf-run: what is freed goes back */
        alarm(WALL_SECONDS);
        open_file(path, &err);
        if (write(ends[1], err.text, strlen(err.text)) < 0)
            _exit(99);
        _exit((int)err.status);
    }
    close(ends[1]);
    if (read(ends[0], found, sizeof found - 1) < 0)
        found[0] = 0;
    close(ends[0]);
    CHECK(wait4(child, &status, 0, &used) == child);
    const double seconds = (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
                           1e-6 * (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
    printf("# %.3f s, %ld MiB: %.150s\n", seconds, used.ru_maxrss >> 10, found);
    CHECK_MESSAGE(WIFEXITED(status), "ended by signal %d", WTERMSIG(status));
    CHECK_MESSAGE(WEXITSTATUS(status) == (int)expected, "status %d, expected %d: %s",
                  WEXITSTATUS(status), (int)expected, found);
    CHECK_MESSAGE(strstr(found, text), "\"%s\" is not in: %s", text, found);
    CHECK_MESSAGE(seconds < MOST_SECONDS, "%.3f s", seconds);
    return (uint64_t)used.ru_maxrss << 10;
}

static uint64_t judge_plan(zinf_plan *plan, zinf_status expected, const char *text)
{
    zinf_error err = {0};
    const char *path = scratch_path("plan");

    CHECK_MESSAGE(zinf_plan_write(plan, path, &err) == ZINF_OK, "%s", err.text);
    zinf_plan_free(plan);
    return judge(open_plan, path, expected, text);
}

/* ---- good plans with one wrong number ---- */

static zinf_plan good(void)
{
    const mini_options options = {ZINF_TIER_NVME, ZINF_TIER_HOST, ZINF_TIER_NVME, false, 3};

    return mini_plan(&options);
}

static void the_plan_itself_is_accepted(void)
{
    zinf_plan plan = good();
    judge_plan(&plan, ZINF_OK, "");
}

static void an_offset_that_overflows_is_refused(void)
{
    for (uint64_t least = 1; least; least <<= 9) {
        zinf_plan plan = good();
        plan.operands[plan.n_operands / 2].offset = 0 - least;
        judge_plan(&plan, ZINF_DOES_NOT_FIT, "ends beyond");
    }
}

static void sizes_of_2_to_the_63_are_refused(void)
{
    zinf_plan plan = good();
    zinf_operand *o = &plan.operands[0];

    o->bytes = o->rows = o->cols = o->ld = 1ull << 63;
    judge_plan(&plan, ZINF_DOES_NOT_FIT, "are not");
    plan = good();
    plan.tensors[0].rows = 1ull << 63;
    judge_plan(&plan, ZINF_DOES_NOT_FIT, "tensor");
    plan = good();
    plan.units[0].n_elems = 1ull << 63;
    judge_plan(&plan, ZINF_DOES_NOT_FIT, "elements");
    plan = good();
    plan.machine.arena_bytes[ZINF_TIER_HOST] = 1ull << 63;
    judge_plan(&plan, ZINF_DOES_NOT_FIT, "arena");
    plan = good();
    plan.machine.overhead_bytes[ZINF_TIER_HOST] = 0 - 1ull;
    judge_plan(&plan, ZINF_DOES_NOT_FIT, "capacity");
}

static void a_loop_of_10_to_the_18_is_refused(void)
{
    zinf_plan plan = good();

    plan.segments[plan.n_segments - 1].count = 1000000000000000000u;
    judge_plan(&plan, ZINF_DOES_NOT_FIT, "1000000000000000000 times");
}

static void counts_that_do_not_match_the_file_are_refused(void)
{
    static const uint32_t wrong[] = {0, 1, UINT32_MAX / 2, UINT32_MAX};
    static uint8_t bytes[1 << 20], forged[1 << 20];
    zinf_plan plan = good();
    zinf_error err = {0};
    const char *path = scratch_path("counts");

    CHECK(zinf_plan_write(&plan, path, &err) == ZINF_OK);
    zinf_plan_free(&plan);
    FILE *in = fopen(path, "rb");
    CHECK(in);
    const size_t n = fread(bytes, 1, sizeof bytes, in);
    fclose(in);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        for (int section = 0; section < PLAN_SECTIONS; section += 3) {
            memcpy(forged, bytes, n);
            memcpy(forged + offsetof(plan_header, counts) + 4 * (size_t)section, &wrong[i], 4);
            CHECK(plan_seal(forged, n));
            scratch_write(path, forged, n);
            judge(open_plan, path, ZINF_BAD_INPUT, "its header describes");
        }
}

static void strings_without_an_end_are_refused(void)
{
    zinf_plan plan = good();

    memset(plan.strings + 1, 'A', plan.n_strings - 1);
    judge_plan(&plan, ZINF_DOES_NOT_FIT, "end with NUL");
    plan = good();
    memset(plan.tensors[0].name, 'A', ZINF_NAME_BYTES);
    judge_plan(&plan, ZINF_DOES_NOT_FIT, "does not end");
    plan = good();
    memset(plan.units[0].name, 'A', ZINF_NAME_BYTES);
    judge_plan(&plan, ZINF_DOES_NOT_FIT, "does not end");
    plan = good();
    memset(plan.model.family, 'A', sizeof plan.model.family);
    judge_plan(&plan, ZINF_DOES_NOT_FIT, "does not end");
}

static void waits_that_point_forward_or_in_a_circle_are_refused(void)
{
    zinf_plan plan = good();
    uint32_t i = 0;

    while (plan.instrs[i].n_waits == 0)
        i++;
    plan.waits[plan.instrs[i].wait0].instr = plan.n_instrs - 1; /* of another program */
    judge_plan(&plan, ZINF_DOES_NOT_FIT, "not an earlier one");
    plan = good();
    plan.waits[plan.instrs[i].wait0].instr = i;
    judge_plan(&plan, ZINF_DOES_NOT_FIT, "own queue");
    /* a waits for b at distance 0, b for a: one of the two points forward */
    plan = good();
    uint32_t b = i + 1;
    while (plan.instrs[b].n_waits == 0 || plan.instrs[b].queue == plan.instrs[i].queue)
        b++;
    plan.waits[plan.instrs[i].wait0] = (zinf_wait){b, 0};
    plan.waits[plan.instrs[b].wait0] = (zinf_wait){i, 0};
    judge_plan(&plan, ZINF_DOES_NOT_FIT, "earlier");
}

/* ---- small files that ask for much work ---- */

/* A good plan, whose program FLUSH is free for so much more: behind BASE bytes of the device. */
#define BASE (1ull << 24)

static zinf_plan blank(uint32_t n_instrs, uint32_t n_operands, uint32_t n_waits)
{
    const mini_options options = {ZINF_TIER_DEVICE, ZINF_TIER_DEVICE, ZINF_TIER_DEVICE, true, 2};
    zinf_plan p = mini_plan(&options);

    p.instrs = realloc(p.instrs, (p.n_instrs + n_instrs) * sizeof *p.instrs);
    p.operands = realloc(p.operands, (p.n_operands + n_operands) * sizeof *p.operands);
    p.waits = realloc(p.waits, (p.n_waits + n_waits) * sizeof *p.waits);
    p.segments = realloc(p.segments, (p.n_segments + n_instrs) * sizeof *p.segments);
    CHECK(p.instrs && p.operands && p.waits && p.segments && p.n_values > 3);
    CHECK(p.programs[ZINF_PROGRAM_FLUSH].n_segments == 0);
    CHECK(p.machine.arena_bytes[ZINF_TIER_DEVICE] < BASE);
    p.programs[ZINF_PROGRAM_FLUSH].first_segment = p.n_segments;
    p.machine.arena_bytes[ZINF_TIER_DEVICE] = 1ull << 50;
    return p;
}

static zinf_instr *add(zinf_plan *p, zinf_opcode opcode, zinf_queue queue, uint32_t n_waits,
                       uint32_t unit)
{
    zinf_instr *instr = &p->instrs[p->n_instrs++];

    *instr = (zinf_instr){.opcode = (uint16_t)opcode, .queue = (uint8_t)queue,
                          .operand0 = p->n_operands, .wait0 = p->n_waits, .n_waits = n_waits,
                          .unit = unit};
    p->n_waits += n_waits;
    return instr;
}

/* The next operand: [rows][cols] of F32 in the device behind BASE, ld elements apart. */
static zinf_operand *matrix(zinf_plan *p, uint64_t offset, uint64_t rows, uint64_t cols,
                            uint64_t ld, uint32_t value)
{
    zinf_operand *o = &p->operands[p->n_operands++];

    p->instrs[p->n_instrs - 1].n_operands++;
    *o = (zinf_operand){.offset = BASE + offset, .rows = rows, .cols = cols, .ld = ld,
                        .value = value,
                        .bytes = 4 * ((rows - 1) * ld + cols), .dtype = ZINF_F32};
    return o;
}

/* One instruction that zeroes 64 bytes. */
static void zero(zinf_plan *p, zinf_queue queue, uint32_t n_waits, uint64_t offset, uint32_t value)
{
    add(p, ZINF_OP_ZERO, queue, n_waits, ZINF_NONE);
    matrix(p, offset, 1, 16, 16, value);
}

/* All of these instructions, unless they have segments, as one of program FLUSH. */
static void finish(zinf_plan *p, uint32_t first)
{
    zinf_program *flush = &p->programs[ZINF_PROGRAM_FLUSH];

    if (p->n_segments == flush->first_segment)
        p->segments[p->n_segments++] =
            (zinf_segment){.first_instr = first, .n_instrs = p->n_instrs - first, .count = 1};
    flush->n_segments = p->n_segments - flush->first_segment;
    restate(p);
}

static void waits_shared_by_many_are_refused(void)
{
    enum { N = 30000 };
    zinf_plan p = blank(2 * N, 2 * N, N);
    const uint32_t first = p.n_instrs, wait0 = p.n_waits;

    for (uint32_t i = 0; i < N; i++) {
        zero(&p, ZINF_QUEUE_COMPUTE, 0, 64ull * i, 0);
        p.waits[wait0 + i] = (zinf_wait){first + i, 0};
    }
    for (uint32_t i = 0; i < N; i++) {
        zero(&p, ZINF_QUEUE_UPDATE, N, 1 << 30, 1);
        p.instrs[p.n_instrs - 1].wait0 = wait0;
    }
    p.n_waits = wait0 + N;
    finish(&p, first);
    judge_plan(&p, ZINF_DOES_NOT_FIT, "shares wait");
}

static void many_waits_of_one_instruction_are_simulated_once(void)
{
    enum { N = 50000 };
    zinf_plan p = blank(N + 1, N + 1, N);
    const uint32_t first = p.n_instrs;

    for (uint32_t i = 0; i < N; i++) {
        zero(&p, ZINF_QUEUE_COMPUTE, 0, 0, 0);
        p.waits[p.n_waits + i] = (zinf_wait){first + i, 0};
    }
    zero(&p, ZINF_QUEUE_UPDATE, N, 1 << 20, 1);
    finish(&p, first);
    judge_plan(&p, ZINF_OK, "");
}

static void many_segments_are_checked_in_time(void)
{
    enum { N = 50000 };
    zinf_plan p = blank(N, N, N);
    const uint32_t first = p.n_instrs;

    for (uint32_t i = 0; i < N; i++) {
        if (i > 0)
            p.waits[p.n_waits] = (zinf_wait){first, 0};
        zero(&p, i ? ZINF_QUEUE_UPDATE : ZINF_QUEUE_COMPUTE, i > 0, 0, 0);
        p.segments[p.n_segments++] =
            (zinf_segment){.first_instr = first + i, .n_instrs = 1, .count = 1};
    }
    finish(&p, first);
    judge_plan(&p, ZINF_OK, "");
}

static void long_loops_and_those_that_write_with_a_stride_are_refused(void)
{
    for (int strides = 0; strides < 2; strides++) {
        zinf_plan p = blank(1, 1, 0);
        const uint32_t first = p.n_instrs;
        zero(&p, ZINF_QUEUE_COMPUTE, 0, 0, 0);
        p.operands[p.n_operands - 1].stride = strides ? 64 : 0;
        p.segments[p.n_segments++] = (zinf_segment){.first_instr = first, .n_instrs = 1,
                                                    .count = strides ? 2 : 1000000000};
        finish(&p, first);
        judge_plan(&p, ZINF_DOES_NOT_FIT, strides ? "has a stride" : "begins a loop of");
    }
}

/* A position a part: they are looked through for every operator that has some of them. */
static void a_unit_of_many_parts_is_checked_in_time(void)
{
    enum { N = 50000 };
    zinf_plan p = blank(1, 1, 0);
    uint32_t other = 0;

    zero(&p, ZINF_QUEUE_COMPUTE, 0, 0, 0);
    finish(&p, p.n_instrs - 1);
    p.parts = realloc(p.parts, (N + p.n_parts) * sizeof *p.parts);
    CHECK(p.parts);
    for (uint32_t i = 0; i < N; i++) /* of a tensor that the model does not have */
        p.parts[p.n_parts + i] = (zinf_part){.tensor = p.n_tensors, .first_row = i, .n_rows = 1,
                                             .at = i};
    p.tensors[p.n_tensors] = (zinf_tensor){.rows = N, .cols = 1, .n_dims = 1, .name = "other"};
    other = p.n_units++;
    p.units[other] = (zinf_unit){.n_elems = N, .shard_elems = N, .array_stride = 4 * N,
                                 .first_part = p.n_parts, .n_parts = N, .owner = ZINF_NONE,
                                 .whole_param = ZINF_NONE, .whole_grad = ZINF_NONE};
    p.n_parts += N;
    p.n_tensors++;
    judge_plan(&p, ZINF_DOES_NOT_FIT, "unit \"\" is not updated");
}

static void many_reads_of_many_pieces_are_refused(void)
{
    enum { N = 20000, PIECES = 8000 };
    zinf_plan p = blank(2 * N, 3 * N, 0);
    const uint32_t first = p.n_instrs;

    for (uint32_t i = 0; i < PIECES; i++)
        zero(&p, ZINF_QUEUE_COMPUTE, 0, 64ull * i, 2);
    for (uint32_t i = 0; i < N; i++) {
        add(&p, ZINF_OP_COPY, ZINF_QUEUE_COMPUTE, 0, ZINF_NONE);
        matrix(&p, 0, 1, 16ull * PIECES, 16ull * PIECES, 2);
        matrix(&p, 1ull << 40, 1, 16ull * PIECES, 16ull * PIECES, 2);
    }
    finish(&p, first);
    judge_plan(&p, ZINF_DOES_NOT_FIT, "too many pieces");
}

/* The checker's memory would be more than the plan states that zinf-run takes. */
static void a_plan_in_more_pieces_than_it_has_room_for_is_refused(void)
{
    enum { N = 100000 };
    zinf_plan p = blank(N, N, 0);
    const uint32_t first = p.n_instrs;

    for (uint32_t i = 0; i < N; i++)
        zero(&p, ZINF_QUEUE_COMPUTE, 0, 128ull * i, 2);
    finish(&p, first);
    judge_plan(&p, ZINF_DOES_NOT_FIT, "too many pieces");
}

/* Nor do two programs together, that are in many pieces of two tiers. */
static void no_more_memory_is_taken_than_is_stated(void)
{
    enum { N = 80000 };
    zinf_plan p = blank(2 * N, 2 * N, 0);
    zinf_program *last = p.programs;

    while (last->n_segments == 0 || last->first_segment + last->n_segments < p.n_segments)
        last++;
    last->n_segments++;
    p.programs[ZINF_PROGRAM_FLUSH].first_segment++;
    for (int flush = 0; flush < 2; flush++) {
        const uint32_t first = p.n_instrs;
        for (uint32_t i = 0; i < N; i++) {
            add(&p, ZINF_OP_ZERO, flush ? ZINF_QUEUE_COMPUTE : ZINF_QUEUE_UPDATE, 0, ZINF_NONE);
            matrix(&p, 8ull * i, 1, 1, 1, 2)->tier = flush ? ZINF_TIER_DEVICE : ZINF_TIER_HOST;
        }
        if (!flush)
            p.segments[p.n_segments++] =
                (zinf_segment){.first_instr = first, .n_instrs = N, .count = 1};
        else
            finish(&p, first);
    }
    const uint64_t stated = p.machine.overhead_bytes[ZINF_TIER_DEVICE];
    const uint64_t taken = judge_plan(&p, ZINF_OK, "");
    CHECK_MESSAGE(taken <= stated, "%llu bytes, %llu are stated", (unsigned long long)taken,
                  (unsigned long long)stated);
}

static void a_matrix_cut_into_columns_and_rows_is_refused(void)
{
    enum { COLUMNS = 2000, ROWS = 4000 };
    const uint64_t x = 1ull << 40, w = x + (1 << 20), scratch = w + (1 << 20);
    zinf_plan p = blank(COLUMNS + ROWS + 2, 6 * COLUMNS + ROWS + 2, 0);
    const uint32_t first = p.n_instrs;

    p.job.precision = ZINF_F32;
    add(&p, ZINF_OP_ZERO, ZINF_QUEUE_COMPUTE, 0, ZINF_NONE);
    matrix(&p, x, ROWS, 1, 1, 0);
    add(&p, ZINF_OP_ZERO, ZINF_QUEUE_COMPUTE, 0, ZINF_NONE);
    matrix(&p, w, 1, 1, 1, 1);
    for (uint32_t i = 0; i < COLUMNS; i++) {
        add(&p, ZINF_OP_LINEAR_FORWARD, ZINF_QUEUE_COMPUTE, 0, ZINF_NONE);
        matrix(&p, x, ROWS, 1, 1, 0);
        matrix(&p, w, 1, 1, 1, 1);
        *matrix(&p, 0, 1, 1, 1, 0) = (zinf_operand){.value = ZINF_NONE};
        *matrix(&p, 0, 1, 1, 1, 0) = (zinf_operand){.value = ZINF_NONE};
        matrix(&p, 4ull * i, ROWS, 1, COLUMNS, 2);
        matrix(&p, scratch, 1, 1 << 20, 1 << 20, ZINF_NONE);
    }
    for (uint64_t i = 0; i < ROWS; i++)
        zero(&p, ZINF_QUEUE_COMPUTE, 0, 4 * COLUMNS * (i * 7919 % ROWS), 3);
    finish(&p, first);
    judge_plan(&p, ZINF_DOES_NOT_FIT, "C");
}

/* ---- files larger than they are ---- */

static void a_sparse_plan_of_a_terabyte_is_refused(void)
{
    const char *path = scratch_path("sparse");
    uint8_t start[sizeof(plan_header) + sizeof(plan_fixed)] = {0};
    plan_header h = {.magic = "ZINFPLA", .version = ZINF_PLAN_VERSION, .n_sections = PLAN_SECTIONS};
    uint64_t at[PLAN_SECTIONS + 1];

    h.magic[7] = 'N';
    h.counts[5] = UINT32_MAX; /* 721 GB of units */
    plan_layout(&h, at);
    h.file_bytes = at[PLAN_SECTIONS];
    memcpy(start, &h, sizeof h);
    scratch_write(path, start, sizeof start);
    if (truncate(path, (off_t)h.file_bytes))
        SKIP("no sparse file of 721 GB here: %s", strerror(errno));
    judge(open_plan, path, ZINF_BAD_INPUT, "not a zinf plan");
}

static void a_text_of_2_to_the_63_bytes_is_refused(void)
{
    char path[] = "/dev/shm/zinf-hostile-XXXXXX"; /* a disk's file systems end at 2^44 or so */
    const int fd = mkstemp(path);
    const bool made = fd >= 0 && ftruncate(fd, INT64_MAX) == 0;
    const int why = errno;

    if (made)
        judge(open_data, path, ZINF_BAD_INPUT, "tokens");
    if (fd >= 0) {
        unlink(path);
        close(fd);
    }
    if (!made)
        SKIP("no sparse file of 2^63 bytes in /dev/shm: %s", strerror(why));
}

int main(void)
{
    RUN(the_plan_itself_is_accepted);
    RUN(an_offset_that_overflows_is_refused);
    RUN(sizes_of_2_to_the_63_are_refused);
    RUN(a_loop_of_10_to_the_18_is_refused);
    RUN(counts_that_do_not_match_the_file_are_refused);
    RUN(strings_without_an_end_are_refused);
    RUN(waits_that_point_forward_or_in_a_circle_are_refused);
    RUN(waits_shared_by_many_are_refused);
    RUN(many_waits_of_one_instruction_are_simulated_once);
    RUN(many_segments_are_checked_in_time);
    RUN(long_loops_and_those_that_write_with_a_stride_are_refused);
    RUN(a_unit_of_many_parts_is_checked_in_time);
    RUN(many_reads_of_many_pieces_are_refused);
    RUN(a_plan_in_more_pieces_than_it_has_room_for_is_refused);
    RUN(no_more_memory_is_taken_than_is_stated);
    RUN(a_matrix_cut_into_columns_and_rows_is_refused);
    RUN(a_sparse_plan_of_a_terabyte_is_refused);
    RUN(a_text_of_2_to_the_63_bytes_is_refused);
    return check_finish();
}
