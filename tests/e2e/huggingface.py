# tests/e2e/huggingface.py - Hugging Face directories through the commands: planned from
# config.json, loaded, trained, evaluated, exported. The directories are written here, in plain Python, from the
# weights whose trainings PyTorch did (tests/runtime/reference); where a virtual environment with
# transformers is found (ZINF_VENV, or out-venv of tools/finetune), it loads what was exported.
# argv: zinf-plan, zinf-run.
import array
import json
import math
import os
import struct
import subprocess
import sys

import lab as lib
from lab import near, tiers

sys.path.insert(0, os.path.join(lib.ROOT, "tools"))
import tap  # noqa: E402
import torch_llama  # noqa: E402
import torch_reference  # noqa: E402

lab = lib.Lab(*sys.argv[1:3])
BASE = torch_reference.CONFIG
LOSS_BOUND = 2e-6  # as reference.py; 1e-5 relative is promised, and losses here are above 4
PLACES = {"memory": {"tier.param": "device"}, "storage": {**tiers("nvme"), "tiles": 3}}
MODELS = ("gpt2", "untied", "scaled")
# transformers 4.45 has no qwen2 whose heads are not as wide together as hidden
torch_llama.VARIANTS["square"] = {**torch_llama.VARIANTS["untied"], "hidden": 36, "head_dim": 6}
torch_llama.VARIANTS["plain"] = {**torch_llama.VARIANTS["square"], "qkv_bias": False}
TRAIN = lab.file("train", torch_reference.TEXT[:BASE["global_batch"] * BASE["sequence"] + 1])


def config_of(model):
    if model == "gpt2":
        return dict(model_type="gpt2", n_layer=BASE["layers"], n_embd=BASE["hidden"],
                    n_head=BASE["heads"], n_inner=BASE["ffn"], vocab_size=BASE["vocab"],
                    n_positions=BASE["context"], activation_function="gelu_new",
                    layer_norm_epsilon=1e-5, attn_pdrop=0.0)
    v = torch_llama.VARIANTS[model]
    scaling = v["scaling"] and {
        "rope_type": "llama3", **{key: v["scaling"][key] for key in
                                  ("factor", "low_freq_factor", "high_freq_factor")},
        "original_max_position_embeddings": v["scaling"]["original_context"]}
    return dict(model_type="qwen2" if v["qkv_bias"] else "llama", num_hidden_layers=v["layers"],
                hidden_size=v["hidden"], num_attention_heads=v["heads"],
                num_key_value_heads=v["kv_heads"], head_dim=v["head_dim"],
                intermediate_size=v["ffn"], vocab_size=BASE["vocab"],
                max_position_embeddings=BASE["context"], rms_norm_eps=v["norm_eps"],
                rope_theta=v["rope_theta"], rope_scaling=scaling, hidden_act="silu",
                tie_word_embeddings=v["tied"])


def tensors_of(model):
    """name -> (shape, bytes) as Hugging Face stores them."""
    listed = torch_reference.tensors() if model == "gpt2" else torch_llama.tensors(model)
    found = {}
    for number, (name, shape, center, spread) in enumerate(listed):
        values = torch_reference.initial(number, shape, center, spread)
        if model == "gpt2" and len(shape) == 2 and ".h." in name:  # Conv1D: [in][out]
            rows, cols = shape
            values = array.array("f", (values[r * cols + c] for c in range(cols)
                                       for r in range(rows)))
            shape = (cols, rows)
        found[name] = (shape, values.tobytes())
    return found


def write_safetensors(path, tensors, dtype="F32"):
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, (shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text + b"".join(d for _, d in tensors.values()))


def halved(data, dtype):
    """Bytes of F32 in the dtype; to BF16 they are cut."""
    if dtype == "BF16":
        return b"".join(data[i + 2:i + 4] for i in range(0, len(data), 4))
    n = len(data) // 4
    return struct.pack(f"<{n}e", *struct.unpack(f"<{n}f", data)) if dtype == "F16" else data


