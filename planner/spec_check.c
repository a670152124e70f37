/* planner/spec_check.c - defaults that depend on other keys, and the rules between keys.
 *
 * Each rule is one sentence at the key that breaks it, with what to write instead.
 */
#include "planner/spec_internal.h"

#include <inttypes.h>
#include <string.h>

#include "planner/family.h"

enum { MAX_FACTORS = 5 };

typedef struct product {
    const char *what, *path; /* path: where to point */
    uint64_t factors[MAX_FACTORS]; /* ends at a 0 */
} product;

/* Sizes derived from several keys stay below 2^62, so that sums of a few stay within 64 bits. */
static zinf_status check_products(const zinf_spec_file *file, const product *products, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        uint64_t value = 1;
        bool over = false;
        for (unsigned j = 0; j < MAX_FACTORS && products[i].factors[j]; j++)
            over |= __builtin_mul_overflow(value, products[i].factors[j], &value);
        if (over || value >= 1ull << 62)
            return zinf_spec_fail(file, zinf_spec_at(file, products[i].path),
                                  "%s would be 2^62 or more; choose smaller values",
                                  products[i].what);
    }
    return ZINF_OK;
}

/* ---- model ---- */

static zinf_status derive_shape(const zinf_spec_file *file, zinf_model *m)
{
    if (!zinf_spec_given(file, "model.kv_heads"))
        m->kv_heads = m->heads;
    if (!zinf_spec_given(file, "model.head_dim")) {
        if (m->hidden % m->heads)
            return zinf_spec_fail(file, zinf_spec_at(file, "model.heads"),
                                  "model.hidden (%" PRIu64 ") is not a multiple of model.heads (%"
                                  PRIu64 "); choose heads that divide it, or give head_dim",
                                  m->hidden, m->heads);
        m->head_dim = m->hidden / m->heads;
    }
    if (!zinf_spec_given(file, "model.ffn"))
        m->ffn = 4 * m->hidden;
    return ZINF_OK;
}

/* gpt2 has one shape only: what would change it is refused by name. */
static zinf_status check_plain(const zinf_spec_file *file, const zinf_model *m)
{
    static const char *const others[] = {"model.norm_eps", "model.qkv_bias", "model.rope_theta",
                                         "model.rope_scaling"};

    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (zinf_spec_given(file, others[i]))
            return zinf_spec_fail(file, zinf_spec_at(file, others[i]),
                                  "model.%s belongs to the family llama, %s has none; leave it "
                                  "out", zinf_spec_key_word(others[i]), m->family);
    if (m->kv_heads != m->heads)
        return zinf_spec_fail(file, zinf_spec_at(file, "model.kv_heads"),
                              "gpt2 has as many kv_heads as heads (%" PRIu64 "), not %" PRIu64
                              "; leave kv_heads out", m->heads, m->kv_heads);
    if (m->head_dim * m->heads != m->hidden) /* both at most 65536 */
        return zinf_spec_fail(file, zinf_spec_at(file, "model.head_dim"),
                              "gpt2 needs heads * head_dim = hidden, but %" PRIu64 " * %" PRIu64
                              " is not %" PRIu64 "; leave head_dim out", m->heads, m->head_dim,
                              m->hidden);
    if (!m->tied_embeddings)
        return zinf_spec_fail(file, zinf_spec_at(file, "model.tied_embeddings"),
                              "gpt2 ties the classifier to the token embedding; "
                              "tied_embeddings: false is not supported");
    return ZINF_OK;
}

static zinf_status check_rotary(const zinf_spec_file *file, const zinf_model *m)
{
    if (m->head_dim % 2)
        return zinf_spec_fail(file, zinf_spec_at(file, "model.head_dim"),
                              "rotary positions turn pairs: model.head_dim (%" PRIu64
                              ") must be even", m->head_dim);
    if (m->rope_scaling.factor > 0 &&
        !(m->rope_scaling.high_freq_factor > m->rope_scaling.low_freq_factor))
        return zinf_spec_fail(file, zinf_spec_at(file, "model.rope_scaling.high_freq_factor"),
                              "rope_scaling.high_freq_factor (%g) must exceed low_freq_factor "
                              "(%g)", m->rope_scaling.high_freq_factor,
                              m->rope_scaling.low_freq_factor);
    return ZINF_OK;
}

static zinf_status check_family(const zinf_spec_file *file, zinf_model *m)
{
    const zinf_family *family = zinf_family_of(m);

    if (!zinf_spec_given(file, "model.rope_scaling"))
        memset(&m->rope_scaling, 0, sizeof m->rope_scaling);
    if (m->heads % m->kv_heads)
        return zinf_spec_fail(file, zinf_spec_at(file, "model.kv_heads"),
                              "model.heads (%" PRIu64 ") is not a multiple of model.kv_heads (%"
                              PRIu64 ")", m->heads, m->kv_heads);
    if (family->grouped ? check_rotary(file, m) : check_plain(file, m))
        return file->err->status;
    if (family->learned_positions)
        m->rope_theta = 0;
    if (family->layernorm)
        m->norm_eps = 0;
    if (m->precision == ZINF_F16)
        return zinf_spec_fail(file, zinf_spec_at(file, "training.precision"),
                              "precision fp16 (with its loss scale) is not built yet; "
                              "write bf16 or fp32");
    return ZINF_OK;
}

