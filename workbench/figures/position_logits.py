"""Attention logits as a sum of content and position: the shares of their terms by layer."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from workbench.core.arguments import checked
from workbench.figures.estimates import NULL_COLUMNS, at_level
from workbench.figures.frames import rows_of
from workbench.figures.grammar import Plot
from workbench.figures.marks import Band, Line, Null
from workbench.figures.specification import SERIES

_NAMES = {
    "token-token": "token–token", "cross": "both cross terms", "position-position": "position–position",
    "logit_correlation": "|r| of the<br>cross terms",
}  # fmt: skip


@checked
def position_share_figure(frame: pd.DataFrame) -> go.Figure:
    """Draw shares of the logit variance by layer, and how cross terms correlate with the others, beside the null.

    A column of panels per model: token–token, position–position, and both cross terms together, whose covariances are
    the rest to 1; and mean |r| of both cross terms together with the others, with that of shuffled positions. Means
    over inputs and heads.

    Args:
        frame: the result of ``position-logits``, of one or several models; with ``single`` for 95 % confidence
            intervals over inputs.

    Raises:
        InputError: the frame holds no such rows.
    """
    share_rows = rows_of(frame, ("logit_share", "logit_correlation"), needs=("candidate",))
    single = share_rows[share_rows["input"].notna() & share_rows["layer"].notna()]
    nulls = [name for name in NULL_COLUMNS if name in share_rows]  # of the means alone
    rows = pd.concat(
        [at_level(share_rows, "layer"), single.assign(**dict.fromkeys(nulls))], ignore_index=True
    )
    shares = rows[(rows["metric"] == "logit_share") & rows["candidate"].isin(_NAMES)]
    shares = shares.assign(quantity=shares["candidate"]).drop(columns=NULL_COLUMNS)
    cross = rows[(rows["metric"] == "logit_correlation") & (rows["statistic"] == "abs")]
    cross = cross[cross["candidate"] == "cross"].assign(quantity="cross")
    drawn = pd.concat([shares, cross]).assign(candidate=pd.NA, statistic=pd.NA)
    plot = Plot(drawn, color="quantity", panel=SERIES, names=_NAMES).metric(
        "logit_share", "logit_correlation"
    )
    null, line = Null(words="positions permuted"), Line(words="mean over inputs and heads")
    plot = plot.scale(x_free=True, y_zero=True).add(null, Band(over="input"), line)
    return plot.figure("page", height=350, empty="no cross terms")
