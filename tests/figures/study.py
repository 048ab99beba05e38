"""Frames of the kernel-PCA study in the shared columns, with numbers chosen by the tests."""

from __future__ import annotations

import pandas as pd

from workbench.frames.metric import METRICS
from workbench.frames.results import conform

MODEL = "bundled:digits-vit"


def study(*rows: dict, model: str = MODEL) -> pd.DataFrame:
    """A result frame from rows that name only what matters."""
    for row in rows:
        assert row["metric"] in METRICS
    return conform(pd.DataFrame([{"model": model, **row} for row in rows]))


def levels(value: float, inputs=(), layers=(), **more) -> list[dict]:
    """An overall row of `value`, a row per input and a row per layer, of the values given there."""
    return [
        {"value": value, **more},
        *({"value": at, "input": f"digits/{number}", **more} for number, at in enumerate(inputs)),
        *({"value": at, "layer": number, **more} for number, at in enumerate(layers)),
    ]


def named(fig, name):
    """The traces that are called so, those of a figure's key left out where it is composed apart."""
    composed = fig.layout.margin.autoexpand is False
    traces = [trace for trace in fig.data if not composed or trace.x[0] is not None]
    return [trace for trace in traces if trace.name and trace.name.startswith(name)]


def titles(fig):
    return [note.text for note in fig.layout.annotations]
