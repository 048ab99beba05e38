"""Differences of mechanisms from their baselines over several seeds, a row per condition: robustness and perplexity."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from workbench.core.errors import InputError
from workbench.core.intervals import Finding
from workbench.core.options import checked
from workbench.figures.frames import rows_of
from workbench.figures.grammar import Plot
from workbench.figures.marks import Interval, Rule
from workbench.figures.variants import look_of
from workbench.figures.words import noise_words, variant_words
from workbench.studies.findings import largest_differences

_CONDITIONS = {
    "clean": "clean images", "fgsm": "FGSM", "pgd": "PGD", "autoattack": "AutoAttack", "square": "Square",
    "spsa": "SPSA", "cw": "Carlini–Wagner", "sld": "sparse L1 descent", "noise": "noise",
    "corruptions": "corruptions",
}  # fmt: skip
_OUTSIDE = {"inverted": "OOD: inverted", "photographs": "OOD: photographs", "noise": "OOD: noise"}
_MEAN = "mean over kinds"
_PARTS = {"perplexity": "all characters", "perplexity_kept": "characters outside swaps"}
_ENDS = ["value", "low", "high"]


@checked
def robustness_figure(differences: pd.DataFrame, means: pd.DataFrame) -> go.Figure:
    """Draw differences in accuracy and in AUPR of out-of-distribution (OOD) images from the baseline, in points.

    A mechanism is drawn if several of its seeds were attacked: a heading, and a row per condition with the baseline's
    own score.

    Args:
        differences: `seed_differences` of `workbench.studies.over_seeds` for accuracies and AUPR.
        means: `seed_means` of the same, which hold the baselines.

    Raises:
        InputError: no differences of accuracies or AUPR over several seeds.
        UnknownName: an attention variant without a look.
    """
    rows, levels = _conditions(differences), _of_seeds(means, "accuracy_top1", "aupr")
    scores = _named(levels).set_index(["model", "where"])["value"].to_dict()
    own = [
        scores.get((model, name), np.nan) for model, name in zip(rows["baseline"], rows["where"], strict=True)
    ]
    labels = rows["where"] + [f" ({score:.0f} %)" if np.isfinite(score) else "" for score in own]
    return _forest(rows.assign(row=labels), "Difference (points)")


@checked
def robustness_finding(differences: pd.DataFrame) -> str:
    """Name the largest significant differences of `robustness_figure`, or that none is decided."""
    rows = _conditions(differences)
    return largest_differences(rows, _labels(rows), " points")


@checked
def corruptions_figure(ratios: pd.DataFrame) -> go.Figure:
    """Draw the change of the error under each kind of corruption from the baseline's, in per cent, over several seeds.

    Args:
        ratios: `seed_differences` of `workbench.studies.over_seeds` for corruption errors, as ratios, for each kind and
            over all kinds (``kind`` null).

    Raises:
        InputError: no ratios of corruption errors over several seeds.
        UnknownName: an attention variant without a look.
    """
    rows = _corruptions(ratios)
    labels = rows["where"].where(rows["where"] != _MEAN, f"<b>{_MEAN}</b>")
    return _forest(rows.assign(row=labels), "Change of error (%)")


@checked
def corruptions_finding(ratios: pd.DataFrame) -> str:
    """State each mechanism's mean change of `corruptions_figure` over kinds, and how many kinds are significant."""
    rows = _corruptions(ratios)
    means, kinds = (rows[mask] for mask in (rows["where"] == _MEAN, rows["where"] != _MEAN))
    parts = []
    for row in means.itertuples():
        change = Finding(row.value, row.low, row.high, row.seeds).words("+.1f").replace(" [", " % [")
        clear = "significantly" if row.low > 0 or row.high < 0 else "not significantly"
        parts.append(f"by {change} on average with {look_of(row.mechanism).label}, {clear}")
    worse, better = (kinds["low"] > 0).sum(), (kinds["high"] < 0).sum()
    return (
        f"Errors under corruption change {', '.join(parts)}; of {len(kinds)} kinds {worse} are significantly worse and "
        f"{better or 'none'} better (about {0.05 * len(kinds):.1g} expected under the null)."
    )


@checked
def perplexity_figure(ratios: pd.DataFrame) -> go.Figure:
    """Draw perplexities with and without swapped words as ratios to the baseline's, over several seeds.

    A row per mechanism, a panel per share of swapped words and kind of characters.

    Args:
        ratios: `workbench.studies.over_seeds.seed_differences` of both perplexities of word-swap, as ratios.

    Raises:
        InputError: no perplexity over several seeds.
        UnknownName: an attention variant without a look.
    """
    rows = _perplexities(ratios)
    swapped = (100 * rows["epsilon"]).map("{:g} % swapped".format)
    panels = (swapped + "<br>" + rows["metric"].map(_PARTS)).where(rows["epsilon"] > 0, "no swaps")
    rows = rows.assign(panel=panels, row=rows["side"].str.join(" ÷ "))
    titles = {name: name for name in rows["panel"].unique()}
    plot = Plot(rows, titles, y="row", panel="panel").scale(row=1.6, x_same=True, x_title="Perplexity ratio")
    return plot.add(Interval(columns=("value", "low", "high"), words=_words(rows)), Rule(1.0)).figure()


