/* runtime/plan_validate.c - is a plan well formed? Every index, range, enumeration and size, so
 * that the executor may trust them. Whether a well-formed plan is a *safe* one is the checker's
 * question, which begins here: what C1, C2 and C5 say, and the shapes of C4 and C6, is about one
 * instruction by itself. Time and memory are linear in the plan (n log n for parts).
 */
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/opcodes.h"
#include "runtime/plan.h"
#include "runtime/plan_shapes.h"

#define REFUSE(...) zinf_fail(err, ZINF_DOES_NOT_FIT, "plan refused: " __VA_ARGS__)
/* What is a rule of the checker's (checker.h), but about one unit or instruction by itself. */
#define RULE(rule, ...) zinf_fail(err, ZINF_DOES_NOT_FIT, rule ": " __VA_ARGS__)
#define MOST_SIZE ((uint64_t)1 << 56) /* of one arena: far above any machine, far from overflow */
#define MOST_COUNT 1000000000u        /* iterations of a loop, distance of a wait */
#define MOST_NS 1e20                  /* of one instruction: 3,000 years */

static bool ends(const char *text, size_t n)
{
    return memchr(text, 0, n) != NULL;
}

/* Names are printed: none of them may command a terminal, or be two lines of a report. */
static bool is_name(const char *text, size_t n)
{
    return ends(text, n) && !zinf_has_control(text, strlen(text));
}

uint64_t zinf_plan_scalar_bytes(const zinf_plan *plan)
{
    const uint64_t least = 8 * ((uint64_t)ZINF_SCALAR_PARTIALS + plan->n_units);
    const uint64_t stated = plan->machine.arena_bytes[ZINF_TIER_SCALAR];

    return stated > least ? stated : least;
}

/* ---- the fixed structures ---- */

