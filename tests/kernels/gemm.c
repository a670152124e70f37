/* tests/kernels/gemm.c - GEMM of every level against the reference, and the promise that an
 * element's bits depend on neither the split of m and n, the threads, nor the scratch (N4).
 *
 * Bound: k products summed in fp32, and up to three more terms: (k + 4) * EPS * sum of |terms|.
 * Tiles and dot products take a denormal bf16 for zero: that loses at most FLT_MIN * (|a| + |b|)
 * per product, and FLT_MIN of the result.
 */
#include "tests/kernels/guard.h"

typedef struct problem {
    zinf_gemm_desc d;
    int64_t n_a, n_b, n_c, n_r; /* elements stored */
    void *a, *b, *bias, *residual, *c;
} problem;

static int64_t stored(int64_t rows, int64_t cols, int64_t ld)
{
    return (rows - 1) * ld + cols;
}

static void measure(problem *p)
{
    const zinf_gemm_desc *d = &p->d;

    p->n_a = stored(d->trans_a ? d->k : d->m, d->trans_a ? d->m : d->k, d->lda);
    p->n_b = stored(d->trans_b ? d->n : d->k, d->trans_b ? d->k : d->n, d->ldb);
    p->n_c = stored(d->m, d->n, d->ldc);
    p->n_r = stored(d->m, d->n, d->ldr);
}

/* op(A)[m][k] op(B)[k][n], rows `padding` further apart than they need. */
static problem draw_problem(int64_t m, int64_t n, int64_t k, bool trans_a, bool trans_b,
                            zinf_dtype c_dtype, int64_t padding, fill kind)
{
    problem p = {.d = {.m = m, .n = n, .k = k, .lda = (trans_a ? m : k) + padding,
                       .ldb = (trans_b ? k : n) + padding, .ldc = n + padding, .ldr = n + padding,
                       .ab_dtype = act, .c_dtype = c_dtype, .trans_a = trans_a,
                       .trans_b = trans_b}};

    measure(&p);
    p.a = take_set(kind, act, p.n_a);
    p.b = take_set(kind, act, p.n_b);
    p.bias = take_set(kind, act, n);
    p.residual = take_set(kind, act, p.n_r);
    p.c = take_set(kind, c_dtype, p.n_c);
    return p;
}

static void run(const zinf_kernels *table, const problem *p, size_t scratch_bytes, void *c)
{
    void *scratch = take_scratch(scratch_bytes);
    zinf_gemm *gemm = table->gemm_create(table, &p->d, scratch_bytes);

    CHECK(gemm);
    table->gemm_run(gemm, p->a, p->b, p->d.has_bias ? p->bias : NULL,
                    p->d.has_residual ? p->residual : NULL, c, scratch);
    table->gemm_destroy(gemm);
}

static size_t planned_scratch(const zinf_gemm_desc *d, int threads)
{
    return zinf_gemm_scratch_bytes((uint64_t)d->m, (uint64_t)d->n, (uint64_t)d->k,
                                   (uint64_t)threads);
}

static void check_problem(const problem *p, bool exact)
{
    const zinf_gemm_desc *d = &p->d;
    void *want = take_copy(d->c_dtype, p->c, p->n_c), *got = take_copy(d->c_dtype, p->c, p->n_c);
    const size_t size = zinf_dtype_bytes(d->c_dtype);

    run(&ref, p, 0, want);
    run(&fast, p, planned_scratch(d, fast.n_threads), got);
    CHECK(guards_intact());
    for (int64_t i = 0; i < d->m; i++)
        for (int64_t j = 0; j < d->ldc && i * d->ldc + j < p->n_c; j++) {
            const int64_t at = i * d->ldc + j;
            const double x = value(d->c_dtype, got, at), y = value(d->c_dtype, want, at);

            if (j >= d->n) { /* padding */
                CHECK(!memcmp((char *)got + (size_t)at * size, (char *)p->c + (size_t)at * size,
                              size));
                continue;
            }
            if (exact) {
                CHECK_MESSAGE(x == y, "C[%ld][%ld] = %a, not %a", (long)i, (long)j, x, y);
                continue;
            }
            double terms = d->accumulate ? fabs(value(d->c_dtype, p->c, at)) : 0, lost = FLT_MIN;
            for (int64_t q = 0; q < d->k; q++) {
                const double a = value(act, p->a, d->trans_a ? q * d->lda + i : i * d->lda + q);
                const double b = value(act, p->b, d->trans_b ? j * d->ldb + q : q * d->ldb + j);
                terms += fabs(a * b);
                lost += FLT_MIN * (fabs(a) + fabs(b));
            }
            terms += d->has_bias ? fabs(value(act, p->bias, j)) : 0;
            terms += d->has_residual ? fabs(value(act, p->residual, i * d->ldr + j)) : 0;
            CHECK_MESSAGE(near_value(d->c_dtype, x, y,
                                     (double)(d->k + 4) * EPS * terms + 2 * lost),
                          "C[%ld][%ld] = %a, not %a; k %ld", (long)i, (long)j, x, y, (long)d->k);
        }
}

