"""The contents of a figure: rows of one quantity, their estimate, its spread, its null, and each in words.

Rows are sampled over inputs, heads and seeds. A frame holds single values (a row for each input and head), means (a
row per layer, per input and over everything), or statistics (``mean``, ``low``, ``q25`` … in the column
``statistic``); all of them give the same curve, and absent statistics are not drawn.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pandas as pd

from workbench.core.errors import InputError
from workbench.core.intervals import mean_interval
from workbench.figures.frames import rows_of
from workbench.figures.words import UNITS
from workbench.frames.metric import bounds_of
from workbench.frames.results import provenance_of

FEW = 10
"""Fewer units than this have a line each, in place of an interquartile range."""
# Of a metric measured in several ways this one is drawn, unless the figure tells them apart or keeps another.
_USUAL = {"convention": "exact", "candidate": "resid_post"}
_PLAIN = ("axis", "standardize")  # plain rows before those with something left out or standardised
_WAYS = (
    "model", "checkpoint", "axis", "statistic", "convention", "standardize", "candidate", "rank", "noise",
    "severity", "protocol", "epsilon", "split", "attention",
)  # fmt: skip
_OF_SERIES = ("model", "checkpoint", "standardize")  # these may be empty
_ENDS = ["null_mean", "null_low", "null_high"]
_STATISTICS = ("mean", "std", "low", "high", "min", "max", "q25", "median", "q75")
_QUANTILES = {0: "min", 25: "q25", 50: "median", 75: "q75", 100: "max"}
Level = Literal["layer", "input", "overall"]
NULL_COLUMNS = ["null", "null_mean", "null_low", "null_high", "z"]


def quantity(
    frame: pd.DataFrame, metric: str, kept: Mapping[str, Any], columns: Sequence[str]
) -> pd.DataFrame:
    """The rows of one metric measured in one way, beside the columns that the figure tells apart.

    Raises:
        InputError: no such rows, or several ways of measuring that neither ``kept`` nor ``apart`` names.
    """
    needed = [name for name in columns if name not in kept and name not in _OF_SERIES]
    rows = rows_of(frame, metric, needs=needed)
    for column, wanted in kept.items():
        if column not in rows:
            raise InputError(f"the frame has no column {column!r}; its columns: {', '.join(frame.columns)}")
        several = isinstance(wanted, (list, tuple, set, range))
        matches = (
            rows[column].isna() if wanted is None else rows[column].isin(wanted if several else [wanted])
        )
        if not matches.any():
            values = ", ".join(map(str, rows[column].dropna().unique())) or "none"
            raise InputError(f"no {metric} with {column} {wanted!r}; there is {values}")
        rows = rows[matches.fillna(False)]
    free = [name for name in _WAYS if name in rows and name not in kept and name not in columns]
    for column in free:
        usual = _USUAL.get(column)
        if usual is not None and (rows[column] == usual).any():
            rows = rows[rows[column] == usual]
        elif column in _PLAIN and rows[column].isna().any():
            rows = rows[rows[column].isna()]
    if _are_statistics(rows):
        free = [name for name in free if name != "statistic"]
    groups = [rows] if not columns else [group for _, group in rows.groupby([*columns], dropna=False)]
    for column in free:
        if any(group[column].nunique(dropna=False) > 1 for group in groups):
            choices = ", ".join(map(str, rows[column].dropna().unique()[:6]))
            raise InputError(
                f"the frame holds {metric} with several values of {column} ({choices}): "
                f"keep one with .where({column}=…), or tell them apart with color={column!r} or panel={column!r}"
            )
    return rows


def titled(
    rows: pd.DataFrame, quantities: Mapping[str, Mapping[str, Any]], column: str = "metric"
) -> pd.DataFrame:
    """Rows of several quantities in their order, each called as in the mapping: title → {column: value, None: empty}.

    The other columns that chose them are emptied, since the title says what they said.
    """
    parts = []
    for title, where in quantities.items():
        chosen = pd.Series(True, index=rows.index)
        for name, value in where.items():
            chosen &= rows[name].isna() if value is None else rows[name].eq(value).fillna(False)
        parts.append(rows[chosen].assign(**{column: title}))
    emptied = {name for where in quantities.values() for name in where} - {"metric", column}
    return pd.concat(parts).assign(**dict.fromkeys(emptied, pd.NA))


def _are_statistics(rows: pd.DataFrame) -> bool:
    """Whether the rows are statistics over inputs, as of a frame without rows per input."""
    named = "statistic" in rows and rows["statistic"].isin(["mean", "median"]).any()
    return bool(named and rows["statistic"].isin(_STATISTICS).all() and rows["statistic"].nunique() > 1)


def at_level(rows: pd.DataFrame, level: Level) -> pd.DataFrame:
    """The rows that average over everything but `level`: layers and heads, inputs and heads, or all three.

    Raises `InputError` where there are none, as in the result of an analysis run with ``per_head``: the null
    distribution of a mean comes from means of null samples, which single heads no longer hold.
    """
    chosen = pd.Series(True, index=rows.index)
    for column in ("input", "layer", "head"):
        filled = rows[column].notna() if column in rows else pd.Series(False, index=rows.index)
        chosen &= filled if column == level else ~filled
    if not chosen.any():
        wanted = "rows over all inputs and layers" if level == "overall" else f"a row per {level}"
        raise InputError(
            f"the frame holds no {wanted}; give the result of `workbench.analyze` without per_head"
        )
    return rows[chosen]


def values_once(rows: pd.DataFrame) -> pd.DataFrame:
    """Each value once: a value with two null distributions stands in two rows, which differ in nothing else."""
    return rows.drop_duplicates([name for name in rows.columns if name not in NULL_COLUMNS])


def null_of_means(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows by layer with the null distribution of only the means; that of single inputs is wider."""
    rows = rows[rows["layer"].notna()]
    ends = [name for name in NULL_COLUMNS if name in rows]
    return rows.assign(**{name: rows[name].where(rows["input"].isna()) for name in ends})


