#!/usr/bin/env python3
# tools/finetune_check.py - what tools/finetune did, done again by transformers and PyTorch,
# in double precision.
#
# usage: finetune_check.py prompt HF_DIR TEXT          the text's token ids
#        finetune_check.py check HF_DIR WORK SEQUENCE BATCH STEPS
#            a table of zinf's numbers beside PyTorch's; exit code 1 if they are further apart than
#            the bound beside each
import json
import math
import os
import struct
import sys
import warnings

SEED, LR, BETAS, EPS, DECAY, CLIP = 1337, 5e-5, (0.9, 0.95), 1e-8, 0.1, 1.0
INITIAL_BOUND = 1e-3  # of a loss of trained weights in fp32, as issue and README promise
LOSS_BOUND = 1e-5     # relative, of the steps' losses in fp32; PyTorch's own fp32 was 1.4e-5 off at
                      # a third step where zinf was 1e-6: what is compared with is fp64
UNIT = 2.0**-8        # of bf16: a rounding's largest relative error; half of it its deviation
MASK = 2**64 - 1


def mix(x):
    x = ((x ^ x >> 30) * 0xbf58476d1ce4e5b9) & MASK
    x = ((x ^ x >> 27) * 0x94d049bb133111eb) & MASK
    return x ^ x >> 31


def sequence_at(position, n):
    """runtime/data.c: which sequence of n is taken at a position."""
    epoch, index = divmod(position, n)
    if n == 1:
        return 0
    bits = 0
    while 1 << 2 * bits < n:
        bits += 1
    mask = (1 << bits) - 1
    key = mix(mix((SEED + 0x9e3779b97f4a7c15) & MASK) ^ (epoch + 1))
    while True:
        left, right = index >> bits, index & mask
        for number in range(8):
            inner = mix((right + (number << 56) + 1) & MASK)
            left, right = right, left ^ (mix((key + inner) & MASK) & mask)
        index = left << bits | right
        if index < n:
            return index


def read_tokens(path):
    with open(path, "rb") as file:
        data = file.read()
    magic, _, count = struct.unpack("<3I", data[:12])
    return list(struct.unpack("<%d%s" % (count, "H" if magic == 20240520 else "I"), data[1024:]))


