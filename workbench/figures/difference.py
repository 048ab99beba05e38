"""Two attention maps side by side, and by how much they differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from workbench.core.errors import InputError
from workbench.figures.attention_matrix import asked_and_seen, matrix_cells
from workbench.figures.overlays import DIFFERENCE, OVERLAY, flat_scale
from workbench.figures.patch_panels import BAR, WIDTH, Panel, panel_domains, patch_panels
from workbench.figures.theme import DIVERGING, SEQUENTIAL
from workbench.figures.token_attention import head_weights
from workbench.figures.tokens import (
    TokenView,
    as_array,
    check_token,
    largest,
    not_finite,
    plain_view,
    view_tokens,
)

Images = np.ndarray | Sequence[np.ndarray | None] | None


def difference_figure(
    first: Any,
    second: Any,
    names: tuple[str, str],
    tokens: tuple[Any, Any] = (None, None),
    image: Images = None,
    token: int | None = None,
    input: int = 0,
) -> go.Figure:
    """Two attention maps on one scale from 0, and second − first on a symmetric one, white or transparent at 0.

    Over an image, attention from one token (the mean over queries without one) is laid over the patches; else the
    whole query × key matrices are drawn. Maps that do not fit each other, in their shapes, patch grids or words, stand
    side by side without a difference, and a sentence says why. Where they fit, another gives their total variation
    distance per query, ½ Σ_j |second_ij − first_ij|: the mean over queries, and that of the chosen token.

    Args:
        first: attention of one head, (query, key), or of one query, (key,); dimensionless.
        second: likewise.
        names: what to call them.
        tokens: of each, labels, kinds and grid of the batch, as `workbench.captures.TokenInfo` holds them.
        image: height × width (× 3) array, uint8 or float in 0..1, under all maps; or a pair, one for each.
        token: number of the chosen token, counted as in ``tokens``.
        input: which input of ``tokens``.

    Raises:
        InputError: one of them is no attention of the tokens given for it, or there is no such token or input.
    """
    weights = [as_array(one) for one in (first, second)]
    weights = [head_weights(one[None] if one.ndim == 1 else one) for one in weights]
    views = [_view(one, info, input) for one, info in zip(weights, tokens, strict=True)]
    known = next((info for info in tokens if info is not None), None)
    token = token if known is None else check_token(token, known, input)
    reason = _unlike(weights, views, names)
    if reason:
        return _matrices(weights, views, names, [reason])
    place = None if token is None else views[0].place(token)
    notes = not_finite(np.stack(weights)) or [_distance(weights, views[0], place)]
    if views[0].grid is not None and (image is not None or as_array(first).ndim == 1):
        return _maps(weights, views[0], names, image, place, notes)
    return _matrices(weights, views, names, notes, weights[1] - weights[0])


def _view(weights: np.ndarray, tokens: Any, input: int) -> TokenView:
    return plain_view(weights.shape[1]) if tokens is None else view_tokens(tokens, input, weights.shape[1])


def _unlike(weights: Sequence[np.ndarray], views: Sequence[TokenView], names: tuple[str, str]) -> str:
    """Why no difference can be taken; empty where it can."""
    if weights[0].shape != weights[1].shape:
        shapes = [" × ".join(map(str, one.shape)) for one in weights]
        return f"No difference: {names[0]} is {shapes[0]}, {names[1]} is {shapes[1]}."
    if views[0].grid != views[1].grid:
        return f"No difference: their patch grids differ, {views[0].grid} and {views[1].grid}."
    if views[0].kinds != views[1].kinds or (views[0].grid is None and views[0].labels != views[1].labels):
        return "No difference: their tokens are not the same."
    return ""


def _distance(weights: Sequence[np.ndarray], view: TokenView, place: int | None) -> str:
    """The total variation distance in a sentence."""
    rows = np.abs(weights[1] - weights[0]).sum(-1) / 2
    if len(rows) == 1 < len(view.index):
        return f"Total variation distance: {rows[0]:.3f}."
    own = "" if place is None else f"; from {view.labels[place]}: {rows[place]:.3f}"
    return f"Total variation distance: {rows[view.real].mean():.3f} over all queries{own}."


def _scales(
    shown: Sequence[np.ndarray], change: np.ndarray | None, notes: Sequence[str], overlay: bool, title: str
) -> dict[str, dict]:
    """The colour axes of both maps and of their difference, each with its bar beneath."""
    domains = panel_domains(2 if change is None else 3)
    across = (domains[0][0], domains[1][1])
    scale = OVERLAY if overlay else SEQUENTIAL
    scales = {"coloraxis": flat_scale(scale, (0.0, largest(*shown)), title, across, notes)}
    if change is not None:
        end = largest(np.abs(change))
        ends = (-end, end)
        scales["coloraxis2"] = flat_scale(
            DIFFERENCE if overlay else DIVERGING, ends, "second − first", domains[2]
        )
        said = f"{end:.2g}"
        scales["coloraxis2"]["colorbar"] |= {"tickvals": [-end, 0, end], "ticktext": [f"−{said}", "0", said]}
    return scales


def _maps(
    weights: Sequence[np.ndarray],
    view: TokenView,
    names: tuple[str, str],
    image: Images,
    place: int | None,
    notes: list[str],
) -> go.Figure:
    if len(weights[0]) == 1:
        rows, whence = [one[0] for one in weights], f"from {view.labels[view.asking]}"
    elif place is None:
        rows, whence = [one.mean(0) for one in weights], "mean over queries"
    else:
        rows, whence = [one[place] for one in weights], f"from {view.labels[place]}"
    change = rows[1] - rows[0]
    panels = [Panel(name, f"{name}, {whence} to", row) for name, row in zip(names, rows, strict=True)]
    panels.append(Panel("second − first", "difference, at", change, "coloraxis2"))
    if image is None or isinstance(image, np.ndarray):
        images: list[np.ndarray | None] = [image] * 3
    else:
        images = [*image, None]  # the difference of two images' maps belongs to neither
    if len(images) != 3:
        raise InputError(f"give one image for both maps or a pair; got {len(images) - 1}")
    shown = [row[view.patches] for row in rows]
    scales = _scales(shown, change[view.patches], notes, image is not None, f"Attention weight, {whence}")
    return patch_panels(view, panels, images, scales, place)


def _matrices(
    weights: Sequence[np.ndarray],
    views: Sequence[TokenView],
    names: tuple[str, str],
    notes: list[str],
    change: np.ndarray | None = None,
) -> go.Figure:
    drawn = [*zip(names, weights, views, strict=True)]
    if change is not None:
        drawn.append(("second − first", change, views[0]))
    traces, shown = [], []
    layout: dict[str, Any] = {"annotations": []}
    domains = panel_domains(len(drawn))
    for number, ((name, matrix, view), domain) in enumerate(zip(drawn, domains, strict=True), start=1):
        axis = "" if number == 1 else str(number)
        queries, keys = asked_and_seen(matrix, view)
        part = matrix[np.ix_(queries if len(matrix) > 1 else [0], keys)]
        shown.append(part)
        scale = {"coloraxis": "coloraxis2"} if number == 3 else {}
        axes = {"xaxis": f"x{axis}", "yaxis": f"y{axis}", "name": name}
        traces.append(matrix_cells(part, view, queries, keys, "%{z:.4f}", None, **axes, **scale))
        bare = {"type": "category", "showticklabels": False, "ticks": "", "constrain": "domain"}
        square = {"scaleanchor": f"x{axis}"} if len(queries) > 1 else {}
        layout[f"xaxis{axis}"] = {
            **bare, "domain": domain, "range": [-0.5, len(keys) - 0.5], "anchor": f"y{axis}",
        }  # fmt: skip
        layout[f"yaxis{axis}"] = {
            **bare, **square, "range": [len(queries) - 0.5, -0.5], "anchor": f"x{axis}", "constraintoward": "top",
        }  # fmt: skip
        layout["annotations"].append(
            {"text": name, "x": 0.5, "y": 1, "xref": f"x{axis} domain", "yref": f"y{axis} domain"}
            | {"showarrow": False, "xanchor": "center", "yanchor": "bottom"}
        )
    side = (WIDTH - 40) * (domains[0][1] - domains[0][0])
    layout["margin"] = {"l": 24, "r": 8, "t": 20, "b": 8}
    layout["width"] = WIDTH
    layout["height"] = round(side) + 28 + BAR + 28
    title = "Attention weight, query (row) to key (column)"
    return go.Figure(
        traces, {**layout, **_scales(shown[:2], None if change is None else shown[2], notes, False, title)}
    )
