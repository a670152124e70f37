/* tests/memory/allocations.c - between begin and end of a step nothing is allocated, by anybody.
 *
 * This program defines malloc and its kin, mmap, munmap and pthread_create, so that every thread
 * and every library in it (libgomp, liburing) goes through the counters here. Counting
 * begins after two steps and lasts from zinf_executor_run's call to its return.
 *
 * usage: allocations ZINF_PLAN
 */
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/executor.h"
#include "tests/check.h"

#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
#define SANITIZED 1 /* the sanitizer has these functions to itself */
#else
#define SANITIZED 0
#endif

extern char **environ;
static const char *zinf_plan_command;

/* ---- counting ---- */

enum { KEPT = 2, DEPTH = 10 };

static atomic_bool counting;
static atomic_int n_calls;
static void *traces[KEPT][DEPTH];
static int depths[KEPT];
static const char *names[KEPT];

static void count(const char *name)
{
    if (!atomic_load_explicit(&counting, memory_order_relaxed))
        return;
    const int n = atomic_fetch_add(&n_calls, 1);
    if (n < KEPT) {
        names[n] = name;
        depths[n] = backtrace(traces[n], DEPTH);
    }
}

#if !SANITIZED
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t n, size_t bytes);
void *__libc_realloc(void *memory, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);
void __libc_free(void *memory);

void *malloc(size_t bytes)
{
    count("malloc");
    return __libc_malloc(bytes);
}

void *calloc(size_t n, size_t bytes)
{
    count("calloc");
    return __libc_calloc(n, bytes);
}

void *realloc(void *memory, size_t bytes)
{
    count("realloc");
    return __libc_realloc(memory, bytes);
}

void *memalign(size_t alignment, size_t bytes)
{
    count("memalign");
    return __libc_memalign(alignment, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
    count("aligned_alloc");
    return __libc_memalign(alignment, bytes);
}

int posix_memalign(void **ret_memory, size_t alignment, size_t bytes)
{
    count("posix_memalign");
    *ret_memory = __libc_memalign(alignment, bytes);
    return *ret_memory ? 0 : ENOMEM;
}

void free(void *memory)
{
    if (memory)
        count("free");
    __libc_free(memory);
}

/* The next definition of a function that is defined here. */
static void *next_of(const char *name)
{
    return dlsym(RTLD_NEXT, name);
}

void *mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    count("mmap");
    return (void *)syscall(SYS_mmap, address, bytes, protection, flags, fd, offset);
}

int munmap(void *address, size_t bytes)
{
    count("munmap");
    return (int)syscall(SYS_munmap, address, bytes);
}

int pthread_create(pthread_t *restrict thread, const pthread_attr_t *restrict attributes,
                   void *(*start)(void *), void *restrict argument)
{
    static int (*create)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);

    count("pthread_create");
    if (!create)
        *(void **)&create = next_of("pthread_create");
    return create(thread, attributes, start, argument);
}
#endif

/* ---- plans and runs ---- */

static const char model[] =
    "model: {name: nano, family: gpt2, layers: 2, hidden: 192, heads: 2, vocab: 256,\n"
    "        context: 128, tied_embeddings: true}\n"
    "training:\n"
    "  sequence: 128\n"
    "  global_batch: 4\n"
    "  precision: %s\n"
    "  optimizer: {type: adamw, lr: 3e-3, betas: [0.9, 0.95], eps: 1e-8, weight_decay: 0.1}\n"
    "  schedule: {type: cosine, warmup: 5, steps: 12, min_lr: 1e-4}\n"
    "  clip: 1.0\n"
    "  seed: 1337\n";
static const char cluster[] =
    "cluster:\n"
    "  name: counted\n"
    "  nodes: 1\n"
    "  devices_per_node: 1\n"
    "  device: {kind: cpu, name: counted, memory: 64 MiB, peak: {bf16: 350 GFLOP/s, fp32: 180 "
    "GFLOP/s}, bandwidth: 25 GB/s}\n"
    "  host: {memory: 2 GiB, cores: 2, bandwidth: 25 GB/s, adam: 5e8 params/s}\n"
    "  nvme: {paths: [/tmp], capacity: 4 GiB, read: 1 GB/s, write: 1 GB/s, latency: 100 us}\n"
    "  links: {host_device: {per_device: 8 GB/s, latency: 5 us}}\n"
    "  unified: false\n"
    "  source: {default: a choice}\n";

