/* tests/checker/mini.c - see mini.h: building the plans. */
#include "mini.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"
#include "tests/checker/restate.h"

/* MINI_SCRATCH: what plan_shapes.c asks of GEMMs this small. */
enum { MINI_TILE = MINI_V / MINI_TILES, CAP = 4096, MINI_SCRATCH = 4 * 2 * 256 + 262144 };

typedef struct buffer {
    uint64_t offset, bytes;
    zinf_tier tier;
} buffer;

typedef struct builder {
    zinf_plan plan;
    mini_options o;
    zinf_tier host;
    bool later; /* not the first micro-batch */
    uint32_t scalar_value, segment_first;
    buffer staging[2], ready[2]; /* parameters but the embedding's take turns in these */
    uint32_t turn;
    buffer scratch;
} builder;

static uint64_t pages(uint64_t bytes)
{
    return (bytes + ZINF_PAGE - 1) / ZINF_PAGE * ZINF_PAGE;
}

static uint32_t add_string(builder *b, const char *format, ...)
{
    zinf_plan *p = &b->plan;
    uint32_t at = p->n_strings;
    va_list args;

    va_start(args, format);
    p->n_strings += (uint32_t)vsnprintf(p->strings + at, 200, format, args) + 1;
    va_end(args);
    return at;
}

static uint32_t add_value(builder *b, const char *name)
{
    b->plan.values[b->plan.n_values] = add_string(b, "%s", name);
    return b->plan.n_values++;
}

static buffer add_buffer(builder *b, zinf_tier tier, uint64_t bytes)
{
    uint64_t *end = &b->plan.machine.arena_bytes[tier];
    buffer made = {*end, pages(bytes), tier};

    *end += pages(bytes);
    return made;
}

static zinf_operand view(buffer buf, uint32_t value, zinf_dtype dtype, uint64_t rows,
                         uint64_t cols)
{
    return (zinf_operand){.offset = buf.offset, .rows = rows, .cols = cols, .ld = cols,
                          .bytes = rows * cols * zinf_dtype_bytes(dtype), .value = value,
                          .tier = (uint8_t)buf.tier, .dtype = (uint8_t)dtype};
}

static zinf_operand new_view(builder *b, const char *name, zinf_dtype dtype, uint64_t rows,
                             uint64_t cols)
{
    buffer buf = add_buffer(b, ZINF_TIER_DEVICE, rows * cols * zinf_dtype_bytes(dtype));

    return view(buf, name ? add_value(b, name) : ZINF_NONE, dtype, rows, cols);
}

static zinf_operand scalars(const builder *b, uint64_t slot, uint64_t n)
{
    const uint32_t value = slot < ZINF_SCALAR_PARTIALS ? (uint32_t)slot : ZINF_SCALAR_PARTIALS;

    return view((buffer){8 * slot, 8 * n, ZINF_TIER_SCALAR}, b->scalar_value + value,
                ZINF_F64, 1, n);
}

static const zinf_operand absent = {.value = ZINF_NONE};

