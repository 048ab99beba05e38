"""Print tables of evaluations, trainings, costs and effects."""

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
    """Return multiples of the baseline; the baseline's own row has the absolute values."""
    keys = [*(["problem"] if "problem" in data else []), "source", "baseline", "attention"]
    table = data[keys].copy()
    table["quantity"] = [
        f"{_SHORT[metric]} ({condition})" if condition else _SHORT[metric]
        for metric, condition in data[["metric", "condition"]].itertuples(index=False)
    ]
    table["text"] = [
        f"1 = {value:.3g} {unit}".rstrip() if name == baseline else f"{ratio:.3g}"
        for name, baseline, value, unit, ratio in data[
            ["attention", "baseline", "value", "unit", "ratio"]
        ].itertuples(index=False)
    ]
    return pivoted(table, keys)


def _beside_table(data: pd.DataFrame) -> pd.DataFrame:
    """Return a row per variant, a column per quantity: value, range, and a significant difference from the baseline."""
    words = [
        None
        if pd.isna(value)
        else f"{value:.3g} [{low:.3g}, {high:.3g}]"
        + (f" ({finding})" if finding in ("lower", "higher") else "")
        for value, low, high, finding in data[["value", "low", "high", "finding"]].itertuples(index=False)
    ]
    return pivoted(data[["attention", "quantity"]].assign(text=words), ["attention"])


def _training_table(data: pd.DataFrame) -> pd.DataFrame:
    """Return a row per model, a column per split and metric: median and range over seeds at the last epoch."""
    last = data[data["epoch"] == data.groupby(["model", "split", "metric"])["epoch"].transform("max")]
    summary = last.groupby(["model", "attention", "split", "metric"], sort=False)["value"].agg(
        ["median", "min", "max"]
    )
    summary = summary.reset_index()
    summary["quantity"] = summary["split"] + " " + summary["metric"]
    cells = summary[["median", "min", "max"]].itertuples(index=False)
    summary["text"] = [f"{middle:.3g} [{least:.3g}, {most:.3g}]" for middle, least, most in cells]
    return pivoted(summary, ["model", "attention"])


def _evaluation_table(data: pd.DataFrame) -> pd.DataFrame:
    rows = data[data["severity"].isna()]
    if "training_seed" in rows and rows["training_seed"].isna().any():
        rows = rows[rows["training_seed"].isna()]  # the means over seeds
    conditions = [
        ", ".join(
            [
                *(str(part) for part in (protocol, kind) if pd.notna(part) and part not in _NORMS),
                *([f"ε = {epsilon:g}"] if pd.notna(epsilon) else []),
                *([] if metric == "accuracy_top1" else [quantity_label(metric)]),
            ]
        )
        for protocol, kind, epsilon, metric in rows[["protocol", "kind", "epsilon", "metric"]].itertuples(
            index=False
        )
    ]
    # In a comparison with baselines the interval is the ratio's.
    value = "ratio" if "ratio" in rows else "value"
    cells = [with_interval(*row) for row in rows[[value, "low", "high"]].itertuples(index=False)]
    if "seeds" in rows:
        many = [f" ({count} seed{'s' if count > 1 else ''})" for count in rows["seeds"]]
        cells = [text + words for text, words in zip(cells, many, strict=True)]
    names = rows["model"].str.removeprefix("bundled:")
    if "compared" in rows:  # with a baseline
        signs = rows["compared"].map({"difference": " − ", "ratio": " / "})
        names = (names + signs + rows["baseline"].str.removeprefix("bundled:")).where(signs.notna(), names)
    rows = rows.assign(model=names, condition=conditions, text=cells)
    several = rows.groupby(["model", "condition"])[value].agg(["median", "min", "max", "count"])
    for seeds in several[several["count"] > 1].reset_index().to_dict("records"):  # of training
        same = (rows["model"] == seeds["model"]) & (rows["condition"] == seeds["condition"])
        rows.loc[same, "text"] = "{median:.3g} ({min:.3g} to {max:.3g})".format(**seeds)
    wide = rows.drop_duplicates(["model", "condition"]).set_index(["model", "condition"])["text"]
    wide = wide.unstack("condition", sort=False)[list(dict.fromkeys(conditions))]
    if wide.shape[0] < wide.shape[1]:
        wide = wide.T
    table = wide.reset_index()
    table.columns = [str(column) for column in table.columns]
    return table.astype(object).where(table.notna(), None)


def _effects_table(data: pd.DataFrame) -> pd.DataFrame:
    """Return a row per comparison: measurement, verdict, and the range of published values."""
    rows = []
    for _, comparison in data.groupby(["group", "label"], sort=False):
        row = {"models": comparison["group"].iloc[0], "compared": comparison["label"].iloc[0]}
        for here in comparison[comparison["source"] == "here"].to_dict("records"):
            row["verdict"] = here["verdict"]
            if pd.notna(here["value"]):
                row["measured [95 %]"] = with_interval(here["value"], here["low"], here["high"])
        printed = comparison.loc[comparison["source"] == "published", "value"]
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
