#!/usr/bin/env python3
# tests/tools/test_tokenize.py - tools/tokenize: where a long text is cut, and, where a virtual
# environment with the package tokenizers is found (ZINF_VENV, or out-venv), the files it writes.
# $1 is the root of the sources.
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


def call(*words, code=0):
    python = os.environ.get("ZINF_VENV") or os.path.join(root, "out-venv")
    if subprocess.run([os.path.join(python, "bin", "python"), "-c", "import tokenizers"],
                      capture_output=True).returncode if os.path.exists(python) else True:
        raise tap.Skip("no virtual environment with tokenizers: tools/tokenize makes out-venv, "
                       "ZINF_VENV names another")
    done = subprocess.run([os.path.join(root, "tools", "tokenize"), *words], capture_output=True,
                          text=True)
    assert done.returncode == code, (words, done.stderr)
    return done


def tokenizer(size):
    """Words between blanks; "a" is 0, "b" the last."""
    vocab = {"a": 0, "?": 1, "<end>": 2, "b": size - 1,
             **{f"word{i}": i for i in range(3, size - 1)}}
    return write("tokenizer.json", json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [],
        "normalizer": None, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None,
        "decoder": None, "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "?"}}))


def files_are_llm_cs_in_both_widths():
    one, two = write("one", "a b\na nothing"), write("two", "b")
    for size, letter, magic, version in ((65536, "H", 20240520, 1), (65537, "I", 20240801, 7)):
        out = path("out.bin")
        call(tokenizer(size), one, two, "-o", out, "--separator", "<end>")
        with open(out, "rb") as file:
            data = file.read()
        assert struct.unpack("<3I", data[:12]) == (magic, version, 6)
        assert data[12:1024] == bytes(1012)
        assert struct.unpack(f"<6{letter}", data[1024:]) == (0, size - 1, 0, 1, 2, size - 1)
        assert not os.path.exists(out + ".tmp")


def bad_inputs_are_named():
    good, text = tokenizer(100), write("one", "a b")
    with open(path("latin"), "wb") as out:
        out.write(b"caf\xe9 au lait")
    for words, expected in (((text, text, "-o", path("x")), "is no tokenizer.json"),
                            ((path("none"), text, "-o", path("x")), "no such file"),
                            ((good, path("none"), "-o", path("x")), "No such file"),
                            ((good, path("latin"), "-o", path("x")), "not UTF-8"),
                            ((good, text, "-o", text), "would be overwritten"),
                            ((good, text, "-o", path("x"), "--separator", "<none>"), "<none>"),
                            ((good, text), "-o OUT.bin"), ((good, text, "--out", "x"), "--out")):
        done = call(*words, code=2)
        assert expected in done.stderr and done.stderr.count("\n") == 1, done.stderr
        assert not os.path.exists(path("x")) and not os.path.exists(path("x.tmp"))
    call(good, text, "-o", path("no/where/x"), code=4)


code = tap.run([pieces_are_cut_before_lines_only_and_lose_nothing, files_are_llm_cs_in_both_widths,
                bad_inputs_are_named])
folder.cleanup()
sys.exit(code)
