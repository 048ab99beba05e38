"""A live figure that changes in place: what stays the same is not sent to the browser again."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import ipywidgets as widgets
import plotly.graph_objects as go

from workbench.explorer.settle import settle
from workbench.figures import apply_theme
from workbench.figures.theme import Width

SLIDE: dict[Width, int] = {"column": 560, "page": 1200}  # pixels that a figure of a talk takes on the page
# What plotly draws differently once a figure has had it: a figure that gains or loses one of these is made anew.
_STRUCTURE = ("images", "shapes", "annotations")


class Canvas:
    """Shows one figure at a time, as wide as in print, and tells which token or cell was clicked.

    A figure of the same build (kinds of traces, axes, numbers of notes) changes in place, which takes milliseconds;
    another build takes its place as a new widget, and the old one is closed.
    """

    def __init__(self, width: Width, theme: str | None = None, height: float = 1.0) -> None:
        """``height`` is the share of a figure's own height that it gets, for one shown smaller than it was drawn."""
        self.width: Width = width
        self.theme, self.height = theme, height
        self.box = widgets.Box(layout=widgets.Layout(overflow="auto hidden", min_width="0"))
        self.widget: Any = None  # a FigureWidget, which plotly has only where anywidget is
        self._build: Any = None
        self._clicked: Callable[[Any], None] = lambda place: None

    def on_click(self, callback: Callable[[Any], None]) -> None:
        """Call ``callback(customdata)`` for every cell or point clicked that has some."""
        self._clicked = callback

    def show(self, figure: go.Figure) -> None:
        """Draw a figure in place of the one before."""
        themed = self._fitted(figure)
        build = _build(themed)
        if self.widget is not None and build == self._build:
            self._change(themed)
        else:
            self._replace(themed)
        self._build = build

    def clear(self) -> None:
        """Show nothing."""
        self._swap(None)
        self._build = None

    def _fitted(self, figure: go.Figure) -> go.Figure:
        """The figure as it would be saved; a slide shrunk to what a page has room for."""
        tall = figure.layout.height
        themed = apply_theme(figure, self.theme, self.width, tall and round(tall * self.height))
        if self.theme == "talk":
            room = SLIDE[self.width]
            themed.update_layout(width=room, height=round(room * 0.58))
        return themed

    def _replace(self, figure: go.Figure) -> None:
        live = go.FigureWidget(figure)
        # The bar of buttons would lie over the first row and take its clicks; dragging zooms, a double click goes back.
        live._config = {**live._config, "displayModeBar": False, "responsive": False}
        for number, trace in enumerate(live.data):
            if trace.customdata is not None and hasattr(trace, "on_click"):
                trace.on_click(lambda trace, points, state, number=number: self._point(number, points))
        self._swap(live)

    def _swap(self, live: Any) -> None:
        before, self.widget = self.widget, live
        self.box.children = () if live is None else (live,)
        if before is not None:
            before.close()

    def _change(self, figure: go.Figure) -> None:
        live = self.widget
        assert live is not None  # `show` asks only then
        with live.batch_update():
            for old, new in zip(live.data, figure.data, strict=True):
                held, wanted = old._props or {}, new._props or {}
                for name, value in wanted.items():
                    if name != "uid" and not _same(held.get(name), value):
                        old[name] = value
            held, wanted = live.layout._props or {}, figure.layout._props or {}
            for name, value in wanted.items():
                if name != "template" and not _same(held.get(name), value):
                    live.layout[name] = value
        settle(live)

    def _point(self, number: int, points: Any) -> None:
        if self.widget is None or not points.point_inds:
            return
        found: Any = self.widget.data[number].customdata
        places = points.point_inds[0]
        for place in places if isinstance(places, (list, tuple)) else [places]:
            found = found[place]
        self._clicked(found.tolist() if hasattr(found, "tolist") else found)


def _build(figure: go.Figure) -> Any:
    layout = figure.layout._props or {}
    return (
        [(trace.type, trace.xaxis, trace.yaxis, sorted(trace._props)) for trace in figure.data],
        sorted(layout),
        [len(layout.get(name) or ()) for name in _STRUCTURE],
        layout.get("width"),
    )


def _same(held: Any, wanted: Any) -> bool:
    """Whether two values of a property are equal; arrays are compared whole."""
    import numpy as np

    if isinstance(held, np.ndarray) or isinstance(wanted, np.ndarray):
        return (
            isinstance(held, np.ndarray) and isinstance(wanted, np.ndarray)
            and held.shape == wanted.shape and held.dtype == wanted.dtype and bool((held == wanted).all())
        )  # fmt: skip
    try:
        return bool(held == wanted)
    except ValueError:  # arrays further inside
        return json.dumps(held, default=repr) == json.dumps(wanted, default=repr)
