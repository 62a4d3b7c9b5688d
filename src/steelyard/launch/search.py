"""Search for the largest batch that fits, with runs on this machine.

Running out of memory is an answer; any other failure ends that search only. Finished tries are in the result folder:
starting the search again continues where it stopped.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from steelyard.inputs.search import next_try, search_state
from steelyard.launch.local_study import Outcome, make_run, refuse_other_seed, write_study_plan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.contracts.record import RunRecord
    from steelyard.contracts.spec import RunSpec
    from steelyard.inputs.search import SearchGroup, SearchState, Verdict
    from steelyard.inputs.study import Expansion
    from steelyard.launch.local_study import Launcher, Watcher
    from steelyard.results.store import ResultFolder

FITS = ("completed", "not_converged")


@dataclass(frozen=True)
class SearchResult:
    """What a search has found until now."""

    group: SearchGroup
    known: SearchState
    tried: int
    """Number of candidates that have a record."""

    @property
    def largest_fitting(self) -> int | None:
        """The largest batch known to fit; None: no such batch yet."""
        return None if self.known.low < 0 else self.group.runs[self.known.low].batch

    @property
    def smallest_out_of_memory(self) -> int | None:
        """The smallest larger batch known not to fit; None: no such batch yet."""
        return None if self.known.high == len(self.group.runs) else self.group.runs[self.known.high].batch

    @property
    def failed(self) -> RunSpec | None:
        """The run that ended the search for a reason other than memory."""
        return None if self.known.failed is None else self.group.runs[self.known.failed]


def search_result(folder: ResultFolder, group: SearchGroup) -> SearchResult:
    """Return the state of a search according to the records in the folder."""
    verdicts: dict[str, Verdict] = {}
    for spec in group.runs:
        if folder.has(spec):
            code = folder.read(folder.run_path(spec)).status.code
            failed: Verdict = "out of memory" if code == "out_of_memory" else "failed"
            verdicts[spec.run_id] = "fits" if code in FITS else failed
    return SearchResult(group, search_state(group, lambda spec: verdicts.get(spec.run_id)), len(verdicts))


def tried(folder: ResultFolder, searches: Sequence[SearchGroup]) -> list[RunRecord]:
    """Return the records of the candidates that were tried, in rising order within each search."""
    specs = (spec for group in searches for spec in group.runs)
    return [folder.read(folder.run_path(spec)) for spec in specs if folder.has(spec)]


def search_all(folder: ResultFolder, expansion: Expansion, launcher: Launcher, watcher: Watcher) -> Outcome:
    """Run every search of the study to its end."""
    folder.prepare()
    candidates = tuple(spec for group in expansion.searches for spec in group.runs)
    refuse_other_seed(folder, dataclasses.replace(expansion, runs=candidates))
    write_study_plan(folder, expansion)
    there = sum(folder.has(spec) for spec in candidates)
    made: list[RunRecord] = []
    # The exact number of tries is known only at the end.
    most = sum(group.most_tries for group in expansion.searches)
    for group in expansion.searches:
        batches = [spec.batch for spec in group.runs]
        while (index := next_try(batches, search_result(folder, group).known)) is not None:
            spec = group.runs[index]
            watcher.begin(spec, len(made), most)
            made.append(make_run(folder, spec, launcher, watcher.tick))
            watcher.end(made[-1], len(made), most)
    folder.sweep_scratch()
    return Outcome(tuple(made), there)
