"""What must hold for an answer: settings that change the figure and that the document does not state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from steelyard.rules.table.row import Pair
from steelyard.rules.table.settings import (
    SETTINGS,
    about_quality,
    about_training,
    implied,
    meant_to_differ,
    of_steps,
    unclear,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from steelyard.analysis.compare import Comparison
    from steelyard.rules.table.row import Row

OURS_ALONE = ("preset", "build", "variables", "container")
ABOUT = ("SY1", "SY4")
UNKNOWN = "SY108"
WITH_MODEL = {"model_options", "optimizer", "sequence_length"}
"""Settings that follow from the model, and that two models may still share."""
UNRELATED = ("system", "size", "environment", "evidence")
NAMES = {
    "model_options": "options of the model, such as the resolution",
    "batch": "batch of a device",
    "learning_rate": "learning rate",
    "sequence_length": "length of the sequences",
    "last_batch": "last batch of an epoch",
    "data_identity": "files of the data set",
    "epoch_samples": "samples of an epoch",
    "float32_products": "number format of fp32 products",
    "parameter_precision": "number format of the weights",
    "global_batch": "batch of the job",
    "loader.place": "place of the data",
    "loader.workers": "loader processes",
    "loader.prefetch": "prefetching",
    "loader.pin_memory": "pinned memory",
    "filesystem": "file system",
    "compile": "compilation",
    "channels_last": "memory format",
    "deterministic": "deterministic algorithms",
    "numa": "NUMA binding",
}
"""Names of settings for readers of a document."""


def unstated(pair: Pair, ours: Sequence[Row]) -> Iterator[str]:
    """Yield the settings that a row of the pair does not state, that our rows have, and that change the figure."""
    meant = meant_to_differ(pair) - (WITH_MODEL if pair.factor == "model" else set())
    # The batch of the job follows from that of a device, and the number of devices is what differs.
    meant |= {"global_batch"} if pair.factor == "devices" else set()
    for key, role in SETTINGS.items():
        missing = pair.a.get(key) is None or pair.b.get(key) is None
        known = any(row.get(key) is not None for row in ours)
        related = key not in meant and role not in UNRELATED and key not in OURS_ALONE and not implied(pair, key)
        if missing and known and related and _changes(key, pair):
            yield key


def _changes(key: str, pair: Pair) -> bool:
    """Return whether a setting changes a figure of this kind."""
    if key == "epochs":
        return about_training(pair.metric)
    if SETTINGS[key] == "training":
        return about_quality(pair.metric)
    return SETTINGS[key] != "amount" or not of_steps(pair.metric, pair.a.figures.get(pair.metric))


def warned(made: Comparison) -> Iterator[str]:
    """Yield the warnings of the rules on settings and energies, without those on unknown settings."""
    for finding in made.findings:
        if finding.severity == "warning" and finding.code.startswith(ABOUT) and finding.code != UNKNOWN:
            yield f"{finding.code}: {finding.message}"


def conditions_of(made: Comparison, *, without: str = "") -> Iterator[str]:
    """Yield what must hold for a ratio of our figure to a printed one; `without`: the setting that is asked for."""
    pair = Pair(made.a, made.b, made.factor, made.metric)
    if keys := [key for key in unstated(pair, [made.b]) if key != without]:
        yield f"if it is the same in the document, which does not say: {listed(keys)}"
    uncertain = unclear(pair)
    if alike := [text for text in uncertain if " vs " in text]:
        yield f"if these mean the same: {', '.join(alike)}"
    if theirs := [text for text in uncertain if text not in alike and pair.a.get(text.partition(" (")[0]) is not None]:
        yield f"if it is the same here, where it is not known: {', '.join(theirs)}"
    yield from warned(made)


def listed(keys: Sequence[str]) -> str:
    """Return the names of settings in one line."""
    return ", ".join(NAMES.get(key, key.replace("_", " ")) for key in keys)
