"""Campaigns that somebody else made, or that somebody changed: read, and nothing else."""

from __future__ import annotations

import json
import os
import shutil
import stat
from typing import TYPE_CHECKING, Any

import pytest

from steelyard import nofollow
from steelyard.cli.main import main
from steelyard.errors import InputError, SteelyardError
from steelyard.launch import registry
from steelyard.launch.adopt import adopt, digest_of, find_takeovers
from steelyard.launch.campaign import TaskState
from steelyard.launch.follow import look
from steelyard.launch.plan import campaigns, make_campaign, under_way
from steelyard.launch.submit import cancel, resume, submit
from steelyard.results.store import ResultFolder
from test_campaign import Hand, alone, ended, lose_id, place, plan, records, sent, start, study

if TYPE_CHECKING:
    from pathlib import Path

    from steelyard.launch.campaign import Campaign


@pytest.fixture
def hand() -> Hand:
    return Hand()


@pytest.fixture
def folder(tmp_path: Path) -> ResultFolder:
    return ResultFolder(tmp_path / "results")


@pytest.fixture
def theirs(tmp_path: Path, hand: Hand) -> ResultFolder:
    """A results folder with a campaign whose runs have ended, copied from somebody."""
    made = sent(ResultFolder(tmp_path / "original"), alone(repeats=2), hand)
    start(made)
    shutil.copytree(tmp_path / "original", tmp_path / "copy")
    hand.submitted.clear()
    hand.usual = ended()
    return ResultFolder(tmp_path / "copy")


def state_of_files(root: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.lstat().st_mtime_ns, path.lstat().st_size) for path in root.rglob("*")}


class Nobody:
    """A scheduler that must not be asked."""

    def __call__(self, name: str) -> Any:
        raise AssertionError(f"{name} was asked")


def test_their_campaign_is_only_read(theirs: ResultFolder) -> None:
    before = state_of_files(theirs.path)
    now = look(theirs, "s", Nobody())
    assert (dict(now.totals), now.problems) == ({"not polled": 2}, [])
    assert list(now.foreign) == ["0001"]
    assert submit(theirs, "s", Nobody()).count == cancel(theirs, "s", Nobody()) == 0
    resume(theirs, alone(repeats=2), place({"account": "other"}), Nobody())
    assert state_of_files(theirs.path) == before


def test_an_unsent_job_of_theirs_is_not_sent(theirs: ResultFolder) -> None:
    for name in ("id", "trying"):
        (theirs.root / "campaigns" / "s" / "0001" / "jobs" / "000" / name).unlink()
    assert submit(theirs, "s", Nobody()).count == 0
    # Nor is it recovered as one of ours whose answer was lost.
    (theirs.root / "campaigns" / "s" / "0001" / "jobs" / "000" / "trying").touch()
    assert dict(look(theirs, "s", Nobody()).totals) == {"not polled": 2}


def test_what_they_submitted_counts_as_under_way(theirs: ResultFolder, hand: Hand) -> None:
    assert len(under_way(theirs, "s")) == 2
    assert make_campaign(theirs, alone(repeats=2), place(), hand) is None


def test_taking_over_does_what_was_shown(theirs: ResultFolder, hand: Hand, capsys: pytest.CaptureFixture[str]) -> None:
    before = state_of_files(theirs.path)
    assert main(["status", "s", "--adopt", "--results", str(theirs.path)]) == 0
    out = capsys.readouterr().out
    shown = find_takeovers(theirs, "s", hand)
    assert state_of_files(theirs.path) == before
    assert "collect 2 runs of jobs: 1" in out
    assert f"steelyard status s --adopt {digest_of(shown)}" in out
    assert main(["status", "s", "--adopt", "--json", "--results", str(theirs.path)]) == 0
    assert json.loads(capsys.readouterr().out)["adopt"] == digest_of(shown)
    (theirs.root / "campaigns" / "s" / "0001" / "jobs" / "000" / "id").write_text("2\n")
    with pytest.raises(InputError, match="is not what the folder has now"):
        adopt(theirs, "s", digest_of(shown), hand)
    assert adopt(theirs, "s", digest_of(find_takeovers(theirs, "s", hand)), hand) == 1
    assert dict(look(theirs, "s", hand).totals) == {"completed": 1, "failed": 1}
    assert find_takeovers(theirs, "s", hand) == []


