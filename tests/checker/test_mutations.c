/* tests/checker/test_mutations.c - every single fault of the miniature plans is refused, or is
 * proved harmless by the oracle: all conflicts still ordered, and the same bytes computed. Operands
 * that do not fit their opcode are zinf_plan_validate's to refuse, and counted apart.
 *
 * Verbose with an argument: prints each mutant that passes, and why it may.
 */
#include <stdlib.h>
#include <string.h>

#include "mini.h"
#include "planner/search.h"
#include "runtime/checker.h"
#include "tests/check.h"

/* ---- editing ---- */

/* Instruction i moves to where[i] (or is gone: ZINF_NONE, and its waiters wait for fallback). */
static void renumber(zinf_plan *plan, const uint32_t *where, const uint32_t *fallback, uint32_t n)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < n; i++) {
        zinf_instr *instr = &plan->instrs[i];
        uint32_t first = kept;
        for (uint32_t w = instr->wait0; w < instr->wait0 + instr->n_waits; w++) {
            zinf_wait wait = plan->waits[w];
            uint32_t to = where[wait.instr] == ZINF_NONE ? fallback[wait.instr]
                                                         : where[wait.instr];
            if (to == ZINF_NONE || plan->instrs[i].n_waits == 0)
                continue;
            plan->waits[kept++] = (zinf_wait){to, wait.distance};
        }
        instr->n_waits = kept - first;
        instr->wait0 = first;
    }
    plan->n_waits = kept;
}

static zinf_segment *segment_of(zinf_plan *plan, uint32_t i)
{
    for (uint32_t s = 0; s < plan->n_segments; s++)
        if (i >= plan->segments[s].first_instr &&
            i < plan->segments[s].first_instr + plan->segments[s].n_instrs)
            return &plan->segments[s];
    return NULL;
}

static bool drop_instr(zinf_plan *plan, uint32_t at)
{
    zinf_segment *s = segment_of(plan, at);
    uint32_t where[4096], fallback[4096];

    if (s->n_instrs == 1)
        return false;
    for (uint32_t i = 0; i < plan->n_instrs; i++) {
        where[i] = i < at ? i : i == at ? ZINF_NONE : i - 1;
        fallback[i] = ZINF_NONE;
    }
    /* who waited for it waits for what ran before it in its queue: all else stays ordered */
    for (uint32_t i = s->first_instr; i < at; i++)
        if (plan->instrs[i].queue == plan->instrs[at].queue)
            fallback[at] = i;
    renumber(plan, where, fallback, plan->n_instrs);
    memmove(&plan->instrs[at], &plan->instrs[at + 1],
            (plan->n_instrs - at - 1) * sizeof *plan->instrs);
    plan->n_instrs--;
    s->n_instrs--;
    for (s++; s < plan->segments + plan->n_segments; s++)
        s->first_instr--;
    return true;
}

static bool duplicate_instr(zinf_plan *plan, uint32_t at)
{
    zinf_segment *s = segment_of(plan, at);
    uint32_t where[4096];

    for (uint32_t i = 0; i < plan->n_instrs; i++)
        where[i] = i < at ? i : i + 1;
    renumber(plan, where, where, plan->n_instrs);
    memmove(&plan->instrs[at + 1], &plan->instrs[at],
            (plan->n_instrs - at) * sizeof *plan->instrs);
    plan->n_instrs++;
    s->n_instrs++;
    for (s++; s < plan->segments + plan->n_segments; s++)
        s->first_instr++;
    return true;
}

static bool swap_with_next(zinf_plan *plan, uint32_t at)
{
    zinf_segment *s = segment_of(plan, at);
    uint32_t where[4096];

    if (at + 1 == s->first_instr + s->n_instrs)
        return false;
    for (uint32_t i = 0; i < plan->n_instrs; i++)
        where[i] = i == at ? at + 1 : i == at + 1 ? at : i;
    renumber(plan, where, where, plan->n_instrs);
    zinf_instr first = plan->instrs[at];
    plan->instrs[at] = plan->instrs[at + 1];
    plan->instrs[at + 1] = first;
    return true;
}

