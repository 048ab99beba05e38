"""Subspaces of heads: their directions' cosines as blocks, their coherence by layer, the angles between them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from workbench.figures.composition import Axis, Panel, compose
from workbench.figures.frames import model_label, rows_of
from workbench.figures.grammar import Plot
from workbench.figures.maps import add_scale, squared
from workbench.figures.marks import Band, Line, Null
from workbench.figures.overlays import need_columns
from workbench.figures.scales import Scale
from workbench.figures.theme import PAGE, theme_of

COLUMNS = ("model", "layer", "head", "direction", "other_head", "other_direction", "value")
MOST = 6  # layers in a row of panels
_HIDDEN = Axis("", 0, 1, bare=True, more={"visible": False})
_EMPTY = Panel([], _HIDDEN, _HIDDEN)
ANGLE = "subspace_angle"
COHERENCE = ("coherence_inside", "coherence_between", ANGLE)


def subspace_figure(frame: pd.DataFrame) -> go.Figure:
    """|cos| of every two directions as a square per layer, heads apart by lines (wu2025 Fig. 11).

    Diagonal blocks are within a head; a direction with itself is left out. Models stand one under the other, of several
    as many layers of each as the shallowest has, evenly spaced from the first to the last; all share one colour scale.

    Args:
        frame: the result of ``subspaces`` per pair, of one or several models.

    Raises:
        InputError: a column is missing, or there are no rows.
    """
    need_columns(frame, COLUMNS, 'workbench.analyze("subspaces", …, per="pair")')
    matrices = {model: [*own.groupby("layer")] for model, own in frame.groupby("model", sort=False)}
    fewest = min(map(len, matrices.values()))
    if len(matrices) > 1:
        matrices = {model: _spaced(layers, min(fewest, MOST)) for model, layers in matrices.items()}
    across = min(max(map(len, matrices.values())), MOST)
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
    fig = compose(
        panels,
        across,
        shared="xy" if alike else "y",
        width="page",
        right=bar + rest,
        inner=side,
        gap=gap,
        before={0: rest},
    )
    return add_scale(squared(fig), Scale((0.0, 1.0), "|cos| of two directions"), font)


def _spaced(values: list, count: int) -> list:
    """So many of the values, evenly spaced from the first to the last."""
    return [values[round(place)] for place in np.linspace(0, len(values) - 1, count)]


def _blocks(part: pd.DataFrame, label: str, side: str) -> Panel:
    """The matrix of a layer: every head is as wide as one unit of both axes, its directions stand within it."""
    table = part.pivot_table(
        index=["head", "direction"], columns=["other_head", "other_direction"], values="value", sort=True
    )
    heads = [head for head, _ in table.index]
    known = sorted(set(heads))
    places = [
        number - 0.5 + (place + 0.5) / heads.count(head)
        for number, head in enumerate(known)
        for place in range(heads.count(head))
    ]
    names = [f"head {head}, direction {direction}" for head, direction in table.index]
    values = table.to_numpy(copy=True)
    np.fill_diagonal(values, np.nan)
    trace = go.Heatmap(
        z=values, x=places, y=places, coloraxis="coloraxis", name=label,
        customdata=[[[one, other] for other in names] for one in names],
        hovertemplate=f"{label}<br>%{{customdata[0]}}<br>%{{customdata[1]}}<br>%{{z:.3f}}<extra></extra>",
    )  # fmt: skip
    edge, line = len(known) - 0.5, {"color": "white", "width": 1.5}
    shapes = []
    for place in (number - 0.5 for number in range(1, len(known))):
        shapes.append({"type": "line", "line": line, "x0": place, "x1": place, "y0": -0.5, "y1": edge})
        shapes.append({"type": "line", "line": line, "x0": -0.5, "x1": edge, "y0": place, "y1": place})
    named, bare = tuple(map(str, known)), {"ticks": ""}
    x = Axis("head", -0.5, edge, names=named, more=bare)
    y = Axis(side, edge, -0.5, names=named, more=bare)
    return Panel([trace], x, y, label.rpartition(", ")[2], shapes=shapes)


def subspace_coherence_figure(frame: pd.DataFrame, metrics: Sequence[str] = COHERENCE) -> go.Figure:
    """Coherence inside and between heads by layer, and the angles between heads by rank, beside random directions.

    A line per model. Angles are means over layers and pairs of heads less those of random subspaces, with the
    interquartile range of the layers and pairs; the null distribution is the 95 % band of random directions (grey),
    averaged over layers for the angles.

    Args:
        frame: the result of ``subspaces``, of one or several models.
        metrics: which of the three, in this order.

    Raises:
        InputError: the frame holds none of them.
    """
    rows = rows_of(frame, metrics)
    rows = rows.rename(columns={"axis": "other", "head": "one"})  # an angle is of a pair
    rows = rows.assign(place=rows["rank"].where(rows["metric"] == ANGLE, rows["layer"]))
    angles = rows["metric"] == ANGLE
    held = [name for name in ("value", "null_low", "null_high", "null_mean") if name in rows]
    rows.loc[angles, held] = np.degrees(rows.loc[angles, held].astype(float))
    if angles.any() and "null_mean" in rows:
        rows = rows.assign(
            **{
                name: rows[name] - rows["null_mean"].where(angles & rows["null_mean"].notna(), 0.0)
                for name in ("value", "null_low", "null_high", "null_mean")
            }
        )
    present = [metric for metric in metrics if (rows["metric"] == metric).any()]
    cosines = rows.loc[~angles, ["value", "null_high"]].max().max()
    titles = dict.fromkeys(present, "Layer") | {ANGLE: "Rank of the angle, smallest first"}
    plot = Plot(rows, x="place").metric(*present)
    plot = plot.scale(
        x_free=True,
        x_title=titles,
        y_title={
            COHERENCE[0]: "Mean |cos|,<br>one head",
            COHERENCE[1]: "Mean |cos|,<br>two heads",
            ANGLE: "Principal angle less<br>random mean (°)",
        },
        y_range=dict.fromkeys(COHERENCE[:2], (0, 1.04 * cosines)),
    )
    band = Band(quantiles=(25, 75), words="c: IQR over layers and pairs of heads", bars=True)
    mean = Line(words="mean over pairs of directions (c: over layers and pairs of heads)")
    null = Null(words="random directions, in c of one pair of heads")
    return plot.add(null, band, mean).figure("page", columns=len(present))
