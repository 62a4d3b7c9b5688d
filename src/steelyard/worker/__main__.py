"""`python -m steelyard.worker RAW...`: run the spec in each directory, one after the other."""

from steelyard.worker.measure import clock  # noqa: F401 -- first: time counts from here

# isort: split
import argparse
import os
import sys
import threading
from contextlib import suppress
from pathlib import Path

from steelyard.worker.engine.run import end_with_word, run_directory

ORPHANED = 75  # EX_TEMPFAIL: the run may be repeated


def _die_with_launcher() -> None:
    """The launcher holds the other end of standard input; when it dies, however it dies, so does the worker."""

    def wait() -> None:
        while os.read(0, 4096):
            pass
        os._exit(ORPHANED)

    threading.Thread(target=wait, daemon=True, name="lifeline").start()


def main() -> int:
    """Exit code 0 when every run ran to its end."""
    parser = argparse.ArgumentParser(prog="python -m steelyard.worker")
    parser.add_argument("raw", nargs="+", type=Path, help="directory with spec.json; observations are written there")
    parser.add_argument("--lifeline", action="store_true", help="end when standard input closes")
    arguments = parser.parse_args()
    if arguments.lifeline:
        _die_with_launcher()
    end_with_word(arguments.raw[0])
    statuses = [run_directory(raw) for raw in arguments.raw]
    # Without convergence, too: a starter that sees another code ends the other ranks before they have said all.
    return 0 if all(status.code in ("completed", "not_converged") for status in statuses) else 1


if __name__ == "__main__":
    code = main()
    # All is said; what a run left in its libraries, or a thread of the user's, could keep the interpreter from ending.
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(code)
