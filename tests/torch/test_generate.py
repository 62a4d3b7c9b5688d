"""Generation: the cache, token times, and the quantities derived from them."""

from __future__ import annotations

import dataclasses
import itertools
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from conftest import make_spec
from scripted_clock import TICK_S, script_the_clock
from steelyard import plugins
from steelyard.analysis.rows import row_of
from steelyard.analysis.summary import summarise
from steelyard.cli.main import main
from steelyard.contracts import observe, sample_files
from steelyard.contracts.spec import Budget, Loader
from steelyard.derive import tokens as token_numbers
from steelyard.derive.observations import StepSamples
from steelyard.derive.record import derive
from steelyard.errors import InputError
from steelyard.report.study import overview
from steelyard.report.study.subject import subject
from steelyard.results.store import record_text
from steelyard.terminal.tables import cells_lines, record_lines
from steelyard.worker.engine import generate
from steelyard.worker.engine.generate import count_generation, generation_of, prompts_of
from steelyard.worker.engine.torch_job import open_job
from steelyard.worker.measure.vendor import NvidiaSmi
from steelyard.worker.measure.writer import EventLog, StepWriter
from steelyard.worker.workloads import gpt, llama, tiny
from steelyard.worker.workloads.bundle import Generation, ModelBundle

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from steelyard.contracts.record import RunRecord
    from steelyard.contracts.spec import RunSpec

pytestmark = pytest.mark.usefixtures("torch_as_it_was")

PROMPT, NEW = 11, 6
SMALL: dict[str, Any] = {"size": "custom", "sequence": 24, "vocabulary": 97, "layers": 3, "heads": 4, "width": 32}
OPTIONS = {**SMALL, "prompt": PROMPT, "new_tokens": NEW}
SHORT = Budget(min_steps=12, max_steps=12, min_seconds=0)


def lively(**options: Any) -> ModelBundle:
    """Weights so large that the tokens vary; otherwise an untrained model repeats itself."""
    torch.manual_seed(0)
    bundle = gpt.build(**{**OPTIONS, **options})
    with torch.no_grad():
        for parameter in bundle.module.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.5)
    bundle.module.eval()
    return bundle


def greedy(bundle: ModelBundle, prompts: torch.Tensor) -> torch.Tensor:
    made = bundle.generation
    assert made is not None
    tokens, state = made.prefill(bundle.module, prompts)
    found = [tokens]
    for _ in range(made.new_tokens - 1):
        tokens, state = made.decode(bundle.module, tokens, state)
        found.append(tokens)
    return torch.cat(found, dim=1)


# -- the cache


@pytest.mark.parametrize("positions", gpt.POSITIONS)
@pytest.mark.parametrize(("prompt", "new_tokens"), [(11, 6), (1, 23), (18, 1)])
def test_tokens_with_the_cache_are_those_without(prompt: int, new_tokens: int, positions: str) -> None:
    bundle = lively(prompt=prompt, new_tokens=new_tokens, positions=positions)
    prompts = torch.randint(97, (3, prompt))
    with torch.inference_mode():
        found = greedy(bundle, prompts)
        whole = prompts
        for _ in range(new_tokens):
            whole = torch.cat([whole, bundle.module(whole)[:, -1:].argmax(dim=-1)], dim=1)
    assert torch.equal(found, whole[:, prompt:])
    assert found.shape == (3, new_tokens)
    assert len(found.flatten().unique()) > new_tokens // 2


def test_a_cache_takes_its_memory_once_and_in_the_format_of_the_computation() -> None:
    bundle = lively()
    assert bundle.generation is not None
    prompts = torch.randint(97, (2, PROMPT))
    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
        tokens, cache = bundle.generation.prefill(bundle.module, prompts)
        before = [held.data_ptr() for layer in cache.layers for held in layer._held]
        for _ in range(NEW - 1):
            tokens, cache = bundle.generation.decode(bundle.module, tokens, cache)
    assert [held.data_ptr() for layer in cache.layers for held in layer._held] == before
    assert {held.dtype for layer in cache.layers for held in layer._held} == {torch.bfloat16}
    assert {held.shape for layer in cache.layers for held in layer._held} == {(2, 4, PROMPT + NEW, 8)}
    assert cache.used == PROMPT + NEW - 1


