# tests/tools/test_quickstart_check.py - what tools/quickstart accepts as a success. Prints TAP.
import json
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import tap  # noqa: E402

TOOL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools",
                    "quickstart_check.py")
SUMMARY = {"summary": {"planned": {"device": 2**26, "host": 2**27, "nvme": 2**28},
                       "measured": {"device": 2**26, "host": 2**27, "nvme": 2**28},
                       "predicted_step_s": 0.5, "measured_step_s": 0.52, "queues": {}}}


def write(folder, name, rows):
    path = os.path.join(folder, name)
    with open(path, "w", encoding="utf-8") as out:
        for row in rows:
            out.write(json.dumps(row) + "\n")
    return path


def losses(first_step, values):
    return [{"step": first_step + i, "loss": value} for i, value in enumerate(values)]


def falling(start, end, n):
    return [start + (end - start) * i / (n - 1) for i in range(n)]


def check(first, second):
    with tempfile.TemporaryDirectory() as folder:
        return subprocess.run(
            [sys.executable, TOOL, "check", write(folder, "1", first), write(folder, "2", second)],
            capture_output=True, text=True)


def a_run_that_learns_and_goes_on_is_accepted():
    done = check(losses(1, falling(5.5, 2.5, 60)) + [SUMMARY], losses(61, [2.5] * 20))
    assert done.returncode == 0, done
    assert "500.000" in done.stdout and "520.000" in done.stdout, done.stdout


def a_run_that_does_not_learn_is_refused():
    done = check(losses(1, [5.5] * 60), losses(61, [5.5] * 20))
    assert done.returncode == 1 and "below its start" in done.stderr, done


def a_loss_that_is_not_a_number_is_refused():
    done = check(losses(1, falling(5.5, 2.5, 59) + [float("nan")]), losses(61, [2.5] * 20))
    assert done.returncode == 1, done


def a_validation_loss_that_stays_up_is_refused():
    rows = losses(1, falling(5.5, 2.5, 60))
    rows[-1]["val_loss"] = 5.4
    done = check(rows, losses(61, [2.5] * 20))
    assert done.returncode == 1 and "validation" in done.stderr, done


def a_restart_from_the_beginning_is_refused():
    done = check(losses(1, falling(5.5, 2.5, 60)), losses(1, falling(5.5, 5.0, 20)))
    assert done.returncode == 1 and "began with step 1, not 61" in done.stderr, done
    assert "jumped" in done.stderr, done


def an_empty_log_is_refused():
    done = check([], [])
    assert done.returncode == 1 and "no training step" in done.stderr, done


def the_number_of_steps_follows_the_prediction():
    with tempfile.TemporaryDirectory() as folder:
        for step_s, steps in ((1.0, 100), (100.0, 40), (1e-3, 180)):
            plan = write(folder, "plan", [{"predicted": {"step_s": step_s}}])
            done = subprocess.run([sys.executable, TOOL, "steps", plan, "100"],
                                  capture_output=True, text=True)
            assert done.stdout == f"{steps}\n", (step_s, done)


sys.exit(tap.run([a_run_that_learns_and_goes_on_is_accepted, a_run_that_does_not_learn_is_refused,
                  a_loss_that_is_not_a_number_is_refused,
                  a_validation_loss_that_stays_up_is_refused,
                  a_restart_from_the_beginning_is_refused, an_empty_log_is_refused,
                  the_number_of_steps_follows_the_prediction]))
