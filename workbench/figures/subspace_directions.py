"""Subspaces of heads: their directions' cosines as blocks."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from workbench.core.options import checked
from workbench.figures.composition import Axis, Panel, compose
from workbench.figures.frames import model_label
from workbench.figures.maps import add_scale, squared
from workbench.figures.overlays import need_columns
from workbench.figures.scales import Scale
from workbench.figures.theme import PAGE, WIDTH, even_choice, theme_of

COLUMNS = ("model", "layer", "head", "direction", "other_head", "other_direction", "value")
_MOST = 6  # layers in a row of panels
_HIDDEN = Axis("", 0, 1, bare=True, more={"visible": False})
_EMPTY = Panel([], _HIDDEN, _HIDDEN)


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
