"""Tests of reading the figures that programs print."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING

import pytest

from steelyard.derive.printed.formats import (
    KINDS,
    ExampleLine,
    PrintedFormat,
    chosen_formats,
    known_formats,
)
from steelyard.derive.printed.level import summarize
from steelyard.derive.printed.reader import MAX_BYTES, MAX_LINE, MAX_LINES, PrintedFigure, read_output
from steelyard.errors import InputError

if TYPE_CHECKING:
    from conftest import Within

EXAMPLES = [
    pytest.param(form, example, id=f"{form.name}-{number}")
    for form in known_formats()
    for number, example in enumerate(form.example)
]


def values(figures: tuple[PrintedFigure, ...]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for figure in figures:
        found.setdefault(figure.kind, []).append(figure.value)
    return found


def one(text: str, kind: str) -> PrintedFigure:
    return next(figure for figure in read_output(text.encode()).figures if figure.kind == kind)


@pytest.mark.parametrize(("form", "example"), EXAMPLES)
def test_an_example_gives_its_figures(form: PrintedFormat, example: ExampleLine) -> None:
    found = read_output(example.line.encode()).figures
    assert {figure.format for figure in found} == {form.name}
    assert {kind: pytest.approx(sorted(wanted)) for kind, wanted in example.gives.items()} == {
        kind: sorted(got) for kind, got in values(found).items()
    }
    assert values(read_output(example.line.encode(), form.name).figures) == values(found)
    for figure in found:
        assert figure.low <= figure.value <= figure.high
        assert figure.text in example.line


def test_the_formats_have_a_public_source_and_known_kinds() -> None:
    names = {form.name for form in known_formats()}
    assert names >= {
        "nanogpt", "huggingface", "lightning", "megatron-lm", "megatron-deepspeed", "nemo", "maxtext", "torchtitan",
        "deepspeed", "graphcore", "timm", "torchvision", "imagenet", "mlperf", "tqdm", "generic",
    }  # fmt: skip
    for form in known_formats():
        assert "/" in form.source
        assert {kind for example in form.example for kind in example.gives} <= set(KINDS)
        # Every figure that a format knows is in one of its examples.
        shown = {kind for example in form.example for kind in example.gives}
        assert {pattern.kind for pattern in form.figures} - shown <= {
            "tokens_per_s",
            "flops_per_s",
            "step_time",
            "loss",
        }


def test_an_unknown_format_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InputError) as caught:
        chosen_formats("megatorn")
    assert "megatron-lm" in caught.value.problems[0].valid
    assert {form.name for form in chosen_formats("huggingface")} == {
        "huggingface", "huggingface-metrics", "huggingface-loss", "tqdm",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("12.5 samples/s", 12.45, 12.55),
        ("1.2k samples/s", 1150, 1250),
        ("12,345 samples/s", 12344.5, 12345.5),
        ("3.4M samples/s", 3.35e6, 3.45e6),
        ("1.25e2 samples/s", 124.5, 125.5),
        ("samples/s = 500", 499.5, 500.5),
    ],
)
def test_digits_give_the_rounding(text: str, low: float, high: float) -> None:
    figure = one(text, "samples_per_s")
    assert (figure.low, figure.high) == (pytest.approx(low), pytest.approx(high))


def test_steps_per_second_become_a_time_with_its_rounding() -> None:
    figure = one("4.0 it/s", "step_time")
    assert (figure.low, figure.value, figure.high) == pytest.approx((1 / 4.05, 0.25, 1 / 3.95))
    assert one("0.0 it/s 3 s/step", "step_time").value == 3


@pytest.mark.parametrize(
    ("text", "scope"),
    [
        ("512 tokens/s", "unknown"),
        ("512 tokens/s/GPU", "device"),
        ("512 tokens per second per device", "device"),
        ("tokens/s/gpu: 512", "device"),
        ("tokens_per_second_per_gpu=512", "device"),
        ("per-rank throughput: 512 tokens/s", "device"),
        ("total throughput: 512 tokens/s", "job"),
        ("global tokens/sec: 512", "job"),
        ("loss 2.0, per GPU memory 3 GB, 512 tokens/s", "unknown"),
    ],
)
def test_the_wording_tells_the_scope(text: str, scope: str) -> None:
    assert one(text, "tokens_per_s").scope == scope


def test_the_wording_tells_what_a_figure_is_a_mean_of() -> None:
    assert one("avg: 512 tokens/s", "tokens_per_s").over == "run"
    assert one("512 tokens/s", "tokens_per_s").over == "step"
    assert one("12 ms/batch", "step_time").per == "batch"
    assert one("12 ms/step", "step_time").per == "step"
    assert one("12 it/s", "step_time").per == "iteration"


@pytest.mark.parametrize(
    "text",
    [
        "", "epoch 3 done", "loss 2.3", "step 12", "lr 1e-4, 3 GB/s", "validation: 400 samples/s",
        "{'eval_runtime': 1.5, 'eval_samples_per_second': 66.7}",
        "Map: 100%|##########| 1000/1000 [00:01<00:00, 5000.00 examples/s]",
        "Loading checkpoint shards: 100%|##########| 2/2 [00:01<00:00,  1.20it/s]",
        "Validation DataLoader 0:  50%|##   | 5/10 [00:01<00:01,  4.20it/s]",
        "validate step:  1  loss:  8.0921  memory:  0.50GiB(0.63%)  tps: 1,240",
        "Test:  [  0/100]  eta: 0:01:00  loss: 6.9 (6.9)  time: 0.6  data: 0.5",
        "Test: [  0/100]\tTime  0.314 ( 0.652)\tLoss 6.9821e+00 (7.0012e+00)",
        "nan tokens/s", "inf samples/s", "1e999 tokens/s", "-5 tokens/s", "0 tokens/s",
    ],
)  # fmt: skip
def test_other_lines_have_no_speed(text: str) -> None:
    kinds = {figure.kind for figure in read_output(text.encode()).figures}
    assert kinds <= {"step", "loss", "elapsed"}


def test_a_progress_bar_is_read_state_by_state_on_its_line() -> None:
    bar = b"start\r\n" + b"".join(
        b"\r %3d%%|##  | %d/400 [00:%02d<00:30,  4.00it/s]" % (number // 4, number, number // 4)
        for number in range(0, 161, 40)
    )
    output = read_output(bar + b"\x1b[A\n{'loss': 0.5, 'learning_rate': 0.0}\nend")
    steps = [figure for figure in output.figures if figure.kind == "step"]
    assert [(figure.line, figure.value) for figure in steps] == [(2, 0), (2, 40), (2, 80), (2, 120), (2, 160)]
    assert [figure.line for figure in output.figures if figure.kind == "loss"] == [3]
    summary = summarize(output)
    assert summary.step_time is not None
    assert summary.step_time.value == pytest.approx(0.25)
    assert (summary.steps, summary.steps_per) == (160, "iteration")


def test_colours_of_a_terminal_are_no_part_of_a_line() -> None:
    line = (
        "\x1b]0;title\x07\x1b[31mstep: 10  \x1b[32mloss:  6.7761  \x1b[38;2;180;60;0mgrad_norm:  1.2  "
        "\x1b[38;2;54;234;195mmemory: 4.20GiB(5.08%)  \x1b[34mtps: 7,512  "
        "\x1b[36mtflops: 43.21  \x1b[35mmfu: 44.01%\x1b[39m"
    )
    assert values(read_output(line.encode()).figures) == {
        "step": [10], "loss": [6.7761], "tokens_per_s": [7512], "flops_per_s": [pytest.approx(43.21e12)],
        "mfu": [pytest.approx(0.4401)],
    }  # fmt: skip


def test_a_long_line_is_read_up_to_a_whole_word() -> None:
    start = b"step 3: 512 tokens/s "
    output = read_output(start + b"x" * 10 * MAX_LINE + b"\nstep 4: 513 tokens/s")
    assert [figure.value for figure in output.figures if figure.kind == "tokens_per_s"] == [512, 513]
    assert output.long_lines == 1
    cut = b"y" * (MAX_LINE - 6) + b" 51234 tokens/s"
    assert read_output(cut).figures == ()


@pytest.mark.parametrize(
    "line",
    [
        b"1" * MAX_LINE, b"1," * MAX_LINE, b"1 " * MAX_LINE, b"1." * MAX_LINE, b"1e" * MAX_LINE, b"[" * MAX_LINE,
        b"step " * 400, b"1 tokens" * 250, b"1 tokens/s" * 200, b"tokens/s" * 250, b"mfu (%" * 300, b"1:" * 1000,
        b"| 1" * 600 + b"%|", b"eval " * 400, b"Epoch 1:" * 200 + b"%|", b"\x1b[" * 1000, b"\x1b]" * 1000,
        b"\x1b[" + b"0;" * 900, b"\xff\xfe" * 1000, b"Throughput: " * 150 + b"samples/s", b"time: eta: data: " * 110,
        b"Train: Time: Data: 1" * 90, b"Loss: Time: 0.1s, (" * 100, b"train_ = " * 200, b" " * MAX_LINE + b"1 = train_",
        b"tracked_stats:::MLLOG" + b'"throughput": ' * 130, b"step time (ms) " * 130, b"per " * 500 + b"1",
    ],
)  # fmt: skip
def test_a_hostile_line_is_read_in_no_time(line: bytes, within: Within) -> None:
    with within(1.0):
        read_output(b"\n".join([line] * 20))


def test_a_long_output_is_read_to_a_limit() -> None:
    output = read_output(b"a\n" * (MAX_LINES + 10))
    assert (output.lines, output.left_out) == (MAX_LINES, True)
    assert summarize(output).reasons["lines"].startswith("only the first")
    assert read_output(b"a" * (MAX_BYTES + 1)).left_out


def test_random_bytes_are_read() -> None:
    source = random.Random(11)
    parts = [example.line.encode() for form in known_formats() for example in form.example]
    for _ in range(300):
        line = bytearray(source.choice(parts) + source.choice(parts))
        for _ in range(source.randrange(1, 9)):
            line[source.randrange(len(line))] = source.randrange(256)
        for figure in read_output(bytes(line)).figures:
            assert math.isfinite(figure.value)


# -- level 1


def test_the_step_time_leaves_out_the_first_line() -> None:
    lines = [
        f"iter {10 * i}: loss 2.0000, time {t}ms, mfu 10.00%" for i, t in enumerate((9000.00, 100.00, 110.00, 90.00))
    ]
    summary = summarize(read_output("\n".join(lines).encode()))
    assert summary.step_time is not None
    assert (summary.step_time.value, summary.step_time.lines) == (pytest.approx(0.1), 3)
    assert summary.step_time.low == pytest.approx(0.1 - 0.05e-3)
    assert summary.step_time.high == pytest.approx(0.1 + 0.05e-3)
    assert summary.step_time.spread == pytest.approx(0.1)
    assert summary.steps == 31
    assert summary.reasons == {}


def test_the_mean_of_rates_is_work_over_time() -> None:
    lines = "\n".join(f"step {i}: {rate} samples/s" for i, rate in enumerate((1, 100, 50)))
    rate = summarize(read_output(lines.encode())).rates["samples_per_s"]
    assert rate.value == pytest.approx(2 / (1 / 100 + 1 / 50))


def test_what_cannot_be_known_has_a_reason() -> None:
    summary = summarize(read_output(b"hello\nworld"))
    assert (summary.step_time, summary.rates, summary.steps) == (None, {}, None)
    assert set(summary.reasons) == {"step_time", "rates", "steps"}


def test_the_clock_of_a_bar_gives_a_step_time() -> None:
    text = b"train:  10%|#| 10/100 [00:10<01:30, loss=2.0]\rtrain:  90%|#| 90/100 [01:30<00:10, loss=1.0]"
    step = summarize(read_output(text)).step_time
    assert step is not None
    assert (step.low, step.value, step.high) == pytest.approx((79 / 80, 1.0, 81 / 80))


def test_numbers_that_begin_again_are_epochs() -> None:
    lines = "\n".join(f"step {i}: 5 samples/s" for _ in range(2) for i in range(0, 50, 10))
    summary = summarize(read_output(lines.encode()))
    assert summary.steps == 82
    assert "at least" in summary.reasons["steps"]


# -- a user's own expression
