/* runtime/collective_mpi.c - the collectives over MPI's point-to-point messages; see
 * collective_mpi.h.
 *
 * Every rank sends its own part to each other rank and receives theirs: (ranks - 1) / ranks of the
 * whole, as a ring would move, in steps in which every rank sends to one and receives from one.
 * Why not MPI's own collectives: their order of summation is the library's choice, their counts
 * are 31 bits, and a rank that waits in one cannot be told to leave. Here every wait is a loop of
 * MPI_Testall that looks at `cancelled`.
 */
#include "runtime/collective_mpi.h"

#include <inttypes.h>
#include <mpi.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    PIECE_BYTES = 1 << 18,   /* of a sum, received while the piece before is added */
    MOST_MESSAGE = 1 << 30,  /* bytes; MPI counts are 31 bits */
    WINDOW = 16,             /* peers served at once */
    SPINS = 50,              /* tests, of 1 us or so, before a wait begins to sleep */
    PAUSE_NS = 20000,
    LIMIT_S = 1800           /* all ranks live and one does not come: longer than any save */
};

typedef struct context {
    MPI_Comm comm;
    char *pieces[2];
    _Atomic uint64_t sent;
    atomic_int cancelled; /* 1: why is being written, 2: it is there */
    char why[sizeof ((zinf_error *)0)->text];
} context;

static double now_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static zinf_status check(int rc, const char *what, zinf_error *err)
{
    char text[MPI_MAX_ERROR_STRING + 1] = "";
    int n = 0;

    if (rc == MPI_SUCCESS)
        return ZINF_OK;
    MPI_Error_string(rc, text, &n);
    return zinf_fail(err, ZINF_MACHINE, "MPI: %s: %s", what, text);
}

static void cancel(const zinf_collective *self, const char *why)
{
    context *c = self->context;
    int none = 0;

    if (!atomic_compare_exchange_strong(&c->cancelled, &none, 1))
        return;
    snprintf(c->why, sizeof c->why, "%s", why);
    atomic_store(&c->cancelled, 2);
}

/* What was begun and not ended is written to its memory by any later call of MPI, and that memory
 * is given away once its collective has failed: from the first failure on MPI is called no more. */
static zinf_status failed(const zinf_collective *self, zinf_error *err)
{
    cancel(self, err->text);
    return err->status;
}

static zinf_status ask_cancelled(context *c, zinf_error *err)
{
    return atomic_load(&c->cancelled) == 2 ? zinf_fail(err, ZINF_MACHINE, "%s", c->why) : ZINF_OK;
}

/* Until all, at most 2 * WINDOW, are done, or this run is cancelled. */
static zinf_status finish(const zinf_collective *self, int n, MPI_Request *requests,
                          zinf_error *err)
{
    const struct timespec pause = {.tv_nsec = PAUSE_NS};
    MPI_Status statuses[2 * WINDOW];
    double since = 0;

    for (uint64_t tries = 0;; tries++) {
        int done = 0;
        if (ask_cancelled(self->context, err))
            return err->status;
        if (check(MPI_Testall(n, requests, &done, statuses), "a transfer", err))
            return failed(self, err);
        if (done)
            return ZINF_OK;
        if (tries < SPINS)
            continue;
        nanosleep(&pause, NULL);
        if (tries % 1024)
            continue;
        if (since == 0) {
            since = now_s();
        } else if (now_s() - since > LIMIT_S) {
            zinf_fail(err, ZINF_MACHINE, "a collective was not complete after %d s, although every "
                      "rank lives: one of them hangs outside of it", LIMIT_S);
            return failed(self, err);
        }
    }
}

