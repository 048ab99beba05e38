"""Claims of the papers as a chart: a row per claim, a line per model with its interval, and the verdict."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from workbench.core.errors import InputError, UnknownName
from workbench.core.intervals import interval_words
from workbench.core.options import checked
from workbench.figures.composition import Axis, Panel, compose
from workbench.figures.frames import short_name
from workbench.figures.marks import NEUTRAL_STYLE, key_entry
from workbench.figures.text_widths import line_count, wrap
from workbench.figures.theme import ALLOWED, COLOURS, GREY, PAGE, PALE, PUBLISHED, RED, SIZE, WIDTH, marker_of
from workbench.figures.words import DATA, NULLS, PAPERS, variant_words
from workbench.frames.estimate import null_range
from workbench.papers import verdicts
from workbench.papers.published import claim_options
from workbench.papers.verdicts import CARRIED, EQUIVALENT, NOT_DIAGNOSTIC, NOT_TESTED, PREMISE, RANDOM_TOO

VERDICTS = {
    verdicts.HOLDS: (COLOURS[0], "circle"),
    EQUIVALENT: (COLOURS[0], "square-open"),
    RANDOM_TOO: (COLOURS[2], "square"),
    NOT_DIAGNOSTIC: ("#7B4FA3", "hourglass-open"),
    verdicts.FAILS: ("#7A3300", "x"),
    verdicts.UNDECIDED: ("#8A6A00", "circle-open"),
    PREMISE: (GREY, "line-ns-open"),
    NOT_TESTED: (GREY, "line-ew-open"),
}
"""Verdict: colour and marker."""
WORDS = {RANDOM_TOO: "also untrained", NOT_DIAGNOSTIC: "noise passes", PREMISE: "no premise"}
"""Verdicts that charts call by shorter words."""
_NO_EFFECT = (GREY, "square-x-open")  # of a claim that equality refutes
# why a claim is undecided whose interval is clear of the threshold
_REASONS = {CARRIED: "rests on one data set", "Holm": "after Holm"}
MEANINGS = {
    RANDOM_TOO: "Also untrained: untrained weights give the same verdict",
    NOT_DIAGNOSTIC: "Noise passes: its null meets the threshold",
    PREMISE: "No premise: its assumption fails",
}
"""Verdicts to their definitions in a caption."""
_TERMS = {
    "V̇": "V̇: kernel PCA's values",
    "φ": "φ: features of queries, h: outputs",
    "TSSA": "TSSA: token statistics self-attention, used in ToST",
    "RPC": "RPC: attention by robust principal components",
    "R_c": "R_c: coding rate",
    "r-scores": "R-scores: projections of the keys in the primal form",
}
"""Symbols in the labels of claims, to their definitions in a caption."""
_KEYS = ["paper", "place", "claim", "interpretation"]
_SIDES = ("low", "high")
_SIGNS = {"<=": "≤", ">=": "≥"}
_SHARES = ("accuracy", "accuracy_top1", "corruption_error", "aupr")
_FONT, _LINE, _GAP, _HEAD = 9.6, 12.5, 6, 20  # px
_CLAIM, _MODEL, _STRIP, _VALUE, _VERDICT = 2, 222, 332, 448, 577  # px, the left edges of columns
_EDGE = 1.25  # the end of the strip, whose scale ends at 1
_LEAST = 0.015  # half the least width of a null
_VISIBLE = 0.03  # how much wider an adjusted interval must be to be drawn
_FITTED = ("interval", "adjusted", "null", "published", "untrained")  # what a row's scale has room for


def _stroke(colour: str, width: float) -> dict[str, Any]:
    return {"mode": "lines", "line": {"color": colour, "width": width, "dash": "solid"}}


_UNTRAINED = marker_of("triangle-down-open", SIZE.cross, "black", WIDTH.fine)
_MARKS: dict[str, tuple[str, str, dict[str, Any], float]] = {
    "interval": ("estimate, 95 % CI", "", {**NEUTRAL_STYLE, "mode": "lines+markers"}, -2),
    "adjusted": ("Holm-adjusted CI", "Thin", _stroke(GREY, WIDTH.rule), -2),
    "untrained": ("untrained weights", "Triangles", {"mode": "markers", "marker": _UNTRAINED}, 4),
    "published": ("published or theory", "Red ×", {"mode": "markers", "marker": PUBLISHED}, _LINE),
    "null": ("", "Grey", _stroke("rgba(90,90,90,0.55)", 4), 4),
    "margin": ("margin of equivalence", "Pale grey", _stroke("rgba(0,0,0,0.12)", _LINE - 2), 0),
}
"""Marks: their words in the key, how a caption calls them, their look, how many pixels below their line's middle."""


