# tests/safety/checkpoints.py - checkpoints through the commands: what a wrong restore looks like,
# damage of every kind, disks that fill up, signals, and directories in unusual places. Each
# mishap is one line on standard error, an exit code, and the checkpoints that were there.
# argv: zinf-plan, zinf-run, flip_read.so. tests/e2e/resume.py has the honest ways to resume.
import atexit
import fcntl
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
import lab as lib  # noqa: E402
from lab import stand_still, tiers, wait_for  # noqa: E402
from stored import Stored, tree  # noqa: E402

lab = lib.Lab(*sys.argv[1:3])
draw = random.Random(5)
# Six steps of eight sequences from a text of 31: epochs turn over in the middle. The warm-up takes
# four of them.
MODEL = dict(layers=2, hidden=16, heads=2, steps=6, warmup=4, precision="bf16")
TEXT = lab.file("short", lab.prose(500).encode())
PLAN = lab.plan(MODEL, tiers("device"))
ON_NVME = lab.plan(MODEL, tiers("nvme"))
FILES = "manifest.json", "master.safetensors", "m.safetensors", "v.safetensors"


def whole():
    return lab.train(MODEL, tiers("device"), data=TEXT, save=True)


def saved(steps=3, every=1):
    """A fresh folder with the last two of some steps."""
    folder = lab.path("saved")
    lab.run(PLAN, "--steps", str(steps), "--save-every", str(every), data=TEXT, save=folder)
    return folder


BASE = saved()
LOG = b"".join(b'{"step": %d, "loss": 1.0}\n' % step for step in range(1, 6))


def copied():
    folder = lab.path("copy")
    shutil.copytree(BASE, folder)
    return folder


def refused(words, folder, *parts, code=2, **more):
    """One clear line, the exit code, and not a byte changed in the folder."""
    before = tree(folder)
    done = subprocess.run([lab.run_command, *words], capture_output=True, text=True,
                          stdin=subprocess.DEVNULL, **more)
    assert done.returncode == code, (words, done.returncode, done.stderr)
    lines = done.stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith("zinf-run: "), done.stderr
    for part in parts:
        assert part in lines[0], f"no {part!r} in: {lines[0]}"
    assert tree(folder) == before, f"something changed in {folder}: {lines[0]}"


def resume(folder, *more):
    return (PLAN, "--data", TEXT, "--resume", folder, "--save", folder, *more)


def goes_on_from_step_2(folder):
    """The checkpoint before the damaged one: loads, and leads to the same end."""
    run = lab.run(PLAN, "--resume", os.path.join(folder, "step-2"), data=TEXT)
    assert run.bits == (whole().bits[0][2:], whole().bits[1])


# ---- a restore that is not one ----

def resumed(folder):
    return lab.run(ON_NVME, "--resume", folder, data=TEXT).bits


def rewritten(change):
    folder = copied()
    stored = Stored(folder)
    change(stored)
    stored.write()
    return folder


def a_checkpoint_written_again_unchanged_is_the_same():
    assert resumed(rewritten(lambda stored: None)) == (whole().bits[0][3:], whole().bits[1])


def a_restore_that_is_slightly_wrong_is_told_from_a_right_one():
    def forget(name, tensor=None):
        def change(stored):
            for key, values in stored.state[name].items():
                if tensor in (None, key):
                    for i in range(len(values)):
                        values[i] = 0.0
        return change

    def exchange(name, one, other):
        def change(stored):
            values = stored.state[name]
            assert len(values[one]) == len(values[other])
            values[one], values[other] = values[other], values[one]
        return change

    def count(key, by):
        def change(stored):
            stored.manifest[key] += by
        return change

    def scale(name, tensor, i, by):
        def change(stored):
            stored.state[name][tensor][i] *= by
        return change

    fc = "transformer.h.%d.mlp.c_fc.weight"
    wrong = {
        "m forgotten": forget("m"), "v forgotten": forget("v"),
        "m of a bias forgotten": forget("m", "transformer.h.1.attn.c_attn.bias"),
        "two layers exchanged": exchange("master", fc % 0, fc % 1),
        "two layers' m exchanged": exchange("m", fc % 0, fc % 1),
        "two layers' v exchanged": exchange("v", fc % 0, fc % 1),
        "one weight": scale("master", fc % 1, 7, 1 + 2.0**-20),
        "one m": scale("m", fc % 1, 8, 2), "one v": scale("v", fc % 1, 9, 2),
        "a step less": count("step", -1), "a step more": count("step", 1),
        "a sequence less": count("data_position", -1), "a batch more": count("data_position", 8)}
    right = (whole().bits[0][3:], whole().bits[1])
    for what, change in wrong.items():
        assert resumed(rewritten(change)) != right, what
    # m in the place of v is noticed when it is read: moments of squares are not negative.

    def swap(stored):
        stored.state["m"], stored.state["v"] = stored.state["v"], stored.state["m"]
    folder = rewritten(swap)
    refused(resume(folder), folder, "v.safetensors", "negative")


