# tests/safety/descriptors.py - files that a run opens: with one less than it says it needs, it is
# refused before anything is touched; with as many it does all that was asked. argv: zinf-plan,
# zinf-run.
import fcntl
import os
import re
import resource
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
import lab as lib  # noqa: E402
from lab import tiers  # noqa: E402

lab = lib.Lab(*sys.argv[1:3])
MODEL = dict(layers=1, hidden=16, heads=2, steps=4, precision="bf16")
PLANS = {tier: lab.plan(MODEL, tiers(tier)) for tier in ("device", "nvme")}


def pretrained():
    """A directory to export from and to begin with."""
    folder = lab.path("hf")
    lab.run(PLANS["device"], "--steps", "1", "--export", folder)
    for name in "tokenizer.json", "merges.txt":
        with open(os.path.join(folder, name), "w", encoding="ascii") as file:
            file.write("{}")
    return folder


HF = pretrained()


def at_most(n, words):
    return subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL,
                          close_fds=True, check=False, errors="replace",
                          preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (n, n)))


def opens_what_it_says(tier, *options, before=None):
    """The limit from which on it is not refused is the one that each refusal names."""
    stated = None
    for n in range(4, 64):
        folder = lab.path("here")
        os.mkdir(folder)
        if before:
            shutil.copytree(before, os.path.join(folder, "saved"))
        words = [lab.run_command, PLANS[tier], "--nvme", folder]
        words += [os.path.join(folder, w[1:]) if w[0] == "@" else w for w in options]
        done = at_most(n, words)
        if done.returncode == 0:
            break
        assert done.returncode == 4, (n, done.returncode, done.stderr)
        found = re.fullmatch(r"zinf-run: with these options the run has up to (\d+) files open at "
                             r"a time, but this process is limited to (\d+); raise it "
                             r"\(ulimit -n (\d+)\)\n", done.stderr)
        assert found and int(found[2]) == n and found[1] == found[3], (n, done.stderr)
        assert stated in (None, int(found[1])), (stated, done.stderr)
        assert os.listdir(folder) == (["saved"] if before else []), os.listdir(folder)
        stated = int(found[1])
    assert stated == n, (stated, n)
    if "--save" in options:  # the older one could be removed
        steps = [name for name in os.listdir(os.path.join(folder, "saved"))
                 if name.startswith("step-")]
        assert len(steps) == 2, steps
    print(f"# {tier} {' '.join(o for o in options if o.startswith('--'))}: {n}")
    return n


ALL = ["--data", lab.text, "--val", lab.text, "--val-every", "1", "--log", "@log", "--trace",
       "@trace", "--save", "@saved", "--save-every", "1"]
counts = {}


def a_run_opens_what_it_says_and_no_more():
    for tier in PLANS:
        counts[tier, "plain"] = opens_what_it_says(tier, "--data", lab.text)
        counts[tier, "all"] = opens_what_it_says(tier, *ALL)
    assert counts["nvme", "plain"] - counts["device", "plain"] == 4, counts
    assert opens_what_it_says("nvme", "--data", lab.text, "--engine", "threads") == \
        counts["nvme", "plain"] - 2
    assert 8 < counts["nvme", "all"] < 32, counts


def what_was_inherited_beyond_the_limit_is_counted():
    with open(os.devnull, encoding="ascii") as file:
        high = fcntl.fcntl(file.fileno(), fcntl.F_DUPFD, 11)
    os.set_inheritable(high, True)
    words = [lab.run_command, PLANS["device"], "--data", lab.text, "--save", lab.path("saved")]

    def run(n):
        return subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL,
                              pass_fds=[high], check=False,
                              preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (n, n)))
    try:
        told = [int(re.search(r"\(ulimit -n (\d+)\)$", run(n).stderr)[1]) for n in (8, 11, 12)]
        assert len(set(told)) == 1 and told[0] > high, (told, high)
        assert run(told[0] - 1).returncode == 4
        done = run(told[0])
        assert done.returncode == 0, done.stderr
    finally:
        os.close(high)


def a_resume_opens_what_it_says():
    saved = lab.path("saved")
    lab.run(PLANS["device"], "--steps", "2", "--save-every", "1", save=saved)
    for tier in PLANS:
        assert opens_what_it_says(tier, *ALL, "--resume", "@saved", before=saved) == \
            counts[tier, "all"]
        opens_what_it_says(tier, "--data", lab.text, "--resume", "@saved", "--sample", "1",
                           before=saved)
        opens_what_it_says(tier, "--data", lab.text, "--resume", "@saved", "--save", "@saved",
                           before=saved)


def models_in_and_out_open_what_they_say():
    for tier in PLANS:
        opens_what_it_says(tier, "--init", HF, "--steps", "0", "--export", "@out")
        opens_what_it_says(tier, "--init", HF, "--steps", "0", "--eval", lab.text)
        opens_what_it_says(tier, *ALL, "--init", HF, "--export", "@out")


lib.main(lab, [a_run_opens_what_it_says_and_no_more,
               what_was_inherited_beyond_the_limit_is_counted, a_resume_opens_what_it_says,
               models_in_and_out_open_what_they_say])
