"""A live figure that changes in place: what stays the same is not sent to the browser again."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import ipywidgets as widgets
import plotly.graph_objects as go

from workbench.figures import apply_theme
from workbench.figures.theme import THEMES

SLIDE: dict[str, int] = {"column": 560, "page": 1200}  # pixels that a figure of a talk takes on the page
TALL = 0.58  # of a slide's width
KEPT = 6  # figure widgets that stay, one for each build of figure
SHOWN = "workbench-shown"  # the class of the one that is shown
# What plotly draws differently once a figure has had it: a figure that gains or loses one of these is made anew.
_STRUCTURE = ("images", "shapes", "annotations")


@dataclass
class _Live:
    """A figure widget, and what the page knows of it."""

    widget: Any
    slot: widgets.Box
    """Where it stands on the page."""
    heard: int = -1
    """The latest edit of its traces that the page has confirmed; none before it has drawn the figure."""
    listens: bool = False
    """Whether the page has followed an edit since it drew the figure."""
    missed: bool = False
    """Whether it was changed before the page had drawn it."""


class _Figure(go.FigureWidget):  # ty: ignore[unsupported-base] - plotly's other one is for where anywidget is not
    """A figure widget that the page learns of whole, in one message.

    plotly opens the connection first and sends traces and layout after it. A page drops what comes for a widget whose
    script has not run within two seconds (a limit of anywidget's; plotly's script has 5 MB), so that on a busy machine
    the figure would stay blank for good.
    """

    _whole = False

    def __init__(self, figure: go.Figure) -> None:
        super().__init__(figure)
        # The bar of buttons would lie over the first row and take its clicks; dragging zooms, a double click goes back.
        self._config = {**self._config, "displayModeBar": False, "responsive": False}
        self._whole = True
        self.open()

    def open(self) -> None:
        if self._whole:
            super().open()


class Canvas:
    """Shows one figure at a time, as wide as in print, and tells which token or cell was clicked.

    A figure of the same build (kinds of traces, axes, numbers of notes) changes in place, which takes milliseconds.
    Another build has a widget of its own, and the last few are kept: each brings plotly's whole script to the page,
    which takes a second the first time.
    """

    def __init__(self, width: str, theme: str | None = None, height: float = 1.0) -> None:
        """``height`` is the share of a figure's own height that it gets, for one shown smaller than it was drawn."""
        self.width: str = width
        self.theme, self.height = theme, height
        self.widget: Any = None  # a FigureWidget, which plotly has only where anywidget is
        self._kept: OrderedDict[Any, _Live] = OrderedDict()
        # A view that leaves the page goes on hearing its figure, and fails: one that is not shown is hidden.
        self._slots = [widgets.Box(layout=widgets.Layout(display="none")) for _ in range(KEPT)]
        self.box = widgets.Box(self._slots, layout=widgets.Layout(overflow="auto hidden", min_width="0"))
        self._clicked: Callable[[Any], None] = lambda place: None

    @property
    def wide(self) -> int:
        """Pixels that its figures take across."""
        return SLIDE[self.width] if self.theme == "talk" else THEMES["paper"].widths[self.width]

    def on_click(self, callback: Callable[[Any], None]) -> None:
        """Call ``callback(customdata)`` for every cell or point clicked that has some."""
        self._clicked = callback

    def show(self, figure: go.Figure) -> None:
        """Draw a figure in place of the one before."""
        themed = self._fitted(figure)
        build = _build(themed)
        if build in self._kept:
            self._kept.move_to_end(build)
            live = self._kept[build]
            if live.heard >= 0 and not live.listens:  # the page has drawn it, and may be deaf to changes
                self._renew(build, live, themed)
            else:
                self._change(live, themed)
        else:
            slot = self._free_slot()
            self._kept[build] = self._make(themed, slot)
            slot.children = (self._kept[build].widget,)
        self._put(self._kept[build])

    def clear(self) -> None:
        """Show nothing."""
        self._put(None)

    def close(self) -> None:
        """Show nothing any more, and give up what was kept."""
        self.clear()
        while self._kept:
            self._forget()

    def _free_slot(self) -> widgets.Box:
        """An empty slot: of a widget not shown for longest where all are taken."""
        if len(self._kept) == KEPT:
            return self._forget()
        taken = [live.slot for live in self._kept.values()]
        return next(slot for slot in self._slots if slot not in taken)

    def _forget(self) -> widgets.Box:
        """Close the widget that was not shown for longest; its slot."""
        _, live = self._kept.popitem(last=False)
        live.slot.children = ()
        live.widget.close()
        return live.slot

    def _put(self, live: _Live | None) -> None:
        self.widget = None if live is None else live.widget
        for slot in self._slots:
            here = live is not None and slot is live.slot
            slot.layout.display = "flex" if here else "none"
            (slot.add_class if here else slot.remove_class)(SHOWN)

    def _fitted(self, figure: go.Figure) -> go.Figure:
        """The figure as it would be saved; a slide shrunk to what a page has room for."""
        tall = figure.layout.height
        themed = apply_theme(figure, self.theme, self.width, tall and round(tall * self.height))
        if self.theme == "talk":
            room = self.wide
            size = {"width": room, "height": round(room * TALL)}
            if tall and any(
                axis.scaleanchor for axis in figure.select_yaxes()
            ):  # square cells keep their shape
                grown = tall * self.height * room / THEMES["paper"].widths[self.width]
                size["height"] = min(size["height"], round(grown))
            themed.update_layout(size)
        return themed

    def _make(self, figure: go.Figure, slot: widgets.Box) -> _Live:
        widget: Any = _Figure(figure)
        for number, trace in enumerate(widget.data):
            if trace.customdata is not None and hasattr(trace, "on_click"):
                trace.on_click(lambda trace, points, state, number=number: self._point(number, points))
        live = _Live(widget, slot)
        # What plotly filled in by itself, which the page tells once it has drawn the figure, and after every edit.
        widget.observe(
            lambda change: change["new"] and self._heard(live, change["new"]["trace_edit_id"]),
            names="_js2py_traceDeltas",
        )
        return live

    def _heard(self, live: _Live, edit: int) -> None:
        """The page has followed an edit, or has drawn a figure: then it tells of none that is new.

        What was changed before a figure was drawn never reached it, since its script was not there yet: it is made
        anew. Otherwise the page is asked for an edit that changes nothing. One that took too long to start drops all
        messages for the figure, and never answers.
        """
        drawn = live.heard < 0 or edit <= live.heard
        live.heard, live.listens = max(edit, live.heard), not drawn
        if live.missed:
            for build, kept in self._kept.items():
                if kept is live:
                    shown = self.widget is live.widget
                    self._renew(build, live, go.Figure(live.widget))
                    if shown:
                        self._put(self._kept[build])
                    return
        elif drawn:
            live.widget._send_restyle_msg({})

    def _renew(self, build: Any, live: _Live, figure: go.Figure) -> None:
        """Put a new widget in the place of one that the page does not follow."""
        self._kept[build] = self._make(figure, live.slot)
        live.slot.children = (self._kept[build].widget,)
        live.widget.close()

    def _change(self, live: _Live, figure: go.Figure) -> None:
        widget = live.widget
        live.missed = live.heard < 0
        with widget.batch_update():
            for old, new in zip(widget.data, figure.data, strict=True):
                shown, wanted = old._props or {}, new._props or {}
                for name, value in wanted.items():
                    if name != "uid" and not _same(shown.get(name), value):
                        old[name] = value
            shown, wanted = widget.layout._props or {}, figure.layout._props or {}
            for name, value in wanted.items():
                if name != "template" and not _same(shown.get(name), value):
                    widget.layout[name] = value
        sync_state(widget)

    def _point(self, number: int, points: Any) -> None:
        if self.widget is None or not points.point_inds:
            return
        found: Any = self.widget.data[number].customdata
        places = points.point_inds[0]
        for place in places if isinstance(places, (list, tuple)) else [places]:
            found = found[place]
        self._clicked(found.tolist() if hasattr(found, "tolist") else found)


