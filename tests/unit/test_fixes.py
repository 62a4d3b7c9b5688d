"""The command of a finding can be pasted: it parses, names what is there, and where it runs the finding is gone."""

from __future__ import annotations

import dataclasses
import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from conftest import make_spec
from steelyard.analysis.rows import row_of
from steelyard.analysis.summary import summarise
from steelyard.cli.main import main
from steelyard.cli.run import settings
from steelyard.cli.study import Command
from steelyard.cli.verb import make_parser
from steelyard.contracts.finding import Finding
from steelyard.contracts.sim import Noise, Sensor, SimTruth
from steelyard.contracts.spec import Budget, Data, Energy, Loader, Quality, RunSpec, Source
from steelyard.inputs.command import extend, join, run_again
from steelyard.inputs.study import cell_name, chosen_settings, single_run
from steelyard.results.store import ResultFolder
from steelyard.rules.rule import Example, check, rule
from steelyard.rules.table.row import Pair
from steelyard.terminal.console import _folded
from steelyard.terminal.findings import command_line, finding_lines, merged, tally_lines, with_one_remedy
from steelyard.terminal.text import RESULTS
from test_rules import IN_EFFECT, sound, tried

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from steelyard.contracts.record import RunRecord

__all__ = ["sound"]


def parsed(command: str) -> list[argparse.Namespace]:
    """Parse each part of a command with the options of its verb, which must be complete."""
    found = []
    for part in command.split(" && "):
        program, verb, *words = shlex.split(part)
        assert program == "steelyard"
        found.append(make_parser(verb).parse_args(words))
    return found


# -- the command of a run


@pytest.mark.parametrize(
    "chosen",
    [
        {},
        {"devices": 4, "batch": 64, "sim": SimTruth(step_time_s=0.02, sensors=(Sensor(period_s=0.05),))},
        {"sim": SimTruth(noise=Noise(kind="ar1")), "energy": Energy(watch=False), "study": "mine", "repeat": 3},
        {"workload": "resnet50", "precision": "bf16", "channels_last": True, "learning_rate": 1e-7, "threads": 2},
        {"workload": "gpt", "model": {"size": "800M", "layers": 3}, "budget": Budget(max_seconds=1.5)},
        {"workload": "matmul", "mode": "ceiling", "batch": 1},
        {"workload": "matmul", "mode": "ceiling", "batch": 32},
        {"workload": "tiny", "mode": "load", "loader": Loader(place="host", workers=2)},
        {"workload": "tiny", "mode": "load", "loader": Loader(place="host")},
        {"workload": "tiny", "loader": Loader(place="host", workers=2, pin_memory=True, prefetch=4)},
        {"workload": "tiny", "numa": False, "preset": "tuned", "cudnn_benchmark": False, "optimizer_kernel": "foreach"},
        {"workload": "tiny", "loader": Loader(place="host", pin_memory=False), "attention": "math", "numa": True},
        {"workload": "tiny", "epoch_samples": 64, "budget": Budget(epochs=3), "last_batch": "pad"},
    ],
    ids=str,
)
def test_a_run_is_made_again_with_the_same_settings(chosen: dict[str, Any]) -> None:
    spec = make_spec(**chosen)
    (arguments,) = parsed(run_again(spec))
    again = single_run(settings(arguments), study=arguments.study, seed=0, repeats=1, taken=lambda _: set())
    assert again.runs[0].study == spec.study
    # The load mode has other defaults for the budget, which do not matter here.
    if spec.mode != "load":
        assert chosen_settings(again.runs[0]) == chosen_settings(spec)
    else:
        assert dataclasses.replace(again.cells[0].spec.loader) == spec.loader


def test_a_command_shows_no_private_path() -> None:
    budget, loader = Budget(epochs=2), Loader(place="host")
    data = make_spec(
        workload="resnet50", data=Data(format="cifar100", path="/home/me/secret/cifar data"), loader=loader,
        budget=budget, quality=Quality(target=0.5),
    )  # fmt: skip
    assert run_again(data) == (
        "steelyard run resnet50 --data 'cifar100:cifar data' --target 0.5 --epochs 2"
    )  # fmt: skip
    source = Source(path="/home/me/secret/my.py", function="build", sha256="0" * 64)
    assert run_again(make_spec(workload="my.build", source=source)) == "steelyard run my.py:build"
    for path in ("/home/me/tok", "~/tok"):
        assert run_again(make_spec(workload="gpt", model={"tokenizer": path})) == ""


