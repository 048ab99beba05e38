"""Projection error and norms over the checkpoints of a model."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
import plotly.graph_objects as go

from workbench.core.errors import InputError
from workbench.figures.frames import rows_of
from workbench.figures.grammar import Plot
from workbench.figures.levels import NULL_COLUMNS
from workbench.figures.marks import NOISE, Band, Line, Null, Rule
from workbench.figures.projection import BOUNDS, FLOOR, SHARE, is_wide, share_of_zero_predictor

_PHI, _H, _ERROR = "‖φ‖²", "‖h‖²", "J"
_NORMS, _RELATIVE = "Squared norm", "Mean |‖φ‖² − ‖h‖²|<br>over ‖φ‖², ‖h‖²"
_LOGARITHM = "ln J as coded<br>by Teo et al."
# What is drawn: panel, quantity, metric, convention, statistic. Of an error over a norm the colour is that norm's.
_DRAWN = (
    (_NORMS, _PHI, "phi_norm2", None, "mean"),
    (_NORMS, _H, "h_norm2", None, "mean"),
    (_RELATIVE, _PHI, "projection_error_over_phi", "saritas2025", None),
    (_RELATIVE, _H, "projection_error_over_h", "saritas2025", None),
    (_LOGARITHM, _ERROR, "projection_error", "teo2024_as_implemented", None),
)


def projection_training_figure(
    frames: Mapping[str, pd.DataFrame], epochs: Mapping[str, float] | None = None, unit: str = "Epoch"
) -> go.Figure:
    """Projection error and norms over the checkpoints of a model (teo2024 Fig. 1; saritas2025 Figs 1 and 4).

    Four panels against the epoch: both norms; saritas2025's error over each of them, which is 1 where the error is that
    norm; the logarithm that teo2024's code plots; the exact error over the zero predictor's, mean ‖φ‖², with the first
    batch's floor and null. Medians and interquartile ranges over inputs: single ones have a ‖φ‖² that rules any mean.
    The floor, and other batches, are medians alone.

    Args:
        frames: batch (train, test, …) to the joined result of projection-error over checkpoints, without per_head; the
            first is drawn with solid lines, the second dashed and with crosses.
        epochs: checkpoint to epoch; by default ``frame.attrs["epochs"]``.
        unit: what those are, as the axis says it: of a watched training steps.

    Raises:
        InputError: no batch, a checkpoint without an epoch, or a frame without these values.
    """
    if not frames:
        raise InputError("no batch to draw; give {'train': frame, 'test': frame}")
    parts = []
    for number, (batch, frame) in enumerate(frames.items()):
        known = epochs if epochs is not None else frame.attrs.get("epochs", {})
        rows = rows_of(frame, [*{metric for _, _, metric, *_ in _DRAWN}, *BOUNDS], needs=("checkpoint",))
        unknown = sorted(set(rows["checkpoint"].dropna()) - set(known))
        if unknown:
            raise InputError(f"no epoch is known for checkpoint {', '.join(unknown)}; give epochs=")
        rows = rows.assign(epoch=rows["checkpoint"].map(dict(known)).astype(float), batch=batch)
        single = rows[rows["input"].notna() & rows["layer"].isna() & rows["head"].isna()]
        plain = single.drop(columns=NULL_COLUMNS)
        for panel, quantity, metric, convention, statistic in _DRAWN:
            own = plain[plain["metric"] == metric]
            own = own if convention is None else own[own["convention"].fillna(convention) == convention]
            own = own if statistic is None else own[own["statistic"] == statistic]
            if number:
                own = own.groupby("epoch")["value"].median().reset_index().assign(batch=batch)
            parts.append(own.assign(metric=panel, quantity=quantity, convention=pd.NA, statistic=pd.NA))
        shares = share_of_zero_predictor(single, ["epoch", "input"]).assign(batch=batch)
        exact = shares["quantity"] == "exact"
        others = (
            shares[~exact] if number == 0 else shares[exact]
        )  # without an interval, which would hide the null's
        parts.append(others.groupby(["epoch", "metric", "quantity", "batch"])["value"].median().reset_index())
        parts += [shares[exact]] if number == 0 else []
    drawn = pd.concat([part for part in parts if len(part)], ignore_index=True).drop(
        columns=["model", "checkpoint"]
    )
    if drawn.empty:
        raise InputError("the frames hold no projection errors of single inputs")
    drawn = drawn.replace({"quantity": {"exact": _ERROR}})
    drawn.attrs = next(iter(frames.values())).attrs  # whose null distribution is drawn
    names = {_ERROR: _ERROR, _PHI: _PHI, _H: _H, FLOOR: "floor"} | {
        batch: f"{batch} batch" for batch in frames
    }
    plot = Plot(drawn, x="epoch", color="quantity", dash="batch", names=names)
    shown = [name for name in (_NORMS, _RELATIVE, _LOGARITHM, SHARE) if (drawn["metric"] == name).any()]
    plot = plot.metric(*shown).scale(
        x_title=unit, y_log={_NORMS: True, _RELATIVE: True, SHARE: is_wide(drawn)}, y_cut=True
    )
    many = drawn.groupby("batch")["input"].nunique().max()
    return plot.add(
        Null(words=f"{NOISE}, {next(iter(frames))} batch"),
        Band(over="input", quantiles=(25, 75), words=f"IQR over inputs, {next(iter(frames))} batch"),
        Line("median", words=f"median over {many} inputs"),
        Rule(column="zero", name="zero predictor"),
    ).figure("page", columns=2, labels="ends")
