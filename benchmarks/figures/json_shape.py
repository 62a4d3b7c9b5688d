"""[json_shape] Documents that `--json` prints have the shape that their verb declares, and say the same in all verbs.

Commands of every verb are run on simulated studies (random settings, noise, too little memory, energy sensors, several
curves), and on material that is not ours: tables as people print them, results of other benchmarks, the results of a
document, data sets, site files of public machines. Every document must be valid by the JSON Schema that
`steelyard explain VERB --schema` prints, checked by jsonschema, with no field that the schema does not have. Every
verb must print each of its documents at least once, except those that need a scheduler or an accelerator.

Settings must have names that `steelyard explain settings` lists, or that the schema of a run has. Figures of one
configuration must have the same value, ends, unit and number of jobs in every document, and in the CSV, which is read
by pandas.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import shlex
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import pandas as pd

from figure import arguments, at_most, finish
from steelyard.cli.main import VERBS
from steelyard.cli.main import main as steelyard
from steelyard.terminal.shapes import DOCUMENTS

if TYPE_CHECKING:
    from collections.abc import Iterator

FIRST_SEED = 72_000_000
FULL, QUICK = 30, 1
DATA = Path(__file__).resolve().parents[2] / "tests" / "data"
EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
STUDY = """
name = "{name}"
repeats = {repeats}
seed = {seed}
[run]
workload = "sim"
[run.budget]
min_steps = 40
max_steps = 400
[run.sim]
step_time_s = {step_s}
sample_time_s = {sample_s}
noise = {{ kind = "normal", between_jobs_cv = {noise} }}
memory = {{ limit_bytes = 1e9, bytes_per_sample = {bytes} }}
power = {{ idle_w = 60, compute_w = {watts}, compile_w = 120, host_w = 90 }}
sensors = [{{ kind = "counter", limit_w = 700 }}, {{ kind = "gauge", average_s = 0.1 }}]
[sweep]
batch = [8, 16, 64]
devices = {devices}
precision = {precisions}
"""
OF_STUDY = (
    "show {s}", "best {s}", "best {s} --by efficiency", "best {s} --by energy", "best {s} --by cost", "batch {s}",
    "scaling {s}", "scaling {s}:batch=8", "energy {s}", "compare {s}:batch=8 {s}:batch=16",
    "compare {s}:batch=8 {s}:batch=16 --metric energy_per_sample",
    "compare {s}:batch=8 {s}:batch=64 --metric step_time_mean", "compare {s}:batch=16 {s}:devices=1 --force",
    "study {s}.toml", "study {s}.toml --dry-run", "study {s}.toml --extend --dry-run",
)  # fmt: skip
ONCE = (
    "run sim --max-steps 40 --study single", f"wrap --study program -- {sys.executable} -c pass", "show", "show RUN",
    "show RUN --derive", "show single", "status",
    "verify {examples}/recipes/simulated-node.toml --dry-run", "verify {examples}/recipes/simulated-node.toml",
    "verify {examples}/recipes/simulated-node.toml --history", "suite list", "suite show nrp",
    "suite run {examples}/suites/node-a --size tiny", "suite report {examples}/suites/node-a -o s.md --format markdown",
    "query --list", "query 'select study, count(*) n from runs group by 1'",
    "query \"select 'inf'::double a, 'nan'::double b, 7 c\"", "report single --format csv -o tables",
    "pack study-0:batch=8 --devices 2 --samples 1e9 -o pack", "pack --schemes", "archive --older-than 0",
    "show study-0", "show study-0:batch=8", "audit {data}/printed/resnet50-a100.md",
    "audit {data}/printed/llm-h100.csv",
    "import {data}/imported/guidellm-benchmarks.json", "import {data}/imported/nccl-all-reduce.txt",
    "import {data}/imported/mlperf", "expect resnet50 --device A100", "expect resnet50 --value '2500 images/s'",
    "compare nrp-gh200:system=GH200 nrp-gh200:system=A100", "explain SY103 SY301", "explain settings", "site list",
    "study new", "study new batch",
    "site new slurm-cpu", "site show {examples}/sites/lumi.toml", "site check {examples}/sites/lumi.toml --offline",
    "selftest --hardware", "workloads", "workloads sim", "data", "data show cifar10",
    "data make mnist made --samples 20", "data check mnist:made", "completion bash",
)  # fmt: skip
SLOW = (
    "study search.toml",
    "doctor", "explain", "audit --reference", "report study-0 -o r.html", "selftest --quick",
    "workloads gpt --model layers=2", "suite show olivia --size full",
    "suite run site-acceptance --size tiny --dry-run",
    "run resnet50 --mode load --data imagefolder:images --loader-workers 0,1 --max-seconds 3 --batch 2",
)  # fmt: skip
"""Only in the full form: they start torch, or take long for another reason."""
REFUSED = (
    "show nothing",
    "run nothing",
    "run sim --batch 0",
    "study nowhere.toml",
    "best",
    "nothing",
    "query 'drop x'",
)
NEEDS_MORE = {"study-sent/1", "status-adopt/1", "selftest-accelerator/1"}
"""Documents that need a scheduler or an accelerator."""
IN_FULL = {"selftest/1", "doctor/1", "run-load/1"}
"""Documents that only `SLOW` prints."""


class Bench:
    """A folder in which commands are run, and what was wrong with their documents."""

    def __init__(self) -> None:
        self.documents = 0
        self.shapes: set[str] = set()
        self.invalid: list[str] = []
        self.names: set[str] = set()
        self.figures: dict[tuple[str, str], dict[tuple[Any, ...], str]] = defaultdict(dict)
        self.doubts: dict[tuple[str, str], set[tuple[str, ...]]] = defaultdict(set)
        self._validators: dict[str, Any] = {}

    def run(self, command: str) -> None:
        """Run a command with --json, and check its document."""
        words = shlex.split(command)
        # Behind `--` are the words of a program.
        place = words.index("--") if "--" in words else len(words)
        words.insert(place, "--json")
        out, err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            steelyard(words)
        out.seek(0)
        text = out.read() if words[0] != "wrap" else err.getvalue().strip().splitlines()[-1]
        self.documents += 1
        try:
            document = json.loads(text, parse_constant=_refuse)
        except ValueError as error:
            self._fault(command, f"{error}: {text[-200:]!r}")
        else:
            self._check(command, words[0], document)

    def _check(self, command: str, verb: str, document: Any) -> None:
        if not isinstance(document, dict):
            self._fault(command, "is no object")
            return
        self.shapes.add(str(document.get("shape")))
        for error in self._validator(verb if verb in VERBS else "show").iter_errors(document):
            worst = jsonschema.exceptions.best_match([error])
            self._fault(command, f"{worst.json_path}: {worst.message[:300]}")
        for part in _parts(document):
            self._note(command, part)

    def _validator(self, verb: str) -> Any:
        if verb not in self._validators:
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                steelyard(["explain", verb, "--schema"])
            schema = json.loads(out.getvalue())
            for part in schema["$defs"].values():
                if "properties" in part:
                    part.setdefault("additionalProperties", False)
            self._validators[verb] = jsonschema.Draft202012Validator(schema)
        return self._validators[verb]

    def _note(self, command: str, part: dict[str, Any]) -> None:
        """Keep the names of settings, and the figures of a configuration."""
        who = part.get("selection") or part.get("place")
        if who is None or not isinstance(part.get("settings"), dict):
            return
        self.names |= part["settings"].keys()
        found = dict(part.get("figures", {}))
        if "throughput" in part:
            self._keep(command, who, "throughput", part["throughput"])
        if "--metric" in command and "figure" in part:
            found[command.split()[-1]] = part["figure"]
        if "--by energy" in command:
            found["energy_per_sample"] = part["figure"]
        if "--by efficiency" in command:
            found["throughput_per_device"] = part["figure"]
        for metric, figure in found.items():
            self._keep(command, who, metric, figure)

    def _keep(self, command: str, who: str, metric: str, figure: dict[str, Any]) -> None:
        if figure["value"] is not None:
            ends = tuple(None if (x := figure[key]) is None else float(f"{x:.12g}") for key in ("value", "low", "high"))
            self.figures[who, metric].setdefault((*ends, figure["unit"], figure["jobs"]), command)
            if figure.get("approximate") is not None:
                self.doubts[who, metric].add(tuple(figure["approximate"]))

    def read_csv(self, study: str) -> None:
        """Read the CSV of a study with pandas."""
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            steelyard(["show", study, "--csv"])
        table = pd.read_csv(io.StringIO(out.getvalue()))
        if not table.columns.is_unique or any(".1" in name for name in table.columns):
            self._fault(f"show {study} --csv", "two columns of one name")
        for row in table.to_dict("records"):
            ends = {key: None if pd.isna(row[key]) else row[key] for key in ("value", "low", "high", "unit", "jobs")}
            self._keep(f"show {study} --csv", row["selection"], row["metric"], ends)

    def _fault(self, command: str, what: str) -> None:
        self.invalid.append(f"{command}: {what}")

    def unequal(self) -> Iterator[str]:
        """Yield figures that two documents give differently."""
        for (who, metric), found in self.figures.items():
            if len(found) > 1:
                told = "; ".join(f"{command}: {figure}" for figure, command in found.items())
                yield f"{metric} of {who}: {told}"
        yield from (
            f"reasons of {metric} of {who}: {found}" for (who, metric), found in self.doubts.items() if len(found) > 1
        )


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _parts(value: Any) -> Iterator[dict[str, Any]]:
    """Yield every object of a document."""
    if isinstance(value, dict):
        yield value
        for inner in value.values():
            yield from _parts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _parts(inner)


def study_text(draw: int) -> str:
    """Return a study with random truth; the first one has all that the verbs analyse."""
    rng = random.Random(FIRST_SEED + draw)
    precisions = rng.choice((["fp32"], ["fp32", "bf16"])) if draw else ["fp32"]
    return STUDY.format(
        name=f"study-{draw}", repeats=rng.choice((1, 2, 3, 5)) if draw else 3, seed=rng.randrange(1000),
        step_s=rng.uniform(1e-3, 2e-2), sample_s=rng.uniform(1e-5, 1e-3),
        noise=rng.choice((0.0, 0.01, 0.2)) if draw else 0.01, watts=rng.uniform(150, 600),
        bytes=rng.choice((1e6, 2e7)), devices=rng.choice(([1], [1, 2], [1, 2, 4])) if draw else [1, 2],
        precisions=json.dumps(precisions),
    )  # fmt: skip


def known_names() -> set[str]:
    """Return the names of settings that a user can look up."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        steelyard(["explain", "settings", "--json"])
        steelyard(["explain", "run-spec", "--json"])
    listed, schema = map(json.loads, out.getvalue().splitlines())
    names = {name for group in listed["settings"].values() for name in group}
    return names | {"options", *_fields(schema, schema, "")}