def read_log(path):
    with open(path, encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    return [row["loss"] for row in rows if "step" in row], \
        next((row["eval"] for row in rows if "eval" in row), None)


def bf16_bound(layers, tokens, spread, weights):
    """How far a loss in bf16 may be from that in fp32: four deviations of what is random, and what
    is not.

    About 8 operators a block and 4 beside them round a token's activations, each by UNIT / 2: their
    sum is off by the root of 8 L + 4 times that, the logits by as much of their spread over the
    vocabulary (a deviation, here the root mean square over tokens). A token's loss changes by
    (p - e_y) times the logits' errors, at most by the root of 2 of one; the mean over tokens keeps
    one in the root of their number. Roundings of the weights (7 a block, 2 beside) are the same for
    all tokens: they change the loss by the gradient times each, UNIT / 2 of the norm of
    gradient * weight. Second order, which is no mean of zero: the loss is convex in the logits and
    grows by half the variance of their errors, of activations and weights, at most.
    """
    first = math.sqrt(8 * layers + 4) * UNIT / 2 * spread * math.sqrt(2 / tokens)
    second = (15 * layers + 6) * (UNIT / 2 * spread)**2 / 2
    return 4 * math.hypot(first, UNIT / 2 * weights) + second


class Table:
    def __init__(self):
        self.good = True
        sys.stdout.reconfigure(line_buffering=True)  # a row as soon as it is known
        print(f"{'':<38}{'zinf':>14}{'PyTorch':>14}{'off by':>10}{'allowed':>10}")

    def row(self, name, found, expected, bound):
        off = abs(found - expected)
        good = off <= bound  # false for nan
        self.good &= good
        print(f"{name:<38}{found:14.7f}{expected:14.7f}{off:10.1e}{bound:10.1e}"
              f"{'' if good else '  WRONG'}")

    def text(self, name, found, expected):
        good = found == expected
        self.good &= good
        print(f"{name}: {'the same' if good else 'WRONG'}: {found!r}"
              f"{'' if good else f', expected {expected!r}'}")


def main(words):
    import torch
    from torch.nn.functional import cross_entropy
    import transformers
    transformers.logging.set_verbosity_error()
    folder, work, sequence, batch, steps = words[0], words[1], *map(int, words[2:])
    path = lambda name: os.path.join(work, name)  # noqa: E731

    def load(where):
        return transformers.AutoModelForCausalLM.from_pretrained(
            where, torch_dtype=torch.float32, attn_implementation="eager").double().eval()

    def loss_of(model, rows):
        """Of each token. transformers hands logits out in fp32, whose cross entropy over 49,152 of
        them would be off by 1.5e-5."""
        tokens = torch.tensor(rows)
        logits = model(tokens[:, :-1]).logits
        return cross_entropy(logits.flatten(0, 1).double(), tokens[:, 1:].flatten(),
                             reduction="none").view(len(rows), -1)

    def evaluate(model, tokens, backward=False):
        """As runtime/evaluate.h: every token but the first, once. backward: also the gradient."""
        total, last = 0.0, len(tokens) - 1
        with torch.set_grad_enabled(backward):
            for at in range(0, last, sequence):
                first = min(at, last - sequence)
                losses = loss_of(model, [tokens[first:first + sequence + 1]])[0, at - first:]
                total += losses.sum().item()
                if backward:
                    (losses.sum() / last).backward()
        return total / last

    def spread_of(model, tokens):
        """Of the logits over the vocabulary: root mean square of a token's deviation."""
        with torch.no_grad():
            variances = torch.cat([
                model(torch.tensor([tokens[at:at + sequence]])).logits[0].double().var(-1)
                for at in range(0, len(tokens) - sequence, sequence)])
        return math.sqrt(variances.mean().item())

    def generate(model, ids, n):
        with torch.no_grad():
            for _ in range(n):
                ids = ids + [model(torch.tensor([ids])).logits[0, -1].argmax().item()]
        return ids

    def sampled(name):
        with open(path(name), encoding="utf-8") as file:
            line = next(line for line in file if line[:1].isdigit())
        return [int(word) for word in line.split() if word.isdigit()]

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    table = Table()
    model, val = load(folder), read_tokens(path("val.bin"))
    before = evaluate(model, val, backward=True)
    found = read_log(path("before.jsonl"))[1]
    assert found["tokens"] == len(val) - 1, found
    table.row("validation before, fp32", found["loss"], before, INITIAL_BOUND)
    weights = math.sqrt(sum((p.grad * p).square().sum().item()
                            for p in model.parameters()))
    table.row("validation before, bf16", read_log(path("before-bf16.jsonl"))[1]["loss"], before,
              bf16_bound(model.config.num_hidden_layers, found["tokens"], spread_of(model, val),
                         weights))
    ids = sampled("before.txt")
    expected = generate(model, ids[:-12], 12)
    table.text("generated before", tokenizer.decode(ids), tokenizer.decode(expected))

    tokens = read_tokens(path("train.bin"))
    n = (len(tokens) - 1) // sequence
    groups = [{"params": [p for p in model.parameters() if p.dim() == 2], "weight_decay": DECAY},
              {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=LR, betas=BETAS, eps=EPS)
    losses, evaluation = read_log(path("log.jsonl"))
    assert len(losses) == steps, losses
    for step in range(steps):
        rows = [sequence_at(step * batch + i, n) * sequence for i in range(batch)]
        optimizer.zero_grad()
        loss = loss_of(model, [tokens[at:at + sequence + 1] for at in rows]).mean()
        loss.backward()
        norm = math.sqrt(sum(p.grad.square().sum().item() for p in model.parameters()))
        for p in model.parameters():
            p.grad.mul_(min(1.0, CLIP / norm))
        optimizer.step()
        table.row(f"loss of step {step + 1}", losses[step], loss.item(),
                  LOSS_BOUND * loss.item())
    after = evaluate(model, val)
    table.row("validation after", evaluation["loss"], after, LOSS_BOUND * after)
    del optimizer
    tuned = load(path("tuned"))
    table.row("validation of the exported model", evaluation["loss"], evaluate(tuned, val),
              LOSS_BOUND * after)
    ids = sampled("after.txt")
    table.text("generated after", tokenizer.decode(ids),
               tokenizer.decode(generate(tuned, ids[:-12], 12)))
    return 0 if table.good else 1


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    if sys.argv[1:2] == ["prompt"] and len(sys.argv) == 4:
        from tokenizers import Tokenizer
        found_ids = Tokenizer.from_file(os.path.join(sys.argv[2], "tokenizer.json")).encode(
            sys.argv[3], add_special_tokens=False).ids
        print(" ".join(map(str, found_ids)))
    elif sys.argv[1:2] == ["check"] and len(sys.argv) == 7:
        sys.exit(main(sys.argv[2:]))
    else:
        sys.exit("usage: finetune_check.py prompt HF_DIR TEXT | check HF_DIR WORK SEQUENCE BATCH "
                 "STEPS")
