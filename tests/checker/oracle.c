/* tests/checker/oracle.c - see mini.h: what a plan does, by brute force, sharing nothing with the
 * checker. Loops run in full; order is tested on all pairs; memory is a token per byte.
 */
#include <stdlib.h>
#include <string.h>

#include "mini.h"

typedef struct visit {
    uint32_t instr, segment;
    uint64_t iteration;
    uint32_t clock[ZINF_N_QUEUES]; /* visits of each queue that surely ended before, or self */
} visit;

/* All instructions of a program in program order. */
static visit *visits_of(const zinf_plan *plan, uint32_t kind, uint32_t *ret_n)
{
    const zinf_program *program = &plan->programs[kind];
    uint32_t n = 0;

    for (uint32_t s = 0; s < program->n_segments; s++)
        n += plan->segments[program->first_segment + s].n_instrs *
             (uint32_t)plan->segments[program->first_segment + s].count;
    visit *all = calloc(n + 1, sizeof *all);
    *ret_n = 0;
    for (uint32_t s = 0; s < program->n_segments; s++) {
        const zinf_segment *segment = &plan->segments[program->first_segment + s];
        for (uint64_t it = 0; it < segment->count; it++)
            for (uint32_t i = 0; i < segment->n_instrs; i++)
                all[(*ret_n)++] = (visit){.instr = segment->first_instr + i,
                                          .segment = program->first_segment + s,
                                          .iteration = it};
    }
    return all;
}

/* Index of the visit that this wait of visit v means, or n: none. */
static uint32_t target(const zinf_plan *plan, const visit *all, uint32_t n, uint32_t v,
                       const zinf_wait *wait)
{
    const bool same = wait->instr >= plan->segments[all[v].segment].first_instr;

    if (same && wait->distance > all[v].iteration)
        return n;
    for (uint32_t k = v; k-- > 0;)
        if (all[k].instr == wait->instr &&
            (!same || all[k].iteration == all[v].iteration - wait->distance))
            return k;
    return n;
}

static void advance(const zinf_plan *plan, visit *all, uint32_t n, uint32_t v)
{
    const zinf_instr *instr = &plan->instrs[all[v].instr];

    memset(all[v].clock, 0, sizeof all[v].clock);
    for (uint32_t k = v; k-- > 0;) {
        if (plan->instrs[all[k].instr].queue == instr->queue) {
            memcpy(all[v].clock, all[k].clock, sizeof all[v].clock);
            break;
        }
    }
    for (uint32_t w = 0; w < instr->n_waits; w++) {
        uint32_t k = target(plan, all, n, v, &plan->waits[instr->wait0 + w]);
        for (int q = 0; k < n && q < ZINF_N_QUEUES; q++)
            if (all[k].clock[q] > all[v].clock[q])
                all[v].clock[q] = all[k].clock[q];
    }
    all[v].clock[instr->queue] = v + 1;
}

static bool overlap(const zinf_operand *a, uint64_t i, const zinf_operand *b, uint64_t j)
{
    const uint64_t ea = zinf_dtype_bytes(a->dtype), eb = zinf_dtype_bytes(b->dtype);
    const uint64_t at = a->offset + i * a->stride, bt = b->offset + j * b->stride;

    if (a->tier != b->tier || !a->bytes || !b->bytes || at >= bt + b->bytes ||
        bt >= at + a->bytes)
        return false;
    for (uint64_t r = 0; r < a->rows; r++)
        for (uint64_t s = 0; s < b->rows; s++)
            if (at + r * a->ld * ea < bt + (s * b->ld + b->cols) * eb &&
                bt + s * b->ld * eb < at + (r * a->ld + a->cols) * ea)
                return true;
    return false;
}

static bool conflict(const zinf_plan *plan, const visit *x, const visit *y)
{
    const zinf_instr *a = &plan->instrs[x->instr], *b = &plan->instrs[y->instr];

    if (a->queue == b->queue)
        return false;
    for (uint32_t i = 0; i < a->n_operands; i++)
        for (uint32_t k = 0; k < b->n_operands; k++)
            if ((zinf_operand_access(a, i).writes || zinf_operand_access(b, k).writes) &&
                overlap(&plan->operands[a->operand0 + i], x->iteration,
                        &plan->operands[b->operand0 + k], y->iteration))
                return true;
    return false;
}

