# tests/ranks/refusals.py - what cannot be a run of several ranks is said in one sentence, by one
# rank, before anything is trained. argv: zinf-plan, zinf-run.
import json
import os
import shutil
import sys
import time

import crew as base
import tap
from lab import main, tiers

sys.path.insert(0, os.path.join(base.HERE, "..", "safety"))
from stored import Stored  # noqa: E402

crew = base.Crew(*sys.argv[1:3])
MODEL = dict(layers=1, steps=3)
PLAIN = {**tiers("device"), "micro_batch": 1, "tiles": 1, "checkpoint_interval": 1}
RANK = "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}"


def plan(ranks, **changes):
    return crew.plan_for(ranks, {**MODEL, **changes}, PLAIN)


def sentence(done):
    """The one line of ours; mpirun adds its own."""
    lines = [line for line in done.stderr.splitlines() if line.startswith("zinf-run: ")]
    assert len(lines) == 1, done.stderr
    return lines[0]


def refused(ranks, path, *options, code=2):
    return sentence(crew.sail(ranks, path, *options, code=code))


def differing(one, other):
    """A command that is `other` on rank 1 and `one` elsewhere."""
    script = crew.file("differing", f"""#!/bin/bash
if [ "{RANK}" = 1 ]; then exec {other}; fi
exec {one}
""".encode())
    os.chmod(script, 0o755)
    return script


def two(one, other, code=2, name=None):
    command = differing(f"{crew.run_command} {one}", f"{crew.run_command} {other}")
    return crew.call(*crew.words(2, name), command, code=code, env=base.ENVIRONMENT)


def a_plan_for_ranks_is_not_run_by_one_process():
    text = refused(1, plan(2))
    assert "is for 2 ranks" in text and "mpirun -n 2 zinf-run" in text, text


def another_number_of_ranks_is_refused_by_each_launcher():
    for name in crew.launchers or [None]:
        done = crew.sail(2, plan(1), launcher=name, code=2)
        assert "is for 1 rank, 2 were started; start it without mpirun" in sentence(done)
        text = sentence(crew.sail(3, plan(2), launcher=name, code=2))
        assert "is for 2 ranks, 3 were started; give mpirun that number" in text, text


def ranks_with_another_plan_data_or_options_are_named():
    data, other = crew.text, crew.file("other", crew.prose(5000).encode())
    same_size = crew.file("same-size", open(data, "rb").read()[:-1] + b"#")
    text = open(data, "rb").read()
    middle = crew.file("middle", text[:1999] + b"#" + text[2000:])  # whose ends are equal
    first, second = plan(2), plan(2, seed=7)
    cases = {
        f"{second} --data {data}": "another plan than rank 0",
        f"{first} --data {other}": "another --data than rank 0",
        f"{first} --data {same_size}": "another --data than rank 0",
        f"{first} --data {middle}": "another --data than rank 0: the bytes differ",
        f"{first} --data {data} --steps 2": "another --steps than rank 0 (2, 3)",
        f"{first} --data {data} --save {crew.path('saved')}": "another --save than rank 0",
        f"{first} --data {data} --export {crew.path('out')}": "another --export than rank 0",
        f"{first} --data {data} --eval {data}": "another --eval than rank 0",
    }
    for number, name in enumerate(crew.launchers or [None]):
        for arguments, text in list(cases.items())[:1 if number else None]:
            done = two(f"{first} --data {data}", arguments, name=name)
            assert "rank 1 has " + text in sentence(done), done.stderr
    for option, one, another, how in ("--val", data, middle, ": the bytes differ"), \
            ("--eval", data, middle, ": the bytes differ"), \
            ("--sample 2 --prompt 1 --temperature", 0.5, 0.75, ""):
        done = two(f"{first} --data {data} {option} {one}",
                   f"{first} --data {data} {option} {another}")
        assert f"rank 1 has another {option.split()[-1]} than rank 0{how}" in sentence(done), \
            done.stderr
    # one file under two names, of which one says that these are tokens of two bytes
    pairs = crew.file("pairs", bytes(4000))
    os.link(pairs, pairs + ".bin")
    done = two(f"{first} --data {pairs}", f"{first} --data {pairs}.bin")
    assert "another --data than rank 0: names, sizes or formats" in sentence(done), done.stderr


