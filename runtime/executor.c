/* runtime/executor.c - load and run: see executor.h. What an opcode does is operations.c's, the
 * read and write queues are transfer.c's.
 *
 * A queue's progress is one number: instances completed in this run. Since a queue runs in
 * order, "instruction j at iteration i has finished" is "queue q has completed n instances",
 * and n is known at load.
 */
#include "runtime/executor.h"

#include <inttypes.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "runtime/executor_internal.h"
#include "runtime/rope.h"

uint64_t zinf_now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* ---- waiting ---- */

/* Instances of the queue that must be complete; 0 if there is nothing to wait for. */
static uint64_t need_at(const zinf_need *need, uint64_t iteration)
{
    if (need->distance > iteration)
        return 0;
    return need->base + (iteration - need->distance) * need->per_iter;
}

bool zinf_needs_met(zinf_executor *executor, const zinf_op *op, uint64_t iteration)
{
    const zinf_need *needs = &executor->needs[op->instr->wait0];

    for (uint32_t i = 0; i < op->instr->n_waits; i++)
        if (atomic_load(&executor->lanes[needs[i].queue].done) < need_at(&needs[i], iteration))
            return false;
    return true;
}

bool zinf_needs_wait(zinf_executor *executor, const zinf_op *op, uint64_t iteration)
{
    const zinf_need *needs = &executor->needs[op->instr->wait0];

    for (uint32_t i = 0; i < op->instr->n_waits; i++) {
        const uint64_t target = need_at(&needs[i], iteration);
        zinf_lane *lane = &executor->lanes[needs[i].queue];
        if (atomic_load(&lane->done) >= target)
            continue;
        /* sleepers is raised before done is read again, done before sleepers is read by the
         * publisher, all in one total order: no wake-up is lost */
        pthread_mutex_lock(&lane->mutex);
        atomic_fetch_add(&lane->sleepers, 1);
        while (atomic_load(&lane->done) < target && !atomic_load(&executor->failed))
            pthread_cond_wait(&lane->grown, &lane->mutex);
        atomic_fetch_sub(&lane->sleepers, 1);
        pthread_mutex_unlock(&lane->mutex);
        if (atomic_load(&executor->failed))
            return false;
    }
    return !atomic_load(&executor->failed);
}

static void wake(zinf_lane *lane)
{
    pthread_mutex_lock(&lane->mutex);
    pthread_cond_broadcast(&lane->grown);
    pthread_mutex_unlock(&lane->mutex);
}

void zinf_lane_publish(zinf_lane *lane, uint64_t done)
{
    atomic_store(&lane->done, done);
    if (atomic_load(&lane->sleepers) > 0)
        wake(lane);
}

void zinf_executor_fail(zinf_executor *executor, const zinf_op *op, const zinf_error *cause)
{
    pthread_mutex_lock(&executor->mutex);
    if (executor->error.status == ZINF_OK) {
        /* steps as the log counts them: the one being done */
        const uint64_t step = executor->env->step + (executor->program == ZINF_PROGRAM_STEP);
        char where[256];
        const int n = snprintf(where, sizeof where,
                               " (program %s, step %" PRIu64 ", %s \"%.100s\")",
                               zinf_program_name(executor->program), step,
                               zinf_opcode_get(op->instr->opcode)->name,
                               &executor->plan->strings[op->instr->name]);
        const size_t room = sizeof executor->error.text - 1 - (size_t)n;
        executor->error = *cause;
        executor->error.text[room] = 0; /* a long path gives way */
        strcat(executor->error.text, where);
    }
    atomic_store(&executor->failed, true);
    pthread_mutex_unlock(&executor->mutex);
    executor->collective->cancel(executor->collective, executor->error.text);
    for (int q = 0; q < ZINF_N_QUEUES; q++)
        wake(&executor->lanes[q]);
}

/* ---- one queue ---- */

/* A thread that starts kernels gets the team the plan states, whatever OMP_DYNAMIC and
 * OMP_MAX_ACTIVE_LEVELS say: time, scratch and stacks are planned for that many. */
