"""Where a run goes inside an allocation, without a cluster: how its ranks are laid over the nodes, and where we are."""

from __future__ import annotations

import re
from typing import Any

import pytest

from conftest import make_spec
from steelyard.contracts.spec import Loader
from steelyard.errors import InputError
from steelyard.launch.allocation import Allocation, AllocationLauncher, whereabouts
from steelyard.launch.local import MARK, LocalLauncher

pytestmark = pytest.mark.gate


def allocation(nodes: int = 4, **settings: Any) -> Allocation:
    given = {"tasks_per_node": 1, "cpus_per_node": 8, "devices_per_node": 4, "here": None} | settings
    return Allocation(job="7", nodes=tuple(f"n{number}" for number in range(1, nodes + 1)), **given)


# -- how a run is laid over the nodes -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ranks", "nodes", "each"),
    [(1, 1, 1), (2, 1, 2), (4, 1, 4), (8, 2, 4), (16, 4, 4)],
)
def test_devices_fill_nodes(ranks: int, nodes: int, each: int) -> None:
    layout = allocation().layout(make_spec(workload="tiny", devices=ranks))
    assert (len(layout.nodes), layout.processes_per_node, layout.devices_per_node) == (nodes, each, each)


@pytest.mark.parametrize(
    ("ranks", "tasks", "nodes", "each"),
    [(1, 1, 1, 1), (2, 1, 2, 1), (4, 1, 4, 1), (8, 1, 4, 2), (32, 1, 4, 8), (4, 2, 2, 2), (2, 2, 1, 2)],
)
def test_cpu_runs_follow_the_tasks_and_then_spread(ranks: int, tasks: int, nodes: int, each: int) -> None:
    layout = allocation(tasks_per_node=tasks).layout(make_spec(workload="tiny", device="cpu", devices=ranks))
    assert (len(layout.nodes), layout.processes_per_node, layout.devices_per_node) == (nodes, each, 0)


def test_simulated_runs_take_one_process_and_no_device() -> None:
    layout = allocation().layout(make_spec(devices=64))
    assert (layout.nodes, layout.processes_per_node, layout.devices_per_node) == (("n1",), 1, 0)


@pytest.mark.parametrize(
    ("settings", "ranks", "fits"),
    [
        ({"device": "cuda"}, 6, "1 to 4, 8, 12, 16"),
        ({"device": "auto"}, 20, "1 to 4, 8, 12, 16"),
        ({"device": "cpu"}, 3, None),
        ({"device": "cpu"}, 5, "1, 2, 3, 4"),
        ({"device": "cpu"}, 36, "1, 2, 3, 4"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_does(settings: dict[str, str], ranks: int, fits: str | None) -> None:
    spec = make_spec(workload="tiny", devices=ranks, **settings)
    if fits is None:
        assert len(allocation().layout(spec).nodes) == ranks
        return
    with pytest.raises(InputError, match="does not fit the Slurm allocation 7") as caught:
        allocation().layout(spec)
    assert caught.value.problems[0].valid == fits
    assert (caught.value.next_step or "").startswith("salloc --nodes=")


def test_many_nodes_are_not_all_listed() -> None:
    with pytest.raises(InputError) as caught:
        allocation(nodes=100).layout(make_spec(workload="tiny", devices=401))
    assert caught.value.problems[0].valid == "1 to 4, 8, 12, 16, ..., 400"


def test_a_flood_of_processes_on_a_node_is_refused() -> None:
    spec = make_spec(workload="tiny", devices=4, loader=Loader(workers=64, place="host"))
    with pytest.raises(InputError, match="260 processes on a node"):
        AllocationLauncher(allocation()).admit(spec)


# -- where we are ---------------------------------------------------------------------------------------------


def test_a_machine_of_ones_own_and_a_pod() -> None:
    assert whereabouts({"PATH": ""}).message == ""
    assert type(whereabouts({"PATH": ""}).launcher) is LocalLauncher
    pod = whereabouts({"PATH": "", "KUBERNETES_SERVICE_HOST": "10.0.0.1"})
    assert type(pod.launcher) is LocalLauncher
    assert pod.message == "inside a Kubernetes pod: runs start in this pod"


def test_a_step_of_our_own_and_one_of_several_tasks_stay_where_they_are() -> None:
    inside = {"PATH": "", "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]"}
    assert type(whereabouts({**inside, MARK: "abc"}).launcher) is LocalLauncher
    several = whereabouts({**inside, "SLURM_STEP_NUM_TASKS": "2"})
    assert type(several.launcher) is LocalLauncher
    assert "one of 2 tasks" in several.message


def test_an_allocation_that_cannot_be_asked_for() -> None:
    """As in a container without Slurm's commands: what is here is used, and that is said."""
    found = whereabouts({"PATH": "/nowhere", "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]"})
    assert type(found.launcher) is LocalLauncher
    assert re.fullmatch(r"inside Slurm job 7, but scontrol .*: runs start on this machine only", found.message)
