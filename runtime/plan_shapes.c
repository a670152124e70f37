/* runtime/plan_shapes.c - the shape rules of opcodes.h as a table, and their reader.
 *
 * A rule is one slot after another, separated by '|': element type, rows, columns.
 *   type: a activation, f F32, g either, i I32, d F64, * any but F64, z any; s scratch (no shape)
 *   rows: an expression, or v: any matrix without gaps of that many elements in all
 *   columns: an expression; followed by ~ if it may be some columns of a matrix (ld > cols): those
 *   of a tile, whose place and distance the checker knows
 * An expression is letters and numbers with + and *, strictly from left to right. A letter that
 * stands first is bound by its first use (in "T+1" to one less), then must agree. `attrs` binds
 * letters to attr[0..3] beforehand; `also` is one more equation.
 */
#include "runtime/plan_shapes.h"

#include <inttypes.h>
#include <stddef.h>

#include "kernels/kernels.h"
#include "runtime/opcodes.h"

typedef struct shape_rule {
    const char *attrs, *slots, *also;
} shape_rule;

#define CLASSIFIER_SLOTS "a N C|a V C|i B T+1|f N 3|g N C|f V C|f L V~|a L V~|s"
#define BYTES_SLOTS "* v E|* v O"

static const shape_rule rules[ZINF_N_OPCODES] = {
    [ZINF_OP_EMBEDDING_FORWARD] = {"F", "i B T+1|a V C|a T C|a N C", "N=B*T"},
    [ZINF_OP_EMBEDDING_BACKWARD] = {"F", "i B T+1|a N C|f V C", "N=B*T"},
    [ZINF_OP_POSITION_BACKWARD] = {"BT", "a N C|f X C", "N=B*T"},
    [ZINF_OP_LAYERNORM_FORWARD] = {"", "a N C|a v C|a v C|a N C|f N 2", ""},
    [ZINF_OP_LAYERNORM_BACKWARD] = {"", "g N C|a N C|a v C|f N 2|a N C|a N C|f v C|f v C|s", ""},
    [ZINF_OP_RMSNORM_FORWARD] = {"", "a N C|a v C|a N C|f N 1", ""},
    [ZINF_OP_RMSNORM_BACKWARD] = {"", "g N C|a N C|a v C|f N 1|a N C|a N C|f v C|s", ""},
    [ZINF_OP_LINEAR_FORWARD] = {"", "a N K|a M K|a v M|a N M~|a N M~|s", ""},
    [ZINF_OP_LINEAR_BACKWARD_INPUT] = {"", "a N M~|a M K|g N K|s", ""},
    [ZINF_OP_LINEAR_BACKWARD_WEIGHT] = {"", "a N M~|a N K|f M K|f v M|s", ""},
    [ZINF_OP_ROPE] = {"RIDT", "a N W|a N W", ""},
    [ZINF_OP_ATTENTION_FORWARD] = {"HGDT", "a N 2*G+H*D|a N H*D|f B H*T|s", "N=B*T"},
    [ZINF_OP_ATTENTION_BACKWARD] = {"HGDT", "a N 2*G+H*D|a N H*D|a N H*D|f B H*T|a N 2*G+H*D|s",
                                    "N=B*T"},
    [ZINF_OP_GELU_FORWARD] = {"", "a N F|a N F", ""},
    [ZINF_OP_GELU_BACKWARD] = {"", "a N F|g N F|a N F", ""},
    [ZINF_OP_SWIGLU_FORWARD] = {"", "a N W|a N F", "W=F*2"},
    [ZINF_OP_SWIGLU_BACKWARD] = {"", "a N W|g N F|a N W", "W=F*2"},
    [ZINF_OP_CLASSIFIER_FORWARD] = {"FL", "a N C|a V C|i B T+1|f N 3|f L V~|s", "N=B*T"},
    [ZINF_OP_CLASSIFIER_BACKWARD] = {"FL", CLASSIFIER_SLOTS, "N=B*T"},
    [ZINF_OP_CLASSIFIER] = {"FL", CLASSIFIER_SLOTS, "N=B*T"},
    [ZINF_OP_LOSS] = {"", "f N 3|d 1 1", ""},
    [ZINF_OP_LOGITS] = {"", "a T C|a V C|f 1 V|s", ""},
    [ZINF_OP_CONVERT] = {"", "g v E|g v E", ""},
    [ZINF_OP_ACCUMULATE] = {"", "f v E|f v E", ""},
    [ZINF_OP_SUM_OF_SQUARES] = {"", "f v E|d 1 1", ""},
    [ZINF_OP_CLIP] = {"", "d v U|d v 5", ""},
    [ZINF_OP_ADAM] = {"", "f v E|f v E|f v E|f v E|a v E|d v 5", ""},
    [ZINF_OP_UPLOAD] = {"", BYTES_SLOTS, ""},
    [ZINF_OP_DOWNLOAD] = {"", BYTES_SLOTS, ""},
    [ZINF_OP_READ] = {"", BYTES_SLOTS, ""},
    [ZINF_OP_WRITE] = {"", BYTES_SLOTS, ""},
    [ZINF_OP_COPY] = {"", BYTES_SLOTS, ""},
    [ZINF_OP_ALLGATHER] = {"", BYTES_SLOTS, ""},
    [ZINF_OP_REDUCE_SCATTER] = {"", "f v E|f v O", ""},
    [ZINF_OP_REDUCE] = {"", "f v E|f v E", ""},
    [ZINF_OP_ALLREDUCE] = {"", "d v E|d v E", ""},
    [ZINF_OP_BROADCAST] = {"", BYTES_SLOTS, ""},
    [ZINF_OP_BATCH] = {"", "i R T+1", ""},
    [ZINF_OP_INIT] = {"", "f v E|f v E|f v E", ""},
    [ZINF_OP_IMPORT] = {"", "f v E|f v E|f v E", ""},
    [ZINF_OP_EXPORT] = {"", "f v E|f v E|f v E", ""},
    [ZINF_OP_ZERO] = {"", "z v E", ""},
};

