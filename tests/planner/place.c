/* tests/planner/place.c - interval allocation: nothing alive at once overlaps, on random problems
 * and on the published ones of shared/data/alloc, and how far from the peak load it ends.
 *
 * usage: test_place SOURCE_ROOT
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "planner/place.h"
#include "tests/check.h"

static const char *source_root;
static uint64_t seed = 1;

static uint32_t random_below(uint32_t n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((seed >> 33) % n);
}

static int by_first(const void *a, const void *b)
{
    const zinf_interval *x = a, *y = b;

    return x->first < y->first ? -1 : x->first > y->first;
}

/* Bytes alive at the busiest moment: no placement can do with less. */
static uint64_t peak_load(const zinf_interval *v, uint32_t n)
{
    uint32_t end = 0;

    for (uint32_t i = 0; i < n; i++)
        end = v[i].last > end ? v[i].last : end;
    int64_t *change = calloc(end + 2, sizeof *change), load = 0, peak = 0;
    for (uint32_t i = 0; i < n; i++) {
        change[v[i].first] += (int64_t)v[i].bytes;
        change[v[i].last + 1] -= (int64_t)v[i].bytes;
    }
    for (uint32_t t = 0; t <= end; t++) {
        load += change[t];
        peak = load > peak ? load : peak;
    }
    free(change);
    return (uint64_t)peak;
}

/* Places, checks every pair that is alive at once, returns high-water mark / peak load. */
static double place(zinf_interval *v, uint32_t n, double *ret_seconds)
{
    struct timespec a, b;
    uint64_t top = 0, load = peak_load(v, n);
    uint32_t overlaps = 0;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
    uint64_t high = zinf_place_intervals(v, n);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
    if (ret_seconds)
        *ret_seconds = (double)(b.tv_sec - a.tv_sec) + 1e-9 * (double)(b.tv_nsec - a.tv_nsec);
    qsort(v, n, sizeof *v, by_first);
    for (uint32_t i = 0; i < n; i++) {
        top = v[i].offset + v[i].bytes > top ? v[i].offset + v[i].bytes : top;
        for (uint32_t k = i + 1; k < n && v[k].first <= v[i].last; k++)
            overlaps += v[i].offset < v[k].offset + v[k].bytes &&
                        v[k].offset < v[i].offset + v[i].bytes;
    }
    CHECK_MESSAGE(overlaps == 0, "%u pairs overlap", overlaps);
    CHECK_MESSAGE(top == high, "states %" PRIu64 ", reaches %" PRIu64, high, top);
    CHECK(high >= load);
    return load ? (double)high / (double)load : 1;
}

static void random_problems_never_overlap(void)
{
    static const uint32_t spans[] = {1, 4, 40, 1500, 60000};
    double worst = 1;

    for (uint32_t round = 0; round < 200; round++) {
        uint32_t n = 1 + random_below(300), length = 1 + random_below(70000);
        zinf_interval *v = calloc(n, sizeof *v);
        for (uint32_t i = 0; i < n; i++) {
            uint32_t span = random_below(spans[random_below(5)]);
            v[i].first = random_below(length);
            v[i].last = v[i].first + span;
            v[i].bytes = (uint64_t)4096 * (1 + random_below(random_below(2) ? 4 : 1000));
        }
        double ratio = place(v, n, NULL);
        worst = ratio > worst ? ratio : worst;
        free(v);
    }
    printf("# random problems: at most %.3f of the peak load\n", worst);
    CHECK(worst < 2); /* first fit by size: seen 1.4 */
}

static void no_problem_and_one_buffer_are_placed(void)
{
    zinf_interval one = {.bytes = 4096, .offset = 7, .first = 3, .last = 3};

    CHECK(zinf_place_intervals(NULL, 0) == 0);
    CHECK(zinf_place_intervals(&one, 1) == 4096 && one.offset == 0);
}

static void lives_that_touch_in_one_instruction_conflict(void)
{
    zinf_interval v[2] = {{.bytes = 4096, .first = 0, .last = 5},
                          {.bytes = 4096, .first = 5, .last = 9}};

    CHECK(zinf_place_intervals(v, 2) == 8192);
    v[1].first = 6;
    CHECK(zinf_place_intervals(v, 2) == 4096);
}

static void equal_sizes_are_packed_perfectly(void)
{
    /* a chain as prefetch makes it: each alive with its three successors */
    zinf_interval v[1000];

    for (uint32_t i = 0; i < 1000; i++)
        v[i] = (zinf_interval){.bytes = 65536, .first = 10 * i, .last = 10 * i + 35};
    CHECK(zinf_place_intervals(v, 1000) == 4 * 65536);
}

/* Of all pairs that share a place, the fewest instructions from when a queue left it that the
 * second's does not follow to the second's first; 0 if two overlap that are alive at once. */
