/* tests/storage/hf.c - Hugging Face directories: any range of any tensor in and out, turned or not;
 * every way in which a directory can be wrong; an export that appears whole or not at all.
 */
#include "runtime/hf.h"

#include <dirent.h>
#include <fcntl.h>
#include <float.h>
#include <ftw.h>
#include <math.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/f16.h"
#include "runtime/safetensors.h"
#include "tests/check.h"

/* Noted nowhere, not done: a killed process loses nothing that it wrote, and hundreds of syncs
 * make this test as slow as the disk. Stands in front of the C library's. */
int fsync(int fd)
{
    (void)fd;
    return 0;
}

static char base[200];
static zinf_error err;

/* A gpt2 of one block, hidden 4; the linear 12 x 4 is stored 4 x 12. */
static zinf_tensor tensors[] = {
    {"transformer.wte.weight", 7, 4, 0.02, ZINF_INIT_NORMAL, 2, 0},
    {"transformer.wpe.weight", 8, 4, 0.02, ZINF_INIT_NORMAL, 2, 0},
    {"transformer.h.0.attn.c_attn.weight", 12, 4, 0.02, ZINF_INIT_NORMAL, 2, 0},
    {"transformer.h.0.attn.c_attn.bias", 12, 1, 0, ZINF_INIT_ZERO, 1, 0},
};
enum { N_TENSORS = 4, MOST = 48 };
static const uint64_t n_elems[N_TENSORS] = {28, 32, 48, 12};

static const zinf_plan plan = {
    .model = {.name = "tiny", .family = "gpt2", .layers = 1, .hidden = 4, .heads = 2,
              .kv_heads = 2, .head_dim = 2, .ffn = 16, .vocab = 7, .context = 8,
              .tied_embeddings = 1},
    .tensors = tensors, .n_tensors = N_TENSORS};

static const char config_text[] =
    "{\"model_type\": \"gpt2\", \"n_layer\": 1, \"n_embd\": 4, \"n_head\": 2, \"vocab_size\": 7, "
    "\"n_positions\": 8}";

static float value(uint32_t tensor, uint64_t i)
{
    return (float)(60 * tensor + i); /* below 256: exact in bf16 and f16 */
}

static bool says(const char *text)
{
    if (strstr(err.text, text))
        return true;
    printf("# message: %s\n", err.text);
    return false;
}

static const char *path(const char *name)
{
    static char paths[4][500];
    static unsigned next;

    snprintf(paths[next % 4], sizeof paths[0], "%s/%s", base, name);
    return paths[next++ % 4];
}

static bool exists(const char *name)
{
    return !access(path(name), F_OK);
}

static void spill(const char *name, const void *bytes, size_t n)
{
    const int fd = open(path(name), O_WRONLY | O_CREAT | O_TRUNC, 0600);

    CHECK(fd >= 0 && write(fd, bytes, n) == (ssize_t)n);
    close(fd);
}

static int remove_one(const char *name, const struct stat *st, int kind, struct FTW *at)
{
    (void)st;
    (void)kind;
    (void)at;
    return remove(name);
}

