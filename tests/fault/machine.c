/* tests/fault/machine.c - faults that machines do: zinf-run as users start it, on disks that are
 * full, read-only, limited, shared or changed by others, and where io_uring is forbidden.
 *
 * usage: test-fault-machine ZINF_RUN
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/bitwise/trainer.h"
#include "tests/check.h"

enum { SECONDS = 150, MOST_ARGUMENTS = 24, DIGEST_BYTES = 1 << 18 };

static const char *zinf_run;
static char work[64]; /* everything below is in it */
static bool can_mount;
static uint64_t nvme_bytes, wide_bytes; /* of "plan", of "wide" */

/* ---- files ---- */

/* A path in the work directory; a few at a time. */
static const char *in(const char *name)
{
    static char paths[8][256];
    static unsigned n;
    char *path = paths[n++ % 8];

    snprintf(path, sizeof paths[0], "%s/%s", work, name);
    return path;
}

static const char *text_of(const char *name)
{
    static char text[1 << 20];
    FILE *file = fopen(in(name), "r");
    size_t n = file ? fread(text, 1, sizeof text - 1, file) : 0;

    if (file)
        fclose(file);
    text[n] = 0;
    return text;
}

static void make_directory(const char *name)
{
    CHECK(mkdir(in(name), 0755) == 0 || errno == EEXIST);
}

static void write_plan(const char *name, const trainer_model *model, const char *threads)
{
    char sets[256];
    zinf_plan plan = {0};
    zinf_error err = {0};

    snprintf(sets, sizeof sets, "tier.param=nvme tier.grad=nvme tier.optimizer=nvme "
             "tier.checkpoint=nvme micro_batch=2 tiles=1 checkpoint_interval=1 prefetch.read=2 "
             "prefetch.upload=1 io.block=65536 io.depth=8 threads=%s", threads);
    CHECK_MESSAGE(trainer_plan(model, false, sets, &plan, &err) == ZINF_OK, "%s", err.text);
    CHECK_MESSAGE(zinf_plan_write(&plan, in(name), &err) == ZINF_OK, "%s", err.text);
    nvme_bytes = plan.machine.arena_bytes[ZINF_TIER_NVME];
    zinf_plan_free(&plan);
}

static void prepare(void)
{
    static const trainer_model tiny = {2, 32, 2, 256, 16, 4, "bf16", NULL};
    static const trainer_model other = {2, 48, 2, 256, 16, 4, "bf16", NULL};
    static const trainer_model least = {1, 16, 1, 256, 8, 2, "bf16", NULL};
    /* 18 bytes for each of 5.6 million parameters: about 100 MB */
    static const trainer_model wide = {7, 256, 2, 256, 16, 4, "bf16", NULL};

    write_plan("wide", &wide, "2");
    wide_bytes = nvme_bytes;
    write_plan("other", &other, "2");
    write_plan("least", &least, "1");
    write_plan("plan", &tiny, "2"); /* the last: its nvme_bytes are meant below */
    FILE *text = fopen(in("text"), "w");
    CHECK(text);
    for (int i = 0; i < 400; i++)
        fprintf(text, "line %d of a text that repeats itself, so there is much to learn\n", i);
    fclose(text);
    make_directory("disk");
    CHECK(chmod(work, 0755) == 0);
}

/* ---- runs ---- */

/* Starts zinf-run on a plan with the options given (up to NULL), after `before` in the child. */
static pid_t start(void (*before)(void), const char *plan, const char *log, ...)
{
    const char *words[MOST_ARGUMENTS] = {zinf_run, in(plan), "--data", in("text"), "--log",
                                         log[0] == '/' ? log : in(log)};
    int n = 6;
    va_list options;

    va_start(options, log);
    while (n < MOST_ARGUMENTS - 1 && (words[n] = va_arg(options, const char *)))
        n++;
    va_end(options);
    if (log[0] != '/')
        unlink(in(log));
    fflush(stdout);
    const pid_t child = fork();
    if (!child) {
        char *argv[MOST_ARGUMENTS] = {0};
        int out = open(in("out"), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0666);
        int err = open(in("err"), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0666);
        for (int i = 0; i < n; i++)
            argv[i] = (char *)(uintptr_t)words[i];
        dup2(out, 1);
        dup2(err, 2);
        alarm(SECONDS * CHECK_SLOWER); /* outlives exec: a hang is a death by SIGALRM */
        if (before)
            before();
        execv(zinf_run, argv);
        _exit(99);
    }
    return child;
}