def a_state_that_is_not_finite_is_refused():
    for name, value in ("master", float("nan")), ("m", float("inf")), ("v", float("-inf")):
        def change(stored):
            stored.state[name]["transformer.h.1.mlp.c_fc.weight"][5] = value
        folder = rewritten(change)
        refused(resume(folder), folder, "element 5", "transformer.h.1.mlp.c_fc.weight",
                name + ".safetensors")
        goes_on_from_step_2(folder)


# ---- damage ----

def overwrite(path, data):
    with open(path, "wb") as file:
        file.write(data)


def contents(path):
    with open(path, "rb") as file:
        return file.read()


def a_flipped_bit_in_any_file_is_refused():
    for name in FILES:
        size = os.path.getsize(os.path.join(BASE, "step-3", name))
        for at in [0, 7, 8, size // 3, size - 1] + [draw.randrange(size) for _ in range(4)]:
            folder = copied()
            path = os.path.join(folder, "step-3", name)
            data = bytearray(contents(path))
            data[at] ^= 1 << draw.randrange(8)
            overwrite(path, data)
            refused(resume(folder), folder, folder)
        goes_on_from_step_2(folder)


def a_bit_that_flips_in_any_reading_is_noticed():
    """Whatever is read once more than it is checked would be used with the bit flipped."""
    if len(sys.argv) < 4:
        raise lib.tap.Skip("nothing can be preloaded under a sanitizer")
    for plan in PLAN, ON_NVME:
        n, flipped = 0, True
        while flipped:
            log = lab.file("log", LOG)
            disk = lab.path("disk")
            os.mkdir(disk)
            before = tree(BASE)
            done = lab.call(lab.run_command, plan, "--data", TEXT, "--nvme", disk, "--log", log,
                            "--resume", BASE, code=(0, 2),
                            env={"LD_PRELOAD": sys.argv[3], "ZINF_FLIP_AT": str(n)})
            flipped = "flipped here" in done.stderr
            assert tree(BASE) == before
            if not flipped:
                assert done.returncode == 0, done.stderr
            else:
                assert done.returncode == 2, f"reading {n} is used unchecked"
                said = done.stderr.splitlines()
                assert len(said) == 2 and BASE in said[1] and ".safetensors" in said[1], said
                assert contents(log) == LOG, "the log of a run that does not go on was changed"
            n += 7
        assert n > 8 * 7, f"only {n} readings were tried"


def a_truncated_or_longer_file_is_refused():
    for name in FILES:
        size = os.path.getsize(os.path.join(BASE, "step-3", name))
        for length in 0, 5, size // 2, size - 1, size + 1:
            folder = copied()
            path = os.path.join(folder, "step-3", name)
            overwrite(path, (contents(path) + b"x")[:length])
            refused(resume(folder), folder, name)
        goes_on_from_step_2(folder)


def a_missing_file_is_named():
    for name in FILES:
        for instead in None, "folder":
            folder = copied()
            path = os.path.join(folder, "step-3", name)
            os.unlink(path)
            if instead:
                os.mkdir(path)
            refused(resume(folder), folder, name)
        goes_on_from_step_2(folder)


def files_of_another_step_do_not_mix():
    for name in FILES:
        folder = copied()
        shutil.copy(os.path.join(BASE, "step-2", name), os.path.join(folder, "step-3", name))
        refused(resume(folder), folder, "step-3")
        goes_on_from_step_2(folder)


def a_checkpoint_of_another_model_is_refused():
    for changes in dict(hidden=24), dict(layers=1), dict(vocab=300), dict(context=20):
        other = lab.plan({**MODEL, **changes}, tiers("device"))
        folder = lab.path("other")
        lab.run(other, "--steps", "1", data=TEXT, save=folder)
        refused(resume(folder), folder, "another model")
        mixed = copied() # its manifest alone
        shutil.copy(os.path.join(folder, "step-1", "manifest.json"),
                    os.path.join(mixed, "step-3", "manifest.json"))
        refused(resume(mixed), mixed, "another model")
        goes_on_from_step_2(mixed)


def a_latest_that_leads_nowhere_is_named():
    for text in (b"step-9\n", b"", b"step-3", b"step-\n", b"../step-3\n", b"step-3\nstep-2\n",
                 b"\0\n", b"/etc\n", b"step-99999999999999999999999999\n", b"x" * 5000):
        folder = copied()
        overwrite(os.path.join(folder, "latest"), text)
        refused(resume(folder), folder, "latest")
        goes_on_from_step_2(folder)
    folder = copied()
    os.unlink(os.path.join(folder, "latest"))
    os.mkdir(os.path.join(folder, "latest"))
    refused(resume(folder), folder, "latest")


def a_checkpoint_that_a_kill_left_unnamed_is_the_last_one():
    def as_killed(n):
        """As after the renaming of step n and before that of `latest`, which is in it still."""
        folder = saved(n)
        os.rename(os.path.join(folder, "latest"), os.path.join(folder, f"step-{n}", "latest"))
        if n > 1:
            overwrite(os.path.join(folder, "latest"), b"step-%d\n" % (n - 1))
        return folder

    for n in 1, 3:
        folder = as_killed(n)
        run = lab.run(PLAN, "--resume", folder, data=TEXT)
        assert f"at step {n}" in run.stderr and run.bits == (whole().bits[0][n:], whole().bits[1])
        # what is said to one who does not resume is a command that works, and so is its short form
        done = lab.run(PLAN, data=TEXT, save=folder, code=2)
        told = re.search(r'go on from its last one by --resume "([^"]+)"', done.stderr)[1]
        assert told == os.path.join(folder, f"step-{n}"), done.stderr
        goes_on = lab.run(PLAN, "--resume", told, data=TEXT, save=folder)
        assert goes_on.bits == (whole().bits[0][n:], whole().bits[1])
        assert contents(os.path.join(folder, "latest")) == b"step-6\n"
        for step in os.listdir(folder):
            assert not os.path.exists(os.path.join(folder, step, "latest")), step
        # named at the beginning of a run that saves, so that an older one may be gone on from
        folder = as_killed(n)
        lab.run(PLAN, "--resume", folder, "--steps", str(n), "--sample", "1", data=TEXT,
                save=folder)
        assert contents(os.path.join(folder, "latest")) == b"step-%d\n" % n
    folder = copied() # its name is lost, and then all of it
    os.unlink(os.path.join(folder, "latest"))
    assert "at step 3" in lab.run(PLAN, "--resume", folder, data=TEXT).stderr
    for n in 2, 3:
        shutil.rmtree(os.path.join(folder, f"step-{n}"))
    refused(resume(folder), folder, "holds no checkpoint", "latest")


def a_checkpoint_is_no_directory_of_checkpoints():
    folder = copied()
    inside = os.path.join(folder, "step-3")
    for more in (), ("--resume", inside), ("--resume", folder):
        refused((PLAN, "--data", TEXT, "--save", inside, *more), folder, "checkpoint")


def a_run_that_is_refused_leaves_no_directory():
    folder = lab.path("fresh")
    full = lab.path("full")
    os.makedirs(os.path.join(full, "something"))
    done = lab.run(PLAN, "--export", full, data=TEXT, save=folder, code=2)
    assert "not empty" in done.stderr and not os.path.exists(folder), done.stderr


def directories_that_are_none_are_named():
    here = lab.path("here")
    os.mkdir(here)
    overwrite(os.path.join(here, "file"), b"mine")
    train = PLAN, "--data", TEXT
    for option in "--resume", "--save":
        refused((*train, option, os.path.join(here, "file")), here, "file", "Not a directory")
        refused((*train, option, os.path.join(here, "no", "where")), here, "where")
    # Found before the first step, not after the last.
    refused((*train, "--save", os.path.join(here, "file"), "--log", "/dev/full"), here, "file")
    os.mkdir(os.path.join(here, "step-0"))
    overwrite(os.path.join(here, "step-0", "notes"), b"mine")
    refused((*train, "--save", here), here, "step-0", "move it away")
    # also where it would be in the way of a later step; an older one is in nobody's
    for n, fine in (5, False), (2, True):
        folder = copied()
        if n > 3:
            os.mkdir(os.path.join(folder, f"step-{n}"))
        overwrite(os.path.join(folder, f"step-{n}", "notes"), b"mine")
        if fine:
            lab.run(PLAN, "--resume", folder, data=TEXT, save=folder)
            assert contents(os.path.join(folder, f"step-{n}", "notes")) == b"mine"
        else:
            refused(resume(folder), folder, f'"step-{n}"', "move it away")
    if os.getuid() == 0:
        os.chmod(lab.folder, 0o755)
        folder = copied()
        as_nobody = dict(user=65534, group=65534, extra_groups=[])
        os.chmod(folder, 0)
        refused((*train, "--resume", folder), folder, "Permission denied", **as_nobody)
        os.chmod(folder, 0o755)
        os.chmod(os.path.join(folder, "step-3", "m.safetensors"), 0)
        refused((*train, "--resume", folder), folder, "m.safetensors", "Permission denied",
                **as_nobody)
        refused((*train, "--save", folder), folder, "Permission denied", code=4, **as_nobody)


# ---- a save that fails ----

def after_a_failed_save(folder, done, *parts):
    """Exit 4, one line that says so, and the last checkpoint leads to the end."""
    assert done.returncode == 4, (done.returncode, done.stderr[-1000:])
    lines = [line for line in done.stderr.splitlines() if line.startswith("zinf-run: ")]
    steps = [int(n) for n in re.findall(r"saved step (\d+) in", done.stderr)]
    assert steps and lines[-1].startswith("zinf-run: checkpoint: "), done.stderr[-1000:]
    for part in parts:
        assert part in lines[-1], f"no {part!r} in {lines[-1]}"
    assert Stored(folder).manifest["step"] == steps[-1]
    assert ".zinf-writing" not in os.listdir(folder)
    end = steps[-1] + 2
    straight = lab.run(LONG, "--steps", str(end), data=TEXT)
    again = lab.run(LONG, "--resume", folder, "--steps", str(end), data=TEXT)
    assert again.bits == (straight.bits[0][steps[-1]:], straight.bits[1])


# It takes many minutes: what happens to it happens before its end.
LONG = lab.plan({**MODEL, "steps": 1000000}, tiers("host"))


def started(*words, stdout=subprocess.DEVNULL):
    process = subprocess.Popen([lab.run_command, *words], stdin=subprocess.DEVNULL, stdout=stdout,
                               stderr=subprocess.PIPE, text=True)
    fcntl.fcntl(process.stderr, fcntl.F_SETPIPE_SZ, 1 << 20)  # of 10000 saves what is said
    atexit.register(process.kill)  # of a test that has failed
    return process


def started_until_row(step, *words):
    """A run whose log is a pipe that nobody reads further: it waits less than 30 steps later."""
    process = started(*words, "--log", "/dev/stdout", stdout=subprocess.PIPE)
    fcntl.fcntl(process.stdout, fcntl.F_SETPIPE_SZ, 4096)
    row = b""
    while not row.startswith(b'{"step": %d,' % step):
        row = b""
        while not row.endswith(b"\n"):
            row += os.read(process.stdout.fileno(), 1) or b"\n"
        assert len(row) > 4096 // 29, row
    return process


def last_saved(folder):
    """The step that `latest` names; 0 if there is none yet."""
    try:
        return int(contents(os.path.join(folder, "latest")).removeprefix(b"step-"))
    except FileNotFoundError:
        return 0


class SmallDisk:
    """A filesystem of its own for one folder; fill() takes what is free."""

    def __init__(self, size):
        self.folder = lab.path("small")
        os.mkdir(self.folder)
        mount = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "zinf", self.folder],
                               capture_output=True, text=True, check=False)
        if mount.returncode:
            raise lib.tap.Skip("mounting a small disk needs root")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        subprocess.run(["umount", self.folder], check=True)

    def path(self, name):
        return os.path.join(self.folder, name)

    def fill(self):
        with open(self.path("filler"), "wb", buffering=0) as file:
            try:
                while True:
                    file.write(b"x" * 4096)
            except OSError:
                pass


