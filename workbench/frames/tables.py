"""The numbers of a result or a figure as a publication-ready table."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd

from workbench.core.intervals import interval_words, mean_interval
from workbench.frames.metric import METRICS, bounds_of
from workbench.frames.tex import tex_symbols, tex_text

# The columns of a result frame that a table reads.
_READ = ("model", "checkpoint", "layer", "metric", "rank", "value")
# Columns that distinguish the quantities of a result of means, followed by the other columns of its table.
_KEYS = (
    "model", "checkpoint", "metric", "axis", "statistic", "convention", "standardize", "candidate", "rank"
)  # fmt: skip
# Parts of a quantity's name in a table with a column for each quantity.
_PARTS = ("axis", "statistic", "convention", "candidate")
_CLAIM = ("place", "claim", "interpretation", "model", "published", "measured", "low", "high", "verdict")
_STUDY = (*_KEYS, "input", "layer", "head", "value", "null", "null_mean", "null_low", "null_high", "z")
# Numbers of places, also where a missing one has made them floats.
_COORDINATES = {
    "layer", "head", "rank", "step", "token", "row", "column", "query", "key", "seed", "epoch", "direction",
    "other_head", "other_direction",
}  # fmt: skip
_MEAN = "mean [95 % CI]"
_INTERVALS = "Brackets: 95 % confidence interval over inputs."
_MAX_ROWS = 40  # a printed table longer than a page is not read
LAYOUTS: dict[tuple[str, ...], Callable[[pd.DataFrame], pd.DataFrame]] = {}
"""Table layouts of other rooms: the columns of a frame → the function that builds its printed table."""
_FORMULA = re.compile(
    r"'*[=+\-@\t\r]"
)  # text that a spreadsheet would run, also after apostrophes that prevent it
_PREVENTED = re.compile(r"'+[=+\-@\t\r]")


def csv_bytes(frame: pd.DataFrame) -> bytes:
    """Format a frame as CSV that no spreadsheet runs: an apostrophe precedes text that begins like a formula.

    Names of models, inputs and tokens may come from strangers. `without_apostrophes` reverses it.
    """
    frame = _of_texts(frame, _FORMULA, lambda text: f"'{text}")
    # a carriage return ends a row unless it is quoted, which it is not of itself
    torn = any("\r" in text for position in range(frame.shape[1]) for text in _texts(frame.iloc[:, position]))
    return frame.to_csv(index=False, quoting=csv.QUOTE_NONNUMERIC if torn else csv.QUOTE_MINIMAL).encode()


def without_apostrophes(frame: pd.DataFrame) -> pd.DataFrame:
    """Remove the apostrophes that `csv_bytes` added."""
    return _of_texts(frame, _PREVENTED, lambda text: text[1:])


def _of_texts(frame: pd.DataFrame, wanted: re.Pattern[str], change: Callable[[str], str]) -> pd.DataFrame:
    """Change the texts of a frame that match a pattern; numbers stay."""
    frame = frame.copy(deep=False)
    for position in range(frame.shape[1]):
        column = frame.iloc[:, position]
        texts = {text: change(text) for text in _texts(column) if wanted.match(text)}
        if texts:
            frame.isetitem(
                position, [texts.get(cell, cell) if isinstance(cell, str) else cell for cell in column]
            )
    return frame


def _texts(column: pd.Series) -> Iterator[str]:
    """Return the texts of a column; for a text column each value once."""
    if pd.api.types.is_numeric_dtype(column):
        return iter(())
    cells = column.unique() if isinstance(column.dtype, pd.StringDtype) else column
    return (cell for cell in cells if isinstance(cell, str))


def summary_table(data: pd.DataFrame) -> pd.DataFrame:
    """Build the printed table of a frame.

    A result frame becomes one row per model, checkpoint and layer and one column per metric: the mean over inputs and
    heads, with its 95 % confidence interval over inputs in brackets. Metrics with a rank show their first, middle and
    last rank. A result of means becomes one row per quantity: mean and interval, and each null distribution. Claims are
    printed with their measured values and verdicts; a frame with the columns of one of `LAYOUTS` by that layout. Any
    other frame is printed as it is up to 40 rows, and above that as count, mean, spread and quartiles of its
    quantities, model by model. Coordinates (layers, heads, tokens, rows) are not averaged.
    """
    if set(_CLAIM) <= set(data.columns):
        return _claims_table(data)
    for columns, table in LAYOUTS.items():
        if set(columns) <= set(data.columns):
            return table(data)
    if not set(_READ) <= set(data.columns):
        if len(data) <= _MAX_ROWS:
            return data.reset_index(drop=True)
        return _described(data)
    if set(_STUDY) <= set(data.columns) and is_overall(data).any():
        return _means_table(data)
    single = [name for name in data["metric"].unique() if name in METRICS and not METRICS[name].averaged]
    frame = data[~data["metric"].isin(single)].reindex(columns=[*_READ, *_PARTS, "standardize", "input"])
    ranked = frame["rank"].notna()
    if ranked.any():
        ranks = sorted(frame.loc[ranked, "rank"].unique())
        kept = {ranks[0], ranks[len(ranks) // 2], ranks[-1]}
        frame = frame[~ranked | frame["rank"].isin(kept)]
    frame = frame.assign(
        quantity=[
            ", ".join(
                [
                    quantity_label(metric),
                    *(str(part) for part in parts if pd.notna(part)),
                    *([] if pd.isna(rank) else [f"rank {rank}"]),
                ]
            )
            for metric, rank, *parts in frame[["metric", "rank", *_PARTS]].itertuples(index=False)
        ]
    )
    keys = [key for key in ("model", "checkpoint", "standardize", "layer") if frame[key].notna().any()]
    if not keys:
        keys = ["metric"]
    groups = frame.groupby([*keys, "quantity"], dropna=False, sort=False)
    text = groups[["metric", "input", "value"]].apply(_mean_over_inputs)
    table = text.unstack("quantity", sort=False).reset_index()
    table.columns = [str(column) for column in table.columns]
    if len(table) > _MAX_ROWS and "layer" in keys:
        return summary_table(data.assign(layer=pd.NA))
    return table.astype(object).where(table.notna(), None)


def _described(data: pd.DataFrame) -> pd.DataFrame:
    """Describe the quantities of a frame by statistics, for each model, checkpoint and metric."""
    quantities = [name for name in data.select_dtypes("number") if _is_quantity(data[name])]
    if not quantities:
        return data.astype("string").describe().reset_index(names="statistic")
    keys = [name for name in ("model", "checkpoint", "metric") if name in data and data[name].notna().any()]
    if not keys:
        return data[quantities].describe().reset_index(names="statistic")
    parts = []
    for labels, rows in data.groupby(keys, dropna=False, sort=False):
        described = rows[quantities].describe().reset_index(names="statistic")
        parts.append(pd.concat([pd.DataFrame([labels] * len(described), columns=keys), described], axis=1))
    return pd.concat(parts, ignore_index=True)


def _is_quantity(column: pd.Series) -> bool:
    """Return whether the mean of a column is meaningful: integers are counts or indices."""
    return column.name == "value" or (
        str(column.name) not in _COORDINATES and pd.api.types.is_float_dtype(column)
    )


def _claims_table(data: pd.DataFrame) -> pd.DataFrame:
    table = data[["place", "claim", "interpretation", "model", "published"]].copy()
    against = data.reindex(columns=["comparison", "threshold"]).astype(object).fillna("").astype(str)
    table["holds where"] = (
        against["comparison"] + " " + against["threshold"].str.replace("..", " and ")
    ).str.strip()
    bounds = [
        re.findall(r"[-\d.e]+", text) if text[-1:] != "%" else []
        for text in against["threshold"].str.replace("..", " ")
    ]
    table["measured [95 % CI]"] = [
        None if pd.isna(value) else interval_words(value, low, high, [float(bound) for bound in levels])
        for (value, low, high), levels in zip(
            data[["measured", "low", "high"]].itertuples(index=False), bounds, strict=True
        )
    ]
    if {"n", "units"} <= set(data):
        table["over"] = [
            f"{n} {units}" if n else None for n, units in data[["n", "units"]].itertuples(index=False)
        ]
    table["verdict"] = data["verdict"]
    return table.astype(object).where(table.notna(), None).reset_index(drop=True)


def pivoted(rows: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Pivot the column ``text`` to a column for each ``quantity``, in order of appearance."""
    quantities = list(dict.fromkeys(rows["quantity"]))
    table = (
        rows.set_index([*keys, "quantity"])["text"].unstack("quantity", sort=False)[quantities].reset_index()
    )
    table.columns = [str(column) for column in table.columns]
    return table.astype(object).where(table.notna(), None)


