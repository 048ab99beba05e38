"""Claims of the papers as a chart: a row per claim, a line per model with its interval, and the verdict."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from workbench.core.arguments import checked
from workbench.core.errors import InputError, UnknownName
from workbench.core.intervals import interval_words
from workbench.figures.composition import Axis, tick_values, with_room
from workbench.figures.frames import short_name
from workbench.figures.text_widths import in_rows, line_count, text_width, widest, wrap
from workbench.figures.theme import ALLOWED, COLOURS, GREY, PAGE, PUBLISHED, RED, SIZE, WIDTH, marker_of
from workbench.figures.words import DATA, NULLS, PAPERS, variant_words
from workbench.frames.estimate import null_range
from workbench.frames.metrics import METRICS
from workbench.papers.published import claim_options
from workbench.papers.verdicts import (
    ALPHA,
    CARRIED,
    EQUIVALENT,
    EXPLORED,
    NOT_DIAGNOSTIC,
    NOT_TESTED,
    OF_NO_MODEL,
    PREMISE,
    RANDOM_TOO,
    UNDECIDED,
    NullBand,
    counted,
    parse_measure,
    refuted_by_equality,
    region,
    sameness,
)

_AGAINST = "no effect beyond the margin, against the claim"
# Verdict: colour and marker; the word always stands beside it. Diamonds and red are the published numbers' alone.
VERDICTS = {
    "holds": (COLOURS[0], "circle"),
    EQUIVALENT: (COLOURS[0], "square-open"),
    RANDOM_TOO: (COLOURS[2], "square"),
    NOT_DIAGNOSTIC: ("#7B4FA3", "hourglass-open"),
    _AGAINST: ("#7A3300", "square-open"),
    "fails": ("#7A3300", "x"),
    UNDECIDED: ("#8A6A00", "circle-open"),
    PREMISE: (GREY, "line-ns-open"),
    NOT_TESTED: (GREY, "line-ew-open"),
}
_COLUMN_WORDS = {RANDOM_TOO: "also random"}
PAGE_HEIGHT = 720  # px, 7.5 in: what a printed page has room for above a caption
_ABSENT = {"primary": True, "kind": "", "label": "", "options": "", "units": None, "scope": "", "interval": "",
           "null": None, "null_mean": math.nan, "analysis": "", "margin": "", "p": math.nan,
           "p_adjusted": math.nan, "low_adjusted": math.nan, "high_adjusted": math.nan,
           "untrained": math.nan}  # fmt: skip
_KEYS = ["paper", "place", "claim", "interpretation"]
_NEEDS = {*_KEYS, "published", "measured", "low", "high", "n", "verdict", "model"}
_FONT, _LINE, _GAP, _MARGIN = 9.6, 12, 7, 6  # px; the layout follows the letters, so their size is fixed
# Left edges in px of the models and the verdicts, the right one of all, and the least width of a null distribution.
_WHO, _VERDICT, _END, _LEAST = 208, 570, PAGE - 2 * _MARGIN, 3
_DOUBTS = {
    "†": "undecided only after Holm's adjustment",
    "‡": "undecided only without one data set",
}
_UNTRAINED = marker_of("triangle-down-open", SIZE.large, "black", WIDTH.fine)
_ARROWS = {-1: "triangle-left", 0: "", 1: "triangle-right"}
_AROUND = 85  # px of the key and the heads; the rest of a page is the rows'
_SIGNS = {"<=": "≤", ">=": "≥"}
_SHARES = ("accuracy", "accuracy_top1", "corruption_error", "aupr")
_NULL, _SAME, _THIN, _BARE = "rgba(90,90,90,0.55)", "bracket", "thin", "untrained"
_KINDS = {"identity": "mathematics", "count": "exact count", "question": "our question"}


class _Lane(NamedTuple):
    """The result of one model for a claim."""

    who: str
    verdict: str  # one of VERDICTS
    ends: tuple[float, float, float]  # value and interval
    allowed: tuple[float, ...] | None
    null: tuple[float, float] | None
    same: tuple[float, ...] | None  # what is equivalent, where that is not all that is allowed
    words: str
    why: str
    doubts: str  # marks beside the verdict, of `_DOUBTS`
    thin: tuple[float, ...]  # ends of the interval at Holm's level, where that is wider
    untrained: float  # the same of untrained weights


class _Row(NamedTuple):
    """One claim: its words, a lane for each model, its baseline, its published numbers, its unit."""

    label: str
    lanes: list[_Lane]
    beside: str
    published: list[float]
    printed: str
    unit: str
    key: str  # following rows with the same one share an axis; none with ""

    @property
    def lines(self) -> int:
        """How many lines its lanes take."""
        return len(self.lanes) + bool(self.published or self.beside)

    def height(self, last: bool) -> float:
        """Pixels of its text or of its lanes, with the axis's numbers under the last row of an axis."""
        return max(line_count(self.label), self.lines + last) * _LINE + _GAP


