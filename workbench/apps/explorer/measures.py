"""Numbers of heads and of layers, from the analyses that give them, for the explorer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from workbench.core.errors import InputError, UnknownName

if TYPE_CHECKING:
    import pandas as pd

    from workbench.apps.explorer.address import Address
    from workbench.apps.explorer.material import Material
    from workbench.frames.metric import Metric

NUMBERS = ("value", "null_mean", "null_low", "null_high")
"""Columns of a number and its null distribution."""
NULL_SAMPLES = 10  # enough for their mean and a rough z
WITHOUT = ("subspaces",)
"""Analyses that read weights: on an input they have no number."""
_APART = ("axis", "convention", "candidate", "standardize")
_LEFT_OUT = ("nonfinite", "attention_sink_key")  # counts, and numbers of tokens


@dataclass(frozen=True)
class Measure:
    """A number per layer and head: its analysis, options and rows."""

    label: str
    metric: str
    analysis: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def frame(self, address: Address, material: Material) -> pd.DataFrame:
        """Return the rows of this number for every layer and head on the address' input.

        Raises `InputError` where the model has no such number.
        """
        frame = material.frame(self.analysis, address, **self.options)
        rows = frame[(frame["metric"] == self.metric) & frame["layer"].notna() & frame["rank"].isna()]
        if rows["statistic"].notna().any():
            rows = rows[rows["statistic"].isna() | (rows["statistic"] == "mean")]
        if rows.duplicated(["layer", "head"]).any():  # by several formulas: the layer's own counts
            conventions = {layer.index: layer.convention for layer in material.outline(address)}
            rows = rows[rows["convention"] == rows["layer"].map(conventions)]
        if rows.empty:
            raise InputError(f"{address.model} has no {self.label.lower()}")
        return rows


_DRAWN = {"per_head": True, "null_samples": NULL_SAMPLES, "null": "gaussian"}
MEASURES = {
    "attention_entropy": Measure(
        "Entropy of attention", "attention_entropy", "attention-map", {"null_samples": 0}
    ),
    "attention_distance": Measure(
        "Mean distance of attention", "attention_distance", "attention-map", {"null_samples": 0}
    ),
    "effective_rank": Measure(
        "Effective rank of attention", "effective_rank", "attention-spectrum", {**_DRAWN, "max_rank": 1}
    ),
    "key_rank": Measure("Effective rank of the keys", "effective_rank", "gram-spectrum"),
    "MOC": Measure(
        "MOC of V and V̇", "MOC", "value-similarity", {**_DRAWN, "axis": "features", "statistic": "mean"}
    ),
    "projection_error": Measure(
        "Exact projection error", "projection_error", "projection-error", {**_DRAWN, "convention": "exact"}
    ),
    "token_cosine": Measure("Similarity of tokens", "token_cosine", "token-similarity"),
    "membership_entropy_share": Measure(
        "Normalised entropy of membership", "membership_entropy_share", "membership"
    ),
}


def measure(name: str) -> Measure:
    """Return the measure of a name; raise `UnknownName`."""
    if name not in MEASURES:
        raise UnknownName("metric of the head grid", name, MEASURES)
    return MEASURES[name]


@dataclass(frozen=True)
class Series:
    """One number of every head, or of every layer: rows of a frame, and how it differs from others of its metric."""

    name: str
    """A unique name."""
    metric: Metric
    words: str
    """What distinguishes it from others of its metric; empty if there are none."""
    of_heads: bool
    rows: pd.DataFrame


def series(analysis: str, frame: pd.DataFrame) -> Iterator[Series]:
    """Yield an analysis' numbers of each head and each layer on one input, number by number.

    What is measured in several ways (by axis, convention, candidate, standardisation) is a series each. Of several null
    distributions the first counts.
    """
    import pandas as pd

    from workbench.frames.metric import METRICS

    is_whole = frame["layer"].notna() & frame["rank"].isna() & ~frame["metric"].isin(_LEFT_OUT)
    rows = frame[is_whole & (frame["statistic"].isna() | (frame["statistic"] == "mean"))]
    for metric, of_metric in rows.groupby("metric", sort=False):
        differing = [name for name in _APART if of_metric[name].nunique(dropna=False) > 1]
        ways = of_metric.groupby(differing, sort=False, dropna=False) if differing else [((), of_metric)]
        for group, way_rows in ways:
            words = [str(word) for word in group if pd.notna(word)]
            for of_heads in (True, False):
                level_rows = way_rows[way_rows["head"].notna() == of_heads].drop_duplicates(["layer", "head"])
                if len(level_rows):
                    name = "/".join([analysis, str(metric), *words])
                    yield Series(name, METRICS[str(metric)], ", ".join(words), of_heads, level_rows)


def options_of(analysis: str) -> dict[str, Any]:
    """Return options that make an analysis return numbers by head, and a null distribution within seconds.

    Raises `UnknownName`.
    """
    from workbench.analyses.registry import ANALYSES

    if analysis not in ANALYSES:
        raise UnknownName("analysis", analysis, ANALYSES)
    option_table = ANALYSES[analysis].options
    wanted = {"per_head": True, "null_samples": NULL_SAMPLES, "null": "gaussian"}
    return {
        name: value
        for name, value in wanted.items()
        if name in option_table and option_table[name].takes(value)
    }


def measurable() -> list[str]:
    """List the analyses that measure an input's heads or layers."""
    from workbench.analyses.registry import ANALYSES

    return [name for name in ANALYSES if name not in WITHOUT]
