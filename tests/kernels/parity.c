/* tests/kernels/parity.c - every operator but GEMM, of every level, against the reference.
 *
 * Bounds. A sum of n terms, each rounded, differs from the exact one by at most n * EPS * sum of
 * |terms| (to first order); products and the few operations around it add a constant. Each test
 * states its terms; near_value adds the rounding of the result.
 */
#include "tests/kernels/guard.h"
#include "tests/kernels/bench.h"

static const int64_t sizes[] = {1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 37, 64, 70, 257, 769};
enum { N_SIZES = sizeof sizes / sizeof *sizes };
enum { ATTENTION_MAX = 150 };

static void gelu_equals_reference(void)
{
    for (int f = 0; f < N_FILLS; f++)
        for (int s = 0; s < N_SIZES; s++)
            for (int dy_f32 = 0; dy_f32 < 2; dy_f32++) {
                const int64_t n = sizes[s];
                const zinf_dtype dy_type = dy_f32 ? ZINF_F32 : act;
                const void *x = take_set((fill)f, act, n), *dy = take_set(UNIT, dy_type, n);
                void *y = take(act, n), *want = take(act, n);

                ref.gelu_forward(&ref, x, n, want);
                fast.gelu_forward(&fast, x, n, y);
                for (int64_t i = 0; i < n; i++) /* 3 ulp, see cpu/gelu.c: 6 EPS */
                    CHECK_MESSAGE(near_value(act, value(act, y, i), value(act, want, i),
                                             6 * EPS * fabs(value(act, want, i)) + 12 * FLT_MIN),
                                  "gelu(%a) = %a, not %a", value(act, x, i), value(act, y, i),
                                  value(act, want, i));
                ref.gelu_backward(&ref, x, dy, dy_f32, n, want);
                fast.gelu_backward(&fast, x, dy, dy_f32, n, y);
                for (int64_t i = 0; i < n; i++) {
                    /* terms s and x s (1 - s) (2u)', each within 8 ulp */
                    const double v = value(act, x, i), d = fabs(value(dy_type, dy, i));
                    const double e = exp(-1.5957691216 * fabs(v + 0.044715 * v * v * v));
                    const double sum = (v < 0 ? e : 1) + fabs(v) * e * (1.6 + 0.22 * v * v);
                    CHECK_MESSAGE(near_value(act, value(act, y, i), value(act, want, i),
                                             d * (16 * EPS * sum + 500 * FLT_MIN)),
                                  "gelu'(%a) = %a, not %a", v, value(act, y, i),
                                  value(act, want, i));
                }
                CHECK(guards_intact());
                release();
            }
}

/* 3 ulp over the whole range where gelu is a normal number, not only at random points. */
static void gelu_error_is_below_four_ulp(void)
{
    enum { N = 1 << 20 };
    float *x = take_f32(N), *y = take_f32(N);
    double worst = 0;

    if (act != ZINF_F32)
        SKIP("the result of bf16 is rounded");
    for (int i = 0; i < N; i++)
        x[i] = (float)(-10 + 22.0 * i / N);
    fast.gelu_forward(&fast, x, N, y);
    for (int i = 0; i < N; i++) {
        const double v = x[i];
        const double want = v / (1 + exp(-1.5957691216057307118 * (v + 0.044715 * v * v * v)));
        int exponent;
        frexp(want, &exponent);
        const double ulps = fabs(y[i] - want) / ldexp(1, exponent - 24);
        worst = ulps > worst || isnan(ulps) ? ulps : worst;
    }
    CHECK_MESSAGE(worst < 4, "%.2f ulp", worst);
    CHECK(guards_intact());
}

