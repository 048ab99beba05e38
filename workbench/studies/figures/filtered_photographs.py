"""Attention beside image filters: how much of it fitted kernels explain, and a photograph after each."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from annotated_types import Predicate

from workbench.core.options import Accepted, checked
from workbench.figures.composition import Axis, Panel, compose, with_sentences
from workbench.figures.estimates import NULL_COLUMNS, means_and_heads, titled
from workbench.figures.frames import rows_of, series_labels, short_name
from workbench.figures.grammar import Plot
from workbench.figures.maps import squared
from workbench.figures.marks import Band, Line, Null
from workbench.figures.overlays import data_uri
from workbench.figures.specification import SERIES
from workbench.figures.theme import PAGE, even_choice, theme_of

_FILTERS: dict[str, dict[str, str | None]] = {
    "non-local means (q, k)": {"candidate": "nlm", "convention": "heads"},
    "bilateral (positions, tokens)": {"candidate": "bilateral", "convention": "tokens"},
}
_COMPARED = "bilateral (positions, tokens)"  # has both bandwidths, and so gains most from permuted tokens


@checked
def filter_share_figure(frame: pd.DataFrame) -> go.Figure:
    """Share of attention that two fitted filters explain, by layer: a panel per model.

    Non-local means of queries and keys, which attention is but for the length of the keys, and the bilateral filter of
    positions and tokens, with its null distribution in grey, tokens permuted. Means over heads and inputs, with 95 %
    confidence intervals where the frame has single inputs.

    Args:
        frame: the analysis ``filter-kernels`` of one or several models, without ``per_head``; with ``single`` for
            intervals.

    Raises:
        InputError: the frame holds no such rows.
    """
    rows = rows_of(frame, "filter_share", needs=("layer", "candidate"))
    rows = means_and_heads(rows)
    quantities = titled(rows.assign(series=series_labels(rows)), _FILTERS, "quantity")
    ends = [name for name in NULL_COLUMNS if name in quantities]
    quantities[ends] = quantities[ends].where(quantities["quantity"] == _COMPARED)
    quantities["null"] = quantities["null"].mask(quantities["null"].notna(), "tokens permuted")
    title = "Share of attention<br>explained"
    plot = Plot(quantities, color="quantity", panel=SERIES, names={"filter_share": title})
    plot = plot.metric("filter_share").scale(y_range=(-0.05, 1), y_title=title, x_free=True)
    plot = plot.add(Null(), Band(over="input"), Line(words="mean over heads and inputs"))
    return plot.figure("page")


_SHOWN = (
    "noisy",
    "bilateral filter",
    "non-local means",
    "identity attention with positions",
    "uniform attention",
)
_COLUMNS, _LAYERS = 5, 4


Filtered: TypeAlias = Annotated[
    Any, Predicate(lambda value: hasattr(value, "rows")), Accepted("the result of filter_photograph")
]


@checked
def filtered_figure(filtered: Filtered) -> go.Figure:
    """Draw the clean, the noisy and the filtered photographs, each with its PSNR: two rows of five.

    The upper row has filters made for images, the lower row means of patches: uniform attention and four layers.

    Args:
        filtered: the result of `workbench.studies.evaluation.filtering.filter_photograph`.
    """
    psnr = {row["filter"]: row["psnr"] for row in filtered.rows}
    layers = [name for name in filtered.images if name.startswith("layer ")]
    layers = [layers[number] for number in even_choice(len(layers), _LAYERS)]
    names = [*(name for name in _SHOWN if name in filtered.images), *layers]
    panels = []
    for name, values in {"clean": filtered.clean, **{name: filtered.images[name] for name in names}}.items():
        tall, across = np.shape(values)[:2]
        words = f"{short_name(filtered.model)}, {name}" if name in layers else name.partition(" with ")[0]
        title = f"{words}<br>{psnr[name]:.1f} dB" if name in psnr else f"{words}<br>reference"
        picture = go.Image(source=data_uri(values.clip(0, 1)), name=name, hoverinfo="name")
        x, y = Axis("", -0.5, across - 0.5, bare=True), Axis("", tall - 0.5, -0.5, bare=True)
        panels.append(Panel([picture], x, y, title))
    window = " × ".join(map(str, filtered.window))
    note = f"Uniform attention and layers: means of patches in windows of {window} pixels, the input size of "
    note += f"{short_name(filtered.model)} (hence the tiles). Identity attention: means of pixels; query and key are a "
    note += "pixel's 3 × 3 neighbourhood, no learned weights."
    gap, edges = 6, 1.2 * theme_of("page").font
    side = (PAGE - edges + gap) / _COLUMNS - gap
    inner = side * tall / across
    fig = compose(panels, _COLUMNS, width="page", shared="xy", inner=inner, gap=gap)
    squared(fig).update_xaxes(visible=False).update_yaxes(visible=False)
    return with_sentences(fig, [note])
