/* runtime/checker.c - the rules C1 to C8, proved by running each program once, symbolically.
 *
 * Instructions are visited in program order, which is one order the machine may take. For every
 * byte the map knows the last writer and the readers since; vector clocks over the queues say
 * what surely finished before the instruction visited. So a conflict that no wait orders is found
 * whatever the order of execution would have been.
 *
 * Loops. A segment with count n is visited min(n, 3) times. Two accesses are ordered by queue
 * order and waits alone, both the same in every iteration, and every path of waits leads
 * forward; so the order between iterations i and j depends on j - i only. Without strides an
 * iteration touches what every other touches: iteration 0 meets the state before the loop,
 * iteration 1 the state an iteration leaves (iteration 2 leaves the same), and what is ordered
 * between neighbours is ordered at any distance by queue order. Waits of distance 3 and more are
 * not counted on. An operand with a stride that is only read counts, in every iteration, as
 * reading what all iterations read; a segment that writes with a stride is visited in full, and
 * refused where that is too long.
 *
 * Contents. Bytes know the value last written and its generation: a number that grows with each
 * iteration (and at ADAM), so that what an earlier micro-batch left does not pass for this one's.
 * Copies carry contents along, padding included; what is not a value's bytes stays unreadable.
 * Gradients also count their contributions, per byte.
 */
#include "runtime/checker.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/checker_internal.h"

static void name_instr(const zinf_checker *c, uint32_t i, char text[160])
{
    snprintf(text, 160, "instruction %" PRIu32 " (%s \"%.80s\")", i,
             zinf_opcode_get(instr_of(c, i)->opcode)->name,
             &c->plan->strings[instr_of(c, i)->name]);
}

bool refuse(zinf_checker *c, const char *rule, uint32_t index, uint32_t other,
            const zinf_operand *o, uint64_t lo, uint64_t hi, const char *wrong)
{
    char one[160] = "", two[160] = "", bytes[120] = "", value[100] = "";

    if (index != ZINF_NONE)
        name_instr(c, index, one);
    if (other != ZINF_NONE)
        name_instr(c, other, two);
    if (o)
        snprintf(bytes, sizeof bytes, ", %s bytes [%" PRIu64 ", %" PRIu64 ")",
                 zinf_tier_name(o->tier), lo, hi);
    if (o && o->value != ZINF_NONE)
        snprintf(value, sizeof value, ", \"%.80s\"", &c->plan->strings[c->plan->values[o->value]]);
    zinf_fail(c->err, ZINF_DOES_NOT_FIT, "%s: program %s, %s%s%s%s%s: %s", rule,
              zinf_program_name(c->kind), one, *two ? " after " : "", two, bytes, value, wrong);
    return false;
}

bool refuse_operand(zinf_checker *c, const char *rule, const zinf_operand *o,
                    const char *wrong)
{
    return refuse(c, rule, c->index, ZINF_NONE, o, o->offset, o->offset + o->bytes, wrong);
}

static uint64_t n_visits(const zinf_checker *c, const zinf_segment *s)
{
    bool strides = false;

    for (uint32_t i = s->first_instr; i < s->first_instr + s->n_instrs; i++)
        for (uint32_t k = 0; k < instr_of(c, i)->n_operands; k++)
            strides |= c->plan->operands[instr_of(c, i)->operand0 + k].stride &&
                       access_of(instr_of(c, i), k).writes;
    return strides || s->count < UNROLL ? s->count : UNROLL;
}

/* ---- C1, C2, C5, C6: each by itself ---- */

static bool check_operand(zinf_checker *c, const zinf_operand *o, bool direct)
{
    const uint64_t element = zinf_dtype_bytes(o->dtype), unit = direct ? ZINF_PAGE : element;
    uint64_t arena = c->plan->machine.arena_bytes[o->tier], end, span;

    if (o->tier == ZINF_TIER_SCALAR)
        arena = 8 * ((uint64_t)ZINF_SCALAR_PARTIALS + c->plan->n_units);
    if (__builtin_mul_overflow(o->stride, c->count - 1, &end) ||
        __builtin_add_overflow(end, o->offset, &end) ||
        __builtin_add_overflow(end, o->bytes, &end) || end > arena)
        return refuse_operand(c, "C1", o, "ends beyond the arena");
    if (o->rows == 0 || o->ld < o->cols || __builtin_mul_overflow(o->rows - 1, o->ld, &span) ||
        __builtin_add_overflow(span, o->cols, &span) ||
        __builtin_mul_overflow(span, element, &span) || span != o->bytes)
        return refuse_operand(c, "C1", o, "has not the bytes of its rows and columns");
    if (o->offset % unit || o->stride % unit || (direct && o->bytes % unit))
        return refuse_operand(c, "C2", o, direct ? "direct I/O moves whole pages of 4096 bytes"
                                                 : "is not aligned to its elements");
    if ((o->tier == ZINF_TIER_SCALAR) != (o->dtype == ZINF_F64))
        return refuse_operand(c, "C2", o, "scalars are F64, and nothing else is");
    if (o->value == ZINF_NONE && o->offset % 64)
        return refuse_operand(c, "C2", o, "scratch is not aligned to 64 bytes");
    return true;
}

