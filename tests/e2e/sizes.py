# tests/e2e/sizes.py - models of awkward sizes against gpt2.py's doubles, loss and every gradient
# after one step and the losses after; data formats; clipping, decay, many micro-batches.
# argv: zinf-plan, zinf-run.
import array
import math
import os
import struct
import sys

import gpt2
import lab as lib
from lab import (BETA1, BETA2, EPSILON, UNIT, flip_bound, gradient_bound, gradients_near, near,
                 same, tiers)

lab = lib.Lab(*sys.argv[1:3])
STEPS = 3


def tokens_for(vocab, n):
    """n tokens, each id about as often, as nanoGPT's uint16; and as a list."""
    ids = [(7919 * i + i * i) % vocab for i in range(n)]
    return lab.file("tokens.bin", array.array("H", ids).tobytes()), ids


def initial_weights(model, settings):
    """What --steps 0 saves: also a test that a run may do nothing."""
    folder = lab.path("initial")
    lab.call(lab.run_command, lab.plan(model, settings), "--nvme", lab.folder, "--steps", "0",
             "--save", folder)
    return lib.read_safetensors(os.path.join(folder, "step-0", "master.safetensors"))


def reference_losses(weights, batch, model, rates):
    """(losses, first gradients) of AdamW in doubles on the same batch over and over."""
    m, v, losses, first = {}, {}, [], None
    for step, lr in enumerate(rates, 1):
        loss, grads = gpt2.step(weights, batch, model["hidden"], model["heads"])
        losses.append(loss)
        first = first or grads
        size = lib.norm(value for values in grads.values() for value in values)
        factor = min(1, model["clip"] / size) if model["clip"] else 1
        for name, values in grads.items():
            decay = 0 if ".ln_" in name or name.endswith(".bias") else model["weight_decay"]
            g = [value * factor for value in values]
            m[name] = [BETA1 * a + (1 - BETA1) * b for a, b in zip(m.get(name, [0] * len(g)), g)]
            v[name] = [BETA2 * a + (1 - BETA2) * b * b
                       for a, b in zip(v.get(name, [0] * len(g)), g)]
            weights[name] = [
                w * (1 - lr * decay) - lr * (a / (1 - BETA1**step)) /
                (math.sqrt(b / (1 - BETA2**step)) + EPSILON)
                for w, a, b in zip(weights[name], m[name], v[name])]
    return losses, first


def agrees(settings=None, precision="fp32", steps=STEPS, unified=False, **changes):
    model = {**lib.MODEL, "precision": precision, "steps": steps, "warmup": 1, **changes}
    sequence, n = model["sequence"], model["global_batch"]
    settings = {"checkpoint_interval": 1, **(settings or {})}
    # As many tokens as a step takes: every step has all of them, in whatever order.
    data, ids = tokens_for(model["vocab"], n * sequence + 1)
    batch = [ids[i * sequence:(i + 1) * sequence + 1] for i in range(n)]
    run = lab.train(model, settings, data=data, unified=unified)
    first = lab.train(model, settings, "--steps", "1", data=data, unified=unified, save=True)
    weights = initial_weights(model, settings)
    losses, gradients = reference_losses(weights, batch, model, [r["lr"] for r in run.rows])
    assert len(run.losses) == steps
    gradients_near(first.gradients(), gradients, gradient_bound(precision, model["layers"],
                                                                max(256, model["vocab"])))
    # fp32: the promise. bf16: a unit of rounding in each logit, which do not exceed 4.
    for step, (found, expected) in enumerate(zip(run.losses, losses), 1):
        bound = 1e-5 * expected if precision == "fp32" else 4 * UNIT["bf16"]
        near(found, expected, bound, f"loss of step {step}")


def hidden_37_with_one_head():
    agrees(hidden=37, heads=1, layers=1, vocab=61, sequence=5, context=5, global_batch=3)


def hidden_37_in_7_tiles_on_nvme():
    agrees({**tiers("nvme"), "tiles": 7, "micro_batch": 1}, hidden=37, heads=1, layers=2, vocab=61,
           sequence=5, context=5, global_batch=2)


def hidden_74_with_two_heads():
    agrees({**tiers("host"), "tiles": 3}, hidden=74, heads=2, layers=2, vocab=61, sequence=4,
           context=4, global_batch=2)


def hidden_37_in_bf16():
    agrees(precision="bf16", hidden=37, heads=1, layers=2, vocab=61, sequence=7, context=7,
           global_batch=3)


def hidden_1():
    # Its norms are zero: only the norms' biases and the positions beside them matter.
    agrees(hidden=1, heads=1, layers=1, vocab=5, sequence=3, context=3, global_batch=2)


def a_vocabulary_of_50257_with_hidden_16():
    agrees({"tiles.vocab": 7, **tiers("nvme", "host")}, steps=1, hidden=16, heads=2, layers=1,
           vocab=50257, sequence=2, context=2, global_batch=2)


def a_vocabulary_of_50257_in_one_tile():
    agrees({"tiles.vocab": 1}, unified=True, steps=1, hidden=16, heads=2, layers=1, vocab=50257,
           sequence=2, context=2, global_batch=1)


