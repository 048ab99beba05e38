"""Signal-to-noise ratios around attention: gain and bound by layer, how often Prop. III.1 applies, and depth."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from workbench.figures.frames import LEGEND_ABOVE, axis_title, band, rows_of, series_of, whole_numbers
from workbench.figures.theme import GREY, PAGE, series_style, translucent

_UNCHANGED = {"color": GREY, "width": 0.8, "dash": "dot"}
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
    rows = rows[rows["input"].isna() & rows["layer"].notna()]
    fig, places = _panels(rows)
    for noise, place in places:
        for name, style, part in _quantities(rows[rows["noise"] == noise], _GAINS):
            levels = part.groupby("layer")["value"].agg(["min", "max"])
            tint = translucent(style["line"]["color"], 0.16)
            fig.add_trace(band(levels.index, levels["min"], levels["max"], tint), **place)
            middle = part[part["severity"] == _middle(part["severity"])]
            fig.add_trace(_line(middle["layer"], middle["value"], name, place["col"] == 1, style), **place)
        fig.add_hline(y=1, line=_UNCHANGED, **place)
    fig.update_xaxes(title_text="Layer", **whole_numbers(int(rows["layer"].max()) + 1))
    fig.update_yaxes(title_text=axis_title("snr_gain"), col=1)
    return _finished(fig)


def snr_share_figure(frame: pd.DataFrame) -> go.Figure:
    """How often Prop. III.1 applies: share of blocks and inputs, a row per model, a panel per kind of noise.

    A block is one layer of one input; shares are means over all severities.

    Args:
        frame: the analysis ``snr`` of several models by `workbench.analyze_grid`.

    Raises:
        InputError: the frame holds no such rows.
    """
    metrics = tuple(dict.fromkeys(metric for metric, _ in _SHARES))
    rows = rows_of(frame, metrics, needs=("noise",))
    rows = rows[rows["input"].isna() & rows["layer"].isna()]
    fig, places = _panels(rows, 0.06)
    names = [label for label, _ in series_of(rows)]
    spread = 0.13  # of a row, so that equal shares do not cover one another
    for noise, place in places:
        for number, (name, style, part) in enumerate(_quantities(rows[rows["noise"] == noise], _SHARES)):
            shares = [(label, own["value"].mean()) for label, own in series_of(part)]
            middle = (len(_SHARES) - 1) / 2
            fig.add_trace(
                go.Scatter(
                    x=[share for _, share in shares],
                    y=[
                        len(names) - 1 - names.index(label) + (middle - number) * spread
                        for label, _ in shares
                    ],
                    mode="markers",
                    name=name,
                    legendgroup=name,
                    showlegend=place["col"] == 1,
                    cliponaxis=False,
                    hovertemplate=f"{name}<br>%{{x:.1%}}<extra></extra>",
                    marker=style["marker"],
                ),
                **place,
            )
        fig.update_yaxes(
            tickvals=list(range(len(names)))[::-1], ticktext=names, range=[-0.6, len(names) - 0.4], ticks="", **place
        )  # fmt: skip
    fig.update_xaxes(
        title_text="Share of blocks",
        tickformat=".0%",
        range=[-0.02, 1.02],
        showgrid=True,
        gridcolor="#E6E6E6",
    )
    return _finished(fig, height=70 + 46 * len(names) + 44, legend=44)


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
    rows = rows.assign(depth=rows["layer"].astype(float) + rows["candidate"].map(_STREAMS).astype(float))
    fig, places = _panels(rows)
    for noise, place in places:
        for number, (label, part) in enumerate(series_of(rows[rows["noise"] == noise])):
            part = part.sort_values("depth")
            kept = part["value"] / part["value"].iloc[0]
            fig.add_trace(_line(part["depth"], kept, label, place["col"] == 1, series_style(number)), **place)
        fig.add_hline(y=1, line=_UNCHANGED, **place)
    fig.update_xaxes(title_text="Depth (blocks)", **whole_numbers(int(last) + 2))
    fig.update_yaxes(title_text="SNR, relative to<br>the first block's input", col=1)
    return _finished(fig)


def _panels(rows: pd.DataFrame, spacing: float = 0.03) -> tuple[go.Figure, list[tuple[str, dict[str, int]]]]:
    """A figure with a panel per kind of noise, and the place of each."""
    kinds = list(dict.fromkeys(rows["noise"]))
    titles = [str(kind).replace("-", " ") for kind in kinds]
    fig = make_subplots(1, len(kinds), shared_yaxes=True, horizontal_spacing=spacing, subplot_titles=titles)
    fig.update_annotations(font={"size": None})
    return fig, [(str(kind), {"row": 1, "col": column}) for column, kind in enumerate(kinds, start=1)]


def _quantities(
    rows: pd.DataFrame, names: dict[tuple[str, str | None], str]
) -> Iterator[tuple[str, dict, pd.DataFrame]]:
    """The name, the look and the rows of every quantity that there is."""
    for number, ((metric, candidate), name) in enumerate(names.items()):
        own = rows[rows["metric"] == metric]
        own = own[own["candidate"].isna() if candidate is None else own["candidate"] == candidate]
        if not own.empty:
            yield name, series_style(number), own


def _middle(severities: pd.Series) -> int:
    """The middle one of the severities there are, the lower of two."""
    taken = sorted(severities.unique())
    return taken[(len(taken) - 1) // 2]


def _line(x: pd.Series, y: pd.Series, name: str, show: bool, style: dict) -> go.Scatter:
    return go.Scatter(
        x=x,
        y=y,
        mode="lines+markers",
        name=name,
        legendgroup=name,
        showlegend=show,
        hovertemplate=f"{name}<br>%{{y:.3g}}<extra></extra>",
        **style,
    )


def _finished(fig: go.Figure, height: int = 230, legend: int = 24) -> go.Figure:
    """Room for the legend above the panels' titles."""
    margin = {"l": 58, "r": 8, "t": legend + 18, "b": 40}
    return fig.update_layout(legend=LEGEND_ABOVE, margin=margin, height=height, width=PAGE)
