"""Quantities of language models: time to first token, time per token, tokens per second.

Token samples have one row per token of a batch of requests, in the order they were generated: row r is token r mod n
of its request, where n is the number of tokens per request. A row lasts from the previous token to its own; the first
of a request from the arrival of its prompts, without the time waiting for input.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from steelyard.contracts.record import Quantity
from steelyard.stats.quantiles import stream_quantiles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from steelyard.contracts.record import Aggregation, Steady, Window
    from steelyard.derive.observations import Observations, StepSamples

    Rows = NDArray[np.float64]

PERCENTILES: tuple[tuple[Aggregation, float], ...] = (("p50", 0.50), ("p90", 0.90), ("p95", 0.95), ("p99", 0.99))
PER_SECOND = "tokens/s"


def token_quantities(observed: Observations, steady: Steady | None, rate: Quantity | None) -> dict[str, Quantity]:
    """Return all token quantities; empty for runs without tokens. `rate`: the throughput of the job in samples."""
    spec, model = observed.spec, observed.events.model
    tokens = model.tokens_per_sample if model is not None else None
    if spec.mode != "generate":
        # A run that only loads data does not process tokens.
        if rate is None or not tokens or spec.mode not in ("train", "infer"):
            return {}
        return {"token_throughput": scaled(rate, tokens, PER_SECOND)}
    if steady is None or rate is None:
        return {}
    # Tokens per prompt and per answer, as the worker reported them.
    values = observed.events.settings.values if observed.events.settings is not None else {}
    lengths = [values.get(name, "") for name in ("prompt_tokens", "new_tokens")]
    known = all(text.isascii() and text.isdigit() and 0 < int(text[:10]) < 10**9 for text in lengths)
    samples = observed.tokens
    if not known or not samples.steps:
        return _unknown(rate, "the run ended before it reported the length of its requests")
    prompt, new_tokens = map(int, lengths)
    requests = _Requests(samples, steady, new_tokens)
    if requests.start >= requests.stop:
        return _unknown(rate, "the token samples end before the steady window begins")
    return {"token_throughput": scaled(rate, new_tokens, PER_SECOND), **_times(requests, rate.window, prompt)}


def scaled(quantity: Quantity, factor: float, unit: str) -> Quantity:
    """Convert a quantity and its interval to another unit."""
    interval = quantity.interval.times(factor) if quantity.interval is not None else None
    value = None if quantity.value is None else quantity.value * factor
    return replace(quantity, value=value, unit=unit, interval=interval)


class _Requests:
    """The token rows of the requests in the steady window."""

    def __init__(self, samples: StepSamples, steady: Steady, new_tokens: int) -> None:
        self._samples = samples
        self._tokens = new_tokens
        self.start = steady.start_step * new_tokens
        # A run that was killed between two files may lack the tokens of the last block.
        self.stop = min(steady.stop_step, samples.steps // new_tokens) * new_tokens
        self.decodes = new_tokens > 1

    def rows(self, *, first: bool, check: bool = False) -> Iterator[tuple[int, Rows, Rows]]:
        """Yield rank, times and requests of the first tokens, or of all others."""
        for chunk in self._samples.windowed(self.start, self.stop, check=check):
            opens = (chunk.first_step + np.arange(chunk.steps)) % self._tokens == 0
            chosen = opens if first else ~opens
            if chosen.any():
                yield chunk.rank, chunk.column("step_s")[chosen], chunk.column("samples")[chosen]

    def times(self, *, first: bool) -> Callable[[], Iterator[Rows]]:
        """Return the times in the form that `stream_quantiles` needs."""
        return lambda: (times for _, times, _ in self.rows(first=first))

    def sums(self, *, first: bool) -> tuple[float, float]:
        """Return the mean time, and the requests per second of the job: the sum over its ranks."""
        seconds: dict[int, float] = {}
        work: dict[int, float] = {}
        count = 0
        for rank, times, requests in self.rows(first=first, check=True):
            seconds[rank] = seconds.get(rank, 0.0) + float(times.sum())
            work[rank] = work.get(rank, 0.0) + float(requests.sum())
            count += times.size
        return sum(seconds.values()) / count, sum(work[rank] / seconds[rank] for rank in seconds)


def _times(requests: _Requests, window: Window, prompt: int) -> dict[str, Quantity]:
    mean, rate = requests.sums(first=True)
    times = _spread("ttft", window, [mean, *_percentiles(requests, first=True)])
    times |= _rates(window, prefill=rate * prompt)
    if not requests.decodes:
        reason = "requests generate one token: there is no decoding"
        return times | _spread("time_per_token", window, None, reason) | _rates(window, reason, decode=None)
    mean, rate = requests.sums(first=False)
    times |= _spread("time_per_token", window, [mean, *_percentiles(requests, first=False)])
    return times | _rates(window, decode=rate)


def _percentiles(requests: _Requests, *, first: bool) -> list[float]:
    return stream_quantiles(requests.times(first=first), [level for _, level in PERCENTILES])


def _spread(name: str, window: Window, values: list[float] | None, reason: str | None = None) -> dict[str, Quantity]:
    """Return mean and percentiles of a time, or the reason why they are unknown."""
    mean = Quantity(
        value=values[0] if values else None, unit="s", scope="job", window=window, aggregation="mean", reason=reason
    )
    quantities = {f"{name}_mean": mean}
    for number, (aggregation, _) in enumerate(PERCENTILES, 1):
        value = values[number] if values else None
        quantities[f"{name}_{aggregation}"] = replace(mean, value=value, scope="rank", aggregation=aggregation)
    return quantities


def _rates(window: Window, reason: str | None = None, **values: float | None) -> dict[str, Quantity]:
    return {
        f"{name}_token_throughput": Quantity(
            value=value, unit=PER_SECOND, scope="job", window=window, aggregation="work over time", reason=reason
        )
        for name, value in values.items()
    }


def _unknown(rate: Quantity, reason: str) -> dict[str, Quantity]:
    window = rate.window
    return {
        "token_throughput": replace(rate, value=None, unit=PER_SECOND, interval=None, reason=reason),
        **_spread("ttft", window, None, reason),
        **_spread("time_per_token", window, None, reason),
        **_rates(window, reason, prefill=None, decode=None),
    }