static void layernorm_equals_reference(void)
{
    for (int f = 0; f < N_FILLS; f++)
        for (int s = 0; s < N_SIZES; s++) {
            const int64_t c = sizes[s], n = 1 + draw_below(70), dy_f32 = draw_below(2);
            const zinf_dtype dy_type = dy_f32 ? ZINF_F32 : act;
            const bool accumulate = draw_below(2), has_residual = draw_below(2);
            const void *x = take_set((fill)f, act, n * c), *w = take_set(UNIT, act, c);
            const void *b = take_set(UNIT, act, c), *dy = take_set(UNIT, dy_type, n * c);
            void *y = take(act, n * c), *want = take(act, n * c);
            float *stats = take_f32(2 * n), *want_stats = take_f32(2 * n);
            const double roundings = (double)c / 8 + 16;

            ref.layernorm_forward(&ref, x, w, b, n, c, want, want_stats);
            fast.layernorm_forward(&fast, x, w, b, n, c, y, stats);
            for (int64_t i = 0; i < n; i++) {
                /* The mean is off by roundings * EPS * max|x|, rstd likewise in proportion. */
                const double rstd = want_stats[2 * i + 1];
                double most = 0;
                for (int64_t j = 0; j < c; j++)
                    most = fmax(most, fabs(value(act, x, i * c + j)));
                CHECK(near_value(ZINF_F32, stats[2 * i], want_stats[2 * i],
                                 roundings * EPS * most));
                CHECK(near_value(ZINF_F32, stats[2 * i + 1], rstd,
                                 roundings * EPS * rstd * (1 + most * rstd)));
                for (int64_t j = 0; j < c; j++) {
                    const double terms = fabs(value(act, w, j)) * (4 + 2 * most) * rstd +
                                         fabs(value(act, b, j));
                    CHECK(near_value(act, value(act, y, i * c + j), value(act, want, i * c + j),
                                     roundings * EPS * terms));
                }
            }

            float *dw = take_set(UNIT, ZINF_F32, c), *db = take_set(UNIT, ZINF_F32, c);
            float *want_dw = take_copy(ZINF_F32, dw, c), *want_db = take_copy(ZINF_F32, db, c);
            const float *old_dw = take_copy(ZINF_F32, dw, c), *old_db = take_copy(ZINF_F32, db, c);
            void *scratch = take_scratch(zinf_layernorm_scratch_bytes((uint64_t)c));
            void *residual = take_set(UNIT, act, n * c), *dx = take_copy(act, residual, n * c);
            const double rows = (double)n / ZINF_REDUCE_CHUNKS + ZINF_REDUCE_CHUNKS + 8;

            /* dx may be residual: the version under test works in place */
            ref.layernorm_backward(&ref, dy, dy_f32, x, w, want_stats,
                                   has_residual ? residual : NULL, n, c, accumulate, want,
                                   want_dw, want_db, scratch);
            fast.layernorm_backward(&fast, dy, dy_f32, x, w, want_stats, has_residual ? dx : NULL,
                                    n, c, accumulate, dx, dw, db, scratch);
            for (int64_t j = 0; j < c; j++) {
                double terms_w = accumulate ? fabs(old_dw[j]) : 0;
                double terms_b = accumulate ? fabs(old_db[j]) : 0;
                for (int64_t i = 0; i < n; i++) {
                    const double d = fabs(value(dy_type, dy, i * c + j));
                    terms_b += d;
                    terms_w += d * fabs(value(act, x, i * c + j) - want_stats[2 * i]) *
                               want_stats[2 * i + 1];
                }
                CHECK(near_value(ZINF_F32, dw[j], want_dw[j], rows * EPS * terms_w));
                CHECK(near_value(ZINF_F32, db[j], want_db[j], rows * EPS * terms_b));
            }
            for (int64_t i = 0; i < n; i++) {
                const double mean = want_stats[2 * i], rstd = want_stats[2 * i + 1];
                double mean_g = 0, mean_gz = 0;
                for (int64_t j = 0; j < c; j++) {
                    const double g = fabs(value(dy_type, dy, i * c + j) * value(act, w, j));
                    mean_g += g / (double)c;
                    mean_gz += g * fabs(value(act, x, i * c + j) - mean) * rstd / (double)c;
                }
                for (int64_t j = 0; j < c; j++) {
                    const double g = fabs(value(dy_type, dy, i * c + j) * value(act, w, j));
                    const double z = fabs(value(act, x, i * c + j) - mean) * rstd;
                    const double terms = rstd * (g + mean_g + z * mean_gz) +
                        (has_residual ? fabs(value(act, residual, i * c + j)) : 0);
                    CHECK(near_value(act, value(act, dx, i * c + j), value(act, want, i * c + j),
                                     roundings * EPS * terms));
                }
            }
            CHECK(guards_intact());
            release();
        }
}