@dataclass(frozen=True)
class _Scale:
    """The axis of some rows; of values of both signs that lie decades apart the inverse hyperbolic sine.

    It is cut where what a claim allows would be a line beside values far away: arrows mark these.
    """

    axis: Axis
    unit: float = 0.0

    @classmethod
    def of(cls, rows: Sequence[_Row]) -> _Scale:
        """An axis with everything that the rows show, and room for the range where a claim holds."""
        lanes = _lanes(rows)
        judged = [_finite(part) for lane in lanes for part in (lane.ends, lane.allowed or ())]
        numbers = [
            *_finite(
                end for lane in lanes for part in (lane.null, lane.same, lane.thin) for end in part or ()
            )
        ]
        numbers += _finite(value for row in rows for value in row.published)
        numbers += _finite(lane.untrained for lane in lanes)
        numbers += [end for part in judged for end in part]
        low, high = min(numbers), max(numbers)
        sizes = [max(map(abs, part)) for part in judged if any(part)]
        if low < 0 < high and max(sizes) > 100 * min(sizes):
            start, end = (math.asinh(end_value / min(sizes)) for end_value in (low, high))
            return cls(with_room(Axis("", start, end), 0.08), min(sizes))
        log = low > 0 and high > 40 * low
        inward = {at for lane in lanes for at, end in enumerate(lane.allowed or ()) if math.isfinite(end)}
        spans = [lane.allowed for lane in lanes if lane.allowed and all(map(math.isfinite, lane.allowed))]
        if spans and not log and min(end - start for start, end in spans) < 0.02 * (high - low):
            low, high = min(start for start, _ in spans), max(end for _, end in spans)
            return cls(with_room(Axis("", low, high), 1.0))
        if not log and 0 < low < high / 2:
            low = 0.0
        if low == high:
            return cls(with_room(Axis("", low, low + 1.0)))
        axis = Axis("", low, high, log)
        wide = with_room(axis, 0.2)  # a range that begins at the least or ends at the most has a face
        axis = Axis("", wide.low if 0 in inward and low else low, wide.high if 1 in inward else high, log)
        return cls(with_room(axis))

    def at(self, value: float) -> float:
        """Return the position of a value as a share of the axis; values beyond an end are at that end."""
        value = math.asinh(value / self.unit) if self.unit else value
        return self.axis.place(min(max(value, self.axis.low), self.axis.high))

    def beyond(self, value: float) -> int:
        """Whether a value lies below (−1) or above (1) what the axis shows."""
        value = math.asinh(value / self.unit) if self.unit else value
        return (value > self.axis.high) - (value < self.axis.low)

    def ticks(self, wide: float) -> Iterator[tuple[float, str]]:
        """Yield the position and the text of each number under an axis of this width in pixels."""
        if self.unit:
            powers = [10.0**power for power in range(20, math.floor(math.log10(self.unit)) - 1, -1)]
            taken: list[float] = []
            for number in (0.0, *(sign * power for power in powers for sign in (1, -1))):
                if not self.beyond(number) and all(
                    abs(self.at(number) - at) * wide > 1.6 * _FONT for at in taken
                ):
                    taken.append(self.at(number))
                    yield taken[-1], _short(number)
            return
        places, labels = tick_values(self.axis, wide, _FONT, upright=False)
        yield from zip(map(self.at, places), labels, strict=True)

    @property
    def words(self) -> str:
        """How it is divided, where not evenly."""
        return "signed log" if self.unit else "log" if self.axis.log else ""


