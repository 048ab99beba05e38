"""`save_figure`: one call writes a figure, the numbers behind it, and where both come from."""

from __future__ import annotations

import itertools
import json
import os
import re
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from workbench.core.errors import InputError, MissingResource, UnknownName
from workbench.core.extras import missing
from workbench.core.files import atomic_write, sha256_bytes
from workbench.figures.export import chrome
from workbench.figures.export.checks import Page, page_flaws, take_measures, with_flaws
from workbench.figures.export.figure_page import note_in_html, write_html
from workbench.figures.export.latex import latex_figure
from workbench.figures.export.restyling import has_letters, with_colours, with_formulas, with_letters
from workbench.figures.export.static import (
    PRINTING,
    STATIC,
    ExportFault,
    ExportJob,
    export_static,
    load_figure,
    shared_chrome,
)
from workbench.figures.figure_arguments import check_arguments
from workbench.figures.frames import with_labels
from workbench.figures.notes import left_out_notes, random_notes
from workbench.figures.theme import apply_theme, family_of, theme_of, width_of
from workbench.figures.words import in_words, split_finding, with_definitions, with_marks, without_nulls
from workbench.frames.provenance import FIGURE_NAME, build_provenance, dump, read_provenance
from workbench.frames.results import provenance_of
from workbench.frames.tables import csv_bytes, latex_table

FORMATS = (*STATIC, "html")
SVG = "image/svg+xml"
"""The MIME type of what static viewers show of a notebook's figure."""
DEFER = "WORKBENCH_DEFER_EXPORT"
OUT = "WORKBENCH_OUT"
ALLOWED = "WORKBENCH_FORMATS"
FONT, LETTERS = "WORKBENCH_FONT", "WORKBENCH_LETTERS"
# Files of the gallery itself, which a figure of the same name would overwrite.
_AXES = ("x", "y", "z", "a", "b", "c", "r", "theta", "labels", "values")
_RESERVED = {"index", "report"}


