/* tests/fuzz/cluster.c - fuzz target: a cluster YAML. */
#include "planner/spec.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    zinf_cluster c;
    zinf_error err = {0};

    const zinf_status status = zinf_cluster_parse("cluster.yaml", (const char *)data, n, &c, &err);
    fuzz_check_error(status, &err);
    if (status == ZINF_OK) {
        fuzz_accepted = 1;
        FUZZ_EXPECT(c.nodes > 0 && c.devices_per_node > 0 && c.host.memory_bytes > 0);
        FUZZ_EXPECT(c.device.memory_bytes > 0 && c.device.bandwidth > 0 && c.host.adam > 0);
        FUZZ_EXPECT(!c.nvme.present || (c.nvme.n_paths > 0 && c.nvme.n_paths <= ZINF_MAX_PATHS &&
                                        c.nvme.block_bytes % ZINF_PAGE == 0 && c.nvme.read > 0));
    }
    return 0;
}
