/* tests/ranks/collective.c - the collectives over MPI against what they promise: exact fills, so
 * that a wrong element, count or order is a wrong number; sizes around every internal boundary;
 * and trainings whose queues are delayed, so that what is not waited for is seen.
 *
 * usage: mpirun -n 3 test-ranks-collective FOLDER. Run by collective.py; what rank 0 tells is in
 * FOLDER/told.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/ranks.h"
#include "tests/bitwise/trainer.h"
#include "tests/check.h"

static zinf_ranks ranks;
static zinf_error err;
static const char *folder;
#define C ranks.collective

/* A piece of a sum is 65536 floats; that and its neighbours, none, one, and several pieces. */
static const uint64_t sizes[] = {0, 1, 7, 65535, 65536, 65537, 3 * 65536 + 5};
enum { N_SIZES = sizeof sizes / sizeof *sizes };

/* All ranks agree on the outcome, so that no rank waits for one that has failed. */
static bool all(bool fine)
{
    double failed = !fine;

    return zinf_ranks_sum(&ranks, &failed, 1, &err) == ZINF_OK && failed == 0;
}

static void every_rank_gets_every_shard(void)
{
    for (int s = 0; s < N_SIZES; s++) {
        const uint64_t n = sizes[s];
        int32_t *send = malloc(4 * n + 4), *recv = calloc(n * C->n_ranks + 1, 4);
        bool fine = send && recv;
        recv[n * C->n_ranks] = -7; /* a canary */
        for (uint64_t i = 0; i < n; i++)
            send[i] = (int32_t)(C->rank * 1000003 + i);
        fine = fine && !C->allgather(C, send, recv, n, ZINF_I32, &err);
        for (uint64_t k = 0; fine && k < n * C->n_ranks; k++)
            fine = recv[k] == (int32_t)(k / n * 1000003 + k % n);
        fine = fine && recv[n * C->n_ranks] == -7;
        CHECK(all(fine));
        memcpy(recv + C->rank * n, send, 4 * n); /* in place */
        CHECK(all(!C->allgather(C, recv + C->rank * n, recv, n, ZINF_I32, &err) &&
                  (n == 0 || recv[n * C->n_ranks - 1] ==
                                 (int32_t)((C->n_ranks - 1) * 1000003 + n - 1))));
        free(send);
        free(recv);
    }
}

/* Small integers: any order of summation is exact. */
static void every_shard_is_the_sum_of_all_ranks(void)
{
    for (int s = 0; s < N_SIZES; s++) {
        const uint64_t n = sizes[s], total = n * C->n_ranks;
        const uint64_t factor = C->n_ranks * (C->n_ranks + 1) / 2;
        float *send = malloc(4 * total + 4), *recv = malloc(4 * n + 4);
        bool fine = send && recv;
        recv[n] = -7;
        for (uint64_t k = 0; k < total; k++)
            send[k] = (float)((k % 1021) * (C->rank + 1));
        fine = fine && !C->reduce_scatter(C, send, recv, n, ZINF_F32, &err);
        for (uint64_t i = 0; fine && i < n; i++)
            fine = recv[i] == (float)((C->rank * n + i) % 1021 * factor);
        CHECK(all(fine && recv[n] == -7));
        free(send);
        free(recv);
    }
}

/* Of all shards at once, on the rank that owns them: to the bit what shards are. */
static void a_root_gets_the_sum_of_every_shard(void)
{
    for (int s = 0; s < N_SIZES; s++) {
        const uint64_t n = sizes[s], total = n * C->n_ranks;
        float *send = malloc(4 * total + 4), *shard = malloc(4 * n + 4);
        float *parts = malloc(4 * total + 4), *recv = malloc(4 * total + 4);
        bool fine = send && shard && parts && recv;
        for (uint64_t k = 0; k < total; k++) /* of all magnitudes: any other order is seen */
            send[k] = (float)(1 << (k * 7 + C->rank * 11) % 29) / (float)(3 + (k + C->rank) % 5);
        fine = fine && !C->reduce_scatter(C, send, shard, n, ZINF_F32, &err) &&
               !C->allgather(C, shard, parts, n, ZINF_F32, &err);
        for (uint32_t root = 0; root < C->n_ranks; root++) {
            for (uint64_t k = 0; k <= total; k++)
                recv[k] = -7;
            fine = fine && !C->reduce(C, send, recv, total, ZINF_F32, root, &err) &&
                   recv[total] == -7;
            for (uint64_t k = 0; fine && k < total; k++)
                fine = recv[k] == (C->rank == root ? parts[k] : -7);
            CHECK_MESSAGE(all(fine), "%llu elements to rank %u", (unsigned long long)total, root);
        }
        free(send);
        free(shard);
        free(parts);
        free(recv);
    }
}

