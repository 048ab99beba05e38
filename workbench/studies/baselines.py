"""Compare trained variants with their baseline: the bundled model that differs in the attention only.

`versus_baseline` and its relatives return one row per model and quantity, with `COLUMNS`: the value with its range, and
its difference from the baseline's with the 95 % confidence interval. All numbers come from committed records.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from workbench.core.errors import InputError, MissingResource, UnknownName
from workbench.core.intervals import (
    Finding,
    mean_interval,
    paired_interval,
    welch_interval,
)
from workbench.frames.estimate import null_range
from workbench.frames.results import shared
from workbench.papers.published import RECORDED, claim_options, published_pairs, stated_claims
from workbench.papers.verdicts import parse_measure
from workbench.studies.over_seeds import answering_each
from workbench.studies.records import beside_perturbed, recorded, trained_alike, training_record

COLUMNS = (
    "model", "task", "attention", "quantity", "unit", "value", "low", "high", "n", "over", "difference",
    "difference_low", "difference_high", "finding",
)  # fmt: skip
_NOT_SIGNIFICANT, UNREACHED = "not significant", "not reached"
_CLEAN = {
    "accuracy_top1": "ImageNet-1K",
    "perplexity": "WikiText-103 test",
    "cross_entropy": "OpenWebText, LAMBADA, WikiText, PTB",
}


def stated_baselines() -> dict[str, str]:
    """Return each bundled model's baseline in the papers' claims, preferring primary claims."""
    stated = stated_claims().sort_values("primary", kind="stable")  # the last of a model's baselines stays
    bundled = stated["analysis"].isin(RECORDED) & (stated["analysis"] != "embedded")
    options = [claim_options(text) for text in stated.loc[bundled, "options"]]
    return {pair["model"]: pair["baseline"] for pair in options if {"model", "baseline"} <= set(pair)}


def beside_baselines(record: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of an `embedded_record` once for each mechanism that the papers' claims compare with a baseline.

    Columns as in the record, with ``mechanism`` and ``baseline`` of each comparison; the trivial predictor is
    included.

    Raises `InputError` if no claim is about these data.
    """
    parts = [
        record[record["variant"].isin([mechanism, baseline, "majority"])].assign(
            mechanism=mechanism, baseline=baseline
        )
        for mechanism, baseline in embedded_baselines(record["data"].unique()).items()
    ]
    if not parts:
        raise InputError(f"no claim compares mechanisms on {', '.join(record['data'].unique()) or 'no data'}")
    table = pd.concat(parts, ignore_index=True)
    table.attrs = record.attrs
    return table


def at_stated_budgets(record: pd.DataFrame, words: Mapping[str, str]) -> pd.DataFrame:
    """Return final scores of an `embedded_record`, clean and at the budgets of the papers' claims about each mechanism.

    Columns as those of `beside_baselines`; ``data`` as `beside_perturbed` names it; and ``budgets``, "PGD 0.005".

    Args:
        record: of one data set or several.
        words: protocol of an attack → its label ("pgd" → "PGD"), in this order.
    """
    stated = _embedded_claims(record["data"].unique())
    parts = []
    for mechanism, mechanism_rows in beside_baselines(record).groupby("mechanism", sort=False):
        measures = stated.loc[stated["model"] == mechanism, "measure"]
        splits = [str(parse_measure(measure)[0].where["split"]).partition(" ") for measure in measures]
        budgets = {protocol: budget for protocol, _, budget in splits if budget}
        named = {protocol: name for protocol, name in words.items() if protocol in budgets}
        perturbed = {name: f"{protocol} {budgets[protocol]}" for protocol, name in named.items()}
        listed = ", ".join(f"{name} {budgets[protocol]}" for protocol, name in named.items())
        parts.append(beside_perturbed(mechanism_rows, {"clean": "test", **perturbed}).assign(budgets=listed))
    table = pd.concat(parts, ignore_index=True)
    table.attrs = record.attrs
    return table