static void emit(builder *b, unsigned opcode, zinf_queue queue, unsigned flags, uint32_t unit,
                 const char *name, const zinf_operand *o)
{
    zinf_plan *p = &b->plan;
    zinf_instr *instr = &p->instrs[p->n_instrs++];

    *instr = (zinf_instr){.attr = {0, MINI_N, MINI_N * b->o.accumulation},
                          .opcode = (uint16_t)opcode, .queue = (uint8_t)queue,
                          .flags = (uint8_t)flags, .operand0 = p->n_operands,
                          .n_operands = (uint32_t)strlen(zinf_opcode_get(opcode)->access),
                          .name = add_string(b, "%s", name), .layer = -1, .unit = unit};
    if (opcode == ZINF_OP_POSITION_BACKWARD) {
        instr->attr[0] = MINI_B;
        instr->attr[1] = MINI_N / MINI_B;
    }
    if (opcode == ZINF_OP_LOSS)
        instr->attr[0] = instr->attr[2];
    memcpy(&p->operands[p->n_operands], o, instr->n_operands * sizeof *o);
    p->n_operands += instr->n_operands;
    if (opcode == ZINF_OP_LAYERNORM_BACKWARD)
        p->operands[p->n_operands - 1].cols = p->operands[p->n_operands - 1].ld =
            p->operands[p->n_operands - 1].bytes = zinf_layernorm_scratch_bytes(MINI_C);
}
#define EMIT(op, queue, flags, unit, name, ...)                                                  \
    emit(b, ZINF_OP_##op, ZINF_QUEUE_##queue, flags, unit, name, (zinf_operand[]){__VA_ARGS__})

static void end_segment(builder *b, uint64_t count)
{
    zinf_plan *p = &b->plan;

    p->segments[p->n_segments++] = (zinf_segment){
        .first_instr = b->segment_first, .n_instrs = p->n_instrs - b->segment_first,
        .count = count};
    b->segment_first = p->n_instrs;
}

/* ---- moving ---- */

static zinf_operand whole_pages(zinf_operand o)
{
    o.dtype = ZINF_U8;
    o.rows = 1;
    o.bytes = o.cols = o.ld = pages(o.bytes);
    return o;
}

static void copy(builder *b, uint32_t unit, const char *name, zinf_operand from, zinf_operand to)
{
    if (from.tier == ZINF_TIER_NVME)
        EMIT(READ, READ, 0, unit, name, whole_pages(from), whole_pages(to));
    else if (to.tier == ZINF_TIER_NVME)
        EMIT(WRITE, WRITE, 0, unit, name, whole_pages(from), whole_pages(to));
    else if (to.tier == ZINF_TIER_DEVICE)
        EMIT(UPLOAD, UPLOAD, 0, unit, name, from, to);
    else
        EMIT(DOWNLOAD, DOWNLOAD, 0, unit, name, from, to);
}

static zinf_operand move(builder *b, uint32_t unit, const char *name, zinf_operand from,
                         zinf_tier tier)
{
    if (from.tier == tier)
        return from;
    if (from.tier + tier == ZINF_TIER_DEVICE + ZINF_TIER_NVME && !b->o.unified)
        from = move(b, unit, name, from, ZINF_TIER_HOST);
    zinf_operand to = from;
    to.tier = (uint8_t)tier;
    to.offset = add_buffer(b, tier, from.bytes).offset;
    copy(b, unit, name, from, to);
    return to;
}

/* To a region, which the neighbouring tiers lead to. */
static void move_to(builder *b, uint32_t unit, const char *name, zinf_operand from,
                    zinf_operand to)
{
    if (from.tier == to.tier)
        return;
    if (from.tier + to.tier == ZINF_TIER_DEVICE + ZINF_TIER_NVME && !b->o.unified)
        from = move(b, unit, name, from, ZINF_TIER_HOST);
    copy(b, unit, name, from, to);
}

static zinf_operand region(const builder *b, uint32_t unit, const zinf_region *r)
{
    const zinf_unit *u = &b->plan.units[unit];
    const bool param = r == &u->param;
    const uint64_t n = r == &u->optimizer ? u->array_stride / 2 + u->n_elems : u->n_elems;

    return view((buffer){r->offset, r->bytes, (zinf_tier)r->tier}, r->value,
                param ? ZINF_BF16 : ZINF_F32, 1, n);
}
#define REGION(unit, which) region(b, unit, &b->plan.units[unit].which)

static zinf_operand param(builder *b, uint32_t unit)
{
    const char *name = b->plan.units[unit].name;
    zinf_operand o = REGION(unit, param), to = o;
    const uint32_t turn = b->turn++ % 2;

    if (o.tier != ZINF_TIER_DEVICE) {
        if (o.tier == ZINF_TIER_NVME && !b->o.unified) {
            to.offset = b->staging[turn].offset;
            to.tier = ZINF_TIER_HOST;
            copy(b, unit, name, o, to);
            o = to;
        }
        to.offset = b->ready[turn].offset;
        to.tier = ZINF_TIER_DEVICE;
        copy(b, unit, name, o, to);
        o = to;
    }
    o.rows = o.cols / MINI_C;
    o.cols = o.ld = MINI_C;
    return o;
}

/* ---- gradients ---- */

static zinf_operand grad_target(builder *b, uint32_t unit, bool second)
{
    zinf_operand o = REGION(unit, grad);

    if (o.tier != ZINF_TIER_DEVICE || b->later || second) {
        o.offset = add_buffer(b, ZINF_TIER_DEVICE, o.bytes).offset;
        o.tier = ZINF_TIER_DEVICE;
    }
    o.rows = o.cols / MINI_C;
    o.cols = o.ld = MINI_C;
    return o;
}

static void store_grad(builder *b, uint32_t unit, zinf_operand grad, bool second, bool last)
{
    const char *name = b->plan.units[unit].name;
    zinf_operand home = REGION(unit, grad), sum = home;
    const bool first = !b->later && !second;

    grad.cols = grad.ld = grad.rows * grad.cols;
    grad.rows = 1;
    if (home.tier == ZINF_TIER_DEVICE && !first) {
        EMIT(ACCUMULATE, COMPUTE, 0, unit, name, grad, home);
    } else if (home.tier != ZINF_TIER_DEVICE) {
        zinf_operand host = grad;
        if (first && home.tier == ZINF_TIER_HOST)
            copy(b, unit, name, grad, home);
        else
            sum = host = move(b, unit, name, grad, b->host);
        if (!first) {
            sum = move(b, unit, name, home, b->host);
            EMIT(ACCUMULATE, UPDATE, 0, unit, name, host, sum);
        } else if (home.tier == ZINF_TIER_HOST) {
            sum = home;
        }
    }
    if (last)
        emit(b, ZINF_OP_SUM_OF_SQUARES,
             sum.tier == b->host ? ZINF_QUEUE_UPDATE : ZINF_QUEUE_COMPUTE, 0, unit, name,
             (zinf_operand[]){sum, scalars(b, ZINF_SCALAR_PARTIALS + unit, 1)});
    if (home.tier == ZINF_TIER_NVME)
        copy(b, unit, name, sum, home);
}

/* ---- programs ---- */

typedef struct forward {
    zinf_operand tokens, x, y, norm_stats, stats, scratch;
} forward;

static zinf_operand vector(zinf_operand unit, uint64_t which)
{
    unit.offset += which * MINI_C * zinf_dtype_bytes((zinf_dtype)unit.dtype);
    unit.rows = 1;
    unit.bytes = MINI_C * zinf_dtype_bytes((zinf_dtype)unit.dtype);
    return unit;
}

static forward emit_forward(builder *b, zinf_operand all_tokens, uint64_t batch, bool loop)
{
    forward f;
    const uint64_t bytes = MINI_B * (MINI_T + 1) * 4;
    zinf_operand mine = all_tokens;

    mine.rows = MINI_B;
    mine.bytes = bytes;
    mine.offset += batch * bytes;
    mine.stride = loop ? bytes : 0;
    f.tokens = mine;
    if (!b->o.unified) {
        f.tokens = new_view(b, NULL, ZINF_I32, MINI_B, MINI_T + 1);
        f.tokens.value = mine.value;
        EMIT(UPLOAD, UPLOAD, 0, ZINF_NONE, "tokens", mine, f.tokens);
    }
    f.x = new_view(b, "x", ZINF_BF16, MINI_N, MINI_C);
    f.y = new_view(b, "y", ZINF_BF16, MINI_N, MINI_C);
    f.norm_stats = new_view(b, "norm stats", ZINF_F32, MINI_N, 2);
    f.stats = new_view(b, "stats", ZINF_F32, MINI_N, 3);
    f.scratch = view(b->scratch, ZINF_NONE, ZINF_U8, 1, MINI_SCRATCH);
    for (uint32_t t = 0; t < MINI_TILES; t++) {
        zinf_operand w = param(b, MINI_WTE + t);
        EMIT(EMBEDDING_FORWARD, COMPUTE, t ? ZINF_FLAG_ACCUMULATE : 0, MINI_WTE + t, "embedding",
             f.tokens, w, param(b, MINI_WPE), f.x);
        b->plan.instrs[b->plan.n_instrs - 1].attr[0] = MINI_TILE * t;
    }
    zinf_operand norm = param(b, MINI_NORM);
    EMIT(LAYERNORM_FORWARD, COMPUTE, 0, MINI_NORM, "norm", f.x, vector(norm, 0), vector(norm, 1),
         f.y, f.norm_stats);
    zinf_operand logits = new_view(b, NULL, ZINF_F32, MINI_N, MINI_TILE);
    for (uint32_t t = 0; t < MINI_TILES; t++) {
        EMIT(CLASSIFIER_FORWARD, COMPUTE, t ? ZINF_FLAG_ACCUMULATE : 0, MINI_WTE + t, "classifier",
             f.y, param(b, MINI_WTE + t), f.tokens, f.stats, logits, f.scratch);
        b->plan.instrs[b->plan.n_instrs - 1].attr[0] = MINI_TILE * t;
    }
    EMIT(LOSS, COMPUTE, b->later ? ZINF_FLAG_ACCUMULATE : 0, ZINF_NONE, "loss", f.stats,
         scalars(b, ZINF_SCALAR_LOSS, 1));
    return f;
}

static zinf_operand emit_batch(builder *b, uint64_t n)
{
    zinf_operand tokens = view(add_buffer(b, b->host, n * MINI_B * (MINI_T + 1) * 4),
                               add_value(b, "tokens"), ZINF_I32, n * MINI_B, MINI_T + 1);

    EMIT(BATCH, UPDATE, 0, ZINF_NONE, "batch", tokens);
    return tokens;
}

static void emit_micro_batch(builder *b, zinf_operand tokens, bool later)
{
    b->later = later;
    forward f = emit_forward(b, tokens, later, later);
    zinf_operand host_x = move(b, ZINF_NONE, "checkpoint", f.x, b->host);
    zinf_operand dy = new_view(b, "dy", ZINF_F32, MINI_N, MINI_C);
    zinf_operand dx = new_view(b, "dx", ZINF_BF16, MINI_N, MINI_C);
    zinf_operand logits = new_view(b, NULL, ZINF_F32, MINI_N, MINI_TILE);
    zinf_operand dlogits = new_view(b, NULL, ZINF_BF16, MINI_N, MINI_TILE);

    for (uint32_t t = 0; t < MINI_TILES; t++) {
        zinf_operand dw = grad_target(b, MINI_WTE + t, false);
        EMIT(CLASSIFIER_BACKWARD, COMPUTE, t ? ZINF_FLAG_ACCUMULATE : 0, MINI_WTE + t,
             "classifier grad", f.y, param(b, MINI_WTE + t), f.tokens, f.stats, dy, dw, logits,
             dlogits, f.scratch);
        b->plan.instrs[b->plan.n_instrs - 1].attr[0] = MINI_TILE * t;
        b->plan.instrs[b->plan.n_instrs - 1].attr[3] = t > 0;
        store_grad(b, MINI_WTE + t, dw, false, false);
    }
    zinf_operand x = move(b, ZINF_NONE, "checkpoint", host_x, ZINF_TIER_DEVICE);
    zinf_operand norm = param(b, MINI_NORM), dnorm = grad_target(b, MINI_NORM, false);
    EMIT(LAYERNORM_BACKWARD, COMPUTE, 0, MINI_NORM, "norm grad", dy, x, vector(norm, 0),
         f.norm_stats, absent, dx, vector(dnorm, 0), vector(dnorm, 1), f.scratch);
    store_grad(b, MINI_NORM, dnorm, false, true);
    for (uint32_t t = 0; t < MINI_TILES; t++) {
        zinf_operand dw = grad_target(b, MINI_WTE + t, true);
        EMIT(EMBEDDING_BACKWARD, COMPUTE, 0, MINI_WTE + t, "embedding grad", f.tokens, dx, dw);
        b->plan.instrs[b->plan.n_instrs - 1].attr[0] = MINI_TILE * t;
        store_grad(b, MINI_WTE + t, dw, true, true);
    }
    zinf_operand dwpe = grad_target(b, MINI_WPE, false);
    EMIT(POSITION_BACKWARD, COMPUTE, 0, MINI_WPE, "position grad", dx, dwpe);
    store_grad(b, MINI_WPE, dwpe, false, true);
}

static void split(const builder *b, uint32_t unit, zinf_operand chunk, zinf_operand ret[3])
{
    const zinf_unit *u = &b->plan.units[unit];

    for (int i = 0; i < 3; i++) {
        ret[i] = view((buffer){chunk.offset + (uint64_t)i * u->array_stride, 0,
                               (zinf_tier)chunk.tier}, chunk.value, ZINF_F32, 1, u->n_elems);
    }
}

static void emit_update(builder *b)
{
    const zinf_tier at = b->o.optimizer == ZINF_TIER_DEVICE ? ZINF_TIER_DEVICE : b->host;
    const zinf_queue queue = at == b->host ? ZINF_QUEUE_UPDATE : ZINF_QUEUE_COMPUTE;

    emit(b, ZINF_OP_CLIP, queue, 0, ZINF_NONE, "norm",
         (zinf_operand[]){scalars(b, ZINF_SCALAR_PARTIALS, MINI_UNITS),
                          scalars(b, ZINF_SCALAR_NORM, ZINF_N_UPDATE_SCALARS)});
    for (uint32_t u = 0; u < MINI_UNITS; u++) {
        const char *name = b->plan.units[u].name;
        zinf_operand o[6] = {move(b, u, name, REGION(u, grad), at)};
        zinf_operand chunk = move(b, u, name, REGION(u, optimizer), at);
        split(b, u, chunk, &o[1]);
        o[4] = REGION(u, param);
        if (o[4].tier != at) {
            o[4].tier = (uint8_t)at;
            o[4].offset = add_buffer(b, at, o[4].bytes).offset;
        }
        o[5] = scalars(b, ZINF_SCALAR_NORM, ZINF_N_UPDATE_SCALARS);
        emit(b, ZINF_OP_ADAM, queue, 0, u, name, o);
        b->plan.instrs[b->plan.n_instrs - 1].attr[0] = b->plan.units[u].decays;
        move_to(b, u, name, chunk, REGION(u, optimizer));
        move_to(b, u, name, o[4], REGION(u, param));
    }
}

static void emit_fill(builder *b, unsigned opcode)
{
    for (uint32_t u = 0; u < MINI_UNITS; u++) {
        const char *name = b->plan.units[u].name;
        zinf_operand o[3], chunk = REGION(u, optimizer), to = REGION(u, param);
        if (chunk.tier != b->host) {
            chunk.tier = (uint8_t)b->host;
            chunk.offset = add_buffer(b, b->host, chunk.bytes).offset;
        }
        if (to.tier != b->host) {
            to.tier = (uint8_t)b->host;
            to.offset = add_buffer(b, b->host, to.bytes).offset;
        }
        split(b, u, chunk, o);
        emit(b, opcode, ZINF_QUEUE_UPDATE, 0, u, name, o);
        EMIT(CONVERT, UPDATE, 0, u, name, o[0], to);
        move_to(b, u, name, chunk, REGION(u, optimizer));
        move_to(b, u, name, to, REGION(u, param));
    }
}

static void emit_program(builder *b, zinf_program_kind kind)
{
    zinf_operand tokens;

    switch (kind) {
    case ZINF_PROGRAM_INIT:
        emit_fill(b, ZINF_OP_INIT);
        break;
    case ZINF_PROGRAM_LOAD:
        emit_fill(b, ZINF_OP_IMPORT);
        break;
    case ZINF_PROGRAM_STEP:
        tokens = emit_batch(b, b->o.accumulation);
        emit_micro_batch(b, tokens, false);
        end_segment(b, 1);
        if (b->o.accumulation > 1) {
            emit_micro_batch(b, tokens, true);
            end_segment(b, b->o.accumulation - 1);
        }
        emit_update(b);
        break;
    case ZINF_PROGRAM_EVAL:
        b->later = false;
        emit_forward(b, emit_batch(b, 1), 0, false);
        b->plan.instrs[b->plan.n_instrs - 1].attr[0] = MINI_N;
        break;
    case ZINF_PROGRAM_SAVE:
        for (uint32_t u = 0; u < MINI_UNITS; u++) {
            zinf_operand o[3];
            split(b, u, move(b, u, "state", REGION(u, optimizer), b->host), o);
            emit(b, ZINF_OP_EXPORT, ZINF_QUEUE_UPDATE, 0, u, "state", o);
        }
        break;
    default:
        return;
    }
    end_segment(b, 1);
}

static void add_tensor(builder *b, const char *name, uint64_t rows, uint64_t cols,
                       zinf_init_kind init)
{
    zinf_tensor *t = &b->plan.tensors[b->plan.n_tensors++];

    *t = (zinf_tensor){.rows = rows, .cols = cols, .n_dims = cols > 1 ? 2 : 1, .init = init,
                       .init_std = cols > 1 ? 0.02 : 0};
    snprintf(t->name, sizeof t->name, "%s", name);
    b->plan.model.n_params += rows * cols;
}

/* Rows [first, first + rows) of n tensors. */
static void add_unit(builder *b, const char *name, uint32_t tensor, uint32_t n, uint64_t first,
                     uint64_t rows)
{
    zinf_plan *p = &b->plan;
    zinf_unit *u = &p->units[p->n_units];
    const uint64_t elems = rows * p->tensors[tensor].cols;
    char text[80];

    *u = (zinf_unit){.n_elems = n * elems, .shard_elems = n * elems,
                     .array_stride = n * elems * 4 + 64, .first_part = p->n_parts, .n_parts = n,
                     .decays = p->tensors[tensor].n_dims == 2, .owner = ZINF_NONE};
    for (uint32_t i = 0; i < n; i++)
        p->parts[p->n_parts++] = (zinf_part){.tensor = tensor + i, .first_row = first,
                                             .n_rows = rows, .at = i * elems};
    snprintf(u->name, sizeof u->name, "%s", name);
    zinf_region *regions[3] = {&u->param, &u->grad, &u->optimizer};
    const zinf_tier tiers[3] = {b->o.param, b->o.grad, b->o.optimizer};
    const uint64_t bytes[3] = {2 * u->n_elems, 4 * u->n_elems,
                               2 * u->array_stride + 4 * u->n_elems};
    for (int i = 0; i < 3; i++) {
        buffer buf = add_buffer(b, tiers[i], bytes[i]);
        snprintf(text, sizeof text, "%s %s", name, zinf_class_name((unsigned)i));
        *regions[i] = (zinf_region){buf.offset, buf.bytes, buf.tier, add_value(b, text)};
    }
    u->whole_param = u->param.value;
    u->whole_grad = u->grad.value;
    p->n_units++;
}

#define ARRAYS(X) X(segments) X(instrs) X(operands) X(waits) X(tensors) X(units) X(parts)  \
    X(values) X(items)

zinf_plan mini_plan(const mini_options *options)
{
    builder b = {.o = *options,
                 .host = options->unified ? ZINF_TIER_DEVICE : ZINF_TIER_HOST};
    zinf_plan *p = &b.plan;

#define X(field) p->field = calloc(CAP, sizeof *p->field);
    ARRAYS(X)
#undef X
    p->strings = calloc(CAP, 64);
    p->n_strings = 1;
    strcpy(p->model.family, "gpt2");
    p->model.tied_embeddings = 1;
    p->model.vocab = MINI_V;
    p->model.hidden = p->model.ffn = MINI_C;
    p->model.heads = p->model.kv_heads = 1;
    p->model.head_dim = MINI_C;
    p->model.context = MINI_T;
    p->job = (zinf_job_info){.sequence = MINI_T, .precision = ZINF_BF16,
                             .global_batch = MINI_B * options->accumulation, .eps = 1};
    p->decisions = (zinf_decisions){.micro_batch = MINI_B, .accumulation = options->accumulation,
                                    .ranks = 1, .n_threads = 1, .io_depth = 1,
                                    .io_block_bytes = ZINF_PAGE};
    p->machine.unified = options->unified;
    b.scratch = add_buffer(&b, ZINF_TIER_DEVICE, MINI_SCRATCH);
    for (int i = 0; i < 2; i++) {
        b.staging[i] = add_buffer(&b, ZINF_TIER_HOST, ZINF_PAGE);
        b.ready[i] = add_buffer(&b, ZINF_TIER_DEVICE, ZINF_PAGE);
    }
    for (int i = 0; i < ZINF_SCALAR_PARTIALS + MINI_UNITS; i++)
        add_value(&b, "scalar");
    add_tensor(&b, "transformer.wte.weight", MINI_V, MINI_C, ZINF_INIT_NORMAL);
    add_tensor(&b, "transformer.wpe.weight", MINI_T, MINI_C, ZINF_INIT_NORMAL);
    add_tensor(&b, "transformer.ln_f.weight", MINI_C, 1, ZINF_INIT_ONE);
    add_tensor(&b, "transformer.ln_f.bias", MINI_C, 1, ZINF_INIT_ZERO);
    for (uint64_t t = 0; t < MINI_TILES; t++)
        add_unit(&b, t ? "wte 1" : "wte 0", 0, 1, MINI_TILE * t, MINI_TILE);
    add_unit(&b, "wpe", 1, 1, 0, MINI_T);
    add_unit(&b, "norm", 2, 2, 0, MINI_C);
    for (int k = 0; k < ZINF_N_PROGRAMS; k++) {
        p->programs[k].first_segment = p->n_segments;
        emit_program(&b, (zinf_program_kind)k);
        p->programs[k].n_segments = p->n_segments - p->programs[k].first_segment;
    }
    mini_add_waits(p);
    p->decisions.tier[ZINF_CLASS_PARAM] = options->param;
    p->decisions.tier[ZINF_CLASS_GRAD] = options->grad;
    p->decisions.tier[ZINF_CLASS_OPTIMIZER] = options->optimizer;
    restate(p);
    p->machine.overhead_bytes[b.host] = 0; /* of no backend that there is */
    memcpy(p->machine.capacity_bytes, p->machine.arena_bytes, sizeof p->machine.arena_bytes);
    return b.plan;
}

void mini_free(zinf_plan *plan)
{
#define X(field) free(plan->field);
    ARRAYS(X)
#undef X
    free(plan->strings);
}

uint32_t mini_find(const zinf_plan *plan, uint32_t from, unsigned opcode, uint32_t unit)
{
    while (from < plan->n_instrs && (plan->instrs[from].opcode != opcode ||
                                     (unit != ZINF_NONE && plan->instrs[from].unit != unit)))
        from++;
    return from;
}
