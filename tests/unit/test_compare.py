"""Comparisons with a known truth: verdicts, ratios with CIs, each side's best settings, and the output."""

from __future__ import annotations

import dataclasses
import json
import random
from typing import TYPE_CHECKING, Any

import pytest

from conftest import make_spec
from steelyard.analysis.compare import compare, require_factor
from steelyard.analysis.rows import row_of
from steelyard.analysis.summary import summarise
from steelyard.audit.beside import _describe
from steelyard.audit.table import parse_table
from steelyard.cli.main import main
from steelyard.contracts.observe import DeviceFacts, ModelFacts, Settings
from steelyard.contracts.sim import Collective, Link, Noise, SimTruth
from steelyard.contracts.spec import Loader
from steelyard.errors import InputError
from steelyard.results.store import ResultFolder, write_json
from steelyard.rules.rule import check
from steelyard.rules.table.row import Amount, Pair, Platform, Row, RowTable
from steelyard.rules.table.settings import SETTINGS, alike, blocking, confounders, differences
from steelyard.stats.ratio import JobTime, compare_means
from steelyard.terminal.compare import lines
from steelyard.terminal.ratios import level_percent, sentence

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from steelyard.contracts.record import RunRecord
    from steelyard.contracts.spec import RunSpec

    Simulate = Callable[[RunSpec], RunRecord]

NOISE = Noise(kind="normal", cv=0.02, between_jobs_cv=0.01)


def cell(simulate: Simulate, *, jobs: int = 5, first_seed: int = 1, **settings: Any) -> Row:
    """Return jobs of one configuration, each on its own node."""
    records = []
    for number in range(jobs):
        record = simulate(make_spec(seed=first_seed + number, repeat=number, **settings))
        assert record.environment is not None
        place = dataclasses.replace(record.environment, node=f"n{number}")
        records.append(dataclasses.replace(record, environment=place))
    return dataclasses.replace(row_of(summarise(records)[0]), place=f"study/{first_seed}-{len(settings)}")


def truth(step_s: float) -> SimTruth:
    return SimTruth(step_time_s=step_s, noise=NOISE)


# -- truth of simulated machines


def test_a_known_ratio_is_in_its_interval(simulate: Simulate) -> None:
    slow, fast = cell(simulate, sim=truth(0.010)), cell(simulate, first_seed=50, sim=truth(0.008))
    found = compare([slow], [fast]).comparisons[0]
    assert found.verdict == "comparable"
    ratio = found.ratios[0]
    assert ratio.low is not None
    assert ratio.high is not None
    assert ratio.low <= 1.25 <= ratio.high
    assert ratio.verdict == "faster"
    assert ratio.percent_faster == pytest.approx(100 * (ratio.value - 1))
    back = compare([fast], [slow]).comparisons[0].ratios[0]
    assert (back.value * ratio.value, back.verdict) == (pytest.approx(1), "slower")
    times = compare([slow], [fast], metric="step_time_mean").comparisons[0].ratios[0]
    assert (times.value, times.verdict) == (pytest.approx(1 / ratio.value), "faster")
    assert times.percent_faster == pytest.approx(ratio.percent_faster)


def test_equal_truths_show_no_difference(simulate: Simulate) -> None:
    # Change only the seed; the simulated truth stays the same.
    same = [cell(simulate, first_seed=seed, sim=truth(0.010)) for seed in (1, 100)]
    found = compare(same[:1], same[1:]).comparisons[0]
    assert found.ratios[0].verdict == "no difference shown"
    assert [finding.code for finding in found.findings] == ["SY111"]


def test_four_devices_against_one_come_with_the_ratio_per_device(simulate: Simulate) -> None:
    one, four = cell(simulate, sim=truth(0.010)), cell(simulate, first_seed=50, devices=4, sim=truth(0.0125))
    found = compare([one], [four]).comparisons[0]
    assert found.verdict == "comparable with warnings"
    assert [finding.code for finding in found.findings] == ["SY109"]
    ratios = {ratio.scope: ratio for ratio in found.ratios}
    device = ratios["device"]
    assert device.low is not None
    assert device.high is not None
    # At every step four ranks wait for the slowest.
    assert ratios["job"].value / device.value == pytest.approx(4)
    assert device.low <= 0.8 / 1.02 <= device.high
    assert "per device" in found.findings[0].evidence


def test_weak_and_strong_scaling_need_one_batch_to_stay(simulate: Simulate) -> None:
    link = SimTruth(collective=Collective(message_bytes=1000, links=(Link(bytes_per_s=1e9),)))
    one = cell(simulate, jobs=3, batch=32, sim=link)
    weak, strong, neither = (cell(simulate, jobs=3, first_seed=9, devices=4, batch=b, sim=link) for b in (32, 8, 16))
    for row in (weak, strong):
        assert compare([one], [row], factor="devices").comparisons[0].verdict == "comparable"
        # One machine in two sizes is not a comparison of machines.
        assert "SY109" in [found.code for found in blocked(one, row)]
    assert [found.code for found in blocked(one, neither, "devices")] == ["SY104"]


def blocked(a: Row, b: Row, factor: str = "system", metric: str = "throughput") -> list[Any]:
    return [found for found in check("pair", Pair(a, b, factor, metric)) if found.severity == "error"]


def test_a_blocked_pair_has_no_ratio_unless_forced_and_then_with_its_findings(simulate: Simulate) -> None:
    full, half = cell(simulate, jobs=3, sim=truth(0.01)), cell(simulate, jobs=3, precision="bf16", sim=truth(0.01))
    refused = compare([full], [half])
    assert (refused.made, refused.comparisons[0].verdict) == (False, "not comparable")
    four = cell(simulate, jobs=3, precision="bf16", devices=4, sim=truth(0.008))
    assert all("ratio" not in found.evidence for found in compare([full], [four]).comparisons[0].findings)
    forced = compare([full], [half], force=True).comparisons[0]
    assert (forced.forced, forced.verdict) == (True, "not comparable")
    assert forced.ratios
    for ratio in forced.ratios:
        assert [found.code for found in ratio.findings if found.severity == "error"] == ["SY103"]
    assert compare([full], [half], factor="precision").comparisons[0].ratios


