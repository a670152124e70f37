# tests/ranks/models.py - a Hugging Face directory loaded by several ranks, each reading its own
# part of each tensor. argv: zinf-plan, zinf-run.
import atexit
import os
import sys

from crew import Crew, lib

sys.path.insert(0, os.path.join(lib.ROOT, "tests", "e2e"))
import huggingface  # noqa: E402

crew = Crew(*sys.argv[1:3])
atexit.register(huggingface.lab.close)
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
        # what three ranks trained is handed back by one
        out = crew.path("out")
        done = crew.sail(1, plan(1, folder), "--resume", saved[3], "--steps", "3", "--export", out)
        again = crew.sail(1, plan(1, out), "--init", out, "--steps", "0")
        assert again.summary["params_hash"] == done.summary["params_hash"]


def exporting_and_evaluating_on_several_ranks_is_refused():
    folder = huggingface.write_model("gpt2")
    path = plan(2, folder)
    for words in (["--export", crew.path("out")], ["--eval", crew.text]):
        done = crew.sail(2, path, "--init", folder, "--steps", "0", *words, code=2)
        assert "several ranks is not built yet" in done.stderr, done.stderr


lib.main(crew, [weights_and_losses_are_those_of_one_rank,
                exporting_and_evaluating_on_several_ranks_is_refused])
