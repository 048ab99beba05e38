"""Coding rates of tokens by layer, and what attention does to them."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
import plotly.graph_objects as go

from workbench.core.arguments import checked
from workbench.figures.frames import rows_of, series_labels, without_provenance
from workbench.figures.grammar import Plot
from workbench.figures.marks import Band, Line
from workbench.figures.specification import SERIES

_RATES = ("coding_rate_variational", "coding_rate", "coding_rate_reduction")
_CHANGE = "change of coding_rate_variational"
_TITLES = {
    "coding_rate_variational": "R<sub>c</sub><sup>var</sup> of the outputs",
    _CHANGE: "Change of R<sub>c</sub><sup>var</sup> by attention (%)",
    "coding_rate": "R of the outputs",
    "coding_rate_reduction": "ΔR of the outputs",
}
_SUBSPACES = {"as_implemented": ": its U<sub>k</sub>", "ours": ": value projections as U<sub>k</sub>"}


@checked
def coding_rate_figure(frames: Mapping[str, pd.DataFrame]) -> go.Figure:
    """Coding rates against layer: mean over inputs, and quartiles of the first batch (wu2025 Fig. 4a; see `Band`).

    Four panels: R_c^var of each layer's output with that layer's U_k; by how much attention changes it, from what it
    receives to the stream after it; R and ΔR of the outputs. Of several models a column each with separate axes,
    named with what stands for U_k: R_c^var by the layer's own subspaces does not compare between these. Later layers
    whose U_k are of another kind than the first's, as those of class attention, are left out.

    Args:
        frames: batch (training, validation, …) to the result of ``coding-rate``, of one or several models; the first
            is drawn with solid lines, the second dashed and with crosses.

    Raises:
        InputError: a frame holds no coding rates.
    """
    rows = pd.concat([_rows(without_provenance(frame)).assign(batch=name) for name, frame in frames.items()])
    several = rows[SERIES].nunique() > 1
    words: dict[str, str] = {}
    if len(frames) > 1:
        inputs = rows.groupby("batch", sort=False)["input"].nunique()
        words = {str(name): f"{name}: mean over {count} inputs" for name, count in inputs.items()}
    plot = Plot(rows, panel=SERIES if several else None, dash="batch", names=_TITLES | words)
    plot = plot.metric(*_TITLES).scale(x_free=several, y_free=several, y_zero=not several)
    band = Band(quantiles=(25, 75), only=("batch", next(iter(frames))) if words else None)
    plot = plot.add(band, Line(words=None if words else ""))
    return plot.figure("page", height=430) if several else plot.figure("page", columns=2)


def _rows(frame: pd.DataFrame) -> pd.DataFrame:
    """The rates of the outputs and the change by attention in per cent, each named by its model and convention."""
    rows = rows_of(frame, _RATES, needs=("layer", "candidate"))
    rows = rows[rows["standardize"].isna()]
    rows = rows.assign(series=series_labels(rows))
    first = rows.sort_values("layer").groupby(SERIES)["convention"].first()
    rows = rows[rows["convention"] == rows[SERIES].map(first)]
    rows[SERIES] += rows["convention"].map(_SUBSPACES).fillna("")
    variational = rows[rows["metric"] == "coding_rate_variational"]
    keys = [SERIES, "layer", "input"]
    streams = variational.pivot_table(index=keys, columns="candidate", values="value", sort=False)
    change = (100 * (streams["resid_mid"] / streams["input"] - 1)).rename("value").reset_index()
    outputs = rows[rows["candidate"] == "resid_post"][[*keys, "metric", "value"]]
    return pd.concat([outputs, change.assign(metric=_CHANGE)])
