/* runtime/options.c - see options.h. Errors name the nearest option. */
#include "runtime/options.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/paths.h"

typedef enum option_kind { TEXT, COUNT, REAL, CHOICE, HELP } option_kind;

static const struct option {
    const char *name, *argument;
    option_kind kind;
    size_t offset;
    const char *help;
} options[] = {
#define AT(field) offsetof(zinf_run_options, field)
    {"--data", "TRAIN", TEXT, AT(data), "tokens to train on: llm.c, nanoGPT (.bin) or raw text"},
    {"--val", "VAL", TEXT, AT(val), "tokens to validate on"},
    {"--val-every", "N", COUNT, AT(val_every), "validate every N steps (0: at the end only)"},
    {"--val-batches", "N", COUNT, AT(val_batches), "micro-batches of one validation (20)"},
    {"--steps", "N", COUNT, AT(steps),
     "stop when N optimizer steps are done in all (the plan's; 0 with --sample or --eval)"},
    {"--init", "random|HF_DIR", TEXT, AT(init),
     "initial weights: random, from the plan's seed, or a Hugging Face model's"},
    {"--save", "DIR", TEXT, AT(save),
     "write checkpoints there, the last one at the end; for one training"},
    {"--save-every", "N", COUNT, AT(save_every), "and every N steps (0: at the end only)"},
    {"--resume", "DIR", TEXT, AT(resume), "go on from the last checkpoint there"},
    {"--log", "L.jsonl", TEXT, AT(log),
     "one JSON object a step, and a summary; with --resume an old log goes on"},
    {"--trace", "T.json", TEXT, AT(trace),
     "Chrome trace of the last step, predicted and measured"},
    {"--nvme", "DIR", TEXT, AT(nvme), "directory of the nvme tier"},
    {"--engine", "auto|uring|threads", CHOICE, AT(engine), "how the nvme tier is accessed"},
    {"--queues", "concurrent|serial", CHOICE, AT(queues),
     "serial: one instruction after the other, to see what overlap gains"},
    {"--on-nonfinite", "stop|skip", CHOICE, AT(on_nonfinite),
     "if a loss or gradient is nan or inf; skip leaves out at most 10 updates in a row (stop)"},
    {"--sample", "N", COUNT, AT(sample), "at the end write N tokens to standard output"},
    {"--prompt", "TEXT", TEXT, AT(prompt),
     "what the sample goes on from (token ids, unless the vocabulary is bytes)"},
    {"--temperature", "F", REAL, AT(temperature), "of the sample (0.8; 0: the likeliest token)"},
    {"--eval", "FILE", TEXT, AT(eval),
     "at the end the loss and perplexity of all its tokens, in windows of the plan's sequence"},
    {"--export", "HF_DIR", TEXT, AT(export),
     "at the end write a new Hugging Face directory, with the tokenizer of --init"},
    {"--export-dtype", "fp32|bf16|fp16|source", CHOICE, AT(export_dtype),
     "of its weights (fp32); source: what each has in --init"},
    {"--export-shard", "BYTES", COUNT, AT(export_shard_bytes),
     "most of one of its files (5000000000)"},
    {"--help", NULL, HELP, 0, "this text"},
};

/* Options that would be ignored without another. */
static const struct need {
    const char *name, *needed;
} needs[] = {
    {"--val-every", "--val"}, {"--val-batches", "--val"}, {"--save-every", "--save"},
    {"--prompt", "--sample"}, {"--temperature", "--sample"}, {"--export-dtype", "--export"},
    {"--export-shard", "--export"},
};

enum { N_OPTIONS = sizeof options / sizeof *options };

static size_t smallest(size_t a, size_t b, size_t c)
{
    const size_t least = a < b ? a : b;
    return least < c ? least : c;
}

/* Levenshtein's distance of two short words. */
static size_t distance(const char *a, const char *b)
{
    size_t row[64], n = strlen(b);

    if (n > 62)
        return SIZE_MAX;
    for (size_t j = 0; j <= n; j++)
        row[j] = j;
    for (size_t i = 0; a[i]; i++) {
        size_t before = row[0];
        row[0] = i + 1;
        for (size_t j = 0; j < n; j++) {
            const size_t up = row[j + 1];
            row[j + 1] = smallest(up + 1, row[j] + 1, before + (a[i] != b[j]));
            before = up;
        }
    }
    return row[n];
}

