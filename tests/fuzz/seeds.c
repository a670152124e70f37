/* tests/fuzz/seeds.c - writes the seeds that are no text: good plans, checkpoints, token files,
 * headers of safetensors files.
 *
 * usage: seeds CORPUS      the directory of the corpora
 */
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/checkpoint.h"
#include "tests/checker/mini.h"
#include "tests/fuzz/checkpoint.h"
#include "tests/fuzz/scratch.h"

static const char *corpus;

static const char *name(const char *target, const char *file)
{
    static char path[PATH_MAX];

    snprintf(path, sizeof path, "%s/%s", corpus, target);
    mkdir(path, 0755);
    snprintf(path, sizeof path, "%s/%s/%s", corpus, target, file);
    return path;
}

static void plans(void)
{
    static const struct {
        const char *file;
        mini_options options;
    } choices[] = {
        {"good-device", {ZINF_TIER_DEVICE, ZINF_TIER_DEVICE, ZINF_TIER_DEVICE, true, 1}},
        {"good-nvme", {ZINF_TIER_NVME, ZINF_TIER_NVME, ZINF_TIER_NVME, false, 4}},
    };

    for (size_t i = 0; i < sizeof choices / sizeof *choices; i++) {
        zinf_plan plan = mini_plan(&choices[i].options);
        zinf_error err = {0};
        zinf_plan_write(&plan, name("plan", choices[i].file), &err);
        if (err.status)
            fprintf(stderr, "%s\n", err.text);
        mini_free(&plan);
    }
}

static void checkpoint(void)
{
    static const float values[12] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    const zinf_progress progress = {.step = 3, .data_position = 12, .seed = 7, .loss_scale = 1};
    zinf_tensor tensors[2];
    const zinf_plan plan = pack_plan(tensors);
    zinf_checkpoint_writer *w = NULL;
    zinf_error err = {0};
    bool placed;
    FILE *out = fopen(name("checkpoint", "good-3"), "wb");
    uint8_t *files[PACK_FILES];
    uint32_t bytes[PACK_FILES];

    FUZZ_EXPECT(out);
    scratch_path("");
    zinf_checkpoint_create(scratch_directory, &plan, &progress, &w, &err);
    for (uint32_t t = 0; t < 2 && !err.status; t++)
        for (int a = 0; a < ZINF_N_STATES; a++)
            zinf_checkpoint_put(w, t, (zinf_state_array)a, 0, t ? 5 : 12, values, &err);
    if (!err.status)
        zinf_checkpoint_commit(w, &placed, &err);
    if (err.status)
        fprintf(stderr, "%s\n", err.text);
    for (int i = 0; i < PACK_FILES; i++) {
        FILE *in = fopen(scratch_path(pack_names[i]), "rb");
        FUZZ_EXPECT(in && (files[i] = malloc(1 << 16)));
        bytes[i] = (uint32_t)fread(files[i], 1, 1 << 16, in);
        fclose(in);
    }
    fputc(1, out);
    fwrite(bytes, 4, PACK_FILES, out);
    for (int i = 0; i < PACK_FILES; i++) {
        fwrite(files[i], 1, bytes[i], out);
        free(files[i]);
    }
    fclose(out);
}

static void tokens(void)
{
    uint16_t gpt2[512 + 100] = {0};
    uint32_t header[256] = {20240520, 1, 100};
    uint32_t llama[256 + 40] = {20240801, 7, 40};
    struct {
        const char *file;
        uint8_t how;
        const void *bytes;
        size_t n;
    } files[] = {
        {"good-text", 0x34, "a text of some sixty bytes, which is enough for a few sequences", 63},
        {"good-nanogpt", 0x25, gpt2 + 512, 200},
        {"good-llmc", 0x77, gpt2, sizeof gpt2},
        {"good-llama", 0x07, llama, sizeof llama},
        {"good-sparse", 0x08, "a text that goes on", 19},
    };

    memcpy(gpt2, header, sizeof header);
    for (int i = 0; i < 100; i++)
        gpt2[512 + i] = (uint16_t)(i * 3 % 300);
    for (uint32_t i = 0; i < 40; i++)
        llama[256 + i] = i * 7;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        FILE *out = fopen(name("data", files[i].file), "wb");
        FUZZ_EXPECT(out);
        fputc(files[i].how, out);
        fwrite(files[i].bytes, 1, files[i].n, out);
        fclose(out);
    }
}

static void safetensors(void)
{
    static const char text[] =
        "{\"__metadata__\":{\"format\":\"pt\"},\"h.0.w\":{\"dtype\":\"F32\",\"shape\":[2,3],"
        "\"data_offsets\":[0,24]},\"h.0.b\":{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":"
        "[24,32]},\"mask\":{\"dtype\":\"BOOL\",\"shape\":[],\"data_offsets\":[32,33]}}  ";
    const uint64_t follow = 33, n = sizeof text - 1, size = 8 + n + follow;
    FILE *framed = fopen(name("safetensors", "good-framed"), "wb");
    FILE *whole = fopen(name("safetensors", "good-whole"), "wb");

    FUZZ_EXPECT(framed && whole);
    fputc(1, framed);
    fwrite(&follow, 8, 1, framed);
    fwrite(text, 1, n, framed);
    fputc(0, whole);
    fwrite(&size, 8, 1, whole);
    fwrite(&n, 8, 1, whole);
    fwrite(text, 1, n, whole);
    fclose(framed);
    fclose(whole);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: seeds CORPUS\n");
        return 2;
    }
    corpus = argv[1];
    plans();
    checkpoint();
    tokens();
    safetensors();
    return 0;
}