static void pin_team(const zinf_executor *executor)
{
    omp_set_dynamic(0);
    omp_set_max_active_levels(1);
    omp_set_num_threads((int)executor->plan->decisions.n_threads);
}

static zinf_status check_team(const zinf_plan *plan, zinf_error *err)
{
    const int limit = omp_get_thread_limit();

    if (plan->decisions.n_threads <= (uint32_t)limit)
        return ZINF_OK;
    return zinf_fail(err, ZINF_MACHINE, "the plan's kernels are made for teams of %" PRIu32
                     " threads, but OpenMP is limited to %d (OMP_THREAD_LIMIT); raise it, or plan "
                     "with --set threads=%d", plan->decisions.n_threads, limit, limit);
}

void zinf_lane_pause(zinf_lane *lane)
{
    if (lane->random == 0)
        return;
    lane->random ^= lane->random << 13;
    lane->random ^= lane->random >> 7;
    lane->random ^= lane->random << 17;
    if (lane->random & 256) {
        const struct timespec pause = {.tv_nsec = (long)(lane->random >> 16 & 0x3ffff)};
        nanosleep(&pause, NULL);
    }
}

void zinf_lane_record(zinf_lane *lane, const zinf_op *op, uint64_t iteration, uint64_t start_ns,
                      uint64_t end_ns)
{
    if (lane->n_trace < lane->trace_capacity)
        lane->trace[lane->n_trace++] = (zinf_trace_entry){
            (uint32_t)(op->instr - lane->executor->plan->instrs), (uint32_t)iteration,
            start_ns - lane->executor->begin_ns, end_ns - lane->executor->begin_ns};
}

static bool run_op(zinf_lane *lane, const zinf_op *op, uint64_t iteration)
{
    zinf_executor *executor = lane->executor;
    char *operand[ZINF_MAX_OPERANDS];
    zinf_error err = {0};
    zinf_status status;

    zinf_lane_pause(lane);
    const uint64_t start = zinf_now_ns();
    if (lane->channel) {
        status = zinf_transfer_now(executor, op, iteration, &err);
    } else {
        zinf_op_operands(op, iteration, operand);
        status = op->run(executor, op, operand, &err);
    }
    const uint64_t end = zinf_now_ns();
    lane->busy_ns += end - start;
    zinf_lane_record(lane, op, iteration, start, end);
    if (status) {
        zinf_executor_fail(executor, op, &err);
        return false;
    }
    return true;
}

static void run_lane(zinf_lane *lane)
{
    zinf_executor *executor = lane->executor;
    const zinf_program *program = &executor->plan->programs[executor->program];
    uint64_t done = 0;

    for (uint32_t s = 0; s < program->n_segments; s++) {
        const uint32_t segment = program->first_segment + s;
        const uint32_t *start = zinf_starts(executor, segment);
        const uint32_t first = start[lane->queue], end = start[lane->queue + 1];
        if (first == end)
            continue;
        for (uint64_t i = 0; i < executor->plan->segments[segment].count; i++) {
            for (uint32_t k = first; k < end; k++) {
                const zinf_op *op = &executor->ops[executor->order[k]];
                if (!zinf_needs_wait(executor, op, i) || !run_op(lane, op, i))
                    return;
                zinf_lane_publish(lane, ++done);
            }
        }
    }
}

static void run_serial(zinf_executor *executor)
{
    const zinf_plan *plan = executor->plan;
    const zinf_program *program = &plan->programs[executor->program];

    pin_team(executor);
    for (uint32_t s = 0; s < program->n_segments; s++) {
        const zinf_segment *segment = &plan->segments[program->first_segment + s];
        for (uint64_t i = 0; i < segment->count; i++)
            for (uint32_t k = 0; k < segment->n_instrs; k++) {
                const zinf_op *op = &executor->ops[segment->first_instr + k];
                if (!run_op(&executor->lanes[op->instr->queue], op, i))
                    return;
            }
    }
}