static void remove_tree(const char *name)
{
    nftw(name, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

static void clear(void)
{
    memset(&err, 0, sizeof err);
}

/* ---- a directory of our making ---- */

typedef struct stored {
    const char *name;
    uint64_t shape[2];
    uint32_t n_dims, dtype, tensor; /* of which it has the values; N_TENSORS: zeros */
    bool turned;
} stored;

static const stored whole[] = {
    {"transformer.wte.weight", {7, 4}, 2, ZINF_F32, 0, false},
    {"transformer.wpe.weight", {8, 4}, 2, ZINF_F32, 1, false},
    {"transformer.h.0.attn.c_attn.weight", {4, 12}, 2, ZINF_F32, 2, true},
    {"transformer.h.0.attn.c_attn.bias", {12, 0}, 1, ZINF_F32, 3, false},
};

static uint16_t f16(float v) /* of positive numbers that f16 has exactly */
{
    uint32_t bits;
    memcpy(&bits, &v, 4);
    return v == 0 ? 0 : (uint16_t)((((bits >> 23) - 127 + 15) << 10) | (bits >> 13 & 0x3ff));
}

static void write_file(const char *name, const stored *list, uint32_t n)
{
    static const char *const metadata[][2] = {{"format", "pt"}};
    zinf_safetensor_row rows[8];
    char *header = NULL;
    uint64_t n_header = 0;

    for (uint32_t i = 0; i < n; i++)
        rows[i] = (zinf_safetensor_row){list[i].name, {list[i].shape[0], list[i].shape[1]},
                                        list[i].n_dims, list[i].dtype};
    clear();
    CHECK(!zinf_safetensors_header(rows, n, metadata, 1, &header, &n_header, &err));
    FILE *out = fopen(path(name), "wb");
    CHECK(out);
    fwrite(header, 1, n_header, out);
    free(header);
    for (uint32_t k = 0; k < n; k++) {
        const stored *s = &list[k];
        const uint64_t cols = s->n_dims == 1 ? 1 : s->shape[1];
        for (uint64_t i = 0; i < s->shape[0] * cols; i++) {
            const uint64_t from = s->turned ? i % cols * s->shape[0] + i / cols : i;
            const float v = s->tensor < N_TENSORS ? value(s->tensor, from) : 0;
            const uint64_t wide = 0;
            uint32_t bits;
            memcpy(&bits, &v, 4);
            const uint16_t half = s->dtype == ZINF_F16 ? f16(v) : (uint16_t)(bits >> 16);
            if (s->dtype == ZINF_F32)
                fwrite(&v, 4, 1, out);
            else if (s->dtype == ZINF_F16 || s->dtype == ZINF_BF16)
                fwrite(&half, 2, 1, out);
            else
                fwrite(&wide, zinf_dtype_bytes(s->dtype), 1, out);
        }
    }
    fclose(out);
}

/* The directory "in" anew, with these tensors in one file. */
static void write_model(const stored *list, uint32_t n)
{
    remove_tree(path("in"));
    CHECK(!mkdir(path("in"), 0700));
    spill("in/config.json", config_text, strlen(config_text));
    write_file("in/model.safetensors", list, n);
}

static zinf_status try_open(zinf_hf_reader **ret_reader)
{
    clear();
    *ret_reader = NULL;
    return zinf_hf_open(path("in"), &plan, ret_reader, &err);
}

/* Opens, and every range of every tensor has its values. */
static void check_ranges(void)
{
    zinf_hf_reader *r;

    CHECK_MESSAGE(!try_open(&r), "%s", err.text);
    for (uint32_t t = 0; t < N_TENSORS; t++)
        for (uint64_t first = 0; first < n_elems[t]; first++)
            for (uint64_t n = 1; n <= n_elems[t] - first; n++) {
                float values[MOST + 2];
                values[0] = values[n + 1] = -7;
                CHECK_MESSAGE(!zinf_hf_get(r, t, first, n, values + 1, &err), "%s", err.text);
                CHECK(values[0] == -7 && values[n + 1] == -7);
                for (uint64_t i = 0; i < n; i++)
                    CHECK(values[i + 1] == value(t, first + i));
            }
    zinf_hf_close(r);
}

/* ---- reading ---- */

static void every_range_is_read_from_every_dtype(void)
{
    stored list[N_TENSORS];
    static const uint32_t dtypes[] = {ZINF_F32, ZINF_BF16, ZINF_F16};

    memcpy(list, whole, sizeof list);
    for (int d = 0; d < 3; d++) {
        for (int i = 0; i < N_TENSORS; i++)
            list[i].dtype = dtypes[d];
        write_model(list, N_TENSORS);
        check_ranges();
    }
}

static void special_halves_are_read(void)
{
    static const uint16_t halves[] = {0x0001, 0x83ff, 0x0400, 0x7bff, 0x8000, 0x3555, 0xc000};
    static const float expected[] = {0x1p-24f, -0x1.ff8p-15f, 0x1p-14f, 65504, -0.0f, 0x1.554p-2f,
                                     -2};
    zinf_hf_reader *r;
    stored list[N_TENSORS];
    float values[7];

    memcpy(list, whole, sizeof list);
    list[0].dtype = ZINF_F16;
    write_model(list, N_TENSORS);
    int fd = open(path("in/model.safetensors"), O_RDWR);
    CHECK(fd >= 0 && pwrite(fd, halves, sizeof halves, 4096) == sizeof halves);
    CHECK_MESSAGE(!try_open(&r), "%s", err.text);
    CHECK(!zinf_hf_get(r, 0, 0, 7, values, &err));
    CHECK(!memcmp(values, expected, sizeof values));
    static const uint16_t bad[] = {0x7c00, 0xfc00, 0x7e00};
    zinf_hf_close(r);
    for (int i = 0; i < 3; i++) {
        CHECK(pwrite(fd, &bad[i], 2, 4096 + 6) == 2);
        CHECK_MESSAGE(!try_open(&r), "%s", err.text);
        CHECK(zinf_hf_get(r, 0, 0, 7, values, &err) == ZINF_BAD_INPUT);
        CHECK(says("element 3 of \"transformer.wte.weight\"") && says("damaged"));
        zinf_hf_close(r);
    }
    close(fd);
}

static void names_without_the_prefix_and_constants_are_taken(void)
{
    const stored list[] = {
        {"wte.weight", {7, 4}, 2, ZINF_F32, 0, false},
        {"wpe.weight", {8, 4}, 2, ZINF_F32, 1, false},
        {"h.0.attn.c_attn.weight", {4, 12}, 2, ZINF_F32, 2, true},
        {"h.0.attn.bias", {8, 8}, 2, ZINF_U8, N_TENSORS, false},
        {"h.0.attn.masked_bias", {1, 1}, 2, ZINF_F32, N_TENSORS, false},
        {"h.0.attn.c_attn.bias", {12, 0}, 1, ZINF_F32, 3, false}};

    write_model(list, 6);
    check_ranges();
}

static void a_head_stored_beside_tied_embeddings_must_be_equal(void)
{
    stored list[N_TENSORS + 1];
    zinf_hf_reader *r;

    memcpy(list, whole, sizeof whole);
    list[N_TENSORS] = (stored){"lm_head.weight", {7, 4}, 2, ZINF_F32, 0, false};
    write_model(list, N_TENSORS + 1);
    check_ranges();
    list[N_TENSORS].tensor = N_TENSORS;
    write_model(list, N_TENSORS + 1);
    CHECK(try_open(&r) == ZINF_BAD_INPUT && says("lm_head.weight") && says("ties"));
    CHECK(says("a gpt2 with a head of its own is not supported"));
    list[0] = (stored){"lm_head.weight", {7, 4}, 2, ZINF_F32, 0, false}; /* alone */
    write_model(list, N_TENSORS);
    check_ranges();
}

static void a_directory_of_another_model_is_refused(void)
{
    static const struct {
        const char *from, *to, *says;
    } cases[] = {
        {"\"n_layer\": 1", "\"n_layer\": 2", "layers 2"},
        {"\"n_embd\": 4", "\"n_embd\": 6", "hidden 6"},
        {"\"n_head\": 2", "\"n_head\": 1", "heads 1"},
        {"\"vocab_size\": 7", "\"vocab_size\": 8", "vocab 8"},
        {"\"n_positions\": 8", "\"n_positions\": 9", "context 9"},
        {"}", ", \"n_inner\": 20}", "ffn 20"},
        {"}", ", \"reorder_and_upcast_attn\": true}", "reorder_and_upcast_attn"},
        {"\"gpt2\"", "\"t5\"", "t5"},
        {"}", ", ", "not well-formed"},
    };
    zinf_hf_reader *r;

    write_model(whole, N_TENSORS);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[400];
        const char *at = strstr(config_text, cases[i].from);
        snprintf(text, sizeof text, "%.*s%s%s", (int)(at - config_text), config_text, cases[i].to,
                 at + strlen(cases[i].from));
        spill("in/config.json", text, strlen(text));
        CHECK(try_open(&r) == ZINF_BAD_INPUT && says(cases[i].says) && says("/in"));
    }
    unlink(path("in/config.json"));
    CHECK(try_open(&r) == ZINF_BAD_INPUT && says("config.json") && says("cannot be opened"));
}

static void tensors_that_do_not_fit_are_named(void)
{
    static const struct {
        stored change;
        uint32_t at;
        const char *says[2];
    } cases[] = {
        {{"transformer.wte.weight", {8, 4}, 2, ZINF_F32, 4, false}, 0, {"[8, 4]", "has [7, 4]"}},
        {{"transformer.wte.weight", {28, 0}, 1, ZINF_F32, 4, false}, 0, {"[28]", "has [7, 4]"}},
        {{"transformer.h.0.attn.c_attn.weight", {12, 4}, 2, ZINF_F32, 4, false}, 2,
         {"[12, 4]", "has [4, 12]"}},
        {{"transformer.wte.weight", {7, 4}, 2, ZINF_I32, 4, false}, 0,
         {"transformer.wte.weight", "neither F32 nor F16 nor BF16"}},
        {{"transformer.wte", {7, 4}, 2, ZINF_F32, 4, false}, 0,
         {"1 tensors are not the plan's model's", "\"transformer.wte\""}},
        {{"wte.weight", {7, 4}, 2, ZINF_F32, 4, false}, 1, {"there twice", "wte.weight"}},
    };
    stored list[N_TENSORS];
    zinf_hf_reader *r;

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        memcpy(list, whole, sizeof list);
        list[cases[i].at] = cases[i].change;
        write_model(list, N_TENSORS);
        CHECK(try_open(&r) == ZINF_BAD_INPUT && !r);
        CHECK(says(cases[i].says[0]) && says(cases[i].says[1]));
    }
    write_model(whole + 1, N_TENSORS - 1);
    CHECK(try_open(&r) == ZINF_BAD_INPUT && says("1 tensors of the plan's model are missing"));
    CHECK(says("\"transformer.wte.weight\""));
    unlink(path("in/model.safetensors"));
    CHECK(try_open(&r) == ZINF_BAD_INPUT && says("neither \"model.safetensors\" nor"));
    CHECK(says("model.safetensors.index.json") && says("pytorch_model.bin"));
    CHECK(!symlink("nowhere", path("in/model.safetensors")));
    CHECK(try_open(&r) == ZINF_BAD_INPUT && says("/in/model.safetensors\" cannot be opened"));
    unlink(path("in/model.safetensors"));
    spill("in/model.safetensors", "xyz", 3);
    CHECK(try_open(&r) == ZINF_BAD_INPUT && says("truncated"));
}

