/* tests/runtime/command.c - options, the learning rate, the hash of the weights, the log. */
#include <math.h>

#include "runtime/options.h"
#include "runtime/params_hash.h"
#include "runtime/rate.h"
#include "runtime/report.h"
#include "tests/check.h"
#include "tests/runtime/builder.h"

static zinf_status parse(zinf_run_options *o, zinf_error *err, const char *const *words)
{
    char *argv[16] = {0};
    int n = 0;

    while (words[n]) {
        argv[n] = (char *)(uintptr_t)words[n];
        n++;
    }
    memset(err, 0, sizeof *err);
    return zinf_run_options_parse(n, argv, o, err);
}

#define WORDS(...) (const char *const[]){"zinf-run", __VA_ARGS__, NULL}

static void options_are_read(void)
{
    zinf_run_options o;
    zinf_error err;

    CHECK(parse(&o, &err, WORDS("p", "--data", "d", "--steps=12", "--engine", "threads",
                                "--sample", "1", "--temperature", "0")) == ZINF_OK);
    CHECK(!strcmp(o.plan, "p") && !strcmp(o.data, "d") && o.steps == 12 && o.steps_given);
    CHECK(o.engine == ZINF_ENGINE_THREADS && o.temperature == 0 && o.val_batches == 20);
    CHECK(o.on_nonfinite == ZINF_ON_NONFINITE_STOP);
    CHECK(parse(&o, &err, WORDS("p", "--on-nonfinite=skip")) == ZINF_OK);
    CHECK(o.on_nonfinite == ZINF_ON_NONFINITE_SKIP);
    CHECK(parse(&o, &err, WORDS("p", "--help")) == ZINF_OK && o.help);
}

static void wrong_options_are_the_users_fault(void)
{
    static const struct {
        const char *words[8], *text;
    } cases[] = {
        {{"zinf-run"}, "no plan given"},
        {{"zinf-run", "p", "q"}, "two plans"},
        {{"zinf-run", "p", "--data", "a", "--steps", "1", "--data=b"}, "--data is given twice"},
        {{"zinf-run", "p", "--steps", "1", "--steps", "1"}, "--steps is given twice"},
        {{"zinf-run", "p", "--dta", "x"}, "the nearest is --data"},
        {{"zinf-run", "p", "--stesp", "1"}, "the nearest is --steps"},
        {{"zinf-run", "p", "--data"}, "needs TRAIN"},
        {{"zinf-run", "p", "--steps", "-1"}, "whole number"},
        {{"zinf-run", "p", "--steps", "1.5"}, "whole number"},
        {{"zinf-run", "p", "--steps", "99999999999999999999"}, "whole number"},
        {{"zinf-run", "p", "--temperature", "nan"}, "from 0 to 1000"},
        {{"zinf-run", "p", "--eval", "e", "--temperature", "1"}, "needs --sample"},
        {{"zinf-run", "p", "--prompt", "x", "--sample", "0"}, "--prompt needs --sample"},
        {{"zinf-run", "p", "--temperature", "0.8"}, "--temperature needs --sample"},
        {{"zinf-run", "p", "--val-batches", "20"}, "--val-batches needs --val"},
        {{"zinf-run", "p", "--engine", "fast"}, "auto|uring|threads"},
        {{"zinf-run", "p", "--on-nonfinite", "go"}, "stop|skip"},
        {{"zinf-run", "p", "--export-dtype", "fp32"}, "--export-dtype needs --export"},
        {{"zinf-run", "p", "--export-shard", "5000000000"}, "--export-shard needs --export"},
        {{"zinf-run", "p", "--export", "x", "--export-shard", "0"}, "--export-shard 0"},
        {{"zinf-run", "p", "--export", "x", "--export-dtype", "fp8"}, "fp32|bf16"},
        {{"zinf-run", "p", "--export-shard", "x"}, "whole number"},
        {{"zinf-run", "p", "--init", "some/dir", "--resume", "r"}, "both say where to start"},
        {{"zinf-run", "p", "--init", "random", "--resume", "r"}, "both say where to start"},
        {{"zinf-run", "p", "--save-every", "3"}, "needs --save"},
        {{"zinf-run", "p", "--val-every", "3"}, "needs --val"},
        {{"zinf-run", "p", "--data", ""}, "it is empty"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        zinf_run_options o;
        zinf_error err;
        CHECK_MESSAGE(parse(&o, &err, cases[i].words) == ZINF_BAD_INPUT, "case %zu", i);
        CHECK_MESSAGE(strstr(err.text, cases[i].text), "%s", err.text);
    }
}

static void numbers_of_options_are_typed_and_ranged(void)
{
    static const char *const counts[] = {"--val-every", "--val-batches", "--steps", "--save-every",
                                         "--sample", "--export-shard"};
    static const char *const bad[] = {"1e8", "1.5", "-1", "NaN", "nan", "inf", "1e30", "-0", "+1",
                                      "", " 1", "1 ", "0x10", "1000000000001",
                                      "18446744073709551617"};
    static const char *const bad_reals[] = {"-1", "-1e-9", "NaN", "inf", "1e30", "1000.1", "", "x",
                                            "1 ", "1e400"};
    zinf_run_options o;
    zinf_error err;

    for (size_t k = 0; k < sizeof counts / sizeof *counts; k++)
        for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
            CHECK(parse(&o, &err, WORDS("p", counts[k], bad[i])) == ZINF_BAD_INPUT);
            CHECK_MESSAGE(strstr(err.text, counts[k]) &&
                          strstr(err.text, "a whole number from 0 to 1e12"), "%s", err.text);
        }
    for (size_t i = 0; i < sizeof bad_reals / sizeof *bad_reals; i++) {
        CHECK(parse(&o, &err, WORDS("p", "--temperature", bad_reals[i])) == ZINF_BAD_INPUT);
        CHECK_MESSAGE(strstr(err.text, "--temperature") && strstr(err.text, "from 0 to 1000"),
                      "%s", err.text);
    }
}