def write_model(model, shards=1, prefix=True, dtype="F32", **changes):
    folder = lab.path(model)
    os.mkdir(folder)
    tensors = tensors_of(model)
    tensors = {name: (shape, halved(data, dtype)) for name, (shape, data) in tensors.items()}
    if not prefix:
        tensors = {name.removeprefix("transformer.").removeprefix("model."): row
                   for name, row in tensors.items()}
    names, files = list(tensors), {}
    for i in range(shards):
        file = f"model-{i + 1:05}-of-{shards:05}.safetensors" if shards > 1 else \
            "model.safetensors"
        part = {name: tensors[name] for name in names[i::shards]}
        write_safetensors(os.path.join(folder, file), part, dtype)
        files.update(dict.fromkeys(part, file))
    if shards > 1:
        with open(os.path.join(folder, "model.safetensors.index.json"), "w") as out:
            json.dump({"metadata": {}, "weight_map": files}, out)
    with open(os.path.join(folder, "config.json"), "w") as out:
        json.dump({**config_of(model), **changes}, out)
    return folder


def overwrite(folder, name, element, value):
    """One element of a model in one file of F32; a negative one counts from the end."""
    with open(os.path.join(folder, "model.safetensors"), "r+b") as data:
        n = struct.unpack("<Q", data.read(8))[0]
        at = json.loads(data.read(n))[name]["data_offsets"][element < 0] + 4 * element
        data.seek(8 + n + at)
        data.write(struct.pack("<f", value))


def plan(folder, settings=None, precision="fp32", name="model", code=0, **training):
    keys = {"optimizer.lr": BASE["lr"], "optimizer.weight_decay": BASE["weight_decay"],
            "schedule.warmup": BASE["warmup"], "schedule.steps": BASE["steps"],
            "schedule.min_lr": BASE["min_lr"], "clip": BASE["clip"], "sequence": BASE["sequence"],
            "global_batch": BASE["global_batch"], "precision": precision, **training}
    return lab.plan(folder, {**{"training." + key: value for key, value in keys.items()},
                             "model.name": name, **(settings or {})}, code=code)


def run(plan_path, *options, **more):
    """As lab.run, with the evaluation apart."""
    done = lab.run(plan_path, *options, data=TRAIN, **more)
    if isinstance(done, lib.Training):
        done.eval = next((row["eval"] for row in done.rows if "eval" in row), None)
        done.rows = [row for row in done.rows if "eval" not in row]
    return done


def stored_tensors(folder):
    """name -> (dtype, shape, bytes) of all files of a directory, which its index must describe."""
    found = {}
    for file in sorted(os.listdir(folder)):
        if not file.endswith(".safetensors"):
            continue
        with open(os.path.join(folder, file), "rb") as data:
            data = data.read()
        n = struct.unpack("<Q", data[:8])[0]
        header = json.loads(data[8:8 + n])
        header.pop("__metadata__")
        for name, row in header.items():
            first, end = row["data_offsets"]
            found[name] = (row["dtype"], tuple(row["shape"]), data[8 + n + first:8 + n + end], file)
    index = os.path.join(folder, "model.safetensors.index.json")
    if os.path.exists(index):
        with open(index) as text:
            assert json.load(text)["weight_map"] == {name: row[3] for name, row in found.items()}
    return {name: row[:3] for name, row in found.items()}


def reference(model):
    path = os.path.join(lib.ROOT, "tests", "runtime", "reference",
                        "gpt2_f64.json" if model == "gpt2" else "llama_f64.json")
    with open(path, encoding="ascii") as text:
        stored = json.load(text)
    return stored if model == "gpt2" else stored[model]


def ten_losses_from_a_hugging_face_directory_are_pytorchs():
    for model in MODELS:
        expected = reference(model)["steps"]
        for how, folder in (("one file", write_model(model)),
                            ("three files, base model's names", write_model(model, 3, False))):
            done = run(plan(folder, PLACES["memory" if how == "one file" else "storage"]),
                       "--init", folder)
            assert len(done.rows) == 10
            for row, other in zip(done.rows, expected):
                near(row["loss"], other["loss"], LOSS_BOUND, f"{model}, {how}, {row['step']}")
            worst = max(abs(r["loss"] / o["loss"] - 1) for r, o in zip(done.rows, expected))
            print(f"# {model}, {how}: at most {worst:.1e} of the loss off")
            assert worst <= 1e-5


