"""What attention does to the coding rate of its tokens, by layer."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from workbench.core.arguments import checked
from workbench.figures.frames import rows_of, series_labels, without_provenance
from workbench.figures.grammar import Plot
from workbench.figures.marks import Band, Line, Rule
from workbench.figures.specification import SERIES

_RATE = "coding_rate_variational"
_CHANGE = "Change of R<sub>c</sub><sup>var</sup><br>by attention (%)"


@checked
def coding_rate_figure(frame: pd.DataFrame) -> go.Figure:
    """Change of R_c^var by attention against layer, with zero: mean over inputs and its 95 % CI, a line per model.

    From the inputs of attention to the stream after it, in the same subspaces U_k (wu2025 Fig. 4a has the levels, which
    do not compare between models). Layers whose U_k are of another kind than the first's, as those of class attention,
    are left out.

    Args:
        frame: the result of ``coding-rate``, of one or several models.

    Raises:
        InputError: the frame holds no coding rates.
    """
    rows = rows_of(without_provenance(frame), _RATE, needs=("layer", "candidate"))
    rows = rows[rows["standardize"].isna()]
    rows = rows.assign(series=series_labels(rows))
    first = rows.sort_values("layer").groupby(SERIES)["convention"].first()
    rows = rows[rows["convention"] == rows[SERIES].map(first)]
    streams = rows.pivot_table("value", [SERIES, "layer", "input"], "candidate", sort=False)
    change = (100 * (streams["resid_mid"] / streams["input"] - 1)).rename("value").reset_index()
    plot = Plot(change.assign(metric=_CHANGE), color=SERIES).metric(_CHANGE).scale(y_zero=True)
    return plot.add(Rule(0), Band(over="input"), Line()).figure(labels="ends")
