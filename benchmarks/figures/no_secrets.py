"""[no_secrets] Secrets of 48 forms planted in everything that is recorded: none is in records, reports, plans or packs.

They are made up in the public formats of their makers (`planted.py`) and planted in variables, paths of the command
line, site files, options, exceptions and logs. The real commands run as processes: run, study, study --site --dry-run,
show, report and pack. Then every byte that they wrote or printed is searched. Sites and options with a secret must be
refused. Beside them, texts of public logs must stay as they are, and variables that matter for performance, with names
from the documentation of their makers, must be recorded.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from figure import arguments, at_least, at_most, finish
from planted import FORMS, HARMLESS_TEXTS, HARMLESS_VARIABLES, TOKENS, Planted, planted
from steelyard.redact import MARK, redact

SITE = """name = "x"
scheduler = "slurm"
{environment}
[pools.cpu]
architecture = "x86_64"
devices_per_node = 1
"""
STUDY = 'name = "{name}"\nrepeats = 2\n[run]\nworkload = "sim"\n[sweep]\ndevices = [1, 2]\n'
WORKLOAD = """import json, pathlib
def build():
    told = json.loads(pathlib.Path({texts!r}).read_text())
    print(*told["log"], sep="\\n", flush=True)
    raise OSError("\\n".join(told["error"]))
