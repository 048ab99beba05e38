"""A panel in words, for what could not be drawn."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

import plotly.graph_objects as go

from workbench.figures.plates import plate

_LINE = 44  # characters that fit the width of a column in 8 pt


def note_figure(text: str, height: int = 160) -> go.Figure:
    """A figure that holds a sentence and nothing else, to stand where a panel is missing."""
    # An axis pair with one invisible point gives the panel its place in a plate.
    fig = go.Figure(go.Scatter(x=[0], y=[0], mode="markers", opacity=0, showlegend=False, hoverinfo="skip"))
    fig.add_annotation(
        text="<br>".join(textwrap.wrap(text, _LINE)), x=0.5, y=0.5, xref="x domain", yref="y domain",
        showarrow=False, align="left",
    )  # fmt: skip
    fig.update_xaxes(visible=False)
    fig.update_yaxes(visible=False)
    return fig.update_layout(height=height, margin={"l": 8, "r": 8, "t": 8, "b": 8})


def with_absent(fig: go.Figure, absent: Mapping[str, str]) -> go.Figure:
    """The figure itself, or beside it a panel for every model that is not on this machine, saying why.

    ``absent`` is what `workbench.surveys.survey` leaves in ``frame.attrs["absent"]``: ``{model: reason}``. The first
    line of a reason is shown; the rest concerns the machine rather than the figure.
    """
    if not absent:
        return fig
    missing = [
        note_figure(f"{model} is not shown: {reason.splitlines()[0]}") for model, reason in absent.items()
    ]
    return plate([fig, *missing], columns=2)
