"""Memberships of patches in heads: maps beside the pictures, and their agreement with segmentations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from workbench.errors import InputError
from workbench.figures.frames import rows_of
from workbench.figures.layer_marks import layer_marks_figure
from workbench.figures.levels import at_level
from workbench.figures.overlays import map_plate, need_columns

COLUMNS = ("model", "layer", "input", "head", "row", "column", "value")


def membership_figure(
    frame: pd.DataFrame, images: Sequence[np.ndarray] | None = None, overlay: bool = False
) -> go.Figure:
    """A row per input: the picture, then the membership map of every head, layer by layer (wu2025 Figs 4b and 9).

    All maps share one colour scale, from the 1st to the 99th percentile of all values: memberships of a trained ToST
    lie close to each other, and a few that do not would hide them. Cells are the model's patches, as they are.

    Args:
        frame: what `MembershipMaps.frame` of `workbench.membership_maps` returns, of one or several models on the same
            inputs.
        images: a picture per input, in the order in which the frame names them first; without, maps alone.
        overlay: lay the maps over the faded pictures.

    Raises:
        InputError: a column is missing, layers differ in their patch grids, or pictures and inputs in their number.
    """
    need_columns(frame, COLUMNS, "workbench.membership_maps")
    titles = [f"head {head}" for head in sorted(frame["head"].unique())]
    titled = frame.assign(title=pd.Categorical("head " + frame["head"].astype(str), titles))
    low, high = frame["value"].quantile([0.01, 0.99])
    return map_plate(titled, images, "Membership Π", (float(low), float(high)), overlay)


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
    return layer_marks_figure(rows, AGREEMENTS)