bool mini_is_ordered(const zinf_plan *plan)
{
    bool ordered = true;

    for (uint32_t kind = 0; kind < ZINF_N_PROGRAMS; kind++) {
        uint32_t n;
        visit *all = visits_of(plan, kind, &n);
        for (uint32_t v = 0; v < n; v++) {
            advance(plan, all, n, v);
            for (uint32_t k = 0; ordered && k < v; k++)
                if (all[v].clock[plan->instrs[all[k].instr].queue] <= k &&
                    conflict(plan, &all[k], &all[v]))
                    ordered = false;
        }
        free(all);
    }
    return ordered;
}

void mini_add_waits(zinf_plan *plan)
{
    enum { MOST = 32 };
    zinf_wait(*waits)[MOST] = calloc(plan->n_instrs, sizeof *waits);

    plan->n_waits = 0;
    for (uint32_t kind = 0; kind < ZINF_N_PROGRAMS; kind++) {
        uint32_t n;
        visit *all = visits_of(plan, kind, &n);
        for (uint32_t v = 0; v < n; v++) {
            zinf_instr *instr = &plan->instrs[all[v].instr];
            /* this instruction's waits last in the array while it is worked on */
            instr->wait0 = 2048;
            memcpy(&plan->waits[2048], waits[all[v].instr], sizeof waits[0]);
            advance(plan, all, n, v);
            for (uint32_t k = v; k-- > 0;) {
                if (all[v].clock[plan->instrs[all[k].instr].queue] > k ||
                    !conflict(plan, &all[k], &all[v]))
                    continue;
                const bool same = all[k].segment == all[v].segment;
                waits[all[v].instr][instr->n_waits++] = (zinf_wait){
                    all[k].instr, same ? (uint32_t)(all[v].iteration - all[k].iteration) : 0};
                memcpy(&plan->waits[2048], waits[all[v].instr], sizeof waits[0]);
                advance(plan, all, n, v);
            }
        }
        free(all);
    }
    for (uint32_t i = 0; i < plan->n_instrs; i++) {
        plan->instrs[i].wait0 = plan->n_waits;
        memcpy(&plan->waits[plan->n_waits], waits[i],
               plan->instrs[i].n_waits * sizeof waits[0][0]);
        plan->n_waits += plan->instrs[i].n_waits;
    }
    free(waits);
}

/* ---- what it computes ---- */

static uint64_t mix(uint64_t a, uint64_t b)
{
    a = (a ^ b) * 0x9e3779b97f4a7c15u + b;
    a ^= a >> 29;
    a *= 0xbf58476d1ce4e5b9u;
    return a ^ a >> 32;
}

typedef struct machine {
    uint64_t *bytes[ZINF_N_TIERS]; /* a token per byte */
    uint64_t size[ZINF_N_TIERS];
    uint64_t result, n_batches, n_garbage;
} machine;

static uint64_t *byte_of(const machine *m, const zinf_operand *o, uint64_t it, uint64_t k)
{
    const uint64_t row = o->cols * zinf_dtype_bytes(o->dtype);

    return &m->bytes[o->tier][o->offset + it * o->stride + k / row * o->ld *
                              zinf_dtype_bytes(o->dtype) + k % row];
}

static uint64_t n_bytes(const zinf_operand *o)
{
    return o->bytes ? o->rows * o->cols * zinf_dtype_bytes(o->dtype) : 0;
}

