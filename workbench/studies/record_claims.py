"""Check the papers' claims about attention mechanisms against committed records.

A bundled model and its baseline were trained in the same way, except for their attention. Their training and evaluation
records are compared: the confirmatory seeds where all of them are on record, otherwise the exploratory ones (three of
training, one of evaluation). Exponents of the efficiency study are read. Nothing is trained, attacked or timed here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property, partial
from typing import Any, NamedTuple

import pandas as pd

from workbench.core.errors import InputError, MissingResource, UnknownName
from workbench.core.intervals import (
    Finding,
    interval_at,
    mcnemar_p,
    newcombe_interval,
    paired_interval,
    permutation_p,
    random_effects_interval,
    smallest_detectable,
    welch_interval,
)
from workbench.frames.results import shared
from workbench.papers import verdicts
from workbench.papers.published import RECORDED, claim_options, stated_claims
from workbench.papers.verdicts import (
    CARRIED,
    COLUMNS,
    EQUIVALENT,
    FAILS,
    HOLDS,
    NOT_DIAGNOSTIC,
    NOT_TESTED,
    PREMISE,
    RANDOM_TOO,
    UNDECIDED,
    Term,
)
from workbench.studies.over_seeds import correct_inputs, difference_over_seeds
from workbench.studies.records import (
    LEARNED,
    OPERATORS,
    claims_record,
    confirmed_seeds,
    embedded_record,
    evaluation_record,
    learned_in_pilots,
    learned_record,
    scaling_record,
    trained_models,
    training_record,
)
from workbench.studies.scaling import scaling_exponents
from workbench.studies.seeds import CONFIRMATORY, CONTINUED, SEEN_DATA

MODELS = "trained models"


_TRAINING, _EVALUATION = "training", "evaluation"
EMBEDDED = "embedded"
"""Value of ``analysis`` in ``claims.csv`` for mechanisms trained on embedded data, which ``data=NAME+NAME`` lists."""
_DATA_SETS = "data sets"
FEW = 3
"""With this many seeds a side, a verdict relies on the normal distribution of their values."""
UNDERFITS = 0.05
"""A training score lower by this much or more is named in ``why``; it decides nothing."""
_COSTS = "costs"
"""Value of ``analysis`` in ``claims.csv`` for a cost counted here, in a model of the paper's own size."""
_UNITS = {_TRAINING: "seeds", EMBEDDED: "seeds", OPERATORS: "sizes", _COSTS: "models"}
_TRIVIAL = "majority"
"""Name of the trivial predictor in the record of embedded data."""
_NOT_LEARNED = "no data set learned in pilot runs"
_INTERVALS = {
    "seeds": "Welch", "change": "paired t", "kinds": "paired t", _DATA_SETS: "paired t", "inputs": "Newcombe",
    "sizes": "t, of a slope", "models": "none: counted", "crossed": "Welch, with inputs crossed",
    "effects": "Hartung–Knapp",
}  # fmt: skip


class _Sample(NamedTuple):
    """One side of a comparison: values by seed or kind, or one value with its interval over inputs or sizes."""

    values: pd.Series
    low: float = math.nan
    high: float = math.nan
    n: int = 0


class _Comparison(NamedTuple):
    """A measured difference, ratio or change, the method of its interval, and further remarks."""

    finding: Finding
    how: str
    words: str = ""
    sides: tuple[pd.Series, pd.Series] | None = None
    """Values by seed of the two models, if the finding is a difference or ratio of their means."""
    data: tuple[str, ...] = ()
    """The embedded data sets compared."""