/* Every byte of the header changed, and the file cut anywhere: refused, or read within bounds. */
static void damage_is_refused(void)
{
    zinf_hf_reader *r;
    uint64_t accepted = 0;

    write_model(whole, N_TENSORS);
    const int fd = open(path("in/model.safetensors"), O_RDWR);
    CHECK(fd >= 0);
    for (off_t at = 0; at < 700; at++) {
        char byte, other;
        CHECK(pread(fd, &byte, 1, at) == 1);
        other = byte ^ 1;
        CHECK(pwrite(fd, &other, 1, at) == 1);
        const zinf_status status = try_open(&r);
        CHECK(status == ZINF_OK || status == ZINF_BAD_INPUT);
        accepted += status == ZINF_OK;
        zinf_hf_close(r);
        CHECK(pwrite(fd, &byte, 1, at) == 1);
    }
    CHECK(accepted < 250); /* trailing blanks become '!', which is refused; "pt" may be "qt" */
    struct stat st;
    CHECK(!fstat(fd, &st));
    for (off_t n = 0; n < st.st_size; n += 13) {
        CHECK(!ftruncate(fd, n));
        CHECK(try_open(&r) == ZINF_BAD_INPUT);
    }
    close(fd);
}

/* ---- shards ---- */

static const char index_text[] =
    "{\"metadata\": {\"total_size\": 480}, \"weight_map\": {"
    "\"transformer.wte.weight\": \"a.safetensors\", "
    "\"transformer.wpe.weight\": \"b.safetensors\", "
    "\"transformer.h.0.attn.c_attn.weight\": \"b.safetensors\", "
    "\"transformer.h.0.attn.c_attn.bias\": \"a.safetensors\"}}";

