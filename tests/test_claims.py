"""Claims: every kind and assertion on made-up tables and on altered documents, by general rules; hostile files too."""

from __future__ import annotations

import csv
import json
import re
import tomllib
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from steelyard.audit import catalogue
from steelyard.audit.claims import KINDS, Claims, ClaimsFile, Times, figure, parse_claim, parse_claims, read_claims
from steelyard.audit.judge import VERDICTS, Document, judge, judge_claim, try_example
from steelyard.audit.table import parse_table
from steelyard.cli.main import main
from steelyard.errors import InputError
from steelyard.rules.rule import rule, rules

if TYPE_CHECKING:
    from steelyard.audit.judge import Judgement

ROOT = Path(__file__).resolve().parent.parent
KNOWN = (ROOT / "benchmarks" / "claims_expected.csv").read_text(encoding="utf-8")
EXPECTED = {row["id"]: row for row in csv.DictReader(KNOWN.splitlines())}


@pytest.fixture(scope="module")
def reference() -> Claims:
    return parse_claims(catalogue.claims_text(), "the built-in claims")


# -- the reference documents


def test_the_reference_claims_are_judged_as_known(reference: Claims) -> None:
    judged = judge(reference)
    assert {entry.claim.id: entry.verdict for entry in judged} == {
        name: row["verdict"] for name, row in EXPECTED.items()
    }


def test_no_verdict_is_shipped(reference: Claims) -> None:
    """The judge must not be able to look an answer up."""
    text = catalogue.claims_text().decode()
    body = re.sub(r"^(text|place|published|asserts|kind) = .*$", "", text, flags=re.MULTILINE)
    assert not [verdict for verdict in {*VERDICTS.values(), "holds"} if verdict in body]
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
        ("A6", "2,954/270 = 10.9x; best against best: 2,954/4,321"),
        ("O2", "14.2/16 = 88.8 %, so it was divided by 16, not by 4"),
        ("O3", "24.5/32 = 76.5 %"),
        ("O5", "37,510/17,511 = 2.14x"),
        ("O6", "36,264 at workers_per_device 4 against 34,545 at workers_per_device 8"),
        ("O7", "37,510 and 35,408, 5.9 % apart"),
        ("O8", "(0.574-0.59)/0.59 = -2.7 %"),
        ("C1", "9 of 9 figures per energy follow"),
        ("C2", "14,336 W at global_batch 64"),
        ("C3", "global_batch 2,048 (94.8 %)"),
    ],
)
def test_the_figures_are_worked_out_again(reference: Claims, name: str, words: str) -> None:
    assert words in next(entry for entry in judge(reference) if entry.claim.id == name).recomputed


# What a reader would say of a document whose figure, row or assertion were another one.
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
    ("A1", {"rows": {"table": "1", "phase": "epoch 1 (includes graph compilation)"}}, "does not follow"),
    ("A2", {"rows": {"table": "3", "devices": 1}}, "holds"),
    ("A2", {"within": 0.01}, "does not follow"),
    ("A2", {"rows": {"table": "3", "system": "Graphcore IPU-POD16"}, "within": 0.01}, "holds"),
    ("A3", {"published": "60,000"}, "does not follow"),
    ("A3", {"rows": {"table": "4", "accelerator": "A100-40GB"}}, "holds"),
    ("A4", {"up_to": 2, "at_least": 0.85}, "holds"),
    ("A5", {"published": "about 5,000 against 270"}, "does not follow"),
    ("A5", {"a": {"accelerator": "A100-40GB"}, "b": {"accelerator": "GC200 IPU"}, "published": ""}, "does not follow"),
    ("A6", {"a": {"accelerator": "A100-40GB"}, "b": {"accelerator": "GC200 IPU"}}, "holds"),
    ("O1", {"published": "20x"}, "does not follow"),
    ("O1", {"asserts": ("arithmetic",), "factor": ""}, "holds"),
    ("O1", {"a": {"table": "test 3"}, "b": {"table": "test 2"}, "published": "1.72x"}, "holds"),
    ("O2", {"published": "355 %"}, "holds"),
    ("O3", {"b": {"table": "test 2"}, "published": "86.1 %"}, "holds"),
    ("O4", {"asserts": ("attribution",), "factor": "precision"}, "confounded"),
    ("O4", {"asserts": ("attribution",), "factor": "model"}, "confounded"),
    ("O7", {"factor": "workers_per_device"}, "confounded"),
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
    """Every single figure of the documents, made another one."""
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


# -- made-up tables


