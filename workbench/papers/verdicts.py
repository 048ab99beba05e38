"""Verdicts: a claim's quantity, its interval over units of sampling, and the decision.

All verdicts are decided here. docs/papers/verdicts.md states the rules, which were fixed before the models of the next
records were trained.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from workbench.core.errors import InputError
from workbench.core.intervals import (
    LEVEL,
    Finding,
    mean_interval,
    median_interval,
    p_value,
)
from workbench.frames.metric import METRICS

HOLDS, FAILS, UNDECIDED = "holds", "fails", "undecided"
EQUIVALENT = "equivalent within the margin"
PREMISE = "premise not met"
NOT_TESTED = "not tested at this scale"
RANDOM_TOO = "also of random weights"
"""The verdict on a claim that also holds for untrained weights of the same model."""
CARRIED = "one data set carries the mean"
"""Phrase in ``why``: without that data set the mean over data sets has another sign or another verdict."""
NOT_DIAGNOSTIC = "not diagnostic (noise passes)"
"""The verdict on a claim that holds, but whose threshold noise meets too."""
VERDICTS = (HOLDS, EQUIVALENT, RANDOM_TOO, NOT_DIAGNOSTIC, FAILS, UNDECIDED, PREMISE, NOT_TESTED)
OUTCOMES = (HOLDS, RANDOM_TOO, NOT_DIAGNOSTIC, UNDECIDED, FAILS, PREMISE, NOT_TESTED)
"""Outcomes of a claim by its verdict: see `outcome`."""
COMPARISONS = ("<", "<=", ">", ">=", "between", "near", "equals", "> null", "<= null", "< null")
OVER = (
    "inputs", "every input", "layers", "last / first", "last - first", "last / warm-up", "last - warm-up",
    "every checkpoint", "trained - untrained", "trained / untrained", "model - baseline", "model / baseline",
    "last layer / first layer", "tokens", "sizes", "nothing",
)  # fmt: skip
KINDS = ("", "identity", "count", "question")
"""Kinds of claims: statistical; mathematical, true of any model; an exact count; an open question of this project."""
COLUMNS = (
    "paper", "place", "claim", "interpretation", "label", "primary", "kind", "scale", "setting", "model", "inputs",
    "analysis", "measure", "over", "comparison", "threshold", "margin", "published", "measured", "low", "high", "n",
    "units", "scope", "interval", "null", "null_mean", "null_low", "null_high", "p", "p_adjusted", "p_permutation",
    "low_adjusted", "high_adjusted", "detectable", "untrained", "untrained_low", "untrained_high", "untrained_n",
    "untrained_verdict", "verdict", "why", "stated",
)  # fmt: skip
"""Columns of a table of claims: the claim, the measurement, and the verdict."""
T, LOG_T = "t", "t, on logarithms"  # how an interval was found, in the column `interval`
MEDIAN, EACH = "sign test, of the median", "none: one exception decides"
WIDENED = "interval_at"
"""Temporary column for `adjusted`: level → the ends of the interval at that level."""
ALPHA = 1 - LEVEL
FAMILY = ["paper", "model", "stated"]
"""Columns that define a family of claims: claims that are stated later must not change earlier verdicts."""
OF_NO_MODEL = {"tokens": "random logits", "nothing": "mathematics"}
"""Scope of claims that no model decides, by their column `over`."""
CONFIRMED, EXPLORED = "confirmatory seeds", "exploratory seeds"
"""Trainings of a verdict on a mechanism, in the column `scope`; nobody had looked at the confirmatory ones."""
_KINDS = ("axis", "statistic", "convention", "standardize", "candidate")
_READ = (
    "metric",
    "checkpoint",
    "input",
    "layer",
    "head",
    "rank",
    *_KINDS,
    "value",
    "null",
    "null_mean",
    "null_low",
    "null_high",
)


class Term(NamedTuple):
    """One metric of an expression: which rows of a frame, and whether it multiplies (1) or divides (−1)."""

    metric: str
    where: Mapping[str, str]
    power: int = 1
    less: Term | None = None
    """The subtracted term b, in "(a - b)"."""


class NullBand(NamedTuple):
    """A null distribution: the null's name, its mean and the ends of its range."""

    null: str
    mean: float
    low: float
    high: float