static void *lane_thread(void *argument)
{
    zinf_lane *lane = argument;
    zinf_executor *executor = lane->executor;
    uint64_t seen = 0;

    pin_team(executor);
    for (;;) {
        pthread_mutex_lock(&executor->mutex);
        while (executor->epoch == seen && !executor->stopping)
            pthread_cond_wait(&executor->begin, &executor->mutex);
        seen = executor->epoch;
        const bool stopping = executor->stopping;
        pthread_mutex_unlock(&executor->mutex);
        if (stopping)
            return NULL;
        if (lane->channel)
            zinf_transfer_lane(lane);
        else
            run_lane(lane);
        pthread_mutex_lock(&executor->mutex);
        if (--executor->running == 0)
            pthread_cond_signal(&executor->end);
        pthread_mutex_unlock(&executor->mutex);
    }
}

/* ---- load ---- */

static zinf_status prepare_order(zinf_executor *executor, zinf_error *err)
{
    const zinf_plan *plan = executor->plan;
    uint32_t at = 0;

    executor->ops = calloc(plan->n_instrs + (size_t)1, sizeof *executor->ops);
    executor->needs = calloc(plan->n_waits + (size_t)1, sizeof *executor->needs);
    executor->order = calloc(plan->n_instrs + (size_t)1, sizeof *executor->order);
    executor->start = calloc(plan->n_segments + (size_t)1,
                             (ZINF_N_QUEUES + 1) * sizeof *executor->start);
    if (!executor->ops || !executor->needs || !executor->order || !executor->start)
        return zinf_fail(err, ZINF_MACHINE, "out of memory preparing %" PRIu32 " instructions",
                         plan->n_instrs);
    for (uint32_t s = 0; s < plan->n_segments; s++) {
        const zinf_segment *segment = &plan->segments[s];
        uint32_t *start = executor->start + (size_t)s * (ZINF_N_QUEUES + 1);
        for (unsigned q = 0; q < ZINF_N_QUEUES; q++) {
            start[q] = at;
            for (uint32_t k = 0; k < segment->n_instrs; k++) {
                const uint32_t index = segment->first_instr + k;
                if (plan->instrs[index].queue != q)
                    continue;
                executor->ops[index].position = at - start[q];
                executor->order[at++] = index;
                executor->lanes[q].used = true;
            }
        }
        start[ZINF_N_QUEUES] = at;
    }
    return ZINF_OK;
}

/* base[q]: instances of queue q in the program's segments before the current one. */
static void prepare_needs(zinf_executor *executor, const zinf_program *program)
{
    const zinf_plan *plan = executor->plan;
    uint64_t base[ZINF_N_QUEUES] = {0};

    for (uint32_t s = program->first_segment; s < program->first_segment + program->n_segments;
         s++) {
        const zinf_segment *segment = &plan->segments[s];
        for (uint32_t k = 0; k < segment->n_instrs; k++) {
            const zinf_instr *instr = &plan->instrs[segment->first_instr + k];
            for (uint32_t w = instr->wait0; w < instr->wait0 + instr->n_waits; w++) {
                const zinf_wait *wait = &plan->waits[w];
                const unsigned queue = plan->instrs[wait->instr].queue;
                zinf_need *need = &executor->needs[w];
                *need = (zinf_need){.queue = queue};
                const uint32_t *start = zinf_starts(executor, s);
                if (wait->instr >= segment->first_instr) {
                    need->base = base[queue] + executor->ops[wait->instr].position + 1;
                    need->per_iter = start[queue + 1] - start[queue];
                    need->distance = wait->distance;
                    continue;
                }
                need->base = executor->ops[wait->instr].last;
            }
        }
        const uint32_t *start = zinf_starts(executor, s);
        for (uint32_t k = 0; k < segment->n_instrs; k++) {
            zinf_op *op = &executor->ops[segment->first_instr + k];
            const unsigned q = op->instr->queue;
            const uint64_t n = start[q + 1] - start[q];
            op->last = base[q] + (segment->count - 1) * n + op->position + 1;
        }
        for (unsigned q = 0; q < ZINF_N_QUEUES; q++)
            base[q] += (start[q + 1] - start[q]) * segment->count;
    }
}

