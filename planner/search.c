/* planner/search.c - see search.h. */
#include "planner/search.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "planner/compile.h"
#include "planner/estimate.h"
#include "planner/graph.h"

enum {
    COMPILE_FIT = 8,    /* candidates that fit before the search stops compiling */
    COMPILE_MOST = 96,  /* candidates compiled at most in order of time */
    COMPILE_SMALL = 24, /* and, if none fitted, in order of memory */
};
/* A closed form may overstate memory by this much before its candidate is put off. */
static const double SLACK = 1.1;

typedef struct candidate {
    zinf_decisions decisions;
    double step_s, pressure; /* pressure: largest of estimate / capacity over tiers */
    uint32_t order;          /* enumeration order: ties */
} candidate;

typedef struct pool {
    const zinf_model *model;
    const zinf_cluster *cluster;
    const zinf_settings *settings;

    candidate *fast, *smallest; /* the best seen so far by time and by memory, in order */
    uint32_t n_fast, n_small, n_seen;
} pool;

static bool faster(const candidate *a, const candidate *b)
{
    if (a->step_s != b->step_s)
        return a->step_s < b->step_s;
    return a->order < b->order;
}

static bool smaller(const candidate *a, const candidate *b)
{
    if (a->pressure != b->pressure)
        return a->pressure < b->pressure;
    return a->order < b->order;
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
        double capacity = (double)zinf_capacity(p->cluster, t);
        double need = e.bytes[t] + (e.bytes[t] > 0 ? (double)zinf_overhead(p->cluster, t) : 0);
        double pressure = need <= 0 ? 0 : capacity > 0 ? need / capacity : 1e30;
        if (pressure > c.pressure)
            c.pressure = pressure;
    }
    if (c.pressure <= SLACK)
        insert(p->fast, &p->n_fast, COMPILE_MOST, &c, faster);
    insert(p->smallest, &p->n_small, COMPILE_SMALL, &c, smaller);
}

/* ---- enumeration ---- */

/* The values a decision may take: the pin alone, or those of `all` up to `most`. */
typedef struct choices {
    uint32_t values[64];
    uint32_t n;
} choices;

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

/* Divisors of the global batch, largest first; at most 12 of them, evenly spread. */
static choices micro_batches(const pool *p)
{
    const uint64_t global = p->model->global_batch;
    choices c = {0};

    if (p->settings->micro_batch != ZINF_FREE)
        return choose(p->settings->micro_batch, NULL, 0, 0);
    /* up to the root as the quotient, from there down as the divisor: never 2^31 trials */
    for (uint64_t parts = 1; parts * parts <= global && c.n < 12; parts++)
        if (global % parts == 0 && global / parts <= 1 << 20)
            c.values[c.n++] = (uint32_t)(global / parts);
    for (uint64_t size = (uint64_t)sqrt((double)global); size >= 1 && c.n < 12; size--)
        if (global % size == 0 && size * size < global && size <= 1 << 20)
            c.values[c.n++] = (uint32_t)size;
    if (c.n && c.values[c.n - 1] != 1)
        c.values[c.n == 12 ? 11 : c.n++] = 1;
    return c;
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
                consider(p, d);
            }
    }
}

