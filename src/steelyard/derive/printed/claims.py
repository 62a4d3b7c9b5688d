"""The figures that a wrapped program prints, compared with the steps that were seen of it."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

import numpy as np

from steelyard.contracts.record import PrintedClaim, possible
from steelyard.contracts.wrap import OTHERS, WORK_COLUMNS
from steelyard.derive.printed.check import MeasuredWindow, check_printed, unchecked
from steelyard.derive.printed.formats import known_formats
from steelyard.derive.printed.level import summarize
from steelyard.derive.printed.reader import MAX_BYTES, read_output
from steelyard.redact import redact

if TYPE_CHECKING:
    from steelyard.contracts.record import WrappedRun
    from steelyard.derive.observations import Observations
    from steelyard.derive.printed.check import PrintedVerdict
    from steelyard.derive.printed.level import PrintedMean

MAX_CLAIMS = 100
FEWEST_STEPS = 3
NOT_SEEN = "its steps were not seen"
FEWEST_LINES = 3
"""Fewer lines do not tell how far they are off their own steps."""


def printed_claims(observed: Observations, seen: WrappedRun) -> tuple[PrintedClaim, ...]:
    """Return whether each kind of figure in the output of a program is true; unknown if its steps were not seen."""
    program = observed.launched.program
    if program is None:
        return ()
    named = program.figures if program.figures in {form.name for form in known_formats()} else None
    output = read_output(observed.read_output(MAX_BYTES), named)
    if not output.figures:
        return ()
    # Which lines are of the training that was measured, the output does not tell.
    why = OTHERS if OTHERS in seen.step_reason else NOT_SEEN if observed.steps.steps < FEWEST_STEPS else ""
    if why:
        summary = summarize(output)
        best = (summary.step_time, *summary.rates.values())
        return tuple(_claim(unchecked(mean, why)) for mean in best if mean is not None)
    verdicts = check_printed(output.figures, _MeasuredSteps(observed, seen).window, known_peaks())
    return tuple(map(_claim, verdicts[:MAX_CLAIMS]))


def _claim(verdict: PrintedVerdict) -> PrintedClaim:
    known = [cause.factor for cause in verdict.causes if cause.factor is not None]
    factor = known[0] if len(known) == 1 == len(verdict.causes) else verdict.factor
    return PrintedClaim(
        kind=verdict.mean.kind,
        format=verdict.mean.format,
        lines=verdict.mean.lines,
        value=verdict.mean.value,
        verdict=verdict.verdict,
        measured=verdict.measured,
        factor=factor if possible(factor) else None,
        causes=tuple(cause.words for cause in verdict.causes),
        by_definition=verdict.by_definition,
        sentence=redact(verdict.sentence)[0][:4000],
    )


class _MeasuredSteps:
    """What was measured of a program's steps, over any part of them."""

    def __init__(self, observed: Observations, seen: WrappedRun) -> None:
        self._observed, self._seen = observed, seen
        self._trace = observed.steps.trace()
        times = self._trace.times[1:]
        self._spread = float(np.std(times) / np.mean(times)) if len(times) >= FEWEST_STEPS else 0.0
        self._first_s = float(observed.steps.sums(0, 1).column("step_s").mean())
        self._parts: dict[tuple[int, int], MeasuredWindow] = {}

    def window(self, mean: PrintedMean) -> MeasuredWindow:
        """Return what was measured over the steps of a printed mean, or over all but the first if it tells none."""
        steps = self._observed.steps.steps
        start, stop = mean.steps or (0, 0)
        # Numbers of a program that goes on with an earlier run, or of batches, are not those of the steps.
        told = stop <= steps and stop - start >= FEWEST_STEPS
        start, stop = (max(1, start), stop) if told else (1, steps)
        if (start, stop) not in self._parts:
            self._parts[start, stop] = self._part(start, stop)
        return replace(self._parts[start, stop], by_line=self._by_line(mean) if told else None)

    def _by_line(self, mean: PrintedMean) -> float | None:
        """Return the relative standard deviation of printed over measured by line; None: too few lines."""
        if len(mean.parts) < FEWEST_LINES:
            return None
        starts, stops, values = (np.array(column) for column in zip(*mean.parts, strict=True))
        # Up to each step; inside a bin of several steps they are taken to be equally long.
        until = np.concatenate([[0.0], np.cumsum(self._trace.times)])
        edges = np.arange(len(until)) * self._trace.steps_per_bin
        step_s = (np.interp(stops, edges, until) - np.interp(starts, edges, until)) / (stops - starts)
        ratios = values / step_s if mean.kind == "step_time" else values * step_s
        return float(np.std(ratios, ddof=1) / np.mean(ratios))

    def _part(self, start: int, stop: int) -> MeasuredWindow:
        observed, seen, count = self._observed, self._seen, stop - start
        sums = observed.steps.sums(start, stop)
        waits = float(sums.column("input_wait_s").mean()) / count
        apart = {"evaluation": 0.0, "checkpoint": 0.0}
        for phase in observed.events.phases:
            if phase.name in apart and sums.start_s <= phase.start_s < sums.end_s:
                apart[phase.name] += phase.end_s - phase.start_s
        samples = float(sums.column("samples").sum()) / count if seen.samples != "unknown" else None
        return MeasuredWindow(
            step_s=float(sums.column("step_s").max()) / count,
            steps=count,
            spread=self._spread,
            samples=samples,
            batches=samples / (seen.world * seen.batch) if samples and seen.world and seen.batch else None,
            world=seen.world or 1,
            accumulation=seen.accumulation,
            evaluation_s=apart["evaluation"],
            checkpoint_s=apart["checkpoint"],
            first_step_s=self._first_s if start == 1 else None,
            input_wait_s=waits if np.isfinite(waits) else None,
            asynchronous=any(report.device != "cpu" for report in observed.events.wrapped.values()),
            **token_counts(observed, seen, start, stop),
            flops=seen.flops_per_step,
            peak=device_peak(observed, seen),
        )


