/* planner/lower_internal.h - shared by lower.c (how data moves), lower_update.c (what works on the
 * states) and model_stages.c (which operators a model is). Nothing else includes it.
 */
#ifndef ZINF_PLANNER_LOWER_INTERNAL_H
#define ZINF_PLANNER_LOWER_INTERNAL_H

#include "planner/lower.h"

typedef enum zinf_stage_kind {
    ZINF_STAGE_EMBED, ZINF_STAGE_KEEP, ZINF_STAGE_RESTORE, ZINF_STAGE_LN1, ZINF_STAGE_LINEAR,
    ZINF_STAGE_ROPE, ZINF_STAGE_ATTENTION, ZINF_STAGE_LN2, ZINF_STAGE_ACTIVATION,
    ZINF_STAGE_FINAL_NORM,
    ZINF_STAGE_CLASSIFIER, ZINF_STAGE_LOSS, ZINF_STAGE_CLASSIFIER_BACKWARD,
    ZINF_STAGE_FINAL_NORM_BACKWARD, ZINF_STAGE_LINEAR_BACKWARD,
    ZINF_STAGE_ACTIVATION_BACKWARD, ZINF_STAGE_LN2_BACKWARD, ZINF_STAGE_ATTENTION_BACKWARD,
    ZINF_STAGE_ROPE_BACKWARD, ZINF_STAGE_LN1_BACKWARD,
    ZINF_STAGE_EMBED_BACKWARD, ZINF_STAGE_POSITION_BACKWARD, ZINF_STAGE_LOGITS
} zinf_stage_kind;

typedef struct zinf_stage {
    zinf_stage_kind kind;
    uint32_t layer, tile; /* KEEP, RESTORE: layer is the block whose input it is */
    uint32_t micro;       /* micro-batch of the step, or the first of a loop */
    zinf_linear linear;
    bool fused;    /* CLASSIFIER: forward and backward in one */
    bool gradient; /* KEEP, RESTORE: of that input */
} zinf_stage;

/* A block's input, or its gradient, that is kept for later: on its tier, absent if it is not there
 * yet; on the device, where it is used. In vertical order also the head's gradient of a unit that
 * is the embedding too, of which unit; else ZINF_NONE. */
typedef struct zinf_boundary {
    zinf_view kept, here;
    int32_t layer;
    uint32_t unit;
} zinf_boundary;

/* One transfer ahead of use: a unit's parameters or a boundary (the other is ZINF_NONE). */
typedef struct zinf_fetch {
    uint32_t unit, boundary, stage; /* stage: first that uses it */
    zinf_view staged, shard;     /* on the host; on the device */
    zinf_view ready;             /* gathered: what operators use */
} zinf_fetch;

/* Activations of a block in one micro-batch. */
typedef struct zinf_block_acts {
    zinf_view x, h1, stats1, qkv, att, lse, x2, h2, stats2, fc, g;
} zinf_block_acts;

typedef struct zinf_update_unit {
    zinf_view grad;
    zinf_view chunk;  /* its states where they are updated, or absent */
    zinf_view fresh;  /* the parameters where they were updated, until they are fetched */
    bool begun, due;  /* in this program; it is in dues */
} zinf_update_unit;

/* In the step that begins with the updates of the one before: the first stage that uses a unit. */
typedef struct zinf_due {
    uint32_t unit, stage;
} zinf_due;

typedef struct zinf_lowering {
    zinf_builder *b;
    const zinf_model *model;
    const zinf_cluster *cluster;
    const zinf_decisions *d;
    zinf_dtype act;
    zinf_tier host; /* where update instructions work: HOST, or DEVICE if unified */
    uint64_t seq, batch, n_tokens;
    uint32_t micro;         /* micro-batch of the step, or the first of a loop */
    bool updating;          /* the loss is whole: what has its gradient is updated */
    bool training;          /* the program is STEP */
    bool ahead;             /* see zinf_lower */
    bool vertical;          /* and all micro-batches of a group come before the next group */
    uint32_t phase;         /* vertical: a pass of all micro-batches through a group; else 0 */
    zinf_view tokens, step_tokens;
    uint32_t scalar_buffer, scalar_value;

    zinf_stage *stages;
    zinf_fetch *fetches;
    uint32_t n_stages, n_fetches, cap_stages, cap_fetches;
    uint32_t *unit_fetch;     /* [units] fetch that is current, or ZINF_NONE */
    /* [micro-batches if vertical][n_boundaries: inputs, gradients of layers + 1; head's tiles] */
    zinf_boundary *boundaries;
    uint32_t n_boundaries;
    uint32_t *fetched_in;     /* [units] phase in which it was needed last */
    zinf_view *sums;          /* [units] vertical: gradient of the micro-batches so far */
    zinf_update_unit *update; /* [units] */
    uint32_t *begun;          /* [units] whose updates have begun, in order */
    uint32_t n_begun, n_updated;
    zinf_due *dues; /* in order of first use */
    uint32_t n_dues, cap_dues;
    bool pending;   /* stages are being added that come after updates of the step before */
    uint32_t bring; /* the stage before which the embedding's states are brought; or ZINF_NONE */

    /* state of the walk through the stages */
    zinf_block_acts *acts; /* [layers + 1]; x of the last is the final norm's input */
    zinf_view final_h, final_stats, classifier_stats;
    zinf_view dx;         /* gradient of the current block's output */
    zinf_view dy, dinput; /* of the current linear: output's, input's */
    zinf_view dx2;        /* gradient after the MLP half */
    zinf_view small_grad; /* of the current block's unit of small tensors */
} zinf_lowering;

