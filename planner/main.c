/* planner/main.c - zinf-plan: a model and a cluster in, a checked plan out. The list of passes. */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "planner/ranks.h"
#include "planner/report.h"
#include "planner/search.h"
#include "planner/settings.h"
#include "planner/spec_internal.h"
#include "runtime/checker.h"
#include "runtime/files.h"

enum { MOST_OVERRIDES = 64 };

typedef struct options {
    const char *model, *cluster, *output, *trace, *check, *show, *simulate;
    zinf_settings settings;
    const char *overrides[MOST_OVERRIDES]; /* of the model file's keys */
    uint32_t n_overrides;
    bool explain, json, help;
    uint32_t top;
} options;

static const char usage[] =
    "usage: zinf-plan MODEL CLUSTER.yaml [-o PLAN] [--set KEY=VALUE].. [--explain] [--json]\n"
    "                 [--top N] [--trace T.json]\n"
    "       zinf-plan --check PLAN | --show PLAN | --simulate PLAN\n";

static void print_help(FILE *out)
{
    fprintf(out, "%s\nPlans a training run: which tier holds what, tiles, micro-batch, "
                 "checkpoints, prefetch; and\nproves that it fits before it runs. MODEL is a "
                 "YAML file, or a Hugging Face directory or its\nconfig.json (gpt2, llama, mistral "
                 "with full attention, qwen2).\n\n"
                 "  -o PLAN            write the plan (binary; zinf-run executes it)\n"
                 "  --set KEY=VALUE    pin a decision, or set model.name or a training.* key "
                 "(all below); may\n                     be given again, for another key\n"
                 "  --explain          Eq. 1-11 with values, memory, traffic, time per queue\n"
                 "  --json             the same for programs, on standard output\n"
                 "  --top N            also list the N best plans that were simulated (1 .. %d)\n"
                 "  --trace T.json     the predicted step as Chrome trace events\n"
                 "  --check PLAN       validate a plan file\n"
                 "  --show PLAN        every instruction as text\n"
                 "  --simulate PLAN    predicted time of every program\n"
                 "  --help             this text\n\ndecisions for --set:\n", usage, ZINF_MAX_TOP);
    zinf_settings_print_keys(out);
    fprintf(out, "\nkeys of a MODEL.yaml and of CLUSTER.yaml:\n");
    zinf_spec_print_keys(out);
    fprintf(out, "\nexit codes: 0 done, 1 wrong result, 2 your input, 3 does not fit or plan "
                 "refused, 4 machine\n");
}

static const char *nearest_option(const char *text)
{
    static const char *const known[] = {"-o", "--set", "--explain", "--json", "--top", "--trace",
                                        "--check", "--show", "--simulate", "--help"};
    const char *best = known[0];

    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (zinf_edit_distance(text, known[i]) < zinf_edit_distance(text, best))
            best = known[i];
    return best;
}

/* Is the key of `value` that of a --set before argv[end]? The earlier one would be ignored. */
static bool is_set_before(char **argv, int end, const char *value)
{
    const size_t key = strcspn(value, "=") + 1;

    for (int k = 1; k + 1 < end; k++)
        if (!strcmp(argv[k], "--set") && !strncmp(argv[k + 1], value, key))
            return true;
    return false;
}

