/* kernels/cpu/tiles.h - what a kernel of bf16 tiles needs: packing of rows into tiles, and products
 * of tiles. Compiled for level amx, where tiles are registers, and for avx512_bf16, where they are
 * places in memory whose rows feed dot products of pairs.
 *
 * A tile is 1 KiB: 16 rows of 64 bytes. As operand A it holds 16 rows x 32 columns of bf16, as B
 * 32 rows x 16 columns, a row of the tile being 16 pairs (b[2r][c], b[2r + 1][c]), as C 16 x 16
 * fp32. The hardware takes denormal bf16 for zero and flushes denormal sums.
 */
#ifndef ZINF_KERNELS_CPU_TILES_H
#define ZINF_KERNELS_CPU_TILES_H

#include "kernels/cpu/vec.h"

enum { TILE_BYTES = 1024, TILE_C = 16, TILE_K = 32 }; /* bytes; rows or columns of C; depth */

/* Where the tiles of an operand lie: bytes from one to the next along the outer dimension (rows of
 * A and C, columns of B) and along the depth (columns for C), and between the rows of a tile. */
typedef struct tiles_view {
    char *at;
    int64_t outer, inner, row;
} tiles_view;

#ifdef __AMX_TILE__
/* GCC's intrinsics do not say that they touch memory. */
#define TILES_FENCE() __asm__ volatile("" ::: "memory")

/* All eight tiles 16 x 64 bytes, for the calling thread, until tiles_end. */
static inline void tiles_begin(void)
{
    static const struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config = {1, 0, {0}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};

    _tile_loadconfig(&config);
}

static inline void tiles_end(void)
{
    _tile_release();
}

/* C (+)= A B over 2 x 2 tiles of C and k tiles of depth. */
INLINE void tiles_product_of_pairs(int64_t k, tiles_view a, tiles_view b, tiles_view c,
                                   bool accumulate)
{
    const char *a0 = a.at, *b0 = b.at;
    char *c0 = c.at;

    if (accumulate) {
        _tile_loadd(0, c0, c.row);
        _tile_loadd(1, c0 + c.inner, c.row);
        _tile_loadd(2, c0 + c.outer, c.row);
        _tile_loadd(3, c0 + c.outer + c.inner, c.row);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int64_t p = 0; p < k; p++, a0 += a.inner, b0 += b.inner) {
        _tile_loadd(4, a0, a.row);
        _tile_loadd(6, b0, b.row);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, b0 + b.outer, b.row);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, a0 + a.outer, a.row);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, c0, c.row);
    _tile_stored(1, c0 + c.inner, c.row);
    _tile_stored(2, c0 + c.outer, c.row);
    _tile_stored(3, c0 + c.outer + c.inner, c.row);
}
#else
#define TILES_FENCE() ((void)0)

static inline void tiles_begin(void)
{
}

static inline void tiles_end(void)
{
}

enum { DOT_ROWS = 8 }; /* x 2 vectors: 16 sums of 32 registers, more than two units' latency */

/* The same, by rows of 8: each element is one chain of dot products of pairs. */
INLINE void tiles_product_of_pairs(int64_t k, tiles_view a, tiles_view b, tiles_view c,
                                   bool accumulate)
{
    for (int64_t r = 0; r < 2 * TILE_C; r += DOT_ROWS) {
        const char *a0 = a.at + r / TILE_C * a.outer + r % TILE_C * a.row, *b0 = b.at;
        char *c0 = c.at + r / TILE_C * c.outer + r % TILE_C * c.row;
        __m512 low[DOT_ROWS], high[DOT_ROWS];

#pragma GCC unroll 8
        for (int i = 0; i < DOT_ROWS; i++) {
            low[i] = accumulate ? _mm512_loadu_ps(c0 + i * c.row) : _mm512_setzero_ps();
            high[i] = accumulate ? _mm512_loadu_ps(c0 + c.inner + i * c.row) :
                                   _mm512_setzero_ps();
        }
        for (int64_t p = 0; p < k; p++, a0 += a.inner, b0 += b.inner)
            for (int q = 0; q < 16; q++) {
                const __m512bh b_low = (__m512bh)_mm512_loadu_si512(b0 + q * b.row);
                const __m512bh b_high = (__m512bh)_mm512_loadu_si512(b0 + b.outer + q * b.row);
#pragma GCC unroll 8
                for (int i = 0; i < DOT_ROWS; i++) {
                    int32_t pair;
                    memcpy(&pair, a0 + i * a.row + 4 * q, sizeof pair);
                    const __m512bh x = (__m512bh)_mm512_set1_epi32(pair);
                    low[i] = _mm512_dpbf16_ps(low[i], x, b_low);
                    high[i] = _mm512_dpbf16_ps(high[i], x, b_high);
                }
            }
#pragma GCC unroll 8
        for (int i = 0; i < DOT_ROWS; i++) {
            _mm512_storeu_ps(c0 + i * c.row, low[i]);
            _mm512_storeu_ps(c0 + c.inner + i * c.row, high[i]);
        }
    }
}
#endif

/* C (+)= A B over 2 * pairs_m x 2 * pairs_n tiles of C and k tiles of depth. */
static inline void tiles_product(int64_t pairs_m, int64_t pairs_n, int64_t k, tiles_view a,
                                 tiles_view b, tiles_view c, bool accumulate)
{
    TILES_FENCE();
    for (int64_t j = 0; j < pairs_n; j++)
        for (int64_t i = 0; i < pairs_m; i++)
            tiles_product_of_pairs(
                k, (tiles_view){a.at + 2 * i * a.outer, a.outer, a.inner, a.row},
                (tiles_view){b.at + 2 * j * b.outer, b.outer, b.inner, b.row},
                (tiles_view){c.at + 2 * i * c.outer + 2 * j * c.inner, c.outer, c.inner, c.row},
                accumulate);
    TILES_FENCE();
}

