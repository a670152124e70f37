# tests/e2e/equal.py - one training, however it is planned (DESIGN.md, N1 to N4): what must be
# equal to the bit is, the rest is within a derived bound. argv: zinf-plan, zinf-run, precision.
#
# To the bit, whatever the sizes: the same plan; tier, prefetch distance, storage engine, one memory
# or two, checkpoint interval, for they change no kernel's shape. To the bit in fp32 as long as a
# linear sums at most 384 products (kernels/kernels.h), as here: number of threads; in the first
# step the loss under tiles of linears, and the gradient of what is tiled. All else is another
# order of sums: in fp32, unless a sum is rounded to bf16 and comes out on the other side.
import itertools
import math
import sys

import lab as lib
from lab import UNIT, flip_bound, gradient_bound, gradients_near, near, same, some, tiers

lab = lib.Lab(*sys.argv[1:3])
PRECISION = sys.argv[3]
LAYERS = 3
MODEL = dict(precision=PRECISION, layers=LAYERS)
TOKENS = lib.MODEL["global_batch"] * lib.MODEL["sequence"]
PLAIN = {**tiers("device"), "micro_batch": 8, "tiles": 1, "checkpoint_interval": "none",
         "prefetch.read": 1, "prefetch.upload": 1}
LINEARS = ("qkv", "out", "fc", "proj", "vocab")
TILED = 0 if PRECISION == "fp32" else flip_bound(LAYERS)  # see the top
TIERS = ("device", "host", "nvme")


def train(changes=None, *options, **more):
    return lab.train(MODEL, {**PLAIN, **(changes or {})}, *options, **more)


def base():
    return train()


def loss_bound():
    return lib.loss_bound(base().rows, PRECISION, LAYERS, TOKENS)


def close(run, what):
    """The same training within rounding: learning rates equal, losses and norms near."""
    worst = 0
    for row, other in zip(run.rows, base().rows):
        assert row["lr"] == other["lr"], what
        near(row["loss"], other["loss"], loss_bound(), f"{what}: loss of step {row['step']}")
        worst = max(worst, abs(row["loss"] - other["loss"]))
    near(run.rows[0]["grad_norm"], base().rows[0]["grad_norm"],
         gradient_bound(PRECISION, LAYERS) * base().rows[0]["grad_norm"], f"{what}: norm")
    return worst


def first_gradients(changes):
    """m after one step without clipping."""
    return lab.train({**MODEL, "clip": 0}, {**PLAIN, **changes}, "--steps", "1",
                     save=True).state("m")


def first_step(changes=None):
    return train(changes, "--steps", "1", save=True)


def a_training_learns():
    losses = train({}, "--steps", "40").losses
    assert losses[-1] < losses[0] - 0.5, losses


def the_same_request_gives_the_same_plan_and_the_same_training():
    one, two = (lab.plan(MODEL, {**PLAIN, **tiers("nvme"), "checkpoint_interval": 1})
                for _ in range(2))
    with open(one, "rb") as a, open(two, "rb") as b:
        assert a.read() == b.read(), "two plans"
    same(lab.run(one), base(), "once")
    same(lab.run(one), base(), "twice")


def every_tier_of_every_state_gives_the_same_bits():
    # All 81: nothing is cheaper to believe.
    for choice in some(itertools.product(TIERS, repeat=4)):
        same(train({**tiers(*choice), "checkpoint_interval": 1}), base(), " ".join(choice))


def every_prefetch_distance_gives_the_same_bits():
    for read, upload in some([(n, n) for n in range(5)] + [(0, 4), (4, 0), (64, 64)]):
        same(train({**tiers("nvme"), "checkpoint_interval": 1, "prefetch.read": read,
                    "prefetch.upload": upload}), base(), f"read {read}, upload {upload}")


def every_storage_engine_block_and_depth_gives_the_same_bits():
    for engine in "uring", "threads":
        for block, depth in (4096, 1), (4096, 64), (1 << 20, 2):
            same(train({**tiers("nvme"), "checkpoint_interval": 1, "io.block": block,
                        "io.depth": depth}, "--engine", engine), base(),
                 f"{engine}, block {block}, depth {depth}")


def one_memory_or_two_gives_the_same_bits():
    for tier in TIERS:
        for interval in "none", 2:
            same(train({**tiers(tier), "checkpoint_interval": interval}, unified=True), base(),
                 f"unified, {tier}, interval {interval}")


def the_rates_of_the_machine_give_the_same_bits():
    # They decide into how many tokens the classifier is cut: here a few, or all of them.
    plans = []
    for rate in "25 GB/s", "2500 GB/s":
        cluster = lab.file("cluster.yaml", lib.CLUSTER_TEXT.format(
            unified="false", memory="1 GiB").replace("bandwidth: 25 GB/s", "bandwidth: " + rate, 2)
            .encode())
        plans.append(lab.path("plan"))
        lab.call(lab.plan_command, lab.model(**MODEL), cluster, "-o", plans[-1],
                 *[word for key, value in PLAIN.items() for word in ("--set", f"{key}={value}")])
    one, two = (lab.run(plan) for plan in plans)
    assert one.summary["planned"]["device"] != two.summary["planned"]["device"], "not cut"
    same(two, one, "another bandwidth")


def recomputing_gives_the_same_bits():
    for interval in 1, 2, 3:
        for tier in TIERS:
            same(train({**tiers("device", checkpoint=tier), "checkpoint_interval": interval}),
                 base(), f"interval {interval}, checkpoints on {tier}")


