/* tests/planner/timeline.c - the simulator on compiled plans and on hand-made ones: bounds, waits,
 * loops against full unrolling, deadlocks; and the search against its own space.
 *
 * usage: test_timeline
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/compile.h"
#include "planner/estimate.h"
#include "planner/graph.h"
#include "planner/search.h"
#include "runtime/timeline.h"
#include "tests/check.h"

static zinf_model model_of(uint64_t layers, uint64_t hidden, uint64_t batch)
{
    zinf_model m = {.name = "m", .family = "gpt2", .layers = layers, .hidden = hidden,
                    .heads = 2, .kv_heads = 2, .head_dim = hidden / 2, .ffn = 4 * hidden,
                    .vocab = 500, .context = 64, .tied_embeddings = true, .sequence = 64,
                    .global_batch = batch, .precision = ZINF_BF16, .optimizer = "adamw",
                    .schedule = "constant", .lr = 1e-3, .steps = 10, .beta1 = 0.9,
                    .beta2 = 0.95, .eps = 1e-8, .clip = 1};

    return m;
}

static zinf_cluster cluster_of(bool unified)
{
    zinf_cluster c = {.name = "c", .nodes = 1, .devices_per_node = 1, .unified = unified};

    strcpy(c.device.kind, "cpu");
    c.device.memory_bytes = c.host.memory_bytes = (uint64_t)1 << 31;
    c.device.peak_f32 = c.device.peak_bf16 = 3e11;
    c.device.bandwidth = c.host.bandwidth = 2e10;
    c.host.cores = 2;
    c.host.adam = 5e8;
    c.nvme.present = true;
    c.nvme.n_paths = 1;
    c.nvme.depth = 8;
    c.nvme.capacity_bytes = (uint64_t)1 << 32;
    c.nvme.block_bytes = 1 << 20;
    c.nvme.read = c.nvme.write = 1e9;
    c.nvme.latency = 1e-4;
    c.links.host_device_per_device = 8e9;
    c.links.host_device_latency = 5e-6;
    return c;
}

static uint64_t seed = 7;

static uint32_t random_below(uint32_t n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((seed >> 33) % n);
}

static zinf_decisions random_decisions(const zinf_model *m, const zinf_cluster *c)
{
    zinf_decisions d = {.ranks = 1, .prefetch_gather = 1, .io_block_bytes = 1 << 20,
                        .io_depth = 8, .n_threads = 2};

    for (int k = 0; k < ZINF_N_CLASSES; k++) {
        d.tier[k] = random_below(3);
        if (c->unified && d.tier[k] == ZINF_TIER_HOST)
            d.tier[k] = ZINF_TIER_DEVICE;
    }
    d.checkpoint_interval = random_below(3);
    if (!d.checkpoint_interval)
        d.tier[ZINF_CLASS_CHECKPOINT] = ZINF_TIER_DEVICE;
    d.micro_batch = 1u << random_below(4);
    d.accumulation = (uint32_t)m->global_batch / d.micro_batch;
    uint32_t tiles = 1u << random_below(3);
    for (int l = 0; l < ZINF_LINEAR_VOCAB; l++)
        d.tiles[l] = tiles;
    d.tiles[ZINF_LINEAR_VOCAB] = 1u << (2 * random_below(2));
    d.prefetch_read = 1u << random_below(3);
    d.prefetch_upload = 1u << random_below(2);
    if (d.checkpoint_interval && !m->tied_embeddings) /* the search's own choice, too */
        d.order = random_below(2) ? ZINF_VERTICAL : ZINF_HORIZONTAL;
    return d;
}

/* Start of every event is at or after the end of what it waits for, where that is simulated. */
static void check_waits(const zinf_plan *plan, zinf_program_kind kind, const zinf_timeline *t)
{
    const zinf_program *program = &plan->programs[kind];
    double queue_end[ZINF_N_QUEUES] = {0};

    for (uint32_t e = 0; e < t->n_events; e++) {
        const zinf_event *event = &t->events[e];
        const zinf_instr *instr = &plan->instrs[event->instr];
        const zinf_segment *own = NULL;
        CHECK(event->end_ns - event->start_ns >= instr->cost_ns * (1 - 1e-9) - 1e-3);
        CHECK(event->start_ns >= queue_end[instr->queue]);
        queue_end[instr->queue] = event->end_ns;
        for (uint32_t g = 0; g < program->n_segments; g++) {
            const zinf_segment *s = &plan->segments[program->first_segment + g];
            if (event->instr >= s->first_instr && event->instr - s->first_instr < s->n_instrs)
                own = s;
        }
        for (uint32_t w = 0; w < instr->n_waits; w++) {
            const zinf_wait *wait = &plan->waits[instr->wait0 + w];
            bool inside = wait->instr >= own->first_instr &&
                          wait->instr - own->first_instr < own->n_instrs;
            for (uint32_t k = 0; k < e; k++) {
                const zinf_event *target = &t->events[k];
                if (target->instr != wait->instr ||
                    (inside && target->iteration + wait->distance != event->iteration))
                    continue;
                CHECK_MESSAGE(event->start_ns >= target->end_ns,
                              "instruction %u starts before %u ends", event->instr, wait->instr);
            }
        }
    }
}

