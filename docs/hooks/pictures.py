"""MkDocs hook: the committed images of `figures/examples`, outside `docs/` since the README shows them too, as WebP."""

from __future__ import annotations

import io
import re
from functools import cache
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from PIL import Image

ROOT = Path(__file__).parents[2]
FOLDER = "figures/examples"


@cache
def webp(image: Path) -> bytes:
    """The image as lossless WebP: a quarter of a printed figure's PNG."""
    content = io.BytesIO()
    Image.open(image).save(content, "WEBP", lossless=True)
    return content.getvalue()


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the images, at the same address within the site."""
    for image in sorted((ROOT / FOLDER).glob("*.png")):
        files.append(File.generated(config, f"{FOLDER}/{image.stem}.webp", content=webp(image)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Let addresses begin in `docs/`, where in the repository they begin beside it."""
    return re.sub(rf"\]\(\.\./((?:\.\./)*{FOLDER}/[\w-]+)\.png", r"](\1.webp", markdown)
