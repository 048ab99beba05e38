"""From a token and to it: where it attends and what attends to it, over the image or the text."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go

from workbench.core.errors import InputError
from workbench.figures.scales import Scale, causal
from workbench.figures.token_panels import Numbers, page, patch_panels, with_images, word_panels
from workbench.figures.tokens import TokenView, as_array, check_token, not_finite, view_tokens

MAX_LINES = 8


def token_attention_figure(
    attn: Any,
    tokens: Any,
    token: int | None,
    image: np.ndarray | None = None,
    input: int = 0,
    max_lines: int = MAX_LINES,
) -> go.Figure:
    """Two linked panels of one head: where a token attends (its row), and what attends to it (its column).

    Over a patch grid two maps beside the image, where one is given, with the class, distillation and register tokens
    as cells beneath, each with its number: the cells of the first panel add up to the row. Over a text the words
    in reading order as boxes; of a long text the part of ``max_lines`` lines that holds the chosen one. Padding is
    left out. Both panels share one scale from 0. Every cell and box carries its token's number as ``customdata``.

    Class attention, which has one query, has no second panel; nor has the mean over queries. A token that takes no part
    in the layer (the class token, where it joins the patches later) gives the mean over queries, and says so.

    Args:
        attn: attention weights of one head, (query, key), dimensionless; or (1, key).
        tokens: labels, kinds and grid of the batch, as `workbench.captures.TokenInfo` holds them.
        token: number of the chosen token, counted as in ``tokens``; None is the mean over all queries but padding.
        image: height × width (× 3) array, uint8 or float in 0..1.
        input: which input of ``tokens``.

    Raises:
        InputError: attn is no (query, key) matrix of this input's tokens, or input or token does not exist.
    """
    weights = head_weights(attn)
    view = view_tokens(tokens, input, weights.shape[1])
    token = check_token(token, tokens, input)
    place = None if token is None else view.place(token)
    panels, notes = _panels(weights, view, place)
    if token is not None and place is None:
        notes.append(f"{tokens.labels[input][token]} takes no part in this layer")
    notes += not_finite(weights)
    title = "Attention weight"
    if view.grid is not None:
        scale = Scale.of([panel.values for panel in panels], title)
        return patch_panels(view, with_images(panels, [image]), [scale], place, notes, most=True)
    shown = page(view, place, max_lines)
    if len(shown) < len(view.real):
        share = panels[0].values[shown].sum() / (panels[0].values.sum() or 1.0)
        notes.append(
            f"Tokens {shown[0]} to {shown[-1]} of {len(view.real)} are shown; they hold {100 * share:.0f} % of the "
            f"attention {panels[0].title.partition(':')[0].replace(', blue frame', '')}."
        )
    hidden = bool(causal(weights).any()) and place is not None
    notes += ["Grey letters: masked, since no query sees a later key. A dot is a space."] * hidden
    scale = Scale.of([panel.values[shown] for panel in panels], title)
    return word_panels(view, panels, shown, scale, place, notes, hidden)


def head_weights(attn: Any, cross: bool = False) -> np.ndarray:
    """Attention of one head as a float64 matrix (query, key); raises `InputError` for anything else.

    Queries and keys are the same tokens, unless it is ``cross`` attention.
    """
    weights = as_array(attn)
    if weights.ndim != 2:
        raise InputError(
            f"attention of one head is (query, key); got shape {weights.shape}: choose an input and a head"
        )
    if weights.shape[0] not in (1, weights.shape[1]) and not cross:
        raise InputError(
            f"attention of {weights.shape[0]} queries to {weights.shape[1]} keys is not among the same tokens"
        )
    return weights


def _panels(weights: np.ndarray, view: TokenView, place: int | None) -> tuple[list[Numbers], list[str]]:
    """What is drawn of a head's weights, and what has to be said about it."""
    if len(weights) == 1 < weights.shape[1]:
        asks = view.labels[view.asking] if "class" in view.kinds else "the query"
        note = f"Class attention has one query, {asks}: nothing attends to the other tokens."
        return [Numbers(f"from {asks}: where it attends", f"from {asks} to", weights[0])], [note]
    if place is None:
        title, mean = f"from all {len(view.real)} tokens: where they attend", weights[view.real].mean(0)
        return [Numbers(title, "mean over queries, to", mean)], []
    name = view.names[place]
    shown = name.removesuffix(")") + ", blue frame)" if name.endswith(")") else f"{name} (blue frame)"
    return [
        Numbers(f"from {shown}: where it attends", f"from {name} to", weights[place]),
        Numbers(f"to {shown}: what attends to it", f"to {name} from", weights[:, place]),
    ], []
