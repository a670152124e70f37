/* kernels/cpu/gemm_amx.c - GEMM of bf16 on AMX tiles. C is cut into blocks, each owned by one
 * thread. Its piece of scratch holds, as tiles, the block's rows of A for a chunk of depth and a
 * panel of B's columns, and the sums in fp32: all of the block's if k has several chunks, of two
 * times 32 columns otherwise. Every element is one chain over k in steps of 32, whatever
 * the blocks: its bits depend on neither shape, threads nor scratch.
 *
 * Sizes: A's rows and the sums stay in the second-level cache (2 MiB). A block of r x c elements
 * takes 1 / r + 1 / c loads from memory for each multiply-add. Loads of what a tile instruction
 * has just stored wait long, so sums are turned into C one unit later.
 */
#include <omp.h>
#include <stdlib.h>

#include "kernels/cpu/amx.h"
#include "kernels/cpu/cpu.h"

enum { ROWS = 512, COLS = 2048, COLS_SUMMED = 384, DEPTH = 768, SLICE = 16, PANEL = 64, UNIT = 32,
       UNIT_BYTES = UNIT * UNIT * 4 };

struct zinf_gemm {
    zinf_gemm_desc desc;
    int n_threads;
    int64_t rows, cols, depth; /* of a block; multiples of 32 */
    size_t bytes;              /* scratch of one thread */
    zinf_kernels other;        /* the table that has made: */
    zinf_gemm *fallback;       /* does everything if not NULL */
};

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t parts_of(int64_t n, int64_t size)
{
    return (n + size - 1) / size;
}

/* n in equal parts of at most `most`, rounded up to whole units. */
static int64_t even_part(int64_t n, int64_t most)
{
    const int64_t units = parts_of(n > 1 ? n : 1, UNIT);

    return parts_of(units, parts_of(units, most / UNIT)) * UNIT;
}

static size_t block_bytes(const zinf_gemm *gemm)
{
    const bool in_chunks = gemm->desc.k > gemm->depth;

    return (size_t)(2 * gemm->depth * (gemm->rows + PANEL) +
                    4 * gemm->rows * (in_chunks ? gemm->cols : 2 * UNIT));
}

static int64_t n_blocks(const zinf_gemm *gemm)
{
    return parts_of(gemm->desc.m, gemm->rows) * parts_of(gemm->desc.n, gemm->cols);
}

/* Blocks so small that each thread has its own scratch and, if there is work enough, its share.
 * False if not even one thread can have the smallest. */
static bool choose_blocks(zinf_gemm *gemm, size_t scratch_bytes)
{
    const zinf_gemm_desc *d = &gemm->desc;
    int64_t rows = ROWS, cols = d->k > DEPTH ? COLS_SUMMED : COLS, depth = DEPTH;

    for (;;) {
        gemm->rows = even_part(d->m, rows);
        gemm->cols = even_part(d->n, cols);
        gemm->depth = even_part(d->k, depth);
        gemm->bytes = block_bytes(gemm);
        const bool fits = gemm->bytes * (size_t)gemm->n_threads <= scratch_bytes;
        if (fits && (n_blocks(gemm) >= gemm->n_threads || (rows <= 64 && cols <= 64)))
            return true;
        if (cols > 64 && (cols >= rows || !fits))
            cols /= 2;
        else if (rows > 64)
            rows /= 2;
        else if (depth > 64)
            depth /= 2;
        else if (gemm->n_threads > 1)
            gemm->n_threads--;
        else if (rows > UNIT || cols > UNIT || depth > UNIT)
            rows = cols = depth = UNIT;
        else
            return false;
    }
}

static void gemm_destroy(zinf_gemm *gemm)
{
    if (!gemm)
        return;
    if (gemm->fallback)
        gemm->other.gemm_destroy(gemm->fallback);
    free(gemm);
}

static zinf_gemm *gemm_create(const zinf_kernels *self, const zinf_gemm_desc *desc,
                              size_t scratch_bytes)
{
    zinf_gemm *gemm = calloc(1, sizeof *gemm);
    const size_t usable = scratch_bytes > 63 ? scratch_bytes - 63 : 0; /* aligned by run */

    if (!gemm)
        return NULL;
    gemm->desc = *desc;
    gemm->n_threads = self->n_threads;
    if (desc->ab_dtype == ZINF_BF16 && desc->k > 0 && choose_blocks(gemm, usable))
        return gemm;
    gemm->other = *self;
    zinf_cpu_gemm_below_amx(&gemm->other);
    gemm->fallback = gemm->other.gemm_create(&gemm->other, desc, scratch_bytes);
    if (!gemm->fallback) {
        gemm_destroy(gemm);
        return NULL;
    }
    return gemm;
}

/* An operand where it is stored: rows are steps of depth (by_depth) or of the outer dimension. */
typedef struct operand {
    const uint16_t *at;
    int64_t ld;
    bool is_b, by_depth;
} operand;

