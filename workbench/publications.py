"""What the papers print: their numbers and their claims, transcribed into ``data/published``."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import pandas as pd

from workbench import catalog, paths
from workbench.errors import InputError, UnknownName
from workbench.metrics import METRICS

COLUMNS = (
    "paper", "table", "row", "model", "metric", "statistic", "axis", "convention", "candidate", "standardize",
    "value", "spread", "unit", "note",
)  # fmt: skip
CLAIM_COLUMNS = (
    "paper", "place", "claim", "reading", "setting", "analysis", "options", "measure", "over", "comparison",
    "threshold", "published", "needs",
)  # fmt: skip
PAPERS = ("teo2024", "saritas2025")
PRINTED_ONLY = {
    "eigenvalue_profile_change": "change of an eigenvalue_profile where the keys are left as they are",
    "allclose_tests": "how many heads were tested for allclose",
    "norm_ratio": "mean ‖h‖² over mean ‖φ(q)‖²",
    "cross_term": "Σ_mn u_m·u_n h_m h_n of one output, in an example",
}
"""Quantities that a paper prints and no analysis puts out under a name of its own."""

_UNITS = {"": 1.0, "1e-6": 1e-6, "%": 0.01}


def published(
    paper: str | None = None, table: str | None = None, metric: str | None = None, model: str | None = None
) -> pd.DataFrame:
    """Numbers of the papers' tables and texts, one row per printed number.

    ``paper`` is a key such as "saritas2025", ``table`` a table's number or another place ("Figure 3"), ``metric``
    a name, ``model`` a catalog name or spec; each None keeps all. Columns are `COLUMNS` and ``spec``, what a
    result frame's column ``model`` holds for that model; ``row`` is the model's name as printed. ``value`` and
    ``spread`` (a standard deviation) are in the units of result frames, so "147 ± 11 (×10⁻⁶)" is 1.47e-4 and
    1.1e-5; ``unit`` is the printed one. A number that our copy does not show is NaN, and ``note`` says so.

    Raises `UnknownName` for a paper, place, metric or model that does not occur in the tables.
    """
    frame = _numbers().copy()
    if model is not None:
        entry = catalog.find(model)
        if entry is None:
            raise UnknownName("model", model, catalog.aliases())
        model = entry.alias
    wanted = {"paper": paper, "table": None if table is None else str(table), "metric": metric}
    for column, name in wanted.items():
        if name is not None:
            if not (frame[column] == name).any():
                raise UnknownName(
                    f"{column} of the published numbers", name, _numbers()[column].dropna().unique()
                )
            frame = frame[frame[column] == name]
    # a catalog model that no paper tests has no rows, which is an answer and not a mistake
    return (frame if model is None else frame[frame["model"] == model]).reset_index(drop=True)


def stated_claims(paper: str | None = None) -> pd.DataFrame:
    """The papers' claims, one row per claim and reading, as text; columns are `CLAIM_COLUMNS`.

    Raises `UnknownName` for a paper without claims here.
    """
    frame = _read("claims.csv", CLAIM_COLUMNS)
    if paper is not None and paper not in set(frame["paper"]):
        raise UnknownName("paper", paper, PAPERS)
    return frame if paper is None else frame[frame["paper"] == paper].reset_index(drop=True)


@cache
def _numbers() -> pd.DataFrame:
    frame = pd.concat([_read(f"{paper}.csv", COLUMNS) for paper in PAPERS], ignore_index=True)
    _expect("metric", frame["metric"], {*METRICS, *PRINTED_ONLY})
    _expect("unit", frame["unit"], _UNITS)
    _expect("model", frame["model"], {"", *catalog.aliases()})
    factor = frame["unit"].map(_UNITS)
    try:
        numbers = {name: pd.to_numeric(frame[name]) * factor for name in ("value", "spread")}
    except ValueError as error:
        raise InputError(f"data/published: {error}") from None
    entries = {name: catalog.find(name) for name in frame["model"].unique() if name}
    specs = {name: entry.spec for name, entry in entries.items() if entry is not None}
    text = frame.astype("string").mask(frame == "").assign(**numbers)
    text.insert(COLUMNS.index("model") + 1, "spec", text["model"].map(specs).astype("string"))
    return text


def _read(name: str, columns: Iterable[str]) -> pd.DataFrame:
    try:
        frame = pd.read_csv(paths.data_dir() / "published" / name, dtype=str, keep_default_na=False)
    except ValueError as error:
        raise InputError(f"data/published/{name} is not a table: {error}") from None
    if list(frame.columns) != list(columns):
        raise InputError(f"data/published/{name} has columns {list(frame.columns)}, not {list(columns)}")
    return frame


def _expect(what: str, names: pd.Series, known: Iterable[str]) -> None:
    strange = sorted(set(names) - set(known))
    if strange:
        raise UnknownName(f"{what} in data/published", strange[0], known)
