/* runtime/opcodes.h - the instruction table: what each opcode reads, writes and means.
 *
 * X(NAME, "name", queues, "access of each operand slot", "links of each slot")
 *   queues: letters of the queues it may run on: C compute, G collective, U upload, D download,
 *           R read, W write, P update.
 *   access: one letter per slot. r reads, w writes, x reads and writes, a writes, and with
 *           ZINF_FLAG_ACCUMULATE reads too, s scratch (written, then worthless). An upper-case
 *           letter marks a slot that may be absent (bytes 0).
 *   links: which value each slot is, before (if it is read) and after (if it is written). First
 *           the operator of the model that the instruction is of, or - for none: E embedding, L
 *           layernorm, R rmsnorm, M linear, O rope, A attention, G gelu, S swiglu, C classifier.
 *           Then a letter per slot. Of the operator: T tokens, X what it is applied to (the
 *           result of the operator before), R a residual that it adds, Y its result, N
 *           statistics, D and E the gradients of Y and X, G that of X as a residual elsewhere; r
 *           y d only the columns, n only the sum over the tiles so far, that belong to the rows
 *           of the weight W; B the bias along these rows, P another parameter from row 0; w b p
 *           the gradients of those. Of the unit: 1 2 3 master, m, v; 4 5 parameters and gradient
 *           as its regions hold them, 6 7 gathered and not yet scattered; Q its sum of squares,
 *           S what CLIP writes. L the loss, 0 zeros, = the same value as in the first slot, #
 *           the same pieces, . scratch. Tiles come in order of rows.
 *
 * Operands, in slot order, and attributes (attr[0..3]). N = micro_batch * sequence tokens,
 * act = the plan's precision. A matrix operand may be a column range (ld > cols).
 *
 * EMBEDDING_FORWARD   r tokens I32 [B][T+1] (T = sequence; cols = ld = T+1), r wte tile act
 *                     [V][C], R wpe act [T][C], a out act [N][C]; attr0 first row of the tile.
 *                     Without ACCUMULATE rows of other tiles' tokens are zeroed.
 * EMBEDDING_BACKWARD  r tokens, r dx act [N][C], a dwte F32 [V][C]; attr0 first row
 * POSITION_BACKWARD   r dx act [N][C], a dwpe F32 [X][C]; attr0 B, attr1 T <= X. Positions from
 *                     T on have no gradient: zeroed, or left alone with ACCUMULATE.
 * LAYERNORM_FORWARD   r x act [N][C], r w act [C], r b act [C], w y act [N][C],
 *                     w stats F32 [N][2]
 * LAYERNORM_BACKWARD  r dy act or F32 [N][C], r x act, r w act [C], r stats F32 [N][2],
 *                     R residual gradient act [N][C], w dx act [N][C], a dw F32 [C],
 *                     a db F32 [C], s scratch
 * RMSNORM_FORWARD     r x act [N][C], r w act [C], w y act [N][C], w stats F32 [N][1]; the
 *                     model's norm_eps
 * RMSNORM_BACKWARD    r dy act or F32 [N][C], r x act, r w act [C], r stats F32 [N][1],
 *                     R residual gradient act [N][C], w dx act [N][C], a dw F32 [C], s scratch
 * LINEAR_FORWARD      r x act [N][K], r w act [M][K], R bias act [M], R residual act [N][M],
 *                     w y act [N][M], s scratch
 * LINEAR_BACKWARD_INPUT   r dy act [N][M], r w act [M][K], a dx act (never accumulated) or F32
 *                     [N][K], s scratch
 * LINEAR_BACKWARD_WEIGHT  r dy act [N][M], r x act [N][K], a dw F32 [M][K], A db F32 [M],
 *                     s scratch
 * ROPE                r qkv act [N][(H+2G)D], w the same bytes under another value: query and key
 *                     heads turned by their positions; attr0 H+G, attr1 1: turned back (the
 *                     gradient of qkv), attr2 D, attr3 T
 * ATTENTION_FORWARD   r qkv act [N][(H+2G)D], w out act [N][HD], w lse F32 [B][H*T], s scratch
 * ATTENTION_BACKWARD  r qkv, r out, r dout act [N][HD], r lse, w dqkv act, s scratch.
 *                     Both: attr0 H, attr1 G (kv heads), attr2 D, attr3 T
 * GELU_FORWARD        r x act [N][F], w y act [N][F]
 * GELU_BACKWARD       r x act [N][F], r dy act or F32, w dx act
 * SWIGLU_FORWARD      r x act [N][2F] (gate, up), w y act [N][F]
 * SWIGLU_BACKWARD     r x act [N][2F], r dy act or F32 [N][F], w dx act [N][2F]
 * CLASSIFIER_FORWARD  r h act [N][C], r w act tile [V][C], r tokens, a stats F32 [N][3],
 *                     s logits F32 [n][V], s scratch (GEMM); attr0 first row of the tile,
 *                     attr1 n = tokens per chunk. ACCUMULATE: not the first tile. As in
 *                     EMBEDDING_FORWARD tiles come in order of rows, each once.
 * CLASSIFIER_BACKWARD r h, r w tile, r tokens, r stats, a dh act (never accumulated) or F32
 *                     [N][C], a dw F32 [V][C], s logits F32 [n][V], s dlogits act [n][V],
 *                     s scratch; attr0 first row, attr1 n, attr2 tokens in the global batch
 *                     (the gradient is divided by it), attr3 bit 0: dh is accumulated, bit 1:
 *                     dw is accumulated (the ACCUMULATE flag is set if either is)
 * CLASSIFIER          forward and backward in one pass where the vocabulary is one tile: slots
 *                     and attributes of CLASSIFIER_BACKWARD, but stats is written
 * LOSS                r stats F32 [N][3], a loss F64 scalar; attr0 tokens in the global batch
 * LOGITS              r h act [T][C], r w act tile [V][C], w logits F32 [1][V], s scratch; the
 *                     row of h is set by the runtime before the program starts
 * CONVERT             r src, w dst: F32 <-> act, contiguous
 * ACCUMULATE          r src F32 [1][n], x acc F32 [1][n]
 * SUM_OF_SQUARES      r x F32 [1][n], w partial F64 scalar; of an owned unit 0 on the
 *                     other ranks, and the sum over what would be shards on its own
 * CLIP                r partials F64 [1][units], w scalars F64 [1][5] = norm, factor, skip, step,
 *                     learning rate of the step
 * ADAM                r grad F32 [1][n], x master, x m, x v F32 [1][n], w param act [1][n],
 *                     r scalars F64 [1][5] as CLIP wrote, or zeros; attr0 1 if weight decay
 *                     applies. If skip != 0 or step is 0 master, m and v stay as they are.
 * UPLOAD, DOWNLOAD, READ, WRITE, COPY   r src, w dst: contiguous, equal bytes, one value
 * ALLGATHER           r shard [1][n], w whole [1][ranks * n], any element
 * REDUCE_SCATTER      r whole F32 [1][ranks * n], w shard F32 [1][n]: the sum over ranks, in an
 *                     order that depends on the shard and the number of ranks only
 * REDUCE              r whole F32 [1][ranks * n], w the same on the root: the sum over ranks, each
 *                     n-th in the order in which REDUCE_SCATTER sums that shard; attr0 root
 * ALLREDUCE           r send F64 scalars, w recv: the sum in order of ranks; may be in place
 * BROADCAST           r shard [1][n] on the root, w whole [1][n], any element; attr0 root
 * BATCH               w tokens I32 [A*B][T+1] for the whole step (A accumulation steps); the
 *                     runtime's data position advances
 * INIT, IMPORT        w master, w m, w v F32 [1][n]: fresh values / from the checkpoint (unit);
 *                     n is the unit's shard, its padding zero
 * EXPORT              r master, r m, r v F32 [1][n]: into the checkpoint (unit)
 * ZERO                w dst
 */
