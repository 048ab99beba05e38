"""Attention logits as a sum of content and position: the shares of their terms by layer."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from workbench.core.arguments import checked
from workbench.figures.estimates import NULL_COLUMNS, at_level
from workbench.figures.frames import rows_of
from workbench.figures.grammar import Plot
from workbench.figures.marks import Band, Line, Null, Rule
from workbench.figures.specification import SERIES

_CROSS = "cross terms with the others"
SHARES = ("token-token", "token-position", "position-token", "position-position", "covariances")


@checked
def position_share_figure(frame: pd.DataFrame) -> go.Figure:
    """Draw shares of the logit variance by layer, and how cross terms correlate with the others, beside the null.

    A column of panels per model: the four terms and their covariances, which add up to 1 (mean over inputs and heads);
    and mean |r| over inputs and heads of both cross terms together, with that of shuffled positions.

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
    shares = rows[(rows["metric"] == "logit_share") & rows["candidate"].isin(SHARES)]
    shares = shares.assign(quantity=shares["candidate"], zero=0.0).drop(columns=NULL_COLUMNS)
    cross = rows[(rows["metric"] == "logit_correlation") & (rows["statistic"] == "abs")]
    cross = cross[cross["candidate"] == "cross"].assign(quantity=_CROSS)
    drawn = pd.concat([shares, cross]).assign(candidate=pd.NA, statistic=pd.NA)
    names = {name: name.replace("-", "–") for name in (*SHARES, _CROSS)} | {
        "logit_correlation": "|r| of the<br>cross terms"
    }
    plot = Plot(drawn, color="quantity", panel=SERIES, names=names).metric("logit_share", "logit_correlation")
    null, line = Null(words="positions permuted"), Line(words="mean over inputs and heads")
    plot = plot.scale(x_free=True, y_zero=True).add(
        null, Band(over="input"), Rule(0, "zero", column="zero"), line
    )
    return plot.figure("page", empty="no cross terms")
