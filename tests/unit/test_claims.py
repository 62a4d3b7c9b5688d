"""Claims: every kind and assertion on constructed tables and altered documents, and hostile files."""

from __future__ import annotations

import csv
import json
import math
import os
import re
import subprocess
import sys
import tomllib
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from steelyard.audit import documents
from steelyard.audit.claims import KINDS, Claims, ClaimsFile, Times, figure, parse_claim, parse_claims
from steelyard.audit.judge import Document, judge, judge_claim, try_example
from steelyard.audit.table import parse_table
from steelyard.cli.main import main
from steelyard.errors import InputError
from steelyard.rules.claim import ClaimRule
from steelyard.rules.rule import VERDICTS, codes, rule, rules

if TYPE_CHECKING:
    from steelyard.audit.judge import Judgement

ROOT = Path(__file__).resolve().parents[2]
KNOWN = (ROOT / "benchmarks" / "lib" / "claims_expected.csv").read_text(encoding="utf-8")
EXPECTED = {row["id"]: row for row in csv.DictReader(KNOWN.splitlines())}


@pytest.fixture(scope="module")
def reference() -> Claims:
    return parse_claims(documents.claims_text(), "the built-in claims")


# -- the reference documents


def test_the_reference_claims_are_judged_as_known(reference: Claims) -> None:
    judged = judge(reference)
    assert {entry.claim.id: entry.verdict for entry in judged} == {
        name: row["verdict"] for name, row in EXPECTED.items()
    }


def test_no_verdict_is_shipped(reference: Claims) -> None:
    """The built-in claims file must not contain the expected verdicts."""
    text = documents.claims_text().decode()
    body = re.sub(r"^(text|place|published|asserts|kind) = .*$", "", text, flags=re.MULTILINE)
    assert not [verdict for verdict in VERDICTS if verdict in body]
    assert len(reference.claims) == 32


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("N1", "(36.67-24.81)/36.67 = 32.3 %"),
        ("N10", "(37.77-34.38)/37.77 = 9.0 %; (37.77-34.38)/34.38 = 9.9 %"),
        ("N11", "(11.84-4.59)/11.84 = 61.2 %; (11.84-4.59)/4.59 = 158.0 %"),
        ("N13", "4.59/1.08 = 4.25x"),
        ("N15", "47.8 % to 118.8 % over 12 pairs"),
        ("A1", "93.5 % at 8, 77.4 % and 62.2 % at 16"),
        ("A2", "1,268,913 at 64 devices (-17.2 %)"),
        ("A3", "105,580 at 16 devices (+50.8 %)"),
        ("A4", "45.6 % at 16"),
        ("A6", "2,954/270 = 10.9x; each side's best settings: 2,954/4,321"),
        ("O2", "14.2/16 = 88.8 %, so it was divided by 16 instead of 4"),
        ("O3", "24.5/32 = 76.5 %"),
        ("O5", "37,510/17,511 = 2.14x"),
        ("O6", "36,264 at loader.workers 4 vs 34,545 at loader.workers 8"),
        ("O7", "37,510 and 35,408, which differ by 5.9 %"),
        ("O8", "(0.574-0.590)/0.590 = -2.7 %"),
        ("C1", "9 of 9 figures per energy are right"),
        ("C2", "14,336 W at global_batch 64"),
        ("C3", "global_batch 2,048 (94.8 %)"),
    ],
)
def test_the_figures_are_worked_out_again(reference: Claims, name: str, words: str) -> None:
    assert words in next(entry for entry in judge(reference) if entry.claim.id == name).recomputed


# Expected verdicts if a figure, a row or an assertion of a document is changed.
ALTERED: list[tuple[str, dict[str, Any], str]] = [
    ("N1", {"published": "32.5 %"}, "does not follow"),
    ("N1", {"published": "32 %"}, "holds"),
    ("N1", {"published": "47.8 %"}, "base differs"),
    ("N1", {"published": "47.8 %", "base": "smaller"}, "holds"),
    ("N1", {"relation": "slower"}, "does not follow"),
    ("N1", {"relation": "more throughput"}, "base differs"),
    ("N1", {"relation": "more throughput", "published": "47.8 %"}, "holds"),
    ("N1", {"relation": "less time"}, "holds"),
    ("N3", {"published": "25.7 %"}, "base differs"),
    ("N3", {"published": "204 %"}, "does not follow"),
    ("N10", {"published": "9.0 %"}, "holds"),
    ("N10", {"base": "smaller"}, "holds"),
    ("N10", {"published": "99 %"}, "does not follow"),
    ("N11", {"published": "61.2 %"}, "holds"),
    ("N11", {"published": "158 %"}, "base differs"),
    ("N13", {"b": {"accelerator": "GH200"}}, "outlier"),
    ("N13", {"rows": {"table": "II", "model": "SegFormer (MiT-B4)"}}, "holds"),
    ("N14", {"rows": {"table": "II", "model": "SegFormer (MiT-B4)"}}, "holds"),
    ("N15", {"published": "47-119 %"}, "holds"),
    ("N15", {"published": "32-55 %"}, "base differs"),
    ("N15", {"relation": "less time", "published": "32-55 %"}, "holds"),
    ("A1", {"up_to": 16}, "does not follow"),
    ("A1", {"up_to": 16, "at_least": 0.75}, "holds"),
    ("A1", {"rows": {"table": "1", "mode": "epoch 1 (includes graph compilation)"}}, "does not follow"),
    ("A2", {"rows": {"table": "3", "devices": 1}}, "holds"),
    ("A2", {"within": 0.01}, "does not follow"),
    ("A2", {"rows": {"table": "3", "system": "Graphcore IPU-POD16"}, "within": 0.01}, "holds"),
    ("A3", {"published": "60,000"}, "does not follow"),
    ("A3", {"rows": {"table": "4", "accelerator": "A100-40GB"}}, "holds"),
    ("A4", {"up_to": 2, "at_least": 0.85}, "holds"),
    ("A5", {"published": "about 5,000 against 270"}, "does not follow"),
    ("A5", {"a": {"accelerator": "A100-40GB"}, "b": {"accelerator": "GC200 IPU"}, "published": ""}, "does not follow"),
    ("A6", {"a": {"accelerator": "A100-40GB"}, "b": {"accelerator": "GC200 IPU"}}, "does not follow"),
    ("O1", {"published": "20x"}, "does not follow"),
    ("O1", {"asserts": ("arithmetic",), "factor": ""}, "holds"),
    ("O1", {"a": {"table": "test 3"}, "b": {"table": "test 2"}, "published": "1.72x"}, "holds"),
    ("O2", {"published": "355 %"}, "holds"),
    ("O3", {"b": {"table": "test 2"}, "published": "86.1 %"}, "holds"),
    ("O4", {"asserts": ("attribution",), "factor": "precision"}, "confounded"),
    ("O4", {"asserts": ("attribution",), "factor": "model"}, "confounded"),
    ("O7", {"factor": "loader.workers"}, "confounded"),
    ("O4", {"published": "1.69x"}, "does not follow"),
    ("O5", {"asserts": ("arithmetic",), "factor": ""}, "holds"),
    ("O6", {"value": 4}, "holds"),
    ("O6", {"value": 16}, "does not follow"),
    ("O7", {"asserts": (), "factor": ""}, "holds"),
    ("O7", {"published": "2.4 %", "base": "a"}, "not shown"),
    ("O7", {"published": "2.4 %", "base": "a", "asserts": (), "factor": ""}, "holds"),
    ("O8", {"asserts": ("arithmetic",), "within": 0.05}, "holds"),
    ("O8", {"asserts": ("arithmetic",), "within": 0.01}, "does not follow"),
    ("C1", {"published": "39,926-41,690 images/Wh"}, "does not follow"),
    ("C1", {"limit_w": 150.0}, "impossible"),
    ("C2", {"limit_w": 15000.0}, "holds"),
    ("C3", {"published": "65.0 to 200.0 tokens/s"}, "does not follow"),
    ("C3", {"direction": "falls"}, "does not follow"),
    ("C3", {"metric": "tokens_per_energy", "published": ""}, "holds"),
]


