"""Small notebooks for the tests of rendering: real numbers, one figure, written with nbformat."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

PARAMETERS = """\
# what to compute
n, seed = 7, 0
scale: float = 1
label: str | None = None
out = "figures"
"""

BODY = """\
import numpy as np
import plotly.graph_objects as go
from workbench.figures.export import save_figure
from workbench.frames.results import make_frame

x = np.random.default_rng(seed).normal(size=(n, 3, 5))
eigenvalues = scale * np.linalg.eigvalsh(x @ x.transpose(0, 2, 1))[..., ::-1]
data = make_frame(eigenvalues, "eigenvalue", {"input": range(n), "rank": range(1, 4)}, model="bundled:none")
data.attrs["provenance"] = {
    "analysis": "gram-spectrum",
    "model": {"spec": "bundled:none", "checkpoint": None, "sha256": "ab" * 32},
    "inputs": {"spec": "normal", "n": n, "seed": seed, "sha256": "cd" * 32},
    "seed": seed,
}
"""

SAVE = """\
figure = go.Figure(go.Scatter(x=[1, 2, 3], y=eigenvalues.mean(axis=0)))
figure.update_layout(xaxis_title="Rank", yaxis_title="Eigenvalue")
save_figure(
    figure, {name!r}, data=data, caption="Eigenvalues of a Gram matrix.", alt="Three points, falling.",
    out=out,
)
"""


def write_notebook(
    folder: Path,
    name: str,
    *,
    figure: str | None = None,
    parameters: str | None = PARAMETERS,
    extra: str = "",
    metadata: dict[str, Any] | None = None,
) -> Path:
    """A notebook `name` that saves the figure `figure` (by default its own name); `extra` runs before that."""
    cells = [new_markdown_cell(f"# Notebook {name}")]
    if parameters is not None:
        cells.append(new_code_cell(parameters, metadata={"tags": ["parameters"]}))
    cells.append(new_code_cell(BODY))
    if extra:
        cells.append(new_code_cell(extra))
    cells.append(new_code_cell(SAVE.format(name=figure or name)))
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    notebook = new_notebook(cells=cells, metadata={**kernel, **({"workbench": metadata} if metadata else {})})
    path = folder / f"{name}.ipynb"
    nbformat.write(notebook, path)
    return path
