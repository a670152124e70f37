/* tests/planner/spec.c - the two YAML inputs: cases as text (spec_errors.txt), defaults and units,
 * hostile files. The sweep over every key is in spec_sweep.c.
 */
#include "planner/spec.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "planner/spec_internal.h"
#include "tests/check.h"

static const char *cases_path;

/* ---- cases as text ---- */

static zinf_status parse(bool is_cluster, const char *text, size_t n, zinf_error *err)
{
    zinf_cluster cluster;
    zinf_model model;

    *err = (zinf_error){0};
    return is_cluster ? zinf_cluster_parse("t.yaml", text, n, &cluster, err) :
        zinf_model_parse("t.yaml", text, n, NULL, &model, err);
}

static struct {
    bool is_cluster;
    char name[200], yaml[4096], expected[6][300];
    size_t n_yaml;
    unsigned n_expected;
} one;

static void run_case(void)
{
    zinf_error err;
    zinf_status status = parse(one.is_cluster, one.yaml, one.n_yaml, &err);

    CHECK(one.n_expected > 0);
    if (!strcmp(one.expected[0], "ok")) {
        CHECK_MESSAGE(status == ZINF_OK, "refused: %s", err.text);
        return;
    }
    CHECK_MESSAGE(status == ZINF_BAD_INPUT, "status %d, text \"%s\"", status, err.text);
    for (unsigned i = 0; i < one.n_expected; i++)
        CHECK_MESSAGE(strstr(err.text, one.expected[i]), "got      \"%s\"\n#   expected \"%s\"",
                      err.text, one.expected[i]);
}

static unsigned n_cases;

static void finish_case(void)
{
    if (one.name[0]) {
        check_run(run_case, one.name);
        n_cases++;
    }
    memset(&one, 0, sizeof one);
}

static void run_cases(void)
{
    char line[1024];
    FILE *file = fopen(cases_path, "r");

    if (!file)
        return;
    memset(&one, 0, sizeof one);
    while (fgets(line, sizeof line, file)) {
        char *colon = strstr(line, ": ");
        if (!strncmp(line, "--- ", 4) && colon) {
            finish_case();
            one.is_cluster = !strncmp(line + 4, "cluster", 7);
            colon[strcspn(colon, "\n")] = 0;
            snprintf(one.name, sizeof one.name, "%.190s", colon + 2);
        } else if (!strncmp(line, "> ", 2) && one.n_expected < 6) {
            line[strcspn(line, "\n")] = 0;
            snprintf(one.expected[one.n_expected++], sizeof *one.expected, "%.290s", line + 2);
        } else if (one.name[0] && one.n_yaml + strlen(line) < sizeof one.yaml) {
            memcpy(one.yaml + one.n_yaml, line, strlen(line));
            one.n_yaml += strlen(line);
        }
    }
    fclose(file);
    finish_case();
}

static void all_cases_were_found(void)
{
    CHECK_MESSAGE(n_cases >= 70, "only %u cases in %s", n_cases, cases_path);
}

/* ---- what is accepted, and as what ---- */

static const char small_model[] =
    "model: {family: gpt2, layers: 3, hidden: 64, heads: 4, vocab: 256, context: 128}\n"
    "training: {global_batch: 4}\n";

static void defaults_are_filled_in(void)
{
    zinf_model m;
    zinf_error err = {0};

    CHECK(!zinf_model_parse("t", small_model, strlen(small_model), NULL, &m, &err));
    CHECK(m.kv_heads == 4 && m.head_dim == 16 && m.ffn == 256 && m.sequence == 128);
    CHECK(m.precision == ZINF_BF16 && m.tied_embeddings && m.seed == 1337);
    CHECK(!strcmp(m.optimizer, "adamw") && m.lr == 6e-4 && m.beta1 == 0.9 && m.beta2 == 0.95);
    CHECK(m.eps == 1e-8 && m.weight_decay == 0.1 && m.clip == 1.0);
    CHECK(!strcmp(m.schedule, "cosine") && m.steps == 1000 && m.warmup == 100);
    CHECK(m.min_lr == 6e-4 / 10);
}