/* Numbers whose sum depends on its order: s, s + 1, .. for shard s; 0, 1, .. for scalars. */
static void sums_have_the_order_that_is_promised(void)
{
    const float parts[3] = {1, 0x1p24f, -0x1p24f};
    float send[3], recv = 0;
    double scalar = C->rank == 0 ? 1 : C->rank == 1 ? 0x1p53 : -0x1p53;

    for (uint32_t shard = 0; shard < 3; shard++)
        send[shard] = parts[C->rank];
    CHECK(all(!C->reduce_scatter(C, send, &recv, 1, ZINF_F32, &err)));
    float want = parts[C->rank];
    for (uint32_t k = 1; k < 3; k++)
        want += parts[(C->rank + k) % 3];
    CHECK(all(recv == want));
    CHECK(all(!C->allreduce(C, &scalar, &scalar, 1, ZINF_F64, &err)));
    CHECK(all(scalar == (1 + 0x1p53) - 0x1p53)); /* 0: the 1 is lost */
}

static void many_scalars_are_summed_and_bytes_broadcast(void)
{
    enum { N = 40000 }; /* several rounds of 256 KiB */
    double *x = malloc(N * sizeof *x);
    bool fine = x != NULL;

    for (int i = 0; fine && i < N; i++)
        x[i] = i * (C->rank + 1.0);
    fine = fine && !C->allreduce(C, x, x, N, ZINF_F64, &err);
    for (int i = 0; fine && i < N; i++)
        fine = x[i] == i * (C->n_ranks * (C->n_ranks + 1) / 2.0);
    CHECK(all(fine));
    for (uint32_t root = 0; root < C->n_ranks; root++) {
        for (int i = 0; i < N; i++)
            x[i] = C->rank == root ? i + 0.5 * root : -1;
        fine = !C->broadcast(C, x, x, N, ZINF_F64, root, &err);
        for (int i = 0; fine && i < N; i++)
            fine = x[i] == i + 0.5 * root;
        CHECK(all(fine));
    }
    free(x);
}

static void what_is_sent_is_counted(void)
{
    float send[300], recv[300];
    const uint64_t before = C->sent_bytes(C);

    memset(send, 0, sizeof send);
    bool fine = !C->allgather(C, send, recv, 100, ZINF_F32, &err) &&
                C->sent_bytes(C) - before == 800 &&
                !C->reduce_scatter(C, send, recv, 100, ZINF_F32, &err) &&
                C->sent_bytes(C) - before == 1600 &&
                !C->broadcast(C, send, send, 300, ZINF_F32, 1, &err) &&
                C->sent_bytes(C) - before == (C->rank == 1 ? 1600 + 2400 : 1600) &&
                !C->reduce(C, send, recv, 300, ZINF_F32, 1, &err) &&
                C->sent_bytes(C) - before == (C->rank == 1 ? 4000 : 2800);
    CHECK(all(fine));
}

static void integers_are_added_modulo_2_to_the_64(void)
{
    uint64_t values[5000];

    for (int i = 0; i < 5000; i++)
        values[i] = UINT64_MAX - C->rank + (uint64_t)i;
    bool fine = !zinf_ranks_add(&ranks, values, 5000, &err);
    for (int i = 0; i < 5000 && fine; i++)
        fine = values[i] == 3 * (uint64_t)i - 6;
    CHECK(all(fine));
}

/* The ranks are on one machine: what one has done is a file that the others wait for, a minute. */
static void done(const char *what)
{
    char path[300];

    snprintf(path, sizeof path, "%s/%s", folder, what);
    close(open(path, O_CREAT | O_WRONLY, 0600));
}

static bool wait_until_done(const char *what)
{
    char path[300];

    snprintf(path, sizeof path, "%s/%s", folder, what);
    for (int i = 0; i < 6000 * CHECK_SLOWER && access(path, F_OK); i++)
        usleep(10000);
    return !access(path, F_OK);
}

static void *cancel_later(void *unused)
{
    (void)unused;
    usleep(300000);
    C->cancel(C, "called back");
    return NULL;
}

