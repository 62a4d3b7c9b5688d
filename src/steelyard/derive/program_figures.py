"""Quantities that only a wrapped program has: its tokens as counted in its batches, and what its processes used."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from steelyard.contracts.record import Quantity
from steelyard.contracts.wrap import WORK_COLUMNS
from steelyard.derive.rates import LEVELS, job_interval, rank_seconds, rate_quantity
from steelyard.derive.tokens import PER_SECOND
from steelyard.errors import DamagedDataError
from steelyard.stats.quantiles import stream_quantiles

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from steelyard.contracts.record import Aggregation, Scope, Steady, WrappedRun
    from steelyard.contracts.wrap import ProgramEnd
    from steelyard.derive.observations import Observations

NO_WINDOW = "the counts of tokens end before the steps of the throughput do"
NO_MASK = "the batches have no attention mask"
ELSEWHERE = "the program ran in processes that its command did not start itself, as with srun"
SMALL = "it is less than that of the process which started it"
NO_LABELS = "the batches have no labels that count tokens"


def program_quantities(observed: Observations) -> dict[str, Quantity]:
    """Return what the processes of a program used; empty for a workload, or if its end is not known."""
    if observed.program is None or not observed.ends:
        return {}
    ends = observed.ends.values()

    def used(value: float | None, unit: str, scope: Scope, aggregation: Aggregation, why: str = ELSEWHERE) -> Quantity:
        reason = why if value is None else None
        return Quantity(value=value, unit=unit, scope=scope, window="run", aggregation=aggregation, reason=reason)

    def most(of: Callable[[ProgramEnd], float]) -> float:
        return max(map(of, ends))

    largest = most(lambda end: end.peak_rss_bytes or 0.0) or None
    elsewhere = any(process.elsewhere for node in observed.python_processes.values() for process in node)
    elsewhere |= not observed.python_processes.keys() <= observed.ends.keys()
    return {
        "program_time": used(most(lambda end: end.wall_s), "s", "job", "max"),
        "program_cpu_time": used(None if elsewhere else sum(end.cpu_s for end in ends), "s", "job", "sum"),
        "program_memory_peak": used(
            None if elsewhere else largest, "bytes", "rank", "max", ELSEWHERE if elsewhere else SMALL
        ),
    }


def counted_tokens(observed: Observations, seen: WrappedRun, steady: Steady, rate: Quantity) -> dict[str, Quantity]:
    """Return the tokens that the batches of a program hold; `rate`: the throughput, whose window they share."""
    if not seen.tokens_known:
        return {"token_throughput": _unknown(rate, seen.tokens_reason)} if seen.tokens_reason else {}
    tokens = observed.work(lambda table: table[WORK_COLUMNS.index("tokens")])
    start, stop = steady.start_step, min(steady.stop_step, tokens.steps)
    if tokens.ranks != observed.steps.ranks or start >= stop:
        return {"token_throughput": _unknown(rate, NO_WINDOW)}
    trace, sums = tokens.trace(), tokens.sums(start, stop)
    # Tokens are counted without padding; NaN: the batches do not tell.
    work, padding, labels = (
        sums.columns[:, WORK_COLUMNS.index(name)] for name in ("tokens", "padding_tokens", "label_tokens")
    )
    whole = work + np.nan_to_num(padding)
    if any((part < 0).any() or (part > whole).any() for part in (padding, labels)):
        raise DamagedDataError("the steps of a rank have more padding or labels than tokens")
    if not work.sum() > 0:
        return {"token_throughput": _unknown(rate, "no step has a token")}
    seconds = rank_seconds(sums, together=observed.spec.exchanges_gradients)
    quantiles = stream_quantiles(lambda: tokens.step_times(start, stop), list(LEVELS))
    job = job_interval(tokens, trace, start, stop, quantiles)
    quantities = {"token_throughput": rate_quantity(float((work / seconds).sum()), PER_SECOND, "job", rate.window, job)}
    parts: tuple[tuple[str, NDArray[np.float64], str, Aggregation, str], ...] = (
        ("label_token_throughput", labels / seconds, PER_SECOND, "work over time", NO_LABELS),
        ("padding_share", padding / whole.sum(), "1", "share of work", NO_MASK),
    )
    for name, part, unit, aggregation, reason in parts:
        value = float(part.sum())
        known = bool(np.isfinite(value))
        quantities[name] = Quantity(
            value=value if known else None,
            unit=unit,
            scope="job",
            window=rate.window,
            aggregation=aggregation,
            reason=None if known else reason,
        )
    return quantities


def _unknown(rate: Quantity, reason: str) -> Quantity:
    return Quantity(
        value=None, unit=PER_SECOND, scope="job", window=rate.window, aggregation="work over time", reason=reason
    )


def second_pass_shares(quantities: dict[str, Quantity], seen: WrappedRun) -> dict[str, Quantity]:
    """Return where the time of a step goes, with the communication and computation of the second pass.

    Its steps are slower than the measured ones, its communication and its kernels are not: so these are divided by the
    time of a measured step.
    """
    step, wait = quantities.get("step_time_mean"), quantities.get("input_wait_share")
    if seen.exposed_comm_s is None or step is None or not step.value:
        return {}
    waits = wait.value if wait is not None else None
    exposed = min(seen.exposed_comm_s / step.value, 1 - (waits or 0.0))
    shares = {"exposed_comm_share": exposed}
    if waits is not None:
        rest = 1 - waits - exposed
        shares["compute_share"] = rest if seen.busy_s is None else min(seen.busy_s / step.value, rest)
        if seen.busy_s is not None:
            shares["host_wait_share"] = rest - shares["compute_share"]
    return {
        name: Quantity(value=value, unit="1", scope="job", window="crosscheck", aggregation="share of time")
        for name, value in shares.items()
    }