static zinf_status start(const zinf_collective *self, bool send, void *bytes, uint64_t n,
                         uint32_t peer, MPI_Request *ret_request, zinf_error *err)
{
    context *c = self->context;

    if (ask_cancelled(c, err))
        return err->status;
    if (send)
        atomic_fetch_add(&c->sent, n);
    const int rc = send ? MPI_Isend(bytes, (int)n, MPI_BYTE, (int)peer, 0, c->comm, ret_request)
                        : MPI_Irecv(bytes, (int)n, MPI_BYTE, (int)peer, 0, c->comm, ret_request);
    return check(rc, send ? "sending" : "receiving", err) ? failed(self, err) : ZINF_OK;
}

/* The peer `step` places behind (to send to) or before (to receive from) this rank. */
static uint32_t peer_of(const zinf_collective *self, uint32_t step, bool send)
{
    const uint64_t n = self->n_ranks;

    return (uint32_t)((send ? self->rank + n - step : self->rank + step) % n);
}

static zinf_status allgather(const zinf_collective *self, const void *send, void *recv,
                             uint64_t count, zinf_dtype dtype, zinf_error *err)
{
    const uint64_t bytes = count * zinf_dtype_bytes(dtype);
    char *mine = (char *)recv + self->rank * bytes;

    if (mine != send)
        memcpy(mine, send, bytes);
    for (uint64_t at = 0; at < bytes; at += MOST_MESSAGE) {
        const uint64_t n = bytes - at < MOST_MESSAGE ? bytes - at : MOST_MESSAGE;
        for (uint32_t step = 1; step < self->n_ranks; step += WINDOW) {
            MPI_Request requests[2 * WINDOW];
            int started = 0;
            for (uint32_t k = step; k < step + WINDOW && k < self->n_ranks; k++) {
                const uint32_t from = peer_of(self, k, false);
                if (start(self, false, (char *)recv + from * bytes + at, n, from,
                          &requests[started], err))
                    return err->status;
                started++;
                if (start(self, true, mine + at, n, peer_of(self, k, true), &requests[started],
                          err))
                    return err->status;
                started++;
            }
            if (finish(self, started, requests, err))
                return err->status;
        }
    }
    return ZINF_OK;
}

/* One piece of the shard and one peer: what is exchanged with it, and where. */
typedef struct exchange {
    uint64_t at, n;
    MPI_Request requests[2];
} exchange;

static zinf_status begin_exchange(const zinf_collective *self, const float *send, uint64_t count,
                                  uint64_t item, exchange *ret, zinf_error *err)
{
    const uint64_t most = PIECE_BYTES / sizeof(float), peers = self->n_ranks - 1;
    const uint32_t step = (uint32_t)(item % peers) + 1;
    const uint32_t to = peer_of(self, step, true), from = peer_of(self, step, false);
    context *c = self->context;

    ret->at = item / peers * most;
    ret->n = count - ret->at < most ? count - ret->at : most;
    if (start(self, false, c->pieces[item % 2], ret->n * sizeof(float), from, &ret->requests[0],
              err))
        return err->status;
    return start(self, true, (void *)(uintptr_t)(send + to * count + ret->at),
                 ret->n * sizeof(float), to, &ret->requests[1], err);
}

/* Shard s is summed in the order s, s + 1, .., s - 1 (modulo ranks): in every step each rank sends
 * to one and receives from one, and the order is fixed. */
static zinf_status reduce_scatter(const zinf_collective *self, const void *send, void *recv,
                                  uint64_t count, zinf_dtype dtype, zinf_error *err)
{
    const uint64_t most = PIECE_BYTES / sizeof(float);
    const uint64_t items = (count + most - 1) / most * (self->n_ranks - 1);
    const float *whole = send;
    context *c = self->context;
    float *sum = recv;
    exchange under_way[2];

    if (dtype != ZINF_F32)
        return zinf_fail(err, ZINF_WRONG_RESULT, "a reduce-scatter of %s; only F32 is summed",
                         zinf_dtype_name(dtype));
    if (sum != whole + self->rank * count)
        memcpy(sum, whole + self->rank * count, count * sizeof *sum);
    if (items && begin_exchange(self, whole, count, 0, &under_way[0], err))
        return err->status;
    for (uint64_t item = 0; item < items; item++) {
        exchange *now = &under_way[item % 2];
        if (item + 1 < items &&
            begin_exchange(self, whole, count, item + 1, &under_way[(item + 1) % 2], err))
            return err->status;
        if (finish(self, 2, now->requests, err))
            return err->status;
        const float *piece = (const float *)(const void *)c->pieces[item % 2];
        for (uint64_t i = 0; i < now->n; i++)
            sum[now->at + i] += piece[i];
    }
    return ZINF_OK;
}

