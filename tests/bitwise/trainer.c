/* tests/bitwise/trainer.c - see trainer.h. */
#include "tests/bitwise/trainer.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "planner/ranks.h"
#include "planner/search.h"
#include "runtime/checker.h"
#include "runtime/element_sum.h"
#include "runtime/params_hash.h"
#include "runtime/rate.h"

const trainer_model trainer_tiny = {2, 32, 2, 100, 16, 4, "bf16", NULL};

void trainer_model_text(const trainer_model *m, char *ret_text)
{
    snprintf(ret_text, 1024,
             "model: {name: tiny, family: %s, layers: %u, hidden: %u, heads: %u, vocab: %u, "
             "context: %u%s}\n"
             "training:\n"
             "  sequence: %u\n  global_batch: %u\n  precision: %s\n"
             "  optimizer: {type: adamw, lr: 3e-3, betas: [0.9, 0.95], eps: 1e-8, "
             "weight_decay: 0.1}\n"
             "  schedule: {type: cosine, warmup: 2, steps: 50, min_lr: 1e-4}\n"
             "  clip: 1.0\n  seed: 1337\n",
             m->llama ? "llama" : "gpt2", m->layers, m->hidden, m->heads, m->vocab, m->sequence,
             m->llama ? m->llama : ", tied_embeddings: true", m->sequence,
             m->global_batch, m->precision);
}

static const char cluster_text[] =
    "cluster:\n"
    "  name: tiny\n  nodes: 1\n  devices_per_node: %u\n"
    "  device: {kind: cpu, name: cpu, memory: 1 GiB, "
    "peak: {bf16: 350 GFLOP/s, fp32: 180 GFLOP/s}, bandwidth: 25 GB/s}\n"
    "  host: {memory: 2 GiB, cores: 2, bandwidth: 25 GB/s, adam: 5e8 params/s}\n"
    "  nvme: {paths: [/tmp], capacity: 4 GiB, read: 1 GB/s, write: 1 GB/s, latency: 100 us}\n"
    "  links: {host_device: {per_device: 8 GB/s, latency: 5 us}, "
    "intra_node: {per_device: 8 GB/s, latency: 5 us}}\n"
    "  unified: %s\n";

zinf_status trainer_plan(const trainer_model *model, bool unified, const char *sets,
                         zinf_plan *ret_plan, zinf_error *err)
{
    return trainer_plan_ranks(model, unified, 1, sets, ret_plan, err);
}

zinf_status trainer_plan_ranks(const trainer_model *model, bool unified, unsigned ranks,
                               const char *sets, zinf_plan *ret_plan, zinf_error *err)
{
    char text[1024], word[64];
    zinf_search_result result = {0};
    zinf_settings settings;
    zinf_cluster cluster;
    zinf_model m;
    int n;

    trainer_model_text(model, text);
    if (zinf_model_parse("model", text, strlen(text), NULL, &m, err))
        return err->status;
    snprintf(text, sizeof text, cluster_text, ranks, unified ? "true" : "false");
    if (zinf_cluster_parse("cluster", text, strlen(text), &cluster, err))
        return err->status;
    zinf_settings_init(&settings);
    for (; sscanf(sets, "%63s%n", word, &n) == 1; sets += n)
        if (!strcmp(word, "clip=0"))
            m.clip = 0;
        else if (zinf_settings_set(&settings, word, err))
            return err->status;
    if (zinf_settings_check(&settings, &m, &cluster, err))
        return err->status;
    cluster = zinf_cluster_share(&cluster);
    if (zinf_search(&m, &cluster, &settings, 1, &result, err) == ZINF_OK &&
        zinf_plan_check(&result.plan, err) == ZINF_OK) {
        *ret_plan = result.plan;
        memset(&result.plan, 0, sizeof result.plan);
    }
    zinf_search_free(&result);
    return err->status;
}

/* ---- a run ---- */

typedef struct feed {
    uint64_t position, vocab, rank, n_ranks;
} feed;

static zinf_status batch(void *context, uint64_t n, uint64_t cols, int32_t *ret_tokens,
                         zinf_error *err)
{
    feed *f = context;

    (void)err;
    for (uint64_t i = 0; i < n * cols; i++) {
        const uint64_t at = f->position++ * f->n_ranks + f->rank;
        ret_tokens[i] = (int32_t)((at * at + 7 * at) % 251 % f->vocab);
    }
    return ZINF_OK;
}

