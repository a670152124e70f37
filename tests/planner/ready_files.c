/* tests/planner/ready_files.c - every file in models/ and plans/clusters/ is read, is called what
 * it says it is, and has the size its name promises.
 */
#include <dirent.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/equations.h"
#include "planner/family.h"
#include "planner/spec.h"
#include "tests/check.h"

static const char *source_root;

/* Calls visit for each *.yaml in the directory; returns how many. */
static unsigned each_yaml(const char *dir, void (*visit)(const char *path, const char *stem))
{
    char path[1024], full[600], stem[256];
    unsigned n = 0;
    struct dirent *entry;

    snprintf(full, sizeof full, "%.500s/%.80s", source_root, dir);
    DIR *stream = opendir(full);
    CHECK_MESSAGE(stream, "cannot open %s", full);
    while ((entry = readdir(stream))) {
        const char *dot = strrchr(entry->d_name, '.');
        if (!dot || strcmp(dot, ".yaml"))
            continue;
        snprintf(path, sizeof path, "%s/%s", full, entry->d_name);
        snprintf(stem, sizeof stem, "%.*s", (int)(dot - entry->d_name), entry->d_name);
        visit(path, stem);
        n++;
    }
    closedir(stream);
    return n;
}

/* The size in a name, "gpt2-xl-1.56b" -> 1.56e9: the last word, but for "-1node". */
static double promised_params(const char *stem)
{
    char name[256];

    snprintf(name, sizeof name, "%.250s", stem);
    char *suffix = strstr(name, "-1node");
    if (suffix)
        *suffix = 0;
    char *dash = strrchr(name, '-'), *end = NULL;
    double value = dash ? strtod(dash + 1, &end) : 0;
    return !end ? 0 : value * (*end == 't' ? 1e12 : *end == 'b' ? 1e9 : *end == 'm' ? 1e6 : 0);
}

static void check_model(const char *path, const char *stem)
{
    zinf_model m;
    zinf_error err = {0};

    CHECK_MESSAGE(!zinf_model_read(path, NULL, &m, NULL, &err), "%s", err.text);
    CHECK_MESSAGE(!strcmp(m.name, stem), "%s is called %s", stem, m.name);
    double promised = promised_params(stem), exact = (double)zinf_model_params(&m);
    double eq1 = zinf_eq1_params((double)m.layers, (double)m.hidden);
    /* The paper names its models by Eq. 1, rounded to two digits; others by all parameters. */
    double params = !strncmp(stem, "paper-", 6) ? eq1 : exact;
    /* Llama's are rounded to one digit by their publisher, 1.24 billion to 1. */
    double tolerance = !strncmp(stem, "llama-3", 7) ? 0.25 : 0.032;
    CHECK_MESSAGE(fabs(params / promised - 1) <= tolerance, "%s has %g parameters", stem, params);
    if (strcmp(m.family, "gpt2"))
        return;
    /* What Eq. 1 leaves out: 13 hd a block, (vocab + context + 2) hd. */
    double rest = 13.0 * (double)m.layers * (double)m.hidden +
        (double)(m.vocab + m.context + 2) * (double)m.hidden;
    CHECK_MESSAGE(fabs(eq1 + rest - exact) <= 1e-15 * exact, "%s: Eq. 1 %.17g + %.17g, exact %.17g",
                  stem, eq1, rest, exact);
}

static void every_model_is_what_its_name_says(void)
{
    CHECK(each_yaml("models", check_model) >= 25);
}

static void check_cluster(const char *path, const char *stem)
{
    zinf_cluster c;
    zinf_error err = {0};

    CHECK_MESSAGE(!zinf_cluster_read(path, &c, &err), "%s", err.text);
    CHECK_MESSAGE(!strcmp(c.name, stem), "%s is called %s", stem, c.name);
    /* bf16 is the default precision of every model. */
    CHECK_MESSAGE(c.device.peak_bf16 > 0, "%s has no bf16", stem);
    CHECK_MESSAGE(c.host.adam <= c.host.bandwidth / 28 * 1.001, "%s: Adam moves 28 bytes a "
                  "parameter, more than the host's memory can", stem);
    CHECK_MESSAGE(c.unified || c.links.host_device_per_node <= c.host.bandwidth,
                  "%s: the link is faster than the host's memory", stem);
}

static void every_cluster_is_readable_and_consistent(void)
{
    CHECK(each_yaml("plans/clusters", check_cluster) >= 10);
}

static void table_1_has_the_papers_batches(void)
{
    static const struct {
        const char *stem;
        uint64_t layers, hidden, global_batch;
    } rows[] = {
        {"paper-t1-10b", 50, 4 * 1024, 128},        {"paper-t1-50b", 62, 8 * 1024, 416},
        {"paper-t1-100b", 125, 8 * 1024, 384},      {"paper-t1-0.5t-1node", 124, 18 * 1024, 128},
        {"paper-t1-1t-1node", 128, 25 * 1024, 112}, {"paper-t1-0.5t", 124, 18 * 1024, 3584},
        {"paper-t1-1t", 128, 25 * 1024, 2560},      {"paper-t1-5t", 174, 48 * 1024, 1536},
        {"paper-t1-10t", 200, 64 * 1024, 1024},     {"paper-t1-20t", 205, 88 * 1024, 512},
    }; /* 20 T: the paper's 640, 1.25 a GPU, are no whole sequences a device without mp */
    for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++) {
        char path[700];
        zinf_model m;
        zinf_error err = {0};
        snprintf(path, sizeof path, "%.500s/models/%s.yaml", source_root, rows[i].stem);
        CHECK_MESSAGE(!zinf_model_read(path, NULL, &m, NULL, &err), "%s", err.text);
        CHECK_MESSAGE(m.layers == rows[i].layers && m.hidden == rows[i].hidden &&
                      m.global_batch == rows[i].global_batch && m.sequence == 1024, "%s",
                      rows[i].stem);
    }
}

static void the_dgx2_is_the_papers(void)
{
    char path[700];
    zinf_cluster c;
    zinf_error err = {0};

    snprintf(path, sizeof path, "%.500s/plans/clusters/dgx2-32.yaml", source_root);
    CHECK_MESSAGE(!zinf_cluster_read(path, &c, &err), "%s", err.text);
    CHECK(c.nodes * c.devices_per_node == 512 && c.device.peak_f16 == 70e12);
    CHECK(c.links.host_device_per_device == 12e9);
    CHECK(c.links.host_device_per_node / 16 == 3e9); /* all 16 at once, Figure 2b */
    CHECK(c.nvme.read / 16 == 1.6e9 && c.nvme.capacity_bytes == 28000000000000);
    CHECK(c.links.inter_node_per_node == 800e9 / 8);
    /* Figure 6a's bounds for one node at 20 bytes a parameter. */
    CHECK(c.host.memory_bytes / 20 == 75000000000);
    CHECK(c.nvme.capacity_bytes / 20 == 1400000000000);
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    source_root = argv[1];
    RUN(every_model_is_what_its_name_says);
    RUN(every_cluster_is_readable_and_consistent);
    RUN(table_1_has_the_papers_batches);
    RUN(the_dgx2_is_the_papers);
    return check_finish();
}
