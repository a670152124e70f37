/* tests/checker/test_shapes.c - what plan_shapes.c and plan_content.c ask of one instruction: one
 * fault each, in plans of the planner, and a word of its refusal.
 */
#include <stdio.h>
#include <string.h>

#include "runtime/checker.h"
#include "runtime/opcodes.h"
#include "runtime/plan_shapes.h"
#include "tests/bitwise/trainer.h"
#include "tests/check.h"

static const trainer_model gpt2 = {1, 16, 2, 24, 8, 2, "bf16", NULL};
static const trainer_model llama = {1, 16, 2, 24, 8, 2, "bf16", ", kv_heads: 1, ffn: 24"};

static zinf_operand *operand(zinf_plan *p, uint32_t i, uint32_t slot)
{
    return &p->operands[p->instrs[i].operand0 + slot];
}

static void halve(zinf_operand *o)
{
    o->rows = 1;
    o->cols = o->ld = o->cols / 2;
    o->bytes = o->cols * zinf_dtype_bytes(o->dtype);
}

/* A GEMM sums in blocks that its scratch has room for: other bits. */
static void more_scratch(zinf_plan *p, uint32_t i)
{
    zinf_operand *o = operand(p, i, p->instrs[i].n_operands - 1);

    p->machine.arena_bytes[ZINF_TIER_DEVICE] += 4096;
    o->cols = o->ld = o->bytes += 64;
}

/* A kernel's doubles and vectors would be aligned wrongly: it ended in SIGSEGV. */
static void odd_scratch(zinf_plan *p, uint32_t i)
{
    zinf_operand *o = operand(p, i, p->instrs[i].n_operands - 1);

    p->machine.arena_bytes[ZINF_TIER_DEVICE] += 4096;
    o->offset++;
    o->value = 0;
}

static void other_total(zinf_plan *p, uint32_t i) { p->instrs[i].attr[2]++; }
static void other_flags(zinf_plan *p, uint32_t i) { p->instrs[i].attr[3] ^= 1; }
static void flags_of_nothing(zinf_plan *p, uint32_t i)
{
    p->instrs[i].flags = ZINF_FLAG_ACCUMULATE;
    p->instrs[i].attr[3] = 4;
}
static void beyond(zinf_plan *p, uint32_t i) { p->instrs[i].attr[0] = p->model.vocab; }
static void other_heads(zinf_plan *p, uint32_t i) { p->instrs[i].attr[0]--; }
static void half_a_head(zinf_plan *p, uint32_t i) { p->instrs[i].attr[2] /= 2; }
static void other_turn(zinf_plan *p, uint32_t i) { p->instrs[i].attr[1] = 2; }
static void other_place(zinf_plan *p, uint32_t i) { operand(p, i, 1)->offset -= 64; }
static void other_ffn(zinf_plan *p, uint32_t i) { p->model.ffn += i > 0; }
static void half_gathered(zinf_plan *p, uint32_t i) { halve(operand(p, i, 1)); }
static void no_rank(zinf_plan *p, uint32_t i) { p->instrs[i].attr[0] = p->decisions.ranks; }
static void other_root(zinf_plan *p, uint32_t i) { p->instrs[i].attr[0] ^= 1; }
static void more_tokens(zinf_plan *p, uint32_t i) { p->instrs[i].attr[0]++; }
static void no_unit(zinf_plan *p, uint32_t i) { p->instrs[i].unit = ZINF_NONE; }
static void other_decay(zinf_plan *p, uint32_t i) { p->instrs[i].attr[0] ^= 1; }
static void other_sequence(zinf_plan *p, uint32_t i) { p->job.sequence -= i > 0; }

static void sized(zinf_operand *o, uint64_t rows, uint64_t cols)
{
    o->rows = rows;
    o->cols = o->ld = cols;
    o->bytes = rows * cols * zinf_dtype_bytes(o->dtype);
}

static void typed(zinf_operand *o, zinf_dtype dtype)
{
    o->dtype = (uint8_t)dtype;
    sized(o, o->rows, o->cols);
}

