/* tests/fuzz/plan.c - fuzz target: a plan file through loader, validator, checker and simulator;
 * and what all of them accept, if it is small, through the executor: a plan that passes may do
 * what it likes to the numbers, but not to memory that is not its own.
 */
#include <unistd.h>

#include "runtime/checker.h"
#include "runtime/executor.h"
#include "runtime/timeline.h"
#include "tests/checker/restate.h"
#include "tests/fuzz/plan_file.h"
#include "tests/fuzz/scratch.h"

enum { MOST_ARENA = 1 << 22, MOST_WORK = 1 << 24 };

static zinf_status batch(void *context, uint64_t n, uint64_t cols, int32_t *ret_tokens,
                         zinf_error *err)
{
    const zinf_plan *plan = context;

    (void)err;
    for (uint64_t i = 0; i < n * cols; i++)
        ret_tokens[i] = (int32_t)(i * 7 % plan->model.vocab);
    return ZINF_OK;
}

static zinf_status get(void *context, uint32_t tensor, zinf_state_array array, uint64_t first,
                       uint64_t n, float *ret_values, zinf_error *err)
{
    (void)context;
    (void)err;
    for (uint64_t i = 0; i < n; i++)
        ret_values[i] = (float)(tensor + array + first + i) * 1e-3f;
    return ZINF_OK;
}

static zinf_status put(void *context, uint32_t tensor, zinf_state_array array, uint64_t first,
                       uint64_t n, const float *values, zinf_error *err)
{
    const zinf_plan *plan = context;

    (void)err;
    (void)array;
    FUZZ_EXPECT(tensor < plan->n_tensors && n <= plan->tensors[tensor].rows *
                                                     plan->tensors[tensor].cols - first);
    for (uint64_t i = 0; i < n; i++)
        FUZZ_EXPECT(values[i] == values[i] || values[i] != values[i]); /* touches it */
    return ZINF_OK;
}

/* Cheap enough to run: bytes touched, times iterations. */
static bool is_small(const zinf_plan *plan)
{
    uint64_t work = 0;

    for (int t = 0; t < ZINF_N_TIERS; t++)
        if (plan->machine.arena_bytes[t] > MOST_ARENA)
            return false;
    for (uint32_t s = 0; s < plan->n_segments; s++)
        for (uint32_t i = 0; i < plan->segments[s].n_instrs; i++) {
            const zinf_instr *instr = &plan->instrs[plan->segments[s].first_instr + i];
            for (uint32_t k = 0; k < instr->n_operands; k++)
                work += plan->operands[instr->operand0 + k].bytes * plan->segments[s].count;
            work += plan->segments[s].count;
            if (work > MOST_WORK)
                return false;
        }
    return plan->decisions.ranks == 1 &&
           plan->decisions.n_threads <= 2 && plan->model.vocab <= 1 << 16 &&
           plan->programs[ZINF_PROGRAM_STEP].n_segments > 0;
}

static void execute(const zinf_plan *plan)
{
    static const zinf_program_kind order[] = {ZINF_PROGRAM_INIT, ZINF_PROGRAM_STEP,
                                              ZINF_PROGRAM_STEP, ZINF_PROGRAM_FLUSH,
                                              ZINF_PROGRAM_EVAL, ZINF_PROGRAM_SAMPLE,
                                              ZINF_PROGRAM_SAVE, ZINF_PROGRAM_LOAD};
    zinf_storage *storage = NULL;
    zinf_executor *executor = NULL;
    zinf_error err = {0};
    char warning[256];
    const zinf_storage_options io = {ZINF_ENGINE_THREADS, plan->decisions.io_block_bytes,
                                     plan->decisions.io_depth};
    zinf_env env = {.lr = 1e-3, .batch = batch, .batch_context = (void *)(uintptr_t)plan,
                    .get = get, .put = put, .state_context = (void *)(uintptr_t)plan,
                    .logits = calloc(plan->model.vocab, sizeof(float))};

    FUZZ_EXPECT(env.logits);
    scratch_path("");
    if (plan->machine.arena_bytes[ZINF_TIER_NVME] &&
        zinf_storage_open(scratch_directory, 0, plan->machine.arena_bytes[ZINF_TIER_NVME], &io,
                          &storage, warning, &err) != ZINF_OK)
        goto done;
    const zinf_executor_options options = {.storage = storage, .serial = true};
    if (zinf_executor_open(plan, &options, &executor, &err) == ZINF_OK)
        for (size_t i = 0; i < sizeof order / sizeof *order && err.status == ZINF_OK; i++)
            if (plan->programs[order[i]].n_segments)
                zinf_executor_run(executor, order[i], &env, &err);
done:
    if (err.status)
        fuzz_check_error(err.status, &err);
    zinf_executor_close(executor);
    zinf_storage_close(storage);
    free(env.logits);
}

static void run(const uint8_t *data, size_t n)
{
    zinf_plan plan;
    zinf_error err = {0};
    zinf_status status = zinf_plan_parse("fuzzed", data, n, &plan, &err);

    fuzz_check_error(status, &err);
    if (status != ZINF_OK)
        return;
    for (unsigned p = 0; p < ZINF_N_PROGRAMS; p++) {
        zinf_timeline timeline = {0};
        zinf_error own = {0};
        fuzz_check_error(zinf_timeline_run(&plan, (zinf_program_kind)p, &timeline, &own), &own);
        zinf_timeline_free(&timeline);
    }
    status = zinf_plan_check(&plan, &err);
    fuzz_check_error(status, &err);
    if (status == ZINF_DOES_NOT_FIT && plan.n_items >= ZINF_N_TIERS - 1) { /* for that only? */
        memset(&err, 0, sizeof err);
        restate(&plan);
        status = zinf_plan_check(&plan, &err);
        fuzz_check_error(status, &err);
    }
    if (status == ZINF_OK) {
        fuzz_accepted = 1;
        if (is_small(&plan))
            execute(&plan);
    }
    zinf_plan_free(&plan);
}