static void given_values_are_kept(void)
{
    static const char text[] =
        "model: {name: x, family: gpt2, layers: 3, hidden: 64, heads: 4, ffn: 100, vocab: 256,\n"
        "        context: 128}\n"
        "training:\n  sequence: 64\n  global_batch: 6\n  precision: fp32\n"
        "  seed: 9007199254740992\n"
        "  optimizer: {lr: 0, betas: [0, 0.5], eps: 1e-6, weight_decay: 0}\n"
        "  schedule: {type: constant, warmup: 0, steps: 7, min_lr: 0.0}\n  clip: 0\n";
    zinf_model m;
    zinf_error err = {0};

    CHECK_MESSAGE(!zinf_model_parse("t", text, strlen(text), NULL, &m, &err), "%s", err.text);
    CHECK(!strcmp(m.name, "x") && m.ffn == 100 && m.sequence == 64 && m.global_batch == 6);
    CHECK(m.precision == ZINF_F32 && m.seed == 9007199254740992u && m.lr == 0 && m.beta1 == 0);
    CHECK(m.beta2 == 0.5 && m.eps == 1e-6 && m.weight_decay == 0 && m.clip == 0);
    CHECK(!strcmp(m.schedule, "constant") && m.warmup == 0 && m.steps == 7 && m.min_lr == 0);
}

static void a_llama_is_read_with_its_defaults(void)
{
    static const char text[] =
        "model: {family: llama, layers: 3, hidden: 36, heads: 6, kv_heads: 3, head_dim: 10,\n"
        "        vocab: 256, context: 128, tied_embeddings: false%s}\n"
        "training: {global_batch: 4}\n";
    char whole[512];
    zinf_model m;
    zinf_error err = {0};

    snprintf(whole, sizeof whole, text, "");
    CHECK_MESSAGE(!zinf_model_parse("t", whole, strlen(whole), NULL, &m, &err), "%s", err.text);
    CHECK(m.kv_heads == 3 && m.head_dim == 10 && !m.tied_embeddings && !m.qkv_bias);
    CHECK(m.norm_eps == 1e-5 && m.rope_theta == 1e4 && m.rope_scaling.factor == 0);
    CHECK(m.rope_scaling.original_context == 0);
    snprintf(whole, sizeof whole, text, ", rope_scaling: {type: llama3, factor: 8}, norm_eps: 1e-6,"
             " qkv_bias: true, rope_theta: 5e5");
    CHECK_MESSAGE(!zinf_model_parse("t", whole, strlen(whole), NULL, &m, &err), "%s", err.text);
    CHECK(m.norm_eps == 1e-6 && m.rope_theta == 5e5 && m.qkv_bias);
    CHECK(m.rope_scaling.factor == 8 && m.rope_scaling.low_freq_factor == 1);
    CHECK(m.rope_scaling.high_freq_factor == 4 && m.rope_scaling.original_context == 8192);
    CHECK(!zinf_model_parse("t", small_model, strlen(small_model), NULL, &m, &err));
    CHECK(m.norm_eps == 0 && m.rope_theta == 0 && m.rope_scaling.factor == 0); /* gpt2: none */
}

static void a_unified_cpu_takes_the_hosts_memory(void)
{
    static const char text[] =
        "cluster:\n  device: {kind: cpu, peak: {fp32: 0.1 TFLOP/s}}\n"
        "  host: {memory: 0.5 GiB, cores: 2, bandwidth: 28 GB/s}\n";
    zinf_cluster c;
    zinf_error err = {0};

    CHECK_MESSAGE(!zinf_cluster_parse("t", text, strlen(text), &c, &err), "%s", err.text);
    CHECK(c.unified && c.nodes == 1 && c.devices_per_node == 1 && !c.nvme.present);
    CHECK(c.host.memory_bytes == 1ull << 29 && c.device.memory_bytes == 1ull << 29);
    CHECK(c.device.bandwidth == 28e9 && c.host.adam == 1e9 && c.device.peak_f32 == 1e11);
    CHECK(c.device.peak_bf16 == 0 && c.device.step_bf16.attention == 0 && c.nvme.depth == 0);
    CHECK(c.links.host_device_per_device == 0 && !strcmp(c.device.name, "cpu"));
}

