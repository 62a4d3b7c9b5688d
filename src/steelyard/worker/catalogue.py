"""`python -m steelyard.worker.catalogue [NAME [OPTIONS]]`: what workloads are and take, as JSON on standard output.

Counts on the meta device: nothing is trained, and the largest models take no memory. The front side reads the counts of
the usual options from a shipped file, which `--write` makes (with NAME: anew for that one), and starts this process for
others. OPTIONS is a JSON object. Knows the table of plugins; measures nothing.
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
from steelyard.worker.workloads.about import About

if TYPE_CHECKING:
    from collections.abc import Callable

FILE = Path(__file__).parent.parent / "catalogue.json"
EXTRAS = {
    "torchvision": "torch",
    "timm": "timm",
    "transformers": "transformers",
    "segmentation_models_pytorch": "segmentation",
}
"""Which extra of the package brings a module; scipy is there wherever the package is installed whole."""
COUNTED_WITH = ("torch", "torchvision", "timm", "transformers", "segmentation-models-pytorch")
SIMULATED = About(
    family="test",
    title="simulated accelerator whose true times are known; no model",
    modes=("train", "infer"),
)


def everything() -> dict[str, Any]:
    """Every workload of ours with its usual options."""
    versions: dict[str, str | None] = dict.fromkeys(COUNTED_WITH)
    for name in COUNTED_WITH:
        with suppress(importlib.metadata.PackageNotFoundError):
            # Without what tells builds of one release apart: they count the same.
            versions[name] = importlib.metadata.version(name).partition("+")[0]
    return {"counted_with": versions, "workloads": {name: entry(name, {}) for name in sorted(ours())}}


def ours() -> list[str]:
    """The names that the package itself brings."""
    return list(plugins.BUILTIN["workload"])


def entry(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """What is known of one workload, counted with these options."""
    if name == "sim":
        return {**_describe(SIMULATED), "options": {}, **_nothing("the simulated device has no model")}
    build = plugins.load("workload", name)
    # Names and defaults; null: none is needed, or the workload decides.
    parameters = inspect.signature(build).parameters.values()
    known = {p.name: None if p.default is p.empty else p.default for p in parameters if p.kind is not p.VAR_KEYWORD}
    valid = ", ".join(known) or "none"
    problems = [Problem(f"model.{option}", "unknown option", valid) for option in options if option not in known]
    if problems:
        raise InputError(f"the workload {name!r} has no such option", problems=tuple(problems))
    facts = getattr(build, "about", None) or About(family="test", title="of another package")
    given = {"given": options} if options else {}
    return {**_describe(facts), "options": known, **given, **_counts(partial(build, **options))}


def _describe(facts: About) -> dict[str, Any]:
    published = None
    if facts.parameters is not None:
        published = {"parameters": facts.parameters, "source": facts.source}
    extras = [] if facts is SIMULATED else ["torch"]
    extras += [EXTRAS[module] for module in facts.needs if module in EXTRAS]
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
    # Late: they import torch, which takes seconds, and a wrong name is to be told at once.
    from steelyard.worker.engine.flops import built_on_meta, count
    from steelyard.worker.engine.footprint import footprint
    from steelyard.worker.workloads.bundle import ModelBundle
    from steelyard.worker.workloads.ceiling import Ceiling

    made: Any = built_on_meta(make)
    if isinstance(made, Ceiling):
        return _nothing("no model: its work is known when it is made on a device")
    bundle = made if isinstance(made, ModelBundle) else ModelBundle(*made)
    # Built once. Inference last: its count takes the gradients from the model.
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
    """Without the release of torch, which stands once for all."""
    import torch

    return method.replace(f" of torch {torch.__version__}", "")


def text(only: str | None = None) -> str:
    """The shipped file, to the last character. `only`: the file as it is, with this workload counted anew."""
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
        raise InputError("the options are no JSON object")
    return json.dumps(entry(arguments.name, options))


def main() -> int:
    """Exit code 0 when it was counted; an error that a person can act on is an answer, too."""
    parser = argparse.ArgumentParser(prog="python -m steelyard.worker.catalogue", description=__doc__)
    parser.add_argument("name", nargs="?", help="a workload; nothing: all of them")
    parser.add_argument("options", nargs="?", default="{}", help="options of its model as JSON")
    parser.add_argument("--write", action="store_true", help="make the file that the package ships")
    arguments = parser.parse_args()
    # Libraries print what they like; standard output is for the answer.
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
