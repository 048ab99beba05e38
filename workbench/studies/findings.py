"""What committed records say, in sentences: estimates with their 95 % confidence intervals, and what those decide."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import pandas as pd

from workbench.core.errors import MissingResource
from workbench.core.intervals import Finding, mean_interval, welch_interval
from workbench.frames.results import join_frames
from workbench.papers.published import claim_options
from workbench.papers.verdicts import HOLDS, parse_measure
from workbench.studies.baselines import UNREACHED
from workbench.studies.over_seeds import answering_each
from workbench.studies.records import recorded
from workbench.studies.seeds import EXPLORED


def mean_findings(trained: pd.DataFrame, metric: str, format: str) -> list[str]:
    """List a test metric at the end of training: each model's mean over the seeds that answer, with its 95 % CI."""
    rows = trained[(trained["metric"] == metric) & (trained["split"] == "test")]
    rows = answering_each(rows[rows["epoch"] == rows.groupby("model")["epoch"].transform("max")])
    if rows.empty:
        return []
    values = [
        f"{model} {mean_interval(own['value']).words(format)} ({len(own)} seeds)"
        for model, own in rows.groupby("model", sort=False)
    ]
    return [f"Test {metric}, mean over seeds, 95 % CI: {', '.join(values)}."]


def seed_findings(differences: pd.DataFrame, factor: float = 100, format: str = "+.1f") -> list[str]:
    """List each mechanism's differences from its baseline (or ratios to it) with their intervals over seeds.

    Args:
        differences: `workbench.studies.over_seeds.seed_differences`; the words of ``label`` where there is one, or
            protocol and budget, name a row. Of one seed a side the value is given and not tested.
        factor: 100 for percentage points.
        format: of the numbers.
    """
    sentences = []
    rows = differences[differences["training_seed"].isna()]
    for (model, baseline, seeds), own in rows.groupby(["model", "baseline", "seeds"], sort=False):
        values = [
            f"{_condition(row)} "
            + Finding(*(factor * end for end in (row["value"], row["low"], row["high"])), seeds).words(format)
            for row in own.to_dict("records")
        ]
        words = f"mean over {seeds} seeds a side, 95 % CI" if seeds > 1 else "1 seed a side, not tested"
        sentences.append(f"{_short(model)} against {_short(baseline)}, {words}: {'; '.join(values)}.")
    return sentences


def _condition(row: Mapping[str, Any]) -> str:
    parts = [str(row["protocol"]), row["kind"], row["epsilon"]]
    return " ".join(f"{part:g}" if isinstance(part, float) else part for part in parts if not pd.isna(part))


def spread_findings(means: pd.DataFrame) -> str:
    """Name the mechanism whose seeds differ most under one condition, of `workbench.studies.over_seeds.seed_means`."""
    seeds = means[means["training_seed"].notna()].groupby(["model", "protocol"])["value"].agg(["min", "max"])
    if seeds.empty:
        return ""
    model, protocol = (seeds["max"] - seeds["min"]).idxmax()
    low, high = 100 * seeds.loc[(model, protocol)]
    condition = protocol if protocol in ("noise", "corruptions") else protocol.upper()
    return (
        f"One training seed decides nothing: under {condition} the seeds of {_short(model)} run from {low:.0f} % to "
        f"{high:.0f} %."
    )


def verdict_findings(claims: pd.DataFrame, differences: pd.DataFrame, quality: str) -> list[str]:
    """Count how the papers' claims about each mechanism drawn come out: what a caption begins with.

    Args:
        claims: `workbench.studies.claims_from_records`; those of evaluation about the rows drawn are counted.
        differences: `workbench.studies.over_seeds.seed_differences`, what is drawn.
        quality: what is claimed of a mechanism, "more robust than".
    """
    rows = differences[differences["training_seed"].isna() & (differences["protocol"] != "clean")]
    stated = claims[claims["analysis"] == "evaluation"]
    models = stated["options"].map(lambda text: f"bundled:{claim_options(text)['model']}")
    wheres = [parse_measure(text)[0].where for text in stated["measure"]]
    sentences, single = [], {}
    for (model, baseline), own in rows.groupby(["model", "baseline"], sort=False):
        drawn = {*zip(own["protocol"], own["epsilon"].fillna(-1), strict=True)}
        about = [
            name == model and (where["protocol"], float(where.get("epsilon", -1))) in drawn
            for name, where in zip(models, wheres, strict=True)
        ]
        if any(about):
            verdicts = stated.loc[about, "verdict"]
            counts = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.value_counts().items())
            sentences.append(
                f"In {(verdicts == HOLDS).sum()} of {len(verdicts)} test{'s'[: len(verdicts) - 1]} {_short(model)} is "
                f"shown to be {quality} {_short(baseline)} ({own['seeds'].max()} seeds a side: {counts})."
            )
        elif own["seeds"].max() == 1:
            single.setdefault(_short(baseline), []).append(_short(model))
    return sentences + [
        f"One seed a side decides nothing: {', '.join(models)} against {baseline}."
        for baseline, models in single.items()
    ]


