/* runtime/run.c - see run.h. Reads from top to bottom as a run happens: load, start or resume,
 * step by step, finish.
 */
#include "runtime/run.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <malloc.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sys/stat.h>
#include <xxhash.h>

#include "runtime/checker.h"
#include "runtime/checkpoint.h"
#include "runtime/data.h"
#include "runtime/evaluate.h"
#include "runtime/executor.h"
#include "runtime/files.h"
#include "runtime/hf.h"
#include "runtime/inputs.h"
#include "runtime/nonfinite.h"
#include "runtime/overhead.h"
#include "runtime/params_hash.h"
#include "runtime/plan.h"
#include "runtime/preflight.h"
#include "runtime/rate.h"
#include "runtime/report.h"
#include "runtime/sample.h"
#include "runtime/session.h"
#include "runtime/storage.h"

enum { MOST_SKIPPED = 10 }; /* steps in a row whose loss or norm is not finite */

/* ---- load ---- */

static zinf_sample_options sample_options(const zinf_session *s)
{
    const zinf_run_options *o = s->options;

    return (zinf_sample_options){
        o->prompt, o->sample, s->plan.job.seed + s->progress.step, o->temperature,
        s->plan.model.vocab == 256 || (s->data && !strcmp(zinf_data_format(s->data), "bytes"))};
}

/* With a model that has a tokenizer that is most likely a mistake. */
static void warn_of_text(zinf_session *s)
{
    const struct {
        const char *option, *path;
        const zinf_data *data;
    } files[] = {{"--data", s->options->data, s->data}, {"--val", s->options->val, s->val},
                 {"--eval", s->options->eval, s->eval}};

    for (size_t i = 0; i < sizeof files / sizeof *files && s->plan.model.vocab > 256; i++)
        if (files[i].data && !strcmp(zinf_data_format(files[i].data), "bytes"))
            zinf_progress_say(&s->line, "zinf-run: warning: %s \"%.300s\" is raw text: its bytes "
                              "are the tokens, of %" PRIu64 " that the model has; for a model with "
                              "a tokenizer make a token file first (tools/tokenize)",
                              files[i].option, files[i].path, s->plan.model.vocab);
}

static zinf_status open_data(zinf_session *s, zinf_error *err)
{
    const zinf_run_options *o = s->options;
    const zinf_model_info *model = &s->plan.model;
    const zinf_job_info *job = &s->plan.job;

    if (s->progress.step < s->steps && !o->data)
        return zinf_fail(err, ZINF_BAD_INPUT, "%" PRIu64 " steps are to be done and there is "
                         "nothing to train on; pass --data TRAIN", s->steps - s->progress.step);
    if (o->data && zinf_data_open(o->data, model->vocab, job->sequence, job->seed, true,
                                  &s->data, err))
        return err->status;
    if (o->val && zinf_data_open(o->val, model->vocab, job->sequence, job->seed, false, &s->val,
                                 err))
        return err->status;
    if (o->eval && zinf_data_open(o->eval, model->vocab, job->sequence, job->seed, false, &s->eval,
                                  err))
        return err->status;
    warn_of_text(s);
    const zinf_sample_options sample = sample_options(s);
    return o->sample ? zinf_sample_check(&s->plan, &sample, err) : ZINF_OK;
}

/* Of --export-dtype source. */
static zinf_status read_dtypes(zinf_session *s, zinf_error *err)
{
    zinf_hf_reader *reader = NULL;

    if (s->options->export_dtype != ZINF_EXPORT_SOURCE)
        return ZINF_OK;
    s->export_dtypes = calloc((size_t)s->plan.n_tensors + 1, sizeof *s->export_dtypes);
    if (!s->export_dtypes)
        return zinf_fail(err, ZINF_MACHINE, "out of memory for the types of \"%.300s\"",
                         s->options->init);
    if (zinf_hf_open(s->options->init, &s->plan, &reader, err))
        return err->status;
    for (uint32_t i = 0; i < s->plan.n_tensors; i++)
        s->export_dtypes[i] = zinf_hf_dtype(reader, i);
    zinf_hf_close(reader);
    return ZINF_OK;
}

/* What --trace takes besides the plan's total. */
static uint64_t traced_bytes(const zinf_session *s)
{
    return s->options->trace ? zinf_overhead_trace_bytes(&s->plan) : 0;
}

