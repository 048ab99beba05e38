"""`combine`: saved figures become the panels of one, with their numbers, captions and provenance."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from workbench.core.errors import InputError
from workbench.figures.export.saving import FORMATS, save_figure
from workbench.figures.export.static import load_figure
from workbench.figures.multipanel import multipanel
from workbench.figures.theme import PANEL_LETTER, WIDTHS, theme_of, width_of
from workbench.figures.words import sentences
from workbench.frames.provenance import READABLE, read_provenance

_COLUMN, _FIGURE = "-column", ".figure.json"


def combine(
    figures: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    columns: int | None = None,
    width: str | float | None = None,
) -> go.Figure:
    """Write saved figures as the panels of one, with letters, and return it.

        combine(["figures/a.figure.json", "figures/b.figure.json"], "ab.pdf")

    Panels keep their size and are not scaled. The new figure has the data of all, with a column ``panel``, and their
    captions, as "(a) … (b) …". Its provenance has their runs, and names their files with hashes.

    Args:
        figures: files of saved figures: NAME.figure.json, or any other file of a figure, beside that one.
        out: file of the new figure: .pdf, .svg, .png or .html; the other files of a figure are written beside it.
        columns: panels per row; by default two if all figures are at most half as wide as the whole.
        width: width of the whole: inches, or of `workbench.figures.theme.WIDTHS`; by default the page of the figures'
            venue, or the width of the widest if there is one panel per row.

    Raises:
        InputError: fewer than two figures, a file that holds none, a figure wider than its place, another suffix.
        MissingResource: a file that cannot be written.
    """
    out, paths = Path(out), [_specification(Path(path)) for path in figures]
    if len(paths) < 2:
        raise InputError(f"a combined figure has two panels or more; got {len(paths)} file")
    if out.suffix.removeprefix(".") not in FORMATS:
        raise InputError(f"a combined figure is written as {', '.join(FORMATS)}; {out.name!r} ends otherwise")
    if any(os.path.realpath(out.with_suffix(_FIGURE)) == os.path.realpath(path) for path in paths):
        raise InputError(f"{out} would replace one of the figures; give another name")
    drawn = [_read_figure(path) for path in paths]
    provenances = [_read_provenance(path) for path in paths]
    widths = [
        about["figure"].get("width") or width_of(figure)
        for figure, about in zip(drawn, provenances, strict=True)
    ]
    page = width or _page(widths)
    if columns is None:
        columns = 2 if all(2 * _pixels(name) <= _pixels(page) + 2 for name in widths) else 1
    if columns == 1 and width is None:
        page = max(widths, key=_pixels)
    tables, captions, letter = [], [], ord("a")
    for path, figure, about in zip(paths, drawn, provenances, strict=True):
        count = sum(note.name == PANEL_LETTER for note in figure.layout.annotations)
        tables.append(_read_table(path).assign(panel=chr(letter)))
        captions.append(_caption(about["figure"]["caption"], letter - ord("a"), count))
        letter += max(1, count)
    data = pd.concat(tables, ignore_index=True)
    data = data[["panel", *data.columns.drop("panel")]]
    data.attrs["provenance"] = [run for about in provenances for run in about["runs"]]
    return save_figure(
        multipanel(drawn, columns=columns, width=page),
        out.stem,
        data=data,
        caption=_joined(captions),
        alt=" ".join(about["figure"]["alt"] for about in provenances),
        parameters={"figures": [_stem(path) for path in paths], "columns": columns},
        records=paths,
        out=out.parent,
        width=page,
        formats=[out.suffix.removeprefix(".")],
    )


def _pixels(width: str | float) -> int:
    return theme_of(width, "paper").pixels(width)


def _stem(path: Path) -> str:
    return path.name.removesuffix(_FIGURE)


def _specification(path: Path) -> Path:
    """Return the NAME.figure.json of the figure that the file ``path`` belongs to."""
    suffixes = (_FIGURE, ".figure.tex", *READABLE)
    stem = next((path.name.removesuffix(end) for end in suffixes if path.name.endswith(end)), path.name)
    path_beside = path.with_name(stem + _FIGURE)
    if not path_beside.is_file():
        raise InputError(
            f"no file at {path_beside}; give a figure's NAME.figure.json, which save_figure writes"
        )
    return path_beside


def _read_figure(path: Path) -> go.Figure:
    try:
        return go.Figure(load_figure(path))
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"{path} holds no plotly figure: {str(error).splitlines()[0]}") from error


def _read_provenance(path: Path) -> dict[str, Any]:
    """Read a figure's NAME.json; without one the figure's name is its caption."""
    sidecar = path.with_name(f"{_stem(path)}.json")
    if sidecar.is_file():
        return read_provenance(sidecar)
    name = _stem(path).replace("_", " ")
    return {"figure": {"caption": f"{name}.", "alt": f"{name}."}, "runs": []}


def _read_table(path: Path) -> pd.DataFrame:
    table = path.with_name(f"{_stem(path)}.csv")
    return pd.read_csv(table) if table.is_file() else pd.DataFrame({"figure": [_stem(path)]})


def _page(widths: Sequence[str | float]) -> str:
    """Return the width of a page of the figures' venue, or the usual one."""
    venues = {str(name).removesuffix(_COLUMN) for name in widths} & WIDTHS.keys() - {"column"}
    return venues.pop() if len(venues) == 1 else "page"


def _joined(captions: Sequence[str]) -> str:
    """Return the captions of all panels, with the sentences that all of them have once, at the end."""
    parts = [sentences(caption) for caption in captions]
    shared = [sentence for sentence in parts[0] if all(sentence in part for part in parts)]
    return " ".join([*(sentence for part in parts for sentence in part if sentence not in shared), *shared])


def _caption(caption: str, before: int, letters: int) -> str:
    """Return a caption with the letter of its panel, or with the letters that it has moved on by those before."""
    if not letters:
        return f"({chr(ord('a') + before)}) {caption}"
    used = "".join(chr(ord("a") + number) for number in range(letters))
    return re.sub(rf"\(([{used}])([,–)])", lambda match: f"({chr(ord(match[1]) + before)}{match[2]}", caption)
