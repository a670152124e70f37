/* planner/estimate.c - see estimate.h. Sizes in bytes and elements as doubles: only ratios
 * matter here.
 */
#include "planner/estimate.h"

#include <math.h>

#include "kernels/kernels.h"
#include "planner/cost.h"
#include "planner/graph.h"
#include "planner/lower.h"
#include "planner/ranks.h"

/* Sizes that both halves need. */
typedef struct shape {
    double n, c, f, fc, qkv, att, layers, vocab, act; /* fc: rows of FC; act: bytes of one */
    double batch, passes;                         /* micro-batches per step */
    double block_params, params;                  /* elements */
    double largest_tile, vocab_tile;              /* elements of one unit */
    double block_act;                             /* bytes of a block's activations */
    double groups;                                /* checkpoints per micro-batch */
    bool vertical;
} shape;

static shape measure(const zinf_model *m, const zinf_decisions *d)
{
    shape s = {.c = (double)m->hidden, .f = (double)m->ffn, .layers = (double)m->layers,
               .vocab = (double)m->vocab, .act = (double)zinf_dtype_bytes(m->precision),
               .batch = d->micro_batch, .passes = d->accumulation};

    s.vertical = d->order == ZINF_VERTICAL && d->accumulation > 1;
    s.n = s.batch * (double)m->sequence;
    s.qkv = (double)zinf_linear_rows(m, ZINF_LINEAR_QKV);
    s.att = (double)zinf_linear_cols(m, ZINF_LINEAR_OUT);
    s.fc = (double)zinf_linear_rows(m, ZINF_LINEAR_FC);
    for (int l = 0; l < ZINF_N_LINEARS; l++) {
        double rows = (double)zinf_linear_rows(m, l), cols = (double)zinf_linear_cols(m, l);
        double tile = (double)((uint64_t)(rows + d->tiles[l] - 1) / d->tiles[l]) * cols;
        if (l == ZINF_LINEAR_VOCAB) {
            s.vocab_tile = tile;
        } else {
            s.block_params += rows * cols;
            s.largest_tile = fmax(s.largest_tile, tile);
        }
    }
    for (int i = 0; i < ZINF_N_SMALL; i++)
        s.block_params += (double)zinf_small_rows(m, i);
    s.params = (double)zinf_model_params(m);
    s.block_act = s.n * s.act * (4 * s.c + s.qkv + s.att + s.fc + s.f) + s.n * 16 +
                  s.batch * (double)(m->heads * m->sequence) * 4;
    s.groups = d->checkpoint_interval
                   ? (double)((m->layers + d->checkpoint_interval - 1) / d->checkpoint_interval)
                   : 0;
    return s;
}

enum { MOST_UNITS = 1024 };

/* Elements of the units in order: vocabulary, positions, two blocks, final norm. A run of equal
 * tiles is cut to a window's length: no window sees more of it. */
static uint32_t unit_sizes(const zinf_model *m, const zinf_decisions *d, const shape *s,
                           uint32_t window, double sizes[MOST_UNITS])
{
    uint32_t n = 0;

    for (uint32_t t = 0; t < d->tiles[ZINF_LINEAR_VOCAB] && t < window; t++)
        sizes[n++] = s->vocab_tile;
    sizes[n++] = (double)m->context * s->c;
    for (int block = 0; block < 2; block++) {
        sizes[n++] = 9 * s->c + s->f; /* close to the small tensors of a block */
        for (int l = 0; l < ZINF_LINEAR_VOCAB; l++) {
            double elements = (double)zinf_linear_rows(m, l) * (double)zinf_linear_cols(m, l);
            for (uint32_t t = 0; t < d->tiles[l] && t < window; t++)
                sizes[n++] = elements / d->tiles[l];
        }
    }
    sizes[n++] = 2 * s->c;
    return n;
}

/* The largest sum of `window` units in a row. */
static double window_sum(const double *sizes, uint32_t n, uint32_t window)
{
    double sum = 0, most = 0;

    for (uint32_t i = 0; i < n; i++) {
        sum += sizes[i] - (i >= window ? sizes[i - window] : 0);
        most = fmax(most, sum);
    }
    return most;
}

