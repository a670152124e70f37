/* runtime/report.c - see report.h; the trace is trace.c's. */
#include "runtime/report.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "runtime/files.h"

uint64_t zinf_report_now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* ---- progress ---- */

void zinf_progress_begin(zinf_progress_line *line, bool tells)
{
    *line = (zinf_progress_line){.terminal = isatty(STDERR_FILENO), .silent = !tells};
}

static void duration(double seconds, char ret_text[32])
{
    const uint64_t s = seconds > 0 && seconds < 1e9 ? (uint64_t)(seconds + 0.5) : 0;

    if (s >= 3600)
        snprintf(ret_text, 32, "%" PRIu64 "h%02" PRIu64 "m", s / 3600, s / 60 % 60);
    else
        snprintf(ret_text, 32, "%" PRIu64 "m%02" PRIu64 "s", s / 60, s % 60);
}

/* A nan without its sign, which says nothing. */
static double positive(double value)
{
    return isnan(value) ? (double)NAN : value;
}

void zinf_progress_step(zinf_progress_line *line, const zinf_step_report *step, bool last)
{
    const uint64_t now = zinf_report_now_ns();
    char left[32], val[48] = "";

    if (line->silent)
        return;
    line->mean_step_s = line->mean_step_s > 0 ? 0.9 * line->mean_step_s + 0.1 * step->step_s
                                              : step->step_s;
    if (!last && !step->validated && line->shown_ns &&
        now - line->shown_ns < (line->terminal ? 100000000u : 1000000000u))
        return;
    line->shown_ns = now;
    duration((double)(step->steps - step->step) * line->mean_step_s, left);
    if (step->validated)
        snprintf(val, sizeof val, "  val %.4f", step->val_loss);
    fprintf(stderr, "%sstep %" PRIu64 "/%" PRIu64 "  loss %.4f%s  lr %.3g  norm %.3g%s  %.0f tok/s"
            "  MFU %.1f %%  ETA %s%s", line->terminal ? "\r" : "", step->step, step->steps,
            positive(step->loss), val, step->lr, positive(step->norm),
            step->skipped ? " (skipped)" : "",
            step->tokens_per_s, 100 * step->mfu, left, line->terminal ? "\033[K" : "\n");
    line->open = line->terminal;
    if (line->open && (last || step->validated)) {
        fputc('\n', stderr);
        line->open = false;
    }
    fflush(stderr);
}

void zinf_progress_say(zinf_progress_line *line, const char *format, ...)
{
    char text[6000]; /* a path or two, and the sentence */
    va_list args;

    if (line->silent)
        return;
    if (line->open)
        fputc('\n', stderr);
    line->open = false;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    zinf_plain_text(text);
    fprintf(stderr, "%s\n", text);
}

/* ---- log ---- */

/* One run writes a log: a second one would write over its rows. A device or a pipe (/dev/null,
 * /dev/stdout) may be anybody's; a file system without locks has none. */