static zinf_status parse(int argc, char **argv, options *ret, zinf_error *err)
{
    options o = {.top = 0};
    zinf_settings free_settings;
    const char *planned[] = {"--policy", "--report", "--emit-deepspeed"};

    zinf_settings_init(&o.settings);
    for (int i = 1; i < argc; i++) {
        const char *arg = argv[i], **target = NULL;
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        for (size_t k = 0; k < sizeof planned / sizeof *planned; k++)
            if (!strcmp(arg, planned[k]))
                return zinf_fail(err, ZINF_BAD_INPUT, "%s is not supported by this version", arg);
        if (!strcmp(arg, "--explain")) {
            o.explain = true;
        } else if (!strcmp(arg, "--json")) {
            o.json = true;
        } else if (!strcmp(arg, "--help") || !strcmp(arg, "-h")) {
            o.help = true;
        } else if (!strcmp(arg, "--set")) {
            if (!value)
                return zinf_fail(err, ZINF_BAD_INPUT, "--set needs KEY=VALUE");
            if (is_set_before(argv, i, value))
                return zinf_fail(err, ZINF_BAD_INPUT, "--set %.*s is given twice",
                                 (int)strcspn(value, "="), value);
            if (zinf_override_is(value)) {
                if (o.n_overrides == MOST_OVERRIDES)
                    return zinf_fail(err, ZINF_BAD_INPUT, "more than %d --set of the model's keys",
                                     MOST_OVERRIDES);
                o.overrides[o.n_overrides++] = value;
            } else if (zinf_settings_set(&o.settings, value, err) != ZINF_OK) {
                return err->status;
            }
            i++;
        } else if (!strcmp(arg, "--top")) {
            char *end = NULL;
            unsigned long n = value ? strtoul(value, &end, 10) : 0;
            if (!value || *end || n < 1 || n > ZINF_MAX_TOP || value[0] == '-')
                return zinf_fail(err, ZINF_BAD_INPUT,
                                 "--top \"%.40s\": expected a whole number from 1 to %d",
                                 value ? value : "", ZINF_MAX_TOP);
            o.top = (uint32_t)n;
            i++;
        } else if (!strcmp(arg, "-o")) {
            target = &o.output;
        } else if (!strcmp(arg, "--trace")) {
            target = &o.trace;
        } else if (!strcmp(arg, "--check")) {
            target = &o.check;
        } else if (!strcmp(arg, "--show")) {
            target = &o.show;
        } else if (!strcmp(arg, "--simulate")) {
            target = &o.simulate;
        } else if (arg[0] == '-' && arg[1]) {
            return zinf_fail(err, ZINF_BAD_INPUT, "unknown option \"%.60s\"; did you mean %s?",
                             arg, nearest_option(arg));
        } else if (!o.model) {
            o.model = arg;
        } else if (!o.cluster) {
            o.cluster = arg;
        } else {
            return zinf_fail(err, ZINF_BAD_INPUT,
                             "\"%.60s\": one MODEL and one CLUSTER are expected", arg);
        }
        if (target) {
            if (!value || !*value)
                return zinf_fail(err, ZINF_BAD_INPUT, "%s needs a file name", arg);
            if (*target)
                return zinf_fail(err, ZINF_BAD_INPUT, "%s is given twice", arg);
            *target = value;
            i++;
        }
    }
    if (!o.help && !!o.check + !!o.show + !!o.simulate + (o.model || o.cluster) != 1)
        return zinf_fail(err, ZINF_BAD_INPUT,
                         "give MODEL and CLUSTER, or one of --check, --show, --simulate with a "
                         "PLAN (zinf-plan --help)");
    if (!o.help && o.model && !o.cluster)
        return zinf_fail(err, ZINF_BAD_INPUT,
                         "a CLUSTER file is missing after \"%.200s\" (zinf-plan --help)",
                         o.model);
    zinf_settings_init(&free_settings);
    if (!o.help && !o.model &&
        (o.explain || o.json || o.top || o.output || o.trace || o.n_overrides ||
         memcmp(&o.settings, &free_settings, sizeof free_settings)))
        return zinf_fail(err, ZINF_BAD_INPUT, "--check, --show and --simulate take a PLAN and no "
                         "other option");
    char config[PATH_MAX]; /* the file that is read if MODEL is a directory */
    const bool fits = o.model && snprintf(config, sizeof config, "%s/config.json", o.model) <
                                     (int)sizeof config;
    const zinf_named_file files[] = {{"MODEL", o.model, false}, {"CLUSTER", o.cluster, false},
                                     {"MODEL", fits ? config : NULL, false},
                                     {"-o", o.output, true}, {"--trace", o.trace, true}};
    const size_t n_files = sizeof files / sizeof *files;
    if (zinf_files_distinct(files, n_files, err) != ZINF_OK ||
        zinf_files_spare_checkpoints(files, n_files, err) != ZINF_OK)
        return err->status;
    *ret = o;
    return ZINF_OK;
}

typedef struct plain_path {
    char text[PATH_MAX];
} plain_path;

static plain_path shown(const char *path)
{
    plain_path p;

    snprintf(p.text, sizeof p.text, "%s", path);
    zinf_plain_text(p.text);
    return p;
}