static void write_shards(void)
{
    const stored a[] = {whole[0], whole[3]}, b[] = {whole[1], whole[2]};

    write_model(whole, N_TENSORS);
    unlink(path("in/model.safetensors"));
    write_file("in/a.safetensors", a, 2);
    write_file("in/b.safetensors", b, 2);
    spill("in/model.safetensors.index.json", index_text, strlen(index_text));
}

static void shards_are_read(void)
{
    write_shards();
    check_ranges();
}

static void an_index_that_is_wrong_is_refused(void)
{
    static const struct {
        const char *from, *to, *says;
    } cases[] = {
        {"\"weight_map\"", "\"weights\"", "no object \"weight_map\""},
        {"wte.weight\": \"a.safe", "wte.weight\": \"b.safe", "which has no such tensor"},
        {"\"transformer.wte.weight\": \"a.safetensors\", ", "", "does not place there"},
        {"\"b.safetensors\", \"tr", "\"c.safetensors\", \"tr", "c.safetensors"},
        {"\"a.safetensors\"", "\"../a.safetensors\"", "in this directory"},
        {"\"a.safetensors\"", "\"\\u001b[2J\\na.safetensors\"", "in this directory"},
        {"\"a.safetensors\"", "\"/etc/passwd\"", "in this directory"},
        {"\"a.safetensors\"", "7", "in this directory"},
        {"\"transformer.wpe.weight\"", "\"transformer.wte.weight\"", "twice"},
        {"}}", "", "not well-formed"},
        {"{\"metadata", "[{\"metadata", "not well-formed"},
    };
    zinf_hf_reader *r;

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[600];
        const char *at = strstr(index_text, cases[i].from);
        write_shards();
        snprintf(text, sizeof text, "%.*s%s%s", (int)(at - index_text), index_text, cases[i].to,
                 at + strlen(cases[i].from));
        spill("in/model.safetensors.index.json", text, strlen(text));
        CHECK(try_open(&r) == ZINF_BAD_INPUT);
        CHECK_MESSAGE(says(cases[i].says), "case %zu", i);
    }
}

static void a_file_that_changes_while_in_use_is_refused(void)
{
    static const struct timespec long_ago[2] = {{1, 0}, {1, 0}};
    zinf_hf_reader *r;
    float values[MOST];

    /* cut, replaced by a copy, or written to; before it is opened again, since b was read last, or
     * while it is open */
    for (int how = 0; how < 6; how++) {
        write_shards();
        CHECK(!utimensat(AT_FDCWD, path("in/a.safetensors"), long_ago, 0));
        CHECK(!try_open(&r));
        CHECK(how < 3 || !zinf_hf_get(r, 0, 0, 28, values, &err));
        if (how % 3 == 0) {
            CHECK(!truncate(path("in/a.safetensors"), 4100));
        } else if (how % 3 == 1) {
            char bytes[8192];
            const int from = open(path("in/a.safetensors"), O_RDONLY);
            const ssize_t n = read(from, bytes, sizeof bytes);
            CHECK(n > 0 && !close(from));
            spill("in/copy", bytes, (size_t)n);
            CHECK(!utimensat(AT_FDCWD, path("in/copy"), long_ago, 0));
            char *copy = strdup(path("in/copy"));
            CHECK(copy && !rename(copy, path("in/a.safetensors")));
            free(copy);
        } else {
            const int fd = open(path("in/a.safetensors"), O_WRONLY);
            CHECK(pwrite(fd, "x", 1, 4000) == 1 && !close(fd));
        }
        const zinf_status status = zinf_hf_get(r, 0, 0, 28, values, &err);
        if (how == 4) /* the file that is open is as it was */
            CHECK_MESSAGE(status == ZINF_OK, "%s", err.text);
        else
            CHECK_MESSAGE(status && says(how == 3 ? "truncated" : "changed while in use"), "%d",
                          how);
        zinf_hf_close(r);
    }
}

/* ---- writing ---- */

static zinf_hf_options options = {.dtype = ZINF_F32, .shard_bytes = 1000000};

static zinf_status put(zinf_hf_writer *w, uint32_t tensor, uint64_t first, uint64_t n)
{
    float values[MOST];

    for (uint64_t i = 0; i < n; i++)
        values[i] = value(tensor, first + i);
    return zinf_hf_put(w, tensor, first, n, values, &err);
}

/* In pieces of `piece` elements: what one of them writes too much, before its begin or behind its
 * end, is seen in one of the two orders. */
static zinf_status export_in(const char *name, uint64_t piece, bool backwards)
{
    zinf_hf_writer *w;

    clear();
    if (zinf_hf_create(path(name), &plan, &options, &w, &err))
        return err.status;
    for (uint32_t t = 0; t < N_TENSORS; t++) {
        const uint64_t n = (n_elems[t] + piece - 1) / piece;
        for (uint64_t i = 0; i < n; i++) {
            const uint64_t at = (backwards ? n - 1 - i : i) * piece;
            if (put(w, t, at, n_elems[t] - at < piece ? n_elems[t] - at : piece)) {
                zinf_hf_abandon(w);
                return err.status;
            }
        }
    }
    return zinf_hf_commit(w, &err);
}

static zinf_status export(const char *name, uint64_t piece)
{
    return export_in(name, piece, false);
}

