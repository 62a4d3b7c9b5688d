"""Tests of whether printed figures are true: each known mistake by construction, and programs without one."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import steelyard
from steelyard.derive.printed.check import CauseName, MeasuredWindow, PrintedVerdict, check_printed
from steelyard.derive.printed.reader import read_output

if TYPE_CHECKING:
    from collections.abc import Callable

FACTS = Path(steelyard.__file__).parent / "worker/devices/facts.json"
PEAKS = {
    f"{entry['model']} in {precision}": peak
    for entry in json.loads(FACTS.read_text(encoding="utf-8"))
    for precision, peak in entry["peak_flops"].items()
    if peak is not None
}
H100 = PEAKS["NVIDIA H100 SXM in bf16"]
STEP = 0.31
WINDOW = MeasuredWindow(
    step_s=STEP, steps=200, samples=96, tokens=96 * 700, world=3, accumulation=4, padding=0.3, evaluation_s=9.0,
    checkpoint_s=4.5, first_step_s=21.0, flops=0.41 * STEP * 3 * H100, peak=H100,
)  # fmt: skip
SAMPLES, TOKENS = 96 / STEP, 96 * 700 / STEP


def verdicts(text: str, window: MeasuredWindow = WINDOW) -> list[PrintedVerdict]:
    return list(check_printed(read_output(text.encode()).figures, lambda _: window, PEAKS))


def only(text: str, window: MeasuredWindow = WINDOW) -> PrintedVerdict:
    (verdict,) = verdicts(text, window)
    return verdict


def repeated(text: str, window: MeasuredWindow = WINDOW) -> PrintedVerdict:
    """The verdict on the second of two lines: the first, with the start of the program, is left out."""
    return only(f"{text}\n{text}", window)


@pytest.mark.parametrize(
    ("text", "factor", "cause"),
    [
        (f"{SAMPLES / 4:.3f} samples/s", 1 / 4, "without accumulation"),
        (f"{TOKENS * 4:.1f} tokens/s", 4, "accumulation twice"),
        (f"step time: {STEP / 4 * 1000:.3f} ms", 1 / 4, "micro-batch"),
        (f"{SAMPLES / 3:.3f} samples/s", 1 / 3, "one device"),
        (f"total: {TOKENS / 3:.3f} tokens/s", 1 / 3, "one device"),
        (f"{SAMPLES:.3f} samples/s/GPU", 3, "all devices"),
        (f"{SAMPLES * 3:.3f} samples/s", 3, "devices twice"),
        (f"{SAMPLES / 12:.3f} samples/s", 1 / 12, "one micro-batch of one device"),
        (f"{TOKENS / 0.7:.1f} tokens/s", 1 / 0.7, "padding"),
        (f"{SAMPLES:.3f} tokens/s", 1 / 700, "samples for tokens"),
        (f"{TOKENS:.1f} samples/s", 700, "tokens for samples"),
        (f"{STEP * 1000 + 9000 / 200:.3f} ms/step", 1 + 9 / (200 * STEP), "evaluation"),
        (f"{96 * 200 / (200 * STEP + 9):.3f} samples/s", 1 / (1 + 9 / (200 * STEP)), "evaluation"),
        (f"{96 * 200 / (200 * STEP + 4.5):.3f} samples/s", 1 / (1 + 4.5 / (200 * STEP)), "checkpoint"),
        (f"{96 * 200 / (200 * STEP + 13.5):.3f} samples/s", 1 / (1 + 13.5 / (200 * STEP)), "evaluation and checkpoint"),
        (f"average: {(200 * STEP + 21) / 201:.5f} s/step", (200 * STEP + 21) / (201 * STEP), "first step"),
        (f"average: {96 * 201 / (200 * STEP + 21):.3f} samples/s", 201 * STEP / (200 * STEP + 21), "first step"),
        ("MFU 123.00%", 3, "all devices"),
        ("MFU 164.00%", 4, "accumulation twice"),
        ("MFU 20.50%", 0.5, "peak with sparsity"),
    ],
)
def test_a_mistake_is_found_with_its_factor(text: str, factor: float, cause: CauseName) -> None:
    found = repeated(text)
    assert found.verdict == "differs"
    assert found.factor == pytest.approx(factor, rel=2e-3)
    assert found.causes[0].name == cause
    assert found.sentence.startswith("The program prints ")
    assert found.causes[0].words in found.sentence
    assert not found.by_definition


def test_two_mistakes_with_the_same_factor_are_both_named() -> None:
    found = repeated(f"{SAMPLES / 4:.3f} samples/s", replace(WINDOW, world=4))
    assert {cause.name for cause in found.causes} == {"without accumulation", "one device"}
    assert " or it is the figure of one of the 4 devices" in found.sentence


def test_the_peak_of_another_device_is_named() -> None:
    other = PEAKS["NVIDIA A100 SXM 80 GB in bf16"]
    found = only(f"MFU {41 * H100 / other:.2f}%")
    assert [cause.name for cause in found.causes] == ["other peak"]
    assert found.factor == pytest.approx(H100 / other, rel=1e-3)
    assert "312.0 TFLOP/s" in found.sentence
    assert "A100" in found.sentence


def test_a_clock_that_does_not_wait_for_the_device_is_found() -> None:
    window = replace(WINDOW, asynchronous=True)
    text = f"step time: {STEP * 0.037 * 1000:.3f} ms, {SAMPLES / 0.037:.2f} samples/s, {TOKENS / 0.037:.1f} tokens/s"
    found = verdicts(text, window)
    assert [[cause.name for cause in one.causes] for one in found] == [["no synchronisation"]] * 3
    assert "200 steps took 2.294 s, and not 62.00 s" in found[0].sentence
    text_with_share = f"step time: {STEP * 0.037 * 1000:.3f} ms, MFU 563%"
    _, share = verdicts(text_with_share, replace(window, flops=None))
    assert "an MFU of 563 %, which is impossible: no device does more than its peak; its clock does" in share.sentence
    # Without a queue there is nothing to wait for.
    assert [one.causes for one in verdicts(text)] == [()] * 3


def test_lines_that_follow_the_steps_allow_no_noise() -> None:
    """The speed changes, and the lines with it; each has its share of the evaluations in its time."""
    lines = [f"step {n}: {1000 * (STEP + 0.045) * (1.0, 0.8, 1.2)[n % 3]:.3f} ms/step" for n in range(13)]
    assert only("\n".join(lines)).verdict == "agrees"
    found = only("\n".join(lines), replace(WINDOW, by_line=0.001))
    assert [cause.name for cause in found.causes] == ["evaluation"]


def test_the_wait_for_input_may_be_left_out() -> None:
    found = only(f"{96 / (STEP - 0.08):.3f} samples/s", replace(WINDOW, input_wait_s=0.08))
    assert [cause.name for cause in found.causes] == ["input wait left out"]


def test_a_time_that_is_right_rules_out_mistakes_of_time() -> None:
    rate = 96 * 200 / (200 * STEP + 9)
    _, found = verdicts(2 * f"step time: {STEP * 1000:.3f} ms, {rate:.3f} samples/s\n")
    assert (found.verdict, found.causes) == ("differs", ())
    assert found.sentence.endswith("no known mistake explains it.")


def test_what_was_not_measured_cannot_be_checked() -> None:
    bare = MeasuredWindow(step_s=0.1, steps=10)
    for text in ("5 samples/s", "5 tokens/s", "5 TFLOP/s", "MFU 40%"):
        found = only(text, bare)
        assert (found.verdict, found.factor) == ("unknown", None)
        assert "not known" in found.sentence
    assert "peak" in only("MFU 40%", replace(bare, flops=1e9)).sentence
    impossible = only("MFU 152%", bare)
    assert impossible.verdict == "differs"
    assert "impossible" in impossible.sentence


def test_the_first_step_belongs_to_some_formats() -> None:
    whole = 200 * STEP + 21
    text = f"{{'train_runtime': {whole:.4f}, 'train_samples_per_second': {96 * 201 / whole:.3f}}}"
    found = only(text)
    assert (found.verdict, found.causes[0].name, found.by_definition) == ("differs", "first step", True)


def test_tokens_may_be_those_that_count_in_the_loss() -> None:
    text = f"{0.6 * TOKENS:.1f} tokens/s"
    found = only(text, replace(WINDOW, labels=0.6 * 96 * 700))
    assert (found.verdict, found.sentence[-60:]) == (
        "agrees",
        " was measured, of tokens that count in the loss, so it is right."[-60:],
    )
    assert repeated(text).verdict == "differs"


def test_coarse_digits_are_no_difference() -> None:
    window = replace(WINDOW, step_s=0.0149, world=1, accumulation=1)
    assert only("0.01 s/step", window).verdict == "agrees"
    assert repeated("0.03 s/step", window).verdict == "differs"


def test_an_iteration_can_be_a_micro_batch() -> None:
    bar = f" 50%|##| 100/200 [00:10<00:10, {4 / STEP:.2f}it/s]"
    assert only(bar).verdict == "agrees"
    assert only(f" 50%|##| 100/200 [00:10<00:10, {1 / STEP:.2f}it/s]").verdict == "agrees"


# -- programs that are right


def _nanogpt(step: int, time: float) -> str:
    return f"iter {step}: loss 3.2671, time {time * 1000:.2f}ms, mfu {41 * STEP / time:.2f}%"


def _megatron(step: int, time: float) -> str:
    return (
        f" iteration {step:8d}/     200 | consumed samples: {96 * step:12d} | elapsed time per iteration (ms): "
        f"{time * 1000:.1f} | throughput per GPU (TFLOP/s/GPU): {0.41 * H100 * STEP / time / 1e12:.1f} | lm loss: 7.8 |"
    )


def _maxtext(step: int, time: float) -> str:
    return (
        f"completed step: {step}, seconds: {time:.3f}, TFLOP/s/device: {0.41 * H100 * STEP / time / 1e12:.3f}, "
        f"Tokens/s/device: {96 * 700 / time / 3:.3f}, total_weights: 67200, loss: 6.765"
    )


def _titan(step: int, time: float) -> str:
    return (
        f"step: {step:2}  loss: 6.77  tps: {round(96 * 700 / time / 3):,}  tflops: 405.65  mfu: {41 * STEP / time:.2f}%"
    )


def _deepspeed(step: int, time: float) -> str:
    rates = f"RunningAvgSamplesPerSec={SAMPLES}, CurrSamplesPerSec={96 / time}"
    return f"epoch=0/micro_step={4 * step}/global_step={step}, {rates}"


def _timm(step: int, time: float) -> str:
    rate = f"{time:.3f}s, {96 / time:>7.2f}/s"
    return f"Train: 0 [{step:>4d}/200 ( 25%)]  Loss: 6.93 (6.95)  Time: {rate}  LR: 1e-4  Data: 0.01"


def _graphcore(step: int, time: float) -> str:
    return f"Step: {step}/200 Loss: 7.812 Duration: {time:6.4f} s Throughput: {96 / time:6.1f} samples/s "


def _bar(step: int, time: float) -> str:
    return f"\r{step // 2:3d}%|##  | {step}/200 [00:{step // 4:02d}<00:30, {1 / time:5.2f}it/s]"


def _words(step: int, time: float) -> str:
    return f"step {step} | loss: 6.5 | dt: {time * 1000:.2f}ms | tok/sec: {96 * 700 / time:.2f}"


def _short(step: int, time: float) -> str:
    return f"[{step}] {96 / time / 3:.0f} samples/s per GPU, {96 * 700 / time / 1000:.1f}k tokens/s, {time:.2f} s/step"


CLEAN = (_nanogpt, _megatron, _maxtext, _titan, _deepspeed, _timm, _graphcore, _bar, _words, _short)


@pytest.mark.parametrize("number", range(10))
@pytest.mark.parametrize("seed", [101, 202, 303, 404])
def test_a_program_that_is_right_raises_no_alarm(number: int, seed: int) -> None:
    """Seeds 1 to 40 were used to choose the tolerance; steps have a spread of 5 %, and every tenth is printed."""
    source = random.Random(1000 * number + seed)
    times = [STEP * source.lognormvariate(0, 0.05) for _ in range(200)]
    mean = sum(times) / len(times)
    window = replace(WINDOW, step_s=mean, spread=0.05)
    lines = [CLEAN[number](0, 21.0), *(CLEAN[number](step, times[step]) for step in range(10, 200, 10))]
    found = verdicts("\n".join(lines), window)
    assert found
    assert [one.sentence for one in found if one.verdict != "agrees"] == []


def test_an_iteration_is_that_of_any_loop() -> None:
    """Of the loader of a validation, for example; what a known mistake explains is told nevertheless."""
    found = repeated(f"{STEP / 2.5 * 1000:.3f} ms/it")
    assert (found.verdict, found.causes) == ("unknown", ())
    assert "another loop" in found.sentence
    assert repeated(f"{STEP / 2.5 * 1000:.3f} ms/step").verdict == "differs"


def test_an_iteration_can_be_a_batch_that_ends_no_step() -> None:
    """Of 3 batches for a step, two are for another optimizer."""
    window = replace(WINDOW, accumulation=1, batches=3.0)
    found = repeated(f"{STEP / 3 * 1000:.3f} ms/it", window)
    assert found.verdict == "agrees"
    assert "one of the 3.00 batches of a step" in found.sentence
    assert repeated(f"{STEP / 3 * 1000:.3f} ms/step", window).verdict == "differs"


def test_a_time_is_compared_with_the_nearest_that_its_words_allow() -> None:
    window = replace(WINDOW, asynchronous=True)
    found = repeated(f"{STEP / 4 / 1.2 * 1000:.3f} ms/batch", window)
    assert found.measured == pytest.approx(STEP / 4)


def test_an_agreement_within_much_noise_says_so() -> None:
    noisy = replace(WINDOW, spread=0.03)
    assert "so it is right" in repeated(f"{STEP * 1010:.1f} ms/step", noisy).sentence
    assert "so they agree within ±11.0 %" in repeated(f"{STEP * 1080:.1f} ms/step", noisy).sentence


@pytest.mark.parametrize(
    ("line", "slow", "fast"),
    [
        (_words, "unknown", "differs"),
        (_bar, "unknown", "unknown"),
        (_titan, "unknown", "differs"),
        (_maxtext, "differs", "differs"),
        (_timm, "differs", "differs"),
    ],
)
def test_a_first_line_that_is_the_only_one_may_have_the_start_in_it(
    line: Callable[[int, float], str], slow: str, fast: str
) -> None:
    """Three times as slow is also the figure of one of the 3 devices. Nothing before a loop makes it faster."""
    assert {one.verdict for one in verdicts(line(20, STEP))} == {"agrees"}
    for time, verdict in ((3 * STEP, slow), (STEP / 3.5, fast)):
        found = [one for one in verdicts(line(20, time)) if one.mean.over != "run"]
        assert {one.verdict for one in found} <= {verdict, "agrees"}
        assert verdict in {one.verdict for one in found}
        told = [one for one in found if one.verdict == "unknown"]
        assert all(one.causes == () and one.factor is None for one in told)
        assert all("first line may have its start in its time" in one.sentence for one in told)
    # The first step is slow by itself.
    assert {one.verdict for one in verdicts(_maxtext(1, 3 * STEP))} == {"unknown"}


@pytest.mark.parametrize("seed", [505, 606, 707])
@pytest.mark.parametrize(
    ("factor", "cause"),
    [(1 / 4, "without accumulation"), (1 / 3, "one device"), (3, "devices twice"), (1 / 0.7, "padding")],
)
def test_a_mistake_is_found_in_noise(factor: float, cause: CauseName, seed: int) -> None:
    source = random.Random(seed)
    times = [STEP * source.lognormvariate(0, 0.05) for _ in range(200)]
    window = replace(WINDOW, step_s=sum(times) / len(times), spread=0.05)
    lines = [f"step {step}: {factor * 96 * 700 / times[step]:.0f} tokens/s" for step in range(0, 200, 5)]
    found = only("\n".join(lines), window)
    assert [one.name for one in found.causes] == [cause]
    assert found.causes[0].factor == pytest.approx(factor)
    assert found.factor == pytest.approx(factor, rel=found.tolerance)