def save_figure(
    fig: go.Figure,
    name: str,
    *,
    data: pd.DataFrame | None = None,
    caption: str | None = None,
    alt: str | None = None,
    parameters: Mapping[str, Any] | None = None,
    out: str | os.PathLike[str] | None = None,
    width: str | float | None = None,
    height: float | None = None,
    font: str | None = None,
    colors: Mapping[str, str] | None = None,
    letters: str | None = None,
    formats: Sequence[str] | None = None,
    records: Iterable[str | os.PathLike[str]] | None = None,
) -> go.Figure:
    """Write a figure with its data and provenance, and return it in its theme, ready to be shown.

    Writes into `out`: ``NAME.pdf``, ``.svg``, ``.png`` (printed by Chrome), ``.html`` (interactive, with a local
    plotly.js), ``.csv`` (every row of `data`), ``.tex`` (booktabs summary, see `workbench.frames.tables`),
    ``.figure.tex`` (a LaTeX figure with caption and label), ``.figure.json`` (plotly specification) and ``.json``
    (provenance, also inside PDF, SVG, PNG and HTML).
    Every file is whole or absent. A file of such a name that the workbench did not write becomes ``NAME.kept.SUFFIX``,
    with a warning. A format written earlier stays if it shows the same figure and numbers, else it is removed.

    The provenance holds the parameters of the notebook that saves the figure: in a render those it runs with, in
    JupyterLab and VS Code the variables that its cell tagged "parameters" assigns, as they are at this moment.
    ``parameters_from`` names the source: "render", "variables", "call" for what `parameters` gives; null in a script.

    In a render the three static formats are left to the render process: ``WORKBENCH_DEFER_EXPORT`` names a file
    to which each saved figure is appended. Without Chrome or the extra "figures" a warning says how to get it, and
    the rest is written.

    Every flaw of the printed page (`workbench.figures.export.check_figure`) is a warning, in a render a line at its
    end, and an entry of ``figure["flaws"]`` in the provenance; null without an SVG, which is measured.

    Args:
        fig: any plotly figure; it is not changed. Formulas such as ``$\\theta_1$`` in its labels are drawn as letters.
        name: file name without folder or suffix: letters, digits, "_" and "-".
        data: the numbers that the figure shows, a frame of `workbench.analyze` for example, whose models and inputs
            the provenance then names; by default the points of its traces.
        caption: one or two sentences, as under a figure in print; by default the figure's title, else its name. A
            first sentence between "**" is the finding: bold in print, and the figure's title in the gallery. Names of
            the code are written in the words of the legend (`workbench.figures.words`). Sentences that begin with
            "Null" are left out where `data` is a result frame without null distributions.
        alt: what the figure shows, for readers who cannot see it; by default the caption.
        parameters: what was asked for (model, inputs, n, seed, …), instead of the notebook's parameters.
        out: folder; by default ``WORKBENCH_OUT``, else "figures".
        width: inches, "column" (3.25), "page" (6.75), or a venue's (`workbench.figures.theme.WIDTHS`); by default the
            one that the figure was made for, else "column".
        height: in pixels of 1/96 in; by default the figure's own.
        font: "venue" for the font of the width's venue, or a family by its name; by default ``WORKBENCH_FONT``, else
            Arial.
            Where neither it nor one of the same measures is on this machine, a warning names it.
        colors: "#rrggbb" by the names of series in the key; bands, points and labels follow.
        letters: how the panel letters are written, by the first one: "(a)", "A", or "" for none; by default
            ``WORKBENCH_LETTERS``.
        formats: some of "pdf", "svg", "png", "html"; by default all that the render asks for. With [] only the figure,
            its numbers and its provenance are written.
        records: committed files that the figure draws; by default those that `data` names (``attrs["records"]``).

    Raises:
        InputError: a name that is no plain file name, an empty figure, frame, caption or alt text, an unknown
            format or width, the font of a venue where the width is none's, a colour that another series has too.
        MissingResource: `out` cannot be written.
        ExportFault: Chrome made an image that is blank, of the wrong size, or without its fonts.
    """
    font = (os.environ.get(FONT) or None) if font is None else font
    if letters and isinstance(fig, go.Figure) and not has_letters(fig):
        warnings.warn(
            f"{name}: the figure has no panel letters; multipanel([figure], columns=1, letters={letters!r}) adds one",
            stacklevel=2,
        )
    letters = os.environ.get(LETTERS) if letters is None else letters
    check_arguments(
        parameters=parameters,
        out=out,
        height=height,
        font=font,
        formats=formats,
        records=records,
        colors=colors,
        letters=letters,
    )
    folder = Path(out if out is not None else os.environ.get(OUT) or "figures").expanduser()
    _check_figure(fig, name)
    data = _points(fig) if data is None else _with_index(data)
    caption = _text(fig.layout.title.text) or name.replace("_", " ") if caption is None else caption
    _check_words(name, data, caption, caption if alt is None else alt)
    finding, caption = split_finding(caption.strip())
    alt = f"{finding} {caption}".strip() if alt is None else alt
    if "null_mean" in data and data["null_mean"].isna().all():
        caption, alt = without_nulls(caption), without_nulls(alt)
    meta = fig.layout.meta if isinstance(fig.layout.meta, Mapping) else {}
    runs = provenance_of(data) or meta.get("runs", ())
    finding, caption = in_words(with_labels(finding, runs)), with_labels(caption, runs)
    notes = [*left_out_notes(data), *random_notes(runs, f"{finding} {caption}")]
    caption += "." if notes and re.search(r"\w$", caption) else ""
    table_caption, caption = (  # the table has no marks
        in_words(" ".join([finding, words, *notes]).strip())
        for words in (caption, with_marks(caption, meta.get("marks", ())))
    )
    caption = with_definitions(caption, fig.to_json())
    wanted = [format for format in check_formats(formats) if format in _allowed()]
    width = width_of(fig) if width is None else width
    theme = theme_of(width)
    themed = with_formulas(apply_theme(fig, theme.name, width, height))
    themed = with_colours(themed, colors) if colors else themed
    themed = themed if letters is None else with_letters(themed, letters)
    if font is not None:
        themed.update_layout(font_family=family_of(font, width))

    csv = csv_bytes(data)
    drawing = json.dumps(json.loads(themed.to_json()), sort_keys=True).encode()
    provenance = build_provenance(
        name,
        runs,
        parameters,
        figure={
            "caption": caption,
            "finding": finding or None,
            "alt": alt.strip(),
            "theme": theme.name,
            "width": width,
            "width_px": themed.layout.width,
            "height_px": themed.layout.height,
            "font": font,
            "letters": letters,
            "flaws": None,  # not checked yet
            "sha256": sha256_bytes(drawing),
        },
        data={
            "rows": len(data),
            "columns": [str(column) for column in data.columns],
            "sha256": sha256_bytes(csv),
        },
        records=data.attrs.get("records", ()) if records is None else records,
        out=folder,
    )
    table = latex_table(data, table_caption, name).encode()
    _keep_others(folder, name)
    for path in (folder / f"{name}.{format}" for format in FORMATS):
        if path.exists() and not _shows(path, provenance):  # it would pass for this figure
            path.unlink()
    atomic_write(folder / f"{name}.csv", csv)
    atomic_write(folder / f"{name}.tex", table)
    atomic_write(folder / f"{name}.figure.tex", latex_figure(name, caption, width, finding).encode())
    atomic_write(folder / f"{name}.figure.json", drawing)
    if "html" in wanted:
        write_html(folder / f"{name}.html", json.loads(drawing), provenance)
    atomic_write(folder / f"{name}.json", dump(provenance, indent=1).encode())

    if queue := os.environ.get(DEFER):
        entry = {"path": str((folder / f"{name}.json").resolve()), "formats": wanted}
        with open(queue, "a", encoding="utf-8") as handle:
            handle.write(json.dumps(entry) + "\n")
        return themed
    static = tuple(format for format in wanted if format in STATIC)
    if static:
        _export_now(folder, name, static, provenance)
    return _SavedFigure(themed, folder / f"{name}.svg")


