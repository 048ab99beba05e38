"""Attention logits as a sum of content and position: the matrices of one head, and their shares by layer."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from workbench.figures.drawing import SERIES
from workbench.figures.estimates import NULL_COLUMNS, at_level
from workbench.figures.frames import rows_of
from workbench.figures.grammar import Plot
from workbench.figures.maps import compose_maps, map_panel
from workbench.figures.marks import Band, Line, Null, Rule
from workbench.figures.overlays import need_columns
from workbench.figures.scales import Scale

COLUMNS = ("model", "input", "layer", "head", "term", "query", "key", "value")
# Query, then key, as in the matrix of products; what they add up to stands beside them.
_PANELS = ("token-token", "token-position", "sum", "position-token", "position-position", "model")
_TITLES = {"sum": "sum of the four", "model": "logits of the model"}
_CROSS = "cross terms with the others"
SOURCE = 'workbench.analyze("position-logits", …, per="pair")'
SHARES = ("token-token", "token-position", "position-token", "position-position", "covariances")


def position_logit_figure(frame: pd.DataFrame) -> go.Figure:
    """The four matrices of one head's logits, their sum, and the logits of the model (abdullaev2025 Fig. 2).

    Rows of panels are the query's content and position, columns the key's. All share one colour scale around 0 that
    holds 99 % of the numbers; each row of a matrix is less its mean. Keys that a query may not attend to are masked.

    Args:
        frame: the result of ``position-logits`` per pair, for one model, input, layer and head.

    Raises:
        InputError: a column is missing, or there are no rows, or those of several inputs or heads.
    """
    need_columns(frame, COLUMNS, SOURCE, one=("model", "input", "layer", "head"))
    panels = []
    for term in _PANELS:
        table = frame[frame["term"] == term].pivot(index="query", columns="key", values="value")
        title, number = _TITLES.get(term, term.replace("-", "–")), len(panels)
        side = "" if number % 3 else f"query (0 to {len(table) - 1})"
        beneath = f"key (0 to {table.shape[1] - 1})" if number >= 3 else ""
        panels.append(map_panel(table.to_numpy(), term, title, side, beneath))
    most = float(frame["value"].abs().quantile(0.99))
    ends = (-most, most) if most else None
    scale = Scale.of([frame["value"]], "Row-centred logit", middle=0.0, ends=ends)
    return compose_maps(panels, 3, scale, fewest=3)


def position_share_figure(frame: pd.DataFrame) -> go.Figure:
    """Shares of the logit variance by layer, and how the cross terms correlate with the others, beside the null.

    A column of panels per model: the four terms and their covariances, which add up to 1 (mean over inputs and heads);
    and mean |r| over inputs and heads of both cross terms together, with that of shuffled positions.

    Args:
        frame: the result of ``position-logits``, of one or several models; with ``single`` for 95 % confidence
            intervals over inputs.

    Raises:
        InputError: the frame holds no such rows.
    """
    held = rows_of(frame, ("logit_share", "logit_correlation"), needs=("candidate",))
    single = held[held["input"].notna() & held["layer"].notna()]
    nulls = [name for name in NULL_COLUMNS if name in held]  # of the means alone
    rows = pd.concat([at_level(held, "layer"), single.assign(**dict.fromkeys(nulls))], ignore_index=True)
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
