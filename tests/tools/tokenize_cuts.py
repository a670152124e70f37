#!/usr/bin/env python3
# tests/tools/tokenize_cuts.py - texts cut at every place where tools/tokenize would, against the
# package tokenizers on the whole text, for tokenizers of all kinds: the ids are equal, or it is
# refused by the name of the component. Needs the package (tools/venv).
#
# usage: tokenize_cuts.py ROUNDS [SEED]
import collections
import itertools
import json
import os
import random
import sys
import tempfile

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
sys.path.insert(0, os.path.join(ROOT, "tools"))
os.environ["TOKENIZERS_PARALLELISM"] = "false"
import tokenize_text  # noqa: E402
from tokenizers import Tokenizer, models, pre_tokenizers  # noqa: E402
from tokenize_cut import REGEXES  # noqa: E402

WORDS = ["the cat", "the", "The", "a", "cat", "don't", "I'll", "\u0130I", "stra\u00dfe", "e\u0301a",
         "\ud55c\uad6d", "\u0627\u0644", "\u6f22\u5b57", "\u0439a", "\ufb01x", "12", "1234a", "a-b",
         "a,", "(b)", "``x", "<s>", "<end>", "x<end>", "\u2581a", "\u2581", "\u00a0", "zz", "ab",
         "theab", "\u0391\u03a3", "\u1e9b\u0323",
         "\u0e33a", "\u037aa", "MASK"]
BLANKS = [" "] * 14 + ["  ", "\n", " \n", "\n\n", "\t", " \u3000", "\r\n", ""]


def sequence(key, *parts):
    return {"type": "Sequence", key: list(parts)}


def text_of(draw):
    return "".join(draw.choice(WORDS) + draw.choice(BLANKS) for _ in range(draw.randrange(1, 40)))


def replace(old, new):
    return {"type": "Replace", "pattern": {"String": old}, "content": new}


def split(pattern, behavior="Isolated", invert=False):
    return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}


def byte_level(prefix, regex=True):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True,
            "use_regex": regex}


def metaspace(scheme, divides=True):
    return {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": scheme,
            "split": divides}


PREPEND = {"type": "Prepend", "prepend": "\u2581"}
STRIP = {"type": "Strip", "strip_left": True, "strip_right": True}
BERT = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True,
        "strip_accents": True, "lowercase": True}
NORMALIZERS = [None, *({"type": kind} for kind in (
    "NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt")), BERT, STRIP,
    {**STRIP, "strip_right": False}, PREPEND, replace(" ", "\u2581"), replace("``", '"'),
    replace("a", " "), replace("  ", " "), replace(" ", "_"), replace(" ", ""),
    {"type": "Replace", "pattern": {"Regex": "\\s+"}, "content": " "},
    sequence("normalizers", PREPEND, replace(" ", "\u2581")),
    sequence("normalizers", replace(" ", "\u2581"), PREPEND),
    sequence("normalizers", PREPEND, PREPEND, replace(" ", "\u2581")),
    sequence("normalizers", PREPEND, replace(" ", "\u2581"), replace("\u2581", "_")),
    sequence("normalizers", {"type": "NFKC"}, PREPEND, replace(" ", "\u2581")),
    sequence("normalizers", {"type": "NFD"}, {"type": "StripAccents"}, {"type": "Lowercase"}),
    sequence("normalizers", PREPEND, replace(" ", "\u2581"), STRIP), {"type": "ByteLevel"}]
PRE_TOKENIZERS = [None, byte_level(False), byte_level(True), byte_level(True, False),
    *(metaspace(scheme, divides) for scheme in ("always", "first", "never")
      for divides in (True, False)),
    *({"type": kind} for kind in ("Whitespace", "WhitespaceSplit", "BertPreTokenizer",
                                  "UnicodeScripts")),
    {"type": "Punctuation", "behavior": "Contiguous"},
    {"type": "Digits", "individual_digits": False},
    {"type": "CharDelimiterSplit", "delimiter": " "},
    *(split({"String": " "}, behavior) for behavior in ("Isolated", "Removed", "Contiguous",
                                                        "MergedWithPrevious", "MergedWithNext")),
    split({"String": "\u2581"}, "MergedWithNext"), split({"String": "a"}, "MergedWithPrevious"),
    split({"Regex": "\\p{L}{3}"}), *(split({"Regex": regex}, *how) for regex in REGEXES
                                    for how in ((), ("Removed", True))),
    sequence("pretokenizers", {"type": "Digits", "individual_digits": True}, byte_level(False)),
    sequence("pretokenizers", split({"Regex": REGEXES[1]}), byte_level(False, False)),
    sequence("pretokenizers", split({"Regex": REGEXES[2]}), byte_level(True, False)),
    sequence("pretokenizers", {"type": "WhitespaceSplit"}, metaspace("always")),
    sequence("pretokenizers", {"type": "WhitespaceSplit"}, metaspace("first")),
    sequence("pretokenizers", {"type": "Punctuation", "behavior": "Isolated"}, metaspace("always")),
    {**metaspace("always"), "replacement": "_"},
    sequence("pretokenizers", byte_level(True, False), {"type": "Whitespace"}),
    sequence("pretokenizers", byte_level(False), metaspace("first"))]
