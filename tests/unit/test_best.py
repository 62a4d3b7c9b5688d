"""Ranking configurations: who is best, tied, unreliable or lost; groups of the same work; and what the verb prints."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from steelyard.analysis.best import rank
from steelyard.analysis.request import Tariff, WorkPlan
from steelyard.analysis.summary import summarise
from steelyard.cli.main import main
from steelyard.contracts.finding import Finding
from steelyard.contracts.observe import Environment, Status
from steelyard.contracts.record import Quantity, RunRecord, Steady
from steelyard.contracts.spec import RunSpec
from steelyard.errors import InputError
from steelyard.results.store import RECORD_FILE, ResultFolder, write_json
from steelyard.terminal.best import headline, ranking_lines

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from steelyard.analysis.best import Ranked, Ranking

WRONG = Finding(code="SY601", severity="error", message="a rank is missing", fix="rerun")
STEADY = Steady(answer="steady", start_step=0, stop_step=100, reason="tested")


def rate_of(value: float, scope: Any) -> Quantity:
    return Quantity(value=value, unit="samples/s", scope=scope, window="steady", aggregation="work over time")


def jobs(rates: Sequence[float], status: Any = "completed", **settings: Any) -> list[RunRecord]:
    """Return one record per rate, or per failure."""
    name = "-".join(f"{key}{value}" for key, value in settings.items() if not isinstance(value, dict)) or "only"
    records = []
    for repeat, rate in enumerate(rates):
        device = rate / settings.get("devices", 1)
        known = {"throughput": rate_of(rate, "job"), "throughput_per_device": rate_of(device, "device")}
        spec = RunSpec(run_id=f"{name}-{repeat}", configuration=name, study="sweep", repeat=repeat, **settings)
        done = status == "completed"
        records.append(
            RunRecord(
                run_id=spec.run_id, spec=spec, status=Status(code=status, reason="" if done else "as tested"),
                launch=None, phases=(), stop=None, steady=STEADY, crosscheck=None, steps_seen=100, ranks_seen=1,
                environment=Environment(node="n1", allocation=None, device="sim", timing="simulated", facts={}),
                seconds_measured=1.0, quantities=known if done else {}, findings=(), raw=(), derived_by="test",
            )
        )  # fmt: skip
    return records


def spread(rate: float, cv: float = 0.005) -> list[float]:
    return [rate * (1 - cv), rate, rate * (1 + cv)]


def ranked(*groups: list[RunRecord], **how: Any) -> Ranking:
    (found,) = rank(summarise(record for group in groups for record in group), **how)
    return found


def entry(found: Ranking, name: str) -> Ranked:
    return next(one for one in found.entries if one.name == name)


def test_the_best_is_named_with_its_interval_and_the_next() -> None:
    found = ranked(jobs(spread(400), batch=64), jobs(spread(300), batch=8), jobs(spread(100), batch=2))
    assert [one.name for one in found.entries] == ["batch=64", "batch=8", "batch=2"]
    assert headline(found).startswith("Best: batch=64 at 400.0 samples/s (95 % CI 395")
    assert "1.33 times as fast as the next, batch=8 (95 % CI 1.3" in headline(found)
    assert found.next_step is None
    share = entry(found, "batch=2").relative
    assert share is not None
    assert share.value == pytest.approx(0.25, rel=1e-3)
    assert share.low < 0.25 < share.high < 0.3  # type: ignore[operator]


def test_tied_configurations_are_named_together_and_get_a_command() -> None:
    found = ranked(jobs(spread(400, 0.02), batch=64), jobs(spread(390, 0.02), batch=32), jobs(spread(100), batch=2))
    assert headline(found) == (
        "Best: tied, no difference shown: batch=64 at 399.9 samples/s; batch=32 at 389.9 samples/s"
    )
    assert [one.tied for one in found.entries] == [True, True, False]
    tied = entry(found, "batch=32").relative
    assert tied is not None
    assert (tied.high, tied.low is not None and tied.low < 0.95) == (1.0, True)
    more = "--study sweep --repeats 5"
    assert found.next_step == f"steelyard run sim --batch 64 {more} && steelyard run sim {more}"


def test_an_unreliable_configuration_is_never_left_out_of_the_answer() -> None:
    """The figure that it replaces: the highest of the survivors, while the table had a higher one."""
    found = ranked(
        jobs(spread(324.83), batch=8), jobs(spread(100), batch=2), jobs([409.5, 409.6], batch=128),
        jobs([1.0] * 3, status="out_of_memory", batch=256),
    )  # fmt: skip
    assert headline(found).startswith("Best reliable: batch=8 at 324.8 samples/s (95 % CI 3")
    assert "2 of 4 configurations are reliable; 1 configuration without a result)" in headline(found)
    assert "batch=128 measured 26 % higher, 409.5 samples/s, but is unreliable: 2 of the 3 jobs" in headline(found)
    assert found.next_step == "steelyard run sim --batch 128 --study sweep"
    lines = ranking_lines([found])
    assert [line.split()[0] for line in lines if "batch=" in line and "completed" in line] == ["1", "2", "-"]
    assert any("3 out of memory: as tested" in line for line in lines)
    lower = ranked(jobs(spread(324.83), batch=8), jobs([200.0], batch=128))
    assert headline(lower).startswith("Best reliable: batch=8 at")
    assert lower.above is None


def test_errors_are_explained_and_never_ranked() -> None:
    broken = [replace(record, findings=(WRONG,)) for record in jobs(spread(500), batch=64)]
    found = ranked(jobs(spread(400), batch=8), broken)
    assert "batch=64 measured 25 % higher, 500.0 samples/s, but is unreliable: errors in its runs" in headline(found)
    assert found.next_step == "steelyard explain SY601"
    assert headline(ranked(broken)).startswith("no reliable best: the only configuration is unreliable: errors in its")


def test_without_a_reliable_configuration_there_is_a_sentence_and_a_command() -> None:
    found = ranked(jobs([400.0], batch=8), jobs([300.0], batch=4))
    assert headline(found).startswith(
        "no reliable best: none of 2 configurations is reliable; batch=8 measured highest 400.0 samples/s, but is "
    )
    assert found.next_step == "steelyard run sim --batch 8 --study sweep --repeats 2"
    lost = ranked(jobs([1.0], status="failed", batch=8), jobs([1.0], status="failed", batch=4))
    assert headline(lost) == "no best: none of 2 configurations has a result (1 failed: as tested)"


def trending(records: list[RunRecord], trends: Sequence[float]) -> list[RunRecord]:
    """Give each job a trend."""
    return [replace(record, steady=replace(STEADY, trend=trend)) for record, trend in zip(records, trends, strict=True)]


def test_a_trend_of_the_best_is_its_own_reason_and_not_that_of_the_others() -> None:
    """Its trend shows only with the variance of both sides, so that it counts as reliable alone."""
    best = trending(jobs(spread(400), batch=64), [0.04, 0.05, 0.06])
    others = [trending(jobs(spread(rate), batch=batch), [0.0, 0.001, -0.001]) for rate, batch in ((300, 8), (200, 4))]
    found = ranked(best, *others)
    assert [one.name for one in found.reliable] == ["batch=8", "batch=4"]
    assert headline(found).startswith("Best reliable: batch=8 at 300.0")
    assert "batch=64 measured 33 % higher, 400.0 samples/s, but is unreliable: " in headline(found)
    assert entry(found, "batch=64").reasons[0].startswith("its jobs get slower by 5.1 %")
    assert found.next_step is not None
    assert found.next_step.endswith("--repeats 3")
    # An extension of the study repeats only what shows a trend by itself.
    of_study = [
        replace(record, spec=replace(record.spec, study_arguments=("study", "s.toml")))
        for record in [*best, *others[0], *others[1]]
    ]
    assert ranked(of_study).next_step == "steelyard explain SY211"


def test_a_trend_that_no_job_has_does_not_end_the_ranking() -> None:
    """As a record of somebody else may state it."""
    odd = trending(jobs(spread(400), batch=64), [1e308, -1e308, 1e300])
    assert ranked(odd, jobs(spread(300), batch=8)).entries


def test_a_trend_asks_for_longer_jobs_and_not_for_more() -> None:
    steep = trending(jobs(spread(400), batch=64), [0.1, 0.101, 0.099])
    found = ranked(steep, jobs(spread(300), batch=8))
    assert found.next_step is not None
    assert found.next_step.startswith("steelyard run sim --batch 64")
    assert found.next_step.endswith("--repeats 3")
    of_study = [replace(record, spec=replace(record.spec, study_arguments=("study", "s.toml"))) for record in steep]
    assert ranked(of_study, jobs(spread(300), batch=8)).next_step == "steelyard study s.toml --extend"


def test_tied_configurations_of_a_site_get_no_command() -> None:
    records = jobs(spread(400, 0.02), batch=64) + jobs(spread(390, 0.02), batch=32)
    words = ("study", "s.toml", "--site", "cluster.toml")
    found = ranked([replace(one, spec=replace(one.spec, study_arguments=words)) for one in records])
    assert len(found.tied) == 2
    assert found.next_step is None


def test_other_work_is_ranked_apart_and_other_settings_are_not() -> None:
    deep = {"model": {"layers": 9}}
    records = jobs(spread(400), batch=8) + jobs(spread(300), batch=8, precision="bf16")
    records += jobs(spread(900), batch=4, **deep) + jobs([1.0], status="failed", batch=16, **deep)
    found = rank(summarise(records))
    assert [(one.label, len(one.entries)) for one in found] == [
        ("model_options none", 2), ("model_options layers=9", 2),
    ]  # fmt: skip
    lines = ranking_lines(found)
    assert lines[0] == "2 groups of configurations do different work and are ranked separately."
    assert sum("Best: " in line for line in lines) == 2


def test_efficiency_and_cost_count_devices() -> None:
    groups = (jobs(spread(100), devices=1), jobs(spread(180), devices=2))
    assert [one.name for one in ranked(*groups).entries] == ["devices=2", "devices=1"]
    efficient = ranked(*groups, by="efficiency")
    assert [one.name for one in efficient.entries] == ["devices=1", "devices=2"]
    assert "1.11 times as much per device as the next, devices=2" in headline(efficient)
    cheap = ranked(*groups, by="cost")
    assert headline(cheap).startswith("Best: devices=1 at 2.778 device-hours per million samples (95 % CI 2.")
    assert "the next, devices=2, costs 1.11 times as much (95 % CI 1.1" in headline(cheap)
    assert "no price is recorded" in cheap.basis
    priced = ranked(*groups, by="cost", tariff=Tariff("EUR", 0.0, 3.6, 2, whole_nodes=True, source="site s, pool p"))
    assert [one.name for one in priced.entries] == ["devices=2", "devices=1"]
    assert priced.entries[0].figure.value == pytest.approx(3.6 / 3600 / 180 * 1e6, rel=1e-3)


def test_a_configuration_without_a_rate_per_device_has_no_cost() -> None:
    bare = [
        replace(record, quantities={"throughput": record.quantities["throughput"]})
        for record in jobs(spread(400), batch=64)
    ]
    for by in ("efficiency", "cost"):
        found = ranked(bare, jobs(spread(300), batch=8), by=by)
        assert [one.name for one in found.reliable] == ["batch=8"]
        assert [(one.name, one.reasons) for one in found.lost] == [("batch=64", ("no throughput per device",))]


def test_runs_without_an_energy_are_not_said_to_have_no_result() -> None:
    found = ranked(jobs(spread(400), batch=64), jobs(spread(300), batch=8), by="energy")
    assert headline(found) == "no best: none of 2 configurations has an energy (no energy: no energy per sample)"
    assert found.next_step == "steelyard doctor"
    assert not any("energy," in line for line in ranking_lines([found]))


def test_the_true_best_is_among_the_tied_as_often_as_the_level_says() -> None:
    """Twelve equal configurations: the worst case for whoever picks a winner."""
    rng = np.random.default_rng(5)
    missed = wrong = 0
    for _ in range(150):
        rates = 100 * (1 + 0.02 * rng.standard_normal((12, 3)))
        found = ranked(*(jobs(list(map(float, row)), batch=2**n) for n, row in enumerate(rates)))
        missed += not entry(found, "batch=1").tied
        wrong += any(one.relative is None or (one.relative.high or 1.0) < 1.0 for one in found.entries)
    assert missed <= 0.05 * 150
    assert wrong <= 0.09 * 150


def test_the_verb_answers_first_and_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = ResultFolder(tmp_path)
    folder.prepare()
    for record in jobs(spread(400), batch=64) + jobs(spread(300), batch=8) + jobs([900.0], batch=128):
        path = folder.run_path(record.spec)
        path.mkdir(parents=True)
        write_json(path / RECORD_FILE, record)
    assert main(["best", "sweep", "--results", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Best reliable: batch=64 at 400.0 samples/s")
    assert any(line.startswith("next: steelyard run sim --batch 128") for line in lines)
    assert main(["best", "sweep", "--json", "--results", str(tmp_path)]) == 0
    (found,) = json.loads(capsys.readouterr().out)["rankings"]
    assert [one["reliable"] for one in found["configurations"]] == [True, True, False]
    assert found["configurations"][1]["relative"]["value"] == pytest.approx(0.75, rel=1e-3)
    assert main(["best", "sweep:batch=128", "--results", str(tmp_path)]) == 1


@pytest.mark.parametrize("devices", [0, 10**400], ids=["none", "many"])
def test_a_plan_with_an_impossible_number_of_devices_is_refused(devices: int) -> None:
    with pytest.raises(InputError, match="the plan is not valid"):
        WorkPlan(samples=1e6, trainings=1, devices=devices)
