"""Are the columns of V eigenvectors of the keys' Gram matrix? The published test, its floor, and the exact test."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from workbench.core.errors import InputError
from workbench.figures.frames import rows_of, series_labels
from workbench.figures.grammar import SERIES, Plot
from workbench.figures.levels import NULL_COLUMNS, at_level, values_once
from workbench.figures.marks import Band, Dots, Line, Null

CANDIDATES = {"true": "eigenvectors of K̃", "perturbed": "perturbed eigenvectors", "values": "from V"}
# Beside the absolute differences stand the size of what they are differences of, and what rounding makes of them.
_REFERENCES = {"gamma_size": "mean |γ|", "gamma_floor": "round-off"}
_PANELS = {
    "gamma_abs": "|γ<sub>i</sub> − γ<sub>j</sub>|",
    "gamma_rel": "|γ<sub>i</sub> − γ<sub>j</sub>| / max(|γ<sub>i</sub>|, |γ<sub>j</sub>|)",
    "eigen_residual": "Eigen-residual",
}


def eigenvector_figure(frame: pd.DataFrame, convention: str = "as_published") -> go.Figure:
    """Differences of γ per axis, absolute and relative, and the eigen-residual: a line per candidate.

    Each model has a column. Lines are means over inputs, layers and heads; a band reaches one standard deviation over
    pairs of tokens above its line. Among the absolute differences stand mean |γ| of the true axes, which they are to be
    read against, and what rounding alone gives. The null distribution of the residual replaces V.

    Args:
        frame: the result of the analysis eigenvector-test without per_head.
        convention: of the relative difference: "as_published"; "as_implemented" adds 1e-10 to its denominator.

    Raises:
        InputError: no values of gamma_abs, gamma_rel and eigen_residual by rank over all inputs and layers.
    """
    needed = rows_of(frame, [*_PANELS, *_REFERENCES], needs=("rank", "candidate"))
    rows = at_level(_of_convention(needed[needed["rank"].notna()], convention), "overall")
    rows = rows.assign(
        series=series_labels(rows), quantity=rows["candidate"].where(rows["metric"].isin(_PANELS))
    )
    rows["quantity"] = rows["quantity"].fillna(rows["metric"])
    rows["metric"] = rows["metric"].where(rows["metric"].isin(_PANELS), "gamma_abs")
    rows.loc[(rows["metric"] != "eigen_residual") | (rows["candidate"] != "values"), NULL_COLUMNS] = pd.NA
    key = ["series", "metric", "quantity", "rank"]
    spread = rows[rows["statistic"] == "std"].groupby(key)["value"].first().rename("above")
    rows = rows[rows["statistic"].isna() | (rows["statistic"] == "mean")].join(spread, on=key)
    rows = rows.assign(
        above=rows["value"] + rows["above"], candidate=pd.NA, convention=pd.NA, statistic=pd.NA
    )
    plot = Plot(rows, x="rank", color="quantity", panel=SERIES, names=CANDIDATES | _REFERENCES | _PANELS)
    log, ends = dict.fromkeys(("gamma_abs", "gamma_rel"), True), {"eigen_residual": (-0.04, 1.04)}
    plot = plot.metric(*_PANELS).scale(x_free=True, x_title="Axis", y_log=log, y_range=ends)
    return plot.add(
        Null(), Band(columns=("value", "above"), words="+ 1 SD over pairs of tokens"),
        Line(markers=False, words="mean over inputs, layers and heads"),
    ).figure("page", height=500)  # fmt: skip


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


def eigenvector_layers_figure(
    frame: pd.DataFrame, metric: str = "gamma_abs", convention: str = "as_published"
) -> go.Figure:
    """Differences of γ by layer (teo2024 Figs 2 right, 5): a row per candidate, a column per model.

    A dot for each axis, mean over pairs of tokens, inputs and heads; the line is their median. Every row has a scale
    of its own: true axes differ by rounding alone, the others by ten powers of ten more.

    Args:
        frame: the result of the analysis eigenvector-test without per_head.
        metric: gamma_abs, gamma_rel or eigen_residual.
        convention: as for `eigenvector_figure`.

    Raises:
        InputError: no such values by layer and rank, or another metric.
    """
    if metric not in _PANELS:
        raise InputError(f"metric is {metric!r}; choose one of {', '.join(_PANELS)}")
    rows = _of_convention(rows_of(frame, metric, needs=("rank", "layer", "candidate")), convention)
    rows = at_level(rows, "layer")
    rows = values_once(rows[rows["statistic"].isna() | (rows["statistic"] == "mean")])
    shown = rows[rows["candidate"].isin([*CANDIDATES])].drop(
        columns=[*NULL_COLUMNS, "convention", "statistic"]
    )
    titles = {name: f"{_PANELS[metric]}<br>{words}" for name, words in CANDIDATES.items()}
    shown = shown.assign(
        metric=shown["candidate"], candidate=pd.NA, axis=pd.NA, eigenvector=shown["rank"], rank=pd.NA
    )
    plot = Plot(shown, panel=SERIES, names=titles).metric(
        *[name for name in titles if (shown["metric"] == name).any()]
    )
    line = Line("median", words="median over eigenvectors, each a mean over pairs, inputs and heads")
    plot = plot.scale(x_free=True, y_log=metric != "eigen_residual")
    return plot.add(Dots(by="eigenvector"), line).figure("page", height=480)
