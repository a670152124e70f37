/* planner/search.c - see search.h. */
#include "planner/search.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "planner/compile.h"
#include "planner/estimate.h"
#include "planner/graph.h"
#include "planner/ranks.h"

enum {
    N_BANDS = 2,
    N_FAST = 48,   /* candidates kept by time, of those that the closed forms let in */
    N_SAFE = 81,   /* the fastest of each choice of tiers, of those with room to spare */
    N_SMALL = 8,   /* by memory */
    N_STARTS = 6,  /* of each list that fit before the next list is turned to; and climbs */
    N_PROBED = 512,
    MOST_BLOCK_TILES = 64, MOST_VOCAB_TILES = 256, MOST_READ = 8, MOST_UPLOAD = 4,
};
/* The closed forms are within 30 % of compiled plans (tests/planner/properties.c). */
static const double LET_IN[N_BANDS] = {1.03, 1.25}, WITH_ROOM[N_BANDS] = {0.97, 0.75};
static const double HOPELESS = 0.5;
/* Instructions compiled in one search, about 1 us each: what a plan is worth; what a suggestion
 * is. Counted, not timed, so that the same inputs give the same plan. */
static const uint64_t WORK = 1500000, WORK_SUGGESTION = 300000;
/* A step counts as faster if it is by this much: ends the climb. */
static const double GAIN = 1e-3;
/* A candidate that does not fit is nearer to fitting if it misses less by this much. */
static const double NEARER = 0.01;
/* Instructions of a plan that is compiled whole only to say how much is missing; and of the
 * largest that is written out in vertical order unasked. */
static const uint64_t WHOLE = 300000;

typedef struct candidate {
    zinf_decisions decisions;
    double step_s, pressure; /* pressure: largest of estimate / capacity over tiers */
    double shortness, load;  /* as of a probe */
    uint32_t order;          /* enumeration order: ties */
} candidate;

typedef struct probed {
    zinf_decisions decisions;
    double estimated_s;
    zinf_probe probe;
} probed;

/* The values a decision may take: the pin alone, or those of a list up to a limit. */
typedef struct choices {
    uint32_t values[64];
    uint32_t n;
} choices;

typedef struct pool {
    const zinf_model *model;
    const zinf_cluster *cluster;
    const zinf_settings *settings;
    bool only_fit; /* a suggestion is tried: the first that fits will do */
    choices tiers[ZINF_N_CLASSES], batches, intervals, orders, partitionings, times;

    /* the best seen so far, in order */
    candidate fast[N_BANDS][N_FAST], safe[N_BANDS][N_SAFE], small[N_SMALL];
    uint32_t n_fast[N_BANDS], n_safe[N_BANDS], n_small, n_seen;
    probed probed[N_PROBED];
    uint32_t n_probed;
    uint64_t work, most_work;
    zinf_error *err;
} pool;

static bool faster(const candidate *a, const candidate *b)
{
    if (a->step_s != b->step_s)
        return a->step_s < b->step_s;
    return a->order < b->order;
}

/* How far from fitting: what is missing first, what is needed second. */
static double distance(double shortness, double load)
{
    return shortness + 1e-3 * load;
}

static bool smaller(const candidate *a, const candidate *b)
{
    const double x = distance(a->shortness, a->load), y = distance(b->shortness, b->load);

    if (x != y)
        return x < y;
    return a->order < b->order;
}

static int by_time(const void *a, const void *b)
{
    return faster(a, b) ? -1 : faster(b, a);
}

/* Keeps the best `most` in order. */
static void insert(candidate *list, uint32_t *n, uint32_t most, const candidate *c,
                   bool (*better)(const candidate *, const candidate *))
{
    if (*n == most && !better(c, &list[most - 1]))
        return;
    uint32_t at = *n < most ? (*n)++ : most - 1;
    for (; at > 0 && better(c, &list[at - 1]); at--)
        list[at] = list[at - 1];
    list[at] = *c;
}