static void every_key_of_a_cluster_is_read(void)
{
    static const char text[] =
        "cluster:\n  name: big\n  nodes: 2\n  devices_per_node: 4\n"
        "  device: {kind: cuda, name: X, memory: 32 GiB, reserve: 1 GiB,\n"
        "           step: {bf16: {attention: 5 TFLOP/s, attention_half: 300},\n"
        "                  fp32: {gelu_forward: 20 GB/s}},\n"
        "    peak: {fp16: 70 TFLOP/s, fp32: 14 TFLOP/s, bf16: 60 TFLOP/s}, bandwidth: 900 GB/s}\n"
        "  host: {memory: 1.5 TiB, reserve: 1GB, cores: 48, bandwidth: 100 GB/s,"
        " adam: 2e9 params/s}\n"
        "  nvme: {paths: [/a, /b], capacity: 28 TB, read: 25.6 GB/s, write: 1 GiB/s,\n"
        "    latency: 90 us, block: 64 KiB, depth: 7, overlap: false}\n"
        "  links:\n    host_device: {per_device: 12 GB/s}\n"
        "    intra_node: {per_device: 150 GB/s}\n    inter_node: {per_node: 100 GB/s}\n"
        "  source: {default: paper, nvme: data sheet, host.adam: measured}\n";
    zinf_cluster c;
    zinf_error err = {0};

    CHECK_MESSAGE(!zinf_cluster_parse("t", text, strlen(text), &c, &err), "%s", err.text);
    CHECK(!strcmp(c.name, "big") && c.nodes == 2 && c.devices_per_node == 4 && !c.unified);
    CHECK(!strcmp(c.device.kind, "cuda") && !strcmp(c.device.name, "X"));
    CHECK(c.device.memory_bytes == 32ull << 30 && c.device.reserve_bytes == 1ull << 30);
    CHECK(c.device.peak_f16 == 70e12 && c.device.peak_f32 == 14e12 && c.device.peak_bf16 == 60e12);
    CHECK(c.device.step_bf16.attention == 5e12 && c.device.bandwidth == 900e9);
    CHECK(c.host.memory_bytes == 3ull << 39 && c.host.reserve_bytes == 1000000000);
    CHECK(c.host.cores == 48 && c.host.bandwidth == 100e9 && c.host.adam == 2e9);
    CHECK(c.nvme.present && c.nvme.n_paths == 2 && !strcmp(c.nvme.paths[1], "/b"));
    CHECK(c.nvme.capacity_bytes == 28000000000000 && c.nvme.read == 25.6e9);
    CHECK(c.nvme.write == 0x1p30 && c.nvme.latency == 90e-6 && c.nvme.block_bytes == 65536);
    CHECK(c.nvme.depth == 7 && !c.nvme.overlap);
    CHECK(c.links.host_device_per_device == 12e9 && c.links.host_device_per_node == 48e9);
    CHECK(c.links.host_device_latency == 10e-6 && c.links.intra_node_per_device == 150e9);
    CHECK(c.links.intra_node_latency == 5e-6 && c.links.inter_node_per_node == 100e9);
    CHECK(c.links.inter_node_latency == 10e-6);
}

static void sizes_are_exact(void)
{
    static const struct {
        const char *text;
        uint64_t bytes;
    } rows[] = {
        {"1024", 1024}, {"0", 0}, {"32 GiB", 32ull << 30}, {"64MiB", 64 << 20}, {"1 B", 1},
        {"28 TB", 28000000000000}, {"0.5 GiB", 1 << 29}, {"2.3 kB", 2300}, {"1.1 kB", 1100},
        {"0.1 GB", 100000000}, {"1.4 TB", 1400000000000}, {"1e3 kB", 1000000},
        {"1.5 B", 1}, {"18446744073709551615", UINT64_MAX}, {"4095 PiB", 4095ull << 50},
    };
    for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++) {
        uint64_t bytes = 0;
        zinf_why why;
        CHECK_MESSAGE(zinf_value_bytes(rows[i].text, &bytes, &why) == ZINF_VALUE_OK &&
                      bytes == rows[i].bytes, "\"%s\" gave %llu", rows[i].text,
                      (unsigned long long)bytes);
    }
}

