"""Verdicts on every claim of the papers at a glance: a row per claim, a column per kind of evidence."""

from __future__ import annotations

import re

import pandas as pd
import plotly.graph_objects as go

from workbench.core.errors import InputError
from workbench.core.options import checked
from workbench.figures.frames import short_name
from workbench.figures.text_widths import cut, line_count, text_width, wrap
from workbench.figures.theme import PAGE, WIDTH, marker_of
from workbench.figures.words import PAPERS
from workbench.papers.verdicts import (
    FAILS,
    HOLDS,
    NOT_DIAGNOSTIC,
    NOT_TESTED,
    OF_NO_MODEL,
    OUTCOMES,
    PREMISE,
    RANDOM_TOO,
    UNDECIDED,
    counted,
    outcome,
)
from workbench.studies.figures.claims_chart import MEANINGS, VERDICTS, WORDS, subscripts

_RECORDS, _MECHANISM = "records", "own model"
"""Columns of claims that committed records answer, and of models that carry a paper's mechanism."""
_HEADS = {"digits-vit": "ViT", "all-MiniLM-L6-v2": "MiniLM"}
_FONT, _ROW, _LINE, _HEADING, _CELL, _GUTTER, _TOP = 9.6, 13.0, 11.0, 18.0, 21.0, 18.0, 68.0  # px
_WIDTH = (PAGE - _GUTTER) / 2


@checked
def verdict_matrix_figure(claims: pd.DataFrame) -> go.Figure:
    """Draw the verdict on every primary claim that was tested: a row per claim, a column per kind of evidence.

    A mark's column is the evidence: a model that all papers are asked about has its own column, models with one
    paper's mechanism share one, and so do trainings and timings on record. Its colour and shape are the verdict.

    Args:
        claims: results of `workbench.claims` and `workbench.studies.claims_from_records`, joined.

    Returns:
        A figure 6.75 in wide, and as tall as its rows.

    Raises:
        InputError: no primary claim was tested.
    """
    cells = matrix_cells(claims)
    columns = list(cells["evidence"].cat.categories)
    room = _WIDTH - _CELL * len(columns)
    halves = _halves(cells, room)
    height = _TOP + max(_height(half, room) for half in halves)
    figure = go.Figure()
    for side, half in enumerate(halves):
        left, y = side * (_WIDTH + _GUTTER), _TOP
        for number, name in enumerate(columns):
            _upright(
                figure, _HEADS.get(name, cut(name, 50, _FONT)), left + room + _CELL * (number + 0.5), _TOP
            )
        for paper, rows in half.groupby("paper", sort=False):
            _text(figure, f"<b>{PAPERS[str(paper)]}</b>", left, y + _HEADING / 2 + 2)
            y += _HEADING
            for label, row in rows.groupby("label", sort=False):
                words, tall = wrap(str(label), room - 4, _FONT), _row_height(str(label), room)
                _text(figure, subscripts(words), left, y + tall / 2)
                for cell, evidence in row["evidence"].items():
                    x = left + room + _CELL * (columns.index(evidence) + 0.5)
                    cells.loc[cell, ["x", "y"]] = x, y + tall / 2
                y += tall
                figure.add_shape(type="line", x0=left, x1=left + _WIDTH, y0=y, y1=y, layer="below",
                                 line={"width": WIDTH.hair, "color": "#DDDDDD"})  # fmt: skip
    x = 5.0
    for name in OUTCOMES:
        marks = cells[cells["outcome"] == name]
        if marks.empty:
            continue
        colour, symbol = VERDICTS[name]
        words = WORDS.get(name, name)
        figure.add_scatter(
            x=[x, *marks["x"]], y=[7.0, *marks["y"]], text=[name, *marks["hover"]], mode="markers", name=name,
            hovertemplate="%{text}<extra></extra>",
            marker=marker_of(symbol, 8.5, colour, WIDTH.bold),
        )  # fmt: skip
        _text(figure, words, x + 8, 7)
        x += text_width(words, _FONT) + 24
    axis = {"visible": False, "fixedrange": True}
    figure.update_layout(
        width=PAGE, height=height, margin={"l": 0, "r": 0, "t": 0, "b": 0}, plot_bgcolor="white", showlegend=False,
        xaxis={**axis, "range": [0, PAGE]}, yaxis={**axis, "range": [height, 0]},
    )  # fmt: skip
    return figure