static void an_export_is_read_again_whatever_the_pieces(void)
{
    for (uint64_t piece = 1; piece <= MOST; piece++)
        for (int way = 0; way < 6; way++) {
            const int cut = way / 2;
            options.shard_bytes = cut == 0 ? 1000000 : cut == 1 ? 250 : 1;
            remove_tree(path("in"));
            CHECK_MESSAGE(!export_in("in", piece, way % 2), "%s", err.text);
            CHECK(exists("in/model.safetensors") == (cut == 0));
            CHECK(exists("in/model-00001-of-00002.safetensors") == (cut == 1));
            CHECK(exists("in/model-00004-of-00004.safetensors") == (cut == 2));
            CHECK(!exists("in.zinf-writing"));
            if (piece % 6 == 1)
                check_ranges();
        }
    options.shard_bytes = 1000000;
}

static void bf16_is_rounded_to_nearest(void)
{
    zinf_hf_reader *r;
    zinf_hf_writer *w;
    float values[MOST] = {1, 1.00390625f, 1.01171875f, 3.0e38f, -0.1f}, found[5];

    remove_tree(path("in"));
    options.dtype = ZINF_BF16;
    clear();
    CHECK(!zinf_hf_create(path("in"), &plan, &options, &w, &err));
    for (uint32_t t = 0; t < N_TENSORS; t++)
        CHECK(!zinf_hf_put(w, t, 0, n_elems[t], values, &err));
    CHECK(!zinf_hf_commit(w, &err));
    options.dtype = ZINF_F32;
    CHECK(!try_open(&r) && !zinf_hf_get(r, 2, 0, 5, found, &err));
    CHECK(found[0] == 1 && found[1] == 1 && found[2] == 1.015625f && found[4] == -0.10009765625f);
    zinf_hf_close(r);
}

/* Every half, what lies between two of them and half-way, against arithmetic in double. */
static void halves_are_rounded_to_nearest_even(void)
{
    for (uint32_t h = 0; h < 0x7c00; h++) {
        const float low = zinf_f16_to_f32((uint16_t)h);
        const float high = h + 1 < 0x7c00 ? zinf_f16_to_f32((uint16_t)(h + 1)) : 65536;
        const float middle = 0.5f * (low + high); /* exact */
        const uint16_t even = (uint16_t)(h % 2 ? h + 1 : h);
        const int exponent = h < 0x400 ? -24 : (int)(h >> 10) - 25;
        CHECK(high > low && low == (float)ldexp(h < 0x400 ? h : 0x400 + h % 0x400, exponent));
        CHECK(zinf_f16_from_f32(low) == h && zinf_f16_from_f32(-low) == (h | 0x8000));
        CHECK(zinf_f16_from_f32(middle) == even && zinf_f16_from_f32(-middle) == (even | 0x8000));
        CHECK(zinf_f16_from_f32(nextafterf(middle, 0)) == h);
        CHECK(zinf_f16_from_f32(nextafterf(middle, 1e9f)) == h + 1);
    }
    CHECK(zinf_f16_from_f32(65520) == 0x7c00 && zinf_f16_from_f32(-1e30f) == 0xfc00);
    CHECK(zinf_f16_from_f32(0x1p-25f) == 0 && zinf_f16_from_f32(-0x1p-149f) == 0x8000);
    CHECK(isinf(zinf_f16_to_f32(0x7c00)) && isnan(zinf_f16_to_f32(zinf_f16_from_f32(NAN))));
}

