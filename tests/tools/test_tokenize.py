#!/usr/bin/env python3
# tests/tools/test_tokenize.py - tools/tokenize: where a long text is cut, and, where a virtual
# environment with the package tokenizers is found (ZINF_VENV, or out-venv), the files it writes.
# $1 is the root of the sources.
import functools
import json
import os
import random
import struct
import subprocess
import sys
import tempfile

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


def pieces_are_cut_before_lines_only_and_lose_nothing():
    draw = random.Random(3)
    for size in 1, 2, 7, 64:
        tokenize_text.PIECE = size
        for _ in range(60):
            text = "".join(draw.choice("ab\u00e9 \n\n\r") for _ in range(draw.randrange(200)))
            found = list(tokenize_text.pieces(write("text", text)))
            assert "".join(found) == text
            for left, right in zip(found, found[1:]):
                assert not right or (left[-1] == "\n" and not right[0].isspace()), (left, right)


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
        assert not os.path.exists(out + ".tmp")


def the_largest_id_decides_the_width():
    for largest, magic in (65535, 20240520), (65536, 20240801), (2**31 - 2, 20240801):
        few = write("few.json", json.dumps(word_level({"?": 0, "a": 1, "b": largest})))
        call(few, write("one", "a b c"), "-o", path("out.bin"))
        assert ids_of(path("out.bin")) == (1, largest, 0)
        with open(path("out.bin"), "rb") as file:
            assert struct.unpack("<I", file.read(4)) == (magic,)


def texts_are_taken_whole_whatever_the_file_says_of_lengths_and_chance():
    # sizes of batches and a dropout of merges are for other uses of the same file
    content = word_level({"?": 0, "a": 1, "b": 2}, truncation={
        "direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}, padding={
        "strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
        "pad_type_id": 0, "pad_token": "?"})
    call(write("cut.json", json.dumps(content)), write("one", "a b a b a"), "-o", path("out.bin"))
    assert ids_of(path("out.bin")) == (1, 2, 1, 2, 1)
    model = {"type": "BPE", "dropout": 0.5, "unk_token": None, "continuing_subword_prefix": None,
             "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
             "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}
    call(write("drop.json", json.dumps({**content, "model": model})),
         write("one", "ab " * 50), "-o", path("out.bin"))
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
        assert not os.path.exists(path("x")) and not os.path.exists(path("x.tmp"))
    call(good, text, "-o", path("no/where/x"), code=4)


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
        assert not os.path.exists(path("x")) and not os.path.exists(path("x.tmp")), name
    with open(path("bad.json"), "wb") as out:
        out.truncate(1 << 40)  # nothing of it is on the disk
    assert "no tokenizer.json" in call(path("bad.json"), path("one"), "-o", path("x"),
                                       code=2).stderr


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
    pieces_are_cut_before_lines_only_and_lose_nothing, files_are_llm_cs_in_both_widths,
    the_largest_id_decides_the_width,
    texts_are_taken_whole_whatever_the_file_says_of_lengths_and_chance,
    texts_with_a_nul_or_of_nothing, bad_inputs_are_named,
    every_fault_of_a_tokenizer_is_one_sentence, a_token_that_the_model_has_not_is_named,
    mutated_tokenizers_are_taken_or_refused_by_a_sentence])
folder.cleanup()
sys.exit(code)
