#!/usr/bin/env python3
# tests/tools/fuzz_tokenizer.py - mutated tokenizer.json files into tools/tokenize: each is taken,
# and the token file is whole, or is one clear sentence and exit code 2.
#
# usage: fuzz_tokenizer.py COUNT [SEED]         so many files, the same ones each time
#        fuzz_tokenizer.py --seconds N [SEED]   as many as can be done (tools/fuzz tokenizer)
#
# Needs the package tokenizers (tools/venv). A file that breaks the promise is kept and named; exit
# code 1. Each is tried in a process of its own, so that a crash or a hang is found as well.
import json
import os
import random
import resource
import signal
import struct
import sys
import tempfile
import time
import traceback

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
sys.path.insert(0, os.path.join(ROOT, "tools"))
import tokenize_text  # noqa: E402

SECONDS = 60  # of one file, on a machine that does much else
TEXT = "the cat \u00e9 sat\nwhere <end> it was 1234, not here\0\n" * 3


def vocab(*words):
    return {word: i for i, word in enumerate(words)}


def file(model, **parts):
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [
        {"id": 1, "content": "<end>", "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": True}], "normalizer": None, "pre_tokenizer": None,
        "post_processor": None, "decoder": None, "model": model, **parts}


BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
              "use_regex": True}
