"""Query × key matrices of heads, their axes named by the tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import plotly.graph_objects as go

from workbench.figures.composition import Axis, Panel, compose
from workbench.figures.maps import add_scale, is_masked, squared
from workbench.figures.marks import key_entry
from workbench.figures.measuring import text_width, widest
from workbench.figures.overlays import CHOSEN
from workbench.figures.scales import Scale, bar_room, causal, masked_key, masked_shape
from workbench.figures.theme import PAGE, theme_of
from workbench.figures.token_attention import head_weights
from workbench.figures.tokens import SPECIAL, TokenView, check_token, distinct, not_finite, view_tokens

_MOST = 480  # pixels, of the side of a matrix
_MOST_LABELS = 45  # that have room at such a side
SMALL = 7 / 8  # of the theme's letters, a token label on paper in 7 pt
LABEL = 0.89  # letters that such a label takes of an axis


def attention_matrix_figure(attn: Any, tokens: Any, input: int = 0, token: int | None = None) -> go.Figure:
    """Attention of one head, query × key: padding left out, arrow heads at the chosen token's row and column.

    The axes name the tokens where there is room: words, patches as "row,column", and the class and register tokens;
    of more tokens the numbers, of a larger image the rows of patches. Colours run from 0 along a course of
    `workbench.figures.scales.course_of`. Keys that a causal head leaves out are masked, a colour of its own.
    ``customdata`` of a cell is [query, key], the numbers of both tokens.

    Args:
        attn: attention weights of one head, (query, key), dimensionless; or (1, key), of class attention.
        tokens: labels, kinds and grid of the batch, as `workbench.captures.TokenInfo` holds them; of cross attention
            those of the queries, with those of the keys as their ``keys`` (what `Capture.tokens_of` gives).
        input: which input of ``tokens``.
        token: number of the chosen token, counted as in ``tokens``.

    Raises:
        InputError: attn is no (query, key) matrix of this input's tokens, or input or token does not exist.
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
    place, notes, words = None if token is None else view.place(token), [], ""
    if place is not None:
        notes = _pointers(place, queries if len(queries) > 1 else [], "y")
        notes += _pointers(place, keys if others is None else [], "x")
        words = f"chosen token, as query and as key: {view.names[place]}" if notes else ""
    elif token is None and others is None and len(queries) > 1:
        most = int(np.nan_to_num(shown).mean(0).argmax())
        notes = _pointers(keys[most], keys, "x")
        words = f"key that receives most: {view.names[keys[most]]}"
    marker = {"symbol": "triangle-down", "color": CHOSEN, "size": 7}
    key = [key_entry(words, mode="markers", marker=marker)] if words else []
    panel = replace(matrix_panel(shown, view, queries, keys, columns=columns), notes=notes)
    if len(keys) > _MOST_LABELS:  # few labels, which have room side by side
        panel = replace(panel, x=replace(panel.x, steep=False))
    return compose_matrices([panel], 1, Scale.of([shown], title), most=PAGE, key=key)


def compose_matrices(
    panels: Sequence[Panel], across: int, scale: Scale, most: float = 230, key: Sequence[Any] = ()
) -> go.Figure:
    """Panels of `matrix_panel` side by side, as large as their words need, beside the colour bar of them all.

    At most ``across`` stand in a row, with sides of up to ``most`` pixels where their words need no more.
    """
    font = theme_of("page").font
    rows, count = np.shape(panels[0].traces[0].z)
    marked = any(panel.notes for panel in panels)  # beyond the matrices' edges
    bar, gap = bar_room(scale, most, font, 1) + (font if marked else 0), 1.1 * font
    room = theme_of("page").widths["page"] - widest(panels[0].y.labels, font) - 4 * font - bar
    across = max(1, min(across, int(room / (LABEL * font * count + gap))))
    side = min(max(LABEL * font * count, min(room / across - gap, most)), room, _MOST)
    rest = max(room - across * (side + gap), 0) / 2
    # of others' queries, or of one alone, beside which the words of the titles find room
    words = max(text_width(word, 1.3 * font) for word in ("query", *scale.title.split()))
    tall = side if rows == count else min(side, max(12 * rows, words))
    masked = [masked_key()] if any(map(is_masked, panels)) else []
    fig = compose(
        panels, across, [*key, *masked], width="page", shared="xy", right=bar + rest, before={0: rest}, gap=gap,
        inner=tall, heading=font if marked else 0,
    )  # fmt: skip
    fig = add_scale(squared(fig) if rows == count else fig, scale, font)
    return fig.update_coloraxes(colorbar={"xpad": 1.3 * font}) if marked else fig


