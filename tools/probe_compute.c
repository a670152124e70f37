/* tools/probe_compute.c - zinf-probe's measurements of cores and memory, made through the kernel
 * table that zinf-run uses, so that the numbers are of the code that will run. */
#include "tools/probe.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"

/* Forward, input gradient and weight gradient of a linear layer: a training step has as many FLOP
 * of each, so that its peak is their harmonic mean. */
static const struct shape {
    const char *name;
    int64_t m, n, k;
    bool trans_a, trans_b;
} shapes[] = {
    {"forward", 2048, 3072, 768, false, true},
    {"input grad", 2048, 768, 3072, false, false},
    {"weight grad", 3072, 768, 2048, true, false},
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

/* Operands of several calls, used in turns: in a step a call finds its operands in memory, not in
 * the caches where the last one left them. */
enum { SETS = 8, SETS_QUICK = 1, N_DTYPES = 2, MOST_CASES = 32 };
static const zinf_dtype dtypes[N_DTYPES] = {ZINF_F32, ZINF_BF16};

/* Memory that all products, or all attentions, of a type share: what is read holds numbers, what
 * is written lies elsewhere. */
typedef struct pool {
    char *in, *out, *scratch; /* in: of all, to be released */
    size_t in_bytes, out_bytes, scratch_bytes;
} pool;

typedef struct gemm_case {
    const zinf_kernels *table;
    const pool *memory;
    zinf_gemm *gemm;
    int64_t m, n, k;
    size_t a_bytes, b_bytes, c_bytes; /* of a set */
    int n_sets, next;
} gemm_case;

typedef struct triad_case {
    float *a;
    const float *b, *c;
    int64_t n;
    int n_threads;
} triad_case;

typedef struct copy_case {
    void *to;
    const void *from;
    size_t bytes;
} copy_case;

typedef struct bench {
    const probe_options *options;
    zinf_kernels tables[N_DTYPES];
    pool pools[N_DTYPES];
    gemm_case gemms[N_DTYPES][N_SHAPES];
    char *arrays;
    triad_case triad;
    copy_case copy;
    probe_case cases[MOST_CASES];
    int n_cases;
} bench;

/* Values in [-1, 1): denormals and zeros would flatter or slow the multipliers. */
static void fill(void *memory, uint64_t n, zinf_dtype dtype)
{
    uint32_t state = 12345;

    for (uint64_t i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        float value = (float)(int32_t)state * 0x1p-31f;

        if (dtype == ZINF_F32) {
            ((float *)memory)[i] = value;
        } else {
            uint32_t bits;
            memcpy(&bits, &value, sizeof bits);
            ((uint16_t *)memory)[i] = (uint16_t)(bits >> 16);
        }
    }
}

static size_t most(size_t a, size_t b)
{
    return a > b ? a : b;
}

static probe_case *add_case(bench *it, void (*body)(void *), void *arg, double work, double scale,
                            const char *unit)
{
    probe_case *made = &it->cases[it->n_cases++];

    *made = (probe_case){.body = body, .arg = arg, .work = work, .scale = scale, .unit = unit};
    return made;
}

static void run_gemm(void *arg)
{
    gemm_case *it = arg;
    const char *a = it->memory->in + (size_t)it->next * (it->a_bytes + it->b_bytes);
    char *c = it->memory->out + (size_t)it->next * it->c_bytes;

    it->next = (it->next + 1) % it->n_sets;
    it->table->gemm_run(it->gemm, a, a + it->a_bytes, NULL, NULL, c, it->memory->scratch);
}

static zinf_gemm_desc describe(const gemm_case *it, const struct shape *shape, zinf_dtype dtype)
{
    return (zinf_gemm_desc){
        .m = it->m, .n = it->n, .k = it->k, .lda = shape->trans_a ? it->m : it->k,
        .ldb = shape->trans_b ? it->k : it->n, .ldc = it->n, .ab_dtype = dtype,
        .c_dtype = shape->trans_a ? ZINF_F32 : dtype, .trans_a = shape->trans_a,
        .trans_b = shape->trans_b,
    };
}

/* Sizes of the products of a type, and of the memory for them. */
static void size_gemms(bench *it, int type)
{
    const zinf_dtype dtype = dtypes[type];
    const int64_t part = it->options->quick ? 4 : 1;
    const size_t element = zinf_dtype_bytes(dtype);
    pool *memory = &it->pools[type];

    for (int i = 0; i < N_SHAPES; i++) {
        gemm_case *gemm = &it->gemms[type][i];
        const int64_t m = shapes[i].m / part, n = shapes[i].n / part, k = shapes[i].k / part;
        *gemm = (gemm_case){
            .table = &it->tables[type], .memory = memory, .m = m, .n = n, .k = k,
            .a_bytes = (size_t)(m * k) * element, .b_bytes = (size_t)(n * k) * element,
            .c_bytes = (size_t)(m * n) * (shapes[i].trans_a ? 4 : element),
            .n_sets = it->options->quick ? SETS_QUICK : SETS};
        const size_t sets = (size_t)gemm->n_sets;
        memory->in_bytes = most(memory->in_bytes, sets * (gemm->a_bytes + gemm->b_bytes));
        memory->out_bytes = most(memory->out_bytes, sets * gemm->c_bytes);
        memory->scratch_bytes =
            most(memory->scratch_bytes,
                 zinf_gemm_scratch_bytes((uint64_t)m, (uint64_t)n, (uint64_t)k,
                                         (uint64_t)it->options->n_threads));
    }
}

static zinf_status add_gemms(bench *it, int type, zinf_error *err)
{
    for (int i = 0; i < N_SHAPES; i++) {
        gemm_case *gemm = &it->gemms[type][i];
        const zinf_gemm_desc desc = describe(gemm, &shapes[i], dtypes[type]);
        gemm->gemm = it->tables[type].gemm_create(&it->tables[type], &desc,
                                                  it->pools[type].scratch_bytes);
        if (!gemm->gemm)
            return zinf_fail(err, ZINF_MACHINE, "no memory to prepare the GEMM \"%s %d x %d x %d\"",
                             shapes[i].name, (int)gemm->m, (int)gemm->n, (int)gemm->k);
        probe_case *made = add_case(it, run_gemm, gemm,
                                    2.0 * (double)gemm->m * (double)gemm->n * (double)gemm->k, 1e9,
                                    "GFLOP/s");
        snprintf(made->name, sizeof made->name, "%s %s %d x %d x %d",
                 type ? "bf16" : "f32 ", shapes[i].name, (int)gemm->m, (int)gemm->n, (int)gemm->k);
    }
    return ZINF_OK;
}

/* Everything that is read gets numbers; out and scratch follow. */
static zinf_status reserve(pool *memory, zinf_dtype dtype, zinf_error *err)
{
    memory->in_bytes = (memory->in_bytes + 63) / 64 * 64;
    memory->out_bytes = (memory->out_bytes + 63) / 64 * 64;
    const size_t bytes = memory->in_bytes + memory->out_bytes + memory->scratch_bytes;

    memory->in = probe_reserve(bytes);
    if (!memory->in)
        return zinf_fail(err, ZINF_MACHINE, "no memory for GEMM and attention: %zu bytes are"
                         " needed; free some", bytes);
    memory->out = memory->in + memory->in_bytes;
    memory->scratch = memory->out + memory->out_bytes;
    fill(memory->in, memory->in_bytes / zinf_dtype_bytes(dtype), dtype);
    return ZINF_OK;
}

static void run_triad(void *arg)
{
    triad_case *it = arg;
    float *a = it->a;
    const float *b = it->b, *c = it->c;
    int64_t n = it->n;

#pragma omp parallel for num_threads(it->n_threads) schedule(static)
    for (int64_t i = 0; i < n; i++)
        a[i] = b[i] + 3.0f * c[i];
}

static void run_copy(void *arg)
{
    copy_case *it = arg;

    memcpy(it->to, it->from, it->bytes);
}

/* Memory and the one-thread copy share one piece of memory: three arrays, each of them staggered by
 * a page and a cache line, since arrays at power-of-two distances alias. */
static zinf_status add_memory(bench *it, uint64_t available_bytes, zinf_error *err)
{
    const size_t stagger = 4096 + 64;
    size_t array_bytes = it->options->quick ? (size_t)8 << 20 : (size_t)128 << 20;
    char *arrays[3];

    while (array_bytes > (1 << 20) && array_bytes * 3 > available_bytes / 3)
        array_bytes /= 2;
    it->arrays = probe_reserve(3 * (array_bytes + stagger));
    if (!it->arrays)
        return zinf_fail(err, ZINF_MACHINE, "no memory for three arrays of %zu bytes",
                         array_bytes);
    for (int i = 0; i < 3; i++)
        arrays[i] = it->arrays + (size_t)i * (array_bytes + stagger);
    const int64_t n = (int64_t)(array_bytes / 4);
    it->triad = (triad_case){(float *)(void *)arrays[0], (float *)(void *)arrays[1],
                             (float *)(void *)arrays[2], n, it->options->n_threads};
    it->copy = (copy_case){arrays[0], arrays[1], array_bytes};
    fill(arrays[1], (uint64_t)n, ZINF_F32);
    fill(arrays[2], (uint64_t)n, ZINF_F32);
    snprintf(add_case(it, run_triad, &it->triad, 3.0 * (double)array_bytes, 1e9, "GB/s")->name,
             sizeof it->cases->name, "memory, triad, all threads");
    snprintf(add_case(it, run_copy, &it->copy, (double)array_bytes, 1e9, "GB/s")->name,
             sizeof it->cases->name, "copy between arenas, one thread");
    return ZINF_OK;
}

typedef struct hand_over {
    sem_t go, back;
    int rounds;
} hand_over;

static void *answer(void *arg)
{
    hand_over *it = arg;

    for (int i = 0; i < it->rounds; i++) {
        sem_wait(&it->go);
        sem_post(&it->back);
    }
    return NULL;
}

/* What starting a transfer on another queue costs: waking its thread. */
static zinf_status measure_hand_over(double *ret_seconds, zinf_error *err)
{
    enum { ROUNDS = 2000 };
    hand_over it = {.rounds = ROUNDS};
    pthread_t thread;
    double samples[ROUNDS];

    sem_init(&it.go, 0, 0);
    sem_init(&it.back, 0, 0);
    if (pthread_create(&thread, NULL, answer, &it) != 0)
        return zinf_fail(err, ZINF_MACHINE, "cannot start a thread: raise `ulimit -u`");
    for (int i = 0; i < ROUNDS; i++) {
        double start = probe_now();

        sem_post(&it.go);
        sem_wait(&it.back);
        samples[i] = 0.5 * (probe_now() - start);
    }
    pthread_join(thread, NULL);
    sem_destroy(&it.go);
    sem_destroy(&it.back);
    *ret_seconds = probe_summarise(samples, ROUNDS).median;
    fprintf(stderr, "  %-34s %9.2f us\n", "hand-over between threads", 1e6 * *ret_seconds);
    return ZINF_OK;
}

/* Everything is made first, then measured in turns, then told. */
static zinf_status prepare(bench *it, uint64_t available_bytes, zinf_error *err)
{
    for (int type = 0; type < N_DTYPES; type++) {
        zinf_kernels_cpu(&it->tables[type], dtypes[type], it->options->n_threads,
                         ZINF_N_CPU_LEVELS - 1);
        size_gemms(it, type);
        if (reserve(&it->pools[type], dtypes[type], err) || add_gemms(it, type, err))
            return err->status;
    }
    return add_memory(it, available_bytes, err);
}

static void tell(bench *it, probe_compute *compute)
{
    double *const peaks[N_DTYPES] = {&compute->peak_f32, &compute->peak_bf16};
    probe_case *next = it->cases;

    fprintf(stderr, "in turns, %d threads: median of %d\n", it->options->n_threads,
            it->cases[0].n);
    for (int type = 0; type < N_DTYPES; type++) {
        double seconds = 0; /* of N_SHAPES FLOP */
        for (int i = 0; i < N_SHAPES; i++)
            seconds += 1 / probe_result(next++).median;
        *peaks[type] = N_SHAPES / seconds;
    }
    compute->bandwidth = probe_result(next++).median;
    compute->copy = probe_result(next).median;
}

zinf_status probe_measure_compute(const probe_options *options, uint64_t available_bytes,
                                  probe_compute *ret_compute, zinf_error *err)
{
    static bench it; /* large; zinf-probe measures once */
    probe_compute compute = {0};

    it.options = options;
    if (!prepare(&it, available_bytes, err)) {
        probe_measure(it.cases, it.n_cases, options->quick ? 0.01 : 0.06, options->quick);
        tell(&it, &compute);
        if (!measure_hand_over(&compute.hand_over_s, err))
            *ret_compute = compute;
    }
    for (int type = 0; type < N_DTYPES; type++) {
        for (int i = 0; i < N_SHAPES; i++)
            if (it.gemms[type][i].gemm)
                it.tables[type].gemm_destroy(it.gemms[type][i].gemm);
        free(it.pools[type].in);
    }
    free(it.arrays);
    return err->status;
}
