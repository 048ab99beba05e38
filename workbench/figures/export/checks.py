"""Check a printed figure: its smallest letters, overlaps, cut words, empty panels.

All of it is measured by the browser that prints the figure (`measure.js`), on the page as it is printed: at the size
that it has in a paper, where 96 pixels are an inch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from workbench.figures.words import NO_DATA, STATISTIC

_SMALLEST_POINTS = 7.0
"""Letters that journals ask for at the least; indices and powers are smaller, as everywhere."""
_LEGEND_SHARE = 0.3
"""Of a figure's area, that its key may take."""
_SLACK = 1.0  # pixels by which words may touch: the ink of two letters is not as wide as their boxes
_MEASURED = b"<!--measured "  # behind the SVG
_NUMBER = re.compile(r"[-−+]?[\d.,]+(e[-−+]?\d+)?[kKMGµμmn]?%?")

Box = Sequence[float]
"""Left, upper, right and lower end."""


class Words(NamedTuple):
    """A line of text: its size in pixels, the corners (x, y) of its ink, turned as it is, and the box that clips it."""

    text: str
    size: float
    corners: Sequence[float]
    clip: Box | None

    @property
    def box(self) -> Box:
        """The smallest upright box around it."""
        x, y = self.corners[::2], self.corners[1::2]
        return min(x), min(y), max(x), max(y)


class Drawn(NamedTuple):
    """A panel: its box, the labels of its ticks, how many marks it shows, by kind how many leave it and of how many."""

    box: Box
    x: Sequence[str]
    y: Sequence[str]
    drawn: int
    beyond: Mapping[str, Sequence[int]]


class Page(NamedTuple):
    """A printed figure as the browser measures it."""

    width: float
    height: float
    words: Sequence[Words]
    legends: Sequence[Box]
    panels: Sequence[Drawn]
    missing: str = ""
    """Characters that no font of this machine has."""


@cache
def page_scripts() -> str:
    """Return the scripts that the browser runs beside kaleido: a figure is drawn once for all formats, and measured."""
    folder = files("workbench.figures.export")
    return ";\n".join(folder.joinpath(name).read_text(encoding="utf-8") for name in ("once.js", "measure.js"))


def take_measures(svg: bytes, width: float, height: float) -> tuple[bytes, Page | None]:
    """Return an SVG without its measures, and these; None where it has none."""
    drawn, mark, measures = svg.rpartition(_MEASURED)
    if not (mark and measures.endswith(b"-->")):
        return svg, None
    read = json.loads(measures.removesuffix(b"-->"))
    panels = sorted(read["panels"], key=lambda entry: (round(entry["box"][1]), entry["box"][0]))
    page = Page(
        width, height,
        words=[Words(**entry) for entry in read["words"]],
        legends=read["legends"],
        panels=[Drawn(**entry) for entry in panels],
        missing=read.get("missing", ""),
    )  # fmt: skip
    return drawn, page


def page_flaws(page: Page) -> list[str]:
    """Return the faults of a printed figure, a sentence each with what to do."""
    return [
        flaw
        for look in (_small, _boxes, _over_each_other, _cut, _large_key, _key_rows, _panels)
        for flaw in look(page)
    ]


def _small(page: Page) -> Iterator[str]:
    small = sorted(
        (words for words in page.words if words.size * 0.75 < _SMALLEST_POINTS - 0.05),
        key=lambda line: line.size,
    )
    if small:
        yield (
            f"{_some(len(small), 'line')} of text below {_SMALLEST_POINTS:g} pt, the smallest "
            f"{small[0].size * 0.75:.1f} pt ({_named(small)}): give them the theme's size, or a wider figure"
        )


def _boxes(page: Page) -> Iterator[str]:
    if page.missing:
        some = page.missing if len(page.missing) <= 20 else f"{page.missing[:20]}…"
        yield f"no font on this machine has “{some}”, printed as boxes: install one that does, such as Noto"


def _over_each_other(page: Page) -> Iterator[str]:
    pairs = overlapping(page.words)
    if pairs:
        first, second = pairs[0]
        more = f" and {_some(len(pairs) - 1, 'other pair')}" if len(pairs) > 1 else ""
        both = f"{_quoted(first)} and {_quoted(second)}{more}"
        yield f"words lie over each other: {both}; move, shorten or leave out one of them"


def _cut(page: Page) -> Iterator[str]:
    sheet = (0.0, 0.0, page.width, page.height)
    leave = [words for words in page.words if not _inside(_visible(words), sheet)]
    if leave:
        yield f"the page cuts {_named(leave)}: give the figure more room on that side, or shorten the words"
    hidden = [
        words for words in page.words
        if words.clip is not None and not _inside(words.box, words.clip) and _overlap(words.box, words.clip)
    ]  # fmt: skip
    if hidden:
        yield f"a panel or a scrolling key cuts {_named(hidden)}: widen its range, or make the key smaller"


def _large_key(page: Page) -> Iterator[str]:
    key = np.zeros((round(page.height), round(page.width)), bool)
    for box in page.legends:  # the rows of a key overlap by their margins
        left, upper, right, lower = (max(round(end), 0) for end in box)
        key[upper:lower, left:right] = True
    share = key.mean()
    if share > _LEGEND_SHARE:
        yield (
            f"the key takes {share:.0%} of the figure (at most {_LEGEND_SHARE:.0%}): shorten its names, name lines at "
            "their ends, or make the figure taller"
        )


