/* runtime/cell.h - what the checker knows of a piece of memory: the exact name of the value that is
 * in it, who wrote it and who has read it since. Knows no plan and no address but the value's own.
 */
#ifndef ZINF_RUNTIME_CELL_H
#define ZINF_RUNTIME_CELL_H

#include "runtime/plan_model.h"
#include "runtime/sums.h"

typedef struct zinf_cell {
    zinf_value_kind what;
    uint32_t of;     /* operator, unit; of SCALARS the first of `rows` units */
    uint64_t nth;    /* micro-batch, as visited; of a unit 1: not as the program found it */
    uint64_t rows;   /* by tiles: rows of the weight that are in it; 0: all */
    uint64_t origin; /* address of the first byte of the value */
    zinf_sums sums;  /* gradient, loss; micro-batches as visited */
    uint32_t value, writer, readers[ZINF_N_QUEUES]; /* last write, last reads since, as visits */
    uint8_t dtype;
} zinf_cell;

/* Is what is found another value than what is wanted? Then ret_text says in what. */
bool zinf_cell_differs(const zinf_cell *found, const zinf_cell *wanted, char ret_text[300]);

#endif
