"""``claims_from_records``: what the papers claim of one attention mechanism against another, from committed records.

A bundled model and its baseline were trained alike but for their attention. Their records of training and evaluation
are compared: those of the confirmatory seeds where all of them are there, otherwise those of the seeds that had been
seen (three of training, one of evaluation). The exponents of the efficiency study are read; nothing is trained,
attacked or timed here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import pandas as pd

from workbench.core.errors import InputError, MissingResource, UnknownName
from workbench.core.intervals import (
    Finding,
    interval_at,
    mcnemar_p,
    mean_interval,
    newcombe_interval,
    paired_interval,
    permutation_p,
    random_effects_interval,
    share_interval,
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
    OPERATORS,
    claims_record,
    confirmed_seeds,
    embedded_record,
    evaluation_record,
    scaling_record,
    trained_models,
    training_record,
)
from workbench.studies.scaling import scaling_exponents
from workbench.studies.seeds import CONFIRMATORY, CONTINUED, SEEN_DATA

MODELS = "trained models"


TRAINING, EVALUATION = "training", "evaluation"
EMBEDDED = "embedded"
"""What ``claims.csv`` says in ``analysis`` of mechanisms trained on embedded data; ``data=NAME+NAME`` says which."""
DATA_SETS = "data sets"
FEW = 3
"""So many seeds a side say too little of the shape of a distribution: such a verdict rests on its being normal."""
UNDERFITS = 0.05
"""So much less of a score in training is named in ``why``; it decides nothing."""
COSTS = "costs"
"""What ``claims.csv`` says in ``analysis`` of a cost that is counted here, in a model of the paper's own size."""
_UNITS = {TRAINING: "seeds", EMBEDDED: "seeds", OPERATORS: "sizes", COSTS: "models"}
_TRIVIAL = "majority"
"""What the record of embedded data calls the trivial predictor."""
_SCORES = ("mean_iou", "normalised_return", "accuracy")
"""What says whether anything was learned, the first that a task has."""
_NOT_LEARNED = "neither is better than the trivial predictor on any data set"
_INTERVALS = {
    "seeds": "Welch", "change": "paired t", "kinds": "paired t", DATA_SETS: "paired t", "inputs": "Newcombe",
    "sizes": "t, of a slope", "models": "none: counted", "crossed": "Welch, with inputs crossed",
    "effects": "Hartung–Knapp",
}  # fmt: skip


class _Sample(NamedTuple):
    """One side of a comparison: values by seed or by kind, or one value with its interval over inputs or sizes."""

    values: pd.Series
    low: float = math.nan
    high: float = math.nan
    n: int = 0


class _Comparison(NamedTuple):
    """A measured difference, ratio or change, how its interval was found, and what else there is to say of it."""

    finding: Finding
    how: str
    words: str = ""
    sides: tuple[pd.Series, pd.Series] | None = None
    """Values by seed of the two models, where it is a difference or ratio of their means."""
    data: tuple[str, ...] = ()
    """The embedded data sets that it is over."""


