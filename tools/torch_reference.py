#!/usr/bin/env python3
# tools/torch_reference.py - a small GPT-2 in plain PyTorch, trained for ten steps in double
# precision: the numbers that zinf-run is compared with (tests/runtime/reference/).
#
# usage: tools/torch_reference.py inputs DIR      the run's inputs: model.yaml, train.txt and a
#                                                 checkpoint of step 0; needs no PyTorch
#        tools/torch_reference.py losses [--f32]  losses, norms and samples as JSON on stdout;
#                                                 needs PyTorch (1.13 or newer)
#
# The initial weights come from a generator that a C test can replay in a few lines: element i of
# tensor number t (in the order of TENSORS, row major, [out][in]) is
#     u = splitmix64((t << 32) + i) >> 40            24 bits
#     value = center + spread * (u * 2^-23 - 1)      in double, rounded to float once
# The text has exactly global_batch sequences, so every step takes all of them, in whatever order
# they are shuffled: a mean over the batch does not depend on it.
import array
import json
import math
import os
import sys

CONFIG = {
    "layers": 3, "hidden": 48, "heads": 3, "ffn": 192, "vocab": 256, "context": 32,
    "sequence": 32, "global_batch": 4, "steps": 10, "warmup": 3, "lr": 3e-3, "min_lr": 3e-4,
    "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1, "clip": 1.8, "seed": 1337,
}
N_SAMPLES = 12

TEXT = (b"It is a truth universally acknowledged, that a single man in possession of a good "
        b"fortune, must be in want of a wife. However little.")


def tensors():
    """(name, shape, center, spread) in the order of the forward pass."""
    c, f = CONFIG["hidden"], CONFIG["ffn"]
    yield "wte.weight", (CONFIG["vocab"], c), 0.0, 0.05
    yield "wpe.weight", (CONFIG["context"], c), 0.0, 0.05
    for layer in range(CONFIG["layers"]):
        h = f"h.{layer}."
        yield h + "ln_1.weight", (c,), 1.0, 0.2
        yield h + "ln_1.bias", (c,), 0.0, 0.1
        yield h + "attn.c_attn.weight", (3 * c, c), 0.0, 0.2
        yield h + "attn.c_attn.bias", (3 * c,), 0.0, 0.1
        yield h + "attn.c_proj.weight", (c, c), 0.0, 0.1
        yield h + "attn.c_proj.bias", (c,), 0.0, 0.1
        yield h + "ln_2.weight", (c,), 1.0, 0.2
        yield h + "ln_2.bias", (c,), 0.0, 0.1
        yield h + "mlp.c_fc.weight", (f, c), 0.0, 0.2
        yield h + "mlp.c_fc.bias", (f,), 0.0, 0.1
        yield h + "mlp.c_proj.weight", (c, f), 0.0, 0.1
        yield h + "mlp.c_proj.bias", (c,), 0.0, 0.1
    yield "ln_f.weight", (c,), 1.0, 0.2
    yield "ln_f.bias", (c,), 0.0, 0.1


