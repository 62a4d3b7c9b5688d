"""Somebody else's results folder, and one's own that others can write to: what a user would see go wrong.

Commands run as processes of their own, with stand-ins for Slurm and a Kubernetes API that writes requests down; the
tripwire (benchmarks/lib/tripwire.py) reports what they do outside of their task. The figure `foreign` tries hundreds of
folders; here is one for each defect that there was.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from conftest import HANG_S
from foreign_cases import change, evil_script, forge_manifest, forge_search, put, set_in
from foreign_folder import VERBS, Genuine, make
from foreign_places import git_case
from steelyard.cli import main as cli
from steelyard.cli.verb import make_parser

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TOKEN = "hf_" + "Ab3dE6gH1jK4mN7pQ0sT" * 2


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Genuine]:
    genuine = make(tmp_path_factory.mktemp("f") / "x")
    yield genuine
    genuine.close()


@pytest.fixture
def foreign(made: Genuine) -> Genuine:
    """The folder of somebody else."""
    made.restore(own=False)
    return made


@pytest.fixture
def own(made: Genuine) -> Genuine:
    """The user sent the campaigns, and somebody else can write to the folder."""
    made.restore(own=True)
    return made


def seen(genuine: Genuine, name: str, *, own: bool = False, cwd: str = "") -> list[str]:
    verb = VERBS[name]
    return genuine.sandbox.run(verb, genuine.words(verb), own=own, cwd=genuine.sandbox.work / cwd).wrong


def command(genuine: Genuine, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "steelyard.cli.main", *words, "--results", str(genuine.sandbox.results)]
    given = {**genuine.sandbox.variables, **variables}
    return subprocess.run(
        line, env=given, cwd=genuine.sandbox.work, capture_output=True, text=True, check=False, timeout=HANG_S
    )


def run_task(genuine: Genuine, task: int) -> None:
    script = ["bash", str(genuine.slurm / "jobs" / "000" / "job.sh"), str(task)]
    subprocess.run(script, env=genuine.sandbox.variables, cwd=genuine.slurm, capture_output=True, check=False)


def test_every_verb_that_takes_a_results_folder_is_tried() -> None:
    takes_one = {name for name in cli.VERBS if "--results" in make_parser(name).format_help()}
    # It only tries whether a folder of its own can be made there.
    takes_one.remove("doctor")
    assert {verb.words[0] for verb in VERBS.values()} - {"suite"} == takes_one


# 1. Files that are links


def test_status_of_a_foreign_folder_does_nothing(foreign: Genuine) -> None:
    assert seen(foreign, "status") == []


@pytest.mark.parametrize("mine", [False, True])
def test_status_writes_nothing_to_my_bashrc(made: Genuine, *, mine: bool) -> None:
    made.restore(own=mine)
    put(made, "campaigns/c/0001/ended.jsonl", "bashrc")
    assert seen(made, "status", own=mine) == []


# 2. What a folder brings is submitted


@pytest.mark.parametrize("mine", [False, True])
def test_status_creates_no_pod_that_a_folder_brings(made: Genuine, *, mine: bool) -> None:
    made.restore(own=mine)
    forge_manifest(made, forget=("id", "server"), sent="0\n")
    for path in made.sandbox.state.rglob("*.id") if mine else ():
        path.unlink()
    assert seen(made, "status", own=mine) == []


def test_status_deletes_nothing_by_labels_of_somebody_else(foreign: Genuine) -> None:
    change(foreign.kubernetes / "plan.json", set_in("campaign", value="ffffffffffff"))
    for run in (foreign.kubernetes / "runs").iterdir():
        run.rename(foreign.sandbox.scratch / "swap" / run.name)
    assert seen(foreign, "status") == []


# 3. Removing through links


@pytest.mark.parametrize("mine", [False, True])
def test_collecting_removes_no_folder_elsewhere(made: Genuine, *, mine: bool) -> None:
    made.restore(own=mine)
    forge_search(made, "other")
    assert seen(made, "status", own=mine) == []


# 4. Programs of a repository


@pytest.mark.parametrize("where", ["worktree", "module"])
def test_a_run_starts_no_filter_of_a_git_repository(foreign: Genuine, where: str) -> None:
    git_case("a filter", where).plant(foreign)
    assert seen(foreign, "run", cwd="repository") == []


# 5. Changed scripts and code


def test_a_changed_script_is_not_submitted(own: Genuine) -> None:
    evil_script(own.slurm / "jobs" / "001" / "job.sh")
    assert seen(own, "study --site", own=True) == []


def test_a_job_does_not_start_changed_code(own: Genuine) -> None:
    mark = own.sandbox.elsewhere / "started"
    (own.slurm / "worker" / "steelyard" / "__init__.py").write_text(f"open({str(mark)!r}, 'w').close()\n")
    run_task(own, 2)
    assert not mark.exists()


# 6. One bad run


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("raw/events-00000.jsonl", b"[" * 100_000 + b"]" * 100_000 + b"\n"),
        ("raw/launch.json", b"{" * 100_000),
        ("raw/spec.json", b"[" * 100_000),
    ],
)
def test_a_bad_run_does_not_keep_the_others_from_being_collected(own: Genuine, name: str, text: bytes) -> None:
    run_task(own, 2)
    ended = sorted(run for run in (own.slurm / "runs").iterdir() if any(run.glob("raw/events*")))
    assert len(ended) == 2
    with (ended[0] / name).open("ab") as file:
        file.write(text)
    done = command(own, "status", "c")
    assert "Traceback" not in done.stdout + done.stderr
    assert (own.sandbox.results / "runs" / "c" / ended[1].name / "record.json").exists()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("jobs/000/id", b"\xff\xfe\n"),
        ("unsettled.json", b'{"0.2.unknown": [Infinity, Infinity], "0.3.unknown": [NaN, 1e999]}'),
        ("ended.jsonl", b"[" * 100_000 + b"\n"),
        ("study.json", b'{"a":' * 100_000),
    ],
)
def test_a_damaged_campaign_file_is_no_traceback(own: Genuine, name: str, text: bytes) -> None:
    (own.slurm / name).write_bytes(text)
    assert seen(own, "status", own=True) == []


# 7. Keys with spaces


def test_spaces_before_dots_do_not_take_the_memory(tmp_path: Path) -> None:
    file = tmp_path / "study.toml"
    file.write_text(f"a{' ' * 9}." * 20_000 + "b = 1\n")

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))

    line = [sys.executable, "-m", "steelyard.cli.main", "study", str(file), "--dry-run"]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=HANG_S, preexec_fn=limit)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stderr[-500:]


# 8. Secrets


def test_no_password_of_the_environment_is_in_a_record(own: Genuine) -> None:
    secrets = {"FABRIC_PASS": "correct-horse", "GPU_PW": "battery-staple", "OMP_LICENSE": TOKEN}
    words = ("run", "sim", "--min-steps", "20", "--max-steps", "20", "--min-seconds", "0", "--repeats", "1")
    done = command(own, *words, **secrets)
    assert done.returncode == 0, done.stderr
    text = b"".join(path.read_bytes() for path in own.sandbox.results.rglob("*") if path.is_file())
    assert [name for name, value in secrets.items() if value.encode() in text] == []


def test_a_token_of_a_site_file_is_not_written_for_others(own: Genuine) -> None:
    site = own.sandbox.work / "slurm.toml"
    site.write_text(site.read_text() + f'[environment]\nHF_TOKEN = "{TOKEN}"\n')
    (own.sandbox.work / "n.toml").write_text((own.sandbox.work / "n.toml").read_text())
    command(own, "study", str(own.sandbox.work / "n.toml"), "--site", str(site))
    open_to_all = [
        str(path)
        for path in own.sandbox.results.rglob("*")
        if path.is_file() and TOKEN.encode() in path.read_bytes() and path.stat().st_mode & 0o077
    ]
    assert open_to_all == []


# 9. Smaller ones


def test_a_progress_file_that_cannot_be_written_does_not_fail_the_run(own: Genuine, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os, pathlib\n\n\n"
        "def lost(self, target):\n"
        "    if 'progress' in str(target):\n"
        "        raise FileNotFoundError(2, 'lost', str(self))\n"
        "    os.replace(self, target)\n\n\n"
        "pathlib.Path.replace = lost\n"
    )
    words = ("run", "sim", "--min-steps", "20", "--max-steps", "20", "--min-seconds", "0", "--repeats", "1")
    done = command(own, *words, "--json", PYTHONPATH=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr


def test_control_characters_of_a_folder_are_not_printed(foreign: Genuine) -> None:
    name = "a\x1b[31mred\x07"
    (foreign.sandbox.results / "runs" / "s").rename(foreign.sandbox.results / "runs" / name)
    (foreign.sandbox.results / "campaigns" / "c").rename(foreign.sandbox.results / "campaigns" / name)
    assert seen(foreign, "show") + seen(foreign, "status") + seen(foreign, "audit") == []


def test_step_files_that_are_links_are_not_measured(foreign: Genuine) -> None:
    put(foreign, f"runs/s/{foreign.run}/raw/steps-00000.bin", "content")
    assert seen(foreign, "show RUN --derive") == []


# What may execute code


@pytest.mark.parametrize("site", [(), ("--site", "slurm.toml")])
@pytest.mark.parametrize("workload", ["./mine.py:model", "packaged"])
def test_a_dry_run_executes_no_workload(own: Genuine, tmp_path: Path, workload: str, site: tuple[str, ...]) -> None:
    work, mark = own.sandbox.work, own.sandbox.work / "executed"
    about = tmp_path / "packaged-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: packaged\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[steelyard.workload]\npackaged = packaged:model\n")
    for path in (work / "mine.py", tmp_path / "packaged.py"):
        path.write_text(f'open({str(mark)!r}, "w").close()\n\n\ndef model(**settings):\n    raise SystemExit\n')
    (work / "m.toml").write_text(f'name = "m"\n[run]\nworkload = "{workload}"\n')
    done = command(own, "study", "m.toml", "--dry-run", *site, PYTHONPATH=str(tmp_path))
    assert not mark.exists()
    assert done.returncode == 0, done.stdout + done.stderr


def test_nothing_is_planned_where_others_could_change_it(own: Genuine) -> None:
    work, results = own.sandbox.work, own.sandbox.results
    (work / "new.toml").write_text((work / "n.toml").read_text().replace('"n"', '"new"'))
    results.chmod(0o777)
    done = command(own, "study", "new.toml", "--site", "slurm.toml")
    assert (done.returncode, [*results.glob("campaigns/new/0*")]) == (1, [])
    assert "chmod -R go-w" in done.stderr
    assert command(own, "study", "new.toml", "--site", "slurm.toml", "--shared").returncode == 0


# What came with a folder of somebody else, where a page or a pack is written


def test_a_report_is_not_written_through_a_link_of_its_default_name(foreign: Genuine) -> None:
    bashrc = foreign.sandbox.home / ".bashrc"
    before = bashrc.read_bytes()
    (foreign.sandbox.work / "s.html").symlink_to(bashrc)
    done = command(foreign, "report", "s")
    assert (done.returncode, bashrc.read_bytes()) == (1, before)
    assert "s.html is a link" in done.stderr


@pytest.mark.parametrize("name", ["figures", "tables", "pack.html", "pack.json", "section.tex"])
def test_a_pack_removes_and_writes_nothing_behind_a_link(foreign: Genuine, name: str) -> None:
    """An older pack may have been made by somebody else."""
    elsewhere, pack = foreign.sandbox.elsewhere, foreign.sandbox.out / "pack"
    pack.mkdir()
    (elsewhere / "pack.json").write_text("{}")
    if name != "pack.json":
        (pack / "pack.json").write_text("{}")
    target = elsewhere / ("folder0" if name in ("figures", "tables") else "pack.json")
    (pack / name).symlink_to(target)
    before = {path: path.read_bytes() for path in elsewhere.rglob("*") if path.is_file()}
    done = command(foreign, *foreign.words(VERBS["pack"])[:-2])
    assert done.returncode == 1, done.stderr
    assert f"{name} is a link" in done.stderr
    assert {path: path.read_bytes() for path in elsewhere.rglob("*") if path.is_file()} == before
