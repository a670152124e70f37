/* runtime/timeline.c - see timeline.h. */
#include "runtime/timeline.h"

#include <stdlib.h>
#include <string.h>

enum { UNROLL = 3 };

typedef struct simulation {
    const zinf_plan *plan;
    const zinf_program *program;
    uint32_t unroll;
    /* instances in program order, and per queue the indices of its own */
    zinf_event *events;
    uint32_t *segments; /* [events] */
    uint32_t *order[ZINF_N_QUEUES];
    uint32_t n_events, n_order[ZINF_N_QUEUES];
    uint32_t next[ZINF_N_QUEUES];   /* head of each queue */
    uint32_t waited[ZINF_N_QUEUES]; /* waits of the head that are over: none is asked twice */
    uint8_t *finished;              /* [events] */
    uint32_t *first_event;          /* [segments of the program] */
} simulation;

static uint64_t iterations(const simulation *s, uint32_t segment)
{
    uint64_t count = s->plan->segments[segment].count;

    return count < s->unroll ? count : s->unroll;
}

/* The event that an instance waits for, or ZINF_NONE if there is none. */
static uint32_t wait_event(const simulation *s, uint32_t event, const zinf_wait *wait)
{
    uint32_t g = 0, end = s->program->n_segments; /* the last one that begins at or before */

    while (g + 1 < end) {
        const uint32_t middle = g + (end - g) / 2;
        if (s->plan->segments[s->program->first_segment + middle].first_instr <= wait->instr)
            g = middle;
        else
            end = middle;
    }
    const uint32_t segment = s->program->first_segment + g;
    const zinf_segment *seg = &s->plan->segments[segment];
    if (wait->instr < seg->first_instr || wait->instr - seg->first_instr >= seg->n_instrs)
        return ZINF_NONE;
    uint64_t iteration = iterations(s, segment) - 1;
    if (segment == s->segments[event]) {
        if (s->events[event].iteration < wait->distance)
            return ZINF_NONE;
        iteration = s->events[event].iteration - wait->distance;
    }
    return s->first_event[g] + (uint32_t)iteration * seg->n_instrs +
           (wait->instr - seg->first_instr);
}

static bool ready(simulation *s, int queue)
{
    const uint32_t event = s->order[queue][s->next[queue]];
    const zinf_instr *instr = &s->plan->instrs[s->events[event].instr];

    for (uint32_t *w = &s->waited[queue]; *w < instr->n_waits; (*w)++) {
        uint32_t target = wait_event(s, event, &s->plan->waits[instr->wait0 + *w]);
        if (target != ZINF_NONE && !s->finished[target])
            return false;
    }
    return true;
}

/* Groups of queues that share a resource; 0: a resource of its own. */
enum { CORES_GROUP = 1, STORAGE_GROUP = 2 };

static int group(const zinf_plan *plan, int queue)
{
    switch (queue) {
    case ZINF_QUEUE_COMPUTE:
    case ZINF_QUEUE_UPDATE:
    case ZINF_QUEUE_COLLECTIVE:
    case ZINF_QUEUE_UPLOAD:
    case ZINF_QUEUE_DOWNLOAD:
        return plan->machine.shared_cores ? CORES_GROUP : 0;
    case ZINF_QUEUE_READ:
    case ZINF_QUEUE_WRITE:
        return plan->machine.overlap_read_write ? 0 : STORAGE_GROUP;
    default:
        return 0;
    }
}

/* Threads of a queue that uses cores: a team's, or the one that copies. */
static double threads(const zinf_plan *plan, int queue)
{
    return queue == ZINF_QUEUE_UPLOAD || queue == ZINF_QUEUE_DOWNLOAD
               ? 1 : (double)plan->decisions.n_threads;
}

/* Of the cores that all share, what a queue's thread takes while its instruction runs at its full
 * rate: of storage's, which sleep meanwhile. */
