/* tests/fuzz/settings.c - fuzz target: --set settings, one a line, against a small model and a
 * cluster with storage. What is accepted must be in range: the search is not asked.
 */
#include "planner/settings.h"
#include "tests/fuzz/fuzz.h"

static const char model_text[] =
    "model: {family: gpt2, layers: 2, hidden: 8, heads: 1, vocab: 16, context: 8}\n"
    "training: {sequence: 8, global_batch: 4}\n";
static const char cluster_text[] =
    "cluster:\n"
    "  device: {kind: cpu, peak: {bf16: 1 TFLOP/s}}\n"
    "  host: {memory: 1 GiB, cores: 2, bandwidth: 10 GB/s}\n"
    "  nvme: {paths: [/tmp], capacity: 1 GiB, read: 1 GB/s, write: 1 GB/s}\n";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static zinf_model model;
    static zinf_cluster cluster;
    zinf_settings settings;
    zinf_error err = {0};
    zinf_status status = ZINF_OK;
    char *text = malloc(n + 1), *line = text, *end;

    FUZZ_EXPECT(text);
    if (!model.layers) {
        FUZZ_EXPECT(zinf_model_parse("m", model_text, strlen(model_text), NULL, &model, &err) ==
                    ZINF_OK);
        FUZZ_EXPECT(zinf_cluster_parse("c", cluster_text, strlen(cluster_text), &cluster, &err) ==
                    ZINF_OK);
    }
    memcpy(text, data, n);
    text[n] = 0;
    zinf_settings_init(&settings);
    for (; status == ZINF_OK && *line; line = end) {
        end = line + strcspn(line, "\n");
        if (*end)
            *end++ = 0;
        status = zinf_settings_set(&settings, line, &err);
        fuzz_check_error(status, &err);
    }
    if (status == ZINF_OK) {
        status = zinf_settings_check(&settings, &model, &cluster, &err);
        fuzz_check_error(status, &err);
    }
    if (status == ZINF_OK) {
        fuzz_accepted = 1;
        for (int i = 0; i < ZINF_N_LINEARS; i++)
            FUZZ_EXPECT(settings.tiles[i] >= -1 && settings.tiles[i] != 0);
        for (int i = 0; i < ZINF_N_CLASSES; i++)
            FUZZ_EXPECT(settings.tier[i] >= -1 && settings.tier[i] <= ZINF_TIER_NVME);
        FUZZ_EXPECT(settings.micro_batch == -1 || 4 % settings.micro_batch == 0);
    }
    free(text);
    return 0;
}
