"""[suites] Whether every suite runs at the size tiny on this machine, from `suite run` to `suite report`.

One command runs a suite, and one writes its report. The run is killed with all its processes after its first result;
the same command continues it: results that were there are kept and not made again. The quick form runs a part of each
suite, and kills one of them.
"""

from __future__ import annotations

import html
import json
import os
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from figure import arguments, at_least, at_most, finish
from steelyard.inputs.suite import find_suite
from steelyard.inputs.suites import suite_names
from steelyard.report.render.files import write
from steelyard.report.suite.page import suite_page
from steelyard.results.store import ResultFolder

# Parts with one or two runs.
QUICK: dict[str, tuple[str, ...]] = {
    "nrp": ("--part", "inference", "--devices", "1"),
    "aces": ("--part", "autoencoder-scaling", "--devices", "1"),
    "olivia": ("--part", "numa"),
    "caraml": ("--part", "gpt-13b", "--devices", "1"),
    "site-acceptance": ("--part", "collectives"),
}
KILLED = "nrp"
"""The suite that is killed in the quick form."""
LIMIT_S = 850


@dataclass(frozen=True)
class Outcome:
    """What became of a suite."""

    name: str
    complete: bool
    again: int
    """Runs that had a result before the kill and were made again."""
    why: str = ""


def command(action: str, name: str, results: Path, *more: str) -> list[str]:
    words = [sys.executable, "-m", "steelyard.cli.main", "suite", action, name, "--size", "tiny"]
    return [*words, "--results", str(results), *more]


def stamps(results: Path) -> dict[str, int]:
    """Return when each result was written, by run."""
    return {str(path): path.stat().st_mtime_ns for path in results.glob("runs/*/*/record.json")}


def kill_after_first(words: list[str]) -> None:
    """Start a command, and kill it with all its processes when it has printed the figure of its first run."""
    process = subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith(b"[1/") and b"samples/s" in line:
            break
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def try_suite(name: str, options: tuple[str, ...], *, kill: bool) -> Outcome:
    with tempfile.TemporaryDirectory() as scratch:
        results, page = Path(scratch) / "results", Path(scratch) / "page.html"
        if kill:
            kill_after_first(command("run", name, results, *options))
        before = stamps(results)
        words = command("run", name, results, *options, "--json", "--quiet")
        done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        if done.returncode:
            return Outcome(name, False, 0, f"run ends with {done.returncode}: {done.stderr[-300:]}")
        after = stamps(results)
        again = sum(after.get(path) != time for path, time in before.items())
        if kill and not before:
            return Outcome(name, False, again, "no result before the kill")
        if options:
            # A new process takes longer to start than to write the page.
            write(suite_page(ResultFolder(results), find_suite(name), "tiny"), page, "html")
        else:
            words = command("report", name, results, "-o", str(page), "--json")
            told = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, check=False)
            if told.returncode:
                return Outcome(name, False, again, f"report ends with {told.returncode}: {told.stderr[-300:]}")
        studies = {f"{name}-{part}-tiny" for part in json.loads(done.stdout)["parts"]}
        text = page.read_text(encoding="utf-8")
        missing = sorted(studies - set(ResultFolder(results).studies()))
        missing += [table.title for table in find_suite(name).suite.table if html.escape(table.title) not in text]
        return Outcome(name, not missing, again, f"missing: {missing}" if missing else "")


def main() -> NoReturn:
    options = arguments(__doc__)
    names = suite_names()
    with ThreadPoolExecutor(2) as pool:
        outcomes = list(
            pool.map(
                lambda name: try_suite(
                    name, QUICK[name] if options.quick else (), kill=not options.quick or name == KILLED
                ),
                names,
            )
        )
    for outcome in outcomes:
        if outcome.why:
            print(f"{outcome.name}: {outcome.why}")
    whole = sum(outcome.complete for outcome in outcomes)
    finish(
        [
            at_least("suites from run to report at the size tiny", whole, f"of {len(outcomes)}", len(outcomes)),
            at_most("runs made again after a kill", sum(outcome.again for outcome in outcomes), "runs", 0),
        ]
    )


if __name__ == "__main__":
    main()
