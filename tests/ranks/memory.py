# tests/ranks/memory.py - what each rank holds is at most what its plan announces and at least 95 %
# of it, in every phase; no rank ever holds the whole model; the ranks of a node share what the node
# has. argv: zinf-plan, zinf-run.
import json
import sys

import crew as base
from lab import main, tiers

crew = base.Crew(*sys.argv[1:3])
NOISE = 0.95
# large enough that 5 % of a rank's total are more than MPI libraries differ by (6 MiB)
MODEL = dict(layers=4, hidden=768, heads=6, vocab=4096, context=64, sequence=64, steps=2,
             precision="bf16", global_batch=4)
PLACE = {**tiers("device"), "micro_batch": 1, "tiles": 1, "checkpoint_interval": 1}


def check(what, run, ranks):
    planned = run.summary["planned"]
    stated = sum(planned[tier] for tier in ("device", "host"))
    assert len(run.summary["ranks"]) == ranks
    for number, rank in enumerate(run.summary["ranks"]):
        measured = sum(rank["measured"][tier] for tier in ("device", "host"))
        ratio = measured / stated
        assert NOISE <= ratio <= 1, f"{what}, rank {number}: {measured} of {stated}, {ratio:.3f}"
        for tier in "device", "nvme":
            assert rank["measured"][tier] == planned[tier], (what, number, tier, rank)
    print(f"# {what}: {100 * ratio:.1f} % of {stated / 2**20:.1f} MiB")
    return stated


def each_rank_holds_what_is_planned_in_every_phase():
    short = crew.file("short", crew.prose(6 * 64).encode())
    for launcher in crew.launchers or [None]:
        saved, plan = crew.path("saved"), crew.plan_for(2, {**MODEL, "hidden": 576}, PLACE)
        check(f"{launcher}, steps, validation, saving, exporting, evaluating", crew.sail(
            2, plan, "--steps", "1", "--save", saved, "--val", crew.text, "--val-batches", "2",
            "--export", crew.path("out"), "--eval", short, launcher=launcher), 2)
        check(f"{launcher}, resuming", crew.sail(2, plan, "--steps", "2", "--resume", saved,
                                                 launcher=launcher), 2)


def owners_hold_what_is_planned_in_every_phase():
    saved = crew.path("saved")
    plan = crew.plan_for(2, {**MODEL, "hidden": 576}, {**PLACE, "partitioning": "owner"})
    planned = json.loads(crew.planned.stdout)
    check("2 owners, steps, saving, exporting", crew.sail(
        2, plan, "--steps", "1", "--save", saved, "--export", crew.path("out")), 2)
    check("2 owners, resuming", crew.sail(2, plan, "--steps", "2", "--resume", saved), 2)
    items = {item["name"]: item["bytes"] for item in planned["memory"]["device"]["items"]}
    for name, each in ("parameters", 2), ("gradients", 4), ("optimizer states", 12):
        whole = each * planned["model"]["params"] # balanced: no unit is large beside a half
        assert whole / 2 <= items[name] <= 1.05 * whole / 2, (name, items[name], whole)


def no_rank_ever_holds_the_whole_model():
    plan = crew.plan_for(4, MODEL, PLACE)
    planned = json.loads(crew.planned.stdout)
    states = 18 * planned["model"]["params"]  # bf16, fp32 gradient, master, m, v
    run = crew.sail(4, plan, "--steps", "0")
    check("4 ranks, init", run, 4)
    for rank in run.summary["ranks"]:
        held = sum(rank["measured"][tier] for tier in ("device", "host"))
        assert held < 0.55 * states, (held, states)  # a quarter, the largest tile, libraries
    items = {item["name"]: item["bytes"] for item in planned["memory"]["device"]["items"]}
    for name, each in ("parameters", 2), ("gradients", 4), ("optimizer states", 12):
        whole = each * planned["model"]["params"]
        assert whole / 4 <= items[name] <= 1.03 * whole / 4, (name, items[name], whole)


def states_on_nvme_are_one_file_a_rank():
    plan = crew.plan_for(4, {**MODEL, "hidden": 192}, {**PLACE, **tiers("nvme")})
    planned = json.loads(crew.planned.stdout)["memory"]["nvme"]
    run = crew.sail(4, plan, "--steps", "0")
    total = sum(rank["measured"]["nvme"] for rank in run.summary["ranks"])
    params = json.loads(crew.planned.stdout)["model"]["params"]
    assert total == 4 * planned["planned_bytes"]
    assert 18 * params <= total <= 1.06 * 18 * params, (total, params)
    assert planned["capacity_bytes"] == 2**30  # of 4 GiB a node


main(crew, [
    each_rank_holds_what_is_planned_in_every_phase,
    owners_hold_what_is_planned_in_every_phase,
    no_rank_ever_holds_the_whole_model,
    states_on_nvme_are_one_file_a_rank,
])
