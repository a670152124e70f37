/* tests/storage/data.c - token files: every format, every way to be malformed, and the order. */
#include "runtime/data.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/check.h"

static char directory[200], path[256];
static zinf_error err;
static zinf_data *data;

/* Puts a file of this name in place of the last one. */
static void put(const char *name, const void *bytes, size_t n)
{
    if (*path)
        unlink(path);
    snprintf(path, sizeof path, "%s/%s", directory, name);
    FILE *f = fopen(path, "wb");
    CHECK(f && fwrite(bytes, 1, n, f) == n && !fclose(f));
}

/* llm.c's, with n tokens of `width` bytes: token i is i % 1000. */
static size_t make_llmc(uint32_t magic, uint32_t version, uint32_t count, uint32_t n,
                        uint32_t width, unsigned char *ret_bytes)
{
    uint32_t header[256] = {magic, version, count};

    memcpy(ret_bytes, header, sizeof header);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t token = i % 1000;
        memcpy(ret_bytes + sizeof header + i * width, &token, width);
    }
    return sizeof header + n * width;
}

static zinf_status open_it(uint64_t vocab, uint64_t sequence, uint64_t seed, bool shuffle)
{
    memset(&err, 0, sizeof err);
    zinf_data_close(data);
    data = NULL;
    return zinf_data_open(path, vocab, sequence, seed, shuffle, &data, &err);
}

static bool contains(const char *text)
{
    if (strstr(err.text, text))
        return true;
    printf("# message: %s\n", err.text);
    return false;
}

static unsigned char bytes[1 << 16];

static void check_order(const char *format, uint64_t n_tokens)
{
    int32_t row[3 * 8];

    CHECK_MESSAGE(data, "%s", err.text);
    CHECK(!strcmp(zinf_data_format(data), format) && zinf_data_n_tokens(data) == n_tokens);
    CHECK(zinf_data_n_sequences(data) == (n_tokens - 1) / 7);
    CHECK(!zinf_data_batch(data, 0, 3, 0, 1, row, &err));
    for (int i = 0; i < 3; i++)
        for (int t = 0; t < 8; t++)
            CHECK(row[i * 8 + t] == 7 * i + t); /* neighbours share one token */
    const uint64_t last = zinf_data_n_sequences(data) - 1;
    CHECK(!zinf_data_batch(data, last, 2, 0, 1, row, &err));
    for (int t = 0; t < 8; t++)
        CHECK(row[t] == (int32_t)(7 * last) + t && row[8 + t] == t); /* then the next epoch */
}

static void all_formats_give_the_same_sequences(void)
{
    uint16_t narrow[101];

    put("a.bin", bytes, make_llmc(20240520, 1, 101, 101, 2, bytes));
    open_it(1000, 7, 1, false);
    check_order("llm.c", 101);
    put("a.bin", bytes, make_llmc(20240801, 7, 101, 101, 4, bytes));
    open_it(1000, 7, 1, false);
    check_order("llm.c", 101);
    for (int i = 0; i < 101; i++)
        narrow[i] = (uint16_t)i, bytes[i] = (unsigned char)i;
    put("a.bin", narrow, sizeof narrow);
    open_it(101, 7, 1, false);
    check_order("nanoGPT", 101);
    put("a.txt", bytes, 101);
    open_it(256, 7, 1, false);
    check_order("bytes", 101);
}

