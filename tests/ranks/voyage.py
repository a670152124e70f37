# tests/ranks/voyage.py - a run of two ranks that would never end, and what befalls one of them.
import atexit
import os
import signal
import subprocess
import threading
import time

import crew as base

DEADLINE_S = 30
MODEL = dict(layers=1, steps=1000000)
RANK = "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}"
STOPPED_IN = "init", "finalize", "finalized" # of MPI; behind its end


class Voyage:
    """The processes of the ranks are known. what: a signal for `rank`, or "fail" of it; library:
    fail_export.c's, which stops it in MPI."""

    def __init__(self, crew, plan, launcher, what, rank, library=None):
        self.launcher, self.what, self.rank = launcher, what, rank
        self.folder, self.disk = crew.path("voyage"), crew.path("disk")
        os.mkdir(self.folder)
        os.mkdir(self.disk)
        preload = f"export LD_PRELOAD={library} ZINF_STOP_IN={what} ZINF_FAIL_RANK={rank} " \
            "ZINF_JOIN_SECONDS=" + ("10" if what == "init" else "60") \
            if what in STOPPED_IN else ""
        steps = "--steps 2" if what in STOPPED_IN[1:] else ""
        script = crew.file("ranked", f"""#!/bin/bash
echo $$ > {self.folder}/new.{RANK}
mv {self.folder}/new.{RANK} {self.folder}/pid.{RANK} # so that it is never there and empty
{preload}
exec {crew.run_command} {plan} --data {self.folder}/data.{RANK} --nvme {self.disk} {steps}
""".encode())
        os.chmod(script, 0o755)
        for i in range(2):
            with open(f"{self.folder}/data.{i}", "wb") as out:
                out.write(crew.prose(4000).encode())
        self.errors = open(f"{self.folder}/stderr", "w+", encoding="utf-8", errors="replace")
        self.process = subprocess.Popen(
            [*crew.words(2, launcher), script], stdin=subprocess.DEVNULL, stderr=self.errors,
            stdout=self.errors, env={**base.ENVIRONMENT, **os.environ})
        atexit.register(self.process.terminate) # of a test that has failed
        self.pids, self.code, self.took, self.alive = {}, None, 0, []
        self.segments = set()  # of shared memory that its ranks have

    def text(self):
        with open(f"{self.folder}/stderr", encoding="utf-8", errors="replace") as file:
            return file.read()

    def wait_for_steps(self, seconds=120):
        end = time.monotonic() + seconds
        while not ("step " in self.text() if self.what != "init" else
                   all(os.path.exists(f"{self.folder}/pid.{i}") for i in range(2))):
            assert time.monotonic() < end and self.process.poll() is None, self.text()[-2000:]
            time.sleep(0.05)
        for i in range(2):
            with open(f"{self.folder}/pid.{i}", encoding="ascii") as file:
                self.pids[i] = int(file.read())
            self.segments |= segments_of(self.pids[i])

    def go(self):
        self.wait_for_steps()
        if self.what == "fail": # the data shrinks under one rank: it fails in the middle of a step
            os.truncate(f"{self.folder}/data.{self.rank}", 100)
        elif self.what not in STOPPED_IN:
            os.kill(self.pids[self.rank], self.what)
        else: # by itself, somewhat later
            end = time.monotonic() + 60
            while state(self.pids[self.rank]) not in ("T", "") and time.monotonic() < end:
                time.sleep(0.02)
        self.began = time.monotonic()
        try:
            self.code = self.process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.code = None
        self.took = time.monotonic() - self.began
        # A launcher that crashed itself (Open MPI's may, of two nodes) leaves them to its daemons.
        while True:
            self.alive = [pid for pid in self.pids.values() if running(pid)]
            if not self.alive or time.monotonic() - self.began > DEADLINE_S:
                break
            time.sleep(0.05)
        for pid in self.alive:
            os.kill(pid, signal.SIGKILL)
        if self.code is None:
            self.process.kill()
            self.process.wait()


def state(pid):
    """Of a process, a letter; "" if there is none."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rsplit(")", 1)[1].split()[0]
    except OSError:
        return ""


def running(pid):
    return state(pid) not in ("", "Z", "X")


def segments_of(pid):
    """Files of shared memory that a process has mapped and that are there."""
    with open(f"/proc/{pid}/maps", encoding="utf-8") as file:
        paths = {line.rstrip("\n").split(None, 5)[-1] for line in file if " /dev/shm/" in line}
    return {path for path in paths if os.path.exists(path)}


def all_go(some):
    threads = [threading.Thread(target=v.go) for v in some]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