/* The rank that the root receives from as the `index`-th, for a shard: s, s + 1, .. but itself. */
static uint32_t contributor(const zinf_collective *self, uint64_t shard, uint64_t index)
{
    const uint64_t mine = (self->rank + self->n_ranks - shard) % self->n_ranks;

    return (uint32_t)((shard + index + (index >= mine)) % self->n_ranks);
}

/* What reduce_scatter does, shard by shard, with every sum on the root: it receives one piece while
 * it adds the one before. */
static zinf_status reduce(const zinf_collective *self, const void *send, void *recv,
                          uint64_t count, zinf_dtype dtype, uint32_t root, zinf_error *err)
{
    const uint64_t most = PIECE_BYTES / sizeof(float), shard = count / self->n_ranks;
    const uint64_t pieces = (shard + most - 1) / most; /* of a shard */
    const bool mine = self->rank == root;
    const uint64_t peers = mine ? self->n_ranks - 1 : 1;
    const uint64_t items = pieces * self->n_ranks * peers;
    const float *whole = send;
    context *c = self->context;
    MPI_Request under_way[2];

    if (dtype != ZINF_F32 || root >= self->n_ranks || count % self->n_ranks)
        return zinf_fail(err, ZINF_WRONG_RESULT, "a sum of %" PRIu64 " %s on rank %" PRIu32
                         " of %" PRIu32 "; only F32 is summed, in equal shards", count,
                         zinf_dtype_name(dtype), root, self->n_ranks);
    for (uint64_t next = 0, item = 0; item < items; item++) {
        for (; next < items && next < item + 2; next++) {
            const uint64_t s = next / peers / pieces, in = next / peers % pieces * most;
            const uint64_t n = shard - in < most ? shard - in : most;
            const uint32_t peer = mine ? contributor(self, s, next % peers) : root;
            void *bytes = mine ? c->pieces[next % 2]
                               : (void *)(uintptr_t)(whole + s * shard + in);
            if (start(self, !mine, bytes, n * sizeof(float), peer, &under_way[next % 2], err))
                return err->status;
        }
        if (finish(self, 1, &under_way[item % 2], err))
            return err->status;
        if (!mine)
            continue;
        const uint64_t s = item / peers / pieces, in = item / peers % pieces * most;
        const uint64_t n = shard - in < most ? shard - in : most, index = item % peers;
        const uint64_t turn = (root + self->n_ranks - s) % self->n_ranks; /* of its own */
        const float *piece = (const float *)(const void *)c->pieces[item % 2];
        const float *own = whole + s * shard + in;
        float *sum = (float *)recv + s * shard + in;
        if (index == 0)
            memcpy(sum, turn == 0 ? own : piece, n * sizeof *sum);
        for (uint64_t i = 0; (index > 0 || turn == 0) && i < n; i++)
            sum[i] += piece[i];
        for (uint64_t i = 0; turn == index + 1 && i < n; i++)
            sum[i] += own[i];
    }
    return ZINF_OK;
}

