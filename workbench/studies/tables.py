"""Printed tables of evaluations, trainings, costs and effects."""

from __future__ import annotations

import pandas as pd

from workbench.frames.tables import LAYOUTS, pivoted, quantity_label, with_interval

_COSTS = ("source", "attention", "baseline", "metric", "condition", "value", "unit", "ratio")
_SHORT = {"parameters": "parameters", "macs": "MACs", "seconds_per_sample": "time", "peak_memory": "memory"}
_EFFECTS = ("group", "label", "source", "value", "low", "high", "verdict")
_EVALUATION = ("model", "protocol", "kind", "epsilon", "severity", "metric", "value", "low", "high")
_NORMS = ("Linf", "L2", "L1", "words")  # what a budget bounds: it needs no saying beside the protocol
_BESIDE = ("attention", "quantity", "value", "low", "high", "difference", "finding")
_TRAINING = ("model", "attention", "seed", "epoch", "split", "metric", "value")


def _costs_table(data: pd.DataFrame) -> pd.DataFrame:
    """Multiples of the baseline; the baseline's own row has what they are multiples of."""
    keys = [*(["problem"] if "problem" in data else []), "source", "baseline", "attention"]
    shown = data[keys].copy()
    shown["quantity"] = [
        f"{_SHORT[metric]} ({condition})" if condition else _SHORT[metric]
        for metric, condition in data[["metric", "condition"]].itertuples(index=False)
    ]
    shown["text"] = [
        f"1 = {value:.3g} {unit}".rstrip() if name == baseline else f"{ratio:.3g}"
        for name, baseline, value, unit, ratio in data[
            ["attention", "baseline", "value", "unit", "ratio"]
        ].itertuples(index=False)
    ]
    return pivoted(shown, keys)


def _beside_table(data: pd.DataFrame) -> pd.DataFrame:
    """A row per variant, a column per quantity: value, its range, and a significant difference from the baseline."""
    words = [
        None
        if pd.isna(value)
        else f"{value:.3g} [{low:.3g}, {high:.3g}]"
        + (f" ({finding})" if finding in ("lower", "higher") else "")
        for value, low, high, finding in data[["value", "low", "high", "finding"]].itertuples(index=False)
    ]
    return pivoted(data[["attention", "quantity"]].assign(text=words), ["attention"])


def _training_table(data: pd.DataFrame) -> pd.DataFrame:
    """A row per model, a column per split and metric: at the last epoch the median, least and most of the seeds."""
    last = data[data["epoch"] == data.groupby(["model", "split", "metric"])["epoch"].transform("max")]
    shown = last.groupby(["model", "attention", "split", "metric"], sort=False)["value"].agg(
        ["median", "min", "max"]
    )
    shown = shown.reset_index()
    shown["quantity"] = shown["split"] + " " + shown["metric"]
    cells = shown[["median", "min", "max"]].itertuples(index=False)
    shown["text"] = [f"{middle:.3g} [{least:.3g}, {most:.3g}]" for middle, least, most in cells]
    return pivoted(shown, ["model", "attention"])


def _evaluation_table(data: pd.DataFrame) -> pd.DataFrame:
    shown = data[data["severity"].isna()]
    if "training_seed" in shown and shown["training_seed"].isna().any():
        shown = shown[shown["training_seed"].isna()]  # the means over seeds
    conditions = [
        ", ".join(
            [
                *(str(part) for part in (protocol, kind) if pd.notna(part) and part not in _NORMS),
                *([f"ε = {epsilon:g}"] if pd.notna(epsilon) else []),
                *([] if metric == "accuracy_top1" else [quantity_label(metric)]),
            ]
        )
        for protocol, kind, epsilon, metric in shown[["protocol", "kind", "epsilon", "metric"]].itertuples(
            index=False
        )
    ]
    # In a comparison with baselines the interval is the ratio's.
    value = "ratio" if "ratio" in shown else "value"
    cells = [with_interval(*row) for row in shown[[value, "low", "high"]].itertuples(index=False)]
    if "seeds" in shown:
        many = [f" ({count} seed{'s'[: count - 1]})" for count in shown["seeds"]]
        cells = [text + words for text, words in zip(cells, many, strict=True)]
    names = shown["model"].str.removeprefix("bundled:")
    if "compared" in shown:  # with a baseline
        signs = shown["compared"].map({"difference": " − ", "ratio": " / "})
        names = (names + signs + shown["baseline"].str.removeprefix("bundled:")).where(signs.notna(), names)
    shown = shown.assign(model=names, condition=conditions, text=cells)
    several = shown.groupby(["model", "condition"])[value].agg(["median", "min", "max", "count"])
    for seeds in several[several["count"] > 1].reset_index().to_dict("records"):  # of training
        same = (shown["model"] == seeds["model"]) & (shown["condition"] == seeds["condition"])
        shown.loc[same, "text"] = "{median:.3g} ({min:.3g} to {max:.3g})".format(**seeds)
    wide = shown.drop_duplicates(["model", "condition"]).set_index(["model", "condition"])["text"]
    wide = wide.unstack("condition", sort=False)[list(dict.fromkeys(conditions))]
    if wide.shape[0] < wide.shape[1]:
        wide = wide.T
    table = wide.reset_index()
    table.columns = [str(column) for column in table.columns]
    return table.astype(object).where(table.notna(), None)


def _effects_table(data: pd.DataFrame) -> pd.DataFrame:
    """A row per comparison: measured, verdict, and the range of what is published."""
    rows = []
    for _, own in data.groupby(["group", "label"], sort=False):
        row = {"models": own["group"].iloc[0], "compared": own["label"].iloc[0]}
        for here in own[own["source"] == "here"].to_dict("records"):
            row["verdict"] = here["verdict"]
            if pd.notna(here["value"]):
                row["measured [95 %]"] = with_interval(here["value"], here["low"], here["high"])
        printed = own.loc[own["source"] == "published", "value"]
        if len(printed):
            ends = dict.fromkeys(f"{end:.3g}" for end in (printed.min(), printed.max()))
            row["published"] = " to ".join(ends)
        rows.append(row)
    columns = ["models", "compared", "measured [95 %]", "published", "verdict"]
    table = pd.DataFrame(rows, columns=columns).astype(object)
    return table.where(table.notna(), None)


LAYOUTS |= {
    _COSTS: _costs_table,
    _EFFECTS: _effects_table,
    _EVALUATION: _evaluation_table,
    _BESIDE: _beside_table,
    _TRAINING: _training_table,
}
