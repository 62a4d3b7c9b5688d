"""Check the arithmetic on simulated accelerators, or the accelerator or the energy sensors of this node."""

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from steelyard.cli.options.selftest import RESULTS
from steelyard.contracts.base import to_json_object
from steelyard.selftest.accelerator import accelerator_test
from steelyard.selftest.hardware import hardware_test
from steelyard.selftest.prove import prove
from steelyard.terminal.accelerator import accelerator_lines
from steelyard.terminal.document import print_json
from steelyard.terminal.text import table, wrapped


def run(arguments: argparse.Namespace) -> int:
    """Run the checks; exit code 1 when one does not hold."""
    if arguments.accelerator:
        return _accelerator(arguments)
    return _hardware(arguments) if arguments.hardware else _arithmetic(arguments)


def _arithmetic(arguments: argparse.Namespace) -> int:
    begin_s = time.monotonic()
    lines = list(prove(_tell, quick=arguments.quick))
    failed = sum(not line.holds for line in lines)
    seconds = time.monotonic() - begin_s
    if arguments.json:
        print_json(
            {
                "shape": "selftest/1",
                "holds": failed == 0,
                "seconds": seconds,
                "checks": [asdict(line) for line in lines],
            }
        )
        return 1 if failed else 0
    rows = [[line.what, line.truth, line.measured, line.error, "ok" if line.holds else "WRONG"] for line in lines]
    print(table(["check", "truth", "measured", "error", "verdict"], rows))
    print(f"\n{len(lines) - failed} of {len(lines)} hold; took {seconds:.0f} s")
    return 1 if failed else 0


def _accelerator(arguments: argparse.Namespace) -> int:
    report = accelerator_test(_tell)
    path = _write(arguments.write or RESULTS["accelerator"], to_json_object(report))
    if arguments.json:
        print_json({"shape": "selftest-accelerator/1", "report": to_json_object(report)})
    else:
        print("\n".join([*accelerator_lines(report), *_where(path)]))
    return 1 if "not as assumed" in report.counts() else 0


def _hardware(arguments: argparse.Namespace) -> int:
    test = hardware_test(_tell, idle_s=arguments.idle_s, load_s=arguments.load_s)
    path = arguments.write or RESULTS["hardware"]
    if test.shared:
        _write(path, test.shared)
    if arguments.json:
        print_json(
            {
                "shape": "selftest-hardware/1",
                "verdict": test.verdict,
                "reasons": list(test.reasons),
                "report": test.shared or None,
            }
        )
        return 0 if test.verdict == "holds" else 1
    print(f"sensors of this node: {test.verdict}" if test.checks else test.verdict)
    for reason in test.reasons:
        print("\n".join(wrapped(f"- {reason}")))
    for check in test.checks:
        of = f": {check.of}" if check.of else ""
        print("\n".join(wrapped(f"{check.outcome:<11} {check.name}{of}: {check.text}", deeper=14 * " ")))
    print("\n".join(_where(path)) if test.shared else "next: steelyard doctor")
    return 0 if test.verdict == "holds" else 1


def _write(path: Path, result: dict[str, Any]) -> Path:
    path.write_text(json.dumps(result, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return path


def _where(path: Path) -> list[str]:
    return ["", *wrapped(f"result, without host and device names: {path}")]


def _tell(text: str) -> None:
    print(f"{text} ...", file=sys.stderr, flush=True)