def help_is_for_all_ranks_or_for_none():
    good = f"{plan(2)} --data {crew.text}"
    for number, name in enumerate(crew.launchers or [None]):
        done = crew.call(*crew.words(2, name), crew.run_command, "--help", env=base.ENVIRONMENT)
        assert done.stdout.count("usage: ") == 1 and "zinf-run: " not in done.stderr, done
        for one, other in ((good, "--help"), ("--help", good))[:1 if number else 2]:
            assert "another --help than rank 0" in sentence(two(one, other, name=name))
    for option in "--log", "--trace":
        done = two(good, f"{good} {option} {crew.path('written')}")
        assert f"rank 1 has another {option} than rank 0" in sentence(done), done.stderr


def ranks_that_compute_by_other_instructions_are_told():
    good = f"{crew.run_command} {plan(2)} --data {crew.text} --steps 1"
    for level in "ref", "amy":
        done = crew.call(*crew.words(2), differing(f"env ZINF_CPU_LEVEL=avx2 {good}",
                                                   f"env ZINF_CPU_LEVEL={level} {good}"),
                         code=2, env=base.ENVIRONMENT)
        words = "rank 1 has another set of instructions" if level == "ref" else \
            'rank 1: ZINF_CPU_LEVEL="amy" is none of ref, avx2, avx512, avx512_bf16, amx'
        assert words in sentence(done), done.stderr


def a_rank_that_cannot_join_ends_those_who_wait_for_it():
    good = f"{plan(2)} --data {crew.text}"
    for name in crew.launchers or [None]:
        script = crew.file("unjoined", f"""#!/bin/bash
if [ "{RANK}" = 1 ]; then export ZINF_JOIN_SECONDS=soon; fi
exec {crew.run_command} {good}
""".encode())
        os.chmod(script, 0o755)
        began = time.monotonic()
        done = crew.call(*crew.words(2, name), script, code=2, env=base.ENVIRONMENT)
        assert 'rank 1: ZINF_JOIN_SECONDS="soon" is no number' in sentence(done), done.stderr
        assert time.monotonic() - began < 90, name # 120 without a word to MPICH's launcher


def what_one_rank_cannot_do_ends_all_with_its_words():
    good = f"{plan(2)} --data {crew.text}"
    done = two(good, f"{plan(2)} --data /nowhere/at-all")
    assert "zinf-run: rank 1: data: cannot open \"/nowhere/at-all\"" in sentence(done)
    path = crew.plan_for(2, MODEL, {**PLAIN, **tiers("nvme")})
    done = two(f"{path} --data {crew.text} --nvme {crew.folder}",
               f"{path} --data {crew.text} --nvme /nowhere")
    assert "zinf-run: rank 1: --nvme \"/nowhere\"" in sentence(done), done.stderr


def a_checkpoint_that_not_every_rank_has_is_refused():
    saved, path = crew.path("saved"), plan(2)
    crew.sail(2, path, "--steps", "1", save=saved)
    done = two(f"{path} --data {crew.text} --resume {saved}",
               f"{path} --data {crew.text} --resume {saved}-elsewhere")
    assert "rank 1: checkpoint: directory" in sentence(done), done.stderr
    done = two(f"{path} --data {crew.text} --resume {saved}", f"{path} --data {crew.text}")
    assert "another --resume than rank 0" in sentence(done), done.stderr
    other = crew.path("other-saved")
    crew.sail(2, plan(2, seed=7), "--steps", "1", save=other)
    done = two(f"{path} --data {crew.text} --resume {saved}",
               f"{path} --data {crew.text} --resume {other}")
    assert "another checkpoint to resume than rank 0" in sentence(done), done.stderr


