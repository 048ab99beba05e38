"""What becomes of the tokens through depth, with the layer one looks at."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from workbench.core.errors import InputError
from workbench.figures.grammar import Plot
from workbench.figures.marks import At, Band, Line, Null

METRICS = ("token_cosine", "coding_rate")


def trajectory_figure(frame: pd.DataFrame, layer: int) -> go.Figure:
    """Mean cosine of tokens and their coding rate against the layer, side by side; a line marks one layer.

    A line per model, the mean over inputs between their quartiles (see `Band`), the null distribution in grey
    where the frame has it. A metric that the frame lacks has no panel.

    Args:
        frame: the results of ``token-similarity`` and ``coding-rate``, joined.
        layer: number of the layer that is marked.

    Raises:
        InputError: the frame holds neither metric by layer, or no such layer.
    """
    present = [metric for metric in METRICS if (frame["metric"] == metric).any()]
    if not present:
        raise InputError(
            f"the frame holds neither {' nor '.join(METRICS)}; give the results of token-similarity and coding-rate"
        )
    last = int(frame.loc[frame["metric"].isin(present), "layer"].max())
    if not 0 <= layer <= last:
        raise InputError(f"no layer {layer}; there are 0 to {last}")
    plot = Plot(frame).metric(*present).where(axis=None, standardize=None).scale(y_zero=True)
    return plot.add(Null(), Band(quantiles=(25, 75)), Line(), At(layer, f"layer {layer}")).figure("page")