/* As many ranks as the plan is for; all of them know both numbers. */
static zinf_status check_ranks(const zinf_session *s, zinf_error *err)
{
    const uint32_t planned = s->plan.decisions.ranks, found = s->ranks->collective->n_ranks;

    if (planned == found)
        return ZINF_OK;
    s->ranks->agreed = true;
    if (found == 1)
        return zinf_fail(err, ZINF_BAD_INPUT, "the plan is for %" PRIu32 " ranks and this is one "
                         "process; start it with: mpirun -n %" PRIu32 " zinf-run %s ..", planned,
                         planned, s->options->plan);
    return zinf_fail(err, ZINF_BAD_INPUT, "the plan is for %" PRIu32 " rank%s, %" PRIu32 " were "
                     "started; %s, or plan for a cluster of %" PRIu32 " devices", planned,
                     planned > 1 ? "s" : "", found,
                     planned > 1 ? "give mpirun that number" : "start it without mpirun", found);
}

static uint64_t hash_text(const char *text)
{
    return text ? XXH64(text, strlen(text), 0) : 0;
}

/* What every rank must agree on, beside the plan. pretrained: of --init, or NULL. */
static zinf_status compare_inputs(zinf_session *s, zinf_hf_reader *pretrained, zinf_error *err)
{
    const zinf_run_options *o = s->options;
    const zinf_ranks_fact facts[] = {
        {"--data", s->data != NULL},
        {"--val", s->val != NULL},
        {"--eval", s->eval != NULL},
        {"--init", pretrained != NULL},
        {"--steps", s->steps},
        {"step to begin at", s->progress.step},
        {"position in the data", s->progress.data_position},
        {"--save-every", o->save_every},
        {"--val-every", o->val_every},
        {"--val-batches", o->val_batches},
        {"--on-nonfinite", o->on_nonfinite},
        {"--sample", o->sample},
        {"--prompt", hash_text(o->prompt)},
        {"--temperature", (uint64_t)(o->temperature * 1e9)},
    };

    if (zinf_ranks_compare(s->ranks, facts, sizeof facts / sizeof *facts, err))
        return err->status;
    const struct {
        const char *option;
        zinf_data *data;
    } files[] = {{"--data", s->data}, {"--val", s->val}, {"--eval", s->eval}};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        const zinf_input input = zinf_input_data(files[i].option, files[i].data);
        if (files[i].data && zinf_inputs_compare(s->ranks, &input, err))
            return err->status;
    }
    if (!pretrained)
        return ZINF_OK;
    const zinf_input input = zinf_input_model(pretrained);
    return zinf_inputs_compare(s->ranks, &input, err);
}

/* Else bits would depend on which rank does what. */
static zinf_status compare_kernels(const zinf_session *s, zinf_error *err)
{
    zinf_cpu_level level = ZINF_N_CPU_LEVELS; /* of a backend that has none */
    zinf_kernels table;

    zinf_backend_find(s->plan.machine.backend)->kernels(&table, s->plan.job.precision, 1);
    zinf_cpu_level_parse(table.name, &level);
    const zinf_ranks_fact fact = {"set of instructions (0 ref, 1 avx2, 2 avx512, 3 avx512_bf16, "
                                  "4 amx; ZINF_CPU_LEVEL=ref|avx2|avx512|avx512_bf16 limits it)",
                                  level};
    return zinf_ranks_compare(s->ranks, &fact, 1, err);
}