#ifndef ZINF_RUNTIME_OPCODES_H
#define ZINF_RUNTIME_OPCODES_H

#include "runtime/plan.h"

#define ZINF_OPCODES(X)                                                                          \
    X(EMBEDDING_FORWARD, "embedding_forward", "C", "rrRa", "ETWPY")                              \
    X(EMBEDDING_BACKWARD, "embedding_backward", "C", "rra", "ETDw")                              \
    X(POSITION_BACKWARD, "position_backward", "C", "ra", "EDp")                                  \
    X(LAYERNORM_FORWARD, "layernorm_forward", "C", "rrrww", "LXWBYN")                            \
    X(LAYERNORM_BACKWARD, "layernorm_backward", "C", "rrrrRwaas", "LDXWNGEwb.")                  \
    X(RMSNORM_FORWARD, "rmsnorm_forward", "C", "rrww", "RXWYN")                                  \
    X(RMSNORM_BACKWARD, "rmsnorm_backward", "C", "rrrrRwas", "RDXWNGEw.")                        \
    X(LINEAR_FORWARD, "linear_forward", "C", "rrRRws", "MXWBry.")                                \
    X(LINEAR_BACKWARD_INPUT, "linear_backward_input", "C", "rras", "MdWE.")                      \
    X(LINEAR_BACKWARD_WEIGHT, "linear_backward_weight", "C", "rraAs", "MdXwb.")                  \
    X(ROPE, "rope", "C", "rw", "OXY")                                                            \
    X(ATTENTION_FORWARD, "attention_forward", "C", "rwws", "AXYN.")                              \
    X(ATTENTION_BACKWARD, "attention_backward", "C", "rrrrws", "AXYDNE.")                        \
    X(GELU_FORWARD, "gelu_forward", "C", "rw", "GXY")                                            \
    X(GELU_BACKWARD, "gelu_backward", "C", "rrw", "GXDE")                                        \
    X(SWIGLU_FORWARD, "swiglu_forward", "C", "rw", "SXY")                                        \
    X(SWIGLU_BACKWARD, "swiglu_backward", "C", "rrw", "SXDE")                                    \
    X(CLASSIFIER_FORWARD, "classifier_forward", "C", "rrrass", "CXWTn..")                        \
    X(CLASSIFIER_BACKWARD, "classifier_backward", "C", "rrrraasss", "CXWTNEw...")                \
    X(CLASSIFIER, "classifier", "C", "rrrwaasss", "CXWTNEw...")                                  \
    X(LOSS, "loss", "C", "ra", "CNL")                                                            \
    X(LOGITS, "logits", "C", "rrws", "CXWy.")                                                    \
    X(CONVERT, "convert", "CP", "rw", "-==")                                                     \
    X(ACCUMULATE, "accumulate", "CP", "rx", "-==")                                               \
    X(SUM_OF_SQUARES, "sum_of_squares", "CP", "rw", "-5Q")                                       \
    X(CLIP, "clip", "CP", "rw", "-QS")                                                           \
    X(ADAM, "adam", "CP", "rxxxwr", "-51234S")                                                   \
    X(UPLOAD, "upload", "U", "rw", "-##")                                                        \
    X(DOWNLOAD, "download", "D", "rw", "-##")                                                    \
    X(READ, "read", "R", "rw", "-##")                                                            \
    X(WRITE, "write", "W", "rw", "-##")                                                          \
    X(COPY, "copy", "CP", "rw", "-##")                                                           \
    X(ALLGATHER, "allgather", "G", "rw", "-46")                                                  \
    X(REDUCE_SCATTER, "reduce_scatter", "G", "rw", "-75")                                        \
    X(REDUCE, "reduce", "G", "rw", "-75")                                                        \
    X(ALLREDUCE, "allreduce", "G", "rw", "-##")                                                  \
    X(BROADCAST, "broadcast", "G", "rw", "-46")                                                  \
    X(BATCH, "batch", "P", "w", "-T")                                                            \
    X(INIT, "init", "P", "www", "-123")                                                          \
    X(IMPORT, "import", "P", "www", "-123")                                                      \
    X(EXPORT, "export", "P", "rrr", "-123")                                                      \
    X(ZERO, "zero", "CP", "w", "-0")

