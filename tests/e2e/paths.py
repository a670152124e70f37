# tests/e2e/paths.py - the files and directories that a run is given: which may be the same or lie
# in each other, what can be known to fail is refused before anything is made, and what fails later
# takes no training with it. argv: zinf-plan, zinf-run.
import atexit
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys

import lab as lib

lab = lib.Lab(*sys.argv[1:3])
PLAN = lab.plan(dict(layers=1, hidden=16, heads=2, steps=2), lib.tiers("nvme"))


def make(folder):
    """What a user has: text, a plan, a model, checkpoints, a disk, and links to some."""
    place = lab.path(folder)
    os.mkdir(place)
    shutil.copy(lab.text, os.path.join(place, "text"))
    shutil.copy(PLAN, os.path.join(place, "plan"))
    for name in "disk", "empty", "sub":
        os.mkdir(os.path.join(place, name))
    shutil.copytree(MODEL, os.path.join(place, "hf"))
    shutil.copytree(SAVED, os.path.join(place, "saved"))
    for name in "hf", "saved", "disk", "empty":
        os.symlink(name, os.path.join(place, "to-" + name))
    os.symlink("nothing", os.path.join(place, "dangling"))
    shutil.copytree(MODEL, os.path.join(place, "cached")) # links into blobs, as of a hub's cache
    shutil.move(os.path.join(place, "cached", "model.safetensors"), os.path.join(place, "blob"))
    os.symlink("../blob", os.path.join(place, "cached", "model.safetensors"))
    os.link(os.path.join(place, "hf", "config.json"), os.path.join(place, "also-config"))
    os.link(os.path.join(place, "saved", "step-1", "manifest.json"),
            os.path.join(place, "also-manifest"))
    os.link(os.path.join(place, "text"), os.path.join(place, "also-text"))
    return place


def tree(place):
    return sorted((os.path.join(folder, name), os.lstat(os.path.join(folder, name)).st_size)
                  for folder, folders, files in os.walk(place) for name in folders + files)


def call(place, options, code=0, disk="disk"):
    done = subprocess.run([os.path.abspath(lab.run_command), "plan", "--data", "text",
                           *(["--nvme", disk] if disk else []), *options.split()],
                          cwd=place, capture_output=True, text=True, stdin=subprocess.DEVNULL,
                          check=False)
    assert done.returncode == code, (options, done.returncode, done.stderr)
    return done


MODEL, SAVED = lab.path("model"), lab.path("checkpoints")
lab.run(PLAN, "--steps", "1", "--export", MODEL, save=SAVED)