/* |row| dot |row| */
static double dot_abs(const void *a, int64_t at_a, const void *b, int64_t at_b, int64_t n,
                      bool absolute)
{
    double sum = 0;

    for (int64_t i = 0; i < n; i++) {
        const double term = value(act, a, at_a + i) * value(act, b, at_b + i);
        sum += absolute ? fabs(term) : term;
    }
    return sum;
}

/* One batch element and head at a time. p has a relative error of
 *   r = EPS * (2 * (D + 2) * max_j scale sum|q k| + 2 |s| + 8), sums over n keys add n * EPS.
 * The mean of dp with the weights p has twice that of itself, beside its share in ds.
 * Levels above avx512 round p and ds to bf16 before they multiply: 2^-8 of each term; tiles lose
 * denormal factors, at most FLT_MIN times the other one each. Their mean is of the rounded out:
 * 2^-9 of the mean's terms. */
static void check_attention(int64_t batch, int64_t seq, int64_t heads, int64_t kv_heads,
                            int64_t dim, fill kind)
{
    const int64_t row = (heads + 2 * kv_heads) * dim, n = batch * seq, width = heads * dim;
    void *qkv = take_set(kind, act, n * row), *dout = take_set(UNIT, act, n * width);
    void *out = take(act, n * width), *want = take(act, n * width);
    float *lse = take_f32(batch * heads * seq), *want_lse = take_f32(batch * heads * seq);
    void *scratch = take_scratch(zinf_attention_scratch_bytes((uint64_t)seq, (uint64_t)dim, 2));
    void *dqkv = take(act, n * row), *want_dqkv = take(act, n * row);
    const double scale = 1 / sqrt((double)dim);
    const bool tiles = level >= ZINF_CPU_AVX512_BF16 && act == ZINF_BF16;
    const double narrow = tiles ? 0x1p-8 : 0, lost = tiles ? FLT_MIN * (double)(seq * heads) : 0;
    static double terms[ATTENTION_MAX * 3 * 200], sum_p[ATTENTION_MAX];

    ref.attention_forward(&ref, qkv, batch, seq, heads, kv_heads, dim, want, want_lse, scratch);
    fast.attention_forward(&fast, qkv, batch, seq, heads, kv_heads, dim, out, lse, scratch);
    ref.attention_backward(&ref, qkv, want, dout, want_lse, batch, seq, heads, kv_heads, dim,
                           want_dqkv, scratch);
    fast.attention_backward(&fast, qkv, want, dout, want_lse, batch, seq, heads, kv_heads, dim,
                            dqkv, scratch);
    CHECK(guards_intact());
    for (int64_t b = 0; b < batch; b++) {
        double worst = 0; /* relative error of any p of this batch element */

        memset(terms, 0, sizeof terms); /* [seq][row] sums of |terms| of dqkv */
        CHECK(seq * row <= (int64_t)(sizeof terms / sizeof *terms));
        for (int64_t h = 0; h < heads; h++)
            for (int64_t i = 0; i < seq; i++) {
                const int64_t g = h / (heads / kv_heads), q = (b * seq + i) * row + h * dim;
                const int64_t o = (b * seq + i) * width + h * dim;
                const double l = want_lse[(b * heads + h) * seq + i];
                double most = fabs(l);

                for (int64_t j = 0; j <= i; j++)
                    most = fmax(most, scale * dot_abs(qkv, q, qkv, (b * seq + j) * row +
                                                      (heads + g) * dim, dim, true));
                const double r = EPS * (2 * ((double)dim + 4) * most + 8);
                const double error = r + EPS * (double)(i + 4);
                worst = fmax(worst, error + EPS * (double)dim);
                CHECK(near_value(ZINF_F32, lse[(b * heads + h) * seq + i], l,
                                 error + 2 * EPS * fabs(l)));
                double mean = 0; /* of |dp| */
                for (int64_t j = 0; j <= i; j++) {
                    const int64_t k = (b * seq + j) * row + (heads + g) * dim;
                    mean += exp(scale * dot_abs(qkv, q, qkv, k, dim, false) - l) *
                            dot_abs(dout, o, qkv, k + kv_heads * dim, dim, true);
                }
                for (int64_t j = 0; j <= i; j++) {
                    const int64_t k = (b * seq + j) * row + (heads + g) * dim;
                    const int64_t v = k + kv_heads * dim;
                    const double p = exp(scale * dot_abs(qkv, q, qkv, k, dim, false) - l);
                    const double ds = scale * p * (dot_abs(dout, o, qkv, v, dim, true) + 3 * mean);
                    double *base = terms - b * seq * row;

                    sum_p[j] = p;
                    for (int64_t d = 0; d < dim; d++) {
                        base[q + d] += ds * fabs(value(act, qkv, k + d));
                        base[k + d] += ds * fabs(value(act, qkv, q + d));
                        base[v + d] += p * fabs(value(act, dout, o + d));
                    }
                }
                for (int64_t d = 0; d < dim; d++) {
                    double sum = 0;
                    for (int64_t j = 0; j <= i; j++)
                        sum += sum_p[j] * fabs(value(act, qkv, (b * seq + j) * row +
                                                     (heads + kv_heads + g) * dim + d));
                    CHECK(near_value(act, value(act, out, o + d), value(act, want, o + d),
                                     (2 * error + narrow) * sum + lost));
                }
            }
        for (int64_t i = 0; i < seq * row; i++)
            CHECK_MESSAGE(near_value(act, value(act, dqkv, b * seq * row + i),
                                     value(act, want_dqkv, b * seq * row + i),
                                     (worst + narrow + EPS * (double)(seq * heads)) * terms[i] +
                                     lost),
                          "dqkv[%ld] = %g, not %g", (long)i,
                          value(act, dqkv, b * seq * row + i),
                          value(act, want_dqkv, b * seq * row + i));
    }
    release();
}

