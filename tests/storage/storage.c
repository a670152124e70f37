/* tests/storage/storage.c - the storage tier on real files, with both engines, and with faults
 * injected between the engine and the rules above it.
 */
#include "runtime/lock_file.h"
#include "runtime/storage_engine.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/check.h"

enum { PAGE = 4096 };

/* ---- allocations are counted by standing in front of the C library's ---- */

#if !defined __SANITIZE_ADDRESS__ && !defined __SANITIZE_THREAD__
extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
static long n_allocations;
void *malloc(size_t n)
{
    __atomic_add_fetch(&n_allocations, 1, __ATOMIC_RELAXED);
    return __libc_malloc(n);
}
void *calloc(size_t n, size_t size)
{
    __atomic_add_fetch(&n_allocations, 1, __ATOMIC_RELAXED);
    return __libc_calloc(n, size);
}
void *realloc(void *p, size_t n)
{
    __atomic_add_fetch(&n_allocations, 1, __ATOMIC_RELAXED);
    return __libc_realloc(p, n);
}
#else
static long n_allocations;
#endif

/* ---- locks are taken by way of here ---- */

static const char *removed_before_lock; /* what its holder removes meanwhile, once */
static int n_interruptions;

int flock(int fd, int operation)
{
    if (n_interruptions && n_interruptions--) {
        errno = EINTR;
        return -1;
    }
    if (removed_before_lock)
        unlink(removed_before_lock);
    removed_before_lock = NULL;
    return (int)syscall(SYS_flock, fd, operation);
}

/* ---- helpers ---- */

static char directory[256];
static char warning[256];
static zinf_error err;

static void clear(void)
{
    memset(&err, 0, sizeof err);
}

static const zinf_engine engines[] = {ZINF_ENGINE_URING, ZINF_ENGINE_THREADS};
enum { N_ENGINES = 2 };

static zinf_storage *open_or_skip(zinf_engine engine, uint64_t bytes, uint64_t block,
                                  uint32_t depth)
{
    zinf_storage_options options = {engine, block, depth};
    zinf_storage *s = NULL;

    clear();
    if (zinf_storage_open(directory, 0, bytes, &options, &s, warning, &err)) {
        if (engine == ZINF_ENGINE_URING && strstr(err.text, "io_uring was asked for"))
            return NULL; /* this machine blocks it; the threads still run */
        CHECK_MESSAGE(0, "%s", err.text);
    }
    return s;
}

static void *pages(uint64_t bytes)
{
    void *p = NULL;
    CHECK(!posix_memalign(&p, PAGE, bytes ? bytes : PAGE));
    return p;
}

static void fill(void *buffer, uint64_t bytes, uint64_t seed)
{
    uint64_t *p = buffer;
    for (uint64_t i = 0; i < bytes / 8; i++)
        p[i] = (seed + i) * 0x9e3779b97f4a7c15u;
}

static bool contains(const char *text)
{
    if (strstr(err.text, text))
        return true;
    printf("# message: %s\n", err.text);
    return false;
}

static void move(zinf_channel *c, bool write, uint64_t offset, uint64_t bytes, void *buffer)
{
    zinf_io io = {.write = write, .offset = offset, .bytes = bytes, .buffer = buffer,
                  .what = "test"};
    CHECK_MESSAGE(!zinf_channel_submit(c, &io, &err), "%s", err.text);
    CHECK_MESSAGE(!zinf_channel_wait(c, &io, &err), "%s", err.text);
}

static int n_descriptors(void)
{
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

/* ---- transfers ---- */

static void what_is_written_reads_back_for_odd_blocks_and_depths(void)
{
    const uint64_t sizes[] = {PAGE, 3 * PAGE, 37 * PAGE, 257 * PAGE};
    const struct { uint64_t block; uint32_t depth; } shapes[] = {
        {PAGE, 1}, {PAGE, 3}, {3 * PAGE, 1}, {5 * PAGE, 7}, {64 * PAGE, 32}, {1 << 30, 1024}};

    for (int e = 0; e < N_ENGINES; e++)
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            zinf_storage *s = open_or_skip(engines[e], 300 * PAGE, shapes[i].block,
                                           shapes[i].depth);
            zinf_channel *c;
            if (!s)
                break;
            CHECK(!zinf_channel_open(s, &c, &err));
            for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
                const uint64_t n = sizes[k], at = (300 - n / PAGE) * PAGE;
                void *out = pages(n), *in = pages(n);
                fill(out, n, n + i);
                move(c, true, at, n, out);
                move(c, false, at, n, in);
                CHECK(!memcmp(out, in, n));
                free(out);
                free(in);
            }
            move(c, false, 0, 0, NULL);
            zinf_channel_close(c);
            zinf_storage_close(s);
        }
}

