"""Attention itself, over an image or a text, and its entropy and distance through depth."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from workbench.core.errors import InputError
from workbench.core.options import Numbers, parse_numbers, ranges
from workbench.figures.arguments import check_arguments
from workbench.figures.attention_matrix import asked_and_seen, compose_matrices, matrix_panel
from workbench.figures.drawing import SERIES
from workbench.figures.frames import rows_of
from workbench.figures.grammar import Plot
from workbench.figures.maps import compose_maps, map_panel
from workbench.figures.marks import Band, Dots, Line, Null, Rule
from workbench.figures.scales import Scale
from workbench.figures.theme import even_choice
from workbench.figures.tokens import TokenView, as_array, check_token, head_weights, view_tokens

MAX_LAYERS = 4
MAX_HEADS = 4
MAX_TOKENS = 40


def attention_heatmap_figure(
    capture: Any,
    input: int = 0,
    layers: Numbers = None,
    heads: Numbers = None,
    image: np.ndarray | None = None,
    query: int | None = None,
    max_tokens: int = MAX_TOKENS,
) -> go.Figure:
    """Attention of chosen layers (rows) and heads (columns).

    Over a patch grid: from one query token, the class token by default, to every patch, beside the image.
    Over a text: the whole query × key matrix with the tokens as labels. All panels share one colour scale.

    Args:
        capture: a `workbench.Capture` with the site `attn`; anything indexed by layer whose records hold `.attn`
            (batch, head, query, key), with `.tokens` (labels, kinds, grid, mask), will do.
        input: which input of the batch.
        layers: by default at most four, evenly chosen, first and last included.
        heads: likewise.
        image: height × width (× 3) array, uint8 or float in 0..1, shown at the left.
        query: index of the query token; by default the class token, else the mean over all queries.
        max_tokens: a text's first tokens are shown, padding left out.

    Raises:
        InputError: attn was not captured, or an input, layer, head or query does not exist.
    """
    check_arguments(capture=capture)
    tokens = capture.tokens
    records = {record.index: record for record in capture}
    chosen_layers = _choose("layer", layers, sorted(records), MAX_LAYERS)
    first = records[chosen_layers[0]]
    if getattr(first, "attn", None) is None:
        raise InputError("the capture holds no attention; capture it with sites=('attn', …)")
    count = len(tokens.labels)
    if not -count <= input < count:
        raise InputError(f"input {input} does not exist; the capture holds {count}")
    chosen_heads = _choose("head", heads, range(as_array(first.attn[input]).shape[0]), MAX_HEADS)
    maps = np.stack([as_array(records[layer].attn[input])[chosen_heads] for layer in chosen_layers])
    view = view_tokens(tokens, input, maps.shape[-1])
    if tokens.grid is not None:
        return _over_image(maps, chosen_layers, chosen_heads, view, check_token(query, tokens, input), image)
    return _over_text(maps, chosen_layers, chosen_heads, view, max_tokens)


def _choose(kind: str, asked: Numbers, known: Sequence[int], most: int) -> list[int]:
    known = list(known)
    numbers = parse_numbers(kind, asked)
    if numbers is None:
        return [known[index] for index in even_choice(len(known), most)]
    places = [known[number] if -len(known) <= number < 0 else number for number in numbers]
    missing = [place for place in places if place not in known]
    if missing:
        raise InputError(f"no {kind} {missing[0]}; there are {ranges(known)}")
    return sorted(set(places))


def _over_image(
    maps: np.ndarray, layers: list[int], heads: list[int], view: TokenView, query: int | None, image: np.ndarray | None
) -> go.Figure:  # fmt: skip
    place = view.place(query) if query is not None else view.asking if "class" in view.kinds else None
    if maps.shape[2] == 1:  # class attention, which has one query
        place, rows = view.asking, maps[:, :, 0]
    else:
        rows = maps.mean(axis=2) if place is None else maps[:, :, place]
    grids = rows[:, :, view.patches].reshape(len(layers), len(heads), *(view.grid or ()))
    whence = "mean over queries" if place is None else f"from {view.labels[place]}"
    panels = []
    for (i, layer), (j, head) in itertools.product(enumerate(layers), enumerate(heads)):
        title, side = "" if i else f"head {head}", "" if j else f"layer {layer}"
        panels.append(map_panel(grids[i, j], f"layer {layer}, head {head}", title, side))
    return compose_maps(panels, len(heads), Scale.of([grids], f"Attention weight, {whence}"), image=image)


def _over_text(
    maps: np.ndarray, layers: list[int], heads: list[int], view: TokenView, max_tokens: int
) -> go.Figure:
    queries, keys = asked_and_seen(head_weights(maps[0, 0]), view)
    shown = keys[: max(max_tokens, 1)]
    asking = [place for place in queries if place in shown]
    grid = maps[:, :, asking if maps.shape[2] > 1 else [0]][..., shown]
    panels = []
    for (i, layer), (j, head) in itertools.product(enumerate(layers), enumerate(heads)):
        title = f"layer {layer}, head {head}"
        panels.append(matrix_panel(grid[i, j], view, asking, shown, title, whole=len(keys)))
    return compose_matrices(panels, len(heads), Scale.of([grid], "Attention weight"))


def attention_summary_figure(
    frame: pd.DataFrame,
    metrics: Sequence[str] = ("attention_entropy", "attention_distance"),
    grids: Mapping[str, tuple[int, int] | None] | None = None,
) -> go.Figure:
    """Entropy and mean distance of attention through depth, from 0: a row per metric, of several models a column each.

    The line is the mean over heads and inputs, each head is a dot (mean over inputs), a band the 95 % confidence
    interval over inputs. The null distribution is drawn in grey where the frame carries a null, and a line for even
    attention: at an entropy share of 1, and at its mean distance over the patches of those models whose ``grids`` are
    given, rows and columns.

    Raises:
        InputError: the frame holds none of the metrics, or no layers.
    """
    rows = rows_of(frame, metrics, needs=("layer",))
    present = [metric for metric in metrics if (rows["metric"] == metric).any()]
    several = rows["model"].nunique() > 1
    distances = {name: _mean_distance(grid) for name, grid in (grids or {}).items() if grid}
    of_distance = frame["model"].map(distances).where(frame["metric"] == "attention_distance")
    level = of_distance.mask(frame["metric"] == "attention_entropy_share", 1.0)
    plot = Plot(frame.assign(even=level), panel=SERIES if several else None).metric(*present)
    units = rows.groupby("metric")["unit"].nunique() > 1 if "unit" in rows else {}
    apart = [metric for metric in present if several and units.get(metric, False)]  # patches and tokens
    plot = plot.scale(y_zero=True, x_free=several, y_free=apart)
    line, rule = Line(words="mean over inputs and heads"), Rule(name="even attention", column="even")
    plot = plot.add(Null(), Band(over="input"), Dots(), line, rule)
    return plot.figure("page", height=118 * len(present) + 90 if several else None)


def _mean_distance(grid: tuple[int, int]) -> float:
    """From patch to patch, in patches, over all pairs."""
    places = np.indices(grid).reshape(2, -1)
    return float(np.hypot(*(places[:, :, None] - places[:, None])).mean())