/* A few scalars: all of them from every rank, added in order of ranks on each. */
static zinf_status allreduce(const zinf_collective *self, const void *send, void *recv,
                             uint64_t count, zinf_dtype dtype, zinf_error *err)
{
    const uint64_t room = PIECE_BYTES / sizeof(double) / self->n_ranks, most = room ? room : 1;
    context *c = self->context;
    double *all = (double *)(void *)c->pieces[0];

    if (dtype != ZINF_F64)
        return zinf_fail(err, ZINF_WRONG_RESULT, "an allreduce of %s; only F64 is summed",
                         zinf_dtype_name(dtype));
    for (uint64_t at = 0; at < count; at += most) {
        const uint64_t n = count - at < most ? count - at : most;
        double *to = (double *)recv + at;
        if (allgather(self, (const double *)send + at, all, n, ZINF_F64, err))
            return err->status;
        for (uint64_t i = 0; i < n; i++) {
            double sum = all[i];
            for (uint32_t r = 1; r < self->n_ranks; r++)
                sum += all[r * n + i];
            to[i] = sum;
        }
    }
    return ZINF_OK;
}

static zinf_status broadcast(const zinf_collective *self, const void *send, void *recv,
                             uint64_t count, zinf_dtype dtype, uint32_t root, zinf_error *err)
{
    const uint64_t bytes = count * zinf_dtype_bytes(dtype);
    const bool mine = self->rank == root;

    if (root >= self->n_ranks)
        return zinf_fail(err, ZINF_WRONG_RESULT, "a broadcast from rank %" PRIu32 " of %" PRIu32,
                         root, self->n_ranks);
    if (mine && recv != send)
        memcpy(recv, send, bytes);
    for (uint64_t at = 0; at < bytes; at += MOST_MESSAGE) {
        const uint64_t n = bytes - at < MOST_MESSAGE ? bytes - at : MOST_MESSAGE;
        for (uint32_t step = 1; step < (mine ? self->n_ranks : 2); step += WINDOW) {
            MPI_Request requests[WINDOW];
            int started = 0;
            for (uint32_t k = step; k < step + WINDOW && k < (mine ? self->n_ranks : 2); k++) {
                if (start(self, mine, (char *)recv + at, n, mine ? peer_of(self, k, true) : root,
                          &requests[started], err))
                    return err->status;
                started++;
            }
            if (finish(self, started, requests, err))
                return err->status;
        }
    }
    return ZINF_OK;
}

static uint64_t sent_bytes(const zinf_collective *self)
{
    return atomic_load(&((context *)self->context)->sent);
}

static void leave(const zinf_collective *self, int code)
{
    context *c = self->context;

    if (code) {
        /* not of a copy of it, for which MPICH ends the ranks of this node only */
        MPI_Abort(MPI_COMM_WORLD, code);
        _Exit(code);
    }
    MPI_Comm_free(&c->comm);
    MPI_Finalize();
}

zinf_status zinf_collective_mpi_open(zinf_collective *ret_collective, zinf_error *err)
{
    static context only; /* MPI starts once; and a rank may be lost until the process ends */
    static char pieces[2][PIECE_BYTES];
    context *c = &only;
    int provided = 0, rank = 0, n_ranks = 0;

    c->pieces[0] = pieces[0];
    c->pieces[1] = pieces[1];
    if (check(MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &provided), "starting", err))
        return err->status;
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    if (provided < MPI_THREAD_SERIALIZED)
        return zinf_fail(err, ZINF_MACHINE, "this MPI library allows calls from one thread only; "
                         "use one that was built with threads");
    if (check(MPI_Comm_dup(MPI_COMM_WORLD, &c->comm), "joining", err))
        return err->status;
    MPI_Comm_set_errhandler(c->comm, MPI_ERRORS_RETURN);
    MPI_Comm_rank(c->comm, &rank);
    MPI_Comm_size(c->comm, &n_ranks);
    *ret_collective = (zinf_collective){
        .name = "mpi", .rank = (uint32_t)rank, .n_ranks = (uint32_t)n_ranks, .context = c,
        .allgather = allgather, .reduce_scatter = reduce_scatter, .reduce = reduce,
        .allreduce = allreduce, .broadcast = broadcast, .sent_bytes = sent_bytes,
        .cancel = cancel, .close = leave};
    return ZINF_OK;
}