def parse_measure(text: str) -> tuple[Term, ...]:
    """Parse "name[column=word,…] / name * …", where "(name - name)" may replace a name.

    A word "none" selects rows where the column is null, rank=last the highest rank of each input.

    Raises `InputError` for anything else.
    """
    parts = re.split(r" ([/*]) ", text)
    terms = []
    for sign, part in zip(["*", *parts[1::2]], parts[::2], strict=True):
        difference = re.fullmatch(r"\((.+) - (.+)\)", part)
        first, *rest = (_parse_term(name, text) for name in (difference.groups() if difference else [part]))
        terms.append(first._replace(power=1 if sign == "*" else -1, less=rest[0] if rest else None))
    return tuple(terms)


def _parse_term(part: str, text: str) -> Term:
    match = re.fullmatch(r"(\w+)(?:\[([^\]]+)\])?", part)
    pairs = [pair.partition("=") for pair in (match[2] or "").split(",") if pair] if match else []
    if match is None or not all(word for _, _, word in pairs):
        raise InputError(f"cannot read {part!r} in {text!r}; write name[column=word,…]")
    return Term(match[1], {name: word for name, _, word in pairs})


def rows_of(frame: pd.DataFrame, term: Term) -> pd.DataFrame:
    """Select a term's rows of a result frame; they differ only in input, layer, head, rank and null.

    The convention may change between layers, since each layer of a model may have its own.

    Raises `InputError` where the term fits several quantities.
    """
    rows = frame.loc[frame["metric"] == term.metric, list(dict.fromkeys((*_READ, *term.where)))]
    rows.attrs = {}  # which pandas would copy at every step
    for column, word in term.where.items():
        if (column, word) == ("rank", "last"):
            keys = [rows[name] for name in ("checkpoint", "input")]
            rows = rows[rows["rank"] == rows["rank"].groupby(keys, dropna=False).transform("max")]
        elif word == "none":
            rows = rows[rows[column].isna()]
        else:
            rows = rows[rows[column].astype("string") == word]
    open_ones = [name for name in _KINDS if rows[name].nunique(dropna=False) > 1]
    kinds = rows.groupby("layer", dropna=False)[open_ones].nunique(dropna=False).max() if open_ones else {}
    several = [name for name in open_ones if kinds[name] > 1]
    if several:
        raise InputError(
            f"{term.metric} has rows of several {', '.join(several)}; say which in [column=word]"
        )
    return rows


def measured_by(terms: tuple[Term, ...]) -> set[str]:
    """Return the metrics of an expression."""
    return {operand.metric for term in terms for operand in (term, term.less) if operand is not None}


def per_input(frame: pd.DataFrame, terms: tuple[Term, ...]) -> pd.Series:
    """Return the value of an expression per input, averaged over layers, heads and ranks before it is combined.

    An expression with a difference is combined per layer and then averaged, since the layers' scales differ by decades.
    Rows that the analysis has averaged over layers and heads are preferred.
    """
    if any(term.less for term in terms):
        return _combined(frame, terms, ["input", "layer"]).groupby(level="input", sort=False).mean()
    return _combined(frame, terms, ["input"])


def per_layer(frame: pd.DataFrame, terms: tuple[Term, ...]) -> pd.Series:
    """Return the value of an expression per layer, for an analysis of weights without inputs."""
    return _combined(frame, terms, ["layer"])


def _combined(frame: pd.DataFrame, terms: tuple[Term, ...], keys: list[str]) -> pd.Series:
    values = []
    for term in terms:
        value = _averaged(rows_of(frame, term), keys)
        value = value if term.less is None else value - _averaged(rows_of(frame, term.less), keys)
        values.append(value)
    joined = pd.concat(values, axis=1, join="inner").dropna()
    powers = [term.power for term in terms]
    with np.errstate(divide="ignore"):
        combined = np.prod(joined.to_numpy(dtype=float) ** powers, axis=1)
    return pd.Series(combined, index=joined.index)