static void many_transfers_in_flight_finish_in_any_order(void)
{
    enum { N = 50, BYTES = 7 * PAGE };

    for (int e = 0; e < N_ENGINES; e++) {
        zinf_storage *s = open_or_skip(engines[e], N * BYTES, 2 * PAGE, 5);
        zinf_channel *reads, *writes;
        zinf_io ios[N];
        if (!s)
            continue;
        char *out = pages(N * BYTES), *in = pages(N * BYTES);
        fill(out, N * BYTES, 1);
        CHECK(!zinf_channel_open(s, &writes, &err) && !zinf_channel_open(s, &reads, &err));
        for (int pass = 0; pass < 2; pass++) {
            zinf_channel *c = pass ? reads : writes;
            for (int i = 0; i < N; i++) {
                ios[i] = (zinf_io){.write = !pass, .offset = (uint64_t)i * BYTES, .bytes = BYTES,
                                   .buffer = (pass ? in : out) + i * BYTES, .what = "many"};
                CHECK(!zinf_channel_submit(c, &ios[i], &err));
            }
            while (!zinf_channel_done(c, &ios[N / 2]))
                ;
            for (int i = N - 1; i >= 0; i--) {
                CHECK(!zinf_channel_wait(c, &ios[i], &err));
                CHECK(zinf_channel_done(c, &ios[i]) && ios[i].done_bytes == BYTES);
            }
        }
        CHECK(!memcmp(in, out, N * BYTES));
        zinf_channel_close(reads);
        zinf_channel_close(writes);
        zinf_storage_close(s);
        free(in);
        free(out);
    }
}

static void close_waits_for_what_is_in_flight(void)
{
    for (int e = 0; e < N_ENGINES; e++) {
        zinf_storage *s = open_or_skip(engines[e], 256 * PAGE, 4 * PAGE, 4);
        zinf_channel *c;
        if (!s)
            continue;
        char *out = pages(256 * PAGE), *in = pages(256 * PAGE);
        fill(out, 256 * PAGE, 3);
        zinf_io io = {.write = true, .bytes = 256 * PAGE, .buffer = out, .what = "left"};
        CHECK(!zinf_channel_open(s, &c, &err) && !zinf_channel_submit(c, &io, &err));
        zinf_channel_close(c);
        CHECK(io.done_bytes == io.bytes);
        CHECK(!zinf_channel_open(s, &c, &err));
        move(c, false, 0, 256 * PAGE, in);
        CHECK(!memcmp(in, out, 256 * PAGE));
        zinf_channel_close(c);
        zinf_storage_close(s);
        free(in);
        free(out);
    }
}

static void a_thousand_operations_open_and_allocate_nothing(void)
{
    for (int e = 0; e < N_ENGINES; e++) {
        zinf_storage *s = open_or_skip(engines[e], 16 * PAGE, 2 * PAGE, 4);
        zinf_channel *c;
        if (!s)
            continue;
        void *buffer = pages(16 * PAGE);
        CHECK(!zinf_channel_open(s, &c, &err));
        move(c, true, 0, 16 * PAGE, buffer);
        const int before = n_descriptors();
        const long allocations = n_allocations;
        for (int i = 0; i < 1000; i++)
            move(c, i % 2, (uint64_t)(i % 8) * PAGE, (uint64_t)(1 + i % 8) * PAGE, buffer);
        CHECK_MESSAGE(n_allocations == allocations, "%ld allocations",
                      n_allocations - allocations);
        CHECK(n_descriptors() == before);
        zinf_channel_close(c);
        zinf_storage_close(s);
        free(buffer);
    }
}

