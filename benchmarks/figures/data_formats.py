"""[data_formats] Every data format is read correctly, and damaged or hostile data is refused.

Every registered format is written in its real layout and read back; every example is compared with an independent
reader (plain json, numpy, Pillow, tarfile, struct). Then the hostile cases: a valid data set with one change, read to
the end. Each must end with an error message that names the problem. Each runs in its own process, so that its memory
can be measured; the growth is the highest resident size above that at the start. Last, COCO annotations as large as a
fifth of the real file. Quick: the same cases with smaller data sets.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import data_formats_images as images
import data_formats_structured as structured
from figure import arguments, at_least, at_most, finish, timed
from steelyard import plugins
from steelyard.errors import DamagedDataError, InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from data_formats_images import Case
    from figure import Figure

SAMPLES = 200
QUICK_SAMPLES = 30
GROWTH_LIMIT_MB = 300
REFUSAL_LIMIT_S = 2
# The real file in less than a minute, and in less memory than its size.
SPEED_MB_S = 8
LARGE_GROWTH_MB = 100
# A failing case must not bring down the machine.
ADDRESS_LIMIT_BYTES = 8 << 30
ALARM_S = 30


@dataclass(frozen=True)
class Outcome:
    """Outcome of reading a damaged data set."""

    error: str
    text: str
    seconds: float
    """Of the processor: others may use it at the same time."""
    growth_mb: float


def read(name: str, root: Path) -> None:
    """Read all examples of both splits."""
    (structured.read_structured if name in structured.REFERENCE else images.read_all)(name, root)


def apart(work: Callable[[], Outcome | None]) -> Outcome | None:
    """Run the work in a forked process; None if it ends without a result."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_LIMIT_BYTES, ADDRESS_LIMIT_BYTES))
            signal.alarm(ALARM_S)
            outcome = work()
            os.write(writer, json.dumps(asdict(outcome) if outcome else {}).encode())
            code = 0
        except BaseException:  # noqa: BLE001 -- the parent counts it as wrong; people want to see why
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        answer = json.loads(file.read() or b"{}")
    _, status = os.waitpid(child, 0)
    if status:
        return Outcome("died", f"status {status}", float(ALARM_S), 0)
    return Outcome(**answer) if answer else None


def refusal(name: str, root: Path) -> Outcome:
    """Read a data set and return the outcome."""
    before_kb = rss_kb()
    begin_s = time.process_time()
    error, text = "none", "it was read"
    try:
        read(name, root)
    except (DamagedDataError, InputError) as refused:
        error, text = "refused", str(refused)
    except Exception as other:  # noqa: BLE001 -- which one it is, is the question
        error, text = type(other).__name__, str(other)
    seconds = time.process_time() - begin_s
    return Outcome(error, text[:2000], seconds, grown_mb(before_kb))


def grown_mb(before_kb: int) -> float:
    """Return the growth of the highest resident size."""
    return max(0, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb) * 1024 / 1e6


def rss_kb() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() // 1024


def right(case: Case, outcome: Outcome) -> bool:
    """Whether it was refused with the expected message."""
    return outcome.error == "refused" and re.search(case.says, outcome.text, re.DOTALL) is not None


def hostile(case: Case, sound: Path, folder: Path) -> Outcome:
    """Damage a copy of a valid data set in one process, and read it in another."""
    root = folder / "spoiled"
    shutil.copytree(sound, root)
    try:
        spoiled = apart(lambda: case.spoil(root))
        outcome = apart(lambda: refusal(case.format, root))
        assert outcome is not None
        return spoiled or outcome
    finally:
        shutil.rmtree(root)


def large_annotations(folder: Path, size_mb: int, *, quick: bool) -> list[Figure]:
    """Read a COCO file as large as a part of the real one (470 MB): speed and memory."""
    root = folder / "large"
    root.mkdir()
    count = structured.large_coco(root, size_mb * 1_000_000)

    def work() -> Outcome:
        before_kb, begin_s = rss_kb(), time.process_time()
        examples = plugins.load("data", "coco").open(root, "evaluation")
        seconds = time.process_time() - begin_s
        return Outcome("none", f"{len(examples)}", seconds, grown_mb(before_kb))

    outcome = apart(work)
    shutil.rmtree(root)
    assert outcome is not None
    print(f"COCO, {count:,} annotations of {size_mb} MB: {outcome.seconds:.2f} s, {outcome.growth_mb:.0f} MB")
    return [
        timed(
            f"data_formats: COCO annotations of {size_mb} MB read",
            outcome.seconds,
            "s",
            size_mb / SPEED_MB_S,
            quick=quick,
        ),
        at_most(
            f"data_formats: growth of memory, annotations of {size_mb} MB", outcome.growth_mb, "MB", LARGE_GROWTH_MB
        ),
    ]


def sound_formats(folder: Path, samples: int) -> tuple[int, int, int]:
    """Return how many formats and examples were read, and how many examples were wrong."""
    formats = examples = wrong = 0
    for name in plugins.names("data"):
        module = structured if name in structured.REFERENCE else images
        root = folder / name
        plugins.load("data", name).make(root, samples, 1)
        unequal, count = module.differences(name, root)
        print(f"{name:<12} {count:>6} examples read, {unequal} wrong")
        formats += count > 0
        examples += count
        wrong += unequal
        shutil.rmtree(root)
    return formats, examples, wrong


def main() -> None:
    options = arguments(__doc__)
    cases = [*images.CASES, *structured.CASES]
    growth_mb = longest_s = 0.0
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for name in sorted({case.format for case in cases}):
            plugins.load("data", name).make(folder / "sound" / name, images.SAMPLES, 1)
        # Import what the readers need before the first case, so that it does not count as growth.
        for name in sorted({case.format for case in cases}):
            read(name, folder / "sound" / name)
        failed = 0
        for case in cases:
            outcome = hostile(case, folder / "sound" / case.format, folder)
            growth_mb, longest_s = max(growth_mb, outcome.growth_mb), max(longest_s, outcome.seconds)
            if not right(case, outcome):
                failed += 1
                print(f"WRONG {case.format}, {case.name}: {outcome.error}: {outcome.text[:300]}", file=sys.stderr)
        print(f"{len(cases)} hostile cases, {failed} not refused as expected")
        large = large_annotations(folder, 10 if options.quick else 100, quick=options.quick)
        formats, examples, wrong = sound_formats(folder, QUICK_SAMPLES if options.quick else SAMPLES)
    known = len(plugins.names("data"))
    total = len(cases) + examples
    finish(
        [
            at_most(f"data_formats: wrong outcomes of {total:,} hostile cases and examples", failed + wrong, "", 0),
            at_least(f"data_formats: formats read, of {known}", formats, "", known),
            at_most("data_formats: largest growth of memory in a hostile case", growth_mb, "MB", GROWTH_LIMIT_MB),
            timed("data_formats: longest refusal", longest_s, "s", REFUSAL_LIMIT_S, quick=options.quick),
            *large,
        ]
    )


if __name__ == "__main__":
    main()