INLINE __mmask32 first_words(int64_t n)
{
    return n >= 32 ? 0xffffffffu : n <= 0 ? 0 : (__mmask32)((1u << n) - 1);
}

/* Packs n outer x k deep from (outer0, depth0) into tiles [outer / 16][depth / 32], padded with
 * zeros to multiples of 32. A tile of A is 16 outer x 16 pairs of depth, one of B the transpose.
 * Rows that are steps of depth are paired, which makes tiles of B; rows that are outer are tiles
 * of A; the other two cases transpose a tile of 32-bit pairs. */
INLINE void pack(bool is_b, bool by_depth, const operand *from, int64_t outer0, int64_t depth0,
                 int64_t n, int64_t k, char *to)
{
    const int64_t deep = parts_of(k, AMX_K);
    const vi low = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8,
                                    39, 7, 38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    const vi high = _mm512_or_si512(low, _mm512_set1_epi16(16));

    /* along the rows as they are stored */
    for (int64_t u = 0; u < (by_depth ? k : n); u += UNIT)
        for (int64_t w = 0; w < (by_depth ? n : k); w += UNIT) {
            const int64_t i = by_depth ? w : u, p = by_depth ? u : w;
            char *at = to + (i / 16 * deep + p / AMX_K) * AMX_TILE;
            const __mmask32 mask = first_words(by_depth ? n - i : k - p);
            vi r[2][16];

            for (int q = 0; q < 16; q++)
                if (by_depth) {
                    const uint16_t *row = from->at + (depth0 + p + 2 * q) * from->ld + outer0 + i;
                    const vi even = p + 2 * q < k ? _mm512_maskz_loadu_epi16(mask, row) :
                                                    _mm512_setzero_si512();
                    const vi odd = p + 2 * q + 1 < k ?
                        _mm512_maskz_loadu_epi16(mask, row + from->ld) : _mm512_setzero_si512();
                    r[0][q] = _mm512_permutex2var_epi16(even, low, odd);
                    r[1][q] = _mm512_permutex2var_epi16(even, high, odd);
                } else {
                    const uint16_t *row = from->at + (outer0 + i + q) * from->ld + depth0 + p;
                    r[0][q] = i + q < n ? _mm512_maskz_loadu_epi16(mask, row) :
                                          _mm512_setzero_si512();
                    r[1][q] = i + q + 16 < n ?
                        _mm512_maskz_loadu_epi16(mask, row + 16 * from->ld) :
                        _mm512_setzero_si512();
                }
            for (int half = 0; half < 2; half++) {
                if (is_b != by_depth)
                    amx_transpose(r[half]);
                for (int q = 0; q < 16; q++)
                    _mm512_store_si512(at + half * deep * AMX_TILE + q * 64, r[half][q]);
            }
        }
}

static void pack_any(const operand *from, int64_t outer0, int64_t depth0, int64_t n, int64_t k,
                     char *to)
{
    if (from->is_b && from->by_depth)
        pack(true, true, from, outer0, depth0, n, k, to);
    else if (from->is_b)
        pack(true, false, from, outer0, depth0, n, k, to);
    else if (from->by_depth)
        pack(false, true, from, outer0, depth0, n, k, to);
    else
        pack(false, false, from, outer0, depth0, n, k, to);
}

typedef struct problem {
    const zinf_gemm *gemm;
    operand a, b;
    const uint16_t *bias, *residual;
    void *c;
} problem;

/* 16 elements of C from their sums: adds what is to be added. at, at_r: in C and residual. */
INLINE vf finish(bool c_bf16, const problem *p, vf x, int64_t at, int64_t at_r, int64_t j,
                 int64_t n)
{
    const zinf_gemm_desc *d = &p->gemm->desc;

    if (d->accumulate)
        x += act_load(c_bf16, p->c, at, n);
    if (d->has_bias)
        x += bf_load_n(p->bias + j, n);
    if (d->has_residual)
        x += bf_load_n(p->residual + at_r, n);
    return x;
}

/* C's 32 x 32 at (i0, j0), m x n of them inside, from their sums. Whole rows of bf16 are rounded by
 * an instruction that takes denormals for zero, as the tiles do. */
INLINE void store_unit(bool c_bf16, const problem *p, const float *sums, int64_t i0, int64_t j0,
                       int64_t m, int64_t n)
{
    const zinf_gemm_desc *d = &p->gemm->desc;

    for (int64_t i = 0; i < m; i++) {
        const float *row = sums + i / 16 * 512 + i % 16 * 16;
        const int64_t at = (i0 + i) * d->ldc + j0, at_r = (i0 + i) * d->ldr + j0;
        const vf low = finish(c_bf16, p, vf_load(row), at, at_r, j0, n);
        const vf high = n <= 16 ? low : finish(c_bf16, p, vf_load(row + 256), at + 16, at_r + 16,
                                               j0 + 16, n - 16);

        if (c_bf16 && n >= UNIT) {
            _mm512_storeu_si512((uint16_t *)p->c + at, (vi)_mm512_cvtne2ps_pbh(high, low));
            continue;
        }
        act_store(c_bf16, p->c, at, n, low);
        if (n > 16)
            act_store(c_bf16, p->c, at + 16, n - 16, high);
    }
}

