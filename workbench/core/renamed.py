"""Old names in files and what they are called now: one table, which every reader of files goes through.

A file is never rewritten: its format number says that it may hold old names, and its reader hands on today's. What is
written today has today's names and a higher number. Files without a number (CSV and JSON tables, addresses, parameters
of notebooks) are read in either words.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

_SITES = {
    "output": "head_out",
    "before_attn": "resid_pre",
    "update": "attn_out",
    "after_attn": "resid_mid",
    "hidden": "resid_post",
}

RENAMED: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        kind: MappingProxyType(names)
        for kind, names in {
            "site": _SITES,
            "candidate": _SITES,
            "convention": {
                "text": "as_published",
                "code": "as_implemented",
                "teo2024-text": "teo2024_as_published",
                "teo2024-code": "teo2024_as_implemented",
            },
            "preprocessing": {"paper": "saritas2025"},
            "metric": {
                "projection_baseline": "projection_zero_predictor",
                "class_attention_prefix": "class_attention_special",
            },
            "axis": {"without prefix": "without special tokens"},
            "option": {"draws": "null_samples", "prefix": "special_tokens"},
            "capture entry": {"softmax_rows": "rows_sum_to_one"},
            "accumulator entry": {"tally": "counts"},
            "recipe entry": {"pictures": "images"},
            "column of claims": {"reading": "interpretation"},
            "word of claims": {"twin": "baseline", "chance": "null"},
        }.items()
    }
)
"""Kind of name → old name → new name.

``axis``, ``candidate``, ``convention`` and ``metric`` are columns of results; ``option`` is one of an analysis or a
parameter of a notebook; the entries are those of files that no reader sees.
"""
PARAMETERS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "draws": ("null_samples",),
        "twin": ("baseline", "other"),
        "twins": ("others",),
    }
)
"""Old parameters of notebooks, and what they may be called now: a notebook takes one of these."""

_LISTS = {"sites": "site", "candidates": "candidate", "conventions": "convention", "metrics": "metric"}
_VALUES = {"axis", "candidate", "convention", "metric", "preprocessing"}


def new_name(kind: str, name: str) -> str:
    """What ``name`` is called now; the name itself where it has not changed."""
    return RENAMED[kind].get(name, name)


def new_keys(kind: str, table: Mapping[str, Any]) -> dict[str, Any]:
    """The same entries under the names that they have now."""
    return {new_name(kind, name): value for name, value in table.items()}


def new_settings(settings: Any) -> Any:
    """Settings as a file holds them (options of analyses, models or notebooks, in any depth) in today's names.

    Values change where the name of the setting says what they are: ``sites``, ``candidate``, ``convention``,
    ``metric``, ``preprocessing``.
    """
    if isinstance(settings, Mapping):
        return {new_name("option", name): _value(name, value) for name, value in settings.items()}
    return [new_settings(item) for item in settings] if isinstance(settings, list | tuple) else settings


def new_values(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The same settings by the names that they have, their values in today's names."""
    return {name: _value(name, value) for name, value in settings.items()}


def new_expression(text: str) -> str:
    """A measure, options, ``over`` or comparison of ``claims.csv`` in today's names.

    Such as ``projection_error[convention=exact] / projection_zero_predictor`` or ``model / baseline``.
    """

    def renamed(match: re.Match[str]) -> str:
        name, value = match["name"], match["value"]
        if value is None:
            return new_name("word of claims", new_name("metric", name))
        new = new_name("word of claims", new_name("option", name))
        return f"{new}={new_values({new: value})[new]}"

    return re.sub(r"(?P<name>\w+)(?:=(?P<value>[^\s,;|\]]*))?", renamed, text)


def _value(name: str, value: Any) -> Any:
    kind = _LISTS.get(name, name if name in _VALUES else None)
    if kind is None:
        return new_settings(value)
    if isinstance(value, str):
        return ",".join(new_name(kind, part) for part in value.split(","))
    if not isinstance(value, list | tuple):
        return value
    return [new_name(kind, part) if isinstance(part, str) else part for part in value]