/* ---- the mutations ---- */

typedef enum target { INSTR, OPERAND, WAIT, SEGMENT, N_TARGETS } target;

static zinf_operand *operand(zinf_plan *plan, uint32_t i)
{
    return plan->operands[i].bytes ? &plan->operands[i] : NULL;
}

#define ON_OPERAND(name, body)                                                                   \
    static bool name(zinf_plan *plan, uint32_t i)                                                \
    {                                                                                            \
        zinf_operand *o = operand(plan, i);                                                      \
        if (!o)                                                                                  \
            return false;                                                                        \
        body;                                                                                    \
        return true;                                                                             \
    }
ON_OPERAND(shift_64, o->offset += 64)
ON_OPERAND(shift_back_64, if (o->offset < 64) return false; o->offset -= 64)
ON_OPERAND(shift_4096, o->offset += 4096)
ON_OPERAND(shift_back_4096, if (o->offset < 4096) return false; o->offset -= 4096)
ON_OPERAND(shift_2, o->offset += 2)
ON_OPERAND(next_tier, o->tier = (uint8_t)((o->tier + 1) % ZINF_N_TIERS))
ON_OPERAND(previous_tier, o->tier = (uint8_t)((o->tier + 3) % ZINF_N_TIERS))
ON_OPERAND(next_value, if (o->value == ZINF_NONE) return false;
           o->value = (o->value + 1) % plan->n_values)
ON_OPERAND(no_value, if (o->value == ZINF_NONE) return false; o->value = ZINF_NONE)
ON_OPERAND(wrong_dtype, o->dtype = o->dtype == ZINF_F32 ? ZINF_I32 : ZINF_F32;
           o->bytes = ((o->rows - 1) * o->ld + o->cols) * 4)
ON_OPERAND(half_the_bytes, o->bytes /= 2)
ON_OPERAND(one_element_less, if (o->rows > 1) o->rows--; else if (o->cols > 1) o->cols--;
           else return false;
           o->bytes = ((o->rows - 1) * o->ld + o->cols) * zinf_dtype_bytes(o->dtype))
ON_OPERAND(a_page_less, if (o->bytes <= 4096 || o->rows > 1) return false;
           o->bytes -= 4096; o->cols = o->ld = o->bytes / zinf_dtype_bytes(o->dtype))
ON_OPERAND(other_stride, if (!o->stride) return false; o->stride *= 2)
ON_OPERAND(no_stride, if (!o->stride) return false; o->stride = 0)

static bool drop_wait(zinf_plan *plan, uint32_t i)
{
    for (uint32_t k = 0; k < plan->n_instrs; k++) {
        zinf_instr *instr = &plan->instrs[k];
        if (i >= instr->wait0 && i < instr->wait0 + instr->n_waits) {
            plan->waits[i] = plan->waits[instr->wait0 + --instr->n_waits];
            return true;
        }
    }
    return false;
}

static bool wait_for_earlier(zinf_plan *plan, uint32_t i)
{
    return plan->waits[i].instr-- > 0;
}

static bool wait_for_later(zinf_plan *plan, uint32_t i)
{
    return ++plan->waits[i].instr < plan->n_instrs;
}

static bool more_distance(zinf_plan *plan, uint32_t i)
{
    plan->waits[i].distance++;
    return true;
}

static bool less_distance(zinf_plan *plan, uint32_t i)
{
    return plan->waits[i].distance && plan->waits[i].distance--;
}

static bool flip_accumulate(zinf_plan *plan, uint32_t i)
{
    zinf_instr *instr = &plan->instrs[i];

    if (!strchr(zinf_opcode_get(instr->opcode)->access, 'a'))
        return false;
    instr->flags ^= ZINF_FLAG_ACCUMULATE;
    if (instr->opcode == ZINF_OP_CLASSIFIER)
        instr->attr[3] ^= 2;
    return true;
}

static bool other_queue(zinf_plan *plan, uint32_t i)
{
    plan->instrs[i].queue = (uint8_t)((plan->instrs[i].queue + 1) % ZINF_N_QUEUES);
    return true;
}