def claims_from_records(paper: str | None = None) -> pd.DataFrame:
    """Check every claim of the papers about a trained or timed mechanism against the committed records.

    Columns as those of `workbench.claims`, and ``options`` with the model and its baseline (which ``interpretation``
    names too); ``model`` is always "trained models". ``measured`` is the first model's value minus the baseline's
    ("model - baseline"), divided by it ("model / baseline"), or one model's change from its first to its last epoch
    ("last - first"). For an operator's cost it is the scaling exponent ("sizes"), or a difference of two exponents.
    ``scope`` is "confirmatory seeds" where all `CONFIRMATORY` seeds of both models are on record, otherwise
    "exploratory seeds" or, for evaluations, "this pair of weights". The 95 % confidence interval is

    - for training: Welch's over seeds (of logarithms for a ratio); a paired t-interval for a change. With three seeds a
      side it is wide;
    - for evaluations of confirmatory seeds: Welch's over seeds, widened by the choice of inputs where the record has
      per-input outcomes (`crossed_interval`); ``why`` then counts the seeds where McNemar's test finds a difference;
    - for evaluations of the bundled weights with a value for each kind (corruptions, out-of-distribution inputs): a
      paired t-interval over kinds;
    - for their other evaluations: over inputs, from the two recorded intervals (Newcombe's method). With one training
      seed a side it compares *these two* models only. It is wide because it treats the two samples of inputs as
      independent, although they are the same;
    - for mechanisms on embedded data: Welch's over seeds, of means over the data sets; paired t over the data sets if
      one seed was trained; Hartung and Knapp's with data sets as random effects. A mean includes the data sets that a
      side learned in its pilot run, by the score on a validation split (`learned_record`). ``why`` lists the other data
      sets, those that carry a mean, and those that one mechanism underfits. A verdict that changes without one of three
      or more data sets is undecided;
    - for exponents: the t-interval of a slope through the recorded sizes, on one device (`scaling_exponents`).

    Args:
        paper: a paper's key, such as "teo2024"; all papers by default.

    Raises:
        UnknownName: the paper has no claims.
    """
    stated = stated_claims(paper)
    stated = stated[stated["analysis"].isin(RECORDED)]
    rows = []
    read = _Records()
    for claim in stated.to_dict("records"):
        names = _names(claim["options"])
        confirmed, seeds, seeds_words = read.evidence(claim, names)
        units = _units(claim, confirmed)
        named = {
            "interpretation": _interpretation(claim, names),
            "model": MODELS,
            "inputs": None,
            "units": units,
            "scope": _scope(claim, units, confirmed),
        }
        try:
            frames = read.frames(claim, names, seeds)
            if claim["analysis"] == EMBEDDED:
                compared = _over_data(claim, frames, units, read.pilots)
            else:
                compared = _compare(claim, frames, units)
            if compared.data:
                named["options"] = claim["options"].replace(
                    "+".join(_data_of(claim)), "+".join(compared.data)
                )
        except MissingResource as reason:
            why = str(reason).splitlines()[0]
            outcome: dict[str, Any] = {"verdict": verdicts.NOT_TESTED, "why": why, "n": 0}
            outcome |= dict.fromkeys(("measured", "low", "high"), math.nan) | {"interval": None}
        else:
            outcome = _judged(claim, compared, units)
            outcome["why"] = "; ".join(filter(None, (outcome["why"], compared.words, seeds_words)))
            if compared.words.startswith(_NOT_LEARNED):
                outcome["verdict"] = PREMISE
        rows.append({**claim, **named, **outcome, "published": _number(claim["published"])})
    frame = verdicts.adjusted(pd.DataFrame(rows, columns=[*COLUMNS, "options", verdicts.WIDENED]))
    frame.loc[
        frame["why"].str.contains(CARRIED) & frame["verdict"].isin([HOLDS, FAILS, EQUIVALENT]), "verdict"
    ] = UNDECIDED
    sources = [*read.frames_read.values()]
    frame.attrs["provenance"] = shared([run for source in sources for run in source.attrs["provenance"]])
    frame.attrs["records"] = shared([file for source in sources for file in source.attrs["records"]])
    return frame


