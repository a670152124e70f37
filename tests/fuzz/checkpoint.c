/* tests/fuzz/checkpoint.c - fuzz target: the four files of a checkpoint and `latest`. */
#include "tests/fuzz/checkpoint.h"

#include <xxhash.h>

#include "runtime/checkpoint_format.h"
#include "runtime/element_sum.h"
#include "tests/fuzz/scratch.h"

/* Writes the sum over the 16 digits after the n-th `"key": "` of the text. */
static void put_sum(char *text, const char *key, int n, uint64_t sum)
{
    char digits[ZINF_SUM_DIGITS + 1];
    char *at = text;

    for (; at && n >= 0; n--)
        if ((at = strstr(at, key)))
            at += strlen(key);
    if (!at || strncmp(at, ": \"", 3) || strlen(at) < 3 + ZINF_SUM_DIGITS)
        return;
    zinf_sum_text(sum, digits);
    memcpy(at + 3, digits, ZINF_SUM_DIGITS);
}

static void repair(const zinf_plan *plan, const uint8_t *data, const size_t at[PACK_FILES],
                   const size_t bytes[PACK_FILES], char *manifest)
{
    static const char *const keys[] = {"\"master\"", "\"m\"", "\"v\""};
    const size_t tail = strlen(ZINF_MANIFEST_END) + ZINF_SUM_DIGITS, n = bytes[1];

    for (int a = 0; a < ZINF_N_STATES; a++) {
        const uint8_t *file = data + at[2 + a];
        uint64_t header = 0, offset;
        if (bytes[2 + a] < 8)
            continue;
        memcpy(&header, file, 8);
        if (header > bytes[2 + a] - 8)
            continue;
        put_sum(manifest, "\"header\"", a, XXH64(file, 8 + header, 0));
        offset = 8 + header;
        for (uint32_t t = 0; t < plan->n_tensors; t++) {
            const uint64_t size = 4 * zinf_tensor_elems(&plan->tensors[t]);
            if (size > bytes[2 + a] - offset)
                break;
            float *values = malloc(size + 1); /* aligned */
            FUZZ_EXPECT(values);
            memcpy(values, file + offset, size);
            put_sum(manifest, keys[a], (int)t, zinf_element_sum(0, size / 4, values));
            free(values);
            offset += size;
        }
    }
    if (n >= tail) {
        char digits[ZINF_SUM_DIGITS + 1];
        zinf_sum_text(XXH64(manifest, n - tail, 0), digits);
        memcpy(manifest + n - tail, digits, ZINF_SUM_DIGITS);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    zinf_tensor tensors[2];
    const zinf_plan plan = pack_plan(tensors);
    zinf_checkpoint_reader *reader = NULL;
    zinf_progress progress;
    zinf_error err = {0};
    size_t at[PACK_FILES], bytes[PACK_FILES];

    pack_split(data, n, at, bytes);
    char *manifest = calloc(bytes[1] + 1, 1);
    FUZZ_EXPECT(manifest);
    memcpy(manifest, data + at[1], bytes[1]);
    if (n && data[0] & 1)
        repair(&plan, data, at, bytes, manifest);
    mkdir(scratch_path("step-3"), 0700);
    for (int i = 0; i < PACK_FILES; i++)
        scratch_write(scratch_path(pack_names[i]),
                      i == 1 ? (const void *)manifest : data + at[i], bytes[i]);
    free(manifest);
    scratch_path("");
    zinf_status status = zinf_checkpoint_open(scratch_directory, &plan, &reader, &progress, &err);
    FUZZ_EXPECT(!status == !!reader);
    if (status == ZINF_OK) {
        float values[12];
        FUZZ_EXPECT(progress.loss_scale > 0 && progress.loss_scale < 1e300);
        for (uint32_t t = 0; t < plan.n_tensors; t++)
            for (int a = 0; a < ZINF_N_STATES; a++)
                FUZZ_EXPECT(zinf_checkpoint_get(reader, t, (zinf_state_array)a, 0,
                                                zinf_tensor_elems(&tensors[t]), values,
                                                &err) == ZINF_OK);
        status = zinf_checkpoint_check(reader, 1, &err);
        fuzz_accepted |= !status;
    }
    fuzz_check_error(status, &err);
    zinf_checkpoint_close(reader);
    return 0;
}

/* One of the files, its length, or the flags. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t n, size_t most, unsigned seed)
{
    size_t at[PACK_FILES], bytes[PACK_FILES];
    uint64_t state = seed;
    const unsigned i = (unsigned)(fuzz_random(&state) % PACK_FILES);

    if (n < PACK_HEADER || most < n || fuzz_random(&state) % 32 == 0)
        return LLVMFuzzerMutate(data, n, most);
    pack_split(data, n, at, bytes);
    if (fuzz_random(&state) % 16 == 0) {
        data[0] ^= 1;
        return n;
    }
    if (i >= 2 && bytes[i] >= 8 && fuzz_random(&state) % 4 == 0) { /* the header's length */
        const uint64_t edge = fuzz_edge(&state);
        memcpy(data + at[i], &edge, 8);
        return n;
    }
    const size_t room = bytes[i] + 64 < most - n + bytes[i] ? bytes[i] + 64 : most - n + bytes[i];
    uint8_t *piece = malloc(room + 1);
    if (!piece || room == 0) {
        free(piece);
        return n;
    }
    memcpy(piece, data + at[i], bytes[i]);
    const size_t grown = LLVMFuzzerMutate(piece, bytes[i], room);
    memmove(data + at[i] + grown, data + at[i] + bytes[i], n - at[i] - bytes[i]);
    memcpy(data + at[i], piece, grown);
    free(piece);
    const uint32_t stated = (uint32_t)grown;
    memcpy(data + 1 + 4 * i, &stated, 4);
    return n - bytes[i] + grown;
}
