/* tools/probe_compute.c - zinf-probe's measurements of cores and memory, made through the kernel
 * table that zinf-run uses, so that the numbers are of the code that will run. */
#include "tools/probe.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
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
enum { SETS = 8, SETS_QUICK = 1 };

typedef struct gemm_case {
    const zinf_kernels *table;
    zinf_gemm *gemm;
    char *sets;
    size_t a_bytes, b_bytes, c_bytes; /* of a set */
    int n_sets, next;
    void *scratch;
} gemm_case;

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

static void run_gemm(void *arg)
{
    gemm_case *it = arg;
    char *a = it->sets + (size_t)it->next * (it->a_bytes + it->b_bytes + it->c_bytes);

    it->next = (it->next + 1) % it->n_sets;
    it->table->gemm_run(it->gemm, a, a + it->a_bytes, NULL, NULL, a + it->a_bytes + it->b_bytes,
                        it->scratch);
}

static zinf_status measure_shape(const probe_options *options, zinf_dtype dtype,
                                 const struct shape *shape, double *ret_rate, zinf_error *err)
{
    const int64_t part = options->quick ? 4 : 1;
    const int64_t m = shape->m / part, n = shape->n / part, k = shape->k / part;
    const zinf_dtype c_dtype = shape->trans_a ? ZINF_F32 : dtype;
    const size_t scratch_bytes = zinf_gemm_scratch_bytes((uint64_t)m, (uint64_t)n, (uint64_t)k,
                                                         (uint64_t)options->n_threads);
    const zinf_gemm_desc desc = {
        .m = m, .n = n, .k = k, .lda = shape->trans_a ? m : k, .ldb = shape->trans_b ? k : n,
        .ldc = n, .ab_dtype = dtype, .c_dtype = c_dtype, .trans_a = shape->trans_a,
        .trans_b = shape->trans_b,
    };
    zinf_kernels table;
    gemm_case it = {.table = &table, .a_bytes = (size_t)(m * k) * zinf_dtype_bytes(dtype),
                    .b_bytes = (size_t)(n * k) * zinf_dtype_bytes(dtype),
                    .c_bytes = (size_t)(m * n) * zinf_dtype_bytes(c_dtype),
                    .n_sets = options->quick ? SETS_QUICK : SETS};
    const size_t bytes = (size_t)it.n_sets * (it.a_bytes + it.b_bytes + it.c_bytes) + scratch_bytes;
    char name[96];

    zinf_kernels_cpu(&table, dtype, options->n_threads, ZINF_N_CPU_LEVELS - 1);
    it.sets = probe_reserve(bytes);
    if (!it.sets)
        return zinf_fail(err, ZINF_MACHINE, "no memory for a GEMM of %zu bytes: free some",
                         bytes);
    it.scratch = it.sets + bytes - scratch_bytes;
    fill(it.sets, (bytes - scratch_bytes) / zinf_dtype_bytes(dtype), dtype);
    it.gemm = table.gemm_create(&table, &desc, scratch_bytes);
    if (!it.gemm) {
        probe_release(it.sets, bytes);
        return zinf_fail(err, ZINF_MACHINE, "no memory to prepare the GEMM \"%s %d x %d x %d\"",
                         shape->name, (int)m, (int)n, (int)k);
    }
    const probe_rate rate = probe_measure(run_gemm, &it, 2.0 * (double)m * (double)n * (double)k,
                                          options->quick ? 0.05 : 0.5);
    table.gemm_destroy(it.gemm);
    probe_release(it.sets, bytes);
    snprintf(name, sizeof name, "%s %s %d x %d x %d", dtype == ZINF_F32 ? "f32 " : "bf16",
             shape->name, (int)m, (int)n, (int)k);
    probe_report(name, rate, 1e9, "GFLOP/s");
    *ret_rate = rate.median;
    return ZINF_OK;
}

static zinf_status measure_gemm(const probe_options *options, zinf_dtype dtype, double *ret_peak,
                                zinf_error *err)
{
    double seconds = 0; /* of N_SHAPES FLOP */

    for (int i = 0; i < N_SHAPES; i++) {
        double rate;
        if (measure_shape(options, dtype, &shapes[i], &rate, err))
            return err->status;
        seconds += 1 / rate;
    }
    *ret_peak = N_SHAPES / seconds;
    return ZINF_OK;
}

