/* runtime/keep.c - what a run hands out: checkpoints, the export, the hash of the weights, and what
 * is left of it all when one of them fails; see session.h.
 */
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/session.h"
#include "runtime/together.h"

/* ---- at the beginning ---- */

zinf_status zinf_session_begin_export(zinf_session *s, zinf_error *err)
{
    static const zinf_dtype dtypes[] = {
        [ZINF_EXPORT_F32] = ZINF_F32, [ZINF_EXPORT_BF16] = ZINF_BF16, [ZINF_EXPORT_F16] = ZINF_F16,
        [ZINF_EXPORT_SOURCE] = ZINF_F32};
    const zinf_run_options *o = s->options;
    const zinf_hf_options options = {
        .from = o->init, .dtype = dtypes[o->export_dtype], .dtypes = s->export_dtypes,
        .shard_bytes = o->export_shard_bytes};

    if (!o->export)
        return ZINF_OK;
    return zinf_together_create_hf(s->ranks, o->export, &s->plan, &options, &s->exporter, err);
}

/* How many checkpoints this run still writes. */
static uint64_t saves_to_come(const zinf_session *s)
{
    const uint64_t every = s->options->save_every, first = s->progress.step;
    const uint64_t last = s->steps > first ? s->steps : first;

    if (!every)
        return 1;
    return last / every - first / every + (last % every || last == first);
}

zinf_status zinf_session_reserve(zinf_session *s, zinf_error *err)
{
    return s->place ? zinf_checkpoint_reserve(s->place, &s->plan, &s->progress, saves_to_come(s),
                                              err) : ZINF_OK;
}

/* ---- at the end ---- */

typedef struct state_sink {
    const zinf_plan *plan;
    zinf_checkpoint_writer *writer; /* NULL: none */
    zinf_hf_writer *exported;       /* NULL: none */
    zinf_params_hash *hash;
    zinf_largest *largest; /* NULL: nobody asks */
    zinf_error *not_exported; /* an export that fails does not take the checkpoint with it */
} state_sink;

static void find_largest(uint32_t tensor, uint64_t first, uint64_t n, const float *values,
                         zinf_largest *ret_largest)
{
    for (uint64_t i = 0; i < n; i++)
        if (!(fabs((double)values[i]) <= ret_largest->magnitude))
            *ret_largest = (zinf_largest){fabs((double)values[i]), first + i, tensor};
}

static zinf_status put_state(void *context, uint32_t tensor, zinf_state_array array,
                             uint64_t first, uint64_t n, const float *values, zinf_error *err)
{
    const state_sink *sink = context;

    if (array == ZINF_STATE_MASTER)
        zinf_params_hash_put(sink->hash, tensor, first, n, values);
    if (sink->largest && array == ZINF_STATE_MASTER)
        find_largest(tensor, first, n, values, sink->largest);
    if (sink->exported && array == ZINF_STATE_MASTER && !sink->not_exported->status)
        zinf_hf_put(sink->exported, tensor, first, n, values, sink->not_exported);
    if (sink->writer)
        return zinf_checkpoint_put(sink->writer, tensor, array, first, n, values, err);
    if (sink->exported || sink->largest) /* which look themselves, or are told what is wrong */
        return ZINF_OK;
    const uint64_t fault = zinf_state_fault(array, values, n);
    return fault == n ? ZINF_OK
                      : zinf_fail(err, ZINF_WRONG_RESULT, "element %" PRIu64 " of \"%s\" (%s) is "
                                  "%g: what was trained is of no use; lower the learning rate or "
                                  "the weight decay", first + fault,
                                  sink->plan->tensors[tensor].name, zinf_state_names[array],
                                  (double)values[fault]);
}

/* What a failed save leaves, behind what went wrong. */
static zinf_status not_saved(const zinf_session *s, bool placed, zinf_error *err)
{
    const size_t used = strlen(err->text);

    if (placed)
        snprintf(err->text + used, sizeof err->text - used, "; step %" PRIu64 " is there all the "
                 "same, and --resume goes on from it", s->progress.step);
    else if (s->saved_step == UINT64_MAX)
        snprintf(err->text + used, sizeof err->text - used, "; step %" PRIu64 " is not saved",
                 s->progress.step);
    else
        snprintf(err->text + used, sizeof err->text - used, "; step %" PRIu64 " is not saved, "
                 "\"%s\" has step %" PRIu64, s->progress.step, s->options->save, s->saved_step);
    return err->status;
}

zinf_status zinf_session_flush(zinf_session *s, zinf_error *err)
{
    zinf_env env = {.step = s->progress.step};

    if (!s->pending)
        return ZINF_OK;
    s->pending = false;
    zinf_executor_run(s->executor, ZINF_PROGRAM_FLUSH, &env, err);
    return zinf_ranks_together(s->ranks, err);
}

