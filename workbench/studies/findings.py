"""State committed records in sentences: estimates with 95 % confidence intervals, and the decisions they support."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import pandas as pd

from workbench.core.errors import MissingResource
from workbench.core.intervals import Finding, mean_interval, welch_interval
from workbench.figures.variants import look_of
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
        f"{model} {mean_interval(model_rows['value']).words(format)} ({len(model_rows)} seeds)"
        for model, model_rows in rows.groupby("model", sort=False)
    ]
    return [f"Test {metric}, mean over seeds, 95 % CI: {', '.join(values)}."]


def seed_findings(differences: pd.DataFrame, factor: float = 100, format: str = "+.1f") -> list[str]:
    """List each mechanism's differences from its baseline (or ratios to it) with their intervals over seeds.

    Args:
        differences: `workbench.studies.over_seeds.seed_differences`; a row is named by its ``label`` if it has one,
            otherwise by protocol and budget. With one seed a side the value is listed without a test.
        factor: 100 for percentage points.
        format: of the numbers.
    """
    sentences = []
    rows = differences[differences["training_seed"].isna()]
    for (model, baseline, seeds), model_rows in rows.groupby(["model", "baseline", "seeds"], sort=False):
        values = [
            f"{_condition(row)} "
            + Finding(*(factor * end for end in (row["value"], row["low"], row["high"])), seeds).words(format)
            for row in model_rows.to_dict("records")
        ]
        words = f"mean over {seeds} seeds a side, 95 % CI" if seeds > 1 else "1 seed a side, not tested"
        sentences.append(f"{_short(model)} against {_short(baseline)}, {words}: {'; '.join(values)}.")
    return sentences


def _condition(row: Mapping[str, Any]) -> str:
    parts = [str(row["protocol"]), row["kind"], row["epsilon"]]
    return " ".join(f"{part:g}" if isinstance(part, float) else part for part in parts if not pd.isna(part))


def verdict_findings(claims: pd.DataFrame, differences: pd.DataFrame, quality: str) -> list[str]:
    """Count the verdicts of the papers' claims about each mechanism drawn, as the first sentence of a caption.

    Args:
        claims: `workbench.studies.claims_from_records`; those about the evaluations and baselines drawn are counted,
            if they are decided over seeds: the inputs of one pair of models say nothing of a mechanism.
        differences: `workbench.studies.over_seeds.seed_differences`, the data drawn.
        quality: the claimed quality of a mechanism, "more robust than".
    """
    rows = differences[differences["training_seed"].isna() & (differences["protocol"] != "clean")]
    stated = claims[(claims["analysis"] == "evaluation") & (claims["units"] != "inputs")]
    sides = [claim_options(text) for text in stated["options"]]
    compared = [tuple(f"bundled:{side.get(name)}" for name in ("model", "baseline")) for side in sides]
    wheres = [parse_measure(text)[0].where for text in stated["measure"]]
    sentences, single = [], {}
    for (model, baseline), model_rows in rows.groupby(["model", "baseline"], sort=False):
        drawn = {*zip(model_rows["protocol"], model_rows["epsilon"].fillna(-1), strict=True)}
        about = [
            pair == (model, baseline) and (where["protocol"], float(where.get("epsilon", -1))) in drawn
            for pair, where in zip(compared, wheres, strict=True)
        ]
        if any(about):
            verdicts = stated.loc[about, "verdict"]
            counts = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.value_counts().items())
            sentences.append(
                f"In {(verdicts == HOLDS).sum()} of {len(verdicts)} test{'s' if len(verdicts) > 1 else ''} "
                f"{_short(model)} is shown to be "
                f"{quality} {_short(baseline)} ({model_rows['seeds'].max()} seeds a side: {counts})."
            )
        elif model_rows["seeds"].max() == 1:
            single.setdefault(_short(baseline), []).append(_short(model))
    return sentences + [
        f"One seed a side decides nothing: {', '.join(models)} against {baseline}."
        for baseline, models in single.items()
    ]


def _short(spec: str) -> str:
    return spec.removeprefix("bundled:")


def agreement_findings(
    evaluated: pd.DataFrame, model: str, protocols: Iterable[str], inputs: str | None = None, **settings: Any
) -> list[str]:
    """Count the budgets at which a model attacked now and its record have disjoint accuracy intervals.

    If the model or its inputs are not on this machine, the sentence names the missing resource.

    Args:
        evaluated: rows of `workbench.studies.records.recorded`; a model without rows there has no sentence.
        model: any model spec.
        protocols: attacks on it.
        inputs: labelled inputs for it, as `workbench.studies.evaluate` takes them.
        settings: further arguments of `workbench.studies.evaluate` (epsilons, n, seed, …).
    """
    try:
        now = _evaluated_now(model, protocols, inputs, settings)
    except MissingResource as reason:
        return [_not_evaluated(model, reason)]
    keys = ["model", "protocol", "epsilon", "metric"]
    evaluated = evaluated[evaluated["seed_kind"] == EXPLORED]  # the weights that are bundled
    both = now.merge(evaluated, on=keys, suffixes=("", "_record"))
    if both.empty:
        return []
    disjoint = (both["low"] > both["high_record"]) | (both["high"] < both["low_record"])
    here = f"Measured in this run (n = {int(now['n'].iloc[0])}) and on record"
    return [f"{here}: intervals apart at {disjoint.sum()} of {len(both)} budgets."]


def difference_findings(versus: pd.DataFrame, quantity: str, words: str, factor: float = 1) -> list[str]:
    """List a quantity minus the baseline's for every model of a `versus_baseline` frame, with Welch's CI over seeds."""
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
    """List by task the variants that learn significantly faster or slower, and end better or worse.

    Args:
        ends: `versus_baseline` of `ends_and_speed`.
        thresholds: by task, the accuracy whose epochs are compared.
    """
    attention = dict(zip(ends["model"], ends["attention"], strict=True))
    common = set(ends.loc[ends["finding"] == "", "model"])
    sentences = []
    for task, rows in ends.groupby("task", sort=False):

        def those(quantity: str, named: Mapping[str, str], rows: pd.DataFrame = rows) -> str:
            phrases = []
            for finding, word in named.items():
                chosen = rows[(rows["quantity"] == quantity) & (rows["finding"] == finding)]
                phrases += [f"{word} {', '.join(sorted(chosen['attention']))}"] if len(chosen) else []
            return "; ".join(phrases) or "significantly different with none"

        at = f"{thresholds[str(task)]:.0%}".replace("%", " %")
        order = {"lower": "lower with", "higher": "higher with"}
        epochs = {"lower": "fewer with", "higher": "more with", UNREACHED: "not reached with"}
        compared = rows[(rows["finding"] != "") & ~rows["baseline"].isin(common)].drop_duplicates("model")
        others = [f"{row.attention}: {attention[row.baseline]}" for row in compared.itertuples()]
        reference = f"the baseline's (of {', '.join(others)})" if others else "the baseline's"
        sentences += [
            f"On {task} the mean test loss of training, beside {reference}, is {those('mean_loss', order)} "
            f"({_counts(rows.groupby('model')['n'].max())} seeds each, Welch's 95 % CI of the difference).",
            f"Epochs to {at} accuracy are {those('epochs_to_threshold', epochs)}.",
            f"Accuracies at the end are {those('accuracy', order)}.",
        ]
    return sentences


def loss_finding(ends: pd.DataFrame) -> str:
    """Name the variants of one task whose mean test loss over training differs significantly from the baseline's.

    Args:
        ends: `versus_baseline` of `ends_and_speed`, of one task.
    """
    rows = ends[(ends["quantity"] == "mean_loss") & (ends["finding"] != "")].sort_values("difference")
    named = {
        finding: " and ".join(look_of(str(name)).label for name in part["attention"])
        for finding, part in rows.groupby("finding", sort=False)
    }
    parts = [f"{word} with {named[word]}" for word in ("lower", "higher") if word in named]
    others = (~rows["finding"].isin(["lower", "higher"])).sum()
    rest = f"{others} other difference{'s are' if others != 1 else ' is'} not significant"
    if not parts:
        return f"Mean test loss over training differs significantly from the baseline's with none of {others} variants."
    return (
        f"Mean test loss over training is {', '.join(parts)} than with the baseline"
        + f"; {rest}" * bool(others)
        + "."
    )


def _counts(numbers: pd.Series) -> str:
    """Return the number of seeds as "5" or "3 to 5"."""
    return " to ".join(dict.fromkeys(str(int(end)) for end in (numbers.min(), numbers.max())))


def recall_findings(model: str, inputs: str | None = None, **settings: Any) -> list[str]:
    """State a model's accuracy measured now, with its interval over images, and its accuracy at the end of training.

    A model without a record has the first number only. If the model or its images are not on this machine, the sentence
    names the missing resource.

    Args:
        model: any model spec.
        inputs: labelled images for it, as `workbench.studies.evaluate` takes them.
        settings: further arguments of `workbench.studies.evaluate` (n, seed, …).
    """
    try:
        row = _evaluated_now(model, ["clean"], inputs, settings).iloc[0]
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
    model: str, protocols: Iterable[str], inputs: str | None, settings: Mapping[str, Any]
) -> pd.DataFrame:
    """Return the top-1 accuracies of a model under these protocols."""
    from workbench.studies.evaluation import evaluate  # which imports torch; what records say needs none

    frame = join_frames([evaluate(model, name, inputs, **settings) for name in protocols])
    return frame[frame["metric"] == "accuracy_top1"]


def _not_evaluated(model: str, reason: MissingResource) -> str:
    return f"{model} is not evaluated now: {str(reason).splitlines()[0]}"


def embedded_findings(
    frame: pd.DataFrame, metric: str, baselines: Mapping[str, str] = MappingProxyType({})
) -> list[str]:
    """State final test scores and significant differences by embedded data set, and which mechanisms did not learn.

    Differences are of means over seeds with Welch's 95 % CI; a mechanism with one seed is listed without a test. A
    mechanism has not learned if one of its seeds is no better than the trivial predictor. It does not use the order if
    it is not significantly better, over its seeds, than softmax on shuffled tokens.

    Args:
        frame: the result of `workbench.studies.records.embedded_record`.
        metric: of its test rows.
        baselines: mechanism → baseline, from `workbench.studies.baselines.embedded_baselines`; softmax for the others.
    """
    factor, unit, points, digits = _units(metric)
    sentences = []
    for data, data_rows in _ends(frame, metric).groupby("data", sort=False):
        scores = {
            str(name): part["value"] * factor for name, part in data_rows.groupby("variant", sort=False)
        }
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
                difference = welch_interval(values, scores[baseline])
                clear = difference.low > 0 or difference.high < 0
                differences[baseline].append(
                    f"{name} {difference.words('+' + digits)} ({'significant' if clear else 'not significant'})"
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


def largest_differences(table: pd.DataFrame, names: Mapping[str, str], unit: str, digits: str = ".1f") -> str:
    """Name the mechanisms with the largest significant differences from a baseline, or that the null explains them.

    Each is named with its own largest difference of either sign; the number of significant differences follows.

    Args:
        table: columns mechanism, where (the task or condition), value, low and high of a 95 % CI.
        names: of the mechanisms.
        unit: of the differences, with a space before it.
        digits: their format.
    """
    clear = table[(table["low"] > 0) | (table["high"] < 0)]
    expected = f"about {0.05 * len(table):.1g} expected under the null"
    if clear.empty:
        listed = " and ".join(names[name] for name in table["mechanism"].unique())
        return f"None of {len(table)} differences of {listed} from the baseline is significant ({expected})."
    if len(clear) <= 0.05 * len(table):
        listed = "; ".join(f"{row.where} with {names[row.mechanism]}" for row in clear.itertuples())
        return (
            f"No variant differs from its baseline more often than under the null: {len(clear)} of {len(table)} "
            f"differences significant ({listed}; {expected})."
        )
    largest = clear.groupby("mechanism")["value"].apply(lambda values: values.abs().max()).nlargest(2)
    phrases = []
    for name in largest.index[largest > largest.max() / 2]:
        rows = clear[clear["mechanism"] == name].sort_values("value")
        ends = [row for row, sign in ((rows.iloc[-1], 1), (rows.iloc[0], -1)) if sign * row["value"] > 0]
        texts = [f"{row['value']:+{digits}}{unit} ({row['where']})" for row in ends]
        phrases.append(f"{names[name]}: {' and '.join(texts).replace('-', '−')}")
    return (
        f"Significant differences from the baseline are largest with {'; '.join(phrases)}. {len(clear)} of "
        f"{len(table)} are significant ({expected})."
    )


ABLATIONS = {
    "primal-e": "primal",
    "primal-all-e": "primal-all",
    "primal-independent": "primal",
    "softmax-boost": "softmax",
    "bilateral-boost": "bilateral",
}
"""Variants of embedded records that change one component of another: no r-scores (chen2023, Table 8), weights
independent of the data (Table 12), a boosted residual (abdullaev2025, §IV).
"""


def ablation_findings(frame: pd.DataFrame, metric: str) -> list[str]:
    """State, by embedded data set, how each of the `ABLATIONS` changes the final test score, seed by seed.

    Takes an `embedded_record`. With several common seeds, the mean paired difference has its 95 % CI. With one common
    seed nothing is tested; the range over the other variant's seeds shows the effect of the seed.
    """
    factor, _, points, digits = _units(metric)
    sentences = []
    for data, data_rows in _ends(frame, metric).groupby("data", sort=False):
        scores = {
            name: part.set_index("seed")["value"] * factor for name, part in data_rows.groupby("variant")
        }
        changes = []
        for name, of in ABLATIONS.items():
            if name not in scores or of not in scores:
                continue
            change = (scores[name] - scores[of]).dropna().astype(float)
            if len(change) > 1:
                changes.append(f"{name} {mean_interval(change).words('+' + digits)} ({len(change)} seeds)")
            elif len(change):
                spread = scores[of].max() - scores[of].min()
                many = len(scores[of])
                spread_words = f"; the {many} seeds of {of} span {spread:{digits}}" if many > 1 else ""
                value = f"{change.iloc[0]:+{digits}}".replace("-", "−")
                changes.append(f"{name} {value} (seed {change.index[0]} alone, not tested{spread_words})")
        if changes:
            sentences.append(
                f"On {data}, test {_called(metric)} less that without the change, in{points}: {'; '.join(changes)}."
            )
    return sentences


def _called(metric: str) -> str:
    return metric.replace("_", " ").replace("iou", "IoU")


def _units(metric: str) -> tuple[float, str, str, str]:
    """Return a score's factor in words, its unit, the unit of a difference, and its number format."""
    if metric == "loss":
        return 1, " nats", " nats", ".3f"
    return (1 if metric == "normalised_return" else 100), " %", " points", ".1f"


def _ends(frame: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return the test rows of a metric at the last epoch of each run of an embedded record."""
    rows = frame[(frame["split"] == "test") & (frame["metric"] == metric)]
    last = rows.groupby(["data", "variant", "seed"], dropna=False)["epoch"].transform("max")
    return rows[rows["epoch"] == last]