def claims_from_records(paper: str | None = None) -> pd.DataFrame:
    """Every claim of the papers (or of one ``paper``) about a trained or timed mechanism, from committed records.

    Columns as those of `workbench.claims`, and ``options``, which names the model and its baseline (so does
    ``interpretation``); ``model`` is "trained models" throughout. ``measured`` is the first model's value less the
    baseline's ("model - baseline"), or divided by it ("model / baseline"), or the change of one model's value from its
    first to its last epoch ("last - first"); of an operator's cost, the exponent with which it grows ("sizes"), or one
    operator's less the other's. ``scope`` says of what it speaks: "confirmatory seeds" where `CONFIRMATORY` are all
    there of both models, otherwise "exploratory seeds" or, of evaluations, "this pair of weights". The 95 % confidence
    interval is

    - of training: over seeds, a Welch interval of two means (of logarithms for a ratio), a paired t-interval for a
      change. Three seeds a side make it wide;
    - of evaluation of confirmatory seeds: Welch's over seeds, which the choice of inputs widens where it is kept which
      of them were right (`crossed_interval`); ``why`` then says of how many seeds McNemar's test finds a difference;
    - of evaluation of the bundled weights with a value for each kind (corruptions, out-of-distribution inputs): a
      paired t-interval over kinds;
    - of other evaluations of them: over inputs, from the two intervals on record (Newcombe's method). One training
      seed a side: it says which of *these two* models is better, and it is wide, since it takes the two samples of
      inputs as independent although they are the same;
    - of mechanisms on embedded data: over seeds, Welch's of two means over the data sets; where one seed was trained,
      over the data sets, paired t; with data sets as random effects, Hartung and Knapp's. A mean is over the data sets
      on which every seed of a side knows more than the trivial predictor, beyond noise. ``why`` lists the others, data
      sets that carry a mean by themselves, and those that one mechanism underfits. A verdict that changes without
      one of three or more data sets is undecided;
    - of exponents: the t-interval of a slope through the sizes on record, on one device (`scaling_exponents`).

    Raises `UnknownName` for a paper without claims.
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
            compared = _compare(claim, frames, units)
            if compared.data:
                named["options"] = claim["options"].replace(
                    "+".join(_data_of(claim)), "+".join(compared.data)
                )
        except MissingResource as reason:
            why = str(reason).splitlines()[0]
            found: dict[str, Any] = {"verdict": verdicts.NOT_TESTED, "why": why, "n": 0}
            found |= dict.fromkeys(("measured", "low", "high"), math.nan) | {"interval": None}
        else:
            found = _judged(claim, compared, units)
            found["why"] = "; ".join(filter(None, (found["why"], compared.words, seeds_words)))
            if compared.words.startswith(_NOT_LEARNED):
                found["verdict"] = PREMISE
        rows.append({**claim, **named, **found, "published": _number(claim["published"])})
    frame = verdicts.adjusted(pd.DataFrame(rows, columns=[*COLUMNS, "options", verdicts.WIDENED]))
    frame.loc[
        frame["why"].str.contains(CARRIED) & frame["verdict"].isin([HOLDS, FAILS, EQUIVALENT]), "verdict"
    ] = UNDECIDED
    sources = [*read.made.values()]
    frame.attrs["provenance"] = shared([run for source in sources for run in source.attrs["provenance"]])
    frame.attrs["records"] = shared([file for source in sources for file in source.attrs["records"]])
    return frame


def recorded_claims(paper: str | None = None) -> pd.DataFrame:
    """Return every verdict on record, on claims about models at hand and about trained mechanisms.

    Columns as those of `workbench.claims`, and ``options``. ``paper`` is a key, such as "teo2024"; None keeps all.

    Raises `UnknownName` for a paper without claims, `MissingResource` without records.
    """
    stated_claims(paper)  # raises for a paper without claims
    measured, trained = claims_record(), claims_from_records()
    joined = pd.concat([measured, trained], ignore_index=True)
    joined = joined if paper is None else joined[joined["paper"] == paper].reset_index(drop=True)
    for name in ("provenance", "records"):
        joined.attrs[name] = shared([entry for part in (measured, trained) for entry in part.attrs[name]])
    return joined


class _Records:
    """The committed records, each read once and when it is asked for."""

    def __init__(self) -> None:
        self.made: dict[tuple[str, ...], pd.DataFrame] = {}

    def _once(self, key: tuple[str, ...], read: Callable[[], pd.DataFrame]) -> pd.DataFrame:
        if key not in self.made:
            self.made[key] = read()
        return self.made[key]

    def evidence(
        self, claim: Mapping[str, Any], names: Sequence[str]
    ) -> tuple[bool, dict[str, tuple[int, ...]], str]:
        """Return whether confirmatory seeds answer a claim, which ones of every bundled model, and words about them."""
        if claim["analysis"] == EMBEDDED:
            seen = {*SEEN_DATA}.intersection(_data_of(claim))
            fixed = not claim["kind"] and not seen and claim_options(claim["options"]).get("seeds") != "1"
            return fixed, {}, ""
        if claim["kind"] or claim["analysis"] not in (TRAINING, EVALUATION):
            return False, {}, ""
        there = (
            confirmed_seeds(names) if claim["analysis"] == TRAINING else self._evaluated_seeds(claim, names)
        )
        words = claim["analysis"].replace("training", "trained").replace("evaluation", "evaluated")
        seeds, words = verdicts.evidence(names, CONFIRMATORY, there, words, CONTINUED)
        return bool(seeds), seeds, words

    def _evaluated_seeds(self, claim: Mapping[str, Any], names: Sequence[str]) -> dict[str, list[int]]:
        """Seeds of which the record has the rows that a claim is about."""
        try:
            frame = self._once((EVALUATION, "confirmed"), lambda: evaluation_record(confirmed=True))
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
        """Return the rows of each model or operator of a claim: of these confirmatory ``seeds`` where there are any."""
        confirmed = bool(seeds)
        if claim["analysis"] == TRAINING:
            frames = [
                self._once((TRAINING, name, str(confirmed)), lambda name=name: _trained(name, confirmed))
                for name in names
            ]
            if not confirmed:
                return frames
            return [frame[frame["seed"].isin(seeds[name])] for name, frame in zip(names, frames, strict=True)]
        if claim["analysis"] == EMBEDDED:
            parts = [self._embedded(name) for name in _data_of(claim)]
            joined = pd.concat(parts)
            joined.attrs = {"tested": {name: n for part in parts for name, n in part.attrs["tested"].items()}}
            return [joined[joined["variant"].isin([name, _TRIVIAL])] for name in names]
        if claim["analysis"] == OPERATORS:
            exponents = self._once((OPERATORS,), _exponents)
            return [exponents[exponents["operator"] == name] for name in names]
        if claim["analysis"] == COSTS:
            return [_counted(claim["options"], name) for name in names]
        key = (EVALUATION, "confirmed") if confirmed else (EVALUATION,)
        frame = self._once(key, lambda: evaluation_record(confirmed=confirmed))
        frames = [_evaluated(frame, name) for name in names]
        if not confirmed:
            return frames
        return [
            rows[rows["training_seed"].isin(seeds[name])] for name, rows in zip(names, frames, strict=True)
        ]

    def _embedded(self, name: str) -> pd.DataFrame:
        try:
            return self._once((EMBEDDED, name), lambda: embedded_record(name))
        except UnknownName:
            raise MissingResource(
                f"nothing trained on {name} is on record; make it with: workbench study records embedded --name {name}"
            ) from None


def count_verdicts(claims: pd.DataFrame) -> list[str]:
    """How the counted claims of a table come out, a sentence for each model, scope and scale.

    One interpretation of every claim counts, and neither mathematics nor exact counts do. What an embedded task says,
    and what one pair of weights says, is never added to what was tested as the paper states it.
    """
    sentences = []
    rows = verdicts.counted(claims).fillna({"scale": ""})
    for _, own in rows.groupby(["model", "scale", "scope"], sort=False):
        model, scale, scope = own.iloc[0][["model", "scale", "scope"]]
        where = f"{model} ({scope}{', embedded tasks' if scale else ''})"
        numbers = _listed(_numbered(own))
        sentences.append(f"{where}: of {len(own)} claim{'s' * (len(own) > 1)} {numbers}.")
    return sentences


def verdict_words(claims: pd.DataFrame) -> str:
    """How many headline claims of a table hold, fail or are undecided, as a caption says it.

    Of several models each counts; what random logits decide counts once.
    """
    rows = verdicts.counted(claims[claims["verdict"] != NOT_TESTED])
    again = rows.duplicated(["paper", "claim", "interpretation"]) & rows["over"].isin([*verdicts.OF_NO_MODEL])
    rows = rows[~again]
    start = f"of {len(rows)} headline claim{'s' * (len(rows) != 1)}"
    start += f" (claim and model) about {rows['model'].nunique()} models" * (rows["model"].nunique() > 1)
    return f"{start} {_listed(_numbered(rows))}"


def _listed(words: list[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if words[1:] else words)


def _numbered(rows: pd.DataFrame) -> list[str]:
    """Numbers of verdicts, e.g. "3 hold", "1 is undecided"."""
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
        f"{counts[verdict]} {said[int(counts[verdict] > 1)]}"
        for verdict, said in words.items()
        if counts.get(verdict)
    ]


def _names(options: str) -> list[str]:
    """The models or operators of "model=NAME, baseline=NAME", first the one the claim speaks of."""
    pairs = claim_options(options)
    return [pairs[key] for key in ("model", "operator", "baseline") if key in pairs]


def _interpretation(claim: Mapping[str, str], names: list[str]) -> str:
    words = {"model - baseline": " minus ", "model / baseline": " over "}.get(claim["over"], "")
    start = {"last - first": "first", "last - warm-up": "first after the warm-up"}.get(claim["over"], "")
    who = words.join(names) + (f", last epoch minus {start}" if start else "")
    return ", ".join(filter(None, (claim["interpretation"], who)))


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


def _counted(options: str, attention: str) -> pd.DataFrame:
    """Multiply–accumulates of a recipe's model with this attention, as rows of a record of training.

    The model is built to be counted: raises `MissingResource` where torch is not there.
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
    if claim["analysis"] == EVALUATION and units == "seeds":
        return _over_seeds(term, frames, ratio)
    if claim["analysis"] == EMBEDDED:
        return _over_data(claim, frames, units)
    samples = [_sample(frame, term) for frame in frames]
    how = _INTERVALS[units]
    if claim["analysis"] == COSTS or claim["kind"] == "count":
        one, other = (float(sample.values.iloc[0]) for sample in samples)
        value = one / other if ratio else one - other
        return _Comparison(Finding(value, value, value, len(samples[0].values)), how)
    if claim["analysis"] == TRAINING:
        return _by_welch(samples[0].values, samples[1].values, ratio)
    if len(samples[0].values) > 1:
        return _Comparison(paired_interval(samples[0].values, samples[1].values, ratio=ratio), how)
    # of a slope through n sizes two are spent; of a recorded interval over inputs it is the normal's
    sides = [
        Finding(
            float(sample.values.iloc[0]), sample.low, sample.high, sample.n,
            sample.n - 2 if claim["over"] == "sizes" else math.inf,
        )
        for sample in samples
    ]  # fmt: skip
    if claim["over"] == "sizes":
        return _Comparison(sides[0], how)
    difference = newcombe_interval(*sides, ratio=ratio)
    # of two slopes the ends are t's, with the degrees of freedom of the one with fewer sizes
    free = min(sample.n for sample in samples) - 2 if claim["analysis"] == OPERATORS else math.inf
    return _Comparison(difference._replace(freedom=free), how)


