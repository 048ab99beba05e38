"""What every figure asks of a result frame, and how a metric's spread and null distribution are drawn."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from workbench.core.errors import InputError
from workbench.figures.measuring import legend_entry
from workbench.figures.theme import GREY, NULL_BAND, PAGE, THEMES
from workbench.frames.metrics import METRICS
from workbench.frames.results import RANDOM_WEIGHTS

UNTRAINED = "(random weights)"


def rows_of(frame: pd.DataFrame, metrics: str | Iterable[str], needs: Iterable[str] = ()) -> pd.DataFrame:
    """The rows of one or several metrics that hold a value.

    Raises `InputError` where there are none, or where a column in `needs` is absent or empty.
    """
    wanted = [metrics] if isinstance(metrics, str) else list(metrics)
    missing = [column for column in ("metric", "value", *needs) if column not in frame.columns]
    if missing:
        raise InputError(
            f"the frame has no column {', '.join(missing)}; give the result of `workbench.analyze`"
        )
    chosen = frame[frame["metric"].isin(wanted) & frame["value"].notna()]
    if chosen.empty:
        present = ", ".join(sorted(frame["metric"].dropna().unique())) or "none"
        raise InputError(f"the frame holds no values of {' or '.join(wanted)}; its metrics: {present}")
    for column in needs:
        if chosen[column].isna().all():
            raise InputError(
                f"column {column!r} is empty for {' and '.join(wanted)}: the figure has no axis to use"
            )
    return chosen


def without_provenance(frame: pd.DataFrame) -> pd.DataFrame:
    """The same rows without the record of their run, which pandas copies for every column that is taken."""
    plain = frame.copy(deep=False)
    plain.attrs = {}
    return plain


def axis_title(metric: str, letters: int = 30) -> str:
    """Label and unit of a metric, as its axis shows them, broken into lines of at most about `letters`."""
    text = METRICS[metric].axis_title if metric in METRICS else metric
    # A line break, since plotly lets a title that is longer than its axis run off the page.
    return "<br>".join(textwrap.wrap(text, letters, break_long_words=False))


def short_name(model: object) -> str:
    """A model as a legend shows it: without the scheme, `bundled:digits-vit` to `digits-vit`."""
    text = "" if pd.isna(model) else str(model)
    scheme, _, rest = text.partition(":")
    return (rest if rest and scheme.isalpha() else text).rstrip("/").rsplit("/", 1)[-1]


def model_label(frame: pd.DataFrame, model: object) -> str:
    """A model as a legend or title shows it, marked where the frame or its provenance says its weights are random."""
    if "checkpoint" in frame:
        checkpoints = set(frame.loc[frame["model"] == model, "checkpoint"])
    else:
        runs = frame.attrs.get("provenance") or []
        models = [run.get("model") for run in ([runs] if isinstance(runs, dict) else runs)]
        checkpoints = {
            one.get("checkpoint") for one in models if isinstance(one, dict) and one.get("spec") == model
        }
    return short_name(model) + (f" {UNTRAINED}" if checkpoints == {RANDOM_WEIGHTS} else "")


def series_of(frame: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """One (label, rows) per model, checkpoint and way of standardising, in order of appearance.

    The checkpoint is named where it varies within a model or is random, standardisation where there is any.
    """
    names = ["model", "checkpoint", "standardize"]
    keyed = frame.assign(
        **{name: frame[name].astype("string").fillna("") if name in frame else "" for name in names}
    )
    checkpoints = keyed.groupby("model")["checkpoint"].nunique()
    groups = []
    for key, rows in keyed.groupby(names, sort=False):
        model, checkpoint, standardize = key if isinstance(key, tuple) else (key, "", "")
        parts = [
            short_name(model),
            UNTRAINED if checkpoint == RANDOM_WEIGHTS else checkpoint if checkpoints[model] > 1 else "",
            f"({standardize})" if standardize else "",
        ]
        groups.append((" ".join(part for part in parts if part), rows))
    return groups


def series_labels(frame: pd.DataFrame) -> pd.Series:
    """What `series_of` calls the series of each row."""
    labels = pd.Series("", index=range(len(frame)), dtype=object)
    for label, rows in series_of(frame.reset_index(drop=True)):
        labels[rows.index] = label
    return labels.set_axis(frame.index)


def model_pages(frame: pd.DataFrame, most: int) -> list[pd.DataFrame]:
    """Parts of a frame with at most `most` models each, so that a figure of many models fits its pages."""
    models = list(dict.fromkeys(frame["model"]))
    return [frame[frame["model"].isin(models[first : first + most])] for first in range(0, len(models), most)]


def page_name(name: str, page: int) -> str:
    """What a figure's page is called: the name alone for the first (1), then NAME_2, NAME_3."""
    return name if page == 1 else f"{name}_{page}"


def spread(rows: pd.DataFrame, by: str) -> pd.DataFrame:
    """Mean, median and quartiles of the value at each place of `by`, and how many values they come from."""
    groups = rows.groupby(by, sort=True)["value"]
    quartiles = groups.quantile(np.array([0.25, 0.75])).unstack()
    quartiles.columns = ["low", "high"]
    return groups.agg(["mean", "median", "count"]).join(quartiles).reset_index()


