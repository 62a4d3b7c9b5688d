"""Campaigns under a real Slurm, by the command line: the login process may die at any moment."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from cluster import Cluster, clean_environment
from conftest import HANG_S, write_study
from steelyard.contracts.observe import EVENTS_PATTERN
from steelyard.launch.plan import campaigns
from steelyard.results.store import ResultFolder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def login(cluster: Cluster, *words: str, cwd: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "steelyard.cli.main", *words]
    variables = {**clean_environment(), **cluster.variables}
    return subprocess.Popen(command, cwd=cwd, env=variables, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("slurm"), nodes=2) as found:
        yield found


def test_a_study_is_extended_at_the_site(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(
        'name = "s"\nrepeats = 1\n[run]\ncrosscheck_steps = 0\n[sweep]\n"sim.step_time_s" = [0.01, 20.0]\n'
    )
    for more in ((), ("--extend",)):
        process = login(cluster, "study", "s.toml", "--site", str(cluster.site()), "--wait", *more, cwd=tmp_path)
        out, err = process.communicate(timeout=HANG_S)
        assert process.returncode == 0, err
        assert "warning: 1 run too short" in err or more
    assert "Price: 5 more jobs" in err
    assert "sim.step_time_s=20.0  3 completed" in out
    assert "sim.step_time_s=20.0: 1 shorter job not counted" in out


def test_the_login_process_is_killed_at_any_moment(cluster: Cluster, tmp_path: Path) -> None:
    """The same command again and again under real Slurm: every run once, and nothing left in the queue."""
    write_study(tmp_path / "s.toml", time_limit_s=60.0)
    site = cluster.site(limits={"max_submitted": 4, "array_size": 2})
    words = ["study", "s.toml", "--site", str(site), "--wait"]
    chance = random.Random(7)
    for _ in range(8):
        process = login(cluster, *words, cwd=tmp_path)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=chance.uniform(0.3, 2.5))
        process.send_signal(signal.SIGKILL)
        process.communicate()
    process = login(cluster, *words, "--json", cwd=tmp_path)
    out, err = process.communicate(timeout=HANG_S)
    assert process.returncode == 0, err
    assert [cell["statuses"] for cell in json.loads(out)["configurations"]] == [{"completed": 6}, {"completed": 6}]
    folder = ResultFolder(tmp_path / "steelyard-results")
    assert len(list(folder.records("s"))) == 12
    assert not (folder.path / "superseded").exists()
    made = campaigns(folder, "s")
    files = [path for each in made for path in each.path.glob("jobs/*/*.done")]
    lines = [line.split()[0] for path in files for line in path.read_text().splitlines()]
    assert (len(lines), len(set(lines))) == (12, 12)
    for record in folder.records("s"):
        raw = folder.run_path(record.spec) / "raw"
        (events,) = raw.glob(EVENTS_PATTERN)
        assert sum(json.loads(line)["kind"] == "status" for line in events.read_text().splitlines()) == 1
    assert all((each.path / "collected").exists() for each in made)
    assert cluster.queue() == []


@pytest.mark.parametrize(
    ("name", "options", "runs"),
    [
        ("caraml", ("--part", "gpt-13b", "--devices", "1"), 1),
        ("site-acceptance", ("--part", "collectives"), 1),
    ],
)
def test_a_suite_runs_at_the_site(
    cluster: Cluster, tmp_path: Path, name: str, options: tuple[str, ...], runs: int
) -> None:
    words = ["suite", "run", name, "--size", "tiny", *options, "--site", str(cluster.site()), "--wait", "--json"]
    process = login(cluster, *words, cwd=tmp_path)
    out, err = process.communicate(timeout=HANG_S)
    assert process.returncode == 0, err
    (part,) = json.loads(out)["parts"].values()
    assert part["made"] == runs
    process = login(cluster, "suite", "report", name, "--size", "tiny", "--json", cwd=tmp_path)
    out, err = process.communicate(timeout=HANG_S)
    assert process.returncode == 0, err
    assert "1 of" in json.loads(out)["sections"][0]["answer"]


@pytest.mark.parametrize("name", ["nrp", "aces", "olivia"])
def test_a_whole_suite_is_planned_for_the_site(cluster: Cluster, tmp_path: Path, name: str) -> None:
    words = ["suite", "run", name, "--size", "tiny", "--site", str(cluster.site()), "--dry-run"]
    process = login(cluster, *words, cwd=tmp_path)
    out, err = process.communicate(timeout=HANG_S)
    assert process.returncode == 0, err
    assert "nothing submitted" in out
    assert cluster.queue() == []
