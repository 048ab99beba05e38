"""``claims``: the papers' claims, measured on one model, with a computed verdict."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Container, Mapping
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import pandas as pd
from annotated_types import Ge

from workbench.analyses.snr import least_bound
from workbench.analyses.softmax_sensitivity import SAMPLING, fit_root, sampled_sensitivity
from workbench.captures.position_path import NoAdditivePositions
from workbench.core.errors import InputError, WorkbenchError
from workbench.core.intervals import (
    Finding,
    interval_at,
    mean_interval,
    median_interval,
    newcombe_interval,
    sign_p,
    smallest_detectable,
)
from workbench.core.options import NullSamples, checked
from workbench.data.batches import PREPROCESSING, NoImages, pool_count
from workbench.data.pools import open_pool
from workbench.frames.metric import METRICS
from workbench.frames.results import RANDOM_WEIGHTS, join_frames, provenance_of, shared
from workbench.models import catalog
from workbench.models.loading import bundled_checkpoints, resolve, split_spec
from workbench.papers import verdicts
from workbench.papers.published import RECORDED, claim_options, published, stated_claims
from workbench.papers.verdicts import COLUMNS, NullBand
from workbench.runs import settings as setting
from workbench.runs.analyze import ANALYSES, analyze, check_request
from workbench.runs.loop import keeping_the_model
from workbench.runs.many import analyze_many

# The papers follow the error on images that the model is trained on.
_TRAINING_INPUTS = {"bundled:digits": "bundled:digits-train"}
_PAPERS_INPUTS = ("imagenet", "wikitext-103")
_OF_ONE_MODEL = ("inputs", "every input", "layers")
_OF_TWO_RUNS = ("model / baseline", "last layer / first layer")
_OF_UNTRAINED = ("trained - untrained", "trained / untrained")
_CONTROLLED = (*_OF_ONE_MODEL, "last layer / first layer")
"""Values of ``over`` for claims about one model, which are also measured on its untrained weights."""
_PAPERS_TOKENS = 197  # of images in teo2024 and saritas2025
_TOKENS, _SAMPLES = (2, 4, 10, 30, 100, 300, 1000, 3000), 200
UNTRAINED = 6
"""Number of untrained weights per model: six have an interval of their median, fewer have none."""
_NOTHING = Finding(math.nan, math.nan, math.nan, 0)


class _Run(NamedTuple):
    """A run that several claims share."""

    analysis: str
    options: tuple[tuple[str, Any], ...]
    checkpoints: str = "last"
    """Checkpoints of the training: "last", "ends" (first and last) or "all"."""
    model: str | None = None
    """Another model than that of the call."""
    layers: str | None = None
    preprocessing: str | None = None
    """The paper's preprocessing of images, where the model was not trained here."""


