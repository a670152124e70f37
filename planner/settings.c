/* planner/settings.c - see settings.h. */
#include "planner/settings.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "planner/graph.h"
#include "planner/ranks.h"
#include "planner/spec_internal.h"

typedef enum setting_type { TIER, NUMBER, INTERVAL, ALL_TILES, WORD } setting_type;

typedef struct setting {
    const char *key;
    setting_type type;
    size_t offset;
    int64_t min, max;
    const char *help;
} setting;

/* WORD: min says which of these; the n-th word stands for n. */
static const char *const words_of_all[][4] = {
    {"horizontal", "vertical"}, {"bandwidth", "owner"}, {"overlapped", "synchronous"},
    {"after", "backward", "forward"}, {"least", "faster"}};
static_assert(ZINF_VERTICAL == 1 && ZINF_OWNER == 1 && ZINF_SYNCHRONOUS == 1 &&
              ZINF_IN_BACKWARD == 1 && ZINF_IN_FORWARD == 2 && ZINF_FASTER == 1, "their order");

#define AT(field) offsetof(zinf_settings, field)
static const setting table[] = {
    {"tier.param", TIER, AT(tier[ZINF_CLASS_PARAM]), 0, 0, "where parameters live"},
    {"tier.grad", TIER, AT(tier[ZINF_CLASS_GRAD]), 0, 0, "where gradients are accumulated"},
    {"tier.optimizer", TIER, AT(tier[ZINF_CLASS_OPTIMIZER]), 0, 0,
     "where fp32 masters and moments live"},
    {"tier.checkpoint", TIER, AT(tier[ZINF_CLASS_CHECKPOINT]), 0, 0,
     "where activation checkpoints live"},
    {"micro_batch", NUMBER, AT(micro_batch), 1, 1 << 20,
     "sequences per pass; accumulation is global_batch / (micro_batch * ranks)"},
    {"tiles", ALL_TILES, 0, 1, 4096, "tiles of every linear and of the vocabulary"},
    {"tiles.qkv", NUMBER, AT(tiles[ZINF_LINEAR_QKV]), 1, 4096, "tiles of the QKV linear"},
    {"tiles.out", NUMBER, AT(tiles[ZINF_LINEAR_OUT]), 1, 4096, "tiles of attention's output"},
    {"tiles.fc", NUMBER, AT(tiles[ZINF_LINEAR_FC]), 1, 4096, "tiles of the MLP's first linear"},
    {"tiles.proj", NUMBER, AT(tiles[ZINF_LINEAR_PROJ]), 1, 4096,
     "tiles of the MLP's second linear"},
    {"tiles.vocab", NUMBER, AT(tiles[ZINF_LINEAR_VOCAB]), 1, 4096,
     "tiles of the embedding and classifier"},
    {"checkpoint_interval", INTERVAL, AT(checkpoint_interval), 1, 1 << 20,
     "blocks between activation checkpoints; none: keep all activations"},
    {"prefetch.read", NUMBER, AT(prefetch_read), 0, 64, "operators that storage reads run ahead"},
    {"prefetch.upload", NUMBER, AT(prefetch_upload), 0, 64, "operators that uploads run ahead"},
    {"prefetch.gather", NUMBER, AT(prefetch_gather), 0, 64,
     "operators that allgathers run ahead; 0: compute waits for each"},
    {"order", WORD, AT(order), 0, 0,
     "all layers of a micro-batch first, or all micro-batches of a layer"},
    {"partitioning", WORD, AT(partitioning), 1, 0,
     "whether each rank has a shard of every unit, or all of some"},
    {"collectives", WORD, AT(collectives), 2, 0,
     "whether compute goes on beside them; waiting for each is never chosen unasked"},
    {"optimizer_time", WORD, AT(optimizer_time), 3, 0,
     "when units are updated: after backward, in the next forward, or in backward (needs clip 0; "
     "never chosen unasked)"},
    {"arena", WORD, AT(arena), 4, 0,
     "what all this takes of the device, or more of it where that is faster"},
    {"io.block", NUMBER, AT(io_block_bytes), 4096, 1 << 30,
     "bytes of one storage request, a multiple of 4096"},
    {"io.depth", NUMBER, AT(io_depth), 1, 1024, "storage requests in flight"},
    {"threads", NUMBER, AT(n_threads), 1, 1024, "threads of the CPU kernels"},
};
enum { N_SETTINGS = sizeof table / sizeof *table };

