"""The search for the largest batch that fits: exact on its candidates, bounded in tries, and the same in bash."""

from __future__ import annotations

import dataclasses
import json
import random
import re
import sys
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from steelyard.analysis.batch import batch_curve
from steelyard.analysis.select import select
from steelyard.cli.main import main
from steelyard.contracts.observe import LEASE_FILE, Launch
from steelyard.errors import InputError
from steelyard.inputs.cost import cost
from steelyard.inputs.search import Search, SearchState, next_try, remaining, search_state
from steelyard.inputs.study import Study, expand, load_study
from steelyard.launch.local import LocalLauncher
from steelyard.launch.scripts.task import read_done
from steelyard.launch.search import search_all, search_result, tried
from steelyard.results.store import ResultFolder
from steelyard.worker.engine.run import run_directory
from test_script import SHORT, by_hand, make_campaign

if TYPE_CHECKING:
    from collections.abc import Callable

    from steelyard.contracts.spec import RunSpec
    from steelyard.inputs.search import SearchGroup, Verdict
    from steelyard.inputs.study import Expansion

DOCS = Path(__file__).parents[2] / "docs"
BYTES_PER_SAMPLE = 1e6


class InProcess:
    """The real worker without a process of its own: hundreds of searches in seconds."""

    name = "in-process"

    def run(self, spec: RunSpec, raw: Path, tick: Callable[[], None]) -> Launch:
        tick()
        status = run_directory(raw)
        code = 0 if status.code == "completed" else 1
        return Launch(launcher=self.name, host="h", command=(), started_at="", wall_s=0.0, exit_code=code)


class Quiet:
    """Nobody watches, but for what was begun."""

    def __init__(self) -> None:
        self.batches: list[int] = []

    def begin(self, spec: RunSpec, done: int, total: int) -> None:
        assert done < total
        self.batches.append(spec.batch)

    def tick(self, raw: Path) -> None:
        pass

    def end(self, record: Any, done: int, total: int) -> None:
        assert done <= total


def study_of(limit_batch: float, search: Search, name: str = "s") -> Expansion:
    """A simulated device whose memory holds `limit_batch` samples."""
    memory = {"limit_bytes": (limit_batch + 0.5) * BYTES_PER_SAMPLE, "bytes_per_sample": BYTES_PER_SAMPLE}
    run = {"budget": SHORT, "crosscheck_steps": 0, "energy": {"watch": False}, "sim": {"memory": memory}}
    return expand(Study(name=name, run=run, search=search))


def largest(batches: tuple[int, ...], limit: int) -> int | None:
    return max((batch for batch in batches if batch <= limit), default=None)


# -- which are tried


def test_the_candidates() -> None:
    batches = Search(last=64).batches
    assert batches[:16] == tuple(range(1, 17))
    assert batches[16:] == (18, 20, 22, 24, 26, 28, 30, 32, 36, 40, 44, 48, 52, 56, 60, 64)
    assert Search(first=3, last=20, per_octave=1).batches == (3, 4, 8, 16, 20)
    assert Search(first=7, last=7).batches == (7,)
    most = Search(last=10**9, per_octave=64).batches
    assert len(most) < 2000
    assert max(b / a for a, b in pairwise(most[64:])) <= 1 + 1 / 64
    with pytest.raises(ValueError, match="first"):
        Search(first=9, last=8)


def test_every_truth_of_many_searches_is_found_within_the_bound() -> None:
    chance = random.Random(1)
    for _ in range(400):
        first = chance.choice([1, 2, 3, 8, 10, 100])
        last = first + int(2 ** chance.uniform(0, 20))
        search = Search(first=first, last=last, per_octave=chance.choice([1, 2, 3, 8, 16, 64]))
        group = expand(Study(name="s", search=search)).searches[0] if last < 200 else None
        batches = search.batches
        limit = int(2 ** chance.uniform(0, 22))
        known, tries = seek(batches, limit)
        assert largest(batches, limit) == (None if known.low < 0 else batches[known.low])
        doublings = (last / first - 1).__ceil__().bit_length() + 1
        assert tries <= doublings + search.per_octave.bit_length() + 1
        assert group is None or tries <= group.most_tries


def seek(batches: tuple[int, ...], limit: int) -> tuple[SearchState, int]:
    known, tries = SearchState(-1, len(batches)), 0
    while (index := next_try(batches, known)) is not None:
        assert known.low < index < known.high
        fits = batches[index] <= limit
        known = dataclasses.replace(known, low=index) if fits else dataclasses.replace(known, high=index)
        tries += 1
    return known, tries