static int finish(pid_t child)
{
    int status;

    CHECK(waitpid(child, &status, 0) == child);
    CHECK_MESSAGE(WIFEXITED(status), "killed by signal %d%s", WTERMSIG(status),
                  WTERMSIG(status) == SIGALRM ? ": it hangs" : "");
    return WEXITSTATUS(status);
}

static void nap(void)
{
    nanosleep(&(struct timespec){0, 5000000}, NULL);
}

static bool has_ended(pid_t child)
{
    siginfo_t info = {0};

    waitid(P_PID, (id_t)child, &info, WEXITED | WNOHANG | WNOWAIT);
    return info.si_pid != 0;
}

/* Until the log has that step; false if the run ended before. */
static bool wait_for_step(pid_t child, const char *log, unsigned step)
{
    char line[32];

    snprintf(line, sizeof line, "{\"step\": %u,", step);
    while (!strstr(text_of(log), line)) {
        if (has_ended(child))
            return false;
        nap();
    }
    return true;
}

/* Losses and hash of the weights as the log has them. */
static void digest(const char *log, char ret_text[DIGEST_BYTES])
{
    const char *text = text_of(log), *key[] = {"\"loss\": ", "\"params_hash\": "};
    size_t n = 0;

    for (int i = 0; i < 2; i++)
        for (const char *at = text; (at = strstr(at, key[i])); at++) {
            const size_t length = strcspn(at, ",}");
            CHECK(n + length < DIGEST_BYTES);
            memcpy(ret_text + n, at, length);
            n += length;
        }
    ret_text[n] = 0;
}

#define STEPS "--steps", "30"
#define ENDLESS "--steps", "1000000" /* what happens to it happens before its end */

static const char *expected(void)
{
    static char once[DIGEST_BYTES];

    if (!once[0]) {
        const int status = finish(start(NULL, "plan", "log", "--nvme", in("disk"), STEPS, NULL));
        CHECK_MESSAGE(status == 0, "%s", text_of("err"));
        digest("log", once);
        CHECK(strstr(once, "params_hash"));
    }
    return once;
}

static void check_right(int status, const char *log)
{
    static char found[DIGEST_BYTES];

    CHECK_MESSAGE(status == 0, "%d: %s", status, text_of("err"));
    digest(log, found);
    CHECK_MESSAGE(!strcmp(found, expected()), "other bits: %s", found);
}

/* Ends an endless run after some step, in order. */
static int end(pid_t child)
{
    kill(child, SIGTERM);
    return finish(child);
}

/* An endless run that has been ended is a run of so many steps. */
static void check_right_so_far(int status, const char *log)
{
    static char found[DIGEST_BYTES], straight[DIGEST_BYTES];
    static const char row[] = "{\"step\": ";
    unsigned steps = 0;
    char number[16];

    CHECK_MESSAGE(status == 0, "%d: %s", status, text_of("err"));
    digest(log, found);
    for (const char *at = text_of(log); (at = strstr(at, row)); at++)
        steps = (unsigned)strtoul(at + strlen(row), NULL, 10);
    snprintf(number, sizeof number, "%u", steps);
    CHECK(finish(start(NULL, "plan", "straight", "--nvme", in("disk"), "--steps", number, NULL)) ==
          0);
    digest("straight", straight);
    CHECK_MESSAGE(steps && !strcmp(found, straight), "%u steps, other bits: %s", steps, found);
}

static void stand_still(pid_t child)
{
    siginfo_t info;

    kill(child, SIGSTOP);
    CHECK(waitid(P_PID, (id_t)child, &info, WSTOPPED | WEXITED | WNOWAIT) == 0);
}

