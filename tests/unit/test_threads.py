"""Threads of a rank: the share that it finds on its node, and when a difference is an error."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest

from conftest import make_spec
from steelyard.analysis.best import rank
from steelyard.analysis.compare import compare
from steelyard.analysis.rows import row_of
from steelyard.analysis.scaling import scaling
from steelyard.analysis.summary import summarise
from steelyard.contracts import threads
from steelyard.contracts.observe import DeviceFacts, Settings
from steelyard.contracts.sim import Noise, SimTruth
from steelyard.contracts.spec import Budget, RunSpec
from steelyard.inputs.site import Place, Pool, Site
from steelyard.inputs.study import Study, expand, further_runs
from steelyard.launch.local import LocalLauncher
from steelyard.launch.plan import shape_of
from steelyard.rules.rule import check
from steelyard.rules.table.peers import settings_key
from steelyard.rules.table.row import Pair, Row
from steelyard.rules.table.settings import follows_size
from steelyard.terminal.best import headline, verdict
from steelyard.terminal.compare import lines
from steelyard.terminal.scaling import answer, scaling_lines
from steelyard.worker import pod

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Simulate
    from steelyard.contracts.finding import Finding
    from steelyard.contracts.record import RunRecord


def machine(root: Path, cores: int, beside: int, quota: str = "max") -> set[int]:
    """A machine with cores of several CPUs each, and a limit of its control group; return its CPUs."""
    for cpu in range(cores * beside):
        topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        topology.mkdir(parents=True)
        siblings = ",".join(str(cpu % cores + cores * n) for n in range(beside))
        (topology / "thread_siblings_list").write_text(f"{siblings}\n")
    group = root / "sys/fs/cgroup/job"
    group.mkdir(parents=True)
    (group / "cpu.max").write_text(f"{quota} 100000\n")
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text("0::/job\n")
    return set(range(cores * beside))


@pytest.mark.parametrize(
    ("word", "accelerators", "cores", "beside", "quota", "expected"),
    [
        ("/1", 0, 64, 1, "max", 64),
        ("/4", 0, 64, 1, "max", 16),
        # Two CPUs on each core: one thread for each core.
        ("/1", 0, 64, 2, "max", 64),
        ("/4", 0, 64, 2, "max", 16),
        ("/3", 0, 64, 1, "max", 21),
        ("/100", 0, 64, 1, "max", 1),
        # One rank on a node with four accelerators has as many as each of four.
        ("/1", 4, 64, 1, "max", 16),
        ("/4", 4, 64, 1, "max", 16),
        # It sees its own accelerator only.
        ("/4", 1, 64, 1, "max", 16),
        # Of a container.
        ("/2", 0, 64, 1, "800000", 4),
        ("/2", 0, 64, 1, "50000", 1),
        # What the launcher knows about the job, and a rank that is bound to CPUs of its own.
        ("16/2", 0, 64, 1, "max", 8),
        ("64/4", 0, 8, 1, "max", 8),
        ("", 0, 64, 1, "max", None),
    ],
)
def test_a_rank_finds_its_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str, accelerators: int, cores: int, beside: int, quota: str,
    expected: int | None,
) -> None:  # fmt: skip
    monkeypatch.setenv(threads.SHARE, word)
    usable = machine(tmp_path, cores, beside, quota)
    assert threads.share(accelerators, usable=usable, root=tmp_path) == expected


def test_a_kernel_that_names_no_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(threads.SHARE, "/2")
    assert threads.share(usable=set(range(6)), root=tmp_path) == 3


def test_what_a_launcher_passes_on() -> None:
    assert threads.variables(None, 4, {}) == {"OMP_NUM_THREADS": "1", "STEELYARD_CPU_SHARE": "/4"}
    assert threads.variables(None, 4, {"OMP_NUM_THREADS": "7"}) == {}
    assert threads.variables(3, 4, {"OMP_NUM_THREADS": "7"}) == {"OMP_NUM_THREADS": "3", "STEELYARD_CPU_SHARE": ""}
    # Started by a run of ours, which has set both.
    inside = {"OMP_NUM_THREADS": "1", "STEELYARD_CPU_SHARE": "/9"}
    assert threads.variables(None, 2, inside, 8)["STEELYARD_CPU_SHARE"] == "8/2"


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"device": "cpu"}, "/1"),
        ({"device": "cpu", "devices": 2}, "/2"),
        ({"device": "cpu", "devices": 2, "most_devices": 8}, "/8"),
        ({"device": "cpu", "threads": 5}, ""),
        ({}, None),
    ],
)
def test_this_machine(monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], word: str | None) -> None:
    monkeypatch.delenv(threads.OMP, raising=False)
    monkeypatch.delenv(threads.SHARE, raising=False)
    spec = make_spec(workload="tiny", **settings) if settings else make_spec()
    assert LocalLauncher().environment(spec).get(threads.SHARE) == word


def test_a_pod_passes_on_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    runner = object.__new__(pod.Pod)
    runner.worker, runner.results = tmp_path, tmp_path
    for given, task in (
        ({}, {"threads": None, "sharing": 4, "cpus": 32}),
        ({}, {"threads": None, "sharing": 4, "cpus": None}),
        ({}, {"threads": 3, "sharing": 4, "cpus": 32}),
        ({"OMP_NUM_THREADS": "7"}, {"threads": None, "sharing": 4, "cpus": 32}),
    ):
        monkeypatch.delenv(threads.OMP, raising=False)
        for name, value in given.items():
            monkeypatch.setenv(name, value)
        runner.task = {**task, "nodes": 1, "program": False}
        expected = {**given, **threads.variables(task["threads"], 4, given, task["cpus"])}
        found = runner.environment()
        assert {name: found.get(name, "") for name in (threads.OMP, threads.SHARE)} == {threads.SHARE: "", **expected}


# -- a study


def study(**sweep: Any) -> Study:
    return Study(name="s", repeats=2, run={"workload": "tiny", "device": "cpu"}, sweep=sweep)


def test_every_run_knows_the_largest_of_its_study() -> None:
    found = expand(study(devices=(1, 2, 4), batch=(8, 16)))
    assert {(run.devices, run.most_devices) for run in found.runs} == {(1, 4), (2, 4), (4, None)}
    more = further_runs(found, [(found.runs[0], 2, 1)])
    assert more.runs[0].most_devices == found.runs[0].most_devices
    # It is not a setting: the same run in a larger study has the same name.
    alone = expand(study(devices=(1,), batch=(8, 16)))
    assert {cell.name for cell in alone.cells} < {cell.name for cell in found.cells}


@pytest.mark.parametrize(
    ("pool", "device", "ranks", "sharing"),
    [
        # CPUs are requested in proportion to the ranks.
        ({"device": "cpu"}, "auto", 1, 1),
        ({"device": "cpu"}, "auto", 4, 4),
        # Whole nodes: the most ranks of the study on one of them.
        ({"device": "cpu", "exclusive": True}, "auto", 1, 2),
        ({"device": "cpu", "exclusive": True}, "auto", 2, 2),
        ({"device": "cuda", "exclusive": True}, "cpu", 1, 2),
        # Whole nodes with accelerators.
        ({"device": "cuda", "exclusive": True}, "auto", 1, 4),
        ({"exclusive": True}, "auto", 1, 4),
    ],
)
def test_jobs_of_a_site(pool: dict[str, Any], device: str, ranks: int, sharing: int) -> None:
    nodes = Pool(architecture="x86_64", devices_per_node=4, **pool)
    place = Place(Site(name="here", scheduler="slurm", pools={"p": nodes}), "p")
    spec = make_spec(workload="tiny", device=device, devices=ranks, most_devices=2)
    assert shape_of(spec, place, 60).sharing == sharing


# -- what a difference does


def measured(simulate: Simulate, family: str, ranks: int, count: int, step_s: float = 0.01) -> list[RunRecord]:
    """Three jobs whose ranks had this many threads."""
    found = []
    for job in range(3):
        truth = SimTruth(step_time_s=step_s, noise=Noise(kind="normal"))
        spec = RunSpec(
            run_id=f"r{ranks}-{job}", configuration=f"c{ranks}", study="s", devices=ranks, seed=job, repeat=job,
            budget=Budget(min_steps=200, max_steps=200, min_seconds=0), sim=truth,
        )  # fmt: skip
        record = simulate(spec)
        spec = dataclasses.replace(spec, device=family, workload="tiny")
        settings, device = Settings(values={"threads": str(count)}), DeviceFacts(name=family)
        found.append(dataclasses.replace(record, spec=spec, settings=settings, device=device))
    return found


def found_by(records: list[RunRecord], factor: str) -> list[Finding]:
    a, b = map(row_of, summarise(records))
    return [entry for entry in check("pair", Pair(a, b, factor)) if entry.code in ("SY106", "SY119")]


def test_on_cpus_other_threads_are_another_device(simulate: Simulate) -> None:
    records = measured(simulate, "cpu", 1, 2) + measured(simulate, "cpu", 2, 1)
    (found,) = found_by(records, "devices")
    assert (found.code, found.severity) == ("SY119", "error")
    assert "threads 2 vs 1" in found.message
    # The side with more threads is measured again.
    assert found.command.startswith("steelyard run tiny --device cpu --threads 1 ")
    assert "--devices" not in found.command
    (curve,) = scaling(summarise(records))
    assert curve.blocked
    assert "efficiency" not in " ".join(scaling_lines(curve, "s")).partition("fix:")[0]
    assert [entry.code for entry in found_by(records, "threads")] == []


def test_equal_threads_are_no_finding(simulate: Simulate) -> None:
    assert found_by(measured(simulate, "cpu", 1, 2) + measured(simulate, "cpu", 2, 2), "devices") == []


def test_on_accelerators_other_threads_are_a_warning(simulate: Simulate) -> None:
    records = measured(simulate, "cuda", 1, 8, 0.02) + measured(simulate, "cuda", 2, 4)
    (found,) = found_by(records, "devices")
    assert (found.code, found.severity) == ("SY119", "warning")
    (curve,) = scaling(summarise(records))
    text = answer(curve)
    assert "More than 100 % is not plausible: besides the devices, threads 8 vs 4." in text
    assert "loss" not in text
    assert curve.doubts == ()


def test_more_than_all_without_a_cause_is_provisional(simulate: Simulate) -> None:
    (curve,) = scaling(summarise(measured(simulate, "cuda", 1, 4, 0.02) + measured(simulate, "cuda", 2, 4)))
    assert curve.doubts == ("an efficiency above 100 %, whose cause is not known",)
    assert answer(curve).endswith(
        "More than 100 % is not plausible: the cause is not known. Provisional until the cause is known."
    )


def test_two_machines_may_have_other_cpus(simulate: Simulate) -> None:
    rows = [row_of(summarise(measured(simulate, "cpu", 1, count))[0]) for count in (64, 48)]
    for systems, severity in ((("A", "B"), "warning"), (("A", "A"), "error")):
        a, b = (
            dataclasses.replace(r, settings={**r.settings, "system": s}) for r, s in zip(rows, systems, strict=True)
        )
        (found,) = [entry for entry in check("pair", Pair(a, b)) if entry.code == "SY119"]
        assert found.severity == severity


@pytest.mark.parametrize(("family", "severity"), [("cpu", "error"), ("cuda", "warning")])
def test_jobs_of_one_configuration_with_other_threads(simulate: Simulate, family: str, severity: str) -> None:
    mixed = measured(simulate, family, 1, 2)[:2] + measured(simulate, family, 1, 1)[2:]
    a, b = (row_of(summarise(records)[0]) for records in (mixed, measured(simulate, family, 2, 2)))
    (found,) = [entry for entry in check("pair", Pair(a, b, "devices")) if entry.code == "SY115"]
    assert (found.severity, "threads 1 or 2" in found.message) == (severity, True)


@pytest.mark.parametrize(("family", "apart"), [("cpu", True), ("CPU", True), ("A100", False)])
def test_rows_of_other_threads_are_one_series_on_accelerators_only(family: str, apart: bool) -> None:
    rows = [Row(f"t/{n}", {"accelerator": family, "devices": n, "threads": 8 / n}, {}) for n in (1, 4)]
    assert ("threads" not in follows_size(rows)) == apart
    assert (settings_key(rows[0]) != settings_key(rows[1])) == apart


def test_a_ranking_names_what_differs_although_nobody_varied_it(simulate: Simulate) -> None:
    same = measured(simulate, "cuda", 1, 4) + measured(simulate, "cuda", 2, 4)
    (ranking,) = rank(summarise(same))
    assert ranking.besides == ()
    assert "differ" not in headline(ranking)
    (ranking,) = rank(summarise(measured(simulate, "cuda", 1, 8) + measured(simulate, "cuda", 2, 4)))
    assert ranking.besides == ("threads 4 vs 8",)
    for text in (headline(ranking), verdict(ranking)):
        assert text.endswith("; these differ although nobody varied them: threads 4 vs 8")


def test_a_comparison_names_what_differs_with_its_factor(simulate: Simulate) -> None:
    a, b = (row_of(summarise(measured(simulate, "cuda", ranks, 4))[0]) for ranks in (1, 2))
    told = " ".join(lines(compare([a], [b], factor="devices"), "A", "B"))
    assert "Factor: devices (with it global_batch 32 vs 64); figure: throughput" in told
    b = dataclasses.replace(b, settings={**a.settings, "accumulation": 2, "global_batch": 64})
    told = " ".join(lines(compare([a], [b], factor="batches"), "A", "B"))
    assert "Factor: batches (global_batch 32 vs 64, accumulation 1 vs 2)" in told
    assert "accumulation 1 vs 2 (SY104)" in " ".join(lines(compare([a], [b], factor="batch"), "A", "B"))
