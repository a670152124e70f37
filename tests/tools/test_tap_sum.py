# tests/tools/test_tap_sum.py - what tools/tap_sum.py counts in made-up logs, and what the frames of
# the tests print and return. Prints TAP. argv: the program of failing.c.
import json
import os
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import tap  # noqa: E402

TOOL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools", "tap_sum.py")


def run(*programs):
    """(exit code, last line, whole output) for a log of these meson entries."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as log:
        for program in programs:
            log.write(json.dumps(program) + "\n")
        log.flush()
        done = subprocess.run([sys.executable, TOOL, log.name], capture_output=True, text=True)
    return done.returncode, done.stdout.splitlines()[-1], done.stdout


def entry(stdout, result="OK", code=0, **more):
    return dict({"name": "zinf:made up", "stdout": stdout, "result": result,
                 "returncode": code}, **more)


def the_frame_in_c_fails_where_a_condition_does_not_hold_or_is_nan():
    bad = subprocess.run([sys.argv[1]], capture_output=True, text=True)
    assert bad.returncode == 1 and re.sub(r"# .*:\d+: ", "# ", bad.stdout) == (
        "ok 1 - a condition that holds\n# number >= 0\nnot ok 2 - a condition of nan\n# number <= 0\n"
        "not ok 3 - a condition of nan below\nok 4 - what cannot run # SKIP a reason\n1..4\n"), bad
    good = subprocess.run([sys.argv[1], "0"], capture_output=True, text=True)
    assert good.returncode == 0 and good.stdout.count("not ok") == 0, good
    code, last, _ = run(entry(bad.stdout, "FAIL", bad.returncode))
    assert (code, last) == (1, "1 passed, 2 failed, 1 skipped"), last


def the_frame_in_python_fails_where_a_test_raises():
    made = subprocess.run([sys.executable, "-c", f"""
import sys
sys.path.insert(0, {os.path.dirname(os.path.abspath(tap.__file__))!r})
import tap
def holds(): pass
def raises(): assert not 1, "one"
def cannot_run(): raise tap.Skip("a reason")
sys.exit(tap.run([holds, raises, cannot_run]))
"""], capture_output=True, text=True)
    assert made.returncode == 1 and made.stdout == (
        "ok 1 - holds\n# one\nnot ok 2 - raises\nok 3 - cannot run # SKIP a reason\n1..3\n"), made


def single_tests_are_summed_over_programs():
    code, last, _ = run(entry("ok 1 - a\nok 2 - b\n1..2\n"), entry("1..1\nok 1 - c\n"))
    assert (code, last) == (0, "3 passed, 0 failed, 0 skipped"), last


def a_failed_test_is_listed_with_its_reason():
    code, last, out = run(entry("ok 1 - a\n# x.c:7: n == 3\nnot ok 2 - b holds\n1..2\n",
                                "FAIL", 1))
    assert (code, last) == (1, "1 passed, 1 failed, 0 skipped"), last
    assert "b holds" in out and "x.c:7: n == 3" in out, out


def a_skipped_test_is_listed_with_its_reason():
    code, last, out = run(entry("ok 1 - a # SKIP no direct I/O here\nok 2 - b\n1..2\n"))
    assert (code, last) == (0, "1 passed, 0 failed, 1 skipped"), last
    assert "no direct I/O here" in out, out


def a_skipped_program_counts_once():
    code, last, out = run(entry("1..0 # SKIP needs a GPU\n", "SKIP"))
    assert (code, last) == (0, "0 passed, 0 failed, 1 skipped"), last
    assert "needs a GPU" in out, out


def a_program_without_a_plan_line_has_failed():
    code, last, out = run(entry("ok 1 - a\n", "ERROR", -11, stderr="went wrong"))
    assert (code, last) == (1, "1 passed, 1 failed, 0 skipped"), last
    assert "signal 11" in out and "went wrong" in out, out


def a_program_without_a_plan_line_has_failed_though_it_exits_0():
    code, last, _ = run(entry("ok 1 - a\n"))
    assert (code, last) == (1, "1 passed, 1 failed, 0 skipped"), last


def fewer_tests_than_planned_have_failed():
    code, last, _ = run(entry("1..3\nok 1 - a\n"))
    assert (code, last) == (1, "1 passed, 1 failed, 0 skipped"), last


def a_non_zero_exit_after_good_tests_has_failed():
    code, last, _ = run(entry("ok 1 - a\n1..1\n", "ERROR", 1))
    assert (code, last) == (1, "1 passed, 1 failed, 0 skipped"), last


def a_program_that_dies_silently_has_failed():
    code, last, _ = run({"name": "x", "result": "ERROR", "returncode": -6})
    assert (code, last) == (1, "0 passed, 1 failed, 0 skipped"), last


def a_timeout_has_failed():
    code, last, _ = run(entry("ok 1 - a\n", "TIMEOUT", -15))
    assert (code, last) == (1, "1 passed, 1 failed, 0 skipped"), last


def a_program_that_bails_out_has_failed():
    code, last, _ = run(entry("ok 1 - a\nBail out! no disk\n1..1\n", "ERROR", 1))
    assert code == 1, last


def a_program_without_tap_counts_by_its_result():
    code, last, out = run(entry("hello", "OK"), entry("no disk", "SKIP", 77),
                          entry("bad", "FAIL", 1))
    assert (code, last) == (1, "1 passed, 1 failed, 1 skipped"), last
    assert "no disk" in out, out


def an_empty_log_is_no_success():
    code, last, _ = run()
    assert (code, last) == (1, "0 passed, 1 failed, 0 skipped"), last


def a_missing_log_is_no_success():
    done = subprocess.run([sys.executable, TOOL, "/nonexistent/log"], capture_output=True,
                          text=True)
    assert done.returncode == 2, done
    assert done.stdout.splitlines()[-1] == "0 passed, 1 failed, 0 skipped", done


TESTS = [value for value in list(globals().values())
         if callable(value) and getattr(value, "__module__", "") == "__main__"
         and value not in (run, entry)]


sys.exit(tap.run(TESTS))