@checked
def claims_figure(frame: pd.DataFrame) -> go.Figure:
    """Draw a row per primary claim: what must hold, a line per model with its 95 % interval, and the verdict.

    The claim holds in the blue: right of the threshold, or between the two ends of a range. Each row has its own scale.
    Claims that hold come first.

    Args:
        frame: the result of `workbench.claims`, for one or several models, or of
            `workbench.studies.claims_from_records`; of one paper.

    Raises:
        InputError: no rows, a missing column, or no claim that was tested.
        UnknownName: an unknown verdict.
    """
    claims = _drawn(frame)
    heads = {
        _CLAIM: "Claim, and what must hold",
        _MODEL: "Model",
        _VALUE: "Measured [95 % CI]",
        _VERDICT: "Verdict",
    }
    notes = [note for x, words in heads.items() for note in _texts(f"<b>{words}</b>", x, 2 - _HEAD)]
    middle = {"x": 0, "xref": "x", "xanchor": "center"}
    notes += [note | middle for note in _texts("<b>Blue: holds</b>", 0, 2 - _HEAD)]
    groups = [rows.to_dict("records") for _, rows in claims.groupby(_KEYS, sort=False, dropna=False)]
    groups.sort(key=lambda rows: min(verdicts.OUTCOMES.index(verdicts.outcome(row)) for row in rows))
    lanes, ends, rules = [], [], [0.0]
    for rows in groups:
        y, label = rules[-1] + _GAP / 2, _label(rows)
        notes += _texts(label, _CLAIM, y)
        bottom = y + _LINE * line_count(label)
        for lane in _lanes(rows):
            words = {_MODEL: lane["model"], _VALUE: lane["measured"], _VERDICT: lane["verdict"]}
            for x, text in words.items():
                notes += _texts(text, x, y, lane["colour"] if x == _VERDICT else "black")
            lanes.append(lane | {"y": y + _LINE / 2})
            y += _LINE * max(map(line_count, words.values()))
        ends.append(lanes[-1]["range"])
        rules.append(max(y, bottom) + _GAP / 2)
    bottom, bare = rules[-1], {"showline": False}
    x, y = (Axis("", *sides, bare=True, more=bare) for sides in ((-_EDGE, _EDGE), (bottom, -_HEAD)))
    marks = pd.DataFrame(lanes)
    drawn = {name: marks.dropna(subset=f"{name}_low") for name in _MARKS if f"{name}_low" in marks}
    adjusted = drawn.get("adjusted", marks[:0])
    wider = [adjusted.get(f"adjusted_{side}", 0) - adjusted[f"interval_{side}"] for side in _SIDES]
    if not (np.abs(wider) > _VISIBLE).any():
        drawn.pop("adjusted", None)
    panel = Panel([*_traces(drawn)], x, y, notes=notes, shapes=[*_shapes(ends, rules)])
    key = [
        key_entry(words or _null_words(claims, frame), glyph, legend=True, **look)
        for name, (words, glyph, look, _) in _MARKS.items()
        if len(drawn.get(name, ()))
    ]
    before, right = {0: _STRIP}, PAGE - _VALUE
    return compose([panel], 1, key, width="page", inner=bottom + _HEAD, before=before, right=right)


