"""The table as a file of rows and as a page."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

from conformance.changes import NO_EFFECT
from conformance.row import (
    CRASH,
    EXACT,
    GAP,
    NO_REFERENCE,
    NO_SOFTMAX,
    NOT_BUILT,
    REFUSED,
    STATUSES,
    WRONG,
    Row,
)  # fmt: skip
from workbench.core.files import atomic_write

ROOT = Path(__file__).resolve().parent.parent
ROWS = ROOT / "data" / "records" / "conformance.csv"
PAGE = ROOT / "docs" / "conformance.md"
COLUMNS = [field.name for field in fields(Row)]


def read_rows(path: Path = ROWS) -> dict[tuple[str, str], dict[str, str]]:
    """The rows that are there, by library and type."""
    if not path.is_file():
        return {}
    with path.open(newline="", encoding="utf-8") as file:
        empty = dict.fromkeys(COLUMNS, "")
        return {(row["library"], row["type"]): empty | row for row in csv.DictReader(file)}


def write_rows(rows: Iterable[dict[str, Any]], path: Path = ROWS) -> None:
    """All rows, in the order of library and type."""
    path.parent.mkdir(parents=True, exist_ok=True)
    ordered = sorted(rows, key=lambda row: (row["library"] != "transformers", row["type"].lower()))
    lines = [",".join(COLUMNS)]
    for row in ordered:
        lines.append(",".join(_cell(row[name]) for name in COLUMNS))
    atomic_write(path, ("\n".join(lines) + "\n").encode())


def _cell(value: Any) -> str:
    text = "" if value is None else f"{value:.2g}" if isinstance(value, float) and value < 0.1 else str(value)
    return '"' + text.replace('"', '""') + '"' if any(sign in text for sign in ',"\n') else text


HEAD = """# The conformance table

What `workbench.capture` does with every model type of transformers and every family of timm, each built small with
random weights, run on made inputs, and compared with its own attention: the model runs once more with
`attn_implementation="eager"` where it has that, and every softmax that arrives in a product with data is collected
below the libraries, at PyTorch's dispatcher, by code that shares nothing with the captures. A layer is exact where its
`attn` is what was multiplied there, to 1e-4; a softmax that no layer accounts for is a silent gap. `make conformance`
makes the table; `CONTRIBUTING.md` says what to do with a failure.