void zinf_settings_init(zinf_settings *settings)
{
    memset(settings, 0xff, sizeof *settings); /* ZINF_FREE is -1 in every field */
}

/* The nearest known key; NULL if none shares half of its letters. */
static const char *nearest(const char *key)
{
    const char *best = NULL;
    size_t distance = strlen(key) / 2 + 1;

    for (int i = 0; i < N_SETTINGS; i++) {
        size_t d = zinf_edit_distance(key, table[i].key);
        if (d < distance) {
            distance = d;
            best = table[i].key;
        }
    }
    return best;
}

static bool parse_number(const char *text, int64_t *ret)
{
    char *end;

    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (errno || end == text || *end || !strchr("0123456789", text[0]) || !text[0])
        return false;
    *ret = value;
    return true;
}

/* Of a setting that is one of a few; NULL: it is not. */
static const char *const *words_of(const setting *s)
{
    return s->type == WORD ? words_of_all[s->min] : NULL;
}

static void print_words(const setting *s, const char *between, char ret_text[80])
{
    const char *const *words = words_of(s);
    int at = 0;

    for (int i = 0; words[i]; i++)
        at += snprintf(ret_text + at, 80 - (size_t)at, "%s%s", i ? between : "", words[i]);
}

zinf_status zinf_settings_set(zinf_settings *settings, const char *assignment, zinf_error *err)
{
    const char *equals = strchr(assignment, '=');
    char key[64];

    if (!equals || equals == assignment || (size_t)(equals - assignment) >= sizeof key)
        return zinf_fail(err, ZINF_BAD_INPUT,
                         "--set \"%.80s\": expected KEY=VALUE, for example tier.param=nvme",
                         assignment);
    memcpy(key, assignment, (size_t)(equals - assignment));
    key[equals - assignment] = 0;
    const setting *s = NULL;
    for (int i = 0; i < N_SETTINGS; i++)
        if (!strcmp(key, table[i].key))
            s = &table[i];
    if (!s) {
        const char *near = nearest(key);
        return zinf_fail(err, ZINF_BAD_INPUT,
                         "--set: unknown key \"%s\"%s%s%s (zinf-plan --help lists all)", key,
                         near ? "; did you mean \"" : "", near ? near : "", near ? "\"?" : "");
    }
    const char *text = equals + 1;
    int64_t value = ZINF_FREE;
    char words[80];
    if (s->type == TIER) {
        for (unsigned t = 0; t < ZINF_TIER_SCALAR; t++)
            if (!strcmp(text, zinf_tier_name(t)))
                value = t;
        if (value == ZINF_FREE)
            return zinf_fail(err, ZINF_BAD_INPUT,
                             "--set %s: \"%.40s\" is no tier; allowed: device, host, nvme", key,
                             text);
    } else if (words_of(s)) {
        for (int i = 0; words_of(s)[i]; i++)
            if (!strcmp(text, words_of(s)[i]))
                value = i;
        print_words(s, ", ", words);
        if (value == ZINF_FREE)
            return zinf_fail(err, ZINF_BAD_INPUT,
                             "--set %s: \"%.40s\" is not allowed; allowed: %s", key, text, words);
    } else if (s->type == INTERVAL && !strcmp(text, "none")) {
        value = 0;
    } else if (!parse_number(text, &value) || value < s->min || value > s->max) {
        return zinf_fail(err, ZINF_BAD_INPUT,
                         "--set %s: \"%.40s\" is not allowed; expected a whole number from "
                         "%" PRId64 " to %" PRId64 "%s", key, text, s->min, s->max,
                         s->type == INTERVAL ? ", or none" : "");
    }
    if (s->type == ALL_TILES) {
        for (int l = 0; l < ZINF_N_LINEARS; l++)
            settings->tiles[l] = value;
        return ZINF_OK;
    }
    *(int64_t *)((char *)settings + s->offset) = value;
    return ZINF_OK;
}

