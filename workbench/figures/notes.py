"""Models and values that could not be drawn, in words under a figure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from workbench.figures.figure_arguments import check_arguments
from workbench.figures.frames import legend_names, short_name
from workbench.figures.text_widths import line_count, wrap
from workbench.figures.theme import theme_of, width_of
from workbench.frames.results import is_random, name_of_model, provenance_of

_UNDEFINED = re.compile(r"\d+ of \d+ values of (.+) are undefined and left out")
_RANGE = re.compile(r"(?<=\d)-(?=[\d, –-]*left out)")


def absent_notes(absent: Mapping[str, str]) -> list[str]:
    """A sentence for every reason in ``absent``: who is not shown, and why (the first line of it)."""
    models: dict[str, list[str]] = {}
    for model, reason in absent.items():
        models.setdefault(reason.splitlines()[0], []).append(model)
    are = {reason: "is" if len(names) == 1 else "are" for reason, names in models.items()}
    return [f"{', '.join(names)} {are[reason]} not shown: {reason}" for reason, names in models.items()]


def left_out_notes(frame: pd.DataFrame) -> list[str]:
    """Return a sentence for every note of a frame's runs about layers or values left out, of the models it holds.

    Of values that are undefined those of the frame's metrics are named.
    """
    models: dict[str, list[str]] = {}
    metrics = set(frame["metric"]) if "metric" in frame else set()
    for run in provenance_of(frame):
        spec = name_of_model(run.get("model") or {})
        if "model" not in frame or spec in set(frame["model"]):
            for note in run.get("notes") or ():
                if undefined := _UNDEFINED.fullmatch(note):
                    names = [
                        name for name in undefined[1].split(", ") if not metrics or name.split()[0] in metrics
                    ]
                    note = note.replace(undefined[1], ", ".join(names)) if names else ""
                if " left out" in note:
                    note = note.partition(": ")[0]  # the notebook prints the reason
                    models.setdefault(note, []).append(short_name(spec))
    sentences = {_RANGE.sub("–", note): names for note, names in models.items()}
    return [f"{', '.join(dict.fromkeys(names))}: {note}." for note, names in sentences.items()]


def random_notes(runs: Iterable[Mapping[str, Any]], caption: str) -> list[str]:
    """Return a sentence that names the models with random weights; none if the caption is about such weights."""
    models = [run.get("model") or {} for run in runs]
    trained = {name_of_model(model) for model in models if not is_random(model.get("checkpoint"))}
    random = (name_of_model(model) for model in models if is_random(model.get("checkpoint")))
    names = legend_names(name for name in random if name not in trained)  # else a control beside the model
    stated = re.search(r"\b(random|untrained)\b", caption, re.IGNORECASE)
    return [f"Random weights: {', '.join(names.values())}."] if names and not stated else []


def with_absent(fig: go.Figure, absent: Mapping[str, str]) -> go.Figure:
    """The figure itself, or with a line under it for every model that is not on this machine, saying why.

    ``absent`` is what `workbench.analyze_many` leaves in ``frame.attrs["absent"]``: ``{model: reason}``. The first
    line of a reason is shown, once for all models that share it; the rest concerns the machine rather than the figure.
    """
    check_arguments(figure=fig, absent=absent)
    if not absent:
        return fig
    noted, width = go.Figure(fig), width_of(fig)
    font, page_width = theme_of(width).font, theme_of(width).pixels(width)
    text = "<br>".join(wrap(note, page_width - 2 * font, font) for note in absent_notes(absent))
    room = 1.3 * font * line_count(text) + font / 2
    margin = noted.layout.margin
    bottom, left = (usual if side is None else side for side, usual in ((margin.b, 36), (margin.l, 44)))
    noted.add_annotation(
        text=text, x=0, y=0, xref="paper", yref="paper", xanchor="left", yanchor="top",
        xshift=8 - left, yshift=-bottom, align="left", showarrow=False, borderpad=0,
    )  # fmt: skip
    height = noted.layout.height or 272
    for name in (name for name in noted.layout if name.startswith("legend")):
        if noted.layout[name].yref == "container":
            noted.layout[name].y = 1 - (1 - noted.layout[name].y) * height / (height + room)
    margin = {**margin.to_plotly_json(), "b": bottom + room}
    return noted.update_layout(height=round(height + room), margin=margin)