def _short(spec: str) -> str:
    return spec.removeprefix("bundled:")


def agreement_findings(
    evaluated: pd.DataFrame, model: str, protocols: Iterable[str], inputs: str | None = None, **asked: Any
) -> list[str]:
    """At how many budgets a model attacked now and the record of the same model have accuracies with intervals apart.

    Args:
        evaluated: rows of `workbench.studies.records.recorded`; nothing is said of a model that is not among them.
        model: any model spec.
        protocols: attacks on it.
        inputs: labelled inputs for it, as `workbench.studies.evaluate` takes them.
        asked: the rest of what that takes (epsilons, n, seed, …).

    Where the model or its inputs are not on this machine the sentence says what is missing.
    """
    try:
        now = _evaluated_now(model, protocols, inputs, asked)
    except MissingResource as reason:
        return [_not_evaluated(model, reason)]
    keys = ["model", "protocol", "epsilon", "metric"]
    evaluated = evaluated[evaluated["seed_kind"] == EXPLORED]  # the weights that are bundled
    both = now.merge(evaluated, on=keys, suffixes=("", "_record"))
    if both.empty:
        return []
    apart = (both["low"] > both["high_record"]) | (both["high"] < both["low_record"])
    here = f"Measured in this run (n = {int(now['n'].iloc[0])}) and on record"
    return [f"{here}: intervals apart at {apart.sum()} of {len(both)} budgets."]


def corruption_findings(ratios: pd.DataFrame) -> list[str]:
    """Count the errors by corruption that differ from the baseline's over several seeds, and how many by chance."""
    kinds = ratios[ratios["training_seed"].isna() & ratios["kind"].notna() & (ratios["seeds"] > 1)]
    if kinds.empty:
        return []
    low, high = (kinds["high"] < 1).sum(), (kinds["low"] > 1).sum()
    return [
        f"Of {len(kinds)} errors by model and corruption over {int(kinds['seeds'].min())} seeds a side, {low} have a "
        f"95 % CI below the baseline's, {high} above; without any difference about {0.05 * len(kinds):.1f} would."
    ]


def difference_findings(versus: pd.DataFrame, quantity: str, words: str, factor: float = 1) -> list[str]:
    """A quantity less that of the baseline, of every model of a `versus_baseline` frame; Welch's CI over seeds."""
    if versus.empty:
        return []
    rows = versus[(versus["quantity"] == quantity) & versus["difference"].notna()]
    changes = [
        (f"{row.label} on {row.task} " if "label" in versus else f"{row.model} ")
        + Finding(
            *(factor * x for x in (row.difference, row.difference_low, row.difference_high)), row.n
        ).words("+.2f" if factor == 100 else "+.3f")
        + f" ({row.finding})"
        for row in rows.itertuples()
    ]
    return (
        [f"{words} less the baseline's, mean over seeds with 95 % CI: {'; '.join(changes)}."]
        if changes
        else []
    )


