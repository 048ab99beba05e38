"""What a static viewer shows of an executed notebook: an image beside each interactive figure."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from workbench.core.files import atomic_write

PLOTLY = "application/vnd.plotly.v1+json"
IMAGE = "image/png"


def add_images(executed: Path, names: Iterable[str], out: Path) -> None:
    """Put the PNG of every saved figure that an executed notebook shows beside its plotly output.

    A figure is found by its traces and layout. Outputs that have an image already, and figures that were not printed,
    stay as they are. Raises `MissingResource` where the notebook cannot be written.
    """
    printed = [name for name in names if (out / f"{name}.png").is_file()]
    figures = {name: _read(out / f"{name}.figure.json") for name in printed}
    notebook = _read(executed)
    added = False
    for cell in notebook["cells"]:
        for output in cell.get("outputs", ()):
            shown = output.get("data", {}).get(PLOTLY)
            if shown is None or IMAGE in output["data"]:
                continue
            same = (name for name, figure in figures.items() if _alike(figure, shown))
            if (name := next(same, None)) is None:
                continue
            content = (out / f"{name}.png").read_bytes()
            output["data"][IMAGE] = base64.b64encode(content).decode()
            width = _read(out / f"{name}.json")["figure"][
                "width_px"
            ]  # printed, it has several pixels for each
            output.setdefault("metadata", {})[IMAGE] = {"width": width}
            added = True
    if added:
        text = json.dumps(notebook, ensure_ascii=False, indent=1)
        atomic_write(executed, f"{text}\n".encode())


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _alike(figure: Any, shown: Any) -> bool:
    return figure["data"] == shown["data"] and figure["layout"] == shown["layout"]
