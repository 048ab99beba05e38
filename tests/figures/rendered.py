"""Where the words of a rendered figure stand, read from the SVG that Chrome makes of it."""

from __future__ import annotations

import json
import re
from itertools import combinations
from typing import NamedTuple
from xml.etree import ElementTree

import numpy as np

from workbench.figures.export.static import shared_chrome
from workbench.figures.measuring import text_width

_SVG = "{http://www.w3.org/2000/svg}"
_PART = re.compile(r"(translate|rotate|scale|matrix)\(([^)]*)\)")


class Words(NamedTuple):
    """A line of text, its size in px, and its box: left, top, right, bottom."""

    text: str
    size: float
    box: tuple[float, float, float, float]


def render(fig):
    """The figure as the SVG that is printed."""
    content = shared_chrome().image(
        json.loads(fig.to_json()), "svg", int(fig.layout.width), int(fig.layout.height)
    )
    return ElementTree.fromstring(content)


def words_of(svg) -> list[Words]:
    """Every visible line of text in the image."""
    return [found for found in _walk(svg, np.eye(3), {"font-size": "12px"}) if found.text.strip()]


def overlapping(words: list[Words], slack: float = 1.5) -> list[tuple[str, str]]:
    """Pairs of lines whose boxes lie over each other by more than ``slack`` px both ways."""
    pairs = []
    for one, two in combinations(words, 2):
        across = min(one.box[2], two.box[2]) - max(one.box[0], two.box[0])
        along = min(one.box[3], two.box[3]) - max(one.box[1], two.box[1])
        if across > slack and along > slack:
            pairs.append((one.text, two.text))
    return pairs


def outside(words: list[Words], width: float, height: float, slack: float = 1.0) -> list[str]:
    """Lines that the page cuts."""
    return [
        one.text
        for one in words
        if one.box[0] < -slack
        or one.box[1] < -slack
        or one.box[2] > width + slack
        or one.box[3] > height + slack
    ]


def _walk(node, matrix, style):
    style = (
        style
        | dict(part.split(":", 1) for part in _style(node))
        | {name: node.get(name) for name in ("font-size", "text-anchor", "opacity") if node.get(name)}
    )
    style = {name.strip(): value.strip() for name, value in style.items()}
    if style.get("display") == "none" or style.get("opacity") == "0":
        return
    matrix = matrix @ _matrix(node.get("transform", ""))
    if node.tag == f"{_SVG}text":
        lines = [part for part in node if part.get("class") == "line"] or [node]
        for number, line in enumerate(lines):
            yield _line(line, node, matrix, style, number)
        return
    for child in node:
        yield from _walk(child, matrix, style)


def _style(node):
    return [part for part in node.get("style", "").split(";") if ":" in part]


def _line(line, node, matrix, style, number):
    text = "".join(line.itertext()).replace("\u200b", "")
    size = float(style["font-size"].removesuffix("px"))
    x, y = (float(line.get(name) or node.get(name) or 0) for name in "xy")
    dy = line.get("dy") or "0em"
    y += float(dy.removesuffix("em")) * size if dy.endswith("em") else float(dy)
    marked = text if "bold" not in style.get("font-weight", "") else f"<b>{text}</b>"
    width = text_width(marked, size)
    start = x - {"middle": width / 2, "end": width}.get(style.get("text-anchor", "start"), 0)
    corners = np.array(
        [[start, start + width, start, start + width], [y - 0.72 * size] * 2 + [y + 0.2 * size] * 2, [1] * 4]
    )
    placed = matrix @ corners
    box = (placed[0].min(), placed[1].min(), placed[0].max(), placed[1].max())
    return Words(text, size, tuple(float(end) for end in box))


def _matrix(transform):
    found = np.eye(3)
    for name, inside in _PART.findall(transform):
        numbers = [float(part) for part in re.split(r"[ ,]+", inside.strip()) if part]
        step = np.eye(3)
        if name == "translate":
            step[:2, 2] = [*numbers, 0][:2]
        elif name == "scale":
            step[0, 0], step[1, 1] = numbers[0], numbers[-1]
        elif name == "matrix":
            step[:2] = np.array(numbers).reshape(3, 2).T
        else:
            angle = np.deg2rad(numbers[0])
            centre = np.array([*numbers[1:], 0, 0][:2])
            step[:2, :2] = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
            step[:2, 2] = centre - step[:2, :2] @ centre
        found = found @ step
    return found