static bool other_unit(zinf_plan *plan, uint32_t i)
{
    zinf_instr *instr = &plan->instrs[i];

    if (instr->unit == ZINF_NONE)
        return false;
    instr->unit = (instr->unit + 1) % plan->n_units;
    return true;
}

static bool other_attr(zinf_plan *plan, uint32_t i)
{
    zinf_instr *instr = &plan->instrs[i];

    if (instr->opcode != ZINF_OP_ROPE)
        return false;
    instr->attr[1] ^= 1;
    return true;
}

static bool no_decay(zinf_plan *plan, uint32_t i)
{
    plan->instrs[i].attr[0] ^= 1;
    return plan->instrs[i].opcode == ZINF_OP_ADAM;
}

static bool once_more(zinf_plan *plan, uint32_t i)
{
    plan->segments[i].count++;
    return true;
}

static bool once_less(zinf_plan *plan, uint32_t i)
{
    return --plan->segments[i].count > 0;
}

static const struct {
    const char *name;
    target target;
    bool (*apply)(zinf_plan *plan, uint32_t i); /* false: no fault here */
} mutations[] = {
#define M(name, target) {#name, target, name}
    M(drop_instr, INSTR), M(duplicate_instr, INSTR), M(swap_with_next, INSTR),
    M(flip_accumulate, INSTR), M(other_queue, INSTR), M(other_unit, INSTR), M(no_decay, INSTR),
    M(other_attr, INSTR),
    M(drop_wait, WAIT), M(wait_for_earlier, WAIT), M(wait_for_later, WAIT),
    M(more_distance, WAIT), M(less_distance, WAIT), M(shift_64, OPERAND),
    M(shift_back_64, OPERAND), M(shift_4096, OPERAND), M(shift_back_4096, OPERAND),
    M(shift_2, OPERAND), M(next_tier, OPERAND), M(previous_tier, OPERAND),
    M(next_value, OPERAND), M(no_value, OPERAND), M(wrong_dtype, OPERAND),
    M(half_the_bytes, OPERAND), M(one_element_less, OPERAND), M(a_page_less, OPERAND),
    M(other_stride, OPERAND), M(no_stride, OPERAND), M(once_more, SEGMENT),
    M(once_less, SEGMENT),
};

static const mini_options choices[] = {
    {ZINF_TIER_NVME, ZINF_TIER_HOST, ZINF_TIER_NVME, false, 4},
    {ZINF_TIER_HOST, ZINF_TIER_DEVICE, ZINF_TIER_HOST, false, 1},
    {ZINF_TIER_NVME, ZINF_TIER_NVME, ZINF_TIER_NVME, true, 3},
};

static bool verbose;

static void tell(const zinf_plan *plan, const char *name, target at, uint32_t i, const char *what)
{
    for (uint32_t k = 0; k < plan->n_instrs; k++) {
        const zinf_instr *instr = &plan->instrs[k];
        if ((at == INSTR && k == i) ||
            (at == WAIT && i >= instr->wait0 && i < instr->wait0 + instr->n_waits) ||
            (at == OPERAND && i >= instr->operand0 && i < instr->operand0 + instr->n_operands))
            printf("# %s: %s, instruction %u %s \"%s\"%s%.0d\n", what, name, k,
                   zinf_opcode_get(instr->opcode)->name, &plan->strings[instr->name],
                   at == OPERAND ? ", operand " : "",
                   at == OPERAND ? (int)(i - instr->operand0) : 0);
    }
    if (at == SEGMENT)
        printf("# %s: %s, segment %u\n", what, name, i);
}

/* The instruction that index i of this table belongs to, or ZINF_NONE. */
static uint32_t instr_of(const zinf_plan *plan, target at, uint32_t i)
{
    for (uint32_t k = 0; k < plan->n_instrs; k++) {
        const zinf_instr *instr = &plan->instrs[k];
        if ((at == INSTR && k == i) ||
            (at == WAIT && i >= instr->wait0 && i < instr->wait0 + instr->n_waits) ||
            (at == OPERAND && i >= instr->operand0 && i < instr->operand0 + instr->n_operands))
            return k;
    }
    return ZINF_NONE;
}

