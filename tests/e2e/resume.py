# tests/e2e/resume.py - a run that stops and goes on is the run that never stopped: to the bit on
# any tier, within rounding under other tiles. argv: zinf-plan, zinf-run.
import json
import os
import sys

import lab as lib
from lab import gradient_bound, near, same, tiers

lab = lib.Lab(*sys.argv[1:3])
# Six steps of eight sequences from a text of 31: epochs turn over in the middle. The warm-up takes
# four of them.
MODEL = dict(layers=2, steps=6, warmup=4)
PLAIN = {**tiers("device"), "micro_batch": 4, "tiles": 1, "checkpoint_interval": 1}
TEXT = lab.file("short", lab.prose(500).encode())
STOPS = 1, 2, 3, 5


def plan(precision="fp32", changes=None, unified=False):
    return lab.plan({**MODEL, "precision": precision}, {**PLAIN, **(changes or {})}, unified)


def whole(precision="fp32"):
    return lab.train({**MODEL, "precision": precision}, PLAIN, data=TEXT, save=True)


def in_parts(first, second, stop):
    """The rows of both parts as one training; the second part is a fresh process."""
    folder = lab.path("saved")
    one = lab.run(first, "--steps", str(stop), data=TEXT, save=folder)
    two = lab.run(second, "--resume", folder, data=TEXT, save=lab.path("saved"))
    assert len(one.rows) == stop and len(two.rows) == MODEL["steps"] - stop
    two.rows = one.rows + two.rows
    return two


def resumed_at_any_step_it_is_the_uninterrupted_run_to_the_bit():
    for precision in "fp32", "bf16":
        for stop in STOPS:
            run = in_parts(plan(precision), plan(precision), stop)
            same(run, whole(precision), f"{precision}, stopped after step {stop}")
            for state in "master", "m", "v":
                assert run.state(state) == whole(precision).state(state), (precision, stop, state)


def resumed_on_other_tiers_it_is_the_same_to_the_bit():
    places = [tiers("nvme"), tiers("host"), tiers("nvme", "host", "device"),
              tiers("host", "device", "nvme")]
    for precision in "fp32", "bf16":
        for one, two in zip(places, places[1:] + places[:1]):
            run = in_parts(plan(precision, one), plan(precision, two), 3)
            same(run, whole(precision), f"{precision}, {one}, then {two}")
        run = in_parts(plan(precision, tiers("nvme")), plan(precision, unified=True), 3)
        same(run, whole(precision), f"{precision}, two memories, then one")


def resumed_with_another_interval_and_prefetch_it_is_the_same_to_the_bit():
    run = in_parts(plan("bf16", {"checkpoint_interval": 2, **tiers("nvme")}),
                   plan("bf16", {"checkpoint_interval": "none", "prefetch.read": 4}), 2)
    same(run, whole("bf16"), "interval and prefetch")


def resumed_with_other_tiles_the_first_loss_is_the_same_to_the_bit():
    # The checkpoint holds whole tensors, and in fp32 tiles of linears change no forward sum.
    for stop in STOPS:
        changes = {f"tiles.{name}": n for name, n in (("qkv", 3), ("out", 7), ("fc", 2),
                                                      ("proj", 5))}
        run = in_parts(plan("fp32", changes), plan("fp32", {**changes, "tiles.qkv": 7}), stop)
        assert run.rows[0]["loss"] == whole("fp32").rows[0]["loss"]
        there = in_parts(plan("fp32"), plan("fp32", changes), stop)
        assert there.rows[stop]["loss"] == whole("fp32").rows[stop]["loss"], stop


def resumed_with_other_tiles_and_micro_batches_it_is_the_same_within_rounding():
    for tiles, micro in (2, 8), (3, 2), (7, 1):
        run = in_parts(plan(), plan("fp32", {"tiles": tiles, "micro_batch": micro,
                                             **tiers("nvme")}), 2)
        for row, other in zip(run.rows, whole().rows):
            assert row["lr"] == other["lr"]
            # equal.py derives less; here it is one bound for the rates of all steps
            near(row["loss"], other["loss"], 1e-5 * other["loss"], f"step {row['step']}")
            near(row["grad_norm"], other["grad_norm"],
                 10 * gradient_bound("fp32", 2) * other["grad_norm"], f"step {row['step']}, norm")


