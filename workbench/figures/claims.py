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
from workbench.figures.theme import COLOURS, GREY, PAGE, RED

# Verdict: colour and marker; the word always stands beside it.
VERDICTS = {
    "holds": (COLOURS[0], "circle"),
    "fails": (RED, "x"),
    "undecided": ("#8A6A00", "diamond-open"),
    "not tested at this scale": (GREY, "line-ew-open"),
}
_NEEDS = ("paper", "place", "claim", "published", "measured", "low", "high", "verdict", "model")
_FONT, _LINE, _PAD = 10, 12.5, 6  # px; a table's layout follows its letters, so their size is fixed
_WORDS, _WIDE_WORDS, _PUBLISHED = 238, 360, 58  # px; wide where one model leaves the room
_MOST = 3  # models beside each other
_LETTER = 4.9  # px that a letter takes on average
_MARGIN = 8
_PRIMARY = "Primary:"
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
    table = _Table(_edges(len(models)))
    table.head(["Claim and interpretation", "Published", *(short_name(model) for model in models)])
    for block in _blocks(frame, models):
        table.block(block)
    return table.figure()


def claim_pages(frame: pd.DataFrame, height: float = PAGE_HEIGHT) -> list[pd.DataFrame]:
    """Consecutive parts of the frame whose `claims_figure` is no taller than `height` pixels, claims kept whole.

    Raises as `claims_figure` does.
    """
    frame, models = _checked(frame)
    pages: list[list[pd.DataFrame]] = []
    used = math.inf
    for block in _blocks(frame, models):
        if used + block.height > height - 2 * _MARGIN - 2 or not pages:
            pages.append([])
            used = _PAD + _LINE  # the table's head
        pages[-1].append(block.rows)
        used += block.height
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


class _Block:
    """One claim: its heading, and for each interpretation the cells of a line."""

    def __init__(self, rows: pd.DataFrame, models: list[str], several: bool) -> None:
        self.rows = rows
        first = rows.iloc[0]
        edges = _edges(len(models))
        place = f"{first['paper']} {first['place']}" if several else str(first["place"])
        heading = _wrap(f"{place}: {first['claim']}", edges[-1] * 0.95)
        self.heading = [f"<b>{line}</b>" for line in heading]
        self.lines = []
        interpretations = rows.groupby("interpretation", sort=False)
        for interpretation, own in interpretations:
            by_model = [own[own["model"] == model] for model in models]
            found = [None if part.empty else part.iloc[0] for part in by_model]
            cells = [
                _marked(
                    str(interpretation), len(interpretations) > 1 and own["primary"].any(), edges[1] - 10
                ),
                _published(own["published"]),
                *([] if row is None else _result(row, edges[3] - edges[2]) for row in found),
            ]
            self.lines.append((cells, found))

    @property
    def height(self) -> float:
        return sum(map(_tall, [[self.heading], *(cells for cells, _ in self.lines)]))


def _blocks(frame: pd.DataFrame, models: list[str]) -> Iterator[_Block]:
    several = frame["paper"].nunique() > 1
    for _, rows in frame.groupby(["paper", "place", "claim"], sort=False, dropna=False):
        yield _Block(rows, models, several)


def _tall(cells: list[list[str]]) -> float:
    return _PAD + _LINE * max(1, *(len(lines) for lines in cells))


def _wrap(text: str, width: float) -> list[str]:
    return textwrap.wrap(text, max(int((width - 8) / _LETTER), 8))


def _marked(interpretation: str, primary: bool, width: float) -> list[str]:
    """The interpretation, which begins with a bold word where it is the one of several that counts."""
    if not primary:
        return _wrap(interpretation, width)
    first, *rest = _wrap(f"{_PRIMARY} {interpretation}", width)
    return [f"<b>{_PRIMARY}</b>{first.removeprefix(_PRIMARY)}", *rest]


def _result(row: pd.Series, width: float) -> list[str]:
    """Verdict with the measured value, beneath it where both do not fit, then the null distribution.

    The first line leaves room for the verdict's marker.
    """
    colour, _ = VERDICTS[row["verdict"]]
    first = f'&nbsp;&nbsp;&nbsp;&nbsp;<b><span style="color:{colour}">{row["verdict"]}</span></b>'
    measured = _with_band(row["measured"], row["low"], row["high"]) if pd.notna(row["measured"]) else ""
    letters = 5 + len(row["verdict"]) * 1.1 + len(re.sub("<[^>]*>", "", measured))  # bold is wider
    fits = letters * _LETTER < width or not measured
    lines = [f"{first} {measured}"] if fits else [first, measured]
    if "null_mean" in row and pd.notna(row["null_mean"]):
        null_level = _with_band(row["null_mean"], row["null_low"], row["null_high"])
        lines.append(f'<span style="color:{GREY}">null {null_level}</span>')
    return lines