static zinf_status check_fixed(const zinf_plan *plan, zinf_error *err)
{
    const zinf_model_info *model = &plan->model;
    const zinf_job_info *job = &plan->job;
    const zinf_decisions *decisions = &plan->decisions;
    const zinf_machine_info *machine = &plan->machine;
    /* name, value, least, most */
    const struct {
        const char *name;
        uint64_t value, least, most;
    } whole[] = {
        {"model.layers", model->layers, 0, UINT32_MAX},
        {"model.hidden", model->hidden, 0, UINT32_MAX},
        {"model.heads", model->heads, 0, UINT32_MAX},
        {"model.kv_heads", model->kv_heads, 0, UINT32_MAX},
        {"model.head_dim", model->head_dim, 0, 65536},
        {"model.ffn", model->ffn, 0, UINT32_MAX},
        {"model.vocab", model->vocab, 1, INT32_MAX},
        {"model.context", model->context, 0, UINT32_MAX},
        {"model.tied_embeddings", model->tied_embeddings, 0, 1},
        {"model.rope_original_context", model->rope_original_context, 0, UINT32_MAX},
        {"model.qkv_bias", model->qkv_bias, 0, 1},
        {"job.sequence", job->sequence, 1, INT32_MAX - 1},
        {"job.global_batch", job->global_batch, 1, UINT32_MAX},
        {"job.precision", job->precision, 0, ZINF_BF16},
        {"job.schedule", job->schedule, 0, 1},
        {"decisions.micro_batch", decisions->micro_batch, 1, UINT32_MAX},
        {"decisions.accumulation", decisions->accumulation, 1, MOST_COUNT},
        {"decisions.order", decisions->order, 0, ZINF_VERTICAL},
        {"decisions.partitioning", decisions->partitioning, 0,
         decisions->ranks > 1 ? ZINF_OWNER : ZINF_BANDWIDTH_CENTRIC},
        {"decisions.collectives", decisions->collectives, 0, ZINF_SYNCHRONOUS},
        {"decisions.optimizer_time", decisions->optimizer_time, 0, ZINF_IN_FORWARD},
        {"decisions.ranks", decisions->ranks, 1, UINT32_MAX},
        {"decisions.n_threads", decisions->n_threads, 1, 4096},
        {"machine.unified", machine->unified, 0, 1},
        {"machine.shared_cores", machine->shared_cores, 0, 1},
        {"machine.overlap_read_write", machine->overlap_read_write, 0, 1},
        {"predicted.bound_by", plan->predicted.bound_by, 0, ZINF_N_QUEUES - 1},
    };
    /* A gpt2 has no norm_eps; 0 of a llama is refused with its model. */
    const double least_norm_eps = model->norm_eps == 0 ? 0 : ZINF_LEAST_EPS;
    /* name, value, least, most: of a training those of a model file, each fine as a float */
    const struct {
        const char *name;
        double value, least, most;
    } real[] = {
        {"job.lr", job->lr, 0, 10}, {"job.min_lr", job->min_lr, 0, 10},
        {"job.beta1", job->beta1, 0, ZINF_MOST_BETA}, {"job.beta2", job->beta2, 0, ZINF_MOST_BETA},
        {"job.eps", job->eps, ZINF_LEAST_EPS, 1}, {"job.clip", job->clip, 0, 1e9},
        {"job.weight_decay", job->weight_decay, 0, 10},
        {"predicted.step_s", plan->predicted.step_s, 0, DBL_MAX},
        {"predicted.flops_per_step", plan->predicted.flops_per_step, 0, DBL_MAX},
        {"predicted.hardware_flops_per_step", plan->predicted.hardware_flops_per_step, 0, DBL_MAX},
        {"predicted.peak_flops", plan->predicted.peak_flops, 0, DBL_MAX},
        {"machine.storage_core", machine->storage_core, 0, DBL_MAX},
        {"model.norm_eps", model->norm_eps, least_norm_eps, 1},
        {"model.rope_theta", model->rope_theta, 0, 1e12},
        {"model.rope_factor", model->rope_factor, 0, 1e6},
        {"model.rope_low_freq_factor", model->rope_low_freq_factor, 0, 1e6},
        {"model.rope_high_freq_factor", model->rope_high_freq_factor, 0, 1e6},
    };

    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++)
        if (whole[i].value < whole[i].least || whole[i].value > whole[i].most)
            return REFUSE("%s is %" PRIu64 ", allowed are %" PRIu64 " to %" PRIu64,
                          whole[i].name, whole[i].value, whole[i].least, whole[i].most);
    if (decisions->optimizer_time == ZINF_IN_BACKWARD && job->clip > 0)
        return REFUSE("decisions.optimizer_time is in backward, and job.clip is %g: no unit may be "
                      "updated before the norm of all is known", job->clip);
    if (decisions->partitioning == ZINF_OWNER &&
        (decisions->order == ZINF_VERTICAL || decisions->optimizer_time == ZINF_IN_FORWARD))
        return REFUSE("units that one rank owns are not supported together with vertical order or "
                      "updates in the next forward");
    for (size_t i = 0; i < sizeof real / sizeof *real; i++)
        if (!(real[i].value >= real[i].least) || !(real[i].value <= real[i].most))
            return REFUSE("%s is %.9g, it must be a number from %g to %g", real[i].name,
                          real[i].value, real[i].least, real[i].most);
    for (int i = 0; i < ZINF_N_CLASSES; i++)
        if (decisions->tier[i] > ZINF_TIER_NVME)
            return REFUSE("the tier of class %s is %" PRIu32 ", the last tier is %d",
                          zinf_class_name((unsigned)i), decisions->tier[i], ZINF_TIER_NVME);
    for (int i = 0; i < ZINF_N_QUEUES; i++)
        if (!(plan->predicted.queue_busy_s[i] >= 0) ||
            !isfinite(plan->predicted.queue_busy_s[i]))
            return REFUSE("the predicted time of queue %s is %g s", zinf_queue_name((unsigned)i),
                          plan->predicted.queue_busy_s[i]);
    for (int i = 0; i < ZINF_N_TIERS; i++) {
        uint64_t need;
        if (machine->arena_bytes[i] > MOST_SIZE)
            return REFUSE("the %s arena has %" PRIu64 " bytes, at most %" PRIu64 " are allowed",
                          zinf_tier_name((unsigned)i), machine->arena_bytes[i], MOST_SIZE);
        /* all ranks' owned bytes one after the other have addresses of 64 bits */
        if (machine->owned_bytes[i] > (decisions->partitioning == ZINF_OWNER &&
                                               i <= ZINF_TIER_NVME ? machine->arena_bytes[i] : 0) ||
            (machine->owned_bytes[i] &&
             machine->arena_bytes[i] > MOST_SIZE / ((uint64_t)decisions->ranks + 1)))
            return REFUSE("of the %s arena %" PRIu64 " bytes are said to be what each of %" PRIu32
                          " ranks owns", zinf_tier_name((unsigned)i), machine->owned_bytes[i],
                          decisions->ranks);
        if (i <= ZINF_TIER_NVME && (__builtin_add_overflow(machine->arena_bytes[i],
                                                           machine->overhead_bytes[i], &need) ||
                                    need > machine->capacity_bytes[i]))
            return RULE("C1", "tier %s: the arena of %" PRIu64 " bytes and %" PRIu64 " of overhead "
                        "exceed its capacity of %" PRIu64, zinf_tier_name((unsigned)i),
                        machine->arena_bytes[i], machine->overhead_bytes[i],
                        machine->capacity_bytes[i]);
    }
    if (machine->arena_bytes[ZINF_TIER_NVME] > 0 &&
        (decisions->io_depth < 1 || decisions->io_depth > 1024 ||
         decisions->io_block_bytes == 0 || decisions->io_block_bytes % ZINF_PAGE ||
         decisions->io_block_bytes > ((uint64_t)1 << 30)))
        return REFUSE("io_depth %" PRIu32 " and io_block_bytes %" PRIu64 ": the depth must be 1 "
                      "to 1024, the block a multiple of %d, at most 1 GiB", decisions->io_depth,
                      decisions->io_block_bytes, ZINF_PAGE);
    if (!is_name(model->name, sizeof model->name) ||
        !is_name(model->family, sizeof model->family) ||
        !is_name(machine->cluster, sizeof machine->cluster) ||
        !is_name(machine->backend, sizeof machine->backend))
        return REFUSE("a name does not end or has control characters");
    return ZINF_OK;
}