/* Every mutation of every place that concerns the test (NULL: all); returns how many harmful ones
 * were accepted. */
static uint32_t mutate(const zinf_plan *good, const char *label,
                       bool (*concerns)(const zinf_plan *plan, uint32_t instr))
{
    const uint64_t result = mini_result(good);
    const uint32_t counts[N_TARGETS] = {good->n_instrs, good->n_operands, good->n_waits,
                                        good->n_segments};
    uint32_t escaped = 0;

    for (size_t m = 0; m < sizeof mutations / sizeof *mutations; m++) {
        uint32_t refused = 0, shapes = 0, harmless = 0, rules[9] = {0};
        for (uint32_t i = 0; i < counts[mutations[m].target]; i++) {
            const uint32_t instr = instr_of(good, mutations[m].target, i);
            if (concerns && (instr == ZINF_NONE || !concerns(good, instr)))
                continue;
            zinf_plan mutant = mini_copy(good);
            zinf_error err = {0};
            if (!mutations[m].apply(&mutant, i)) {
                /* no fault of this kind here */
            } else if (zinf_plan_check(&mutant, &err)) {
                CHECK_MESSAGE(err.status == ZINF_DOES_NOT_FIT && err.text[0] == 'C' &&
                              strchr("12345678", err.text[1]), "%s", err.text);
                refused++;
                rules[err.text[1] - '0']++;
            } else if (zinf_plan_validate(&mutant, &err)) {
                shapes++; /* the checker never sees such a plan */
                if (verbose)
                    printf("# %s\n", err.text);
            } else if (mini_is_ordered(&mutant) && mini_result(&mutant) == result) {
                harmless++;
                if (verbose)
                    tell(good, mutations[m].name, mutations[m].target, i, "harmless");
            } else {
                escaped++;
                tell(good, mutations[m].name, mutations[m].target, i,
                     mini_is_ordered(&mutant) ? "WRONG RESULT" : "RACE");
            }
            mini_free(&mutant);
        }
        printf("# plan %s, %-16s refused %4u (C1..C8:", label, mutations[m].name, refused);
        for (int r = 1; r <= 8; r++)
            printf(" %u", rules[r]);
        printf("), by shape %u, harmless %u\n", shapes, harmless);
    }
    return escaped;
}

static void every_single_fault_is_refused_or_harmless(void)
{
    uint32_t escaped = 0;

    for (size_t c = 0; c < sizeof choices / sizeof *choices; c++) {
        zinf_plan good = mini_plan(&choices[c]);
        zinf_error none = {0};
        char label[8];
        CHECK_MESSAGE(zinf_plan_validate(&good, &none) == ZINF_OK, "%s", none.text);
        CHECK_MESSAGE(zinf_plan_check(&good, &none) == ZINF_OK, "%s", none.text);
        snprintf(label, sizeof label, "%zu", c);
        escaped += mutate(&good, label, NULL);
        mini_free(&good);
    }
    CHECK_MESSAGE(escaped == 0, "%u harmful mutants were accepted", escaped);
}

/* ---- a llama by the planner: rotary positions, stacks, gates, an untied head ---- */