static void gemm_equals_reference(void)
{
    static const int64_t shapes[][3] = {
        {1, 1, 1}, {1, 70, 37}, {37, 1, 64}, {2, 3, 5}, {16, 16, 16}, {33, 65, 129}, {64, 48, 257},
        {61, 127, 31}, {5, 257, 70}, {96, 64, 521},
    };

    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (int options = 0; options < 64; options++) {
            const bool trans_a = options & 1, trans_b = options & 2;
            const zinf_dtype c_dtype = options & 32 ? ZINF_F32 : act;
            const fill kind = options % 7 == 0 ? MIXED : options % 3 ? UNIT : INTEGERS;

            if (act == ZINF_F32 && options & 32)
                continue;
            problem p = draw_problem(shapes[s][0], shapes[s][1], shapes[s][2], trans_a, trans_b,
                                     c_dtype, options % 5, kind);
            p.d.accumulate = options & 4;
            p.d.has_bias = options & 8;
            p.d.has_residual = options & 16;
            check_problem(&p, kind == INTEGERS);
            release();
        }
}

static void gemm_takes_every_fill(void)
{
    for (int f = 0; f < N_FILLS; f++)
        for (int trans = 0; trans < 4; trans++) {
            problem p = draw_problem(37, 53, 131, trans & 1, trans & 2, act, 3, (fill)f);

            p.d.has_bias = p.d.has_residual = trans == 1;
            check_problem(&p, f == INTEGERS || f == ZEROS);
            release();
        }
}

static void gemm_passes_nan_on(void)
{
    problem p = draw_problem(16, 24, 40, false, true, act, 0, UNIT);
    void *c = take_copy(act, p.c, p.n_c);

    if (act == ZINF_BF16)
        ((uint16_t *)p.a)[5 * 40 + 7] = 0x7fc0;
    else
        ((float *)p.a)[5 * 40 + 7] = NAN;
    run(&fast, &p, planned_scratch(&p.d, 2), c);
    for (int64_t i = 0; i < 16 * 24; i++)
        CHECK(isnan(value(act, c, i)) == (i / 24 == 5));
}

static void same_bits(const problem *whole, const void *c, const problem *part, int64_t row0,
                      int64_t col0, int threads, size_t scratch_bytes)
{
    const zinf_gemm_desc *d = &part->d;
    const size_t size = zinf_dtype_bytes(d->c_dtype);
    void *got = take(d->c_dtype, part->n_c);
    zinf_kernels table;

    memcpy(got, part->c, (size_t)part->n_c * size);
    zinf_kernels_cpu(&table, act, threads, level);
    run(&table, part, scratch_bytes, got);
    for (int64_t i = 0; i < d->m; i++)
        for (int64_t j = 0; j < d->n; j++)
            CHECK_MESSAGE(!memcmp((char *)got + (size_t)(i * d->ldc + j) * size,
                                  (const char *)c + (size_t)((row0 + i) * whole->d.ldc + col0 + j) *
                                  size, size),
                          "m %ld n %ld k %ld of %ld %ld, %d threads, scratch %zu: C[%ld][%ld] "
                          "%a, not %a", (long)d->m, (long)d->n, (long)d->k, (long)whole->d.m,
                          (long)whole->d.n, threads, scratch_bytes, (long)(row0 + i),
                          (long)(col0 + j), value(d->c_dtype, got, i * d->ldc + j),
                          value(d->c_dtype, c, (row0 + i) * whole->d.ldc + col0 + j));
    CHECK(guards_intact());
    /* free what this call took, so that many parts may follow */
    while (n_buffers && buffers[n_buffers - 1].data != (unsigned char *)got)
        free(buffers[--n_buffers].base);
    free(buffers[--n_buffers].base);
}