def _by_welch(first: pd.Series, second: pd.Series, ratio: bool, words: str = "") -> _Comparison:
    interval = welch_interval(first, second, ratio=ratio)
    return _Comparison(interval, _INTERVALS["seeds"], words, (first, second))


def _over_seeds(term: Term, frames: list[pd.DataFrame], ratio: bool) -> _Comparison:
    """Evaluations of the confirmatory seeds: over seeds and inputs where it is kept which of them were right."""
    sides = []
    for frame in frames:
        sides.append(_selected(frame, term).sort_values("training_seed"))
    values = [side.groupby("training_seed")["value"].mean() for side in sides]  # over kinds
    right = [table for side in sides if (table := correct_inputs(side)) is not None]
    if ratio or len(right) < len(sides):
        return _by_welch(values[0], values[1], ratio)
    difference = difference_over_seeds(sides[0], sides[1])
    ps = [mcnemar_p(one, other) for one, other in zip(*right, strict=True)]
    more = [one.mean() - other.mean() for one, other in zip(*right, strict=True)]
    surely = [gain for gain, p in zip(more, ps, strict=True) if p < verdicts.ALPHA]
    above, below = sum(gain > 0 for gain in surely), sum(gain < 0 for gain in surely)
    words = f"seed by seed, over the same {right[0].shape[1]} inputs (McNemar), higher in {above} and lower in {below}"
    return _Comparison(difference, _INTERVALS["crossed"], f"{words} of {len(ps)}", (values[0], values[1]))


