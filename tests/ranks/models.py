# tests/ranks/models.py - a Hugging Face directory loaded, evaluated and exported by several ranks,
# each reading and writing its own part of each tensor. argv: zinf-plan, zinf-run, fail_export.so
# (none: what needs it is skipped).
import atexit
import json
import os
import shutil
import signal
import struct
import subprocess
import sys

import crew as base
import tap
from crew import Crew, lib

sys.path.insert(0, os.path.join(lib.ROOT, "tests", "e2e"))
import huggingface  # noqa: E402

crew = Crew(*sys.argv[1:3])
FAIL_EXPORT = os.path.abspath(sys.argv[3]) if len(sys.argv) > 3 else None
atexit.register(huggingface.lab.close)
RANK = "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}"
SETS = {"training.precision": "fp32", "training.global_batch": 6, "training.sequence": 16,
        "training.schedule.steps": 10, "model.name": "model"}


def plan(ranks, folder, **settings):
    return crew.plan_for(ranks, folder, {**SETS, **settings})


def weights_and_losses_are_those_of_one_rank():
    for model in huggingface.MODELS:
        folder, saved, runs, loaded = huggingface.write_model(model, 3), {}, {}, {}
        for ranks in 1, 2, 3:
            path = plan(ranks, folder, **lib.tiers("nvme" if ranks == 2 else "host"))
            loaded[ranks] = crew.sail(ranks, path, "--init", folder, "--steps",
                                      "0").summary["params_hash"]
            saved[ranks] = crew.path("saved")
            runs[ranks] = crew.sail(ranks, path, "--init", folder, "--steps", "3",
                                    save=saved[ranks])
        for ranks in 2, 3:
            assert loaded[ranks] == loaded[1], (model, ranks)
            for row, other in zip(runs[ranks].rows, runs[1].rows):
                lib.near(row["loss"], other["loss"], 2e-6, f"{model}, {ranks} ranks, loss")
        # what three ranks trained and hand back is what one loads
        out = crew.path("out")
        done = crew.sail(3, path, "--resume", saved[3], "--steps", "3", "--export", out)
        again = crew.sail(1, plan(1, out), "--init", out, "--steps", "0")
        assert again.summary["params_hash"] == done.summary["params_hash"]


def files_of(folder):
    found = {}
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name), "rb") as file:
            found[name] = file.read()
    return found


def an_export_of_three_ranks_is_that_of_one_byte_for_byte():
    for model in "gpt2", "untied":
        for precision in "fp32", "bf16":
            folder, saved, out = huggingface.write_model(model), crew.path("saved"), {}
            place = {"training.precision": precision, **lib.tiers("nvme"), "tiles": 2}
            three = plan(3, folder, **place)
            direct = crew.path("direct")
            crew.sail(3, three, "--init", folder, "--steps", "2", "--export", direct, save=saved)
            for dtype in "fp32", "bf16":
                for ranks, path in (3, three), (1, plan(1, folder)):
                    out[ranks] = crew.path("out")
                    crew.sail(ranks, path, "--resume", saved, "--steps", "2", "--export",
                              out[ranks], "--export-dtype", dtype, "--export-shard",
                              "20000" if dtype == "bf16" else "1000000000")
                one, many = files_of(out[1]), files_of(out[3])
                assert list(one) == list(many), (list(one), list(many))
                for name, data in one.items():
                    assert many[name] == data, (model, precision, dtype, name)
                if dtype == "fp32":
                    stored = huggingface.stored_tensors(direct)
                    assert stored == huggingface.stored_tensors(out[1]), (model, precision)
                    first = huggingface.tensors_of(model) # it was trained
                    assert all(data != first[name][1] for name, (_, _, data) in stored.items())


def ten_elements_of_three_ranks_are_exported_without_padding():
    model = crew.model(layers=1, hidden=10, heads=1)
    for part in "bandwidth", "owner":
        out, saved = {}, crew.path("saved")
        for ranks in 3, 1:
            place = {**lib.tiers("nvme"), **({"partitioning": part} if ranks > 1 else {}),
                     "training.global_batch": 6}
            out[ranks] = crew.path("out")
            crew.sail(ranks, crew.plan_for(ranks, model, place), "--steps", "0", "--export",
                      out[ranks], **({"save": saved} if ranks == 3 else {}))
        assert files_of(out[3]) == files_of(out[1]), part
        exported = huggingface.stored_tensors(out[3])
        dtype, shape, data = exported["transformer.h.0.ln_1.weight"]
        assert (dtype, shape, data) == ("F32", (10,), 10 * struct.pack("<f", 1)), (shape, data)
        for name, values in lib.read_safetensors(
                os.path.join(saved, "step-0", "master.safetensors")).items():
            assert 4 * len(values) == len(exported[name][2]), name