@keeping_the_model()
@checked
def claims(
    paper: str | None = None,
    model: str = "bundled:digits-vit",
    inputs: str = "bundled:digits",
    *,
    n: Annotated[int, Ge(2)] | Literal["all"] | None = None,
    seed: setting.Seed = 0,
    preprocessing: setting.Preprocessing | None = None,
    batch_size: setting.BatchSize = 8,
    device: setting.Device | None = None,
    dtype: setting.DType | None = None,
    null_samples: NullSamples = 20,
    untrained: Annotated[int, Ge(0)] = UNTRAINED,
    progress: bool = False,
    cache: bool | None = None,
) -> pd.DataFrame:
    """Test every claim of the papers (or of one ``paper``) about single models on ``n`` inputs of one model.

    As in `analyze`, ``n`` is 25 unless given, or all inputs there are where there are fewer, or of a list; at least 2.

    Claims that one mechanism is better than another need trained models: `workbench.studies.claims_from_records`.

    One row per claim and interpretation, in the columns `COLUMNS`. ``measured`` is the mean over inputs (of weights:
    over layers) with a 95 % confidence interval from ``low`` to ``high``, whose method is in ``interval``. The null
    columns hold the null distribution that decided. ``verdict`` follows from the interval: "holds" where all of it
    meets ``comparison`` and ``threshold``, "fails" where none of it does, "equivalent within the margin" where all of
    it is within ``margin`` of the claim's value, otherwise "undecided", with the ``detectable`` difference.
    A claim that holds by a threshold that noise meets too is "not diagnostic (noise passes)". One that the same rule
    supports on untrained weights of the same model is "also of random weights". The columns of ``untrained`` hold the
    mean over ``untrained`` initialisations, its interval over them, and the verdict of the rule on them: epoch 0 of a
    bundled model, then fresh draws (``@random-1``, …), each on a separate share of n inputs (at least two).
    0 leaves this control out. ``why`` gives the reason where untrained weights cannot be built.
    "premise not met" and "not tested at this scale" (the claim is about other models, training on ImageNet, or
    checkpoints that this model does not have) are none of these; ``why`` gives the reason. ``p_adjusted`` is Holm's p
    over a paper's counted claims of one date. Thresholds that the paper does not give are ours, as ``interpretation``
    notes; ``primary`` marks the one that counts. docs/papers/verdicts.md has all the rules. Settings are those of
    `analyze`. With a checkpoint (``bundled:digits-vit@epoch-003``), claims about training and about two models are not
    tested.

    Claims of saritas2025 are measured with its preprocessing of images, others with that of the model, unless
    ``preprocessing`` names another. Claims about training are measured on a bundled model's checkpoints, on
    its training images.
    ``frame.attrs`` holds the ``provenance`` and the ``notes`` of every run.

    Raises `UnknownName` for an unknown paper or model, and the errors of `analyze`.
    """
    model, options, checkpoint = split_spec(model)
    if options:
        raise InputError(f"claims are about the models of papers: leave the options of {model} out")
    count = pool_count(n, open_pool(inputs))
    if count < 2:
        raise InputError(f"claims compare inputs, and {inputs} has {count}; give 2 or more")
    stated = stated_claims(paper)
    stated = stated[~stated["analysis"].isin(RECORDED)]
    between = stated["over"].str.endswith(("every checkpoint", "warm-up"))
    followed = set(stated.loc[between, "analysis"])
    settings = {
        "n": count,
        "seed": seed,
        "checkpoint": checkpoint,
        "batch_size": batch_size,
        "device": device,
        "dtype": dtype,
        "progress": progress,
        "cache": cache,
    } | ({} if preprocessing is None else {"preprocessing": preprocessing})
    tokens = functools.cache(partial(_tokens, model, inputs, settings))
    frames: dict[_Run, pd.DataFrame] = {}
    controls = _Untrained(model, inputs, settings, untrained, tokens)
    claims = stated.to_dict("records")
    rows: list[dict[str, Any]] = []
    expected = [_number(claim["published"]) for claim in claims]
    for number, claim in enumerate(claims):
        try:
            expected[number] = published_value(claim, model)
            if claim["over"] == "nothing":
                rows.append(_of_mathematics(claim))
                continue
            if _follows_training(claim) and not _checkpoints(model):
                raise NotTested("it is about training, and this model has no checkpoints of its training")
            if checkpoint is not None and _of_several_weights(claim):
                raise NotTested(f"it is about several weights, and {model}@{checkpoint} names one")
            if claim["needs"].startswith("inputs ") and inputs not in claim["needs"].split():
                raise NotTested(f"it is about {claim['needs']}")
            runs = _runs_of(claim, model, null_samples, followed)
            if prepared := papers_preprocessing(claim["paper"], model, inputs):
                runs = [run._replace(preprocessing=prepared) for run in runs]
            measured = _measured(runs, frames, model, inputs, settings)
            measured, scaled = _at_equal_tokens(claim, measured, tokens)
            if claim["over"] in _OF_UNTRAINED:
                controls.ask(number, claim, runs)
                rows.append({"estimate": _estimate(claim, measured)})
                continue
            row = judged(claim, measured, expected[number])
            row["why"] += scaled
            strange = _other_scale(claim, model, inputs)
            if strange:
                row |= {"verdict": verdicts.NOT_TESTED, "why": strange, "p": math.nan}
            elif claim["over"] in _CONTROLLED and claim["kind"] not in ("identity", "count"):
                controls.ask(number, claim, runs)
            rows.append(row)
        except (NotTested, _PremiseNotMet) as reason:
            rows.append(_unjudged(reason))
            expected[number] = _number(claim["published"])
    controls.measure()
    for number, claim in enumerate(claims):
        if "estimate" in rows[number]:
            rows[number] = _against_untrained(claim, rows[number]["estimate"], controls, number)
        elif controls.requests.get(number):
            rows[number] |= controls.columns(number, expected[number])
            rows[number]["why"] += controls.words(number, rows[number])
    table_rows = [_table_row(*parts, model, inputs) for parts in zip(claims, rows, expected, strict=True)]
    table = pd.DataFrame(table_rows, columns=[*COLUMNS, verdicts.WIDENED]).astype({"untrained_n": "Int64"})
    frame = verdicts.controlled(verdicts.adjusted(table))
    results = list(frames.values())
    sources = [source for part in results for source in provenance_of(part)]
    frame.attrs["provenance"] = shared([*sources, *controls.provenance])
    notes = dict.fromkeys(note for part in results for note in part.attrs.get("notes", ()))
    frame.attrs["notes"] = [note for note in notes if not note.startswith("no z")]  # claims have no z
    return frame


