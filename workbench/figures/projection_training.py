"""Projection error and norms over the checkpoints of a model."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from workbench.core.errors import InputError
from workbench.figures.frames import LEGEND_ABOVE, band, legend_rows, log_ticks, rows_of
from workbench.figures.levels import at_level, interval, values_once
from workbench.figures.projection import BOUNDS, add_share, share_of_zero_predictor
from workbench.figures.theme import COLOURS, GREY, batch_style, translucent

_EXACT = ("exact J", COLOURS[0], "triangle-down")
# metric → (convention, statistic, panel, words, colour, symbol)
_TRAINING = {
    "projection_error": (
        ("saritas2025", None, (1, 1), "|‖φ‖² − ‖h‖²|", COLOURS[3], "square"),
        ("teo2024_as_implemented", None, (1, 2), "teo2024, as implemented", COLOURS[5], "triangle-up"),
    ),
    "h_norm2": ((None, "mean", (1, 1), "‖h‖²", COLOURS[2], "diamond"),),
    "phi_norm2": ((None, "mean", (1, 1), "‖φ‖²", COLOURS[0], "circle"),),
    "projection_error_over_phi": (("saritas2025", None, (2, 2), "error over ‖φ‖²", COLOURS[0], "circle"),),
    "projection_error_over_h": (("saritas2025", None, (2, 2), "error over ‖h‖²", COLOURS[2], "diamond"),),
}


def projection_training_figure(
    frames: Mapping[str, pd.DataFrame], epochs: Mapping[str, float] | None = None, unit: str = "Epoch"
) -> go.Figure:
    """Projection error and norms over the checkpoints of a model (teo2024 Fig. 1; saritas2025 Figs 1 and 4).

    Four panels against the epoch: saritas2025's error with both norms; the logarithm that teo2024's code plots; the
    exact error over the zero predictor's, mean ‖φ‖², with floor and null; saritas2025's error over each norm. Bands are
    95 % t intervals over inputs.

    Args:
        frames: batch (train, test, …) to the joined result of projection-error over checkpoints, without per_head; the
            first is drawn with solid lines and filled markers, the second dashed and open.
        epochs: checkpoint to epoch; by default ``frame.attrs["epochs"]``.
        unit: what those are, as the axis says it: of a watched training steps.

    Raises:
        InputError: no batch, a checkpoint without an epoch, or a frame without these values.
    """
    if not frames:
        raise InputError("no batch to draw; give {'train': frame, 'test': frame}")
    titles = [
        "Errors and norms",
        "log J, teo2024's code",
        "Exact J over ‖φ‖²",
        "|‖φ‖² − ‖h‖²| over each norm",
    ]
    fig = make_subplots(2, 2, horizontal_spacing=0.13, vertical_spacing=0.17, subplot_titles=titles)
    drawn: dict[tuple[int, int], list[pd.Series]] = {}
    for number, (batch, frame) in enumerate(frames.items()):
        known = epochs if epochs is not None else frame.attrs.get("epochs", {})
        rows = rows_of(frame, [*_TRAINING, *BOUNDS], needs=("checkpoint",))
        unknown = sorted(set(rows["checkpoint"].dropna()) - set(known))
        if unknown:
            raise InputError(f"no epoch is known for checkpoint {', '.join(unknown)}; give epochs=")
        rows = rows.assign(epoch=rows["checkpoint"].map(dict(known)).astype(float))
        share = share_of_zero_predictor(at_level(rows, "overall"), "epoch")
        if number == 0:
            add_share(fig, share, "epoch", {"row": 2, "col": 1}, legend=True)
        for metric, choices in _TRAINING.items():
            for convention, statistic, where, words, colour, symbol in choices:
                part = rows[_is(rows, metric, convention, statistic)]
                if part.empty:
                    continue
                curve = _through(part)
                drawn.setdefault(where, []).extend([curve["value"], curve["low"], curve["high"]])
                place = {"row": where[0], "col": where[1]}
                if (curve["high"] > curve["low"]).any():
                    floor = curve["value"] / 10 if where != (1, 2) else curve["low"]
                    fig.add_trace(
                        band(
                            curve["epoch"],
                            curve["low"].clip(lower=floor),
                            curve["high"],
                            translucent(colour, 0.16),
                        ),
                        **place,
                    )
                fig.add_trace(_curve(curve, words, batch, colour, symbol, number, unit), **place)
        exact = share.rename(columns={"exact": "value"})
        words, colour, symbol = _EXACT
        fig.add_trace(
            _curve(exact, words, batch, colour, symbol, number, unit).update(showlegend=False), row=2, col=1
        )
        fig.add_trace(  # the legend's key to the batches: a curve that is nowhere
            go.Scatter(
                x=[None],
                y=[None],
                mode="lines+markers",
                **batch_style(number, GREY, "circle"),
                name=f"{batch} batch",
                legendrank=1001,
            ),
            row=1,
            col=1,
        )
    for (row, col), values in drawn.items():
        if (row, col) != (1, 2):
            fig.update_yaxes(type="log", **log_ticks(pd.concat(values)), row=row, col=col)
    fig.update_xaxes(title_text=unit, row=2)
    fig.update_annotations(font={"size": None})
    fig.update_layout(
        height=430, legend=LEGEND_ABOVE, margin={"l": 50, "r": 8, "t": 24 + 18 * legend_rows(fig), "b": 36}
    )
    return fig


def _is(rows: pd.DataFrame, metric: str, convention: str | None, statistic: str | None = None) -> pd.Series:
    chosen = rows["metric"] == metric
    if convention is not None:
        chosen &= rows["convention"].fillna(convention) == convention
    if statistic is not None:
        chosen &= rows["statistic"] == statistic
    return chosen


def _through(rows: pd.DataFrame) -> pd.DataFrame:
    """Overall value at each epoch, and the t interval over inputs around it."""
    overall = values_once(at_level(rows, "overall")).set_index("epoch")["value"]
    inputs = values_once(rows[rows["input"].notna() & rows["layer"].isna()])
    found = []
    for epoch, value in overall.sort_index().items():
        _, low, high = interval(inputs.loc[inputs["epoch"] == epoch, "value"])
        found.append((epoch, value, *((low, high) if np.isfinite(low) else (value, value))))
    return pd.DataFrame(found, columns=["epoch", "value", "low", "high"])


def _curve(
    curve: pd.DataFrame, words: str, batch: str, colour: str, symbol: str, number: int, unit: str
) -> go.Scatter:
    return go.Scatter(
        x=curve["epoch"],
        y=curve["value"],
        mode="lines+markers",
        **batch_style(number, colour, symbol),
        name=words,
        legendgroup=words,
        showlegend=number == 0,
        hovertemplate=f"{words}, {batch}<br>{unit.lower()} %{{x}}<br>%{{y:.4g}}<extra></extra>",
    )
