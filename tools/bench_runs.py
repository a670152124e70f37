#!/usr/bin/env python3
# tools/bench_runs.py - the items of tools/bench that run whole programs: zinf-plan and zinf-run on
# this machine, as zinf-probe has measured it in the same run. Called by tools/bench, which has
# built them; the kernels' items are zinf-bench's own.
#
# Every figure is a ratio to something measured or predicted in the same run, medians over steps.
# Exit codes: 0 done, 2 wrong usage, 4 the machine (a program failed, no space).
import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
KERNELS = ["gemm", "attention", "adam", "elementwise"]
GPT2 = {"layers": 12, "hidden": 768, "heads": 12, "vocab": 50257, "context": 1024}


class Failed(Exception):
    pass


class Machine:
    """The built programs, a directory for everything, and cluster files of this machine."""

    def __init__(self, build, options):
        self.build, self.options = os.path.abspath(build), options
        self.dir = tempfile.mkdtemp(prefix="zinf-bench-", dir=options.dir)
        self.before = []
        if options.realtime:
            self.before = ["chrt", "-r", "1"]
        self.clusters = {}
        self.peaks = {}

    def program(self, name):
        folder = {"zinf-plan": "planner", "zinf-run": "runtime"}.get(name, "tools")
        return os.path.join(self.build, folder, name)

    def call(self, command, measured=False, limit=1800):
        command = (self.before if measured else []) + command
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit)
        if done.returncode:
            raise Failed("%s: exit %d: %s" % (" ".join(command), done.returncode,
                                              done.stderr.strip()[-400:]))
        return done

    def cluster(self, device=None, anew=False):
        """A cluster file; device: memory of an emulated accelerator, None for none. anew: probed
        once more, since the machine may not be as fast as a while ago."""
        if device not in self.clusters or anew:
            say("zinf-probe%s" % (", emulating a device of " + device if device else ""))
            self.clusters[device] = self.probe(
                "cluster-%s-%d.yaml" % ((device or "this").replace(" ", ""),
                                        len(os.listdir(self.dir))),
                ["--device-memory", device] if device else [])
        return self.clusters[device]

    def limited(self, memory):
        """This machine's cluster file, of which a plan may take so much in all."""
        with open(self.cluster()) as file:
            text = re.sub(r"(?m)^(  host:\n    memory: ).*\n    reserve: .*$",
                          r"\g<1>%s\n    reserve: 0 B" % memory, file.read())
        return self.file("cluster-%s.yaml" % memory.replace(" ", ""), text)

    def probe(self, name, more=()):
        path = os.path.join(self.dir, name)
        self.call([self.program("zinf-probe"), "-o", path, "--nvme", self.dir, *more],
                  measured=True)
        return path

    def peak(self):
        """FLOP/s of bf16 multiply-adds of registers alone, all cores, and the unit's name."""
        if not self.peaks:
            out = self.call([self.program("zinf-bench"), "peak", "--json", "--rounds", "5"],
                            measured=True).stdout
            line = json.loads(out.splitlines()[-1])
            self.peaks = {"flops": 1e9 * line["value"], "unit": line["of"]}
        return self.peaks

    def file(self, name, text):
        path = os.path.join(self.dir, name)
        with open(path, "w") as out:
            out.write(text)
        return path

    def model(self, name, sequence, batch, precision="bf16", context=None, lr="6e-4", **sizes):
        sizes = dict(GPT2, **sizes)
        sizes["context"] = context or max(sequence, sizes["context"])
        family = "llama" if "kv_heads" in sizes else "gpt2"
        lines = ["model:", "  name: " + name, "  family: " + family]
        lines += ["  %s: %d" % item for item in sizes.items()]
        lines += ["training:", "  sequence: %d" % sequence, "  global_batch: %d" % batch,
                  "  precision: " + precision,
                  "  optimizer: {type: adamw, lr: %s, betas: [0.9, 0.95], eps: 1e-8, "
                  "weight_decay: 0.1}" % lr,
                  "  schedule: {type: constant, warmup: 10, steps: 1000}"]
        return self.file("%s-%d-%d-%s.yaml" % (name, sequence, batch, precision),
                         "\n".join(lines) + "\n")

    def plan(self, model, cluster, pins=(), limit=1800):
        """(path of the plan, zinf-plan --json); of pins of one key the last one counts"""
        path = os.path.join(self.dir, "plan-%d" % len(os.listdir(self.dir)))
        command = [self.program("zinf-plan"), model, cluster, "-o", path, "--json"]
        for key, value in dict(pin.split("=", 1) for pin in pins).items():
            command += ["--set", key + "=" + value]
        return path, json.loads(self.call(command, limit=limit).stdout)

    def text(self):
        """A few MiB of words: any text does, only the time counts."""
        path = os.path.join(self.dir, "text")
        if not os.path.exists(path):
            state, words = 1, []
            for _ in range(1 << 19):
                state = state * 1103515245 + 12345 & 0x7FFFFFFF
                words.append("%x" % (state >> 12))
            self.file("text", " ".join(words))
        return path

    def run(self, plan, steps, extra=()):
        """The log: (objects of the steps, summary)"""
        log = plan + ".log"
        self.call([self.program("zinf-run"), plan, "--data", self.text(), "--steps", str(steps),
                   "--log", log, "--nvme", self.dir, *extra], measured=True)
        with open(log) as lines:
            rows = [json.loads(line) for line in lines]
        return [row for row in rows if "step" in row], rows[-1]["summary"]


