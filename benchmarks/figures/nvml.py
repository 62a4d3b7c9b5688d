"""[nvml] NVIDIA's sensors through the real nvidia-ml-py, over a fake library with programmed truth: wrong cases.

Every case runs in a fresh process: the package loads libnvidia-ml.so.1 as it would load NVIDIA's, and the sensors
are opened and read as on a node. A counter must stand at the true integral of the programmed power, to a millijoule; a
power reading at the true mean of what its sensor looked at, to a milliwatt. What fails must say why, by code and words.
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
    arguments(__doc__)  # The quick form is the whole: it takes less than half a minute.
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(4) as pool:
        built = Path(folder) / "built"
        build(built)
        build(built / "old", old=True)
        # Each waits for processes most of the time, one of them for a call that blocks.
        benches = list(pool.map(lambda case: tried(case, Path(folder) / case.__name__, built), CASES))
    for case, bench in zip(CASES, benches, strict=True):
        print(f"{case.__name__:26} {len(bench.wrong)} wrong", file=sys.stderr)
        for words in bench.wrong[:5]:
            print(f"    {words}", file=sys.stderr)
    wrong_cases = sum(bool(bench.wrong) for bench in benches)
    finish([at_most(f"nvml: wrong cases of {len(CASES)}", wrong_cases, "cases", 0)])


if __name__ == "__main__":
    main()
