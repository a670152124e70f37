/* runtime/checker_map.c - see checker_map.h. */
#include "runtime/checker_map.h"

#include <stdlib.h>

enum { HEIGHT = 10 };

/* Node 0 is the first (lo 0, full height) and as a successor means the end. It ends where the
 * next begins. */
typedef struct zinf_map_node {
    uint64_t lo, pitch;
    uint32_t cell; /* first of a list, ascending and without gaps; cell 0 means the end */
    uint32_t next[HEIGHT];
} zinf_map_node;

static bool grow(zinf_map *map, void *array, uint32_t *cap, uint32_t n, size_t size)
{
    if (n < *cap)
        return true;
    uint32_t grown = *cap ? 2 * *cap : 1024;
    void *p = *cap > UINT32_MAX / 2 ? NULL : realloc(*(void **)array, grown * size);
    if (!p) {
        map->failed = true;
        return false;
    }
    *(void **)array = p;
    *cap = grown;
    return true;
}

/* Passing a cell of a list is 1, making or finding one 16 of this. */
static bool work(zinf_map *map, uint32_t units)
{
    map->work += units;
    map->failed |= map->work > map->most_work;
    return !map->failed;
}

/* 0, a slot of its own that nobody reads, when memory is short. */
static uint32_t new_cell(zinf_map *map, const zinf_cell *content, uint64_t lo, uint64_t hi,
                         uint32_t next)
{
    zinf_cell copy = *content;
    uint32_t i = map->free_cell;

    if (i)
        map->free_cell = map->cells[i].next;
    else if (work(map, 16) &&
             grow(map, &map->cells, &map->cap_cells, map->n_cells, sizeof *map->cells))
        i = map->n_cells++;
    copy.lo = lo;
    copy.hi = hi;
    copy.next = next;
    map->cells[i] = copy;
    return i;
}

static void free_cells(zinf_map *map, uint32_t i)
{
    while (i) {
        uint32_t next = map->cells[i].next;
        map->cells[i].next = map->free_cell;
        map->free_cell = i;
        i = next;
    }
}

/* The node that holds addr; path, per level, the last one at or before it. */
static uint32_t find(const zinf_map *map, uint64_t addr, uint32_t path[HEIGHT])
{
    uint32_t i = 0;

    for (int level = HEIGHT - 1; level >= 0; level--) {
        uint32_t next;
        while ((next = map->nodes[i].next[level]) && map->nodes[next].lo <= addr)
            i = next;
        path[level] = i;
    }
    return i;
}

static uint64_t end_of(const zinf_map *map, uint32_t node)
{
    uint32_t next = map->nodes[node].next[0];

    return next ? map->nodes[next].lo : UINT64_MAX;
}

/* A new node that begins at addr with this list of cells. */
static void insert(zinf_map *map, uint64_t addr, uint64_t pitch, uint32_t cell)
{
    uint32_t path[HEIGHT], i = map->free_node;

    find(map, addr, path);
    if (i)
        map->free_node = map->nodes[i].next[0];
    else if (grow(map, &map->nodes, &map->cap_nodes, map->n_nodes, sizeof *map->nodes))
        i = map->n_nodes++;
    if (!i)
        return;
    zinf_map_node *node = &map->nodes[i];
    *node = (zinf_map_node){.lo = addr, .pitch = pitch, .cell = cell};
    map->random ^= map->random << 13;
    map->random ^= map->random >> 17;
    map->random ^= map->random << 5;
    for (int level = 0; level < HEIGHT; level++) {
        node->next[level] = map->nodes[path[level]].next[level];
        map->nodes[path[level]].next[level] = i;
        if (map->random >> (2 * level) & 3)
            break;
    }
}

/* Unlinks all nodes that begin in (lo, hi); lo is a node's. */
static void erase(zinf_map *map, uint64_t lo, uint64_t hi)
{
    uint32_t path[HEIGHT], i;

    find(map, lo, path);
    for (int level = HEIGHT - 1; level >= 0; level--) {
        while ((i = map->nodes[path[level]].next[level]) && map->nodes[i].lo < hi) {
            map->nodes[path[level]].next[level] = map->nodes[i].next[level];
            if (level == 0) {
                free_cells(map, map->nodes[i].cell);
                map->nodes[i].next[0] = map->free_node;
                map->free_node = i;
            }
        }
    }
}

