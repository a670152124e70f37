/* kernels/kernels.h - the kernel table: every operator a backend must provide, with its shapes.
 *
 * kernels/ref fills a table with the definition (plain C, double accumulation); a backend fills
 * the same table again, level by level, with faster versions. Includes nothing of runtime/ or
 * planner/. No kernel allocates, prints or fails: sizes were checked when the plan was loaded;
 * scratch comes from the caller. The result of a kernel depends on neither the number of threads
 * nor on memory addresses (fixed reduction order, no atomics on floats), nor an element of a GEMM
 * on the shape that it is a part of. Scratch is aligned to 64 bytes, everything else to its
 * element. A prepared GEMM is run by one thread at a time.
 *
 * Letters in shapes: N tokens (batch * seq, row n = b * seq + t), C channels (hidden), V rows of
 * a vocabulary tile, H heads, G kv heads, D head_dim, F width inside the MLP. "act" is the
 * table's activation type (f32 or bf16): element type of every `void *` unless said otherwise.
 * All matrices are row major;
 * `ld*` is the distance between rows in elements (>= columns). Sums are carried in fp32 or wider
 * and rounded to the output type once.
 */
#ifndef ZINF_KERNELS_KERNELS_H
#define ZINF_KERNELS_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/dtype.h"

/* C[m][n] = (accumulate ? C : 0) + op(A)[m][k] * op(B)[k][n] + bias[n] + residual[m][n], each sum
 * in the order of k from C on (but for the reference's, which is wider): so two calls that
 * accumulate into fp32, cut at a multiple of 32 of k, have the bits of one.
 * op(A) is A stored [m][k], or, if trans_a, stored [k][m]; op(B) is B stored [k][n], or, if
 * trans_b, stored [n][k]. a and b have one type (f32 or bf16); c is f32 or the type of a and b;
 * bias and residual, where present, have the type of a and b. */
typedef struct zinf_gemm_desc {
    int64_t m, n, k;
    int64_t lda, ldb, ldc, ldr; /* of the stored matrices; ldr of residual */
    zinf_dtype ab_dtype, c_dtype;
    bool trans_a, trans_b, accumulate, has_bias, has_residual;
} zinf_gemm_desc;

typedef struct zinf_gemm zinf_gemm; /* a prepared GEMM; belongs to the table that made it */

typedef struct zinf_adam_args {
    float lr, beta1, beta2, eps, weight_decay;
    float bias1, bias2; /* 1 - beta1^step, 1 - beta2^step */
    float grad_scale;   /* multiplies every gradient: the clip factor */
} zinf_adam_args;

