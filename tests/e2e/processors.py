# tests/e2e/processors.py - the same training by every set of instructions a CPU may have. Each
# learns, and agrees with the reference kernels within rounding.
# A level that this CPU lacks is replaced by the next one it has: the diagnostics name it.
# argv: zinf-plan, zinf-run.
import sys

import lab as lib
from lab import UNIT, gradient_bound, gradients_near, near, tiers

lab = lib.Lab(*sys.argv[1:3])
LAYERS = 2
SETTINGS = {**tiers("device"), "tiles": 3, "micro_batch": 4, "checkpoint_interval": 1}
LEVELS = [{"ZINF_CPU_LEVEL": level} for level in ("avx2", "avx512", "avx512_bf16", "amx")]


def train(precision, env, *options, **more):
    # hidden 40: whole vectors and a rest
    return lab.train(dict(precision=precision, layers=LAYERS, hidden=40, steps=20), SETTINGS,
                     *options, env=env, **more)


def agree(precision):
    reference = {"ZINF_CPU_LEVEL": "ref"}
    one = train(precision, reference, "--steps", "1", save=True)
    assert one.summary["kernels"] == "ref", one.summary["kernels"]
    for level in lib.some(LEVELS):
        run = train(precision, level, "--steps", "1", save=True)
        print(f"# {level}: kernels {run.summary['kernels']}")
        # bf16: an element of an early activation that is rounded to the other side moves every
        # sum after it by more than fp32's units, so the roundings part one by one: as if anew.
        gradients_near(run.gradients(), one.gradients(), gradient_bound(precision, LAYERS))
        # fp32: some units of a loss of 5.5; bf16: a unit in each logit, which do not exceed 1/2
        near(run.losses[0], one.losses[0],
             (8 * 5.5 if precision == "fp32" else 0.5) * UNIT[precision], str(level))


def each_level_agrees_with_the_reference_in_fp32():
    agree("fp32")


def each_level_agrees_with_the_reference_in_bf16():
    agree("bf16")


def each_learns():
    for precision in "fp32", "bf16":
        for level in lib.some([{"ZINF_CPU_LEVEL": "ref"}] + LEVELS):
            losses = train(precision, level).losses
            assert losses[-1] < losses[0] - 0.5 and losses[10] < losses[0] - 0.2, (level, losses)


def a_level_that_is_named_is_used():
    # Except where the CPU lacks it: then the best it has.
    order = ["ref", "avx2", "avx512", "avx512_bf16", "amx"]
    best = order.index(train("fp32", {"ZINF_CPU_LEVEL": order[-1]}).summary["kernels"])
    for level in range(len(order)):
        name = train("fp32", {"ZINF_CPU_LEVEL": order[level]}).summary["kernels"]
        assert name == order[min(level, best)], (order[level], name)


lib.main(lab, [
    each_level_agrees_with_the_reference_in_fp32, each_level_agrees_with_the_reference_in_bf16,
    each_learns, a_level_that_is_named_is_used])
