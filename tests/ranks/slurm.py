# tests/ranks/slurm.py - ranks that srun starts, where this machine has a Slurm that runs jobs; else
# skipped. argv: zinf-plan, zinf-run.
import os
import shutil
import subprocess
import sys

import crew as base
import lab as lib
import tap

crew = base.Crew(*sys.argv[1:3])
MODEL = dict(layers=2, steps=4, warmup=2)
PLACE = {**lib.tiers("nvme"), "micro_batch": 2, "tiles": 1, "checkpoint_interval": 1}
KINDS = {"pmix": "openmpi", "pmi2": "mpich"}  # of srun --mpi: whose library joins by it


def no_slurm():
    """Why there is none; None where a job can run."""
    if not shutil.which("srun"):
        return "no srun: Slurm is not installed"
    try:
        done = subprocess.run(["srun", "--immediate=10", "-n", "2", "true"], capture_output=True,
                              text=True, stdin=subprocess.DEVNULL, timeout=30)
    except subprocess.TimeoutExpired:
        return "Slurm does not start two tasks within 30 s"
    said = (done.stderr.strip() or "it failed").splitlines()[-1]
    return f"Slurm runs no job here: {said}" if done.returncode else None


WHY = no_slurm()


class Srun(base.Crew):
    """A crew that srun starts."""

    def words(self, ranks, launcher=None):
        return ["srun", "--immediate=10", "-n", str(ranks), "--mpi=" + launcher]


def ranks_of_srun_train_as_those_of_mpirun():
    if WHY:
        raise tap.Skip(WHY)
    srun = Srun(*sys.argv[1:3])
    plan = crew.plan_for(2, MODEL, PLACE)
    started = 0
    for kind, library in KINDS.items():
        if library in crew.launchers:
            lib.same(srun.sail(2, plan, launcher=kind), crew.sail(2, plan), f"--mpi={kind}")
            started += 1
    srun.close()
    if not started:
        raise tap.Skip("no MPI: neither Open MPI nor MPICH is installed and built in")


def ranks_that_srun_does_not_connect_are_told_how():
    if WHY:
        raise tap.Skip(WHY)
    disk = crew.path("disk")
    os.mkdir(disk)
    done = subprocess.run(["srun", "--immediate=10", "-n", "2", "--mpi=none", crew.run_command,
                           crew.plan_for(2, MODEL, PLACE), "--data", crew.text, "--nvme", disk],
                          capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60)
    assert done.returncode == 4 and "--mpi=pmix" in done.stderr, (done.returncode, done.stderr)


lib.main(crew, [ranks_of_srun_train_as_those_of_mpirun,
                ranks_that_srun_does_not_connect_are_told_how])