static zinf_status read_plan(zinf_session *s, zinf_error *err)
{
    if (zinf_plan_read(s->options->plan, &s->plan, err) == ZINF_OK)
        zinf_plan_check(&s->plan, err);
    if (err->status == ZINF_OK && s->plan.decisions.optimizer_time == ZINF_IN_BACKWARD &&
        s->options->on_nonfinite == ZINF_ON_NONFINITE_SKIP)
        zinf_fail(err, ZINF_BAD_INPUT, "--on-nonfinite skip: plan \"%s\" updates inside backward, "
                  "where a gradient that is not finite may be found after other units are updated: "
                  "no step can be left out. Use stop, or plan with --set optimizer_time=after",
                  s->options->plan);
    if (zinf_ranks_together(s->ranks, err))
        return err->status;
    const zinf_run_options *o = s->options;
    const zinf_ranks_fact facts[] = { /* what is done together before all else is known */
        {"plan", s->plan.hash},
        {"--resume", o->resume != NULL},
        {"--save", o->save != NULL},
        {"--export", o->export != NULL},
        {"--export-dtype", o->export_dtype},
        {"--export-shard", o->export_shard_bytes},
    };
    if (zinf_ranks_compare(s->ranks, facts, sizeof facts / sizeof *facts, err) ||
        check_ranks(s, err))
        return err->status;
    struct stat info = {0}; /* a drive may be one rank's or several ranks' */
    const uint64_t drive = o->nvme && stat(o->nvme, &info) == 0 ? info.st_dev : 0;
    zinf_sharing sharing = {s->ranks->collective->rank, s->ranks->n_local, 0};
    if (zinf_ranks_alike(s->ranks, drive, &sharing.n_drive, err))
        return err->status;
    if (zinf_preflight(&s->plan, o->nvme, traced_bytes(s), &sharing, err) == ZINF_OK)
        zinf_preflight_files(&s->plan, s->options, err);
    malloc_trim(0); /* what the checker used */
    return zinf_ranks_together(s->ranks, err) ? err->status : compare_kernels(s, err);
}

/* What a run opens before it begins; nothing large yet. */
static zinf_status open_files(zinf_session *s, zinf_error *err)
{
    const zinf_run_options *o = s->options;

    s->steps = o->steps_given ? o->steps : o->sample || o->eval ? 0 : s->plan.job.steps;
    s->progress = (zinf_progress){.seed = s->plan.job.seed, .loss_scale = 1,
                                  .plan_hash = s->plan.hash};
    if (!o->resume && open_data(s, err))
        return err->status;
    if (o->save && s->ranks->collective->rank == 0 &&
        zinf_checkpoint_claim(o->save, o->resume, &s->place, err))
        return err->status;
    if (read_dtypes(s, err) || zinf_session_begin_export(s, err))
        return err->status;
    if (o->log && !o->resume && zinf_log_open(o->log, &s->log, err))
        return err->status;
    if (o->trace) { /* written at the end: a bad name must not cost the training */
        const bool absent = access(o->trace, F_OK) != 0;
        FILE *trace;
        if (zinf_files_output(o->trace, O_APPEND, "trace", &trace, err))
            return err->status;
        fclose(trace);
        if (absent)
            unlink(o->trace);
    }
    return ZINF_OK;
}

/* Every rank sees what rank 0 has claimed, so that saving is not the first to find out. */
static zinf_status compare_places(zinf_session *s, zinf_error *err)
{
    zinf_ranks_fact same = {"directory of --save", 0};

    if (!s->options->save || s->ranks->collective->n_ranks == 1)
        return ZINF_OK;
    zinf_checkpoint_mark(s->options->save, &same.value, err);
    return zinf_ranks_together(s->ranks, err) ? err->status
                                              : zinf_ranks_compare(s->ranks, &same, 1, err);
}

static zinf_status open_machine(zinf_session *s, zinf_error *err)
{
    const zinf_run_options *o = s->options;
    char warning[256] = "";

    if (s->plan.machine.arena_bytes[ZINF_TIER_NVME] > 0) {
        const zinf_storage_options io = {o->engine, s->plan.decisions.io_block_bytes,
                                         s->plan.decisions.io_depth};
        if (zinf_storage_open(o->nvme, s->ranks->collective->rank,
                              s->plan.machine.arena_bytes[ZINF_TIER_NVME], &io, &s->storage,
                              warning, err))
            return err->status;
        if (warning[0])
            zinf_progress_say(&s->line, "zinf-run: warning: %s", warning);
    }
    /* after the nvme tier, which may be on that disk */
    if (!o->resume && zinf_session_reserve(s, err))
        return err->status;
    const zinf_executor_options options = {
        .backend = zinf_backend_find(s->plan.machine.backend),
        .collective = s->ranks->collective, .storage = s->storage,
        .serial = o->queues == ZINF_QUEUES_SERIAL, .trace = o->trace != NULL};
    if (zinf_executor_open(&s->plan, &options, &s->executor, err))
        return err->status;
    s->report.kernels = zinf_executor_kernels_name(s->executor);
    s->report.engine = s->storage ? zinf_storage_engine_name(s->storage) : "none";
    return zinf_params_hash_open(&s->plan, &s->hash, err);
}

