"""Memberships of tokens in heads, as maps beside the images."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from workbench.core.arguments import checked
from workbench.core.errors import InputError
from workbench.figures.class_attention import head_maps
from workbench.figures.overlays import need_columns
from workbench.figures.scales import Scale

SOURCE = 'workbench.analyze("membership", …, per="token")'
COLUMNS = ("model", "layer", "input", "head", "kind", "row", "column", "value")


@checked
def membership_figure(frame: pd.DataFrame, images: Sequence[np.ndarray] | None = None) -> go.Figure:
    """A row per input: the image, then the membership map of every head, layer by layer (wu2025 Figs 4b and 9).

    Colours are the same for models with equally many heads: from 0 to 1, white for 1 / heads, with the square root
    of the distance from it, since memberships of a trained ToST lie near it. Cells are the model's patches.

    Args:
        frame: the result of ``membership`` per token, for images, of one or several models on the same inputs.
        images: an image per input, in the order of the frame; by default maps only.

    Raises:
        InputError: the frame holds texts or lacks a column, layers differ in their patch grids, or images and inputs
            in their number.
    """
    need_columns(frame, COLUMNS, SOURCE)
    patches = frame[frame["kind"] == "patch"]
    if patches.empty:
        raise InputError("there are no patches to map; the explorer shows memberships of texts")
    return head_maps(patches, images, "", scale=membership_scale(patches, "Membership Π"))


def membership_scale(frame: pd.DataFrame, title: str) -> Scale:
    """Return colours of memberships from 0 to 1, on both sides of 1 / heads."""
    heads = frame["head"].nunique()
    if abs(frame["value"].mean() * heads - 1) > 0.01:  # not of all heads: 1 / heads is not the mean
        return Scale.of([frame["value"]], title, ends=(0.0, 1.0), course="linear")
    words = f"{title} (even: 1 / {heads})"
    return Scale.of([frame["value"]], words, ends=(0.0, 1.0), course="root", middle=1 / heads)
