"""Memberships of tokens in heads: maps beside the images, words as boxes, and agreement with segmentations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from workbench.core.errors import InputError
from workbench.figures.class_attention import head_maps
from workbench.figures.estimates import null_of_means
from workbench.figures.frames import model_label, rows_of, series_labels
from workbench.figures.grammar import Plot
from workbench.figures.marks import Band, Line, Null
from workbench.figures.overlays import need_columns
from workbench.figures.scales import Scale
from workbench.figures.token_panels import Numbers, page, word_panels
from workbench.figures.tokens import text_view

SOURCE = 'workbench.analyze("membership", …, per="token")'
COLUMNS = ("model", "layer", "input", "head", "kind", "row", "column", "value")
TEXT_COLUMNS = ("model", "layer", "input", "head", "token", "label", "kind", "value")
MAX_HEADS = 4
MAX_LINES = 3


def membership_figure(frame: pd.DataFrame, images: Sequence[np.ndarray] | None = None) -> go.Figure:
    """A row per input: the image, then the membership map of every head, layer by layer (wu2025 Figs 4b and 9).

    Colours are the same for every model with as many heads: from 0 to 1, white for an even share, with the square root
    of the distance from it, since memberships of a trained ToST lie near it. Cells are the model's patches.

    Args:
        frame: the result of ``membership`` per token, for images, of one or several models on the same inputs.
        images: an image per input, in the order in which the frame names them first; without, maps alone.

    Raises:
        InputError: the frame holds texts or lacks a column, layers differ in their patch grids, or images and inputs
            in their number.
    """
    need_columns(frame, COLUMNS, SOURCE)
    patches = frame[frame["kind"] == "patch"]
    if patches.empty:
        raise InputError("there are no patches to map; `token_membership_figure` shows texts")
    return head_maps(patches, images, "", scale=_scale(patches, "Membership Π"))


def _scale(frame: pd.DataFrame, title: str) -> Scale:
    """Memberships from 0 to 1, on both sides of an even share."""
    heads = frame["head"].nunique()
    if abs(frame["value"].mean() * heads - 1) > 0.01:  # not of all heads: what an even share is, is not known
        return Scale.of([frame["value"]], title, ends=(0.0, 1.0), course="linear")
    said = f"{title} (even: 1 / {heads})"
    return Scale.of([frame["value"]], said, ends=(0.0, 1.0), course="root", middle=1 / heads)


def token_membership_figure(
    frame: pd.DataFrame,
    head: int | None = None,
    token: int | None = None,
    max_heads: int = MAX_HEADS,
    max_lines: int = MAX_LINES,
) -> go.Figure:
    """The words of a text in reading order as boxes, a block for each head: how far each token belongs to it.

    Over all heads the memberships of a token add up to 1. All blocks share the colours of
    `membership_figure`. Of many heads and of a long text those parts are shown that hold the chosen head, whose
    name is bold, and the chosen token, whose boxes have a heavy frame. Every box carries its token's number as
    ``customdata``.

    Args:
        frame: the result of ``membership`` per token, for one text, model and layer.
        head: number of the chosen head.
        token: number of the chosen token, as the frame has it.

    Raises:
        InputError: a column is missing, or the frame holds several texts, models or layers.
    """
    need_columns(frame, TEXT_COLUMNS, SOURCE, one=("model", "input", "layer"))
    known = sorted(frame["head"].unique().tolist())
    before = known.index(head) // max_heads * max_heads if head in known else 0
    heads = known[before : before + max_heads]
    by_head = {number: frame[frame["head"] == number].sort_values("token") for number in heads}
    first = by_head[heads[0]]
    view = text_view(first["token"].tolist(), first["label"].tolist(), first["kind"].tolist())
    place = None if token is None else view.place(token)
    shown = page(view, place, max_lines)
    notes = [
        f"{name} {part[0]} to {part[-1]} of {count} are shown."
        for name, part, count in (
            ("Heads", heads, len(known)), ("Tokens", [view.index[here] for here in shown], len(view.real)),
        )
        if len(part) < count
    ]  # fmt: skip
    notes += [f"Bold: head {head}, which is looked at."] * (head in heads and len(heads) > 1)
    notes += ["A dot is a space."] * ("·" in view.labels)
    where = f"{model_label(frame, frame['model'].iloc[0])}, layer {frame['layer'].iloc[0]}"
    panels = [
        Numbers(
            f"<b>head {number}</b>" if number == head else f"head {number}", f"in head {number}",
            by_head[number]["value"].to_numpy(),
        )
        for number in heads
    ]  # fmt: skip
    return word_panels(view, panels, shown, _scale(frame, f"Membership Π, {where}"), place, notes)


_FORMULAS = {
    "as_implemented": ", its own Π", "as_published": ", its own Π (eq. 10)",
    "ours": ", Π from value projections",
}  # fmt: skip
AGREEMENTS = ("membership_ari", "membership_iou")


def membership_agreement_figure(frame: pd.DataFrame) -> go.Figure:
    """Agreement of heads with the segments of masks by layer: a line per model over the grey band of the null.

    The null has the patches of the masks permuted.

    Args:
        frame: the result of ``membership`` with masks of one or several models, with ``single`` for
            95 % confidence intervals over inputs; where a layer has memberships by several conventions, choose one for
            each first.

    Raises:
        InputError: the frame holds no agreement with masks, or several conventions of one layer.
    """
    rows = null_of_means(rows_of(frame, AGREEMENTS))
    if "convention" in rows:  # memberships by two formulas are two quantities
        rows = rows.assign(series=series_labels(rows) + rows["convention"].map(_FORMULAS).fillna(""))
    plot = Plot(rows.drop(columns="convention", errors="ignore"), color="series").metric(*AGREEMENTS)
    null = Null(words="patches of the masks permuted")
    return plot.add(null, Band(over="input", bars=True), Line()).figure("page")
