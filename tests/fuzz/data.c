/* tests/fuzz/data.c - fuzz target: a token file. The first byte says how it is opened: bit 0 a
 * name ending in .bin, bit 1 a small vocabulary, bit 2 shuffled, bit 3 (raw text only) made
 * sparse and enormous, bits 4-7 the sequence less 1.
 */
#include <fcntl.h>
#include <unistd.h>

#include "runtime/data.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/scratch.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const uint8_t how = n ? data[0] : 0;
    const uint64_t vocab = how & 2 ? 300 : 50257, sequence = 1 + (how >> 4);
    const char *path = scratch_path(how & 1 ? "tokens.bin" : "tokens");
    zinf_data *d = NULL;
    zinf_error err = {0};
    int32_t tokens[3 * 17];

    scratch_write(path, data + (n > 0), n - (n > 0));
    if ((how & 9) == 8 && n > 4)
        FUZZ_EXPECT(truncate(path, INT64_MAX >> (data[1] & 63)) == 0 || how);
    const zinf_status status = zinf_data_open(path, vocab, sequence, 7, how & 4, &d, &err);
    fuzz_check_error(status, &err);
    if (status == ZINF_OK) {
        const uint64_t positions[] = {0, 1, zinf_data_n_sequences(d), 1ull << 62, UINT64_MAX - 1};
        fuzz_accepted = 1;
        FUZZ_EXPECT(zinf_data_n_sequences(d) >= 1);
        FUZZ_EXPECT(zinf_data_n_tokens(d) > sequence);
        for (size_t i = 0; i < sizeof positions / sizeof *positions; i++) {
            zinf_error batch_err = {0};
            const zinf_status got = zinf_data_batch(d, positions[i], 3, (uint32_t)i % 3, 3, tokens,
                                                    &batch_err);
            fuzz_check_error(got, &batch_err);
            FUZZ_EXPECT(got == ZINF_OK || i >= 3);
            for (size_t k = 0; got == ZINF_OK && k < 3 * (sequence + 1); k++)
                FUZZ_EXPECT(tokens[k] >= 0 && (uint64_t)tokens[k] < vocab);
        }
    } else {
        FUZZ_EXPECT(d == NULL);
    }
    zinf_data_close(d);
    return 0;
}