static void memory(const zinf_model *m, const zinf_cluster *cluster, const zinf_decisions *d,
                   const shape *s, double bytes[ZINF_N_TIERS])
{
    const int host = cluster->unified ? ZINF_TIER_DEVICE : ZINF_TIER_HOST;
    const uint32_t *tier = d->tier;
    const bool param_stored = tier[ZINF_CLASS_PARAM] != ZINF_TIER_DEVICE;
    const bool param_away = tier[ZINF_CLASS_PARAM] != ZINF_TIER_DEVICE || d->ranks > 1;
    const bool grad_away = tier[ZINF_CLASS_GRAD] != ZINF_TIER_DEVICE || d->ranks > 1;
    const bool owner = d->partitioning == ZINF_OWNER;
    const double shard = owner ? 1 : 1.0 / d->ranks; /* of a unit, where a rank has any of it */
    const double largest = owner ? fmax(s->vocab_tile, s->largest_tile) / s->params : 0;
    const double held = fmax(1.0 / d->ranks, largest); /* of all units */
    const double upload = d->prefetch_upload;
    /* whole tiles that are there at once, beside the one in use */
    const double window = d->ranks > 1     ? d->prefetch_gather
                          : cluster->unified ? fmax(d->prefetch_read, upload)
                                             : upload;
    const double chunk = (double)zinf_classifier_chunk(m, cluster, d, (uint64_t)s->n);
    const double widest = fmax(s->largest_tile, s->vocab_tile) * shard; /* a rank's part of it */
    double residual = s->n * s->c * s->act;

    bytes[tier[ZINF_CLASS_PARAM]] += s->params * s->act * held;
    bytes[tier[ZINF_CLASS_GRAD]] += s->params * 4 * held;
    bytes[tier[ZINF_CLASS_OPTIMIZER]] += s->params * 12 * held;
    bytes[tier[ZINF_CLASS_CHECKPOINT]] += s->vertical ? ((s->groups + 1) * s->passes + 1) * residual
                                                      : s->groups * residual;

    double kept = (d->checkpoint_interval ? d->checkpoint_interval : s->layers) * s->block_act;
    double wide = d->tiles[ZINF_LINEAR_PROJ] > 1 ? 4 : s->act;
    double tile_bytes = param_away ? s->largest_tile * s->act * (1 + window) : 0;
    double grad_bytes = grad_away ? s->largest_tile * 4 * (cluster->unified ? 2 : 1.5) : 0;
    double head_params = s->vocab_tile * (d->tiles[ZINF_LINEAR_VOCAB] > 1 ? 1 + window : 1);
    double head_grad = s->vocab_tile * 4 * grad_away, embedding_grad = 0;
    if (s->vertical) { /* what a group has stays for all micro-batches */
        const double group = d->checkpoint_interval * s->block_params;
        tile_bytes = param_away ? (group + s->largest_tile * window) * s->act : 0;
        grad_bytes = 4 * (grad_away * group + s->largest_tile);
        head_params = s->vocab * s->c;
        embedding_grad = 4 * grad_away * s->vocab * s->c;
        head_grad = embedding_grad + 4 * s->vocab_tile;
        if (m->tied_embeddings) { /* the head's are kept for each, and back for the embedding's */
            bytes[tier[ZINF_CLASS_GRAD]] += 4 * (s->passes - !grad_away) * s->vocab * s->c;
            embedding_grad += 4 * s->vocab_tile * (grad_away ? 2 : 1);
            head_grad = 4 * s->vocab_tile * grad_away;
        }
    }
    if (d->ranks > 1 && (!owner || param_stored)) /* the shards in flight */
        tile_bytes += s->largest_tile * s->act * shard * (1 + fmax(d->prefetch_read, upload));
    const uint64_t tokens = (uint64_t)s->n;
    double scratch = (double)zinf_attention_scratch_bytes(m->sequence, m->head_dim, d->n_threads);
    for (int l = 0; l < ZINF_LINEAR_VOCAB; l++)
        scratch = fmax(scratch, (double)zinf_gemm_scratch_bytes(
                                    tokens, zinf_linear_rows(m, l) / d->tiles[l],
                                    zinf_linear_cols(m, l), d->n_threads));
    const double vocab_scratch = (double)zinf_gemm_scratch_bytes(
        (uint64_t)chunk, (uint64_t)(s->vocab_tile / s->c), m->hidden, d->n_threads);
    double backward = kept + s->n * (s->f * wide + s->fc * s->act) + 2 * residual + tile_bytes +
                      grad_bytes + scratch + embedding_grad;
    double classifier = (d->checkpoint_interval ? 0 : kept) + 3 * residual +
                        chunk * (s->vocab_tile / s->c) * (4 + s->act) + vocab_scratch +
                        param_away * head_params * s->act + head_grad;
    double sizes[MOST_UNITS];
    const uint32_t ahead = 1 + (d->prefetch_read < 64 ? d->prefetch_read : 64);
    const uint32_t n_units = unit_sizes(m, d, s, ahead, sizes);
    const double in_window = window_sum(sizes, n_units, ahead) * shard;
    /* the update works where the chunks live, or on the host if that is nvme */
    const uint32_t home = tier[ZINF_CLASS_OPTIMIZER];
    const int at = home == ZINF_TIER_DEVICE ? ZINF_TIER_DEVICE : host;
    double update[ZINF_N_TIERS] = {0};
    update[at] = in_window * ((home == ZINF_TIER_NVME ? 12 : 0) +
                              (tier[ZINF_CLASS_GRAD] != (uint32_t)at ? 4 : 0)) +
                 (tier[ZINF_CLASS_PARAM] != (uint32_t)at ? widest * s->act : 0);
    const bool early = d->optimizer_time != ZINF_AFTER_BACKWARD; /* both at once */
    const double on_device = fmax(backward, classifier) + (early ? update[ZINF_TIER_DEVICE] : 0);
    if (host != ZINF_TIER_DEVICE) {
        double staging = early ? update[ZINF_TIER_HOST] : 0;
        if (tier[ZINF_CLASS_PARAM] == ZINF_TIER_NVME)
            staging += in_window * s->act;
        if (grad_away)
            staging += widest * 4 * (tier[ZINF_CLASS_GRAD] == ZINF_TIER_NVME ? 2 : 1);
        if (tier[ZINF_CLASS_CHECKPOINT] == ZINF_TIER_NVME)
            staging += 2 * residual;
        /* init and load hold one chunk on the host, save two */
        double filled = home == ZINF_TIER_HOST ? 0 : widest * 12;
        double saved = home == ZINF_TIER_HOST ? 0 : window_sum(sizes, n_units, 2) * 12 * shard;
        if (tier[ZINF_CLASS_PARAM] != ZINF_TIER_HOST)
            filled += widest * s->act;
        bytes[ZINF_TIER_HOST] += fmax(fmax(staging, update[ZINF_TIER_HOST]), fmax(filled, saved));
    }
    bytes[ZINF_TIER_DEVICE] += fmax(on_device, update[ZINF_TIER_DEVICE]);
}