static void totals_are_bounded_and_waits_are_kept(void)
{
    zinf_model m = model_of(3, 64, 8);

    for (int round = 0; round < 24; round++) {
        zinf_cluster c = cluster_of(round % 3 == 0);
        c.nvme.overlap = round % 2;
        zinf_decisions d = random_decisions(&m, &c);
        zinf_plan plan;
        zinf_error err = {0};
        uint64_t short_bytes[ZINF_N_TIERS];
        CHECK_MESSAGE(zinf_compile(&m, &c, &d, true, &plan, short_bytes, &err) == ZINF_OK, "%s",
                      err.text);
        for (int p = 0; p < ZINF_N_PROGRAMS; p++) {
            zinf_timeline t;
            double sum = 0;
            CHECK(zinf_timeline_run(&plan, p, &t, &err) == ZINF_OK);
            for (int q = 0; q < ZINF_N_QUEUES; q++) {
                CHECK(t.total_ns >= t.busy_ns[q] * (1 - 1e-9) &&
                      t.busy_ns[q] >= t.alone_ns[q] * (1 - 1e-9));
                sum += t.alone_ns[q];
            }
            CHECK_MESSAGE(t.total_ns <= sum * (1 + 1e-9), "%s: %g of %g", zinf_program_name(p),
                          t.total_ns, sum);
            if (round < 8)
                check_waits(&plan, p, &t);
            zinf_timeline_free(&t);
        }
        zinf_plan_free(&plan);
    }
}

/* A hand-made step: prologue A on compute; a loop of B (read) and C (compute), C waits for B of
 * its iteration, B for C of two iterations before; an epilogue D (update) waits for C. */
static double run_loop(uint64_t count, bool unrolled, double read_ns, double compute_ns)
{
    enum { MOST = 64 };
    zinf_instr instrs[MOST] = {0};
    zinf_wait waits[2 * MOST];
    zinf_segment segments[3];
    zinf_plan plan = {.instrs = instrs, .waits = waits, .segments = segments};
    uint32_t n = 0, n_waits = 0;
    zinf_timeline t;
    zinf_error err = {0};

    instrs[n++] = (zinf_instr){.queue = ZINF_QUEUE_COMPUTE, .cost_ns = 50};
    const uint32_t first = n;
    for (uint64_t i = 0; i < (unrolled ? count : 1); i++) {
        zinf_instr b = {.queue = ZINF_QUEUE_READ, .cost_ns = read_ns, .wait0 = n_waits};
        if (!unrolled || i >= 2) {
            waits[n_waits++] = unrolled ? (zinf_wait){.instr = n - 3}
                                        : (zinf_wait){.instr = n + 1, .distance = 2};
            b.n_waits = 1;
        }
        zinf_instr c = {.queue = ZINF_QUEUE_COMPUTE, .cost_ns = compute_ns, .wait0 = n_waits,
                        .n_waits = 1};
        waits[n_waits++] = (zinf_wait){.instr = n};
        instrs[n++] = b;
        instrs[n++] = c;
    }
    const uint32_t last = n - 1;
    instrs[n] = (zinf_instr){.queue = ZINF_QUEUE_UPDATE, .cost_ns = 30, .wait0 = n_waits,
                             .n_waits = 1};
    waits[n_waits++] = (zinf_wait){.instr = last};
    n++;
    segments[0] = (zinf_segment){.first_instr = 0, .n_instrs = 1, .count = 1};
    segments[1] = (zinf_segment){.first_instr = first, .n_instrs = last + 1 - first,
                                 .count = unrolled ? 1 : count};
    segments[2] = (zinf_segment){.first_instr = last + 1, .n_instrs = 1, .count = 1};
    plan.n_instrs = n;
    plan.n_waits = n_waits;
    plan.n_segments = 3;
    plan.programs[ZINF_PROGRAM_STEP] = (zinf_program){.first_segment = 0, .n_segments = 3};
    CHECK_MESSAGE(zinf_timeline_run(&plan, ZINF_PROGRAM_STEP, &t, &err) == ZINF_OK, "%s",
                  err.text);
    const double total = t.total_ns;
    zinf_timeline_free(&t);
    return total;
}