static void a_malformed_file_is_refused_with_what_is_wrong(void)
{
    size_t n = make_llmc(20240520, 1, 101, 101, 2, bytes);

    put("a.bin", bytes, n - 1);
    CHECK(open_it(1000, 7, 1, false) == ZINF_BAD_INPUT && contains("101 tokens") &&
          contains("1225"));
    put("a.bin", bytes, n);
    CHECK(!open_it(1000, 100, 1, false));
    CHECK(open_it(1000, 101, 1, false) && contains("101 tokens") && contains("needs 102"));
    CHECK(open_it(100, 7, 1, false) && contains("token 100 ") && contains("is 100;"));
    put("a.bin", bytes, 512);
    CHECK(open_it(1000, 7, 1, false) && contains("512 bytes") && contains("1024"));
    n = make_llmc(20240520, 2, 101, 101, 2, bytes);
    put("a.bin", bytes, n);
    CHECK(open_it(1000, 7, 1, false) && contains("version 2"));
    n = make_llmc(20240520, 1, 0xffffffff, 101, 2, bytes);
    put("a.bin", bytes, n);
    CHECK(open_it(1000, 7, 1, false) && contains("4294967295"));
    n = make_llmc(20240801, 7, 101, 100, 4, bytes);
    put("a.bin", bytes, n);
    CHECK(open_it(1000, 7, 1, false) && contains("101 tokens"));
    n = make_llmc(20240801, 7, 10, 10, 4, bytes);
    memset(bytes + 1024 + 4 * 9, 0xff, 4);
    put("a.bin", bytes, n);
    CHECK(open_it(1000, 7, 1, false) && contains("token 9 ") && contains("4294967295"));
    put("a.bin", "abc", 3);
    CHECK(open_it(1000, 1, 1, false) && contains("odd size of 3"));
    put("a.bin", "", 0);
    CHECK(open_it(1000, 1, 1, false) && contains("0 tokens"));
    put("a.txt", "hello", 5);
    CHECK(open_it(255, 1, 1, false) && contains("256"));
    CHECK(open_it(256, 5, 1, false) && contains("5 tokens"));
    CHECK(open_it(0, 5, 1, false) == ZINF_BAD_INPUT);
    CHECK(open_it(256, 0, 1, false) == ZINF_BAD_INPUT);
    CHECK(open_it(256, UINT64_MAX, 1, false) == ZINF_BAD_INPUT);
    unlink(path);
    CHECK(open_it(256, 4, 1, false) == ZINF_BAD_INPUT && contains(path));
    snprintf(path, sizeof path, "%s", directory);
    CHECK(open_it(256, 4, 1, false) == ZINF_BAD_INPUT && contains("directory"));
    *path = 0;
}

static void a_plan_is_neither_tokens_nor_text(void)
{
    const char *const names[] = {"a.txt", "a.bin"};

    memset(bytes, 'a', sizeof bytes);
    memcpy(bytes, "ZINFPLAN", 8);
    for (int i = 0; i < 2; i++) {
        put(names[i], bytes, 4000);
        CHECK(open_it(60000, 7, 1, false) == ZINF_BAD_INPUT && contains("a plan of zinf-plan"));
        put(names[i], bytes, 7); /* its name alone is a text like others */
        CHECK(i || !open_it(60000, 6, 1, false));
    }
}

static void a_file_that_shrinks_is_an_error_not_a_signal(void)
{
    int32_t row[8];

    memset(bytes, 'a', sizeof bytes);
    put("a.txt", bytes, 40000);
    CHECK(!open_it(256, 7, 1, false));
    CHECK(!truncate(path, 20000));
    CHECK(zinf_data_batch(data, 5000, 1, 0, 1, row, &err) == ZINF_MACHINE);
    CHECK(contains("20000") && contains("expected 40000"));
}

/* A text of n sequences of 4 tokens whose first token is the sequence's number. */
static void open_numbered(uint64_t n, uint64_t seed)
{
    memset(bytes, 255, sizeof bytes);
    for (uint64_t i = 0; i < n; i++)
        bytes[4 * i] = (unsigned char)i;
    put("n.txt", bytes, 4 * n + 1);
    CHECK_MESSAGE(!open_it(256, 4, seed, true), "%s", err.text);
    CHECK(zinf_data_n_sequences(data) == n);
}

static void take_epoch(uint64_t n, uint64_t epoch, int *ret_order)
{
    int32_t row[5];

    for (uint64_t i = 0; i < n; i++) {
        CHECK(!zinf_data_batch(data, epoch * n + i, 1, 0, 1, row, &err));
        ret_order[i] = row[0];
    }
}