static double cores_of_transfer(const zinf_plan *plan, const zinf_instr *instr)
{
    if (!plan->machine.shared_cores || plan->machine.storage_core <= 0 ||
        (instr->queue != ZINF_QUEUE_READ && instr->queue != ZINF_QUEUE_WRITE))
        return 0;
    const double busy_ns = 1e9 * (double)plan->operands[instr->operand0].bytes /
                           plan->machine.storage_core;
    return busy_ns < instr->cost_ns ? busy_ns / instr->cost_ns : 1;
}

static bool run(simulation *s, double *ret_total)
{
    double now = 0, left[ZINF_N_QUEUES] = {0}, cores[ZINF_N_QUEUES] = {0};
    bool active[ZINF_N_QUEUES] = {false};
    uint32_t done = 0;

    while (done < s->n_events) {
        int sharing[3] = {0}, n_active = 0;
        double n_threads = 0, n_cores = (double)s->plan->decisions.n_threads;
        for (int q = 0; q < ZINF_N_QUEUES; q++) {
            if (!active[q] && s->next[q] < s->n_order[q] && ready(s, q)) {
                zinf_event *event = &s->events[s->order[q][s->next[q]]];
                active[q] = true;
                left[q] = s->plan->instrs[event->instr].cost_ns;
                cores[q] = cores_of_transfer(s->plan, &s->plan->instrs[event->instr]);
                event->start_ns = now;
            }
            n_active += active[q];
            sharing[group(s->plan, q)] += active[q];
            if (active[q] && group(s->plan, q) == CORES_GROUP)
                n_threads += threads(s->plan, q);
        }
        if (!n_active)
            return false;
        double rate[ZINF_N_QUEUES], step = -1;
        for (int q = 0; q < ZINF_N_QUEUES; q++) {
            rate[q] = group(s->plan, q) == STORAGE_GROUP && sharing[STORAGE_GROUP] > 1 ? 0.5 : 1;
            n_cores -= active[q] ? rate[q] * cores[q] : 0;
        }
        if (n_cores < 0.5 * (double)s->plan->decisions.n_threads) /* they are no more entitled */
            n_cores = 0.5 * (double)s->plan->decisions.n_threads;
        for (int q = 0; q < ZINF_N_QUEUES; q++) {
            if (group(s->plan, q) == CORES_GROUP && n_threads > n_cores)
                rate[q] = n_cores / n_threads;
            if (active[q] && (step < 0 || left[q] / rate[q] < step))
                step = left[q] / rate[q];
        }
        now += step;
        for (int q = 0; q < ZINF_N_QUEUES; q++) {
            if (!active[q])
                continue;
            /* Whoever set the step is finished, whatever rounding says. */
            bool finished = left[q] / rate[q] <= step;
            left[q] -= step * rate[q];
            if (!finished)
                continue;
            uint32_t event = s->order[q][s->next[q]++];
            s->waited[q] = 0;
            s->events[event].end_ns = now;
            s->finished[event] = 1;
            active[q] = false;
            done++;
        }
    }
    *ret_total = now;
    return true;
}

static void release(simulation *s)
{
    free(s->events);
    free(s->segments);
    free(s->finished);
    free(s->first_event);
    for (int q = 0; q < ZINF_N_QUEUES; q++)
        free(s->order[q]);
}

