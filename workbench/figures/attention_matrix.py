"""The whole query × key matrix of one head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from workbench.core.errors import InputError
from workbench.figures.overlays import CHOSEN, shared_scale
from workbench.figures.patch_panels import WIDTH
from workbench.figures.token_attention import head_weights
from workbench.figures.tokens import TokenView, check_token, distinct, largest, not_finite, view_tokens


def attention_matrix_figure(
    attn: Any, tokens: Any, input: int = 0, token: int | None = None, log: bool = False
) -> go.Figure:
    """Attention of one head, query × key: padding left out, arrow heads at the chosen token's row and column.

    The axes name the tokens, as many as have room and more when zoomed in: words, patches as "row,column", and the
    class and register tokens. A word that occurs again is numbered, "the (2)". Colours run from 0, or with ``log`` from
    the smallest positive weight, weights of 0 being blank. ``customdata`` of a cell is [query, key], the numbers of
    both tokens.

    Args:
        attn: attention weights of one head, (query, key), dimensionless; or (1, key), of class attention.
        tokens: labels, kinds and grid of the batch, as `workbench.captures.TokenInfo` holds them; of cross attention
            those of the queries, with those of the keys as their ``keys`` (what `Capture.tokens_of` gives).
        input: which input of ``tokens``.
        token: number of the chosen token, counted as in ``tokens``.
        log: colour by the logarithm.

    Raises:
        InputError: attn is no (query, key) matrix of this input's tokens, or input or token does not exist, or with
            ``log`` no weight is positive.
    """
    others = getattr(tokens, "keys", None)
    weights = head_weights(attn, cross=others is not None)
    token = check_token(token, tokens, input)
    view = columns = view_tokens(tokens, input, weights.shape[1 if others is None else 0])
    if others is None:
        queries, keys = asked_and_seen(weights, view)
    else:
        columns = view_tokens(others, input, weights.shape[1])
        queries, keys = view.real, columns.real
    shown = weights[np.ix_(queries if len(weights) > 1 else [0], keys)]
    title = ", ".join(["Attention weight", *not_finite(shown)]).rstrip(".")
    if log:
        positive = (shown > 0) & np.isfinite(shown)
        if not positive.any():
            raise InputError("no attention weight is positive: there is nothing to draw on a log scale")
        title += ", blank: 0" if (shown == 0).any() else ""
        shown = np.log10(shown, out=np.full_like(shown, np.nan), where=positive)
    number = "10<sup>%{z:.2f}</sup>" if log else "%{z:.4f}"
    matrix = matrix_cells(shown, view, queries, keys, number, columns)
    lowest, highest = (float(np.nanmin(shown)), float(np.nanmax(shown))) if log else (0.0, largest(shown))
    scale = shared_scale(None, highest if highest > lowest else lowest + 1.0, title, lowest)
    if log:
        scale["colorbar"] |= {"tickprefix": "10<sup>", "ticksuffix": "</sup>"}
    square = len(queries) == len(keys) and others is None
    axis = {"type": "category", "constrain": "domain"}
    place = None if token is None else view.place(token)
    layout = {
        "xaxis": {**axis, "title": {"text": "to key"}, "tickangle": -90, "range": [-0.5, len(keys) - 0.5]},
        "yaxis": {
            **axis, "title": {"text": "from query"}, "range": [len(queries) - 0.5, -0.5],
            **({"scaleanchor": "x"} if square else {}),
        },
        "annotations": [
            *_pointers(place, queries if square or others else [], "y"),
            *_pointers(place, keys if others is None else [], "x"),
        ],
        "coloraxis": scale,
        "margin": {"l": 60, "r": 62, "t": 18, "b": 60},
        "width": WIDTH,
        "height": WIDTH - 44 if square else 200 if len(queries) == 1 else min(WIDTH, 200 + 12 * len(queries)),
    }  # fmt: skip
    return go.Figure(matrix, layout)


def asked_and_seen(weights: np.ndarray, view: TokenView) -> tuple[list[int], list[int]]:
    """Places of the queries and keys of a head's (query, key) matrix in the view, padding left out."""
    return view.real if len(weights) > 1 or len(view.index) == 1 else [view.asking], view.real


def matrix_cells(
    shown: np.ndarray,
    view: TokenView,
    queries: Sequence[int],
    keys: Sequence[int],
    number: str,
    columns: TokenView | None = None,
    **more: Any,
) -> go.Heatmap:
    """Cells of a matrix whose axes name the tokens at these places; ``customdata`` is [query, key].

    ``columns`` are the tokens of the keys where these are others than the queries'.
    """
    columns = columns or view
    names = dict(zip(keys, distinct([columns.labels[place] for place in keys]), strict=True))
    own = columns is view
    asking = (
        [names[place] for place in queries] if own else distinct([view.labels[place] for place in queries])
    )
    rows, across = (np.asarray(one.index, dtype=np.int32) for one in (view, columns))
    return go.Heatmap(
        z=shown.astype(np.float32),  # half the bytes to the browser for every move of a slider
        x=list(names.values()),
        y=asking,
        customdata=np.stack(np.meshgrid(rows[list(queries)], across[list(keys)], indexing="ij"), -1),
        coloraxis="coloraxis",
        hoverongaps=False,
        hovertemplate=f"from %{{y}}<br>to %{{x}}<br>{number}<extra></extra>",
    ).update(more)


def _pointers(place: int | None, shown: list[int], axis: str) -> list[dict]:
    """An arrow head at the far end of a token's row or column: a frame would cover cells of two pixels."""
    if place not in shown:
        return []
    along, across = ("y", "x") if axis == "y" else ("x", "y")
    anchors = (
        {"xanchor": "left", "yanchor": "middle"}
        if axis == "y"
        else {"xanchor": "center", "yanchor": "bottom"}
    )
    return [
        {along: shown.index(place), f"{along}ref": along, across: 1, f"{across}ref": f"{across} domain"}
        | {"text": "◂" if axis == "y" else "▾", "font": {"color": CHOSEN}, "showarrow": False, **anchors}
    ]