def apart(ranks, files, command, code=0, name=None):
    """The command, {} in it filled with files[rank]."""
    lines = "".join(f'if [ "{RANK}" = {rank} ]; then exec {crew.run_command} '
                    f'{command.format(file)}; fi\n' for rank, file in enumerate(files))
    script = crew.file("apart", b"#!/bin/bash\n" + lines.encode())
    os.chmod(script, 0o755)
    return crew.call(*crew.words(ranks, name), script, code=code, env=base.ENVIRONMENT)


def copy_of(path, *changed, name=None):
    """Of a file or directory; changed: (file in it, place, byte)."""
    copy = name or crew.path("copy")
    (shutil.copytree if os.path.isdir(path) else shutil.copy)(path, copy)
    for file, at, byte in changed:
        with open(os.path.join(copy, file) if file else copy, "r+b") as out:
            out.seek(at, os.SEEK_SET if at >= 0 else os.SEEK_END)
            out.write(byte)
    return copy


def copies_are_one_and_a_byte_makes_two():
    # of the model that is loaded: the first weight, one in the middle, the last
    source = crew.path("model")
    crew.sail(1, plan(1), "--steps", "0", "--export", source)
    file, path = "model.safetensors", crew.plan_for(3, {**MODEL, "global_batch": 6}, PLAIN)
    size = os.path.getsize(os.path.join(source, file))
    whole = crew.sail(3, path, "--init", source).summary["params_hash"]
    log = crew.path("log")
    command = f"{path} --data {crew.text} --log {log} --init {{}}"
    for files in ([copy_of(source) for _ in range(3)], [source, copy_of(source), source]):
        apart(3, files, command)
        with open(log, encoding="utf-8") as lines:
            assert f'"params_hash": "{whole}"' in lines.read()
    for at, others in (4096, (1, 2)), (size // 2, (2,)), (-4, (0, 1)):
        other = copy_of(source, (file, at, b"\x17"))
        done = apart(3, [other if rank in others else source for rank in range(3)], command, code=2)
        rank = 2 if 0 in others else others[0]
        assert f"rank {rank} has another --init than rank 0: the bytes differ" in \
            sentence(done), done.stderr


def each_rank_in_its_own_directory_trains_no_mixture():
    for name in crew.launchers or [None]:
        source, path = crew.path("model"), plan(2)
        crew.sail(1, plan(1), "--steps", "0", "--export", source)
        places = [crew.path(f"node-{rank}") for rank in range(2)]
        for place, change in zip(places, ([], [("model.safetensors", 5000, b"\x17")])):
            os.mkdir(place)
            copy_of(source, *change, name=os.path.join(place, "model"))
            copy_of(crew.text, name=os.path.join(place, "text"))
        script = crew.file("node", f"""#!/bin/bash
cd {os.path.dirname(places[0])}/*-node-${{OMPI_COMM_WORLD_RANK:-$PMI_RANK}} && exec \
    {os.path.abspath(crew.run_command)} {path} --data text "$@"
""".encode())
        os.chmod(script, 0o755)
        words = *crew.words(2, name), script
        done = crew.call(*words, "--init", "model", code=2, env=base.ENVIRONMENT)
        assert "rank 1 has another --init than rank 0" in sentence(done), done.stderr
        crew.call(*words, env=base.ENVIRONMENT)
        copy_of(crew.text, (None, 2000, b"#"), name=os.path.join(places[1], "text"))
        done = crew.call(*words, code=2, env=base.ENVIRONMENT)
        assert "rank 1 has another --data than rank 0" in sentence(done), done.stderr
        for place in places:
            shutil.rmtree(place)


def what_a_rank_reads_of_its_copy_of_a_checkpoint_is_checked():
    # any tensor's last byte, which one of the ranks reads: the other's copy does not matter
    saved, path = crew.path("saved"), plan(2)
    crew.sail(2, path, "--steps", "1", save=saved)
    log = crew.path("log")
    command = f"{path} --data {crew.text} --resume {{}} --log {log}"

    def losses():
        with open(log, encoding="utf-8") as file:
            rows = [json.loads(line) for line in file]
        os.unlink(log)
        return [row["loss"] for row in rows[:-1]], rows[-1]["summary"]["params_hash"]
    apart(2, [saved, copy_of(saved)], command)
    right = losses()
    stored = Stored(saved)
    at = os.path.getsize(os.path.join(saved, "step-1", "master.safetensors"))
    for name, values in list(reversed(stored.state["master"].items()))[:2]:
        other = copy_of(saved, ("step-1/master.safetensors", at - 1, b"\x17"))
        n_refused = 0
        for files in [saved, other], [other, saved]:
            done = apart(2, files, command, code=(0, 2))
            if done.returncode == 0:
                assert losses() == right, name
                continue
            n_refused += 1
            assert sentence(done).startswith("zinf-run: checkpoint") and \
                f'tensor "{name}"' in sentence(done) and \
                "any of these" in sentence(done), (name, done.stderr)
            assert not os.path.exists(log), "a log of a run that has not begun"
        assert n_refused == 1, name
        at -= 4 * len(values)


def a_batch_that_ranks_cannot_share_is_answered_with_advice():
    done = crew.call(crew.plan_command, crew.model(global_batch=7),
                     crew.file("cluster.yaml", base.CLUSTER_TEXT.format(
                         nodes=1, devices=2, cores=2, unified="false").encode()),
                     "--set", "micro_batch=2", code=2)
    assert done.stderr == ("zinf-plan: training.global_batch 7 is no multiple of micro-batch 2 "
                           "times 2 ranks (1 node of 2 devices), 4; set it to 4 or 8, or choose "
                           "another --set micro_batch\n"), done.stderr


def a_step_that_is_not_finite_is_agreed_by_all():
    saved, path = crew.path("saved"), plan(2, layers=2)
    crew.sail(2, path, "--steps", "1", save=saved)
    stored = Stored(saved)
    stored.state["master"]["transformer.h.1.mlp.c_proj.weight"][3] = 3e38
    stored.write()
    done = crew.sail(2, path, "--resume", saved, code=1)
    assert done.stderr.count("zinf-run: ") == 2, done.stderr  # that it resumed, and this
    text = [line for line in done.stderr.splitlines() if line.startswith("zinf-run: ")][1]
    assert text.startswith("zinf-run: step 2: the loss is ") and " at row " in text and \
        'the largest weight is 3e+38, in "transformer.h.1.mlp.c_proj.weight"' in text, text


UNTIED = """\
model: {{name: untied, family: llama, layers: 1, hidden: 32, heads: 2, vocab: 256, context: 16,
        tied_embeddings: false}}
training:
  sequence: 16
  global_batch: 2
  precision: bf16
  optimizer: {{type: adamw, lr: 3e-3, betas: [0.9, 0.95], eps: 1e-8, weight_decay: 0.1}}
  schedule: {{type: cosine, warmup: 2, steps: {steps}, min_lr: 3e-4}}
  clip: 1.0
  seed: 1337
"""


def inf_on_one_rank_is_agreed_by_all_and_touches_nothing():
    # One step has two sequences, one for each rank, without a token in common. 3.4e38 is a number
    # in fp32 and inf in bf16: only the rank that meets the token meets it.
    data = crew.file("halves", b"abcdefgh" * 2 + b"ABCDEFGH" * 2 + b"A")
    steps = 3
    path = crew.plan_for(2, crew.file("untied.yaml", UNTIED.format(steps=steps).encode()),
                         {**PLAIN, **tiers("nvme")})
    saved = crew.path("saved")
    crew.sail(2, path, "--steps", "1", data=data, save=saved)
    fine = crew.sail(2, path, "--resume", saved, "--on-nonfinite", "skip", data=data)
    assert [row.get("skipped") for row in fine.rows] == [None] * (steps - 1), fine.rows
    for token in b"c", b"C":
        folder = crew.path("poisoned")
        shutil.copytree(saved, folder)
        stored = Stored(folder)
        stored.state["master"]["model.embed_tokens.weight"][32 * token[0]] = 3.4e38
        stored.write()
        done = crew.sail(2, path, "--resume", folder, data=data, code=1)
        said = [line for line in done.stderr.splitlines() if line.startswith("zinf-run: step 2:")]
        assert len(said) == 1 and "weights and moments are as after step 1" in said[0], done.stderr
        out = crew.path("out")
        run = crew.sail(2, path, "--resume", folder, "--on-nonfinite", "skip", data=data, save=out)
        assert [row["skipped"] for row in run.rows] == [True] * (steps - 1), run.rows
        after = Stored(out)
        assert after.step_name == f"step-{steps}" and after.state == stored.state, token
        for rank, usual in zip(run.summary["ranks"], fine.summary["ranks"], strict=True):
            for tier in "device", "nvme":
                assert rank["measured"][tier] == usual["measured"][tier], (token, rank, usual)
            assert rank["measured"]["host"] <= run.summary["planned"]["host"], (token, rank)


def wrong_options_are_said_once_by_rank_0_or_by_the_rank_that_has_them():
    for name in crew.launchers or [None]:
        late = differing(f"{crew.run_command} --bogus", f"{crew.run_command} --bogus")
        with open(late, encoding="ascii") as file:
            script = file.read()
        with open(late, "w", encoding="ascii") as file: # rank 0 comes when rank 1 is done
            file.write(script.replace("\nexec", "\nsleep 0.4\nexec"))
        done = crew.call(*crew.words(2, name), late, code=2, env=base.ENVIRONMENT)
        assert sentence(done).startswith("zinf-run: unknown option"), done.stderr
        done = two(f"{plan(2)} --data {crew.text}", "--bogus", name=name)
        assert sentence(done).startswith("zinf-run: rank 1: unknown option"), done.stderr


def zinf_without_the_launchers_module_says_so():
    if not crew.launchers:
        raise tap.Skip("no MPI")
    alone = crew.path("zinf-run")
    with open(crew.run_command, "rb") as program, open(alone, "wb") as copy:
        copy.write(program.read())
    os.chmod(alone, 0o755)
    done = crew.call(alone, plan(2), "--data", crew.text, code=4,
                     env={"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"})
    assert "started 2 ranks, but zinf-mpi-openmpi.so" in sentence(done), done.stderr


main(crew, [
    a_plan_for_ranks_is_not_run_by_one_process,
    another_number_of_ranks_is_refused_by_each_launcher,
    ranks_with_another_plan_data_or_options_are_named,
    help_is_for_all_ranks_or_for_none,
    ranks_that_compute_by_other_instructions_are_told,
    a_rank_that_cannot_join_ends_those_who_wait_for_it,
    what_one_rank_cannot_do_ends_all_with_its_words,
    a_checkpoint_that_not_every_rank_has_is_refused,
    copies_are_one_and_a_byte_makes_two,
    each_rank_in_its_own_directory_trains_no_mixture,
    what_a_rank_reads_of_its_copy_of_a_checkpoint_is_checked,
    a_batch_that_ranks_cannot_share_is_answered_with_advice,
    a_step_that_is_not_finite_is_agreed_by_all,
    inf_on_one_rank_is_agreed_by_all_and_touches_nothing,
    wrong_options_are_said_once_by_rank_0_or_by_the_rank_that_has_them,
    zinf_without_the_launchers_module_says_so,
])