typedef struct shape_letters {
    uint64_t value[26];
    bool bound[26];
} shape_letters;

static bool is_letter(char c)
{
    return c >= 'A' && c <= 'Z';
}

/* One letter or number; an unbound letter is a mistake in the table and counts as 0. */
static uint64_t term(const char **at, const shape_letters *letters)
{
    uint64_t number = 0;

    if (is_letter(**at))
        return letters->value[*(*at)++ - 'A'];
    while (**at >= '0' && **at <= '9')
        number = number * 10 + (uint64_t)(*(*at)++ - '0');
    return number;
}

/* Does the expression at *at equal `actual`? Leaves *at behind it. Too large a product is no
 * size of an operand, so it is simply unequal. */
static bool dimension_is(const char **at, uint64_t actual, shape_letters *letters)
{
    const char first = **at, operator = (*at)[1];

    if (is_letter(first) && !letters->bound[first - 'A']) {
        uint64_t extra = operator == '+' ? (uint64_t)((*at)[2] - '0') : 0;
        if (actual <= extra)
            return false;
        letters->value[first - 'A'] = actual - extra;
        letters->bound[first - 'A'] = true;
    }
    uint64_t total = term(at, letters);
    bool overflow = false;
    while (**at == '+' || **at == '*') {
        const char sign = *(*at)++;
        const uint64_t next = term(at, letters);
        overflow |= sign == '+' ? __builtin_add_overflow(total, next, &total)
                                : __builtin_mul_overflow(total, next, &total);
    }
    return !overflow && total == actual;
}

static bool dtype_is(char rule, unsigned dtype, unsigned act)
{
    switch (rule) {
    case 'a':
        return dtype == act;
    case 'f':
        return dtype == ZINF_F32;
    case 'g':
        return dtype == act || dtype == ZINF_F32;
    case 'i':
        return dtype == ZINF_I32;
    case 'd':
        return dtype == ZINF_F64;
    case 'z':
        return true;
    default: /* any element, but not a scalar */
        return dtype != ZINF_F64;
    }
}

#define REFUSE(...) zinf_fail(err, ZINF_DOES_NOT_FIT, __VA_ARGS__)
/* The checker's rule that a wrong shape breaks: operands are not what the instruction works on. */
#define HERE "%s: instruction %" PRIu32 " (%s \"%s\")"
#define HERE_ARGS                                                                                \
    rule_of(instr->opcode), index, zinf_opcode_get(instr->opcode)->name,                         \
        &plan->strings[instr->name]