def test_three_jobs_that_wander_are_compared(simulate: Simulate) -> None:
    walk = SimTruth(noise=Noise(kind="normal", walk_cv=0.02))
    good, wandering = cell(simulate, jobs=3, sim=truth(0.01)), cell(simulate, jobs=3, first_seed=9, sim=walk)
    found = compare([good], [wandering]).comparisons[0]
    assert found.verdict == "comparable with warnings"
    assert ("SY213", "warning") in [(entry.code, entry.severity) for entry in found.findings]
    assert {entry.code for entry in blocked(good, cell(simulate, jobs=2, first_seed=9, sim=walk))} == {"SY213"}


def test_fewer_than_three_jobs_are_not_ranked(simulate: Simulate) -> None:
    a, b = cell(simulate, jobs=2, sim=truth(0.01)), cell(simulate, jobs=5, first_seed=9, sim=truth(0.005))
    found = compare([a], [b]).comparisons[0]
    assert (found.ratios[0].verdict, found.ratios[0].low) == ("too few jobs", None)
    assert found.findings[0].code == "SY205"


@pytest.mark.parametrize(
    ("change", "factor"),
    [
        ({"batch": 64}, "batch"),
        ({"batch": 64, "global_batch": 128}, "batch"),
        ({"accumulation": 4, "global_batch": 256}, "accumulation"),
        # The same samples per step, otherwise divided.
        ({"batch": 16, "accumulation": 4}, "batch"),
        ({"batch": 64, "accumulation": 4, "global_batch": 512}, None),
        ({"precision": "fp32"}, "precision"),
        ({"loader.workers": 8}, "input"),
        ({"compile": "default"}, "implementation"),
        ({"devices": 2}, "devices"),
        ({"model": "bert"}, None),
        ({"dataset": "mnist"}, None),
        ({"batch": 64, "global_batch": 128, "precision": "fp32"}, None),
        ({"system": "B"}, None),
    ],
)
def test_a_factor_that_nobody_named_is_the_only_difference(change: dict[str, Any], factor: str | None) -> None:
    same = {"loader.workers": 4, "compile": "off", "dataset": "imagenet", "accumulation": 2, "global_batch": 64}
    a, b = made([100.0, 101, 102], **same), made([200.0, 201, 202], "t/b", **{**same, **change})
    found = compare([a], [b], factor=None)
    assert (found.factor, found.inferred) == ((factor, True) if factor else ("system", False))
    assert found.made == (factor is not None or "system" in change)
    text = " ".join(" ".join(lines(found, "a", "b")).split())
    assert ("nothing else was varied)" in text) == found.inferred


def test_a_factor_that_nobody_named_is_what_tells_the_sides_apart() -> None:
    """Selections by the batch of a study that varies devices too: 8 on two devices and 16 on one differ in both."""

    def side(batch: int) -> list[Row]:
        rows = []
        for count in (1, 2):
            settings = {"batch": batch, "devices": count, "global_batch": batch * count}
            rows.append(made([100.0 * count, 101 * count, 102 * count], f"t/{batch}x{count}", **settings))
        return rows

    found = compare(side(8), side(16), factor=None)
    assert (found.factor, found.inferred, found.made) == ("batch", True, True)
    pairs = [(entry.a.place, entry.b.place) for entry in found.comparisons]
    assert pairs == [("t/8x1", "t/16x1"), ("t/8x2", "t/16x2")]


def test_two_selections_of_the_same_rows_are_not_compared() -> None:
    rows = [made([100.0, 101, 102], f"t/{batch}", batch=batch) for batch in (8, 16)]
    with pytest.raises(InputError, match="nothing to compare") as found:
        compare(rows, rows)
    assert "the same 2 configurations" in str(found.value)


@pytest.mark.parametrize(("a", "b", "severity"), [("n", "n", "note"), ("n", "m", "warning"), ("n", "n, m", "warning")])
def test_one_node_is_a_note_if_both_sides_ran_on_it(a: str, b: str, severity: str) -> None:
    sides = made([100.0, 101, 102], node=a), made([200.0, 201, 202], "t/b", system="B", node=b)
    found = compare([sides[0]], [sides[1]])
    assert [one.severity for one in found.comparisons[0].findings if one.code == "SY206"] == [severity]
    text = "\n".join(lines(found, "a", "b"))
    assert text.startswith("COMPARABLE\n" if severity == "note" else "COMPARABLE WITH WARNINGS\n")
    assert text.endswith("1 note.") == (severity == "note")


def test_jobs_beside_other_load_are_named_with_their_side() -> None:
    quiet, busy = (
        dataclasses.replace(row, settings={**row.settings, "jobs": 3, "busy_jobs": count})
        for row, count in ((made([100.0, 101, 102]), 0), (made([80.0, 81, 82], "t/b", system="B"), 2))
    )
    text = "\n".join(lines(compare([quiet], [busy]), "a", "b"))
    assert "B: SY625 jobs-beside-load (warning): 2 of 3 jobs ran beside other load" in text


# -- rows of any origin


def made(jobs: list[float], place: str = "t/a", unit: str = "samples/s", **settings: Any) -> Row:
    mean = len(jobs) / sum(1 / value for value in jobs)
    base = {"system": "A", "model": "resnet50", "precision": "bf16", "batch": 32, "devices": 1}
    amount = Amount(mean, min(jobs), max(jobs), unit, jobs=tuple(jobs))
    return Row(place, base | settings, {"throughput": amount})


def test_best_against_best_stands_beside_equal_settings() -> None:
    a = [made([100 + b, 101 + b, 102 + b], f"t/a{b}", batch=b) for b in (8, 32, 64)]
    b = [made([200 - b, 201 - b, 202 - b], f"t/b{b}", system="B", batch=b) for b in (8, 32, 128)]
    found = compare(a, b)
    equal = [entry for entry in found.comparisons if entry.how == "equal settings"]
    assert [(entry.a.place, entry.b.place) for entry in equal] == [("t/a8", "t/b8"), ("t/a32", "t/b32")]
    best = found.comparisons[-1]
    assert (best.how, best.a.place, best.b.place, best.chosen_from) == ("best against best", "t/a64", "t/b8", (3, 3))
    assert best.verdict == "comparable with warnings"
    assert {entry.code: entry.severity for entry in best.findings}["SY104"] == "warning"
    assert best.ratios[0].level == pytest.approx(1 - 0.05 / 9)
    assert [text.split(":")[0] for text in found.left_out] == ["t/a64 (A)", "t/b128 (B)"]