static void what_a_dtype_cannot_hold_is_refused(void)
{
    static const struct {
        uint32_t dtype;
        float fits, beyond;
        const char *says;
    } cases[] = {
        {ZINF_F16, 65519, 65520, "F16 (65504)"},
        {ZINF_F16, -65519, -1e30f, "fp32 or bf16"},
        {ZINF_BF16, 0x1.fefffep127f, 0x1.ffp127f, "BF16 (3.38953e+38)"},
        {ZINF_BF16, -0x1.fefffep127f, -FLT_MAX, "--export-dtype fp32"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (uint32_t t = 0; t < 3; t += 2) { /* the second is turned */
            float values[MOST] = {0};
            zinf_hf_writer *w;
            remove_tree(path("out"));
            clear();
            options.dtype = cases[i].dtype;
            CHECK(!zinf_hf_create(path("out"), &plan, &options, &w, &err));
            values[3] = cases[i].fits;
            CHECK(!zinf_hf_put(w, t, 0, 14, values, &err));
            values[3] = cases[i].beyond;
            CHECK(zinf_hf_put(w, t, 14, 14, values, &err) == ZINF_BAD_INPUT);
            CHECK(says("element 17") && says(plan.tensors[t].name) && says(cases[i].says));
            zinf_hf_abandon(w);
            CHECK(!exists("out") && !exists("out.zinf-writing"));
        }
    options.dtype = ZINF_F32;
}

/* As they are read, so they are written, if that is asked for: each tensor in its own. */
static void what_was_stored_is_exported_byte_by_byte(void)
{
    static const uint32_t dtypes[][N_TENSORS] = {
        {ZINF_F32, ZINF_F32, ZINF_F32, ZINF_F32}, {ZINF_F16, ZINF_F16, ZINF_F16, ZINF_F16},
        {ZINF_BF16, ZINF_BF16, ZINF_BF16, ZINF_BF16}, {ZINF_BF16, ZINF_F32, ZINF_F16, ZINF_F32}};
    static char from[300], bytes[2][1 << 14];
    float values[MOST];
    stored list[N_TENSORS];
    size_t n[2];

    snprintf(from, sizeof from, "%s", path("in"));
    for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++) {
        zinf_hf_reader *r;
        zinf_hf_writer *w;
        uint32_t found[N_TENSORS];
        memcpy(list, whole, sizeof list);
        for (int i = 0; i < N_TENSORS; i++)
            list[i].dtype = dtypes[d][i];
        write_model(list, N_TENSORS);
        remove_tree(path("out"));
        CHECK_MESSAGE(!try_open(&r), "%s", err.text);
        for (uint32_t t = 0; t < N_TENSORS; t++)
            CHECK((found[t] = zinf_hf_dtype(r, t)) == dtypes[d][t]);
        options.dtypes = found;
        options.from = from;
        CHECK(!zinf_hf_create(path("out"), &plan, &options, &w, &err));
        memset(found, 0, sizeof found); /* the caller's, needed no longer */
        for (uint32_t t = 0; t < N_TENSORS; t++)
            CHECK(!zinf_hf_get(r, t, 0, n_elems[t], values, &err) &&
                  !zinf_hf_put(w, t, 0, n_elems[t], values, &err));
        CHECK_MESSAGE(!zinf_hf_commit(w, &err), "%s", err.text);
        zinf_hf_close(r);
        static const char *const names[] = {"model.safetensors", "config.json"};
        for (int k = 0; k < 2; k++) {
            for (int side = 0; side < 2; side++) {
                char name[60];
                snprintf(name, sizeof name, "%s/%s", side ? "out" : "in", names[k]);
                FILE *in = fopen(path(name), "rb");
                CHECK(in);
                n[side] = fread(bytes[side], 1, sizeof bytes[side] - 1, in);
                bytes[side][n[side]] = 0;
                fclose(in);
            }
            /* of config.json the meaning: it is printed anew */
            CHECK(k ? !strstr(bytes[1], "torch_dtype")
                    : n[0] == n[1] && !memcmp(bytes[0], bytes[1], n[0]));
        }
    }
    options.dtypes = NULL;
    options.from = NULL;
}

/* As many elements as there are, and not each of them: the ends do not meet. */
static void every_byte_is_written_once(void)
{
    static const struct {
        uint64_t first, n;
    } pieces[][3] = {{{0, 24}, {0, 24}, {0, 0}}, {{0, 24}, {23, 24}, {47, 1}},
                     {{0, 16}, {32, 16}, {0, 16}}, {{1, 47}, {1, 1}, {0, 0}},
                     {{0, 24}, {24, 24}, {0, 0}}, {{40, 8}, {0, 24}, {24, 16}}};

    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++)
        for (int half = 0; half < 2; half++) {
            zinf_hf_writer *w;
            remove_tree(path("out"));
            clear();
            options.dtype = half ? ZINF_F16 : ZINF_F32;
            CHECK(!zinf_hf_create(path("out"), &plan, &options, &w, &err));
            CHECK(!put(w, 0, 0, 28) && !put(w, 1, 0, 32) && !put(w, 3, 0, 12));
            uint64_t sum = 0;
            for (int k = 0; k < 3; sum += pieces[i][k++].n)
                CHECK(!put(w, 2, pieces[i][k].first, pieces[i][k].n));
            const zinf_status status = zinf_hf_commit(w, &err);
            CHECK((sum == 48 || i == 1) && status == (i < 4 ? ZINF_WRONG_RESULT : ZINF_OK));
            CHECK(i >= 4 || says("c_attn.weight"));
            CHECK(sum != 48 || i >= 4 || says("twice"));
            CHECK(exists("out") == (i >= 4) && !exists("out.zinf-writing"));
        }
    options.dtype = ZINF_F32;
}

static void what_is_incomplete_or_not_finite_is_never_published(void)
{
    float values[MOST] = {0};
    zinf_hf_writer *w;

    remove_tree(path("out"));
    clear();
    CHECK(!zinf_hf_create(path("out"), &plan, &options, &w, &err));
    CHECK(!put(w, 0, 0, 28) && !put(w, 1, 0, 32) && !put(w, 2, 0, 47) && !put(w, 3, 0, 12));
    CHECK(zinf_hf_commit(w, &err) == ZINF_WRONG_RESULT && says("47 elements") && says("c_attn"));
    CHECK(!exists("out") && !exists("out.zinf-writing"));
    clear();
    CHECK(!zinf_hf_create(path("out"), &plan, &options, &w, &err));
    values[5] = INFINITY;
    CHECK(zinf_hf_put(w, 0, 0, 28, values, &err) == ZINF_WRONG_RESULT && says("element 5"));
    zinf_hf_abandon(w);
    CHECK(!exists("out") && !exists("out.zinf-writing"));
}

/* As ranks do it: piece i of each tensor is put by writer i % N_WRITERS, its last pieces first. */
static zinf_status export_joined(const char *name, uint64_t piece)
{
    enum { N_WRITERS = 3 };
    zinf_hf_writer *w[N_WRITERS] = {0};
    uint32_t n;

    clear();
    for (int k = 0; k < N_WRITERS; k++)
        if ((k ? zinf_hf_join : zinf_hf_create)(path(name), &plan, &options, &w[k], &err))
            return err.status;
    for (int k = 0; k < N_WRITERS; k++)
        for (uint32_t t = N_TENSORS; t-- > 0;)
            for (uint64_t i = n_elems[t]; i-- > 0;)
                if (i % piece == 0 && i / piece % N_WRITERS == (uint64_t)k &&
                    put(w[k], t, i, n_elems[t] - i < piece ? n_elems[t] - i : piece))
                    return err.status;
    for (int k = 1; k < N_WRITERS; k++) {
        uint64_t *all = zinf_hf_totals(w[0], &n);
        const uint64_t *theirs = zinf_hf_totals(w[k], &n);
        CHECK(n == 2 * N_TENSORS);
        for (uint32_t t = 0; t < n; t++)
            all[t] += theirs[t];
        CHECK(!zinf_hf_sync(w[k], &err));
        zinf_hf_abandon(w[k]);
        CHECK(exists("in.zinf-writing/config.json")); /* that they have joined, and left */
    }
    return zinf_hf_commit(w[0], &err);
}

