"""Comparisons of energy: different sensors, different scopes, doubtful and invalid energies."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from conftest import make_spec
from steelyard.analysis.compare import compare
from steelyard.analysis.energy import energy_cells, over_jobs
from steelyard.analysis.rows import row_of
from steelyard.analysis.summary import summarise
from steelyard.contracts.record import Validity
from steelyard.contracts.sim import Node, Noise, Power, Sensor, SimTruth
from steelyard.contracts.spec import Budget
from steelyard.terminal.compare import lines
from steelyard.terminal.energy import energy_lines

if TYPE_CHECKING:
    from collections.abc import Callable

    from steelyard.contracts.record import RunRecord
    from steelyard.contracts.spec import RunSpec
    from steelyard.rules.table.row import Row

    Simulate = Callable[[RunSpec], RunRecord]

POWER = Power(idle_w=50.0, compute_w=300.0, host_w=100.0)
LONG = Budget(min_steps=1000, max_steps=1000)


def jobs(simulate: Simulate, sensor: Sensor, *, power: Power = POWER, **more: Any) -> list[RunRecord]:
    """Return three jobs of one machine."""
    node = Node(modules=True) if sensor.scope == "module" else Node()
    script = SimTruth(setup_s=2.0, power=power, sensors=(sensor,), node=node, noise=Noise(kind="normal"))
    return [simulate(make_spec(seed=n + 1, repeat=n, sim=script, budget=LONG, **more)) for n in range(3)]


def row(records: list[RunRecord], place: str) -> Row:
    return replace(row_of(summarise(records)[0]), place=place)


def device(gain_error: float = 0.0) -> Sensor:
    return Sensor(period_s=0.02, gain_error=gain_error)


def test_only_gain_is_common_to_the_jobs_of_a_side(simulate: Simulate) -> None:
    """The rest of a job's interval is its own, and repeats show it."""
    records = jobs(simulate, Sensor(period_s=0.5))
    interval = records[0].quantities["energy_per_sample"].interval
    assert interval is not None
    assert interval.top - interval.low > 2.02 * (interval.gain or 0.0)
    assert row(records, "A").figures["energy_per_sample"].common == pytest.approx(0.05)
    mean = over_jobs(records, "energy_per_sample")
    assert mean is not None
    assert mean.interval is not None
    assert mean.interval.gain == pytest.approx(0.05 * (mean.value or 0.0))


def judged(records: list[RunRecord], verdict: Any, *reasons: str) -> list[RunRecord]:
    """Return the records with another verdict on their energies."""
    word = Validity(verdict=verdict, reasons=reasons)
    return [
        replace(
            record,
            quantities={
                name: replace(found, validity=word) if found.validity is not None else found
                for name, found in record.quantities.items()
            },
        )
        for record in records
    ]


def test_equal_machines_with_unlike_sensors_show_no_difference(simulate: Simulate) -> None:
    a, b = row(jobs(simulate, device(0.04)), "s/a"), row(jobs(simulate, device(-0.04)), "s/b")
    compared = compare([a], [b], factor="system")
    per_watt = next(ratio for ratio in compared.comparisons[0].ratios if ratio.scope == "watt")
    # By repeats alone the difference of 8 % would be certain to some hundredths of a percent.
    assert per_watt.value == pytest.approx(1.04 / 0.96, rel=0.002)
    assert per_watt.low is not None
    assert per_watt.high is not None
    assert per_watt.low <= 1.0 <= per_watt.high
    assert per_watt.verdict == "no difference shown"
    assert "sensor error" in "\n".join(lines(compared, "a", "b"))


def test_a_difference_beyond_both_gains_is_shown(simulate: Simulate) -> None:
    a = row(jobs(simulate, device(0.04)), "s/a")
    b = row(jobs(simulate, device(-0.04), power=replace(POWER, compute_w=150.0)), "s/b")
    found = compare([a], [b], factor="system").comparisons[0]
    per_watt = next(ratio for ratio in found.ratios if ratio.scope == "watt")
    assert per_watt.verdict == "faster"
    assert per_watt.low is not None
    assert per_watt.high is not None
    assert per_watt.low <= 2.0 <= per_watt.high


def test_one_sensor_has_one_gain_which_cancels(simulate: Simulate) -> None:
    a = row(jobs(simulate, device(0.04)), "s/a")
    b = row(jobs(simulate, device(0.04), batch=64), "s/b")
    found = compare([a], [b], factor="batch").comparisons[0]
    per_watt = next(ratio for ratio in found.ratios if ratio.scope == "watt")
    assert per_watt.low is not None
    assert per_watt.high is not None
    assert per_watt.high / per_watt.low < 1.02


@pytest.mark.parametrize("metric", ["throughput", "energy_per_sample"])
def test_a_module_is_not_held_against_a_device(simulate: Simulate, metric: str) -> None:
    a = row(jobs(simulate, device()), "s/a")
    b = row(jobs(simulate, Sensor(scope="module", period_s=0.02)), "s/b")
    found = compare([a], [b], factor="system", metric=metric).comparisons[0]
    assert not [ratio for ratio in found.ratios if ratio.scope == "watt"]
    severity = next(entry.severity for entry in found.findings if entry.code == "SY410")
    assert severity == ("error" if metric == "energy_per_sample" else "warning")


def test_a_doubtful_energy_gives_no_ratio_without_saying_so(simulate: Simulate) -> None:
    sound = jobs(simulate, device())
    a, b = row(sound, "s/a"), row(judged(sound, "doubtful", "a gap of 3 s"), "s/b")
    found = compare([a], [b], factor="system").comparisons[0]
    assert [ratio for ratio in found.ratios if ratio.scope == "watt"]
    (said,) = [entry for entry in found.findings if entry.code == "SY410"]
    assert "s/b: a gap of 3 s" in said.evidence
    other = row(jobs(simulate, device(0.01)), "s/c")
    silent = compare([a], [other], factor="system").comparisons[0]
    assert "SY410" not in {entry.code for entry in silent.findings}


def test_an_invalid_energy_is_no_figure_even_with_a_value(simulate: Simulate) -> None:
    sound = jobs(simulate, device())
    broken = row(judged(sound, "invalid", "frozen"), "s/b")
    assert not {name for name in broken.figures if "energy" in name or "power" in name or "wh" in name}
    found = compare([row(sound, "s/a")], [broken], factor="system").comparisons[0]
    assert not [ratio for ratio in found.ratios if ratio.scope == "watt"]


def test_cells_are_not_ranked_within_their_intervals(simulate: Simulate) -> None:
    def said(watts: float) -> str:
        powers = {"a": POWER, "b": replace(POWER, compute_w=watts)}
        both = [
            replace(
                record,
                run_id=f"{cell}-{number}",
                spec=replace(record.spec, configuration=cell, run_id=f"{cell}-{number}"),
            )
            for cell, power in powers.items()
            for number, record in enumerate(jobs(simulate, device(), power=power))
        ]
        return " ".join(" ".join(energy_lines(energy_cells(summarise(both), {}), None)[:4]).split())

    assert "tied, no difference shown" in said(303.0)
    assert "Best: sim.power.compute_w=150.0 at" in said(150.0)
