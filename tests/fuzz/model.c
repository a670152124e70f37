/* tests/fuzz/model.c - fuzz target: a model YAML. */
#include "planner/spec.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    zinf_model model;
    zinf_error err = {0};

    const zinf_status status = zinf_model_parse("model.yaml", (const char *)data, n, NULL, &model,
                                                &err);
    fuzz_check_error(status, &err);
    if (status == ZINF_OK) {
        fuzz_accepted = 1;
        FUZZ_EXPECT(model.layers > 0 && model.hidden > 0 && model.heads > 0 && model.steps > 0);
        FUZZ_EXPECT(model.sequence > 0 && model.sequence <= model.context);
        FUZZ_EXPECT(model.lr >= 0 && model.beta1 >= 0 && model.beta2 < 1 && model.clip >= 0);
        FUZZ_EXPECT(memchr(model.name, 0, sizeof model.name));
    }
    return 0;
}