def test_changes_are_options_and_impossible_ones_give_no_command() -> None:
    spec = make_spec(devices=2)
    command = run_again(spec, {"devices": 1, "budget.max_seconds": 480.0, "loader.place": "host"}, repeats=3)
    assert command == "steelyard run sim --data host --max-seconds 480 --repeats 3"
    assert run_again(spec, {"loader.workers": 3}) == ""
    assert join("a", "", "b", "a") == "a && b"
    assert run_again(make_spec(model={f"option{n}": "x" * 60 for n in range(50)})) == ""


def test_a_study_is_extended_by_its_file_and_site() -> None:
    words = ("study", "my studies/a.toml", "--site", "olive:gh200")
    command = extend(make_spec(study="s", study_arguments=words), repeats=3)
    assert command == "steelyard study 'my studies/a.toml' --site olive:gh200 --extend"
    assert extend(make_spec(study="s"), repeats=3) == "steelyard run sim --study s --repeats 3"
    assert extend(make_spec(study="s", study_arguments=("",))) == ""


@pytest.mark.usefixtures("here")
def test_a_study_file_is_named_as_it_was_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def words_of(file: str, site: str | None = None) -> tuple[str, ...]:
        return Command(("study", file)).inside(site, (file,))

    (tmp_path / "there").mkdir()
    Path("there/real.toml").touch()
    Path("link.toml").symlink_to("there/real.toml")
    assert words_of("link.toml") == words_of(str(tmp_path / "link.toml")) == ("study", "link.toml")
    assert words_of("./-s.toml") == ("study", "./-s.toml")
    assert words_of("link.toml", "./olive.toml:gpu") == ("study", "link.toml", "--site", "olive.toml:gpu")
    monkeypatch.chdir("there")
    assert words_of("../link.toml") == words_of("real.toml", "/etc/olive.toml") == ("",)


# -- the commands of rules


RUN_CODES = {
    "SY201": "run", "SY202": "run", "SY203": "run", "SY402": "doctor", "SY403": "run", "SY404": "doctor",
    "SY405": "doctor", "SY408": "run", "SY601": "show", "SY602": "run", "SY603": "doctor",
}  # fmt: skip


@pytest.mark.parametrize(("code", "verb"), RUN_CODES.items())
def test_the_command_of_a_finding_on_a_run_parses(code: str, verb: str, sound: dict[str, Any]) -> None:
    made = rule(code)
    for found in tried(made, made.bad, sound):
        assert shlex.split(found.command)[:2] == ["steelyard", verb]
        parsed(found.command)


@pytest.mark.parametrize(("words", "verb"), [((), "run"), (("study", "s.toml"), "")])
def test_the_epochs_of_a_study_are_raised_in_its_file(sound: dict[str, Any], words: tuple[str, ...], verb: str) -> None:
    sound["spec"] |= {"study_arguments": [*words], "epoch_samples": 64, "budget": {"epochs": 2}}
    made = rule("SY201")
    (found,) = tried(made, made.bad, sound)
    assert shlex.split(found.command)[1:2] == ([verb] if verb else [])
    assert ("raise run.budget.epochs in the study's file" in found.fix) == bool(words)


@pytest.mark.parametrize(
    ("cpus", "numa", "most"),
    [([], "2", 1), ([], "", 0), ([32, 32], "2", None), ([16, 12], "2", 2)],
    ids=["four ranks on a NUMA node", "NUMA nodes unknown", "enough on each node", "too few on one node"],
)
def test_ranks_that_share_cpus(sound: dict[str, Any], cpus: list[int], numa: str, most: int | None) -> None:
    facts = {"cpu.usable": "8", "numa.nodes_with_cpus": numa}
    sound["spec"] |= {"workload": "tiny", "devices": 8, "loader": {"place": "host", "workers": 4}}
    sound["environment"]["facts"] |= facts
    sound["settings"] = {"values": {**IN_EFFECT, "numa_bound": "node 0"}}
    sound["load"] = [{"node": f"n{number}", "cpus": count} for number, count in enumerate(cpus)]
    made = rule("SY602")
    found = tried(made, Example("", ""), sound)
    assert [f"use at most {most} loader" in entry.fix for entry in found] == [True] * (most is not None)