@pytest.mark.parametrize(("name", "change", "verdict"), ALTERED)
def test_an_altered_claim_gets_another_verdict(
    reference: Claims, name: str, change: dict[str, Any], verdict: str
) -> None:
    claims = tuple(replace(entry, **change) if entry.id == name else entry for entry in reference.claims)
    document = next(entry.document for entry in claims if entry.id == name)
    judged = judge(replace(reference, claims=claims), document)
    assert next(entry.verdict for entry in judged if entry.claim.id == name) == verdict


@pytest.mark.parametrize("scale", [0.5, 0.9, 1.1, 2.0])
def test_a_scaled_figure_never_holds(reference: Claims, scale: float) -> None:
    """Every figure of the documents, changed."""
    changed = []
    for claim in reference.claims:
        found = re.fullmatch(r"(-?[\d.]+) ?(%|x)", claim.published)
        if found and found[1] != "8":
            digits = len(found[1].partition(".")[2])
            text = f"{float(found[1]) * scale:.{digits}f} {found[2]}".replace(" x", "x")
            changed.append(replace(claim, published=text))
    assert len(changed) >= 18
    judged = judge(replace(reference, claims=tuple(changed)))
    assert [entry.claim.id for entry in judged if entry.verdict == "holds"] == []


# -- constructed tables


HEAD = "accelerator,devices,model,precision,batch,metric,value,unit\n"
TWO = HEAD + "X,1,net,fp16,8,train_time,60.0,s\nY,1,net,fp16,8,train_time,45.0,s\n"
CURVE = HEAD + (
    "X,1,net,fp16,8,throughput,101.0,images/s\nX,2,net,fp16,8,throughput,199.0,images/s\n"
    "X,4,net,fp16,8,throughput,390.0,images/s\nX,8,net,fp16,8,throughput,560.0,images/s\n"
)
REPEATED = HEAD + "".join(
    f"X,1,net,{precision},8,throughput,{value},images/s\n"
    for precision, values in (
        ("fp16", (120.1, 121.3, 119.8)),
        ("bf16", (100.2, 101.1, 99.5)),
        ("fp8", (120.4, 120.9, 120.2)),
    )
    for value in values
)
SWEEP = HEAD + (
    "X,1,net,fp16,8,throughput,300.0,images/s\nX,1,net,fp16,64,throughput,310.0,images/s\n"
    "Y,1,net,fp16,8,throughput,200.0,images/s\nY,1,net,fp16,64,throughput,290.0,images/s\n"
)
ENERGY = (
    "system,accelerator,devices,model,epoch_samples,power_limit_w,metric,value,unit\n"
    "S,X,1,net,360000,{limit},throughput,100.0,images/s\n"
    "S,X,1,net,360000,{limit},energy_per_epoch,{energy},Wh\n"
    "S,X,1,net,360000,{limit},images_per_energy,{per},images/Wh\n"
)
MIXED = HEAD + "X,1,net,fp32,8,throughput,100.0,images/s\nX,4,net,fp16,64,throughput,900.0,images/s\n"
SIDES = 'a = { accelerator = "Y" }\nb = { accelerator = "X" }\n'
PAIR = f'metric = "train_time"\n{SIDES}'
LESS, MORE, CHANGE = (f'kind = "percent"\nrelation = "{how}"\n' for how in ("less time", "more throughput", "change"))
CREDITED = 'asserts = ["attribution"]\nfactor = "devices"\n'
ODD = 'asserts = ["plausibility"]\n'
BATCH = 'kind = "best"\nmetric = "throughput"\nsetting = "batch"\n'
RISES = 'kind = "monotone"\nmetric = "throughput"\nsetting = "devices"\n'
RATES = TWO.replace("train_time", "throughput").replace(",s\n", ",images/s\n")
DEVICES = 'metric = "throughput"\na = { devices = 4 }\nb = { devices = 1 }\n'
MEANS = 'metric = "throughput"\na = { precision = "fp16", mean = true }\nb = { precision = "bf16", mean = true }\n'
ALIKE = 'metric = "throughput"\na = { precision = "fp16", mean = true }\nb = { precision = "fp8", mean = true }\n'
BATCH8 = 'metric = "throughput"\na = { accelerator = "X", batch = 8 }\nb = { accelerator = "Y", batch = 8 }\n'

SLOWER8 = BATCH8.replace('"X"', '"Z"').replace('"Y"', '"X"').replace('"Z"', '"Y"')
NOTED = "precision,metric,value,unit,note\nfp16,throughput,120.0,images/s,late\nfp16,throughput,100.0,images/s,early\n"
BY_NOTE = 'asserts = ["attribution"]\nmetric = "throughput"\na = { note = "late" }\nb = { note = "early" }\n'

