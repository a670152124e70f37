/* planner/schedule.c - see schedule.h.
 *
 * Each program is walked in program order, counted loops unrolled three times. Memory is cut
 * into cells at every operand boundary; a cell knows its last writer and, per queue, its last
 * reader. An instance must follow those it conflicts with; vector clocks (per queue, how many
 * instances are known to be finished) drop what is implied already.
 *
 * Why three iterations show every wait of a longer loop: addresses of transients repeat each
 * iteration and strided operands count with their whole range, so iteration i conflicts with
 * i - 1 as iteration 2 does with 1, and a conflict at a greater distance is implied by the one
 * at distance 1 and queue order. Waits found in any iteration hold in all of them.
 */
#include "planner/schedule.h"

#include <stdlib.h>
#include <string.h>

enum { UNROLL = 3 };

typedef struct cell {
    uint32_t writer_queue, writer; /* sequence number in its queue, from 1; 0: none */
    uint32_t readers[ZINF_N_QUEUES];
} cell;

typedef struct instance {
    uint32_t instr, segment, iteration;
    uint32_t clock[ZINF_N_QUEUES]; /* finished when this one has finished */
} instance;

typedef struct edge {
    uint32_t instr;
    zinf_wait wait;
} edge;

typedef struct scheduler {
    zinf_builder *b;
    uint64_t *bounds[ZINF_N_TIERS]; /* sorted, distinct */
    cell *cells[ZINF_N_TIERS];
    uint32_t n_bounds[ZINF_N_TIERS];
    instance *instances;
    uint32_t *queue_instances[ZINF_N_QUEUES]; /* sequence number - 1 -> instance */
    uint32_t n_instances, n_in_queue[ZINF_N_QUEUES];
    edge *edges;
    uint32_t n_edges, cap_edges;
} scheduler;