/* A product of 90 ns beside a copy of 40 ns: the copy's one thread and the team of n share n cores.
 * The end of both if every thread has its share while both run. */
static void a_copy_takes_one_thread_of_the_cores(void)
{
    for (uint32_t n = 1; n <= 8; n *= 2) {
        zinf_instr instrs[] = {{.queue = ZINF_QUEUE_COMPUTE, .cost_ns = 90},
                               {.queue = ZINF_QUEUE_DOWNLOAD, .cost_ns = 40}};
        zinf_segment segment = {.first_instr = 0, .n_instrs = 2, .count = 1};
        zinf_plan plan = {.instrs = instrs, .segments = &segment, .n_instrs = 2, .n_segments = 1,
                          .machine.shared_cores = true, .decisions.n_threads = n,
                          .programs[ZINF_PROGRAM_STEP] = {.first_segment = 0, .n_segments = 1}};
        const double share = n / (n + 1.0);
        zinf_timeline t;
        zinf_error err = {0};
        CHECK(zinf_timeline_run(&plan, ZINF_PROGRAM_STEP, &t, &err) == ZINF_OK);
        CHECK(fabs(t.busy_ns[ZINF_QUEUE_DOWNLOAD] - 40 / share) < 1e-9);
        CHECK(fabs(t.busy_ns[ZINF_QUEUE_COMPUTE] - (90 + 40 / share - 40)) < 1e-9);
        zinf_timeline_free(&t);
        instrs[1].queue = ZINF_QUEUE_UPDATE; /* another team: half each */
        CHECK(zinf_timeline_run(&plan, ZINF_PROGRAM_STEP, &t, &err) == ZINF_OK);
        CHECK(fabs(t.busy_ns[ZINF_QUEUE_UPDATE] - 80) < 1e-9);
        CHECK(fabs(t.busy_ns[ZINF_QUEUE_COMPUTE] - 130) < 1e-9);
        zinf_timeline_free(&t);
    }
}

/* A read of 100 ns beside a write of 60 ns, and a product of 300 ns of two threads: each transfer
 * moves at half its rate while both run, and takes from the cores what a core needs for it. */
static void transfers_share_the_device_and_take_from_the_cores(void)
{
    zinf_operand operands[] = {{.bytes = 500}, {.bytes = 300}, {.bytes = 0}};
    zinf_instr instrs[] = {{.queue = ZINF_QUEUE_READ, .cost_ns = 100, .operand0 = 0},
                           {.queue = ZINF_QUEUE_WRITE, .cost_ns = 60, .operand0 = 1},
                           {.queue = ZINF_QUEUE_COMPUTE, .cost_ns = 300, .operand0 = 2}};
    zinf_segment segment = {.first_instr = 0, .n_instrs = 3, .count = 1};
    zinf_plan plan = {.instrs = instrs, .operands = operands, .segments = &segment, .n_instrs = 3,
                      .n_segments = 1, .n_operands = 3, .machine.shared_cores = true,
                      .decisions.n_threads = 2,
                      .programs[ZINF_PROGRAM_STEP] = {.first_segment = 0, .n_segments = 1}};
    zinf_timeline t;
    zinf_error err = {0};

    for (int round = 0; round < 3; round++) {
        /* 5 bytes a ns: half a core at 10 GB/s; at 1 GB/s it would be five, and half of both are
         * the team's */
        const double rates[] = {0, 10e9, 1e9}, cores[] = {0, 0.5, 1};
        plan.machine.storage_core = rates[round];
        for (int overlap = 0; overlap < 2; overlap++) {
            plan.machine.overlap_read_write = (uint64_t)overlap;
            CHECK(zinf_timeline_run(&plan, ZINF_PROGRAM_STEP, &t, &err) == ZINF_OK);
            const double both = overlap ? 60 : 120, read = overlap ? 100 : 160;
            CHECK(fabs(t.busy_ns[ZINF_QUEUE_WRITE] - both) < 1e-9);
            CHECK(fabs(t.busy_ns[ZINF_QUEUE_READ] - read) < 1e-9);
            const double taken = fmin(1, overlap ? 2 * cores[round] : cores[round]);
            const double done = both * (2 - taken) / 2 + (read - both) * (2 - cores[round]) / 2;
            CHECK_MESSAGE(fabs(t.busy_ns[ZINF_QUEUE_COMPUTE] - (read + 300 - done)) < 1e-9,
                          "compute %g, %g expected", t.busy_ns[ZINF_QUEUE_COMPUTE],
                          read + 300 - done);
            zinf_timeline_free(&t);
        }
    }
    plan.machine.shared_cores = false; /* an accelerator computes */
    CHECK(zinf_timeline_run(&plan, ZINF_PROGRAM_STEP, &t, &err) == ZINF_OK);
    CHECK(fabs(t.busy_ns[ZINF_QUEUE_COMPUTE] - 300) < 1e-9);
    zinf_timeline_free(&t);
}