/* The part [row0, row0 + m) x [col0, col0 + n) of C, its operands where they are. */
static problem part_of(const problem *whole, int64_t row0, int64_t m, int64_t col0, int64_t n)
{
    const zinf_gemm_desc *d = &whole->d;
    const size_t size = zinf_dtype_bytes(d->ab_dtype), c_size = zinf_dtype_bytes(d->c_dtype);
    problem p = *whole;

    p.d.m = m;
    p.d.n = n;
    measure(&p);
    p.a = (char *)p.a + (size_t)(d->trans_a ? row0 : row0 * d->lda) * size;
    p.b = (char *)p.b + (size_t)(d->trans_b ? col0 * d->ldb : col0) * size;
    p.bias = (char *)p.bias + (size_t)col0 * size;
    p.residual = (char *)p.residual + (size_t)(row0 * d->ldr + col0) * size;
    p.c = (char *)p.c + (size_t)(row0 * d->ldc + col0) * c_size;
    return p;
}

/* Calls that accumulate go on where the one before ended: cut at multiples of 32 of k, C in fp32
 * has the bits of one call; what is added besides, is so by the last. */
static void check_calls(const problem *p, const void *c)
{
    const int64_t cuts[] = {0, 32, 96, p->d.k / 64 * 32 + 32, p->d.k};
    const size_t size = zinf_dtype_bytes(p->d.ab_dtype);
    void *got = take_copy(ZINF_F32, p->c, p->n_c);

    for (size_t i = 0; i + 1 < sizeof cuts / sizeof *cuts; i++) {
        const bool last = cuts[i + 1] == p->d.k;
        problem call = *p;

        call.d.k = cuts[i + 1] - cuts[i];
        call.d.accumulate = p->d.accumulate || i > 0;
        call.d.has_bias = p->d.has_bias && last;
        call.d.has_residual = p->d.has_residual && last;
        measure(&call);
        call.a = (char *)call.a + (size_t)(cuts[i] * (p->d.trans_a ? p->d.lda : 1)) * size;
        call.b = (char *)call.b + (size_t)(cuts[i] * (p->d.trans_b ? 1 : p->d.ldb)) * size;
        run(&fast, &call, planned_scratch(&call.d, 2), got);
    }
    for (int64_t i = 0; i < p->d.m; i++)
        CHECK_MESSAGE(!memcmp((float *)got + i * p->d.ldc, (const float *)c + i * p->d.ldc,
                              (size_t)p->d.n * sizeof(float)),
                      "m %ld n %ld k %ld in four calls: row %ld", (long)p->d.m, (long)p->d.n,
                      (long)p->d.k, (long)i);
}

static void check_splits(problem *p)
{
    static const int64_t tiles[] = {1, 2, 3, 7};
    static const int teams[] = {1, 2, 3, 8};
    void *c = take_copy(p->d.c_dtype, p->c, p->n_c);

    run(&fast, p, planned_scratch(&p->d, 2), c);
    if (p->d.c_dtype == ZINF_F32 && p->d.k >= 192)
        check_calls(p, c);
    for (size_t t = 0; t < sizeof teams / sizeof *teams; t++)
        same_bits(p, c, p, 0, 0, teams[t], planned_scratch(&p->d, teams[t]));
    same_bits(p, c, p, 0, 0, 2, 256 << 10);
    same_bits(p, c, p, 0, 0, 2, 8 << 20);
    for (size_t t = 0; t < sizeof tiles / sizeof *tiles; t++)
        for (int by_rows = 0; by_rows < 2; by_rows++) {
            const int64_t all = by_rows ? p->d.m : p->d.n, T = tiles[t];

            for (int64_t i = 0, at = 0; i < T; i++) {
                const int64_t size = all / T + (i < all % T);
                problem part = by_rows ? part_of(p, at, size, 0, p->d.n) :
                                         part_of(p, 0, p->d.m, at, size);
                same_bits(p, c, &part, by_rows ? at : 0, by_rows ? 0 : at, 2,
                          planned_scratch(&part.d, 2));
                at += size;
            }
        }
}