/* The plan's arrays with room for what mini_copy and the mutations want. */
static zinf_plan roomy(const zinf_plan *plan)
{
    enum { ROOM = 4096 };
    zinf_plan made = *plan;

    made.items = NULL;
    made.n_items = 0;
#define X(field)                                                                                 \
    CHECK(plan->n_##field < ROOM / 2);                                                           \
    made.field = calloc(ROOM, sizeof *made.field);                                               \
    memcpy(made.field, plan->field, plan->n_##field * sizeof *made.field);
    X(segments) X(instrs) X(operands) X(waits) X(tensors) X(units) X(parts) X(values)
#undef X
    CHECK(plan->n_strings <= ROOM * 64);
    made.strings = calloc(ROOM, 64);
    memcpy(made.strings, plan->strings, plan->n_strings);
    return made;
}

static zinf_plan llama_plan(const char *sets)
{
    static const char model_text[] =
        "model: {family: llama, layers: 1, hidden: 3, heads: 2, kv_heads: 1, head_dim: 2, ffn: 5,\n"
        "        vocab: 5, context: 2, tied_embeddings: false, qkv_bias: true}\n"
        "training: {global_batch: 3}\n";
    static const char cluster_text[] =
        "cluster:\n  device: {kind: cpu, memory: 1 GiB, peak: {bf16: 350 GFLOP/s}, bandwidth: "
        "25 GB/s}\n  host: {memory: 2 GiB, cores: 1, bandwidth: 25 GB/s}\n"
        "  nvme: {paths: [/tmp], capacity: 4 GiB, read: 1 GB/s, write: 1 GB/s}\n"
        "  links: {host_device: {per_device: 8 GB/s}}\n  unified: false\n";
    zinf_search_result result = {0};
    zinf_settings settings;
    zinf_cluster cluster;
    zinf_model model;
    zinf_error err = {0};
    char word[64];
    int n;

    CHECK_MESSAGE(!zinf_model_parse("m", model_text, strlen(model_text), NULL, &model, &err), "%s",
                  err.text);
    CHECK_MESSAGE(!zinf_cluster_parse("c", cluster_text, strlen(cluster_text), &cluster, &err),
                  "%s", err.text);
    zinf_settings_init(&settings);
    for (; sscanf(sets, "%63s%n", word, &n) == 1; sets += n)
        CHECK_MESSAGE(!zinf_settings_set(&settings, word, &err), "%s", err.text);
    CHECK_MESSAGE(!zinf_settings_check(&settings, &model, &cluster, &err), "%s", err.text);
    CHECK_MESSAGE(!zinf_search(&model, &cluster, &settings, 1, &result, &err), "%s", err.text);
    CHECK_MESSAGE(!zinf_plan_check(&result.plan, &err), "%s", err.text);
    zinf_plan plan = roomy(&result.plan);
    zinf_search_free(&result);
    return plan;
}

/* In STEP's first micro-batch: what the family adds, linears, and the two ends of the model. */
static bool is_of_a_llama(const zinf_plan *plan, uint32_t i)
{
    const zinf_program *step = &plan->programs[ZINF_PROGRAM_STEP];
    const zinf_segment *first = &plan->segments[step->first_segment];
    const zinf_instr *instr = &plan->instrs[i];

    if (i < first->first_instr || i >= first->first_instr + first->n_instrs ||
        instr->queue != ZINF_QUEUE_COMPUTE)
        return false;
    return (instr->opcode >= ZINF_OP_RMSNORM_FORWARD && instr->opcode <= ZINF_OP_SWIGLU_BACKWARD &&
            instr->opcode != ZINF_OP_GELU_FORWARD) || instr->opcode <= ZINF_OP_EMBEDDING_BACKWARD ||
           (instr->opcode >= ZINF_OP_CLASSIFIER_FORWARD && instr->opcode <= ZINF_OP_LOSS);
}

static void every_fault_of_a_llama_is_refused_or_harmless(void)
{
    zinf_plan good = llama_plan(
        "micro_batch=1 tiles=1 tiles.qkv=3 tiles.fc=2 tiles.vocab=2 checkpoint_interval=1 "
        "threads=1 tier.param=nvme tier.grad=host tier.optimizer=nvme tier.checkpoint=host "
        "prefetch.read=1 prefetch.upload=1");
    zinf_error err = {0};

    CHECK_MESSAGE(zinf_plan_validate(&good, &err) == ZINF_OK, "%s", err.text);
    const uint32_t escaped = mutate(&good, "llama", is_of_a_llama);
    mini_free(&good);
    CHECK_MESSAGE(escaped == 0, "%u harmful mutants were accepted", escaped);
}

int main(int argc, char **argv)
{
    (void)argv;
    verbose = argc > 1;
    RUN(every_single_fault_is_refused_or_harmless);
    RUN(every_fault_of_a_llama_is_refused_or_harmless);
    return check_finish();
}