def what_is_in_the_way_of_another_is_refused_before_anything_is_made():
    place = make("refusals")
    before = tree(place)
    here = place + "/"
    own, model = "directory of its own", "nothing is written into the model"
    ours, theirs = "that name is a checkpoint's", "is in a checkpoint, or beside some by a name"
    file = "it is a file; name the directory in which config.json"
    shutil.copytree(os.path.join(place, "saved", "step-1"), os.path.join(place, "moved"))
    os.symlink("saved/latest", os.path.join(place, "to-latest"))
    os.symlink("saved/step-1/new", os.path.join(place, "to-new"))
    os.symlink(os.path.join(place, "to-new"), os.path.join(place, "sub", "to-to-new"))
    before = tree(place)
    for options, words in {
            # the same, however it is spelled
            "--save new --export new": own,
            "--save new --export ./new/": own,
            f"--save sub/../new --export {here}new": own,
            "--resume saved --export saved": own,
            "--resume saved --export to-saved": own,
            "--init hf --save hf": model,
            "--init hf --save to-hf": model,
            "--nvme=disk --export disk": own,
            "--nvme=disk --export to-disk": own,
            # in each other
            "--save new/saved --export new": own,
            "--log empty/log --export empty": own,
            "--log to-empty/log --export empty": own,
            "--trace empty/log --export to-empty": own,
            "--trace new.zinf-writing --export new": own,
            "--log new.zinf-writing/log --export new/": own,
            "--log empty.zinf-writing --export to-empty": own,
            "--log hf/model.safetensors --init hf": model,
            "--log to-hf/../hf/config.json --init hf": model,
            "--trace hf/trace --init to-hf": model,
            "--init hf --export hf/tuned": model,
            "--init hf --save hf/saved": model,
            "--resume saved --log saved/latest": ours,
            "--resume saved --trace to-saved/step-1/master.safetensors": ours,
            "--resume saved --export saved/step-2": ours,
            "--save new --log new/step-2": ours,
            "--save new --log new/.zinf-lock": ours,
            "--save new --export new/step-9": ours,
            # a checkpoint's that this run has nothing to do with
            "--log saved/latest": theirs,
            "--trace to-saved/step-1/m.safetensors": theirs,
            "--log saved/step-1/log": theirs,
            "--log saved/step-7": theirs,
            "--trace saved/.zinf-writing": theirs,
            "--log moved/manifest.json": theirs,
            "--trace to-latest": theirs,
            "--export saved/step-7": theirs, "--export saved/step-7/": theirs,
            "--log to-new": theirs, "--trace sub/to-to-new": theirs,
            "--log disk/zinf-rank0.nvme": "the nvme tier's",
            "--val disk/zinf-rank0.nvme": "the nvme tier's",
            # files
            "--log also-text": "same file",
            "--log new --trace ./new": "same file",
            "--log new --trace sub/../new": "same file",
            "--init cached --trace blob": "one of the files there",
            "--init cached --log blob": "one of the files there",
            "--init hf --log also-config": "one of the files there",
            "--resume saved --trace also-manifest": "one of the files there",
            "--resume saved/step-1 --log also-manifest": "one of the files there",
            "--eval plan": "a plan of zinf-plan",
            "--val plan": "a plan of zinf-plan",
            # directories that cannot become an export
            "--init text": file, "--init text --export new": file,
            "--init text --export new --export-dtype source": file,
            "--init nowhere --export new": '^zinf-run: "nowhere" cannot be opened: No such file',
            "--export dangling": "link to what is not there",
            "--export sub/..": '^zinf-run: --export "sub/.." and [^:]* ".*": an export',
            "--export text": own, "--export also-text": own,
            "--export text/in": "Not a directory",
            "--export nowhere/new": "No such file",
            # and files that cannot be made
            "--log nowhere/log": "cannot create log",
            "--trace nowhere/trace": "cannot create trace",
            "--log sub": "cannot create log",
            "--trace text/trace": "cannot create trace",
            "--resume saved --log nowhere/log": "cannot create log",
            "--save nowhere/saved": "No such file",
            "--save saved/step-1": "is a checkpoint itself",
            "--save saved/step-1 --resume saved": ours + "|is a checkpoint itself"}.items():
        disk = None if "--nvme" in options else "disk"
        done = call(place, options.replace("--nvme=", "--nvme "), 2, disk)
        assert re.search(words, done.stderr) and done.stderr.count("\n") == 1, \
            (options, done.stderr)
        assert tree(place) == before, (options, set(tree(place)) ^ set(before))
    done = subprocess.run([os.path.abspath(lab.run_command), "plan", "--data", "plan", "--nvme",
                           "disk"], cwd=place, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "a plan of zinf-plan" in done.stderr, done.stderr


def what_is_in_nobodys_way_is_allowed():
    for options, made in {
            "--save new --log new/log --trace new/trace": "new/log",
            "--log saved/log --trace sub/latest --export saved/hf": "saved/hf/config.json",
            "--resume saved --save saved --log saved/log": "saved/step-2",
            "--resume saved --save to-saved --export saved/hf": "saved/hf/config.json",
            "--resume saved/step-1 --save saved": "saved/step-2",
            "--save disk --export disk/model --log disk/log": "disk/model/config.json",
            "--save disk/new --resume to-saved": "disk/new/step-2",
            "--init hf --save hf-new --export hf-out --val text --eval text": "hf-out/config.json",
            "--export empty/": "empty/config.json",
            "--export to-empty": "empty/config.json",
            "--export empty/in": "empty/in/config.json",
            "--init cached --log also-config --trace sub/new --save new": "new/step-2",
            "--log sub/new --trace new": "sub/new",
            "--log /dev/null --trace /dev/null": "text"}.items():
        place = make("allowed")
        call(place, options)
        assert os.path.exists(os.path.join(place, made)), options
        assert not [name for name in os.listdir(place) if "zinf" in name], os.listdir(place)


def a_log_beside_checkpoints_goes_on_when_they_are_resumed():
    place = make("beside")
    for steps, resume in ((1, ""), (2, "--resume empty"), (2, "--resume empty/step-2")):
        call(place, f"--save empty {resume} --log empty/log.jsonl --trace empty/trace "
             f"--steps {steps}")
    with open(os.path.join(place, "empty", "log.jsonl"), encoding="ascii") as file:
        steps = [json.loads(line).get("step") for line in file]
    assert [n for n in steps if n] == [1, 2], steps


def an_empty_directory_that_cannot_be_replaced_is_no_place_for_an_export():
    place = make("mounted")
    inside = os.path.join(place, "empty")
    done = subprocess.run([os.path.abspath(lab.run_command), PLAN, "--data", lab.text, "--nvme",
                           os.path.join(place, "disk"), "--export", "."], cwd=inside,
                          capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "in which this runs" in done.stderr, done.stderr
    for words in (["-t", "tmpfs", "zinf"], ["--bind", os.path.join(place, "sub")]):
        if subprocess.run(["mount", *words, inside], capture_output=True, check=False).returncode:
            raise lib.tap.Skip("mounting needs root")
        try:
            for name in "empty", "to-empty":
                done = call(place, f"--export {name}", 2)
                assert "a filesystem is mounted there" in done.stderr, done.stderr
            call(place, "--export empty/model")
        finally:
            subprocess.run(["umount", inside], check=True)


def what_the_end_would_copy_is_looked_at_before_the_training():
    place = make("copied")
    os.mkdir(os.path.join(place, "hf", "tokenizer.json"))
    done = call(place, "--init hf --export new", 2)
    assert '"tokenizer.json"' in done.stderr and "step 1/" not in done.stderr, done.stderr
    assert "new" not in os.listdir(place)


# ---- what fails later ----

class Started:
    """A training without an end, past its first steps."""

    def __init__(self, place, options):
        self.place = place
        self.process = subprocess.Popen(
            [os.path.abspath(lab.run_command), "plan", "--data", "text", "--nvme", "disk",
             "--steps", "1000000", *options.split()], cwd=place, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "OMP_WAIT_POLICY": "passive"})
        atexit.register(self.process.kill)  # of a test that has failed

    def wait(self, condition):
        lib.wait_for(condition, self.process)

    def stop(self, code):
        self.process.send_signal(signal.SIGTERM)
        _, text = self.process.communicate(timeout=60)
        assert self.process.returncode == code, (self.process.returncode, text)
        return text, int(re.search(r"stopped after step (\d+) of", text)[1])


def an_export_that_fails_late_loses_nothing_and_what_is_said_exports_it():
    for options, where in ("--save run", "run"), ("", "new.zinf-rescued"):
        place = make("late")
        run = Started(place, f"--init hf --export new --log log {options}")
        log = os.path.join(place, "log")
        run.wait(lambda: os.path.exists(log) and os.path.getsize(log) > 500)
        os.makedirs(os.path.join(place, "new", "mine"))
        text, step = run.stop(4)
        last = text.splitlines()[-1]
        assert "not empty" in last and f'step {step} is saved in "{where}"' in last, last
        with open(log, encoding="utf-8") as file:
            rows = [json.loads(line) for line in file]
        assert rows[-1]["step"] == step, rows[-1]
        # it says: the same command with this in place of --init, --data and --steps
        told = re.search(r"the same command with (.*) in place of --init, --data and "
                         r"--steps$", last)[1]
        os.rmdir(os.path.join(place, "new", "mine"))
        again = subprocess.run([os.path.abspath(lab.run_command), "plan", "--nvme", "disk",
                                "--export", "new", *options.split(), *shlex.split(told)],
                               cwd=place, capture_output=True, text=True, check=False)
        assert again.returncode == 0 and f"of step {step} to" in again.stderr, again.stderr
        name = "transformer.wte.weight"  # the longest, stored alike in both
        states = [lib.read_safetensors(os.path.join(place, path)) for path in
                  ("new/model.safetensors", f"{where}/step-{step}/master.safetensors",
                   "hf/model.safetensors")]
        assert states[0][name] == states[1][name] != states[2][name]


def an_export_has_its_space_from_the_beginning():
    place = make("filled")
    small = os.path.join(place, "sub")
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1M", "zinf", small], capture_output=True,
                      check=False).returncode:
        raise lib.tap.Skip("mounting needs root")
    try:
        with open(os.path.join(place, "hf", "tokenizer.json"), "wb") as file:
            file.write(9000 * b"{")
        run = Started(place, "--init hf --export sub/new --log log")
        log = os.path.join(place, "log")
        run.wait(lambda: os.path.exists(log) and os.path.getsize(log) > 500)
        with open(os.path.join(small, "filler"), "wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass
        run.stop(0)
        os.unlink(os.path.join(small, "filler"))
        done = call(place, "--init sub/new --steps 0")
        assert "predicted" in done.stdout, done.stdout
        with open(os.path.join(small, "new", "tokenizer.json"), "rb") as file:
            assert file.read() == 9000 * b"{"
    finally:
        subprocess.run(["umount", small], check=True)


def an_export_of_nothing_new_is_not_rescued():
    place = make("nothing")
    name = "transformer.h.0.mlp.c_fc.weight"
    path = os.path.join(place, "hf", "model.safetensors")
    with open(path, "r+b") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        file.seek(8 + size + header[name]["data_offsets"][0])
        file.write(b"\x00\xb8\x88\x47")  # 70000
    done = call(place, "--init hf --steps 0 --export new --export-dtype fp16", 2)
    assert "is 70000" in done.stderr and "saved" not in done.stderr, done.stderr
    assert not [x for x in os.listdir(place) if x.startswith("new")], os.listdir(place)


def a_log_or_trace_that_fails_late_loses_nothing():
    place = make("log")
    text = call(place, "--steps 1000000 --save run --log /dev/full", 4).stderr
    assert "cannot write log \"/dev/full\"" in text.splitlines()[-1], text
    assert "saved step 1 in" in text, text
    for option in "--trace", "--save new --trace":
        place = make("trace")
        run = Started(place, f"--log log --export out {option} sub/trace")
        log = os.path.join(place, "log")
        run.wait(lambda: os.path.exists(log) and os.path.getsize(log) > 500)
        os.rmdir(os.path.join(place, "sub"))
        text, step = run.stop(4)
        assert 'cannot create trace "sub/trace"' in text.splitlines()[-1], text
        assert f"exported the model of step {step} to" in text, text
        assert "--save" not in option or f"saved step {step} in" in text, text


lib.main(lab, [what_is_in_the_way_of_another_is_refused_before_anything_is_made,
               what_is_in_nobodys_way_is_allowed,
               a_log_beside_checkpoints_goes_on_when_they_are_resumed,
               an_empty_directory_that_cannot_be_replaced_is_no_place_for_an_export,
               what_the_end_would_copy_is_looked_at_before_the_training,
               an_export_that_fails_late_loses_nothing_and_what_is_said_exports_it,
               an_export_has_its_space_from_the_beginning,
               an_export_of_nothing_new_is_not_rescued,
               a_log_or_trace_that_fails_late_loses_nothing])