static void attention_equals_reference(void)
{
    static const int64_t shapes[][5] = { /* batch, seq, heads, kv heads, head dim */
        {1, 1, 1, 1, 1}, {2, 3, 2, 1, 5}, {1, 17, 3, 3, 16}, {2, 64, 2, 2, 32}, {1, 65, 4, 2, 33},
        {1, 129, 2, 1, 64}, {3, 37, 1, 1, 7}, {1, 150, 6, 3, 16}, {1, 70, 2, 2, 80},
    };

    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        const int64_t *x = shapes[s];
        check_attention(x[0], x[1], x[2], x[3], x[4], UNIT);
        check_attention(x[0], x[1], x[2], x[3], x[4], s & 1 ? INTEGERS : ZEROS);
    }
    check_attention(1, 40, 2, 2, 8, DENORMALS);
}

/* Where one p is 1, its ds is p (dp - dp): it vanishes if the two have the same roundings, and
 * those of dout out are others. A dp that is small as a sum of large terms shows the difference;
 * Adam makes a step of what is left. The key that counts is the last one, 120 beyond the others: p
 * below 2^-170 of it, times |dp| and |k| below 2^60. Its score is exact, so that its own p is 1. */
static void what_a_sharp_softmax_leaves_is_small(void)
{
    enum { SEQ = 40, D = 64, AT = SEQ - 1, ROW = 3 * D };
    float *qkv = take_f32(SEQ * ROW), *dout = take_set(UNIT, ZINF_F32, SEQ * D);
    float *out = take_f32(SEQ * D), *lse = take_f32(SEQ), *dqkv = take_f32(SEQ * ROW);
    void *scratch = take_scratch(zinf_attention_scratch_bytes(SEQ, D, 2));
    double dp = 0;

    if (act != ZINF_F32)
        SKIP("bf16 has other roundings");
    memcpy(qkv, take_set(UNIT, ZINF_F32, SEQ * ROW), SEQ * ROW * sizeof *qkv);
    for (int64_t i = 0; i < SEQ; i++)
        for (int64_t d = 0; d < D; d++) {
            qkv[i * ROW + d] = i == AT && d == 0 ? 32 : 0;
            qkv[i * ROW + D + d] = d ? qkv[i * ROW + D + d] : i == AT ? 15 : -15;
        }
    for (int64_t d = 0; d < D; d++) { /* values 1000 by signs: dp is the difference of two sums */
        qkv[AT * ROW + 2 * D + d] = d % 2 ? -1000 : 1000;
        dout[AT * D + d] = dout[AT * D + d - d % 2];
        dp += (double)qkv[AT * ROW + 2 * D + d] * dout[AT * D + d];
    }
    CHECK(dp == 0);
    fast.attention_forward(&fast, qkv, 1, SEQ, 1, 1, D, out, lse, scratch);
    fast.attention_backward(&fast, qkv, out, dout, lse, 1, SEQ, 1, 1, D, dqkv, scratch);
    for (int64_t d = 0; d < D; d++) {
        CHECK_MESSAGE(fabsf(dqkv[AT * ROW + d]) <= 0x1p-100f, "dq[%ld] = %g", (long)d,
                      (double)dqkv[AT * ROW + d]);
        CHECK_MESSAGE(fabsf(dqkv[AT * ROW + D + d]) <= 0x1p-100f, "dk[%ld] = %g", (long)d,
                      (double)dqkv[AT * ROW + D + d]);
    }
    CHECK(guards_intact());
    release();
}

