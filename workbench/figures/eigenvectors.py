"""Are the columns of V eigenvectors of the keys' Gram matrix? The residual, beside true and perturbed ones."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from workbench.core.arguments import checked
from workbench.core.errors import InputError
from workbench.figures.frames import rows_of, series_labels
from workbench.figures.grammar import Plot
from workbench.figures.marks import NOISE, Interval, Null

CANDIDATES = {  # in their order
    "values": "recovered from V",
    "perturbed": "perturbed eigenvectors",
    "true": "eigenvectors of K̃",
}
_NULL = "gaussian"  # the one that `workbench.findings` compares with
_ENDS = ["null_mean", "null_low", "null_high"]


@checked
def eigenvector_figure(frame: pd.DataFrame) -> go.Figure:
    """Draw the eigen-residual, 0 for an eigenvector: a row per candidate below each model, mean with its 95 % CI.

    Means over axes and inputs. The null replaces V by Gaussian noise; its ends are means over axes too, which is wider
    than the null of the mean.

    Args:
        frame: the result of the analysis eigenvector-test without per_head.

    Raises:
        InputError: no eigen-residual over all layers and heads.
    """
    rows = rows_of(frame, "eigen_residual", needs=("candidate",))
    rows = rows[rows["layer"].isna() & rows["head"].isna() & rows["value"].notna()]
    rows = rows[rows["null"].isna() | (rows["null"] == _NULL)]
    if rows.empty:
        raise InputError(
            "the frame holds no row over all layers and heads; run the analysis without per_head"
        )
    keys = ["model", "metric", "candidate", "input", "null"]
    groups = rows.assign(model=series_labels(rows)).groupby(keys, dropna=False, sort=False)
    rows = groups[["value", *_ENDS]].mean().reset_index()
    rows = rows.sort_values("candidate", key=lambda names: names.map([*CANDIDATES].index), kind="stable")
    rows.attrs = frame.attrs
    titles = {"eigen_residual": "Eigen-residual (eigenvectors: 0)"}
    plot = Plot(rows, titles, y="candidate", group="model", names=CANDIDATES)
    return plot.scale(x_range=(-0.02, 1.02)).add(Null(words=NOISE), Interval()).figure("column")