def test_a_search_that_was_broken_off_goes_on_with_what_is_open() -> None:
    group = expand(Study(name="s", search=Search(last=16))).searches[0]

    def known(**verdicts: Verdict) -> SearchState:
        return search_state(group, lambda spec: verdicts.get(f"b{spec.batch}"))

    assert remaining(group, known()) == group.runs
    assert [spec.batch for spec in remaining(group, known(b4="fits", b8="out of memory"))] == [5, 6, 7]
    assert remaining(group, known(b4="fits", b5="out of memory")) == ()
    # What failed below what fits does not matter; where the answer is open it ends the search.
    assert known(b2="failed", b4="fits").failed is None
    ended = known(b4="fits", b6="failed", b8="out of memory")
    assert ended.over
    assert remaining(group, ended) == ()
    # Chance let a larger one fit: it fits.
    assert known(b4="out of memory", b6="fits").low == 5


# -- in a study


def test_a_study_has_a_search_for_each_combination() -> None:
    study = Study(name="s", search=Search(last=8), sweep={"accumulation": (1, 2)}, run={"workload": "sim"})
    expansion = expand(study)
    assert expansion.runs == ()
    assert len(expansion.searches) == 2
    for group in expansion.searches:
        assert [spec.batch for spec in group.runs] == list(range(1, 9))
        assert len({spec.accumulation for spec in group.runs}) == 1
        assert {spec.repeat for spec in group.runs} == {0}
    # A cell is what its settings are, however it came about.
    plain = expand(Study(name="s", repeats=1, sweep={"batch": (4,), "accumulation": (2,)}))
    assert plain.runs[0] in [spec for group in expansion.searches for spec in group.runs]
    hours = cost(expansion).device_hours
    assert hours == pytest.approx(sum(group.most_tries for group in expansion.searches) * 2 * 240 / 3600)


@pytest.mark.parametrize("table", ["run", "sweep"])
def test_a_search_leaves_the_batch_to_itself(table: str) -> None:
    settings: dict[str, Any] = {table: {"batch": 4 if table == "run" else (4,)}}
    with pytest.raises(InputError, match=rf"{table}\.batch: the search sets it"):
        expand(Study(name="s", search=Search(), **settings))


def test_a_search_too_large_for_the_study_is_refused() -> None:
    with pytest.raises(InputError, match="1,119,888 runs"):
        expand(Study(name="s", search=Search(), sweep={"accumulation": tuple(range(1, 10_000))}))


# -- here


def test_the_found_batch_is_the_true_one(tmp_path: Path) -> None:
    """Through the real worker, its records and their statuses; the simulated device's limit is the truth."""
    chance = random.Random(7)
    folder = ResultFolder(tmp_path)
    for number in range(60):
        per_octave = chance.choice([1, 4, 8])
        search = Search(first=chance.choice([1, 1, 3, 16]), last=chance.choice([64, 1000, 4096]), per_octave=per_octave)
        limit = int(2 ** chance.uniform(-1, 12.5))
        expansion = study_of(limit, search, f"s{number}")
        watcher = Quiet()
        search_all(folder, expansion, InProcess(), watcher)
        result = search_result(folder, expansion.searches[0])
        batches = search.batches
        assert result.known.over
        assert result.largest_fitting == largest(batches, limit)
        assert result.smallest_out_of_memory == min((batch for batch in batches if batch > limit), default=None)
        assert len(watcher.batches) == len(set(watcher.batches)) == result.tried <= expansion.searches[0].most_tries
        if result.largest_fitting is not None and number % 20 == 0:
            curve = batch_curve(select(folder, f"s{number}"))
            assert curve.largest_fitting == result.largest_fitting
            assert curve.smallest_out_of_memory == result.smallest_out_of_memory


class Stopped(InProcess):
    """Ends us before the third run."""

    def __init__(self) -> None:
        self.runs = 0

    def run(self, spec: RunSpec, raw: Path, tick: Callable[[], None]) -> Launch:
        self.runs += 1
        if self.runs == 3:
            raise KeyboardInterrupt
        return super().run(spec, raw, tick)


