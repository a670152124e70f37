/* tests/kernels/threads.c - every operator but GEMM gives the same bits with 1, 2, 3 and 7 threads
 * and at other addresses; sizes are above the size from which threads are used.
 */
#include "tests/kernels/guard.h"

enum { N = 193, C = 193, H = 4, G = 2, D = 21, SEQ = 131, V = 401, LONG = 200003 };

typedef struct outputs {
    unsigned char *bytes;
    size_t size;
} outputs;

/* Copies what a kernel wrote behind what the others wrote. */
static void keep(outputs *o, const void *data, size_t bytes)
{
    o->bytes = realloc(o->bytes, o->size + bytes);
    if (!o->bytes)
        abort();
    memcpy(o->bytes + o->size, data, bytes);
    o->size += bytes;
}

static outputs run_all(int threads, size_t shift)
{
    const size_t size = zinf_dtype_bytes(act), s = shift * 4;
    const uint64_t scratch_bytes = zinf_attention_scratch_bytes(SEQ, D, 8) + (1 << 20);
    const zinf_adam_args args = {1e-3f, .9f, .95f, 1e-8f, .1f, .1f, .05f, 1};
    static const double frequencies[D / 2] = {1, 0.4, 0.16, 0.06, 0.025, 0.01, 4e-3, 1e-3};
    zinf_kernels t;
    outputs o = {NULL, 0};
    double sum;

    seed = 99;
    zinf_kernels_cpu(&t, act, threads, level);
    void *x = set(UNIT, act, take_shifted(LONG * size, s), LONG);
    void *dy = set(UNIT, act, take_shifted(LONG * size, s), LONG);
    float *f = set(UNIT, ZINF_F32, take_shifted(LONG * 4, s), LONG);
    float *g = set(UNIT, ZINF_F32, take_shifted(LONG * 4, s), LONG);
    float *m = set(UNIT, ZINF_F32, take_shifted(LONG * 4, s), LONG);
    void *y = take_shifted(LONG * size, s);
    float *stats = take_shifted(3 * N * 4, s), *lse = take_shifted(2 * H * SEQ * 4, s);
    int32_t *tokens = take_shifted((2 * SEQ + N) * 4, s);
    void *scratch = take_scratch(scratch_bytes);

    for (int i = 0; i < 2 * SEQ + N; i++)
        tokens[i] = (int32_t)draw_below(90);
    t.layernorm_forward(&t, x, dy, dy, N, C, y, stats);
    keep(&o, y, N * C * size), keep(&o, stats, N * 2 * 4);
    t.layernorm_backward(&t, dy, false, x, dy, stats, NULL, N, C, true, y, f, g, scratch);
    keep(&o, y, N * C * size), keep(&o, f, C * 4), keep(&o, g, C * 4);
    t.rmsnorm_forward(&t, x, dy, 1e-6, N, C, y, stats);
    keep(&o, y, N * C * size), keep(&o, stats, N * 4);
    t.rmsnorm_backward(&t, dy, false, x, dy, stats, NULL, N, C, true, y, f, scratch);
    keep(&o, y, N * C * size), keep(&o, f, C * 4);
    memcpy(y, x, LONG * size);
    t.rope(&t, frequencies, 2, SEQ, H + G, D - 1, (H + 2 * G) * (D - 1), false, y);
    keep(&o, y, 2 * SEQ * (H + 2 * G) * (D - 1) * size);
    t.swiglu_forward(&t, x, N, C, y), keep(&o, y, N * C * size);
    t.swiglu_backward(&t, x, dy, false, N, C, y), keep(&o, y, 2 * N * C * size);
    t.attention_forward(&t, x, 2, SEQ, H, G, D, y, lse, scratch);
    keep(&o, y, 2 * SEQ * H * D * size), keep(&o, lse, 2 * H * SEQ * 4);
    void *dqkv = take_shifted(2 * SEQ * (H + 2 * G) * D * size, s);
    t.attention_backward(&t, x, y, dy, lse, 2, SEQ, H, G, D, dqkv, scratch);
    keep(&o, dqkv, 2 * SEQ * (H + 2 * G) * D * size);
    t.gelu_forward(&t, x, LONG, y), keep(&o, y, LONG * size);
    t.gelu_backward(&t, x, dy, false, LONG, y), keep(&o, y, LONG * size);
    t.column_sum(&t, x, V + 3, N, V, true, f, scratch), keep(&o, f, V * 4);
    t.softmax_stats(&t, g, V, tokens, 0, V, N, true, stats), keep(&o, stats, 3 * N * 4);
    t.softmax_backward(&t, g, V, tokens, stats, 0, V, N, 0.3f, y, V), keep(&o, y, N * V * size);
    sum = t.softmax_loss(&t, stats, N), keep(&o, &sum, 8);
    t.embedding_forward(&t, tokens, SEQ, x, dy, 0, 90, 2, SEQ, C, true, y);
    keep(&o, y, 2 * SEQ * C * size);
    t.embedding_backward(&t, tokens, SEQ, x, 0, 90, 2, SEQ, C, true, f), keep(&o, f, 90 * C * 4);
    t.position_backward(&t, x, 2, SEQ, C, true, f), keep(&o, f, SEQ * C * 4);
    t.convert_from_f32(&t, g, LONG, y), keep(&o, y, LONG * size);
    t.convert_to_f32(&t, x, LONG, f), keep(&o, f, LONG * 4);
    t.accumulate_f32(&t, g, LONG, f), keep(&o, f, LONG * 4);
    sum = t.sum_of_squares(&t, f, LONG), keep(&o, &sum, 8);
    for (int i = 0; i < LONG; i++)
        m[i] = fabsf(m[i]);
    t.adam(&t, &args, g, LONG / 2, f, f + LONG / 2, m, y);
    keep(&o, f, LONG * 4), keep(&o, m, LONG * 4), keep(&o, y, LONG / 2 * size);
    CHECK(guards_intact());
    release();
    return o;
}

static void bits_do_not_depend_on_threads_or_addresses(void)
{
    static const int teams[] = {2, 3, 7, 1};
    const outputs one = run_all(1, 0);

    for (size_t i = 0; i < sizeof teams / sizeof *teams; i++) {
        outputs other = run_all(teams[i], i + 1);
        size_t at = 0;

        CHECK(other.size == one.size);
        while (at < one.size && other.bytes[at] == one.bytes[at])
            at++;
        CHECK_MESSAGE(at == one.size, "%d threads: byte %zu of %zu", teams[i], at, one.size);
        free(other.bytes);
    }
    free(one.bytes);
}

int main(void)
{
    RUN_EVERYWHERE(bits_do_not_depend_on_threads_or_addresses);
    return check_finish();
}
