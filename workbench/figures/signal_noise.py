"""Signal-to-noise ratios around attention: gain and bound by layer, how often Prop. III.1 applies, and depth."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from workbench.figures.forest import Forest, Interval
from workbench.figures.frames import rows_of, series_labels
from workbench.figures.grammar import Plot
from workbench.figures.marks import Band, Line, Rule

# Quantity of the frame → what a legend calls it, in the order of the marks.
_GAINS: dict[tuple[str, str | None], str] = {
    ("snr_gain", "attention"): "stream + attention",
    ("snr_gain", "boosted"): "boosted residual",
    ("snr_gain", "block"): "whole block",
    ("snr_bound", None): "bound of Prop. III.1",
}
_SHARES: dict[tuple[str, str | None], str] = {
    ("snr_assumed", None): "min(α, β) > γ",
    ("snr_sufficient", None): "bound > 1",
    ("snr_raised", "attention"): "SNR rises: stream + attention",
    ("snr_raised", "boosted"): "SNR rises: boosted residual",
    ("snr_raised", "block"): "SNR rises: whole block",
}
_KEPT = "SNR, relative to the first block's input"
_STREAMS = {"resid_pre": 0.0, "resid_mid": 0.5, "resid_post": 1.0}


def snr_gain_figure(frame: pd.DataFrame) -> go.Figure:
    """SNR after over before, by layer, beside the bound of Prop. III.1: a panel per kind of noise.

    Lines are means over inputs at the middle severity, bands reach over all severities; the dotted line is an SNR that
    stays as it is.

    Args:
        frame: the analysis ``snr`` of one model by `workbench.analyze_grid`, over ``noise`` and
            ``severity``.

    Raises:
        InputError: the frame holds no such rows.
    """
    rows = rows_of(frame, ("snr_gain", "snr_bound"), needs=("layer", "noise", "severity"))
    rows = _named(rows[rows["input"].isna() & rows["layer"].notna()], _GAINS)
    levels = rows.groupby(["noise", "quantity", "layer"])["value"].agg(["min", "max"]).reset_index()
    middle = rows[rows["severity"] == _middle(rows["severity"])].merge(levels)
    plot = Plot(
        middle.assign(metric="snr_gain", candidate=pd.NA),
        color="quantity",
        panel="noise",
        names=_noises(rows),
    )
    plot = plot.metric("snr_gain").where(metric="snr_gain")
    severities = rows["severity"].nunique()
    return plot.add(
        Band(columns=("min", "max"), words=f"range over {severities} severities"),
        Line(words="mean over inputs, middle severity"),
        Rule(1, "SNR unchanged"),
    ).figure("page")


def snr_share_figure(frame: pd.DataFrame) -> go.Figure:
    """How often Prop. III.1 applies: share of blocks and inputs, a row per model, a panel per kind of noise.

    A block is one layer of one input; shares are means over all severities, with 95 % intervals over inputs.

    Args:
        frame: the analysis ``snr`` of several models by `workbench.analyze_grid`.

    Raises:
        InputError: the frame holds no such rows.
    """
    metrics = tuple(dict.fromkeys(metric for metric, _ in _SHARES))
    rows = rows_of(frame, metrics, needs=("noise",))
    rows = _named(rows[rows["layer"].isna()], _SHARES)
    rows = rows.assign(model=series_labels(rows), metric="snr_raised", candidate=pd.NA, severity=pd.NA)
    titles = {kind: f"Share of blocks,<br>{words}" for kind, words in _noises(rows).items()}
    forest = Forest(rows, x=titles, panel="noise", color="quantity")
    return forest.add(Interval(over="input")).figure()


def snr_depth_figure(frame: pd.DataFrame) -> go.Figure:
    """σ through the depth of several models, relative to what enters the first block: a panel per kind of noise.

    A point before attention, after it and after the block, of every layer; means over inputs at the middle severity.

    Args:
        frame: the analysis ``snr`` of several models by `workbench.analyze_grid`.

    Raises:
        InputError: the frame holds no such rows.
    """
    rows = rows_of(frame, "snr", needs=("layer", "noise", "severity", "candidate"))
    rows = rows[rows["input"].isna() & rows["layer"].notna()]
    rows = rows[rows["severity"] == _middle(rows["severity"])]
    # what leaves a block enters the next one
    last = rows["layer"].max()
    rows = rows[(rows["candidate"] != "resid_post") | (rows["layer"] == last)]
    rows = rows.assign(blocks=rows["layer"].astype(float) + rows["candidate"].map(_STREAMS).astype(float))
    rows = rows.assign(series=series_labels(rows))
    rows = pd.concat([own.sort_values("blocks") for _, own in rows.groupby("series", sort=False)])
    first = rows.groupby(["series", "noise"])["value"].transform("first")
    kept = rows.assign(value=rows["value"] / first, metric=_KEPT, candidate=pd.NA)
    plot = Plot(kept, x="blocks", color="series", panel="noise", names=_noises(rows)).metric(_KEPT)
    plot = plot.scale(x_title="Depth (blocks)").add(Rule(1, "SNR unchanged"))
    return plot.add(Line(words="mean over inputs, middle severity")).figure("page")


def _noises(rows: pd.DataFrame) -> dict[str, str]:
    """The kinds of noise in words."""
    return {str(kind): str(kind).replace("-", " ") for kind in dict.fromkeys(rows["noise"])}


def _named(rows: pd.DataFrame, names: dict[tuple[str, str | None], str]) -> pd.DataFrame:
    """The rows of the quantities that have a name, with it, in the order of the names."""
    keys = zip(
        rows["metric"], rows["candidate"].astype(object).where(rows["candidate"].notna(), None), strict=True
    )
    named = rows.assign(quantity=[names.get(key) for key in keys])
    named = named[named["quantity"].notna()]
    return named.sort_values(
        "quantity", key=lambda column: column.map(list(names.values()).index), kind="stable"
    )


def _middle(severities: pd.Series) -> int:
    """The middle one of the severities there are, the lower of two."""
    taken = sorted(severities.unique())
    return taken[(len(taken) - 1) // 2]