MADE_UP: dict[str, tuple[str, str, str]] = {
    "times follow": (TWO, f'kind = "times"\npublished = "1.33x"\n{PAIR}', "holds"),
    "times do not": (TWO, f'kind = "times"\npublished = "1.40x"\n{PAIR}', "does not follow"),
    "times the wrong way": (TWO, f'kind = "times"\npublished = "0.75x"\n{PAIR}', "does not follow"),
    "a single percentage has no convention to break": (
        TWO,
        f'kind = "percent"\npublished = "25.0 %"\n{PAIR}',
        "holds",
    ),
    "nor by the other base": (TWO, f'kind = "percent"\npublished = "33.3 %"\n{PAIR}', "holds"),
    "but a stated base binds": (TWO, f'kind = "percent"\nbase = "b"\npublished = "33.3 %"\n{PAIR}', "base differs"),
    "less time is of b": (TWO, f'{LESS}published = "33.3 %"\n{PAIR}', "base differs"),
    "more throughput from times": (TWO, f'{MORE}published = "33.3 %"\n{PAIR}', "holds"),
    "a signed change": (TWO, f'{CHANGE}published = "-25.0 %"\n{PAIR}', "holds"),
    "the sign counts": (TWO, f'{CHANGE}published = "25.0 %"\n{PAIR}', "does not follow"),
    "faster": (TWO, f'kind = "faster"\n{PAIR}', "holds"),
    "not equal": (TWO, f'kind = "equal"\nwithin = 0.1\n{PAIR}', "does not follow"),
    "equal within": (TWO, f'kind = "equal"\nwithin = 0.3\n{PAIR}', "holds"),
    "efficiency": (CURVE, f'kind = "efficiency"\npublished = "96.5 %"\n{DEVICES}', "holds"),
    "efficiency by another count": (CURVE, f'kind = "efficiency"\npublished = "48.3 %"\n{DEVICES}', "does not follow"),
    "linear as far as it goes": (CURVE, 'kind = "linear"\nmetric = "throughput"\nup_to = 4\n', "holds"),
    "linear no further": (CURVE, 'kind = "linear"\nmetric = "throughput"\n', "does not follow"),
    "devices are credited without repeats": (
        CURVE,
        f'kind = "times"\n{CREDITED}published = "3.86x"\n{DEVICES}',
        "not shown",
    ),
    "devices are credited with all that changed": (
        MIXED,
        f'kind = "times"\n{CREDITED}published = "9.0x"\n{DEVICES}',
        "confounded",
    ),
    "arithmetic of the same is right": (MIXED, f'kind = "times"\npublished = "9.0x"\n{DEVICES}', "holds"),
    "superlinear": (MIXED.replace("fp32,8", "fp16,64"), f'kind = "times"\n{ODD}{DEVICES}', "superlinear"),
    "not superlinear": (CURVE, f'kind = "times"\nasserts = ["plausibility"]\n{DEVICES}', "holds"),
    "repeats show it": (REPEATED, f'kind = "faster"\nasserts = ["statistics"]\n{MEANS}', "holds"),
    "repeats credit it": (
        REPEATED,
        f'kind = "faster"\nasserts = ["attribution"]\nfactor = "precision"\n{MEANS}',
        "holds",
    ),
    "repeats do not show it": (
        REPEATED,
        'kind = "faster"\nasserts = ["statistics"]\n'
        + ALIKE.replace("fp16", "x").replace("fp8", "fp16").replace("x", "fp8"),
        "not shown",
    ),
    "shown to be equal": (REPEATED, f'kind = "equal"\nwithin = 0.05\nasserts = ["statistics"]\n{ALIKE}', "holds"),
    "not shown to be as equal as that": (
        REPEATED,
        f'kind = "equal"\nwithin = 0.002\nasserts = ["statistics"]\n{ALIKE}',
        "not shown",
    ),
    "statistics need repeats": (SWEEP, f'kind = "faster"\nasserts = ["statistics"]\n{BATCH8}', "not shown"),
    "the advantage shrinks at the best batch": (
        SWEEP,
        f'kind = "times"\npublished = "1.5x"\nasserts = ["fairness"]\n{BATCH8}',
        "unfair",
    ),
    "and lasts where both gain alike": (
        SWEEP.replace("200.0", "280.0"),
        f'kind = "faster"\nasserts = ["fairness"]\n{BATCH8}',
        "holds",
    ),
    "whoever is slower is not put at a disadvantage": (
        SWEEP,
        f'kind = "percent"\nrelation = "slower"\nasserts = ["fairness"]\n{SLOWER8}',
        "unfair",
    ),
    "what did not change is no cause": (NOTED, f'kind = "faster"\nfactor = "precision"\n{BY_NOTE}', "confounded"),
    "what is not stated is no cause": (NOTED, f'kind = "faster"\nfactor = "compile"\n{BY_NOTE}', "not shown"),
    "nobody knows the best of one setting": (
        TWO,
        f'kind = "faster"\nasserts = ["fairness"]\n{PAIR}',
        "not shown",
    ),
    "the best batch": (SWEEP, f'{BATCH}rows = {{ accelerator = "Y" }}\nvalue = 64\n', "holds"),
    "not the best batch": (SWEEP, f"{BATCH}value = 8\n", "does not follow"),
    "nothing to be best among": (MIXED, f"{BATCH}value = 8\n", "does not follow"),
    "rises": (CURVE, RISES, "holds"),
    "does not rise everywhere": (CURVE.replace("560.0", "380.0"), RISES, "does not follow"),
    "power below the limit": (
        ENERGY.format(limit=300, energy="200.0", per="1800.0"),
        'kind = "power"\nasserts = ["arithmetic", "physical limit"]\nlimit_w = 300\n',
        "holds",
    ),
    "power above the limit": (
        ENERGY.format(limit=300, energy="400.0", per="900.0"),
        'kind = "power"\nlimit_w = 300\n',
        "impossible",
    ),
    "no limit is known": (ENERGY.format(limit="", energy="400.0", per="900.0"), 'kind = "power"\n', "not shown"),
    "images per Wh of another energy": (
        ENERGY.format(limit=300, energy="200.0", per="3600.0"),
        'kind = "power"\nasserts = ["arithmetic"]\nlimit_w = 500\n',
        "does not follow",
    ),
    "jobs added up": (
        REPEATED,
        f'kind = "times"\npublished = "3.00x"\n{ALIKE}'.replace("mean", "sum", 1),
        "holds",
    ),
    "the same work": (
        RATES + "X,1,net,fp16,8,epoch_time,6.0,s\nY,1,net,fp16,8,epoch_time,8.0,s\n",
        'kind = "same_work"\n',
        "holds",
    ),
    "other work": (
        RATES + "X,1,net,fp16,8,epoch_time,6.0,s\nY,1,net,fp16,8,epoch_time,9.0,s\n",
        'kind = "same_work"\n',
        "does not follow",
    ),
    "two models are not the same work": (
        TWO.replace("Y,1,net", "Y,1,other"),
        f'kind = "faster"\nasserts = ["same work"]\n{PAIR}',
        "does not follow",
    ),
}


# Claims on machines, metrics and wordings that the reference documents do not have; verdicts were set by hand.

SERVED = (
    "accelerator,devices,model,mode,metric,value,unit\n"
    "P,1,llm,decode,throughput,1200,tokens/s\nQ,1,llm,decode,throughput,2400,tokens/s\n"
    "P,1,llm,decode,ttft,80.0,ms\nQ,1,llm,decode,ttft,40.0,ms\n"
    "P,1,llm,decode,energy,9.00,kJ\nQ,1,llm,decode,energy,3.00,kJ\n"
)
QP = 'a = { accelerator = "Q" }\nb = { accelerator = "P" }\n'


def rows_of(metric: str, unit: str, *cells: str) -> str:
    """Return rows `accelerator,devices,precision,batch,value` of one metric."""
    return HEAD + "".join(
        f"{acc},{devices},net,{precision},{batch},{metric},{value},{unit}\n"
        for acc, devices, precision, batch, value in (cell.split(",") for cell in cells)
    )


def rates(*cells: str) -> str:
    return rows_of("throughput", "images/s", *cells)


def side(name: str, **settings: object) -> str:
    inside = ", ".join(f"{key} = {json.dumps(value)}" for key, value in settings.items())
    return f"{name} = {{ {inside} }}\n"


SLOW16 = rates("X,1,fp16,8,100.1", "X,1,fp16,8,101.2", "X,1,fp16,8,99.8", "X,1,bf16,8,120.3", "X,1,bf16,8,121.1",
               "X,1,bf16,8,119.9")  # fmt: skip
THREE = ("Y,1,fp16,8,200.0", "Y,1,fp16,64,300.0", "Y,1,fp16,128,290.0")
GREW = rates("X,1,fp16,8,100.0", "X,1,fp16,64,900.0", "X,1,fp16,128,950.0", *THREE)
LASTS = rates("X,1,fp16,8,400.0", "X,1,fp16,64,900.0", "X,1,fp16,128,950.0", *THREE)
XY8 = side("a", accelerator="X", batch=8) + side("b", accelerator="Y", batch=8)
FOUR = side("a", devices=16) + side("b", devices=4)
WIDE = side("a", devices=4) + side("b", devices=1)
RISE = 'kind = "monotone"\nmetric = "throughput"\nsetting = "batch"\n'
BEST8 = f"{BATCH}value = 8\n"
FAIR = 'asserts = ["fairness"]\n'
PER_WH = (
    "system,accelerator,devices,epoch_samples,power_limit_w,metric,value,unit\n"
    "S,X,1,3600,300,throughput,100.0,images/s\nS,X,1,3600,300,images_per_energy,1800.0,images/Wh\n"
    "S,X,1,3600,300,energy_per_epoch,2.00,Wh\n"
)
MODELS = "accelerator,model,metric,value,unit\nX,m,train_time,100.0,s\nY,m,train_time,80.0,s\n"
WORKS = "accelerator,model,metric,value,unit\n" + "".join(
    f"{acc},m{n},throughput,{(10 + n) * (2 if acc == 'Q' else 1)}.0,tokens/s\n" for n in range(8) for acc in "PQ"
)

