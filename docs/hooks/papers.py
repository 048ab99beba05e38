"""MkDocs hook: what the pages of `docs/papers` take from the tables when the site is built.

A page says where: a line `<!-- claims -->` becomes the paper's claims (`data/published/claims.csv`),
`<!-- numbers -->` which of its tables are transcribed, `<!-- coverage -->` its section of `docs/coverage.md`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.pages import Page

from workbench.papers.published import RECORDED, published, stated_claims

COVERAGE = Path(__file__).parents[1] / "coverage.md"
_WORDS = {"<": "less than", "<=": "at most", ">": "more than", ">=": "at least"}


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Put the generated parts in the place of their marks."""
    if page.file.src_uri.startswith("papers/"):
        for mark, part in (("claims", claims), ("numbers", numbers), ("coverage", coverage)):
            wanted = f"<!-- {mark} -->"
            if wanted in markdown:
                markdown = markdown.replace(wanted, part(Path(page.file.src_uri).stem))
    return markdown


def claims(paper: str) -> str:
    """A heading for each claim in our words, under it a row for each interpretation and what measures it."""
    parts = []
    for (place, claim), rows in stated_claims(paper).groupby(["place", "claim"], sort=False):
        parts += [
            f"### {claim}",
            f"{paper}, {_place(place)}.",
            _table(
                ["interpretation", "measured by", "holds where", "published"],
                map(_interpreted, rows.to_dict("records")),
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
    return _table(["table or place", "numbers", "illegible in our copy", "metrics"], rows)


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