static zinf_status load(zinf_session *s, zinf_error *err)
{
    if (read_plan(s, err))
        return err->status;
    open_files(s, err);
    if (zinf_ranks_together(s->ranks, err) || compare_places(s, err))
        return err->status;
    open_machine(s, err);
    return zinf_ranks_together(s->ranks, err);
}

/* ---- states in and out ---- */

static zinf_status get_state(void *context, uint32_t tensor, zinf_state_array array,
                             uint64_t first, uint64_t n, float *ret_values, zinf_error *err)
{
    return zinf_checkpoint_get(context, tensor, array, first, n, ret_values, err);
}

/* Of a pretrained model there are weights alone: training begins with moments of 0. */
static zinf_status get_pretrained(void *context, uint32_t tensor, zinf_state_array array,
                                  uint64_t first, uint64_t n, float *ret_values, zinf_error *err)
{
    if (array == ZINF_STATE_MASTER)
        return zinf_hf_get(context, tensor, first, n, ret_values, err);
    memset(ret_values, 0, n * sizeof *ret_values);
    return ZINF_OK;
}

static zinf_status continue_log(zinf_session *s, zinf_error *err)
{
    const char *path = s->options->log;
    const uint64_t step = s->progress.step;
    zinf_log_found found;

    if (!path)
        return ZINF_OK;
    if (zinf_log_continue(path, step, &s->log, &found, err))
        return err->status;
    if (found.n_dropped)
        zinf_progress_say(&s->line, "zinf-run: \"%s\": %" PRIu64 " rows after step %" PRIu64
                          " are dropped: those steps are done again", path, found.n_dropped, step);
    if (found.n_missing)
        zinf_progress_say(&s->line, "zinf-run: warning: \"%s\" lacks %" PRIu64 " of the rows up to "
                          "step %" PRIu64 ", the first of step %" PRIu64 "; it goes on without",
                          path, found.n_missing, step, found.first_missing);
    return ZINF_OK;
}

static zinf_status open_checkpoint(zinf_session *s, zinf_checkpoint_reader **ret_reader,
                                   zinf_error *err)
{
    zinf_checkpoint_open(s->options->resume, &s->plan, ret_reader, &s->progress, err);
    if (zinf_ranks_together(s->ranks, err))
        return err->status;
    const zinf_ranks_fact fact = {"checkpoint to resume", zinf_checkpoint_identity(*ret_reader)};
    if (zinf_ranks_compare(s->ranks, &fact, 1, err) || zinf_session_reserve(s, err))
        return err->status;
    if (s->progress.seed != s->plan.job.seed)
        zinf_progress_say(&s->line, "zinf-run: warning: the checkpoint was trained with seed %"
                          PRIu64 ", the plan has %" PRIu64 ": the order of the data changes",
                          s->progress.seed, s->plan.job.seed);
    s->progress.seed = s->plan.job.seed;
    s->progress.plan_hash = s->plan.hash;
    return open_data(s, err);
}

/* The ranks have read every state once, each its part. */
static zinf_status check_checkpoint(zinf_session *s, zinf_checkpoint_reader *reader,
                                    zinf_error *err)
{
    uint32_t n;
    uint64_t *taken = zinf_checkpoint_taken(reader, &n);

    if (zinf_ranks_add(s->ranks, taken, n, err))
        return err->status;
    zinf_checkpoint_check(reader, s->ranks->collective->n_ranks, err);
    if (zinf_ranks_together(s->ranks, err))
        return err->status;
    continue_log(s, err); /* not before: it drops rows */
    return zinf_ranks_together(s->ranks, err);
}

