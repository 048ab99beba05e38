"""Trained variants beside their softmax twin: curves on record, what a curve comes to, and what three seeds tell apart.

Every frame of results has one row per model and quantity, `COLUMNS`: the value with its range, and how it differs
from the twin's, with the 95 % interval of that difference.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np
import pandas as pd

from workbench.core.errors import InputError, MissingResource, UnknownName
from workbench.core.intervals import Finding, mean_interval, paired_interval, welch_interval
from workbench.papers.published import published_pairs
from workbench.studies.records import recorded, trained_alike, training_record

COLUMNS = (
    "model", "task", "attention", "quantity", "unit", "value", "low", "high", "n", "over", "difference",
    "difference_low", "difference_high", "finding",
)  # fmt: skip
ALIKE, UNREACHED = "not told apart", "not reached"
_CLEAN = {
    "accuracy_top1": "ImageNet-1K",
    "perplexity": "WikiText-103 test",
    "cross_entropy": "OpenWebText, LAMBADA, WikiText, PTB",
}


def recorded_curves(
    pairs: Iterable[tuple[str, str]],
    variants: Iterable[str] | None = None,
    *,
    seed: int = 0,
    n: int | None = None,
    epochs: int | None = None,
) -> pd.DataFrame:
    """Training records of softmax twins and of models alike but for the attention; rows as `training_record`.

    Args:
        pairs: (twin, inputs): a bundled model, and the bundled inputs of its task, for instance
            ("bundled:digits-vit", "bundled:digits"). ``frame.attrs["twins"]`` is ``{task: twin}``; a twin that is
            not on record is listed in ``frame.attrs["absent"]``, ``{model: reason}``.
        variants: attention as records name it ("rpc-sym", "bilateral+boost"); all on record by default. The twin
            is always there.
        seed: the first seed to take.
        n: how many seeds of each model; all from ``seed`` on by default.
        epochs: the first so many epochs; all by default.

    Raises:
        UnknownName: a variant that no record of these tasks has.
        InputError: other inputs than the task's, no such seed, or no epoch.
        MissingResource: no twin is on record.
    """
    names = {spec.removeprefix("bundled:"): inputs for spec, inputs in pairs}
    absent = recorded(list(names), "training").attrs["absent"]
    twins = [name for name in names if name not in absent]
    if not twins:
        raise MissingResource("; ".join(f"{name}: {reason}" for name, reason in absent.items()))
    about = training_record().drop_duplicates("model").set_index("model")
    for name in twins:
        task = about.loc[name, "task"]
        if names[name] != f"bundled:{task}":
            raise InputError(
                f"{name} was trained and tested on bundled:{task}, and its record holds no other inputs; "
                f"got {names[name]!r}"
            )
    alike = {other for name in twins for other in trained_alike(name)}
    others = about[about.index.isin(alike - set(twins))]
    if variants is not None:
        wanted, known = set(variants), {*others["attention"], *about.loc[twins, "attention"]}
        for variant in sorted(wanted - known):
            raise UnknownName("attention on record for these tasks", variant, known)
        others = others[others["attention"].isin(wanted)]
    frame = training_record([*twins, *others.index])
    seeds = sorted(number for number in frame["seed"].unique() if number >= seed)[:n]
    if not seeds or (epochs is not None and epochs < 1):
        raise InputError(
            f"no such rows on record: seed {seed}, n {n}, epochs {epochs}; "
            f"seeds are {', '.join(map(str, sorted(frame['seed'].unique())))}"
        )
    held = frame.attrs
    frame = frame[frame["seed"].isin(seeds) & (frame["epoch"] <= (math.inf if epochs is None else epochs))]
    frame.attrs = {**held, "absent": absent, "twins": {about.loc[name, "task"]: name for name in twins}}
    return frame


def narrowed(frame: pd.DataFrame, task: str, variants: Iterable[str]) -> pd.DataFrame:
    """The rows of one task and of these variants, where they are on record, with the origin of no other model."""
    chosen = frame[(frame["task"] == task) & frame["attention"].isin(set(variants))]
    specs = {f"bundled:{name}" for name in chosen["model"].unique()}
    held = [
        (file, run)
        for file, run in zip(frame.attrs["records"], frame.attrs["provenance"], strict=True)
        if run["model"]["spec"] in specs
    ]
    chosen.attrs["records"] = [file for file, _ in held]
    chosen.attrs["provenance"] = [run for _, run in held]
    return chosen


def ends_and_speed(frame: pd.DataFrame, threshold: float | Mapping[str, float] = 0.9) -> pd.DataFrame:
    """What each test curve comes to: columns model, task, attention, seed, quantity, value, unit.

    Quantities are ``accuracy``, ``loss`` and (of language) ``perplexity`` at the last epoch; ``mean_loss``, the area
    under the loss curve by the trapezoidal rule over the number of epochs; and ``epochs_to_threshold``, where the
    curve of accuracy, straight between epochs, first comes to that test accuracy (of the task, where they differ),
    NaN where it does not.

    Raises `InputError` for a frame without test accuracy and loss.
    """
    rows = []
    keys = ["model", "task", "attention", "seed"]
    for key, part in frame[frame["split"] == "test"].groupby(keys, sort=False):
        curves = {
            metric: own.set_index("epoch")["value"].sort_index() for metric, own in part.groupby("metric")
        }
        missing = {"accuracy", "loss"} - set(curves)
        if missing:
            raise InputError(f"{key[0]} has no test {' or '.join(sorted(missing))} in this frame")
        least = threshold if isinstance(threshold, float | int) else threshold[key[1]]
        loss, accuracy = curves["loss"], curves["accuracy"]
        width = loss.index[-1] - loss.index[0]
        found = {
            "accuracy": (accuracy.iloc[-1], ""),
            "loss": (loss.iloc[-1], "nats"),
            "mean_loss": (np.trapezoid(loss, loss.index) / width if width else loss.iloc[-1], "nats"),
            "epochs_to_threshold": (_first_reaching(accuracy, least), "epochs"),
        }
        if "perplexity" in curves:
            found["perplexity"] = (curves["perplexity"].iloc[-1], "")
        rows += [
            dict(zip(keys, key, strict=True)) | {"quantity": name, "value": float(value), "unit": unit}
            for name, (value, unit) in found.items()
        ]
    if not rows:
        raise InputError("the frame has no rows of the test split; give the result of recorded_curves")
    return pd.DataFrame(rows, columns=[*keys, "quantity", "value", "unit"])


def beside_twin(results: pd.DataFrame, twins: Mapping[str, str]) -> pd.DataFrame:
    """Median, least and largest value over seeds of every quantity, and the mean difference from the task's twin.

    ``difference`` has Welch's 95 % interval; ``finding`` is "lower" or "higher" where that leaves 0 out, "not told
    apart" where it does not, "not reached" where a seed has no value, and empty for the twin itself. No allowance is
    made for asking of several variants. ``twins`` is ``{task: model}``. Columns are `COLUMNS`.

    Raises `InputError` for a task whose twin is not in the frame.
    """
    rows = []
    for task, own in results.groupby("task", sort=False):
        twin = twins.get(str(task))
        if twin not in set(own["model"]):
            raise InputError(f"task {task} has no twin in this frame; twins are {dict(twins)}")
        values = {key: part.set_index("seed")["value"] for key, part in own.groupby(["model", "quantity"])}
        for row in own.drop_duplicates(["model", "quantity"]).to_dict("records"):
            here = values[row["model"], row["quantity"]]
            reference = values[twin, row["quantity"]]
            apart = {} if row["model"] == twin else _apart(welch_interval(here, reference))
            rows.append(
                {name: row[name] for name in ("model", "task", "attention", "quantity", "unit")}
                | {"value": here.median(), "low": here.min(), "high": here.max(), "n": int(here.count())}
                | {"over": "seeds"}
                | apart
                | ({"finding": UNREACHED} if here.isna().any() else {})
            )
    return _results(rows)


def change_in_training(
    frame: pd.DataFrame, twin: str, metric: str, *, first: int | None = None, split: str = "test"
) -> pd.DataFrame:
    """A metric at the last epoch over that at epoch ``first`` (the frame's first by default), mean over seeds.

    The geometric mean with its 95 % paired t-interval; ``difference`` is that of the mean logarithms from the twin's,
    Welch's interval, given as a ratio: 2 is twice the twin's growth. The quantity is "METRIC, last / first".

    Raises `InputError` for an epoch or metric that a model lacks.
    """
    chosen = frame[(frame["metric"] == metric) & (frame["split"] == split)]
    tables = {}
    for model, own in chosen.groupby("model", sort=False):
        table = own.pivot(index="seed", columns="epoch", values="value").dropna(axis="columns", how="all")
        begin = table.columns.min() if first is None else first
        if begin not in table:
            raise InputError(f"{model} has no {metric} at epoch {begin}; its last is {table.columns.max()}")
        tables[model] = table[begin], table[table.columns.max()]
    if twin not in tables:
        raise InputError(f"the frame has no {split} {metric} of {twin}, which the others are held against")
    growth = {model: last / begin for model, (begin, last) in tables.items()}
    rows = []
    for row in chosen.drop_duplicates("model").to_dict("records"):
        begin, last = tables[row["model"]]
        rows.append(
            {name: row[name] for name in ("model", "task", "attention")}
            | {"quantity": f"{metric}, {last.name} / {begin.name}", "unit": "", "over": "seeds"}
            | paired_interval(last, begin, ratio=True)._asdict()
            | (
                {}
                if row["model"] == twin
                else _apart(welch_interval(growth[row["model"]], growth[twin], ratio=True), nothing=1)
            )
        )
    return _results(rows)


def exact_shares(errors: pd.DataFrame, frame: pd.DataFrame, twin: str) -> pd.DataFrame:
    """Mean exact projection error over its mean baseline, with floor and chance over the same baseline.

    The quantity is ``exact_share``. Its interval is over inputs, that of a ratio of means by linearisation (Cochran
    1977, ch. 6), and the difference from the twin's is taken input by input. Beside `COLUMNS` there are ``floor``
    and, of chance, ``null_low`` and ``null_high``, its 95 % band.

    Args:
        errors: projection-error of several bundled models, convention "exact" with one null, without per_head.
        frame: a training record that tells their attention.
        twin: the model that the others are held against.

    Raises:
        InputError: no exact errors of the twin.
    """
    about = frame.drop_duplicates("model").set_index("model")
    shares: dict[str, tuple[pd.Series, dict[str, float]]] = {}
    for spec, own in errors.groupby("model", sort=False):
        level = own[["layer", "head"]].isna().all(axis=1)
        per_input = own[level & own["input"].notna()].drop_duplicates(["metric", "input"])
        values = per_input.pivot(index="input", columns="metric", values="value")
        whole = own[level & own["input"].isna()].drop_duplicates("metric").set_index("metric")
        exact, baseline = whole.loc["projection_error"], whole.loc["projection_zero_predictor", "value"]
        bounds = {"floor": whole.loc["projection_floor", "value"] / baseline} | {
            name: exact[name] / baseline for name in ("null_low", "null_high")
        }
        shares[str(spec).removeprefix("bundled:")] = (
            _linearised(values["projection_error"], values["projection_zero_predictor"]),
            bounds,
        )
    if twin not in shares:
        raise InputError(f"there is no exact error of {twin}, which the others are held against")
    rows = []
    for name, (values, bounds) in shares.items():
        apart = {} if name == twin else _apart(paired_interval(values, shares[twin][0]))
        row = {"model": name, **about.loc[name, ["task", "attention"]], "quantity": "exact_share", "unit": ""}
        rows.append(row | mean_interval(values)._asdict() | {"over": "inputs"} | apart | bounds)
    return _results(rows, "floor", "null_low", "null_high")


def printed_ends(frame: pd.DataFrame) -> pd.DataFrame:
    """What the papers print of these variants at the end of training, beside their own baselines, on clean data.

    The first pair of `published_pairs` that has the model as its counterpart, which is the nearest to it: its columns
    and ``attention``, one row per model of the frame. Language models of wu2025 have a mean loss of four texts.
    """
    attention = frame.drop_duplicates("model").set_index("model")["attention"]
    pairs = published_pairs()
    clean = (pairs["metric"].map(_CLEAN) == pairs["data"]).fillna(False) & pairs["condition"].isna()
    pairs = pairs[clean & pairs["model"].isin(attention.index)]
    pairs = pairs.drop_duplicates("model").reset_index(drop=True)
    return pairs.assign(attention=pairs["model"].map(attention))


def _first_reaching(curve: pd.Series, level: float) -> float:
    """Where a curve, straight between the places of its index, first comes to a level; NaN where it does not."""
    reached = np.flatnonzero(curve >= level)
    if not len(reached):
        return math.nan
    before, after = max(reached[0] - 1, 0), reached[0]
    return float(np.interp(level, curve.iloc[[before, after]], curve.index[[before, after]]))


def _linearised(over: pd.Series, under: pd.Series) -> pd.Series:
    """Values whose mean is the ratio of means R, and whose spread is that of R: R + (x − R y) / mean(y)."""
    ratio = over.mean() / under.mean()
    return ratio + (over - ratio * under) / under.mean()


def _apart(found: Finding, nothing: float = 0) -> dict[str, object]:
    """Columns of a difference, and whether its interval leaves out ``nothing``, the value of no difference."""
    if found.high < nothing:
        word = "lower"
    elif found.low > nothing:
        word = "higher"
    else:
        word = ALIKE
    return {
        "difference": found.value,
        "difference_low": found.low,
        "difference_high": found.high,
        "finding": word,
    }


def _results(rows: list[dict], *more: str) -> pd.DataFrame:
    frame = pd.DataFrame(rows, columns=[*COLUMNS, *more])
    return frame.assign(finding=frame["finding"].astype(object).where(frame["finding"].notna(), ""))
