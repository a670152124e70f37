/* tests/kernels/adam.c - Adam of every level against long double, written out by hand: sizes 1 to
 * 70, three steps, the step counter in bias1 and bias2, decay, clip factor, chunks.
 */
#include "tests/kernels/guard.h"

static zinf_adam_args args_of(int step, float weight_decay, float grad_scale)
{
    zinf_adam_args args = {.lr = 3e-3f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f,
                           .weight_decay = weight_decay, .grad_scale = grad_scale};

    args.bias1 = (float)(1 - pow(args.beta1, step));
    args.bias2 = (float)(1 - pow(args.beta2, step));
    return args;
}

/* One element; *ret_bounds: sums of |terms| of m, v, p. A quotient of m and sqrt(v) loses what m's
 * terms lose, over the same divisor. */
static void by_hand(const zinf_adam_args *a, float grad, float p, float m, float v,
                    long double ret[3], long double ret_terms[3])
{
    const long double g = (long double)grad * a->grad_scale, b1 = a->beta1, b2 = a->beta2;
    const long double lr = a->lr, decayed = p - lr * a->weight_decay * p;

    ret[0] = b1 * m + (1 - b1) * g;
    ret[1] = b2 * v + (1 - b2) * g * g;
    const long double divisor = sqrtl(ret[1] / a->bias2) + a->eps;
    ret[2] = decayed - lr * (ret[0] / a->bias1) / divisor;
    ret_terms[0] = fabsl(b1 * m) + fabsl((1 - b1) * g);
    ret_terms[1] = ret[1];
    ret_terms[2] = fabsl(p) + 5 * lr * (ret_terms[0] / a->bias1) / divisor;
}

static void adam_equals_long_double_at_every_size(void)
{
    for (int64_t n = 1; n <= 70; n++) {
        float *p = take_set(UNIT, ZINF_F32, n), *m = take_set(UNIT, ZINF_F32, n);
        float *v = take_set(UNIT, ZINF_F32, n), *g = take_set(UNIT, ZINF_F32, n);
        void *param = take(act, n);

        for (int64_t i = 0; i < n; i++) {
            v[i] = fabsf(v[i]) * (i % 5 ? 1 : 0);
            m[i] *= i % 5 ? 1 : 0;
            g[i] *= i % 3 ? 1 : 1e-3f;
        }
        for (int step = 1; step <= 3; step++) {
            const zinf_adam_args args = args_of(step, n & 1 ? 0.1f : 0, n & 2 ? 1 : 0.37f);
            float old[3][70];

            memcpy(old[0], p, (size_t)n * 4);
            memcpy(old[1], m, (size_t)n * 4);
            memcpy(old[2], v, (size_t)n * 4);
            fast.adam(&fast, &args, g, n, p, m, v, n % 4 ? param : NULL);
            for (int64_t i = 0; i < n; i++) {
                long double want[3], terms[3];
                by_hand(&args, g[i], old[0][i], old[1][i], old[2][i], want, terms);
                /* roundings: m 3, v 4, p's own 2 and the step's 10 at 5 x its terms */
                CHECK(fabsl(m[i] - want[0]) <= 3 * EPS * terms[0] + FLT_MIN);
                CHECK(fabsl(v[i] - want[1]) <= 4 * EPS * terms[1] + FLT_MIN);
                CHECK_MESSAGE(fabsl(p[i] - want[2]) <= 3 * EPS * terms[2] + FLT_MIN,
                              "p %a, not %a", p[i], (double)want[2]);
                if (n % 4 && act == ZINF_F32)
                    CHECK(((float *)param)[i] == p[i]);
                if (n % 4 && act == ZINF_BF16)
                    CHECK(((uint16_t *)param)[i] == zinf_bf16_from_f32(p[i]));
            }
            CHECK(guards_intact());
        }
        release();
    }
}

/* No chunk counts steps or sees its neighbours: any cut gives the same bits. */
static void adam_in_chunks_has_the_bits_of_adam_in_one(void)
{
    enum { N = 70001 };
    static const int64_t cuts[] = {1, 3, 17, 4096, 69999};
    const zinf_adam_args args = args_of(7, 0.1f, 0.5f);
    const size_t size = zinf_dtype_bytes(act);
    const float *g = take_set(UNIT, ZINF_F32, N), *p0 = take_set(UNIT, ZINF_F32, N);
    const float *m0 = take_set(UNIT, ZINF_F32, N);
    float *v0 = take_set(UNIT, ZINF_F32, N);

    for (int i = 0; i < N; i++)
        v0[i] = fabsf(v0[i]);
    float *p = take_copy(ZINF_F32, p0, N), *m = take_copy(ZINF_F32, m0, N);
    float *v = take_copy(ZINF_F32, v0, N);
    char *param = take(act, N), *param2 = take(act, N);
    fast.adam(&fast, &args, g, N, p, m, v, param);
    for (size_t c = 0; c < sizeof cuts / sizeof *cuts; c++) {
        const int64_t cut = cuts[c];
        float *p2 = take_copy(ZINF_F32, p0, N), *m2 = take_copy(ZINF_F32, m0, N);
        float *v2 = take_copy(ZINF_F32, v0, N);

        fast.adam(&fast, &args, g, cut, p2, m2, v2, param2);
        fast.adam(&fast, &args, g + cut, N - cut, p2 + cut, m2 + cut, v2 + cut,
                  param2 + (size_t)cut * size);
        CHECK(!memcmp(p, p2, N * 4) && !memcmp(m, m2, N * 4) && !memcmp(v, v2, N * 4));
        CHECK(!memcmp(param, param2, N * size));
        CHECK(guards_intact());
    }
}

static void a_nan_gradient_reaches_the_state(void)
{
    const zinf_adam_args args = args_of(1, 0, 1);
    float g[19] = {0}, p[19] = {0}, m[19] = {0}, v[19] = {0};

    g[18] = g[3] = NAN;
    fast.adam(&fast, &args, g, 19, p, m, v, NULL);
    for (int i = 0; i < 19; i++)
        CHECK(isnan(p[i]) == (i == 3 || i == 18) && isnan(m[i]) == isnan(p[i]));
}

int main(void)
{
    RUN_EVERYWHERE(adam_equals_long_double_at_every_size);
    RUN_EVERYWHERE(adam_in_chunks_has_the_bits_of_adam_in_one);
    RUN_EVERYWHERE(a_nan_gradient_reaches_the_state);
    return check_finish();
}
