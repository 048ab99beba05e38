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

from workbench.chrome import find_chrome
from workbench.exporting import STATIC, ExportJob, WarmChrome, export_static
from workbench.figures import apply_theme

AIM_SECONDS = 0.5
ROUNDS = 5


def _job(folder: Path, name: str, formats: tuple[str, ...]) -> ExportJob:
    """A spectrum-like figure: twelve lines of 197 points at the width of a column."""
    rank = np.arange(1, 198)
    lines = [go.Scatter(x=rank, y=np.exp(-rank / (9 + layer)), name=f"layer {layer}") for layer in range(12)]
    fig = apply_theme(go.Figure(lines, {"yaxis": {"type": "log", "title": {"text": "Eigenvalue"}}}))
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
        seconds: dict[str, list[float]] = {format: [] for format in STATIC}
        with WarmChrome() as browser:
            export_static([_job(folder, "warm-up", STATIC)], browser)
            for number in range(ROUNDS):
                (result,) = export_static([_job(folder, f"warm-{number}", STATIC)], browser)
                for format, taken in result.seconds.items():
                    seconds[format].append(taken)
        cold = []
        for number, format in enumerate(STATIC):
            started = time.perf_counter()
            export_static([_job(folder, f"cold-{number}", (format,))])
            cold.append(time.perf_counter() - started)
    one_shot = statistics.median(cold)
    return [
        {
            "benchmark": f"export one {format.upper()}, warm Chrome / one-shot",
            "ratio": round(statistics.median(taken) / one_shot, 3),
            "aim": round(AIM_SECONDS / one_shot, 3),
            "detail": f"{statistics.median(taken):.2f} s per file (aim {AIM_SECONDS} s), one-shot {one_shot:.2f} s",
        }
        for format, taken in seconds.items()
    ]


if __name__ == "__main__":
    for row in run():
        print(row)
