"""What pages take from tables and records.

A line `<!-- coverage -->` of a page of `docs/papers` becomes its section of `docs/coverage.md` when the site is built.
What is committed stands between `<!-- record: NAME -->` and `<!-- end -->`, and `make pages` (this file as a module)
writes it again. NAME is a part of `PARTS` and its arguments: `claims PAPER`, what a paper claims; `numbers PAPER`,
which of its tables are transcribed; `bundled DATA`, how many models of other attention are bundled;
`trained`, the test scores of the bundled models; `changes DATE`, the verdicts that changed on a date;
`theorems PAPER PLACE`, what a theorem comes to in bundled models;
`seeds RECORD MODELS`, how many training seeds of them are on record;
`confirmed`, how many trainings with confirmatory seeds are on record;
`verdicts PAPER`, its counted claims and how they come out; `stated PAPER DATE`, the claims about trained models that
were stated on a date, counted or not; `counts PAPER`, how many of
those about trained models hold; `verdict PAPER LABEL` and `measured PAPER LABEL`, of one claim about trained models.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pandas as pd

from workbench.papers import verdicts as rules
from workbench.papers.published import RECORDED, published, stated_claims
from workbench.studies.over_seeds import answering
from workbench.studies.record_claims import claims_from_records, count_verdicts
from workbench.studies.records import (
    claims_record,
    embedded_record,
    recorded,
    theorems_record,
    trained_models,
    training_record,
)
from workbench.studies.seeds import CONFIRMATORY, CONFIRMED

if TYPE_CHECKING:
    from mkdocs.structure.pages import Page

DOCS = Path(__file__).parents[1]
COVERAGE = DOCS / "coverage.md"
MARKED = re.compile(r"<!-- record: (.+?) -->(.*?)<!-- end -->", re.DOTALL)
_WORDS = {"<": "less than", "<=": "at most", ">": "more than", ">=": "at least"}


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Put the paper's section of the page of coverage in the place of its mark."""
    if page.file.src_uri.startswith("papers/") and "<!-- coverage -->" in markdown:
        # links lead on from the folder of papers
        rows = re.sub(r"\]\((?!https?:|papers/)", "](../", coverage(Path(page.file.src_uri).stem))
        rows = rows.replace("](papers/", "](")
        markdown = markdown.replace("<!-- coverage -->", rows)
    return markdown


def rewritten(text: str) -> str:
    """Return a page with every marked part as the tables and records have it."""
    return MARKED.sub(lambda mark: f"<!-- record: {mark[1]} -->{_part(mark[1])}<!-- end -->", text)


def pages_with_records() -> list[Path]:
    """Return the pages that hold a marked part."""
    pages = [DOCS.parent / "README.md", *sorted(DOCS.rglob("*.md"))]
    return [page for page in pages if MARKED.search(page.read_text(encoding="utf-8"))]


def _part(name: str) -> str:
    kind, *words = name.split(" ", 2)
    if kind not in PARTS:
        raise ValueError(f"a page asks for the record {kind!r}: not one of {', '.join(PARTS)}")
    text = PARTS[kind](*words)
    return f"\n\n{text}\n\n" if kind in BLOCKS else text


@functools.cache
def _trained() -> pd.DataFrame:
    return claims_from_records()


@functools.cache
def _measured() -> pd.DataFrame:
    return claims_record()


def verdicts(paper: str) -> str:
    """A row for each counted claim that is tested, of each model."""
    rows = pd.concat([frame[frame["paper"] == paper] for frame in (_measured(), _trained())])
    rows = rules.counted(rows)
    tested = rows[rows["verdict"] != rules.NOT_TESTED]
    lines = [
        [
            row["label"] or row["claim"],
            row["options"] if row["model"] == "trained models" else row["model"],
            _interval(row),
            "" if pd.isna(row["null_mean"]) else f"{row['null_mean']:.3g}",
            f"{row['n']:.0f} {row['units']}",
            row["verdict"],
        ]
        for row in tested.to_dict("records")
    ]
    table = _table(["claim", "model", "measured, 95 % interval", "null", "n", "verdict"], lines)
    return f"{table}\n\nNot tested at this scale: {len(rows) - len(tested)} of {len(rows)} pairs of claim and model."


def stated(paper: str, date: str) -> str:
    """A row for each claim about trained models that was stated on a date and is tested, with the permutation p."""
    claims = stated_claims(paper).query("stated == @date")
    rows = _trained().query("paper == @paper").merge(claims[["label", "options"]])
    tested = rows[rows["verdict"] != rules.NOT_TESTED]
    lines = [
        [
            row["label"],
            row["options"],
            _interval(row),
            f"{row['n']:.0f} {row['units']}",
            f"{row['p_permutation']:.2f}",
            row["verdict"],
        ]
        for row in tested.to_dict("records")
    ]
    head = ["claim", "model", "measured, 95 % interval", "n", "permutation p", "verdict"]
    return f"{_table(head, lines)}\n\nNot on record: {len(rows) - len(tested)} of {len(rows)}."