def test_precision_is_never_chosen_for_the_best() -> None:
    a = [made([100.0, 101, 102], f"t/a{p}{b}", precision=p, batch=b) for p in ("fp32", "bf16") for b in (8, 9)]
    b = [made([200.0, 201, 202], f"t/b{b}", system="B", precision="fp32", batch=b) for b in (8, 9)]
    best = [entry for entry in compare(a, b).comparisons if entry.how == "best against best"]
    assert [entry.a.get("precision") for entry in best] == ["fp32"]


def test_a_choice_that_one_side_had_is_no_best_against_best() -> None:
    a = [made([100.0, 101, 102])]
    b = [made([150.0 + b, 151, 152], f"t/b{b}", system="B", batch=b) for b in (8, 32, 64)]
    assert [entry.how for entry in compare(a, b).comparisons] == ["equal settings"]


def test_the_interval_of_the_best_allows_for_the_choice() -> None:
    """The best configurations of both sides have the same truth; one side has twenty of them, the other one."""
    rng = random.Random(7)
    studies, alarms, naive = 300, 0, 0

    def cells(name: str, rates: list[float]) -> list[Row]:
        return [
            made([rng.gauss(rate, 0.02 * rate) for _ in range(5)], f"{name}{n}", system=name, batch=8 + n)
            for n, rate in enumerate(rates)
        ]

    for _ in range(studies):
        sides = cells("A", [100.0, 50.0]), cells("B", [100.0] * 20)
        best = compare(*sides).comparisons[-1]
        assert best.how == "best against best"
        alarms += best.ratios[0].verdict != "no difference shown"
        times = [[1 / rate for rate in row.figures["throughput"].jobs] for row in (best.a, best.b)]
        naive += compare_means(*times).verdict != "no difference shown"
    assert alarms <= 0.065 * studies
    assert naive > 0.065 * studies


def test_nothing_in_common_shows_the_nearest_pair_and_why() -> None:
    a = [made([100.0, 101, 102], "t/a", model="gpt"), made([90.0, 91, 92], "t/b", model="gpt", precision="fp32")]
    b = [made([100.0, 101, 102], "t/c", system="B")]
    found = compare(a, b)
    assert [(entry.how, entry.a.place) for entry in found.comparisons] == [("nearest settings", "t/a")]
    assert not found.made


def test_energy_is_picked_up_by_name_for_the_ratio_per_watt() -> None:
    rows = []
    for name, rate, joule in (("A", 100.0, 2.0), ("B", 200.0, 8.0)):
        row = made([rate, rate, rate], f"t/{name}", system=name)
        energy = Amount(joule, joule, joule, "J/sample", jobs=(joule, joule, joule))
        rows.append(dataclasses.replace(row, figures={**row.figures, "energy_per_sample": energy}))
    ratios = {ratio.scope: ratio.value for ratio in compare(rows[:1], rows[1:]).comparisons[0].ratios}
    assert ratios["watt"] == pytest.approx(0.25)
    power = Amount(50.0, 50.0, 50.0, "W", jobs=(50.0,) * 3)
    watts = [dataclasses.replace(r, figures={"throughput": r.figures["throughput"], "power_job": power}) for r in rows]
    ratios = {ratio.scope: ratio.value for ratio in compare(watts[:1], watts[1:]).comparisons[0].ratios}
    assert ratios["watt"] == pytest.approx(2)


def test_printed_figures_have_the_bounds_of_their_digits_and_no_rank() -> None:
    text = "system,model,devices,metric,value,unit\nA,R,1,throughput,1.0,kimages/s\nB,R,4,throughput,2500.0,images/s\n"
    a, b = parse_table(text, "t").rows
    job, device = compare([a], [b]).comparisons[0].ratios
    assert (job.value, job.low, job.high) == (2.5, pytest.approx(2499.95 / 1050), pytest.approx(2500.05 / 950))
    assert (job.verdict, job.level, job.unit) == ("too few jobs", None, "images/s")
    assert device.value == pytest.approx(0.625)
    measured = made([2000.0, 2010, 1990], model="R", unit="images/s")
    mixed = compare([measured], [b]).comparisons[0]
    assert mixed.ratios[0].verdict == "too few jobs"
    assert "SY108" in {found.code for found in mixed.findings}


@pytest.mark.parametrize(
    ("change", "severity"),
    [
        ({"model": "resnet152"}, "error"),
        ({"model_options": "layers=3"}, None),
        ({"mode": "infer"}, None),
        ({"dataset": "coco"}, "error"),
        ({"precision": "fp16"}, "error"),
        ({"precision": "mixed"}, "warning"),
        ({"precision": "BFloat16"}, None),
        ({"optimizer": "AdamW"}, "error"),
        ({"learning_rate": 0.2}, "warning"),
        ({"batch": 64}, "error"),
        ({"loader.place": "device"}, "error"),
        ({"loader.workers": 9}, "warning"),
        ({"compile": "default"}, "warning"),
        ({"framework": "PyTorch 2.1"}, "warning"),
        ({"epoch_samples": 9}, "warning"),
        ({"cpu_quota": "2"}, "warning"),
        ({"driver": "2"}, None),
        ({"timing": "other"}, "warning"),
        ({"devices": 2}, "warning"),
        ({"device_scope": "die"}, "warning"),
    ],
)
def test_what_each_difference_does_between_two_systems(change: dict[str, Any], severity: str | None) -> None:
    stated = {
        "model_options": None, "mode": None, "dataset": "cifar100", "optimizer": "SGD", "learning_rate": 0.1,
        "loader.place": "host", "loader.workers": 4, "compile": "off", "framework": "PyTorch 2.0",
        "device_scope": "device", "epoch_samples": 8, "cpu_quota": "none", "driver": "1", "timing": "events",
    }  # fmt: skip
    common = {key: value for key, value in stated.items() if value is not None}
    a = made([1.0, 1.1, 1.2], **common)
    b = made([1.0, 1.1, 1.2], "t/b", **(common | {"system": "B"} | change))
    if set(change) & {"model_options", "mode"}:
        # Stated by one side only.
        severity = "warning"
    found = [entry.severity for entry in check("pair", Pair(a, b))]
    assert found[:1] == ([severity] if severity else [])


