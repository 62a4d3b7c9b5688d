"""[verdicts] On simulated studies with known truth: comparability, scaling factors and recipes.

Three parts, each a script of its own with its own explanation: `verdicts_compare` (confounded pairs are blocked, clean
ones are not), `verdicts_scaling` (factors of a scaling loss against truth) and `verdicts_verify` (false alarms and
misses of a recipe).
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