static void a_misaligned_or_outside_transfer_is_refused(void)
{
    zinf_storage *s = open_or_skip(ZINF_ENGINE_AUTO, 16 * PAGE, PAGE, 4);
    zinf_channel *c;
    char *buffer = pages(16 * PAGE);
    const zinf_io bad[] = {
        {.offset = 512, .bytes = PAGE, .buffer = buffer},
        {.bytes = PAGE + 1, .buffer = buffer},
        {.bytes = PAGE, .buffer = buffer + 64},
        {.offset = 15 * PAGE, .bytes = 2 * PAGE, .buffer = buffer},
        {.offset = UINT64_MAX - PAGE + 1, .bytes = 2 * PAGE, .buffer = buffer},
    };

    CHECK(!zinf_channel_open(s, &c, &err));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        zinf_io io = bad[i];
        io.what = "a bias";
        clear();
        CHECK(zinf_channel_submit(c, &io, &err) == ZINF_WRONG_RESULT && contains("a bias"));
    }
    zinf_channel_close(c);
    zinf_storage_close(s);
    free(buffer);
}

/* ---- the file ---- */

static void a_file_truncated_during_the_run_ends_it(void)
{
    for (int e = 0; e < N_ENGINES; e++)
        for (int write = 0; write < 2; write++) {
            zinf_storage *s = open_or_skip(engines[e], 64 * PAGE, 4 * PAGE, 4);
            zinf_channel *c;
            if (!s)
                continue;
            void *buffer = pages(64 * PAGE);
            CHECK(!zinf_channel_open(s, &c, &err));
            move(c, true, 0, 64 * PAGE, buffer);
            CHECK(!truncate(zinf_storage_path(s), 10 * PAGE));
            zinf_io io = {.write = write, .offset = 8 * PAGE, .bytes = 56 * PAGE,
                          .buffer = buffer, .what = "h.3.mlp.c_fc.weight optimizer"};
            CHECK(zinf_channel_submit(c, &io, &err) == ZINF_MACHINE);
            CHECK(contains("h.3.mlp.c_fc.weight optimizer") && contains("has 40960 bytes"));
            CHECK(contains("expected 262144") && contains(zinf_storage_path(s)));
            CHECK(contains("offset 32768") && contains("length 229376"));
            zinf_channel_close(c);
            zinf_storage_close(s);
            free(buffer);
        }
}

static void a_second_run_is_refused_by_the_pid_of_the_first(void)
{
    zinf_storage_options options = {ZINF_ENGINE_AUTO, PAGE, 4};
    zinf_storage *first = open_or_skip(ZINF_ENGINE_AUTO, 4 * PAGE, PAGE, 4), *second = NULL;
    char pid[64];

    snprintf(pid, sizeof pid, "process %ld ", (long)getpid());
    CHECK(zinf_storage_open(directory, 0, 4 * PAGE, &options, &second, warning, &err) ==
          ZINF_MACHINE);
    CHECK(!second && contains(pid) && contains("in use"));
    CHECK(!access(zinf_storage_path(first), F_OK)); /* the first one's file is untouched */
    clear();
    CHECK(!zinf_storage_open(directory, 1, 4 * PAGE, &options, &second, warning, &err));
    zinf_storage_close(second); /* another rank of the same run */
    zinf_storage_close(first);
    first = open_or_skip(ZINF_ENGINE_AUTO, 4 * PAGE, PAGE, 4);
    zinf_storage_close(first);
}

static void a_lock_is_worth_nothing_once_its_file_is_removed(void)
{
    char path[300];
    int first = -1, second = -1;

    snprintf(path, sizeof path, "%s/a.lock", directory);
    clear();
    removed_before_lock = path; /* opened before the holder removed it, locked after */
    n_interruptions = 2;
    CHECK_MESSAGE(!zinf_lock_file_take(AT_FDCWD, path, "test", "it", &first, &err), "%s",
                  err.text);
    CHECK(access(path, F_OK) == 0); /* so that others meet at the same file */
    CHECK(zinf_lock_file_take(AT_FDCWD, path, "test", "it", &second, &err) == ZINF_MACHINE);
    CHECK(contains("in use by process"));
    zinf_lock_file_release(AT_FDCWD, path, first);
    CHECK(access(path, F_OK) == -1);
    clear();
    CHECK(!zinf_lock_file_take(AT_FDCWD, path, "test", "it", &first, &err));
    unlink(path); /* a stranger did, and another process took the place */
    CHECK(!zinf_lock_file_take(AT_FDCWD, path, "test", "it", &second, &err));
    CHECK(zinf_lock_file_take(AT_FDCWD, directory, "test", "here", &(int){-1}, &err) ==
          ZINF_MACHINE);
    CHECK(contains(" of \"here\": Is a directory")); /* a name may say nothing of where it is */
    zinf_lock_file_release(AT_FDCWD, path, first);
    CHECK(access(path, F_OK) == 0); /* the second's */
    zinf_lock_file_release(AT_FDCWD, path, second);
    CHECK(access(path, F_OK) == -1);
}

