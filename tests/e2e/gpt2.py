# tests/e2e/gpt2.py - GPT-2's training step in doubles, written down once more in plain Python: a
# reference for the sizes that the stored PyTorch numbers do not have. reference.py holds it to
# those numbers.
#
# Matrices are lists of rows; an activation has a row per token of the batch. Weights are
# [out][in], named as in a checkpoint.
import math
from operator import mul


def linear(x, w, b):
    return [[sum(map(mul, row, out)) + c for out, c in zip(w, b)] for row in x]


def linear_backward(dy, x, w):
    """(dx, dw, db)"""
    outputs, inputs, columns = list(zip(*dy)), list(zip(*x)), list(zip(*w))
    return ([[sum(map(mul, row, column)) for column in columns] for row in dy],
            [[sum(map(mul, a, b)) for b in inputs] for a in outputs],
            [sum(a) for a in outputs])


def layernorm(x, w, b):
    """(y, what backward needs)"""
    y, kept = [], []
    for row in x:
        mean = sum(row) / len(row)
        rstd = 1 / math.sqrt(sum((v - mean)**2 for v in row) / len(row) + 1e-5)
        unit = [(v - mean) * rstd for v in row]
        kept.append((unit, rstd))
        y.append([u * g + c for u, g, c in zip(unit, w, b)])
    return y, kept


def layernorm_backward(dy, kept, w):
    """(dx, dw, db)"""
    dx, dw, db = [], [0.0] * len(w), [0.0] * len(w)
    for d, (unit, rstd) in zip(dy, kept):
        scaled = list(map(mul, d, w))
        mean = sum(scaled) / len(w)
        along = sum(map(mul, scaled, unit)) / len(w)
        dx.append([(s - mean - u * along) * rstd for s, u in zip(scaled, unit)])
        dw = [a + b * c for a, b, c in zip(dw, d, unit)]
        db = [a + b for a, b in zip(db, d)]
    return dx, dw, db


def softmax(row):
    most = max(row)
    exps = [math.exp(v - most) for v in row]
    total = sum(exps)
    return [e / total for e in exps]


def heads_of(row, heads):
    """q, k, v of each head of a row of QKV."""
    c, d = len(row) // 3, len(row) // 3 // heads
    return [[row[part * c + h * d:part * c + (h + 1) * d] for part in range(3)]
            for h in range(heads)]


def attention(qkv, sequence, heads, dout=None):
    """The output; with dout, the gradient of qkv."""
    c = len(qkv[0]) // 3
    d = c // heads
    result = [[0.0] * (3 * c if dout else c) for _ in qkv]
    for first in range(0, len(qkv), sequence):
        parts = [heads_of(row, heads) for row in qkv[first:first + sequence]]
        for h in range(heads):
            for t in range(sequence):
                q = parts[t][h][0]
                keys = [parts[s][h][1] for s in range(t + 1)]
                values = [parts[s][h][2] for s in range(t + 1)]
                p = softmax([sum(map(mul, q, k)) / math.sqrt(d) for k in keys])
                at = range(h * d, (h + 1) * d)
                if not dout:
                    for i in range(d):
                        result[first + t][at[i]] = sum(a * v[i] for a, v in zip(p, values))
                    continue
                do = [dout[first + t][i] for i in at]
                dp = [sum(map(mul, do, v)) for v in values]
                mean = sum(map(mul, p, dp))
                for s in range(t + 1):
                    ds = p[s] * (dp[s] - mean) / math.sqrt(d)
                    for i in range(d):
                        result[first + t][at[i]] += ds * keys[s][i]
                        result[first + s][c + at[i]] += ds * q[i]
                        result[first + s][2 * c + at[i]] += p[s] * do[i]
    return result


K = math.sqrt(2 / math.pi)


def gelu(u):
    return 0.5 * u * (1 + math.tanh(K * (u + 0.044715 * u**3)))


def gelu_slope(u):
    t = math.tanh(K * (u + 0.044715 * u**3))
    return 0.5 * (1 + t) + 0.5 * u * (1 - t * t) * K * (1 + 3 * 0.044715 * u * u)