typedef struct zinf_kernels {
    const char *name; /* of the level: zinf_cpu_level_names */
    zinf_dtype act;   /* f32 or bf16 */
    int n_threads;    /* OpenMP threads used by every kernel of this table */

    /* Prepares a GEMM once, at load. scratch_bytes is what every run will be given: a version
     * that would need more must work in smaller pieces. NULL if memory is short. */
    zinf_gemm *(*gemm_create)(const struct zinf_kernels *self, const zinf_gemm_desc *desc,
                              size_t scratch_bytes);
    void (*gemm_run)(zinf_gemm *gemm, const void *a, const void *b, const void *bias,
                     const void *residual, void *c, void *scratch);
    void (*gemm_destroy)(zinf_gemm *gemm); /* accepts NULL */

    /* out[N][C] = wte[token] + wpe[t] for tokens in [row0, row0 + V); wte is the tile [V][C],
     * wpe [seq][C], or NULL: nothing is added. tokens[b][t] at tokens[b * token_ld + t]. If
     * first, rows of other tokens are zeroed, else left alone, so running all tiles, the first
     * with `first`, fills out. */
    void (*embedding_forward)(const struct zinf_kernels *self, const int32_t *tokens,
                              int64_t token_ld, const void *wte, const void *wpe, int64_t row0,
                              int64_t rows, int64_t batch, int64_t seq, int64_t channels,
                              bool first, void *out);
    /* dwte[V][C] fp32 (+)= scatter-add of dx[N][C] by token, in order of n; overwritten first
     * unless accumulate. */
    void (*embedding_backward)(const struct zinf_kernels *self, const int32_t *tokens,
                               int64_t token_ld, const void *dx, int64_t row0, int64_t rows,
                               int64_t batch, int64_t seq, int64_t channels, bool accumulate,
                               float *dwte);
    /* dwpe[seq][C] fp32 (+)= sum over b of dx[b][t][C] */
    void (*position_backward)(const struct zinf_kernels *self, const void *dx, int64_t batch,
                              int64_t seq, int64_t channels, bool accumulate, float *dwpe);

    /* y[N][C] = (x - mean) * rstd * w[C] + b[C]; stats[N][2] fp32 = mean, rstd (eps 1e-5,
     * biased variance). */
    void (*layernorm_forward)(const struct zinf_kernels *self, const void *x, const void *w,
                              const void *b, int64_t n, int64_t channels, void *y, float *stats);
    /* dx[N][C] = residual[N][C] (or 0 if NULL) + layernorm's input gradient;
     * dw[C], db[C] fp32 (+)=. dy is fp32 if dy_f32, else act. dx may be residual.
     * scratch: zinf_layernorm_scratch_bytes. */
    void (*layernorm_backward)(const struct zinf_kernels *self, const void *dy, bool dy_f32,
                               const void *x, const void *w, const float *stats,
                               const void *residual, int64_t n, int64_t channels,
                               bool accumulate, void *dx, float *dw, float *db, void *scratch);

    /* y[N][C] = x * rstd * w[C], rstd = 1 / sqrt(mean of x^2 + eps); stats[N] fp32 = rstd. */
    void (*rmsnorm_forward)(const struct zinf_kernels *self, const void *x, const void *w,
                            double eps, int64_t n, int64_t channels, void *y, float *stats);
    /* dx[N][C] = residual[N][C] (or 0 if NULL) + rmsnorm's input gradient; dw[C] fp32 (+)=. dy is
     * fp32 if dy_f32, else act. dx may be residual. scratch: zinf_rmsnorm_scratch_bytes. */
    void (*rmsnorm_backward)(const struct zinf_kernels *self, const void *dy, bool dy_f32,
                             const void *x, const void *w, const float *stats,
                             const void *residual, int64_t n, int64_t channels, bool accumulate,
                             void *dx, float *dw, void *scratch);

    /* Rotary positions (Su et al., 2104.09864), pairs as in the Hugging Face llama: in place, the
     * first `heads` heads of every row of x[N][ldx], each D wide (D even), turn by
     * a = t * frequencies[i]: (x[i], x[i + D/2]) = (x[i] cos a - x[i + D/2] sin a,
     * x[i + D/2] cos a + x[i] sin a) for i < D/2; by -a if inverse, which is the gradient. Angles
     * and their cosines are computed in fp64. */
    void (*rope)(const struct zinf_kernels *self, const double *frequencies, int64_t batch,
                 int64_t seq, int64_t heads, int64_t head_dim, int64_t ldx, bool inverse,
                 void *x);

    /* Causal attention. qkv[N][(H + 2G) * D]: per token H query heads, G key heads, G value
     * heads, each D wide; query head h uses kv head h / (H / G). scale 1 / sqrt(D).
     * out[N][H * D]; lse[batch][H][seq] fp32 = log-sum-exp of the scaled scores.
     * scratch: zinf_attention_scratch_bytes. Never materialises seq * seq per layer.
     * Backward: of each row the mean of dout v with the weights p is taken from them, so that what
     * cancels against it does; only the levels above avx512 in bf16, to whose 8 bits it is the
     * same, take dout out. */
    void (*attention_forward)(const struct zinf_kernels *self, const void *qkv, int64_t batch,
                              int64_t seq, int64_t heads, int64_t kv_heads, int64_t head_dim,
                              void *out, float *lse, void *scratch);
    void (*attention_backward)(const struct zinf_kernels *self, const void *qkv, const void *out,
                               const void *dout, const float *lse, int64_t batch, int64_t seq,
                               int64_t heads, int64_t kv_heads, int64_t head_dim, void *dqkv,
                               void *scratch);

    /* gelu, tanh form as GPT-2: 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))). */
    void (*gelu_forward)(const struct zinf_kernels *self, const void *x, int64_t n, void *y);
    /* dx = dy * gelu'(x); dy is fp32 if dy_f32, else act. dx may be dy only if both are act. */
    void (*gelu_backward)(const struct zinf_kernels *self, const void *x, const void *dy,
                          bool dy_f32, int64_t n, void *dx);

    /* x[N][2F] is the gate [N][F] and beside it up [N][F]: y[N][F] = silu(gate) * up, with
     * silu(g) = g / (1 + exp(-g)). */
    void (*swiglu_forward)(const struct zinf_kernels *self, const void *x, int64_t n,
                           int64_t width, void *y);
    /* dx[N][2F] = dy * (up * silu'(gate), silu(gate)); dy[N][F] is fp32 if dy_f32, else act. */
    void (*swiglu_backward)(const struct zinf_kernels *self, const void *x, const void *dy,
                            bool dy_f32, int64_t n, int64_t width, void *dx);

    /* db[n] fp32 (+)= column sums of dy[m][n], rows ldy apart. scratch:
     * zinf_column_sum_scratch_bytes. */
    void (*column_sum)(const struct zinf_kernels *self, const void *dy, int64_t ldy, int64_t m,
                       int64_t n, bool accumulate, float *db, void *scratch);

    /* Online softmax statistics over vocabulary tiles. logits[m][V] fp32, rows ldl apart, are
     * columns [row0, row0 + V) of the whole row. stats[m][3] fp32 = running maximum, running
     * sum of exp(logit - maximum), logit of the target (its tile writes it). If first, starts
     * anew. targets[m]. */
    void (*softmax_stats)(const struct zinf_kernels *self, const float *logits, int64_t ldl,
                          const int32_t *targets, int64_t row0, int64_t rows, int64_t m,
                          bool first, float *stats);
    /* dlogits[m][V] act = (softmax - onehot(target)) * scale, rows ldd apart; may not alias. */
    void (*softmax_backward)(const struct zinf_kernels *self, const float *logits, int64_t ldl,
                             const int32_t *targets, const float *stats, int64_t row0,
                             int64_t rows, int64_t m, float scale, void *dlogits, int64_t ldd);
    /* Returns sum over m of (log(sum) + maximum - target logit), in fp64, in order. */
    double (*softmax_loss)(const struct zinf_kernels *self, const float *stats, int64_t m);

    /* dst[n] act = src[n] fp32, rounded to nearest even; and back. */
    void (*convert_from_f32)(const struct zinf_kernels *self, const float *src, int64_t n,
                             void *dst);
    void (*convert_to_f32)(const struct zinf_kernels *self, const void *src, int64_t n,
                           float *dst);
    /* acc[n] += src[n], fp32 */
    void (*accumulate_f32)(const struct zinf_kernels *self, const float *src, int64_t n,
                           float *acc);
    /* Returns the sum of squares of x[n] in fp64, in one fixed blocked order (blocks of 65536
     * elements summed in index order), whatever the number of threads. */
    double (*sum_of_squares)(const struct zinf_kernels *self, const float *x, int64_t n);
    /* AdamW, decoupled weight decay, element by element, as torch.optim.AdamW:
     * g = grad * grad_scale; p -= lr * weight_decay * p; m = b1 m + (1 - b1) g;
     * v = b2 v + (1 - b2) g^2; p -= lr * (m / bias1) / (sqrt(v / bias2) + eps).
     * master, m, v, grad fp32 [n]; param act [n] = rounded master, unless NULL. */
    void (*adam)(const struct zinf_kernels *self, const zinf_adam_args *args, const float *grad,
                 int64_t n, float *master, float *m, float *v, void *param);
} zinf_kernels;

