"""Means and differences over every committed training seed, for comparing mechanisms.

docs/papers/verdicts.md defines which seeds count: the confirmatory ones if all of them are on record for the models
compared, otherwise the exploratory ones.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import numpy as np
import pandas as pd

from workbench.core.errors import InputError
from workbench.core.intervals import (
    Finding,
    crossed_interval,
    crossed_mean_interval,
    mean_interval,
    welch_interval,
)
from workbench.frames.results import shared
from workbench.studies.seeds import CONFIRMED, CONTINUED

QUANTITY = ["protocol", "kind", "epsilon", "severity", "metric"]
"""Columns of a record of evaluations that name what was measured."""


def answering(rows: pd.DataFrame, models: Sequence[str] | None = None) -> pd.DataFrame:
    """Return the rows of the seeds that answer about these models of one quantity (all in `rows` by default).

    The confirmatory seeds that every model has, those of the second stage where every model has all of them;
    otherwise the exploratory ones.
    """
    models = list(rows["model"].unique()) if models is None else list(models)
    rows = rows[rows["model"].isin(models)]
    confirmed = rows[rows["seed_kind"] == CONFIRMED]
    if set(models) <= set(confirmed["model"]):
        column = "training_seed" if "training_seed" in rows else "seed"
        recorded_seeds = confirmed.groupby("model")[column].agg(set)
        second = {name: set(CONTINUED.get(name.removeprefix("bundled:"), ())) for name in models}
        seeds = set.intersection(*recorded_seeds)
        if not all(second[name] and second[name] <= recorded_seeds[name] for name in models):
            seeds -= set().union(*second.values())
        if seeds:
            return confirmed[confirmed[column].isin(seeds)]
    return rows[rows["seed_kind"] != CONFIRMED]


def answering_each(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the seeds that answer about each model by itself, of `recorded` trainings or evaluations."""
    parts = [answering(model_rows) for _, model_rows in frame.groupby("model", sort=False)]
    rows = frame.loc[np.concatenate([model_rows.index for model_rows in parts])] if parts else frame
    rows.attrs = dict(frame.attrs)
    if "seed" in rows and "records" in rows.attrs:  # of training: each run names its seeds
        answered = {
            (f"bundled:{model}", seed) for model, seed in zip(rows["model"], rows["seed"], strict=True)
        }
        sources = [
            (file, run)
            for file, run in zip(rows.attrs["records"], rows.attrs["provenance"], strict=True)
            if {(run["model"]["spec"], seed) for seed in run["seeds"]} & answered
        ]
        rows.attrs["records"] = shared([file for file, _ in sources])
        rows.attrs["provenance"] = shared([run for _, run in sources])
    return rows


def seed_counts(frame: pd.DataFrame) -> str:
    """Return how many seeds each model of a training record has, as a caption says it: "5", or "3 to 5"."""
    counts = frame.groupby("model")["seed"].nunique()
    return " to ".join(dict.fromkeys(str(end) for end in (counts.min(), counts.max())))


def correct_inputs(rows: pd.DataFrame) -> np.ndarray | None:
    """Return which inputs each seed classified correctly, a row per seed; None where that is not on record."""
    texts = rows.sort_values("training_seed")["outcomes"]
    if texts.isna().any() or rows["training_seed"].duplicated().any():
        return None
    return np.array([[letter == "1" for letter in text] for text in texts])


def _mean_over_seeds(rows: pd.DataFrame) -> Finding:
    """Return the mean of one model's quantity over seeds, its interval crossed with inputs where they are on record.

    Several rows of a seed (kinds of corruption) are averaged first. One seed has no interval.
    """
    correct = correct_inputs(rows)
    if correct is not None:
        return crossed_mean_interval(correct)
    return mean_interval(_by_seed(rows))


def difference_over_seeds(first: pd.DataFrame, second: pd.DataFrame, *, ratio: bool = False) -> Finding:
    """Return the difference (or ratio) of two models' means over seeds: Welch's interval, inputs crossed where known.

    Raises `InputError` where the models were given other inputs.
    """
    correct = correct_inputs(first), correct_inputs(second)
    tables = [table for table in correct if table is not None]
    if ratio or len(tables) < 2:
        return welch_interval(_by_seed(first), _by_seed(second), ratio=ratio)
    if len({table.shape[1] for table in tables}) > 1:
        metric = first["metric"].iloc[0]
        raise InputError(f"{metric} of the two models is of other inputs for each; evaluate both on the same")
    return crossed_interval(tables[0], tables[1])


def seed_means(frame: pd.DataFrame, over: Sequence[str] = ()) -> pd.DataFrame:
    """Return, for each model and quantity, its mean over the seeds that answer, and below it every single seed.

    Args:
        frame: rows of `workbench.studies.records.recorded` of evaluations.
        over: columns of `QUANTITY` that each seed is averaged over first, as the kind of corruption.

    Returns:
        model, attention, the rest of `QUANTITY`, ``value``, ``low`` and ``high`` (none of a single seed), ``seeds``
        (how many the value is the mean of), ``seed_kind``, ``training_seed`` (none of a mean) and ``n`` inputs.
    """
    parts = []
    for about, rows in _quantities(frame, over):
        for model, model_rows in rows.groupby("model", sort=False):
            chosen = answering(model_rows)
            head = about | {
                "model": model,
                "attention": model_rows["attention"].iloc[0],
                "n": model_rows["n"].max(),
            }
            ends = _mean_over_seeds(chosen)
            ends = ends.within(*_bounds(about["metric"]))
            parts.append(head | _ends(ends, chosen))
            for kind, part in model_rows.groupby("seed_kind", sort=False):
                parts += [head | _single(kind, seed, value) for seed, value in _by_seed(part).items()]
    return _table(parts, frame)


