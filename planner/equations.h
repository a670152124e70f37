/* planner/equations.h - Eq. 1-11 of the ZeRO-Infinity paper (Rajbhandari et al., SC'21, arXiv
 * 2104.07857), one function each. Closed forms, for a first look and
 * for people: what a plan needs to the byte is counted from its buffers instead.
 *
 * Symbols as in the paper, only in this file: nl layers, hd hidden dimension, bsz sequences per
 * device and micro-batch, seq tokens per sequence, ci Transformer blocks between two activation
 * checkpoints, attn_heads; bw in bytes/s, ait in FLOP per byte moved. All results are in base
 * units (bytes, FLOP, bytes/s) and exact while below 2^53.
 */
#ifndef ZINF_PLANNER_EQUATIONS_H
#define ZINF_PLANNER_EQUATIONS_H

#include <stdint.h>

#include "planner/spec.h"

/* Eq. 1: parameters of the blocks, 12 nl hd^2: QKV (hd, 3 hd), out (hd, hd), MLP (hd, 4 hd) and
 * (4 hd, hd). Leaves out embeddings, biases and norms: 85 of GPT-2's 124 million. */
double zinf_eq1_params(double nl, double hd);

/* Eq. 2: bytes of model states, 240 nl hd^2 = 20 bytes a parameter of Eq. 1: fp16 parameter and
 * gradient 2 + 2, fp32 momentum, variance, parameter and gradient 4 each. */
double zinf_eq2_model_state_bytes(double nl, double hd);

/* Eq. 3: bytes of activation checkpoints, 2 bsz seq hd nl / ci: one fp16 [seq][hd] for each
 * sequence every ci blocks. */
double zinf_eq3_checkpoint_bytes(double bsz, double seq, double hd, double nl, double ci);

/* Eq. 4: model state working memory, 16 hd^2 bytes: fp16 weight and gradient of the largest
 * linear, hd -> 4 hd. Trap: Figure 2a prints 1.95 GiB for hd = 10K, where this gives 1.5625. */
double zinf_eq4_mswm_bytes(double hd);

/* Eq. 5: activation working memory, bsz seq ci (16 hd + 2 attn_heads seq) bytes: what is
 * recomputed between two checkpoints. Trap: Figure 2a's AWM column is this with bsz = 4, its
 * "Act" column 2 nl times this with ci = 1 and the node's 32 sequences as bsz. */
double zinf_eq5_awm_bytes(double bsz, double seq, double ci, double hd, double attn_heads);

/* Eq. 6: efficiency = ait bw / (ait bw + peak_tp): compute time over compute plus transfer time.
 * Traps: it assumes that nothing overlaps; peak_tp is the achievable FLOP/s of one device when
 * nothing waits for data, not the data sheet's. peak_tp > 0. */
double zinf_eq6_efficiency(double ait, double bw, double peak_tp);

/* Eq. 6 solved for bw: bytes/s needed for an efficiency in [0, 1). */
double zinf_eq6_bandwidth(double ait, double efficiency, double peak_tp);

/* Eq. 7: FLOP of an iteration, 8 bsz seq params: forward 2, backward 4, recompute 2. Trap: the
 * paper's TFLOPS count the recomputation; "model FLOPS" (6 bsz seq params) are 0.75 of them. */
double zinf_eq7_flops(double bsz, double seq, double params);

/* Eq. 8: Eq. 7 with Eq. 1: 2 * 4 * 12 bsz seq nl hd^2. */
double zinf_eq8_flops(double bsz, double seq, double nl, double hd);

/* Eq. 9: ait of parameters and gradients, seq bsz: 2 * 4 bytes a parameter, since parameters are
 * loaded in forward, recomputation and backward, and gradients stored once. Counts one
 * micro-batch: accumulation in horizontal order changes nothing. */
double zinf_eq9_ait_param_grad(double seq, double bsz);

/* Eq. 10: ait of optimizer states, seq bsz / 4: 2 * 16 bytes a parameter, read and written once
 * a step. Traps: the 16 bytes include the fp32 gradient; accumulation over A micro-batches
 * multiplies the ratio by A. */
double zinf_eq10_ait_optimizer(double seq, double bsz);

/* Eq. 11: ait of activation checkpoints, 24 hd ci: twice Eq. 3, written once and read once. */
double zinf_eq11_ait_checkpoint(double hd, double ci);

#endif
