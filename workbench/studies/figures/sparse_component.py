"""The sparse part of RPC-Attention: where it lies on an image, whether it marks contamination, and the ideal case."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from annotated_types import Predicate

from workbench.core.errors import InputError
from workbench.core.options import Accepted, checked
from workbench.figures.comparison import comparison_figure
from workbench.figures.frames import rows_of
from workbench.figures.grammar import Plot
from workbench.figures.maps import compose_maps, image_panel, map_panel
from workbench.figures.marks import At, Band, Line, Rule
from workbench.figures.overlays import frame_shape
from workbench.figures.scales import Scale

_MOST_IMAGES = 3
_OUTLINE = "#004488"
CANDIDATES = {
    "sparse": "S",
    "clean": "S of the clean image",
    "change": "change of S from the clean image",
    "keys": "keys' distance from their mean",
    "pursuit": "S of full pursuit (PCP)",
}
"""Scores that might detect contaminated patches, in the words of a figure."""


Maps: TypeAlias = Annotated[Any, Predicate(lambda value: hasattr(value, "marked")), Accepted("SparseMaps")]


@checked
def sparse_map_figure(maps: Maps, most: int = _MOST_IMAGES) -> go.Figure:
    """‖S_j‖ of every patch beside the image: a row each for the clean image, the contaminated image, and the change.

    All maps share one colour scale; the contaminated block is outlined. The images of the last row are what was
    changed, |contaminated − clean|.

    Args:
        maps: a `workbench.studies.evaluation.contamination.SparseMaps`, or anything with its ``values`` (image,
            input, row, column), ``marked``, ``images`` and ``ids``.
        most: how many images are shown, the first ones.

    Raises:
        InputError: fewer than one image is asked for.
    """
    if most < 1:
        raise InputError(f"show at least one image; got most={most}")
    values, marked = np.asarray(maps.values)[:, :most], np.asarray(maps.marked)[:most]
    clean, after = (images[:most] for images in maps.images)
    changed = [np.abs(now - before) for before, now in zip(clean, after, strict=True)]
    images_by_name = dict(zip(("clean", "contaminated", "change"), (clean, after, changed), strict=True))
    grid = values.shape[2:]
    panels = []
    for line, (name, images) in enumerate(images_by_name.items()):
        for number, image in enumerate(images):
            label, shapes = f"{name}, {maps.ids[number]}", [_outline(marked[number])]
            titles = (("image", "‖S<sub>j</sub>‖"), ("", ""), ("|difference|", "‖ΔS<sub>j</sub>‖"))[line]
            side = "" if number else name
            panels.append(image_panel(image, grid, label, titles[0], side, shapes=shapes))
            panels.append(map_panel(values[line, number], label, titles[1], shapes=shapes))
    headings = {(2 * number, 2 * number + 1): str(maps.ids[number]) for number in range(len(marked))}
    scale = Scale.of([values], "‖S<sub>j</sub>‖ or ‖ΔS<sub>j</sub>‖, all heads")
    return compose_maps(panels, 2 * len(marked), scale, headings=headings)


def _outline(marked: np.ndarray) -> dict:
    """The rectangle around the marked patches of a grid."""
    down, right = (np.flatnonzero(marked.any(axis)) for axis in (1, 0))
    x, y = (right[0] - 0.5, right[-1] + 0.5), (down[0] - 0.5, down[-1] + 0.5)
    return frame_shape(x, y, color=_OUTLINE, width=1.6)


@checked
def contamination_figure(frame: pd.DataFrame) -> go.Figure:
    """AUC of ‖S_j‖ and its rivals in finding contaminated patches: a panel per kind, a row per candidate.

    Dots with their 95 % interval over images, and the band that permuted patches give.

    Args:
        frame: the results of `workbench.studies.evaluation.contamination.contamination_frame`, one under the other.

    Raises:
        InputError: the frame holds no AUC.
    """
    rows = rows_of(frame, "contamination_auc", needs=("contamination", "candidate"))
    # What stands for a model elsewhere is a candidate here, and a kind of contamination has a panel of its own.
    kinds_of = rows["contamination"].replace("fgsm", "FGSM")
    candidates = rows.assign(model=rows["candidate"].map(CANDIDATES), candidate=kinds_of)
    return comparison_figure(candidates, random="patches permuted", ends=(0.38, 1.02))


_PARTS = {"sparse": "Relative error of S", "low_rank": "Relative error of L"}
_PAPERS_WEIGHT, _PAPERS_STEPS = 4, 4  # λ and the steps of teo2024


@checked
def recovery_figure(frame: pd.DataFrame) -> go.Figure:
    """Error of both parts of planted matrices against the steps of a pursuit: by ADMM, and by attention.

    Medians over matrices. Principal attention pursuit has a line with the paper's λ, and a band over all λ: its lower
    edge is the λ that is best at each number of steps, which nobody could know. Dashed: the paper's number of steps.

    Args:
        frame: the result of `workbench.studies.evaluation.planted.pursuit_recovery`.

    Raises:
        InputError: the frame lacks a method, or that λ.
    """
    keys = ["method", "metric", "weight", "steps"]
    rows = frame.rename(columns={"part": "metric"}).groupby(keys).agg(value=("value", "median")).reset_index()
    over = rows[rows["method"] == "PAP"].groupby(["metric", "steps"])["value"].agg(["min", "max"])
    lines = {
        "PCP by ADMM": rows[rows["method"] == "PCP"],
        f"PAP, λ = {_PAPERS_WEIGHT}": rows[(rows["method"] == "PAP") & (rows["weight"] == _PAPERS_WEIGHT)],
    }
    absent = [name for name, part in lines.items() if part.empty]
    if absent:
        raise InputError(f"the frame holds no rows of {absent[0]}; give the result of pursuit_recovery")
    drawn = pd.concat([part.assign(method=name) for name, part in lines.items()])
    drawn = drawn.join(over, on=["metric", "steps"])
    drawn[["min", "max"]] = drawn[["min", "max"]].where(drawn["method"].str.startswith("PAP"))
    weights = frame.loc[frame["method"] == "PAP", "weight"]
    weights_used = ", ".join(f"{weight:g}" for weight in sorted(weights.unique()))
    plot = Plot(drawn, x="steps", color="method", names=_PARTS).metric(*_PARTS)
    ends = 0.01, 1.5 * over["max"].max()
    plot = plot.scale(x_log=2, x_title="Steps", y_log=True, y_cut=True, y_range=ends)
    return plot.add(
        Band(columns=("min", "max"), words=f"PAP: from least to largest median over λ = {weights_used}"),
        Line(words=f"median over {frame['input'].nunique()} matrices"), Rule(1, "zero predictor"),
        At(_PAPERS_STEPS, f"the paper's {_PAPERS_STEPS} steps"),
    ).figure("page")  # fmt: skip