def _fields(schema: dict[str, Any], whole: dict[str, Any], before: str) -> Iterator[str]:
    for name, field in schema.get("properties", {}).items():
        yield before + name
        for option in (field, *field.get("anyOf", [])):
            if "$ref" in option:
                yield from _fields(whole["$defs"][option["$ref"].rpartition("/")[2]], whole, f"{before}{name}.")


def main() -> None:
    """Run all commands and count what is wrong."""
    options = arguments(__doc__)
    bench, draws = Bench(), QUICK if options.quick else FULL
    places = {"data": DATA, "examples": EXAMPLES}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        os.environ.update({"XDG_STATE_HOME": folder, "HOME": folder, "COLUMNS": "80"})
        for draw in range(draws):
            name = f"study-{draw}"
            Path(f"{name}.toml").write_text(study_text(draw), encoding="utf-8")
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                steelyard(["study", f"{name}.toml", "--quiet"])
            for command in OF_STUDY:
                bench.run(command.format(s=name))
            bench.read_csv(name)
        Path("search.toml").write_text(
            'name = "search"\n[run]\nworkload = "sim"\n[run.budget]\nmax_steps = 40\n[run.sim]\n'
            "memory = { limit_bytes = 1e9, bytes_per_sample = 1e7 }\n[search]\nfirst = 8\nlast = 512\n",
            encoding="utf-8",
        )
        with contextlib.redirect_stdout(io.StringIO()):
            steelyard(["data", "make", "imagefolder", "images", "--samples", "20"])
        for command in (*ONCE, *(() if options.quick else SLOW), *REFUSED):
            run_id = next(Path("steelyard-results/runs").glob("single/*")).name if "RUN" in command else ""
            bench.run(command.replace("RUN", run_id).format(s="study-0", **places))
        unknown = sorted(name for name in bench.names - known_names() if not name.startswith("model."))
    declared = {str(kind.__annotations__["shape"]) for kinds in DOCUMENTS.values() for kind in kinds}
    wanted = {text.split("'")[1] if "'" in text else text.split('"')[1] for text in declared}
    missing = sorted(wanted - bench.shapes - NEEDS_MORE - (IN_FULL if options.quick else set()))
    unequal = list(bench.unequal())
    for what in (*bench.invalid, *unequal, *(f"never printed: {shape}" for shape in missing), *unknown):
        print(what[:1000])
    print(f"{bench.documents} documents of {len(bench.shapes)} shapes, {len(bench.figures)} figures of configurations")
    finish(
        [
            at_most("json_shape", len(bench.invalid), "documents that are not valid by the schema of their verb", 0),
            at_most("json_shape_unequal", len(unequal), "figures that differ between documents", 0),
            at_most("json_shape_names", len(unknown), "names of settings that are in no list", 0),
            at_most("json_shape_missing", len(missing), "documents that no command has printed", 0),
        ]
    )


if __name__ == "__main__":
    main()
