/* tests/checker/intervals.c - the interval map against an array of one payload per address, through
 * many random cuts, merges and reads.
 */
#include <stdlib.h>
#include <string.h>

#include "runtime/intervals.h"
#include "tests/check.h"

enum { SPAN = 512, ROUNDS = 20000 };

static uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static void equals_a_plain_array_after_any_operations(void)
{
    zinf_intervals map = {0};
    uint32_t array[SPAN], seed = 7, nothing = 0;

    for (uint32_t again = 0; again < 3; again++) { /* a second use starts afresh */
        memset(array, 0, sizeof array);
        CHECK(zinf_intervals_init(&map, sizeof nothing, &nothing));
        for (uint32_t round = 1; round < ROUNDS; round++) {
            const uint32_t lo = next_random(&seed) % SPAN;
            const uint32_t hi = lo + 1 + next_random(&seed) % (next_random(&seed) % 8 ? 9 : SPAN);
            const uint32_t end = hi < SPAN ? hi : SPAN;
            if (next_random(&seed) % 2) { /* one value */
                uint32_t i = zinf_intervals_merge(&map, lo, end);
                CHECK(zinf_intervals_lo(&map, i) == lo && zinf_intervals_hi(&map, i) == end);
                CHECK(*(uint32_t *)zinf_intervals_payload(&map, i) == array[lo]);
                memcpy(zinf_intervals_payload(&map, i), &round, sizeof round);
                for (uint32_t k = lo; k < end; k++)
                    array[k] = round;
                continue;
            }
            uint32_t at = lo; /* read; pieces have no gaps and no two values */
            for (uint32_t i = zinf_intervals_cut(&map, lo, end); i != ZINF_NO_INTERVAL;
                 i = zinf_intervals_next(&map, i, end)) {
                CHECK(zinf_intervals_lo(&map, i) == at && zinf_intervals_hi(&map, i) <= end);
                for (; at < zinf_intervals_hi(&map, i); at++)
                    CHECK(*(uint32_t *)zinf_intervals_payload(&map, i) == array[at]);
            }
            CHECK(at == end);
            if (next_random(&seed) % 4 == 0) { /* no neighbours of one value are left */
                zinf_intervals_join(&map, lo, end);
                uint32_t i = zinf_intervals_cut(&map, lo, end), before = ZINF_NO_INTERVAL;
                for (; i != ZINF_NO_INTERVAL; i = zinf_intervals_next(&map, i, end)) {
                    CHECK(before == ZINF_NO_INTERVAL ||
                          array[zinf_intervals_lo(&map, i)] !=
                              array[zinf_intervals_lo(&map, before)]);
                    before = i;
                }
            }
        }
        CHECK_MESSAGE(map.n <= SPAN + 2, "%u nodes: removed ones are not used again", map.n);
    }
    zinf_intervals_free(&map);
    zinf_intervals_free(&map);
}

static void reaches_the_last_address(void)
{
    zinf_intervals map = {0};
    const char payload = 'x';

    CHECK(zinf_intervals_init(&map, 1, &payload));
    const uint32_t i = zinf_intervals_cut(&map, UINT64_MAX - 2, UINT64_MAX - 1);
    CHECK(zinf_intervals_hi(&map, i) == UINT64_MAX - 1);
    CHECK(*(char *)zinf_intervals_payload(&map, i) == 'x');
    CHECK(zinf_intervals_next(&map, i, UINT64_MAX - 1) == ZINF_NO_INTERVAL);
    zinf_intervals_free(&map);
}

/* Else a plan could be made for which every search is linear: 20,000 instructions took 6 s. */
static void heights_of_nodes_cannot_be_foreseen(void)
{
    zinf_intervals one = {0}, other = {0};

    CHECK(zinf_intervals_init(&one, 1, "") && zinf_intervals_init(&other, 1, ""));
    CHECK(one.random != other.random && one.random && other.random);
    zinf_intervals_free(&one);
    zinf_intervals_free(&other);
}

int main(void)
{
    RUN(equals_a_plain_array_after_any_operations);
    RUN(reaches_the_last_address);
    RUN(heights_of_nodes_cannot_be_foreseen);
    return check_finish();
}