static char directory[256];

static void in_directory(const char *name, char ret_path[512])
{
    snprintf(ret_path, 512, "%s/%s", directory, name);
}

static void make_plan(const char *precision, const char *const *settings, zinf_plan *ret_plan)
{
    char model_path[512], cluster_path[512], plan_path[512];
    const char *args[40] = {zinf_plan_command, model_path, cluster_path, "-o", plan_path};
    int n = 5, status;
    zinf_error err = {0};
    pid_t pid;

    in_directory("model.yaml", model_path);
    in_directory("cluster.yaml", cluster_path);
    in_directory("plan", plan_path);
    FILE *out = fopen(model_path, "w");
    CHECK(out);
    fprintf(out, model, precision);
    fclose(out);
    out = fopen(cluster_path, "w");
    CHECK(out);
    fputs(cluster, out);
    fclose(out);
    for (; *settings; settings++) {
        args[n++] = "--set";
        args[n++] = *settings;
    }
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    CHECK(posix_spawn(&pid, zinf_plan_command, &actions, NULL, (char *const *)args, environ) == 0);
    posix_spawn_file_actions_destroy(&actions);
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    CHECK_MESSAGE(zinf_plan_read(plan_path, ret_plan, &err) == ZINF_OK, "%s", err.text);
}

static zinf_status batch(void *context, uint64_t n, uint64_t cols, int32_t *ret_tokens,
                         zinf_error *err)
{
    (void)context, (void)err;
    for (uint64_t i = 0; i < n * cols; i++)
        ret_tokens[i] = (int32_t)(i * 37 % 251);
    return ZINF_OK;
}

static void nothing_is_allocated(const char *precision, zinf_engine engine,
                                 const char *const *settings)
{
    zinf_plan plan = {0};
    zinf_executor *executor = NULL;
    zinf_storage *storage = NULL;
    char warning[256] = "";
    zinf_error err = {0};

    if (SANITIZED)
        SKIP("a sanitizer replaces malloc");
    make_plan(precision, settings, &plan);
    if (plan.machine.arena_bytes[ZINF_TIER_NVME]) {
        const zinf_storage_options io = {engine, plan.decisions.io_block_bytes,
                                         plan.decisions.io_depth};
        zinf_storage_open(directory, 0, plan.machine.arena_bytes[ZINF_TIER_NVME], &io, &storage,
                          warning, &err);
        if (err.status == ZINF_MACHINE && engine == ZINF_ENGINE_URING)
            SKIP("%.200s", err.text);
        CHECK_MESSAGE(err.status == ZINF_OK, "%s", err.text);
    }
    const zinf_executor_options options = {.storage = storage, .trace = true};
    CHECK_MESSAGE(zinf_executor_open(&plan, &options, &executor, &err) == ZINF_OK, "%s",
                  err.text);
    zinf_env env = {0};
    CHECK_MESSAGE(zinf_executor_run(executor, ZINF_PROGRAM_INIT, &env, &err) == ZINF_OK, "%s",
                  err.text);
    atomic_store(&n_calls, 0);
    for (uint64_t step = 0; step < 5; step++) {
        env = (zinf_env){.step = step, .lr = 1e-3, .batch = batch};
        atomic_store(&counting, step >= 2);
        zinf_executor_run(executor, ZINF_PROGRAM_STEP, &env, &err);
        atomic_store(&counting, false);
        CHECK_MESSAGE(err.status == ZINF_OK, "%s", err.text);
    }
    const int n = atomic_load(&n_calls);
    for (int i = 0; i < n && i < KEPT; i++) {
        char **lines = backtrace_symbols(traces[i], depths[i]);
        printf("# %s\n", names[i]);
        for (int k = 0; lines && k < depths[i]; k++)
            printf("#     %s\n", lines[k]);
        free(lines);
    }
    zinf_executor_close(executor);
    zinf_storage_close(storage);
    zinf_plan_free(&plan);
    CHECK_MESSAGE(n == 0, "%d calls in three steps", n);
}