def test_the_operations_of_a_request_are_those_of_the_closed_formula() -> None:
    for prompt, new_tokens in ((11, 6), (11, 2), (11, 1)):
        facts = count_generation(lambda p=prompt, n=new_tokens: gpt.build(**{**OPTIONS, "prompt": p, "new_tokens": n}))  # type: ignore[misc]
        closed = gpt.closed_generation_flops(3, 32, 97, prompt, new_tokens)
        assert facts.flops_per_sample == closed
        assert facts.parameters == sum(p.numel() for p in gpt.build(**OPTIONS).module.parameters())
    # Without a cache the tokens take more: the whole sequence each time.
    assert closed < gpt.closed_flops(3, 32, 11, 97)


def test_a_request_that_cannot_be_counted_says_why() -> None:
    bundle = gpt.build(**OPTIONS)

    def fails(*_given: Any) -> Any:
        raise ValueError("reads a value")

    def made() -> ModelBundle:
        return ModelBundle(
            bundle.module, bundle.loss, bundle.optimizer, bundle.batch, None, Generation(3, 3, fails, fails)
        )

    facts = count_generation(made)
    assert (facts.flops_per_sample, facts.method) == (None, "unknown: ValueError: reads a value")


# -- rejected requests


def test_what_makes_no_tokens_and_what_does_not_fit() -> None:
    with pytest.raises(InputError, match="tiny cannot generate tokens"):
        generation_of(tiny.build(), "tiny")
    with pytest.raises(InputError, match=r"(?s)20 \+ 5 new tokens = 25; valid: .* at most 24.*--model sequence"):
        generation_of(gpt.build(**{**OPTIONS, "prompt": 20, "new_tokens": 5}), "gpt")
    assert generation_of(gpt.build(**{**OPTIONS, "prompt": 20, "new_tokens": 4}), "gpt").prompt == 20
    with pytest.raises(InputError, match=r"(?s)prompt: is 0.*new_tokens: is -1"):
        gpt.build(**{**OPTIONS, "prompt": 0, "new_tokens": -1})
    # Training does not check what generation needs.
    assert gpt.build(**SMALL).tokens == 24


@pytest.mark.parametrize("inputs", [lambda ids: ids, lambda ids: (ids, 1), lambda ids: {"input_ids": ids, "mask": 2}])
def test_prompts_are_the_begin_of_the_models_own_batches(inputs: Callable[[torch.Tensor], Any]) -> None:
    bundle = gpt.build(**OPTIONS)
    batch = bundle.batch(3, torch.Generator().manual_seed(5))[0]
    other = ModelBundle(
        bundle.module, bundle.loss, bundle.optimizer, lambda n, g: (inputs(bundle.batch(n, g)[0]), None)
    )
    prompts, _ = prompts_of(other, PROMPT)(3, torch.Generator().manual_seed(5))
    assert torch.equal(prompts, batch[:, :PROMPT])


# -- runs


def spec_of(**settings: Any) -> RunSpec:
    base = {"workload": "gpt", "device": "cpu", "mode": "generate", "batch": 2, "model": OPTIONS, "budget": SHORT}
    return make_spec(**{**base, **settings})


def columns(samples: StepSamples) -> dict[str, np.ndarray[Any, Any]]:
    tables = np.concatenate([chunk.table for chunk in samples.windowed(0, 10**9)], axis=1)
    return dict(zip(sample_files.COLUMNS, tables, strict=True))


