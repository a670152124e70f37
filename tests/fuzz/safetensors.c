/* tests/fuzz/safetensors.c - fuzz target: the beginning of a safetensors file. A byte of flags, 8
 * of a number, and JSON, whose length is put before it, the number saying how many bytes follow
 * (flag 1); or the file's first bytes, the number being its size. An accepted header describes a
 * file that its tensors fill.
 */
#include "runtime/safetensors.h"

#include <stdbool.h>
#include <unistd.h>

#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/scratch.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    zinf_safetensors file = {0};
    zinf_error err = {0};
    uint64_t size = 0, length = 0, end = 0, bytes = 0;
    char *header = NULL;

    if (n < 9)
        return 0;
    const bool framed = data[0] & 1;
    const uint64_t n_text = n - 9;
    memcpy(&size, data + 1, 8);
    size = size % ((uint64_t)1 << 40) + (framed ? 8 + n_text : 0); /* sparse: any size is there */
    char *bytes_of_file = malloc(8 + n_text);
    FUZZ_EXPECT(bytes_of_file);
    memcpy(bytes_of_file, &n_text, 8);
    memcpy(bytes_of_file + (framed ? 8 : 0), data + 9, n_text);
    scratch_write(scratch_path("x.safetensors"), bytes_of_file, n_text + (framed ? 8 : 0));
    free(bytes_of_file);
    const int fd = open(scratch_path("x.safetensors"), O_RDWR);
    FUZZ_EXPECT(fd >= 0 && !ftruncate(fd, (off_t)size));
    zinf_status status = zinf_safetensors_load(fd, "x", size, 1 << 17, &header, &length, &err);
    fuzz_check_error(status, &err);
    close(fd);
    if (status == ZINF_OK) {
        FUZZ_EXPECT(length >= 8 && length <= size && header[length] == 0);
        status = zinf_safetensors_parse("x", header, length, size, &file, &err);
        fuzz_check_error(status, &err);
    }
    if (status == ZINF_OK) {
        fuzz_accepted = 1;
        for (uint32_t i = 0; i < file.n; i++) {
            const zinf_safetensor *t = &file.tensors[i];
            FUZZ_EXPECT(t->offset >= length && t->bytes <= size && t->offset <= size - t->bytes);
            FUZZ_EXPECT(t->n_dims <= ZINF_SAFETENSORS_DIMS);
            FUZZ_EXPECT(zinf_safetensors_find(&file, t->name) == t);
            bytes += t->bytes;
            end = t->offset + t->bytes > end ? t->offset + t->bytes : end;
        }
        FUZZ_EXPECT(bytes == size - length && (end == size || !file.n));
    } else {
        FUZZ_EXPECT(!file.tensors);
    }
    zinf_safetensors_free(&file);
    free(header);
    return 0;
}
