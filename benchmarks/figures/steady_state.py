"""[steady_state] How often the detection of steady state is right, on eight kinds of generated traces.

Two things are checked: the answer, which should be the label of the kind (lib/traces.py); and, for steady kinds, the
throughput over the found window (steps / time, including spikes), which should be within 1 % of the truth without
noise. At least 95 % of each kind must have the right answer, and at least 95 % of each steady kind the right
throughput.

Seeds from 1,000,000 on are for this figure only. The constants of the detection were chosen on seeds 0 to 9,999
(`--tuning` scores those).
"""

from __future__ import annotations

from collections import defaultdict
from typing import NoReturn

import numpy as np

from figure import Figure, arguments, at_least, finish, slack_percent
from steelyard.stats.steady import find_steady
from traces import KINDS, Trace, draw

BAR_PERCENT = 95.0
THROUGHPUT_WITHIN = 0.01
FIRST_SEED = 1_000_000
FULL, QUICK = 800, 250
"""Traces of each kind."""
EFFECT_BINS_SE = (4, 6, 10, 20)
"""Sizes of a change, for an extra table of answers by size."""


def throughput_error(trace: Trace, start: int, stop: int) -> float:
    """Return the relative error of the throughput of the window."""
    assert trace.steady_step_s is not None
    return abs(float(trace.steady_step_s / np.mean(trace.step_s[start:stop])) - 1)


def score(kind: str, seeds: range, by_effect: dict[int, list[bool]], *, show: bool) -> tuple[float, float | None]:
    """Return the percentage of right answers of one kind, and of right throughputs if it has a steady part."""
    answers, rates = [], []
    for seed in seeds:
        trace = draw(kind, seed)
        found = find_steady(trace.step_s)
        answers.append(found.answer == trace.answer)
        if trace.effect_se is not None:
            by_effect[max(b for b in EFFECT_BINS_SE if b <= trace.effect_se)].append(answers[-1])
        if trace.steady_step_s is not None:
            error = throughput_error(trace, found.start, found.stop)
            rates.append(found.answer == "steady" and error <= THROUGHPUT_WITHIN)
        if show and not (answers[-1] and (not rates or rates[-1])):
            print(f"  {kind} {seed}: {trace.step_s.size} values, {trace.effect_se} SE: {found}")
    return 100 * sum(answers) / len(answers), 100 * sum(rates) / len(rates) if rates else None


def main() -> NoReturn:
    options = arguments(
        __doc__,
        tuning={"action": "store_true", "help": "use the seeds that the constants were chosen on"},
        show={"action": "store_true", "help": "list the wrong traces"},
    )
    cases = QUICK if options.quick else FULL
    first = 0 if options.tuning else FIRST_SEED
    bar = BAR_PERCENT - slack_percent(BAR_PERCENT, cases, quick=options.quick)
    figures: list[Figure] = []
    throughputs: dict[str, float] = {}
    by_effect: dict[int, list[bool]] = defaultdict(list)
    for kind in KINDS:
        right, rate = score(kind, range(first, first + cases), by_effect, show=options.show)
        figures.append(at_least(f"steady_state: {kind}", right, f"% right of {cases}", bar))
        if rate is not None:
            throughputs[kind] = rate
    worst = min(throughputs, key=lambda kind: throughputs[kind])
    unit = f"% of {cases} within 1 % (worst kind: {worst})"
    figures.append(at_least("steady_state: throughput", throughputs[worst], unit, bar))
    for low, right_ones in sorted(by_effect.items()):
        share = 100 * sum(right_ones) / len(right_ones)
        print(f"changes from {low} standard errors: {share:.1f} % of {len(right_ones)} right")
    finish(figures)


if __name__ == "__main__":
    main()