def embedded_baselines(data: Iterable[str]) -> dict[str, str]:
    """Return the mechanisms that the papers' claims compare on embedded data, each with its baseline.

    Those of primary claims come first; of several baselines of a mechanism the first counts.
    """
    stated = _embedded_claims(data).sort_values("primary", ascending=False, kind="stable")
    stated = stated.drop_duplicates("model")
    return dict(zip(stated["model"], stated["baseline"], strict=True))


def _embedded_claims(data: Iterable[str]) -> pd.DataFrame:
    """Return the claims about mechanisms trained on any of these embedded data, with ``model`` and ``baseline``."""
    stated, names = stated_claims(), set(data)
    stated = stated[stated["analysis"] == "embedded"]
    options = [claim_options(text) for text in stated["options"]]
    stated = stated.assign(**{name: [pair[name] for pair in options] for name in ("model", "baseline")})
    return stated[[not names.isdisjoint(pair["data"].split("+")) for pair in options]]


def stated_budgets() -> dict[str, float]:
    """Return the budget of each attack at which the papers' claims compare trained models."""
    budgets: dict[str, float] = {}
    stated = stated_claims()
    for measure in stated.loc[stated["analysis"] == "evaluation", "measure"]:
        for term in parse_measure(measure):
            if "epsilon" in term.where and term.metric == "accuracy_top1":
                budgets[term.where["protocol"]] = float(term.where["epsilon"])
    return budgets


def recorded_curves(
    pairs: Iterable[tuple[str, str]],
    variants: Iterable[str] | None = None,
    *,
    n: int | None = None,
    epochs: int | None = None,
) -> pd.DataFrame:
    """Return training records of baselines and of the models that differ from them in the attention only.

    A model's confirmatory seeds are used if all of them are on record, otherwise the exploratory ones. Rows as those of
    `workbench.studies.records.recorded`. ``frame.attrs["baselines"]`` is ``{model: baseline}``: the baseline of the
    papers' claims (`stated_baselines`), or of the task. ``frame.attrs["absent"]`` lists baselines without data,
    ``{model: reason}``.

    Args:
        pairs: (baseline, inputs): a bundled model, and the bundled inputs of its task, for instance
            ("bundled:digits-vit", "bundled:digits").
        variants: attention as records name it ("rpc-sym", "bilateral+boost"); all on record by default. Baselines are
            always included.
        n: number of seeds of each model, the first ones; all by default.
        epochs: number of epochs from the first; all by default.

    Raises:
        UnknownName: a variant that no record of these tasks has.
        InputError: inputs other than the task's, or ``n`` or ``epochs`` below 1.
        MissingResource: no baseline is on record.
    """
    names = {spec.removeprefix("bundled:"): inputs for spec, inputs in pairs}
    absent = recorded(list(names), "training").attrs["absent"]
    baselines = [name for name in names if name not in absent]
    if not baselines:
        raise MissingResource("; ".join(f"{name}: {reason}" for name, reason in absent.items()))
    about = training_record().drop_duplicates("model").set_index("model")
    for name in baselines:
        task = about.loc[name, "task"]
        if names[name] != f"bundled:{task}":
            raise InputError(
                f"{name} was trained and tested on bundled:{task}, and its record holds no other inputs; "
                f"got {names[name]!r}"
            )
    alike = {other for name in baselines for other in trained_alike(name)}
    others = about[about.index.isin(alike - set(baselines))]
    if variants is not None:
        wanted, attentions = set(variants), {*others["attention"], *about.loc[baselines, "attention"]}
        for variant in sorted(wanted - attentions):
            raise UnknownName("attention on record for these tasks", variant, attentions)
        others = others[others["attention"].isin(wanted)]
    stated = stated_baselines()
    of_claims = [stated[name] for name in others.index if name in stated]
    models = dict.fromkeys([*baselines, *others.index, *of_claims])
    frame = answering_each(recorded([*models], "training"))
    if (n is not None and n < 1) or (epochs is not None and epochs < 1):
        raise InputError(f"no rows of n {n} seeds and {epochs} epochs; give numbers from 1 on")
    attrs = frame.attrs
    rank = frame.groupby("model")["seed"].rank(method="dense")
    chosen = rank <= (math.inf if n is None else n)
    frame = frame[chosen & (frame["epoch"] <= (math.inf if epochs is None else epochs))]
    tasks = frame.drop_duplicates("model").set_index("model")["task"]
    by_task = {tasks[name]: name for name in baselines}
    of_each = {name: stated.get(name, by_task[task]) for name, task in tasks.items() if name not in baselines}
    frame.attrs = {**attrs, "absent": absent, "baselines": of_each}
    return frame


