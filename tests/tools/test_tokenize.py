#!/usr/bin/env python3
# tests/tools/test_tokenize.py - tools/tokenize: where a long text is cut, what -o may be, and,
# where a virtual environment with the package tokenizers is found (ZINF_VENV, or out-venv), the
# files it writes.
# $1 is the root of the sources.
import contextlib
import functools
import json
import os
import random
import resource
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import time

root = sys.argv[1]
sys.path[:0] = [os.path.join(root, "tests"), os.path.join(root, "tools")]
import tap  # noqa: E402
import tokenize_text  # noqa: E402

folder = tempfile.TemporaryDirectory(prefix="zinf-tokenize-")


def path(name):
    return os.path.join(folder.name, name)


def write(name, text):
    with open(path(name), "w", encoding="utf-8", newline="") as out:
        out.write(text)
    return path(name)


def names_in(directory):
    return sorted(os.listdir(directory))


def pieces_are_cut_between_words_only_and_lose_nothing_or_a_blank():
    draw = random.Random(3)
    keep = tokenize_text.PIECE, tokenize_text.cutting
    for size, left_out in (1, 0), (2, 1), (7, 0), (64, 1):
        tokenize_text.PIECE, n = size, 0
        tokenize_text.cutting = lambda tokenizer, left_out=left_out: (left_out, None)
        for _ in range(60):
            text = "".join(draw.choice("ab\u00e9 \n1\r") for _ in range(draw.randrange(400)))
            found = list(tokenize_text.pieces(write("text", text), None))
            assert (" " if left_out else "").join(found) == text
            for left, right in zip(found, found[1:]):
                assert left[-1].isalpha() and right[1 - left_out].isalpha() and \
                    (left_out or right[0] == " "), (left, right)
            n += len(found) - 1
        assert n > 60 or size == 64, (size, n)
    tokenize_text.PIECE, tokenize_text.cutting = keep


@functools.lru_cache
def python_with_tokenizers():
    python = os.path.join(os.environ.get("ZINF_VENV") or os.path.join(root, "out-venv"), "bin",
                          "python")
    if not os.path.exists(python) or subprocess.run([python, "-c", "import tokenizers"],
                                                    capture_output=True).returncode:
        raise tap.Skip("no virtual environment with tokenizers: tools/tokenize makes out-venv, "
                       "ZINF_VENV names another")
    return python


def call(*words, code=0, command=None):
    """What tools/tokenize ends in, which asks first what is installed: or that, as command."""
    work = [python_with_tokenizers(), os.path.join(root, "tools", "tokenize_text.py")]
    done = subprocess.run([*(command or work), *words], capture_output=True, text=True)
    assert done.returncode == code, (words, done.stderr)
    return done


def word_level(vocab, **parts):
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [],
            "normalizer": None, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None,
            "decoder": None, "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "?"},
            **parts}


def tokenizer(size):
    """Words between blanks; "a" is 0, "b" the last."""
    return write("tokenizer.json", json.dumps(word_level(
        {"a": 0, "?": 1, "<end>": 2, "b": size - 1,
         **{f"word{i}": i for i in range(3, size - 1)}})))


def ids_of(out):
    with open(out, "rb") as file:
        data = file.read()
    magic, _, count = struct.unpack("<3I", data[:12])
    return struct.unpack(f"<{count}{'H' if magic == 20240520 else 'I'}", data[1024:])


def files_are_llm_cs_in_both_widths():
    one, two = write("one", "a b\na nothing"), write("two", "b")
    for size, letter, magic, version in ((65536, "H", 20240520, 1), (65537, "I", 20240801, 7)):
        out = path("out.bin")
        python_with_tokenizers()
        call(tokenizer(size), one, two, "-o", out, "--separator", "<end>",
             command=[os.path.join(root, "tools", "tokenize")])
        with open(out, "rb") as file:
            data = file.read()
        assert struct.unpack("<3I", data[:12]) == (magic, version, 6)
        assert data[12:1024] == bytes(1012)
        assert struct.unpack(f"<6{letter}", data[1024:]) == (0, size - 1, 0, 1, 2, size - 1)
        assert not [name for name in names_in(folder.name) if name.endswith(".tmp")]
    done = call(tokenizer(100), one, "-o", path("\x1b\u009b\udc9b\u00e9"))  # \udc9b: a byte
    assert done.stdout.startswith(path("???\u00e9") + ": 4 tokens"), ascii(done.stdout)