def quartiles(rows: pd.DataFrame, by: str | list[str]) -> pd.DataFrame:
    """Columns low, median and high at each place of `by`: the interquartile range of the rows.

    Of a frame without rows per input its own quartiles over inputs, of all heads together.

    Raises `InputError` where such a frame has none, as for a single head.
    """
    names = {"q25": "low", "median": "median", "q75": "high"}
    if "input" in rows and rows["input"].isna().all() and rows["statistic"].notna().any():
        words = rows["statistic"].str.removesuffix(" of mean")  # of the windows of an input
        own = rows.assign(statistic=words)[rows["head"].isna() & words.isin([*names])]
        if own.empty:
            raise InputError(
                "a frame without rows per input holds quartiles of all heads together; draw those, or run it with them"
            )
        return own.pivot_table(index=by, columns="statistic", values="value").rename(columns=names)
    found = rows.groupby(by, sort=True)["value"].quantile(np.array([0.25, 0.5, 0.75])).unstack()
    return found.set_axis([*names.values()], axis=1)


def band(x: Iterable, low: Iterable, high: Iterable, colour: str, **more: object) -> go.Scatter:
    """A filled band between two curves, closed into one polygon so that it does not depend on trace order."""
    x, low, high = list(x), list(low), list(high)
    return go.Scatter(
        x=x + x[::-1],
        y=high + low[::-1],
        fill="toself",
        fillcolor=colour,
        mode="lines",
        line={"width": 0, "color": colour},
        hoverinfo="skip",
        showlegend=False,
        **more,
    )


def null_traces(rows: pd.DataFrame, by: str, show: bool = True, **more: object) -> list[go.Scatter]:
    """The null distribution: a grey band from null_low to null_high, a dotted line at null_mean.

    Empty where the frame carries no null. Several rows at one place are averaged.
    """
    columns = [
        name for name in ("null_mean", "null_low", "null_high") if name in rows and rows[name].notna().any()
    ]
    if not columns:
        return []
    level = rows.groupby(by, sort=True)[columns].mean().reset_index()
    traces = []
    if {"null_low", "null_high"} <= set(columns):
        traces.append(band(level[by], level["null_low"], level["null_high"], NULL_BAND, **more))
    if "null_mean" in columns:
        traces.append(
            go.Scatter(
                x=level[by],
                y=level["null_mean"],
                mode="lines",
                line={"color": GREY, "dash": "dot"},
                name="null distribution",
                legendgroup="null distribution",
                showlegend=show,
                **more,
            )
        )
    return traces


def null_line(x: Iterable, y: Iterable, colour: str) -> go.Scatter:
    """The mean of one of several models' null distribution, thin in its colour: bands would hide each other."""
    return go.Scatter(
        x=x,
        y=y,
        mode="lines",
        line={"color": colour, "dash": "solid", "width": 0.75},
        showlegend=False,
        hovertemplate="null distribution<br>%{x}: %{y:.3g}<extra></extra>",
    )


def name_null(fig: go.Figure) -> None:
    """The legend's key to the lines of `null_line`: a curve that is nowhere."""
    style = {"color": GREY, "dash": "solid", "width": 0.75}
    fig.add_trace(
        go.Scatter(x=[None], y=[None], mode="lines", line=style, name="null distribution", legendrank=1001),
        row=1,
        col=1,
    )


def whole_numbers(count: int, first: int = 0) -> dict:
    """Axis settings for layers or heads: whole numbers, at most about eight of them."""
    return {"tickmode": "linear", "tick0": first, "dtick": max(1, -(-count // 8))}


# A horizontal legend along the top edge of the whole figure, above every panel.
LEGEND_ABOVE = {
    "orientation": "h",
    "x": 0.01,
    "xref": "container",
    "xanchor": "left",
    "y": 1,
    "yref": "container",
    "yanchor": "top",
}


def legend_rows(fig: go.Figure, width: float = PAGE, legend: str = "legend") -> int:
    """How many rows a horizontal legend of the figure takes at a printed width, so that a margin can hold it.

    Plotly sets entries that do not fit one row in columns, all as wide as the widest.
    """
    size = THEMES["paper"].font
    entries = [
        legend_entry(trace.name, size) + 5
        for trace in fig.data
        if trace.name and trace.showlegend is not False and (trace.legend or "legend") == legend
    ]
    if sum(entries) <= width - 16:
        return 1
    return -(-len(entries) // max(1, int((width - 16) // max(entries))))


def log_ticks(values: pd.Series, most: int = 6, digits: Iterable[float] = (1, 2, 5)) -> dict:
    """Axis settings for a log scale that holds these values: about `most` ticks, whatever the number of decades.

    Where there is hardly more than one decade, its multiples in `digits` are labelled.
    """
    positive = values[values > 0]
    if positive.empty:
        raise InputError("no value is positive and finite: there is nothing to draw on a log scale")
    low, high = np.log10(positive.min()), np.log10(positive.max())
    if high - low < 1.6:  # powers of ten alone would leave one tick, or none
        powers = range(int(np.floor(low)), int(np.ceil(high)) + 1)
        ticks = [(digit, power) for power in powers for digit in digits]
        return {
            "tickmode": "array",
            "tickvals": [digit * 10.0**power for digit, power in ticks],
            "ticktext": [_decimal(digit, power) for digit, power in ticks],
        }
    step = max(1, int(np.ceil((high - low) / most)))
    return {"dtick": step, **({"minor": {"ticks": "outside", "ticklen": 2}} if step == 1 else {})}


def _decimal(digit: float, power: int) -> str:
    if -3 < power < 4:
        return f"{digit * 10.0**power:g}"
    times = "" if digit == 1 else f"{digit}·"
    return f"{times}10<sup>{power}</sup>".replace("-", "−")