def _shapes(ends: Sequence[tuple[float, float]], rules: Sequence[float]) -> Iterator[dict[str, Any]]:
    """Yield the blue range of each claim with black ends, and the grey lines between claims."""
    for (low, high), y0, y1 in zip(ends, rules[:-1], rules[1:], strict=True):
        strip = {"y0": y0, "y1": y1, "layer": "below"}
        yield {**strip, "type": "rect", "x0": low, "x1": high, "fillcolor": ALLOWED, "line": {"width": 0}}
        for x in {low, high} - {_EDGE}:
            line = {"color": "black", "width": WIDTH.fine}
            yield {**strip, "type": "line", "x0": x, "x1": x, "line": line}
    grey = {"color": PALE, "width": WIDTH.fine}
    for y in rules:
        yield {
            "type": "line",
            "xref": "paper",
            "x0": 0,
            "x1": 1,
            "y0": y,
            "y1": y,
            "line": grey,
            "layer": "below",
        }


def claims_caption(frame: pd.DataFrame) -> str:
    """Return the caption of `claims_figure`: the claims that hold, the sample, the words of the verdicts.

    Args:
        frame: what `claims_figure` takes.
    """
    claims = _drawn(frame)
    claims = claims.assign(outcome=claims.apply(verdicts.outcome, axis=1))
    about = "trained mechanisms" if claims["options"].ne("").any() else "what attention computes"
    parts = [
        f"**{_finding(claims)}.** Claims of {PAPERS.get(claims['paper'].iloc[0], 'a paper')} about {about}",
        "Each row has its own scale; 95 % CI over the sample in grey; verdicts Holm-adjusted",
        *(words for verdict, words in MEANINGS.items() if verdict in {*claims["verdict"]}),
    ]
    if (claims["why"].str.contains(CARRIED) & (claims["verdict"] == verdicts.UNDECIDED)).any():
        parts.append("Rests on one data set: without it the sign or the verdict differs")
    if any(map(_refuted, claims.to_dict("records"))):
        parts.append("No effect: equivalent, against the claim")
    parts += [words for symbol, words in _TERMS.items() if symbol in " ".join(claims["label"])]
    symbols = f"; symbols: docs/papers/{claims['paper'].iloc[0]}.md" * (about != "trained mechanisms")
    return ". ".join([*parts, f"Rules: docs/papers/verdicts.md{symbols}."])


def _finding(claims: pd.DataFrame) -> str:
    """Count the outcomes, and name up to three claims that hold, with a p-value near the limit of 0.05."""
    counts = claims["outcome"].value_counts().to_dict()
    held = claims[claims["outcome"] == verdicts.HOLDS]
    words = f"Of {len(claims)} {'verdicts' if claims.duplicated(_KEYS).any() else 'claims'} "
    words += f"{len(held)} hold{'s' * (len(held) == 1)}" if len(held) else "none holds"
    if len(held) > 1 and (held["analysis"] == "operators").all():
        words += f" ({'all' if len(held) > 2 else 'both'} about cost)"
    elif len(held) and (held["verdict"] == EQUIVALENT).all():
        words += " by equivalence"
    else:
        groups = [rows for _, rows in claims.groupby(_KEYS, sort=False, dropna=False)]
        words += _held_claims([rows for rows in groups if (rows["outcome"] == verdicts.HOLDS).any()])
    trivial = sum(counts.get(name, 0) for name in (RANDOM_TOO, NOT_DIAGNOSTIC))
    fails, undecided, premise = (
        counts.get(name, 0) for name in (verdicts.FAILS, verdicts.UNDECIDED, PREMISE)
    )
    rest = [
        f"{trivial} hold{'s' * (trivial == 1)} for noise or untrained weights too" * bool(trivial),
        f"{undecided} {'are' if undecided > 1 else 'is'} undecided" * bool(undecided),
        f"{fails or 'none'} fail{'s' * (int(fails) < 2)}",
        f"{premise} {'have' if premise > 1 else 'has'} no premise" * bool(premise),
    ]
    return ", ".join([words, *filter(None, rest)])