static bool said(const char *part)
{
    return strstr(text_of("err"), part) != NULL;
}

static bool is_empty(const char *name)
{
    DIR *d = opendir(in(name));
    int n = 0;

    while (d && readdir(d))
        n++;
    if (d)
        closedir(d);
    return n == 2;
}

#define SAID(status, wanted, part)                                                               \
    CHECK_MESSAGE((status) == (wanted) && said(part), "%d: %s", status, text_of("err"))

/* ---- disks that are full ---- */

static bool mount_small(const char *name, uint64_t kilobytes)
{
    char size[64];

    make_directory(name);
    snprintf(size, sizeof size, "size=%lluk", (unsigned long long)kilobytes);
    return can_mount && mount("none", in(name), "tmpfs", 0, size) == 0;
}

static void fill(const char *directory)
{
    static const char zeros[4096];
    char path[256];

    snprintf(path, sizeof path, "%s/filler", in(directory));
    const int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    while (fd >= 0 && write(fd, zeros, sizeof zeros) > 0)
        ;
    close(fd);
}

static void a_disk_too_small_is_refused_before_the_first_step(void)
{
    char needed[64];

    if (!mount_small("small", 64 << 10))
        SKIP("mounting needs root or user namespaces");
    const int status = finish(start(NULL, "wide", "log", "--nvme", in("small"), STEPS, NULL));
    const bool left = !is_empty("small");
    umount(in("small"));
    CHECK(wide_bytes > 95 << 20 && wide_bytes < 105 << 20);
    snprintf(needed, sizeof needed, "needs %llu bytes", (unsigned long long)wide_bytes);
    SAID(status, ZINF_MACHINE, needed);
    CHECK(said("has 67108864 bytes free") && !left);
    CHECK(!strstr(text_of("log"), "\"step\""));
}

static void a_disk_filled_by_others_leaves_the_run_its_space(void)
{
    struct stat info = {0};

    if (!mount_small("filled", nvme_bytes / 1024 + 512))
        SKIP("mounting needs root or user namespaces");
    const pid_t child = start(NULL, "plan", "log", "--nvme", in("filled"), ENDLESS, NULL);
    /* before the first write, if we are quick: all of it must be ours already */
    while ((uint64_t)info.st_size < nvme_bytes && !has_ended(child))
        if (stat(in("filled/zinf-rank0.nvme"), &info))
            info.st_size = 0;
    stand_still(child);
    const bool reserved = !stat(in("filled/zinf-rank0.nvme"), &info) &&
                          (uint64_t)info.st_blocks * 512 >= nvme_bytes;
    fill("filled");
    kill(child, SIGCONT);
    wait_for_step(child, "log", 30);
    const int status = end(child);
    umount(in("filled"));
    CHECK(reserved && said("filesystem in memory"));
    check_right_so_far(status, "log");
}

/* Reads a log that is a pipe, up to a row; all of it if the run ends before. As long as nobody
 * reads on, the run waits within 30 steps. */
static void read_until(int rows, pid_t child, unsigned step)
{
    char row[1024], wanted[32];
    size_t n = 0;

    snprintf(wanted, sizeof wanted, "{\"step\": %u,", step);
    for (;;) {
        const ssize_t got = read(rows, row + n, 1);
        if (got <= 0) {
            if (has_ended(child))
                return;
            nap();
            continue;
        }
        CHECK(n + 2 < sizeof row);
        if (row[n++] != '\n')
            continue;
        if (!strncmp(row, wanted, strlen(wanted))) {
            CHECK(n > 4096 / 29);
            return;
        }
        n = 0;
    }
}