@pytest.mark.parametrize(("device", "words"), [("cuda", ["--kv-cache", "--graphs"]), ("cpu", ["--batch"])])
def test_generation_that_waits_for_its_host_is_run_with_graphs(
    sound: dict[str, Any], device: str, words: list[str]
) -> None:
    sound["spec"] |= {"workload": "gpt", "mode": "generate", "epoch_samples": None, "budget": {}}
    sound["environment"] |= {"device": device}
    made = rule("SY611")
    (found,) = tried(made, made.bad, sound)
    parsed(found.command)
    assert all(word in found.command for word in words)
    assert ("--graphs" in found.command) == (device == "cuda")


def test_a_diverged_training_is_run_again_with_a_smaller_learning_rate(sound: dict[str, Any]) -> None:
    made = rule("SY701")
    sound["settings"] = {"values": {**IN_EFFECT, "learning_rate": "0.1"}}
    (found,) = tried(made, made.bad, sound)
    assert parsed(found.command)[0].learning_rate == pytest.approx(0.01)


def job(simulate: Callable[[RunSpec], RunRecord], **chosen: Any) -> RunRecord:
    spec = make_spec(budget=Budget(min_steps=20, max_steps=20, min_seconds=0.0), crosscheck_steps=0, **chosen)
    return simulate(dataclasses.replace(spec, configuration=cell_name(spec)))


def findings(records: list[RunRecord], other: list[RunRecord], factor: str = "system") -> dict[str, Finding]:
    (a,), (b,) = summarise(records), summarise(other)
    return {found.code: found for found in check("pair", Pair(row_of(a), row_of(b), factor))}


def test_two_sides_of_one_machine_are_compared_by_what_differs(simulate: Callable[[RunSpec], RunRecord]) -> None:
    found = findings([job(simulate)], [job(simulate, precision="bf16")])
    (arguments,) = parsed(found["SY103"].command)
    assert (arguments.factor, arguments.a.partition("/")[0]) == ("precision", "adhoc")
    assert [part.repeats for part in parsed(found["SY205"].command)] == [2, 2]


def test_two_machines_are_run_alike(simulate: Callable[[RunSpec], RunRecord]) -> None:
    fast = SimTruth(step_time_s=0.001)
    found = findings([job(simulate, batch=64)], [job(simulate, precision="bf16", sim=fast)])
    (precision,), (batch,) = parsed(found["SY103"].command), parsed(found["SY104"].command)
    assert (precision.precision, precision.batch, dict(precision.assignments)["sim.step_time_s"]) == (None, None, 0.001)
    assert (batch.precision, batch.batch, batch.repeats) == ("bf16", 64, 3)


# -- commands that run


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ResultFolder:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("STEELYARD_RESULTS", raising=False)
    return ResultFolder(Path("steelyard-results"))