zinf_status zinf_settings_check(const zinf_settings *settings, const zinf_model *model,
                                const zinf_cluster *cluster, zinf_error *err)
{
    for (unsigned c = 0; c < ZINF_N_CLASSES; c++)
        if (settings->tier[c] == ZINF_TIER_NVME && !cluster->nvme.present)
            return zinf_fail(err, ZINF_BAD_INPUT,
                             "--set tier.%s=nvme: cluster \"%s\" has no nvme section; add one "
                             "(zinf-probe measures it) or choose device or host",
                             zinf_class_name(c), cluster->name);
    if (zinf_ranks_check(model, cluster, settings, err))
        return err->status;
    for (unsigned l = 0; l < ZINF_N_LINEARS; l++)
        if (settings->tiles[l] != ZINF_FREE &&
            (uint64_t)settings->tiles[l] > zinf_linear_rows(model, l))
            return zinf_fail(err, ZINF_BAD_INPUT,
                             "--set tiles or tiles.%s: %" PRId64 " tiles are more than the %" PRIu64
                             " output features of %s", zinf_linear_name(l), settings->tiles[l],
                             zinf_linear_rows(model, l), zinf_linear_name(l));
    if (settings->checkpoint_interval != ZINF_FREE &&
        (uint64_t)settings->checkpoint_interval > model->layers)
        return zinf_fail(err, ZINF_BAD_INPUT,
                         "--set checkpoint_interval=%" PRId64 ": the model has %" PRIu64
                         " layers; allowed: 1 to %" PRIu64 ", or none",
                         settings->checkpoint_interval, model->layers, model->layers);
    if (settings->order == ZINF_VERTICAL && settings->checkpoint_interval == 0)
        return zinf_fail(err, ZINF_BAD_INPUT,
                         "--set order=vertical: what is kept of a micro-batch between two groups "
                         "of blocks is a checkpoint, and checkpoint_interval=none has none; set an "
                         "interval of 1 to %" PRIu64, model->layers);
    if (settings->io_block_bytes != ZINF_FREE && settings->io_block_bytes % ZINF_PAGE)
        return zinf_fail(err, ZINF_BAD_INPUT,
                         "--set io.block=%" PRId64 ": direct I/O needs a multiple of %d bytes",
                         settings->io_block_bytes, ZINF_PAGE);
    const struct {
        const char *key;
        int64_t value;
    } alone[] = {{"partitioning=owner", settings->partitioning},
                 {"collectives=synchronous", settings->collectives}};
    for (size_t i = 0; i < sizeof alone / sizeof *alone && zinf_n_ranks(cluster) == 1; i++)
        if (alone[i].value > 0)
            return zinf_fail(err, ZINF_BAD_INPUT, "--set %s: cluster \"%s\" has one device, so "
                             "that there is nothing to send; leave it out, or plan for several",
                             alone[i].key, cluster->name);
    if (settings->partitioning == ZINF_OWNER && (settings->order == ZINF_VERTICAL ||
                                                 settings->optimizer_time == ZINF_IN_FORWARD))
        return zinf_fail(err, ZINF_BAD_INPUT, "--set partitioning=owner: together with %s it is "
                         "not supported; leave out one of them",
                         settings->order == ZINF_VERTICAL ? "order=vertical"
                                                          : "optimizer_time=forward");
    if (settings->optimizer_time == ZINF_IN_BACKWARD && model->clip > 0)
        return zinf_fail(err, ZINF_BAD_INPUT,
                         "--set optimizer_time=backward: with training.clip %g no unit may be "
                         "updated before the norm of all gradients is known; leave it out, or "
                         "set clip to 0", model->clip);
    return ZINF_OK;
}

void zinf_settings_print_keys(FILE *out)
{
    for (int i = 0; i < N_SETTINGS; i++) {
        const setting *s = &table[i];
        char words[80];
        if (words_of(s))
            print_words(s, " | ", words);
        if (s->type == TIER)
            fprintf(out, "  %-20s device | host | nvme      %s\n", s->key, s->help);
        else if (words_of(s))
            fprintf(out, "  %-20s %-25s %s\n", s->key, words, s->help);
        else
            fprintf(out, "  %-20s %" PRId64 " .. %-8" PRId64 "%-12s %s\n", s->key, s->min, s->max,
                    s->type == INTERVAL ? " | none" : "", s->help);
    }
}
