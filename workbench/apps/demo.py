"""`workbench demo`: every head of the bundled vision transformer on digits, in one page without a network."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench._version import __version__
from workbench.core.files import atomic_write, check_writable

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from workbench.captures import Capture

MODEL, INPUTS = "bundled:digits-vit", "bundled:digits"
IMAGES = 6
METRICS = ("attention_entropy", "attention_distance")
_LEVELS = 2**16 - 1  # an attention weight is sent to the page as a whole number of two bytes
CODE = f"""\
import workbench
from workbench.figures import attention_heatmap_figure

model = workbench.load("{MODEL}")
digits = workbench.inputs("{INPUTS}", model, n={IMAGES})
capture = workbench.capture(model, digits, sites=["attn"])
attention_heatmap_figure(capture, layers="0-3", heads="0-2", image=digits.images[0])"""
"""The code that draws the page's figure; the page shows it."""


def write_demo(out: str | os.PathLike[str]) -> Path:
    """Capture, measure, draw, and write the page: one file, plotly.js inside.

    Raises `MissingResource` where the file cannot be written.
    """
    check_writable(out)
    import jinja2
    from plotly.offline import get_plotlyjs

    import workbench
    from workbench.figures import attention_heatmap_figure, head_grid_figure
    from workbench.figures.overlays import data_uri
    from workbench.figures.scales import WEIGHTS, Scale

    model = workbench.load(MODEL)
    digits = workbench.inputs(INPUTS, model, n=IMAGES)
    capture = workbench.capture(model, digits, sites=["attn"])
    frame = workbench.analyze("attention-map", model=model, inputs=INPUTS)
    layers, heads = range(model.num_layers), range(int(frame["head"].max()) + 1)
    tokens, images = capture.tokens, digits.images or []
    assert tokens is not None  # the capture of inputs of ours knows them
    rows, columns = tokens.grid or (0, 0)
    cells, bar = Scale((0, 1), colours=WEIGHTS, course="root").axes(
        {}, 1, 1
    )  # the same for any largest weight
    data = {
        "maps": [
            _specification(attention_heatmap_figure(capture, input, layers, heads, image), "page")
            for input, image in enumerate(images)
        ],
        "grids": [_specification(head_grid_figure(frame, metric), "column") for metric in METRICS],
        "attention": [_packed(capture, input) for input in range(IMAGES)],
        "levels": _LEVELS,
        "colours": [cells["colorscale"], bar["colorscale"]],
        "labels": tokens.labels[0],
        "first": len(tokens.labels[0]) - rows * columns,  # special tokens stand before the patches
        "columns": columns,
    }
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("workbench.apps", "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template("demo.html").render(
        plotly=get_plotlyjs(), data=data, model=repr(model)[1:-1], layers=len(layers), heads=len(heads), code=CODE,
        images=[(name, data_uri(image)) for name, image in zip(digits.ids, images, strict=True)],
        tokens=list(enumerate(tokens.labels[0])), inputs=frame["input"].nunique(), version=__version__,
    )  # fmt: skip
    return atomic_write(out, page.encode())


def _specification(figure: go.Figure, width: str) -> dict[str, Any]:
    """A figure in its theme as JSON has it."""
    from workbench.figures import apply_theme

    return json.loads(apply_theme(figure, "paper", width).to_json())


def _packed(capture: Capture, input: int) -> str:
    """Attention of one input, (layer, head, query, key), as two little-endian bytes each in base 64."""
    weights = capture.stack("attn")[:, input].double().mul(_LEVELS).round().numpy()
    return base64.b64encode(weights.astype("<u2").tobytes()).decode()