static zinf_status prepare_ops(zinf_executor *executor, zinf_error *err)
{
    const zinf_plan *plan = executor->plan;
    uint64_t n_targets = 0;

    for (uint32_t i = 0; i < plan->n_instrs; i++) {
        const zinf_instr *instr = &plan->instrs[i];
        zinf_op *op = &executor->ops[i];
        op->instr = instr;
        op->operands = &plan->operands[instr->operand0];
        const uint32_t owner = zinf_instr_owner(plan, instr);
        op->elsewhere = owner != ZINF_NONE && owner != executor->collective->rank;
        for (uint32_t slot = 0; slot < instr->n_operands; slot++) {
            const zinf_operand *operand = &op->operands[slot];
            if (operand->bytes == 0 || operand->tier == ZINF_TIER_NVME)
                continue;
            op->base[slot] = operand->tier == ZINF_TIER_SCALAR
                                 ? (char *)executor->scalars + operand->offset
                                 : (char *)executor->arena[operand->tier] + operand->offset;
        }
        if ((instr->opcode == ZINF_OP_CLASSIFIER || instr->opcode == ZINF_OP_CLASSIFIER_FORWARD ||
             instr->opcode == ZINF_OP_CLASSIFIER_BACKWARD) && op->operands[0].rows > n_targets)
            n_targets = op->operands[0].rows;
        if (zinf_op_prepare(executor, op, err))
            return err->status;
    }
    for (int p = 0; p < ZINF_N_PROGRAMS; p++) {
        uint64_t logits = 0;
        const zinf_program *program = &plan->programs[p];
        prepare_needs(executor, program);
        for (uint32_t s = 0; s < program->n_segments; s++) {
            const zinf_segment *segment = &plan->segments[program->first_segment + s];
            for (uint32_t k = 0; k < segment->n_instrs; k++) {
                zinf_op *op = &executor->ops[segment->first_instr + k];
                if (op->instr->opcode != ZINF_OP_LOGITS)
                    continue;
                op->first = logits;
                logits += op->operands[2].cols;
            }
        }
        if (logits > plan->model.vocab)
            return zinf_fail(err, ZINF_DOES_NOT_FIT, "program %s computes %" PRIu64 " logits of "
                             "%" PRIu64, zinf_program_name((unsigned)p), logits,
                             plan->model.vocab);
    }
    executor->targets = calloc(n_targets + 1, sizeof *executor->targets);
    executor->frequencies = calloc(plan->model.head_dim / 2 + 1, sizeof *executor->frequencies);
    if (executor->frequencies && plan->model.rope_theta > 0)
        zinf_rope_frequencies(&plan->model, executor->frequencies);
    executor->noted = calloc(plan->n_units + (size_t)1, sizeof *executor->noted);
    if (!executor->noted)
        return zinf_fail(err, ZINF_MACHINE, "out of memory for %" PRIu32 " units", plan->n_units);
    if (!executor->targets || !executor->frequencies)
        return zinf_fail(err, ZINF_MACHINE, "out of memory for %" PRIu64 " targets", n_targets);
    return ZINF_OK;
}

static zinf_status prepare_traces(zinf_executor *executor, zinf_error *err)
{
    const zinf_plan *plan = executor->plan;
    const zinf_program *step = &plan->programs[ZINF_PROGRAM_STEP];

    for (unsigned q = 0; q < ZINF_N_QUEUES; q++) {
        uint64_t n = 0;
        for (uint32_t s = 0; s < step->n_segments; s++) {
            const uint32_t *start = zinf_starts(executor, step->first_segment + s);
            n += (start[q + 1] - start[q]) * plan->segments[step->first_segment + s].count;
        }
        zinf_lane *lane = &executor->lanes[q];
        lane->trace_capacity = n < ZINF_TRACE_CAPACITY ? n : ZINF_TRACE_CAPACITY;
        lane->trace = calloc(lane->trace_capacity + 1, sizeof *lane->trace);
        if (!lane->trace)
            return zinf_fail(err, ZINF_MACHINE, "out of memory for the trace");
    }
    return ZINF_OK;
}

