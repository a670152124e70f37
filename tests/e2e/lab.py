# tests/e2e/lab.py - what the end-to-end tests share: small models planned and trained through the
# commands, their logs and checkpoints read back, TAP printed. Python 3's own library only.
#
# A test program makes one Lab from its arguments (zinf-plan, zinf-run) and gives main() its test
# functions, each named as a sentence.
import array
import json
import math
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import tap  # noqa: E402

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")

BETA1, BETA2, EPSILON = 0.9, 0.95, 1e-8

MODEL = dict(layers=2, hidden=32, heads=2, vocab=256, context=16, sequence=16, global_batch=8,
             precision="fp32", lr=3e-3, weight_decay=0.1, warmup=2, steps=4, min_lr=3e-4, clip=1.0,
             seed=1337)

MODEL_TEXT = """\
model: {{name: e2e, family: gpt2, layers: {layers}, hidden: {hidden}, heads: {heads},
        vocab: {vocab}, context: {context}, tied_embeddings: true}}
training:
  sequence: {sequence}
  global_batch: {global_batch}
  precision: {precision}
  optimizer: {{type: adamw, lr: {lr}, betas: [0.9, 0.95], eps: 1e-8, weight_decay: {weight_decay}}}
  schedule: {{type: cosine, warmup: {warmup}, steps: {steps}, min_lr: {min_lr}}}
  clip: {clip}
  seed: {seed}
"""

CLUSTER_TEXT = """\
cluster:
  name: e2e
  device: {{kind: cpu, memory: {memory}, peak: {{bf16: 350 GFLOP/s, fp32: 180 GFLOP/s}},
           bandwidth: 25 GB/s}}
  host: {{memory: {memory}, cores: 2, bandwidth: 25 GB/s, adam: 5e8 params/s}}
  nvme: {{paths: [/tmp], capacity: 4 GiB, read: 1 GB/s, write: 1 GB/s, latency: 100 us}}
  links:
    host_device: {{per_device: 8 GB/s, latency: 5 us}}
  unified: {unified}
"""


# ZINF_TEST_SHARE=N: of the variants that are tried one after the other only every N-th, where a
# program is much slower than usual (tools/sanitize).
SHARE = int(os.environ.get("ZINF_TEST_SHARE", "1"))


def some(variants):
    """A share of them that has the first and the last."""
    variants = list(variants)
    return variants if SHARE == 1 else variants[::SHARE] + variants[1:][-1:]


def tiers(param, grad=None, optimizer=None, checkpoint=None):
    return {"tier.param": param, "tier.grad": grad or param, "tier.optimizer": optimizer or param,
            "tier.checkpoint": checkpoint or param}


class Training:
    """One finished run: rows (a dict per step), summary, the commands' output, the checkpoint."""

    def __init__(self, rows, summary, done, saved):
        self.rows, self.summary, self.saved = rows, summary, saved
        self.stdout, self.stderr = done.stdout, done.stderr

    @property
    def losses(self):
        return [row["loss"] for row in self.rows]

    @property
    def bits(self):
        """All that must be equal for two trainings to be the same to the bit."""
        return ([(r["step"], r["loss"], r["lr"], r["grad_norm"], r["grad_norm_clipped"])
                 for r in self.rows], self.summary["params_hash"])

    def state(self, name):
        """Tensors of the last checkpoint: "master", "m" or "v"."""
        with open(os.path.join(self.saved, "latest"), encoding="ascii") as file:
            step = file.read().strip()
        return read_safetensors(os.path.join(self.saved, step, name + ".safetensors"))

    def gradients(self):
        """Of a run of one step: m is then (1 - beta1) * clip factor * gradient."""
        assert [row["step"] for row in self.rows] == [1]
        scale = (1 - BETA1) * self.rows[0]["grad_norm_clipped"] / self.rows[0]["grad_norm"]
        return {name: [value / scale for value in values]
                for name, values in self.state("m").items()}


