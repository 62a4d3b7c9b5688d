"""Prove the arithmetic on simulated accelerators; with --hardware, hold this node's real sensors against each other."""

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

from steelyard.selftest.hardware import IDLE_S, LOAD_S, hardware_test
from steelyard.selftest.prove import prove
from steelyard.terminal.text import table, wrapped

RESULT = Path("steelyard-hardware.json")


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of the verb."""
    parser.add_argument(
        "--quick", action="store_true", help="formulas and answers only, without the trials of intervals"
    )
    parser.add_argument(
        "--hardware", action="store_true",
        help="instead: watch this node idle and under load, and hold its energy sensors against each other",
    )  # fmt: skip
    parser.add_argument("--idle-s", type=_seconds, default=IDLE_S, help="seconds to watch it idle (%(default)g)")
    parser.add_argument("--load-s", type=_seconds, default=LOAD_S, help="seconds to watch it loaded (%(default)g)")
    parser.add_argument(
        "--write", type=Path, default=RESULT, metavar="FILE",
        help="where the result of --hardware goes; it names no host and no device (default: %(default)s)",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Exit code 0 when every line holds."""
    return _hardware(arguments) if arguments.hardware else _arithmetic(arguments)


def _arithmetic(arguments: argparse.Namespace) -> int:
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


def _hardware(arguments: argparse.Namespace) -> int:
    found = hardware_test(_tell, idle_s=arguments.idle_s, load_s=arguments.load_s)
    if found.shared:
        arguments.write.write_text(json.dumps(found.shared, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    if arguments.json:
        print(json.dumps(found.shared or {"verdict": found.verdict, "reasons": list(found.reasons)}, allow_nan=False))
        return 0 if found.verdict == "holds" else 1
    print(f"the sensors of this node: {found.verdict}" if found.checks else found.verdict)
    for reason in found.reasons:
        print("\n".join(wrapped(f"- {reason}")))
    for check in found.checks:
        of = f": {check.of}" if check.of else ""
        print("\n".join(wrapped(f"{check.outcome:<11} {check.name}{of}: {check.text}", deeper=14 * " ")))
    if found.shared:
        print()
        print("\n".join(wrapped(f"result to share, without names of hosts and devices: {arguments.write}")))
    else:
        print("next: steelyard doctor says what can be measured here and how to be allowed to")
    return 0 if found.verdict == "holds" else 1


def _seconds(text: str) -> float:
    value = float(text)
    if not 1 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"{text} s; valid: 1 to 3600")
    return value


def _tell(text: str) -> None:
    print(f"{text} ...", file=sys.stderr, flush=True)
