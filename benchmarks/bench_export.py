"""Seconds per exported file with a warm Chrome, against starting Chrome for every file.

A file counts as exported when it has been printed, checked and given its provenance.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import plotly.graph_objects as go

from workbench.figures import apply_theme
from workbench.figures.export import STATIC, ExportJob, WarmChrome, export_static
from workbench.figures.export.chrome import find_chrome

AIM_SECONDS = 0.5
ROUNDS = 5


def _job(folder: Path, name: str, formats: tuple[str, ...]) -> ExportJob:
    """A spectrum-like figure: twelve lines of 197 points at the width of a column."""
    rank = np.arange(1, 198)
    lines = [go.Scatter(x=rank, y=np.exp(-rank / (9 + layer)), name=f"layer {layer}") for layer in range(12)]
    # every figure has a title of its own: one that is asked for again would not be drawn again
    layout = {"title": {"text": name}, "yaxis": {"type": "log", "title": {"text": "Eigenvalue"}}}
    fig = apply_theme(go.Figure(lines, layout))
    return ExportJob(
        figure=fig.to_plotly_json(),
        stem=folder / name,
        width=fig.layout.width,
        height=fig.layout.height,
        formats=formats,
        provenance={"schema": 1, "name": name, "figure": {"caption": "", "alt": ""}},
    )


def run() -> list[dict[str, object]]:
    """Median per file, warm and one-shot; no rows where there is no Chrome."""
    if find_chrome() is None:
        return []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        with WarmChrome() as browser:
            export_static([_job(folder, "warm-up", STATIC)], browser)
            results = [export_static([_job(folder, f"warm-{n}", STATIC)], browser)[0] for n in range(ROUNDS)]
        cold = []
        for number, format in enumerate(STATIC):
            started = time.perf_counter()
            export_static([_job(folder, f"cold-{number}", (format,))])
            cold.append(time.perf_counter() - started)
    warm = statistics.median(result.seconds / len(STATIC) for result in results)
    one_shot = statistics.median(cold)
    return [
        {
            "benchmark": "export a file, warm Chrome / one-shot",
            "ratio": f"{warm / one_shot:.3f}, {warm:.2f} s per file",
            "aim": f"≤ {AIM_SECONDS} s per file",
            "detail": f"{len(STATIC)} formats at once, checked, provenance inside; one-shot {one_shot:.2f} s",
        }
    ]


if __name__ == "__main__":
    for row in run():
        print(row)
