"""MLPerf Training: the log of a run, and the description of its system in the tree of published results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from steelyard.imported.form import Digits, ImportedFigure, Importer, inside, mapping, parse, stated, times

if TYPE_CHECKING:
    from collections.abc import Iterator

    from steelyard.imported.form import ForeignFile

MARK = ":::MLLOG "
# Keys of the log, and the settings that they are.
SETTINGS = {
    "submission_benchmark": "model",
    "submission_platform": "system",
    "global_batch_size": "global_batch",
    "gradient_accumulation_steps": "accumulation",
    "opt_name": "optimizer",
    "train_samples": "epoch_samples",
}


def recognises(file: ForeignFile) -> bool:
    """Return whether a file has lines of this log."""
    return MARK in file.text


def read(file: ForeignFile) -> Iterator[ImportedFigure]:
    """Yield the time from run_start to run_stop, and the rate of the last epoch if it is logged."""
    events = _events(file)
    if "run_start" not in events:
        return
    settings = {"mode": "train"}
    settings |= stated(**{key: inside(events.get(name), "value") for name, key in SETTINGS.items()})
    rates = [name for name in events if name.endswith("opt_base_learning_rate")]
    settings |= stated(learning_rate=inside(events[rates[0]], "value")) if rates else {}
    who, division = (inside(events.get(f"submission_{name}"), "value") for name in ("org", "division"))
    settings |= stated(options=f"division {division}") if isinstance(division, str) else {}
    settings |= _system(file)
    start, end = _stamp(events["run_start"]), events.get("run_stop", {})
    stop = _stamp(end) if inside(end, "metadata", "status") == "success" else None
    took = str(stop - start) if start is not None and stop is not None and stop >= start else ""
    yield ImportedFigure(settings, "train_time", took, "ms", f"submitted by {who}" if isinstance(who, str) else "")
    tracked = events.get("tracked_stats", {})
    if isinstance(rate := inside(tracked, "value", "throughput"), Digits):
        step = inside(tracked, "metadata", "step")
        when = f", at step {step}" if isinstance(step, Digits) else ""
        yield ImportedFigure(settings, "throughput", rate, "samples/s", f"throughput as logged last{when}")


def _events(file: ForeignFile) -> dict[str, dict[str, Any]]:
    """Return the events by key: the first start, because every process may log it, and the last of all others."""
    events: dict[str, dict[str, Any]] = {}
    for line in file.lines():
        event = mapping(parse(line.partition(MARK)[2])) if MARK in line else {}
        key = event.get("key")
        if isinstance(key, str) and not (key == "run_start" and key in events) and _says(event):
            events[key] = event
    return events


def _says(event: dict[str, Any]) -> bool:
    """Return whether an event is of use: other statistics are tracked beside the rate."""
    return event.get("key") != "tracked_stats" or inside(event, "value", "throughput") is not None


def _stamp(event: dict[str, Any]) -> int | None:
    """Return the time of an event in ms since 1970."""
    text = event.get("time_ms")
    return int(text) if isinstance(text, Digits) and text.isdigit() and len(text) < 16 else None


def _system(file: ForeignFile) -> dict[str, str]:
    """Return the description of the system: SUBMITTER/results/SYSTEM/BENCHMARK/result_0.txt has ../../../systems/."""
    parts = file.name.split("/")
    text = file.beside(f"../../../systems/{parts[-3]}.json") if len(parts) >= 3 else None
    described = mapping(parse(text)) if text else {}
    nodes, each = described.get("number_of_nodes"), described.get("accelerators_per_node")
    return stated(
        system=described.get("system_name"),
        accelerator=described.get("accelerator_model_name"),
        nodes=nodes,
        devices=times(nodes, each),
        framework=described.get("framework"),
        host_cpu=described.get("host_processor_model_name"),
    )


MLPERF = Importer(
    "mlperf",
    "MLPerf Training logs (:::MLLOG), alone or in the tree of published results",
    (
        "mlcommons/training_results_v4.0, Dell/results/R760xax4L40S/resnet/result_0.txt, 62f111b7690f",
        "mlcommons/training_results_v4.0, Dell/systems/R760xax4L40S.json, 62f111b7690f",
    ),
    recognises,
    read,
)
