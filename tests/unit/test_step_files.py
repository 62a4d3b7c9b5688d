"""Step files: what is written is read back; truncated or damaged files are detected."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import numpy as np
import pytest

from steelyard.contracts import observe, sample_files
from steelyard.derive.observations import StepSamples
from steelyard.errors import DamagedDataError
from steelyard.worker.measure.writer import StepWriter

if TYPE_CHECKING:
    from pathlib import Path

RNG = np.random.default_rng(1)


def write(folder: Path, blocks: list[tuple[int, int]]) -> dict[int, np.ndarray]:
    """Write blocks of (rank, steps); return the whole tables by rank."""
    writer = StepWriter(folder, 0)
    whole: dict[int, list[np.ndarray]] = {}
    for rank, steps in blocks:
        table = RNG.random((len(sample_files.COLUMNS), steps))
        writer.write(rank, table)
        whole.setdefault(rank, []).append(table)
    writer.close()
    return {rank: np.concatenate(tables, axis=1) for rank, tables in whole.items()}


def test_round_trip_and_windows(tmp_path: Path) -> None:
    whole = write(tmp_path, [(0, 10), (1, 10), (0, 7), (1, 7)])
    samples = StepSamples(tmp_path, 2)
    assert (samples.steps, samples.ranks) == (17, (0, 1))
    sums = samples.sums(3, 15)
    for row, rank in enumerate(samples.ranks):
        np.testing.assert_allclose(sums.columns[row], whole[rank][:, 3:15].sum(axis=1))


def test_trace_is_the_mean_over_ranks(tmp_path: Path) -> None:
    whole = write(tmp_path, [(0, 5000), (1, 5000), (0, 4001), (1, 4001)])
    trace = StepSamples(tmp_path, 2).trace()
    assert (trace.steps_per_bin, len(trace.times)) == (3, 3000)
    step, work = sample_files.COLUMNS.index("step_s"), sample_files.COLUMNS.index("samples")
    mean = (whole[0][step, :9000] + whole[1][step, :9000]) / 2
    np.testing.assert_allclose(trace.times, mean.reshape(-1, 3).sum(axis=1))
    np.testing.assert_allclose(trace.work, (whole[0] + whole[1])[work, :9000].reshape(-1, 3).sum(axis=1))


def test_only_steps_that_every_rank_finished_count(tmp_path: Path) -> None:
    write(tmp_path, [(0, 10), (1, 10), (0, 10)])
    assert StepSamples(tmp_path, 2).steps == 10


@pytest.mark.parametrize("cut", [1, 30, 28 + 6 * 8 * 10])
def test_a_last_chunk_cut_short_is_left_out(tmp_path: Path, cut: int) -> None:
    write(tmp_path, [(0, 10), (0, 10)])
    path = tmp_path / "steps-00000.bin"
    path.write_bytes(path.read_bytes()[:-cut])
    assert StepSamples(tmp_path, 2).steps == 10


@pytest.mark.parametrize(("row", "value"), [(1, np.nan), (1, -1.0), (1, 0.0), (1, np.inf), (5, np.nan), (5, -1.0)])
def test_impossible_values_are_refused(tmp_path: Path, row: int, value: float) -> None:
    writer = StepWriter(tmp_path, 0)
    table = np.ones((len(sample_files.COLUMNS), 10))
    table[row, 3] = value
    writer.write(0, table)
    writer.close()
    with pytest.raises(DamagedDataError, match="impossible"):
        StepSamples(tmp_path, 2).trace()


def test_an_empty_file_has_no_steps(tmp_path: Path) -> None:
    (tmp_path / "steps-00000.bin").write_bytes(b"SYS")
    assert StepSamples(tmp_path, 2).steps == 0


@pytest.mark.parametrize("place", [0, *range(8, 36), 200])
def test_damage_is_noticed(tmp_path: Path, place: int) -> None:
    write(tmp_path, [(0, 10), (0, 10)])
    path = tmp_path / "steps-00000.bin"
    text = bytearray(path.read_bytes())
    text[place] ^= 0x01
    path.write_bytes(bytes(text))
    with pytest.raises(DamagedDataError):
        StepSamples(tmp_path, 2).trace()


def test_a_gap_in_a_ranks_steps_is_noticed(tmp_path: Path) -> None:
    with (tmp_path / "steps-00000.bin").open("wb") as file:
        file.write(sample_files.FILE_MAGIC)
        for first in (0, 20):
            sample_files.write_chunk(file, 0, first, np.ones((len(sample_files.COLUMNS), 10)))
    with pytest.raises(DamagedDataError, match="does not follow"):
        StepSamples(tmp_path, 2)


def test_a_header_cannot_ask_for_much_memory(tmp_path: Path) -> None:
    path = tmp_path / "steps-00000.bin"
    place = sample_files.PLACE.pack(sample_files.CHUNK_MARK, 0, 0, 2**32 - 1)
    path.write_bytes(sample_files.FILE_MAGIC + place + sample_files.CHECK.pack(zlib.crc32(place), 0))
    with pytest.raises(DamagedDataError):
        StepSamples(tmp_path, 2)


def test_events_cut_short_end_the_file(tmp_path: Path) -> None:
    path = tmp_path / "events-00000.jsonl"
    path.write_bytes(b'{"kind": "a"}\n{"kind": "b"')
    assert [event["kind"] for event in observe.read_events(path)] == ["a"]
    path.write_bytes(b'{"kind": "a"}\nnonsense\n')
    with pytest.raises(DamagedDataError):
        list(observe.read_events(path))
