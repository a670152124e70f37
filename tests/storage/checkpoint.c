/* tests/storage/checkpoint.c - saved state: round trips, damage of every byte, other models, and
 * a process killed at every one of its system calls that change the disk.
 */
#include "runtime/checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xxhash.h>

#include "tests/check.h"

/* ---- a kill before the n-th change of the disk, and failures of one call: stands in front of
 * the C library's ---- */

static long n_changes, kill_at = -1, fail_at = -1;
static char order[256]; /* of syncs (f) and renames (r) */

static bool change(void)
{
    if (n_changes == kill_at)
        kill(getpid(), SIGKILL);
    if (n_changes++ == fail_at) {
        errno = EIO;
        return false;
    }
    return true;
}

static void note(char event)
{
    const size_t n = strlen(order);
    if (n + 1 < sizeof order)
        order[n] = event;
}

/* Noted, not done: a killed process loses nothing that it wrote, and thousands of syncs make
 * this test as slow as the disk. */
int fsync(int fd)
{
    (void)fd;
    note('f');
    return change() ? 0 : -1;
}

/* Torn in half, so that a kill falls into the middle of a write, too. */
ssize_t pwrite(int fd, const void *bytes, size_t n, off_t offset)
{
    return change() ? (ssize_t)syscall(SYS_pwrite64, fd, bytes, n > 512 ? n / 2 : n, offset) : -1;
}

int renameat(int from_fd, const char *from, int to_fd, const char *to)
{
    note('r');
    return change() ? (int)syscall(SYS_renameat2, from_fd, from, to_fd, to, 0) : -1;
}

int renameat2(int from_fd, const char *from, int to_fd, const char *to, unsigned flags)
{
    note('r');
    return change() ? (int)syscall(SYS_renameat2, from_fd, from, to_fd, to, flags) : -1;
}

int unlinkat(int fd, const char *name, int flags)
{
    return change() ? (int)syscall(SYS_unlinkat, fd, name, flags) : -1;
}

int mkdirat(int fd, const char *name, mode_t mode)
{
    return change() ? (int)syscall(SYS_mkdirat, fd, name, mode) : -1;
}

/* ---- a small model ---- */

static char directory[200];
static zinf_error err;
static bool placed; /* what the last save says of itself */

static zinf_tensor tensors[] = {
    {"transformer.wte.weight", 37, 5, 0.02, ZINF_INIT_NORMAL, 2, 0},
    {"transformer.h.0.ln_1.bias", 3, 1, 0, ZINF_INIT_ZERO, 1, 0},
    {"transformer.h.0.\"odd\"/name", 4, 9, 0, ZINF_INIT_ONE, 2, 0},
};
enum { N_TENSORS = 3 };
static const uint64_t n_elems[N_TENSORS] = {185, 3, 36};

static zinf_plan make_plan(void)
{
    return (zinf_plan){
        .model = {.name = "tiny", .family = "gpt2", .layers = 1, .hidden = 5, .heads = 1,
                  .kv_heads = 1, .head_dim = 5, .ffn = 20, .vocab = 37, .context = 8,
                  .tied_embeddings = 1, .n_params = 224, .norm_eps = 1e-5},
        .tensors = tensors, .n_tensors = N_TENSORS};
}

static zinf_progress make_progress(uint64_t step)
{
    return (zinf_progress){step, 8 * step, UINT64_MAX - 3, 0.1, 0xfedcba9876543210u, 3};
}

static float value(uint64_t step, uint32_t tensor, unsigned array, uint64_t i)
{
    return (float)(step * 1000 + tensor * 300 + array * 100) + (float)i / 64;
}

static void clear(void)
{
    memset(&err, 0, sizeof err);
}

static bool contains(const char *text)
{
    if (strstr(err.text, text))
        return true;
    printf("# message: %s\n", err.text);
    return false;
}

static zinf_status put(zinf_checkpoint_writer *w, uint64_t step, uint32_t tensor, unsigned array,
                       uint64_t first, uint64_t n)
{
    float values[256];

    for (uint64_t i = 0; i < n; i++)
        values[i] = value(step, tensor, array, first + i);
    return zinf_checkpoint_put(w, tensor, array, first, n, values, &err);
}

static zinf_status save(uint64_t step)
{
    const zinf_plan plan = make_plan();
    const zinf_progress progress = make_progress(step);
    zinf_checkpoint_writer *w;

    clear();
    placed = false;
    if (zinf_checkpoint_create(directory, &plan, &progress, &w, &err))
        return err.status;
    for (uint32_t t = 0; t < N_TENSORS; t++)
        for (unsigned a = 0; a < ZINF_N_STATES; a++)
            if (put(w, step, t, a, 0, n_elems[t])) {
                zinf_checkpoint_abandon(w);
                return err.status;
            }
    return zinf_checkpoint_commit(w, &placed, &err);
}