static void consider(pool *p, const zinf_decisions *d)
{
    zinf_estimate e = zinf_estimate_step(p->model, p->cluster, d);
    candidate c = {.decisions = *d, .step_s = e.step_s, .order = p->n_seen++};

    for (unsigned t = 0; t < ZINF_TIER_SCALAR; t++) {
        double room = (double)zinf_capacity(p->cluster, t) -
                      (double)zinf_overhead(p->cluster, t);
        double pressure = e.bytes[t] <= 0 ? 0 : e.bytes[t] / (room > 1 ? room : 1);
        c.load += pressure;
        c.shortness += pressure > 1 ? pressure - 1 : 0;
        if (pressure > c.pressure)
            c.pressure = pressure;
    }
    for (int band = 0; band < N_BANDS; band++) {
        if (c.pressure <= LET_IN[band])
            insert(p->fast[band], &p->n_fast[band], N_FAST, &c, faster);
        if (c.pressure > WITH_ROOM[band])
            continue;
        candidate *safe = p->safe[band];
        uint32_t i = 0;
        while (i < p->n_safe[band] && memcmp(safe[i].decisions.tier, d->tier, sizeof d->tier))
            i++;
        if (i == p->n_safe[band])
            safe[p->n_safe[band]++] = c;
        else if (faster(&c, &safe[i]))
            safe[i] = c;
    }
    insert(p->small, &p->n_small, N_SMALL, &c, smaller);
}

/* ---- enumeration ---- */

static choices choose(int64_t pin, const uint32_t *all, uint32_t n, uint64_t most)
{
    choices c = {0};

    if (pin != ZINF_FREE) {
        c.values[c.n++] = (uint32_t)pin;
        return c;
    }
    for (uint32_t i = 0; i < n; i++)
        if (all[i] <= most)
            c.values[c.n++] = all[i];
    return c;
}

static choices tiers(const pool *p, zinf_class state_class)
{
    const int64_t pin = p->settings->tier[state_class];
    choices c = {0};

    for (uint32_t t = 0; t < ZINF_TIER_SCALAR; t++) {
        uint32_t tier = t;
        if (pin != ZINF_FREE && pin != t)
            continue;
        /* one memory: what a user calls host is the device's */
        if (p->cluster->unified && t == ZINF_TIER_HOST) {
            if (pin == ZINF_FREE)
                continue;
            tier = ZINF_TIER_DEVICE;
        }
        if (t == ZINF_TIER_NVME && !p->cluster->nvme.present)
            continue;
        c.values[c.n++] = tier;
    }
    return c;
}

/* Divisors of a rank's part of the global batch, largest first: for each power of two the least
 * that reaches it. */
static choices micro_batches(const pool *p)
{
    const uint64_t global = p->model->global_batch / zinf_n_ranks(p->cluster); /* of one rank */
    choices c = {0};

    if (p->settings->micro_batch != ZINF_FREE)
        return choose(p->settings->micro_batch, NULL, 0, 0);
    for (uint64_t power = 1 << 20; power >= 1; power /= 2) {
        uint64_t batch = power;
        while (batch < 2 * power && global % batch)
            batch++;
        if (batch <= global && batch < 2 * power)
            c.values[c.n++] = (uint32_t)batch;
    }
    return c;
}

/* Whether the order can be had. Unasked, vertical is taken only where every sum has the order that
 * it has in horizontal order, so that no choice of the search's between tiers changes bits: sums
 * over ranks come after those over micro-batches. And where it is another order and short enough
 * to be written out: some 12 instructions for each tile and pass of a block. */
static bool order_fits(const pool *p, const zinf_decisions *d)
{
    uint64_t tiles = d->tiles[ZINF_LINEAR_VOCAB] / p->model->layers;

    if (d->partitioning == ZINF_OWNER &&
        (d->order == ZINF_VERTICAL || d->optimizer_time == ZINF_IN_FORWARD))
        return false; /* not supported together */
    if (d->order == ZINF_HORIZONTAL)
        return true;
    for (int l = 0; l < ZINF_LINEAR_VOCAB; l++)
        tiles += d->tiles[l];
    return d->checkpoint_interval &&
           (p->settings->order != ZINF_FREE ||
            (d->ranks == 1 && d->accumulation > 1 &&
             12 * tiles * p->model->layers * d->accumulation < WHOLE));
}