def test_every_token_has_its_time(
    simulate: Callable[[RunSpec], RunRecord], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock is read when data arrives, before the first token, after each token, and at the end of the step."""
    scripted = script_the_clock(monkeypatch)

    def forward(module: torch.nn.Module, *_given: Any) -> None:
        # A pass through the model, with a prompt or a token, takes 10 ticks.
        scripted.now_s += 10 * TICK_S if hasattr(module, "layers") else 0.0

    with torch.nn.modules.module.register_module_forward_hook(forward):
        record = simulate(spec_of(crosscheck_steps=4))
    assert record.status.code == "completed", record.status
    steps, tokens = columns(StepSamples(tmp_path, 1)), columns(StepSamples(tmp_path, 1, observe.TOKENS_PATTERN))
    assert (len(steps["step_s"]), len(tokens["step_s"])) == (12, 12 * NEW)
    assert tokens["samples"].tolist() == [2.0] * 12 * NEW
    assert np.array_equal(tokens["compute_s"], tokens["step_s"])
    np.testing.assert_allclose(tokens["step_s"], 11 * TICK_S)
    np.testing.assert_allclose(steps["input_wait_s"], TICK_S)
    # A request is its whole step except the overhead before and after it.
    outside = steps["step_s"] - steps["input_wait_s"] - tokens["step_s"].reshape(12, NEW).sum(axis=1)
    np.testing.assert_allclose(outside, 2 * TICK_S)
    starts = tokens["start_s"].reshape(12, NEW)[:, 0] - steps["start_s"] - steps["input_wait_s"]
    # Blocks of 1, 3 and 8 steps. The requests of a block are put where its first step's data arrives: a reading early.
    np.testing.assert_allclose(starts, 0.0, atol=1e-9)
    assert record.model is not None
    assert record.model.tokens_per_sample == NEW
    assert record.model.flops_per_sample == gpt.closed_generation_flops(3, 32, 97, PROMPT, NEW)
    assert record.settings is not None
    assert (record.settings.values["prompt_tokens"], record.settings.values["new_tokens"]) == ("11", "6")
    kind = "offline, fixed batch of 2, greedy, eager, dynamic cache"
    assert f"Generation: {kind}" in cells_lines(summarise([record]))
    assert f"generation: {kind}" in record_lines(record)
    assert ("Generation", kind) in overview._facts(subject("generated", summarise([record])), [])
    assert row_of(summarise([record])[0]).get("serving") == "offline, fixed batch of 2"
    assert {"tokens-00000.bin", "steps-00000.bin"} <= {file.name for file in record.raw}
    value = {name: quantity.value or 0.0 for name, quantity in record.quantities.items()}
    assert value["token_throughput"] == pytest.approx(NEW * value["throughput"])
    assert [value["ttft_p50"], value["time_per_token_p99"]] == pytest.approx([11 * TICK_S, 11 * TICK_S])
    assert value["throughput"] == pytest.approx(2 / ((11 * NEW + 3) * TICK_S))
    assert derive(tmp_path) == record


def test_generation_in_a_short_format_and_on_batches_from_the_host(simulate: Callable[[RunSpec], RunRecord]) -> None:
    host = {"loader": Loader(place="host"), "epoch_samples": 5, "last_batch": "keep", "crosscheck_steps": 0}
    record = simulate(spec_of(precision="bf16", **host))
    assert record.status.code == "completed", record.status
    assert record.settings is not None
    assert record.settings.values["matmul_dtype"] == "bfloat16"
    assert record.quantities["ttft_mean"].value is not None


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"workload": "tiny", "model": {}}, "cannot generate tokens"),
        ({"model": SMALL}, "512 + 64 new tokens = 576"),
        ({"mode": "ceiling"}, "is a model; mode: is ceiling; valid: train, infer"),
    ],
)
def test_what_cannot_be_generated_is_refused(
    settings: dict[str, Any], words: str, simulate: Callable[[RunSpec], RunRecord]
) -> None:
    status = simulate(spec_of(**settings)).status
    assert status.code == "refused"
    assert words in status.reason


def test_a_language_model_in_training_has_tokens_per_second(simulate: Callable[[RunSpec], RunRecord]) -> None:
    for mode in ("train", "infer"):
        record = simulate(spec_of(mode=mode))
        rate, tokens = record.quantities["throughput"], record.quantities["token_throughput"]
        assert rate.value is not None
        assert tokens.value == pytest.approx(24 * rate.value)
        assert (tokens.unit, tokens.scope, tokens.window) == ("tokens/s", "job", rate.window)
        # A busy machine may leave the rate without an interval.
        if rate.interval is not None:
            assert tokens.interval is not None
            assert tokens.interval.high == pytest.approx(24 * rate.interval.high)
        assert "ttft_mean" not in record.quantities
    assert "token_throughput" not in simulate(spec_of(workload="tiny", model={}, mode="infer")).quantities


@pytest.mark.full("takes long: 12 s, two ranks")
def test_two_ranks_generate_each_for_itself(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    options = [word for name, value in OPTIONS.items() for word in ("--model", f"{name}={value}")]
    short = ["--min-steps", "12", "--max-steps", "12", "--min-seconds", "0", "--threads", "1", "--json"]
    words = ["run", "gpt", "--mode", "generate", "--devices", "2", "--device", "cpu", "--batch", "2"]
    assert main([*words, *options, *short, "--results", str(tmp_path)]) == 0
    record = json.loads(capfd.readouterr().out)["runs"][0]
    assert record["settings"]["values"]["parallel"] == "replicas"
    assert {"tokens-00000.bin", "tokens-00001.bin"} <= {file["name"] for file in record["raw"]}
    rate = record["quantities"]["token_throughput"]["value"]
    assert rate == pytest.approx(NEW * record["quantities"]["throughput"]["value"])


# -- times on a device with a queue


class Queue:
    """Its events are numbers on its own clock."""

    rank = 3

    def seconds(self, events: list[float]) -> np.ndarray[Any, Any]:
        return 1e6 + np.asarray(events)


def test_tokens_are_put_on_the_clock_of_their_block() -> None:
    work = generate.Generating.__new__(generate.Generating)
    work._device = Queue()  # type: ignore[assignment]
    work._generation = Generation(5, 3, lambda *_: (torch.zeros(1), 0), lambda *_: (torch.zeros(1), 0))
    work._events, work._samples = [2.0, 2.5, 2.6, 2.8, 3.0, 3.9, 4.0, 4.1], [8, 7]
    table = dict(zip(sample_files.COLUMNS, work.tokens(start_s=10.0), strict=True))
    np.testing.assert_allclose(table["start_s"], [10.0, 10.5, 10.6, 11.0, 11.9, 12.0])
    np.testing.assert_allclose(table["step_s"], [0.5, 0.1, 0.2, 0.9, 0.1, 0.1])
    assert table["samples"].tolist() == [8, 8, 8, 7, 7, 7]
    assert (work._events, work._samples) == ([], [])


# -- the formulas, on files with known truth

FIRST_S, NEXT_S, STEPS = 0.040, 0.002, 200


def write_run(
    raw: Path, *, new_tokens: int = 5, token_steps: int = STEPS, say: bool = True, ranks: int = 2
) -> RunRecord:
    """Steps of 16 requests. The first ten take ten times as long; rank 1's first tokens take twice those of rank 0."""
    spec = spec_of(devices=ranks, batch=16)
    (raw / observe.SPEC_FILE).write_text(record_text(spec), encoding="utf-8")
    slow = np.where(np.arange(STEPS) < 10, 10.0, 1.0)
    # One of ten decoded tokens takes 3 times as long.
    late = np.where(np.arange(STEPS * (new_tokens - 1)) % 10 == 9, 3.0, 1.0).reshape(STEPS, -1)
    for rank in range(ranks):
        first = FIRST_S * (1 + rank) * slow
        rows = np.column_stack([first, NEXT_S * late * slow[:, None]])
        steps, tokens = StepWriter(raw, rank), StepWriter(raw, rank, observe.TOKENS_PATTERN)
        wait = 0.001
        steps.write(rank, table_of(rows.sum(axis=1) + wait, wait))
        tokens.write(rank, table_of(rows[:token_steps].ravel(), 0.0))
        steps.close()
        tokens.close()
        log = EventLog(raw, rank)
        if say and rank == 0:
            values = {"prompt_tokens": "100", "new_tokens": str(new_tokens)}
            log.write("settings", observe.Settings(values=values))
        log.end(observe.Status(code="completed"))
    return derive(raw)


def table_of(step_s: np.ndarray[Any, Any], wait_s: float) -> np.ndarray[Any, Any]:
    start = np.concatenate([[0.0], np.cumsum(step_s)[:-1]])
    nothing = np.zeros_like(step_s)
    return np.stack([start, step_s, nothing + wait_s, step_s - wait_s, nothing, nothing + 16])


def test_the_numbers_of_tokens_are_the_truth(tmp_path: Path) -> None:
    record = write_run(tmp_path)
    assert record.status.code == "completed", record.status
    assert record.steady is not None
    assert (record.steady.answer, record.steady.start_step) == ("steady", 10)
    value = {name: quantity.value for name, quantity in record.quantities.items()}
    # A tenth of the decoded tokens takes 3 times as long: 1.2 on average.
    decode_s = 4 * 1.2 * NEXT_S
    assert value["ttft_mean"] == pytest.approx(1.5 * FIRST_S)
    assert [value[f"ttft_{p}"] for p in ("p50", "p90", "p99")] == pytest.approx([FIRST_S, 2 * FIRST_S, 2 * FIRST_S])
    assert value["time_per_token_mean"] == pytest.approx(1.2 * NEXT_S)
    found = [value[f"time_per_token_{p}"] for p in ("p50", "p90", "p95", "p99")]
    assert found == pytest.approx([NEXT_S, NEXT_S, 3 * NEXT_S, 3 * NEXT_S])
    rates = [16 / (FIRST_S * (1 + rank) + decode_s + 0.001) for rank in (0, 1)]
    assert value["token_throughput"] == pytest.approx(5 * sum(rates))
    assert value["prefill_token_throughput"] == pytest.approx(100 * 16 * (1 / FIRST_S + 1 / (2 * FIRST_S)))
    assert value["decode_token_throughput"] == pytest.approx(2 * 16 / (1.2 * NEXT_S))
    for name, quantity in record.quantities.items():
        if name.startswith(("ttft", "time_per_token")):
            assert (quantity.unit, quantity.window) == ("s", "steady")
            assert (quantity.scope, quantity.aggregation) == (
                ("job", "mean") if name.endswith("mean") else ("rank", name.rpartition("_")[2])
            )


def test_a_run_that_was_killed_between_its_two_files(tmp_path: Path) -> None:
    value = {name: quantity.value for name, quantity in write_run(tmp_path, token_steps=150).quantities.items()}
    assert value["ttft_mean"] == pytest.approx(1.5 * FIRST_S)
    assert value["time_per_token_mean"] == pytest.approx(1.2 * NEXT_S)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"say": False}, "ended before it reported the length"),
        ({"token_steps": 10}, "end before the steady window begins"),
    ],
)
def test_numbers_that_cannot_be_told(settings: dict[str, Any], words: str, tmp_path: Path) -> None:
    found = write_run(tmp_path, **settings).quantities
    named = [name for name in found if name.startswith(("ttft", "time_per_token")) or "token_throughput" in name]
    assert len(named) == 2 * 5 + 3
    for name in named:
        assert found[name].value is None
        assert words in (found[name].reason or "")