def test_what_was_taken_over_is_never_sent(theirs: ResultFolder, hand: Hand) -> None:
    for name in ("id", "trying"):
        (theirs.root / "campaigns" / "s" / "0001" / "jobs" / "000" / name).unlink()
    (takeover,) = find_takeovers(theirs, "s", hand)
    assert (takeover.ids, takeover.unsent) == ({}, 2)
    adopt(theirs, "s", digest_of([takeover]), hand)
    assert submit(theirs, "s", hand).count == 0
    # The run that has not begun is withdrawn, and planned again with our own scripts.
    resume(theirs, alone(repeats=2), place(), hand)
    assert len(under_way(theirs, "s")) == 1
    assert hand.submitted == []


@pytest.mark.parametrize("text", ["--me", "1 2", "x", "\xff"])
def test_an_id_that_is_none_is_not_taken_over(theirs: ResultFolder, hand: Hand, text: str) -> None:
    (theirs.root / "campaigns" / "s" / "0001" / "jobs" / "000" / "id").write_bytes(text.encode("latin-1"))
    assert dict(look(theirs, "s", Nobody()).totals) == {"not polled": 2}
    with pytest.raises(SteelyardError, match="is not the id of a job"):
        find_takeovers(theirs, "s", hand)


# -- files that were changed


def test_ids_come_from_the_registry(folder: ResultFolder, hand: Hand) -> None:
    made = sent(folder, alone(repeats=1), hand)
    (made.path / "jobs" / "000" / "id").write_bytes(b"\xff--me\n")
    assert [campaign.job_id(made.plan.jobs[0]) for campaign in campaigns(folder, "s")] == ["1"]
    assert dict(look(folder, "s", hand).totals) == {"queued": 1}


def change(path: Path) -> None:
    path.write_text(path.read_text() + "\n")


@pytest.mark.parametrize("name", ["job.sh", "node.sh", "tasks", "specs", "worker", "spec.json", "added.py"])
def test_a_changed_file_is_not_sent(folder: ResultFolder, hand: Hand, name: str) -> None:
    made = plan(folder, alone(repeats=1), hand)
    (run,) = made.plan.jobs[0].tasks[0]
    path = {
        "worker": made.path / "worker" / "steelyard" / "errors.py",
        "spec.json": made.raw(run) / "spec.json",
        "added.py": made.path / "worker" / "torch.py",
    }.get(name, made.path / "jobs" / "000" / name)
    path.touch()
    change(path)
    with pytest.raises(SteelyardError, match="was changed"):
        submit(folder, "s", hand)
    assert hand.submitted == []


def test_a_script_of_another_version_is_not_sent(
    folder: ResultFolder, hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan(folder, alone(repeats=1), hand)
    monkeypatch.setattr(hand, "render", lambda *_: {"job.sh": "#!/bin/bash\n"})
    with pytest.raises(SteelyardError, match="this version writes it differently"):
        submit(folder, "s", hand)
    assert hand.submitted == []


def test_another_folder_in_the_place_of_ours_is_not_ours(folder: ResultFolder, hand: Hand) -> None:
    made = plan(folder, alone(repeats=1), hand)
    made.path.rename(made.path.parent / "aside")
    shutil.copytree(made.path.parent / "aside", made.path)
    assert submit(folder, "s", Nobody()).count == 0
    assert dict(look(folder, "s", Nobody()).totals) == {"not polled": 1}


def test_others_can_write_to_it(folder: ResultFolder, hand: Hand) -> None:
    made = sent(folder, alone(repeats=1), hand)
    made.path.chmod(0o775)
    now = look(folder, "s", Nobody())
    assert (dict(now.totals), len(now.problems)) == ({"unknown": 1}, 1)
    assert "is writable by others" in now.problems[0]
    with pytest.raises(SteelyardError, match="--shared"):
        submit(folder, "s", hand)
    assert dict(look(folder, "s", hand, shared=True).totals) == {"queued": 1}


@pytest.mark.parametrize(("above", "mode"), [(0, 0o2777), (1, 0o777), (2, 0o777)])
def test_others_can_put_another_in_its_place(folder: ResultFolder, hand: Hand, above: int, mode: int) -> None:
    made = sent(folder, alone(repeats=1), hand)
    exposed = made.path.parents[above]
    exposed.chmod(mode)
    assert f"{exposed} is writable by others" in look(folder, "s", Nobody()).problems[0]
    with pytest.raises(SteelyardError, match="--shared"):
        submit(folder, "s", hand)
    assert dict(look(folder, "s", hand, shared=True).totals) == {"queued": 1}
    # In such a folder everybody can rename only what is theirs.
    exposed.chmod(mode | stat.S_ISVTX)
    assert dict(look(folder, "s", hand).totals) == {"queued": 1}


def test_folders_above_that_somebody_else_made(folder: ResultFolder, hand: Hand, monkeypatch: Any) -> None:
    made = sent(folder, alone(repeats=1), hand)
    theirs, real = made.path.parent, nofollow.stat

    def stat_of(path: Path) -> os.stat_result:
        found = list(real(path))
        found[4] = 12345 if path == theirs else found[4]
        return os.stat_result(found)

    monkeypatch.setattr(nofollow, "stat", stat_of)
    assert f"{theirs} belongs to user 12345" in look(folder, "s", Nobody()).problems[0]


def test_nobody_else_can_write_whatever_the_umask(folder: ResultFolder, hand: Hand) -> None:
    before = os.umask(0o002)
    try:
        made = plan(folder, alone(repeats=1), hand)
    finally:
        os.umask(before)
    paths = [made.path, *made.path.rglob("*")]
    assert [path for path in paths if path.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH)] == []