typedef struct sink {
    zinf_params_hash *params;
    uint64_t state;
} sink;

static zinf_status put(void *context, uint32_t tensor, zinf_state_array array, uint64_t first,
                       uint64_t n, const float *values, zinf_error *err)
{
    const uint64_t before = ((uint64_t)tensor * ZINF_N_STATES + array) << 40;
    sink *s = context;

    (void)err;
    s->state += zinf_element_sum(before + first, n, values);
    if (array == ZINF_STATE_MASTER && s->params)
        zinf_params_hash_put(s->params, tensor, first, n, values);
    return ZINF_OK;
}

static zinf_status train(const zinf_plan *plan, const trainer_options *o, zinf_storage *storage,
                         zinf_executor *executor, trainer_outcome *r)
{
    const zinf_collective *ranks = o->collective ? o->collective : &zinf_collective_self;
    feed data = {.vocab = plan->model.vocab, .rank = ranks->rank, .n_ranks = ranks->n_ranks};
    sink states = {0};
    zinf_env env = {0};
    zinf_error *err = &r->err;

    if (zinf_executor_run(executor, ZINF_PROGRAM_INIT, &env, err))
        return err->status;
    for (unsigned step = 0; step < o->steps; step++) {
        env = (zinf_env){.step = step, .batch = batch, .batch_context = &data,
                         .lr = zinf_learning_rate(&plan->job, step)};
        if (o->before_step)
            o->before_step(step, storage ? zinf_storage_path(storage) : NULL);
        if (zinf_executor_run(executor, ZINF_PROGRAM_STEP, &env, err))
            return err->status;
        r->loss[step % TRAINER_STEPS] = env.loss;
        r->norm[step % TRAINER_STEPS] = env.norm;
        r->n_steps = step + 1;
    }
    if (zinf_executor_run(executor, ZINF_PROGRAM_FLUSH, &env, err) ||
        (ranks->n_ranks == 1 && zinf_params_hash_open(plan, &states.params, err)))
        return err->status;
    env = (zinf_env){.step = o->steps, .put = put, .state_context = &states};
    if (zinf_executor_run(executor, ZINF_PROGRAM_SAVE, &env, err) == ZINF_OK && states.params)
        zinf_params_hash_digest(states.params, &r->params_hash, err);
    r->state_hash = states.state;
    zinf_params_hash_close(states.params);
    return err->status;
}

void trainer_run(const zinf_plan *plan, const trainer_options *o, trainer_outcome *r)
{
    const zinf_storage_options io = {o->engine, plan->decisions.io_block_bytes,
                                     plan->decisions.io_depth};
    zinf_executor_options options = {.collective = o->collective, .serial = o->serial,
                                     .delay_seed = o->delay_seed};
    zinf_executor *executor = NULL;
    zinf_storage *storage = NULL;
    char warning[256];

    memset(r, 0, sizeof *r);
    const uint32_t rank = o->collective ? o->collective->rank : 0;
    if (plan->machine.arena_bytes[ZINF_TIER_NVME] &&
        zinf_storage_open_with(o->directory, rank, plan->machine.arena_bytes[ZINF_TIER_NVME], &io,
                               o->ops, &storage, warning, &r->err))
        return;
    options.storage = storage;
    if (zinf_executor_open(plan, &options, &executor, &r->err) == ZINF_OK)
        train(plan, o, storage, executor, r);
    zinf_executor_close(executor);
    zinf_storage_close(storage);
}

void trainer_train(zinf_plan *plan, const trainer_options *options, trainer_outcome *ret_outcome)
{
    alarm(120); /* what hangs is killed */
    trainer_run(plan, options, ret_outcome);
    alarm(0);
    zinf_plan_free(plan);
}

bool trainer_same(const trainer_outcome *a, const trainer_outcome *b)
{
    return a->err.status == ZINF_OK && b->err.status == ZINF_OK && a->n_steps == b->n_steps &&
           memcmp(a->loss, b->loss, sizeof a->loss) == 0 &&
           memcmp(a->norm, b->norm, sizeof a->norm) == 0 && a->params_hash == b->params_hash &&
           a->state_hash == b->state_hash;
}