def test_requests_of_one_token_decode_nothing(tmp_path: Path) -> None:
    found = write_run(tmp_path, new_tokens=1).quantities
    assert found["ttft_mean"].value == pytest.approx(1.5 * FIRST_S)
    assert found["token_throughput"].value == pytest.approx(found["throughput"].value)
    for name in ("time_per_token_p50", "decode_token_throughput"):
        assert (found[name].value, found[name].reason) == (None, "requests generate one token: there is no decoding")


def test_damaged_tokens_are_damage(tmp_path: Path) -> None:
    write_run(tmp_path)
    file = tmp_path / "tokens-00001.bin"
    data = bytearray(file.read_bytes())
    data[-5] ^= 0xFF
    file.write_bytes(data)
    record = derive(tmp_path)
    assert record.status.code == "failed"
    assert "tokens-00001.bin: checksum differs" in record.status.reason


def test_a_block_of_more_tokens_than_a_chunk_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_files, "MAX_CHUNK_STEPS", 7)
    writer = StepWriter(tmp_path, 0, observe.TOKENS_PATTERN)
    lengths = np.arange(1.0, 21.0)
    for _ in range(2):
        writer.write(0, table_of(lengths, 0.0))
    writer.close()
    samples = StepSamples(tmp_path, 1, observe.TOKENS_PATTERN)
    assert samples.steps == 40
    assert columns(samples)["step_s"].tolist() == [*lengths, *lengths]