def _averaged(rows: pd.DataFrame, keys: list[str]) -> pd.Series:
    rows = rows[rows[keys].notna().all(axis=1)]
    if keys == ["input"]:
        averaged = rows[rows["layer"].isna()]
        rows = rows if averaged.empty else averaged
    # of several nulls every one repeats the values
    rows = rows[rows["null"].isna() | (rows["null"] == rows["null"].min())]
    return rows.groupby(keys if len(keys) > 1 else keys[0], sort=False)["value"].mean()


def mean_over(values: pd.Series, terms: tuple[Term, ...], comparison: str = "") -> tuple[Finding, str]:
    """Return the mean of an expression's values with its 95 % interval, and the method of the interval.

    The metric decides, not the values. A ratio is averaged on logarithms, and so is a positive quantity with a
    logarithmic axis, unless it is compared with a printed mean ("near"). A signed one has its median, since the few
    largest values dominate its mean. The interval of a bounded quantity ends at its bound.
    """
    if any(term.less for term in terms):
        return mean_interval(values), T
    if len(terms) > 1:
        return mean_interval(values, ratio=True), LOG_T
    metric = METRICS.get(terms[0].metric)
    if metric is None:
        return mean_interval(values), T
    if metric.log and comparison != "near":
        if metric.low == 0 and metric.high == math.inf and (values > 0).all():
            return mean_interval(values, ratio=True), LOG_T
        if metric.low < 0:
            return median_interval(values), MEDIAN
    return mean_interval(values).within(metric.low, metric.high), T


def _change_over(changes: pd.Series, terms: tuple[Term, ...]) -> tuple[Finding, str]:
    """Return the mean change of a quantity; the median if it is compared by ratio, since changes are signed."""
    metric = METRICS.get(terms[0].metric)
    if metric is not None and metric.log:
        return median_interval(changes), MEDIAN
    return mean_interval(changes), T


def least_favourable(values: pd.Series, comparison: str) -> Finding:
    """Return the value that most contradicts a claim about every input, which one exception refutes."""
    worst = float(values.min() if comparison.startswith(">") else values.max())
    return Finding(worst, worst, worst, len(values))


def nulls_of(frame: pd.DataFrame, terms: tuple[Term, ...], over: str = "inputs") -> list[NullBand]:
    """Return the null distributions of the overall mean; none for a ratio, several ranks, or a run without nulls.

    Over layers, and for an expression with differences, the mean of the levels and ends is used, a wider range than
    that of the mean. A null made from V whose samples all equal the observed value is uninformative and left out:
    shuffled tokens match as well as before. The same result from Gaussian noise is informative and kept. Gaussian
    values, whose spectrum is flat, are left out if there are rotated values, which keep the spectrum of V.
    """
    parts = [operand for term in terms for operand in (term, term.less) if operand is not None]
    rows = pd.concat([rows_of(frame, term) for term in parts])
    names = sorted(rows.loc[rows["null_mean"].notna(), "null"].unique())
    if "rotation" in names:
        names = [name for name in names if name != "gaussian"]
    if len(parts) > 1:
        return [_band_of(frame, terms, name) for name in names] if all(term.less for term in terms) else []
    bands = []
    for name in names:
        null_rows = rows[rows["null"] == name]
        if over != "layers":
            null_rows = null_rows[null_rows[["input", "layer", "head"]].isna().all(axis=1)]
            if len(null_rows) != 1:
                continue
        ends = null_rows[["null_mean", "null_low", "null_high"]].astype(float)
        if ends.isna().any(axis=None):
            continue
        gap = (ends.sub(null_rows["value"], axis=0)).abs().max(axis=None)
        if name == "gaussian" or gap > 1e-9 * null_rows["value"].abs().max() or not null_rows["value"].any():
            bands.append(NullBand(name, *map(float, ends.mean())))
    return bands