typedef struct attention_case {
    const zinf_kernels *table;
    int64_t batch, seq, heads, head_dim;
    char *sets;
    size_t set_bytes, width; /* width: tokens * hidden elements of 4 bytes at most */
    int n_sets, next;
    void *scratch;
} attention_case;

static void run_attention(void *arg)
{
    attention_case *it = arg;
    char *qkv = it->sets + (size_t)it->next * it->set_bytes, *out = qkv + 3 * it->width;
    char *dout = out + it->width, *dqkv = dout + it->width;
    float *lse = (float *)(void *)(dqkv + 3 * it->width);

    it->next = (it->next + 1) % it->n_sets;
    it->table->attention_forward(it->table, qkv, it->batch, it->seq, it->heads, it->heads,
                                 it->head_dim, out, lse, it->scratch);
    it->table->attention_backward(it->table, qkv, out, dout, lse, it->batch, it->seq, it->heads,
                                  it->heads, it->head_dim, dqkv, it->scratch);
}

/* Two products forward and five backward (the scores are made again), 2 FLOP a pair and
 * channel; a causal mask leaves half of seq * seq pairs, as the planner counts. */
static double attention_flop(const attention_case *it)
{
    double pairs = 0.5 * (double)it->seq * (double)it->seq;

    return 14.0 * (double)(it->batch * it->heads * it->head_dim) * pairs;
}

static zinf_status measure_attention(const probe_options *options, zinf_dtype dtype,
                                     double *ret_rate, zinf_error *err)
{
    static const int64_t sequences[] = {256, 512, 1024};
    enum { HEADS = 12, HEAD_DIM = 64 };
    const int n_sequences = options->quick ? 1 : 3;
    const size_t tokens = options->quick ? 256 : 2048;
    double rates[3];
    zinf_kernels table;

    zinf_kernels_cpu(&table, dtype, options->n_threads, ZINF_N_CPU_LEVELS - 1);
    for (int i = 0; i < n_sequences; i++) {
        int64_t seq = sequences[i];
        size_t scratch = zinf_attention_scratch_bytes((uint64_t)seq, HEAD_DIM,
                                                      (uint64_t)options->n_threads);
        attention_case it = {.table = &table, .batch = (int64_t)tokens / seq, .seq = seq,
                             .heads = HEADS, .head_dim = HEAD_DIM,
                             .width = tokens * HEADS * HEAD_DIM * 4,
                             .n_sets = options->quick ? SETS_QUICK : SETS};
        it.set_bytes = 8 * it.width + tokens * HEADS * 4;
        const size_t bytes = (size_t)it.n_sets * it.set_bytes + scratch;
        char name[64];

        it.sets = probe_reserve(bytes);
        if (!it.sets)
            return zinf_fail(err, ZINF_MACHINE, "no memory for attention: %zu bytes needed",
                             bytes);
        it.scratch = it.sets + bytes - scratch;
        fill(it.sets, (bytes - scratch) / zinf_dtype_bytes(dtype), dtype);
        probe_rate rate = probe_measure(run_attention, &it, attention_flop(&it),
                                        options->quick ? 0.05 : 0.4);
        probe_release(it.sets, bytes);
        snprintf(name, sizeof name, "%s attention, sequence %d",
                 dtype == ZINF_F32 ? "f32 " : "bf16", (int)seq);
        probe_report(name, rate, 1e9, "GFLOP/s");
        rates[i] = rate.median;
    }
    *ret_rate = probe_summarise(rates, n_sequences).median;
    return ZINF_OK;
}

typedef struct triad_case {
    float *a;
    const float *b, *c;
    int64_t n;
    int n_threads;
} triad_case;

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

typedef struct adam_case {
    const zinf_kernels *table;
    float *grad, *master, *m, *v;
    void *param;
    int64_t n;
} adam_case;

static void run_adam(void *arg)
{
    adam_case *it = arg;
    zinf_adam_args args = {.lr = 1e-4f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f,
                           .weight_decay = 0.1f, .bias1 = 0.1f, .bias2 = 0.05f,
                           .grad_scale = 1};

    it->table->adam(it->table, &args, it->grad, it->n, it->master, it->m, it->v, it->param);
}

static void run_sum(void *arg)
{
    adam_case *it = arg;
    volatile double sum = it->table->sum_of_squares(it->table, it->grad, it->n);

    (void)sum;
}

static void run_accumulate(void *arg)
{
    adam_case *it = arg;

    it->table->accumulate_f32(it->table, it->grad, it->n, it->m);
}

