"""Records of wrapped programs, from raw files with known contents."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from conftest import make_spec
from steelyard.analysis.compare import compare
from steelyard.analysis.extension import Extension, Need
from steelyard.analysis.rows import row_of
from steelyard.analysis.summary import labels, summarise, why_longer
from steelyard.contracts import observe, sample_files
from steelyard.contracts.base import to_json_object
from steelyard.contracts.finding import Finding
from steelyard.contracts.record import RunRecord
from steelyard.contracts.sim import Node, Power, Sensor, SimTruth
from steelyard.contracts.spec import RunSpec
from steelyard.contracts.wrap import Program, ProgramEnd, Wrapped
from steelyard.derive.observations import Observations
from steelyard.derive.printed.claims import printed_claims
from steelyard.derive.record import derive
from steelyard.inputs.study import Configuration
from steelyard.inputs.validate import parse_json
from steelyard.results.store import record_text
from steelyard.rules.statistics.runs import too_short
from steelyard.terminal.live.progress import Progress
from steelyard.terminal.study import extension_lines
from steelyard.terminal.tables import cells_lines, record_lines
from steelyard.worker.engine.run import run_directory
from steelyard.worker.wrap.output import BoundedLog, Passage

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from steelyard.rules.table.row import Row

STEPS, STEP_S, WAIT_S, BATCH, ACCUMULATION = 400, 0.02, 0.005, 8, 4
TOKENS, PADDING, LABELS = 1000.0, 250.0, 600.0
COMMAND = ("torchrun", "--nproc-per-node", "2", "train.py", "--batch", "8")
SETTINGS = {
    "batch": "8", "accumulation": "4", "precision": "bf16", "compile": "on", "parallel": "ddp", "optimizer": "AdamW",
    "loader.workers": "3", "loader.pin_memory": "true", "float32_products": "tf32", "torch": "2.5.1", "device": "cpu",
}  # fmt: skip
NAN = float("nan")
TIMES = STEP_S * (1 + 0.01 * np.random.default_rng(0).standard_normal(STEPS))


def end(**changes: Any) -> ProgramEnd:
    said: dict[str, Any] = {
        "exit_code": 0, "start_s": 1.0, "wall_s": 30.0, "cpu_s": 55.0, "peak_rss_bytes": 2e9, "output_bytes": 12,
        "ended_by": "itself",
    }  # fmt: skip
    return ProgramEnd(**said | changes)


def report(rank: int, world: int, **changes: Any) -> Wrapped:
    said: dict[str, Any] = {
        "rank": rank, "world": world, "device": "cpu", "timing": "host clock", "steps": STEPS, "updates": STEPS,
        "backwards": STEPS * ACCUMULATION, "accumulation": ACCUMULATION, "batch": BATCH, "samples_known": True,
        "tokens_known": True, "evaluation_s": 1.5 + rank, "checkpoint_s": 0.5,
    }  # fmt: skip
    return Wrapped(**said | changes)


class Raw:
    """A raw folder, written as the supervisor and the observers of the ranks do."""

    def __init__(self, path: Path, **program: Any) -> None:
        self.path = path
        path.mkdir(parents=True)
        words = program.pop("command", COMMAND)
        self.spec = RunSpec(
            run_id="run", configuration="train-1", workload="train", program=Program(command=words, **program)
        )
        (path / observe.SPEC_FILE).write_text(record_text(self.spec), encoding="utf-8")

    def end(self, node: int = 0, **changes: Any) -> None:
        (self.path / f"program-{node:05d}.json").write_text(record_text(end(**changes)), encoding="utf-8")

    def process(self, node: int = 0, **said: Any) -> None:
        line = {"pid": 7, "ppid": 1, "argv": ["python", "train.py"], "rank": None, "world": None, "python": "3.11.7"}
        with (self.path / f"processes-{node:05d}.jsonl").open("a") as file:
            file.write(json.dumps(line | said) + "\n")

    def tell(self, rank: int, kind: str, said: dict[str, Any]) -> None:
        with (self.path / f"events-{rank:05d}.jsonl").open("a") as file:
            file.write(json.dumps({"kind": kind, **said}) + "\n")

    def steps(self, name: str, rank: int, *columns: float, steps: int = STEPS) -> None:
        times = TIMES[:steps]
        rows = [2.0 + np.concatenate([[0.0], np.cumsum(times)[:-1]]), times, *(np.full(steps, one) for one in columns)]
        with (self.path / f"{name}-{rank:05d}.bin").open("wb") as file:
            file.write(sample_files.FILE_MAGIC)
            for first in range(0, steps, 100):
                sample_files.write_chunk(file, rank, first, np.stack(rows)[:, first : first + 100])

    def rank(self, rank: int, world: int, *, samples: float = BATCH * ACCUMULATION, **changes: Any) -> None:
        """One rank that has trained."""
        self.process(rank=rank, world=world)
        place = observe.Environment(node="n1", allocation=None, device="cpu", timing="host clock", facts={})
        self.tell(rank, "environment", to_json_object(place))
        self.tell(rank, "settings", {"values": SETTINGS})
        self.tell(rank, "wrapped", to_json_object(report(rank, world, steps=3, updates=3)))
        self.tell(rank, "wrapped", to_json_object(report(rank, world, **changes)))
        self.tell(rank, "phase", {"name": "steps", "start_s": 2.0, "end_s": 2.0 + STEPS * STEP_S})
        self.tell(rank, "phase", {"name": "checkpoint", "start_s": 3.0, "end_s": 3.5})
        self.steps("steps", rank, WAIT_S, NAN, NAN, samples)
        self.steps("work", rank, ACCUMULATION, LABELS, PADDING, TOKENS)

    def record(self) -> RunRecord:
        """The record, which can be stored and read again."""
        record = derive(self.path)
        assert parse_json(RunRecord, record_text(record), "record") == record
        return record


@pytest.fixture
def raw(tmp_path: Path) -> Raw:
    return Raw(tmp_path / "raw")


def trained(raw: Raw, world: int = 2, **changes: Any) -> Raw:
    for rank in range(world):
        raw.rank(rank, world, **changes)
    raw.end()
    return raw


def value(record: RunRecord, name: str) -> float | None:
    return record.quantities[name].value


def codes(record: RunRecord) -> set[str]:
    return {found.code for found in record.findings}


# -- what was seen


def test_a_program_of_two_ranks_has_exact_figures_and_its_settings(raw: Raw) -> None:
    record = trained(raw).record()
    assert record.status == observe.Status(code="completed")
    assert record.steady is not None
    assert record.steady.answer == "steady"
    spec, seen = record.spec, record.wrapped
    assert (spec.devices, spec.batch, spec.accumulation, spec.precision, spec.compile) == (2, 8, 4, "bf16", "default")
    assert (spec.parallel, spec.loader.place, spec.loader.workers, spec.loader.pin_memory) == ("ddp", "host", 3, True)
    assert (spec.program, spec.run_id, spec.configuration) == (raw.spec.program, "run", "train-1")
    assert seen is not None
    assert (seen.level, seen.world, seen.processes, seen.ranks_reported) == (2, 2, 2, 2)
    assert (seen.steps, seen.updates, seen.backwards, seen.optimizers) == (STEPS, STEPS, 4 * STEPS, 1)
    assert (seen.samples, seen.evaluation_s, seen.checkpoint_s, seen.unknown) == ("seen", 2.5, 0.5, {})
    assert seen.end == end()
    mean = float(TIMES[record.steady.start_step : record.steady.stop_step].mean())
    rate = 2 * BATCH * ACCUMULATION / mean
    exact = {
        "throughput": rate, "throughput_per_device": rate / 2, "step_time_mean": mean,
        "token_throughput": 2 * TOKENS / mean, "label_token_throughput": 2 * LABELS / mean,
        "padding_share": PADDING / (TOKENS + PADDING), "input_wait_share": WAIT_S / mean, "program_time": 30.0,
        "program_cpu_time": 55.0, "program_memory_peak": 2e9, "first_step_time": float(TIMES[0]),
    }  # fmt: skip
    for name, known in exact.items():
        assert value(record, name) == pytest.approx(known, rel=1e-9), name
    for name in ("throughput", "step_time_mean", "token_throughput"):
        assert record.quantities[name].interval is not None
    assert {"setup_time", "compile_time"}.isdisjoint(record.quantities)
    assert [phase.name for phase in record.phases][:2] == ["steps", "checkpoint"]
    assert {"SY627"} <= codes(record) <= {"SY203", "SY627"}
    again = [found.command for found in record.findings if found.code == "SY203"]
    assert all(command.startswith("steelyard wrap --repeats 3 -- torchrun") for command in again)


def test_samples_that_a_loader_hides_leave_the_step_times(raw: Raw) -> None:
    record = trained(raw, samples=0, samples_known=False, samples_reason="own loader", batch=None).record()
    mean = record.quantities["step_time_mean"]
    assert mean.value == pytest.approx(STEP_S, rel=2e-3)
    assert mean.interval is not None
    for name in ("throughput", "throughput_per_device"):
        assert (value(record, name), record.quantities[name].reason) == (None, "own loader")
    assert value(record, "token_throughput") == pytest.approx(2 * TOKENS / STEP_S, rel=2e-3)
    assert record.wrapped is not None
    assert (record.wrapped.samples, record.wrapped.unknown) == ("unknown", {"batch": "own loader"})
    (found,) = (found for found in record.findings if found.code == "SY621")
    assert found.command == "steelyard wrap --samples-per-step N -- torchrun --nproc-per-node 2 train.py --batch 8"


def test_samples_that_the_user_states_are_marked(tmp_path: Path) -> None:
    raw = trained(Raw(tmp_path / "raw", samples_per_step=96.0), samples=0, samples_known=False, samples_reason="own")
    record = raw.record()
    step_s = value(record, "step_time_mean")
    assert step_s is not None
    assert value(record, "throughput") == pytest.approx(96 / step_s, rel=1e-9)
    assert value(record, "throughput_per_device") == pytest.approx(48 / step_s, rel=1e-9)
    assert record.wrapped is not None
    assert record.wrapped.samples == "stated"
    assert "SY621" not in codes(record)


def test_what_was_seen_counts_more_than_what_is_stated(tmp_path: Path) -> None:
    record = trained(Raw(tmp_path / "raw", samples_per_step=1.0)).record()
    assert value(record, "throughput") == pytest.approx(64 / STEP_S, rel=2e-3)
    assert record.wrapped is not None
    assert record.wrapped.samples == "seen"


def test_unknown_tokens_padding_and_labels_have_a_reason(raw: Raw, tmp_path: Path) -> None:
    record = trained(raw, tokens_known=False, tokens_reason="the batches have no input_ids").record()
    assert record.quantities["token_throughput"].reason == "the batches have no input_ids"
    assert "padding_share" not in record.quantities
    other = trained(Raw(tmp_path / "other"), world=1)
    other.steps("work", 0, 1, NAN, NAN, TOKENS)
    record = other.record()
    assert value(record, "token_throughput") == pytest.approx(TOKENS / STEP_S, rel=2e-3)
    assert record.quantities["padding_share"].reason == "the batches have no attention mask"
    assert value(record, "label_token_throughput") is None


def test_a_setting_that_was_not_read_back_is_named(raw: Raw) -> None:
    raw.rank(0, 1, batch=None, accumulation=None)
    raw.tell(0, "settings", {"values": {"precision": "fp64", "loader.workers": "-1"}})
    raw.end()
    record = raw.record()
    assert record.wrapped is not None
    assert record.wrapped.unknown == {
        "batch": "it is not the same in all steps and ranks",
        "accumulation": "it is not the same in all steps and ranks",
        "precision": "it is fp64", "compile": "the program did not report it",
        "parallel": "the program did not report it", "loader.workers": "no loader of torch was seen",
    }  # fmt: skip
    assert value(record, "throughput") is not None


# -- what was not seen


def test_without_python_there_is_only_the_process(raw: Raw) -> None:
    raw.end()
    record = raw.record()
    assert record.status.code == "completed"
    assert record.wrapped is not None
    assert (record.wrapped.level, record.wrapped.processes, record.wrapped.world) == (0, 0, None)
    assert {name: value(record, name) for name in record.quantities if name.startswith("program")} == {
        "program_time": 30.0, "program_cpu_time": 55.0, "program_memory_peak": 2e9,
    }  # fmt: skip
    assert "throughput" not in record.quantities
    assert codes(record) == {"SY619"}
    assert set(record.wrapped.unknown) == {
        "devices", "batch", "accumulation", "precision", "compile", "parallel", "loader.workers",
    }  # fmt: skip


def test_python_that_trains_nothing_we_know_gets_the_way_to_mark_steps(raw: Raw) -> None:
    raw.process()
    raw.end()
    record = raw.record()
    assert codes(record) == {"SY620"}
    assert "steelyard.mark_step()" in record.findings[0].fix


def test_a_rank_that_did_not_report_in_leaves_the_throughput_unknown(raw: Raw) -> None:
    raw.rank(0, 2)
    raw.process(rank=1, world=2)
    raw.end()
    record = raw.record()
    assert record.quantities["throughput"].reason == "only 1 of 2 ranks reported in"
    assert value(record, "step_time_mean") == pytest.approx(STEP_S, rel=2e-3)
    assert {"SY619"} <= codes(record) <= {"SY619", "SY203", "SY627"}


@pytest.mark.parametrize(("asked", "is_other"), [(1, False), (2, False), (4, True)])
def test_devices_that_were_asked_for_and_not_used_are_a_finding(raw: Raw, asked: int, *, is_other: bool) -> None:
    raw.spec = replace(raw.spec, devices=asked)
    (raw.path / observe.SPEC_FILE).write_text(record_text(raw.spec), encoding="utf-8")
    record = trained(raw).record()
    assert record.spec.devices == 2
    assert ("SY626" in codes(record)) is is_other


def test_skipped_updates_are_a_finding(raw: Raw) -> None:
    record = trained(raw, skipped_updates=40).record()
    assert "SY705" in codes(record)


# -- energy


@pytest.mark.parametrize("known", [True, False])
def test_the_energy_of_a_program_is_that_of_its_steps(tmp_path: Path, *, known: bool) -> None:
    """The files of a simulated job with two nodes of two devices, told as if a program had made them."""
    truth = SimTruth(
        step_time_s=0.05, power=Power(idle_w=80, compute_w=300), sensors=(Sensor(period_s=0.02),),
        node=Node(devices_per_node=2),
    )  # fmt: skip
    simulated, raw = make_spec(devices=4, sim=truth), Raw(tmp_path / "raw")
    (raw.path / observe.SPEC_FILE).write_text(record_text(simulated), encoding="utf-8")
    run_directory(raw.path)
    before = derive(raw.path)
    # The supervisor numbers the files of the nodes, not those of their first ranks.
    for name in ("sensors", "power"):
        for suffix in (".jsonl", ".bin"):
            if (path := raw.path / f"{name}-00002{suffix}").exists():
                path.rename(raw.path / f"{name}-00001{suffix}")
    (raw.path / observe.SPEC_FILE).write_text(record_text(raw.spec), encoding="utf-8")
    for rank in range(4):
        seen = report(rank, 4, samples_known=known, samples_reason="" if known else "own loader", batch=32)
        raw.tell(rank, "wrapped", to_json_object(seen))
        raw.process(rank // 2, rank=rank, world=4)
    for node in (0, 1):
        raw.end(node, start_s=0.0, wall_s=10.0)
    after = raw.record()
    assert after.status.code == "completed"
    for name in ("energy_job", "energy_all_steps", "power_job", "energy_device"):
        assert value(after, name) == pytest.approx(value(before, name), rel=1e-9), name
    assert ("energy_per_sample" in after.quantities) == known
    assert (value(after, "program_time"), value(after, "program_cpu_time")) == (10.0, 110.0)
    assert after.quantities["energy_run"].value is not None


def test_what_processes_used_is_unknown_if_somebody_else_started_them(raw: Raw) -> None:
    trained(raw)
    raw.process(rank=1, world=2, elsewhere=True)
    record = raw.record()
    assert [value(record, name) for name in ("program_cpu_time", "program_memory_peak")] == [None, None]
    assert "srun" in (record.quantities["program_cpu_time"].reason or "")
    assert value(record, "program_time") == 30.0


def test_a_program_that_is_smaller_than_what_started_it_has_no_known_memory(raw: Raw) -> None:
    raw.end(0, peak_rss_bytes=None)
    record = raw.record()
    assert (value(record, "program_cpu_time"), value(record, "program_memory_peak")) == (55.0, None)
    assert "which started it" in (record.quantities["program_memory_peak"].reason or "")


def test_what_processes_used_is_unknown_if_some_were_on_other_nodes(raw: Raw) -> None:
    trained(raw)
    raw.process(1, rank=1, world=2)
    assert value(raw.record(), "program_cpu_time") is None


# -- how it ended


@pytest.mark.parametrize(
    ("how", "log", "code", "says"),
    [
        ({"exit_code": 3}, "ValueError: no data\n", "failed", "the program ended with exit code 3"),
        ({"exit_code": None, "signal": 9}, "", "killed", "the program was ended by signal 9"),
        ({"exit_code": 137}, "", "killed", "the program was ended by signal 9"),
        ({"exit_code": None, "signal": 2, "ended_by": "signal"}, "", "cancelled", "the program was ended by signal 2"),
        ({"exit_code": 1, "ended_by": "signal"}, "", "cancelled",
         "it was told to end by a signal; the program ended with exit code 1"),
        ({"exit_code": 1}, "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to\n", "out_of_memory",
         "torch.OutOfMemoryError: CUDA out of memory. Tried to"),
        ({"exit_code": None, "signal": 15, "ended_by": "time limit"}, "", "time_limit",
         "ended by its time limit after 30.0 s"),
        ({"exit_code": 143, "ended_by": "max_steps"}, "", "completed", ""),
        ({"exit_code": None, "signal": 15, "ended_by": "max_seconds"}, "", "completed", ""),
    ],
)  # fmt: skip
def test_the_end_of_a_program_is_its_status(raw: Raw, how: dict[str, Any], log: str, code: str, says: str) -> None:
    trained(raw).end(**how)
    (raw.path / observe.WORKER_LOG).write_text(f"step 1\npassword=hunter2hunter2\n{log}")
    record = raw.record()
    assert (record.status.code, record.status.reason) == (code, says)
    assert value(record, "throughput") == pytest.approx(64 / STEP_S, rel=2e-3)
    if code in ("failed", "killed", "out_of_memory"):
        assert record.status.evidence is not None
        assert log.strip() in str(record.status.evidence["log_tail"])
        assert "hunter2" not in str(record.status.evidence)
        assert {"exit_code", "signal"} & record.status.evidence.keys()


def test_a_program_that_the_observers_stopped_is_complete(raw: Raw) -> None:
    trained(raw, stopped=True).end(exit_code=1)
    assert raw.record().status.code == "completed"


def test_the_rank_that_torchrun_names_is_the_cause(raw: Raw) -> None:
    trained(raw).end(exit_code=1)
    (raw.path / observe.WORKER_LOG).write_text("[0]:\n  rank      : 1 (local_rank: 1)\n  exitcode  : -9 (pid: 7)\n")
    status = raw.record().status
    assert (status.code, status.reason) == ("killed", "rank 1 was ended by signal 9")


def test_a_command_whose_end_nobody_saw_has_failed(raw: Raw) -> None:
    raw.rank(0, 1)
    assert raw.record().status.code == "failed"


# -- in the terminal


def printed(record: RunRecord) -> str:
    return "\n".join([*cells_lines(summarise([record]), detail=True), *record_lines(record)])


def test_a_program_reads_well(raw: Raw) -> None:
    text = printed(trained(raw).record())
    assert "train: torchrun --nproc-per-node 2 train.py --batch 8\n" in text
    assert "  steps seen by hooks: 2 ranks, batch 8, 4 micro-batches per step, 19.99" in text
    assert "  not in the steps: 2.5000 s evaluation, 500.00 ms checkpoints\n" in text


def test_what_is_unknown_is_printed_with_the_command_that_helps(tmp_path: Path) -> None:
    raw = Raw(tmp_path / "raw", command=("python", "train.py", "--key", "{key}"), parameters={"key": "hf_" + "a" * 34})
    text = printed(trained(raw, samples_known=False, samples_reason="own loader", batch=None).record())
    assert "unknown: own loader" in text
    assert "batch unknown" in text
    assert "  unknown: batch (own loader)\n" in text
    assert "steelyard wrap --samples-per-step N -- python train.py" in text
    assert "hf_aaaa" not in text


def output(raw: Raw, *lines: str) -> Raw:
    (raw.path / observe.WORKER_LOG).write_text("\n".join(lines), encoding="utf-8")
    return raw


def test_a_printed_figure_is_compared_with_the_steps_of_its_own_lines(raw: Raw) -> None:
    """Each line is about the steps since the last one; one of two ranks is counted."""
    rates = [100 * TOKENS / TIMES[stop - 100 : stop].sum() for stop in (100, 200, 300, 400)]
    lines = [f"step {100 * number}: {rate:.3f} tokens/s in total" for number, rate in enumerate(rates, 1)]
    record = output(trained(raw), *lines).record()
    (claim,) = record.printed
    assert (claim.verdict, claim.factor, claim.lines) == ("differs", 0.5, 3)
    assert claim.measured == pytest.approx(300 * 2 * TOKENS / TIMES[100:].sum(), rel=1e-6)
    assert "because it is the figure of one of the 2 devices" in " ".join(printed(record).split())
    assert "SY511" in codes(record)


def test_a_utilisation_is_checked_with_the_counted_operations_and_the_peak(raw: Raw) -> None:
    facts = {"name": "NVIDIA H100 80GB HBM3", "peak_flops": {"bf16": 989.4e12, "fp32": 66.9e12}}
    raw.tell(0, "device", facts)
    mean_s = TIMES[1:].mean()
    flops = 0.4 * 989.4e12 * mean_s
    observed = Observations(output(trained(raw, world=1), "MFU 40.00%").path)
    assert observed.program is not None
    seen = replace(observed.program.seen, flops_per_step=flops)
    assert [claim.verdict for claim in printed_claims(observed, seen)] == ["agrees"]
    for share, factor, cause in ((0.2, 0.5, "sparsity"), (0.4 * 989.4 / 312, 989.4 / 312, "312.0 TFLOP/s")):
        output(raw, *2 * [f"MFU {100 * share:.3f}%"])
        (claim,) = printed_claims(Observations(raw.path), seen)
        assert cause in claim.causes[0]
        assert claim.factor == pytest.approx(factor, rel=1e-2)


def test_figures_of_two_trainings_are_not_compared_with_the_steps_of_one(raw: Raw) -> None:
    """A shell script starts Python twice: both print, and only the first was measured."""
    trained(raw).process(rank=0, world=2, trains_too=True)
    lines = [f"step {100 * number}: {TOKENS / STEP_S:.1f} tokens/s in total" for number in (1, 2, 3, 4, 1, 2, 3, 4)]
    record = output(raw, *lines).record()
    (claim,) = record.printed
    assert (claim.verdict, claim.measured, "SY511" in codes(record)) == ("unknown", None, False)
    assert claim.sentence.endswith("; unchecked: other processes trained as the same rank, and only the first was "
                                   "measured.")  # fmt: skip
    (found,) = [found for found in record.findings if found.code == "SY620"]
    assert found.fix == "wrap each training on its own"
    assert claim.sentence in " ".join(printed(record).split())


def test_what_a_program_prints_is_kept_unchecked_if_its_steps_were_not_seen(raw: Raw) -> None:
    raw.end()
    record = output(
        raw, *(f"completed step: {n}, seconds: 6.05{n}, Tokens/s/device: 812{n}.5" for n in range(9))
    ).record()
    assert record.wrapped is not None
    assert (record.wrapped.level, record.wrapped.steps, codes(record)) == (1, 0, {"SY619", "SY622"})
    assert {(claim.kind, claim.verdict) for claim in record.printed} == {
        ("step_time", "unknown"), ("tokens_per_s", "unknown"),
    }  # fmt: skip
    assert "throughput" not in record.quantities
    text = " ".join(printed(record).split())
    assert "The program prints 6.054 s per step (mean of 8 lines); unchecked: its steps were not seen" in text


@pytest.mark.parametrize("stated", [99.0, 64.0])
def test_stated_samples_that_were_seen_to_be_others(tmp_path: Path, stated: float) -> None:
    """Both figures are told, and the command to measure again does not state them again."""
    raw = trained(Raw(tmp_path / "raw", samples_per_step=stated, max_steps=100))
    record = raw.record()
    found = {finding.code: finding for finding in record.findings}
    again = "steelyard wrap --max-steps 340"
    assert value(record, "throughput") == pytest.approx(64 / STEP_S, rel=2e-3)
    if stated == 64:
        assert "SY628" not in found
        assert f"{again} --samples-per-step 64 --" in found["SY203"].command
    else:
        assert found["SY628"].message == "99 samples per step are stated, but 64 were seen, and these count"
        assert found["SY203"].command.startswith(f"{again} -- torchrun ")


def test_the_samples_of_a_study_are_stated_in_its_file(raw: Raw, capsys: pytest.CaptureFixture[str]) -> None:
    spec = replace(raw.spec, study_arguments=("study", "s.toml"))
    (raw.path / observe.SPEC_FILE).write_text(record_text(spec), encoding="utf-8")
    record = trained(raw, samples=0, samples_known=False, samples_reason="own loader", batch=None).record()
    (found,) = [finding for finding in record.findings if finding.code == "SY621"]
    assert found.fix.endswith(": samples_per_step in [run.program] of the study")
    Progress().end(record, 1, 1)
    assert "throughput unknown: own loader, 400 steps of " in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("launcher", [("docker", "run", "i"), ("srun", "-n", "2", "/opt/bin/apptainer", "exec"), ()])
def test_a_container_that_hides_a_program(tmp_path: Path, launcher: tuple[str, ...]) -> None:
    raw = Raw(tmp_path / "raw", command=(*launcher, "python", "train.py", "docker"))
    raw.end()
    (found,) = [finding for finding in raw.record().findings if finding.code == "SY619"]
    assert ("[container]" in found.fix) == bool(launcher)
    assert ("PYTHONPATH" in found.fix) != bool(launcher)


def test_a_notebook_does_not_show_what_its_cells_print(tmp_path: Path) -> None:
    raw = trained(Raw(tmp_path / "raw", command=("/opt/bin/jupyter", "nbconvert", "--execute", "a.ipynb")))
    assert "SY629" in codes(raw.record())
    assert "SY629" not in codes(output(raw, "step 9: 6.05 s/step", "step 19: 6.05 s/step").record())


def test_a_study_of_programs_is_not_extended_by_longer_jobs(raw: Raw) -> None:
    """A program has no budget: only the number of its jobs can grow."""
    finding = Finding(code="SY201", severity="warning", message="too few steps", fix="measure longer")
    short = replace(trained(raw).record(), findings=(finding,), steps_seen=20)
    assert too_short(short)
    assert why_longer([short] * 3) is None
    need = Need(Configuration("train-1", {"batch": 8}, raw.spec), short.spec, 1, 2, "1 of 3 jobs", 30.0)
    lines = extension_lines(Extension((need,), ()), "steelyard study s.toml")
    assert not any("max_seconds" in line or "240 s" in line for line in lines)


def test_the_heading_of_operations_says_whose_they_are(raw: Raw) -> None:
    record = trained(raw).record()
    rate = replace(record.quantities["throughput_per_device"], value=5e9, unit="FLOP/s")
    text = printed(replace(record, quantities={**record.quantities, "model_flops_device": rate}))
    assert "  GFLOP/s per device\n" in text


def test_programs_are_labelled_by_parameters_or_by_their_commands(raw: Raw) -> None:
    first = trained(raw).record()

    def labelled(*programs: Program) -> list[str]:
        specs = [replace(first.spec, configuration=f"c{i}", program=program) for i, program in enumerate(programs)]
        return [*labels(summarise([replace(first, spec=spec) for spec in specs])).values()]

    words = ("python", "train.py", "--batch", "{batch}", "--lr={lr}", "{{x}}")
    swept = [Program(command=words, parameters={"batch": batch, "lr": 0.1}) for batch in (8, 16)]
    assert labelled(*swept) == ["batch=8", "batch=16"]
    assert labelled(swept[0], Program(command=("python", "other.py"))) == [
        "python train.py --batch 8 --lr=0.1 {x}", "python other.py"
    ]  # fmt: skip


def test_a_program_seen_from_outside_has_its_time_and_memory(raw: Raw) -> None:
    raw.end()
    text = printed(raw.record())
    assert "unknown: its steps were not seen" in text
    assert "seen only from outside" in text
    assert "step mean" not in text


# -- in comparisons


def rows(tmp_path: Path, *sides: dict[str, Any]) -> list[Row]:
    """One row per side, of three jobs each; `settings` replaces some of what was read back."""
    found = []
    for number, side in enumerate(sides):
        words, settings = side.get("command", COMMAND), side.get("settings", {})
        records = []
        for repeat in range(3):
            raw = Raw(tmp_path / f"{number}-{repeat}", command=words)
            trained(raw, **side.get("reports", {}))
            raw.tell(0, "settings", {"values": {**SETTINGS, **settings}})
            record = raw.record()
            spec = replace(record.spec, configuration=f"c{number}", repeat=repeat)
            records.append(replace(record, spec=spec, run_id=f"{number}-{repeat}"))
        found.append(row_of(summarise(records)[0]))
    return found


def test_two_runs_of_one_program_are_comparable(tmp_path: Path) -> None:
    a, b = rows(tmp_path, {}, {"settings": {"compile": "off"}})
    assert (a.get("model"), a.get("model_options"), a.get("batch")) == ("train (program)", "none", 8)
    (made,) = compare([a], [b], factor="compile").comparisons
    assert [found.code for found in made.findings if found.severity == "error"] == []
    assert made.ratios[0].answer in ("ratio", "none")


def test_the_batch_of_a_program_can_be_the_factor(tmp_path: Path) -> None:
    larger = (*COMMAND[:-1], "16")
    a, b = rows(tmp_path, {}, {"command": larger, "reports": {"batch": 16}})
    assert not [f for f in compare([a], [b], factor="batch").comparisons[0].findings if f.severity == "error"]
    blocked = {f.code for f in compare([a], [b]).comparisons[0].findings if f.severity == "error"}
    assert blocked == {"SY104"}


def test_other_programs_and_other_options_are_other_work(tmp_path: Path) -> None:
    deeper = (*COMMAND, "--layers", "12")
    a, b = rows(tmp_path, {}, {"command": deeper})
    made = compare([a], [b]).comparisons[0]
    assert [found.message for found in made.findings if found.code == "SY102"] == [
        "the two sides do different work: model_options none vs --layers=12"
    ]
    assert made.ratios == ()


def test_a_program_against_a_workload_is_blocked(tmp_path: Path, simulate: Callable[[RunSpec], RunRecord]) -> None:
    record = simulate(make_spec(workload="tiny", device="sim"))
    (a,), b = rows(tmp_path / "a", {}), row_of(summarise([record])[0])
    codes = {found.code for found in compare([a], [b]).comparisons[0].findings if found.severity == "error"}
    assert {"SY102", "SY608"} <= codes


@pytest.mark.parametrize("name", ["float32_products", "float32_convolutions"])
def test_fp32_in_another_arithmetic_is_not_compared(tmp_path: Path, name: str) -> None:
    full = {"precision": "fp32", "float32_products": "fp32", "float32_convolutions": "fp32"}
    a, b = rows(tmp_path, {"settings": full}, {"settings": full | {name: "tf32"}})
    assert (a.get("precision"), a.get("float32_convolutions")) == ("fp32", "fp32")
    errors = {found.code for found in compare([a], [b]).comparisons[0].findings if found.severity == "error"}
    assert errors == {"SY103"}


def test_settings_that_a_program_hides_are_named(tmp_path: Path) -> None:
    hidden = {"reports": {"batch": None}, "settings": {"precision": ""}}
    a, b = rows(tmp_path, {"settings": {"precision": ""}}, hidden)
    made = compare([a], [b]).comparisons[0]
    messages = [found.message for found in made.findings if found.code == "SY108" and found.severity == "warning"]
    assert messages == [
        "not known to be the same on both sides: batch (8), global_batch (64)",
        "unknown on both sides: precision",
    ]


# -- files of others


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("program-00000.json", b"{"),
        ("program-00000.json", b'{"exit_code": "x"}'),
        ("work-00000.bin", b"SYSTEPS1" + bytes(40)),
        ("events-00001.jsonl", b'{"kind": "wrapped", "rank": 0}\n'),
        ("events-00001.jsonl", b"[]\n"),
        ("spec.json", None),
    ],
)
def test_damage_is_said_and_costs_only_this_run(raw: Raw, name: str, content: bytes | None) -> None:
    trained(raw)
    if content is None:
        # Another rank than the name of its file says.
        name, content = "events-00001.jsonl", json.dumps({"kind": "wrapped", **to_json_object(report(5, 9))}).encode()
        content += b"\n"
    (raw.path / name).write_bytes(content)
    record = raw.record()
    assert record.status.code == "failed"
    assert "the observations are damaged" in record.status.reason
    assert "throughput" not in record.quantities or name.startswith("work")


def test_more_labels_than_tokens_is_damage(raw: Raw) -> None:
    trained(raw, world=1).steps("work", 0, 1, TOKENS + 1, NAN, TOKENS)
    assert "more padding or labels than tokens" in raw.record().status.reason


def test_a_damaged_line_of_a_process_costs_only_itself(raw: Raw) -> None:
    with (raw.path / "processes-00000.jsonl").open("wb") as file:
        file.write(b'{"pid": -1}\n\xff\xff\n[[[[\n')
    record = trained(raw).record()
    assert record.wrapped is not None
    assert (record.status.code, record.wrapped.processes) == ("completed", 2)


def test_a_program_that_was_killed_has_the_steps_on_disk(raw: Raw) -> None:
    raw.rank(0, 1, steps=3)
    raw.end(exit_code=None, signal=9)
    record = raw.record()
    assert record.wrapped is not None
    assert (record.wrapped.steps, record.steps_seen) == (STEPS, STEPS)


def test_a_step_file_of_a_rank_that_does_not_exist_is_damage(raw: Raw) -> None:
    trained(raw).steps("steps", 2, WAIT_S, NAN, NAN, 1)
    assert "of rank 2 does not follow" in raw.record().status.reason


def test_an_output_is_closed_when_it_says_so() -> None:
    """Otherwise the supervisor looks too early, and then waits in vain for it to close."""
    seen: list[bool] = []
    passage = Passage(None, BoundedLog(os.open(os.devnull, os.O_WRONLY)), lambda: seen.append(passage.is_open))
    assert passage.is_open
    passage.start()
    passage.finish()
    assert seen == [False]