def _band_of(frame: pd.DataFrame, terms: tuple[Term, ...], null: str) -> NullBand:
    """Return the level and band of an expression, computed from the bands of its metrics."""
    null_rows = frame[frame["null"].isna() | (frame["null"] == null)]
    ends = []
    for name in ("null_mean", "null_low", "null_high"):
        of_null = null_rows.assign(value=null_rows[name].where(null_rows[name].notna(), null_rows["value"]))
        ends.append(float(per_input(of_null, terms).mean()))
    return NullBand(null, ends[0], min(ends), max(ends))


def room_of(margin: str, level: float, bound: float = math.nan) -> float:
    """Return the margin around ``level``: a number, or a share of the distance to ``bound`` (or of the level).

    "10%" of a similarity, bounded by 1, is a tenth of the way from the mean of the null to equality.
    """
    if not margin:
        return 0.0
    if not margin.endswith("%"):
        return float(margin)
    scale = bound - level if math.isfinite(bound) else level
    return abs(scale) * float(margin.removesuffix("%")) / 100


def region(
    comparison: str,
    threshold: str,
    published: float,
    null: NullBand | None,
    margin: str = "",
    bound: float = math.nan,
) -> tuple[float, float] | None:
    """Return the closed range of values for which a claim is true; None if its null distribution is missing.

    ``threshold`` is a number, "low..high" (between), or a percentage around the published value (near). ``margin``
    widens the null or the threshold (equals), see `room_of`.
    """
    if comparison.endswith("null"):
        if null is None:
            return None
        room = room_of(margin, null.mean, bound)
        if comparison == "< null":
            return -math.inf, math.nextafter(min(null.low, null.mean - room), -math.inf)
        end = max(null.high, null.mean + room)
        return (math.nextafter(end, math.inf), math.inf) if comparison == "> null" else (-math.inf, end)
    if comparison == "between":
        low, _, high = threshold.partition("..")
        return float(low), float(high)
    if comparison in ("near", "equals"):
        level = published if comparison == "near" else float(threshold)
        room = room_of(threshold if comparison == "near" else margin, level)
        return level - room, level + room
    bound = float(threshold)
    if comparison in ("<", "<="):
        return -math.inf, bound if comparison == "<=" else math.nextafter(bound, -math.inf)
    if comparison in (">", ">="):
        return bound if comparison == ">=" else math.nextafter(bound, math.inf), math.inf
    raise InputError(f"no such comparison {comparison!r}; use {', '.join(COMPARISONS)}")


def sameness(
    comparison: str,
    allowed: tuple[float, float] | None,
    null: NullBand | None,
    margin: str = "",
    bound: float = math.nan,
    threshold: str = "",
) -> tuple[float, float] | None:
    """Return the closed range of values equivalent to a claim's value; None if it has no value to equal."""
    if comparison in ("near", "equals"):
        return allowed
    if margin and threshold and comparison in ("<", "<=", ">", ">="):
        return float(threshold) - room_of(margin, math.nan), float(threshold) + room_of(margin, math.nan)
    if not margin or null is None or not comparison.endswith("null"):
        return None
    room = room_of(margin, null.mean, bound)
    return min(null.low, null.mean - room), max(null.high, null.mean + room)


def decide(
    finding: Finding, allowed: tuple[float, float] | None, same: tuple[float, float] | None = None
) -> str:
    """Decide a verdict: equivalent for an interval inside ``same``, holds inside the allowed range, fails outside.

    An interval across a bound, or none, is undecided. With 95 % intervals each decision is a pair of one-sided tests
    (of equivalence: TOST) at 2.5 %.
    """
    if allowed is None or math.isnan(finding.low) or math.isnan(finding.high):
        return UNDECIDED
    if same is not None and same[0] <= finding.low and finding.high <= same[1]:
        return EQUIVALENT
    if allowed[0] <= finding.low and finding.high <= allowed[1]:
        return HOLDS
    return FAILS if finding.high < allowed[0] or allowed[1] < finding.low else UNDECIDED


def bound_of(terms: tuple[Term, ...]) -> float:
    """Return the largest value of a quantity: that of its metric; 1 for an expression or a metric of records."""
    metric = METRICS.get(terms[0].metric)
    return metric.high if metric is not None and len(terms) == 1 and terms[0].less is None else 1.0