def say(text):
    print("tools/bench: " + text, file=sys.stderr, flush=True)


def report(options, name, value, unit, of, spread=0.0):
    if options.json:
        print(json.dumps({"name": name, "value": float("%.4g" % value), "unit": unit, "of": of,
                          "spread": float("%.3g" % spread)}), flush=True)
    else:
        print("%-48s %6.3f %-7s +-%4.0f %%  of %s" % (name, value, unit, 50 * spread, of),
              flush=True)


def spread_of(values):
    """The middle half, as a fraction of the median."""
    values = sorted(values)
    n = len(values)
    return (values[n - 1 - n // 4] - values[n // 4]) / statistics.median(values)


def step_times(rows):
    """Without the first, in which everything is touched for the first time."""
    return [row["step_s"] for row in rows][1:]


DEVICE = ["tier.param=device", "tier.grad=device", "tier.optimizer=device"]
STORED = ["tier.param=nvme", "tier.grad=nvme", "tier.optimizer=nvme", "tier.checkpoint=nvme"]


def step(m):
    """whole training step of GPT-2 124M, all in memory, to the bf16 peak of registers"""
    peak = m.peak()
    for sequence in (512, 1024):
        plan, told = m.plan(m.model("gpt2-124m", sequence, 4), m.cluster(),
                            DEVICE + ["checkpoint_interval=none"])
        flops = told["predicted"]["tflops_per_device"] * 1e12 * told["predicted"]["step_s"]
        rows, _ = m.run(plan, m.options.steps)
        rates = [flops / s for s in step_times(rows)]
        report(m.options, "step/4x%d" % sequence, statistics.median(rates) / peak["flops"],
               "ratio", "%.0f GFLOP/s, %s; 6 FLOP a parameter and token, and attention" %
               (peak["flops"] / 1e9, peak["unit"]), spread_of(rates))


def step_vs_pytorch(m):
    """tokens/s of the same step, to PyTorch with bf16 autocast (python3 with torch)"""
    pythons = [p for p in ("/usr/bin/python3", sys.executable, os.environ.get("ZINF_TORCH_PYTHON"))
               if p and subprocess.run([p, "-c", "import torch"], capture_output=True).returncode
               == 0]
    if not pythons:
        say("step_vs_pytorch is left out: no python3 with torch (apt install python3-torch, or "
            "name one in ZINF_TORCH_PYTHON)")
        return
    for sequence in (512, 1024):
        plan, _ = m.plan(m.model("gpt2-124m", sequence, 4), m.cluster(),
                         DEVICE + ["checkpoint_interval=none"])
        for python in dict.fromkeys(pythons):
            ratios, version, how = [], "", ""
            for _ in range(3):
                rows, _ = m.run(plan, 4)
                mine = 4 * sequence / statistics.median(step_times(rows))
                told = json.loads(m.call(
                    [python, os.path.join(ROOT, "tools", "torch_step.py"), str(sequence), "4",
                     "4"], measured=True).stdout)
                ratios.append(mine / told["tokens_per_s"])
                version, how = told["version"], told["how"]
            report(m.options, "step_vs_pytorch/4x%d" % sequence, statistics.median(ratios), "ratio",
                   "PyTorch %s, %s" % (version, how), spread_of(ratios))


def plans_to_predict(m):
    """Varied plans: (name, model, memory of an emulated device or None, pins)"""
    small = dict(layers=6, hidden=512, heads=8, vocab=8192)
    gpt2 = m.model("gpt2-124m", 512, 4)
    six = m.model("six", 512, 8, **small)
    yield "memory", gpt2, None, DEVICE + ["checkpoint_interval=none"]
    yield "recompute", gpt2, None, DEVICE + ["checkpoint_interval=1"]
    yield "accumulate", gpt2, None, DEVICE + ["micro_batch=1"]
    yield "optimizer on nvme", gpt2, None, DEVICE[:2] + ["tier.optimizer=nvme"]
    yield "all on nvme", gpt2, None, STORED + ["checkpoint_interval=1"]
    yield "tiles", six, None, DEVICE + ["tiles=3"]
    yield "six layers", six, None, DEVICE
    yield "six layers, all on nvme", six, None, STORED + ["checkpoint_interval=2"]
    yield "six layers, fp32", m.model("six", 512, 4, "fp32", **small), None, DEVICE
    yield "long", m.model("six", 2048, 2, **small), None, DEVICE
    yield "llama", m.model("llama", 512, 4, layers=8, hidden=512, heads=8, kv_heads=2, ffn=1536,
                           vocab=8192), None, DEVICE
    yield "device of 256 MiB", six, "256 MiB", []
    yield "its states on nvme", six, "256 MiB", STORED[:3]


def predict(m):
    """predicted to measured step time of 13 varied plans, and of their queues"""
    errors, queues, peaks = [], [], []
    for index, (name, model, device, pins) in enumerate(plans_to_predict(m)):
        # probed in turns with the runs: what is asked is whether a plan's time follows from the
        # machine's rates, and those of a shared machine change
        cluster = m.cluster(device, anew=index % 4 == 0)
        with open(cluster) as file:
            peaks.append(float(re.search(r"bf16: ([0-9.]+)", file.read())[1]))
        plan, told = m.plan(model, cluster, pins)
        rows, summary = m.run(plan, m.options.steps)
        times = step_times(rows)
        measured = statistics.median(times)
        parts = []
        for queue, busy in summary["queues"].items():
            if busy["measured_s"] > 0.05 * measured:
                ratio = busy["predicted_s"] / busy["measured_s"]
                queues.append((abs(ratio - 1), name, queue))
                parts.append("%s %.2f" % (queue, ratio))
        ratio = told["predicted"]["step_s"] / measured
        errors.append((abs(ratio - 1), name))
        report(m.options, "predict/" + name, ratio, "ratio",
               "%.3f s measured; %s" % (measured, ", ".join(parts)), spread_of(times))
    report(m.options, "predict", statistics.mean(e for e, _ in errors), "error",
           "the measured step: mean of %d plans; worst %.3f (%s); worst queue %.3f (%s of %s); "
           "the probes' own GEMM rates differ by %.3f" %
           (len(errors), *max(errors), max(queues)[0], max(queues)[2], max(queues)[1],
            max(peaks) / min(peaks) - 1))


def offload(m):
    """step with states on nvme, to the step in memory or the bound; and with 1/8 of the states"""
    model = m.model("gpt2-124m", 512, 16)
    pins = ["micro_batch=4", "checkpoint_interval=1"]
    states = 20.0 * m.plan(model, m.cluster(), DEVICE + pins)[1]["model"]["params"]
    for name, cluster in (("offload", m.cluster()),
                          ("offload/eighth", m.limited("%d B" % (states / 8)))):
        stored, told = m.plan(model, cluster, STORED + pins)
        tiles = ["tiles.%s=%d" % tile for tile in told["decisions"]["tiles"].items()]
        plan, _ = m.plan(model, m.cluster(), DEVICE + pins + tiles)
        memory, times, moving = [], [], []
        for _ in range(3): # in turns: the machine may not be as fast as a minute ago
            memory += step_times(m.run(plan, m.options.steps)[0])
            rows, summary = m.run(stored, m.options.steps)
            times += step_times(rows)
            busy = summary["queues"]
            moving.append(busy["read"]["measured_s"] + busy["write"]["measured_s"])
        memory, storage = statistics.median(memory), statistics.median(moving)
        report(m.options, name, max(memory, storage) / statistics.median(times), "ratio",
               "max(%.3f s in memory, %.3f s of storage); device %.3f of the states; predicted "
               "%.3f of the step" %
               (memory, storage, told["memory"]["device"]["planned_bytes"] / states,
                told["predicted"]["step_s"] / statistics.median(times)), spread_of(times))


def overlap(m):
    """step with all queues at once, to the same plan one instruction after the other"""
    plan, told = m.plan(m.model("gpt2-124m", 512, 16), m.cluster(),
                        STORED + ["micro_batch=4", "checkpoint_interval=1"])
    times = step_times(m.run(plan, m.options.steps)[0])
    serial = step_times(m.run(plan, m.options.steps, ["--queues", "serial"])[0])
    report(m.options, "overlap", statistics.median(serial) / statistics.median(times), "ratio",
           "the step with every queue at once; predicted %.3f" %
           (told["predicted"]["serial_s"] / told["predicted"]["step_s"]), spread_of(serial))


def order(m):
    """step of small micro-batches on nvme, to that in another order of micro-batches and updates"""
    model = m.model("order", 256, 8, layers=6, vocab=8192)
    plain = ["order=horizontal", "optimizer_time=after"]
    down, late = ["order=vertical", plain[1]], [plain[0], "optimizer_time=forward"]
    for name, batch, more in (("vertical", 1, down), ("forward", 8, late),
                              ("both", 1, [down[0], late[1]])):
        pins = STORED + ["micro_batch=%d" % batch, "checkpoint_interval=1"]
        plans = [m.plan(model, m.cluster(), pins + which) for which in (plain, more)]
        times = [[], []]
        for _ in range(3):
            for k, (plan, _) in enumerate(plans):
                times[k] += step_times(m.run(plan, m.options.steps)[0])
        told = [plan[1]["predicted"]["step_s"] for plan in plans]
        medians = [statistics.median(t) for t in times]
        report(m.options, "order/" + name, medians[0] / medians[1], "ratio",
               "%.3f s in horizontal order, updates after backward; predicted %.3f (%.2f and %.2f "
               "of the measured steps)" %
               (medians[0], told[0] / told[1], told[0] / medians[0], told[1] / medians[1]),
               spread_of(times[1]))


def run_of_ranks(m, launcher, plan):
    """The log of two ranks: (times of the steps, summary)"""
    log = plan + ".log"
    os.environ.update({"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"})
    m.call([launcher, "-n", "2", "--oversubscribe", "--bind-to", "none", m.program("zinf-run"),
            plan, "--data", m.text(), "--steps", str(m.options.steps), "--log", log, "--nvme",
            m.dir], measured=True)
    with open(log) as lines:
        rows = [json.loads(line) for line in lines]
    return step_times([row for row in rows if "step" in row]), rows[-1]["summary"]


# name, --set of the one, --set of the other: the ratio is of their step times
OF_RANKS = [("gather", ["prefetch.gather=0"], ["prefetch.gather=2"],
             "the step with allgathers 2 operators ahead"),
            ("synchronous", ["prefetch.gather=2", "collectives=synchronous"],
             ["prefetch.gather=2", "collectives=overlapped"],
             "the step with collectives overlapped"),
            ("owner", ["prefetch.gather=2", "partitioning=owner"],
             ["prefetch.gather=2", "partitioning=bandwidth"], "the step, bandwidth-centric"),
            ("owner, nvme", ["partitioning=owner", *STORED],
             ["partitioning=bandwidth", *STORED], "the step, bandwidth-centric")]


def ranks(m):
    """step of 2 ranks: gathers awaited, collectives synchronous, units owned, each to without"""
    launcher = shutil.which("mpirun.openmpi") or shutil.which("mpirun")
    if not launcher or "zinf-mpi-openmpi.so" not in os.listdir(os.path.join(m.build, "runtime")):
        say("ranks is left out: it needs Open MPI (apt install libopenmpi-dev openmpi-bin)")
        return
    with open(m.cluster()) as file:
        text = file.read()
    text = re.sub(r"(?m)^  (nodes|devices_per_node):.*\n", "", text)
    text = text.replace("cluster:\n", "cluster:\n  nodes: 1\n  devices_per_node: 2\n", 1)
    # a byte is read and written twice on its way through shared memory
    rate = float(re.search(r"bandwidth: ([0-9.]+) GB/s", text)[1]) / 4
    link = "    intra_node: {per_device: %.3g GB/s, latency: 50 us}\n" % rate
    text = text.replace("  links:\n", "  links:\n" + link, 1) if "  links:\n" in text else \
        text + "  links:\n" + link
    cluster = m.file("two-ranks.yaml", text)
    model = m.model("ranks", 256, 8, layers=6, hidden=512, heads=8, vocab=8192)
    same = DEVICE + ["checkpoint_interval=1", "micro_batch=1"]
    known = {}
    for name, one, other, of in OF_RANKS:
        for pins in one, other:
            key = " ".join(pins)
            if key in known:
                continue
            path, told = m.plan(model, cluster, same + pins)
            times, summary = run_of_ranks(m, launcher, path)
            sent = [rank["sent_bytes"] for rank in summary["ranks"]]
            if sum(sent) // 2 != told["ranks"]["sent_bytes_per_step"]:
                raise Failed("%s: ranks sent %s bytes a step, the plan says %d each" %
                             (key, sent, told["ranks"]["sent_bytes_per_step"]))
            known[key] = times, told, sent
        (times, told, sent), (base, base_told, _) = known[" ".join(one)], known[" ".join(other)]
        report(m.options, "ranks/" + name, statistics.median(times) / statistics.median(base),
               "ratio", "%s, %.3f s; predicted %.3f; %s MB sent a step, as planned" %
               (of, statistics.median(base),
                told["predicted"]["step_s"] / base_told["predicted"]["step_s"],
                " and ".join("%.1f" % (n / 1e6) for n in sent)), spread_of(times))


def fio(m, kind, block, depth):
    """bytes/s of fio as zinf's engine does it: direct, one job, the block and depth given"""
    path = os.path.join(m.dir, "fio")
    out = m.call(["fio", "--name=x", "--filename=" + path, "--size=1g", "--direct=1",
                  "--rw=" + kind, "--bs=%d" % block, "--iodepth=%d" % depth, "--runtime=4",
                  "--ioengine=io_uring", "--output-format=json", "--time_based"], measured=True)
    told = json.loads(out.stdout[out.stdout.index("{"):])["jobs"][0]
    return told["write" if "write" in kind else "read"]["bw_bytes"]


def storage(m):
    """the nvme engine's read and write, to fio at the same block and depth"""
    if not shutil.which("fio"):
        say("storage is left out: fio is not installed")
        return
    for kind, ratios in (("read", []), ("write", [])):
        for turn in range(3):
            with open(m.cluster() if turn == 0 else m.probe("cluster-storage.yaml")) as file:
                text = file.read()
            size, unit = re.search(r"block: (\d+) ([KM])iB", text).groups()
            block = int(size) << (10 if unit == "K" else 20)
            depth = int(re.search(r"depth: (\d+)", text)[1])
            mine = 1e9 * float(re.search(r"\b%s: ([\d.]+) GB/s" % kind, text)[1])
            ratios.append(mine / fio(m, kind, block, depth))
        report(m.options, "storage/" + kind, statistics.median(ratios), "ratio",
               "fio, io_uring, at the block and depth that zinf-probe chose (%d KiB x %d)" %
               (block >> 10, depth), spread_of(ratios))


def startup(m):
    """saving and loading a checkpoint, to the storage's rate; and time to the first step"""
    with open(m.cluster()) as file:
        text = file.read()
    rates = {kind: 1e9 * float(re.search(r"\b%s: ([\d.]+) GB/s" % kind, text)[1])
             for kind in ("read", "write")}
    plan, told = m.plan(m.model("gpt2-124m", 512, 4), m.cluster(), DEVICE)
    place = os.path.join(m.dir, "saved")
    state = 12.0 * told["model"]["params"]
    begun, saves, loads = [], [], []
    for _ in range(3):
        shutil.rmtree(place, ignore_errors=True)
        begin = time.monotonic()
        rows, summary = m.run(plan, 1, ["--save", place])
        begun.append(time.monotonic() - begin - rows[0]["step_s"] - summary["save_s"])
        saves.append(state / summary["save_s"] / rates["write"])
        loads.append(state / m.run(plan, 2, ["--resume", place])[1]["begin_s"] / rates["read"])
    report(m.options, "startup", statistics.median(begun), "s", "command to first step, states of "
           "%.0f MB made" % (state / 1e6), spread_of(begun))
    report(m.options, "startup/save", statistics.median(saves), "ratio",
           "%.2f GB/s that storage writes" % (rates["write"] / 1e9), spread_of(saves))
    report(m.options, "startup/load", statistics.median(loads), "ratio",
           "%.2f GB/s that storage reads" % (rates["read"] / 1e9), spread_of(loads))


def plan(m):
    """candidates a second, seconds of planning and bytes of a plan"""
    for name, cluster in (("gpt2-124m", "laptop-cpu"), ("gpt2-xl-1.56b", "desktop-4090"),
                          ("paper-t1-1t", "dgx2-32")):
        begin = time.monotonic()
        path, told = m.plan(os.path.join(ROOT, "models", name + ".yaml"),
                            os.path.join(ROOT, "plans", "clusters", cluster + ".yaml"))
        total = time.monotonic() - begin
        search = told["search"]
        report(m.options, "plan/%s/candidates" % name, search["candidates"] / search["seconds"],
               "1/s", "closed forms and compiled probes, one core")
        report(m.options, "plan/%s/seconds" % name, total, "s", "search, lowering and proof")
        report(m.options, "plan/%s/bytes" % name, os.path.getsize(path), "bytes", "the plan")


def xl(m):
    """three steps of GPT-2 XL, all states on nvme, in 6 GiB: MFU, prediction, resident memory"""
    # so many layers do not bear the 6e-4 of the others: the loss rises in the second step
    path, told = m.plan(m.model("gpt2-xl", 1024, 8, lr="5e-5", layers=48, hidden=1600, heads=25),
                        m.limited("6 GiB"), STORED)
    rows, summary = m.run(path, 3)
    report(m.options, "xl/mfu", statistics.median(row["mfu"] for row in rows), "ratio",
           "the GEMM rate that zinf-probe measured")
    report(m.options, "xl/predict", told["predicted"]["step_s"] /
           statistics.median(step_times(rows)), "ratio", "the measured step")
    for queue, busy in summary["queues"].items():
        if queue in ("read", "write"):
            report(m.options, "xl/" + queue, busy["predicted_s"] / busy["measured_s"], "ratio",
                   "%.1f s measured of a step" % busy["measured_s"])
    report(m.options, "xl/resident", summary["peak_rss_bytes"] / 2**30, "GiB",
           "%.1f GiB of states; loss %.3f to %.3f" %
           (20 * told["model"]["params"] / 2**30, rows[0]["loss"], rows[-1]["loss"]))


ITEMS = {f.__name__: f for f in (step, step_vs_pytorch, predict, offload, overlap, order, ranks,
                                 storage, startup, plan, xl)}


def kernels(build, name, options):
    command = [os.path.join(build, "tools", "zinf-bench"), name]
    command = (["chrt", "-r", "1"] if options.realtime else []) + command
    for key in ("threads", "rounds"):
        if getattr(options, key):
            command += ["--" + key, str(getattr(options, key))]
    if options.json:
        command.append("--json")
    return subprocess.run(command).returncode


def compare(build, names, options):
    """Items of this tree and of another revision in turns, as ratios."""
    base = os.path.join(build, "base")
    tree = os.path.join(base, "tree")
    shutil.rmtree(tree, ignore_errors=True)
    os.makedirs(base, exist_ok=True)
    git = ["git", "-C", ROOT]
    subprocess.run(git + ["worktree", "prune"], check=True)
    made = subprocess.run(git + ["worktree", "add", "--detach", tree, options.compare],
                          capture_output=True, text=True)
    if made.returncode:
        raise Failed("revision \"%s\": %s" % (options.compare, made.stderr.strip()[-200:]))
    values = [{}, {}]
    try:
        for round_ in range(options.turns):
            for which, script in ((0, os.path.join(tree, "tools", "bench")),
                                  (1, os.path.join(ROOT, "tools", "bench"))):
                say("turn %d of %d: %s" % (round_ + 1, options.turns,
                                           "this tree" if which else options.compare))
                out = subprocess.run(
                    [script, *names, "--json"] +
                    (["--rounds", str(options.rounds)] if options.rounds else []),
                    stdout=subprocess.PIPE, text=True)
                if out.returncode:
                    raise Failed("%s failed with exit %d" % (script, out.returncode))
                for line in out.stdout.splitlines():
                    told = json.loads(line)
                    values[which].setdefault(told["name"], []).append(told["value"])
    finally:
        subprocess.run(git + ["worktree", "remove", "--force", tree], capture_output=True)
    for name in values[1]:
        if name in values[0]:
            ratios = [b / a for a, b in zip(values[0][name], values[1][name]) if a]
            report(options, name, statistics.median(ratios), "ratio",
                   "the value at " + options.compare, spread_of(ratios))
        else:
            say("%s: %s does not have it" % (name, options.compare))


def main():
    parser = argparse.ArgumentParser(prog="tools/bench", description="Ratios to bounds measured "
                                     "in the same run; all items if none is named.",
                                     formatter_class=argparse.RawDescriptionHelpFormatter,
                                     epilog="items:\n  %-16s kernels: see zinf-bench --help\n" %
                                     ", ".join(KERNELS) + "".join(
                                         "  %-16s %s\n" % (n, f.__doc__) for n, f in ITEMS.items())
                                     + "\nExit codes: 0 done, 1 does not build, 2 wrong usage, "
                                     "4 the machine.")
    parser.add_argument("build", help=argparse.SUPPRESS)
    parser.add_argument("items", nargs="*", metavar="NAME")
    parser.add_argument("--json", action="store_true", help="one object a line")
    parser.add_argument("--dir", default=None, help="where to put plans, states and what is "
                        "stored (default: TMPDIR)")
    parser.add_argument("--steps", type=int, default=6, help="steps of a measured run (6)")
    parser.add_argument("--threads", type=int, help="of the kernels' items")
    parser.add_argument("--rounds", type=int, help="of the kernels' items")
    parser.add_argument("--realtime", action="store_true", help="measure in a real-time class "
                        "(root), which others on the machine disturb little; set "
                        "/proc/sys/kernel/sched_rr_timeslice_ms to 2 before")
    parser.add_argument("--compare", metavar="REVISION", help="the same items of another "
                        "revision, in turns: this tree's value over its")
    parser.add_argument("--turns", type=int, default=3, help="of --compare (3)")
    options = parser.parse_args()
    unknown = [name for name in options.items if name not in ITEMS and name not in KERNELS]
    if unknown:
        parser.error("no item \"%s\": they are %s" % (unknown[0], ", ".join(KERNELS + list(ITEMS))))
    if options.steps < 3 or options.turns < 1:
        parser.error("--steps is at least 3, --turns at least 1")
    names = options.items or KERNELS + list(ITEMS)
    machine = None
    try:
        if options.compare:
            compare(os.path.abspath(options.build), names, options)
            return 0
        for name in names:
            if name in KERNELS:
                code = kernels(options.build, name, options)
                if code:
                    return code
                continue
            machine = machine or Machine(options.build, options)
            ITEMS[name](machine)
    except (Failed, subprocess.TimeoutExpired, OSError) as error:
        print("tools/bench: %s" % error, file=sys.stderr)
        return 4
    finally:
        if machine:
            shutil.rmtree(machine.dir, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