static void enumerate_tiles(pool *p, zinf_decisions *d)
{
    static const uint32_t tile_counts[] = {1, 2, 4, 8, 16, 32};
    static const uint32_t vocab_counts[] = {1, 4, 16, 64};
    static const uint32_t distances[] = {1, 2, 4};
    const zinf_settings *s = p->settings;
    choices tiles = choose(ZINF_FREE, tile_counts, 6, p->model->hidden);
    choices vocab = choose(s->tiles[ZINF_LINEAR_VOCAB], vocab_counts, 4, p->model->vocab);
    choices read = choose(s->prefetch_read, distances, 3, 4);
    bool pinned = true;

    for (int l = 0; l < ZINF_LINEAR_VOCAB; l++)
        pinned = pinned && s->tiles[l] != ZINF_FREE;
    for (uint32_t i = 0; i < (pinned ? 1 : tiles.n); i++) {
        for (int l = 0; l < ZINF_LINEAR_VOCAB; l++)
            d->tiles[l] = s->tiles[l] != ZINF_FREE ? (uint32_t)s->tiles[l] : tiles.values[i];
        for (uint32_t v = 0; v < vocab.n; v++)
            for (uint32_t r = 0; r < read.n; r++) {
                d->tiles[ZINF_LINEAR_VOCAB] = vocab.values[v];
                d->prefetch_read = read.values[r];
                d->prefetch_upload = s->prefetch_upload != ZINF_FREE
                                         ? (uint32_t)s->prefetch_upload
                                         : d->prefetch_read < 2 ? d->prefetch_read : 2;
                for (uint32_t o = 0; o < p->orders.n * p->partitionings.n; o++) {
                    d->order = p->orders.values[o / p->partitionings.n];
                    d->partitioning = p->partitionings.values[o % p->partitionings.n];
                    if (order_fits(p, d))
                        consider(p, d);
                }
            }
    }
}

static void enumerate(pool *p)
{
    static const uint32_t intervals[] = {0, 1, 2, 4}, orders[] = {ZINF_HORIZONTAL, ZINF_VERTICAL};
    static const uint32_t partitionings[] = {ZINF_BANDWIDTH_CENTRIC, ZINF_OWNER};
    /* in backward is only asked for: a guarantee less (plan.h) */
    static const uint32_t times[] = {ZINF_AFTER_BACKWARD, ZINF_IN_FORWARD};
    const zinf_settings *s = p->settings;
    const bool cpu = !strcmp(p->cluster->device.kind, "cpu");
    zinf_decisions d = {
        .ranks = zinf_n_ranks(p->cluster),
        .prefetch_gather = s->prefetch_gather != ZINF_FREE ? (uint32_t)s->prefetch_gather : 1,
        .collectives = s->collectives != ZINF_FREE ? (uint32_t)s->collectives : ZINF_OVERLAPPED,
        .io_block_bytes = s->io_block_bytes != ZINF_FREE ? (uint64_t)s->io_block_bytes
                                                         : p->cluster->nvme.block_bytes,
        .io_depth = s->io_depth != ZINF_FREE ? (uint32_t)s->io_depth : p->cluster->nvme.depth,
        .n_threads = s->n_threads != ZINF_FREE ? (uint32_t)s->n_threads
                                               : (uint32_t)p->cluster->host.cores};

    for (unsigned c = 0; c < ZINF_N_CLASSES; c++)
        p->tiers[c] = tiers(p, c);
    p->batches = micro_batches(p);
    p->partitionings = choose(s->partitioning, partitionings, 2,
                              d.ranks > 1 ? ZINF_OWNER : ZINF_BANDWIDTH_CENTRIC);
    /* who pins the checkpoints away from the device wants some */
    const bool some = s->tier[ZINF_CLASS_CHECKPOINT] > ZINF_TIER_DEVICE;
    p->intervals = choose(s->checkpoint_interval, intervals + some, 4 - some, p->model->layers);
    p->orders = choose(s->order, orders, 2, ZINF_VERTICAL);
    p->times = choose(s->optimizer_time, times, 2, ZINF_IN_FORWARD);
    d.optimizer_time = p->times.values[0]; /* the other one is a move of the climb */
    if (!cpu && d.n_threads > 16)
        d.n_threads = 16; /* host threads of the update queue */
    const choices *t = p->tiers;
    const uint32_t n = t[0].n * t[1].n * t[2].n * t[3].n;
    for (uint32_t k = 0; k < n; k++) {
        uint32_t rest = k, at[ZINF_N_CLASSES];
        for (int c = ZINF_N_CLASSES - 1; c >= 0; c--) {
            at[c] = rest % t[c].n;
            rest /= t[c].n;
            d.tier[c] = t[c].values[at[c]];
        }
        for (uint32_t i = 0; i < p->intervals.n; i++) {
            d.checkpoint_interval = p->intervals.values[i];
            /* without checkpoints their tier means nothing: one is enough */
            if (!d.checkpoint_interval && at[ZINF_CLASS_CHECKPOINT] > 0)
                continue;
            for (uint32_t m = 0; m < p->batches.n; m++) {
                d.micro_batch = p->batches.values[m];
                d.accumulation = (uint32_t)(p->model->global_batch / d.ranks / d.micro_batch);
                enumerate_tiles(p, &d);
            }
        }
    }
}

