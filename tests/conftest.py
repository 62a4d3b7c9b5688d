"""Shared by the tests: a job run through the real worker and derivation, without starting a process."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache
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
    from collections.abc import Iterator

    from steelyard.contracts.record import RunRecord

# The same examples every time: what fails here fails everywhere, and nothing passes by luck. No limit of time for one
# example: a busy machine is no fault.
hypothesis.settings.register_profile(
    "fixed", derandomize=True, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("fixed")

HANG_S = 300.0
"""A wait in a test gives up after this time. It ends a hang and judges nothing: on a busy machine all takes longer."""
Within = Callable[[float], AbstractContextManager[None]]
FOLDERS = ("unit", "heavy", "process", "torch", "slurm", "containers", "kubernetes", "browser")
MOSTLY_FULL = ("slurm", "browser")
"""Folders with few tests in the gate: the ones that carry the mark `gate`."""


def _folder(path: Path) -> str:
    """The folder of tests/ that holds a path: the marker of its tests."""
    below = path.relative_to(Path(__file__).parent).parts
    return below[0] if below else ""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """`pytest -m unit` does not import the other folders: they need torch, and loading it takes seconds."""
    wanted = config.getoption("markexpr")
    folder = _folder(collection_path)
    return True if wanted in FOLDERS and folder in FOLDERS and folder != wanted else None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--judge-times", action="store_true", help="fail if something took too long (not in the gate)")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Give every test the marker of its folder, and its place: in the gate, or only in the full run."""
    folder = _folder(item.path)
    item.add_marker(folder)
    if "within" in getattr(item, "fixturenames", ()):
        item.add_marker("timed")
    if folder in MOSTLY_FULL and not item.get_closest_marker("gate"):
        item.add_marker(pytest.mark.full("servers that take their time"))


@pytest.fixture(autouse=True)
def _own_state(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is submitted in a test is not written down in the state directory of the person who runs it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))


@cache
def json_validator(verb: str) -> Any:
    """What checks a document that a verb prints with --json: another library than the one that made the schema."""
    import jsonschema

    from steelyard.terminal.shapes import output_schema

    schema = output_schema(verb)
    for part in schema["$defs"].values():
        # Readers must accept new fields; here a field without a description is a mistake.
        if "properties" in part:
            part.setdefault("additionalProperties", False)
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.fixture(autouse=True)
def _documents_have_their_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every document that any test prints in this process is of a shape that its verb declares."""
    from steelyard.terminal import document as printing
    from steelyard.terminal.shapes import DOCUMENTS

    def check(document: Any, indent: int | None = None) -> str:
        text = make(document, indent)
        verb = document["shape"].partition("/")[0]
        verb = verb if verb in DOCUMENTS else verb.partition("-")[0]
        json_validator("show" if verb == "error" else verb).validate(json.loads(text))
        return text

    make = printing.json_text
    monkeypatch.setattr(printing, "json_text", check)


@pytest.fixture(autouse=True)
def _without_torch(request: pytest.FixtureRequest) -> Iterator[None]:
    """A unit test that loads torch is in the wrong folder."""
    before = "torch" in sys.modules
    yield
    assert before or "torch" not in sys.modules or _folder(request.node.path) != "unit", "this loads torch"


@pytest.fixture
def within(request: pytest.FixtureRequest) -> Within:
    """`with within(2):` fails if the block needs more than 2 s of the processor; only judged with `--judge-times`."""

    @contextlib.contextmanager
    def limit(seconds: float) -> Iterator[None]:
        begin = time.process_time()
        yield
        assert not request.config.getoption("judge_times") or time.process_time() - begin < seconds

    return limit


def until(true: Callable[[], Any], what: str = "it") -> None:
    """Wait for something that another thread or process does."""
    begin = time.monotonic()
    while not true():
        assert time.monotonic() - begin < HANG_S, f"waited in vain for {what}"
        time.sleep(0.01)


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
    # Old releases have no attention kernel of cuDNN.
    every = ("flash", "mem_efficient", "math", "cudnn")
    kinds = [kind for kind in every if hasattr(torch.backends.cuda, f"enable_{kind}_sdp")]
    kernels = {kind: getattr(torch.backends.cuda, f"{kind}_sdp_enabled")() for kind in kinds}
    with torch.random.fork_rng(devices=[]):
        yield
    for kind, enabled in kernels.items():
        getattr(torch.backends.cuda, f"enable_{kind}_sdp")(enabled)
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(precision)
    if torch.are_deterministic_algorithms_enabled():
        torch.use_deterministic_algorithms(mode=False)
    cudnn.benchmark, cudnn.allow_tf32 = flags
    if dist.is_initialized():
        dist.destroy_process_group()