/* --check, --show, --simulate */
static zinf_status inspect(const options *o, zinf_error *err)
{
    const char *path = o->check ? o->check : o->show ? o->show : o->simulate;
    zinf_plan plan;

    if (zinf_plan_read(path, &plan, err) != ZINF_OK)
        return err->status;
    if (o->show) {
        zinf_report_show(stdout, &plan);
    } else if (o->simulate) {
        zinf_report_simulate(stdout, &plan, err);
    } else if (zinf_plan_check(&plan, err) == ZINF_OK) {
        printf("%s: safe (C1-C8), %u instructions, hash %016" PRIx64 "\n", shown(path).text,
               plan.n_instrs, plan.hash);
    }
    zinf_plan_free(&plan);
    return err->status;
}

static zinf_status report(const options *o, zinf_search_result *r, const zinf_model *model,
                          const zinf_cluster *cluster, double seconds, zinf_error *err)
{
    FILE *text = o->json ? stderr : stdout; /* JSON is the product; the rest is for people */

    if (zinf_plan_check(&r->plan, err) != ZINF_OK)
        return err->status;
    if (o->explain)
        zinf_report_explain(text, &r->plan, model, cluster);
    else if (!o->json)
        zinf_report_summary(text, &r->plan);
    if (o->top)
        zinf_report_top(text, r);
    if (o->json && zinf_report_json(stdout, r, model, cluster, seconds, err) != ZINF_OK)
        return err->status;
    if (o->trace && zinf_report_trace(o->trace, &r->plan, err) != ZINF_OK)
        return err->status;
    if (o->output && zinf_plan_write(&r->plan, o->output, err) != ZINF_OK)
        return err->status;
    return ZINF_OK;
}

static double now_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static zinf_status plan(const options *o, zinf_error *err)
{
    zinf_model model;
    zinf_cluster cluster;
    zinf_search_result r = {0};
    const zinf_overrides overrides = {o->overrides, o->n_overrides};
    const double start = now_s();
    char notes[ZINF_NOTES_BYTES];

    if (zinf_model_read(o->model, &overrides, &model, notes, err) != ZINF_OK ||
        zinf_cluster_read(o->cluster, &cluster, err) != ZINF_OK ||
        zinf_settings_check(&o->settings, &model, &cluster, err) != ZINF_OK)
        return err->status;
    if (*notes)
        fprintf(stderr, "zinf-plan: note: \"%s\": %s\n", shown(o->model).text, notes);
    cluster = zinf_cluster_share(&cluster);
    zinf_search(&model, &cluster, &o->settings, o->top ? o->top : 1, &r, err);
    if (err->status == ZINF_OK) {
        report(o, &r, &model, &cluster, now_s() - start, err);
    } else if (err->status == ZINF_DOES_NOT_FIT) {
        zinf_error json_err = {0};
        if (o->json)
            zinf_report_json(stdout, &r, &model, &cluster, now_s() - start, &json_err);
    }
    if (err->status == ZINF_DOES_NOT_FIT) {
        fprintf(stderr, "zinf-plan: %s\n", err->text);
        for (uint32_t i = 0; i < r.n_suggestions; i++)
            fprintf(stderr, "  would fit: %s\n", r.suggestions[i]);
    }
    zinf_search_free(&r);
    return err->status;
}

int main(int argc, char **argv)
{
    zinf_error err = {0};
    options o;

    zinf_files_guard_standard();
    signal(SIGXFSZ, SIG_IGN); /* a file too large is an error like others: EFBIG */
    if (parse(argc, argv, &o, &err) == ZINF_OK) {
        if (o.help)
            print_help(stdout);
        else if (o.model)
            plan(&o, &err);
        else
            inspect(&o, &err);
    }
    if (err.status != ZINF_OK && err.status != ZINF_DOES_NOT_FIT)
        fprintf(stderr, "zinf-plan: %s\n", err.text);
    else if (err.status == ZINF_DOES_NOT_FIT && !(o.model && o.cluster))
        fprintf(stderr, "zinf-plan: %s\n", err.text);
    if (err.status == ZINF_OK && fflush(stdout)) {
        fprintf(stderr, "zinf-plan: cannot write standard output: %s\n", strerror(errno));
        return ZINF_MACHINE;
    }
    return (int)err.status;
}
