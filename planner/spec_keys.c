/* planner/spec_keys.c - the table of keys: every key of both YAML files, once.
 *
 * Ranges are wide enough for 100 T parameters on 100,000 devices and narrow enough that products
 * of a few values stay within 64 bits (spec_check.c checks those that do not).
 */
#include "planner/spec_internal.h"

#include <inttypes.h>
#include <string.h>

#define M(field) offsetof(zinf_model, field)
#define C(field) offsetof(zinf_cluster, field)
#define NONE ZINF_UNIT_NONE

static const zinf_spec_key keys[] = {
#define SECTION(path, fallback, help) \
    {path, ZINF_SPEC_SECTION, NONE, 0, 0, 0, fallback, "{...}", NULL, help}
#define INTEGER(path, offset, min, max, fallback, example, help) \
    {path, ZINF_SPEC_INTEGER, NONE, offset, min, max, fallback, example, NULL, help}
#define REAL(path, offset, min, max, fallback, example, help) \
    {path, ZINF_SPEC_REAL, NONE, offset, min, max, fallback, example, NULL, help}
#define BYTES(path, offset, min, max, fallback, example, help) \
    {path, ZINF_SPEC_BYTES, ZINF_UNIT_BYTES, offset, min, max, fallback, example, NULL, help}
#define QUANTITY(path, unit, offset, min, max, fallback, example, help) \
    {path, ZINF_SPEC_QUANTITY, unit, offset, min, max, fallback, example, NULL, help}
#define RATE(path, offset, fallback, example, help) \
    QUANTITY(path, ZINF_UNIT_BYTES_PER_S, offset, 1e3, 1e18, fallback, example, help)
#define FLOPS(path, offset, fallback, example, help) \
    QUANTITY(path, ZINF_UNIT_FLOP_PER_S, offset, 1e6, 1e21, fallback, example, help)
#define LATENCY(path, offset, fallback, example, help) \
    QUANTITY(path, ZINF_UNIT_SECONDS, offset, 0, 1, fallback, example, help)
#define BOOL(path, offset, fallback, help) \
    {path, ZINF_SPEC_BOOL, NONE, offset, 0, 1, fallback, "true", NULL, help}
#define CHOICE(path, offset, choices, fallback, example, help) \
    {path, ZINF_SPEC_CHOICE, NONE, offset, 0, 0, fallback, example, choices, help}
#define STRING(path, offset, fallback, example, help) \
    {path, ZINF_SPEC_STRING, NONE, offset, 1, ZINF_NAME_BYTES - 1, fallback, example, NULL, help}

    SECTION("model", NULL, "the Transformer"),
    STRING("model.name", M(name), "model", "gpt2-124m", "name in plans and reports"),
    CHOICE("model.family", M(family), "gpt2|llama", NULL, "llama",
           "architecture: operators and names of tensors"),
    INTEGER("model.layers", M(layers), 1, 1e5, NULL, "12", "Transformer blocks"),
    INTEGER("model.hidden", M(hidden), 1, 1 << 22, NULL, "768", "width of the residual stream"),
    INTEGER("model.heads", M(heads), 1, 65536, NULL, "12", "attention heads"),
    INTEGER("model.kv_heads", M(kv_heads), 1, 65536, "= heads", "12", "key and value heads"),
    INTEGER("model.head_dim", M(head_dim), 1, 65536, "= hidden / heads", "64", "width of a head"),
    INTEGER("model.ffn", M(ffn), 1, 1 << 24, "= 4 * hidden", "3072", "width inside the MLP"),
    INTEGER("model.vocab", M(vocab), 2, INT32_MAX, NULL, "50257", "tokens in the vocabulary"),
    INTEGER("model.context", M(context), 1, 1 << 24, NULL, "1024", "longest sequence in tokens"),
    BOOL("model.tied_embeddings", M(tied_embeddings), "true",
         "the classifier's weight is the token embedding"),
    REAL("model.norm_eps", M(norm_eps), ZINF_LEAST_EPS, 1, "1e-5", "1e-5",
         "llama: added to the mean square in a norm"),
    BOOL("model.qkv_bias", M(qkv_bias), "false", "llama: queries, keys and values have a bias"),
    REAL("model.rope_theta", M(rope_theta), 1, 1e12, "1e4", "5e5",
         "llama: base of the rotary positions' wavelengths"),
    SECTION("model.rope_scaling", "-", "llama: rotary positions beyond the trained context"),
    CHOICE("model.rope_scaling.type", M(rope_scaling.type), "llama3", NULL, "llama3",
           "the method, of Llama 3.1"),
    REAL("model.rope_scaling.factor", M(rope_scaling.factor), 1, 1e6, NULL, "8",
         "long wavelengths grow by it"),
    REAL("model.rope_scaling.low_freq_factor", M(rope_scaling.low_freq_factor), 1e-6, 1e6, "1",
         "1", "waves that fit fewer times into original_context are long"),
    REAL("model.rope_scaling.high_freq_factor", M(rope_scaling.high_freq_factor), 1e-6, 1e6, "4",
         "4", "waves that fit more times into original_context keep their length"),
    INTEGER("model.rope_scaling.original_context", M(rope_scaling.original_context), 1, 1 << 24,
            "8192", "8192", "context of the first training"),

    SECTION("training", NULL, "the training job"),
    INTEGER("training.sequence", M(sequence), 1, 1 << 24, "= context", "1024",
            "tokens of a training sequence"),
    INTEGER("training.global_batch", M(global_batch), 1, INT32_MAX, "8", "8",
            "sequences of an optimizer step, all ranks together"),
    {"training.precision", ZINF_SPEC_DTYPE, NONE, M(precision), 0, 0, "bf16", "bf16",
     "bf16|fp16|fp32", "of parameters and activations; fp16 is not built yet"},
    SECTION("training.optimizer", "-", "how parameters are updated"),
    CHOICE("training.optimizer.type", M(optimizer), "adamw", "adamw", "adamw", "the method"),
    REAL("training.optimizer.lr", M(lr), 0, 10, "6e-4", "6e-4", "peak learning rate"),
    {"training.optimizer.betas", ZINF_SPEC_BETAS, NONE, M(beta1), 0, ZINF_MOST_BETA, "0.9, 0.95",
     "[0.9, 0.95]", NULL, "decay of both moments"},
    REAL("training.optimizer.eps", M(eps), ZINF_LEAST_EPS, 1, "1e-8", "1e-8",
         "added to the denominator"),
    REAL("training.optimizer.weight_decay", M(weight_decay), 0, 10, "0.1", "0.1",
         "decoupled, on matrices only"),
    SECTION("training.schedule", "-", "learning rate over the steps"),
    CHOICE("training.schedule.type", M(schedule), "cosine|constant", "cosine", "cosine",
           "shape after the warmup"),
    INTEGER("training.schedule.warmup", M(warmup), 0, 1e12, "= steps / 10", "100",
            "steps of linear warmup"),
    INTEGER("training.schedule.steps", M(steps), 1, 1e12, "1000", "1000",
            "steps until min_lr is reached"),
    REAL("training.schedule.min_lr", M(min_lr), 0, 10, "= lr / 10", "6e-5",
         "learning rate at the end"),
    REAL("training.clip", M(clip), 0, 1e9, "1.0", "1.0", "largest gradient norm; 0: no clipping"),
    INTEGER("training.seed", M(seed), 0, 0x1p53, "1337", "1337",
            "of the initial values and the order of the data"),

    SECTION("cluster", NULL, "the machine or machines"),
    STRING("cluster.name", C(name), "cluster", "dgx2-32", "name in plans and reports"),
    INTEGER("cluster.nodes", C(nodes), 1, 1e6, "1", "32", "machines"),
    INTEGER("cluster.devices_per_node", C(devices_per_node), 1, 1024, "1", "16",
            "devices of a machine"),
    BOOL("cluster.unified", C(unified), "= true for kind cpu", "device and host are one memory"),
    SECTION("cluster.device", NULL, "one device"),
    CHOICE("cluster.device.kind", C(device.kind), "cpu|cuda", NULL, "cuda", "backend"),
    STRING("cluster.device.name", C(device.name), "= kind", "V100-SXM3-32GB", "for people"),
    BYTES("cluster.device.memory", C(device.memory_bytes), 1 << 20, 0x1p50,
          "= host.memory if unified", "32 GiB", "memory of one device"),
    BYTES("cluster.device.reserve", C(device.reserve_bytes), 0, 0x1p50, "0", "1 GiB",
          "part of it that a plan leaves alone"),
    SECTION("cluster.device.peak", NULL,
            "achievable FLOP/s of large matrix products, not the data sheet's"),
    FLOPS("cluster.device.peak.bf16", C(device.peak_bf16), "-", "220 TFLOP/s", "in bf16"),
    FLOPS("cluster.device.peak.fp16", C(device.peak_f16), "-", "70 TFLOP/s", "in fp16"),
    FLOPS("cluster.device.peak.fp32", C(device.peak_f32), "-", "14 TFLOP/s", "in fp32"),
    RATE("cluster.device.bandwidth", C(device.bandwidth), "= host.bandwidth if unified",
         "900 GB/s", "of the device's memory"),
    SECTION("cluster.device.step", "-",
            "what operators reach in a training step; of the rest, peak and bandwidth tell"),
#define AS_FLOPS(name, text) FLOPS(STEP "." #name, C(FIELD.name), "-", "1 TFLOP/s", text),
#define AS_TOKENS(name, text) REAL(STEP "." #name, C(FIELD.name), 0, 1e6, "0", "500", text),
#define AS_BYTES(name, text) RATE(STEP "." #name, C(FIELD.name), "-", "20 GB/s", text),
#define STEP "cluster.device.step.bf16"
#define FIELD device.step_bf16
    SECTION(STEP, "-", "in bf16 or fp16"),
    ZINF_STEP_RATES(AS_FLOPS, AS_TOKENS, AS_BYTES)
#undef STEP
#undef FIELD
#define STEP "cluster.device.step.fp32"
#define FIELD device.step_f32
    SECTION(STEP, "-", "in fp32"),
    ZINF_STEP_RATES(AS_FLOPS, AS_TOKENS, AS_BYTES)
    SECTION("cluster.host", NULL, "the host side of one node"),
    BYTES("cluster.host.memory", C(host.memory_bytes), 1 << 20, 0x1p60, NULL, "1.5 TiB",
          "memory of one node"),
    BYTES("cluster.host.reserve", C(host.reserve_bytes), 0, 0x1p60, "0", "8 GiB",
          "part of it that a plan leaves to the system"),
    INTEGER("cluster.host.cores", C(host.cores), 1, 65536, NULL, "48", "physical cores of a node"),
    RATE("cluster.host.bandwidth", C(host.bandwidth), NULL, "100 GB/s",
         "of the host's memory, all cores together"),
    QUANTITY("cluster.host.adam", ZINF_UNIT_PARAMS_PER_S, C(host.adam), 1e3, 1e15,
             "= host.bandwidth / 28 B", "2e9 params/s", "Adam in place in fp32, all cores"),
    RATE("cluster.host.sum_of_squares", C(host.sum_of_squares), "-", "20 GB/s",
         "of a gradient, all cores; not given: bandwidth"),
    RATE("cluster.host.accumulate", C(host.accumulate), "-", "40 GB/s",
         "of a gradient into a sum, bytes read and written, all cores; not given: bandwidth"),

    SECTION("cluster.nvme", "-", "storage of one node; absent: none"),
    {"cluster.nvme.paths", ZINF_SPEC_PATHS, NONE, C(nvme.paths), 1, ZINF_PATH_BYTES - 1, NULL,
     "[/local_nvme]", NULL, "directories, one a drive"},
    BYTES("cluster.nvme.capacity", C(nvme.capacity_bytes), 1 << 20, 0x1p60, NULL, "28 TB",
          "of one node, all paths together"),
    RATE("cluster.nvme.read", C(nvme.read), NULL, "25.6 GB/s", "of one node"),
    RATE("cluster.nvme.write", C(nvme.write), NULL, "25.6 GB/s", "of one node"),
    LATENCY("cluster.nvme.latency", C(nvme.latency), "100 us", "100 us", "of one request"),
    BYTES("cluster.nvme.block", C(nvme.block_bytes), ZINF_PAGE, 1 << 30, "1 MiB", "1 MiB",
          "bytes of one request, a multiple of 4 KiB"),
    {"cluster.nvme.depth", ZINF_SPEC_INTEGER32, NONE, C(nvme.depth), 1, 4096, "32", "32", NULL,
     "requests in flight"},
    BOOL("cluster.nvme.overlap", C(nvme.overlap), "true",
         "reads and writes do not slow each other down"),
    RATE("cluster.nvme.core", C(nvme.core), "-", "4 GB/s", "that one core of a CPU that also "
         "computes can move, checksums made and compared; not given: any"),
    SECTION("cluster.links", "-", "what joins the parts"),
    SECTION("cluster.links.host_device", "-", "host and device; needed unless unified"),
    RATE("cluster.links.host_device.per_device", C(links.host_device_per_device), NULL, "12 GB/s",
         "one device alone, each direction"),
    RATE("cluster.links.host_device.per_node", C(links.host_device_per_node),
         "= per_device * devices_per_node", "48 GB/s", "all devices of a node together"),
    LATENCY("cluster.links.host_device.latency", C(links.host_device_latency), "10 us", "10 us",
            "of one transfer"),
    SECTION("cluster.links.intra_node", "-",
            "between the devices of a node; needed for more than one device"),
    RATE("cluster.links.intra_node.per_device", C(links.intra_node_per_device), NULL, "150 GB/s",
         "one device, each direction"),
    LATENCY("cluster.links.intra_node.latency", C(links.intra_node_latency), "5 us", "5 us",
            "of one hop"),
    SECTION("cluster.links.inter_node", "-", "between nodes; needed for more than one node"),
    RATE("cluster.links.inter_node.per_node", C(links.inter_node_per_node), NULL, "100 GB/s",
         "one node, each direction"),
    LATENCY("cluster.links.inter_node.latency", C(links.inter_node_latency), "10 us", "10 us",
            "of one hop"),
    {"cluster.source", ZINF_SPEC_SOURCE, NONE, 0, 1, 1000, "-", "{default: data sheet}", NULL,
     "where values come from: key path or \"default\" to text"},
};
enum { N_KEYS = sizeof keys / sizeof *keys };
_Static_assert((int)N_KEYS <= (int)ZINF_SPEC_MAX_KEYS, "zinf_spec_file has a mark for every key");