def verdict_matrix_caption(claims: pd.DataFrame) -> str:
    """Write the caption of `verdict_matrix_figure`: how many verdicts hold, the columns, the outcomes."""
    cells = matrix_cells(claims)
    columns, counts = {*cells["evidence"]}, cells["outcome"].value_counts()
    untested = counted(claims[claims["verdict"] == NOT_TESTED])
    trivial = sum(counts.get(name, 0) for name in (NOT_DIAGNOSTIC, RANDOM_TOO))
    named = {
        "digits-vit": "ViT: vision transformer of digits",
        "all-MiniLM-L6-v2": "MiniLM: sentence encoder",
        _MECHANISM: "own model: with the paper's mechanism",
        _RECORDS: "records: models that differ only in their attention, or timed operators",
    }
    unmet = counts.get(PREMISE, 0)
    last = f", {counts.get(FAILS, 0)} fail and {unmet} lack{'s its' if unmet == 1 else ' their'} premise"
    last = last if unmet else f" and {counts.get(FAILS, 0)} fail"
    words = [
        f"**Of {len(cells)} verdicts on the papers' primary claims {counts.get(HOLDS, 0)} hold, {trivial} hold for "
        f"noise or untrained weights too, {counts.get(UNDECIDED, 0)} are undecided{last}.**",
        "; ".join(text for name, text in named.items() if name in columns) + ".",
        f"{MEANINGS[RANDOM_TOO]} (not tested for records).",
        f"{MEANINGS[NOT_DIAGNOSTIC]}.",
        *[f"{MEANINGS[PREMISE]}."] * bool(unmet),
        "Undecided: the 95 % confidence interval, Holm-adjusted, crosses the threshold.",
    ]
    if len(untested):
        words.append(f"Not drawn: {len(untested)} not tested at this scale.")
    return " ".join(words)


def matrix_cells(claims: pd.DataFrame) -> pd.DataFrame:
    """Return one row per mark of the matrix: paper, label, evidence, outcome, and the words of a tooltip.

    A claim that no model decides (random logits) counts once.
    """
    rows = counted(claims)
    rows = rows[rows["verdict"] != NOT_TESTED]
    general = rows["over"].isin([*OF_NO_MODEL])
    rows = rows[~(general & rows.duplicated(["paper", "claim", "interpretation"]))]
    if rows.empty:
        raise InputError("no primary claim was tested; the column `why` has the reasons")
    names = rows["model"].map(short_name)
    papers = rows.groupby(names)["paper"].nunique()
    shared = [name for name in dict.fromkeys(names) if papers[name] > 1 and name != "trained models"]
    evidence = names.where(names.isin(shared), _MECHANISM).mask(names == "trained models", _RECORDS)
    evidence = evidence.mask(rows["over"].isin([*OF_NO_MODEL]), _RECORDS)
    kinds = [name for name in [*shared, _MECHANISM, _RECORDS] if name in {*evidence}]
    labels = rows.groupby("paper", group_keys=False)["label"].apply(_short_labels)
    order = pd.Categorical(rows["paper"], [*PAPERS])
    cells = pd.DataFrame(
        {
            "paper": rows["paper"],
            "label": labels,
            "evidence": pd.Categorical(evidence, kinds),
            "outcome": [outcome(row) for row in rows.to_dict("records")],
            "hover": rows["label"] + "<br>" + names + ": " + rows["why"],
        }
    )
    return cells.iloc[order.argsort(kind="stable")].reset_index(drop=True)


def _short_labels(labels: pd.Series) -> pd.Series:
    """Return labels without their measure, "V equals the predicted V̇"; the whole label where two would agree."""
    short = labels.map(lambda label: re.split(r": (?=[^:]*$)", label)[0])
    shared = labels.groupby(short).transform("nunique") > 1
    return short.mask(shared, labels)


def _row_height(label: str, room: float) -> float:
    return _ROW + _LINE * (line_count(wrap(label, room - 4, _FONT)) - 1)


def _height(cells: pd.DataFrame, room: float) -> float:
    rows = cells.drop_duplicates(["paper", "label"])["label"]
    return _HEADING * cells["paper"].nunique() + sum(_row_height(label, room) for label in rows) + 2


def _halves(cells: pd.DataFrame, room: float) -> list[pd.DataFrame]:
    """Split the papers into two columns, in their order, so that the taller one is as low as possible."""
    papers = list(dict.fromkeys(cells["paper"]))
    splits = [
        [cells[cells["paper"].isin(part)] for part in (papers[:count], papers[count:])]
        for count in range(1, len(papers) + 1)
    ]
    return min(splits, key=lambda halves: max(_height(half, room) for half in halves))


def _text(figure: go.Figure, text: str, x: float, y: float) -> None:
    """Place a text by its left middle, in pixels."""
    figure.add_annotation(x=x, y=y, text=text, showarrow=False, font={"size": _FONT}, align="left",
                          xanchor="left", yanchor="middle", borderpad=0)  # fmt: skip


def _upright(figure: go.Figure, text: str, x: float, bottom: float) -> None:
    """Place a text that reads upwards and ends above a point; plotly turns a text about its middle."""
    figure.add_annotation(x=x, y=bottom - 2 - text_width(text, _FONT) / 2, text=text, textangle=-90, showarrow=False,
                          font={"size": _FONT}, xanchor="center", yanchor="middle", borderpad=0)  # fmt: skip