def with_interval(value: float, low: float, high: float) -> str:
    """Write a value, and its interval, if any."""
    return f"{value:.3g}" if pd.isna(low) or pd.isna(high) else f"{value:.3g} [{low:.3g}, {high:.3g}]"


def is_overall(data: pd.DataFrame) -> pd.Series:
    """Return a mask of the rows that are means over all inputs, layers and heads."""
    return data[["input", "layer", "head"]].isna().all(axis=1)


def _means_table(data: pd.DataFrame) -> pd.DataFrame:
    # a column that results do not have was added to tell their rows apart
    keys = [*_KEYS, *(name for name in data.columns if name not in (*_STUDY, "unit", "version"))]
    inputs = data[data["input"].notna() & data["layer"].isna() & data["head"].isna()]
    inputs = inputs.drop_duplicates([*keys, "input"]).groupby(keys, dropna=False)[
        ["metric", "input", "value"]
    ]
    means = inputs.apply(_mean_over_inputs).rename("mean").reset_index()
    overall = data[is_overall(data)].merge(means, "left", keys)
    places = overall.drop_duplicates(keys)["rank"]
    ranks = sorted(places.dropna().unique())
    if ranks:
        kept = {ranks[0], ranks[len(ranks) // 2], ranks[-1]}
        if places.isna().sum() + places.isin(kept).sum() > _MAX_ROWS:
            kept = {ranks[0]}
        overall = overall[overall["rank"].isna() | overall["rank"].isin(kept)]
    rows: dict[int, dict[str, Any]] = {}
    numbers = overall.groupby(keys, dropna=False, sort=False).ngroup()
    for number, part in zip(numbers, overall.to_dict("records"), strict=True):
        row = rows.setdefault(number, {key: part[key] for key in keys})
        row |= {"metric": quantity_label(part["metric"])}
        row.setdefault(_MEAN, f"{part['value']:.4g}" if pd.isna(part["mean"]) else part["mean"])
        if pd.notna(part["null_mean"]):
            level = "{null_mean:.3g} [{null_low:.3g}, {null_high:.3g}]".format(**part)
            row |= {f"{part['null']} null distribution": level}
            row |= {f"z ({part['null']})": f"{part['z']:.3g}" if pd.notna(part["z"]) else None}
    table = pd.DataFrame([*rows.values()])
    table = table.dropna(axis="columns", how="all").reset_index(drop=True)
    return table.astype(object).where(table.notna(), None)


def quantity_label(metric: Any) -> str:
    """Return the column heading of a metric: its label and unit."""
    entry = METRICS.get(metric)
    if entry is None:
        return str(metric)
    return f"{entry.label} ({entry.unit})" if entry.unit else entry.label


def _mean_over_inputs(rows: pd.DataFrame) -> str:
    """Write the mean of one quantity, and its interval over inputs if it has any."""
    means = rows.groupby("input")["value"].mean().dropna()
    if means.empty:
        return f"{rows['value'].mean():.4g}"
    value, low, high, *_ = mean_interval(means).within(*bounds_of(rows))
    return f"{value:.4g}" if pd.isna(low) else interval_words(value, low, high)


def latex_table(data: pd.DataFrame, caption: str, name: str) -> str:
    """Format `summary_table` as a booktabs table with caption and label, for ``\\input``."""
    table = summary_table(data)
    if _MEAN in table or (
        set(_READ) <= set(data.columns) and table.map(lambda cell: "[" in str(cell)).any(axis=None)
    ):
        caption = f"{caption.strip()} {_INTERVALS}"
    style = table.style.hide(axis="index")
    style.format(precision=4, na_rep="--", escape="latex").format_index(escape="latex", axis="columns")
    text = style.to_latex(hrules=True)
    text = tex_symbols(text)
    text = re.sub(r"(?<![\w.])(-?\d+(?:\.\d+)?)e([+-]\d+)", _power, text)
    return (
        "% needs \\usepackage{booktabs}\n"
        "\\begin{table}\n\\centering\n"
        f"\\caption{{{tex_text(caption.strip())}}}\n\\label{{tab:{name}}}\n{text}\\end{{table}}\n"
    )


def _power(match: re.Match[str]) -> str:
    return rf"${match.group(1)}\times 10^{{{int(match.group(2))}}}$"
