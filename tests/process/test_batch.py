"""The knee of a batch-size sweep: statistics, analysis and command, on curves with a known knee."""

from __future__ import annotations

import dataclasses
import json
import math
import shlex
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.analysis.batch import batch_curve, batch_curves
from steelyard.analysis.select import select
from steelyard.analysis.summary import summarise
from steelyard.cli.main import main
from steelyard.contracts.finding import Finding
from steelyard.results.store import ResultFolder
from steelyard.stats.knee import BatchTimes, knee, unimodal
from steelyard.terminal.batch import curve_lines

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from steelyard.analysis.summary import CellSummary

STUDY = """
name = "sweep"
repeats = 3
[run]
crosscheck_steps = 0
budget = { min_steps = 100, max_steps = 100, min_seconds = 0.0 }
[run.sim]
step_time_s = 0.01
sample_time_s = 0.0001
noise = { kind = "normal", cv = 0.01, between_jobs_cv = 0.005 }
memory = { limit_bytes = 8e9, bytes_per_sample = 4e6 }
[sweep]
batch = [64, 128, 256, 512, 1024, 2048]
"""


def sweep(time_s: Callable[[float], float], batches: list[float], jobs: int = 1, cv: float = 0.0) -> list[BatchTimes]:
    rng = np.random.default_rng(5)
    return [BatchTimes(b, tuple(time_s(b) * (1 + cv * rng.standard_normal(jobs)))) for b in batches]


POWERS = [2.0**n for n in range(3, 13)]


@given(st.floats(1, 300), st.floats(1e-6, 1e-2), st.floats(0.5, 0.97))
def test_without_noise_the_knee_is_exact(ratio: float, sample_s: float, share: float) -> None:
    found = knee(sweep(lambda b: sample_s * (ratio + b), POWERS), share)
    truth = share / (1 - share) * ratio
    assert found.asymptote == pytest.approx(1 / sample_s, rel=1e-3)
    # At the ends of the sweep, rounding decides.
    if not 7.99 < truth < 8.01 and not 4090 < truth < 4100:
        assert found.answer == ("below the sweep" if truth < 8 else "beyond the sweep" if truth > 4096 else "found")
    # Far outside there is no figure.
    assert found.value == pytest.approx(truth, rel=1e-3) or (found.value is None and found.answer != "found")


def test_the_published_curve_of_a_gpt_on_an_ipu() -> None:
    """Its table says 89.4 % of the best at 1,024 and 94.8 % at 2,048."""
    rates = (65.0, 97.2, 130.0, 155.7, 172.9, 183.4, 188.9, 191.9, 193.4)
    found = knee([BatchTimes(64.0 * 2**n, (64 * 2**n / rate,)) for n, rate in enumerate(rates)])
    assert found.answer == "found"
    assert found.value == pytest.approx(1152, rel=0.02)
    assert found.low is not None
    assert found.high is not None
    assert found.low < 1152 < found.high


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    rng = np.random.default_rng(11)
    held = 0
    for _ in range(400):
        points = [BatchTimes(b, tuple((20 + b) * (1 + 0.02 * rng.standard_normal(3)))) for b in POWERS]
        found = knee(points)
        assert found.low is not None
        assert found.high is not None
        held += found.low <= 180 <= found.high
    assert 0.91 * 400 <= held <= 0.985 * 400


def test_a_curve_that_still_rises_has_its_knee_beyond_the_sweep() -> None:
    found = knee(sweep(lambda b: 5000 + b, POWERS))
    assert (found.answer, found.value) == ("beyond the sweep", None)
    assert found.low is not None
    assert found.low > 4096
    near = knee(sweep(lambda b: 600 + b, POWERS))
    assert near.answer == "beyond the sweep"
    assert near.value == pytest.approx(5400, rel=0.01)


def test_a_flat_curve_has_its_knee_below_the_sweep() -> None:
    found = knee(sweep(lambda b: b, POWERS, jobs=3, cv=0.01))
    assert found.answer == "below the sweep"
    assert found.low == 0