def the_learning_rate_does_not_jump_inside_the_warm_up():
    for stop in 1, 2, 3:
        rates = [row["lr"] for row in in_parts(plan(), plan(), stop).rows]
        for step in range(4):
            near(rates[step], 3e-3 * (step + 1) / 4, 1e-15, f"stopped after {stop}, step {step}")
        assert rates[4] == 3e-3 > rates[5] > 3e-4, rates


def resumed_after_every_step_it_is_the_same_to_the_bit():
    folder, rows = lab.path("saved"), []
    path = plan("bf16", tiers("nvme"))
    for step in range(1, MODEL["steps"] + 1):
        run = lab.run(path, "--steps", str(step), *(["--resume", folder] if rows else []),
                      data=TEXT, save=folder)
        rows += run.rows
    run.rows = rows
    same(run, whole("bf16"), "six processes")


def saving_changes_no_step_and_the_last_one_is_saved():
    folder = lab.path("saved")
    one = lab.run(plan(), "--steps", "5", "--save-every", "2", data=TEXT, save=folder)
    with open(os.path.join(folder, "latest"), encoding="ascii") as file:
        assert file.read() == "step-5\n"
    two = lab.run(plan(), "--resume", folder, data=TEXT)
    two.rows = one.rows + two.rows
    same(two, whole(), "saved every 2 steps")


def updates_left_to_the_next_step_are_made_before_anything_else_looks():
    late = {"optimizer_time": "forward"}
    looks = ["--steps", "6", "--val", TEXT, "--val-every", "2", "--save-every", "3",
             "--eval", TEXT]
    for place in tiers("device"), tiers("nvme"), tiers("host", "nvme", "host"):
        path, after = plan("bf16", {**place, **late}), plan("bf16", place)
        for stop in 1, 4:
            for first, second in (path, after), (after, path), (path, path):
                run = in_parts(first, second, stop)
                same(run, whole("bf16"), f"{place}, stopped after step {stop}")
                for state in "master", "m", "v":
                    assert run.state(state) == whole("bf16").state(state), (place, stop, state)
        runs = [lab.run(p, *looks, data=TEXT, save=lab.path("saved")) for p in (path, after)]
        for run in runs:
            run.rows = [row for row in run.rows if "step" in row]
            same(run, whole("bf16"), f"{place}, looked at")
            rest = lab.run(after, "--resume", os.path.join(run.saved, "step-3"), data=TEXT)
            rest.rows = run.rows[:3] + rest.rows
            same(rest, whole("bf16"), f"{place}, saved on the way")
        assert [row.get("val_loss") for row in runs[0].rows] == \
            [row.get("val_loss") for row in runs[1].rows], place
        told = [[line for line in run.stdout.splitlines() if line.startswith("eval")]
                for run in runs]
        assert told[0] == told[1] and len(told[0]) == 1, told