static double time_s(const zinf_model *m, const zinf_cluster *cluster, const zinf_decisions *d,
                     const shape *s)
{
    const uint32_t *tier = d->tier;
    const bool again = d->checkpoint_interval != 0; /* recomputed */
    const bool tiled_vocab = d->tiles[ZINF_LINEAR_VOCAB] > 1;
    const double weights = s->layers * s->block_params, classifier = s->vocab * s->c;
    const double skipped = s->groups * s->c * s->f; /* last linears not recomputed */
    double start = 8e-6;

    /* one micro-batch, compute */
    double ops = 0;
    for (int l = 0; l < ZINF_LINEAR_VOCAB; l++)
        ops += s->layers * d->tiles[l] * (again ? 4 : 3);
    ops += s->layers * 14;
    double flops = 2 * s->n * (weights * (again ? 4 : 3) - (again ? skipped : 0));
    double logits = 2 * s->n * classifier * (tiled_vocab ? 4 : 3);
    double attention = s->layers * s->n * (double)m->sequence * s->att * (again ? 9 : 7);
    double moved = s->n * s->act * s->layers * (s->c * (again ? 24 : 18) +
                                                (s->f + s->fc) / 2 * (again ? 9 : 7)) +
                   s->n * s->vocab * (tiled_vocab ? 30 : 22);
    double compute = flops / zinf_linear_rate(cluster, m->precision) +
                     logits / zinf_classifier_rate(cluster, m->precision) +
                     attention / zinf_attention_rate(cluster, m->precision,
                                                     (double)m->sequence) +
                     moved / cluster->device.bandwidth + ops * start;

    /* transfers of one micro-batch, bytes */
    double fetched = s->act * (weights * (again ? 3 : 2) - (again ? skipped : 0) +
                               classifier * (tiled_vocab ? 3 : 2) +
                               (zinf_family_of(m)->learned_positions ? (double)m->context * s->c
                                                                     : 0));
    const double again_grads = m->tied_embeddings ? classifier : 0; /* tied: written twice */
    double grads = 4 * (s->params + again_grads);
    double up = 0, down = 0, read = 0, write = 0, update = 0, device = 0;
    double stored = s->groups * s->n * s->c * s->act, restored = stored;
    double kept_grads = 0; /* vertical, tied: the head's, until the embedding's is added */
    if (s->vertical) { /* a micro-batch's share of what moves once; sums are on the device */
        fetched = s->act * 2 * (weights + classifier) / s->passes;
        grads = 4 * s->params / s->passes;
        kept_grads = m->tied_embeddings ? 4 * classifier : 0;
        device = 12 * (s->params * (s->passes - 1) / s->passes + kept_grads / 4) /
                 cluster->device.bandwidth;
        stored = 2 * (s->groups + 1) * s->n * s->c * s->act;
        restored = (3 * s->groups + 2) * s->n * s->c * s->act;
    }
    /* all of each tile comes from the ranks and goes to them; storage and host see a shard */
    const double shard = 1.0 / d->ranks;
    const bool owner = d->partitioning == ZINF_OWNER;
    const double exchanged = owner ? zinf_root_s(cluster, fetched + grads)
                                   : zinf_collective_s(cluster, fetched + grads);
    const double brought = owner ? fetched : fetched * shard; /* by one rank, or by all at once */
    const double devices = owner ? (double)cluster->devices_per_node : 1;
    grads *= shard;
    if (tier[ZINF_CLASS_PARAM] != ZINF_TIER_DEVICE)
        up += cluster->unified ? 0 : brought * zinf_link_rate(cluster, false) /
                                         zinf_link_rate(cluster, owner);
    if (tier[ZINF_CLASS_PARAM] == ZINF_TIER_NVME)
        read += brought / devices;
    double later = (s->passes - 1) / s->passes; /* share of micro-batches that accumulate */
    double again_share = 1 - later;             /* and of those that add a second gradient */
    double norms = 4 * s->params * shard;
    if (s->vertical) {
        norms /= s->passes;
        later = again_share = 0;
    }
    if (tier[ZINF_CLASS_GRAD] == ZINF_TIER_DEVICE) {
        if (cluster->unified)
            update += norms / cluster->host.bandwidth;
        else
            device += norms / cluster->device.bandwidth;
    } else {
        down += grads + kept_grads;
        up += kept_grads;
        update += (norms + 3 * (grads * later + again_share * 4 * again_grads * shard)) /
                  cluster->host.bandwidth;
    }
    if (tier[ZINF_CLASS_GRAD] == ZINF_TIER_NVME) {
        read += grads * later + again_share * 4 * again_grads * shard + kept_grads;
        write += grads + kept_grads;
    }
    if (tier[ZINF_CLASS_CHECKPOINT] != ZINF_TIER_DEVICE) {
        up += restored;
        down += stored;
    }
    if (tier[ZINF_CLASS_CHECKPOINT] == ZINF_TIER_NVME) {
        read += restored;
        write += stored;
    }
    const double link = cluster->unified ? 1 : zinf_link_rate(cluster, false);
    up = cluster->unified ? 0 : up / link;
    down = cluster->unified ? 0 : down / link;
    if (cluster->nvme.present) {
        read /= cluster->nvme.read;
        write /= cluster->nvme.write;
    }
    compute += device;
    double storage = cluster->nvme.overlap ? fmax(read, write) : read + write;
    bool shared = cluster->device.kind[1] == 'p'; /* cpu: compute and copies share cores */
    const bool waits = d->collectives == ZINF_SYNCHRONOUS;
    if (waits)
        compute += exchanged;
    double busy = shared ? compute + update + up + down + (waits ? 0 : exchanged)
                         : fmax(fmax(fmax(compute, update), fmax(up, down)), exchanged);
    /* a short prefetch exposes part of each transfer: half a stage in distance + 1 */
    double exposed = (storage + (shared ? 0 : up)) /
                     (double)(2 * (1 + d->prefetch_read) * (1 + d->prefetch_upload));
    const double hidden = fmax(busy, storage); /* a pass if everything hides that can */
    double pass = hidden + (busy < storage ? 0 : exposed < busy ? exposed : busy) * 0.1;
    const double pass_storage = storage;

    /* the update: a pipeline over units */
    double n = s->params * shard, adam, r = 0, w = 0, u = 0, dn = 0;
    bool on_device = tier[ZINF_CLASS_OPTIMIZER] == ZINF_TIER_DEVICE && !cluster->unified;
    adam = on_device ? n * 30 / cluster->device.bandwidth : n / cluster->host.adam;
    if (tier[ZINF_CLASS_OPTIMIZER] == ZINF_TIER_NVME) {
        r += 12 * n;
        w += 12 * n;
    }
    const bool early = d->optimizer_time == ZINF_IN_BACKWARD;
    const bool late = d->optimizer_time == ZINF_IN_FORWARD;
    if (tier[ZINF_CLASS_GRAD] == ZINF_TIER_NVME) { /* early: not written by the last pass either */
        r += early ? 0 : 4 * n;
        w -= early ? 4 * n : 0;
    }
    if (tier[ZINF_CLASS_PARAM] == ZINF_TIER_NVME) {
        w += s->act * n;
        r -= late ? s->act * n : 0; /* used where it was updated, the first time */
    }
    if (!cluster->unified) {
        if (on_device && tier[ZINF_CLASS_GRAD] != ZINF_TIER_DEVICE)
            u += 4 * n;
        if (on_device && tier[ZINF_CLASS_PARAM] != ZINF_TIER_DEVICE)
            dn += s->act * n;
        if (!on_device && tier[ZINF_CLASS_GRAD] == ZINF_TIER_DEVICE)
            dn += 4 * n;
        if (!on_device && tier[ZINF_CLASS_PARAM] == ZINF_TIER_DEVICE)
            u += s->act * n;
        u /= link;
        dn /= link;
    }
    if (cluster->nvme.present) {
        r /= cluster->nvme.read;
        w /= cluster->nvme.write;
    }
    storage = cluster->nvme.overlap ? fmax(r, w) : r + w;
    double work = shared ? adam + u + dn : fmax(adam, fmax(u, dn));
    if (early || late) /* beside the last pass, or the first */
        return s->passes * pass - hidden +
               fmax(shared ? busy + work : fmax(busy, work), pass_storage + storage);
    double tail = d->prefetch_read ? fmax(storage, work) : r + w + adam + u + dn;
    return s->passes * pass + tail;
}

zinf_estimate zinf_estimate_step(const zinf_model *model, const zinf_cluster *cluster,
                                 const zinf_decisions *decisions)
{
    const shape s = measure(model, decisions);
    zinf_estimate e = {0};

    memory(model, cluster, decisions, &s, e.bytes);
    e.step_s = time_s(model, cluster, decisions, &s);
    return e;
}