class _SavedFigure(go.Figure):
    """A figure whose SVG is the file ``printed``: a notebook keeps both, for viewers that do not run plotly.

    An SVG has the figure's width and height. With a PNG beside plotly's output, JupyterLab shows that PNG, several
    pixels for each of the figure's, until the pointer enters it. A figure without an SVG is shown as plotly does.
    """

    def __init__(self, figure: Any = None, printed: Path | None = None) -> None:
        super().__init__(figure)
        self._printed = printed

    def show(self, *args: Any, **kwargs: Any) -> Any:
        """Show the figure as plotly does; a notebook also keeps its SVG."""
        as_plotly = args or kwargs or self._printed is None or not self._printed.is_file()
        kernel = None if as_plotly else getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
        bundle = {} if kernel is None else self._repr_mimebundle_()
        if self._printed is None or kernel is None or not bundle:
            return super().show(*args, **kwargs)
        return kernel.display_pub.publish({SVG: self._printed.read_text(encoding="utf-8")} | bundle)

    def _ipython_display_(self) -> None:
        self.show()


def measure_figure(fig: go.Figure, width: str | float | None = None) -> Page:
    """A figure as it would be printed, measured.

    Raises:
        MissingResource: no Chrome.
        ExportFault: Chrome could not draw it.
    """
    width = width_of(fig) if width is None else width
    themed = apply_theme(fig, theme_of(width).name, width)
    size = int(themed.layout.width), int(themed.layout.height)
    _, page = take_measures(shared_chrome().image(json.loads(themed.to_json()), "svg", *size), *size)
    assert page is not None  # our own Chrome measures every SVG
    return page


def check_figure(fig: go.Figure, width: str | float | None = None) -> list[str]:
    """Return the faults of a figure in print, a sentence each with what to do; nothing where nothing is found.

    Found are letters below 7 pt, words over words, words that the page or their panel cuts, a key that takes more than
    30 % of the area, panels without data or with a single number on an axis, and marks that leave their panel.

    Args:
        fig: any plotly figure; it is not changed.
        width: as of `save_figure`; by default the one that the figure was made for.

    Raises:
        MissingResource: no Chrome.
        ExportFault: Chrome could not draw it.
    """
    return page_flaws(measure_figure(fig, width))


def _export_now(folder: Path, name: str, formats: tuple[str, ...], provenance: Mapping[str, Any]) -> None:
    problem = missing("static export", *PRINTING) or ("" if chrome.find_chrome() else chrome.missing_chrome())
    if problem:
        warnings.warn(f"{name}: no PDF, SVG or PNG: {problem}", stacklevel=3)
        return
    (result,) = export_static([export_job(folder / f"{name}.json", provenance, formats)], shared_chrome())
    if result.flaws is not None:
        keep_flaws(folder / f"{name}.json", provenance, result.flaws)
    for flaw in result.flaws or ():
        warnings.warn(f"{name}: {flaw}", stacklevel=3)
    if result.failures:
        faults = "; ".join(f"{format}: {why}" for format, why in result.failures.items())
        raise ExportFault(f"{name} was not exported: {faults}")


def keep_flaws(path: Path, provenance: Mapping[str, Any], flaws: Sequence[str]) -> None:
    """Write into a saved figure's NAME.json, and into the page beside it, the flaws of the printed page."""
    noted = with_flaws(provenance, flaws)
    note_in_html(path.with_suffix(".html"), noted)
    atomic_write(path, dump(noted, indent=1).encode())


def export_job(path: Path, provenance: Mapping[str, Any], formats: Sequence[str]) -> ExportJob:
    """The job that prints a saved figure, from its NAME.json and the specification beside it."""
    figure = provenance["figure"]
    stem = path.with_suffix("")
    drawing = load_figure(stem.with_name(f"{stem.name}.figure.json"))
    return ExportJob(drawing, stem, figure["width_px"], figure["height_px"], tuple(formats), provenance)


def _allowed() -> Sequence[str]:
    """Formats that the render writes at all: ``WORKBENCH_FORMATS``, "pdf,html"; every format outside a render."""
    formats = os.environ.get(ALLOWED)
    return FORMATS if formats is None else formats.split(",")