static bool check_instr(zinf_checker *c, const zinf_segment *s)
{
    /* Bits of the tiers that the first operand and the others may be in. */
    enum { D = 1 << ZINF_TIER_DEVICE, H = 1 << ZINF_TIER_HOST, N = 1 << ZINF_TIER_NVME,
           S = 1 << ZINF_TIER_SCALAR };
    static const uint8_t reach[ZINF_N_QUEUES][2] = {
        [ZINF_QUEUE_COMPUTE] = {D | S, D | S},
        [ZINF_QUEUE_COLLECTIVE] = {D | H | S, D | H | S},
        [ZINF_QUEUE_UPLOAD] = {H, D}, [ZINF_QUEUE_DOWNLOAD] = {D, H},
        [ZINF_QUEUE_READ] = {N, D | H}, [ZINF_QUEUE_WRITE] = {D | H, N},
        [ZINF_QUEUE_UPDATE] = {D | H | S, D | H | S}};
    const zinf_plan *plan = c->plan;
    const zinf_instr *instr = instr_of(c, c->index);
    const zinf_opcode_info *info = zinf_opcode_get(instr->opcode);
    const zinf_operand *o = &plan->operands[instr->operand0];
    const uint32_t first = plan->segments[plan->programs[c->kind].first_segment].first_instr;
    const bool direct = instr->queue == ZINF_QUEUE_READ || instr->queue == ZINF_QUEUE_WRITE;

    if (!strchr(info->queues, "CGUDRWP"[instr->queue]))
        return refuse(c, info->queues[0] == 'G' ? "C6" : "C5", c->index, ZINF_NONE, NULL, 0, 0,
                      "is on a queue that does not do this");
    for (uint32_t k = 0; k < instr->n_operands; k++) {
        if (o[k].bytes == 0 && !access_of(instr, k).optional)
            return refuse_operand(c, "C4", &o[k], "is absent");
        if (o[k].bytes && !check_operand(c, &o[k], direct))
            return false;
        if (o[k].bytes && !(reach[instr->queue][k > 0] >> o[k].tier & 1))
            return refuse_operand(c, "C1", &o[k], "its queue does not reach this tier");
    }
    if (is_copy(instr->opcode) && (o[0].bytes != o[1].bytes || o[0].value != o[1].value))
        return refuse_operand(c, "C4", &o[1], "a copy changes neither bytes nor value");
    for (uint32_t w = instr->wait0; w < instr->wait0 + instr->n_waits; w++) {
        const zinf_wait *wait = &plan->waits[w];
        const bool same = wait->instr >= s->first_instr;
        if (wait->instr < first || wait->instr >= s->first_instr + s->n_instrs ||
            (same && wait->distance == 0 && wait->instr >= c->index) ||
            (!same && wait->distance) || instr_of(c, wait->instr)->queue == instr->queue)
            return refuse(c, "C5", c->index, wait->instr, NULL, 0, 0,
                          "a wait must point backwards, to another queue");
    }
    if (info->queues[0] == 'G') {
        const uint64_t ranks = plan->decisions.ranks;
        const uint64_t send = instr->opcode == ZINF_OP_ALLGATHER ? o[0].bytes * ranks : o[0].bytes;
        const uint64_t recv = instr->opcode == ZINF_OP_REDUCE_SCATTER ? o[1].bytes * ranks
                                                                      : o[1].bytes;
        if (o[0].dtype != o[1].dtype || send != recv || instr->attr[0] >= ranks)
            return refuse_operand(c, "C6", &o[1], "type, count or root disagree between ranks");
    }
    return true;
}