static zinf_status start_threads(zinf_executor *executor, zinf_error *err)
{
    for (unsigned q = 0; q < ZINF_N_QUEUES; q++) {
        zinf_lane *lane = &executor->lanes[q];
        if (!lane->used || executor->serial)
            continue;
        const int error = pthread_create(&lane->thread, NULL, lane_thread, lane);
        if (error)
            return zinf_fail(err, ZINF_MACHINE, "cannot start the thread of queue %s: %s",
                             zinf_queue_name(q), strerror(error));
        lane->started = true;
    }
    return ZINF_OK;
}

zinf_status zinf_executor_open(const zinf_plan *plan, const zinf_executor_options *options,
                               zinf_executor **ret_executor, zinf_error *err)
{
    zinf_executor *executor = calloc(1, sizeof *executor);

    if (!executor)
        return zinf_fail(err, ZINF_MACHINE, "out of memory for the executor");
    executor->plan = plan;
    executor->backend = options->backend ? options->backend : &zinf_backend_cpu;
    executor->collective = options->collective ? options->collective : &zinf_collective_self;
    executor->storage = options->storage;
    executor->serial = options->serial;
    executor->trace = options->trace;
    executor->delay_seed = options->delay_seed;
    pthread_mutex_init(&executor->mutex, NULL);
    pthread_cond_init(&executor->begin, NULL);
    pthread_cond_init(&executor->end, NULL);
    for (unsigned q = 0; q < ZINF_N_QUEUES; q++) {
        executor->lanes[q].executor = executor;
        executor->lanes[q].queue = q;
        pthread_mutex_init(&executor->lanes[q].mutex, NULL);
        pthread_cond_init(&executor->lanes[q].grown, NULL);
    }
    if (executor->collective->n_ranks != plan->decisions.ranks) {
        zinf_fail(err, ZINF_BAD_INPUT, "the plan is for %" PRIu32 " ranks, this run has %" PRIu32
                  "; plan again or start that many", plan->decisions.ranks,
                  executor->collective->n_ranks);
        goto fail;
    }
    if (check_team(plan, err))
        goto fail;
    for (unsigned tier = ZINF_TIER_DEVICE; tier <= ZINF_TIER_HOST; tier++)
        if (executor->backend->arena_alloc((zinf_tier)tier, plan->machine.arena_bytes[tier],
                                           &executor->arena[tier], err))
            goto fail;
    executor->scalars = calloc(1, zinf_plan_scalar_bytes(plan));
    if (!executor->scalars) {
        zinf_fail(err, ZINF_MACHINE, "out of memory for the scalar table");
        goto fail;
    }
    executor->arena[ZINF_TIER_SCALAR] = executor->scalars;
    executor->backend->kernels(&executor->kernels, (zinf_dtype)plan->job.precision,
                               (int)plan->decisions.n_threads);
    if (prepare_order(executor, err) || prepare_ops(executor, err) ||
        (executor->trace && prepare_traces(executor, err)) ||
        zinf_transfer_open(executor, err) || start_threads(executor, err))
        goto fail;
    *ret_executor = executor;
    return ZINF_OK;
fail:
    zinf_executor_close(executor);
    return err->status;
}