SEEDS = [
    file({"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
          "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
          "vocab": vocab("t", "<end>", "h", "e", "th", "the", "c", "a", "\u0120", "\u00c3"),
          "merges": [["t", "h"], ["th", "e"]]},
         pre_tokenizer={"type": "Sequence", "pretokenizers": [
             {"type": "Digits", "individual_digits": True},
             {"type": "Split", "pattern": {"Regex": "\\s+"}, "behavior": "Isolated",
              "invert": False}, BYTE_LEVEL]}, decoder=BYTE_LEVEL),
    file({"type": "WordPiece", "unk_token": "?", "continuing_subword_prefix": "##",
          "max_input_chars_per_word": 100, "vocab": vocab("?", "<end>", "the", "c", "##at", "sat")},
         normalizer={"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True,
                     "strip_accents": None, "lowercase": True},
         pre_tokenizer={"type": "BertPreTokenizer"},
         post_processor={"type": "TemplateProcessing", "single": [
             {"SpecialToken": {"id": "<end>", "type_id": 0}}, {"Sequence": {"id": "A",
                                                                            "type_id": 0}}],
             "pair": [], "special_tokens": {"<end>": {"id": "<end>", "ids": [1],
                                                      "tokens": ["<end>"]}}}),
    file({"type": "WordLevel", "unk_token": "?", "vocab": vocab("?", "<end>", "the", "was")},
         pre_tokenizer={"type": "Whitespace"},
         truncation={"direction": "Right", "max_length": 4, "strategy": "LongestFirst",
                     "stride": 0},
         padding={"strategy": {"Fixed": 99}, "direction": "Right", "pad_to_multiple_of": None,
                  "pad_id": 0, "pad_type_id": 0, "pad_token": "?"}),
    file({"type": "Unigram", "unk_id": 0, "byte_fallback": False,
          "vocab": [["?", 0.0], ["<end>", -1.0], ["\u2581the", -2.5], ["t", -3], ["a", -3.5]]},
         normalizer={"type": "Sequence", "normalizers": [
             {"type": "NFKC"},
             {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]},
         decoder={"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always",
                  "split": True})]
ODD = [None, True, False, 0, 1, -1, 2, 65535, 65536, 2**31, 2**32, 2**63, 2**64, 10**30, 0.5, -0.0,
       1e308, "", "a", "\0", "\ud800", "\u00e9" * 40, [], {}, [[]], [None], {"": 0}, [["a", 1]],
       {"type": "Nothing"}, {"Regex": "(a+)+$"}, {"Regex": "("}, {"type": "BPE"}, {"a": {"a": 0}}]
BYTES = [b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b"\0", b"\xff", b"\xc3", b"null", b"NaN",
         b"-Infinity", b"1e999", b"9" * 40, b"[" * 2000, b'{"a":' * 2000, b"\\ud83d", b"//", b" "]


def places(value, found):
    """(container, key) of everything in it."""
    for key in value if isinstance(value, dict) else range(len(value)):
        found.append((value, key))
        if isinstance(value[key], (dict, list)):
            places(value[key], found)
    return found


def change_meaning(draw, content):
    container, key = draw.choice(places(content, []))
    kind = draw.randrange(6)
    if kind < 3:
        container[key] = draw.choice(ODD)
    elif kind == 3:
        del container[key]
    elif kind == 4:
        other, at = draw.choice(places(content, []))
        container[key] = json.loads(json.dumps(other[at]))
    elif isinstance(container, dict):
        container[draw.choice(["a", "", "id", "type", "vocab", "t"])] = draw.choice(ODD)
    else:
        container.insert(key, container[key])


def change_bytes(draw, data):
    at = draw.randrange(len(data) + 1)
    kind = draw.randrange(5)
    if kind == 0:
        return data[:at]
    if kind == 1:
        return data[:at] + draw.choice(BYTES) + data[at:]
    if kind == 2:
        return data[:at] + data[at + draw.randrange(1, 9):]
    if kind == 3:
        return data[:at] + bytes([draw.randrange(256)]) + data[at + 1:]
    end = min(len(data), at + draw.randrange(1, 60))
    return data[:end] + data[at:end] + data[end:]


def mutated(draw):
    content = json.loads(json.dumps(draw.choice(SEEDS)))
    for _ in range(draw.choice([0, 1, 1, 1, 2, 3])):
        if places(content, []):
            change_meaning(draw, content)
    data = json.dumps(content, ensure_ascii=draw.random() < 0.5).encode("utf-8", "surrogatepass")
    for _ in range(draw.choice([0, 0, 0, 1, 1, 2])):
        data = change_bytes(draw, data)
    return data


def call(words, error_file):
    """In a child: its exit code, or minus the signal."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 1
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.alarm(SECONDS)
        with open(error_file, "w", encoding="utf-8") as error, open(os.devnull, "w") as nothing:
            os.dup2(error.fileno(), 2)
            os.dup2(nothing.fileno(), 1)
        sys.argv = ["tokenize", *words]
        tokenize_text.main()
        code = 0
    except SystemExit as stop:
        code = stop.code
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def fault(code, error, out):
    """What is wrong with the outcome; None if nothing is."""
    if any(name.endswith(".tmp") for name in os.listdir(os.path.dirname(out))):
        return "the temporary file is left"
    if code == 2:
        good = error.startswith("tools/tokenize: ") and error.count("\n") == 1 and \
            25 < len(error) < 1000
        return "an output in spite of the error" if os.path.exists(out) else \
            None if good else "not one clear sentence"
    if code != 0:
        return f"exit code {code}"
    with open(out, "rb") as written:
        data = written.read()
    magic, _, count = struct.unpack("<3I", data[:12])
    width = 2 if magic == 20240520 else 4
    if error or not count or len(data) != 1024 + width * count:
        return "a token file that is not whole, or words beside it"
    return None


def main(words):
    seconds = int(words[1]) if words[0] == "--seconds" else None
    count = None if seconds else int(words[0])
    seed = int(words[2 if seconds else 1]) if len(words) > (2 if seconds else 1) else 1
    draw, n, taken, end = random.Random(seed), 0, 0, time.monotonic() + (seconds or 0)
    with tempfile.TemporaryDirectory(prefix="zinf-fuzz-tokenizer-") as folder:
        tokenizer, text, out, error = (os.path.join(folder, name)
                                       for name in ("tokenizer.json", "text", "out", "error"))
        with open(text, "w", encoding="utf-8", newline="") as target:
            target.write(TEXT)
        while n < count if count is not None else time.monotonic() < end:
            data = json.dumps(SEEDS[n]).encode() if n < len(SEEDS) else mutated(draw)
            with open(tokenizer, "wb") as target:
                target.write(data)
            if os.path.exists(out):
                os.unlink(out)
            code = call([tokenizer, text, "-o", out], error)
            with open(error, encoding="utf-8", errors="replace") as source:
                said = source.read()
            what = "refused" if code and n < len(SEEDS) else fault(code, said, out)
            if what:
                kept = os.path.join(tempfile.gettempdir(), f"zinf-tokenizer-{seed}-{n}.json")
                with open(kept, "wb") as target:
                    target.write(data)
                print(f"{kept}: {what}: {said[-1500:]}")
                return 1
            n, taken = n + 1, taken + (code == 0)
    print(f"{n} files of seed {seed}: {taken} taken, {n - taken} refused")
    return 0


if __name__ == "__main__":
    if not all(word.isdigit() for word in sys.argv[1:] if word != "--seconds") or \
            len(sys.argv) < 2:
        sys.exit("usage: fuzz_tokenizer.py COUNT [SEED] | --seconds N [SEED]")
    sys.exit(main(sys.argv[1:]))