def _over_data(claim: Mapping[str, Any], frames: list[pd.DataFrame], units: str) -> _Comparison:
    """Compare mechanisms trained on several data sets, of which those count on which one of the two learned.

    Over seeds the means over data sets are compared, otherwise data sets are the units: of one seed paired, of several
    as random effects.
    """
    (term,) = verdicts.parse_measure(claim["measure"])
    sides = [_by_seed_and_data(frame, term) for frame in frames]
    every = [name for name in _data_of(claim) if all(name in side for side in sides)]
    learned = _learned(frames, every)
    used = learned or every
    compare = partial(_compared_over, sides, units, claim)
    compared = compare(used)
    words = [
        f"all seeds of a side better than the trivial predictor on {len(learned)} of {len(every)} data sets"
        if learned
        else _NOT_LEARNED
    ]
    chance = sorted({*every} - {*used})
    words += [f"left out, at chance for both: {', '.join(chance)}"] * bool(chance)
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
    one, other = (side[[*names]] for side in sides)
    if units == "seeds":
        return _by_welch(one.mean(axis=1), other.mean(axis=1), ratio)
    if _asked(claim, "effects") == "random":
        return _Comparison(_random_effects(one, other), _INTERVALS["effects"])
    same = one.index.intersection(other.index)
    interval = paired_interval(one.loc[same].mean(), other.loc[same].mean(), ratio=ratio)
    return _Comparison(interval, _INTERVALS[DATA_SETS])


