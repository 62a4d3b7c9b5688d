"""Host and device with clocks of their own: what a step waits for, on a scripted accelerator under the real classes."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch._C._autograd import DeviceType

from conftest import make_spec
from scripted_accelerator import Script, measured, truth
from steelyard.analysis.bound import leading
from steelyard.contracts.spec import Budget
from steelyard.derive.observations import StepSamples
from steelyard.worker.devices.profiler import covered_s, profile
from steelyard.worker.engine.torch_job import Apart

if TYPE_CHECKING:
    from pathlib import Path

    from steelyard.contracts.record import RunRecord

STEPS = 200
EXCHANGE = Script(buckets=((3, 1e-3), (8, 2e-3)), reduced_by=9, device_factors=(1.0, 1.0), host_factors=(1.0, 1.0))


def measure(script: Script, folder: Path, **settings: Any) -> RunRecord:
    budget = Budget(min_steps=STEPS, max_steps=STEPS, max_seconds=1e6)
    spec = make_spec(workload="tiny", device="cuda", devices=script.ranks, budget=budget, **settings)
    folder.mkdir(exist_ok=True)
    return measured(script, spec, folder)


def share(record: RunRecord, name: str) -> float:
    value = record.quantities[name].value
    assert value is not None
    return value


def codes(record: RunRecord) -> set[str]:
    return {found.code for found in record.findings}


def test_a_device_that_is_busy_a_tenth_of_the_time_is_not_computing(tmp_path: Path) -> None:
    record = measure(Script(kernels=(1e-4,) * 10, launch_s=1e-3), tmp_path)
    assert leading(record) == "host-bound"
    assert share(record, "compute_share") == pytest.approx(0.1, abs=0.01)
    assert share(record, "host_wait_share") == pytest.approx(0.9, abs=0.01)
    assert share(record, "busy_share") == pytest.approx(0.1, abs=0.01)
    assert record.queue is not None
    assert record.queue.led_share == 0.0
    found = next(found for found in record.findings if found.code == "SY611")
    assert "waited for the host 90 % of the time" in found.message
    assert "--batch 128" in found.command


def test_a_host_that_is_ahead_keeps_nothing_waiting(tmp_path: Path) -> None:
    record = measure(Script(), tmp_path)
    assert leading(record) == "compute-bound"
    assert share(record, "host_wait_share") == 0.0
    assert record.queue is not None
    assert record.queue.led_share == 1.0
    assert not codes(record) & {"SY611", "SY612", "SY613"}


def test_a_short_queue_is_not_a_slow_host(tmp_path: Path) -> None:
    """The host cannot be a whole step ahead if the queue holds less than a step; the profile shows a busy device."""
    record = measure(Script(kernels=(1e-3,) * 60, launch_s=1e-4, depth=20), tmp_path)
    assert record.queue is not None
    assert record.queue.led_share == 0.0
    assert share(record, "busy_share") == pytest.approx(1.0, abs=0.01)
    assert leading(record) == "compute-bound"


def test_without_a_profile_the_parts_are_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scripted_accelerator._profile", lambda **_: (_ for _ in ()).throw(RuntimeError("no CUPTI")))
    record = measure(Script(launch_s=5e-3), tmp_path)
    unknown = record.quantities["compute_share"]
    assert unknown.value is None
    assert unknown.reason is not None
    assert "the profiler cannot start: no CUPTI" in unknown.reason
    assert leading(record) == "cannot tell"


def test_synchronisations_inside_a_step_are_counted(tmp_path: Path) -> None:
    record = measure(Script(kernels=(2e-3,) * 2, launch_s=1e-3, syncs=2), tmp_path)
    assert record.queue is not None
    assert record.queue.synchronisations == 2.0
    found = next(found for found in record.findings if found.code == "SY612")
    assert "2 calls per step made the host wait" in found.message
    unpinned = measure(Script(copy_s=1e-3, copy="synchronous", launch_s=5e-4), tmp_path / "unpinned")
    assert unpinned.queue is not None
    assert unpinned.queue.synchronisations == 1.0


def test_events_that_cost_much_are_disclosed(tmp_path: Path) -> None:
    cheap = measure(Script(event_s=2e-6), tmp_path / "cheap")
    dear = measure(Script(kernels=(1e-5,) * 10, launch_s=1e-6, event_s=2e-6, event_host_s=1e-6), tmp_path / "dear")
    assert cheap.queue is not None
    assert cheap.queue.event_s == pytest.approx(2e-6)
    assert cheap.queue.event_host_s == pytest.approx(1e-6)
    assert "SY613" not in codes(cheap)
    found = next(found for found in dear.findings if found.code == "SY613")
    assert "2 of 2 us" in found.message


def test_a_rank_that_is_late_between_blocks_delays_no_step_of_another(tmp_path: Path) -> None:
    tables = []
    for name, script in {"plain": EXCHANGE, "late": replace(EXCHANGE, delay_rank=1, delay_s=0.5)}.items():
        measure(script, tmp_path / name)
        samples = StepSamples(tmp_path / name, 2)
        tables.append(np.concatenate([c.column("step_s") for c in samples.windowed(0, STEPS) if c.rank == 0]))
    np.testing.assert_allclose(tables[1], tables[0], rtol=1e-6)


def test_the_rank_that_the_others_wait_for_decides(tmp_path: Path) -> None:
    """The device of a rank with a faster host waits in the collective, which does not make the job slow."""
    script = replace(EXCHANGE, kernels=(2e-4,) * 10, launch_s=1e-3, host_factors=(1.0, 1.3))
    record = measure(script, tmp_path)
    true = truth(script, record.spec, STEPS)
    assert true.host > 0.5
    assert leading(record) == "host-bound"
    assert share(record, "step_time_mean") == pytest.approx(true.step_s, rel=0.005)
    assert share(record, "busy_share") == pytest.approx(true.busy, abs=0.1)


# -- the profiler


def test_spans_of_several_streams_count_once() -> None:
    assert covered_s([]) == 0.0
    assert covered_s([(0, 2), (1, 3), (1, 1.5), (5, 6)]) == pytest.approx(4.0)


# Names that profilers of real machines have printed: NVIDIA, AMD and Intel.
REAL_NAMES = {
    "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, Array<char*, 1> >": True,
    "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn": True,
    "Cijk_Ailk_Bljk_HHS_BH_MT128x128x32_MI32x32x8x1": True,
    "void at::native::batch_norm2d_transform_input_kernel<float>": True,
    "Memset (Device)": True,
    "Memcpy DtoD (Device -> Device)": True,
    "Memcpy HtoD (Pageable -> Device)": False,
    "Memcpy HtoD (Pinned -> Device)": False,
    "CopyHostToDevice": False,
    "zeCommandListAppendMemoryCopy(M2D)": False,
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)": False,
    "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)": False,
    "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)": False,
    "oneccl_allreduce_pcie": False,
    "ProfilerStep#3": False,
    "Optimizer.step#AdamW.step": False,
    "nccl:all_reduce": False,
}


@pytest.mark.parametrize(("name", "computes"), REAL_NAMES.items())
def test_names_of_real_kernels(name: str, computes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    span = SimpleNamespace(start=0.0, end=2e6)
    events = [
        SimpleNamespace(name=name, device_type=DeviceType.CUDA, time_range=span),
        SimpleNamespace(name="aten::mm", device_type=DeviceType.CPU, time_range=span),
        SimpleNamespace(name="step", device_type=DeviceType.CUDA, time_range=span, is_user_annotation=True),
        SimpleNamespace(name="x", device_type=DeviceType.CUDA, time_range=span, activity_type="gpu_user_annotation"),
    ]
    seen = SimpleNamespace(events=lambda: events)

    monkeypatch.setattr(torch.profiler, "profile", lambda activities: nullcontext(seen))
    module = SimpleNamespace(synchronize=lambda: None)
    assert profile(module, "cuda", lambda: None).compute_s == (2.0 if computes else 0.0)


def test_a_step_that_fails_under_the_profiler_fails_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []

    def run() -> None:
        ran.append(1)
        raise RuntimeError("out of memory")

    nothing = SimpleNamespace(events=list)
    monkeypatch.setattr(torch.profiler, "profile", lambda activities: nullcontext(nothing))
    with pytest.raises(RuntimeError, match="out of memory"):
        profile(SimpleNamespace(synchronize=lambda: None), "cuda", run)
    assert len(ran) == 1
    seen = profile(SimpleNamespace(synchronize=lambda: None), "cuda", lambda: None)
    assert "saw no kernel" in seen.reason


# -- agreement


class Store(dict[str, bytes]):
    """A store like torch's: values are bytes."""

    def set(self, key: str, value: str) -> None:
        self[key] = value.encode()

    def get(self, key: str) -> bytes:  # type: ignore[override]
        return self[key]


def test_ranks_that_do_not_exchange_data_agree_through_the_store() -> None:
    store = Store()
    first, second = Apart(0, store), Apart(1, store)
    assert first.agree([32, 4]) == second.agree([0, 0]) == [32, 4]
    assert first.agree([7]) == second.agree([0]) == [7]
