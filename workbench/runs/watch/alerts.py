"""Alerts of a watch: values of a logging that meet a condition, and a logging's means for a tracker's dashboard."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from workbench.analyses.registry import ANALYSES
from workbench.core.errors import InputError, UnknownName
from workbench.core.options import checked
from workbench.frames.metric import METRICS

_COMPARISONS = {"<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt}
_CONDITION = re.compile(r"\s*(<=|>=|<|>)\s*(\S+)\s*")
_KINDS = ("source", "axis", "statistic", "convention", "standardize", "candidate", "rank")
"""Columns that distinguish values of one metric, layer and head."""


@dataclass(frozen=True)
class Condition:
    """A comparison with a number, as in "< 0.05"."""

    comparison: str
    threshold: float

    @classmethod
    def parse(cls, metric: str, text: object) -> Condition:
        """Return the condition of a text; raises `InputError` for anything but a comparison and a finite number."""
        match = _CONDITION.fullmatch(text) if isinstance(text, str) else None
        try:
            threshold = math.nan if match is None else float(match[2])
        except ValueError:
            threshold = math.nan
        if match is None or not math.isfinite(threshold):
            raise InputError(
                f"alert={{{metric!r}: {text!r}}}: give a comparison ({', '.join(_COMPARISONS)}) and a number, "
                'as in "< 0.05"'
            )
        return cls(match[1], threshold)

    def __str__(self) -> str:
        return f"{self.comparison} {self.threshold:g}"

    def met(self, value: float) -> bool:
        """Return whether a value meets the condition; NaN never does."""
        return _COMPARISONS[self.comparison](value, self.threshold)


@dataclass(frozen=True)
class Alert:
    """A value that meets the condition of a watch: the mean over the inputs in one layer and head."""

    metric: str
    condition: str
    step: int
    where: str
    """Layer, head and kind, "layer 2, head 1"."""
    value: float

    def __str__(self) -> str:
        return f"{self.metric} {self.condition} in {self.where} ({self.value:.4g})"


def conditions(alert: Mapping[str, str]) -> dict[str, Condition]:
    """Return the conditions of an alert by metric. Raises `InputError` for another condition."""
    return {metric: Condition.parse(metric, text) for metric, text in alert.items()}


def analyses_with(metrics: Sequence[str], watched: Sequence[str], argument: str = "alert") -> list[str]:
    """Return the analyses of metrics that no watched analysis has, the first of each.

    Raises `UnknownName` for a metric that does not exist, `InputError` for one that no analysis measures.
    """
    ANALYSES.load()
    added: list[str] = []
    for metric in metrics:
        if metric not in METRICS:
            raise UnknownName("metric", metric, METRICS)
        names = [name for name in ANALYSES if metric in {part.name for part in ANALYSES[name].metrics}]
        if not names:
            raise InputError(
                f"{argument}: no analysis measures {metric!r}; `workbench metrics` lists which do"
            )
        if not {*names} & {*watched, *added}:
            added.append(names[0])
    return added


def means(frame: pd.DataFrame, heads: bool = True) -> dict[tuple[str, str], float]:
    """Return the mean over inputs of every metric, by (metric, where); with ``heads=False`` over heads as well."""
    columns = ["metric", "layer", *["head"] * heads, *(name for name in _KINDS if frame[name].notna().any())]
    grouped = frame.groupby(columns, dropna=False, sort=False)["value"].mean()
    places = [dict(zip(columns, key, strict=True)) for key in grouped.index]
    return {
        (labels.pop("metric"), _words(labels)): float(value)
        for labels, value in zip(places, grouped, strict=True)
    }


@checked
def scalars(frame: pd.DataFrame) -> dict[str, float]:
    """Return the mean over inputs and heads of every metric and layer: {"attention_sink/layer 2": 0.4}.

    For a tracker: ``workbench.watch(…, on_rows=lambda rows, step: wandb.log(scalars(rows), step))``.

    Raises `InputError` for a frame without the columns of an analysis.
    """
    if missing := [name for name in ("metric", "layer", "value", *_KINDS) if name not in frame]:
        raise InputError(f"the frame has no column {', '.join(missing)}; give the rows of an analysis")
    return {f"{metric}/{where}": value for (metric, where), value in means(frame, heads=False).items()}


def alerts_of(frame: pd.DataFrame, wanted: Mapping[str, Condition], step: int) -> list[Alert]:
    """Return the values of a logging that meet a condition."""
    rows = frame[frame["metric"].isin([*wanted])]
    if rows.empty:
        return []
    return [
        Alert(metric, str(wanted[metric]), step, where, value)
        for (metric, where), value in means(rows).items()
        if wanted[metric].met(value)
    ]


def _words(kind: Mapping[str, object]) -> str:
    """Return a row's labels in words, such as "layer 2, head 1"."""
    values = {name: value for name, value in kind.items() if pd.notna(value)}
    return (
        ", ".join(
            f"{name} {value}" if name in ("layer", "head", "rank") else str(value)
            for name, value in values.items()
        )
        or "all layers"
    )