def _random_effects(first: pd.DataFrame, second: pd.DataFrame) -> Finding:
    """Combine the differences of two tables, a row for each seed, over their columns, the data sets."""
    variances = first.var() / first.count() + second.var() / second.count()
    return random_effects_interval(first.mean() - second.mean(), variances)


def _allowed(claim: Mapping[str, Any]) -> tuple[float, float] | None:
    """Return the range of values for which a claim holds."""
    published = _number(claim["published"])
    return verdicts.region(claim["comparison"], claim["threshold"], published, None, claim["margin"])


def _learned(frames: Sequence[pd.DataFrame], names: Sequence[str]) -> list[str]:
    """Return the data sets on which every seed of one side knows more than the trivial predictor, beyond noise.

    The noise of an accuracy is that of the test examples (Wilson's interval, seed by seed); of another score it is that
    of the seeds (t-interval of their mean).
    """
    trivial = frames[0][frames[0]["variant"] == _TRIVIAL]
    score = next(name for name in _SCORES if name in {*trivial["metric"]})
    floor = trivial[trivial["metric"] == score].set_index("data")["value"]
    sides = [_by_seed_and_data(frame, Term(score, {"split": "test"})) for frame in frames]
    tested = frames[0].attrs["tested"]

    def least(values: pd.Series, n: int) -> float:
        if score == "accuracy":
            return min(share_interval(value, n).low for value in values)
        return mean_interval(values).low if len(values) > 1 else float(values.min())

    return [
        name
        for name in names
        if any(least(side[name].dropna(), tested[name]) > floor[name] for side in sides)
    ]