"""
# The text of an exception is cut at 4,000 characters; all of these must be in it.
PER_ERROR = 12
PER_PATH = 8


@dataclass
class Bench:
    """Where the commands run: `inputs` has what they read, and everything else is searched."""

    root: Path
    planted: list[Planted] = field(default_factory=list)
    printed: list[bytes] = field(default_factory=list)
    refused: int = 0

    def steelyard(self, *words: str, variables: dict[str, str] | None = None) -> bytes:
        """Run a command in `out`; return what it printed as an error."""
        done = subprocess.run(
            [Path(sys.executable).with_name("steelyard"), *words],
            cwd=self.root / "out", capture_output=True, check=False, env={**os.environ, **(variables or {})},
        )  # fmt: skip
        self.printed += [done.stdout, done.stderr]
        return done.stderr

    def leaks(self) -> list[str]:
        """Return the secrets that are in a file or in what was printed, with the place."""
        files = [path for path in (self.root / "out").rglob("*") if path.is_file()]
        texts = {str(path): path.read_bytes() for path in files} | {"printed": b"\n".join(self.printed)}
        return [
            f"{entry.form} in {place}"
            for entry, (place, text) in itertools.product(self.planted, texts.items())
            if entry.secret.encode() in text
        ]


def batched(entries: list[Planted], count: int) -> list[list[Planted]]:
    """Return the entries in groups of this many; the last may be smaller."""
    return [entries[start : start + count] for start in range(0, len(entries), count)]


def in_variables(bench: Bench, secrets: list[Planted]) -> dict[str, object]:
    """Make a run with secrets in variables that are recorded, and return the facts of its record."""
    names = [*(name for name in HARMLESS_VARIABLES if name.startswith(("NCCL_", "UCX_"))), "TORCH_HOME"]
    names += ["FABRIC_PASS", "GPU_PW", "UCX_PASSWORD", "OMPI_MCA_token", "FI_KEY", "HF_TOKEN", "MKL_credentials"]
    for number, part in enumerate(batched(secrets, len(names))):
        chosen = dict(zip(names, (entry.text for entry in part), strict=False))
        bench.steelyard("run", "sim", "--study", f"variables{number}", "--results", "results", variables=chosen)
    kept = {name: value for name, value in HARMLESS_VARIABLES.items() if not name.startswith("LD_")}
    bench.steelyard("run", "sim", "--study", "harmless", "--results", "results", variables=kept)
    record = next((bench.root / "out" / "results" / "runs" / "harmless").glob("*/record.json"))
    facts: dict[str, object] = json.loads(record.read_text())["environment"]["facts"]
    return facts


def in_paths(bench: Bench, secrets: list[Planted]) -> None:
    """Make runs whose results are in folders with secrets in their names, which are words of the command line."""
    for part in batched(secrets, PER_PATH):
        folder = bench.root / "inputs" / Path(*(entry.text for entry in part)) / "results"
        bench.steelyard("run", "sim", "--results", str(folder))
        # The names of the folders are the user's; what is in them is ours.
        folder.rename(bench.root / "out" / f"paths-{len(list((bench.root / 'out').iterdir()))}")


def in_errors_and_logs(bench: Bench, errors: list[Planted], logs: list[Planted]) -> None:
    """Run workloads that print secrets and fail with others in the text of the exception."""
    groups = batched(errors, PER_ERROR)
    share = -(-len(logs) // len(groups))
    for number, part in enumerate(groups):
        texts = bench.root / "inputs" / f"texts{number}.json"
        told = {"error": [e.text for e in part], "log": [e.text for e in logs[number * share : (number + 1) * share]]}
        texts.write_text(json.dumps(told))
        file = bench.root / "inputs" / f"failing{number}.py"
        file.write_text(WORKLOAD.format(texts=str(texts)))
        bench.steelyard("run", f"{file}:build", "--study", f"failing{number}", "--results", "results")


def in_sites_and_options(bench: Bench, sites: list[Planted], options: list[Planted]) -> None:
    """Plan studies at sites with a secret, and runs with one in an option: each must be refused."""
    study = bench.root / "inputs" / "study.toml"
    study.write_text(STUDY.format(name="planned"))
    for number, entry in enumerate(sites):
        site = bench.root / "inputs" / f"site{number}.toml"
        site.write_text(SITE.format(environment=f"[environment]\nMY_SETTING = {json.dumps(entry.text)}\n"))
        told = bench.steelyard("study", str(study), "--site", str(site), "--dry-run", "--results", "r")
        bench.refused += b"looks like a secret" in told
    for entry in options:
        told = bench.steelyard("run", "sim", "--set", f"model.size={entry.text}", "--results", "results")
        bench.refused += b"looks like a secret" in told


def shown(bench: Bench) -> None:
    """Show, report and pack what was recorded."""
    study = bench.root / "inputs" / "scaling.toml"
    study.write_text(STUDY.format(name="scaling"))
    bench.steelyard("study", str(study), "--results", "results", variables={"NCCL_NET": bench.planted[0].text})
    work = ["--samples", "1000000", "--devices", "2", "--charge", "1 SU/device-hour"]
    bench.steelyard("pack", "scaling", *work, "-o", "pack", "--results", "results")
    bench.steelyard("report", "variables0", "-o", "variables0.html", "--results", "results")
    bench.steelyard("report", "failing0", "-o", "failing0.md", "--format", "markdown", "--results", "results")
    run = next((bench.root / "out" / "results" / "runs" / "failing0").iterdir()).name
    bench.steelyard("show", run, "--results", "results")
    bench.steelyard("show", run, "--json", "--results", "results")


def main() -> None:
    options = arguments(__doc__)
    count = 108 if options.quick else 300
    made = iter(planted(20 * len(FORMS), seed=20))
    tokens = (entry for entry in planted(20 * len(FORMS), seed=21) if entry.form in TOKENS)
    few = 1 if options.quick else 30
    paths, choices = (
        list(itertools.islice(tokens, PER_PATH * (1 if options.quick else 5))),
        list(itertools.islice(tokens, few)),
    )
    sites = list(itertools.islice(made, few))
    errors = list(itertools.islice(made, PER_ERROR if options.quick else 60))
    rest = list(itertools.islice(made, count - len(paths) - len(choices) - len(sites) - len(errors)))
    variables, logs = rest[: len(rest) // 2], rest[len(rest) // 2 :]
    with tempfile.TemporaryDirectory() as scratch:
        bench = Bench(Path(scratch).resolve(), [*paths, *choices, *sites, *errors, *rest])
        (bench.root / "inputs").mkdir()
        (bench.root / "out").mkdir()
        facts = in_variables(bench, variables)
        in_paths(bench, paths)
        in_errors_and_logs(bench, errors, logs)
        in_sites_and_options(bench, sites, choices)
        shown(bench)
        wanted = [bench.root / "out" / name for name in ("pack", "variables0.html", "failing0.md")]
        files = sum(path.is_file() for path in (bench.root / "out").rglob("*"))
        leaks, lacking = bench.leaks(), sum(not path.exists() for path in wanted)
        shows = b"redacted: " in b"".join(bench.printed)
        marks = sum(path.read_bytes().count(MARK.encode()) for path in (bench.root / "out").rglob("raw/*"))
    lost = [name for name, value in HARMLESS_VARIABLES.items()
            if not name.startswith("LD_") and facts.get(f"env.{name}") != value]  # fmt: skip
    changed = [text for text in HARMLESS_TEXTS if redact(text)[1]]
    print(*leaks[:20], *lost, *changed, sep="\n", file=sys.stderr)
    finish(
        [
            at_least("no_secrets: planted", len(bench.planted), "secrets", count),
            at_least("no_secrets: forms", len({entry.form for entry in bench.planted}), "forms", 40),
            at_least("no_secrets: files searched", files, "files", 30),
            at_most("no_secrets: reports and packs that were not written", lacking, "files", 0),
            at_most("no_secrets: found in records, logs, reports, plans, packs or output", len(leaks), "places", 0),
            at_least("no_secrets: sites and options refused", bench.refused, "commands", len(sites) + len(choices)),
            at_least("no_secrets: marks where they were", marks, "marks", 0.8 * (len(errors) + len(logs) + len(paths))),
            at_least("no_secrets: the number redacted is shown", int(shows), "commands", 1),
            at_least("no_secrets: variables that matter for performance", len(HARMLESS_VARIABLES), "variables", 200),
            at_most("no_secrets: of these not recorded as they are", len(lost), "variables", 0),
            at_least("no_secrets: harmless lines of public logs", len(HARMLESS_TEXTS), "lines", 150),
            at_most("no_secrets: of these changed", len(changed), "lines", 0),
        ]
    )


if __name__ == "__main__":
    main()
