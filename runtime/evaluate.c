/* runtime/evaluate.c - see evaluate.h. */
#include "runtime/evaluate.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

typedef struct windows {
    const zinf_data *data;
    const zinf_collective *ranks;
    uint64_t sequence, n_tokens, n_windows;
    uint64_t next;    /* window of rank 0's first row; behind it that of rank 1's, and so on */
    uint64_t *counts; /* [micro_batch] tokens of each row that count, its last ones */
} windows;

static uint64_t window_of(const windows *w, uint32_t rank, uint64_t row)
{
    return w->next + row * w->ranks->n_ranks + rank;
}

/* Targets of a window that lie behind the file's last token. */
static uint64_t beyond(const windows *w, uint64_t window)
{
    const uint64_t end = (window + 1) * w->sequence, last = w->n_tokens - 1;

    return end > last ? end - last : 0;
}

/* Rows behind the last window are the last window again, and are not added. */
static zinf_status batch(void *context, uint64_t n, uint64_t cols, int32_t *ret_tokens,
                         zinf_error *err)
{
    const windows *w = context;

    for (uint64_t i = 0; i < n; i++) {
        const uint64_t mine = window_of(w, w->ranks->rank, i);
        const uint64_t window = mine < w->n_windows ? mine : w->n_windows - 1;
        if (zinf_data_window(w->data, window * w->sequence - beyond(w, window),
                             ret_tokens + i * cols, err))
            return err->status;
        w->counts[i] = w->sequence - beyond(w, window);
    }
    return ZINF_OK;
}

/* One run of the program on every rank; losses of ranks * micro windows are added in file order. */
static zinf_status one_turn(windows *w, uint64_t micro, zinf_executor *executor, double *losses,
                            double *all, double *sum, zinf_evaluation *result, zinf_error *err)
{
    const zinf_collective *c = w->ranks;
    zinf_env env = {.batch = batch, .batch_context = w, .counts = w->counts,
                    .row_losses = losses};

    if (zinf_executor_run(executor, ZINF_PROGRAM_EVAL, &env, err) ||
        c->allgather(c, losses, all, micro, ZINF_F64, err))
        return err->status;
    for (uint64_t i = 0; i < micro; i++)
        for (uint32_t r = 0; r < c->n_ranks && window_of(w, r, i) < w->n_windows; r++) {
            *sum += all[r * micro + i];
            result->n_tokens += w->sequence - beyond(w, window_of(w, r, i));
            result->n_done++;
        }
    w->next += micro * c->n_ranks;
    return ZINF_OK;
}

zinf_status zinf_evaluate(const zinf_plan *plan, zinf_executor *executor, const zinf_data *data,
                          uint64_t most, zinf_ranks *ranks, const volatile sig_atomic_t *stop,
                          zinf_evaluation *ret_evaluation, zinf_error *err)
{
    const uint64_t micro = plan->decisions.micro_batch, sequence = plan->job.sequence;
    zinf_evaluation result = {0};
    windows w = {.data = data, .ranks = ranks->collective, .sequence = sequence,
                 .n_tokens = zinf_data_n_tokens(data)};
    double *losses = calloc(micro + 1, sizeof *losses), sum = 0;
    double *all = calloc(micro * w.ranks->n_ranks + 1, sizeof *all);

    w.counts = calloc(micro + 1, sizeof *w.counts);
    w.n_windows = (w.n_tokens - 1 + sequence - 1) / sequence;
    w.n_windows = w.n_windows < most ? w.n_windows : most;
    result.n_sequences = w.n_windows;
    if (!losses || !all || !w.counts)
        zinf_fail(err, ZINF_MACHINE, "out of memory for an evaluation");
    else if (!plan->programs[ZINF_PROGRAM_EVAL].n_segments)
        zinf_fail(err, ZINF_BAD_INPUT, "the plan has no eval program");
    zinf_ranks_together(ranks, err);
    while (!err->status && w.next < w.n_windows) {
        double told = *stop != 0;
        if (zinf_ranks_sum(ranks, &told, 1, err) || told > 0)
            break;
        one_turn(&w, micro, executor, losses, all, &sum, &result, err);
    }
    free(losses);
    free(all);
    free(w.counts);
    if (err->status)
        return err->status;
    if (result.n_tokens) {
        result.loss = sum / (double)result.n_tokens;
        result.perplexity = exp(result.loss);
    }
    *ret_evaluation = result;
    return ZINF_OK;
}
