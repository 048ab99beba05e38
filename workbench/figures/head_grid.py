"""All layers and heads of a model at once, coloured by one metric."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from workbench.core.errors import InputError
from workbench.core.options import ranges
from workbench.figures.frames import axis_title, rows_of, whole_numbers, without_provenance
from workbench.figures.overlays import outline
from workbench.figures.theme import SEQUENTIAL
from workbench.frames.metrics import METRICS

ALL_HEADS = "all heads"
# Of a metric measured in several ways this one is shown, as in the figures by layer; else the caller chooses.
_USUAL = {"convention": "exact", "candidate": "resid_post"}
_WAYS = ("axis", "statistic", "convention", "standardize", "candidate", "rank")
_COLUMNS = ("model", "checkpoint", "input", "layer", "head", *_WAYS, "value", "null", "null_mean", "z")
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
    the highest, the null distribution included, and by the logarithm where these span more than three decades. A tick
    "null distribution" marks the mean null distribution on the colour bar; each cell's own, and with one input its z,
    are in its hover text. A cell without a value is blank, and its hover text says why. ``customdata`` of a cell is
    [layer, head], head None for all heads.

    Args:
        frame: what `workbench.analyze` returns, of one model and checkpoint; with ``per_head`` where that is an option.
            Of several conventions the exact one is drawn, of several sites that after the block.
        metric: its name, one per head or per layer.
        chosen: (layer, head) of the cell that is framed.
        by_data: let the colours of every metric run from the data's lowest to the highest value, to see differences.
        layers: so many are drawn at least; by default none after the last that has a value.

    Raises:
        InputError: no values of the metric by layer, several models, or several ways of measuring it that the frame
            does not tell apart by layer and head: keep one.
    """
    rows = _one_way(rows_of(without_provenance(frame), metric, needs=("layer",)))
    by_head = bool(rows["head"].notna().any())
    last = int(rows["layer"].max()) + 1
    shape = max(last, layers or 0), int(rows["head"].max()) + 1 if by_head else 1
    values = _means(rows, "value", shape)
    null_levels = _null_levels(rows, shape)
    mark = float(np.nanmean([null_level.mean for null_level in null_levels])) if null_levels else None
    low, high, by_log = _ends(metric, values, mark, by_data)
    scale = np.log10([low, high]) if by_log else np.array([low, high])
    if mark is not None and by_log:
        mark = float(np.log10(mark))
    depth, heads = list(range(shape[0])), list(range(shape[1]))
    label = METRICS[metric].axis_title if metric in METRICS else metric
    cells = go.Heatmap(
        z=np.log10(values) if by_log else values,
        x=heads if by_head else [ALL_HEADS],
        y=depth,
        coloraxis="coloraxis",
        xgap=1,
        ygap=1,
        customdata=[[[layer, head if by_head else None] for head in heads] for layer in depth],
        hovertext=_words(values, label, rows["input"].nunique(), by_head, null_levels),
        hovertemplate="%{hovertext}<extra></extra>",
    )
    inner = min(max(24 * len(depth), 112), 420)
    title = {"text": axis_title(metric, round(inner / 6)), "side": "right"}
    across = {"title": {"text": "Head"}, **whole_numbers(len(heads))} if by_head else {"type": "category"}
    layout = {
        "xaxis": {"range": [-0.5, len(heads) - 0.5], **across},
        "yaxis": {
            "range": [len(depth) - 0.5, -0.5], "title": {"text": "Layer"}, **whole_numbers(len(depth))
        },
        "coloraxis": {
            "colorscale": SEQUENTIAL,  # else plotly takes a diverging one where values may be negative
            "cmin": float(scale[0]),
            "cmax": float(scale[1]),
            "colorbar": {"title": title, "len": 1, **_ticks(scale, by_log, mark, 14 / inner)},
        },
        "shapes": _frame_of(chosen, depth, heads, by_head),
        "margin": {"l": 44, "r": 90, "t": 10, "b": 38},
        "height": inner + 48,
    }  # fmt: skip
    return go.Figure(cells, layout)


def _frame_of(
    chosen: tuple[int, int | None] | None, layers: list[int], heads: list[int], by_head: bool
) -> list[dict]:
    if chosen is None:
        return []
    layer, head = chosen[0], chosen[1] if by_head else 0
    if layer not in layers or head is None or head not in heads:
        return []
    return outline((head - 0.5, head + 0.5), (layer - 0.5, layer + 0.5))