/* Fresh weights, a pretrained model's, or a checkpoint's; the same on every rank, or on none. */
static zinf_status begin(zinf_session *s, zinf_error *err)
{
    const bool resume = s->options->resume != NULL;
    const uint64_t start_ns = zinf_report_now_ns();
    zinf_env env = {.get = get_state};
    zinf_checkpoint_reader *reader = NULL;
    zinf_hf_reader *pretrained = NULL;

    if (resume)
        open_checkpoint(s, &reader, err);
    else if (s->options->init && !zinf_hf_open(s->options->init, &s->plan, &pretrained, err))
        env.get = get_pretrained;
    if (zinf_ranks_together(s->ranks, err) == ZINF_OK &&
        compare_inputs(s, pretrained, err) == ZINF_OK) {
        env.state_context = resume ? (void *)reader : pretrained;
        env.step = s->progress.step;
        zinf_executor_run(s->executor, resume || pretrained ? ZINF_PROGRAM_LOAD
                                                            : ZINF_PROGRAM_INIT, &env, err);
        if (zinf_ranks_together(s->ranks, err) == ZINF_OK && resume)
            check_checkpoint(s, reader, err);
    }
    zinf_checkpoint_close(reader);
    zinf_hf_close(pretrained);
    s->report.begin_s = 1e-9 * (double)(zinf_report_now_ns() - start_ns);
    if (err->status == ZINF_OK && resume)
        zinf_progress_say(&s->line, "zinf-run: resumed \"%s\" at step %" PRIu64,
                          s->options->resume, s->progress.step);
    return err->status;
}

/* ---- steps ---- */

typedef struct token_source {
    const zinf_collective *ranks;
    zinf_data *data;
    uint64_t *position; /* sequences that all ranks have taken */
} token_source;

static zinf_status next_batch(void *context, uint64_t n, uint64_t cols, int32_t *ret_tokens,
                              zinf_error *err)
{
    const token_source *source = context;

    (void)cols; /* sequence + 1, as the data was opened with */
    if (zinf_data_batch(source->data, *source->position, n, source->ranks->rank,
                        source->ranks->n_ranks, ret_tokens, err))
        return err->status;
    *source->position += n * source->ranks->n_ranks;
    return ZINF_OK;
}

/* Mean loss over the first sequences of the validation data: as many as the micro-batches that are
 * asked for have, or all; each once, whatever the ranks. */
static zinf_status validate(zinf_session *s, double *ret_loss, zinf_error *err)
{
    static const volatile sig_atomic_t never = 0; /* half a validation is none */
    const uint64_t all = zinf_data_n_sequences(s->val), micro = s->plan.decisions.micro_batch;
    const uint64_t batches = s->options->val_batches; /* not 0 */
    zinf_evaluation e;

    if (zinf_session_flush(s, err))
        return err->status;
    if (zinf_evaluate(&s->plan, s->executor, s->val, batches <= all / micro ? batches * micro : all,
                      s->ranks, &never, &e, err))
        return err->status;
    *ret_loss = e.loss;
    return ZINF_OK;
}

static void measure(zinf_session *s, double step_s)
{
    zinf_run_report *r = &s->report;
    const double weight = r->n_steps < 2 ? 1 : 1 / (double)r->n_steps; /* the first warms up */

    r->n_steps++;
    r->measured_step_s += weight * (step_s - r->measured_step_s);
    for (unsigned q = 0; q < ZINF_N_QUEUES; q++)
        r->queue_s[q] += weight * (1e-9 * (double)zinf_executor_busy_ns(s->executor,
                                                                       (zinf_queue)q) -
                                   r->queue_s[q]);
}

/* A gradient was found wrong after other units were updated: some states are this step's, some the
 * last one's, and nothing is saved. (If it is the loss that is not finite no unit was updated.) */
static bool too_late(const zinf_session *s, const zinf_env *env)
{
    return s->plan.decisions.optimizer_time == ZINF_IN_BACKWARD && isfinite(env->loss);
}

/* Of each rank's largest weight the largest. */
static zinf_status find_largest_of_all(zinf_session *s, zinf_largest *most, zinf_error *err)
{
    zinf_largest found = {0};

    for (uint32_t r = 0; r < s->ranks->collective->n_ranks; r++) {
        zinf_largest theirs = *most;
        if (zinf_ranks_share(s->ranks, s->ranks->collective->rank == r, &theirs, sizeof theirs,
                             err))
            return err->status;
        if (theirs.magnitude > found.magnitude)
            found = theirs;
    }
    *most = found;
    return ZINF_OK;
}

/* After a step whose update was left out, so that the state is the one before it. `before` is
 * where training stood then: a run that stops goes back there and saves that. */
