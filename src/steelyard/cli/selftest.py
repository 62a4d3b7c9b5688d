"""Prove the arithmetic on simulated accelerators: every formula with its truth, what was measured, and a verdict."""

import argparse
import json
import sys
import time
from dataclasses import asdict

from steelyard.report.text import table
from steelyard.selftest.prove import prove


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of the verb."""
    parser.add_argument(
        "--quick", action="store_true", help="formulas and answers only, without the trials of intervals"
    )


def run(arguments: argparse.Namespace) -> int:
    """Exit code 0 when every line holds."""
    begin_s = time.monotonic()
    lines = list(prove(_tell, quick=arguments.quick))
    failed = sum(not line.holds for line in lines)
    seconds = time.monotonic() - begin_s
    if arguments.json:
        print(json.dumps({"holds": failed == 0, "seconds": seconds, "lines": [asdict(line) for line in lines]}))
        return 1 if failed else 0
    rows = [[line.what, line.truth, line.measured, line.error, "ok" if line.holds else "WRONG"] for line in lines]
    print(table(["what", "truth", "measured", "error", "verdict"], rows))
    print(f"\n{len(lines) - failed} of {len(lines)} hold, in {seconds:.0f} s")
    return 1 if failed else 0


def _tell(text: str) -> None:
    print(f"{text} ...", file=sys.stderr, flush=True)
