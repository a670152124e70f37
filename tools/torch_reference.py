#!/usr/bin/env python3
# tools/torch_reference.py - a small GPT-2 in plain PyTorch, trained for ten steps in double
# precision: the numbers that zinf-run is compared with (tests/runtime/reference/).
#
# usage: tools/torch_reference.py inputs DIR     the run's inputs: model.yaml, train.txt and a
#                                                checkpoint of step 0; needs no PyTorch
#        tools/torch_reference.py losses         losses, norms and samples as JSON on stdout;
#                                                needs PyTorch (1.13 or newer)
#
# The initial weights come from a generator that a C test can replay in a few lines: element i of
# tensor number t (in the order of tensors(), row major, [out][in]) is
#     u = splitmix64((t << 32) + i) >> 40            24 bits
#     value = center + spread * (u * 2^-23 - 1)      in double, rounded to float once
# The text has exactly global_batch sequences, so every step takes all of them, in whatever order
# they are shuffled: a mean over the batch does not depend on it.
import array
import json
import math
import os
import struct
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
    """(name, shape, center, spread) in the order of a plan."""
    c, f = CONFIG["hidden"], CONFIG["ffn"]
    yield "transformer.wte.weight", (CONFIG["vocab"], c), 0.0, 0.05
    yield "transformer.wpe.weight", (CONFIG["context"], c), 0.0, 0.05
    for layer in range(CONFIG["layers"]):
        h = f"transformer.h.{layer}."
        for norm, linears in (("ln_1", (("attn.c_attn", 3 * c, c, 0.2),
                                        ("attn.c_proj", c, c, 0.1))),
                              ("ln_2", (("mlp.c_fc", f, c, 0.2), ("mlp.c_proj", c, f, 0.1)))):
            yield h + norm + ".weight", (c,), 1.0, 0.2
            yield h + norm + ".bias", (c,), 0.0, 0.1
            for linear, rows, cols, spread in linears:
                yield h + linear + ".weight", (rows, cols), 0.0, spread
                yield h + linear + ".bias", (rows,), 0.0, 0.1
    yield "transformer.ln_f.weight", (c,), 1.0, 0.2
    yield "transformer.ln_f.bias", (c,), 0.0, 0.1