def splitmix64(x):
    x = (x + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return x ^ (x >> 31)


def initial(number, shape, center, spread):
    values = (center + spread * ((splitmix64((number << 32) + i) >> 40) * 2.0**-23 - 1)
              for i in range(math.prod(shape)))
    return array.array("f", values)


def learning_rate(step):
    """The rate of optimizer step `step`, counted from 0: as zinf-run's schedule."""
    lr, low, warmup, steps = (CONFIG[k] for k in ("lr", "min_lr", "warmup", "steps"))
    if step < warmup:
        return lr * (step + 1) / warmup
    if step >= steps:
        return low
    done = (step - warmup) / (steps - warmup)
    return low + 0.5 * (1 + math.cos(math.pi * done)) * (lr - low)


def batch():
    t, b = CONFIG["sequence"], CONFIG["global_batch"]
    assert len(TEXT) >= b * t + 1
    text = TEXT[:b * t + 1]
    return [list(text[i * t:(i + 1) * t + 1]) for i in range(b)]


def make_model(dtype):
    import torch
    from torch import nn
    from torch.nn import functional as F

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            c, f = CONFIG["hidden"], CONFIG["ffn"]
            self.ln_1 = nn.LayerNorm(c, eps=1e-5)
            self.attn = nn.ModuleDict({"c_attn": nn.Linear(c, 3 * c), "c_proj": nn.Linear(c, c)})
            self.ln_2 = nn.LayerNorm(c, eps=1e-5)
            self.mlp = nn.ModuleDict({"c_fc": nn.Linear(c, f), "c_proj": nn.Linear(f, c)})

        def forward(self, x):
            b, t, c = x.shape
            heads = CONFIG["heads"]
            q, k, v = (p.view(b, t, heads, c // heads).transpose(1, 2)
                       for p in self.attn["c_attn"](self.ln_1(x)).split(c, dim=2))
            scores = q @ k.transpose(-1, -2) / math.sqrt(c // heads)
            future = torch.ones(t, t, dtype=torch.bool).triu(1)
            out = scores.masked_fill(future, float("-inf")).softmax(-1) @ v
            x = x + self.attn["c_proj"](out.transpose(1, 2).reshape(b, t, c))
            u = self.mlp["c_fc"](self.ln_2(x))
            u = 0.5 * u * (1 + torch.tanh(math.sqrt(2 / math.pi) * (u + 0.044715 * u**3)))
            return x + self.mlp["c_proj"](u)

    class Gpt2(nn.Module):
        def __init__(self):
            super().__init__()
            c = CONFIG["hidden"]
            self.wte = nn.Embedding(CONFIG["vocab"], c)
            self.wpe = nn.Embedding(CONFIG["context"], c)
            self.h = nn.ModuleList([Block() for _ in range(CONFIG["layers"])])
            self.ln_f = nn.LayerNorm(c, eps=1e-5)

        def forward(self, tokens):
            inputs, targets = tokens[:, :-1], tokens[:, 1:]
            x = self.wte(inputs) + self.wpe(torch.arange(inputs.shape[1]))
            for block in self.h:
                x = block(x)
            logits = self.ln_f(x) @ self.wte.weight.T
            return F.cross_entropy(logits.reshape(-1, CONFIG["vocab"]), targets.reshape(-1))

    model = Gpt2().to(dtype)
    named = dict(model.named_parameters())
    with torch.no_grad():
        for number, (name, shape, center, spread) in enumerate(tensors()):
            values = torch.tensor(initial(number, shape, center, spread).tolist(), dtype=dtype)
            named.pop(name).copy_(values.view(shape))
    assert not named, named.keys()
    return model


def describe(tensor):
    """Norm, and samples at (i * n) // N_SAMPLES: enough to find which tensor is wrong."""
    flat = tensor.detach().double().reshape(-1)
    n = flat.numel()
    places = sorted({i * n // N_SAMPLES for i in range(N_SAMPLES)} | {n - 1})
    return {"norm": flat.norm().item(), "at": places, "values": [flat[i].item() for i in places]}


def losses(dtype_name):
    import torch

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    model = make_model(torch.float64 if dtype_name == "f64" else torch.float32)
    tokens = torch.tensor(batch())
    parameters = dict(model.named_parameters())
    groups = [
        {"params": [p for p in parameters.values() if p.dim() == 2],
         "weight_decay": CONFIG["weight_decay"]},
        {"params": [p for p in parameters.values() if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1.0, betas=(CONFIG["beta1"], CONFIG["beta2"]),
                                  eps=CONFIG["eps"])
    order = [name for name, _, _, _ in tensors()]
    steps = []
    first = {}
    for step in range(CONFIG["steps"]):
        lr = learning_rate(step)
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.zero_grad()
        loss = model(tokens)
        loss.backward()
        if step == 0:
            first = {name: describe(parameters[name].grad) for name in order}
        # Written out: torch's clip_grad_norm_ adds 1e-6 to the norm, zinf does not.
        norm = math.sqrt(sum(p.grad.double().square().sum().item() for p in parameters.values()))
        factor = CONFIG["clip"] / norm if norm > CONFIG["clip"] > 0 else 1.0
        for p in parameters.values():
            p.grad.mul_(factor)
        optimizer.step()
        steps.append({"step": step + 1, "loss": loss.item(), "lr": lr, "grad_norm": norm,
                      "grad_norm_clipped": norm * factor})
    with torch.no_grad():
        after = model(tokens).item()
    return {
        "about": "tools/torch_reference.py losses: torch " + torch.__version__,
        "dtype": dtype_name, "config": CONFIG, "steps": steps, "loss_after": after,
        "gradients_of_step_1": first,
        "final_parameters": {name: describe(parameters[name]) for name in order},
    }


def main(words):
    if words[:1] == ["inputs"] and len(words) == 2:
        write_inputs(words[1])
    elif words[:1] == ["losses"] and words[1:] in ([], ["--f32"]):
        json.dump(losses("f32" if words[1:] else "f64"), sys.stdout, indent=1)
        print()
    elif words in (["-h"], ["--help"]):
        with open(__file__, encoding="utf-8") as text:
            print("".join(line[2:] for line in text.readlines()[1:9]), end="")
    else:
        print("usage: tools/torch_reference.py inputs DIR | losses [--f32]", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
