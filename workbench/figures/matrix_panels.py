"""Query × key matrices of heads, their axes named by the tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import plotly.graph_objects as go

from workbench.figures.composition import Axis, Panel, compose
from workbench.figures.maps import add_scale, is_masked, squared
from workbench.figures.scales import Scale, bar_room, causal, masked_key, masked_shape
from workbench.figures.text_widths import text_width, widest
from workbench.figures.theme import GREY, WIDTH, theme_of
from workbench.figures.tokens import SPECIAL, TokenView, distinct

_MOST = 480  # pixels, of the side of a matrix
_UNNAMED = 335  # of one with too many tokens to name
MOST_LABELS = 45  # that have room at such a side
SMALL = 7 / 8  # of the theme's letters, a token label on paper in 7 pt
LABEL = 0.89  # letters that such a label takes of an axis


def compose_matrices(
    panels: Sequence[Panel],
    across: int,
    scale: Scale,
    most: float = 230,
    key: Sequence[Any] = (),
    notes: Sequence[str] = (),
    width: str | float = "page",
) -> go.Figure:
    """Panels of `matrix_panel` side by side, as large as their words need, beside the colour bar of them all.

    At most ``across`` stand in a row, with sides of up to ``most`` pixels where their words need no more.
    """
    font = theme_of(width).font
    rows, count = np.shape(panels[0].traces[0].z)
    marked = any(panel.notes for panel in panels)  # beyond the matrices' edges
    bar, gap = bar_room(scale, most, font, 1) + (font if marked else 0), 1.1 * font
    room = theme_of(width).pixels(width) - widest(panels[0].y.labels, font) - 4 * font - bar
    least = min(LABEL * font * count, _UNNAMED) if count > MOST_LABELS else LABEL * font * count
    across = max(1, min(across, int(room / (least + gap))))
    side = min(max(least, min(room / across - gap, most)), room, _MOST)
    rest = max(room - across * (side + gap), 0) / 2
    # of others' queries, or of one alone, beside which the words of the titles find room
    words = max(text_width(word, 1.3 * font) for word in ("query", *scale.title.split()))
    tall = side if rows == count else min(side, max(12 * rows, words))
    masked = [masked_key()] if any(map(is_masked, panels)) else []
    fig = compose(
        panels, across, [*key, *masked], width=width, shared="xy", right=bar + rest, before={0: rest}, gap=gap,
        inner=tall, heading=font if marked else 0, notes=notes,
    )  # fmt: skip
    fig = add_scale(squared(fig) if rows == count else fig, scale, font)
    return fig.update_coloraxes(colorbar={"xpad": 1.3 * font}) if marked else fig


def matrix_panel(
    weights: np.ndarray, view: TokenView, queries: Sequence[int], keys: Sequence[int], title: str = "",
    scale: str = "coloraxis", columns: TokenView | None = None, whole: int = 0,
) -> Panel:  # fmt: skip
    """A matrix whose axes name the tokens at these places; ``customdata`` of a cell is [query, key].

    ``columns`` are the tokens of the keys where these are others than the queries'; ``whole`` is the number of tokens
    where not all of them are shown.
    """
    columns = columns or view
    x, y = _token_axis("key", columns, keys, whole), _token_axis("query", view, queries, whole)
    hidden = causal(weights)
    rows, across = (np.asarray(tokens.index, dtype=np.int32) for tokens in (view, columns))
    cells = go.Heatmap(
        z=np.where(hidden, np.nan, weights).astype(np.float32),  # half the bytes to the browser for every move
        x=x.more["categoryarray"], y=y.more["categoryarray"], coloraxis=scale, hoverongaps=False, name=title,
        customdata=np.stack(np.meshgrid(rows[list(queries)], across[list(keys)], indexing="ij"), -1),
        hovertemplate="from %{y}<br>to %{x}<br>%{z:.4f}<extra></extra>",
    )  # fmt: skip
    y = replace(y, low=y.high, high=y.low)
    shapes = [masked_shape()] if hidden.any() else []
    if view.grid is not None and len(keys) > MOST_LABELS:  # where a row of patches ends
        ends = [n + 0.5 for n, key in enumerate(keys[:-1]) if _ends_a_row(columns, key)]
        rule: dict[str, Any] = {"type": "line", "line": {"color": GREY, "width": WIDTH.rule}, "opacity": 0.4}
        shapes += [rule | {"x0": at, "x1": at, "y0": 0, "y1": 1, "yref": "domain"} for at in ends]
        both = ends if len(weights) == len(keys) else []
        shapes += [rule | {"y0": at, "y1": at, "x0": 0, "x1": 1, "xref": "domain"} for at in both]
    return Panel([cells], replace(x, steep=True), y, title, shapes=shapes)


def _ends_a_row(view: TokenView, token: int) -> bool:
    """Whether a token is a special one, or the last patch of a row."""
    row = view.patches.index(token) + 1 if view.kinds[token] not in SPECIAL else 0
    return view.grid is not None and row % view.grid[1] == 0


def _token_axis(word: str, view: TokenView, places: Sequence[int], whole: int) -> Axis:
    """The tokens at these places: each by its label, or of many patches the rows that they begin."""
    labels = [view.labels[token] for token in places]
    names, title = distinct(labels), word
    ticks, tick_labels = names, labels
    if whole > len(places):
        title = f"{word} (first {len(places)} of {whole} tokens)"
    elif len(places) > MOST_LABELS and view.grid is not None:
        rows = {f"{row},{view.grid[1] // 2}": f"row {row}" for row in range(view.grid[0])}
        kept = [n for n, label in enumerate(labels) if label in rows or view.kinds[places[n]] in SPECIAL]
        ticks, tick_labels = [names[n] for n in kept], [rows.get(labels[n], labels[n]) for n in kept]
        title = f"{word} (patches, row by row)"
    elif len(places) > MOST_LABELS:
        title = f"{word} (number of the token)"
    font = {"size": SMALL * theme_of("page").font}
    look = {"type": "category", "categoryarray": names, "ticklen": 2, "tickfont": font}
    return Axis(title, -0.5, len(places) - 0.5, names=tuple(ticks), labels=tuple(tick_labels), more=look)


def asked_and_seen(weights: np.ndarray, view: TokenView) -> tuple[list[int], list[int]]:
    """Places of the queries and keys of a head's (query, key) matrix in the view, padding left out."""
    return view.real if len(weights) > 1 or len(view.index) == 1 else [view.asking], view.real