/* The step that opens and has all the right values; -1: error in err; -2: wrong values. */
static long load_from(const char *from)
{
    const zinf_plan plan = make_plan();
    zinf_progress progress;
    zinf_checkpoint_reader *r = NULL;
    float values[256];
    long result = -2;
    bool right = true;

    clear();
    if (zinf_checkpoint_open(from, &plan, &r, &progress, &err))
        return r ? -3 : -1;
    const zinf_progress expected = make_progress(progress.step);
    if (memcmp(&expected, &progress, sizeof progress))
        goto out;
    for (uint32_t t = 0; t < N_TENSORS; t++)
        for (unsigned a = 0; a < ZINF_N_STATES; a++) {
            if (zinf_checkpoint_get(r, t, a, 1, n_elems[t] - 1, values + 1, &err) ||
                zinf_checkpoint_get(r, t, a, 0, 1, values, &err))
                goto out;
            for (uint64_t i = 0; i < n_elems[t]; i++)
                right = right && values[i] == value(progress.step, t, a, i);
        }
    if (zinf_checkpoint_check(r, 1, &err))
        result = -1;
    else if (right)
        result = (long)progress.step;
out:
    zinf_checkpoint_close(r);
    return result;
}

static long load(void)
{
    return load_from(directory);
}

static bool exists(const char *name)
{
    char path[600];
    struct stat st;

    snprintf(path, sizeof path, "%s/%s", directory, name);
    return !lstat(path, &st);
}

static void remove_tree(const char *path)
{
    DIR *d = opendir(path);
    char inner[800];

    if (!d) {
        unlink(path);
        return;
    }
    for (struct dirent *entry; (entry = readdir(d));) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
            continue;
        snprintf(inner, sizeof inner, "%s/%s", path, entry->d_name);
        remove_tree(inner);
    }
    closedir(d);
    rmdir(path);
}

static void start_anew(void)
{
    remove_tree(directory);
    CHECK(!mkdir(directory, 0700));
    clear();
}

static char *slurp(const char *path, size_t *ret_n)
{
    FILE *f = fopen(path, "rb");
    char *bytes = malloc(1 << 20);

    CHECK(f && bytes);
    *ret_n = fread(bytes, 1, (1 << 20) - 1, f);
    bytes[*ret_n] = 0;
    fclose(f);
    return bytes;
}

static void spill(const char *path, const char *bytes, size_t n)
{
    FILE *f = fopen(path, "wb");
    CHECK(f && fwrite(bytes, 1, n, f) == n && !fclose(f));
}

/* ---- tests ---- */

static void what_was_put_in_any_order_is_loaded(void)
{
    const zinf_plan plan = make_plan();
    const zinf_progress progress = make_progress(7);
    zinf_checkpoint_writer *w;

    start_anew();
    CHECK(!zinf_checkpoint_create(directory, &plan, &progress, &w, &err));
    for (unsigned a = ZINF_N_STATES; a-- > 0;) {
        CHECK(!put(w, 7, 1, a, 0, 3) && !put(w, 7, 0, a, 100, 85) && !put(w, 7, 0, a, 0, 10));
        CHECK(!put(w, 7, 0, a, 50, 10) && !put(w, 7, 0, a, 10, 40) && !put(w, 7, 0, a, 60, 40));
        CHECK(!put(w, 7, 0, a, 60, 0));
        for (uint64_t i = 36; i-- > 0;)
            CHECK(!put(w, 7, 2, a, i, 1));
    }
    CHECK_MESSAGE(!zinf_checkpoint_commit(w, &placed, &err), "%s", err.text);
    const long step = load();
    CHECK_MESSAGE(step == 7, "%ld %s", step, err.text);
    char path[300];
    snprintf(path, sizeof path, "%s/step-7", directory); /* the directory of a step, too */
    CHECK(load_from(path) == 7);
    CHECK(!exists(".zinf-writing") && !exists(".zinf-latest"));
}