static void one_sequence_more(zinf_plan *p, uint32_t i)
{
    sized(operand(p, i, 0), operand(p, i, 0)->rows + 1, p->job.sequence + 1);
}
static void adds_to_rounded(zinf_plan *p, uint32_t i)
{
    p->instrs[i].flags = ZINF_FLAG_ACCUMULATE;
    p->instrs[i].attr[3] = 1;
    typed(operand(p, i, p->instrs[i].opcode == ZINF_OP_CLASSIFIER ? 4 : 2), ZINF_BF16);
}
static void other_width(zinf_plan *p, uint32_t i) { p->model.hidden += i > 0; }
static void no_whole_sequence(zinf_plan *p, uint32_t i)
{
    p->job.sequence = p->instrs[i].attr[3] = 3;
}
static void other_head_count(zinf_plan *p, uint32_t i) { p->model.heads += i > 0; }
static void heads_of(zinf_plan *p, uint32_t i, uint64_t heads, uint64_t groups, uint64_t dim)
{
    const uint64_t n = operand(p, i, 0)->rows, values[] = {heads, groups, dim};
    memcpy(p->instrs[i].attr, values, sizeof values);
    p->model.heads = heads;
    p->model.kv_heads = groups;
    p->model.head_dim = dim;
    sized(operand(p, i, 0), n, (heads + 2 * groups) * dim);
    sized(operand(p, i, 1), n, heads * dim);
    sized(operand(p, i, 2), n / p->job.sequence, heads * p->job.sequence);
}
static void narrower(zinf_plan *p, uint32_t i)
{
    for (uint32_t slot = 0; slot < 2; slot++)
        sized(operand(p, i, slot), operand(p, i, slot)->rows, operand(p, i, slot)->cols - 2);
}
static void odd_head(zinf_plan *p, uint32_t i)
{
    p->model.head_dim = p->instrs[i].attr[2] = 7;
    for (uint32_t slot = 0; slot < 2; slot++)
        sized(operand(p, i, slot), operand(p, i, slot)->rows,
              (p->model.heads + 2 * p->model.kv_heads) * 7);
}
static void one_kv_head(zinf_plan *p, uint32_t i)
{
    p->instrs[i].attr[1] = 1;
    sized(operand(p, i, 0), operand(p, i, 0)->rows, (p->model.heads + 2) * p->model.head_dim);
}
static void narrow_heads(zinf_plan *p, uint32_t i)
{
    const uint64_t dim = p->model.head_dim;

    heads_of(p, i, 2, 2, dim / 2);
    p->model.head_dim = dim;
}
static void odd_groups(zinf_plan *p, uint32_t i) { heads_of(p, i, 3, 2, 8); }
static void no_groups(zinf_plan *p, uint32_t i) { heads_of(p, i, 2, 0, 8); }
static void wide_head(zinf_plan *p, uint32_t i) { heads_of(p, i, 1, 1, 32769); }
static void same_type(zinf_plan *p, uint32_t i)
{
    typed(operand(p, i, 0), ZINF_BF16);
    typed(operand(p, i, 1), ZINF_BF16);
}
static void odd_sum(zinf_plan *p, uint32_t i)
{
    for (uint32_t slot = 0; slot < 2; slot++)
        sized(operand(p, i, slot), 1, operand(p, i, slot)->cols + 1);
}
static void less_of_a_shard(zinf_plan *p, uint32_t i)
{
    for (uint32_t slot = 0; slot < 3; slot++)
        sized(operand(p, i, slot), 1, operand(p, i, slot)->cols - 1);
}
static void short_table(zinf_plan *p, uint32_t i)
{
    p->model.context = p->job.sequence / 2;
    sized(operand(p, i, 1), p->model.context, p->model.hidden);
}
static void strided(zinf_plan *p, uint32_t i) { operand(p, i, 3)->stride = 2; }