/* As it is, and with the checksums that make it be believed. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    uint8_t *sealed = malloc(n + 1);

    FUZZ_EXPECT(sealed);
    memcpy(sealed, data, n);
    if (!plan_seal(sealed, n) || memcmp(sealed, data, n) != 0)
        run(data, n);
    if (n >= sizeof(plan_header))
        run(sealed, n);
    free(sealed);
    return 0;
}

/* ---- mutations ---- */

/* The word of 4 or 8 bytes at p becomes another likely one; `same` points to the like word of
 * another element. */
static void mutate_word(uint8_t *p, const uint8_t *same, size_t bytes, uint64_t *state)
{
    uint64_t value = 0;

    memcpy(&value, p, bytes);
    switch (fuzz_random(state) % 8) {
    case 0:
        value = fuzz_edge(state);
        break;
    case 1:
        value += 1 - 2 * (fuzz_random(state) & 1);
        break;
    case 2:
        value += (fuzz_random(state) & 1 ? 64 : 4096) * (1 - 2 * (fuzz_random(state) & 1));
        break;
    case 3:
        value = fuzz_random(state) % 9;
        break;
    case 4:
        value *= 2;
        break;
    case 5:
        value ^= 1ull << (fuzz_random(state) % (8 * bytes));
        break;
    case 6: /* one byte of it: enumerations and flags */
        p[fuzz_random(state) % bytes] = (uint8_t)(fuzz_random(state) % 40);
        return;
    default:
        memcpy(&value, same, bytes);
    }
    memcpy(p, &value, bytes);
}

/* Takes out, or repeats, one element of a section. */
static size_t resize(uint8_t *data, size_t n, size_t most, plan_header *h, int section,
                     uint32_t i, bool insert)
{
    uint64_t at[PLAN_SECTIONS + 1], next[PLAN_SECTIONS + 1];
    const uint32_t element = plan_element[section];

    plan_layout(h, at);
    const uint64_t bytes = (uint64_t)h->counts[section] * element;
    uint8_t *copy = calloc(1, bytes + element);
    if (!copy)
        return n;
    memcpy(copy, data + at[section], bytes);
    uint8_t *here = copy + (uint64_t)i * element;
    const uint64_t rest = bytes - (uint64_t)i * element;
    if (insert)
        memmove(here + element, here, rest);
    else
        memmove(here, here + element, rest - element);
    h->counts[section] += insert ? 1 : -1u;
    plan_layout(h, next);
    if (next[PLAN_SECTIONS] > most) {
        h->counts[section]--;
        free(copy);
        return n;
    }
    memmove(data + next[section + 1], data + at[section + 1], n - at[section + 1]);
    memset(data + next[section], 0, next[section + 1] - next[section]);
    memcpy(data + next[section], copy, (uint64_t)h->counts[section] * element);
    memcpy(data, h, sizeof *h);
    free(copy);
    return next[PLAN_SECTIONS];
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t n, size_t most, unsigned seed)
{
    /* sections, the likelier the more often; PLAN_SECTIONS: the fixed structures */
    static const uint8_t pick[] = {0, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 4, 5, 5, 6, 7, 8, 9, 10, 10};
    uint64_t state = seed, at[PLAN_SECTIONS + 1];
    plan_header h;

    if (n < sizeof h + sizeof(plan_fixed) || fuzz_random(&state) % 64 == 0)
        return LLVMFuzzerMutate(data, n, most);
    memcpy(&h, data, sizeof h);
    plan_layout(&h, at);
    if (at[PLAN_SECTIONS] != n)
        return LLVMFuzzerMutate(data, n, most);
    const int section = pick[fuzz_random(&state) % sizeof pick];
    if (section == PLAN_SECTIONS) {
        const size_t word = 8 + 4 * (fuzz_random(&state) % ((sizeof(plan_fixed) - 8) / 4 - 1));
        uint8_t *p = data + sizeof h + word;
        mutate_word(p, p, word % 8 == 0 && fuzz_random(&state) & 1 ? 8 : 4, &state);
    } else if (h.counts[section]) {
        const uint32_t element = plan_element[section], count = h.counts[section];
        const uint32_t i = (uint32_t)(fuzz_random(&state) % count);
        const uint32_t j = fuzz_random(&state) & 1 ? (uint32_t)(fuzz_random(&state) % count)
                                                   : i + (i + 1 < count);
        uint8_t *p = data + at[section] + (uint64_t)i * element;
        uint8_t *q = data + at[section] + (uint64_t)j * element;
        switch (fuzz_random(&state) % 12) {
        case 0:
            n = resize(data, n, most, &h, section, i, false);
            break;
        case 1:
            n = resize(data, n, most, &h, section, i, true);
            break;
        case 2:
            for (uint32_t k = 0; k < element; k++) {
                const uint8_t kept = p[k];
                p[k] = q[k];
                q[k] = kept;
            }
            break;
        case 3:
            memmove(p, q, element);
            break;
        default: {
            const uint32_t word = element < 4 ? 1 : 4;
            const uint32_t k = word * (uint32_t)(fuzz_random(&state) % (element / word));
            const bool wide = word == 4 && k % 8 == 0 && k + 8 <= element &&
                              fuzz_random(&state) % 2;
            mutate_word(p + k, q + k, wide ? 8 : word, &state);
        }
        }
    } else {
        return LLVMFuzzerMutate(data, n, most);
    }
    plan_seal(data, n);
    return n;
}