static void a_missing_element_is_refused_at_commit(void)
{
    const zinf_plan plan = make_plan();
    const zinf_progress progress = make_progress(2);

    start_anew();
    CHECK(!save(1));
    for (int which = 0; which < 3; which++) {
        zinf_checkpoint_writer *w;
        CHECK(!zinf_checkpoint_create(directory, &plan, &progress, &w, &err));
        for (uint32_t t = 0; t < N_TENSORS; t++)
            for (unsigned a = 0; a < ZINF_N_STATES; a++) {
                const bool hole = t == 2 && a == ZINF_STATE_M;
                const uint64_t at = which == 0 ? 0 : which == 1 ? 17 : 35;
                CHECK(!put(w, 2, t, a, 0, hole ? at : n_elems[t]));
                if (hole)
                    CHECK(!put(w, 2, t, a, at + 1, n_elems[t] - at - 1));
            }
        CHECK(zinf_checkpoint_commit(w, &placed, &err) == ZINF_WRONG_RESULT);
        CHECK(contains("35 of 36 elements"));
        CHECK(contains("odd") && contains("(m)"));
        CHECK(!exists("step-2") && !exists(".zinf-writing") && load() == 1);
    }
}

static void an_element_put_twice_or_outside_is_refused(void)
{
    const zinf_plan plan = make_plan();
    const zinf_progress progress = make_progress(2);
    const uint64_t bad[][2] = {{10, 1}, {0, 11}, {19, 2}, {5, 30}, {0, 185}};
    zinf_checkpoint_writer *w;

    start_anew();
    CHECK(!zinf_checkpoint_create(directory, &plan, &progress, &w, &err));
    CHECK(!put(w, 2, 0, 0, 10, 10) && !put(w, 2, 0, 0, 40, 10));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        clear();
        CHECK(put(w, 2, 0, 0, bad[i][0], bad[i][1]) == ZINF_WRONG_RESULT && contains("overlap"));
    }
    clear();
    CHECK(put(w, 2, 0, 0, 185, 1) == ZINF_WRONG_RESULT && contains("185"));
    clear();
    CHECK(zinf_checkpoint_put(w, 0, 0, UINT64_MAX, 2, NULL, &err) == ZINF_WRONG_RESULT);
    clear();
    CHECK(zinf_checkpoint_put(w, 3, 0, 0, 0, NULL, &err) == ZINF_WRONG_RESULT);
    zinf_checkpoint_abandon(w);
    CHECK(!exists(".zinf-writing"));
    zinf_checkpoint_abandon(NULL);
    zinf_checkpoint_close(NULL);
}

static void the_last_two_stay_and_nothing_of_others_goes(void)
{
    char path[300], text[300];

    start_anew();
    snprintf(path, sizeof path, "%s/notes.txt", directory);
    spill(path, "mine", 4);
    snprintf(path, sizeof path, "%s/step-1", directory); /* named like ours, is not */
    mkdir(path, 0700);
    CHECK(!save(2) && !save(3));
    snprintf(path, sizeof path, "%s/step-2/mine", directory);
    snprintf(text, sizeof text, "%s/step-2", directory);
    spill(path, "mine", 4);
    CHECK(!save(4) && !save(5) && !save(20));
    CHECK(exists("step-20") && exists("step-5") && !exists("step-4") && !exists("step-3"));
    CHECK(exists("step-1") && exists("step-2/mine") && exists("step-2/manifest.json"));
    CHECK(exists("notes.txt") && load() == 20);
    CHECK(save(1) == ZINF_BAD_INPUT && contains("step-1")); /* in the way of it */
    CHECK(load() == 20);
    CHECK(!save(20) && load() == 20);              /* again, after a resume */
    CHECK(!save(6) && load() == 6 && exists("step-20")); /* from an earlier one: not "older" */
    CHECK(exists("step-5") && !exists(".zinf-writing") && !exists(".zinf-removing"));
    CHECK(!save(0) && load() == 0);
}

static void what_others_put_in_the_way_is_named_and_left(void)
{
    char path[300];

    start_anew();
    CHECK(!save(1));
    snprintf(path, sizeof path, "%s/.zinf-writing", directory);
    mkdir(path, 0700);
    snprintf(path, sizeof path, "%s/.zinf-writing/mine", directory);
    spill(path, "mine", 4);
    snprintf(path, sizeof path, "%s/.zinf-writing/manifest.json", directory);
    spill(path, "mine", 4);
    CHECK(save(2) == ZINF_MACHINE && contains(".zinf-writing"));
    CHECK(exists(".zinf-writing/mine") && exists(".zinf-writing/manifest.json") && load() == 1);
}

static void two_writers_do_not_share_a_directory(void)
{
    const zinf_plan plan = make_plan();
    const zinf_progress progress = make_progress(2);
    zinf_checkpoint_writer *first, *second = NULL;

    start_anew();
    CHECK(!zinf_checkpoint_create(directory, &plan, &progress, &first, &err));
    CHECK(zinf_checkpoint_create(directory, &plan, &progress, &second, &err) == ZINF_MACHINE);
    CHECK(contains("another run") && !second && exists(".zinf-writing"));
    zinf_checkpoint_abandon(first);
    CHECK(!save(2) && load() == 2);
}