def test_variables_of_the_site_are_for_its_user_alone(folder: ResultFolder, hand: Hand) -> None:
    made = plan(folder, alone(repeats=1), hand, place(environment={"A": "a-value-of-the-site"}))
    holders = [path for path in made.path.rglob("*") if path.is_file() and b"a-value-of" in path.read_bytes()]
    assert {path.name for path in holders} == {"plan.json", "site.json", "node.sh"}
    assert {path.stat().st_mode & 0o077 for path in holders} == {0}


def test_code_that_was_changed_does_not_run(folder: ResultFolder, hand: Hand) -> None:
    """Both a task that makes each run by itself, and one that makes all in one process."""
    for number, expansion in enumerate((alone(repeats=1), study(repeats=1, batch=3))):
        home = ResultFolder(folder.path / str(number))
        made = sent(home, expansion, hand)
        (made.path / "worker" / "steelyard" / "worker" / "__main__.py").write_text("raise SystemExit(0)\n")
        start_with_output(made)
        hand.usual = ended()
        look(home, "s", hand)
        (record,) = records(home).values()
        assert record.status.code == "failed"
        assert "files of the campaign were changed after it was planned" in record.status.reason


def start_with_output(made: Campaign) -> None:
    done = start(made)
    made.output_file(made.plan.jobs[0], 0).write_text(done.stdout + done.stderr)


def test_a_job_notices_what_is_changed_between_its_runs(folder: ResultFolder, hand: Hand, tmp_path: Path) -> None:
    made = sent(folder, alone(repeats=2), hand, place(limits={"max_submitted": 1}))
    first, second = made.plan.jobs[0].tasks[0]
    node = made.path / "jobs" / "000" / "node.sh"
    # Bash reads a script as it goes on: the next run has another file.
    change_it = f"sed '2i touch {tmp_path}/ran' {node} >{node}.new && mv {node}.new {node}"
    job = made.path / "jobs" / "000" / "job.sh"
    job.write_text(job.read_text().replace("  rm -rf ", f"  {change_it}\n  rm -rf "))
    done = start(made)
    assert (done.returncode, (tmp_path / "ran").exists()) == (78, False)
    lines = made.done_file(made.plan.jobs[0], 0).read_text().splitlines()
    assert [line.split()[0] for line in lines] == [first]
    assert not (made.raw(second) / "lease").exists()


@pytest.mark.parametrize("name", ["node.sh", "tasks"])
def test_a_job_notices_that_its_files_were_changed(folder: ResultFolder, hand: Hand, name: str) -> None:
    made = sent(folder, alone(repeats=1), hand)
    change(made.path / "jobs" / "000" / name)
    assert start(made).returncode == 78


def test_a_run_leaves_the_code_as_it_is(folder: ResultFolder, hand: Hand) -> None:
    made = sent(folder, alone(repeats=2), hand)
    assert start(made, task=0).returncode == 0
    assert start(made, task=1).returncode == 0
    assert list(made.path.rglob("__pycache__")) == []
    hand.usual = ended()
    assert dict(look(folder, "s", hand).totals) == {"completed": 2}


