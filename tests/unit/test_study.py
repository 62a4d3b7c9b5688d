"""Studies: every combination once, in a random order that the seed decides."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest

from steelyard.errors import InputError
from steelyard.inputs.cost import cost
from steelyard.inputs.study import Study, expand, load_study, single_run

if TYPE_CHECKING:
    from pathlib import Path


def study(**changes: Any) -> Study:
    settings: dict[str, Any] = {
        "name": "s",
        "repeats": 4,
        "sweep": {"batch": (1, 2, 3, 4, 5), "sim.noise.kind": ("none", "normal")},
    }
    return Study(**{**settings, **changes})


def test_every_combination_in_every_repeat() -> None:
    found = expand(study())
    assert len(found.cells) == 10
    assert len({run.run_id for run in found.runs}) == len(found.runs) == 40
    for repeat in range(4):
        part = found.runs[10 * repeat : 10 * repeat + 10]
        assert {run.configuration for run in part} == {cell.name for cell in found.cells}
        assert {run.repeat for run in part} == {repeat}
    assert len({run.seed for run in found.runs}) == 40


def test_order_is_random_and_repeatable() -> None:
    def order(seed: int, repeat: int) -> list[str]:
        return [run.configuration for run in expand(study(seed=seed)).runs if run.repeat == repeat]

    assert order(1, 0) == order(1, 0)
    orders = [order(seed, repeat) for seed, repeat in itertools.product((1, 2), (0, 1))]
    assert len({tuple(each) for each in orders}) == 4


def test_spelling_out_a_default_changes_no_cell() -> None:
    plain = expand(study(sweep={}))
    spelled = expand(study(sweep={}, run={"batch": 32, "sim": {"noise": {"kind": "none"}}}))
    other = expand(study(sweep={}, run={"batch": 33}))
    assert plain.cells[0].name == spelled.cells[0].name != other.cells[0].name


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sweep": {"batch": ()}}, "list is empty"),
        ({"sweep": {"batch": (8, 8)}}, "the same"),
        ({"sweep": {"batch.x": (8,)}, "run": {"batch": 1}}, "not a table"),
        ({"sweep": {"bath": (8,)}}, "did you mean batch"),
        ({"sweep": {f"sim.noise.{n}": tuple(range(100)) for n in ("cv", "rho", "sigma", "alpha")}}, "400,000,000 runs"),
        ({"run": {"seed": 3}}, "belongs at the top of the file"),
        ({"run": {"mode": "x"}}, "must be train, infer"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        expand(study(**changes))


def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text('name = "f"\nrepeats = 2\n[run.sim]\nstep_time_s = 1\n[sweep]\ndevices = [1, 2]\n')
    found = expand(load_study(path))
    assert [cell.spec.devices for cell in found.cells] == [1, 2]
    assert cost(found).device_hours == pytest.approx(2 * 480 * (1 + 2) / 3600)
    assert cost(expand(study(sweep={}, run={"epoch_samples": 64, "budget": {"epochs": 1}}))).device_hours is None
    path.write_text("a" + ".a" * 10_000 + " = 1\n")
    with pytest.raises(InputError, match="32 parts"):
        load_study(path)
    path.write_text("name = 1979-05-27\n")
    with pytest.raises(InputError, match="must be text"):
        load_study(path)
    with pytest.raises(InputError, match="no such file"):
        load_study(tmp_path / "none.toml")


def test_a_single_run_follows_those_that_are_there() -> None:
    def made(taken: set[str]) -> list[str]:
        return [r.run_id[-5:] for r in single_run({}, study="a", seed=0, repeats=2, taken=lambda _: taken).runs]

    cell = single_run({}, study="a", seed=0, repeats=1, taken=lambda _: set()).cells[0].name
    longer = {"budget": {"max_seconds": 600, "min_steps": 5000}, "time_limit_s": 900}
    assert single_run(longer, study="a", seed=0, repeats=1, taken=lambda _: set()).cells[0].name == cell
    epochs = {"workload": "tiny", "epoch_samples": 64, "budget": {"epochs": 2}}
    assert single_run(epochs, study="a", seed=0, repeats=1, taken=lambda _: set()).cells[0].name != cell
    assert made(set()) == ["r0000", "r0001"]
    assert made({f"{cell}-r0000", f"{cell}-r0001"}) == ["r0002", "r0003"]
    assert made({f"{cell}-r0001", "another-r0007"}) == ["r0002", "r0003"]
