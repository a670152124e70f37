/* planner/search.h - chooses the decisions: every candidate by closed forms, the best few
 * compiled and simulated, the fastest that fits kept.
 */
#ifndef ZINF_PLANNER_SEARCH_H
#define ZINF_PLANNER_SEARCH_H

#include "planner/settings.h"
#include "planner/spec.h"

enum { ZINF_MAX_TOP = 32, ZINF_MAX_SUGGESTIONS = 6 };

typedef struct zinf_search_entry {
    zinf_decisions decisions;
    double estimated_s, simulated_s; /* closed form; simulated, < 0 if not compiled */
    uint64_t arena_bytes[ZINF_N_TIERS];
} zinf_search_entry;

typedef struct zinf_search_result {
    zinf_plan plan; /* the best; empty if nothing fits */
    zinf_search_entry top[ZINF_MAX_TOP];
    uint32_t n_top;
    uint64_t n_candidates;
    /* If nothing fits: the least short candidate. */
    zinf_decisions nearest;
    uint64_t short_bytes[ZINF_N_TIERS];
    char suggestions[ZINF_MAX_SUGGESTIONS][160];
    uint32_t n_suggestions;
} zinf_search_result;

/* n_top: how many alternatives to keep (1 .. ZINF_MAX_TOP). ZINF_DOES_NOT_FIT with the tier, the
 * bytes and changes that would fit (each tried) in ret_result and err. Free with
 * zinf_search_free in either case. Same inputs, same result. */
zinf_status zinf_search(const zinf_model *model, const zinf_cluster *cluster,
                        const zinf_settings *settings, uint32_t n_top,
                        zinf_search_result *ret_result, zinf_error *err);
void zinf_search_free(zinf_search_result *result);

#endif
