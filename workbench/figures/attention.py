"""Attention itself, over an image or a text, and its entropy and distance through depth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from workbench.core.errors import InputError
from workbench.core.options import Numbers, parse_numbers, ranges
from workbench.figures.frames import rows_of
from workbench.figures.grammar import Plot
from workbench.figures.marks import Band, Dots, Line, Null
from workbench.figures.overlays import OVERLAY, cells, data_uri, shared_scale, square_cells, under_cells
from workbench.figures.theme import PAGE, even_choice
from workbench.figures.tokens import SPECIAL, as_array

MAX_LAYERS = 4
MAX_HEADS = 4
MAX_TOKENS = 40
LABEL_PIXELS = 9.5  # what a token label in 7 pt takes of an axis


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

    Over a patch grid: from one query token, the class token by default, to every patch, laid over the image.
    Over a text: the whole query × key matrix with the tokens as labels. All panels share one colour scale.

    Args:
        capture: a `workbench.Capture` with the site `attn`; anything indexed by layer whose records hold `.attn`
            (batch, head, query, key), with `.tokens` (labels, kinds, grid, mask), will do.
        input: which input of the batch.
        layers: by default at most four, evenly chosen, first and last included.
        heads: likewise.
        image: height × width (× 3) array, uint8 or float in 0..1, shown beneath; a plain map without it.
        query: index of the query token; by default the class token, else the mean over all queries.
        max_tokens: a text's first tokens are shown, padding left out.

    Raises:
        InputError: attn was not captured, or an input, layer, head or query does not exist.
    """
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
    if tokens.grid is not None:
        return _over_image(maps, chosen_layers, chosen_heads, tokens, input, image, query)
    return _over_text(maps, chosen_layers, chosen_heads, tokens, input, max_tokens)


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


# -------------------------------------------------------------------------------------------- over an image


def _over_image(
    maps: np.ndarray,
    layers: list[int],
    heads: list[int],
    tokens: Any,
    input: int,
    image: np.ndarray | None,
    query: int | None,
) -> go.Figure:
    kinds = list(tokens.kinds[input])
    patches = [index for index, kind in enumerate(kinds) if kind not in SPECIAL]
    rows, columns = tokens.grid
    if len(kinds) != maps.shape[-1] or len(patches) != rows * columns:
        raise InputError(
            f"{maps.shape[-1]} tokens do not fit {rows} × {columns} patches and {len(kinds) - len(patches)} others"
        )
    if query is not None and not -len(kinds) <= query < len(kinds):
        raise InputError(f"no query token {query}; the input has {len(kinds)}")
    if query is None and "class" in kinds:
        query = kinds.index("class")
    from_query = maps.mean(axis=2) if query is None else maps[:, :, query]
    grids = from_query[:, :, patches].reshape(len(layers), len(heads), rows, columns)
    whence = "mean over queries" if query is None else f"from {tokens.labels[input][query]}"

    lead = image is not None  # the first column shows the input itself
    width = len(heads) + lead
    fig = make_subplots(
        len(layers),
        width,
        horizontal_spacing=0.015,
        vertical_spacing=0.02,
        column_titles=[*(["input"] if lead else []), *(f"head {head}" for head in heads)],
    )
    plain = None if image is None else data_uri(image)
    faded = None if image is None else data_uri(image, fade=True)
    frame = under_cells(rows, columns)
    for i, layer in enumerate(layers):
        if lead:
            # An invisible map gives the panel its axes; without a trace plotly would not draw the image.
            fig.add_trace(cells([[None] * columns] * rows, "input"), row=i + 1, col=1)
            fig.add_layout_image(source=plain, row=i + 1, col=1, **frame)
        for j, head in enumerate(heads):
            place = {"row": i + 1, "col": j + 1 + lead}
            fig.add_trace(cells(grids[i, j], f"layer {layer}, head {head}"), **place)
            if lead:
                fig.add_layout_image(source=faded, **place, **frame)
        fig.update_yaxes(title_text=f"layer {layer}", row=i + 1, col=1)
    square_cells(fig, rows, columns)
    fig.update_annotations(font={"size": None})
    margin = {"l": 26, "r": 62, "t": 20, "b": 8}
    cell = (PAGE - margin["l"] - margin["r"]) / max(width, 3)
    fig.update_layout(
        coloraxis=shared_scale(OVERLAY if lead else None, float(grids.max()), f"Attention {whence}"),
        margin=margin,
        height=round(cell * rows / columns * len(layers) + margin["t"] + margin["b"]),
    )
    return fig