def _key_rows(page: Page) -> Iterator[str]:
    lines = [words for words in page.words if any(_is_within(words.box, legend) for legend in page.legends)]
    middles = sorted((words.box[1] + words.box[3]) / 2 for words in lines)
    apart = min((words.size for words in lines), default=0.0) / 2
    rows = 1 + sum(below - above > apart for above, below in pairwise(middles))
    if rows > 1:
        yield f"the key has {rows} rows (at most 1): name lines at their ends, or say in the caption what marks are"
    statistics = [words for words in lines if STATISTIC.search(words.text)]
    if statistics:
        yield f"the key holds a statistic ({_named(statistics)}): put it into the caption"


def _is_within(inner: Box, outer: Box) -> bool:
    return all(small >= large for small, large in zip(inner[:2], outer[:2], strict=True)) and all(
        small <= large for small, large in zip(inner[2:], outer[2:], strict=True)
    )


def _panels(page: Page) -> Iterator[str]:
    for number, panel in enumerate(page.panels, 1):
        name = f"panel {number} of {len(page.panels)}" if len(page.panels) > 1 else "the panel"
        if not panel.drawn:
            if any(_is_within(words.box, panel.box) and words.text != NO_DATA for words in page.words):
                continue  # it says why
            yield f"{name} shows no data: leave it out, or say in it why"
            continue
        for axis, labels in (("x", panel.x), ("y", panel.y)):
            if len(labels) == 1 and _NUMBER.fullmatch(labels[0].strip()):
                yield (
                    f"{name} has a single tick on its {axis} axis ({labels[0]}), so that no scale can be read: give it "
                    "ticks or a range of two labels and more"
                )
        out = [f"{many} of {_some(all, kind[:-1])}" for kind, (many, all) in panel.beyond.items() if many]
        if out:
            yield f"{name} cuts what leaves its axes ({', '.join(out)}): widen the range, or say that it is a part"


def font_flaw(family: str, embedded: Sequence[str]) -> str | None:
    """Return the warning where a PDF embeds none of the families that a figure asks for; None where it does."""
    families = [name.strip(" '") for name in family.split(",")]
    plain = [re.sub(r"[^a-z0-9]", "", name.lower()) for name in embedded]
    if not plain or any(
        re.sub(r"[^a-z0-9]", "", name.lower()) in embedded_name
        for name in families
        for embedded_name in plain
    ):
        return None
    return (
        f"set in {', '.join(name.split('+')[-1] for name in embedded)}, since this machine has none of the fonts "
        f"{', '.join(families[:-1])}: install one of them"
    )


def overlapping(words: Sequence[Words]) -> list[tuple[str, str]]:
    """Pairs of lines of text whose ink lies over each other, whichever way they are turned."""
    if len(words) < 2:
        return []
    left, upper, right, lower = np.array([_visible(first) for first in words]).T
    near = (np.minimum.outer(right, right) - np.maximum.outer(left, left) > _SLACK) & (
        np.minimum.outer(lower, lower) - np.maximum.outer(upper, upper) > _SLACK
    )
    pairs = ((words[first], words[second]) for first, second in np.argwhere(np.triu(near, 1)))
    return [
        (first.text, second.text) for first, second in pairs if _depth(first.corners, second.corners) > _SLACK
    ]


def _visible(words: Words) -> Box:
    if words.clip is None:
        return words.box
    box, clip = words.box, words.clip
    return (*map(max, box[:2], clip[:2]), *map(min, box[2:], clip[2:]))


def _depth(corners_1: Sequence[float], corners_2: Sequence[float]) -> float:
    """By how much two turned boxes overlap, along that one of their sides along which it is the least."""
    first, second = (np.reshape(corners, (4, 2)) for corners in (corners_1, corners_2))
    depths = []
    for corners in (first, second):
        for side in (corners[1] - corners[0], corners[3] - corners[0]):
            along = side / (np.hypot(*side) or 1)
            a, b = first @ along, second @ along
            depths.append(min(a.max(), b.max()) - max(a.min(), b.min()))
    return min(depths)


def _inside(box: Box, room: Sequence[float], slack: float = _SLACK) -> bool:
    return all(end >= edge - slack for end, edge in zip(box[:2], room[:2], strict=True)) and all(
        end <= edge + slack for end, edge in zip(box[2:], room[2:], strict=True)
    )


def _overlap(box: Box, room: Sequence[float]) -> bool:
    return all(min(box[end + 2], room[end + 2]) > max(box[end], room[end]) for end in (0, 1))


def _named(words: Sequence[Words]) -> str:
    """The first few, and how many more."""
    quoted = [_quoted(text) for text in dict.fromkeys(line.text for line in words)]
    return ", ".join(quoted[:3]) + (f" and {len(quoted) - 3} more" if len(quoted) > 3 else "")


def _quoted(text: str) -> str:
    return f"“{text if len(text) <= 40 else text[:39] + '…'}”"


def _some(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def with_flaws(provenance: Mapping[str, Any], flaws: Sequence[str]) -> dict[str, Any]:
    """The provenance of a figure with what its check found."""
    return {**provenance, "figure": {**provenance["figure"], "flaws": list(flaws)}}
