"""The checks of a site against a real Slurm: each trap is found, and nothing is queued."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Any

import pytest

from cluster import Cluster
from steelyard.inputs.site import Place, load_site
from steelyard.launch.site_check import checks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from steelyard.doctor.node import Check

OTHER = "aarch64" if platform.machine() == "x86_64" else "x86_64"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    limited = "PartitionName=short Nodes=ALL MaxTime=10 MaxNodes=2 State=UP"
    partitions = ("PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP", limited)
    with Cluster(tmp_path_factory.mktemp("slurm"), partitions=partitions) as running:
        yield running


def checked(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> dict[str, Check]:
    for name, value in cluster.variables.items():
        monkeypatch.setenv(name, value)
    site = load_site(cluster.site(**changes))
    return {check.name: check for check in checks(Place(site, next(iter(site.pools))))}


def test_a_site_that_is_right(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    found = checked(cluster, monkeypatch)
    assert [check for check in found.values() if check.verdict == "wrong"] == []
    assert found["partition"].verdict == "ok"


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"pools": {"cpu": {"partition": "no-such"}}}, "partition"),
        ({"limits": {"array_size": 5000}}, "array"),
        ({"pools": {"cpu": {"architecture": OTHER}}}, "architecture"),
        ({"pools": {"cpu": {"device": "cuda", "gpus": "gpu:a100"}}}, "devices"),
        ({"pools": {"cpu": {"device": "cuda", "gpus": "gpu", "devices_per_node": 8, "cpus_per_node": 8}}}, "devices"),
        ({"pools": {"cpu": {"partition": "short", "max_time_s": 86_400}}}, "time limit"),
        ({"pools": {"cpu": {"partition": "short", "max_nodes": 4, "max_time_s": 600}}}, "nodes"),
        ({"pools": {"cpu": {"memory_per_node_mib": 100_000}}}, "memory"),
    ],
)
def test_a_site_that_is_wrong(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], name: str
) -> None:
    wrong = [check for check in checked(cluster, monkeypatch, **changes).values() if check.verdict == "wrong"]
    assert any(name in check.name for check in wrong), wrong
    assert cluster.queue() == []