static void a_place_is_one_run_s_and_names_the_other(void)
{
    zinf_checkpoint_place *first = NULL, *second = NULL;
    char pid[32];

    start_anew();
    CHECK(!zinf_checkpoint_claim(directory, NULL, &first, &err));
    CHECK(zinf_checkpoint_claim(directory, NULL, &second, &err) == ZINF_MACHINE && !second);
    snprintf(pid, sizeof pid, "process %ld ", (long)getpid());
    CHECK(contains(pid) && contains(directory));
    clear();
    CHECK(!save(1)); /* the holder saves */
    zinf_checkpoint_release(first);
    CHECK(!exists(".zinf-lock") && !exists(".zinf-reserved"));
    /* and after it only who goes on from there */
    CHECK(zinf_checkpoint_claim(directory, NULL, &second, &err) == ZINF_BAD_INPUT && !second);
    CHECK(contains("another training") && contains("/step-1\","));
    clear();
    CHECK(zinf_checkpoint_claim(directory, "/tmp", &second, &err) == ZINF_BAD_INPUT);
    clear();
    char inside[300];
    snprintf(inside, sizeof inside, "%s/step-1", directory);
    const char *const resumed[] = {directory, inside};
    for (int i = 0; i < 2; i++) {
        CHECK(!zinf_checkpoint_claim(directory, resumed[i], &second, &err));
        zinf_checkpoint_release(second);
    }
}

/* What would stop a save, or be lost in it, is found before the first step. */
static void what_only_has_a_name_of_ours_is_refused_at_once(void)
{
    static const struct {
        const char *name;
        bool is_directory;
    } ours[] = {{"latest", false}, {".zinf-lock", false}, {".zinf-writing", true},
                {".zinf-removing", true}, {".zinf-reserved", true}};
    enum { A_FILE, A_DIRECTORY, A_PIPE, A_LINK, MINE, N_KINDS };
    zinf_checkpoint_place *place = NULL;
    char path[300], inside[320];

    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
        for (int kind = 0; kind < N_KINDS; kind++) {
            start_anew();
            CHECK(!save(1));
            snprintf(path, sizeof path, "%s/%s", directory, ours[i].name);
            snprintf(inside, sizeof inside, "%s/mine", path);
            remove_tree(path);
            if (kind == A_FILE)
                spill(path, "step-1\n", 7);
            else if (kind == A_PIPE)
                CHECK(!mkfifo(path, 0600));
            else if (kind == A_LINK)
                CHECK(!symlink("nowhere", path));
            else
                CHECK(!mkdir(path, 0700));
            if (kind == MINE)
                spill(inside, "mine", 4);
            const zinf_status status = zinf_checkpoint_claim(directory, directory, &place, &err);
            if (kind == (ours[i].is_directory ? A_DIRECTORY : A_FILE)) {
                CHECK_MESSAGE(!status, "%s", err.text);
                CHECK(!save(2) && load() == 2);
                zinf_checkpoint_release(place);
                continue;
            }
            CHECK_MESSAGE(status == ZINF_BAD_INPUT, "%s, kind %d: %d %s", ours[i].name, kind,
                          status, err.text);
            snprintf(inside, sizeof inside, "\"%s\" in \"%s\"", ours[i].name, directory);
            CHECK(contains(inside) && exists(ours[i].name));
            CHECK(!strcmp(ours[i].name, ".zinf-lock") || !exists(".zinf-lock"));
        }
}

/* Only what was looked into is somebody else's. */
static void what_cannot_be_looked_into_is_the_machines(void)
{
    zinf_checkpoint_place *place = NULL;
    struct rlimit before, few;
    char path[300];
    int n = 0;

    start_anew();
    CHECK(!save(1));
    snprintf(path, sizeof path, "%s/.zinf-writing", directory);
    CHECK(!mkdir(path, 0700));
    const int first = dup(0); /* the lowest that is free */
    CHECK(first >= 0 && !close(first) && !getrlimit(RLIMIT_NOFILE, &before));
    few = before;
    for (few.rlim_cur = (rlim_t)first; !n || err.status; few.rlim_cur++, n++) {
        clear();
        CHECK(!setrlimit(RLIMIT_NOFILE, &few));
        const zinf_status status = zinf_checkpoint_claim(directory, directory, &place, &err);
        CHECK(!setrlimit(RLIMIT_NOFILE, &before));
        CHECK_MESSAGE(!status || (status == ZINF_MACHINE && contains(strerror(EMFILE))),
                      "%d files: %d %s", n, status, err.text);
    }
    CHECK(n > 3);
    zinf_checkpoint_release(place);
}