extern const zinf_view zinf_absent;

/* lower.c */
zinf_view zinf_slice(zinf_view view, uint64_t element, uint64_t rows, uint64_t cols, uint64_t ld);
zinf_view zinf_new_view(zinf_lowering *l, zinf_tier tier, zinf_bill item, zinf_dtype dtype,
                        uint64_t rows, uint64_t cols, const char *name);
zinf_view zinf_scratch(zinf_lowering *l, uint64_t bytes);
zinf_view zinf_scalars(const zinf_lowering *l, uint64_t slot, uint64_t n);
void zinf_add_stage(zinf_lowering *l, zinf_stage stage);
void zinf_need_unit(zinf_lowering *l, uint32_t unit);
void zinf_need_boundary(zinf_lowering *l, uint32_t layer, bool gradient);
void zinf_need_head_grad(zinf_lowering *l, uint32_t unit);
zinf_view zinf_unit_view(const zinf_lowering *l, uint32_t unit);
void zinf_keep_boundary(zinf_lowering *l, uint32_t layer, bool gradient, zinf_view x);
zinf_view zinf_boundary_view(const zinf_lowering *l, uint32_t layer, bool gradient);
zinf_view zinf_grad_target(zinf_lowering *l, uint32_t unit, bool second_use);
void zinf_store_grad(zinf_lowering *l, uint32_t unit, zinf_view grad, bool second_use,
                     bool last_use);
void zinf_loss_was_added(zinf_lowering *l);
/* A whole region of a unit as [1][n]. */
zinf_view zinf_param_region(const zinf_lowering *l, uint32_t unit);
zinf_view zinf_grad_region(const zinf_lowering *l, uint32_t unit);
zinf_view zinf_optimizer_region(const zinf_lowering *l, uint32_t unit);
zinf_tier zinf_view_tier(const zinf_lowering *l, zinf_view view);
/* Copies src to dst, which is in the neighbouring tier. */
void zinf_copy_view(zinf_lowering *l, uint32_t unit, int32_t layer, const char *name,
                    zinf_view src, zinf_view dst);
zinf_view zinf_view_like(zinf_lowering *l, zinf_tier tier, zinf_view src);
zinf_view zinf_move_view(zinf_lowering *l, uint32_t unit, int32_t layer, const char *name,
                         zinf_view src, zinf_tier to, zinf_view dst);

/* lower_update.c */
zinf_queue zinf_work_queue(const zinf_lowering *l, zinf_class state_class);
void zinf_sum_scalars(zinf_lowering *l, uint64_t slot, uint64_t n, const char *name);
void zinf_bring_states(zinf_lowering *l, uint32_t unit);
void zinf_begin_update(zinf_lowering *l, uint32_t unit, zinf_view grad);
void zinf_finish_updates(zinf_lowering *l, uint32_t most, zinf_view clip);
void zinf_update_ahead(zinf_lowering *l, uint32_t stage);
void zinf_forget_updates(zinf_lowering *l);
void zinf_lower_update(zinf_lowering *l);
void zinf_lower_flush(zinf_lowering *l);
void zinf_lower_fill(zinf_lowering *l, zinf_opcode opcode);
void zinf_lower_save(zinf_lowering *l);

/* model_stages.c: append the stages of one micro-batch, or of all of a step group by group; emit
 * one stage's instructions. */
void zinf_stages_train(zinf_lowering *l);
void zinf_stages_vertical(zinf_lowering *l);
void zinf_stages_forward(zinf_lowering *l, bool sample);
void zinf_emit_stage(zinf_lowering *l, const zinf_stage *stage);

#endif
