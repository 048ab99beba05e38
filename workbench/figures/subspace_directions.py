"""Subspaces of heads: their directions' cosines as blocks, their coherence by layer, the angles between them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from workbench.core.arguments import checked
from workbench.figures.composition import Axis, Panel, compose
from workbench.figures.frames import model_label, rows_of
from workbench.figures.grammar import Plot
from workbench.figures.maps import add_scale, squared
from workbench.figures.marks import Band, Line, Null
from workbench.figures.overlays import need_columns
from workbench.figures.scales import Scale
from workbench.figures.theme import PAGE, WIDTH, even_choice, theme_of

COLUMNS = ("model", "layer", "head", "direction", "other_head", "other_direction", "value")
_MOST = 6  # layers in a row of panels
_HIDDEN = Axis("", 0, 1, bare=True, more={"visible": False})
_EMPTY = Panel([], _HIDDEN, _HIDDEN)
_ANGLE = "subspace_angle"
_COHERENCE = ("coherence_inside", "coherence_between", _ANGLE)


@checked
def subspace_figure(frame: pd.DataFrame) -> go.Figure:
    """|cos| of every two directions as a square per layer, heads apart by lines (wu2025 Fig. 11).

    Diagonal blocks are within a head; a direction with itself is left out. Models are in rows; of several,
    each shows the number of layers of the shallowest, evenly spaced; all share one colour scale.

    Args:
        frame: the result of ``subspaces`` per pair, of one or several models.

    Raises:
        InputError: a column is missing, or there are no rows.
    """
    need_columns(frame, COLUMNS, 'workbench.analyze("subspaces", …, per="pair")')
    matrices = {model: [*blocks.groupby("layer")] for model, blocks in frame.groupby("model", sort=False)}
    fewest = min(map(len, matrices.values()))
    if len(matrices) > 1:
        spaced = min(fewest, _MOST)
        matrices = {
            name: [blocks[at] for at in even_choice(len(blocks), spaced)] for name, blocks in matrices.items()
        }
    across = min(max(map(len, matrices.values())), _MOST)
    alike = len({part["head"].nunique() for layers in matrices.values() for _, part in layers}) == 1
    panels = []
    for model, layers in matrices.items():  # each begins a row of its own
        name = model_label(frame, model)
        panels += [_blocks(part, f"{name}, layer {layer}", f"{name}, head") for layer, part in layers]
        panels += [_EMPTY] * (-len(layers) % across)
    font, gap = theme_of("page").font, 1.8 * theme_of("page").font
    bar = 5 * font
    side = min((PAGE - bar - 5.5 * font) / across - gap, PAGE / 4)
    rest = max(PAGE - bar - 5.5 * font - across * (side + gap), 0) / 2
    shared, right = "xy" if alike else "y", bar + rest
    fig = compose(
        panels, across, shared=shared, width="page", right=right, inner=side, gap=gap, before={0: rest}
    )
    return add_scale(squared(fig), Scale((0.0, 1.0), "|cos| of two directions"), font)


def _blocks(part: pd.DataFrame, label: str, side: str) -> Panel:
    """The matrix of a layer: every head is as wide as one unit of both axes, its directions stand within it."""
    table = part.pivot_table(
        index=["head", "direction"], columns=["other_head", "other_direction"], values="value", sort=True
    )
    many = table.groupby(level="head").size()
    directions = [*many.index]
    places = np.concatenate([n - 0.5 + (np.arange(k) + 0.5) / k for n, k in enumerate(many)]).tolist()
    names = [f"head {head}, direction {direction}" for head, direction in table.index]
    values = table.to_numpy(copy=True)
    np.fill_diagonal(values, np.nan)
    trace = go.Heatmap(
        z=values, x=places, y=places, coloraxis="coloraxis", name=label,
        customdata=[[[row_name, other] for other in names] for row_name in names],
        hovertemplate=f"{label}<br>%{{customdata[0]}}<br>%{{customdata[1]}}<br>%{{z:.3f}}<extra></extra>",
    )  # fmt: skip
    edge, line = len(directions) - 0.5, {"color": "white", "width": WIDTH.bold}
    shapes = [
        {"type": "line", "line": line, f"{a}0": border, f"{a}1": border, f"{b}0": -0.5, f"{b}1": edge}
        for border in np.arange(1, len(directions)) - 0.5 for a, b in ("xy", "yx")
    ]  # fmt: skip
    named, bare = tuple(map(str, directions)), {"ticks": ""}
    x = Axis("head", -0.5, edge, names=named, more=bare)
    y = Axis(side, edge, -0.5, names=named, more=bare)
    return Panel([trace], x, y, label.rpartition(", ")[2], shapes=shapes)


@checked
def subspace_coherence_figure(frame: pd.DataFrame, metrics: Sequence[str] = _COHERENCE) -> go.Figure:
    """Coherence inside and between heads by layer, and the angles between heads by rank, beside random directions.

    A line per model. Angles are means over layers and pairs of heads less those of random subspaces, with
    quartiles of the layers and pairs (see `Band`); the null distribution, of random directions, is averaged over layers
    for the angles.

    Args:
        frame: the result of ``subspaces``, of one or several models.
        metrics: which of the three, in this order.

    Raises:
        InputError: the frame holds none of them.
    """
    rows = rows_of(frame, metrics)
    rows = rows.rename(columns={"axis": "other", "head": "one"})  # an angle is of a pair
    rows = rows.assign(place=rows["rank"].where(rows["metric"] == _ANGLE, rows["layer"]))
    angles = rows["metric"] == _ANGLE
    columns = [name for name in ("value", "null_low", "null_high", "null_mean") if name in rows]
    rows.loc[angles, columns] = np.degrees(rows.loc[angles, columns].astype(float))
    if angles.any() and "null_mean" in rows:
        rows[columns] = rows[columns].sub(rows["null_mean"].where(angles).fillna(0.0), axis=0)
    present = [metric for metric in metrics if (rows["metric"] == metric).any()]
    cosines = rows.loc[~angles, ["value", "null_high"]].max().max()
    titles = dict.fromkeys(present, "Layer") | {_ANGLE: "Rank of the angle, smallest first"}
    words = "Mean |cos|,<br>one head", "Mean |cos|,<br>two heads", "Principal angle less<br>random mean (°)"
    named, ends = (
        dict(zip(_COHERENCE, words, strict=True)),
        dict.fromkeys(_COHERENCE[:2], (0, 1.04 * cosines)),
    )
    plot = Plot(rows, x="place").metric(*present)
    plot = plot.scale(
        x_free=True, x_title=titles, y_title=named, y_range=ends if np.isfinite(cosines) else {}
    )
    band = Band(quantiles=(25, 75), words="c: IQR over layers and pairs of heads", bars=True)
    mean = Line(words="mean over pairs of directions (c: over layers and pairs of heads)")
    null = Null(words="random directions", ends="one layer; c: of one pair of heads")
    return plot.add(null, band, mean).figure("page", columns=len(present))
