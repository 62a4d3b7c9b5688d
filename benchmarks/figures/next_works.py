"""[next_works] Every command that is printed after "next:" or below a fix is accepted, and leads on.

Studies on the simulated device are drawn with a seed: what they vary, how many jobs, how long, how steady, how much
memory, whether Ctrl-C ended them or the machine was busy. One verb reads each of them, and its commands are tried: a
command that reads is carried out, one that measures is checked up to its start. Some are carried out to their end;
then the same verb must say something else: another verdict or answer, or the finding is gone.

The mistakes of [typos], among them fields of other tools, are situations too: their commands must be accepted.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

import typos
from figure import arguments, at_least, at_most, finish, slack_percent
from simjob import memory_folder
from steelyard.cli import run as cli_run
from steelyard.cli.main import main as steelyard
from steelyard.cli.verb import make_parser
from steelyard.contracts.observe import Launch
from steelyard.contracts.record import HostLoad, LoadShares
from steelyard.inputs.study import single_run
from steelyard.launch.local import LocalLauncher
from steelyard.results.store import ResultFolder, write_json
from steelyard.rules.rule import find_rule
from steelyard.worker.engine.run import run_directory
from typos_cases import PYTHON

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from steelyard.contracts.spec import RunSpec

FIRST_SEED = 65_000_000
SITUATIONS, QUICK_SITUATIONS = 400, 24
CARRIED_OUT, QUICK_CARRIED_OUT = 80, 6
COMMAND = re.compile(r"^(?:next: |\s{8,})(steelyard .+)$", re.MULTILINE)
CODE = re.compile(r"\b(SY\d{3}) ")
NUMBER = re.compile(r"-?\d[\d.,]*")
PLACE = re.compile(r"^[A-Z][A-Z_]+$|^\.\.\.$|[A-Z_]{3,}\.\w+$")
"""A word for the reader to replace."""
ONLY_PARSED = ("doctor", "selftest", "wrap", "verify")
EXPLAINS = ("explain", "show", "doctor", "status")
"""They show more, and change nothing."""
LEADS_PERCENT = 95.0
VALUES: dict[str, tuple[Any, ...]] = {
    "batch": (8, 32, 128, 512), "devices": (1, 2, 4), "precision": ("fp32", "bf16"), "sim.step_time_s": (0.01, 0.008),
    "compile": ("off", "default"),
}  # fmt: skip


@dataclass
class Seen:
    """What came of the commands."""

    situations: int = 0
    commands: int = 0
    refused: list[str] = field(default_factory=list)
    carried_out: int = 0
    idle: list[str] = field(default_factory=list)
    unfit: list[str] = field(default_factory=list)
    """Outputs that format an object as Python does, or show in which folder they were made."""
    verbs: Counter[str] = field(default_factory=Counter)

    def look(self, words: Sequence[str], text: str, folder: str) -> None:
        """Note what no person would write."""
        wrong = PYTHON.search(text)
        if wrong or folder in text:
            self.unfit.append(f"{shlex.join(words)}: prints {wrong.group() if wrong else 'its own folder'}")


# -- a study, and a verb that reads it


class InProcess:
    """Starts simulated runs in this process; Ctrl-C comes before run number `last`."""

    def __init__(self, last: int | None) -> None:
        self.left = last

    def run(self, _launcher: LocalLauncher, _spec: RunSpec, raw: Path, _tick: Callable[[], None]) -> Launch:
        """Stand for LocalLauncher.run."""
        if self.left is not None:
            if not self.left:
                raise KeyboardInterrupt
            self.left -= 1
        run_directory(raw)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        return Launch(launcher="local", host="here", command=(), started_at=now, wall_s=1.0, exit_code=0)


def call(words: list[str], last: int | None = None) -> tuple[Any, str]:
    """Return the exit code and all output of a command line."""
    out = io.StringIO()
    launcher = InProcess(last)
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(out),
        mock.patch.object(LocalLauncher, "run", lambda *given: launcher.run(*given)),
    ):
        try:
            code: Any = steelyard(words)
        except SystemExit as error:
            code = error.code
        except KeyboardInterrupt:
            code = 130
        except Exception as error:  # noqa: BLE001 -- a fault to be listed
            code = repr(error)
    return code, out.getvalue()


def make_study(rng: np.random.Generator) -> dict[str, tuple[Any, ...]]:
    """Make the runs of a drawn study here, and return what it varies."""
    names = [str(name) for name in rng.choice(list(VALUES), size=int(rng.integers(0, 3)), replace=False)]
    sweep = {name: VALUES[name][: int(rng.integers(1, len(VALUES[name]) + 1))] for name in names}
    repeats = int(rng.integers(1, 5))
    noise = {"kind": "normal", "cv": float(rng.choice([0.005, 0.05])), "between_jobs_cv": float(rng.choice([0, 0.03]))}
    sim: dict[str, Any] = {"noise": noise, "sample_time_s": 0.0001}
    if rng.random() < 0.25:
        sim["shape"] = {"drift_per_step": float(rng.choice([2e-5, 2e-4]))}
    if rng.random() < 0.25 and "sim.step_time_s" not in sweep:
        sim["step_time_s"] = 20.0  # too few steps fit into its time
    if rng.random() < 0.25:
        sim["memory"] = {"limit_bytes": 1e9, "bytes_per_sample": float(rng.choice([1e6, 1e7]))}
    last = int(rng.integers(1, 4)) if rng.random() < 0.25 else None
    if rng.random() < 0.6:
        lines = ['name = "s"', f"repeats = {repeats}", "[run]", "crosscheck_steps = 0", *toml("run.sim", sim)]
        lines += ["[sweep]", *(f'"{name}" = {list(values)}'.replace("'", '"') for name, values in sweep.items())]
        Path("s.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")
        call(["study", "s.toml"], last)
    else:
        given = [f"--set={key}={value}" for key, value in flat("sim", sim)]
        cells: list[dict[str, Any]] = [{}]
        for name, values in sweep.items():
            cells = [{**cell, name: value} for cell in cells for value in values]
        for cell in cells:
            words = [f"--set={name}={value}" for name, value in cell.items()]
            call(["run", "sim", "--study", "s", "--repeats", str(repeats), *given, *words], last)
    if rng.random() < 0.2:
        make_busy()
    return sweep


def flat(prefix: str, table: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield dotted names and values."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from flat(f"{prefix}.{key}", value)
        else:
            yield f"{prefix}.{key}", value


def toml(prefix: str, table: dict[str, Any]) -> list[str]:
    """Write a nested table with dotted names."""
    return [
        f"[{prefix}]",
        *(f"{key.removeprefix(prefix + '.')} = {value!r}".replace("'", '"') for key, value in flat(prefix, table)),
    ]


def make_busy() -> None:
    """Let the records say that the machine was busy, as the rule would."""
    folder, rule = ResultFolder(Path("steelyard-results")), find_rule("SY609")
    assert rule is not None
    during = LoadShares(seconds=10.0, own_cpus=0.5, other_cpus=1.5, load_average=3.0)
    for record in list(folder.records()):
        busy = replace(record, load=(HostLoad(node="here", cpus=2, during=during),))
        found = (*record.findings, *rule.check(busy))  # type: ignore[attr-defined]
        write_json(folder.run_path(record.spec) / "record.json", replace(record, findings=found))


def draw_verb(rng: np.random.Generator, sweep: dict[str, tuple[Any, ...]]) -> list[str]:
    """Return a command line that reads the study."""
    verb = str(rng.choice(["show", "show run", "best", "batch", "scaling", "compare", "compare", "energy"]))
    if verb == "show run":
        runs = sorted(ResultFolder(Path("steelyard-results")).run_ids("s"))
        return ["show", runs[int(rng.integers(len(runs)))]] if runs else ["show", "s"]
    if verb != "compare":
        return [verb, "s"]
    sides = []
    for _ in range(2):
        chosen = [f"{name}={values[int(rng.integers(len(values)))]}" for name, values in sweep.items()]
        sides.append("s:" + ",".join(chosen) if chosen else "s")
    return ["compare", *sides]


# -- its commands


def commands(text: str) -> list[tuple[str, str]]:
    """Return the commands of an output, each with the code of the finding that it belongs to, if any."""
    found, code = [], ""
    for line in text.splitlines():
        if named := CODE.search(line):
            code = named[1]
        if match := COMMAND.match(line):
            found.append((match[1], "" if line.startswith("next: ") else code))
    return found


def refusal(command: str) -> str:
    """Return why a command is refused; empty: it is accepted."""
    for part in command.split(" && "):
        words = shlex.split(part)
        if words[:1] != ["steelyard"]:
            continue
        verb, rest = words[1], words[2:]
        if any(map(PLACE.search, rest)) or verb in ONLY_PARSED:
            code, text = parsed(verb, rest)
        elif verb == "run":
            code, text = planned(rest)
        elif verb == "study":
            code, text = call(["study", *rest, "--dry-run"])
        else:
            code, text = call(words[1:])
        if code not in (0, 1, 3):
            return f"{part}: {code}: {text.strip()[-300:]}"
    return ""


def parsed(verb: str, rest: list[str]) -> tuple[Any, str]:
    """Read a command line without carrying it out."""
    out = io.StringIO()
    with contextlib.redirect_stderr(out), contextlib.redirect_stdout(out):
        try:
            make_parser(verb).parse_args(rest)
        except SystemExit as error:
            return error.code, out.getvalue()
        except Exception as error:  # noqa: BLE001 -- a fault to be listed
            return repr(error), str(error)
    return 0, ""


def planned(rest: list[str]) -> tuple[Any, str]:
    """Read the command line of a run up to its start."""
    try:
        given = make_parser("run").parse_args(rest)
        chosen = cli_run.settings(given)
        single_run(chosen, study=given.study, seed=given.seed, repeats=given.repeats, taken=lambda _: set())
    except SystemExit as error:
        return error.code, ""
    except Exception as error:  # noqa: BLE001 -- a fault to be listed
        return repr(error), str(error)
    return 0, ""


def leads(words: list[str], before: str, command: str, code: str) -> str:
    """Carry a command out; return why it led to nothing, or empty."""
    verb = shlex.split(command)[1]
    for part in command.split(" && "):
        given = shlex.split(part)[1:]
        if given[0] in ONLY_PARSED:
            continue
        result, text = call(given)
        if result not in (0, 1, 3):
            return f"{part}: {result}: {text.strip()[-300:]}"
    # A command that reads is itself the other selection.
    after = text if verb in ("compare", "batch", "best", "scaling") else call(words)[1]
    if code and code not in CODE.findall(after):
        return ""
    same = answer(after) == answer(before)
    return f"{shlex.join(words)}: {command}: the same answer: {answer(after)}" if same else ""


def answer(text: str) -> list[str]:
    """Return what an output answers: its first lines and what it asks for next, without figures, which change."""
    lines = text.strip().splitlines()
    asked = [line for line in lines[3:] if line.startswith("next: ")]
    return [NUMBER.sub("#", line) for line in (*lines[:3], *asked)]


# -- all of them


def situation(seed: int, seen: Seen, *, carry_out: bool) -> None:
    """Draw a study, read it, and try the commands that are printed."""
    rng = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory(dir=memory_folder()) as folder, contextlib.chdir(folder):
        words = draw_verb(rng, make_study(rng))
        code, text = call(words)
        seen.look(words, text, folder)
        seen.situations += 1
        seen.verbs[words[0]] += 1
        if code not in (0, 1, 2, 3):
            seen.refused.append(f"seed {seed}: {shlex.join(words)}: {code}: {text[-300:]}")
        found = commands(text)
        for command, _ in found:
            seen.commands += 1
            if said := refusal(command):
                seen.refused.append(f"seed {seed}: {shlex.join(words)}: {said}")
        measuring = [(command, code) for command, code in found if shlex.split(command)[1] not in EXPLAINS]
        if carry_out and measuring:
            command, code = measuring[int(rng.integers(len(measuring)))]
            seen.carried_out += 1
            if words[0] == "show":
                # A run stays as it is; its study changes.
                words = ["show", "s"]
                text = call(words)[1]
            if said := leads(words, text, command, code):
                seen.idle.append(f"seed {seed}: {said}")


def mistaken(seen: Seen, count: int) -> None:
    """Try the commands of the errors on mistakes."""
    with tempfile.TemporaryDirectory(dir=memory_folder()) as name, contextlib.chdir(name):
        folder = Path(name)
        typos.make_results(folder / "steelyard-results")
        every = [*typos.foreign(), *typos.mistakes()]
        for mistake in every[:: max(1, len(every) // count)][:count]:
            for path in folder.iterdir():
                if path.is_file():
                    path.unlink()
            for file, text in mistake.files.items():
                (folder / file).write_text(text, encoding="utf-8")
            _, said = call(list(mistake.words), 0)
            seen.look(mistake.words, said, name)
            seen.situations += 1
            seen.verbs["mistakes"] += 1
            for command, _ in commands(said):
                seen.commands += 1
                if why := refusal(command):
                    seen.refused.append(f"{shlex.join(mistake.words)}: {why}")


def main() -> None:
    """Measure."""
    options = arguments(
        __doc__,
        first={"type": int, "default": FIRST_SEED, "help": "the first seed (default %(default)s)"},
    )
    os.environ["COLUMNS"] = "100"
    wanted = QUICK_SITUATIONS if options.quick else SITUATIONS
    most = QUICK_CARRIED_OUT if options.quick else CARRIED_OUT
    seen = Seen()
    mistaken(seen, wanted // 4)
    seed = options.first
    while seen.situations < wanted or seen.carried_out < most:
        situation(seed, seen, carry_out=seen.carried_out < most)
        seed += 1
    for line in (*seen.refused, *seen.idle, *seen.unfit):
        print(line)
    told = ", ".join(f"{count} {verb}" for verb, count in seen.verbs.items())
    print(f"{seen.situations} situations ({told}), {seen.commands} commands, {seen.carried_out} carried out")
    led = 100 * (1 - len(seen.idle) / seen.carried_out)
    least = LEADS_PERCENT - slack_percent(LEADS_PERCENT, seen.carried_out, quick=options.quick)
    finish(
        [
            at_most("next_works: commands that are refused", len(seen.refused), "commands", 0),
            at_least("next_works: commands that lead on", led, "%", least),
            at_most("next_works: outputs with Python's own words or an absolute path", len(seen.unfit), "outputs", 0),
        ]
    )


if __name__ == "__main__":
    main()
