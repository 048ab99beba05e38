"""MkDocs hook: the search index, which every page loads, leaves out blocks of code and marks within sentences."""

from __future__ import annotations

import json
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig

_LEFT_OUT = re.compile(r"<pre>.*?</pre>|</?(?:code|em|strong|span|a)\b[^>]*>", re.DOTALL)


def on_post_build(config: MkDocsConfig) -> None:
    """Shorten the texts of the index; names of functions are titles in it."""
    path = Path(config.site_dir, "search", "search_index.json")
    index = json.loads(path.read_text(encoding="utf-8"))
    for part in index["docs"]:
        part["text"] = " ".join(_LEFT_OUT.sub("", part["text"]).split())
    path.write_text(json.dumps(index, ensure_ascii=False, separators=(",", ":")), encoding="utf-8")