def the_largest_id_decides_the_width():
    for largest, magic in (65535, 20240520), (65536, 20240801), (2**31 - 2, 20240801):
        few = write("few.json", json.dumps(word_level({"?": 0, "a": 1, "b": largest})))
        call(few, write("one", "a b c"), "-o", path("out.bin"))
        assert ids_of(path("out.bin")) == (1, largest, 0)
        with open(path("out.bin"), "rb") as file:
            assert struct.unpack("<I", file.read(4)) == (magic,)


def texts_are_taken_whole_whatever_the_file_says_of_lengths():
    # sizes of batches are for other uses of the same file
    content = word_level({"?": 0, "a": 1, "b": 2}, truncation={
        "direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}, padding={
        "strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
        "pad_type_id": 0, "pad_token": "?"})
    call(write("cut.json", json.dumps(content)), write("one", "a b a b a"), "-o", path("out.bin"))
    assert ids_of(path("out.bin")) == (1, 2, 1, 2, 1)


def merges_left_out_by_chance_are_refused():
    text = write("one", "ab " * 50)
    for dropout in None, 0, 0.0, 0.5, 1, 1e-9:
        model = {"type": "BPE", "dropout": dropout, "unk_token": None,
                 "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": False,
                 "byte_fallback": False, "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}
        drop = write("drop.json", json.dumps(word_level({}, model=model)))
        done = call(drop, text, "-o", path("out.bin"), code=2 if dropout else 0)
        if dropout:
            assert f"dropout {dropout}, which leaves out merges by chance" in done.stderr
            assert len(done.stderr.splitlines()) == 1, done.stderr
        else:
            assert ids_of(path("out.bin")) == (2,) * 50


def texts_with_a_nul_or_of_nothing():
    # a NUL is a character like others; an empty text beside others is no fault
    call(write("nul.json", json.dumps(word_level({"?": 0, "a": 1, "\0": 2}, pre_tokenizer={
        "type": "Split", "pattern": {"String": ""}, "behavior": "Isolated", "invert": False}))),
         write("one", "a\0a"), write("two", ""), "-o", path("out.bin"))
    assert ids_of(path("out.bin")) == (1, 2, 1), ids_of(path("out.bin"))
    os.unlink(path("out.bin"))


def bad_inputs_are_named():
    good, text = tokenizer(100), write("one", "a b")
    for name, data in ("latin", b"caf\xe9 au lait"), ("cut", b"a " * 40 + b"\xe2\x82"), \
            ("late", b"a " * (1 << 19) + b"\xff"):
        with open(path(name), "wb") as out:
            out.write(data)
    for words, expected in (((text, text, "-o", path("x")), "is no tokenizer.json"),
                            ((path("none"), text, "-o", path("x")), "no such file"),
                            ((good, path("none"), "-o", path("x")), "No such file"),
                            ((good, path("latin"), "-o", path("x")), "not UTF-8: byte 3 "),
                            ((good, path("cut"), "-o", path("x")), "not UTF-8: byte 80 "),
                            ((good, path("late"), "-o", path("x")), "not UTF-8: byte 1048576 "),
                            ((good, write("empty", ""), "-o", path("x")), "no token in"),
                            ((good, folder.name, "-o", path("x")), "directory"),
                            ((good, text, "-o", text), "would be overwritten"),
                            ((good, text, "-o", path("x"), "--separator", "<none>"), "<none>"),
                            ((good, text), "-o OUT.bin"), ((good, text, "--out", "x"), "--out")):
        done = call(*words, code=2)
        assert expected in done.stderr and done.stderr.count("\n") == 1, done.stderr
        assert not os.path.exists(path("x"))
        assert not [name for name in names_in(folder.name) if name.endswith(".tmp")]
    for out, reason in (("no/where/x", "No such file or directory"), ("one/x", "Not a directory"),
                        ("n" * 300, "File name too long")):
        done = call(good, text, "-o", path(out), code=2)
        assert done.stderr == f"tools/tokenize: -o \"{path(out)}\": {reason}\n", done.stderr


def every_fault_of_a_tokenizer_is_one_sentence():
    good = word_level({"?": 0, "a": 1, "b": 2})
    whole = json.dumps(good)
    added = {"id": 3, "content": "<x>", "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": True}

    def model(**parts):
        return json.dumps({**good, "model": {**good["model"], **parts}})

    for name, content, expected in (
            ("truncated", whole[:-20], "is no tokenizer.json"),
            ("empty", "", "is no tokenizer.json"),
            ("a byte order mark", "\ufeff" + whole, "BOM"),
            ("a list", "[]", "no object \"model\""), ("a number", "7", "no object \"model\""),
            ("no model", "{}", "no object \"model\""),
            ("model of a wrong type", json.dumps({**good, "model": 7}), "no object \"model\""),
            ("no vocab", json.dumps({**good, "model": {"type": "WordLevel"}}), "\"vocab\""),
            ("vocab of a wrong type", model(vocab=7), "\"vocab\""),
            ("empty vocab", model(vocab={}), "the vocabulary is empty"),
            ("empty Unigram", model(type="Unigram", vocab=[]), "the vocabulary is empty"),
            ("id of a wrong type", model(vocab={"?": "0"}), "\"?\" has the id 0;"),
            ("an id of true", model(vocab={"?": True}), "the id True"),
            ("a negative id", model(vocab={"?": 0, "a": -1}), "\"a\" has the id -1"),
            ("a fraction", model(vocab={"?": 0, "a": 1.5}), "the id 1.5"),
            ("an id too large", model(vocab={"?": 0, "a": 2**31 - 1}), "up to 2147483646"),
            ("an id of 30 digits", model(vocab={"?": 0, "a": 10**29}), "up to 2147483646"),
            ("two of one id", model(vocab={"?": 0, "a": 1, "b": 1}),
             "\"a\" and \"b\" have the same id 1"),
            ("a key twice", whole.replace('"b"', '"a"'), "the key \"a\" twice"),
            ("an escaped key twice", whole.replace('"b"', '"\\u0061"'), "the key \"a\" twice"),
            ("an added token elsewhere", json.dumps({**good, "added_tokens": [{**added, "id": 7}]}),
             "\"<x>\" has the id 7, but 3"),
            ("not UTF-8", whole.encode() + b"\xff", "is not UTF-8: byte"),
            ("nested deeply", '{"a":' * 5000 + "0" + "}" * 5000, "is no tokenizer.json"),
            ("nested in the model", model(vocab=json.loads("[" * 200 + "]" * 200)),
             "is no tokenizer.json"),
            ("NaN", whole.replace('"1.0"', "NaN"), "NaN"),
            ("4300 digits", whole.replace(": 2", ": " + "9" * 5000), "is no tokenizer.json"),
            ("no unknown word", model(unk_token="none"), "cannot be tokenized"),
            ("merges of nothing", model(type="BPE", merges=["x y"]), "is no tokenizer.json"),
            ("a regular expression that is none", json.dumps({**good, "pre_tokenizer": {
                "type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated",
                "invert": False}}), "is no tokenizer.json")):
        with open(path("bad.json"), "wb") as out:
            out.write(content if isinstance(content, bytes) else content.encode())
        done = call(path("bad.json"), write("one", "a b c"), "-o", path("x"), code=2)
        assert expected in done.stderr, (name, done.stderr)
        assert done.stderr.count("\n") == 1, (name, done.stderr)
        assert name == "no unknown word" or "bad.json" in done.stderr, (name, done.stderr)
        assert not os.path.exists(path("x")), name
        assert not [left for left in names_in(folder.name) if left.endswith(".tmp")], name
    with open(path("bad.json"), "wb") as out:
        out.truncate(1 << 40)  # nothing of it is on the disk
    assert "no tokenizer.json" in call(path("bad.json"), path("one"), "-o", path("x"),
                                       code=2).stderr


def what_is_no_regular_file_is_refused_before_anything_is_done():
    """With a tokenizer that is none: it is not read yet. No package is needed."""
    home = path("kinds")
    os.mkdir(home)
    os.mkdir(os.path.join(home, "directory"))
    os.mkfifo(os.path.join(home, "pipe"))
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.path.join(home, "socket"))
    kinds = ["directory", "pipe", "socket"]
    with contextlib.suppress(PermissionError):
        os.mknod(os.path.join(home, "device"), 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        kinds.append("device")
    for kind in kinds:
        os.symlink(kind, os.path.join(home, "to-" + kind))
    os.symlink("loop", os.path.join(home, "loop"))
    before = [(name, os.lstat(os.path.join(home, name)).st_ino) for name in names_in(home)]
    text, tool = write("one", "a b"), os.path.join(root, "tools", "tokenize_text.py")
    for name, expected in ((prefix + kind, f"is a {kind}; a token file can only be a regular file")
                           for kind in kinds for prefix in ("", "to-")):
        done = call(text, text, "-o", os.path.join(home, name), code=2,
                    command=[sys.executable, tool])
        assert expected in done.stderr and done.stderr.count("\n") == 1, done.stderr
    for name, expected in ("loop", "symbolic links"), ("new/", "is a directory"):
        done = call(text, text, "-o", os.path.join(home, name), code=2,
                    command=[sys.executable, tool])
        assert expected in done.stderr and done.stderr.count("\n") == 1, done.stderr
    assert before == [(name, os.lstat(os.path.join(home, name)).st_ino) for name in names_in(home)]


def a_checkpoint_is_not_written_over():
    home, text = path("checkpoints"), write("one", "a b")
    tool = os.path.join(root, "tools", "tokenize_text.py")
    os.makedirs(os.path.join(home, "step-1"))
    write(os.path.join(home, "latest"), "step-1\n")
    write(os.path.join(home, "step-1", "manifest.json"), '{\n  "format": "zinf checkpoint"')
    os.symlink("latest", os.path.join(home, "link"))
    os.mkdir(os.path.join(home, ".zinf-writing"))
    for name in "latest", "link", "step-2", "step-1/tokens", ".zinf-writing/tokens", \
            "step-\x1b[31m\u009b\udc9b":
        done = call(text, text, "-o", os.path.join(home, name), code=2,
                    command=[sys.executable, tool])
        assert "is in a checkpoint, or beside" in done.stderr, done.stderr
        assert not set("\x1b\u009b") & set(done.stderr) and "udc9b" not in done.stderr, done.stderr
        assert done.stderr.count("\n") == 1, done.stderr
    assert names_in(home) == [".zinf-writing", "latest", "link", "step-1"], names_in(home)
    for name in "latest\n", "manifest.json2", "tokens":
        assert not tokenize_text.is_of_checkpoints(os.path.join(home, name)), name
    closed = os.path.join(home, "closed")
    os.mkdir(closed, 0o300)  # (not to root)
    assert not tokenize_text.is_of_checkpoints(os.path.join(closed, "step-2"))


def an_input_is_never_written_over_by_any_of_its_names():
    home = path("inputs")
    os.mkdir(home)
    names = {"tokenizer.json": json.dumps(word_level({"?": 0, "a": 1})), "config.json": "{}",
             "text": "a a a"}
    for name, content in names.items():
        write(os.path.join(home, name), content)
    tool = os.path.join(root, "tools", "tokenize_text.py")
    for name, content in names.items():
        full = os.path.join(home, name)
        os.symlink(name, full + "-symbolic")
        os.link(full, full + "-hard")
        for out in (full, full + "-symbolic", full + "-hard",
                    os.path.join(home, "..", "inputs", name)):
            done = call(home, os.path.join(home, "text"), "-o", out, code=2,
                        command=[sys.executable, tool])
            assert "is an input" in done.stderr and done.stderr.count("\n") == 1, done.stderr
        with open(full, encoding="utf-8") as file:
            assert file.read() == content
    assert len(names_in(home)) == 3 * len(names)


def other_files_stay_and_links_lead_to_what_is_written():
    home = path("links")
    os.mkdir(home)
    os.mkdir(os.path.join(home, "far"))
    for name in "out.tmp", "far/out.tmp", "far/out", "far/kept":
        write(os.path.join(home, name), "mine")
    os.chmod(os.path.join(home, "far", "out"), 0o640)
    os.link(os.path.join(home, "far", "out"), os.path.join(home, "far", "other"))
    os.symlink("far/out", os.path.join(home, "out"))
    os.symlink("far/new", os.path.join(home, "hanging"))
    for name, wrote in ("out", "far/out"), ("hanging", "far/new"):
        call(tokenizer(100), write("one", "a b"), "-o", os.path.join(home, name))
        assert os.path.islink(os.path.join(home, name))
        assert ids_of(os.path.join(home, wrote)) == (0, 99)
    for name in "out.tmp", "far/out.tmp", "far/other", "far/kept":
        with open(os.path.join(home, name), encoding="utf-8") as file:
            assert file.read() == "mine", name
    assert names_in(home) == ["far", "hanging", "out", "out.tmp"]
    assert names_in(os.path.join(home, "far")) == ["kept", "new", "other", "out", "out.tmp"]
    mask = os.umask(0)
    os.umask(mask)
    for name, mode in ("far/out", 0o640), ("far/new", 0o666 & ~mask):
        assert stat.S_IMODE(os.stat(os.path.join(home, name)).st_mode) == mode, name


def cpu_seconds(run):
    with open(f"/proc/{run.pid}/stat", encoding="utf-8") as file:
        return int(file.read().rsplit(")", 1)[1].split()[11]) / os.sysconf("SC_CLK_TCK")


def a_signal_leaves_nothing_behind_and_ends_a_long_piece():
    home = path("signals")
    os.mkdir(home)
    os.mkfifo(path("fifo"))
    # a text that may not be cut: several seconds of the tokenizer
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
             "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
             "vocab": {"a": 0, "b": 1, " ": 2, "ab": 3, "ab ": 4, "ab ab ": 5},
             "merges": [["a", "b"], ["ab", " "], ["ab ", "ab "]]}
    whole = write("whole.json", json.dumps(word_level({}, model=model, pre_tokenizer=None)))
    long = write("long", "ab " * (5 << 20))
    out = write(os.path.join(home, "out"), "mine")
    for number, words in ((signal.SIGINT, (tokenizer(100), path("fifo"))),
                          (signal.SIGTERM, (whole, long)),
                          (signal.SIGHUP, (tokenizer(100), path("fifo")))):
        run = subprocess.Popen([python_with_tokenizers(), os.path.join(root, "tools",
                                                                       "tokenize_text.py"),
                                *words, "-o", out], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            until = time.monotonic() + 60
            while len(names_in(home)) < 2 and time.monotonic() < until:
                time.sleep(0.05)
            assert len(names_in(home)) == 2, names_in(home)
            before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
            if words[0] == whole:  # a second is less than it takes, more than what comes before it
                while cpu_seconds(run) < 1 and run.poll() is None:
                    time.sleep(0.05)
            run.send_signal(number)
            said = run.communicate(timeout=60)
            took = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
            print(f"# {signal.Signals(number).name}: after {took:.2f} s of a processor")
            assert took < 4, took
            assert run.returncode == -number and said == (b"", b""), (run.returncode, said)
        finally:
            run.kill()
        assert names_in(home) == ["out"], names_in(home)
        with open(out, encoding="utf-8") as file:
            assert file.read() == "mine"


def ids_are_the_whole_texts_wherever_it_is_cut():
    done = subprocess.run([python_with_tokenizers(), os.path.join(
        root, "tests", "tools", "tokenize_cuts.py"), "1"], capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    print("# " + done.stdout.strip())


def texts_too_long_for_a_tokenizer_are_refused_by_the_components_name():
    model = {"type": "Unigram", "unk_id": 0, "byte_fallback": False, "vocab": [["?", 0], ["a", -1]]}
    strip = {"type": "Strip", "strip_left": True, "strip_right": False}
    long, words = write("long", "a\n" * (8 << 20) + "a"), write("words", "a a\n" * (5 << 20))
    for name, content, text, expected in (
            ("strip", word_level({"?": 0, "a": 1}, normalizer=strip), words, "normalizer Strip"),
            ("unigram", word_level({}, model=model, pre_tokenizer=None), words, "model Unigram"),
            ("lines", word_level({"?": 0, "a": 1}), long, "without a place to cut")):
        done = call(write(name + ".json", json.dumps(content)), text, "-o", path("x"), code=2)
        assert expected in done.stderr and "16777216 characters" in done.stderr and \
            done.stderr.count("\n") == 1, done.stderr


def standard_output_that_cannot_be_written_is_one_sentence():
    with open("/dev/full", "wb") as full:
        done = subprocess.run([python_with_tokenizers(), os.path.join(
            root, "tools", "tokenize_text.py"), tokenizer(100), write("one", "a b"), "-o",
            path("out.bin")], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 4 and "is written, but standard output" in done.stderr and \
        done.stderr.count("\n") == 1, done.stderr


def a_token_that_the_model_has_not_is_named():
    home = path("model")
    os.mkdir(home)
    with open(os.path.join(home, "tokenizer.json"), "w", encoding="utf-8") as out:
        json.dump(word_level({"?": 0, "a": 1, "b": 2, "extra": 3}), out)
    for config, code in ('{"vocab_size": 3}', 2), ('{"vocab_size": 4}', 0), ("{", 0), ("[]", 0):
        with open(os.path.join(home, "config.json"), "w", encoding="utf-8") as out:
            out.write(config)
        call(home, write("one", "a b"), "-o", path("x"))
        done = call(home, write("one", "a extra b"), "-o", path("x"), code=code)
        assert code == 0 or ("\"extra\"" in done.stderr and "vocabulary of 3" in done.stderr), \
            done.stderr


def mutated_tokenizers_are_taken_or_refused_by_a_sentence():
    done = subprocess.run([python_with_tokenizers(), os.path.join(
        root, "tests", "tools", "fuzz_tokenizer.py"), "150"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    print("# " + done.stdout.strip())


code = tap.run([
    pieces_are_cut_between_words_only_and_lose_nothing_or_a_blank,
    what_is_no_regular_file_is_refused_before_anything_is_done,
    an_input_is_never_written_over_by_any_of_its_names, a_checkpoint_is_not_written_over,
    files_are_llm_cs_in_both_widths,
    the_largest_id_decides_the_width,
    texts_are_taken_whole_whatever_the_file_says_of_lengths,
    merges_left_out_by_chance_are_refused,
    texts_with_a_nul_or_of_nothing, bad_inputs_are_named,
    every_fault_of_a_tokenizer_is_one_sentence, a_token_that_the_model_has_not_is_named,
    other_files_stay_and_links_lead_to_what_is_written,
    a_signal_leaves_nothing_behind_and_ends_a_long_piece,
    ids_are_the_whole_texts_wherever_it_is_cut,
    texts_too_long_for_a_tokenizer_are_refused_by_the_components_name,
    standard_output_that_cannot_be_written_is_one_sentence,
    mutated_tokenizers_are_taken_or_refused_by_a_sentence])
folder.cleanup()
sys.exit(code)