def _carried(
    claim: Mapping[str, Any], compare: Callable[[Sequence[str]], _Comparison], names: Sequence[str]
) -> list[str]:
    """Name the data sets without any one of which the mean has another sign or another verdict."""
    if len(names) < 3:
        return []
    allowed = _allowed(claim)
    whole, said = compare(names).finding, []
    zero = 1.0 if claim["over"] == "model / baseline" else 0.0
    for name in names:
        rest = compare([other for other in names if other != name]).finding
        verdict = verdicts.decide(rest, allowed)
        if verdict != verdicts.decide(whole, allowed) or (rest.value > zero) != (whole.value > zero):
            said.append(f"without {name} it is {rest.words('.3g')} ({verdict})")
    return [f"{CARRIED}: {', '.join(said)}"] * bool(said)


def _underfitted(claim: Mapping[str, Any], frames: Sequence[pd.DataFrame], names: Sequence[str]) -> list[str]:
    """Name the data sets on which one mechanism ends training with a lower score, by `UNDERFITS` or more."""
    (term,) = verdicts.parse_measure(claim["measure"])
    if term.metric not in ("accuracy", "mean_iou"):
        return []
    score = term.metric.replace("_", " ")
    sides = [
        (_variant(frame), _by_seed_and_data(frame, Term(term.metric, {"split": "train"})).mean())
        for frame in frames
    ]
    said = []
    for name in names:
        low, high = sorted((float(scores.get(name, math.nan)), variant) for variant, scores in sides)
        if high[0] - low[0] >= UNDERFITS:
            said.append(f"{low[1]} underfits {name} (train {score} {low[0]:.3f}, {high[1]} {high[0]:.3f})")
    return said


def _variant(frame: pd.DataFrame) -> str:
    """Return the mechanism whose rows these are, beside those of the trivial predictor."""
    return next(name for name in frame["variant"].unique() if name != _TRIVIAL)


def _by_seed_and_data(frame: pd.DataFrame, term: Term) -> pd.DataFrame:
    """Values of the last epoch, a row for each seed and a column for each data set."""
    rows = _selected(frame[frame["variant"] != _TRIVIAL], term)
    rows = rows[rows["epoch"] == rows.groupby("data")["epoch"].transform("max")]
    return rows.pivot(index="seed", columns="data", values="value")


def _data_of(claim: Mapping[str, Any]) -> list[str]:
    return _asked(claim, "data").split("+")


def _asked(claim: Mapping[str, Any], name: str) -> str:
    """An option of a claim, empty where it has none."""
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
    """The rows that a term selects, by seed at one epoch (of training: the last unless said), or by kind."""
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
    """What a claim's interval is over."""
    if _asked(claim, "seeds") == "1" or _asked(claim, "effects"):
        return DATA_SETS
    if confirmed:
        return "seeds"
    return _UNITS.get(claim["analysis"], "kinds" if "each" in claim["measure"] else "inputs")


def _scope(claim: Mapping[str, Any], units: str, confirmed: bool) -> str:
    """Of what a verdict speaks: seeds of training are samples of a mechanism, inputs those of two sets of weights."""
    if claim["kind"]:
        return {"count": "exact count", "identity": "mathematics"}.get(claim["kind"], "question")
    if units == "seeds" or _asked(claim, "effects"):
        return verdicts.CONFIRMED if confirmed else verdicts.EXPLORED
    return {"sizes": "this device", DATA_SETS: "one training seed"}.get(units, "this pair of weights")


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
            DATA_SETS: "; one training seed" * (_asked(claim, "seeds") == "1"),
        }.get(over, "")
        how += ", on logarithms" * ratio
    verdict = verdicts.decide(finding, allowed)
    permutation = math.nan
    if compared.sides is not None:
        p_of = partial(permutation_p, *compared.sides, ratio=ratio)
        permutation = verdicts.probability(finding, allowed, p_of)
    if over == "seeds" and finding.n == FEW:
        why += f"; of {FEW} seeds, it rests on their being normal"
        why += f" (exact permutation p = {permutation:.2g})" * (not math.isnan(permutation))
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