def _held_claims(groups: Sequence[pd.DataFrame]) -> str:
    """Name up to three claims that hold, with the models in which they do unless they hold in all."""
    names, wheres, ps = [], [], []
    for rows in groups:
        held = rows[rows["outcome"] == verdicts.HOLDS]
        models = ", ".join(map(_model, held.to_dict("records")))
        close = held["p_adjusted"].astype(float).max()
        label = rows["label"].iloc[0].partition(":")[0].replace("J_proj", "the projection error J")
        name = re.sub(r" \(.*\)$", "", label)
        names.append(re.sub(r"^[A-Z](?=[a-z']+ )", lambda letter: letter[0].lower(), name))
        wheres.append(f" in {models}" * (len(held) < len(rows)))
        ps.append(_effect(held) + f", adjusted p = {close:.2g}" * bool(close > 0.01))
    words = [name.split() for name in names]
    subject = [*itertools.takewhile(lambda same: len({*same}) == 1, zip(*words, strict=False))]
    if len(names) > 1 and len(subject) > 1:  # named once
        names[1:] = [" ".join(rest[len(subject) :]) for rest in words[1:]]
    if len(names) == 2 and wheres[0] == wheres[1] != "":
        wheres = ["", f", both{wheres[0]}"]
    names = ["".join(words) for words in zip(names, wheres, ps, strict=True)]
    names = [*dict.fromkeys(names)]
    return f" ({'; '.join(names)})" * (0 < len(names) < 4)


def _effect(held: pd.DataFrame) -> str:
    """Return by how many per cent a ratio differs from 1 where that is the threshold; nothing for several models."""
    row = held.iloc[0]
    if len(held) > 1 or str(row["threshold"]) != "1" or row["comparison"] not in ("<", ">"):
        return ""
    return f", by {abs(100 * (row['measured'] - 1)):.2g} %"


def _refuted(row: Mapping[str, Any]) -> bool:
    """Return whether the model is equivalent to what the claim denies."""
    return row["verdict"] == EQUIVALENT and verdicts.refuted_by_equality(row["comparison"])


def _model(row: Mapping[str, Any]) -> str:
    options = claim_options(row["options"])
    name = options.get("model") or options.get("operator")
    return verdicts.OF_NO_MODEL.get(row["over"]) or (_variant(name) if name else short_name(row["model"]))


