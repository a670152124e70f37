/* runtime/watch.c - see watch.h. One thread; sockets are its own once it runs. */
#include "runtime/watch.h"

#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { HOST_BYTES = 64, TEXT_BYTES = 488, JOIN_S = 60, BEAT_MS = 1000 };

typedef enum frame_kind { FRAME_HELLO = 1, FRAME_BEAT, FRAME_FAILED, FRAME_LEFT } frame_kind;

/* What goes over a connection, always whole. */
typedef struct frame {
    uint64_t token; /* of this run: nobody else is listened to */
    uint32_t kind, rank, status;
    char text[TEXT_BYTES];
} frame;

/* How to reach rank 0. */
typedef struct address {
    char host[HOST_BYTES];
    uint64_t token;
    uint32_t port, reserved;
} address;

typedef struct peer {
    int fd;        /* -1: closed */
    bool left;     /* said so */
    double heard_s;
    uint32_t n;    /* bytes of `in` */
    frame in;
} peer;

struct zinf_watch {
    const zinf_collective *collective;
    uint64_t token;
    peer *peers;      /* rank 0: [n_ranks], itself unused; others: [1], rank 0 */
    uint32_t n_peers;
    struct pollfd *fds; /* [n_peers + 1]: the last is `wake` */
    int wake;           /* an eventfd: there is something to say */
    pthread_t thread;
    bool started;
    atomic_bool stopping;

    pthread_mutex_t mutex; /* all below */
    bool failed, finished;
    bool leaving, told_left; /* told_left: everybody knows that it leaves */
    double failed_s;
    frame failure;
    bool own_failure; /* to be sent: failure is this rank's */
};

static double now_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static uint32_t rank_of(const zinf_watch *w, uint32_t i)
{
    return w->collective->rank == 0 ? i : 0;
}

/* A frame that does not fit into the socket's buffer is for a peer that does not read: dropped,
 * unless part of it went out. */
static void send_frame(const peer *p, const frame *f)
{
    const char *at = (const char *)f;
    size_t left = sizeof *f;

    while (p->fd >= 0 && left) {
        const ssize_t n = send(p->fd, at, left, MSG_NOSIGNAL | (left == sizeof *f ? MSG_DONTWAIT
                                                                                  : 0));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return;
        at += n;
        left -= (size_t)n;
    }
}

static void send_all(zinf_watch *w, const frame *f, uint32_t but)
{
    for (uint32_t i = 0; i < w->n_peers; i++)
        if (rank_of(w, i) != but)
            send_frame(&w->peers[i], f);
}

/* The first failure counts; the others are told of it by rank 0. */
static void note_failure(zinf_watch *w, const frame *f)
{
    char why[600];
    bool first;

    pthread_mutex_lock(&w->mutex);
    first = !w->failed;
    if (first) {
        w->failed = true;
        w->failed_s = now_s();
        w->failure = *f;
    }
    pthread_mutex_unlock(&w->mutex);
    if (!first)
        return;
    snprintf(why, sizeof why, "rank %" PRIu32 " %.*s", f->rank, TEXT_BYTES, f->text);
    w->collective->cancel(w->collective, why);
    if (w->collective->rank == 0)
        send_all(w, f, f->rank);
}

__attribute__((format(printf, 3, 4)))
static void peer_failed(zinf_watch *w, uint32_t rank, const char *format, ...)
{
    frame f = {.token = w->token, .kind = FRAME_FAILED, .rank = rank, .status = ZINF_MACHINE};
    va_list args;

    va_start(args, format);
    vsnprintf(f.text, sizeof f.text, format, args);
    va_end(args);
    note_failure(w, &f);
}

