/* runtime/plan.h - the contract between planner, checker and executor: what a plan is.
 *
 * A plan is a program for a small abstract machine: arenas (tiers) addressed by byte offset, and
 * queues that each run their instructions in order, all queues at once. Instructions are stored
 * in one sequential order ("program order") in which running them one after another is correct;
 * waits name exactly the earlier instructions in other queues that must have finished first.
 * Every rank runs the same program, no operand depends on the rank; only what INIT, IMPORT and
 * EXPORT put into a unit's regions does, and, where a unit belongs to one rank, whether an
 * instruction is carried out or passed over (zinf_instr_owner).
 *
 * Owns the file format (plan_io.c). Decides nothing.
 */
#ifndef ZINF_RUNTIME_PLAN_H
#define ZINF_RUNTIME_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/dtype.h"
#include "runtime/error.h"

#define ZINF_PLAN_VERSION 7
extern const char zinf_plan_magic[8]; /* what a plan file begins with */
enum { ZINF_NAME_BYTES = 64, ZINF_PAGE = 4096, ZINF_MAX_OPERANDS = 10 };
#define ZINF_NONE UINT32_MAX /* "no index" in every 32-bit index field */

/* Memories. SCALAR is the table of fp64 scalars: offset = slot * 8. */
#define ZINF_TIERS(X) X(DEVICE, "device") X(HOST, "host") X(NVME, "nvme") X(SCALAR, "scalar")
typedef enum zinf_tier {
#define X(name, text) ZINF_TIER_##name,
    ZINF_TIERS(X)
#undef X
    ZINF_N_TIERS
} zinf_tier;

#define ZINF_QUEUES(X)                                                                           \
    X(COMPUTE, "compute") X(COLLECTIVE, "collective") X(UPLOAD, "upload")                        \
    X(DOWNLOAD, "download") X(READ, "read") X(WRITE, "write") X(UPDATE, "update")
typedef enum zinf_queue {
#define X(name, text) ZINF_QUEUE_##name,
    ZINF_QUEUES(X)
#undef X
    ZINF_N_QUEUES
} zinf_queue;

/* Slots of the scalar table; the sum of squares of unit u is in slot ZINF_SCALAR_PARTIALS + u. What
 * an update needs to know begins at NORM: step counts from 1, 0 is nothing to update from. */
enum {
    ZINF_SCALAR_LOSS, ZINF_SCALAR_NORM, ZINF_SCALAR_FACTOR, ZINF_SCALAR_SKIP, ZINF_SCALAR_STEP,
    ZINF_SCALAR_RATE, ZINF_SCALAR_PARTIALS,
    ZINF_N_UPDATE_SCALARS = ZINF_SCALAR_PARTIALS - ZINF_SCALAR_NORM
};

/* State classes of the design whose tier is a decision. */
#define ZINF_CLASSES(X)                                                                          \
    X(PARAM, "param") X(GRAD, "grad") X(OPTIMIZER, "optimizer") X(CHECKPOINT, "checkpoint")
typedef enum zinf_class {
#define X(name, text) ZINF_CLASS_##name,
    ZINF_CLASSES(X)
#undef X
    ZINF_N_CLASSES
} zinf_class;

/* A plan holds several programs. EVAL is one forward of one micro-batch; SAMPLE one forward of
 * one sequence, ending in the logits of one position. */
#define ZINF_PROGRAMS(X)                                                                         \
    X(INIT, "init") X(STEP, "step") X(FLUSH, "flush") X(EVAL, "eval") X(SAMPLE, "sample")        \
    X(SAVE, "save") X(LOAD, "load")
typedef enum zinf_program_kind {
#define X(name, text) ZINF_PROGRAM_##name,
    ZINF_PROGRAMS(X)
#undef X
    ZINF_N_PROGRAMS
} zinf_program_kind;

/* Linears whose output features can be tiled. VOCAB is the token embedding / classifier. */
#define ZINF_LINEARS(X)                                                                          \
    X(QKV, "qkv") X(OUT, "out") X(FC, "fc") X(PROJ, "proj") X(VOCAB, "vocab")
typedef enum zinf_linear {
#define X(name, text) ZINF_LINEAR_##name,
    ZINF_LINEARS(X)
#undef X
    ZINF_N_LINEARS
} zinf_linear;

/* ---- tables ---- */