static void numbers_beyond_a_double_are_told_apart(void)
{
    double value = 7;
    zinf_why why;

    CHECK(zinf_value_real("1e400", &value, &why) == ZINF_VALUE_TOO_LARGE);
    CHECK(zinf_value_real("-1e400", &value, &why) == ZINF_VALUE_NEGATIVE);
    CHECK(zinf_value_quantity("1e300 TB/s", ZINF_UNIT_BYTES_PER_S, &value, &why) ==
          ZINF_VALUE_TOO_LARGE);
    CHECK(zinf_value_real("1e400 m", &value, &why) == ZINF_VALUE_BAD && value == 7);
}

static void nothing_is_written_on_failure(void)
{
    unsigned char pattern[sizeof(zinf_model)];
    zinf_model m;
    zinf_error err = {0};

    memset(pattern, 0xA5, sizeof pattern);
    memset(&m, 0xA5, sizeof m);
    CHECK(zinf_model_parse("t", "model: {layers: 2}", 18, NULL, &m, &err) == ZINF_BAD_INPUT);
    CHECK(!memcmp(&m, pattern, sizeof m));
}

static void the_key_table_prints(void)
{
    char *text = NULL;
    size_t n = 0;
    FILE *out = open_memstream(&text, &n);
    const zinf_spec_key *key;

    CHECK(out);
    zinf_spec_print_keys(out);
    fclose(out);
    for (unsigned i = 0; (key = zinf_spec_key_at(i)); i++)
        CHECK_MESSAGE(strstr(text, key->path) && strstr(text, key->help), "%s", key->path);
    CHECK(strstr(text, "number with unit, 1 MiB to 1 PiB; default host.memory if unified"));
    free(text);
}

/* ---- hostile files ---- */

static void check_refused(bool is_cluster, const char *text, size_t n, const char *expected)
{
    zinf_error err;

    CHECK(parse(is_cluster, text, n, &err) == ZINF_BAD_INPUT);
    CHECK_MESSAGE(strstr(err.text, expected), "got \"%s\", expected \"%s\"", err.text, expected);
}

static void an_empty_text_is_refused(void)
{
    check_refused(false, "", 0, "t.yaml:1:1: the file is empty");
    check_refused(true, "", 0, "t.yaml:1:1: the file is empty");
}

static void a_nul_byte_is_refused_where_it_is(void)
{
    check_refused(false, "model:\n  a\0b", 12, "t.yaml:2:4: a NUL byte");
    check_refused(false, "model: {name: \"a\\0b\"}", 21, "t.yaml:1:15: a NUL character");
}

static void binary_garbage_is_refused_where_it_is(void)
{
    check_refused(false, "model: \xff\xfe\x80", 10, "t.yaml:1:8: not valid YAML");
    check_refused(false, "a: b\n\x7f\x01", 7, "t.yaml:2:");
}

static void brackets_without_end_are_refused(void)
{
    enum { N = 1 << 20 };
    char *text = malloc(N);

    CHECK(text);
    memset(text, '[', N);
    check_refused(false, text, N, "nested more than 16 deep");
    memset(text, '{', N);
    check_refused(false, text, N, "t.yaml:1:");
    for (unsigned i = 0; i < N; i++)
        text[i] = i % 2 ? ' ' : '-';
    check_refused(false, text, N, "t.yaml:1:");
    free(text);
}

static void many_values_are_refused(void)
{
    enum { N = 200000 };
    char *text = malloc(N);

    CHECK(text);
    for (unsigned i = 0; i < N; i += 2)
        memcpy(text + i, "1,", 2);
    text[0] = '[';
    text[1] = '1';
    check_refused(false, text, N, "more than 4096 values");
    free(text);
}