TWICE = "accelerator,model,metric,value,unit\n" + "".join(
    f"{acc},{model},throughput,{value},tokens/s\n"
    for acc, model, value in (("X", "a", "10.0"), ("X", "b", "20.0"), ("Y", "a", "25.0"), ("Y", "b", "70.0"))
)
PAIRS = f'kind = "times"\nmetric = "throughput"\nover = ["model"]\n{SIDES}'
QUICK = rates("X,1,fp16,8,100.0", "Y,1,fp16,8,125.0")
ONE = rates("X,1,fp16,8,100.0") + "X,1,net,fp16,8,epoch_time,9.8,s\n"
ATTRIBUTED = 'asserts = ["attribution"]\nmetric = "throughput"\n'
HOSTED = "system,accelerator,devices,power_limit_w,metric,value,unit\nS,X,2,700,{metric},{value},W\n"


def share(relation: str, published: str, *, turned: bool = False, base: str = "") -> str:
    sides = 'a = { accelerator = "X" }\nb = { accelerator = "Y" }\n' if turned else SIDES
    said = f'base = "{base}"\n' if base else ""
    return f'kind = "percent"\nrelation = "{relation}"\npublished = "{published}"\nmetric = "throughput"\n{said}{sides}'


INVENTED: dict[str, tuple[str, str, str]] = {
    "25 % more of a rate": (QUICK, share("more throughput", "25 %"), "holds"),
    "20 % more of a rate": (QUICK, share("more throughput", "20 %"), "base differs"),
    "20 % less time by rates": (QUICK, share("less time", "20 %"), "holds"),
    "25 % less time by rates": (QUICK, share("less time", "25 %"), "base differs"),
    "25 % more time by rates": (QUICK, share("more time", "25 %", turned=True), "holds"),
    "20 % less of a rate": (QUICK, share("less throughput", "20 %", turned=True), "holds"),
    "of a": (QUICK, share("faster", "25 %", base="a"), "base differs"),
    "of b": (QUICK, share("faster", "25 %", base="b"), "holds"),
    "of the larger": (QUICK, share("faster", "20 %", base="larger"), "holds"),
    "of the smaller": (QUICK, share("faster", "20 %", base="smaller"), "base differs"),
    "a range that holds all pairs": (TWICE, f'published = "2.5-3.5x"\n{PAIRS}', "holds"),
    "up to what one reaches": (TWICE, f'published = "up to 3.5x"\n{PAIRS}', "holds"),
    "up to what none reaches": (TWICE, f'published = "up to 10x"\n{PAIRS}', "does not follow"),
    "at most what none reaches": (TWICE, f'published = "at most 10x"\n{PAIRS}', "holds"),
    "about so much work": (ONE, 'kind = "same_work"\npublished = "about 1,000 images"\n', "holds"),
    "so much work": (ONE, 'kind = "same_work"\npublished = "1,000"\n', "does not follow"),
    "power of a device above its limit": (
        HOSTED.format(metric="power_per_device", value=900),
        'kind = "power"\n',
        "impossible",
    ),
    "power of two devices above their limits": (
        HOSTED.format(metric="power", value=1800),
        'kind = "power"\n',
        "impossible",
    ),
    "power below the limit, of two": (HOSTED.format(metric="power", value=1200), 'kind = "power"\n', "holds"),
    "four devices are not one of another kind": (
        rates("X,1,fp16,8,100.0", "Y,4,fp16,8,425.0"),
        'kind = "times"\npublished = "4.25x"\nfactor = "accelerator"\n' + ATTRIBUTED + SIDES,
        "confounded",
    ),
    "repeats elsewhere tell how large chance is": (
        rates("X,1,fp16,8,100.0", "X,1,bf16,8,125.0", "Z,1,fp16,8,50.0", "Z,1,fp16,8,51.0"),
        f'kind = "faster"\nfactor = "precision"\nrows = {{ accelerator = "X" }}\n{ATTRIBUTED}'
        + side("a", precision="bf16")
        + side("b", precision="fp16"),
        "holds",
    ),
    "linear by times": (
        rows_of("epoch_time", "s", "X,1,fp16,8,100.0", "X,2,fp16,8,52.0", "X,4,fp16,8,27.0"),
        'kind = "linear"\nmetric = "epoch_time"\n',
        "holds",
    ),
    "twice as fast": (SERVED, f'kind = "times"\nmetric = "throughput"\npublished = "2x"\n{QP}', "holds"),
    "half the latency is twice as fast": (
        SERVED,
        f'kind = "times"\nmetric = "ttft"\npublished = "2.0x"\n{QP}',
        "holds",
    ),
    "half the time": (
        SERVED,
        f'kind = "times"\nrelation = "as much"\nmetric = "ttft"\npublished = "0.50x"\n{QP}',
        "holds",
    ),
    "half the time is not twice the time": (
        SERVED,
        f'kind = "times"\nrelation = "as much"\nmetric = "ttft"\npublished = "2.0x"\n{QP}',
        "does not follow",
    ),
    "3x less energy": (
        SERVED,
        f'kind = "times"\nrelation = "less"\nmetric = "energy"\npublished = "3.0x"\n{QP}',
        "holds",
    ),
    "67 % less energy": (
        SERVED,
        f'kind = "percent"\nrelation = "less"\nmetric = "energy"\npublished = "67 %"\n{QP}',
        "holds",
    ),
    "200 % less energy is of the other base": (
        SERVED,
        f'kind = "percent"\nrelation = "less"\nmetric = "energy"\npublished = "200 %"\n{QP}',
        "base differs",
    ),
    "less, the wrong way round": (
        SERVED,
        f'kind = "percent"\nrelation = "more"\nmetric = "energy"\n{QP}',
        "does not follow",
    ),
    "slower, the wrong way round": (
        SERVED,
        f'kind = "percent"\nrelation = "slower"\nmetric = "throughput"\n{QP}',
        "does not follow",
    ),
    "100 % more, and not 200 %": (
        SERVED,
        f'{MORE}metric = "throughput"\npublished = "200 %"\n{QP}',
        "does not follow",
    ),
    "more than, kept": (SERVED, f'kind = "times"\nmetric = "throughput"\npublished = "more than 1.5x"\n{QP}', "holds"),
    "more than, not kept": (
        SERVED,
        f'kind = "times"\nmetric = "throughput"\npublished = "over 2.5x"\n{QP}',
        "does not follow",
    ),
    "up to, not kept": (
        SERVED,
        f'kind = "times"\nmetric = "throughput"\npublished = "up to 1.5x"\n{QP}',
        "does not follow",
    ),
    "about is not half": (
        SERVED.replace("2400", "6600"),
        f'kind = "times"\nmetric = "throughput"\npublished = "about 10x"\n{QP}',
        "does not follow",
    ),
    "typeset": (SERVED, f'kind = "times"\nmetric = "throughput"\npublished = "1.9\u20132.1\u00d7"\n{QP}', "holds"),
    "shown to be slower is not faster": (
        SLOW16,
        f'kind = "faster"\nasserts = ["statistics"]\n{MEANS}',
        "does not follow",
    ),
    "no cause of what is not so": (
        SLOW16,
        f'kind = "faster"\nasserts = ["attribution"]\nfactor = "precision"\n{MEANS}',
        "does not follow",
    ),
    "efficiency from a base of 4": (
        rates("X,4,fp16,8,400.0", "X,16,fp16,8,1440.0"),
        f'kind = "efficiency"\npublished = "90 %"\nmetric = "throughput"\n{FOUR}',
        "holds",
    ),
    "efficiency of a rate per device": (
        rows_of("throughput_per_device", "images/s", "X,4,fp16,8,100.0", "X,16,fp16,8,90.0"),
        f'kind = "efficiency"\npublished = "90 %"\nmetric = "throughput_per_device"\n{FOUR}',
        "holds",
    ),
    "efficiency of a step, weak": (
        rows_of("step_time", "ms", "X,1,fp16,8,100.0", "X,4,fp16,8,105.0"),
        f'kind = "efficiency"\npublished = "95 %"\nmetric = "step_time"\n{WIDE}',
        "holds",
    ),
    "efficiency of a step, strong": (
        rows_of("step_time", "ms", "X,1,fp16,32,100.0", "X,4,fp16,8,40.0"),
        f'kind = "efficiency"\npublished = "0.63"\nmetric = "step_time"\n{WIDE}',
        "holds",
    ),
    "linear per device": (
        rows_of("throughput_per_device", "images/s", "X,4,fp16,8,100.0", "X,16,fp16,8,95.0"),
        'kind = "linear"\nmetric = "throughput_per_device"\n',
        "holds",
    ),
    "repeats do not fall": (rates("X,1,fp16,8,100.0", "X,1,fp16,8,98.0", "X,1,fp16,16,200.0"), RISE, "holds"),
    "a dip inside the rounding": (rates("X,1,fp16,8,2.1", "X,1,fp16,16,2.0", "X,1,fp16,32,2.5"), RISE, "holds"),
    "a slow slide": (
        rates("X,1,fp16,8,50", "X,1,fp16,16,105", "X,1,fp16,32,104", "X,1,fp16,64,103", "X,1,fp16,128,102"),
        RISE,
        "does not follow",
    ),
    "two machines are two series": (
        rates("X,1,fp16,8,100.0", "X,1,fp16,16,200.0", "Y,1,fp16,8,300.0", "Y,1,fp16,16,400.0"),
        RISE,
        "holds",
    ),
    "one of two series falls": (
        rates("X,1,fp16,8,100.0", "X,1,fp16,16,200.0", "Y,1,fp16,8,500.0", "Y,1,fp16,16,400.0"),
        RISE,
        "does not follow",
    ),
    "what stays does not fall": (
        rates("X,1,fp16,8,5.0", "X,1,fp16,16,5.0"),
        RISE + 'direction = "falls"\n',
        "does not follow",
    ),
    "a range in thousands": (
        "accelerator,global_batch,metric,value,unit\nX,8,throughput,1200,tokens/s\nX,16,throughput,2400,tokens/s\n",
        'kind = "monotone"\nmetric = "throughput"\nsetting = "global_batch"\npublished = "1.2 to 2.4 ktokens/s"\n',
        "holds",
    ),
    "a tie is best": (rates("X,1,fp16,8,100.0", "X,1,fp16,16,100.0"), BEST8, "holds"),
    "least energy is best": (
        rows_of("energy", "Wh", "X,1,fp16,8,80.0", "X,1,fp16,16,100.0"),
        BEST8.replace("throughput", "energy"),
        "holds",
    ),
    "least loss is best": (
        rows_of("val_loss", "", "X,1,fp16,8,1.90", "X,1,fp16,16,2.10"),
        BEST8.replace("throughput", "val_loss"),
        "holds",
    ),
    "best as the claim says": (
        rows_of("hops", "", "X,1,fp16,8,30", "X,1,fp16,16,20"),
        BEST8.replace("throughput", "hops") + 'better = "less"\n',
        "does not follow",
    ),
    "best by the mean of repeats": (
        rates("X,1,fp16,8,100.0", "X,1,fp16,8,104.0", "X,1,fp16,4,101.0"),
        BEST8,
        "holds",
    ),
    "the best batch, whose global batch follows": (
        (
            "devices,batch,global_batch,metric,value,unit\n"
            "2,4,8,throughput,100.0,images/s\n2,8,16,throughput,140.0,images/s\n"
        ),
        BEST8,
        "holds",
    ),
    "half as fast, at a batch that suits the other": (
        GREW,
        f'kind = "times"\npublished = "0.5x"\nmetric = "throughput"\n{FAIR}{XY8}',
        "unfair",
    ),
    "three batches per side, and the lead lasts": (
        LASTS,
        f'kind = "times"\npublished = "2.0x"\nmetric = "throughput"\n{FAIR}{XY8}',
        "holds",
    ),
    "less energy at a batch that suits one": (
        rows_of("energy", "Wh", "X,1,fp16,8,100.0", "X,1,fp16,64,50.0", "Y,1,fp16,8,300.0", "Y,1,fp16,64,40.0"),
        f'kind = "times"\nrelation = "less"\npublished = "3.0x"\nmetric = "energy"\n{FAIR}{XY8}',
        "unfair",
    ),
    "equal only where neither is at its best": (
        rates("X,1,fp16,8,100.0", "X,1,fp16,64,300.0", "Y,1,fp16,8,100.0", "Y,1,fp16,64,110.0"),
        f'kind = "equal"\nwithin = 0.05\nmetric = "throughput"\n{FAIR}{XY8}',
        "unfair",
    ),
    "rate x time tells other work": (
        rates("X,1,fp16,8,100.0", "Y,1,fp16,8,200.0")
        + "X,1,net,fp16,8,epoch_time,10.0,s\nY,1,net,fp16,8,epoch_time,10.0,s\n",
        f'kind = "times"\nmetric = "throughput"\npublished = "2.0x"\nasserts = ["same work"]\n{SIDES}',
        "does not follow",
    ),
    "too few peers to be odd": (SERVED, f'kind = "times"\nmetric = "throughput"\n{ODD}{QP}', "not shown"),
    "peers enough, and like them": (
        WORKS,
        f'kind = "times"\nmetric = "throughput"\nrows = {{ model = "m3" }}\n{ODD}{QP}',
        "holds",
    ),
    "a limit, but no power": (
        PER_WH.replace("images_per_energy,1800.0,images/Wh", "val_accuracy,0.5,fraction").replace(
            "energy_per_epoch,2.00,Wh", "val_loss,1.5,"
        ),
        'kind = "times"\nmetric = "throughput"\nasserts = ["physical limit"]\n'
        + side("a", devices=1)
        + side("b", devices=1),
        "not shown",
    ),
    "a range per another energy": (
        PER_WH,
        'kind = "power"\nasserts = ["arithmetic"]\npublished = "1800.0 images/J"\n',
        "does not follow",
    ),
    "the same range in kWh": (
        PER_WH,
        'kind = "power"\nasserts = ["arithmetic"]\npublished = "1800 kimages/kWh"\n',
        "holds",
    ),
    "the larger side of each pair": (
        MODELS + "X,k,train_time,80.0,s\nY,k,train_time,100.0,s\n",
        f'{CHANGE}base = "larger"\npublished = "-20-20 %"\nover = ["model"]\n{PAIR}',
        "holds",
    ),
    "parts of a sum are no repeats": (
        rates(
            "X,1,fp16,8,100.1",
            "X,1,fp16,8,100.2",
            "X,1,fp16,8,100.3",
            "X,4,fp16,8,100.0",
            "X,4,fp16,8,100.1",
            "X,4,fp16,8,100.2",
        ),
        'kind = "faster"\nasserts = ["statistics"]\nmetric = "throughput"\n'
        + side("a", devices=1, sum=True)
        + side("b", devices=4, mean=True),
        "not shown",
    ),
    "two figures are no repeats of each other": (
        rates("X,1,fp16,8,100.0") + "X,1,net,bf16,8,throughput_per_device,90.0,images/s\n",
        'kind = "faster"\nasserts = ["attribution", "fairness", "statistics"]\nfactor = "precision"\n'
        + side("a", precision="fp16", metric="throughput")
        + side("b", precision="bf16", metric="throughput_per_device"),
        "not shown",
    ),
    "a rate of zero": (
        rates("X,1,fp16,8,0", "X,2,fp16,8,10.0") + "X,1,net,fp16,8,epoch_time,9.0,s\nX,2,net,fp16,8,epoch_time,9.0,s\n",
        'kind = "same_work"\n',
        "does not follow",
    ),
}


