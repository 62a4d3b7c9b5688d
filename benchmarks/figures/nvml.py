"""[nvml] NVIDIA sensors through the real nvidia-ml-py and a fake library with programmed truth.

Every case runs in a fresh process: the package loads a fake libnvidia-ml.so.1, and the sensors are opened and read as
on a node. A counter must match the integral of the programmed power to a millijoule; a power reading must match the
mean over its window to a milliwatt. Failures must give a code and a reason.
"""

from __future__ import annotations

import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fake_nvml.build import build
from figure import arguments, at_most, finish
from nvml_cases import CASES, tried


def main() -> None:
    arguments(__doc__)  # The quick form is the full form: it takes less than half a minute.
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(4) as pool:
        built = Path(folder) / "built"
        build(built)
        build(built / "old", old=True)
        # Each case mostly waits for processes, one of them for a blocking call.
        benches = list(pool.map(lambda case: tried(case, Path(folder) / case.__name__, built), CASES))
    for case, bench in zip(CASES, benches, strict=True):
        print(f"{case.__name__:26} {len(bench.wrong)} wrong", file=sys.stderr)
        for words in bench.wrong[:5]:
            print(f"    {words}", file=sys.stderr)
    wrong_cases = sum(bool(bench.wrong) for bench in benches)
    finish([at_most(f"nvml: wrong cases of {len(CASES)}", wrong_cases, "cases", 0)])


if __name__ == "__main__":
    main()