def test_percentiles_are_in_order() -> None:
    assert all(a < b for a, b in itertools.pairwise(level for _, level in token_numbers.PERCENTILES))


# -- a static cache, and graphs


class Recording(TorchDispatchMode):
    """A graph as CUDA makes it: operators on fixed memory are recorded, and no value can be read by the host."""

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self._graph = graph

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert "_local_scalar_dense" not in str(func), "a value is read while a graph is recorded"
        made = func(*args, **(kwargs or {}))
        self._graph.operators.append((func, args, kwargs or {}, made))
        return made


class Graph:
    def __init__(self) -> None:
        self.operators: list[tuple[Any, Any, Any, Any]] = []
        self.replays = 0

    def replay(self) -> None:
        self.replays += 1
        for func, args, kwargs, before in self.operators:
            made = func(*args, **kwargs)
            for old, new in zip(tree_leaves(before), tree_leaves(made), strict=True):
                if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[Graph]:
    """Give the CPU graphs under the names that accelerators have them."""
    made: list[Graph] = []

    def new() -> Graph:
        made.append(Graph())
        return made[-1]

    monkeypatch.setattr(torch.cpu, "CPUGraph", new, raising=False)
    monkeypatch.setattr(torch.cpu, "graph", Recording, raising=False)
    return made


