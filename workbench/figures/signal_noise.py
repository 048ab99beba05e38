"""Signal-to-noise ratios around attention: gain and bound by layer, how often the SNR rises, and depth."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from workbench.figures.estimates import input_count, titled
from workbench.figures.frames import rows_of, series_labels
from workbench.figures.grammar import Plot
from workbench.figures.marks import Band, Interval, Line, Rule
from workbench.figures.words import noise_words, variant_words

_BOUND = "bound of Prop. III.1"
# What the key calls a quantity of the frame, in the order of the marks.
_GAINS: dict[str, dict[str, str | None]] = {
    "stream + attention": {"metric": "snr_gain", "candidate": "attention"},
    "boosted residual": {"metric": "snr_gain", "candidate": "boosted"},
    "whole block": {"metric": "snr_gain", "candidate": "block"},
    _BOUND: {"metric": "snr_bound", "candidate": None},
}
_SHARES = {
    f"SNR rises: {words}": {"metric": "snr_raised", "candidate": where["candidate"]}
    for words, where in _GAINS.items() if words != _BOUND
}  # fmt: skip
_KEPT = "SNR, relative to the first block's input"
_STREAMS = {"resid_pre": 0.0, "resid_mid": 0.5, "resid_post": 1.0}


def snr_gain_figure(frame: pd.DataFrame) -> go.Figure:
    """SNR after over before, by layer, beside the bound of Prop. III.1: a panel per kind of noise.

    Lines are means over inputs at the middle severity, with their 95 % confidence interval where the frame has single
    inputs; the key says where the assumption of the bound holds in no block.

    Args:
        frame: the analysis ``snr`` of one model by `workbench.analyze_grid`, over ``noise`` and
            ``severity``.

    Raises:
        InputError: the frame holds no such rows.
    """
    rows = rows_of(frame, ("snr_gain", "snr_bound"), needs=("layer", "noise", "severity"))
    severity = _middle(rows["severity"])
    rows = rows[rows["layer"].notna() & (rows["severity"] == severity)]
    rows = titled(rows[rows["input"].notna() | rows["input"].isna().all()], _GAINS, "quantity")
    assumed = frame.loc[frame["metric"] == "snr_assumed", "value"]
    nowhere = {_BOUND: f"{_BOUND} (premise met nowhere)"} if assumed.max() == 0 else {}
    names = _noises(rows) | {name: name for name in _GAINS} | nowhere
    rows = rows.assign(metric="snr_gain", candidate=pd.NA)
    plot = Plot(rows, color="quantity", panel="noise", names=names).metric("snr_gain")
    plot = plot.scale(y_title="SNR ratio,<br>after / before")
    many = f"{n} inputs" if (n := input_count(frame)) else "inputs"
    line = Line(words=f"mean over {many}, severity {severity:g}")
    return plot.add(Band(), line, Rule(1, "SNR unchanged")).figure("page")


def snr_share_figure(frame: pd.DataFrame) -> go.Figure:
    """How often the SNR rises: share of blocks and inputs, a row per model, a panel per kind of noise.

    A block is one layer of one input; shares are means over all severities, with 95 % intervals over inputs.

    Args:
        frame: the analysis ``snr`` of several models by `workbench.analyze_grid`.

    Raises:
        InputError: the frame holds no such rows.
    """
    rows = rows_of(frame, "snr_raised", needs=("noise",))
    rows = titled(rows[rows["layer"].isna()], _SHARES, "quantity")
    labels = series_labels(rows)
    rows = rows.assign(model=labels, metric="snr_raised")
    keys = ["model", "metric", "noise", "quantity", "input"]  # severities may have the same share
    rows = rows.groupby(keys, dropna=False, sort=False)["value"].mean().reset_index()
    titles = {kind: f"Share of blocks,<br>{words}" for kind, words in _noises(rows).items()}
    names = {name: variant_words(name) for name in labels} | {name: name for name in _SHARES}
    forest = Plot(rows, y="model", x=titles, panel="noise", color="quantity", names=names).scale(x_same=True)
    return forest.add(Interval(over="input")).figure()


def snr_depth_figure(frame: pd.DataFrame) -> go.Figure:
    """σ through the depth of several models, relative to what enters the first block: a panel per kind of noise.

    A point before attention, after it and after the block, of every layer; means over inputs at the middle severity,
    each relative to its own beginning, with their 95 % confidence interval.

    Args:
        frame: the analysis ``snr`` of several models by `workbench.analyze_grid`.

    Raises:
        InputError: the frame holds no such rows.
    """
    rows = rows_of(frame, "snr", needs=("layer", "noise", "severity", "candidate"))
    middle = _middle(rows["severity"])
    rows = rows[rows["layer"].notna() & (rows["severity"] == middle)]
    single = rows[rows["input"].notna()]
    rows = single if len(single) else rows
    # what leaves a block enters the next one
    last = rows["layer"].max()
    rows = rows[(rows["candidate"] != "resid_post") | (rows["layer"] == last)]
    rows = rows.assign(blocks=rows["layer"].astype(float) + rows["candidate"].map(_STREAMS).astype(float))
    rows = rows.assign(series=series_labels(rows))
    rows = rows.sort_values("blocks", kind="stable")
    first = rows.groupby(["series", "noise", "input"], dropna=False)["value"].transform("first")
    kept = rows.assign(value=rows["value"] / first, metric=_KEPT, candidate=pd.NA)
    names = _noises(frame) | {name: variant_words(name) for name in kept["series"].unique()}
    plot = Plot(kept, x="blocks", color="series", panel="noise", names=names).metric(_KEPT)
    plot = plot.scale(x_title="Depth (blocks)").add(Rule(1, "SNR unchanged"), Band())
    many = f"{single['input'].nunique()} inputs" if len(single) else "inputs"
    return plot.add(Line(words=f"mean over {many}, severity {middle}")).figure("page")


def _noises(rows: pd.DataFrame) -> dict[str, str]:
    """The kinds of noise in words."""
    return {str(kind): noise_words(str(kind)) for kind in dict.fromkeys(rows["noise"])}


def _middle(severities: pd.Series) -> int:
    """The middle one of the severities there are, the lower of two."""
    taken = sorted(severities.unique())
    return taken[(len(taken) - 1) // 2]