static int compare_u64(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

static uint64_t operand_end(const zinf_plan *plan, const zinf_instr *instr, const zinf_operand *o,
                            uint64_t count)
{
    return zinf_operand_at(plan, instr, o) + o->stride * (count - 1) + o->bytes;
}

/* Cuts each tier at the boundaries of this program's operands. */
static bool cut(scheduler *s, const zinf_program *program)
{
    const zinf_plan *plan = s->b->plan;
    uint32_t counts[ZINF_N_TIERS] = {0};

    for (int pass = 0; pass < 2; pass++) {
        for (uint32_t g = 0; g < program->n_segments; g++) {
            const zinf_segment *segment = &plan->segments[program->first_segment + g];
            for (uint32_t i = 0; i < segment->n_instrs; i++) {
                const zinf_instr *instr = &plan->instrs[segment->first_instr + i];
                for (uint32_t k = 0; k < instr->n_operands; k++) {
                    const zinf_operand *o = &plan->operands[instr->operand0 + k];
                    if (!o->bytes)
                        continue;
                    if (pass) {
                        s->bounds[o->tier][s->n_bounds[o->tier]++] =
                            zinf_operand_at(plan, instr, o);
                        s->bounds[o->tier][s->n_bounds[o->tier]++] =
                            operand_end(plan, instr, o, segment->count);
                    } else {
                        counts[o->tier] += 2;
                    }
                }
            }
        }
        for (int t = 0; t < ZINF_N_TIERS && !pass; t++) {
            s->bounds[t] = malloc((counts[t] + 1) * sizeof *s->bounds[t]);
            s->cells[t] = calloc(counts[t] + 1, sizeof *s->cells[t]);
            if (!s->bounds[t] || !s->cells[t])
                return false;
        }
    }
    for (int t = 0; t < ZINF_N_TIERS; t++) {
        uint32_t n = 0;
        qsort(s->bounds[t], s->n_bounds[t], sizeof *s->bounds[t], compare_u64);
        for (uint32_t i = 0; i < s->n_bounds[t]; i++)
            if (!n || s->bounds[t][i] != s->bounds[t][n - 1])
                s->bounds[t][n++] = s->bounds[t][i];
        s->n_bounds[t] = n;
    }
    return true;
}

static uint32_t find_cell(const scheduler *s, int tier, uint64_t offset)
{
    uint32_t low = 0, high = s->n_bounds[tier];

    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (s->bounds[tier][middle] < offset)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Raises need[q] to the latest instance of queue q that the access to a slot conflicts with, then
 * (mark) records the access itself as instance `sequence` of its queue. */
static void touch(scheduler *s, const zinf_instr *instr, uint32_t slot, uint64_t count,
                  uint32_t sequence, bool mark, uint32_t need[ZINF_N_QUEUES])
{
    const zinf_operand *o = &s->b->plan->operands[instr->operand0 + slot];
    const zinf_access access = zinf_operand_access(instr, slot);
    const uint64_t end = operand_end(s->b->plan, instr, o, count);
    const uint32_t queue = instr->queue;

    for (uint32_t c = find_cell(s, o->tier, zinf_operand_at(s->b->plan, instr, o));
         c < s->n_bounds[o->tier] && s->bounds[o->tier][c] < end; c++) {
        cell *at = &s->cells[o->tier][c];
        if (!mark) {
            if (at->writer > need[at->writer_queue])
                need[at->writer_queue] = at->writer;
            for (int q = 0; q < ZINF_N_QUEUES && access.writes; q++)
                if (at->readers[q] > need[q])
                    need[q] = at->readers[q];
        } else if (access.writes) {
            at->writer_queue = queue;
            at->writer = sequence;
            memset(at->readers, 0, sizeof at->readers);
        } else {
            at->readers[queue] = sequence;
        }
    }
}

static void add_edge(scheduler *s, const instance *from, const instance *to)
{
    zinf_wait wait = {.instr = to->instr,
                      .distance = to->segment == from->segment
                                      ? from->iteration - to->iteration : 0};

    for (uint32_t i = s->n_edges; i-- > 0 && s->edges[i].instr == from->instr;)
        if (s->edges[i].wait.instr == wait.instr && s->edges[i].wait.distance == wait.distance)
            return;
    if (zinf_grow(s->b, &s->edges, s->n_edges, &s->cap_edges, sizeof *s->edges))
        s->edges[s->n_edges++] = (edge){from->instr, wait};
}

/* Synchronous collectives: each after all compute before it, compute after every one before it. */
static void wait_for_each_other(const scheduler *s, uint32_t queue, uint32_t need[ZINF_N_QUEUES])
{
    const zinf_queue other = queue == ZINF_QUEUE_COLLECTIVE ? ZINF_QUEUE_COMPUTE
                                                            : ZINF_QUEUE_COLLECTIVE;

    if (queue == ZINF_QUEUE_COLLECTIVE || queue == ZINF_QUEUE_COMPUTE)
        need[other] = s->n_in_queue[other];
}

static void visit(scheduler *s, uint32_t segment, uint32_t index, uint32_t iteration)
{
    const zinf_plan *plan = s->b->plan;
    const zinf_instr *instr = &plan->instrs[index];
    const uint64_t count = plan->segments[segment].count;
    const uint32_t queue = instr->queue;
    instance *self = &s->instances[s->n_instances];
    uint32_t need[ZINF_N_QUEUES] = {0}, sequence = s->n_in_queue[queue] + 1;

    *self = (instance){.instr = index, .segment = segment, .iteration = iteration};
    if (sequence > 1)
        memcpy(self->clock, s->instances[s->queue_instances[queue][sequence - 2]].clock,
               sizeof self->clock);
    for (int mark = 0; mark < 2; mark++)
        for (uint32_t k = 0; k < instr->n_operands; k++)
            if (plan->operands[instr->operand0 + k].bytes)
                touch(s, instr, k, count, sequence, mark, need);
    if (plan->decisions.collectives == ZINF_SYNCHRONOUS)
        wait_for_each_other(s, queue, need);
    need[queue] = 0;
    for (int q = 0; q < ZINF_N_QUEUES; q++) {
        bool implied = need[q] <= self->clock[q];
        for (int other = 0; other < ZINF_N_QUEUES && !implied; other++)
            implied = other != q && need[other] > self->clock[other] &&
                      s->instances[s->queue_instances[other][need[other] - 1]].clock[q] >=
                          need[q];
        if (implied)
            continue;
        add_edge(s, self, &s->instances[s->queue_instances[q][need[q] - 1]]);
    }
    for (int q = 0; q < ZINF_N_QUEUES; q++) {
        if (!need[q])
            continue;
        const instance *to = &s->instances[s->queue_instances[q][need[q] - 1]];
        for (int k = 0; k < ZINF_N_QUEUES; k++)
            if (to->clock[k] > self->clock[k])
                self->clock[k] = to->clock[k];
    }
    self->clock[queue] = sequence;
    s->queue_instances[queue][s->n_in_queue[queue]++] = s->n_instances++;
}

static void schedule_program(scheduler *s, const zinf_program *program)
{
    const zinf_plan *plan = s->b->plan;
    uint32_t most = 0;
    bool ok = cut(s, program);

    for (uint32_t g = 0; g < program->n_segments; g++)
        most += UNROLL * plan->segments[program->first_segment + g].n_instrs;
    s->instances = malloc((most + 1) * sizeof *s->instances);
    ok = ok && s->instances;
    for (int q = 0; q < ZINF_N_QUEUES; q++) {
        s->queue_instances[q] = malloc((most + 1) * sizeof *s->queue_instances[q]);
        ok = ok && s->queue_instances[q];
    }
    if (!ok)
        zinf_fail(s->b->err, ZINF_MACHINE, "out of memory while scheduling");
    for (uint32_t g = 0; ok && g < program->n_segments; g++) {
        const uint32_t segment = program->first_segment + g;
        const uint64_t count = plan->segments[segment].count;
        for (uint32_t i = 0; i < (count < UNROLL ? count : UNROLL); i++)
            for (uint32_t k = 0; k < plan->segments[segment].n_instrs; k++)
                visit(s, segment, plan->segments[segment].first_instr + k, i);
    }
    for (int t = 0; t < ZINF_N_TIERS; t++) {
        free(s->bounds[t]);
        free(s->cells[t]);
    }
    for (int q = 0; q < ZINF_N_QUEUES; q++)
        free(s->queue_instances[q]);
    free(s->instances);
}

static int compare_edges(const void *a, const void *b)
{
    const edge *x = a, *y = b;

    if (x->instr != y->instr)
        return x->instr < y->instr ? -1 : 1;
    if (x->wait.instr != y->wait.instr)
        return x->wait.instr < y->wait.instr ? -1 : 1;
    return x->wait.distance < y->wait.distance ? -1 : x->wait.distance > y->wait.distance;
}

void zinf_schedule(zinf_builder *b)
{
    zinf_plan *plan = b->plan;
    edge *edges = NULL;
    uint32_t n_edges = 0, cap_edges = 0;

    for (int p = 0; p < ZINF_N_PROGRAMS && b->err->status == ZINF_OK; p++) {
        scheduler s = {.b = b, .edges = edges, .n_edges = n_edges, .cap_edges = cap_edges};
        schedule_program(&s, &plan->programs[p]);
        edges = s.edges;
        n_edges = s.n_edges;
        cap_edges = s.cap_edges;
    }
    if (n_edges)
        qsort(edges, n_edges, sizeof *edges, compare_edges);
    for (uint32_t i = 0; i < n_edges; i++) {
        zinf_instr *instr = &plan->instrs[edges[i].instr];
        if (i && !memcmp(&edges[i], &edges[i - 1], sizeof *edges))
            continue;
        if (!zinf_grow(b, &plan->waits, plan->n_waits, &b->cap_waits, sizeof *plan->waits))
            break;
        if (!instr->n_waits++)
            instr->wait0 = plan->n_waits;
        plan->waits[plan->n_waits++] = edges[i].wait;
    }
    free(edges);
}