static void receive(zinf_watch *w, uint32_t i)
{
    peer *p = &w->peers[i];

    for (;;) {
        const ssize_t n = recv(p->fd, (char *)&p->in + p->n, sizeof p->in - p->n, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (n <= 0) {
            close(p->fd);
            p->fd = -1;
            if (!p->left)
                peer_failed(w, rank_of(w, i), "has ended without a word: it was killed, or died");
            return;
        }
        p->heard_s = now_s();
        p->n += (uint32_t)n;
        if (p->n < sizeof p->in)
            continue;
        p->n = 0;
        p->in.text[TEXT_BYTES - 1] = 0;
        if (p->in.status == ZINF_OK || p->in.status > ZINF_MACHINE)
            p->in.status = ZINF_MACHINE;
        if (p->in.token == w->token && p->in.kind == FRAME_FAILED)
            note_failure(w, &p->in);
        if (p->in.token == w->token && p->in.kind == FRAME_LEFT) {
            pthread_mutex_lock(&w->mutex);
            p->left = true;
            pthread_mutex_unlock(&w->mutex);
        }
    }
}

/* What this rank itself has to say: once a second that it lives. */
static void speak(zinf_watch *w)
{
    frame f = {.token = w->token, .kind = FRAME_BEAT, .rank = w->collective->rank};
    bool own;

    pthread_mutex_lock(&w->mutex);
    own = w->own_failure;
    w->own_failure = false;
    if (own)
        f = w->failure;
    else if (w->leaving)
        f.kind = FRAME_LEFT;
    pthread_mutex_unlock(&w->mutex);
    send_all(w, &f, UINT32_MAX);
    if (f.kind != FRAME_LEFT)
        return;
    pthread_mutex_lock(&w->mutex);
    w->told_left = true;
    pthread_mutex_unlock(&w->mutex);
}

static void wake(const zinf_watch *w)
{
    const uint64_t one = 1;

    while (write(w->wake, &one, sizeof one) < 0 && errno == EINTR)
        ;
}

/* A rank that was told and does not go: something of it hangs where nothing can reach it. */
static void end_if_stuck(zinf_watch *w)
{
    zinf_error err = {0};

    pthread_mutex_lock(&w->mutex);
    const bool stuck = w->failed && (w->finished || now_s() - w->failed_s > ZINF_GRACE_S);
    pthread_mutex_unlock(&w->mutex);
    if (!stuck)
        return;
    if (zinf_watch_failed(w, &err))
        fprintf(stderr, "zinf-run: rank %" PRIu32 ": %s\n", w->collective->rank, err.text);
    _exit(err.status ? (int)err.status : ZINF_MACHINE); /* the launcher ends the others */
}

static void *watch_thread(void *argument)
{
    zinf_watch *w = argument;
    double spoken_s = 0, before_s = now_s();

    while (!atomic_load(&w->stopping)) {
        for (uint32_t i = 0; i < w->n_peers; i++)
            w->fds[i] = (struct pollfd){.fd = w->peers[i].fd, .events = POLLIN};
        w->fds[w->n_peers] = (struct pollfd){.fd = w->wake, .events = POLLIN};
        poll(w->fds, w->n_peers + 1, BEAT_MS / 10);
        if (w->fds[w->n_peers].revents) {
            uint64_t ignored;
            const ssize_t n = read(w->wake, &ignored, sizeof ignored);
            (void)n; /* it does not block; that it woke is all */
        }
        const double now = now_s();
        for (uint32_t i = 0; i < w->n_peers; i++) {
            if (w->peers[i].fd >= 0 && w->fds[i].revents)
                receive(w, i);
            if (now - before_s > ZINF_SILENCE_S / 2)
                w->peers[i].heard_s = now; /* this process itself was stopped: others may live */
            if (w->peers[i].fd >= 0 && !w->peers[i].left &&
                now - w->peers[i].heard_s > ZINF_SILENCE_S)
                peer_failed(w, rank_of(w, i), "has been silent for %d s: it was stopped, or its "
                            "machine hangs", ZINF_SILENCE_S);
        }
        before_s = now;
        pthread_mutex_lock(&w->mutex);
        const bool soon = w->own_failure || (w->leaving && !w->told_left);
        pthread_mutex_unlock(&w->mutex);
        if (soon || now - spoken_s > 1e-3 * BEAT_MS) {
            speak(w);
            spoken_s = now;
        }
        end_if_stuck(w);
    }
    return NULL;
}

/* ---- joining ---- */

static bool read_hello(const zinf_watch *w, int fd, uint32_t *ret_rank)
{
    const struct timeval limit = {.tv_sec = 5};
    frame f;

    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    if (recv(fd, &f, sizeof f, MSG_WAITALL) != (ssize_t)sizeof f || f.token != w->token ||
        f.kind != FRAME_HELLO || f.rank == 0 || f.rank >= w->n_peers || w->peers[f.rank].fd >= 0)
        return false;
    *ret_rank = f.rank;
    return true;
}

static zinf_status accept_all(zinf_watch *w, int listener, zinf_error *err)
{
    const double end = now_s() + JOIN_S;

    for (uint32_t n = 1; n < w->n_peers;) {
        struct pollfd fd = {.fd = listener, .events = POLLIN};
        const double left = end - now_s();
        uint32_t rank;
        if (left <= 0)
            return zinf_fail(err, ZINF_MACHINE, "%" PRIu32 " of %" PRIu32 " ranks did not reach "
                             "rank 0 over TCP within %d s; is a firewall between the nodes?",
                             w->n_peers - n, w->n_peers, JOIN_S);
        if (poll(&fd, 1, (int)(left * 1e3) + 1) <= 0)
            continue;
        const int connection = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (connection < 0)
            continue;
        if (!read_hello(w, connection, &rank)) {
            close(connection);
            continue;
        }
        w->peers[rank].fd = connection;
        n++;
    }
    return ZINF_OK;
}

static zinf_status connect_to(zinf_watch *w, const address *to, zinf_error *err)
{
    const struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM};
    const frame hello = {.token = w->token, .kind = FRAME_HELLO, .rank = w->collective->rank};
    struct addrinfo *found = NULL;
    char mine[HOST_BYTES] = "", port[16];

    gethostname(mine, sizeof mine - 1);
    snprintf(port, sizeof port, "%" PRIu32, to->port);
    const int rc = getaddrinfo(strcmp(mine, to->host) ? to->host : "127.0.0.1", port, &hints,
                               &found);
    if (rc)
        return zinf_fail(err, ZINF_MACHINE, "the host of rank 0, \"%s\", is not known here: %s",
                         to->host, gai_strerror(rc));
    w->peers[0].fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (w->peers[0].fd < 0 || connect(w->peers[0].fd, found->ai_addr, found->ai_addrlen))
        zinf_fail(err, ZINF_MACHINE, "cannot reach rank 0 on \"%s\", port %s: %s; is a firewall "
                  "between the nodes?", to->host, port, strerror(errno));
    freeaddrinfo(found);
    if (!err->status)
        send_frame(&w->peers[0], &hello);
    return err->status;
}