static zinf_status check_strings(const zinf_plan *plan, zinf_error *err)
{
    if (plan->n_strings == 0 || plan->strings[0] != 0 ||
        plan->strings[plan->n_strings - 1] != 0)
        return REFUSE("the strings do not begin with an empty one and end with NUL");
    if (zinf_has_control(plan->strings, plan->n_strings))
        return REFUSE("the strings have control characters");
    for (uint32_t i = 0; i < plan->n_values; i++)
        if (plan->values[i] >= plan->n_strings)
            return REFUSE("value %" PRIu32 " is named by string %" PRIu32 " of %" PRIu32, i,
                          plan->values[i], plan->n_strings);
    for (uint32_t i = 0; i < plan->n_items; i++)
        if (!is_name(plan->items[i].name, ZINF_NAME_BYTES) || plan->items[i].tier >= ZINF_N_TIERS)
            return REFUSE("item %" PRIu32 " has no ending name or no tier, or its name has control "
                          "characters", i);
    return ZINF_OK;
}

/* ---- tensors, parts, units ---- */

static int compare_parts(const void *a, const void *b)
{
    const zinf_part *x = *(zinf_part *const *)a, *y = *(zinf_part *const *)b;

    if (x->tensor != y->tensor)
        return x->tensor < y->tensor ? -1 : 1;
    return x->first_row < y->first_row ? -1 : x->first_row > y->first_row;
}

/* Every row of every tensor is in exactly one part. Parts' ranges were checked. */
static zinf_status check_cover(const zinf_plan *plan, zinf_error *err)
{
    const zinf_part **sorted = malloc((plan->n_parts + (size_t)1) * sizeof *sorted);
    uint32_t at = 0;

    if (!sorted)
        return zinf_fail(err, ZINF_MACHINE, "out of memory checking %" PRIu32 " parts",
                         plan->n_parts);
    for (uint32_t i = 0; i < plan->n_parts; i++)
        sorted[i] = &plan->parts[i];
    qsort(sorted, plan->n_parts, sizeof *sorted, compare_parts);
    for (uint32_t t = 0; t < plan->n_tensors && !err->status; t++) {
        uint64_t row = 0;
        while (at < plan->n_parts && sorted[at]->tensor == t && sorted[at]->first_row == row)
            row += sorted[at++]->n_rows;
        if (row != plan->tensors[t].rows)
            REFUSE("row %" PRIu64 " of tensor \"%s\" is in no unit or in two", row,
                   plan->tensors[t].name);
    }
    free(sorted);
    return err->status;
}

