"""Random tables as people print them, with the truth of every cell. It shares no spelling with the package's reader.

The headings come from printed_spellings.csv. Most were taken from the tables of public repositories, whose file is
named; some are usual spellings without a source. Their meanings were listed with an early version of the reader, then
reviewed line by line: the list shows that figures are read with these meanings, not how many headings are unknown.
"""

from __future__ import annotations

import csv
import html
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

SPELLINGS = Path(__file__).with_name("printed_spellings.csv")
TO_BASE = {
    "s": 1.0, "ms": 1e-3, "us": 1e-6, "min": 60.0, "h": 3600.0, "d": 86400.0, "J": 1.0, "kJ": 1e3, "kWh": 3.6e6,
    "MWh": 3.6e9, "W": 1.0, "kW": 1e3,
    "%": 0.01, "x": 1.0, "": 1.0, "GB": 1e9, "MB": 1e6, "GiB": 2.0**30, "$": 1.0, "TFLOP/s": 1e12,
    "Mparameters": 1e6, "parameters": 1.0, "images/J": 1.0,
}  # fmt: skip
BESIDE = {
    "s": ("s", "sec", "seconds"), "ms": ("ms", "msec"), "min": ("min", "minutes"), "h": ("h", "hours", "hrs"),
    "d": ("days",),
    "images/s": ("img/s", "images/s", "images/sec"), "tokens/s": ("tok/s", "tokens/s", "tokens/sec"),
    "sequences/s": ("seq/s", "sequences/s"), "samples/s": ("samples/s", "samples/sec"), "GB": ("GB",), "W": ("W",),
    "kWh": ("kWh",), "%": ("%", " %"), "requests/s": ("req/s",), "TFLOP/s": ("TFLOPS", "TFLOP/s"),
}  # fmt: skip
"""Spellings of units beside a number."""
TIMES = {"train_time", "epoch_time", "step_time", "latency", "ttft", "time_per_token"}
NAMED = {
    "model",
    "system",
    "accelerator",
    "dataset",
    "framework",
    "precision",
    "optimizer",
    "task",
    "parallel",
    "container",
}
TEXTS: dict[str, Sequence[float | str]] = {
    "model": ["ResNet-50", "BERT-large", "GPT 13B", "U-Net"], "system": ["DGX A100", "node X", "Cluster 7"],
    "accelerator": ["A100-SXM4-80GB", "H100 PCIe", "MI250X"], "dataset": ["ImageNet", "WikiText"],
    "framework": ["PyTorch 2.4", "JAX"], "precision": ["bf16", "FP32", "TF32"], "optimizer": ["LAMB", "SGD"],
    "task": ["classification"], "parallel": ["DDP", "FSDP"], "container": ["24.01", "24.03"],
}  # fmt: skip
COUNTS: dict[str, Sequence[float | str]] = {
    "devices": [1, 2, 4, 8, 16, 32, 64, 128], "nodes": [1, 2, 4, 16], "global_batch": [256, 1024, 65536],
    "batch": [1, 8, 32, 256], "accumulation": [1, 2, 16], "sequence_length": [128, 512, 2048, 8192],
    "epochs": [1, 50, 90], "learning_rate": [0.1, 0.002],
}  # fmt: skip
ABSENT = ("-", "N/A", "", "—", "n/a")
MARKS = ("*", "†", "^", "[1]")
FORMATS = ("md", "csv", "tsv", "tex", "html")


@dataclass(frozen=True)
class Spelling:
    """A heading as printed somewhere, and what it means."""

    text: str
    meaning: str
    unit: str
    precision: str
    base: str
    source: str

    @property
    def figure(self) -> bool:
        """Return whether the column holds figures, not settings."""
        return self.meaning not in NAMED and self.meaning not in COUNTS


@dataclass
class Table:
    """A printed table and its truth."""

    text: str
    name: str
    figures: dict[tuple[int, str, str], float] = field(default_factory=dict)
    """Line of cells from 0, precision of the column ("" for none) and metric -> value in the base unit."""
    settings: dict[tuple[int, str], str | float] = field(default_factory=dict)


def spellings() -> list[Spelling]:
    """Return the collected headings."""
    with SPELLINGS.open(encoding="utf-8", newline="") as file:
        return [Spelling(*row) for row in list(csv.reader(file))[1:]]


def _factor(unit: str) -> float:
    return TO_BASE.get(unit, 1.0)


