"""The archived runs of a results folder: which segments there are, and which run is where.

A segment is written once and never changed. It has its name from the moment it was made, with a random part. If two
processes archived the same run at the same moment, the copy in the segment with the last name counts. Layout:

    FOLDER/archive/SEGMENT/runs.tar          runs with their files
                          /index             where each run is in it
                          /runs.parquet, quantities.parquet, settings.parquet, findings.parquet
                                             what queries read
    FOLDER/archive/void/SEGMENT,STUDY,RUN_ID an empty file: this copy no longer counts, the run was set aside
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from steelyard import nofollow, packed
from steelyard.errors import SteelyardError, leave_out

if TYPE_CHECKING:
    from collections.abc import Container
    from pathlib import Path

RECORD_FILE = "record.json"
RAW = "raw"
VOID = "void"


class Segments:
    """The segments of a results folder. Every question is answered from the segments that are there at that moment."""

    def __init__(self, root: Path) -> None:
        self.path = root / packed.FOLDER
        self._names: list[str] = []
        self._indexes: dict[str, list[bytes]] = {}
        self._void: set[str] = set()

    def look(self) -> dict[str, list[bytes]]:
        """Return the lines of the index of each segment, newest segment first."""
        names = nofollow.names(self.path)
        if names != self._names or VOID in names:
            found: dict[str, list[bytes]] = {}
            for name in reversed(names):
                # A segment may be replaced by one without raw files at any moment: then that one was there before.
                if packed.SEGMENT.fullmatch(name):
                    try:
                        found[name] = packed.index_of(self.path / name, nofollow.open_file)
                    except FileNotFoundError:
                        continue
                    except (SteelyardError, OSError) as error:
                        # The runs of the other segments do not suffer from it.
                        leave_out(error if isinstance(error, SteelyardError) else SteelyardError(str(error)))
            self._names, self._indexes = names, found
            self._void = set(nofollow.names(self.path / VOID)) if VOID in names else set()
        return self._indexes

    def names(self) -> list[str]:
        """Return the names of the segments, oldest first."""
        return [name for name in nofollow.names(self.path) if packed.SEGMENT.fullmatch(name)]

    def void_copies(self) -> list[tuple[str, str, str]]:
        """Return segment, study and run id of every copy that no longer counts."""
        found = [tuple(name.split(",")) for name in nofollow.names(self.path / VOID)]
        return [(parts[0], parts[1], parts[2]) for parts in found if len(parts) == 3]

    def studies(self) -> set[str]:
        """Return the names of the studies with archived runs, without reading the whole index."""
        found: set[str] = set()
        for lines in self.look().values():
            at = 0
            while at < len(lines):
                study = lines[at].partition(b"/")[0]
                found.add(study.decode("utf-8", "replace"))
                # "0" is the character after "/".
                at = max(at + 1, bisect_left(lines, study + b"0"))
        return found

    def run_ids(self, study: str) -> set[str]:
        """Return the ids of the archived runs of a study."""
        start, found = f"{study}/".encode("utf-8", "surrogateescape"), set()
        for segment, lines in self.look().items():
            for line in lines[bisect_left(lines, start) : bisect_left(lines, start[:-1] + b"0")]:
                run = line.partition(b" ")[0][len(start) :].decode("utf-8", "replace")
                if line.startswith(start) and not self.is_void(segment, f"{study}/{run}"):
                    found.add(run)
        return found

    def is_void(self, segment: str, run: str) -> bool:
        """Return whether a copy no longer counts."""
        return bool(self._void) and _void_name(segment, run) in self._void

    def find(self, study: str, run_id: str) -> Path | None:
        """Return the path of an archived run; None: it is not archived."""
        copies = self.copies(study, run_id)
        return copies[0] if copies else None

    def copies(self, study: str, run_id: str) -> list[Path]:
        """Return the paths of all copies of a run that count, the newest first."""
        run = f"{study}/{run_id}"
        return [
            self.path / segment / packed.TAR / study / run_id
            for segment, lines in self.look().items()
            if packed.place_of(lines, run) is not None and not self.is_void(segment, run)
        ]

    def runs_of(self, segment: str) -> list[Path]:
        """Return the paths of the runs in a segment whose copy there is the one that counts."""
        found = []
        for line in self.look().get(segment, ()):
            study, _, run_id = line.partition(b" ")[0].decode("utf-8", "replace").partition("/")
            path = self.find(study, run_id)
            if path is not None and path.parents[2].name == segment:
                found.append(path)
        return found

    def make_void(self, study: str, run_id: str, segments: Container[str] | None = None) -> None:
        """Let no copy of a run count that is archived now; or only not those in some segments."""
        for copy in self.copies(study, run_id):
            segment = copy.parents[2].name
            if segments is None or segment in segments:
                nofollow.make_folder(self.path / VOID, exist_ok=True)
                nofollow.open_file(self.path / VOID / _void_name(segment, f"{study}/{run_id}"), "a").close()
                nofollow.flush(self.path / VOID)

    def forget_void(self, segment: str) -> None:
        """Remove what is noted about the copies in a segment that no longer exists."""
        for name in nofollow.names(self.path / VOID):
            if name.startswith(f"{segment},"):
                nofollow.remove(self.path / VOID / name)


def _void_name(segment: str, run: str) -> str:
    return f"{segment},{run.replace('/', ',')}"