static zinf_status check_training(const zinf_spec_file *file, const zinf_model *m)
{
    if (m->sequence > m->context)
        return zinf_spec_fail(file, zinf_spec_at(file, "training.sequence"),
                              "training.sequence (%" PRIu64 ") is longer than model.context (%"
                              PRIu64 "); shorten it or raise context", m->sequence, m->context);
    if (m->warmup > m->steps)
        return zinf_spec_fail(file, zinf_spec_at(file, "training.schedule.warmup"),
                              "schedule.warmup (%" PRIu64 ") exceeds schedule.steps (%" PRIu64
                              "); write at most %" PRIu64, m->warmup, m->steps, m->steps);
    if (!(m->min_lr <= m->lr))
        return zinf_spec_fail(file, zinf_spec_at(file, "training.schedule.min_lr"),
                              "schedule.min_lr (%g) exceeds optimizer.lr (%g); lower it", m->min_lr,
                              m->lr);
    return ZINF_OK;
}

static zinf_status check_model_sizes(const zinf_spec_file *file, const zinf_model *m)
{
    const product products[] = {
        /* 240 nl hd^2 bytes are Eq. 2; ffn and head_dim may differ from its 4 hd and hd / heads */
        {"the model's states (240 * layers * hidden^2 bytes)", "model.hidden",
         {240, m->layers, m->hidden, m->hidden}},
        {"the MLP's states (40 * layers * hidden * ffn bytes)", "model.ffn",
         {40, m->layers, m->hidden, m->ffn}},
        {"the embedding's states (20 * vocab * hidden bytes)", "model.vocab",
         {20, m->vocab, m->hidden}},
        {"the activations (16 * global_batch * sequence * layers * hidden bytes)",
         "training.global_batch", {16, m->global_batch, m->sequence, m->layers, m->hidden}},
        {"the MLP's activations (8 * global_batch * sequence * ffn bytes)",
         "training.global_batch", {8, m->global_batch, m->sequence, m->ffn}},
        {"the attention's activations (8 * global_batch * sequence * (heads + 2 kv_heads) * "
         "head_dim bytes)", "training.global_batch",
         {8, m->global_batch, m->sequence, m->heads + 2 * m->kv_heads, m->head_dim}},
        {"the attention's scores (4 * global_batch * heads * sequence^2 bytes)",
         "training.sequence", {4, m->global_batch, m->heads, m->sequence, m->sequence}},
        {"the logits (4 * global_batch * sequence * vocab bytes)", "training.global_batch",
         {4, m->global_batch, m->sequence, m->vocab}},
    };
    zinf_status status = check_products(file, products, sizeof products / sizeof *products);

    if (!status && zinf_model_params(m) >= (1ull << 62) / 20)
        return zinf_spec_fail(file, zinf_spec_at(file, "model.layers"),
                              "the model's states would be 2^62 bytes or more");
    return status;
}

zinf_status zinf_spec_finish_model(const zinf_spec_file *file, zinf_model *model)
{
    zinf_status status = derive_shape(file, model);

    if (!zinf_spec_given(file, "training.sequence"))
        model->sequence = model->context;
    if (!zinf_spec_given(file, "training.schedule.warmup"))
        model->warmup = model->steps / 10;
    if (!zinf_spec_given(file, "training.schedule.min_lr"))
        model->min_lr = model->lr / 10;
    if (!status)
        status = check_family(file, model);
    if (!status)
        status = check_training(file, model);
    if (!status)
        status = check_model_sizes(file, model);
    return status;
}

/* ---- cluster ---- */

static zinf_status derive_device(const zinf_spec_file *file, zinf_cluster *c)
{
    bool is_cpu = !strcmp(c->device.kind, "cpu");

    if (!zinf_spec_given(file, "cluster.unified"))
        c->unified = is_cpu;
    if (!zinf_spec_given(file, "cluster.device.name"))
        memcpy(c->device.name, c->device.kind, sizeof c->device.kind);
    if (!zinf_spec_given(file, "cluster.device.memory")) {
        if (!c->unified)
            return zinf_spec_fail(file, zinf_spec_at(file, "cluster.device.memory"),
                                  "the section \"cluster.device\" (line %u) lacks the key "
                                  "\"memory\", needed where device and host are not one memory, "
                                  "such as \"memory: 32 GiB\"",
                                  zinf_spec_at(file, "cluster.device.memory").line);
        c->device.memory_bytes = c->host.memory_bytes;
    }
    if (!zinf_spec_given(file, "cluster.device.bandwidth")) {
        if (!c->unified)
            return zinf_spec_fail(file, zinf_spec_at(file, "cluster.device.bandwidth"),
                                  "the section \"cluster.device\" (line %u) lacks the key "
                                  "\"bandwidth\", needed where device and host are not one "
                                  "memory, such as \"bandwidth: 900 GB/s\"",
                                  zinf_spec_at(file, "cluster.device.bandwidth").line);
        c->device.bandwidth = c->host.bandwidth;
    }
    if (c->device.peak_bf16 + c->device.peak_f16 + c->device.peak_f32 == 0)
        return zinf_spec_fail(file, zinf_spec_at(file, "cluster.device.peak"),
                              "device.peak names no precision; give at least one of bf16, fp16, "
                              "fp32, such as {bf16: 220 TFLOP/s}");
    return ZINF_OK;
}

