"""`python -m steelyard.worker.catalogue [NAME [OPTIONS]]`: print descriptions and counts of workloads as JSON.

Counts on the meta device: nothing is trained, and the largest models need no memory. steelyard reads the counts for
default options from a file in the package, which `--write` creates (with NAME: updates for that workload), and starts
this process for other options. OPTIONS is a JSON object.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import inspect
import json
import os
import sys
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steelyard import plugins
from steelyard.errors import InputError, Problem, SteelyardError
from steelyard.extras import MODULES
from steelyard.worker.workloads.about import About

if TYPE_CHECKING:
    from collections.abc import Callable

FILE = Path(__file__).parent.parent / "catalogue.json"
COUNTED_WITH = ("torch", "torchvision", "timm", "transformers", "segmentation-models-pytorch")
SIMULATED = About(
    family="test",
    title="simulated accelerator with known true times; no model",
    modes=("train", "infer"),
)


def everything() -> dict[str, Any]:
    """Return all built-in workloads with their default options."""
    versions: dict[str, str | None] = dict.fromkeys(COUNTED_WITH)
    for name in COUNTED_WITH:
        with suppress(importlib.metadata.PackageNotFoundError):
            # Without the build suffix: builds of one release count the same.
            versions[name] = importlib.metadata.version(name).partition("+")[0]
    return {"counted_with": versions, "workloads": {name: entry(name, {}) for name in sorted(ours())}}


def ours() -> list[str]:
    """Return the names of the built-in workloads."""
    return list(plugins.BUILTIN["workload"])


def entry(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return the description of one workload and its counts with these options."""
    if name == "sim":
        return {**_describe(SIMULATED), "options": {}, **_nothing("the simulated device has no model")}
    build = plugins.load("workload", name)
    # Names and defaults; null: required, or chosen by the workload.
    parameters = inspect.signature(build).parameters.values()
    known = {p.name: None if p.default is p.empty else p.default for p in parameters if p.kind is not p.VAR_KEYWORD}
    valid = ", ".join(known) or "none"
    problems = [Problem(f"model.{option}", "unknown option", valid) for option in options if option not in known]
    if problems:
        raise InputError(f"the workload {name} has no such option", problems=tuple(problems))
    facts = getattr(build, "about", None) or About(family="test", title="from another package")
    given = {"given": options} if options else {}
    return {**_describe(facts), "options": known, **given, **_counts(partial(build, **options))}


def _describe(facts: About) -> dict[str, Any]:
    published = None
    if facts.parameters is not None:
        published = {"parameters": facts.parameters, "source": facts.source}
    extras = [] if facts is SIMULATED else ["torch"]
    extras += [MODULES[module] for module in facts.needs if module in MODULES]
    return {
        "title": facts.title,
        "family": facts.family,
        "modes": list(facts.modes),
        "data": list(facts.data),
        "metric": facts.metric,
        "needs": list(facts.needs),
        "extras": list(dict.fromkeys(extras)),
        "published": published,
        "note": facts.note,
        "reduced": dict(facts.reduced),
    }


def _counts(make: Callable[[], Any]) -> dict[str, Any]:
    # Imported late: torch takes seconds to import, and a wrong name should be reported at once.
    from steelyard.worker.engine.flops import built_on_meta, count
    from steelyard.worker.engine.footprint import footprint
    from steelyard.worker.workloads.bundle import ModelBundle
    from steelyard.worker.workloads.ceiling import Ceiling

    made: Any = built_on_meta(make)
    if isinstance(made, Ceiling):
        return _nothing("a ceiling has no model")
    bundle = made if isinstance(made, ModelBundle) else ModelBundle(*made)
    # Built once. Inference last: counting it switches off the model's gradients.
    memory = footprint(lambda: bundle)
    trained, inferred = count(lambda: bundle, train=True), count(lambda: bundle, train=False)
    return {
        "parameters": trained.parameters,
        "tokens_per_sample": bundle.tokens,
        "flops_per_sample": {"train": trained.flops_per_sample, "infer": inferred.flops_per_sample},
        "flops_method": {"train": _timeless(trained.method), "infer": _timeless(inferred.method)},
        "memory": asdict(memory),
    }


def _nothing(reason: str) -> dict[str, Any]:
    return {
        "parameters": None,
        "tokens_per_sample": None,
        "flops_per_sample": {"train": None, "infer": None},
        "flops_method": {"train": f"unknown: {reason}", "infer": f"unknown: {reason}"},
        "memory": None,
    }


def _timeless(method: str) -> str:
    """Remove the torch version, which is listed once for all workloads."""
    import torch

    return method.replace(f" of torch {torch.__version__}", "")


def text(only: str | None = None) -> str:
    """Return the exact content of the packaged file. `only`: recount this workload, keep the others."""
    if only is None:
        made = everything()
    else:
        made = json.loads(FILE.read_text(encoding="utf-8"))
        made["workloads"] = dict(sorted({**made["workloads"], only: entry(only, {})}.items()))
    return json.dumps(made, indent=1) + "\n"


def _answer(arguments: argparse.Namespace) -> str:
    if arguments.write:
        FILE.write_text(text(arguments.name), encoding="utf-8")
        return json.dumps({"written": str(FILE)})
    if arguments.name is None:
        return text().rstrip()
    options = json.loads(arguments.options)
    if not isinstance(options, dict):
        raise InputError("the options are not a JSON object")
    return json.dumps(entry(arguments.name, options))


def main() -> int:
    """Print the answer; errors of the user are printed as JSON, too."""
    parser = argparse.ArgumentParser(prog="python -m steelyard.worker.catalogue", description=__doc__)
    parser.add_argument("name", nargs="?", help="name of a workload (default: all)")
    parser.add_argument("options", nargs="?", default="{}", help="model options as JSON")
    parser.add_argument("--write", action="store_true", help="write the file in the package")
    arguments = parser.parse_args()
    # Libraries may print to standard output, which is reserved for the answer.
    own = os.dup(1)
    os.dup2(2, 1)
    code = 0
    try:
        answer = _answer(arguments)
    except SteelyardError as error:
        problems = [asdict(problem) for problem in error.problems]
        answer = json.dumps({"error": error.what, "problems": problems, "next_step": error.next_step})
        code = error.exit_code
    with os.fdopen(own, "w", encoding="utf-8") as output:
        print(answer, file=output)
    return code


if __name__ == "__main__":
    sys.exit(main())