static void a_disk_full_while_saving_keeps_the_last_checkpoint(void)
{
    static char found[DIGEST_BYTES], straight[DIGEST_BYTES];

    if (!mount_small("saves", 16384))
        SKIP("mounting needs root or user namespaces");
    CHECK(mkfifo(in("rows"), 0600) == 0);
    const int rows = open(in("rows"), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    CHECK(rows >= 0 && fcntl(rows, F_SETPIPE_SZ, 4096) == 4096);
    const pid_t child = start(NULL, "plan", in("rows"), "--nvme", in("disk"), ENDLESS, "--save",
                              in("saves"), "--save-every", "40", NULL);
    read_until(rows, child, 41); /* the first is written, space for the second reserved */
    fill("saves");
    read_until(rows, child, 0);
    close(rows);
    int status = finish(child);
    SAID(status, ZINF_MACHINE, "bytes free");
    CHECK(said("saved step 80 in") && !said("saved step 120 in"));
    char filler[256];
    snprintf(filler, sizeof filler, "%s/filler", in("saves"));
    unlink(filler);
    status = finish(start(NULL, "plan", "log", "--nvme", in("disk"), "--steps", "82", "--resume",
                          in("saves"), NULL));
    CHECK_MESSAGE(status == 0, "%s", text_of("err"));
    digest("log", found);
    umount(in("saves"));
    status = finish(start(NULL, "plan", "log", "--nvme", in("disk"), "--steps", "82", NULL));
    CHECK_MESSAGE(status == 0, "%s", text_of("err"));
    digest("log", straight);
    /* the last losses, and the weights */
    const size_t before = strlen(straight) - strlen(found);
    CHECK_MESSAGE(before < DIGEST_BYTES && found[0] && !strcmp(straight + before, found), "%s",
                  found);
}

static void a_log_that_cannot_be_written_ends_the_run(void)
{
    if (!mount_small("full", 64))
        SKIP("mounting needs root or user namespaces");
    const int log = open(in("full/log"), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    CHECK(log >= 0 && close(log) == 0);
    fill("full");
    const int status = finish(start(NULL, "plan", in("full/log"), "--nvme", in("disk"), STEPS,
                                    NULL));
    umount(in("full"));
    SAID(status, ZINF_MACHINE, "full/log\": No space left");
}

static void a_place_that_cannot_take_checkpoints_is_found_before_the_first_step(void)
{
    int status = finish(start(NULL, "plan", "log", "--nvme", in("disk"), STEPS, "--save",
                              "/proc/zinf", NULL));
    CHECK_MESSAGE(status == ZINF_BAD_INPUT && said("/proc/zinf"), "%d: %s", status,
                  text_of("err"));
    CHECK(!strstr(text_of("log"), "\"step\""));
    status = finish(start(NULL, "plan", "log", "--nvme", in("disk"), STEPS, "--save", in("text"),
                          NULL));
    CHECK_MESSAGE(status == ZINF_BAD_INPUT, "%d: %s", status, text_of("err"));
    CHECK(!strstr(text_of("log"), "\"step\""));
    if (!mount_small("tight", 64))
        return;
    status = finish(start(NULL, "plan", "log", "--nvme", in("disk"), STEPS, "--save",
                          in("tight"), NULL));
    umount(in("tight"));
    SAID(status, ZINF_MACHINE, "bytes free");
    CHECK(!strstr(text_of("log"), "\"step\""));
}

/* ---- limits ---- */

static void limit(int resource, rlim_t most)
{
    const struct rlimit value = {most, most};

    setrlimit((__rlimit_resource_t)resource, &value);
}

static void limit_files(void)
{
    limit(RLIMIT_FSIZE, 65536);
}

static void lock_nothing(void)
{
    limit(RLIMIT_MEMLOCK, 0);
}

static void lock_little(void)
{
    limit(RLIMIT_MEMLOCK, 65536);
}

static void open_nothing(void)
{
    limit(RLIMIT_NOFILE, 6);
}

static void open_few(void)
{
    limit(RLIMIT_NOFILE, 64);
}

static void a_limit_on_file_size_is_refused_before_the_first_step(void)
{
    const int status = finish(start(limit_files, "plan", "log", "--nvme", in("disk"), STEPS,
                                    NULL));

    SAID(status, ZINF_MACHINE, "limited to 65536 bytes; raise it (ulimit -f)");
    CHECK(is_empty("disk"));
}

static void a_limit_on_file_size_during_the_run_is_an_error_not_a_signal(void)
{
    const pid_t child = start(NULL, "plan", "log", "--nvme", in("disk"), ENDLESS, NULL);
    const struct rlimit value = {65536, 65536};

    CHECK(wait_for_step(child, "log", 2));
    CHECK(prlimit(child, RLIMIT_FSIZE, &value, NULL) == 0);
    const int status = finish(child);
    CHECK_MESSAGE(status == ZINF_MACHINE && said("File too large"), "%d: %s", status,
                  text_of("err"));
    CHECK(is_empty("disk"));
}

static void limits_on_locked_memory_change_nothing(void)
{
    expected();
    check_right(finish(start(lock_nothing, "plan", "log", "--nvme", in("disk"), STEPS, NULL)),
                "log");
    check_right(finish(start(lock_little, "plan", "log", "--nvme", in("disk"), STEPS, NULL)),
                "log");
}

static void too_few_descriptors_are_one_clear_sentence(void)
{
    const int status = finish(start(open_nothing, "plan", "log", "--nvme", in("disk"), STEPS,
                                    NULL));

    SAID(status, ZINF_MACHINE, "limited to 6; raise it (ulimit -n 1"); /* tests/safety counts */
    CHECK(is_empty("disk"));
}

static unsigned n_descriptors(pid_t child)
{
    char path[64];
    unsigned n = 0;

    snprintf(path, sizeof path, "/proc/%d/fd", child);
    DIR *d = opendir(path);
    while (d && readdir(d))
        n++;
    if (d)
        closedir(d);
    return n;
}

static unsigned long anonymous_kilobytes(pid_t child)
{
    char path[64], line[128];
    unsigned long value = 0;

    snprintf(path, sizeof path, "/proc/%d/status", child);
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file))
        sscanf(line, "RssAnon: %lu", &value);
    if (file)
        fclose(file);
    return value;
}