static int by_place(const void *a, const void *b)
{
    const zinf_region *x = a, *y = b;

    if (x->tier != y->tier)
        return x->tier < y->tier ? -1 : 1;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

static bool check_regions(zinf_checker *c)
{
    const zinf_plan *plan = c->plan;
    const uint64_t act = zinf_dtype_bytes(plan->job.precision);
    zinf_region *all = calloc(3 * (size_t)plan->n_units + 1, sizeof *all);
    uint32_t n = 0;
    bool ok = all != NULL;

    for (uint32_t u = 0; ok && u < plan->n_units; u++) {
        const zinf_unit *unit = &plan->units[u];
        const zinf_region *regions[3] = {&unit->param, &unit->grad, &unit->optimizer};
        const uint64_t shard = unit->shard_elems;
        const uint64_t need[3] = {act * shard, 4 * shard, 2 * unit->array_stride + 4 * shard};
        for (int i = 0; ok && i < 3; i++) {
            const zinf_region *r = regions[i];
            const zinf_operand o = {.tier = (uint8_t)r->tier, .value = r->value};
            const char *rule = NULL, *wrong = NULL;
            if (r->bytes == 0)
                continue;
            if (r->bytes < need[i] || r->bytes > plan->machine.arena_bytes[r->tier] ||
                r->offset > plan->machine.arena_bytes[r->tier] - r->bytes)
                rule = "C1", wrong = "a unit's region is too small or ends beyond the arena";
            else if (r->offset % ZINF_PAGE || r->bytes % ZINF_PAGE ||
                     unit->array_stride < 4 * shard || unit->array_stride % 4)
                rule = "C2", wrong = "a unit's region is not aligned to pages";
            else if (r->value == ZINF_NONE || c->contents[r->value].role != ROLE_NONE)
                rule = "C4", wrong = "a unit's region has no value of its own";
            else
                c->contents[r->value] = (zinf_content){
                    .unit = u, .role = i == 2 ? ROLE_OPTIMIZER : stored_role(plan, i)};
            all[n++] = *r;
            if (rule)
                ok = refuse(c, rule, ZINF_NONE, ZINF_NONE, &o, r->offset, r->offset + r->bytes,
                            wrong);
        }
        const uint32_t whole[2] = {unit->whole_param, unit->whole_grad};
        for (int i = 0; ok && i < 2 && plan->decisions.ranks > 1; i++) {
            if (whole[i] >= plan->n_values || c->contents[whole[i]].role != ROLE_NONE)
                ok = refuse(c, "C4", ZINF_NONE, ZINF_NONE, NULL, 0, 0,
                            "a gathered unit has no value of its own");
            else
                c->contents[whole[i]] = (zinf_content){
                    .unit = u, .role = i ? ROLE_GRAD : ROLE_PARAM};
        }
    }
    if (ok)
        qsort(all, n, sizeof *all, by_place);
    for (uint32_t i = 1; ok && i < n; i++) {
        const zinf_operand o = {.tier = (uint8_t)all[i].tier, .value = all[i].value};
        if (all[i].tier == all[i - 1].tier && all[i].offset - all[i - 1].offset < all[i - 1].bytes)
            ok = refuse(c, "C3", ZINF_NONE, ZINF_NONE, &o, all[i].offset,
                        all[i - 1].offset + all[i - 1].bytes, "two units' regions overlap");
    }
    for (int t = ZINF_TIER_DEVICE; ok && t <= ZINF_TIER_NVME; t++) {
        const zinf_operand o = {.tier = (uint8_t)t, .value = ZINF_NONE};
        uint64_t need;
        if (__builtin_add_overflow(plan->machine.arena_bytes[t], plan->machine.overhead_bytes[t],
                                   &need) || need > plan->machine.capacity_bytes[t])
            ok = refuse(c, "C1", ZINF_NONE, ZINF_NONE, &o, 0, plan->machine.arena_bytes[t],
                        "arena and overhead exceed the tier's capacity");
    }
    free(all);
    return ok;
}

/* ---- running a program ---- */

/* The segment of the program that holds an instruction, at or before `last`. */
static uint32_t segment_of(const zinf_checker *c, uint32_t last, uint32_t instr)
{
    const zinf_segment *segments = &c->plan->segments[c->plan->programs[c->kind].first_segment];
    uint32_t first = 0;

    if (instr >= segments[last].first_instr)
        return last;
    while (first < last) {
        const uint32_t middle = first + (last - first + 1) / 2;
        if (segments[middle].first_instr <= instr)
            first = middle;
        else
            last = middle - 1;
    }
    return first;
}

static bool visit(zinf_checker *c, uint32_t segment, uint32_t number)
{
    const zinf_plan *plan = c->plan;
    const zinf_segment *segments = &plan->segments[plan->programs[c->kind].first_segment];
    const zinf_instr *instr = instr_of(c, c->index);
    const zinf_operand *o = &plan->operands[instr->operand0];
    const unsigned queue = instr->queue;

    memset(c->now, 0, sizeof c->now);
    if (c->before[queue])
        memcpy(c->now, c->before[queue], sizeof c->now);
    for (uint32_t w = instr->wait0; w < instr->wait0 + instr->n_waits; w++) {
        const zinf_wait *wait = &plan->waits[w];
        uint32_t s = segment_of(c, segment, wait->instr);
        if (s == segment && wait->distance > c->iteration)
            continue;
        const uint64_t iteration = s == segment ? c->iteration - wait->distance
                                                : c->visits[s] - 1;
        const uint32_t *clock = c->clocks[c->first_visit[s] + iteration * segments[s].n_instrs +
                                          (wait->instr - segments[s].first_instr)];
        for (int q = 0; q < ZINF_N_QUEUES; q++)
            c->now[q] = clock[q] > c->now[q] ? clock[q] : c->now[q];
    }
    for (uint32_t k = 0; k < instr->n_operands; k++) {
        const zinf_access access = access_of(instr, k);
        if (o[k].bytes && access.reads && !read_operand(c, &o[k], access.writes))
            return false;
        if (o[k].bytes && access.reads &&
            (instr->opcode < ZINF_OP_LOSS || instr->opcode == ZINF_OP_LOGITS) &&
            c->contents[o[k].value].role == ROLE_PARAM)
            c->tallies[c->contents[o[k].value].unit].uses |=
                instr->opcode == ZINF_OP_EMBEDDING_FORWARD && k == 1 ? 1 : 2;
    }
    if (!check_role(c))
        return false;
    for (uint32_t k = 0; k < instr->n_operands; k++) {
        const zinf_access access = access_of(instr, k);
        if (!o[k].bytes || !access.writes)
            continue;
        if (is_copy(instr->opcode) ? !copy_contents(c, &o[0], &o[k])
                                   : !write_operand(c, &o[k], k, access.reads))
            return false;
    }
    memcpy(c->clocks[number], c->now, sizeof c->now);
    c->clocks[number][queue] = c->next_clock[queue]++;
    c->before[queue] = c->clocks[number];
    for (int t = 0; t < ZINF_N_TIERS; t++)
        if (c->maps[t].work > c->maps[t].most_work)
            return refuse(c, "C3", c->index, ZINF_NONE, NULL, 0, 0,
                          "accesses are in too many pieces to be proved");
        else if (c->maps[t].failed)
            return zinf_fail(c->err, ZINF_MACHINE, "out of memory while checking the plan"), false;
    return true;
}

/* Regions as the program finds them. */
static bool enter(zinf_checker *c, uint64_t most_work)
{
    const zinf_plan *plan = c->plan;

    for (uint32_t u = 0; u < plan->n_units; u++)
        c->tallies[u] = (zinf_tally){.step_uses = c->tallies[u].step_uses};
    memset(c->before, 0, sizeof c->before);
    c->n_losses = c->visits_losses = c->clips = c->batches = c->loss_sums = 0;
    c->generation = 0;
    for (int q = 0; q < ZINF_N_QUEUES; q++)
        c->next_clock[q] = 1;
    for (uint32_t v = 0; v < plan->n_values; v++)
        c->contents[v].generation = c->contents[v].batch = 0;
    for (int t = 0; t < ZINF_N_TIERS; t++)
        if (!zinf_map_init(&c->maps[t], most_work))
            return zinf_fail(c->err, ZINF_MACHINE, "out of memory while checking the plan"), false;
    if (c->kind == ZINF_PROGRAM_INIT || c->kind == ZINF_PROGRAM_LOAD)
        return true;
    for (uint32_t u = 0; u < plan->n_units; u++) {
        const zinf_region *regions[2] = {&plan->units[u].param, &plan->units[u].optimizer};
        for (int i = 0; i < 2; i++) {
            const zinf_region *r = regions[i];
            const zinf_span span = {r->offset, r->offset + r->bytes, 0, 0};
            const zinf_cell cell = {.value = r->value, .writer = ZINF_NONE,
                                    .origin = (int64_t)r->offset,
                                    .dtype = (uint8_t)(i ? ZINF_F32 : plan->job.precision)};
            if (r->bytes == 0)
                continue;
            zinf_map_touch(&c->maps[r->tier], span);
            zinf_map_write(&c->maps[r->tier], span, &cell);
        }
    }
    return true;
}

static bool check_program(zinf_checker *c, uint32_t kind)
{
    const zinf_program *program = &c->plan->programs[kind];
    const zinf_segment *segments = &c->plan->segments[program->first_segment];
    uint64_t total = 0, unrolled = 0;
    uint32_t number = 0;

    c->kind = kind;
    free(c->clocks);
    free(c->first_visit);
    c->clocks = NULL;
    c->first_visit = calloc(2 * (size_t)program->n_segments + 1, sizeof *c->first_visit);
    c->visits = c->first_visit + program->n_segments;
    if (!c->first_visit)
        return zinf_fail(c->err, ZINF_MACHINE, "out of memory while checking the plan"), false;
    for (uint32_t s = 0; s < program->n_segments; s++) {
        c->first_visit[s] = (uint32_t)total;
        uint64_t visits = n_visits(c, &segments[s]);
        if (visits > UNROLL)
            unrolled += visits * segments[s].n_instrs; /* at most 2^62 before it is refused */
        if (unrolled > MOST_VISITS)
            return refuse(c, "C3", segments[s].first_instr, ZINF_NONE, NULL, 0, 0,
                          "its loop writes with a stride and is too long to be proved");
        c->visits[s] = (uint32_t)visits;
        total += visits * segments[s].n_instrs;
    }
    if (!enter(c, LEAST_WORK + EACH_WORK * (total + c->plan->n_units)))
        return zinf_fail(c->err, ZINF_MACHINE, "out of memory while checking the plan"), false;
    c->clocks = total > UINT32_MAX - 1 ? NULL : malloc((total + 1) * sizeof *c->clocks);
    if (!c->clocks)
        return zinf_fail(c->err, ZINF_MACHINE, "out of memory while checking the plan"), false;
    for (uint32_t s = 0; s < program->n_segments; s++) {
        c->count = segments[s].count;
        for (c->iteration = 0; c->iteration < c->visits[s]; c->iteration++) {
            c->generation += GENERATION;
            c->losses_before = c->visits_losses;
            for (uint32_t i = 0; i < segments[s].n_instrs; i++) {
                c->index = segments[s].first_instr + i;
                if ((c->iteration == 0 && !check_instr(c, &segments[s])) ||
                    !visit(c, s, number++))
                    return false;
            }
        }
    }
    c->iteration = 0;
    c->count = 1;
    return check_exit(c);
}

zinf_status zinf_plan_check(const zinf_plan *plan, zinf_error *err)
{
    /* INIT and LOAD last: by then it is known what the others need on entry. */
    static const zinf_program_kind order[ZINF_N_PROGRAMS] = {
        ZINF_PROGRAM_STEP, ZINF_PROGRAM_FLUSH, ZINF_PROGRAM_EVAL, ZINF_PROGRAM_SAMPLE,
        ZINF_PROGRAM_SAVE, ZINF_PROGRAM_INIT, ZINF_PROGRAM_LOAD};
    zinf_checker c = {.plan = plan, .err = err, .count = 1};

    c.contents = calloc((size_t)plan->n_values + 1, sizeof *c.contents);
    c.tallies = calloc((size_t)plan->n_units + 1, sizeof *c.tallies);
    bool ok = c.contents && c.tallies;
    if (!ok)
        zinf_fail(err, ZINF_MACHINE, "out of memory while checking the plan");
    ok = ok && check_regions(&c);
    for (int k = 0; ok && k < ZINF_N_PROGRAMS; k++)
        ok = check_program(&c, order[k]);
    for (int t = 0; t < ZINF_N_TIERS; t++)
        zinf_map_free(&c.maps[t]);
    free(c.contents);
    free(c.tallies);
    free(c.pieces);
    free(c.clocks);
    free(c.first_visit);
    return ok ? ZINF_OK : err->status;
}
