# tests/safety/numbers.py - a training whose numbers overflow, through the command: --on-nonfinite
# stop and skip, what is said, logged and saved. The weight that makes them overflow is finite (a
# checkpoint that is not is refused, checkpoints.py); nonfinite.c has every other place.
# argv: zinf-plan, zinf-run
import json
import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
import lab as lib  # noqa: E402
from lab import tiers  # noqa: E402
from stored import Stored, tree  # noqa: E402

lab = lib.Lab(*sys.argv[1:3])
MODEL = dict(layers=3, hidden=16, heads=2, steps=30, warmup=4)
PLACES = {"device": tiers("device"), "host": tiers("host"), "nvme": tiers("nvme"),
          "mixed": tiers("nvme", "device", "host", "nvme"),
          "late": {**tiers("nvme"), "optimizer_time": "forward"}}
MOST = 10  # skipped in a row


def strict(text):
    def no(word):
        raise AssertionError(f"{word} is not JSON")
    return json.loads(text, parse_constant=no)


def lines_of(log):
    with open(log, encoding="utf-8") as file:
        return [strict(line) for line in file]


def poisoned(tensor, value, precision="fp32"):
    """A folder with step 2, one weight of it changed."""
    folder = lab.path("saved")
    lab.run(lab.plan({**MODEL, "precision": precision}, PLACES["device"]), "--steps", "2",
            save=folder)
    stored = Stored(folder)
    stored.state["master"][tensor][3] = value
    stored.write()
    return folder


def saved_good():
    folder = lab.path("saved")
    lab.run(lab.plan(MODEL, PLACES["device"]), "--steps", "2", save=folder)
    return folder


def go_on(plan, folder, *more, code=1):
    """Resumes; (the command's output, the log)."""
    log, disk = lab.path("log"), lab.path("disk")
    os.mkdir(disk)
    done = lab.call(lab.run_command, plan, "--data", lab.text, "--nvme", disk, "--log", log,
                    "--resume", folder, *more, code=code)
    assert not os.listdir(disk)
    return done, lines_of(log)


def report(done):
    assert done.stderr.count("zinf-run: step ") == 1, done.stderr
    return done.stderr.splitlines()[-1]


def stop_is_the_default_and_names_tensor_and_layer():
    # The projection of block 1 overflows: the residual stream, all above and the loss with it.
    for precision in "fp32", "bf16":
        folder = poisoned("transformer.h.1.mlp.c_proj.weight", 3e38, precision)
        before, messages = tree(folder), set()
        for place in PLACES.values():
            plan = lab.plan({**MODEL, "precision": precision}, place)
            done, rows = go_on(plan, folder)
            text = report(done)
            messages.add(text)
            assert re.search(r"step 3: the loss is (nan|inf|-inf), and the first gradient in "
                             r"backward order that is not finite is \"transformer\.[a-z0-9_.]+\" "
                             r"\((layer \d|outside the blocks)\) at row \d+, column \d+: "
                             r"(nan|inf|-inf); the largest weight is 3e\+38, in "
                             r"\"transformer\.h\.1\.mlp\.c_proj\.weight\"; weights and moments "
                             r"are as after step 2", text), text
            assert "-nan" not in done.stderr, done.stderr
            assert len(rows) == 1 and rows[0]["step"] == 3 and rows[0]["skipped"] is True, rows
            assert rows[0]["loss"] is None and rows[0]["grad_norm"] is None
            assert rows[0]["grad_norm_clipped"] is None and rows[0]["lr"] > 0
        assert len(messages) == 1, messages
        assert tree(folder) == before


def a_validation_at_that_step_does_not_hide_what_was_found():
    folder = poisoned("transformer.h.1.mlp.c_proj.weight", 3e38)
    done, _ = go_on(lab.plan(MODEL, PLACES["device"]), folder, "--val", lab.text,
                    "--val-batches", "1", "--val-every", "1")
    assert "the first gradient in backward order that is not finite is" in report(done), done.stderr


def the_last_good_state_is_saved_when_it_stops():
    folder = poisoned("transformer.h.0.mlp.c_fc.weight", 1e38)
    for name, place in PLACES.items():
        other, plan = lab.path("last"), lab.plan(MODEL, place)
        done, _ = go_on(plan, folder, "--save", other, "--save-every", "1")
        assert f'saved step 2 in "{other}"' in done.stderr, done.stderr
        report(done)
        one, two = Stored(folder), Stored(other)
        for state in "master", "m", "v":
            assert one.state[state] == two.state[state], (name, state)
        for key in "step", "data_position", "seed", "loss_scale":
            assert one.manifest[key] == two.manifest[key], (name, key)
    # In the same folder: the checkpoint it came from keeps its step and its content.
    before = tree(folder)
    go_on(plan, folder, "--save", folder)
    after = tree(folder)
    assert before.keys() == after.keys()
    assert all(before[name] == after[name] for name in before if name != "step-2/manifest.json")