def the_number_of_threads_gives_the_same_bits():
    for n in 1, 3:
        if PRECISION == "fp32":
            same(train({"threads": n}), base(), f"{n} threads")
        else:
            gradients_near(first_step({"threads": n}).gradients(), first_step().gradients(),
                           flip_bound(LAYERS))
            close(train({"threads": n}), f"{n} threads")


def tiles_of_linears_give_the_same_loss_of_the_first_step():
    # Each output feature is summed as before, whatever tile it is in.
    for linear in LINEARS[:-1]:
        for n in some((2, 3, 7)):
            loss = train({f"tiles.{linear}": n}).losses[0]
            near(loss, base().losses[0], TILED, (linear, n))


def tiles_of_a_linear_give_its_weight_gradient_the_same_bits():
    # A tile's gradient is some rows of the whole. In the last block what arrives from above is
    # the same; with clip 0 nothing is scaled.
    names = {"qkv": "attn.c_attn", "out": "attn.c_proj", "fc": "mlp.c_fc", "proj": "mlp.c_proj"}
    whole = first_gradients({})
    for linear, name in names.items():
        for n in some((2, 3, 7)):
            tiled = first_gradients({f"tiles.{linear}": n})
            for kind in "weight", "bias":
                tensor = f"transformer.h.{LAYERS - 1}.{name}.{kind}"
                off = lib.norm([a - b for a, b in zip(tiled[tensor], whole[tensor])])
                assert off <= TILED * lib.norm(whole[tensor]), (tensor, n, off)


def tiles_of_the_vocabulary_give_the_first_loss_within_rounding():
    # The sum of exponentials is put together from tiles: each joins by an exponential, a product
    # and a sum, in fp32; the logarithm turns their relative error into an absolute one. Inside
    # a tile up to 256 / 16 lanes are added in a row.
    for n in 2, 3, 7:
        near(train({"tiles.vocab": n}).losses[0], base().losses[0],
             (3 * n + 256 / 16) * UNIT["fp32"], f"{n} tiles")


def tiles_give_the_same_gradients_within_rounding():
    for changes in some([{"tiles": n} for n in (2, 3, 7)] +
                        [{f"tiles.{name}": 7} for name in LINEARS]):
        gradients_near(first_step(changes).gradients(), first_step().gradients(),
                       gradient_bound(PRECISION, LAYERS))


def micro_batches_give_the_same_first_loss():
    # The same numbers in the same places, added in another order in fp64.
    for micro in 4, 2, 1:
        bound = TOKENS * 2.0**-53 * base().losses[0] if PRECISION == "fp32" else flip_bound(LAYERS)
        near(train({"micro_batch": micro}).losses[0], base().losses[0], bound,
             f"micro_batch {micro}")


def micro_batches_give_the_same_gradients_within_fp32_rounding():
    # Cutting a sum over 128 tokens elsewhere: a random walk of 128 steps at most. In bf16 too:
    # what is accumulated is fp32.
    bound = math.sqrt(TOKENS) * UNIT["fp32"]
    if PRECISION == "bf16":
        bound += flip_bound(LAYERS)
    for micro in 4, 2, 1:
        gradients_near(first_step({"micro_batch": micro}).gradients(), first_step().gradients(),
                       bound)


def tiles_and_micro_batches_train_alike_on_every_tier():
    worst = 0
    for tiles, micro in some(itertools.product((1, 2, 3, 7), (8, 4, 2, 1))):
        run = train({"tiles": tiles, "micro_batch": micro})
        worst = max(worst, close(run, f"{tiles} tiles, micro_batch {micro}"))
        for places, interval, unified in ((tiers("nvme"), 1, False), (tiers("host"), 2, False),
                                          (tiers("host", "nvme", "device", "nvme"), 1, False),
                                          (tiers("nvme", "device", "nvme", "device"), 2, True)):
            same(train({"tiles": tiles, "micro_batch": micro, **places,
                        "checkpoint_interval": interval, "prefetch.read": tiles % 4},
                       unified=unified), run,
                 f"{tiles} tiles, micro_batch {micro}, {places}, interval {interval}")
    print(f"# losses: at most {worst:.2g} off, allowed {loss_bound():.2g}")


TESTS = [a_training_learns, the_same_request_gives_the_same_plan_and_the_same_training,
         every_tier_of_every_state_gives_the_same_bits,
         every_prefetch_distance_gives_the_same_bits,
         every_storage_engine_block_and_depth_gives_the_same_bits,
         one_memory_or_two_gives_the_same_bits, the_rates_of_the_machine_give_the_same_bits,
         recomputing_gives_the_same_bits,
         the_number_of_threads_gives_the_same_bits,
         tiles_of_linears_give_the_same_loss_of_the_first_step,
         tiles_of_a_linear_give_its_weight_gradient_the_same_bits,
         tiles_of_the_vocabulary_give_the_first_loss_within_rounding,
         tiles_give_the_same_gradients_within_rounding, micro_batches_give_the_same_first_loss,
         micro_batches_give_the_same_gradients_within_fp32_rounding,
         tiles_and_micro_batches_train_alike_on_every_tier]

if PRECISION == "bf16":
    for named in (the_number_of_threads_gives_the_same_bits,
                  tiles_of_linears_give_the_same_loss_of_the_first_step,
                  tiles_of_a_linear_give_its_weight_gradient_the_same_bits):
        named.__name__ += "_or_nearly"

lib.main(lab, TESTS)