def load_and_export_gives_the_same_bytes():
    for model in MODELS:
        folder = write_model(model, 2)
        expected = {name: ("F32", shape, data)
                    for name, (shape, data) in tensors_of(model).items()}
        for place, settings in PLACES.items():
            out = lab.path("out")
            run(plan(folder, settings), "--init", folder, "--steps", "0", "--export", out,
                "--export-shard", "20000" if place == "storage" else "1000000000")
            assert os.path.exists(os.path.join(out, "model.safetensors")) == (place == "memory")
            assert stored_tensors(out) == expected, (model, place)
            with open(os.path.join(out, "config.json")) as config:
                assert json.load(config) == {**config_of(model), "torch_dtype": "float32"}


def what_goes_with_the_weights_is_taken_over():
    changes = {"rms_norm_eps": 1.2345678901234567e-05, "rope_theta": 10000.123456789012}
    folder, out, made = write_model("scaled", **changes), lab.path("out"), lab.path("made")
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump({**config_of("scaled"), **changes, "dtype": "float32"}, file)
    texts = {name: json.dumps({name: 1}) for name in (
        "generation_config.json", "chat_template.jinja", "chat_template.json", "tokenizer.json",
        "tokenizer_config.json", "special_tokens_map.json", "vocab.json", "merges.txt",
        "added_tokens.json", "tokenizer.model")}
    for name, text in texts.items():
        with open(os.path.join(folder, name), "w") as file:
            file.write(text)
    # a buffer that older versions of transformers stored, and that is no parameter
    tensors = tensors_of("scaled")
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = ((4,), bytes(16))
    write_safetensors(os.path.join(folder, "model.safetensors"), tensors)
    path = plan(folder)
    first = run(path, "--init", folder, "--steps", "1", "--export", out, "--export-dtype", "bf16",
                "--export-shard", "20000", save=True)
    for name, text in texts.items():
        with open(os.path.join(out, name)) as file:
            assert file.read() == text, name
    with open(os.path.join(out, "config.json")) as file:
        config = json.load(file)  # the newer name of the two, as the source has it
    assert config == {**config_of("scaled"), **changes, "dtype": "bfloat16"}, config
    with open(os.path.join(out, "model.safetensors.index.json")) as file:
        total = json.load(file)["metadata"]["total_size"]
    assert total == sum(len(data) for _, _, data in stored_tensors(out).values()), total
    run(path, "--resume", first.saved, "--steps", "1", "--export", made)
    with open(os.path.join(made, "config.json")) as file:
        config = json.load(file)
    assert {key: config[key] for key in changes} == changes, config


def an_exported_training_goes_on_and_stays_itself():
    for model in MODELS:
        folder, out = write_model(model), lab.path("out")
        path = plan(folder, PLACES["storage"])
        first = run(path, "--init", folder, "--steps", "3", "--export", out, save=True)
        again = run(plan(out, PLACES["memory"]), "--init", out, "--steps", "0")
        assert again.summary["params_hash"] == first.summary["params_hash"]
        # resumed, there is no directory to take config.json from: it is made, and means the same
        made = lab.path("made")
        run(path, "--resume", first.saved, "--steps", "3", "--export", made)
        assert stored_tensors(made) == stored_tensors(out)
        again = run(plan(made), "--init", made, "--steps", "0")
        assert again.summary["params_hash"] == first.summary["params_hash"]
        half = lab.path("half")
        run(path, "--resume", first.saved, "--steps", "3", "--export", half, "--export-dtype",
            "bf16")
        for name, (dtype, shape, data) in stored_tensors(half).items():
            whole = array.array("f", stored_tensors(out)[name][2])
            found = array.array("f", b"".join(b"\0\0" + data[i:i + 2]
                                              for i in range(0, len(data), 2)))
            assert dtype == "BF16" and len(found) == len(whole)
            assert all(abs(a - b) <= 2.0**-8 * abs(b) for a, b in zip(found, whole)), name


def bf16_weights_are_taken_as_they_are():
    for model in "gpt2", "scaled":
        folder, out = write_model(model, dtype="BF16"), lab.path("out")
        run(plan(folder), "--init", folder, "--steps", "0", "--export", out)
        for name, (shape, data) in tensors_of(model).items():
            cut = b"".join(b"\0\0" + data[i + 2:i + 4] for i in range(0, len(data), 4))
            assert stored_tensors(out)[name] == ("F32", shape, cut), name


