"""MkDocs hook: the committed images of `figures/examples`, outside `docs/` since the README shows them too."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
FOLDER = "figures/examples"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the images, at the same address within the site."""
    for image in sorted((ROOT / FOLDER).glob("*.png")):
        files.append(File.generated(config, f"{FOLDER}/{image.name}", abs_src_path=str(image)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Let addresses begin in `docs/`, where in the repository they begin beside it."""
    return re.sub(rf"\]\(\.\./((?:\.\./)*{FOLDER}/)", r"](\1", markdown)
