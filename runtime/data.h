/* runtime/data.h - token files: llm.c (uint16 or uint32), nanoGPT (headerless uint16), raw text
 * through the built-in byte vocabulary (256 ids, vocab must be >= 256).
 *
 * A file of n tokens holds (n - 1) / T sequences of T + 1 tokens, neighbours sharing one token.
 * Sequences are visited in an order drawn anew for each epoch from the seed by a counter-based
 * permutation: the position (sequences taken so far) alone restores it.
 */
#ifndef ZINF_RUNTIME_DATA_H
#define ZINF_RUNTIME_DATA_H

#include <stdbool.h>
#include <stdint.h>

#include "runtime/error.h"

typedef struct zinf_data zinf_data;

/* The format: a header's magic decides for llm.c; else ".bin" means nanoGPT uint16 and anything
 * else raw text. Errors: no file, header and size disagree, odd size, fewer than one sequence, a
 * plan. shuffle false: file order (validation). The whole file is scanned once: a token >= vocab is
 * an error that names its index and value. */
zinf_status zinf_data_open(const char *path, uint64_t vocab, uint64_t sequence, uint64_t seed,
                           bool shuffle, zinf_data **ret_data, zinf_error *err);
void zinf_data_close(zinf_data *data);                      /* accepts NULL */
uint64_t zinf_data_n_sequences(const zinf_data *data);      /* per epoch, >= 1 */
uint64_t zinf_data_n_tokens(const zinf_data *data);
const char *zinf_data_format(const zinf_data *data);        /* "llm.c", "nanoGPT", "bytes" */

/* The descriptor, and the size that it had when it was opened. */
int zinf_data_file(const zinf_data *data, uint64_t *ret_bytes);

/* tokens[n][T + 1] for this rank's n of the ranks * n sequences from `position` on (what all ranks
 * have taken before): the i-th is position + i * ranks + rank. Reads by pread, not mmap: a file
 * that shrank since open is an error at any moment, never a signal, and its pages are not this
 * process's memory. */
zinf_status zinf_data_batch(zinf_data *data, uint64_t position, uint64_t n, uint32_t rank,
                            uint32_t ranks, int32_t *ret_tokens, zinf_error *err);

/* tokens[T + 1] from that one on: first + T < n_tokens. */
zinf_status zinf_data_window(const zinf_data *data, uint64_t first, int32_t *ret_tokens,
                             zinf_error *err);

#endif
