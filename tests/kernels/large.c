/* tests/kernels/large.c - elements beyond the 2^31st: offsets are 64 bits wide at every level.
 * The arrays are mappings of which only the touched pages exist.
 */
#include <sys/mman.h>

#include "tests/kernels/guard.h"

#define MANY ((int64_t)1 << 31)

static void *maps[3];
static size_t map_bytes[3];
static int n_maps;

static void *take_many(zinf_dtype dtype, int64_t n)
{
    const size_t bytes = (size_t)n * zinf_dtype_bytes(dtype);
    void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (map == MAP_FAILED)
        SKIP("no address space for %zu bytes", bytes);
    map_bytes[n_maps] = bytes;
    return maps[n_maps++] = map;
}

static void drop_many(void)
{
    while (n_maps)
        munmap(maps[n_maps - 1], map_bytes[n_maps - 1]), n_maps--;
}

static void put_one(zinf_dtype dtype, void *array, int64_t at, float x)
{
    if (dtype == ZINF_BF16)
        ((uint16_t *)array)[at] = zinf_bf16_from_f32(x);
    else
        ((float *)array)[at] = x;
}

static void a_token_of_a_table_of_more_than_2_to_the_31_is_found(void)
{
    enum { C = 1024, ROWS = (1 << 21) + 1 };
    static const int32_t tokens[3] = {ROWS - 1, 0, ROWS - 1};
    void *table = take_many(act, (int64_t)ROWS * C), *out = take(act, 3 * C);
    float *gradient = take_many(ZINF_F32, (int64_t)ROWS * C);

    for (int c = 0; c < C; c++)
        put_one(act, table, MANY + c, (float)(c % 64 + 1));
    fast.embedding_forward(&fast, tokens, 3, table, NULL, 0, ROWS, 1, 3, C, true, out);
    for (int c = 0; c < C; c++) {
        CHECK(value(act, out, c) == c % 64 + 1 && value(act, out, 2 * C + c) == c % 64 + 1);
        CHECK(value(act, out, C + c) == 0);
    }
    fast.embedding_backward(&fast, tokens, 3, out, 0, ROWS, 1, 3, C, true, gradient);
    for (int c = 0; c < C; c++)
        CHECK(gradient[MANY + c] == 2 * (c % 64 + 1) && gradient[c] == 0);
    drop_many();
}

/* Integers: every order of the sums is exact. One operand after the other has rows that are so far
 * apart that its second row is beyond. */
static void a_gemm_reaches_rows_beyond_2_to_the_31(void)
{
    enum { M = 2, N = 2, K = 40 };

    for (int far = 0; far < 3; far++) {
        zinf_gemm_desc d = {.m = M, .n = N, .k = K, .lda = K, .ldb = K, .ldc = N, .ldr = N,
                            .ab_dtype = act, .c_dtype = ZINF_F32, .trans_b = true};
        int64_t *const lds[] = {&d.lda, &d.ldb, &d.ldc};
        const zinf_dtype types[] = {act, act, ZINF_F32};
        void *arrays[3];

        *lds[far] = MANY + 64;
        for (int i = 0; i < 3; i++) {
            arrays[i] = i == far ? take_many(types[i], *lds[i] + K) : take(types[i], *lds[i] + K);
            for (int j = 0; j < 2 * K && i < 2; j++)
                put_one(act, arrays[i], j / K * *lds[i] + j % K, (float)((j * 7 + i) % 5 - 2));
        }
        zinf_gemm *gemm = fast.gemm_create(&fast, &d, 1 << 20);
        CHECK(gemm);
        fast.gemm_run(gemm, arrays[0], arrays[1], NULL, NULL, arrays[2], take_scratch(1 << 20));
        fast.gemm_destroy(gemm);
        for (int m = 0; m < M; m++)
            for (int n = 0; n < N; n++) {
                int want = 0;
                for (int k = 0; k < K; k++)
                    want += ((m * K + k) * 7 % 5 - 2) * (((n * K + k) * 7 + 1) % 5 - 2);
                CHECK_MESSAGE(((float *)arrays[2])[m * d.ldc + n] == want,
                              "C[%d][%d] = %g, not %d, with operand %d far", m, n,
                              (double)((float *)arrays[2])[m * d.ldc + n], want, far);
            }
        CHECK(guards_intact());
        drop_many();
    }
}

static void a_column_sum_reaches_rows_beyond_2_to_the_31(void)
{
    float sums[3] = {1, 1, 1};
    void *dy = take_many(act, MANY + 67);

    for (int j = 0; j < 3; j++) {
        put_one(act, dy, j, (float)j);
        put_one(act, dy, MANY + 64 + j, 5);
    }
    fast.column_sum(&fast, dy, MANY + 64, 2, 3, true, sums,
                    take_scratch(zinf_column_sum_scratch_bytes(3)));
    for (int j = 0; j < 3; j++)
        CHECK(sums[j] == (float)(j + 6));
    drop_many();
}

int main(void)
{
    RUN_EVERYWHERE(a_token_of_a_table_of_more_than_2_to_the_31_is_found);
    RUN_EVERYWHERE(a_gemm_reaches_rows_beyond_2_to_the_31);
    RUN_EVERYWHERE(a_column_sum_reaches_rows_beyond_2_to_the_31);
    return check_finish();
}