def _table_row(
    claim: Mapping[str, Any], row: dict[str, Any], published: float, model: str, inputs: str
) -> dict[str, Any]:
    """Build a row of the table: the claim, its verdict, and their scope."""
    units = {"tokens": "sizes", "layers": "layers", "nothing": None}.get(claim["over"], "inputs")
    scope = {"identity": "mathematics", "question": "question"}.get(claim["kind"], "these weights")
    scope = "this pair of weights" if claim["over"] == "model / baseline" else scope
    scope = "random logits" if claim["over"] == "tokens" else scope
    here = {"published": published, "model": model, "inputs": inputs, "units": units, "scope": scope}
    return {**claim, **row, **here}


def _of_mathematics(claim: Mapping[str, str]) -> dict[str, Any]:
    """Judge a claim that no measurement decides: the least that a bound can be where its premise is met."""
    value = least_bound()
    finding = Finding(value, value, value, 1)
    allowed = verdicts.region(claim["comparison"], claim["threshold"], math.nan, None)
    return _row(finding, None, verdicts.decide(finding, allowed), _sentence(claim, finding, allowed, None))


def _at_equal_tokens(
    claim: Mapping[str, str], frames: list[pd.DataFrame], tokens: Callable[[], int]
) -> tuple[list[pd.DataFrame], str]:
    """Scale eigenvalues to the papers' number of tokens: they fall as N⁻², since every g(k_j) is a sum of N terms."""
    printed = claim["comparison"] == "near" or not claim["measure"].startswith("eigenvalue_profile[")
    if printed or "/" in claim["measure"]:  # the factor cancels
        return frames, ""
    factor = (tokens() / _PAPERS_TOKENS) ** 2
    return [frame.assign(value=frame["value"] * factor) for frame in frames], (
        f"; times (N/{_PAPERS_TOKENS})² for the paper's number of tokens, N = {tokens()}"
    )


def _tokens(model: str, inputs: str, settings: Mapping[str, Any]) -> int:
    """Return the number of tokens of one input, by its number of eigenvalues."""
    spec, settings = _with_checkpoint(model, settings)
    arguments: dict[str, Any] = {**settings, "n": 1, "progress": False, "max_rank": "all", "null_samples": 0}
    return int(analyze("gram-spectrum", model=spec, inputs=inputs, **arguments)["rank"].max())