def a_disk_that_cannot_hold_three_is_refused_before_the_first_step():
    with SmallDisk(4 << 20) as disk: # of 5.1 MB not even one fits
        needed = r"needs (\d+) bytes more, for 3 checkpoints at a time .* has (\d+) bytes free"
        big = lab.plan({**MODEL, "hidden": 128, "steps": 1000}, tiers("host"))
        done = subprocess.run([lab.run_command, big, "--data", TEXT, "--save", disk.path("a"),
                               "--save-every", "1", "--log", "/dev/full"], capture_output=True,
                              text=True, check=False)
        assert done.returncode == 4 and "bytes free" in done.stderr, done.stderr
        assert not re.search(needed, done.stderr), done.stderr
    with SmallDisk(12 << 20) as disk: # one fits, three do not
        words = lab.run_command, big, "--data", TEXT, "--save", disk.path("a")
        done = subprocess.run([*words, "--save-every", "1", "--log", "/dev/full"],
                              capture_output=True, text=True, check=False)
        found = re.search(needed, done.stderr)
        assert done.returncode == 4 and found, done.stderr
        assert int(found.group(1)) > int(found.group(2)) > 0, done.stderr
        assert not os.path.exists(disk.path("a"))
        lab.call(*words, "--steps", "1") # one is all that this needs
        assert Stored(disk.path("a")).manifest["step"] == 1