static void a_thousand_steps_open_and_allocate_nothing(void)
{
    const pid_t child = start(open_few, "least", "log", "--nvme", in("disk"), ENDLESS, NULL);
    CHECK(wait_for_step(child, "log", 50));
    const unsigned descriptors = n_descriptors(child);
    const unsigned long memory = anonymous_kilobytes(child);
    CHECK(wait_for_step(child, "log", 1050));
    const unsigned descriptors_later = n_descriptors(child);
    const unsigned long memory_later = anonymous_kilobytes(child);
    CHECK(end(child) == 0);
    CHECK(descriptors > 4 && memory > 100);
    CHECK_MESSAGE(descriptors_later == descriptors, "%u, then %u", descriptors,
                  descriptors_later);
    /* a sanitizer has shadows of its own */
    CHECK_MESSAGE(CHECK_SLOWER > 1 || memory_later <= memory + 64, "%lu KiB, then %lu",
                  memory, memory_later);
}

/* ---- others at the file ---- */

static void a_file_cut_by_another_process_ends_the_run(void)
{
    const pid_t child = start(NULL, "plan", "log", "--nvme", in("disk"), ENDLESS, NULL);
    unsigned long long found = 1, wanted = 0;

    CHECK(wait_for_step(child, "log", 2));
    CHECK(truncate(in("disk/zinf-rank0.nvme"), 0) == 0);
    const int status = finish(child);
    /* blocks that were on their way then make it longer than 0 again, the last one of it as long as
     * it was: then what is read is not what was written */
    const char *has = strstr(text_of("err"), " has ");
    CHECK_MESSAGE(status == ZINF_MACHINE &&
                  (said("something truncated it during the run")
                   ? has && sscanf(has, " has %llu bytes, expected %llu", &found, &wanted) == 2 &&
                         found < wanted
                   : said("checksum ")), "%d: %s", status, text_of("err"));
    CHECK(said("offset ") && said("length ") && said("step ") && is_empty("disk"));
}

static void a_file_deleted_by_another_process_is_used_on(void)
{
    const pid_t child = start(NULL, "plan", "log", "--nvme", in("disk"), ENDLESS, NULL);
    CHECK(wait_for_step(child, "log", 1));
    CHECK(unlink(in("disk/zinf-rank0.nvme")) == 0);
    wait_for_step(child, "log", 30);
    const int status = end(child);
    CHECK(is_empty("disk"));
    check_right_so_far(status, "log");
}

