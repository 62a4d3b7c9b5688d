"""Streaming quantiles are exact for any data."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.stats import quantiles
from steelyard.stats.quantiles import stream_quantiles

LEVELS = [0.0, 0.5, 0.9, 0.95, 0.99, 1.0]


@settings(max_examples=60)
@given(st.lists(st.sampled_from([0.01, 0.02, 0.5, 3.0, 1e-9, 7e5]) | st.floats(1e-6, 1e6), min_size=1, max_size=300))
def test_against_numpy_with_little_memory(values: list[float]) -> None:
    data = np.asarray(values)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quantiles, "HELD_VALUES", 3)
        patch.setattr(quantiles, "BATCH_VALUES", 16)
        found = stream_quantiles(lambda: np.array_split(data, 7), LEVELS)
    expected = [float(np.quantile(data, level, method="inverted_cdf")) for level in LEVELS]
    np.testing.assert_allclose(found, expected, rtol=2 * quantiles.RESOLUTION)


def test_a_million_values_of_one_clock_tick() -> None:
    data = np.full(1_000_000, 0.01) + np.random.default_rng(1).integers(0, 3, 1_000_000) * 1e-18
    assert stream_quantiles(lambda: [data], [0.5]) == pytest.approx([0.01], rel=1e-9)


def test_a_level_that_rounds_up_by_accident() -> None:
    data = np.arange(1.0, 101.0)
    assert stream_quantiles(lambda: [data], [0.95, 0.29, 0.57]) == [95.0, 29.0, 57.0]


def test_nothing_has_no_quantiles() -> None:
    with pytest.raises(ValueError, match="no values"):
        stream_quantiles(list, [0.5])
