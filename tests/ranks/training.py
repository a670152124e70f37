# tests/ranks/training.py - one training, whatever number of ranks does it (DESIGN.md, N5): losses
# within the bound of another order of sums, bits equal for the same number of ranks, states equal
# wherever they go. argv: zinf-plan, zinf-run.
import array
import json
import sys

import crew as base
import lab as lib
from lab import gradient_bound, near, same, tiers

crew = base.Crew(*sys.argv[1:3])
STEPS = 6
MODEL = dict(layers=2, steps=STEPS, warmup=4)
LONG = dict(steps=20)
# nothing divides anything: 36 channels, a final norm of 72 numbers for up to 7 ranks of 16
ODD = dict(layers=1, hidden=36, heads=3, vocab=259, context=19, sequence=17, steps=STEPS)
PLAIN = {**tiers("device"), "micro_batch": 2, "tiles": 1, "checkpoint_interval": 1}
TEXT = crew.file("text", crew.prose(6000).encode())


def train(ranks, model=None, changes=None, *options, **more):
    return crew.crew(ranks, {**MODEL, **(model or {})}, {**PLAIN, **(changes or {})}, *options,
                     data=more.pop("data", TEXT), **more)


def close(run, other, what, model=None):
    """The same training within rounding; fails on NaN too."""
    shape = {**lib.MODEL, **MODEL, **(model or {})}
    precision, layers = shape["precision"], shape["layers"]
    bound = lib.loss_bound(other.rows, precision, layers,
                           shape["global_batch"] * shape["sequence"])
    assert len(run.rows) == len(other.rows), what
    worst = 0
    for row, one in zip(run.rows, other.rows):
        assert (row["step"], row["lr"]) == (one["step"], one["lr"]), what
        near(row["loss"], one["loss"], bound, f"{what}: loss of step {row['step']}")
        worst = max(worst, abs(row["loss"] - one["loss"]))
    near(run.rows[0]["grad_norm"], other.rows[0]["grad_norm"],
         gradient_bound(precision, layers) * other.rows[0]["grad_norm"], f"{what}: norm")
    print(f"# {what}: losses are off by {worst:.2g} at most, allowed {bound:.2g}")


def one_two_and_four_ranks_train_the_same():
    for precision in "fp32", "bf16":
        model = {**LONG, "precision": precision}
        one = train(1, model)
        assert len(one.rows) == 20 and one.losses[-1] < one.losses[0] - 0.3
        for ranks in 2, 4:
            close(train(ranks, model), one, f"{precision}, {ranks} ranks", model)


def the_same_number_of_ranks_is_the_same_to_the_bit():
    plan = crew.plan_for(4, {**MODEL, "precision": "bf16"}, PLAIN)
    first = train(4, {"precision": "bf16"})
    same(crew.sail(4, plan, data=TEXT), first, "again")
    for name in crew.launchers:
        same(crew.sail(4, plan, data=TEXT, launcher=name), first, name)


def tiers_and_distances_of_several_ranks_are_equal_to_the_bit():
    for changes in (tiers("nvme"), {**tiers("host", "nvme", "device"), "prefetch.gather": 0},
                    {"prefetch.gather": 5, "prefetch.read": 7}):
        same(train(2, None, changes), train(2), str(changes))
    same(train(2, unified=True), train(2), "one memory")
    same(train(4, nodes=2), train(4), "two nodes")


OWNER, SYNCHRONOUS = {"partitioning": "owner"}, {"collectives": "synchronous"}