@pytest.mark.parametrize("name", INVENTED)
def test_a_claim_on_other_machines_and_metrics(name: str) -> None:
    rows, claim, verdict = INVENTED[name]
    found = judged(rows, claim)
    assert found.verdict == verdict, found.recomputed
    assert found.recomputed


REFUSED: dict[str, tuple[str, str, str]] = {
    "tokens are not images": (
        QUICK.replace("125.0,images", "125.0,tokens"),
        share("faster", "25 %"),
        "cannot compare tokens/s with images/s",
    ),
    "energy is not fast": (SERVED, f'kind = "faster"\nmetric = "energy"\n{QP}', "is not a speed"),
    "a percentage without its sign": (
        SERVED,
        f'{MORE}metric = "throughput"\npublished = "100"\n{QP}',
        "a percentage such as",
    ),
    "a comma for a point": (SERVED, f'kind = "times"\nmetric = "throughput"\npublished = "2,0x"\n{QP}', "not a figure"),
    "a range backwards": (
        SERVED,
        f'kind = "times"\nmetric = "throughput"\npublished = "2.5-1.5x"\n{QP}',
        "not a figure",
    ),
    "a time for a ratio": (SERVED, f'kind = "times"\nmetric = "ttft"\npublished = "40 ms"\n{QP}', "a ratio such as"),
    "a figure that would not be looked at": (
        SERVED,
        f'kind = "faster"\nmetric = "throughput"\npublished = "9x"\n{QP}',
        "kind times or percent",
    ),
    "nor this one": (CURVE, 'kind = "linear"\nmetric = "throughput"\npublished = "99 %"\n', "at_least"),
    "89 without its sign": (
        CURVE,
        f'kind = "efficiency"\npublished = "89"\n{DEVICES}',
        "is not a fraction",
    ),
    "two values": (SWEEP, f'{BATCH}value = 8\npublished = "16"\n', 'the claimed value is "8"'),
    "best of what is not known to be good": (
        rows_of("hops", "", "X,1,fp16,8,30", "X,1,fp16,16,20"),
        BEST8.replace("throughput", "hops"),
        "better: missing",
    ),
    "a series of two models": (
        CURVE.replace("X,1,net", "X,1,other"),
        'kind = "linear"\nmetric = "throughput"\n',
        "several values of model",
    ),
    "accuracies have no sum": (
        rows_of("val_accuracy", "fraction", "X,1,fp16,8,0.5", "X,2,fp16,8,0.5"),
        'kind = "times"\npublished = "1x"\nmetric = "val_accuracy"\na = { sum = true }\nb = { devices = 1 }\n',
        "cannot add val_accuracy",
    ),
    "what is not stated has no partner": (
        MODELS.replace(",m,", ",,"),
        f'kind = "times"\npublished = "1.25x"\nover = ["model"]\n{PAIR}',
        "no pair of rows",
    ),
    "no step without its samples": (
        "devices,metric,value,unit\n1,step_time,100.0,ms\n4,step_time,105.0,ms\n",
        f'kind = "efficiency"\npublished = "95 %"\nmetric = "step_time"\n{WIDE}',
        "batch is unknown",
    ),
    "runs that gave nothing": (
        rates(*(f"X,1,{precision},8,0" for precision in ("fp16", "bf16") for _ in range(3))),
        f'kind = "faster"\nasserts = ["statistics"]\n{MEANS}',
        "must be positive",
    ),
    "a word for true": (
        SERVED,
        'kind = "times"\nmetric = "ttft"\na = { accelerator = "Q", sum = "no" }\nb = { devices = 1 }\n',
        "valid: true",
    ),
    "a number beyond all floats": (
        SERVED,
        f'kind = "times"\nmetric = "ttft"\na = {{ devices = 1{"0" * 390} }}\nb = {{ devices = 1 }}\n',
        "no row of",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_claim_that_cannot_be_meant(name: str) -> None:
    rows, claim, says = REFUSED[name]
    with pytest.raises(InputError) as caught:
        judged(rows, claim)
    assert says in str(caught.value)


def test_power_is_told_with_its_sum(reference: Claims) -> None:
    """64.99 tokens/s / 4.08 tokens/Wh x 3600 s/h / 4 = 14,336 W: readers can check it."""
    found = next(entry for entry in judge(reference, "caraml") if entry.claim.id == "C2")
    assert "64.99 tokens/s / 4.08 tokens/Wh / 4 devices" in found.recomputed
    assert pytest.approx(14336, abs=1) == 64.99 / 4.08 * 3600 / 4
    energy = judged(
        ENERGY.format(limit=300, energy="200.0", per="1800.0").replace("images_per_energy", "val_loss")
        .replace("images/Wh", "").replace("throughput,100.0,images/s", "epoch_time,3600.0,s"),
        'kind = "power"\nlimit_w = 300\n',
    )  # fmt: skip
    assert "power per device 200 W; limit 300 W; 200.0 Wh / 3,600.0 s" in energy.recomputed


def test_what_follows_is_said() -> None:
    """The message names the figure that the rows give."""
    found = judged(TWO, f'kind = "times"\npublished = "1.40x"\n{PAIR}')
    assert [finding.message for finding in found.findings] == ["the rows give 1.33x, not 1.40x"]
    found = judged(CURVE, 'kind = "linear"\nmetric = "throughput"\n')
    assert [finding.message for finding in found.findings] == ["the rows have 69.3 % at 8 devices, below 90 %"]
    found = judged(CURVE, 'kind = "linear"\nmetric = "throughput"\nat_least = 0.97\n')
    assert found.findings[0].message == "the rows have 69.3 % at 8 devices, 96.5 % at 4 devices, below 97 %"
    found = judged(MIXED, f'kind = "times"\n{CREDITED}published = "9.0x"\n{DEVICES}')
    assert "not only devices changed, but also precision fp32 vs fp16" in found.findings[0].message
    found = judged(NOTED, f'kind = "faster"\nfactor = "precision"\n{BY_NOTE}')
    assert found.findings[0].message == "precision is the same on both sides, so it cannot be the cause"


def judged(rows: str, claim: str) -> Judgement:
    return judge_claim(
        parse_claim(tomllib.loads(f'id = "1"\n{claim}'), "the test"), Document(parse_table(rows, "t.csv"))
    )


@pytest.mark.parametrize("name", MADE_UP)
def test_a_made_up_claim(name: str) -> None:
    rows, claim, verdict = MADE_UP[name]
    found = judged(rows, claim)
    assert found.verdict == verdict, found.recomputed
    assert found.recomputed


def test_there_are_enough_cases() -> None:
    assert len(ALTERED) + len(MADE_UP) + len(INVENTED) >= 140
    assert {verdict for _, _, verdict in (*ALTERED, *MADE_UP.values())} == {*VERDICTS}


def test_assertions_are_judged_apart() -> None:
    found = judged(
        MIXED, f'kind = "times"\npublished = "9.0x"\nasserts = ["attribution"]\nfactor = "devices"\n{DEVICES}'
    )
    assert [(part.asserts, part.verdict) for part in found.parts] == [
        ("arithmetic", "holds"),
        ("attribution", "confounded"),
    ]
    assert (found.verdict, found.asserted) == ("confounded", "attribution")


def test_the_base_of_most_percentages_is_the_document_s() -> None:
    """If three claims use one base, a fourth with another base differs, whichever base it is."""
    table = "model,accelerator,metric,value,unit\n" + "".join(
        f"m{n},X,train_time,{100 + n}.0,s\nm{n},Y,train_time,80.0,s\n" for n in range(4)
    )
    for base, other in (("larger", "smaller"), ("smaller", "larger")):
        claims = []
        for n in range(4):
            by = {"larger": 100.0 + n, "smaller": 80.0}[base if n < 3 else other]
            claims.append(
                f'[[claim]]\nid = "{n}"\nkind = "percent"\npublished = "{100 * (20 + n) / by:.2f} %"\n'
                f'metric = "train_time"\nrows = {{ model = "m{n}" }}\n{SIDES}'
            )
        made = Claims("t", "", {"t": parse_table(table, "t")}, parse_many("\n".join(claims)))
        assert [entry.verdict for entry in judge(made)] == ["holds", "holds", "holds", "base differs"]


def parse_many(text: str) -> tuple[Any, ...]:
    return tuple(parse_claim(entry, "the test") for entry in tomllib.loads(text)["claim"])


def test_rounding_decides_to_the_digit() -> None:
    """36.67 and 24.81 allow 32.32 % to 32.37 %: a printed figure must overlap with that."""
    rows = HEAD + "X,1,net,fp16,8,train_time,36.67,min\nY,1,net,fp16,8,train_time,24.81,min\n"
    for text, verdict in (
        ("32.3 %", "holds"),
        ("32.34 %", "holds"),
        ("32.40 %", "does not follow"),
        ("32.5 %", "does not follow"),
    ):
        claim = f'kind = "percent"\nrelation = "less time"\npublished = "{text}"\n{PAIR}'
        assert judged(rows, claim).verdict == verdict, text


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("10x", 9.5, 10.5),
        ("about 10x", 9, 11),
        ("about 3,000", 2700, 3300),
        ("nearly 5 %", 0.045, 0.055),
        ("12\u00d7", 11.5, 12.5),
        ("50 percent", 0.495, 0.505),
        ("more than 2x", 2, math.inf),
        ("less than 40 %", -math.inf, 0.4),
        ("up to 40 %", -math.inf, 0.405),
        ("1.50x", 1.495, 1.505),
        ("70,000", 69999.5, 70000.5),
        ("1.28e6", 1.275e6, 1.285e6),
    ],
)
def test_what_printed_digits_allow(text: str, low: float, high: float) -> None:
    found = figure(Times(id="1", kind="times", published=text, a={}, b={}))
    assert (found.low.low, found.low.high) == pytest.approx((low, high))