# content, lstrip, rstrip, single_word, normalized
ADDED = [[], [("<end>", False, False, False, False)], [("<end>", True, True, False, True)],
         [("<end>", True, True, True, False)], [("MASK", True, False, False, False)],
         [("MASK", False, True, True, True)], [("ab", False, True, False, False)],
         [("the cat", False, False, False, True)], [(" ", False, False, True, False)],
         [(" ", True, True, False, False)], [(" a", False, False, False, True)],
         [(" a", False, False, True, False)],
         [("  ", False, False, False, False), ("\n", False, False, False, False)]]


def model_of(draw, texts, normalizer, pre_tokenizer, usual):
    """A model of what it will be given, some of it unknown. usual: as those in use."""
    pieces = Tokenizer(models.BPE())
    content = {**json.loads(pieces.to_str()), "normalizer": normalizer,
               "pre_tokenizer": pre_tokenizer}
    pieces = Tokenizer.from_str(json.dumps(content))
    words = []
    for text in texts:
        text = pieces.normalizer.normalize_str(text) if pieces.normalizer else text
        words += [word for word, _ in pieces.pre_tokenizer.pre_tokenize_str(text)] \
            if pieces.pre_tokenizer else [text]
    letters = sorted({c for word in words for c in word})
    kind = draw.choice(["BPE", "BPE", "BPE", "WordPiece", "WordLevel", "Unigram"])
    kind = "BPE" if usual else kind
    if kind == "WordLevel":
        known = ["?", *sorted({word for word in words if draw.random() < 0.6})]
        return {"type": kind, "unk_token": "?", "vocab": {w: i for i, w in enumerate(known)}}
    tokens, merges = ["?", *(c for c in letters if c in " \u2581" or
                             (c != "?" and draw.random() < 0.95))], []
    pairs = sorted({(word[a:b], word[b:c]) for word in words[:200] for a in range(len(word))
                    for b in range(a + 1, min(a + 3, len(word)))
                    for c in range(b + 1, min(b + 3, len(word) + 1))})
    draw.shuffle(pairs)
    inside = not usual and draw.random() < 0.2  # tokens with a blank inside, too
    for left, right in pairs:
        if not inside and any(c in right for c in " \u2581\u0120"):
            continue
        if left in tokens and right in tokens and left + right not in tokens and len(tokens) < 150:
            tokens.append(left + right)
            merges.append([left, right])
    vocab = {token: i for i, token in enumerate(tokens)}
    if kind == "BPE":
        return {"type": kind, "dropout": None, "unk_token": "?", "continuing_subword_prefix": None,
                "end_of_word_suffix": None, "fuse_unk": draw.random() < 0.5, "byte_fallback": False,
                "ignore_merges": not usual and draw.random() < 0.2, "vocab": vocab,
                "merges": merges}
    if kind == "Unigram":
        return {"type": kind, "unk_id": 0, "byte_fallback": False,
                "vocab": [[token, -round(draw.random() * 9, 2)] for token in tokens]}
    return {"type": kind, "unk_token": "?", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": {
                token: i for i, token in enumerate(
                    [*tokens, *("##" + token for token in tokens[1:])])}}


def tokenizer_of(draw, texts, normalizer, pre_tokenizer, usual):
    model = model_of(draw, texts, normalizer, pre_tokenizer, usual)
    added = ADDED[draw.randrange(2)] if usual or draw.random() < 0.5 else draw.choice(ADDED)
    size = len(model["vocab"])
    listed = [{"id": model["vocab"].get(text, size + i) if isinstance(model["vocab"], dict) else
               size + i, "content": text, "lstrip": left, "rstrip": right, "single_word": single,
               "normalized": normalized, "special": True}
              for i, (text, left, right, single, normalized) in enumerate(added)]
    return Tokenizer.from_str(json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": listed,
        "normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "post_processor": None,
        "decoder": None, "model": model}))


def ids_of(tokenizer, path):
    """As tools/tokenize; None if it refuses to cut."""
    try:
        return [i for ids in tokenize_text.encode(tokenizer, path, None) for i in ids]
    except SystemExit:
        return None


