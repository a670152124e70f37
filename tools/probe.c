/* tools/probe.c - zinf-probe: measures this machine and writes its cluster file. Options, what
 * the operating system tells, and the YAML; the measurements are in probe_*.c. */
#include "tools/probe.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "kernels/kernels.h"
#include "runtime/files.h"

static const struct option_row {
    const char *name, *argument, *help;
} option_rows[] = {
    {"-o", "FILE", "write the cluster file there (default: standard output)"},
    {"--nvme", "DIR", "measure storage in DIR; may be repeated (default: no nvme tier)"},
    {"--device-memory", "SIZE",
     "emulate an accelerator with SIZE of memory of its own,\n"
     "                         e.g. 256MiB: the file then says unified: false"},
    {"--threads", "N", "cores to use, 1 to 4096 (default: those this process may run on)"},
    {"--quick", NULL, "smaller arrays and fewer samples: a few seconds, a wider spread"},
    {"--help", NULL, "this text"},
};
enum { N_OPTIONS = sizeof option_rows / sizeof *option_rows };

static void print_help(FILE *out)
{
    fputs("usage: zinf-probe [-o CLUSTER.yaml] [--nvme DIR].. [--device-memory SIZE]\n"
          "                  [--threads N] [--quick]\n\n"
          "Measures this machine through the code that zinf-run uses (products, memory, storage,\n"
          "steps of small models) and writes a cluster file for zinf-plan. Takes a minute; keep\n"
          "the machine idle meanwhile. What was measured is listed on standard error.\n\n",
          out);
    for (int i = 0; i < N_OPTIONS; i++) {
        char left[64];

        snprintf(left, sizeof left, "%s %s", option_rows[i].name,
                 option_rows[i].argument ? option_rows[i].argument : "");
        fprintf(out, "  %-22s %s\n", left, option_rows[i].help);
    }
    fputs("\nExit codes: 0 done, 2 a wrong option, 4 the machine (directory, I/O, memory).\n",
          out);
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Edits (insert, delete, replace) between two words; words longer than 31 are cut. */
static size_t distance(const char *a, const char *b)
{
    size_t row[32], n = least(strlen(b), 31), m = least(strlen(a), 31);

    for (size_t j = 0; j <= n; j++)
        row[j] = j;
    for (size_t i = 1; i <= m; i++) {
        size_t diagonal = row[0];

        row[0] = i;
        for (size_t j = 1; j <= n; j++) {
            size_t change = diagonal + (a[i - 1] != b[j - 1]);

            diagonal = row[j];
            row[j] = least(change, least(row[j], row[j - 1]) + 1);
        }
    }
    return row[n];
}

static zinf_status unknown_option(const char *word, zinf_error *err)
{
    int nearest = 0;

    for (int i = 1; i < N_OPTIONS; i++)
        if (distance(word, option_rows[i].name) < distance(word, option_rows[nearest].name))
            nearest = i;
    return zinf_fail(err, ZINF_BAD_INPUT, "unknown option \"%s\": did you mean \"%s\"? see"
                     " --help", word, option_rows[nearest].name);
}

/* "256MiB", "1.5 GiB", "4 GB", "1048576" */
static zinf_status parse_size(const char *text, uint64_t *ret_bytes, zinf_error *err)
{
    static const struct {
        const char *name;
        double bytes;
    } units[] = {
        {"", 1}, {"B", 1}, {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40},
        {"kB", 1e3}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12},
    };
    char *end;
    double value = strtod(text, &end);

    while (*end == ' ')
        end++;
    if (end != text)
        for (size_t i = 0; i < sizeof units / sizeof *units; i++)
            if (!strcmp(end, units[i].name)) {
                double bytes = value * units[i].bytes;

                if (!(bytes >= 0x1p20 && bytes <= 0x1p50))
                    break;
                *ret_bytes = (uint64_t)bytes / ZINF_PAGE * ZINF_PAGE;
                return ZINF_OK;
            }
    return zinf_fail(err, ZINF_BAD_INPUT, "--device-memory \"%s\": a size from 1 MiB to 1 PiB is"
                     " needed, e.g. 256MiB", text);
}