/* Of a manifest from before it was counted, none in a row were skipped. */
static void a_manifest_without_skips_has_none(void)
{
    static const char member[] = "\"n_skipped\": 3,";
    const zinf_plan plan = make_plan();
    zinf_progress progress = {0};
    zinf_checkpoint_reader *r = NULL;
    char path[300];
    size_t n;

    start_anew();
    CHECK(!save(4));
    snprintf(path, sizeof path, "%s/step-4/manifest.json", directory);
    char *text = slurp(path, &n), *at = strstr(text, member);
    CHECK(at);
    memset(at, ' ', sizeof member - 1);
    const size_t sum = n - strlen("\"\n}\n") - 16;
    char digits[20];
    snprintf(digits, sizeof digits, "%016" PRIx64, (uint64_t)XXH64(text, sum, 0));
    memcpy(text + sum, digits, 16);
    spill(path, text, n);
    free(text);
    CHECK_MESSAGE(!zinf_checkpoint_open(directory, &plan, &r, &progress, &err), "%s", err.text);
    CHECK(progress.step == 4 && progress.n_skipped == 0);
    zinf_checkpoint_close(r);
}

/* In a child: a disk of which others take all but what was reserved. */
static int save_on_a_filled_disk(bool reserve)
{
    static const char zeros[4096];
    const zinf_plan plan = make_plan();
    const zinf_progress progress = make_progress(1);
    zinf_checkpoint_place *place;
    char path[300];

    if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        mount("none", directory, "tmpfs", 0, "size=8m"))
        return 77;
    if (zinf_checkpoint_claim(directory, NULL, &place, &err) ||
        (reserve && zinf_checkpoint_reserve(place, &plan, &progress, 1, &err)))
        return 1;
    snprintf(path, sizeof path, "%s/filler", directory);
    int fd = open(path, O_CREAT | O_WRONLY, 0600);
    while (write(fd, zeros, sizeof zeros) > 0)
        ;
    close(fd);
    if (!reserve)
        return save(12345678) == ZINF_MACHINE && contains("bytes free") ? 0 : 2;
    /* of a later step, whose numbers are longer */
    if (save(12345678) || load() != 12345678)
        return 3;
    zinf_checkpoint_release(place);
    return exists(".zinf-reserved") ? 4 : 0;
}

static void space_that_is_reserved_nobody_takes(void)
{
    for (int reserve = 0; reserve < 2; reserve++) {
        int status;
        start_anew();
        fflush(stdout);
        pid_t child = fork();
        if (!child)
            _exit(save_on_a_filled_disk(reserve));
        CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
        if (WEXITSTATUS(status) == 77)
            SKIP("mounting a small tmpfs needs root");
        CHECK_MESSAGE(WEXITSTATUS(status) == 0, "check %d", WEXITSTATUS(status));
    }
}

static void what_a_killed_run_of_another_model_reserved_is_used(void)
{
    zinf_tensor large = {"wte", 8 << 10, 1, 0, 0, 1, 0};
    zinf_plan big = make_plan();
    const zinf_progress progress = make_progress(1);
    zinf_checkpoint_place *place;

    big.tensors = &large;
    big.n_tensors = 1;
    for (int other_first = 0; other_first < 2; other_first++) {
        const zinf_plan small = make_plan();
        start_anew();
        CHECK(!zinf_checkpoint_claim(directory, NULL, &place, &err));
        CHECK(!zinf_checkpoint_reserve(place, other_first ? &big : &small, &progress, 1, &err));
        CHECK(exists(".zinf-reserved"));
        CHECK(!save(7) && load() == 7 && !exists(".zinf-reserved"));
        zinf_checkpoint_release(place);
    }
}

static void the_disk_must_hold_all_that_will_be_there_at_once(void)
{
    int status;

    start_anew();
    fflush(stdout);
    pid_t child = fork();
    if (!child) {
        zinf_tensor large = {"wte", 1 << 19, 1, 0, 0, 1, 0}; /* 3 x 2 MiB */
        zinf_plan plan = make_plan();
        const zinf_progress progress = make_progress(1);
        zinf_checkpoint_place *place;
        if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
            mount("none", directory, "tmpfs", 0, "size=16m"))
            _exit(77);
        plan.tensors = &large;
        plan.n_tensors = 1;
        if (zinf_checkpoint_claim(directory, NULL, &place, &err) ||
            zinf_checkpoint_reserve(place, &plan, &progress, 2, &err) ||
            zinf_checkpoint_reserve(place, &plan, &progress, 3, &err) != ZINF_MACHINE)
            _exit(1);
        _exit(contains("for 3 checkpoints at a time") && contains("bytes free") ? 0 : 2);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
    if (WEXITSTATUS(status) == 77)
        SKIP("mounting a small tmpfs needs root");
    CHECK_MESSAGE(WEXITSTATUS(status) == 0, "check %d", WEXITSTATUS(status));
}

