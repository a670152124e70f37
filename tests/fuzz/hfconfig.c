/* tests/fuzz/hfconfig.c - fuzz target: a Hugging Face config.json. What is accepted has a shape
 * that can be computed with.
 */
#include "runtime/hf_config.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    zinf_hf_config config;
    zinf_error err = {0};
    char *text = malloc(n + 1);

    FUZZ_EXPECT(text);
    if (n)
        memcpy(text, data, n);
    text[n] = 0;
    const zinf_status status = zinf_hf_config_parse("m/config.json", text, n, &config, &err);
    fuzz_check_error(status, &err);
    if (status == ZINF_OK) {
        const zinf_model_info *m = &config.model;
        const bool rotary = !strcmp(m->family, "llama");
        fuzz_accepted = 1;
        FUZZ_EXPECT(rotary || !strcmp(m->family, "gpt2"));
        FUZZ_EXPECT(m->layers > 0 && m->layers <= 100000 && m->hidden > 0 && m->ffn > 0);
        FUZZ_EXPECT(m->heads > 0 && m->kv_heads > 0 && m->heads % m->kv_heads == 0);
        FUZZ_EXPECT(m->head_dim > 0 && m->vocab > 1 && m->vocab <= INT32_MAX && m->context > 0);
        FUZZ_EXPECT(rotary ? m->norm_eps > 0 && m->rope_theta >= 1 && m->head_dim % 2 == 0
                           : m->head_dim * m->heads == m->hidden && m->tied_embeddings);
        FUZZ_EXPECT(m->rope_factor == 0 || (m->rope_factor >= 1 && m->rope_original_context > 0 &&
                                            m->rope_high_freq_factor > m->rope_low_freq_factor));
        FUZZ_EXPECT(memchr(config.notes, 0, sizeof config.notes));
        FUZZ_EXPECT(config.window <= INT64_MAX && (rotary || !config.window));
        FUZZ_EXPECT(!strcmp(m->name, "m"));
    }
    free(text);
    return 0;
}
