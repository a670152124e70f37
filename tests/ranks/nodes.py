# tests/ranks/nodes.py - ranks on two nodes: two network namespaces of this machine, each with a
# host name, shared memory and a disk of its own, joined by a virtual cable; the launchers' remote
# shell enters them. Skipped where namespaces cannot be made. argv: zinf-plan, zinf-run.
import json
import os
import shutil
import signal
import subprocess
import sys

import crew as base
import lab as lib
import tap
import voyage

SETTINGS = {**lib.tiers("nvme"), "micro_batch": 1, "tiles": 1, "checkpoint_interval": 1}
CABLE = "zinf0"
NETWORK = {"zinf-a": "10.77.0.1", "zinf-b": "10.77.0.2"}
WAYS = [], ["--user", "--map-root-user"]  # into namespaces: as root, or as anybody


class Fleet(base.Crew):
    """A crew whose ranks are half on one node, half on the other."""

    def __init__(self, plan, run):
        super().__init__(plan, run)
        self.nodes = {}
        self.own = self.path("own")  # the same name on each node, not the same directory
        self.private = self.path("tmp")  # of Open MPI's daemons
        self.disks = {name: self.path("disk-of-" + name) for name in NETWORK}
        for folder in self.own, self.private, *self.disks.values():
            os.mkdir(folder)
        self.hosts = self.file("hosts", b"127.0.0.1 localhost\n" + b"".join(
            f"{address} {name}\n".encode() for name, address in NETWORK.items()))
        self.why = self.settle()
        if self.why:
            return
        self.shell = self.file("shell", f"""#!/bin/sh
while [ "${{1#-}}" != "$1" ]; do shift; done
case $1 in
{"".join(f"{name}) node='{' '.join(self.enter(name, True))}' ;;" + chr(10) for name in NETWORK)}*) exit 1 ;;
esac
shift
exec $node sh -c "$*"
""".encode())
        os.chmod(self.shell, 0o755)

    def settle(self):
        """Why there are no two nodes; None if there are."""
        if not shutil.which("ip"):
            return "no two nodes: iproute2 is not installed"
        for way in WAYS:
            said = self.found(way)
            if not said:
                return None
            self.leave()
        return f"no two nodes: namespaces cannot be made here ({said})"

    def found(self, way):
        """Makes the nodes; returns what went wrong. A node lasts until its `cat` has no input."""
        self.way = way
        outer = ["nsenter", "--preserve-credentials", "--user", "--target"] if way else []
        for name in NETWORK:
            script = f"hostname {name} && mount -t tmpfs none /dev/shm && " \
                f"mount -t tmpfs none {self.private} && mount --bind {self.hosts} /etc/hosts && " \
                f"mount --bind {self.disks[name]} {self.own} && echo settled && exec cat"
            first = next(iter(self.nodes.values()), None)
            words = [*outer, str(first.pid)] if first and way else []
            words += ["unshare", *([] if first else way), "--net", "--mount", "--uts", "sh", "-c"]
            node = subprocess.Popen([*words, script], stdin=subprocess.PIPE,
                                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            self.nodes[name] = node
            said = node.stdout.readline().strip()
            if said != "settled":
                return said or "no word"
        for name, address in NETWORK.items():
            other = next(node for other, node in self.nodes.items() if other != name)
            for words in (["link", "add", CABLE, "type", "veth", "peer", "name", CABLE, "netns",
                           str(other.pid)] if name == next(iter(NETWORK)) else [],
                          ["address", "add", address + "/24", "dev", CABLE],
                          ["link", "set", CABLE, "up"], ["link", "set", "lo", "up"]):
                done = subprocess.run([*self.enter(name), "ip", *words], capture_output=True,
                                      text=True, check=False)
                if words and done.returncode:
                    return done.stderr.strip()
        return None

    def enter(self, name, from_node=False):
        user = ["--user", "--preserve-credentials"] if self.way and not from_node else []
        return ["nsenter", "--target", str(self.nodes[name].pid), "--net", "--mount", "--uts",
                *user, "--"]

    def leave(self):
        for node in self.nodes.values():
            node.stdin.close()
            node.wait()
        self.nodes = {}

    def close(self):
        self.leave()
        super().close()

    def words(self, ranks, launcher=None):
        if self.why:
            raise tap.Skip(self.why)
        mpirun = super().words(ranks, launcher)
        names, each = list(self.nodes), str(ranks // 2)
        far = {"openmpi": ["--mca", "plm_rsh_agent", self.shell, "--mca", "oob_tcp_if_include",
                           CABLE, "--mca", "btl_tcp_if_include", CABLE, "--mca",
                           "orte_tmpdir_base", self.private, "--host", ",".join(
                               f"{name}:{each}" for name in names)],
               "mpich": ["-launcher", "ssh", "-launcher-exec", self.shell, "-ppn", each, "-hosts",
                         ",".join(names)]}
        return [*self.enter(names[0]), *mpirun, *far[launcher or self.launcher]]


fleet = Fleet(*map(os.path.abspath, sys.argv[1:3]))  # another working directory there


def ranks_on_two_nodes_train_as_on_one():
    model = dict(layers=2, steps=6)
    one = base.Crew(*sys.argv[1:3])
    for launcher in fleet.launchers or [None]:
        words = fleet.words(4, launcher)
        done = fleet.call(*words, "hostname", env=base.ENVIRONMENT)
        assert sorted(done.stdout.split()) == sorted(2 * list(NETWORK)), done.stdout
        plan = fleet.plan_for(4, model, SETTINGS, nodes=2)
        lib.same(fleet.sail(4, plan, launcher=launcher), one.sail(4, plan, launcher=launcher),
                 f"{launcher}: two nodes and one")
    one.close()


def each_node_has_copies_whose_bytes_are_compared_and_a_disk_of_its_own():
    plan = fleet.plan_for(4, dict(layers=1, steps=3), SETTINGS, nodes=2)
    for launcher in fleet.launchers or [None]:
        for change, code in (b"", 0), (b"#", 2):
            for name, folder in fleet.disks.items():
                with open(f"{folder}/text", "wb") as out:
                    text = fleet.prose(4000).encode()
                    out.write(text[:2000] + change + text[2000 + len(change):]
                              if name == "zinf-b" else text)
            done = fleet.call(*fleet.words(4, launcher), fleet.run_command, plan, "--data",
                              fleet.own + "/text", "--nvme", fleet.own, env=base.ENVIRONMENT,
                              code=code)
            assert not code or "rank 2 has another --data than rank 0: the bytes differ" in \
                done.stderr, done.stderr
            for folder in fleet.disks.values():
                assert os.listdir(folder) == ["text"], os.listdir(folder)


def ranks_of_a_node_share_a_drive_or_have_one_each():
    fleet.words(2)  # are there nodes, is there MPI?
    plan = fleet.plan_for(2, dict(layers=2, hidden=64, steps=2), SETTINGS)
    need = json.loads(fleet.planned.stdout)["memory"]["nvme"]["planned_bytes"]
    node, drives = fleet.enter("zinf-a"), [fleet.path("drive"), fleet.path("drive")]
    for drive in drives:
        os.mkdir(drive)
        fleet.call(*node, "mount", "-t", "tmpfs", "-o", f"size={need + need // 2}", "none", drive)
    for name in fleet.launchers:
        for where, code in ((drives[0], drives[1]), 0), ((drives[0], drives[0]), 4):
            script = fleet.file("driven", f"""#!/bin/sh
if [ "{voyage.RANK}" = 0 ]; then drive={where[0]}; else drive={where[1]}; fi
exec {fleet.run_command} {plan} --data {fleet.text} --nvme $drive
""".encode())
            os.chmod(script, 0o755)
            done = fleet.call(*node, *base.Crew.words(fleet, 2, name), script, code=code,
                              env=base.ENVIRONMENT)
            assert not code or f"needs {2 * need} bytes" in done.stderr, done.stderr


def a_killed_or_stopped_rank_of_another_node_ends_all():
    plan = fleet.plan_for(2, voyage.MODEL, SETTINGS, nodes=2)
    all_of_them = {(launcher, what): voyage.Voyage(fleet, plan, launcher, what, 1)
                   for launcher in fleet.launchers or [None]
                   for what in (signal.SIGKILL, signal.SIGSTOP)}
    voyage.all_go(all_of_them.values())
    for (launcher, what), v in all_of_them.items():
        name = f"{launcher}, {what.name}: {v.code} after {v.took:.1f} s"
        words = "silent for 15 s" if what == signal.SIGSTOP else "ended without a word"
        # of a killed rank MPICH's launcher ends the others before they can speak, as on one node
        assert f"rank 1 has {'been ' if what == signal.SIGSTOP else ''}{words}" in v.text() or (
            what == signal.SIGKILL and launcher == "mpich"), f"{name}\n{v.text()[-2000:]}"
        assert v.code not in (0, None) and not v.alive, f"{name}, {v.alive}\n{v.text()[-2000:]}"
        print(f"# {name}")


lib.main(fleet, [ranks_on_two_nodes_train_as_on_one,
                 each_node_has_copies_whose_bytes_are_compared_and_a_disk_of_its_own,
                 ranks_of_a_node_share_a_drive_or_have_one_each,
                 a_killed_or_stopped_rank_of_another_node_ends_all])
