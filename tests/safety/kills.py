# tests/safety/kills.py - kill -9 at random instants, half of them while a checkpoint is written:
# the last one always loads, nothing saved is lost, and the training put together from what was
# left is the uninterrupted one to the bit. Each life goes on with another plan: other tiers.
# argv: zinf-plan, zinf-run. ZINF_TEST_KILLS: how many (50), ZINF_TEST_SEED: of the instants (1).
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
import lab as lib  # noqa: E402
from lab import tiers  # noqa: E402

lab = lib.Lab(*sys.argv[1:3])
KILLS = int(os.environ.get("ZINF_TEST_KILLS", "50"))
draw = random.Random(int(os.environ.get("ZINF_TEST_SEED", "1")))
# 0.47 million parameters, 5.6 MB a checkpoint: most of a step's time goes into saving it.
MODEL = dict(layers=2, hidden=128, heads=2, precision="bf16", steps=240, warmup=100)
PLACES = (tiers("device"), tiers("nvme"), tiers("host"), tiers("nvme", "host", "device", "host"),
          {**tiers("nvme"), "optimizer_time": "forward"})


def rows_of(log):
    """The complete lines of a log that a kill may have cut."""
    try:
        with open(log, encoding="utf-8") as file:
            text = file.read()
    except FileNotFoundError:
        return []
    rows = [json.loads(line) for line in text.split("\n")[:-1]]
    return [(r["step"], r["loss"], r["lr"], r["grad_norm"]) for r in rows if "step" in r]


def latest(folder):
    for name in os.listdir(folder) if os.path.isdir(folder) else []: # killed before it was named
        if os.path.exists(os.path.join(folder, name, "latest")) and name.startswith("step-"):
            return int(name[5:])
    try:
        with open(os.path.join(folder, "latest"), encoding="ascii") as file:
            return int(re.fullmatch(r"step-(\d+)\n", file.read()).group(1))
    except FileNotFoundError:
        return None


def words(plan, folder, disk, *more):
    return [lab.run_command, plan, "--data", lab.text, "--nvme", disk,
            *(["--resume", folder] if latest(folder) is not None else []), *more]


class Life:
    """One process, killed at an instant it does not choose."""

    def __init__(self, plan, folder):
        self.folder, self.log, self.err = folder, folder + ".log", lab.path("stderr")
        self.disk = lab.path("disk")
        os.mkdir(self.disk)
        self.begun = latest(folder)
        with open(self.err, "wb") as err:
            self.process = subprocess.Popen(
                words(plan, folder, self.disk, "--save", folder, "--save-every", "1", "--log",
                      self.log), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=err,
                env={**os.environ, "OMP_WAIT_POLICY": "passive"})

    def writing(self):
        return os.path.exists(os.path.join(self.folder, ".zinf-writing"))

    def until(self, there, deadline):
        """Waits for a save to begin or end; how long it took."""
        start = time.monotonic()
        while self.writing() != there and self.process.poll() is None and \
                time.monotonic() < deadline:
            time.sleep(0.0002)
        return time.monotonic() - start

    def stop_in_save(self, deadline):
        """Stops it where it is if that is inside a save, else inside the next one."""
        while self.process.poll() is None and time.monotonic() < deadline:
            self.process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
            if self.writing():
                return
            self.process.send_signal(signal.SIGCONT)
            self.until(True, deadline)

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        code = self.process.wait(timeout=60)
        with open(self.err, encoding="utf-8") as file:
            self.text = file.read()
        assert code in (-signal.SIGKILL, 0), f"exit {code}: {self.text[-1000:]}"
        shutil.rmtree(self.disk)
        return code != 0


class Story:
    """Lives one after the other in one folder of checkpoints."""

    def __init__(self):
        self.whole = lab.train(MODEL, PLACES[0])
        self.expected = {r["step"]: (r["step"], r["loss"], r["lr"], r["grad_norm"])
                         for r in self.whole.rows}
        self.plans = [lab.plan(MODEL, place) for place in PLACES]
        self.folder = lab.path("saved")
        self.save_s, self.start_s = 0.02, 0.3
        self.in_save = self.kills = self.lives = self.finished = 0

    def check(self, life):
        """What a kill left."""
        rows = rows_of(life.log) # of all lives: each step once, none missing
        assert [row[0] for row in rows] == list(range(1, len(rows) + 1)), rows
        for row in rows:
            assert row == self.expected[row[0]], f"step {row}, expected {self.expected[row[0]]}"
        saved = [int(n) for n in re.findall(r"saved step (\d+) in", life.text)]
        now = latest(self.folder)
        floor = max(saved + ([life.begun] if life.begun is not None else []), default=None)
        assert now is None or len(rows) >= now, f"step {now} is saved, {len(rows)} are logged"
        assert floor is None or now >= floor, f"step {floor} was saved, {now} is left"
        if now is None:
            return
        disk = lab.path("disk")
        os.mkdir(disk)
        done = lab.call(*words(self.plans[1], self.folder, disk, "--steps", "0"))
        assert f"at step {now}" in done.stderr, done.stderr

    def live(self, inside):
        life = Life(self.plans[self.lives % len(self.plans)], self.folder)
        deadline = time.monotonic() + 60
        self.lives += 1
        if inside:
            for turn in range(draw.randrange(1, 4)):
                if turn:
                    self.save_s += 0.3 * (life.until(False, deadline) - self.save_s)
                waited = life.until(True, deadline)
                if not turn:
                    self.start_s += 0.3 * (waited - self.start_s)
            time.sleep(draw.random() * 0.9 * self.save_s)
            life.stop_in_save(deadline)
        else:
            time.sleep(draw.random() * (2 * self.start_s + 4 * self.save_s))
        if life.kill():
            self.kills += 1
            self.in_save += life.writing()
        else:
            self.finished += 1
            assert latest(self.folder) == MODEL["steps"]
        self.check(life)
        if latest(self.folder) == MODEL["steps"]: # begin anew
            shutil.rmtree(self.folder)


def a_kill_at_any_instant_loses_nothing_that_was_saved():
    story = Story()
    while story.kills < KILLS:
        # As many as needed of the kind that is short of its half.
        story.live(story.in_save < KILLS / 2 if story.kills >= KILLS / 2 else story.kills % 2 == 0)
        assert story.lives < 4 * KILLS, "the processes end before they are killed"
    print(f"# {story.kills} kills, {story.in_save} of them inside a save of about "
          f"{1e3 * story.save_s:.0f} ms; {story.lives} lives, {story.finished} came to their end")
    assert 2 * story.in_save >= KILLS, story.in_save
    # What is left goes on to the end.
    disk, log = lab.path("disk"), lab.path("log")
    os.mkdir(disk)
    begun = latest(story.folder)
    lab.call(*words(story.plans[2], story.folder, disk, "--log", log))
    rows = rows_of(log)
    assert [r[0] for r in rows] == list(range((begun or 0) + 1, MODEL["steps"] + 1))
    for row in rows:
        assert row == story.expected[row[0]], row
    with open(log, encoding="utf-8") as file:
        summary = json.loads(file.read().split("\n")[-2])["summary"]
    assert summary["params_hash"] == story.whole.summary["params_hash"]


lib.main(lab, [a_kill_at_any_instant_loses_nothing_that_was_saved])