def test_a_slow_rise_is_not_given_too_low_an_asymptote() -> None:
    found = knee(sweep(lambda b: b * (1 + (4 / b) ** 0.7), POWERS, jobs=3, cv=0.003))
    assert found.method == "slow rise"
    assert found.value == pytest.approx(4 * 9 ** (1 / 0.7), rel=0.2)


def test_steps_that_the_host_bounds_are_left_out() -> None:
    found = knee(sweep(lambda b: max(100.0, 40 + b), POWERS, jobs=3, cv=0.002))
    assert found.from_batch is not None
    assert found.from_batch > 8
    assert found.value == pytest.approx(360, rel=0.05)


def test_a_curve_that_falls_after_its_best_is_read_off_the_sweep() -> None:
    found = knee(sweep(lambda b: (24 + b) * (1 + 0.12 * max(0.0, math.log2(b / 512))), POWERS, jobs=3, cv=0.003))
    assert found.method == "swept batches alone"
    assert found.value == 256
    assert found.low == 128


def test_few_batches_tell_nothing() -> None:
    assert knee(sweep(lambda b: 20 + b, [8.0, 16.0])).answer == "cannot tell"
    loose = knee([BatchTimes(b, (t,)) for b, t in ((256.0, 270.0), (512.0, 560.0), (1024.0, 1010.0))])
    assert loose.answer == "cannot tell"


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match="twice"):
        knee([BatchTimes(8, (1.0,)), BatchTimes(8, (1.0,))])
    with pytest.raises(ValueError, match="positive"):
        knee([BatchTimes(8, (0.0,)), BatchTimes(16, (1.0,)), BatchTimes(32, (1.0,))])
    with pytest.raises(ValueError, match="share"):
        knee([], 1.0)


@given(st.lists(st.floats(1, 100), min_size=1, max_size=12))
def test_the_smoothed_curve_has_one_top_and_keeps_the_mean(values: list[float]) -> None:
    smooth = unimodal(values, [1.0] * len(values))
    top = smooth.index(max(smooth))
    assert all(a <= b + 1e-9 for a, b in pairwise(smooth[: top + 1]))
    assert all(a >= b - 1e-9 for a, b in pairwise(smooth[top:]))
    assert sum(smooth) == pytest.approx(sum(values))


# -- through the product


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("batch")
    (folder / "sweep.toml").write_text(STUDY, encoding="utf-8")
    assert main(["study", str(folder / "sweep.toml"), "--results", str(folder / "results")]) == 1
    return folder / "results"


def batch_json(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any]:
    capsys.readouterr()
    code = main(["batch", *words, "--json"])
    curves = json.loads(capsys.readouterr().out)["curves"]
    return code, curves[0] if len(curves) == 1 else curves