static zinf_status listen_here(int *ret_listener, address *ret_address, zinf_error *err)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_ANY)};
    socklen_t n = sizeof at;
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0 || bind(fd, (struct sockaddr *)&at, sizeof at) || listen(fd, 1024) ||
        getsockname(fd, (struct sockaddr *)&at, &n)) {
        zinf_fail(err, ZINF_MACHINE, "cannot listen for the other ranks: %s", strerror(errno));
        if (fd >= 0)
            close(fd);
        return err->status;
    }
    gethostname(ret_address->host, sizeof ret_address->host - 1);
    ret_address->port = ntohs(at.sin_port);
    if (getrandom(&ret_address->token, sizeof ret_address->token, 0) < 0)
        ret_address->token = (uint64_t)getpid() << 32 ^ (uint64_t)(now_s() * 1e9);
    *ret_listener = fd;
    return ZINF_OK;
}

zinf_status zinf_watch_open(const zinf_collective *collective, zinf_watch **ret_watch,
                            zinf_error *err)
{
    zinf_watch *w = calloc(1, sizeof *w);
    address where = {0};
    int listener = -1, error;

    if (!w)
        return zinf_fail(err, ZINF_MACHINE, "out of memory for the watch over the ranks");
    w->collective = collective;
    w->wake = -1;
    pthread_mutex_init(&w->mutex, NULL);
    w->n_peers = collective->rank ? 1 : collective->n_ranks;
    w->peers = calloc(w->n_peers, sizeof *w->peers);
    w->fds = calloc(w->n_peers + (size_t)1, sizeof *w->fds);
    w->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (!w->peers || !w->fds) {
        zinf_fail(err, ZINF_MACHINE, "out of memory for the watch over the ranks");
        goto out;
    }
    for (uint32_t i = 0; i < w->n_peers; i++)
        w->peers[i].fd = -1;
    if (w->wake < 0) {
        zinf_fail(err, ZINF_MACHINE, "cannot watch the ranks: %s", strerror(errno));
        goto out;
    }
    if ((collective->rank == 0 && listen_here(&listener, &where, err)) ||
        collective->broadcast(collective, &where, &where, sizeof where, ZINF_U8, 0, err))
        goto out;
    w->token = where.token;
    if (collective->rank == 0 ? accept_all(w, listener, err) : connect_to(w, &where, err))
        goto out;
    for (uint32_t i = 0; i < w->n_peers; i++)
        w->peers[i].heard_s = now_s();
    error = pthread_create(&w->thread, NULL, watch_thread, w);
    w->started = error == 0;
    if (error)
        zinf_fail(err, ZINF_MACHINE, "cannot start the thread that watches the ranks: %s",
                  strerror(error));
out:
    if (listener >= 0)
        close(listener);
    if (err->status)
        zinf_watch_close(w);
    else
        *ret_watch = w;
    return err->status;
}