static zinf_status check_region(const zinf_plan *plan, const zinf_unit *unit, const char *what,
                                const zinf_region *region, uint64_t need, zinf_error *err)
{
    if (region->bytes == 0)
        return ZINF_OK;
    if (region->tier > ZINF_TIER_NVME)
        return REFUSE("unit \"%s\": its %s is in tier %" PRIu32 ", the last is %d", unit->name,
                      what, region->tier, ZINF_TIER_NVME);
    const uint64_t arena = plan->machine.arena_bytes[region->tier];
    if (region->bytes > arena || region->offset > arena - region->bytes)
        return RULE("C1", "unit \"%s\": its %s ends beyond the %s arena of %" PRIu64 " bytes",
                      unit->name, what, zinf_tier_name(region->tier), arena);
    if (region->value != ZINF_NONE && region->value >= plan->n_values)
        return REFUSE("unit \"%s\": its %s is value %" PRIu32 " of %" PRIu32, unit->name, what,
                      region->value, plan->n_values);
    if (unit->owner != ZINF_NONE &&
        region->offset + region->bytes > plan->machine.owned_bytes[region->tier])
        return RULE("C1", "unit \"%s\": its %s ends beyond what a rank owns of the %s arena, %"
                    PRIu64 " bytes", unit->name, what, zinf_tier_name(region->tier),
                    plan->machine.owned_bytes[region->tier]);
    if (region->offset % ZINF_PAGE || region->bytes % ZINF_PAGE)
        return RULE("C2", "unit \"%s\": its %s is not aligned to pages of %d bytes", unit->name,
                    what, ZINF_PAGE);
    if (region->bytes < need)
        return RULE("C1", "unit \"%s\": its %s has %" PRIu64 " bytes, its elements need %" PRIu64,
                      unit->name, what, region->bytes, need);
    return ZINF_OK;
}

static zinf_status check_unit(const zinf_plan *plan, const zinf_unit *unit, zinf_error *err)
{
    uint64_t at = 0;

    for (uint32_t i = 0; i < unit->n_parts; i++) {
        const zinf_part *part = &plan->parts[unit->first_part + i];
        if (part->tensor >= plan->n_tensors)
            return REFUSE("unit \"%s\": tensor %" PRIu32 " of %" PRIu32, unit->name,
                          part->tensor, plan->n_tensors);
        const zinf_tensor *tensor = &plan->tensors[part->tensor];
        if (part->n_rows == 0 || part->n_rows > tensor->rows ||
            part->first_row > tensor->rows - part->n_rows)
            return REFUSE("unit \"%s\": rows beyond tensor \"%s\"", unit->name, tensor->name);
        if (unit->decays != (tensor->n_dims == 2))
            return RULE("C7", "unit \"%s\": weight decay applies to matrices and to nothing else, "
                        "tensor \"%s\" has %" PRIu32 " dimensions", unit->name, tensor->name,
                        tensor->n_dims);
        const uint64_t elems = part->n_rows * tensor->cols; /* within the tensor: no overflow */
        if (part->at < at || elems > unit->n_elems || part->at > unit->n_elems - elems)
            return REFUSE("unit \"%s\": tensor \"%s\" overlaps its neighbour or the end",
                          unit->name, tensor->name);
        at = part->at + elems;
    }
    if (unit->late > (plan->decisions.optimizer_time == ZINF_IN_FORWARD))
        return REFUSE("unit \"%s\": late is %" PRIu32 ", allowed is 0, and 1 where updates are in "
                      "the next forward", unit->name, unit->late);
    if (unit->n_elems == 0 || unit->n_elems > MOST_SIZE / 64 ||
        unit->array_stride > MOST_SIZE / 4 || unit->array_stride % 4)
        return REFUSE("unit \"%s\": %" PRIu64 " elements, arrays %" PRIu64 " bytes apart",
                      unit->name, unit->n_elems, unit->array_stride);
    const uint64_t shard = unit->shard_elems, ranks = plan->decisions.ranks;
    const bool fine = plan->decisions.partitioning == ZINF_OWNER
                          ? unit->owner < ranks && shard >= unit->n_elems && shard % ranks == 0
                          : unit->owner == ZINF_NONE;
    if (!fine)
        return RULE("C6", "unit \"%s\": it belongs to rank %" PRIu32 " of %" PRIu64 ", %" PRIu64
                    " elements for its %" PRIu64, unit->name, unit->owner, ranks, shard,
                    unit->n_elems);
    if (shard > MOST_SIZE / 64 || __builtin_mul_overflow(shard, ranks, &at) ||
        at < unit->n_elems || at > MOST_SIZE / 64 || (ranks == 1 && shard != unit->n_elems))
        return REFUSE("unit \"%s\": %" PRIu64 " shards of %" PRIu64 " elements are not its %"
                      PRIu64, unit->name, ranks, shard, unit->n_elems);
    if (unit->optimizer.bytes && unit->array_stride < 4 * shard)
        return REFUSE("unit \"%s\": master, m and v overlap", unit->name);
    if ((unit->whole_param != ZINF_NONE && unit->whole_param >= plan->n_values) ||
        (unit->whole_grad != ZINF_NONE && unit->whole_grad >= plan->n_values))
        return REFUSE("unit \"%s\": gathered it is value %" PRIu32 " and %" PRIu32 " of %" PRIu32,
                      unit->name, unit->whole_param, unit->whole_grad, plan->n_values);
    const uint64_t act = zinf_dtype_bytes(plan->job.precision);
    if (check_region(plan, unit, "param", &unit->param, act * shard, err) ||
        check_region(plan, unit, "grad", &unit->grad, 4 * shard, err))
        return err->status;
    return check_region(plan, unit, "optimizer", &unit->optimizer,
                        2 * unit->array_stride + 4 * shard, err);
}