static void each_broken_rule_is_named(void)
{
    static const struct {
        const trainer_model *model;
        unsigned ranks, opcode;
        void (*change)(zinf_plan *plan, uint32_t instr);
        const char *word;
    } cases[] = {
        {&gpt2, 1, ZINF_OP_CLASSIFIER, other_total, "attr2 is not the tokens"},
        {&gpt2, 1, ZINF_OP_CLASSIFIER, other_flags, "contradict each other"},
        {&gpt2, 1, ZINF_OP_CLASSIFIER, flags_of_nothing, "contradict each other"},
        {&gpt2, 1, ZINF_OP_EMBEDDING_FORWARD, beyond, "its tile ends beyond the vocabulary"},
        {&gpt2, 1, ZINF_OP_GELU_FORWARD, other_ffn, "not as wide as the model's ffn"},
        {&gpt2, 1, ZINF_OP_EMBEDDING_FORWARD, other_sequence, "its sequences have"},
        {&gpt2, 1, ZINF_OP_LINEAR_FORWARD, more_scratch, "its scratch has"},
        {&gpt2, 1, ZINF_OP_ATTENTION_BACKWARD, odd_scratch, "is not aligned to 64 bytes"},
        {&llama, 1, ZINF_OP_ROPE, other_heads, "it turns other heads"},
        {&llama, 1, ZINF_OP_ROPE, narrower, "it turns other heads"},
        {&llama, 1, ZINF_OP_ROPE, half_a_head, "it turns other heads"},
        {&llama, 1, ZINF_OP_ROPE, odd_head, "it turns other heads"},
        {&gpt2, 1, ZINF_OP_ATTENTION_FORWARD, one_kv_head, "its heads are not the model's"},
        {&gpt2, 1, ZINF_OP_ATTENTION_FORWARD, narrow_heads, "its heads are not the model's"},
        {&llama, 1, ZINF_OP_ROPE, other_turn, "is neither 0 nor 1"},
        {&llama, 1, ZINF_OP_ROPE, other_place, "its two operands are two places"},
        {&gpt2, 2, ZINF_OP_BROADCAST, half_gathered, "differ in bytes"},
        {&gpt2, 2, ZINF_OP_BROADCAST, no_rank, "its root is no rank"},
        {&gpt2, 2, ZINF_OP_BROADCAST, other_root, "its unit is not that of its root"},
        {&gpt2, 1, ZINF_OP_LOSS, more_tokens, "is not a part of all tokens"},
        {&gpt2, 2, ZINF_OP_REDUCE, no_rank, "its root is no rank"},
        {&llama, 2, ZINF_OP_ALLGATHER, half_gathered, "one side is not the other times"},
        {&gpt2, 1, ZINF_OP_UPLOAD, half_gathered, "differ in bytes"},
        {&gpt2, 1, ZINF_OP_ADAM, no_unit, "it serves no unit"},
        {&gpt2, 1, ZINF_OP_ADAM, other_decay, "weight decay applies to its unit"},
        {&gpt2, 1, ZINF_OP_INIT, no_unit, "it serves no unit"},
        {&gpt2, 1, ZINF_OP_EMBEDDING_FORWARD, one_sequence_more, "do not satisfy N=B*T"},
        {&gpt2, 1, ZINF_OP_CLASSIFIER, adds_to_rounded, "dh is accumulated, but not F32"},
        {&gpt2, 1, ZINF_OP_LINEAR_BACKWARD_INPUT, adds_to_rounded, "dx is accumulated, but not"},
        {&gpt2, 1, ZINF_OP_EMBEDDING_FORWARD, other_width, "not as wide as the model"},
        {&llama, 1, ZINF_OP_ROPE, no_whole_sequence, "its rows are no whole sequences"},
        {&gpt2, 1, ZINF_OP_ATTENTION_FORWARD, other_head_count, "its heads are not the model's"},
        {&gpt2, 1, ZINF_OP_ATTENTION_FORWARD, odd_groups, "no multiple of kv heads"},
        {&gpt2, 1, ZINF_OP_ATTENTION_FORWARD, no_groups, "no multiple of kv heads"},
        {&gpt2, 1, ZINF_OP_ATTENTION_FORWARD, wide_head, "wider than 32768"},
        {&gpt2, 1, ZINF_OP_CONVERT, same_type, "the same element type"},
        {&gpt2, 2, ZINF_OP_REDUCE, odd_sum, "no multiple of the number of ranks"},
        {&gpt2, 1, ZINF_OP_INIT, less_of_a_shard, "exactly the unit's shard"},
        {&gpt2, 1, ZINF_OP_POSITION_BACKWARD, short_table, "longer than the table of positions"},
        {&gpt2, 1, ZINF_OP_LAYERNORM_FORWARD, strided, "is written, has a stride"},
    };

    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        zinf_plan p = {0};
        zinf_error err = {0};
        const unsigned opcode = cases[k].opcode;
        const bool owned = opcode == ZINF_OP_BROADCAST || opcode == ZINF_OP_REDUCE;
        char sets[200];
        uint32_t i = 0;

        snprintf(sets, sizeof sets, "threads=1 tiles=1 tier.param=host tier.grad=host "
                 "tier.optimizer=host checkpoint_interval=1 %s",
                 owned ? "partitioning=owner"
                       : cases[k].ranks > 1 ? "partitioning=bandwidth" : "");

        CHECK_MESSAGE(!trainer_plan_ranks(cases[k].model, false, cases[k].ranks, sets, &p, &err),
                      "%s", err.text);
        while (i < p.n_instrs && p.instrs[i].opcode != opcode)
            i++;
        CHECK_MESSAGE(i < p.n_instrs, "case %zu: no such instruction", k);
        cases[k].change(&p, i);
        zinf_status status = zinf_plan_check_shapes(&p, i, &err);
        if (status == ZINF_OK) /* another's rule */
            status = zinf_plan_check(&p, &err);
        zinf_plan_free(&p);
        CHECK_MESSAGE(status == ZINF_DOES_NOT_FIT && strstr(err.text, cases[k].word),
                      "case %zu, \"%s\": %s", k, cases[k].word, err.text);
    }
}

