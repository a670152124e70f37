/* tests/tools/probe.c - zinf-probe --quick: its file is a cluster file that the planner reads, and
 * its errors are the promised exit codes. argv[1] is the program. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/kernels.h"
#include "planner/spec.h"
#include "tests/check.h"

static const char *probe;
static char folder[200], output[300], errors[300];

/* Runs the program with these options; its exit code. */
static int run(const char *options)
{
    char command[2400];

    snprintf(command, sizeof command, "'%s' %s > '%s/stdout' 2> '%s'", probe, options, folder,
             errors);
    int status = system(command);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static bool errors_contain(const char *text)
{
    static char all[16384];
    FILE *file = fopen(errors, "r");

    memset(all, 0, sizeof all);
    if (file) {
        all[fread(all, 1, sizeof all - 1, file)] = 0;
        fclose(file);
    }
    return strstr(all, text) != NULL;
}

static void the_planner_reads_what_was_measured(void)
{
    char options[900];
    zinf_cluster cluster;
    zinf_error err = {0};
    struct stat left;

    snprintf(options, sizeof options, "--quick --threads 1 --nvme '%s' -o '%s'", folder, output);
    CHECK(run(options) == 0);
    CHECK_MESSAGE(zinf_cluster_read(output, &cluster, &err) == ZINF_OK, "%s", err.text);
    CHECK(cluster.unified);
    CHECK(cluster.host.cores == 1);
    CHECK(cluster.host.memory_bytes > cluster.host.reserve_bytes);
    CHECK(cluster.device.peak_f32 > 1e6 && cluster.device.peak_bf16 > 1e6);
    for (int f32 = 0; f32 < 2; f32++) {
        const zinf_step_rates *step = f32 ? &cluster.device.step_f32 : &cluster.device.step_bf16;
        CHECK(step->forward > 1e6 && step->forward_residual > 1e6 && step->input_gradient > 1e6);
        CHECK(step->weight_gradient > 1e6 && step->weight_gradient_bias > 1e6);
        CHECK(step->classifier > 1e6 && step->attention > 1e6);
        CHECK(step->layernorm_forward > 1e6 && step->layernorm_backward > 1e6);
        CHECK(step->rmsnorm_forward > 1e6 && step->rmsnorm_backward > 1e6 && step->rope > 1e6);
        CHECK(step->gelu_forward > 1e6 && step->gelu_backward > 1e6);
        CHECK(step->swiglu_forward > 1e6 && step->swiglu_backward > 1e6);
    }
    CHECK(cluster.host.sum_of_squares > 1e6 && cluster.host.accumulate > 1e6);
    CHECK(cluster.host.bandwidth > 1e7 && cluster.host.adam > 1e5);
    CHECK(cluster.nvme.present && cluster.nvme.n_paths == 1);
    CHECK(!strcmp(cluster.nvme.paths[0], folder));
    CHECK(cluster.nvme.read > 1e3 && cluster.nvme.write > 1e3);
    CHECK(errors_contain("an update of states in storage reaches"));
    CHECK(cluster.nvme.core > 0); /* 0: not measured */
    CHECK(cluster.nvme.latency > 0);
    CHECK(cluster.nvme.block_bytes % ZINF_PAGE == 0 && cluster.nvme.depth >= 1);
    /* nothing is left in the directory but what this test wrote */
    snprintf(options, sizeof options, "%s/zinf-rank0.nvme", folder);
    CHECK(stat(options, &left) != 0);
}

static void an_emulated_device_has_its_own_memory_and_a_link(void)
{
    char options[700];
    zinf_cluster cluster;
    zinf_error err = {0};

    snprintf(options, sizeof options, "--quick --threads 1 --device-memory '96 MiB' -o '%s'",
             output);
    CHECK(run(options) == 0);
    CHECK_MESSAGE(zinf_cluster_read(output, &cluster, &err) == ZINF_OK, "%s", err.text);
    CHECK(!cluster.unified && !cluster.nvme.present);
    CHECK(cluster.device.memory_bytes == (uint64_t)96 << 20);
    CHECK(cluster.links.host_device_per_device > 1e6);
}

static void an_unknown_option_names_the_nearest_one(void)
{
    CHECK(run("--treads 2") == 2);
    CHECK(errors_contain("did you mean \"--threads\""));
}

static void a_wrong_value_is_refused_with_its_range(void)
{
    CHECK(run("--threads 0") == 2);
    CHECK(errors_contain("from 1 to 4096"));
    CHECK(run("--device-memory 12parsecs") == 2);
    CHECK(run("--device-memory -1GiB") == 2);
    CHECK(run("--device-memory nan") == 2);
    CHECK(run("--nvme") == 2);
}

static void a_directory_that_does_not_exist_is_the_machines_fault(void)
{
    CHECK(run("--quick --nvme /nonexistent") == 4);
    CHECK(errors_contain("\"/nonexistent\""));
}

static void a_failed_run_leaves_an_older_file_alone(void)
{
    char options[700];
    struct stat before, after;
    FILE *file = fopen(output, "w");

    CHECK(file && fputs("older", file) >= 0 && fclose(file) == 0);
    CHECK(stat(output, &before) == 0);
    snprintf(options, sizeof options, "--quick --nvme /nonexistent -o '%s'", output);
    CHECK(run(options) == 4);
    CHECK(stat(output, &after) == 0 && after.st_size == before.st_size);
    CHECK(unlink(output) == 0);
    CHECK(run(options) == 4);
    CHECK(stat(output, &after) != 0);
}

int main(int argc, char **argv)
{
    const char *tmp = getenv("TMPDIR");

    if (argc != 2)
        return 2;
    probe = argv[1];
    snprintf(folder, sizeof folder, "%s/zinf-probe-XXXXXX", tmp ? tmp : "/tmp");
    if (!mkdtemp(folder))
        return 4;
    snprintf(output, sizeof output, "%s/cluster.yaml", folder);
    snprintf(errors, sizeof errors, "%s/stderr", folder);

    RUN(the_planner_reads_what_was_measured);
    RUN(an_emulated_device_has_its_own_memory_and_a_link);
    RUN(an_unknown_option_names_the_nearest_one);
    RUN(a_wrong_value_is_refused_with_its_range);
    RUN(a_directory_that_does_not_exist_is_the_machines_fault);
    RUN(a_failed_run_leaves_an_older_file_alone);

    char path[300];
    unlink(output);
    unlink(errors);
    snprintf(path, sizeof path, "%s/stdout", folder);
    unlink(path);
    rmdir(folder);
    return check_finish();
}
