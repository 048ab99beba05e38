"""Are the columns of V eigenvectors of the keys' Gram matrix? The published test, and exact ones."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from workbench.core.arguments import checked
from workbench.core.errors import InputError
from workbench.figures.frames import rows_of, series_labels
from workbench.figures.grammar import Plot
from workbench.figures.marks import NOISE, Interval, Null

CANDIDATES = {  # the order of their colours
    "values": "recovered from V",
    "perturbed": "perturbed eigenvectors",
    "true": "eigenvectors of K̃",
}
_PANELS = {
    "gamma_rel": "Mean |γ<sub>i</sub> − γ<sub>j</sub>|<br>over the larger |γ|",
    "eigen_residual": "Eigen-residual",
    "inconsistency": "Inconsistency<br>of V",
    "span_share": "Share in the span of<br>the top eigenvectors",
}
_NULL = "gaussian"  # the one that `workbench.findings` compares with
_ENDS = ["null_mean", "null_low", "null_high"]


@checked
def eigenvector_figure(frame: pd.DataFrame, convention: str = "as_published") -> go.Figure:
    """Draw a row per model and a panel per test, a marker per candidate: mean over inputs with its 95 % CI.

    Relative differences of γ and eigen-residuals are means over axes. The null replaces V by Gaussian noise; of the
    residual its ends are means over axes too, which is wider than the null of the mean.

    Args:
        frame: the result of the analysis eigenvector-test without per_head.
        convention: of the relative difference: "as_published"; "as_implemented" adds 1e-10 to its denominator.

    Raises:
        InputError: none of these tests over all layers and heads, or not in this convention.
    """
    chosen = _of_convention(rows_of(frame, [*_PANELS], needs=("candidate",)), convention)
    rows = chosen[chosen["layer"].isna() & chosen["head"].isna() & chosen["value"].notna()]
    rows = rows[rows["statistic"].isna() | (rows["statistic"] == "mean")]
    rows = rows[rows["null"].isna() | (rows["null"] == _NULL)]
    if rows.empty:
        raise InputError(
            "the frame holds no row over all layers and heads; run the analysis without per_head"
        )
    keys = ["model", "metric", "candidate", "input", "null"]
    groups = rows.assign(model=series_labels(rows)).groupby(keys, dropna=False, sort=False)
    rows = groups[["value", *_ENDS]].mean().reset_index()
    rows.attrs = frame.attrs
    titles = {name: title for name, title in _PANELS.items() if (rows["metric"] == name).any()}
    ends = dict.fromkeys(titles, (-0.02, 1.02))
    most = rows.loc[rows["metric"] == "inconsistency", ["value", "null_high"]].max().max()
    ends["inconsistency"] = (-0.02 * most, 1.1 * most)
    plot = Plot(rows, titles, "candidate", y="model", names=CANDIDATES)
    ranges = {name: ends[name] for name in titles}
    return plot.scale(x_range=ranges).add(Null(words=NOISE), Interval()).figure()


def _of_convention(rows: pd.DataFrame, convention: str) -> pd.DataFrame:
    """Rows of one convention, and those that have none."""
    if "convention" not in rows or rows["convention"].isna().all():
        return rows
    chosen = rows[rows["convention"].isna() | (rows["convention"] == convention)]
    if not (chosen["convention"] == convention).any():
        raise InputError(
            f"no value has convention {convention!r}; there are {sorted(rows['convention'].dropna().unique())}"
        )
    return chosen