def load_and_export_on_several_ranks_gives_the_same_bytes():
    for model in huggingface.MODELS:
        folder = huggingface.write_model(model, 2)
        expected = {name: ("F32", shape, data)
                    for name, (shape, data) in huggingface.tensors_of(model).items()}
        many = plan(4, folder, tiles=3, **{"training.global_batch": 8})
        owners = plan(3, folder, partitioning="owner", **lib.tiers("nvme"))
        for ranks, path, launcher in ((4, many, crew.launcher), (3, owners, crew.launcher),
                                      *((2, plan(2, folder), name) for name in crew.launchers)):
            out = crew.path("out")
            crew.sail(ranks, path, "--init", folder, "--steps", "0", "--export", out,
                      launcher=launcher)
            assert huggingface.stored_tensors(out) == expected, (model, ranks)
            with open(os.path.join(out, "config.json"), encoding="utf-8") as config:
                assert json.load(config) == {**huggingface.config_of(model),
                                             "torch_dtype": "float32"}


def each_tensors_own_dtype_is_kept_on_several_ranks():
    for model, dtype in ("gpt2", "F16"), ("untied", "BF16"):
        folder, out = huggingface.write_model(model, 2, dtype=dtype), crew.path("out")
        crew.sail(3, plan(3, folder, tiles=2), "--init", folder, "--steps", "0", "--export", out,
                  "--export-dtype", "source", "--export-shard", "20000")
        assert huggingface.stored_tensors(out) == huggingface.stored_tensors(folder), model


def a_weight_that_one_rank_cannot_export_leaves_the_checkpoint_of_all():
    folder, out, saved = huggingface.write_model("untied"), crew.path("out"), crew.path("saved")
    name = "model.layers.1.mlp.down_proj.weight"
    huggingface.overwrite(folder, name, -1, 70000.0)
    path = plan(3, folder)
    done = crew.sail(3, path, "--init", folder, "--steps", "0", "--export", out, "--export-dtype",
                     "fp16", save=saved, code=2)
    n = len(huggingface.tensors_of("untied")[name][1]) // 4
    assert f"element {n - 1} of \"{name}\" is 70000" in done.stderr, done.stderr
    assert not os.path.exists(out) and not os.path.exists(out + ".zinf-writing")
    crew.sail(3, path, "--resume", saved, "--steps", "0", "--export", out)
    assert huggingface.stored_tensors(out) == huggingface.stored_tensors(folder)


def what_one_rank_finds_in_its_own_weights_is_all_ranks_code():
    folder = huggingface.write_model("untied")
    huggingface.overwrite(folder, "model.layers.1.mlp.down_proj.weight", -1, float("nan"))
    for part in "owner", "bandwidth":
        path = plan(2, folder, partitioning=part)
        for launcher in crew.launchers:
            # MPICH's launcher may kill a rank that is about to end and give that signal's number
            codes = (2,) if launcher != "mpich" else (2, 9)
            done = subprocess.run([*crew.words(2, launcher), crew.run_command, path, "--data",
                                   crew.text, "--init", folder, "--steps", "0"],
                                  capture_output=True, text=True, check=False, timeout=120,
                                  stdin=subprocess.DEVNULL, errors="replace",
                                  env={**base.ENVIRONMENT, **os.environ})
            assert done.returncode in codes, (part, launcher, done.returncode, done.stderr)
            assert "is nan: the model is damaged" in done.stderr, done.stderr


def failing(rank, at, kill=False):
    return {"LD_PRELOAD": FAIL_EXPORT, "ZINF_FAIL_RANK": str(rank), "ZINF_FAIL_AT": str(at),
            **({"ZINF_FAIL_KILL": "1"} if kill else {})}