/* Kept as an absolute path: the plan may be run from another directory. */
static zinf_status add_directory(probe_options *options, const char *path, zinf_error *err)
{
    char *absolute = realpath(path, NULL);
    const char *kept = absolute ? absolute : path; /* measuring tells what is wrong with it */

    if (options->n_directories == ZINF_MAX_PATHS)
        zinf_fail(err, ZINF_BAD_INPUT, "--nvme is given more than %d times", ZINF_MAX_PATHS);
    else if (strlen(kept) >= ZINF_PATH_BYTES || strpbrk(kept, "\"\\\n"))
        zinf_fail(err, ZINF_BAD_INPUT, "--nvme \"%s\": a path shorter than %d bytes without"
                  " quotes, backslashes and newlines is needed", kept, ZINF_PATH_BYTES);
    else
        strcpy(options->directories[options->n_directories++], kept);
    free(absolute);
    return err->status;
}

static zinf_status parse_options(int argc, char **argv, probe_options *options, bool *ret_help,
                                 zinf_error *err)
{
    *ret_help = false;
    for (int i = 1; i < argc; i++) {
        const char *word = argv[i], *value = NULL;
        int row = 0;

        while (row < N_OPTIONS && strcmp(word, option_rows[row].name))
            row++;
        if (row == N_OPTIONS)
            return unknown_option(word, err);
        if (option_rows[row].argument) {
            if (i + 1 == argc)
                return zinf_fail(err, ZINF_BAD_INPUT, "option \"%s\" needs %s: see --help", word,
                                 option_rows[row].argument);
            value = argv[++i];
        }
        if (!strcmp(word, "-o")) {
            options->output = value;
        } else if (!strcmp(word, "--nvme")) {
            if (add_directory(options, value, err))
                return err->status;
        } else if (!strcmp(word, "--device-memory")) {
            if (parse_size(value, &options->device_memory_bytes, err))
                return err->status;
        } else if (!strcmp(word, "--threads")) {
            char *end;
            long n = strtol(value, &end, 10);

            if (end == value || *end || n < 1 || n > 4096)
                return zinf_fail(err, ZINF_BAD_INPUT, "--threads \"%s\": a whole number from 1 to"
                                 " 4096 is needed", value);
            options->n_threads = (int)n;
        } else if (!strcmp(word, "--quick")) {
            options->quick = true;
        } else {
            *ret_help = true;
            return ZINF_OK;
        }
    }
    return ZINF_OK;
}

/* The number after `key` in a file of "key number" lines, or the first word where key is "";
 * UINT64_MAX if there is none. */
static uint64_t number_in(const char *path, const char *key)
{
    FILE *file = fopen(path, "r");
    char line[256];
    uint64_t value = UINT64_MAX;
    size_t n = strlen(key);

    if (!file)
        return UINT64_MAX;
    while (value == UINT64_MAX && fgets(line, sizeof line, file)) {
        char *end;

        if (strncmp(line, key, n))
            continue;
        value = strtoull(line + n, &end, 10);
        if (end == line + n)
            value = UINT64_MAX;
    }
    fclose(file);
    return value;
}