def seed_differences(
    frame: pd.DataFrame, baselines: Mapping[str, str], *, ratio: bool = False, over: Sequence[str] = ()
) -> pd.DataFrame:
    """Return, for each model and quantity, its mean over seeds less the baseline's (or divided by it), and each seed's.

    The interval is that of the verdict (`difference_over_seeds`). Seeds that both models have are compared with each
    other below it; with one seed a side there is no interval.

    Args:
        frame: rows of `workbench.studies.records.recorded` of evaluations, baselines among them.
        baselines: model → its baseline ("digits-rpc-sym" → "digits-softmax-sym"); pairs that lack a side are left out.
        ratio: divide by the baseline's mean; the mean is geometric then.
        over: as of `seed_means`.

    Returns:
        Columns as of `seed_means`, ``baseline``, and ``compared`` ("difference" or "ratio").
    """
    parts = []
    for about, rows in _quantities(frame, over):
        for model, baseline in baselines.items():
            pair = [f"bundled:{model}", f"bundled:{baseline}"]
            if not set(pair) <= set(rows["model"]):
                continue
            chosen = answering(rows, pair)
            first, second = (chosen[chosen["model"] == name] for name in pair)
            head = about | {"model": pair[0], "attention": first["attention"].iloc[0], "n": first["n"].max()}
            head |= {"baseline": pair[1], "compared": "ratio" if ratio else "difference"}
            parts.append(head | _ends(difference_over_seeds(first, second, ratio=ratio), first))
            for kind, pair_rows in rows[rows["model"].isin(pair)].groupby("seed_kind", sort=False):
                first_values, second_values = (
                    _by_seed(pair_rows[pair_rows["model"] == name]) for name in pair
                )
                less = (first_values / second_values if ratio else first_values - second_values).dropna()
                parts += [head | _single(kind, seed, value) for seed, value in less.items()]
    return _table(parts, frame, "baseline", "compared")


def conditions(evaluated: pd.DataFrame, trained: pd.DataFrame, budgets: Mapping[str, float]) -> pd.DataFrame:
    """Return accuracies on clean images, under an attack of one budget each, and under each kind of corruption.

    Rows of `workbench.studies.records.recorded`: test accuracies at the end of training are those of ``clean``, and an
    error under a corruption is 1 − accuracy. ``kind`` is that of the corruption.
    """
    clean = trained[(trained["metric"] == "accuracy") & (trained["split"] == "test")]
    clean = clean[clean["epoch"] == clean.groupby("model")["epoch"].transform("max")]
    clean = clean.assign(
        model="bundled:" + clean["model"],
        protocol="clean",
        training_seed=clean["seed"],
        metric="accuracy_top1",
    )
    attacked = evaluated[
        (evaluated["metric"] == "accuracy_top1")
        & (evaluated["epsilon"] == evaluated["protocol"].map(budgets))
    ].assign(kind=pd.NA)
    errors = evaluated[(evaluated["metric"] == "corruption_error") & evaluated["kind"].notna()]
    corrupted = errors.assign(value=1 - errors["value"], metric="accuracy_top1")
    columns = [*evaluated.columns]
    rows = pd.concat(
        [part.reindex(columns=columns) for part in (clean, attacked, corrupted)], ignore_index=True
    )
    rows = rows.astype({name: kind for name, kind in evaluated.dtypes.items() if name in rows})
    rows.attrs = {
        name: shared([*evaluated.attrs.get(name, ()), *trained.attrs.get(name, ())])
        for name in ("records", "provenance")
    }
    return rows


def _quantities(frame: pd.DataFrame, over: Sequence[str]) -> list[tuple[dict, pd.DataFrame]]:
    names = [name for name in QUANTITY if name not in over]
    groups = frame.groupby(names, sort=False, dropna=False)
    return [(dict(rows.iloc[0][names]) | dict.fromkeys(over), rows) for _, rows in groups]


def _by_seed(rows: pd.DataFrame) -> pd.Series:
    values = rows.groupby("training_seed")["value"].mean()
    return pd.Series(values.to_numpy(dtype=float), index=values.index.astype(int))


def _bounds(metric: str) -> tuple[float, float]:
    return (0, float("inf")) if metric.startswith("perplexity") else (0, 1)


def _ends(ends: Finding, rows: pd.DataFrame) -> dict[str, object]:
    return {
        "value": ends.value,
        "low": ends.low,
        "high": ends.high,
        "seeds": ends.n,
        "seed_kind": rows["seed_kind"].iloc[0],
    }


def _single(kind: Hashable, seed: Hashable, value: float) -> dict[str, object]:
    return {"value": value, "seeds": 1, "seed_kind": kind, "training_seed": seed}


def _table(parts: list[dict], frame: pd.DataFrame, *more: str) -> pd.DataFrame:
    columns = ["model", "attention", *more, *QUANTITY, "value", "low", "high", "seeds", "seed_kind",
               "training_seed", "n"]  # fmt: skip
    table = pd.DataFrame(parts, columns=columns)
    types = dict.fromkeys(("epsilon", "value", "low", "high"), "float64")
    table = table.astype(types | dict.fromkeys(("severity", "seeds", "training_seed", "n"), "Int64"))
    table.attrs = dict(frame.attrs)
    return table