/* ---- probes: compiled, at a few blocks ---- */

static bool same(const zinf_decisions *a, const zinf_decisions *b)
{
    return !memcmp(a->tier, b->tier, sizeof a->tier) &&
           !memcmp(a->tiles, b->tiles, sizeof a->tiles) && a->micro_batch == b->micro_batch &&
           a->checkpoint_interval == b->checkpoint_interval && a->order == b->order &&
           a->partitioning == b->partitioning && a->optimizer_time == b->optimizer_time &&
           a->prefetch_read == b->prefetch_read && a->prefetch_upload == b->prefetch_upload;
}

/* Whether a needs at least the memory of b, by what is monotonic. */
static bool no_smaller(const zinf_decisions *a, const zinf_decisions *b)
{
    if (memcmp(a->tier, b->tier, sizeof a->tier) ||
        a->checkpoint_interval != b->checkpoint_interval || a->micro_batch < b->micro_batch ||
        a->partitioning != b->partitioning || a->order != b->order ||
        a->optimizer_time != b->optimizer_time ||
        (a->order == ZINF_VERTICAL && a->micro_batch != b->micro_batch) ||
        a->prefetch_read < b->prefetch_read || a->prefetch_upload < b->prefetch_upload)
        return false;
    for (int l = 0; l < ZINF_N_LINEARS; l++)
        if (a->tiles[l] > b->tiles[l])
            return false;
    return true;
}

static bool better(const zinf_probe *a, const zinf_probe *b)
{
    if (a->fits != b->fits)
        return a->fits;
    return a->fits ? a->step_s < b->step_s * (1 - GAIN) :
                   distance(a->shortness, a->load) <
                         distance(b->shortness, b->load) * (1 - NEARER);
}

/* The probe of d, made now or before; NULL if there is no work left for one. */
static const probed *probe(pool *p, const zinf_decisions *d)
{
    for (uint32_t i = 0; i < p->n_probed; i++)
        if (same(&p->probed[i].decisions, d))
            return &p->probed[i];
    if (p->n_probed == N_PROBED || p->work >= p->most_work || p->err->status != ZINF_OK)
        return NULL;
    probed *entry = &p->probed[p->n_probed];
    *entry = (probed){.decisions = *d};
    entry->estimated_s = zinf_estimate_step(p->model, p->cluster, d).step_s;
    if (zinf_probe_decisions(p->model, p->cluster, d, p->only_fit, &entry->probe, p->err) !=
        ZINF_OK)
        return NULL;
    p->work += entry->probe.work;
    p->n_probed++;
    return entry;
}

/* Probes a list in order until a few fit, at most until `most_work`. */
static uint32_t probe_list(pool *p, const candidate *list, uint32_t n, uint32_t n_starts,
                           uint64_t most_work)
{
    uint32_t n_fit = 0;

    for (uint32_t i = 0; i < n && n_fit < n_starts && p->work < most_work; i++) {
        bool skip = false;
        for (uint32_t k = 0; k < p->n_probed && !skip; k++)
            skip = !p->probed[k].probe.fits &&
                   no_smaller(&list[i].decisions, &p->probed[k].decisions);
        const probed *entry = skip ? NULL : probe(p, &list[i].decisions);
        n_fit += entry && entry->probe.fits;
    }
    return n_fit;
}

/* The best probe whose choice of tiers has not been climbed from; NULL if there is none. */
static const probed *next_start(const pool *p, const probed *const *starts, uint32_t n_starts)
{
    const probed *best = NULL;

    for (uint32_t i = 0; i < p->n_probed; i++) {
        const probed *c = &p->probed[i];
        bool used = false;
        for (uint32_t k = 0; k < n_starts; k++)
            used = used || !memcmp(starts[k]->decisions.tier, c->decisions.tier,
                                   sizeof c->decisions.tier);
        if (!used && (!best || better(&c->probe, &best->probe)))
            best = c;
    }
    return best;
}

/* ---- the climb: one decision at a time, as long as it helps ---- */

