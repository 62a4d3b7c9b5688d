"""Ceilings: their results are checked, their sizes counted, and their numbers derived."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from conftest import make_spec
from steelyard import plugins
from steelyard.cli.main import main
from steelyard.contracts.observe import ModelFacts
from steelyard.contracts.record import Interval, Quantity
from steelyard.contracts.spec import Budget, Loader
from steelyard.derive.ceilings import ceiling_quantities
from steelyard.errors import InputError
from steelyard.worker.workloads import ceilings, collectives
from steelyard.worker.workloads.ceiling import Ceiling, Work, elements_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from steelyard.contracts.record import RunRecord
    from steelyard.contracts.spec import RunSpec

pytestmark = pytest.mark.usefixtures("torch_as_it_was")

CPU = torch.device("cpu")
SHORT = Budget(min_steps=40, max_steps=40, min_seconds=0)


def made(ceiling: Ceiling, number_format: torch.dtype = torch.float32, repeats: int = 1) -> Any:
    return ceiling.make(CPU, number_format, repeats)


# -- matrix products

SIZES = {"m": 40, "n": 56, "k": 160}


def product(dtype: str) -> Any:
    torch.manual_seed(3)
    formats = {"bf16": torch.bfloat16, "fp16": torch.float16}
    # Three of them by --precision, the others by the option.
    option = dtype if dtype in ("fp64", "int8", "fp8") else "auto"
    return made(ceilings.matmul(**SIZES, dtype=option), formats.get(dtype, torch.float32))


@pytest.mark.parametrize("dtype", ceilings.KINDS)
def test_a_product_is_right_in_every_format_and_nothing_else_passes(dtype: str) -> None:
    work = product(dtype)
    assert work.flops == 2 * 40 * 56 * 160
    assert work.effective()["matmul_dtype"] == ceilings.KINDS[dtype].factor
    work.step()
    assert work.fault() is None
    # An earlier correct result does not count again: nothing was multiplied since.
    assert "found" in work.fault()
    checked_row, checked_column = work._lines[0][1][1], work._lines[1][1][1]
    for row, column in ((checked_row, 17), (23, checked_column)):
        work.step()
        at = work._product[row, column]
        allowed = work._lines[0][3][1, 17] if row == checked_row else work._lines[1][3][1, 23]
        at += 1 if dtype == "int8" else max(4 * float(allowed), abs(float(at)) * 2e-2 + 0.02)
        words = work.fault()
        assert words is not None
        assert f"row {row}" in words
        assert f"column {column}" in words
    work.step()
    work._product[0, 0] = -(2**31) if dtype == "int8" else math.nan
    assert "row 0, column 0" in work.fault()


@pytest.mark.parametrize(("dtype", "largest"), [("fp64", 1e-10), ("fp32", 0.01), ("bf16", 0.2), ("fp16", 0.05)])
def test_what_a_product_may_be_off_is_little_and_enough(dtype: str, largest: float) -> None:
    work = product(dtype)
    work.step()
    for name, at, exact, allowed in work._lines:
        lines = work._product[at] if name == "row" else work._product.t()[at]
        assert ((lines.double() - exact).abs() <= allowed).all()
        # Sums of 160 products have a standard deviation of 4.
        assert allowed.max() < largest
        torch.testing.assert_close(
            exact.pow(2).mean().sqrt(), torch.tensor(math.sqrt(160) / 3).double(), rtol=0.2, atol=0
        )


def test_a_format_that_torch_cannot_multiply_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_given: Any, **_more: Any) -> Any:
        raise RuntimeError("_int_mm_out_cpu not implemented")

    monkeypatch.setattr(torch, "_int_mm", refuse)
    with pytest.raises(InputError, match="has no int8 matrix product on the device cpu"):
        product("int8")
    monkeypatch.delattr(torch, "float8_e4m3fn")
    with pytest.raises(InputError, match="does not have float8_e4m3fn"):
        product("fp8")

    def exhausted(*_given: Any, **_more: Any) -> Any:
        raise RuntimeError("CUDA out of memory")

    monkeypatch.setattr(torch, "mm", exhausted)
    with pytest.raises(RuntimeError, match="out of memory"):
        product("fp32")


# -- memory and copies


@pytest.mark.parametrize(("kind", "arrays"), [("copy", 2), ("scale", 2), ("add", 3), ("triad", 3)])
def test_the_kernels_of_stream_are_checked_to_the_last_element(
    kind: str, arrays: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ceilings, "PIECE_ELEMENTS", 7_000)
    work = made(ceilings.memory_bandwidth(size_mb=0.1, kind=kind))
    assert work.moved_bytes == arrays * 100_000
    work.step()
    a, b = ceilings.pattern(25_000, CPU), ceilings.pattern(25_000, CPU, 1)
    expected = {"copy": a, "scale": 3 * a, "add": a + b, "triad": a + 3 * b}[kind]
    assert torch.equal(work._result, expected)
    assert work.fault() is None
    assert "element 0: expected" in work.fault()
    for place in (0, 7_000, 24_999):
        work.step()
        work._result[place] += 1
        right = int(expected[place])
        assert work.fault() == f"element {place}: expected {right}, found {right + 1}"


@pytest.mark.parametrize("direction", ["to-device", "to-host"])
def test_copies_are_checked(direction: str) -> None:
    work = made(ceilings.host_device_copy(size_mb=0.1, direction=direction))
    assert work.moved_bytes == 100_000
    assert "found nan" in work.fault()
    work.step()
    assert work.fault() is None
    work.step()
    work._target[[3, 4]] = work._target[[4, 3]]
    assert "element 3: expected" in work.fault()
    assert work.effective() == {
        "copied": "host memory to host memory",
        "message_bytes": "100000",
        "pinned": "false",
    }


def test_a_pattern_encodes_the_position_of_its_numbers() -> None:
    numbers = ceilings.pattern(3 * 8_191, CPU)
    assert (numbers.min(), numbers.max()) == (1, 8_191)
    for distance in (1, 2, 1_024, 4_096, 8_191, 8_192, 16_382):
        assert (numbers[distance:] != numbers[:-distance]).all()
    assert (numbers != ceilings.pattern(3 * 8_191, CPU, 1)).all()
    assert torch.equal(numbers[5_000:9_000], ceilings.pattern(4_000, CPU, start=5_000))


# -- collectives, with a backend that computes what it should


class Together:
    """A fake torch.distributed on one of several ranks; the numbers of the others are known."""

    ReduceOp = SimpleNamespace(MIN="min")

    def __init__(self, rank: int, ranks: int, period: int = 8_191, stride: int = 1) -> None:
        self.rank, self.ranks = rank, ranks
        self.period, self.stride = period, stride
        self.spoil: Callable[[torch.Tensor], Any] | None = None

    def is_initialized(self) -> bool:
        return True

    def get_world_size(self) -> int:
        return self.ranks

    def get_rank(self) -> int:
        return self.rank

    def get_backend(self) -> str:
        return "together"

    def given(self, rank: int, elements: int) -> torch.Tensor:
        numbers = ceilings.pattern(elements, CPU, rank, period=self.period).double()
        return numbers.where((torch.arange(elements) + rank) % self.stride == 0, 0.0)

    def end(self, result: torch.Tensor) -> None:
        if self.spoil is not None:
            self.spoil(result)

    def all_reduce(self, tensor: torch.Tensor, op: str = "sum") -> None:
        if op == "min":
            # All ranks keep as many results.
            return
        assert torch.equal(tensor.double(), self.given(self.rank, len(tensor)))
        tensor.copy_(sum(self.given(rank, len(tensor)) for rank in range(self.ranks)))
        self.end(tensor)

    def all_gather_into_tensor(self, result: torch.Tensor, source: torch.Tensor) -> None:
        result.copy_(torch.cat([self.given(rank, len(source)) for rank in range(self.ranks)]))
        self.end(result)

    def reduce_scatter_single(self, result: torch.Tensor, source: torch.Tensor) -> None:
        whole = sum(self.given(rank, len(source)) for rank in range(self.ranks))
        assert isinstance(whole, torch.Tensor)
        result.copy_(whole.chunk(self.ranks)[self.rank])
        self.end(result)


FACTORS = {"all_reduce": 1.5, "all_gather": 0.75, "reduce_scatter": 0.75}


def swap(result: torch.Tensor) -> None:
    result[10:12] = result[10:12].flip(0)


SPOILT = {
    "off": lambda result: result[10].add_(1),
    "swap": swap,
    "shift": lambda result: result.copy_(result.roll(1)),
    "nan": lambda result: result[-1].fill_(math.nan),
    "nothing": lambda result: result.fill_(math.nan),
    "zero": lambda result: result[len(result) // 2 :].zero_(),
}


@pytest.mark.parametrize("kind", FACTORS)
def test_a_collective_is_checked_with_its_exact_result(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    together = Together(rank=2, ranks=4)
    monkeypatch.setattr(collectives, "dist", together)
    monkeypatch.setattr(collectives, "KEPT_BYTES", 3 * 8_000)
    work = made(getattr(collectives, kind)(size_mb=0.00801), repeats=2)
    # 2002 numbers, rounded down to a multiple of 4 ranks.
    assert (work.moved_bytes, work.bus_factor) == (8_000, FACTORS[kind])
    # Steps of 2 repeats: as many whole steps as fit.
    assert work.kept_results == (12 if kind == "reduce_scatter" else 2)
    for _ in range(3):
        for _ in range(work.kept_results):
            work.step()
        assert work.fault() is None
    for name, spoil in SPOILT.items():
        together.spoil = spoil
        work.step()
        together.spoil = None
        work.step()
        words = work.fault()
        assert words is not None, name
        assert words.endswith("in result 1 of 2 since the last check")


def test_a_single_wrong_result_among_many_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    together = Together(rank=1, ranks=2)
    monkeypatch.setattr(collectives, "dist", together)
    work = made(collectives.all_reduce(size_mb=0.004))
    assert work.kept_results == collectives.MAX_KEPT
    for number in range(200):
        together.spoil = SPOILT["off"] if number == 122 else None
        work.step()
    assert "element 10: expected" in (words := work.fault())
    assert words.endswith("in result 123 of 200 since the last check")


@pytest.mark.parametrize(
    ("number_format", "ranks", "period", "stride"),
    [
        pytest.param(torch.float32, 2_049, 8_191, 2, marks=pytest.mark.full("takes long: 5 s, sums of 2,049 ranks")),
        (torch.float16, 8, 251, 1),
        (torch.float16, 300, 251, 38),
        (torch.bfloat16, 8, 31, 1),
        (torch.bfloat16, 9, 31, 2),
        (torch.bfloat16, 300, 31, 38),
    ],
)
@pytest.mark.parametrize("kind", ["all_reduce", "reduce_scatter"])
def test_the_sum_of_any_number_of_ranks_is_exact(
    kind: str, number_format: torch.dtype, ranks: int, period: int, stride: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = Together(ranks - 1, ranks, period, stride)
    monkeypatch.setattr(collectives, "dist", together)
    size = ranks * torch.finfo(number_format).bits / 8
    work = made(getattr(collectives, kind)(size_mb=size / 1e6), number_format)
    assert work.moved_bytes == size
    limit = {torch.float32: 2**24, torch.float16: 2**11, torch.bfloat16: 2**8}[number_format]
    assert 0 < float(work._expected.max()) <= limit
    # The sum in another order, in the format itself.
    backwards = torch.zeros(ranks, dtype=number_format)
    for rank in range(ranks - 1, -1, -1):
        backwards += together.given(rank, ranks).to(number_format)
    own = backwards if kind == "all_reduce" else backwards[-1:]
    assert torch.equal(own, work._expected)
    work.step()
    assert work.fault() is None
    together.spoil = SPOILT["nan"]
    work.step()
    assert "found nan" in work.fault()


@pytest.mark.parametrize("number_format", [torch.float16, torch.bfloat16])
def test_short_formats_are_checked_too(number_format: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    period = {torch.float16: 251, torch.bfloat16: 31}[number_format]
    for kind, ranks in (("all_reduce", 4), ("all_gather", 20), ("reduce_scatter", 4)):
        together = Together(2, ranks, period)
        monkeypatch.setattr(collectives, "dist", together)
        work = made(getattr(collectives, kind)(size_mb=0.004), number_format)
        assert work.effective()["message_dtype"] == str(number_format).removeprefix("torch.")
        for name, spoil in SPOILT.items():
            together.spoil = spoil
            work.step()
            assert work.fault() is not None, name


def test_a_collective_needs_two(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"(?s)at least 2 devices.*devices: is 1; valid: at least 2.*--devices 2"):
        made(collectives.all_gather())
    together = Together(rank=0, ranks=2)
    reasons = iter(("no support for reduce_scatter in this process group", "Invalid scalar type"))

    def refuse(*_given: Any) -> None:
        raise RuntimeError(next(reasons))

    together.reduce_scatter_single = refuse  # type: ignore[method-assign]
    monkeypatch.setattr(collectives, "dist", together)
    for _ in range(2):
        with pytest.raises(InputError, match="the backend together does not support this collective in float32 on"):
            made(collectives.reduce_scatter(size_mb=0.1))


def test_sizes() -> None:
    assert elements_of(1, 4) == 250_000
    assert elements_of(0.000001, 4, multiple=3) == 3
    for size in (0, -1, 1e12, math.nan):
        with pytest.raises(InputError, match="size_mb"):
            elements_of(size, 4)


def test_options_that_make_no_sense_are_refused() -> None:
    with pytest.raises(InputError, match=r"(?s)model.m: is 0.*model.k: is -1"):
        ceilings.matmul(m=0, k=-1)
    with pytest.raises(InputError, match=r"model\.dtype: is int4; valid: auto, fp64, fp32, bf16, fp16, fp8, int8"):
        ceilings.matmul(dtype="int4")
    with pytest.raises(InputError, match=r"model\.kind: is dot; valid: copy, scale, add, triad"):
        ceilings.memory_bandwidth(kind="dot")
    with pytest.raises(InputError, match=r"model\.direction: is up; valid: to-device, to-host"):
        ceilings.host_device_copy(direction="up")


# -- runs


def spec_of(workload: str = "matmul", **settings: Any) -> RunSpec:
    options = {"matmul": SIZES}.get(workload, {"size_mb": 0.1})
    base = {"workload": workload, "device": "cpu", "mode": "ceiling", "batch": 2, "model": options, "budget": SHORT}
    return make_spec(**{**base, **settings})


def test_a_product_has_its_operations_per_second(simulate: Callable[[RunSpec], RunRecord]) -> None:
    record = simulate(spec_of(precision="bf16", crosscheck_steps=4))
    assert record.status.code == "completed", record.status
    assert record.model is not None
    assert (record.model.parameters, record.model.flops_per_sample) == (0, 2 * 40 * 56 * 160)
    rate, flops = record.quantities["throughput_per_device"].value, record.quantities["model_flops_device"].value
    assert rate is not None
    assert flops == pytest.approx(2 * 40 * 56 * 160 * rate)
    assert record.settings is not None
    values = record.settings.values
    assert (values["matmul_dtype"], values["product_dtype"]) == ("bfloat16", "bfloat16")
    assert values["results_checked"].startswith("the last repeat of each block")
    assert "bandwidth_device" not in record.quantities
    assert not {"SY101"} & {finding.code for finding in record.findings}


@pytest.mark.parametrize(("workload", "moved"), [("memory-bandwidth", 300_000), ("host-device-copy", 100_000)])
def test_what_is_moved_has_a_bandwidth(workload: str, moved: float, simulate: Callable[[RunSpec], RunRecord]) -> None:
    record = simulate(spec_of(workload))
    assert record.status.code == "completed", record.status
    rate, bandwidth = record.quantities["throughput_per_device"], record.quantities["bandwidth_device"]
    assert rate.value is not None
    assert bandwidth.value == pytest.approx(moved * rate.value)
    assert (bandwidth.unit, bandwidth.scope, bandwidth.window) == ("B/s", "device", rate.window)
    assert record.quantities["model_flops_device"].value is None


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"mode": "train"}, "matmul is a ceiling; mode: is train; valid: ceiling; next: --mode ceiling"),
        ({"workload": "tiny", "model": {}}, "tiny is a model; mode: is ceiling; valid: train, infer"),
        ({"workload": "all-reduce"}, "a collective needs at least 2 devices"),
        ({"workload": "memory-bandwidth", "precision": "bf16"}, "precision: is bf16; valid: fp32"),
        ({"model": {**SIZES, "dtype": "int8"}, "precision": "fp16"}, "precision: is fp16; valid: fp32"),
        ({"compile": "default", "channels_last": True}, "compile: is default; valid: off: .*channels_last: is true"),
        ({"epoch_samples": 4}, "epoch_samples: is 4; valid: none"),
        ({"loader": Loader(place="host")}, "loader.place: is host; valid: device"),
    ],
)
def test_what_a_ceiling_cannot_do_is_refused(
    settings: dict[str, Any], words: str, simulate: Callable[[RunSpec], RunRecord]
) -> None:
    spec = {"workload": "matmul", **settings}
    if spec["workload"] not in ("matmul", "tiny"):
        spec["model"] = {"size_mb": 0.1}
    status = simulate(spec_of(**spec)).status
    assert status.code == "refused", status
    assert all(part in status.reason for part in words.split(".*")), status.reason


class Counted(Work):
    """Keeps 8 results and records how many were checked; wrong from a repeat that the test sets."""

    kept_results = 8

    def __init__(self) -> None:
        self.done = self.seen = 0
        self.step = self._step

    def _step(self) -> None:
        self.done += 1

    def fault(self) -> str | None:
        LOOKS.append(self.done - self.seen)
        self.seen = self.done
        return "element 7: expected 1, found 2" if WRONG_AT and self.done >= WRONG_AT[0] else None

    def effective(self) -> dict[str, str]:
        return {}


LOOKS: list[int] = []
WRONG_AT: list[int] = []


def counted() -> Ceiling:
    return Ceiling(lambda *_given: Counted())


@pytest.fixture
def _counting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(plugins.BUILTIN["workload"], "counted", "test_ceilings:counted")
    LOOKS.clear()
    WRONG_AT.clear()


@pytest.mark.usefixtures("_counting")
def test_every_result_is_looked_at_before_it_is_lost(simulate: Callable[[RunSpec], RunRecord]) -> None:
    record = simulate(spec_of("counted", model={}, crosscheck_steps=0))
    assert record.status.code == "completed", record.status
    # One before the first step, then blocks of 1, 3 and at most 4 steps, of 2 repeats each.
    assert LOOKS[:5] == [1, 2, 6, 8, 8]
    assert max(LOOKS) == 8
    assert sum(LOOKS) == 1 + 2 * 40
    assert record.settings is not None
    assert record.settings.values["results_checked"] == f"every repeat, {len(LOOKS)} checks, none failed"


@pytest.mark.usefixtures("_counting")
@pytest.mark.parametrize(("wrong_at", "steps"), [(1, 0), (30, 16)])
def test_a_wrong_result_ends_the_run(wrong_at: int, steps: int, simulate: Callable[[RunSpec], RunRecord]) -> None:
    WRONG_AT.append(wrong_at)
    record = simulate(spec_of("counted", model={}))
    assert record.status.code == "failed"
    assert "wrong result on rank 0: element 7: expected 1, found 2" in record.status.reason
    assert record.steps_seen == steps


# -- the formulas


def test_bandwidths_follow_from_the_rate() -> None:
    interval = Interval(low=9.0, high=12.0, method="m", covers="this job")
    rate = Quantity(
        value=10.0, unit="samples/s", scope="device", window="steady", aggregation="work over time", interval=interval
    )
    memory = ModelFacts(parameters=0, flops_per_sample=None, bytes_per_sample=1e9, method="m")
    found = ceiling_quantities(rate, memory)
    assert list(found) == ["bandwidth_device"]
    assert (found["bandwidth_device"].value, found["bandwidth_device"].unit) == (1e10, "B/s")
    assert found["bandwidth_device"].interval is not None
    assert (found["bandwidth_device"].interval.low, found["bandwidth_device"].interval.high) == (9e9, 1.2e10)
    exchanged = ModelFacts(parameters=0, flops_per_sample=None, bytes_per_sample=1e9, bus_factor=1.75, method="m")
    found = ceiling_quantities(rate, exchanged)
    assert {name: quantity.value for name, quantity in found.items()} == {
        "algorithm_bandwidth": 1e10,
        "bus_bandwidth": 1.75e10,
    }
    assert ceiling_quantities(None, memory) == ceiling_quantities(rate, None) == {}
    assert ceiling_quantities(rate, ModelFacts(parameters=0, flops_per_sample=1.0, method="m")) == {}


@pytest.mark.parametrize(
    ("kind", "precision"),
    [
        pytest.param("all-reduce", "bf16", marks=pytest.mark.full("takes long: 9 s, two more ranks")),
        ("reduce-scatter", "fp16"),
    ],
)
def test_short_formats_between_two_processes(
    kind: str, precision: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = [
        "--mode",
        "ceiling",
        "--precision",
        precision,
        "--model",
        "size_mb=0.1",
        "--devices",
        "2",
        "--device",
        "cpu",
    ]
    words += ["--min-steps", "20", "--max-steps", "20", "--min-seconds", "0", "--results", str(tmp_path), "--json"]
    code = main(["run", kind, *words])
    out = capfd.readouterr()
    assert code == 0, out.out[-3000:] + out.err
    values = json.loads(out.out)["runs"][0]["settings"]["values"]
    assert values["message_dtype"] == {"bf16": "bfloat16", "fp16": "float16"}[precision]
    assert values["message_bytes"] == "100000"
    assert values["results_checked"].endswith("none failed")
