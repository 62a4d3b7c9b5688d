"""Programs in specs and studies: placeholders, names, sweeps, and what may not be beside them."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING, Any

import pytest

from steelyard.contracts.base import from_json_object, to_json_object
from steelyard.contracts.finding import Finding
from steelyard.contracts.spec import RunSpec
from steelyard.contracts.wrap import Program, literal, program_name
from steelyard.errors import InputError
from steelyard.inputs.command import extend, published_command, run_again, run_longer
from steelyard.inputs.study import Expansion, expand, load_study
from steelyard.report.page import Page, Section
from steelyard.report.render.html import html
from steelyard.report.render.latex import latex
from steelyard.report.render.markdown import markdown
from steelyard.worker.wrap.place import NodePlace

if TYPE_CHECKING:
    from pathlib import Path


def study(folder: Path, text: str) -> Expansion:
    path = folder / "study.toml"
    path.write_text(f'name = "mine"\nrepeats = 1\n{text}', encoding="utf-8")
    return expand(load_study(path), folder)


def commands(expansion: Expansion) -> list[list[str]]:
    return [
        cell.spec.program.words({"devices": cell.spec.devices})
        for cell in expansion.cells
        if cell.spec.program is not None
    ]


def test_placeholders_and_braces() -> None:
    parameters: dict[str, bool | int | float | str] = {"batch": 8, "lr": 1e-05, "amp": True, "name": "a b"}
    program = Program(
        command=("torchrun", "--n={devices}", "{batch}x{lr}", "{amp}", "{name}", '{{"a": {{}}}}'), parameters=parameters
    )
    assert program.words({"devices": 2}) == ["torchrun", "--n=2", "8x1e-05", "true", "a b", '{"a": {}}']
    odd = ['{"a": 1}', "}{", "{{x}}", ""]
    assert Program(command=("p", *literal(odd))).words({})[1:] == odd


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"command": ()}, "command: has no words"),
        ({"command": ("p", "{batch}")}, r"command: \{batch\} stands for nothing; valid: \{devices\}, .*, or \{\{"),
        ({"command": ("p", "a{")}, "command: a single brace stands for nothing"),
        ({"command": ("p",), "parameters": {"lr": 1}}, r"parameters.lr: the command does not use it; .* \{lr\}"),
        ({"command": ("p", "{devices}"), "parameters": {"devices": 1}}, "parameters.devices"),
    ],
)
def test_what_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Program(**fields)


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("torchrun --nproc-per-node 2 dir/train.py --config=a.py", "train"),
        ("python -m torch.distributed.run run_clm.py", "run_clm"),
        ("python -m my.pkg.train --x", "train"),
        ("python -m my.__main__", "my"),
        ("/opt/bin/megatron --x", "megatron"),
        ("bash ./go.sh", "go"),
        ("./§", "program"),
    ],
)
def test_names(words: str, name: str) -> None:
    assert program_name(words.split()) == name


def test_a_spec_with_a_program_is_one_process_and_never_simulated() -> None:
    spec = RunSpec(run_id="x", configuration="x", workload="sim", devices=8, program=Program(command=("./sim.py",)))
    assert (spec.processes, spec.device_family) == (1, "auto")
    assert from_json_object(RunSpec, to_json_object(spec)) == spec
    with pytest.raises(ValueError, match="device: a program does not run on the simulated device"):
        RunSpec(run_id="x", configuration="x", device="sim", program=Program(command=("p",)))


def test_a_sweep_over_placeholders(tmp_path: Path) -> None:
    text = """
    [run.program]
    command = "torchrun --nproc-per-node {devices} train.py --batch {batch} --note 'a b'"
    [sweep]
    devices = [1, 2]
    batch = [16, 32]
    """
    found = study(tmp_path, text)
    assert commands(found)[1] == ["torchrun", "--nproc-per-node", "1", "train.py", "--batch", "32", "--note", "a b"]
    assert [cell.swept for cell in found.cells][3] == {"devices": 2, "batch": 32}
    assert {cell.spec.workload for cell in found.cells} == {"train"}
    assert len({cell.name for cell in found.cells}) == 4
    # The long name of the same sweep gives the same configurations, and thus the same runs.
    long = study(tmp_path, text.replace("batch = [", '"program.parameters.batch" = ['))
    assert [cell.name for cell in long.cells] == [cell.name for cell in found.cells]


def test_a_command_is_split_without_a_shell(tmp_path: Path) -> None:
    assert commands(study(tmp_path, "run.program.command = \"sh -c 'a | b' $HOME *\"")) == [
        ["sh", "-c", "a | b", "$HOME", "*"]
    ]
    assert commands(study(tmp_path, 'run.program.command = ["a b", "c\'"]')) == [["a b", "c'"]]
    swept = 'run.program.command = "a"\nsweep."program.command" = ["a 1", "a 2"]'
    assert commands(study(tmp_path, swept)) == [["a", "1"], ["a", "2"]]
    with pytest.raises(InputError, match=r"run.program.command: No closing quotation"):
        study(tmp_path, 'run.program.command = "a \'b"')


def test_settings_that_a_program_does_not_obey(tmp_path: Path) -> None:
    allowed = "[run]\ndevices = 2\ntime_limit_s = 9\ndevice = 'cpu'\nenergy.idle_s = 1\n"
    command = "program.command = 'train {devices}'\n"
    assert commands(study(tmp_path, allowed + command)) == [["train", "2"]]
    with pytest.raises(InputError, match=r"run.batch: is not applied to a program") as caught:
        study(tmp_path, allowed + "batch = 2\nbudget.max_steps = 5\n" + command)
    assert "run.budget: is not applied to a program" in str(caught.value)
    with pytest.raises(InputError, match="environment variable that the program reads"):
        study(tmp_path, "run.program.command = 'train --api-key q7Wb2nXk9PzL4vRt'")


def test_the_place_of_a_node(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told = {"STEELYARD_NODES": "2", "STEELYARD_NODE": "1", "STEELYARD_MEETING_HOST": "n1", "STEELYARD_FOLDER": "/x"}
    for name, value in {**told, "PYTHONSAFEPATH": "1", "PYTHONPATH": "/own"}.items():
        monkeypatch.setenv(name, value)
    place = NodePlace.read(8, os.environ)
    command = ("run", "{devices}", "{devices_per_node}", "{nodes}", "{node}", "{host}:{port}")
    assert Program(command=command).words(place.values()) == ["run", "8", "4", "2", "1", "n1:" + place.port]
    given = place.environment("/inject")
    wanted = {"NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "n1", "MASTER_PORT": place.port}
    wanted |= {f"PET_{name}": value for name, value in wanted.items()} | {"PET_NPROC_PER_NODE": "4"}
    assert wanted.items() <= given.items()
    assert given["PYTHONPATH"] == "/inject:/own"
    assert not given.keys() & {"PYTHONSAFEPATH", "STEELYARD_NODES", "STEELYARD_NODE", "STEELYARD_FOLDER"}
    assert place.first_rank(tmp_path) is None
    (tmp_path / "processes-00001.jsonl").write_text('{"rank": null}\n{"rank": 5}\n{"rank": 4}\n{')
    assert place.first_rank(tmp_path) == 4
    alone = NodePlace.read(1, {})
    assert (alone.nodes, alone.first_rank(tmp_path)) == (1, 0)


def test_the_command_of_a_program_again() -> None:
    program = Program(command=("python", "/home/me/train.py", "--data=/home/me/set", "{lr}"), parameters={"lr": 0.1})
    spec = RunSpec(run_id="x", configuration="x", workload="train", program=program)
    same = "-- python /home/me/train.py --data=/home/me/set 0.1"
    assert run_again(spec, repeats=3) == f"steelyard wrap --repeats 3 {same}"
    assert run_again(spec, {"batch": 2}) == "", "the program would have to be changed"
    assert run_longer(spec, 3) == "", "it runs to its end"
    limited = dataclasses.replace(spec, program=dataclasses.replace(program, max_steps=100), time_limit_s=60.0)
    assert run_longer(limited, 3) == f"steelyard wrap --max-steps 200 --time-limit-s 60 --repeats 3 {same}"
    studied = dataclasses.replace(limited, study_arguments=("study", "a.toml"))
    assert extend(studied, repeats=2) == "steelyard study a.toml --extend"
    assert run_longer(studied, 2) == "", "its file would have to be changed"


@pytest.mark.parametrize(
    ("command", "public"),
    [
        ("steelyard wrap -- python train.py --data=sets/a --url https://x.org/a/b", True),
        ("steelyard wrap -- /opt/python/bin/python3 train.py", False),
        ("steelyard wrap -- python '~/my train.py'", False),
        ("steelyard wrap -- python train.py --data=/home/me/set", False),
        ("steelyard wrap -- bash -c 'cd /home/me && exec python train.py'", False),
        ("steelyard wrap -- a && steelyard wrap -- ~/bin/b", False),
        ("it's a sentence", True),
    ],
)
def test_a_command_with_private_folders_is_not_published(command: str, *, public: bool) -> None:
    assert published_command(command) == (command if public else "")
    finding = Finding(code="SY203", severity="note", message="m", fix="f", command=command)
    page = Page("t", "", (Section("s", "S", findings=(finding,)),), "2026-01-01T00:00:00Z", "me")
    for text in (html(page), markdown(page), latex(page, {})):
        told = text.replace(r"\allowbreak{}", "")
        assert ("train.py" in told or "home" in told) == (public and "train" in command)


def test_a_misspelt_placeholder_goes_before_the_setting_it_was_for(tmp_path: Path) -> None:
    text = "run.program.command = 'train.py --size {btach} --lr {lr}'\nsweep.batch = [1, 2]\nsweep.lr = [0.1]\n"
    with pytest.raises(InputError, match=r"did you mean {batch}") as caught:
        study(tmp_path, text)
    (problem,) = caught.value.problems
    assert (problem.field, problem.problem) == ("run.program.command", "{btach} stands for nothing")
    with pytest.raises(InputError, match=r"{x} stands for nothing; valid: .*{devices}.*{batch}"):
        study(tmp_path, text.replace("btach", "x"))
