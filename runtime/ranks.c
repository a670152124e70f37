/* runtime/ranks.c - see ranks.h. */
#include "runtime/ranks.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "runtime/collective_mpi.h"

static bool number_of(const char *name, uint32_t *ret)
{
    const char *text = getenv(name);
    char *end;

    if (!text || !*text)
        return false;
    const unsigned long value = strtoul(text, &end, 10);
    *ret = (uint32_t)value;
    return !*end && value <= INT32_MAX;
}

zinf_launch zinf_ranks_launch(void)
{
    static const struct {
        const char *launcher, *module, *rank, *n_ranks;
    } known[] = {
        {"mpirun of Open MPI", "openmpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
        {"mpirun of MPICH", "mpich", "PMI_RANK", "PMI_SIZE"},
        {"srun", NULL, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"},
    };
    zinf_launch launch = {.n_ranks = 1};

    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        zinf_launch found = {known[i].launcher, known[i].module, 0, 1};
        if (number_of(known[i].rank, &found.rank) && number_of(known[i].n_ranks, &found.n_ranks) &&
            found.n_ranks > 1)
            return found;
    }
    return launch;
}

/* The module beside the program, or where it was installed. */
static void *load(const char *module, char *ret_why, size_t n)
{
    static const char *const places[] = {"", "/../lib/zinf"};
    char self[PATH_MAX], path[PATH_MAX + 64]; /* self: no NUL of its own */
    const ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    void *found = NULL;

    self[length > 0 ? length : 0] = 0;
    const char *slash = strrchr(self, '/');
    for (size_t i = 0; !found && i < sizeof places / sizeof *places; i++) {
        snprintf(path, sizeof path, "%.*s%s/zinf-mpi-%s.so", slash ? (int)(slash - self) : 0, self,
                 places[i], module);
        if (access(path, F_OK))
            continue;
        found = dlopen(path, RTLD_NOW | RTLD_GLOBAL); /* Open MPI's plugins want its symbols */
        if (!found)
            snprintf(ret_why, n, "%s", dlerror());
    }
    return found;
}

zinf_ranks zinf_ranks_self(void)
{
    return (zinf_ranks){.collective = &zinf_collective_self, .n_local = 1};
}

zinf_status zinf_ranks_alike(const zinf_ranks *ranks, uint64_t value, uint32_t *ret_n,
                             zinf_error *err)
{
    const zinf_collective *c = ranks->collective;
    char host[256] = "";
    uint64_t *all = calloc(c->n_ranks, sizeof *all);

    *ret_n = 0;
    if (!all)
        return zinf_fail(err, ZINF_MACHINE, "out of memory for %" PRIu32 " ranks", c->n_ranks);
    gethostname(host, sizeof host - 1);
    const uint64_t mine = XXH3_64bits_withSeed(host, strlen(host), value);
    if (c->allgather(c, &mine, all, 1, ZINF_F64, err) == ZINF_OK)
        for (uint32_t r = 0; r < c->n_ranks; r++)
            *ret_n += all[r] == mine;
    free(all);
    return err->status;
}

/* MPI waits for ranks that do not come, and nobody watches yet. A large machine may take minutes to
 * start them all. */
enum { JOIN_S = 120 };
static const char join_name[] = "ZINF_JOIN_SECONDS";
static char not_joined[200];

static void end_unjoined(int number)
{
    const ssize_t n = write(STDERR_FILENO, not_joined, strlen(not_joined));

    (void)number, (void)n; /* there is nothing else to be done */
    _exit(ZINF_MACHINE); /* the launcher ends the others */
}

static zinf_status limit_joining(const zinf_launch *launch, zinf_error *err)
{
    const struct sigaction action = {.sa_handler = end_unjoined};
    uint32_t seconds = JOIN_S;

    if (getenv(join_name) && (!number_of(join_name, &seconds) || !seconds))
        return zinf_fail(err, ZINF_BAD_INPUT, "%s=\"%s\" is no number of seconds from 1",
                         join_name, getenv(join_name));
    snprintf(not_joined, sizeof not_joined, "zinf-run: rank %" PRIu32 ": not all of %" PRIu32
             " ranks have joined within %" PRIu32 " s (%s): one was stopped, could not start, or "
             "its machine hangs\n", launch->rank, launch->n_ranks, seconds, join_name);
    sigaction(SIGALRM, &action, NULL);
    alarm(seconds);
    return ZINF_OK;
}

zinf_status zinf_ranks_join(const zinf_launch *launch, zinf_ranks *ret_ranks, zinf_error *err)
{
    static const char *const any[] = {"openmpi", "mpich", "other"};
    char why[300] = "it is not there";
    void *module = launch->module ? load(launch->module, why, sizeof why) : NULL;
    zinf_collective_open_function *open_table = NULL;

    if (!launch->module && !getenv("PMIX_RANK"))
        return zinf_fail(err, ZINF_MACHINE, "%s started %" PRIu32 " ranks and connects them by no "
                         "PMI; use srun --mpi=pmix with Open MPI, --mpi=pmi2 with MPICH, or mpirun",
                         launch->launcher, launch->n_ranks);
    for (size_t i = 0; !module && i < sizeof any / sizeof *any; i++)
        if (!launch->module || i == 2)
            module = load(any[i], why, sizeof why);
    if (module)
        *(void **)&open_table = dlsym(module, ZINF_MPI_OPEN_NAME);
    if (!open_table)
        return zinf_fail(err, ZINF_MACHINE, "%s started %" PRIu32 " ranks, but zinf-mpi-%s.so, "
                         "which connects them, cannot be loaded (%s); build zinf where that "
                         "MPI's headers are installed", launch->launcher, launch->n_ranks,
                         launch->module ? launch->module : "*", why);
    *ret_ranks = (zinf_ranks){0};
    if (limit_joining(launch, err))
        return err->status;
    if (open_table(&ret_ranks->table, err)) {
        alarm(0);
        return err->status;
    }
    ret_ranks->collective = &ret_ranks->table;
    if (ret_ranks->table.n_ranks != launch->n_ranks)
        zinf_fail(err, ZINF_MACHINE, "%s started %" PRIu32 " ranks, MPI joined %" PRIu32 " of "
                  "them: another MPI's mpirun?", launch->launcher, launch->n_ranks,
                  ret_ranks->table.n_ranks);
    else if (zinf_watch_open(ret_ranks->collective, &ret_ranks->watch, err) == ZINF_OK)
        zinf_ranks_alike(ret_ranks, 0, &ret_ranks->n_local, err);
    alarm(0);
    return err->status;
}

/* MPICH's mpirun takes a process that ends before it has joined for one that needs no MPI; what
 * its library would write to it ends all (PMI 1's wire protocol, as simple_pmi.c of MPICH). srun,
 * which sets the same variables, speaks PMI 2. */
void zinf_ranks_abandon(const zinf_launch *launch, int code)
{
    uint32_t fd;

    if (launch->module && !strcmp(launch->module, "mpich") && !getenv("SLURM_PROCID") &&
        number_of("PMI_FD", &fd))
        dprintf((int)fd, "cmd=abort exitcode=%d\n", code);
}

zinf_status zinf_ranks_compare(zinf_ranks *ranks, const zinf_ranks_fact *facts, uint32_t n,
                               zinf_error *err)
{
    const zinf_collective *c = ranks->collective;
    uint64_t *all = calloc((size_t)n * c->n_ranks + 1, sizeof *all), *mine = all;

    if (!all)
        return zinf_fail(err, ZINF_MACHINE, "out of memory to compare %" PRIu32 " ranks",
                         c->n_ranks);
    mine += (size_t)c->rank * n;
    for (uint32_t i = 0; i < n; i++)
        mine[i] = facts[i].value;
    if (c->allgather(c, mine, all, n, ZINF_F64, err))
        goto out;
    for (uint32_t r = 1; r < c->n_ranks && !err->status; r++)
        for (uint32_t i = 0; i < n && !err->status; i++)
            if (all[(size_t)r * n + i] != all[i]) {
                zinf_fail(err, ZINF_BAD_INPUT, "rank %" PRIu32 " has another %s than rank 0 (%"
                          PRIx64 ", %" PRIx64 "); start every rank with the same files and "
                          "options", r, facts[i].name, all[(size_t)r * n + i], all[i]);
                ranks->agreed = true;
            }
out:
    free(all);
    return err->status;
}

/* The first rank whose number is not 0, and n_ranks if none is. */
static zinf_status first_of(const zinf_collective *c, double mine, uint32_t *ret_rank,
                            zinf_error *err)
{
    double *all = calloc(c->n_ranks + (size_t)1, sizeof *all);
    uint32_t rank = 0;

    if (!all)
        return zinf_fail(err, ZINF_MACHINE, "out of memory to agree with %" PRIu32 " ranks",
                         c->n_ranks);
    if (c->allgather(c, &mine, all, 1, ZINF_F64, err) == ZINF_OK) {
        while (rank < c->n_ranks && all[rank] == 0)
            rank++;
        *ret_rank = rank;
    }
    free(all);
    return err->status;
}

zinf_status zinf_ranks_together(zinf_ranks *ranks, zinf_error *err)
{
    const zinf_collective *c = ranks->collective;
    zinf_error first = *err, trouble = {0};
    uint32_t failed = c->n_ranks;

    if (c->n_ranks == 1 || ranks->agreed)
        return err->status;
    if (first_of(c, err->status, &failed, &trouble) == ZINF_OK && failed < c->n_ranks &&
        c->broadcast(c, &first, &first, sizeof first, ZINF_U8, failed, &trouble) == ZINF_OK) {
        ranks->agreed = true;
        *err = (zinf_error){0};
        if (failed > 0)
            zinf_fail(err, first.status, "rank %" PRIu32 ": %.900s", failed, first.text);
        else
            zinf_fail(err, first.status, "%s", first.text);
    }
    if (trouble.status)
        zinf_fail(err, trouble.status, "%s", trouble.text);
    return err->status;
}

zinf_status zinf_ranks_share(zinf_ranks *ranks, bool mine, void *bytes, uint64_t n,
                             zinf_error *err)
{
    const zinf_collective *c = ranks->collective;
    uint32_t rank;

    if (c->n_ranks == 1)
        return ZINF_OK;
    if (first_of(c, mine, &rank, err))
        return err->status;
    return c->broadcast(c, bytes, bytes, n, ZINF_U8, rank < c->n_ranks ? rank : 0, err);
}

zinf_status zinf_ranks_add(zinf_ranks *ranks, uint64_t *values, uint32_t n, zinf_error *err)
{
    enum { ROOM = 4096 };
    const zinf_collective *c = ranks->collective;
    const uint32_t some = c->n_ranks < ROOM ? ROOM / c->n_ranks : 1;
    uint64_t *all = c->n_ranks == 1 ? NULL : calloc((size_t)some * c->n_ranks, sizeof *all);

    if (c->n_ranks == 1)
        return ZINF_OK;
    if (!all)
        return zinf_fail(err, ZINF_MACHINE, "out of memory to add up %" PRIu32 " ranks",
                         c->n_ranks);
    for (uint32_t at = 0; at < n && !err->status; at += some) {
        const uint32_t k = n - at < some ? n - at : some;
        if (c->allgather(c, values + at, all, k, ZINF_F64, err))
            break;
        for (uint32_t i = 0; i < k; i++) {
            values[at + i] = 0;
            for (uint32_t r = 0; r < c->n_ranks; r++)
                values[at + i] += all[(size_t)r * k + i];
        }
    }
    free(all);
    return err->status;
}

zinf_status zinf_ranks_sum(zinf_ranks *ranks, double *values, uint32_t n, zinf_error *err)
{
    return ranks->collective->allreduce(ranks->collective, values, values, n, ZINF_F64, err);
}

void zinf_ranks_leave(zinf_ranks *ranks, zinf_error *err)
{
    const zinf_collective *c = ranks->collective;
    zinf_watch *watch = ranks->watch;
    zinf_error other = {0}, told = {0};

    if (!c || c->n_ranks == 1)
        return;
    if (!watch) { /* it failed to open: there is no other way to tell */
        fprintf(stderr, "zinf-run: rank %" PRIu32 ": %s\n", c->rank, err->text);
        c->close(c, (int)err->status);
    }
    if (err->status == ZINF_OK || ranks->agreed) {
        /* before any rank can end: with the first code that is not 0 the launcher ends all */
        if (err->status && c->rank == 0)
            fprintf(stderr, "zinf-run: %s\n", err->text);
        /* All together, and watched until MPI has ended on every rank: it waits for one that was
         * stopped, or the launcher does. */
        uint32_t none;
        if (first_of(c, 0, &none, &other) == ZINF_OK) {
            zinf_watch_finish(watch);
            c->close(c, 0);
            zinf_watch_part(watch);
            zinf_watch_close(watch);
            return;
        }
        if (!err->status)
            *err = other;
    }
    if (!ranks->agreed && zinf_watch_failed(watch, &told))
        *err = told;
    else
        zinf_watch_tell(watch, err);
    fprintf(stderr, "zinf-run: rank %" PRIu32 ": %s\n", c->rank, err->text);
    zinf_watch_leave(watch);
    zinf_watch_wait(watch, c->rank == 0 ? 4 : 6); /* so that others can put away what they hold */
    if (c->rank != 0) { /* rank 0 ends all: of two MPI_Aborts MPICH's mpirun was seen to crash */
        signal(SIGTERM, SIG_DFL);
        sleep(3);
        _exit((int)err->status); /* the launcher ends the others then */
    }
    c->close(c, (int)err->status);
}
