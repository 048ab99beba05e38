"""HTML of an object in a notebook: a heading, facts, and tables that fold.

All text is escaped. Colours are the notebook's, light or dark; styles are inline, since some notebooks drop
style sheets.
"""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_LINE = "1px solid rgba(128, 128, 128, .35)"
_SIDE = 56
"""Width in pixels of a thumbnail."""
_CELL = "padding: .1em .8em .1em 0; text-align: left; background: none; border: none"


def card(heading: str, facts: Mapping[str, object], *parts: str) -> str:
    """Format an object as HTML: its heading, its facts (those without a value are left out), and its parts."""
    rows = [(name, value) for name, value in facts.items() if value not in (None, "", (), [], {})]
    style = f"border: {_LINE}; border-radius: 4px; padding: .5em .8em; max-width: 60em; font-size: 90%"
    return f'<div style="{style}"><b>{_text(heading)}</b>{table((), rows)}{"".join(parts)}</div>'


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Format rows of texts as an HTML table; the first cell of a row is its heading."""
    lines = [_cells("th", head)] if head else []
    lines += [_cells("th", row[:1]) + _cells("td", row[1:]) for row in rows]
    inside = "".join(f'<tr style="background: none">{line}</tr>' for line in lines)
    style = "margin: .2em 0; border-collapse: collapse; border: none; color: inherit; font-size: inherit"
    return f'<table style="{style}"><tbody>{inside}</tbody></table>' if lines else ""


def fold(summary: str, content: str) -> str:
    """Return HTML that opens below a one-line summary."""
    return f'<details><summary style="cursor: pointer">{_text(summary)}</summary>{content}</details>'


def shape(value: Any) -> str:
    """Format the sizes of a tensor's axes, or a number itself."""
    sizes = getattr(value, "shape", None)
    return f"{value:.4g}" if sizes is None else " × ".join(map(str, sizes)) or "()"


def thumbnail(pixels: Any, label: str) -> str:
    """Format an image of bytes (height, width, 3) as an HTML thumbnail with its label as a tooltip."""
    from PIL import Image

    image = Image.fromarray(pixels)
    image.thumbnail((2 * _SIDE, 2 * _SIDE))  # sharp on dense screens; one that is smaller stays as it is
    content = io.BytesIO()
    image.save(content, "PNG")
    source = base64.b64encode(content.getvalue()).decode()
    style = f"display: inline-block; width: {_SIDE}px; margin: 2px; image-rendering: pixelated"
    title = html.escape(label)
    return f'<img src="data:image/png;base64,{source}" alt="{title}" title="{title}" style="{style}">'


def shortened(text: str, most: int = 80) -> str:
    """Shorten a text to one line of at most ``most`` characters."""
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1] + "…"


def _cells(tag: str, texts: Iterable[object]) -> str:
    style = _CELL + ("; opacity: .7; font-weight: normal" if tag == "th" else "")
    return "".join(f'<{tag} style="{style}">{_text(text)}</{tag}>' for text in texts)


def _text(value: object) -> str:
    return html.escape(str(value))
