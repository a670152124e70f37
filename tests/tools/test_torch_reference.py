# tests/tools/test_torch_reference.py - the stored reference is what tools/torch_reference.py gives.
# Prints TAP; what needs PyTorch is skipped without it.
import json
import math
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import tap  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
TOOL = os.path.join(HERE, "..", "..", "tools", "torch_reference.py")
STORED = os.path.join(HERE, "..", "runtime", "reference", "gpt2_f64.json")



def python_with_torch():
    for python in (sys.executable, "/usr/bin/python3"):
        done = subprocess.run([python, "-c", "import torch"], capture_output=True)
        if done.returncode == 0:
            return python
    raise tap.Skip("PyTorch is not installed (Debian: python3-torch)")


def stored():
    with open(STORED, encoding="ascii") as file:
        return json.load(file)


def close(a, b):
    """Equal up to the order in which another PyTorch sums: 1e-9 of doubles' 1e-16."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(close(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(close(x, y) for x, y in zip(a, b))
    if isinstance(a, float):
        return abs(a - b) <= 1e-9 * (1 + abs(b))
    return a == b


def the_stored_numbers_are_what_pytorch_gives():
    done = subprocess.run([python_with_torch(), TOOL, "losses"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    new, old = json.loads(done.stdout), stored()
    for row in new["steps"] + old["steps"]:  # single precision differs between machines
        row["loss_f32"] = row["grad_norm_f32"] = None
    for name in ("config", "steps", "loss_after", "gradients_of_step_1", "final_parameters"):
        assert close(new[name], old[name]), name


def the_stored_llamas_are_what_pytorch_gives():
    tool = os.path.join(os.path.dirname(TOOL), "torch_llama.py")
    done = subprocess.run([python_with_torch(), tool, "losses"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with open(os.path.join(os.path.dirname(STORED), "llama_f64.json"), encoding="ascii") as file:
        new, old = json.loads(done.stdout), json.load(file)
    assert new.keys() == old.keys()
    for variant in old.keys() - {"about"}:
        for row in new[variant]["steps"] + old[variant]["steps"]:
            row["loss_f32"] = row["grad_norm_f32"] = None
        assert close(new[variant], old[variant]), variant
        assert all(g["norm"] > 1e-5 for g in old[variant]["gradients_of_step_1"].values())


def the_reference_learns_and_clips_some_steps():
    steps = stored()["steps"]
    assert steps[-1]["loss"] < steps[0]["loss"] - 1, steps
    clipped = [row["grad_norm"] > row["grad_norm_clipped"] * (1 + 1e-9) for row in steps]
    assert any(clipped) and not all(clipped), clipped


def every_gradient_is_there_and_none_is_zero():
    gradients = stored()["gradients_of_step_1"]
    assert len(gradients) == 2 + 12 * stored()["config"]["layers"] + 2
    for name, value in gradients.items():
        assert value["norm"] > 1e-5, (name, value["norm"])


def the_inputs_are_the_same_bytes_every_time():
    def inputs():
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([sys.executable, TOOL, "inputs", folder], check=True)
            files = {}
            for at, _, names in os.walk(folder):
                for name in names:
                    path = os.path.join(at, name)
                    with open(path, "rb") as file:
                        files[os.path.relpath(path, folder)] = file.read()
            return files
    first = inputs()
    assert first == inputs()
    assert len(first["train.txt"]) == 4 * 32 + 1
    assert len(first) == 7, sorted(first)
    params = json.loads(first["checkpoint/step-0/manifest.json"])["model"]["n_params"]
    with_head = 256 * 48 + 32 * 48 + 3 * (12 * 48 * 48 + 13 * 48) + 2 * 48
    assert params == with_head, params
    assert math.isclose(len(first["checkpoint/step-0/master.safetensors"]), 4 * params,
                        rel_tol=0.05)


sys.exit(tap.run([the_stored_numbers_are_what_pytorch_gives,
                  the_stored_llamas_are_what_pytorch_gives,
                  the_reference_learns_and_clips_some_steps,
                  every_gradient_is_there_and_none_is_zero, the_inputs_are_the_same_bytes_every_time]))
