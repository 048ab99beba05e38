"""MkDocs hook: a saved page of the explorer, which a visitor of the site can use at once (docs/explorer.md)."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ADDRESS = "pages/digits.html"


@cache
def page() -> str:
    """Every head of the bundled vision transformer on two images of digits."""
    from workbench.apps.explorer import Explorer

    with tempfile.TemporaryDirectory() as folder:
        path = Explorer("bundled:digits-vit", n=2).save_html(Path(folder) / "digits.html", indices=[0, 1])
        return path.read_text(encoding="utf-8")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Write the page when the site is built: it is too large to be kept in the repository, and made in seconds."""
    files.append(File.generated(config, ADDRESS, content=page()))
    return files
