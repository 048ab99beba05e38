"""Perplexities of trained language models against the share of swapped words."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from workbench.core.arguments import checked
from workbench.core.errors import InputError
from workbench.figures.grammar import Plot
from workbench.figures.marks import Band, Line, Mark, Rule
from workbench.figures.variants import in_order


def _means_and_lines(rows: pd.DataFrame) -> pd.DataFrame:
    """Return means of several seeds and single exploratory seeds; ``mean`` is True for means."""
    several = rows["training_seed"].isna() & (rows["seeds"] > 1)
    single = rows["training_seed"].notna() & (rows["seed_kind"] == "exploratory")
    return pd.concat([rows[several].assign(mean=True), rows[single].assign(mean=False)])


def _lines_and_means(rows: pd.DataFrame, over: str = "seeds and images") -> list[Mark]:
    """Return the marks of curves of one seed and of means over several, with their words in the key."""
    lines = Line(words="1 seed, no interval", where=("mean", False), pale=True)
    counts = _seed_counts(rows)
    if not counts:
        return [lines]
    bars = Band(columns=("low", "high"), words=f"95 % CI over {over}", bars=True)
    return [bars, lines, Line(words=f"mean over {counts} seeds", where=("mean", True), joined=False)]


def _seed_counts(rows: pd.DataFrame) -> str:
    """Of how many seeds the means are, "5" or "3 to 5"; nothing where no mean is of several."""
    counts = rows.loc[rows["training_seed"].isna() & (rows["seeds"] > 1), "seeds"]
    if counts.empty:
        return ""
    low, high = int(counts.min()), int(counts.max())
    return f"{low}" if low == high else f"{low} to {high}"


_PANELS = {"perplexity": "All characters", "perplexity_kept": "Characters that no swap touches"}
_RATIO = "Ratio to baseline (↓ better)"


@checked
def perplexity_figure(means: pd.DataFrame, ratios: pd.DataFrame) -> go.Figure:
    """Draw perplexity against the share of swapped words: of all tokens, and of those that no swapped word touches.

    Below, the same divided by the baseline's. A line is the exploratory seed, without an interval; a large marker is
    the mean over the seeds that answer, with its 95 % interval over seeds.

    Args:
        means: `workbench.studies.over_seeds.seed_means` of both perplexities of word-swap.
        ratios: `seed_differences` of the same as a ratio.

    Raises:
        InputError: no perplexity.
        UnknownName: an attention variant without a look.
    """
    parts = [means.assign(quantity="perplexity"), ratios.assign(quantity=_RATIO)]
    rows = pd.concat([_drawn(part) for part in parts])
    if rows.empty:
        raise InputError("the frame holds no perplexity; give rows of the protocol word-swap")
    in_order(rows["attention"].unique())
    rows["baseline"] = rows["metric"].map({_RATIO: 1.0})
    metrics = [name for name in ("perplexity", _RATIO) if (rows["metric"] == name).any()]
    plot = Plot(rows, x="swapped", color="attention", panel="of").metric(*metrics)
    plot = plot.scale(x_title="Words swapped (%)", y_log=True).add(
        *_lines_and_means(pd.concat([means, ratios]), "seeds"),
        Rule(column="baseline", name="baseline"),
    )
    return plot.figure("page")


def _drawn(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of both perplexities against the share in per cent, with a panel each."""
    perplexities = _means_and_lines(rows[rows["metric"].isin(_PANELS) & rows["value"].notna()])
    plain = perplexities[["attention", "value", "low", "high", "mean"]]
    return plain.assign(
        swapped=100 * perplexities["epsilon"],
        of=perplexities["metric"].map(_PANELS),
        metric=perplexities["quantity"],
    )