/* A matrix [rows][cols] in a tier, ld elements between rows; bytes is the whole span touched,
 * ((rows - 1) * ld + cols) * element. In a counted loop iteration i uses offset + i * stride.
 * bytes == 0: the operand is absent. value names the logical contents (values[]), the same in
 * every tier a copy of it lives in; ZINF_NONE for scratch. */
typedef struct zinf_operand {
    uint64_t offset, bytes, stride;
    uint64_t rows, cols, ld;
    uint32_t value;
    uint8_t tier, dtype;
    uint16_t reserved;
} zinf_operand;

/* The instance at iteration i waits for instruction `instr` (always in another queue):
 * in the same segment, its instance at iteration i - distance (none if negative); in an earlier
 * segment of the program (distance 0), its last instance. */
typedef struct zinf_wait {
    uint32_t instr, distance;
} zinf_wait;

enum { ZINF_FLAG_ACCUMULATE = 1 }; /* see opcodes.h for what it does to which operands */

typedef struct zinf_instr {
    uint16_t opcode;
    uint8_t queue, flags;
    uint32_t operand0, n_operands; /* operands[operand0 ..] in the slots of opcodes.h */
    uint32_t wait0, n_waits;
    uint32_t name;     /* offset in strings: what it serves, for people */
    int32_t layer;     /* -1 outside the blocks */
    uint32_t unit;     /* units[] it serves, or ZINF_NONE */
    uint64_t attr[4];  /* meaning by opcode, see opcodes.h */
    double cost_ns;    /* predicted time when it runs alone */
} zinf_instr;

/* instrs[first ..] repeated count times; inside an iteration every queue keeps program order. */
typedef struct zinf_segment {
    uint32_t first_instr, n_instrs;
    uint64_t count;
} zinf_segment;

typedef struct zinf_program {
    uint32_t first_segment, n_segments; /* n_segments 0: the program is empty */
} zinf_program;

typedef enum zinf_init_kind { ZINF_INIT_ZERO, ZINF_INIT_ONE, ZINF_INIT_NORMAL } zinf_init_kind;

/* A logical parameter, row major [rows][cols]; a vector has cols 1. name as in a HF state dict
 * (without Conv1D's transposition: a linear is [out][in]). They are listed in the order of their
 * first use, the embedding first. Tensors that follow each other may be
 * used as one matrix, stacked by rows (a llama's q, k and v projections): stack_row is the first
 * row of this one in the stack, 0 for the first and for tensors that stand alone. A tile of a
 * stack may hold rows of several tensors, one part each. */
typedef struct zinf_tensor {
    char name[ZINF_NAME_BYTES];
    uint64_t rows, cols;
    double init_std;
    uint32_t init, n_dims; /* zinf_init_kind; 1 or 2 */
    uint64_t stack_row;
} zinf_tensor;

/* Rows [first_row, first_row + n_rows) of a tensor, at element `at` of the unit. */
typedef struct zinf_part {
    uint32_t tensor, reserved;
    uint64_t first_row, n_rows, at;
} zinf_part;

typedef struct zinf_region {
    uint64_t offset, bytes; /* bytes is padded to a page; 0: no such region */
    uint32_t tier, value;
} zinf_region;

/* What one allgather moves: a tile of a large linear, or a group of small tensors. Its state
 * lives in three regions, which hold this rank's shard: elements [rank, rank + 1) * shard_elems of
 * the unit, which is padded with zeros once, at its end, to ranks * shard_elems. The optimizer
 * region holds fp32 master, m, v, each shard_elems long, array_stride bytes apart. Gathered, the
 * parameters and the gradient are values of their own; with one rank a shard is the whole and so
 * are its values.
 * Or a rank owns the unit, has all of it and broadcasts it: then its one shard is padded to `ranks`
 * equal parts, and the three regions are in the first owned_bytes of their arenas, where other
 * ranks have other units. Sums have the same order as those of shards: no bit depends on it. */
typedef struct zinf_unit {
    char name[ZINF_NAME_BYTES];
    uint64_t n_elems, shard_elems, array_stride;
    uint32_t whole_param, whole_grad; /* values */
    uint32_t first_part, n_parts;
    int32_t layer;
    uint32_t decays; /* 1: weight decay applies (matrices), 0: not (vectors) */
    uint32_t owner; /* rank; ZINF_NONE: sharded over all */
    uint32_t late;  /* 1: STEP finds its gradient, and updates it before it is used */
    zinf_region param, grad, optimizer;
} zinf_unit;

