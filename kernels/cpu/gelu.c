/* kernels/cpu/gelu.c - gelu, compiled once per level.
 *
 * e = exp(-2u) and s = 1 / (1 + e), so that no difference cancels. 2u grows to 88 where s is
 * still a normal number, and exp turns its absolute error into a relative one, so the exponent is
 * carried in two floats: z = 2u log2(e) = x (A + B x^2), error below 2^-40 |z|. Then e has < 2 ulp
 * (vf_exp_small and the rounding of r ln 2), 1 + e and the quotient half an ulp each: < 3 ulp.
 * Beyond |x| = 12 the limits x and 0 (slopes 1 and 0) are exact in fp32; results below
 * 12 * 2^-126 in magnitude (of the slope: 12 (1.6 + 0.22 * 144) * 2^-126) may be off by that.
 *
 * bf16 keeps 8 bits: there the exponent z is one float and the reciprocal approximate. While |z|
 * is below 126, z has three roundings: e is off by at most 3 * 126 ln 2 * 2^-24 < 2^-15, the
 * reciprocal by 2^-14: below 2^-13 together, to the 2^-8 of rounding to bf16. Below x = -10 e
 * would be infinite; the slope there is below 500 * 2^-126 and taken for 0.
 */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vec.h"

#define A_HIGH 0x1.26aec2p+1f
#define B_HIGH 0x1.a5a7dp-4f

/* exp(-2u) within [2^-126, 2^126]; A = 2 sqrt(2/pi) log2(e), B = 0.044715 A */
INLINE vf exp_minus_2u(vf x)
{
    const vf a = vf_set(A_HIGH), a_low = vf_set((float)(2.3022081981443248 - A_HIGH));
    const vf b = vf_set(B_HIGH), b_low = vf_set((float)(0.1029432395800235 - B_HIGH));
    const vf square = x * x, square_low = vf_fma(x, x, -square);
    const vf t = b * square, t_low = vf_fma(b, square, -t) + (b * square_low + b_low * square);
    const vf sum = a + t, back = sum - a; /* two-sum: exact whichever is larger */
    const vf sum_low = (a - (sum - back)) + (t - back) + (t_low + a_low);
    const vf z = sum * x, z_low = vf_fma(sum, x, -z) + sum_low * x;
    const vf bounded = vf_max(vf_set(-126.0f), vf_min(vf_set(126.0f), z));
    const vf n = vf_round(bounded);
    const vf low = vf_less(bounded * bounded, vf_set(126.0f * 126.0f), z_low, vf_set(0));

    return vf_scale2(vf_exp_small(((n - bounded) - low) * vf_set(0.693147181f)), -n);
}

/* The same for results that keep 8 bits. */
INLINE vf exp_minus_2u_short(vf x)
{
    return vf_exp2_short(x * vf_fma(vf_set(-B_HIGH) * x, x, vf_set(-A_HIGH)));
}

/* s and, in *ret_e, exp(-2u) */
INLINE vf sigmoid_2u(bool is_short, vf x, vf *ret_e)
{
    *ret_e = is_short ? exp_minus_2u_short(x) : exp_minus_2u(x);
    if (is_short)
        return vf_reciprocal_short(vf_set(1.0f) + *ret_e);
    return vf_set(1.0f) / (vf_set(1.0f) + *ret_e);
}

INLINE vf gelu(bool is_short, vf x)
{
    vf e, y;

    if (is_short)
        y = x * sigmoid_2u(true, x, &e);
    else
        y = x / (vf_set(1.0f) + exp_minus_2u(x));

    /* x * 0: -0, but NaN for -inf, as by definition: an overflow must not look like a limit */
    return vf_less(x, vf_set(-12.0f), x * vf_set(0), vf_less(vf_set(12.0f), x, x, y));
}

/* s + x s (1 - s) (2u)' */
INLINE vf gelu_slope(bool is_short, vf x)
{
    vf e;
    const vf s = sigmoid_2u(is_short, x, &e);
    const vf slope_2u = vf_fma(vf_set(0.214064449f), x * x, vf_set(1.59576912f));
    const vf y = vf_fma(x * s * (e * s), slope_2u, s); /* 1 - s = e s */

    return vf_less(x, vf_set(is_short ? -10.0f : -12.0f), vf_set(0),
                   vf_less(vf_set(12.0f), x, vf_set(1.0f), y));
}

INLINE void forward(bool bf16, const void *x, int64_t n, void *y)
{
#pragma omp for schedule(static)
    for (int64_t block = 0; block < n; block += PARALLEL_BLOCK)
        FOR_VECTORS(i, left, block, n < block + PARALLEL_BLOCK ? n : block + PARALLEL_BLOCK,
                    act_store(bf16, y, i, left, gelu(bf16, act_load(bf16, x, i, left))));
}

static void gelu_forward(const zinf_kernels *self, const void *x, int64_t n, void *y)
{
    if (self->act == ZINF_BF16)
        TEAM(self->n_threads, n > PARALLEL_FROM, forward(true, x, n, y));
    else
        TEAM(self->n_threads, n > PARALLEL_FROM, forward(false, x, n, y));
}

INLINE void backward(bool bf16, bool dy_bf16, const void *x, const void *dy, int64_t n,
                     void *dx)
{
#pragma omp for schedule(static)
    for (int64_t block = 0; block < n; block += PARALLEL_BLOCK)
        FOR_VECTORS(i, left, block, n < block + PARALLEL_BLOCK ? n : block + PARALLEL_BLOCK,
                    act_store(bf16, dx, i, left, act_load(dy_bf16, dy, i, left) *
                                              gelu_slope(bf16, act_load(bf16, x, i, left))));
}

static void gelu_backward(const zinf_kernels *self, const void *x, const void *dy, bool dy_f32,
                          int64_t n, void *dx)
{
    if (self->act != ZINF_BF16)
        TEAM(self->n_threads, n > PARALLEL_FROM, backward(false, false, x, dy, n, dx));
    else if (dy_f32)
        TEAM(self->n_threads, n > PARALLEL_FROM, backward(true, false, x, dy, n, dx));
    else
        TEAM(self->n_threads, n > PARALLEL_FROM, backward(true, true, x, dy, n, dx));
}

void LEVEL(zinf_cpu_gelu)(zinf_kernels *table)
{
    table->gelu_forward = gelu_forward;
    table->gelu_backward = gelu_backward;
}