def _with_band(value: float, low: float, high: float) -> str:
    if pd.isna(low) or pd.isna(high):
        return _number(value)
    return f"{_number(value)} [{_number(low)}, {_number(high)}]"


def _published(values: pd.Series) -> list[str]:
    """The published value; one line each, in the order of the models, where a table lists each model's own."""
    return [_number(value) for value in values.dropna().unique()] or [_number(math.nan)]


def _number(value: float) -> str:
    """Three digits, powers of ten as in print; a dash where there is none."""
    if pd.isna(value):
        return "–"
    if value == 0 or not math.isfinite(value):
        return f"{value:g}".replace("-", "−").replace("inf", "∞")
    if 1e-3 <= abs(value) < 1e5:
        return f"{value:.3g}".replace("-", "−") if abs(value) < 1000 else f"{value:.0f}".replace("-", "−")
    digits, power = f"{value:.1e}".split("e")
    return f"{digits}·10<sup>{int(power)}</sup>".replace("-", "−")


class _Table:
    """Text set in columns whose rows are as tall as their longest cell."""

    def __init__(self, edges: list[float]) -> None:
        self.edges = edges
        self.height = 0.0
        self.notes: list[dict] = []
        self.rules: list[dict] = []
        self.marks: list[tuple[float, float, pd.Series]] = []

    def head(self, names: list[str]) -> None:
        self._set([[f"<b>{name}</b>"] for name in names])
        self._rule("black")

    def block(self, block: _Block) -> None:
        if self.marks:
            self._rule("#BBBBBB")
        self._set([block.heading])
        for cells, found in block.lines:
            for edge, row in zip(self.edges[2:], found, strict=False):
                if row is not None:
                    self.marks.append((edge + 5, self.height + _PAD / 2 + _LINE * 0.55, row))
            self._set(cells, indent=10)

    def _set(self, cells: list[list[str]], indent: float = 0) -> None:
        for column, (edge, lines) in enumerate(zip(self.edges, cells, strict=False)):
            for number, line in enumerate(lines):
                self.notes.append(
                    {
                        "text": line,
                        "x": edge + (indent if column == 0 else 0),
                        "y": self.height + _PAD / 2 + number * _LINE,
                        "xanchor": "left",
                        "yanchor": "top",
                        "align": "left",
                        "showarrow": False,
                        "borderpad": 0,
                        "font": {"size": _FONT},
                    }
                )
        self.height += _tall(cells)

    def _rule(self, colour: str) -> None:
        self.rules.append(
            {
                "type": "line",
                "x0": 0,
                "x1": self.edges[-1],
                "y0": self.height,
                "y1": self.height,
                "line": {"color": colour, "width": 0.75},
            }
        )

    def figure(self) -> go.Figure:
        """Everything set so far; the markers carry the reason of their verdict."""
        looks = [VERDICTS[row["verdict"]] for _, _, row in self.marks]
        fig = go.Figure(
            go.Scatter(
                x=[x for x, _, _ in self.marks],
                y=[y for _, y, _ in self.marks],
                mode="markers",
                marker={
                    "size": 7,
                    "symbol": [symbol for _, symbol in looks],
                    "color": [colour for colour, _ in looks],
                    "line": {"width": [1.5 if "open" in symbol else 0 for _, symbol in looks]},
                },
                text=[row["verdict"] for _, _, row in self.marks],
                customdata=[
                    "<br>".join(textwrap.wrap(str(row.get("why") or ""), 60)) for _, _, row in self.marks
                ],
                hovertemplate="%{text}<br>%{customdata}<extra></extra>",
                showlegend=False,
            )
        )
        fig.update_xaxes(visible=False, range=[0, self.edges[-1]], fixedrange=True)
        fig.update_yaxes(visible=False, range=[self.height + 2, 0], fixedrange=True)
        return fig.update_layout(
            annotations=self.notes,
            shapes=self.rules,
            width=PAGE,
            height=math.ceil(self.height + 2 + 2 * _MARGIN),
            margin=dict.fromkeys("lrtb", _MARGIN),
        )
