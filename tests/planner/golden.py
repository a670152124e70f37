#!/usr/bin/env python3
"""tests/planner/golden.py - decisions, refusals and errors of zinf-plan against text files.

usage: golden.py ZINF_PLAN SOURCE_ROOT FILE.txt [--update]

A file is cases. "--- SENTENCE" begins one; "= NAME" and the YAML lines below it (indented) define
a model or cluster for the cases that follow; "$ MODEL CLUSTER OPTION.." is the command, where a
name is a file of models/ or plans/clusters/ unless it is defined; lines "> TEXT" are what it
must print: the exit code, then the decisions (no times, no sizes) or, on failure, standard error.
--update writes what was printed as what is expected; read the diff before it is committed.
"""
import os
import re
import shlex
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

plan, root, path = sys.argv[1:4]
update = "--update" in sys.argv[4:]
LIMIT_S = 240  # a case takes a few seconds of CPU; the machine may be busy
DECISIONS = ("tiers", "batch", "order", "tiles", "checkpoints", "prefetch", "partitioning",
             "collectives", "optimizer")


def parse(text):
    """The file as blocks: (kind, header, lines)."""
    blocks = [("text", "", [])]
    for line in text.splitlines():
        if line.startswith("--- "):
            blocks.append(("case", line[4:], []))
        elif line.startswith("= "):
            blocks.append(("define", line[2:].strip(), []))
        else:
            blocks[-1][2].append(line)
    return blocks


def resolve(name, definitions, folder, work):
    if name in definitions:
        file = os.path.join(work, name + ".yaml")
        with open(file, "w") as out:
            out.write("\n".join(line[2:] for line in definitions[name]) + "\n")
        return name + ".yaml"
    file = os.path.join(os.path.abspath(root), folder, name + ".yaml")
    return file if os.path.exists(file) else name


def run(case):
    command, definitions = case
    words = shlex.split(command)
    with tempfile.TemporaryDirectory(prefix="zinf-golden-") as work:
        for i, folder in enumerate(("models", "plans/clusters")):
            if i < len(words) and not words[i].startswith("-"):
                words[i] = resolve(words[i], definitions, folder, work)
        try:
            done = subprocess.run([os.path.abspath(plan), *words], cwd=work, text=True,
                                  capture_output=True, timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            return ["exit: none within %d s" % LIMIT_S]
    printed = ["exit %d" % done.returncode]
    if done.returncode == 0:
        printed += [line for line in done.stdout.splitlines() if line.startswith(DECISIONS)]
    else:
        printed += done.stderr.splitlines()
    return [line.replace(os.path.abspath(root) + "/", "").rstrip() for line in printed
            if ": note: " not in line]


with open(path) as file:
    blocks = parse(file.read())
definitions, cases = {}, []
for kind, header, lines in blocks:
    if kind == "define":
        definitions = {**definitions, header: [line for line in lines if line.startswith("  ")]}
    elif kind == "case":
        command = next(line[2:] for line in lines if line.startswith("$ "))
        cases.append((command, definitions))
with ThreadPoolExecutor(2) as pool:
    results = iter(list(pool.map(run, cases)))

count, failed, written = 0, 0, []
for kind, header, lines in blocks:
    if kind != "case":
        written += ([] if kind == "text" else ["= " + header]) + lines
        continue
    expected = [line[2:].rstrip() for line in lines if line.startswith("> ")]
    printed = next(results)
    count += 1
    good = expected == printed or update
    print("%s %d - %s" % ("ok" if good else "not ok", count, header.replace("#", "")))
    if not good:
        failed = 1
        for line in expected:
            if line not in printed:
                print("# expected: " + line)
        for line in printed:
            if line not in expected:
                print("# printed:  " + line)
    after = lines[len(lines) - next((i for i, line in enumerate(reversed(lines))
                                     if line.startswith(("> ", "$ "))), 0):]
    written += ["--- " + header]
    written += [line for line in lines[:len(lines) - len(after)] if not line.startswith("> ")]
    written += ["> " + line for line in printed] + after
if update:
    with open(path, "w") as file:
        file.write("\n".join(written).lstrip("\n") + "\n")
print("1..%d" % count)
sys.exit(failed)
