/* tests/fuzz/plan_file.h - a plan file seen as bytes, for those who forge one: the layout that
 * plan_io.c states, found from the header's counts, and checksums that agree.
 */
#ifndef ZINF_TESTS_FUZZ_PLAN_FILE_H
#define ZINF_TESTS_FUZZ_PLAN_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <xxhash.h>

#include "runtime/plan.h"

enum { PLAN_SECTIONS = 10, PLAN_HEADER = 72 };

typedef struct plan_header {
    char magic[8];
    uint32_t version, n_sections;
    uint64_t hash, file_bytes;
    uint32_t counts[PLAN_SECTIONS];
} plan_header;

typedef struct plan_fixed {
    uint64_t counts_hash;
    zinf_model_info model;
    zinf_job_info job;
    zinf_machine_info machine;
    zinf_decisions decisions;
    zinf_predicted predicted;
    zinf_program programs[ZINF_N_PROGRAMS];
} plan_fixed;

static const uint32_t plan_element[PLAN_SECTIONS] = {
    sizeof(zinf_segment), sizeof(zinf_instr), sizeof(zinf_operand), sizeof(zinf_wait),
    sizeof(zinf_tensor), sizeof(zinf_unit), sizeof(zinf_part), sizeof(zinf_item), 4, 1};

/* Start of each section and the end of the last. Sums of counts cannot overflow 64 bits. */
static inline void plan_layout(const plan_header *h, uint64_t at[PLAN_SECTIONS + 1])
{
    at[0] = sizeof(plan_header) + sizeof(plan_fixed);
    for (int i = 0; i < PLAN_SECTIONS; i++)
        at[i + 1] = at[i] + (((uint64_t)h->counts[i] * plan_element[i] + 7) & ~7ull);
}

/* Whatever the bytes say, they say it with the right checksums and size. */
static inline bool plan_seal(uint8_t *bytes, size_t n)
{
    plan_header h;

    if (n < sizeof h + sizeof(plan_fixed))
        return false;
    memcpy(&h, bytes, sizeof h);
    memcpy(h.magic, "ZINFPLAN", 8);
    h.version = ZINF_PLAN_VERSION;
    h.n_sections = PLAN_SECTIONS;
    h.file_bytes = n;
    const uint64_t counts_hash = XXH64(h.counts, sizeof h.counts, ZINF_PLAN_VERSION);
    memcpy(bytes + sizeof h + offsetof(plan_fixed, counts_hash), &counts_hash, 8);
    h.hash = XXH64(bytes + sizeof h, n - sizeof h, ZINF_PLAN_VERSION);
    memcpy(bytes, &h, sizeof h);
    return true;
}

#endif
