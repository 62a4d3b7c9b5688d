"""[selftest] `steelyard selftest`: every check passes, and it takes at most 90 s on two cores.

The quick form is `steelyard selftest --quick`: formulas and answers, without the trials of intervals.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time

from figure import Figure, arguments, at_most, finish, timed

LIMIT_S = 90.0
QUICK_LIMIT_S = 30.0


def main() -> None:
    options = arguments(__doc__)
    begin_s = time.monotonic()
    command = [
        sys.executable,
        "-m",
        "steelyard.cli.main",
        "selftest",
        "--json",
        *(["--quick"] if options.quick else []),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds = time.monotonic() - begin_s
    result = json.loads(done.stdout)
    checks = result["checks"]
    wrong = [check["what"] for check in checks if not check["holds"]]
    exact = [abs(float(check["error"].rstrip(" %"))) for check in checks if check["group"] == "formula"]
    print(f"{len(checks)} lines, wrong: {wrong}, exit code {done.returncode}")
    finish(
        [
            timed("selftest: time", seconds, "s", QUICK_LIMIT_S if options.quick else LIMIT_S, quick=options.quick),
            at_most("selftest: largest error without noise", max(exact), "%", 0.01),
            Figure("selftest: lines that hold", len(checks) - len(wrong), "lines", f"= {len(checks)}",
                   not wrong and done.returncode == 0),
        ]
    )  # fmt: skip


if __name__ == "__main__":
    main()