static void every_epoch_is_a_permutation(void)
{
    int order[200];

    for (uint64_t n = 1; n <= 200; n += n < 50 ? 1 : 50)
        for (uint64_t seed = 0; seed < 3; seed++) {
            open_numbered(n, seed);
            for (uint64_t epoch = 0; epoch < 3; epoch++) {
                int seen[200] = {0};
                take_epoch(n, epoch, order);
                for (uint64_t i = 0; i < n; i++)
                    CHECK(order[i] >= 0 && order[i] < (int)n && !seen[order[i]]++);
            }
        }
}

static void the_order_differs_by_epoch_and_by_seed_and_repeats(void)
{
    int order[4][50], identity = 0;

    open_numbered(50, 7);
    take_epoch(50, 0, order[0]);
    take_epoch(50, 1, order[1]);
    open_numbered(50, 8);
    take_epoch(50, 0, order[2]);
    open_numbered(50, 7);
    take_epoch(50, 0, order[3]);
    CHECK(memcmp(order[0], order[1], sizeof order[0]));
    CHECK(memcmp(order[0], order[2], sizeof order[0]));
    CHECK(!memcmp(order[0], order[3], sizeof order[0]));
    for (int i = 0; i < 50; i++)
        identity += order[0][i] == i;
    CHECK(identity < 10); /* 1 expected; P(>= 10) < 1e-6 */
}

/* Sequence 0 of 3 must come first, second and third about equally often: over 3,000 epochs each
 * 1,000 times with a deviation of 26; 160 is six of them. */
static void no_place_is_preferred(void)
{
    int order[3], place[3] = {0};

    open_numbered(3, 11);
    for (uint64_t epoch = 0; epoch < 3000; epoch++) {
        take_epoch(3, epoch, order);
        for (int i = 0; i < 3; i++)
            place[i] += order[i] == 0;
    }
    for (int i = 0; i < 3; i++)
        CHECK_MESSAGE(place[i] > 840 && place[i] < 1160, "place %d: %d", i, place[i]);
}

static void ranks_read_every_sequence_once(void)
{
    int32_t rows[4][5];

    for (uint32_t ranks = 1; ranks <= 5; ranks++) {
        int seen[60] = {0};
        open_numbered(60, 3); /* 60 / ranks is whole */
        for (uint32_t rank = 0; rank < ranks; rank++)
            for (uint64_t at = 0; at < 60 / ranks; at += 4) {
                const uint64_t left = 60 / ranks - at, n = left < 4 ? left : 4;
                CHECK(!zinf_data_batch(data, at * ranks, n, rank, ranks, rows[0], &err));
                for (uint64_t i = 0; i < n; i++)
                    seen[rows[i][0]]++;
            }
        for (int i = 0; i < 60; i++)
            CHECK(seen[i] == 1);
    }
}

static void a_position_alone_restores_the_order(void)
{
    int32_t together[6][5], alone[5];

    open_numbered(10, 5);
    CHECK(!zinf_data_batch(data, 17, 6, 1, 2, together[0], &err));
    open_numbered(10, 5);
    for (uint64_t i = 0; i < 6; i++) {
        CHECK(!zinf_data_batch(data, 17 + 2 * (5 - i), 1, 1, 2, alone, &err));
        CHECK(!memcmp(alone, together[5 - i], sizeof alone));
    }
    CHECK(zinf_data_batch(data, UINT64_MAX - 3, 1, 0, 4, alone, &err) == ZINF_BAD_INPUT);
}

int main(void)
{
    const char *tmp = getenv("TMPDIR");

    snprintf(directory, sizeof directory, "%s/zinf-data-XXXXXX", tmp ? tmp : "/tmp");
    if (!mkdtemp(directory))
        return 1;
    RUN(all_formats_give_the_same_sequences);
    RUN(a_malformed_file_is_refused_with_what_is_wrong);
    RUN(a_plan_is_neither_tokens_nor_text);
    RUN(a_file_that_shrinks_is_an_error_not_a_signal);
    RUN(every_epoch_is_a_permutation);
    RUN(the_order_differs_by_epoch_and_by_seed_and_repeats);
    RUN(no_place_is_preferred);
    RUN(ranks_read_every_sequence_once);
    RUN(a_position_alone_restores_the_order);
    zinf_data_close(data);
    unlink(path);
    rmdir(directory);
    return check_finish();
}