def a_context_longer_than_the_sequence():
    agrees({"micro_batch": 2}, context=29, sequence=6, hidden=16, heads=2, vocab=40,
           global_batch=4)


def one_layer_and_one_sequence():
    agrees(layers=1, global_batch=1, hidden=16, heads=4, vocab=40, sequence=9, context=9)


def sequences_of_one_token():
    agrees(sequence=1, context=4, global_batch=3, hidden=16, heads=2, vocab=40)


def sequences_of_two_tokens():
    agrees(sequence=2, context=2, global_batch=1, hidden=16, heads=2, vocab=40)


def sequences_of_three_tokens():
    agrees({"tiles": 2}, sequence=3, context=3, global_batch=2, hidden=16, heads=2, vocab=40)


def sixty_four_micro_batches_keep_fp32_accuracy():
    shape = dict(sequence=2, context=2, hidden=16, heads=2, vocab=40, layers=1, global_batch=64)
    agrees({"micro_batch": 1}, steps=1, **shape)
    data, _ = tokens_for(40, 64 * 2 + 1)
    # In bf16 each token's gradient has its own roundings, but the sum of them has none: one batch
    # or 64, the difference is that of another order in fp32 (128 terms).
    one, many = (lab.train({**shape, "precision": "bf16"}, {"micro_batch": n}, "--steps", "1",
                           data=data, save=True).gradients() for n in (64, 1))
    gradients_near(many, one, math.sqrt(128) * UNIT["fp32"] + flip_bound(1))


def llm_c_nanogpt_and_text_files_give_the_same_training():
    with open(lab.text, "rb") as file:
        text = file.read()
    ids = array.array("H", list(text))
    header = struct.pack("<256i", 20240520, 1, len(ids), *[0] * 253)
    expected = lab.train({})
    assert expected.losses[-1] < expected.losses[0]
    same(lab.train({}, data=lab.file("t.bin", ids.tobytes())), expected, "nanoGPT")
    same(lab.train({}, data=lab.file("t", header + ids.tobytes())), expected, "llm.c")


def each_step_takes_the_next_sequences_in_an_order_of_the_seed():
    runs = [lab.train({"seed": seed, "steps": 6}) for seed in (1, 2)]
    assert runs[0].losses != runs[1].losses
    # 4000 bytes are 249 sequences of 16: a rate of 0 shows that batches differ.
    still = lab.train({"lr": 0, "min_lr": 0, "weight_decay": 0, "steps": 6})
    assert len(set(still.losses)) == 6, still.losses
    assert still.summary["params_hash"] == lab.train({}, None, "--steps",
                                                     "0").summary["params_hash"]


def no_clipping_leaves_the_gradient_as_it_is():
    for row in lab.train({"clip": 0}).rows:
        assert row["grad_norm_clipped"] == row["grad_norm"] > 0, row


def clipping_scales_the_gradient_to_the_limit():
    plain = lab.train({"clip": 0}, None, "--steps", "1", save=True)
    clipped = lab.train({"clip": 0.25}, None, "--steps", "1", save=True)
    size = plain.rows[0]["grad_norm"]
    assert clipped.rows[0]["grad_norm"] == size > 0.25
    near(clipped.rows[0]["grad_norm_clipped"], 0.25, 0.25 * 1e-5, "norm after clipping")
    for name, values in plain.state("m").items():
        for a, b in zip(clipped.state("m")[name], values):
            near(a, b * 0.25 / size, 1e-5 * abs(b) * 0.25 / size + 1e-30, name)
    loose = lab.train({"clip": 1e6}, None, "--steps", "1", save=True)
    assert loose.state("m") == plain.state("m"), "a limit above the norm changes something"


def weight_decay_shrinks_matrices_alone():
    shape = dict(warmup=1, lr=1e-2)
    start = initial_weights({**shape}, None)
    none, some = (lab.train({**shape, "weight_decay": decay}, None, "--steps", "1",
                            save=True).state("master") for decay in (0, 0.5))
    for name, values in start.items():
        matrix = not (".ln_" in name or name.endswith(".bias"))
        if not matrix:
            assert none[name] == some[name], name
            continue
        for w, a, b in zip(values, none[name], some[name]):
            # Each of both is rounded once after the decay, once after the step of 1e-2.
            near(a - b, 1e-2 * 0.5 * w, 2 * UNIT["fp32"] * (2 * abs(w) + abs(a) + abs(b)), name)


lib.main(lab, [
    hidden_37_with_one_head, hidden_37_in_7_tiles_on_nvme, hidden_74_with_two_heads,
    hidden_37_in_bf16, hidden_1, a_vocabulary_of_50257_with_hidden_16,
    a_vocabulary_of_50257_in_one_tile, a_context_longer_than_the_sequence,
    one_layer_and_one_sequence, sequences_of_one_token, sequences_of_two_tokens,
    sequences_of_three_tokens, sixty_four_micro_batches_keep_fp32_accuracy,
    llm_c_nanogpt_and_text_files_give_the_same_training,
    each_step_takes_the_next_sequences_in_an_order_of_the_seed,
    no_clipping_leaves_the_gradient_as_it_is, clipping_scales_the_gradient_to_the_limit,
    weight_decay_shrinks_matrices_alone])
