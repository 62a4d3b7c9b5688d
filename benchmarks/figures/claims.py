"""[claims] How many of the 32 known claims of the reference documents `steelyard audit` judges as they are known.

The claims and the tables they speak of come with the package. What each verdict should be stands in
claims_expected.csv, which only this script and the tests read. The verb is run as a user would, with --json; a table
shows what was printed, what the rows give, the verdict and the known one. Where they differ, the reason stands in
OTHERWISE: why the known verdict is the wrong one. A second figure counts altered claims: every single printed figure,
made 10 % larger, must no longer hold.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import re
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from figure import arguments, at_least, at_most, finish
from steelyard.audit import documents
from steelyard.cli.main import main as steelyard
from steelyard.terminal.text import table

EXPECTED = Path(__file__).parents[1] / "lib" / "claims_expected.csv"
OTHERWISE: dict[str, str] = {}
"""By claim: why the known verdict is the wrong one."""
SHOWN = 60
SCALE = 1.1


def audited(*words: str) -> list[dict[str, Any]]:
    """What the verb says, as machines read it."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        steelyard(["audit", *words, "--json"])
    found: list[dict[str, Any]] = json.loads(out.getvalue())
    return found


def altered() -> tuple[int, int]:
    """How many single figures of the documents were made larger, and how many of those still hold."""
    text = documents.claims_text().decode("utf-8")
    single = re.compile(r'published = "(-?[\d.]+)( %|x)"')
    larger = single.sub(lambda found: f'published = "{_scaled(found[1])}{found[2]}"', text)
    changed = {
        entry["id"]
        for entry in tomllib.loads(text)["claim"]
        if single.fullmatch(f'published = "{entry.get("published", "")}"')
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "altered.toml"
        path.write_text(larger, encoding="utf-8")
        (found,) = audited(str(path))
    return len(changed), sum(claim["id"] in changed and claim["verdict"] == "holds" for claim in found["claims"])


def _scaled(text: str) -> str:
    return f"{float(text) * SCALE:.{len(text.partition('.')[2])}f}"


def main() -> None:
    arguments(__doc__)
    expected = {row["id"]: row for row in csv.DictReader(EXPECTED.read_text(encoding="utf-8").splitlines())}
    claims = {claim["id"]: claim for entry in audited("--reference") for claim in entry["claims"]}
    rows = []
    for name, known in expected.items():
        claim = claims[name]
        mark = "" if claim["verdict"] == known["verdict"] else " <-"
        recomputed = claim["recomputed"]
        shown = recomputed if len(recomputed) <= SHOWN else recomputed[: SHOWN - 3] + "..."
        rows.append([name, claim["published"] or "-", shown, claim["verdict"], known["verdict"] + mark])
    print(table(["id", "published", "recomputed", "verdict", "expected"], rows))
    differing = [name for name, known in expected.items() if claims[name]["verdict"] != known["verdict"]]
    for name in differing:
        print(f"{name}: {claims[name]['recomputed']}; {OTHERWISE.get(name, 'no reason is known')}", file=sys.stderr)
    changed, held = altered()
    figures = [
        at_least("claims: judged as known, of 32", len(expected) - len(differing), "claims", 31),
        at_most("claims: judged otherwise without a reason", len(set(differing) - set(OTHERWISE)), "claims", 0),
        at_most(f"claims: still holding of {changed} figures made 10 % larger", held, "claims", 0),
    ]
    finish(figures)


if __name__ == "__main__":
    main()
