"""Memberships of patches in heads: maps beside the pictures, and their agreement with segmentations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from workbench.errors import InputError
from workbench.figures.frames import axis_title, rows_of, series_of, short_name, whole_numbers
from workbench.figures.levels import at_level
from workbench.figures.overlays import cells, picture, shared_scale, square_cells, under_cells
from workbench.figures.theme import CHANCE, PAGE, series_style

COLUMNS = ("model", "layer", "input", "head", "row", "column", "value")
GAP = 0.3  # between layers, in widths of a map
WORDS = 40  # px; below it a column is headed by its number alone


def membership_figure(frame: pd.DataFrame, images: Sequence[np.ndarray] | None = None) -> go.Figure:
    """A row per input: the picture, then the membership map of every head, layer by layer (wu2025 Figs 4b and 9).

    All maps share one colour scale, from the 1st to the 99th percentile of all values: memberships of a trained ToST
    lie close to each other, and a few that do not would hide them. Cells are the model's patches, as they are.

    Args:
        frame: what `MembershipMaps.frame` of `workbench.membership_maps` returns, of one or several models on the same
            inputs.
        images: a picture per input, in the order in which the frame names them first; without, maps alone.

    Raises:
        InputError: a column is missing, layers differ in their patch grids, or pictures and inputs in their number.
    """
    missing = [name for name in COLUMNS if name not in frame]
    if missing or frame.empty:
        raise InputError(
            f"the frame has no {'column ' + ', '.join(missing) if missing else 'rows'}; give the frame of "
            "`workbench.membership_maps`"
        )
    inputs = list(dict.fromkeys(frame["input"]))
    if images is not None and len(images) != len(inputs):
        raise InputError(f"{len(images)} pictures for {len(inputs)} inputs; give one each")
    groups = [
        (str(model), layer, part)
        for model, of_model in frame.groupby("model", sort=False)
        for layer, part in of_model.groupby("layer", sort=False)
    ]
    grids = {(int(part["row"].max()) + 1, int(part["column"].max()) + 1) for *_, part in groups}
    if len(grids) > 1:
        raise InputError(f"maps of different patch grids do not fit one figure: {sorted(grids)}")
    rows, columns = grids.pop()

    # one list for all columns of the plate: the picture, gaps (None), and (group, head)
    plan: list[tuple[int, int] | str | None] = [] if images is None else ["input"]
    for number, (*_, part) in enumerate(groups):
        plan += [None] * bool(plan) + [(number, int(head)) for head in sorted(part["head"].unique())]
    margin = {"l": 8, "r": 62, "t": 36, "b": 8}
    shares = [GAP if column is None else 1.0 for column in plan]
    cell = (PAGE - margin["l"] - margin["r"]) / max(sum(shares), 4)
    head_word = "head " if cell > WORDS else ""
    fig = make_subplots(
        len(inputs),
        len(plan),
        column_widths=shares,
        horizontal_spacing=0.05 / len(plan),
        vertical_spacing=0.05 / len(inputs),
        specs=[[None if column is None else {} for column in plan]] * len(inputs),
    )
    for i, name in enumerate(inputs):
        for j, column in enumerate(plan):
            place = {"row": i + 1, "col": j + 1}
            if column == "input" and images is not None:
                # an invisible map gives the panel its axes; without a trace plotly would not draw the picture
                fig.add_trace(cells([[None] * columns] * rows, str(name)), **place)
                fig.add_layout_image(source=picture(images[i]), **place, **under_cells(rows, columns))
            elif isinstance(column, tuple):
                model, layer, part = groups[column[0]]
                shown = part[(part["input"] == name) & (part["head"] == column[1])]
                values = shown.sort_values(["row", "column"])["value"].to_numpy(dtype=float)
                label = f"{name}<br>{short_name(model)}, layer {layer}, head {column[1]}"
                fig.add_trace(cells(values.reshape(rows, columns), label), **place)
    square_cells(fig, rows, columns)
    _head_columns(fig, plan, [f"{short_name(model)}, layer {layer}" for model, layer, _ in groups], head_word)
    fig.update_annotations(font={"size": None})
    low, high = frame["value"].quantile([0.01, 0.99])
    fig.update_layout(
        coloraxis=shared_scale(None, float(high), "Membership Π", float(low)),
        margin=margin,
        height=round(cell * rows / columns * len(inputs) + margin["t"] + margin["b"]),
    )
    return fig


def _head_columns(
    fig: go.Figure, plan: list[tuple[int, int] | str | None], layers: list[str], word: str
) -> None:
    """Write each head above its column, and each layer above the columns of its heads."""
    drawn = [column for column in plan if column is not None]  # a gap has no axis
    domains = [fig.layout[f"xaxis{place + 1 if place else ''}"].domain for place in range(len(drawn))]

    def write(text: str, first: int, last: int, above: int) -> None:
        fig.add_annotation(
            text=text, x=(domains[first][0] + domains[last][1]) / 2, y=1, xref="paper", yref="paper",
            xanchor="center", yanchor="bottom", yshift=above, showarrow=False,
        )  # fmt: skip

    for place, column in enumerate(drawn):
        write(f"{word}{column[1]}" if isinstance(column, tuple) else column, place, place, 0)
    for number, name in enumerate(layers):
        places = [place for place, column in enumerate(drawn) if column[0] == number]
        write(name, places[0], places[-1], 16)


AGREEMENTS = ("membership_ari", "membership_iou")


def membership_agreement_figure(frame: pd.DataFrame) -> go.Figure:
    """Agreement of heads with the segments of masks by layer: a mark per model, a grey bar for its chance.

    The bar is the 95 % band of the same mean with the patches of the masks permuted.

    Args:
        frame: the result of ``membership`` with masks, without per_head, of one or several models; where a layer has
            memberships by several conventions, choose one for each first.

    Raises:
        InputError: the frame holds no agreement with masks, or several conventions of one layer.
    """
    rows = at_level(rows_of(frame, AGREEMENTS), "layer")
    if rows.duplicated(["model", "checkpoint", "layer", "metric"]).any():
        raise InputError("a layer has memberships by several conventions; keep one for each layer")
    series = series_of(rows)
    fig = make_subplots(1, len(AGREEMENTS), horizontal_spacing=0.15)
    for column, metric in enumerate(AGREEMENTS, start=1):
        place = {"row": 1, "col": column}
        for index, (label, part) in enumerate(series):
            own = part[part["metric"] == metric].sort_values("layer")
            x = own["layer"].astype(float) + 0.16 * (index - (len(series) - 1) / 2)
            if own["null_low"].notna().any():
                fig.add_trace(
                    go.Bar(
                        x=x,
                        base=own["null_low"],
                        y=own["null_high"] - own["null_low"],
                        width=0.12,
                        marker={"color": CHANCE, "line": {"width": 0}},
                        name="chance (95 %)",
                        legendgroup="chance",
                        showlegend=index == 0 and column == 1,
                        hoverinfo="skip",
                    ),
                    **place,
                )
            style = series_style(index)
            fig.add_trace(
                go.Scatter(
                    x=x,
                    y=own["value"],
                    mode="markers",
                    marker={**style["marker"], "size": 7},
                    name=label,
                    legendgroup=label,
                    showlegend=column == 1,
                    hovertemplate=f"{label}<br>%{{y:.3f}}<extra></extra>",
                ),
                **place,
            )
        fig.update_yaxes(title_text=axis_title(metric, 22), **place)
    count = int(rows["layer"].max()) + 1
    fig.update_xaxes(title_text="Layer", range=[-0.5, count - 0.5], **whole_numbers(count))
    fig.update_layout(
        legend={"orientation": "h", "x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom"},
        barmode="overlay",
        margin={"l": 64, "r": 8, "t": 28, "b": 38},
        height=225,
    )
    return fig
