"""All layers and heads of a model at once, coloured by one metric."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from workbench.core.options import ranges
from workbench.figures.composition import Axis, Panel, compose, tick_values
from workbench.figures.estimates import Sample, null_kinds, quantity
from workbench.figures.figure_arguments import check_arguments
from workbench.figures.frames import rows_of, without_provenance
from workbench.figures.maps import add_scale
from workbench.figures.marks import key_entry, null_name
from workbench.figures.overlays import CHOSEN, frame_shape, outline
from workbench.figures.scales import Scale
from workbench.figures.text_widths import line_count, widest, wrap_evenly
from workbench.figures.theme import DIVERGING, SEQUENTIAL, SIZE, WIDTH, luminance, theme_of
from workbench.frames.metric import METRICS, Metric

_ALL_HEADS = "all heads"
_PRINTED = 24  # cells at most whose numbers stand in them
_SMALL = (
    0.2  # values of a metric with a sign below this share of its upper end have colours of their own range
)
_GAP = 6  # pixels between the heads and their null
_DECADES = 3  # values of a metric without an upper end that span more are coloured by their logarithm


def head_grid_figure(
    frame: pd.DataFrame,
    metric: str,
    chosen: tuple[int, int | None] | None = None,
    by_data: bool = False,
    layers: int | None = None,
) -> go.Figure:
    """A cell per layer and head, coloured by a metric: its mean over the frame's inputs.

    Layers go downwards from 0, heads to the right; a metric of whole layers (token similarity, coding rates) has one
    column, "all heads". Colours run from the metric's lowest possible value (`workbench.METRICS`; from 0 where that is
    negative and no value is) to its highest. Where one of these is infinite they run from the data's lowest value to
    the highest, the null distribution included, and by the logarithm where these span more than three decades. They
    also end at the data's highest value where all values of a metric with a sign are below a fifth of its end. A tick
    marks the mean of the null distribution on the colour bar; with ``by_data`` a null of one level for all cells is
    white, and colours run to both sides of it; of few cells, a null is a column, its mean by layer. Each cell's
    null, and with one input its z, are in its hover text; that of a blank cell has the reason. ``customdata`` of a cell
    is [layer, head], head None for all heads.

    Args:
        frame: what `workbench.analyze` returns, of one model and checkpoint; with ``per_head`` where that is an option.
            Of several conventions the exact one is drawn, of several sites that after the block.
        metric: its name, one per head or per layer.
        chosen: (layer, head) of the cell that is framed.
        by_data: let the colours of every metric run from the data's lowest to the highest value, to see differences.
        layers: the least number drawn; by default none after the last that has a value.

    Raises:
        InputError: no values of the metric by layer, several models, or several ways of measuring it that the frame
            does not tell apart by layer and head: keep one.
    """
    check_arguments(chosen=chosen, layers=layers)
    metric_rows = rows_of(without_provenance(frame), metric, needs=("layer",))
    by_head = bool(metric_rows["head"].notna().any())
    by = ("layer", "head") if by_head else ("layer",)
    rows = quantity(metric_rows, metric, {}, by)
    # a frame made by hand may lack both
    rows = rows.reindex(columns=rows.columns.union(["input", "unit"], sort=False))
    rows = rows[rows[[*by]].notna().all(axis=1)]
    sample = Sample.of(rows, by)
    last = int(rows["layer"].max()) + 1
    shape = max(last, layers or 0), int(rows["head"].max()) + 1 if by_head else 1
    values = _grid(sample.estimate("mean"), "value", shape)
    nulls = _nulls(sample, rows, shape)
    low, high, by_log = _ends(metric, values, [float(np.nanmean(null.mean)) for null in nulls], by_data)
    units = rows["unit"].dropna().unique()
    entry = METRICS.get(metric, Metric(metric, metric, ""))
    label = (replace(entry, unit=str(units[0])) if len(units) == 1 else entry).axis_title
    middle = _one_level(nulls) if by_data and not by_log else None
    ends = (math.log10(low), math.log10(high)) if by_log else (low, high)
    scale = Scale(ends, label, SEQUENTIAL if middle is None else DIVERGING, middle=middle)
    column = len(nulls) == 1 and middle is None and by_head and values.size <= _PRINTED
    levels = np.nanmean(nulls[0].mean, axis=1) if column else None
    drawn = values if levels is None else np.column_stack([values, levels])
    cells = go.Heatmap(
        z=np.log10(drawn) if by_log else drawn, coloraxis="coloraxis", xgap=1, ygap=1,
        customdata=[[[layer, head if by_head else None] for head in range(shape[1])] for layer in range(shape[0])],
        hovertext=_words(values, label, sample.rows["input"].nunique(), by_head, nulls),
        hovertemplate="%{hovertext}<extra></extra>",
    )  # fmt: skip
    names = () if by_head else (_ALL_HEADS,)
    frame_shapes = shapes = _frame_of(chosen, shape, by_head)
    if levels is not None:
        names, edge = (*map(str, range(shape[1])), "null"), shape[1] - 0.5
        shapes = [frame_shape((edge, edge), (-0.5, shape[0] - 0.5), color="white", width=_GAP), *frame_shapes]
    panel = Panel(
        [cells], Axis("Head" if by_head else "", -0.5, drawn.shape[1] - 0.5, whole=True, names=names),
        Axis("Layer", shape[0] - 0.5, -0.5, whole=True), shapes=shapes,
        notes=_printed(drawn, replace(scale, ends=(low, high), course="log" if by_log else "linear")),
    )  # fmt: skip
    font = theme_of("column").font
    inner = min(max(24 * shape[0], 136), 420)
    bar = scale.ticks(inner, font)
    if middle is not None:
        bar["ticktext"][0] += f" {nulls[0].name.removeprefix('null: ').removesuffix(' attention')}"
    else:
        bar = _bar_ticks(low, high, by_log, nulls if levels is None else [], inner, font)
    room = widest(bar["ticktext"], font) + font * (2 + 1.3 * line_count(wrap_evenly(label, inner, font)))
    marker = {"symbol": "square-open", "color": CHOSEN, "size": SIZE.cell, "line": {"width": WIDTH.frame}}
    key = []
    if frame_shapes and chosen is not None:
        framed = f"layer {chosen[0]}, head {chosen[1]}" if by_head else f"layer {chosen[0]}"
        key = [key_entry(framed, mode="markers", marker=marker)]
    fig = compose([panel], 1, key, right=room, inner=inner)
    return add_scale(fig, scale, font).update_coloraxes(colorbar=bar)


def _one_level(nulls: Sequence[_NullLevel]) -> float | None:
    """The level of the only null where it is the same for all cells, which colours can then run from to both sides."""
    if len(nulls) != 1:
        return None
    level = nulls[0].mean[~np.isnan(nulls[0].mean)]
    return float(level[0]) if level.size and np.ptp(level) <= 1e-9 * abs(level[0]) else None


def _printed(values: np.ndarray, scale: Scale) -> list[dict]:
    """The numbers of few cells, black or white, whichever is read on their colour."""
    if values.size > _PRINTED:
        return []
    digits = max(0, 2 - math.floor(math.log10(np.nanmax(np.abs(values)) or 1)))
    numbers = []
    for (layer, head), value in np.ndenumerate(values):
        if not np.isnan(value):
            colour = "white" if luminance(scale.colour([value])[0]) < 0.18 else "black"
            text = f"{value:.{digits}f}" if round(value, digits) or not value else f"{value:.1g}"
            numbers.append({"x": head, "y": layer, "text": text, "font": {"color": colour}})
    return numbers


def _frame_of(chosen: tuple[int, int | None] | None, shape: tuple[int, int], by_head: bool) -> list[dict]:
    if chosen is None:
        return []
    layer, head = chosen[0], chosen[1] if by_head else 0
    if head is None or not (0 <= layer < shape[0] and 0 <= head < shape[1]):
        return []
    return outline((head - 0.5, head + 0.5), (layer - 0.5, layer + 0.5))


def _grid(level: pd.DataFrame, column: str, shape: tuple[int, int]) -> np.ndarray:
    """A column by layer and head; NaN where there is none."""
    cells = np.full(shape, np.nan)
    heads = level["head"].astype(int) if "head" in level else 0
    cells[level["layer"].astype(int), heads] = level[column].astype(float)
    return cells


def _ends(
    metric: str, values: np.ndarray, null_means: Sequence[float], by_data: bool
) -> tuple[float, float, bool]:
    """Return the ends of the colours, and whether they go by the logarithm."""
    numbers = [*values[~np.isnan(values)], *null_means]
    lowest, highest = float(min(numbers)), float(max(numbers))
    entry = METRICS.get(metric, Metric(metric, metric, ""))
    if np.isfinite([entry.low, entry.high]).all() and not by_data:
        if entry.low >= 0 or max(-lowest, highest) >= _SMALL * entry.high:
            return (0.0 if entry.low < 0 <= lowest else entry.low), entry.high, False
        lowest = min(lowest, 0.0)
    if lowest > 0 and highest > 10**_DECADES * lowest:
        return lowest, highest, True
    return lowest, highest if highest > lowest else lowest + 1.0, False


class _NullLevel(NamedTuple):
    """A null distribution by name: its mean by layer and head, over inputs, and the z of the only input, else None."""

    name: str
    mean: np.ndarray
    z: np.ndarray | None


def _nulls(sample: Sample, rows: pd.DataFrame, shape: tuple[int, int]) -> list[_NullLevel]:
    nulls = []
    single = rows["input"].nunique() <= 1 and "z" in rows  # z of a mean is not the mean of z
    for kind in null_kinds(rows):
        null_rows = sample.null_sample(kind, rows).rows
        means = (
            null_rows.groupby([*sample.by])[["null_mean", *(["z"] if single else [])]].mean().reset_index()
        )
        z = _grid(means, "z", shape) if single else None
        nulls.append(_NullLevel(null_name(kind), _grid(means, "null_mean", shape), z))
    return nulls


def _words(
    values: np.ndarray, label: str, inputs: int, by_head: bool, nulls: Sequence[_NullLevel]
) -> list[list[str]]:
    """What every cell says."""
    over = f" (mean over {inputs} inputs)" if inputs > 1 else ""

    def cell(layer: int, head: int, value: float) -> str:
        cell_name = f"layer {layer}, " + (f"head {head}" if by_head else _ALL_HEADS)
        if np.isnan(value):
            return f"{cell_name}<br>{reasons[layer]}"
        lines = [cell_name, f"{label}: {value:.4g}{over}"]
        for name, mean, z in nulls:
            if not np.isnan(mean[layer, head]):
                score = "" if z is None or np.isnan(z[layer, head]) else f" (z = {z[layer, head]:.3g})"
                lines.append(f"{name}: {mean[layer, head]:.4g}{score}")
        return "<br>".join(lines)

    reasons = [_absence(row) for row in values]
    every = enumerate(values.tolist())
    return [[cell(layer, head, value) for head, value in enumerate(row)] for layer, row in every]


def _absence(row: np.ndarray) -> str:
    """Why a layer has cells without a value."""
    heads = np.flatnonzero(~np.isnan(row)).tolist()
    if not heads:
        return "no value: the analysis leaves this layer out"
    return f"no value: this layer has heads {ranges(heads)} (heads that share keys count once)"


def _bar_ticks(
    low: float, high: float, by_log: bool, nulls: Sequence[_NullLevel], room: float, font: float
) -> dict[str, Sequence]:
    """Round numbers along the bar, with null distributions instead of numbers too near to them."""
    axis = Axis("", low, high, log=by_log)
    values, labels = tick_values(axis, room, font, upright=True)
    marks: dict[float, str] = {}
    for value, name in sorted((float(np.nanmean(null.mean)), null.name) for null in nulls):
        kind, line = name.removeprefix("null: ").removesuffix(" attention"), 1.3 * font / room
        text = f"null {value:.3g}" if len(nulls) == 1 else f"null {value:.3g}:<br>{kind}"
        for other in [level for level in marks if axis.place(value) - axis.place(level) < 2.2 * line]:
            value, text = (value + other) / 2, f"{marks.pop(other)}<br>{kind}"
        if low <= value <= high:
            marks[value] = text
    kept = {
        value: label for value, label in zip(values, labels, strict=True)
        if all(abs(axis.place(value) - axis.place(mark)) > 2.2 * font / room for mark in marks)
    } | marks  # fmt: skip
    places = [math.log10(value) if by_log else value for value in kept]
    return {"tickmode": "array", "ticktext": [*kept.values()], "tickvals": places}
