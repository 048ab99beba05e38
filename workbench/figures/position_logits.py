"""Attention logits as a sum of content and position: the matrices of one head, and their shares by layer."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from workbench.core.errors import InputError
from workbench.figures.frames import rows_of
from workbench.figures.grammar import SERIES, Plot
from workbench.figures.levels import NULL_COLUMNS, at_level
from workbench.figures.maps import compose_maps, map_panel
from workbench.figures.marks import Line, Null, Rule
from workbench.figures.theme import DIVERGING

COLUMNS = ("model", "input", "layer", "head", "term", "query", "key", "value")
# Query, then key, as in the matrix of products; what they add up to stands beside them.
_PANELS = ("token-token", "token-position", "sum", "position-token", "position-position", "model")
_TITLES = {"sum": "sum of the four", "model": "logits of the model"}
_CROSS = "cross terms with the others"
SHARES = ("token-token", "token-position", "position-token", "position-position", "covariances")


def position_logit_figure(frame: pd.DataFrame) -> go.Figure:
    """The four matrices of one head's logits, their sum, and the logits of the model (abdullaev2025 Fig. 2).

    Rows of panels are the query's content and position, columns the key's. All share one colour scale around 0; each
    row of a matrix is less its mean. Keys that a query may not attend to are blank.

    Args:
        frame: the result of ``position-logits`` per pair, for one model, input, layer and head.

    Raises:
        InputError: a column is missing, or there are no rows, or those of several inputs or heads.
    """
    missing = [name for name in COLUMNS if name not in frame]
    if missing or frame.empty or len(frame[["model", "input", "layer", "head"]].drop_duplicates()) > 1:
        raise InputError(
            'give the frame of `workbench.analyze("position-logits", …, per="pair")` for one model, input, layer and '
            "head"
        )
    panels = []
    for term in _PANELS:
        table = frame[frame["term"] == term].pivot(index="query", columns="key", values="value")
        panels.append(map_panel(table.to_numpy(), term, _TITLES.get(term, term.replace("-", "–"))))
    highest = float(frame["value"].abs().max()) or 1.0
    title = "row-centred logit (query downwards, key across)"
    return compose_maps(panels, 3, (-highest, highest), title, scale=DIVERGING)


def position_share_figure(frame: pd.DataFrame) -> go.Figure:
    """Shares of the logit variance by layer, and how the cross terms correlate with the others, beside the null.

    A column of panels per model: the four terms and their covariances, which add up to 1 (mean over inputs and heads);
    and mean |r| over inputs and heads of both cross terms together, with that of shuffled positions.

    Args:
        frame: the result of ``position-logits`` (means, not ``per_head``), of one or several models.

    Raises:
        InputError: the frame holds no such rows.
    """
    rows = at_level(rows_of(frame, ("logit_share", "logit_correlation"), needs=("candidate",)), "layer")
    shares = rows[(rows["metric"] == "logit_share") & rows["candidate"].isin(SHARES)]
    shares = shares.assign(quantity=shares["candidate"], zero=0.0).drop(columns=NULL_COLUMNS)
    cross = rows[(rows["metric"] == "logit_correlation") & (rows["statistic"] == "abs")]
    cross = cross[cross["candidate"] == "cross"].assign(quantity=_CROSS)
    drawn = pd.concat([shares, cross]).assign(candidate=pd.NA, statistic=pd.NA)
    names = {name: name.replace("-", "–") for name in (*SHARES, _CROSS)} | {"logit_correlation": "|r|"}
    plot = Plot(drawn, color="quantity", panel=SERIES, names=names).metric("logit_share", "logit_correlation")
    marks = Null(), Rule(0, column="zero"), Line(words="mean over inputs and heads")
    return plot.scale(x_free=True, y_zero=True).add(*marks).figure("page")
