"""[weight_casts] Inference and generation cast no weight after set-up.

Every language model of the catalogue at its reduced size, and a model of transformers from a user's file, in bf16 and
fp16: operators of a step that turn a weight into another number format are counted. A step of generation is a prefill
and several decodes. For GPT the same is counted with --autocast, which shows that casts are seen. The full form repeats
this on the oldest supported torch, in an environment of its own that it downloads.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from casts import Casts
from figure import Figure, arguments, at_least, at_most, finish
from steelyard import plugins
from steelyard.contracts.spec import RunSpec, Source
from steelyard.errors import InputError
from steelyard.worker.engine.torch_job import open_job
from steelyard.worker.measure.vendor import NvidiaSmi

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
FOREIGN = ROOT / "benchmarks" / "lib" / "models" / "library_gpt2.py"
FAMILIES = ("language", "question answering")
OLD = ("numpy>=1.26,<2", "torch==2.1.2", "transformers>=4.45,<4.46")
OLD_PYTHON = "3.10"
INSTALL_S = 900.0
SEEN = "gpt"
AUTOCAST = " --autocast"


def cases() -> Iterator[dict[str, Any]]:
    """Yield the settings of each model in each of its modes."""
    for name in plugins.BUILTIN["workload"]:
        about = getattr(plugins.load("workload", name), "about", None)
        if about is not None and about.family in FAMILIES:
            for mode in ("infer", "generate"):
                if mode in about.modes:
                    yield {"workload": name, "mode": mode, "model": about.reduced}
    digest = hashlib.sha256(FOREIGN.read_bytes()).hexdigest()
    source = Source(path=str(FOREIGN), function="build", sha256=digest)
    yield from ({"workload": FOREIGN.stem, "mode": mode, "source": source} for mode in ("infer", "generate"))


def casts(settings: dict[str, Any]) -> int:
    """Return the casts of weights in one step after the first."""
    spec = RunSpec(run_id="casts", configuration="casts", device="cpu", batch=2, threads=1, **settings)
    steps = open_job(spec, NvidiaSmi()).build()[0]
    steps.compile()
    steps.run(steps.take())
    with Casts(steps._module) as found:  # type: ignore[union-attr]  # noqa: SLF001 -- the model is not public
        steps.run(steps.take())
    steps.close()
    return int(found.count)


def here() -> dict[str, Any]:
    """Count in this environment, by case."""
    found = {}
    for settings in cases():
        for precision in ("bf16", "fp16"):
            for autocast in (False, True) if settings["workload"] == SEEN else (False,):
                name = f"{settings['workload']} {settings['mode']} {precision}{AUTOCAST if autocast else ''}"
                try:
                    found[name] = casts({**settings, "precision": precision, "autocast": autocast})
                except InputError as error:
                    print(f"{name}: {error.what}", file=sys.stderr)
                else:
                    print(f"{name}: {found[name]} casts of weights", file=sys.stderr)
    return {"torch": torch.__version__, "found": found}


def elsewhere(python: str) -> dict[str, Any]:
    """Count with another Python."""
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "benchmarks" / "lib")])
    command = [python, str(Path(__file__).resolve()), "--inside"]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def old_environment(folder: str) -> str:
    """Install the oldest torch; return its Python."""
    known = map(str, Path.home().glob(f".pyenv/versions/{OLD_PYTHON}.*/bin/python3"))
    for python in (shutil.which(f"python{OLD_PYTHON}") or "", *known):
        # A pyenv shim may exist without a Python behind it.
        if python and subprocess.run([python, "--version"], capture_output=True, check=False).returncode == 0:
            subprocess.run([python, "-m", "venv", folder], check=True)
            inside = str(Path(folder) / "bin" / "python")
            subprocess.run([inside, "-m", "pip", "install", "--quiet", *OLD], check=True, timeout=INSTALL_S)
            return inside
    raise SystemExit(f"Python {OLD_PYTHON} not found")


def figures(counted: dict[str, Any]) -> list[Figure]:
    version, found = counted["torch"], counted["found"]
    once = [count for name, count in found.items() if not name.endswith(AUTOCAST)]
    every = [count for name, count in found.items() if name.endswith(AUTOCAST)]
    return [
        at_most(f"weight_casts: casts after set-up, torch {version}, {len(once)} cases", sum(once), "casts", 0),
        at_least(f"weight_casts: fewest seen in a step with{AUTOCAST}, torch {version}", min(every), "casts", 1),
    ]


def main() -> None:
    options = arguments(
        __doc__,
        inside={"action": "store_true", "help": "print the counts of this environment as JSON"},
        old_python={"help": "a Python with the oldest torch and transformers, instead of a new environment"},
    )
    if options.inside:
        print(json.dumps(here()))
        return
    counted = [here()]
    if not options.quick:
        with tempfile.TemporaryDirectory() as folder:
            counted.append(elsewhere(options.old_python or old_environment(folder)))
    finish([figure for entry in counted for figure in figures(entry)])


if __name__ == "__main__":
    main()
