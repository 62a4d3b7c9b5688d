"""[malformed] Untrusted specs, studies and records are refused with an error that names the field and what is valid.

Property-based: Hypothesis changes valid documents (fields removed, renamed, retyped, out of range, nested, replaced by
noise). Each malformed one must end in an InputError whose problems name a field and what is valid there; any other
exception, or an empty message, is a fault. Some of them go through the command line, which must print no traceback and
end with exit code 2, or with 1 if it goes on without a record.
"""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from figure import arguments, at_least, at_most, finish
from steelyard.cli.main import main as steelyard
from steelyard.contracts.base import to_json_object
from steelyard.contracts.finding import Finding
from steelyard.contracts.observe import Environment, Phase, Status, Stop
from steelyard.contracts.record import Interval, Quantity, RunRecord, Steady
from steelyard.contracts.spec import RunSpec
from steelyard.errors import InputError, Problem
from steelyard.inputs.study import Study, expand
from steelyard.inputs.validate import parse_json, parse_object, parse_toml

SPEC = to_json_object(RunSpec(run_id="run", configuration="configuration", epoch_samples=1000))
QUANTITY = Quantity(
    value=1.0, unit="s", scope="job", window="steady", aggregation="mean",
    interval=Interval(low=0.9, high=1.1, method="t", covers="this job"),
)  # fmt: skip
RECORD = to_json_object(
    RunRecord(
        run_id="run", spec=RunSpec(run_id="run", configuration="configuration"),
        status=Status(code="completed", evidence={"a": 1}),
        launch=None, environment=Environment(node="n", allocation=None, device="sim", timing="t", facts={"a": "b"}),
        phases=(Phase(name="setup", start_s=0.0, end_s=1.0),),
        stop=Stop(reason="interval", steps=1, seconds=1.0, host_seconds=1.0),
        steady=Steady(answer="steady", start_step=0, stop_step=1, reason="", change_steps=(1,)), crosscheck=None,
        steps_seen=1, ranks_seen=1, seconds_measured=1.0, quantities={"x": QUANTITY},
        findings=(Finding(code="SY201", severity="note", message="m", fix="r"),), raw=(), derived_by="x",
    )
)  # fmt: skip
STUDY: dict[str, Any] = {
    "schema_version": 1, "name": "s", "seed": 1, "repeats": 2,
    "run": {"workload": "sim", "batch": 8, "budget": {"min_steps": 10}, "sim": {"step_time_s": 0.1}},
    "sweep": {"batch": [1, 2], "sim.noise.cv": [0.1, 0.2]},
}  # fmt: skip
DOCUMENTS = {"spec": SPEC, "record": RECORD, "study": STUDY}

junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30) | st.just("x" * 5000)
    | st.sampled_from([0, -1, 10**400, 1e308, "sim", "train", "../../etc/passwd", "$(reboot)", "\x1b[2J", "", [], {}]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of all values in a document."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = []
    for key, item in inner:
        found += [(*at, key), *places(item, (*at, key))]
    return found


@st.composite
def malformed(draw: st.DrawFn) -> tuple[str, Any]:
    """A kind of document, and a changed document that may still be valid."""
    kind = draw(st.sampled_from(sorted(DOCUMENTS)))
    document = json.loads(json.dumps(DOCUMENTS[kind]))
    for _ in range(draw(st.integers(1, 3))):
        tamper(draw, document)
    return kind, document


def tamper(draw: st.DrawFn, document: Any) -> None:
    paths = places(document)
    if not paths:
        return
    *outer, last = draw(st.sampled_from(paths))
    table = document
    for key in outer:
        table = table[key]
    action = draw(st.sampled_from(["replace", "remove", "rename", "add"]))
    if action == "replace":
        table[last] = draw(junk)
    elif action == "remove":
        del table[last]
    elif isinstance(table, dict):
        value = table.pop(last) if action == "rename" else draw(junk)
        table[draw(st.text(max_size=12))] = value
    else:
        table.append(draw(junk))


@dataclass
class Counts:
    """Counts over all documents."""

    refused: int = 0
    accepted: int = 0
    through_cli: int = 0
    faults: list[str] = field(default_factory=list)


def tells_what_is_valid(problem: Problem) -> bool:
    """Whether a problem names valid values, the right field or the right place."""
    answer = any(word in problem.problem for word in ("must ", "belongs ", "leave it out"))
    return bool(problem.problem and (answer or problem.valid or problem.near))


def try_document(kind: str, document: Any, counts: Counts) -> None:
    try:
        if kind == "study":
            expand(parse_object(Study, document, "the study"))
        else:
            cls: type = RunSpec if kind == "spec" else RunRecord
            parse_json(cls, json.dumps(document), f"the {kind}")
    except InputError as error:
        counts.refused += 1
        if not error.problems or not all(p.field and tells_what_is_valid(p) for p in error.problems):
            counts.faults.append(f"unclear: {error}")
    except Exception as error:  # noqa: BLE001 -- this is what the figure is about
        counts.faults.append(f"{type(error).__name__}: {error}")
    else:
        counts.accepted += 1


def try_text(text: bytes, counts: Counts) -> None:
    for parse in (lambda: parse_json(RunSpec, text, "text"), lambda: parse_toml(text, "text")):
        try:
            parse()
        except InputError as error:
            counts.refused += 1
            if not error.problems:
                counts.faults.append(f"unclear: {error}")
        except Exception as error:  # noqa: BLE001
            counts.faults.append(f"{type(error).__name__}: {error}")


def try_cli(document: Any, folder: Path, counts: Counts) -> None:
    """Give a changed study to the command that reads it, as TOML."""
    text = "\n".join(f"{json.dumps(key)} = {json.dumps(value)}" for key, value in document.items())
    (folder / "study.toml").write_bytes(text.encode("utf-8", "surrogatepass"))
    run_verb(["study", str(folder / "study.toml"), "--dry-run"], counts)


def run_verb(words: list[str], counts: Counts) -> None:
    out, err = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = steelyard(words)
    except BaseException as error:  # noqa: BLE001
        counts.faults.append(f"command line: {type(error).__name__}: {error}")
        return
    counts.through_cli += 1
    # `show` goes on without a record that it cannot read; a study is refused.
    refused = 1 if words[0] == "show" else 2
    if code not in (0, refused) or "Traceback" in err.getvalue() or (code and "error:" not in err.getvalue()):
        counts.faults.append(f"command line: exit code {code}: {err.getvalue()[:200]}")


def try_show(document: Any, results: Path, counts: Counts) -> None:
    """Put a changed record into a result folder and run the command that lists it."""
    place = results / "runs" / "adhoc" / "run"
    place.mkdir(parents=True, exist_ok=True)
    (place / "record.json").write_text(json.dumps(document), encoding="utf-8")
    run_verb(["show", "adhoc", "--results", str(results)], counts)


def run(cases: int) -> Counts:
    counts = Counts()
    relaxed = settings(max_examples=cases, deadline=None, database=None, derandomize=True,
                       suppress_health_check=list(HealthCheck))  # fmt: skip

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        @relaxed
        @given(malformed())
        def documents(case: tuple[str, Any]) -> None:
            kind, document = case
            try_document(kind, document, counts)
            if kind == "study" and isinstance(document, dict) and counts.refused % 5 == 0:
                try_cli(document, folder, counts)
            if kind == "record" and counts.refused % 5 == 0:
                try_show(document, folder / "results", counts)

        @settings(relaxed, max_examples=max(50, cases // 20))
        @given(st.binary(max_size=300) | st.text(max_size=300).map(lambda text: text.encode("utf-8", "replace")))
        def texts(text: bytes) -> None:
            try_text(text, counts)

        documents()
        texts()
        for text in (b"[" * 100_000, b'{"a":' * 100_000, b"a = " + b"[" * 5000, b"a = " + b"9" * 10_000, b"\xff\xfe"):
            try_text(text, counts)
    return counts


def main() -> None:
    options = arguments(__doc__)
    wanted = 1000 if options.quick else 10_000
    counts = run(int(wanted * 1.3))
    print(f"{counts.refused} refused, {counts.accepted} still valid, {counts.through_cli} through the command line")
    for fault in counts.faults[:10]:
        print(fault)
    finish(
        [
            at_least("malformed: refused", counts.refused, "documents", wanted),
            at_most("malformed: tracebacks or unclear errors", len(counts.faults), "documents", 0),
        ]
    )


if __name__ == "__main__":
    main()