static uint32_t cell_at(zinf_map *map, uint32_t i, uint64_t column)
{
    while (map->cells[i].next && map->cells[i].hi <= column && work(map, 1))
        i = map->cells[i].next;
    return i;
}

/* A piece of a matrix no longer than its pitch becomes plain nodes. */
static void flatten(zinf_map *map, uint32_t node)
{
    const uint64_t lo = map->nodes[node].lo, hi = end_of(map, node), pitch = map->nodes[node].pitch;
    const uint32_t old = map->nodes[node].cell;

    if (pitch == 0 || hi - lo > pitch)
        return;
    uint32_t i = cell_at(map, old, lo % pitch);
    for (uint64_t at = lo; at < hi && !map->failed;) {
        const zinf_cell *cell = &map->cells[i];
        uint64_t next = at + (cell->hi - at % pitch);
        uint32_t copy = new_cell(map, cell, 0, UINT64_MAX, 0);
        if (at == lo) {
            map->nodes[node].cell = copy;
            map->nodes[node].pitch = 0;
        } else {
            insert(map, at, 0, copy);
        }
        at = next;
        i = map->cells[i].next ? map->cells[i].next : old;
    }
    free_cells(map, old);
}

static uint32_t copy_cells(zinf_map *map, uint32_t i)
{
    uint32_t first = new_cell(map, &map->cells[i], map->cells[i].lo, map->cells[i].hi, 0);

    for (uint32_t last = first, made; (i = map->cells[i].next) && !map->failed; last = made) {
        made = new_cell(map, &map->cells[i], map->cells[i].lo, map->cells[i].hi, 0);
        map->cells[last].next = made;
    }
    return first;
}

static void split_node(zinf_map *map, uint64_t addr)
{
    uint32_t path[HEIGHT], node = find(map, addr, path);

    if (map->nodes[node].lo == addr)
        return;
    uint32_t copy = copy_cells(map, map->nodes[node].cell);
    insert(map, addr, map->nodes[node].pitch, copy);
    flatten(map, find(map, addr, path));
    flatten(map, node);
}

/* In a node with a pitch, no cell crosses this column any more. */
static void split_cell(zinf_map *map, uint32_t node, uint64_t column)
{
    uint32_t i = cell_at(map, map->nodes[node].cell, column);

    if (map->cells[i].lo == column || map->cells[i].hi <= column)
        return;
    uint32_t made = new_cell(map, &map->cells[i], column, map->cells[i].hi, map->cells[i].next);
    map->cells[i].hi = column;
    map->cells[i].next = made;
}

static void add_hit(zinf_map *map, uint64_t lo, uint64_t hi, uint32_t cell, bool foreign)
{
    if (work(map, 16) && grow(map, &map->hits, &map->cap_hits, map->n_hits, sizeof *map->hits))
        map->hits[map->n_hits++] = (zinf_hit){lo, hi, cell, foreign};
}

/* The span's columns in plain bytes [lo, hi), at most a pitch of them: up to three pieces. */
static void touch_short(zinf_map *map, uint64_t lo, uint64_t hi, zinf_span span)
{
    uint32_t path[HEIGHT];

    for (uint64_t at = lo; at < hi && !map->failed;) {
        uint64_t column = (at - span.lo) % span.pitch;
        bool inside = column < span.cols;
        uint64_t next = at + (inside ? span.cols : span.pitch) - column;
        if (next > hi)
            next = hi;
        split_node(map, at);
        if (next < hi)
            split_node(map, next);
        if (inside)
            add_hit(map, at, next, map->nodes[find(map, at, path)].cell, false);
        at = next;
    }
}

