"""Print a document of `terminal.shapes` as JSON. It imports little, because errors are printed by it too."""

from __future__ import annotations

import json
import math
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import TextIO


def print_json(document: Mapping[str, Any], *, file: TextIO | None = None) -> None:
    """Print a document in one line."""
    print(json_text(document), file=file or sys.stdout)


def json_text(document: Mapping[str, Any], indent: int | None = None) -> str:
    """Return a document as JSON, in one line or indented."""
    return json.dumps(_finite(document), allow_nan=False, indent=indent)


def _finite(value: Any) -> Any:
    """Replace infinite ends of intervals, which JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, (list, tuple)) else value