def run_and_read(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    for part in command.split(" && "):
        assert main([*shlex.split(part)[1:], *(["--quiet"] if shlex.split(part)[1] == "run" else [])]) == 0
    return capsys.readouterr().out


def next_command(text: str) -> str:
    (line,) = [line for line in text.splitlines() if line.startswith("next: ")]
    return line.removeprefix("next: ")


@pytest.mark.parametrize(
    ("code", "options"),
    [
        # No steady state yet: the warm-up takes most of the steps.
        ("SY201", "--set sim.shape.warmup_amplitude=0.5 --set sim.shape.warmup_steps=30 --min-steps 60 --max-steps 60"),
        ("SY202", "--max-seconds 3 --min-steps 300"),
        ("SY203", "--max-steps 400 --min-steps 300 --min-seconds 0 --set sim.noise.kind=normal"),
    ],
)
@pytest.mark.usefixtures("here")
def test_the_finding_is_gone_after_its_command(code: str, options: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = run_and_read(f"steelyard run sim {options}", capsys)
    assert f"{code} " in text
    (found,) = [finding for finding in _stored() if finding.code == code]
    assert f"{code} " not in run_and_read(found.command, capsys)


def _stored() -> list[Finding]:
    return [found for record in ResultFolder(Path("steelyard-results")).records() for found in record.findings]


@pytest.mark.usefixtures("here")
def test_too_few_jobs_are_enough_after_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    for batch in ("8", "16"):
        run_and_read(f"steelyard run sim --batch {batch} --set sim.noise.kind=normal --study s", capsys)
    words = "steelyard compare s:batch=8 s:batch=16 --factor batch"
    command = next_command(run_and_read(words, capsys))
    run_and_read(command, capsys)
    assert "SY205" not in run_and_read(words, capsys)


@pytest.mark.usefixtures("here")
def test_a_study_names_its_file_and_each_finding_once(capsys: pytest.CaptureFixture[str]) -> None:
    Path("in").mkdir()
    Path("in/small.toml").write_text(
        'name = "small"\nrepeats = 2\n[run.budget]\nmin_steps = 300\nmax_seconds = 3.0\n[sweep]\nbatch = [8, 16]\n'
    )
    assert main(["study", "in/small.toml", "--quiet"]) == 0
    text = capsys.readouterr().out
    assert text.count("SY202 stopped-by-limit (warning)") == 1
    assert "all 2 configurations: SY202" in text
    assert next_command(text) == "steelyard study in/small.toml --extend"
    assert main([*shlex.split(next_command(text))[1:], "--quiet"]) == 0
    text = capsys.readouterr().out
    assert "SY2" not in text
    assert text.count("3 completed") == 2
    # The words that name the study are no setting of a run.
    assert main(["show", "small", "--json"]) == 0
    shown = {entry["selection"] for entry in json.loads(capsys.readouterr().out)["configurations"]}
    assert f"small/{cell_name(make_spec(batch=8, budget=Budget(min_steps=300, max_seconds=3.0)))}" in shown


@pytest.mark.usefixtures("here")
def test_a_command_names_the_results_that_were_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    text = run_and_read("steelyard run sim --results 'other place' --max-seconds 3 --min-steps 300", capsys)
    assert next_command(text).endswith(" --results 'other place'")
    assert "SY202" not in run_and_read(next_command(text), capsys)
    assert not Path("steelyard-results").exists()


@pytest.mark.usefixtures("here")
def test_also_with_json_in_errors_and_while_it_runs(capsys: pytest.CaptureFixture[str]) -> None:
    Path("s.toml").write_text(
        'name = "s"\n[run]\ntime_limit_s = 100.0\n[run.budget]\nmax_seconds = 3.0\n[run.sim]\nstep_time_s = 0.5\n'
    )
    assert main(["study", "s.toml", "--results", "other", "--json"]) == 0
    said = capsys.readouterr()
    again = "steelyard study s.toml --extend --results other"
    assert again in said.err
    (cell,) = json.loads(said.out)["configurations"]
    assert {found["command"] for found in cell["findings"]} == {again}
    Path("s.toml").write_text('name = "t"\n[search]\nfirst = 16\nlast = 64\n')
    for options in ([], ["--site", "olive:gh200"]):
        assert main(["study", "s.toml", "--results", "other", "--json", "--extend", "--dry-run", *options]) == 2
        error = json.loads(capsys.readouterr().out)["error"]
        assert error["next"] == shlex.join(["steelyard", "study", "s.toml", *options, "--results", "other"])


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ("steelyard study 'a && b.toml' --extend", "steelyard study 'a && b.toml' --extend --results 'my runs'"),
        ("steelyard run sim && steelyard doctor", "steelyard run sim --results 'my runs' && steelyard doctor"),
        ("raise the run's limit", "raise the run's limit"),
        ("use steelyard show STUDY (first)", "use steelyard show STUDY (first)"),
    ],
)
def test_each_part_of_a_command_gets_the_folder(command: str, named: str) -> None:
    assert command_line(command) == command
    token = RESULTS.set("my runs")
    try:
        assert command_line(command) == named
    finally:
        RESULTS.reset(token)