static void close_leaves_nothing_behind(void)
{
    zinf_storage *s = open_or_skip(ZINF_ENGINE_AUTO, 4 * PAGE, PAGE, 4);
    int n = 0;

    zinf_storage_close(s);
    DIR *d = opendir(directory);
    for (struct dirent *entry; (entry = readdir(d));)
        n += entry->d_name[0] != '.';
    closedir(d);
    CHECK(n == 0);
}

static void a_file_that_no_run_has_left_is_not_replaced(void)
{
    const zinf_storage_options options = {ZINF_ENGINE_THREADS, PAGE, 4};
    char path[300], text[8] = "";
    zinf_storage *s = NULL;

    snprintf(path, sizeof path, "%s/zinf-rank0.nvme", directory);
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL, 0600);
    CHECK(fd >= 0 && write(fd, "mine", 4) == 4);
    clear();
    CHECK(zinf_storage_open(directory, 0, PAGE, &options, &s, warning, &err) == ZINF_BAD_INPUT);
    CHECK(contains(path) && contains("no run has left it"));
    close(fd);
    fd = open(path, O_RDONLY);
    CHECK(fd >= 0 && read(fd, text, 4) == 4 && !strcmp(text, "mine"));
    close(fd);
    unlink(path);
    snprintf(path, sizeof path, "%s/zinf-rank0.lock", directory);
    CHECK(access(path, F_OK));
}

static void the_file_of_a_killed_run_is_replaced(void)
{
    int ready[2], status;
    char byte;

    CHECK(!pipe(ready));
    pid_t child = fork();
    if (!child) {
        zinf_storage *s;
        zinf_channel *c;
        zinf_storage_options options = {ZINF_ENGINE_THREADS, PAGE, 4};
        void *buffer = NULL;
        if (zinf_storage_open(directory, 0, 64 * PAGE, &options, &s, warning, &err) ||
            zinf_channel_open(s, &c, &err) || posix_memalign(&buffer, PAGE, 64 * PAGE))
            _exit(1);
        memset(buffer, 0x5a, 64 * PAGE);
        zinf_io io = {.write = true, .bytes = 64 * PAGE, .buffer = buffer, .what = "old"};
        if (zinf_channel_submit(c, &io, &err) || zinf_channel_wait(c, &io, &err))
            _exit(1);
        if (write(ready[1], "x", 1) != 1)
            _exit(1);
        for (;;)
            pause();
    }
    close(ready[1]);
    CHECK(read(ready[0], &byte, 1) == 1);
    close(ready[0]);
    clear();
    zinf_storage *s = NULL;
    zinf_storage_options options = {ZINF_ENGINE_AUTO, PAGE, 4};
    char pid[64];
    snprintf(pid, sizeof pid, "process %ld ", (long)child);
    CHECK(zinf_storage_open(directory, 0, PAGE, &options, &s, warning, &err) && contains(pid));
    kill(child, SIGKILL);
    CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status));

    s = open_or_skip(ZINF_ENGINE_AUTO, 8 * PAGE, PAGE, 4);
    zinf_channel *c;
    char *buffer = pages(8 * PAGE);
    struct stat st;
    CHECK(!stat(zinf_storage_path(s), &st) && st.st_size == 8 * PAGE);
    CHECK(!zinf_channel_open(s, &c, &err));
    move(c, false, 0, 8 * PAGE, buffer);
    for (int i = 0; i < 8 * PAGE; i++)
        CHECK(buffer[i] == 0); /* nothing of the old run can be read */
    zinf_channel_close(c);
    zinf_storage_close(s);
    free(buffer);
}

