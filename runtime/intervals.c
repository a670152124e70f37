/* runtime/intervals.c - see intervals.h. */
#include "runtime/intervals.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum { HEIGHT = 10 }; /* levels; each has a quarter of the nodes of the one below */

/* Node 0 is the first and in all levels; as a successor 0 means the end. An interval ends where
 * the next begins. */
typedef struct zinf_interval {
    uint64_t lo;
    uint32_t next[HEIGHT];
} zinf_interval;

void *zinf_intervals_payload(const zinf_intervals *map, uint32_t i)
{
    return map->payloads + i * map->payload_bytes;
}

uint64_t zinf_intervals_lo(const zinf_intervals *map, uint32_t i)
{
    return map->nodes[i].lo;
}

uint64_t zinf_intervals_hi(const zinf_intervals *map, uint32_t i)
{
    const uint32_t next = map->nodes[i].next[0];

    return next ? map->nodes[next].lo : UINT64_MAX;
}

uint32_t zinf_intervals_next(const zinf_intervals *map, uint32_t i, uint64_t hi)
{
    const uint32_t next = map->nodes[i].next[0];

    return next && map->nodes[next].lo < hi ? next : ZINF_NO_INTERVAL;
}

/* A node nobody uses, or 0 if memory is short. */
static uint32_t take(zinf_intervals *map)
{
    uint32_t i = map->free;

    if (i) {
        map->free = map->nodes[i].next[0];
        return i;
    }
    if (map->n == map->cap) {
        const uint32_t cap = map->cap ? 2 * map->cap : 1024;
        zinf_interval *nodes = cap > UINT32_MAX / 2
                                   ? NULL : realloc(map->nodes, cap * sizeof *nodes);
        if (nodes)
            map->nodes = nodes;
        unsigned char *payloads = nodes ? realloc(map->payloads, cap * map->payload_bytes) : NULL;
        if (payloads)
            map->payloads = payloads;
        map->failed |= !payloads;
        if (map->failed)
            return 0;
        map->cap = cap;
    }
    return map->n++;
}

bool zinf_intervals_init(zinf_intervals *map, size_t payload_bytes, const void *payload)
{
    zinf_intervals_free(map);
    map->payload_bytes = payload_bytes;
    map->random = 2463534242u; /* then as no plan can foresee: it could keep all nodes low */
    if (getrandom(&map->random, sizeof map->random, GRND_NONBLOCK) > 0)
        map->random |= 1; /* never 0, which stays so */
    take(map);
    if (map->failed)
        return false;
    map->nodes[0] = (zinf_interval){0};
    memcpy(map->payloads, payload, payload_bytes);
    return true;
}

void zinf_intervals_free(zinf_intervals *map)
{
    free(map->nodes);
    free(map->payloads);
    *map = (zinf_intervals){0};
}

/* The interval that holds addr; path, per level, the last node at or before it. */
static uint32_t find(const zinf_intervals *map, uint64_t addr, uint32_t path[HEIGHT])
{
    uint32_t i = 0, next;

    for (int level = HEIGHT - 1; level >= 0; level--) {
        while ((next = map->nodes[i].next[level]) && map->nodes[next].lo <= addr)
            i = next;
        path[level] = i;
    }
    return i;
}

void *zinf_intervals_at(const zinf_intervals *map, uint64_t addr)
{
    uint32_t path[HEIGHT];

    return zinf_intervals_payload(map, find(map, addr, path));
}

/* The interval that begins at addr, made if need be. */
static uint32_t begin(zinf_intervals *map, uint64_t addr)
{
    uint32_t path[HEIGHT], before = find(map, addr, path), i;

    if (map->nodes[before].lo == addr)
        return before;
    i = take(map);
    if (!i)
        return ZINF_NO_INTERVAL;
    zinf_interval *node = &map->nodes[i];
    *node = (zinf_interval){.lo = addr};
    memcpy(zinf_intervals_payload(map, i), zinf_intervals_payload(map, before),
           map->payload_bytes);
    map->random ^= map->random << 13;
    map->random ^= map->random >> 17;
    map->random ^= map->random << 5;
    for (int level = 0; level < HEIGHT; level++) {
        node->next[level] = map->nodes[path[level]].next[level];
        map->nodes[path[level]].next[level] = i;
        if (map->random >> (2 * level) & 3)
            break;
    }
    return i;
}

uint32_t zinf_intervals_cut(zinf_intervals *map, uint64_t lo, uint64_t hi)
{
    if (map->failed || begin(map, hi) == ZINF_NO_INTERVAL)
        return ZINF_NO_INTERVAL;
    return begin(map, lo);
}

uint32_t zinf_intervals_merge(zinf_intervals *map, uint64_t lo, uint64_t hi)
{
    const uint32_t first = zinf_intervals_cut(map, lo, hi);
    uint32_t path[HEIGHT], i;

    if (first == ZINF_NO_INTERVAL)
        return first;
    find(map, lo, path);
    for (int level = HEIGHT - 1; level >= 0; level--) {
        while ((i = map->nodes[path[level]].next[level]) && map->nodes[i].lo < hi) {
            map->nodes[path[level]].next[level] = map->nodes[i].next[level];
            if (level == 0) {
                map->nodes[i].next[0] = map->free;
                map->free = i;
            }
        }
    }
    return first;
}

void zinf_intervals_join(zinf_intervals *map, uint64_t lo, uint64_t hi)
{
    uint32_t i = zinf_intervals_cut(map, lo, hi), next;

    while (i != ZINF_NO_INTERVAL && (next = zinf_intervals_next(map, i, hi)) != ZINF_NO_INTERVAL)
        if (memcmp(zinf_intervals_payload(map, i), zinf_intervals_payload(map, next),
                   map->payload_bytes))
            i = next;
        else
            zinf_intervals_merge(map, map->nodes[i].lo, zinf_intervals_hi(map, next));
}