# -- rules


@pytest.mark.parametrize("code", sorted(made.code for made in rules("claim")))
def test_examples_of_rules_on_claims(code: str) -> None:
    made: Any = rule(code)
    assert {finding.code for finding in try_example(made, made.bad)} == {code}
    assert try_example(made, made.good) == []


def test_every_verdict_has_a_rule() -> None:
    assert {rule(code).verdict for code in codes()} == {*VERDICTS}


FOREIGN = """
from steelyard.rules.claim import ClaimRule

class NotBelieved(ClaimRule):
    code, name, severity, verdict, fix = "SY790", "not-believed", "warning", "unfair", "ask somebody else"

    def check(self, asserted):
        if asserted.asserts == "arithmetic":
            yield self.found(f"nobody believes {asserted.printed}", place=asserted.place)
"""


def test_a_rule_of_another_package_changes_the_verdict(folder: Path, tmp_path: Path) -> None:
    """A rule of an installed package is found by its metadata; runs in a separate process."""
    installed = tmp_path / "site"
    metadata = installed / "doubts-1.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: doubts\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text("[steelyard.claim_rule]\nSY790 = doubts:NotBelieved\n")
    (installed / "doubts.py").write_text(FOREIGN)
    command = [sys.executable, "-m", "steelyard.cli.main", "audit", str(folder / "c.toml")]
    alone, with_it = (
        subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False)
        for path in ("", str(installed))
    )
    assert alone.returncode == 0
    assert "1 of 1 claim holds" in alone.stdout
    assert with_it.returncode == 1
    assert "first  unfair (arithmetic)" in with_it.stdout
    assert "SY790 not-believed: nobody believes 1.33x" in with_it.stdout
    assert "0 of 1 claims hold; unfair: 1" in with_it.stdout