static void a_bad_directory_or_option_is_one_clear_sentence(void)
{
    char path[300];
    zinf_storage *s = NULL;
    zinf_storage_options options = {ZINF_ENGINE_AUTO, PAGE, 4};

    snprintf(path, sizeof path, "%s/missing", directory);
    clear();
    CHECK(zinf_storage_open(path, 0, PAGE, &options, &s, warning, &err) == ZINF_BAD_INPUT);
    CHECK(contains("does not exist") && contains(path));
    snprintf(path, sizeof path, "%s/file", directory);
    close(open(path, O_CREAT | O_WRONLY, 0600));
    clear();
    CHECK(zinf_storage_open(path, 0, PAGE, &options, &s, warning, &err) == ZINF_BAD_INPUT);
    CHECK(contains("not a directory"));
    unlink(path);
    if (geteuid()) {
        snprintf(path, sizeof path, "%s/closed", directory);
        mkdir(path, 0500);
        clear();
        CHECK(zinf_storage_open(path, 0, PAGE, &options, &s, warning, &err) == ZINF_BAD_INPUT);
        CHECK(contains("not writable"));
        rmdir(path);
    }
    const zinf_storage_options bad[] = {{ZINF_ENGINE_AUTO, 0, 4}, {ZINF_ENGINE_AUTO, 4097, 4},
                                        {ZINF_ENGINE_AUTO, 1ull << 31, 4},
                                        {ZINF_ENGINE_AUTO, PAGE, 0},
                                        {ZINF_ENGINE_AUTO, PAGE, 1025}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        clear();
        CHECK(zinf_storage_open(directory, 0, PAGE, &bad[i], &s, warning, &err) ==
              ZINF_BAD_INPUT);
    }
    clear();
    CHECK(zinf_storage_open(directory, 0, 100, &options, &s, warning, &err) == ZINF_BAD_INPUT);
    CHECK(!s);
}

/* Runs test in a child, whose limits, mounts and filters end with it. Its result: 0 passed,
 * 77 skipped. */
static int in_child(int (*test)(void))
{
    int status;

    fflush(stdout);
    pid_t child = fork();
    if (!child) {
        clear();
        status = test();
        if (status && status != 77)
            printf("# message: %s\n", err.text);
        fflush(stdout);
        _exit(status);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
    return WEXITSTATUS(status);
}

static int fill_small_filesystem(void)
{
    zinf_storage_options options = {ZINF_ENGINE_AUTO, PAGE, 4};
    zinf_storage *s = NULL;

    if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        mount("none", directory, "tmpfs", 0, "size=64m"))
        return 77;
    if (zinf_storage_open(directory, 0, 100u << 20, &options, &s, warning, &err) != ZINF_MACHINE)
        return 1;
    if (!strstr(err.text, "needs 104857600 bytes") || !strstr(err.text, "filesystem has 6710"))
        return 2;
    clear();
    if (zinf_storage_open(directory, 0, 32u << 20, &options, &s, warning, &err))
        return 3;
    if (!*warning) /* tmpfs is memory, with direct I/O or without */
        return 4;
    zinf_storage_close(s);
    return 0;
}

static void a_full_disk_is_refused_with_needed_and_free_bytes(void)
{
    int result = in_child(fill_small_filesystem);
    if (result == 77)
        SKIP("mounting a small tmpfs needs root");
    CHECK_MESSAGE(result == 0, "check %d", result);
    /* The disk that is there has a limit, too. */
    zinf_storage_options options = {ZINF_ENGINE_AUTO, PAGE, 4};
    zinf_storage *s = NULL;
    clear();
    CHECK(zinf_storage_open(directory, 0, 1ull << 60, &options, &s, warning, &err) ==
          ZINF_MACHINE);
    CHECK(contains("needs 1152921504606846976 bytes") && contains("bytes free"));
}

static int limit_file_size(void)
{
    zinf_storage_options options = {ZINF_ENGINE_AUTO, PAGE, 4};
    zinf_storage *s = NULL;
    struct rlimit limit = {8 * PAGE, 8 * PAGE};

    setrlimit(RLIMIT_FSIZE, &limit);
    if (zinf_storage_open(directory, 0, 16 * PAGE, &options, &s, warning, &err) != ZINF_MACHINE)
        return 1;
    return !(strstr(err.text, "65536") && strstr(err.text, "32768"));
}