def a_disk_is_asked_for_as_many_checkpoints_as_will_be_there():
    big = lab.plan({**MODEL, "hidden": 128, "steps": 1000}, tiers("host"))
    with SmallDisk(9 << 20) as disk: # of 5.1 MB one fits, two do not
        for steps, every, fits in ((4, 0, True), (4, 5, True), (4, 4, True), (4, 3, False),
                                   (4, 2, False), (1, 1, True)):
            folder = disk.path(f"{steps}-{every}")
            words = [lab.run_command, big, "--data", TEXT, "--steps", str(steps), "--save", folder,
                     *(["--save-every", str(every)] if every else [])]
            done = lab.call(*words, code=0 if fits else 4)
            assert fits or "for 2 checkpoints at a time" in done.stderr, (steps, every, done)
            shutil.rmtree(folder, ignore_errors=True)
    with SmallDisk(14 << 20) as disk: # two fit: that of the resume, and one more
        folder = disk.path("saved")
        words = lab.run_command, big, "--data", TEXT, "--save", folder, "--steps"
        lab.call(*words, "2")
        for steps in "2", "1":
            lab.call(*words, steps, "--resume", folder, "--save-every", "1")


def a_disk_filled_by_others_takes_the_reserved_save_and_names_the_next():
    with SmallDisk(16 << 20) as disk:
        folder = disk.path("saved")
        # has saved once and reserved the space for the second time
        process = started_until_row(41, LONG, "--data", TEXT, "--save", folder, "--save-every",
                                    "40")
        disk.fill()
        _, text = process.communicate(timeout=60)
        steps = [int(n) for n in re.findall(r"saved step (\d+) in", text)]
        assert steps == [40, 80], text
        assert "warning: the next save will fail unless this changes: " in text, text
        last = text.splitlines()[-1]
        for part in "step 120 is not saved", "has step 80", "bytes free":
            assert part in last, last
        after_a_failed_save(folder, subprocess.CompletedProcess([], process.returncode, "", text))