def check_formats(formats: Sequence[str] | None) -> list[str]:
    """The formats asked for (several, or one by its name), in a fixed order; all for None. Raises `UnknownName`."""
    names = FORMATS if formats is None else (formats,) if isinstance(formats, str) else tuple(formats)
    for format in names:
        if format not in FORMATS:
            raise UnknownName("format", str(format), FORMATS)
    return [format for format in FORMATS if format in names]


def _points(fig: go.Figure) -> pd.DataFrame:
    """The numbers of a figure's traces, one row per point or cell."""
    frames = []
    for number, trace in enumerate(fig.data):
        drawn = {axis: trace[axis] for axis in _AXES if axis in trace}
        arrays = {
            axis: values for axis, values in drawn.items() if values is not None and np.ndim(values) < 3
        }
        z = np.asarray(arrays.get("z", ()))
        if trace.type == "table":
            points = pd.DataFrame({
                _text(str(head)): pd.Series(column)
                for head, column in zip(trace.header["values"] or (), trace.cells["values"] or (), strict=False)
            })  # fmt: skip
        elif z.ndim == 2:
            rows, columns = (
                arrays[axis] if len(arrays.get(axis, ())) == size else range(size)
                for axis, size in zip("yx", z.shape, strict=True)
            )
            x, y = np.tile(np.asarray(columns), len(z)), np.repeat(np.asarray(rows), z.shape[1])
            points = pd.DataFrame({"x": x, "y": y, "z": z.ravel()})
        else:
            points = pd.DataFrame(
                {axis: pd.Series(np.asarray(axis_values).tolist()) for axis, axis_values in arrays.items()}
            )
        points.insert(0, "trace", _text(trace.name) or str(number))
        frames.append(points)
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def _with_index(data: Any) -> Any:
    """Return a frame with its named index as columns, as `groupby` leaves it."""
    if not isinstance(data, pd.DataFrame):
        return data
    levels = [name for name in data.index.names if name is not None and name not in data]
    return data.reset_index(levels) if levels else data


def _text(marked: str | None) -> str:
    """Return the text of a title or a name, without plotly's marks."""
    return " ".join(re.sub(r"<[^>]*>", " ", marked or "").split())


def _check_figure(fig: go.Figure, name: str) -> None:
    if not isinstance(name, str) or not re.fullmatch(FIGURE_NAME, name):
        raise InputError(
            f"{name!r} is not a figure name; give up to 100 letters, digits, '_' or '-', without folder or suffix"
        )
    if name in _RESERVED:
        raise InputError(f"{name!r} is taken by a file of the gallery; choose another figure name")
    if not isinstance(fig, go.Figure):
        raise InputError(f"save_figure takes a plotly Figure; got {type(fig).__name__}")
    if not fig.data and not fig.layout.images:
        raise InputError(f"the figure {name!r} has no traces: there is nothing to draw")


def _check_words(name: str, data: pd.DataFrame, caption: str, alt: str) -> None:
    if not isinstance(data, pd.DataFrame) or data.empty:
        what = "an empty frame" if isinstance(data, pd.DataFrame) else type(data).__name__
        raise InputError(f"{name!r} needs data=FRAME, a DataFrame with the numbers shown; got {what}")
    for label, text in (("caption", caption), ("alt", alt)):
        if not isinstance(text, str) or not text.strip():
            raise InputError(f"{name!r} needs a {label}: one sentence of text")


def _keep_others(folder: Path, name: str) -> None:
    """Set files of the figure's names aside that no figure of ours has written: they are somebody's own."""
    if _is_ours(folder / f"{name}.json"):
        return
    for suffix in ("json", "csv", "tex", "figure.tex", "figure.json", *FORMATS):
        path = folder / f"{name}.{suffix}"
        if not path.is_file() or (suffix in FORMATS and _is_ours(path)):
            continue
        taken = (path.with_name(f"{name}.kept{number or ''}.{suffix}") for number in itertools.count())
        kept = next(candidate for candidate in taken if not candidate.exists())
        try:
            path.rename(kept)
        except OSError as error:
            raise MissingResource(f"{path} cannot be kept as {kept.name}: {error.strerror}") from error
        warnings.warn(f"{path} was not written by the workbench: it is {kept.name} now", stacklevel=3)


def _shows(path: Path, provenance: Mapping[str, Any]) -> bool:
    """Return whether a saved image shows the figure and the numbers of a provenance."""
    if not _is_ours(path):
        return False
    earlier = read_provenance(path)
    figures = [about["figure"] | {"flaws": None} for about in (earlier, provenance)]
    return figures[0] == figures[1] and earlier["data"] == provenance["data"]


def _is_ours(path: Path) -> bool:
    try:
        read_provenance(path)
    except InputError:
        return False
    return True