static void a_limit_on_file_size_is_an_error_not_a_signal(void)
{
    CHECK(in_child(limit_file_size) == 0);
}

static int forbid_uring(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_io_uring_setup, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    zinf_storage_options options = {ZINF_ENGINE_AUTO, PAGE, 4};
    zinf_storage *s = NULL;

    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
        return 77;
    if (zinf_storage_open(directory, 0, 4 * PAGE, &options, &s, warning, &err))
        return 1;
    if (strcmp(zinf_storage_engine_name(s), "threads"))
        return 2;
    zinf_storage_close(s);
    options.engine = ZINF_ENGINE_URING;
    if (zinf_storage_open(directory, 0, 4 * PAGE, &options, &s, warning, &err) != ZINF_MACHINE)
        return 3;
    return strstr(err.text, "io_uring was asked for") ? 0 : 4;
}

static void a_machine_without_io_uring_uses_threads_unless_told(void)
{
    int result = in_child(forbid_uring);
    if (result == 77)
        SKIP("no seccomp filters here");
    CHECK_MESSAGE(result == 0, "check %d", result);
}

/* ---- faults between the engine and the rules ---- */

enum { FAULTY_DEPTH = 6 };

static struct {
    const zinf_storage_ops *engine;
    uint64_t count;
    uint32_t period;  /* every period-th block; 0: none */
    int32_t result;   /* what it ends with instead of being moved */
    uint32_t cut;     /* nonzero: it is moved, but only so many bytes */
    bool in_order;    /* blocks are moved one by one, as they were started */
    zinf_block *line[FAULTY_DEPTH];
    int n_line;
} fault;

static int fault_open(uint32_t depth, void **ret_queue)
{
    return fault.engine->open(depth, ret_queue);
}

static void fault_close(void *queue)
{
    fault.engine->close(queue);
}

static void fault_start(void *queue, zinf_block *block)
{
    if (fault.in_order)
        fault.line[fault.n_line++] = block;
    else
        fault.engine->start(queue, block);
}

static int fault_reap(void *queue, bool wait, uint32_t max, zinf_block **ret_blocks)
{
    int n = 0;

    if (!fault.in_order) {
        n = fault.engine->reap(queue, wait, max, ret_blocks);
    } else if (fault.n_line) {
        fault.engine->start(queue, fault.line[0]);
        memmove(fault.line, fault.line + 1, (size_t)--fault.n_line * sizeof *fault.line);
        while (n == 0)
            n = fault.engine->reap(queue, true, 1, ret_blocks);
    }
    for (int i = 0; i < n; i++) {
        zinf_block *block = ret_blocks[i];
        if (!fault.period || ++fault.count % fault.period)
            continue;
        if (fault.cut >= block->bytes)
            continue;
        if (!block->write) /* what was "not moved" must not be there */
            memset((char *)block->buffer + fault.cut, 0xee, block->bytes - fault.cut);
        block->result = fault.cut ? (int32_t)fault.cut : fault.result;
    }
    return n;
}

static const zinf_storage_ops faulty = {"faulty", fault_open, fault_close, fault_start,
                                        fault_reap};

static zinf_channel *open_faulty(int e, zinf_storage **ret_storage)
{
    zinf_storage_options options = {engines[e], 4 * PAGE, FAULTY_DEPTH};
    zinf_channel *c = NULL;

    clear();
    memset(&fault, 0, sizeof fault);
    fault.engine = e ? &zinf_storage_threads : &zinf_storage_uring;
    CHECK(!zinf_storage_open_with(directory, 0, 256 * PAGE, &options, &faulty, ret_storage,
                                  warning, &err));
    if (zinf_channel_open(*ret_storage, &c, &err)) {
        zinf_storage_close(*ret_storage);
        return NULL;
    }
    return c;
}