/* Runs save(step) in a child that is killed before its n-th change; true if it got that far. */
static bool save_killed_at(uint64_t step, long n)
{
    int status;

    fflush(stdout);
    pid_t child = fork();
    if (!child) {
        n_changes = 0;
        kill_at = n;
        _exit(save(step) ? 1 : 0);
    }
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
    return WIFSIGNALED(status);
}

static void a_kill_at_any_instant_leaves_a_checkpoint(void)
{
    long n = 0, seen_old = 0, seen_new = 0;

    for (;; n++) {
        start_anew();
        CHECK(!save(2) && !save(3));
        if (!save_killed_at(4, n))
            break;
        const long step = load();
        CHECK_MESSAGE(step == 3 || step == 4, "killed at %ld: %ld %s", n, step, err.text);
        seen_old += step == 3;
        seen_new += step == 4;
        CHECK(!save(5) && load() == 5); /* the next run goes on from there, and cleans up */
        CHECK(!exists(".zinf-writing") && !exists(".zinf-removing") && !exists(".zinf-latest"));
    }
    CHECK_MESSAGE(seen_old > 30 && seen_new > 5, "%ld old, %ld new", seen_old, seen_new);
    CHECK(load() == 4 && !exists("step-2"));
}

/* The manifest, the new `latest`, three files and the directory; rename; the parent; rename; the
 * parent. */
static void everything_is_synced_before_it_is_named(void)
{
    start_anew();
    memset(order, 0, sizeof order);
    CHECK(!save(1));
    CHECK_MESSAGE(!strcmp(order, "ffffffrfrf"), "%s", order);
}

static void kills_one_after_the_other_leave_a_checkpoint(void)
{
    long n = 0;

    start_anew();
    CHECK(!save(1) && !save(2) && !save(3));
    for (; save_killed_at(4, n); n++) {
        const long step = load();
        CHECK_MESSAGE(step == 3 || step == 4, "killed at %ld: %ld %s", n, step, err.text);
    }
    CHECK(n > 25 && load() == 4 && !save(5) && load() == 5);
    CHECK(!exists(".zinf-writing") && !exists(".zinf-removing") && !exists(".zinf-latest"));
}

/* A checkpoint of the same step changes places with the one that `latest` names. */
static void a_kill_while_a_step_is_saved_again_leaves_it(void)
{
    long n = 0;

    start_anew();
    CHECK(!save(3) && !save(4));
    for (; save_killed_at(4, n); n++)
        CHECK_MESSAGE(load() == 4, "killed at %ld: %s", n, err.text);
    CHECK(n > 25 && load() == 4 && exists("step-3") && !exists(".zinf-writing"));
}

static void a_failure_of_any_call_is_reported_and_keeps_the_last(void)
{
    long failures = 0;

    start_anew();
    CHECK(!save(2));
    for (long n = 0; n < 60; n++) {
        n_changes = 0;
        fail_at = n;
        const zinf_status status = save(3);
        fail_at = -1;
        if (status) {
            CHECK(status == ZINF_MACHINE && contains(strerror(EIO)));
            failures++;
        }
        const long step = load();
        CHECK_MESSAGE(step == 2 || step == 3, "failed at %ld: %ld %s", n, step, err.text);
        CHECK_MESSAGE(status || step == 3, "call %ld failed, which nobody noticed", n);
        CHECK_MESSAGE(placed == (step == 3), "call %ld failed: step %ld", n, step);
        start_anew();
        CHECK(!save(2));
    }
    CHECK_MESSAGE(failures > 25, "%ld", failures);
}