def learning_findings(ends: pd.DataFrame, thresholds: Mapping[str, float]) -> list[str]:
    """By task, which variants significantly learn faster or slower than their baselines, and end better or worse.

    Of `versus_baseline` of `ends_and_speed`; ``thresholds`` are the accuracies whose epochs are compared.
    """
    attention = dict(zip(ends["model"], ends["attention"], strict=True))
    common = set(ends.loc[ends["finding"] == "", "model"])
    sentences = []
    for task, own in ends.groupby("task", sort=False):

        def those(quantity: str, named: Mapping[str, str], own: pd.DataFrame = own) -> str:
            found = []
            for finding, word in named.items():
                chosen = own[(own["quantity"] == quantity) & (own["finding"] == finding)]
                found += [f"{word} {', '.join(sorted(chosen['attention']))}"] if len(chosen) else []
            return "; ".join(found) or "significantly different with none"

        at = f"{thresholds[str(task)]:.0%}".replace("%", " %")
        order = {"lower": "lower with", "higher": "higher with"}
        epochs = {"lower": "fewer with", "higher": "more with", UNREACHED: "not reached with"}
        compared = own[(own["finding"] != "") & ~own["baseline"].isin(common)].drop_duplicates("model")
        others = [f"{row.attention}: {attention[row.baseline]}" for row in compared.itertuples()]
        beside = f"the baseline's (of {', '.join(others)})" if others else "the baseline's"
        sentences += [
            f"On {task} the mean test loss of training, beside {beside}, is {those('mean_loss', order)} "
            f"({_counts(own.groupby('model')['n'].max())} seeds each, Welch's 95 % CI of the difference).",
            f"Epochs to {at} accuracy are {those('epochs_to_threshold', epochs)}.",
            f"Accuracies at the end are {those('accuracy', order)}.",
        ]
    return sentences


def _counts(numbers: pd.Series) -> str:
    """Of how many seeds, "5" or "3 to 5"."""
    return " to ".join(dict.fromkeys(str(int(end)) for end in (numbers.min(), numbers.max())))


def recall_findings(model: str, inputs: str | None = None, **asked: Any) -> list[str]:
    """The accuracy of a model measured now, with its interval over images, beside that at the end of its training.

    Of models without a record it is the first alone. Where the model or its images are not on this machine the
    sentence says what is missing.

    Args:
        model: any model spec.
        inputs: labelled images for it, as `workbench.studies.evaluate` takes them.
        asked: the rest of what that takes (n, seed, …).
    """
    try:
        row = _evaluated_now(model, ["clean"], inputs, asked).iloc[0]
    except MissingResource as reason:
        return [_not_evaluated(model, reason)]
    now = Finding(row["value"], row["low"], row["high"], int(row["n"]))
    trained = recorded([model.removeprefix("bundled:")], "training")
    test = trained[(trained["metric"] == "accuracy") & (trained["split"] == "test")]
    test = test[(test["seed_kind"] == EXPLORED) & (test["seed"] == test["seed"].min())]  # the bundled weights
    end = (
        f"; on record, of all test images: {test.loc[test['epoch'].idxmax(), 'value']:.2%}"
        if len(test)
        else ""
    )
    return [f"{row['model']} classifies {now.words('.2%')} of {now.n} images now{end}."]


def _evaluated_now(
    model: str, protocols: Iterable[str], inputs: str | None, asked: Mapping[str, Any]
) -> pd.DataFrame:
    """Top-1 accuracies of a model under these protocols."""
    from workbench.studies.evaluation import evaluate  # which imports torch; what records say needs none

    frame = join_frames([evaluate(model, name, inputs, **asked) for name in protocols])
    return frame[frame["metric"] == "accuracy_top1"]


def _not_evaluated(model: str, reason: MissingResource) -> str:
    return f"{model} is not evaluated now: {str(reason).splitlines()[0]}"