static void enumerate(pool *p)
{
    static const uint32_t intervals[] = {0, 1, 2, 4};
    const zinf_settings *s = p->settings;
    const choices param = tiers(p, ZINF_CLASS_PARAM), grad = tiers(p, ZINF_CLASS_GRAD);
    const choices optimizer = tiers(p, ZINF_CLASS_OPTIMIZER);
    const choices checkpoint = tiers(p, ZINF_CLASS_CHECKPOINT);
    const choices batches = micro_batches(p);
    const choices interval = choose(s->checkpoint_interval, intervals, 4, p->model->layers);
    const bool cpu = !strcmp(p->cluster->device.kind, "cpu");
    zinf_decisions d = {
        .ranks = 1, .prefetch_gather = 1,
        .io_block_bytes = s->io_block_bytes != ZINF_FREE ? (uint64_t)s->io_block_bytes
                                                         : p->cluster->nvme.block_bytes,
        .io_depth = s->io_depth != ZINF_FREE ? (uint32_t)s->io_depth : p->cluster->nvme.depth,
        .n_threads = s->n_threads != ZINF_FREE ? (uint32_t)s->n_threads
                                               : (uint32_t)p->cluster->host.cores};

    if (!cpu && d.n_threads > 16)
        d.n_threads = 16; /* host threads of the update queue */
    for (uint32_t a = 0; a < param.n; a++)
        for (uint32_t b = 0; b < grad.n; b++)
            for (uint32_t c = 0; c < optimizer.n; c++)
                for (uint32_t e = 0; e < checkpoint.n; e++)
                    for (uint32_t i = 0; i < interval.n; i++) {
                        /* without checkpoints their tier means nothing: one is enough */
                        if (!interval.values[i] && e > 0)
                            continue;
                        for (uint32_t m = 0; m < batches.n; m++) {
                            d.tier[ZINF_CLASS_PARAM] = param.values[a];
                            d.tier[ZINF_CLASS_GRAD] = grad.values[b];
                            d.tier[ZINF_CLASS_OPTIMIZER] = optimizer.values[c];
                            d.tier[ZINF_CLASS_CHECKPOINT] = checkpoint.values[e];
                            d.checkpoint_interval = interval.values[i];
                            d.micro_batch = batches.values[m];
                            d.accumulation =
                                (uint32_t)(p->model->global_batch / d.micro_batch);
                            enumerate_tiles(p, &d);
                        }
                    }
}

/* ---- the best few ---- */