static void a_flipped_bit_anywhere_is_found(void)
{
    const char *const files[] = {"manifest.json", "master.safetensors", "m.safetensors",
                                 "v.safetensors"};
    char path[300];

    start_anew();
    CHECK(!save(9));
    for (size_t f = 0; f < 4; f++) {
        size_t n;
        snprintf(path, sizeof path, "%s/step-9/%s", directory, files[f]);
        char *bytes = slurp(path, &n);
        /* In place, and every byte of what is not padding. */
        int fd = open(path, O_WRONLY);
        for (size_t i = 0; i < n; i++) {
            if (f && i >= 600 && i < 4090 && i % 97)
                continue;
            const char flipped = bytes[i] ^ (char)(1 << i % 8);
            CHECK(syscall(SYS_pwrite64, fd, &flipped, 1, i) == 1);
            const long step = load();
            CHECK_MESSAGE(step == -1, "%s, byte %zu: %ld", files[f], i, step);
            CHECK(err.status == ZINF_BAD_INPUT && strstr(err.text, "step-9"));
            CHECK(syscall(SYS_pwrite64, fd, bytes + i, 1, i) == 1);
        }
        close(fd);
        for (size_t k = 1; k < n; k += n / 7) {
            CHECK(!truncate(path, (off_t)(n - k)));
            CHECK(load() == -1);
            CHECK(!f || contains("truncated"));
        }
        spill(path, bytes, n);
        CHECK(load() == 9);
        CHECK(!unlink(path) && load() == -1 && (!f || contains(files[f])));
        spill(path, bytes, n);
        free(bytes);
    }
    CHECK(load() == 9);
}

static void damage_is_named(void)
{
    char path[300];
    size_t n;

    start_anew();
    CHECK(!save(9));
    snprintf(path, sizeof path, "%s/step-9/m.safetensors", directory);
    char *bytes = slurp(path, &n);
    bytes[n - 1] ^= 1;
    spill(path, bytes, n);
    CHECK(load() == -1 && contains("odd") && contains("m.safetensors") && contains("checksum"));
    bytes[n - 1] ^= 1;
    bytes[3] = 127; /* the header's length */
    spill(path, bytes, n);
    CHECK(load() == -1 && contains("header") && contains("m.safetensors"));
    bytes[3] = 0;
    bytes[20] ^= 1;
    spill(path, bytes, n);
    CHECK(load() == -1 && contains("header of \"m.safetensors\""));
    bytes[20] ^= 1;
    spill(path, bytes, n);
    free(bytes);

    snprintf(path, sizeof path, "%s/step-9/manifest.json", directory);
    bytes = slurp(path, &n);
    spill(path, bytes, n / 2);
    CHECK(load() == -1 && contains("not well-formed JSON") && contains("ends early"));
    spill(path, "[1]", 3);
    CHECK(load() == -1 && contains("not well-formed JSON"));
    spill(path, "{}", 2);
    CHECK(load() == -1 && contains("\"format\""));
    const char *later = "{\"format\": \"zinf checkpoint\", \"version\": 9}";
    spill(path, later, strlen(later));
    CHECK(load() == -1 && contains("version 9"));
    char *at = strstr(bytes, "\"step\": 9");
    CHECK(at);
    at[8] = '8';
    spill(path, bytes, n);
    CHECK(load() == -1 && contains("its own checksum"));
    at[8] = '9';
    spill(path, bytes, n);
    CHECK(load() == 9);
    free(bytes);
}

static void a_directory_without_a_checkpoint_says_so(void)
{
    char path[300];

    start_anew();
    CHECK(load() == -1 && contains("holds no checkpoint"));
    snprintf(path, sizeof path, "%s/missing", directory);
    CHECK(load_from(path) == -1 && contains("does not exist") && contains(path));
    snprintf(path, sizeof path, "%s/latest", directory);
    CHECK(load_from(path) == -1);
    spill(path, "step-4\n", 7);
    CHECK(load() == -1 && contains("step-4") && contains("cannot be opened"));
    spill(path, "../../etc\n", 10);
    CHECK(load() == -1 && contains("damaged"));
    spill(path, "", 0);
    CHECK(load() == -1 && contains("damaged"));
    CHECK(load_from(path) == -1 && contains(path));
}

static void another_model_is_refused_by_its_first_difference(void)
{
    zinf_progress progress;
    zinf_checkpoint_reader *r = NULL;

    start_anew();
    CHECK(!save(9));
    for (int which = 0; which < 9; which++) {
        zinf_plan plan = make_plan();
        zinf_tensor others[N_TENSORS];
        const char *const expected[][3] = {
            {"hidden 5", "has 6", "another model"}, {"family \"gpt2\"", "\"llama\"", ""},
            {"[37,5]", "[38,5]", "transformer.wte.weight"},
            {"ln_1.bias", "expected \"other\"", "tensor 1"}, {"3 tensors", "has 2", ""},
            {"name \"tiny\"", "\"big\"", "renamed"},
            {"norm_eps 1e-05", "has 1e-06", "another model"},
            {"rope_theta 0", "has 10000", "another model"},
            {"rope_original_context 0", "has 8192", "another model"}};
        memcpy(others, tensors, sizeof others);
        plan.tensors = others;
        if (which == 0)
            plan.model.hidden = 6;
        if (which == 1)
            strcpy(plan.model.family, "llama");
        if (which == 2)
            others[0].rows = 38;
        if (which == 3)
            strcpy(others[1].name, "other");
        if (which == 4)
            plan.n_tensors = 2;
        if (which == 5)
            strcpy(plan.model.name, "big");
        if (which == 6)
            plan.model.norm_eps = 1e-6;
        if (which == 7)
            plan.model.rope_theta = 1e4;
        if (which == 8)
            plan.model.rope_original_context = 8192;
        clear();
        CHECK(zinf_checkpoint_open(directory, &plan, &r, &progress, &err) == ZINF_BAD_INPUT);
        CHECK(!r);
        for (int i = 0; i < 3; i++)
            CHECK(contains(expected[which][i]));
    }
}