LLAMA2 = sequence("normalizers", PREPEND, replace(" ", "\u2581"))
LLAMA3 = split({"Regex": REGEXES[1]})
USUAL = [(None, byte_level(False)), (None, byte_level(True)), (LLAMA2, None),
         ({"type": "NFC"}, split({"Regex": REGEXES[2]})), (None, metaspace("always")),
         (None, metaspace("first")), (None, metaspace("never")), (None, metaspace("first", False)),
         (BERT, {"type": "BertPreTokenizer"}), ({"type": "Lowercase"}, {"type": "Whitespace"}),
         (None, sequence("pretokenizers", LLAMA3, byte_level(False, False))),
         (None, sequence("pretokenizers", {"type": "Digits", "individual_digits": True},
                         byte_level(False)))]


# a letter that becomes one with a mark, and a merge of the mark with a blank
MARKS = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [],
         "normalizer": sequence("normalizers", {"type": "NFD"}, PREPEND, replace(" ", "\u2581")),
         "pre_tokenizer": None, "post_processor": None, "decoder": None,
         "model": {"type": "BPE", "dropout": None, "unk_token": None,
                   "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": False,
                   "byte_fallback": False, "merges": [["\u0306", "\u2581"]], "vocab": {
                       "a": 0, "b": 1, "\u0438": 2, "\u0306": 3, "\u2581": 4, "\u0306\u2581": 5}}}


# a letter whose last byte is no letter to ByteLevel, and a merge of that with a blank
BYTES = {**MARKS, "normalizer": None, "pre_tokenizer": byte_level(False, False), "model": {
    **MARKS["model"], "merges": [["\u00b8", "\u0120"]], "vocab": {
        c: i for i, c in enumerate("a,\u00c3\u00b8\u0120".strip())} | {"\u00b8\u0120": 5}}}


# a word that is a token by itself, without a merge: of a whole text only if it is that word
WHOLE_WORD = {**MARKS, "normalizer": sequence("normalizers", PREPEND, replace(" ", "\u2581")),
              "model": {**MARKS["model"], "ignore_merges": True, "merges": [], "vocab": {
                  "a": 0, "b": 1, "\u2581": 2, "\u2581ab": 3}}}


def try_texts(tokenizer, texts, path, usual, counts):
    """What may not be cut is taken whole up to a size, which each text has or does not have."""
    left_out, why = tokenize_text.cutting(tokenizer)
    assert not (usual and why), f"{why} is refused: {tokenizer.to_str()}"
    for number, text in enumerate(texts):
        with open(path, "w", encoding="utf-8", newline="") as out:
            out.write(text)
        tokenize_text.WHOLE = len(text) - (1 if why and number % 2 else 0)
        found = ids_of(tokenizer, path)
        expected = tokenizer.encode(text, add_special_tokens=False).ids
        good = found == (None if why and number % 2 else expected)
        counts["wrong" if not good else "refused" if found is None else "same"] += 1
        if not good:
            print(f"{tokenizer.to_str()}\n{text!r}\n{found}\nexpected {expected}")
        if not why:
            counts["cuts"] += len(list(tokenize_text.pieces(path, tokenizer))) - 1


def main(rounds, seed=1):
    """Every normalizer with every pre-tokenizer, and those in use, so often; the rest is drawn."""
    draw, counts = random.Random(seed), collections.Counter()
    tokenize_text.PIECE = 1  # every place is a cut, as soon as it is read
    tokenize_text.fail = lambda code, text: sys.exit(code)
    with tempfile.TemporaryDirectory(prefix="zinf-cuts-") as folder:
        path = os.path.join(folder, "text")
        for usual, normalizer, pre_tokenizer in rounds * [
                *((False, *pair) for pair in itertools.product(NORMALIZERS, PRE_TOKENIZERS)),
                *((True, *pair) for pair in USUAL * 4)]:
            texts = [text_of(draw) for _ in range(4)]
            tokenizer = tokenizer_of(draw, texts, normalizer, pre_tokenizer, usual)
            try_texts(tokenizer, texts, path, usual, counts)
            if counts["wrong"]:
                break
        try_texts(Tokenizer.from_str(json.dumps(MARKS)), ["a\u0439 a\u0439 a b \u0439"],
                  path, True, counts)
        try_texts(Tokenizer.from_str(json.dumps(BYTES)), ["\u00f8 a, \u00f8 a"] * 2, path, False,
                  counts)
        try_texts(Tokenizer.from_str(json.dumps(WHOLE_WORD)), ["ab ab ab"] * 2, path, False, counts)
    print(f"{counts['same']} texts the same with {counts['cuts']} cuts, {counts['refused']} "
          f"refused, {counts['wrong']} wrong")
    return 1 if counts["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
