/* runtime/evaluate.c - see evaluate.h. */
#include "runtime/evaluate.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

typedef struct windows {
    const zinf_data *data;
    uint64_t sequence, n_tokens, n_windows;
    uint64_t next;    /* window of the batch's first row */
    uint64_t *counts; /* [micro_batch] tokens of each row that count, its last ones */
} windows;

/* Rows behind the last window are the last window again, and do not count. */
static zinf_status batch(void *context, uint64_t n, uint64_t cols, int32_t *ret_tokens,
                         zinf_error *err)
{
    const windows *w = context;

    for (uint64_t i = 0; i < n; i++) {
        const uint64_t window = w->next + i < w->n_windows ? w->next + i : w->n_windows - 1;
        const uint64_t end = (window + 1) * w->sequence; /* index of its last target */
        const uint64_t last = w->n_tokens - 1, beyond = end > last ? end - last : 0;
        if (zinf_data_window(w->data, end - beyond - w->sequence, ret_tokens + i * cols, err))
            return err->status;
        w->counts[i] = w->next + i < w->n_windows ? w->sequence - beyond : 0;
    }
    return ZINF_OK;
}

zinf_status zinf_evaluate(const zinf_plan *plan, zinf_executor *executor, const zinf_data *data,
                          const volatile sig_atomic_t *stop, zinf_evaluation *ret_evaluation,
                          zinf_error *err)
{
    const uint64_t micro = plan->decisions.micro_batch, sequence = plan->job.sequence;
    zinf_evaluation result = {0};
    windows w = {.data = data, .sequence = sequence, .n_tokens = zinf_data_n_tokens(data)};
    double *losses = calloc(micro + 1, sizeof *losses), sum = 0;

    w.counts = calloc(micro + 1, sizeof *w.counts);
    w.n_windows = (w.n_tokens - 1 + sequence - 1) / sequence;
    result.n_sequences = w.n_windows;
    if (!losses || !w.counts)
        zinf_fail(err, ZINF_MACHINE, "out of memory for an evaluation");
    else if (!plan->programs[ZINF_PROGRAM_EVAL].n_segments)
        zinf_fail(err, ZINF_BAD_INPUT, "--eval: the plan has no eval program");
    for (; !err->status && !*stop && w.next < w.n_windows; w.next += micro) {
        zinf_env env = {.batch = batch, .batch_context = &w, .counts = w.counts,
                        .row_losses = losses};
        if (zinf_executor_run(executor, ZINF_PROGRAM_EVAL, &env, err))
            break;
        for (uint64_t i = 0; i < micro && w.next + i < w.n_windows; i++) {
            sum += losses[i];
            result.n_tokens += w.counts[i];
            result.n_done++;
        }
    }
    free(losses);
    free(w.counts);
    if (err->status)
        return err->status;
    if (result.n_tokens) {
        result.loss = sum / (double)result.n_tokens;
        result.perplexity = exp(result.loss);
        if (!isfinite(result.loss))
            return zinf_fail(err, ZINF_WRONG_RESULT, "--eval: the loss is %g: the weights or what "
                             "is computed from them are not finite", result.loss);
    }
    *ret_evaluation = result;
    return ZINF_OK;
}