class Lab:
    def __init__(self, plan, run):
        self.plan_command, self.run_command = plan, run
        self.folder = tempfile.mkdtemp(prefix="zinf-e2e-")
        self.n = 0
        self.known = {}
        self.text = self.file("text", self.prose(4000).encode())

    def sanitized(self):
        with open(self.run_command, "rb") as file:
            program = file.read()
        return b"__asan_init" in program or b"__tsan_init" in program

    def close(self):
        shutil.rmtree(self.folder)

    def path(self, name):
        self.n += 1
        return os.path.join(self.folder, f"{self.n}-{name}")

    def file(self, name, data):
        path = self.path(name)
        with open(path, "wb") as out:
            out.write(data)
        return path

    @staticmethod
    def prose(n):
        words = "the of and to in that was his he it with is for as had you not be her".split()
        draw = random.Random(7)
        text = ""
        while len(text) < n:
            text += draw.choice(words) + (" " if draw.random() < 0.9 else ".\n")
        return text[:n]

    def model(self, **changes):
        unknown = changes.keys() - MODEL.keys()
        assert not unknown, unknown
        return self.file("model.yaml", MODEL_TEXT.format(**{**MODEL, **changes}).encode())

    def call(self, *words, code=0, env=None):
        """code: the exit code that is right, or several."""
        # Passive: threads that spin while they wait starve each other where many tests run.
        done = subprocess.run(words, capture_output=True, text=True, errors="replace",
                              stdin=subprocess.DEVNULL,
                              env={"OMP_WAIT_POLICY": "passive", **os.environ, **(env or {})})
        assert done.returncode in (code if isinstance(code, tuple) else (code,)), \
            f"{' '.join(words)}: exit {done.returncode}, not {code}\n{done.stderr[-2000:]}"
        return done

    def plan(self, model, settings=None, unified=False, memory="1 GiB", code=0, options=()):
        """Compiles; the plan's path. model: a path, or changes of MODEL as a dict."""
        if isinstance(model, dict):
            model = self.model(**model)
        cluster = self.file("cluster.yaml", CLUSTER_TEXT.format(
            unified=str(unified).lower(), memory=memory).encode())
        path = self.path("plan")
        words = [w for k, v in (settings or {}).items() for w in ("--set", f"{k}={v}")]
        self.planned = self.call(self.plan_command, model, cluster, "-o", path, *words, *options,
                                 code=code)
        return path

    def run(self, plan, *options, data=None, save=False, env=None, code=0):
        """Trains; save: True, or the folder of the checkpoints."""
        log, saved = self.path("log"), self.path("saved") if save is True else save
        disk = self.path("disk")
        os.mkdir(disk)
        words = [self.run_command, plan, "--data", data or self.text, "--nvme", disk, "--log", log,
                 *(["--save", saved] if saved else []), *options]
        done = self.call(*words, code=code, env=env)
        assert not os.listdir(disk), f"left behind in the nvme directory: {os.listdir(disk)}"
        if done.returncode:
            return done
        with open(log, encoding="utf-8") as file:
            lines = [json.loads(line) for line in file]
        return Training(lines[:-1], lines[-1]["summary"], done, saved)

    def train(self, model=None, settings=None, *options, unified=False, data=None, env=None,
              save=False):
        """Plans and runs; the same request is trained once."""
        key = json.dumps([model, settings, options, unified, data, env, save], sort_keys=True)
        if key not in self.known:
            plan = self.plan(model or {}, settings, unified)
            self.known[key] = self.run(plan, *options, data=data, env=env, save=save)
        return self.known[key]


def read_safetensors(path):
    with open(path, "rb") as file:
        data = file.read()
    n = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + n])
    header.pop("__metadata__", None)
    return {name: array.array("f", data[8 + n + row["data_offsets"][0]:
                                        8 + n + row["data_offsets"][1]])
            for name, row in header.items()}


# ---- what is done to a command while it runs ----

def wait_for(condition, process):
    """Until that is so; a failure if the command ends before, or after a minute."""
    deadline = time.monotonic() + 60
    while not condition():
        assert process.poll() is None or condition(), \
            f"{' '.join(process.args)}: ended by itself, exit {process.returncode}"
        assert time.monotonic() < deadline, "not within a minute"
        time.sleep(0.0005)


def stand_still(condition, process):
    """Stops the command while that is so, for what takes more than one step: it changes nothing
    until SIGCONT."""
    while True:
        wait_for(condition, process)
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        if condition():
            return
        process.send_signal(signal.SIGCONT)