static void what_several_writers_put_is_one_export(void)
{
    for (uint64_t piece = 1; piece <= MOST; piece++)
        for (uint64_t cut = 250; cut <= 1000000; cut *= 4000) {
            options.shard_bytes = cut;
            remove_tree(path("in"));
            CHECK_MESSAGE(!export_joined("in", piece), "%s", err.text);
            CHECK(exists("in/config.json") && !exists("in.zinf-writing"));
            check_ranges();
        }
    options.shard_bytes = 1000000;
}

static void what_was_not_created_alike_is_not_joined(void)
{
    zinf_hf_writer *w, *second = NULL;

    remove_tree(path("out"));
    clear();
    CHECK(zinf_hf_join(path("out"), &plan, &options, &second, &err) == ZINF_BAD_INPUT);
    CHECK(says("every rank sees") && !second && !exists("out.zinf-writing"));
    clear();
    CHECK(!zinf_hf_create(path("out"), &plan, &options, &w, &err));
    options.dtype = ZINF_BF16;
    CHECK(zinf_hf_join(path("out"), &plan, &options, &second, &err) == ZINF_MACHINE);
    CHECK(says("bytes here") && !second);
    options.dtype = ZINF_F32;
    clear();
    options.shard_bytes = 250; /* other files */
    CHECK(zinf_hf_join(path("out"), &plan, &options, &second, &err) == ZINF_MACHINE);
    CHECK(says("model-00001-of-00002") && !second && exists("out.zinf-writing"));
    options.shard_bytes = 1000000;
    zinf_hf_abandon(w);
    CHECK(!exists("out.zinf-writing"));
}

/* An unfinished export of the same model, seen by another rank, is not the one that is made now. */
static void every_export_has_a_mark_of_its_own(void)
{
    zinf_hf_writer *w, *second;
    uint64_t before = 0;

    remove_tree(path("out"));
    for (int i = 0; i < 3; i++) {
        clear();
        CHECK_MESSAGE(!zinf_hf_create(path("out"), &plan, &options, &w, &err), "%s", err.text);
        CHECK_MESSAGE(!zinf_hf_join(path("out"), &plan, &options, &second, &err), "%s", err.text);
        CHECK(zinf_hf_mark(w) == zinf_hf_mark(second) && zinf_hf_mark(w) != before);
        before = zinf_hf_mark(w);
        zinf_hf_abandon(second);
        zinf_hf_abandon(w);
    }
}

static void nothing_is_overwritten(void)
{
    zinf_hf_writer *w, *second = NULL;

    write_model(whole, N_TENSORS);
    CHECK(export("in", 48) == ZINF_BAD_INPUT && says("not empty") && !exists("in.zinf-writing"));
    CHECK(export("in/config.json", 48) == ZINF_BAD_INPUT && says("--export"));
    CHECK(export("none/out", 48) == ZINF_BAD_INPUT && says("none/out"));
    remove_tree(path("out"));
    CHECK(!mkdir(path("out"), 0700)); /* an empty one gives way */
    CHECK(!export("out", 48) && exists("out/config.json"));
    remove_tree(path("out"));
    clear();
    CHECK(!zinf_hf_create(path("out"), &plan, &options, &w, &err));
    CHECK(zinf_hf_create(path("out/"), &plan, &options, &second, &err) == ZINF_MACHINE);
    CHECK(says("another run") && !second && exists("out.zinf-writing"));
    zinf_hf_abandon(w);
    CHECK(!exists("out.zinf-writing"));
    CHECK(!mkdir(path("out.zinf-writing"), 0700));
    spill("out.zinf-writing/diary", "mine", 4);
    CHECK(export("out", 48) == ZINF_BAD_INPUT && says("diary") && exists("out.zinf-writing/diary"));
    remove_tree(path("out.zinf-writing"));
    CHECK(!mkdir(path("out.zinf-writing"), 0700)); /* what a killed run left */
    spill("out.zinf-writing/model-00003-of-00009.safetensors", "x", 1);
    CHECK(!export("out", 48) && exists("out/config.json"));
    CHECK(!exists("out/model-00003-of-00009.safetensors"));
}

/* Killed at any moment: the directory is whole, or not there; the next export succeeds. */
static void a_killed_export_leaves_nothing_or_all(void)
{
    int whole_ones = 0, none = 0;

    options.shard_bytes = 250;
    for (int i = 0; i < 40; i++) {
        remove_tree(path("in"));
        const pid_t child = fork();
        if (!child) {
            export("in", 3);
            _exit(0);
        }
        usleep((useconds_t)(i * 20));
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        if (exists("in")) {
            check_ranges();
            whole_ones++;
        } else {
            none++;
            CHECK_MESSAGE(!export("in", 48), "%s", err.text);
        }
    }
    printf("# killed: %d times nothing, %d times all\n", none, whole_ones);
    options.shard_bytes = 1000000;
}

