#!/usr/bin/env python3
# tools/tokenize_text.py - the work of tools/tokenize, which see. (A tokenize.py beside other
# scripts would hide Python's own.)
import array
import os
import struct
import sys

MAGIC = {2: (20240520, 1), 4: (20240801, 7)}  # llm.c: bytes of a token -> magic, version
MOST_TOKENS = 2**31 - 1  # its header counts in 32 bits
# At once to the tokenizer, which takes some 100 times as much; a longer text is cut before a line
# that begins with no blank, where byte-level tokenizers begin a new word anyway.
PIECE = 16 << 20


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


def open_tokenizer(path):
    from tokenizers import Tokenizer

    file = os.path.join(path, "tokenizer.json") if os.path.isdir(path) else path
    if not os.path.isfile(file):
        fail(2, f"\"{file}\": no such file; a tokenizer.json is needed")
    try:
        return Tokenizer.from_file(file)
    except Exception as error:  # the package raises Exception itself
        return fail(2, f"\"{file}\" is no tokenizer.json: {' '.join(str(error).split())[:300]}")


def pieces(path):
    """The text in parts of about PIECE characters."""
    try:
        with open(path, encoding="utf-8", newline="") as file:
            rest = ""
            while True:
                read = file.read(PIECE)
                rest += read
                if not read:
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
        fail(2, f"\"{path}\" is not UTF-8: byte {error.start} of a piece ({error.reason})")
    except OSError as error:
        fail(2, f"\"{path}\": {error.strerror}")


def main():
    tokenizer_path, texts, output, separator = parse(sys.argv[1:])
    tokenizer = open_tokenizer(tokenizer_path)
    vocab = tokenizer.get_vocab_size(with_added_tokens=True)
    between = tokenizer.token_to_id(separator) if separator else None
    if separator and between is None:
        fail(2, f"--separator \"{separator}\": the tokenizer has no such token")
    width = 2 if vocab <= 65536 else 4
    count, temporary = 0, output + ".tmp"
    try:
        with open(temporary, "wb") as out:
            out.write(bytes(1024))
            for number, path in enumerate(texts):
                ids = array.array("I", [between] if number and separator else [])
                for piece in pieces(path):
                    ids.extend(tokenizer.encode(piece, add_special_tokens=False).ids)
                    count += len(ids)
                    array.array("H" if width == 2 else "I", ids).tofile(out)
                    ids = array.array("I")
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