def an_export_that_fails_on_one_rank_leaves_nothing():
    if not FAIL_EXPORT:
        raise tap.Skip("a sanitizer does not let itself be preceded")
    folder = huggingface.write_model("gpt2")
    path, place = plan(3, folder), crew.path("place")
    os.mkdir(place)
    out = os.path.join(place, "out")
    words = "--init", folder, "--steps", "0", "--export", out
    # of rank 0 the first two write headers: when the export is tried, and when it is begun
    for rank, at in (0, 1), (0, 2), (1, 0), (2, 3):
        done = crew.sail(3, path, *words, code=4, env=failing(rank, at))
        said = [line for line in done.stderr.splitlines() if line.startswith("zinf-run: ")]
        assert "failed here" in done.stderr and said, done.stderr
        assert all("No space left" in line for line in said), said
        # rank 0 has no name where all know of the failure and it alone speaks
        assert all(f"rank {rank}" in line for line in said) or (rank, len(said)) == (0, 1), said
        assert not os.listdir(place), os.listdir(place)
    # killed: nothing that looks like an export, and nothing in the way of the next
    done = subprocess.run([*crew.words(3), crew.run_command, path, *words], capture_output=True,
                          text=True, errors="replace", check=False, timeout=60,
                          env={**base.ENVIRONMENT, **os.environ, **failing(2, 3, True)})
    assert done.returncode and "failed here" in done.stderr, done.stderr
    assert not os.path.exists(out), os.listdir(place)
    crew.sail(3, path, *words)
    assert os.listdir(place) == ["out"], os.listdir(place)


def an_export_that_not_every_rank_sees_is_refused_before_the_training():
    folder, here = huggingface.write_model("gpt2"), crew.path("here")
    there = here + "-too"
    os.mkdir(here)
    os.mkdir(there)
    path = plan(2, folder)
    script = crew.file("elsewhere", f"""#!/bin/bash
cd {here}
if [ "{RANK}" = 1 ]; then cd {there}; fi
exec {os.path.abspath(crew.run_command)} "$@"
""".encode())
    os.chmod(script, 0o755)
    whole = [path, "--data", crew.text, "--init", folder]
    done = crew.call(*crew.words(2), script, *whole, "--export", "out", code=2,
                     env=base.ENVIRONMENT)
    assert "rank 1: export: \"out.zinf-writing\", which rank 0 has made" in done.stderr
    assert done.stderr.count("zinf-run: ") == 1 and "step 1/" not in done.stderr, done.stderr
    assert not os.listdir(here) and not os.listdir(there)
    # what an export of the same model left there when it was killed is not mistaken for this one
    killed = crew.path("killed")
    crew.call(*crew.words(2), crew.run_command, *whole, "--steps", "0", "--export", killed,
              env=base.ENVIRONMENT)
    os.rename(killed, os.path.join(there, "out.zinf-writing"))
    done = crew.call(*crew.words(2), script, *whole, "--export", "out", code=2,
                     env=base.ENVIRONMENT)
    assert "rank 1 has another directory of --export than rank 0" in done.stderr, done.stderr
    shutil.rmtree(os.path.join(there, "out.zinf-writing"))
    # nor do ranks save in two directories
    done = crew.call(*crew.words(2), script, *whole, "--save", ".", code=2, env=base.ENVIRONMENT)
    assert "rank 1: checkpoint: \".zinf-lock\" in \".\", which rank 0 has made" in done.stderr
    with open(os.path.join(there, ".zinf-lock"), "w", encoding="ascii") as file:
        file.write("1\n")
    done = crew.call(*crew.words(2), script, *whole, "--save", ".", code=2, env=base.ENVIRONMENT)
    assert "rank 1 has another directory of --save than rank 0" in done.stderr, done.stderr
    assert "step 1/" not in done.stderr and not os.listdir(here)


