#!/usr/bin/env python3
# tools/torch_llama.py - small llamas in plain PyTorch, trained for ten steps in double precision:
# the numbers that zinf-run is compared with (tests/runtime/reference/llama_f64.json). Text, batch,
# optimizer and schedule are those of torch_reference.py.
#
# usage: tools/torch_llama.py inputs VARIANT DIR  the run's inputs: model.yaml, train.txt and a
#                                                 checkpoint of step 0; needs no PyTorch
#        tools/torch_llama.py losses              losses, norms and samples of every variant as JSON
#                                                 on stdout; needs PyTorch (1.13 or newer)
#
# Variants: untied (grouped queries, heads wider than hidden, bias in QKV, an untied head) and
# scaled (one key head, tied, rotary positions scaled as in Llama 3.1). Both are of odd sizes.
import json
import math
import sys

import torch_reference
from torch_reference import CONFIG

VARIANTS = {
    "untied": {"layers": 3, "hidden": 38, "heads": 6, "kv_heads": 3, "head_dim": 10, "ffn": 50,
               "tied": False, "qkv_bias": True, "norm_eps": 1e-6, "rope_theta": 500.0,
               "scaling": None},
    "scaled": {"layers": 2, "hidden": 45, "heads": 4, "kv_heads": 1, "head_dim": 14, "ffn": 61,
               "tied": True, "qkv_bias": False, "norm_eps": 1e-5, "rope_theta": 10000.0,
               "scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                           "original_context": 64}},
}

MODEL = """# Written by tools/torch_llama.py
model:
  name: torch-llama
  family: llama
  layers: {layers}
  hidden: {hidden}
  heads: {heads}
  kv_heads: {kv_heads}
  head_dim: {head_dim}
  ffn: {ffn}
  vocab: {vocab}
  context: {context}
  tied_embeddings: {tied_text}
  norm_eps: {norm_eps}
  rope_theta: {rope_theta}
  qkv_bias: {bias_text}
"""
SCALING = """  rope_scaling: {{type: llama3, factor: {factor}, low_freq_factor: {low_freq_factor},
                 high_freq_factor: {high_freq_factor}, original_context: {original_context}}}
"""


def tensors(variant):
    """(name, shape, center, spread) in the order of a plan."""
    v = VARIANTS[variant]
    c, f, d = v["hidden"], v["ffn"], v["head_dim"]
    q, kv = v["heads"] * d, v["kv_heads"] * d
    yield "model.embed_tokens.weight", (CONFIG["vocab"], c), 0.0, 0.05
    for layer in range(v["layers"]):
        h = f"model.layers.{layer}."
        yield h + "input_layernorm.weight", (c,), 1.0, 0.2
        qkv = (("q_proj", q), ("k_proj", kv), ("v_proj", kv))
        for name, rows in qkv:
            yield h + f"self_attn.{name}.weight", (rows, c), 0.0, 0.3
        if v["qkv_bias"]:
            for name, rows in qkv:
                yield h + f"self_attn.{name}.bias", (rows,), 0.0, 0.2
        yield h + "self_attn.o_proj.weight", (c, q), 0.0, 0.1
        yield h + "post_attention_layernorm.weight", (c,), 1.0, 0.2
        yield h + "mlp.gate_proj.weight", (f, c), 0.0, 0.2
        yield h + "mlp.up_proj.weight", (f, c), 0.0, 0.2
        yield h + "mlp.down_proj.weight", (c, f), 0.0, 0.1
    yield "model.norm.weight", (c,), 1.0, 0.2
    if not v["tied"]:
        yield "lm_head.weight", (CONFIG["vocab"], c), 0.0, 0.05


def write_inputs(variant, folder):
    v = VARIANTS[variant]
    text = MODEL.format(**v, vocab=CONFIG["vocab"], context=CONFIG["context"],
                        tied_text=str(v["tied"]).lower(), bias_text=str(v["qkv_bias"]).lower())
    if v["scaling"]:
        text += SCALING.format(**v["scaling"])
    whole = torch_reference.MODEL.format(**CONFIG)
    text += whole[whole.index("training:"):]
    info = {key: v[key] for key in ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn")}
    scaling = v["scaling"] or {}
    info.update(vocab=CONFIG["vocab"], context=CONFIG["context"], tied_embeddings=int(v["tied"]),
                qkv_bias=int(v["qkv_bias"]), norm_eps=float(v["norm_eps"]),
                rope_theta=float(v["rope_theta"]),
                rope_original_context=scaling.get("original_context", 0),
                **{"rope_" + key: float(scaling.get(key, 0))
                   for key in ("factor", "low_freq_factor", "high_freq_factor")})
    torch_reference.write_inputs(folder, text, list(tensors(variant)),
                                 {"name": "torch-llama", "family": "llama", **info})


def frequencies(v):
    """As transformers' default and llama3 rotary embeddings, in double."""
    d, s = v["head_dim"], v["scaling"]
    plain = [v["rope_theta"]**(-2.0 * i / d) for i in range(d // 2)]
    if not s:
        return plain
    result = []
    for frequency in plain:
        wavelength = 2 * math.pi / frequency
        if wavelength < s["original_context"] / s["high_freq_factor"]:
            result.append(frequency)
        elif wavelength > s["original_context"] / s["low_freq_factor"]:
            result.append(frequency / s["factor"])
        else:
            smooth = (s["original_context"] / wavelength - s["low_freq_factor"]) / \
                (s["high_freq_factor"] - s["low_freq_factor"])
            result.append((1 - smooth) * frequency / s["factor"] + smooth * frequency)
    return result


def make_model(variant, dtype):
    import torch
    from torch import nn
    from torch.nn import functional as F

    v = VARIANTS[variant]
    c, f, d, heads, kv_heads = (v[key] for key in ("hidden", "ffn", "head_dim", "heads",
                                                   "kv_heads"))
    angles = torch.outer(torch.arange(CONFIG["sequence"], dtype=torch.float64),
                         torch.tensor(frequencies(v), dtype=torch.float64))
    cosine, sine = (torch.cat([part, part], 1).to(dtype) for part in (angles.cos(), angles.sin()))

    def turn(x):
        half = torch.cat([-x[..., d // 2:], x[..., :d // 2]], -1)
        return x * cosine + half * sine

    class Norm(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(c))

        def forward(self, x):
            return x * (x.square().mean(-1, keepdim=True) + v["norm_eps"]).rsqrt() * self.weight

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            bias = v["qkv_bias"]
            self.input_layernorm, self.post_attention_layernorm = Norm(), Norm()
            self.self_attn = nn.ModuleDict({
                "q_proj": nn.Linear(c, heads * d, bias=bias),
                "k_proj": nn.Linear(c, kv_heads * d, bias=bias),
                "v_proj": nn.Linear(c, kv_heads * d, bias=bias),
                "o_proj": nn.Linear(heads * d, c, bias=False)})
            self.mlp = nn.ModuleDict({"gate_proj": nn.Linear(c, f, bias=False),
                                      "up_proj": nn.Linear(c, f, bias=False),
                                      "down_proj": nn.Linear(f, c, bias=False)})

        def forward(self, x):
            b, t, _ = x.shape
            h = self.input_layernorm(x)
            q, k, value = (self.self_attn[name](h).view(b, t, -1, d).transpose(1, 2)
                           for name in ("q_proj", "k_proj", "v_proj"))
            q, k = turn(q), turn(k)
            k, value = (part.repeat_interleave(heads // kv_heads, 1) for part in (k, value))
            scores = q @ k.transpose(-1, -2) / math.sqrt(d)
            future = torch.ones(t, t, dtype=torch.bool).triu(1)
            out = scores.masked_fill(future, float("-inf")).softmax(-1) @ value
            x = x + self.self_attn["o_proj"](out.transpose(1, 2).reshape(b, t, heads * d))
            h = self.post_attention_layernorm(x)
            return x + self.mlp["down_proj"](F.silu(self.mlp["gate_proj"](h)) *
                                             self.mlp["up_proj"](h))

    class Llama(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = nn.ModuleDict({
                "embed_tokens": nn.Embedding(CONFIG["vocab"], c),
                "layers": nn.ModuleList([Layer() for _ in range(v["layers"])]), "norm": Norm()})
            if not v["tied"]:
                self.lm_head = nn.Linear(c, CONFIG["vocab"], bias=False)

        def forward(self, tokens):
            inputs, targets = tokens[:, :-1], tokens[:, 1:]
            x = self.model["embed_tokens"](inputs)
            for layer in self.model["layers"]:
                x = layer(x)
            head = self.model["embed_tokens"].weight if v["tied"] else self.lm_head.weight
            logits = self.model["norm"](x) @ head.T
            return F.cross_entropy(logits.reshape(-1, CONFIG["vocab"]), targets.reshape(-1))

    model = Llama().to(dtype)
    named = dict(model.named_parameters())
    with torch.no_grad():
        for number, (name, shape, center, spread) in enumerate(tensors(variant)):
            values = torch_reference.initial(number, shape, center, spread)
            named.pop(name).copy_(torch.tensor(values.tolist(), dtype=dtype).view(shape))
    assert not named, named.keys()
    return model


def train(variant, dtype_name):
    import torch

    model = make_model(variant, torch.float64 if dtype_name == "f64" else torch.float32)
    return torch_reference.train_model(model, dict(model.named_parameters()),
                                       [name for name, _, _, _ in tensors(variant)])


def reference(variant):
    """The reference; beside the exact numbers, what single precision makes of them."""
    steps, after, first, final = train(variant, "f64")
    for row, other in zip(steps, train(variant, "f32")[0]):
        row["loss_f32"], row["grad_norm_f32"] = other["loss"], other["grad_norm"]

    def lines(mapping):
        return "{\n" + ",\n".join(f'   "{name}": {json.dumps(value)}'
                                  for name, value in mapping.items()) + "\n  }"

    return "\n".join([
        "{", f'  "config": {json.dumps(VARIANTS[variant])},',
        '  "steps": [\n   ' + ",\n   ".join(json.dumps(row) for row in steps) + "\n  ],",
        f'  "loss_after": {after!r},', f'  "gradients_of_step_1": {lines(first)},',
        f'  "final_parameters": {lines(final)}', " }"])


def losses():
    import torch

    return "\n".join([
        "{", f' "about": "tools/torch_llama.py losses, torch {torch.__version__}, f64",',
        ",\n".join(f' "{variant}": {reference(variant)}' for variant in VARIANTS), "}"])


def main(words):
    if words[:1] == ["inputs"] and len(words) == 3 and words[1] in VARIANTS:
        write_inputs(words[1], words[2])
    elif words == ["losses"]:
        print(losses())
    elif words in (["-h"], ["--help"]):
        with open(__file__, encoding="utf-8") as text:
            print("".join(line[2:] for line in text.readlines()[1:13]), end="")
    else:
        print(f"usage: tools/torch_llama.py inputs {'|'.join(VARIANTS)} DIR | losses",
              file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