def narrowed(frame: pd.DataFrame, task: str) -> pd.DataFrame:
    """Return the rows of one task, with the provenance of its models only."""
    chosen = frame[frame["task"] == task]
    specs = {f"bundled:{name}" for name in chosen["model"].unique()}
    chosen_runs = [
        (file, run)
        for file, run in zip(frame.attrs["records"], frame.attrs["provenance"], strict=True)
        if run["model"]["spec"] in specs
    ]
    chosen.attrs["records"] = shared([file for file, _ in chosen_runs])
    chosen.attrs["provenance"] = shared([run for _, run in chosen_runs])
    return chosen


def ends_and_speed(frame: pd.DataFrame, threshold: float | Mapping[str, float] = 0.9) -> pd.DataFrame:
    """Summarise each test curve: columns model, task, attention, seed, quantity, value, unit.

    Quantities are ``accuracy``, ``loss`` and (for language) ``perplexity`` at the last epoch; ``mean_loss``, the area
    under the loss curve by the trapezoidal rule divided by the number of epochs; and ``epochs_to_threshold``, where the
    accuracy, interpolated linearly between epochs, first reaches the threshold (of the task, if they differ); NaN if
    never.

    Raises `InputError` for a frame without test accuracy and loss.
    """
    rows = []
    keys = ["model", "task", "attention", "seed"]
    for key, part in frame[frame["split"] == "test"].groupby(keys, sort=False):
        curves = {
            metric: curve.set_index("epoch")["value"].sort_index() for metric, curve in part.groupby("metric")
        }
        missing = {"accuracy", "loss"} - set(curves)
        if missing:
            raise InputError(f"{key[0]} has no test {' or '.join(sorted(missing))} in this frame")
        least = threshold if isinstance(threshold, float | int) else threshold[key[1]]
        loss, accuracy = curves["loss"], curves["accuracy"]
        width = loss.index[-1] - loss.index[0]
        summaries = {
            "accuracy": (accuracy.iloc[-1], ""),
            "loss": (loss.iloc[-1], "nats"),
            "mean_loss": (np.trapezoid(loss, loss.index) / width if width else loss.iloc[-1], "nats"),
            "epochs_to_threshold": (_first_reaching(accuracy, least), "epochs"),
        }
        if "perplexity" in curves:
            summaries["perplexity"] = (curves["perplexity"].iloc[-1], "")
        rows += [
            dict(zip(keys, key, strict=True)) | {"quantity": name, "value": float(value), "unit": unit}
            for name, (value, unit) in summaries.items()
        ]
    if not rows:
        raise InputError("the frame has no rows of the test split; give the result of recorded_curves")
    return pd.DataFrame(rows, columns=[*keys, "quantity", "value", "unit"])