def a_run_that_saves_at_its_end_only_has_the_space_for_it():
    straight = lab.run(LONG, "--steps", "300", data=TEXT)
    with SmallDisk(16 << 20) as disk:
        folder = disk.path("saved")
        process = started_until_row(5, LONG, "--data", TEXT, "--save", folder, "--steps", "300")
        disk.fill()
        _, text = process.communicate(timeout=60)
        assert process.returncode == 0, text
        assert sorted(os.listdir(folder)) == ["latest", "step-300"]
        again = lab.run(LONG, "--resume", folder, "--steps", "300", data=TEXT)
        assert again.bits[1] == straight.bits[1]


# ---- one directory, one training ----

def a_directory_of_another_training_is_refused():
    folder = copied()
    train = PLAN, "--data", TEXT
    elsewhere = saved(1)
    other = lab.plan({**MODEL, "hidden": 24}, tiers("device"))
    for words in ((*train, "--save", folder), (*train, "--save", folder, "--resume", elsewhere),
                  (other, "--data", TEXT, "--save", folder)):
        refused(words, folder, folder, "another training", "step-3", "--resume")
    refused((other, "--data", TEXT, "--save", folder, "--resume", folder), folder, "another model")
    # also if what names the last one was lost
    os.unlink(os.path.join(folder, "latest"))
    refused((*train, "--save", folder), folder, "another training")
    # from one that is there, by whatever path, it goes on
    folder = copied()
    link = lab.path("link")
    os.symlink(folder, link)
    for start in "step-2", ".":
        lab.run(PLAN, "--resume", os.path.join(link, start), "--steps", "4", data=TEXT,
                save=folder)
    assert Stored(folder).manifest["step"] == 4
    # what is no checkpoint is in nobody's way
    folder = lab.path("notes")
    os.mkdir(folder)
    overwrite(os.path.join(folder, "step-by-step"), b"mine")
    lab.run(PLAN, "--steps", "1", data=TEXT, save=folder)
    assert sorted(os.listdir(folder)) == ["latest", "step-1", "step-by-step"]


