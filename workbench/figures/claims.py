"""Claims of the papers with what was measured, as a table in print."""

from __future__ import annotations

import math
import textwrap

import pandas as pd
import plotly.graph_objects as go

from workbench.errors import InputError, UnknownName
from workbench.figures.frames import short_name
from workbench.figures.theme import COLOURS, GREY, PAGE

# Verdict: colour and marker; the word always stands beside it.
VERDICTS = {
    "holds": (COLOURS[0], "circle"),
    "fails": (COLOURS[2], "x"),
    "undecided": ("#8A6A00", "diamond-open"),
    "not tested at this scale": (GREY, "line-ew-open"),
}
_NEEDS = ("paper", "place", "claim", "published", "measured", "low", "high", "verdict", "model")
_WHICH = ("paper", "place", "claim", "reading")
_FONT, _LINE, _PAD = 10, 12.5, 7  # px; a table's layout follows its letters, so their size is fixed
_PLACE, _CLAIM, _WIDE_CLAIM, _PUBLISHED = 66, 236, 356, 60  # px; wide where one model leaves the room
_MOST = 3  # models
_LETTER = 4.9  # px that a letter takes on average


def claims_figure(frame: pd.DataFrame) -> go.Figure:
    """A row per claim: where it stands, what it says, the published value; then per model the verdict and numbers.

    Measured values stand with their interval, chance with its band. The verdict has a marker, a colour and a word.

    Args:
        frame: the result of `workbench.claims`, for one model or several under one another.

    Raises:
        InputError: no rows, a missing column, or more than three models.
        UnknownName: a verdict that there is not.
    """
    missing = [name for name in _NEEDS if name not in frame]
    if missing or frame.empty:
        raise InputError(
            f"the frame has {'no column ' + ', '.join(missing) if missing else 'no rows'}; "
            "give the result of `workbench.claims`"
        )
    frame = frame.assign(reading=frame["reading"].fillna("") if "reading" in frame else "")
    for verdict in frame["verdict"].unique():
        if verdict not in VERDICTS:
            raise UnknownName("verdict", str(verdict), VERDICTS)
    models = list(dict.fromkeys(frame["model"]))
    if len(models) > _MOST:
        raise InputError(f"{len(models)} models do not fit beside each other; give at most {_MOST}")
    several = frame["paper"].nunique() > 1
    edges = _edges(len(models))
    table = _Table(edges)
    table.head(["Place", "Claim", "Published", *(short_name(model) for model in models)])
    for _, rows in frame.groupby(list(_WHICH), sort=False, dropna=False):
        first = rows.iloc[0]
        place = f"{first['paper']} {first['place']}" if several else str(first["place"])
        reading = f"({first['reading']})" if first["reading"] else ""
        width = edges[2] - edges[1]
        cells = [
            _wrap(place, edges[1] - edges[0]),
            [*_wrap(str(first["claim"]), width), *(f"<i>{line}</i>" for line in _wrap(reading, width))],
            [_number(first["published"])],
        ]
        verdicts = []
        for model in models:
            own = rows[rows["model"] == model]
            cells.append([] if own.empty else _result(own.iloc[0]))
            verdicts.append(None if own.empty else own.iloc[0])
        table.row(cells, verdicts)
    return table.figure()


def _edges(models: int) -> list[float]:
    """Left edge of every column, and the right edge of the last."""
    claim = _WIDE_CLAIM if models == 1 else _CLAIM
    room = PAGE - 16 - _PLACE - claim - _PUBLISHED
    start = [0, _PLACE, _PLACE + claim, _PLACE + claim + _PUBLISHED]
    return [*start, *(start[-1] + room / models * (index + 1) for index in range(models))]


def _wrap(text: str, width: float) -> list[str]:
    return textwrap.wrap(text, max(int((width - 8) / _LETTER), 8))


def _result(row: pd.Series) -> list[str]:
    """Verdict, measured value and chance, a line each; the verdict's first line leaves room for its marker."""
    colour, _ = VERDICTS[row["verdict"]]
    lines = [f'&nbsp;&nbsp;&nbsp;&nbsp;<b><span style="color:{colour}">{row["verdict"]}</span></b>']
    if pd.notna(row["measured"]):
        lines.append(_with_band(row["measured"], row["low"], row["high"]))
    if "null_mean" in row and pd.notna(row["null_mean"]):
        chance = _with_band(row["null_mean"], row["null_low"], row["null_high"])
        lines.append(f'<span style="color:{GREY}">chance {chance}</span>')
    return lines


def _with_band(value: float, low: float, high: float) -> str:
    if pd.isna(low) or pd.isna(high):
        return _number(value)
    return f"{_number(value)} [{_number(low)}, {_number(high)}]"


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

    def row(self, cells: list[list[str]], verdicts: list[pd.Series | None]) -> None:
        for edge, verdict in zip(self.edges[3:], verdicts, strict=False):
            if verdict is not None:
                self.marks.append((edge + 5, self.height + _PAD / 2 + _LINE * 0.55, verdict))
        self._set(cells)
        self._rule("#DDDDDD")

    def _set(self, cells: list[list[str]]) -> None:
        for edge, lines in zip(self.edges, cells, strict=False):
            for number, line in enumerate(lines):
                self.notes.append(
                    {
                        "text": line,
                        "x": edge,
                        "y": self.height + _PAD / 2 + number * _LINE,
                        "xanchor": "left",
                        "yanchor": "top",
                        "align": "left",
                        "showarrow": False,
                        "borderpad": 0,
                        "font": {"size": _FONT},
                    }
                )
        self.height += _PAD + _LINE * max((len(lines) for lines in cells), default=1)

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
        fig = go.Figure(
            go.Scatter(
                x=[x for x, _, _ in self.marks],
                y=[y for _, y, _ in self.marks],
                mode="markers",
                marker={
                    "size": 7,
                    "symbol": [VERDICTS[row["verdict"]][1] for _, _, row in self.marks],
                    "color": [VERDICTS[row["verdict"]][0] for _, _, row in self.marks],
                    "line": {
                        "width": [1.5 if "open" in VERDICTS[r["verdict"]][1] else 0 for _, _, r in self.marks]
                    },
                },
                text=[row["verdict"] for _, _, row in self.marks],
                customdata=[
                    "<br>".join(textwrap.wrap(str(row.get("why") or ""), 60)) for _, _, row in self.marks
                ],
                hovertemplate="%{text}<br>%{customdata}<extra></extra>",
                showlegend=False,
            )
        )
        margin = 8
        fig.update_xaxes(visible=False, range=[0, self.edges[-1]], fixedrange=True)
        fig.update_yaxes(visible=False, range=[self.height + 2, 0], fixedrange=True)
        return fig.update_layout(
            annotations=self.notes,
            shapes=self.rules,
            width=PAGE,
            height=math.ceil(self.height + 2 + 2 * margin),
            margin={"l": margin, "r": margin, "t": margin, "b": margin},
        )
