"""MkDocs hook: a page that would fetch something from another host fails the build."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.pages import Page

# Attributes whose address a browser fetches by itself; an <a href> waits for a click.
FETCHED = {
    "script": ("src",),
    "link": ("href",),
    "img": ("src", "srcset"),
    "source": ("src", "srcset"),
    "iframe": ("src",),
    "video": ("src", "poster"),
    "audio": ("src",),
    "embed": ("src",),
    "object": ("data",),
}
OUTSIDE = re.compile(r"(?:https?:)?//[^\s\"')]+")
STYLED = re.compile(r"(?:url\(|@import\s)\s*[\"']?((?:https?:)?//[^\s\"')]+)")


class _Fetched(HTMLParser):
    """The outside addresses that a page fetches, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._style = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._style = tag == "style"
        for name, value in attrs:
            if value and name in FETCHED.get(tag, ()):
                self.found += OUTSIDE.findall(value)
            elif value and name == "style":
                self.found += STYLED.findall(value)

    def handle_data(self, data: str) -> None:
        if self._style:
            self.found += STYLED.findall(data)

    def handle_endtag(self, tag: str) -> None:
        self._style = False


def outside_addresses(html: str) -> list[str]:
    """Addresses of other hosts that a browser would fetch to show a page: scripts, styles, fonts, images."""
    parser = _Fetched()
    parser.feed(html)
    return parser.found


def on_post_page(output: str, page: Page, **_: Any) -> str:
    """Raise `PluginError` for a page that fetches from elsewhere."""
    found = outside_addresses(output)
    if found:
        raise PluginError(
            f"{page.file.src_uri} would fetch {found[0]}; a reader's browser asks this site alone: ship the file in "
            "docs/, or do without"
        )
    return output