static zinf_status simulate(const zinf_plan *plan, zinf_program_kind kind, uint32_t unroll,
                            simulation *ret, double *ret_total, zinf_error *err)
{
    simulation s = {.plan = plan, .program = &plan->programs[kind], .unroll = unroll};
    uint64_t n = 0;
    bool ok = true;

    for (uint32_t g = 0; g < s.program->n_segments; g++)
        n += iterations(&s, s.program->first_segment + g) *
             plan->segments[s.program->first_segment + g].n_instrs;
    s.events = calloc(n + 1, sizeof *s.events);
    s.segments = calloc(n + 1, sizeof *s.segments);
    s.finished = calloc(n + 1, 1);
    s.first_event = calloc(s.program->n_segments + 1, sizeof *s.first_event);
    for (int q = 0; q < ZINF_N_QUEUES; q++) {
        s.order[q] = calloc(n + 1, sizeof *s.order[q]);
        ok = ok && s.order[q];
    }
    if (!ok || !s.events || !s.segments || !s.finished || !s.first_event) {
        release(&s);
        return zinf_fail(err, ZINF_MACHINE, "out of memory while simulating the plan");
    }
    for (uint32_t g = 0; g < s.program->n_segments; g++) {
        const uint32_t segment = s.program->first_segment + g;
        s.first_event[g] = s.n_events;
        for (uint64_t i = 0; i < iterations(&s, segment); i++)
            for (uint32_t k = 0; k < plan->segments[segment].n_instrs; k++) {
                uint32_t instr = plan->segments[segment].first_instr + k;
                int queue = plan->instrs[instr].queue;
                s.order[queue][s.n_order[queue]++] = s.n_events;
                s.segments[s.n_events] = segment;
                s.events[s.n_events++] = (zinf_event){.instr = instr, .iteration = i};
            }
    }
    if (!run(&s, ret_total)) {
        release(&s);
        return zinf_fail(err, ZINF_DOES_NOT_FIT,
                         "program \"%s\" deadlocks: no queue can go on (C5)",
                         zinf_program_name(kind));
    }
    *ret = s;
    return ZINF_OK;
}

static void add_busy(const simulation *s, double times, double busy_ns[ZINF_N_QUEUES])
{
    for (uint32_t i = 0; i < s->n_events; i++)
        busy_ns[s->plan->instrs[s->events[i].instr].queue] +=
            times * (s->events[i].end_ns - s->events[i].start_ns);
}

zinf_status zinf_timeline_run(const zinf_plan *plan, zinf_program_kind program,
                              zinf_timeline *ret_timeline, zinf_error *err)
{
    const zinf_program *p = &plan->programs[program];
    zinf_timeline t = {0};
    simulation s;
    uint64_t rest = 0; /* iterations of loops that were not simulated */

    if (simulate(plan, program, UNROLL, &s, &t.total_ns, err) != ZINF_OK)
        return err->status;
    for (uint32_t g = 0; g < p->n_segments; g++) {
        const zinf_segment *segment = &plan->segments[p->first_segment + g];
        if (segment->count > UNROLL)
            rest = segment->count - UNROLL;
        for (uint32_t i = 0; i < segment->n_instrs; i++) {
            const zinf_instr *instr = &plan->instrs[segment->first_instr + i];
            t.alone_ns[instr->queue] += instr->cost_ns * (double)segment->count;
        }
    }
    if (rest) {
        simulation shorter;
        double total;
        if (simulate(plan, program, UNROLL - 1, &shorter, &total, err) != ZINF_OK) {
            release(&s);
            return err->status;
        }
        add_busy(&shorter, -(double)rest, t.busy_ns);
        add_busy(&s, (double)rest, t.busy_ns);
        release(&shorter);
        t.total_ns += (t.total_ns - total) * (double)rest;
    }
    add_busy(&s, 1, t.busy_ns);
    for (int q = 0; q < ZINF_N_QUEUES; q++) { /* an extrapolation may round below what it must be */
        if (t.busy_ns[q] < t.alone_ns[q])
            t.busy_ns[q] = t.alone_ns[q];
        if (t.total_ns < t.busy_ns[q])
            t.total_ns = t.busy_ns[q];
    }
    t.events = s.events;
    t.n_events = s.n_events;
    s.events = NULL;
    release(&s);
    *ret_timeline = t;
    return ZINF_OK;
}

void zinf_timeline_free(zinf_timeline *timeline)
{
    free(timeline->events);
    *timeline = (zinf_timeline){0};
}