static void run_gelu(void *arg)
{
    adam_case *it = arg;

    it->table->gelu_forward(it->table, it->param, it->n, it->v);
}

typedef struct copy_case {
    void *to;
    const void *from;
    size_t bytes;
} copy_case;

static void run_copy(void *arg)
{
    copy_case *it = arg;

    memcpy(it->to, it->from, it->bytes);
}

/* Memory, Adam and the one-thread copy share one piece of memory: five arrays, each of them
 * staggered by a page and a cache line, since arrays at power-of-two distances alias. */
static zinf_status measure_memory(const probe_options *options, uint64_t available_bytes,
                                  probe_compute *compute, zinf_error *err)
{
    const size_t stagger = 4096 + 64;
    double seconds = options->quick ? 0.05 : 0.5;
    size_t array_bytes = options->quick ? (size_t)8 << 20 : (size_t)128 << 20;
    zinf_kernels table;

    while (array_bytes > (1 << 20) && array_bytes * 5 > available_bytes / 3)
        array_bytes /= 2;
    size_t bytes = 5 * (array_bytes + stagger);
    char *memory = probe_reserve(bytes);

    if (!memory)
        return zinf_fail(err, ZINF_MACHINE, "no memory for five arrays of %zu bytes",
                         array_bytes);
    char *arrays[5];
    for (int i = 0; i < 5; i++)
        arrays[i] = memory + (size_t)i * (array_bytes + stagger);
    int64_t n = (int64_t)(array_bytes / 4);
    zinf_kernels_cpu(&table, ZINF_BF16, options->n_threads, ZINF_N_CPU_LEVELS - 1);
    adam_case adam = {&table, (float *)(void *)arrays[0], (float *)(void *)arrays[1],
                      (float *)(void *)arrays[2], (float *)(void *)arrays[3], arrays[4], n};
    fill(adam.grad, (uint64_t)n, ZINF_F32);
    fill(adam.master, (uint64_t)n, ZINF_F32);

    triad_case triad = {adam.m, adam.grad, adam.master, n, options->n_threads};
    probe_rate rate = probe_measure(run_triad, &triad, 3.0 * (double)array_bytes, seconds);
    probe_report("memory, triad, all threads", rate, 1e9, "GB/s");
    compute->bandwidth = rate.median;

    memset(adam.m, 0, array_bytes);
    rate = probe_measure(run_adam, &adam, (double)n, seconds);
    probe_report("Adam, bf16 parameters", rate, 1e9, "Gparam/s");
    compute->adam = rate.median;
    probe_report("sum of squares", probe_measure(run_sum, &adam, 4.0 * (double)n, seconds / 2),
                 1e9, "GB/s");
    probe_report("accumulate",
                 probe_measure(run_accumulate, &adam, 12.0 * (double)n, seconds / 2), 1e9,
                 "GB/s");
    probe_report("gelu, bf16", probe_measure(run_gelu, &adam, 4.0 * (double)n, seconds / 2),
                 1e9, "GB/s");

    copy_case copy = {arrays[3], arrays[1], array_bytes};
    rate = probe_measure(run_copy, &copy, (double)array_bytes, seconds);
    probe_report("copy between arenas, one thread", rate, 1e9, "GB/s");
    compute->copy = rate.median;
    probe_release(memory, bytes);
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

zinf_status probe_measure_compute(const probe_options *options, uint64_t available_bytes,
                                  probe_compute *ret_compute, zinf_error *err)
{
    probe_compute compute = {0};
    double attention_f32 = 0, attention_bf16 = 0;

    fprintf(stderr, "GEMM, %d threads\n", options->n_threads);
    if (measure_gemm(options, ZINF_F32, &compute.peak_f32, err) ||
        measure_gemm(options, ZINF_BF16, &compute.peak_bf16, err))
        return err->status;
    fprintf(stderr, "attention, forward and backward\n");
    if (measure_attention(options, ZINF_F32, &attention_f32, err) ||
        measure_attention(options, ZINF_BF16, &attention_bf16, err))
        return err->status;
    compute.attention = attention_bf16;
    compute.attention_f32 = attention_f32;
    fprintf(stderr, "memory\n");
    if (measure_memory(options, available_bytes, &compute, err) ||
        measure_hand_over(&compute.hand_over_s, err))
        return err->status;
    *ret_compute = compute;
    return ZINF_OK;
}