/* GPT-2 124M with a quarter of the channels: qkv, projection, both MLP linears and the classifier,
 * forward, input gradient and weight gradient. Tiles are ranges of output features: columns of C
 * in forward, rows of C in the weight gradient; micro-batches split the rows of forward. */
static void bits_are_those_of_any_tiling_and_threads(void)
{
    static const int64_t linears[][2] = {{576, 192}, {192, 192}, {768, 192}, {192, 768},
                                         {1031, 192}};
    const int64_t tokens = 256;

    if (level == ZINF_CPU_REF)
        SKIP("the reference has one sum per element");
    for (size_t i = 0; i < sizeof linears / sizeof *linears; i++) {
        const int64_t out = linears[i][0], in = linears[i][1];

        problem forward = draw_problem(tokens, out, in, false, true, act, 0, UNIT);
        forward.d.has_bias = true;
        forward.d.has_residual = i == 1;
        check_splits(&forward);
        release();
        problem logits = draw_problem(tokens, out, in, false, true, ZINF_F32, 0, UNIT);
        check_splits(&logits);
        release();
        problem input = draw_problem(tokens, in, out, false, false, act, 0, UNIT);
        check_splits(&input);
        release();
        problem weight = draw_problem(out, in, tokens, true, false, ZINF_F32, 0, UNIT);
        weight.d.accumulate = i & 1;
        check_splits(&weight);
        release();
    }
    problem tails = draw_problem(64, 104, 192, false, true, act, 0, DENORMALS);
    tails.d.has_bias = tails.d.has_residual = true;
    check_splits(&tails);
    release();
    problem deep = draw_problem(64, 192, 4096, true, false, ZINF_F32, 0, UNIT);
    check_splits(&deep);
}

/* In the memory a plan gives, and in less: still right. */
static void little_scratch_means_smaller_pieces(void)
{
    static const size_t bytes[] = {0, 64, 4096, 65536, 300000};

    for (size_t i = 0; i < sizeof bytes / sizeof *bytes; i++) {
        problem p = draw_problem(130, 300, 700, true, false, ZINF_F32, 1, INTEGERS);
        p.d.accumulate = true;
        void *want = take_copy(ZINF_F32, p.c, p.n_c), *got = take_copy(ZINF_F32, p.c, p.n_c);

        run(&ref, &p, 0, want);
        run(&fast, &p, bytes[i], got);
        CHECK(!memcmp(want, got, (size_t)p.n_c * 4));
        CHECK(guards_intact());
        release();
    }
}

/* A result of more than 1 MiB whose rows begin and end on lines of memory may be written past the
 * caches, in lines: bitwise what a result of the same numbers elsewhere is, by several threads. */
static void large_aligned_results_have_the_same_bits(void)
{
    static const zinf_dtype dtypes[] = {ZINF_F32, ZINF_BF16};

    for (int i = 0; i < 2; i++)
        for (int threads = 1; threads < 4; threads++) {
            if (dtypes[i] == ZINF_BF16 && act == ZINF_F32)
                continue;
            problem p = draw_problem(545, 1088, 70, false, true, dtypes[i], 0, UNIT);
            const size_t bytes = (size_t)p.n_c * zinf_dtype_bytes(dtypes[i]);
            void *aligned = take_scratch(bytes), *shifted = take_shifted(bytes, 4);
            zinf_kernels table;

            zinf_kernels_cpu(&table, act, threads, level);
            p.d.has_bias = p.d.has_residual = i;
            for (void **c = (void *[]){aligned, shifted, NULL}; *c; c++) {
                memset(*c, 0xff, bytes);
                run(&table, &p, planned_scratch(&p.d, threads), *c);
            }
            CHECK(!memcmp(aligned, shifted, bytes));
            CHECK(guards_intact());
            release();
        }
}

/* The level is an argument, so that levels run side by side. */
int main(int argc, char **argv)
{
    if (argc != 2 || !zinf_cpu_level_parse(argv[1], &first_level))
        return 2;
    last_level = first_level;
    RUN_EVERYWHERE(gemm_equals_reference);
    RUN_EVERYWHERE(gemm_takes_every_fill);
    RUN_EVERYWHERE(gemm_passes_nan_on);
    RUN_EVERYWHERE(bits_are_those_of_any_tiling_and_threads);
    RUN_EVERYWHERE(large_aligned_results_have_the_same_bits);
    RUN_EVERYWHERE(little_scratch_means_smaller_pieces);
    return check_finish();
}
