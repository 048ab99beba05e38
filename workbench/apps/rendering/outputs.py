"""Static images in executed notebooks: an SVG in addition to each interactive figure."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from workbench.core.files import atomic_write
from workbench.figures.export.saving import SVG

_PLOTLY = "application/vnd.plotly.v1+json"


def add_images(executed: Path, names: Iterable[str], out: Path) -> None:
    """Add the SVG of every saved figure to its plotly output in an executed notebook.

    A figure is found by its traces and layout. Outputs that have an SVG, and figures without an SVG, stay as they are.

    Raises `MissingResource` where the notebook cannot be written.
    """
    printed = [name for name in names if (out / f"{name}.svg").is_file()]
    figures = {name: _read(out / f"{name}.figure.json") for name in printed}
    notebook = _read(executed)
    added = False
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


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _same_drawing(figure: Any, drawing: Any) -> bool:
    return figure["data"] == drawing["data"] and figure["layout"] == drawing["layout"]
