/* tests/storage/safetensors.c - headers of safetensors files: what is written is read again, and
 * every kind of damage is one clear error.
 */
#include "runtime/safetensors.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/check.h"

static zinf_error err;
static zinf_safetensors file;

static bool says(const char *text)
{
    if (strstr(err.text, text))
        return true;
    printf("# message: %s\n", err.text);
    return false;
}

/* A header with this JSON, before so many bytes of data. */
static zinf_status parse(const char *json, uint64_t data_bytes)
{
    static char bytes[1 << 16];
    const uint64_t n = strlen(json);

    memset(&err, 0, sizeof err);
    zinf_safetensors_free(&file);
    memcpy(bytes, &n, 8);
    memcpy(bytes + 8, json, n + 1);
    return zinf_safetensors_parse("dir/x.safetensors", bytes, 8 + n, 8 + n + data_bytes, &file,
                                  &err);
}

#define T(name, dtype, shape, first, end) \
    "\"" name "\": {\"dtype\": \"" dtype "\", \"shape\": " shape ", \"data_offsets\": [" first    \
    ", " end "]}"

static void a_header_is_read(void)
{
    CHECK_MESSAGE(!parse("{\"__metadata__\": {\"format\": \"pt\"}, "
                         T("b", "F32", "[2, 3]", "8", "32") ", " T("a", "BF16", "[4]", "0", "8")
                         ", " T("none", "F16", "[0]", "8", "8") ", "
                         T("mask", "BOOL", "[]", "32", "33") "}   ", 33), "%s", err.text);
    const zinf_safetensor *b = zinf_safetensors_find(&file, "b");
    const zinf_safetensor *a = zinf_safetensors_find(&file, "a");
    CHECK(file.n == 4 && a && b && !zinf_safetensors_find(&file, "c"));
    CHECK(b->n_dims == 2 && b->shape[0] == 2 && b->shape[1] == 3 && b->dtype == ZINF_F32);
    CHECK(b->n_elems == 6 && b->bytes == 24 && b->offset == a->offset + 8);
    CHECK(a->dtype == ZINF_BF16 && a->n_dims == 1 && a->n_elems == 4);
    CHECK(zinf_safetensors_find(&file, "mask")->dtype == ZINF_N_DTYPES);
    CHECK(!parse("{}", 0) && file.n == 0);
}

static void what_is_written_is_read_again(void)
{
    const zinf_safetensor_row rows[] = {{"w \"x\"/y", {3, 5}, 2, ZINF_F32},
                                        {"b", {7, 0}, 1, ZINF_BF16}};
    const char *const metadata[][2] = {{"format", "pt"}};
    char *bytes = NULL;
    uint64_t n = 0;

    memset(&err, 0, sizeof err);
    CHECK(!zinf_safetensors_header(rows, 2, metadata, 1, &bytes, &n, &err) && n % 4096 == 0);
    zinf_safetensors_free(&file);
    char *text = malloc(n + 1);
    memcpy(text, bytes, n);
    text[n] = 0;
    CHECK_MESSAGE(!zinf_safetensors_parse("x", text, n, n + 60 + 14, &file, &err), "%s", err.text);
    const zinf_safetensor *w = zinf_safetensors_find(&file, "w \"x\"/y");
    CHECK(w && w->offset == n && w->shape[0] == 3 && w->shape[1] == 5 && w->bytes == 60);
    CHECK(zinf_safetensors_find(&file, "b")->offset == n + 60);
    free(bytes);
    free(text);
    CHECK(zinf_safetensors_header((zinf_safetensor_row[]){{"a", {1, 0}, 1, ZINF_F32},
                                                          {"a", {1, 0}, 1, ZINF_F32}}, 2, metadata,
                                  1, &bytes, &n, &err) == ZINF_BAD_INPUT);
    CHECK(says("two tensors \"a\""));
}