def norm(values):
    return math.sqrt(math.fsum(v * v for v in values))


# Unit roundoff: the largest relative error of one rounding to nearest, 2^-p for p bits with the
# hidden one: 24 in fp32, 8 in bf16.
UNIT = {"fp32": 2.0**-24, "bf16": 2.0**-8}


def gradient_bound(precision, layers, longest=256):
    """How far a gradient tensor may be from another computation of it, relative to its norm.

    fp32: it is reached through 4 linears a block and the classifier, forward and backward; each
    sums up to `longest` products, whose roundings add up like a random walk: sqrt(256) = 16
    units; the linears' errors are independent too. bf16: sums are fp32, but the result of each
    of the about 8 operators a block is rounded once, forward and backward, and so is each
    weight: 17 a block and 4 beside them. A rounding's standard deviation is half a unit or less;
    4 of them here.
    """
    if precision == "fp32":
        return math.sqrt(longest) * math.sqrt(2 * (4 * layers + 1)) * UNIT["fp32"]
    return 4 * 0.5 * math.sqrt(17 * layers + 4) * UNIT["bf16"]


def loss_bound(rows, precision, layers, tokens):
    """Between two runs whose gradients differ by gradient_bound d, after the steps of `rows`.

    Adam moves weight i by at most about 2 lr e_i / |g_i| more or less if its gradient is off by
    e_i; this changes the loss by g_i times that, 2 lr e_i. The signs of e_i are independent, so
    the sum over all weights is about 2 lr |e| <= 2 lr d |g|, here for the sum of the rates lr.
    The evaluation itself: in bf16 each run has noise of its own, from 8 roundings a block and 4
    beside them in a token's logits, which spread by less than 1/4 at these weights; the mean
    over the tokens of a step has sqrt(tokens) less of it; four standard deviations. In fp32 a loss
    near 5.5 has about 8 units of it.
    """
    rates = sum(row["lr"] for row in rows[:-1])
    size = max(row["grad_norm"] for row in rows)
    noise = 8 * 5.5 * UNIT["fp32"]
    if precision == "bf16":
        roundings = 2 * (8 * layers + 4)  # of two runs
        noise = 4 * math.sqrt(roundings / tokens) * 0.5 * UNIT["bf16"] * 0.25 * math.sqrt(2)
    return noise + 2 * rates * gradient_bound(precision, layers) * size


def flip_bound(layers):
    """What another order of the sums in fp32 makes of bf16 gradients, rounded at the same places.

    A sum that differs by some fp32 units (16) is rounded to the other side, by two units (2^-7,
    the distance of neighbours), with a chance of 16 * 2^-24 over 2^-7. The square root of it remains of gradient_bound, which is for
    each result being rounded anew. Only for the same kernels summing in other
    pieces, where flips are few; between different kernels they cascade: gradient_bound.
    """
    return 2 * math.sqrt(16 * 2.0**-24 / 2.0**-7) * gradient_bound("bf16", layers)


def gradients_near(found, expected, bound):
    """Every tensor, all of it: the norm of its difference relative to its norm."""
    assert found.keys() == expected.keys(), found.keys() ^ expected.keys()
    worst = 0.0
    for name, values in expected.items():
        assert len(found[name]) == len(values), name
        size = norm(values)
        off = norm([a - b for a, b in zip(found[name], values)])
        assert off <= bound * size, f"{name}: off by {off / (size or 1e-300):.3g} of its norm " \
            f"{size:.3g}, allowed {bound:.3g}"
        worst = max(worst, off / size if size else 0)
    print(f"# gradients: the worst tensor is off by {worst:.2g} of its norm, allowed {bound:.2g}")


def near(found, expected, bound, what):
    """Fails on NaN too."""
    assert abs(found - expected) <= bound, f"{what}: {found}, expected {expected} +- {bound:.3g}"


def same(one, other, what):
    """The same training to the bit; else says where they part."""
    for a, b in zip(one.bits[0], other.bits[0]):
        assert a == b, f"{what}: (step, loss, lr, norm, clipped) {a}, expected {b}"
    assert one.bits == other.bits, f"{what}: weights {one.bits[1]}, expected {other.bits[1]}"


def main(lab, tests):
    code = tap.run(tests)
    lab.close()
    sys.exit(code)
