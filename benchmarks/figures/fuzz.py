"""[fuzz] No file makes a reader fail: each is read, or refused with a message.

Valid files of every kind that steelyard reads are changed at random: bytes, text, structure, headers with their
checksums made right, and sizes. Each changed file is read in a process with limits. It may give a value or an error
of ours that a terminal can show; another exception, more than 10 s, more than 500 MB or the end of the process is a
failure. The readers are in benchmarks/lib/fuzz_readers.py, the failures of the past in tests/fuzz_corpus, which is
read first. Inputs are determined by the seed and their number.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path

from figure import arguments, at_least, at_most, finish
from fuzz_readers import READERS
from fuzz_run import LIMIT_BYTES, Outcome, maker, run_cases

CORPUS = Path(__file__).resolve().parents[2] / "tests" / "fuzz_corpus"
SEED = 5
"""Of the figure. Seeds from 1000 on are for finding and fixing faults."""
INPUTS, QUICK_INPUTS = 100_000, 1500


def corpus() -> list[Path]:
    return sorted(path for path in CORPUS.glob("*/*") if path.is_file())


def report(outcome: Outcome, keep: Path) -> None:
    """Print each kind of failure once, with the file that shows it and the command that repeats it."""
    counts = Counter(failure.kind for failure, _ in outcome.failures)
    smallest = sorted(outcome.failures, key=lambda found: len(found[1].content.data), reverse=True)
    for kind, (failure, case) in {failure.kind: (failure, case) for failure, case in smallest}.items():
        path = CORPUS / failure.name
        if not path.is_file():
            path = keep / failure.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(case.content.data)
        print(f"{counts[kind]} x {kind[0]} at {kind[1]}: {failure.what}")
        if case.content.size_bytes:
            print(f"    the file has {case.content.size_bytes} bytes, with a hole at the end")
        print(f"    python benchmarks/figures/fuzz.py --file {path}")


def main() -> None:
    names = sorted(reader.name for reader in READERS)
    options = arguments(
        __doc__,
        seed={"type": int, "default": SEED, "help": "seed of the inputs (default %(default)s)"},
        inputs={"type": int, "help": "number of inputs"},
        reader={"action": "append", "choices": names, "metavar": "NAME", "help": "only this reader; may be repeated"},
        file={"type": Path, "help": "read one file, FOLDER/READER/NAME, and show the traceback"},
        keep={"type": Path, "default": Path("/tmp/steelyard-fuzz"), "help": "where to write failures"},
    )
    if options.file:
        outcome = run_cases(maker(), [options.file.resolve()])
        print("\n".join(f"{failure.text}\n{failure.what}" for failure, _ in outcome.failures) or "no failure")
        sys.exit(1 if outcome.failures else 0)
    readers = [reader for reader in READERS if not options.reader or reader.name in options.reader]
    count = options.inputs or (QUICK_INPUTS if options.quick else INPUTS)
    begin_s = time.monotonic()
    cases = [*([] if options.reader else corpus()), *range(count)]
    outcome = run_cases(maker(options.seed, readers), cases)
    seconds = time.monotonic() - begin_s
    report(outcome, options.keep)
    print(f"seed {options.seed}, {len(readers)} readers, {seconds:.0f} s")
    late = sum("not within" in failure.what for failure, _ in outcome.failures)
    finish(
        [
            at_least("fuzz: inputs", len(cases), "files", count),
            at_most("fuzz: failures", len(outcome.failures), "files", 0),
            at_most("fuzz: over 10 s", late, "files", 0),
            at_most("fuzz: peak memory", outcome.peak_bytes / 2**20, "MiB", LIMIT_BYTES / 2**20),
        ]
    )


if __name__ == "__main__":
    main()