static void a_long_value_is_quoted_in_part(void)
{
    char text[3000] = "model: {layers: ";
    zinf_error err;

    memset(text + 16, 'x', 2000);
    memcpy(text + 2016, "}", 2);
    CHECK(parse(false, text, strlen(text), &err) == ZINF_BAD_INPUT);
    CHECK_MESSAGE(strstr(err.text, "got \"xxx") && strlen(err.text) < 200, "%s", err.text);
}

static void an_unreadable_file_names_the_reason(void)
{
    zinf_model m;
    zinf_error err = {0};

    CHECK(zinf_model_read("/nonexistent/m.yaml", NULL, &m, NULL, &err) == ZINF_BAD_INPUT);
    CHECK(!strcmp(err.text, "cannot open \"/nonexistent/m.yaml\": No such file or directory"));
    err = (zinf_error){0};
    CHECK(zinf_cluster_read("/", &(zinf_cluster){0}, &err) == ZINF_BAD_INPUT);
    CHECK(!strcmp(err.text, "\"/\" is not a regular file"));
    char folder[] = "/tmp/zinf-spec-XXXXXX", pipe_path[40];
    CHECK(mkdtemp(folder));
    snprintf(pipe_path, sizeof pipe_path, "%s/pipe", folder);
    CHECK(mkfifo(pipe_path, 0600) == 0);
    err = (zinf_error){0};
    alarm(60); /* nobody writes into it */
    CHECK(zinf_model_read(pipe_path, NULL, &m, NULL, &err) == ZINF_BAD_INPUT);
    alarm(0);
    unlink(pipe_path);
    rmdir(folder);
    CHECK_MESSAGE(strstr(err.text, "is not a regular file"), "%s", err.text);
}

static void a_huge_file_is_refused_unread(void)
{
    const char *tmp = getenv("TMPDIR");
    char dir[256], path[300];
    zinf_model m;
    zinf_error err = {0};

    snprintf(dir, sizeof dir, "%.200s/zinf-spec-XXXXXX", tmp ? tmp : "/tmp");
    CHECK(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/m.yaml", dir);
    FILE *file = fopen(path, "w");
    CHECK(file);
    for (unsigned i = 0; i < 100; i++)
        fputs("# a comment\n", file);
    int truncated = ftruncate(fileno(file), 100 << 20); /* sparse */
    fclose(file);
    zinf_status status = zinf_model_read(path, NULL, &m, NULL, &err);
    unlink(path);
    rmdir(dir);
    CHECK(!truncated);
    CHECK(status == ZINF_BAD_INPUT);
    CHECK_MESSAGE(strstr(err.text, "m.yaml:1:1: larger than 1 MiB"), "%s", err.text);
}

/* ---- --set ---- */

static zinf_status set(const char *assignment, zinf_model *ret_model, zinf_error *err)
{
    const zinf_overrides overrides = {&assignment, 1};

    *err = (zinf_error){0};
    return zinf_model_parse("t.yaml", small_model, strlen(small_model), &overrides, ret_model,
                            err);
}

static void settings_of_the_training_take_the_files_place(void)
{
    zinf_error err;
    zinf_model m;

    CHECK_MESSAGE(!set("training.global_batch=6", &m, &err), "%s", err.text);
    CHECK(m.global_batch == 6);
    CHECK(!set("training.optimizer.lr=1e-3", &m, &err) && m.lr == 1e-3 && m.min_lr == 1e-4);
    CHECK(!set("training.optimizer.betas=[0.8, 0.9]", &m, &err) && m.beta1 == 0.8);
    CHECK(!set("training.precision=fp32", &m, &err) && m.precision == ZINF_F32);
    CHECK(!set("model.name=other one", &m, &err) && !strcmp(m.name, "other one"));
    const char *both[] = {"training.clip=2", "training.clip=3"};
    const zinf_overrides two = {both, 2};
    CHECK(!zinf_model_parse("t", small_model, strlen(small_model), &two, &m, &err) && m.clip == 3);
}

static void bad_settings_of_the_training_are_named(void)
{
    static const char *const cases[][2] = {
        {"training.global_batch=0", "--set: training.global_batch is out of range"},
        {"training.global_batch=", "training.global_batch expects an integer"},
        {"training.global_batch=x y", "training.global_batch expects an integer"},
        {"training.globalbatch=2", "did you mean \"training.global_batch\"?"},
        {"training.optimizer={lr: 1}", "unknown key"},
        {"training.sequence", "expected KEY=VALUE"},
        {"training.sequence=999999", "--set: training.sequence (999999) is longer than"},
        {"training.clip=1\nw: 2", "more than one value"},
        {"training.clip=[", "not valid YAML"},
        {"training.clip=&a 1", "anchors"},
        {"model.layers=3", "only the name can be set here"},
        {"model.nam=3", "unknown key"},
    };
    zinf_error err;
    zinf_model m;

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CHECK_MESSAGE(set(cases[i][0], &m, &err) == ZINF_BAD_INPUT, "%s", cases[i][0]);
        CHECK_MESSAGE(strstr(err.text, cases[i][1]) && strstr(err.text, "--set"), "%s: %s",
                      cases[i][0], err.text);
    }
}