static zinf_status check_units(const zinf_plan *plan, zinf_error *err)
{
    uint32_t part = 0;

    for (uint32_t i = 0; i < plan->n_tensors; i++) {
        const zinf_tensor *tensor = &plan->tensors[i];
        uint64_t elems;
        if (!is_name(tensor->name, ZINF_NAME_BYTES))
            return REFUSE("the name of tensor %" PRIu32 " does not end or has control characters",
                          i);
        if (tensor->rows == 0 || tensor->cols == 0 ||
            __builtin_mul_overflow(tensor->rows, tensor->cols, &elems) || elems > MOST_SIZE / 64)
            return REFUSE("tensor \"%s\" is [%" PRIu64 "][%" PRIu64 "]", tensor->name,
                          tensor->rows, tensor->cols);
        if (tensor->init > ZINF_INIT_NORMAL || tensor->n_dims < 1 || tensor->n_dims > 2 ||
            (tensor->n_dims == 1 && tensor->cols > 1) || !(tensor->init_std >= 0) ||
            !isfinite(tensor->init_std))
            return REFUSE("tensor \"%s\": init %" PRIu32 ", dimensions %" PRIu32 ", std %g",
                          tensor->name, tensor->init, tensor->n_dims, tensor->init_std);
        if (tensor->stack_row &&
            (i == 0 || tensor[-1].cols != tensor->cols || tensor[-1].n_dims != tensor->n_dims ||
             tensor[-1].stack_row + tensor[-1].rows != tensor->stack_row))
            return REFUSE("tensor \"%s\" is said to begin at row %" PRIu64 " of a stack, which "
                          "is not where its predecessor ends", tensor->name, tensor->stack_row);
    }
    for (uint32_t i = 0; i < plan->n_units; i++) {
        const zinf_unit *unit = &plan->units[i];
        if (!is_name(unit->name, ZINF_NAME_BYTES))
            return REFUSE("the name of unit %" PRIu32 " does not end or has control characters",
                          i);
        if (unit->first_part != part || unit->n_parts > plan->n_parts - part)
            return REFUSE("unit \"%s\": its parts do not follow its predecessor's", unit->name);
        part += unit->n_parts;
        if (check_unit(plan, unit, err))
            return err->status;
    }
    if (part != plan->n_parts)
        return REFUSE("%" PRIu32 " parts belong to no unit", plan->n_parts - part);
    return check_cover(plan, err);
}

/* ---- instructions ---- */