def the_state_before_the_step_that_went_wrong_is_saved_not_an_older_one():
    # A moment this large throws its weight far out in step 3, whose gradients are fine; step 4
    # overflows. What is saved is what a run that was told to end after step 3 saves.
    folder = poisoned("transformer.h.1.mlp.c_proj.weight", 0.01)
    stored = Stored(folder)
    stored.state["m"]["transformer.h.1.mlp.c_proj.weight"][3] = 1e36
    stored.write()
    for place in PLACES.values():
        plan, stopped, told = lab.plan(MODEL, place), lab.path("saved"), lab.path("saved")
        done, rows = go_on(plan, folder, "--save", stopped)
        assert [row.get("skipped") for row in rows] == [None, True], rows
        assert "step 4: " in report(done) and "as after step 3" in report(done)
        go_on(plan, folder, "--save", told, "--steps", "3", code=0)
        assert Stored(stopped).state == Stored(told).state
        assert Stored(stopped).manifest == Stored(told).manifest


def skip_leaves_out_at_most_ten_updates_in_a_row():
    folder = poisoned("transformer.h.2.attn.c_proj.weight", -2e38)
    before = tree(folder)
    for name, place in PLACES.items():
        plan, other = lab.plan(MODEL, place), lab.path("last")
        done, rows = go_on(plan, folder, "--on-nonfinite", "skip", "--save", other)
        assert Stored(other).state == Stored(folder).state
        assert Stored(other).manifest["step"] == 2 + MOST
        assert [r["step"] for r in rows] == list(range(3, 3 + MOST)), (name, rows)
        assert all(r["skipped"] is True and r["loss"] is None for r in rows)
        assert done.stderr.count("is skipped: the loss is") == MOST - 1, done.stderr
        assert done.stderr.count("saved step") == 1
        assert f"{MOST} steps in a row were skipped, the last is step {2 + MOST}: the loss is" in \
            done.stderr.splitlines()[-1], done.stderr
    assert tree(folder) == before


def the_count_of_skips_goes_on_where_it_was_saved():
    # In pieces of four the run ends at the step at which it ends at once.
    folder = poisoned("transformer.h.2.attn.c_proj.weight", -2e38)
    for place in PLACES.values():
        plan, other = lab.plan(MODEL, place), lab.path("last")
        at, codes = folder, []
        for steps in 6, 10, 14, 14:
            done, rows = go_on(plan, at, "--on-nonfinite", "skip", "--steps", str(steps), "--save",
                               other, code=0 if steps < 2 + MOST else 1)
            codes.append(done.returncode)
            last = [row["step"] for row in rows if "step" in row][-1]
            assert Stored(other).manifest["n_skipped"] == last - 2, (steps, last)
            if done.returncode == 0:
                assert last == steps, rows
            else:  # the one that was ended ends at its next such step
                assert last == 2 + MOST + (len(codes) == 4), rows
                assert f"{last - 2} steps in a row were skipped, the last is step {last}: " in \
                    done.stderr.splitlines()[-1], done.stderr
            at = other
        assert codes == [0, 0, 1, 1], codes
    # A step that is not skipped ends the row.
    other, stored = lab.path("last"), Stored(at)
    good = Stored(saved_good())
    stored.state = good.state
    stored.write()
    go_on(plan, at, "--on-nonfinite", "skip", "--save", other, "--steps", "14", code=0)
    assert Stored(other).manifest["n_skipped"] == 0


def skipped_steps_leave_the_weights_and_move_the_data():
    folder = poisoned("transformer.h.2.attn.c_proj.weight", -2e38)
    for place in PLACES.values():
        other, plan = lab.path("last"), lab.plan(MODEL, place)
        done, rows = go_on(plan, folder, "--on-nonfinite", "skip", "--steps", "7", "--save", other,
                           code=0)
        assert done.stderr.count("is skipped") == 5
        one, two = Stored(folder), Stored(other)
        assert one.state == two.state
        batch = lib.MODEL["global_batch"]
        assert (two.manifest["step"], two.manifest["data_position"]) == (7, 7 * batch)
        assert rows[-1]["summary"]["params_hash"]


EARLY = {"optimizer_time": "backward"}


def huge_gain():
    """Block 0's first gain is huge where no weight uses it: a finite loss, a gradient whose square
    does not fit the second moments."""
    folder = lab.path("saved")
    lab.run(lab.plan({**MODEL, "clip": 0}, PLACES["device"]), "--steps", "2", save=folder)
    stored, hidden = Stored(folder), MODEL["hidden"]
    stored.state["master"]["transformer.h.0.ln_1.weight"][3] = 1e30
    weight = stored.state["master"]["transformer.h.0.attn.c_attn.weight"]
    for row in range(3 * hidden):
        weight[row * hidden + 3] = 0
    stored.write()
    return folder


