#!/usr/bin/env python3
# tools/tokenize_text.py - the work of tools/tokenize, which see. (A tokenize.py beside other
# scripts would hide Python's own.)
import array
import codecs
import contextlib
import json
import os
import struct
import sys
import tempfile

MAGIC = {2: (20240520, 1), 4: (20240801, 7)}  # llm.c: bytes of a token -> magic, version
MOST_TOKENS = 2**31 - 1  # its header counts in 32 bits
# At once to the tokenizer, which takes some 100 times as much; a longer text is cut before a line
# that begins with no blank, where byte-level tokenizers begin a new word anyway.
PIECE = 16 << 20
MOST_FILE = 1 << 28  # bytes of a tokenizer.json; the largest known ones have some 40 MB
MOST_ID = 2**31 - 2  # zinf's vocabularies end there


def shown(text, most=60):
    """For a sentence: one line of printable ASCII."""
    text = "".join(c if " " <= c <= "~" else ascii(c)[1:-1] for c in str(text))
    return text if len(text) <= most else text[:most] + "..."


def fail(code, text):
    print(f"tools/tokenize: {text}", file=sys.stderr)
    sys.exit(code)


def parse(words):
    given, output, separator = [], None, None
    words = list(words)
    while words:
        word = words.pop(0)
        if word in ("-o", "--separator"):
            if not words:
                fail(2, f"{word} needs a value: see --help")
            if word == "-o":
                output = words.pop(0)
            else:
                separator = words.pop(0)
        elif word.startswith("-") and word != "-":
            fail(2, f"unknown option \"{word}\": see --help")
        else:
            given.append(word)
    if len(given) < 2 or not output:
        fail(2, "give TOKENIZER, TEXT.. and -o OUT.bin: see --help")
    for path in given:
        if os.path.exists(output) and os.path.exists(path) and os.path.samefile(path, output):
            fail(2, f"-o \"{output}\" is an input and would be overwritten")
    return given[0], given[1:], output, separator


@contextlib.contextmanager
def package(what):
    """Whatever the package tokenizers raises (Exception itself; of its panics a BaseException,
    which have written to standard error by then) is one sentence."""
    with tempfile.TemporaryFile() as hidden:
        before = os.dup(2)
        os.dup2(hidden.fileno(), 2)
        try:
            yield
            error = None
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as caught:
            error = caught
        finally:
            os.dup2(before, 2)
            os.close(before)
    if error is not None:
        fail(2, f"{what}: {shown(' '.join(str(error).split()), 300)}")


def distinct(pairs):
    """A JSON object, whose keys must differ."""
    found = dict(pairs)
    if len(found) != len(pairs):
        seen = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))
        raise ValueError(f"the key \"{shown(twice)}\" twice in one object")
    return found


def no_constant(word):
    raise ValueError(f"{word} is no JSON")


def read_json(file):
    """The text and what it means."""
    try:
        with open(file, "rb") as source:
            data = source.read(MOST_FILE + 1)
    except OSError as error:
        fail(2, f"\"{file}\": {error.strerror}")
    if len(data) > MOST_FILE:
        fail(2, f"\"{file}\" has more than {MOST_FILE} bytes: no tokenizer.json")
    try:
        text = data.decode("utf-8")
        return text, json.loads(text, object_pairs_hook=distinct, parse_constant=no_constant)
    except UnicodeDecodeError as error:
        fail(2, f"\"{file}\" is not UTF-8: byte {error.start} ({error.reason})")
    except RecursionError:
        fail(2, f"\"{file}\" is no tokenizer.json: it is nested too deeply")
    except ValueError as error:
        fail(2, f"\"{file}\" is no tokenizer.json: {shown(error, 300)}")


def check_ids(file, pairs):
    """Whole numbers of their own."""
    owners = {}
    for token, number in pairs:
        if type(number) is not int or not 0 <= number <= MOST_ID:
            fail(2, f"\"{file}\": the token \"{shown(token)}\" has the id {shown(number)}; expected "
                    f"a whole number up to {MOST_ID}")
        if owners.setdefault(number, token) != token:
            fail(2, f"\"{file}\": the tokens \"{shown(owners[number])}\" and \"{shown(token)}\" "
                    f"have the same id {number}")


def check_file(file, content):
    """What the package would take for something else."""
    model = content.get("model") if isinstance(content, dict) else None
    if not isinstance(model, dict):
        fail(2, f"\"{file}\" is no tokenizer.json: it has no object \"model\"")
    vocab = model.get("vocab")
    if not isinstance(vocab, (dict, list)):
        fail(2, f"\"{file}\" is no tokenizer.json: \"vocab\" of its model is "
                f"{shown(json.dumps(vocab))}, neither an object nor a list")
    if not vocab:
        fail(2, f"\"{file}\": the vocabulary is empty")
    if isinstance(vocab, dict):
        check_ids(file, vocab.items())