static const char *rule_of(unsigned opcode)
{
    return opcode == ZINF_OP_ADAM ? "C7"
           : opcode >= ZINF_OP_ALLGATHER && opcode <= ZINF_OP_BROADCAST ? "C6" : "C4";
}

static zinf_status check_slots(const zinf_plan *plan, uint32_t index, shape_letters *letters,
                               zinf_error *err)
{
    const zinf_instr *instr = &plan->instrs[index];
    const zinf_operand *operands = &plan->operands[instr->operand0];
    const char *at = rules[instr->opcode].slots;

    for (unsigned slot = 0; slot < instr->n_operands; slot++) {
        const zinf_operand *operand = &operands[slot];
        const char *next = at;
        while (*next && *next != '|')
            next++;
        if (operand->bytes == 0) {
            if (!zinf_operand_access(instr, slot).optional)
                return REFUSE(HERE ": operand %u is absent, but only an optional one may be",
                              HERE_ARGS, slot);
        } else if (*at != 's') {
            if (!dtype_is(*at, operand->dtype, plan->job.precision))
                return REFUSE(HERE ": operand %u has element type %s, which this slot does not "
                              "take (rule \"%.*s\")", HERE_ARGS, slot,
                              zinf_dtype_name(operand->dtype), (int)(next - at), at);
            const bool may_gap = next[-1] == '~', flat = at[2] == 'v';
            const char *rule = at + 2;
            bool fits = may_gap || operand->rows == 1 || operand->ld == operand->cols;
            if (flat) {
                rule += 2;
                fits = fits && dimension_is(&rule, operand->rows * operand->cols, letters);
            } else {
                fits = fits && dimension_is(&rule, operand->rows, letters);
                rule++;
                fits = fits && dimension_is(&rule, operand->cols, letters);
            }
            if (!fits)
                return REFUSE(HERE ": operand %u is [%" PRIu64 "][%" PRIu64 "], ld %" PRIu64
                              ", which does not agree with the other operands (rule \"%.*s\" of "
                              "\"%s\")", HERE_ARGS, slot, operand->rows, operand->cols,
                              operand->ld, (int)(next - at), at, rules[instr->opcode].slots);
        }
        at = *next ? next + 1 : next;
    }
    return ZINF_OK;
}

/* Scratch of the kernels of this instruction: no less, and no more, because a GEMM sums in blocks
 * that its scratch has room for. The sizes are kernels.h's promise. */
static uint64_t scratch_bytes(const zinf_plan *plan, const zinf_instr *instr,
                              const shape_letters *letters)
{
#define LETTER(c) letters->value[(c) - 'A']
    const uint64_t threads = plan->decisions.n_threads;
    uint64_t gemm = 0, other = 0;

    switch (instr->opcode) {
    case ZINF_OP_LAYERNORM_BACKWARD:
        return zinf_layernorm_scratch_bytes(LETTER('C'));
    case ZINF_OP_RMSNORM_BACKWARD:
        return zinf_rmsnorm_scratch_bytes(LETTER('C'));
    case ZINF_OP_LINEAR_BACKWARD_WEIGHT:
        other = zinf_column_sum_scratch_bytes(LETTER('M'));
        /* fall through */
    case ZINF_OP_LINEAR_FORWARD:
    case ZINF_OP_LINEAR_BACKWARD_INPUT:
        gemm = zinf_gemm_scratch_bytes(LETTER('N'), LETTER('M'), LETTER('K'), threads);
        return gemm > other ? gemm : other;
    case ZINF_OP_ATTENTION_FORWARD:
    case ZINF_OP_ATTENTION_BACKWARD:
        return zinf_attention_scratch_bytes(LETTER('T'), LETTER('D'), threads);
    case ZINF_OP_CLASSIFIER_FORWARD:
    case ZINF_OP_CLASSIFIER_BACKWARD:
    case ZINF_OP_CLASSIFIER:
        return zinf_gemm_scratch_bytes(LETTER('L'), LETTER('V'), LETTER('C'), threads);
    case ZINF_OP_LOGITS:
        return zinf_gemm_scratch_bytes(1, LETTER('V'), LETTER('C'), threads);
    default:
        return 0;
    }
}