def a_second_run_on_one_directory_is_refused_and_the_first_goes_on():
    folder = lab.path("shared")
    process = started(LONG, "--data", TEXT, "--save", folder)
    wait_for(lambda: os.path.exists(os.path.join(folder, ".zinf-reserved")), process)
    for more in (), ("--resume", BASE):
        done = subprocess.run([lab.run_command, PLAN, "--data", TEXT, "--save", folder, *more],
                              capture_output=True, text=True, check=False)
        assert done.returncode == 4 and f"in use by process {process.pid} " in done.stderr, \
            done.stderr
    process.send_signal(signal.SIGTERM)
    _, text = process.communicate(timeout=60)
    assert process.returncode == 0 and "saved step" in text, text
    assert sorted(os.listdir(folder))[0] == "latest" # neither lock nor reservation is left


def a_second_run_with_one_log_is_refused_and_the_first_loses_nothing():
    folder, log = lab.path("logged"), lab.path("log")
    lab.run(PLAN, "--steps", "1", data=TEXT, save=folder)
    process = started(LONG, "--data", TEXT, "--log", log)
    wait_for(lambda: os.path.exists(log) and os.path.getsize(log) > 0, process)
    for more in ("--steps", "1"), ("--resume", folder, "--steps", "2"):
        done = subprocess.run([lab.run_command, PLAN, "--data", TEXT, "--log", log, *more],
                              capture_output=True, text=True, check=False)
        assert done.returncode == 4 and "is being written by another run" in done.stderr, \
            (done.returncode, done.stderr)
        assert len(done.stderr.splitlines()) <= 2, done.stderr
    process.send_signal(signal.SIGTERM)
    _, text = process.communicate(timeout=60)
    assert process.returncode == 0, text
    with open(log, encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    assert [row["step"] for row in rows[:-1]] == list(range(1, len(rows))), rows[:3]
    assert "summary" in rows[-1]
    lab.call(lab.run_command, PLAN, "--data", TEXT, "--log", log, "--steps", "1") # free again


def what_a_killed_run_leaves_is_in_nobody_s_way():
    folder = lab.path("killed")
    process = started(LONG, "--data", TEXT, "--save", folder)
    wait_for(lambda: os.path.exists(os.path.join(folder, ".zinf-reserved")), process)
    process.kill()
    process.communicate()
    assert sorted(os.listdir(folder)) == [".zinf-lock", ".zinf-reserved"]
    lab.run(PLAN, data=TEXT, save=folder)
    assert sorted(os.listdir(folder)) == ["latest", "step-6"]


def a_limit_of_file_sizes_keeps_the_last_checkpoint():
    for limit in 0, 8192:
        folder = lab.path("limited")
        process = started(LONG, "--data", TEXT, "--save", folder, "--save-every", "1")
        wait_for(lambda: last_saved(folder) >= 2, process)
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (limit, limit))
        _, text = process.communicate(timeout=60)
        after_a_failed_save(folder, subprocess.CompletedProcess([], process.returncode, "", text))


