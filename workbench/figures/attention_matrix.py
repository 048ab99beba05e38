"""Query × key matrices of heads, their axes named by the tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import plotly.graph_objects as go

from workbench.core.errors import InputError
from workbench.figures.composition import Axis, Panel, compose
from workbench.figures.maps import add_scale, squared
from workbench.figures.measuring import widest
from workbench.figures.overlays import CHOSEN
from workbench.figures.theme import PAGE, theme_of
from workbench.figures.token_attention import head_weights
from workbench.figures.tokens import TokenView, check_token, distinct, largest, not_finite, view_tokens

SMALL = 7 / 8  # of the theme's letters, a token label on paper in 7 pt
LABEL = 0.89  # letters that such a label takes of an axis


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
    view = columns = view_tokens(tokens, input, weights.shape[1 if others is None else 0])
    token = check_token(token, tokens, input)
    if others is None:
        queries, keys = asked_and_seen(weights, view)
    else:
        columns = view_tokens(others, input, weights.shape[1])
        queries, keys = view.real, columns.real
    shown = weights[np.ix_(queries if len(weights) > 1 else [0], keys)]
    title = ", ".join(["Attention weight", *not_finite(shown)]).rstrip(".")
    ticks: dict[str, str] = {}
    if log:
        positive = (shown > 0) & np.isfinite(shown)
        if not positive.any():
            raise InputError("no attention weight is positive: there is nothing to draw on a log scale")
        title += ", blank: 0" if (shown == 0).any() else ""
        shown = np.log10(shown, out=np.full_like(shown, np.nan), where=positive)
        ticks = {"tickprefix": "10<sup>", "ticksuffix": "</sup>"}
    number = "10<sup>%{z:.2f}</sup>" if log else "%{z:.4f}"
    lowest, highest = (float(np.nanmin(shown)), float(np.nanmax(shown))) if log else (0.0, largest(shown))
    place = None if token is None else view.place(token)
    pointers = [
        *_pointers(place, queries if len(queries) > 1 else [], "y"),
        *_pointers(place, keys if others is None else [], "x"),
    ]
    panel = replace(matrix_panel(shown, view, queries, keys, number=number, columns=columns), notes=pointers)
    ends = (lowest, highest if highest > lowest else lowest + 1.0)
    return compose_matrices([panel], 1, ends, title, most=PAGE, ticks=ticks)


def compose_matrices(
    panels: Sequence[Panel], across: int, ends: tuple[float, float], title: str, most: float = 230,
    ticks: Mapping[str, Any] | None = None,
) -> go.Figure:  # fmt: skip
    """Panels of `matrix_panel` side by side, as large as their words need, beside the colour bar of them all.

    At most ``across`` stand in a row, with sides of up to ``most`` pixels where their words need no more.
    """
    font = theme_of("page").font
    rows, count = np.shape(panels[0].traces[0].z)
    marked = any(panel.notes for panel in panels)  # beyond the matrices' edges
    bar, gap = (6.3 if marked else 5.5) * font, 1.1 * font
    room = theme_of("page").widths["page"] - widest(panels[0].y.names, font) - 4 * font - bar
    across = max(1, min(across, int(room / (LABEL * font * count + gap))))
    side = min(max(LABEL * font * count, min(room / across - gap, most)), room)
    rest = max(room - across * (side + gap), 0) / 2
    tall = (
        side if rows == count else min(side, max(12 * rows, 2.5 * font))
    )  # of others' queries, or of one alone
    fig = compose(
        panels, across, width="page", shared="xy", right=bar + rest, before={0: rest}, gap=gap,
        inner=tall, heading=font if marked else 0,
    )  # fmt: skip
    fig = add_scale(squared(fig) if rows == count else fig, ends, title, font)
    return fig.update_coloraxes(colorbar={**({"xpad": 1.3 * font} if marked else {}), **(ticks or {})})


def matrix_panel(
    shown: np.ndarray, view: TokenView, queries: Sequence[int], keys: Sequence[int], title: str = "",
    number: str = "%{z:.4f}", scale: str = "coloraxis", named: bool = True, key: str = "to key",
    columns: TokenView | None = None,
) -> Panel:  # fmt: skip
    """A matrix whose axes name the tokens at these places; ``customdata`` of a cell is [query, key].

    ``columns`` are the tokens of the keys where these are others than the queries'.
    """
    columns = columns or view
    names = dict(zip(keys, distinct([columns.labels[place] for place in keys]), strict=True))
    own = columns is view
    x, y = (
        list(names.values()),
        [names[q] for q in queries] if own else distinct([view.labels[q] for q in queries]),
    )
    rows, across = (np.asarray(one.index, dtype=np.int32) for one in (view, columns))
    cells = go.Heatmap(
        z=shown.astype(np.float32),  # half the bytes to the browser for every move of a slider
        x=x, y=y, coloraxis=scale, hoverongaps=False, name=title,
        customdata=np.stack(np.meshgrid(rows[list(queries)], across[list(keys)], indexing="ij"), -1),
        hovertemplate=f"from %{{y}}<br>to %{{x}}<br>{number}<extra></extra>",
    )  # fmt: skip
    look = {"type": "category", "tickfont": {"size": SMALL * theme_of("page").font}, "ticklen": 2}
    x_axis = Axis(
        key if named else "", -0.5, len(keys) - 0.5, steep=True, names=tuple(x), more=look, bare=not named
    )
    y_axis = Axis(
        "from query" if named else "", len(queries) - 0.5, -0.5, names=tuple(y), more=look, bare=not named
    )
    return Panel([cells], x_axis, y_axis, title)


def asked_and_seen(weights: np.ndarray, view: TokenView) -> tuple[list[int], list[int]]:
    """Places of the queries and keys of a head's (query, key) matrix in the view, padding left out."""
    return view.real if len(weights) > 1 or len(view.index) == 1 else [view.asking], view.real


def _pointers(place: int | None, shown: list[int], axis: str) -> list[dict]:
    """An arrow head at the far end of a token's row or column: a frame would cover cells of two pixels."""
    if place not in shown:
        return []
    along, across = ("y", "x") if axis == "y" else ("x", "y")
    anchors = {
        "y": {"xanchor": "left", "yanchor": "middle"},
        "x": {"xanchor": "center", "yanchor": "bottom"},
    }[axis]
    words = {"text": "◂" if axis == "y" else "▾", "font": {"color": CHOSEN}, "borderpad": 0}
    return [{along: shown.index(place), across: 1, f"{across}ref": "domain", **words, **anchors}]