def test_weights_held_differently_are_an_error_that_is_said_once() -> None:
    cast = {"mode": "generate", "precision": "bf16", "parameter_precision": "bf16", "autocast": False}
    autocast = {**cast, "parameter_precision": "fp32", "autocast": True}
    plain = {**cast, "precision": "fp32", "parameter_precision": "fp32"}

    def found(a: dict[str, Any], b: dict[str, Any], factor: str = "system") -> list[tuple[str, str]]:
        sides = made([1.0, 1.1, 1.2], **a), made([1.0, 1.1, 1.2], "t/b", **b, system="B" if factor == "system" else "A")
        return [(entry.code, entry.severity) for entry in check("pair", Pair(*sides, factor))]

    assert found(cast, autocast) == [("SY116", "error")]
    assert found(cast, cast) == []
    # The precision explains the weights.
    assert found(cast, plain) == found(autocast, plain) == [("SY103", "error")]
    assert found(cast, plain, "precision") == found(cast, autocast, "autocast") == []
    # Training autocasts, inference does not.
    assert found(cast, {**autocast, "mode": "train"}, "mode") == []


OFFLINE = "offline, fixed batch of 8"


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ({"framework": "vLLM 0.6.1"}, "framework: vLLM"),
        ({"system": "8 x H100 with TensorRT-LLM"}, "system: TensorRT-LLM"),
        ({"mode": "generate with continuous batching"}, "mode: continuous batching"),
        ({"serving": "MLPerf Inference, offline"}, "serving MLPerf Inference, offline"),
        ({"serving": OFFLINE, "framework": "vLLM"}, None),
        ({"framework": "PyTorch 2.9"}, None),
    ],
)
def test_offline_generation_is_not_compared_with_a_server(other: dict[str, Any], told: str | None) -> None:
    own = made([1.0, 1.1, 1.2], serving=OFFLINE)
    server = made([1.0, 1.1, 1.2], "t/b", **{"system": "B", **other})
    for pair in (Pair(own, server), Pair(server, own)):
        found = [entry for entry in check("pair", pair) if entry.code == "SY117"]
        assert [(entry.severity, entry.place) for entry in found] == ([("error", "t/b")] if told else [])
        assert told is None or f"({told})" in found[0].message
    assert not [entry for entry in check("pair", Pair(server, server)) if entry.code == "SY117"]


def test_requests_per_second_and_the_words_of_a_source_tell_a_server() -> None:
    own, other = made([1.0, 1.1, 1.2], serving=OFFLINE), made([1.0, 1.1, 1.2], "t/b", system="B")
    rated = made([1.0, 1.1, 1.2], "t/b", unit="requests/s", system="B")
    cited = dataclasses.replace(other, source="results of MLPerf Inference v5.0")
    for row, told in ((rated, "in requests/s"), (cited, "source: MLPerf Inference")):
        said_of = [entry.message for entry in check("pair", Pair(own, row)) if entry.code == "SY117"]
        assert len(said_of) == 1
        assert told in said_of[0]
    out = said([own], [cited], metric="throughput")
    assert f"Generation: {OFFLINE}" in out
    assert "NOT COMPARABLE" in out


def test_a_longer_epoch_blocks_a_time_and_not_a_rate() -> None:
    a, b = (
        Row(name, {"system": name, "epoch_samples": count}, {"epoch_time": Amount(9.0, 9.0, 9.0, "s")})
        for name, count in (("A", 100), ("B", 200))
    )
    assert [found.code for found in blocked(a, b, metric="epoch_time")] == ["SY107"]
    assert blocked(a, b, metric="throughput") == []


def test_a_learning_rate_may_grow_with_the_batch_that_devices_bring() -> None:
    one = made([1.0], learning_rate=0.1, global_batch=32)
    four = made([1.0], "t/b", devices=4, learning_rate=0.4, global_batch=128)
    odd = made([1.0], "t/c", devices=4, learning_rate=0.3, global_batch=128)
    assert not confounders(Pair(one, four, "devices", "throughput"))
    # For a time to quality the larger batch is a finding, but the learning rate scaled with it is not.
    assert [entry.key for entry in confounders(Pair(one, four, "devices", "time_to_quality"))] == ["global_batch"]
    assert blocking(Pair(one, four, "devices", "time_to_quality")) == []
    assert [entry.key for entry in blocking(Pair(one, odd, "devices", "time_to_quality"))] == ["learning_rate"]


@pytest.mark.parametrize(
    ("key", "a", "b", "one_source", "answer"),
    [
        ("dataset", "CIFAR-100", "cifar100", True, "same"),
        ("model", "ResNet50", "ResNet50 v1.5", True, "different"),
        ("model", "ResNet50", "ResNet-50 v1.5", False, "unclear"),
        ("model", "gpt", "gpt2", False, "different"),
        ("accelerator", "GH200", "NVIDIA GH200 480GB", False, "unclear"),
        ("precision", "Mixed precision", "fp16", True, "unclear"),
        ("precision", "mixed", "fp32", True, "different"),
        ("devices", 4, 4.0, True, "same"),
        ("jobs", "5", 5.0, True, "same"),
        ("numa", True, "true", True, "same"),
        ("learning_rate", 0.1, 0.2, True, "different"),
    ],
)
def test_when_two_values_mean_the_same(key: str, a: Any, b: Any, one_source: bool, answer: str) -> None:
    assert alike(key, a, b, one_source=one_source) == answer
    assert alike(key, b, a, one_source=one_source) == answer


def test_every_setting_is_the_factor_when_it_is_named() -> None:
    for key, role in SETTINGS.items():
        if role != "evidence":
            a, b = Row("a", {key: "1"}, {}), Row("b", {key: "2"}, {})
            assert [entry.key for entry in differences(a, b)] == [key]
            assert not confounders(Pair(a, b, key))
            assert not confounders(Pair(a, b, role))


def test_unknown_factors_and_figures_are_refused() -> None:
    assert require_factor("devices") == "devices"
    with pytest.raises(InputError, match="did you mean precision"):
        require_factor("precison")
    with pytest.raises(InputError, match="valid: throughput"):
        compare([made([1.0])], [made([2.0], "t/b")], metric="energy")
    with pytest.raises(InputError, match="both sides are the same configuration"):
        compare([made([1.0])], [made([1.0])])


