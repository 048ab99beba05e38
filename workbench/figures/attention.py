"""Attention itself, over an image or a text, and its entropy and distance through depth."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from workbench.core.errors import InputError
from workbench.core.options import Numbers, checked, parse_numbers, ranges
from workbench.figures.composition import in_the_middle
from workbench.figures.figure_arguments import check_arguments
from workbench.figures.frames import rows_of
from workbench.figures.grammar import Plot
from workbench.figures.maps import compose_maps, map_panel
from workbench.figures.marks import Band, Dots, Line, Null
from workbench.figures.matrix_panels import asked_and_seen, compose_matrices, matrix_panel
from workbench.figures.scales import Scale
from workbench.figures.specification import SERIES
from workbench.figures.theme import even_choice
from workbench.figures.tokens import TokenView, as_array, check_token, head_weights, pooled_view, view_tokens

_MAX_LAYERS = 4
_MAX_HEADS = 4
MAX_TOKENS = 40


@checked
def attention_heatmap_figure(
    capture: Any,
    input: int = 0,
    layers: Numbers = None,
    heads: Numbers = None,
    image: np.ndarray | None = None,
    query: int | None = None,
    max_tokens: int = MAX_TOKENS,
    width: str | float = "page",
    written_by: Any = None,
) -> go.Figure:
    """Attention of chosen layers (rows) and heads (columns).

    Over a patch grid: from one query token, the class token by default, to every patch, beside the image. Keys that
    are pooled patches are drawn over their own, coarser grid.
    Over a text: the whole query × key matrix with the tokens as labels. All panels share one colour scale.
    Layers that attend over anything else (channels, windows, tokens of a decoder) are named under the figure.

    Args:
        capture: a `workbench.Capture` with the site `attn`; anything indexed by layer whose records hold `.attn`
            (batch, head, query, key), with `.tokens` (labels, kinds, grid, mask), will do.
        input: which input of the batch.
        layers: by default at most four, evenly chosen, first and last included.
        heads: by default at most four, evenly chosen.
        image: height × width (× 3) array, uint8 or float in 0..1, shown at the left.
        query: index of the query token; by default the class token, else the mean over all queries.
        max_tokens: a text's first tokens are shown, padding left out.
        width: inches, or one of `workbench.figures.theme.WIDTHS`.
        written_by: the captured model, to draw the written norm ‖attention · v · W_O‖ of every pair of tokens instead
            (Kobayashi et al. 2020). The capture needs the sites `attn`, `v`, `head_out` and `proj_out`.

    Raises:
        InputError: attn was not captured, an input, layer, head or query does not exist, or no layer can be drawn.
    """
    check_arguments(capture=capture)
    tokens, records = capture.tokens, {record.index: record for record in capture}
    count = len(tokens.labels)
    if not -count <= input < count:
        raise InputError(f"input {input} does not exist; the capture holds {count}")
    if all(getattr(record, "attn", None) is None for record in records.values()):
        raise InputError("the capture holds no attention; capture it with sites=('attn', …)")
    query = check_token(query, tokens, input)
    chosen = list(records) if layers is None else _choose("layer", layers, sorted(records), _MAX_LAYERS)
    if written_by is not None:
        records = {layer: _with_link_norms(records[layer], written_by) for layer in chosen}
    read = {layer: _layer_maps(records[layer], tokens, input) for layer in chosen}
    drawn = {layer: layer_maps for layer, layer_maps in read.items() if isinstance(layer_maps, _LayerMaps)}
    reasons = {layer: layer_maps for layer, layer_maps in read.items() if isinstance(layer_maps, str)}
    if tokens.grid is None and any(len(layer_maps.maps[0]) > 1 for layer_maps in drawn.values()):
        single = [
            layer
            for layer, layer_maps in drawn.items()
            if len(layer_maps.maps[0]) == 1 < len(layer_maps.view.index)
        ]
        reasons |= dict.fromkeys(single, "attention of one query")
        drawn = {layer: layer_maps for layer, layer_maps in drawn.items() if layer not in single}
    if not drawn:
        raise InputError(f"no layer can be drawn: {' '.join(_notes(reasons))}")
    most = max(len(layer_maps.maps) for layer_maps in drawn.values())
    chosen_heads = _choose("head", heads, range(most), _MAX_HEADS)
    few = {
        layer: len(layer_maps.maps)
        for layer, layer_maps in drawn.items()
        if len(layer_maps.maps) <= chosen_heads[0]
    }
    reasons |= {layer: f"{heads} heads" for layer, heads in few.items()}
    drawn = {layer: layer_maps for layer, layer_maps in drawn.items() if layer not in few}
    if layers is None:
        drawn = {layer: drawn[layer] for layer in _choose("layer", None, sorted(drawn), _MAX_LAYERS)}
    quantity = "Attention weight" if written_by is None else "Written norm"
    if tokens.grid is not None:
        fig = _over_image(drawn, chosen_heads, query, image, _notes(reasons), width, quantity)
    else:
        fig = _over_text(drawn, chosen_heads, max_tokens, _notes(reasons), width, quantity)
    return fig.update_layout(meta={**fig.layout.meta, "runs": _runs(capture)})


def _runs(capture: Any) -> list[dict[str, Any]]:
    """Return the model and inputs of a capture as the provenance of a figure, without the hash of the weights."""
    if not hasattr(capture, "identity"):
        return []
    model, inputs = capture.identity(fingerprint=False), capture.inputs
    named = {key: value for key, value in inputs.items() if value is not None}
    return [{"model": model, "inputs": named}]


class _LayerMaps(NamedTuple):
    """Attention of one layer for one input, (head, query, key), and the tokens that are its keys."""

    maps: np.ndarray
    view: TokenView


def _with_link_norms(record: Any, model: Any) -> Any:
    """Return a record whose ``attn`` is the norm of what every link writes; one without attention as it is."""
    from workbench.analyses.value_output import link_norms
    from workbench.captures.projections import output_projection

    if record.attn is None:
        return record
    weight = output_projection(model, record).weight
    if record.v is None:
        raise InputError(
            f"{record.title} holds no v; capture it with sites=('attn', 'v', 'head_out', 'proj_out')"
        )
    v = record.v.repeat_interleave(record.attn.shape[1] // record.v.shape[1], 1)  # of grouped queries
    return replace(record, attn=link_norms(record.attn, v, weight))


def _layer_maps(record: Any, tokens: Any, input: int) -> _LayerMaps | str:
    """Return the maps of a layer, or why they cannot be drawn over the input's tokens."""
    if getattr(record, "kind", "token") != "token":
        return "attention over channels" if record.kind == "channel" else "no map of attention"
    if record.attn is None:
        return "attention was not captured"
    if len(record.attn) != len(tokens.labels):
        return "attention within windows"
    maps = as_array(record.attn[input])
    queries, keys = maps.shape[1:]
    if getattr(record, "source", "self") == "cross" and queries > 1:
        return "cross attention, from other tokens"
    try:
        view = view_tokens(tokens, input, keys) if queries in (1, keys) else None
    except InputError:
        view = None
    view = view or pooled_view(keys, tokens.grid)
    return "attention among other tokens than the input's" if view is None else _LayerMaps(maps, view)


