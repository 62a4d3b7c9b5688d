"""Sentences as claims: the forms, what is refused, and that no word is passed over."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from steelyard.audit.judge import Document, judge_claim
from steelyard.audit.sentences.read import FORMS, MAX_SENTENCE, judge_sentences, read_sentence
from steelyard.audit.sentences.rows import NotUnderstoodError
from steelyard.audit.sentences.words import FORM, SILENT
from steelyard.audit.table import parse_table
from steelyard.cli.main import main
from steelyard.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Within

CSV = """system,accelerator,devices,nodes,model,batch,precision,metric,value,unit
A,X1-80GB,1,1,ResNet50,256,fp32,throughput,1000.0,images/s
A,X1-80GB,4,1,ResNet50,256,fp32,throughput,3900.0,images/s
A,X1-80GB,8,2,ResNet50,256,fp32,throughput,7400.0,images/s
A,X1-80GB,1,1,ResNet50,256,mixed,throughput,3000.0,images/s
A,X1-80GB,4,1,ResNet50,256,mixed,throughput,11800.0,images/s
A,X1-80GB,8,2,ResNet50,256,mixed,throughput,23000.0,images/s
B,Y1,8,2,ResNet50,256,mixed,throughput,20000.0,images/s
B,Y1,1,1,BERT,32,bf16,train_time,50.0,min
A,X1-80GB,1,1,BERT,32,bf16,train_time,30.0,min
A,X1-80GB,1,1,BERT,32,bf16,energy,900.0,Wh
B,Y1,1,1,BERT,32,bf16,energy,2700.0,Wh
"""
TABLE = parse_table(CSV, "t.csv")


def verdict(text: str) -> str:
    return judge_claim(read_sentence(text, TABLE, "c"), Document(TABLE)).verdict


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3.9x on 4 GPUs for FP32 scaling", "holds"),
        ("a scaling of 4.12x on 4 GPUs in FP32", "does not follow"),
        ("FP32 scales 7.4x from 1 to 8 GPUs", "holds"),
        ("8 GPUs are 7.40\u00d7 faster than a single GPU in FP32", "holds"),
        ("mixed precision is 3.03x faster than FP32 on 4 GPUs", "holds"),
        ("Mixed precision is 2.5x faster than FP32 on 4 GPUs.", "does not follow"),
        ("a 3.0x speed-up of mixed precision over single precision for 1 GPU", "holds"),
        ("mixed precision is up to 3.11x faster than FP32", "holds"),
        ("mixed precision is up to 4.0x faster than FP32", "does not follow"),
        ("FP32 is 3.11x slower than mixed precision on 8 GPUs", "holds"),
        ("A is 1.15x as fast as B on 8 GPUs in mixed precision", "holds"),
        ("8xX1 is 1.15x faster than 8xY1 on ResNet50 in mixed precision", "holds"),
        ("B is 13 % slower than A on ResNet50", "holds"),
        ("A is 15 % faster than B on ResNet50", "holds"),
        ("A outperforms B by 15 % on ResNet50", "holds"),
        ("A takes 40 % less time than B on BERT", "holds"),
        ("A reduces training time by 40 % on BERT", "holds"),
        ("A reduces the training time by 67 % on BERT", "base differs"),
        ("A uses 3.0x less energy than B on BERT", "holds"),
        ("A uses 67 % less energy than B on BERT", "holds"),
        ("A is faster than B on BERT", "holds"),
        ("B beats A on BERT", "does not follow"),
        ("B is slower than A on BERT", "holds"),
        ("B is outperformed by A on BERT", "holds"),
        ("92.5 % efficiency on 8 GPUs in FP32", "holds"),
        ("a parallel efficiency of 99 % on 8 GPUs in FP32", "does not follow"),
        ("scales linearly to 8 in FP32", "holds"),
        ("near-linear scaling up to 8 GPUs in FP32", "holds"),
        ("925 images/s per GPU on 8 GPUs in FP32", "holds"),
        ("7,400 images per second on 8 GPUs in FP32", "holds"),
        ("7,500 img/s on 8 GPUs in FP32", "does not follow"),
        ("up to 23,000 images/s", "holds"),
    ],
)
def test_usual_forms_are_judged(text: str, expected: str) -> None:
    assert verdict(text) == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("4.12x on 4 GPUs", "2 rows fit"),
        ("FP32 scales 7.4x on 2 nodes", "2 rows fit"),
        ("mixed precision is 3x faster than FP32", "4 rows fit"),
        ("mixed precision does not reach 3.9x on 4 GPUs", '"does", "not"'),
        ("3.9x on 4 GPUs on average", '"average"'),
        ("3.9x on 4 GPUs without communication", '"without", "communication"'),
        ("3.9x on 4 H100", '"h100"'),
        ("3.9x and 7.4x on 4 and 8 GPUs in FP32", "2 figures"),
        ("3.9x scaling on 16 GPUs in FP32", "no row has"),
        ("A is 3x less fast than B on BERT", "both more and less"),
        ("A is as fast as B on BERT", "no figure and no comparison"),
        ("A needs 3x less than B on BERT", "less of what"),
        ("92 % energy efficiency on 8 GPUs in FP32", "efficiency of scaling"),
        ("A is 92 % more efficient than B on BERT", "relative to fewer devices"),
        ("1,000 images/s per node on 8 GPUs in FP32", '"per"'),
        ("linear scaling of 3.9x on 4 GPUs in FP32", "two claims"),
        ("mixed precision gives 3x on 4 GPUs", "Say `over 1 GPU for mixed precision`, or `mixed precision over fp32`"),
        ("A with FP32 is 2x faster than B on 8 GPUs", "for both sides"),
        ("3x faster", "compared with what"),
        ("FP32 is 3x faster than BERT", "what is compared"),
        ("", "no figure"),
        ("GPUs", "no figure"),
        ("x" * (MAX_SENTENCE + 1), "at most"),
    ],
)
def test_what_is_not_clear_is_refused_with_the_reason(text: str, says: str) -> None:
    with pytest.raises(NotUnderstoodError) as caught:
        read_sentence(text, TABLE, "c")
    assert says in str(caught.value)


def test_a_side_without_the_figure_is_named() -> None:
    text = "accelerator,devices,model,batch,metric,value,unit\nX1,1,r,8,energy,9,J\n"
    text += "Y1,1,r,8,throughput,10,images/s\nY1,1,r,16,throughput,12,images/s\n"
    with pytest.raises(NotUnderstoodError, match="no row has"):
        read_sentence("X1 is up to 3x faster than Y1", parse_table(text, "t.csv"), "c")


def test_no_word_is_passed_over() -> None:
    """A word that changes the meaning, put anywhere into a sentence, is never dropped."""
    words = ["3.9x", "on", "4", "GPUs", "for", "FP32", "scaling"]
    for word in (
        "not",
        "never",
        "average",
        "without",
        "excluding",
        "median",
        "projected",
        "would",
        "inference",
        "half",
    ):
        for place in range(len(words) + 1):
            with pytest.raises(NotUnderstoodError):
                read_sentence(" ".join([*words[:place], word, *words[place:]]), TABLE, "c")


def test_any_words_end_quickly_and_in_an_answer(within: Within) -> None:
    """No sentence of known words, names and figures ends in a traceback or takes long."""
    draw = random.Random(7)
    pieces = [*sorted(FORM | SILENT), "A", "B", "X1", "fp32", "mixed precision", "3.9x", "40 %", "4 GPUs", "8", "1e9x"]
    pieces += [
        "up to",
        "more than",
        "7,400 images/s",
        "-",
        "%",
        "x",
        "~3x",
        "35-55 %",
        "4xX1",
        "=1+1",
        "\u202e",
        "\x00",
    ]
    with within(60):
        for _ in range(3000):
            text = " ".join(draw.choice(pieces) for _ in range(draw.randint(1, 12)))[:MAX_SENTENCE]
            with suppress(InputError):
                judge_sentences([text], TABLE)
    for text in ("1" * 300, "1,1" * 100, "up to " * 50, "a-" * 150, "4x" * 150, "(" * 300, "\u00a0" * 300):
        with pytest.raises(NotUnderstoodError):
            read_sentence(text[:MAX_SENTENCE], TABLE, "c")


def test_the_verb_takes_sentences(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.csv"
    path.write_text(CSV, encoding="utf-8")
    assert main(["audit", str(path), "--claim", "92.5 % efficiency on 8 GPUs in FP32"]) == 0
    out = capsys.readouterr().out
    assert "claim-1  holds (arithmetic)" in out
    assert "read as throughput: devices 8" in " ".join(out.split())
    assert (
        main(["audit", str(path), "--claim", "A is faster than B on BERT", "--claim", "B is faster than A on BERT"])
        == 1
    )
    assert capsys.readouterr().out.startswith("CONTRADICTORY: 1 claim contradicted by the rows")


def test_the_verb_says_what_it_cannot_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.csv"
    path.write_text(CSV, encoding="utf-8")
    assert main(["audit", str(path), "--claim", "it is great\x1b[31m"]) == 2
    said = capsys.readouterr().err
    assert all(form in said for form in FORMS)
    assert "\x1b" not in said
    assert main(["audit", str(path), "--claim", "4.12x on 4 GPUs"]) == 2
    said = capsys.readouterr().err
    assert "line 3 (precision fp32); line 6 (precision mixed)" in said
    assert FORMS[0] not in said
    assert main(["audit", str(path), str(path), "--claim", "4x on 4 GPUs"]) == 2
    assert main(["audit", "--claim", "4x on 4 GPUs"]) == 2


@pytest.mark.parametrize(("column", "expected"), [("batch", "holds"), ("global_batch", "holds"), ("epochs", None)])
def test_a_batch_of_a_sentence_is_that_of_the_table(column: str, expected: str | None) -> None:
    rows = "A,ResNet50,64,throughput,1000,images/s\nB,ResNet50,64,throughput,2000,images/s\n"
    table = parse_table(
        f"system,model,{column},metric,value,unit\n{rows}{rows.replace(',64,', ',32,').replace('2000', '1500')}",
        "t.csv",
    )
    text = "B is 2x as fast as A at batch 64"
    if expected is None:
        with pytest.raises(NotUnderstoodError, match="no batch of the table"):
            read_sentence(text, table, "c")
    else:
        assert judge_claim(read_sentence(text, table, "c"), Document(table)).verdict == expected
