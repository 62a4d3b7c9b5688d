"""Shared by the tests: a job run through the real worker and derivation, without starting a process."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

from steelyard.contracts.observe import SPEC_FILE
from steelyard.contracts.spec import RunSpec
from steelyard.derive.record import derive
from steelyard.results.store import record_text
from steelyard.worker.engine.run import run_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from steelyard.contracts.record import RunRecord

# The same examples every time: what fails here fails everywhere, and nothing passes by luck.
hypothesis.settings.register_profile("fixed", derandomize=True)
hypothesis.settings.load_profile("fixed")

FOLDERS = ("unit", "heavy", "process", "torch", "slurm", "containers", "kubernetes", "browser")


def _folder(path: Path) -> str:
    """The folder of tests/ that holds a path: the marker of its tests."""
    below = path.relative_to(Path(__file__).parent).parts
    return below[0] if below else ""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """`pytest -m unit` does not import the other folders: they need torch, and loading it takes seconds."""
    wanted = config.getoption("markexpr")
    folder = _folder(collection_path)
    return True if wanted in FOLDERS and folder in FOLDERS and folder != wanted else None


def pytest_itemcollected(item: pytest.Item) -> None:
    """Give every test the marker of its folder."""
    item.add_marker(_folder(item.path))


@pytest.fixture(autouse=True)
def _without_torch(request: pytest.FixtureRequest) -> Iterator[None]:
    """A unit test that loads torch is in the wrong folder."""
    before = "torch" in sys.modules
    yield
    assert before or "torch" not in sys.modules or _folder(request.node.path) != "unit", "this loads torch"


def make_spec(**settings: Any) -> RunSpec:
    return RunSpec(run_id="run", configuration="configuration", **settings)


def write_study(path: Path, name: str = "s", **run: Any) -> Path:
    """A small simulated study: two cells, six repeats."""
    lines = [f'name = "{name}"', "repeats = 6", "[run]", *(f"{k} = {json.dumps(v)}" for k, v in run.items())]
    lines += ["crosscheck_steps = 0", "[run.budget]", "min_steps = 20", "max_steps = 20", "min_seconds = 0.0"]
    path.write_text("\n".join([*lines, "[sweep]", "batch = [1, 2]", ""]))
    return path


@pytest.fixture
def simulate(tmp_path: Path) -> Callable[[RunSpec], RunRecord]:
    """Runs a spec in `tmp_path` and derives its record."""

    def run(spec: RunSpec) -> RunRecord:
        (tmp_path / SPEC_FILE).write_text(record_text(spec), encoding="utf-8")
        run_directory(tmp_path)
        return derive(tmp_path)

    return run


@pytest.fixture
def torch_as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a PyTorch run sets for its whole process is taken back: a worker ends after it, the tests go on."""
    import torch
    import torch.distributed as dist

    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    threads, cudnn = torch.get_num_threads(), torch.backends.cudnn
    precision, flags = torch.get_float32_matmul_precision(), (cudnn.benchmark, cudnn.allow_tf32)
    with torch.random.fork_rng(devices=[]):
        yield
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(precision)
    if torch.are_deterministic_algorithms_enabled():
        torch.use_deterministic_algorithms(mode=False)
    cudnn.benchmark, cudnn.allow_tf32 = flags
    if dist.is_initialized():
        dist.destroy_process_group()
