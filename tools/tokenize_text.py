#!/usr/bin/env python3
# tools/tokenize_text.py - the work of tools/tokenize, which see. (A tokenize.py beside other
# scripts would hide Python's own.)
import array
import codecs
import contextlib
import errno
import json
import os
import re
import signal
import stat
import struct
import sys
import tempfile
import threading
import unicodedata

import tokenize_cut

MAGIC = {2: (20240520, 1), 4: (20240801, 7)}  # llm.c: bytes of a token -> magic, version
MOST_TOKENS = 2**31 - 1  # its header counts in 32 bits
# Characters at once to the tokenizer, which takes some 250 bytes for each. A longer text is cut if
# its tokens stay the same (tokenize_cut.py); else it is taken at once up to the second size.
PIECE, WHOLE = 1 << 20, 16 << 20
MOST_FILE = 1 << 28  # bytes of a tokenizer.json; the largest known ones have some 40 MB
MOST_ID = 2**31 - 2  # zinf's vocabularies end there
BLAMED = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.EACCES,
          errno.EPERM, errno.EROFS}  # on the name that was given; others on the machine


def shown(text, most=60):
    """For a sentence: one line of printable ASCII."""
    text = "".join(c if " " <= c <= "~" else ascii(c)[1:-1] for c in str(text))
    return text if len(text) <= most else text[:most] + "..."


def plain(text):
    """Without control characters, which command a terminal: any file's name may be in it, with
    bytes that are no UTF-8 (as surrogates), some of which are control characters by themselves."""
    return "".join("?" if unicodedata.category(c) == "Cc" or "\udc80" <= c <= "\udc9f" else c
                   for c in text)


def fail(code, text):
    print(f"tools/tokenize: {plain(text)}", file=sys.stderr)
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
    return given[0], given[1:], output, separator


def is_checkpoint(folder):
    manifest = os.path.join(folder, "manifest.json")
    try:
        number = os.open(manifest, os.O_RDONLY | os.O_NONBLOCK)  # no waiting for a pipe's writer
        with open(number, "rb") as file:
            return b'"zinf checkpoint"' in (file.read(64) or b"")
    except OSError:
        return False


def holds_checkpoints(folder):
    try:
        names = os.listdir(folder)
    except OSError:
        return False
    return ".zinf-lock" in names or any(
        name.startswith("step-") and is_checkpoint(os.path.join(folder, name)) for name in names)


def is_of_checkpoints(path):
    """As runtime/checkpoint_owns.c: a file in one, or beside some by a name of theirs, or in a
    directory that has such a name."""
    own = re.compile(r"step-.*|\.zinf-.*|latest|manifest\.json", re.DOTALL)
    folder, name = os.path.split(path)
    above, name_of_folder = os.path.split(folder)
    return is_checkpoint(folder) or any(
        own.fullmatch(name) and holds_checkpoints(folder)
        for folder, name in ((folder, name), (above, name_of_folder)))


def check_output(output, inputs):
    """The file that -o stands for: what a symbolic link leads to."""
    found, real = None, os.path.realpath(output)
    try:
        found = os.stat(real)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        fail(2, f"-o \"{output}\": {error.strerror}")
    if output.endswith("/") or (found and not stat.S_ISREG(found.st_mode)):
        kinds = {stat.S_IFCHR: "a device", stat.S_IFBLK: "a device", stat.S_IFIFO: "a pipe",
                 stat.S_IFSOCK: "a socket"}
        kind = kinds.get(found and stat.S_IFMT(found.st_mode), "a directory")
        fail(2, f"-o \"{output}\" is {kind}; a token file can only be a regular file")
    if is_of_checkpoints(real):
        fail(2, f"-o \"{output}\" is in a checkpoint, or beside some by a name that is theirs; "
             "give another name")
    for path in inputs:
        if found and os.path.exists(path) and os.path.samestat(found, os.stat(path)):
            fail(2, f"-o \"{output}\" is an input, \"{path}\", and would be overwritten")
    return real


class Output:
    """A file under a name of its own beside the one that is wanted, which it replaces when it is
    whole; removed on every other way out. A signal is waited for in a thread: the tokenizer would
    hold it up for as long as a piece takes."""

    def __init__(self, path):
        self.path, self.lock, self.temporary = path, threading.Lock(), None
        signals = [s for s in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
                   if signal.getsignal(s) != signal.SIG_IGN]
        for number in signals:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # in the tokenizer's threads as well
        threading.Thread(target=self.wait, args=(signals,), daemon=True).start()
        mask = os.umask(0)
        os.umask(mask)
        mode = os.stat(path).st_mode & 0o777 if os.path.exists(path) else 0o666 & ~mask
        with self.lock:
            number, self.temporary = tempfile.mkstemp(
                prefix=".zinf-tokenize-", suffix=".tmp", dir=os.path.dirname(path))
        self.file = os.fdopen(number, "wb")
        os.fchmod(number, mode)

    def wait(self, signals):
        number = signal.sigwait(signals)
        with self.lock:
            self.remove()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
            os.kill(os.getpid(), number)

    def remove(self):
        if self.temporary:
            with contextlib.suppress(OSError):
                os.unlink(self.temporary)
            self.temporary = None

    def commit(self):
        self.file.flush()
        os.fsync(self.file.fileno())
        with self.lock:
            os.rename(self.temporary, self.path)
            self.temporary = None

    def close(self):
        with self.lock:
            self.remove()
        with contextlib.suppress(OSError):
            self.file.close()


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
        except SystemExit:
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
    if model.get("dropout"):
        fail(2, f"\"{file}\": its model has dropout {shown(json.dumps(model['dropout']))}, which "
                f"leaves out merges by chance: no two token files would be the same; set it to "
                f"null or 0")
    if isinstance(vocab, dict):
        check_ids(file, vocab.items())