/* ---- each operand of each opcode by itself ---- */

static const struct {
    const trainer_model *model;
    unsigned ranks;
    const char *sets;
} plans[] = {
    {&gpt2, 1, "tiles=2 tier.param=nvme tier.grad=host tier.optimizer=host"},
    {&gpt2, 1, "tiles=1 optimizer_time=forward tier.param=host tier.grad=host tier.optimizer=host"},
    {&llama, 1, "tiles=1 tiles.vocab=2 tier.param=host tier.grad=device tier.optimizer=host"},
    {&llama, 2, "tiles=2 partitioning=bandwidth tier.param=host tier.grad=host "
                "tier.optimizer=nvme"},
    {&gpt2, 2, "tiles=1 partitioning=owner tier.param=host tier.grad=host tier.optimizer=host"},
};

typedef enum change { OTHER_TYPE, MORE_ROWS, MORE_COLS, MORE_LD, N_CHANGES } change;

/* False: there is no other type of that size, or no second row. */
static bool make(zinf_operand *o, change how, bool direct)
{
    const uint64_t element = zinf_dtype_bytes(o->dtype);
    const uint64_t more = direct ? ZINF_PAGE / element : 1;

    switch (how) {
    case OTHER_TYPE:
        o->dtype = o->dtype == ZINF_F32 ? ZINF_I32 : o->dtype == ZINF_I32 ? ZINF_F32
                   : o->dtype == ZINF_BF16 ? ZINF_F16 : o->dtype;
        return o->dtype != ZINF_F64;
    case MORE_ROWS:
        o->rows += more;
        break;
    case MORE_COLS:
        o->cols += more;
        o->ld += more;
        break;
    default:
        o->ld += more;
        if (o->rows == 1)
            return false;
    }
    o->bytes = ((o->rows - 1) * o->ld + o->cols) * element;
    return true;
}