/* What waits for room is moved while its thread waits for others, and is not waited for. */
static void a_transfer_behind_a_full_queue_is_put_in_line(void)
{
    enum { BYTES = 64 * PAGE, N = 3 };

    for (int e = 0; e < N_ENGINES; e++) {
        zinf_storage *s;
        zinf_channel *c = open_faulty(e, &s);
        zinf_io ios[N];
        if (!c)
            continue;
        fault.in_order = true; /* else a block of the second may end after all of the third */
        char *out = pages(N * BYTES), *in = pages(BYTES);
        fill(out, N * BYTES, 3);
        for (int i = 0; i < N; i++) {
            ios[i] = (zinf_io){.write = true, .offset = (uint64_t)i * BYTES, .bytes = BYTES,
                               .buffer = out + i * BYTES, .what = "in line"};
            CHECK(!zinf_channel_submit(c, &ios[i], &err));
        }
        CHECK(ios[N - 1].submitted_bytes == 0);
        CHECK(!zinf_channel_wait(c, &ios[0], &err) && ios[0].done_bytes == BYTES);
        CHECK(ios[N - 1].submitted_bytes == 0); /* at most what fits behind the first's end */
        while (!zinf_channel_done(c, &ios[1]))
            zinf_channel_advance(c, true);
        CHECK(ios[N - 1].done_bytes == 0);
        CHECK(!zinf_channel_wait(c, &ios[N - 1], &err));
        for (int i = 0; i < N; i++) {
            zinf_io read = {.offset = (uint64_t)i * BYTES, .bytes = BYTES, .buffer = in};
            CHECK(!zinf_channel_submit(c, &read, &err) && !zinf_channel_wait(c, &read, &err));
            CHECK(!memcmp(in, out + i * BYTES, BYTES));
        }
        zinf_channel_advance(c, true); /* of nothing in flight: at once */
        CHECK(!zinf_channel_submit(c, &ios[0], &err) && !zinf_channel_submit(c, &ios[1], &err));
        zinf_channel_close(c);
        CHECK(ios[1].done_bytes == BYTES); /* closing waits for those in line, too */
        zinf_storage_close(s);
        free(in);
        free(out);
    }
}

static void short_and_interrupted_transfers_are_continued(void)
{
    const struct { int32_t result; uint32_t cut, period; } faults[] = {
        {-EINTR, 0, 2}, {-EAGAIN, 0, 3}, {0, PAGE, 1}, {0, PAGE + 512, 2}, {0, 512, 3},
        {0, 2 * PAGE, 2}};

    for (int e = 0; e < N_ENGINES; e++)
        for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
            zinf_storage *s;
            zinf_channel *c = open_faulty(e, &s);
            if (!c)
                continue;
            void *out = pages(256 * PAGE), *in = pages(256 * PAGE);
            fill(out, 256 * PAGE, i);
            fault.result = faults[i].result;
            fault.cut = faults[i].cut;
            fault.period = faults[i].period;
            move(c, true, 0, 256 * PAGE, out);
            move(c, false, 0, 256 * PAGE, in);
            CHECK(!memcmp(out, in, 256 * PAGE));
            CHECK(fault.count > 128);
            zinf_channel_close(c);
            zinf_storage_close(s);
            free(out);
            free(in);
        }
}

static void a_failed_block_is_reported_with_all_that_is_known(void)
{
    for (int e = 0; e < N_ENGINES; e++)
        for (int write = 0; write < 2; write++) {
            zinf_storage *s;
            zinf_channel *c = open_faulty(e, &s);
            if (!c)
                continue;
            void *buffer = pages(256 * PAGE);
            zinf_io bad = {.write = write, .bytes = 64 * PAGE, .buffer = buffer, .what = "wte"};
            fault.period = 16; /* the last block of the first transfer to end */
            fault.result = -EIO;
            CHECK(!zinf_channel_submit(c, &bad, &err));
            CHECK(zinf_channel_wait(c, &bad, &err) == ZINF_MACHINE);
            CHECK(contains("wte") && contains(strerror(EIO)) && contains("length 16384"));
            CHECK(contains(zinf_storage_path(s)) && contains("245760 of 262144 bytes moved"));
            CHECK(bad.submitted_bytes == 245760); /* so that it is over while others go on */
            fault.period = 0; /* the channel is not spoilt by it */
            clear();
            move(c, false, 64 * PAGE, 64 * PAGE, buffer);
            fault.period = 1; /* nor is the transfer: what it says is of this time */
            bad.offset = 100 * PAGE;
            bad.bytes = 4 * PAGE;
            CHECK(!zinf_channel_submit(c, &bad, &err));
            CHECK(zinf_channel_wait(c, &bad, &err) == ZINF_MACHINE);
            CHECK(contains("offset 409600, length 16384 bytes") &&
                  contains("0 of 16384 bytes moved"));
            zinf_channel_close(c);
            zinf_storage_close(s);
            free(buffer);
        }
}