def tokenizer_file(path):
    return os.path.join(path, "tokenizer.json") if os.path.isdir(path) else path


def open_tokenizer(file):
    """The tokenizer, and one more than its largest id."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one piece at a time
    from tokenizers import Tokenizer

    if not os.path.isfile(file):
        fail(2, f"\"{file}\": no such file; a tokenizer.json is needed")
    text, content = read_json(file)
    check_file(file, content)
    with package(f"\"{file}\" is no tokenizer.json"):
        tokenizer = Tokenizer.from_str(text)
        # they are of another use: texts are neither cut nor filled up here
        tokenizer.no_truncation()
        tokenizer.no_padding()
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


def cutting(tokenizer):
    """How many characters are left out where a text is cut, and why it cannot be; one is None."""
    normalizer = tokenizer.normalizer
    try:
        return int(tokenize_cut.check(json.loads(tokenizer.to_str()),
                                      normalizer.normalize_str if normalizer else str)), None
    except tokenize_cut.Refused as why:
        return None, why


def pieces(path, tokenizer):
    """The text in parts whose tokens are the whole's."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    at, rest, known, left_out, why = 0, "", 0, None, None
    try:
        with open(path, "rb") as file:
            while True:
                data = file.read(PIECE)
                begin = at - len(decoder.getstate()[0])
                rest += decoder.decode(data, final=not data)
                at += len(data)
                if not data:
                    break
                if len(rest) > PIECE and left_out is None and why is None:
                    left_out, why = cutting(tokenizer)
                cut = 0
                if len(rest) > PIECE and why is None:
                    cut = tokenize_cut.last_cut(rest, known)
                    known = len(rest) - 1
                if cut > 0:
                    yield rest[:cut]
                    rest, known = rest[cut + left_out:], 0
                if len(rest) > WHOLE and why is None:
                    fail(2, f"\"{path}\": {WHOLE} characters without a place to cut (a blank "
                            f"between two letters), which is too much at once: divide the file")
                if len(rest) > WHOLE:
                    fail(2, f"\"{path}\" has more than {WHOLE} characters, too much at once, and "
                            f"with {shown(why, 150)} a part's tokens may not be the whole's: "
                            f"divide the file")
            yield rest
    except UnicodeDecodeError as error:
        fail(2, f"\"{path}\" is not UTF-8: byte {begin + error.start} ({error.reason})")
    except OSError as error:
        fail(2, f"\"{path}\": {error.strerror}")


def encode(tokenizer, path, limit):
    """The ids of the text, piece by piece."""
    for piece in pieces(path, tokenizer):
        with package(f"\"{path}\" cannot be tokenized"):
            # a batch, unlike a text, lets Python's other threads run
            ids = tokenizer.encode_batch([piece], add_special_tokens=False)[0].ids
        if limit and ids and max(ids) >= limit:
            token = shown(tokenizer.id_to_token(max(ids)))
            fail(2, f"\"{path}\" has the token \"{token}\", whose id is {max(ids)}: the model's "
                    f"config.json has a vocabulary of {limit}")
        yield ids


def write(out, tokenizer_path, texts, separator):
    """Returns the number of tokens, the bytes of each, and the vocabulary."""
    tokenizer, vocab = open_tokenizer(tokenizer_file(tokenizer_path))
    between = tokenizer.token_to_id(separator) if separator else None
    if separator and between is None:
        fail(2, f"--separator \"{separator}\": the tokenizer has no such token")
    width = 2 if vocab <= 65536 else 4
    limit = model_vocab(tokenizer_path)
    count = 0
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
    return count, width, vocab


def main():
    tokenizer_path, texts, output, separator = parse(sys.argv[1:])
    real = check_output(output, [tokenizer_file(tokenizer_path),
                                 os.path.join(tokenizer_path, "config.json"), *texts])
    try:
        out = Output(real)
    except OSError as error:
        fail(2 if error.errno in BLAMED else 4, f"-o \"{output}\": {error.strerror}")
    try:
        count, width, vocab = write(out.file, tokenizer_path, texts, separator)
        out.commit()
    except OSError as error:
        fail(4, f"writing \"{output}\": {error.strerror}")
    finally:
        out.close()
    sys.stdout.reconfigure(errors="surrogateescape")  # any path
    try:
        print(f"{plain(output)}: {count} tokens of {8 * width} bits, vocabulary {vocab}",
              flush=True)
    except OSError as error:
        fail(4, f"\"{output}\" is written, but standard output cannot be: {error.strerror}")


if __name__ == "__main__":
    main()