def ranks_of_one_machine_need_memory_for_each_before_a_model_is_read():
    if not FAIL_EXPORT:
        raise tap.Skip("a sanitizer and a preloaded library")
    folder, out = huggingface.write_model("untied"), crew.path("out")
    words = [plan(2, folder), "--init", folder, "--export", out, "--steps", "0"]
    told = {"LD_PRELOAD": FAIL_EXPORT, "ZINF_MEMINFO": crew.file("meminfo", b"MemAvailable: 1 kB")}
    text = crew.sail(2, *words, code=3, env=told).stderr
    need = int(text.split("the plan needs ")[1].split()[0])
    told["ZINF_MEMINFO"] = crew.file("half", b"MemAvailable: %d kB" % (need * 3 // 2 // 1024))
    text = crew.sail(2, *words, code=3, env=told).stderr
    assert f"{need} bytes of memory for each of 2 ranks on this machine" in text, text
    assert not os.path.exists(out)
    told["ZINF_MEMINFO"] = crew.file("both", b"MemAvailable: %d kB" % (need * 2 // 1024 + 1))
    crew.sail(2, *words, env=told)


def evaluation(ranks, path, folder, text):
    done = crew.sail(ranks, path, "--init", folder, "--eval", text)
    assert len(done.rows) == 1 and done.stdout.count("perplexity") == 1, done.stdout
    return done.rows[0]["eval"]


def an_evaluation_takes_every_token_once_and_is_that_of_one_rank():
    # 21 windows, of which 2, 3 and 4 ranks take no equal shares; then fewer windows than ranks
    texts = {n: crew.file("eval", crew.prose(n + 1).encode()) for n in (20 * 16 + 7, 16 + 3)}
    for model, precision in ("gpt2", "fp32"), ("untied", "bf16"):
        folder = huggingface.write_model(model)
        pins = {"training.precision": precision, "training.global_batch": 24, "tiles": 1}
        for micro in 1, 2:
            paths = {ranks: plan(ranks, folder, micro_batch=micro, **pins,
                                 **lib.tiers("nvme" if ranks == 2 else "device"))
                     for ranks in (1, 2, 3, 4)}
            for n, text in texts.items():
                expected = evaluation(1, paths[1], folder, text)
                assert expected["tokens"] == n
                for ranks in (2, 3, 4) if micro == 1 else (3,):
                    # a window's loss is computed from the same bits by the same instructions, and
                    # losses are added in file order: no bit may differ
                    found = evaluation(ranks, paths[ranks], folder, text)
                    assert found == expected, (model, micro, n, ranks, found, expected)


def an_evaluation_that_one_rank_is_told_to_end_ends_on_all():
    folder = huggingface.write_model("gpt2")
    path = plan(2, folder, micro_batch=1)
    text = crew.file("eval", (1600 * crew.prose(1000)).encode())
    out, number, errors = crew.path("out"), crew.path("pid"), crew.path("stderr")
    script = crew.file("known", f"""#!/bin/bash
if [ "{RANK}" = 1 ]; then echo $$ > {number}; fi
exec {crew.run_command} "$@"
""".encode())
    os.chmod(script, 0o755)
    with open(errors, "wb") as file:
        run = subprocess.Popen([*crew.words(2), script, path, "--init", folder, "--export", out,
                                "--eval", text], stdin=subprocess.DEVNULL, stdout=file,
                               stderr=file, env={**base.ENVIRONMENT, **os.environ})

    def said(words):
        with open(errors, encoding="utf-8", errors="replace") as file:
            return words in file.read()

    lib.wait_for(lambda: said("exported the model"), run) # what comes before it
    with open(number, encoding="ascii") as file:
        os.kill(int(file.read()), signal.SIGTERM)
    assert run.wait(60) == 0, run.returncode
    assert said("evaluation stopped after ") and said(" of 100000 sequences")


lib.main(crew, [weights_and_losses_are_those_of_one_rank,
                an_export_of_three_ranks_is_that_of_one_byte_for_byte,
                ten_elements_of_three_ranks_are_exported_without_padding,
                load_and_export_on_several_ranks_gives_the_same_bytes,
                each_tensors_own_dtype_is_kept_on_several_ranks,
                a_weight_that_one_rank_cannot_export_leaves_the_checkpoint_of_all,
                what_one_rank_finds_in_its_own_weights_is_all_ranks_code,
                an_export_that_fails_on_one_rank_leaves_nothing,
                ranks_of_one_machine_need_memory_for_each_before_a_model_is_read,
                an_export_that_not_every_rank_sees_is_refused_before_the_training,
                an_evaluation_takes_every_token_once_and_is_that_of_one_rank,
                an_evaluation_that_one_rank_is_told_to_end_ends_on_all])