def versus_baseline(results: pd.DataFrame, baselines: Mapping[str, str]) -> pd.DataFrame:
    """Return median, minimum and maximum over seeds of every quantity, and the mean difference from the baseline's.

    ``difference`` has Welch's 95 % interval; ``finding`` is "lower" or "higher" if that excludes 0, otherwise "not
    significant"; "not reached" if a seed has no value, and empty for the baseline itself. Intervals are not corrected
    for the number of variants. ``baselines`` is ``{model: baseline}``; a model that it lacks is a baseline only.
    Columns are `COLUMNS` and ``baseline``.

    Raises `InputError` for a model whose baseline is not in the frame.
    """
    rows = []
    values = {key: part.set_index("seed")["value"] for key, part in results.groupby(["model", "quantity"])}
    for row in results.drop_duplicates(["model", "quantity"]).to_dict("records"):
        model, quantity = row["model"], row["quantity"]
        baseline = baselines.get(model)
        if baseline is not None and (baseline, quantity) not in values:
            raise InputError(f"{model} has no {quantity} of its baseline {baseline} in this frame")
        here = values[model, quantity]
        difference = {}
        if baseline is not None:
            reference = values[baseline, quantity]
            reached = reference.notna().all()  # else its remaining seeds are chosen by their values
            difference = _difference_columns(
                welch_interval(here, reference)
                if reached
                else Finding(math.nan, math.nan, math.nan, len(here))
            )
        rows.append(
            {name: row[name] for name in ("model", "task", "attention", "quantity", "unit")}
            | {"value": here.median(), "low": here.min(), "high": here.max(), "n": int(here.count())}
            | {"over": "seeds", "baseline": baseline}
            | difference
            | ({"finding": UNREACHED} if here.isna().any() else {})
        )
    return _results(rows, "baseline")