def load_and_export_in_the_sources_dtype_gives_the_same_bytes():
    for model in "gpt2", "scaled":
        for dtype, word in ("F16", "float16"), ("BF16", "bfloat16"), ("F32", "float32"):
            folder, out = write_model(model, 2, dtype=dtype, torch_dtype=word), lab.path("out")
            again, path = lab.path("again"), plan(folder, PLACES["storage"])
            run(path, "--init", folder, "--steps", "0", "--export", out, "--export-dtype", "source",
                "--export-shard", "20000")
            assert stored_tensors(out) == stored_tensors(folder), (model, dtype)
            with open(os.path.join(out, "config.json")) as config:
                assert json.load(config) == {**config_of(model), "torch_dtype": word}
            # named, it is the same, and config.json says so
            name = {"F16": "fp16", "BF16": "bf16", "F32": "fp32"}[dtype]
            run(path, "--init", folder, "--steps", "0", "--export", again, "--export-dtype", name)
            assert stored_tensors(again) == stored_tensors(folder), (model, dtype)
            with open(os.path.join(again, "config.json")) as config:
                assert json.load(config)["torch_dtype"] == word
    done = run(path, "--resume", lab.path("none"), "--export", out, "--export-dtype", "source",
               code=2)
    assert "--init HF_DIR" in done.stderr, done.stderr


def an_export_that_a_dtype_cannot_hold_leaves_the_checkpoint():
    folder, out = write_model("scaled"), lab.path("out")
    name = "model.layers.1.mlp.down_proj.weight"
    overwrite(folder, name, 7, 70000.0)
    path, saved = plan(folder), lab.path("kept")
    done = run(path, "--init", folder, "--steps", "0", "--export", out, "--export-dtype", "fp16",
               save=saved, code=2)
    for word in f"element 7 of \"{name}\" is 70000", "F16 (65504)", "--export-dtype fp32 or bf16":
        assert word in done.stderr, done.stderr
    assert not os.path.exists(out) and not os.path.exists(out + ".zinf-writing")
    # the states of the training are not lost with it
    run(path, "--resume", saved, "--steps", "0", "--export", out)
    assert stored_tensors(out) == stored_tensors(folder)


def evaluation_is_the_loss_of_every_token_wherever_states_live():
    text = lab.file("eval", lab.prose(20 * BASE["sequence"] + 8).encode())
    for model in MODELS:
        folder = write_model(model)
        found = []
        for settings in ({}, tiers("nvme"), tiers("host"), {"micro_batch": 1}, {"tiles": 3}):
            done = run(plan(folder, settings), "--init", folder, "--eval", text)
            assert done.eval["tokens"] == 20 * BASE["sequence"] + 7 and not done.rows
            near(done.eval["perplexity"], math.exp(done.eval["loss"]), 1e-9, "perplexity")
            found.append(done.eval["loss"])
        assert found[0] == found[1] == found[2], found
        for other in found[3:]:
            near(other, found[0], LOSS_BOUND, "loss")
        # the training's first loss is that of the whole batch: its file has no other token
        done = run(plan(folder), "--init", folder, "--eval", TRAIN)
        near(done.eval["loss"], reference(model)["steps"][0]["loss"], LOSS_BOUND, "loss")


