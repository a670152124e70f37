/* tests/kernels/parity_llama.c - the operators of the llama family, of every level, against the
 * reference. Bounds as in parity.c: a sum of n terms is off by at most n * EPS * sum of |terms|.
 */
#include "tests/kernels/guard.h"

static const int64_t sizes[] = {1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 37, 64, 70, 257, 769};
enum { N_SIZES = sizeof sizes / sizeof *sizes };

static void rmsnorm_equals_reference(void)
{
    for (int f = 0; f < N_FILLS; f++)
        for (int s = 0; s < N_SIZES; s++) {
            const int64_t c = sizes[s], n = 1 + draw_below(70), dy_f32 = draw_below(2);
            const zinf_dtype dy_type = dy_f32 ? ZINF_F32 : act;
            const bool accumulate = draw_below(2), has_residual = draw_below(2);
            const double eps = draw_below(2) ? 1e-5 : 1e-6;
            const void *x = take_set((fill)f, act, n * c), *w = take_set(UNIT, act, c);
            const void *dy = take_set(UNIT, dy_type, n * c);
            void *y = take(act, n * c), *want = take(act, n * c);
            float *stats = take_f32(n), *want_stats = take_f32(n);
            const double roundings = (double)c / 8 + 16;

            ref.rmsnorm_forward(&ref, x, w, eps, n, c, want, want_stats);
            fast.rmsnorm_forward(&fast, x, w, eps, n, c, y, stats);
            for (int64_t i = 0; i < n; i++) {
                CHECK(near_value(ZINF_F32, stats[i], want_stats[i],
                                 roundings * EPS * want_stats[i]));
                for (int64_t j = 0; j < c; j++) /* products of rstd's error */
                    CHECK(near_value(act, value(act, y, i * c + j), value(act, want, i * c + j),
                                     roundings * EPS * want_stats[i] *
                                         fabs(value(act, x, i * c + j) * value(act, w, j))));
            }

            float *dw = take_set(UNIT, ZINF_F32, c);
            float *want_dw = take_copy(ZINF_F32, dw, c);
            const float *old_dw = take_copy(ZINF_F32, dw, c);
            void *scratch = take_scratch(zinf_rmsnorm_scratch_bytes((uint64_t)c));
            void *residual = take_set(UNIT, act, n * c), *dx = take_copy(act, residual, n * c);
            const double rows = (double)n / ZINF_REDUCE_CHUNKS + ZINF_REDUCE_CHUNKS + 8;

            /* dx may be residual: the version under test works in place */
            ref.rmsnorm_backward(&ref, dy, dy_f32, x, w, want_stats,
                                 has_residual ? residual : NULL, n, c, accumulate, want, want_dw,
                                 scratch);
            fast.rmsnorm_backward(&fast, dy, dy_f32, x, w, want_stats, has_residual ? dx : NULL,
                                  n, c, accumulate, dx, dw, scratch);
            for (int64_t j = 0; j < c; j++) {
                double terms = accumulate ? fabs(old_dw[j]) : 0;
                for (int64_t i = 0; i < n; i++)
                    terms += fabs(value(dy_type, dy, i * c + j) * value(act, x, i * c + j)) *
                             want_stats[i];
                CHECK(near_value(ZINF_F32, dw[j], want_dw[j], rows * EPS * terms));
            }
            for (int64_t i = 0; i < n; i++) {
                const double rstd = want_stats[i];
                double mean = 0;
                for (int64_t j = 0; j < c; j++)
                    mean += fabs(value(dy_type, dy, i * c + j) * value(act, w, j) *
                                 value(act, x, i * c + j)) * rstd / (double)c;
                for (int64_t j = 0; j < c; j++) {
                    const double g = fabs(value(dy_type, dy, i * c + j) * value(act, w, j));
                    const double terms =
                        rstd * (g + fabs(value(act, x, i * c + j)) * rstd * mean) +
                        (has_residual ? fabs(value(act, residual, i * c + j)) : 0);
                    CHECK(near_value(act, value(act, dx, i * c + j), value(act, want, i * c + j),
                                     roundings * EPS * terms));
                }
            }
            CHECK(guards_intact());
            release();
        }
}