@pytest.mark.parametrize("verdict", [None, "holds", "odd"])
def test_a_rule_on_claims_without_a_verdict_is_refused(verdict: str | None) -> None:
    with pytest.raises(InputError) as error:
        type("Odd", (ClaimRule,), {"verdict": verdict} if verdict else {})
    assert error.value.problems[0].valid.startswith("impossible, does not follow")


# -- files


CLAIMS = f"""
tables = ["t.csv"]
[[claim]]
id = "first"
kind = "times"
text = "Y is 1.33 times as fast"
published = "1.33x"
{PAIR}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "t.csv").write_text(TWO)
    (tmp_path / "c.toml").write_text(CLAIMS)
    return tmp_path


def test_a_claims_file_through_the_verb(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", str(folder / "c.toml")]) == 0
    out = capsys.readouterr().out
    assert "first  holds (arithmetic)\n    claim: Y is 1.33 times as fast\n    published: 1.33x\n" in out
    assert "    recomputed: 60.0/45.0 = 1.33x\n" in out
    assert "1 of 1 claim holds" in out
    (folder / "c.toml").write_text(CLAIMS.replace("1.33x", "1.5x"))
    assert main(["audit", str(folder / "c.toml"), "--json"]) == 1
    (found,) = json.loads(capsys.readouterr().out)["audits"]
    (claim,) = found["claims"]
    assert (found["verdict"], claim["verdict"], claim["published"]) == ("contradictory", "does not follow", "1.5x")
    assert claim["assertions"][0]["findings"][0]["code"] == "SY521"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('tables = ["t.csv"]', 'tables = ["../t.csv"]', "not in the folder"),
        ('tables = ["t.csv"]', 'tables = ["/etc/passwd"]', "not in the folder"),
        ('tables = ["t.csv"]', 'tables = ["link.csv"]', "not in the folder"),
        ('tables = ["t.csv"]', "tables = []", "tables: empty"),
        ('tables = ["t.csv"]', 'tables = ["none.csv"]', "no such file"),
        ('kind = "times"', 'kind = "tims"', "not a kind of claim; valid: times, percent"),
        ('kind = "times"', "kind = 5", "not a kind of claim"),
        ('published = "1.33x"', 'published = "a lot"', "is not a figure"),
        ('published = "1.33x"', "published = 1.33", "published"),
        ('published = "1.33x"', 'asserts = ["attribution"]', "factor: missing"),
        ('published = "1.33x"', 'asserts = ["truth"]', "must be arithmetic, same work"),
        ('published = "1.33x"', 'publised = "1.33x"', "did you mean published"),
        ('accelerator = "Y"', 'acelerator = "Y"', "did you mean accelerator"),
        ('accelerator = "Y"', 'accelerator = "Z"', "the closest are"),
        ('accelerator = "Y"', "devices = 1", "2 rows match"),
        ('metric = "train_time"', 'metric = "loss"', "metric train_time"),
        ('accelerator = "Y"', "devices = 1, sum = true", "cannot add train_time"),
        ('published = "1.33x"', 'factor = "precison"', "did you mean precision"),
        ('id = "first"', 'id = "../x"', "id"),
        ('id = "first"', 'id = "first"\ndocument = "u"', "not a table of this file"),
    ],
)
def test_what_is_wrong_is_said(folder: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, says: str) -> None:
    (folder.parent / "secret.csv").write_text(TWO)
    (folder / "link.csv").symlink_to(folder.parent / "secret.csv")
    assert old in CLAIMS
    (folder / "c.toml").write_text(CLAIMS.replace(old, new))
    assert main(["audit", str(folder / "c.toml")]) == 2
    assert says in capsys.readouterr().err


def test_all_claims_that_cannot_be_judged_are_named(folder: Path) -> None:
    bad = CLAIMS.replace('"Y" }', '"Z" }') + f'[[claim]]\nid = "second"\nkind = "faster"\nmetric = "none"\n{SIDES}'
    (folder / "c.toml").write_text(bad)
    with pytest.raises(InputError) as caught:
        judge(parse_claims((folder / "c.toml").read_bytes(), "c.toml", folder))
    assert "2 of 2 claims cannot be judged" in str(caught.value)
    assert "claim first" in str(caught.value)
    assert "claim second" in str(caught.value)


def test_an_error_says_which_claim(folder: Path) -> None:
    (folder / "t.csv").write_text(TWO.replace("45.0", "0"))
    with pytest.raises(InputError, match=r"claim first: cannot divide"):
        judge(parse_claims((folder / "c.toml").read_bytes(), "c.toml", folder))


def test_claims_are_judged_with_the_machines_of_the_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "t.csv").write_text(ENERGY.format(limit="", energy="400.0", per="900.0"))
    (folder / "c.toml").write_text('tables = ["t.csv"]\n[[claim]]\nid = "p"\nkind = "power"\n')
    (folder / "p.csv").write_text("platform,accelerator,tdp_w_per_device,tdp_scope\nS,X,100,device\n")
    for words, verdict in (([], "not shown"), (["--platforms", str(folder / "p.csv")], "impossible")):
        main(["audit", str(folder / "c.toml"), "--json", *words])
        (found,) = json.loads(capsys.readouterr().out)["audits"]
        assert [claim["verdict"] for claim in found["claims"]] == [verdict]


def test_many_pairs_make_a_short_report(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With many wrong rows, the message shows the first few and their number."""
    rows = "".join(
        f"{acc},1,m{n},fp16,{8 + n if acc == 'X' else 900 - n},train_time,{50 + n + 20 * (acc == 'Y')}.0,s\n"
        for n in range(300)
        for acc in "XY"
    )
    (folder / "t.csv").write_text(HEAD + rows)
    body = 'asserts = ["attribution"]\nfactor = "accelerator"\nmetric = "train_time"\nover = ["model"]\n' + SIDES
    claims = [f'[[claim]]\nid = "{kind}"\nkind = "{kind}"\n{body}' for kind in ("faster", "equal", "percent")]
    (folder / "c.toml").write_text('tables = ["t.csv"]\n' + "\n".join(claims))
    assert main(["audit", str(folder / "c.toml"), "--brief"]) == 1
    out = capsys.readouterr().out
    assert "297 more" in out
    assert "292" in out
    assert max(map(len, out.splitlines())) <= 80
    assert len(out.split("\n\n", 3)[-1]) < 5000