HEAD = "accelerator,devices,model,precision,batch_per_device,metric,value,unit\n"
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
BATCH = 'kind = "best"\nmetric = "throughput"\nsetting = "batch_per_device"\n'
RISES = 'kind = "monotone"\nmetric = "throughput"\nsetting = "devices"\n'
RATES = TWO.replace("train_time", "throughput").replace(",s\n", ",images/s\n")
DEVICES = 'metric = "throughput"\na = { devices = 4 }\nb = { devices = 1 }\n'
MEANS = 'metric = "throughput"\na = { precision = "fp16", mean = true }\nb = { precision = "bf16", mean = true }\n'
ALIKE = 'metric = "throughput"\na = { precision = "fp16", mean = true }\nb = { precision = "fp8", mean = true }\n'
BATCH8 = (
    'metric = "throughput"\na = { accelerator = "X", batch_per_device = 8 }\n'
    'b = { accelerator = "Y", batch_per_device = 8 }\n'
)

SLOWER8 = BATCH8.replace('"X"', '"Z"').replace('"Y"', '"X"').replace('"Z"', '"Y"')
NOTED = "precision,metric,value,unit,note\nfp16,throughput,120.0,images/s,late\nfp16,throughput,100.0,images/s,early\n"
BY_NOTE = 'asserts = ["attribution"]\nmetric = "throughput"\na = { note = "late" }\nb = { note = "early" }\n'

