"""How wide a text is in print, from the advance widths of its letters, and how many rows a legend takes.

The widths are Arial's, which Liberation Sans and Helvetica share: in thousandths of the font's size. A letter that is
not in the table counts as a digit, ideographs as a full square.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import unescape

_ADVANCES = {
    191: "'", 222: "ijl‘’ł", 260: "|", 278: " !,./:;I[\\]ft·íïı\u00a0", 333: '()-`r"“”²³¹‑', 350: "•", 365: "‖∥⟨⟩₀₁₂ₖ",
    389: "*", 395: "τ", 400: "°", 445: "ζεξ^", 500: "Jcksvxyz↑↓γκλνçş∂χ{}", 549: "±≤≥≠≈√Γ∈", 575: "βραμ",
    584: "+<=>~−×", 615: "FTZßøσΣ", 650: "φΞ", 667: "&ABEKPSVXYÀÁÄÅÉÈΔΛ", 700: "πψ∑∞", 722: "CDHNRUwΠÇÜΩ",
    780: "GOQΘÖω", 798: "Φ", 833: "MmΨ½", 889: "%", 944: "W", 1000: "—…→←", 1015: "@",
}  # fmt: skip
_WIDTHS = {letter: width for width, letters in _ADVANCES.items() for letter in letters}
_DIGIT, _SQUARE, _BOLD, _SMALL = 556, 1000, 1.065, 0.7
_NUMBERED = re.compile(r"\b(layer|head|row|column|epoch) (?=\d)")  # a name and its number stand in one line
_TAGS = re.compile(r"<(/?)(b|i|sub|sup|span|br)\b[^>]*>")


def text_width(text: str, size: float) -> float:
    """Pixels that the widest line of a text takes at a font size; ``<b>``, ``<sub>`` and the like count as drawn."""
    widest = line = 0.0
    scale, start = 1.0, 0
    for tag in [*_TAGS.finditer(text), None]:
        for letter in unescape(text[start : tag.start() if tag else len(text)]):
            unseen = 0x300 <= ord(letter) < 0x370 or 0x2066 <= ord(letter) < 0x206A
            wide = _SQUARE if ord(letter) >= 0x2E80 else 0 if unseen else _DIGIT
            line += _WIDTHS.get(letter, wide) / 1000 * size * scale
        widest = max(widest, line)
        if tag is not None:
            factor = {"b": _BOLD, "sub": _SMALL, "sup": _SMALL}.get(tag[2], 1.0)
            scale = scale / factor if tag[1] else scale * factor
            line, start = (0.0 if tag[2] == "br" else line), tag.end()
    return widest


def wrap(text: str, width: float, size: float) -> str:
    """The text with a line break wherever a line would be wider than this; a single word that is wider is cut."""
    return "<br>".join(cut(line, width, size) for line in _lines(text, width, size))


def wrap_evenly(text: str, width: float, size: float) -> str:
    """The same with lines of like length, as a title has them: no single word below a long line."""
    lines = _lines(text, width, size)
    longest = widest(_lines(text, 0, size), size)
    for room in (width * percent / 100 for percent in range(96, 50, -4)) if len(lines) > 1 else ():
        narrower = _lines(text, room, size)
        if len(narrower) > len(lines) or widest(narrower, size) > max(room, longest):
            break
        lines = narrower
    return "<br>".join(cut(line, width, size) for line in lines)


def _lines(text: str, width: float, size: float) -> list[str]:
    lines = [""]
    for word in _NUMBERED.sub("\\1\u00a0", re.sub(r"[ \t\n]+", " ", text).strip(" ")).split(" "):
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and text_width(longer, size) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return [line.replace("\u00a0", " ").strip(" ") for line in lines]


def cut(text: str, width: float, size: float) -> str:
    """The text, or its beginning and an ellipsis where it is wider than this."""
    if text_width(text, size) <= width or "<" in text:
        return text
    while len(text) > 1 and text_width(f"{text}…", size) > width:
        text = text[:-1]
    return f"{text.rstrip()}…"


def line_count(text: str) -> int:
    """How many lines a text is drawn in."""
    return text.count("<br>") + 1


def legend_entry(name: str, size: float) -> float:
    """Pixels of one entry of a horizontal legend: plotly's gaps, the glyph of 30 px, and the words."""
    return 30 + 2 * 5 + text_width(name, size)


def legend_row(size: float) -> float:
    """Pixels of one row of a legend, as plotly spaces them."""
    return max(1.3 * size, 16) + 3


def in_rows(names: Sequence[str], width: float, size: float) -> list[list[int]]:
    """The places of a legend's entries, row by row: each holds the entries that fit the width."""
    rows: list[list[int]] = []
    used = 0.0
    for number, name in enumerate(names):
        entry = legend_entry(name, size) + 5
        if not rows or used + entry > width:
            rows.append([])
            used = 0.0
        rows[-1].append(number)
        used += entry
    return rows


def widest(texts: Iterable[str], size: float) -> float:
    """Pixels of the widest of the texts; 0 for none."""
    return max((text_width(text, size) for text in texts), default=0.0)