def _with_checkpoint(model: str, settings: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return a model's spec at the checkpoint of the settings, and the others."""
    others = dict(settings)
    checkpoint = others.pop("checkpoint")
    return model if checkpoint is None else f"{model}@{checkpoint}", others


def papers_preprocessing(paper: str, model: str, inputs: str) -> setting.Preprocessing | None:
    """Return the paper's own preprocessing of images, if it has one and the model was not trained here."""
    trained_here = resolve(model)[0] in ("bundled", "file")
    if paper not in PREPROCESSING or trained_here or not _of_images(inputs):
        return None  # of texts it would be the same run again
    return paper


@functools.cache
def _of_images(spec: str) -> bool:
    return open_pool(spec).modality == "image"


class NotTested(Exception):
    """A claim that this model cannot test; the message is the reason."""


class _PremiseNotMet(Exception):
    """A claim whose premise this model does not meet; the message names it."""


def _unjudged(reason: Exception) -> dict[str, Any]:
    """Build the row of a claim that cannot be judged, from the reason."""
    verdict = verdicts.PREMISE if isinstance(reason, _PremiseNotMet) else verdicts.NOT_TESTED
    return _row(_NOTHING, None, verdict, str(reason))


def _follows_training(claim: Mapping[str, str]) -> bool:
    return claim["over"] not in (*_OF_ONE_MODEL, *_OF_TWO_RUNS, *_OF_UNTRAINED, "tokens", "nothing")


def _of_several_weights(claim: Mapping[str, str]) -> bool:
    return _follows_training(claim) or claim["over"] == "model / baseline"


def _runs_of(claim: Mapping[str, str], model: str, null_samples: int, followed: Container[str]) -> list[_Run]:
    """List a claim's runs: a single run, one per alternative of its options, or those of a model and its baseline."""
    name = claim["analysis"]
    # one run through all checkpoints serves the claims about its ends too
    checkpoints = "last" if not _follows_training(claim) else "all" if name in followed else "ends"
    options_of_analysis = ANALYSES[name].options if name in ANALYSES else {}
    runs = []
    for text in claim["options"].split(" | "):
        chosen: dict[str, Any] = dict(claim_options(text))
        if name == SAMPLING:
            return [_Run(name, tuple(chosen.items()))]
        pair = [chosen.pop(key) for key in ("model", "baseline") if key in chosen]
        entry = catalog.find(model)
        if pair and (entry is None or entry.alias != pair[0]):
            raise NotTested(f"it is about {' versus '.join(pair)}")
        layers = chosen.pop("layers", None)
        if "null_samples" in options_of_analysis:
            chosen["null_samples"] = (
                int(chosen.get("null_samples", null_samples)) if checkpoints == "last" else 0
            )
        chosen = {key: {"true": True, "false": False}.get(value, value) for key, value in chosen.items()}
        options = tuple(sorted(check_request(name, chosen).items()))
        models = [f"bundled:{name}" for name in pair] or [None]
        runs += [_Run(name, options, checkpoints, run_model, layers) for run_model in models]
    return runs


def _measured(
    runs: list[_Run],
    frames: dict[_Run, pd.DataFrame],
    model: str,
    inputs: str,
    settings: Mapping[str, Any],
) -> list[pd.DataFrame]:
    """Measure each run once, and return the results. Raises `NotTested` where the inputs are no images."""
    for run in runs:
        if run not in frames:
            try:
                frames[run] = _measure(run, model, inputs, settings)
            except NoImages as reason:
                raise NotTested(f"it is about images ({reason})") from None
    return [frames[run] for run in runs]


def _measure(run: _Run, model: str, inputs: str, settings: Mapping[str, Any]) -> pd.DataFrame:
    if run.analysis == SAMPLING:
        spread = float(dict(run.options)["spread"])
        return sampled_sensitivity(_TOKENS, [spread], null_samples=_SAMPLES, seed=settings["seed"])
    preprocessing = {} if run.preprocessing is None else {"preprocessing": run.preprocessing}
    model = run.model or model
    spec, settings = _with_checkpoint(model, settings)
    arguments: dict[str, Any] = {**preprocessing, **settings, **dict(run.options)}
    if run.layers:
        arguments["layers"] = run.layers
    if not ANALYSES[run.analysis].sites:  # it reads weights
        loading = {key: settings[key] for key in ("device", "dtype")}
        return analyze(run.analysis, model=spec, seed=settings["seed"], **loading, **dict(run.options))
    if run.checkpoints == "last":
        try:
            return analyze(run.analysis, model=spec, inputs=inputs, **arguments)
        except NoAdditivePositions as reason:
            raise NotTested(str(reason)) from None
    every = _checkpoints(model)
    chosen = every if run.checkpoints == "all" else [every[0], every[-1]]
    pairs = [(model, _TRAINING_INPUTS.get(inputs, inputs))]
    return analyze_many(run.analysis, pairs, checkpoints=chosen, **arguments)


def judged(
    claim: Mapping[str, str], frames: list[pd.DataFrame], expected: float = math.nan
) -> dict[str, Any]:
    """Judge one claim from the results of its runs and the number that a paper prints.

    Returns columns of `COLUMNS`. Raises if it cannot be tested or its premise is not met.
    """
    if claim["over"] == "tokens":
        return _of_sampling(claim, frames[0])
    return _decided(claim, _estimate(claim, frames), expected)


class _Estimate(NamedTuple):
    """A claim's quantity with its interval (per checkpoint), the method, and its null distributions."""

    findings: list[Finding]
    how: str
    signs: pd.Series | None
    """The values of a median."""
    nulls: list[NullBand]


def _estimate(claim: Mapping[str, str], frames: list[pd.DataFrame]) -> _Estimate:
    """Estimate the quantity of a claim from the results of its runs; raises as `judged`."""
    frame = frames[0] if len(frames) == 1 else join_frames(frames)
    if claim["premise"]:
        _check_premise(claim, frame)
    terms = verdicts.parse_measure(claim["measure"])
    # the rows are searched many times below, and most are of other metrics
    metrics = verdicts.measured_by(terms)
    frame, *parts = (part[part["metric"].isin(metrics)] for part in (frame, *frames))
    comparison = claim["comparison"]
    values, how = None, verdicts.T
    if claim["over"] in (*_OF_ONE_MODEL, *_OF_UNTRAINED):
        values = (verdicts.per_layer if claim["over"] == "layers" else verdicts.per_input)(frame, terms)
        finding, how = verdicts.mean_over(values, terms, comparison)
        if claim["over"] == "every input":
            finding, how = verdicts.least_favourable(values, comparison), verdicts.EACH
        findings = [finding]
    elif claim["over"] in _OF_TWO_RUNS:
        first, second = (verdicts.per_input(part, terms) for part in parts)
        findings, how = [mean_interval((first / second).dropna(), ratio=True)], verdicts.LOG_T
    else:
        how = verdicts.LOG_T if len(terms) > 1 or claim["over"].startswith("last /") else how
        epochs = frames[0].attrs["epochs"]
        findings = verdicts.through_training(frame, terms, claim["over"], epochs)
        if claim["over"].startswith("last - ") and METRICS[terms[0].metric].log:
            how, values = verdicts.MEDIAN, verdicts.training_changes(frame, terms, claim["over"], epochs)
    if not findings[0].n:
        raise NotTested(f"{claim['analysis']} puts out no {claim['measure']} for this model")
    of_nulls = comparison.endswith("null") or claim["over"] in _OF_ONE_MODEL
    nulls = verdicts.nulls_of(frame, terms, claim["over"]) if of_nulls else []
    return _Estimate(findings, how, values if how == verdicts.MEDIAN else None, nulls)


def _decided(claim: Mapping[str, str], estimate: _Estimate, expected: float) -> dict[str, Any]:
    """Judge a claim from an estimate of its quantity, as columns of `COLUMNS`."""
    findings, how, signs, nulls = estimate
    terms = verdicts.parse_measure(claim["measure"])
    comparison, margin = claim["comparison"], claim["margin"]
    logs = how == verdicts.LOG_T
    p_of = None if signs is None else partial(sign_p, signs)
    bound = verdicts.bound_of(terms)
    if comparison.endswith("null"):
        judgement = verdicts.against_nulls(findings[0], comparison, nulls, margin, bound, p_of, ratio=logs)
        allowed = verdicts.region(comparison, "", expected, judgement.null, margin, bound)
        why = _sentence(claim, findings[0], allowed, judgement.null)
        words = ": ".join(filter(None, (why, judgement.words)))
        row = _row(findings[0], judgement.null, judgement.verdict, words, how, judgement.p)
        widen = _widened(claim, findings[0], how, signs)
        return row | {verdicts.WIDENED: lambda level: widen(1 - (1 - level) / judgement.tests)}
    allowed = verdicts.region(comparison, claim["threshold"], expected, None, margin)
    same = verdicts.sameness(comparison, allowed, None, margin, threshold=claim["threshold"])
    finding, verdict = verdicts.weakest(findings, allowed)
    verdict = verdict if len(findings) > 1 else verdicts.decide(finding, allowed, same)
    left = same if verdict == verdicts.EQUIVALENT else allowed
    # one exception decides a claim about every input: there is no error rate for Holm to control
    p = math.nan if claim["over"] == "every input" else verdicts.probability(finding, left, p_of, ratio=logs)
    nulls = sorted(nulls, key=lambda null: not verdicts.band_passes(null, allowed))  # one that passes decides
    why = _sentence(claim, finding, allowed, None)
    row = _row(finding, nulls[0] if nulls else None, verdict, why, how, p)
    return row | {verdicts.WIDENED: _widened(claim, finding, how, signs)}


class _Untrained:
    """The claims about one model, measured on its untrained weights."""

    def __init__(
        self, model: str, inputs: str, settings: Mapping[str, Any], count: int, tokens: Callable[[], int]
    ) -> None:
        self.model, self.inputs, self.tokens = model, inputs, tokens
        self.checkpoints = untrained_checkpoints(model, count)
        self.share = max(2, math.ceil(settings["n"] / count)) if count else settings["n"]
        self.settings = dict(settings)
        self.requests: dict[int, tuple[Mapping[str, str], list[_Run]]] = {}
        self.estimates: dict[int, list[_Estimate]] = {}
        self.reasons: dict[int, str] = {}
        self.unmet: set[int] = set()
        self.provenance: list[dict[str, Any]] = []

    def ask(self, number: int, claim: Mapping[str, str], runs: list[_Run]) -> None:
        """Request the measurement of a claim; its number is that of its row."""
        if self.checkpoints:
            self.requests[number] = claim, runs
            self.estimates[number] = []

    def measure(self) -> None:
        """Measure the requested claims on each of the untrained weights, with separate inputs."""
        start = self.settings["seed"] + 1
        for seed, checkpoint in enumerate(self.checkpoints, start=start):
            frames: dict[_Run, pd.DataFrame] = {}
            settings = self.settings | {"checkpoint": checkpoint, "n": self.share, "seed": seed}
            for number, (claim, runs) in self.requests.items():
                if number in self.reasons:
                    continue
                try:
                    measured = _measured(runs, frames, self.model, self.inputs, settings)
                    measured, _ = _at_equal_tokens(claim, measured, self.tokens)
                    self.estimates[number].append(_estimate(claim, measured))
                except _PremiseNotMet:
                    self.unmet.add(number)
                except (NotTested, WorkbenchError) as reason:
                    self.reasons[number] = str(reason).splitlines()[0]
            sources = [source for part in frames.values() for source in provenance_of(part)]
            self.provenance += [
                {**source, "notes": []} for source in sources
            ]  # notes are about the trained weights

    def pooled(self, number: int) -> _Estimate | None:
        """Return the estimate over the untrained weights (unit: one initialisation); None if there is no value."""
        claim, _ = self.requests[number]
        return pooled(claim, self.estimates[number]) if self.estimates[number] else None

    def columns(self, number: int, expected: float) -> dict[str, Any]:
        """Return the columns of a row about untrained weights."""
        estimate = self.pooled(number)
        if estimate is None:
            return {"untrained_verdict": verdicts.PREMISE if number in self.unmet else None}
        row = _decided(self.requests[number][0], estimate, expected)
        return {
            "untrained": row["measured"],
            "untrained_low": row["low"],
            "untrained_high": row["high"],
            "untrained_n": row["n"],
            "untrained_verdict": row["verdict"],
        }

    def words(self, number: int, row: Mapping[str, Any]) -> str:
        """Return the text of ``why`` about the control."""
        if number in self.reasons:
            return f"; not measured on untrained weights: {self.reasons[number]}"
        if not self.estimates[number]:
            return "; of no untrained weights is the premise met"
        value, *ends = (row[f"untrained{end}"] for end in ("", "_low", "_high"))
        interval = "" if math.isnan(ends[0]) else f" [{ends[0]:.3g}, {ends[1]:.3g}]"
        counted = f"{row['untrained_n']} initialisations"
        return f"; untrained {value:.3g}{interval}, {counted}: {row['untrained_verdict']}"


def untrained_checkpoints(model: str, count: int) -> list[str]:
    """List the untrained checkpoints of a model: epoch 0 of a bundled training, then fresh draws."""
    epoch = [name for name in _checkpoints(model)[:1] if name == "epoch-000"]
    return [*epoch, *(f"{RANDOM_WEIGHTS}-{seed}" for seed in range(1, count + 1))][:count]


def pooled(claim: Mapping[str, str], estimates: list[_Estimate]) -> _Estimate:
    """Pool the estimates of several initialisations by the rule of the claim, with initialisations as units.

    Ends of a null are means over the initialisations, a wider range than that of the mean.
    """
    terms = verdicts.parse_measure(claim["measure"])
    values = pd.Series([estimate.findings[0].value for estimate in estimates])
    if claim["over"] == "last layer / first layer":
        finding, how = mean_interval(values, ratio=True), verdicts.LOG_T
    else:
        finding, how = verdicts.mean_over(values, terms, claim["comparison"])
    if claim["over"] == "every input":
        finding, how = verdicts.least_favourable(values, claim["comparison"]), verdicts.EACH
    bands = pd.DataFrame(
        [null for estimate in estimates for null in estimate.nulls], columns=NullBand._fields
    )
    means = bands.groupby("null", sort=False).mean()
    nulls = [
        NullBand(str(name), *map(float, ends))
        for name, ends in zip(means.index, means.to_numpy(), strict=True)
    ]
    return _Estimate([finding], how, values if how == verdicts.MEDIAN else None, nulls)


def _against_untrained(
    claim: Mapping[str, str], trained: _Estimate, controls: _Untrained, number: int
) -> dict[str, Any]:
    """Judge a claim about training: trained minus untrained, with Newcombe's interval from both intervals."""
    estimate = controls.pooled(number) if number in controls.requests else None
    if estimate is None:
        reason = controls.reasons.get(number, "none were asked for (untrained=0)")
        return _unjudged(NotTested(f"it is about training, and there are no untrained weights: {reason}"))
    ratio = claim["over"] == "trained / untrained"
    (final,), (initial,) = trained.findings, estimate.findings
    finding = newcombe_interval(final, initial, ratio=ratio)
    allowed = verdicts.region(claim["comparison"], claim["threshold"], math.nan, None)
    p = verdicts.probability(finding, allowed, ratio=ratio)
    why = _sentence(claim, finding, allowed, None)
    why += f"; trained {final.words('.3g')}, untrained {initial.words('.3g')} of {initial.n} initialisations"
    how = "Newcombe, on logarithms" if ratio else "Newcombe"
    row = _row(finding, None, verdicts.decide(finding, allowed), why, how, p)
    return row | {
        "untrained": initial.value,
        "untrained_low": initial.low,
        "untrained_high": initial.high,
        "untrained_n": initial.n,
    }


def _widened(
    claim: Mapping[str, str], finding: Finding, how: str, signs: pd.Series | None
) -> Callable[[float], tuple[float, float]]:
    """Return a function from a level to the ends of a claim's interval at that level."""
    if signs is not None:
        return lambda level: median_interval(signs, level)[1:3]
    metric = METRICS.get(verdicts.parse_measure(claim["measure"])[0].metric)
    bounded = (
        how == verdicts.T and claim["over"] in _OF_ONE_MODEL and not re.search(" [-/*] ", claim["measure"])
    )
    bounds = (metric.low, metric.high) if bounded and metric is not None else (-math.inf, math.inf)
    return partial(interval_at, finding, ratio=how == verdicts.LOG_T, bounds=bounds)


def _check_premise(claim: Mapping[str, str], frame: pd.DataFrame) -> None:
    """Raise if a statement's premise is not met, in mathematics or in the measurement."""
    measure, comparison, threshold = claim["premise"].rsplit(" ", 2)
    if comparison not in verdicts.COMPARISONS:
        raise _PremiseNotMet(claim["premise"])
    terms = verdicts.parse_measure(measure)
    finding, _ = verdicts.mean_over(verdicts.per_input(frame, terms), terms)
    allowed = verdicts.region(comparison, threshold, math.nan, None)
    if finding.n and verdicts.decide(finding, allowed) != verdicts.HOLDS:
        raise _PremiseNotMet(
            f"{measure} is {finding.words('.3g')}, and the statement supposes {comparison} {threshold}"
        )


def _of_sampling(claim: Mapping[str, str], frame: pd.DataFrame) -> dict[str, Any]:
    """Judge the a of a/√N + b, fitted to the samples for each N."""
    (term,) = verdicts.parse_measure(claim["measure"])
    rows = frame[frame["metric"] == term.metric]
    for column, word in term.where.items():
        rows = rows[rows[column] == word]
    fit = fit_root(rows["tokens"].tolist(), rows["value"].tolist())
    finding = Finding(fit.a, fit.a_low, fit.a_high, len(rows), len(rows) - 2)
    allowed = verdicts.region(claim["comparison"], claim["threshold"], math.nan, None)
    verdict = verdicts.decide(finding, allowed)
    why = f"a = {_sentence(claim, finding, allowed, None)}"
    row = _row(finding, None, verdict, why, "t, of a slope", verdicts.probability(finding, allowed))
    return row | {verdicts.WIDENED: partial(interval_at, finding)}


def _row(
    finding: Finding,
    null: NullBand | None,
    verdict: str,
    why: str,
    how: str | None = None,
    p: float = math.nan,
) -> dict[str, Any]:
    row: dict[str, Any] = {"verdict": verdict, "why": why, "n": finding.n, "measured": finding.value}
    row["interval"] = how if math.isfinite(finding.low) else None
    row |= {"low": finding.low, "high": finding.high, "p": p}
    row["detectable"] = smallest_detectable(finding, ratio=how == verdicts.LOG_T)
    if null is not None:
        row |= {
            "null": null.null,
            "null_mean": null.mean,
            "null_low": null.low,
            "null_high": null.high,
        }
    return row


def _sentence(
    claim: Mapping[str, str],
    finding: Finding,
    allowed: tuple[float, float] | None,
    null: NullBand | None,
) -> str:
    if allowed is None:
        return "the run holds no null distribution to compare with (null_samples=0, or none that can differ)"
    if math.isnan(finding.low):
        unit = claim["over"].removesuffix("s")
        reason = (
            f"one {unit} has no interval"
            if finding.n == 1
            else f"{finding.n} {claim['over']} are too few for an interval, or one has no finite value"
        )
        return f"{finding.value:.3g}: {reason}"
    comparison, against = claim["comparison"], claim["threshold"].replace("..", " and ")
    if null is not None and comparison.endswith("null"):
        return f"{finding.value:.3g} [{finding.low:.3g}, {finding.high:.3g}] against null distributions"
    if comparison in ("near", "equals"):
        comparison, against = "", f"{allowed[0]:.3g} to {allowed[1]:.3g}"
    ends = "" if finding.low == finding.high else f" [{finding.low:.3g}, {finding.high:.3g}]"
    comparison_text = f"{finding.value:.3g}{ends} against {comparison} {against}"
    notes = {
        "every checkpoint": ", at the least favourable epoch",
        "every input": f", of {finding.n} inputs the least favourable",
    }
    return " ".join(comparison_text.split()) + notes.get(claim["over"], "")


def _number(text: str) -> float:
    return float(text) if text and not text.startswith("table ") else math.nan


def published_value(claim: Mapping[str, str], model: str) -> float:
    """Return the number a paper gives for a claim; "table N" refers to that table's number for this model."""
    if not claim["published"].startswith("table "):
        return _number(claim["published"])
    table = claim["published"].removeprefix("table ")
    (term,) = verdicts.parse_measure(claim["measure"])
    if catalog.find(model) is None:
        raise NotTested(f"Table {table} does not list this model")
    listed = published(claim["paper"], table, term.metric, model)
    for column in ("statistic", "standardize"):
        if listed[column].notna().any():  # Tables 1 and 4 do not say which statistic they hold
            listed = listed[listed[column] == term.where[column]]
    if listed.empty:
        raise NotTested(f"Table {table} does not list this model")
    value = float(listed["value"].iloc[0])
    if math.isnan(value):
        raise NotTested(f"the cell of Table {table} is {listed['note'].iloc[0]}")
    return value


def _checkpoints(model: str) -> list[str]:
    """Return the checkpoints of a bundled model's training, first to last; none for another model."""
    entry = catalog.find(model)
    bundled = entry is not None and entry.spec.startswith("bundled:")
    return list(bundled_checkpoints(entry.alias)) if bundled else []


def _other_scale(claim: Mapping[str, str], model: str, inputs: str) -> str | None:
    """Return why the paper's setting differs in kind from this model and its inputs; None if it does not."""
    needs = claim["needs"]
    if needs == "training on ImageNet":
        return f"the paper says it of {claim['setting']}"
    if needs == "images":
        return None if _of_images(inputs) else f"the paper says it of images ({claim['setting']})"
    if needs and not needs.startswith("inputs "):
        modality = needs.split()[0]
        entry = catalog.find(model)
        if entry is None or entry.modality != modality or claim["paper"] not in entry.papers:
            return f"the paper says it of its own {modality} models ({claim['setting']})"
    printed = claim["comparison"] == "near" or (needs and not needs.startswith("inputs "))
    if printed and not inputs.startswith(_PAPERS_INPUTS):
        return f"the paper says it of {claim['setting']}, and these inputs are {inputs}"
    return None