/* A unit whose sums are complete but not yet in C; sums NULL if there is none. */
typedef struct pending {
    const float *sums;
    int64_t i, j, m, n;
} pending;

static void store_pending(const problem *p, pending *it)
{
    if (it->sums && p->gemm->desc.c_dtype == ZINF_BF16)
        store_unit(true, p, it->sums, it->i, it->j, it->m, it->n);
    else if (it->sums)
        store_unit(false, p, it->sums, it->i, it->j, it->m, it->n);
    it->sums = NULL;
}

/* One column of units: m rows against one unit of columns, over a slice of depth so short that the
 * columns stay in the first-level cache. */
static void multiply(const problem *p, char *a, char *b, int64_t deep, int64_t step,
                     bool accumulate, bool last, int64_t i0, int64_t j0, int64_t m, int64_t n,
                     char *units, pending *late)
{
    for (int64_t i = 0; i < m; i += UNIT, a += 2 * deep * AMX_TILE, units += UNIT_BYTES) {
        const pending unit = {(const float *)(const void *)units, i0 + i, j0, least(UNIT, m - i),
                              n};

        amx_product(1, 1, step, (amx_view){a, deep * AMX_TILE, AMX_TILE, 64},
                    (amx_view){b, deep * AMX_TILE, AMX_TILE, 64},
                    (amx_view){units, 2 * AMX_TILE, AMX_TILE, 64}, accumulate);
        store_pending(p, late);
        if (last)
            *late = unit;
    }
}

static void run_block(const problem *p, int64_t i0, int64_t j0, char *scratch)
{
    const zinf_gemm *gemm = p->gemm;
    const zinf_gemm_desc *d = &gemm->desc;
    const int64_t m = least(gemm->rows, d->m - i0), n = least(gemm->cols, d->n - j0);
    const int64_t unit_rows = gemm->rows / UNIT;
    char *a = scratch, *b = a + 2 * gemm->rows * gemm->depth;
    char *sums = b + 2 * PANEL * gemm->depth; /* [cols / 32][rows / 32] units of 2 x 2 tiles */
    const bool in_chunks = d->k > gemm->depth;
    pending late = {.sums = NULL};

    for (int64_t p0 = 0; p0 < d->k; p0 += gemm->depth) {
        const int64_t k = least(gemm->depth, d->k - p0), deep = parts_of(k, AMX_K);
        const bool last = p0 + gemm->depth >= d->k;

        pack_any(&p->a, i0, p0, m, k, a);
        for (int64_t j = 0; j < n; j += UNIT) {
            char *panel = b + j % PANEL / 16 * deep * AMX_TILE;
            char *units = sums + (in_chunks ? j / UNIT : j / UNIT % 2) * unit_rows * UNIT_BYTES;

            if (j % PANEL == 0)
                pack_any(&p->b, j0 + j, p0, least(PANEL, n - j), k, b);
            for (int64_t s = 0, step; s < deep; s += step) {
                step = parts_of(deep - s, parts_of(deep - s, SLICE));
                multiply(p, a + s * AMX_TILE, panel + s * AMX_TILE, deep, step, p0 > 0 || s > 0,
                         last && s + step == deep, i0, j0 + j, m, least(UNIT, n - j), units,
                         &late);
            }
        }
    }
    store_pending(p, &late);
}

static void run_blocks(const problem *p, char *scratch)
{
    const zinf_gemm *gemm = p->gemm;
    const int64_t blocks_m = parts_of(gemm->desc.m, gemm->rows), blocks = n_blocks(gemm);

    amx_begin();
#pragma omp for schedule(dynamic)
    for (int64_t block = 0; block < blocks; block++)
        run_block(p, block % blocks_m * gemm->rows, block / blocks_m * gemm->cols,
                  scratch + gemm->bytes * (size_t)omp_get_thread_num());
    amx_end();
}

static void gemm_run(zinf_gemm *gemm, const void *a, const void *b, const void *bias,
                     const void *residual, void *c, void *scratch)
{
    const zinf_gemm_desc *d = &gemm->desc;
    char *aligned = (char *)zinf_align64((uint64_t)(uintptr_t)scratch);
    const problem p = {gemm, {a, d->lda, false, d->trans_a}, {b, d->ldb, true, !d->trans_b},
                       bias, residual, c};

    if (gemm->fallback) {
        gemm->other.gemm_run(gemm->fallback, a, b, bias, residual, c, scratch);
        return;
    }
    if (d->m < 1 || d->n < 1)
        return;
    TEAM(gemm->n_threads, n_blocks(gemm) > 1, run_blocks(&p, aligned));
}

void zinf_cpu_gemm_amx(zinf_kernels *table)
{
    table->gemm_create = gemm_create;
    table->gemm_run = gemm_run;
    table->gemm_destroy = gemm_destroy;
}
