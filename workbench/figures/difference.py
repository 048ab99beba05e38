"""Two attention maps side by side, and by how much they differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from workbench.core.errors import InputError
from workbench.figures.attention_matrix import asked_and_seen, matrix_panel
from workbench.figures.frames import short_name
from workbench.figures.maps import is_masked, over_bars, squared
from workbench.figures.scales import Scale, masked_key
from workbench.figures.theme import theme_of
from workbench.figures.token_attention import head_weights
from workbench.figures.token_panels import Numbers, patch_panels, row_of_panels, with_images
from workbench.figures.tokens import (
    TokenView,
    as_array,
    check_token,
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
    """Two attention maps on one scale from 0, and second − first on a symmetric one, white at 0.

    Of an image, the attention from one token (the mean over queries without one) is drawn patch by patch; else the
    whole query × key matrices. Maps that do not fit each other, in their shapes, patch grids or words, stand
    side by side without a difference, and a sentence says why.

    Args:
        first: attention of one head, (query, key), or of one query, (key,); dimensionless.
        second: likewise.
        names: what to call them.
        tokens: of each, labels, kinds and grid of the batch, as `workbench.captures.TokenInfo` holds them.
        image: height × width (× 3) array, uint8 or float in 0..1, beside the maps; or a pair, one for each.
        token: number of the chosen token, counted as in ``tokens``.
        input: which input of ``tokens``.

    Raises:
        InputError: one of them is no attention of the tokens given for it, or there is no such token or input.
    """
    names = short_name(names[0]), short_name(names[1])
    weights = [as_array(one) for one in (first, second)]
    weights = [head_weights(one[None] if one.ndim == 1 else one) for one in weights]
    counts = [one.shape[1] for one in weights]
    views = [
        plain_view(count) if info is None else view_tokens(info, input, count)
        for count, info in zip(counts, tokens, strict=True)
    ]
    known = next((info for info in tokens if info is not None), None)
    token = token if known is None else check_token(token, known, input)
    if reason := _unlike(weights, views, names):
        return _matrices(weights, views, names, [reason])
    place = None if token is None else views[0].place(token)
    notes = not_finite(np.stack(weights))
    if views[0].grid is not None and (image is not None or as_array(first).ndim == 1):
        return _maps(weights, views[0], names, image, place, notes)
    return _matrices(weights, views, names, notes, weights[1] - weights[0])


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


def _scales(shown: Sequence[np.ndarray], change: np.ndarray | None, title: str) -> list[Scale]:
    """That of both maps, and that of their difference where there is one."""
    scales = [Scale.of(shown, title)]
    return scales if change is None else [*scales, Scale.of([change], "difference", middle=0.0)]


def _maps(
    weights: Sequence[np.ndarray], view: TokenView, names: tuple[str, str], image: Images, place: int | None,
    notes: list[str],
) -> go.Figure:  # fmt: skip
    if len(weights[0]) == 1:
        rows, whence = [one[0] for one in weights], f"from {view.labels[view.asking]}"
    elif place is None:
        rows, whence = [one.mean(0) for one in weights], "mean over queries"
    else:
        rows, whence = [one[place] for one in weights], f"from {view.names[place]} (blue frame)"
    change = rows[1] - rows[0]
    panels = [Numbers(name, f"{name}, {whence} to", row) for name, row in zip(names, rows, strict=True)]
    panels.append(Numbers(f"{names[1]} − {names[0]}", "difference, at", change, "coloraxis2"))
    images = [image] if image is None or isinstance(image, np.ndarray) else [*image]
    if isinstance(image, (list, tuple)) and len(images) != 2:
        raise InputError(f"give one image for both maps or a pair; got {len(images)}")
    first, last = images[0], images[-1]
    if first is not None and last is not None and np.array_equal(first, last):
        images = [first]
    scales = _scales(rows, change, f"Attention weight, {whence}")
    return patch_panels(view, with_images(panels, images), scales, place, notes)


def _matrices(
    weights: Sequence[np.ndarray], views: Sequence[TokenView], names: tuple[str, str], notes: list[str],
    change: np.ndarray | None = None,
) -> go.Figure:  # fmt: skip
    drawn = [*zip(names, weights, views, strict=True)]
    if change is not None:
        drawn.append((f"{names[1]} − {names[0]}", change, views[0]))
    side, gap, rest = row_of_panels(len(drawn))
    panels = []
    for number, (name, matrix, view) in enumerate(drawn):
        queries, keys = asked_and_seen(matrix, view)
        part = matrix[np.ix_(queries if len(matrix) > 1 else [0], keys)]
        scale = "coloraxis2" if number == 2 else "coloraxis"
        panels.append(matrix_panel(part, view, queries, keys, name, scale=scale))
    shown = [panel.traces[0].z for panel in panels]
    scales = _scales(shown[:2], None if change is None else shown[2], "Attention weight")
    masked = [masked_key()] if any(map(is_masked, panels)) else []
    tall = side if max(map(len, shown)) > 1 else 2.5 * theme_of("page").font
    fig = over_bars(
        panels, len(panels), scales, key=masked, gap=gap, before={0: rest}, right=rest, notes=notes,
        inner=0.8 * tall, shared="" if change is None else "y",
    )  # fmt: skip
    return squared(fig) if max(map(len, shown)) > 1 else fig