static bool step_choice(const choices *c, uint32_t *value, bool up)
{
    for (uint32_t i = 0; i < c->n; i++)
        if (c->values[i] == *value) {
            if (up ? i + 1 == c->n : i == 0)
                return false;
            *value = c->values[up ? i + 1 : i - 1];
            return true;
        }
    return false;
}

static bool step_double(int64_t pin, uint32_t *value, bool up, uint64_t most)
{
    const uint32_t before = *value;

    if (pin != ZINF_FREE)
        return false;
    *value = up ? 2 * before : before / 2;
    if (*value < 1 || *value > most)
        *value = before;
    return *value != before;
}

enum { N_TIER_MOVES = ZINF_N_CLASSES * ZINF_TIER_SCALAR, N_MOVES = N_TIER_MOVES + 18 };

/* Applies move k to d; false if it is none. */
static bool move_to(const pool *p, uint32_t k, zinf_decisions *d)
{
    const zinf_settings *s = p->settings;
    const bool up = k % 2;
    bool moved = false;

    if (k < N_TIER_MOVES) {
        const uint32_t c = k / ZINF_TIER_SCALAR, t = k % ZINF_TIER_SCALAR;
        for (uint32_t i = 0; i < p->tiers[c].n; i++)
            moved = moved || (p->tiers[c].values[i] == t && d->tier[c] != t);
        d->tier[c] = t;
        return moved && (c != ZINF_CLASS_CHECKPOINT || d->checkpoint_interval);
    }
    switch ((k - N_TIER_MOVES) / 2) {
    case 0:
        moved = step_choice(&p->batches, &d->micro_batch, up);
        d->accumulation = (uint32_t)(p->model->global_batch / d->ranks / d->micro_batch);
        return moved;
    case 1:
        moved = step_choice(&p->intervals, &d->checkpoint_interval, up);
        if (!d->checkpoint_interval)
            d->tier[ZINF_CLASS_CHECKPOINT] = p->tiers[ZINF_CLASS_CHECKPOINT].values[0];
        return moved;
    case 2:
        for (unsigned l = 0; l < ZINF_LINEAR_VOCAB; l++) {
            uint64_t rows = zinf_linear_rows(p->model, l);
            moved |= step_double(s->tiles[l], &d->tiles[l], up,
                                 rows < MOST_BLOCK_TILES ? rows : MOST_BLOCK_TILES);
        }
        return moved;
    case 3:
        return step_double(s->tiles[ZINF_LINEAR_VOCAB], &d->tiles[ZINF_LINEAR_VOCAB], up,
                           p->model->vocab < MOST_VOCAB_TILES ? p->model->vocab
                                                              : MOST_VOCAB_TILES);
    case 4:
        return step_double(s->prefetch_read, &d->prefetch_read, up, MOST_READ);
    case 5:
        return step_double(s->prefetch_upload, &d->prefetch_upload, up, MOST_UPLOAD);
    case 6:
        return step_choice(&p->orders, &d->order, up);
    case 7:
        return step_choice(&p->times, &d->optimizer_time, up);
    default:
        return step_choice(&p->partitionings, &d->partitioning, up);
    }
}

static bool move(const pool *p, uint32_t k, zinf_decisions *d)
{
    return move_to(p, k, d) && order_fits(p, d);
}

static bool climb(pool *p, const probed *at)
{
    for (uint32_t k = 0, tried = 0; tried < N_MOVES; k = (k + 1) % N_MOVES) {
        zinf_decisions d = at->decisions;
        tried++;
        const probed *next = move(p, k, &d) ? probe(p, &d) : NULL;
        if (next && better(&next->probe, &at->probe)) {
            at = next;
            tried = 0;
        }
        if (p->only_fit && at->probe.fits)
            break;
    }
    return at->probe.fits;
}

static void climb_all(pool *p)
{
    const probed *starts[N_STARTS];

    for (uint32_t i = 0; i < N_STARTS && p->work < p->most_work; i++) {
        starts[i] = next_start(p, starts, i);
        if (!starts[i] || (climb(p, starts[i]) && p->only_fit))
            return;
    }
}

/* ---- the best few, whole ---- */