def shown_claims(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of a table of claims that `claims_figure` draws.

    Claims that were not tested are left out. If the rest would not fit a page, primary rows stay with all their models,
    and claims without a primary row keep one row each. If these would not fit either, only primary rows stay, without
    mathematics, exact counts and questions of ours.

    Args:
        frame: what `claims_figure` takes.

    Raises:
        InputError: no rows, a missing column, or no claim that was tested.
        UnknownName: a verdict that there is not.
    """
    return _shown(frame)[0].drop(columns="order")


@checked
def claims_figure(frame: pd.DataFrame) -> go.Figure:
    """A row per claim: words and what must hold, a line per model with its 95 % interval, and the verdict.

    A row has its own axis, but for differences and ratios of trained models, which share one. The range where the
    claim holds is shaded, up to the threshold or the end of the null distribution; published numbers have a separate
    line. `claims_caption` counts the rows that `shown_claims` leaves out.

    Args:
        frame: the result of `workbench.claims`, for one model or several under one another, or of
            `workbench.studies.claims_from_records`; of one paper.

    Raises:
        InputError: no rows, a missing column, or no claim that was tested.
        UnknownName: a verdict that there is not.
    """
    drawn, rows = _shown(frame)
    null = (_null_words(drawn) if drawn["null"].nunique() == 1 else "") or "null"
    null += f": {null_range(frame, analyses={*drawn.loc[drawn['null'].notna(), 'analysis']})}"
    return _Chart(rows, null).figure()


def claims_caption(frame: pd.DataFrame) -> str:
    """Return the caption's sentences on the chart of a table of claims: samples, marks, rows left out.

    Args:
        frame: what `claims_figure` takes.
    """
    drawn, rows = _shown(frame)
    pairs = _of_pairs(drawn)
    sample = (
        "trained models, over seeds unless a row says otherwise" if pairs else _listed_units(_usual(drawn))
    )
    sentences = [f"Estimate and 95 % CI over {sample}; shaded: where the claim holds."]
    marks = {mark for lane in _lanes(rows) for mark in lane.doubts}
    sentences += [
        "; ".join(f"{mark} {words}" for mark, words in _DOUBTS.items() if mark in marks) + "."
    ] * bool(marks)
    if aside := _listed(_aside(drawn)).replace(" and ", " or "):
        sentences.append(f"Rows marked {aside} do not count.")
    tested = frame[frame["verdict"] != NOT_TESTED]
    left = [
        (
            len(tested[tested["verdict"] != PREMISE].drop_duplicates(_KEYS)) - len(rows),
            "further interpretation{}",
        ),
        (len(tested[tested["verdict"] == PREMISE].drop_duplicates(_KEYS)), "row{} whose premise is not met"),
        (len(frame[frame["verdict"] == NOT_TESTED].drop_duplicates(_KEYS)), "row{} not tested at this scale"),
    ]
    words = [f"{count} {words.format('s' * (count > 1))}" for count, words in left if count > 0]
    sentences += [f"Only in the table: {_listed(words)}."] * bool(words)
    return " ".join([*sentences, "Rules, nulls and symbols: docs/papers/verdicts.md."])


def _tested(frame: pd.DataFrame) -> pd.DataFrame:
    missing = sorted(_NEEDS - {*frame})
    if missing or frame.empty:
        reason = f"no column {', '.join(missing)}" if missing else "no rows"
        raise InputError(f"the frame has {reason}; give the result of `workbench.claims`")
    for verdict in frame["verdict"].unique():
        if verdict not in VERDICTS:
            raise UnknownName("verdict", str(verdict), VERDICTS)
    order = frame.groupby(_KEYS, sort=False, dropna=False).ngroup()
    tested = frame.assign(order=order)[(frame["verdict"] != NOT_TESTED) & frame["measured"].notna()]
    # what random logits or mathematics show is of no model, and drawn once
    again = tested["over"].isin([*OF_NO_MODEL]) & tested.duplicated("order")
    tested = tested[~again].sort_values("order", kind="stable", ignore_index=True)
    if tested.empty:
        raise InputError(
            "no claim was tested, so that there is nothing to draw; the column `why` has the reasons"
        )
    return tested.assign(**{name: value for name, value in _ABSENT.items() if name not in tested})


def _lanes(rows: Sequence[_Row]) -> list[_Lane]:
    return [lane for row in rows for lane in row.lanes]


def _finite(numbers: Iterable[float]) -> list[float]:
    return [*filter(math.isfinite, numbers)]


def _shown(frame: pd.DataFrame) -> tuple[pd.DataFrame, list[_Row]]:
    """What `shown_claims` keeps, with the column ``order``, and its rows in the figure."""
    tested = _tested(frame)
    rows = _rows(tested)
    if _height(rows) > PAGE_HEIGHT - _AROUND:
        sorted_rows = tested.sort_values("primary", ascending=False, kind="stable")
        first = sorted_rows.groupby(["paper", "claim", "model"], dropna=False)["order"].transform("first")
        tested = tested[tested["primary"].astype(bool) | tested["order"].isin(first)]
        rows = _rows(tested)
    if _height(rows) > PAGE_HEIGHT - _AROUND and len(counted(tested)):
        tested = tested[tested["order"].isin(counted(tested)["order"])]
        rows = _rows(tested)
    return tested, rows


def _height(rows: Sequence[_Row]) -> float:
    """Pixels of all rows."""
    return sum(row.height(row is group[-1]) for group in _groups(rows) for row in group)


def _groups(rows: Sequence[_Row]) -> list[list[_Row]]:
    """The rows of each axis."""
    groups = itertools.groupby(enumerate(rows), lambda numbered: numbered[1].key or numbered[0])
    return [[row for _, row in group] for _, group in groups]


def _cut(rows: Sequence[_Row]) -> bool:
    """Whether an end of an interval lies beyond its axis."""
    scales = [(_Scale.of(group), row) for group in _groups(rows) for row in group]
    ends = ((scale, end) for scale, row in scales for lane in row.lanes for end in (*lane.ends, *lane.thin))
    return any(scale.beyond(end) for scale, end in ends)


def _rows(frame: pd.DataFrame) -> list[_Row]:
    usual = {} if _of_pairs(frame) else _usual(frame)
    nulls = frame["null"].dropna().nunique()
    rows = []
    frame = frame.assign(
        model=[OF_NO_MODEL.get(*pair) for pair in zip(frame["over"], frame["model"], strict=True)]
    )
    frame = frame.assign(row=frame.to_dict("records"))  # once, since it takes time
    for _, claim_rows in frame.groupby(_KEYS, sort=False, dropna=False):
        first, terms = claim_rows.iloc[0], parse_measure(claim_rows["measure"].iloc[0])
        points = first["over"] == "model - baseline" and terms[0].metric in _SHARES
        factor, unit = (100.0, " pp") if points else (1.0, "")
        baseline = claim_options(first["options"] or "").get("baseline")
        word = {"model - baseline": "less", "model / baseline": "over"}.get(first["over"], "over")
        lanes = [_lane(row, factor, unit) for row in claim_rows["row"]]
        thresholds = {factor * end for lane in lanes for end in lane.allowed or ()}
        published = [factor * float(value) for value in claim_rows["published"].dropna().unique()]
        published = [value for value in published if not any(math.isclose(value, end) for end in thresholds)]
        theory = "exponent" in first["measure"]
        printed = f"{'theory' if theory else 'published'} {', '.join(map(_short, published))}{unit}"
        kind = _kind(first["over"], terms[0].metric, unit) if _of_pairs(frame) else ""
        key = kind or f"{first['over']} {terms[0].metric}" * (len(terms) == 1)
        comparison = f"{word} {variant_words(baseline)}" if baseline else ""
        label = _label(claim_rows, usual, _claimed(claim_rows, factor, unit), nulls > 1)
        rows.append(_Row(label, lanes, comparison, published, printed, kind, key))
    return sorted(rows, key=lambda row: [*dict.fromkeys(other.unit for other in rows)].index(row.unit))


def _label(claim_rows: pd.DataFrame, usual: dict[str, str], claimed: str, several_nulls: bool) -> str:
    """The words of a claim, what must hold, and in grey its place, its sample and why it does not count."""
    first = claim_rows.iloc[0]
    every = [(row["model"], _sampled(row)) for row in claim_rows["row"]]
    sampled = [sample for name, sample in every if sample not in ("", usual.get(name))]
    counts, units = [*dict.fromkeys(sample.rpartition(" ")[0] for sample in sampled)], sampled[-1:]
    tail = [
        _place(first["place"]),
        *(f"{' or '.join(counts)} {sample.rpartition(' ')[2]}" for sample in units),
    ]
    tail += ["exploratory"] * (EXPLORED in {*claim_rows["scope"]})
    tail += ["after warm-up"] * first["over"].endswith("warm-up")
    tail += [name for name in _data(claim_rows) if name not in first["label"] and name not in tail]
    tail += _aside(claim_rows)
    null_drawn = "" if first["comparison"].endswith("null") or not several_nulls else _null_words(claim_rows)
    tail += [null_drawn] * bool(null_drawn)
    grey = [f"{part};" for part in tail[:-1]] + tail[-1:]
    looks = {claimed: "<b>{}</b>"} | dict.fromkeys(grey, f'<span style="color:{GREY}">{{}}</span>')
    words = first["label"] or f"{first['claim']}: {first['interpretation']}"
    words = re.sub("|".join(PAPERS), lambda match: PAPERS[match[0]].partition(" (")[0], words)
    words = re.sub(r"\([^)]*\)", lambda match: _whole(match[0]), words.replace(" = ", _whole(" = ")))
    label = wrap(" ".join([words, *map(_whole, looks)]), _WHO - 8, _FONT)
    for part, look in looks.items():
        label = label.replace(part, look.format(part), 1)
    for symbol in ("R_c", "J_proj", "1_N"):
        label = label.replace(symbol, symbol.replace("_", "<sub>") + "</sub>")
    return label


def _aside(frame: pd.DataFrame) -> list[str]:
    """Return why rows do not count."""
    kinds = frame["kind"].map(_KINDS).fillna("secondary")
    return [*kinds[frame["kind"].isin([*_KINDS]) | ~frame["primary"].astype(bool)].unique()]


def _data(frame: pd.DataFrame) -> list[str]:
    """On what data the models of the records were trained: its name, or how many there are."""
    asked_options = [claim_options(options) for options in frame["options"].fillna("").unique()]
    names = [
        name
        for name in DATA
        if any(chosen.get("model", "").startswith(f"{name}-") for chosen in asked_options)
    ]
    embedded = [chosen["data"].split("+") for chosen in asked_options if "data" in chosen]
    return [
        *names,
        *dict.fromkeys(
            data_sets[0] if len(data_sets) == 1 else f"{len(data_sets)} data sets" for data_sets in embedded
        ),
    ]


def _whole(words: str) -> str:
    """Words between which no line ends."""
    return words.replace(" ", "\u00a0")


def _null_words(rows: pd.DataFrame) -> str:
    """The null distributions that are drawn in a row."""
    kinds = [NULLS.get(kind, str(kind)) for kind in rows["null"].dropna().unique()]
    return f"null ({' or '.join(kinds)})" if kinds else ""


def _kind(over: str, metric: str, unit: str) -> str:
    """Return the words of the axis of claims about trained models."""
    if "exponent" in metric:
        return "difference" if over == "model - baseline" else "exponent"
    words = {"model - baseline": "difference", "model / baseline": "ratio"}
    return words.get(over, "change" * over.startswith("last - ")) + ("," * bool(unit)) + unit


def _of_pairs(frame: pd.DataFrame) -> bool:
    """Whether the claims are of `claims_from_records`, each about other models."""
    return frame["options"].fillna("").ne("").any()


def _sampled(row: Any) -> str:
    """Return the sample of an interval: "4 inputs"; an empty text for a count, which is exact."""
    if row["kind"] == "count" or row["over"] == "nothing":
        return ""
    return f"{int(row['n'])} {row['units']}" if pd.notna(row["units"]) else f"n = {int(row['n'])}"


def _usual(frame: pd.DataFrame) -> dict[str, str]:
    """Return the sample of each model's intervals: that of its first row."""
    first = frame[~frame["over"].isin([*OF_NO_MODEL])].drop_duplicates("model")
    return {row["model"]: _sampled(row) for row in first.to_dict("records")}


def _place(words: str) -> str:
    """Return the place of a claim in its paper; a bare number is a section."""
    words = re.sub(r"(?:^|(?<=; ))(?=(?:\d[\d.]*|[IVX]+(?:-[A-Z])?)(?:[;,]|$))", "§", str(words))
    return re.sub(r"(?:^|(?<=; ))(?=[A-H](?:\.\d+)?(?:[;,]|$))", "App. ", words)


def _claimed(rows: pd.DataFrame, factor: float, unit: str) -> str:
    """Return the claim as an inequality, with its margin."""
    row = rows.iloc[0]
    comparison, threshold, margin = row["comparison"], str(row["threshold"]), str(row["margin"] or "")
    margin = margin.replace("%", " %")
    if comparison == "near":
        return f"within {threshold.replace('%', ' %')} of published"
    if comparison == "equals":
        return f"{threshold} within {margin}"
    if comparison == "between":
        low, high = (float(end) for end in threshold.split(".."))
        published = float(row["published"])
        if high > 2 * low and math.isclose(published / low, high / published, rel_tol=1e-3):
            return f"within {_short(high / published)}× of {_short(published)}"
        return f"{_short(low)} to {_short(high)}"
    if comparison.endswith("null"):
        compared = comparison.removesuffix("null").strip()
        beyond = f" {'−' if compared == '<' else '+'} {margin}" if margin else ""
        return f"{_SIGNS.get(compared, compared)} {_null_words(rows) or 'null'}{beyond}"
    number = _short(factor * float(threshold))
    same = f" ({number} ± {margin}: equivalent)" if margin else ""
    return f"{_SIGNS.get(comparison, comparison)} {number}{unit}{same}"


def _lane(row: dict[str, Any], factor: float, unit: str) -> _Lane:
    value, low, high = (factor * float(row[name]) for name in ("measured", "low", "high"))
    null = None
    if pd.notna(row["null_mean"]):
        null = NullBand("", *(float(row[name]) for name in ("null_mean", "null_low", "null_high")))
    comparison, threshold, margin = row["comparison"], str(row["threshold"]), row["margin"]
    least, most = _bounds(row)
    allowed = region(comparison, threshold, float(row["published"]), null, margin, most)
    same = sameness(comparison, allowed, null, margin, most, threshold)
    same = (max(same[0], least), same[1]) if same and same != allowed else None
    same, allowed = (  # what is next to 0 is 0 here
        None if ends is None else tuple(factor * end if abs(end) > 1e-300 else 0.0 for end in ends)
        for ends in (same, allowed)
    )
    options = claim_options(row["options"] or "")
    model = options.get("model") or options.get("operator")
    verdict = row["verdict"]
    words = interval_words(value, low, high, allowed or ()) + unit
    band = None if null is None else (factor * null.low, factor * null.high)
    thin = (factor * float(row["low_adjusted"]), factor * float(row["high_adjusted"]))
    doubts = "†" * (verdict == UNDECIDED and row["p"] <= ALPHA < row["p_adjusted"])
    doubts += "‡" * (verdict == UNDECIDED and row["p_adjusted"] <= ALPHA and CARRIED in str(row.get("why")))
    return _Lane(
        variant_words(model) if model else short_name(row["model"]),
        _AGAINST if verdict == EQUIVALENT and refuted_by_equality(comparison) else verdict,
        (value, value if math.isnan(low) else low, value if math.isnan(high) else high), allowed, band, same,
        words, str(row.get("why") or ""), doubts,
        thin if math.isfinite(thin[0]) and thin != (low, high) else (),
        math.nan if row["over"].startswith("trained ") else factor * row["untrained"],
    )  # fmt: skip


def _bounds(row: Any) -> tuple[float, float]:
    """The least and the most that the quantity of a claim can be."""
    metric = METRICS.get(parse_measure(row["measure"])[0].metric)
    plain = metric is not None and not row["measure"].startswith("(")
    return (metric.low, metric.high) if plain else (-math.inf, 1.0)


def _listed(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if words[1:] else words)


def _listed_units(usual: dict[str, str]) -> str:
    """Return the sample of a mean, 25 inputs or 25 inputs (8 inputs for all-MiniLM-L6-v2), where models differ."""
    first, *_ = units = [*usual.values()] or ["inputs"]
    if len(set(units)) == 1:
        return first
    others = [f"{count} for {short_name(name)}" for name, count in usual.items() if count != first]
    return f"{first} ({', '.join(others)})"


def _short(number: float) -> str:
    """A number of an axis or a threshold, in few letters."""
    if number == 0 or 1e-3 <= abs(number) < 1e4:
        return f"{number:.4g}".replace("-", "−")
    digits, power = f"{number:.2e}".split("e")
    digits = f"{float(digits):g}"
    start = "" if digits == "1" else "−" if digits == "-1" else f"{digits}·"
    return f"{start}10<sup>{int(power)}</sup>".replace("-", "−")


class _Chart:
    """Rows on their way to a figure, in pixels from the top left; the axes have the room that the words leave."""

    def __init__(self, rows: Sequence[_Row], null: str) -> None:
        self.rows, self.lanes, self.null = rows, _lanes(rows), null
        model_width = widest([*(row.beside for row in rows), *(lane.who for lane in self.lanes)], _FONT)
        words = [*(row.printed for row in rows), *(lane.words for lane in self.lanes)]
        self.value = _VERDICT - 10 - widest([*words, "<b>Measured [95 % CI]</b>"], _FONT)
        self.strip = _WHO + max(model_width, 60) + 12
        self.wide = self.value - 14 - self.strip
        self.notes: list[dict[str, Any]] = []
        self.shapes: list[dict[str, Any]] = []
        self.traces: list[go.Scatter] = []

    def _at(self, scale: _Scale, value: float) -> float:
        return self.strip + self.wide * scale.at(value)

    def figure(self) -> go.Figure:
        top = self._key()
        heads = "Claim, and what must hold", "Model", "Measured [95 % CI]", "Verdict"
        for x, words in zip((0, _WHO, self.value, _VERDICT), heads, strict=True):
            self._write(f"<b>{words}</b>", x, top)
        top += _LINE + 6
        for group in _groups(self.rows):
            top = self._group(group, top)
        self._box(0, _END, top, top, line={"color": "#CCCCCC", "width": WIDTH.edge})
        fig = go.Figure(self.traces)
        fig.update_xaxes(visible=False, range=[0, _END], fixedrange=True)
        fig.update_yaxes(visible=False, range=[top, 0], fixedrange=True)
        return fig.update_layout(
            annotations=self.notes, shapes=self.shapes, width=PAGE, height=math.ceil(top + 2 * _MARGIN),
            margin=dict.fromkeys("lrtb", _MARGIN), showlegend=False,
        )  # fmt: skip

    def _key(self) -> float:
        """Draw the key at the top; return its lower end."""
        lanes, rows = self.lanes, self.rows
        entries = [(word, word) for word in VERDICTS if any(lane.verdict == word for lane in lanes)]
        entries[0] = f"estimate, 95 % CI: {entries[0][0]}", entries[0][1]
        entries += [("thin: Holm-adjusted CI", _THIN)] * any(lane.thin for lane in lanes)
        entries.append(("where the claim holds", ALLOWED))
        entries += [("margin of equivalence", _SAME)] * any(lane.same for lane in lanes)
        entries += [(self.null, _NULL)] * any(lane.null for lane in lanes)
        entries += [("estimate beyond the axis; small: an end of its CI", _ARROWS[1])] * _cut(rows)
        entries += [("untrained weights, mean", _BARE)] * any(math.isfinite(lane.untrained) for lane in lanes)
        printed = [row.printed.split(" ")[0] for row in rows if row.published]
        words = "published, other models" if "published" in printed else ""
        words += (", or theory" if words else "theory") if "theory" in printed else ""
        entries += [(words, "")] * bool(printed)
        lines = in_rows([words for words, _ in entries], _END, _FONT)
        for line, places in enumerate(lines):
            x, y = 0.0, (line + 0.5) * (_LINE + 2)
            for words, look in (entries[index] for index in places):
                if look in VERDICTS:
                    self._estimate((x + 10, x + 2, x + 18), y, look, words)
                elif look == _SAME:
                    self._bracket(x + 2, x + 18, y + 3)
                elif look == _THIN:
                    self._thin(x + 2, x + 18, y, GREY)
                elif look == _BARE:
                    self._mark([x + 10], y, _UNTRAINED)
                elif look == _ARROWS[1]:
                    self._mark([x + 10], y, marker_of(look, SIZE.ring, GREY))
                elif look:
                    self._box(x + 1, x + 19, y - 4, y + 4, fillcolor=look)
                else:
                    self._published([x + 10], y, words)
                self._write(words, x + 23, y - _LINE / 2)
                x += 23 + text_width(words, _FONT) + 14
        return len(lines) * (_LINE + 2) + 5

    def _group(self, rows: Sequence[_Row], top: float) -> float:
        """Rows of one axis, its numbers under the last; returns where they end."""
        scale, start = _Scale.of(rows), top
        places = [(self.strip + self.wide * at, words) for at, words in scale.ticks(self.wide)]
        grid = len(self.shapes)
        for number, row in enumerate(rows, start=1):
            self._box(0, _END, top, top, line={"color": "#CCCCCC", "width": WIDTH.edge})
            self._draw(row, scale, top + _GAP / 2)
            foot = top + _GAP / 2 + row.lines * _LINE
            top += row.height(number == len(rows))
        foot = max(foot, top - _GAP / 2 - _LINE) if len(rows) > 1 else foot
        look, drawn = {"color": "#BBBBBB", "width": WIDTH.edge}, self.shapes[grid:]
        del self.shapes[grid:]  # the grid lies beneath them
        for x, words in places:
            self._box(x, x, start + _GAP / 2, foot + 2, line=look)
            self._write(words, x, foot + 1, GREY, "center")
        self._box(self.strip, self.strip + self.wide, foot, foot, line=look)
        self.shapes += drawn
        unit_words = ", ".join(filter(None, (rows[0].unit, scale.words)))
        least = min([self.strip, *(x - text_width(words, _FONT) / 2 for x, words in places)])
        self._write(unit_words, least - 8, foot + 1, GREY, "right")
        return top

    def _draw(self, row: _Row, scale: _Scale, top: float) -> None:
        self._write(row.label, 0, top)
        below = top + len(row.lanes) * _LINE
        for number, lane in enumerate(row.lanes):
            above = top + number * _LINE
            colour, _ = VERDICTS[lane.verdict]
            self._range(lane, scale, above)
            self._write(lane.who, _WHO, above)
            self._write(lane.words, self.value, above)
            verdict = _COLUMN_WORDS.get(lane.verdict) or re.split(r" within| beyond| \(", lane.verdict)[0]
            self._write(f"<b>{verdict}{lane.doubts}</b>", _VERDICT, above, colour)
            x = tuple(self._at(scale, end) for end in lane.ends)
            if math.isfinite(lane.untrained):
                self._mark([self._at(scale, lane.untrained)], above + _LINE / 2, _UNTRAINED)
            away = scale.beyond(lane.ends[0])
            self._estimate(x, above + _LINE / 2, lane.verdict, lane.why, _ARROWS[away])
            if lane.thin:
                self._thin(*(self._at(scale, end) for end in lane.thin), above + _LINE / 2, colour)
            for side in {scale.beyond(end) for end in (*lane.ends, *lane.thin)} - {0, away}:
                arrow = marker_of(_ARROWS[side], SIZE.row, colour)
                self._mark([x[1] if side < 0 else x[2]], above + _LINE / 2, arrow)
        if row.beside:
            self._write(row.beside, _WHO, below, GREY)
        if row.published:
            self._write(row.printed, self.value, below, RED)
            places = [self._at(scale, value) for value in row.published]
            self._published(places, below + _LINE / 2, row.printed)

    def _range(self, lane: _Lane, scale: _Scale, above: float) -> None:
        """Draw the range of a claim within the axis, its ends, and the null distribution."""
        if lane.allowed is not None:
            low, high = (self._at(scale, end) for end in lane.allowed)
            self._box(low, high, above, above + _LINE, fillcolor=ALLOWED)
            for x in (x for x, end in zip((low, high), lane.allowed, strict=True) if math.isfinite(end)):
                self._box(x, x, above, above + _LINE, line={"color": "black", "width": WIDTH.fine})
        if lane.same is not None:
            self._bracket(*(self._at(scale, end) for end in lane.same), above + _LINE - 1)
        if lane.null is not None:
            low, high = (self._at(scale, end) for end in lane.null)
            room = max(0.0, _LEAST - (high - low)) / 2
            self._box(low - room, high + room, above + 1.5, above + _LINE - 1.5, fillcolor=_NULL)

    def _bracket(self, low: float, high: float, y: float) -> None:
        """A margin: a line between two ends that point up."""
        for x0, x1, y0 in ((low, high, y), (low, low, y - 4), (high, high, y - 4)):
            self._box(x0, x1, y0, y, line={"color": "black", "width": WIDTH.rule})

    def _thin(self, low: float, high: float, y: float, colour: str) -> None:
        """An interval that is wider than the usual one: a thin line between short ends."""
        for x0, x1, y0, y1 in ((low, high, y, y), (low, low, y - 2, y + 2), (high, high, y - 2, y + 2)):
            self._box(x0, x1, y0, y1, line={"color": colour, "width": WIDTH.single})

    def _estimate(self, x: Sequence[float], y: float, verdict: str, why: str, arrow: str = "") -> None:
        """A value and its interval, already in pixels."""
        colour, symbol = VERDICTS[verdict]
        symbol, size = (arrow, 9) if arrow else (symbol, 5.5)
        line = {"width": WIDTH.outline if "open" in symbol else 0, "color": colour}
        self.traces.append(
            go.Scatter(
                x=[x[0]], y=[y], mode="markers", customdata=[why], hovertemplate="%{customdata}<extra></extra>",
                marker={"symbol": symbol, "size": size, "color": colour, "line": line}, cliponaxis=False,
                error_x={"type": "data", "symmetric": False, "array": np.subtract(x[2:], x[0]), "width": 0,
                         "arrayminus": np.subtract(x[0], x[1:2]), "color": colour, "thickness": 1.4},
            )
        )  # fmt: skip

    def _published(self, x: Sequence[float], y: float, words: str) -> None:
        self._mark(x, y, PUBLISHED, hovertemplate=f"{words}<extra></extra>")

    def _mark(self, x: Sequence[float], y: float, look: dict[str, Any], **more: Any) -> None:
        self.traces.append(
            go.Scatter(x=x, y=[y] * len(x), mode="markers", marker=look, cliponaxis=False, **more)
        )

    def _box(self, x0: float, x1: float, y0: float, y1: float, **look: Any) -> None:
        self.shapes.append(
            {"type": "line" if "fillcolor" not in look else "rect", "x0": x0, "x1": x1, "y0": y0, "y1": y1,
             "layer": "below", "line": {"width": 0}, **look}
        )  # fmt: skip

    def _write(self, text: str, x: float, y: float, colour: str = "black", anchor: str = "left") -> None:
        look = {"xanchor": anchor, "yanchor": "top", "showarrow": False, "borderpad": 0}
        look["font"] = {"size": _FONT, "color": colour}
        for number, line in enumerate(text.split("<br>")):  # of several plotly moves some a pixel to the side
            self.notes.append({"text": line, "x": x, "y": y + number * _LINE, **look})