def refuted_by_equality(comparison: str) -> bool:
    """Return whether equality refutes a claim, as it does one about more or less."""
    return comparison not in ("near", "equals", "<= null")


def evidence(
    names: Sequence[str],
    fixed: Mapping[str, Sequence[int]],
    trained: Mapping[str, Sequence[int]],
    what: str = "trained",
    continued: Mapping[str, Sequence[int]] | None = None,
) -> tuple[dict[str, tuple[int, ...]], str]:
    """Return the seeds fixed beforehand that decide a claim about trained models, and a sentence about them.

    The first stage decides once all its seeds are trained for every compared model; the second stage joins when it is
    complete. Until then the exploratory seeds decide (the mapping is empty), and the confirmatory ones are not read: a
    look at some would choose when to stop. If models have different numbers of fixed seeds, their common ones decide.

    Args:
        names: the compared models.
        fixed: the confirmatory seeds of every model, of the first stage.
        trained: the available seeds.
        what: the verb for the sentence.
        continued: the seeds of the second stage, of every model that has one.
    """
    common = set.intersection(*(set(fixed.get(name, ())) for name in names))
    there = {name: len(common & set(trained.get(name, ()))) for name in names}
    stated = {name: len(common) for name in names}
    if all(0 < stated[name] == there[name] for name in names):
        answering = {name: tuple(seed for seed in fixed[name] if seed in common) for name in names}
        more = {name: tuple((continued or {}).get(name, ())) for name in names}
        if all(seeds and set(seeds) <= set(trained[name]) for name, seeds in more.items()):
            answering = {name: (*answering[name], *more[name]) for name in names}
        return answering, f"{CONFIRMED}, {' and '.join(str(len(seeds)) for seeds in answering.values())}"
    counts = ", ".join(f"{there[name]} of {stated[name]} of {name}" for name in names)
    return {}, f"exploratory: seeds that had been seen (confirmatory ones {what}: {counts})"


class Judgement(NamedTuple):
    """A verdict with its null distribution and p."""

    verdict: str
    null: NullBand | None
    p: float
    words: str
    tests: int = 1
    """Number of nulls that ``p`` is corrected for."""


# Order of precedence where two nulls disagree: a claim must hold against each.
_WORST = {
    **dict.fromkeys(("> null", "< null"), (FAILS, EQUIVALENT, UNDECIDED, HOLDS)),
    "<= null": (FAILS, UNDECIDED, EQUIVALENT, HOLDS),
}


def against_nulls(
    finding: Finding,
    comparison: str,
    nulls: Sequence[NullBand],
    margin: str,
    bound: float,
    p_of: Callable[[float], float] | None = None,
    *,
    ratio: bool = False,
) -> Judgement:
    """Decide a claim about noise, which must hold against every applicable null; ``words`` lists each verdict.

    ``p_of`` is as in `probability`.
    """
    judged = []
    for null in nulls:
        allowed = region(comparison, "", math.nan, null, margin, bound)
        same = sameness(comparison, allowed, null, margin, bound)
        verdict = decide(finding, allowed, same)
        p = probability(finding, same if verdict == EQUIVALENT else allowed, p_of, ratio=ratio)
        judged.append(
            Judgement(verdict, null, p, f"{null.null} {null.low:.3g} to {null.high:.3g}: {verdict}")
        )
    if not judged:
        return Judgement(UNDECIDED, None, math.nan, "")
    worst = min(judged, key=lambda judgement: _WORST[comparison].index(judgement.verdict))
    ps = [judgement.p for judgement in judged if judgement.verdict == worst.verdict]
    # holding against all: the largest p; failing against one of several: Bonferroni's correction
    tests = 1 if len(ps) == len(judged) else len(judged)
    least = max(ps) if tests == 1 else min(1.0, min(ps) * tests)
    return worst._replace(p=least, words="; ".join(judgement.words for judgement in judged), tests=tests)