static void keep_top(zinf_search_result *r, uint32_t n_top, const probed *c,
                     const zinf_plan *plan)
{
    zinf_search_entry entry = {.decisions = c->decisions, .estimated_s = c->estimated_s,
                               .simulated_s = plan->predicted.step_s};
    uint32_t at = r->n_top;

    memcpy(entry.arena_bytes, plan->machine.arena_bytes, sizeof entry.arena_bytes);
    if (r->n_top == n_top && entry.simulated_s >= r->top[n_top - 1].simulated_s)
        return;
    if (r->n_top < n_top)
        r->n_top++;
    else
        at = n_top - 1;
    for (; at > 0 && entry.simulated_s < r->top[at - 1].simulated_s; at--)
        r->top[at] = r->top[at - 1];
    r->top[at] = entry;
}

static uint64_t total_short(const uint64_t short_bytes[ZINF_N_TIERS])
{
    return short_bytes[ZINF_TIER_DEVICE] + short_bytes[ZINF_TIER_HOST] +
           short_bytes[ZINF_TIER_NVME];
}

static bool take_best(pool *p, probed *ret)
{
    uint32_t best = 0;

    for (uint32_t i = 1; i < p->n_probed; i++)
        if (better(&p->probed[i].probe, &p->probed[best].probe))
            best = i;
    if (best >= p->n_probed)
        return false;
    *ret = p->probed[best];
    p->probed[best] = p->probed[--p->n_probed];
    return true;
}

/* Memory of a candidate at full depth; of a huge plan as the probe sees it. */
static bool fits_whole(pool *p, const probed *c, zinf_search_result *r)
{
    uint64_t short_bytes[ZINF_N_TIERS];

    memcpy(short_bytes, c->probe.short_bytes, sizeof short_bytes);
    if (c->probe.n_instrs <= WHOLE &&
        zinf_compile_memory(p->model, p->cluster, &c->decisions, short_bytes, p->err) != ZINF_OK)
        return false;
    if (!total_short(r->short_bytes)) {
        memcpy(r->short_bytes, short_bytes, sizeof short_bytes);
        r->nearest = c->decisions;
    }
    return !total_short(short_bytes);
}

/* Compiles what was probed, best first: n_top of what fits, or what is nearest to fitting. */
static bool compile_best(pool *p, uint32_t n_top, zinf_search_result *r)
{
    const uint32_t wanted = n_top > 3 ? n_top : 3;
    uint32_t fitted = 0;
    probed c;

    while (fitted < wanted && p->err->status == ZINF_OK && take_best(p, &c)) {
        uint64_t short_bytes[ZINF_N_TIERS];
        zinf_plan plan;
        /* alternatives of a large plan are not worth the wait unless they were asked for */
        if (fitted && (!c.probe.fits || (n_top == 1 && p->work >= p->most_work)))
            break;
        p->work += 3 * c.probe.n_instrs;
        if (p->only_fit || !c.probe.fits) {
            bool whole = fits_whole(p, &c, r);
            if (p->only_fit)
                return whole;
            if (!whole)
                break;
        }
        if (zinf_compile(p->model, p->cluster, &c.decisions, p->settings->arena == ZINF_LEAST,
                         &plan, short_bytes, p->err) != ZINF_OK)
            break;
        if (total_short(short_bytes)) { /* the probe was too hopeful */
            if (!total_short(r->short_bytes)) {
                memcpy(r->short_bytes, short_bytes, sizeof short_bytes);
                r->nearest = c.decisions;
            }
            zinf_plan_free(&plan);
            continue;
        }
        fitted++;
        keep_top(r, n_top, &c, &plan);
        if (!r->plan.n_instrs || plan.predicted.step_s < r->plan.predicted.step_s) {
            zinf_plan_free(&r->plan);
            r->plan = plan;
        } else {
            zinf_plan_free(&plan);
        }
    }
    return fitted > 0;
}

/* One search without suggestions; true if something fits. first: decisions to begin with, or
 * NULL. */
