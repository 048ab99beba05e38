"""Check the arguments of figures where they arrive, before anything is drawn."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from numbers import Integral, Real
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from workbench.core.errors import InputError, UnknownName
from workbench.core.notebook_html import shortened


def check_arguments(**values: Any) -> None:
    """Raise `InputError` for the first value that its argument does not accept, with the values that it does."""
    for name, value in values.items():
        accepts, words = (_ARGUMENTS | SCALES)[name]
        if not accepts(value):
            raise InputError(f"{name} is {shortened(repr(value))}; give {words}")


def check_frame(frame: Any, *needs: str, **columns: Any) -> None:
    """Raise `InputError` unless this is a frame with these columns, and with those that arguments name."""
    if not isinstance(frame, pd.DataFrame):
        raise InputError(
            f"frame is {shortened(repr(frame))}; give a result frame, as `workbench.analyze` returns"
        )
    if not frame.columns.is_unique:
        twice = frame.columns[frame.columns.duplicated()][0]
        raise InputError(f"the frame has several columns {twice!r}; drop or rename one of them")
    if missing := [column for column in needs if column not in frame]:
        raise InputError(
            f"the frame has no column {', '.join(missing)}; give the result of `workbench.analyze`"
        )
    for argument, column in columns.items():
        if column is not None and not (isinstance(column, str) and column in frame):
            raise UnknownName(f"column for {argument}", column, map(str, frame.columns))


def check_numbers(values: pd.Series) -> None:
    """Raise `InputError` for a column of a frame that holds anything but numbers."""
    try:
        values.dropna().astype(float)
    except (TypeError, ValueError):
        raise InputError(
            f"column {values.name!r} holds {values.dropna().iloc[0]!r}, but takes numbers; choose another column"
        ) from None


def _is_number(value: Any, low: float = -math.inf, high: float = math.inf) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and low <= value <= high


def _is_count(value: Any) -> bool:
    return isinstance(value, Integral) and _is_number(value, 1)


def _are_ends(value: Any) -> bool:
    ends = [end for end in value if _is_number(end) and math.isfinite(end)] if np.iterable(value) else []
    return len(ends) == 2 and ends[0] != ends[1]


def _is_truth(value: Any) -> bool:
    return isinstance(value, (bool, np.bool))


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_mapping(value: Any) -> bool:
    return isinstance(value, Mapping)


def _are(value: Any, *kinds: Any) -> bool:
    return (
        isinstance(value, Iterable) and not _is_text(value) and all(isinstance(item, kinds) for item in value)
    )


def _name_panels(value: Any) -> bool:
    return _is_truth(value) or _are(value, str, list, tuple)


Check = tuple[Callable[[Any], Any], str]
"""Whether a value is accepted, and the accepted values in words."""


def _optional(accepts: Callable[[Any], Any], words: str) -> Check:
    return lambda value: value is None or accepts(value), words


def _by_panel(accepts: Callable[[Any], Any], words: str) -> Check:
    """Accept a value, None, or a mapping of these by metric or panel."""

    def check(value: Any) -> bool:
        values = value.values() if isinstance(value, Mapping) else [value]
        return all(item is None or accepts(item) for item in values)

    return check, f"{words}, or a mapping by metric or panel"


_ARGUMENTS: dict[str, Check] = {
    "absent": (_is_mapping, "a mapping of models to reasons"),
    "chosen": _optional(lambda value: np.iterable(value) and len([*value]) == 2, "a pair (layer, head)"),
    "capture": (lambda value: hasattr(value, "tokens"), "what `workbench.capture` returns"),
    "columns": _optional(_is_count, "a whole number of panels in a row, from 1 up"),
    "empty": (_is_text, "the words of a panel without data"),
    "estimator": (lambda value: value in ("mean", "median"), "'mean' or 'median'"),
    "figures": (lambda value: value and _are(value, go.Figure), "a list of one or more plotly figures"),
    "figure": (lambda value: isinstance(value, go.Figure), "a plotly Figure"),
    "font": _optional(lambda value: _is_text(value) and value.strip(), "'venue' or the name of a font"),
    "formats": _optional(lambda value: _is_text(value) or _are(value, str), "a list such as ['pdf', 'svg']"),
    "height": _optional(lambda value: _is_number(value, 20, 10_000), "pixels (1/96 in) from 20 to 10000"),
    "labels": (
        lambda value: value in ("auto", "ends", "key", "bar", "none"),
        "'auto', 'ends', 'key', 'bar' or 'none'",
    ),
    "layers": _optional(_is_count, "a whole number of layers, from 1 up"),
    "colors": _optional(_is_mapping, "a mapping of names in the key to colours"),
    "letters": _optional(
        lambda value: _is_text(value) and re.fullmatch(r"[^\w<&]{0,2}[A-Za-z][^\w<&]{0,2}|", value),
        "the first letter, as 'a', 'A' or '(a)', or None",
    ),
    "metrics": (lambda value: _are(value, str), "each metric's name as an argument: .metric('one', 'two')"),
    "most": (_is_count, "a whole number of models on a page, from 1 up"),
    "names": (_is_mapping, "a mapping of values or metrics to their words"),
    "out": _optional(lambda value: isinstance(value, (str, os.PathLike)), "a folder"),
    "parameters": _optional(_is_mapping, "a mapping of names to values"),
    "records": _optional(lambda value: _are(value, str, os.PathLike), "a list of files"),
    "x": (lambda value: _are(value, str) and len([*value]), "with y a list or mapping of metrics, a panel for each"),
}  # fmt: skip
SCALES: dict[str, Check] = {
    "x_log": (lambda value: value == 2 or _name_panels(value), "True, False, 2 for ticks at its powers, or panels"),
    "x_title": _by_panel(_is_text, "a text"),
    "x_free": (_name_panels, "True, False, or a list of metrics"),
    "x_range": _by_panel(_are_ends, "two finite numbers (low, high)"),
    "x_same": (_name_panels, "True, False, or lists of panels"),
    "row": (lambda value: _is_number(value, 0.5, 1000), "the height of a row in letters, from 0.5 up"),
    "y_log": _by_panel(_is_truth, "True or False"),
    "y_title": _by_panel(_is_text, "a text"),
    "y_range": _by_panel(_are_ends, "two finite numbers (low, high)"),
    "y_zero": _by_panel(_is_truth, "True or False"),
    "y_free": (_name_panels, "True, False, or a list of metrics"),
    "y_cut": _by_panel(_is_truth, "True or False"),
}  # fmt: skip
"""The scales of a `Plot`."""