def test_a_search_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    folder, expansion = ResultFolder(tmp_path), study_of(21, Search(last=64))
    with pytest.raises(KeyboardInterrupt):
        search_all(folder, expansion, Stopped(), Quiet())
    watcher = Quiet()
    outcome = search_all(folder, expansion, InProcess(), watcher)
    assert outcome.skipped == 2
    assert not set(watcher.batches) & {1, 2}
    assert search_result(folder, expansion.searches[0]).largest_fitting == 20
    assert search_all(folder, expansion, InProcess(), watcher).made == ()


OWN = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, data):
        if len(data) > {limit}:
            raise {error}
        return self.layer(data)

def batch(samples, generator):
    return torch.randn(samples, 4, generator=generator), torch.zeros(samples, 1)

def build():
    return Model(), nn.functional.mse_loss, lambda parameters: torch.optim.SGD(parameters, lr=0.1), batch
"""


def own_study(tmp_path: Path, error: str) -> Path:
    (tmp_path / "my.py").write_text(OWN.format(limit=20, error=error))
    file = tmp_path / "own.toml"
    file.write_text(
        'name = "own"\n[run]\nworkload = "./my.py:build"\ndevice = "cpu"\ncrosscheck_steps = 0\n'
        "budget = { min_steps = 5, max_steps = 5, min_seconds = 0.0 }\n"
        "[search]\nfirst = 16\nlast = 64\nper_octave = 2\n"
    )
    return file


@pytest.mark.full("takes 20 s: every try starts torch")
def test_memory_that_torch_says_is_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = own_study(tmp_path, 'torch.OutOfMemoryError("tried to allocate too much")')
    assert main(["study", str(file), "--results", str(tmp_path / "r"), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)["searches"]
    assert [(s["largest_fitting"], s["smallest_out_of_memory"], s["tried"]) for s in shown] == [(16, 24, 3)]


def test_another_failure_ends_the_search_and_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = own_study(tmp_path, 'ValueError("too many")')
    words = ["study", str(file), "--results", str(tmp_path / "r")]
    assert main([*words, "--json"]) == 1
    shown = json.loads(capsys.readouterr().out)["searches"][0]
    assert (shown["largest_fitting"], shown["smallest_out_of_memory"], shown["tried"]) == (16, None, 2)
    assert shown["ended_by"].startswith("my.build-")
    # It stays ended until somebody sets the failure aside.
    assert main(words) == 1
    text = capsys.readouterr().out
    assert "The search ended early: " in text
    assert f"steelyard show {shown['ended_by']}" in text
    # A command is not wrapped: it is pasted.
    assert max(len(entry) for entry in text.splitlines() if "steelyard " not in entry) <= 80


# -- in job.sh


@pytest.mark.parametrize("limit", [0, 1, 5, 37, 64, 100])
def test_a_task_searches_by_itself(tmp_path: Path, limit: int) -> None:
    """The script with the real worker: the same answer by the same tries."""
    expansion = study_of(limit, Search(last=64, per_octave=4))
    group = expansion.searches[0]
    campaign, job = make_campaign(tmp_path / "a b'\n", [group.runs], "search")
    done = by_hand(campaign, job)
    assert done.returncode == 0, done.stderr
    batches = tuple(spec.batch for spec in group.runs)
    wanted = largest(batches, limit)
    end = "no batch is known to fit" if wanted is None else f"largest batch known to fit: {wanted}"
    assert done.stdout.splitlines()[-1] == end
    ids = {spec.run_id: spec.batch for spec in group.runs}
    here = Quiet()
    search_all(ResultFolder(tmp_path / "here"), expansion, InProcess(), here)
    assert [ids[entry.run_id] for entry in read_done(campaign.done_file(job, 0))] == here.batches
    untried = [spec for spec in group.runs if spec.batch not in here.batches]
    assert not any((campaign.raw(spec.run_id) / LEASE_FILE).exists() for spec in untried)


STUB = """#!/bin/bash
# A worker that knows its limit: it reads its batch, and ends as the real one would.
batch=$(sed -n 's/^ "batch": \\([0-9]*\\),$/\\1/p' "${@: -1}"/spec.json)
((batch <= LIMIT)) && exit 0
WORD
exit CODE
"""


def stub_campaign(tmp_path: Path, group: SearchGroup, limit: int, word: str, code: int = 1, **job: Any) -> Any:
    stub = tmp_path / "stub"
    stub.write_text(STUB.replace("LIMIT", str(limit)).replace("WORD", word).replace("CODE", str(code)))
    stub.chmod(0o755)
    return make_campaign(tmp_path / "c", [group.runs], "search", python=str(stub), **job)


SAYS_MEMORY = """echo '{"kind": "status", "code": "out_of_memory", "reason": ""}' >"${@: -1}"/events-00003.jsonl"""


def test_bash_tries_what_python_would(tmp_path: Path) -> None:
    chance = random.Random(3)
    for number in range(12):
        search = Search(
            first=chance.choice([1, 3, 16, 100]), last=chance.choice([100, 5000]), per_octave=chance.choice([1, 3, 8])
        )
        limit = int(2 ** chance.uniform(0, 13))
        group = expand(Study(name="s", search=search)).searches[0]
        home = tmp_path / str(number)
        home.mkdir()
        campaign, job = stub_campaign(home, group, limit, SAYS_MEMORY)
        done = by_hand(campaign, job)
        _, tries = seek(search.batches, limit)
        wanted = largest(search.batches, limit)
        assert f"fit: {wanted}" in done.stdout if wanted is not None else "no batch" in done.stdout
        assert len(list(read_done(campaign.done_file(job, 0)))) == tries


def test_a_task_ends_its_search_at_another_failure_without_failing_itself(tmp_path: Path) -> None:
    group = study_of(0, Search(last=64)).searches[0]
    campaign, job = stub_campaign(tmp_path, group, 5, "echo 'no driver'", code=3)
    done = by_hand(campaign, job)
    assert done.returncode == 0
    assert "batch 8: failed with exit code 3, not for lack of memory: the search ends here" in done.stdout
    assert done.stdout.splitlines()[-1] == "largest batch known to fit: 4"


def test_a_task_begins_no_run_that_its_time_is_too_short_for(tmp_path: Path) -> None:
    """The scheduler would end it at its time limit, which ends the search; so the next task goes on with it."""
    group = study_of(0, Search(last=64)).searches[0]
    campaign, job = stub_campaign(tmp_path, group, 5, SAYS_MEMORY, run_limit_s=60, task_limit_s=60)
    done = by_hand(campaign, job)
    assert "run the same command again to continue" in done.stdout
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "largest batch known to fit: 1")
    assert len(list(read_done(campaign.done_file(job, 0)))) == 1


@pytest.mark.parametrize(
    "word",
    [
        "echo 'slurmstepd: error: Detected 1 oom-kill event(s) in StepId=7.0'; kill -KILL $$",
        "echo 'slurmstepd: error: Step 7.0 exceeded memory limit (9 > 8), being killed'; kill -KILL $$",
        "echo \"terminate called after throwing an instance of 'std::bad_alloc'\"; kill -ABRT $$",
    ],
)
def test_memory_of_the_host_is_memory_too(tmp_path: Path, word: str) -> None:
    group = study_of(0, Search(last=16, per_octave=2)).searches[0]
    campaign, job = stub_campaign(tmp_path, group, 3, word)
    assert by_hand(campaign, job).stdout.splitlines()[-1] == "largest batch known to fit: 3"


# -- documents


def test_the_page_tells_what_happens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (DOCS / "batch-search.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```(?:toml|console)?\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("STEELYARD_RESULTS", raising=False)
    Path("largest.toml").write_text(blocks[0])
    assert main(["study", "largest.toml"]) == 0
    assert "$ steelyard study largest.toml\n" + capsys.readouterr().out == blocks[1]
    group = expand(load_study(Path("largest.toml"))).searches[0]
    assert f"plus the halvings of one doubling, here {group.most_tries}" in page
    assert main(["study", "largest.toml", "--dry-run"]) == 0
    assert re.search(rf"1 to 4096 +{group.most_tries}\n", capsys.readouterr().out)
    records = tried(ResultFolder(Path("steelyard-results")), [group])
    assert [record.spec.batch for record in records] == [1, 2, 4, 8, 16, 32, 64, 80, 88, 96, 128]
    assert main(["batch", "largest", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["curves"][0]["largest_fitting"] == 80


def test_the_launcher_of_this_machine_searches_too(tmp_path: Path) -> None:
    folder, expansion = ResultFolder(tmp_path), study_of(6, Search(last=16, per_octave=4))
    search_all(folder, expansion, LocalLauncher(), Quiet())
    result = search_result(folder, expansion.searches[0])
    assert (result.largest_fitting, result.smallest_out_of_memory) == (6, 7)
    assert sys.executable in tried(folder, expansion.searches)[0].launch.command  # type: ignore[union-attr]