/* Every prefix, and thousands of seeded changes of one to three bytes. */
static void damage(bool is_cluster, const char *good, size_t n)
{
    uint64_t state = 1;
    char text[600];
    zinf_error err;

    CHECK(n < sizeof text && !parse(is_cluster, good, n, &err));
    for (unsigned i = 0; i < 6000; i++) {
        size_t length = i < n ? i : n;
        memcpy(text, good, n);
        for (unsigned j = 0; i >= n && j <= i % 3; j++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            text[(state >> 33) % n] = (char)(state >> 56);
        }
        if (parse(is_cluster, text, length, &err))
            CHECK_MESSAGE(err.status == ZINF_BAD_INPUT && !strncmp(err.text, "t.yaml:", 7) &&
                          !strchr(err.text, '\n'), "%s", err.text);
    }
}

static void damaged_models_fail_with_a_position(void)
{
    damage(false, small_model, strlen(small_model));
}

static void damaged_clusters_fail_with_a_position(void)
{
    static const char text[] =
        "cluster:\n  device: {kind: cpu, peak: {fp32: 100 GFLOP/s}}\n"
        "  host: {memory: 8 GiB, cores: 2, bandwidth: 20 GB/s}\n"
        "  nvme: {paths: [/a, /b], capacity: 1 TB, read: 1 GB/s, write: 1 GB/s, latency: 1 us}\n"
        "  source: {default: a choice, nvme: measured}\n";

    damage(true, text, strlen(text));
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    cases_path = argv[1];
    RUN(defaults_are_filled_in);
    RUN(given_values_are_kept);
    RUN(a_llama_is_read_with_its_defaults);
    RUN(a_unified_cpu_takes_the_hosts_memory);
    RUN(every_key_of_a_cluster_is_read);
    RUN(sizes_are_exact);
    RUN(numbers_beyond_a_double_are_told_apart);
    RUN(nothing_is_written_on_failure);
    RUN(the_key_table_prints);
    RUN(an_empty_text_is_refused);
    RUN(a_nul_byte_is_refused_where_it_is);
    RUN(binary_garbage_is_refused_where_it_is);
    RUN(brackets_without_end_are_refused);
    RUN(many_values_are_refused);
    RUN(a_long_value_is_quoted_in_part);
    RUN(an_unreadable_file_names_the_reason);
    RUN(a_huge_file_is_refused_unread);
    RUN(settings_of_the_training_take_the_files_place);
    RUN(bad_settings_of_the_training_are_named);
    RUN(damaged_models_fail_with_a_position);
    RUN(damaged_clusters_fail_with_a_position);
    run_cases();
    RUN(all_cases_were_found);
    return check_finish();
}