MADE_UP: dict[str, tuple[str, str, str]] = {
    "times follow": (TWO, f'kind = "times"\npublished = "1.33x"\n{PAIR}', "holds"),
    "times do not": (TWO, f'kind = "times"\npublished = "1.40x"\n{PAIR}', "does not follow"),
    "times the wrong way": (TWO, f'kind = "times"\npublished = "0.75x"\n{PAIR}', "does not follow"),
    "a single percentage has no convention to break": (
        TWO, f'kind = "percent"\npublished = "25.0 %"\n{PAIR}', "holds",
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
        CURVE, f'kind = "times"\n{CREDITED}published = "3.86x"\n{DEVICES}', "not shown",
    ),
    "devices are credited with all that changed": (
        MIXED, f'kind = "times"\n{CREDITED}published = "9.0x"\n{DEVICES}', "confounded",
    ),
    "arithmetic of the same is right": (MIXED, f'kind = "times"\npublished = "9.0x"\n{DEVICES}', "holds"),
    "superlinear": (MIXED.replace("fp32,8", "fp16,64"), f'kind = "times"\n{ODD}{DEVICES}', "superlinear"),
    "not superlinear": (CURVE, f'kind = "times"\nasserts = ["plausibility"]\n{DEVICES}', "holds"),
    "repeats show it": (REPEATED, f'kind = "faster"\nasserts = ["statistics"]\n{MEANS}', "holds"),
    "repeats credit it": (
        REPEATED, f'kind = "faster"\nasserts = ["attribution"]\nfactor = "precision"\n{MEANS}', "holds",
    ),
    "repeats do not show it": (REPEATED, f'kind = "faster"\nasserts = ["statistics"]\n{ALIKE}', "not shown"),
    "shown to be equal": (REPEATED, f'kind = "equal"\nwithin = 0.05\nasserts = ["statistics"]\n{ALIKE}', "holds"),
    "not shown to be as equal as that": (
        REPEATED, f'kind = "equal"\nwithin = 0.002\nasserts = ["statistics"]\n{ALIKE}', "not shown",
    ),
    "statistics need repeats": (SWEEP, f'kind = "faster"\nasserts = ["statistics"]\n{BATCH8}', "not shown"),
    "the advantage shrinks at the best batch": (
        SWEEP, f'kind = "times"\npublished = "1.5x"\nasserts = ["fairness"]\n{BATCH8}', "unfair",
    ),
    "and lasts where both gain alike": (
        SWEEP.replace("200.0", "280.0"), f'kind = "faster"\nasserts = ["fairness"]\n{BATCH8}', "holds",
    ),
    "whoever is slower is not put at a disadvantage": (
        SWEEP, f'kind = "percent"\nrelation = "slower"\nasserts = ["fairness"]\n{SLOWER8}', "unfair",
    ),
    "what did not change is no cause": (NOTED, f'kind = "faster"\nfactor = "precision"\n{BY_NOTE}', "confounded"),
    "what is not stated is no cause": (NOTED, f'kind = "faster"\nfactor = "compile"\n{BY_NOTE}', "not shown"),
    "nobody knows the best of one setting": (
        TWO, f'kind = "faster"\nasserts = ["fairness"]\n{PAIR}', "not shown",
    ),
    "the best batch": (SWEEP, f'{BATCH}rows = {{ accelerator = "Y" }}\nvalue = 64\n', "holds"),
    "not the best batch": (SWEEP, f"{BATCH}value = 8\n", "does not follow"),
    "nothing to be best among": (MIXED, f"{BATCH}value = 8\n", "does not follow"),
    "rises": (CURVE, RISES, "holds"),
    "does not rise everywhere": (CURVE.replace("560.0", "380.0"), RISES, "does not follow"),
    "power below the limit": (
        ENERGY.format(limit=300, energy="200.0", per="1800.0"),
        'kind = "power"\nasserts = ["arithmetic", "physical limit"]\nlimit_w = 300\n', "holds",
    ),
    "power above the limit": (
        ENERGY.format(limit=300, energy="400.0", per="900.0"), 'kind = "power"\nlimit_w = 300\n', "impossible",
    ),
    "no limit is known": (ENERGY.format(limit="", energy="400.0", per="900.0"), 'kind = "power"\n', "not shown"),
    "images per Wh of another energy": (
        ENERGY.format(limit=300, energy="200.0", per="3600.0"),
        'kind = "power"\nasserts = ["arithmetic"]\nlimit_w = 500\n', "does not follow",
    ),
    "jobs added up": (
        REPEATED,
        f'kind = "times"\npublished = "3.00x"\n{ALIKE}'.replace("mean", "sum", 1), "holds",
    ),
    "the same work": (
        RATES + "X,1,net,fp16,8,epoch_time,6.0,s\nY,1,net,fp16,8,epoch_time,8.0,s\n", 'kind = "same_work"\n', "holds",
    ),
    "other work": (
        RATES + "X,1,net,fp16,8,epoch_time,6.0,s\nY,1,net,fp16,8,epoch_time,9.0,s\n", 'kind = "same_work"\n',
        "does not follow",
    ),
    "two models are not the same work": (
        TWO.replace("Y,1,net", "Y,1,other"), f'kind = "faster"\nasserts = ["same work"]\n{PAIR}', "does not follow",
    ),
}  # fmt: skip


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
    assert len(ALTERED) + len(MADE_UP) >= 90
    assert {verdict for _, _, verdict in (*ALTERED, *MADE_UP.values())} == {*VERDICTS.values(), "holds"}


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
    """Whichever it is: three claims by one base make the fourth by another one differ."""
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
    """36.67 and 24.81 allow 32.32 % to 32.37 %: what is printed must meet that, and no more."""
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
        ("about 10x", 5, 15),
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
    assert all(rule(code).code == code for code in VERDICTS)


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
    assert "60.0/45.0 = 1.33x" in out
    assert "says: Y is 1.33 times as fast" in out
    assert "1 of 1 claim holds" in out
    (folder / "c.toml").write_text(CLAIMS.replace("1.33x", "1.5x"))
    assert main(["audit", str(folder / "c.toml"), "--json"]) == 1
    (found,) = json.loads(capsys.readouterr().out)
    (claim,) = found["claims"]
    assert (found["passes"], claim["verdict"], claim["published"]) == (False, "does not follow", "1.5x")
    assert claim["assertions"][0]["findings"][0]["code"] == "SY521"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('tables = ["t.csv"]', 'tables = ["../t.csv"]', "not in the folder"),
        ('tables = ["t.csv"]', 'tables = ["/etc/passwd"]', "not in the folder"),
        ('tables = ["t.csv"]', 'tables = ["link.csv"]', "not in the folder"),
        ('tables = ["t.csv"]', "tables = []", "no table is named"),
        ('tables = ["t.csv"]', 'tables = ["none.csv"]', "No such file"),
        ('kind = "times"', 'kind = "tims"', "not a kind of claim; valid: times, percent"),
        ('kind = "times"', "kind = 5", "not a kind of claim"),
        ('published = "1.33x"', 'published = "a lot"', "is not a figure"),
        ('published = "1.33x"', "published = 1.33", "published"),
        ('published = "1.33x"', 'asserts = ["attribution"]', "factor: missing"),
        ('published = "1.33x"', 'asserts = ["truth"]', "'arithmetic' or 'same work'"),
        ('published = "1.33x"', 'publised = "1.33x"', "did you mean 'published'"),
        ('accelerator = "Y"', 'acelerator = "Y"', "did you mean 'accelerator'"),
        ('accelerator = "Y"', 'accelerator = "Z"', "the nearest are"),
        ('accelerator = "Y"', "devices = 1", "2 rows match"),
        ('metric = "train_time"', 'metric = "loss"', "metric train_time"),
        ('accelerator = "Y"', "devices = 1, sum = true", "cannot add up"),
        ('published = "1.33x"', 'factor = "precison"', "did you mean 'precision'"),
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
        judge(read_claims(folder / "c.toml"))
    assert "2 of 2 claims cannot be judged" in str(caught.value)
    assert "claim first" in str(caught.value)
    assert "claim second" in str(caught.value)


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
    for word in (*KINDS, *VERDICTS.values(), *VERDICTS, "holds"):
        assert word in PAGE


def test_the_examples_of_the_page_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The files are written as they stand there; the output is what the page shows."""
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
