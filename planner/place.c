/* planner/place.c - see place.h. */
#include "planner/place.h"

#include <stdlib.h>
#include <string.h>

/* The index of lifetimes: buckets of 32, 1,024 and 32,768 instructions. An interval is in the
 * buckets that it meets on the first level where those are at most SPAN + 1, so that a long life
 * does not fill the short ones' buckets. */
enum { N_LEVELS = 3, SHIFT = 5, SPAN = 32 };

/* Instructions after which what a transfer used is taken to be free: those of some ten operators
 * with all that is moved for them, of which no queue should be behind. A larger one is as good. */
enum { SLACK = 128 };

typedef struct bucket {
    uint32_t *items;
    uint32_t n, cap;
} bucket;

static const zinf_interval *sort_base;

static int larger_first(const void *a, const void *b)
{
    const zinf_interval *x = &sort_base[*(const uint32_t *)a];
    const zinf_interval *y = &sort_base[*(const uint32_t *)b];

    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? 1 : -1;
    if (x->first != y->first)
        return x->first < y->first ? -1 : 1;
    return x < y ? -1 : x > y;
}

static int lower_first(const void *a, const void *b)
{
    const zinf_interval *x = &sort_base[*(const uint32_t *)a];
    const zinf_interval *y = &sort_base[*(const uint32_t *)b];

    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

static bool bucket_add(bucket *b, uint32_t item)
{
    if (b->n == b->cap) {
        uint32_t cap = b->cap ? 2 * b->cap : 8;
        uint32_t *items = realloc(b->items, cap * sizeof *items);
        if (!items)
            return false;
        b->items = items;
        b->cap = cap;
    }
    b->items[b->n++] = item;
    return true;
}

typedef struct level {
    bucket *buckets;
    uint32_t n, shift; /* a bucket is 1 << shift instructions */
} level;

/* One problem under way. */
typedef struct placing {
    zinf_interval *intervals;
    uint32_t n, stamp;
    uint32_t *order, *list, *stamps;
    level levels[N_LEVELS];
    bool ok; /* memory is not short */
} placing;

/* Alive at once; or one begins `slack` instructions or less after a queue left the other that its
 * own does not follow anyway. */
static bool meet(const zinf_interval *v, const zinf_interval *o, uint32_t slack)
{
    const zinf_interval *before = v->first < o->first ? v : o, *after = before == v ? o : v;

    return after->first <= before->last ||
           after->first - (after->begins_aside ? before->last : before->last_aside) <= slack;
}

/* The intervals in the index that v meets into list; returns their number. */
static uint32_t neighbours(placing *p, const zinf_interval *v, uint32_t slack)
{
    const uint32_t first = v->first > slack ? v->first - slack : 0;
    uint32_t n = 0;

    p->stamps[v - p->intervals] = ++p->stamp;
    for (int l = 0; l < N_LEVELS; l++) {
        const level *index = &p->levels[l];
        for (uint32_t k = first >> index->shift;
             k <= (v->last + slack) >> index->shift && k < index->n; k++)
            for (uint32_t j = 0; j < index->buckets[k].n; j++) {
                uint32_t other = index->buckets[k].items[j];
                if (p->stamps[other] == p->stamp || !meet(v, &p->intervals[other], slack))
                    continue;
                p->stamps[other] = p->stamp;
                p->list[n++] = other;
            }
    }
    return n;
}

/* v shares its place with one of the n in list that it meets. */
static bool shares(const placing *p, const zinf_interval *v, uint32_t slack, uint32_t n)
{
    for (uint32_t j = 0; j < n; j++) {
        const zinf_interval *o = &p->intervals[p->list[j]];
        if (o->offset < v->offset + v->bytes && v->offset < o->offset + o->bytes &&
            meet(v, o, slack))
            return true;
    }
    return false;
}

/* The lowest offset where v meets none of the n in list, which is in order of offsets. */
static uint64_t lowest(const placing *p, const zinf_interval *v, uint32_t slack, uint32_t n)
{
    uint64_t at = 0;

    for (uint32_t j = 0; j < n; j++) {
        const zinf_interval *o = &p->intervals[p->list[j]];
        if (!meet(v, o, slack))
            continue;
        if (o->offset >= at + v->bytes)
            break;
        if (o->offset + o->bytes > at)
            at = o->offset + o->bytes;
    }
    return at;
}

static void index_add(placing *p, uint32_t item)
{
    const zinf_interval *v = &p->intervals[item];
    const level *at = p->levels;

    while (at + 1 < p->levels + N_LEVELS &&
           (v->last >> at->shift) - (v->first >> at->shift) > SPAN)
        at++;
    for (uint32_t k = v->first >> at->shift; k <= v->last >> at->shift && p->ok; k++)
        p->ok = bucket_add(&at->buckets[k], item);
}

static placing begin_placing(zinf_interval *intervals, uint32_t n)
{
    placing p = {.intervals = intervals, .n = n};
    uint32_t end = 0;

    for (uint32_t i = 0; i < n; i++)
        if (intervals[i].last > end)
            end = intervals[i].last;
    p.order = malloc((n + 1) * sizeof *p.order);
    p.list = malloc((n + 1) * sizeof *p.list);
    p.stamps = calloc(n + 1, sizeof *p.stamps);
    p.ok = p.order && p.list && p.stamps;
    for (uint32_t l = 0; l < N_LEVELS; l++) {
        p.levels[l].shift = SHIFT * (l + 1);
        p.levels[l].n = (end >> p.levels[l].shift) + 1;
        p.levels[l].buckets = calloc(p.levels[l].n, sizeof *p.levels[l].buckets);
        p.ok = p.ok && p.levels[l].buckets;
    }
    sort_base = intervals;
    for (uint32_t i = 0; i < n && p.ok; i++)
        p.order[i] = i;
    if (p.ok)
        qsort(p.order, n, sizeof *p.order, larger_first);
    return p;
}

static void end_placing(placing *p)
{
    for (int l = 0; l < N_LEVELS; l++) {
        for (uint32_t k = 0; p->levels[l].buckets && k < p->levels[l].n; k++)
            free(p->levels[l].buckets[k].items);
        free(p->levels[l].buckets);
    }
    free(p->order);
    free(p->list);
    free(p->stamps);
}

uint64_t zinf_place_intervals(zinf_interval *intervals, uint32_t n)
{
    placing p = begin_placing(intervals, n);
    uint64_t high = 0;

    for (uint32_t i = 0; i < n && p.ok; i++) {
        zinf_interval *v = &intervals[p.order[i]];
        const uint32_t n_near = neighbours(&p, v, 0);
        qsort(p.list, n_near, sizeof *p.list, lower_first);
        v->offset = lowest(&p, v, 0, n_near);
        if (v->offset + v->bytes > high)
            high = v->offset + v->bytes;
        index_add(&p, p.order[i]);
    }
    end_placing(&p);
    return p.ok ? high : UINT64_MAX;
}

/* One after the other, each farther from the nearest that had or has its place, if there is room:
 * so no two become nearer than the nearest were. */
bool zinf_spread_intervals(zinf_interval *intervals, uint32_t n, uint32_t slack, uint64_t limit)
{
    placing p = begin_placing(intervals, n);

    for (uint32_t i = 0; i < n && p.ok; i++)
        index_add(&p, i);
    for (uint32_t i = 0; i < n && p.ok; i++) {
        zinf_interval *v = &intervals[p.order[i]];
        const uint32_t n_near = neighbours(&p, v, slack);
        bool sorted = false;
        for (uint32_t far = slack; far > 0 && shares(&p, v, far, n_near); far /= 4) {
            if (!sorted)
                qsort(p.list, n_near, sizeof *p.list, lower_first);
            sorted = true;
            const uint64_t at = lowest(&p, v, far, n_near);
            if (at + v->bytes <= limit)
                v->offset = at;
        }
    }
    end_placing(&p);
    return p.ok;
}

/* What is alive when a counted loop begins is needed in its last iteration too. */
static void extend_over_loops(zinf_builder *b, const zinf_program *program, uint32_t first,
                              uint32_t end)
{
    for (uint32_t s = 0; s < program->n_segments; s++) {
        const zinf_segment *segment = &b->plan->segments[program->first_segment + s];
        uint32_t last = segment->first_instr + segment->n_instrs - 1;
        if (segment->count < 2)
            continue;
        for (uint32_t i = first; i < end; i++) {
            zinf_buffer *buffer = &b->buffers[i];
            if (buffer->first < segment->first_instr && buffer->last >= segment->first_instr &&
                buffer->last < last)
                buffer->last = last;
        }
    }
}

/* The buffers [first, end) of one program in one tier, as intervals above `base`; returns their
 * number. */
static uint32_t intervals_of(const zinf_builder *b, uint32_t first, uint32_t end, zinf_tier tier,
                             uint64_t base, zinf_interval *ret_intervals)
{
    uint32_t n = 0;

    for (uint32_t i = first; i < end; i++) {
        const zinf_buffer *buffer = &b->buffers[i];
        if (buffer->tier == tier && !buffer->persistent && buffer->first != ZINF_NONE)
            ret_intervals[n++] = (zinf_interval){
                .bytes = buffer->bytes, .offset = buffer->offset - base, .first = buffer->first,
                .last = buffer->last, .last_aside = buffer->last_aside,
                .begins_aside = buffer->begins_aside};
    }
    return n;
}

static void set_offsets(zinf_builder *b, uint32_t first, uint32_t end, zinf_tier tier,
                        uint64_t base, const zinf_interval *intervals)
{
    for (uint32_t i = first; i < end; i++) {
        zinf_buffer *buffer = &b->buffers[i];
        if (buffer->tier == tier && !buffer->persistent && buffer->first != ZINF_NONE)
            buffer->offset = base + intervals++->offset;
    }
}

static void out_of_memory(zinf_builder *b)
{
    zinf_fail(b->err, ZINF_MACHINE, "out of memory while placing buffers");
}

/* Places the buffers [first, end) of one program in one tier above `base`; returns the top. */
static uint64_t place_program(zinf_builder *b, uint32_t first, uint32_t end, zinf_tier tier,
                              uint64_t base, zinf_interval *intervals)
{
    const uint32_t n = intervals_of(b, first, end, tier, 0, intervals);
    const uint64_t high = zinf_place_intervals(intervals, n);

    if (high == UINT64_MAX) {
        out_of_memory(b);
        return base;
    }
    set_offsets(b, first, end, tier, base, intervals);
    return base + high;
}

/* And moves them, below `limit`; returns the top. */
static uint64_t spread_program(zinf_builder *b, uint32_t first, uint32_t end, zinf_tier tier,
                               uint64_t base, uint64_t limit, zinf_interval *intervals)
{
    const uint32_t n = intervals_of(b, first, end, tier, base, intervals);
    uint64_t top = 0;

    if (!zinf_spread_intervals(intervals, n, SLACK, limit - base)) {
        out_of_memory(b);
        return base;
    }
    set_offsets(b, first, end, tier, base, intervals);
    for (uint32_t i = 0; i < n; i++)
        if (intervals[i].offset + intervals[i].bytes > top)
            top = intervals[i].offset + intervals[i].bytes;
    return base + top;
}

static void add_item(zinf_builder *b, zinf_tier tier, const char *name, uint64_t bytes)
{
    if (!bytes ||
        !zinf_grow(b, &b->plan->items, b->plan->n_items, &b->cap_items, sizeof *b->plan->items))
        return;
    zinf_item *item = &b->plan->items[b->plan->n_items++];
    *item = (zinf_item){.bytes = bytes, .tier = tier};
    strncpy(item->name, name, sizeof item->name - 1);
}

/* The bill of one tier: persistent classes (of owned units those of one rank), checkpoints (all
 * alive at the turn from forward to backward), the rest of the arena. */
static void bill(zinf_builder *b, zinf_tier tier, uint32_t rank, const uint32_t step[2])
{
    static const char *const names[] = {
#define X(name, text) text,
        ZINF_BILL(X)
#undef X
    };
    uint64_t bytes[ZINF_N_BILL] = {0}, rest = b->plan->machine.arena_bytes[tier];

    for (uint32_t i = 0; i < b->n_buffers; i++) {
        const zinf_buffer *buffer = &b->buffers[i];
        bool in_step = i >= step[0] && i < step[1] && buffer->item == ZINF_BILL_CHECKPOINT;
        const uint32_t owner = i / 3 < b->plan->n_units ? b->plan->units[i / 3].owner : ZINF_NONE;
        if (owner != ZINF_NONE && owner != rank)
            continue;
        /* A checkpoint's buffers occur once for the first micro-batch and once for the loop. */
        if (buffer->tier != tier || buffer->first == ZINF_NONE ||
            !(buffer->persistent ||
              (in_step &&
               buffer->first < b->plan->segments[b->plan->programs[ZINF_PROGRAM_STEP]
                                                     .first_segment].first_instr +
                                   b->plan->segments[b->plan->programs[ZINF_PROGRAM_STEP]
                                                         .first_segment].n_instrs)))
            continue;
        bytes[buffer->item] += buffer->bytes;
    }
    for (int i = 0; i < ZINF_BILL_WORKING; i++) {
        bytes[i] = bytes[i] < rest ? bytes[i] : rest;
        rest -= bytes[i];
        add_item(b, tier, names[i], bytes[i]);
    }
    add_item(b, tier, names[ZINF_BILL_WORKING], rest);
}

/* Regions of owned units: each rank's from the beginning of its arenas. The room that the largest
 * take is everybody's; ret_most[tier] says whose they are. */
static void place_owned(zinf_builder *b, uint32_t ret_most[ZINF_N_TIERS])
{
    zinf_plan *plan = b->plan;
    uint64_t (*used)[ZINF_N_TIERS] = calloc(plan->decisions.ranks, sizeof *used);

    if (!used) {
        zinf_fail(b->err, ZINF_MACHINE, "out of memory while placing what ranks own");
        return;
    }
    for (uint32_t i = 0; i < 3 * plan->n_units; i++) {
        zinf_buffer *buffer = &b->buffers[i];
        const uint32_t owner = plan->units[i / 3].owner;
        buffer->offset = used[owner][buffer->tier];
        used[owner][buffer->tier] += buffer->bytes;
        if (used[owner][buffer->tier] > plan->machine.owned_bytes[buffer->tier]) {
            plan->machine.owned_bytes[buffer->tier] = used[owner][buffer->tier];
            ret_most[buffer->tier] = owner;
        }
    }
    free(used);
}

void zinf_place(zinf_builder *b, const uint32_t program_buffers[ZINF_N_PROGRAMS + 1], bool spread,
                double more)
{
    zinf_plan *plan = b->plan;
    zinf_interval *intervals = malloc((b->n_buffers + 1) * sizeof *intervals);
    uint64_t base[ZINF_N_TIERS] = {0}, *arena = plan->machine.arena_bytes;
    uint32_t most[ZINF_N_TIERS] = {0}; /* whose owned units are the bill */
    const bool owned = plan->decisions.partitioning == ZINF_OWNER;

    if (!intervals) {
        out_of_memory(b);
        return;
    }
    if (owned)
        place_owned(b, most);
    memcpy(base, plan->machine.owned_bytes, sizeof base);
    for (uint32_t i = owned ? 3 * plan->n_units : 0; i < b->n_buffers; i++) {
        zinf_buffer *buffer = &b->buffers[i];
        if (!buffer->persistent)
            continue;
        buffer->offset = base[buffer->tier];
        base[buffer->tier] += buffer->bytes;
    }
    memcpy(arena, base, sizeof base);
    for (int p = 0; p < ZINF_N_PROGRAMS; p++)
        extend_over_loops(b, &plan->programs[p], program_buffers[p], program_buffers[p + 1]);
    for (int t = 0; t < ZINF_N_TIERS && b->err->status == ZINF_OK; t++) {
        uint64_t step = base[t], others = base[t];
        for (int p = 0; p < ZINF_N_PROGRAMS && b->err->status == ZINF_OK; p++) {
            uint64_t *top = p == ZINF_PROGRAM_STEP ? &step : &others;
            *top = zinf_larger(*top, place_program(b, program_buffers[p], program_buffers[p + 1],
                                                   t, base[t], intervals));
        }
        uint64_t limit = zinf_larger(step, others);
        if (t == ZINF_TIER_DEVICE && more > 0)
            limit += (uint64_t)((double)limit * more);
        if (spread && b->err->status == ZINF_OK)
            step = spread_program(b, program_buffers[ZINF_PROGRAM_STEP],
                                  program_buffers[ZINF_PROGRAM_STEP + 1], t, base[t], limit,
                                  intervals);
        arena[t] = zinf_larger(step, others);
    }
    free(intervals);
    for (uint32_t i = 0; i < plan->n_operands; i++)
        if (plan->operands[i].bytes)
            plan->operands[i].offset += b->buffers[b->operand_buffers[i]].offset;
    for (uint32_t u = 0; u < plan->n_units; u++) {
        plan->units[u].param.offset = b->buffers[3 * u].offset;
        plan->units[u].grad.offset = b->buffers[3 * u + 1].offset;
        plan->units[u].optimizer.offset = b->buffers[3 * u + 2].offset;
    }
    for (int t = 0; t < ZINF_TIER_SCALAR; t++)
        bill(b, t, most[t], &program_buffers[ZINF_PROGRAM_STEP]);
}