static void every_fault_of_a_header_is_named(void)
{
    static const struct {
        const char *json;
        uint64_t bytes;
        const char *says;
    } cases[] = {
        {"{" T("a", "F32", "[2]", "0", "8") ", " T("b", "F32", "[2]", "4", "12") "}", 12, "inside"},
        {"{" T("a", "F32", "[2]", "0", "8") ", " T("b", "F32", "[2]", "0", "8") "}", 8, "inside"},
        {"{" T("a", "F32", "[2]", "0", "8") ", " T("b", "F32", "[2]", "12", "20") "}", 20, "hole"},
        {"{" T("a", "F32", "[2]", "4", "12") "}", 12, "hole"},
        {"{" T("a", "F32", "[2]", "0", "8") "}", 7, "truncated"},
        {"{" T("a", "F32", "[2]", "0", "8") "}", 9, "damaged"},
        {"{}", 1, "damaged"},
        {"{" T("a", "F32", "[2]", "0", "8") ", " T("a", "F32", "[2]", "8", "16") "}", 16, "twice"},
        {"{" T("a", "F32", "[2]", "0", "4") "}", 4, "takes 8 bytes"},
        {"{" T("a", "F32", "[2]", "8", "0") "}", 8, "data_offsets"},
        {"{" T("a", "F32", "[2]", "-8", "0") "}", 8, "data_offsets"},
        {"{" T("a", "F32", "[2]", "0.0", "8.0") "}", 8, "data_offsets"},
        {"{" T("a", "F32", "[2]", "0", "\"8\"") "}", 8, "data_offsets"},
        {"{" T("a", "F32", "[2]", "0", "1e1") "}", 8, "data_offsets"},
        {"{" T("a", "F32", "[2]", "NaN", "8") "}", 8, "well-formed"},
        {"{" T("a", "F32", "[2]", "0", "8, 9") "}", 8, "data_offsets"},
        {"{" T("a", "F32", "[2]", "18446744073709551608", "18446744073709551616") "}", 8,
         "data_offsets"},
        {"{" T("a", "F32", "[2]", "0", "99999999999999999999999999") "}", 8, "data_offsets"},
        {"{" T("a", "F32", "[4294967296, 4294967296]", "0", "8") "}", 8, "63 bits"},
        {"{" T("a", "F64", "[1152921504606846976]", "0", "0") "}", 0, "63 bits"},
        {"{" T("a", "F32", "[-2]", "0", "8") "}", 8, "shape"},
        {"{" T("a", "F32", "[2.0]", "0", "8") "}", 8, "shape"},
        {"{" T("a", "F32", "2", "0", "8") "}", 8, "shape"},
        {"{" T("a", "F32", "[1,1,1,1,1,1,1,1,1]", "0", "4") "}", 4, "at most 8"},
        {"{" T("a", "F31", "[2]", "0", "8") "}", 8, "F31"},
        {"{\"a\": {\"dtype\": 7, \"shape\": [2], \"data_offsets\": [0, 8]}}", 8, "dtype"},
        {"{\"a\": {\"shape\": [2], \"data_offsets\": [0, 8]}}", 8, "dtype"},
        {"{\"a\": {\"dtype\": \"F32\", \"data_offsets\": [0, 8]}}", 8, "shape"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [2]}}", 8, "data_offsets"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [2], \"data_offsets\": [0, 8], \"x\": 1}}", 8,
         "more than"},
        {"{\"a\": [1]}", 8, "no object"},
        {"{\"a\": null}", 8, "no object"},
        {"{\"__metadata__\": 7}", 0, "__metadata__"},
        {"{\"__metadata__\": {\"a\": 7}}", 0, "no text"},
        {"{\"a\": {\"shape\": [[[[[[2]]]]]]}}", 0, "well-formed"},
        {"[]", 0, "well-formed"},
        {"{", 0, "well-formed"},
        {"{} {}", 0, "well-formed"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CHECK_MESSAGE(parse(cases[i].json, cases[i].bytes) == ZINF_BAD_INPUT, "%s", cases[i].json);
        CHECK_MESSAGE(says(cases[i].says) && says("dir/x.safetensors"), "%s", cases[i].json);
        CHECK(!file.tensors);
    }
}

static void lengths_are_checked_before_anything_is_read(void)
{
    char name[] = "/tmp/zinf-safetensors-XXXXXX", *bytes = NULL;
    const int fd = mkstemp(name);
    uint64_t n = 0;

    CHECK(fd >= 0 && !unlink(name));
    static const struct {
        uint64_t stated, size, most;
        const char *says;
    } cases[] = {
        {0, 0, 1000, "truncated"}, {2, 7, 1000, "truncated"}, {3, 10, 1000, "truncated"},
        {UINT64_MAX, 100, 1000, "truncated"}, {UINT64_MAX - 7, 100, 1000, "truncated"},
        {1001, 2000, 1000, "at most 1000"}, {100000001, 200000000, UINT64_MAX, "at most 100000000"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        memset(&err, 0, sizeof err);
        CHECK(!ftruncate(fd, 0) && pwrite(fd, &cases[i].stated, 8, 0) == 8);
        CHECK(!ftruncate(fd, (off_t)cases[i].size));
        CHECK(zinf_safetensors_load(fd, "some file", cases[i].size, cases[i].most, &bytes, &n,
                                    &err) == ZINF_BAD_INPUT);
        CHECK(says(cases[i].says) && says("some file") && !bytes);
    }
    close(fd);
}

int main(void)
{
    RUN(a_header_is_read);
    RUN(what_is_written_is_read_again);
    RUN(every_fault_of_a_header_is_named);
    RUN(lengths_are_checked_before_anything_is_read);
    zinf_safetensors_free(&file);
    return check_finish();
}