static int fill_small_filesystem(void)
{
    zinf_tensor large = {"wte", 8 << 20, 1, 0, 0, 1, 0}; /* 3 x 32 MiB */
    zinf_plan plan = make_plan();
    const zinf_progress progress = make_progress(1);
    zinf_checkpoint_writer *w;

    if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        mount("none", directory, "tmpfs", 0, "size=64m"))
        return 77;
    plan.tensors = &large;
    plan.n_tensors = 1;
    if (zinf_checkpoint_create(directory, &plan, &progress, &w, &err) != ZINF_MACHINE ||
        !strstr(err.text, "needs 103663296 bytes") || !strstr(err.text, "bytes free"))
        return 1;
    return exists(".zinf-writing") ? 2 : 0;
}

static void a_full_disk_is_refused_before_anything_is_written(void)
{
    int status;

    start_anew();
    fflush(stdout);
    pid_t child = fork();
    if (!child)
        _exit(fill_small_filesystem());
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
    if (WEXITSTATUS(status) == 77)
        SKIP("mounting a small tmpfs needs root");
    CHECK_MESSAGE(WEXITSTATUS(status) == 0, "check %d", WEXITSTATUS(status));
}

static void a_size_beyond_64_bits_is_refused(void)
{
    zinf_tensor huge = {"wte", 1ull << 40, 1ull << 40, 0, 0, 2, 0};
    zinf_plan plan = make_plan();
    const zinf_progress progress = make_progress(1);
    zinf_checkpoint_writer *w;

    start_anew();
    plan.tensors = &huge;
    plan.n_tensors = 1;
    CHECK(zinf_checkpoint_create(directory, &plan, &progress, &w, &err) == ZINF_BAD_INPUT);
    CHECK(contains("wte"));
    clear();
    zinf_tensor twice[2] = {tensors[0], tensors[0]};
    plan.tensors = twice;
    plan.n_tensors = 2;
    CHECK(zinf_checkpoint_create(directory, &plan, &progress, &w, &err) == ZINF_BAD_INPUT);
    CHECK(contains("two tensors"));
}

int main(void)
{
    const char *tmp = getenv("TMPDIR");
    char parent[150];

    snprintf(parent, sizeof parent, "%.100s/zinf-checkpoint-XXXXXX", tmp ? tmp : "/tmp");
    if (!mkdtemp(parent))
        return 1;
    snprintf(directory, sizeof directory, "%s/run", parent);
    RUN(what_was_put_in_any_order_is_loaded);
    RUN(a_missing_element_is_refused_at_commit);
    RUN(an_element_put_twice_or_outside_is_refused);
    RUN(the_last_two_stay_and_nothing_of_others_goes);
    RUN(what_others_put_in_the_way_is_named_and_left);
    RUN(two_writers_do_not_share_a_directory);
    RUN(a_place_is_one_run_s_and_names_the_other);
    RUN(what_only_has_a_name_of_ours_is_refused_at_once);
    RUN(what_cannot_be_looked_into_is_the_machines);
    RUN(a_manifest_without_skips_has_none);
    RUN(space_that_is_reserved_nobody_takes);
    RUN(what_a_killed_run_of_another_model_reserved_is_used);
    RUN(the_disk_must_hold_all_that_will_be_there_at_once);
    RUN(a_kill_at_any_instant_leaves_a_checkpoint);
    RUN(everything_is_synced_before_it_is_named);
    RUN(kills_one_after_the_other_leave_a_checkpoint);
    RUN(a_kill_while_a_step_is_saved_again_leaves_it);
    RUN(a_failure_of_any_call_is_reported_and_keeps_the_last);
    RUN(a_flipped_bit_anywhere_is_found);
    RUN(damage_is_named);
    RUN(a_directory_without_a_checkpoint_says_so);
    RUN(another_model_is_refused_by_its_first_difference);
    RUN(a_full_disk_is_refused_before_anything_is_written);
    RUN(a_size_beyond_64_bits_is_refused);
    remove_tree(parent);
    return check_finish();
}