const zinf_spec_key *zinf_spec_key_at(unsigned index)
{
    return index < N_KEYS ? &keys[index] : NULL;
}

uint32_t zinf_spec_key_find(const char *path)
{
    for (uint32_t i = 0; i < N_KEYS; i++)
        if (!strcmp(keys[i].path, path))
            return i;
    return ZINF_NONE;
}

const char *zinf_spec_key_word(const char *path)
{
    const char *dot = strrchr(path, '.');

    return dot ? dot + 1 : path;
}

bool zinf_spec_key_in(const char *path, const char *section, bool in_cluster)
{
    size_t n = strlen(section);

    if (!n)
        return !strchr(path, '.') && in_cluster == !strcmp(path, "cluster");
    return !strncmp(path, section, n) && path[n] == '.' && !strchr(path + n + 1, '.');
}

static void print_type(FILE *out, const zinf_spec_key *key)
{
    char min[40], max[40];

    switch (key->type) {
    case ZINF_SPEC_CHOICE:
    case ZINF_SPEC_DTYPE:
        fprintf(out, "%s", key->choices);
        return;
    case ZINF_SPEC_BOOL:
        fprintf(out, "true|false");
        return;
    case ZINF_SPEC_STRING:
        fprintf(out, "text");
        return;
    case ZINF_SPEC_PATHS:
        fprintf(out, "list of up to %d directories", ZINF_MAX_PATHS);
        return;
    case ZINF_SPEC_SOURCE:
        fprintf(out, "mapping");
        return;
    case ZINF_SPEC_BETAS:
        fprintf(out, "two numbers, 0 to %g", key->max);
        return;
    default:
        fprintf(out, "%s, %s to %s", key->type == ZINF_SPEC_REAL ? "number" :
                key->unit == NONE ? "integer" : "number with unit",
                zinf_value_format(key->min, key->unit, min, sizeof min),
                zinf_value_format(key->max, key->unit, max, sizeof max));
    }
}

void zinf_spec_print_keys(FILE *out)
{
    for (uint32_t i = 0; i < N_KEYS; i++) {
        const zinf_spec_key *key = &keys[i];
        const char *fallback = key->fallback;

        if (key->type == ZINF_SPEC_SECTION) {
            fprintf(out, "%s%s: %s\n", i ? "\n" : "", key->path, key->help);
            continue;
        }
        fprintf(out, "  %s\n      %s (", key->path, key->help);
        print_type(out, key);
        if (!fallback)
            fprintf(out, "; required");
        else if (strcmp(fallback, "-"))
            fprintf(out, "; default %s", *fallback == '=' ? fallback + 2 : fallback);
        fprintf(out, ")\n");
    }
}