static void config_and_tokenizer_of_the_source_are_taken_over(void)
{
    static const char text[] =
        "{\"model_type\": \"gpt2\", \"n_layer\": 1, \"n_embd\": 4, \"n_head\": 2, "
        "\"vocab_size\": 7, \"n_positions\": 8, \"layer_norm_epsilon\": 1e-05, "
        "\"eos_token_id\": 5, \"torch_dtype\": \"float16\"}";
    char found[2000];

    write_model(whole, N_TENSORS);
    spill("in/config.json", text, strlen(text));
    spill("in/tokenizer.json", "a tokenizer", 11);
    spill("in/evil.py", "code", 4);
    remove_tree(path("out"));
    static char from[300];
    snprintf(from, sizeof from, "%s", path("in"));
    options.from = from;
    CHECK_MESSAGE(!export("out", 48), "%s", err.text);
    options.from = NULL;
    FILE *in = fopen(path("out/config.json"), "r");
    CHECK(in);
    found[fread(found, 1, sizeof found - 1, in)] = 0;
    fclose(in);
    CHECK_MESSAGE(strstr(found, "\"eos_token_id\": 5") && strstr(found, "1e-05") &&
                  strstr(found, "\"torch_dtype\": \"float32\""), "%s", found);
    CHECK(exists("out/tokenizer.json") && !exists("out/evil.py"));
}

/* Versions of transformers read the one or the other. */
static void every_name_of_the_dtype_is_rewritten(void)
{
    static const struct {
        const char *in, *out, *not_out;
    } cases[] = {
        {"", "\"torch_dtype\": \"float32\"", "\"dtype\""},
        {", \"torch_dtype\": \"bfloat16\"", "\"torch_dtype\": \"float32\"", "\"dtype\""},
        {", \"dtype\": \"bfloat16\"", "\"dtype\": \"float32\"", "\"torch_dtype\""},
        {", \"torch_dtype\": \"bfloat16\", \"dtype\": \"bfloat16\"",
         "\"torch_dtype\": \"float32\"", "bfloat16"},
        {", \"dtype\": \"bfloat16\", \"torch_dtype\": null", "\"dtype\": \"float32\"", "null"},
    };
    char text[400], found[2000];
    static char from[300];

    write_model(whole, N_TENSORS);
    snprintf(from, sizeof from, "%s", path("in"));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(text, sizeof text, "{\"model_type\": \"gpt2\", \"n_layer\": 1, \"n_embd\": 4, "
                 "\"n_head\": 2, \"vocab_size\": 7, \"n_positions\": 8%s}", cases[i].in);
        spill("in/config.json", text, strlen(text));
        remove_tree(path("out"));
        options.from = from;
        CHECK_MESSAGE(!export("out", 48), "%s", err.text);
        options.from = NULL;
        FILE *in = fopen(path("out/config.json"), "r");
        CHECK(in);
        found[fread(found, 1, sizeof found - 1, in)] = 0;
        fclose(in);
        CHECK_MESSAGE(strstr(found, cases[i].out) && !strstr(found, cases[i].not_out), "%s", found);
    }
}

static void an_adapter_and_a_file_in_place_of_the_directory_are_refused(void)
{
    zinf_hf_reader *r;

    write_model(whole, N_TENSORS);
    spill("in/adapter_config.json", "{}", 2);
    CHECK(try_open(&r) == ZINF_BAD_INPUT && says("\"adapter_config.json\"") && says("merge"));
    CHECK(!unlink(path("in/adapter_config.json")));
    CHECK(!try_open(&r));
    zinf_hf_close(r);
    clear();
    CHECK(zinf_hf_open(path("in/config.json"), &plan, &r, &err) == ZINF_BAD_INPUT);
    CHECK(says("it is a file") && says("the directory"));
}

int main(void)
{
    const char *tmp = getenv("TMPDIR");

    snprintf(base, sizeof base, "%.150s/zinf-hf-XXXXXX", tmp ? tmp : "/tmp");
    if (!mkdtemp(base))
        return 4;
    RUN(every_range_is_read_from_every_dtype);
    RUN(special_halves_are_read);
    RUN(names_without_the_prefix_and_constants_are_taken);
    RUN(a_head_stored_beside_tied_embeddings_must_be_equal);
    RUN(a_directory_of_another_model_is_refused);
    RUN(tensors_that_do_not_fit_are_named);
    RUN(damage_is_refused);
    RUN(shards_are_read);
    RUN(an_index_that_is_wrong_is_refused);
    RUN(a_file_that_changes_while_in_use_is_refused);
    RUN(an_export_is_read_again_whatever_the_pieces);
    RUN(bf16_is_rounded_to_nearest);
    RUN(halves_are_rounded_to_nearest_even);
    RUN(what_a_dtype_cannot_hold_is_refused);
    RUN(what_was_stored_is_exported_byte_by_byte);
    RUN(every_byte_is_written_once);
    RUN(what_is_incomplete_or_not_finite_is_never_published);
    RUN(what_several_writers_put_is_one_export);
    RUN(what_was_not_created_alike_is_not_joined);
    RUN(every_export_has_a_mark_of_its_own);
    RUN(nothing_is_overwritten);
    RUN(a_killed_export_leaves_nothing_or_all);
    RUN(config_and_tokenizer_of_the_source_are_taken_over);
    RUN(every_name_of_the_dtype_is_rewritten);
    RUN(an_adapter_and_a_file_in_place_of_the_directory_are_refused);
    remove_tree(base);
    return check_finish();
}