static void the_rate_warms_up_and_falls_as_a_cosine(void)
{
    const zinf_job_info job = {.lr = 1, .min_lr = 0.1, .warmup = 4, .steps = 12, .schedule = 1};
    zinf_job_info constant = job;

    constant.schedule = 0;
    CHECK(zinf_learning_rate(&job, 0) == 0.25 && zinf_learning_rate(&job, 3) == 1);
    CHECK(zinf_learning_rate(&job, 4) == 1);
    CHECK(fabs(zinf_learning_rate(&job, 8) - 0.55) < 1e-15); /* half way: the mean */
    CHECK(fabs(zinf_learning_rate(&job, 6) - (0.1 + 0.45 * (1 + sqrt(0.5)))) < 1e-15);
    CHECK(zinf_learning_rate(&job, 12) == 0.1 && zinf_learning_rate(&job, 1000) == 0.1);
    CHECK(zinf_learning_rate(&constant, 1) == 0.5 && zinf_learning_rate(&constant, 1000) == 1);
}

static void the_hash_depends_on_no_cut(void)
{
    zinf_plan plan = builder_new();
    zinf_params_hash *hash = NULL;
    zinf_error err = {0};
    uint64_t whole, cut, changed;
    float values[40];

    builder_tensor(&plan, "a", 5, 4, ZINF_INIT_ZERO, 0);
    builder_tensor(&plan, "b", 20, 1, ZINF_INIT_ZERO, 0);
    for (int i = 0; i < 40; i++)
        values[i] = (float)i;
    CHECK(zinf_params_hash_open(&plan, &hash, &err) == ZINF_OK);
    zinf_params_hash_put(hash, 0, 0, 20, values);
    zinf_params_hash_put(hash, 1, 0, 20, values + 20);
    CHECK(zinf_params_hash_digest(hash, &whole, &err) == ZINF_OK);
    zinf_params_hash_reset(hash);
    zinf_params_hash_put(hash, 1, 0, 7, values + 20);
    zinf_params_hash_put(hash, 0, 0, 4, values);
    CHECK(zinf_params_hash_digest(hash, &cut, &err) == ZINF_WRONG_RESULT); /* not complete */
    memset(&err, 0, sizeof err);
    zinf_params_hash_put(hash, 0, 4, 16, values + 4);
    zinf_params_hash_put(hash, 1, 7, 13, values + 27);
    CHECK(zinf_params_hash_digest(hash, &cut, &err) == ZINF_OK && cut == whole);
    zinf_params_hash_reset(hash);
    values[39] = 0;
    zinf_params_hash_put(hash, 0, 0, 20, values);
    zinf_params_hash_put(hash, 1, 0, 20, values + 20);
    CHECK(zinf_params_hash_digest(hash, &changed, &err) == ZINF_OK && changed != whole);
    zinf_params_hash_close(hash);
    zinf_plan_free(&plan);
}

static void no_error_has_what_a_terminal_would_obey(void)
{
    zinf_error err = {0};

    zinf_fail(&err, ZINF_BAD_INPUT, "\"%s\" is no file", "a\x1b[2J\nb\x7f\t\xc3\xa9");
    CHECK(!strcmp(err.text, "\"a?[2J?b??\xc3\xa9\" is no file"));
    /* C1, as UTF-8, as a byte, in what is longer than it need be; not as a part of a character */
    char text[] = "\xc2\x9b" "31m \x9b \xc2\x80 \xc2\xa0 \xc3\x9b \xe2\x80\x9b \xf0\x9f\x98\x80 "
                  "\xe0\x80\x9b \xe2\x80 \xe9";
    CHECK(zinf_has_control(text, sizeof text));
    zinf_plain_text(text);
    CHECK(!zinf_has_control(text, sizeof text) && !zinf_has_control("", 0));
    CHECK(zinf_has_control("a\0\x9b", 3) && !zinf_has_control("a\0\x9b", 2));
    CHECK_MESSAGE(!strcmp(text, "?31m ? ? \xc2\xa0 \xc3\x9b \xe2\x80\x9b \xf0\x9f\x98\x80 "
                                "\xe0?? \xe2? \xe9"), "%s", text);
}

static void logged_numbers_read_back_to_the_same_bits(void)
{
    const zinf_step_report step = {.step = 3, .loss = 1.0 / 3, .lr = 6e-4, .norm = NAN,
                                   .step_s = 0.1};
    zinf_error err = {0};
    char line[1024];
    FILE *log = tmpfile();

    CHECK(log && zinf_log_step(log, "log", &step, &err) == ZINF_OK);
    rewind(log);
    CHECK(fgets(line, sizeof line, log));
    fclose(log);
    CHECK(strtod(strstr(line, "\"loss\": ") + 8, NULL) == step.loss);
    CHECK(strtod(strstr(line, "\"lr\": ") + 6, NULL) == step.lr);
    CHECK(strstr(line, "\"grad_norm\": null") && line[strlen(line) - 1] == '\n');
}

int main(void)
{
    RUN(options_are_read);
    RUN(wrong_options_are_the_users_fault);
    RUN(numbers_of_options_are_typed_and_ranged);
    RUN(the_rate_warms_up_and_falls_as_a_cosine);
    RUN(the_hash_depends_on_no_cut);
    RUN(no_error_has_what_a_terminal_would_obey);
    RUN(logged_numbers_read_back_to_the_same_bits);
    return check_finish();
}