@pytest.mark.parametrize(
    ("metric", "unit", "base"),
    [("memory", "GB", "B"), ("cost", "$", "$"), ("price_per_device_hour", "EUR/h", "EUR/s"), ("cost", "EUR", "EUR")],
)
def test_memory_and_money_have_a_ratio_in_their_base_unit(metric: str, unit: str, base: str) -> None:
    text = f"system,devices,model,batch,precision,metric,value,unit\nA,1,r,8,fp32,{metric},20,{unit}\n"
    a, b = parse_table(f"{text}B,1,r,8,fp32,{metric},10,{unit}\n", "t.csv").rows
    (only,) = compare([a], [b], metric=metric).comparisons
    assert [(ratio.value, ratio.unit) for ratio in only.ratios] == [(0.5, base)]


def test_a_longer_step_is_not_called_slower() -> None:
    rows = [
        Row(f"t/{batch}", {"batch": batch}, {"step_time_mean": Amount(t, t, t, "s", jobs=(t, t * 1.01, t * 0.99))})
        for batch, t in ((8, 1.0), (32, 2.0))
    ]
    (only,) = compare(rows[:1], rows[1:], factor="batch", metric="step_time_mean").comparisons
    text = sentence(only.ratios[0], "A", "B")
    assert text.startswith("a step of B takes 2 times as long as one of A, 95 % CI 1.9")


def test_figures_that_differ_by_rounding_are_equal() -> None:
    (only,) = compare([made([0.1, 0.1, 0.1])], [made([0.1, 0.1, 0.1 + 1e-16], "t/b")]).comparisons
    assert only.ratios[0].verdict == "no difference shown"
    assert "A and B are equally fast;" in " ".join(sentence(only.ratios[0], "A", "B").split())


def test_the_nearest_pair_is_not_one_row_twice() -> None:
    slow, fast = made([1.0], precision="fp32", batch=8), made([2.0], "t/b", precision="bf16", batch=16)
    found = compare([slow, fast], [fast], factor="optimizer")
    assert [(entry.a.place, entry.b.place) for entry in found.comparisons] == [("t/a", "t/b")]


def test_several_pairs_are_answered_together_and_told_apart_by_what_both_sides_share() -> None:
    def rows(batch: int, *times: float) -> list[Row]:
        return [
            made([t, t * 1.001, t * 0.999], f"t/{batch}-{n}", "s", devices=n, batch=batch, global_batch=batch * n)
            for n, t in enumerate(times, 1)
        ]

    found = compare(rows(8, 1.0, 2.0, 3.0), rows(16, 0.5, 2.0, 6.0), factor="batch")
    assert [entry.shared for entry in found.comparisons if entry.how != "best against best"] == [
        ("devices 1",), ("devices 2",), ("devices 3",)
    ]  # fmt: skip
    text = " ".join(" ".join(lines(found, "a", "b")).split())
    assert "Of 3 pairs: B faster in 1, no difference shown in 1, B slower in 1; B / A is 0.5 to 2." in text


def test_a_figure_that_no_row_has_is_no_figure() -> None:
    with pytest.raises(InputError, match=r"--metric througput: no such figure; did you mean throughput\?"):
        compare([made([1.0])], [made([2.0], "t/b")], metric="througput")


# -- the command


@pytest.fixture
def results(simulate: Simulate, tmp_path: Path) -> Path:
    folder = ResultFolder(tmp_path / "results")
    kinds: dict[str, dict[str, Any]] = {
        "base": {"sim": truth(0.010)},
        "fast": {"sim": truth(0.008)},
        "half": {"sim": truth(0.010), "precision": "bf16"},
        "host": {"sim": truth(0.008), "loader": Loader(place="host", workers=2)},
    }
    for study, settings in kinds.items():
        for repeat in range(3):
            run_id = f"sim-{study}-r{repeat:04d}"
            record = simulate(make_spec(seed=repeat, **settings))
            spec = dataclasses.replace(
                record.spec, study=study, configuration=f"sim-{study}", run_id=run_id, repeat=repeat
            )
            folder.run_path(spec).mkdir(parents=True)
            write_json(folder.run_path(spec) / "record.json", dataclasses.replace(record, spec=spec, run_id=run_id))
    return folder.path


