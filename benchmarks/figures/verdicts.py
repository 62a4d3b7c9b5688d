"""[verdicts] On simulated studies with known truth: comparability, scaling factors and recipes.

Three parts, each explained in its own module: `verdicts_compare` (confounded pairs get no ratio, clean pairs do),
`verdicts_scaling` (factors of a scaling loss compared with the truth) and `verdicts_verify` (false alarms and misses of
a recipe).
"""

from __future__ import annotations

import verdicts_compare
import verdicts_scaling
import verdicts_verify
from figure import arguments, finish

PARTS = (verdicts_compare, verdicts_scaling, verdicts_verify)


if __name__ == "__main__":
    options = arguments(__doc__)
    finish([figure for part in PARTS for figure in part.figures(quick=options.quick)])
