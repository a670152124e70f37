/* planner/graph.h - the model as tensors and units: what exists, where each row of each
 * parameter lives. Execution order is lower.c's.
 */
#ifndef ZINF_PLANNER_GRAPH_H
#define ZINF_PLANNER_GRAPH_H

#include "planner/build.h"
#include "planner/family.h"

/* First row of tile t of T over R rows; tile t ends where t + 1 begins. Balanced: sizes differ
 * by at most one, none is empty while T <= R. */
static inline uint64_t zinf_tile_row(uint64_t rows, uint32_t tiles, uint32_t t)
{
    return rows / tiles * t + rows % tiles * t / tiles;
}

/* Elements of a rank's shard of a unit. */
uint64_t zinf_shard_elems(uint64_t n_elems, uint32_t ranks);

/* Unit numbers. Units are ordered: tiles of the token embedding, positions if they are learned,
 * then for each block its small tensors and the tiles of QKV, OUT, FC, PROJ, then the final norm,
 * and last the tiles of an untied head. */
uint32_t zinf_unit_of_position(const zinf_decisions *d); /* of a family that learns them */
uint32_t zinf_unit_of_small(const zinf_model *model, const zinf_decisions *d, uint64_t layer);
uint32_t zinf_unit_of_tile(const zinf_model *model, const zinf_decisions *d, uint64_t layer,
                           zinf_linear linear, uint32_t tile); /* not VOCAB */
uint32_t zinf_unit_of_final_norm(const zinf_model *model, const zinf_decisions *d);
uint32_t zinf_unit_of_head(const zinf_model *model, const zinf_decisions *d, uint32_t tile);

/* Appends tensors, units, parts and the persistent regions with their buffers: unit u's regions
 * are buffers 3u (param), 3u + 1 (grad), 3u + 2 (optimizer). */
void zinf_graph_build(zinf_builder *b, const zinf_model *model, const zinf_decisions *d);

#endif