static void softmax_equals_reference(void)
{
    for (int f = 0; f < N_FILLS; f++)
        for (int s = 0; s < N_SIZES; s++) {
            const int64_t rows = sizes[s], m = 1 + draw_below(9), ldl = rows + draw_below(4);
            const int64_t ldd = rows + draw_below(4), row0 = draw_below(3) * rows;
            const bool first = draw_below(2);
            float *logits = take_set((fill)f, ZINF_F32, m * ldl);
            float *stats = take_set(UNIT, ZINF_F32, 3 * m);
            int32_t *targets = take_i32(m);
            void *d = take_set(INTEGERS, act, m * ldd), *want_d = take_copy(act, d, m * ldd);

            for (int64_t i = 0; i < m; i++) {
                targets[i] = (int32_t)draw_below(3 * rows);
                stats[3 * i + 1] = 1 + fabsf(stats[3 * i + 1]);
            }
            float *want = take_copy(ZINF_F32, stats, 3 * m);
            const float *old = take_copy(ZINF_F32, stats, 3 * m);
            ref.softmax_stats(&ref, logits, ldl, targets, row0, rows, m, first, want);
            fast.softmax_stats(&fast, logits, ldl, targets, row0, rows, m, first, stats);
            ref.softmax_backward(&ref, logits, ldl, targets, want, row0, rows, m, 0.37f, want_d,
                                 ldd);
            fast.softmax_backward(&fast, logits, ldl, targets, want, row0, rows, m, 0.37f, d,
                                  ldd);
            for (int64_t i = 0; i < m; i++) {
                /* x - max is rounded, and exp turns that into a relative error */
                double terms = first ? 0 : old[3 * i + 1];
                CHECK(!memcmp(&stats[3 * i], &want[3 * i], 4));
                CHECK(!memcmp(&stats[3 * i + 2], &want[3 * i + 2], 4));
                for (int64_t v = 0; v < rows; v++) {
                    const double x = (double)logits[i * ldl + v] - want[3 * i];
                    const double p = exp(x) * (4 - x) / want[3 * i + 1];
                    const bool hit = row0 + v == targets[i];
                    terms += exp(x) * (4 - x);
                    CHECK(near_value(act, value(act, d, i * ldd + v),
                                     value(act, want_d, i * ldd + v),
                                     0.37 * EPS * (2 * p + 2 * hit)));
                }
                CHECK(near_value(ZINF_F32, stats[3 * i + 1], want[3 * i + 1],
                                 ((double)rows / 8 + 8) * EPS * terms));
                for (int64_t v = rows; v < ldd; v++) /* padding */
                    CHECK(value(act, d, i * ldd + v) == value(act, want_d, i * ldd + v));
            }
            const double loss = fast.softmax_loss(&fast, want, m);
            const double want_loss = ref.softmax_loss(&ref, want, m);
            CHECK(fabs(loss - want_loss) <= 1e-12 * (1 + fabs(want_loss)));
            CHECK(guards_intact());
            release();
        }
}

static void softmax_of_a_nan_is_nan(void)
{
    for (int64_t at = 0; at < 37; at += 4) {
        float logits[37], stats[3];
        const int32_t target = 36;

        set(UNIT, ZINF_F32, logits, 37);
        logits[at] = NAN;
        fast.softmax_stats(&fast, logits, 37, &target, 0, 37, 1, true, stats);
        CHECK(isnan(fast.softmax_loss(&fast, stats, 1)));
    }
}