def add(a, b):
    return [[x + y for x, y in zip(one, other)] for one, other in zip(a, b)]


def matrices(weights, hidden):
    """Flat arrays of a checkpoint as rows; vectors stay flat."""
    def rows(name, values):
        if ".ln_" in name or name.endswith(".bias"):
            return list(values)
        cols = 4 * hidden if name.endswith("mlp.c_proj.weight") else hidden
        return [list(values[i:i + cols]) for i in range(0, len(values), cols)]
    return {name: rows(name, values) for name, values in weights.items()}


def step(weights, batch, hidden, heads):
    """(mean loss, gradients as flat lists) of sequences of T + 1 tokens."""
    w = matrices(weights, hidden)
    sequence = len(batch[0]) - 1
    inputs = [token for tokens in batch for token in tokens[:-1]]
    targets = [token for tokens in batch for token in tokens[1:]]
    wte, wpe = w["transformer.wte.weight"], w["transformer.wpe.weight"]
    x = add([wte[token] for token in inputs],
            [wpe[i % sequence] for i in range(len(inputs))])
    n_layers = sum(name.endswith("ln_1.weight") for name in w)
    kept, grads = [], {}
    for layer in range(n_layers):
        def p(name, h=f"transformer.h.{layer}."):
            return w[h + name + ".weight"], w[h + name + ".bias"]
        h1, n1 = layernorm(x, *p("ln_1"))
        qkv = linear(h1, *p("attn.c_attn"))
        att = attention(qkv, sequence, heads)
        x = add(x, linear(att, *p("attn.c_proj")))
        h2, n2 = layernorm(x, *p("ln_2"))
        fc = linear(h2, *p("mlp.c_fc"))
        act = [[gelu(u) for u in row] for row in fc]
        x = add(x, linear(act, *p("mlp.c_proj")))
        kept.append((h1, n1, qkv, att, h2, n2, fc, act))
    final, norms = layernorm(x, w["transformer.ln_f.weight"], w["transformer.ln_f.bias"])
    loss, dlogits = 0.0, []
    for row, target in zip(linear(final, wte, [0.0] * len(wte)), targets):
        probability = softmax(row)
        loss -= math.log(probability[target]) / len(targets)
        probability[target] -= 1
        dlogits.append([v / len(targets) for v in probability])
    dx, dwte, _ = linear_backward(dlogits, final, wte)
    dx, *grads_f = layernorm_backward(dx, norms, w["transformer.ln_f.weight"])
    grads["transformer.ln_f.weight"], grads["transformer.ln_f.bias"] = grads_f
    for layer in reversed(range(n_layers)):
        h = f"transformer.h.{layer}."
        h1, n1, qkv, att, h2, n2, fc, act = kept[layer]

        def back(name, dy, saved, method=linear_backward, h=h):
            d, dw, grads[h + name + ".bias"] = method(dy, saved, w[h + name + ".weight"])
            grads[h + name + ".weight"] = [v for row in dw for v in row] \
                if method is linear_backward else dw
            return d

        d = back("mlp.c_proj", dx, act)
        d = [[a * gelu_slope(u) for a, u in zip(*rows)] for rows in zip(d, fc)]
        dx = add(dx, back("ln_2", back("mlp.c_fc", d, h2), n2, layernorm_backward))
        d = attention(qkv, sequence, heads, back("attn.c_proj", dx, att))
        dx = add(dx, back("ln_1", back("attn.c_attn", d, h1), n1, layernorm_backward))
    dwpe = [[0.0] * hidden for _ in wpe]
    for i, (token, row) in enumerate(zip(inputs, dx)):
        dwte[token] = [a + b for a, b in zip(dwte[token], row)]
        dwpe[i % sequence] = [a + b for a, b in zip(dwpe[i % sequence], row)]
    grads["transformer.wte.weight"] = [v for row in dwte for v in row]
    grads["transformer.wpe.weight"] = [v for row in dwpe for v in row]
    return loss, grads
