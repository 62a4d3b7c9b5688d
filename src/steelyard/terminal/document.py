"""Print a document of `terminal.shapes` as JSON. It imports little, because errors are printed by it too."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from steelyard.contracts.base import finite_json

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import TextIO


def print_json(document: Mapping[str, Any], *, file: TextIO | None = None) -> None:
    """Print a document in one line."""
    print(json_text(document), file=file or sys.stdout)


def json_text(document: Mapping[str, Any], indent: int | None = None) -> str:
    """Return a document as JSON, in one line or indented."""
    return json.dumps(finite_json(document), allow_nan=False, indent=indent)
