"""MkDocs hook: the search index, which every page loads, has the first paragraph of a docstring and no code blocks."""

from __future__ import annotations

import json
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig

_SUMMARY = re.compile(r"<p>(?! ?Bases:).*?</p>", re.DOTALL)
_LEFT_OUT = re.compile(r"<pre>.*?</pre>|</?(?:code|em|strong|span|a)\b[^>]*>", re.DOTALL)


def on_post_build(config: MkDocsConfig) -> None:
    """Shorten the texts of the index; names of functions are titles in it."""
    path = Path(config.site_dir, "search", "search_index.json")
    index = json.loads(path.read_text(encoding="utf-8"))
    for part in index["docs"]:
        if part["location"].startswith("library/"):
            part["text"] = "".join(_SUMMARY.findall(part["text"])[:1])
        part["text"] = " ".join(_LEFT_OUT.sub("", part["text"]).split())
    path.write_text(json.dumps(index, ensure_ascii=False, separators=(",", ":")), encoding="utf-8")
