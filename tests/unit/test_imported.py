"""Results of others: every figure as printed, what is not said is unknown, and a kept table is read again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from steelyard import plugins
from steelyard.audit.foreign import importers, keep, kept_tables, read_results
from steelyard.audit.subject import audit
from steelyard.errors import InputError
from steelyard.results.store import ResultFolder

if TYPE_CHECKING:
    from steelyard.rules.table.row import Row

DATA = Path(__file__).parents[1] / "data" / "imported"
# One row of each file: settings and figures as the public file has them.
KNOWN: dict[str, tuple[dict[str, object], dict[str, tuple[str, str]]]] = {
    "mlperf/Dell/results/R760xax4L40S/resnet/result_0.txt": (
        {"model": "resnet", "accelerator": "NVIDIA L40S", "devices": 4, "global_batch": 1600, "epoch_samples": 1281167},
        # 1712847060577 - 1712841900938
        {"train_time": ("5159639", "ms"), "throughput": ("8730.994296352428", "samples/s")},
    ),
    "nccl-all-reduce.txt": (
        {
            "model": "all-reduce",
            "devices": 16,
            "nodes": 2,
            "precision": "fp32",
            "model_options": "size_mb=8589.934592",
            "options": "out-of-place, sum",
        },
        {"step_time": ("47535", "us"), "algorithm_bandwidth": ("180.71", "GB/s"), "bus_bandwidth": ("338.82", "GB/s")},
    ),
    "nccl-broadcast.txt": (
        {"model": "broadcast", "accelerator": "A100-SXM4-40GB", "devices": 8, "options": "in-place"},
        {"step_time": ("78.43", "us"), "bus_bandwidth": ("13.37", "GB/s")},
    ),
    "jube-caraml.csv": (
        {"system": "JEDI", "model": "GPT 800M", "global_batch": 2048, "devices": 4},
        {
            "throughput": ("158152.80", "tokens/s"),
            "step_time": ("26.52", "s"),
            "flop_rate_per_device": ("321.65", "TFLOP/s"),
        },
    ),
    "reframe-report.json": (
        {"model": "stream_test", "system": "generic:default", "options": "environment clang", "node": "tresa.local"},
        {"copy_bw": ("18405.7", "MB/s"), "triad_bw": ("14997.1", "MB/s")},
    ),
    "reframe-stream_test.log": (
        {"model": "stream_test", "system": "pseudo-cluster:compute", "options": "environment gnu, tasks 1"},
        {"copy_bw": ("21116.7", "MB/s"), "triad_bw": ("14813.0", "MB/s")},
    ),
    "reframe-short.log": (
        {"system": "pseudo-cluster:compute", "options": "environment clang"},
        {"triad_bw": ("8370.0", "MB/s")},
    ),
    "superbench-results-summary.jsonl": (
        {"model": "llama2-7b", "precision": "fp32", "mode": "train", "node": "node-0"},
        {"step_time": ("3865.368374477733", "ms"), "throughput_per_rank": ("6.2089813951407455", "samples/s")},
    ),
    "superbench-v100.json": (
        {"model": "bert-large", "precision": "fp16"},
        {"throughput_per_rank": ("26.402131996278797", "samples/s")},
    ),
    "milabench-summary.json": (
        {"model": "resnet50", "devices": 1},
        {"train_rate_mean": ("212.16419534552674", "items/s"), "walltime_mean": ("46.25208234786987", "s")},
    ),
    "aiperf-profile_export_aiperf.json": (
        {"model": "qwen3.6-nvfp4", "dataset": "sharegpt", "serving": "a server under load, concurrency 8"},
        {"token_throughput": ("769.5574669258838", "tokens/s"), "ttft_p99": ("232.26584434999972", "ms")},
    ),
    "guidellm-benchmarks.json": (
        {"model": "Qwen/Qwen3-4B-Thinking-2507", "options": "concurrent, streams 4"},
        {"token_throughput": ("165.59511945248636", "tokens/s"), "request_latency": ("24.90865981578827", "s")},
    ),
}


def _has(row: Row, settings: dict[str, object], figures: dict[str, tuple[str, str]]) -> bool:
    return all(row.get(key) == value for key, value in settings.items()) and all(
        metric in row.figures and (row.figures[metric].text, row.figures[metric].unit) == printed
        for metric, printed in figures.items()
    )


@pytest.mark.parametrize("name", KNOWN)
def test_figures_are_as_printed(name: str) -> None:
    found = read_results([DATA / name])
    assert sum(_has(row, *KNOWN[name]) for row in found.table.rows) >= 1, found.text


def test_every_format_has_an_example_and_says_where_it_was_seen() -> None:
    formats = {file.format for file in read_results([DATA]).files}
    assert formats == {*plugins.BUILTIN["importer"]}
    for entry in importers():
        assert entry.seen
        assert all(len(place.split(", ")) >= 3 for place in entry.seen)


def test_what_a_file_does_not_say_is_unknown() -> None:
    row = read_results([DATA / "milabench-summary.json"]).table.rows[0]
    assert {row.get(key) for key in ("system", "accelerator", "precision", "batch", "node")} == {None}
    told = read_results([DATA / "milabench-summary.json"], known={"accelerator": "A100"}).table.rows[0]
    assert told.get("accelerator") == "A100"
    with pytest.raises(InputError, match="stated otherwise"):
        read_results([DATA / "milabench-summary.json"], known={"model": "mine"})
    with pytest.raises(InputError):
        read_results([DATA / "milabench-summary.json"], known={"acelerator": "A100"})


def test_a_figure_without_a_unit_is_left_out() -> None:
    found = read_results([DATA / "superbench-v100.json"])
    assert found.left_out == {"the file does not state their unit": 1}
    bars = read_results([DATA / "jube-bars.txt"], form="jube")
    assert [row.get("options") for row in bars.table.rows] == [
        "Tasks / Node 2, cuda_vis 0,1, osu_exe osu_bibw, msg_size 67108864, size 67108864",
        "Tasks / Node 1, cuda_vis 1, osu_exe osu_bibw, msg_size 67108864, size 67108864",
    ]
    assert {row.figures["runtime"].text for row in bars.table.rows} == {"3.92", "11.42"}


def test_a_run_that_failed_has_no_time(tmp_path: Path) -> None:
    log = (DATA / "mlperf/Dell/results/R760xax4L40S/resnet/result_0.txt").read_text(encoding="utf-8")
    (tmp_path / "log.txt").write_text(log.replace('"status": "success"', '"status": "aborted"'), encoding="utf-8")
    (row,) = read_results([tmp_path / "log.txt"]).table.rows
    assert "train_time" not in row.figures
    assert row.get("accelerator") is None


def test_kept_tables_are_read_again_and_pass_the_audit(tmp_path: Path) -> None:
    folder = ResultFolder(tmp_path / "results")
    made = read_results([DATA], source="public files")
    place = keep(folder, made)
    assert keep(folder, made) == place
    (table,) = kept_tables(folder)
    assert [row.figures for row in table.rows] == [row.figures for row in made.table.rows]
    assert {row.source for row in table.rows} == {"public files"}
    assert audit(str(place), folder).about == f"{len(table.rows)} rows"


def test_other_files_are_refused_with_the_formats(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{}", encoding="utf-8")
    with pytest.raises(InputError, match="mlperf"):
        read_results([tmp_path / "x.json"])
    with pytest.raises(InputError, match="has no figures"):
        read_results([tmp_path / "x.json"], form="aiperf")
    with pytest.raises(InputError, match="did you mean nccl"):
        read_results([tmp_path / "x.json"], form="ncl")


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    text = (DATA / "jube-caraml.csv").read_text(encoding="utf-8").replace("MI250", "=cmd|' /C calc'!A0\x1b[2J")
    (tmp_path / "t.csv").write_text(text, encoding="utf-8")
    written = read_results([tmp_path / "t.csv"]).text
    assert "\x1b" not in written
    assert ",=" not in written


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.txt", "busbw algbw\n" + "\r" * 1_000_001, "lines"),
        ("a.json", '{"session_info":{},"runs":[' + "[]," * 1_100_000 + "[]]}", "no results"),
        ("a.jsonl", '{"nccl-bw:x/all_reduce_8_time": 1}\n' * 60_000, "larger than"),
        ("a.jsonl", '{"nccl-bw:x/a": 1}\n' * 201_000, "more than 200,000 figures"),
    ],
)
def test_a_file_with_more_than_any_results_is_refused(tmp_path: Path, name: str, text: str, says: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=says):
        read_results([tmp_path / name])