static void sums_equal_reference(void)
{
    for (int f = 0; f < N_FILLS; f++)
        for (int s = 0; s < N_SIZES; s++) {
            const int64_t n = sizes[s], m = 1 + draw_below(100), ld = n + draw_below(5);
            const bool accumulate = draw_below(2);
            const void *x = take_set((fill)f, act, m * ld);
            float *sum = take_set((fill)f, ZINF_F32, n), *want = take_copy(ZINF_F32, sum, n);
            const float *old = take_copy(ZINF_F32, sum, n);
            void *scratch = take_scratch(zinf_column_sum_scratch_bytes((uint64_t)n));

            ref.column_sum(&ref, x, ld, m, n, accumulate, want, scratch);
            fast.column_sum(&fast, x, ld, m, n, accumulate, sum, scratch);
            for (int64_t j = 0; j < n; j++) {
                double terms = accumulate ? fabs(old[j]) : 0;
                for (int64_t i = 0; i < m; i++)
                    terms += fabs(value(act, x, i * ld + j));
                if (f == INTEGERS || f == ZEROS)
                    CHECK(sum[j] == want[j]);
                CHECK(near_value(ZINF_F32, sum[j], want[j],
                                 ((double)m / 32 + 34) * EPS * terms));
            }

            float *dwpe = take_set(UNIT, ZINF_F32, n * 3);
            float *want_dwpe = take_copy(ZINF_F32, dwpe, n * 3);
            const void *dx = take_set((fill)f, act, 2 * 3 * n);
            ref.position_backward(&ref, dx, 2, 3, n, accumulate, want_dwpe);
            fast.position_backward(&fast, dx, 2, 3, n, accumulate, dwpe);
            for (int64_t i = 0; i < 3 * n; i++)
                CHECK(near_value(ZINF_F32, dwpe[i], want_dwpe[i], 3 * EPS *
                                 (1 + fabs(value(act, dx, i)) + fabs(value(act, dx, 3 * n + i)))));

            float *acc = take_set((fill)f, ZINF_F32, n), *want_acc = take_copy(ZINF_F32, acc, n);
            const float *add = take_set(UNIT, ZINF_F32, n);
            ref.accumulate_f32(&ref, add, n, want_acc);
            fast.accumulate_f32(&fast, add, n, acc);
            CHECK(!memcmp(acc, want_acc, (size_t)n * 4));

            /* several blocks; once more of them than are summed at a time */
            const int64_t long_n = s + 1 < N_SIZES ? n : f == 0 ? (65 << 16) + 7 : 300001;
            const float *y = take_set((fill)f, ZINF_F32, long_n);
            const double squares = fast.sum_of_squares(&fast, y, long_n);
            const double want_squares = ref.sum_of_squares(&ref, y, long_n);
            CHECK(fabs(squares - want_squares) <= (double)long_n * 0x1p-53 * want_squares);
            CHECK(guards_intact());
            release();
        }
}

