"""Are the columns of V eigenvectors of the keys' Gram matrix? The published test."""

from __future__ import annotations

import math

import pandas as pd
import plotly.graph_objects as go

from workbench.core.errors import InputError
from workbench.figures.estimates import NULL_COLUMNS, at_level, values_once
from workbench.figures.frames import rows_of, series_labels
from workbench.figures.grammar import Plot
from workbench.figures.marks import NOISE, Band, Line, Null
from workbench.figures.specification import SERIES

CANDIDATES = {  # the order of their colours
    "values": "recovered from V",
    "perturbed": "perturbed eigenvectors",
    "true": "eigenvectors of K̃",
}
_SIZE = {"gamma_size": "mean |γ| of the eigenvectors"}  # of which the absolute differences are
_PANELS = {
    "gamma_abs": "Mean |γ<sub>i</sub> − γ<sub>j</sub>|",
    "gamma_rel": "Mean |γ<sub>i</sub> − γ<sub>j</sub>|<br>over the larger |γ|",
    "eigen_residual": "Eigen-residual",
}
_NULL = "gaussian"  # the one that `workbench.findings` compares with


def eigenvector_figure(frame: pd.DataFrame, convention: str = "as_published") -> go.Figure:
    """Draw differences of γ per axis, absolute and relative, and the eigen-residual: a line per candidate.

    Each model has a column. Lines are medians, between quartiles of inputs' means over layers and heads (see `Band`).
    Mean |γ| of the true axes stands among the absolute differences, which are to be read against it; those of the true
    axes are rounding alone, and the key says below which power of ten. The null of the residual replaces V.

    Args:
        frame: the result of the analysis eigenvector-test without per_head.
        convention: of the relative difference: "as_published"; "as_implemented" adds 1e-10 to its denominator.

    Raises:
        InputError: no values of gamma_abs, gamma_rel and eigen_residual by rank over all inputs and layers.
    """
    needed = rows_of(frame, [*_PANELS, *_SIZE], needs=("rank", "candidate"))
    chosen = _of_convention(needed[needed["rank"].notna()], convention)
    rows = at_level(chosen, "overall")
    if "input" in chosen and chosen["input"].notna().any():  # for the spread; the null stays that of the mean
        single = chosen[chosen["input"].notna() & chosen["layer"].isna()]
        rows = pd.concat([rows, values_once(single).assign(**dict.fromkeys(NULL_COLUMNS, pd.NA))])
    rows = rows[rows["statistic"].isna() | (rows["statistic"] == "mean")]
    rows = rows[rows["null"].isna() | (rows["null"] == _NULL)]
    differences = (rows["metric"] == "gamma_abs") & (rows["candidate"] == "true")
    most = max(rows.loc[differences, "value"].max(), 1e-300) if differences.any() else 1.0
    rows = rows.assign(series=series_labels(rows), quantity=rows["candidate"])[~differences]
    of_size = rows["metric"].isin(_SIZE)
    rows["quantity"] = rows["quantity"].mask(of_size, "gamma_size")
    rows["metric"] = rows["metric"].mask(of_size, "gamma_abs")
    rows = rows.assign(candidate=pd.NA, convention=pd.NA, statistic=pd.NA)
    true = f"{CANDIDATES['true']} (first row: below 10<sup>{math.ceil(math.log10(most))}</sup>)".replace(
        "-", "−"
    )
    names = CANDIDATES | {"true": true} | _SIZE | _PANELS
    plot = Plot(rows, x="rank", color="quantity", panel=SERIES, names=names).metric(*_PANELS)
    plot = plot.scale(
        x_log=2, x_title="Rank of the eigenvector", x_free=True, y_log={"gamma_abs": True},
        y_range=dict.fromkeys(("gamma_rel", "eigen_residual"), (-0.04, 1.04)),
    )  # fmt: skip
    line = Line("median", markers=False, words="median over inputs")
    band = Band(quantiles=(25, 75), over="input")
    return plot.add(Null(words=NOISE), band, line).figure("page", height=430)


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