# --------------------------------------------------------------------------------------------- over a text


def _over_text(
    maps: np.ndarray, layers: list[int], heads: list[int], tokens: Any, input: int, max_tokens: int
) -> go.Figure:
    real = [index for index, kind in enumerate(tokens.kinds[input]) if kind != "padding"]
    shown = real[: max(max_tokens, 1)]
    labels = [str(tokens.labels[input][index]) for index in shown]
    if len(tokens.kinds[input]) != maps.shape[-1] or maps.shape[-2] != maps.shape[-1]:
        raise InputError(
            f"attention is {maps.shape[-2]} × {maps.shape[-1]} but the input has {len(tokens.kinds[input])} tokens"
        )
    longest = max(len(label) for label in labels)
    margin = {"l": 22 + round(5.2 * longest), "r": 62, "t": 20, "b": 22 + round(5.2 * longest)}
    need = LABEL_PIXELS * len(shown)
    panels = [(layer, head) for layer in range(len(layers)) for head in range(len(heads))]
    room = PAGE - margin["l"] - margin["r"]
    width = max(1, min(len(heads), int(room / (need + 10))))
    lines = -(-len(panels) // width)
    side = max(need, min(room / width, 200))
    fig = make_subplots(
        lines,
        width,
        shared_yaxes="all",
        shared_xaxes="all",
        horizontal_spacing=0.02,
        vertical_spacing=min(0.9 / max(lines - 1, 1), 20 / (side * lines)) if lines > 1 else 0,
        subplot_titles=[f"layer {layers[layer]}, head {heads[head]}" for layer, head in panels],
    )
    grid = maps[:, :, shown][:, :, :, shown]
    places = list(range(len(shown)))
    for index, (layer, head) in enumerate(panels):
        fig.add_trace(
            go.Heatmap(
                z=grid[layer, head],
                x=places,
                y=places,
                customdata=[[[query, key] for key in labels] for query in labels],
                coloraxis="coloraxis",
                name=f"layer {layers[layer]}, head {heads[head]}",
                hovertemplate="from %{customdata[0]}<br>to %{customdata[1]}<br>%{z:.4f}<extra></extra>",
            ),
            row=index // width + 1,
            col=index % width + 1,
        )
    small = {"tickvals": places, "ticktext": labels, "tickfont": {"size": 7 / 0.75}, "ticklen": 2}
    fig.update_xaxes(tickangle=-90, **small)
    fig.update_yaxes(autorange="reversed", **small)
    cut = f" (first {len(shown)} of {len(real)} tokens)" if len(shown) < len(real) else ""
    fig.update_xaxes(title_text=f"to key{cut}", row=lines)
    fig.update_yaxes(title_text="from query", col=1)
    fig.update_annotations(font={"size": None})
    fig.update_layout(
        coloraxis=shared_scale(None, float(grid.max()), "Attention"),
        margin=margin,
        height=round(side * lines + 20 * (lines - 1) + margin["t"] + margin["b"]),
    )
    return fig


# ------------------------------------------------------------------------------------------------- summary


def attention_summary_figure(
    frame: pd.DataFrame, metrics: Sequence[str] = ("attention_entropy", "attention_distance")
) -> go.Figure:
    """Entropy and mean distance of attention through depth: a panel per metric, a line per model.

    The line is the mean over heads and inputs. With one model each head is a dot (mean over inputs) and a band the
    95 % confidence interval over inputs; with several, a band holds the interquartile range of the heads. The null
    distribution is drawn in grey where the frame carries a null.

    Raises:
        InputError: the frame holds none of the metrics, or no layers.
    """
    rows = rows_of(frame, metrics, needs=("layer",))
    present = [metric for metric in metrics if (rows["metric"] == metric).any()]
    several = rows["model"].nunique() > 1
    marks = (Band(quantiles=(25, 75), over="head"),) if several else (Band(over="input"), Dots())
    return Plot(frame).metric(*present).add(Null(), *marks, Line()).figure("page")