/* Scratch a kernel may use, bytes, a multiple of 64. Part of the contract: the planner plans
 * exactly this. */
static inline uint64_t zinf_align64(uint64_t bytes)
{
    return (bytes + 63) & ~(uint64_t)63;
}

enum { ZINF_REDUCE_CHUNKS = 32 }; /* fixed number of partial sums over tokens */

/* A GEMM whose three matrices fit as fp32 is given that, a larger one (2 + threads) MiB: blocks are
 * made smaller, then threads fewer, until each thread has its own in there. */
static inline uint64_t zinf_gemm_scratch_bytes(uint64_t m, uint64_t n, uint64_t k,
                                               uint64_t n_threads)
{
    double whole = 4.0 * ((double)m * (double)k + (double)k * (double)n + (double)m * (double)n);
    uint64_t most = (2 + n_threads) << 20;
    return whole + 262144.0 < (double)most ? zinf_align64((uint64_t)whole) + 262144 : most;
}

/* Two partial rows (dw, db) for each chunk of tokens. */
static inline uint64_t zinf_layernorm_scratch_bytes(uint64_t channels)
{
    return zinf_align64(2 * ZINF_REDUCE_CHUNKS * channels * 4);
}

/* One partial row (dw) for each chunk of tokens. */
static inline uint64_t zinf_rmsnorm_scratch_bytes(uint64_t channels)
{
    return zinf_align64(ZINF_REDUCE_CHUNKS * channels * 4);
}

