# tests/ranks/crew.py - several ranks for the tests: lab.py of tests/e2e, with clusters of several
# devices and the launchers that are installed. Python 3's own library only.
import json
import os
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "e2e"))
import lab as lib  # noqa: E402
import tap  # noqa: E402

CLUSTER_TEXT = """\
cluster:
  name: crew
  nodes: {nodes}
  devices_per_node: {devices}
  device: {{kind: cpu, memory: 1 GiB, peak: {{bf16: 350 GFLOP/s, fp32: 180 GFLOP/s}},
           bandwidth: 25 GB/s}}
  host: {{memory: 8 GiB, cores: {cores}, bandwidth: 25 GB/s, adam: 5e8 params/s}}
  nvme: {{paths: [/tmp], capacity: 4 GiB, read: 1 GB/s, write: 1 GB/s, latency: 100 us}}
  links:
    host_device: {{per_device: 8 GB/s, latency: 5 us}}
    intra_node: {{per_device: 4 GB/s, latency: 20 us}}
    inter_node: {{per_node: 1 GB/s, latency: 50 us}}
  unified: {unified}
"""

# In a container: root may start ranks, more of them than cores, bound to none; and Open MPI must
# not read another process's memory, which needs a privilege that containers lack.
ENVIRONMENT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
               "OMPI_MCA_btl_vader_single_copy_mechanism": "none", "OMP_WAIT_POLICY": "passive"}
OPTIONS = {"openmpi": ["--oversubscribe", "--bind-to", "none"], "mpich": []}


def launchers(zinf_run):
    """The MPI libraries that zinf was built with and whose mpirun is here: name -> words."""
    found = {}
    for name, options in OPTIONS.items():
        command = shutil.which("mpirun." + name) or shutil.which("mpirun")
        module = os.path.join(os.path.dirname(os.path.abspath(zinf_run)), f"zinf-mpi-{name}.so")
        if command and os.path.exists(module):
            found[name] = [command, *options]
    return found


class Crew(lib.Lab):
    def __init__(self, plan, run):
        super().__init__(plan, run)
        self.launchers = launchers(run)
        self.launcher = next(iter(self.launchers), None)

    def words(self, ranks, launcher=None):
        """What comes before the command of a run of so many ranks."""
        if ranks == 1:
            return []
        if not self.launchers:
            raise tap.Skip("no MPI: neither Open MPI nor MPICH is installed and built in")
        return [*self.launchers[launcher or self.launcher], "-n", str(ranks)]

    def plan_for(self, ranks, model=None, settings=None, unified=False, nodes=1, code=0):
        if not isinstance(model, str):
            model = self.model(**(model or {}))
        cluster = self.file("cluster.yaml", CLUSTER_TEXT.format(
            nodes=nodes, devices=ranks // nodes, cores=2 * ranks // nodes,
            unified=str(unified).lower()).encode())
        path = self.path("plan")
        pins = {"threads": 1, **(settings or {})}
        words = [w for k, v in pins.items() for w in ("--set", f"{k}={v}")]
        self.planned = self.call(self.plan_command, model, cluster, "-o", path, "--json", *words,
                                 code=code)
        return path

    def sail(self, ranks, plan, *options, data=None, save=None, launcher=None, code=0, env=None):
        """Trains a plan on so many ranks; with a code that is not 0: what the command printed."""
        log, disk = self.path("log"), self.path("disk")
        os.mkdir(disk)
        words = [*self.words(ranks, launcher), self.run_command, plan, "--data", data or self.text,
                 "--nvme", disk, "--log", log, *(["--save", save] if save else []), *options]
        done = subprocess.run(words, capture_output=True, text=True, errors="replace",
                              stdin=subprocess.DEVNULL, timeout=400,
                              env={**ENVIRONMENT, **os.environ, **(env or {})})
        assert done.returncode == code, f"{words}: {done.returncode}\n{done.stderr[-2000:]}"
        assert not os.listdir(disk), f"left behind in the nvme directory: {os.listdir(disk)}"
        if code:
            return done
        with open(log, encoding="utf-8") as file:
            lines = [json.loads(line) for line in file]
        return lib.Training(lines[:-1], lines[-1]["summary"], done, save)

    def crew(self, ranks, model=None, settings=None, *options, unified=False, data=None, save=None,
             launcher=None, nodes=1):
        """Plans and trains; the same request is trained once."""
        key = json.dumps([ranks, model, settings, options, unified, data, save, launcher, nodes],
                         sort_keys=True)
        if key not in self.known:
            plan = self.plan_for(ranks, model, settings, unified, nodes)
            self.known[key] = self.sail(ranks, plan, *options, data=data, save=save,
                                        launcher=launcher)
        return self.known[key]
