"""Perplexities of trained variants under swapped words, and relative to the softmax baseline."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from workbench.core.errors import InputError
from workbench.figures.frames import model_label
from workbench.figures.grammar import Plot
from workbench.figures.marks import Band, Line, Points, Rule
from workbench.figures.variants import in_order

_PANELS = {"perplexity": "all characters", "perplexity_kept": "characters left alone"}
_RATIO = "Ratio to baseline (↓ better)"


def perplexity_figure(
    frame: pd.DataFrame, ratios: pd.DataFrame, now: pd.DataFrame | None = None
) -> go.Figure:
    """Perplexity against the share of swapped words: of everything, and of what no swapped word touches.

    Below, the same divided by the baseline's. Bands are 95 % intervals over texts.

    Args:
        frame: rows of word-swap with the column attention, as `workbench.studies.records.recorded` gives them.
        ratios: the results of `workbench.studies.baselines.ratios_to_baseline` for both perplexities, joined.
        now: rows of `workbench.studies.evaluate` for one model, drawn as stars above.

    Raises:
        InputError: no perplexity.
        UnknownName: an attention variant without a look.
    """
    parts = [frame.assign(quantity="perplexity"), ratios.assign(value=ratios["ratio"], quantity=_RATIO)]
    rows = pd.concat([_drawn(part) for part in parts])
    if rows.empty:
        raise InputError("the frame holds no perplexity; give rows of the protocol word-swap")
    in_order(rows["attention"].unique())
    rows["baseline"] = rows["metric"].map({_RATIO: 1.0})
    shown = [name for name in ("perplexity", _RATIO) if (rows["metric"] == name).any()]
    plot = Plot(rows, x="swapped", color="attention", panel="of").metric(*shown)
    plot = plot.scale(x_title="Words swapped (%)", y_log={"perplexity": True}).add(
        Band(columns=("low", "high"), words="95 % CI over texts", alpha=0.13), Line(words="one training seed"),
        Rule(column="baseline", name="softmax baseline"),
    )  # fmt: skip
    if now is not None and len(stars := _drawn(now.assign(quantity="perplexity"))):
        words = f"{model_label(now, now['model'].iloc[0])}, {now['n'].iloc[0]:g} texts now"
        plot = plot.add(Points(stars, words, by=("metric", "of")))
    return plot.figure("page")


def _drawn(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of both perplexities against the share in per cent, with a panel each."""
    own = rows[rows["metric"].isin(_PANELS) & rows["value"].notna()]
    plain = own.drop(columns=["protocol", "epsilon"], errors="ignore")
    return plain.assign(swapped=100 * own["epsilon"], of=own["metric"].map(_PANELS), metric=own["quantity"])