def a_directory_that_vanishes_ends_the_run():
    # Of a link, since its directory cannot be replaced by a file in one step: between two, a save
    # would make a new one.
    folder, moved, file = lab.path("vanishing"), lab.path("moved"), lab.path("file")
    os.mkdir(moved)
    os.symlink(moved, folder)
    overwrite(file, b"a file")
    process = started(LONG, "--data", TEXT, "--save", folder, "--save-every", "1")
    wait_for(lambda: last_saved(folder), process)
    os.replace(file, folder)
    _, text = process.communicate(timeout=60)
    assert process.returncode == 2 and "Not a directory" in text.splitlines()[-1], text
    step = Stored(moved).manifest["step"]
    straight = lab.run(LONG, "--steps", str(step + 2), data=TEXT)
    again = lab.run(LONG, "--resume", moved, "--steps", str(step + 2), data=TEXT)
    assert again.bits == (straight.bits[0][step:], straight.bits[1])


def what_is_in_the_way_of_a_save_is_refused_before_the_first_step():
    for make, name in ((os.mkdir, "latest"), (os.mkdir, ".zinf-lock"),
                       (lambda path: overwrite(path, b"what I did last"), "latest"),
                       (lambda path: overwrite(path, b""), ".zinf-writing"),
                       (lambda path: overwrite(path, b""), ".zinf-reserved")):
        folder = lab.path("odd")
        os.mkdir(folder)
        make(os.path.join(folder, name))
        refused((PLAN, "--data", TEXT, "--save", folder, "--save-every", "1"), folder,
                f'"{name}" in "{folder}" exists and is not', "move it away")


def a_save_that_could_not_be_named_is_said_to_be_there_and_is():
    folder = lab.path("unnamed")
    latest = os.path.join(folder, "latest")
    process = started(LONG, "--data", TEXT, "--save", folder, "--save-every", "1")
    stand_still(lambda: last_saved(folder), process)
    os.remove(latest)
    os.mkdir(latest)
    process.send_signal(signal.SIGCONT)
    _, text = process.communicate(timeout=60)
    last = text.splitlines()[-1]
    found = re.search(r"; step (\d+) is there all the same, and --resume goes on from it$", last)
    assert process.returncode == 4 and found and '"latest"' in last, last
    step = int(found[1])
    done = lab.run(LONG, "--resume", folder, "--steps", str(step + 1), data=TEXT)
    assert f"at step {step}" in done.stderr and len(done.bits[0]) == 1, done.stderr


# ---- signals, and the ends of a run ----

def a_signal_ends_with_0_after_a_step_that_is_saved():
    for number in signal.SIGTERM, signal.SIGINT:
        for inside in "save", "step", "start":
            folder, log = lab.path("signalled"), lab.path("log")
            process = started(LONG, "--data", TEXT, "--save", folder, "--log", log,
                              *(["--save-every", "1"] if inside == "save" else []))
            stand_still({
                "save": lambda: os.path.exists(os.path.join(folder, ".zinf-writing")) and
                    last_saved(folder),
                "step": lambda: os.path.exists(log) and os.path.getsize(log) > 3000,
                "start": lambda: os.path.exists(os.path.join(folder, ".zinf-reserved"))}[inside],
                process)
            process.send_signal(number)
            process.send_signal(signal.SIGCONT)
            _, text = process.communicate(timeout=60)
            assert process.returncode == 0 and "stopped after step" in text, (inside, text)
            step = int(re.search(r"stopped after step (\d+) of", text).group(1))
            assert Stored(folder).manifest["step"] == step
            with open(log, encoding="utf-8") as file:
                assert len(file.readlines()) == step + 1 # and the summary
            straight = lab.run(LONG, "--steps", str(step + 2), data=TEXT)
            again = lab.run(LONG, "--resume", folder, "--steps", str(step + 2), data=TEXT)
            assert again.bits == (straight.bits[0][step:], straight.bits[1]), (number, inside)


def a_second_signal_ends_at_once():
    # In the validation after the second step, of many seconds: the first signal waits for its end.
    log, val = lab.path("log"), lab.file("val", lab.prose(4000).encode() * 5000)

    def status(word):
        with open(f"/proc/{process.pid}/{word}", encoding="ascii") as file:
            return file.read()

    def cpu_seconds():
        return sum(map(int, status("stat").rsplit(")", 1)[1].split()[11:13])) / \
            os.sysconf("SC_CLK_TCK")

    def is_caught(number):
        return int(re.search(r"SigCgt:\s*(\w+)", status("status"))[1], 16) >> number - 1 & 1

    for number in signal.SIGINT, signal.SIGTERM:
        process = started(LONG, "--data", TEXT, "--val", val, "--val-every", "2", "--val-batches",
                          "1000000", "--log", log)
        wait_for(lambda: os.path.exists(log) and os.path.getsize(log), process)
        used = cpu_seconds()  # a step takes a few ms
        wait_for(lambda: cpu_seconds() > used + 0.3, process)
        assert is_caught(number)
        process.send_signal(number)
        wait_for(lambda: not is_caught(number), process)  # it has come
        process.send_signal(number)
        process.communicate(timeout=60)
        assert process.returncode == -number, process.returncode
        assert len(contents(log).splitlines()) == 1