def _notes(reasons: Mapping[int, str]) -> list[str]:
    layers: dict[str, list[int]] = {}
    for layer, reason in reasons.items():
        layers.setdefault(reason, []).append(layer)
    return [
        f"{'Layers' if len(layer_numbers) > 1 else 'Layer'} {ranges(layer_numbers)} not shown: {reason}."
        for reason, layer_numbers in layers.items()
    ]


def _choose(kind: str, request: Numbers, available: Sequence[int], most: int) -> list[int]:
    available = list(available)
    numbers = parse_numbers(kind, request)
    if numbers is None:
        return [available[index] for index in even_choice(len(available), most)]
    places = [available[number] if -len(available) <= number < 0 else number for number in numbers]
    missing = [chosen for chosen in places if chosen not in available]
    if missing:
        raise InputError(f"no {kind} {missing[0]}; there are {ranges(available)}")
    return sorted(set(places))


def _over_image(
    drawn: Mapping[int, _LayerMaps], heads: Sequence[int], query: int | None, image: np.ndarray | None,
    notes: Sequence[str], width: str | float, quantity: str,
) -> go.Figure:  # fmt: skip
    grids, origins = {}, {}
    for layer, (maps, view) in drawn.items():
        asking = view.asking if "class" in view.kinds else None
        query_place = asking if query is None or maps.shape[1] == 1 else view.place(query)
        rows = (
            maps[:, 0]
            if maps.shape[1] == 1
            else maps.mean(axis=1)
            if query_place is None
            else maps[:, query_place]
        )
        alone = "from its one query" if maps.shape[1] == 1 else "mean over queries"
        origins[layer] = alone if query_place is None else f"from {view.labels[query_place]}"
        origins[layer] += "" if view.index else ", to pooled patches"
        grids[layer] = rows[:, view.patches].reshape(len(maps), *(view.grid or ()))
    alike = len({*origins.values()}) == 1
    panels = []
    for (i, (layer, grid)), (j, head) in itertools.product(enumerate(grids.items()), enumerate(heads)):
        title, side = "" if i else f"head {head}", "" if j else f"layer {layer}"
        side += "" if alike or j else f", {origins[layer]}"
        there = head < len(grid)
        values = grid[head] if there else np.zeros(grid.shape[1:])
        panel = map_panel(values, f"layer {layer}, head {head}", title, side)
        panels.append(panel if there else replace(panel, traces=[], notes=[in_the_middle("no such head")]))
    words = f"{quantity}, {next(iter(origins.values()))}" if alike else quantity
    scale = Scale.of([grid[[head for head in heads if head < len(grid)]] for grid in grids.values()], words)
    return compose_maps(panels, len(heads), scale, width, image=image, notes=notes)