def test_the_verdict_comes_first(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "base", "fast", "--results", str(results)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("COMPARABLE")
    assert "times as fast as A" in out
    wide = [line for line in out.splitlines() if len(line) > 80]
    assert all(line.strip().removeprefix("next: ").startswith("steelyard run ") for line in wide)


def test_exit_codes_and_words_of_a_blocked_comparison(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["compare", "base", "half", "--results", str(results)]
    blocked = [*words, "--factor", "system"]
    assert main(blocked) == 1
    out = capsys.readouterr().out
    assert out.startswith("NOT COMPARABLE")
    assert "SY103" in out
    assert "B over A" not in out
    assert main([*blocked, "--force"]) == 0
    assert "FORCED" in capsys.readouterr().out
    assert main([*words, "--factor", "precision"]) == 0
    assert main(words) == 0
    assert "Factor: precision (nothing else was varied)" in capsys.readouterr().out
    assert main(["compare", "base", "nosuch", "--results", str(results)]) == 2


def test_json_of_a_forced_ratio_carries_its_findings(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "base", "host", "--force", "--json", "--results", str(results)]) == 0
    data = json.loads(capsys.readouterr().out)
    (comparison,) = data["comparisons"]
    assert comparison["verdict"] == "not comparable"
    for ratio in comparison["ratios"]:
        assert "SY105" in [found["code"] for found in ratio["findings"]]


def test_a_measured_run_beside_a_published_table(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    published = tmp_path / "other.csv"
    published.write_text(
        "system,model,dataset,precision,mode,batch,devices,metric,value,unit\n"
        "Elsewhere,sim,synthetic,fp32,train,32,1,throughput,1600,samples/s\n"
        "Elsewhere,sim,synthetic,fp32,train,64,1,throughput,1700,samples/s\n",
        encoding="utf-8",
    )
    assert main(["compare", f"{published}:batch=32", "base", "--results", str(results)]) == 0
    out = capsys.readouterr().out
    assert "SY108" in out
    assert "Not ranked, too few jobs" in out
    assert "1.9" in out or "2.0" in out
    assert main(["compare", "reference:olivia-gh200:devices=4,precision=fp16", "base", "--results", str(results)]) == 1
    assert "Source:" in capsys.readouterr().out
    assert main(["compare", "reference:nosuch", "base", "--results", str(results)]) == 2
    assert main(["compare", str(tmp_path / "missing.csv"), "base", "--results", str(results)]) == 2


# -- what a review found


def said(a: list[Row], b: list[Row], **options: Any) -> str:
    return " ".join(" ".join(lines(compare(a, b, **options), "A", "B")).split())


def figure(row: Row, metric: str, unit: str, values: list[float]) -> Row:
    mean = sum(values) / len(values)
    amount = Amount(mean, min(values), max(values), unit, jobs=tuple(values))
    return dataclasses.replace(row, figures={**row.figures, metric: amount})


def test_a_job_whose_share_is_zero_takes_the_interval_away_and_not_the_comparison() -> None:
    a = figure(made([1.0, 1, 1]), "input_wait_share", "1", [0.0, 0.1, 0.2])
    b = figure(made([1.0, 1, 1], "t/b", system="B"), "input_wait_share", "1", [0.2, 0.2, 0.2])
    (ratio,) = compare([a], [b], metric="input_wait_share").comparisons[0].ratios
    assert (ratio.value, ratio.low, ratio.verdict) == (pytest.approx(2), None, "no difference shown")
    assert "no interval, because the figure of a job is not above zero" in said([a], [b], metric="input_wait_share")


@pytest.mark.parametrize(("change", "words"), [(1.005, "(0.5 % faster)"), (0.995, "(0.5 % slower)")])
def test_a_small_difference_has_its_own_direction(change: float, words: str) -> None:
    a, b = ([n * 1000.0 for n in (1, 1.0001, 0.9999)], [n * change * 1000.0 for n in (1, 1.0001, 0.9999)])
    assert words in said([made(a)], [made(b, "t/b", system="B")])


def test_what_is_no_speed_is_more_or_less_and_never_faster() -> None:
    rows = {
        name: [
            figure(made([1.0, 1, 1], f"t/{name}{batch}", system=name, batch=batch), "memory_peak", "bytes",
                   [size, 1.01 * size, 1.02 * size])
            for batch in (16, 32)
        ]
        for name, size in (("A", 100.0), ("B", 50.0))
    }  # fmt: skip
    found = compare(rows["A"], rows["B"], metric="memory_peak")
    assert {entry.ratios[0].verdict for entry in found.comparisons} == {"less"}
    assert {entry.how for entry in found.comparisons} == {"equal settings"}
    assert "faster" not in said(rows["A"], rows["B"], metric="memory_peak")
    near = [figure(row, "memory_peak", "bytes", [100.0, 101, 102.5]) for row in rows["B"]]
    assert "No difference shown: B has" in said(rows["A"][:1], near[:1], metric="memory_peak")
    assert "Not ranked, too few jobs" in said(
        rows["A"][:1], [figure(rows["B"][0], "memory_peak", "bytes", [99.0])], metric="memory_peak"
    )


def test_a_level_near_certainty_is_not_called_certain() -> None:
    sides = [[made([1.0, 1.01, 1.02], f"t/{name}{n}", system=name, batch=n) for n in range(1, 21)] for name in "AB"]
    text = said(*sides)
    assert "100 %" not in text
    assert "99.99 %" in text
    assert [level_percent(level) for level in (0.95, 0.9875, 0.99975)] == ["95 %", "98.8 %", "99.98 %"]


def test_figures_of_a_device_are_not_divided_by_devices_again() -> None:
    for metric in ("model_flops_device", "bus_bandwidth"):
        a = figure(made([1.0, 1, 1], devices=4), metric, "FLOP/s", [4.0, 4, 4])
        b = figure(made([1.0, 1, 1], "t/b", system="B", devices=1), metric, "FLOP/s", [4.0, 4, 4])
        found = compare([a], [b], metric=metric).comparisons[0]
        assert [ratio.scope for ratio in found.ratios] == ["job"]
        assert not any("per device" in finding.evidence for finding in found.findings)


def test_every_device_makes_every_collective(simulate: Simulate) -> None:
    facts = ModelFacts(parameters=0, flops_per_sample=None, method="by hand", bus_factor=1.5)
    record = dataclasses.replace(simulate(make_spec(devices=4)), model=facts)
    rate = dataclasses.replace(record.quantities["throughput_per_device"], scope="job")
    record = dataclasses.replace(record, quantities={**record.quantities, "throughput": rate})
    row = row_of(summarise([record])[0])
    other = dataclasses.replace(row, place="t/b", settings={**row.settings, "system": "B", "devices": 2})
    assert [ratio.scope for ratio in compare([row], [other]).comparisons[0].ratios] == ["job"]


def test_two_kinds_of_power_are_not_divided() -> None:
    a = figure(made([100.0] * 3), "power_job", "W", [50.0] * 3)
    b = figure(made([100.0] * 3, "t/b", system="B"), "power_mean", "W", [25.0] * 3)
    assert "watt" not in {ratio.scope for ratio in compare([a], [b]).comparisons[0].ratios}


def test_a_time_to_quality_needs_one_global_batch() -> None:
    """A larger global batch changes learning, which affects a time to quality but not a rate."""
    one = figure(made([1.0] * 3, global_batch=32), "time_to_quality", "s", [100.0, 101, 102])
    four = figure(
        made([1.0] * 3, "t/b", system="B", devices=4, global_batch=128), "time_to_quality", "s", [50.0, 51, 52]
    )
    assert compare([one], [four]).comparisons[0].verdict == "comparable with warnings"
    assert compare([one], [four], metric="time_to_quality").comparisons[0].verdict == "not comparable"
    same = figure(
        made([1.0] * 3, "t/c", system="B", devices=4, batch=8, global_batch=32), "time_to_quality", "s",
        [50.0, 51, 52],
    )  # fmt: skip
    assert compare([one], [same], metric="time_to_quality").made
    scaled = dataclasses.replace(four, settings={**four.settings, "system": "A"})
    found = compare([one], [scaled], metric="time_to_quality", factor="devices").comparisons[0]
    assert [(entry.code, entry.severity) for entry in found.findings] == [("SY104", "warning")]


def test_two_unsteady_jobs_block_rates_and_not_a_time_to_quality() -> None:
    settings = {"unsteady_jobs": 2, "window": "after start-up"}
    wild = figure(made([1.0] * 2, **settings), "time_to_quality", "s", [100.0, 101])
    calm = figure(made([1.0] * 3, "t/b", system="B", window="steady"), "time_to_quality", "s", [90.0, 91, 92])
    assert compare([wild], [calm]).comparisons[0].verdict == "not comparable"
    found = compare([wild], [calm], metric="time_to_quality").comparisons[0]
    assert ("SY213", "warning") in [(entry.code, entry.severity) for entry in found.findings]
    broken = dataclasses.replace(wild, settings={**wild.settings, "findings": "SY601"})
    assert not compare([broken], [calm], metric="time_to_quality").made


def test_jobs_of_one_cell_that_were_not_set_up_alike(simulate: Simulate) -> None:
    records = [simulate(make_spec(seed=seed, repeat=seed)) for seed in range(3)]

    def with_facts(number: int, **facts: str) -> RunRecord:
        place = records[number].environment
        assert place is not None
        return dataclasses.replace(
            records[number], environment=dataclasses.replace(place, facts={**place.facts, **facts})
        )

    sound = row_of(summarise(records)[0])
    assert "mixed" not in sound.settings
    software = row_of(summarise([with_facts(n, **{"torch.version": f"2.{n % 2}"}) for n in range(3)])[0])
    assert software.settings["mixed"] == "framework"
    found = {entry.code: entry for entry in check("pair", Pair(sound, software, "compile"))}["SY115"]
    assert (found.severity, "PyTorch 2.0 or PyTorch 2.1" in found.message) == ("warning", True)
    machines = [dataclasses.replace(r, device=DeviceFacts(name="x", model=f"M{n % 2}")) for n, r in enumerate(records)]
    machines = [
        dataclasses.replace(r, spec=dataclasses.replace(r.spec, device="cuda", workload="tiny")) for r in machines
    ]
    mixed = row_of(summarise(machines)[0])
    assert mixed.settings["mixed"] == "system, accelerator"
    twin = dataclasses.replace(mixed, place="t/b", settings={**mixed.settings, "compile": "default"})
    assert compare([mixed], [twin], factor="compile").comparisons[0].verdict == "not comparable"


def test_sharding_on_one_device_is_told(simulate: Simulate) -> None:
    def sharded(parallel: str) -> Row:
        record = simulate(make_spec(parallel="fsdp2"))
        return row_of(summarise([dataclasses.replace(record, settings=Settings(values={"parallel": parallel}))])[0])

    assert sharded("none").get("parallel") is None
    whole = sharded("fully_shard")
    assert whole.get("parallel") == "FSDP2"
    codes = {entry.code for entry in check("pair", Pair(sharded("none"), whole, "parallel"))}
    assert "SY111" not in codes
    several = dataclasses.replace(whole, settings={**whole.settings, "devices": 4, "parallel": "DDP"})
    assert "parallel" in {entry.key for entry in confounders(Pair(whole, several, "devices"))}


def test_training_against_inference_is_a_factor_of_its_own() -> None:
    train = made([1.0] * 3, mode="train", optimizer="SGD", learning_rate=0.1, parallel="DDP")
    infer = made([2.0] * 3, "t/b", mode="infer", parallel="replicas")
    found = compare([train], [infer], factor="mode").comparisons[0]
    assert (found.verdict, [entry.code for entry in found.findings]) == ("comparable", [])
    assert compare([train], [infer]).comparisons[0].verdict == "not comparable"


def test_the_batch_of_a_device_is_told_beside_the_ratio_per_device() -> None:
    one = made([1.0] * 3, batch=256, global_batch=256)
    four = made([3.0] * 3, "t/b", system="B", devices=4, batch=64, global_batch=256)
    (found,) = [entry for entry in compare([one], [four]).comparisons[0].findings if entry.code == "SY109"]
    assert "batch 256 vs 64" in found.message


def test_a_missing_figure_says_how_many_jobs_there_are(simulate: Simulate) -> None:
    row = cell(simulate, jobs=3)
    with pytest.raises(InputError, match="no time_to_quality in one or more of its 3 jobs"):
        compare([row], [dataclasses.replace(row, place="t/b")], metric="time_to_quality")


def test_many_rows_of_equal_settings_are_paired_without_looking_at_every_pair() -> None:
    sides = [[made([1.0, 1.1, 1.2], f"t/{name}{n}", system=name, batch=1 + n) for n in range(600)] for name in "AB"]
    sides[1].reverse()
    found = [entry for entry in compare(*sides).comparisons if entry.how == "equal settings"]
    assert len(found) == 600
    assert all(entry.a.get("batch") == entry.b.get("batch") for entry in found)
    unlike = [
        [made([1.0], f"t/{name}{n}", system=name, learning_rate=n + 1 / 2 * (name == "B")) for n in range(101)]
        for name in "AB"
    ]
    with pytest.raises(InputError, match="the selection is too large"):
        compare(*unlike)


def test_a_published_row_that_counts_parts_of_devices_says_nothing_of_modules() -> None:
    machine = Platform("M", "MI250", devices_per_node=4, power_limit_w=560, power_scope="device")
    rows = [made([1.0], f"line {n}", system="M", devices=n, nodes=1) for n in (4, 8)]
    table = RowTable("published", tuple(rows), (machine,))
    assert [_describe(table, row).get("device_scope") for row in rows] == ["device", None]


def test_paths_of_caches_are_no_other_software(simulate: Simulate) -> None:
    record = simulate(make_spec())
    assert record.environment is not None
    facts = {**record.environment.facts, "env.TORCHINDUCTOR_CACHE_DIR": "/tmp/x", "env.NCCL_ALGO": "Ring"}
    spec = dataclasses.replace(record.spec, device="cpu", workload="tiny")
    record = dataclasses.replace(
        record, spec=spec, environment=dataclasses.replace(record.environment, facts=facts, device="cpu")
    )
    told = json.loads(str(row_of(summarise([record])[0]).get("variables")))
    assert "NCCL_ALGO" in told
    assert "TORCHINDUCTOR_CACHE_DIR" not in told


def test_a_table_of_several_pairs_says_what_its_columns_are() -> None:
    text = "model,system,metric,value,unit\nR,A,train_time,10.0,min\nS,A,train_time,20.0,min\nR,B,train_time,5.0,min\n"
    rows = parse_table(text + "S,B,train_time,30.0,min\n", "t").rows
    told = said(list(rows[:2]), list(rows[2:]), metric="train_time")
    for part in ("model A B B / A", "A and B in s", "printed digits only", "below 1, B is faster", "not ranked"):
        assert part in told


# -- trends


def trending(row: Row, trend: float) -> Row:
    """The same row whose jobs all get slower by about this much."""
    count = len(row.figures["throughput"].jobs)
    jobs = tuple(JobTime(1.0, "n1", trend=trend * (1 + 0.01 * n)) for n in range(count))
    return dataclasses.replace(row, jobs=jobs)


@pytest.mark.parametrize("jobs", [1, 5])
def test_a_large_trend_leaves_a_bound_or_nothing(jobs: int) -> None:
    a = trending(made([100.0, 101, 99, 100, 101]), 0.05)
    near = trending(made([103.0, 102, 104, 103, 102][:jobs], "t/b", system="B"), 0.0)
    refused = compare([a], [near])
    assert (refused.made, refused.comparisons[0].verdict) == (False, "not comparable")
    assert "SY211" in said([a], [near])
    far = trending(made([200.0, 202, 198, 200, 201], "t/b", system="B"), 0.0)
    (found,) = compare([a], [far]).comparisons
    assert found.verdict == "only a bound"
    assert found.ratios[0].bound == pytest.approx(1.9, abs=0.05)


def test_a_trend_of_step_times_is_not_one_of_energies() -> None:
    a, b = (
        figure(row, "energy_per_sample", "J/sample", [1.0, 1.01, 0.99])
        for row in (trending(made([1.0] * 3), 0.05), made([1.0] * 3, "t/b", system="B"))
    )
    (found,) = compare([a], [b], metric="energy_per_sample").comparisons
    assert "SY211" not in {entry.code for entry in found.findings}
    assert (found.ratios[0].answer, found.ratios[0].verdict) == ("ratio", "no difference shown")


def test_the_best_row_of_a_side_is_a_reliable_one() -> None:
    def side(system: str) -> list[Row]:
        rows = [made([x, x + 1, x + 2], f"t/{system}{x}", system=system, batch=x) for x in (100, 200, 300)]
        return [trending(row, 0.05 if row.place.endswith("300") else 0.0) for row in rows]

    best = compare(side("A"), side("B")).comparisons[-1]
    assert (best.how, best.a.place, best.b.place) == ("best against best", "t/A200", "t/B200")


def test_what_torch_chose_for_a_machine_is_no_tuning(simulate: Simulate) -> None:
    def seen(nodes: str, bound: str, kernel: str, first_seed: int, **chosen: Any) -> Row:
        record = simulate(make_spec(seed=first_seed, **chosen))
        assert record.environment is not None
        place = dataclasses.replace(record.environment, facts={"numa.nodes_with_cpus": nodes})
        values = {"numa_bound": bound, "optimizer_kernel": kernel, "attention": "math"}
        told = dataclasses.replace(record, environment=place, settings=Settings(values=values))
        return row_of(summarise([told])[0])

    def codes(a: Row, b: Row) -> dict[str, str]:
        return {entry.code: entry.message for entry in check("pair", Pair(a, b))}

    cpu = seen("1", "no (the machine does not have several NUMA nodes)", "for-loop", 1)
    gpu = seen("2", "node 0", "foreach", 50)
    assert (cpu.settings.get("numa"), cpu.settings["optimizer_kernel"]) == (None, "default: for-loop")
    assert "SY118" not in codes(cpu, gpu)
    assert "numa" not in codes(cpu, gpu).get("SY108", "")
    asked = seen("2", "no (switched off)", "fused", 90, optimizer_kernel="fused", numa=False)
    assert "numa yes vs no" in codes(gpu, asked)["SY118"]
    assert "optimizer_kernel default: foreach vs fused" in codes(gpu, asked)["SY118"]
    # The same kernel, once by name and once by default.
    named = seen("2", "node 0", "foreach", 130, optimizer_kernel="foreach")
    assert "SY118" not in codes(gpu, named)


def test_tuning_is_a_warning_unless_it_is_what_is_compared(simulate: Simulate) -> None:
    def tuned(preset: str, first_seed: int, **values: str) -> Row:
        row = cell(simulate, first_seed=first_seed, preset=preset)
        return dataclasses.replace(row, settings={**row.settings, **values})

    plain = tuned("plain", 1, optimizer_kernel="foreach", attention="flash")
    other = tuned("tuned", 50, optimizer_kernel="fused", attention="flash")
    found = {entry.code: entry for entry in check("pair", Pair(plain, other))}
    assert found["SY118"].severity == "warning"
    assert "preset plain vs tuned; optimizer_kernel foreach vs fused" in found["SY118"].message
    assert "--factor preset" in found["SY118"].command
    for factor in ("preset", "tuning"):
        assert "SY118" not in [entry.code for entry in check("pair", Pair(plain, other, factor))]
    odd = tuned("tuned", 90, optimizer_kernel="fused", attention="math")
    (left,) = (entry for entry in check("pair", Pair(plain, odd, "preset")) if entry.code == "SY118")
    assert "attention flash vs math" in left.message
    # A published figure does not state it: unknown is not equal.
    published = Row(place="p", settings={"system": "B"}, figures={}, source="document")
    (unknown,) = (
        entry
        for entry in check("pair", Pair(plain, published))
        if entry.code == "SY108" and "optimizer_kernel" in entry.message
    )
    assert "preset" not in unknown.message


@pytest.mark.parametrize("stated", ["²", "٣", "9" * 400, "-1", ""])
def test_a_number_of_nodes_that_is_no_count_is_unknown(simulate: Simulate, stated: str) -> None:
    record = simulate(make_spec())
    assert record.environment is not None
    facts = {**record.environment.facts, "env.SLURM_NNODES": stated}
    record = dataclasses.replace(record, environment=dataclasses.replace(record.environment, facts=facts))
    (summary,) = summarise([record])
    assert row_of(summary).get("nodes") in (None, 1)