/* What shapes leave open: how far rows of columns are apart, and what has no partner in its own
 * instruction. plan_content.c and the checker do not (test_mutations). */
static bool is_open(const zinf_instr *instr, uint32_t slot, change how)
{
    const bool scratch = zinf_opcode_get(instr->opcode)->access[slot] == 's';

    if (scratch) /* logits have a shape, the rest is bytes */
        return how == MORE_LD || (how == OTHER_TYPE && slot + 1 == instr->n_operands);
    switch (instr->opcode) {
    case ZINF_OP_UPLOAD:
    case ZINF_OP_DOWNLOAD:
    case ZINF_OP_READ:
    case ZINF_OP_WRITE:
        return how == OTHER_TYPE;
    case ZINF_OP_ZERO:
        return true;
    case ZINF_OP_BATCH:
    case ZINF_OP_LOSS:
        return slot == 0 && how == MORE_ROWS;
    case ZINF_OP_SUM_OF_SQUARES:
    case ZINF_OP_CLIP:
        return slot == 0 && how != OTHER_TYPE;
    case ZINF_OP_EMBEDDING_FORWARD:
        return slot == 1 && how == MORE_ROWS;
    case ZINF_OP_EMBEDDING_BACKWARD:
        return slot == 2 && how == MORE_ROWS;
    case ZINF_OP_LINEAR_FORWARD:
        return (slot == 3 || slot == 4) && how == MORE_LD;
    case ZINF_OP_LINEAR_BACKWARD_INPUT:
    case ZINF_OP_LINEAR_BACKWARD_WEIGHT:
        return slot == 0 && how == MORE_LD;
    default:
        return false;
    }
}

static void an_operand_of_another_shape_or_type_is_refused(void)
{
    bool seen[ZINF_N_OPCODES][ZINF_MAX_OPERANDS] = {{false}};

    for (size_t k = 0; k < sizeof plans / sizeof *plans; k++) {
        zinf_plan p = {0};
        zinf_error err = {0};
        char sets[300];
        snprintf(sets, sizeof sets, "threads=1 checkpoint_interval=1 micro_batch=1 %s",
                 plans[k].sets);
        CHECK_MESSAGE(!trainer_plan_ranks(plans[k].model, false, plans[k].ranks, sets, &p, &err),
                      "%s", err.text);
        for (uint32_t i = 0; i < p.n_instrs; i++) {
            const unsigned opcode = p.instrs[i].opcode;
            const bool direct = opcode == ZINF_OP_READ || opcode == ZINF_OP_WRITE;
            for (uint32_t slot = 0; slot < p.instrs[i].n_operands; slot++) {
                zinf_operand *o = operand(&p, i, slot), good = *o;
                for (change how = 0; how < N_CHANGES && !seen[opcode][slot]; how++) {
                    memset(&err, 0, sizeof err);
                    if (o->bytes && !is_open(&p.instrs[i], slot, how) && make(o, how, direct))
                        CHECK_MESSAGE(zinf_plan_check_shapes(&p, i, &err) == ZINF_DOES_NOT_FIT,
                                      "%s, operand %u, change %u", zinf_opcode_get(opcode)->name,
                                      slot, how);
                    *o = good;
                }
                seen[opcode][slot] |= good.bytes > 0;
            }
        }
        zinf_plan_free(&p);
    }
    for (unsigned opcode = 0; opcode < ZINF_N_OPCODES; opcode++)
        for (uint32_t slot = 0; zinf_opcode_get(opcode)->access[slot]; slot++)
            CHECK_MESSAGE(seen[opcode][slot] || opcode == ZINF_OP_COPY,
                          "operand %u of %s was not looked at", slot,
                          zinf_opcode_get(opcode)->name);
}

int main(void)
{
    RUN(each_broken_rule_is_named);
    RUN(an_operand_of_another_shape_or_type_is_refused);
    return check_finish();
}
