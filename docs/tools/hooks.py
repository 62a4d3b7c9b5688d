"""What `mkdocs build` calls: adds the generated pages to the site, and fills the markers of the others."""

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
    """With every generated page."""
    for path, text in generated.pages().items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, **_others: Any) -> str:
    """With what markers stand for."""
    return generated.fill(markdown)