def compared(
    tasks: Iterable[str], kinds: Mapping[str, str], reference: str
) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Return training records of the models TASK-KIND, their ends by seed, and comparisons with kind ``reference``.

    Seeds are chosen as in `recorded_curves`. ``kinds`` maps each kind to its label, a column ``label`` of all three
    frames. A model without a record is skipped (``attrs["absent"]`` of the first frame), and a task without its
    reference is not compared; frames may be empty.
    """
    frame = answering_each(recorded([f"{task}-{kind}" for task in tasks for kind in kinds], "training"))
    if frame.empty:
        return frame, frame, frame
    by_seed = ends_and_speed(frame)
    recorded_models = set(frame["model"])
    references = {task: f"{task}-{reference}" for task in tasks if f"{task}-{reference}" in recorded_models}
    rows = by_seed[by_seed["task"].isin(references)]
    task_of = dict(zip(rows["model"], rows["task"], strict=True))
    baselines = {model: references[task] for model, task in task_of.items() if model != references[task]}
    versus = versus_baseline(rows, baselines)
    for part in (frame, by_seed, versus):
        names = zip(part["model"], part["task"], strict=True)
        part["label"] = [kinds[model.removeprefix(f"{task}-")] for model, task in names]
    return frame, by_seed, versus


def change_in_training(
    frame: pd.DataFrame, baseline: str, metric: str, *, first: int | None = None, split: str = "test"
) -> pd.DataFrame:
    """Return a metric at the last epoch divided by that at epoch ``first``, mean over seeds.

    The geometric mean has its 95 % paired t-interval. ``difference`` is the ratio to the baseline's change (2: twice
    the baseline's growth), with Welch's interval of the mean logarithms. The quantity is "METRIC, last / first".

    Raises `InputError` for an epoch or metric that a model lacks.
    """
    tables = {}
    for model, table in _by_epoch(frame, metric, split).items():
        begin = table.columns.min() if first is None else first
        if begin not in table:
            raise InputError(f"{model} has no {metric} at epoch {begin}; its last is {table.columns.max()}")
        tables[model] = table[begin], table[table.columns.max()]
    begin, last = next(iter(tables.values()), (pd.Series(name=0), pd.Series(name=0)))
    return _ratios(frame, baseline, tables, f"{metric}, {last.name} / {begin.name}", f"{split} {metric}")


def ratio_at_the_end(
    frame: pd.DataFrame, baseline: str, metric: str, under: str, *, split: str = "test"
) -> pd.DataFrame:
    """Return the ratio of two metrics at the last epoch, mean over seeds; columns as in `change_in_training`.

    Raises `InputError` for a metric that the frame lacks.
    """
    above, below = (_by_epoch(frame, name, split) for name in (metric, under))
    tables = {
        model: (below[model].iloc[:, -1], table.iloc[:, -1])
        for model, table in above.items()
        if model in below
    }
    return _ratios(frame, baseline, tables, f"{metric} / {under}", f"{split} {metric} or {under}")


def _by_epoch(frame: pd.DataFrame, metric: str, split: str) -> dict[str, pd.DataFrame]:
    """Return a metric of each model: a row per seed, a column per epoch that has values, in order."""
    chosen = frame[(frame["metric"] == metric) & (frame["split"] == split)]
    tables = {
        str(model): model_rows.pivot(index="seed", columns="epoch", values="value").dropna(
            axis="columns", how="all"
        )
        for model, model_rows in chosen.groupby("model", sort=False)
    }
    return {model: table for model, table in tables.items() if len(table.columns)}


def _ratios(
    frame: pd.DataFrame,
    baseline: str,
    tables: Mapping[str, tuple[pd.Series, pd.Series]],
    quantity: str,
    lacking: str,
) -> pd.DataFrame:
    """Return each model's second series divided by the first, seed by seed, and the difference from the baseline's."""
    if baseline not in tables:
        raise InputError(f"the frame has no {lacking} of {baseline}, which the others are compared with")
    growth = {model: last / begin for model, (begin, last) in tables.items()}
    about = frame.drop_duplicates("model").set_index("model")
    rows = []
    for model, (begin, last) in tables.items():
        difference = {}
        if model != baseline:
            difference = _difference_columns(
                welch_interval(growth[model], growth[baseline], ratio=True), nothing=1
            )
        row = {"model": model, **about.loc[model, ["task", "attention"]], "quantity": quantity, "unit": ""}
        rows.append(row | {"over": "seeds"} | paired_interval(last, begin, ratio=True)._asdict() | difference)
    return _results(rows)


def exact_shares(errors: pd.DataFrame, frame: pd.DataFrame, baseline: str) -> pd.DataFrame:
    """Return the mean exact projection error divided by that of the zero predictor, with floor and null distribution.

    The quantity is ``exact_share``. Its interval over inputs is that of a ratio of means by linearisation (Cochran
    1977, ch. 6); the difference from the baseline's is paired by input. Beside `COLUMNS` there are ``floor`` and, for
    the null distribution, its name ``null`` and its ends ``null_low`` and ``null_high``.

    Args:
        errors: projection-error of several bundled models, convention "exact" with one null, without per_head.
        frame: a training record with their attention.
        baseline: the reference model.

    Raises:
        InputError: no exact errors of the baseline.
    """
    about = frame.drop_duplicates("model").set_index("model")
    shares: dict[str, tuple[pd.Series, dict[str, Any]]] = {}
    for spec, model_rows in errors.groupby("model", sort=False):
        level = model_rows[["layer", "head"]].isna().all(axis=1)
        per_input = model_rows[level & model_rows["input"].notna()].drop_duplicates(["metric", "input"])
        values = per_input.pivot(index="input", columns="metric", values="value")
        means = model_rows[level & model_rows["input"].isna()].drop_duplicates("metric").set_index("metric")
        exact, zero = means.loc["projection_error"], means.loc["projection_zero_predictor", "value"]
        bounds = {name: exact[name] / zero for name in ("null_low", "null_high")}
        bounds |= {"floor": means.loc["projection_floor", "value"] / zero, "null": exact["null"]}
        shares[str(spec).removeprefix("bundled:")] = (
            _linearised(values["projection_error"], values["projection_zero_predictor"]),
            bounds,
        )
    if baseline not in shares:
        raise InputError(f"there is no exact error of {baseline}, which the others are compared with")
    rows = []
    for name, (values, bounds) in shares.items():
        difference = (
            {} if name == baseline else _difference_columns(paired_interval(values, shares[baseline][0]))
        )
        row = {"model": name, **about.loc[name, ["task", "attention"]], "quantity": "exact_share", "unit": ""}
        rows.append(row | mean_interval(values)._asdict() | {"over": "inputs"} | difference | bounds)
    shares_frame = _results(rows, "floor", "null", "null_low", "null_high")
    shares_frame.attrs = errors.attrs
    return shares_frame


def change_findings(change: pd.DataFrame, baseline: str) -> str:
    """State in how many variants a metric falls or grows during training, and which differ from the baseline.

    Args:
        change: the result of `change_in_training`, of one metric.
        baseline: the reference model.
    """
    start = change[change["model"] == baseline].iloc[0]
    ratio = Finding(start["value"], start["low"], start["high"], int(start["n"]))
    counts = [
        f"{words} in {int((side > 0).sum())} of {len(change)} (by the interval over seeds: "
        f"{', '.join(change.loc[surely > 0, 'attention']) or 'none'})"
        for words, side, surely in (
            ("falls", 1 - change["value"], 1 - change["high"]),
            ("grows", change["value"] - 1, change["low"] - 1),
        )
    ]
    significant = change.loc[change["finding"].isin(["lower", "higher"]), "attention"]
    return (
        f"{start['quantity']}: {', '.join(counts)}; in {start['attention']} {ratio.words('.2g')}, geometric mean over "
        f"{ratio.n} seeds with its 95 % CI; significantly different from that: {', '.join(significant) or 'none'}."
    )


def share_findings(shares: pd.DataFrame, baseline: str) -> str:
    """State the exact error as a share of the zero predictor's, of the baseline and of all variants, with the null.

    Args:
        shares: the result of `exact_shares`.
        baseline: the model that is named first.
    """
    start = shares[shares["model"] == baseline].iloc[0]
    best, worst = (shares.loc[label] for label in (shares["value"].idxmin(), shares["value"].idxmax()))
    below, above = (shares["value"] < shares["null_low"]).sum(), (shares["value"] > shares["null_high"]).sum()
    return (
        f"The exact error is {start['value']:.1%} [{start['low']:.1%}, {start['high']:.1%}] of the zero predictor's in "
        f"{start['attention']}, mean over {start['n']} inputs with its 95 % CI, {best['value']:.1%} "
        f"({best['attention']}) to {worst['value']:.1%} ({worst['attention']}) in all; below the "
        f"{null_range(shares, start['null'])} in {below}, above in {above} of {len(shares)}."
    )


def printed_ends(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the papers' printed final scores of these variants and of their baselines, on clean data.

    One row per model of the frame: the first pair of `published_pairs` with this counterpart, the closest one. Columns
    are those of the pairs and ``attention``. Language models of wu2025 have a mean loss over four texts.
    """
    attention = frame.drop_duplicates("model").set_index("model")["attention"]
    pairs = published_pairs()
    clean = (pairs["metric"].map(_CLEAN) == pairs["data"]).fillna(False) & pairs["condition"].isna()
    pairs = pairs[clean & pairs["model"].isin(attention.index)]
    pairs = pairs.drop_duplicates("model").reset_index(drop=True)
    return pairs.assign(attention=pairs["model"].map(attention))


