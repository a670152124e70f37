/* runtime/checker_map.h - the checker's model of one memory: for every byte, what was last
 * written there, by whom, and who has read it since.
 *
 * An ordered map (skip list) of nodes that partition the address space. A plain node has one
 * cell; a node with a pitch holds column ranges of a matrix: the byte at address a belongs to the
 * cell whose [lo, hi) contains a % pitch. So a tile of columns costs one node, not one per row,
 * and a write replaces what it covers: the cost is amortised O(log n) per access.
 */
#ifndef ZINF_RUNTIME_CHECKER_MAP_H
#define ZINF_RUNTIME_CHECKER_MAP_H

#include "runtime/plan.h"

#define ZINF_NO_ORIGIN INT64_MIN

typedef struct zinf_cell {
    uint64_t lo, hi;     /* columns in bytes, modulo the node's pitch; 0, UINT64_MAX if plain */
    uint64_t generation; /* of the contents, see checker.c */
    int64_t origin;      /* address of the first byte of the value, or ZINF_NO_ORIGIN */
    uint32_t value;      /* ZINF_NONE: nothing that may be read */
    uint32_t writer;     /* instruction; ZINF_NONE: on entry */
    uint32_t writer_clock, next;
    uint32_t sums[2];    /* gradients: contributions by the embedding, by others */
    uint32_t reader_clock[ZINF_N_QUEUES]; /* latest read in each queue since the write; 0: none */
    uint8_t writer_queue, dtype;
} zinf_cell;

/* Bytes [lo, hi), or, if pitch > 0, columns of them: [lo + i * pitch, + cols). */
typedef struct zinf_span {
    uint64_t lo, hi, pitch, cols;
} zinf_span;

typedef struct zinf_hit {
    uint64_t lo, hi; /* of the node, inside the span */
    uint32_t cell;
    bool foreign;    /* other pitch: cell may also hold bytes outside the span */
} zinf_hit;

typedef struct zinf_map {
    struct zinf_map_node *nodes;
    zinf_cell *cells;
    zinf_hit *hits;
    uint32_t n_nodes, cap_nodes, free_node, n_cells, cap_cells, free_cell, n_hits, cap_hits;
    uint32_t random;
    uint64_t work, most_work; /* cells made, found and passed: bounds time and memory */
    bool failed; /* out of memory or work: nothing in the map means anything any more */
} zinf_map;

/* One node, nothing written; false if memory is short. After most_work it has failed. */
bool zinf_map_init(zinf_map *map, uint64_t most_work);
void zinf_map_free(zinf_map *map); /* accepts a zeroed map */

/* Finds the cells of the span, splitting nodes at its edges: map->hits, ascending. */
void zinf_map_touch(zinf_map *map, zinf_span span);
/* The span becomes one cell with this content; call after touch with the same span. */
void zinf_map_write(zinf_map *map, zinf_span span, const zinf_cell *content);

#endif
