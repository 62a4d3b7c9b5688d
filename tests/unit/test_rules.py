"""Every rule has a bad and a good example that are run, a page, and an explanation."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from conftest import make_spec
from steelyard import plugins
from steelyard.audit.judge import try_example
from steelyard.audit.table import parse_table
from steelyard.cli.main import main
from steelyard.contracts.base import to_json_object
from steelyard.contracts.finding import Finding
from steelyard.contracts.record import RunRecord
from steelyard.contracts.spec import Budget
from steelyard.errors import InputError
from steelyard.inputs.validate import parse_object
from steelyard.rules.rule import FAMILIES, SEVERITIES, SUBJECTS, Rule, check, codes, rule
from steelyard.rules.table.row import Pair
from steelyard.terminal.findings import finding_lines, tally, tally_lines
from steelyard.terminal.rule import anchor, page, terminal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from steelyard.contracts.spec import RunSpec
    from steelyard.rules.rule import Example

ROOT = Path(__file__).resolve().parents[2]
MODULES = {
    code: target.partition(":")[0]
    for subject in SUBJECTS
    for code, target in plugins.BUILTIN[f"{subject}_rule"].items()
}
CODES = sorted(MODULES)
IN_EFFECT = {
    "matmul_dtype": "float32", "float32_products": "fp32", "deterministic": "false", "devices": "1", "device": "cuda",
}  # fmt: skip


@pytest.fixture
def sound(simulate: Callable[[RunSpec], RunRecord]) -> dict[str, Any]:
    return sound_record(simulate)


def sound_record(simulate: Callable[[RunSpec], RunRecord]) -> dict[str, Any]:
    """Return a record without findings that has everything a run rule may check."""
    spec = make_spec(batch=10, epoch_samples=1000, budget=Budget(epochs=20, min_steps=100, min_seconds=0.1))
    data = to_json_object(simulate(spec))
    data["settings"] = {"values": IN_EFFECT}
    data["model"] = {"parameters": 1000, "flops_per_sample": 1e9, "method": "counted", "last_loss": "2.3"}
    data["loss"] = {"steps": [1], "values": [2.3], "learnable": True}
    assert check("run", parse_object(RunRecord, data, "the sound record")) == ()
    return data


def merged(base: Any, over: Any) -> Any:
    if not isinstance(base, dict) or not isinstance(over, dict):
        return over
    return base | {key: merged(base.get(key), value) for key, value in over.items()}


def tried(made: Any, example: Example, sound: dict[str, Any]) -> list[Finding]:
    """Return the findings of a rule in an example."""
    if made.subject == "run":
        return list(made.check(parse_object(RunRecord, merged(sound, tomllib.loads(example.text)), "the example")))
    if made.subject == "claim":
        return try_example(made, example)
    table = parse_table(example.text, "the example")
    if made.subject == "pair":
        assert len(table.rows) == 2
        return list(made.check(Pair(*table.rows, example.factor)))
    return list(made.check(table))


@pytest.mark.parametrize("code", CODES)
def test_the_bad_example_is_found_and_the_good_one_is_not(code: str, sound: dict[str, Any]) -> None:
    made = rule(code)
    found = tried(made, made.bad, sound)
    assert {finding.code for finding in found} == {code}
    assert tried(made, made.good, sound) == []
    assert all(finding.message and finding.fix for finding in found)


@pytest.mark.parametrize("code", CODES)
def test_a_rule_says_what_it_is(code: str) -> None:
    made = rule(code)
    assert made.code == code
    assert code[2] in FAMILIES
    assert re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", made.name)
    assert made.severity in SEVERITIES
    for text in (made.why, made.detected, made.bad.says, made.good.says):
        assert len(text) > 20
        assert text.endswith(".")
    assert not made.fix.endswith(".")
    assert len(made.why) < 600


@pytest.mark.parametrize("code", CODES)
def test_a_rule_lies_in_the_folder_of_its_first_digit(code: str) -> None:
    folder = FAMILIES[code[2]].partition(" ")[0]
    assert MODULES[code].rpartition(".")[0] == f"steelyard.rules.{folder}"


def test_a_run_imports_only_the_rules_on_runs(tmp_path: Path) -> None:
    """Runs in a separate process, because other tests have imported everything."""
    script = (
        "import json, sys\n"
        "from steelyard.cli.main import main\n"
        "assert main(['run', 'sim', '--json']) == 0\n"
        "print(json.dumps(sorted(name for name in sys.modules if name.startswith('steelyard.rules.'))))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    imported = set(json.loads(done.stdout.splitlines()[-1]))
    assert imported >= {MODULES[code] for code in plugins.BUILTIN["run_rule"]}
    others = {MODULES[code] for name in SUBJECTS if name != "run" for code in plugins.BUILTIN[f"{name}_rule"]}
    assert len(others) > 10
    assert imported & others == set()


def test_a_rule_registered_as_what_it_is_not_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(plugins.BUILTIN["pair_rule"], "SY799", "test_rules:_Always")
    with pytest.raises(InputError, match="SY799 is registered as a pair rule") as error:
        rule("SY799")
    assert error.value.problems[0].problem == "the class is SY799, a run rule"


def test_names_are_told_apart() -> None:
    assert len({rule(code).name for code in CODES}) == len(CODES)


def test_the_page_of_rules_has_all_of_each() -> None:
    written = page()
    sections = {text[:5]: " ".join(text.split()).casefold() for text in written.split("\n### ")[1:]}
    assert list(sections) == sorted(CODES)
    for code, section in sections.items():
        made = rule(code)
        for text in (made.why, made.detected, made.fix, made.bad.says, made.good.says):
            assert " ".join(text.split()).casefold() in section
        assert f"[{code}](#{anchor(made)})" in written


@pytest.mark.parametrize("code", CODES)
def test_explanations_fit_a_terminal(code: str) -> None:
    made = rule(code)
    lines = terminal(made)
    examples = {line for example in (made.bad, made.good) for line in example.text.splitlines()}
    wide = [line.strip() for line in lines if len(line) > 80]
    assert [line for line in wide if line not in examples and not line.startswith("$ ")] == []


def test_explain_finds_codes_and_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "sy501"]) == 0
    by_code = capsys.readouterr().out
    assert main(["explain", "clocks-disagree"]) == 0
    assert capsys.readouterr().out == by_code
    assert "The device events count half of the elapsed time" in " ".join(by_code.split())


def test_explain_lists_every_rule(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain"]) == 0
    out = capsys.readouterr().out
    assert [code for code in codes() if code not in out] == []
    assert main(["explain", "--json"]) == 0
    assert [entry["code"] for entry in json.loads(capsys.readouterr().out)["codes"]] == codes()


def test_explain_refuses_what_is_no_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "SY999"]) == 2
    said = capsys.readouterr().err
    assert "SY999: unknown code or schema" in said
    assert said.endswith("next: steelyard explain\n")
    assert main(["explain", "SY1O3"]) == 2
    said = capsys.readouterr().err
    assert said.endswith("did you mean SY103?\nnext: steelyard explain SY103\n")


def test_findings_are_printed_like_a_linters() -> None:
    found = Finding(
        code="SY501", severity="error", message="clocks \x1b[31mdiffer", fix="do not use it", place="study/cell",
        evidence="5 s against 10 s",
    )  # fmt: skip
    assert finding_lines([found]) == [
        "study/cell: SY501 clocks-disagree (error): clocks \\x1b[31mdiffer",
        "    evidence: 5 s against 10 s",
        "    fix: do not use it",
    ]
    assert tally([found, found]) == "2 errors"
    assert tally_lines([found, found]) == [
        "2 errors. Most severe: SY501 clocks-disagree.",
        "next: steelyard explain SY501",
    ]
    assert tally_lines([]) == ["No findings."]


def test_a_rule_of_a_later_version_is_shown_all_the_same() -> None:
    found = Finding(code="SY999", severity="note", message="unheard of", fix="none")
    assert finding_lines([found])[0] == "SY999 (unknown rule) (note): unheard of"


class _Always(Rule):
    """A rule from another package."""

    code = "SY799"
    name = "always-found"
    severity = "note"
    subject = "run"
    fix = "none"

    def check(self, record: RunRecord) -> Iterator[Finding]:
        yield self.found("here")


def test_what_blocks_comes_first(sound: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(plugins.BUILTIN["run_rule"], "SY799", "test_rules:_Always")
    from steelyard.rules import rule as module

    module.rules.cache_clear()
    bad = merged(sound, {"stop": {"seconds": 5.0, "host_seconds": 10.0}, "model": {"last_loss": "nan"}})
    found = check("run", parse_object(RunRecord, bad, "the record"))
    module.rules.cache_clear()
    assert [finding.severity for finding in found] == ["error", "warning", "note"]
    assert [finding.code for finding in found] == ["SY501", "SY701", "SY799"]
