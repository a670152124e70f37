/* runtime/sample.c - see sample.h. The whole window is computed anew for each token. */
#include "runtime/sample.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/mix.h"

typedef struct window {
    int32_t *tokens; /* [sequence] the latest */
    uint64_t n, most;
} window;

static void push(window *w, int32_t token)
{
    if (!w)
        return;
    if (w->n && w->n == w->most) { /* the oldest makes room; most is never 0 */
        w->n--;
        memmove(w->tokens, w->tokens + 1, w->n * sizeof *w->tokens);
    }
    w->tokens[w->n++] = token;
}

static zinf_status batch(void *context, uint64_t n, uint64_t cols, int32_t *ret_tokens,
                         zinf_error *err)
{
    const window *w = context;

    (void)err;
    memset(ret_tokens, 0, n * cols * sizeof *ret_tokens);
    for (uint64_t i = 0; i < n; i++) /* a plan may have room for several: all the same */
        memcpy(ret_tokens + i * cols, w->tokens,
               (w->n < cols ? w->n : cols) * sizeof *ret_tokens);
    return ZINF_OK;
}

static void print_token(FILE *out, int32_t token, bool bytes)
{
    if (!out)
        return;
    if (bytes)
        fputc(token, out);
    else
        fprintf(out, "%" PRId32 " ", token);
}

/* w: NULL only looks. */
static zinf_status read_prompt(const zinf_sample_options *options, uint64_t vocab, window *w,
                               FILE *out, zinf_error *err)
{
    const char *at = options->prompt;

    if (!at || !*at) {
        push(w, options->bytes ? '\n' : (int32_t)vocab - 1);
        return ZINF_OK;
    }
    while (*at) {
        int32_t token = (unsigned char)*at++;
        if (!options->bytes) {
            char *end;
            const long id = strtol(--at, &end, 10);
            if (end == at || id < 0 || (uint64_t)id >= vocab)
                return zinf_fail(err, ZINF_BAD_INPUT, "--prompt \"%s\": the vocabulary is not "
                                 "bytes, so this must be token ids below %" PRIu64
                                 " between spaces", options->prompt, vocab);
            token = (int32_t)id;
            for (at = end; *at == ' ';)
                at++;
        }
        push(w, token);
        print_token(out, token, options->bytes);
    }
    return ZINF_OK;
}

/* A draw from softmax(logits / temperature), by its inverse distribution function. */
static int32_t choose(const float *logits, uint64_t n, double temperature, double uniform)
{
    uint64_t best = 0;
    double total = 0, at = 0;

    for (uint64_t i = 1; i < n; i++)
        if (logits[i] > logits[best])
            best = i;
    if (temperature == 0)
        return (int32_t)best;
    for (uint64_t i = 0; i < n; i++)
        total += exp(((double)logits[i] - logits[best]) / temperature);
    for (uint64_t i = 0; i < n; i++) {
        at += exp(((double)logits[i] - logits[best]) / temperature);
        if (at > uniform * total)
            return (int32_t)i;
    }
    return (int32_t)best;
}

zinf_status zinf_sample_check(const zinf_plan *plan, const zinf_sample_options *options,
                              zinf_error *err)
{
    if (plan->programs[ZINF_PROGRAM_SAMPLE].n_segments == 0)
        return zinf_fail(err, ZINF_BAD_INPUT, "the plan has no sample program; leave --sample out");
    return read_prompt(options, plan->model.vocab, NULL, NULL, err);
}

zinf_status zinf_sample(const zinf_plan *plan, zinf_executor *executor,
                        const zinf_sample_options *options, zinf_ranks *ranks,
                        const volatile sig_atomic_t *stop, FILE *out, uint64_t *ret_done,
                        zinf_error *err)
{
    const uint64_t vocab = plan->model.vocab;
    const uint64_t n_choices = options->bytes && vocab > 256 ? 256 : vocab;
    window w = {.most = plan->job.sequence};
    float *logits = calloc(vocab, sizeof *logits);

    *ret_done = 0;
    w.tokens = calloc(w.most, sizeof *w.tokens);
    if (!logits || !w.tokens)
        zinf_fail(err, ZINF_MACHINE, "out of memory for a sample");
    else
        read_prompt(options, vocab, &w, out, err);
    if (zinf_ranks_together(ranks, err))
        goto done;
    for (uint64_t i = 0; i < options->n_tokens; i++) {
        double told = *stop != 0;
        if (zinf_ranks_sum(ranks, &told, 1, err))
            goto done;
        if (told > 0)
            break;
        zinf_env env = {.batch = batch, .batch_context = &w, .row = w.n - 1, .logits = logits};
        if (zinf_executor_run(executor, ZINF_PROGRAM_SAMPLE, &env, err))
            goto done;
        for (uint64_t k = 0; k < vocab; k++)
            if (!isfinite(logits[k])) {
                ranks->agreed = true; /* the same on every rank */
                zinf_fail(err, ZINF_WRONG_RESULT, "--sample: after %" PRIu64 " tokens the logit of "
                          "token %" PRIu64 " is %s: the weights or what is computed from them are "
                          "not finite", i, k, isnan(logits[k]) ? "nan" : "inf");
                goto done;
            }
        const double uniform = (double)(zinf_mix(zinf_mix(options->seed + 1) + i) >> 11) * 0x1p-53;
        const int32_t token = choose(logits, n_choices, options->temperature, uniform);
        print_token(out, token, options->bytes);
        if (out)
            fflush(out);
        push(&w, token);
        ++*ret_done;
    }
    if (out) {
        fputc('\n', out);
        fflush(out);
    }
done:
    free(logits);
    free(w.tokens);
    return err->status;
}