/* What this process may still use: MemAvailable, or less inside a container that is limited. */
static uint64_t available_memory(void)
{
    static const char *const limits[][2] = {
        {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"},
        {"/sys/fs/cgroup/memory/memory.limit_in_bytes",
         "/sys/fs/cgroup/memory/memory.usage_in_bytes"},
    };
    uint64_t kib = number_in("/proc/meminfo", "MemAvailable:");
    uint64_t bytes = kib == UINT64_MAX ? 0 : kib << 10;

    for (int i = 0; i < 2; i++) {
        uint64_t most = number_in(limits[i][0], ""), used = number_in(limits[i][1], "");

        if (most != UINT64_MAX && used != UINT64_MAX && most > used && most - used < bytes)
            bytes = most - used;
    }
    return bytes;
}

static int available_cores(void)
{
    cpu_set_t set;
    uint64_t quota = number_in("/sys/fs/cgroup/cpu.max", "");
    int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;

    /* cpu.max is "quota period", the period 100 ms unless somebody changed it. */
    if (quota != UINT64_MAX && (int)((quota + 99999) / 100000) < n)
        n = (int)((quota + 99999) / 100000);
    return n < 1 ? 1 : n;
}

/* The CPU's name as the kernel prints it, without what YAML could mistake. */
static void cpu_name(char ret_name[ZINF_NAME_BYTES])
{
    FILE *file = fopen("/proc/cpuinfo", "r");
    char line[256];
    size_t n = 0;

    strcpy(ret_name, "cpu");
    while (file && fgets(line, sizeof line, file)) {
        const char *value = strchr(line, ':');

        if (strncmp(line, "model name", 10) || !value)
            continue;
        for (value++; *value && n + 1 < ZINF_NAME_BYTES; value++) {
            bool keep = (*value >= '0' && *value <= '9') || (*value >= 'A' && *value <= 'Z') ||
                        (*value >= 'a' && *value <= 'z');
            if (keep)
                ret_name[n++] = *value;
            else if (n && ret_name[n - 1] != '-')
                ret_name[n++] = '-';
        }
        while (n && ret_name[n - 1] == '-')
            n--;
        ret_name[n] = 0;
        break;
    }
    if (file)
        fclose(file);
}

static void print_size(FILE *out, uint64_t bytes)
{
    if (bytes % (1 << 20) == 0)
        fprintf(out, "%" PRIu64 " MiB", bytes >> 20);
    else if (bytes % (1 << 10) == 0)
        fprintf(out, "%" PRIu64 " KiB", bytes >> 10);
    else
        fprintf(out, "%" PRIu64, bytes);
}

static void write_rate(FILE *out, const char *name, double rate, double scale, const char *unit)
{
    if (rate > 0) /* could not be told: left to the planner */
        fprintf(out, "        %s: %.3f%s\n", name, rate / scale, unit);
}

static void write_rates(FILE *out, const char *precision, const zinf_step_rates *rates)
{
    fprintf(out, "      %s:\n", precision);
#define AS_FLOPS(name, help) write_rate(out, #name, rates->name, 1e9, " GFLOP/s");
#define AS_TOKENS(name, help) write_rate(out, #name, rates->name, 1, "");
#define AS_BYTES(name, help) write_rate(out, #name, rates->name, 1e9, " GB/s");
    ZINF_STEP_RATES(AS_FLOPS, AS_TOKENS, AS_BYTES)
#undef AS_FLOPS
#undef AS_TOKENS
#undef AS_BYTES
}

/* The reserve is what the rest of the machine may grow by meanwhile. */
static void write_cluster(FILE *out, const probe_options *options, uint64_t available_bytes,
                          const probe_compute *compute, const probe_step *step,
                          const probe_nvme *nvme)
{
    uint64_t memory = available_bytes >> 20 << 20;
    uint64_t reserve = memory / 16 >> 20 << 20;
    char name[ZINF_NAME_BYTES], date[32];
    time_t now = time(NULL);
    struct tm tm;

    gmtime_r(&now, &tm);
    strftime(date, sizeof date, "%Y-%m-%d", &tm);
    cpu_name(name);
    fprintf(out, "# Written by zinf-probe: %d threads%s.\n", options->n_threads,
            options->quick ? ", --quick" : "");
    fprintf(out, "cluster:\n  name: this-machine\n  nodes: 1\n  devices_per_node: 1\n");
    fprintf(out, "  device:\n    kind: cpu\n    name: %s\n", name);
    if (options->device_memory_bytes) {
        fputs("    memory: ", out);
        print_size(out, options->device_memory_bytes);
        fputs("\n", out);
    }
    fprintf(out, "    peak: {fp32: %.2f GFLOP/s, bf16: %.2f GFLOP/s}\n",
            compute->peak_f32 / 1e9, compute->peak_bf16 / 1e9);
    fprintf(out, "    bandwidth: %.3f GB/s\n    step:\n", compute->bandwidth / 1e9);
    write_rates(out, "bf16", &step->bf16);
    write_rates(out, "fp32", &step->f32);
    fprintf(out, "  host:\n    memory: ");
    print_size(out, memory);
    fprintf(out, "\n    reserve: ");
    print_size(out, reserve);
    fprintf(out, "\n    cores: %d\n    bandwidth: %.3f GB/s\n    adam: %.3e params/s\n"
            "    sum_of_squares: %.3f GB/s\n    accumulate: %.3f GB/s\n",
            options->n_threads, compute->bandwidth / 1e9, step->adam, step->sum_of_squares / 1e9,
            step->accumulate / 1e9);
    if (options->n_directories) {
        fprintf(out, "  nvme:\n    paths: [");
        for (int i = 0; i < options->n_directories; i++)
            fprintf(out, "%s\"%s\"", i ? ", " : "", options->directories[i]);
        fprintf(out, "]\n    capacity: ");
        print_size(out, nvme->capacity_bytes >> 20 << 20);
        fprintf(out, "\n    read: %.3f GB/s\n    write: %.3f GB/s\n    latency: %.1f us\n",
                nvme->read / 1e9, nvme->write / 1e9, 1e6 * nvme->latency_s);
        if (nvme->core > 0)
            fprintf(out, "    core: %.3f GB/s\n", nvme->core / 1e9);
        fprintf(out, "    block: ");
        print_size(out, nvme->block_bytes);
        fprintf(out, "\n    depth: %" PRIu32 "\n    overlap: %s\n", nvme->depth,
                nvme->overlap ? "true" : "false");
    }
    if (options->device_memory_bytes)
        fprintf(out, "  links:\n    host_device: {per_device: %.3f GB/s, per_node: %.3f GB/s,"
                " latency: %.2f us}\n", compute->copy / 1e9, compute->copy / 1e9,
                1e6 * compute->hand_over_s);
    fprintf(out, "  unified: %s\n", options->device_memory_bytes ? "false" : "true");
    fprintf(out, "  source: {default: measured %s by zinf-probe%s}\n", date,
            options->device_memory_bytes ? ", device.memory: emulated by --device-memory" : "");
}

/* Several paths: a rank uses one, so the slowest bounds it; their space adds up. */
static zinf_status measure_paths(const probe_options *options, probe_nvme *ret_nvme,
                                 zinf_error *err)
{
    for (int i = 0; i < options->n_directories; i++) {
        probe_nvme one;

        if (probe_measure_nvme(options, options->directories[i], &one, err))
            return err->status;
        uint64_t capacity = (i ? ret_nvme->capacity_bytes : 0) + one.capacity_bytes;
        if (i == 0 || one.read + one.write < ret_nvme->read + ret_nvme->write)
            *ret_nvme = one;
        ret_nvme->capacity_bytes = capacity;
    }
    return ZINF_OK;
}

/* True if the file can be written; what is in it stays. ret_new: it did not exist before. */
static bool can_write(const char *path, bool *ret_new)
{
    *ret_new = access(path, F_OK) != 0;
    /* a pipe that nobody reads is an error */
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666);

    return fd >= 0 && close(fd) == 0;
}