def _build(figure: go.Figure) -> Any:
    """What two figures share that can change into one another in place."""
    layout = figure.layout._props or {}
    return (
        tuple((trace.type, trace.xaxis, trace.yaxis, *sorted(trace._props)) for trace in figure.data),
        tuple(sorted(layout)),
        tuple(len(layout.get(name) or ()) for name in _STRUCTURE),
        layout.get("width"),
    )


def _same(shown: Any, wanted: Any) -> bool:
    """Whether two values of a property are equal; arrays are compared whole."""
    import numpy as np

    if isinstance(shown, np.ndarray) or isinstance(wanted, np.ndarray):
        return (
            isinstance(shown, np.ndarray) and isinstance(wanted, np.ndarray)
            and shown.shape == wanted.shape and shown.dtype == wanted.dtype and bool((shown == wanted).all())
        )  # fmt: skip
    try:
        return bool(shown == wanted)
    except ValueError:  # arrays further inside
        return json.dumps(shown, default=repr) == json.dumps(wanted, default=repr)


def sync_state(figure: go.FigureWidget) -> None:
    """Make the widget's state what the widget shows; to be called after every change of it.

    plotly tells the pages that are open of each change, and leaves the state as it was when the widget was made. A
    page that opens later reads the state: voila's, which opens when the cell has run, and JupyterLab's after a
    reload, would show the figure before all changes. Nothing is sent: the open pages have it already.
    """
    values = vars(figure)["_trait_values"]  # past the traits, which would send it
    values["_widget_data"] = deepcopy(figure._data)
    values["_widget_layout"] = deepcopy(figure._layout_obj._props)
