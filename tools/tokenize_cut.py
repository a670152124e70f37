# tools/tokenize_cut.py - where a text too long for the package tokenizers may be cut, so that its
# tokens are those of the parts, one after the other; for which tokenizers that can be shown.
#
# A cut is made in "x w": two letters (as letter() has them) with one blank between. The second
# part begins with the blank; or, where the tokenizer puts one before every text, with w.
#
# Why nothing differs: of the components that are taken here, normalizers change characters one by
# one, or those of a normal form, which has boundaries around a blank; a letter stays a letter or
# several. Pre-tokenizers have a boundary before the blank, or leave x and w together in a piece
# that a later one divides there, and look back or ahead over blanks only, which x ends; so each
# piece but that one is the same, and models know single pieces only. A model that gets the whole
# text must be a BPE without a token that has a letter before a blank: no merge goes over the cut,
# so those on both sides are independent of each other. (A Unigram's sums would be rounded
# otherwise.) Added tokens are looked for before all that: none may be found over the cut, or be
# found or made longer by what is at its end.
import unicodedata

BLANK, UNDERLINE, BYTE_BLANK = " ", "\u2581", "\u0120"
# Of GPT-2 (as in ByteLevel), Llama 3 and Qwen2: no alternative has a blank after a letter.
REGEXES = (
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
PER_CHARACTER = ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt",
                 "BertNormalizer")


def letter(c):
    """Whose normal forms are letters, none another one's; not among those that BertNormalizer
    puts blanks around."""
    return c.isalpha() and c < "\uf900" and not "\u2e80" <= c < "\ua000" and \
        unicodedata.normalize("NFKC", c) == c and unicodedata.normalize("NFD", c).isalpha()


def last_cut(text, first):
    """Index of the blank of the last place to cut, from first on; 0 if there is none."""
    first = max(first, 1)
    at = text.rfind(BLANK, first, -1)
    while at > 0 and not (letter(text[at - 1]) and letter(text[at + 1])):
        at = text.rfind(BLANK, first, at)
    return max(at, 0)


class Refused(Exception):
    """The text names the component."""


def members(part, key):
    """In their order, of Sequences in Sequences too."""
    if part is None:
        return []
    if part["type"] == "Sequence":
        return [one for inner in part[key] for one in members(inner, key)]
    return [part]


def check_normalizer(part):
    """What a blank becomes, and whether one is put before every text."""
    blank, prepends = BLANK, 0
    for one in members(part, "normalizers"):
        kind = one["type"]
        if kind in PER_CHARACTER:
            continue
        if kind == "Prepend" and one["prepend"] == UNDERLINE and not prepends:
            prepends = 1
            continue
        text = one["pattern"].get("String") if kind == "Replace" else None
        if text == BLANK and one["content"] == UNDERLINE:
            blank = UNDERLINE
        elif not text or any(c.isalpha() or c in (BLANK, UNDERLINE) for c in text):
            raise Refused(f"the normalizer {kind}")
    if prepends and blank != UNDERLINE:
        raise Refused("the normalizer Prepend without a Replace of blanks")
    return blank, prepends > 0


def check_split(one, blank):
    """Whether a boundary is before the blank."""
    text, regex = one["pattern"].get("String"), one["pattern"].get("Regex")
    if regex in REGEXES and \
            (one["behavior"], one["invert"]) in (("Isolated", False), ("Removed", True)):
        return True
    if text == blank and one["behavior"] != "MergedWithPrevious" and not one["invert"]:
        return True
    if not text or one["invert"] or blank in text:
        raise Refused("the pre-tokenizer Split" + (" with a regular expression that is not "
                                                   "known here" if regex else ""))
    return False


def check_pre_tokenizer(part, blank):
    """What the blank is to the model if no boundary is before it; else None."""
    bounded = False
    for one in members(part, "pretokenizers"):
        kind = one["type"]
        if blank is None:
            raise Refused(f"the pre-tokenizer {kind} after ByteLevel")
        if kind == "ByteLevel" and blank == BLANK:
            bounded |= one["use_regex"]
            blank = None
        elif kind == "Metaspace" and blank in (BLANK, one["replacement"]) and \
                not one["replacement"].isalpha():
            bounded |= one["split"]
            blank = one["replacement"]
        elif kind == "Split":
            bounded |= check_split(one, blank)
        elif kind in ("Whitespace", "WhitespaceSplit", "BertPreTokenizer"):
            bounded |= kind == "Whitespace" or blank == BLANK
        elif kind not in ("Punctuation", "Digits"):
            raise Refused(f"the pre-tokenizer {kind}")
    return None if bounded else blank or BYTE_BLANK


def ends_letter(c, blank):
    """Of a text, or of ByteLevel's characters, one a byte: a letter's last byte is its own or, of
    those beyond ASCII, one from 128 on, which ByteLevel writes as a character from 128 on."""
    return c != blank and (c.isalpha() or (blank == BYTE_BLANK and c > "\u007f"))


def check_model(model, blank):
    """Of a BPE that is given a whole text."""
    if model["type"] != "BPE":
        raise Refused(f"the model {model['type']} on a text that no pre-tokenizer divides")
    if model["continuing_subword_prefix"] or model["end_of_word_suffix"] or \
            model.get("ignore_merges") or blank not in model["vocab"] or \
            any(c == blank and ends_letter(before, blank)
                for token in model["vocab"] for before, c in zip(token, token[1:])):
        raise Refused("the model BPE, whose tokens go over blanks, on a text that no "
                      "pre-tokenizer divides")


def check_added(added, normalize, prepends):
    for one in added:
        if prepends and one["content"][:1] == BLANK:  # it is left out at a cut
            raise Refused(f"the added token \"{one['content']}\"")
        for form in {one["content"], normalize(one["content"])}:
            form = form.replace(UNDERLINE, BLANK)
            if any(c == BLANK and before.isalpha() for before, c in zip(form, form[1:])) or \
                    (one["rstrip"] and form[-1:].isalpha()) or \
                    (one["single_word"] and form[:1] == BLANK) or \
                    (prepends and form[:1].isalpha()):
                raise Refused(f"the added token \"{one['content']}\"")


def check(content, normalize):
    """Of a tokenizer.json as the package writes it, and its normalizer: whether the blank at a cut
    is left out. Raises Refused where it cannot be shown that the tokens are the same."""
    blank, prepends = check_normalizer(content["normalizer"])
    blank = check_pre_tokenizer(content["pre_tokenizer"], blank)
    if blank:
        check_model(content["model"], blank)
    check_added(content["added_tokens"], normalize, prepends)
    return prepends