def _over_text(
    drawn: Mapping[int, _LayerMaps],
    heads: Sequence[int],
    max_tokens: int,
    notes: Sequence[str],
    width: str | float,
    quantity: str,
) -> go.Figure:
    view = next(iter(drawn.values())).view
    maps = {
        (layer, head): layer_maps.maps[head]
        for layer, layer_maps in drawn.items()
        for head in heads
        if head < len(layer_maps.maps)
    }
    queries, keys = asked_and_seen(head_weights(next(iter(maps.values()))), view)
    keys_drawn = keys[: max(max_tokens, 1)]
    asking = [key for key in queries if key in keys_drawn]
    grids = {
        name: weights[asking if len(weights) > 1 else [0]][:, keys_drawn] for name, weights in maps.items()
    }
    panels = [
        matrix_panel(grid, view, asking, keys_drawn, f"layer {layer}, head {head}", whole=len(keys))
        for (layer, head), grid in grids.items()
    ]
    scale = Scale.of([*grids.values()], quantity)
    return compose_matrices(panels, len(heads), scale, width=width, notes=notes)


@checked
def attention_summary_figure(
    frame: pd.DataFrame, metrics: Sequence[str] = ("attention_entropy", "attention_distance")
) -> go.Figure:
    """Entropy and mean distance of attention through depth: a row per metric, of several models a column each.

    One model's axes are from 0; of several models each panel has separate axes.

    The line is the mean over heads and inputs, each head is a dot (mean over inputs), a band the 95 % confidence
    interval over inputs. The frame's null distributions are grey: uniform attention as a dotted line, permuted keys as
    their range.

    Raises:
        InputError: the frame holds none of the metrics, or no layers.
    """
    rows = rows_of(frame, metrics, needs=("layer",))
    present = [metric for metric in metrics if (rows["metric"] == metric).any()]
    several = rows["model"].nunique() > 1
    plot = Plot(frame, panel=SERIES if several else None).metric(*present)
    plot = plot.scale(y_zero=not several, x_free=several, y_free=several)
    plot = plot.add(Null(), Band(over="input"), Dots(), Line(words="mean over inputs and heads"))
    return plot.figure("page", height=112 * len(present) + 80 if several else None)
