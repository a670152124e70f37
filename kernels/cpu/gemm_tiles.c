/* kernels/cpu/gemm_tiles.c - GEMM of bf16 on tiles (tiles.h), for the levels above avx512. C is cut
 * into blocks, each owned by one thread. Its piece of scratch holds, as tiles, the block's rows of
 * A for a chunk of depth, two panels of B's columns, and the sums in fp32: all of the block's if k
 * has several chunks, of two times 32 columns otherwise. Every element is one chain over k in steps
 * of 32, which begins with C where C is accumulated: its bits depend on neither shape, threads nor
 * scratch (from a few KiB on; with less, level avx512 does it), and where C is fp32 not on how k is
 * cut into calls, at multiples of 32.
 *
 * Sizes: A's rows and the sums stay in the second-level cache (2 MiB; of 1 MiB the sums do not
 * mind), a slice of a panel in the first (SLICE * 2 KiB). Between the products of tiles the next
 * panel of B is packed and the sums of the column before are turned into C.
 *
 * What is left unused of the peak. AMX: tiles come from the second-level cache at 0.66 of it, and a
 * block of 512 x 512 needs a byte from memory or the third level for every 256 FLOP; prefetching
 * what is to be packed made it slower, it holds the fill buffers that the tiles need. Dot products:
 * what is packed lies in 32 rows, further apart than a prefetcher looks; it is fetched one product
 * ahead, without which a quarter of the time is lost (Zen 5). That leaves 0.93 to 0.97 of the peak.
 */
#include <omp.h>
#include <stdlib.h>

#include "kernels/cpu/tiles.h"
#include "kernels/cpu/cpu.h"

enum { ROWS = 512, COLS = 8192, COLS_SUMMED = 512, DEPTH = 1024, DEPTH_SUMMED = 256, SLICE = 8,
       PANEL = 64, UNIT = 32, UNIT_BYTES = UNIT * UNIT * 4, PAST_CACHES_BYTES = 1 << 20 };

struct zinf_gemm {
    zinf_gemm_desc desc;
    int n_threads;
    int64_t rows, cols, depth; /* of a block; multiples of 32 */
    size_t bytes;              /* scratch of one thread */
    zinf_kernels other;        /* of level avx512, whose: */
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

    return (size_t)(2 * gemm->depth * ((in_chunks ? 2 : 1) * gemm->rows + 2 * PANEL) +
                    4 * gemm->rows * (in_chunks ? gemm->cols : 2 * UNIT));
}

static int64_t n_blocks(const zinf_gemm *gemm)
{
    return parts_of(gemm->desc.m, gemm->rows) * parts_of(gemm->desc.n, gemm->cols);
}

/* Blocks are taken one by one; in the last round not all threads may find one. */
static bool shares_evenly(const zinf_gemm *gemm)
{
    const int64_t blocks = n_blocks(gemm), rounds = parts_of(blocks, gemm->n_threads);

    return blocks * 8 >= rounds * gemm->n_threads * 7;
}

/* Blocks so small that each thread has its own scratch and, if there is work enough, its share.
 * False if not even one thread can have the smallest. */
