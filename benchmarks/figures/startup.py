"""[startup] Start-up time: `steelyard --help` compared with `python -c pass`.

Both are started in turn, many times, so that other load affects both; the figure is the ratio of the medians, and the
spread of the ratios is printed. The other two figures are not times: `steelyard --help` and `steelyard run --help` work
without numpy, pydantic, rich and torch, and a worker completes a simulated run without pydantic.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from figure import Figure, arguments, at_most, finish, of_time
from steelyard.contracts.observe import SPEC_FILE
from steelyard.contracts.spec import RunSpec
from steelyard.results.store import record_text

LIMIT = 4.0
BLOCK = "import sys\nfor name in {names!r}:\n    sys.modules[name] = None\n"


def seconds(command: list[str]) -> float:
    begin_s = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - begin_s


def without(names: list[str], code: str) -> subprocess.CompletedProcess[str]:
    program = BLOCK.format(names=names) + code
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)


def ratio(pairs: int) -> Figure:
    script = shutil.which("steelyard", path=str(Path(sys.executable).parent))
    if script is None:
        raise SystemExit("install the package into this environment first: pip install -e .")
    bare_times, help_times = [], []
    for _ in range(pairs):
        bare_times.append(seconds([sys.executable, "-c", "pass"]))
        help_times.append(seconds([script, "--help"]))
    ratios = sorted(h / b for h, b in zip(help_times, bare_times, strict=True))
    middle = statistics.median(help_times) / statistics.median(bare_times)
    spread = f"{ratios[len(ratios) // 10]:.2f} to {ratios[-1 - len(ratios) // 10]:.2f}"
    print(f"python -c pass {1e3 * statistics.median(bare_times):.1f} ms, ratio {middle:.2f}, 80 % of pairs {spread}")
    return of_time(at_most("startup: --help over python -c pass", middle, "x", LIMIT))


def help_without_libraries() -> Figure:
    code = "from steelyard.cli.main import main\nmain(['--help'])\nmain(['run', '--help'])\n"
    done = without(["torch", "numpy", "pydantic", "scipy", "rich"], code)
    works = done.returncode == 0 and "usage: steelyard run" in done.stdout
    return Figure("startup: --help without numpy, pydantic, torch", float(works), "works", "= 1", works)


def worker_without_pydantic() -> Figure:
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder)
        (raw / SPEC_FILE).write_text(record_text(RunSpec(run_id="startup", configuration="startup")), encoding="utf-8")
        code = f"sys.argv = ['worker', {folder!r}]\nfrom steelyard.worker.__main__ import main\nsys.exit(main())\n"
        done = without(["pydantic", "pydantic_core", "scipy", "torch"], code)
        events = [json.loads(line) for line in (raw / "events-00000.jsonl").read_text(encoding="utf-8").splitlines()]
    works = done.returncode == 0 and events[-1]["kind"] == "status" and events[-1]["code"] == "completed"
    return Figure("startup: simulated run without pydantic", float(works), "works", "= 1", works)


def main() -> None:
    options = arguments(__doc__)
    finish([ratio(15 if options.quick else 100), help_without_libraries(), worker_without_pydantic()])


if __name__ == "__main__":
    main()