static uint32_t nearest(const zinf_interval *v, uint32_t n)
{
    uint32_t least = UINT32_MAX;

    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < n; k++) {
            const zinf_interval *a = &v[i], *b = &v[k]; /* a before b */
            if (a->first > b->first || (a->first == b->first && i >= k) ||
                a->offset >= b->offset + b->bytes || b->offset >= a->offset + a->bytes)
                continue;
            const uint32_t left = b->begins_aside ? a->last : a->last_aside;
            if (b->first <= a->last || b->first - left < least)
                least = b->first <= a->last ? 0 : b->first - left;
        }
    return least;
}

static void what_a_transfer_has_just_left_is_taken_last(void)
{
    /* the second takes the place of the first, unless there is room */
    const zinf_interval two[2] = {{.bytes = 4096, .first = 100, .last = 104, .last_aside = 103},
                                  {.bytes = 4096, .first = 105, .last = 109}};
    const struct {
        uint32_t last_aside, slack;
        uint64_t limit, offset;
        bool begins_aside;
    } cases[] = {{103, 2, 8192, 4096, false}, {103, 128, 8192, 4096, false},
                 {103, 2, 8191, 0, false},    /* no room */
                 {103, 1, 8192, 0, false},    /* long enough ago */
                 {0, 64, 8192, 0, false},     /* compute after compute */
                 {0, 64, 8192, 4096, true}};  /* a transfer after compute */

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        zinf_interval v[2] = {two[0], two[1]};
        v[0].last_aside = cases[i].last_aside;
        v[1].begins_aside = cases[i].begins_aside;
        CHECK(zinf_place_intervals(v, 2) == 4096);
        CHECK(zinf_spread_intervals(v, 2, cases[i].slack, cases[i].limit));
        CHECK_MESSAGE(v[0].offset + v[1].offset == cases[i].offset, "case %zu", i);
    }
}

static void spread_buffers_never_overlap_and_are_never_nearer(void)
{
    for (uint32_t round = 0; round < 100; round++) {
        const uint32_t n = 1 + random_below(200), slack = 1 + random_below(200);
        zinf_interval *v = calloc(n, sizeof *v);
        uint64_t all = 0;
        for (uint32_t i = 0; i < n; i++) {
            v[i].first = 1000 + random_below(3000);
            v[i].last = v[i].first + random_below(random_below(2) ? 40 : 1500);
            v[i].last_aside = random_below(2)
                                  ? v[i].first + random_below(v[i].last - v[i].first + 1) : 0;
            v[i].begins_aside = random_below(2);
            v[i].bytes = (uint64_t)4096 * (1 + random_below(random_below(2) ? 4 : 1000));
            all += v[i].bytes;
        }
        const uint64_t high = zinf_place_intervals(v, n);
        const uint32_t before = nearest(v, n);
        CHECK(zinf_spread_intervals(v, n, slack, high));
        for (uint32_t i = 0; i < n; i++)
            CHECK(v[i].offset + v[i].bytes <= high);
        CHECK(before > 0 && nearest(v, n) >= before);
        CHECK(zinf_spread_intervals(v, n, slack, all)); /* room for each alone */
        CHECK(nearest(v, n) > slack);
        free(v);
    }
}

/* A step of instructions 0-2, a loop of 3-5 and 6; a buffer that is alive in [first, last] beside
 * one in [other, other + 1]; aside: a transfer uses the former last. Bytes that both take. */
static uint64_t two_in_a_step(uint32_t first, uint32_t last, uint32_t other, uint64_t iterations,
                              bool aside, double more)
{
    zinf_plan plan = {0};
    zinf_error err = {0};
    zinf_builder b = {.plan = &plan, .err = &err};
    uint32_t program_buffers[ZINF_N_PROGRAMS + 1];

    for (int p = 0; p <= ZINF_N_PROGRAMS; p++)
        program_buffers[p] = p <= ZINF_PROGRAM_STEP ? 0 : 2;
    plan.programs[ZINF_PROGRAM_STEP] = (zinf_program){.first_segment = 0, .n_segments = 3};
    for (uint32_t i = 0; i < 7; i++)
        zinf_build_instr(&b, ZINF_OP_EMBEDDING_FORWARD, ZINF_QUEUE_COMPUTE, 0, -1, ZINF_NONE, 0,
                         NULL, NULL, 0);
    zinf_build_segment(&b, 0, 1);
    plan.segments[0].n_instrs = 3;
    zinf_build_segment(&b, 3, iterations);
    plan.segments[1].n_instrs = 3;
    zinf_build_segment(&b, 6, 1);
    for (int i = 0; i < 2; i++)
        zinf_build_buffer(&b, ZINF_TIER_DEVICE, 4096, ZINF_BILL_WORKING, false);
    CHECK(err.status == ZINF_OK);
    b.buffers[0].first = first, b.buffers[0].last = last;
    b.buffers[1].first = other, b.buffers[1].last = other + 1;
    b.buffers[0].last_aside = aside ? last : 0;
    zinf_place(&b, program_buffers, true, more);
    const uint64_t bytes = plan.machine.arena_bytes[ZINF_TIER_DEVICE];
    CHECK(err.status == ZINF_OK);
    zinf_build_free(&b);
    zinf_plan_free(&plan);
    return bytes;
}

