"""Verbs that read results start nothing, contact nobody, write only where told, and go on without a bad record."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from steelyard.cli.main import main
from tripwire import HOOK

if TYPE_CHECKING:
    from collections.abc import Iterator

WATCHED = """
import json, os, sys
told = os.path.realpath(sys.argv.pop(1))
acts = []
from tripwire_hook.sitecustomize import CHANGES, WRITING, place

STARTS = {"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty", "os.startfile",
          "pty.spawn", "os.kill", "webbrowser.open"}
real_open = os.open

def open_at(path, flags, mode=0o777, *, dir_fd=None):
    # The event lacks the handle of the folder.
    if flags & WRITING and (dir_fd is not None or not os.path.isabs(path)):
        changed("open", place(path, dir_fd, follow=not flags & os.O_NOFOLLOW))
    return real_open(path, flags, mode, dir_fd=dir_fd)

def changed(event, path):
    if outside(path):
        acts.append([event, path])

def outside(path):
    # Folders are made with all those above them.
    return not (path == told or path.startswith(told + "/")) and not told.startswith(path + "/")

def watch(event, given):
    if event in STARTS or event.startswith("socket.") and event != "socket.gethostname" and event != "socket.__new__":
        acts.append([event, repr(given)])
    elif event == "open" and not isinstance(given[0], int) and (given[2] or 0) & WRITING:
        if given[1] is not None or os.path.isabs(os.fspath(given[0])):
            changed(event, place(given[0], None, follow=True))
    elif event in CHANGES:
        for at, handle in CHANGES[event]:
            changed(event, place(given[at], given[handle] if handle is not None else None, follow=False))

from steelyard.cli.main import main
os.open = open_at
sys.addaudithook(watch)
code = main()
sys.stdout.flush()
sys.stderr.write("\\n" + json.dumps({"code": code, "acts": acts}))
"""
PLAN = ["--scheme", "nairr", "--epochs", "90", "--epoch-samples", "1281167", "--devices", "4"]
VERBS = {
    "show": ["show"],
    "show a study": ["show", "s"],
    "show a run": ["show", "RUN"],
    "show --derive": ["show", "RUN", "--derive"],
    "compare": ["compare", "s:devices=1", "s:devices=2"],
    "scaling": ["scaling", "s"],
    "energy": ["energy", "s", "--plot", "told/plot.svg"],
    "batch": ["batch", "s"],
    "best": ["best", "s"],
    "audit": ["audit", "s"],
    "audit a folder": ["audit", "results", "--html", "told/page.html"],
    "report": ["report", "s", "-o", "told/report.html"],
    "pack": ["pack", "s", *PLAN, "-o", "told/pack"],
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the results of a small simulated study that has a curve and energies."""
    folder = tmp_path_factory.mktemp("reading")
    (folder / "study.toml").write_text(
        'name = "s"\nrepeats = 2\n[run]\nworkload = "sim"\n[run.sim]\nsetup_s = 4.0\n[run.sim.power]\nidle_w = 60.0\n'
        'compute_w = 300.0\n[[run.sim.sensors]]\nkind = "counter"\n[sweep]\ndevices = [1, 2, 4]\n'
    )
    before = Path.cwd()
    os.chdir(folder)
    assert main(["study", "study.toml", "--results", "results", "--quiet"]) == 0
    os.chdir(before)
    return folder


def run(place: Path, words: list[str]) -> tuple[str, dict[str, Any]]:
    """Run a verb in a process of its own; return what it printed, and what it did."""
    first = min(path.name for path in (place / "results" / "runs" / "s").iterdir())
    words = [first if word == "RUN" else word for word in words]
    (place / "told").mkdir(exist_ok=True)
    command = [sys.executable, "-B", "-c", WATCHED, str(place / "told"), *words, "--results", "results"]
    # Without a home, whatever is kept in one would have to be written.
    search = ":".join(filter(None, (str(HOOK.parent), os.environ.get("PYTHONPATH"))))
    environment = {
        **os.environ,
        "PYTHONPATH": search,
        "HOME": str(place / "home"),
        "XDG_CACHE_HOME": str(place / "home" / "cache"),
    }
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, check=False)
    said, _, told = done.stderr.rpartition("\n")
    return done.stdout + said, json.loads(told)


@pytest.mark.parametrize("words", VERBS.values(), ids=VERBS)
def test_a_verb_that_reads_does_nothing_else(place: Path, words: list[str]) -> None:
    before = {path: path.stat().st_mtime_ns for path in (place / "results").rglob("*")}
    printed, did = run(place, words)
    assert did["acts"] == []
    assert did["code"] in (0, 1, 3), printed
    assert {path: path.stat().st_mtime_ns for path in (place / "results").rglob("*")} == before


def test_the_watch_sees_a_verb_that_acts(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place, tmp_path, dirs_exist_ok=True)
    _, did = run(tmp_path, ["run", "sim"])
    assert {"subprocess.Popen", "os.mkdir"} <= {event for event, _ in did["acts"]}


@pytest.mark.parametrize("words", [["show"], ["show", "s"], ["show", "x\x1b[31m"], ["audit", "results"]], ids=str)
def test_names_of_folders_do_not_steer_the_terminal(place: Path, tmp_path: Path, words: list[str]) -> None:
    shutil.copytree(place, tmp_path, dirs_exist_ok=True)
    for name in (b"x\x1b[31m", b"not-utf8-\xff", "left\u202e".encode()):
        Path(os.fsdecode(os.fsencode(tmp_path / "results" / "runs") + b"/" + name)).mkdir()
    printed, did = run(tmp_path, words)
    assert not {"\x1b", "\u202e", "\udcff"} & {*printed}
    assert did["code"] in (0, 1, 2, 3)


NAMED = [(words, "text") for words in VERBS.values() if words[1:2] == ["s"] or words == ["show"]]


@pytest.mark.parametrize(
    ("words", "damage"),
    [*NAMED, *((["show", "s"], damage) for damage in ("link", "pipe", "nested", "large number", "folder is a link"))],
    ids=str,
)
def test_one_bad_record_is_named_and_the_others_are_answered(
    place: Path, tmp_path: Path, words: list[str], damage: str
) -> None:
    shutil.copytree(place, tmp_path, dirs_exist_ok=True)
    last = max((tmp_path / "results" / "runs" / "s").iterdir()) / "record.json"
    text = last.read_text()
    last.unlink()
    if damage == "link":
        last.symlink_to("/etc/passwd")
    elif damage == "folder is a link":
        last.parent.rename(tmp_path / "elsewhere")
        last.parent.symlink_to(tmp_path / "elsewhere")
    elif damage == "pipe":
        os.mkfifo(last)
    else:
        broken = {"text": "{", "nested": 100_000 * "[", "large number": text.replace('"value": ', '"value": 1e300', 1)}
        last.write_text(broken[damage])
    printed, did = run(tmp_path, words)
    assert did["code"] == 1, printed
    assert "error: 1 run was left out, because files cannot be read" in printed
    assert last.parent.name in printed