def who_owns_and_who_waits_changes_no_bit():
    stored = {**tiers("nvme"), "tiles": 3, "prefetch.gather": 3}
    for ranks, model, changes, ways in (
            (2, {}, {}, (SYNCHRONOUS, {**OWNER, **SYNCHRONOUS})),
            (4, {"precision": "bf16"}, {}, (OWNER,)), (2, {}, stored, (OWNER, SYNCHRONOUS)),
            (2, {"global_batch": 12}, {"micro_batch": 1, "tiles": 2}, (OWNER, SYNCHRONOUS))):
        plain = train(ranks, model, changes)
        for more in ways:
            same(train(ranks, model, {**changes, **more}), plain, f"{ranks} ranks, {more}")
    for ranks, batch in (3, 3), (7, 7): # more ranks than some classes of units, odd sizes
        pins = {**tiers("host"), "micro_batch": 1, "tiles": 2}
        same(train(ranks, {**ODD, "global_batch": batch}, {**pins, **OWNER}),
             train(ranks, {**ODD, "global_batch": batch}, pins), f"{ranks} ranks of odd sizes")
    model = crew.file("llama.yaml", LLAMA.format(tied="true").encode())
    plans = [crew.plan_for(2, model, {**PLAIN, **more}) for more in ({}, OWNER)]
    same(crew.sail(2, plans[1], data=TEXT), crew.sail(2, plans[0], data=TEXT), "llama")
    plan = crew.plan_for(2, MODEL, {**PLAIN, **OWNER, **tiers("nvme")})
    for name in crew.launchers:
        same(crew.sail(2, plan, data=TEXT, launcher=name), train(2), f"owners, {name}")


def updates_inside_backward_train_the_same_on_several_ranks():
    model, early = {"clip": 0, "global_batch": 12}, {"optimizer_time": "backward", "micro_batch": 2}
    one = train(1, model, early)
    for ranks in 2, 3:
        run = train(ranks, model, early)
        close(run, one, f"{ranks} ranks, in backward", model)
        plan = crew.plan_for(ranks, {**MODEL, **model}, {**PLAIN, **early})
        same(crew.sail(ranks, plan, data=TEXT), run, f"{ranks} ranks, in backward, again")
        same(train(ranks, model, {**early, **tiers("nvme")}), run, "in backward, on nvme")
        same(train(ranks, model, {**early, **OWNER}), run, "in backward, with owners")


def three_five_and_seven_ranks_train_odd_sizes():
    for ranks, batch in (3, 3), (5, 10), (7, 7):
        model = {**ODD, "global_batch": batch}
        pins = {**tiers("host"), "micro_batch": 1, "tiles": 2}
        close(train(ranks, model, pins), train(1, model, pins), f"{ranks} ranks", model)


def ranks_without_an_element_of_a_bias_train_the_same():
    # Every bias and norm of 3 numbers is less than one for each of 4 ranks, and the final norm's
    # unit of 6 is one rank's alone: the others' shards of it are padding.
    ids = array.array("H", [(7919 * i + i * i * i) % 10 for i in range(700)])
    model = dict(hidden=3, heads=1, vocab=10, context=7, sequence=7)
    pins, saved = {**tiers("nvme"), "micro_batch": 1}, crew.path("saved")
    more = dict(data=crew.file("ids.bin", ids.tobytes()))
    one = train(1, model, pins, **more)
    assert len({*one.losses}) == STEPS, one.losses
    close(train(2, model, pins, **more), one, "biases of 3 on 2 ranks", model)
    run = train(4, model, pins, save=saved, **more)
    close(run, one, "biases of 3 on 4 ranks", model)
    moments = run.state("m")["transformer.ln_f.bias"]
    assert len(moments) == 3 and all(moments), moments
    again = crew.sail(1, crew.plan_for(1, {**MODEL, **model}, {**PLAIN, **pins}), "--resume", saved,
                      **more)
    assert again.summary["params_hash"] == run.summary["params_hash"]
    same(train(4, model, {**pins, **OWNER}, **more), run, "owners of biases of 3")


def accumulation_and_clipping_are_of_all_ranks():
    model = {"clip": 0.3, "global_batch": 12}
    one = train(1, model, {"micro_batch": 1})
    assert all(row["grad_norm_clipped"] <= 0.3 < row["grad_norm"] for row in one.rows)
    close(train(2, model, {"micro_batch": 1}), one, "6 micro-batches on each of 2 ranks", model)
    close(train(3, model, {"micro_batch": 4}), one, "1 micro-batch on each of 3 ranks", model)
    same(train(2, model, {"micro_batch": 1, **tiers("nvme")}), train(2, model, {"micro_batch": 1}),
         "accumulated on nvme")