def _wanted(spelling: Spelling, rng: random.Random) -> str:
    """Return the unit that the cells need: that of the heading, or one for figures whose heading has none."""
    if spelling.unit or not spelling.figure:
        return spelling.unit
    name = spelling.meaning
    if name.partition("_p")[0] in TIMES or name in TIMES or name.rpartition("_")[0] in TIMES:
        return rng.choice(("s", "ms", "min", "h") if name in ("train_time", "epoch_time") else ("s", "ms"))
    if name.startswith("throughput"):
        return rng.choice(("images/s", "tokens/s", "sequences/s", "samples/s", ""))
    fixed = {"memory": "GB", "power": "W", "energy": "kWh", "cost": "$", "parameters": "M"}
    return fixed.get(name, "%" if name in ("mfu", "hfu", "efficiency", "accuracy", "accuracy_top5") else "")


def _number(spelling: Spelling, unit: str, rng: random.Random) -> tuple[str, float]:
    """Return a figure as printed, with or without its unit, and its value in the base unit."""
    if unit in ("h", "min") and not spelling.unit and rng.random() < 0.4:
        hours, minutes, seconds = rng.randrange(0, 60), rng.randrange(60), rng.randrange(60)
        return f"{hours:02d}:{minutes:02d}:{seconds:02d}", 3600.0 * hours + 60 * minutes + seconds
    places = rng.choice((0, 0, 1, 2, 3))
    high = 99 if unit == "%" else 9 if "speedup" in spelling.meaning else 10 ** rng.choice((2, 3, 4, 5, 6))
    digits = f"{rng.uniform(3 if unit == '%' else 1, high):.{places}f}"
    value = float(digits)
    style = rng.random()
    text = digits
    after = ""
    if unit == "M":
        text, unit, after = digits, "Mparameters", "M"
    elif style < 0.15 and value >= 1000:
        text = f"{float(digits):,.{places}f}"
    elif style < 0.22:
        text = f"~{digits}"
    elif style < 0.29:
        text = f"{digits} {rng.choice(('±', '+/-'))} {rng.uniform(0.1, 2):.2f}"
    elif style < 0.35 and unit.endswith("/s") and "FLOP" not in unit and not spelling.unit.startswith("T"):
        letter = rng.choice("kM")
        text, value = f"{digits}{letter}", value * {"k": 1e3, "M": 1e6}[letter]
    elif style < 0.40:
        text = f"{value:.3e}"
        value = float(text)
    elif style < 0.44 and "speedup" in spelling.meaning:
        text = digits + rng.choice(("x", "\u00d7", " x"))
    needs = not spelling.unit and unit not in ("", "Mparameters")
    if needs or (spelling.unit in BESIDE and rng.random() < 0.15 and not after):
        words = rng.choice(BESIDE[unit]) if unit in BESIDE else unit
        text = (
            f"{unit}{text}"
            if unit == "$" and text[0].isdigit()
            else f"{text}{'' if words.startswith((' ', '%')) else ' '}{words}"
        )
    return text + after, value * _factor(unit)


def _columns(every: list[Spelling], rng: random.Random) -> list[Spelling]:
    """Choose headings with different meanings: a device count, a few settings, some figures."""
    chosen = [rng.choice([entry for entry in every if entry.meaning == "devices"])]
    settings = [entry for entry in every if not entry.figure and entry.meaning != "devices" and not entry.precision]
    figures = [entry for entry in every if entry.figure]
    for pool, count in ((settings, rng.randrange(0, 4)), (figures, rng.randrange(1, 7))):
        for entry in rng.sample(pool, min(len(pool), 6 * count)):
            taken = {(other.meaning, other.precision) for other in chosen}
            if (entry.meaning, entry.precision) in taken or sum(
                other.figure == entry.figure for other in chosen
            ) > count + (not entry.figure):
                continue
            # Two rates that count different things, or a second metric of the same name, are other tables.
            if entry.meaning.startswith("throughput") and any(
                o.meaning == entry.meaning and not o.precision for o in chosen
            ):
                continue
            chosen.append(entry)
    if not any(entry.figure for entry in chosen):
        chosen.append(next(entry for entry in figures if entry.meaning == "throughput"))
    if any(entry.figure and entry.precision for entry in chosen):
        chosen = [entry for entry in chosen if entry.meaning != "precision"]
    return chosen