def probability(
    finding: Finding,
    allowed: tuple[float, float] | None,
    p_of: Callable[[float], float] | None = None,
    *,
    ratio: bool = False,
) -> float:
    """Return the two-sided p of the end of the allowed range that decides the verdict.

    Inside the range it is the larger p of both ends (two one-sided tests); outside, that of the nearer end. ``p_of``
    returns the p of one number; without it the interval is inverted (`p_value`).
    """
    if allowed is None or math.isnan(finding.low):
        return math.nan
    ends = [end for end in allowed if math.isfinite(end)]
    if not allowed[0] <= finding.value <= allowed[1]:
        ends = [min(ends, key=lambda end: abs(end - finding.value))]
    p_of = p_of or partial(p_value, finding, ratio=ratio)
    return max(map(p_of, ends), default=math.nan)


def outcome(claim: Mapping[str, Any]) -> str:
    """Return the outcome of a row's claim, one of `OUTCOMES`.

    "Equivalent within the margin" supports a claim of equality, and refutes a claim of more or less.
    """
    if claim["verdict"] == EQUIVALENT:
        return FAILS if refuted_by_equality(claim["comparison"]) else HOLDS
    return claim["verdict"]


def _noise_passes(claim: Mapping[str, Any]) -> bool:
    """Return whether the whole null range of a row is inside the claim's allowed range.

    A claim that is compared with its null cannot be met by it.
    """
    if claim["comparison"].endswith("null") or pd.isna(claim["null_mean"]):
        return False
    allowed = region(
        claim["comparison"], str(claim["threshold"]), claim["published"], None, claim["margin"] or ""
    )
    return band_passes(
        NullBand(claim["null"], *(claim[f"null_{end}"] for end in NullBand._fields[1:])), allowed
    )


def band_passes(null: NullBand, allowed: tuple[float, float] | None) -> bool:
    """Return whether the whole range of a null distribution is inside the allowed range."""
    return allowed is not None and allowed[0] <= null.low and null.high <= allowed[1]


def controlled(claims: pd.DataFrame) -> pd.DataFrame:
    """Apply both controls, noise and random weights, to the verdicts of supported claims.

    A supported claim whose null distribution passes too is not diagnostic. One that untrained weights support too
    holds also of random weights. Noise goes first: a threshold that noise meets tests nothing. The controls run after
    `adjusted`, so that they change no family.
    """
    claims = claims.copy()
    supported = claims[claims.apply(outcome, axis=1).eq(HOLDS) & ~claims["kind"].isin(["identity", "count"])]
    for row, claim in supported.iterrows():
        if _noise_passes(claim):
            band = f"{claim['null']} null {claim['null_low']:.3g} to {claim['null_high']:.3g}"
            claims.at[row, "why"] += f"; the {band} meets this threshold too"
            claims.at[row, "verdict"] = NOT_DIAGNOSTIC
        elif outcome({**claim, "verdict": claim["untrained_verdict"]}) == HOLDS:
            claims.at[row, "verdict"] = RANDOM_TOO
    return claims


def counted(claims: pd.DataFrame) -> pd.DataFrame:
    """Select the rows of totals: one interpretation of every claim, without claims of mathematics or counts."""
    return claims[claims["primary"].astype(bool) & claims["kind"].fillna("").eq("")]


def families(claims: pd.DataFrame) -> list[pd.DataFrame]:
    """Return the counted and tested claims of a table, family by family (`FAMILY`)."""
    rows = counted(claims)
    rows = rows[rows["p"].notna() & ~rows["verdict"].isin([PREMISE, NOT_TESTED])]
    return [family for _, family in rows.groupby(FAMILY, sort=False, dropna=False)]


def holm(ps: pd.Series) -> np.ndarray:
    """Adjust the p-values of one family by Holm's method.

    statsmodels' `multipletests` gives the same, but runs Python's garbage collector at each call: 0.2 s.
    """
    values, count = ps.to_numpy(float), len(ps)
    order = np.argsort(values)
    raised = np.maximum.accumulate(values[order] * np.arange(count, 0, -1))
    adjusted = np.empty(count)
    adjusted[order] = np.minimum(raised, 1.0)
    return adjusted


