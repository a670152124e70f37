# tests/ranks/collective.py - runs the tests of collective.c on three ranks of every MPI library
# that is here, numbered through. argv: the program, zinf-run (whose modules it loads).
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile

import crew

program, zinf_run = sys.argv[1:3]
found = crew.launchers(zinf_run)
count, failed = 0, False
folder = tempfile.mkdtemp(prefix="zinf-collective-")
copy = os.path.join(folder, "collective")
shutil.copy(program, copy)  # the modules are looked for beside the program
for module in glob.glob(os.path.join(os.path.dirname(os.path.abspath(zinf_run)), "zinf-mpi-*.so")):
    os.symlink(module, os.path.join(folder, os.path.basename(module)))
for name, words in found.items():
    place = os.path.join(folder, name)
    os.mkdir(place)
    done = subprocess.run([*words, "-n", "3", copy, place], capture_output=True, text=True,
                          timeout=280, stdin=subprocess.DEVNULL,
                          env={**crew.ENVIRONMENT, **os.environ})
    text = ""
    if os.path.exists(os.path.join(place, "told")):
        with open(os.path.join(place, "told"), encoding="utf-8", errors="replace") as file:
            text = file.read()
    for line in text.splitlines():
        told = re.match(r"(ok|not ok) \d+ - (.*)", line)
        if told:
            count += 1
            failed |= told[1] != "ok"
            line = f"{told[1]} {count} - {name}: {told[2]}"
        if told or line.startswith("#"):
            print(line)
    if "\n1..9" not in text:
        count, failed = count + 1, True
        print("# " + done.stderr[-1500:].replace("\n", "\n# "))
        print(f"not ok {count} - {name}: the program came to its end")
shutil.rmtree(folder)
if not found:
    count = 1
    print("ok 1 - collectives # SKIP no MPI: neither Open MPI nor MPICH is installed and built in")
print(f"1..{count}")
sys.exit(failed)