/* One line of the memory bill. */
typedef struct zinf_item {
    char name[ZINF_NAME_BYTES];
    uint64_t bytes;
    uint32_t tier, reserved;
} zinf_item;

/* ---- what was decided, for whom ---- */

typedef struct zinf_model_info {
    char name[ZINF_NAME_BYTES];
    char family[16]; /* gpt2 | llama */
    uint64_t layers, hidden, heads, kv_heads, head_dim, ffn, vocab, context;
    uint64_t tied_embeddings, n_params;
    /* llama; rope_factor 0: positions are not scaled, see rope.h */
    double norm_eps, rope_theta, rope_factor, rope_low_freq_factor, rope_high_freq_factor;
    uint64_t rope_original_context, qkv_bias;
} zinf_model_info;

/* A training computes with floats. Beyond the largest beta a float is too far from it: off by up to
 * 2^-25, which is 0.3 % of 1 - beta here, and all of it at 1 - 1e-8, where the moments stand still.
 * An epsilon below the least is soon none at all: 0 divided by 0 where a gradient is 0. */
#define ZINF_MOST_BETA 0.99999
#define ZINF_LEAST_EPS 1e-30

typedef struct zinf_job_info {
    uint64_t sequence, global_batch, seed;
    uint64_t warmup, steps; /* of the learning-rate schedule */
    uint32_t precision;     /* zinf_dtype of parameters and activations */
    uint32_t schedule;      /* 0 constant, 1 cosine */
    double lr, min_lr, beta1, beta2, eps, weight_decay, clip; /* clip 0: none */
} zinf_job_info;

/* Micro-batch by micro-batch, in a counted loop; or all micro-batches of a group of blocks (between
 * two checkpoints) before the next group, so that its parameters are fetched once for all of them
 * and its gradient leaves the device once, as their sum: written out one by one. */
typedef enum zinf_order { ZINF_HORIZONTAL, ZINF_VERTICAL } zinf_order;

/* When units are updated: after backward; or inside it, each as soon as its gradient is complete,
 * which clipping by the norm of all excludes. What is not finite is found one unit at a time then,
 * when the units before it are updated already. Or inside the next step's forward, each before it
 * is used: STEP leaves gradients and the scalars of the update, and begins with what it finds.
 * FLUSH updates without a step, after which EVAL, SAMPLE and SAVE see what they see otherwise, and
 * nothing is left to update from, as after INIT and LOAD. That is so of late units; the others are
 * updated after backward. */
typedef enum zinf_optimizer_time {
    ZINF_AFTER_BACKWARD, ZINF_IN_BACKWARD, ZINF_IN_FORWARD
} zinf_optimizer_time;

/* Whether every rank has a shard of every unit, allgathered to use it, or one rank all of it, which
 * it broadcasts (ZeRO-Infinity 6.1). */
typedef enum zinf_partitioning { ZINF_BANDWIDTH_CENTRIC, ZINF_OWNER } zinf_partitioning;

/* Synchronous: a collective comes after all compute before it, and compute after it waits. */
typedef enum zinf_collectives { ZINF_OVERLAPPED, ZINF_SYNCHRONOUS } zinf_collectives;

typedef struct zinf_decisions {
    uint32_t tier[ZINF_N_CLASSES]; /* zinf_tier */
    uint32_t tiles[ZINF_N_LINEARS];
    uint32_t micro_batch, accumulation;
    uint32_t checkpoint_interval; /* blocks between checkpoints; 0: none, nothing recomputed */
    uint32_t prefetch_read, prefetch_upload, prefetch_gather; /* operators ahead */
    uint32_t order;          /* zinf_order */
    uint32_t partitioning;   /* zinf_partitioning */
    uint32_t collectives;    /* zinf_collectives */
    uint32_t optimizer_time; /* zinf_optimizer_time */
    uint32_t ranks;
    uint64_t io_block_bytes;
    uint32_t io_depth, n_threads;
} zinf_decisions;

typedef struct zinf_traffic {
    uint64_t read_bytes, write_bytes; /* per rank and step, across the tier's slowest link */
} zinf_traffic;

