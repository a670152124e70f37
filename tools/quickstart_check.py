#!/usr/bin/env python3
# tools/quickstart_check.py - the arithmetic of tools/quickstart.
#
# usage: quickstart_check.py steps PLAN.json SECONDS   how many steps fit, by the prediction
#        quickstart_check.py check FIRST.jsonl SECOND.jsonl
#            whether the first run learned and the second went on from it, and a table of what was
#            planned and measured. Exit code 1 if not.
import json
import sys

LEARNED = 0.8   # nats a byte by which the loss must have fallen from its start (ln 256 = 5.5)
JUMP = 0.25     # nats a byte that the loss may rise over the restart: batches differ


def read_log(path):
    with open(path, encoding="utf-8") as log:
        rows = [json.loads(line) for line in log if line.strip()]
    steps = [row for row in rows if "loss" in row and "step" in row]
    summary = next((row["summary"] for row in rows if "summary" in row), None)
    if not steps:
        sys.exit(f"quickstart_check.py: \"{path}\": no training step in it")
    return steps, [row["val_loss"] for row in rows if row.get("val_loss") is not None], summary


def mean(rows):
    return sum(row["loss"] for row in rows) / len(rows)


def line(name, planned, measured, unit):
    ratio = f"{measured / planned:8.2f}" if planned else "       -"
    print(f"  {name:<24}{planned:12.3f}{measured:12.3f} {unit:<5}{ratio}")


def table(summary):
    print(f"\n  {'':<24}{'planned':>12}{'measured':>12}      measured/planned")
    line("step", summary["predicted_step_s"] * 1e3, summary["measured_step_s"] * 1e3, "ms")
    for tier, planned in summary.get("planned", {}).items():
        measured = summary.get("measured", {}).get(tier)
        if measured is not None and (planned or measured):
            line(f"memory, {tier}", planned / 2**20, measured / 2**20, "MiB")
    for queue, times in summary.get("queues", {}).items():
        if times["predicted_s"] or times["measured_s"]:
            line(f"queue {queue}", times["predicted_s"] * 1e3, times["measured_s"] * 1e3, "ms")


def check(first_path, second_path):
    first, first_val, summary = read_log(first_path)
    second, second_val, _ = read_log(second_path)
    start, end = first[0]["loss"], mean(first[-10:])
    again = mean(second[:10])
    wrong = []
    print(f"loss of step {first[0]['step']}: {start:.3f}   last ten before the stop: {end:.3f}   "
          f"first ten after it: {again:.3f}")
    if first_val or second_val:
        print("validation: " + ", ".join(f"{v:.3f}" for v in first_val + second_val))
    losses = [("training", end)] + ([("validation", (first_val + second_val)[-1])]
                                    if first_val or second_val else [])
    for name, value in losses:
        if not value < start - LEARNED:  # also if it is not a number
            wrong.append(f"the {name} loss is {value:.3f}, less than {LEARNED} below its start")
    if second[0]["step"] != first[-1]["step"] + 1:
        wrong.append(f"the resumed run began with step {second[0]['step']}, not "
                     f"{first[-1]['step'] + 1}")
    if not again < end + JUMP:
        wrong.append(f"the loss jumped from {end:.3f} to {again:.3f} over the restart")
    if summary:
        table(summary)
    for text in wrong:
        print(f"quickstart_check.py: {text}", file=sys.stderr)
    return 1 if wrong else 0


def main(words):
    if len(words) == 3 and words[0] == "steps":
        with open(words[1], encoding="utf-8") as plan:
            step_s = json.load(plan)["predicted"]["step_s"]
        print(max(40, min(180, int(float(words[2]) / step_s))))
        return 0
    if len(words) == 3 and words[0] == "check":
        return check(words[1], words[2])
    print("usage: quickstart_check.py steps PLAN.json SECONDS | check FIRST SECOND",
          file=sys.stderr)
    return 2


sys.exit(main(sys.argv[1:]))