def recorded_claims(paper: str | None = None) -> pd.DataFrame:
    """Return every verdict on record: claims about models at hand and about trained mechanisms.

    Columns as those of `workbench.claims`, and ``options``. ``paper`` is a key, such as "teo2024"; None keeps all.

    Raises `UnknownName` for a paper without claims, `MissingResource` without records.
    """
    trained, measured = claims_from_records(paper), claims_record()
    joined = pd.concat([measured, trained], ignore_index=True)
    joined = joined if paper is None else joined[joined["paper"] == paper].reset_index(drop=True)
    for name in ("provenance", "records"):
        joined.attrs[name] = shared([entry for part in (measured, trained) for entry in part.attrs[name]])
    return joined


class _Records:
    """The committed records, each read once, on first use."""

    def __init__(self) -> None:
        self.frames_read: dict[tuple[str, ...], pd.DataFrame] = {}

    def _once(self, key: tuple[str, ...], read: Callable[[], pd.DataFrame]) -> pd.DataFrame:
        if key not in self.frames_read:
            self.frames_read[key] = read()
        return self.frames_read[key]

    def evidence(
        self, claim: Mapping[str, Any], names: Sequence[str]
    ) -> tuple[bool, dict[str, tuple[int, ...]], str]:
        """Return whether confirmatory seeds answer a claim, which ones of every bundled model, and words about them."""
        if claim["analysis"] == EMBEDDED:
            seen = {*SEEN_DATA}.intersection(_data_of(claim))
            fixed = not claim["kind"] and not seen and claim_options(claim["options"]).get("seeds") != "1"
            return fixed, {}, ""
        if claim["kind"] or claim["analysis"] not in (_TRAINING, _EVALUATION):
            return False, {}, ""
        there = (
            confirmed_seeds(names) if claim["analysis"] == _TRAINING else self._evaluated_seeds(claim, names)
        )
        words = claim["analysis"].replace("training", "trained").replace("evaluation", "evaluated")
        seeds, words = verdicts.evidence(names, CONFIRMATORY, there, words, CONTINUED)
        return bool(seeds), seeds, words

    def _evaluated_seeds(self, claim: Mapping[str, Any], names: Sequence[str]) -> dict[str, list[int]]:
        """Return the seeds whose evaluation record has the rows of a claim."""
        try:
            frame = self._once((_EVALUATION, "confirmed"), lambda: evaluation_record(confirmed=True))
        except MissingResource:
            return {}
        (term,) = verdicts.parse_measure(claim["measure"])
        rows = _selected(frame, term)
        return {
            name: rows.loc[rows["model"] == f"bundled:{name}", "training_seed"].tolist() for name in names
        }

    def frames(
        self, claim: Mapping[str, Any], names: Sequence[str], seeds: Mapping[str, Sequence[int]]
    ) -> list[pd.DataFrame]:
        """Return the rows of each model or operator of a claim, of the confirmatory ``seeds`` if there are any."""
        confirmed = bool(seeds)
        if claim["analysis"] == _TRAINING:
            frames = [
                self._once((_TRAINING, name, str(confirmed)), lambda name=name: _trained(name, confirmed))
                for name in names
            ]
            if not confirmed:
                return frames
            return [frame[frame["seed"].isin(seeds[name])] for name, frame in zip(names, frames, strict=True)]
        if claim["analysis"] == EMBEDDED:
            joined = pd.concat([self._embedded(name) for name in _data_of(claim)])
            return [joined[joined["variant"].isin([name, _TRIVIAL])] for name in names]
        if claim["analysis"] == OPERATORS:
            exponents = self._once((OPERATORS,), _exponents)
            return [exponents[exponents["operator"] == name] for name in names]
        if claim["analysis"] == _COSTS:
            return [_counted(claim["options"], name) for name in names]
        key = (_EVALUATION, "confirmed") if confirmed else (_EVALUATION,)
        frame = self._once(key, lambda: evaluation_record(confirmed=confirmed))
        frames = [_evaluated(frame, name) for name in names]
        if not confirmed:
            return frames
        return [
            rows[rows["training_seed"].isin(seeds[name])] for name, rows in zip(names, frames, strict=True)
        ]

    @cached_property
    def pilots(self) -> dict[tuple[str, str], bool]:
        """Return whether the pilot run of each data set and mechanism learned."""
        return learned_in_pilots(self._once((LEARNED,), learned_record))

    def _embedded(self, name: str) -> pd.DataFrame:
        try:
            return self._once((EMBEDDED, name), lambda: embedded_record(name))
        except UnknownName:
            raise MissingResource(
                f"nothing trained on {name} is on record; make it with: workbench study records embedded --name {name}"
            ) from None