def splitmix64(x):
    x = (x + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return x ^ (x >> 31)


def initial(number, shape, center, spread):
    values = (center + spread * ((splitmix64((number << 32) + i) >> 40) * 2.0**-23 - 1)
              for i in range(math.prod(shape)))
    return array.array("f", values)


MASK = (1 << 64) - 1


def element_sum(data):
    """As runtime/element_sum.h, of a whole tensor's bytes."""
    total, index = 0, 0
    for (bits,) in struct.iter_unpack("<I", data):
        index += 1
        x = (index * 0x9E3779B97F4A7C15 + bits * 0xD6E8FEB86659FD93) & MASK
        x = (x ^ x >> 32) * 0xBF58476D1CE4E5B9 & MASK
        total += x ^ x >> 29
    return total & MASK


def xxh64(data):
    """As xxhash's XXH64 with seed 0."""
    p1, p2, p3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
    p4, p5, mask = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5, 0xFFFFFFFFFFFFFFFF

    def rotate(x, n):
        return (x << n | x >> (64 - n)) & mask

    def mix(acc, lane):
        return rotate((acc + lane * p2) & mask, 31) * p1 & mask

    n, at = len(data), 0
    if n >= 32:
        acc = [(p1 + p2) & mask, p2, 0, -p1 & mask]
        for lanes in struct.iter_unpack("<4Q", data[:n // 32 * 32]):
            acc = [mix(a, lane) for a, lane in zip(acc, lanes)]
        h = sum(rotate(a, r) for a, r in zip(acc, (1, 7, 12, 18))) & mask
        for a in acc:
            h = ((h ^ mix(0, a)) * p1 + p4) & mask
        at = n // 32 * 32
    else:
        h = p5
    h = (h + n) & mask
    while at + 8 <= n:
        h = (rotate(h ^ mix(0, int.from_bytes(data[at:at + 8], "little")), 27) * p1 + p4) & mask
        at += 8
    if at + 4 <= n:
        h = (rotate(h ^ int.from_bytes(data[at:at + 4], "little") * p1 & mask, 23) * p2 + p3) & mask
        at += 4
    for byte in data[at:]:
        h = rotate(h ^ byte * p5 & mask, 11) * p1 & mask
    h = (h ^ h >> 33) * p2 & mask
    h = (h ^ h >> 29) * p3 & mask
    return h ^ h >> 32


MODEL = """# Written by tools/torch_reference.py
model:
  name: torch-reference
  family: gpt2
  layers: {layers}
  hidden: {hidden}
  heads: {heads}
  ffn: {ffn}
  vocab: {vocab}
  context: {context}
  tied_embeddings: true
training:
  sequence: {sequence}
  global_batch: {global_batch}
  precision: fp32
  optimizer: {{type: adamw, lr: {lr}, betas: [{beta1}, {beta2}], eps: {eps}, weight_decay: \
{weight_decay}}}
  schedule: {{type: cosine, warmup: {warmup}, steps: {steps}, min_lr: {min_lr}}}
  clip: {clip}
  seed: {seed}
"""


def model_info():
    """The manifest's "model", without the number of parameters."""
    info = {key: CONFIG[key] for key in ("layers", "hidden", "heads")}
    info.update(kv_heads=CONFIG["heads"], head_dim=CONFIG["hidden"] // CONFIG["heads"],
                ffn=CONFIG["ffn"], vocab=CONFIG["vocab"], context=CONFIG["context"],
                tied_embeddings=1, qkv_bias=0, rope_original_context=0)
    reals = dict.fromkeys(("norm_eps", "rope_theta", "rope_factor", "rope_low_freq_factor",
                           "rope_high_freq_factor"), 0.0)
    return {"name": "torch-reference", "family": "gpt2", **info, **reals}


def write_checkpoint(folder, listed, model, seed):
    """Step 0 in the format of runtime/checkpoint.h: DIR/latest and DIR/step-0. listed: as
    tensors(); model: as model_info()."""
    step = os.path.join(folder, "step-0")
    os.makedirs(step, exist_ok=True)
    rows = [(name, shape,
             initial(number, shape, center, spread).tobytes())
            for number, (name, shape, center, spread) in enumerate(listed)]
    files, sums = {}, {}
    for state in ("master", "m", "v"):
        header, at = {"__metadata__": {"format": "zinf checkpoint", "array": state}}, 0
        data = [values if state == "master" else bytes(len(values)) for _, _, values in rows]
        for (name, shape, values) in rows:
            header[name] = {"dtype": "F32", "shape": list(shape),
                            "data_offsets": [at, at + len(values)]}
            at += len(values)
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-(8 + len(text)) % 4096)
        text = struct.pack("<Q", len(text)) + text
        with open(os.path.join(step, state + ".safetensors"), "wb") as out:
            out.write(text + b"".join(data))
        files[state + ".safetensors"] = {"bytes": len(text) + at, "header": f"{xxh64(text):016x}"}
        sums[state] = [f"{element_sum(values):016x}" for values in data]
    manifest = {
        "format": "zinf checkpoint", "version": 3, "step": 0, "data_position": 0,
        "seed": seed, "loss_scale": "0x1p+0", "plan_hash": f"{0:016x}",
        "model": {**{key: value.hex() if isinstance(value, float) else value
                     for key, value in model.items()},
                  "n_params": sum(len(values) for _, _, values in rows) // 4},
        "files": files,
        "tensors": [{"name": name, "shape": list(shape),
                     **{state: sums[state][i] for state in sums}}
                    for i, (name, shape, _) in enumerate(rows)],
    }
    text = json.dumps(manifest, indent=2)[:-2] + ',\n  "checksum": "'
    text += f'{xxh64(text.encode()):016x}"\n}}\n'
    with open(os.path.join(step, "manifest.json"), "w", encoding="ascii") as out:
        out.write(text)
    with open(os.path.join(folder, "latest"), "w", encoding="ascii") as out:
        out.write("step-0\n")


def write_inputs(folder, text=None, listed=None, model=None):
    """text: of model.yaml; the three are the GPT-2's unless given."""
    os.makedirs(folder, exist_ok=True)
    if os.listdir(folder):
        sys.exit(f"torch_reference.py: \"{folder}\" is not empty: give a new directory")
    with open(os.path.join(folder, "model.yaml"), "w", encoding="ascii") as out:
        out.write(text or MODEL.format(**CONFIG))
    with open(os.path.join(folder, "train.txt"), "wb") as out:
        out.write(TEXT[:CONFIG["global_batch"] * CONFIG["sequence"] + 1])
    write_checkpoint(os.path.join(folder, "checkpoint"), listed or list(tensors()),
                     model or model_info(), CONFIG["seed"])


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


def parameters_of(model):
    return {"transformer." + name: p for name, p in model.named_parameters()}


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
    named = parameters_of(model)
    with torch.no_grad():
        for number, (name, shape, center, spread) in enumerate(tensors()):
            values = torch.tensor(initial(number, shape, center, spread).tolist(), dtype=dtype)
            named.pop(name).copy_(values.view(shape))
    assert not named, named.keys()
    return model


def describe(name, tensor):
    """Norm, and samples at (i * n) // N_SAMPLES: enough to find which tensor is wrong. A key's bias
    changes no softmax: its gradient is rounding alone, and Adam makes steps of it. It is left
    out, of the norm too."""
    flat = tensor.detach().double().reshape(-1)
    n, c = flat.numel(), CONFIG["hidden"]
    keys = range(c, 2 * c) if name.endswith("c_attn.bias") else ()
    places = sorted({i * n // N_SAMPLES for i in range(N_SAMPLES)} | {n - 1})
    places = [i for i in places if i not in keys]
    norm = math.sqrt(sum(flat[i].item() ** 2 for i in range(n) if i not in keys))
    return {"norm": norm, "at": places, "values": [flat[i].item() for i in places]}


def train(dtype_name):
    """(rows of steps, loss after them, gradients of step 1, final parameters)"""
    import torch

    model = make_model(torch.float64 if dtype_name == "f64" else torch.float32)
    return train_model(model, parameters_of(model), [name for name, _, _, _ in tensors()])


def train_model(model, parameters, order):
    """As train; model(tokens) is the mean loss, parameters maps names, order lists them."""
    import torch

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    tokens = torch.tensor(batch())
    groups = [
        {"params": [p for p in parameters.values() if p.dim() == 2],
         "weight_decay": CONFIG["weight_decay"]},
        {"params": [p for p in parameters.values() if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1.0, betas=(CONFIG["beta1"], CONFIG["beta2"]),
                                  eps=CONFIG["eps"])
    steps = []
    for step in range(CONFIG["steps"]):
        lr = learning_rate(step)
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.zero_grad()
        loss = model(tokens)
        loss.backward()
        if step == 0:
            first = {name: describe(name, parameters[name].grad) for name in order}
        # Written out: torch's clip_grad_norm_ adds 1e-6 to the norm, zinf does not.
        norm = math.sqrt(sum(p.grad.double().square().sum().item() for p in parameters.values()))
        factor = CONFIG["clip"] / norm if norm > CONFIG["clip"] > 0 else 1.0
        for p in parameters.values():
            p.grad.mul_(factor)
        optimizer.step()
        steps.append({"step": step + 1, "lr": lr, "loss": loss.item(), "grad_norm": norm,
                      "grad_norm_clipped": norm * factor})
    with torch.no_grad():
        after = model(tokens).item()
    return steps, after, first, {name: describe(name, parameters[name]) for name in order}


def losses():
    """The reference as text; beside the exact numbers, what single precision makes of them."""
    import torch

    steps, after, first, final = train("f64")
    single, after_f32, _, _ = train("f32")
    for row, other in zip(steps, single):
        row["loss_f32"], row["grad_norm_f32"] = other["loss"], other["grad_norm"]

    def rows(mapping):
        return "{\n" + ",\n".join(f'  "{name}": {json.dumps(value)}'
                                  for name, value in mapping.items()) + "\n }"

    return "\n".join([
        "{", f' "about": "tools/torch_reference.py losses, torch {torch.__version__}, f64",',
        ' "note": "attn.c_attn.bias: norm and samples leave out the key part",',
        f' "config": {json.dumps(CONFIG)},',
        ' "steps": [\n  ' + ",\n  ".join(json.dumps(row) for row in steps) + "\n ],",
        f' "loss_after": {after!r}, "loss_after_f32": {after_f32!r},',
        f' "gradients_of_step_1": {rows(first)},', f' "final_parameters": {rows(final)}', "}"])


def main(words):
    if words[:1] == ["inputs"] and len(words) == 2:
        write_inputs(words[1])
    elif words == ["losses"]:
        print(losses())
    elif words in (["-h"], ["--help"]):
        with open(__file__, encoding="utf-8") as text:
            print("".join(line[2:] for line in text.readlines()[1:9]), end="")
    else:
        print("usage: tools/torch_reference.py inputs DIR | losses", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
