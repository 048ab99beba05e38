"""Lengths of the queries, keys and values of one head, token by token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import plotly.graph_objects as go

from workbench.core.errors import InputError
from workbench.figures.composition import Axis, Panel, compose, round_up
from workbench.figures.scales import Scale
from workbench.figures.theme import COLOURS, theme_of
from workbench.figures.token_panels import Numbers, patch_panels, with_images
from workbench.figures.tokens import TokenView, as_array, distinct, view_tokens

WORDS = {"q": "queries", "k": "keys", "v": "values"}


def token_norms_figure(
    norms: Mapping[str, Any], tokens: Any, image: np.ndarray | None = None, input: int = 0
) -> go.Figure:
    """L2 norms of one head's operands: a map each over a patch grid, bars each over a text.

    Every operand has a scale of its own from 0, which its patches and its class and register tokens share; the latter
    stand beneath with their numbers. A text's padding is left out. ``customdata`` of a cell or bar is its token's
    number.

    Args:
        norms: operand ("q", "k", "v", or another name) to (token,) norms, in the unit of the operand; a single query,
            as class attention has, is that of the class token, and as many as there are patches are theirs.
        tokens: labels, kinds and grid of the batch, as `workbench.captures.TokenInfo` holds them.
        image: height × width (× 3) array, uint8 or float in 0..1.
        input: which input of ``tokens``.

    Raises:
        InputError: no norms, norms that are not one per token, or no such input.
    """
    if not norms:
        raise InputError("no norms are given; give a dict such as {'q': …, 'k': …, 'v': …}, each (token,)")
    lengths = {name: as_array(values) for name, values in norms.items()}
    for name, values in lengths.items():
        if values.ndim != 1:
            raise InputError(
                f"norms of {name} have shape {values.shape}; give one number per token of one head"
            )
    view = view_tokens(tokens, input, max(map(len, lengths.values())))
    whole = {name: _of_view(name, values, view) for name, values in lengths.items()}
    return _bars(whole, view) if view.grid is None else _maps(whole, view, image)


def _of_view(name: str, values: np.ndarray, view: TokenView) -> np.ndarray:
    """A norm per token of the view, NaN where a token has none."""
    try:
        places = view.places(len(values))
    except InputError as error:
        raise InputError(
            f"{len(values)} norms of {name} do not fit {len(view.index)} tokens; give one per token, one per patch, or "
            "that of a single query"
        ) from error
    found = np.full(len(view.index), np.nan)
    found[places] = values
    return found


def _maps(norms: Mapping[str, np.ndarray], view: TokenView, image: np.ndarray | None) -> go.Figure:
    panels, scales = [], []
    for number, (name, values) in enumerate(norms.items(), start=1):
        panels.append(
            Numbers(WORDS.get(name, name), f"‖{name}‖ of", values, f"coloraxis{number if number > 1 else ''}")
        )
        scales.append(Scale.of([values], f"‖{name}‖"))
    return patch_panels(view, with_images(panels, [image]), scales)


def _bars(norms: Mapping[str, np.ndarray], view: TokenView) -> go.Figure:
    """A row of bars per operand, one under another, with the words beneath."""
    real = view.real
    words = distinct([view.labels[place] for place in real])
    x = Axis("", -0.5, len(real) - 0.5, names=tuple(words), steep=True, more={"type": "category"})
    panels = []
    for number, (name, values) in enumerate(norms.items()):
        bars = go.Bar(
            x=words, y=values[real], marker={"color": COLOURS[number % len(COLOURS)], "line": {"width": 0}},
            customdata=[view.index[place] for place in real], name=f"‖{name}‖", showlegend=False,
            hovertemplate=f"‖{name}‖ of %{{x}}<br>%{{y:.4g}}<extra></extra>",
        )  # fmt: skip
        highest = float(np.nanmax(values[real], initial=0.0))
        panels.append(Panel([bars], x, Axis(f"‖{name}‖", 0, round_up(highest))))
    return compose(panels, 1, width="page", shared="x", inner=7 * theme_of("page").font)
