#!/usr/bin/env python3
"""tests/planner/layering.py - who may include whom, and the form of source files.

usage: layering.py SOURCE_ROOT
"""
import os
import re
import subprocess
import sys
import tempfile

root = os.path.abspath(sys.argv[1])
count, failed = 0, 0
# Headers of vector code are for files built with these.
FLAGS = ([] if os.uname().machine != "x86_64" else
         ["-mavx2", "-mfma", "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq",
          "-mavx512bf16", "-mamx-tile", "-mamx-bf16"])
# The contract that the planner may see. initial.h, rate.h and params_hash.h are the runtime's.
CONTRACT = {"runtime/" + h + ".h" for h in ("plan", "opcodes", "error", "timeline", "checker",
                                         "files", "overhead", "moved", "hf_config")}
CONTRACT |= {"kernels/dtype.h", "kernels/kernels.h"}
# The checker, and what it alone uses.
PROOF = {"checker", "plan_content", "plan_model", "cell", "sums", "clocks", "intervals", "written",
         "stated", "refusal"}


def check(name, problems):
    global count, failed
    count += 1
    failed |= bool(problems)
    print("%s %d - %s" % ("not ok" if problems else "ok", count, name))
    for problem in problems[:20]:
        print("# " + problem)


def sources(*folders, ends=(".c", ".h")):
    for folder in folders:
        for at, _, names in os.walk(os.path.join(root, folder)):
            for name in sorted(names):
                if name.endswith(ends):
                    yield os.path.relpath(os.path.join(at, name), root)


def text(path):
    with open(os.path.join(root, path), encoding="utf-8") as file:
        return file.read()


def includes(path):
    return re.findall(r'(?m)^\s*#\s*include\s*"([^"]+)"', text(path))


everything = list(sources("kernels", "runtime", "planner", "tools", "tests"))
assert len(everything) > 50, "no sources below " + root
check("kernels include nothing of runtime or planner", [
    "%s includes %s" % (p, i) for p in sources("kernels") for i in includes(p)
    if not i.startswith("kernels/")])
check("the runtime includes nothing of planner", [
    "%s includes %s" % (p, i) for p in sources("runtime") for i in includes(p)
    if not i.startswith(("runtime/", "kernels/"))])
check("the planner includes only the contract", [
    "%s includes %s" % (p, i) for p in sources("planner") for i in includes(p)
    if not i.startswith("planner/") and i not in CONTRACT])
check("the checker knows nothing of the planner or the executor", [
    "%s includes %s" % (p, i) for p in sources("runtime") for i in includes(p)
    if os.path.basename(p).split(".")[0] in PROOF and i not in CONTRACT
    and i not in {"runtime/" + name + ".h" for name in PROOF}])
check("every include names its folder", [
    "%s includes %s" % (p, i) for p in everything for i in includes(p)
    if "/" not in i and not p.startswith("tests/")])

problems = []
with tempfile.TemporaryDirectory(prefix="zinf-layering-") as work:
    for header in sources("kernels", "runtime", "planner", ends=(".h",)):
        unit = os.path.join(work, "unit.c")
        with open(unit, "w") as out:
            out.write('#include "%s"\n#include "%s"\nint zinf_layering_unit;\n' % (header, header))
        done = subprocess.run([os.environ.get("CC", "cc"), "-std=gnu17", "-D_GNU_SOURCE",
                               "-fsyntax-only", "-Wall", "-Wextra", "-Werror",
                               "-Wno-unused-function", *FLAGS, "-I", root, unit],
                              capture_output=True, text=True)
        if done.returncode:
            problems += [header + ": " + done.stderr.splitlines()[0]]
check("every header compiles alone, and twice", problems)
check("no file has more than 1200 lines", [
    "%s: %d lines" % (p, text(p).count("\n")) for p in everything if text(p).count("\n") > 1200])
check("no line has more than 100 columns", [
    "%s:%d: %d columns" % (p, n, len(line)) for p in everything
    for n, line in enumerate(text(p).split("\n"), 1) if len(line) > 100])
check("the first line of every file names its path", [
    "%s: %s" % (p, text(p).split("\n")[0][:60]) for p in everything
    if not text(p).startswith("/* %s - " % p)])
check("no tabs and no trailing blanks", [
    "%s:%d" % (p, n) for p in everything for n, line in enumerate(text(p).split("\n"), 1)
    if "\t" in line or line.endswith(" ")])
print("1..%d" % count)
sys.exit(failed)