static zinf_status not_finite(zinf_session *s, const zinf_env *env, const zinf_progress *before,
                              zinf_error *err)
{
    const uint64_t step = s->progress.step;
    char why[500] = "";
    zinf_largest most = {0};
    zinf_nonfinite first;

    zinf_nonfinite_explain(&s->plan, s->executor, env, why, sizeof why);
    if (zinf_ranks_share(s->ranks, zinf_executor_first_nonfinite(s->executor, &first), why,
                         sizeof why, err))
        return err->status;
    if (too_late(s, env)) {
        s->ranks->agreed = true; /* the loss is all ranks' */
        return zinf_fail(err, ZINF_WRONG_RESULT, "step %" PRIu64 ": %s; the plan updates inside "
                         "backward, so some weights are updated and others not, and nothing is "
                         "saved: go on from the last checkpoint. Lower the learning rate, check "
                         "the data, or plan with --set optimizer_time=after", step, why);
    }
    if (s->options->on_nonfinite == ZINF_ON_NONFINITE_SKIP &&
        ++s->progress.n_skipped < MOST_SKIPPED) {
        zinf_progress_say(&s->line, "zinf-run: warning: step %" PRIu64 " is skipped: %s", step,
                          why);
        return ZINF_OK;
    }
    if (s->options->on_nonfinite == ZINF_ON_NONFINITE_STOP)
        s->progress = *before;
    zinf_error saving = {0};
    const char *save = s->saved_step != s->progress.step ? s->options->save : NULL;
    if (zinf_session_keep(s, save, NULL, &most, &saving))
        zinf_progress_say(&s->line, "zinf-run: warning: the last good state could not be read or "
                          "saved: %s", saving.text);
    if (find_largest_of_all(s, &most, err))
        return err->status;
    s->ranks->agreed = true; /* the same words on every rank */
    const size_t used = strlen(why);
    snprintf(why + used, sizeof why - used, "; the largest weight is %.3g, in \"%s\"",
             most.magnitude, s->plan.tensors[most.tensor].name);
    if (s->options->on_nonfinite == ZINF_ON_NONFINITE_STOP)
        return zinf_fail(err, ZINF_WRONG_RESULT, "step %" PRIu64 ": %s; weights and moments are "
                         "as after step %" PRIu64 ". Lower the learning rate, check the data, or "
                         "go on without such steps by --on-nonfinite skip", step, why,
                         before->step);
    return zinf_fail(err, ZINF_WRONG_RESULT, "%" PRIu64 " steps in a row were skipped, the last "
                     "is step %" PRIu64 ": %s; the weights are as before them. Lower the learning "
                     "rate or check the data", s->progress.n_skipped, step, why);
}

static zinf_status one_step(zinf_session *s, bool last, zinf_error *err)
{
    const zinf_job_info *job = &s->plan.job;
    const zinf_progress before = s->progress;
    token_source source = {s->ranks->collective, s->data, &s->progress.data_position};
    zinf_env env = {.step = s->progress.step, .batch = next_batch, .batch_context = &source,
                    .lr = zinf_learning_rate(job, s->progress.step)};

    const uint64_t sent = s->ranks->collective->sent_bytes(s->ranks->collective);
    s->pending = true;
    if (zinf_executor_run(s->executor, ZINF_PROGRAM_STEP, &env, err))
        return err->status;
    s->report.sent_bytes += s->ranks->collective->sent_bytes(s->ranks->collective) - sent;
    s->progress.step++;
    zinf_step_report step = {
        .step = s->progress.step, .steps = s->steps, .loss = env.loss, .lr = env.lr,
        .norm = env.norm, .clipped_norm = env.norm * env.factor,
        .skipped = env.skip && !too_late(s, &env),
        .tokens = s->progress.step * job->global_batch * job->sequence,
        .step_s = 1e-9 * (double)zinf_executor_wall_ns(s->executor)};
    measure(s, step.step_s);
    if (s->options->trace && last)
        zinf_trace_write(s->options->trace, &s->plan, s->executor, &s->late);
    step.tokens_per_s = (double)(job->global_batch * job->sequence) / step.step_s;
    if (s->plan.predicted.peak_flops > 0)
        step.mfu = s->plan.predicted.flops_per_step / step.step_s / s->plan.predicted.peak_flops;
    step.validated = s->val && (last || (s->options->val_every &&
                                         s->progress.step % s->options->val_every == 0));
    if (step.validated && validate(s, &step.val_loss, err))
        return err->status;
    zinf_progress_step(&s->line, &step, last);
    if (s->log && !s->late.status)
        zinf_log_step(s->log, s->options->log, &step, &s->late);
    if (!env.skip)
        s->progress.n_skipped = 0;
    else if (not_finite(s, &env, &before, err))
        return err->status;
    if (s->options->save_every && s->progress.step % s->options->save_every == 0)
        return zinf_session_keep(s, s->options->save, NULL, NULL, err);
    return ZINF_OK;
}