def _drawn(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the tested primary claims, or all tested ones where none is primary; claims of no model once."""
    missing = [name for name in verdicts.COLUMNS if name not in frame]
    if missing or frame.empty:
        reason = f"no column {', '.join(missing)}" if missing else "no rows"
        raise InputError(f"the frame has {reason}; give the result of `workbench.claims`")
    for verdict in frame["verdict"].unique():
        if verdict not in VERDICTS:
            raise UnknownName("verdict", str(verdict), VERDICTS)
    tested = frame.reindex(columns=[*verdicts.COLUMNS, "options"])[frame["verdict"] != NOT_TESTED]
    tested = tested.assign(
        **{name: tested[name].astype(object).fillna("") for name in ("options", "margin", "why")}
    )
    primary = verdicts.counted(tested)
    claims = primary if len(primary) else tested
    if claims.empty:
        raise InputError("no claim was tested, so nothing can be drawn; the column `why` has the reasons")
    return claims[~(claims["over"].isin([*verdicts.OF_NO_MODEL]) & claims.duplicated(_KEYS))]


def _lanes(rows: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the line of each model of a claim: its words, and its marks as positions in the strip."""
    factor, unit = _unit(rows[0])
    spans = [_spans(row) for row in rows]
    for row, ends, places in zip(rows, spans, _positions(spans), strict=True):
        baseline = claim_options(row["options"]).get("baseline")
        lines = [wrap(_model(row), _STRIP - _MODEL, _FONT)]
        if baseline:
            against = f"{'minus' if '-' in row['over'] else 'over'} {_variant(baseline)}"
            lines.append(_coloured(wrap(against, _STRIP - _MODEL, _FONT), GREY))
        numbers = [factor * number for number in (*ends["value"], *ends["interval"])]
        words = [interval_words(*numbers, [factor * end for end in ends["allowed"]]) + unit]
        if "published" in ends and row is rows[-1]:
            kind = "theory" if "exponent" in row["measure"] else "published"
            words.append(_coloured(f"{kind} {_number(factor * ends['published'][0])}{unit}", RED))
        refuted = _refuted(row)
        verdict = (
            "no effect" if refuted else WORDS.get(row["verdict"], re.split(r" within| \(", row["verdict"])[0])
        )
        reason = next((text for sign, text in _REASONS.items() if sign in row["why"]), "")
        reason = wrap(reason, PAGE - _VERDICT, _FONT) * (row["verdict"] == verdicts.UNDECIDED)
        colour, symbol = _NO_EFFECT if refuted else VERDICTS[row["verdict"]]
        yield {
            **{name: at for name, at in places.items() if row is rows[-1] or "published" not in name},
            "model": "<br>".join(lines),
            "measured": "<br>".join(words) if math.isfinite(numbers[0]) else "",
            "verdict": f"<b>{verdict}</b>" + f"<br>{reason}" * bool(reason),
            "colour": colour,
            "symbol": symbol,
            "why": row["why"],
        }


def _spans(row: Mapping[str, Any]) -> dict[str, tuple[float, ...]]:
    """Return the ends of everything that is drawn of a row, in the unit of its quantity."""
    null = verdicts.NullBand("", *(float(row[f"null_{end}"]) for end in ("mean", "low", "high")))
    band = None if math.isnan(null.mean) else null
    most, threshold = verdicts.bound_of(verdicts.parse_measure(row["measure"])), str(row["threshold"])
    published = float(row["published"])
    allowed = verdicts.region(row["comparison"], threshold, published, band, row["margin"], most)
    same = verdicts.sameness(row["comparison"], allowed, band, row["margin"], most, threshold)
    same = None if same == allowed else same
    value, low, high = (float(row[name]) for name in ("measured", "low", "high"))
    stated = any(math.isclose(published, end) for end in allowed or ())
    spans = {
        "adjusted": (row["low_adjusted"], row["high_adjusted"]),
        "null": (null.low, null.high),
        "margin": same or (math.nan,),
        "untrained": (math.nan if row["over"].startswith("trained ") else row["untrained"],),
        "published": (math.nan if stated else published,),
    }
    return {
        "value": (value,),
        "interval": (value, value) if math.isnan(low) else (low, high),
        "allowed": tuple(0.0 if abs(end) < 1e-300 else end for end in allowed or (-math.inf, math.inf)),
        **{name: ends for name, ends in spans.items() if not any(map(math.isnan, ends))},
    }


def _positions(spans: Sequence[Mapping[str, tuple[float, ...]]]) -> list[dict[str, Any]]:
    """Return the marks of a claim's rows as positions in the strip, the farthest at distance 1, and its blue range.

    Where one threshold decides, a position is the distance from it, positive where the claim holds. Where two do, it is
    the distance from their middle. Distances of positive quantities over decades are logarithmic, and so are distances
    over more than two decades.
    """
    numbers = [end for row in spans for name in (*_FITTED, "allowed") for end in row.get(name, ())]
    numbers = [number for number in numbers if math.isfinite(number)]
    log = min(numbers, default=0) > 0 and max(numbers) > 40 * min(numbers)
    rows = [{name: _distances(ends, row["allowed"], log) for name, ends in row.items()} for row in spans]
    two_sided = all(map(math.isfinite, spans[0]["allowed"]))
    fitted = [abs(end) for row in rows for name in _FITTED for end in row.get(name, ()) if math.isfinite(end)]
    sizes = [size for row in rows if 0 < (size := max(map(abs, row["interval"]))) < math.inf] or [1.0]
    unit, far = (1.0, 10.0) if two_sided else (min(sizes), 100.0)
    largest = max([2.0 * two_sided, *fitted]) / unit
    bend = np.arcsinh if max([*sizes, *fitted * two_sided]) > far * unit else np.positive
    scale = bend(largest) or 1.0
    ends = (-bend(1.0) / scale, bend(1.0) / scale) if two_sided else (0.0, _EDGE)
    return [
        {
            f"{name}_{side}": float(np.clip(bend(distance / unit) / scale, -_EDGE, _EDGE))
            for name, pair in row.items()
            for side, distance in zip(_SIDES, pair, strict=True)
        }
        | {"range": ends}
        for row in rows
    ]


def _distances(ends: Sequence[float], allowed: Sequence[float], log: bool) -> tuple[float, float]:
    """Return a span as distances from the threshold, or from the middle of a range in units of half its width."""
    form = (lambda number: math.log(number) if number > 0 else -math.inf) if log else float
    values, (low, high) = [*map(form, ends)], map(form, allowed)
    if math.isinf(low) and math.isinf(high):
        return math.nan, math.nan
    if math.isinf(low) or math.isinf(high):
        distances = [min(value - low, high - value) for value in values]
    else:
        distances = [(2 * value - low - high) / (high - low or 1.0) for value in values]
    return min(distances), max(distances)


def _traces(drawn: Mapping[str, pd.DataFrame]) -> Iterator[go.Scatter]:
    """Yield the traces of all marks, from the back to the front."""
    for name, rows in drawn.items():
        _, _, look, shift = _MARKS[name]
        of_verdict, room = name in ("interval", "adjusted"), _LEAST * (name == "null")
        for symbol, group in rows.groupby("symbol", sort=False):
            colour, outline = group["colour"].iloc[0], WIDTH.outline * str(symbol).endswith("open")
            low, high, y = group[f"{name}_low"], group[f"{name}_high"], group["y"] + shift
            if "line" in look:
                x = np.stack([low - room, high + room, np.full(len(low), np.nan)], axis=1).ravel()
                line = look["line"] | ({"color": colour} if of_verdict else {})
                yield go.Scatter(
                    x=x, y=y.repeat(3), mode="lines", line=line, hoverinfo="skip", showlegend=False
                )
            if "marker" in look:
                marker = marker_of(symbol, SIZE.row, colour, outline) if of_verdict else look["marker"]
                hover = {"text": group["why"], "hovertemplate": "%{text}<extra></extra>", "showlegend": False}
                yield go.Scatter(
                    x=group["value_low"] if of_verdict else low, y=y, mode="markers", marker=marker, **hover
                )


def _texts(text: str, x: float, y: float, colour: str = "black") -> list[dict[str, Any]]:
    """Return the lines of a text below a point in pixels; of several in one note plotly moves some to the side."""
    look = {"xref": "paper", "x": x / PAGE, "xanchor": "left", "yanchor": "top", "borderpad": 0}
    look["font"] = {"size": _FONT, "color": colour}
    return [{"text": line, "y": y + n * _LINE, **look} for n, line in enumerate(text.split("<br>")) if line]


def _label(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the words of a claim, what must hold in bold, and in grey its place, its sample and its data."""
    first, options = rows[0], claim_options(rows[0]["options"])
    counts = dict.fromkeys(f"{row['n']:.0f}" for row in rows if row["n"] and row["kind"] != "count")
    data = options.get("data") or options.get("model", "").partition("-")[0]
    several = f"{data.count('+') + 1} data sets" * (first["units"] != "data sets") if "+" in data else ""
    place = re.sub(r"(^|; )(?=[\dIVX][\dIVX.A-Z-]*($|[;,]))", r"\1§", first["place"])
    grey = [
        *re.sub(r"(^|; )(?=[A-H](\.\d+)?($|[;,]))", r"\1App. ", place).split("; "),
        f"{' or '.join(counts)} {first['units']}" * bool(counts),
        "exploratory" * (verdicts.EXPLORED in {row["scope"] for row in rows}),
        "after warm-up" * first["over"].endswith("warm-up"),
        several or data * (data in DATA and data not in first["label"]),
    ]
    words = re.sub("|".join(PAPERS), lambda match: PAPERS[match[0]].partition(" (")[0], first["label"])
    words = re.sub(r"\bless (?=first|untrained)", "minus ", words)
    words = re.sub(r"\([^)]*\)| = | %", lambda match: _whole(match[0]), words)
    tail = _whole("; ".join(filter(None, grey))).replace(";\u00a0", ";</i> <i>")
    label = wrap(f"{words} <b>{_whole(_claimed(first))}</b> <i>{tail}</i>", _MODEL - _CLAIM - 8, _FONT)
    label = label.replace("<i>", f'<span style="color:{GREY}">').replace("</i>", "</span>")
    return subscripts(label)


def subscripts(label: str) -> str:
    """Return a claim's label with the indices of R_c, J_proj and 1_N set lower."""
    return re.sub(r"(R|J|1)_(c|proj|N)\b", r"\1<sub>\2</sub>", label)


def _whole(words: str) -> str:
    """Return words between which no line ends."""
    return words.replace(" ", "\u00a0")


def _coloured(words: str, colour: str) -> str:
    return "<br>".join(f'<span style="color:{colour}">{line}</span>' for line in words.split("<br>"))


def _number(number: float) -> str:
    return f"{number:.4g}".replace("-", "−")


def _variant(name: str) -> str:
    """Return a mechanism as the labels of claims call it."""
    words = variant_words(name).replace("token statistics", "TSSA")
    return words if words != name else (name.partition("-")[2] or name).replace("-", " ")


def _null_words(claims: pd.DataFrame, frame: pd.DataFrame) -> str:
    """Return the kinds of null distributions that are drawn, and the meaning of their ends."""
    of_null = claims[claims["null_mean"].notna()]
    kinds = [NULLS.get(kind, str(kind)) for kind in of_null["null"].dropna().unique()]
    return f"null: {' or '.join(kinds)} ({null_range(frame, analyses={*of_null['analysis']})})"


def _unit(row: Mapping[str, Any]) -> tuple[float, str]:
    """Return the factor and the unit in which a claim is printed: differences of shares in points."""
    points = row["over"] == "model - baseline" and verdicts.parse_measure(row["measure"])[0].metric in _SHARES
    return (100.0, " pp") if points else (1.0, "")


def _claimed(row: Mapping[str, Any]) -> str:
    """Return the claim as an inequality, with its margin."""
    comparison, threshold, (factor, unit) = row["comparison"], str(row["threshold"]), _unit(row)
    margin, sign = row["margin"], comparison.removesuffix("null").strip()
    if comparison in ("near", "equals"):
        room, level = (threshold, "published") if comparison == "near" else (margin, threshold)
        return f"within {room.replace('%', ' %')} of {level}"
    if comparison == "between":
        return threshold.replace("..", " to ")
    if comparison.endswith("null"):
        beyond = f" {'−' if sign == '<' else '+'} {margin.replace('%', ' %')}"
        return f"{_SIGNS.get(sign, sign)} null" + beyond * bool(margin)
    number = _number(factor * float(threshold))
    return f"{_SIGNS.get(sign, sign)} {number}{unit}" + f" ({number} ± {margin}: equivalent)" * bool(margin)