void zinf_executor_close(zinf_executor *executor)
{
    if (!executor)
        return;
    pthread_mutex_lock(&executor->mutex);
    executor->stopping = true;
    pthread_cond_broadcast(&executor->begin);
    pthread_mutex_unlock(&executor->mutex);
    for (unsigned q = 0; q < ZINF_N_QUEUES; q++)
        if (executor->lanes[q].started)
            pthread_join(executor->lanes[q].thread, NULL);
    zinf_transfer_close(executor);
    for (uint64_t i = 0; i < executor->gemm_places; i++)
        if (executor->gemms[i]) {
            executor->kernels.gemm_destroy(executor->gemms[i]->gemm);
            free(executor->gemms[i]);
        }
    for (unsigned tier = ZINF_TIER_DEVICE; tier <= ZINF_TIER_HOST; tier++)
        executor->backend->arena_free((zinf_tier)tier, executor->arena[tier],
                                      executor->plan->machine.arena_bytes[tier]);
    for (unsigned q = 0; q < ZINF_N_QUEUES; q++) {
        free(executor->lanes[q].trace);
        pthread_mutex_destroy(&executor->lanes[q].mutex);
        pthread_cond_destroy(&executor->lanes[q].grown);
    }
    pthread_mutex_destroy(&executor->mutex);
    pthread_cond_destroy(&executor->begin);
    pthread_cond_destroy(&executor->end);
    free(executor->gemms);
    free(executor->scalars);
    free(executor->ops);
    free(executor->needs);
    free(executor->order);
    free(executor->start);
    free(executor->targets);
    free(executor->frequencies);
    free(executor->noted);
    free(executor);
}

/* ---- run ---- */

zinf_status zinf_executor_run(zinf_executor *executor, zinf_program_kind program, zinf_env *env,
                              zinf_error *err)
{
    int n_threads = 0;

    if (executor->error.status)
        return zinf_fail(err, executor->error.status, "%s", executor->error.text);
    executor->program = program;
    executor->env = env;
    if (program == ZINF_PROGRAM_STEP) /* what it found is asked for after others ran, too */
        zinf_nonfinite_forget(executor);
    for (unsigned q = 0; q < ZINF_N_QUEUES; q++) {
        zinf_lane *lane = &executor->lanes[q];
        atomic_store(&lane->done, 0);
        lane->busy_ns = lane->cpu_ns = 0;
        lane->n_trace = 0;
        lane->random = executor->delay_seed
                           ? (executor->delay_seed + q + 1) * 0x9e3779b97f4a7c15 | 1 : 0;
        n_threads += lane->started;
    }
    executor->begin_ns = zinf_now_ns();
    if (executor->serial) {
        run_serial(executor);
    } else if (n_threads) {
        pthread_mutex_lock(&executor->mutex);
        executor->running = n_threads;
        executor->epoch++;
        pthread_cond_broadcast(&executor->begin);
        while (executor->running)
            pthread_cond_wait(&executor->end, &executor->mutex);
        pthread_mutex_unlock(&executor->mutex);
    }
    executor->wall_ns = zinf_now_ns() - executor->begin_ns;
    env->loss = executor->scalars[ZINF_SCALAR_LOSS];
    env->norm = executor->scalars[ZINF_SCALAR_NORM];
    env->factor = executor->scalars[ZINF_SCALAR_FACTOR];
    env->skip = executor->scalars[ZINF_SCALAR_SKIP] != 0;
    executor->env = NULL;
    if (executor->error.status)
        return zinf_fail(err, executor->error.status, "%s", executor->error.text);
    return ZINF_OK;
}

uint64_t zinf_executor_busy_ns(const zinf_executor *executor, zinf_queue queue)
{
    return executor->lanes[queue].busy_ns;
}

uint64_t zinf_executor_cpu_ns(const zinf_executor *executor, zinf_queue queue)
{
    return executor->lanes[queue].cpu_ns;
}

uint64_t zinf_executor_wall_ns(const zinf_executor *executor)
{
    return executor->wall_ns;
}

const zinf_trace_entry *zinf_executor_trace(const zinf_executor *executor, zinf_queue queue,
                                            uint64_t *ret_n)
{
    *ret_n = executor->lanes[queue].n_trace;
    return executor->lanes[queue].trace;
}

void *zinf_executor_arena(const zinf_executor *executor, zinf_tier tier)
{
    return executor->arena[tier];
}

const char *zinf_executor_kernels_name(const zinf_executor *executor)
{
    return executor->kernels.name;
}