def lively_llama(**options: Any) -> ModelBundle:
    torch.manual_seed(0)
    small = {"layers": 2, "width": 64, "heads": 4, "groups": 2, "hidden": 128, "sequence": 32, "vocabulary": 256}
    bundle = llama.build(**small, **{"prompt": PROMPT, "new_tokens": NEW, **options})
    with torch.no_grad():
        for parameter in bundle.module.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.5)
    return bundle


LIVELY = [
    "test_generate:lively",
    pytest.param("test_generate:lively_llama", marks=pytest.mark.full("takes long: 15 s, loads transformers")),
]


@pytest.fixture(params=LIVELY)
def last_tokens(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return the last tokens of several batches of requests, which depend on all before, and the settings in effect."""
    monkeypatch.setitem(plugins.BUILTIN["workload"], "lively", request.param)

    def generated(model: dict[str, Any] | None = None, **settings: Any) -> tuple[list[list[int]], dict[str, str]]:
        spec = spec_of(workload="lively", model=model or {}, batch=3, **settings)
        work = open_job(spec, NvidiaSmi()).build()[0]
        assert isinstance(work, generate.Generating)
        work.compile()
        generator = torch.Generator().manual_seed(1)
        # The last batch of an epoch may be smaller.
        prompts = [torch.randint(97, (samples, PROMPT), generator=generator) for samples in (3, 3, 1, 3, 1)]
        found = [work._request(some, lambda: None).flatten().tolist() for some in prompts]
        effect = work.effective()
        work.close()
        return found, effect

    return generated


@pytest.mark.parametrize("new_tokens", [1, 2, 6])
def test_a_static_cache_and_replayed_graphs_give_the_same_tokens(
    new_tokens: int, last_tokens: Callable[..., Any], graphs: list[Graph]
) -> None:
    plain, effect = last_tokens({"new_tokens": new_tokens})
    assert (effect["kv_cache"], effect["decode"], effect["sampling"]) == ("dynamic", "eager", "greedy")
    assert effect["requests"] == "offline, fixed batch of 3"
    assert len({token for tokens in plain for token in tokens}) > 5
    static, effect = last_tokens({"new_tokens": new_tokens}, kv_cache="static")
    assert (static, effect["kv_cache"], effect["decode"]) == (plain, "static", "eager")
    assert graphs == []
    replayed, effect = last_tokens({"new_tokens": new_tokens}, kv_cache="static", graphs=True)
    assert replayed == plain
    # One graph for each size of a batch. The first was recorded before the first step.
    decodes = new_tokens - 1
    assert [graph.replays for graph in graphs] == ([decodes * 4, decodes * 2] if decodes else [])
    assert effect["decode"] == ("graph replay" if decodes else "eager")


def test_replayed_graphs_in_a_short_format(last_tokens: Callable[..., Any], graphs: list[Graph]) -> None:
    short = {"precision": "bf16", "kv_cache": "static"}
    assert last_tokens(**short)[0] == last_tokens(**short, graphs=True)[0]
    assert len(graphs) == 2


def test_a_static_cache_keeps_its_memory_and_shape() -> None:
    bundle = lively()
    made = bundle.generation
    assert made is not None
    assert made.static is not None
    cache = made.static()
    before = None
    with torch.inference_mode():
        for _ in range(2):
            cache.reset()
            tokens, _ = made.decode(bundle.module, torch.randint(97, (2, PROMPT)), cache)
            for _ in range(NEW - 1):
                tokens, _ = made.decode(bundle.module, tokens, cache)
            held = [(one.data_ptr(), one.shape) for layer in cache.layers for one in layer._held]
            assert before in (None, held)
            before = held
    assert {shape for _, shape in held} == {(2, 4, PROMPT + NEW, 8)}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"graphs": True, "kv_cache": "static"}, "has no graphs for the device cpu; next: leave --graphs out"),
        (
            {"workload": "growing", "model": {}, "kv_cache": "static"},
            "has no static cache; kv_cache: is static; valid: dynamic",
        ),
    ],
)
def test_a_cache_or_graphs_that_cannot_be_had_are_refused(
    settings: dict[str, Any], words: str, simulate: Callable[[RunSpec], RunRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(plugins.BUILTIN["workload"], "growing", "test_generate:growing")
    status = simulate(spec_of(**settings)).status
    assert (status.code, words in status.reason) == ("refused", True), status.reason


def growing() -> ModelBundle:
    bundle = lively()
    assert bundle.generation is not None
    return dataclasses.replace(bundle, generation=dataclasses.replace(bundle.generation, static=None))


def test_settings_that_only_generation_has() -> None:
    with pytest.raises(ValueError, match="kv_cache: the mode infer generates no tokens"):
        spec_of(mode="infer", kv_cache="static")
    with pytest.raises(ValueError, match="autocast: a static cache has one number format"):
        spec_of(kv_cache="static", autocast=True)
    with pytest.raises(ValueError, match="kv_cache: a graph needs memory of fixed size"):
        spec_of(graphs=True)
