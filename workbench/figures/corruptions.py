"""Corrupted and out-of-distribution images: errors relative to the baseline, and how well the latter are recognised."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
import plotly.graph_objects as go

from workbench.core.errors import InputError
from workbench.core.intervals import aupr_interval
from workbench.figures.forest import Forest, Interval
from workbench.figures.frames import rows_of
from workbench.figures.marks import Published, Rule
from workbench.figures.robustness import images_of
from workbench.figures.variants import in_order, look_of
from workbench.figures.words import PAPERS

ALL = "all types"
_FOREIGN = {"inverted": "inverted digits", "photographs": "cuts of photographs", "noise": "uniform noise"}


def corruptions_figure(
    ratios: pd.DataFrame, groups: Mapping[str, Sequence[str]], published: pd.DataFrame | None = None
) -> go.Figure:
    """Error under each corruption relative to the baseline's, a panel per group of variants; lower is better.

    Bars are 95 % intervals, over images. Below stands the geometric mean of all types, its interval over these.

    Args:
        ratios: the result of `workbench.studies.baselines.ratios_to_baseline` for corruption_error, with the column
            attention.
        groups: title → attention variants of a panel; those that have no rows are left out.
        published: columns attention, kind (a corruption, or `ALL`) and ratio.

    Raises:
        InputError: no ratios of these variants.
    """
    rows = ratios[ratios["ratio"].notna()].assign(kind=ratios["kind"].fillna(ALL))
    panels = {
        title: [name for name in in_order(names) if (rows["attention"] == name).any()]
        for title, names in groups.items()
    }
    panels = {title: names for title, names in panels.items() if names}
    if not panels:
        raise InputError(
            "no errors relative to a baseline; give the result of `ratios_to_baseline` for corruption_error"
        )
    kinds = [kind for kind in dict.fromkeys(rows["kind"]) if kind != ALL] + [ALL]
    shown = pd.concat(
        [rows[rows["attention"].isin(names)].assign(panel=title) for title, names in panels.items()]
    )
    types, means = "Type of corruption", f"All {len(kinds) - 1} types"
    shown = shown.assign(part=shown["kind"].eq(ALL).map({True: means, False: types}))
    shown = shown.sort_values("kind", key=lambda column: column.map(kinds.index), kind="stable")
    titles = {title: f"{title}<br>(← better)" for title in panels}
    names = {name: look_of(name).label for names in panels.values() for name in names}
    names |= {
        kind: kind.replace("-", " ").replace("gaussian", "Gaussian").replace("jpeg", "JPEG") for kind in kinds
    } | {ALL: "geometric mean"}
    forest = Forest(shown, y="kind", x=titles, group="part", panel="panel", color="attention", names=names)
    ends = {title: own[["ratio", "low", "high"]].astype(float) for title, own in shown.groupby("panel")}
    ends = {title: (0.93 * own.min().min(), 1.07 * own.max().max()) for title, own in ends.items()}
    forest = forest.scale(log=True, row=1.9, range=ends)
    forest = forest.add(
        Interval(
            columns=("ratio", "low", "high"),
            words=f"ratio of errors, one training seed, 95 % CI over {images_of(rows)} (geometric mean: over types)",
        ),
        Rule(1, "baseline"),
    )
    if published is not None:
        printed = [
            published[published["attention"].isin(own)].assign(panel=title) for title, own in panels.items()
        ]
        found = pd.concat(printed).assign(value=lambda part: part["ratio"])
        found["part"] = found["kind"].eq(ALL).map({True: means, False: types})
        papers = (
            ", ".join(PAPERS.get(key, key) for key in found["paper"].unique())
            if "paper" in found
            else "papers"
        )
        many = found.groupby(["panel", "kind"]).size().max()
        forest = forest.add(
            Published(
                found,
                ranges=True,
                beside=True,
                words=f" in {papers}, median and range of {many} other models",
            )
        )
    return forest.figure()


def ood_figure(frame: pd.DataFrame) -> go.Figure:
    """AUPR of out-of-distribution images by the largest probability, a row per model; guessing gives 1/2.

    Bars are those of `with_aupr_ends`, over as many out-of-distribution images as the model's own.

    Args:
        frame: rows of an evaluation with the column attention, as `workbench.studies.records.recorded` gives them.

    Raises:
        InputError: no AUPR in the frame.
    """
    rows = rows_of(frame, "aupr", needs=("attention", "kind"))
    known = with_aupr_ends(rows[rows["kind"].isin([*_FOREIGN])])
    titles = {"aupr": "AUPR of out-of-distribution images<br>(→ better)"}
    forest = Forest(
        known.assign(panel="aupr"), y="attention", x=titles, panel="panel", color="kind", names=_FOREIGN
    )
    words = Interval(columns=("value", "low", "high"), words=f"95 % CI over {images_of(known)} of each kind")
    return forest.scale(row=2.1).add(words, Rule(0.5, "chance")).figure("column")


def with_aupr_ends(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of AUPR with the ends of their 95 % intervals, on logits (Boyd et al. 2013), in ``low`` and ``high``."""
    ends = [aupr_interval(value, n) for value, n in zip(rows["value"], rows["n"], strict=True)]
    return rows.assign(low=[one.low for one in ends], high=[one.high for one in ends])
