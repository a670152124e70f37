# tests/ranks/failures.py - a rank that is killed, stopped or fails ends all others within 30 s,
# by name, with nothing left behind; one that is only slow ends nothing. argv: zinf-plan, zinf-run,
# the library of fail_export.c (not with sanitizers).
#
# A stopped rank is known after 15 s of silence, so all cases run at once.
import glob
import os
import signal
import subprocess
import sys
import time

import crew as base
import tap
from lab import main, tiers, wait_for
from voyage import MODEL, STOPPED_IN, Voyage, all_go

crew = base.Crew(*sys.argv[1:3])
library = sys.argv[3] if len(sys.argv) > 3 else None
PLAIN = {**tiers("nvme"), "micro_batch": 1, "tiles": 1, "checkpoint_interval": 1}
voyages = {}


def set_sail():
    """All cases at once; called by the first test."""
    need_mpi()
    crew.path_of_plan = crew.plan_for(2, MODEL, PLAIN)
    for launcher in crew.launchers:
        for what in signal.SIGKILL, signal.SIGSTOP, "fail":
            for rank in 0, 1:
                if launcher == crew.launcher or rank == 1:
                    voyages[launcher, what, rank] = Voyage(crew, crew.path_of_plan, launcher, what,
                                                           rank)
    all_go(voyages.values())


def need_mpi():
    if not crew.launchers:
        raise tap.Skip("no MPI: neither Open MPI nor MPICH is installed and built in")


def ended(what, words):
    need_mpi()
    for (launcher, kind, rank), v in voyages.items():
        if kind != what:
            continue
        name = f"{launcher}, rank {rank}"
        assert v.code not in (0, None), f"{name}: {v.code} after {v.took:.0f} s\n{v.text()[-2000:]}"
        # MPICH's launcher kills the others before they can speak, and of those that were killed it
        # names any, or none: that it says so is all that is to be had
        by_launcher = what == signal.SIGKILL and launcher == "mpich"
        assert f"rank {rank} {words}" in v.text() or (
            by_launcher and "Killed (signal 9)" in v.text()), f"{name}: {v.text()[-2000:]}"
        assert not v.alive, f"{name}: {v.alive} still run"
        print(f"# {name}: {v.took:.1f} s, exit {v.code}")


def a_killed_rank_ends_all_and_is_named():
    set_sail()
    ended(signal.SIGKILL, "has ended without a word")


def a_stopped_rank_ends_all_and_is_named():
    ended(signal.SIGSTOP, "has been silent for 15 s")


def a_failing_rank_ends_all_with_its_words():
    ended("fail", "failed: data: ")
    for (launcher, kind, rank), v in voyages.items():
        if kind == "fail":
            # the code is the launcher's: MPICH's gave one of its own, 1, once in seven runs
            assert v.code == 4 or (launcher == "mpich" and v.code), v.code
            assert f"zinf-run: rank {rank}: data: " in v.text(), v.text()[-2000:]


def a_rank_stopped_while_it_joins_or_leaves_ends_all():
    need_mpi()
    if not library:
        raise tap.Skip("a sanitizer wants to be loaded before the library that stops a rank")
    # apart from the others: while many start, an mpirun may lose a rank by itself
    late = {(launcher, what, rank): Voyage(crew, crew.path_of_plan, launcher, what, rank, library)
            for launcher in crew.launchers for what in STOPPED_IN for rank in (1, 0)
            if rank == 1 or what == "finalized"}
    all_go(late.values())
    for (launcher, what, rank), v in late.items():
        words = "not all of 2 ranks have joined within 10 s" if what == "init" else \
            f"rank {rank} has been silent for 15 s"
        # a rank that has told it that MPI is ended MPICH's mpirun waits for, whatever the others say
        waits = (launcher, what) == ("mpich", "finalized")
        assert v.code != 0 and (v.code or waits), \
            f"{launcher}, {what}: {v.code} after {v.took:.0f} s\n{v.text()[-2000:]}"
        assert words in v.text() and (not v.alive or (waits and v.alive == [v.pids[rank]])), \
            f"{launcher}, {what}: {v.alive} still run\n{v.text()[-2000:]}"
        print(f"# {launcher}, {what}, rank {rank}: {v.took:.1f} s, exit {v.code}")


def nothing_is_left_behind():
    need_mpi()
    assert voyages
    for launcher in crew.launchers:
        seen = sum(len(v.segments) for key, v in voyages.items() if key[0] == launcher)
        print(f"# of {launcher}: {seen} segments of shared memory")
        assert seen or launcher != "openmpi" # MPICH's have no name any more once all have them
    for key, v in voyages.items():
        left = [path for path in v.segments if os.path.exists(path)]
        assert not left, (key, left)
        for path in glob.glob(v.disk + "/*"): # a killed rank leaves its file, without a lock
            probe = subprocess.run(["flock", "-n", path, "true"], check=False)
            assert probe.returncode == 0, f"{key}: {path} is locked"
        done = crew.call(*crew.words(2), crew.run_command, crew.path_of_plan, "--data", crew.text,
                         "--nvme", v.disk, "--steps", "1", env=base.ENVIRONMENT) \
            if key[0] == crew.launcher and key[2] == 1 else None
        assert done is None or not os.listdir(v.disk), os.listdir(v.disk)


def a_rank_that_is_only_slow_ends_nothing():
    need_mpi()
    v = Voyage(crew, crew.path_of_plan, crew.launcher, None, 1)
    v.wait_for_steps()
    os.kill(v.pids[1], signal.SIGSTOP)
    time.sleep(4)
    os.kill(v.pids[1], signal.SIGCONT)
    seen = len(v.text())
    wait_for(lambda: len(v.text()) > seen, v.process) # a line a second
    assert v.process.poll() is None, v.text()[-1000:]
    os.kill(v.pids[0], signal.SIGTERM) # any rank's signal ends all, in order, after the step
    assert v.process.wait(60) == 0, v.text()[-1000:]
    assert "stopped after step" in v.text() and not os.listdir(v.disk), v.text()[-1000:]


main(crew, [
    a_killed_rank_ends_all_and_is_named,
    a_stopped_rank_ends_all_and_is_named,
    a_failing_rank_ends_all_with_its_words,
    a_rank_stopped_while_it_joins_or_leaves_ends_all,
    nothing_is_left_behind,
    a_rank_that_is_only_slow_ends_nothing,
])
