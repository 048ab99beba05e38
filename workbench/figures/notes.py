"""A panel in words, for what could not be drawn."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

import plotly.graph_objects as go

from workbench.figures.plates import plate

_LINE = 44  # characters that fit the width of a column in 8 pt


def note_figure(text: str, height: int = 160) -> go.Figure:
    """A figure that holds a sentence and nothing else, to stand where a panel is missing."""
    fig = go.Figure()
    fig.add_annotation(
        text="<br>".join(textwrap.wrap(text, _LINE)), x=0.5, y=0.5, xref="paper", yref="paper",
        showarrow=False, align="left",
    )  # fmt: skip
    fig.update_xaxes(visible=False)
    fig.update_yaxes(visible=False)
    return fig.update_layout(height=height, margin={"l": 8, "r": 8, "t": 8, "b": 8})


def with_absent(fig: go.Figure, absent: Mapping[str, str]) -> go.Figure:
    """The figure itself, or beside it a panel for every model that is not on this machine, saying why.

    ``absent`` is what `workbench.surveys.survey` leaves in ``frame.attrs["absent"]``: ``{model: reason}``.
    """
    if not absent:
        return fig
    missing = [note_figure(f"{model} is not shown. {reason}") for model, reason in absent.items()]
    return plate([fig, *missing], columns=2)