#define SETTINGS(...) ((const char *const[]){__VA_ARGS__, NULL})
#define ON(tier)                                                                                 \
    "tier.param=" tier, "tier.grad=" tier, "tier.optimizer=" tier, "checkpoint_interval=1",       \
        "tier.checkpoint=" tier

static void a_counted_call_is_seen(void)
{
    if (SANITIZED)
        SKIP("a sanitizer replaces malloc");
    void *volatile memory;

    atomic_store(&n_calls, 0);
    atomic_store(&counting, true);
    memory = malloc(10);
    free(memory);
    char *copy = strdup("a string that the library allocates");
    atomic_store(&counting, false);
    free(copy);
    CHECK(atomic_load(&n_calls) == 3);
}

static void a_step_on_the_device_allocates_nothing(void)
{
    nothing_is_allocated("bf16", ZINF_ENGINE_AUTO, SETTINGS(ON("device"), "micro_batch=2"));
}

static void a_step_in_fp32_allocates_nothing(void)
{
    nothing_is_allocated("fp32", ZINF_ENGINE_AUTO, SETTINGS(ON("host"), "micro_batch=2"));
}

static void a_step_on_nvme_by_io_uring_allocates_nothing(void)
{
    nothing_is_allocated("bf16", ZINF_ENGINE_URING, SETTINGS(ON("nvme"), "micro_batch=1"));
}

static void a_step_on_nvme_by_threads_allocates_nothing(void)
{
    nothing_is_allocated("bf16", ZINF_ENGINE_THREADS, SETTINGS(ON("nvme"), "micro_batch=1"));
}

static void a_step_in_three_tiles_allocates_nothing(void)
{
    nothing_is_allocated("bf16", ZINF_ENGINE_THREADS,
                         SETTINGS(ON("nvme"), "tiles=3", "micro_batch=1"));
}

static void a_step_in_three_tiles_in_fp32_allocates_nothing(void)
{
    nothing_is_allocated("fp32", ZINF_ENGINE_THREADS,
                         SETTINGS(ON("device"), "tiles=3", "micro_batch=1"));
}

static void a_step_with_one_thread_allocates_nothing(void)
{
    nothing_is_allocated("bf16", ZINF_ENGINE_THREADS,
                         SETTINGS(ON("nvme"), "tiles=2", "micro_batch=2", "threads=1"));
}

static void a_step_with_four_threads_allocates_nothing(void)
{
    nothing_is_allocated("bf16", ZINF_ENGINE_THREADS,
                         SETTINGS(ON("device"), "tiles=2", "micro_batch=2", "threads=4"));
}

int main(int argc, char **argv)
{
    const char *base = getenv("TMPDIR");
    void *first[1];

    if (argc != 2) {
        fputs("usage: allocations ZINF_PLAN\n", stderr);
        return 2;
    }
    zinf_plan_command = argv[1];
    (void)backtrace(first, 1); /* its own first call allocates */
    snprintf(directory, sizeof directory, "%s/zinf-allocations-XXXXXX", base ? base : "/tmp");
    if (!mkdtemp(directory)) {
        perror(directory);
        return 1;
    }
    RUN(a_counted_call_is_seen);
    RUN(a_step_on_the_device_allocates_nothing);
    RUN(a_step_in_fp32_allocates_nothing);
    RUN(a_step_on_nvme_by_io_uring_allocates_nothing);
    RUN(a_step_on_nvme_by_threads_allocates_nothing);
    RUN(a_step_in_three_tiles_allocates_nothing);
    RUN(a_step_in_three_tiles_in_fp32_allocates_nothing);
    RUN(a_step_with_one_thread_allocates_nothing);
    RUN(a_step_with_four_threads_allocates_nothing);
    static const char *const ours[] = {"model.yaml", "cluster.yaml", "plan", NULL};
    for (int i = 0; ours[i]; i++) {
        char path[512];
        in_directory(ours[i], path);
        unlink(path);
    }
    rmdir(directory);
    return check_finish();
}