def theorems(paper: str, place: str) -> str:
    """A row for each quantity and model: its value with trained and with untrained weights, or by training."""
    rows = theorems_record()
    rows = rows[(rows["paper"] == paper) & (rows["place"] == place)]
    if rows.empty:
        raise ValueError(f"no theorem of {paper} is on record for {place!r}")
    lines = [
        [row["quantity"], row["setting"], row["model"].removeprefix("bundled:"), row["weights"],
         _interval(row | {"measured": row["value"]}), f"{row['n']} {row['units']}"]
        for row in rows.to_dict("records")
    ]  # fmt: skip
    return _table(["quantity", "setting", "model", "weights", "measured, 95 % interval", "n"], lines)


def counts(paper: str) -> str:
    """How the counted claims about trained models come out, a line for each scope and scale."""
    rows = _trained()
    return "\n".join(f"- {paper}: {line}" for line in count_verdicts(rows[rows["paper"] == paper]))


def bundled(data: str) -> str:
    """Say how many models of this data are bundled, of digits without digits-vit, ToST and XCiT."""
    names = [
        path.name for path in (DOCS.parent / "data" / "models").iterdir() if path.name.startswith(f"{data}-")
    ]
    if data == "digits":
        names = [name for name in names if not re.search("-(vit|tost|xcit)", name)]
    return str(len(names))


def trained() -> str:
    """A row for each bundled model: its test accuracy, or perplexity, after the last epoch, by seed."""
    rows = training_record()
    rows = rows[(rows["split"] == "test") & (rows["epoch"] == rows.groupby("run")["epoch"].transform("max"))]
    lines = []
    for model, ends in rows.groupby("model"):
        metric = "perplexity" if "perplexity" in set(ends["metric"]) else "accuracy"
        scores = ends[ends["metric"] == metric].sort_values("seed")["value"]
        factor, form = (1, "{:.2f}") if metric == "perplexity" else (100, "{:.1f} %")
        words = [form.format(factor * score) for score in (*scores, scores.median())]
        lines.append([f"`{model}`", ", ".join(words[:-1]), words[-1]])
    return _table(["model", "seeds 0, 1, 2", "median"], lines)


def changes(date: str) -> str:
    """Return the table of the verdicts that changed on a date, without the columns that are empty."""
    rows = pd.read_csv(DOCS / "papers" / "verdict_changes.csv", dtype=str, keep_default_na=False)
    rows = rows[rows["date"] == date].drop(columns="date")
    rows = rows.loc[:, (rows != "").any()]
    return _table([*rows.columns], rows.itertuples(index=False))


def seeds(record: str, models: str) -> str:
    """Return how many training seeds these models, with commas between, have on record: "3 seeds".

    ``record`` is "trained" or "evaluated" of bundled models, or the names of embedded data, with commas between; or
    "theorems", and ``models`` the place in the paper.
    """
    names = models.split(",")
    if record == "theorems":
        rows = theorems_record()
        rows = rows[(rows["place"] == models) & (rows["units"] == "seeds")]
        counts = set(rows["n"]) or {0}
        return _seeds_in_words(counts)
    if record in ("trained", "evaluated"):
        everything = _recorded("training" if record == "trained" else "evaluation")
        rows = answering(everything[everything["model"].str.removeprefix("bundled:").isin(names)])
        compared = [name if record == "trained" else f"bundled:{name}" for name in names]
    else:
        rows = pd.concat([_embedded(data) for data in record.split(",")])
        compared = [f"{data} {name}" for data in record.split(",") for name in names]
    column = "training_seed" if record == "evaluated" else "seed"
    counts = {rows.loc[rows["model"] == model, column].nunique() for model in compared}
    return _seeds_in_words(counts)


def confirmed() -> str:
    """Return how many trainings with confirmatory seeds are on record, of both stages."""
    rows = recorded(list(CONFIRMATORY), "training")
    rows = rows[rows["seed_kind"] == CONFIRMED]
    return str(len(rows[["model", "seed"]].drop_duplicates()))


def _seeds_in_words(counts: set[int]) -> str:
    text = " to ".join(map(str, sorted({min(counts), max(counts)})))
    return {"0": "no seeds", "1": "1 seed"}.get(text, f"{text} seeds")


