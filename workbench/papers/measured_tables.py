"""``table``: a paper's table, measured on one model under each interpretation, beside null distributions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import pandas as pd
from annotated_types import Ge

from workbench.core.errors import InputError
from workbench.core.options import NullSamples, checked
from workbench.data.pools import DEFAULT_INPUTS
from workbench.frames.results import provenance_of, shared
from workbench.models import catalog
from workbench.papers import verdicts
from workbench.papers.claims import NotTested, papers_preprocessing, published_value
from workbench.papers.published import claim_options, published, stated_claims
from workbench.papers.verdicts import NullBand
from workbench.runs import settings as setting
from workbench.runs.analyze import ANALYSES, analyze
from workbench.runs.loop import keeping_the_model

COLUMNS = (
    "paper", "table", "model", "inputs", "measure", "interpretation", "primary", "published", "measured", "low",
    "high", "n", "interval", "within_margin", "null", "null_mean", "null_low", "null_high", "within_null",
)  # fmt: skip
_ANSWERS = {verdicts.HOLDS: "yes", verdicts.FAILS: "no", verdicts.UNDECIDED: "undecided"}
_ENDS = ["null_mean", "null_low", "null_high"]


@keeping_the_model()
@checked
def table(
    paper: str,
    table: str | int,
    model: str,
    inputs: str | None = None,
    *,
    n: Annotated[int, Ge(2)] | Literal["all"] | None = None,
    seed: setting.Seed = 0,
    preprocessing: setting.Preprocessing | None = None,
    batch_size: setting.BatchSize = 8,
    device: setting.Device | None = None,
    dtype: setting.DType | None = None,
    null_samples: NullSamples = 20,
    progress: bool = False,
    cache: bool | None = None,
) -> pd.DataFrame:
    """Measure a table of a paper on one model: published, each interpretation, null distributions.

        workbench.table("saritas2025", 1, "bundled:digits-vit", n=4, null_samples=4)

    One row per interpretation and null, in the columns `COLUMNS`. ``published`` is the number that the table prints
    for this model, NaN if it lists others. ``measured`` is the mean over ``n`` inputs with a 95 % confidence interval
    from ``low`` to ``high``. ``within_margin`` says whether all of the interval is within 10 % of the published number
    ("yes"), none of it ("no"), or a part ("undecided"); it is missing without a published number. ``within_null``
    says whether ``measured`` is between ``null_low`` and ``null_high``.

    Images are prepared as in the paper, unless ``preprocessing`` names another. ``inputs`` are bundled ones unless
    given; other settings are those of `analyze`. ``frame.attrs`` holds the ``provenance`` and the ``notes``.

    Raises `UnknownName` for an unknown paper, and `InputError` for a table that no analysis of one model measures,
    with a list of those that can be measured.
    """
    number = str(table)
    rows = _measurable(paper, number)
    listed = published(paper, number)["model"].dropna().unique()
    entry = catalog.find(model)
    if inputs is None:
        (kind,) = {listed_entry.modality for name in listed if (listed_entry := catalog.find(name))}
        inputs = DEFAULT_INPUTS[kind]
    settings: dict[str, Any] = {
        "n": n,
        "seed": seed,
        "batch_size": batch_size,
        "device": device,
        "dtype": dtype,
        "progress": progress,
        "cache": cache,
        "preprocessing": preprocessing or papers_preprocessing(paper, model, inputs) or "model",
    }
    frames: dict[str, pd.DataFrame] = {}
    notes = []
    if entry is None or entry.alias not in listed:
        notes.append(f"Table {number} does not list {model}; its models are {', '.join(listed)}")
    else:
        notes.append(f"Table {number} is of {rows['setting'].iloc[0]}; these inputs are {inputs}")
    measured = []
    for row in rows.to_dict("records"):
        if row["options"] not in frames:
            frames[row["options"]] = analyze(
                row["analysis"],
                model=model,
                inputs=inputs,
                **settings,
                **_options(row, null_samples),
            )
        try:
            expected = published_value(row, model)
        except NotTested as reason:
            expected = float("nan")
            notes += [str(reason)] if entry is not None and entry.alias in listed else []
        measured += _table_rows(row, frames[row["options"]], expected)
    here = {"table": number, "model": model, "inputs": inputs}
    frame = pd.DataFrame([here | row for row in measured], columns=[*COLUMNS])
    results = list(frames.values())
    frame.attrs["provenance"] = shared([source for part in results for source in provenance_of(part)])
    notes += [note for part in results for note in part.attrs.get("notes", ())]
    frame.attrs["notes"] = list(dict.fromkeys(notes))
    return frame


def _measurable(paper: str, table: str) -> pd.DataFrame:
    """Return the interpretations of a table's numbers; raises `InputError` if no analysis measures them."""
    stated = stated_claims()
    stated = stated[stated["published"].str.startswith("table ")]
    rows = stated[(stated["paper"] == paper) & (stated["published"] == f"table {table}")]
    if rows.empty:
        published(paper, table)  # raises `UnknownName` for a table that is not there
        tables = stated["paper"] + " " + stated["published"].str.removeprefix("table ")
        raise InputError(
            f"Table {table} of {paper} is transcribed only: no analysis of one model returns its numbers; "
            f"choose from {', '.join(sorted(tables.unique()))}. Read it with "
            f"workbench.published({paper!r}, {table!r}); `workbench study claims --paper {paper}` tests claims on "
            "models trained here"
        )
    return rows


def _options(row: Mapping[str, Any], null_samples: int) -> dict[str, Any]:
    """Return the options of a row's analysis, with every null distribution that it has."""
    options: dict[str, Any] = claim_options(row["options"])
    options["null_samples"] = null_samples
    return options | ({"null": "all"} if "null" in ANALYSES[row["analysis"]].options else {})


def _table_rows(row: Mapping[str, Any], frame: pd.DataFrame, expected: float) -> list[dict[str, Any]]:
    """Return the rows of one interpretation, one for each null."""
    terms = verdicts.parse_measure(row["measure"])
    finding, how = verdicts.mean_over(verdicts.per_input(frame, terms), terms, row["comparison"])
    nulls = [*verdicts.nulls_of(frame, terms), *_profile_nulls(frame, terms[0])]
    allowed = verdicts.region(row["comparison"], row["threshold"], expected, None)
    answer = None if expected != expected else _ANSWERS[verdicts.decide(finding, allowed)]
    common = {name: row[name] for name in ("paper", "measure", "interpretation", "primary")} | {
        "published": expected,
        "measured": finding.value,
        "low": finding.low,
        "high": finding.high,
        "n": finding.n,
        "interval": how,
        "within_margin": answer,
    }
    beside = [
        {"null": band.null, "within_null": band.low <= finding.value <= band.high}
        | dict(zip(_ENDS, band[1:], strict=True))
        for band in nulls
    ]
    return [common | null for null in beside or [{}]]


def _profile_nulls(frame: pd.DataFrame, term: verdicts.Term) -> list[NullBand]:
    """Return the null of a statistic over ranks: that of the ranks' mean levels, and of the means of their ends."""
    rows = frame[(frame["metric"] == "eigenvalue") & frame["null_mean"].notna()]
    if term.metric != "eigenvalue_profile" or rows.empty:
        return []
    ends = rows.groupby("rank")[_ENDS].mean().agg(term.where["statistic"])
    return [NullBand(rows["null"].iloc[0], *map(float, ends))]