def means_and_heads(rows: pd.DataFrame) -> pd.DataFrame:
    """The means by layer with their null distribution, and beside them the single heads of a frame that has both."""
    if rows["input"].notna().any() and rows["head"].notna().any():
        by_layer = rows["layer"].notna() & (rows["input"].isna() == rows["head"].isna())
        at_level(rows, "layer")  # refuses a frame of only single heads
        return null_of_means(rows[by_layer])
    return at_level(rows, "layer")


def within_bounds(ends: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """Clip the ends of intervals and bands at each place to the bounds of the rows' metric (`bounds_of`)."""
    columns = [name for name in ("low", "high", "null_low", "null_high") if name in ends]
    return ends.assign(**{name: ends[name].astype(float).clip(*bounds_of(rows)) for name in columns})


@dataclass(frozen=True)
class Sample:
    """Rows of one series at the places ``by``, and the units they are sampled over."""

    rows: pd.DataFrame
    by: tuple[str, ...]
    units: tuple[str, ...]
    statistics: bool
    pooled: Mapping[str, int] = field(default_factory=dict)
    """How many of each unit statistics are over, beside the inputs."""

    @classmethod
    def means(cls, rows: pd.DataFrame, by: Sequence[str]) -> Sample:
        """The means that the frame holds at each place, with the null of the mean; else `of`."""
        units = [name for name in UNITS if name in rows and name not in by]
        overall = rows[rows[units].isna().all(axis=1)]
        if overall.empty:
            return cls.of(rows, by)
        return cls(values_once(overall), tuple(by), (), _are_statistics(overall))

    @classmethod
    def of(cls, rows: pd.DataFrame, by: Sequence[str], over: str | None = None) -> Sample:
        """The sampled rows at each place of ``by``, single values before means, each value once.

        ``over`` chooses the rows that are sampled over this unit, where a frame holds means over several.
        """
        at = rows[rows[[*by]].notna().all(axis=1)]
        units = [name for name in UNITS if name in rows and name not in by]
        varying = [name for name in units if at[name].nunique(dropna=False) > 1]
        together = at[at[varying].isna().all(axis=1)]
        if _are_statistics(together):  # of all heads; those of single heads stand beside them
            pooled = {name: at[name].nunique() for name in varying}
            return cls(values_once(together), tuple(by), (), statistics=True, pooled=pooled)
        for unit in [over] if over in units else units:
            sampled = at[at[unit].notna()]
            if len(sampled):
                used_units = tuple(name for name in units if sampled[name].notna().any())
                return cls(values_once(sampled), tuple(by), used_units, statistics=False)
        overall = at[at[units].isna().all(axis=1)] if units else at
        return cls(values_once(overall), tuple(by), (), _are_statistics(overall))

    def estimate(self, how: str) -> pd.DataFrame:
        """Columns ``value`` and ``n`` at each place: the mean or median of all values."""
        if self.statistics:
            return self._statistic(how).rename("value").reset_index().assign(n=0)
        groups = self.rows.groupby([*self.by], sort=True)["value"]
        return groups.agg([how, "count"]).set_axis(["value", "n"], axis=1).reset_index()

    def interval(self, over: str) -> pd.DataFrame:
        """Columns ``low`` and ``high`` at each place: the 95 % t-interval over a unit's means; empty without them."""
        if self.statistics:
            ends = {name: self._statistic(name) for name in ("low", "high")}
            return within_bounds(pd.DataFrame(ends).dropna().reset_index(), self.rows)
        if over not in self.units:
            return pd.DataFrame(columns=[*self.by, "low", "high"])
        means = self.rows.groupby([*self.by, over], sort=True)["value"].mean().reset_index()
        places = means.groupby([*self.by])["value"]
        intervals = [(*position, *mean_interval(unit_means)[1:3]) for position, unit_means in places]
        return within_bounds(pd.DataFrame(intervals, columns=[*self.by, "low", "high"]).dropna(), self.rows)

    def quantiles(self, ends: tuple[float, float], over: str | None) -> pd.DataFrame:
        """Columns ``low`` and ``high``: quantiles (in per cent) of all values, or of a unit's means."""
        if self.statistics:
            columns = [self._statistic(_QUANTILES.get(end, str(end))) for end in ends]
            return pd.concat(columns, axis=1, keys=["low", "high"]).dropna().reset_index()
        if not self.units or (over is not None and over not in self.units):
            return pd.DataFrame(columns=[*self.by, "low", "high"])
        values = self.rows.set_index([*self.by])["value"]
        if over is not None:
            values = self.rows.groupby([*self.by, over])["value"].mean()
        groups = values.groupby(level=[*self.by])
        columns = {name: groups.quantile(end / 100) for name, end in zip(("low", "high"), ends, strict=True)}
        return pd.DataFrame(columns).reset_index()

    def few(self, over: str | None, inputs: int | None) -> bool:
        """Whether a place has fewer than `FEW` values, or means of a unit, which have no quartiles to speak of."""
        if self.statistics:
            return inputs is not None and inputs * math.prod(self.pooled.values()) < FEW
        if over is not None:
            return over in self.units and self.rows[over].nunique() < FEW
        return bool(self.units) and bool((self.rows.groupby([*self.by]).size() < FEW).all())

    def singles(self, over: str | None) -> list[pd.DataFrame]:
        """Columns of the places and ``value``, a frame for each unit: what quantiles of few units would be taken of."""
        if self.statistics:
            return []
        units = [*self.units] if over is None else [over]
        means = self.rows.groupby([*units, *self.by], sort=True)["value"].mean().reset_index()
        return [unit_rows for _, unit_rows in means.groupby(units, sort=True)]

    def _statistic(self, name: str) -> pd.Series:
        selected = self.rows[self.rows["statistic"] == name]
        return selected.groupby([*self.by], sort=True)["value"].mean()

    def null(self, kind: str | None, rows: pd.DataFrame, how: str = "mean") -> pd.DataFrame:
        """``null_mean``, ``null_low`` and ``null_high`` under one kind of null at each place, over the units."""
        null_rows = self.null_sample(kind, rows).rows.reindex(columns=[*self.by, *_ENDS])
        return within_bounds(null_rows.groupby([*self.by], sort=True).agg(how).reset_index(), self.rows)

    def null_sample(self, kind: str | None, rows: pd.DataFrame) -> Sample:
        """The rows whose null is drawn: sampled like these where these are, else those of the mean where there are."""
        of_kind = (
            rows[rows["null"].isna() if kind is None else rows["null"] == kind] if "null" in rows else rows
        )
        with_null = of_kind[of_kind.reindex(columns=_ENDS).notna().any(axis=1)]
        return Sample.of(with_null, self.by) if self.units else Sample.means(with_null, self.by)

    @property
    def bounded(self) -> bool:
        """Return whether a null of these rows has ends, not only its mean."""
        return "null_low" in self.rows and bool(self.rows["null_low"].notna().any())

    def counts(self, inputs: int | None = None) -> str:
        """Return the units of sampling, with numbers: "25 inputs × 12 heads".

        Of a frame of means or statistics ``inputs`` says how many inputs they come from.
        """
        numbers = {unit: self.rows[unit].nunique() for unit in self.units} | dict(self.pooled)
        if inputs is not None and "input" not in (*self.units, *self.by):
            numbers = {"input": inputs} | numbers
        counts = {unit: n for unit, n in numbers.items() if n > 1 or unit == "input"}
        return " × ".join(f"{n} {UNITS[unit] if n != 1 else unit}" for unit, n in counts.items()) or "inputs"


def input_count(frame: pd.DataFrame) -> int | None:
    """Return the number of inputs of a frame's numbers, if its provenance has it and all runs agree."""
    counts = {(run.get("inputs") or {}).get("n") for run in provenance_of(frame)}
    return counts.pop() if len(counts) == 1 else None


def null_kinds(rows: pd.DataFrame) -> list[str | None]:
    """The kinds of null that the rows hold; None for one without a name."""
    with_null = rows[rows.reindex(columns=_ENDS).notna().any(axis=1)]
    kinds = (
        with_null["null"].astype(object)
        if "null" in rows
        else pd.Series(None, index=with_null.index, dtype=object)
    )
    return [None if pd.isna(kind) else str(kind) for kind in dict.fromkeys(kinds)]