typedef enum zinf_opcode {
#define X(name, text, queues, access, links) ZINF_OP_##name,
    ZINF_OPCODES(X)
#undef X
    ZINF_N_OPCODES
} zinf_opcode;

typedef struct zinf_opcode_info {
    const char *name, *queues, *access, *links;
} zinf_opcode_info;

/* NULL for a value outside the table. */
const zinf_opcode_info *zinf_opcode_get(unsigned opcode);

/* Of this instruction: ROPE may turn back, a gradient, and CONVERT may serve a unit, whose
 * parameters it makes of the master copy. */
const char *zinf_instr_links(const zinf_instr *instr);

/* What an instruction does to the operand in a slot. */
typedef struct zinf_access {
    bool reads, writes, optional;
} zinf_access;
zinf_access zinf_operand_access(const zinf_instr *instr, unsigned slot);

/* The rank that carries it out alone, because it moves or changes the state of a unit which that
 * rank owns; the others pass it over. ZINF_NONE: every rank does. */
uint32_t zinf_instr_owner(const zinf_plan *plan, const zinf_instr *instr);

/* Where an operand is, in an arena that holds what each rank owns one after the other: two of them
 * overlap on some rank if they do here. */
uint64_t zinf_operand_at(const zinf_plan *plan, const zinf_instr *instr, const zinf_operand *o);

#endif