static inline uint64_t zinf_column_sum_scratch_bytes(uint64_t columns)
{
    return zinf_align64(ZINF_REDUCE_CHUNKS * columns * 4);
}

enum { ZINF_ATTENTION_BLOCK = 64 }; /* query rows handled at once */

/* Per thread: two blocks [64][seq] of scores and the fp32 copies of one head's q, k, v, out,
 * dout, dq, dk, dv ([seq][D] each); seq in blocks of 64, D in columns of 32. */
static inline uint64_t zinf_attention_scratch_bytes(uint64_t seq, uint64_t head_dim,
                                                    uint64_t n_threads)
{
    seq = (seq + ZINF_ATTENTION_BLOCK - 1) / ZINF_ATTENTION_BLOCK * ZINF_ATTENTION_BLOCK;
    head_dim = (head_dim + 31) / 32 * 32;
    return n_threads * zinf_align64(4 * (2 * ZINF_ATTENTION_BLOCK * seq + 8 * seq * head_dim +
                                         ZINF_ATTENTION_BLOCK * 16));
}

/* Instruction-set levels, for tests and for ZINF_CPU_LEVEL. */
typedef enum zinf_cpu_level {
    ZINF_CPU_REF, ZINF_CPU_AVX2, ZINF_CPU_AVX512, ZINF_CPU_AVX512_BF16, ZINF_CPU_AMX,
    ZINF_N_CPU_LEVELS
} zinf_cpu_level;

extern const char *const zinf_cpu_level_names[ZINF_N_CPU_LEVELS];

/* Fills the reference table for act = f32 or bf16. */
void zinf_kernels_ref(zinf_kernels *ret_table, zinf_dtype act, int n_threads);

/* Fills the fastest table this CPU supports, at most `most` (environment ZINF_CPU_LEVEL =
 * ref | avx2 | avx512 | avx512_bf16 | amx lowers it further; an unknown word is ignored here and
 * refused before by runtime/preflight.c). Starts from the reference and overwrites it level by
 * level. */
void zinf_kernels_cpu(zinf_kernels *ret_table, zinf_dtype act, int n_threads,
                      zinf_cpu_level most);

/* False if text is no level. */
bool zinf_cpu_level_parse(const char *text, zinf_cpu_level *ret_level);

#endif