#define HERE "instruction %" PRIu32 " (%s \"%s\"): "
#define HERE_ARGS index, zinf_opcode_get(instr->opcode)->name, &plan->strings[instr->name]
#define BIT(tier) (1u << ZINF_TIER_##tier)

/* Which tiers the first operand and the others may live in, by queue. */
static const struct {
    unsigned first, others;
} tiers_of[ZINF_N_QUEUES] = {
    [ZINF_QUEUE_COMPUTE] = {BIT(DEVICE) | BIT(SCALAR), BIT(DEVICE) | BIT(SCALAR)},
    [ZINF_QUEUE_COLLECTIVE] = {BIT(DEVICE) | BIT(HOST) | BIT(SCALAR),
                               BIT(DEVICE) | BIT(HOST) | BIT(SCALAR)},
    [ZINF_QUEUE_UPLOAD] = {BIT(HOST), BIT(DEVICE)},
    [ZINF_QUEUE_DOWNLOAD] = {BIT(DEVICE), BIT(HOST)},
    [ZINF_QUEUE_READ] = {BIT(NVME), BIT(HOST) | BIT(DEVICE)},
    [ZINF_QUEUE_WRITE] = {BIT(HOST) | BIT(DEVICE), BIT(NVME)},
    [ZINF_QUEUE_UPDATE] = {BIT(HOST) | BIT(SCALAR), BIT(HOST) | BIT(SCALAR)},
};

static zinf_status check_operand(const zinf_plan *plan, uint32_t index, unsigned slot,
                                 uint64_t count, zinf_error *err)
{
    const zinf_instr *instr = &plan->instrs[index];
    const zinf_operand *operand = &plan->operands[instr->operand0 + slot];
    const uint64_t element = zinf_dtype_bytes(operand->dtype);
    unsigned allowed = slot == 0 ? tiers_of[instr->queue].first : tiers_of[instr->queue].others;
    uint64_t span, end;

    if (operand->value != ZINF_NONE && operand->value >= plan->n_values)
        return RULE("C4", HERE "operand %u is value %" PRIu32 " of %" PRIu32, HERE_ARGS, slot,
                      operand->value, plan->n_values);
    if (operand->bytes == 0)
        return ZINF_OK;
    if (operand->tier >= ZINF_N_TIERS || element == 0)
        return RULE("C1", HERE "operand %u has tier %u, element type %u", HERE_ARGS, slot,
                      operand->tier, operand->dtype);
    if (instr->queue == ZINF_QUEUE_UPDATE && plan->machine.unified)
        allowed |= BIT(DEVICE);
    if (!(allowed >> operand->tier & 1))
        return RULE("C1", HERE "operand %u is in tier %s, which queue %s does not reach there",
                      HERE_ARGS, slot, zinf_tier_name(operand->tier),
                      zinf_queue_name(instr->queue));
    if ((operand->tier == ZINF_TIER_SCALAR) != (operand->dtype == ZINF_F64))
        return RULE("C2", HERE "operand %u: scalars are F64, and nothing else is", HERE_ARGS, slot);
    if (operand->rows == 0 || operand->cols == 0 || operand->ld < operand->cols ||
        __builtin_mul_overflow(operand->rows - 1, operand->ld, &span) ||
        __builtin_add_overflow(span, operand->cols, &span) ||
        __builtin_mul_overflow(span, element, &span) || span != operand->bytes)
        return RULE("C4", HERE "operand %u: [%" PRIu64 "][%" PRIu64 "], ld %" PRIu64 " of %s are "
                      "not %" PRIu64 " bytes", HERE_ARGS, slot, operand->rows, operand->cols,
                      operand->ld, zinf_dtype_name(operand->dtype), operand->bytes);
    const uint64_t arena = operand->tier == ZINF_TIER_SCALAR
                               ? zinf_plan_scalar_bytes(plan)
                               : plan->machine.arena_bytes[operand->tier];
    if (__builtin_mul_overflow(operand->stride, count - 1, &end) ||
        __builtin_add_overflow(end, operand->offset, &end) ||
        __builtin_add_overflow(end, operand->bytes, &end) || end > arena)
        return RULE("C1", HERE "operand %u ends beyond the %s arena of %" PRIu64 " bytes (offset %"
                      PRIu64 ", %" PRIu64 " bytes, stride %" PRIu64 ", %" PRIu64 " iterations)",
                      HERE_ARGS, slot, zinf_tier_name(operand->tier), arena, operand->offset,
                      operand->bytes, operand->stride, count);
    const bool direct = instr->queue == ZINF_QUEUE_READ || instr->queue == ZINF_QUEUE_WRITE;
    const uint64_t unit = direct ? ZINF_PAGE : element;
    const bool scratch = operand->value == ZINF_NONE ||
                         zinf_opcode_get(instr->opcode)->access[slot] == 's';
    if (scratch && operand->tier != ZINF_TIER_SCALAR && operand->offset % 64)
        return RULE("C2", HERE "operand %u: scratch at offset %" PRIu64 " is not aligned to 64 "
                    "bytes", HERE_ARGS, slot, operand->offset);
    if (operand->offset % unit || operand->stride % unit ||
        (direct && operand->bytes % ZINF_PAGE))
        return RULE("C2", HERE "operand %u: offset %" PRIu64 ", stride %" PRIu64 " and bytes %"
                      PRIu64 " must be multiples of %" PRIu64, HERE_ARGS, slot, operand->offset,
                      operand->stride, operand->bytes, unit);
    return ZINF_OK;
}