def adjusted(claims: pd.DataFrame) -> pd.DataFrame:
    """Adjust the verdicts of a table by Holm's method, within each family (`FAMILY`) of counted claims.

    A claim that is decided by itself but not within its family is undecided, with the reason in ``why``. Rows that are
    not counted stay as they are. ``detectable`` is kept for undecided claims.

    ``low_adjusted`` to ``high_adjusted`` is the interval at the level at which Holm judged a claim, 1 − α p/p_adjusted:
    it leaves out the end of the allowed range exactly where p_adjusted is below α.
    """
    claims = claims.copy()
    widened = claims.pop(WIDENED) if WIDENED in claims else pd.Series(index=claims.index, dtype=object)
    for rows in families(claims):
        ps = holm(rows["p"])
        claims.loc[rows.index, "p_adjusted"] = ps
        for index, p, after in zip(rows.index, rows["p"], ps, strict=True):
            if callable(widened[index]):
                ends = widened[index](1 - ALPHA * (p / after if after else 1.0))
                claims.loc[index, ["low_adjusted", "high_adjusted"]] = ends
        for index in rows.index[(ps > ALPHA) & (rows["verdict"] != UNDECIDED)]:
            verdict, p, after = (claims.at[index, name] for name in ("verdict", "p", "p_adjusted"))
            claims.at[index, "why"] += (
                f"; {verdict} by itself (p = {p:.2g}), not among {len(rows)} claims (Holm: p = {after:.2g})"
            )
            claims.at[index, "verdict"] = UNDECIDED
    claims["detectable"] = claims["detectable"].where(claims["verdict"] == UNDECIDED)
    return claims


def through_training(
    frame: pd.DataFrame, terms: tuple[Term, ...], over: str, epochs: Mapping[str, int]
) -> list[Finding]:
    """Return a quantity over checkpoints, epoch by epoch ("every checkpoint"), or its change to the last.

    The change starts at the first checkpoint, which is untrained, or at the first after the warm-up, and is taken per
    input, as a ratio or a difference.
    """
    if over == "every checkpoint":
        order = sorted(epochs, key=epochs.__getitem__)
        values = [per_input(frame[frame["checkpoint"] == name], terms) for name in order]
        return [mean_interval(value, ratio=len(terms) > 1) for value in values]
    changes = training_changes(frame, terms, over, epochs)
    return [
        mean_interval(changes, ratio=True) if over.startswith("last /") else _change_over(changes, terms)[0]
    ]


def training_changes(
    frame: pd.DataFrame, terms: tuple[Term, ...], over: str, epochs: Mapping[str, int]
) -> pd.Series:
    """Return the ratio or difference of a quantity at the ends of training, per input (see `through_training`)."""
    warm = after_warm_up(list(epochs.values())) if over.endswith("warm-up") else min(epochs.values())
    order = sorted((name for name in epochs if epochs[name] >= warm), key=epochs.__getitem__)
    ends = [per_input(frame[frame["checkpoint"] == order[end]], terms) for end in (0, -1)]
    first, last = ends[0].align(ends[1], join="inner")
    return last / first if over.startswith("last /") else last - first


def after_warm_up(epochs: Sequence[int]) -> int:
    """Return the first epoch with a falling learning rate: in the recipes it rises for a tenth of training."""
    return min(epoch for epoch in epochs if epoch >= 0.1 * max(epochs))


def weakest(findings: list[Finding], allowed: tuple[float, float] | None) -> tuple[Finding, str]:
    """Return the deciding finding and the verdict on all findings: one failure fails, one doubt is undecided.

    Among several with the same verdict it is the one whose interval leaves least room inside the allowed range.
    """
    judged = [(decide(finding, allowed), finding) for finding in findings]
    worst = next(
        verdict for verdict in (FAILS, UNDECIDED, HOLDS) if verdict in {result for result, _ in judged}
    )
    low, high = allowed or (-math.inf, math.inf)
    worst_findings = [finding for verdict, finding in judged if verdict == worst]
    return min(worst_findings, key=lambda finding: min(finding.low - low, high - finding.high)), worst