# -- links and damaged files


def test_nothing_is_appended_through_a_link(folder: ResultFolder, hand: Hand, tmp_path: Path) -> None:
    made = sent(folder, alone(repeats=1), hand)
    start(made)
    victim = tmp_path / "bashrc"
    victim.write_text("mine\n")
    (made.path / "ended.jsonl").symlink_to(victim)
    hand.usual = ended()
    now = look(folder, "s", hand)
    assert any("ended.jsonl is a link" in problem for problem in now.problems)
    assert victim.read_text() == "mine\n"


def test_nothing_is_removed_through_a_link(folder: ResultFolder, hand: Hand, tmp_path: Path) -> None:
    made = sent(folder, study(search={"first": 1, "last": 4}), hand)
    victim = tmp_path / "victim"
    (made.path / "runs").rename(victim)
    (made.path / "runs").symlink_to(victim)
    before = state_of_files(victim)
    hand.usual = ended()
    now = look(folder, "s", hand)
    assert any("runs is a link" in problem for problem in now.problems)
    assert state_of_files(victim) == before


def test_one_bad_campaign_hinders_no_other(folder: ResultFolder, hand: Hand, tmp_path: Path) -> None:
    made = sent(folder, alone(repeats=2), hand)
    start(made)
    start(made, task=1)
    (made.path.parent / "0007").symlink_to(tmp_path)
    (made.raw(made.plan.jobs[0].tasks[0][0]) / "lease").unlink()
    (made.raw(made.plan.jobs[0].tasks[0][0]) / "lease").symlink_to(tmp_path)
    made.done_file(made.plan.jobs[0], 0).unlink()
    hand.usual = ended()
    now = look(folder, "s", hand)
    assert (dict(now.totals), len(now.problems)) == ({"completed": 1, "ended": 1}, 2)


def test_a_link_in_a_task_that_the_scheduler_lost_hinders_no_other(
    folder: ResultFolder, hand: Hand, tmp_path: Path
) -> None:
    made = sent(folder, alone(repeats=2), hand)
    start(made, task=1)
    raw = made.raw(made.plan.jobs[0].tasks[0][0])
    raw.rename(tmp_path / "moved")
    raw.symlink_to(tmp_path / "moved")
    hand.said = {(0, 0): TaskState("unknown"), (0, 1): ended()}
    assert dict(look(folder, "s", hand).totals) == {"completed": 1, "unknown": 1}


@pytest.mark.parametrize("text", ["[" * 100_000, '{"0.0.unknown": [Infinity, Infinity]}', '{"0.0.ended": [1e308, 1]}'])
def test_damaged_notes_are_ignored(folder: ResultFolder, hand: Hand, text: str) -> None:
    made = sent(folder, alone(repeats=1), hand)
    for name in ("unsettled.json", "ended.jsonl", "study.json"):
        (made.path / name).write_text(text + "\n")
    hand.usual = ended("failed", "gone", "GONE")
    assert dict(look(folder, "s", hand).totals) == {"failed": 1}
    json.loads((folder.path / "runs" / "s" / made.plan.jobs[0].tasks[0][0] / "record.json").read_text())


# -- the registry


def test_nothing_is_sent_that_cannot_be_written_down(
    folder: ResultFolder, hand: Hand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with pytest.raises(SteelyardError, match="XDG_STATE_HOME"):
        plan(folder, alone(repeats=1), hand)
    assert not (folder.path / "campaigns").exists()


def test_the_registry_is_private_and_ends_with_the_campaign(
    folder: ResultFolder, hand: Hand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    made = sent(folder, alone(repeats=1), hand)
    home = tmp_path / "state" / "steelyard" / "campaigns"
    assert {path.stat().st_mode & 0o077 for path in (home, *home.rglob("*"))} == {0}
    start(made)
    hand.usual = ended()
    look(folder, "s", hand)
    assert list(home.iterdir()) == []
    home.chmod(0o777)
    with pytest.raises(SteelyardError, match="others can write"):
        registry.prepare()


def test_a_lost_answer_is_found_only_for_ours(folder: ResultFolder, hand: Hand) -> None:
    made = sent(folder, alone(repeats=1), hand)
    lose_id(made, made.plan.jobs[0])
    look(folder, "s", hand)
    assert made.job_id(made.plan.jobs[0]) == "1"