@pytest.mark.parametrize(
    "text",
    [
        b"\xff\xfe",
        b"claim = " + b"[" * 50_000,
        b"claim = 3\ntables = []",
        b"tables = ['t.csv']\nclaim = [1, 2]",
        b"a." * 5000 + b"b = 1",
        b"tables = ['t.csv']\n" + b"[[claim]]\nid='a'\nkind='faster'\n" * 2000,
        b"x" * (2 << 20),
        b"tables = ['t.csv']\n[[claim]]\nid='a'\nkind='times'\npublished='" + b"1" * 190 + b"'\na={}\nb={}\n",
        b"tables = ['t.csv']\n[[claim]]\nid='a'\nkind='times'\npublished='1e999'\na={devices=1}\nb={devices=1}\n",
        b"tables = ['t.csv']\n[[claim]]\nid='a'\nkind='percent'\npublished='0 %'\na={devices=nan}\nb={devices=inf}\n",
    ],
)
def test_hostile_files_end_in_an_error_for_people(
    folder: Path, capsys: pytest.CaptureFixture[str], text: bytes
) -> None:
    (folder / "c.toml").write_bytes(text)
    assert main(["audit", str(folder / "c.toml")]) == 2
    assert "error: " in capsys.readouterr().err


def test_text_of_strangers_does_not_steer_the_terminal(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "c.toml").write_text(CLAIMS.replace("Y is 1.33", "\\u001b[31mY is 1.33"))
    assert main(["audit", str(folder / "c.toml")]) == 0
    assert "\x1b" not in capsys.readouterr().out


# -- the page


PAGE = (ROOT / "docs" / "claims.md").read_text(encoding="utf-8")


def test_every_field_is_documented() -> None:
    for cls in (*KINDS.values(), ClaimsFile):
        assert [field.name for field in fields(cls) if f"`{field.name}`" not in PAGE] == []
    assert [kind for kind in KINDS if kind not in PAGE] == []


def test_every_verdict_is_documented_with_its_rule() -> None:
    rows = re.findall(r"^\| ([a-z ]+) \| (SY\d+) \|", PAGE, re.MULTILINE)
    assert rows == [(verdict, code) for verdict, code in rows if rule(code).verdict == verdict]
    assert [verdict for verdict, _ in rows] == list(VERDICTS[:-1])


def test_the_examples_of_the_page_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The files of the page are written and its commands run; the output must be that of the page."""
    monkeypatch.chdir(tmp_path)
    files = re.findall(r"`([\w-]+\.(?:csv|toml))`:\n\n```\w+\n(.*?)```", PAGE, re.DOTALL)
    for name, text in files:
        Path(name).write_text(text)
    shown = re.findall(r"```console\n\$ steelyard (.*?)\n(.*?)```", PAGE, re.DOTALL)
    assert len(files) >= 2
    assert shown
    for command, output in shown:
        main(command.split())
        assert capsys.readouterr().out.strip() == output.strip(), command


def test_each_kind_s_example_is_valid() -> None:
    examples = re.findall(r"```toml\n(\[\[claim\]\]\n.*?)```", PAGE, re.DOTALL)
    found = [parse_claim(entry, "docs/claims.md") for text in examples for entry in tomllib.loads(text)["claim"]]
    assert {claim.kind for claim in found} == set(KINDS)
