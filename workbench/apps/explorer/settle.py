"""What a page that opens later finds in a figure widget."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import plotly.graph_objects as go


def settle(figure: go.FigureWidget) -> None:
    """Make the widget's state what the widget shows; to be called after every change of it.

    plotly tells the pages that are open of each change, and leaves the state as it was when the widget was made. A
    page that opens later reads the state: voila's, which opens when the cell has run, and JupyterLab's after a
    reload, would show the figure before all changes. Nothing is sent: the open pages have it already.
    """
    held = vars(figure)["_trait_values"]  # past the traits, which would send it
    held["_widget_data"] = deepcopy(figure._data)
    held["_widget_layout"] = deepcopy(figure._layout_obj._props)
