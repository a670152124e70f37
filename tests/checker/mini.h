/* tests/checker/mini.h - miniature plans: a gpt2 without blocks, its vocabulary in tiles, lowered
 * by hand for any tiers, with exactly the waits that it needs.
 * Also the oracle: whether the order of a plan can change what it computes.
 */
#ifndef ZINF_TESTS_CHECKER_MINI_H
#define ZINF_TESTS_CHECKER_MINI_H

#include "runtime/opcodes.h"
#include "runtime/plan.h"

enum { MINI_B = 2, MINI_T = 8, MINI_N = 16, MINI_C = 16, MINI_V = 16, MINI_TILES = 2 };
enum { MINI_WTE, MINI_WPE = MINI_TILES, MINI_NORM, MINI_UNITS }; /* tiles from MINI_WTE on */

typedef struct mini_options {
    zinf_tier param, grad, optimizer;
    bool unified;
    uint32_t accumulation;
} mini_options;

/* The plan owns its arrays as any other; free with mini_free. */
zinf_plan mini_plan(const mini_options *options);
void mini_free(zinf_plan *plan);

/* First instruction at or after `from` with this opcode (and unit, unless ZINF_NONE). */
uint32_t mini_find(const zinf_plan *plan, uint32_t from, unsigned opcode, uint32_t unit);

/* Replaces all waits by the fewest that order all conflicts (of any program, any iteration). */
void mini_add_waits(zinf_plan *plan);
/* Every two conflicting accesses are ordered; brute force over all pairs, loops in full. */
bool mini_is_ordered(const zinf_plan *plan);

#endif
