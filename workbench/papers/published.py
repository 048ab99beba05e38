"""The papers' printed numbers and claims, transcribed into ``data/published``."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import pandas as pd

from workbench.core import paths
from workbench.core.errors import InputError, UnknownName
from workbench.models import catalog

COLUMNS = (
    "paper", "table", "row", "model", "data", "condition", "metric", "statistic", "axis", "convention", "candidate",
    "standardize", "value", "spread", "unit", "note",
)  # fmt: skip
CLAIM_COLUMNS = (
    "paper", "place", "claim", "interpretation", "label", "primary", "kind", "scale", "setting", "analysis", "options",
    "measure", "over", "comparison", "threshold", "margin", "published", "needs", "premise", "stated",
)  # fmt: skip
_PAIR_COLUMNS = ("paper", "table", "row", "baseline", "model", "baseline_model")
PAPERS = ("teo2024", "saritas2025", "wu2025", "chen2023", "abdullaev2025")
PRINTED_ONLY = {
    "eigenvalue_profile_change": "change of an eigenvalue_profile where the keys are left as they are",
    "allclose_tests": "how many heads were tested for allclose",
    "norm_ratio": "mean ‖h‖² over mean ‖φ(q)‖²",
    "cross_term": "Σ_mn u_m·u_n h_m h_n of one output, in an example",
    "cross_entropy": "mean negative log-likelihood, in nats: of a token, or of an image's class",
    "perplexity_change": "perplexity less that of the baseline",
    "reward": "return of a control policy, normalised as D4RL does: 100 is an expert's",
    "flops_per_sample": "operations for one image",
    "seconds_per_epoch": "seconds of training for one epoch",
    "seconds_per_1000_steps": "seconds of training for 1000 steps",
    "training_time": "running time in training, in a unit that our copy does not show",
    "training_memory": "memory in training, in a unit that our copy does not show",
    "speedup": "time of the baseline, the first model of the table, divided by this model's",
    "memory_saving": "memory of the baseline divided by this model's",
    "relative_time": "time divided by that of the baseline",
    "relative_memory": "memory divided by that of the baseline",
}
"""Quantities that a paper prints and no analysis returns as a metric."""

RECORDED = ("training", "evaluation", "embedded", "operators", "costs")
"""Values of ``analysis`` in ``claims.csv`` for claims decided by records or a count: see `claims_from_records`."""

_UNITS = {"": 1.0, "1e-6": 1e-6, "%": 0.01, "M": 1e6, "GMac": 1e9, "MB": 1e6, "GB": 1e9}


def published(
    paper: str | None = None, table: str | None = None, metric: str | None = None, model: str | None = None
) -> pd.DataFrame:
    """Return the numbers of the papers' tables and texts, one row per printed number.

    ``paper`` is a key such as "saritas2025", ``table`` a table's number as printed or another place ("Figure 3"),
    ``metric`` a name, ``model`` a catalog name or spec; each None keeps all. Columns are `COLUMNS` and ``spec``,
    the value of a result frame's column ``model`` for that model; ``row`` is the model's name as printed. ``data`` is
    the data set, ``condition`` a protocol of `evaluate`, a corruption or a setting.
    ``value`` and ``spread`` (a standard deviation) are in the units of result frames, so "147 ± 11 (×10⁻⁶)" is
    1.47e-4 and 1.1e-5, and 70.44 % is 0.7044; ``unit`` is as printed. A number that our copy does not show
    is NaN, with a ``note``.

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
    """Return the papers' claims, one row per claim and interpretation; columns are `CLAIM_COLUMNS`.

    ``primary`` marks the one interpretation of each claim that counts, the nearest to the paper's definition and
    measurement; ``label`` is the short text of a figure. All other columns are text.

    Raises `UnknownName` for a paper without claims here.
    """
    frame = _read("claims.csv", CLAIM_COLUMNS)
    frame["primary"] = frame["primary"] == "yes"
    if paper is not None and paper not in set(frame["paper"]):
        raise UnknownName("paper with claims", paper, frame["paper"].unique())
    return frame if paper is None else frame[frame["paper"] == paper].reset_index(drop=True)


def claim_options(text: str) -> dict[str, str]:
    """Parse the options of a claim in ``claims.csv``, "name=word, name=word", into a dict."""
    return dict(pair.split("=") for pair in text.split(", ") if pair)


def published_pairs(paper: str | None = None) -> pd.DataFrame:
    """Pair every printed number of a mechanism with that of the model without it.

    Columns are those of `published`, where ``model`` is the bundled counterpart of the row; ``baseline``, the row that
    it is compared with, and ``baseline_model``, the bundled counterpart of that (both counterparts null where none is
    bundled); ``baseline_value``, ``difference`` (value − baseline) and ``ratio`` (value / baseline). The pairs are
    listed in ``data/published/pairs.csv``.

    Raises `UnknownName` for a paper without pairs.
    """
    pairs = _read("pairs.csv", _PAIR_COLUMNS)
    if paper is not None and paper not in set(pairs["paper"]):
        raise UnknownName("paper with a baseline", paper, pairs["paper"].unique())
    pairs = (pairs if paper is None else pairs[pairs["paper"] == paper]).astype("string")
    counterparts = pairs[["model", "baseline_model"]]
    pairs[["model", "baseline_model"]] = counterparts.mask(counterparts == "")
    numbers = _numbers().drop(columns=["model", "spec"])
    keys = ["paper", "table", "data", "condition", "metric", "statistic"]
    base = numbers[[*keys, "row", "value"]].rename(columns={"row": "baseline", "value": "baseline_value"})
    joined = numbers.merge(pairs, on=["paper", "table", "row"]).merge(base, on=[*keys, "baseline"])
    return joined.assign(
        difference=joined["value"] - joined["baseline_value"],
        ratio=joined["value"] / joined["baseline_value"],
    )


@cache
def _numbers() -> pd.DataFrame:
    frame = pd.concat([_read(f"{paper}.csv", COLUMNS) for paper in PAPERS], ignore_index=True)
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


def _expect(what: str, names: pd.Series, accepted: Iterable[str]) -> None:
    strange = sorted(set(names) - set(accepted))
    if strange:
        raise UnknownName(f"{what} in data/published", strange[0], accepted)