static bool choose_blocks(zinf_gemm *gemm, size_t scratch_bytes)
{
    const zinf_gemm_desc *d = &gemm->desc;
    int64_t rows = ROWS, cols = d->k > DEPTH ? COLS_SUMMED : COLS;
    int64_t depth = d->k > DEPTH ? DEPTH_SUMMED : DEPTH;

    for (;;) {
        gemm->rows = even_part(d->m, rows);
        gemm->cols = even_part(d->n, cols);
        gemm->depth = even_part(d->k, depth);
        gemm->bytes = block_bytes(gemm);
        const bool fits = gemm->bytes * (size_t)gemm->n_threads <= scratch_bytes;
        if (fits && (shares_evenly(gemm) || (rows <= 64 && cols <= 64)))
            return true;
        /* fewer columns need less room only where their sums are kept */
        if (cols > 64 && (fits ? cols >= rows : d->k > gemm->depth))
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
    zinf_cpu_gemm_avx512(&gemm->other);
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

/* n outer x k deep from (outer0, depth0) as tiles [outer / 16][depth / 32], padded with zeros to
 * multiples of 32; done in units of 32 x 32, in the order in which they are stored. */
typedef struct packing {
    const operand *from;
    int64_t outer0, depth0, n, k;
    char *to;
    int64_t n_units, n_done;
} packing;

static packing packing_of(const operand *from, int64_t outer0, int64_t depth0, int64_t n,
                          int64_t k, char *to)
{
    return (packing){from, outer0, depth0, n, k, to, parts_of(n, UNIT) * parts_of(k, UNIT), 0};
}

/* The unit that is next: (i, p) in the job, and where it is stored, in 32 rows. */
typedef struct unit_place {
    int64_t i, p;
    const uint16_t *at;
} unit_place;

INLINE unit_place place_of(const packing *job)
{
    const operand *from = job->from;
    const bool by_depth = from->by_depth;
    const int64_t per_row = parts_of(by_depth ? job->n : job->k, UNIT);
    const int64_t u = job->n_done / per_row * UNIT, w = job->n_done % per_row * UNIT;

    return (unit_place){by_depth ? w : u, by_depth ? u : w,
                        from->at + ((by_depth ? job->depth0 : job->outer0) + u) * from->ld +
                            (by_depth ? job->outer0 : job->depth0) + w};
}

/* Inlined: GCC takes a function that only prefetches for one without effect. */
INLINE void fetch_next(const packing *job)
{
#ifndef __AMX_TILE__
    if (job->n_done >= job->n_units)
        return;
    const unit_place it = place_of(job);
    for (int64_t r = 0; r < UNIT; r++)
        _mm_prefetch((const char *)(it.at + r * job->from->ld), _MM_HINT_T0);
#else
    (void)job;
#endif
}

/* A tile of A is 16 outer x 16 pairs of depth, one of B the transpose. Rows that are steps of
 * depth are paired, which makes tiles of B; rows that are outer are tiles of A; the other two
 * cases transpose a tile of 32-bit pairs. */
INLINE void pack_unit(bool is_b, bool by_depth, const packing *job)
{
    const operand *from = job->from;
    const unit_place it = place_of(job);
    const int64_t i = it.i, p = it.p, deep = parts_of(job->k, TILE_K);
    const int64_t n = job->n, k = job->k;
    const uint16_t *at = it.at;
    char *to = job->to + (i / 16 * deep + p / TILE_K) * TILE_BYTES;
    const __mmask32 mask = first_words(by_depth ? n - i : k - p);
    const vi low = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8,
                                    39, 7, 38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    const vi high = _mm512_or_si512(low, _mm512_set1_epi16(16));
    vi r[2][16];

    for (int q = 0; q < 16; q++)
        if (by_depth) {
            const uint16_t *row = at + 2 * q * from->ld;
            const vi even = p + 2 * q < k ? _mm512_maskz_loadu_epi16(mask, row) :
                                            _mm512_setzero_si512();
            const vi odd = p + 2 * q + 1 < k ? _mm512_maskz_loadu_epi16(mask, row + from->ld) :
                                               _mm512_setzero_si512();
            r[0][q] = _mm512_permutex2var_epi16(even, low, odd);
            r[1][q] = _mm512_permutex2var_epi16(even, high, odd);
        } else {
            const uint16_t *row = at + q * from->ld;
            r[0][q] = i + q < n ? _mm512_maskz_loadu_epi16(mask, row) : _mm512_setzero_si512();
            r[1][q] = i + q + 16 < n ? _mm512_maskz_loadu_epi16(mask, row + 16 * from->ld) :
                                       _mm512_setzero_si512();
        }
    for (int half = 0; half < 2; half++) {
        if (is_b != by_depth)
            tiles_transpose(r[half]);
        for (int q = 0; q < 16; q++)
            _mm512_store_si512(to + half * deep * TILE_BYTES + q * 64, r[half][q]);
    }
}

static void pack_to(packing *job, int64_t n_done)
{
    for (; job->n_done < n_done; job->n_done++)
        if (job->from->is_b && job->from->by_depth)
            pack_unit(true, true, job);
        else if (job->from->is_b)
            pack_unit(true, false, job);
        else if (job->from->by_depth)
            pack_unit(false, true, job);
        else
            pack_unit(false, false, job);
    fetch_next(job);
}

typedef struct problem {
    const zinf_gemm *gemm;
    operand a, b;
    const uint16_t *bias, *residual;
    void *c;
    bool past_caches; /* C is too large to stay in a cache, and its lines are written whole */
} problem;

/* 16 elements of C from their sums: adds what is to be added. at_r: in residual. */
INLINE vf finish(const problem *p, vf x, int64_t at_r, int64_t j, int64_t n)
{
    const zinf_gemm_desc *d = &p->gemm->desc;

    if (d->has_bias)
        x += bf_load_n(p->bias + j, n);
    if (d->has_residual)
        x += bf_load_n(p->residual + at_r, n);
    return x;
}

/* A column of units: sums of m rows x n <= 32 columns, C's from (i, j) on. */
typedef struct column {
    char *units;
    int64_t i, j, m, n, n_done; /* rows that are in C already */
} column;

/* bf16 is rounded by an instruction that takes denormals for zero, as the tiles do. */
INLINE void store_row(bool c_bf16, const problem *p, const column *it)
{
    const zinf_gemm_desc *d = &p->gemm->desc;
    const int64_t r = it->n_done, i = it->i + r, j = it->j, n = it->n;
    const float *row = (const float *)(const void *)(it->units + r / UNIT * UNIT_BYTES +
                                                     r % UNIT / 16 * 2 * TILE_BYTES + r % 16 * 64);
    const int64_t at = i * d->ldc + j, at_r = i * d->ldr + j;
    const vf low = finish(p, vf_load(row), at_r, j, n);
    const vf high = n <= 16 ? low : finish(p, vf_load(row + 256), at_r + 16, j + 16, n - 16);

    if (c_bf16) {
        const vi both = two_narrow(low, high);
        if (n < UNIT)
            _mm512_mask_storeu_epi16((uint16_t *)p->c + at, first_words(n), both);
        else if (p->past_caches)
            _mm512_stream_si512((void *)((uint16_t *)p->c + at), both);
        else
            _mm512_storeu_si512((uint16_t *)p->c + at, both);
    } else if (n < UNIT) {
        vf_store_n((float *)p->c + at, n, low);
        vf_store_n((float *)p->c + at + 16, n - 16, high);
    } else if (p->past_caches) {
        _mm512_stream_ps((float *)p->c + at, low);
        _mm512_stream_ps((float *)p->c + at + 16, high);
    } else {
        _mm512_storeu_ps((float *)p->c + at, low);
        _mm512_storeu_ps((float *)p->c + at + 16, high);
    }
}

static void store_to(const problem *p, column *it, int64_t n_done)
{
    for (; it->n_done < n_done; it->n_done++)
        if (p->gemm->desc.c_dtype == ZINF_BF16)
            store_row(true, p, it);
        else
            store_row(false, p, it);
}

/* The sums of 32 rows, from row r of the column on, begin with C; the next of C are fetched. */
INLINE void load_unit(bool c_bf16, const problem *p, const column *it, int64_t r)
{
    const int64_t ld = p->gemm->desc.ldc, bytes = c_bf16 ? 2 : 4;
    float *unit = (float *)(void *)(it->units + r / UNIT * UNIT_BYTES);

    for (int64_t q = 0; q < UNIT; q++) {
        const int64_t n = r + q < it->m ? it->n : 0, at = (it->i + r + q) * ld + it->j;
        float *row = unit + q / 16 * 512 + q % 16 * 16;

        vf_store(row, act_load(c_bf16, p->c, at, n));
        vf_store(row + 256, act_load(c_bf16, p->c, at + 16, n - 16));
        if (r + q + UNIT < it->m)
            for (int64_t j = 0; j < UNIT * bytes; j += 64)
                _mm_prefetch((const char *)p->c + (at + UNIT * ld) * bytes + j, _MM_HINT_T0);
    }
}

/* What is done between the tile instructions, and how far. */
typedef struct meanwhile {
    column before; /* to C, all of it */
    packing rows, panel; /* the next chunk of A, the next panel of B */
    int64_t n_rows, n_panel; /* units */
} meanwhile;

static int64_t between(int64_t from, int64_t to, int64_t i, int64_t n)
{
    return from + (to - from) * i / n;
}

/* One column of units: its rows of A against 32 columns of B, in slices of depth so short that
 * the columns stay in the first-level cache. */
static void multiply(const problem *p, char *a, char *b, int64_t deep, const column *to,
                     bool first_chunk, meanwhile *it)
{
    const zinf_gemm_desc *d = &p->gemm->desc;
    const int64_t slices = parts_of(deep, SLICE), step = parts_of(deep, slices);
    const int64_t n_calls = parts_of(to->m, UNIT) * slices;
    const meanwhile start = *it;
    int64_t call = 0;

    for (int64_t s = 0; s < deep; s += step)
        for (int64_t i = 0; i < to->m; i += UNIT) {
            const bool first = first_chunk && s == 0;

            if (first && d->accumulate && d->c_dtype == ZINF_BF16)
                load_unit(true, p, to, i);
            else if (first && d->accumulate)
                load_unit(false, p, to, i);
            tiles_product(1, 1, least(step, deep - s),
                          (tiles_view){a + (i / 16 * deep + s) * TILE_BYTES, deep * TILE_BYTES,
                                       TILE_BYTES, 64},
                          (tiles_view){b + s * TILE_BYTES, deep * TILE_BYTES, TILE_BYTES, 64},
                          (tiles_view){to->units + i / UNIT * UNIT_BYTES, 2 * TILE_BYTES,
                                       TILE_BYTES, 64},
                          d->accumulate || !first);
            call++;
            store_to(p, &it->before, between(start.before.n_done, start.before.m, call, n_calls));
            pack_to(&it->panel, between(start.panel.n_done, start.n_panel, call, n_calls));
            pack_to(&it->rows, between(start.rows.n_done, start.n_rows, call, n_calls));
        }
}

/* A block of C: rows m of n from (i0, j0). */
typedef struct block {
    const problem *p;
    int64_t i0, j0, m, n, n_chunks, n_panels; /* chunks of depth, panels of a chunk */
    char *a[2], *b[2];
} block;

static int64_t chunk_depth(const block *it, int64_t chunk)
{
    return least(it->p->gemm->depth, it->p->gemm->desc.k - chunk * it->p->gemm->depth);
}

/* Rows of A for a chunk, nothing after the last one. */
static packing rows_of(const block *it, int64_t chunk)
{
    if (chunk >= it->n_chunks)
        return (packing){.from = &it->p->a};
    return packing_of(&it->p->a, it->i0, chunk * it->p->gemm->depth, it->m,
                      chunk_depth(it, chunk), it->a[chunk % 2]);
}

/* Panels are counted through all chunks. */
static packing panel_of(const block *it, int64_t panel)
{
    const int64_t chunk = panel / it->n_panels, j = panel % it->n_panels * PANEL;

    if (chunk >= it->n_chunks)
        return (packing){.from = &it->p->b};
    return packing_of(&it->p->b, it->j0 + j, chunk * it->p->gemm->depth, least(PANEL, it->n - j),
                      chunk_depth(it, chunk), it->b[panel % 2]);
}

static void run_block(const problem *p, int64_t i0, int64_t j0, char *scratch)
{
    const zinf_gemm *gemm = p->gemm;
    const zinf_gemm_desc *d = &gemm->desc;
    const int64_t m = least(gemm->rows, d->m - i0), n = least(gemm->cols, d->n - j0);
    const int64_t n_columns = parts_of(n, UNIT), n_chunks = parts_of(d->k, gemm->depth);
    const int64_t a_bytes = 2 * gemm->rows * gemm->depth, b_bytes = 2 * PANEL * gemm->depth;
    char *b = scratch + (d->k > gemm->depth ? 2 : 1) * a_bytes, *sums = b + 2 * b_bytes;
    const block it = {p, i0, j0, m, n, n_chunks, parts_of(n, PANEL),
                      {scratch, scratch + a_bytes}, {b, b + b_bytes}};
    meanwhile also = {.rows = rows_of(&it, 0), .panel = panel_of(&it, 0)};

    pack_to(&also.rows, also.rows.n_units);
    pack_to(&also.panel, also.panel.n_units);
    for (int64_t chunk = 0; chunk < n_chunks; chunk++) {
        const int64_t deep = parts_of(chunk_depth(&it, chunk), TILE_K);

        also.rows = rows_of(&it, chunk + 1);
        for (int64_t c = 0; c < n_columns; c++) {
            const int64_t panel = chunk * it.n_panels + c / (PANEL / UNIT);
            const int64_t place = c % (PANEL / UNIT);
            const column to = {
                sums + (n_chunks > 1 ? c : c % 2) * (gemm->rows / UNIT) * UNIT_BYTES,
                i0, j0 + c * UNIT, m, least(UNIT, n - c * UNIT), 0};

            if (place == 0)
                also.panel = panel_of(&it, panel + 1);
            also.n_rows = also.rows.n_units * (c + 1) / n_columns;
            also.n_panel = c + 1 == n_columns ? also.panel.n_units :
                                                also.panel.n_units * (place + 1) / (PANEL / UNIT);
            multiply(p, it.a[chunk % 2], it.b[panel % 2] + place * 2 * deep * TILE_BYTES, deep,
                     &to, chunk == 0, &also);
            if (chunk + 1 == n_chunks)
                also.before = to;
        }
    }
    store_to(p, &also.before, also.before.m);
}

static void run_numbered(const problem *p, int64_t index, char *scratch)
{
    const zinf_gemm *gemm = p->gemm;
    const int64_t blocks_m = parts_of(gemm->desc.m, gemm->rows);

    run_block(p, index % blocks_m * gemm->rows, index / blocks_m * gemm->cols, scratch);
}

static void run_blocks(const problem *p, char *scratch)
{
    const int64_t blocks = n_blocks(p->gemm);

    tiles_begin();
    if (!omp_in_parallel()) { /* libgomp allocates for a dynamic schedule without a team */
        for (int64_t i = 0; i < blocks; i++)
            run_numbered(p, i, scratch);
    } else {
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < blocks; i++)
            run_numbered(p, i, scratch + p->gemm->bytes * (size_t)omp_get_thread_num());
    }
    tiles_end();
    _mm_sfence();
}

/* Worth it for what the caches could not hold until it is read; a line must be written at once. */
static bool past_caches(const zinf_gemm_desc *d, const void *c)
{
    const int64_t size = d->c_dtype == ZINF_BF16 ? 2 : 4;

    return !d->accumulate && d->m * d->n * size > PAST_CACHES_BYTES && d->ldc * size % 64 == 0 &&
           (uintptr_t)c % 64 == 0;
}

static void gemm_run(zinf_gemm *gemm, const void *a, const void *b, const void *bias,
                     const void *residual, void *c, void *scratch)
{
    const zinf_gemm_desc *d = &gemm->desc;
    char *aligned = (char *)zinf_align64((uint64_t)(uintptr_t)scratch);
    const problem p = {gemm, {a, d->lda, false, d->trans_a}, {b, d->ldb, true, !d->trans_b},
                       bias, residual, c, past_caches(d, c)};

    if (gemm->fallback) {
        gemm->other.gemm_run(gemm->fallback, a, b, bias, residual, c, scratch);
        return;
    }
    if (d->m < 1 || d->n < 1)
        return;
    TEAM(gemm->n_threads, n_blocks(gemm) > 1, run_blocks(&p, aligned));
}

void LEVEL(zinf_cpu_gemm)(zinf_kernels *table)
{
    table->gemm_create = gemm_create;
    table->gemm_run = gemm_run;
    table->gemm_destroy = gemm_destroy;
}