def a_resume_beyond_the_last_step_does_nothing():
    folder = copied()
    before = tree(folder)
    for steps in 0, 1, 3:
        run = lab.run(PLAN, "--resume", folder, "--steps", str(steps), data=TEXT)
        assert not run.rows and "nothing is left to train" in run.stderr, run.stderr
        assert run.summary["params_hash"] == lab.run(
            PLAN, "--steps", "3", data=TEXT).summary["params_hash"]
    assert tree(folder) == before


def a_step_saved_twice_is_the_same_checkpoint():
    tiled = lab.plan(MODEL, {**tiers("host", "nvme"), "tiles": 7, "micro_batch": 1})
    for plan in ON_NVME, tiled:
        folder = copied()
        lab.run(plan, "--resume", folder, "--steps", "3", data=TEXT, save=folder)
        one, two = tree(BASE), tree(folder)
        for name in one:
            # but for which plan wrote it
            assert one[name] == two[name] or name == "step-3/manifest.json", name
        assert one.keys() == two.keys()
        again = lab.run(PLAN, "--resume", folder, data=TEXT)
        assert again.bits == (whole().bits[0][3:], whole().bits[1])


def checkpoints_may_lie_in_the_directory_of_the_nvme_tier():
    for inside in "saved", ".":
        disk = lab.path("disk")
        os.mkdir(disk)
        folder = os.path.join(disk, inside)
        words = lab.run_command, ON_NVME, "--data", TEXT, "--nvme", disk
        lab.call(*words, "--steps", "3", "--save", folder, "--save-every", "1")
        log = lab.path("log")
        lab.call(*words, "--resume", folder, "--save", folder, "--log", log)
        assert sorted(os.listdir(folder)) == ["latest", "step-3", "step-6"]
        assert whole().summary["params_hash"] in contents(log).decode()
        for state in "master", "m", "v":
            assert Stored(folder).state[state] == Stored(whole().saved).state[state], state


lib.main(lab, [
    a_checkpoint_written_again_unchanged_is_the_same,
    a_restore_that_is_slightly_wrong_is_told_from_a_right_one,
    a_state_that_is_not_finite_is_refused, a_flipped_bit_in_any_file_is_refused,
    a_bit_that_flips_in_any_reading_is_noticed,
    a_truncated_or_longer_file_is_refused, a_missing_file_is_named,
    files_of_another_step_do_not_mix, a_checkpoint_of_another_model_is_refused,
    a_latest_that_leads_nowhere_is_named,
    a_checkpoint_that_a_kill_left_unnamed_is_the_last_one,
    a_checkpoint_is_no_directory_of_checkpoints, a_run_that_is_refused_leaves_no_directory,
    directories_that_are_none_are_named,
    a_disk_that_cannot_hold_three_is_refused_before_the_first_step,
    a_disk_is_asked_for_as_many_checkpoints_as_will_be_there,
    a_disk_filled_by_others_takes_the_reserved_save_and_names_the_next,
    a_run_that_saves_at_its_end_only_has_the_space_for_it,
    a_directory_of_another_training_is_refused,
    a_second_run_on_one_directory_is_refused_and_the_first_goes_on,
    a_second_run_with_one_log_is_refused_and_the_first_loses_nothing,
    what_a_killed_run_leaves_is_in_nobody_s_way,
    a_limit_of_file_sizes_keeps_the_last_checkpoint, a_directory_that_vanishes_ends_the_run,
    what_is_in_the_way_of_a_save_is_refused_before_the_first_step,
    a_save_that_could_not_be_named_is_said_to_be_there_and_is,
    a_signal_ends_with_0_after_a_step_that_is_saved, a_second_signal_ends_at_once,
    a_resume_beyond_the_last_step_does_nothing, a_step_saved_twice_is_the_same_checkpoint,
    checkpoints_may_lie_in_the_directory_of_the_nvme_tier])
