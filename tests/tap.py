# tests/tap.py - the frame of the tests in Python, check.h's twin: a test is a function named as a
# sentence that raises when it fails, its output TAP.
import traceback


class Skip(Exception):
    """Raised by a test that cannot run here; the text says why."""


def run(tests):
    """Runs them in order; returns the exit code. A test program goes on after a failure."""
    failures = 0
    for number, test in enumerate(tests, 1):
        words = test.__name__.replace("_", " ")
        try:
            test()
            print(f"ok {number} - {words}", flush=True)
        except Skip as reason:
            print(f"ok {number} - {words} # SKIP {reason}", flush=True)
        except Exception as error:
            failures += 1
            text = str(error) if isinstance(error, AssertionError) else traceback.format_exc()
            print("# " + text.replace("\n", "\n# "))
            print(f"not ok {number} - {words}", flush=True)
    print(f"1..{len(tests)}")
    return 1 if failures else 0