/* The first n of 32 bf16; n of any sign and size. */
INLINE __mmask32 first_words(int64_t n)
{
    return n >= 32 ? 0xffffffffu : n <= 0 ? 0 : (__mmask32)((1u << n) - 1);
}

/* 32 bf16 of two vectors of fp32; denormals become zero */
INLINE vi two_narrow(vf low, vf high)
{
    return (vi)_mm512_cvtne2ps_pbh(high, low);
}

/* Rows of bf16, `ld` elements apart: n of them, `width` elements each; zero beyond both. */
typedef struct tiles_rows {
    const uint16_t *at;
    int64_t ld, n, width;
} tiles_rows;

/* Elements [c, c + 32) of row i */
INLINE vi rows_load(const tiles_rows *rows, int64_t i, int64_t c)
{
    const int64_t left = rows->width - c;

    if (i >= rows->n || left <= 0)
        return _mm512_setzero_si512();
    if (left >= 32)
        return _mm512_loadu_si512(rows->at + i * rows->ld + c);
    return _mm512_maskz_loadu_epi16(first_words(left), rows->at + i * rows->ld + c);
}

/* Operand A: tiles [n / 16][width / 32]; n_padded and width_padded multiples of 32. */
static inline void tiles_pack_a(const tiles_rows *rows, int64_t n_padded, int64_t width_padded,
                                char *to)
{
    const int64_t depth = width_padded / TILE_K;

    for (int64_t i = 0; i < n_padded; i++)
        for (int64_t c = 0; c < depth; c++)
            _mm512_store_si512(to + (i / 16 * depth + c) * TILE_BYTES + i % 16 * 64,
                               rows_load(rows, i, c * TILE_K));
}

/* Operand B with the rows as depth: tiles [n / 32][width / 16]. */
static inline void tiles_pack_b(const tiles_rows *rows, int64_t n_padded, int64_t width_padded,
                                char *to)
{
    for (int64_t i = 0; i < n_padded; i += 2)
        for (int64_t c = 0; c < width_padded; c += 32) {
            const vi even = rows_load(rows, i, c), odd = rows_load(rows, i + 1, c);
            char *at = to + (i / 32 * (width_padded / TILE_C) + c / TILE_C) * TILE_BYTES +
                       i % 32 / 2 * 64;
            for (int half = 0; half < 2; half++) {
                const vi low = _mm512_cvtepu16_epi32(half ? _mm512_extracti64x4_epi64(even, 1) :
                                                            _mm512_castsi512_si256(even));
                const vi high = _mm512_cvtepu16_epi32(half ? _mm512_extracti64x4_epi64(odd, 1) :
                                                             _mm512_castsi512_si256(odd));
                _mm512_store_si512(at + half * TILE_BYTES,
                                   _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
            }
        }
}

/* Row and column exchanged in a 16 x 16 matrix of 32-bit words, which are only moved. */
static inline void tiles_transpose(vi r[16])
{
    vf words[VL];

    memcpy(words, r, sizeof words);
    vf_transpose(words);
    memcpy(r, words, sizeof words);
}

/* Operand B with the rows as columns (a transposed matrix): tiles [n / 16][width / 32]. */
static inline void tiles_pack_b_of_transposed(const tiles_rows *rows, int64_t n_padded,
                                              int64_t width_padded, char *to)
{
    for (int64_t i = 0; i < n_padded; i += 16)
        for (int64_t c = 0; c < width_padded; c += TILE_K, to += TILE_BYTES) {
            vi r[16];
            for (int q = 0; q < 16; q++)
                r[q] = rows_load(rows, i + q, c);
            tiles_transpose(r);
            for (int q = 0; q < 16; q++)
                _mm512_store_si512(to + 64 * q, r[q]);
        }
}

/* Operand A of the transposed matrix: tiles [width / 16][n / 32]. */
static inline void tiles_pack_a_of_transposed(const tiles_rows *rows, int64_t n_padded,
                                              int64_t width_padded, char *to)
{
    const int64_t depth = n_padded / TILE_K;

    for (int64_t i = 0; i < n_padded; i += TILE_K)
        for (int64_t c = 0; c < width_padded; c += 32) {
            vi r[2][16]; /* [rows of 16][pair of columns] */
            for (int half = 0; half < 2; half++) {
                for (int q = 0; q < 16; q++)
                    r[half][q] = rows_load(rows, i + 16 * half + q, c);
                tiles_transpose(r[half]);
            }
            for (int q = 0; q < 16; q++) { /* columns c + 2 q and the next */
                char *at = to + ((c + 2 * q) / 16 * depth + i / TILE_K) * TILE_BYTES +
                           2 * q % 16 * 64;
                _mm512_store_si512(at, _mm512_inserti64x4(_mm512_castsi256_si512(
                    _mm512_cvtepi32_epi16(r[0][q])), _mm512_cvtepi32_epi16(r[1][q]), 1));
                _mm512_store_si512(at + 64, _mm512_inserti64x4(_mm512_castsi256_si512(
                    _mm512_cvtepi32_epi16(_mm512_srli_epi32(r[0][q], 16))),
                    _mm512_cvtepi32_epi16(_mm512_srli_epi32(r[1][q], 16)), 1));
            }
        }
}

#endif
