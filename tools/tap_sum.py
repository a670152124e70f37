#!/usr/bin/env python3
# tools/tap_sum.py - counts the single tests in meson's testlog.json (TAP inside each program's
# output), lists what failed and what was skipped, and ends with "N passed, N failed, N skipped".
#
# A program that died (no plan line, fewer tests than planned, an exit code that its tests do not
# explain) is one failed test more. Exit codes: 0 none failed, 1 one failed or none ran,
# 2 the log cannot be read.
import json
import re
import sys

LINE = re.compile(r"(not )?ok\b\s*\d*\s*(?:-\s*)?(.*)")
PLAN = re.compile(r"1\.\.(\d+)\s*(?:#\s*(.*))?$")
DIRECTIVE = re.compile(r"\s#\s*(SKIP|TODO)\S*\s*(.*)$", re.IGNORECASE)


def read_program(entry):
    """One meson test: (passed, [failed text], [skipped text])."""
    name = entry.get("name", "?")
    lines = entry.get("stdout", "").splitlines()
    code = entry.get("returncode", 0)
    result = entry.get("result", "")
    passed, failed, skipped = 0, [], []
    planned = None
    notes = []
    tap = False
    for line in lines:
        plan = PLAN.match(line)
        test = LINE.match(line)
        if plan:
            tap, planned = True, int(plan.group(1))
            if planned == 0:
                skipped.append(f"{name}: {plan.group(2) or 'no reason given'}")
        elif test:
            tap = True
            text = test.group(2)
            directive = DIRECTIVE.search(" " + text)
            kind = directive.group(1).upper() if directive else ""
            label = DIRECTIVE.sub("", " " + text).strip() if directive else text
            if kind == "SKIP":
                skipped.append(f"{name}: {label}: {directive.group(2) or 'no reason given'}")
            elif test.group(1) and kind != "TODO":
                failed.append("\n".join([f"{name}: {label}"] + notes))
            else:
                passed += 1
            notes = []
        elif line.startswith("Bail out!"):
            tap = True
            failed.append(f"{name}: {line}")
        elif line.startswith("#"):
            notes.append("    " + line[1:].strip())

    if not tap:  # a program that only exits, or that died before its first word
        last = lines[-1] if lines else ""
        if result == "SKIP":
            skipped.append(f"{name}: {last or 'no reason given'}")
        elif result in ("OK", "EXPECTEDFAIL"):
            passed += 1
        else:
            failed.append(died(entry, "no test reported"))
        return passed, failed, skipped

    ran = passed + len(failed) + len(skipped)
    if planned is None:
        failed.append(died(entry, f"no plan line after {ran} tests"))
    elif planned and ran != planned:
        failed.append(died(entry, f"{planned} tests planned, {ran} reported"))
    elif not failed and (result in ("TIMEOUT", "ERROR", "FAIL") or code not in (0, None)):
        failed.append(died(entry, "all its tests passed"))
    return passed, failed, skipped


def died(entry, what):
    text = f"{entry.get('name', '?')}: {entry.get('result', '?').lower()}, {what}"
    code = entry.get("returncode")
    if code is not None:
        text += f", exit code {code}" if code >= 0 else f", signal {-code}"
    tail = (entry.get("stderr") or entry.get("stdout", "")).splitlines()[-10:]
    return "\n".join([text] + ["    " + line for line in tail])


def main():
    if len(sys.argv) != 2:
        print("usage: tap_sum.py testlog.json", file=sys.stderr)
        return 2
    passed, failed, skipped, n_programs = 0, [], [], 0
    try:
        with open(sys.argv[1], encoding="utf-8", errors="replace") as log:
            for line in log:
                if line.strip():
                    counts = read_program(json.loads(line))
                    passed += counts[0]
                    failed += counts[1]
                    skipped += counts[2]
                    n_programs += 1
    except (OSError, ValueError) as error:
        print(f"tap_sum.py: \"{sys.argv[1]}\": {error}", file=sys.stderr)
        print("0 passed, 1 failed, 0 skipped")
        return 2 if not n_programs else 1
    if not n_programs:
        failed.append("no test program ran")
    for title, texts in (("failed", failed), ("skipped", skipped)):
        if texts:
            print(f"\n{title}:")
            for text in texts:
                print(f"  {text}".replace("\n", "\n  "))
    print(f"\n{passed} passed, {len(failed)} failed, {len(skipped)} skipped")
    return 1 if failed else 0


sys.exit(main())