static bool search_once(const zinf_model *model, const zinf_cluster *cluster,
                        const zinf_settings *settings, bool only_fit, uint32_t n_top,
                        const zinf_decisions *first, zinf_search_result *r, zinf_error *err)
{
    pool *p = calloc(1, sizeof *p);
    bool fits = false;

    *r = (zinf_search_result){0};
    if (!p) {
        zinf_fail(err, ZINF_MACHINE, "out of memory while searching");
        return false;
    }
    p->model = model;
    p->cluster = cluster;
    p->settings = settings;
    p->only_fit = only_fit;
    p->most_work = only_fit ? WORK_SUGGESTION : WORK;
    p->err = err;
    enumerate(p);
    if (first)
        probe(p, first);
    if (!only_fit || p->small[0].shortness <= HOPELESS || first) {
        if (p->n_probed && p->probed[0].probe.fits) {
            ;
        } else if (only_fit) {
            probe_list(p, p->small, p->n_small, 1, p->most_work);
        } else {
            uint32_t n = 0;
            for (int k = 0; k < N_BANDS; k++)
                n += probe_list(p, p->fast[k], p->n_fast[k], N_STARTS, p->most_work / 3);
            for (int k = 0; k < N_BANDS; k++) {
                qsort(p->safe[k], p->n_safe[k], sizeof *p->safe[k], by_time);
                n += probe_list(p, p->safe[k], p->n_safe[k], N_STARTS, p->most_work / 2);
            }
            if (!n)
                probe_list(p, p->small, p->n_small, N_STARTS, p->most_work * 2 / 3);
        }
        if (p->small[0].shortness <= HOPELESS)
            climb_all(p);
        fits = compile_best(p, n_top, r);
    }
    r->n_candidates = p->n_seen;
    free(p);
    return fits;
}

/* ---- what would fit ---- */

static double gib(uint64_t bytes)
{
    return (double)bytes / (double)(1 << 30);
}

static bool fits(const zinf_model *model, const zinf_cluster *cluster,
                 const zinf_settings *settings, const zinf_decisions *first)
{
    zinf_search_result r;
    zinf_error err = {0};
    bool ok = search_once(model, cluster, settings, true, 1, first, &r, &err);

    zinf_search_free(&r);
    return ok;
}

__attribute__((format(printf, 2, 3)))
static void suggest(zinf_search_result *r, const char *format, ...)
{
    va_list args;

    if (r->n_suggestions == ZINF_MAX_SUGGESTIONS)
        return;
    va_start(args, format);
    vsnprintf(r->suggestions[r->n_suggestions++], sizeof *r->suggestions, format, args);
    va_end(args);
}

/* The key and the field that hold a tier's size; how many of that the key's value is: a host is
 * a node's, and a rank has its share. */
static const char *size_of(zinf_cluster *c, zinf_tier tier, uint64_t **ret_bytes,
                           uint64_t *ret_sharers)
{
    *ret_sharers = tier == ZINF_TIER_DEVICE ? 1 : c->devices_per_node;
    switch (tier) {
    case ZINF_TIER_DEVICE:
        *ret_bytes = &c->device.memory_bytes;
        if (!c->unified || c->device.memory_bytes != c->host.memory_bytes)
            return "device.memory";
        *ret_sharers = c->devices_per_node;
        return "host.memory"; /* the device's is taken from it */
    case ZINF_TIER_HOST:
        *ret_bytes = &c->host.memory_bytes;
        return "host.memory";
    default:
        *ret_bytes = &c->nvme.capacity_bytes;
        return "nvme.capacity";
    }
}

/* Exact: what is printed is what was tried. */
static void print_size(char text[40], uint64_t bytes)
{
    if (bytes % 1000000000 == 0)
        snprintf(text, 40, "%" PRIu64 " GB", bytes / 1000000000);
    else if (bytes % ((uint64_t)1 << 30) == 0)
        snprintf(text, 40, "%" PRIu64 " GiB", bytes >> 30);
    else if (bytes % ((uint64_t)1 << 20) == 0)
        snprintf(text, 40, "%" PRIu64 " MiB", bytes >> 20);
    else
        snprintf(text, 40, "%" PRIu64 " B", bytes);
}

/* Enlarges every tier in `mask` that is short; suggests it if that fits. */
static bool suggest_memory(const zinf_model *model, const zinf_cluster *cluster,
                           const zinf_settings *settings, unsigned mask, zinf_search_result *r)
{
    zinf_cluster more = *cluster;
    char text[160] = "", *at = text;

    for (unsigned t = 0; t < ZINF_TIER_SCALAR; t++) {
        char now[40], then[40];
        uint64_t *bytes, sharers;
        if (!(mask >> t & 1))
            continue;
        const char *key = size_of(&more, t, &bytes, &sharers);
        print_size(now, *bytes * sharers);
        *bytes += r->short_bytes[t];
        const uint64_t unit = (uint64_t)(*bytes >> 36 ? 1024 : 64) << 20;
        *bytes = (*bytes + unit - 1) / unit * unit;
        print_size(then, *bytes * sharers);
        at += snprintf(at, sizeof text - (size_t)(at - text), "%s%s: %s instead of %s",
                       at == text ? "" : " and ", key, then, now);
    }
    if (!fits(model, &more, settings, &r->nearest))
        return false;
    suggest(r, "%s", text);
    return true;
}

