"""The training programs count rightly what they do, by hand on small cases, and repeat themselves bit for bit."""

from __future__ import annotations

import pytest

from program_cases import ALL, Case, Outcome, Program, run

pytestmark = pytest.mark.full("takes long: 25 s; these programs are for the figures, and no part of the product runs")

STEPS = 12


def program(name: str) -> Program:
    return next(one for one in ALL if one.name == name)


def ran(case: Case) -> Outcome:
    done = run(case)
    assert done.exit_code == 0, done.stderr.decode()
    return done


def test_plain_counts_the_short_batch_at_the_end_of_an_epoch_and_repeats_itself() -> None:
    # 1000 samples: 31 batches of 32 and one of 8.
    case = Case(program("plain"), steps=33)
    one, other = ran(case), ran(case)
    assert one.truth["losses"] == other.truth["losses"]
    assert len(one.truth["losses"]) == 33
    assert one.stdout == other.stdout
    assert (one.truth["samples"], one.truth["accumulation"]) == (1000 + 32, 1)
    assert len(one.truth["durations_s"]) == 32
    assert one.truth["step_s"] == sum(one.truth["durations_s"][9:]) / 23


def test_text_counts_every_token_of_an_epoch_on_both_ranks() -> None:
    # An epoch: 600 texts, 300 on each rank, in 38 micro-batches of 8 (the last of 4); text n has 8 + 7 n mod 33 tokens.
    truth = ran(Case(program("text"), ranks=2, accumulation=2, steps=19)).truth
    tokens = sum(8 + number * 7 % 33 for number in range(600))
    assert (truth["steps"], truth["accumulation"], truth["backwards"], truth["samples"]) == (19, 2, 38, 600)
    assert truth["tokens"] - truth["padding_tokens"] == tokens
    assert truth["label_tokens"] == tokens - 3 * 600
    assert 0 < truth["padding_tokens"] < truth["tokens"] <= 40 * 600


def test_gan_counts_the_updates_of_both_optimizers() -> None:
    critic = next(one for one in ALL if one.name == "gan" and one.options)
    truth = ran(Case(critic, accumulation=2, steps=STEPS)).truth
    assert truth["steps"] == STEPS
    assert truth["samples"] == STEPS * 5 * 2 * 32
    assert (truth["updates"], truth["backwards"]) == (STEPS * 6, STEPS * 2 * (2 * 5 + 1))
    assert (truth["accumulation"], truth["tokens"]) == (2, None)
    assert len(truth["losses"]) == 2 * STEPS