def embedded_findings(
    frame: pd.DataFrame, metric: str, baselines: Mapping[str, str] = MappingProxyType({})
) -> list[str]:
    """By embedded data set: final test scores of baselines, what differs from them, and what has not learned.

    Differences are of means over seeds with Welch's 95 % CI; a mechanism of one seed is named with its score and not
    tested. A mechanism has not learned if one of its seeds is no better than the trivial predictor. It does not use the
    order if it is not significantly better, over its seeds, than softmax on shuffled tokens.

    Args:
        frame: the result of `workbench.studies.records.embedded_record`.
        metric: of its test rows.
        baselines: mechanism → its baseline, of `workbench.studies.baselines.embedded_baselines`; the others have
            softmax.
    """
    factor, unit, points, digits = _units(metric)
    sentences = []
    for data, own in _ends(frame, metric).groupby("data", sort=False):
        scores = {str(name): part["value"] * factor for name, part in own.groupby("variant", sort=False)}
        trivial = scores.pop("majority").iloc[0]
        differences: dict[str, list[str]] = {
            name: [] for name in scores if name in {"softmax", *baselines.values()}
        }
        single, failed, unordered = [], [], []
        shuffled = scores.get("softmax-shuffled", pd.Series(dtype=float))
        for name, values in scores.items():
            worse = -values if metric == "loss" else values
            if worse.min() <= (-trivial if metric == "loss" else trivial):
                failed.append(name)
            if len(values) > 1 and len(shuffled):
                ends, level = mean_interval(values), shuffled.iloc[0]
                unordered += [name] if (ends.high >= level if metric == "loss" else ends.low <= level) else []
            if len(values) < 2:
                single += [f"{name} {values.iloc[0]:{digits}}"] if "η" not in name else []
            elif name not in differences:
                baseline = baselines.get(name, "softmax")
                apart = welch_interval(values, scores[baseline])
                clear = apart.low > 0 or apart.high < 0
                differences[baseline].append(
                    f"{name} {apart.words('+' + digits)} ({'significant' if clear else 'not significant'})"
                )
        levels = [f"{name} {mean_interval(scores[name]).words(digits)}{unit}" for name in differences]
        seeds = " or ".join(str(number) for number in sorted({len(scores[name]) for name in differences}))
        sentences.append(
            f"On {data} the test {_called(metric)} is, mean over {seeds} seeds with 95 % CI: {', '.join(levels)}; of "
            f"the trivial predictor {trivial:{digits}}{unit}."
            + "".join(
                f" Less {baseline}'s, in{points}, Welch's 95 % CI over seeds: {'; '.join(listed)}."
                for baseline, listed in differences.items()
                if listed
            )
            + (f" One seed each, not tested: {', '.join(single)}." if single else "")
            + f" Not learned: {', '.join(failed) or 'none'}."
            + (
                f" Not significantly better than shuffled: {', '.join(unordered) or 'none'}."
                if len(shuffled)
                else ""
            )
        )
    return sentences


ABLATIONS = {
    "primal-e": "primal",
    "primal-all-e": "primal-all",
    "primal-independent": "primal",
    "softmax-boost": "softmax",
    "bilateral-boost": "bilateral",
}
"""Variants of embedded records that change one thing about another: no r-scores (chen2023, Table 8), weights that do
not see the data (Table 12), a boosted residual (abdullaev2025, §IV)."""


def ablation_findings(frame: pd.DataFrame, metric: str) -> list[str]:
    """By embedded data set: the final test score of the `ABLATIONS` less that of what they change, seed by seed.

    Of `embedded_record`. Where there is one seed in common nothing is tested, and the range of the other's seeds says
    how much a seed alone can do; of several it is the mean over them, with the 95 % CI of the paired difference.
    """
    factor, _, points, digits = _units(metric)
    sentences = []
    for data, own in _ends(frame, metric).groupby("data", sort=False):
        scores = {name: part.set_index("seed")["value"] * factor for name, part in own.groupby("variant")}
        said = []
        for name, of in ABLATIONS.items():
            if name not in scores or of not in scores:
                continue
            change = (scores[name] - scores[of]).dropna().astype(float)
            if len(change) > 1:
                said.append(f"{name} {mean_interval(change).words('+' + digits)} ({len(change)} seeds)")
            elif len(change):
                spread = scores[of].max() - scores[of].min()
                many = len(scores[of])
                beside = f"; the {many} seeds of {of} span {spread:{digits}}" if many > 1 else ""
                value = f"{change.iloc[0]:+{digits}}".replace("-", "−")
                said.append(f"{name} {value} (seed {change.index[0]} alone, not tested{beside})")
        if said:
            sentences.append(
                f"On {data}, test {_called(metric)} less that without the change, in{points}: {'; '.join(said)}."
            )
    return sentences


def _called(metric: str) -> str:
    return metric.replace("_", " ").replace("iou", "IoU")


def _units(metric: str) -> tuple[float, str, str, str]:
    """Factor of a score in words, its unit, that of a difference, and the format of its digits."""
    if metric == "loss":
        return 1, " nats", " nats", ".3f"
    return (1 if metric == "normalised_return" else 100), " %", " points", ".1f"


def _ends(frame: pd.DataFrame, metric: str) -> pd.DataFrame:
    """The test rows of a metric at the last epoch of each run of an embedded record."""
    rows = frame[(frame["split"] == "test") & (frame["metric"] == metric)]
    last = rows.groupby(["data", "variant", "seed"], dropna=False)["epoch"].transform("max")
    return rows[rows["epoch"] == last]