static void execute(const zinf_plan *plan, machine *m, const visit *v)
{
    const zinf_instr *instr = &plan->instrs[v->instr];
    const zinf_operand *o = &plan->operands[instr->operand0];
    const char *letters = zinf_opcode_get(instr->opcode)->access;
    uint64_t hash = mix(instr->opcode, 1);

    if (instr->opcode >= ZINF_OP_UPLOAD && instr->opcode <= ZINF_OP_COPY) {
        for (uint64_t k = 0; k < n_bytes(&o[0]) && k < n_bytes(&o[1]); k++)
            *byte_of(m, &o[1], v->iteration, k) = *byte_of(m, &o[0], v->iteration, k);
        return;
    }
    if (instr->opcode == ZINF_OP_ACCUMULATE) {
        for (uint64_t k = 0; k < n_bytes(&o[0]); k++)
            *byte_of(m, &o[1], v->iteration, k) += *byte_of(m, &o[0], v->iteration, k);
        return;
    }
    for (int i = 0; i < 3; i++)
        hash = mix(hash, instr->attr[i]);
    if (instr->opcode == ZINF_OP_INIT || instr->opcode == ZINF_OP_IMPORT ||
        instr->opcode == ZINF_OP_EXPORT)
        hash = mix(hash, instr->unit);
    if (instr->opcode == ZINF_OP_BATCH)
        hash = mix(hash, ++m->n_batches);
    for (uint32_t s = 0; s < instr->n_operands; s++) {
        if (letters[s] != 's')
            hash = mix(mix(mix(hash, o[s].rows), o[s].cols), o[s].dtype);
        for (uint64_t k = 0; (letters[s] == 'r' || letters[s] == 'R' || letters[s] == 'x') &&
             k < n_bytes(&o[s]); k++)
            hash = mix(hash, *byte_of(m, &o[s], v->iteration, k));
    }
    if (instr->opcode == ZINF_OP_EXPORT)
        m->result += hash; /* in any order */
    for (uint32_t s = 0; s < instr->n_operands; s++) {
        for (uint64_t k = 0; zinf_operand_access(instr, s).writes && k < n_bytes(&o[s]); k++) {
            uint64_t *byte = byte_of(m, &o[s], v->iteration, k);
            if (letters[s] == 's') {
                /* garbage; the middle of a large one is far from all others */
                *byte = ++m->n_garbage;
                if (k == 8192 && n_bytes(&o[s]) > 3 * 8192)
                    k = n_bytes(&o[s]) - 8192;
                continue;
            }
            const uint64_t token = mix(mix(hash, s), k);
            if (letters[s] == 'a' && zinf_operand_access(instr, s).reads)
                *byte += token; /* sums commute: what is added counts, not the order */
            else
                *byte = token;
        }
    }
}

static void mark(const machine *m, uint8_t *const keep[ZINF_N_TIERS], const zinf_region *r,
                 uint64_t at, uint64_t bytes)
{
    for (uint64_t k = r->offset + at; k < r->offset + at + bytes && k < m->size[r->tier]; k++)
        keep[r->tier][k] = 1;
}

uint64_t mini_result(const zinf_plan *plan)
{
    static const zinf_program_kind order[] = {
        ZINF_PROGRAM_INIT, ZINF_PROGRAM_STEP, ZINF_PROGRAM_EVAL, ZINF_PROGRAM_STEP,
        ZINF_PROGRAM_SAVE, ZINF_PROGRAM_LOAD, ZINF_PROGRAM_STEP};
    machine m = {0};
    uint8_t *keep[ZINF_N_TIERS];

    for (int t = 0; t < ZINF_N_TIERS; t++) {
        m.size[t] = plan->machine.arena_bytes[t] + 1024;
        m.bytes[t] = calloc(m.size[t], 8);
        keep[t] = calloc(m.size[t], 1);
    }
    for (uint32_t u = 0; u < plan->n_units; u++) {
        const zinf_unit *unit = &plan->units[u];
        mark(&m, keep, &unit->param, 0, 2 * unit->n_elems);
        for (uint64_t i = 0; i < 3; i++)
            mark(&m, keep, &unit->optimizer, i * unit->array_stride, 4 * unit->n_elems);
    }
    for (size_t p = 0; p < sizeof order / sizeof *order; p++) {
        uint32_t n;
        visit *all = visits_of(plan, order[p], &n);
        for (int t = 0; t < ZINF_N_TIERS; t++)
            for (uint64_t k = 0; k < m.size[t]; k++)
                if (!keep[t][k])
                    m.bytes[t][k] = ((p + 1) << 56 | (uint64_t)t << 48 | k) * 0x9e3779b97f4a7c15u;
        for (uint32_t v = 0; v < n; v++)
            execute(plan, &m, &all[v]);
        free(all);
        for (int t = 0; t < ZINF_N_TIERS; t++)
            for (uint64_t k = 0; k < m.size[t]; k++)
                if (keep[t][k] || (t == ZINF_TIER_SCALAR && k < 8 * ZINF_SCALAR_PARTIALS &&
                                   order[p] != ZINF_PROGRAM_INIT))
                    m.result = mix(m.result, m.bytes[t][k]);
    }
    for (int t = 0; t < ZINF_N_TIERS; t++) {
        free(m.bytes[t]);
        free(keep[t]);
    }
    return m.result;
}