static const char *nearest(const char *word)
{
    size_t best = SIZE_MAX;
    const char *name = options[0].name;

    for (size_t i = 0; i < N_OPTIONS; i++) {
        const size_t d = distance(word, options[i].name);
        if (d < best) {
            best = d;
            name = options[i].name;
        }
    }
    return name;
}

/* The index of text among the words of option->argument, into an enumeration. */
static zinf_status set_choice(const struct option *option, const char *text, void *ret_field,
                              zinf_error *err)
{
    const char *word = option->argument;
    const size_t n = strlen(text);

    for (int i = 0; *word; i++) {
        const size_t length = strcspn(word, "|");
        if (length == n && memcmp(word, text, n) == 0) {
            memcpy(ret_field, &i, sizeof i);
            return ZINF_OK;
        }
        word += length + (word[length] != 0);
    }
    return zinf_fail(err, ZINF_BAD_INPUT, "%s takes one of %s, not \"%s\"", option->name,
                     option->argument, text);
}

static zinf_status set(const struct option *option, const char *text, zinf_run_options *o,
                       zinf_error *err)
{
    void *field = (char *)o + option->offset;
    char *end;

    errno = 0;
    switch (option->kind) {
    case TEXT:
        if (*text == 0)
            return zinf_fail(err, ZINF_BAD_INPUT, "%s takes %s, it is empty", option->name,
                             option->argument);
        *(const char **)field = text;
        return ZINF_OK;
    case COUNT:
        *(uint64_t *)field = strtoull(text, &end, 10);
        if (*text < '0' || *text > '9' || *end || errno || *(uint64_t *)field > 1000000000000u)
            return zinf_fail(err, ZINF_BAD_INPUT, "%s takes a whole number from 0 to 1e12, not "
                             "\"%s\"", option->name, text);
        return ZINF_OK;
    case REAL:
        *(double *)field = strtod(text, &end);
        if (end == text || *end || !(*(double *)field >= 0) || !(*(double *)field <= 1000))
            return zinf_fail(err, ZINF_BAD_INPUT, "%s takes a number from 0 to 1000, not "
                             "\"%s\"", option->name, text);
        return ZINF_OK;
    default:
        return set_choice(option, text, field, err);
    }
}

/* The number of an option. */
static size_t find(const char *name)
{
    size_t i = 0;

    while (strcmp(options[i].name, name))
        i++;
    return i;
}

/* given: a bit for each option. One that counts needs more than 0. */
static zinf_status check_needs(const zinf_run_options *o, uint32_t given, zinf_error *err)
{
    for (const struct need *n = needs; n < needs + sizeof needs / sizeof *needs; n++) {
        const size_t needed = find(n->needed);
        const void *field = (const char *)o + options[needed].offset;
        const bool is_idle = options[needed].kind == COUNT && *(const uint64_t *)field == 0;
        if (given & 1u << find(n->name) && (is_idle || !(given & 1u << needed)))
            return zinf_fail(err, ZINF_BAD_INPUT, "%s needs %s %s", n->name, n->needed,
                             options[needed].argument);
    }
    return ZINF_OK;
}

static zinf_status check(const zinf_run_options *o, zinf_error *err)
{
    if (!o->plan)
        return zinf_fail(err, ZINF_BAD_INPUT, "no plan given; usage: zinf-run PLAN --data TRAIN "
                         "(zinf-run --help tells more)");
    if (o->init && o->resume)
        return zinf_fail(err, ZINF_BAD_INPUT, "--init and --resume both say where to start; "
                         "give one");
    if (o->val && !o->val_batches)
        return zinf_fail(err, ZINF_BAD_INPUT, "--val-batches 0 validates nothing; give 1 or more, "
                         "or leave out --val");
    if (!o->export_shard_bytes)
        return zinf_fail(err, ZINF_BAD_INPUT, "--export-shard 0 leaves no file a byte; give 1 or "
                         "more");
    if (o->export_dtype == ZINF_EXPORT_SOURCE && (!o->init || !strcmp(o->init, "random")))
        return zinf_fail(err, ZINF_BAD_INPUT, "--export-dtype source is that of --init HF_DIR, "
                         "which is not given");
    return zinf_paths_check(o, err);
}