static void a_second_run_on_one_path_is_refused_and_the_first_goes_on(void)
{
    const pid_t child = start(NULL, "plan", "log", "--nvme", in("disk"), ENDLESS, NULL);
    CHECK(wait_for_step(child, "log", 1));
    stand_still(child); /* both write into one file what they say */
    const int status = finish(start(NULL, "plan", "log2", "--nvme", in("disk"), STEPS, NULL));
    const bool told = status == ZINF_MACHINE && said("is in use by process");
    kill(child, SIGCONT);
    const int first = end(child);
    CHECK_MESSAGE(told, "%d", status);
    check_right_so_far(first, "log");
}

static void files_of_a_killed_run_of_another_model_do_no_harm(void)
{
    expected();
    const pid_t child = start(NULL, "other", "log", "--nvme", in("disk"), ENDLESS, NULL);
    CHECK(wait_for_step(child, "log", 2));
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    CHECK(access(in("disk/zinf-rank0.nvme"), F_OK) == 0);
    check_right(finish(start(NULL, "plan", "log", "--nvme", in("disk"), STEPS, NULL)), "log");
    CHECK(is_empty("disk"));
}

/* ---- directories ---- */

static void become_nobody(void)
{
    if (setgid(65534) || setuid(65534))
        _exit(98);
}

static void a_directory_that_cannot_be_written_is_one_clear_sentence(void)
{
    make_directory("closed");
    chmod(in("closed"), 0555);
    chmod(in("text"), 0644);
    chmod(in("plan"), 0644);
    const int status = finish(start(geteuid() ? NULL : become_nobody, "plan", "/dev/null",
                                    "--nvme", in("closed"), STEPS, NULL));
    if (status == 98 || status == 99)
        SKIP("cannot become another user here");
    SAID(status, ZINF_BAD_INPUT, "is not writable: Permission denied");
}

static void a_filesystem_that_is_read_only_is_one_clear_sentence(void)
{
    if (!mount_small("frozen", 8192))
        SKIP("mounting needs root or user namespaces");
    CHECK(mount("none", in("frozen"), NULL, MS_REMOUNT | MS_RDONLY, NULL) == 0);
    int status = finish(start(NULL, "plan", "log", "--nvme", in("frozen"), STEPS, NULL));
    const bool told = status == ZINF_BAD_INPUT && said("Read-only file system");
    const int saving = finish(start(NULL, "plan", "log", "--nvme", in("disk"), STEPS, "--save",
                                    in("frozen"), NULL));
    umount(in("frozen"));
    CHECK_MESSAGE(told, "%d", status);
    CHECK_MESSAGE(saving != 0 && said("Read-only file system"), "%d: %s", saving,
                  text_of("err"));
}

static void a_directory_that_is_a_file_is_one_clear_sentence(void)
{
    int status = finish(start(NULL, "plan", "log", "--nvme", in("text"), STEPS, NULL));

    SAID(status, ZINF_BAD_INPUT, "no directory");
    status = finish(start(NULL, "plan", "log", "--nvme", in("nowhere"), STEPS, NULL));
    SAID(status, ZINF_BAD_INPUT, "No such file");
}

static void a_filesystem_in_memory_works_and_is_mentioned(void)
{
    if (!mount_small("memory", 16384))
        SKIP("mounting needs root or user namespaces");
    expected();
    const int status = finish(start(NULL, "plan", "log", "--nvme", in("memory"), STEPS, NULL));
    umount(in("memory"));
    check_right(status, "log");
    CHECK(said("filesystem in memory"));
}

/* ---- io_uring forbidden ---- */

static void forbid(int call, int error)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)call, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (uint32_t)error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog filter = {sizeof code / sizeof *code, code};

    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter))
        _exit(98);
}

static void forbid_setup(void)
{
    forbid(__NR_io_uring_setup, EPERM);
}

static void hide_setup(void)
{
    forbid(__NR_io_uring_setup, ENOSYS);
}