@functools.cache
def _recorded(kind: Literal["training", "evaluation"]) -> pd.DataFrame:
    """Every committed row of the bundled models, without what describes the runs."""
    rows = recorded(sorted({*trained_models(), *trained_models(confirmed=True)}), kind)
    rows.attrs.clear()  # pandas would copy them with every selection
    return rows


@functools.cache
def _embedded(data: str) -> pd.DataFrame:
    return embedded_record(data).assign(model=lambda rows: f"{data} " + rows["variant"])


def verdict(paper: str, label: str) -> str:
    """Return the verdict of one claim about trained models."""
    return str(_claim(paper, label)["verdict"])


def measured(paper: str, label: str) -> str:
    """Return the value and interval of one claim about trained models."""
    return _interval(_claim(paper, label))


def _claim(paper: str, label: str) -> dict[str, Any]:
    frame = _trained()
    rows = frame[(frame["paper"] == paper) & (frame["label"] == label)]
    if len(rows) != 1:
        raise ValueError(
            f"{len(rows)} claims of {paper} about trained models are labelled {label!r}: name one"
        )
    return rows.iloc[0].to_dict()


def _interval(row: dict[str, Any]) -> str:
    ends = "" if pd.isna(row["low"]) else f" [{row['low']:.3g}, {row['high']:.3g}]"
    return f"{row['measured']:.3g}{ends}".replace("-", "−")


def claims(paper: str) -> str:
    """Return a heading for each claim in our words, and a table of its interpretations for each place in the paper."""
    parts = []
    for claim, rows in stated_claims(paper).groupby("claim", sort=False):
        parts.append(f"### {claim}")
        for place, at_place in rows.groupby("place", sort=False):
            parts += [
                f"{paper}, {_place(str(place))}.",
                _table(
                    ["interpretation", "measured by", "holds where", "published"],
                    map(_interpreted, at_place.to_dict("records")),
                ),
            ]
    return "\n\n".join(parts)


def numbers(paper: str) -> str:
    """A row for each place of a paper that prints numbers: how many are transcribed, and of what."""
    frame = published(paper)
    rows = []
    for place, part in frame.groupby("table", sort=False):
        metrics = ", ".join(f"`{name}`" for name in part["metric"].unique())
        legible = int(part["value"].notna().sum())
        rows.append([str(place), str(legible), str(len(part) - legible or ""), metrics])
    return _table(["table or place", "legible numbers", "illegible in our copy", "metrics"], rows)


def coverage(paper: str) -> str:
    """The paper's section of the page of coverage, without its heading."""
    text = COVERAGE.read_text(encoding="utf-8")
    section = re.search(rf"^## {paper}$(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    if section is None:
        raise ValueError(f"{COVERAGE.name} has no section {paper}")
    return section[1].strip()


def _interpreted(row: dict[str, str]) -> list[str]:
    recorded = row["analysis"] in RECORDED
    what = f"{row['analysis']} records" if recorded else f"`{row['analysis']}`"
    measured = f"{what}: `{row['measure']}`, over {row['over']}"
    if row["options"]:
        measured += f" ({row['options']})"
    return [row["interpretation"], measured, _holds(row), row["published"]]


def _holds(row: dict[str, str]) -> str:
    comparison, threshold = row["comparison"], row["threshold"]
    if comparison.endswith("null"):
        words = {"> null": "above", "< null": "below", "<= null": "not above"}
        return f"{words[comparison]} the null distribution"
    if comparison == "equals":
        return f"within {row['margin']} of {threshold}"
    if comparison == "near":
        return f"within {threshold} of the published value"
    if comparison == "between":
        return f"between {threshold.replace('..', ' and ')}"
    return f"{_WORDS[comparison]} {threshold}"


def _place(place: str) -> str:
    return f"§{place}" if re.match(r"\d|[IVX]+[-.]", place) else place


def _table(head: list[str], rows: Any) -> str:
    # a bar inside a cell would end it
    cells = [[str(cell).replace("|", "&#124;") for cell in row] for row in rows]
    lines = [head, ["---"] * len(head), *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


PARTS: dict[str, Callable[..., str]] = {
    "claims": claims,
    "numbers": numbers,
    "bundled": bundled,
    "trained": trained,
    "changes": changes,
    "verdicts": verdicts,
    "stated": stated,
    "counts": counts,
    "theorems": theorems,
    "seeds": seeds,
    "confirmed": confirmed,
    "verdict": verdict,
    "measured": measured,
}
BLOCKS = {"claims", "numbers", "trained", "changes", "verdicts", "stated", "counts", "theorems"}


if __name__ == "__main__":
    for path in pages_with_records():
        before = path.read_text(encoding="utf-8")
        after = rewritten(before)
        if after != before:
            path.write_text(after, encoding="utf-8")
            sys.stdout.write(f"{path.relative_to(DOCS.parent)}\n")