static bool write_text(const char *path, const char *text, size_t n)
{
    FILE *out = path ? fopen(path, "we") : stdout;
    bool done = out && fwrite(text, 1, n, out) == n && fflush(out) == 0;

    if (path && out)
        done &= fclose(out) == 0;
    return done;
}

static zinf_status probe(const probe_options *options, zinf_error *err)
{
    const char *path = options->output ? options->output : "standard output";
    uint64_t available_bytes = available_memory();
    probe_compute compute = {0};
    probe_step step = {0};
    probe_nvme nvme = {0};
    double start = probe_now();
    char *text = NULL;
    size_t n = 0;
    bool is_new = false;

    if (available_bytes < (uint64_t)256 << 20)
        return zinf_fail(err, ZINF_MACHINE, "%" PRIu64 " MiB of memory are available, 256 are"
                         " needed to measure it", available_bytes >> 20);
    double load;
    if (getloadavg(&load, 1) == 1 && load > 0.5)
        fprintf(stderr, "zinf-probe: warning: the load is %.1f: other programs are running, and"
                " the numbers will be too low\n", load);
    const zinf_named_file output = {"-o", options->output, true};
    if (zinf_files_spare_checkpoints(&output, 1, err))
        return err->status;
    /* The output file and storage first: what can be wrong is known before the minute is over. */
    if (options->output && !can_write(options->output, &is_new))
        return zinf_fail(err, ZINF_MACHINE, "\"%s\": %s: give -o a file that can be written",
                         path, strerror(errno));
    if (!measure_paths(options, &nvme, err) &&
        !probe_measure_compute(options, available_bytes, &compute, err) &&
        !probe_measure_step(options, available_bytes, &compute, &step, err) &&
        !(options->n_directories &&
          probe_measure_update(options, available_bytes, &compute, &nvme, err))) {
        FILE *out = open_memstream(&text, &n);

        if (out)
            write_cluster(out, options, available_bytes, &compute, &step, &nvme);
        if (!out || fclose(out) != 0 || !write_text(options->output, text, n))
            zinf_fail(err, ZINF_MACHINE, "\"%s\": %s: the cluster file is not complete", path,
                      strerror(errno));
        else
            fprintf(stderr, "measured in %.1f s\n", probe_now() - start);
    }
    if (err->status && is_new)
        unlink(options->output);
    free(text);
    return err->status;
}

int main(int argc, char **argv)
{
    probe_options options = {.n_threads = available_cores()};
    zinf_error err = {0};
    bool help;

    if (!parse_options(argc, argv, &options, &help, &err)) {
        if (help) {
            print_help(stdout);
            return 0;
        }
        probe(&options, &err);
    }
    if (err.status)
        fprintf(stderr, "zinf-probe: %s\n", err.text);
    return (int)err.status;
}