static void a_transfer_that_never_advances_ends(void)
{
    for (int e = 0; e < N_ENGINES; e++) {
        zinf_storage *s;
        zinf_channel *c = open_faulty(e, &s);
        if (!c)
            continue;
        void *buffer = pages(4 * PAGE);
        for (int write = 0; write < 2; write++) {
            zinf_io io = {.write = write, .bytes = 4 * PAGE, .buffer = buffer, .what = "stuck"};
            clear();
            fault.period = 1;
            fault.cut = 100;
            CHECK(!zinf_channel_submit(c, &io, &err));
            CHECK(zinf_channel_wait(c, &io, &err) == ZINF_MACHINE && contains("0 of 16384"));
        }
        zinf_channel_close(c);
        zinf_storage_close(s);
        free(buffer);
    }
}

/* The size is right when the transfer starts, and not when the block is read. */
static void truncate_start(void *queue, zinf_block *block)
{
    if (ftruncate(block->fd, 10 * PAGE))
        abort();
    fault.engine->start(queue, block);
}

static void a_read_past_the_end_says_expected_and_found(void)
{
    static const zinf_storage_ops truncating = {"truncating", fault_open, fault_close,
                                                truncate_start, fault_reap};
    for (int e = 0; e < N_ENGINES; e++) {
        zinf_storage_options options = {engines[e], 4 * PAGE, FAULTY_DEPTH};
        zinf_storage *s = NULL;
        zinf_channel *c = NULL;
        clear();
        memset(&fault, 0, sizeof fault);
        fault.engine = e ? &zinf_storage_threads : &zinf_storage_uring;
        CHECK(!zinf_storage_open_with(directory, 0, 64 * PAGE, &options, &truncating, &s, warning,
                                      &err));
        if (zinf_channel_open(s, &c, &err)) {
            zinf_storage_close(s);
            continue;
        }
        void *buffer = pages(8 * PAGE);
        zinf_io io = {.offset = 8 * PAGE, .bytes = 8 * PAGE, .buffer = buffer, .what = "lost"};
        CHECK(!zinf_channel_submit(c, &io, &err));
        CHECK(zinf_channel_wait(c, &io, &err) == ZINF_MACHINE);
        CHECK(contains("has 40960 bytes") && contains("expected 262144") && contains("lost"));
        zinf_channel_close(c);
        zinf_storage_close(s);
        free(buffer);
    }
}

int main(void)
{
    const char *tmp = getenv("TMPDIR");

    snprintf(directory, sizeof directory, "%s/zinf-storage-XXXXXX", tmp ? tmp : "/tmp");
    if (!mkdtemp(directory))
        return 1;
    RUN(what_is_written_reads_back_for_odd_blocks_and_depths);
    RUN(a_transfer_behind_a_full_queue_is_put_in_line);
    RUN(many_transfers_in_flight_finish_in_any_order);
    RUN(close_waits_for_what_is_in_flight);
    RUN(a_thousand_operations_open_and_allocate_nothing);
    RUN(a_misaligned_or_outside_transfer_is_refused);
    RUN(a_file_truncated_during_the_run_ends_it);
    RUN(a_second_run_is_refused_by_the_pid_of_the_first);
    RUN(a_lock_is_worth_nothing_once_its_file_is_removed);
    RUN(close_leaves_nothing_behind);
    RUN(a_file_that_no_run_has_left_is_not_replaced);
    RUN(the_file_of_a_killed_run_is_replaced);
    RUN(a_bad_directory_or_option_is_one_clear_sentence);
    RUN(a_full_disk_is_refused_with_needed_and_free_bytes);
    RUN(a_limit_on_file_size_is_an_error_not_a_signal);
    RUN(a_machine_without_io_uring_uses_threads_unless_told);
    RUN(short_and_interrupted_transfers_are_continued);
    RUN(a_failed_block_is_reported_with_all_that_is_known);
    RUN(a_transfer_that_never_advances_ends);
    RUN(a_read_past_the_end_says_expected_and_found);
    rmdir(directory);
    return check_finish();
}