/* One addition each, rounded once, in a stated order: the bits are the reference's. */
static void embedding_has_the_bits_of_the_reference(void)
{
    for (int s = 0; s < N_SIZES; s++)
        for (int f = 0; f < N_FILLS; f++) {
            const int64_t c = sizes[s], batch = 2, seq = 19, ld = seq + 1, vocab = 11, cut = 4;
            const void *wte = take_set((fill)f, act, vocab * c);
            const void *wpe = take_set((fill)f, act, seq * c);
            const void *dx = take_set((fill)f, act, batch * seq * c);
            void *out = take_set(UNIT, act, batch * seq * c), *want = take(act, batch * seq * c);
            float *dwte = take_set(UNIT, ZINF_F32, vocab * c);
            float *want_dwte = take_copy(ZINF_F32, dwte, vocab * c);
            int32_t *tokens = take_i32(batch * ld);
            const size_t size = zinf_dtype_bytes(act);
            const bool accumulate = f & 1;

            for (int64_t i = 0; i < batch * ld; i++)
                tokens[i] = (int32_t)draw_below(vocab);
            ref.embedding_forward(&ref, tokens, ld, wte, wpe, 0, vocab, batch, seq, c, true, want);
            fast.embedding_forward(&fast, tokens, ld, wte, wpe, 0, cut, batch, seq, c, true, out);
            fast.embedding_forward(&fast, tokens, ld, (const char *)wte + (size_t)(cut * c) * size,
                                   wpe, cut, vocab - cut, batch, seq, c, false, out);
            for (int64_t i = 0; i < batch * seq * c; i++)
                CHECK(value(act, out, i) == value(act, want, i));
            fast.embedding_forward(&fast, tokens, ld, wte, NULL, 0, vocab, batch, seq, c, true,
                                   out);
            for (int64_t i = 0; i < batch * seq * c; i++)
                CHECK(value(act, out, i) ==
                      value(act, wte, tokens[i / c / seq * ld + i / c % seq] * c + i % c));
            ref.embedding_backward(&ref, tokens, ld, dx, 0, vocab, batch, seq, c, accumulate,
                                   want_dwte);
            fast.embedding_backward(&fast, tokens, ld, dx, 0, cut, batch, seq, c, accumulate,
                                    dwte);
            fast.embedding_backward(&fast, tokens, ld, dx, cut, vocab - cut, batch, seq, c,
                                    accumulate, dwte + cut * c);
            CHECK(!memcmp(dwte, want_dwte, (size_t)(vocab * c) * 4));
            CHECK(guards_intact());
            release();
        }
}

/* Every upper half with the lower halves around the tie: all the cases there are. */
static void conversion_has_the_bits_of_the_definition(void)
{
    static const uint32_t low[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};
    enum { N = 65536 * 6 + 5 };
    float *x = take_f32(N), *back = take_f32(N);
    void *y = take(act, N);

    for (int i = 0; i < N; i++)
        x[i] = zinf_f32_from_bits((uint32_t)(i / 6) << 16 | low[i % 6]);
    fast.convert_from_f32(&fast, x, N, y);
    fast.convert_to_f32(&fast, y, N, back);
    for (int i = 0; i < N; i++) {
        if (act == ZINF_F32) {
            CHECK(zinf_f32_bits(x[i]) == zinf_f32_bits(back[i]));
            continue;
        }
        const uint32_t bits = zinf_f32_bits(x[i]), got = ((uint16_t *)y)[i];
        CHECK(zinf_f32_bits(back[i]) == got << 16);
        if (isnan(x[i])) {
            CHECK(isnan(back[i]));
            continue;
        }
        /* nearest: no neighbour is nearer; on a tie, even */
        const uint32_t below = bits >> 16, rest = bits & 0xffff;
        CHECK(got == below + (rest > 0x8000 || (rest == 0x8000 && (below & 1))));
    }
    CHECK(guards_intact());
    for (int s = 0; s < N_SIZES; s++) {
        float *few = take_set(MIXED, ZINF_F32, sizes[s]), *again = take_f32(sizes[s]);
        void *half = take(act, sizes[s]), *want = take(act, sizes[s]);

        fast.convert_from_f32(&fast, few, sizes[s], half);
        ref.convert_from_f32(&ref, few, sizes[s], want);
        CHECK(!memcmp(half, want, (size_t)sizes[s] * zinf_dtype_bytes(act)));
        fast.convert_to_f32(&fast, half, sizes[s], again);
        for (int64_t i = 0; i < sizes[s]; i++)
            CHECK(again[i] == value(act, want, i));
        CHECK(guards_intact());
    }
}

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "--bench"))
        return bench();
    RUN_EVERYWHERE(gelu_equals_reference);
    RUN_EVERYWHERE(gelu_error_is_below_four_ulp);
    RUN_EVERYWHERE(layernorm_equals_reference);
    RUN_EVERYWHERE(attention_equals_reference);
    RUN_EVERYWHERE(what_a_sharp_softmax_leaves_is_small);
    RUN_EVERYWHERE(softmax_equals_reference);
    RUN_EVERYWHERE(softmax_of_a_nan_is_nan);
    RUN_EVERYWHERE(sums_equal_reference);
    RUN_EVERYWHERE(embedding_has_the_bits_of_the_reference);
    RUN_EVERYWHERE(conversion_has_the_bits_of_the_definition);
    return check_finish();
}