/* What shapes alone do not say. */
static zinf_status check_meaning(const zinf_plan *plan, uint32_t index,
                                 const shape_letters *letters, zinf_error *err)
{
    const zinf_instr *instr = &plan->instrs[index];
    const zinf_operand *operands = &plan->operands[instr->operand0];
    const bool accumulates = instr->flags & ZINF_FLAG_ACCUMULATE;
    const zinf_model_info *model = &plan->model;
    const char *wrong = NULL;
    uint64_t end_row, want;

    if (letters->bound['T' - 'A'] && LETTER('T') != plan->job.sequence)
        return REFUSE(HERE ": its sequences have %" PRIu64 " tokens, the job's %" PRIu64, HERE_ARGS,
                      LETTER('T'), plan->job.sequence);
    switch (instr->opcode) {
    case ZINF_OP_CLASSIFIER:
    case ZINF_OP_CLASSIFIER_BACKWARD:
        if (instr->attr[2] != plan->job.global_batch * plan->job.sequence) /* 32 and 31 bits */
            wrong = "attr2 is not the tokens of the global batch";
        else if (instr->attr[3] > 3 || accumulates != (instr->attr[3] != 0))
            wrong = "attr3 and the ACCUMULATE flag contradict each other";
        else if ((instr->attr[3] & 1) && operands[4].dtype != ZINF_F32)
            wrong = "dh is accumulated, but not F32";
        else if (instr->opcode == ZINF_OP_CLASSIFIER && LETTER('V') != model->vocab)
            wrong = "it makes statistics of one tile of several";
        /* fall through */
    case ZINF_OP_EMBEDDING_FORWARD:
    case ZINF_OP_EMBEDDING_BACKWARD:
    case ZINF_OP_CLASSIFIER_FORWARD:
        if (__builtin_add_overflow(instr->attr[0], LETTER('V'), &end_row) ||
            end_row > model->vocab)
            wrong = "its tile ends beyond the vocabulary";
        else if (LETTER('C') != model->hidden)
            wrong = "its rows are not as wide as the model";
        break;
    case ZINF_OP_GELU_FORWARD:
    case ZINF_OP_GELU_BACKWARD:
    case ZINF_OP_SWIGLU_FORWARD:
    case ZINF_OP_SWIGLU_BACKWARD:
        if (LETTER('F') != model->ffn)
            wrong = "its rows are not as wide as the model's ffn";
        break;
    case ZINF_OP_LINEAR_BACKWARD_INPUT:
        if (accumulates && operands[2].dtype != ZINF_F32)
            wrong = "dx is accumulated, but not F32";
        break;
    case ZINF_OP_ROPE:
        /* heads fit 32 bits, head_dim 17 */
        want = (model->heads + 2 * model->kv_heads) * model->head_dim;
        if (instr->attr[0] != model->heads + model->kv_heads || LETTER('W') != want ||
            instr->attr[2] != model->head_dim || instr->attr[2] % 2)
            wrong = "it turns other heads than the model's queries and keys, or odd ones";
        else if (LETTER('N') % LETTER('T'))
            wrong = "its rows are no whole sequences";
        else if (instr->attr[1] > 1)
            wrong = "attr1, whether it turns back, is neither 0 nor 1";
        break;
    case ZINF_OP_ATTENTION_FORWARD:
    case ZINF_OP_ATTENTION_BACKWARD:
        if (instr->attr[0] != model->heads || instr->attr[1] != model->kv_heads ||
            instr->attr[2] != model->head_dim)
            wrong = "its heads are not the model's";
        else if (instr->attr[1] == 0 || instr->attr[0] % instr->attr[1])
            wrong = "query heads are no multiple of kv heads";
        else if (instr->attr[2] > 1 << 15)
            wrong = "a head is wider than 32768";
        break;
    case ZINF_OP_CONVERT:
        if (operands[0].dtype == operands[1].dtype && plan->job.precision != ZINF_F32)
            wrong = "both sides have the same element type";
        break;
    case ZINF_OP_ALLGATHER:
    case ZINF_OP_REDUCE_SCATTER:
        if (operands[0].dtype != operands[1].dtype)
            wrong = "its two operands differ in element type";
        want = operands[instr->opcode == ZINF_OP_ALLGATHER ? 0 : 1].bytes;
        if (__builtin_mul_overflow(want, plan->decisions.ranks, &want) ||
            want != operands[instr->opcode == ZINF_OP_ALLGATHER ? 1 : 0].bytes)
            wrong = "one side is not the other times the number of ranks";
        break;
    case ZINF_OP_UPLOAD:
    case ZINF_OP_DOWNLOAD:
    case ZINF_OP_READ:
    case ZINF_OP_WRITE:
    case ZINF_OP_COPY:
    case ZINF_OP_BROADCAST:
        if (operands[0].bytes != operands[1].bytes)
            wrong = "its two operands differ in bytes";
        else if (instr->opcode >= ZINF_OP_ALLREDUCE && operands[0].dtype != operands[1].dtype)
            wrong = "its two operands differ in element type";
        else if (instr->opcode == ZINF_OP_BROADCAST && instr->attr[0] >= plan->decisions.ranks)
            wrong = "its root is no rank";
        break;
    case ZINF_OP_REDUCE:
        if (instr->attr[0] >= plan->decisions.ranks)
            wrong = "its root is no rank";
        else if (LETTER('E') % plan->decisions.ranks)
            wrong = "its elements are no multiple of the number of ranks";
        break;
    case ZINF_OP_ADAM:
        if (instr->unit >= plan->n_units)
            wrong = "it serves no unit";
        else if (instr->attr[0] != plan->units[instr->unit].decays)
            wrong = "weight decay applies to its unit, or does not, unlike attr0 says";
        break;
    case ZINF_OP_INIT:
    case ZINF_OP_IMPORT:
    case ZINF_OP_EXPORT:
        if (instr->unit >= plan->n_units)
            wrong = "it serves no unit";
        else if (LETTER('E') != plan->units[instr->unit].shard_elems)
            wrong = "its operands do not hold exactly the unit's shard";
        break;
    case ZINF_OP_POSITION_BACKWARD:
        if (LETTER('X') != model->context)
            wrong = "it is not of the whole table of positions";
        else if (LETTER('T') > LETTER('X'))
            wrong = "the sequence is longer than the table of positions";
        break;
    default:
        break;
    }
    if (wrong)
        return REFUSE(HERE ": %s", HERE_ARGS, wrong);
    return ZINF_OK;
}

