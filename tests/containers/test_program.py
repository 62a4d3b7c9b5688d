"""A person's own program in a container: the worker is mounted into it, and the program finds its files."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

import rootfs
from conftest import HANG_S
from steelyard.derive.record import derive
from steelyard.inputs.site import Container, Mount, Place, Pool, Site
from steelyard.inputs.study import expand, load_study
from steelyard.launch.plan import make_campaign
from steelyard.launch.slurm.scheduler import Slurm
from steelyard.results.store import ResultFolder

PROGRAMS = Path(rootfs.__file__).parent / "programs"
STUDY = """
name = "inside"
repeats = 1
[run]
time_limit_s = 300
devices = 2
[run.program]
command = "python3 -m torch.distributed.run --standalone plain.py --batch {batch} --steps 20"
parameters.batch = 8
"""


@pytest.mark.full("a root file system, which debootstrap downloads")
def test_a_program_in_a_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = rootfs.make(rootfs.default_cache())
    home = tmp_path / "home"
    home.mkdir()
    for name in ("plain.py", "truth.py"):
        shutil.copy(PROGRAMS / name, home)
    (home / "study.toml").write_text(STUDY, encoding="utf-8")
    monkeypatch.chdir(home)
    own = platform.machine()
    container = Container(
        runtime="podman",
        images={own: str(made.root)},
        options=(*rootfs.PODMAN_OPTIONS, *made.storage, "--network=none"),
        mounts=tuple(Mount(source=source, target=target) for source, target in rootfs.mounts()),
    )
    pool = Pool(architecture=own, devices_per_node=2, device="cpu")
    site = Site(name="here", scheduler="slurm", pools={"cpu": pool}, container=container, python="python3")
    study = expand(load_study(home / "study.toml"))
    campaign = make_campaign(ResultFolder(tmp_path / "results"), study, Place(site, "cpu"), Slurm())
    assert campaign is not None
    job = campaign.job_folder(campaign.plan.jobs[0])
    variables = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
    subprocess.run(["bash", str(job / "job.sh"), "0"], env=variables, check=True, timeout=2 * HANG_S)
    raw = campaign.raw(study.runs[0].run_id)
    record = derive(raw)
    log = (raw / "worker.log").read_text(encoding="utf-8")
    assert record.status.code == "completed", (record.status, log)
    assert record.wrapped is not None
    assert (record.wrapped.level, record.wrapped.world, record.wrapped.steps) == (2, 2, 20), log
    assert record.spec.batch == 8