static uint64_t two_and_a_loop(uint32_t first, uint32_t last, uint32_t other, uint64_t iterations)
{
    return two_in_a_step(first, last, other, iterations, false, 0);
}

static void memory_that_is_given_keeps_buffers_from_what_transfers_still_use(void)
{
    CHECK(two_in_a_step(0, 1, 2, 1, true, 0) == 4096);
    CHECK(two_in_a_step(0, 1, 2, 1, true, 0.9) == 4096); /* not enough for both */
    CHECK(two_in_a_step(0, 1, 2, 1, true, 1) == 8192);
    CHECK(two_in_a_step(0, 1, 2, 1, true, 9) == 8192); /* no more than they take */
}

static void what_a_loop_finds_it_keeps_to_its_end_and_nothing_else(void)
{
    CHECK(two_and_a_loop(0, 3, 4, 2) == 8192); /* its second iteration reads what the first did */
    CHECK(two_and_a_loop(2, 3, 4, 9) == 8192);
    CHECK(two_and_a_loop(0, 3, 4, 1) == 4096); /* there is no second */
    CHECK(two_and_a_loop(0, 3, 4, 0) == 4096);
    CHECK(two_and_a_loop(0, 2, 4, 9) == 4096); /* is over when the loop begins */
    CHECK(two_and_a_loop(3, 3, 4, 9) == 4096); /* the loop's own */
    CHECK(two_and_a_loop(6, 6, 4, 9) == 4096);
    CHECK(two_and_a_loop(0, 6, 4, 9) == 8192);
    CHECK(two_and_a_loop(0, 6, 6, 9) == 8192); /* goes on after the loop */
}

static zinf_interval *read_csv(const char *name, uint32_t *ret_n)
{
    char path[1024], line[256];
    uint32_t n = 0, cap = 32768;
    int column[3] = {-1, -1, -1}; /* lower, upper, size */

    snprintf(path, sizeof path, "%s/../shared/data/alloc/%s", source_root, name);
    FILE *file = fopen(path, "r");
    if (!file)
        SKIP("no %s beside the source tree (shared/data/alloc)", name);
    zinf_interval *v = calloc(cap, sizeof *v);
    if (fgets(line, sizeof line, file)) {
        char *at = line;
        for (int i = 0; at; i++) {
            char *cell = strsep(&at, ",\r\n");
            column[0] = !strcmp(cell, "lower") ? i : column[0];
            column[1] = !strcmp(cell, "upper") ? i : column[1];
            column[2] = !strcmp(cell, "size") ? i : column[2];
        }
    }
    while (n < cap && fgets(line, sizeof line, file)) {
        uint64_t cells[8] = {0};
        char *at = line;
        for (int i = 0; i < 8 && at; i++)
            cells[i] = strtoull(strsep(&at, ","), NULL, 10);
        if (cells[column[1]] > cells[column[0]])
            v[n++] = (zinf_interval){.bytes = cells[column[2]],
                                     .first = (uint32_t)cells[column[0]],
                                     .last = (uint32_t)cells[column[1]] - 1};
    }
    fclose(file);
    *ret_n = n;
    return v;
}

static void published_problems_are_placed_validly(void)
{
    static const char *const names[] = {"A.1048576.csv", "B.1048576.csv", "C.1048576.csv",
                                        "D.1048576.csv", "E.1048576.csv", "F.1048576.csv",
                                        "resnet50.csv"};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        uint32_t n;
        zinf_interval *v = read_csv(names[i], &n);
        CHECK_MESSAGE(n > 10, "%s: %u buffers", names[i], n);
        double ratio = place(v, n, NULL);
        printf("# %s: %u buffers, %.3f of the peak load\n", names[i], n, ratio);
        free(v);
        CHECK_MESSAGE(ratio < 1.5, "%s: %.3f of the peak load", names[i], ratio);
    }
}

static void eighteen_thousand_buffers_take_less_than_two_seconds(void)
{
    uint32_t n;
    double seconds;
    zinf_interval *v = read_csv("pangu_2.6B.csv", &n);

    CHECK(n > 18000);
    double ratio = place(v, n, &seconds);
    printf("# pangu_2.6B.csv: %u buffers in %.2f s of CPU, %.4f of the peak load\n", n, seconds,
           ratio);
    free(v);
    CHECK(seconds < 2);
    CHECK(ratio < 1.5);
}

int main(int argc, char **argv)
{
    source_root = argc > 1 ? argv[1] : ".";
    RUN(no_problem_and_one_buffer_are_placed);
    RUN(lives_that_touch_in_one_instruction_conflict);
    RUN(equal_sizes_are_packed_perfectly);
    RUN(what_a_loop_finds_it_keeps_to_its_end_and_nothing_else);
    RUN(memory_that_is_given_keeps_buffers_from_what_transfers_still_use);
    RUN(random_problems_never_overlap);
    RUN(what_a_transfer_has_just_left_is_taken_last);
    RUN(spread_buffers_never_overlap_and_are_never_nearer);
    RUN(published_problems_are_placed_validly);
    RUN(eighteen_thousand_buffers_take_less_than_two_seconds);
    return check_finish();
}