/* Whether any rank was told to stop, or cannot write its log. */
static zinf_status ask_stop(zinf_session *s, const volatile sig_atomic_t *stop, bool *ret_stop,
                            zinf_error *err)
{
    double told = *stop != 0 || s->late.status;

    if (zinf_ranks_sum(s->ranks, &told, 1, err))
        return err->status;
    *ret_stop = told > 0;
    return ZINF_OK;
}

static zinf_status train(zinf_session *s, const volatile sig_atomic_t *stop, zinf_error *err)
{
    const uint64_t first = s->progress.step;
    bool stopped = false;

    if (first >= s->steps && s->options->resume && s->options->steps_given)
        zinf_progress_say(&s->line, "zinf-run: nothing is left to train: the checkpoint is at "
                          "step %" PRIu64 ", --steps is %" PRIu64, first, s->steps);
    if (ask_stop(s, stop, &stopped, err))
        return err->status;
    while (s->progress.step < s->steps && !stopped)
        if (one_step(s, s->progress.step + 1 == s->steps, err) || ask_stop(s, stop, &stopped, err))
            return err->status;
    if (stopped && s->progress.step < s->steps) {
        if (s->options->trace && s->progress.step > first)
            zinf_trace_write(s->options->trace, &s->plan, s->executor, &s->late);
        zinf_progress_say(&s->line, "zinf-run: stopped after step %" PRIu64 " of %" PRIu64,
                          s->progress.step, s->steps);
    }
    if (s->options->trace && s->progress.step == first)
        zinf_progress_say(&s->line, "zinf-run: warning: no step was done, so \"%s\" was not "
                          "written", s->options->trace);
    return zinf_session_flush(s, err);
}

/* ---- the end ---- */

static void account(zinf_session *s)
{
    const zinf_machine_info *machine = &s->plan.machine;
    zinf_run_report *r = &s->report;
    struct stat info;

    for (unsigned t = 0; t < ZINF_N_TIERS; t++)
        r->planned_bytes[t] = machine->arena_bytes[t] + machine->overhead_bytes[t];
    r->planned_bytes[machine->unified ? ZINF_TIER_DEVICE : ZINF_TIER_HOST] += traced_bytes(s);
    r->predicted_step_s = s->plan.predicted.step_s;
    r->peak_rss_bytes = zinf_peak_rss_bytes();
    /* On a CPU device and host share this process: all but the device's arena is the host's. */
    const uint64_t device = machine->unified ? r->peak_rss_bytes
                                             : machine->arena_bytes[ZINF_TIER_DEVICE];
    r->measured_bytes[ZINF_TIER_DEVICE] = device;
    r->measured_bytes[ZINF_TIER_HOST] = r->peak_rss_bytes > device ? r->peak_rss_bytes - device
                                                                   : 0;
    if (s->storage && stat(zinf_storage_path(s->storage), &info) == 0)
        r->measured_bytes[ZINF_TIER_NVME] = (uint64_t)info.st_size;
}

/* Each rank's measured memory and what it has sent, where rank 0 can report it. */
static zinf_status account_ranks(zinf_session *s, zinf_error *err)
{
    const zinf_collective *c = s->ranks->collective;
    zinf_run_report *r = &s->report;
    zinf_rank_report mine = {.sent_bytes = r->n_steps ? r->sent_bytes / r->n_steps : 0};

    memcpy(mine.measured_bytes, r->measured_bytes, sizeof mine.measured_bytes);
    s->rank_reports = calloc(c->n_ranks, sizeof *s->rank_reports);
    if (!s->rank_reports)
        zinf_fail(err, ZINF_MACHINE, "out of memory for the report of %" PRIu32 " ranks",
                  c->n_ranks);
    if (zinf_ranks_together(s->ranks, err))
        return err->status;
    r->n_ranks = c->n_ranks;
    r->ranks = s->rank_reports;
    return c->allgather(c, &mine, s->rank_reports, sizeof mine, ZINF_U8, err);
}

