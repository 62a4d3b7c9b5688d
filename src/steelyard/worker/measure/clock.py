"""The worker's clock: seconds on the host's monotonic clock since the worker started. Import it first."""

from __future__ import annotations

import time

START_S = time.monotonic()


def now() -> float:
    """Seconds since the worker started."""
    return time.monotonic() - START_S