static void loops_agree_with_full_unrolling(void)
{
    static const uint64_t counts[] = {1, 2, 3, 4, 8, 20};
    static const double costs[][2] = {{100, 40}, {40, 100}, {70, 70}, {0, 10}, {10, 0}, {0, 0}};

    for (size_t k = 0; k < 6; k++)
        for (size_t i = 0; i < 6; i++) {
            double loop = run_loop(counts[i], false, costs[k][0], costs[k][1]);
            double flat = run_loop(counts[i], true, costs[k][0], costs[k][1]);
            CHECK_MESSAGE(fabs(loop - flat) <= 1e-6 * flat, "%d iterations: %g as a loop, %g flat",
                          (int)counts[i], loop, flat);
        }
}

static void a_cycle_of_waits_is_a_deadlock(void)
{
    zinf_instr instrs[2] = {{.queue = ZINF_QUEUE_READ, .cost_ns = 1, .wait0 = 0, .n_waits = 1},
                            {.queue = ZINF_QUEUE_COMPUTE, .cost_ns = 1, .wait0 = 1,
                             .n_waits = 1}};
    zinf_wait waits[2] = {{.instr = 1}, {.instr = 0}};
    zinf_segment segment = {.first_instr = 0, .n_instrs = 2, .count = 1};
    zinf_plan plan = {.instrs = instrs, .waits = waits, .segments = &segment, .n_instrs = 2,
                      .n_waits = 2, .n_segments = 1};
    zinf_timeline t = {0};
    zinf_error err = {0};

    plan.programs[ZINF_PROGRAM_STEP] = (zinf_program){.first_segment = 0, .n_segments = 1};
    CHECK(zinf_timeline_run(&plan, ZINF_PROGRAM_STEP, &t, &err) == ZINF_DOES_NOT_FIT);
    CHECK(strstr(err.text, "deadlock") && strstr(err.text, "step"));
}

static void probes_of_a_few_blocks_foretell_deep_plans(void)
{
    double worst_memory = 0, longest = 0, shortest = 1, mean = 0;
    int compared = 0, close = 0;

    for (int round = 0; round < 16; round++) {
        zinf_model m = model_of(13 + random_below(4), 64, 8);
        m.tied_embeddings = round % 2;
        zinf_cluster c = cluster_of(round % 4 == 0);
        zinf_decisions d = random_decisions(&m, &c);
        zinf_plan plan;
        zinf_probe probe;
        zinf_error err = {0};
        uint64_t short_bytes[ZINF_N_TIERS];
        CHECK(zinf_probe_decisions(&m, &c, &d, false, &probe, &err) == ZINF_OK);
        CHECK(zinf_compile(&m, &c, &d, true, &plan, short_bytes, &err) == ZINF_OK);
        for (int t = 0; t < ZINF_TIER_SCALAR; t++)
            if (plan.machine.arena_bytes[t]) {
                double error = fabs((double)probe.arena_bytes[t] /
                                    (double)plan.machine.arena_bytes[t] - 1);
                worst_memory = fmax(worst_memory, error);
                compared++;
                close += error < 1e-3;
            }
        CHECK(probe.fits);
        const double ratio = plan.predicted.step_s / probe.step_s;
        longest = fmax(longest, ratio);
        shortest = fmin(shortest, ratio);
        mean += ratio / 16;
        zinf_plan_free(&plan);
    }
    printf("# plan / probe: memory within %.2f %%, time %.3f to %.3f, %.3f in the mean\n",
           100 * worst_memory, shortest, longest, mean);
    printf("# memory equal in %d of %d\n", close, compared);
    /* placement may pack a few blocks worse than many */
    CHECK(10 * close >= 9 * compared && worst_memory < 0.5);
    CHECK(longest < 1.03 && shortest > 0.7 && mean < 0.99); /* the plan is spread */
}