static bool trains(const char *directory, const char *sets, bool serial, uint64_t delay_seed,
                   trainer_outcome *ret_outcome)
{
    static const trainer_model model = {2, 32, 2, 100, 16, 6, "bf16", NULL};
    const trainer_options options = {.directory = directory, .collective = C, .serial = serial,
                                     .steps = 3, .delay_seed = delay_seed};
    zinf_plan plan = {0};
    zinf_error why = {0};
    char all_sets[512];

    snprintf(all_sets, sizeof all_sets, "micro_batch=1 tiles=2 checkpoint_interval=1 threads=1 %s",
             sets);
    if (!all(trainer_plan_ranks(&model, false, C->n_ranks, all_sets, &plan, &why) == ZINF_OK)) {
        printf("# %s: %s\n", sets, why.text);
        return false;
    }
    alarm(60 * CHECK_SLOWER); /* what hangs is killed, and mpirun ends the others */
    trainer_run(&plan, &options, ret_outcome);
    alarm(0);
    zinf_plan_free(&plan);
    if (ret_outcome->err.status)
        printf("# %s: %s\n", sets, ret_outcome->err.text);
    return all(ret_outcome->err.status == ZINF_OK) &&
           !zinf_ranks_add(&ranks, &ret_outcome->state_hash, 1, &err);
}

/* Each rank pauses at other places; what a queue does not wait for is then not there. */
static void random_delays_on_every_rank_give_the_same_bits(void)
{
    static const char *const places[] = {
        "tier.param=nvme tier.grad=nvme tier.optimizer=nvme tier.checkpoint=nvme",
        "tier.param=device tier.grad=host tier.optimizer=host tier.checkpoint=device"};
    static const char *const parts[] = {"bandwidth", "owner"};
    char directory[64], sets[256];
    trainer_outcome expected, found;
    uint64_t seed = 1 + 1000 * C->rank;

    snprintf(directory, sizeof directory, "/tmp/zinf-delays-XXXXXX");
    CHECK(all(mkdtemp(directory) != NULL));
    bool fine = trains(directory, places[1], true, 0, &expected);
    fine = fine && expected.loss[0] > 4 && expected.loss[2] < expected.loss[0];
    for (unsigned i = 0; fine && i < 8; i++) {
        snprintf(sets, sizeof sets, "%s partitioning=%s prefetch.gather=%u prefetch.read=%u "
                 "prefetch.upload=%u", places[i % 2], parts[(i + i / 2) % 2], i / 2, i / 2,
                 (i + 1) / 2 % 4);
        fine = trains(directory, sets, false, seed++, &found) &&
               all(trainer_same(&found, &expected));
        if (!fine)
            printf("# %s\n", sets);
    }
    rmdir(directory);
    CHECK(fine);
}

/* Last: the table is of no use afterwards. Rank 0 waits for what comes too late: by then it may
 * have given the memory away, so nothing may be written there, whatever is called next. */
static void a_wait_can_be_ended_from_another_thread_and_writes_nothing_later(void)
{
    pthread_t thread;
    double x = C->rank, more[3] = {0};
    zinf_error called = {0}, again = {0};

    if (C->rank != 0) {
        CHECK(wait_until_done("cancelled"));
        CHECK(C->broadcast(C, &x, &x, 1, ZINF_F64, 1, &called) == ZINF_OK && x == 1);
        return;
    }
    CHECK(!pthread_create(&thread, NULL, cancel_later, NULL));
    CHECK(C->broadcast(C, &x, &x, 1, ZINF_F64, 1, &called) == ZINF_MACHINE);
    CHECK(!strcmp(called.text, "called back"));
    pthread_join(thread, NULL);
    x = 7;
    done("cancelled");
    usleep(600000); /* time to write what it should not */
    for (int i = 0; i < 3; i++) {
        again = (zinf_error){0};
        CHECK(C->allgather(C, &x, more, 1, ZINF_F64, &again) == ZINF_MACHINE);
        CHECK(x == 7 && !strcmp(again.text, "called back"));
    }
}

int main(int argc, char **argv)
{
    const zinf_launch launch = zinf_ranks_launch();
    char told[300];

    if (argc < 2)
        return 1;
    folder = argv[1];
    snprintf(told, sizeof told, "%s/told", folder);
    if (zinf_ranks_join(&launch, &ranks, &err) || C->n_ranks != 3) {
        fprintf(stderr, "collective: %s\n", err.text);
        return 1;
    }
    if (!freopen(C->rank ? "/dev/null" : told, "w", stdout))
        return 1;
    RUN(every_rank_gets_every_shard);
    RUN(every_shard_is_the_sum_of_all_ranks);
    RUN(a_root_gets_the_sum_of_every_shard);
    RUN(sums_have_the_order_that_is_promised);
    RUN(many_scalars_are_summed_and_bytes_broadcast);
    RUN(what_is_sent_is_counted);
    RUN(integers_are_added_modulo_2_to_the_64);
    RUN(random_delays_on_every_rank_give_the_same_bits);
    RUN(a_wait_can_be_ended_from_another_thread_and_writes_nothing_later);
    const int code = check_finish();
    fflush(stdout);
    if (C->rank == 0)
        done("all");
    wait_until_done("all"); /* a rank that ends before rank 0 has told might end it */
    _exit(code);
}
