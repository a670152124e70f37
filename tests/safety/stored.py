# tests/safety/stored.py - a checkpoint read, changed and written again with checksums that fit:
# what only the content, never the format, can tell from an honest one.
import array
import json
import os
import struct

MASK = (1 << 64) - 1
P1, P2, P3, P4, P5 = (11400714785074694791, 14029467366897019727, 1609587929392839161,
                      9650029242287828579, 2870177450012600261)


def turn(x, n):
    return (x << n | x >> (64 - n)) & MASK


def one(lane, word):
    return turn((lane + word * P2) & MASK, 31) * P1 & MASK


MASK = (1 << 64) - 1


def element_sum(data):
    """As runtime/element_sum.h, of a whole tensor's bytes."""
    total, index = 0, 0
    for (bits,) in struct.iter_unpack("<I", data):
        index += 1
        x = (index * 0x9E3779B97F4A7C15 + bits * 0xD6E8FEB86659FD93) & MASK
        x = (x ^ x >> 32) * 0xBF58476D1CE4E5B9 & MASK
        total += x ^ x >> 29
    return total & MASK


def xxh64(data):
    """xxh64 with seed 0, from its specification."""
    n, at = len(data), 0
    if n >= 32:
        lanes = [(P1 + P2) & MASK, P2, 0, -P1 & MASK]
        at = n // 32 * 32
        for words in struct.iter_unpack("<4Q", data[:at]):
            lanes = [one(lane, word) for lane, word in zip(lanes, words)]
        total = sum(turn(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18))) & MASK
        for lane in lanes:
            total = ((total ^ one(0, lane)) * P1 + P4) & MASK
    else:
        total = P5
    total = (total + n) & MASK
    while at + 8 <= n:
        total = (turn(total ^ one(0, struct.unpack_from("<Q", data, at)[0]), 27) * P1 + P4) & MASK
        at += 8
    if at + 4 <= n:
        total = (turn(total ^ struct.unpack_from("<I", data, at)[0] * P1 & MASK, 23) * P2 + P3) \
            & MASK
        at += 4
    for byte in data[at:]:
        total = turn(total ^ byte * P5 & MASK, 11) * P1 & MASK
    total = (total ^ total >> 33) * P2 & MASK
    total = (total ^ total >> 29) * P3 & MASK
    return total ^ total >> 32


class Stored:
    """The checkpoint DIR/latest names: manifest (a dict), state["m"][tensor] (arrays of floats)."""

    def __init__(self, folder):
        with open(os.path.join(folder, "latest"), encoding="ascii") as file:
            self.step_name = file.read().strip()
        self.folder = os.path.join(folder, self.step_name)
        with open(os.path.join(self.folder, "manifest.json"), encoding="utf-8") as file:
            self.manifest = json.load(file)
        self.state, self.headers, self.ranges = {}, {}, {}
        for name in "master", "m", "v":
            with open(self.file(name), "rb") as file:
                data = file.read()
            end = 8 + struct.unpack("<Q", data[:8])[0]
            rows = json.loads(data[8:end])
            rows.pop("__metadata__", None)
            self.headers[name] = data[:end]
            self.ranges[name] = {key: row["data_offsets"] for key, row in rows.items()}
            self.state[name] = {key: array.array("f", data[end + first:end + last])
                                for key, (first, last) in self.ranges[name].items()}

    def file(self, name):
        return os.path.join(self.folder, name + ".safetensors")

    def write(self):
        for name, tensors in self.state.items():
            order = sorted(tensors, key=lambda key: self.ranges[name][key][0])
            with open(self.file(name), "wb") as file:
                file.write(self.headers[name])
                for key in order:
                    file.write(tensors[key].tobytes())
            for row in self.manifest["tensors"]:
                row[name] = f"{element_sum(tensors[row['name']].tobytes()):016x}"
        self.manifest["checksum"] = "0" * 16
        text = json.dumps(self.manifest, indent=2) + "\n"
        at = len(text) - len('"\n}\n') - 16
        text = text[:at] + f"{xxh64(text[:at].encode()):016x}" + text[at + 16:]
        with open(os.path.join(self.folder, "manifest.json"), "w", encoding="utf-8") as file:
            file.write(text)


def tree(folder):
    """Every file below, with its contents."""
    found = {}
    for path, folders, files in os.walk(folder):
        for name in folders:
            found[os.path.relpath(os.path.join(path, name), folder)] = None
        for name in files:
            full = os.path.join(path, name)
            with open(full, "rb") as file:
                found[os.path.relpath(full, folder)] = file.read()
    return found
