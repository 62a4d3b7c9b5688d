"""milabench: the summary of a run, with the rate and the time of each of its benchmarks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from steelyard.imported.form import Digits, ImportedFigure, Importer, inside, mapping, stated

if TYPE_CHECKING:
    from collections.abc import Iterator

    from steelyard.imported.form import ForeignFile

FIGURES = {"train_rate": "items/s", "walltime": "s"}
STATISTICS = ("mean", "median", "min", "max")


def recognises(file: ForeignFile) -> bool:
    """Return whether a file has benchmarks with a rate and numbers of successes and failures."""
    entries = list(mapping(file.data).values())
    return bool(entries) and all(
        isinstance(inside(entry, "train_rate"), dict) and inside(entry, "successes") is not None for entry in entries
    )


def read(file: ForeignFile) -> Iterator[ImportedFigure]:
    """Yield mean, median and range of the rate of each process, and of the time of a benchmark."""
    for name, entry in mapping(file.data).items():
        gpus = mapping(inside(entry, "per_gpu"))
        settings = stated(model=name, mode="train", devices=str(len(gpus)) if gpus else None)
        failures = inside(entry, "failures")
        note = f"{failures} failed" if isinstance(failures, Digits) and failures != "0" else ""
        for figure, unit in FIGURES.items():
            for statistic in STATISTICS:
                value = inside(entry, figure, statistic)
                if isinstance(value, Digits):
                    yield ImportedFigure(settings, f"{figure}_{statistic}", value, unit, note)


MILABENCH = Importer(
    "milabench",
    "milabench summaries (JSON)",
    ("mila-iqia/milabench, examples/nvidia_summary.json, f326f1ae1343",),
    recognises,
    read,
)