static zinf_status evaluate(zinf_session *s, zinf_error *err)
{
    zinf_evaluation e;

    if (zinf_evaluate(&s->plan, s->executor, s->eval, UINT64_MAX, s->ranks, s->stop, &e, err))
        return err->status;
    if (e.n_done && !isfinite(e.loss)) {
        s->ranks->agreed = true; /* the same sum on every rank */
        return zinf_fail(err, ZINF_WRONG_RESULT, "--eval: the loss is %s: the weights or what is "
                         "computed from them are not finite", isnan(e.loss) ? "nan" : "inf");
    }
    if (e.n_done < e.n_sequences) {
        zinf_progress_say(&s->line, "zinf-run: evaluation stopped after %" PRIu64 " of %" PRIu64
                          " sequences", e.n_done, e.n_sequences);
        return ZINF_OK;
    }
    if (s->ranks->collective->rank == 0)
        printf("eval    loss %.6f  perplexity %.6g  tokens %" PRIu64 "\n", e.loss,
               e.perplexity, e.n_tokens);
    return s->log ? zinf_log_eval(s->log, s->options->log, &e, err) : ZINF_OK;
}

static zinf_status sample(zinf_session *s, FILE *out, zinf_error *err)
{
    const zinf_sample_options options = sample_options(s);
    uint64_t done;

    if (zinf_sample(&s->plan, s->executor, &options, s->ranks, s->stop, out, &done, err))
        return err->status;
    if (done < options.n_tokens)
        zinf_progress_say(&s->line, "zinf-run: the sample was stopped after %" PRIu64 " of %"
                          PRIu64 " tokens", done, options.n_tokens);
    return ZINF_OK;
}

static zinf_status finish(zinf_session *s, zinf_error *err)
{
    const zinf_run_options *o = s->options;
    const bool first = s->ranks->collective->rank == 0;

    zinf_error not_exported = {0};
    if (zinf_session_keep(s, s->saved_step != s->progress.step ? o->save : NULL,
                          o->export ? &not_exported : NULL, NULL, err))
        return err->status;
    if (not_exported.status)
        return zinf_session_rescue(s, &not_exported, err);
    if (o->eval && evaluate(s, err))
        return err->status;
    if (o->sample && sample(s, first ? stdout : NULL, err))
        return err->status;
    account(s);
    if (account_ranks(s, err))
        return err->status;
    if (s->late.status)
        zinf_fail(err, s->late.status, "%s", s->late.text);
    else if (first) {
        zinf_report_table(stdout, &s->plan, &s->report);
        if (ferror(stdout))
            zinf_fail(err, ZINF_MACHINE, "cannot write to standard output");
        else if (s->log)
            zinf_log_summary(s->log, s->options->log, &s->plan, &s->report, err);
    }
    return zinf_ranks_together(s->ranks, err);
}

zinf_status zinf_run(const zinf_run_options *options, zinf_ranks *ranks,
                     const volatile sig_atomic_t *stop, zinf_error *err)
{
    zinf_run_options mine = *options;
    zinf_session s = {.options = &mine, .ranks = ranks, .saved_step = UINT64_MAX,
                 .stop = stop};

    zinf_progress_begin(&s.line, ranks->collective->rank == 0);
    if (ranks->collective->rank != 0)
        mine.log = mine.trace = NULL;
    if (load(&s, err) == ZINF_OK && begin(&s, err) == ZINF_OK && train(&s, stop, err) == ZINF_OK)
        finish(&s, err);
    if (s.line.open)
        fputc('\n', stderr);
    free(s.rank_reports);
    free(s.export_dtypes);
    zinf_params_hash_close(s.hash);
    zinf_executor_close(s.executor);
    zinf_storage_close(s.storage);
    zinf_data_close(s.data);
    zinf_data_close(s.val);
    zinf_data_close(s.eval);
    zinf_hf_abandon(s.exporter);
    zinf_checkpoint_release(s.place);
    if (s.log)
        fclose(s.log);
    zinf_plan_free(&s.plan);
    return err->status;
}
