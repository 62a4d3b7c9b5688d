"""[typos] Mistakes that people make are refused before anything starts, in three lines, with the right spelling.

The mistakes are in benchmarks/lib/typos_cases.py: misspelt verbs, options, fields, files, functions and names, fields
in the wrong table, wrong units and types, at every level of a study, a site file and a recipe. Each goes through the
command line in process; a few also through a process of their own. A mistake is handled well when the exit code is 2,
when the error takes at most three lines of 120 columns, names the place and offers the right spelling where there is
one, and when no file was made and no process was started.

Two parts use material that is not ours. Fields of other tools' configuration (torchrun, sbatch, Hugging Face,
Lightning, DeepSpeed, Kubernetes, hyperfine and others, as their documentation writes them) must be refused, and our
name must be offered where we have the same thing. Slips of the keyboard (neighbouring, swapped, missing and doubled
letters) are made with a seed on every field of a study and a site file; the figure is the share of slips for which the
right field is offered.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import subprocess
import sys
import tempfile
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import typos_cases as cases
from figure import arguments, at_least, at_most, finish
from steelyard.cli.main import main as steelyard
from steelyard.contracts.base import to_json_object
from steelyard.contracts.observe import Status
from steelyard.contracts.record import RunRecord
from steelyard.contracts.spec import RunSpec
from steelyard.inputs.places import InputFile, tables_of
from steelyard.inputs.site import Site
from steelyard.inputs.study import Study
from steelyard.inputs.synonyms import SITE, STUDY

if TYPE_CHECKING:
    from collections.abc import Iterator

COLUMNS = 120
LINES = 3
IN_A_PROCESS = 5
ROWS = ("qwertyuiop", "asdfghjkl", "zxcvbnm")


@dataclass(frozen=True)
class Mistake:
    """A command line with a mistake in it, and what its error must say."""

    words: tuple[str, ...]
    place: str
    answer: str
    files: dict[str, str] = field(default_factory=dict)


def mistakes() -> Iterator[Mistake]:
    """All mistakes of the list."""
    own = {"my.py": cases.SCRIPT}
    texts = [(cases.STUDY + text, place, answer) for text, place, answer in cases.IN_STUDY]
    for text, place, answer in (*texts, *cases.STUDIES):
        yield Mistake(("study", "study.toml"), place, answer, {"study.toml": text + "\n", **own})
    good = {"study.toml": cases.STUDY, "site.toml": cases.SITE, "recipe.toml": cases.RECIPE, **own}
    sites = [(_in_site(table, line), place, answer) for table, line, place, answer in cases.IN_SITE]
    for text, place, answer in (*sites, *cases.SITES):
        yield Mistake(("study", "study.toml", "--site", "site.toml"), place, answer, {**good, "site.toml": text})
    for text, place, answer in cases.RECIPES:
        yield Mistake(("verify", "recipe.toml"), place, answer, {**good, "recipe.toml": text})
    for words, files, place, answer in cases.AUDITS:
        yield Mistake(tuple(words), place, answer, files)
    for words, place, answer in (*cases.COMMANDS, *cases.OPTIONS):
        yield Mistake(tuple(words), place, answer, good)


def foreign() -> Iterator[Mistake]:
    """Fields of other tools, in a study and in a pool of a site file."""
    for lines in cases.FOREIGN_STUDY.values():
        for line, ours in lines:
            text = {"study.toml": f"{cases.STUDY}{line}\n"}
            yield Mistake(("study", "study.toml"), line.partition(" ")[0], ours, text)
    for lines in cases.FOREIGN_SITE.values():
        for line, ours in lines:
            text = {"study.toml": cases.STUDY, "site.toml": _in_site("pools.gpu", line)}
            yield Mistake(("study", "study.toml", "--site", "site.toml"), line.partition(" ")[0], ours, text)


def _in_site(table: str, line: str) -> str:
    """The site file with a line at the top, in a table that it has, or in one of its own at the end."""
    if not table:
        return cases.SITE.replace("scheduler", f"{line}\nscheduler", 1)
    if f"[{table}]\n" in cases.SITE:
        return cases.SITE.replace(f"[{table}]\n", f"[{table}]\n{line}\n", 1)
    return f"{cases.SITE}[{table}]\n{line}\n"


class Bench:
    """A folder in which mistakes are made."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started = 0
        make_results(folder / "results")

    def fault(self, mistake: Mistake, *, process: bool = False) -> str:
        """Why the mistake is not handled well; "" when it is."""
        for path in self.folder.iterdir():
            if path.is_file():
                path.unlink()
        for name, text in mistake.files.items():
            (self.folder / name).write_text(text, encoding="utf-8")
        before, started = self._listing(), self.started
        code, error = self._in_process(mistake.words) if not process else self._as_process(mistake.words)
        shown = sum(max(1, len(textwrap.wrap(line, COLUMNS))) for line in error.splitlines())
        if code != 2:
            return f"exit code {code}"
        if self._listing() != before or self.started != started:
            return "something was made or started"
        if not error.startswith("error: ") or "Traceback" in error:
            return "not an error message"
        if not 0 < shown <= LINES:
            return f"{shown} lines"
        if str(self.folder) in error:
            return f"an absolute path: {error.strip()}"
        if spelled := cases.PYTHON.search(error):
            return f"{spelled.group()} is Python: {error.strip()}"
        missing = [text for text in (mistake.place, mistake.answer) if text not in error]
        return f"does not say {missing[0]!r}: {error.strip()}" if missing else ""

    def _listing(self) -> list[str]:
        return sorted(str(path) for path in self.folder.rglob("*"))

    def _in_process(self, words: tuple[str, ...]) -> tuple[Any, str]:
        out, err = io.StringIO(), io.StringIO()

        def start(*_: Any, **__: Any) -> None:
            self.started += 1
            raise OSError("a process was started")

        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            mock.patch("subprocess.Popen.__init__", start),
        ):
            try:
                code: Any = steelyard(list(words))
            except SystemExit as error:
                code = error.code
            except BaseException as error:  # noqa: BLE001 -- a fault to be listed
                code = repr(error)
        return code, err.getvalue()

    def _as_process(self, words: tuple[str, ...]) -> tuple[int, str]:
        command = [sys.executable, "-c", "import sys; from steelyard.cli.main import main; sys.exit(main())", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
        return done.returncode, done.stderr


def make_results(path: Path) -> None:
    """A result folder with one study, adhoc."""
    spec = RunSpec(run_id="sim-1-r0000", configuration="sim-1")
    status = Status(code="failed", reason="", evidence={})
    record = RunRecord(
        run_id=spec.run_id, spec=spec, status=status, launch=None, environment=None, phases=(), stop=None, steady=None,
        crosscheck=None, steps_seen=0, ranks_seen=0, seconds_measured=0.0, quantities={}, findings=(), raw=(),
        derived_by="x",
    )  # fmt: skip
    place = path / "runs" / spec.study / spec.run_id
    place.mkdir(parents=True)
    (place / "record.json").write_text(json.dumps(to_json_object(record)), encoding="utf-8")


def slip(name: str, chance: random.Random) -> str:
    """A name with one slip of the keyboard."""
    at = chance.randrange(len(name))
    kind = chance.choice(("neighbour", "swap", "miss", "double"))
    if kind == "swap" and at + 1 < len(name):
        return name[:at] + name[at + 1] + name[at] + name[at + 2 :]
    if kind == "miss" and len(name) > 2:
        return name[:at] + name[at + 1 :]
    if kind == "double":
        return name[: at + 1] + name[at:]
    row = next((row for row in ROWS if name[at] in row), "")
    near = [row[place] for place in (row.find(name[at]) - 1, row.find(name[at]) + 1) if 0 <= place < len(row)]
    return name[:at] + chance.choice(near) + name[at + 1 :] if near else name + name[-1]


def slips_found(count: int) -> tuple[int, int, list[str]]:
    """How many slips there were, how many led to the right field, and some that did not."""
    chance = random.Random(20)
    documents = ((Study, STUDY), (Site, SITE))
    fields = [(cls, table, synonyms, path, name) for cls, synonyms in documents
              for path, names in tables_of(cls).items() for table in [names] for name in names]  # fmt: skip
    tried = right = 0
    missed = []
    while tried < count:
        cls, table, synonyms, path, name = chance.choice(fields)
        wrong = slip(name, chance)
        if wrong in table:
            continue
        tried += 1
        problem = InputFile("f", root=cls, at=path, synonyms=synonyms).unknown(cls, (wrong,), 1)
        if problem.near == name:
            right += 1
        else:
            missed.append(f"{'.'.join((*path, wrong))}: {name} was meant; {problem}")
    return tried, right, missed


def main() -> None:
    options = arguments(__doc__)
    listed, others = list(mistakes()), list(foreign())
    faults: list[str] = []
    foreign_faults: list[str] = []
    back = Path.cwd()
    with tempfile.TemporaryDirectory() as name:
        bench = Bench(Path(name))
        os.chdir(name)
        with mock.patch.dict(os.environ, {"XDG_CONFIG_HOME": name, "STEELYARD_RESULTS": f"{name}/new"}):
            for kept, tried_ones in ((faults, listed), (foreign_faults, others)):
                for mistake in tried_ones:
                    if fault := bench.fault(mistake):
                        kept.append(f"{' '.join(mistake.words)} {mistake.place}: {fault}")
            chosen = random.Random(1).sample(listed, 2 if options.quick else IN_A_PROCESS)
            found = [(mistake, bench.fault(mistake, process=True)) for mistake in chosen]
            faults += [f"as a process: {' '.join(mistake.words)}: {fault}" for mistake, fault in found if fault]
        os.chdir(back)
    tried, right, missed = slips_found(1000 if options.quick else 5000)
    for fault in (*faults, *foreign_faults):
        print(fault)
    print(f"{len(listed)} mistakes, {len(others)} fields of other tools, {tried} slips; some that missed:")
    for line in missed[:5]:
        print(f"  {line}")
    finish(
        [
            at_least("typos: mistakes tried", len(listed), "mistakes", 200),
            at_most("typos: mistakes not refused with place and answer in three lines", len(faults), "mistakes", 0),
            at_least("typos: fields of other tools tried", len(others), "fields", 60),
            at_most("typos: fields of other tools without our name", len(foreign_faults), "fields", 0),
            at_least("typos: slips that lead to the right field", 100 * right / tried, "%", 95),
        ]
    )


if __name__ == "__main__":
    main()