def lines_of(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def with_log(log, *options, code=0, data=TEXT):
    return lab.call(lab.run_command, plan(), "--data", data, "--log", log, *options, code=code)


def a_log_goes_on_as_if_the_run_had_never_stopped():
    log, folder = lab.path("log"), lab.path("saved")
    with_log(log, "--steps", "2", "--save", folder)
    with_log(log, "--steps", "5", "--resume", folder, "--save", folder)
    # Steps after the checkpoint are done again, and stand there once.
    done = with_log(log, "--resume", os.path.join(folder, "step-2"))
    assert "3 rows after step 2 are dropped" in done.stderr, done.stderr
    lines = lines_of(log)
    assert [row.get("step") for row in lines] == [1, 2, 3, 4, 5, 6, None]
    for row, other in zip(lines, whole().rows):
        assert all(row[key] == other[key] for key in other if key not in
                   ("step_s", "tokens_per_s", "mfu")), (row, other)
    assert lines[-1]["summary"]["params_hash"] == whole().summary["params_hash"]
    # A last line that a kill cut goes too; a finished run adds its summary and nothing else.
    with open(log, "a", encoding="ascii") as file:
        file.write('{"step": 7, "lo')
    with_log(log, "--steps", "2", "--resume", os.path.join(folder, "step-2"))
    assert [row.get("step") for row in lines_of(log)] == [1, 2, None]
    # A run that begins has a log that begins.
    with_log(log, "--steps", "1")
    assert [row.get("step") for row in lines_of(log)] == [1, None]


def a_file_that_is_no_log_is_not_cut():
    folder = lab.path("saved")
    with_log(lab.path("log"), "--steps", "1", "--save", folder)
    row = b'{"step": 1, "loss": 2}\n'
    for text, line in ((b"mine\n", 1), (b"mine", 1), (b"\0\0", 1), (row + b"\n", 2),
                       (row + b"x" * 9000 + b"\n", 2), (row + b'{"step": \0}' + row, 2),
                       (row + b'{"stop', 2)):
        path = lab.file("mine", text)
        done = with_log(path, "--resume", folder, code=2)
        assert f"line {line} is no step" in done.stderr, (text, done.stderr)
        with open(path, "rb") as file:
            assert file.read() == text
    with_log("/dev/null", "--resume", folder)


def rows_that_are_missing_or_in_another_order_are_named():
    whole_log, folder = lab.path("log"), lab.path("saved")
    with_log(whole_log, "--steps", "5", "--save", folder)
    with open(whole_log, "rb") as file:
        rows = file.read().splitlines(keepends=True)[:5]
    cases = {(1, 2, 3, 4, 5): None, (3, 4, 5): None, (): None,
             (1, 2, 4, 5): "lacks 1 of the rows up to step 5, the first of step 3;",
             (1, 2, 3): "lacks 2 of the rows up to step 5, the first of step 4;",
             (1, 4): "lacks 3 of the rows up to step 5, the first of step 2;",
             (1, 3, 2, 4, 5): "in its line 3 step 2 follows step 3;",
             (1, 2, 3, 3, 4, 5): "in its line 4 step 3 follows step 3;"}
    for steps, words in cases.items():
        text = b"".join(rows[step - 1] for step in steps)
        log, refused = lab.file("edited", text), words is not None and "follows" in words
        done = with_log(log, "--resume", folder, code=2 if refused else 0)
        assert words is None or words in done.stderr, (steps, done.stderr)
        assert words is not None or "lacks" not in done.stderr, (steps, done.stderr)
        if refused:
            with open(log, "rb") as file:
                assert file.read() == text
        else:
            assert [row.get("step") for row in lines_of(log)] == [*steps, 6, None], steps
    # what is behind the checkpoint counts for neither
    log = lab.file("edited", rows[0] + rows[3])
    early = lab.path("early")
    with_log(lab.path("first"), "--steps", "2", "--save", early)
    done = with_log(log, "--resume", early)
    assert "1 rows after step 2 are dropped" in done.stderr, done.stderr
    assert "lacks 1 of the rows up to step 2, the first of step 2;" in done.stderr, done.stderr
    path = lab.file("mine", b'{"step": 0}\n')
    assert "line 1 is no step" in with_log(path, "--resume", folder, code=2).stderr


def a_finished_run_resumed_does_nothing():
    run = lab.run(plan(), "--resume", whole().saved, data=TEXT)
    assert run.rows == [] and run.summary["params_hash"] == whole().summary["params_hash"]


def a_checkpoint_of_another_model_is_refused():
    other = lab.plan({**MODEL, "hidden": 48}, PLAIN)
    done = lab.run(other, "--resume", whole().saved, data=TEXT, code=2)
    assert "hidden" in done.stderr and "Traceback" not in done.stderr, done.stderr


lib.main(lab, [
    resumed_at_any_step_it_is_the_uninterrupted_run_to_the_bit,
    resumed_on_other_tiers_it_is_the_same_to_the_bit,
    resumed_with_another_interval_and_prefetch_it_is_the_same_to_the_bit,
    resumed_with_other_tiles_the_first_loss_is_the_same_to_the_bit,
    resumed_with_other_tiles_and_micro_batches_it_is_the_same_within_rounding,
    the_learning_rate_does_not_jump_inside_the_warm_up,
    resumed_after_every_step_it_is_the_same_to_the_bit,
    saving_changes_no_step_and_the_last_one_is_saved,
    updates_left_to_the_next_step_are_made_before_anything_else_looks,
    a_log_goes_on_as_if_the_run_had_never_stopped, a_file_that_is_no_log_is_not_cut,
    rows_that_are_missing_or_in_another_order_are_named,
    a_finished_run_resumed_does_nothing, a_checkpoint_of_another_model_is_refused])