/* Each change alone, tried before it is named. */
static void suggestions(const zinf_model *model, const zinf_cluster *cluster,
                        const zinf_settings *settings, zinf_search_result *r)
{
    zinf_settings all_free;
    unsigned mask = 0;
    bool enough = false;

    zinf_settings_init(&all_free);
    if (memcmp(&all_free, settings, sizeof all_free) && fits(model, cluster, &all_free, NULL))
        suggest(r, "leave out --set: the search finds a plan that fits");
    for (unsigned t = 0; t < ZINF_TIER_SCALAR; t++)
        if (r->short_bytes[t] && (t != ZINF_TIER_NVME || cluster->nvme.present)) {
            mask |= 1u << t;
            enough |= suggest_memory(model, cluster, settings, 1u << t, r);
        }
    if (mask && !enough)
        suggest_memory(model, cluster, settings, mask, r);
    if (!cluster->nvme.present) {
        zinf_cluster more = *cluster;
        more.nvme.present = true;
        more.nvme.capacity_bytes = (uint64_t)4 << 40;
        more.nvme.read = more.nvme.write = 2e9;
        more.nvme.latency = 1e-4;
        more.nvme.block_bytes = 1 << 20;
        more.nvme.depth = 32;
        if (fits(model, &more, settings, NULL))
            suggest(r, "nvme.capacity: 4096 GiB instead of none (an nvme section in the "
                       "cluster file)");
    }
    for (uint64_t sequence = model->sequence / 2; sequence >= 16; sequence /= 2) {
        zinf_model shorter = *model;
        shorter.sequence = sequence;
        if (fits(&shorter, cluster, settings, NULL)) {
            suggest(r, "training.sequence: %" PRIu64 " instead of %" PRIu64, sequence,
                    model->sequence);
            break;
        }
    }
    for (uint64_t batch = settings->micro_batch > 1 ? (uint64_t)settings->micro_batch - 1 : 0;
         batch; batch--) {
        zinf_settings smaller_batch = *settings;
        smaller_batch.micro_batch = (int64_t)batch;
        if (model->global_batch % (zinf_n_ranks(cluster) * batch) == 0 &&
            fits(model, cluster, &smaller_batch, NULL)) {
            suggest(r, "--set micro_batch=%" PRIu64 " instead of %" PRId64, batch,
                    settings->micro_batch);
            break;
        }
    }
    for (uint64_t layers = model->layers / 2; layers >= 1; layers /= 2) {
        zinf_model smaller_model = *model;
        smaller_model.layers = layers;
        if (fits(&smaller_model, cluster, settings, NULL)) {
            suggest(r, "model.layers: %" PRIu64 " instead of %" PRIu64, layers, model->layers);
            break;
        }
    }
}

zinf_status zinf_search(const zinf_model *model, const zinf_cluster *cluster,
                        const zinf_settings *settings, uint32_t n_top,
                        zinf_search_result *ret_result, zinf_error *err)
{
    if (search_once(model, cluster, settings, false, n_top, NULL, ret_result, err) ||
        err->status != ZINF_OK)
        return err->status;
    suggestions(model, cluster, settings, ret_result);
    char text[700] = "", *at = text;
    for (unsigned t = 0; t < ZINF_TIER_SCALAR; t++)
        if (ret_result->short_bytes[t])
            at += snprintf(at, sizeof text - (size_t)(at - text),
                           "%s%s is short by %" PRIu64 " bytes (%.3f GiB)",
                           at == text ? "" : ", ", zinf_tier_name(t),
                           ret_result->short_bytes[t], gib(ret_result->short_bytes[t]));
    char each[50] = "";
    if (zinf_n_ranks(cluster) > 1)
        snprintf(each, sizeof each, ", for each of %" PRIu32 " ranks", zinf_n_ranks(cluster));
    return zinf_fail(err, ZINF_DOES_NOT_FIT,
                     "\"%s\" does not fit on \"%s\": at best %s%s", model->name, cluster->name,
                     at == text ? "every candidate is refused" : text, each);
}

void zinf_search_free(zinf_search_result *result)
{
    zinf_plan_free(&result->plan);
}