static void derive_rest(const zinf_spec_file *file, zinf_cluster *c)
{
    enum { ADAM_BYTES = 28 }; /* fp32 in place: read p, g, m, v, write p, m, v (FACTS 8) */

    if (!zinf_spec_given(file, "cluster.host.adam"))
        c->host.adam = c->host.bandwidth / ADAM_BYTES;
    c->nvme.present = zinf_spec_given(file, "cluster.nvme");
    if (zinf_spec_given(file, "cluster.links.host_device") &&
        !zinf_spec_given(file, "cluster.links.host_device.per_node"))
        c->links.host_device_per_node =
            c->links.host_device_per_device * (double)c->devices_per_node;
}

static zinf_status need_link(const zinf_spec_file *file, const char *path, const char *why,
                             const char *example)
{
    zinf_spec_mark mark = zinf_spec_at(file, path);

    if (zinf_spec_given(file, path))
        return ZINF_OK;
    return zinf_spec_fail(file, mark, "the section \"%s\" is missing, needed because %s, such as "
                          "\"%s: %s\"", path, why, zinf_spec_key_word(path), example);
}

static zinf_status check_links(const zinf_spec_file *file, const zinf_cluster *c)
{
    zinf_status status = ZINF_OK;

    if (!c->unified)
        status = need_link(file, "cluster.links.host_device",
                           "device and host are two memories (unified: false)",
                           "{per_device: 12 GB/s}");
    if (!status && c->devices_per_node > 1)
        status = need_link(file, "cluster.links.intra_node", "a node has more than one device",
                           "{per_device: 150 GB/s}");
    if (!status && c->nodes > 1)
        status = need_link(file, "cluster.links.inter_node", "there is more than one node",
                           "{per_node: 100 GB/s}");
    if (!status && zinf_spec_given(file, "cluster.links.host_device.per_node") &&
        c->links.host_device_per_node < c->links.host_device_per_device)
        return zinf_spec_fail(file, zinf_spec_at(file, "cluster.links.host_device.per_node"),
                              "links.host_device.per_node (%g GB/s) is less than per_device "
                              "(%g GB/s); per_node is what all devices reach together",
                              c->links.host_device_per_node / 1e9,
                              c->links.host_device_per_device / 1e9);
    return status;
}

static zinf_status check_sizes(const zinf_spec_file *file, const zinf_cluster *c)
{
    const product products[] = {
        {"the memory of all devices", "cluster.nodes",
         {c->nodes, c->devices_per_node, c->device.memory_bytes}},
        {"the memory of all hosts", "cluster.nodes", {c->nodes, c->host.memory_bytes}},
        {"the storage of all nodes", "cluster.nodes", {c->nodes, c->nvme.capacity_bytes}},
    };

    if (c->device.reserve_bytes >= c->device.memory_bytes)
        return zinf_spec_fail(file, zinf_spec_at(file, "cluster.device.reserve"),
                              "device.reserve (%" PRIu64 " bytes) leaves nothing of device.memory "
                              "(%" PRIu64 " bytes)", c->device.reserve_bytes,
                              c->device.memory_bytes);
    if (c->host.reserve_bytes >= c->host.memory_bytes)
        return zinf_spec_fail(file, zinf_spec_at(file, "cluster.host.reserve"),
                              "host.reserve (%" PRIu64 " bytes) leaves nothing of host.memory "
                              "(%" PRIu64 " bytes)", c->host.reserve_bytes, c->host.memory_bytes);
    if (c->nvme.block_bytes % ZINF_PAGE)
        return zinf_spec_fail(file, zinf_spec_at(file, "cluster.nvme.block"),
                              "nvme.block (%" PRIu64 " bytes) is not a multiple of 4 KiB, which "
                              "direct I/O needs; write %" PRIu64 " KiB", c->nvme.block_bytes,
                              (c->nvme.block_bytes / ZINF_PAGE + 1) * (ZINF_PAGE / 1024));
    return check_products(file, products, sizeof products / sizeof *products);
}

zinf_status zinf_spec_finish_cluster(const zinf_spec_file *file, zinf_cluster *cluster)
{
    zinf_status status = derive_device(file, cluster);

    if (status)
        return status;
    derive_rest(file, cluster);
    status = check_links(file, cluster);
    return status ? status : check_sizes(file, cluster);
}
