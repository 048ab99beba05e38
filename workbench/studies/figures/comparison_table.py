"""Differences of mechanisms from their baselines as a table: a row per mechanism, a column per condition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from workbench.core.arguments import checked
from workbench.figures.composition import Axis, Panel, compose
from workbench.figures.frames import rows_of
from workbench.figures.maps import add_scale
from workbench.figures.scales import Scale, bar_room
from workbench.figures.theme import DIVERGING, GREY, PALE, luminance, theme_of
from workbench.figures.variants import in_order, look_of
from workbench.figures.words import noise_words

ATTACKS = {
    "fgsm": "FGSM", "pgd": "PGD", "autoattack": "AutoAttack", "square": "Square", "spsa": "SPSA",
    "cw": "Carlini–Wagner", "sld": "SLD", "noise": "Noise", "pgd-random": "PGD, random starts",
    "transfer": "PGD on another model",
}  # fmt: skip
"""Protocols of attacks, to their names, in the order of columns."""
_OUTSIDE = {"inverted": "OOD: inverted digits", "photographs": "OOD: photographs", "noise": "OOD: noise"}
_CONDITIONS = {"clean": "Clean", **ATTACKS, "corruptions": "Corruptions, mean"}
_MEAN = "mean over kinds"
_BARE = {"showline": False, "ticks": ""}
# blue is better in both tables
_REVERSED = [
    [position, colour] for (position, _), (_, colour) in zip(DIVERGING, DIVERGING[::-1], strict=True)
]


@checked
def robustness_figure(differences: pd.DataFrame, means: pd.DataFrame) -> go.Figure:
    """Draw differences in accuracy and in AUPR of out-of-distribution (OOD) images from the baseline, in points.

    Grey cells are not significant; grey numbers are of one seed. First come the baselines' own values.

    Args:
        differences: `seed_differences` of `workbench.studies.over_seeds` for accuracies and AUPR.
        means: `seed_means` of the same, which hold the baselines.

    Raises:
        InputError: no differences of accuracies or AUPR.
        UnknownName: an attention variant without a look.
    """
    rows, levels = (_conditions(frame) for frame in (differences, means))
    levels = levels[levels["model"].isin(rows["baseline"])]
    return _table(rows, levels, [*_CONDITIONS.values(), *_OUTSIDE.values()], "Difference (points)", _REVERSED)


@checked
def corruptions_figure(ratios: pd.DataFrame) -> go.Figure:
    """Draw the change of the error under each kind of corruption from the baseline's, in per cent.

    Grey cells are not significant; grey numbers are of one seed.

    Args:
        ratios: `seed_differences` of `workbench.studies.over_seeds` for corruption errors, as ratios, for each kind and
            over all kinds (``kind`` null).

    Raises:
        InputError: no ratios of corruption errors.
        UnknownName: an attention variant without a look.
    """
    rows = rows_of(ratios, "corruption_error", needs=("attention", "baseline", "kind", "seeds"))
    rows = rows[rows["training_seed"].isna() & rows["value"].gt(0) & rows["value"].lt(np.inf)]
    ends = ["value", "low", "high"]
    rows = rows.assign(**{name: 100 * (rows[name].astype(float) - 1) for name in ends})
    words = {kind: noise_words(kind).replace("jpeg", "JPEG") for kind in rows["kind"].dropna().unique()}
    rows["condition"] = rows["kind"].map(words).fillna(_MEAN)
    return _table(rows, rows.iloc[:0], [*words.values(), _MEAN], "Change of error (%)", DIVERGING)


def _conditions(frame: pd.DataFrame) -> pd.DataFrame:
    """Return means over seeds of accuracies and AUPR in per cent, with the title of their column."""
    rows = rows_of(frame, ("accuracy_top1", "aupr"), needs=("attention", "model", "protocol", "seeds"))
    rows = rows[rows["training_seed"].isna()]
    outside = rows["metric"] == "aupr"
    rows = rows.assign(condition=rows["kind"].map(_OUTSIDE).where(outside, rows["protocol"].map(_CONDITIONS)))
    ends = ["value", "low", "high"]
    return rows.assign(**{name: 100 * rows[name].astype(float) for name in ends})


def _table(
    rows: pd.DataFrame, levels: pd.DataFrame, columns: Sequence[str], title: str, colours: Sequence[Any]
) -> go.Figure:
    """Return the table of ``rows``, with the columns that occur, below a row for each of ``levels``."""
    several = rows.groupby("attention")["seeds"].max()
    order = sorted(in_order(rows["attention"].unique()), key=lambda name: several[name] == 1)
    above = in_order(levels["attention"].unique())
    columns = [name for name in columns if (rows["condition"] == name).any()]
    names = [*(f"{look_of(name).label} (%)" for name in above), *(look_of(name).label for name in order)]
    cells, plain = np.full((2, len(names), len(columns)), np.nan)
    significant, notes = np.zeros(cells.shape, dtype=bool), []
    drawn = [*levels.assign(place=levels["attention"].map(above.index)).to_dict("records")]
    drawn += rows.assign(place=rows["attention"].map(order.index) + len(above)).to_dict("records")
    for row in drawn:
        if row["condition"] in columns:
            row_number, column, value = row["place"], columns.index(row["condition"]), row["value"]
            level, alone = row_number < len(above), row["seeds"] == 1
            significant[row_number, column] = not (level or alone or row["low"] <= 0 <= row["high"])
            plain[row_number, column] = np.nan if level or alone or significant[row_number, column] else 0.0
            cells[row_number, column] = value if significant[row_number, column] else np.nan
            text = f"{value:.0f}" if level else f"{value:+.{int(abs(value) < 9.95)}f}".replace("-", "−")
            colour = GREY if alone and not level else "black"
            notes.append({"x": column, "y": row_number, "text": text, "font": {"color": colour}})
    scale = Scale.of([cells], title, middle=0.0, colours=colours)
    for note in notes:
        if (
            significant[note["y"], note["x"]]
            and luminance(*scale.colour([cells[note["y"], note["x"]]])) < 0.18
        ):
            note["font"]["color"] = "white"
    grey = {"coloraxis": None, "colorscale": [[0, PALE], [1, PALE]], "showscale": False}
    look = {"xgap": 1, "ygap": 1, "hoverinfo": "skip"}
    x = Axis("", -0.5, len(columns) - 0.5, names=tuple(columns), steep=True, more=_BARE)
    y = Axis("", len(names) - 0.5, -0.5, names=tuple(names), more=_BARE)
    traces = [go.Heatmap(z=cells, coloraxis="coloraxis", **look), go.Heatmap(z=plain, **grey, **look)]
    panel = Panel(traces, x, y, notes=notes)
    font = theme_of("page").font
    inner = 1.7 * font * len(names)
    return add_scale(
        compose([panel], 1, width="page", inner=inner, right=bar_room(scale, inner, font, 1)), scale, font
    )