static zinf_status check_instr(const zinf_plan *plan, uint32_t index, uint64_t count,
                               zinf_error *err)
{
    const zinf_instr *instr = &plan->instrs[index];
    const zinf_opcode_info *info = zinf_opcode_get(instr->opcode);

    if (!info)
        return REFUSE("instruction %" PRIu32 " has opcode %u of %d", index, instr->opcode,
                      ZINF_N_OPCODES);
    if (instr->name >= plan->n_strings)
        return REFUSE("instruction %" PRIu32 " is named by string %" PRIu32 " of %" PRIu32,
                      index, instr->name, plan->n_strings);
    if (instr->queue >= ZINF_N_QUEUES || !strchr(info->queues, "CGUDRWP"[instr->queue]))
        return zinf_fail(err, ZINF_DOES_NOT_FIT, "%s: " HERE "may not run on queue %u (%s)",
                         info->queues[0] == 'G' ? "C6" : "C5", HERE_ARGS, instr->queue,
                         zinf_queue_name(instr->queue));
    if (instr->flags & ~ZINF_FLAG_ACCUMULATE || (instr->unit != ZINF_NONE &&
                                                 instr->unit >= plan->n_units))
        return REFUSE(HERE "has flags %u, unit %" PRIu32 " of %" PRIu32, HERE_ARGS,
                      instr->flags, instr->unit, plan->n_units);
    if (instr->n_operands != strlen(info->access) || instr->operand0 > plan->n_operands ||
        instr->n_operands > plan->n_operands - instr->operand0)
        return REFUSE(HERE "has operands %" PRIu32 " and %" PRIu32 " more, it takes %zu of %"
                      PRIu32, HERE_ARGS, instr->operand0, instr->n_operands,
                      strlen(info->access), plan->n_operands);
    if (!(instr->cost_ns >= 0) || !(instr->cost_ns <= MOST_NS))
        return REFUSE(HERE "costs %g ns", HERE_ARGS, instr->cost_ns);
    for (unsigned slot = 0; slot < instr->n_operands; slot++)
        if (check_operand(plan, index, slot, count, err))
            return err->status;
    return zinf_plan_check_shapes(plan, index, err);
}

static zinf_status check_wait(const zinf_plan *plan, uint32_t program_first, uint32_t index,
                              const zinf_segment *segment, const zinf_wait *wait,
                              zinf_error *err)
{
    const zinf_instr *instr = &plan->instrs[index];

    if (wait->instr < program_first ||
        wait->instr >= segment->first_instr + segment->n_instrs)
        return RULE("C5", HERE "waits for instruction %" PRIu32 ", which is not an earlier one of "
                      "its program", HERE_ARGS, wait->instr);
    if (plan->instrs[wait->instr].queue == instr->queue)
        return RULE("C5", HERE "waits for instruction %" PRIu32 " of its own queue", HERE_ARGS,
                      wait->instr);
    const bool same = wait->instr >= segment->first_instr;
    if (wait->distance > MOST_COUNT || (!same && wait->distance != 0) ||
        (same && wait->distance == 0 && wait->instr >= index))
        return RULE("C5", HERE "waits for instruction %" PRIu32 " at distance %" PRIu32
                      ", which is not earlier", HERE_ARGS, wait->instr, wait->distance);
    return ZINF_OK;
}