zinf_status zinf_plan_check_shapes(const zinf_plan *plan, uint32_t index, zinf_error *err)
{
    const zinf_instr *instr = &plan->instrs[index];
    const char *access = zinf_opcode_get(instr->opcode)->access;
    const shape_rule *rule = &rules[instr->opcode];
    shape_letters letters = {0};

    for (int i = 0; rule->attrs[i]; i++) {
        letters.value[rule->attrs[i] - 'A'] = instr->attr[i];
        letters.bound[rule->attrs[i] - 'A'] = true;
    }
    if (check_slots(plan, index, &letters, err))
        return err->status;
    if (*rule->also) {
        const char *at = rule->also + 2;
        if (!dimension_is(&at, letters.value[*rule->also - 'A'], &letters))
            return REFUSE(HERE ": its operands do not satisfy %s", HERE_ARGS, rule->also);
    }
    if (check_meaning(plan, index, &letters, err))
        return err->status;
    for (unsigned slot = 0; slot < instr->n_operands; slot++) {
        if ((access[slot] | 0x20) != 's' || rule->slots[0] == 0)
            continue;
        /* the last slot is the kernels' scratch; logits and dlogits have shapes */
        const uint64_t need = scratch_bytes(plan, instr, &letters);
        const uint64_t have = plan->operands[instr->operand0 + slot].bytes;
        if (slot + 1 == instr->n_operands && have != need)
            return REFUSE(HERE ": its scratch has %" PRIu64 " bytes, its kernels' is %" PRIu64,
                          HERE_ARGS, have, need);
    }
    return ZINF_OK;
}
