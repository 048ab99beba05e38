"""Colours and panel letters of a finished figure, changed for a paper."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import plotly.graph_objects as go
from plotly.colors import hex_to_rgb

from workbench.core.errors import InputError, UnknownName
from workbench.figures.theme import PANEL_LETTER, letter_after, readable
from workbench.frames.tex import drawn_formulas


def has_letters(fig: go.Figure) -> bool:
    """Return whether the figure has panel letters."""
    return any(note.name == PANEL_LETTER for note in fig.layout.annotations)


def with_letters(fig: go.Figure, letters: str) -> go.Figure:
    """Return the figure with its panel letters written so: "(a)", "A", or "" for none."""
    layout = fig.to_plotly_json()["layout"]
    notes = []
    for note in layout.get("annotations", ()):
        if note.get("name") == PANEL_LETTER:
            letter = re.sub(r"<.*?>|\W", "", note["text"]).lower()
            note = {**note, "text": f"<b>{letter_after(letters, ord(letter) - ord('a'))}</b>"}
        if letters or note.get("name") != PANEL_LETTER:
            notes.append(note)
    return go.Figure(data=fig.data, layout={**layout, "annotations": notes}, frames=fig.frames)


def with_formulas(fig: go.Figure) -> go.Figure:
    """Return the figure with the formulas of its labels in letters (`drawn_formulas`)."""

    def drawn(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: drawn(part) for key, part in value.items()}
        if isinstance(value, list):
            return [drawn(part) for part in value]
        return drawn_formulas(value) if isinstance(value, str) else value

    text = fig.to_json()
    return go.Figure(drawn(json.loads(text))) if "$" in text else fig


def with_colours(fig: go.Figure, colors: Mapping[str, str]) -> go.Figure:
    """Return the figure with other colours ("#rrggbb") for some of its series, by the names in the key.

    Bands, points and labels of a series follow its line.

    Raises:
        UnknownName: no series has that name.
        InputError: a colour is not "#rrggbb", or a series without a new colour has the same old one.
    """
    content = json.loads(fig.to_json())
    names = dict(_named_colours(content["data"]))
    for name, colour in colors.items():
        if name not in names:
            raise UnknownName("series of the figure", name, names)
        if not re.fullmatch("#[0-9a-fA-F]{6}", str(colour)):
            raise InputError(f'colors={{{name!r}: {colour!r}}}; give a colour as "#rrggbb"')
    replaced = {names[name]: colour for name, colour in colors.items()}
    shared = [name for name, colour in names.items() if colour in replaced and name not in colors]
    if shared:
        raise InputError(
            f"colors: {', '.join(shared)} would change too; give every series of that colour a new one"
        )
    pattern = re.compile(
        "|".join(map(re.escape, sorted(_forms(replaced), key=len, reverse=True))), re.IGNORECASE
    )
    forms = {old.lower(): new for old, new in _forms(replaced).items()}
    parts = {
        part: json.loads(pattern.sub(lambda match: forms[match[0].lower()], json.dumps(content[part])))
        for part in ("data", "layout")
    }
    return go.Figure(**parts)


def _named_colours(traces: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield the name and the colour of every series."""
    for trace in traces:
        colours = [trace.get(part, {}).get("color") for part in ("line", "marker")]
        colour = next((colour for colour in colours if isinstance(colour, str)), None)
        if trace.get("name") and colour is not None and colour.startswith("#"):
            yield trace["name"], colour


def _forms(colours: Mapping[str, str]) -> dict[str, str]:
    """Return all spellings of colours in a figure, with those of the colours that replace them."""
    forms = {}
    for old, new in colours.items():
        forms[old] = new
        forms[readable(old)] = readable(new)
        (red, green, blue), rgb = hex_to_rgb(old), ",".join(map(str, hex_to_rgb(new)))
        forms[f"rgba({red},{green},{blue},"] = f"rgba({rgb},"
    return forms