/* Each wait is of one instruction: what it waits for depends on whose it is, and the executor keeps
 * one count for each. So few bytes of a file cannot ask for endless work, either. */
static zinf_status check_wait_owners(const zinf_plan *plan, zinf_error *err)
{
    bool *owned = calloc(plan->n_waits + (size_t)1, sizeof *owned);

    if (!owned)
        return zinf_fail(err, ZINF_MACHINE, "out of memory checking %" PRIu32 " waits",
                         plan->n_waits);
    for (uint32_t i = 0; i < plan->n_instrs && !err->status; i++) {
        const uint32_t n = plan->instrs[i].n_waits, first = plan->instrs[i].wait0;
        if (first > plan->n_waits || n > plan->n_waits - first)
            REFUSE("instruction %" PRIu32 " has waits %" PRIu32 " and %" PRIu32 " more of %" PRIu32,
                   i, first, n, plan->n_waits);
        for (uint32_t w = first; !err->status && w < first + n; w++) {
            if (owned[w])
                RULE("C5", "instruction %" PRIu32 " shares wait %" PRIu32 " with one before it", i,
                     w);
            owned[w] = true;
        }
    }
    free(owned);
    return err->status;
}

static zinf_status check_programs(const zinf_plan *plan, zinf_error *err)
{
    uint32_t next = 0;

    for (uint32_t i = 0; i < plan->n_segments; i++) {
        const zinf_segment *segment = &plan->segments[i];
        if (segment->first_instr != next || segment->n_instrs > plan->n_instrs - next ||
            segment->n_instrs == 0 || segment->count == 0 || segment->count > MOST_COUNT)
            return REFUSE("segment %" PRIu32 " has instructions %" PRIu32 " and %" PRIu32
                          " more, %" PRIu64 " times; it must follow its predecessor", i,
                          segment->first_instr, segment->n_instrs, segment->count);
        for (uint32_t k = 0; k < segment->n_instrs; k++)
            if (check_instr(plan, next + k, segment->count, err))
                return err->status;
        next += segment->n_instrs;
    }
    if (next != plan->n_instrs)
        return REFUSE("%" PRIu32 " instructions belong to no segment", plan->n_instrs - next);
    for (int p = 0; p < ZINF_N_PROGRAMS; p++) {
        const zinf_program *program = &plan->programs[p];
        if (program->first_segment > plan->n_segments ||
            program->n_segments > plan->n_segments - program->first_segment)
            return REFUSE("program %s has segments %" PRIu32 " and %" PRIu32 " more of %" PRIu32,
                          zinf_program_name((unsigned)p), program->first_segment,
                          program->n_segments, plan->n_segments);
        for (int o = 0; o < p; o++) {
            const zinf_program *other = &plan->programs[o];
            if (program->n_segments && other->n_segments &&
                program->first_segment < other->first_segment + other->n_segments &&
                other->first_segment < program->first_segment + program->n_segments)
                return REFUSE("programs %s and %s share a segment", zinf_program_name((unsigned)o),
                              zinf_program_name((unsigned)p));
        }
        for (uint32_t s = 0; s < program->n_segments; s++) {
            const zinf_segment *segment = &plan->segments[program->first_segment + s];
            const uint32_t first = plan->segments[program->first_segment].first_instr;
            for (uint32_t k = 0; k < segment->n_instrs; k++) {
                const uint32_t index = segment->first_instr + k;
                const zinf_instr *instr = &plan->instrs[index];
                for (uint32_t w = 0; w < instr->n_waits; w++)
                    if (check_wait(plan, first, index, segment, &plan->waits[instr->wait0 + w],
                                   err))
                        return err->status;
            }
        }
    }
    return ZINF_OK;
}

zinf_status zinf_plan_validate(const zinf_plan *plan, zinf_error *err)
{
    if (check_fixed(plan, err) || check_strings(plan, err) || check_units(plan, err) ||
        check_wait_owners(plan, err))
        return err->status;
    return check_programs(plan, err);
}