def tokens_behind_the_last_full_window_are_predicted_by_one_that_ends_with_them():
    t, folder = BASE["sequence"], write_model("scaled")
    path, prose = plan(folder), lab.prose(3 * t + 1)

    def total(text):
        done = run(path, "--init", folder, "--eval", lab.file("eval", text.encode())).eval
        assert done["tokens"] == len(text) - 1
        return done["loss"] * done["tokens"]

    two, last = total(prose[:2 * t + 1]), prose[2 * t:3 * t + 1]
    near(total(prose) - two, total(last), 1e-6, "a full window")
    # half a window more: the rest of the window that ends there is the first half of the one that
    # ends half a window before; of a text that repeats itself every half window all are the same
    repeated = prose[:t // 2] * 6 + prose[0]
    halves = total(repeated[:2 * t + 1]) / 2, total(repeated[:2 * t + 1 + t // 2])
    steady = total(repeated[:t + 1])
    near(halves[0], steady, 1e-6, "two equal windows")
    tail = halves[1] - 2 * steady
    near(total(repeated[:3 * t + 1]) - 2 * steady, steady, 1e-6, "three equal windows")
    assert 0 < tail < steady, (tail, steady)
    again = total(repeated[:t + 1 + t // 2]) - steady
    near(tail, again, 1e-6, "the second half of the window")


def a_resumed_runs_log_goes_on_behind_an_evaluation():
    folder, log = write_model("scaled"), lab.path("kept")
    path = plan(folder)
    saved = run(path, "--init", folder, "--steps", "2", save=True).saved
    for steps in "3", "4":
        lab.call(lab.run_command, path, "--data", TRAIN, "--resume", saved, "--steps", steps,
                 "--log", log, "--eval", TRAIN, "--save", saved)
    with open(log, encoding="ascii") as text:
        rows = [json.loads(line) for line in text]
    assert [row.get("step") for row in rows] == [3, 4, None, None], rows
    assert "eval" in rows[2] and "summary" in rows[3]


def a_directory_that_is_not_the_plans_model_is_refused():
    path = plan(write_model("scaled"))
    for change, word in (
            ({"rope_theta": 9999.0}, "rope_theta"), ({"rms_norm_eps": 1e-6}, "norm_eps"),
            ({"rope_scaling": None}, "rope_"), ({"tie_word_embeddings": False}, "tied"),
            ({"model_type": "qwen2"}, "qkv_bias"), ({"num_hidden_layers": 3}, "layers")):
        done = run(path, "--init", write_model("scaled", **change), "--steps", "0", code=2)
        assert word in done.stderr, (change, done.stderr)
    done = run(path, "--init", lab.path("nowhere"), "--steps", "0", code=2)
    assert "nowhere" in done.stderr


def a_sample_of_numbers_that_are_not_finite_is_no_sample():
    folder = write_model("scaled")
    overwrite(folder, "model.layers.1.mlp.up_proj.weight", 3, 3.4e38)
    overwrite(folder, "model.layers.1.mlp.down_proj.weight", 0, 3.4e38)  # of its product
    done = run(plan(folder), "--init", folder, "--steps", "0", "--sample", "3", "--prompt", "5",
               code=1)
    assert "--sample: after 0 tokens the logit of token" in done.stderr, done.stderr
    assert "memory" not in done.stdout, done.stdout


def a_head_that_is_tied_and_stored_is_the_embedding_to_its_last_element():
    folder = write_model("scaled")
    path, table, head = plan(folder), "model.embed_tokens.weight", "lm_head.weight"
    tensors = tensors_of("scaled")
    n = len(tensors[table][1]) // 4
    assert n > 4096, n  # as many are compared at once
    file = os.path.join(folder, "model.safetensors")
    write_safetensors(file, {**tensors, head: tensors[table]})
    run(path, "--init", folder, "--steps", "0")
    for element in 0, 4096, -1:
        write_safetensors(file, {**tensors, head: tensors[table]})
        overwrite(folder, head, element, 3.0)
        done = run(path, "--init", folder, "--steps", "0", code=2)
        assert "\"lm_head.weight\" differs from" in done.stderr, (element, done.stderr)


def every_damage_of_a_directory_is_one_sentence():
    path, name = plan(write_model("untied")), "model.layers.0.mlp.up_proj.weight"
    last = "lm_head.weight"

    def header(change):
        """The file with another header before the same data."""
        def damage(folder):
            file = os.path.join(folder, "model.safetensors")
            with open(file, "rb") as source:
                data = source.read()
            n = struct.unpack("<Q", data[:8])[0]
            text = change(json.loads(data[8:8 + n]))
            text = text if isinstance(text, bytes) else json.dumps(text).encode()
            with open(file, "wb") as out:
                out.write(struct.pack("<Q", len(text)) + text + data[8 + n:])
        return damage

    def moved(by, which=name):
        def change(rows):
            rows[which]["data_offsets"] = [at + by for at in rows[which]["data_offsets"]]
            return rows
        return header(change)

    def offsets(text):
        return header(lambda rows: json.dumps(rows).replace(
            json.dumps(rows[name]["data_offsets"]), text).encode())

    def length(stated, size=None):
        def damage(folder):
            with open(os.path.join(folder, "model.safetensors"), "r+b") as out:
                out.write(struct.pack("<Q", stated))
                if size is not None:
                    out.truncate(size)
        return damage

    def twice(rows):
        return json.dumps(rows)[:-1].encode() + \
            f", \"{name}\": {json.dumps(rows[name])}}}".encode()

    def config(text):
        def damage(folder):
            with open(os.path.join(folder, "config.json"), "wb") as out:
                out.write(text)
        return damage

    whole = json.dumps(config_of("untied"))
    for damage, *said in (
            (moved(4), "with a hole"), (moved(-4), "inside tensor"),
            (header(lambda rows: {k: v for k, v in rows.items() if k != name}), "with a hole"),
            (header(lambda rows: {k: v for k, v in rows.items() if k != last}), "damaged"),
            (header(lambda rows: {**rows, name: {**rows[name], "shape": [7, 5]}}), "takes 140"),
            (header(lambda rows: {**rows, name: {**rows[name], "dtype": "F64"}}), name, "but its"),
            (offsets("[NaN, NaN]"), "not well-formed"), (offsets("[0, 1e999]"), "data_offsets"),
            (offsets("[-4, 0]"), "data_offsets"), (offsets("[\"0\", \"4\"]"), "data_offsets"),
            (offsets("null"), "data_offsets null"), (offsets("[8, 4]"), "data_offsets"),
            (header(twice), f"the key \"{name}\" twice"),
            (header(lambda rows: b'{"a": "\xff"}'), "not well-formed"),
            (header(lambda rows: b"[" * 10000), "not well-formed"),
            (header(lambda rows: b""), "not well-formed"), (header(lambda rows: []), "no object"),
            (length(2**63 + 5), "truncated"), (length(1 << 29, 1 << 30), "header has 536870912"),
            (length(0), "not well-formed"), (length(4, 3), "truncated"),
            (lambda folder: os.unlink(os.path.join(folder, "model.safetensors")),
             "model.safetensors.index.json"),
            (config(whole[:-9].encode()), "not well-formed"), (config(b""), "not well-formed"),
            (config(b"[" + whole.encode() + b"]"), "not well-formed"),
            (config(whole.encode()[:-1] + b', "x": "\xff"}'), "not well-formed"),
            (config(whole.encode()[:-1] + b', "rms_norm_eps": NaN}'), "not well-formed"),
            (config(whole.encode()[:-1] + b', "vocab_size": 256}'), "\"vocab_size\" twice"),
            (config(whole.encode()[:-1] + b', "x": ' + b"[" * 9999 + b"]" * 9999 + b"}"),
             "not well-formed"),
            (config(whole.encode() + b" " * (1 << 20)), "more than 1048576 bytes"),
            (lambda folder: os.unlink(os.path.join(folder, "config.json")), "cannot be opened")):
        folder = write_model("untied")
        damage(folder)
        done = run(path, "--init", folder, "--steps", "0", code=2)
        assert done.stderr.count("\n") == 1 and folder in done.stderr, done.stderr
        assert all(word in done.stderr for word in said), (said, done.stderr)


def a_context_that_is_shorter_than_the_sequences_is_refused_by_name():
    longest = BASE["sequence"]
    path = plan(write_model("plain"))
    short, enough = (write_model("plain", max_position_embeddings=longest - i) for i in (1, 0))
    plan(short, code=2)
    done = run(path, "--init", short, "--steps", "0", code=2)
    for word in f'max_position_embeddings" is {longest - 1}', f"sequence={longest - 1}":
        assert word in done.stderr, done.stderr
    run(path, "--init", enough, "--steps", "0")


def a_window_that_is_shorter_than_the_sequences_is_refused_by_name():
    longest = BASE["sequence"]
    narrow, exact = (write_model("plain", model_type="mistral", sliding_window=longest - i)
                     for i in (1, 0))
    plan(narrow, code=2)
    for word in "training.sequence", f"sliding_window\" ({longest - 1})", "plain":
        assert word in lab.planned.stderr, lab.planned.stderr
    # the plan of a model without a window, with the weights of one that has it
    full = write_model("plain", model_type="llama")
    done = run(plan(full), "--init", narrow, "--steps", "0", code=2)
    assert "sliding_window" in done.stderr and f"sequence={longest - 1}" in done.stderr, done.stderr
    wide, same = (run(plan(folder), "--init", folder, "--steps", "2") for folder in (exact, full))
    assert wide.losses == same.losses
    # unless told otherwise, sequences are as long as they may be
    path = lab.path("plan")
    lab.call(lab.plan_command, narrow, lab.file("cluster.yaml", lib.CLUSTER_TEXT.format(
        unified="false", memory="1 GiB").encode()), "-o", path)
    run(path, "--init", narrow, "--steps", "0")
    assert f"of {longest - 1} tokens" in lab.call(lab.plan_command, "--show", path).stdout


def an_export_that_cannot_be_is_refused_before_the_training():
    folder = write_model("scaled")
    path = plan(folder)
    for target, word in ((folder, "directory of its own"), (write_model("scaled"), "not empty"),
                         (os.path.join(lab.path("no"), "x"), "No such file")):
        done = run(path, "--init", folder, "--export", target, code=2)
        assert word in done.stderr and "step 1/" not in done.stderr, done.stderr


TRANSFORMERS = """
import json, sys, warnings
warnings.filterwarnings("ignore")
import torch, transformers
transformers.logging.set_verbosity_error()
text, window = list(open(sys.argv[1], "rb").read()), int(sys.argv[2])
result = []
for folder in sys.argv[3:]:
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, output_loading_info=True, torch_dtype=torch.float32,
        attn_implementation="eager")
    assert not any(info.values()), info
    with torch.no_grad():
        logits = model.eval()(torch.tensor([text[:window]])).logits[0].tolist()
        model, total = model.double(), 0.0
        for at in range(0, len(text) - 1, window):
            first = min(at, len(text) - 1 - window)
            row = torch.tensor(text[first:first + window + 1])
            losses = torch.nn.functional.cross_entropy(model(row[None, :-1]).logits[0].double(),
                                                       row[1:], reduction="none")
            total += losses[at - first:].sum().item()
    result.append({"logits": logits, "loss": total / (len(text) - 1)})
json.dump(result, sys.stdout)
"""


def python_with_transformers():
    python = os.path.join(os.environ.get("ZINF_VENV") or os.path.join(lib.ROOT, "out-venv"), "bin",
                          "python")
    if not os.path.exists(python) or subprocess.run(
            [python, "-c", "import torch, transformers"], capture_output=True).returncode:
        raise tap.Skip("no virtual environment with transformers: tools/finetune makes out-venv, "
                       "ZINF_VENV names another")
    return python


ALL_FIELDS = """
import json, os, sys, transformers
small = dict(vocab_size=256, num_hidden_layers=2, hidden_size=64, num_attention_heads=32)
for name in "GPT2", "Llama", "Mistral", "Qwen2":
    config = getattr(transformers, name + "Config")(**small)
    os.mkdir(os.path.join(sys.argv[1], name))
    with open(os.path.join(sys.argv[1], name, "config.json"), "w") as out:
        json.dump(config.to_dict(), out)
"""


def every_field_that_transformers_writes_is_known():
    folder = lab.path("configs")
    os.mkdir(folder)
    lab.call(python_with_transformers(), "-c", ALL_FIELDS, folder)
    for name in "GPT2", "Llama", "Mistral", "Qwen2":
        lab.plan(os.path.join(folder, name), {"training.sequence": 16})
        assert "not known" not in lab.planned.stderr, lab.planned.stderr


def transformers_loads_what_was_exported_with_equal_logits():
    python = python_with_transformers()
    text = lab.file("eval", lab.prose(5 * BASE["sequence"] + 8).encode())
    folders, losses = [], []
    for model, changes in (("gpt2", {}), ("scaled", {}), ("square", {}),
                           ("plain", {"model_type": "mistral", "sliding_window": None})):
        folder = write_model(model, **changes)
        for source in ["--init", folder], None:
            out = lab.path("out")
            path = plan(folder, PLACES["storage"])
            if source is None:  # config.json made by us
                source = ["--resume", run(path, "--init", folder, "--steps", "0", save=True).saved]
            done = run(path, *source, "--steps", "0", "--export", out, "--eval", text)
            losses.append(done.eval["loss"])
            folders += [folder, out]
    done = lab.call(python, "-c", TRANSFORMERS, text, str(BASE["sequence"]), *folders)
    found = json.loads(done.stdout)
    for i, loss in enumerate(losses):
        source, out = found[2 * i:2 * i + 2]
        assert source["logits"] == out["logits"], folders[2 * i + 1]  # the same weights to the bit
        near(loss, out["loss"], LOSS_BOUND, "evaluation by transformers in double")


def fields_given_twice_or_as_null_are_as_in_transformers_or_refused():
    """Or by another name, another family's, or with what another one makes of no effect."""
    python = python_with_transformers()
    text = lab.file("eval", lab.prose(3 * BASE["sequence"] + 8).encode())
    window = BASE["sequence"] // 2
    llama3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
              "original_max_position_embeddings": 16}
    inner = {"rope_scaling": {"rope_type": "default", "rope_theta": 99.0}}
    rotary = [{"rope_scaling": {**llama3, **types}} for types in (
        {"rope_type": "llama3", "type": "default"}, {"rope_type": "default", "type": "llama3"},
        {"rope_type": "llama3", "type": "llama3"}, {"rope_type": None, "type": "llama3"})] + [
        inner, {**inner, "rope_theta": ...}, {**inner, "rope_theta": 99.0},
        {"rope_scaling": {"rope_type": "llama3", **llama3}, "original_max_position_embeddings": 8},
        {"sliding_window": window, "use_sliding_window": False},
        {"sliding_window": window, "use_sliding_window": None},
        {"sliding_window": window, "use_sliding_window": True, "max_window_layers": 0},
        {"sliding_window": window, "layer_types": ["full_attention"] * 3},
        {"sliding_window": None, "use_sliding_window": True}, {"tie_word_embeddings": None},
        {"tie_word_embeddings": ...}, {"attention_bias": None}, {"activation_function": "relu"},
        {"n_head": 1}, {"layer_norm_epsilon": 0.5}, {"head_dim": ...},
        {"num_key_value_heads": None}]
    cases = [("gpt2", change) for change in (
        {"tie_word_embeddings": None}, {"scale_attn_weights": None}, {"n_inner": None},
        {"reorder_and_upcast_attn": None}, {"hidden_size": 1}, {"num_attention_heads": 1},
        {"num_attention_heads": BASE["heads"]}, {"n_ctx": 8}, {"hidden_act": "relu"},
        {"intermediate_size": 8}, {"max_position_embeddings": 16}, {"rms_norm_eps": 0.5})]
    cases += [(model, {"model_type": kind, **change})
              for model, kind in (("plain", "llama"), ("plain", "mistral"), ("square", "qwen2"))
              for change in rotary]
    folders, losses, names, refused = [], [], [], 0
    for model, changes in cases:
        folder = write_model(model)
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
            config = {**json.load(file), **changes}
        with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
            json.dump({key: value for key, value in config.items() if value is not ...}, file)
        path = lab.plan(folder, {"training.sequence": BASE["sequence"],
                                 "training.precision": "fp32"}, code=(0, 2))
        done = os.path.exists(path) and run(path, "--init", folder, "--steps", "0", "--eval", text,
                                            code=(0, 2))
        if not isinstance(done, lib.Training):
            refused += 1
            continue
        folders.append(folder)
        losses.append(done.eval["loss"])
        names.append(f"{model} {changes}")
    found = json.loads(lab.call(python, "-c", TRANSFORMERS, text, str(BASE["sequence"]),
                                *folders).stdout)
    print(f"# {len(losses)} taken, {refused} refused")
    for name, loss, theirs in zip(names, losses, found):
        near(loss, theirs["loss"], LOSS_BOUND, name)


TESTS = [
    ten_losses_from_a_hugging_face_directory_are_pytorchs, load_and_export_gives_the_same_bytes,
    what_goes_with_the_weights_is_taken_over,
    an_exported_training_goes_on_and_stays_itself, bf16_weights_are_taken_as_they_are,
    load_and_export_in_the_sources_dtype_gives_the_same_bytes,
    an_export_that_a_dtype_cannot_hold_leaves_the_checkpoint,
    evaluation_is_the_loss_of_every_token_wherever_states_live,
    tokens_behind_the_last_full_window_are_predicted_by_one_that_ends_with_them,
    a_resumed_runs_log_goes_on_behind_an_evaluation,
    a_directory_that_is_not_the_plans_model_is_refused,
    a_sample_of_numbers_that_are_not_finite_is_no_sample,
    a_head_that_is_tied_and_stored_is_the_embedding_to_its_last_element,
    every_damage_of_a_directory_is_one_sentence,
    a_context_that_is_shorter_than_the_sequences_is_refused_by_name,
    a_window_that_is_shorter_than_the_sequences_is_refused_by_name,
    an_export_that_cannot_be_is_refused_before_the_training,
    every_field_that_transformers_writes_is_known,
    fields_given_twice_or_as_null_are_as_in_transformers_or_refused,
    transformers_loads_what_was_exported_with_equal_logits]

if __name__ == "__main__":
    lib.main(lab, TESTS)