def count_verdicts(claims: pd.DataFrame) -> list[str]:
    """Count the verdicts of a table in one sentence for each model, scope and scale.

    One interpretation of every claim counts; mathematics and exact counts do not. Verdicts from embedded tasks, or from
    one pair of weights, are never added to tests of a claim as the paper states it.
    """
    sentences = []
    rows = verdicts.counted(claims).fillna({"scale": ""})
    for _, model_rows in rows.groupby(["model", "scale", "scope"], sort=False):
        model, scale, scope = model_rows.iloc[0][["model", "scale", "scope"]]
        where = f"{model} ({scope}{', embedded tasks' if scale else ''})"
        numbers = _listed(_numbered(model_rows))
        sentences.append(
            f"{where}: of {len(model_rows)} claim{'s' if len(model_rows) > 1 else ''} {numbers}."
        )
    return sentences


def _listed(words: list[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if words[1:] else words)


def _numbered(rows: pd.DataFrame) -> list[str]:
    """Return verdict counts in words, e.g. "3 hold", "1 is undecided"."""
    against = rows["comparison"].map(verdicts.refuted_by_equality) & rows["verdict"].eq(EQUIVALENT)
    counts = rows["verdict"].mask(against, "against").value_counts()
    words = {
        HOLDS: ("holds", "hold"),
        EQUIVALENT: (
            "is equivalent within its margin, as claimed",
            "are equivalent within their margins, as claimed",
        ),
        "against": (
            "shows no effect beyond its margin, against the claim",
            "show no effect beyond their margins, against the claim",
        ),
        RANDOM_TOO: ("holds also of random weights", "hold also of random weights"),
        NOT_DIAGNOSTIC: ("is not diagnostic (noise passes)", "are not diagnostic (noise passes)"),
        FAILS: ("fails", "fail"),
        UNDECIDED: ("is undecided", "are undecided"),
        PREMISE: ("lacks its premise", "lack their premise"),
        NOT_TESTED: ("is not tested", "are not tested"),
    }
    return [
        f"{counts[verdict]} {forms[int(counts[verdict] > 1)]}"
        for verdict, forms in words.items()
        if counts.get(verdict)
    ]


def _names(options: str) -> list[str]:
    """Return the models or operators of "model=NAME, baseline=NAME", the subject of the claim first."""
    pairs = claim_options(options)
    return [pairs[key] for key in ("model", "operator", "baseline") if key in pairs]


def _interpretation(claim: Mapping[str, str], names: list[str]) -> str:
    words = {"model - baseline": " minus ", "model / baseline": " over "}.get(claim["over"], "")
    start = {"last - first": "first", "last - warm-up": "first after the warm-up"}.get(claim["over"], "")
    compared = words.join(names) + (f", last epoch minus {start}" if start else "")
    return ", ".join(filter(None, (claim["interpretation"], compared)))


def _trained(name: str, confirmed: bool = False) -> pd.DataFrame:
    if name not in trained_models(confirmed=confirmed):
        raise MissingResource(f"no data on the training of {name}; make it with: make train")
    return training_record(name, confirmed=confirmed)


def _evaluated(frame: pd.DataFrame, name: str) -> pd.DataFrame:
    rows = frame[frame["model"] == f"bundled:{name}"]
    if rows.empty:
        raise MissingResource(f"no data on the evaluation of {name}; make it with: make records")
    return rows


def _exponents() -> pd.DataFrame:
    record = scaling_record()
    frame = scaling_exponents(record).rename(columns={"points": "n"})
    frame.attrs = dict(record.attrs)
    return frame


@cache
def _counted(options: str, attention: str) -> pd.DataFrame:
    """Count multiply–accumulates of a recipe's model with this attention, as rows of a training record.

    The model is built for counting. Raises `MissingResource` without torch.
    """
    try:
        import torch
    except ImportError:
        raise MissingResource("counting operations needs torch, which is not installed here") from None

    from workbench.models.architectures import build
    from workbench.studies.training.costs import model_costs
    from workbench.studies.training.recipes import load_recipe

    recipe = load_recipe(claim_options(options)["recipe"], attention=attention)
    of_images = {**recipe.architecture, "in_chans": 3, "num_classes": 1000}  # which its task would say
    size = of_images["img_size"]
    costs = model_costs(build(of_images), torch.zeros(1, 3, size, size))
    return pd.DataFrame({"metric": list(costs), "value": list(costs.values()), "epoch": 0, "seed": 0})


def _compare(claim: Mapping[str, Any], frames: list[pd.DataFrame], units: str) -> _Comparison:
    """Compare the rows of the models or operators of a claim."""
    (term,) = verdicts.parse_measure(claim["measure"])
    if claim["over"].startswith("last - "):
        frame = frames[0]
        epochs = frame["epoch"].astype(int).unique().tolist()
        start = verdicts.after_warm_up(epochs) if claim["over"].endswith("warm-up") else min(epochs)
        last, first = (_sample(frame, term, epoch) for epoch in (max(epochs), start))
        return _Comparison(paired_interval(last.values, first.values), _INTERVALS["change"])
    ratio = claim["over"] == "model / baseline"
    if claim["analysis"] == _EVALUATION and units == "seeds":
        return _over_seeds(term, frames, ratio)
    samples = [_sample(frame, term) for frame in frames]
    how = _INTERVALS[units]
    if claim["analysis"] == _COSTS or claim["kind"] == "count":
        first, second = (float(sample.values.iloc[0]) for sample in samples)
        value = first / second if ratio else first - second
        return _Comparison(Finding(value, value, value, len(samples[0].values)), how)
    if claim["analysis"] == _TRAINING:
        return _by_welch(samples[0].values, samples[1].values, ratio)
    if len(samples[0].values) > 1:
        return _Comparison(paired_interval(samples[0].values, samples[1].values, ratio=ratio), how)
    # of a slope through n sizes two are spent; of a recorded interval over inputs it is the normal's
    sides = [
        Finding(
            float(sample.values.iloc[0]),
            sample.low,
            sample.high,
            sample.n,
            sample.n - 2 if claim["over"] == "sizes" else math.inf,
        )
        for sample in samples
    ]
    if claim["over"] == "sizes":
        return _Comparison(sides[0], how)
    difference = newcombe_interval(*sides, ratio=ratio)
    # of two slopes the ends are t's, with the degrees of freedom of the one with fewer sizes
    free = min(sample.n for sample in samples) - 2 if claim["analysis"] == OPERATORS else math.inf
    return _Comparison(difference._replace(freedom=free), how)


def _by_welch(first: pd.Series, second: pd.Series, ratio: bool) -> _Comparison:
    interval = welch_interval(first, second, ratio=ratio)
    return _Comparison(interval, _INTERVALS["seeds"], "", (first, second))


def _over_seeds(term: Term, frames: list[pd.DataFrame], ratio: bool) -> _Comparison:
    """Compare evaluations of confirmatory seeds, crossed with inputs where per-input outcomes are on record."""
    sides = []
    for frame in frames:
        sides.append(_selected(frame, term).sort_values("training_seed"))
    values = [side.groupby("training_seed")["value"].mean() for side in sides]  # over kinds
    right = [table for side in sides if (table := correct_inputs(side)) is not None]
    if ratio or len(right) < len(sides):
        return _by_welch(values[0], values[1], ratio)
    difference = difference_over_seeds(sides[0], sides[1])
    ps = [mcnemar_p(first, second) for first, second in zip(*right, strict=True)]
    more = [first.mean() - second.mean() for first, second in zip(*right, strict=True)]
    surely = [gain for gain, p in zip(more, ps, strict=True) if p < verdicts.ALPHA]
    above, below = sum(gain > 0 for gain in surely), sum(gain < 0 for gain in surely)
    words = f"seed by seed, over the same {right[0].shape[1]} inputs (McNemar), higher in {above} and lower in {below}"
    return _Comparison(difference, _INTERVALS["crossed"], f"{words} of {len(ps)}", (values[0], values[1]))


def _over_data(
    claim: Mapping[str, Any], frames: list[pd.DataFrame], units: str, pilots: Mapping[tuple[str, str], bool]
) -> _Comparison:
    """Compare mechanisms trained on several data sets, restricted to those on which one of the two learned.

    With several seeds, the means over data sets are compared. Otherwise data sets are the units: paired for one seed,
    random effects for several.
    """
    (term,) = verdicts.parse_measure(claim["measure"])
    sides = [_by_seed_and_data(frame, term) for frame in frames]
    every = [name for name in _data_of(claim) if all(name in side for side in sides)]
    learned, unknown = _learned(claim, pilots, every)
    used = learned or every
    compare = partial(_compared_over, sides, units, claim)
    compared = compare(used)
    words = [f"{len(learned)} of {len(every)} data sets learned in pilot runs" if learned else _NOT_LEARNED]
    if chance := sorted({*every} - {*used, *unknown}):
        words.append(f"left out, at chance for both: {', '.join(chance)}")
    if unknown:
        words.append(f"left out, without all pilot runs: {', '.join(unknown)}")
    words += _carried(claim, compare, used)
    if units == "seeds" and len(used) > 2:
        effects = _random_effects(*(side[[*used]] for side in sides))
        verdict = verdicts.decide(effects, _allowed(claim))
        words.append(f"with data sets as random effects {effects.words('.3g')} ({verdict})")
    words += _underfitted(claim, frames, used)
    return compared._replace(words="; ".join(words), data=tuple(used))


def _compared_over(
    sides: Sequence[pd.DataFrame], units: str, claim: Mapping[str, Any], names: Sequence[str]
) -> _Comparison:
    """Compare two mechanisms, with a column of values for each data set, on these data sets."""
    ratio = claim["over"] == "model / baseline"
    first, second = (side[[*names]] for side in sides)
    if units == "seeds":
        return _by_welch(first.mean(axis=1), second.mean(axis=1), ratio)
    if _claim_option(claim, "effects") == "random":
        return _Comparison(_random_effects(first, second), _INTERVALS["effects"])
    same = first.index.intersection(second.index)
    interval = paired_interval(first.loc[same].mean(), second.loc[same].mean(), ratio=ratio)
    return _Comparison(interval, _INTERVALS[_DATA_SETS])


def _random_effects(first: pd.DataFrame, second: pd.DataFrame) -> Finding:
    """Combine the differences of two tables, a row for each seed, over their columns, the data sets."""
    variances = first.var() / first.count() + second.var() / second.count()
    return random_effects_interval(first.mean() - second.mean(), variances)


def _allowed(claim: Mapping[str, Any]) -> tuple[float, float] | None:
    """Return the range of values for which a claim holds."""
    published = _number(claim["published"])
    return verdicts.region(claim["comparison"], claim["threshold"], published, None, claim["margin"])


def _learned(
    claim: Mapping[str, Any], pilots: Mapping[tuple[str, str], bool], names: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Return the data sets that one of the claim's mechanisms learned in its pilot run, and those without all pilots.

    Raises MissingResource if no data set is known to be learned and a pilot is missing.
    """
    sides = _names(claim["options"])
    learned = [name for name in names if any(pilots.get((name, side)) for side in sides)]
    missing = {
        name: side for name in names for side in sides if name not in learned and (name, side) not in pilots
    }
    if missing and not learned:
        name, side = next(iter(missing.items()))
        raise MissingResource(
            f"no pilot run of {side} on {name} is on record; make it with: "
            f"workbench study records learned --name {name}"
        )
    return learned, sorted(missing)


def _carried(
    claim: Mapping[str, Any], compare: Callable[[Sequence[str]], _Comparison], names: Sequence[str]
) -> list[str]:
    """Name the data sets whose removal changes the sign of the mean, or the verdict."""
    if len(names) < 3:
        return []
    allowed = _allowed(claim)
    all_data, changes = compare(names).finding, []
    zero = 1.0 if claim["over"] == "model / baseline" else 0.0
    for name in names:
        rest = compare([other for other in names if other != name]).finding
        verdict = verdicts.decide(rest, allowed)
        if verdict != verdicts.decide(all_data, allowed) or (rest.value > zero) != (all_data.value > zero):
            changes.append(f"without {name} it is {rest.words('.3g')} ({verdict})")
    return [f"{CARRIED}: {', '.join(changes)}"] if changes else []


def _underfitted(claim: Mapping[str, Any], frames: Sequence[pd.DataFrame], names: Sequence[str]) -> list[str]:
    """Name the data sets on which one mechanism's final training score is lower by `UNDERFITS` or more."""
    (term,) = verdicts.parse_measure(claim["measure"])
    if term.metric not in ("accuracy", "mean_iou"):
        return []
    score = term.metric.replace("_", " ")
    sides = [
        (_variant(frame), _by_seed_and_data(frame, Term(term.metric, {"split": "train"})).mean())
        for frame in frames
    ]
    sentences = []
    for name in names:
        low, high = sorted((float(scores.get(name, math.nan)), variant) for variant, scores in sides)
        if high[0] - low[0] >= UNDERFITS:
            sentences.append(
                f"{low[1]} underfits {name} (train {score} {low[0]:.3f}, {high[1]} {high[0]:.3f})"
            )
    return sentences


def _variant(frame: pd.DataFrame) -> str:
    """Return the mechanism of these rows, ignoring the trivial predictor."""
    return next(name for name in frame["variant"].unique() if name != _TRIVIAL)


def _by_seed_and_data(frame: pd.DataFrame, term: Term) -> pd.DataFrame:
    """Return the values of the last epoch, a row for each seed and a column for each data set."""
    rows = _selected(frame[frame["variant"] != _TRIVIAL], term)
    rows = rows[rows["epoch"] == rows.groupby("data")["epoch"].transform("max")]
    return rows.pivot(index="seed", columns="data", values="value")


def _data_of(claim: Mapping[str, Any]) -> list[str]:
    return _claim_option(claim, "data").split("+")


def _claim_option(claim: Mapping[str, Any], name: str) -> str:
    """Return an option of a claim, empty if it has none."""
    return claim_options(claim["options"]).get(name, "")


def _selected(frame: pd.DataFrame, term: Term) -> pd.DataFrame:
    rows = frame[frame["metric"] == term.metric]
    for column, word in term.where.items():
        if word == "each":
            rows = rows[rows[column].notna()]
        elif word == "none":
            rows = rows[rows[column].isna()]
        else:
            number = pd.api.types.is_numeric_dtype(rows[column])
            rows = rows[rows[column] == (float(word) if number else word)]
    return rows


def _sample(frame: pd.DataFrame, term: Term, epoch: int | None = None) -> _Sample:
    """Select the rows of a term: by seed at one epoch (the last by default), or by kind."""
    rows = _selected(frame, term)
    if "epoch" in rows:
        rows = rows[rows["epoch"] == (rows["epoch"].max() if epoch is None else epoch)]
        return _Sample(rows.set_index("seed")["value"])
    if rows.empty:
        target = "scaling" if "operator" in frame else "records"
        raise MissingResource(f"the record has no {term.metric} of {dict(term.where)}; run make {target}")
    if "each" in term.where.values():
        return _Sample(rows.set_index("kind")["value"])
    if len(rows) > 1:
        raise InputError(f"{term.metric}{dict(term.where)} is {len(rows)} rows of the record; say which")
    row = rows.iloc[0]
    return _Sample(rows["value"], float(row["low"]), float(row["high"]), int(row["n"]))


def _units(claim: Mapping[str, Any], confirmed: bool) -> str:
    """Return the sampling unit of a claim's interval."""
    if _claim_option(claim, "seeds") == "1" or _claim_option(claim, "effects"):
        return _DATA_SETS
    if confirmed:
        return "seeds"
    return _UNITS.get(claim["analysis"], "kinds" if "each" in claim["measure"] else "inputs")


def _scope(claim: Mapping[str, Any], units: str, confirmed: bool) -> str:
    """Return the scope of a verdict.

    Training seeds are samples of a mechanism; inputs are samples for two fixed sets of weights.
    """
    if claim["kind"]:
        return {"count": "exact count", "identity": "mathematics"}.get(claim["kind"], "question")
    if units == "seeds" or _claim_option(claim, "effects"):
        return verdicts.CONFIRMED if confirmed else verdicts.EXPLORED
    return {"sizes": "this device", _DATA_SETS: "one training seed"}.get(units, "this pair of weights")


def _judged(claim: Mapping[str, Any], compared: _Comparison, over: str) -> dict[str, Any]:
    finding, how = compared.finding, compared.how
    allowed = _allowed(claim)
    ratio = claim["over"] == "model / baseline"
    against = f"{claim['comparison']} {claim['threshold'].replace('..', ' and ')}"
    if claim["kind"] == "count":
        how, why = _INTERVALS["models"], f"{finding.value:.4g}, counted, against {against}"
    else:
        ends = f"[{finding.low:.3g}, {finding.high:.3g}]"
        why = f"{finding.value:.3g} {ends} over {finding.n} {over} against {against}"
        where = "; this pair of weights, one training seed each"  # of the bundled ones
        why += {
            "inputs": where,
            "kinds": where,
            "sizes": "; of one device",
            _DATA_SETS: "; one training seed" if _claim_option(claim, "seeds") == "1" else "",
        }.get(over, "")
        how += ", on logarithms" if ratio else ""
    verdict = verdicts.decide(finding, allowed)
    permutation = math.nan
    if compared.sides is not None:
        p_of = partial(permutation_p, *compared.sides, ratio=ratio)
        permutation = verdicts.probability(finding, allowed, p_of)
    if over == "seeds" and finding.n == FEW:
        why += f"; of {FEW} seeds, it rests on their being normal"
        why += "" if math.isnan(permutation) else f" (exact permutation p = {permutation:.2g})"
    return {
        "verdict": verdict,
        "why": why,
        "n": finding.n,
        "interval": how,
        "measured": finding.value,
        "low": finding.low,
        "high": finding.high,
        "p": math.nan if claim["kind"] == "count" else verdicts.probability(finding, allowed, ratio=ratio),
        "p_permutation": permutation,
        "detectable": smallest_detectable(finding, ratio=ratio),
        verdicts.WIDENED: partial(interval_at, finding, ratio=ratio),
    }


def _number(text: str) -> float:
    return float(text) if text else math.nan
