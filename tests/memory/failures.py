# tests/memory/failures.py - memory that runs out anywhere: of every place in the commands and their
# libraries that allocates, the first and the last call are made to fail, one alone or all from
# there on. The command ends with 4 and one sentence, or did not need it and gives the same bits;
# checkpoints are what they were or what they were to be, and no file is left behind.
# argv: zinf-plan, zinf-run, fail_nth.so. ZINF_TEST_FAILURES: how many of each command (100).
#
# What libraries do that are not ours is counted by name: libgomp ends the process when it cannot
# make its team; json-c 0.16, reading, loses a member (the checkpoint is then refused as another's)
# or crashes.
import collections
import os
import random
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "safety"))
import lab as lib  # noqa: E402
from lab import tiers  # noqa: E402
from stored import tree  # noqa: E402

lab = lib.Lab(*sys.argv[1:3])
PRELOAD = os.path.abspath(sys.argv[3])
MOST = int(os.environ.get("ZINF_TEST_FAILURES", "100"))
MODEL = dict(layers=1, hidden=16, heads=2, steps=2, context=8, sequence=8, global_batch=2,
             precision="bf16")
SETTINGS = {**tiers("nvme"), "threads": 1, "tiles": 2}
draw = random.Random(3)


class Case:
    """A command in a folder that looks the same before each try."""

    def __init__(self, words, before, code=0):
        self.words, self.before = words, before
        self.folder = lab.path("case")
        done = self.run()
        assert done.returncode == code, done.stderr
        self.after = self.files()

    def files(self):
        return {name: data for name, data in tree(self.folder).items()
                if not name.startswith(("log", "trace")) and name != "saved/latest"}

    def run(self, **env):
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self.before, self.folder)
        return subprocess.run(
            self.words, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60,
            cwd=self.folder, check=False, errors="replace",
            env={**os.environ, "OMP_WAIT_POLICY": "passive", "LD_PRELOAD": PRELOAD, **env})

    def places(self):
        """The first and last call of every place that allocates."""
        sites = os.path.join(lab.folder, "sites")
        self.run(ZINF_FAIL_SITES=sites)
        with open(sites, encoding="ascii") as file:
            calls = file.read().split()
        first, last = {}, {}
        for n, site in enumerate(calls):
            first.setdefault(site, n)
            last[site] = n
        both = sorted(set(first.values()) | set(last.values()))
        print(f"# {os.path.basename(self.words[0])}: {len(calls)} calls from {len(first)} places")
        assert len(calls) > 100, calls
        return both if len(both) <= MOST else sorted(draw.sample(both, MOST))

    def try_all(self):
        ends, strange = collections.Counter(), []
        before = self.files_of(self.before)
        places = self.places()
        for i, n in enumerate(places):
            report = os.path.join(lab.folder, "report")
            open(report, "w", encoding="ascii").close()
            try:
                done = self.run(ZINF_FAIL_AT=f"{'+' if i % 2 else ''}{n}", ZINF_FAIL_REPORT=report)
            except subprocess.TimeoutExpired:
                strange.append((n, "hangs"))
                continue
            with open(report, encoding="utf-8") as file:
                callers = [os.path.basename(line.strip()) for line in file] or ["nobody"]
            who = callers[0]
            what = self.judge(done, who, before, i % 2 == 0)
            theirs = self.library(done, callers)
            ends[what or f"ended by {theirs or who}"] += 1
            if not what and not theirs:
                strange.append((n, who, done.returncode, done.stderr[-400:]))
        print(f"# {len(places)} tries: " + ", ".join(f"{n} {k}" for k, n in ends.most_common()))
        assert not strange, f"{len(strange)}: {strange[:6]}"
        assert ends["exit 4"] > len(places) / 2, ends

    @staticmethod
    def library(done, callers):
        """Which one ended the command, if any."""
        if done.returncode == 1 and "libgomp: Out of memory" in done.stderr:
            return "libgomp"
        return "json-c" if done.returncode in (2, -11) and "libjson-c.so.5" in callers else ""

    @staticmethod
    def files_of(folder):
        return {name: data for name, data in tree(folder).items() if name != "saved/latest"}

    def judge(self, done, who, before, alone):
        """A word for a good end; None for any other. What was stored is checked in both."""
        now = self.files()
        for name, data in now.items():
            if name.startswith(("saved/step-", "plan")):
                good = data in (before.get(name, b""), self.after.get(name, b""))
                assert good or name.split("/")[0] == "plan", f"{who}: {name} is neither old nor new"
        for name in before:
            assert name in now or name not in self.after, f"{who}: {name} is lost"
        lines = [line for line in done.stderr.splitlines() if line.startswith("zinf-")
                 and "saved step" not in line and "warning" not in line and "resumed" not in line]
        if done.returncode == 0:
            if {k: v for k, v in now.items()} != self.after:
                return None
            return "not needed"
        if done.returncode != 4 or len(lines) != 1 or not lines[0].split(": ", 1)[1:]:
            return None
        # where all fail, cleaning up may too: the next run does it
        left = alone and [name for name in now if name.startswith(("disk/", "saved/.")) and
                name not in before]
        return None if left else "exit 4"


def prepared(*steps):
    folder = lab.path("before")
    os.makedirs(os.path.join(folder, "disk"))
    for name, data in (("model.yaml", lab.model(**MODEL)), ("text", lab.text)):
        shutil.copy(data, os.path.join(folder, name))
    with open(os.path.join(folder, "cluster.yaml"), "w", encoding="ascii") as file:
        file.write(lib.CLUSTER_TEXT.format(unified="false", memory="1 GiB"))
    for step in steps:
        subprocess.run(step, cwd=folder, check=True, capture_output=True)
    return folder


SETS = [word for key, value in SETTINGS.items() for word in ("--set", f"{key}={value}")]
PLAN = [os.path.abspath(sys.argv[1]), "model.yaml", "cluster.yaml", *SETS, "-o", "plan", "--json", "--explain", "--trace", "trace"]
RUN = [os.path.abspath(sys.argv[2]), "plan", "--data", "text", "--nvme", "disk"]
SAVE = ["--save", "saved", "--log", "log"]


def a_planner_without_memory_says_so():
    Case(PLAN, prepared()).try_all()


def a_run_without_memory_says_so():
    Case([*RUN, *SAVE, "--val", "text", "--trace", "trace"], prepared(PLAN)).try_all()


def a_resume_without_memory_says_so_and_keeps_the_checkpoint():
    Case([*RUN, *SAVE, "--resume", "saved", "--sample", "2"],
         prepared(PLAN, [*RUN, *SAVE, "--steps", "1"])).try_all()


lib.main(lab, [a_planner_without_memory_says_so, a_run_without_memory_says_so,
               a_resume_without_memory_says_so_and_keeps_the_checkpoint])