def test_the_verb_finds_the_scripted_knee(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = batch_json(capsys, "sweep", "--results", str(results))
    assert code == 0
    assert found["knee"]["low"] < 900 < found["knee"]["high"]
    assert found["knee"]["fixed_s"] == pytest.approx(0.01, rel=0.03)
    assert found["asymptote_samples_per_s"] == pytest.approx(10_000, rel=0.02)
    assert (found["smallest_reaching"], found["largest_fitting"], found["smallest_out_of_memory"]) == (1024, 1024, 2048)
    assert [cell["batch"] for cell in found["configurations"]] == [64, 128, 256, 512, 1024, 2048]
    assert found["configurations"][-1]["statuses"] == {"out_of_memory": 3}
    assert found["configurations"][-2]["memory_peak_bytes"] == 1024 * 4e6
    assert found["findings"] == []


def test_the_answer_comes_first_and_fits_the_terminal(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["batch", "sweep", "--results", str(results)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("The knee is at batch ")
    assert any("2,048" in line and "3 out_of_memory" in line for line in lines)
    assert max(map(len, lines)) <= 80


def test_a_knee_beyond_what_fits_is_not_made_up(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = batch_json(capsys, "sweep", "--share", "0.98", "--results", str(results))
    assert code == 0
    assert (found["knee"]["answer"], found["knee"]["value"]) == ("beyond the sweep", None)
    assert main(["batch", "sweep", "--share", "0.98", "--results", str(results)]) == 0
    assert "The knee is beyond batch 1,024" in capsys.readouterr().out


def test_a_study_of_two_settings_has_a_curve_for_each_value(
    results: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    mixed = STUDY.replace('name = "sweep"', 'name = "mixed"').replace("repeats = 3", "repeats = 1")
    (tmp_path / "mixed.toml").write_text(mixed + 'precision = ["fp32", "bf16"]\n', encoding="utf-8")
    main(["study", str(tmp_path / "mixed.toml"), "--results", str(results)])
    code, found = batch_json(capsys, "mixed", "--results", str(results))
    assert (code, len(found)) == (0, 2)
    assert {curve["label"] for curve in found} == {"precision=fp32", "precision=bf16"}
    for curve in found:
        assert curve["knee"]["low"] < 900 < curve["knee"]["high"]
        assert [cell["batch"] for cell in curve["configurations"]] == [64, 128, 256, 512, 1024, 2048]
        # One job per batch: answered, and said to be provisional, with the command that would settle it.
        assert "provisional, because fewer than 3 batches are reliable" in curve["answer"]
        assert curve["next"] == f"steelyard study mixed.toml --extend --results {results}"
        assert curve["findings"] == []
    assert main(["batch", "mixed", "--results", str(results)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("2 curves over the batch")
    assert [line.split()[0] for line in lines[3:5]] == [curve["label"] for curve in found]
    assert sum(line.startswith("The knee is at batch ") for line in lines) == 2
    code, one = batch_json(capsys, "mixed:precision=fp32", "--results", str(results))
    assert (code, len(one["configurations"]), one["label"]) == (0, 6, "")


def test_a_configuration_without_another_batch_is_named(results: Path) -> None:
    cells = select(ResultFolder(results), "sweep")
    odd = dataclasses.replace(
        cells[0].records[0],
        spec=dataclasses.replace(cells[0].records[0].spec, configuration="odd", precision="bf16"),
    )
    (curve,) = batch_curves([*cells, *summarise([odd])])
    assert (len(curve.cells), curve.blocked) == (6, False)
    assert curve.alone == (f"batch={odd.spec.batch}, precision=bf16",)


def test_another_difference_is_answered_with_a_selection_of_one_curve(results: Path) -> None:
    cells = select(ResultFolder(results), "sweep")
    odd = [
        dataclasses.replace(record, spec=dataclasses.replace(record.spec, precision="bf16"))
        for record in cells[0].records
    ]
    found = [entry for entry in batch_curve([*cells[1:], *summarise(odd)]).findings if entry.code.startswith("SY1")]
    assert found
    for entry in found:
        assert entry.command == f"steelyard batch {entry.fix.rpartition(': ')[2]}"
        assert entry.command == "steelyard batch sweep:precision=fp32"


def test_the_knee_rests_on_reliable_batches_and_says_what_it_leaves_out(results: Path) -> None:
    cells = select(ResultFolder(results), "sweep")
    wrong = Finding(code="SY601", severity="error", message="a rank is missing", fix="rerun")

    def spoil(cell: CellSummary) -> CellSummary:
        if cell.records[0].spec.batch != 1024:
            return cell
        (spoiled,) = summarise([dataclasses.replace(record, findings=(wrong,)) for record in cell.records])
        return spoiled

    curve = batch_curve([spoil(cell) for cell in cells])
    assert [entry.used for entry in curve.cells] == [True, True, True, True, False, False]
    said = " ".join(" ".join(curve_lines(curve)).split())
    assert "from 4 of 5 batches with a result; batch 1,024 measured" in said
    assert "but is unreliable: errors in its runs: SY601" in said


def test_too_few_batches_are_said_to_be_too_few(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, said in (
        ("sweep:batch=64", "1 batch size has a usable throughput"),
        ("sweep:batch=2048", "no batch sizes have a usable throughput"),
    ):
        assert main(["batch", words, "--results", str(results)]) == 1
        out = capsys.readouterr().out
        assert said in " ".join(out.split())
        assert ("next: steelyard batch sweep --results" in out) == ("=64" in words)


def test_one_batch_is_told_which_others_are_needed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    there = ["--study", "one", "--results", str(tmp_path)]
    assert main(["run", "sim", "--batch", "16", *there]) == 0
    capsys.readouterr()
    assert main(["batch", "one", "--results", str(tmp_path)]) == 1
    (step,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("next: steelyard run")]
    commands = [shlex.split(one) for one in step.removeprefix("next: ").split(" && ")]
    for words in commands:
        assert main(words[1:]) == 0
    capsys.readouterr()
    main(["batch", "one", "--results", str(tmp_path)])
    assert "at least 3 are needed" not in " ".join(capsys.readouterr().out.split())
    # The file of a study is its user's.
    (tmp_path / "s.toml").write_text('name = "s"\n[sweep]\nbatch = [1, 16]\n', encoding="utf-8")
    assert main(["study", str(tmp_path / "s.toml"), "--results", str(tmp_path)]) == 0
    capsys.readouterr()
    assert main(["batch", "s", "--results", str(tmp_path)]) == 1
    assert "next: write [sweep] batch = [1, 16, 64] into the study" in capsys.readouterr().out


def test_a_batch_that_fits_in_some_jobs_only_does_not_fit(results: Path) -> None:
    cells = select(ResultFolder(results), "sweep")
    (largest,) = [cell for cell in cells if cell.records[0].spec.batch == 1024]
    lost = next(cell for cell in cells if cell.records[0].spec.batch == 2048).records[0].status
    records = (dataclasses.replace(largest.records[0], status=lost), *largest.records[1:])
    mixed = dataclasses.replace(largest, records=records, statuses={"completed": 2, "out_of_memory": 1})
    curve = batch_curve([mixed if cell is largest else cell for cell in cells])
    assert (curve.largest_fitting, curve.smallest_out_of_memory) == (512, 1024)
    text = " ".join(curve_lines(curve))
    assert "Largest batch that fits: 512; 1,024 ran out of memory in 1 of 3 jobs" in text


def test_more_ranks_and_micro_batches_are_said(
    results: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    many = STUDY.replace('name = "sweep"', 'name = "many"').replace("repeats = 3", "repeats = 1")
    many = many.replace("[run]", "[run]\naccumulation = 2").replace("2048]", "1536]\ndevices = [1, 2]")
    (tmp_path / "many.toml").write_text(many, encoding="utf-8")
    assert main(["study", str(tmp_path / "many.toml"), "--results", str(results)]) == 0
    code, both = batch_json(capsys, "many", "--results", str(results))
    assert (code, [curve["label"] for curve in both]) == (0, ["devices=2", "devices=1"])
    code, found = batch_json(capsys, "many:devices=2", "--results", str(results))
    assert code == 0
    # A step is two micro-batches of 10 ms plus 0.1 ms per sample; the job has two devices.
    assert found["knee"]["value"] == pytest.approx(900, rel=0.1)
    assert found["knee"]["fixed_s"] == pytest.approx(0.02, rel=0.05)
    assert found["asymptote_samples_per_s"] == pytest.approx(20_000, rel=0.05)
    assert main(["batch", "many:devices=2", "--results", str(results)]) == 0
    assert "a step of the job has 4 micro-batches" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("share", ["0", "1", "90", "nan"])
def test_a_share_is_a_share(share: str, results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["batch", "sweep", "--share", share, "--results", str(results)]) == 2
    assert "--share" in capsys.readouterr().err