static void keep_top(zinf_search_result *r, uint32_t n_top, const candidate *c,
                     const zinf_plan *plan)
{
    zinf_search_entry entry = {.decisions = c->decisions, .estimated_s = c->step_s,
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

/* Compiles candidates in order; true if one fitted. */
static bool compile_list(const pool *p, const candidate *list, uint32_t n, uint32_t n_top,
                         zinf_search_result *r, zinf_error *err)
{
    uint32_t fitted = 0;

    for (uint32_t i = 0; i < n && fitted < COMPILE_FIT && err->status == ZINF_OK; i++) {
        uint64_t short_bytes[ZINF_N_TIERS];
        zinf_plan plan;
        if (zinf_compile(p->model, p->cluster, &list[i].decisions, false, &plan, short_bytes,
                         err) != ZINF_OK)
            break;
        if (total_short(short_bytes)) {
            if (!total_short(r->short_bytes) ||
                total_short(short_bytes) < total_short(r->short_bytes)) {
                memcpy(r->short_bytes, short_bytes, sizeof short_bytes);
                r->nearest = list[i].decisions;
            }
            zinf_plan_free(&plan);
            continue;
        }
        fitted++;
        keep_top(r, n_top, &list[i], &plan);
        if (!r->plan.n_instrs || plan.predicted.step_s < r->plan.predicted.step_s) {
            zinf_plan_free(&r->plan);
            r->plan = plan;
        } else {
            zinf_plan_free(&plan);
        }
    }
    return fitted > 0;
}

/* One search without suggestions; true if something fits. */
static bool search_once(const zinf_model *model, const zinf_cluster *cluster,
                        const zinf_settings *settings, uint32_t n_top, zinf_search_result *r,
                        zinf_error *err)
{
    pool p = {.model = model, .cluster = cluster, .settings = settings};
    bool fits = false;

    *r = (zinf_search_result){0};
    p.fast = malloc(COMPILE_MOST * sizeof *p.fast);
    p.smallest = malloc(COMPILE_SMALL * sizeof *p.smallest);
    if (!p.fast || !p.smallest) {
        zinf_fail(err, ZINF_MACHINE, "out of memory while searching");
    } else {
        enumerate(&p);
        r->n_candidates = p.n_seen;
        fits = compile_list(&p, p.fast, p.n_fast, n_top, r, err) ||
               (err->status == ZINF_OK &&
                compile_list(&p, p.smallest, p.n_small, n_top, r, err));
    }
    free(p.fast);
    free(p.smallest);
    return fits;
}

/* ---- what would fit ---- */

static double gib(uint64_t bytes)
{
    return (double)bytes / (double)(1 << 30);
}

static bool fits(const zinf_model *model, const zinf_cluster *cluster,
                 const zinf_settings *settings)
{
    zinf_search_result r;
    zinf_error err = {0};
    bool ok = search_once(model, cluster, settings, 1, &r, &err);

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

/* Each change alone, tried before it is named. */
static void suggestions(const zinf_model *model, const zinf_cluster *cluster,
                        const zinf_settings *settings, zinf_search_result *r)
{
    zinf_settings all_free;

    zinf_settings_init(&all_free);
    if (memcmp(&all_free, settings, sizeof all_free) && fits(model, cluster, &all_free))
        suggest(r, "leave out --set: the search finds a plan that fits");
    for (unsigned t = 0; t < ZINF_TIER_SCALAR; t++) {
        zinf_cluster more = *cluster;
        uint64_t step = (uint64_t)64 << 20;
        if (!r->short_bytes[t])
            continue;
        uint64_t *memory = t == ZINF_TIER_DEVICE ? &more.device.memory_bytes
                           : t == ZINF_TIER_HOST ? &more.host.memory_bytes
                                                 : &more.nvme.capacity_bytes;
        uint64_t need = (*memory + r->short_bytes[t] + step - 1) / step * step;
        if (t == ZINF_TIER_NVME && !more.nvme.present)
            continue;
        *memory = need;
        if (fits(model, &more, settings))
            suggest(r, "a %s tier of %.2f GiB instead of %.2f GiB", zinf_tier_name(t), gib(need),
                    gib(t == ZINF_TIER_DEVICE ? cluster->device.memory_bytes
                        : t == ZINF_TIER_HOST ? cluster->host.memory_bytes
                                              : cluster->nvme.capacity_bytes));
    }
    if (!cluster->nvme.present) {
        zinf_cluster more = *cluster;
        more.nvme.present = true;
        more.nvme.capacity_bytes = (uint64_t)1 << 42;
        more.nvme.read = more.nvme.write = 2e9;
        more.nvme.latency = 1e-4;
        more.nvme.block_bytes = 1 << 20;
        more.nvme.depth = 32;
        if (fits(model, &more, settings))
            suggest(r, "an nvme section in the cluster file (storage for offloaded states)");
    }
    for (uint64_t sequence = model->sequence / 2; sequence >= 16; sequence /= 2) {
        zinf_model shorter = *model;
        shorter.sequence = sequence;
        if (fits(&shorter, cluster, settings)) {
            suggest(r, "training.sequence: %" PRIu64 " instead of %" PRIu64, sequence,
                    model->sequence);
            break;
        }
    }
    if (settings->micro_batch > 1) {
        zinf_settings smaller_batch = *settings;
        smaller_batch.micro_batch = ZINF_FREE;
        if (fits(model, cluster, &smaller_batch))
            suggest(r, "a smaller micro_batch than %" PRId64, settings->micro_batch);
    }
    for (uint64_t layers = model->layers / 2; layers >= 1 && !r->n_suggestions; layers /= 2) {
        zinf_model smaller_model = *model;
        smaller_model.layers = layers;
        if (fits(&smaller_model, cluster, settings))
            suggest(r, "a model of %" PRIu64 " layers instead of %" PRIu64, layers,
                    model->layers);
    }
}

zinf_status zinf_search(const zinf_model *model, const zinf_cluster *cluster,
                        const zinf_settings *settings, uint32_t n_top,
                        zinf_search_result *ret_result, zinf_error *err)
{
    if (search_once(model, cluster, settings, n_top, ret_result, err) ||
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
    return zinf_fail(err, ZINF_DOES_NOT_FIT,
                     "\"%s\" does not fit on \"%s\": at best %s", model->name, cluster->name,
                     at == text ? "every candidate is refused" : text);
}

void zinf_search_free(zinf_search_result *result)
{
    zinf_plan_free(&result->plan);
}