def make_table(every: list[Spelling], rng: random.Random, lines: int = 0) -> Table:
    """Make one table in a random format, layout and style of numbers."""
    form = rng.choice(FORMATS)
    columns = _columns(every, rng)
    count = lines or rng.randrange(1, 9)
    units = [_wanted(entry, rng) for entry in columns]
    made = Table("", f"table.{form}")
    rows: list[list[str]] = []
    for line in range(count):
        row = []
        for column, (entry, unit) in enumerate(zip(columns, units, strict=True)):
            if not entry.figure:
                pool: Sequence[float | str] = COUNTS.get(entry.meaning) or TEXTS[entry.meaning]
                value = rng.choice(pool)
                text = f"{value:,}" if isinstance(value, int) and value > 999 and rng.random() < 0.3 else str(value)
                made.settings[line, entry.meaning] = value if isinstance(value, str) else float(value)
            elif rng.random() < 0.06 and not (line == 0 and column == len(columns) - 1):
                text = rng.choice(ABSENT)
            else:
                text, number = _number(entry, unit, rng)
                made.figures[line, entry.precision, entry.meaning] = number
            row.append(text)
        rows.append(row)
    headings = [entry.text for entry in columns]
    caption = rng.choice(("", "Results of training", "Measured on one node; all runs with 5 repeats"))
    made.text = _write(form, caption, headings, rows, rng)
    return made


def _style(text: str, form: str, rng: random.Random) -> str:
    """Add bold and footnote marks, and escape what the format needs."""
    bold, mark = rng.random() < 0.06 and text[:1].isdigit(), rng.random() < 0.05 and text[-1:].isdigit()
    sign = rng.choice(MARKS) if mark else ""
    if form == "tex":
        text = (
            text.replace("%", r"\%").replace("#", r"\#").replace("$", r"\$").replace("_", r"\_").replace("~", r"$\sim$")
        )
        text = text.replace("±", r"$\pm$").replace("\u00d7", r"$\times$").replace("&", r"\&")
        sign = {"*": "$^{*}$", "†": "$^\\dagger$", "^": r"\textsuperscript{a}", "[1]": r"\footnote{see text}"}.get(
            sign, ""
        )
        return (rf"\textbf{{{text}}}" if bold else text) + sign
    if form == "html":
        text = html.escape(text)
        sign = {"^": "<sup>a</sup>", "[1]": "<sup>1</sup>"}.get(sign, sign)
        return (f"<b>{text}</b>" if bold else text) + sign
    if form == "md":
        sign = {"^": "<sup>1</sup>"}.get(sign, sign)
        return (f"**{text}**" if bold else text) + sign
    return text + {"^": "", "[1]": ""}.get(sign, sign)


def _write(form: str, caption: str, headings: list[str], rows: list[list[str]], rng: random.Random) -> str:
    head = [_style(text, form, random.Random(0)) if form in ("tex", "html") else text for text in headings]
    body = [[_style(text, form, rng) for text in row] for row in rows]
    if form in ("csv", "tsv"):
        mark = "\t" if form == "tsv" else ","
        quoted = [[f'"{cell}"' if mark in cell or '"' in cell else cell for cell in row] for row in [head, *body]]
        return (f"{caption.split(';')[0]}\n" if caption else "") + "\n".join(mark.join(row) for row in quoted) + "\n"
    if form == "md":
        edge = rng.random() < 0.8
        lines = [" | ".join(row) for row in [head, ["---"] * len(head), *body]]
        lines = [f"| {line} |" for line in lines] if edge or len(head) < 2 or any(not row[0] for row in body) else lines
        return f"{caption}\n\n" + "\n".join(lines) + "\n\nText after it.\n"
    if form == "tex":
        rule = rng.choice((("\\toprule", "\\midrule", "\\bottomrule"), ("\\hline",) * 3))
        inner = " \\\\\n".join(" & ".join(row) for row in body)
        spec = "l" * len(head)
        return (
            f"\\begin{{table}}\\caption{{{caption}}}\n\\begin{{tabular}}{{{spec}}}\n{rule[0]}\n"
            f"{' & '.join(head)} \\\\\n{rule[1]}\n{inner} \\\\\n{rule[2]}\n\\end{{tabular}}\n\\end{{table}}\n"
        )
    cells = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>\n" for row in body)
    top = "".join(f"<th>{cell}</th>" for cell in head)
    table = f"<table><thead><tr>{top}</tr></thead><tbody>\n{cells}</tbody></table>"
    return f"<html><body><p>{caption}</p>{table}</body></html>"