"""
MEANINGS = {
    "exact": "every softmax that met data is a captured layer, and equal",
    "no reference": "captured and reproduced, but nothing below has its shape",
    "no softmax over tokens": "nothing to capture: convolutions, state spaces, linear attention",
    "refused": "an error that names what is missing",
    "wrong values": "captured weights that differ from the model's own",
    "silent gap": "captured without a word, and a softmax is in no layer",
    "traceback": "another error than the workbench's own",
    "not built": "no small model of it runs here, or it is a part of others",
}


# A family is what the first of these is that one of its types is.
WORST_FIRST = (WRONG, GAP, CRASH, REFUSED, NO_REFERENCE, EXACT, NO_SOFTMAX, NOT_BUILT)


def _badness(row: dict[str, Any]) -> int:
    return -WORST_FIRST.index(row["status"])


def write_page(rows: list[dict[str, Any]], untried: int = 0, path: Path = PAGE) -> None:
    """The counts, what is not exact and why, and the list of what is; ``untried`` rows are not made yet."""
    libraries = [name for name in ("transformers", "timm") if any(row["library"] == name for row in rows)]
    text = [HEAD]
    for library in libraries:
        of = [row for row in rows if row["library"] == library]
        text.append(
            f"{library} {of[0]['version']}: {len(of)} types of {len({r['family'] for r in of})} families.\n"
        )
    text.append(
        f"torch {rows[0]['torch']}, Python {rows[0]['python']}, seed {rows[0]['seed']}, `python -m conformance`; "
        f"{_codes(rows)}.\n\n"
    )
    text.append("| | " + " | ".join(f"{name}, types | {name}, families" for name in libraries) + " | |\n")
    text.append("| --- |" + " ---: | ---: |" * len(libraries) + " --- |\n")
    for status in STATUSES:
        cells = []
        for library in libraries:
            of = [row for row in rows if row["library"] == library]
            families = {row["family"]: WORST_FIRST.index(row["status"]) for row in sorted(of, key=_badness)}
            cells += [str(sum(row["status"] == status for row in of))]
            cells += [str(list(families.values()).count(WORST_FIRST.index(status)))]
        text.append(f"| {status} | " + " | ".join(cells) + f" | {MEANINGS[status]} |\n")
    if untried:
        text.append(f"\n{untried} further types are not tried yet: `make conformance` goes on with them.\n")
    differences = [
        float(row["worst"]) for row in rows if row["status"] == EXACT and row["worst"] not in ("", None)
    ]
    layers = sum(int(row["layers"]) for row in rows if row["status"] == EXACT)
    changed = [row["type"] for row in rows if row["output"] == "changed"]
    rounded = sum(row["output"] == "rounded" for row in rows)
    if differences:
        text.append(f"\n{layers} layers are exact, the largest difference {max(differences):.1e}. ")
    same = sum(row["output"] == "the same" for row in rows)
    text.append(
        f"The model's output is the same bit for bit in {same} of {same + rounded + len(changed)} models"
    )
    if rounded:
        text.append(f", to rounding in {rounded}, whose kernels are off in timm and on in a capture")
    text.append((f", and another in {', '.join(changed)}" if changed else "") + ".\n")
    text.append(_interventions(rows))
    text.append(INPUTS_TOLD)
    for status in STATUSES:
        for library in libraries:
            of = [row for row in rows if row["library"] == library and row["status"] == status]
            if of:
                text.append(f"\n## {library}: {status} ({len(of)})\n\n")
                text.append(_list(of) if status == EXACT else _table(of, rows if status == NOT_BUILT else []))
    atomic_write(path, "".join(text).encode())


def _interventions(rows: list[dict[str, Any]]) -> str:
    """What `intervene` and `output_projection` do in the models that are exact, and which refuse."""
    tried = [row for row in rows if row["status"] == EXACT and row["attn"]]
    if not tried:
        return ""
    layers = sum(int(row["layers"]) for row in tried)
    read, there = (
        sum(int(row["projections"].split("/")[part]) for row in tried if row["projections"])
        for part in (0, 1)
    )
    flat = sum(row["head_out"] == NO_EFFECT for row in tried)
    text = [
        "\n## Interventions\n\n"
        f"In {len(tried)} models that are exact, `workbench.intervene` replaces `head_out` or `attn` of all heads and "
        f"layers by itself, which must give the model's output; zeros in place of `head_out` must change it. In {flat} "
        "models they change nothing, since a norm or a scale behind attention starts at zero or an output has been "
        "rounded to codes. `output_projection` reads W_O by head "
        f"in {read} of {there} layers that have one, and checks it against the layer's output.\n\n"
        "| site | models, all layers | layers | the same bit for bit | the same to 1e-4 | changed | refused |\n"
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |\n"
    ]
    for site in ("head_out", "attn"):
        able = sum(int(row[f"{site}_layers"]) for row in tried)
        models = sum(int(row[f"{site}_layers"]) == int(row["layers"]) for row in tried)
        same = sum(row[site] in ("the same", NO_EFFECT) for row in tried)
        counts = [same, sum(row[site] == "rounded" for row in tried)]
        refused = sum(row[site] == "refused" for row in tried)
        rest = len(tried) - sum(counts) - refused
        text.append(
            f"| `{site}` | {models} of {len(tried)} | {able} of {layers} | {counts[0]} | {counts[1]} | {rest} | "
            f"{refused} |\n"
        )
    text.append(_refusals(tried, "refusal"))
    return "".join(text) + _stream(rows)


def _refusals(tried: list[dict[str, Any]], column: str) -> str:
    """The reasons of a column, most frequent first, and their types."""
    reasons: dict[str, list[str]] = {}
    for row in tried:
        if row[column]:
            reasons.setdefault(_reason(row[column]), []).append(row["type"])
    text = ["\n| refused | types |\n| --- | --- |\n"] if reasons else []
    for reason, types in sorted(reasons.items(), key=lambda item: -len(item[1])):
        text.append(f"| {reason} | {', '.join(types)} |\n")
    return "".join(text)


def _stream(rows: list[dict[str, Any]]) -> str:
    """What `intervene` does to the stream between attention and MLP in the models that are exact."""
    tried = [row for row in rows if row["status"] == EXACT and row["resid_mid"]]
    if not tried:
        return ""
    counts = Counter(row["resid_mid"] for row in tried)
    exact = sum(row["status"] == EXACT for row in rows)
    able = [row for row in tried if int(row["resid_mid_layers"])]
    whole = sum(int(row["resid_mid_layers"]) == int(row["layers"]) for row in tried)
    same = counts["the same"] + counts[NO_EFFECT]
    text = (
        f"\n`resid_mid`, the stream between attention and MLP, was replaced by itself in {len(tried)} of {exact} exact "
        f"models. It can be changed in {len(able)} of them, in {whole} in every layer with attention. The output is "
        f"the same bit for bit in {same} models, the same to 1e-4 in {counts['rounded']}, another in "
        f"{counts['changed']}. In {counts[NO_EFFECT]} models zeros change nothing. {counts['refused']} models refuse "
        "the site: their blocks have no single tensor between the two halves, or none that is known.\n"
    )
    return text + _refusals(tried, "resid_mid_refusal")


def _reason(message: str) -> str:
    """A refusal without its model, layer and numbers, so that those of one kind are one row."""
    reason = message.rpartition("): ")[2] if "): " in message else message.partition(": ")[2] or message
    reason = re.sub(
        r"differs from the model's own output by \S+ of its largest value", "is not the output", reason
    )
    reason = re.sub(r"^layer \d+ has", "a layer has", reason)
    return reason.partition(";")[0].replace("|", "\\|").replace("<", "&lt;")


INPUTS_TOLD = """
## Inputs

