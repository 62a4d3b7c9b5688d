"""How busy a machine is: the kernel's files, the shares in the record, the findings and the check of doctor."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from conftest import make_spec
from steelyard import hostload
from steelyard.contracts import energy, observe
from steelyard.contracts.base import from_json_object, to_json_object
from steelyard.contracts.conditions import COLUMNS, Readable
from steelyard.contracts.observe import LoadCounters
from steelyard.contracts.record import HostLoad, LoadShares
from steelyard.derive.load import load_between
from steelyard.derive.record import derive
from steelyard.doctor import load as doctor_load
from steelyard.doctor.load import Look, load_check
from steelyard.doctor.node import HostView
from steelyard.hostload import TICK_S, own_cpu_s, own_numbers, processes, read_load
from steelyard.results.store import record_text
from steelyard.rules.rule import rule

if TYPE_CHECKING:
    from collections.abc import Callable

    from steelyard.contracts.finding import Finding
    from steelyard.contracts.record import RunRecord
    from steelyard.contracts.spec import RunSpec

OWN = 100
STAT = """cpu  999 0 0 0 0 0 0 0 0 0
cpu0 100 10 20 5000 7 3 4 50 80 0
cpu1 200 0 30 5000 7 0 0 0 0 0
cpu2 9000 0 0 0 0 0 0 0 0 0
intr 12345 0 0
"""
PRESSURE = "some avg10=4.21 avg60=5.89 avg300=5.93 total={}\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n"


def stat(number: int, parent: int, *times: int, name: str = "python") -> str:
    """The line of a process with user, system, ended user and ended system time in ticks."""
    return f"{number} ({name}) S {parent} 1 1 0 -1 4194304 1 2 3 4 {' '.join(map(str, times))} 20 0 1 0 12345 1 1"


def plant(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


MACHINE = {
    "proc/stat": STAT,
    "proc/loadavg": "9.20 5.10 3.00 4/911 12345\n",
    "proc/pressure/cpu": PRESSURE.format(2_500_000),
    "proc/pressure/memory": PRESSURE.format(0),
    "proc/pressure/io": PRESSURE.format(1_000_000),
    f"proc/{OWN}/stat": stat(OWN, 1, 50, 10, 5, 5),
    "proc/101/stat": stat(101, OWN, 20, 0, 0, 0, name="loader) S 1 (x"),
    "proc/102/stat": stat(102, 101, 10, 0, 0, 0),
    "proc/103/stat": stat(103, 1, 5000, 0, 0, 0, name="other"),
    "proc/self/cgroup": "0::/job/step\n",
    "sys/fs/cgroup/job/step/cpu.stat": "usage_usec 5\nnr_periods 40\nnr_throttled 4\nthrottled_usec 9\n",
    "sys/fs/cgroup/job/cpu.stat": "usage_usec 5\nnr_periods 10\nnr_throttled 1\nthrottled_usec 9\n",
    "sys/fs/cgroup/cpu.stat": "usage_usec 5\n",
}


def read(root: Path) -> LoadCounters:
    return read_load(root, "steps", "n1", OWN, {0, 1})


# -- the kernel's files


def test_the_counters_of_a_machine(tmp_path: Path) -> None:
    found = read(plant(tmp_path, MACHINE))
    assert replace(found, at_s=0.0) == LoadCounters(
        moment="steps", node="n1", at_s=0.0, cpus="3", load_average=9.2,
        busy_s=pytest.approx((100 + 10 + 20 + 3 + 4 + 200 + 30) * TICK_S), steal_s=pytest.approx(50 * TICK_S),
        own_s=pytest.approx((50 + 10 + 5 + 5 + 20 + 10) * TICK_S), periods=50, throttled_periods=5,
        cpu_wait_s=2.5, memory_wait_s=0.0, io_wait_s=1.0,
    )  # fmt: skip
    assert from_json_object(LoadCounters, to_json_object(found)) == found


def test_control_groups_of_version_1(tmp_path: Path) -> None:
    groups = {
        "proc/self/cgroup": "2:cpu,cpuacct:/job\n0::/\n",
        "sys/fs/cgroup/cpu,cpuacct/job/cpu.stat": "nr_periods 8\nnr_throttled 2\nthrottled_time 5\n",
    }
    found = read(plant(tmp_path, groups))
    assert (found.periods, found.throttled_periods) == (8, 2)


def test_this_machine() -> None:
    found = read_load(Path("/"), "start")
    assert found.own_s is not None
    assert found.busy_s is not None
    assert 0 < found.own_s < found.busy_s
    assert from_json_object(LoadCounters, to_json_object(found)) == found


def test_an_empty_machine(tmp_path: Path) -> None:
    found = read(tmp_path)
    assert found == LoadCounters(moment="steps", node="n1", at_s=found.at_s, cpus="3")


@pytest.mark.parametrize("text", [
    "", "\n\n", "cpu", "cpu0", "some", "some total=", "some total=-5", "some total=1e9", f"some total={'9' * 100_000}",
    "\x00\xff" * 3000, "nr_periods", "nr_periods x\nnr_throttled -1", f"nr_periods {'9' * 10_000}", "nan", "inf", "-1",
    "٣", "cpu0 1 2 3\ncpu1 1 2 3", "cpu0 a b c d e f g h\ncpu1 1 1 1 1 1 1 1 1", "9" * 5000, "x (x", "x (x) S", ") ) )",
    "x (x) S 1 1 1 0 -1 0 0 0 0 0 -5 1 1 1",
])  # fmt: skip
def test_malformed_files_are_unknown(tmp_path: Path, text: str) -> None:
    root = plant(tmp_path, {name: text for name in MACHINE if name != "proc/self/cgroup"})
    plant(root, {"proc/self/cgroup": MACHINE["proc/self/cgroup"]})
    found = read(root)
    assert found == LoadCounters(moment="steps", node="n1", at_s=found.at_s, cpus="3")


def test_a_cpu_that_is_not_shown(tmp_path: Path) -> None:
    plant(tmp_path, MACHINE)
    assert read_load(tmp_path, "steps", cpus={0, 7}).busy_s is None


def test_processes_that_end_while_they_are_listed(tmp_path: Path) -> None:
    plant(tmp_path, MACHINE)
    (tmp_path / "proc/101/stat").unlink()
    assert set(processes(tmp_path)) == {OWN, 102, 103}
    # Its own child is then nobody's.
    assert own_cpu_s(processes(tmp_path), OWN) == pytest.approx(70 * TICK_S)
    assert own_cpu_s(processes(tmp_path), 999) is None


def test_processes_that_are_each_other_s_parents(tmp_path: Path) -> None:
    plant(tmp_path, {"proc/7/stat": stat(7, 8, 1, 0, 0, 0), "proc/8/stat": stat(8, 7, 1, 0, 0, 0)})
    assert own_numbers(processes(tmp_path), 7) == {7, 8}


# -- shares


def counters(moment: str, at_s: float, **more: Any) -> LoadCounters:
    return LoadCounters(**({"moment": moment, "node": "n1", "at_s": at_s, "cpus": "3"} | more))


def pair(seconds: float = 10.0, cpus: str = "3", **grown: float) -> tuple[LoadCounters, LoadCounters]:
    """Two readings between which the counters grow."""
    before = dict.fromkeys(grown, 5)
    after = {name: 5 + value for name, value in grown.items()}
    return counters("steps", 3.0, cpus=cpus, **before), counters("end", 3.0 + seconds, cpus=cpus, **after)


def test_ranks_on_the_same_cpus() -> None:
    shared = {
        "busy_s": 19.0,
        "steal_s": 0.5,
        "periods": 100,
        "throttled_periods": 7,
        "cpu_wait_s": 4.0,
        "io_wait_s": 1.0,
    }
    found = load_between([pair(own_s=6.0, **shared), pair(own_s=8.0, **shared)])
    assert found is not None
    assert (found.own_cpus, found.other_cpus) == (pytest.approx(1.4), pytest.approx(0.5))
    assert found.steal_share == pytest.approx(0.5 / 20)
    assert (found.throttled_share, found.cpu_wait_share, found.io_wait_share) == (0.07, 0.4, 0.1)
    assert (found.memory_wait_share, found.load_average) == (None, None)


def test_ranks_on_their_own_cpus() -> None:
    ranks = [pair(cpus="3", busy_s=19.0, steal_s=1.0, own_s=6.0), pair(cpus="c", busy_s=9.0, steal_s=1.0, own_s=8.0)]
    found = load_between(ranks)
    assert found is not None
    assert (found.own_cpus, found.other_cpus) == (pytest.approx(1.4), pytest.approx(1.4))
    assert found.steal_share == pytest.approx(2 / 40)


def test_cpus_that_cannot_be_told_apart() -> None:
    overlap = [pair(cpus="3", busy_s=19.0, own_s=6.0), pair(cpus="6", busy_s=9.0, own_s=8.0)]
    before, after = pair(busy_s=9.0, own_s=1.0)
    for ranks in (overlap, [(before, replace(after, cpus="1"))]):
        found = load_between(ranks)
        assert found is not None
        assert found.other_cpus is None
        assert found.own_cpus is not None


def test_a_rank_that_tells_nothing_is_not_somebody_else() -> None:
    found = load_between([pair(busy_s=19.0, own_s=6.0)], whole=False)
    assert found is not None
    assert (found.own_cpus, found.other_cpus) == (None, None)


@pytest.mark.parametrize(
    ("grown", "other"),
    [({"busy_s": 6.0, "own_s": 6.1}, 0.0), ({"busy_s": 90.0, "own_s": 6.0}, 2.0),
     ({"busy_s": -1.0, "own_s": 6.0}, None), ({"busy_s": 6.0}, None), ({"own_s": 6.0}, None)],
)  # fmt: skip
def test_odd_counters(grown: dict[str, float], other: float | None) -> None:
    found = load_between([pair(**grown)])
    assert found is not None
    assert found.other_cpus == other


def test_no_time_between_two_readings() -> None:
    assert load_between([]) is None
    assert load_between([pair(seconds=0.0, busy_s=1.0, own_s=1.0)]) is None


# -- from raw files


def derived(raw: Path, spec: RunSpec, ranks: list[list[LoadCounters]]) -> RunRecord:
    raw.mkdir(exist_ok=True)
    (raw / observe.SPEC_FILE).write_text(record_text(spec), encoding="utf-8")
    for rank, readings in enumerate(ranks):
        phase = {"kind": "phase", "name": "steps", "start_s": 2.0, "end_s": 12.0}
        lines = [{"kind": "load", **to_json_object(reading)} for reading in readings] + [phase]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (raw / f"events-{rank:05d}.jsonl").write_text(text, encoding="utf-8")
    return derive(raw)


def three(node: str, own_s: float) -> list[LoadCounters]:
    """Others use half a CPU before the steps, and one and a half during them, if four such ranks share two CPUs."""
    grown = {"start": (0.0, 0.0, 0.0), "steps": (2.0, 1.0, 0.0), "end": (12.0, 16.0 + 4 * own_s, own_s)}
    return [
        counters(moment, at_s, node=node, busy_s=busy_s, own_s=used_s, load_average=at_s)
        for moment, (at_s, busy_s, used_s) in grown.items()
    ]


def test_the_load_of_every_node(tmp_path: Path) -> None:
    spec = make_spec(workload="tiny", device="cuda", devices=8)
    ranks = [three(node, 1.0) for node in ("n1", "n2") for _ in range(4)]
    record = derived(tmp_path, spec, ranks)
    assert [node.node for node in record.load] == ["n1", "n2"]
    for node in record.load:
        assert node.cpus == 2
        assert node.before == LoadShares(seconds=2.0, load_average=2.0, own_cpus=0.0, other_cpus=0.5)
        assert node.during == LoadShares(seconds=10.0, load_average=12.0, own_cpus=0.4, other_cpus=1.5)
    (found,) = [one for one in record.findings if one.code == "SY609"]
    assert "n1; 2 of 2 nodes were busy" in found.message
    assert "other processes used 1.5 of 2 CPUs" in found.message
    assert found.evidence == "before the first step, other processes used 0.5 CPUs"
    # One rank is missing: what it used must not count as somebody else's.
    (tmp_path / "events-00007.jsonl").unlink()
    record = derive(tmp_path)
    assert [(node.during.other_cpus, node.during.own_cpus) for node in record.load if node.during] == [(None, None)] * 2
    assert all(one.code != "SY609" for one in record.findings)


def test_a_run_that_was_killed_in_its_steps(tmp_path: Path) -> None:
    record = derived(tmp_path, make_spec(workload="tiny", device="cpu"), [three("n1", 1.0)[:2]])
    (node,) = record.load
    assert node.before is not None
    assert node.during is None


def test_a_simulated_run_does_not_depend_on_the_machine(simulate: Callable[[RunSpec], RunRecord]) -> None:
    assert simulate(make_spec()).load == ()


@pytest.mark.parametrize(
    ("readings", "processes"),
    [([(0.5, 1.0), (5.0, 2.0)], 2), ([(0.5, 2.0), (0.9, 1.0)], 1), ([(0.5, 2.0)], 2), ([(5.0, 0.0)], None),
     ([(13.0, 3.0)], None), ([(5.0, math.nan), (6.0, math.inf)], None), ([], None)],
)  # fmt: skip
def test_processes_on_the_device(tmp_path: Path, readings: list[tuple[float, float]], processes: int | None) -> None:
    sampler = energy.Sampler(node="n1", process=0, period_s=0.1, clock="CLOCK_MONOTONIC", zero_s=100.0)
    device = Readable(domain="gpu0", backend="nvml", sources={"processes": "a call"}, unknown={})
    lines = [{"kind": "sampler", **to_json_object(sampler)}, {"kind": "conditions", **to_json_object(device)}]
    (tmp_path / "sensors-00000.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with (tmp_path / "conditions-00000.bin").open("wb") as file:
        file.write(energy.CONDITIONS.magic)
        for at_s, count in readings:
            row = [at_s if name == "time_s" else count if name == "processes" else math.nan for name in COLUMNS]
            energy.write_power_chunk(file, 0, np.array([row]).T, energy.CONDITIONS)
    record = derived(tmp_path, make_spec(workload="tiny", device="cuda"), [three("n1", 1.0)])
    assert record.load[0].device_processes == processes
    assert any(one.code == "SY610" for one in record.findings) == (processes == 2)


# -- findings


def findings(simulate: Callable[[RunSpec], RunRecord], *nodes: HostLoad) -> list[Finding]:
    return list(rule("SY609").check(replace(simulate(make_spec()), load=nodes)))  # type: ignore[attr-defined]


def during(cpus: int = 2, seconds: float = 10.0, **shares: float) -> HostLoad:
    return HostLoad(node="n1", cpus=cpus, during=LoadShares(seconds=seconds, **shares))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("node", "said"),
    [
        (during(own_cpus=0.1, other_cpus=1.9), "other processes used 1.9 of 2 CPUs"),
        # Two of 64 CPUs are idle, but the run is not alone.
        (during(64, own_cpus=4.0, other_cpus=58.0), "other processes used 58.0 of 64 CPUs"),
        (during(own_cpus=2.0, other_cpus=0.0, throttled_share=0.2), "a CPU quota stopped processes in 20 %"),
        (during(own_cpus=2.0, other_cpus=0.0, steal_share=0.034), "the hypervisor gave 3.4 % of the CPU time"),
        # Idle CPUs were left: the run could have used them.
        (during(64, own_cpus=4.0, other_cpus=30.0), ""),
        # Alone on the machine: the waiting is that of its own threads.
        (during(own_cpus=1.9, other_cpus=0.05, cpu_wait_share=0.9, load_average=30.0), ""),
        (during(own_cpus=1.8, other_cpus=0.12), "other processes used 0.1 of 2 CPUs"),
        (during(own_cpus=2.0, other_cpus=0.0, throttled_share=0.009, steal_share=0.009), ""),
        # Ticks of 10 ms are too coarse.
        (during(seconds=0.5, own_cpus=0.1, other_cpus=1.9), ""),
        (during(own_cpus=1.0), ""),
        (HostLoad(node="n1", cpus=0), ""),
    ],
)
def test_sy609_what_took_the_cpus(simulate: Callable[[RunSpec], RunRecord], node: HostLoad, said: str) -> None:
    found = findings(simulate, node)
    assert bool(found) == bool(said)
    if found:
        assert said in found[0].message
        assert found[0].severity == "warning"


def test_sy609_names_everything_with_figures(simulate: Callable[[RunSpec], RunRecord]) -> None:
    node = during(own_cpus=0.1, other_cpus=1.9, load_average=9.2, cpu_wait_share=0.43, io_wait_share=0.02,
                  memory_wait_share=0.0, steal_share=0.05)  # fmt: skip
    (found,) = findings(simulate, node)
    assert found.message == (
        "the machine was busy while this run measured: other processes used 1.9 of 2 CPUs (load 9.2; tasks waited for "
        "a CPU 43 %, for a disk 2.0 % of the time); the hypervisor gave 5.0 % of the CPU time to other machines"
    )
    assert found.command == "steelyard doctor && steelyard run sim"
    assert "--exclusive" in found.fix
    assert "virtual machines" in found.fix


# -- now


class Machine:
    """A machine with two CPUs, on which time passes only in a pause. Our own process is one of its processes."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.view = HostView(root=root, cpu_numbers=frozenset({0, 1}))
        self.shares: dict[int, float] = {}
        self._now_s = 50.0
        clock = SimpleNamespace(monotonic=lambda: self._now_s)
        monkeypatch.setattr(hostload, "time", clock)
        monkeypatch.setattr(doctor_load, "time", clock)

    def run(self, shares: dict[int, float]) -> None:
        """From now on these processes use so many CPUs."""
        self.shares = shares
        self.pause(0.0)

    def pause(self, seconds: float) -> None:
        self._now_s += seconds
        used = {number: round(share * self._now_s / TICK_S) for number, share in self.shares.items()}
        files = {f"proc/{number}/stat": stat(number, 1, own, 0, 0, 0, name="p\x1b") for number, own in used.items()}
        files["proc/stat"] = f"cpu0 {sum(used.values())} 0 0 0 0 0 0 0 0 0\ncpu1 0 0 0 0 0 0 0 0 0 0\n"
        plant(self.view.root, files | {"proc/loadavg": "9.2 1 1 1/1 1\n"})


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_a_busy_machine_now(machine: Machine) -> None:
    machine.run({os.getpid(): 0.5, 7: 0.4, 8: 1.0, 9: 0.0})
    found = load_check(machine.view, machine.pause)
    most = r"most: p\x1b (process 8, 1.0 CPUs), p\x1b (process 7, 0.4 CPUs)"
    assert (found.verdict, found.found) == ("note", f"other processes used 1.4 of 2 CPUs (load 9.2); {most}")
    assert "--exclusive" in found.fix
    look = Look(machine.view)
    machine.pause(0.2)
    assert look.busy_line() == "busy machine: other processes used 1.4 of 2 CPUs (load 9.2); see steelyard doctor"


def test_a_quiet_machine_now(machine: Machine) -> None:
    machine.run({os.getpid(): 1.5, 7: 0.1})
    found = load_check(machine.view, machine.pause)
    assert (found.verdict, found.found, found.fix) == ("ok", "other processes used 0.1 of 2 CPUs (load 9.2)", "")
    look = Look(machine.view)
    machine.pause(0.2)
    assert look.busy_line() == ""


def test_a_kernel_that_shows_nothing(machine: Machine) -> None:
    assert load_check(machine.view, lambda _: None).verdict == "note"
    assert Look(machine.view).busy_line() == ""