zinf_status zinf_run_options_parse(int argc, char **argv, zinf_run_options *ret_options,
                                   zinf_error *err)
{
    zinf_run_options o = {.val_batches = 20, .temperature = 0.8,
                          .export_shard_bytes = 5000000000u};
    uint32_t given = 0;

    _Static_assert(N_OPTIONS <= 32, "one bit each");
    for (int i = 1; i < argc; i++) {
        const char *word = argv[i], *equals = strchr(word, '=');
        const size_t n = equals ? (size_t)(equals - word) : strlen(word);
        const struct option *option = NULL;
        if (word[0] != '-' || word[1] == 0) {
            if (o.plan)
                return zinf_fail(err, ZINF_BAD_INPUT, "two plans, \"%s\" and \"%s\"; give one",
                                 o.plan, word);
            o.plan = word;
            continue;
        }
        for (size_t k = 0; k < N_OPTIONS; k++)
            if (strlen(options[k].name) == n && memcmp(options[k].name, word, n) == 0)
                option = &options[k];
        if (!option)
            return zinf_fail(err, ZINF_BAD_INPUT, "unknown option \"%s\"; the nearest is %s",
                             word, nearest(word));
        if (option->kind == HELP) {
            o.help = true;
            *ret_options = o;
            return ZINF_OK;
        }
        if (!equals && i + 1 == argc)
            return zinf_fail(err, ZINF_BAD_INPUT, "%s needs %s after it", option->name,
                             option->argument);
        const char *value = equals ? equals + 1 : argv[++i];
        if (option->offset == AT(nvme) && option->kind == TEXT && o.nvme)
            return zinf_fail(err, ZINF_BAD_INPUT, "several --nvme directories are not built yet; "
                             "give one");
        if (given & 1u << (option - options))
            return zinf_fail(err, ZINF_BAD_INPUT, "%s is given twice; the first would be ignored",
                             option->name);
        given |= 1u << (option - options);
        if (set(option, value, &o, err))
            return err->status;
        o.steps_given |= option->offset == AT(steps) && option->kind == COUNT;
    }
    if (check_needs(&o, given, err) || check(&o, err))
        return err->status;
    if (o.init && !strcmp(o.init, "random"))
        o.init = NULL;
    *ret_options = o;
    return ZINF_OK;
}

void zinf_run_options_help(FILE *out)
{
    fputs("usage: [mpirun -n RANKS] zinf-run PLAN --data TRAIN [OPTION]..\n"
          "Runs a plan that zinf-plan made: trains, validates, saves, samples.\n\n", out);
    for (size_t i = 0; i < N_OPTIONS; i++) {
        char left[48];
        snprintf(left, sizeof left, "%s%s%s", options[i].name, options[i].argument ? " " : "",
                 options[i].argument ? options[i].argument : "");
        fprintf(out, "  %-29s %s\n", left, options[i].help);
    }
    fputs("\nA plan of several ranks is started by mpirun or srun with as many processes and the\n"
          "same options for each; rank 0 prints and logs, --save and --export name directories\n"
          "that every rank sees; what is read may be copies, whose bytes are compared. If a rank\n"
          "dies, is stopped or fails, all end within 30 s and name it.\n"
          "\nThe product (the sample, the table of predicted against measured) goes to standard\n"
          "output, everything else to standard error. Control-C and SIGTERM end the run after the\n"
          "current step, with a checkpoint if --save is given, and exit 0; a second one ends it\n"
          "at once.\n"
          "Exit codes: 0 done, 1 wrong result (nan or inf), 2 your input, 3 the plan was refused\n"
          "or does not fit, 4 the machine (memory, disk).\n", out);
}
