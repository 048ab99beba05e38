"""Frame in, figure out: curves with their spread and null, forests of estimates, and grids of maps.

A `Plot` maps columns of a result frame to x, colour and panels; marks added to it draw their values, from estimators
down to published numbers. The figure's key lists the contents of each mark by construction: the
estimator, its unit of sampling and their number, the kind of null. Label, unit, scale and range come from the metric.

    Plot(frame, color="model").metric("attention_entropy").add(Line("mean"), Band(ci=95, over="input"), Null()).figure()

Every `Plot` is a value: adding to one gives another (as in seaborn.objects, Waskom 2021). A null distribution is always
grey, published numbers are always red crosses (or a red line across), and everything else an estimate. A
marker is open where a difference is not significant, and for nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd
import plotly.graph_objects as go

from workbench.figures.curves import Curves
from workbench.figures.figure_arguments import check_arguments, check_frame
from workbench.figures.forest import Forest
from workbench.figures.marks import Band, Dots, Line, Null
from workbench.figures.specification import Specification
from workbench.figures.theme import theme_of
from workbench.figures.words import COLUMNS, NO_DATA


@dataclass(frozen=True)
class Plot(Specification):
    """Metrics against a column, or by category, with columns for colours and panels.

    With ``y`` the plot lies on its side (a forest): a row for each value of that column, estimates along x. Variants of
    attention then have their own colours and markers in every row, unless colours mean something else, and where a row
    has no value in a panel, the words of the column ``finding`` stand instead.

    Args:
        frame: a result frame, of `workbench.analyze` and its like.
        x: the column along the axis; "depth" is the layer as a share of the model's layers. With ``y`` metrics, or
            values of the column ``panel``, a panel each; as a mapping with the panel's title.
        color: the column whose values have a colour each; by default "series": the models, with their checkpoint where
            a model has several, and if asked for by this name with what was standardised. With ``y`` none by default.
        panel: the column whose values have a panel each.
        dash: the column whose values have a dash and a marker each.
        names: what the key and the titles say of a value or a metric, and in this order: {"resid_post": "after the
            block"}.
        y: the column whose values are rows.
        group: the column whose values are headings over the rows.
    """

    def figure(
        self,
        width: str | float | None = None,
        height: float | None = None,
        columns: int | None = None,
        labels: Literal["auto", "ends", "key", "bar", "none"] = "auto",
        empty: str = NO_DATA,
    ) -> go.Figure:
        """Draw the figure, at a printed width of `workbench.figures.theme.WIDTHS`, or "slides".

        Args:
            width: by default "column", with rows "page".
            height: in pixels of 1/96 in; by default panels have a usual shape, and rows the height of their scale.
            columns: panels in a row.
            labels: whether colours are named at the ends of their lines, in the key, or (of layers, ranks and the like)
                by a bar; "auto" takes a bar for many of these, the ends of one panel's lines where there is room.
                "none" where the titles of the panels name them.
            empty: the words of a panel without data.

        Raises:
            InputError: no such panels, or several ways of measuring a metric that the figure does not tell apart.
        """
        check_arguments(height=height, columns=columns, labels=labels, empty=empty)
        width = width or ("column" if self.y is None else "page")
        theme_of(width)
        if self.y is not None:
            return Forest(self).figure(width, columns)
        return Curves(self).figure(width, height, columns, labels, empty)

    def _repr_mimebundle_(self, *args: Any, **kwargs: Any) -> Any:
        return self.figure()._repr_mimebundle_(*args, **kwargs)


def plot(
    frame: pd.DataFrame, *metrics: str, x: str | None = None, color: str | None = None, panel: str | None = None,
    width: str | float = "column", **kept: Any,
) -> go.Figure:  # fmt: skip
    """Metrics of a frame by layer (or rank, epoch …): mean, its interval over inputs, heads as dots, null distribution.

    What the frame does not hold is not drawn. Columns given by name keep the rows with that value. For anything else
    compose a `Plot`.

    Raises:
        InputError: no such rows, or several ways of measuring a metric that the figure does not tell apart.
    """
    check_frame(frame, "metric", "value")
    names = metrics or tuple(dict.fromkeys(frame["metric"].dropna()))
    x = x or next((name for name in COLUMNS if name in frame and frame[name].nunique() > 1), "layer")
    drawn = Plot(frame, x, color, panel).metric(*names).where(**kept)
    heads = [] if "head" in (x, color, panel) or color == "layer" else [Dots()]
    return drawn.add(Null(), Band(), Line(), *heads).figure(width)