def a_gradient_found_wrong_inside_backward_ends_the_run_and_nothing_is_saved():
    folder = huge_gain()
    before = tree(folder)
    for place in PLACES.values():
        # Updated after backward the step is left out whole ..
        plan, other = lab.plan({**MODEL, "clip": 0}, place), lab.path("last")
        done, rows = go_on(plan, folder, "--save", other)
        assert rows[0]["loss"] > 0 and rows[0]["skipped"] is True, rows
        assert "weights and moments are as after step 2" in report(done)
        assert Stored(other).state == Stored(folder).state
        # .. inside it the units before are this step's.
        plan, other = lab.plan({**MODEL, "clip": 0}, {**place, **EARLY}), lab.path("last")
        done, early = go_on(plan, folder, "--save", other)
        assert early[0]["loss"] == rows[0]["loss"] and "skipped" not in early[0], early
        text = report(done)
        assert "step 3: the loss is" in text and "too large" in text, text
        assert "updates inside backward, so some weights are updated and others not, and " \
            "nothing is saved: go on from the last checkpoint" in text, text
        assert not os.path.exists(other) or not os.listdir(other), os.listdir(other)
        done, _ = go_on(plan, folder, "--save", folder)
        assert tree(folder) == before


def a_wrong_loss_leaves_out_every_update_inside_backward():
    folder = poisoned("transformer.h.0.mlp.c_fc.weight", 1e38)
    for place in PLACES.values():
        other, plan = lab.path("last"), lab.plan({**MODEL, "clip": 0}, {**place, **EARLY})
        done, rows = go_on(plan, folder, "--save", other)
        assert rows[0]["loss"] is None and rows[0]["skipped"] is True, rows
        assert "weights and moments are as after step 2" in report(done)
        assert Stored(other).state == Stored(folder).state


def skip_is_refused_where_no_step_can_be_left_out():
    plan = lab.plan({**MODEL, "clip": 0}, {**PLACES["nvme"], **EARLY})
    done = lab.run(plan, "--on-nonfinite", "skip", code=2)
    assert "updates inside backward" in done.stderr and "stop" in done.stderr, done.stderr
    lab.run(plan, "--steps", "2")


def weights_that_overflow_without_a_gradient_are_noticed_whatever_is_kept():
    # No sequence reaches the last positions: loss and norm are fine when decay makes one infinite.
    model, folder = {**MODEL, "context": 24, "sequence": 16}, lab.path("saved")
    lab.run(lab.plan(model, PLACES["device"]), "--steps", "2", save=folder)
    stored = Stored(folder)
    stored.state["master"]["transformer.wpe.weight"][-1] = 3e38
    stored.write()
    last = len(stored.state["master"]["transformer.wpe.weight"]) - 1
    plan = lab.plan({**model, "lr": 0.3, "weight_decay": 10, "warmup": 0}, PLACES["nvme"])
    for keep in (), ("--save", lab.path("other")), ("--export", lab.path("exported")):
        done, rows = go_on(plan, folder, "--steps", "3", *keep)
        text = done.stderr.splitlines()[-1]
        assert f'element {last} of "transformer.wpe.weight"' in text, (keep, done.stderr)
        assert rows[0]["loss"] is not None and "stays" not in text, text


def a_training_that_is_fine_does_not_notice_the_option():
    plan = lab.plan(MODEL, PLACES["nvme"])
    runs = [lab.run(plan, "--steps", "3", *more)
            for more in ([], ["--on-nonfinite", "stop"], ["--on-nonfinite", "skip"])]
    assert runs[0].bits == runs[1].bits == runs[2].bits
    assert not any("skipped" in row for row in runs[0].rows)


lib.main(lab, [
    stop_is_the_default_and_names_tensor_and_layer,
    a_validation_at_that_step_does_not_hide_what_was_found, the_last_good_state_is_saved_when_it_stops,
    the_state_before_the_step_that_went_wrong_is_saved_not_an_older_one,
    skip_leaves_out_at_most_ten_updates_in_a_row,
    the_count_of_skips_goes_on_where_it_was_saved,
    skipped_steps_leave_the_weights_and_move_the_data,
    a_gradient_found_wrong_inside_backward_ends_the_run_and_nothing_is_saved,
    a_wrong_loss_leaves_out_every_update_inside_backward,
    skip_is_refused_where_no_step_can_be_left_out,
    weights_that_overflow_without_a_gradient_are_noticed_whatever_is_kept,
    a_training_that_is_fine_does_not_notice_the_option])