@cache
def known_peaks() -> dict[str, float]:
    """Return the peaks of all devices that steelyard knows, in FLOP/s, by device and data type."""
    # The front side imports nothing of the worker; this is a file with data.
    table = json.loads((resources.files("steelyard") / "worker" / "devices" / "facts.json").read_bytes())
    return {
        f"{entry['model']} in {kind}": peak
        for entry in table
        for kind, peak in entry["peak_flops"].items()
        if peak is not None
    }


def device_peak(observed: Observations, seen: WrappedRun) -> float | None:
    """Return the peak of the device in the number format of the matrix products, as for a workload's utilisation."""
    device, settings, kind = observed.events.device, observed.events.settings, observed.spec.precision
    if device is None or "precision" in seen.unknown:
        return None
    products = settings.values.get("float32_products") if settings is not None else None
    return (device.peak_flops or {}).get("tf32" if (kind, products) == ("fp32", "tf32") else kind)


def token_counts(observed: Observations, seen: WrappedRun, start: int, stop: int) -> dict[str, float | None]:
    """Return the tokens of a step, those that count in the loss, and the share of padding, if they were seen."""
    if not seen.tokens_known:
        return {}
    columns = observed.work(lambda table: table[WORK_COLUMNS.index("tokens")]).sums(start, stop).columns
    tokens, labels, padding = (
        float(columns[:, WORK_COLUMNS.index(name)].sum()) for name in ("tokens", "label_tokens", "padding_tokens")
    )
    known = np.isfinite(padding) and tokens + padding > 0
    return {
        "tokens": tokens / (stop - start),
        "labels": labels / (stop - start) if np.isfinite(labels) else None,
        "padding": padding / (tokens + padding) if known else None,
    }
