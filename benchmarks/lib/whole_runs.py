"""Make a result folder with many whole runs: records with all their raw files, from which each can be derived again.

A few simulated jobs are run; the others are their files with another run id, seed and study, and with the digests and
sizes that follow from that.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from typing import TYPE_CHECKING

from steelyard.cli.main import main
from steelyard.results.store import RAW, RECORD_FILE, ResultFolder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ORIGINAL = "original"
POWER = '{"idle_w": 90, "compute_w": 410}'


class WholeRuns:
    """Writes runs into a result folder, each like one that was just committed."""

    def __init__(self, results: Path, scratch: Path, jobs: int = 2) -> None:
        self.folder = ResultFolder(results)
        self.folder.prepare()
        code = main(
            ["run", "sim", "--study", ORIGINAL, "--repeats", str(jobs), "--max-steps", "400", "--min-steps", "400",
             "--set", f"sim.power={POWER}", "--quiet", "--json", "--results", str(scratch)]
        )  # fmt: skip
        assert code == 0
        made = ResultFolder(scratch)
        self._originals = [_read(made.run_path(record.spec)) for record in made.records(ORIGINAL)]

    def make(self, study: str, numbers: Iterator[int] | range) -> list[str]:
        """Write one run per number into a study; return their ids."""
        self.folder.open_study(study)
        return [self._make(study, number) for number in numbers]

    def _make(self, study: str, number: int) -> str:
        old, files = self._originals[number % len(self._originals)]
        run_id = f"{old.rsplit('-', 1)[0]}-n{number:07d}"
        scratch = self.folder.make_scratch(run_id)
        (scratch / RAW).mkdir()
        record = json.loads(files[RECORD_FILE])
        text = _renamed(files[RECORD_FILE], old, run_id, study)
        for entry in record["raw"]:
            name = entry["name"]
            data = files[name]
            if name == "spec.json":
                data = _renamed(data, old, run_id, study)
                text = text.replace(entry["sha256"].encode(), hashlib.sha256(data).hexdigest().encode())
                text = re.sub(rb'("name": "spec.json",\s*"bytes": )\d+', rb"\g<1>%d" % len(data), text)
            (scratch / RAW / name).write_bytes(data)
        (scratch / RECORD_FILE).write_bytes(text)
        os.rename(scratch, self.folder.runs / study / run_id)  # noqa: PTH104 -- as the store does
        return run_id


def _read(run: Path) -> tuple[str, dict[str, bytes]]:
    files = {path.name: path.read_bytes() for path in (run / RAW).iterdir()}
    return run.name, {**files, RECORD_FILE: (run / RECORD_FILE).read_bytes()}


def _renamed(text: bytes, old: str, new: str, study: str) -> bytes:
    changes = {f'"run_id": "{old}"': f'"run_id": "{new}"', f'"study": "{ORIGINAL}"': f'"study": "{study}"',
               f"--study {ORIGINAL} ": f"--study {study} "}  # fmt: skip
    for before, after in changes.items():
        text = text.replace(before.encode(), after.encode())
    return text