static void closed_forms_are_near_compiled_memory(void)
{
    double least = 1e30, most = 0;

    for (int round = 0; round < 60; round++) {
        zinf_model m = model_of(4, 256, 8);
        m.tied_embeddings = round % 2;
        zinf_cluster c = cluster_of(round % 4 == 0);
        zinf_decisions d = random_decisions(&m, &c);
        zinf_plan plan;
        zinf_error err = {0};
        uint64_t short_bytes[ZINF_N_TIERS];
        CHECK(zinf_compile(&m, &c, &d, true, &plan, short_bytes, &err) == ZINF_OK);
        zinf_estimate e = zinf_estimate_step(&m, &c, &d);
        for (int t = 0; t < ZINF_TIER_SCALAR; t++)
            if (plan.machine.arena_bytes[t] > 1 << 20) {
                double ratio = (double)plan.machine.arena_bytes[t] / e.bytes[t];
                least = fmin(least, ratio);
                most = fmax(most, ratio);
            }
        zinf_plan_free(&plan);
    }
    printf("# compiled / closed form, bytes: %.3f to %.3f\n", least, most);
    CHECK(least > 0.75 && most < 1.35); /* what the bands of search.c assume */
}

/* "The search finds the best of its own space": any decisions that compile and fit in what they
 * need are matched by a free search on that machine, within 5 %. */
static void a_free_search_is_as_good_as_any_pinned_plan(void)
{
    double worst = 0;
    int compared = 0;

    for (int round = 0; round < 40; round++) {
        zinf_model m = model_of(2 + random_below(5), 128, 8);
        m.tied_embeddings = round % 2;
        zinf_cluster c = cluster_of(round % 4 == 0);
        zinf_decisions d = random_decisions(&m, &c);
        zinf_plan plan;
        zinf_search_result r;
        zinf_settings free_settings;
        zinf_error err = {0};
        uint64_t short_bytes[ZINF_N_TIERS];
        CHECK(zinf_compile(&m, &c, &d, true, &plan, short_bytes, &err) == ZINF_OK);
        /* the machine shrinks to the plan, and 2 % more */
        uint64_t arena[ZINF_N_TIERS];
        for (int t = 0; t < ZINF_TIER_SCALAR; t++)
            arena[t] = plan.machine.arena_bytes[t] + plan.machine.arena_bytes[t] / 50 +
                       plan.machine.overhead_bytes[t] + (4 << 20); /* other tiles, other tables */
        c.device.memory_bytes = arena[ZINF_TIER_DEVICE];
        if (!c.unified)
            c.host.memory_bytes = arena[ZINF_TIER_HOST];
        c.nvme.capacity_bytes = arena[ZINF_TIER_NVME];
        zinf_plan_free(&plan);
        if (zinf_compile(&m, &c, &d, false, &plan, short_bytes, &err) != ZINF_OK)
            continue;
        bool fits = !short_bytes[0] && !short_bytes[1] && !short_bytes[2];
        double pinned_s = plan.predicted.step_s;
        zinf_plan_free(&plan);
        if (!fits) /* the chunk of logits follows the device's size */
            continue;
        zinf_settings_init(&free_settings);
        CHECK_MESSAGE(zinf_search(&m, &c, &free_settings, 1, &r, &err) == ZINF_OK,
                      "round %d: refused, though a pinned plan fits: %s", round, err.text);
        double ratio = r.plan.predicted.step_s / pinned_s;
        worst = fmax(worst, ratio);
        compared++;
        zinf_search_free(&r);
        CHECK_MESSAGE(ratio <= 1.05, "round %d: %.3f of the pinned plan's time", round, ratio);
    }
    printf("# %d machines: at worst %.4f of the pinned plan's time\n", compared, worst);
    CHECK(compared >= 25);
}

int main(void)
{
    RUN(totals_are_bounded_and_waits_are_kept);
    RUN(a_copy_takes_one_thread_of_the_cores);
    RUN(transfers_share_the_device_and_take_from_the_cores);
    RUN(loops_agree_with_full_unrolling);
    RUN(a_cycle_of_waits_is_a_deadlock);
    RUN(probes_of_a_few_blocks_foretell_deep_plans);
    RUN(closed_forms_are_near_compiled_memory);
    RUN(a_free_search_is_as_good_as_any_pinned_plan);
    return check_finish();
}
