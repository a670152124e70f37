/* runtime/hf_internal.h - what the parts of reader and writer of Hugging Face directories share. */
#ifndef ZINF_RUNTIME_HF_INTERNAL_H
#define ZINF_RUNTIME_HF_INTERNAL_H

#include <json-c/json.h>
#include <stdbool.h>
#include <string.h>

#include "runtime/hf.h"

#define ZINF_HF_SINGLE "model.safetensors"
#define ZINF_HF_INDEX "model.safetensors.index.json"

/* GPT-2's Conv1D: the plan's [out][in] is stored [in][out]. */
static inline bool zinf_hf_turned(const zinf_plan *plan, const zinf_tensor *tensor)
{
    return plan->model.family[0] == 'g' && tensor->n_dims == 2 &&
           strncmp(tensor->name, "transformer.w", 13) != 0; /* wte, wpe */
}

static inline uint32_t zinf_hf_shape(const zinf_plan *plan, const zinf_tensor *tensor,
                                     uint64_t ret_shape[2])
{
    const bool turned = zinf_hf_turned(plan, tensor);

    ret_shape[0] = turned ? tensor->cols : tensor->rows;
    ret_shape[1] = turned ? tensor->rows : tensor->cols;
    return tensor->n_dims == 1 ? 1 : 2;
}

/* Elements [first, first + n) of a turned tensor, in blocks of the stored matrix that fit a
 * buffer: of stored rows [row, row_end) the elements [col, col_end). The plan's element r * cols
 * + c is stored in row c at r; a block's corners may be outside of the range. */
typedef struct zinf_hf_block {
    uint64_t row, row_end, col, col_end;
} zinf_hf_block;

/* The next block, the first one after a zeroed one; false if there is none. */
static inline bool zinf_hf_next_block(const zinf_tensor *tensor, uint64_t first, uint64_t n,
                                      uint64_t element_bytes, zinf_hf_block *block)
{
    const uint64_t room = ZINF_HF_CHUNK / element_bytes, cols = tensor->cols;
    const uint64_t low = first / cols, high = (first + n + cols - 1) / cols;
    const uint64_t width = high - low < room ? high - low : room;

    if (!block->col_end || block->row_end == cols) {
        block->col = block->col_end ? block->col_end : low;
        block->col_end = high - block->col < width ? high : block->col + width;
        block->row_end = 0;
        if (block->col >= high)
            return false;
    }
    const uint64_t height = room / (block->col_end - block->col);
    block->row = block->row_end;
    block->row_end = cols - block->row < height ? cols : block->row + height;
    return true;
}

/* ---- hf_read.c ---- */

/* Is it there, and a directory? */
zinf_status zinf_hf_check_directory(const char *directory, zinf_error *err);

/* ---- hf_texts.c ---- */

/* A directory that is being written. */
typedef struct zinf_hf_place {
    int dir_fd;
    const char *directory; /* for messages */
} zinf_hf_place;

/* Is that a name of ours, other than weights and their index? */
bool zinf_hf_is_text(const char *name);
zinf_status zinf_hf_write_text(const zinf_hf_place *to, const char *name, json_object *object,
                               zinf_error *err);
/* from's, or what transformers needs to build the plan's model if that is NULL. dtype: of all
 * weights; ZINF_N_DTYPES leaves what from's says. */
zinf_status zinf_hf_write_config(const zinf_hf_place *to, const zinf_plan *plan, const char *from,
                                 uint32_t dtype, zinf_error *err);
/* The tokenizer and the like, where they are there. chunk: [ZINF_HF_CHUNK] */
zinf_status zinf_hf_copy_texts(const zinf_hf_place *to, const char *from, char *chunk,
                               zinf_error *err);

#endif