static void rope_equals_reference_and_its_inverse_undoes_it(void)
{
    static const int64_t dims[] = {2, 4, 6, 10, 16, 18, 30, 32, 34, 64, 66, 128, 300};

    for (int f = 0; f < N_FILLS; f++)
        for (size_t s = 0; s < sizeof dims / sizeof *dims; s++) {
            const int64_t dim = dims[s], batch = 1 + draw_below(2), seq = 1 + draw_below(20);
            const int64_t heads = 1 + draw_below(3), ldx = heads * dim + draw_below(2) * 7;
            const int64_t n = batch * seq * ldx;
            void *x = take_set((fill)f, act, n), *want = take_copy(act, x, n);
            const void *old = take_copy(act, x, n);
            static double frequencies[150];

            for (int64_t i = 0; i < dim / 2; i++)
                frequencies[i] = pow(10000, -2.0 * (double)i / (double)dim);
            ref.rope(&ref, frequencies, batch, seq, heads, dim, ldx, s & 1, want);
            fast.rope(&fast, frequencies, batch, seq, heads, dim, ldx, s & 1, x);
            for (int64_t i = 0; i < n; i++) {
                const int64_t column = i % ldx, pair = column % dim < dim / 2 ? i + dim / 2
                                                                             : i - dim / 2;
                if (column >= heads * dim) { /* not turned: not touched */
                    CHECK(value(act, x, i) == value(act, old, i));
                    continue;
                }
                /* cosine and product round once each, then the sum: 3 EPS of each term */
                CHECK(near_value(act, value(act, x, i), value(act, want, i),
                                 4 * EPS * (fabs(value(act, old, i)) +
                                            fabs(value(act, old, pair)))));
            }
            fast.rope(&fast, frequencies, batch, seq, heads, dim, ldx, !(s & 1), x);
            for (int64_t i = 0; i < n; i++) {
                const int64_t column = i % ldx, pair = column % dim < dim / 2 ? i + dim / 2
                                                                             : i - dim / 2;
                const double eps = act == ZINF_BF16 ? 0x1p-8 : EPS;
                if (column < heads * dim) /* two turns, each rounded */
                    CHECK(fabs(value(act, x, i) - value(act, old, i)) <=
                          8 * eps * (fabs(value(act, old, i)) + fabs(value(act, old, pair))) +
                              4 * (double)FLT_MIN);
            }
            CHECK(guards_intact());
            release();
        }
}

static void swiglu_equals_reference(void)
{
    for (int f = 0; f < N_FILLS; f++)
        for (int s = 0; s < N_SIZES; s++)
            for (int dy_f32 = 0; dy_f32 < 2; dy_f32++) {
                const int64_t width = sizes[s], n = 1 + draw_below(9);
                const zinf_dtype dy_type = dy_f32 ? ZINF_F32 : act;
                const void *x = take_set((fill)f, act, 2 * n * width);
                const void *dy = take_set(UNIT, dy_type, n * width);
                void *y = take(act, n * width), *want = take(act, n * width);
                void *dx = take(act, 2 * n * width), *want_dx = take(act, 2 * n * width);

                ref.swiglu_forward(&ref, x, n, width, want);
                fast.swiglu_forward(&fast, x, n, width, y);
                ref.swiglu_backward(&ref, x, dy, dy_f32, n, width, want_dx);
                fast.swiglu_backward(&fast, x, dy, dy_f32, n, width, dx);
                for (int64_t i = 0; i < n * width; i++) {
                    const int64_t g = i / width * 2 * width + i % width, u = g + width;
                    const double gate = value(act, x, g), up = value(act, x, u);
                    const double d = fabs(value(dy_type, dy, i));
                    const double sigmoid = 1 / (1 + exp(-gate));
                    /* silu within 4 ulp, one more product: 10 EPS; e^-88 of the slope is lost */
                    CHECK_MESSAGE(near_value(act, value(act, y, i), value(act, want, i),
                                             10 * EPS * fabs(gate * sigmoid * up) +
                                                 FLT_MIN * fabs(up) * (1 + fabs(gate))),
                                  "silu(%a) * %a = %a, not %a", gate, up, value(act, y, i),
                                  value(act, want, i));
                    const double lost = 4 * FLT_MIN * d * (1 + fabs(gate));
                    const double slope = sigmoid * (1 + fabs(gate) * (1 - sigmoid));
                    CHECK_MESSAGE(near_value(act, value(act, dx, g), value(act, want_dx, g),
                                             16 * EPS * d * fabs(up) * slope + lost * fabs(up)),
                                  "d gate(%a, %a) = %a, not %a", gate, up, value(act, dx, g),
                                  value(act, want_dx, g));
                    CHECK_MESSAGE(near_value(act, value(act, dx, u), value(act, want_dx, u),
                                             10 * EPS * d * fabs(gate) * sigmoid + lost),
                                  "d up(%a) = %a, not %a", gate, value(act, dx, u),
                                  value(act, want_dx, u));
                }
                CHECK(guards_intact());
                release();
            }
}

static void swiglu_of_a_nan_is_nan(void)
{
    float x[2] = {NAN, 1}, y = 0, dy = 1, dx[2] = {0, 0};

    if (act != ZINF_F32)
        SKIP("the same code");
    fast.swiglu_forward(&fast, x, 1, 1, &y);
    fast.swiglu_backward(&fast, x, &dy, true, 1, 1, dx);
    CHECK(isnan(y) && isnan(dx[0]) && isnan(dx[1]));
}

int main(void)
{
    RUN_EVERYWHERE(rmsnorm_equals_reference);
    RUN_EVERYWHERE(rope_equals_reference_and_its_inverse_undoes_it);
    RUN_EVERYWHERE(swiglu_equals_reference);
    RUN_EVERYWHERE(swiglu_of_a_nan_is_nan);
    return check_finish();
}