def _one_way(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of one model and one way of measuring, per head where there are heads, else per layer."""
    rows = rows[rows["layer"].notna()].reindex(columns=list(_COLUMNS))
    if rows["head"].notna().any():
        rows = rows[rows["head"].notna()]
    for column in ("model", "checkpoint"):
        if rows[column].nunique() > 1:
            raise InputError(f"the frame holds {rows[column].nunique()} {column}s; keep one of them")
    for column, usual in _USUAL.items():
        if (rows[column] == usual).any():
            rows = rows[rows[column] == usual]
    for column in ("axis", "standardize"):  # plain rows before those with something left out or standardised
        if rows[column].isna().any():
            rows = rows[rows[column].isna()]
    several = [column for column in _WAYS if rows[column].nunique(dropna=False) > 1]
    if several:
        found = {name: rows[name].dropna().unique().tolist() for name in several}
        raise InputError(
            f"the frame holds the metric by several {' and '.join(several)}; keep one of {found}"
        )
    return rows


def _means(rows: pd.DataFrame, column: str, shape: tuple[int, int]) -> np.ndarray:
    """Mean over inputs of a column, (layer, head); NaN where there is none."""
    once = rows.drop_duplicates(
        ["layer", "head", "input"]
    )  # a value with two null distributions stands in two rows
    once = once[once[column].notna()]
    place = once["layer"].to_numpy(int), once["head"].fillna(0).to_numpy(int)
    total, count = np.zeros(shape), np.zeros(shape)
    np.add.at(total, place, once[column].to_numpy(float))
    np.add.at(count, place, 1)
    return np.divide(total, count, out=np.full(shape, np.nan), where=count > 0)


def _ends(
    metric: str, values: np.ndarray, null_level: float | None, by_data: bool
) -> tuple[float, float, bool]:
    """Where the colours begin and end, and whether they go by the logarithm."""
    known_values = values[~np.isnan(values)]
    if null_level is not None:
        known_values = np.append(known_values, null_level)
    lowest, highest = float(known_values.min()), float(known_values.max())
    known = METRICS.get(metric)
    if known is not None and np.isfinite([known.low, known.high]).all() and not by_data:
        return (0.0 if known.low < 0 <= lowest else known.low), known.high, False
    if lowest > 0 and highest > 10**_DECADES * lowest:
        return lowest, highest, True
    return lowest, highest if highest > lowest else lowest + 1.0, False


class _NullLevel(NamedTuple):
    """A null distribution by name, (layer, head), mean over inputs, and the z of the only input, else None."""

    name: str
    mean: np.ndarray
    z: np.ndarray | None


def _null_levels(rows: pd.DataFrame, shape: tuple[int, int]) -> list[_NullLevel]:
    rows = rows[rows["null_mean"].notna()]
    names = rows["null"].astype(object).where(rows["null"].notna(), "")
    single = rows["input"].nunique() <= 1  # z of a mean is not the mean of z
    return [
        _NullLevel(
            f"null distribution, {name}" if name else "null distribution",
            _means(rows[names == name], "null_mean", shape),
            _means(rows[names == name], "z", shape) if single else None,
        )
        for name in names.unique()
    ]


def _words(
    values: np.ndarray, label: str, inputs: int, by_head: bool, null_levels: Sequence[_NullLevel]
) -> list[list[str]]:
    """What every cell says."""
    over = f" (mean over {inputs} inputs)" if inputs > 1 else ""

    def cell(layer: int, head: int, value: float) -> str:
        place = f"layer {layer}, " + (f"head {head}" if by_head else ALL_HEADS)
        if np.isnan(value):
            return f"{place}<br>{reasons[layer]}"
        said = [place, f"{label}: {value:.4g}{over}"]
        for name, mean, z in null_levels:
            if not np.isnan(mean[layer, head]):
                score = "" if z is None or np.isnan(z[layer, head]) else f" (z = {z[layer, head]:.3g})"
                said.append(f"{name}: {mean[layer, head]:.4g}{score}")
        return "<br>".join(said)

    reasons = [_absence(row) for row in values]
    return [
        [cell(layer, head, value) for head, value in enumerate(row)]
        for layer, row in enumerate(values.tolist())
    ]


def _absence(row: np.ndarray) -> str:
    """Why a layer has cells without a value."""
    heads = np.flatnonzero(~np.isnan(row)).tolist()
    if not heads:
        return "no value: the analysis leaves this layer out"
    return f"no value: this layer has heads {ranges(heads)} (heads that share keys count once)"


def _ticks(scale: np.ndarray, by_log: bool, null_level: float | None, room: float) -> dict:
    """About five round numbers along the bar, and the null distribution in the place of one within ``room`` of it.

    ``room`` is a share of the bar.
    """
    low, high = float(scale[0]), float(scale[1])
    places = list(_round_numbers(low, high))
    near = [] if null_level is None or not low <= null_level <= high else [null_level]
    kept = [place for place in places if all(abs(place - level) > room * (high - low) for level in near)]
    said = [f"10<sup>{place:g}</sup>".replace("-", "−") if by_log else f"{place:g}" for place in kept]
    return {
        "tickmode": "array",
        "tickvals": [*kept, *near],
        "ticktext": [*said, *(["null distribution"] * len(near))],
    }


def _round_numbers(low: float, high: float) -> Iterator[float]:
    step = (high - low) / 5
    size = 10.0 ** np.floor(np.log10(step))
    step = size * min(digit for digit in (1, 2, 5, 10) if digit * size >= step * 0.999)
    for place in range(int(np.ceil(low / step - 1e-9)), int(np.floor(high / step + 1e-9)) + 1):
        yield float(f"{place * step:.10g}")