def open_tokenizer(path):
    """The tokenizer, and one more than its largest id."""
    from tokenizers import Tokenizer

    file = os.path.join(path, "tokenizer.json") if os.path.isdir(path) else path
    if not os.path.isfile(file):
        fail(2, f"\"{file}\": no such file; a tokenizer.json is needed")
    text, content = read_json(file)
    check_file(file, content)
    with package(f"\"{file}\" is no tokenizer.json"):
        tokenizer = Tokenizer.from_str(text)
        # they are of another use: texts are neither cut nor filled up here, nor cut by chance
        tokenizer.no_truncation()
        tokenizer.no_padding()
        if getattr(tokenizer.model, "dropout", None):
            tokenizer.model.dropout = None
        vocab = tokenizer.get_vocab(with_added_tokens=True)
    for token in content.get("added_tokens") or []:
        if vocab.get(token["content"]) != token["id"]:
            fail(2, f"\"{file}\": the added token \"{shown(token['content'])}\" has the id "
                    f"{token['id']}, but {vocab.get(token['content'])} in the vocabulary")
    check_ids(file, vocab.items())
    return tokenizer, 1 + max(vocab.values())


def model_vocab(path):
    """vocab_size of the config.json beside; None if there is none that says so."""
    try:
        with open(os.path.join(path, "config.json"), encoding="utf-8") as source:
            size = json.load(source).get("vocab_size")
    except (OSError, ValueError, AttributeError, RecursionError):
        return None  # no model yet, or one that zinf-plan will refuse
    return size if type(size) is int and size > 0 else None


def pieces(path):
    """The text in parts of about PIECE characters."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    at = 0
    try:
        with open(path, "rb") as file:
            rest = ""
            while True:
                data = file.read(PIECE)
                begin = at - len(decoder.getstate()[0])
                rest += decoder.decode(data, final=not data)
                at += len(data)
                if not data:
                    break
                cut = len(rest)
                while cut > 0 and (cut == len(rest) or rest[cut - 1] != "\n" or
                                   rest[cut].isspace()):
                    cut = rest.rfind("\n", 0, cut - 1) + 1
                if cut > 0:
                    yield rest[:cut]
                    rest = rest[cut:]
            yield rest
    except UnicodeDecodeError as error:
        fail(2, f"\"{path}\" is not UTF-8: byte {begin + error.start} ({error.reason})")
    except OSError as error:
        fail(2, f"\"{path}\": {error.strerror}")


def encode(tokenizer, path, limit):
    """The ids of the text, piece by piece."""
    for piece in pieces(path):
        with package(f"\"{path}\" cannot be tokenized"):
            ids = tokenizer.encode(piece, add_special_tokens=False).ids
        if limit and ids and max(ids) >= limit:
            token = shown(tokenizer.id_to_token(max(ids)))
            fail(2, f"\"{path}\" has the token \"{token}\", whose id is {max(ids)}: the model's "
                    f"config.json has a vocabulary of {limit}")
        yield ids


def main():
    tokenizer_path, texts, output, separator = parse(sys.argv[1:])
    tokenizer, vocab = open_tokenizer(tokenizer_path)
    between = tokenizer.token_to_id(separator) if separator else None
    if separator and between is None:
        fail(2, f"--separator \"{separator}\": the tokenizer has no such token")
    width = 2 if vocab <= 65536 else 4
    limit = model_vocab(tokenizer_path)
    count, temporary = 0, output + ".tmp"
    try:
        with open(temporary, "wb") as out:
            out.write(bytes(1024))
            for number, path in enumerate(texts):
                if number and separator:
                    array.array("H" if width == 2 else "I", [between]).tofile(out)
                    count += 1
                for ids in encode(tokenizer, path, limit):
                    count += len(ids)
                    array.array("H" if width == 2 else "I", ids).tofile(out)
            if not count:
                fail(2, f"no token in {', '.join(texts)}: nothing to write")
            if count > MOST_TOKENS:
                fail(2, f"{count} tokens; a file of this format holds {MOST_TOKENS}")
            out.seek(0)
            out.write(struct.pack("<3I", *MAGIC[width], count))
        os.rename(temporary, output)
    except OSError as error:
        fail(4, f"writing \"{output}\": {error.strerror}")
    finally:
        if os.path.exists(temporary):
            os.unlink(temporary)
    print(f"{output}: {count} tokens of {8 * width} bits, vocabulary {vocab}")


if __name__ == "__main__":
    main()
