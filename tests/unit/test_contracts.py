"""Contracts: both sides read the same documents and refuse the same ones."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any, get_type_hints

import pytest
from pydantic import TypeAdapter

from conftest import make_spec
from steelyard.contracts import observe, record, sim, spec
from steelyard.contracts.base import Contract, from_json_object, to_json_object
from steelyard.contracts.record import Quantity, RunRecord
from steelyard.contracts.sim import Collective, Link, Noise, SimTruth
from steelyard.contracts.spec import RunSpec
from steelyard.errors import InputError
from steelyard.inputs.validate import json_schema, parse_json, plain_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FULL = RunSpec(
    run_id="a-1.b_c",
    configuration="c",
    epoch_samples=4096,
    sim=SimTruth(
        noise=Noise(kind="ar1", rho=0.5), collective=Collective(message_bytes=8, links=(Link(), Link(from_ranks=9)))
    ),
)


def test_both_readers_give_back_what_was_written() -> None:
    text = json.dumps(to_json_object(FULL))
    assert parse_json(RunSpec, text, "x") == FULL
    assert TypeAdapter(RunSpec).validate_json(text) == FULL
    assert from_json_object(RunSpec, json.loads(text)) == FULL


BAD: list[tuple[str, Any]] = [
    ("batch", 0),
    ("batch", "8"),
    ("batch", True),
    ("batch", 1.5),
    ("mode", "tran"),
    ("run_id", "../x"),
    ("run_id", "-x"),
    ("run_id", "x" * 81),
    ("seed", -1),
    ("sim", []),
    ("sim", {"noise": {"rho": 1.0}}),
    ("sim", {"noise": {"rho": None}}),
    ("sim", {"unknown": 1}),
    ("sim", {"collective": {"links": [{"from_ranks": 0}]}}),
    ("budget", {"epochs": 0}),
    ("budget", {"max_seconds": float("nan")}),
    ("budget", {"max_seconds": float("inf")}),
    ("nonsense", 1),
    ("last_batch", None),
    ("run_id", "a\n"),
    ("schema_version", 2),
    ("time_limit_s", 10**400),
]


@pytest.mark.parametrize(("field", "value"), BAD)
def test_both_readers_refuse_the_same(field: str, value: Any) -> None:
    document = {**to_json_object(FULL), field: value}
    with pytest.raises(InputError) as front:
        parse_json(RunSpec, json.dumps(document), "x")
    assert all(
        problem.field.startswith(field) and (problem.valid or "must" in problem.problem)
        for problem in front.value.problems
    )
    with pytest.raises(ValueError, match=field):
        from_json_object(RunSpec, document)


@pytest.mark.parametrize(
    "settings",
    [
        {"mode": "infer", "accumulation": 2},
        {"budget": {"epochs": 2}, "epoch_samples": None},
        {"epoch_samples": 31, "batch": 32},
        {"deterministic": True, "cudnn_benchmark": True},
        {"epoch_samples": 8 * 32 + 3, "batch": 32, "devices": 8, "last_batch": "keep"},
    ],
)
def test_fields_that_contradict_each_other(settings: dict[str, Any]) -> None:
    document = {**to_json_object(FULL), **settings}
    with pytest.raises(InputError, match="valid:"):
        parse_json(RunSpec, json.dumps(document), "x")
    with pytest.raises(ValueError, match="valid:"):
        from_json_object(RunSpec, document)


# Every kind of value, and texts and names that are of one contract or another.
OTHER: list[str] = [
    "null", "true", "0", "-0", "1", "-1", "1.0", "2.5e-7", "1e400", "NaN", "-Infinity", "123456789012345678901",
    '""', '"x"', '"steady"', '"n/a"', '"\\ud800"', '"a\\n"', "[]", "[1]", '["x"]', "[[]]", "{}", '{"value": 1}',
    '{"a": 1, "a": 2}', '{"a/b": ""}',
]  # fmt: skip


def test_both_readers_agree_on_every_value_of_a_record(simulate: Callable[[RunSpec], RunRecord]) -> None:
    """Each value is replaced by each of OTHER: the plain reader takes it only if pydantic does, and reads the same."""
    document = to_json_object(simulate(make_spec(devices=2)))
    document["quantities"] = dict([*document["quantities"].items()][:2])
    checked, taken = TypeAdapter(RunRecord), 0
    for inside, name in leaves(document):
        kept, inside[name] = inside[name], "HERE"
        before, after = json.dumps(document).split('"HERE"')
        inside[name] = kept
        for other in OTHER:
            text = before + other + after
            try:
                plain = from_json_object(RunRecord, plain_json(text))
            except ValueError:
                continue
            taken += 1
            assert repr(plain) == repr(checked.validate_json(text)), (name, other)
    assert taken > 500


def leaves(document: Any) -> Iterator[tuple[Any, Any]]:
    """The places of a document whose value holds no other; of a list those of the first entry."""
    for name, inner in [*document.items()] if isinstance(document, dict) else [*enumerate(document[:1])]:
        if isinstance(inner, dict | list) and inner:
            yield from leaves(inner)
        yield document, name


def test_a_fault_has_its_place() -> None:
    links = {"sim": {"collective": {"links": [{}, {"from_ranks": "x"}]}}}
    with pytest.raises(ValueError, match=r"^sim\.collective\.links\[1\]\.from_ranks: must be int, not str$"):
        from_json_object(RunSpec, {**to_json_object(FULL), **links})


def test_a_preset_fills_what_is_not_set() -> None:
    def tuning(**settings: Any) -> tuple[Any, ...]:
        return dataclasses.replace(FULL, **settings).tuning

    assert tuning() == (False, "default", False)
    assert tuning(preset="tuned") == (True, "fused", True)
    assert tuning(preset="tuned", cudnn_benchmark=False, optimizer_kernel="foreach") == (False, "foreach", True)
    assert tuning(gradient_as_bucket_view=True) == (False, "default", True)
    assert tuning(preset="tuned", deterministic=True) == (False, "fused", True)


def test_a_quantity_has_a_value_or_a_reason() -> None:
    common: dict[str, Any] = {"unit": "s", "scope": "job", "window": "steady", "aggregation": "mean"}
    assert Quantity(value=None, reason="no sensor", **common).value is None
    for value, reason in ((None, None), (1.0, "but why")):
        with pytest.raises(ValueError, match="exactly one"):
            Quantity(value=value, reason=reason, **common)


def test_schema_carries_bounds_and_words() -> None:
    schema = json_schema(RunSpec)
    batch = schema["properties"]["batch"]
    assert (batch["minimum"], batch["description"]) == (1, "Samples per micro-batch and device.")
    assert schema["additionalProperties"] is False


def test_every_contract_forbids_unknown_fields() -> None:
    for module in (observe, record, sim, spec):
        for value in vars(module).values():
            if isinstance(value, type) and dataclasses.is_dataclass(value) and value.__module__ == module.__name__:
                plain_data = value.__name__ in ("StepChunk", "ChunkPlace")
                assert plain_data or issubclass(value, Contract), value


def test_units_are_in_the_names_of_times() -> None:
    for name, hint in get_type_hints(SimTruth).items():
        if hint is float and "time" in name:
            assert name.endswith("_s"), name


def test_several_models_have_no_common_quality() -> None:
    settings = {
        "run_id": "x", "configuration": "x", "workload": "tiny", "parallel": "independent",
        "quality": spec.Quality(), "data": spec.Data(format="cifar10", path="/x"), "budget": spec.Budget(epochs=1),
        "loader": spec.Loader(place="host"),
    }  # fmt: skip
    assert RunSpec(**settings, devices=1).exchanges_gradients is False
    with pytest.raises(ValueError, match="devices = 1, or another value of parallel"):
        RunSpec(**settings, devices=2)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"accumulation": 3}, "accumulation: .* 4 devices needs as many micro-batches; valid: at least 4"),
        ({"precision": "fp16"}, "precision: the gradient scaler .* valid: bf16 or fp32"),
        ({"compile": "default"}, "compile: .* valid: off"),
        ({"last_batch": "keep"}, "last_batch: .* valid: drop or pad"),
        ({"mode": "infer", "accumulation": 1}, "parallel: a pipeline only trains, and mode is infer"),
        (
            {
                "quality": spec.Quality(), "data": spec.Data(format="cifar10", path="/x"),
                "budget": spec.Budget(epochs=1), "loader": spec.Loader(place="host"),
            },
            "quality: no rank of a pipeline has the whole model",
        ),
    ],
)  # fmt: skip
def test_what_a_pipeline_cannot_do_is_refused(settings: dict[str, Any], words: str) -> None:
    usual: dict[str, Any] = {"workload": "gpt", "parallel": "pipeline", "devices": 4, "accumulation": 8, "batch": 3}
    spec_of = RunSpec(run_id="x", configuration="x", **usual)
    assert (spec_of.replicas, spec_of.step_samples) == (1, 24)
    with pytest.raises(ValueError, match=words):
        RunSpec(run_id="x", configuration="x", **usual | settings)


def test_sharded_ranks_take_equal_steps() -> None:
    with pytest.raises(ValueError, match="drop or pad"):
        RunSpec(run_id="x", configuration="x", workload="tiny", parallel="fsdp2", last_batch="keep", accumulation=2)
