"""What the overview can colour layers and heads by: one number each, from the analysis that gives it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from workbench.core.errors import InputError, UnknownName

if TYPE_CHECKING:
    import pandas as pd

    from workbench.apps.explorer.address import Address
    from workbench.apps.explorer.material import Material

NUMBERS = ("value", "null_mean", "null_low", "null_high")
"""What a frame says of a number beside its null distribution."""
NULL_SAMPLES = 10  # enough for their mean and a rough z in an overview


@dataclass(frozen=True)
class Measure:
    """A number per layer and head: which analysis, with which options, and which of its rows."""

    label: str
    metric: str
    analysis: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def frame(self, address: Address, material: Material) -> pd.DataFrame:
        """The rows of this number, of every layer and head on the address' input.

        Raises `InputError` where the model has no such number.
        """
        frame = material.frame(self.analysis, address, **self.options)
        rows = frame[(frame["metric"] == self.metric) & frame["layer"].notna() & frame["rank"].isna()]
        if rows["statistic"].notna().any():
            rows = rows[rows["statistic"].isna() | (rows["statistic"] == "mean")]
        if rows.duplicated(["layer", "head"]).any():  # by several formulas: the layer's own counts
            own = {layer.index: layer.convention for layer in material.outline(address)}
            rows = rows[rows["convention"] == rows["layer"].map(own)]
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
    """The measure of a name; raises `UnknownName`."""
    if name not in MEASURES:
        raise UnknownName("metric of the overview", name, MEASURES)
    return MEASURES[name]
