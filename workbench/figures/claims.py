"""Claims of the papers with what was measured, as a table in print."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterator

import pandas as pd
import plotly.graph_objects as go

from workbench.core.errors import InputError, UnknownName
from workbench.figures.frames import short_name
from workbench.figures.measuring import text_width, wrap
from workbench.figures.theme import COLOURS, GREY, PAGE, RED

# Verdict: colour and marker; the word always stands beside it.
VERDICTS = {
    "holds": (COLOURS[0], "circle"),
    "fails": (RED, "x"),
    "undecided": ("#8A6A00", "diamond-open"),
    "not tested at this scale": (GREY, "line-ew-open"),
}
_NEEDS = ("paper", "place", "claim", "published", "measured", "low", "high", "verdict", "model")
_FONT, _LINE, _PAD, _MARGIN = (
    10,
    12.5,
    6,
    8,
)  # px; a table's layout follows its letters, so their size is fixed
_WORDS, _WIDE_WORDS, _PUBLISHED = 238, 360, 58  # px; wide where one model leaves the room
_INDENT, _MARK = 10, 11  # px, of an interpretation under its claim, and of a verdict's marker
_MOST = 3  # models beside each other
PAGE_HEIGHT = 850  # px, 8.9 in: what a printed page has room for above a caption


def claims_figure(frame: pd.DataFrame) -> go.Figure:
    """A heading per claim, under it a line per interpretation: published value, and verdict and numbers of each model.

    Measured values stand with their interval, the null distribution with its band. The verdict has a marker, a colour
    and a word. Of several interpretations the one that counts is marked as primary.

    Args:
        frame: the result of `workbench.claims`, for one model or several under one another; `claim_pages` cuts it
            into parts that fit a page.

    Raises:
        InputError: no rows, a missing column, or more than three models.
        UnknownName: a verdict that there is not.
    """
    frame, models = _checked(frame)
    edges = _edges(len(models))
    heads = [
        [f"<b>{name}</b>"] for name in ("Claim and interpretation", "Published", *map(short_name, models))
    ]
    notes, rules, marks = [*_set(heads, edges, 0)], [], []
    top = _tall(heads)
    for _, lines in _blocks(frame, models):
        rules.append(
            {"y0": top, "y1": top, "line": {"color": "#BBBBBB" if marks else "black", "width": 0.75}}
        )
        for cells, found in lines:
            notes += _set(cells, edges, top, _INDENT if found else 0)
            marks += [
                (edge + 5, top + _PAD / 2 + _LINE * 0.55, row)
                for edge, row in zip(edges[2:], found, strict=False)
                if row is not None
            ]
            top += _tall(cells)
    looks = [VERDICTS[row["verdict"]] for _, _, row in marks]
    fig = go.Figure(
        go.Scatter(
            x=[x for x, _, _ in marks], y=[y for _, y, _ in marks], mode="markers", showlegend=False,
            marker={
                "size": 7, "symbol": [symbol for _, symbol in looks], "color": [colour for colour, _ in looks],
                "line": {"width": [1.5 if "open" in symbol else 0 for _, symbol in looks]},
            },
            text=[row["verdict"] for _, _, row in marks],
            customdata=["<br>".join(textwrap.wrap(str(row.get("why") or ""), 60)) for _, _, row in marks],
            hovertemplate="%{text}<br>%{customdata}<extra></extra>",
        )
    )  # fmt: skip
    fig.update_xaxes(visible=False, range=[0, edges[-1]], fixedrange=True)
    fig.update_yaxes(visible=False, range=[top + 2, 0], fixedrange=True)
    return fig.update_layout(
        annotations=notes, shapes=[{"type": "line", "x0": 0, "x1": edges[-1], **rule} for rule in rules],
        width=PAGE, height=math.ceil(top + 2 + 2 * _MARGIN), margin=dict.fromkeys("lrtb", _MARGIN),
    )  # fmt: skip


def claim_pages(frame: pd.DataFrame, height: float = PAGE_HEIGHT) -> list[pd.DataFrame]:
    """Consecutive parts of the frame whose `claims_figure` is no taller than `height` pixels, claims kept whole.

    Raises as `claims_figure` does.
    """
    frame, models = _checked(frame)
    pages: list[list[pd.DataFrame]] = []
    used = math.inf
    for rows, lines in _blocks(frame, models):
        tall = sum(_tall(cells) for cells, _ in lines)
        if used + tall > height - 2 * _MARGIN - 2 or not pages:
            pages.append([])
            used = _PAD + _LINE  # the table's head
        pages[-1].append(rows)
        used += tall
    joined = [pd.concat(parts) for parts in pages]
    for page in joined:  # pandas keeps them only where it can tell that all parts agree
        page.attrs.update(frame.attrs)
    return joined


def _checked(frame: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    missing = [name for name in _NEEDS if name not in frame]
    if missing or frame.empty:
        raise InputError(
            f"the frame has {'no column ' + ', '.join(missing) if missing else 'no rows'}; "
            "give the result of `workbench.claims`"
        )
    models = list(dict.fromkeys(frame["model"]))
    if len(models) > _MOST:
        raise InputError(f"{len(models)} models do not fit beside each other; give at most {_MOST}")
    for verdict in frame["verdict"].unique():
        if verdict not in VERDICTS:
            raise UnknownName("verdict", str(verdict), VERDICTS)
    absent = {"interpretation": "", "primary": False}
    return frame.assign(
        **{name: frame[name].fillna(value) if name in frame else value for name, value in absent.items()}
    ), models


def _edges(models: int) -> list[float]:
    """Left edge of every column, and the right edge of the last."""
    words = _WIDE_WORDS if models == 1 else _WORDS
    room = (PAGE - 2 * _MARGIN - words - _PUBLISHED) / models
    return [0, words, *(words + _PUBLISHED + room * index for index in range(models + 1))]


Lines = list[tuple[list[list[str]], list[pd.Series | None]]]  # cells of each line, and the row of each model


def _blocks(frame: pd.DataFrame, models: list[str]) -> Iterator[tuple[pd.DataFrame, Lines]]:
    """Claim by claim its rows and lines: the heading, then a line for each interpretation."""
    several, edges = frame["paper"].nunique() > 1, _edges(len(models))
    for _, rows in frame.groupby(["paper", "place", "claim"], sort=False, dropna=False):
        paper, place, claim = rows.iloc[0][["paper", "place", "claim"]]
        heading = f"{paper} {place}: {claim}" if several else f"{place}: {claim}"
        lines: Lines = [([_wrap(f"<b>{heading}</b>", edges[-1])], [])]
        interpretations = rows.groupby("interpretation", sort=False)
        for interpretation, own in interpretations:
            by_model = [own[own["model"] == model] for model in models]
            found = [None if part.empty else part.iloc[0] for part in by_model]
            primary = len(interpretations) > 1 and own["primary"].any()
            words = f"<b>Primary:</b> {interpretation}" if primary else str(interpretation)
            # one published value, or each model's own, a line each
            printed = [_number(value) for value in own["published"].dropna().unique()] or ["–"]
            results = [[] if row is None else _result(row, edges[3] - edges[2]) for row in found]
            lines.append(([_wrap(words, edges[1] - _INDENT), printed, *results], found))
        yield rows, lines


def _tall(cells: list[list[str]]) -> float:
    return _PAD + _LINE * max(1, *(len(lines) for lines in cells))


def _wrap(text: str, width: float) -> list[str]:
    """The lines of a cell; R_c^var as it is printed, and bold in every line what is bold in all."""
    bold = text.startswith("<b>") and text.endswith("</b>")
    text = text[3:-4] if bold else text
    lines = wrap(text, (width - 8) / (1.08 if bold else 1.0), _FONT).split("<br>")
    lines = [re.sub(r"\b([A-Z])_([A-Za-z]+)(\^(\w+))?", _raised, line) for line in lines]
    return [f"<b>{line}</b>" if bold else line for line in lines]


def _raised(found: re.Match) -> str:
    return f"{found[1]}<sub>{found[2]}</sub>" + (f"<sup>{found[4]}</sup>" if found[4] else "")


def _result(row: pd.Series, width: float) -> list[str]:
    """Verdict with the measured value, beneath it where both do not fit, then the null distribution.

    The first line leaves room for the verdict's marker.
    """
    colour, _ = VERDICTS[row["verdict"]]
    word = f'<b><span style="color:{colour}">{row["verdict"]}</span></b>'
    first = "&nbsp;" * round(_MARK / text_width("&nbsp;", _FONT)) + word
    measured = _with_band(row["measured"], row["low"], row["high"]) if pd.notna(row["measured"]) else ""
    fits = text_width(f"{first} {measured}", _FONT) < width - 4 or not measured
    lines = [f"{first} {measured}"] if fits else [first, measured]
    if "null_mean" in row and pd.notna(row["null_mean"]):
        null_level = _with_band(row["null_mean"], row["null_low"], row["null_high"])
        lines.append(f'<span style="color:{GREY}">null {null_level}</span>')
    return lines


def _with_band(value: float, low: float, high: float) -> str:
    if pd.isna(low) or pd.isna(high):
        return _number(value)
    return f"{_number(value)} [{_number(low)}, {_number(high)}]"


def _number(value: float) -> str:
    """Three digits, powers of ten as in print."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}".replace("-", "−").replace("inf", "∞")
    if 1e-3 <= abs(value) < 1e5:
        return f"{value:.3g}".replace("-", "−") if abs(value) < 1000 else f"{value:.0f}".replace("-", "−")
    digits, power = f"{value:.1e}".split("e")
    return f"{digits}·10<sup>{int(power)}</sup>".replace("-", "−")


def _set(cells: list[list[str]], edges: list[float], top: float, indent: float = 0) -> Iterator[dict]:
    """The annotations of a line of the table."""
    place = {"xanchor": "left", "yanchor": "top", "align": "left", "showarrow": False, "borderpad": 0}
    for column, (edge, lines) in enumerate(zip(edges, cells, strict=False)):
        for number, line in enumerate(lines):
            x = edge + (indent if column == 0 else 0)
            y = top + _PAD / 2 + number * _LINE
            yield {"text": line, "x": x, "y": y, **place, "font": {"size": _FONT}}