def _first_reaching(curve: pd.Series, level: float) -> float:
    """Return where a linearly interpolated curve first reaches a level; NaN if it does not."""
    reached = np.flatnonzero(curve >= level)
    if not len(reached):
        return math.nan
    before, after = max(reached[0] - 1, 0), reached[0]
    return float(np.interp(level, curve.iloc[[before, after]], curve.index[[before, after]]))


def _linearised(over: pd.Series, under: pd.Series) -> pd.Series:
    """Return values whose mean is the ratio of means R and whose spread is R's: R + (x − R y) / mean(y)."""
    ratio = over.mean() / under.mean()
    return ratio + (over - ratio * under) / under.mean()


def _difference_columns(difference: Finding, nothing: float = 0) -> dict[str, object]:
    """Return the columns of a difference; the finding is whether its interval excludes ``nothing``, no difference."""
    if difference.high < nothing:
        word = "lower"
    elif difference.low > nothing:
        word = "higher"
    else:
        word = _NOT_SIGNIFICANT
    return {
        "difference": difference.value,
        "difference_low": difference.low,
        "difference_high": difference.high,
        "finding": word,
    }


def _results(rows: list[dict], *more: str) -> pd.DataFrame:
    frame = pd.DataFrame(rows, columns=[*COLUMNS, *more])
    return frame.assign(finding=frame["finding"].astype(object).where(frame["finding"].notna(), ""))