LLAMA = """\
model: {{name: e2e, family: llama, layers: 2, hidden: 40, heads: 4, kv_heads: 2, head_dim: 8,
        ffn: 56, vocab: 259, context: 16, tied_embeddings: {tied}, qkv_bias: true}}
training:
  sequence: 16
  global_batch: 8
  precision: fp32
  optimizer: {{type: adamw, lr: 3e-3, betas: [0.9, 0.95], eps: 1e-8, weight_decay: 0.1}}
  schedule: {{type: cosine, warmup: 2, steps: 6, min_lr: 3e-4}}
  clip: 1.0
  seed: 1337
"""


def llamas_tied_and_not_are_right_in_tiles_on_several_ranks():
    for tied in "true", "false":
        model = crew.file("llama.yaml", LLAMA.format(tied=tied).encode())
        one = crew.sail(1, crew.plan_for(1, model, PLAIN), data=TEXT)
        two = crew.sail(2, crew.plan_for(2, model, {**PLAIN, "tiles": 3}), data=TEXT)
        close(two, one, f"tied {tied}, 3 tiles")


def fresh_weights_are_the_same_on_any_number_of_ranks():
    hashes = {train(n, {**ODD, "global_batch": 42}, {"micro_batch": 1}, "--steps", "0")
              .summary["params_hash"] for n in (1, 2, 3, 7)}
    assert len(hashes) == 1, hashes


