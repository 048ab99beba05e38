"""Executed notebooks: the finding under the title, and an SVG in addition to each interactive figure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from workbench.core.files import atomic_write
from workbench.figures.export.saving import SVG

_PLOTLY = "application/vnd.plotly.v1+json"


def complete_notebook(executed: Path, names: Iterable[str], out: Path) -> None:
    """Write the finding of the first figure under the title of an executed notebook, and add the figures' SVGs.

    A figure's output is found by its traces and layout. Outputs that have an SVG, and figures without one, stay as
    they are.

    Raises `MissingResource` where the notebook cannot be written.
    """
    names = [*names]
    printed = [name for name in names if (out / f"{name}.svg").is_file()]
    figures = {name: _read(out / f"{name}.figure.json") for name in printed}
    notebook = _read(executed)
    findings = (_read(out / f"{name}.json")["figure"].get("finding") for name in names)
    added = _add_finding(notebook["cells"][0], next(filter(None, findings), None))
    for cell in notebook["cells"]:
        for output in cell.get("outputs", ()):
            drawing = output.get("data", {}).get(_PLOTLY)
            if drawing is None or SVG in output["data"]:
                continue
            same = (name for name, figure in figures.items() if _same_drawing(figure, drawing))
            if (name := next(same, None)) is None:
                continue
            output["data"][SVG] = (out / f"{name}.svg").read_text(encoding="utf-8")
            added = True
    if added:
        text = json.dumps(notebook, ensure_ascii=False, indent=1)
        atomic_write(executed, f"{text}\n".encode())


def _add_finding(cell: dict[str, Any], finding: str | None) -> bool:
    """Write a finding under the title in a notebook's first cell, instead of an earlier one; whether it changed."""
    title, _, text = "".join(cell["source"]).partition("\n")
    if not finding or cell["cell_type"] != "markdown" or not title.startswith("# "):
        return False
    text = re.sub(r"^\s*(\*\*.*\*\*(\n|$))?\s*", "", text)
    source = f"{title}\n\n**{finding}**\n\n{text}"
    changed = source != "".join(cell["source"])
    cell["source"] = source.splitlines(keepends=True)
    return changed


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _same_drawing(figure: Any, drawing: Any) -> bool:
    return figure["data"] == drawing["data"] and figure["layout"] == drawing["layout"]