static void forbid_enter(void)
{
    forbid(__NR_io_uring_enter, EPERM);
}

static void without_io_uring_threads_give_the_same_bits(void)
{
    static void (*const filters[])(void) = {forbid_setup, hide_setup, forbid_enter};

    expected();
    for (size_t i = 0; i < sizeof filters / sizeof *filters; i++) {
        int status = finish(start(filters[i], "plan", "log", "--nvme", in("disk"), STEPS, NULL));
        if (status == 98)
            SKIP("no seccomp filters here");
        check_right(status, "log");
        CHECK_MESSAGE(strstr(text_of("log"), "\"engine\": \"threads\""), "%s",
                      text_of("log"));
        status = finish(start(filters[i], "plan", "log", "--nvme", in("disk"), STEPS, "--engine",
                              "uring", NULL));
        SAID(status, ZINF_MACHINE, "io_uring was asked for, but this machine refuses it");
        CHECK(is_empty("disk"));
    }
}

static void enter_mounts(void)
{
    const uid_t user = getuid();
    const gid_t group = getgid();

    if (unshare(CLONE_NEWNS)) {
        char map[64];
        if (unshare(CLONE_NEWUSER | CLONE_NEWNS))
            return;
        int fd = open("/proc/self/setgroups", O_WRONLY);
        if (fd < 0 || write(fd, "deny", 4) != 4)
            return;
        close(fd);
        fd = open("/proc/self/uid_map", O_WRONLY);
        int n = snprintf(map, sizeof map, "%u %u 1", user, user);
        if (fd < 0 || write(fd, map, (size_t)n) != n)
            return;
        close(fd);
        fd = open("/proc/self/gid_map", O_WRONLY);
        n = snprintf(map, sizeof map, "%u %u 1", group, group);
        if (fd < 0 || write(fd, map, (size_t)n) != n)
            return;
        close(fd);
    }
    can_mount = mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0;
}

static void clean(void)
{
    static const char *const names[] = {
        "plan", "other", "least", "wide", "text", "log", "log2", "straight", "rows", "out", "err",
        "disk", "small", "filled", "full", "saves", "tight", "closed", "frozen", "memory"};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        remove(in(names[i]));
    rmdir(work);
}

int main(int argc, char **argv)
{
    const char *base = getenv("TMPDIR");

    if (argc < 2)
        return 1;
    zinf_run = argv[1];
    setvbuf(stdout, NULL, _IOLBF, 0);
    snprintf(work, sizeof work, "%.30s/zinf-machine-XXXXXX", base ? base : "/tmp");
    if (!mkdtemp(work))
        return 1;
    enter_mounts();
    RUN(prepare);
    RUN(a_disk_too_small_is_refused_before_the_first_step);
    RUN(a_disk_filled_by_others_leaves_the_run_its_space);
    RUN(a_disk_full_while_saving_keeps_the_last_checkpoint);
    RUN(a_log_that_cannot_be_written_ends_the_run);
    RUN(a_place_that_cannot_take_checkpoints_is_found_before_the_first_step);
    RUN(a_limit_on_file_size_is_refused_before_the_first_step);
    RUN(a_limit_on_file_size_during_the_run_is_an_error_not_a_signal);
    RUN(limits_on_locked_memory_change_nothing);
    RUN(too_few_descriptors_are_one_clear_sentence);
    RUN(a_thousand_steps_open_and_allocate_nothing);
    RUN(a_file_cut_by_another_process_ends_the_run);
    RUN(a_file_deleted_by_another_process_is_used_on);
    RUN(a_second_run_on_one_path_is_refused_and_the_first_goes_on);
    RUN(files_of_a_killed_run_of_another_model_do_no_harm);
    RUN(a_directory_that_cannot_be_written_is_one_clear_sentence);
    RUN(a_filesystem_that_is_read_only_is_one_clear_sentence);
    RUN(a_directory_that_is_a_file_is_one_clear_sentence);
    RUN(a_filesystem_in_memory_works_and_is_mentioned);
    RUN(without_io_uring_threads_give_the_same_bits);
    clean();
    return check_finish();
}