void zinf_map_touch(zinf_map *map, zinf_span span)
{
    uint32_t path[HEIGHT], node;

    map->n_hits = 0;
    split_node(map, span.lo);
    split_node(map, span.hi);
    for (uint64_t at = span.lo; at < span.hi && !map->failed;) {
        node = find(map, at, path);
        const uint64_t hi = end_of(map, node), pitch = map->nodes[node].pitch;
        if (span.pitch && !pitch && hi - at <= span.pitch) {
            touch_short(map, at, hi, span);
        } else if (!span.pitch || (pitch && pitch != span.pitch)) {
            for (uint32_t i = map->nodes[node].cell; i; i = map->cells[i].next)
                add_hit(map, at, hi, i, span.pitch);
        } else {
            const uint64_t first = span.lo % span.pitch, last = first + span.cols;
            if (!pitch) {
                map->nodes[node].pitch = span.pitch;
                map->cells[map->nodes[node].cell].hi = span.pitch;
            }
            split_cell(map, node, first);
            split_cell(map, node, last % span.pitch);
            for (uint32_t i = map->nodes[node].cell; i && work(map, 1); i = map->cells[i].next)
                if ((map->cells[i].lo >= first && map->cells[i].lo < last) ||
                    map->cells[i].lo + span.pitch < last)
                    add_hit(map, at, hi, i, false);
        }
        at = hi;
    }
}

static void write_plain(zinf_map *map, uint64_t lo, uint64_t hi, const zinf_cell *content)
{
    uint32_t path[HEIGHT], node = find(map, lo, path);

    erase(map, lo, hi);
    free_cells(map, map->nodes[node].cell);
    map->nodes[node].pitch = 0;
    map->nodes[node].cell = new_cell(map, content, 0, UINT64_MAX, 0);
}

void zinf_map_write(zinf_map *map, zinf_span span, const zinf_cell *content)
{
    if (!span.pitch) {
        write_plain(map, span.lo, span.hi, content);
        return;
    }
    bool foreign = false;
    zinf_cell unknown = *content;
    unknown.value = ZINF_NONE;
    unknown.origin = ZINF_NO_ORIGIN;
    for (uint32_t h = 0; h < map->n_hits; h++) {
        /* A matrix of other shape lies here: what stays of it between the columns may not be
         * read any more, and counts as written now, which is after whatever wrote it. */
        if (map->hits[h].foreign && (h == 0 || map->hits[h - 1].lo != map->hits[h].lo))
            write_plain(map, map->hits[h].lo, map->hits[h].hi, &unknown);
        foreign |= map->hits[h].foreign;
    }
    if (foreign)
        zinf_map_touch(map, span);
    for (uint32_t h = 0; h < map->n_hits; h++) {
        zinf_cell *cell = &map->cells[map->hits[h].cell];
        const uint64_t lo = cell->lo, hi = cell->hi;
        const uint32_t next = cell->next;
        *cell = *content;
        cell->lo = lo;
        cell->hi = hi;
        cell->next = next;
    }
}

bool zinf_map_init(zinf_map *map, uint64_t most_work)
{
    const zinf_cell nothing = {.value = ZINF_NONE, .writer = ZINF_NONE, .origin = ZINF_NO_ORIGIN};

    map->n_cells = map->n_nodes = map->free_cell = map->free_node = 0;
    map->random = 2463534242u;
    map->work = 0;
    map->most_work = most_work;
    if (!grow(map, &map->cells, &map->cap_cells, 0, sizeof *map->cells) ||
        !grow(map, &map->hits, &map->cap_hits, 0, sizeof *map->hits) ||
        !grow(map, &map->nodes, &map->cap_nodes, 0, sizeof *map->nodes))
        return false;
    map->cells[0] = nothing;
    map->n_cells = map->n_nodes = 1;
    map->nodes[0] = (zinf_map_node){0};
    map->nodes[0].cell = new_cell(map, &nothing, 0, UINT64_MAX, 0);
    return true;
}

void zinf_map_free(zinf_map *map)
{
    free(map->nodes);
    free(map->cells);
    free(map->hits);
    *map = (zinf_map){0};
}