static zinf_status hold(FILE *log, const char *path, zinf_error *err)
{
    struct stat info;

    if (fstat(fileno(log), &info) == 0 && S_ISREG(info.st_mode) &&
        flock(fileno(log), LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK)
        zinf_fail(err, ZINF_MACHINE, "log \"%.400s\" is being written by another run; wait for "
                  "it, or use another --log", path);
    return err->status;
}

zinf_status zinf_log_open(const char *path, FILE **ret_log, zinf_error *err)
{
    if (zinf_files_output(path, 0, "log", ret_log, err))
        return err->status;
    if (hold(*ret_log, path, err) == ZINF_OK && ftruncate(fileno(*ret_log), 0) && errno != EINVAL)
        zinf_fail(err, ZINF_MACHINE, "cannot empty log \"%.400s\": %s", path, strerror(errno));
    if (err->status) {
        fclose(*ret_log);
        *ret_log = NULL;
    }
    return err->status;
}

static const char row_begin[] = "{\"step\": ", summary_begin[] = "{\"summary\": ",
                  eval_begin[] = "{\"eval\": ";

/* Does the line begin like that, or is it the beginning of that, cut by a kill? */
static bool begins(const char *line, size_t n, bool complete, const char *with)
{
    const size_t all = strlen(with);

    return n >= all ? !memcmp(line, with, all) : !complete && !memcmp(line, with, n);
}

static void note_gap(zinf_log_found *found, uint64_t before, uint64_t after)
{
    if (after - before < 2)
        return;
    if (!found->n_missing)
        found->first_missing = before + 1;
    found->n_missing += after - before - 1;
}

/* Finds how long the log is up to the row of `step`, what is behind that and what is not there. */
static zinf_status find_end(FILE *log, const char *path, uint64_t step, off_t *ret_end,
                            zinf_log_found *ret_found, zinf_error *err)
{
    char line[8192]; /* twice what the longest has */
    uint64_t last = 0, kept = 0; /* steps of rows; 0: none yet */
    off_t at = 0;

    *ret_end = 0;
    *ret_found = (zinf_log_found){0};
    for (uint64_t number = 1; fgets(line, sizeof line, log); number++) {
        const size_t n = strlen(line);
        const bool complete = n && line[n - 1] == '\n';
        const bool is_row = begins(line, n, complete, row_begin);
        const uint64_t found = is_row && complete ? strtoull(line + strlen(row_begin), NULL, 10)
                                                  : 0;
        const bool is_ours = (is_row && (found || !complete)) ||
                             begins(line, n, complete, summary_begin) ||
                             begins(line, n, complete, eval_begin);
        if (!is_ours || !n || (!complete && !feof(log)))
            return zinf_fail(err, ZINF_BAD_INPUT, "--log \"%.400s\" is not a log to go on with: "
                             "its line %" PRIu64 " is no step, evaluation or summary; give "
                             "another name", path, number);
        at += (off_t)n;
        if (!found)
            continue;
        if (found <= last)
            return zinf_fail(err, ZINF_BAD_INPUT, "--log \"%.400s\" is not a log to go on with: "
                             "in its line %" PRIu64 " step %" PRIu64 " follows step %" PRIu64
                             "; give another name", path, number, found, last);
        last = found;
        if (found <= step) {
            if (kept)
                note_gap(ret_found, kept, found);
            kept = found;
            *ret_end = at;
        } else {
            ++ret_found->n_dropped;
        }
    }
    if (kept)
        note_gap(ret_found, kept, step + 1);
    if (ferror(log))
        return zinf_fail(err, ZINF_MACHINE, "cannot read log \"%.400s\": %s", path,
                         strerror(errno));
    return ZINF_OK;
}

zinf_status zinf_log_continue(const char *path, uint64_t step, FILE **ret_log,
                              zinf_log_found *ret_found, zinf_error *err)
{
    struct stat info;
    off_t end = 0;
    FILE *log;

    *ret_found = (zinf_log_found){0};
    if (stat(path, &info) || !S_ISREG(info.st_mode)) /* new, or a device or pipe */
        return zinf_log_open(path, ret_log, err);
    log = fopen(path, "r+e");
    if (!log)
        return zinf_fail(err, zinf_files_blame(errno), "cannot open log \"%s\": %s", path,
                         strerror(errno));
    if (!hold(log, path, err) && !find_end(log, path, step, &end, ret_found, err) &&
        (fseeko(log, end, SEEK_SET) || ftruncate(fileno(log), end)))
        zinf_fail(err, ZINF_MACHINE, "cannot cut log \"%.400s\" to %jd bytes: %s", path,
                  (intmax_t)end, strerror(errno));
    if (err->status) {
        fclose(log);
        return err->status;
    }
    *ret_log = log;
    return ZINF_OK;
}

static void number(FILE *log, const char *name, double value)
{
    if (isfinite(value))
        fprintf(log, ", \"%s\": %.17g", name, value);
    else
        fprintf(log, ", \"%s\": null", name);
}

static zinf_status written(FILE *log, const char *path, zinf_error *err)
{
    if (fflush(log) || ferror(log))
        return zinf_fail(err, ZINF_MACHINE, "cannot write log \"%.400s\": %s", path,
                         strerror(errno));
    return ZINF_OK;
}

zinf_status zinf_log_step(FILE *log, const char *path, const zinf_step_report *step,
                          zinf_error *err)
{
    fprintf(log, "{\"step\": %" PRIu64, step->step);
    number(log, "loss", step->loss);
    number(log, "lr", step->lr);
    number(log, "grad_norm", step->norm);
    number(log, "grad_norm_clipped", step->clipped_norm);
    fprintf(log, ", \"tokens\": %" PRIu64, step->tokens);
    number(log, "step_s", step->step_s);
    number(log, "tokens_per_s", step->tokens_per_s);
    number(log, "mfu", step->mfu);
    if (step->skipped)
        fputs(", \"skipped\": true", log);
    if (step->validated)
        number(log, "val_loss", step->val_loss);
    fputs("}\n", log);
    return written(log, path, err);
}

zinf_status zinf_log_eval(FILE *log, const char *path, const zinf_evaluation *evaluation,
                          zinf_error *err)
{
    fprintf(log, "{\"eval\": {\"tokens\": %" PRIu64 ", \"sequences\": %" PRIu64,
            evaluation->n_tokens, evaluation->n_sequences);
    number(log, "loss", evaluation->loss);
    number(log, "perplexity", evaluation->perplexity);
    fputs("}}\n", log);
    return written(log, path, err);
}

static void tiers(FILE *log, const char *name, const uint64_t bytes[ZINF_N_TIERS])
{
    fprintf(log, "\"%s\": {", name);
    for (unsigned i = 0; i <= ZINF_TIER_NVME; i++)
        fprintf(log, "%s\"%s\": %" PRIu64, i ? ", " : "", zinf_tier_name(i), bytes[i]);
    fputs("}, ", log);
}

zinf_status zinf_log_summary(FILE *log, const char *path, const zinf_plan *plan,
                             const zinf_run_report *run, zinf_error *err)
{
    fputs("{\"summary\": {", log);
    tiers(log, "planned", run->planned_bytes);
    tiers(log, "measured", run->measured_bytes);
    fprintf(log, "\"peak_rss_bytes\": %" PRIu64, run->peak_rss_bytes);
    number(log, "predicted_step_s", run->predicted_step_s);
    number(log, "measured_step_s", run->measured_step_s);
    number(log, "begin_s", run->begin_s);
    number(log, "save_s", run->save_s);
    fputs(", \"queues\": {", log);
    for (unsigned q = 0; q < ZINF_N_QUEUES; q++)
        fprintf(log, "%s\"%s\": {\"predicted_s\": %.17g, \"measured_s\": %.17g}", q ? ", " : "",
                zinf_queue_name(q), plan->predicted.queue_busy_s[q], run->queue_s[q]);
    fputs("}, \"ranks\": [", log);
    for (uint32_t r = 0; r < run->n_ranks; r++) {
        fprintf(log, "%s{", r ? ", " : "");
        tiers(log, "measured", run->ranks[r].measured_bytes);
        fprintf(log, "\"sent_bytes\": %" PRIu64 "}", run->ranks[r].sent_bytes);
    }
    fprintf(log, "], \"planned_sent_bytes\": %" PRIu64 ", \"collectives\": %" PRIu32,
            plan->predicted.moved_bytes[ZINF_QUEUE_COLLECTIVE], plan->predicted.n_collectives);
    fprintf(log, ", \"steps\": %" PRIu64 ", \"kernels\": \"%s\", \"engine\": \"%s\", "
            "\"plan_hash\": \"%016" PRIx64 "\", \"params_hash\": \"%016" PRIx64 "\"}}\n",
            run->n_steps, run->kernels, run->engine, plan->hash, run->params_hash);
    return written(log, path, err);
}

/* ---- table ---- */

static void row(FILE *out, const char *kind, const char *name, double planned, double measured,
                const char *unit)
{
    fprintf(out, "%-7s %-10s %12.3f %12.3f %-4s", kind, name, planned, measured, unit);
    if (planned > 0)
        fprintf(out, " %6.1f %%", 100 * measured / planned);
    fputc('\n', out);
}

void zinf_report_table(FILE *out, const zinf_plan *plan, const zinf_run_report *run)
{
    fprintf(out, "%-7s %-10s %12s %12s\n", "", "", "predicted", "measured");
    if (run->n_steps) {
        row(out, "step", "", 1e3 * run->predicted_step_s, 1e3 * run->measured_step_s, "ms");
        for (unsigned q = 0; q < ZINF_N_QUEUES; q++)
            if (plan->predicted.queue_busy_s[q] > 0 || run->queue_s[q] > 0)
                row(out, "queue", zinf_queue_name(q), 1e3 * plan->predicted.queue_busy_s[q],
                    1e3 * run->queue_s[q], "ms");
    }
    for (unsigned t = 0; t <= ZINF_TIER_NVME; t++)
        if (run->planned_bytes[t] || run->measured_bytes[t])
            row(out, "memory", zinf_tier_name(t), (double)run->planned_bytes[t] / 0x1p20,
                (double)run->measured_bytes[t] / 0x1p20, "MiB");
    fflush(out);
}