def matrix_panel(
    shown: np.ndarray, view: TokenView, queries: Sequence[int], keys: Sequence[int], title: str = "",
    scale: str = "coloraxis", columns: TokenView | None = None, whole: int = 0,
) -> Panel:  # fmt: skip
    """A matrix whose axes name the tokens at these places; ``customdata`` of a cell is [query, key].

    ``columns`` are the tokens of the keys where these are others than the queries'; ``whole`` is the number of tokens
    where not all of them are shown.
    """
    columns = columns or view
    x, y = _token_axis("key", columns, keys, whole), _token_axis("query", view, queries, whole)
    hidden = causal(shown)
    rows, across = (np.asarray(one.index, dtype=np.int32) for one in (view, columns))
    cells = go.Heatmap(
        z=np.where(hidden, np.nan, shown).astype(np.float32),  # half the bytes to the browser for every move
        x=x.more["categoryarray"], y=y.more["categoryarray"], coloraxis=scale, hoverongaps=False, name=title,
        customdata=np.stack(np.meshgrid(rows[list(queries)], across[list(keys)], indexing="ij"), -1),
        hovertemplate="from %{y}<br>to %{x}<br>%{z:.4f}<extra></extra>",
    )  # fmt: skip
    y = replace(y, low=y.high, high=y.low)
    shapes = [masked_shape()] if hidden.any() else []
    if view.grid is not None and len(keys) > _MOST_LABELS:  # where a row of patches ends
        ends = [n + 0.5 for n, place in enumerate(keys[:-1]) if _ends_a_row(columns, place)]
        rule: dict[str, Any] = {"type": "line", "line": {"color": "white", "width": 0.8}}
        shapes += [rule | {"x0": at, "x1": at, "y0": 0, "y1": 1, "yref": "domain"} for at in ends]
        both = ends if len(shown) == len(keys) else []
        shapes += [rule | {"y0": at, "y1": at, "x0": 0, "x1": 1, "xref": "domain"} for at in both]
    return Panel([cells], replace(x, steep=True), y, title, shapes=shapes)


def _ends_a_row(view: TokenView, place: int) -> bool:
    """Whether a token is a special one, or the last patch of a row."""
    row = view.patches.index(place) + 1 if view.kinds[place] not in SPECIAL else 0
    return view.grid is not None and row % view.grid[1] == 0


def _token_axis(word: str, view: TokenView, places: Sequence[int], whole: int) -> Axis:
    """The tokens at these places: each by its label, or of many patches the rows that they begin."""
    labels = [view.labels[place] for place in places]
    names, title = distinct(labels), word
    shown, said = names, labels
    if whole > len(places):
        title = f"{word} (first {len(places)} of {whole} tokens)"
    elif len(places) > _MOST_LABELS and view.grid is not None:
        rows = {f"{row},{view.grid[1] // 2}": f"row {row}" for row in range(view.grid[0])}
        kept = [n for n, label in enumerate(labels) if label in rows or view.kinds[places[n]] in SPECIAL]
        shown, said = [names[n] for n in kept], [rows.get(labels[n], labels[n]) for n in kept]
        title = f"{word} (patches, row by row)"
    elif len(places) > _MOST_LABELS:
        title = f"{word} (number of the token)"
    font = {"size": SMALL * theme_of("page").font}
    look = {"type": "category", "categoryarray": names, "ticklen": 2, "tickfont": font}
    return Axis(title, -0.5, len(places) - 0.5, names=tuple(shown), labels=tuple(said), more=look)


def asked_and_seen(weights: np.ndarray, view: TokenView) -> tuple[list[int], list[int]]:
    """Places of the queries and keys of a head's (query, key) matrix in the view, padding left out."""
    return view.real if len(weights) > 1 or len(view.index) == 1 else [view.asking], view.real


def _pointers(place: int, shown: list[int], axis: str) -> list[dict]:
    """An arrow head at the far end of a token's row or column: a frame would cover cells of two pixels."""
    if place not in shown:
        return []
    arrow = {axis: shown.index(place), "font": {"color": CHOSEN}, "borderpad": 0}
    if axis == "y":
        return [{**arrow, "text": "◂", "x": 1, "xref": "domain", "xanchor": "left", "yanchor": "middle"}]
    return [{**arrow, "text": "▾", "y": 1, "yref": "domain", "xanchor": "center", "yanchor": "bottom"}]
