#!/usr/bin/env python3
# tools/torch_step.py - tokens/s of PyTorch training GPT-2 124M on the CPU, for tools/bench.
#
# usage: tools/torch_step.py SEQUENCE BATCH STEPS
#
# bf16 autocast over fp32 weights, AdamW, clipping; PyTorch's own fused attention where it has one
# (2.0 and newer), eager and compiled: the faster is reported. Prints JSON: tokens_per_s, version,
# how. Exit codes: 0 done, 2 wrong usage.
import json
import statistics
import sys
import time

import torch
from torch.nn import functional as F

C, HEADS, LAYERS, VOCAB, CONTEXT = 768, 12, 12, 50257, 1024


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = torch.nn.LayerNorm(C), torch.nn.LayerNorm(C)
        self.qkv, self.proj = torch.nn.Linear(C, 3 * C), torch.nn.Linear(C, C)
        self.fc, self.out = torch.nn.Linear(C, 4 * C), torch.nn.Linear(4 * C, C)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (y.view(b, t, HEADS, C // HEADS).transpose(1, 2)
                   for y in self.qkv(self.ln_1(x)).split(C, dim=2))
        if hasattr(F, "scaled_dot_product_attention"):
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = q @ k.transpose(2, 3) * (C // HEADS) ** -0.5
            mask = torch.ones(t, t, dtype=torch.bool, device=x.device).tril()
            y = scores.masked_fill(~mask, float("-inf")).softmax(dim=-1) @ v
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, C))
        return x + self.out(F.gelu(self.fc(self.ln_2(x))))


class GPT2(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = torch.nn.Embedding(VOCAB, C), torch.nn.Embedding(CONTEXT, C)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(LAYERS))
        self.ln_f = torch.nn.LayerNorm(C)

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(logits.view(-1, VOCAB), targets.reshape(-1))


def measure(model, sequence, batch, steps):
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95),
                                  weight_decay=0.1)
    seconds = []
    for _ in range(steps):
        data = torch.randint(0, VOCAB, (batch, sequence + 1))
        begin = time.monotonic()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(data[:, :-1], data[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seconds.append(time.monotonic() - begin)
    return batch * sequence / statistics.median(seconds[1:])


def main():
    if len(sys.argv) != 4 or not all(a.isdigit() and int(a) > 1 for a in sys.argv[1:]):
        print("usage: torch_step.py SEQUENCE BATCH STEPS, each at least 2", file=sys.stderr)
        return 2
    sequence, batch, steps = map(int, sys.argv[1:])
    torch.manual_seed(1)
    best = {"eager": measure(GPT2(), sequence, batch, steps)}
    if hasattr(torch, "compile"):
        try:
            best["compiled"] = measure(torch.compile(GPT2()), sequence, batch, steps)
        except Exception as error:  # no C++ compiler, or a version that cannot
            print("torch_step.py: not compiled: %s" % str(error)[:200], file=sys.stderr)
    how = max(best, key=best.get)
    print(json.dumps({"tokens_per_s": best[how], "version": torch.__version__, "how": how}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