def a_checkpoint_is_resumed_by_any_number_of_ranks():
    half, saved = str(STEPS // 2), crew.path("saved")
    whole = train(4)
    four = crew.sail(4, crew.plan_for(4, MODEL, PLAIN), "--steps", half, data=TEXT, save=saved)
    same(crew.sail(4, crew.plan_for(4, MODEL, PLAIN), "--resume", saved, data=TEXT),
         rest(whole, STEPS // 2), "4 ranks, then 4")
    for ranks, pins in (2, {**tiers("nvme"), "tiles": 2}), (1, {"tiles": 3}):
        plan = crew.plan_for(ranks, MODEL, {**PLAIN, **pins})
        still = crew.sail(ranks, plan, "--resume", saved, "--steps", half, data=TEXT)
        assert still.summary["params_hash"] == four.summary["params_hash"], ranks
        close(crew.sail(ranks, plan, "--resume", saved, data=TEXT), rest(whole, STEPS // 2),
              f"4 ranks, then {ranks}")
    saved = crew.path("saved") # what owners save, shards resume, and the other way around
    owners = {**PLAIN, **OWNER}
    three = crew.sail(4, crew.plan_for(4, MODEL, owners), "--steps", half, data=TEXT, save=saved)
    assert three.summary["params_hash"] == four.summary["params_hash"]
    same(crew.sail(4, crew.plan_for(4, MODEL, PLAIN), "--resume", saved, data=TEXT),
         rest(whole, STEPS // 2), "4 owners, then 4 shards")
    plan = crew.plan_for(2, MODEL, {**owners, **tiers("nvme"), "tiles": 2})
    still = crew.sail(2, plan, "--resume", saved, "--steps", half, data=TEXT)
    assert still.summary["params_hash"] == four.summary["params_hash"]
    close(crew.sail(2, plan, "--resume", saved, data=TEXT), rest(whole, STEPS // 2),
          "4 owners, then 2")
    saved = crew.path("saved")
    crew.sail(1, crew.plan_for(1, MODEL, PLAIN), "--steps", half, data=TEXT, save=saved)
    close(crew.sail(4, crew.plan_for(4, MODEL, PLAIN), "--resume", saved, data=TEXT),
          rest(whole, STEPS // 2), "1 rank, then 4")


def rest(run, first):
    return lib.Training(run.rows[first:], run.summary, run, None)


def validation_and_samples_are_those_of_one_rank():
    saved = crew.path("saved")
    options = ("--resume", saved, "--steps", "1", "--sample", "20", "--prompt", "the ")
    one = crew.sail(1, crew.plan_for(1, MODEL, PLAIN), "--steps", "1", "--val", TEXT,
                    "--val-batches", "4", data=TEXT, save=saved)
    two = crew.sail(2, crew.plan_for(2, MODEL, PLAIN), "--steps", "1", "--val", TEXT,
                    "--val-batches", "4", data=TEXT)
    near(two.rows[-1]["val_loss"], one.rows[-1]["val_loss"], 1e-6, "loss of validation")
    three = crew.file("three", crew.prose(3 * 16 + 1).encode()) # which two ranks cannot share: each counts once
    found = [crew.sail(n, crew.plan_for(n, MODEL, PLAIN), "--steps", "1", "--val", three,
                       data=TEXT).rows[-1]["val_loss"] for n in (1, 2, 4)]
    near(found[1], found[0], 1e-6, "loss of three sequences on two ranks")
    near(found[2], found[0], 1e-6, "loss of three sequences on four ranks")
    texts = [crew.sail(n, crew.plan_for(n, MODEL, PLAIN), *options, data=TEXT).stdout
             .splitlines()[0] for n in (1, 2)]
    assert texts[0] == texts[1] and texts[0].startswith("the "), texts


def bytes_sent_are_those_of_the_plan_and_collectives_few():
    for ranks in 2, 3:
        plan = crew.plan_for(ranks, {**MODEL, "global_batch": 12}, {**PLAIN, "micro_batch": 1})
        planned = json.loads(crew.planned.stdout)
        run = crew.sail(ranks, plan, "--steps", "2", data=TEXT)
        sent = [rank["sent_bytes"] for rank in run.summary["ranks"]]
        assert sent == [planned["ranks"]["sent_bytes_per_step"]] * ranks, (sent, planned["ranks"])
        # A block has 12 tensors but 5 units: gathered forward, once more to recompute, the four
        # linears' again to go backward; each reduced once. 9 are outside the blocks, 2 scalars'.
        assert planned["ranks"]["count"] == ranks
        blocks, passes = MODEL["layers"], 12 // ranks
        assert planned["ranks"]["collectives_per_step"] <= passes * (blocks * 19 + 9) + 2
        # owners send more or less than others; all together the same, a rank's part on average
        plan = crew.plan_for(ranks, {**MODEL, "global_batch": 12},
                             {**PLAIN, **OWNER, "micro_batch": 1})
        told = json.loads(crew.planned.stdout)
        assert told["decisions"]["partitioning"] == "owner"
        run = crew.sail(ranks, plan, "--steps", "2", data=TEXT)
        sent = sum(rank["sent_bytes"] for rank in run.summary["ranks"])
        assert sent // ranks == told["ranks"]["sent_bytes_per_step"], (sent, told["ranks"])
        assert told["ranks"] == planned["ranks"]


lib.main(crew, [
    one_two_and_four_ranks_train_the_same,
    the_same_number_of_ranks_is_the_same_to_the_bit,
    tiers_and_distances_of_several_ranks_are_equal_to_the_bit,
    who_owns_and_who_waits_changes_no_bit,
    updates_inside_backward_train_the_same_on_several_ranks,
    three_five_and_seven_ranks_train_odd_sizes,
    ranks_without_an_element_of_a_bias_train_the_same,
    accumulation_and_clipping_are_of_all_ranks,
    llamas_tied_and_not_are_right_in_tiles_on_several_ranks,
    fresh_weights_are_the_same_on_any_number_of_ranks,
    a_checkpoint_is_resumed_by_any_number_of_ranks,
    validation_and_samples_are_those_of_one_rank,
    bytes_sent_are_those_of_the_plan_and_collectives_few,
])