/* What was put into an export becomes one, or nothing; all ranks know which. */
static zinf_status finish_export(zinf_session *s, zinf_error *err)
{
    zinf_hf_writer *writer = s->exporter;

    s->exporter = NULL;
    if (zinf_ranks_together(s->ranks, err))
        zinf_hf_abandon(writer);
    else if (zinf_together_commit_hf(s->ranks, writer, err) == ZINF_OK)
        zinf_progress_say(&s->line, "zinf-run: exported the model of step %" PRIu64 " to \"%s\"%s",
                          s->progress.step, s->options->export, s->options->init ? "" :
                          "; its tokenizer is not known, copy it there");
    s->ranks->agreed = false; /* the run has more to do */
    return err->status;
}

zinf_status zinf_session_keep(zinf_session *s, const char *save, zinf_error *not_exported,
                              zinf_largest *ret_largest, zinf_error *err)
{
    if (zinf_session_flush(s, err))
        return err->status;
    zinf_error reserving = {0};
    state_sink sink = {.plan = &s->plan, .hash = s->hash, .largest = ret_largest,
                       .not_exported = not_exported,
                       .exported = not_exported ? s->exporter : NULL};
    zinf_env env = {.step = s->progress.step, .put = put_state, .state_context = &sink};
    const uint64_t start_ns = zinf_report_now_ns();
    bool placed = false;
    uint32_t n;
    uint64_t *totals = zinf_params_hash_totals(s->hash, &n);

    zinf_params_hash_reset(s->hash);
    if (!save || zinf_together_create_checkpoint(s->ranks, save, &s->plan, &s->progress,
                                                 &sink.writer, err) == ZINF_OK)
        zinf_executor_run(s->executor, ZINF_PROGRAM_SAVE, &env, err);
    if (zinf_ranks_together(s->ranks, err) == ZINF_OK && save)
        zinf_together_commit_checkpoint(s->ranks, &sink.writer, &placed, err);
    zinf_checkpoint_abandon(sink.writer);
    if (err->status)
        return save ? not_saved(s, placed, err) : err->status;
    if (save) {
        s->saved_step = s->progress.step;
        s->report.save_s = 1e-9 * (double)(zinf_report_now_ns() - start_ns);
        zinf_progress_say(&s->line, "zinf-run: saved step %" PRIu64 " in \"%s\"",
                          s->progress.step, save);
    }
    if (save && s->progress.step < s->steps && zinf_session_reserve(s, &reserving))
        zinf_progress_say(&s->line, "zinf-run: warning: the next save will fail unless this "
                          "changes: %s", reserving.text);
    if (not_exported)
        finish_export(s, not_exported);
    if (zinf_ranks_add(s->ranks, totals, n, err))
        return err->status;
    return zinf_params_hash_digest(s->hash, &s->report.params_hash, err);
}

zinf_status zinf_session_rescue(zinf_session *s, const zinf_error *not_exported, zinf_error *err)
{
    const zinf_run_options *o = s->options;
    zinf_checkpoint_place *place = NULL;
    char beside[PATH_MAX], then[1000] = "";
    const char *where = s->saved_step == s->progress.step ? o->save : NULL;
    zinf_error failed = {0};
    size_t n = strlen(o->export);

    while (n > 1 && o->export[n - 1] == '/')
        n--;
    if (!where && s->report.n_steps) {
        if (snprintf(beside, sizeof beside, "%.*s.zinf-rescued", (int)n, o->export) >= PATH_MAX)
            zinf_fail(&failed, ZINF_BAD_INPUT, "\"%.300s\" is too long a name", o->export);
        else if (s->ranks->collective->rank == 0)
            zinf_checkpoint_claim(beside, NULL, &place, &failed);
        if (zinf_ranks_together(s->ranks, &failed) == ZINF_OK &&
            zinf_session_keep(s, beside, NULL, NULL, &failed) == ZINF_OK)
            where = beside;
        zinf_checkpoint_release(place);
    }
    if (where)
        snprintf(then, sizeof then, "; step %" PRIu64 " is saved in \"%.200s\": export it by the "
                 "same command with --resume \"%.200s\" --steps %" PRIu64 " in place of --init, "
                 "--data and --steps", s->progress.step, where, where, s->progress.step);
    else if (failed.status)
        snprintf(then, sizeof then, "; nor could what was trained be saved: %.400s", failed.text);
    s->ranks->agreed = true; /* the same words on every rank */
    return zinf_fail(err, not_exported->status, "%.500s%s", not_exported->text, then);
}
