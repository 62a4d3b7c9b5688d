"""Hooks of `mkdocs build`: add the generated pages to the site, and replace the markers in the others."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mkdocs.structure.files import File

sys.path.insert(0, str(Path(__file__).resolve().parent))

import generated

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add every generated page."""
    for path, text in generated.pages().items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, **_others: Any) -> str:
    """Replace the markers of a page."""
    return generated.fill(markdown)
