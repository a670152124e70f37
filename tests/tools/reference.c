/* tests/tools/reference.c - the checkpoint that tools/torch_reference.py writes is one that the
 * runtime reads, and holds the values of the documented generator. argv: python, the script. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/checkpoint.h"
#include "tests/check.h"

enum { LAYERS = 3, HIDDEN = 48, HEADS = 3, FFN = 192, VOCAB = 256, CONTEXT = 32,
       N_TENSORS = 2 + 12 * LAYERS + 2, MOST = 3 * HIDDEN * HIDDEN };
_Static_assert(MOST < VOCAB * HIDDEN && FFN * HIDDEN < VOCAB * HIDDEN, "wte is the largest");

static const char *python, *script;
static char folder[256];
static zinf_tensor tensors[N_TENSORS];
static struct { double center, spread; } filled[N_TENSORS];
static uint32_t n_tensors;

static void add(const char *name, uint64_t rows, uint64_t cols, double center, double spread)
{
    zinf_tensor *t = &tensors[n_tensors];

    snprintf(t->name, sizeof t->name, "transformer.%s", name);
    t->rows = rows;
    t->cols = cols ? cols : 1;
    t->n_dims = cols ? 2 : 1;
    filled[n_tensors].center = center;
    filled[n_tensors++].spread = spread;
}

static void add_block(int layer)
{
    static const struct { const char *name; uint64_t rows, cols; double spread; } linears[] = {
        {"attn.c_attn", 3 * HIDDEN, HIDDEN, 0.2}, {"attn.c_proj", HIDDEN, HIDDEN, 0.1},
        {"mlp.c_fc", FFN, HIDDEN, 0.2}, {"mlp.c_proj", HIDDEN, FFN, 0.1}};
    char name[ZINF_NAME_BYTES - 16];

    for (int i = 0; i < 4; i++) {
        if (i % 2 == 0) {
            snprintf(name, sizeof name, "h.%d.ln_%d.weight", layer, 1 + i / 2);
            add(name, HIDDEN, 0, 1.0, 0.2);
            snprintf(name, sizeof name, "h.%d.ln_%d.bias", layer, 1 + i / 2);
            add(name, HIDDEN, 0, 0.0, 0.1);
        }
        snprintf(name, sizeof name, "h.%d.%s.weight", layer, linears[i].name);
        add(name, linears[i].rows, linears[i].cols, 0.0, linears[i].spread);
        snprintf(name, sizeof name, "h.%d.%s.bias", layer, linears[i].name);
        add(name, linears[i].rows, 0, 0.0, 0.1);
    }
}

static void make_plan(zinf_plan *plan)
{
    uint64_t n = 0;

    n_tensors = 0;
    add("wte.weight", VOCAB, HIDDEN, 0.0, 0.05);
    add("wpe.weight", CONTEXT, HIDDEN, 0.0, 0.05);
    for (int layer = 0; layer < LAYERS; layer++)
        add_block(layer);
    add("ln_f.weight", HIDDEN, 0, 1.0, 0.2);
    add("ln_f.bias", HIDDEN, 0, 0.0, 0.1);
    for (uint32_t i = 0; i < n_tensors; i++)
        n += tensors[i].rows * tensors[i].cols;
    *plan = (zinf_plan){
        .model = {.name = "torch-reference", .family = "gpt2", .layers = LAYERS,
                  .hidden = HIDDEN, .heads = HEADS, .kv_heads = HEADS,
                  .head_dim = HIDDEN / HEADS, .ffn = FFN, .vocab = VOCAB, .context = CONTEXT,
                  .tied_embeddings = 1, .n_params = n},
        .tensors = tensors, .n_tensors = n_tensors,
    };
}

static uint64_t splitmix64(uint64_t x)
{
    x += 0x9E3779B97F4A7C15;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
    return x ^ (x >> 31);
}

static int write_inputs(void)
{
    char command[1024];

    snprintf(command, sizeof command, "'%s' '%s' inputs '%s'", python, script, folder);
    return system(command);
}

static void the_runtime_reads_the_checkpoint_of_step_0(void)
{
    zinf_plan plan;
    zinf_progress progress;
    zinf_checkpoint_reader *reader;
    zinf_error err = {0};
    char path[300];

    make_plan(&plan);
    CHECK(n_tensors == N_TENSORS);
    CHECK(write_inputs() == 0);
    snprintf(path, sizeof path, "%s/checkpoint", folder);
    CHECK_MESSAGE(zinf_checkpoint_open(path, &plan, &reader, &progress, &err) == ZINF_OK, "%s",
                  err.text);
    CHECK(progress.step == 0 && progress.data_position == 0 && progress.seed == 1337);
    CHECK(progress.loss_scale == 1);
    for (uint32_t t = 0; t < n_tensors; t++) {
        static float values[VOCAB * HIDDEN];
        uint64_t n = tensors[t].rows * tensors[t].cols;

        for (int array = 0; array < ZINF_N_STATES; array++) {
            CHECK_MESSAGE(zinf_checkpoint_get(reader, t, (zinf_state_array)array, 0, n, values,
                                              &err) == ZINF_OK, "%s", err.text);
            for (uint64_t i = 0; i < n; i++) {
                uint64_t bits = splitmix64(((uint64_t)t << 32) + i) >> 40;
                double value = filled[t].center + filled[t].spread * ((double)bits * 0x1p-23 - 1);
                float expected = array == ZINF_STATE_MASTER ? (float)value : 0;
                CHECK_MESSAGE(values[i] == expected, "%s[%d]: %a, expected %a", tensors[t].name,
                              (int)i, (double)values[i], (double)expected);
            }
        }
    }
    CHECK_MESSAGE(zinf_checkpoint_check(reader, 1, &err) == ZINF_OK, "%s", err.text);
    zinf_checkpoint_close(reader);
}

int main(int argc, char **argv)
{
    const char *tmp = getenv("TMPDIR");
    char command[400];

    if (argc != 3)
        return 2;
    python = argv[1];
    script = argv[2];
    snprintf(folder, sizeof folder, "%s/zinf-reference-XXXXXX", tmp ? tmp : "/tmp");
    if (!mkdtemp(folder))
        return 4;
    RUN(the_runtime_reads_the_checkpoint_of_step_0);
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    if (system(command) != 0)
        return 4;
    return check_finish();
}