| kind | what is made |
| --- | --- |
| text | two texts of 12 words, the second padded after 8 |
| image | two images of noise, 64 pixels wide or four patches; with text, as many places in it as the model wants |
| audio | two sounds of 4000 samples, or their spectra in 64 frames |
| video | two clips of up to 4 frames; trackers follow a point from one frame to the next |
| series | two series as long as the configuration's context |
| to text | and two texts of 7 words for the decoder |

A configuration keeps two layers, and at least one of each kind that it tells apart; widths become 64, heads 4,
vocabularies 160; where that gives no model that runs, widths are divided by one number, then left as they are.
Where the towers of images and sounds are rows of their own, a model of several kinds may be given texts alone.
"""


def _list(rows: list[dict[str, Any]]) -> str:
    noted = [row for row in rows if row["why"]]
    text = ", ".join(row["type"] for row in rows) + ".\n"
    return text + ("\n" + _table(noted) if noted else "")


def _table(rows: list[dict[str, Any]], every: list[dict[str, Any]] | None = None) -> str:
    """Types and reasons; with ``every`` row also which of a type's family are exact."""
    exact: dict[tuple[str, str], list[str]] = {}
    for row in every or ():
        if row["status"] == EXACT:
            exact.setdefault((row["library"], row["family"]), []).append(row["type"])
    text = "| type | why |" + (" exact of its family |" if every else "")
    text += "\n| --- | --- |" + (" --- |" if every else "") + "\n"
    for row in rows:
        why = row["why"].replace("|", "\\|").replace("<", "&lt;")
        family = ", ".join(exact.get((row["library"], row["family"]), [])[:3])
        text += f"| {row['type']} | {shorter(why)} |" + (f" {family} |" if every else "") + "\n"
    return text


def shorter(why: str) -> str:
    """The reason without what is the same in every message."""
    for start in ("but these modules attend in another way: ", "These modules look like attention: "):
        if start in why:
            why = why.partition(start)[2]
    why = why.partition(". Looked for")[0]
    why = why.partition(". They need an adapter")[0].partition("; see docs/capture.md")[0]
    return why if len(why) < 230 else why[:227].rpartition(" ")[0] + " …"


def _codes(rows: list[dict[str, Any]]) -> str:
    """Which sources of the captures made the rows."""
    counts = Counter(row["code"] or "older ones" for row in rows)
    made = [f"{'all' if len(counts) == 1 else count} rows by {code}" for code, count in counts.most_common()]
    return "sources of `workbench/captures` by their SHA-256: " + ", ".join(made)


def is_done(row: dict[str, Any], versions: dict[str, str]) -> bool:
    """Whether a row was made with the versions that are installed."""
    return row["version"] == versions[row["library"]] and row["torch"] == versions["torch"]


def is_red(row: dict[str, Any]) -> bool:
    """Whether a row is to be looked at."""
    return row["status"] not in (EXACT, NO_SOFTMAX, NO_REFERENCE, NOT_BUILT)