typedef struct zinf_predicted {
    double step_s;
    double queue_busy_s[ZINF_N_QUEUES];
    double flops_per_step;          /* model FLOP (6x and attention), per rank */
    double hardware_flops_per_step; /* with recomputation */
    double peak_flops;              /* of the device at this precision */
    zinf_traffic traffic[ZINF_N_CLASSES];
    /* in a step: by upload, download, read and write; sent to other ranks by collective; the mean
     * over ranks where they own units */
    uint64_t moved_bytes[ZINF_N_QUEUES];
    uint32_t bound_by;      /* zinf_queue with the largest busy time */
    uint32_t n_collectives; /* in a step */
} zinf_predicted;

typedef struct zinf_machine_info {
    char cluster[ZINF_NAME_BYTES];
    char backend[16];     /* cpu | cuda */
    uint64_t unified;     /* 1: device and host are one memory, all of it in tier device */
    uint64_t shared_cores; /* 1: compute, update, upload and download share the same cores */
    uint64_t arena_bytes[ZINF_N_TIERS];    /* what the runtime allocates */
    uint64_t owned_bytes[ZINF_N_TIERS];    /* its first: regions of units that a rank owns */
    uint64_t overhead_bytes[ZINF_N_TIERS]; /* stated, outside the arenas */
    uint64_t capacity_bytes[ZINF_N_TIERS];
    uint64_t overlap_read_write; /* 1: read and write do not slow each other down */
    double storage_core; /* bytes/s of storage that one of the shared cores serves; 0: any */
} zinf_machine_info;

/* Arrays are owned by the plan (one zinf_plan_free); indices are checked by zinf_plan_read. */
typedef struct zinf_plan {
    zinf_model_info model;
    zinf_job_info job;
    zinf_machine_info machine;
    zinf_decisions decisions;
    zinf_predicted predicted;
    zinf_program programs[ZINF_N_PROGRAMS];

    zinf_segment *segments;
    zinf_instr *instrs;
    zinf_operand *operands;
    zinf_wait *waits;
    zinf_tensor *tensors;
    zinf_unit *units;
    zinf_part *parts;
    zinf_item *items;
    uint32_t *values; /* value -> offset in strings: its name */
    char *strings;    /* NUL-terminated, back to back; offset 0 is "" */
    uint32_t n_segments, n_instrs, n_operands, n_waits, n_tensors, n_units, n_parts, n_items,
        n_values, n_strings; /* n_strings in bytes */
    uint64_t hash;           /* xxh64 of the file's contents; set by read and write */
} zinf_plan;

/* A unit (or ZINF_NONE) with whose update STEP begins. */
static inline bool zinf_is_late(const zinf_plan *plan, uint32_t unit)
{
    return unit < plan->n_units && plan->units[unit].late;
}

/* Elements of a unit that are a rank's: ret_first of the unit, how many follow (none is possible).
 * They are the first of its shard; the rest of the shard is padding. */
static inline uint64_t zinf_unit_range(const zinf_unit *unit, uint32_t rank, uint64_t *ret_first)
{
    const bool owned = unit->owner != ZINF_NONE;
    const uint64_t first = owned ? 0 : rank * unit->shard_elems;

    *ret_first = first;
    if (owned ? rank != unit->owner : first >= unit->n_elems)
        return 0;
    return unit->n_elems - first < unit->shard_elems ? unit->n_elems - first : unit->shard_elems;
}

const char *zinf_tier_name(unsigned tier);
const char *zinf_queue_name(unsigned queue);
const char *zinf_class_name(unsigned state_class);
const char *zinf_program_name(unsigned program);
const char *zinf_linear_name(unsigned linear);

/* Writes to a temporary name beside path, fsyncs and renames. */
zinf_status zinf_plan_write(zinf_plan *plan, const char *path, zinf_error *err);

/* Reads and validates: version, checksum, every count, index, enumeration and size (64-bit, no
 * overflow), operands inside their arena for every iteration of their loop. Memory used is
 * bounded by the file's size. ret_plan is set only on success. */
zinf_status zinf_plan_read(const char *path, zinf_plan *ret_plan, zinf_error *err);

/* The same from a file's bytes already in memory; name stands for the path in errors. */
zinf_status zinf_plan_parse(const char *name, const void *bytes, size_t n, zinf_plan *ret_plan,
                            zinf_error *err);

/* The structural validation alone, as run by zinf_plan_read. */
zinf_status zinf_plan_validate(const zinf_plan *plan, zinf_error *err);

void zinf_plan_free(zinf_plan *plan); /* accepts a zeroed plan */

/* Bytes of the scalar table: what the plan states, at least the slots named above. */
uint64_t zinf_plan_scalar_bytes(const zinf_plan *plan);

#endif