/* ---- while it runs ---- */

void zinf_watch_tell(zinf_watch *w, const zinf_error *failure)
{
    pthread_mutex_lock(&w->mutex);
    if (!w->failed) {
        w->failed = w->own_failure = true;
        w->failed_s = now_s();
        w->failure = (frame){.token = w->token, .kind = FRAME_FAILED,
                             .rank = w->collective->rank, .status = failure->status};
        snprintf(w->failure.text, sizeof w->failure.text, "failed: %.470s", failure->text);
    }
    pthread_mutex_unlock(&w->mutex);
    wake(w);
}

void zinf_watch_finish(zinf_watch *w)
{
    pthread_mutex_lock(&w->mutex);
    w->finished = true;
    pthread_mutex_unlock(&w->mutex);
}

void zinf_watch_leave(zinf_watch *w)
{
    const struct timespec pause = {.tv_nsec = 2000000};
    const double end = now_s() + 1;
    bool told = false;

    pthread_mutex_lock(&w->mutex);
    w->leaving = true;
    pthread_mutex_unlock(&w->mutex);
    wake(w);
    while (!told && now_s() < end) {
        nanosleep(&pause, NULL);
        pthread_mutex_lock(&w->mutex);
        told = w->told_left;
        pthread_mutex_unlock(&w->mutex);
    }
}

bool zinf_watch_failed(zinf_watch *w, zinf_error *err)
{
    pthread_mutex_lock(&w->mutex);
    const bool failed = w->failed && w->failure.rank != w->collective->rank;
    if (failed)
        zinf_fail(err, (zinf_status)w->failure.status, "rank %" PRIu32 " %s", w->failure.rank,
                  w->failure.text);
    pthread_mutex_unlock(&w->mutex);
    return failed;
}

void zinf_watch_wait(zinf_watch *w, double seconds)
{
    const double end = now_s() + seconds;
    const struct timespec pause = {.tv_nsec = 20000000};
    bool all = false;

    while (!all && now_s() < end) {
        nanosleep(&pause, NULL);
        pthread_mutex_lock(&w->mutex);
        all = true;
        for (uint32_t i = 0; i < w->n_peers; i++)
            all = all && (rank_of(w, i) == w->collective->rank || w->peers[i].left ||
                          (w->failed && w->failure.rank == rank_of(w, i)));
        pthread_mutex_unlock(&w->mutex);
    }
}

void zinf_watch_part(zinf_watch *w)
{
    const bool last = w->collective->rank == 0;

    if (!last)
        zinf_watch_leave(w);
    zinf_watch_wait(w, INFINITY); /* a failure ends the process (end_if_stuck) */
    if (last)
        zinf_watch_leave(w);
}

void zinf_watch_close(zinf_watch *w)
{
    if (!w)
        return;
    atomic_store(&w->stopping, true);
    if (w->started) {
        wake(w);
        pthread_join(w->thread, NULL);
    }
    if (w->wake >= 0)
        close(w->wake);
    for (uint32_t i = 0; w->peers && i < w->n_peers; i++)
        if (w->peers[i].fd >= 0)
            close(w->peers[i].fd);
    pthread_mutex_destroy(&w->mutex);
    free(w->peers);
    free(w->fds);
    free(w);
}