@checked
def perplexity_finding(ratios: pd.DataFrame) -> str:
    """State by how much each mechanism lowers or raises perplexity, over the shares of swapped words."""
    rows = _perplexities(ratios).query("metric == 'perplexity'").sort_values("epsilon", kind="stable")
    parts = []
    for _, values in rows.groupby("side", sort=False):
        mechanism, baseline = values["side"].iloc[0]
        changes = sorted({round(abs(100 * (ratio - 1))) for ratio in values["value"]})
        amount = " to ".join(f"{change} %" for change in changes[:: max(len(changes) - 1, 1)])
        lower, higher = (values["high"] < 1).all(), (values["low"] > 1).all()
        change = (
            f"{amount} {'lower' if lower else 'higher'}" if lower or higher else "not consistently different"
        )
        parts.append(f"{change} with {mechanism} than with {baseline}")
    shares = " and ".join(f"{100 * share:g} %" for share in dict.fromkeys(rows["epsilon"]))
    return f"Perplexity is {', '.join(parts)} ({shares} of the words swapped)."


def _perplexities(ratios: pd.DataFrame) -> pd.DataFrame:
    """Return ratios over several seeds, with the names of both sides; without swaps both perplexities are one."""
    rows = _of_seeds(ratios, *_PARTS)
    rows = rows[(rows["epsilon"] > 0) | (rows["metric"] == "perplexity")]
    names = rows["attention"].map(lambda name: look_of(name).label)
    baselines = rows["baseline"].str.removeprefix("bundled:").map(variant_words)
    return rows.assign(side=[*zip(names, baselines, strict=True)])


def _of_seeds(frame: pd.DataFrame, *metrics: str) -> pd.DataFrame:
    """Return the means over several seeds of some metrics."""
    rows = rows_of(frame, metrics, needs=("attention", "model", "seeds"))
    rows = rows[rows["training_seed"].isna() & (rows["seeds"] > 1) & np.isfinite(rows["value"].astype(float))]
    if rows.empty:
        raise InputError(f"no {' or '.join(metrics)} has several training seeds; give results of over_seeds")
    return rows.assign(mechanism=rows["attention"], **{name: rows[name].astype(float) for name in _ENDS})


def _named(rows: pd.DataFrame) -> pd.DataFrame:
    """Return accuracies and AUPR in per cent with their condition in words."""
    outside = rows["metric"] == "aupr"
    names = rows["kind"].map(_OUTSIDE).where(outside, rows["protocol"].map(_CONDITIONS))
    return rows.assign(where=names, **{name: 100 * rows[name] for name in _ENDS})


def _conditions(differences: pd.DataFrame) -> pd.DataFrame:
    rows = _named(_of_seeds(differences, "accuracy_top1", "aupr"))
    order = [*_CONDITIONS.values(), *_OUTSIDE.values()]
    rows = rows[rows["where"].isin(order)].sort_values("where", key=lambda names: names.map(order.index))
    attacked = rows.groupby("mechanism", sort=False)["where"].transform("nunique")
    return rows[attacked > 1].sort_values(
        "mechanism", key=lambda names: -names.map(names.value_counts()), kind="stable"
    )


def _corruptions(ratios: pd.DataFrame) -> pd.DataFrame:
    rows = _of_seeds(ratios, "corruption_error")
    words = rows["kind"].map(
        lambda kind: _MEAN if pd.isna(kind) else noise_words(kind).replace("jpeg", "JPEG")
    )
    rows = rows.assign(where=words, **{name: 100 * (rows[name] - 1) for name in _ENDS})
    return rows.sort_values("value", ascending=False).sort_values(
        "where", key=lambda names: names == _MEAN, kind="stable"
    )


def _labels(rows: pd.DataFrame) -> dict[str, str]:
    return {name: look_of(name).label for name in rows["mechanism"]}


def _words(rows: pd.DataFrame) -> str:
    return f"mean over {' or '.join(map(str, sorted(rows['seeds'].unique())))} seeds a side, 95 % CI"


def _forest(rows: pd.DataFrame, title: str) -> go.Figure:
    """Return a forest of one panel, with a heading per mechanism if there are several."""
    heads = _labels(rows)
    rows = rows.assign(panel="differences", same=(rows["low"] <= 0) & (rows["high"] >= 0))
    group = "mechanism" if len(heads) > 1 else None
    plot = Plot(rows, {"differences": title}, y="row", group=group, panel="panel", names=heads).scale(
        row=1.35
    )
    interval = Interval(
        columns=("value", "low", "high"), words=_words(rows), hollow=("same", "not significant")
    )
    return plot.add(interval, Rule(0)).figure("column")