# -- how findings are listed


def finding(code: str = "SY201", **changes: Any) -> Finding:
    return Finding(**{"code": code, "severity": "warning", "message": "slow", "fix": "run longer", **changes})


def test_findings_of_several_places_are_merged() -> None:
    found = [finding(place=f"batch={batch}") for batch in (8, 16, 32)]
    assert [one.place for one in merged(found, of=3)] == ["all 3 configurations"]
    assert [one.place for one in merged(found, of=4)] == ["batch=8; batch=16; batch=32"]
    apart = [finding(place=f"batch={batch}", message=f"{batch} % slower") for batch in (8, 16, 32)]
    assert [one.place for one in merged(apart, of=3)] == ["all 3 configurations, such as batch=8"]
    assert [one.place for one in merged(apart, of=4)] == ["batch=8, and 2 more with other numbers"]


def test_findings_of_one_code_share_one_fix() -> None:
    found = [finding(place="a", command="steelyard doctor"), finding(place="b", message="fast", evidence="1 s")]
    assert finding_lines(found) == [
        "SY201 no-steady-state (warning):",
        "    a: slow",
        "    b: fast",
        "        evidence: 1 s",
        "    fix: run longer",
        "        steelyard doctor",
    ]


def test_findings_that_mean_measure_again_share_one_command() -> None:
    run = "steelyard run resnet50"
    busy = finding("SY609", command=f"steelyard doctor && {run}")
    short = finding("SY202", command=f"{run} --max-seconds 900 --repeats 3")
    wide = finding("SY203", command=f"{run} --repeats 3")
    other = finding("SY501", severity="error", command="steelyard doctor")
    told = with_one_remedy([short, busy, wide, other])
    assert [found.code for found in told] == ["SY501", "SY609", "SY202", "SY203"]
    lines = finding_lines(told)
    assert [line for line in lines if "fix: " in line][1:] == [
        "    fix: measure again, longer, when the machine is quiet"
    ]
    assert lines[-1].strip() == short.command
    assert {found.command for found in told[1:]} == {short.command}
    # One alone, or configurations with a command each, stay as they are.
    for alone in ([busy, other], [dataclasses.replace(short, place="batch=8"), dataclasses.replace(wide, place="b")]):
        assert with_one_remedy(alone) == tuple(alone)


def test_no_command_asks_for_a_day(capsys: pytest.CaptureFixture[str], here: ResultFolder) -> None:
    text = run_and_read("steelyard run sim --max-seconds 20 --set sim.step_time_s=9", capsys)
    (given,) = parsed(next_command(text))
    assert (given.max_seconds, given.repeats) == (900.0, 3)
    assert "SY201" not in run_and_read(next_command(text), capsys)
    assert len(list(here.records())) == 4


def test_the_last_line_is_the_command_of_the_most_severe_finding() -> None:
    found = [
        finding("SY202", command="steelyard run sim"), finding("SY501", severity="error", command="steelyard doctor")
    ]  # fmt: skip
    assert tally_lines(found) == ["1 error, 1 warning. Most severe: SY501 clocks-disagree.", "next: steelyard doctor"]
    assert tally_lines(found[:1]) == ["1 warning.", "next: steelyard run sim"]


def test_a_long_command_is_broken_as_a_shell_reads_it() -> None:
    command = "next: steelyard run sim --set 'a=[1, 2]' " + "--batch 8 " * 10 + "&& steelyard doctor"
    folded = _folded(command, 60)
    assert max(map(len, folded.splitlines())) <= 60
    assert all(line.endswith(" \\") for line in folded.splitlines()[:-1])
    assert shlex.split(folded.replace("\\\n", "")) == shlex.split(command)
    assert "\\" not in _folded("next: give another folder " * 5, 60)


def test_a_study_file_and_uncollected_runs_lead_to_their_verb(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "batches.toml", "--results", str(tmp_path)]) == 2
    assert "next: steelyard study batches.toml" in capsys.readouterr().err
    (tmp_path / "campaigns" / "batches").mkdir(parents=True)
    assert main(["show", "--results", str(tmp_path)]) == 2
    assert "next: steelyard status" in capsys.readouterr().err
